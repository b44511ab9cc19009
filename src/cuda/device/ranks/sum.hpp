// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sums of a shard's parts over ranks: out = parts[0] + parts[1] + ... + bias, in this order or in
// pairs of neighbours, in float32 (float64 of f64), rounded once. A launch has several, each of
// parts of its own. Each block waits until all parts have arrived, then takes rows in turns, as
// many at once as its threads have vectors for. The bound is memory. sm_80 and up.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/ranks/config.hpp"

namespace perseid::internal::cuda {

template <class Element, int kCount>
struct alignas(sizeof(Element) * kCount) RankSumVector {
  Element elements[kCount];
};

// The parts at [entry, row, column] of a vector's elements.
template <RankSumConfig C>
class RankSumParts {
  using In = typename ElementOf<C.in>::Type;

 public:
  using Sum = decltype(widen(In{}));

  __device__ __forceinline__ RankSumParts(const RankSumTensor* parts, int32_t ranks, int64_t entry,
                                          int64_t row, int64_t column)
      : parts_(parts), ranks_(ranks), entry_(entry), row_(row), column_(column) {}

  __device__ __forceinline__ void add(Sum (&sums)[C.vector]) const {
    if constexpr (C.in_pairs) {
      Buffers buffers;
      add_in_pairs(buffers);
#pragma unroll
      for (int j = 0; j < C.vector; ++j) sums[j] = buffers[0][j];
    } else {
#pragma unroll 2
      for (int rank = 0; rank < ranks_; ++rank)
        load(rank, [&](int j, Sum element) { sums[j] = rank == 0 ? element : sums[j] + element; });
    }
  }

 private:
  using Buffers = Sum[buffers_of_leaves(kLeaves)][C.vector];

  // By recursion, so that buffers are constants.
  template <int kRank = 0>
  __device__ __forceinline__ void add_in_pairs(Buffers& buffers) const {
    if constexpr (kRank < kLeaves) {
      constexpr int kBuffer = buffer_of_leaf(kRank), kPairs = pairs_after_leaf(kRank);
      if (kRank >= ranks_) return;
      load(kRank, [&](int j, Sum element) { buffers[kBuffer][j] = element; });
#pragma unroll
      for (int buffer = kBuffer; buffer > kBuffer - kPairs; --buffer)
#pragma unroll
        for (int j = 0; j < C.vector; ++j) buffers[buffer - 1][j] += buffers[buffer][j];
      add_in_pairs<kRank + 1>(buffers);
    }
  }
  template <class Take>
  __device__ __forceinline__ void load(int rank, const Take& take) const {
    const RankSumTensor& part = parts_[rank];
    const auto vector = *reinterpret_cast<const RankSumVector<In, C.vector>*>(
        static_cast<const In*>(part.data) + entry_ * part.batch + row_ * part.row + column_);
#pragma unroll
    for (int j = 0; j < C.vector; ++j) take(j, widen(vector.elements[j]));
  }

  const RankSumTensor* const parts_;
  const int32_t ranks_;
  const int64_t entry_, row_, column_;
};

template <RankSumConfig C>
__global__ void __launch_bounds__(C.threads())
    sum_ranks(const __grid_constant__ RankSumArguments arguments) {
  using Out = typename ElementOf<C.out>::Type;
  using Sum = typename RankSumParts<C>::Sum;
  if (threadIdx.x < 32) {
    ArrivalWaits<> waits(arguments.async, 0);
    waits.start();
    waits.await({0, arguments.async.arrivals[0].chunks.count - 1}, {});
  }
  __syncthreads();
  const int bits = arguments.lane_bits, thread = static_cast<int>(threadIdx.x);
  const int at_once = C.threads() >> bits;  // rows of a block
  for (int64_t row = int64_t{blockIdx.x} * at_once + (thread >> bits); row < arguments.rows;
       row += int64_t{gridDim.x} * at_once) {
    int64_t in_section = row;
    int number = 0;
    for (; in_section >= arguments.sections[number].batch * arguments.sections[number].rows;
         ++number)
      in_section -= arguments.sections[number].batch * arguments.sections[number].rows;
    const RankSumSection& section = arguments.sections[number];
    const int64_t entry = in_section / section.rows, i = in_section % section.rows;
    const auto at = [&](const RankSumTensor& tensor, int64_t column) {
      return entry * tensor.batch + i * tensor.row + column;
    };
    for (int64_t column = int64_t{thread & ((1 << bits) - 1)} * C.vector; column < section.columns;
         column += int64_t{C.vector} << bits) {
      Sum sums[C.vector];
      RankSumParts<C>(arguments.parts + section.first, section.ranks, entry, i, column).add(sums);
      RankSumVector<Out, C.vector> out;
#pragma unroll
      for (int j = 0; j < C.vector; ++j) {
        if (arguments.average) sums[j] /= static_cast<Sum>(section.ranks);
        if constexpr (C.bias != DType::kNone) {
          using Bias = typename ElementOf<C.bias>::Type;
          const Bias* bias = static_cast<const Bias*>(section.bias.data);
          const int64_t own = (column + j) * section.bias_stride;
          sums[j] += static_cast<Sum>(widen(bias[at(section.bias, own)]));
        }
        out.elements[j] = round_element<C.out>(sums[j]);
      }
      const int64_t first = C.vector == 1 ? column * section.out_stride : column;
      *reinterpret_cast<RankSumVector<Out, C.vector>*>(static_cast<Out*>(section.out.data) +
                                                       at(section.out, first)) = out;
    }
  }
}

}  // namespace perseid::internal::cuda
