// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of matmul on sm_90 share: the configurations that kernels are compiled
// for, and the arguments of a launch.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "cuda/device/matmul/config.hpp"
#include "cuda/device/tensor_map.hpp"
#include "math/leaf_tree.hpp"
#include "math/rank_parts.hpp"
#include "math/split_k.hpp"

namespace perseid::internal::cuda {

// A block computes tiles of 64 rows for each consumer warpgroup, in steps of 128 bytes along k.
struct Sm90MatmulConfig {
  DType in = DType::kBF16;   // of a, and of b but for in_b: f16, bf16 or of 8 bits
  DType out = DType::kBF16;  // of c and c0: the same, or f32; of 8 bits also f16 and bf16
  int consumers = 2;         // warpgroups, 1 or 2
  int columns = 256;         // of a tile: 64, 128, 192 or 256
  int cluster = 1;           // blocks, each with other rows, that load the same tiles of b together
  // Which dimension of an operand is contiguous in memory: m of a and n of b, or k.
  bool a_m_major = false, b_n_major = false;
  bool source = false;  // c0 is read
  bool async = false;   // a or b arrives in chunks, or c leaves in chunks
  // 2: a and b are K-major planes of f16 (split/halves.hpp), of which a step multiplies three
  // pairs.
  int planes = 1;
  // Steps whose products the tensor cores sum from zero before registers add them to the sums in
  // float32; 0: the tensor cores sum all steps.
  int promote = 0;
  bool scaled = false;        // a factor for each row and column of c
  bool blocks = false;        // scales of 1 x 128 elements of a and 128 x 128 of b; promote is 1
  int out_stages = 2;         // of each consumer, through which results leave
  DType in_b = DType::kNone;  // of b, where it is not that of a
  Activation activation = Activation::kNone;
  bool amax = false;
  // Of a product over ranks (rank_shards.hpp): how many others there are, 4 for any number of them;
  // 7 in canonical order alone.
  int parts = 0;
  // Tiles of a product over ranks leave, or are summed, under the next tile's mainloop
  // (shard_epilogue.hpp); at most three other ranks; in canonical order by
  // deferred_leaf_consumer.hpp.
  bool deferred_parts = false;
  bool split_k = false;  // a launch may have split tiles
  // Of k, summed in pairs (leaf_consumer.hpp, of f32 promoted_leaf_consumer.hpp): 1, 2, 4 or 8.
  int leaves = 1;
  // The most rows that a has, where these are few: 8, 16 or 32. No others are loaded, so that more
  // of b is. For the others wgmma reads what follows in shared memory; no result depends on it.
  int few_rows = 0;

  static constexpr const char* kName = "Sm90MatmulConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("in", c.in);
    visit("out", c.out);
    visit("consumers", c.consumers);
    visit("columns", c.columns);
    visit("cluster", c.cluster);
    visit("a_m_major", c.a_m_major);
    visit("b_n_major", c.b_n_major);
    visit("source", c.source);
    visit("async", c.async);
    visit("planes", c.planes);
    visit("promote", c.promote);
    visit("scaled", c.scaled);
    visit("blocks", c.blocks);
    visit("out_stages", c.out_stages);
    visit("in_b", c.in_b);
    visit("activation", c.activation);
    visit("amax", c.amax);
    visit("parts", c.parts);
    visit("deferred_parts", c.deferred_parts);
    visit("split_k", c.split_k);
    visit("leaves", c.leaves);
    visit("few_rows", c.few_rows);
  }

  // A step is kProducts times 32 bytes, what one wgmma multiplies.
  static constexpr int kProducts = 4;
  constexpr DType type_of_b() const { return in_b == DType::kNone ? in : in_b; }
  constexpr int depth() const { return static_cast<int>(128 / size_of(in)); }  // of a step
  // Leaves of f32: entries of a batch of planes, with factors of their own.
  constexpr bool has_leaf_planes() const { return leaves > 1 && promote > 0; }
  // In canonical order ranks hold leaves, and 8 ranks one each.
  constexpr bool adds_parts_in_pairs() const { return leaves > 1 || parts == 7; }
  constexpr int rows() const { return 64 * consumers; }
  constexpr int group() const { return max(promote, 1); }  // steps that are not split
  constexpr int threads() const { return 128 * (1 + consumers); }

