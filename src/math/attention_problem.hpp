// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention in numbers: the problem of a plan, the arguments of an execution, and which keys a
// query sees. `op` validates them, every backend reads them.
#pragma once

#include "math/chunks.hpp"
#include "math/least_score.hpp"
#include "math/philox.hpp"
#include "math/score_modifier.hpp"
#include "math/tensor.hpp"

namespace perseid::internal {

// The values are those of perseid_causal.
enum class Causal : int32_t { kNone = 0, kTopLeft = 1, kBottomRight = 2 };

// Which rows of every whole sequence of queries the problem has: all, or those that one of several
// ranks holds. Keys are always whole. Positions rise with the row.
struct QueryRows {
  int64_t ranks = 1, rank = 0;
  // The rows are cut into 2 * ranks equal pieces; here are rank and 2 * ranks - 1 - rank.
  bool zigzag = false;
  // Not zigzag: [begin, begin + rows) of total rows; -1: all ranks have equally many.
  int64_t begin = -1, total = 0;
  // Ragged: in bias and visible, so many equal pieces of the rank lie before these rows.
  int64_t pieces_before = 0;
  // A row has the same bits however many others there are, and so have, over all ranks, gradients
  // of keys (leaf_tree.hpp).
  bool canonical = false;

  PERSEID_INLINE bool all() const { return ranks == 1; }
  // A row's position in the whole sequence, of which `rows` are here.
  PERSEID_INLINE int64_t position(int64_t row, int64_t rows) const {
    if (all()) return row;
    if (!zigzag) return (begin < 0 ? rank * rows : begin) + row;
    const int64_t piece = rows / 2;
    return row + piece * (row < piece ? rank : 2 * (ranks - 1) - rank);
  }
  // The length of the whole sequence.
  PERSEID_INLINE int64_t length(int64_t rows) const {
    if (all()) return rows;
    return begin < 0 ? ranks * rows : total;
  }
};

// What is expected of keys that arrive and gradients that leave, in seconds: until the first stage
// of chunks arrives, and for each stage of a group of heads.
struct ChunkTraffic {
  double latency = 0, arrival = 0, departure = 0;
};

struct AttentionProblem {
  DType dtype = DType::kF32;
  int64_t batch = 0, heads = 0, kv_heads = 0;
  int64_t q_len = 0, kv_len = 0;  // of every sequence, or of the longest
  int64_t head_dim = 0, value_dim = 0;
  double scale = 1;
  ScoreModifier modifier;
  double dropout = 0;
  Causal causal = Causal::kNone;
  int64_t window_left = -1, window_right = -1;  // -1: unlimited
  bool window_bottom_right = false;             // its alignment without causal
  bool bias = false, visible = false, ragged = false, q_lens = false, kv_lens = false;
  bool kv_starts = false;    // ragged: cu_seqlens_kv holds the first row of each sequence alone
  bool max_lengths = false;  // lengths and totals are the most that an execution may have
  int64_t kv_batch = 0;      // entries of key and value
  bool kv_index = false;     // which picks one of them for each batch entry
  int64_t num_splits = 0;    // the most splits of keys in forward; 0: any
  DType bias_dtype = DType::kNone;
  int64_t bias_shape[4] = {};         // against [batch, heads, q_len, kv_len]; each that size or 1
  int64_t total_q = 0, total_kv = 0;  // ragged: rows of the packed tensors
  bool grad_query = false, grad_key = false, grad_value = false, grad_bias = false;
  bool deterministic = false;
  // The gradient is added to what its tensor holds, before that sum is rounded.
  bool accumulate_query = false, accumulate_key = false, accumulate_value = false,
       accumulate_bias = false;
  QueryRows rows;
  bool f32_key_gradients = false;  // grad_key and grad_value are f32 where dtype is f16 or bf16
  ChunkCut chunks_kv = {};  // key and value of forward arrive in chunks of kv_len, or of total_kv
  // So many groups of key heads, of all entries, arrive one after the other, at most 8, each in
  // chunks: signals are [group, chunk].
  int64_t arriving_groups = 1;
  // Backward, too: key and value arrive, and their gradients leave in the same chunks. The keys of
  // a chunk are visited after those of lower stages; the table is there while plans are made.
  bool async_backward = false;
  const int32_t* chunk_stages = nullptr;
  ChunkTraffic chunk_traffic = {};
  // Multiprocessors that a kernel of forward leaves free while it waits for chunks.
  int32_t spared = 0;

