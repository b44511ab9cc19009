// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// c = alpha a b + beta c0 + bias of f16 and bf16 by the tensor cores' warp products, sm_80 and up.
//
// A block makes a tile of c. Tiles of a and b come through shared memory in steps of 64 along k,
// several stages ahead; a warp keeps its part of the sums in registers and walks a stage in four
// steps of 16.
//
//                 b: 64 x columns                shared memory, for each stage
//                 +---+---+---+---+              +-----------+-----------+
//                 |   |   |   |   |              | tile of a | tile of b |
//     a:          +---+---+---+---+              +-----------+-----------+
//     rows x 64   | warp 0| warp 1|
//     +-------+   +-------+-------+              a step of the block
//     |       |   | warp 2| warp 3|                1 wait for the copies of the oldest stage
//     +-------+   +-------+-------+                2 barrier
//                                                  3 copy the tiles `stages` - 1 steps ahead
//                                                  4 products of the oldest stage
//
// One barrier a step does two things: it shows every thread the copies that others have waited for,
// and it says that all warps are done with the stage before, which 3 then fills again.
//
// An operand's tile is a number of lines of elements that lie side by side, along k or across it as
// in global memory; ldmatrix transposes where they lie across. Vectors of 16 bytes are permuted in
// each line, vector v of line l lying at v ^ (l mod 8), so that neither the copies nor ldmatrix,
// which reads the same vector of eight lines, meet a bank twice. What lies outside of an operand is
// copied as zeros, which add nothing.
//
// Operands that cannot be copied so, for lack of alignment or neighbours, are read element by
// element to the same addresses. That is slow.
//
// At the end the sums go through the same shared memory, so that each warp writes whole rows.
//
// Sums are float32, in the order of k whatever the tile is: results do not depend on the
// configuration, nor on the batch.
#pragma once

#include "cuda/device/matmul/output.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/cp_async.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/mma.hpp"

namespace perseid::internal::cuda {

inline constexpr int kVector = 8;  // elements in 16 bytes

// Offset of a vector in a tile, in bytes. kLength: elements of a line, a multiple of 64.
template <int kLength>
__device__ __forceinline__ int vector_offset(int line, int vector) {
  return line * kLength * 2 + ((vector ^ (line % 8)) << 4);
}

// What a thread copies of an operand: vector `vector_` of every kPass-th line. kOuter: rows or
// columns of the tile.
template <MatmulTensorConfig C, bool kAcross, int kOuter>
class OperandCopy {
  static constexpr int kLines = kAcross ? C.depth : kOuter;
  static constexpr int kLength = kAcross ? kOuter : C.depth;
  static constexpr int kVectors = kLength / kVector;
  static constexpr int kPass = C.threads() / kVectors;
  static_assert(kPass % 8 == 0 && kLines % kPass == 0);

 public:
  // From row or column `first` of `outer`, and from k = 0 of `depth`, on.
  __device__ __forceinline__ OperandCopy(const MatmulOperand& operand, int64_t batch, int64_t first,
                                         int64_t outer, int64_t depth)
      : operand_(operand) {
    const int thread = static_cast<int>(threadIdx.x);
    const int line = thread / kVectors, vector = thread % kVectors;
    offset_ = vector_offset<kLength>(line, vector);
    data_ = static_cast<const uint16_t*>(operand.data) + batch * operand.batch +
            first * operand.line + line * between_lines() + vector * kVector * between_elements();
    outer_left_ =
        static_cast<int>(min<int64_t>(outer - first, kOuter)) - (kAcross ? vector * kVector : line);
    depth_left_ = depth - (kAcross ? line : vector * kVector);
  }

  // Copies the next tile to `tile`, at `address` of shared memory.
  __device__ __forceinline__ void next(unsigned char* tile, uint32_t address) {
    const int depth_left = static_cast<int>(clamp<int64_t>(depth_left_, 0, C.depth));
    const int lines = kAcross ? depth_left : outer_left_;
    const int elements = clamp(kAcross ? outer_left_ : depth_left, 0, kVector);
    if (operand_.vectors) {
      const uint16_t* from = data_;
#pragma unroll
      for (int line = 0; line < kLines; line += kPass, from += kPass * between_lines())
        ptx::cp_async(address + offset_ + line * kLength * 2, from,
                      line < lines ? 2 * elements : 0);
    } else {
      gather(tile + offset_, lines, elements);
    }
    data_ += C.depth * operand_.depth;
    depth_left_ -= C.depth;
  }

 private:
  __device__ __forceinline__ int64_t between_lines() const {
    return kAcross ? operand_.depth : operand_.line;
  }
  __device__ __forceinline__ int64_t between_elements() const {
    return kAcross ? operand_.line : operand_.depth;
  }
  __device__ __forceinline__ void gather(unsigned char* to, int lines, int elements) const {
    const uint16_t* from = data_;
#pragma unroll 1
    for (int line = 0; line < kLines; line += kPass, from += kPass * between_lines()) {
      uint32_t bits[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        bits[i] = line < lines && i < elements ? from[i * between_elements()] : 0;
      *reinterpret_cast<uint4*>(to + line * kLength * 2) = {
          bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
          bits[6] | bits[7] << 16};
    }
  }

  const MatmulOperand& operand_;
  const uint16_t* data_;
  int64_t depth_left_;
  int outer_left_, offset_;
};

// A warp's part of the tile: sums[i][j] has 16 rows and 8 columns, as ptx::mma says.
template <MatmulTensorConfig C>
struct WarpSums {
  static constexpr int kDown = C.warp_rows / 16, kAcross = C.warp_columns / 8;
  float sums[kDown][kAcross][4] = {};

