// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Splits rows of float32 tensors into planes of f16 (split/halves.hpp), which the tensor cores
// multiply instead. Each row has a power of two of its own, since a hidden row must leave no trace
// in the results of its neighbours.
//
// Rows come in pairs that share an index: a key and its value, a query and its dO. Of each pair the
// kernel writes the planes of both rows and two numbers (RowNumbers): the factor of products with
// the first row, and the exponent of the second row's largest number. In planes, chunks of numbers
// lie together, each with its high halves, then its low ones:
//
//   row     numbers 0 .. chunk - 1   chunk .. 2 chunk - 1  ...
//   planes  high halves | low halves high halves | low halves ...
//
// Some lanes of a warp have a row and hold it in registers. The bound is memory: 4 bytes read and 4
// written for each number. Rows that one block alone reads need no planes in memory: on sm_90 it
// splits the keys of backward itself, and the queries of forward where the configuration says so.
//
// Range. The factor of a pair is NaN, and makes every score that sees it NaN, if a number of either
// row is not finite, or 2^64 or more; if the first row's largest is below 2^-64; or if it is 2^10
// or more and a number of the row is lost (below 2^-16 / (dim + 4) of the largest). Rows of
// results that are NaN are computed once more without planes. A lost number of a smaller row is off
// by at most 2^-31, less than a score can tell. Rows of values may have any small numbers: what
// they lose is below 2^-41 of the largest number of their row. Unlike in split/halves.hpp low
// halves are not scaled, so that products with them are summed beside the large ones.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/math.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

// Splits rows, each by kLanes adjoining lanes.
template <PlanesConfig C, int kLanes = C.lanes()>
class RowSplit {
  static constexpr int kHeld = C.held(kLanes);

 public:
  __device__ __forceinline__ RowSplit(const PlanesOfRows& tensor, int64_t entry, int64_t head,
                                      int64_t row)
      : tensor_(tensor) {
    const float* from = row_at<const float>(tensor.from, entry, head, row);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = number(i);
      if (tensor.vectors && at + 3 < tensor.dim) {
        held_[i] = *reinterpret_cast<const float4*>(from + at);
      } else {
        const int64_t stride = tensor.from.stride[3];
        held_[i] = {at < tensor.dim ? from[at * stride] : 0,
                    at + 1 < tensor.dim ? from[(at + 1) * stride] : 0,
                    at + 2 < tensor.dim ? from[(at + 2) * stride] : 0,
                    at + 3 < tensor.dim ? from[(at + 3) * stride] : 0};
      }
    }
  }

  // A row that lies elsewhere: `load` returns the four numbers from a number on.
  template <class Load>
  __device__ __forceinline__ RowSplit(const PlanesOfRows& tensor, const Load& load)
      : tensor_(tensor) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = load(number(i));
  }

  // The bits of the largest magnitude after scaling, or of a NaN.
  __device__ __forceinline__ uint32_t largest() const {
    float own = 0;
    for_each([&](float x) { own = ptx::max_or_nan(own, fabsf(x)); });
    uint32_t most = float_bits(own * tensor_.scale) & 0x7fffffffu;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
  }
  // Whether a number is lost in a row where that matters. By whole warps.
  __device__ __forceinline__ bool loses(uint32_t largest) const {
    constexpr uint32_t kLarge = (127 + 10) << 23;
    if (!__any_sync(0xffffffffu, largest >= kLarge)) return false;
    const uint32_t limit = lost_below(largest, tensor_.dim) + (kLowHalfExponent << 23);
    uint32_t lost = 0;
    for_each([&](float x) {
      lost |= (float_bits(x * tensor_.scale) & 0x7fffffffu) - 1 < limit - 1 ? 1u : 0u;
    });
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      lost |= __shfl_xor_sync(0xffffffffu, lost, step);
    return largest >= kLarge && lost != 0;
  }
  // The sum of the products of the numbers of two rows.
  __device__ __forceinline__ float product(const RowSplit& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float4 &x = held_[i], &y = other.held_[i];
      sum += fmaf(x.x, y.x, x.y * y.y) + fmaf(x.z, y.z, x.w * y.w);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
  // The numbers times `scale`, whose products are not rounded; zeros if not `finite`. `put` takes
  // the number of the first of four, their high halves and their low ones.
  template <class Put>
  __device__ __forceinline__ void split(float scale, bool finite, const Put& put) const {
    const float factor = tensor_.scale * scale, rest = tensor_.scale_rest * scale;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float4 x = finite ? held_[i] : float4{0, 0, 0, 0};
      const HalfPairs a = split_product(x.x, x.y, factor, rest),
                      b = split_product(x.z, x.w, factor, rest);
      put(number(i), ptx::Packed<2>{{a.high, b.high}}, ptx::Packed<2>{{a.low, b.low}});
    }
  }
  // Stores into row number `row` of the planes.
  __device__ __forceinline__ auto in_planes(int64_t row) const {
    uint16_t* const to = tensor_.planes + row * 2 * tensor_.length;
    return [this, to](int number, const ptx::Packed<2>& high_halves,
                      const ptx::Packed<2>& low_halves) {
      const auto at = static_cast<uint32_t>(number), chunk = static_cast<uint32_t>(tensor_.chunk);
      // A division takes longer than all the rest.
      uint16_t* const high = to + (tensor_.chunk == tensor_.length ? at : at / chunk * chunk + at);
      const bool exists = at < static_cast<uint32_t>(tensor_.length);
      ptx::store_if(exists, high, high_halves);
      ptx::store_if(exists, high + chunk, low_halves);
    };
  }
  // The numbers as they are, in place of the planes.
  __device__ __forceinline__ void copy(int64_t row) const {
    auto* const to = reinterpret_cast<float*>(tensor_.planes) + row * tensor_.length;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float4& x = held_[i];
      ptx::store_if(
          number(i) < tensor_.length, to + number(i),
          ptx::Packed<4>{{float_bits(x.x), float_bits(x.y), float_bits(x.z), float_bits(x.w)}});
    }
  }

 private:
  static __device__ __forceinline__ int number(int i) {
    return 4 * (static_cast<int>(threadIdx.x) % kLanes + kLanes * i);
  }
  template <class Use>
  __device__ __forceinline__ void for_each(const Use& use) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      use(held_[i].x);
      use(held_[i].y);
      use(held_[i].z);
      use(held_[i].w);
    }
  }
  // As split_pair of the products with factor + rest, which are not rounded.
  __device__ __forceinline__ HalfPairs split_product(float x, float y, float factor,
                                                     float rest) const {
    const uint32_t high = ptx::to_f16x2(x * factor, y * factor);
    const float2 kept = widen_pair<DType::kF16>(high);
    return {high, ptx::to_f16x2(fmaf(x, rest, fmaf(x, factor, -kept.x)),
                                fmaf(y, rest, fmaf(y, factor, -kept.y)))};
  }

  const PlanesOfRows& tensor_;
  float4 held_[kHeld];
};

