// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// c = alpha a b + beta c0 + bias of f16, bf16 and f64, and of f32 in planes of f16
// (tensor_core_planes.hpp), by the tensor cores' warp products, sm_80 and up.
//
// A block makes a tile of c. Tiles of a and b come through shared memory in steps of 128 bytes
// along k, several stages ahead; a warp keeps its part of the sums in registers and walks a stage
// in four steps of 16 along k (f64: two of 8). It loads the next step's operands while it
// multiplies.
//
//                 b: depth x columns             shared memory, for each stage
//                 +---+---+---+---+              +-----------+-----------+
//                 |   |   |   |   |              | tile of a | tile of b |
//     a:          +---+---+---+---+              +-----------+-----------+
//   rows x depth  | warp 0| warp 1|
//     +-------+   +-------+-------+              a step of the block
//     |       |   | warp 2| warp 3|                1 copy the tiles `stages` - 1 steps ahead
//     +-------+   +-------+-------+                2 all but the last product of the oldest stage
//                                                  3 wait for the copies of the next stage
//                                                  4 barrier
//                                                  5 load from the next stage, the last product
//
// One barrier a step does two things: it shows every thread the copies that others have waited for,
// and it says that all warps have loaded all of the oldest stage, which the next step's 1 fills.
//
// How tiles lie in shared memory: tensor_core_warp.hpp. What lies outside of an operand is copied
// as zeros, which add nothing.
//
// Operands that cannot be copied so, for lack of alignment or neighbours, are read element by
// element to the same addresses. That is slow.
//
// At the end the sums go through the same shared memory, so that each warp writes whole rows.
//
// Operands in chunks: blocks take tiles in the order of the chunks (math/tile_order.hpp). The first
// warp waits for those of its tile, or, of chunks along k, for those of the next copies; then comes
// a barrier (device/chunk_waits.hpp has the argument). The blocks that run wait for the chunks that
// arrive first, so that those that do not run yet keep nobody waiting.
//
// Sums are float32 (of f64 float64) in the order of k whatever the tile is: results do not depend
// on the configuration, nor on the batch. In canonical order, of f64, a kernel takes two leaves
// that are whole steps, without a pause of the copies: the sums of the first wait in shared memory,
// where a thread reads what it has written itself.
#pragma once

#include "cuda/device/matmul/output.hpp"
#include "cuda/device/matmul/tensor_core_planes.hpp"
#include "cuda/device/matmul/tensor_core_warp.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/cp_async.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

// What a thread copies of an operand: vector `vector_` of every kPass-th line. kOuter: rows or
// columns of the tile.
template <MatmulTensorConfig C, bool kAcross, int kOuter>
class OperandCopy {
  using Bits = typename TileLayout<C>::Bits;
  static constexpr int kVector = TileLayout<C>::kVector;
  static constexpr int kLines = kAcross ? C.depth() : kOuter;
  static constexpr int kLength = kAcross ? kOuter : C.depth();
  static constexpr int kLineBytes = kLength * C.element_bytes();
  static constexpr int kVectors = kLength / kVector;
  static constexpr int kPass = C.threads() / kVectors;
  static_assert(kPass % TileLayout<C>::kPeriod == 0 && kLines % kPass == 0);

 public:
  // From row or column `first` of `outer`, and from k = 0 of `depth`, on.
  __device__ __forceinline__ OperandCopy(const MatmulOperand& operand, int64_t batch, int64_t first,
                                         int64_t outer)
      : operand_(operand) {
    const int thread = static_cast<int>(threadIdx.x);
    const int line = thread / kVectors, vector = thread % kVectors;
    offset_ = TileLayout<C>::template offset<kLength>(line, vector);
    data_ = static_cast<const Bits*>(operand.data) + batch * operand.batch + first * operand.line +
            line * between_lines() + vector * kVector * between_elements();
    outer_left_ =
        static_cast<int>(min<int64_t>(outer - first, kOuter)) - (kAcross ? vector * kVector : line);
    depth_ = kAcross ? line : vector * kVector;
  }

  // Copies the next tile to `tile`, at `address` of shared memory; `left`: of k from its first
  // element on. kWhole: every vector lies inside of the operand or outside, and what lies outside
  // of rows and columns may be anything.
  template <bool kWhole>
  __device__ __forceinline__ void next(unsigned char* tile, uint32_t address, int64_t left) {
    const int depth_left = static_cast<int>(min<int64_t>(left, C.depth())) - depth_;
    if constexpr (kWhole) {
      const int lines = kAcross          ? (outer_left_ > 0 ? depth_left : 0)
                        : depth_left > 0 ? outer_left_
                                         : 0;
      const Bits* from = data_;
#pragma unroll
      for (int line = 0; line < kLines; line += kPass, from += kPass * between_lines())
        ptx::cp_async_or_zero(address + offset_ + line * kLineBytes, from, line < lines);
    } else if (left > 0) {
      const int lines = kAcross ? depth_left : outer_left_;
      const int elements = clamp(kAcross ? outer_left_ : depth_left, 0, kVector);
      if (operand_.vectors) {
        const Bits* from = data_;
#pragma unroll
        for (int line = 0; line < kLines; line += kPass, from += kPass * between_lines())
          ptx::cp_async(address + offset_ + line * kLineBytes, from,
                        line < lines ? C.element_bytes() * elements : 0);
      } else {
        gather(tile + offset_, lines, elements);
      }
    }
    data_ += C.depth() * operand_.depth;
  }

