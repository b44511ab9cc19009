// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Tensors in .npy and .safetensors files: see file.h. Included by perseid.hpp.
#ifndef PERSEID_FILE_HPP_
#define PERSEID_FILE_HPP_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perseid/file.h"
#include "perseid/tensor.hpp"

namespace perseid {
inline namespace v0 {

/// A .npy or .safetensors file, opened for reading. Tensors and strings live as long as it does;
/// the data is read-only.
/// \snippet snippets.cpp files
class File {
 public:
  /// Opens a file.
  /// \snippet snippets.cpp files
  explicit File(const std::string& path) {
    perseid_file_t handle = nullptr;
    detail::check(perseid_file_open(path.c_str(), &handle));
    handle_.reset(handle);
  }
  /// The names of its tensors, in the order of the file.
  /// \snippet snippets.cpp files
  std::vector<std::string> names() const {
    size_t count = 0;
    detail::check(perseid_file_count(handle_.get(), &count));
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      detail::check(perseid_file_tensor(handle_.get(), i, &name, nullptr));
      names.emplace_back(name);
    }
    return names;
  }
  /// The tensor of this name; Error (IO_ERROR) lists the names there are.
  /// \snippet snippets.cpp files
  Tensor operator[](const std::string& name) const {
    const DLTensor* tensor = nullptr;
    detail::check(perseid_file_find(handle_.get(), name.c_str(), &tensor));
    return Tensor(*tensor);
  }
  /// The index-th tensor, in the order of the file.
  /// \snippet snippets.cpp files
  Tensor operator[](size_t index) const {
    const DLTensor* tensor = nullptr;
    detail::check(perseid_file_tensor(handle_.get(), index, nullptr, &tensor));
    return Tensor(*tensor);
  }
  /// A string of safetensors' metadata.
  /// \snippet snippets.cpp files
  std::optional<std::string> metadata(const std::string& key) const {
    const char* value = nullptr;
    detail::check(perseid_file_metadata(handle_.get(), key.c_str(), &value));
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

 private:
  struct Close {
    void operator()(perseid_file_t handle) const { perseid_file_close(handle); }
  };
  std::unique_ptr<perseid_file, Close> handle_;
};

/// A tensor to write, and its name in the file.
using NamedTensor = std::pair<std::string, Tensor>;
/// One entry of safetensors' metadata.
using KeyValue = std::pair<std::string, std::string>;

/// Writes the format that the extension names, in one piece or not at all. .npy takes one tensor
/// (its name is ignored) and no metadata.
/// \snippet snippets.cpp files
inline void write_file(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::vector<KeyValue>& metadata = {}) {
  std::vector<perseid_named_tensor> c_tensors;
  c_tensors.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) c_tensors.push_back({name.c_str(), tensor.dl()});
  std::vector<perseid_key_value> c_metadata;
  c_metadata.reserve(metadata.size());
  for (const auto& [key, value] : metadata) c_metadata.push_back({key.c_str(), value.c_str()});
  detail::check(perseid_file_write(path.c_str(), c_tensors.data(), c_tensors.size(),
                                   c_metadata.data(), c_metadata.size()));
}

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_FILE_HPP_
