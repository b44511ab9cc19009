// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Splits the operands of a product, float32 with any strides, into planes of f16 (halves.hpp) along
// k: what the tensor cores multiply instead.
//
//   a line, k   0 .. 31     0 .. 31     32 .. 63    32 .. 63    ...
//   planes      high halves low halves  high halves low halves
//
// so that 128 bytes, the rows of a tile in shared memory, hold 32 numbers (64 with one plane).
//
// A cluster of blocks has 32 lines of one operand. Warps take tiles of 32 lines and 32 of k in
// turns, twice: first for the largest number of each line, which the blocks exchange through
// distributed shared memory, then to write the halves. The lines of the clusters that run at a time
// fit into the L2 cache, so that memory is read once. The bound is memory: 4 bytes read and 2 bytes
// a plane written for each number.
//
// A tile in registers: where neighbours in memory lie along k, a lane has 4 numbers of 8 lines and
// writes them as they are; else it has 32 numbers of one line, which go through shared memory, so
// that whole lines of 128 bytes are written.
#pragma once

#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/split/config.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

struct SplitShared {
  static constexpr int kLines = SplitConfig::kLines, kWarps = SplitConfig::kWarps;
  // Rows of a warp's tile, 16 bytes at position p ^ row % 8.
  alignas(16) uint4 rows[kWarps][kLines][8];
  uint32_t of_warps[kWarps][kLines];  // the largest bits of a line
  uint32_t of_block[kLines], largest[kLines];
  uint32_t lost[kLines];  // numbers, of this block
};

// Lines of one operand from `data` on, of one batch entry.
struct SplitLines {
  const float* data;
  int64_t line, depth;  // strides
  bool vectors;
  int left;            // lines
  int64_t depth_left;  // numbers of a line

  __device__ __forceinline__ SplitLines from(int64_t k) const {
    return {data + k * depth, line, depth, vectors, left, depth_left - k};
  }
};

__device__ __forceinline__ uint32_t magnitude(float x) { return float_bits(x) & 0x7fffffffu; }

// A tile whose neighbours lie along k: [line 4 i + lane / 8][4 of k from 4 (lane % 8) on].
template <SplitConfig C>
struct SplitTileAlong {
  static constexpr int kHeld = 8;  // lines of a lane
  float at[kHeld][4];

  static __device__ __forceinline__ int line(int lane, int i) { return 4 * i + lane / 8; }
  __device__ __forceinline__ void load(const SplitLines& lines, int lane) {
    const int k = lane % 8 * 4;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float* const from = lines.data + line(lane, i) * lines.line + k;
      const bool inside = line(lane, i) < lines.left;
      if (lines.vectors && inside && k + 3 < lines.depth_left) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        at[i][0] = four.x, at[i][1] = four.y, at[i][2] = four.z, at[i][3] = four.w;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) at[i][j] = inside && k + j < lines.depth_left ? from[j] : 0;
      }
    }
  }
  // visit(i, x): each number, of held line i.
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) visit(i, at[i][j]);
  }
  // The largest of the lanes that hold a line.
  static __device__ __forceinline__ uint32_t reduce_max(uint32_t bits) {
    for (int apart = 4; apart > 0; apart /= 2)
      bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, apart));
    return bits;
  }
  static __device__ __forceinline__ bool leads(int lane) { return lane % 8 == 0; }
  // `to`: of line 0 of the tile, lines that are `row` apart.
  __device__ __forceinline__ void store(const float (&scale)[kHeld], uint16_t* to, int64_t row,
                                        int lines, uint4 (&)[SplitConfig::kLines][8],
                                        int lane) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const HalfPairs a = split_pair(at[i][0] * scale[i], at[i][1] * scale[i]);
      const HalfPairs b = split_pair(at[i][2] * scale[i], at[i][3] * scale[i]);
      if (line(lane, i) >= lines) continue;
      uint16_t* const halves = to + line(lane, i) * row + lane % 8 * 4;
      *reinterpret_cast<uint2*>(halves) = {a.high, b.high};
      if constexpr (C.planes == 2)
        *reinterpret_cast<uint2*>(halves + SplitConfig::kDepth) = {a.low, b.low};
    }
  }
};

// A tile with neighbours along the lines, or nowhere: [line lane][32 of k].
template <SplitConfig C>
struct SplitTileAcross {
  static constexpr int kHeld = 1;
  float at[SplitConfig::kDepth];

  static __device__ __forceinline__ int line(int lane, int) { return lane; }
  __device__ __forceinline__ void load(const SplitLines& lines, int lane) {
    const float* from = lines.data + lane * lines.line;
    const bool inside = lane < lines.left;
#pragma unroll
    for (int i = 0; i < SplitConfig::kDepth; ++i, from += lines.depth)
      at[i] = inside && i < lines.depth_left ? *from : 0;
  }
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
#pragma unroll
    for (const float x : at) visit(0, x);
  }
  static __device__ __forceinline__ uint32_t reduce_max(uint32_t bits) { return bits; }
  static __device__ __forceinline__ bool leads(int) { return true; }
  __device__ __forceinline__ void store(const float (&scale)[kHeld], uint16_t* to, int64_t row,
                                        int lines, uint4 (&rows)[SplitConfig::kLines][8],
                                        int lane) const {
    __syncwarp();  // the tile before has been read
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      HalfPairs pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] =
            split_pair(at[8 * piece + 2 * i] * scale[0], at[8 * piece + 2 * i + 1] * scale[0]);
      rows[lane][piece ^ lane % 8] = {pairs[0].high, pairs[1].high, pairs[2].high, pairs[3].high};
      if constexpr (C.planes == 2)
        rows[lane][(4 + piece) ^ lane % 8] = {pairs[0].low, pairs[1].low, pairs[2].low,
                                              pairs[3].low};
    }
    __syncwarp();
    constexpr int kPieces = 4 * C.planes, kRows = 32 / kPieces;  // of the warp's accesses
