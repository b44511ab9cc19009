// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What every launch of attention has to know of a problem in memory.
#pragma once

#include "cuda/device/raster_order.hpp"

namespace perseid::internal::cuda {

// A tensor for ordinary loads and stores; strides in elements. The dimensions are batch, head, row
// and element.
struct RowsInMemory {
  void* data = nullptr;
  int64_t stride[4] = {};
};
// Bias or visible mask: batch, head, row and key, with stride 0 where it is repeated.
struct ScoresInMemory : RowsInMemory {
  bool pairs = false;    // two neighbouring keys, the first even, are one aligned access
  bool vectors = false;  // rows consist of aligned vectors of 16 bytes
};
struct LengthsInMemory {
  const void* data = nullptr;
  int64_t stride = 0;
  bool wide = false;  // 64 bits
};

// Ragged tensors have one batch entry in memory.
struct AttentionArguments {
  int32_t q_len = 0, kv_len = 0;            // of every sequence, or of the longest
  int32_t batch = 0, heads = 0, group = 0;  // query heads of a batch entry, and of a key head
  int32_t head_dim = 0, value_dim = 0;
  // Row q sees keys [q + left, q + right), cut to [0, kv_len). Both are larger by kv_len - q_len of
  // its sequence where `bottom_right` says so.
  int32_t left = 0, right = 0;
  bool bottom_right = false;
  // If C.sharded: queries are rows of longer sequences, the first one is row first_row. Those from
  // second_piece on stand `gap` rows further than they lie in memory; left and right are of those
  // before.
  int32_t first_row = 0, second_piece = 0, gap = 0;
  // Ragged: of every sequence of queries the piece of this number is here, of so many equal ones.
  // In bias and visible, rows of so many pieces lie before its own.
  int32_t piece = 0, pieces = 1, pieces_before = 0;
  // Ragged, if C.rank_pieces: two pieces of every sequence are here, of the number `piece` and, as
  // far from the end, `pieces` - 1 - `piece`. In cumulative_q each is a sequence of its own, 2 b
  // and 2 b + 1 of sequence b of keys.
  bool two_pieces = false;
  float scale_log2 = 0;       // scale * log2(e)
  double scale_log2_f64 = 0;  // the same, for float64

  // Where a sequence has lengths of its own.
  bool ragged = false;
  int32_t total_q = 0, total_kv = 0;
  LengthsInMemory cumulative_q, cumulative_kv, q_lens, kv_lens;
  bool kv_starts = false;    // cumulative_kv holds where sequences begin, in any order
  LengthsInMemory kv_index;  // the entry of key and value, of kv_batch, of each of query
  int32_t kv_batch = 0;

  ScoresInMemory bias, visible;
  uint32_t dropout_threshold = 256;
  float dropout_factor = 1;  // 256 / dropout_threshold
  uint32_t dropout_offset = 0;
  uint64_t dropout_seed = 0;
  const uint64_t* dropout_numbers = nullptr;  // {seed, offset}, where it is not null

  // For ordinary loads and stores.
  RowsInMemory query_rows, key_rows, value_rows, out_rows;
};

// The raster order of Q tiles, of heads of the whole batch.
struct QueryRaster {
  int32_t batch_heads = 0;
  int32_t q_tiles = 0;  // of a head; ragged: padded positions of all sequences
  int32_t heads_per_section = 0;
  // By those, and by the heads of a batch entry and of a key head.
  SectionDivisors by_section;
  Divisor by_heads, by_group;

  constexpr void set_divisors(int32_t heads, int32_t group) {
    if (batch_heads == 0) return;  // no tile either
    by_section = {q_tiles, batch_heads, heads_per_section};
    by_heads = divisor_of(heads);
    by_group = divisor_of(group);
  }
};

// Rows that q_lens leaves out (clear_rows.hpp).
struct ClearRowsArguments : AttentionArguments {
  RowsInMemory rows;
  int32_t columns = 0;
  int32_t element_bytes = 0;  // 2, 4 or 8
  RowsInMemory lse;           // null: none. Rows of one element, float or double
  int32_t lse_bytes = 0;
};

inline constexpr int kClearRowsThreads = 128;

// Forward over few queries: keys in splits, each with results of its own for every row (and the
// logarithm to base 2 of the row sum), which another kernel combines. Real: of sums.
template <class Real>
struct KeySplitsOf {
  int32_t num_splits = 1, split_tiles = 0;  // KV tiles of a split
  Real* split_results = nullptr;            // [split, row, value_dim]; rows: [batch, head, query]
  Real* split_sums = nullptr;               // [split, row]
  // The same, of float32 and float64: sums are 2^split_sums times it.
  Real* split_weights = nullptr;
  int64_t rows = 0;
};
using KeySplits = KeySplitsOf<float>;

inline constexpr int kRowWarps = 4;  // of a block that combines splits or fixes rows up

// What backward has in addition. A null pointer disables a gradient. Real: of sums.
template <class Real>
struct AttentionGradientsOf : AttentionArguments {
  RowsInMemory grad_out_rows, grad_query_rows, grad_key_rows, grad_value_rows;
  RowsInMemory grad_bias;      // [batch, heads, queries, keys] of bias
  RowsInMemory lse, grad_lse;  // rows of one element; grad_lse may be null
  // [block of queries][queries]; +inf for a query that sees no key. Of float32 LseInLog2::rounded.
  Real* lse_log2 = nullptr;
  // The same; sum(out * grad_out) - grad_lse, of float32 times LseInLog2::factor.
  Real* delta = nullptr;
  int32_t kv_heads = 0;         // of a batch entry
  int32_t q_blocks = 0;         // of a head; ragged: padded positions of blocks
  uint32_t* arrived = nullptr;  // splits of each tile of dBias that have arrived
  Real modifier = 0;            // the value of the score modifier
  Real scale = 0;
};
using AttentionGradients = AttentionGradientsOf<float>;

// The gradient of a bias that is repeated, in tiles that are sums over units (bias_split.hpp).
struct BiasTiles {
  bool sums_batch = false, sums_heads = false, sums_queries = false, sums_keys = false;
  int32_t bias_heads = 0, bias_q_tiles = 0, bias_k_tiles = 0;  // 1 where it is repeated
  int32_t num_splits = 1, blocks = 0;                          // tiles times splits
  // [tile][split][rows and columns that are not summed], float, or of float64 double.
  void* split_sums = nullptr;
  int32_t bias_blocks = 0;  // tiles
};

}  // namespace perseid::internal::cuda
