// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention backward on sm_90 does row by row, before and after its products. Both kernels
// move memory and little else: accesses of 16 bytes, all loads of a thread before the first use.
//
// Before: delta = sum(out * grad_out) - grad_lse, and lse in powers of two, of all queries. A query
// that sees no key, and one behind the last, gets +inf there, so that its weights 2^(score - lse)
// are 0, and a delta of 0. The sums of grad_query are cleared, or the turns of their summands, the
// first of which stores.
//
// After: the sums times scale, rounded, are grad_query; NaN, if somebody has waited in vain. Where
// tiles say that they are done, a head is rounded as soon as all of its tiles are.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"
#include "cuda/device/sm90/attention/rules.hpp"

namespace perseid::internal::cuda {

// ---- Rows that are computed again ----

// A weight of 0 times something that is NaN or infinite is NaN, so that the tensor cores let what
// masked keys and queries hold into gradients that have nothing to do with them. Consumers clear
// such elements before the products (backward_parts.hpp), so that what does not depend on them
// keeps its bits. A row of a gradient that does depend on them, or whose result is not finite, is
// computed here from what is visible and nothing else. The work ends with the first pair after
// which no element can change.

template <AttentionBackwardConfig C>
struct MendedPair {
  using Element = typename ElementOf<C.dtype>::Type;
  WarpRow<C.dtype, C.key_dim> query, key;
  WarpRow<C.dtype, C.value_dim> grad_out, value;

  __device__ __forceinline__ void load_query(const AttentionBackwardProblem& a,
                                             const AttentionSequence& sequence, int32_t head,
                                             int32_t row) {
    const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
    row += sequence.q_begin;
    query.load(row_at<Element>(a.query_rows, entry, head, row), a.head_dim);
    grad_out.load(row_at<Element>(a.grad_out_rows, entry, head, row), a.value_dim);
  }
  __device__ __forceinline__ void load_key(const AttentionBackwardProblem& a,
                                           const AttentionSequence& sequence, int32_t kv_head,
                                           int32_t row) {
    const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
    row += sequence.kv_begin;
    key.load(row_at<Element>(a.key_rows, entry, kv_head, row), a.head_dim);
    value.load(row_at<Element>(a.value_rows, entry, kv_head, row), a.value_dim);
  }
  // The weight as values have it, and the gradient of the score. Queries and keys count in their
  // sequence.
  __device__ __forceinline__ float2 compute_ds(const AttentionBackwardProblem& a,
                                               const AttentionSequence& sequence, int32_t head,
                                               int32_t query_number, int32_t key_number) const {
    const int32_t batch = sequence.batch;
    const int64_t at = statistics_at<C>(a, sequence, head, query_number);
    const float bias = bias_log2<C.bias>(a, batch, head, query_number, key_number);
    const bool kept = is_kept<C.dropout>(a, batch, head, query_number, key_number);
    const float weight =
        ptx::approximate_exp2(fmaf(query.product(key), a.scale_log2, bias - a.lse_log2[at]));
    const float factor = kept ? dropout_factor<C.dropout>(a) : 0;
    const float product = grad_out.product(value);
    return {weight * factor, weight * ((kept ? product * factor : 0) - a.delta[at])};
  }
};

template <AttentionBackwardConfig C>
__device__ __forceinline__ void fix_up_query(const AttentionBackwardProblem& a,
                                             const AttentionSequence& sequence, int32_t head,
                                             int32_t query) {
  MendedPair<C> pair;
  decltype(pair.query) gradient;
  gradient.clear();
  pair.load_query(a, sequence, head, query);
  const int32_t begin = C.left ? max(query + sequence.left, 0) : 0;
  const int32_t end = C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len;
  for (int32_t key = begin; key < end && !gradient.is_lost(a.head_dim); ++key) {
    if (!is_visible<C.visible>(a, sequence.batch, head, query, key)) continue;
    pair.load_key(a, sequence, head / a.group, key);
    gradient.add(pair.compute_ds(a, sequence, head, query, key).y, pair.key);
  }
  gradient.template leave<C.accumulate_query>(
      row_at<typename MendedPair<C>::Element>(a.grad_query_rows,
                                              entry_of<C.lengths>(a, sequence.batch), head,
                                              sequence.q_begin + query),
      a.head_dim, a.scale);
}

// Those that may see a key.
template <AttentionBackwardConfig C>
struct QueriesOfKey {
  int32_t begin, end;

