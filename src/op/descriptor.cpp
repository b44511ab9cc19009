// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/descriptor.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace perseid::internal::op {

DType DescriptorReader::dtype(const char* field, uint32_t value, DType fallback, bool float8) {
  if (value == 0 && fallback != DType::kNone) return fallback;
  const bool of_matmul = !float8 && is_float8(static_cast<DType>(value));
  const bool known = PERSEID_F16 <= value && value <= (float8 ? PERSEID_F8E5M2 : PERSEID_F64);
  require(known, field, " is ",
          of_matmul ? concatenate(name_of(static_cast<DType>(value)), ", which matmul alone takes")
                    : std::to_string(value),
          ", expected PERSEID_F16 (1), PERSEID_BF16 (2), PERSEID_F32 (3)",
          float8 ? ", PERSEID_F64 (4), PERSEID_F8E4M3 (5) or PERSEID_F8E5M2 (6)"
                 : " or PERSEID_F64 (4)");
  return ok() ? static_cast<DType>(value) : DType::kF32;
}

uint32_t DescriptorReader::choice(const char* field, uint32_t value, uint32_t count,
                                  const char* names) {
  return require(value < count, field, " is ", value, ", expected ", names) ? value : 0;
}

bool DescriptorReader::flag(const char* field, uint32_t value) {
  require(value <= 1, field, " is ", value, ", expected 0 (no) or 1 (yes)");
  return value == 1;
}

int64_t DescriptorReader::size(const char* field, int64_t value, int64_t least) {
  const bool holds = require(value >= least, field, " is ", value, ", expected at least ", least) &&
                     require(value <= kLargestTensor, field, " is ", value, ", expected at most ",
                             kLargestTensor, "; split the problem");
  return holds ? value : least;
}

int64_t DescriptorReader::batch_of(int64_t batch, uint32_t zero_batch) {
  if (!flag("zero_batch", zero_batch)) return batch == 0 ? 1 : size("batch", batch);
  require(batch == 0, "zero_batch is 1, but batch is ", batch, "; leave one of them 0");
  return 0;
}

double DescriptorReader::number(const char* field, double value, DType dtype) {
  const double largest = dtype == DType::kF64
                             ? std::numeric_limits<double>::max()
                             : static_cast<double>(std::numeric_limits<float>::max());
  require(std::abs(value) <= largest, field, " is ", value,
          ", expected a number that is finite in the accumulation type of ", name_of(dtype));
  return value;
}

void DescriptorReader::extents(const char* name, std::span<const int64_t> sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    const int64_t factor = max(size, int64_t{1});
    if (!require(count <= kLargestTensor / factor, name, " has more than ", kLargestTensor,
                 " elements (dimensions of 0 count as 1), which is the most that one may have; "
                 "split the problem"))
      return;
    count *= factor;
  }
}

}  // namespace perseid::internal::op