#pragma unroll
    for (int i = 0; i < SplitConfig::kLines; i += kRows) {
      const int line = i + lane / kPieces, piece = lane % kPieces;
      if (line < lines)
        *reinterpret_cast<uint4*>(to + line * row + piece * 8) = rows[line][piece ^ line % 8];
    }
  }
};

template <SplitConfig C, template <SplitConfig> class Tile>
__device__ __forceinline__ void split_lines(const SplitArguments& arguments,
                                            const SplitLines& lines, uint16_t* planes,
                                            float* factors, SplitShared& shared) {
  constexpr int kHeld = Tile<C>::kHeld, kDepth = SplitConfig::kDepth, kWarps = SplitConfig::kWarps;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = arguments.cluster, rank = static_cast<int>(blockIdx.x) % blocks;
  const int64_t depth = arguments.depth, step = int64_t{kDepth} * kWarps * blocks;
  const int64_t first = int64_t{kDepth} * (rank * kWarps + warp);
  Tile<C> tile;

  // The largest number of each line.
  uint32_t most[kHeld] = {};
#pragma unroll 1
  for (int64_t k = first; k < depth; k += step) {
    tile.load(lines.from(k), lane);
    tile.each([&](int i, float x) { most[i] = max(most[i], magnitude(x)); });
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const uint32_t bits = Tile<C>::reduce_max(most[i]);
    if (Tile<C>::leads(lane)) shared.of_warps[warp][Tile<C>::line(lane, i)] = bits;
  }
  __syncthreads();
  if (warp == 0) {
    uint32_t bits = 0;
    for (int i = 0; i < kWarps; ++i) bits = max(bits, shared.of_warps[i][lane]);
    shared.of_block[lane] = bits;
    shared.lost[lane] = 0;
  }
  ptx::cluster_arrive_and_release();
  ptx::cluster_wait();
  if (warp == 0) {
    uint32_t bits = 0;
    for (int i = 0; i < blocks; ++i)
      bits = max(bits, ptx::load_from_block(ptx::address_in_block(&shared.of_block[lane], i)));
    shared.largest[lane] = bits;
  }
  __syncthreads();

  // The halves.
  float scale[kHeld];
  uint32_t limit[kHeld], lost[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const uint32_t largest = shared.largest[Tile<C>::line(lane, i)];
    scale[i] = split_scale(largest);
    limit[i] = lost_below(largest, depth);
  }
#pragma unroll 1
  for (int64_t k = first; k < depth; k += step) {
    tile.load(lines.from(k), lane);
    // Zeros are not lost: minus 1 they are large.
    tile.each([&](int i, float x) { lost[i] += magnitude(x) - 1 < limit[i] - 1 ? 1 : 0; });
    tile.store(scale, planes + k * C.planes, C.row(depth), lines.left, shared.rows[warp], lane);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (lost[i] != 0) atomicAdd(&shared.lost[Tile<C>::line(lane, i)], lost[i]);
  ptx::cluster_arrive_and_release();
  ptx::cluster_wait();
  if (rank == 0 && warp == 0 && lane < lines.left) {
    int64_t all = 0;
    for (int i = 0; i < blocks; ++i)
      all += ptx::load_from_block(ptx::address_in_block(&shared.lost[lane], i));
    const uint32_t largest = shared.largest[lane];
    const bool refused = !splits(largest) || 256 * all > depth;
    factors[lane] = refused ? float_from_bits(0x7fffffffu) : split_factor(largest);
  }
  // No block ends while another one may read its counts.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

// Clusters of operand 0 come first; of each, the groups of lines of an entry.
template <SplitConfig C>
__global__ void __launch_bounds__(SplitConfig::threads(), 2)
    split_operands(const __grid_constant__ SplitArguments arguments) {
  __shared__ SplitShared shared;
  ptx::launch_dependents();
  int64_t cluster = blockIdx.x / arguments.cluster;
  const auto groups_of = [](const SplitOperand& operand) {
    return ceil_div(operand.lines, SplitConfig::kLines);
  };
  const int64_t of_first = groups_of(arguments.operands[0]) * arguments.operands[0].entries;
  const bool second = cluster >= of_first;
  if (second) cluster -= of_first;
  const SplitOperand& operand = arguments.operands[second ? 1 : 0];
  const int64_t groups = groups_of(operand), entry = cluster / groups;
  const int64_t line = cluster % groups * SplitConfig::kLines;
  const MatmulOperand& from = operand.from;
  const SplitLines lines{
      static_cast<const float*>(from.data) + entry * from.batch + line * from.line,
      from.line,
      from.depth,
      from.vectors,
      static_cast<int>(min<int64_t>(operand.lines - line, SplitConfig::kLines)),
      arguments.depth};
  const int64_t to = entry * operand.lines + line;
  uint16_t* const planes = static_cast<uint16_t*>(operand.planes) + to * C.row(arguments.depth);
  ptx::wait_for_prerequisites();
  if (from.depth == 1)
    split_lines<C, SplitTileAlong>(arguments, lines, planes, operand.factors + to, shared);
  else
    split_lines<C, SplitTileAcross>(arguments, lines, planes, operand.factors + to, shared);
}

}  // namespace perseid::internal::cuda