  PERSEID_INLINE constexpr int64_t heads_of_arrival() const {  // of keys
    return max((batch * kv_heads + arriving_groups - 1) / arriving_groups, int64_t{1});
  }
  PERSEID_INLINE bool async() const { return chunks_kv.present(); }
  PERSEID_INLINE bool backward() const { return grad_query || grad_key || grad_value || grad_bias; }
  PERSEID_INLINE bool accumulates() const {
    return accumulate_query || accumulate_key || accumulate_value || accumulate_bias;
  }
  PERSEID_INLINE int64_t group() const { return heads / kv_heads; }  // query heads per key head
  PERSEID_INLINE bool masked() const {
    return causal != Causal::kNone || window_left >= 0 || window_right >= 0;
  }
  PERSEID_INLINE bool bottom_right() const {
    return causal == Causal::kBottomRight || window_bottom_right;
  }
};

// Those of one execution, where the problem has max_lengths.
struct AttentionLengths {
  int64_t q_len = 0, kv_len = 0, total_q = 0, total_kv = 0;
};

// Every tensor in one order of dimensions, whatever the caller's layout:
//   query, out   [batch, heads, q_len, dim]
//   key, value   [batch, kv_heads, kv_len, dim]
//   lse          [batch, heads, q_len]
// Ragged ones drop `batch` and are packed along the sequence: [heads, total, dim], lse [heads,
// total_q]. bias, visible, grad_bias: always 4 dimensions; broadcast ones have stride 0 and the
// full size, but grad_bias keeps bias_shape (size 1 where it is summed).
struct AttentionForward {
  Tensor query, key, value, bias, visible, out, lse;
  Tensor cu_seqlens_q, cu_seqlens_kv, q_lens, kv_lens, kv_index;  // int32 or int64
  Dropout dropout;
  AttentionLengths lengths = {};
  Arrival arrival_kv = {};
  Missing* missing = nullptr;  // filled where a call ends with TIMEOUT or PEER_LOST
};

struct AttentionBackward {
  Tensor query, key, value, bias, visible, out, lse, grad_out, grad_lse;
  Tensor cu_seqlens_q, cu_seqlens_kv, q_lens, kv_lens, kv_index;
  Tensor grad_query, grad_key, grad_value, grad_bias;  // absent: not wanted
  Dropout dropout;
  AttentionLengths lengths = {};
  Arrival arrival_kv = {};      // where async_backward
  Departure departure_kv = {};  // signals are [group, chunk]
};

// The problem of an execution: that of the plan, with the execution's own lengths.
PERSEID_INLINE AttentionProblem with_lengths(AttentionProblem problem,
                                             const AttentionLengths& lengths) {
  if (!problem.max_lengths) return problem;
  if (problem.bias_shape[2] == problem.q_len && problem.q_len != 1)
    problem.bias_shape[2] = lengths.q_len;
  if (problem.bias_shape[3] == problem.kv_len && problem.kv_len != 1)
    problem.bias_shape[3] = lengths.kv_len;
  problem.q_len = lengths.q_len;
  problem.kv_len = lengths.kv_len;
  problem.total_q = lengths.total_q;
  problem.total_kv = lengths.total_kv;
  return problem;
}

// Keys [begin, end) that a query may see, before `visible` is asked.
struct KeyRange {
  int64_t begin, end;
};

// q_len and kv_len are those of the query's own sequence.
PERSEID_INLINE KeyRange visible_keys(const AttentionProblem& problem, int64_t row, int64_t q_len,
                                     int64_t kv_len) {
  const int64_t shift = problem.bottom_right() ? kv_len - problem.rows.length(q_len) : 0;
  const int64_t position = problem.rows.position(row, q_len) + shift;
  KeyRange range{0, kv_len};
  if (problem.causal != Causal::kNone) range.end = min(range.end, position + 1);
  // Compared without adding to the window, which may be as large as an int64.
  if (problem.window_right >= 0 && problem.window_right < kv_len - position - 1)
    range.end = min(range.end, position + 1 + problem.window_right);
  if (problem.window_left >= 0 && problem.window_left < position)
    range.begin = position - problem.window_left;
  range.begin = clamp(range.begin, int64_t{0}, kv_len);
  range.end = clamp(range.end, range.begin, kv_len);
  return range;
}

// Keys that some query of a sequence may see. Both ends of the visible range rise with the row.
PERSEID_INLINE KeyRange seen_keys(const AttentionProblem& problem, int64_t q_len, int64_t kv_len) {
  if (q_len == 0) return {0, 0};
  const int64_t begin = visible_keys(problem, 0, q_len, kv_len).begin;
  return {begin, max(begin, visible_keys(problem, q_len - 1, q_len, kv_len).end)};
}

// One sequence of the batch: where its rows begin in the packed tensors (0 unless ragged) and how
// many it has; and its entry of key and value.
struct Sequence {
  int64_t q_begin, q_len, kv_begin, kv_len, kv_entry;
};

template <class Arguments>  // AttentionForward or AttentionBackward
PERSEID_INLINE Sequence sequence_of(const AttentionProblem& problem, const Arguments& arguments,
                                    int64_t batch) {
  Sequence sequence{0, problem.q_len, 0, problem.kv_len, batch};
  if (problem.ragged) {
    sequence.q_begin = read_length(arguments.cu_seqlens_q, batch);
    sequence.q_len = read_length(arguments.cu_seqlens_q, batch + 1) - sequence.q_begin;
    sequence.kv_begin = read_length(arguments.cu_seqlens_kv, batch);
    if (!problem.kv_starts)
      sequence.kv_len = read_length(arguments.cu_seqlens_kv, batch + 1) - sequence.kv_begin;
  }
  if (problem.kv_index) sequence.kv_entry = read_length(arguments.kv_index, batch);
  if (problem.q_lens) sequence.q_len = min(sequence.q_len, read_length(arguments.q_lens, batch));
  if (problem.kv_lens)
    sequence.kv_len = min(sequence.kv_len, read_length(arguments.kv_lens, batch));
  return sequence;
}

}  // namespace perseid::internal
