// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The first and the last launch of attention backward for f32 on sm_90 (backward_planes.hpp), row
// by row. Both are bound by memory.
//
// attention_backward_split: planes of queries and gradients of out; keys and values that TMA cannot
// load are copied to where it can. Blocks of queries also compute delta = sum(out *
// grad_out) - grad_lse and lse in log2 units, the numbers by which the products become gradients
// (QueryNumbers), and clear the sums of grad_query. A query that sees no key, or lies behind the
// last, gets lse_log2 = +inf, so that its weights are 0, and delta = 0. The factor of a query's
// weights (LseInLog2) is in its planes of grad_out and in delta, which no other weights multiply.
//
// attention_backward_finish_f32: grad_query = scale * sums. Rows that are not finite get a fixup.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"

namespace perseid::internal::cuda {

// ---- The first launch ----

// Rows of a block of queries, in shared memory.
struct SplitQueries {
  static constexpr int kRows = QueryNumbers::kRows;
  float lse[kRows], delta[kRows], factor[kRows];
  int32_t exponent[kRows];  // of grad_out; kNone of a row of zeros, or one that is refused
  int32_t most;             // the largest of them
  static constexpr int32_t kNone = -1000;
};

template <AttentionBackwardConfig C>
class QuerySplit {
  static constexpr PlanesConfig P{C.plane_length(max(C.key_dim, C.value_dim))};
  // Rows of grad_out that are smaller by more would lose accuracy in products with common numbers.
  static constexpr int kCommonSpread = 10;
  // Of rows with common values and without grad_lse, delta times 2^-e is below 2^13. One that is
  // larger would take the bits of other rows in common products.
  static constexpr float kCommonDelta = 0x1p14f;

 public:
  __device__ __forceinline__ QuerySplit(const AttentionBackwardPlanesArguments& arguments,
                                        int64_t number, SplitQueries& shared)
      : a_(arguments), number_(number), block_(find_block<C>(a_, number)), shared_(shared) {}

  __device__ __forceinline__ void run() const {
    if (block_.query >= block_.sequence.q_len) return;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread == 0) shared_.most = kLeastValueExponent;
    __syncthreads();
#pragma unroll 1
    for (int row = thread / P.lanes(); row < C.queries; row += kRowsAtOnce) split(Row(*this, row));
    float4* const sums = reinterpret_cast<float4*>(a_.sums + number_ * C.queries * C.key_dim);
    for (int i = thread; i < C.queries * C.key_dim / 4; i += PlanesConfig::threads)
      sums[i] = float4{0, 0, 0, 0};
    __syncthreads();
    bool uncommon = false;
    if (thread < C.queries) uncommon = store_numbers(thread);
    uncommon = __syncthreads_or(uncommon) != 0;
    if (thread != 0) return;
    QueryNumbers& numbers = a_.query_numbers[number_];
    numbers.scale = float_from_bits(static_cast<uint32_t>(127 + shared_.most - 15) << 23);
    numbers.uncommon = uncommon ? 1 : 0;
  }

 private:
  static constexpr int kRowsAtOnce = PlanesConfig::threads / P.lanes();
  static_assert(C.queries % kRowsAtOnce == 0);

  // A row of the block, loaded by the lanes that share it; those behind the last one have its work.
  struct Row {
    int row, entry, at;
    RowSplit<P> query, grad_out, out;

    __device__ __forceinline__ Row(const QuerySplit& s, int number)
        : row(number),
          entry(entry_of<C.lengths>(s.a_, s.block_.sequence.batch)),
          at(s.block_.sequence.q_begin + min(s.block_.query + row, s.block_.sequence.q_len - 1)),
          query(s.a_.planes.pairs[0].first, entry, s.block_.head, at),
          grad_out(s.a_.planes.pairs[0].second, entry, s.block_.head, at),
          out(s.a_.out, entry, s.block_.head, at) {}
  };
  __device__ __forceinline__ void split(const Row& own) const {
    const PairsOfRows& pairs = a_.planes.pairs[0];
    const uint32_t largest = own.grad_out.largest();
    const float lse = *row_at<const float>(a_.lse, own.entry, block_.head, own.at);
    const RowNumbers numbers = split_pair_of_rows<P>(
        pairs, (int64_t{own.entry} * pairs.heads + block_.head) * pairs.rows + own.at, own.query,
        own.grad_out, largest, LseInLog2(lse).factor);
    const float product = own.grad_out.product(own.out);
    if (threadIdx.x % P.lanes() != 0) return;
    const int row = own.row;
    const bool in_range = block_.query + row < block_.sequence.q_len;
    float delta = product;
    if (a_.grad_lse.data != nullptr)
      delta -= *row_at<const float>(a_.grad_lse, own.entry, block_.head, own.at);
    const bool empty = !in_range || lse == minus_infinity();
    shared_.lse[row] = empty ? -minus_infinity() : lse;
    shared_.delta[row] = empty ? 0 : delta;
    shared_.factor[row] = in_range ? numbers.factor : power_of_two(kCommonQueryExponent - 14);
    const bool none = !in_range || largest == 0 || is_nonfinite(numbers.factor);
    const auto exponent = static_cast<int32_t>(numbers.exponent);
    shared_.exponent[row] = none ? SplitQueries::kNone : exponent;
    if (!none) atomicMax(&shared_.most, exponent);
  }
  // By a thread of its own. Returns whether the row has numbers of its own.
  __device__ __forceinline__ bool store_numbers(int row) const {
    const int64_t at = number_ * C.queries + row;
    const float lse = shared_.lse[row];
    const LseInLog2 in_log2(lse);
    const float delta = shared_.delta[row] * in_log2.factor;
    a_.lse_log2[at] = in_log2.rounded;
    a_.delta[at] = delta;
    const int32_t most = shared_.most, own = shared_.exponent[row];
    const int32_t exponent = own == SplitQueries::kNone ? most : own;
    const auto power = [](int32_t e) {
      return float_from_bits(static_cast<uint32_t>(127 + e) << 23);
    };
    QueryNumbers& numbers = a_.query_numbers[number_];
    numbers.shift[row] = in_log2.rounded + static_cast<float>(most - exponent - 15);
    numbers.delta[row] = delta * power(-exponent);
    numbers.factor[row] = shared_.factor[row];
    return shared_.factor[row] != power_of_two(kCommonQueryExponent - 14) ||
           most - exponent > kCommonSpread || lse != lse ||
           !(fabsf(numbers.delta[row]) < kCommonDelta);
  }

