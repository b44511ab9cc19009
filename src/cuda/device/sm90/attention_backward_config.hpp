// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention backward on sm_90 share: the configuration that the
// kernels are compiled for, and the arguments of their launches.
#pragma once

#include "cuda/device/sm90/attention_arguments.hpp"

namespace perseid::cuda {

// A block has a tile of keys and visits blocks of queries, one a step. It has two consumers, which
// are warpgroups.
struct AttentionBackwardConfig {
  DType dtype = DType::kBF16;
  int key_dim = 128;     // of query and key, a multiple of 16
  int value_dim = 128;   // of value and out, a multiple of 16
  int queries = 64;      // of a step: 64, or 128 where key_dim is at most 64
  bool halves = true;    // each consumer has half of the keys; else half of the products
  bool right = false;    // the last visible key depends on the query, as under a causal mask
  bool left = false;     // the first one does, as under a window
  bool lengths = false;  // sequences have lengths of their own
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  int bias_slots = 0;  // tiles of bias that are there or on their way; 0: no room for them
  bool grad_bias = false;
  bool bias_whole = false;  // it is not repeated: each score has an element of its own
  // Blocks, of a cluster, that share the query heads of a tile of keys: where there are few tiles,
  // or some have much more work than others.
  int parts = 1;
  bool deterministic = false;
  // A tile's steps begin where another tile of its key head is: of several query heads, all with
  // the same queries. The order of sums then depends on the time.
  bool follows = false;
  bool grad_query = true, grad_key = true, grad_value = true;

  static constexpr int kConsumers = 2, kStages = 2;
  constexpr int keys() const { return halves ? 128 : 64; }
  // Some queries of a step see keys of a tile that others do not.
  constexpr bool masked() const { return right || left || lengths || visible; }
  constexpr int threads() const { return 128 * (kConsumers + 1); }
  constexpr int key_chunks() const { return (key_dim + kChunk - 1) / kChunk; }
  constexpr int value_chunks() const { return (value_dim + kChunk - 1) / kChunk; }
  // grad_query is summed in pieces of 64 queries and so many columns, at least one for each
  // consumer; beyond 64 columns the last piece has what is left.
  constexpr int piece_columns() const {
    return queries == 128 ? key_dim : key_dim <= kChunk ? 32 : kChunk;
  }
  constexpr int pieces_across() const {
    return queries == 128 ? 1 : key_chunks() * kChunk / piece_columns();
  }
  constexpr int pieces() const { return queries / 64 * pieces_across(); }
  constexpr int last_columns() const {
    return queries == 128 || key_dim <= kChunk ? piece_columns()
                                               : key_dim - (pieces_across() - 1) * piece_columns();
  }
  constexpr int columns_of(int piece) const {
    return piece % pieces_across() == pieces_across() - 1 ? last_columns() : piece_columns();
  }
  constexpr int piece_floats() const { return 64 * piece_columns(); }
  // Of a block of queries.
  constexpr int block_floats() const {
    return pieces() * piece_floats() - queries * (piece_columns() - last_columns());
  }

  // The last kernel rounds the sums of a head when its tiles are done, not when all are.
  constexpr bool finishes_early() const { return grad_query && !lengths; }

  // A consumer passes over the steps whose queries see none of its keys, where it has half of them
  // and a step has 64 queries: the first of each tile under a causal mask, and the last under a
  // window. (Halves of steps of 128, in code of their own, gain nothing under a window and cost 2
  // to 7 % under a causal mask.)
  constexpr bool passes() const {
    return halves && queries == 64 && (right || left) && !visible && !dropout &&
           bias == DType::kNone;
  }

  // The last heads go from the first tile to the last, see attention_backward_tiles.hpp.
  constexpr bool turns_back() const { return deterministic && right && !left; }
  // Turns of their summands, where their order counts: one for each consumer.
  constexpr int turns() const { return deterministic ? kConsumers : 0; }

  // Shared memory, in bytes.
  constexpr int key_bytes() const { return keys() * 128 * key_chunks(); }
  constexpr int value_bytes() const { return keys() * 128 * value_chunks(); }
  constexpr int query_bytes() const { return queries * 128 * key_chunks(); }
  constexpr int out_bytes() const { return queries * 128 * value_chunks(); }
  constexpr int score_bytes() const { return queries / 64 * keys() * 128; }  // rounded gradients
  constexpr int weight_bytes() const { return halves ? 0 : keys() * queries * 4; }
  constexpr int bias_bytes() const { return queries * keys() * (bias == DType::kF32 ? 4 : 2); }
  constexpr int statistics_bytes() const { return queries * 8; }
  constexpr int shared_bytes() const {
    return key_bytes() + value_bytes() + kStages * (query_bytes() + out_bytes()) +
           2 * score_bytes() + weight_bytes() + bias_slots * bias_bytes() +
           kStages * statistics_bytes() + kOthers;
  }
  static constexpr int kOthers = 192;  // barriers
  // A tile of bias becomes that of its gradient, in its place.
  constexpr bool grad_bias_in_place() const { return grad_bias && bias_whole && bias_slots > 0; }