 private:
  __device__ __forceinline__ int64_t between_lines() const {
    return kAcross ? operand_.depth : operand_.line;
  }
  __device__ __forceinline__ int64_t between_elements() const {
    return kAcross ? operand_.line : operand_.depth;
  }
  __device__ __forceinline__ void gather(unsigned char* to, int lines, int elements) const {
    const Bits* from = data_;
#pragma unroll 1
    for (int line = 0; line < kLines; line += kPass, from += kPass * between_lines()) {
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Bits bits = line < lines && i < elements ? from[i * between_elements()] : 0;
        if constexpr (C.element_bytes() == 8) {
          words[2 * i] = static_cast<uint32_t>(bits);
          words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
        } else {
          words[i / 2] |= uint32_t{bits} << 16 * (i % 2);
        }
      }
      *reinterpret_cast<uint4*>(to + line * kLineBytes) = {words[0], words[1], words[2], words[3]};
    }
  }

  const MatmulOperand& operand_;
  const Bits* data_;
  int outer_left_, depth_, offset_;  // depth_: of the thread's first element
};

// The sums of a tile, in shared memory, to c: a warp writes neighbours of a row. A thread loads
// what c0 has for several rows together, as each load takes longer than all else that is done for a
// row.
template <MatmulTensorConfig C>
__device__ __forceinline__ void write_tile(const typename WarpSums<C>::Real* sums,
                                           const MatmulLaunch& launch, const MatmulTile& tile) {
  constexpr int kPairs = C.columns / 2, kPass = C.threads() / kPairs;
  constexpr int kTogether = C.planes > 0 ? 1 : 8;
  static_assert(C.rows % (kTogether * kPass) == 0);
  using Output = MatmulOutput<C.in, C.out, C.activation, C.amax>;
  Output output(launch, tile.batch);
  const int thread = static_cast<int>(threadIdx.x), column = thread % kPairs * 2;
#pragma unroll 1
  for (int first = thread / kPairs; first < C.rows; first += kTogether * kPass) {
    typename Output::Source sources[kTogether];
    if constexpr (C.planes == 0)
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        sources[i] = output.source(tile.row + first + i * kPass, tile.column + column);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = first + i * kPass;
      using Pair = typename WarpSums<C>::Pair;
      const auto pair = *reinterpret_cast<const Pair*>(sums + row * C.sums_pitch() + column);
      if constexpr (C.planes > 0)
        PlaneFactors(launch, tile.batch)
            .write(output, tile.row + row, tile.column + column, pair.first, pair.second);
      else
        output.write(tile.row + row, tile.column + column, pair.first, pair.second, sources[i]);
    }
  }
  output.finish();
}

// The waits of a block for the chunks of its operands, by its first warp. A barrier of the block
// follows each call, before the copies that it allows.
class BlockWaits {
 public:
  // When what the kernels before have written is visible.
  __device__ __forceinline__ explicit BlockWaits(const AsyncArguments& async)
      : async_(async), a_(async, 0), b_(async, 1) {
    a_.start(), b_.start();
  }
  __device__ __forceinline__ void await_tile(const TilePosition<int32_t>& tile, bool by_columns) {
    if (threadIdx.x >= 32) return;
    if (!async_.arrivals[0].along_k)
      a_.await(tile.rows, by_columns ? ChunkRange<int32_t>{} : tile.visits);
    if (!async_.arrivals[1].along_k)
      b_.await(tile.columns, by_columns ? tile.visits : ChunkRange<int32_t>{});
  }
  // Waits for the slices of operands that are cut along k.
  __device__ __forceinline__ void await_depth(int32_t depth) {
    if (threadIdx.x != 0) return;
    a_.await_depth(depth);
    b_.await_depth(depth);
  }

 private:
  const AsyncArguments& async_;
  ArrivalWaits<> a_, b_;
};

