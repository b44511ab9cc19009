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
// split_along takes operands whose neighbours in memory lie along k. A block has one line, or each
// warp has one. A thread holds up to 32 numbers, so that a line of up to 8192 is read once:
//
//   read | largest of the line, by all threads | write the halves | lost numbers, by all threads
//
// split_across takes any other strides. A cluster of blocks (before compute capability 9.0, which
// has none, one block) has 32 lines, and its warps take tiles
// of 32 lines and 32 of k by turns: for the largest number of each line, which the blocks exchange
// through distributed shared memory, and to write the halves. Asynchronous copies bring the tiles
// into shared memory, where they are transposed, so that whole lines of 128 bytes are read and
// written. A warp holds two tiles, so that lines of up to 8192 are read once; longer ones twice.
//
// The bound is memory: 4 bytes read and 2 bytes a plane written for each number.
#pragma once

#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/cp_async.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/split/config.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

__device__ __forceinline__ uint32_t magnitude(float x) { return float_bits(x) & 0x7fffffffu; }

// Zeros are not lost: minus 1 they are large.
__device__ __forceinline__ bool is_lost(float x, uint32_t limit) {
  return magnitude(x) - 1 < limit - 1;
}

// What is written of a line that lost so many numbers.
__device__ __forceinline__ float line_factor(uint32_t largest, int64_t lost, int64_t depth) {
  const bool refused = !splits(largest) || 256 * lost > depth;
  return refused ? float_from_bits(0x7fffffffu) : split_factor(largest);
}

// ---- Neighbours along k ----

// `kWarps` warps split one line.
template <SplitConfig C, int kWarps>
class SplitLine {
  static constexpr int kThreads = 32 * kWarps, kHeld = 8;  // groups of 4 numbers of a thread
  static constexpr int kSpan = 4 * kThreads * kHeld;       // numbers that are held

 public:
  __device__ __forceinline__ SplitLine(const float* data, bool vectors, int64_t depth,
                                       uint32_t* shared)
      : data_(data),
        vectors_(vectors),
        depth_(depth),
        thread_(static_cast<int>(threadIdx.x) % kThreads),
        shared_(shared) {}

  __device__ __forceinline__ void run(uint16_t* planes, float* factor) {
    uint32_t most = 0;
#pragma unroll 1
    for (int64_t k = 0; k < depth_; k += kSpan) {
      load(k);
#pragma unroll
      for (const float4& x : held_)
        most = max(max(most, max(magnitude(x.x), magnitude(x.y))),
                   max(magnitude(x.z), magnitude(x.w)));
    }
    const uint32_t largest = of_all(__reduce_max_sync(0xffffffffu, most),
                                    [](uint32_t a, uint32_t b) { return max(a, b); });
    const float scale = split_scale(largest);
    const uint32_t limit = lost_below(largest, depth_);
    uint32_t lost = 0;
#pragma unroll 1
    for (int64_t k = 0; k < depth_; k += kSpan) {
      if (depth_ > kSpan) load(k);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const float4& x = held_[i];
        lost +=
            is_lost(x.x, limit) + is_lost(x.y, limit) + is_lost(x.z, limit) + is_lost(x.w, limit);
        const int64_t at = k + 4 * (thread_ + kThreads * i);
        // A line of planes ends with a whole group of kDepth.
        if (at / SplitConfig::kDepth * SplitConfig::kDepth >= depth_) continue;
        const HalfPairs a = split_pair(x.x * scale, x.y * scale);
        const HalfPairs b = split_pair(x.z * scale, x.w * scale);
        uint16_t* const halves = planes +
                                 at / SplitConfig::kDepth * SplitConfig::kDepth * C.planes +
                                 at % SplitConfig::kDepth;
        *reinterpret_cast<uint2*>(halves) = {a.high, b.high};
        if constexpr (C.planes == 2)
          *reinterpret_cast<uint2*>(halves + SplitConfig::kDepth) = {a.low, b.low};
      }
    }
    lost =
        of_all(__reduce_add_sync(0xffffffffu, lost), [](uint32_t a, uint32_t b) { return a + b; });
    if (thread_ == 0) *factor = line_factor(largest, lost, depth_);
  }

 private:
  __device__ __forceinline__ void load(int64_t k) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t at = k + 4 * (thread_ + kThreads * i);
      if (vectors_ && at + 3 < depth_)
        held_[i] = *reinterpret_cast<const float4*>(data_ + at);
      else
        held_[i] = {at < depth_ ? data_[at] : 0, at + 1 < depth_ ? data_[at + 1] : 0,
                    at + 2 < depth_ ? data_[at + 2] : 0, at + 3 < depth_ ? data_[at + 3] : 0};
    }
  }
  // From the value of each warp.
  template <class Combine>
  __device__ __forceinline__ uint32_t of_all(uint32_t of_warp, const Combine& combine) {
    if constexpr (kWarps == 1) return of_warp;
    if (thread_ % 32 == 0) shared_[thread_ / 32] = of_warp;
    __syncthreads();
    uint32_t all = shared_[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) all = combine(all, shared_[i]);
    shared_ += kWarps;  // the next one has its own
    return all;
  }

  const float* data_;
  bool vectors_;
  int64_t depth_;
  int thread_;
  uint32_t* shared_;
  float4 held_[kHeld];
};

