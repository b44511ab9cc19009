// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention backward on sm_80 and up share: the configurations that
// kernels are compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/portable/attention/shared_memory.hpp"
#include "cuda/device/portable/vector_tile.hpp"
#include "math/dtype.hpp"
#include "math/score_modifier.hpp"

namespace perseid::internal::cuda {

// The gradients that a block sums, each complete in one block.
enum class GradientsOf : int32_t {
  kKeys,     // dK and dV of a tile of keys, over blocks of queries; dQ may be added to memory
  kQueries,  // dQ of a tile of queries, over tiles of keys
  kBias,     // dBias of a tile of scores, over units (attention/bias_split.hpp)
};

// A block has some warps, each with 16 or 32 rows of the block's own tile, and iterates over tiles
// of the other side, its columns.
struct PortableBackwardConfig {
  DType dtype = DType::kBF16;
  int key_dim = 128;    // of query and key, a multiple of 16
  int value_dim = 128;  // of value and out, a multiple of 16
  GradientsOf gradients = GradientsOf::kKeys;
  // Blocks of kKeys add dQ to sums in memory, in any order.
  bool adds_queries = false;
  int warps = 4;
  int rows = 16;              // of a warp: 16 or 32
  int columns = 32;           // of a step: 32 or 64
  bool shares_rows = false;   // two warps have the same rows (backward_halves.hpp)
  int rows_in_registers = 0;  // the rows of so many of the two tensors
  int largest = 128;          // dims beyond are cut
  int chunk = 64;             // into chunks of so many numbers, in all tiles
  bool right = false;         // the last visible key depends on the query, as under a causal mask
  bool left = false;          // the first one does, as under a window
  bool lengths = false;       // each sequence has its own: ragged batches, key lengths
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  ScoreModifierKind modifier = ScoreModifierKind::kNone;
  // The gradient is added to what its tensor holds, in float32, and rounded once.
  bool accumulate_query = false, accumulate_key = false, accumulate_value = false,
       accumulate_bias = false;
  bool sharded = false;            // as in PortableForwardConfig
  bool f32_key_gradients = false;  // grad_key and grad_value, of 16-bit types
  // Of kKeys with adds_queries: dS is the gradient of bias as it is, and the block stores it.
  bool stores_bias = false;

  static constexpr const char* kName = "PortableBackwardConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("dtype", c.dtype);
    visit("key_dim", c.key_dim);
    visit("value_dim", c.value_dim);
    visit("gradients", c.gradients);
    visit("adds_queries", c.adds_queries);
    visit("warps", c.warps);
    visit("rows", c.rows);
    visit("columns", c.columns);
    visit("shares_rows", c.shares_rows);
    visit("rows_in_registers", c.rows_in_registers);
    visit("largest", c.largest);
    visit("chunk", c.chunk);
    visit("right", c.right);
    visit("left", c.left);
    visit("lengths", c.lengths);
    visit("visible", c.visible);
    visit("dropout", c.dropout);
    visit("bias", c.bias);
    visit("modifier", c.modifier);
    visit("accumulate_query", c.accumulate_query);
    visit("accumulate_key", c.accumulate_key);
    visit("accumulate_value", c.accumulate_value);
    visit("accumulate_bias", c.accumulate_bias);
    visit("sharded", c.sharded);
    visit("f32_key_gradients", c.f32_key_gradients);
    visit("stores_bias", c.stores_bias);
  }