  // Else another kernel makes the gradient, whatever is repeated (attention_backward_bias.hpp),
  // with the same blocks of queries.
  constexpr AttentionBackwardConfig of_bias() const {
    AttentionBackwardConfig config = *this;
    config.halves = true;
    config.bias_slots = 0;
    config.bias_whole = config.deterministic = false;
    config.grad_query = config.grad_key = config.grad_value = false;
    return config;
  }
  constexpr int unit_stages() const { return unit_shared_bytes(2, 1) <= kMostShared ? 2 : 1; }
  constexpr int unit_slots() const {
    return unit_shared_bytes(unit_stages(), 2) <= kMostShared ? 2 : 1;
  }
  constexpr int unit_shared_bytes(int stages, int slots) const {
    return stages *
               (key_bytes() + value_bytes() + query_bytes() + out_bytes() + statistics_bytes()) +
           slots * bias_bytes() + kOthers;
  }
  constexpr int unit_shared_bytes() const { return unit_shared_bytes(unit_stages(), unit_slots()); }
  static constexpr int kMostShared = 232448;  // of a block

  // Registers of a thread: the producer's warpgroup gives back what the consumers take.
  constexpr int producer_registers() const { return deterministic && masked() ? 40 : 24; }
  constexpr int consumer_registers() const { return producer_registers() == 24 ? 240 : 232; }
};

// What one block waits for from another comes by then, or never: waits end, and what was waited for
// is NaN.
inline constexpr uint64_t kLongestWait = 10'000'000'000;  // nanoseconds

inline constexpr int kRowThreads = 256;  // of a block of the kernels before and after

// Sums of grad_query, float32: [batch * heads][block of queries][piece][warp][columns /
// 8][lane][4], as the accumulators of products hold them.

// Gradients without data are not wanted by this launch, whatever C says.
struct AttentionBackwardProblem : AttentionArguments {
  RowsInMemory grad_out_rows, grad_query_rows, grad_key_rows, grad_value_rows;
  RowsInMemory grad_bias;     // [batch, heads, queries, keys] of bias
  float* lse_log2 = nullptr;  // [block of queries][queries], see prepare
  float* delta = nullptr;
  float* sums = nullptr;
  uint64_t* turns = nullptr;     // deterministic: [block of queries][consumer]
  uint32_t* tile = nullptr;      // deterministic: the number of the next one
  uint64_t* given_up = nullptr;  // not 0: somebody has waited in vain
  uint64_t* complete = nullptr;  // consumers that have added all of theirs, of each key head
  uint64_t summers = 0;          // consumers that add to the sums of a key head
  uint64_t* position = nullptr;  // the step where some tile is, of each key head, if C.follows
  int32_t kv_heads = 0;          // of a batch entry
  int32_t q_blocks = 0;          // of a head; ragged: places of blocks
  // Parts of the gradient of bias that have arrived, of each of its blocks.
  uint32_t* arrived = nullptr;
  int32_t bias_blocks = 0;
  float scale = 0;
};

struct AttentionBackwardArguments : AttentionBackwardProblem {
  TensorMap query, key, value, grad_out, grad_key, grad_value;
  TensorMap bias_map, grad_bias_map;  // {keys, queries, heads, batch, 1}
  bool bias_mapped = false, grad_bias_mapped = false;
  int32_t bias_head = 0, bias_batch = 0;  // steps in bias_map: 1, or 0 where it is repeated
  // Heads in order, of each all batch entries, which share its bias or its direction, instead of
  // the reverse.
  bool by_head = false;
  int32_t batch_heads = 0;        // key heads of the whole batch in memory
  int32_t k_tiles = 0;            // of each of them; ragged: places of tiles
  int32_t heads_per_section = 0;  // key heads whose tiles are done together
  int32_t heads_forth = 0;        // of a batch entry, before those that go back, if C.turns_back()
};

// Of the kernel that sums the gradient of a repeated bias.
struct AttentionBackwardBiasArguments : AttentionBackwardProblem {
  TensorMap query, key, value, grad_out, bias_map, grad_bias_map;
  bool mapped = false;  // bias and its gradient are for the copy engine
  bool sums_batch = false, sums_heads = false, sums_queries = false, sums_keys = false;
  int32_t bias_heads = 0, bias_q_tiles = 0, bias_k_tiles = 0;  // 1 where it is repeated
  int32_t parts = 1, blocks = 0;                               // tiles times parts
  float* part_sums = nullptr;  // [block][part][rows and columns that are not summed]
};

// Of the kernels that work on rows, before and after.
struct AttentionBackwardRows : AttentionBackwardProblem {
  RowsInMemory lse, grad_lse;  // rows of one element; grad_lse may be null
};

}  // namespace perseid::cuda
