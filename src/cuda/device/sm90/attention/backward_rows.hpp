// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The first and the last launch of attention backward on sm_90, row by row. Both are bound by
// memory: accesses of 16 bytes, all loads of a thread issued before the first use.
//
// attention_backward_prepare: delta = sum(out * grad_out) - grad_lse, and lse in log2 units, of
// each query. A query that sees no key, or lies behind the last, gets lse_log2 = +inf, so that its
// weights 2^(score - lse) are 0, and delta = 0. Clears the sums of grad_query, or in deterministic
// mode their semaphores, since the first tile in order stores; and all counters of the launch.
//
// attention_backward_finish: grad_query = scale * sums, rounded; NaN if a wait timed out. If
// C.finishes_early(), a head is rounded as soon as all of its tiles are complete, while other
// heads still run.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"
#include "cuda/device/sm90/attention/dq_semaphore.hpp"

namespace perseid::internal::cuda {

__device__ __forceinline__ bool is_nonfinite_pair(float a, float b) {
  return !(a * 0 + b * 0 == 0);
}

template <DType D>
__device__ __forceinline__ float product_of_pairs(uint32_t a, uint32_t b) {
  const float2 first = widen_pair<D>(a), second = widen_pair<D>(b);
  return fmaf(first.x, second.x, first.y * second.y);
}

// Whether cumulative lengths decrease, so that sequences overlap: waits for semaphores would
// then time out. By a whole block.
template <bool kPieces>
__device__ __forceinline__ bool lengths_decrease(const AttentionBackwardRows& a) {
  bool decrease = false;
  for (int32_t b = static_cast<int32_t>(threadIdx.x); a.ragged && b < a.batch; b += kRowThreads)
    decrease =
        decrease ||
        read_length(a.cumulative_q, b, a.total_q) > read_length(a.cumulative_q, b + 1, a.total_q) ||
        read_length(a.cumulative_kv, key_sequence<kPieces>(a, b), a.total_kv) >
            read_length(a.cumulative_kv, key_sequence<kPieces>(a, b) + 1, a.total_kv);
  return decrease;
}
// That of key tiles that a block sees, as they have it.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t key_head_of(const AttentionBackwardProblem& a,
                                               const QueryBlock& block) {
  const int32_t batch = block.sequence.batch;
  return int64_t{C.rank_pieces && a.two_pieces ? batch - batch % 2 : batch} * a.kv_heads +
         block.head / a.group;
}

// One query block; kLanes threads share a row.
template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(kRowThreads)
    attention_backward_prepare(const __grid_constant__ AttentionBackwardRows a) {
  constexpr int kLanes = C.value_dim > 64 ? 16 : 8;
  constexpr int kPieces = (C.value_dim / 8 + kLanes - 1) / kLanes;
  constexpr int kRows = kRowThreads / kLanes, kRounds = C.queries / kRows;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int64_t number = blockIdx.x;
  const QueryBlock block = find_block<C>(a, number);
  const int32_t entry = entry_of<C.lengths>(a, block.sequence.batch);
  const int32_t first = block.query + thread / kLanes;

  ptx::Packed<4> out[kRounds][kPieces], grad[kRounds][kPieces];
  float lse[kRounds], grad_lse[kRounds];
#pragma unroll
  for (int t = 0; t < kRounds; ++t) {
    const int32_t query = first + t * kRows;
    const int32_t row = block.sequence.q_begin + query;
    const bool in_range = query < block.sequence.q_len;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = (p * kLanes + lane) * 8;
      const bool is_valid = in_range && column < a.value_dim;
      ptx::load_if(is_valid, row_at<const uint16_t>(a.out_rows, entry, block.head, row) + column,
                   out[t][p]);
      ptx::load_if(is_valid,
                   row_at<const uint16_t>(a.grad_out_rows, entry, block.head, row) + column,
                   grad[t][p]);
    }
    const auto statistic_of = [&](const RowsInMemory& rows, float otherwise) {
      return in_range && rows.data != nullptr ? *row_at<const float>(rows, entry, block.head, row)
                                              : otherwise;
    };
    lse[t] = statistic_of(a.lse, minus_infinity());
    grad_lse[t] = statistic_of(a.grad_lse, 0);
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
      a.cursor[i] = 0;
  if constexpr (C.clears_nonfinite())
    for (int64_t i = number * kRowThreads + thread; i < int64_t{a.batch} * a.kv_heads;
         i += int64_t{gridDim.x} * kRowThreads)
      a.nonfinite_keys[i] = 0;
  if (number == 0) {
    const bool wrong =
        __syncthreads_or(C.deterministic && C.lengths && lengths_decrease<C.rank_pieces>(a));
    if (thread == 0) *a.timed_out = wrong ? 1 : 0;
  }
  if constexpr (C.deterministic) {
    if (thread < C.kConsumers) a.dq_semaphore[number * C.kConsumers + thread] = 0;
    if (number == 0 && thread == 0) *a.tile = 0;
  }
  bool nonfinite = false;
#pragma unroll
  for (int t = 0; t < kRounds; ++t) {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float product = product_of_pairs<C.dtype>(out[t][p].word[w], grad[t][p].word[w]);
        // Registers that were not loaded hold anything.
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
      const bool is_lost = !empty && (is_nonfinite(lse[t]) || is_nonfinite(sum - grad_lse[t]));
      a.finite_lse_log2[at] = empty || is_lost ? -minus_infinity() : lse[t] * kLog2E;
      a.finite_delta[at] = empty || is_lost ? 0 : sum - grad_lse[t];
      nonfinite = nonfinite || is_lost;
    }
  }
  if constexpr (C.clears_nonfinite()) {
    nonfinite = __syncthreads_or(nonfinite);
    if (thread == 0) a.nonfinite_queries[number] = nonfinite;
  }
}

