// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of tensor files share: tensors of any strides, a folder that goes away, an open
// file, hand-made files.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "perseid/perseid.h"

namespace perseid_test {

inline constexpr DLDataType kBool{kDLBool, 8, 1}, kI8{kDLInt, 8, 1}, kI16{kDLInt, 16, 1},
    kI32{kDLInt, 32, 1}, kI64{kDLInt, 64, 1}, kU8{kDLUInt, 8, 1}, kU16{kDLUInt, 16, 1},
    kU32{kDLUInt, 32, 1}, kU64{kDLUInt, 64, 1}, kF16{kDLFloat, 16, 1}, kBF16{kDLBfloat, 16, 1},
    kF32{kDLFloat, 32, 1}, kF64{kDLFloat, 64, 1}, kF8E4M3{kDLFloat8_e4m3fn, 8, 1},
    kF8E5M2{kDLFloat8_e5m2, 8, 1};

// The strides that a test asks for.
enum class Order { kNone, kRowMajor, kColumnMajor, kBackwards, kEverySecond, kRepeated };

// A tensor over memory of its own, filled with a pattern, beginning at an odd address.
class Source {
 public:
  Source(DLDataType dtype, std::vector<int64_t> shape, Order order)
      : shape_(std::move(shape)), strides_(shape_.size()) {
    int64_t stride = 1;
    for (size_t i = 0; i < shape_.size(); ++i) {
      const size_t axis = order == Order::kColumnMajor ? i : shape_.size() - 1 - i;
      strides_[axis] = stride;
      stride *= std::max<int64_t>(shape_[axis], 1);
    }
    for (int64_t& step : strides_) {
      if (order == Order::kBackwards) step = -step;
      if (order == Order::kEverySecond) step *= 2;
    }
    if (order == Order::kRepeated && !strides_.empty()) strides_.back() = 0;
    const int64_t bytes = dtype.bits / 8;
    memory_.resize(static_cast<size_t>(2 * stride * bytes + 1));
    for (size_t i = 0; i < memory_.size(); ++i)
      memory_[i] = static_cast<std::byte>(dtype.code == kDLBool ? i % 2 : i * 167 + i / 251);
    constexpr int64_t kOdd = 1;
    const int64_t first = order == Order::kBackwards ? (stride - 1) * bytes : 0;
    tensor_ = {.data = memory_.data() + kOdd,
               .device = {kDLCPU, 0},
               .ndim = static_cast<int32_t>(shape_.size()),
               .dtype = dtype,
               .shape = shape_.data(),
               .strides = order == Order::kNone ? nullptr : strides_.data(),
               .byte_offset = static_cast<uint64_t>(first)};
    if (std::count(shape_.begin(), shape_.end(), 0) > 0) tensor_.data = nullptr;
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  const DLTensor* tensor() const { return &tensor_; }

 private:
  std::vector<int64_t> shape_, strides_;
  std::vector<std::byte> memory_;
  DLTensor tensor_;
};

inline bool same_type(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

// The elements in row-major order, one at a time, by the definition of strides.
inline std::string elements_of(const DLTensor& tensor) {
  const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.ndim);
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const int64_t bytes = tensor.dtype.bits / 8;
  std::string result;
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = 0, rest = n, row_major = 1;
    for (size_t i = shape.size(); i-- > 0; rest /= shape[i], row_major *= shape[i])
      offset += rest % shape[i] * (tensor.strides != nullptr ? tensor.strides[i] : row_major);
    result.append(static_cast<const char*>(tensor.data) + static_cast<int64_t>(tensor.byte_offset) +
                      offset * bytes,
                  static_cast<size_t>(bytes));
  }
  return result;
}

class Folder {
 public:
  Folder() : folder_(testing::TempDir() + "/perseid-io-XXXXXX") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::string folder_;
};

class File {
 public:
  explicit File(const std::string& path) : status_(perseid_file_open(path.c_str(), &file_)) {}
  ~File() { perseid_file_close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  perseid_status status() const { return status_; }
  bool opened() const { return status_ == PERSEID_OK && file_ != nullptr; }
  perseid_file_t get() const { return file_; }
  size_t count() const {
    size_t result = 0;
    EXPECT_EQ(perseid_file_count(file_, &result), PERSEID_OK);
    return result;
  }

 private:
  perseid_file_t file_ = nullptr;
  perseid_status status_;
};

inline perseid_status write_one(const std::string& path, const DLTensor* tensor) {
  const perseid_named_tensor named{"w", tensor};
  return perseid_file_write(path.c_str(), &named, 1, nullptr, 0);
}

// Whether the last error's sentence contains the text.
inline testing::AssertionResult says(const std::string& text) {
  const std::string sentence = perseid_last_error();
  if (sentence.find(text) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected \"" << text << "\" in: " << sentence;
}

inline std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

inline std::string npy(int version, const std::string& header, const std::string& data) {
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + data;
}

inline std::string safetensors(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

// Lengthens a file by a hole of `bytes` bytes and the text behind it.
inline bool append_sparse(const std::string& path, int64_t bytes, const std::string& text) {
  const auto end = static_cast<int64_t>(std::filesystem::file_size(path)) + bytes;
  const auto size = static_cast<int64_t>(text.size());
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  const bool done = descriptor >= 0 && ::ftruncate(descriptor, end) == 0 &&
                    ::pwrite(descriptor, text.data(), text.size(), end) == size;
  ::close(descriptor);
  return done;
}

}  // namespace perseid_test