  const AttentionBackwardPlanesArguments& a_;
  const int64_t number_;
  const QueryBlock block_;
  SplitQueries& shared_;
};

// Three blocks of a multiprocessor hide the latency of memory.
template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(PlanesConfig::threads, 3)
    attention_backward_split(const __grid_constant__ AttentionBackwardPlanesArguments arguments) {
  __shared__ SplitQueries shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block < arguments.query_blocks)
    QuerySplit<C>(arguments, block, shared).run();
  else
    split_pairs<PlanesConfig{C.plane_length(max(C.key_dim, C.value_dim))}>(
        arguments.planes.pairs[1], block - arguments.query_blocks);
}

// ---- The last launch ----

template <AttentionBackwardConfig C>
class QueryFinish {
  static constexpr int kEights = C.key_dim / 8;  // of a row

 public:
  // `nonfinite`: C.queries words of shared memory.
  __device__ __forceinline__ QueryFinish(const AttentionBackwardPlanesArguments& arguments,
                                         int64_t number, uint32_t* nonfinite)
      : a_(arguments), number_(number), block_(find_block<C>(a_, number)), nonfinite_(nonfinite) {}

  __device__ __forceinline__ void run() const {
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread < C.queries) nonfinite_[thread] = 0;
    __syncthreads();
    const float* from = a_.sums + number_ * C.queries * C.key_dim;
    for (int i = thread; i < C.queries / 2 * kEights; i += PlanesConfig::threads) {
      const int j = i % kEights, g = i / kEights % 8, tile = i / kEights / 8;
      float upper[8], lower[8];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float4 four =
            *reinterpret_cast<const float4*>(from + ((tile * kEights + j) * 32 + 4 * g + k) * 4);
        upper[2 * k] = four.x;
        upper[2 * k + 1] = four.y;
        lower[2 * k] = four.z;
        lower[2 * k + 1] = four.w;
      }
      store(16 * tile + g, 8 * j, upper);
      store(16 * tile + g + 8, 8 * j, lower);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = thread / 32; row < C.queries; row += PlanesConfig::threads / 32)
      if (block_.query + row < block_.sequence.q_len && nonfinite_[row] != 0)
        fix_up_query<C>(a_, block_.sequence, block_.head, block_.query + row);
  }

 private:
  __device__ __forceinline__ void store(int row, int column, const float (&sums)[8]) const {
    const int32_t query = block_.query + row;
    if (query >= block_.sequence.q_len || column >= a_.head_dim) return;
    float nonfinite = 0;
#pragma unroll
    for (const float each : sums) nonfinite = fmaf(each, 0, nonfinite);
    if (nonfinite != 0) nonfinite_[row] = 1;
    const RowsInMemory& rows = a_.grad_query_rows;
    float* const to = row_at<float>(rows, entry_of<C.lengths>(a_, block_.sequence.batch),
                                    block_.head, block_.sequence.q_begin + query);
    if (a_.vectors && column + 8 <= a_.head_dim) {
      auto* const fours = reinterpret_cast<float4*>(to + column);
      fours[0] = {sums[0] * a_.scale, sums[1] * a_.scale, sums[2] * a_.scale, sums[3] * a_.scale};
      fours[1] = {sums[4] * a_.scale, sums[5] * a_.scale, sums[6] * a_.scale, sums[7] * a_.scale};
      return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (column + e < a_.head_dim) to[(column + e) * rows.stride[3]] = sums[e] * a_.scale;
  }

  const AttentionBackwardPlanesArguments& a_;
  const int64_t number_;
  const QueryBlock block_;
  uint32_t* const nonfinite_;
};

template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(PlanesConfig::threads) attention_backward_finish_f32(
    const __grid_constant__ AttentionBackwardPlanesArguments arguments) {
  __shared__ uint32_t nonfinite[C.queries];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  QueryFinish<C>(arguments, blockIdx.x, nonfinite).run();
}

}  // namespace perseid::internal::cuda