// The largest magnitude by which a row is split, of one whose own has these bits.
__device__ __forceinline__ uint32_t split_as(uint32_t largest, const PlanesOfRows& tensor) {
  if (tensor.common == 0) return largest;
  const uint32_t top = static_cast<uint32_t>(127 + tensor.common) << 23;
  if (largest == 0 || largest - (top - (7u << 23)) < 8u << 23) return top;
  if (!tensor.in_steps || largest - (top - (47u << 23)) >= 72u << 23) return largest;
  const int32_t above = static_cast<int32_t>(largest >> 23) - (127 + tensor.common);
  return static_cast<uint32_t>(127 + tensor.common + ((above + 7) >> 3) * 8) << 23;
}

// By what a first row is multiplied to be split, and the factor of products with it: NaN of a row
// that is refused, whose planes are zeros. By whole warps.
struct FirstRow {
  float scale, factor;

  template <PlanesConfig C, int kLanes>
  static __device__ __forceinline__ FirstRow of(const RowSplit<C, kLanes>& row,
                                                const PlanesOfRows& tensor) {
    const uint32_t own_largest = row.largest();
    const uint32_t largest = split_as(own_largest, tensor);
    const float scale = split_scale(largest);
    const bool loses = row.loses(own_largest);  // by all lanes
    const bool refused = loses || !splits(largest) ||
                         float_bits(scale * tensor.scale * 0) << 1 != 0;  // an infinite factor
    return {scale, refused ? float_from_bits(0x7fffffffu) : split_factor(largest)};
  }
  __device__ __forceinline__ bool refused() const { return factor != factor; }
};