// Blocks of operand 0 come first; of each, the lines of an entry.
template <SplitConfig C>
__global__ void __launch_bounds__(SplitConfig::threads, 4)
    split_along(const __grid_constant__ SplitArguments arguments) {
  __shared__ uint32_t shared[2 * SplitConfig::kWarps];
  ptx::launch_dependents();
  const int64_t depth = arguments.depth;
  const int each = SplitConfig::lines_of_block(depth);
  const auto lines_of = [](const SplitOperand& operand) { return operand.lines * operand.entries; };
  const int64_t first = ceil_div(lines_of(arguments.operands[0]), each);
  const bool second = blockIdx.x >= first;
  const SplitOperand& operand = arguments.operands[second ? 1 : 0];
  const int64_t block = blockIdx.x - (second ? first : 0);
  const int64_t line = each == 1 ? block : block * each + threadIdx.x / 32;
  ptx::wait_for_prerequisites();
  if (line >= lines_of(operand)) return;
  const float* const data = static_cast<const float*>(operand.from.data) +
                            line / operand.lines * operand.from.batch +
                            line % operand.lines * operand.from.line;
  uint16_t* const planes = static_cast<uint16_t*>(operand.planes) + line * C.row(depth);
  if (each == 1)
    SplitLine<C, SplitConfig::kWarps>(data, operand.from.vectors, depth, shared)
        .run(planes, operand.factors + line);
  else
    SplitLine<C, 1>(data, operand.from.vectors, depth, shared).run(planes, operand.factors + line);
}

// ---- Any other strides ----

struct SplitShared {
  static constexpr int kLines = SplitConfig::kLines, kWarps = SplitConfig::kWarps;
  uint32_t of_warps[kWarps][kLines];  // the largest bits of a line
  uint32_t of_block[kLines], largest[kLines];
  uint32_t lost[kLines];  // numbers, of this block
};

// Lines of one operand from `data` on, of one batch entry.
struct SplitLines {
  const float* data;
  int64_t line, depth;  // strides
  int left;             // lines
  int64_t depth_left;   // numbers of a line

  __device__ __forceinline__ SplitLines from(int64_t k) const {
    return {data + k * depth, line, depth, left, depth_left - k};
  }
};

// [32 lines][32 of k] in shared memory, 4096 bytes of a warp. At first numbers by k, of which a
// lane reads its line; then halves by lines, 16 bytes at position p ^ line % 8.
template <SplitConfig C>
class SplitTile {
  static constexpr int kLines = SplitConfig::kLines, kDepth = SplitConfig::kDepth;

 public:
  __device__ __forceinline__ SplitTile(unsigned char* memory, int lane)
      : memory_(memory), lane_(lane) {}

  // Outside of the lines and of k there are zeros. A lane may read its line when its copies have
  // ended.
  __device__ __forceinline__ void load(const SplitLines& lines) const {
    __syncwarp();  // the halves before have been read
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(memory_)) + 4 * lane_;
    const float* from = lines.data + lane_ * lines.line;
    const bool inside = lane_ < lines.left;
#pragma unroll
    for (int i = 0; i < kDepth; ++i, from += lines.depth)
      ptx::cp_async_4_or_zero(to + 4 * kLines * i, from, inside && i < lines.depth_left);
  }
  __device__ __forceinline__ float at(int k) const {
    return reinterpret_cast<const float*>(memory_)[kLines * k + lane_];
  }
  // `to`: of line 0 of the tile, lines that are `row` apart. Returns how many numbers of the lane's
  // line are lost.
  __device__ __forceinline__ uint32_t store(float scale, uint32_t limit, int left, uint16_t* to,
                                            int64_t row) const {
    float numbers[kDepth];
    uint32_t lost = 0;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      numbers[i] = at(i);
      lost += is_lost(numbers[i], limit);
    }
    __syncwarp();  // all lanes have read theirs
    auto& rows = *reinterpret_cast<uint4(*)[kLines][8]>(memory_);
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      HalfPairs pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] =
            split_pair(numbers[8 * piece + 2 * i] * scale, numbers[8 * piece + 2 * i + 1] * scale);
      rows[lane_][piece ^ lane_ % 8] = {pairs[0].high, pairs[1].high, pairs[2].high, pairs[3].high};
      if constexpr (C.planes == 2)
        rows[lane_][(4 + piece) ^ lane_ % 8] = {pairs[0].low, pairs[1].low, pairs[2].low,
                                                pairs[3].low};
    }
    __syncwarp();
    constexpr int kPieces = 4 * C.planes, kRows = 32 / kPieces;  // of the warp's accesses
    const int piece = lane_ % kPieces;
    to += lane_ / kPieces * row + piece * 8;
