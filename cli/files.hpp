// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of `perseid run`: read from files, converted where --dtype asks for it, and written
// back together.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "harness/element.hpp"

namespace perseid::cli {

// "X.npy" or "X.safetensors:NAME".
struct FileReference {
  std::string path, name;
  bool safetensors = false;
};
FileReference parse_reference(const std::string& flag, const std::string& text);

class TensorFiles {
 public:
  // `flag`, such as "--query", is named in error sentences. With a `convert` to another floating
  // type the tensor is a converted copy; else it is the mapped file, where that is aligned. Bytes
  // (uint8) are taken as numbers of an 8-bit type.
  Tensor read(const std::string& flag, const std::string& reference, DType convert = DType::kNone);
  // int32 or int64, of one dimension.
  Tensor read_lengths(const std::string& flag, const std::string& reference);
  // bool or uint8.
  Tensor read_mask(const std::string& flag, const std::string& reference);

  // Memory for a tensor that is not written, and for one that write() puts into a file.
  Tensor scratch(DType dtype, const harness::Shape& shape);
  Tensor result(const std::string& flag, const std::string& reference, DType dtype,
                const harness::Shape& shape);
  // Writes all results, those of one safetensors file together. .npy has neither bf16, which is
  // written as float32, nor 8-bit types, whose bytes are written as uint8.
  void write();

  struct Written {
    std::string flag, reference;
    DType dtype;  // in the file
    harness::Shape shape;
  };
  const std::vector<Written>& written() const { return written_; }

 private:
  const File& open(const std::string& path);
  // safetensors may put a tensor at any byte; the library wants elements aligned.
  Tensor aligned(const Tensor& tensor);
  Tensor converted(const Tensor& tensor, DType dtype);

  struct Result {
    std::string flag, text;
    FileReference reference;
    Tensor tensor;
  };
  std::map<std::string, File> files_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<Result> results_;
  std::vector<Written> written_;
};

// The same tensor with leading dimensions of size 1, up to `dims` of them.
Tensor with_leading_ones(const Tensor& tensor, int32_t dims);
harness::Shape shape_of(const Tensor& tensor);

}  // namespace perseid::cli