// A row of each of a pair of tensors, by the lanes that share it; of the second row, with the bits
// of its largest magnitude. The planes of the second row are those of its numbers times
// `second_factor`, which is about 1. `put_first` and `put_second` store them.
template <PlanesConfig C, class PutFirst, class PutSecond>
__device__ __forceinline__ RowNumbers
split_pair_of_rows(const PairsOfRows& pairs, const RowSplit<C>& first, const RowSplit<C>& second,
                   uint32_t second_largest, float second_factor, const PutFirst& put_first,
                   const PutSecond& put_second) {
  constexpr uint32_t kLeast = static_cast<uint32_t>(127 + kLeastValueExponent) << 23;
  const FirstRow own = FirstRow::of(first, pairs.first);
  const uint32_t most = max(split_as(second_largest, pairs.second), kLeast);
  first.split(own.scale, !own.refused(), put_first);
  second.split(split_scale(most) * second_factor, splits(most), put_second);
  if (own.refused() || !splits(most)) return {float_from_bits(0x7fffffffu), 0};
  return {own.factor, static_cast<float>(static_cast<int>(most >> 23) - 127)};
}
// Into rows number `at` of their planes.
template <PlanesConfig C>
__device__ __forceinline__ RowNumbers split_pair_of_rows(const PairsOfRows& pairs, int64_t at,
                                                         const RowSplit<C>& first,
                                                         const RowSplit<C>& second,
                                                         uint32_t second_largest,
                                                         float second_factor = 1) {
  return split_pair_of_rows(pairs, first, second, second_largest, second_factor,
                            first.in_planes(at), second.in_planes(at));
}

// Rows of one pair of tensors, of which the second may be absent. A warp's lanes have rows side by
// side. All four rows of a thread are loaded before one is written: two pairs, or four first rows.
template <PlanesConfig C>
__device__ __forceinline__ void split_pairs(const PairsOfRows& pairs, int32_t block) {
  constexpr int kRowsAtOnce = PlanesConfig::threads / C.lanes();
  const bool alone = pairs.second.length == 0;
  const int32_t head_of_all = block / pairs.blocks_of_head;
  const int32_t entry = head_of_all / pairs.heads, head = head_of_all % pairs.heads;
  const int32_t own =
      block % pairs.blocks_of_head * C.rows(alone) + static_cast<int32_t>(threadIdx.x) / C.lanes();
  // Lanes behind the last row have its work: whole warps exchange numbers.
  const auto load = [&](const PlanesOfRows& rows, int step) {
    return RowSplit<C>(rows, entry, head, min(own + step * kRowsAtOnce, pairs.rows - 1));
  };
  const auto split = [&](int step, const RowSplit<C>& x, const RowSplit<C>& y, uint32_t largest) {
    const int32_t row = own + step * kRowsAtOnce;
    const int64_t at = int64_t{head_of_all} * pairs.rows + min(row, pairs.rows - 1);
    float factor = 1;
    if (pairs.lse.data != nullptr)
      factor =
          LseInLog2(*row_at<const float>(pairs.lse, entry, head, min(row, pairs.rows - 1))).factor;
    const RowNumbers numbers = split_pair_of_rows<C>(pairs, at, x, y, largest, factor);
    if (row >= pairs.rows || threadIdx.x % C.lanes() != 0) return;
    pairs.numbers[at] = numbers;
    if (pairs.uncommon != nullptr && !is_common(numbers)) *pairs.uncommon = pairs.launch;
  };
  const auto copy = [&](int step, const RowSplit<C>& x) {
    const int64_t at =
        int64_t{head_of_all} * pairs.rows + min(own + step * kRowsAtOnce, pairs.rows - 1);
    x.copy(at);
    if (alone && threadIdx.x % C.lanes() == 0) pairs.numbers[at] = {1, 0};
  };
  const RowSplit<C> first = load(pairs.first, 0), second = load(pairs.first, 1);
  if (alone) {
    const RowSplit<C> third = load(pairs.first, 2), fourth = load(pairs.first, 3);
    if (pairs.copies) {
      copy(0, first);
      copy(1, second);
      copy(2, third);
      copy(3, fourth);
      return;
    }
    const RowSplit<C> none = load(pairs.second, 0);
    split(0, first, none, 0);
    split(1, second, none, 0);
    split(2, third, none, 0);
    split(3, fourth, none, 0);
  } else {
    const RowSplit<C> of_first = load(pairs.second, 0), of_second = load(pairs.second, 1);
    if (pairs.copies) {
      copy(0, first);
      copy(0, of_first);
      copy(1, second);
      copy(1, of_second);
      return;
    }
    split(0, first, of_first, of_first.largest());
    split(1, second, of_second, of_second.largest());
  }
}

template <PlanesConfig C>
__global__ void __launch_bounds__(PlanesConfig::threads)
    portable_attention_planes(const __grid_constant__ PlanesArguments arguments) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block < arguments.first_blocks)
    split_pairs<C>(arguments.pairs[0], block);
  else
    split_pairs<C>(arguments.pairs[1], block - arguments.first_blocks);
}

}  // namespace perseid::internal::cuda