  // Adds the products of one stage. `row`, `column`: of the part in the tile.
  __device__ __forceinline__ void add(uint32_t a, uint32_t b, int row, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Which line of an 8 x 8 matrix the lane names, and of which two of the four.
    const int line = lane % 8, second = lane / 8 % 2, fourth = lane / 16;
#pragma unroll
    for (int k = 0; k < C.depth; k += 16) {
      uint32_t left[kDown][4], right[kAcross / 2][4];
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const int first = row + 16 * i;
        if constexpr (C.a_across) {
          ptx::ldmatrix_x4_trans(
              a + vector_offset<C.rows>(k + line + 8 * fourth, first / kVector + second), left[i]);
        } else {
          ptx::ldmatrix_x4(
              a + vector_offset<C.depth>(first + line + 8 * second, k / kVector + fourth), left[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < kAcross / 2; ++j) {
        const int first = column + 16 * j;
        if constexpr (C.b_across) {
          ptx::ldmatrix_x4_trans(
              b + vector_offset<C.columns>(k + line + 8 * second, first / kVector + fourth),
              right[j]);
        } else {
          ptx::ldmatrix_x4(
              b + vector_offset<C.depth>(first + line + 8 * fourth, k / kVector + second),
              right[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i)
#pragma unroll
        for (int j = 0; j < kAcross; ++j)
          ptx::mma<C.in>(sums[i][j], left[i], right[j / 2][2 * (j % 2)],
                         right[j / 2][2 * (j % 2) + 1]);
    }
  }

  // Into the sums of the tile. `row`, `column`: of the part in it.
  __device__ __forceinline__ void store(float* tile, int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    tile += (row + lane / 4) * C.sums_pitch() + column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        float* at = tile + 16 * i * C.sums_pitch() + 8 * j;
        const float(&sum)[4] = sums[i][j];
        *reinterpret_cast<float2*>(at) = {sum[0], sum[1]};
        *reinterpret_cast<float2*>(at + 8 * C.sums_pitch()) = {sum[2], sum[3]};
      }
  }
};

// The sums of a tile, in shared memory, to c: a warp writes neighbours of a row.
template <MatmulTensorConfig C>
__device__ __forceinline__ void write_tile(const float* sums, const MatmulLaunch& launch,
                                           const MatmulTile& tile) {
  constexpr int kPairs = C.columns / 2, kPass = C.threads() / kPairs;
  const MatmulOutput<C.in, C.out, float> output(launch, tile.batch);
  const int thread = static_cast<int>(threadIdx.x), column = thread % kPairs * 2;
#pragma unroll 1
  for (int row = thread / kPairs; row < C.rows; row += kPass) {
    const auto sum = *reinterpret_cast<const float2*>(sums + row * C.sums_pitch() + column);
    output.write(tile.row + row, tile.column + column, sum.x, sum.y);
  }
}

template <MatmulTensorConfig C>
__global__ void __launch_bounds__(C.threads(), C.resident())
    matmul_tensor_core(const __grid_constant__ MatmulLaunch launch) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t address = ptx::shared_address(memory);
  ptx::launch_dependents();
  const MatmulTile tile = find_tile(launch, C.rows, C.columns);
  OperandCopy<C, C.a_across, C.rows> a(launch.a, tile.batch, tile.row, launch.rows, launch.depth);
  OperandCopy<C, C.b_across, C.columns> b(launch.b, tile.batch, tile.column, launch.columns,
                                          launch.depth);
  const int64_t steps = ceil_div(launch.depth, C.depth);
  const auto bring = [&](int64_t step, int stage) {
    const int offset = stage * C.stage_bytes();
    if (step < steps) {
      a.next(memory + offset, address + offset);
      b.next(memory + offset + C.a_bytes(), address + offset + C.a_bytes());
    }
    ptx::cp_async_commit();  // a group for every step, so that waiting can count them
  };

  ptx::wait_for_prerequisites();
#pragma unroll
  for (int stage = 0; stage < C.stages - 1; ++stage) bring(stage, stage);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / C.warps_across() * C.warp_rows;
  const int column = warp % C.warps_across() * C.warp_columns;
  WarpSums<C> part;
  int oldest = 0, newest = C.stages - 1;
  for (int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<C.stages - 2>();
    __syncthreads();
    bring(step + C.stages - 1, newest);
    const uint32_t stage = address + oldest * C.stage_bytes();
    part.add(stage, stage + C.a_bytes(), row, column);
    newest = oldest;
    oldest = oldest + 1 == C.stages ? 0 : oldest + 1;
  }
  // All warps are done with the stages, and no copy to them is in flight: sums may overwrite them.
  ptx::cp_async_wait<0>();
  __syncthreads();
  auto* sums = reinterpret_cast<float*>(memory);
  part.store(sums, row, column);
  __syncthreads();
  write_tile<C>(sums, launch, tile);
}

}  // namespace perseid::internal::cuda