// The products of the tile. kWhole: as in OperandCopy::next.
template <MatmulTensorConfig C, bool kWhole>
__device__ __forceinline__ void multiply(const MatmulLaunch& launch, const MatmulTile& tile,
                                         unsigned char* memory, int row, int column,
                                         BlockWaits* waits, WarpSums<C>& part) {
  const uint32_t address = ptx::shared_address(memory);
  OperandCopy<C, C.a_across, C.rows> a(launch.a, tile.batch, tile.row, launch.rows);
  OperandCopy<C, C.b_across, C.columns> b(launch.b, tile.batch, tile.column, launch.columns);
  int64_t left = launch.depth;
  // A group for every step, also past the end, so that waiting can count them.
  const auto bring = [&](int stage) {
    const int offset = stage * C.stage_bytes();
    a.template next<kWhole>(memory + offset, address + offset, left);
    b.template next<kWhole>(memory + offset + C.a_bytes(), address + offset + C.a_bytes(), left);
    ptx::cp_async_commit();
    left -= C.depth();
  };
  if constexpr (C.async) {
    waits->await_depth((C.stages - 1) * C.depth());
    __syncthreads();
  }
#pragma unroll
  for (int stage = 0; stage < C.stages - 1; ++stage) bring(stage);

  constexpr int kStep = TileLayout<C>::kStep, kSteps = C.depth() / kStep;
  WarpOperands<C> operands[2];  // of this step, and of the next one
  int oldest = 0, newest = C.stages - 1;
  const auto stage_at = [&](int stage) { return address + stage * C.stage_bytes(); };
  // Until stage `number` is here; then stage number + C.stages - 1 may be brought.
  const auto await_stage = [&](int32_t number) {
    ptx::cp_async_wait<C.stages - 2>();
    if constexpr (C.async) waits->await_depth((number + C.stages) * C.depth());
    __syncthreads();
  };
  const auto stages = static_cast<int32_t>(ceil_div(launch.depth, C.depth()));
  await_stage(0);
  if constexpr (C.planes != 2) operands[0].load(stage_at(0), row, column, 0);
  const auto run_stage = [&](int32_t stage) {
    const int next = oldest + 1 == C.stages ? 0 : oldest + 1;
    if constexpr (C.planes == 2) {
      if (stage > 0) await_stage(stage);
      bring(newest);
      add_stage_of_planes<C>(stage_at(oldest), row, column, part);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const bool ends = i + 1 == kSteps;  // what is loaded now lies in the next stage
        if (ends) await_stage(stage + 1);
        operands[(i + 1) % 2].load(stage_at(ends ? next : oldest), row, column,
                                   ends ? 0 : kStep * (i + 1));
        if (i == 0) bring(newest);
        part.add(operands[i % 2]);
      }
    }
    newest = oldest;
    oldest = next;
  };
  if constexpr (C.leaves == 1) {
    for (int32_t stage = 0; stage < stages; ++stage) run_stage(stage);
  } else {
    auto* const waiting = memory + C.stages * C.stage_bytes();
#pragma unroll 1
    for (int leaf = 0; leaf < C.leaves; ++leaf) {
      for (int32_t left = stages / C.leaves; left > 0; --left) run_stage(0);
      leaf == 0 ? part.put(waiting) : part.add(waiting);
      operands[0].load(stage_at(oldest), row, column, 0);  // put() and add() need their registers
    }
  }
  // All warps are done with the stages, and no copy to them is in flight: sums may overwrite them.
  ptx::cp_async_wait<0>();
  __syncthreads();
}

template <MatmulTensorConfig C>
__global__ void __launch_bounds__(C.threads(), C.resident())
    matmul_tensor_core(const __grid_constant__ MatmulLaunch launch) {
  extern __shared__ __align__(1024) unsigned char memory[];
  ptx::launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / C.warps_across() * C.warp_rows;
  const int column = warp % C.warps_across() * C.warp_columns;
  WarpSums<C> part;
  const auto multiply_by = [&](const MatmulTile& tile, BlockWaits* waits) {
    if (launch.whole_vectors)
      multiply<C, true>(launch, tile, memory, row, column, waits, part);
    else
      multiply<C, false>(launch, tile, memory, row, column, waits, part);
  };
  MatmulTile tile;
  if constexpr (C.async) {
    const TileOrder<int32_t> order(launch.grid);
    const TilePosition<int32_t> position = order.tile(static_cast<int32_t>(blockIdx.x));
    tile = {position.batch, int64_t{position.row} * C.rows, int64_t{position.column} * C.columns};
    ptx::wait_for_prerequisites();  // signals and epochs may be written by the kernels before
    BlockWaits waits(launch.async);
    waits.await_tile(position, order.by_columns());
    multiply_by(tile, &waits);
  } else {
    tile = find_tile(launch, blockIdx.x, C.rows, C.columns);
    ptx::wait_for_prerequisites();
    multiply_by(tile, nullptr);
  }
  auto* sums = reinterpret_cast<typename WarpSums<C>::Real*>(memory);
  part.store(sums, row, column);
  __syncthreads();
  write_tile<C>(sums, launch, tile);
  if constexpr (C.async) {
    __syncthreads();
    const DepartureSignals signals(launch.async, launch.grid, C.rows, C.columns);
    const auto first_row = static_cast<int>(tile.row), first_column = static_cast<int>(tile.column);
    if (threadIdx.x == 0 && signals.wanted(first_row, first_column))
      signals.depart(first_row, first_column);
  }
}

}  // namespace perseid::internal::cuda
