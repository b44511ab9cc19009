// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul over ranks (matmul.hpp): one launch computes the shards of all ranks, the own one last.
//
//   tile of another rank   consumer: sums to `partial` | storing thread: counts, signals the chunk
//   tile of the own shard  storing thread: waits for the others' parts | consumer: adds them
//
// Accumulators go to memory and parts come from it without shared memory: a quad of lanes has 32
// bytes of a row, whole sectors. What is added comes in the order of ranks; in canonical order in
// pairs of neighbours (math/leaf_tree.hpp), of which a sum in either order is the same: the part of
// the rank's neighbour, then the sum of the next two ranks, then that of the other four.
//
// Shards begin and end where clusters of tiles do, so that a tile belongs to one rank. All tiles of
// the others come before those of the own shard, on every rank: what a rank waits for never waits
// for that rank.
//
// Memory order. Stores of a consumer's threads are before the arrival of their warps at the barrier
// that the storing thread waits for; it counts the tile with release order (chunk_waits.hpp). Parts
// are read after the barrier at which the storing thread arrives when it has acquired their signals
// at system scope.
#pragma once

#include "cuda/device/sm90/matmul/shared.hpp"

namespace perseid::internal::cuda {

// Whether a tile is of this rank's shard.
template <Sm90MatmulConfig C>
__device__ __forceinline__ bool is_own(const Sm90MatmulArguments& arguments,
                                       const MatmulTilePosition& tile) {
  if constexpr (C.parts == 0) return true;
  const RankParts& parts = arguments.parts;
  const int line = arguments.async.departure.of_columns ? tile.column : tile.row;
  return parts.first <= line && line < parts.last;
}

// The part of a consumer's thread: accumulators i and i + 1 are neighbours in a row, in turns of
// the thread's first row and of the one 8 below.
template <Sm90MatmulConfig C>
class MatmulRankShards {
  static constexpr int kSums = C.columns / 2;
  // Of how many other ranks the loads of a group of accumulators are in flight together.
  static constexpr int kTogether = min(C.parts, 3);
  static constexpr int kGroup = kTogether == 1 ? 32 : 16;

 public:
  using Sums = float[kSums];

  __device__ __forceinline__ MatmulRankShards(const Sm90MatmulArguments& arguments,
                                              const MatmulTilePosition& tile, int row, int column)
      : parts_(arguments.parts),
        batch_(tile.batch),
        row_(row),
        column_(column),
        upper_(row < arguments.grid.m),
        lower_(row + 8 < arguments.grid.m),
        left_(arguments.grid.n - column) {}

  __device__ __forceinline__ void store_partial(const Sums& sums) const {
    float* const first =
        parts_.partial + batch_ * parts_.partial_batch + row_ * parts_.partial_row + column_;
    float* const second = first + 8 * parts_.partial_row;
#pragma unroll
    for (int i = 0; i < kSums; i += 2)
      if (exists(i))
        *reinterpret_cast<float2*>((i / 2 % 2 != 0 ? second : first) + i / 4 * 8) = {sums[i],
                                                                                     sums[i + 1]};
  }

  // The sum over ranks, of which this one's part is `sums`.
  __device__ __forceinline__ void add_parts(Sums& sums) const {
    if constexpr (C.adds_parts_in_pairs()) {
      add_in_pairs(sums);
    } else if (C.parts <= 3 || parts_.ranks <= 4) {
      add_few(sums);
    } else {
      add_any(sums);
    }
  }

 private:
  __device__ __forceinline__ bool exists(int i) const {
    return (i / 2 % 2 != 0 ? lower_ : upper_) && i / 4 * 8 < left_;
  }
  __device__ __forceinline__ const float* part_of(int rank) const {
    return parts_.data + rank * parts_.of_rank + batch_ * parts_.batch + row_ * parts_.row +
           column_;
  }
  __device__ __forceinline__ float2 load(const float* first, int i) const {
    if (!exists(i)) return {0, 0};
    return *reinterpret_cast<const float2*>(first + (i / 2 % 2 != 0 ? 8 * parts_.row : 0) +
                                            i / 4 * 8);
  }