  __device__ __forceinline__ QueriesOfKey(const AttentionSequence& sequence, int32_t key)
      : begin(C.right ? max(key - sequence.right + 1, 0) : 0),
        end(key >= sequence.kv_len ? 0
            : C.left               ? min(key - sequence.left + 1, sequence.q_len)
                                   : sequence.q_len) {}
};

// The gradients of `gradients`, bits of RowGradient. What one is added to must not hold it yet.
enum RowGradient : uint32_t { kRowOfKey = 1, kRowOfValue = 2 };
template <AttentionBackwardConfig C>
__device__ __noinline__ void fix_up_key(const AttentionBackwardProblem& a, int32_t batch,
                                        int32_t kv_head, int32_t key,
                                        uint32_t gradients = kRowOfKey | kRowOfValue) {
  const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
  using Element = typename MendedPair<C>::Element;
  MendedPair<C> pair;
  decltype(pair.key) grad_key;
  decltype(pair.value) grad_value;
  grad_key.clear();
  grad_value.clear();
  pair.load_key(a, sequence, kv_head, key);
  const QueriesOfKey<C> queries(sequence, key);
  bool lost = false;
  for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
    for (int32_t query = queries.begin; query < queries.end && !lost; ++query) {
      if (!is_visible<C.visible>(a, sequence.batch, head, query, key)) continue;
      pair.load_query(a, sequence, head, query);
      const float2 compute_ds = pair.compute_ds(a, sequence, head, query, key);
      // A dropped weight is 0, whatever the gradient holds.
      if (!C.dropout || is_kept<C.dropout>(a, sequence.batch, head, query, key))
        grad_value.add(compute_ds.x, pair.grad_out);
      grad_key.add(compute_ds.y, pair.query);
      lost = grad_key.is_lost(a.head_dim) && grad_value.is_lost(a.value_dim);
    }
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch), row = sequence.kv_begin + key;
  if (a.grad_key_rows.data != nullptr && (!C.accumulate_key || (gradients & kRowOfKey) != 0))
    grad_key.template leave<C.accumulate_key>(row_at<Element>(a.grad_key_rows, entry, kv_head, row),
                                              a.head_dim, a.scale);
  if (a.grad_value_rows.data != nullptr && (!C.accumulate_value || (gradients & kRowOfValue) != 0))
    grad_value.template leave<C.accumulate_value>(
        row_at<Element>(a.grad_value_rows, entry, kv_head, row), a.value_dim, 1);
}

// ---- What depends on elements that are not finite ----

__device__ __forceinline__ bool is_nonfinite(float x) { return !(x * 0 == 0); }

// Weights of the query, or gradients of its scores, are not finite.
template <AttentionBackwardConfig C>
__device__ __forceinline__ bool is_nonfinite_query(const AttentionBackwardProblem& a,
                                                   const AttentionSequence& sequence, int32_t head,
                                                   int32_t query) {
  const int64_t at = statistics_at<C>(a, sequence, head, query);
  return a.lse_log2[at] != a.lse_log2[at] || is_nonfinite(a.delta[at]);
}
template <AttentionBackwardConfig C>
__device__ __forceinline__ bool is_nonfinite_key(const AttentionBackwardProblem& a,
                                                 const AttentionSequence& sequence, int32_t kv_head,
                                                 int32_t key) {
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch), row = sequence.kv_begin + key;
  return !is_finite_row<C.dtype>(a.key_rows, entry, kv_head, row, a.head_dim) ||
         !is_finite_row<C.dtype>(a.value_rows, entry, kv_head, row, a.value_dim);
}

// By a warp; a lane has every 32nd key or query.
template <AttentionBackwardConfig C>
__device__ __forceinline__ bool query_depends_on_nonfinite(const AttentionBackwardProblem& a,
                                                           const AttentionSequence& sequence,
                                                           int32_t head, int32_t query) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t begin = C.left ? max(query + sequence.left, 0) : 0;
  const int32_t end = C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len;
  bool found = is_nonfinite_query<C>(a, sequence, head, query);