  // The epilogue stores a consumer's 64 rows in chunks of 128 bytes a row, or of 64.
  constexpr int out_row_bytes() const { return deferred_parts ? 4 * sum_columns() : 128; }
  constexpr int out_stage_bytes() const { return 64 * out_row_bytes(); }
  constexpr int out_columns() const { return static_cast<int>(out_row_bytes() / size_of(out)); }
  constexpr int out_chunks() const { return columns / out_columns(); }
  // Registers hold the accumulators of a tile, rounded to 16 bits, and those of the next: the
  // epilogue runs under the next tile's mainloop.
  constexpr bool deferred_epilogue() const {
    return size_of(out) == 2 && !source && promote == 0 && leaves == 1 && !deferred_parts;
  }
  // With deferred_parts, the sums of a tile in f32, in chunks of as many bytes.
  constexpr bool is_wide() const { return deferred_parts && columns > 192; }
  constexpr int sum_columns() const { return is_wide() ? 16 : 32; }
  constexpr int sum_chunks() const { return columns / sum_columns(); }

  // Of a tile's results, or sums, those that wait in registers. All of 192 columns in f32 fit
  // there, or half of 256; of results in f32 three eighths. Without chunks these do not wait.
  constexpr int deferred_chunks() const {
    if (deferred_epilogue()) return out_chunks();
    if (deferred_parts) return is_wide() ? sum_chunks() / 2 : sum_chunks();
    return async && size_of(out) == 4 && !source && promote == 0 && leaves == 1
               ? out_chunks() * 3 / 8
               : 0;
  }

  // Of a consumer's part of a tile, the chunks of sums that are put aside in the workspace: those
  // of two of four leaves (deferred_leaf_consumer.hpp), or those of own tiles that registers do not
  // hold (wide_shard_consumer.hpp).
  constexpr int aside_chunks() const {
    if (!deferred_parts) return 0;
    return leaves == 4 ? sum_chunks() : is_wide() ? sum_chunks() - deferred_chunks() : 0;
  }
  // Of f32, the sums of the first four of eight leaves.
  constexpr int aside_bytes() const {
    return has_leaf_planes() ? (leaves == 8 ? tile_bytes() : 0)
                             : consumers * aside_chunks() * out_stage_bytes();
  }

  // The kernel has the dynamic tile schedule (scheduler.hpp).
  constexpr bool takes_tiles() const { return async && cluster == 1 && parts == 0; }

  // What one load of b brings: a block's part, for all blocks of the cluster.
  constexpr int b_part() const { return columns / cluster; }
  constexpr int loaded_rows() const { return few_rows == 0 || a_m_major ? rows() : few_rows; }
  constexpr int a_bytes() const { return loaded_rows() * 128; }
  constexpr int b_bytes() const { return columns * 128; }
  constexpr int out_bytes() const { return consumers * out_stages * out_stage_bytes(); }
  static constexpr int kMostShared = 232448;
  constexpr int most_stages() const { return few_rows != 0 ? 24 : 12; }
  constexpr int barrier_bytes() const { return few_rows != 0 ? 1024 : 512; }
  constexpr int tile_bytes() const { return rows() * columns * 4; }  // sums
  // Sums of the first four of eight leaves, of f32 those of two: registers hold those of the
  // others.
  constexpr int leaf_bytes() const {
    return leaves == 8 || (has_leaf_planes() && leaves == 4) ? tile_bytes() : 0;
  }
  constexpr int stages() const {
    return min(most_stages(), (kMostShared - barrier_bytes() - out_bytes() - leaf_bytes()) /
                                  (a_bytes() + b_bytes()));
  }
  constexpr int shared_bytes() const {
    return stages() * (a_bytes() + b_bytes()) + out_bytes() + leaf_bytes() + barrier_bytes();
  }

  // With two consumers (setmaxnreg); 65536 in all. The scheduler of chunks needs more than 40.
  constexpr int producer_registers() const { return promote > 0 && !async ? 40 : 56; }
  constexpr int consumer_registers() const { return promote > 0 && !async ? 232 : 224; }