  // float64 is computed by pairs of warps (backward_pairs.hpp), each with the rows of one.
  constexpr bool pairs() const { return dtype == DType::kF64; }
  constexpr int row_warps() const { return pairs() || shares_rows ? warps / 2 : warps; }
  // A warp computes the scores of so many columns of a step, and sums so many of a gradient.
  constexpr int own_columns() const { return shares_rows ? columns / 2 : columns; }
  constexpr int own_part(int dim) const { return shares_rows ? part(dim) / 2 : part(dim); }
  constexpr int threads() const { return 32 * warps; }
  constexpr int resident() const { return 8 / warps; }  // of a multiprocessor, as registers allow
  static constexpr int queries = 64;  // of a block of lse and delta, and of a tile of dBias
  static constexpr bool unit_strides() { return false; }  // between elements of rows, in fixups
  constexpr int keys() const { return columns; }          // of a tile of dBias
  constexpr int block_rows() const { return rows * row_warps(); }
  // Steps that need no mask are one piece of code, in which exponentials and dS
  // overlap with products.
  constexpr bool overlaps_chain() const {
    return of_keys() && units() == 1 && !shares_rows && !streams() && !visible && !dropout &&
           (bias == DType::kNone || copies_bias()) && modifier == ScoreModifierKind::kNone;
  }
  // Two mbarriers order the warps, not a barrier of the block in each step (step_barriers.hpp).
  constexpr bool unaligned() const { return shares_rows; }
  // Half of the warps add dQ of a step, in turn: each has twice as much of it, and reads less.
  constexpr bool adds_in_turn() const { return shares_rows; }
  constexpr bool of_keys() const { return gradients == GradientsOf::kKeys; }
  constexpr bool of_bias() const { return gradients == GradientsOf::kBias; }
  // dQ of two steps is added in every second one, that of each step by half of the warps: two tiles
  // of 16 queries share what a warp reads of the keys.
  constexpr bool adds_pairs() const {
    return adds_queries && units() == 1 && !shares_rows && !stores_bias && bias == DType::kNone &&
           warps == 4 && columns == 32 && rows == 32 && key_dim == 64;
  }
  // A tile may have columns that some rows see and others do not. (Behind the ends of sequences,
  // tiles hold zeros.)
  constexpr bool masked() const { return right || left || visible; }

  // float32 is multiplied as two planes of f16 (planes.hpp).
  constexpr int planes() const { return dtype == DType::kF32 ? 2 : 1; }
  constexpr DType operand() const { return planes() == 2 ? DType::kF16 : dtype; }
  // units(): an element in shared memory has so many times 16 bits.
  constexpr int units() const { return dtype == DType::kF64 ? kFloat64Units : planes(); }
  constexpr int sum_bytes() const { return dtype == DType::kF64 ? 8 : 4; }
  // Numbers of a row of planes, which consists of whole chunks.
  constexpr int plane_length(int dim) const {
    return (dim + depth(dim) - 1) / depth(dim) * depth(dim);
  }

  // Larger head dims are cut: all tiles into chunks of `depth()`, which every step loads again, and
  // gradients into parts of kLargest columns, each of a block of its own, which computes all scores
  // again. Tiles of dBias are cut as well, since each unit has other rows.
  static constexpr int kLargest = 128;
  constexpr int most_dim() const { return max(key_dim, value_dim); }
  constexpr bool streams() const { return of_bias() || most_dim() > largest; }
  constexpr int depth(int dim) const { return streams() ? chunk : dim; }
  constexpr int part(int dim) const { return min(dim, kLargest); }
  constexpr int parts() const { return of_bias() ? 1 : (most_dim() + kLargest - 1) / kLargest; }

