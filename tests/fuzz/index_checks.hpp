// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What holds of every tensor of every file that a parser takes, however it was made.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "driver.hpp"
#include "io/tensor_file.hpp"

namespace perseid_fuzz {

// Reads every byte of every tensor, and finds it under its name.
inline void check_index(const perseid::internal::io::FileIndex& index,
                        std::span<const std::byte> file) {
  require(index.by_name.size() == index.tensors.size(), "every tensor can be looked up");
  unsigned sum = 0;
  for (const perseid::internal::io::StoredTensor& tensor : index.tensors) {
    require(index.find(tensor.name) == &tensor, "a tensor is found under its name");
    require(tensor.name.find('\0') == std::string::npos, "a name is a C string");
    require(tensor.offset <= file.size() && tensor.bytes <= file.size() - tensor.offset,
            "a tensor lies within the file");
    for (const std::byte byte : file.subspan(tensor.offset, tensor.bytes))
      sum += static_cast<unsigned>(byte);
    if (!tensor.type.readable()) continue;
    require(tensor.shape.size() <= perseid::internal::io::kMaxFileDims, "the rank is bounded");
    require(perseid::internal::io::dense_bytes(tensor.shape, tensor.type.bytes) == tensor.bytes,
            "the shape takes the tensor's bytes");
    if (tensor.bytes == 0) continue;
    uint64_t last = 0;  // the farthest element
    for (size_t i = 0; i < tensor.shape.size(); ++i)
      last += static_cast<uint64_t>((tensor.shape[i] - 1) * tensor.stride[i]);
    require((last + 1) * tensor.type.bytes == tensor.bytes, "the strides stay within the tensor");
  }
  [[maybe_unused]] volatile unsigned kept = sum;
}

// The tensor as the writers take it.
inline perseid::internal::io::SourceTensor source_of(
    const perseid::internal::io::StoredTensor& tensor, std::span<const std::byte> file) {
  return {.name = tensor.name,
          .type = tensor.type,
          .shape = tensor.shape,
          .stride = tensor.stride,
          .data = file.data() + tensor.offset};
}

}  // namespace perseid_fuzz