  constexpr bool fits() const {
    return (consumers == 1 || consumers == 2) && columns % out_columns() == 0 &&
           columns % ((b_n_major ? 64 : 8) * cluster) == 0 && columns <= 256 &&
           stages() >= max(2, 2 * promote) && (planes == 1 || promote > 0) &&
           (!blocks || (promote == 1 && columns <= 192)) &&
           (!split_k || (cluster == 1 && parts == 0)) &&
           (few_rows == 0 || (consumers == 1 && few_rows % 8 == 0 && few_rows < rows())) &&
           (parts == 0 || (async && (deferred_epilogue() || deferred_parts || leaves > 1))) &&
           (!deferred_parts || (1 <= parts && parts <= min(3, out_stages) && size_of(out) == 2 &&
                                !source && !scaled && promote == 0 && leaves <= 4)) &&
           (!is_wide() || (columns == 256 && parts < out_stages)) &&
           (leaves == 1 || (columns <= (deferred_parts ? 192 : 128) && !split_k)) &&
           (!has_leaf_planes() || (scaled && !source && !async && consumers == 2)) &&
           (size_of(in) == 2 || (!a_m_major && !b_n_major));
  }
};

// Where the sums of the tiles of one other rank's shard go.
struct MatmulPeer {
  int32_t first = 0, last = 0;                // its rows, or columns: [first, last)
  int32_t origin_row = 0, origin_column = 0;  // of its tensor map
  int32_t rank = 0;                           // which it must have begun
  // Of chunk c of the product: signals[(c - first_chunk) * stride].
  int32_t first_chunk = 0, signal_stride = 1;
  uint32_t* signals = nullptr;
};
inline constexpr int kMostMatmulPeers = 3;

struct MatmulBias {
  const void* data = nullptr;   // null: none
  int64_t row = 0, column = 0;  // strides in elements, one of them 0
  bool as_out = false;  // its type is that of c, not that of a (f32 where that is of 8 bits)
};

// a has one for each row and 128 of k; b has one for 128 columns and 128 of k.
struct MatmulBlockScales {
  const float* data = nullptr;
  int64_t batch = 0, line = 0, step = 0;  // strides
};

// In the workspace, which may hold anything when the kernel begins.
struct MatmulSplits {
  SplitK split;
  uint64_t launch = 0;           // a number of random bits
  uint64_t* counters = nullptr;  // of each split tile, one for each consumer
  float* sums = nullptr;         // of each unit of a split tile
};

// c is row-major; the host transposes the product where it is not.
struct Sm90MatmulArguments {
  TensorMap a, b, c, c0;
  TileGrid<int32_t> grid;
  int32_t k_steps = 0;
  // The coordinate of a batch entry is its number times this: 0 where one matrix serves all.
  int32_t a_batch = 0, b_batch = 0, c0_batch = 0;
  float alpha = 1, beta = 0;
  MatmulBias bias;
  AsyncArguments async;  // of the rows and columns of the grid
  MatmulFactors row_factors, column_factors;
  MatmulBlockScales a_scales, b_scales;
  const float* result_scale = nullptr;  // of c of 8 bits; null: none
  float* amax = nullptr;                // 0 before the launch
  RankParts parts;
  MatmulSplits splits;
};

// With deferred_parts: c.parts other ranks.
struct Sm90ShardArguments : Sm90MatmulArguments {
  // [row, column] of float32 for each peer, and the parts that have arrived: [rank, batch, row,
  // column] of the own shard.
  TensorMap sums[kMostMatmulPeers], arrived;
  MatmulPeer peers[kMostMatmulPeers];
  int32_t arrived_row = 0, arrived_column = 0;  // the first of the own shard
  unsigned char* aside = nullptr;               // aside_bytes() for each block
};

// With has_leaf_planes(): a and b as they were split, whose entries are leaves.
struct Sm90LeafArguments : Sm90MatmulArguments {
  MatmulOperand of_a, of_b;
  int64_t depth = 0;               // of a leaf
  unsigned char* aside = nullptr;  // aside_bytes() for each block
};

}  // namespace perseid::internal::cuda