#pragma unroll 1
  for (int32_t key = begin + lane; key < end && !found; key += 32)
    found = is_visible<C.visible>(a, sequence.batch, head, query, key) &&
            is_nonfinite_key<C>(a, sequence, head / a.group, key);
  return __any_sync(0xffffffffu, found);
}
template <AttentionBackwardConfig C>
__device__ __noinline__ bool key_depends_on_nonfinite(const AttentionBackwardProblem& a,
                                                      int32_t batch, int32_t kv_head, int32_t key) {
  const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const QueriesOfKey<C> queries(sequence, key);
  bool found = is_nonfinite_key<C>(a, sequence, kv_head, key);
#pragma unroll 1
  for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
#pragma unroll 1
    for (int32_t query = queries.begin + lane; query < queries.end && !found; query += 32)
      found = is_nonfinite_query<C>(a, sequence, head, query) &&
              is_visible<C.visible>(a, batch, head, query, key);
  return __any_sync(0xffffffffu, found);
}

// ---- Before and after the products ----

__device__ __forceinline__ bool is_unusual(float a, float b) { return !(a * 0 + b * 0 == 0); }

template <DType D>
__device__ __forceinline__ float product_of_pairs(uint32_t a, uint32_t b) {
  const float2 first = widen_pair<D>(a), second = widen_pair<D>(b);
  return fmaf(first.x, second.x, first.y * second.y);
}

// Whether sequences overlap: turns are then waited for that never come. Asked by a block.
__device__ __forceinline__ bool lengths_fall(const AttentionBackwardRows& a) {
  bool fall = false;
  for (int32_t b = static_cast<int32_t>(threadIdx.x); a.ragged && b < a.batch; b += kRowThreads)
    fall =
        fall ||
        read_length(a.cumulative_q, b, a.total_q) > read_length(a.cumulative_q, b + 1, a.total_q) ||
        read_length(a.cumulative_kv, b, a.total_kv) >
            read_length(a.cumulative_kv, b + 1, a.total_kv);
  return fall;
}

// A block has the queries of one step; kLanes threads share a row.
template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(kRowThreads)
    attention_backward_prepare(const __grid_constant__ AttentionBackwardRows a) {
  constexpr int kLanes = C.value_dim > 64 ? 16 : 8;
  constexpr int kPieces = (C.value_dim / 8 + kLanes - 1) / kLanes;
  constexpr int kRows = kRowThreads / kLanes, kTurns = C.queries / kRows;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int64_t number = blockIdx.x;
  const BackwardBlock block = find_block<C>(a, number);
  const int32_t entry = entry_of<C.lengths>(a, block.sequence.batch);
  const int32_t first = block.query + thread / kLanes;

  ptx::Packed<4> out[kTurns][kPieces], grad[kTurns][kPieces];
  float lse[kTurns], grad_lse[kTurns];
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    const int32_t query = first + t * kRows;
    const int32_t row = block.sequence.q_begin + query;
    const bool there = query < block.sequence.q_len;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = (p * kLanes + lane) * 8;
      const bool wanted = there && column < a.value_dim;
      ptx::load_if(wanted, row_at<const uint16_t>(a.out_rows, entry, block.head, row) + column,
                   out[t][p]);
      ptx::load_if(wanted, row_at<const uint16_t>(a.grad_out_rows, entry, block.head, row) + column,
                   grad[t][p]);
    }
    const auto number_of = [&](const RowsInMemory& rows, float otherwise) {
      return there && rows.data != nullptr ? *row_at<const float>(rows, entry, block.head, row)
                                           : otherwise;
    };
    lse[t] = number_of(a.lse, minus_infinity());
    grad_lse[t] = number_of(a.grad_lse, 0);
  }
  if constexpr (C.grad_query && !C.deterministic) {
    constexpr int kFloats = C.block_floats();
    float4* sums = reinterpret_cast<float4*>(a.sums + number * kFloats);
    for (int i = thread; i < kFloats / 4; i += kRowThreads) sums[i] = float4{0, 0, 0, 0};
  }
  if constexpr (C.grad_bias)
    for (int64_t i = number * kRowThreads + thread; i < a.bias_blocks;
         i += int64_t{gridDim.x} * kRowThreads)
      a.arrived[i] = 0;
  if constexpr (C.finishes_early())
    for (int64_t i = number * kRowThreads + thread; i < int64_t{a.batch} * a.kv_heads;
         i += int64_t{gridDim.x} * kRowThreads)
      a.complete[i] = 0;
  if constexpr (C.shared_cursor)
    for (int64_t i = number * kRowThreads + thread; i < int64_t{a.batch} * a.kv_heads;
         i += int64_t{gridDim.x} * kRowThreads)
      a.position[i] = 0;
  if constexpr (C.clears_nonfinite())
    for (int64_t i = number * kRowThreads + thread; i < int64_t{a.batch} * a.kv_heads;
         i += int64_t{gridDim.x} * kRowThreads)
      a.nonfinite_keys[i] = 0;
  if (number == 0) {
    const bool wrong = __syncthreads_or(C.deterministic && C.lengths && lengths_fall(a));
    if (thread == 0) *a.timed_out = wrong ? 1 : 0;
  }
  if constexpr (C.deterministic) {
    if (thread < C.kConsumers) a.dq_semaphore[number * C.kConsumers + thread] = 0;
    if (number == 0 && thread == 0) *a.tile = 0;
  }
  bool nonfinite = false;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float product = product_of_pairs<C.dtype>(out[t][p].word[w], grad[t][p].word[w]);
        // What was not loaded is anything.
        sum += (p * kLanes + lane) * 8 < a.value_dim ? product : 0;
      }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane != 0) continue;
    const int64_t at = number * C.queries + thread / kLanes + t * kRows;
    const bool empty = lse[t] == minus_infinity();
    a.delta[at] = empty ? 0 : sum - grad_lse[t];
    a.lse_log2[at] = empty ? -minus_infinity() : lse[t] * kLog2E;
    if constexpr (C.clears_nonfinite()) {
      const bool lost = !empty && (is_nonfinite(lse[t]) || is_nonfinite(sum - grad_lse[t]));
      a.finite_lse_log2[at] = empty || lost ? -minus_infinity() : lse[t] * kLog2E;
      a.finite_delta[at] = empty || lost ? 0 : sum - grad_lse[t];
      nonfinite = nonfinite || lost;
    }
  }
  if constexpr (C.clears_nonfinite()) {
    nonfinite = __syncthreads_or(nonfinite);
    if (thread == 0) a.nonfinite_queries[number] = nonfinite;
  }
}

