// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The first and the last launch of attention backward on sm_80 and up, blocks of C.queries queries.
//
// portable_attention_backward_prepare: delta = sum(out * grad_out) - grad_lse, and lse in units of
// log2, of each query. A query that sees no key, or lies behind the last, gets lse_log2 = +inf, so
// that its weights 2^(score - lse) are 0, and delta = 0. In float32 the factor of a query's weights
// (LseInLog2) is in delta and in the planes of grad_out, which no other weights multiply. Clears
// the sums of dQ and the counters of splits.
//
// portable_attention_backward_finish, if C.adds_queries: grad_query = scale * sums, rounded. Rows
// that are not finite get a fixup under masks (attention/backward_fixup.hpp).
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/attention/backward_work.hpp"
#include "cuda/device/element.hpp"
#include "cuda/device/portable/attention/backward_scores.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/split/truncation.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PortableBackwardPrepare {
  // Lanes that share a row: a power of two, one for each vector of the row if it has that many.
  static constexpr int lanes() {
    int count = 8;
    while (count < 32 && count * kVector < C.value_dim) count *= 2;
    return count;
  }
  static constexpr int kLanes = lanes(), kRows = kPrepareThreads / kLanes;
  static constexpr int kRounds = C.queries / kRows;
  using Real = SumsOf<C>;

 public:
  explicit __device__ __forceinline__ PortableBackwardPrepare(const BackwardArguments<C>& arguments)
      : a_(arguments) {}

  __device__ __forceinline__ void run(int64_t number, int64_t blocks) const {
    const int thread = static_cast<int>(threadIdx.x);
    const QueryBlock block = find_block<C>(a_, number);
    Real delta[kRounds];
#pragma unroll
    for (int t = 0; t < kRounds; ++t) delta[t] = product(block, thread / kLanes + t * kRows);
    for (int64_t i = number * kPrepareThreads + thread; i < a_.bias_blocks;
         i += blocks * kPrepareThreads)
      a_.arrived[i] = 0;
    if constexpr (C.adds_queries) {
      auto* sums = reinterpret_cast<float4*>(a_.sums + number * C.queries * C.key_dim);
      for (int i = thread; i < C.queries * C.key_dim * C.sum_bytes() / 16; i += kPrepareThreads)
        sums[i] = float4{0, 0, 0, 0};
    }
    if (thread % kLanes != 0) return;
#pragma unroll
    for (int t = 0; t < kRounds; ++t) {
      const int row = thread / kLanes + t * kRows;
      const int32_t query = block.query + row;
      Real lse = minus_infinity(), grad_lse = 0;
      if (query < block.sequence.q_len) {
        const int32_t entry = entry_of<C.lengths>(a_, block.sequence.batch);
        const int32_t at = block.sequence.q_begin + query;
        lse = *row_at<const Real>(a_.lse, entry, block.head, at);
        if (a_.grad_lse.data != nullptr)
          grad_lse = *row_at<const Real>(a_.grad_lse, entry, block.head, at);
      }
      Real lse_log2 = lse * static_cast<Real>(internal::kLog2E), factor = 1;
      if constexpr (C.dtype == DType::kF32) {
        const LseInLog2 in_log2(lse);
        lse_log2 = in_log2.rounded;
        factor = in_log2.factor;
      }
      const bool empty = lse == minus_infinity();
      a_.lse_log2[number * C.queries + row] = empty ? -minus_infinity() : lse_log2;
      a_.delta[number * C.queries + row] = empty ? 0 : (delta[t] - grad_lse) * factor;
    }
  }

 private:
  // out * grad_out of a row, summed by kLanes lanes.
  __device__ __forceinline__ Real product(const QueryBlock& block, int row) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int32_t query = block.query + row;
    Real sum = 0;
    if (query < block.sequence.q_len) {
      const int32_t entry = entry_of<C.lengths>(a_, block.sequence.batch);
      const int32_t at = block.sequence.q_begin + query;
      using Element = const typename ElementOf<C.dtype>::Type;
      using V = typename ArithmeticOf<Real>::Type;
      const auto* out = row_at<Element>(a_.out_rows, entry, block.head, at);
      const auto* grad = row_at<Element>(a_.grad_out_rows, entry, block.head, at);
      if (C.units() == 1 && a_.vectors) {
        for (int i = lane * kVector; i < a_.value_dim; i += kLanes * kVector) {
          const uint4 x = *reinterpret_cast<const uint4*>(out + i);
          const uint4 y = *reinterpret_cast<const uint4*>(grad + i);
          sum += pair(x.x, y.x) + pair(x.y, y.y) + (pair(x.z, y.z) + pair(x.w, y.w));
        }
      } else {
        for (int i = lane; i < a_.value_dim; i += kLanes)
          sum = V::fma(widen(out[i * a_.out_rows.stride[3]]),
                       widen(grad[i * a_.grad_out_rows.stride[3]]), sum);
      }
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
  static __device__ __forceinline__ float pair(uint32_t x, uint32_t y) {
    const float2 a = widen_pair<C.dtype>(x), b = widen_pair<C.dtype>(y);
    return fmaf(a.x, b.x, a.y * b.y);
  }

  const BackwardArguments<C>& a_;
};

// `nonfinite`: C.queries words of shared memory.
template <PortableBackwardConfig C>
class PortableBackwardFinish {
  static constexpr int kEights = C.key_dim / 8;  // of a row
  using Real = SumsOf<C>;

 public:
  __device__ __forceinline__ PortableBackwardFinish(const BackwardArguments<C>& arguments,
                                                    int64_t number, uint32_t* nonfinite)
      : a_(arguments), number_(number), block_(find_block<C>(a_, number)), nonfinite_(nonfinite) {}

