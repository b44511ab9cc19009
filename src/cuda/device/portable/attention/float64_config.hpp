// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention forward in float64 on sm_80 and up share: the
// configurations that kernels are compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/portable/vector_tile.hpp"
#include "math/dtype.hpp"
#include "math/score_modifier.hpp"

namespace perseid::internal::cuda {

struct Float64Arguments : AttentionArguments, QueryRaster, KeySplitsOf<double> {
  static constexpr int32_t pack_gqa = 0;  // every row of a tile is of one head
  double* lse = nullptr;                  // null: not wanted
  int64_t lse_stride[3]{};                // batch, head, row
  double modifier = 0;                    // the value of the score modifier
  // If C.split and C.masked(): the launch, if a split has a result that is not finite.
  uint64_t launch = 0;
  uint64_t* nonfinite = nullptr;
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
  bool split = false;    // a block has a split of the keys
  bool sharded = false;  // as in PortableForwardConfig

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
    visit("split", c.split);
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
  // Whether a kernel follows that of splits which computes rows once more.
  constexpr bool fixes_splits() const { return split && masked(); }

  // Larger dims are cut: query and key into chunks of `depth()`, which every tile of keys loads
  // again, value and out into parts of `columns()`, each of a block of its own, which computes all
  // scores again.
  constexpr bool streams() const { return key_dim > 256; }
  constexpr int depth() const { return streams() ? 128 : key_dim; }
  constexpr int columns() const { return min(value_dim, 128); }
  constexpr int parts() const { return (value_dim + columns() - 1) / columns(); }
  constexpr bool query_in_registers() const { return key_dim <= 64; }

  // Shared memory, in bytes: two stages of keys and of values.
  constexpr int key_bytes() const { return 2 * keys * line_length(kFloat64Units * depth()); }
  constexpr int value_bytes() const { return 2 * keys * line_length(kFloat64Units * columns()); }
  constexpr int tile_bytes() const { return 2 * (key_bytes() + value_bytes()); }
  static constexpr int kOthers = 512;  // descriptions of the warps' rows
  constexpr int shared_bytes() const { return tile_bytes() + kOthers; }
};

}  // namespace perseid::internal::cuda
