// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of float64 attention on sm_80 and up share: the configurations that
// kernels are compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/portable/attention/backward_config.hpp"
#include "cuda/device/portable/vector_tile.hpp"
#include "math/dtype.hpp"
#include "math/score_modifier.hpp"

namespace perseid::internal::cuda {

struct Float64Arguments : AttentionGradientsOf<double>, BiasTiles {
  static constexpr int32_t pack_gqa = 0;  // every row of a tile is of one head
  int32_t batch_heads = 0;                // of the whole batch in memory, those of a block's rows
  int32_t heads_per_section = 0;
  // Forward.
  double* lse = nullptr;    // null: not wanted
  int64_t lse_stride[3]{};  // batch, head, row
  int32_t q_tiles = 0;      // of a head; ragged: padded positions of all sequences
  // Backward.
  RowsInMemory lse_rows, grad_lse;  // rows of one element; grad_lse may be null
  int32_t tiles = 0;                // as q_tiles, of the rows whose gradients a launch computes
};

// A block has 4 warps, each with 16 rows of queries, and iterates over tiles of keys.
struct Float64ForwardConfig {
  int key_dim = 64;    // of query and key, a multiple of 16
  int value_dim = 64;  // of value and out, a multiple of 16
  int keys = 16;       // of a KV tile, a multiple of 16
  // query, key, value and out are accessed 16 bytes at a time; else element by element.
  bool vectors = true;
  bool right = false;    // the last visible key depends on the row, as under a causal mask
  bool left = false;     // the first one does, as under a window
  bool lengths = false;  // each sequence has its own: ragged batches, key lengths
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  ScoreModifierKind modifier = ScoreModifierKind::kNone;
  bool sharded = false;  // dropout counts queries from those of other ranks before them

  using Arguments = Float64Arguments;
  static constexpr const char* kName = "Float64ForwardConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("key_dim", c.key_dim);
    visit("value_dim", c.value_dim);
    visit("keys", c.keys);
    visit("vectors", c.vectors);
    visit("right", c.right);
    visit("left", c.left);
    visit("lengths", c.lengths);
    visit("visible", c.visible);
    visit("dropout", c.dropout);
    visit("bias", c.bias);
    visit("modifier", c.modifier);
    visit("sharded", c.sharded);
  }

  static constexpr DType dtype = DType::kF64;
  static constexpr int warps = 4, threads = 32 * warps;
  static constexpr int rows = 16;                         // of a warp
  static constexpr bool unit_strides() { return false; }  // between elements of rows, in fixups
  static constexpr int block_rows() { return rows * warps; }
  static constexpr int resident = 2;  // blocks of a multiprocessor, as registers allow
  // A KV tile may have keys that some rows see and others do not.
  constexpr bool masked() const { return right || left || visible; }

  // Larger dims are cut: query and key into chunks of `depth()`, which every tile of keys loads
  // again, value and out into parts of `columns()`, each of a block of its own, which computes all
  // scores again.
  constexpr bool streams() const { return key_dim > 256; }
  constexpr int depth() const { return streams() ? 128 : key_dim; }
  constexpr int columns() const { return min(value_dim, 128); }
  constexpr int parts() const { return (value_dim + columns() - 1) / columns(); }
  constexpr bool query_in_registers() const { return key_dim <= 64; }

  // Shared memory, in bytes: two stages of keys and of values.
  static constexpr int kUnits = 4;  // of vector_tile.hpp, of an element
  constexpr int key_bytes() const { return 2 * keys * line_length(kUnits * depth()); }
  constexpr int value_bytes() const { return 2 * keys * line_length(kUnits * columns()); }
  constexpr int tile_bytes() const { return 2 * (key_bytes() + value_bytes()); }
  static constexpr int kOthers = 512;  // descriptions of the warps' rows
  constexpr int shared_bytes() const { return tile_bytes() + kOthers; }
};

// A block has some rows of queries or keys, or a tile of the gradient of bias.
struct Float64BackwardConfig {
  int key_dim = 64;    // of query and key, a multiple of 16
  int value_dim = 64;  // of value and out, a multiple of 16
  GradientsOf gradients = GradientsOf::kKeys;
  bool right = false;    // as in Float64ForwardConfig
  bool left = false;     // the same
  bool lengths = false;  // the same
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  ScoreModifierKind modifier = ScoreModifierKind::kNone;
  // The gradient is added to what its tensor holds, and rounded once.
  bool accumulate_query = false, accumulate_key = false, accumulate_value = false,
       accumulate_bias = false;
  bool sharded = false;  // as in Float64ForwardConfig

  static constexpr const char* kName = "Float64BackwardConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("key_dim", c.key_dim);
    visit("value_dim", c.value_dim);
    visit("gradients", c.gradients);
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
  }

  static constexpr DType dtype = DType::kF64;
  static constexpr int warps = 4, threads = 32 * warps;
  static constexpr bool unit_strides() { return false; }
  static constexpr bool f32_key_gradients = false;
  static constexpr int columns = 1;           // rows of the other side, of a step
  static constexpr int queries = 16;          // of a block of lse and delta, and of a tile of bias
  static constexpr int keys() { return 16; }  // of a tile of bias
  static constexpr int block_rows() { return 16; }
  constexpr bool of_keys() const { return gradients == GradientsOf::kKeys; }
  constexpr bool of_bias() const { return gradients == GradientsOf::kBias; }
  // Shared memory, in bytes: sums of a tile of bias, and a word of its splits.
  static constexpr int flag_offset() { return 8 * queries * (keys() + 1); }
  constexpr int shared_bytes() const { return of_bias() ? flag_offset() + 16 : 0; }
};

}  // namespace perseid::internal::cuda