#pragma unroll
    for (int i = 0; i < kLines; i += kRows, to += kRows * row) {
      const int line = i + lane_ / kPieces;
      if (line < left) __stcs(reinterpret_cast<uint4*>(to), rows[line][piece ^ line % 8]);
    }
    return lost;
  }

 private:
  unsigned char* memory_;
  int lane_;
};

// Clusters of operand 0 come first; of each, the groups of lines of an entry.
template <SplitConfig C>
__global__ void __launch_bounds__(SplitConfig::threads, 3)
    split_across(const __grid_constant__ SplitArguments arguments) {
  constexpr int kDepth = SplitConfig::kDepth, kWarps = SplitConfig::kWarps;
  constexpr int kHeld = SplitConfig::kHeldTiles;
  extern __shared__ __align__(16) unsigned char tiles[];
  __shared__ SplitShared shared;
  ptx::launch_dependents();
  const int blocks = arguments.cluster, rank = static_cast<int>(blockIdx.x) % blocks;
  const auto groups_of = [](const SplitOperand& operand) {
    return ceil_div(operand.lines, SplitConfig::kLines);
  };
  const int64_t of_first = groups_of(arguments.operands[0]) * arguments.operands[0].entries;
  int64_t cluster = blockIdx.x / blocks;
  const bool second = cluster >= of_first;
  if (second) cluster -= of_first;
  const SplitOperand& operand = arguments.operands[second ? 1 : 0];
  const int64_t groups = groups_of(operand), entry = cluster / groups;
  const int64_t line = cluster % groups * SplitConfig::kLines;
  const MatmulOperand& from = operand.from;
  const SplitLines lines{
      static_cast<const float*>(from.data) + entry * from.batch + line * from.line, from.line,
      from.depth, static_cast<int>(min<int64_t>(operand.lines - line, SplitConfig::kLines)),
      arguments.depth};
  const int64_t depth = arguments.depth, to = entry * operand.lines + line;
  uint16_t* const planes = static_cast<uint16_t*>(operand.planes) + to * C.row(depth);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // k counts in 32 bits: it is less than 2^30.
  const int deep = static_cast<int>(depth), step = kDepth * kWarps * blocks;
  const int first = kDepth * (rank * kWarps + warp);
  ptx::wait_for_prerequisites();

  // The largest number of each line.
  const auto tile = [&](int i) {
    return SplitTile<C>(tiles + (kHeld * warp + i) * SplitConfig::kTileBytes, lane);
  };
  const auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) tile(i).load(lines.from(k + i * step));
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  };
  uint32_t most = 0;
#pragma unroll 1
  for (int k = first; k < deep; k += kHeld * step) {
    load(k);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
#pragma unroll
      for (int j = 0; j < kDepth; ++j) most = max(most, magnitude(tile(i).at(j)));
  }
  shared.of_warps[warp][lane] = most;
  __syncthreads();
  if (warp == 0) {
    for (int i = 1; i < kWarps; ++i) most = max(most, shared.of_warps[i][lane]);
    shared.of_block[lane] = most;
    shared.lost[lane] = 0;
  }
  if constexpr (C.clusters) {
    ptx::cluster_arrive_and_release();
    ptx::cluster_wait();
    if (warp == 0)
      for (int i = 0; i < blocks; ++i)
        most = max(most, ptx::load_from_block(ptx::address_in_block(&shared.of_block[lane], i)));
  }
  if (warp == 0) shared.largest[lane] = most;
  __syncthreads();

  // The halves.
  const uint32_t largest = shared.largest[lane], limit = lost_below(largest, depth);
  const float scale = split_scale(largest);
  uint32_t lost = 0;
#pragma unroll 1
  for (int k = first; k < deep; k += kHeld * step) {
    if (deep > kHeld * step) load(k);
#pragma unroll 1
    for (int i = 0; i < kHeld; ++i)
      if (const int at = k + i * step; at < deep)
        lost += tile(i).store(scale, limit, lines.left, planes + at * C.planes, C.row(depth));
  }
  if (lost != 0) atomicAdd(&shared.lost[lane], lost);
  const bool writes = rank == 0 && warp == 0 && lane < lines.left;
  int64_t all = 0;
  if constexpr (C.clusters) {
    ptx::cluster_arrive_and_release();
    ptx::cluster_wait();
    if (writes)
      for (int i = 0; i < blocks; ++i)
        all += ptx::load_from_block(ptx::address_in_block(&shared.lost[lane], i));
  } else {
    __syncthreads();
    all = shared.lost[lane];
  }
  if (writes) operand.factors[to + lane] = line_factor(largest, all, depth);
  // No block ends while another one may read its counts.
  if constexpr (C.clusters) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

}  // namespace perseid::internal::cuda