// Rows of grad_query that depend on something that is not finite, by the block.
template <AttentionBackwardConfig C>
__device__ __noinline__ void fix_up_queries(const AttentionBackwardProblem& a, int64_t number,
                                            const bool* nonfinite) {
  const BackwardBlock block = find_block<C>(a, number);
  const int64_t key_head = int64_t{block.sequence.batch} * a.kv_heads + block.head / a.group;
  const bool cleared =
      C.clears_nonfinite() && (a.nonfinite_queries[number] | a.nonfinite_keys[key_head]) != 0;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / 32; row < C.queries; row += kRowThreads / 32) {
    const int32_t query = block.query + row;
    if (query >= block.sequence.q_len) break;
    if (nonfinite[row] ||
        (cleared && query_depends_on_nonfinite<C>(a, block.sequence, block.head, query)))
      fix_up_query<C>(a, block.sequence, block.head, query);
  }
}

// What a word holds plus two numbers times a factor.
template <DType D>
__device__ __forceinline__ uint32_t add_to_pair(uint32_t old, float a, float b, float factor) {
  const float2 pair = widen_pair<D>(old);
  return round_pair<D>(fmaf(a, factor, pair.x), fmaf(b, factor, pair.y));
}

// The row, of a block of queries, that a float of its sums belongs to.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int row_of_sum(int number) {
  const int piece = min(number / C.piece_floats(), C.pieces() - 1);
  const int in_piece = number - piece * C.piece_floats();
  const int warp = in_piece / (16 * C.columns_of(piece)), lane = in_piece / 4 % 32;
  return piece / C.pieces_across() * 64 + warp * 16 + lane / 4 + in_piece % 4 / 2 * 8;
}