  // Shared memory, in bytes: the block's rows, and stages of columns, each of two tensors and of
  // the bias of the rows; of each stage lse and delta, if columns are queries; of cut dims also the
  // columns of the part. Results overwrite the tiles.
  constexpr int stages() const { return streams() ? 1 : 2; }
  constexpr int row_bytes(int dim) const {
    return 2 * block_rows() * line_length(units() * depth(dim));
  }
  constexpr int column_bytes(int dim) const {
    return 2 * columns * line_length(units() * depth(dim));
  }
  // Parts of planes consist of whole chunks.
  constexpr int part_length(int dim) const {
    return planes() == 1 ? part(dim) : min(plane_length(dim), kLargest);
  }
  constexpr int part_bytes(int dim) const {
    return streams() && !of_bias() ? 2 * columns * line_length(units() * part_length(dim)) : 0;
  }
  constexpr int step_queries() const { return of_keys() ? columns : block_rows(); }
  constexpr int step_keys() const { return of_keys() ? block_rows() : columns; }
  constexpr int bias_bytes() const { return bias_tile_bytes(bias, step_queries(), step_keys()); }
  // Bias comes with the columns, if there is room for it in blocks that every GPU has; else threads
  // read its elements.
  constexpr bool copies_bias() const {
    return bias != DType::kNone && units() == 1 && (!streams() || of_bias()) &&
           (warps > 4 || columns_offset() + stages() * (both_bytes() + bias_bytes()) +
                                 2 * ds_bytes() + kMostOthers <=
                             kLeastShared);
  }
  static constexpr int kMostOthers = 1024;  // of what follows the tiles
  constexpr int both_bytes() const { return column_bytes(key_dim) + column_bytes(value_dim); }
  constexpr int stage_bytes() const {
    return max(both_bytes() + (copies_bias() ? bias_bytes() : 0), planes() == 2 ? ds_bytes() : 0);
  }
  constexpr int columns_offset() const { return row_bytes(key_dim) + row_bytes(value_dim); }
  constexpr int parts_offset() const { return columns_offset() + stages() * stage_bytes(); }
  // dS of two steps, or four, as keys x queries; of planes in place of the step's columns.
  constexpr int ds_offset() const {
    return parts_offset() + part_bytes(key_dim) + part_bytes(value_dim);
  }
  constexpr int ds_bytes() const {
    return adds_queries ? 2 * units() * block_rows() * columns + block_rows() / 8 * ds_gap() : 0;
  }
  constexpr int ds_gap() const { return stores_bias ? columns / 2 : 0; }  // behind eight keys
  constexpr int ds_buffers() const { return planes() == 2 ? 0 : adds_pairs() ? 4 : 2; }
  // Scores that pairs of warps exchange, or weights in 16 bits.
  constexpr int exchange_offset() const { return ds_offset() + ds_buffers() * ds_bytes(); }
  constexpr int exchange_bytes() const {
    return (pairs() ? 8 : shares_rows ? 2 : 0) * block_rows() * columns;
  }
  constexpr int result_bytes() const {
    return of_bias()      ? sum_bytes() * queries * (keys() + 1)
           : units() != 1 ? 0
                          : 2 * warps * rows * line_length(part(most_dim()));
  }
  constexpr int tile_bytes() const {
    return max(exchange_offset() + exchange_bytes(), result_bytes());
  }
  constexpr int statistics_bytes() const {
    return of_keys() ? stages() * 2 * columns * sum_bytes() : 0;
  }
  // The numbers of the planes' rows, then those of stages of columns.
  constexpr int numbers_offset() const { return tile_bytes() + statistics_bytes(); }
  constexpr int column_numbers_offset() const {
    return numbers_offset() + (planes() == 2 ? block_rows() * 8 : 0);
  }
  // What rows see, of each warp; the block's rows; a word of split sums.
  constexpr int seen_offset() const {
    return column_numbers_offset() + (planes() == 2 ? stages() * columns * 8 : 0);
  }
  constexpr int others_offset() const { return seen_offset() + 16 * warps; }
  constexpr int flag_offset() const { return others_offset() + 112; }
  // The powers of two by which each warp's dS of a query was multiplied, where dS is planes.
  constexpr int units_offset() const { return flag_offset() + 16; }
  constexpr int units_bytes() const {
    return adds_queries && planes() == 2 ? 4 * warps * columns : 0;
  }
  constexpr int barriers_offset() const { return units_offset() + units_bytes(); }
  constexpr int shared_bytes() const { return barriers_offset() + (unaligned() ? 16 : 0); }
};

// Threads of a block of portable_attention_backward_prepare and portable_attention_backward_finish.
inline constexpr int kPrepareThreads = 256;

// Real: of sums.
template <class Real>
struct PortableBackwardArgumentsOf : AttentionGradientsOf<Real>, BiasTiles {
  int32_t batch_heads = 0;  // of the whole batch in memory, those of the block's own side
  int32_t tiles = 0;        // of each of them; ragged: padded positions of tiles
  int32_t heads_per_section = 0;
  // If C.adds_queries: dQ / scale, [block of queries][16 queries][8 elements of key_dim][lane][4],
  // as ptx/mma.hpp has them; of float64 [4][lane].
  Real* sums = nullptr;
  bool vectors = false;       // tensors are accessed 16 bytes at a time; else element by element
  bool bias_vectors = false;  // the same of grad_bias
  // float32 alone: planes, and the numbers of query with grad_out, and of key with value.
  RowsInMemory query_planes, key_planes, value_planes, grad_out_planes;
  const RowNumbers* query_numbers = nullptr;  // [entry, head, row]
  const RowNumbers* key_numbers = nullptr;
};
using PortableBackwardArguments = PortableBackwardArgumentsOf<float>;

}  // namespace perseid::internal::cuda
