// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of the splitting of float32 rows share (planes.hpp).
#pragma once

#include "cuda/device/attention/arguments.hpp"

namespace perseid::internal::cuda {

// The numbers of a pair of rows. `factor`: of products with the first row; `exponent`: e of 2^e <=
// the largest magnitude of the second row < 2^(e + 1), at least kLeastValueExponent.
struct alignas(8) RowNumbers {
  float factor, exponent;
};
// So that 28 - e - e of two rows of zeros is in the range of power_of_minus (plane_products.hpp).
inline constexpr int kLeastValueExponent = -49;

// For kernels that compute tiles of equal numbers faster. Queries have the scale, to units of log2.
inline constexpr int kCommonQueryExponent = 2, kCommonKeyExponent = 5, kCommonValueExponent = 3;
inline constexpr float kCommonKeyFactor = 1.0f / (1 << (14 - kCommonKeyExponent));

// Of a key and its value.
PERSEID_INLINE constexpr bool is_common(const RowNumbers& numbers) {
  return numbers.factor == kCommonKeyFactor && numbers.exponent == kCommonValueExponent;
}

struct PlanesConfig {
  int dim = 128;  // of the longest row of planes, in numbers; a multiple of 16

  static constexpr const char* kName = "PlanesConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("dim", c.dim);
  }

  static constexpr int threads = 256;
  // That share a row. Each does the row's arithmetic, beside its numbers'.
  constexpr int lanes() const { return dim <= 16 ? 4 : dim <= 64 ? 8 : dim <= 128 ? 16 : 32; }
  // float4 of each of so many lanes.
  constexpr int held(int by) const { return (dim + 4 * by - 1) / (4 * by); }
  // Of a block: pairs, or first rows alone.
  constexpr int rows(bool alone) const { return (alone ? 4 : 2) * threads / lanes(); }
};

// A tensor and its planes; data is null where there is none.
struct PlanesOfRows {
  RowsInMemory from;
  uint16_t* planes = nullptr;  // [entry, head, row, 2 * length]
  int32_t dim = 0, length = 0, chunk = 0;
  bool vectors = false;  // rows are read 16 bytes at a time
  // Rows of zeros, and those whose largest magnitude is in [2^(common - 7), 2^(common + 1)), are
  // split as if it were 2^common: neighbours then have the same numbers. 0: each row by its own.
  int32_t common = 0;
  // So are others, of 2^-44 to 2^28, as if it were 2^(common + 8 i).
  bool in_steps = false;
  // The planes are those of the numbers times scale + scale_rest; the latter is a few units in the
  // last place of the former.
  float scale = 1, scale_rest = 0;
};
struct PairsOfRows {
  PlanesOfRows first, second;
  RowsInMemory lse;               // if not null, second rows are multiplied by LseInLog2::factor
  RowNumbers* numbers = nullptr;  // [entry, head, row]
  // If not null, becomes the number of the launch if a key or its value has numbers of its own.
  uint64_t* uncommon = nullptr;
  uint64_t launch = 0;
  int32_t rows = 0, heads = 0;
  int32_t blocks_of_head = 0;
  // Planes have the numbers as they are, which a block then splits itself (without second rows,
  // `numbers` are 1 and 0).
  bool copies = false;
};
struct PlanesArguments {
  PairsOfRows pairs[2];
  int32_t first_blocks = 0;  // of pairs[0]; those of pairs[1] follow
};

}  // namespace perseid::internal::cuda