// A block has the queries of one step. A warp has 16 queries and 64 columns of them at a time, a
// thread 8 columns of two rows, twice.
template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(kRowThreads)
    attention_backward_finish(const __grid_constant__ AttentionBackwardRows a) {
  ptx::launch_dependents();
  const bool early = C.finishes_early() && a.dq_contributors > 0;
  if (!early) ptx::wait_for_prerequisites();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t number = blockIdx.x;
  const BackwardBlock block = find_block<C>(a, number);
  const int64_t key_head = int64_t{block.sequence.batch} * a.kv_heads + block.head / a.group;
  if (early) {
    if (threadIdx.x == 0) await_number(a.complete + key_head, a.dq_contributors, a.timed_out);
    __syncthreads();
  }
  uint16_t* const to =
      row_at<uint16_t>(a.grad_query_rows, entry_of<C.lengths>(a, block.sequence.batch), block.head,
                       block.sequence.q_begin);
  const int32_t q_len = block.sequence.q_len;
  // Deterministic: sums are there when somebody had a turn.
  const bool there = !C.deterministic || a.dq_semaphore[number * C.kConsumers] != 0;
  const float scale = *a.timed_out == 0 ? a.scale : float_from_bits(0x7fffffff);
  __shared__ bool nonfinite[C.queries];  // rows with sums that are not finite
  if constexpr (C.masked()) {
    if (threadIdx.x < C.queries) nonfinite[threadIdx.x] = false;
    __syncthreads();
  }
  // Their old values must still be there when they are computed again, so they are not stored: the
  // sums are looked through first.
  if constexpr (C.masked() && C.accumulate_query) {
    for (int i = static_cast<int>(threadIdx.x); there && i < C.block_floats(); i += kRowThreads) {
      const float sum = a.sums[number * C.block_floats() + i];
      if (is_unusual(sum, 0)) nonfinite[row_of_sum<C>(i)] = true;
    }
    __syncthreads();
  }
#pragma unroll
  for (int part = warp; part < 4 * C.pieces(); part += kRowThreads / 32) {
    const int piece = part / 4;
    const int row = piece / C.pieces_across() * 64 + part % 4 * 16 + lane / 4;
    const int32_t query = block.query + row;
    const float4* from = reinterpret_cast<const float4*>(a.sums + number * C.block_floats() +
                                                         piece * C.piece_floats() +
                                                         part % 4 * (16 * C.columns_of(piece))) +
                         lane / 4 * 4;
    constexpr int kTurns = (C.piece_columns() + 31) / 32;
    const auto has_columns = [&](int i) { return (lane % 4 + 4 * i) * 8 < C.columns_of(piece); };
    float4 sum[kTurns][4];
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        sum[i][c] =
            there && has_columns(i) ? from[(lane % 4 + 4 * i) * 32 + c] : float4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int column = piece % C.pieces_across() * C.piece_columns() + (lane % 4 + 4 * i) * 8;
      ptx::Packed<4> upper, lower;
      const auto old = [&](int32_t at, int c) {
        const bool is_there = column < a.head_dim && has_columns(i) && at < q_len;
        return is_there ? __ldcg(reinterpret_cast<const uint32_t*>(
                              to + at * a.grad_query_rows.stride[2] + column + 2 * c))
                        : 0;
      };
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (C.accumulate_query) {
          upper.word[c] = add_to_pair<C.dtype>(old(query, c), sum[i][c].x, sum[i][c].y, scale);
          lower.word[c] = add_to_pair<C.dtype>(old(query + 8, c), sum[i][c].z, sum[i][c].w, scale);
        } else {
          upper.word[c] = round_pair<C.dtype>(sum[i][c].x * scale, sum[i][c].y * scale);
          lower.word[c] = round_pair<C.dtype>(sum[i][c].z * scale, sum[i][c].w * scale);
        }
        if constexpr (C.masked()) {
          if (is_unusual(sum[i][c].x, sum[i][c].y)) nonfinite[row] = true;
          if (is_unusual(sum[i][c].z, sum[i][c].w)) nonfinite[row + 8] = true;
        }
      }
      const bool wanted = column < a.head_dim && has_columns(i);
      constexpr bool kLeavesOut = C.masked() && C.accumulate_query;
      ptx::store_if(wanted && query < q_len && !(kLeavesOut && nonfinite[row]),
                    to + query * a.grad_query_rows.stride[2] + column, upper);
      ptx::store_if(wanted && query + 8 < q_len && !(kLeavesOut && nonfinite[row + 8]),
                    to + (query + 8) * a.grad_query_rows.stride[2] + column, lower);
    }
  }
  if constexpr (C.masked()) {
    __syncthreads();
    fix_up_queries<C>(a, number, nonfinite);
  }
  // This kernel does not end before the products have: the next one counts on that.
  if (early && number == gridDim.x - 1) ptx::wait_for_prerequisites();
}

}  // namespace perseid::internal::cuda