// Rows of grad_query that are not finite or depend on cleared elements, by the whole block.
template <AttentionBackwardConfig C>
__device__ __noinline__ void fix_up_queries(const AttentionBackwardProblem& a, int64_t number,
                                            const bool* nonfinite) {
  const QueryBlock block = find_block<C>(a, number);
  const int64_t key_head = key_head_of<C>(a, block);
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

// The row, in a query block, of one float of its sums.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int row_of_sum(int number) {
  const int slice = min(number / C.slice_floats(), C.slices() - 1);
  const int in_slice = number - slice * C.slice_floats();
  const int warp = in_slice / (16 * C.columns_of(slice)), lane = in_slice / 4 % 32;
  return slice / C.slices_across() * 64 + warp * 16 + lane / 4 + in_slice % 4 / 2 * 8;
}

// One query block. A warp has 16 queries and one slice of columns at a time, a thread 8 columns of
// two rows in each round.
template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(kRowThreads)
    attention_backward_finish(const __grid_constant__ AttentionBackwardRows a) {
  ptx::launch_dependents();
  const bool early = C.finishes_early() && a.dq_contributors > 0;
  if (!early) ptx::wait_for_prerequisites();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t number = blockIdx.x;
  const QueryBlock block = find_block<C>(a, number);
  const int64_t key_head = key_head_of<C>(a, block);
  if (early) {
    if (threadIdx.x == 0) await_number(a.complete + key_head, a.dq_contributors, a.timed_out);
    __syncthreads();
  }
  uint16_t* const to =
      row_at<uint16_t>(a.grad_query_rows, entry_of<C.lengths>(a, block.sequence.batch), block.head,
                       block.sequence.q_begin);
  const int32_t q_len = block.sequence.q_len;
  // Deterministic: nothing has cleared sums to which no tile has added.
  const bool has_sums = !C.deterministic || a.dq_semaphore[number * C.kConsumers] != 0;
  const float scale = *a.timed_out == 0 ? a.scale : float_from_bits(0x7fffffff);
  __shared__ bool nonfinite[C.queries];  // rows with sums that are not finite
  if constexpr (C.masked()) {
    if (threadIdx.x < C.queries) nonfinite[threadIdx.x] = false;
    __syncthreads();
  }
  // The fixup of a row needs its old values, so a row that is not finite must not be stored: the
  // sums are searched first.
  if constexpr (C.masked() && C.accumulate_query) {
    for (int i = static_cast<int>(threadIdx.x); has_sums && i < C.block_floats();
         i += kRowThreads) {
      const float sum = a.sums[number * C.block_floats() + i];
      if (is_nonfinite(sum)) nonfinite[row_of_sum<C>(i)] = true;
    }
    __syncthreads();
  }
#pragma unroll
  for (int part = warp; part < 4 * C.slices(); part += kRowThreads / 32) {
    const int slice = part / 4;
    const int row = slice / C.slices_across() * 64 + part % 4 * 16 + lane / 4;
    const int32_t query = block.query + row;
    const float4* from = reinterpret_cast<const float4*>(a.sums + number * C.block_floats() +
                                                         slice * C.slice_floats() +
                                                         part % 4 * (16 * C.columns_of(slice))) +
                         lane / 4 * 4;
    constexpr int kRounds = (C.slice_columns() + 31) / 32;
    const auto has_columns = [&](int i) { return (lane % 4 + 4 * i) * 8 < C.columns_of(slice); };
    float4 sum[kRounds][4];
#pragma unroll
    for (int i = 0; i < kRounds; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        sum[i][c] =
            has_sums && has_columns(i) ? from[(lane % 4 + 4 * i) * 32 + c] : float4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int column = slice % C.slices_across() * C.slice_columns() + (lane % 4 + 4 * i) * 8;
      ptx::Packed<4> upper, lower;
      const auto old = [&](int32_t at, int c) {
        const bool is_valid = column < a.head_dim && has_columns(i) && at < q_len;
        return is_valid ? __ldcg(reinterpret_cast<const uint32_t*>(
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
          if (is_nonfinite_pair(sum[i][c].x, sum[i][c].y)) nonfinite[row] = true;
          if (is_nonfinite_pair(sum[i][c].z, sum[i][c].w)) nonfinite[row + 8] = true;
        }
      }
      const bool is_valid = column < a.head_dim && has_columns(i);
      constexpr bool kSkipsNonfinite = C.masked() && C.accumulate_query;
      ptx::store_if(is_valid && query < q_len && !(kSkipsNonfinite && nonfinite[row]),
                    to + query * a.grad_query_rows.stride[2] + column, upper);
      ptx::store_if(is_valid && query + 8 < q_len && !(kSkipsNonfinite && nonfinite[row + 8]),
                    to + (query + 8) * a.grad_query_rows.stride[2] + column, lower);
    }
  }
  if constexpr (C.masked()) {
    __syncthreads();
    fix_up_queries<C>(a, number, nonfinite);
  }
  // The grid must not complete before the products have: the next launch relies on it.
  if (early && number == gridDim.x - 1) ptx::wait_for_prerequisites();
}

}  // namespace perseid::internal::cuda
