// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The fields of a descriptor, turned into values that the layers below can trust.
#pragma once

#include <initializer_list>
#include <span>

#include "math/tensor.hpp"
#include "op/check.hpp"

namespace perseid::internal::op {

// The most elements of a tensor, where dimensions of size 0 count as 1: 8 TiB of 16-bit numbers.
// Any product of a few sizes, a type's bytes and the number of workers then fits 64 bits.
inline constexpr int64_t kLargestTensor = int64_t{1} << 42;

// The names of fields are those of the C header.
class DescriptorReader : public Check {
 public:
  using Check::Check;

  // `fallback` stands where the field is 0; kNone: 0 is not allowed. 8-bit types are of matmul
  // alone: they are refused without `float8`.
  DType dtype(const char* field, uint32_t value, DType fallback = DType::kNone,
              bool float8 = false);
  // One of `count` values from 0 on; `names` lists them.
  uint32_t choice(const char* field, uint32_t value, uint32_t count, const char* names);
  bool flag(const char* field, uint32_t value);
  int64_t size(const char* field, int64_t value, int64_t least = 0);
  // 1 where `batch` is 0, but for `zero_batch`.
  int64_t batch_of(int64_t batch, uint32_t zero_batch);
  // Finite in `dtype`'s accumulation type.
  double number(const char* field, double value, DType dtype);
  // That the tensor named `name` has at most kLargestTensor elements.
  void extents(const char* name, std::span<const int64_t> sizes);
  void extents(const char* name, std::initializer_list<int64_t> sizes) {
    extents(name, std::span(sizes.begin(), sizes.size()));
  }
};

}  // namespace perseid::internal::op
