// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// 8-bit operands of matmul. Packing (pack.hpp) moves their bytes into the low bits of the float32
// elements of a panel; a second pass over the packed panel, which is in the cache, makes numbers of
// them and multiplies by the scales. So one kernel serves both types in every combination, all
// scales, and every way of packing.
#pragma once

#include "cpu/simd/pack.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// The scales of an operand of the product as the kernel sees it, which may be the transpose of the
// caller's: [batch, lines, parts of k], lines being rows of A or columns of B.
struct LineScales {
  const float* data = nullptr;            // null: all 1
  int64_t batch = 0, line = 0, part = 0;  // strides
  int64_t lines_of_scale = 1;

  LineScales(const Tensor& scales, int64_t lines)
      : data(scales.as<float>()),
        batch(scales.stride[0]),
        line(scales.stride[1]),
        part(scales.stride[2]),
        lines_of_scale(lines) {}

  float at(int64_t entry, int64_t i, int64_t k) const {
    if (data == nullptr) return 1;
    return data[entry * batch + i / lines_of_scale * line + k / kScaledBlock * part];
  }
};

template <class F8>
PERSEID_INLINE float number_of(float packed) {
  return to_float(F8{static_cast<uint8_t>(float_bits(packed))});
}

class Float8Panel {
 public:
  // Panels of one operand, of `dtype`.
  Float8Panel(DType dtype, const LineScales& scales) : dtype_(dtype), scales_(scales) {}

  // Whether the scales of all batch entries are the same.
  bool of_whole_batch() const { return scales_.data == nullptr || scales_.batch == 0; }

  // data[i * row + k] of lines [first, first + lines) at depths [depth, depth + count).
  void decode_rows(int64_t batch, int64_t first, int64_t lines, int64_t depth, int64_t count,
                   float* data, int64_t row) const {
    with_type([&]<class F8>() {
      for (int64_t i = 0; i < lines; ++i) {
        for (int64_t k = 0; k < count;) {
          const int64_t end = min(count, part_end(depth + k) - depth);
          const float scale = scales_.at(batch, first + i, depth + k);
          for (; k < end; ++k) data[i * row + k] = number_of<F8>(data[i * row + k]) * scale;
        }
      }
    });
  }

  // data[k * width + i] of the same, lines at most kMostLines.
  static constexpr int64_t kMostLines = 1024;
  void decode_depth(int64_t batch, int64_t first, int64_t lines, int64_t depth, int64_t count,
                    float* data, int64_t width) const {
    with_type([&]<class F8>() {
      float scale[kMostLines];
      for (int64_t k = 0; k < count;) {
        const int64_t end = min(count, part_end(depth + k) - depth);
        for (int64_t i = 0; i < lines; ++i) scale[i] = scales_.at(batch, first + i, depth + k);
        for (; k < end; ++k) {
          float* line = data + k * width;
          for (int64_t i = 0; i < lines; ++i) line[i] = number_of<F8>(line[i]) * scale[i];
        }
      }
    });
  }

 private:
  // Where the scales of depth k end.
  static int64_t part_end(int64_t k) { return (k / kScaledBlock + 1) * kScaledBlock; }

  template <class Body>
  void with_type(const Body& body) const {
    if (dtype_ == DType::kF8E4M3) {
      body.template operator()<f8e4m3>();
    } else {
      body.template operator()<f8e5m2>();
    }
  }

  DType dtype_;
  LineScales scales_;
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
