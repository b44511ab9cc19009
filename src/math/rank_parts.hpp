// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A product of which each rank owns a shard of the rows, or of the columns: what a kernel is told
// of the shards, and where the partial sums of other ranks arrive and those for them leave.
#pragma once

#include "math/chunks.hpp"

namespace perseid::internal {

// Where the sums for another rank's shard go.
struct RankTarget {
  float* data = nullptr;        // of its first row, or column
  int64_t batch = 0, row = 0;   // strides
  int32_t first = 0, last = 0;  // its rows, or columns: [first, last)
  int32_t rank = 0;
  // Of chunk c of the product: signals[(c - first_chunk) * signal_stride].
  uint32_t* signals = nullptr;
  int32_t first_chunk = 0, signal_stride = 1;
};

// All of float32, rows and columns counted from those of the whole product; columns lie side by
// side.
struct RankParts {
  // [rank, batch, row, column]: sums of the other ranks for the own shard; nothing is read of
  // `own`.
  const float* data = nullptr;
  int64_t of_rank = 0, batch = 0, row = 0;  // strides
  int32_t ranks = 1, own = 0;
  int32_t first = 0, last = 0;  // the own rows, or columns: [first, last)
  // [batch, row, column]: sums of this rank for the others' shards.
  float* partial = nullptr;
  int64_t partial_batch = 0, partial_row = 0;
  // Signal c * (ranks - 1) + i: part i, in the order of arrival, of chunk c of the own shard, which
  // has `chunks` of them, from number `first_chunk` of all on.
  Arrival arrival = {};
  int32_t first_chunk = 0, chunks = 0;
  // Instead of `partial` and the signals of the product's chunks, the memory of the other ranks:
  // ranks - 1 targets, where a kernel takes them (Sm90MatmulConfig::deferred_parts). Signal r of
  // `begun`: rank r may be written to.
  const RankTarget* targets = nullptr;
  Arrival begun = {};
};

}  // namespace perseid::internal
