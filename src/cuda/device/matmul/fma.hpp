// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// c = alpha a b + beta c0 + bias of f32 by multiply-add: tensor cores would round the operands to
// 11 bits.
//
// A block of 16 x 16 threads makes a square tile of c. Tiles of a and b come in steps of 64 bytes
// along k: while the products of one step run, the elements of the next are on their way to
// registers; then they go to the other of two stages in shared memory, and one barrier shows them
// to all.
//
//     shared memory: [k][line]          a thread's sums: groups of four rows
//     +----------------------+          and columns, 64 apart
//     | k = 0: lines 0 1 ..  |               +--+ +--+
//     | k = 1:               |               |  | |  |
//     | ..                   |               +--+ +--+
//     +----------------------+
//
// A fixup computes the rows and columns of c that a kernel over split operands (split/halves.hpp)
// has left: tiles without any end at once.
//
// Any strides: the threads of a warp take neighbours along whichever dimension of an operand has
// the smaller stride. Sums are float32, in the order of k.
#pragma once

#include "cuda/device/matmul/output.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

// Lines are padded, so that threads that store neighbours along k meet different banks.
template <MatmulFmaConfig C>
struct FmaTile {
  alignas(16) float at[C.depth()][C.tile() + 4];
};

template <MatmulFmaConfig C>
struct FmaShared {
  FmaTile<C> a[2], b[2];
};

// What a thread loads of an operand: kEach elements, at even distances along one dimension.
template <MatmulFmaConfig C>
class FmaCopy {
  static constexpr int kEach = C.tile() * C.depth() / C.threads;

 public:
  // From line `first` of `lines`, and from k = 0 of `depth`, on.
  __device__ __forceinline__ FmaCopy(const MatmulOperand& operand, int64_t batch, int64_t first,
                                     int64_t lines, int64_t depth) {
    const int thread = static_cast<int>(threadIdx.x);
    const auto size = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    const bool along = size(operand.depth) < size(operand.line);
    line_ = along ? thread / C.depth() : thread % C.tile();
    depth_ = along ? thread % C.depth() : thread / C.tile();
    next_line_ = along ? C.threads / C.depth() : 0;
    next_depth_ = along ? 0 : C.threads / C.tile();
    data_ = static_cast<const float*>(operand.data) + batch * operand.batch +
            (first + line_) * operand.line + depth_ * operand.depth;
    next_ = next_line_ * operand.line + next_depth_ * operand.depth;
    step_ = C.depth() * operand.depth;
    lines_left_ = static_cast<int>(min<int64_t>(lines - first, C.tile()));
    depth_left_ = depth;
  }

  __device__ __forceinline__ void load() {
    const int depth = static_cast<int>(clamp<int64_t>(depth_left_, 0, C.depth()));
    const float* from = data_;
#pragma unroll
    for (int i = 0; i < kEach; ++i, from += next_) {
      const bool inside = line_ + i * next_line_ < lines_left_ && depth_ + i * next_depth_ < depth;
      held_[i] = inside ? *from : 0;
    }
    data_ += step_;
    depth_left_ -= C.depth();
  }
  __device__ __forceinline__ void store(FmaTile<C>& tile) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      tile.at[depth_ + i * next_depth_][line_ + i * next_line_] = held_[i];
  }

 private:
  const float* data_;
  int64_t next_, step_, depth_left_;
  int line_, depth_, next_line_, next_depth_, lines_left_;
  float held_[kEach];
};

// Rows and columns i of a thread's sums in its tile: four together, then four of the next 64.
template <MatmulFmaConfig C>
struct FmaLines {
  int first_row = static_cast<int>(threadIdx.x) / C.side * 4;
  int first_column = static_cast<int>(threadIdx.x) % C.side * 4;

  __device__ __forceinline__ int row(int i) const { return first_row + i / 4 * 64 + i % 4; }
  __device__ __forceinline__ int column(int i) const { return first_column + i / 4 * 64 + i % 4; }
};

// sums += a b, of a tile.
template <MatmulFmaConfig C>
__device__ __forceinline__ void multiply_tile(const MatmulLaunch& launch, const MatmulTile& tile,
                                              FmaShared<C>& shared, float (&sums)[C.each][C.each]) {
  FmaCopy<C> a(launch.a, tile.batch, tile.row, launch.rows, launch.depth);
  FmaCopy<C> b(launch.b, tile.batch, tile.column, launch.columns, launch.depth);
  const FmaLines<C> lines;
  const int64_t steps = ceil_div(launch.depth, C.depth());
  a.load();
  b.load();
  for (int64_t step = 0; step < steps; ++step) {
    FmaTile<C>&left = shared.a[step % 2], &right = shared.b[step % 2];
    a.store(left);
    b.store(right);
    // The others are at most one step behind, in the other stage.
    __syncthreads();
    a.load();
    b.load();
#pragma unroll
    for (int k = 0; k < C.depth(); ++k) {
      float of_a[C.each], of_b[C.each];
#pragma unroll
      for (int i = 0; i < C.each; ++i) {
        of_a[i] = left.at[k][lines.row(i)];
        of_b[i] = right.at[k][lines.column(i)];
      }
#pragma unroll
      for (int i = 0; i < C.each; ++i)
#pragma unroll
        for (int j = 0; j < C.each; ++j) sums[i][j] = fma(of_a[i], of_b[j], sums[i][j]);
    }
  }
}

