// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The sum of a shard's parts over ranks: out = parts[0] + parts[1] + ... + bias, in this order, in
// float32 (float64 of f64), rounded once. Each block waits until all parts have arrived, then takes
// rows in turns, and its threads vectors of a row. The bound is memory. sm_80 and up.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/ranks/config.hpp"

namespace perseid::internal::cuda {

template <class Element, int kCount>
struct alignas(sizeof(Element) * kCount) RankSumVector {
  Element elements[kCount];
};

template <RankSumConfig C>
__global__ void __launch_bounds__(C.threads())
    sum_ranks(const __grid_constant__ RankSumArguments arguments) {
  using In = typename ElementOf<C.in>::Type;
  using Out = typename ElementOf<C.out>::Type;
  using Sum = decltype(widen(In{}));
  if (threadIdx.x < 32) {
    ArrivalWaits waits(arguments.async, 0);
    waits.start();
    waits.await({0, arguments.async.arrivals[0].chunks.count - 1}, {});
  }
  __syncthreads();
  const int64_t rows = arguments.batch * arguments.rows;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t entry = row / arguments.rows, i = row % arguments.rows;
    const auto at = [&](const RankSumTensor& tensor, int64_t column) {
      return entry * tensor.batch + i * tensor.row + column;
    };
    for (int64_t column = int64_t{threadIdx.x} * C.vector; column < arguments.columns;
         column += int64_t{C.threads()} * C.vector) {
      Sum sums[C.vector];
#pragma unroll 2
      for (int rank = 0; rank < arguments.ranks; ++rank) {
        const RankSumTensor& part = arguments.parts[rank];
        const auto vector = *reinterpret_cast<const RankSumVector<In, C.vector>*>(
            static_cast<const In*>(part.data) + at(part, column));
#pragma unroll
        for (int j = 0; j < C.vector; ++j) {
          const Sum element = widen(vector.elements[j]);
          sums[j] = rank == 0 ? element : sums[j] + element;
        }
      }
      RankSumVector<Out, C.vector> out;
#pragma unroll
      for (int j = 0; j < C.vector; ++j) {
        if (arguments.average) sums[j] /= static_cast<Sum>(arguments.ranks);
        if constexpr (C.bias != DType::kNone) {
          using Bias = typename ElementOf<C.bias>::Type;
          const Bias* bias = static_cast<const Bias*>(arguments.bias.data);
          const int64_t own = (column + j) * arguments.bias_stride;
          sums[j] += static_cast<Sum>(widen(bias[at(arguments.bias, own)]));
        }
        out.elements[j] = round_element<C.out>(sums[j]);
      }
      *reinterpret_cast<RankSumVector<Out, C.vector>*>(static_cast<Out*>(arguments.out.data) +
                                                       at(arguments.out, column)) = out;
    }
  }
}

}  // namespace perseid::internal::cuda
