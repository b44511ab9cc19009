// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Elements of every dtype as doubles, one at a time. The rounding is arithmetic, not the bit tricks
// of the library, so that a mistake there cannot hide here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid::harness {

using Shape = std::vector<int64_t>;

const char* name_of(DType dtype);
// kNone where the name is unknown.
DType parse_dtype(std::string_view name);
int64_t size_of(DType dtype);
bool is_floating(DType dtype);
bool is_float8(DType dtype);
// The largest finite number of an 8-bit type, to which larger ones are rounded.
double largest_float8(DType dtype);
// Half the distance from 1 to the next value: the error of one rounding, relatively.
double unit_roundoff(DType dtype);

// Between the numbers next to 0.
double smallest_step(DType dtype);

// The nearest value that the dtype has (ties to even), by way of float32 to the 16- and 8-bit
// types.
double round_to(DType dtype, double value);
double load(DType dtype, const void* from);
void store(DType dtype, void* to, double value);

// Saturates at the largest int64; 0 where any extent is 0.
int64_t elements_of(const Shape& shape);
// "[2, 3]"
std::string to_text(const Shape& shape);

// Calls body(pointer to element) for each element in row-major order of the shape.
template <class Body>
void for_each_element(const Tensor& tensor, Body&& body) {
  const int64_t count = tensor.elements();
  if (count == 0) return;
  const int32_t rank = tensor.ndim();
  const int64_t size = size_of(tensor.dtype());
  int64_t index[PERSEID_MAX_DIMS] = {};
  auto* pointer = tensor.data<std::byte>();
  for (int64_t i = 0; i < count; ++i) {
    body(pointer);
    for (int32_t dim = rank - 1; dim >= 0; --dim) {
      pointer += tensor.stride(dim) * size;
      if (++index[dim] < tensor.size(dim)) break;
      pointer -= tensor.stride(dim) * size * tensor.size(dim);
      index[dim] = 0;
    }
  }
}

// All elements in row-major order of the shape, and back.
std::vector<double> values_of(const Tensor& tensor);
void assign(const Tensor& tensor, const std::vector<double>& values);

}  // namespace perseid::harness
