// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention on sm_90 share: the configuration that a kernel is
// compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/sm90/attention_arguments.hpp"

namespace perseid::cuda {

// Queries, keys and head dims are cut into tiles; a tile of queries belongs to a block, 64 rows of
// it to each consumer, which is a warpgroup.
struct AttentionForwardConfig {
  DType dtype = DType::kBF16;
  int key_dim = 128;    // of query and key, a multiple of 16
  int value_dim = 128;  // of value and out, a multiple of 16, or 40 or 72
  int consumers = 2;
  int keys = 128;        // of a tile, a multiple of 16
  int stages = 2;        // tiles of key, and of value, that are there or on their way
  int slots = 2;         // tiles of query that are there or on their way
  bool apart = false;    // keys that a row does not see have steps of their own, the others no mask
  bool beside = false;   // a consumer's softmax runs beside its own product too
  bool right = false;    // the last visible key depends on the row, as under a causal mask
  bool left = false;     // the first one does, as under a window
  bool split = false;    // a tile is one part of the keys alone; another kernel
                         // merges the parts
  bool lengths = false;  // each sequence has its own: ragged batches, key lengths
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  int bias_stages = 0;  // tiles of bias that are there or on their way; 0: it is read where it lies

  constexpr int rows() const { return 64 * consumers; }
  // Some keys of a tile are hidden from some rows that others of its keys are not hidden from.
  constexpr bool masked() const { return right || left || visible; }
  constexpr int threads() const { return 128 * (consumers + 1); }
  constexpr int key_chunks() const { return (key_dim + kChunk - 1) / kChunk; }
  constexpr int value_chunks() const { return (value_dim + kChunk - 1) / kChunk; }

  // Whether blocks mend their own results (attention_mend.hpp), which parts of split keys are not.
  constexpr bool mends() const { return masked() && !split; }
  // Whether the keys that are masked are the first of each tile.
  constexpr bool can_part() const { return !left && !split; }
  // Whether the results of a tile leave under the second scores of the next one; else at its end.
  constexpr bool owes() const { return slots > 1 && !apart && consumers < 3; }
  // Whether a head's first tile may begin before its first query: by whole consumers.
  constexpr bool begins_early() const { return right && consumers > 2; }
  // Whether what a tile's second and last steps have to do besides has steps of its own, so that
  // the loop of the others is short.
  constexpr bool peels() const {
    const bool busy = visible || dropout || bias != DType::kNone;  // long in any case
    return slots > 1 && !split && !apart && !busy && (left || consumers > 2);
  }
  // Whether consumers that have no rows in a tile, one of the last of its sequence, leave it out.
  constexpr bool skips() const {
    return consumers > 2 && slots > 1 && !right && !left && bias_stages == 0;
  }
  // Whether consumers pass over keys that none of their rows sees: where a tile has more rows than
  // keys, there are some; under a window, wherever it begins.
  constexpr bool passes() const { return consumers > 1 && (left || (right && rows() > keys)); }

  // Shared memory, in bytes. Results leave through what is left of it, by chunks of 64 columns.
  constexpr int query_bytes() const { return 64 * 128 * key_chunks(); }
  constexpr int key_bytes() const { return keys * 128 * key_chunks(); }
  constexpr int value_bytes() const { return keys * 128 * value_chunks(); }
  // A consumer's tile of bias has rows of 128 bytes, as all others.
  constexpr int bias_size() const { return bias == DType::kF32 ? 4 : 2; }
  constexpr int bias_chunks() const { return (keys * bias_size() + 127) / 128; }
  constexpr int bias_bytes() const { return 64 * 128 * bias_chunks(); }
  constexpr int loaded_bytes() const {
    return slots * consumers * query_bytes() + stages * (key_bytes() + value_bytes()) +
           bias_stages * consumers * bias_bytes();
  }
  constexpr int out_chunks() const {
    const int room = (kMostShared - kOthers - loaded_bytes()) / (rows() * 128);
    return split ? 0 : min(room, value_chunks());
  }
  constexpr int out_bytes() const { return 64 * 128 * out_chunks(); }  // of a consumer
  constexpr int shared_bytes() const { return loaded_bytes() + consumers * out_bytes() + kOthers; }
  constexpr bool fits() const {
    return shared_bytes() <= kMostShared && (split || out_chunks() > 0);
  }
  static constexpr int kOthers = 512;         // barriers and the tiles that they announce
  static constexpr int kMostShared = 232448;  // of a block

  // Registers of a thread: the producer gives back what the consumers take. They share what the
  // block was launched with, 65536 / threads() rounded down to a multiple of 8 each.
  constexpr int producer_registers() const { return consumers == 3 ? 32 : 40; }
  constexpr int consumer_registers() const { return consumers == 3 ? 160 : 232; }
};

inline constexpr int kRowWarps = 4;  // of a block that merges or mends rows

// Blocks of a launch draw their tiles from one counter. It lies in the workspace, which may hold
// anything before: the first block that comes prepares it, by the launch's own number.
struct TileCounter {
  uint64_t ready;  // the launch that it is prepared for
  uint32_t next;
  uint32_t finished;  // blocks
  uint64_t unusual;   // the launch, where a result is not finite
};

// Query heads that share a key head may be packed, 2^pack of them, into the rows of a tile: row r
// is query r >> pack of head r % 2^pack. The maps have dimensions {dim, 2^pack, length, heads >>
// pack, batch}. `heads`, `group`, and the `head` of a tile count packs.
struct AttentionForwardArguments : AttentionArguments {
  TensorMap query, key, value, out;
  float* lse = nullptr;     // null: not wanted
  int64_t lse_stride[3]{};  // batch, head, row
  TileCounter* counter = nullptr;
  // Where blocks mend: of each tile and each warp of consumers, the tile that the warp had noted
  // before; -1: none.
  int32_t* noted_before = nullptr;
  uint64_t launch = 0;
  int32_t pack = 0;
  int32_t batch_heads = 0, q_tiles = 0, tiles = 0;
  int32_t rows_before = 0;        // of a head's first tile, those before its first query
  int32_t heads_per_section = 0;  // whose tiles are done together
  // Where keys are split: parts, tiles of keys in a part, and what each part gives a row (its
  // result in float32, and the logarithm to base 2 of its sum).
  int32_t parts = 1, part_tiles = 0;
  float* part_results = nullptr;  // [part, row, value_dim]; rows are [batch, head, query]
  float* part_sums = nullptr;     // [part, row]
  int64_t rows = 0;
  // Where the copy engine brings the bias: its map, with elements of 16 bits, and whether heads and
  // batch entries have their own.
  TensorMap bias_map;
  int32_t bias_heads = 0, bias_batches = 0;
};

}  // namespace perseid::cuda