  __device__ __forceinline__ void run() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (!C.masked() && C.planes() == 1) {
      for_each_eight(
          [&](int row, int column, const Real(&eight)[8]) { store(row, column, eight); });
      return;
    }
    if (thread < C.queries) nonfinite_[thread] = 0;
    __syncthreads();
    // The fixup of a row that accumulates needs its old values: the sums are searched first.
    for_each_eight([&](int row, int column, const Real(&eight)[8]) {
      Real sum = 0;
#pragma unroll
      for (const Real each : eight) sum = V::fma(each, 0, sum);
      if (sum != 0) nonfinite_[row] = 1;
      if constexpr (!C.accumulate_query) store(row, column, eight);
    });
    __syncthreads();
    if constexpr (C.accumulate_query)
      for_each_eight([&](int row, int column, const Real(&eight)[8]) {
        if (nonfinite_[row] == 0) store(row, column, eight);
      });
#pragma unroll 1
    for (int row = thread / 32; row < C.queries; row += kPrepareThreads / 32)
      if (block_.query + row < block_.sequence.q_len && nonfinite_[row] != 0)
        fix_up_query<C>(a_, block_.sequence, block_.head, block_.query + row);
  }

 private:
  // use(row of the block, first column, sums) for eight columns at a time.
  template <class Use>
  __device__ __forceinline__ void for_each_eight(const Use& use) const {
    const Real* from = a_.sums + number_ * C.queries * C.key_dim;
    for (int i = static_cast<int>(threadIdx.x); i < C.queries / 2 * kEights; i += kPrepareThreads) {
      const int j = i % kEights, g = i / kEights % 8, tile = i / kEights / 8;
      Real upper[8], lower[8];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        load(from + (tile * kEights + j) * 128, 4 * g + k, upper[2 * k], upper[2 * k + 1],
             lower[2 * k], lower[2 * k + 1]);
      use(16 * tile + g, 8 * j, upper);
      use(16 * tile + g + 8, 8 * j, lower);
    }
  }
  // What a lane has added to eight columns of 16 queries.
  static __device__ __forceinline__ void load(const float* from, int lane, float& a, float& b,
                                              float& c, float& d) {
    const float4 four = *reinterpret_cast<const float4*>(from + 4 * lane);
    a = four.x;
    b = four.y;
    c = four.z;
    d = four.w;
  }
  static __device__ __forceinline__ void load(const double* from, int lane, double& a, double& b,
                                              double& c, double& d) {
    a = from[lane];
    b = from[lane + 32];
    c = from[lane + 64];
    d = from[lane + 96];
  }
  template <class Sum>
  __device__ __forceinline__ void store(int row, int column, const Sum (&eight)[8]) const {
    if constexpr (C.units() == 1)
      store_rounded(row, column, eight);
    else
      store_sums(row, column, eight);
  }
  __device__ __forceinline__ void store_sums(int row, int column, const Real (&eight)[8]) const {
    const int32_t query = block_.query + row;
    if (query >= block_.sequence.q_len) return;
    auto* to = row_at<Real>(a_.grad_query_rows, entry_of<C.lengths>(a_, block_.sequence.batch),
                            block_.head, block_.sequence.q_begin + query);
    // What products with the keys of a warp lose.
    const Real rest = C.planes() == 2 ? a_.scale * loss_of_sums(C.rows) : 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (column + e >= a_.head_dim) break;
      Real* element = to + (column + e) * a_.grad_query_rows.stride[3];
      *element =
          V::fma(eight[e], a_.scale, V::fma(eight[e], rest, C.accumulate_query ? *element : 0));
    }
  }
  __device__ __forceinline__ void store_rounded(int row, int column,
                                                const float (&eight)[8]) const {
    const int32_t query = block_.query + row;
    if (query >= block_.sequence.q_len || column >= a_.head_dim) return;
    auto* to = row_at<uint16_t>(a_.grad_query_rows, entry_of<C.lengths>(a_, block_.sequence.batch),
                                block_.head, block_.sequence.q_begin + query);
    uint32_t pairs[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      pairs[k] = round_pair<C.dtype>(eight[2 * k] * a_.scale, eight[2 * k + 1] * a_.scale);
    if (!C.accumulate_query && a_.vectors) {
      *reinterpret_cast<uint4*>(to + column) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (column + e >= a_.head_dim) break;
      uint16_t* element = to + (column + e) * a_.grad_query_rows.stride[3];
      if constexpr (C.accumulate_query)
        *element = static_cast<uint16_t>(
            round_pair<C.dtype>(fmaf(eight[e], a_.scale, widen_low<C.dtype>(*element)), 0));
      else
        *element = static_cast<uint16_t>(pairs[e / 2] >> (16 * (e % 2)));
    }
  }

  using V = typename ArithmeticOf<Real>::Type;
  const BackwardArguments<C>& a_;
  const int64_t number_;
  const QueryBlock block_;
  uint32_t* const nonfinite_;
};

template <PortableBackwardConfig C>
__global__ void __launch_bounds__(kPrepareThreads)
    portable_attention_backward_prepare(const __grid_constant__ BackwardArguments<C> arguments) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  PortableBackwardPrepare<C>(arguments).run(blockIdx.x, gridDim.x);
}

template <PortableBackwardConfig C>
__global__ void __launch_bounds__(kPrepareThreads)
    portable_attention_backward_finish(const __grid_constant__ BackwardArguments<C> arguments) {
  __shared__ uint32_t nonfinite[C.queries];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  PortableBackwardFinish<C>(arguments, blockIdx.x, nonfinite).run();
}

}  // namespace perseid::internal::cuda