// The rows and columns of c that a fixup computes, of one entry of the batch.
class FixupLines {
 public:
  __device__ __forceinline__ FixupLines(const MatmulLaunch& launch, int64_t batch)
      : launch_(launch),
        rows_(launch.row_factors.data + batch * launch.row_factors.batch),
        columns_(launch.column_factors.data + batch * launch.column_factors.batch) {}

  __device__ __forceinline__ bool row(int64_t i) const {
    return launch_.row_factors.data == nullptr || (i < launch_.rows && isnan(rows_[i]));
  }
  __device__ __forceinline__ bool column(int64_t i) const {
    return launch_.column_factors.data == nullptr || (i < launch_.columns && isnan(columns_[i]));
  }
  // Whether there are any, of `size` rows and columns from a tile's first on; by all threads of the
  // block.
  __device__ __forceinline__ bool any(const MatmulTile& from, int64_t size) const {
    const bool found =
        any_of(launch_.row_factors.data, rows_, from.row, min(from.row + size, launch_.rows)) ||
        any_of(launch_.column_factors.data, columns_, from.column,
               min(from.column + size, launch_.columns));
    return __syncthreads_or(found) != 0;
  }

 private:
  // Without branches, so that many loads are under way.
  static __device__ __forceinline__ bool any_of(const float* given, const float* factors,
                                                int64_t begin, int64_t end) {
    if (given == nullptr) return true;
    bool found = false;
#pragma unroll 16
    for (int64_t i = begin + threadIdx.x; i < end; i += MatmulFmaConfig::threads)
      found |= isnan(factors[i]);
    return found;
  }

  const MatmulLaunch& launch_;
  const float *rows_, *columns_;
};

// The tiles of a block, of which most have nothing to compute, and most entries of the batch
// neither.
template <MatmulFmaConfig C>
__device__ __forceinline__ void fixup_tiles(const MatmulLaunch& launch, FmaShared<C>& shared) {
  const int64_t of_entry = launch.tiles_down * launch.tiles_across, blocks = gridDim.x;
  int64_t seen = -1;  // the entry that was looked at
  for (int64_t number = blockIdx.x; number < launch.tiles; number += blocks) {
    const MatmulTile tile = find_tile(launch, number, C.tile(), C.tile());
    const FixupLines fixup(launch, tile.batch);
    if (tile.batch != seen) {
      seen = tile.batch;
      if (!fixup.any({seen, 0, 0}, max(launch.rows, launch.columns))) {
        // On to the block's last tile of the entry.
        number += ((seen + 1) * of_entry - 1 - number) / blocks * blocks;
        continue;
      }
    }
    if (!fixup.any(tile, C.tile())) continue;
    float sums[C.each][C.each] = {};
    multiply_tile<C>(launch, tile, shared, sums);
    const FmaLines<C> lines;
    MatmulOutput<DType::kF32, DType::kF32, C.activation, C.amax> output(launch, tile.batch);
#pragma unroll
    for (int i = 0; i < C.each; ++i)
#pragma unroll
      for (int j = 0; j < C.each; ++j) {
        const int64_t row = tile.row + lines.row(i), column = tile.column + lines.column(j);
        if (fixup.row(row) || fixup.column(column)) output.write(row, column, sums[i][j]);
      }
    output.finish();
  }
}

template <MatmulFmaConfig C>
__global__ void __launch_bounds__(C.threads)
    matmul_fma(const __grid_constant__ MatmulLaunch launch) {
  __shared__ FmaShared<C> shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if constexpr (C.fixup) {
    fixup_tiles<C>(launch, shared);
  } else {
    const MatmulTile tile = find_tile(launch, blockIdx.x, C.tile(), C.tile());
    float sums[C.each][C.each] = {};
    multiply_tile<C>(launch, tile, shared, sums);
    const FmaLines<C> lines;
    MatmulOutput<DType::kF32, DType::kF32, C.activation, C.amax> output(launch, tile.batch);
#pragma unroll
    for (int i = 0; i < C.each; ++i)
#pragma unroll
      for (int j = 0; j < C.each; j += 2)
        output.write(tile.row + lines.row(i), tile.column + lines.column(j), sums[i][j],
                     sums[i][j + 1]);
    output.finish();
  }
}

}  // namespace perseid::internal::cuda
