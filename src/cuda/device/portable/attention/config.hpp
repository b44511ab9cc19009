// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention on sm_80 and up share: the configurations that kernels are
// compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/portable/attention/shared_memory.hpp"
#include "cuda/device/portable/vector_tile.hpp"
#include "math/dtype.hpp"
#include "math/score_modifier.hpp"

namespace perseid::internal::cuda {

struct PortableForwardArguments;

// A block has 4 warps, each with 16 or 32 rows of queries, and iterates over tiles of keys.
struct PortableForwardConfig {
  DType dtype = DType::kBF16;
  int key_dim = 128;    // of query and key, a multiple of 16
  int value_dim = 128;  // of value and out, a multiple of 16
  int rows = 32;        // of a warp: 16 or 32
  int keys = 64;        // of a KV tile, a multiple of 16; with dropout of 32
  bool query_in_registers = false;
  // query, key, value and out are accessed 16 bytes at a time; else element by element.
  bool vectors = true;
  bool scale_first = false;  // the scale is not positive: scores are scaled before the softmax
  bool right = false;        // the last visible key depends on the row, as under a causal mask
  bool left = false;         // the first one does, as under a window
  bool lengths = false;      // each sequence has its own: ragged batches, key lengths
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  ScoreModifierKind modifier = ScoreModifierKind::kNone;
  bool split = false;  // a block has a split of the keys
  // Queries are rows of longer sequences: dropout counts by those, or bias and visible do.
  bool sharded = false;
  bool packs = false;  // query heads that share a key head are packed into the rows of a block

  using Arguments = PortableForwardArguments;
  static constexpr const char* kName = "PortableForwardConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("dtype", c.dtype);
    visit("key_dim", c.key_dim);
    visit("value_dim", c.value_dim);
    visit("rows", c.rows);
    visit("keys", c.keys);
    visit("query_in_registers", c.query_in_registers);
    visit("vectors", c.vectors);
    visit("scale_first", c.scale_first);
    visit("right", c.right);
    visit("left", c.left);
    visit("lengths", c.lengths);
    visit("visible", c.visible);
    visit("dropout", c.dropout);
    visit("bias", c.bias);
    visit("modifier", c.modifier);
    visit("split", c.split);
    visit("sharded", c.sharded);
    visit("packs", c.packs);
  }

  static constexpr int warps = 4, threads = 32 * warps;
  static constexpr int resident = 2;  // blocks of a multiprocessor, as registers allow
  // sm_90 has these in addition; what it shares with these kernels asks for them.
  static constexpr int bias_stages = 0;
  static constexpr bool consumers_know_tiles() { return false; }
  // The first row of a tile need not begin one of dropout.
  constexpr bool any_first_row() const { return sharded; }
  static constexpr bool unit_strides() { return false; }  // between elements of rows, in fixups
  constexpr int block_rows() const { return rows * warps; }
  // A KV tile may have keys that some rows see and others do not.
  constexpr bool masked() const { return right || left || visible; }
  // Whether a kernel follows that of splits which computes rows once more.
  constexpr bool fixes_splits() const { return split && (masked() || planes() == 2); }

  // float32 is multiplied as two planes of f16 (planes.hpp).
  constexpr int planes() const { return dtype == DType::kF32 ? 2 : 1; }
  constexpr DType operand() const { return planes() == 2 ? DType::kF16 : dtype; }
  // Numbers of a row of planes, which consists of whole chunks.
  constexpr int key_length() const { return (key_dim + depth() - 1) / depth() * depth(); }
  constexpr int value_length() const { return parts() * columns(); }

  // Head dims beyond largest() are cut: query and key into chunks of `depth()`, which every tile of
  // keys loads again, value and out into parts of `columns()`, each of a block of its own, which
  // computes all scores again.
  constexpr int largest() const { return 256 / planes(); }
  constexpr bool streams() const { return key_dim > largest(); }
  constexpr int depth() const { return streams() ? 64 : key_dim; }
  // Of planes: exponentials overlap with products, whose sums of all columns take 64 registers.
  // With more columns that was slower; with fewer, exponentials take longer than the products.
  constexpr bool overlaps_exponentials() const {
    return planes() == 2 && rows == 32 && columns() == 64 && !dropout;
  }
  // The next keys and values are copied behind the scores instead of before: the products begin
  // sooner. With planes of dims up to 64 that was slower where exponentials do not overlap.
  constexpr bool copies_late() const {
    return !streams() && (planes() == 1 || max(key_dim, columns()) > 64 || overlaps_exponentials());
  }
  constexpr int columns() const { return value_dim > largest() ? 128 : value_dim; }
  constexpr int parts() const { return (value_dim + columns() - 1) / columns(); }

  // Results go from registers to memory, without a stage in shared memory and a barrier before it.
  constexpr bool stores_registers() const {
    return vectors && planes() == 1 && !packs && columns() % 32 == 0 && columns() <= 64;
  }

  // Shared memory, in bytes: a tile of queries, and two stages of keys, of values, of bias
  // and, of planes, of the numbers of keys. Results of 16 bits overwrite all of it.
  constexpr int query_bytes() const { return 2 * block_rows() * line_length(planes() * depth()); }
  constexpr int key_bytes() const { return 2 * keys * line_length(planes() * depth()); }
  constexpr int value_bytes() const { return 2 * keys * line_length(planes() * columns()); }
  constexpr int number_bytes() const { return planes() == 2 ? keys * 8 : 0; }
  constexpr int out_bytes() const {
    return planes() == 2 ? 0 : 2 * block_rows() * line_length(columns());
  }
  constexpr int bias_offset() const {
    return query_bytes() + 2 * (key_bytes() + value_bytes() + number_bytes());
  }
  constexpr int bias_bytes() const { return bias_tile_bytes(bias, block_rows(), keys); }
  // Bias comes with keys and values, if there is room for it; else threads read its elements.
  constexpr bool copies_bias() const {
    return bias != DType::kNone && bias_offset() + 2 * bias_bytes() + kOthers <= kLeastShared;
  }
  // Products are added to bias that is divided by the scale, which the exponential multiplies by.
  constexpr bool begins_with_bias() const {
    return copies_bias() && planes() == 1 && !scale_first && modifier == ScoreModifierKind::kNone;
  }
  constexpr int tile_bytes() const {
    return max(bias_offset() + (copies_bias() ? 2 * bias_bytes() : 0), out_bytes());
  }
  static constexpr int kOthers = 512;  // descriptions of the warps' rows
  constexpr int shared_bytes() const { return tile_bytes() + kOthers; }
};

struct PortableForwardArguments : AttentionArguments, QueryRaster, KeySplits {
  // If C.packs: 2^pack_gqa query heads. `heads`, `group` and `batch_heads` count packs.
  int32_t pack_gqa = 0;
  float* lse = nullptr;     // null: not wanted
  int64_t lse_stride[3]{};  // batch, head, row
  float modifier = 0;       // the value of the score modifier
  // If C.split, and C.masked() or planes: the launch, if a split has a result that is not finite.
  uint64_t launch = 0;
  uint64_t* nonfinite = nullptr;
  // float32 alone: the planes of query, key and value, and the numbers of query rows, and of keys
  // with their values.
  RowsInMemory query_planes, key_planes, value_planes;
  const RowNumbers* query_numbers = nullptr;  // [entry, head, row]
  const RowNumbers* key_numbers = nullptr;
  bool out_pairs = false;  // two elements of out are one aligned access
};

}  // namespace perseid::internal::cuda