  __device__ __forceinline__ void add_in_pairs(Sums& sums) const {
    constexpr int kRanks = C.parts + 1;
    constexpr int kEach = kRanks == 8 ? 4 : kRanks == 4 ? 16 : 32;
    ptx::fence_operand(sums);
#pragma unroll
    for (int begin = 0; begin < kSums; begin += kEach) {
      add_neighbours<1, kEach>(begin, sums);
      if constexpr (kRanks > 2) add_neighbours<2, kEach>(begin, sums);
      if constexpr (kRanks > 4) add_neighbours<4, kEach>(begin, sums);
      ptx::fence_operand(sums);
    }
  }
  // To kEach accumulators the sum of the kCount ranks beside those that they have.
  template <int kCount, int kEach>
  __device__ __forceinline__ void add_neighbours(int begin, Sums& sums) const {
    const int first = (parts_.own / kCount ^ 1) * kCount;
    float2 pairs[kCount][kEach / 2];
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int i = 0; i < kEach / 2; ++i) pairs[j][i] = load(part_of(first + j), begin + 2 * i);
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
#pragma unroll
      for (int width = 1; width < kCount; width *= 2)
#pragma unroll
        for (int j = 0; j < kCount; j += 2 * width)
          pairs[j][i] = {pairs[j][i].x + pairs[j + width][i].x,
                         pairs[j][i].y + pairs[j + width][i].y};
      sums[begin + 2 * i] += pairs[0][i].x;
      sums[begin + 2 * i + 1] += pairs[0][i].y;
    }
  }
  // At most kTogether other ranks.
  __device__ __forceinline__ void add_few(Sums& sums) const {
    const int own = parts_.own, others = parts_.ranks - 1;
    const float* first[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) first[j] = part_of(min(j + (j >= own), others));
    ptx::fence_operand(sums);
#pragma unroll
    for (int begin = 0; begin < kSums; begin += kGroup) {
      float2 pairs[kTogether][kGroup / 2];
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
#pragma unroll
        for (int i = 0; i < kGroup / 2; ++i)
          pairs[j][i] = j < others ? load(first[j], begin + 2 * i) : float2{0, 0};
      // Sums of two are the same in either order, so that own ranks 0 and 1 are one case.
      if (own < 2) {
        add_group<1>(pairs, others, begin, sums);
      } else if (own == 2) {
        add_group<2>(pairs, others, begin, sums);
      } else {
        add_group<3>(pairs, others, begin, sums);
      }
      ptx::fence_operand(sums);
    }
  }
  // The own part is added after kBefore others' are: ((p0 + p1) + own) + p2, for example.
  template <int kBefore>
  static __device__ __forceinline__ void add_group(const float2 (&pairs)[kTogether][kGroup / 2],
                                                   int others, int begin, Sums& sums) {
    constexpr int kFirst = min(kBefore, kTogether);
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i) {
      float2 sum = pairs[0][i];
#pragma unroll
      for (int j = 1; j < kFirst; ++j) sum = {sum.x + pairs[j][i].x, sum.y + pairs[j][i].y};
      sum = {sum.x + sums[begin + 2 * i], sum.y + sums[begin + 2 * i + 1]};
#pragma unroll
      for (int j = kFirst; j < kTogether; ++j)
        if (j < others) sum = {sum.x + pairs[j][i].x, sum.y + pairs[j][i].y};
      sums[begin + 2 * i] = sum.x;
      sums[begin + 2 * i + 1] = sum.y;
    }
  }
  __device__ __forceinline__ void add_any(Sums& sums) const {
    constexpr int kEach = 8;
    ptx::fence_operand(sums);
#pragma unroll
    for (int begin = 0; begin < kSums; begin += kEach) {
      float before[kEach] = {};
      for (int rank = 0; rank < parts_.own; ++rank) add(part_of(rank), begin, before);
#pragma unroll
      for (int i = 0; i < kEach; ++i) before[i] += sums[begin + i];
      for (int rank = parts_.own + 1; rank < parts_.ranks; ++rank)
        add(part_of(rank), begin, before);
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums[begin + i] = before[i];
      ptx::fence_operand(sums);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void add(const float* part, int begin, float (&sums)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 pair = load(part, begin + i);
      sums[i] += pair.x;
      sums[i + 1] += pair.y;
    }
  }

  const RankParts& parts_;
  const int batch_;
  const int64_t row_, column_;
  const bool upper_, lower_;
  const int left_;
};

// By the storing thread of a consumer: until the parts of the others for a tile have arrived.
template <Sm90MatmulConfig C>
class MatmulPartWaits {
 public:
  __device__ __forceinline__ explicit MatmulPartWaits(const Sm90MatmulArguments& arguments)
      : arguments_(arguments), waits_(arguments.async, 0) {
    waits_.start();
  }
  __device__ __forceinline__ void await(const MatmulTilePosition& tile) {
    const DeviceDeparture& departure = arguments_.async.departure;
    const RankParts& parts = arguments_.parts;
    const int begin = departure.of_columns ? tile.column : tile.row;
    const int size = departure.of_columns ? C.columns : C.rows();
    const int others = parts.ranks - 1;
    const ChunkRange<int32_t> chunks =
        departure.chunks.covering(begin, min(begin + size, parts.last));
    for (int chunk = chunks.first; chunk <= chunks.last; ++chunk)
      for (int i = 0; i < others; ++i) waits_.await_chunk((chunk - parts.first_chunk) * others + i);
  }

 private:
  const Sm90MatmulArguments& arguments_;
  ArrivalWaits<C.consumers> waits_;
};

}  // namespace perseid::internal::cuda
