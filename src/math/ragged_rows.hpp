// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of a padded tensor [batch, longest, ...] beside those of a packed one [total, ...]: where
// each lies, and which sequence it is of.
#pragma once

#include "math/tensor.hpp"

namespace perseid::internal {

// A row is `parts` runs of contiguous bytes. Strides are in bytes.
struct RaggedRows {
  char* padded = nullptr;
  char* packed = nullptr;
  Tensor cu_seqlens;  // [batch + 1]
  int64_t batch = 0, longest = 0, total = 0;
  int64_t sequence_stride = 0, padded_stride = 0, packed_stride = 0;  // from row to row
  int64_t run = 0;                                                    // bytes of a part
  int64_t parts = 1;
  int32_t part_rank = 0;  // dimensions that number the parts, the innermost last
  int64_t part_shape[kMaxDims] = {};
  int64_t padded_part[kMaxDims] = {}, packed_part[kMaxDims] = {};

  // Numbers that nobody has checked lie within the tensors all the same.
  PERSEID_INLINE int64_t begin_of(int64_t sequence) const {
    return clamp(read_length(cu_seqlens, sequence), int64_t{0}, total);
  }
  // The last sequence that begins at the row or before it.
  PERSEID_INLINE int64_t sequence_of(int64_t row) const {
    int64_t first = 0, last = batch - 1;
    while (first < last) {
      const int64_t middle = (first + last + 1) / 2;
      if (begin_of(middle) <= row)
        first = middle;
      else
        last = middle - 1;
    }
    return first;
  }
  PERSEID_INLINE int64_t length_of(int64_t sequence) const {
    return clamp(begin_of(sequence + 1) - begin_of(sequence), int64_t{0}, longest);
  }
  PERSEID_INLINE char* padded_row(int64_t sequence, int64_t row) const {
    return padded + sequence * sequence_stride + row * padded_stride;
  }
  PERSEID_INLINE char* packed_row(int64_t row) const { return packed + row * packed_stride; }
  PERSEID_INLINE int64_t part_offset(const int64_t* stride, int64_t part) const {
    int64_t offset = 0;
    for (int32_t d = part_rank - 1; d >= 0; --d) {
      offset += part % part_shape[d] * stride[d];
      part /= part_shape[d];
    }
    return offset;
  }

  int64_t rows(bool into_packed) const { return into_packed ? total : batch * longest; }

  struct Copy {
    char* to;
    const char* from;  // null: zeros
  };
  // Row `row` of packed, or number `row` of padded's batch * longest rows. to is null where the
  // row is of no sequence and not to be zeroed.
  PERSEID_INLINE Copy into_packed(int64_t row, bool zero_rest) const {
    if (batch > 0) {
      const int64_t sequence = sequence_of(row), i = row - begin_of(sequence);
      if (0 <= i && i < length_of(sequence)) return {packed_row(row), padded_row(sequence, i)};
    }
    return {zero_rest ? packed_row(row) : nullptr, nullptr};
  }
  PERSEID_INLINE Copy into_padded(int64_t row, bool zero_rest) const {
    const int64_t sequence = row / longest, i = row % longest;
    char* const to = padded_row(sequence, i);
    if (i < length_of(sequence)) return {to, packed_row(begin_of(sequence) + i)};
    return {zero_rest ? to : nullptr, nullptr};
  }
};

}  // namespace perseid::internal
