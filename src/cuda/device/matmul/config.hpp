// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of matmul share: the configurations that kernels are compiled for, and
// the arguments of a launch.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "math/activation.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

// Tensor cores. A block makes a tile of c, each of its warps a part of the tile; both operands come
// in steps of `depth` along k, of which `stages` are under way or in use.
struct MatmulTensorConfig {
  DType in;   // of a and b: f16, bf16 or f64
  DType out;  // of c and c0: the same, or f32 of f16 and bf16
  // a and b are f32 that was split into so many planes of f16 (device/split/halves.hpp): 1, or 2
  // for products at float32 accuracy. The sums are multiplied by the factors of rows and columns.
  int planes = 0;
  int rows = 0, columns = 0;
  int warp_rows = 0, warp_columns = 0;
  int stages = 0;
  // How an operand's tile lies in shared memory, as it does in global memory: elements along k side
  // by side, or across it.
  bool a_across = false, b_across = false;
  Activation activation = Activation::kNone;
  bool amax = false;
  bool async = false;  // a or b arrives in chunks, or c leaves in chunks
  int leaves = 1;      // of k, whole steps (tensor_core.hpp): 1, or 2, which are added

  static constexpr const char* kName = "MatmulTensorConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("in", c.in);
    visit("out", c.out);
    visit("planes", c.planes);
    visit("rows", c.rows);
    visit("columns", c.columns);
    visit("warp_rows", c.warp_rows);
    visit("warp_columns", c.warp_columns);
    visit("stages", c.stages);
    visit("a_across", c.a_across);
    visit("b_across", c.b_across);
    visit("activation", c.activation);
    visit("amax", c.amax);
    visit("async", c.async);
    visit("leaves", c.leaves);
  }

  constexpr int element_bytes() const { return static_cast<int>(size_of(in)); }
  constexpr int depth() const { return 128 / element_bytes(); }
  constexpr int warps_across() const { return columns / warp_columns; }
  constexpr int threads() const { return 32 * (rows / warp_rows) * warps_across(); }
  // Blocks that a multiprocessor shall hold: as many as the registers for a warp's part allow.
  constexpr int resident() const {
    const int sums = warp_rows * warp_columns * (in == DType::kF64 ? 2 : 1);
    return max(1, (sums >= 2048 ? 256 : 512) / threads());
  }
  constexpr int a_bytes() const { return 128 * rows; }
  constexpr int stage_bytes() const { return a_bytes() + 128 * columns; }
  // The sums of the tile in the epilogue: rows are shifted by a quarter of the banks.
  constexpr int sums_pitch() const { return columns + 8; }
  constexpr int sum_bytes() const { return max(4, element_bytes()); }
  constexpr int shared_bytes() const {
    return max(stages * stage_bytes() + (leaves > 1 ? tile_bytes() : 0),
               sum_bytes() * rows * sums_pitch());
  }
  constexpr int tile_bytes() const { return sum_bytes() * rows * columns; }  // sums
};

// Multiply-add of f32: 16 x 16 threads, each with `each` rows and columns of the tile.
struct MatmulFmaConfig {
  int each = 0;
  bool fixup = false;  // computes the rows and columns of c whose factor is NaN
  Activation activation = Activation::kNone;
  bool amax = false;

  static constexpr const char* kName = "MatmulFmaConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("each", c.each);
    visit("fixup", c.fixup);
    visit("activation", c.activation);
    visit("amax", c.amax);
  }

  static constexpr int side = 16, threads = side * side;
  static constexpr int depth() { return 16; }  // of a step
  constexpr int tile() const { return side * each; }
};

// An operand. A line is a row of a, or a column of b; strides are in elements.
struct MatmulOperand {
  const void* data = nullptr;
  int64_t batch = 0, line = 0, depth = 0;
  bool vectors = false;  // tensor cores: may be read 16 bytes at a time
};

struct MatmulResult {
  void* data = nullptr;
  int64_t batch = 0, row = 0, column = 0;
  const void* c0 = nullptr;  // where beta is not 0
  int64_t c0_batch = 0, c0_row = 0, c0_column = 0;
  const void* bias = nullptr;  // where there is one
  int64_t bias_row = 0, bias_column = 0;
  bool bias_as_out = false;  // its type is that of c, not that of a and b
  bool pairs = false;        // neighbours in a row may be written together
  double alpha = 1, beta = 0;
  void* amax = nullptr;  // 0 before the launch; of f64 float64, else float32
};

// Factors of the sums, one for each row or column of c. NaN: the kernel that multiplies by factors
// leaves the row or column to one that follows; c is c0 there, or anything if c0 is not read.
struct MatmulFactors {
  const float* data = nullptr;
  int64_t batch = 0;  // strides; a line of 0: one for all
  int32_t line = 1;
};

struct MatmulLaunch {
  MatmulOperand a, b;
  MatmulResult c;
  int64_t rows = 0, columns = 0, depth = 0;
  bool transposed = false;  // a is the caller's b, and b the caller's a
  int64_t tiles_down = 0, tiles_across = 0;
  int64_t tiles = 0;  // of the whole batch
  // Tensor cores: both operands consist of aligned vectors of 16 bytes.
  bool whole_vectors = false;
  // A fixup has factors; without them all of c is computed.
  MatmulFactors row_factors = {}, column_factors = {};
  // Chunks of the rows and columns here; blocks take the tiles of the grid in its order.
  AsyncArguments async = {};
  TileGrid<int32_t> grid = {};
};

}  // namespace perseid::internal::cuda
