// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention on sm_90 share: the arguments of launches, and the
// configurations that kernels are compiled for, of forward and of backward.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/chunk_waits.hpp"
#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/sm90/scheduler.hpp"
#include "cuda/device/tensor_map.hpp"
#include "math/dtype.hpp"
#include "math/score_modifier.hpp"

namespace perseid::internal::cuda {

inline constexpr int kMostShared = 232448;  // bytes that a block may have

// ---- Forward ----

// How the mainloop treats KV tiles that need a mask for some rows, at the diagonal of a causal mask
// or at the edges of a window. Tiles go from the last to the first.
enum class MaskLoop {
  // One loop; each iteration tests whether its tile needs a mask. The shortest code. It pays where
  // per-score extras (bias, visible mask, dropout) make the iteration long in any case.
  kUniform,
  // Two loops: the masked tiles, which must be the last ones of each Q tile, then the others, whose
  // code has no mask. It pays with two consumers and many registers of results.
  kSplitAtDiagonal,
  // The second iteration of a Q tile and the masked ones are peeled; what remains is a short loop
  // without a mask and without work that only the second iteration has. It pays with three
  // consumers, whose registers are few, and under a window, whose masked tiles lie at both ends.
  kPeeled,
};

// When a consumer stores the results of a Q tile. Its last PV product runs under the first scores
// of the next Q tile, except under kBeforeNextScores.
enum class Epilogue {
  // As soon as the last PV product is complete. It pays with three consumers, since the other two
  // keep the tensor cores busy meanwhile, and with a split mask loop.
  kEager,
  // One iteration later, after the next tile's second scores were issued. It pays with up to two
  // consumers, since the other one may have no product to run.
  kDeferred,
  // Under the first scores of the next tile, which then wait for neither softmax nor PV. With one
  // query stage: the next queries arrive after the last PV product was issued.
  kBeforeNextScores,
  // While the next queries arrive. It pays where these are many bytes.
  kBeforeNextQueries,
};

struct AttentionForwardArguments;

// Queries, keys and head dims are cut into tiles. A block computes one Q tile at a time, 64 rows of
// it in each consumer, which is a warpgroup.
struct AttentionForwardConfig {
  DType dtype = DType::kBF16;
  int key_dim = 128;    // of query and key, a multiple of 16
  int value_dim = 128;  // of value and out, a multiple of 16, or 40 or 72
  int value_parts = 1;  // a Q tile has results of one part of the columns, value_dim of each
  int consumers = 2;
  int keys = 128;    // of a KV tile, a multiple of 16
  int stages = 2;    // of the K pipeline, and of the V pipeline
  int q_stages = 2;  // of the Q pipeline
  MaskLoop mask_loop = MaskLoop::kUniform;
  bool overlap_softmax_pv = false;  // softmax does not wait for the consumer's own PV product
  bool right = false;    // the last visible key depends on the row, as under a causal mask
  bool left = false;     // the first one does, as under a window
  bool split = false;    // split-KV: a tile has one split of the keys; attention_combine adds them
  bool lengths = false;  // each sequence has its own: ragged batches, key lengths
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  int bias_stages = 0;  // of the bias pipeline; 0: threads load the bias from global memory
  ScoreModifierKind modifier = ScoreModifierKind::kNone;  // any other: no bias pipeline
  bool async = false;                                     // key and value arrive in chunks
  bool sharded = false;       // queries are one or two pieces of each sequence; whole tiles of two
  bool rank_pieces = false;   // sharded and ragged: pieces of any length (rank_pieces.hpp)
  bool number_pairs = false;  // of float32: the numbers of a head's keys begin at an even one
  bool splits_queries = false;  // of float32: TMA loads rows of queries, consumers split them
  int cluster = 1;  // blocks that load K and V together, each a part of the columns for all

  using Arguments = AttentionForwardArguments;
  static constexpr bool scale_first = false;  // scales are positive
  static constexpr const char* kName = "AttentionForwardConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("dtype", c.dtype);
    visit("key_dim", c.key_dim);
    visit("value_dim", c.value_dim);
    visit("value_parts", c.value_parts);
    visit("consumers", c.consumers);
    visit("keys", c.keys);
    visit("stages", c.stages);
    visit("q_stages", c.q_stages);
    visit("mask_loop", c.mask_loop);
    visit("overlap_softmax_pv", c.overlap_softmax_pv);
    visit("right", c.right);
    visit("left", c.left);
    visit("split", c.split);
    visit("lengths", c.lengths);
    visit("visible", c.visible);
    visit("dropout", c.dropout);
    visit("bias", c.bias);
    visit("bias_stages", c.bias_stages);
    visit("modifier", c.modifier);
    visit("async", c.async);
    visit("sharded", c.sharded);
    visit("rank_pieces", c.rank_pieces);
    visit("number_pairs", c.number_pairs);
    visit("splits_queries", c.splits_queries);
    visit("cluster", c.cluster);
  }

  constexpr int rows() const { return 64 * consumers; }
  // A KV tile may have keys that some rows see and others do not.
  constexpr bool masked() const { return right || left || visible; }
  constexpr int threads() const { return 128 * (consumers + 1); }

  // float32 is multiplied as two planes of f16 (portable/attention/planes.hpp), which lie side by
  // side in a row: [high halves | low halves]. Those of values begin with a chunk each.
  constexpr int planes() const { return dtype == DType::kF32 ? 2 : 1; }
  constexpr DType operand() const { return planes() == 2 ? DType::kF16 : dtype; }
  constexpr int value_length() const {
    return planes() == 2 ? (value_dim + kChunk - 1) / kChunk * kChunk : value_dim;
  }
  constexpr int key_columns() const { return planes() * key_dim; }  // of a row in shared memory
  constexpr int value_columns() const { return planes() * value_length(); }
  constexpr bool unit_strides() const { return planes() == 1; }  // between elements of rows
  constexpr int key_chunks() const { return (key_columns() + kChunk - 1) / kChunk; }
  constexpr int value_chunks() const { return (value_columns() + kChunk - 1) / kChunk; }

  // Beyond 256 columns the rows of Q leave room for one KV tile. It arrives in pieces with a stage
  // each, which is loaded again while the products of other pieces run: a piece of K has 64
  // columns, one of V half of the keys.
  constexpr bool in_pieces() const { return key_columns() > 256 || value_parts > 1; }
  constexpr int key_pieces() const { return in_pieces() ? key_chunks() : 1; }
  constexpr int value_pieces() const { return in_pieces() ? 2 : 1; }
  constexpr int key_stages() const { return stages * key_pieces(); }
  constexpr int value_stages() const { return stages * value_pieces(); }

  // Whether blocks list tiles whose rows may need a fixup, and compute them a second time before.
  constexpr bool lists_tiles() const { return masked() || planes() == 2; }
  constexpr bool second_pass() const { return masked() && planes() == 1; }

  // Whether the kernel may have this mask loop. Under a window masked tiles lie at both ends, and
  // neither split loop knows the limits of a split of the keys. kPeeled is measured with two query
  // stages alone.
  constexpr bool allows(MaskLoop loop) const {
    if (loop == MaskLoop::kSplitAtDiagonal) return !left && !split;
    if (loop == MaskLoop::kPeeled) return q_stages > 1 && !split;
    return true;
  }
  // Whether the kernel may have clusters: those of two blocks, each of which loads a chunk of the
  // columns of keys and of values.
  constexpr bool may_have_cluster() const {
    return consumers == 2 && q_stages == 2 && planes() == 1 && !in_pieces() && key_chunks() == 2 &&
           value_chunks() == 2 && !left && !split && !lengths && !visible && !dropout && !async &&
           !sharded && bias == DType::kNone && modifier == ScoreModifierKind::kNone;
  }
  // Whether consumers form a ping-pong order. Pieces are in use for a shorter time if both
  // consumers multiply them at once; and the softmax of few keys is short.
  constexpr bool ping_pong() const { return consumers > 1 && !in_pieces(); }
  constexpr Epilogue epilogue() const {
    if (in_pieces()) return Epilogue::kBeforeNextQueries;
    if (q_stages == 1) return Epilogue::kBeforeNextScores;
    return consumers < 3 && mask_loop != MaskLoop::kSplitAtDiagonal ? Epilogue::kDeferred
                                                                    : Epilogue::kEager;
  }
  // Whether the partial Q tile of a head is its first one, since later rows see more keys. Whole
  // consumers are before the first query.
  constexpr bool partial_tile_first() const { return right && consumers > 2; }
  static constexpr bool any_first_row() { return false; }  // as in PortableForwardConfig
  // Whether consumers load what belongs to the keys of an unmasked KV tile, so that they must know
  // which one a slot stands for (kv_tile_of).
  constexpr bool consumers_know_tiles() const {
    return async && (visible || dropout || (bias != DType::kNone && bias_stages == 0));
  }
  // Whether consumers without rows in the last Q tile of a sequence skip it.
  constexpr bool skips_empty_rows() const {
    return consumers > 2 && q_stages > 1 && !right && !left && bias_stages == 0;
  }
  // Whether a consumer skips KV tiles that none of its rows sees. They exist where the Q tiles of a
  // cluster have more rows than a KV tile has keys, and under a window.
  constexpr bool skips_masked_tiles() const {
    return consumers > 1 && (left || (right && rows() * cluster > keys));
  }

  // Shared memory, in bytes. The rest stages results for TMA stores, in chunks of 64 columns.
  constexpr int query_bytes() const { return 64 * 128 * key_chunks(); }
  constexpr int key_bytes() const { return keys * 128 * key_chunks(); }
  constexpr int value_bytes() const { return keys * 128 * value_chunks(); }
  // A consumer's bias tile has rows of 128 bytes, as all others.
  constexpr int bias_size() const { return bias == DType::kF32 ? 4 : 2; }
  constexpr int bias_chunks() const { return (keys * bias_size() + 127) / 128; }
  constexpr int bias_bytes() const { return 64 * 128 * bias_chunks(); }
  // The numbers of a tile of keys have a slot more than its planes have stages: they are read until
  // the softmax has ended, in which the planes are already released.
  // TMA loads them from an even one on.
  constexpr int number_slots() const { return planes() == 2 ? stages + 1 : 0; }
  constexpr int loaded_numbers() const { return number_pairs ? keys : keys + 2; }
  constexpr int number_bytes() const {
    return loaded_numbers() * static_cast<int>(sizeof(RowNumbers));
  }
  constexpr int slot_bytes() const { return (number_bytes() + 127) / 128 * 128; }
  constexpr int loaded_bytes() const {
    return q_stages * consumers * query_bytes() + stages * (key_bytes() + value_bytes()) +
           bias_stages * consumers * bias_bytes() + number_slots() * slot_bytes();
  }
  // Whether results are staged in shared memory. Otherwise threads store them from registers.
  constexpr bool stages_out() const { return !split && planes() == 1 && !in_pieces(); }
  constexpr int out_chunks() const {
    const int room = (kMostShared - others() - loaded_bytes()) / (rows() * 128);
    return stages_out() ? min(room, value_chunks()) : 0;
  }
  constexpr int out_bytes() const { return 64 * 128 * out_chunks(); }  // of a consumer
  constexpr int shared_bytes() const { return loaded_bytes() + consumers * out_bytes() + others(); }
  constexpr bool fits() const {
    return shared_bytes() <= kMostShared && (!stages_out() || out_chunks() > 0);
  }
  // Barriers of all stages and one more, descriptions of Q tiles, a number, and the tickets of a
  // cluster with their barriers (ForwardShared).
  // Q tiles in flight: two that have a query stage, one whose queries were released, and one whose
  // epilogue is deferred.
  static constexpr int kTilesInFlight = 4, kTileBytes = 88;
  static constexpr int kTicketBytes = 40;  // with the padding before
  constexpr int others() const {
    const int barriers = 16 * (q_stages + key_stages() + value_stages() + bias_stages) + 8 +
                         (cluster > 1 ? kTicketBytes : 0);
    return (barriers + kTilesInFlight * kTileBytes + 4 + 127) / 128 * 128;
  }

  // Registers of a thread: the producer releases what the consumers take. The block is launched
  // with 65536 / threads(), rounded down to a multiple of 8, for each thread.
  // Waits for chunks need more in the producer, which two consumers can spare.
  constexpr int producer_registers() const {
    return consumers == 3 ? 32 : planes() == 2 ? 24 : async ? 56 : 40;
  }
  constexpr int consumer_registers() const {
    return consumers == 3 ? 160 : planes() == 2 ? 240 : async ? 224 : 232;
  }
};

// Blocks of a launch draw their tiles from one counter, in the workspace.
struct ForwardTileCounter : TileCounter {
  uint64_t nonfinite;  // split-KV: the launch, if a split has a result that is not finite

  PERSEID_INLINE constexpr void reset() {
    TileCounter::reset();
    nonfinite = 0;
  }
};

// pack_gqa: 2^pack_gqa query heads that share a key head are packed into the rows of a tile: row r
// is query r >> pack_gqa of head r % 2^pack_gqa. The maps have dimensions {dim, 2^pack_gqa, length,
// heads >> pack_gqa, batch}. `heads`, `group`, and the `head` of a tile count packs.
struct AttentionForwardArguments : AttentionArguments, KeySplits {
  TensorMap query, key, value, out;
  float* lse = nullptr;     // null: not wanted
  int64_t lse_stride[3]{};  // batch, head, row
  ForwardTileCounter* counter = nullptr;
  // Under a mask: the successor of each tile in its block's list of tiles with non-finite results;
  // `tiles` ends the list.
  int32_t* nonfinite_next = nullptr;
  uint64_t launch = 0;
  int32_t pack_gqa = 0;
  int32_t kv_heads = 0;  // of a batch entry
  // If C.rank_pieces: the number of packed rows of keys in a group of whole sequences; groups
  // arrive one after the other.
  int32_t rows_of_arrival = 1;
  int32_t batch_heads = 0, q_tiles = 0, tiles = 0;
  int32_t rows_before = 0;        // rows of a head's first tile before its first query
  int32_t heads_per_section = 0;  // of the raster order
  // If TMA loads the bias: its map, with elements of 16 bits, and whether heads and batch entries
  // have their own.
  TensorMap bias_map;
  int32_t bias_heads = 0, bias_batches = 0;
  float modifier = 0;  // the value of the score modifier
  // float32: the three maps are those of planes, that of queries unless C.splits_queries: then
  // how their rows are split, else their numbers, [entry, head, row]. The map of the numbers of
  // keys is one long row.
  PlanesOfRows query_split;
  const RowNumbers* query_numbers = nullptr;
  const uint64_t* uncommon = nullptr;  // the launch, if a key has numbers of its own
  TensorMap key_numbers;
  bool out_pairs = false;  // two elements of out are one aligned access
  // If key and value arrive in chunks: waits for them, the first row of the pivot chunk, how many
  // key heads, of all entries, arrive together (C.rank_pieces: rows_of_arrival), and the arrivals
  // of each group.
  static constexpr int kMostGroups = 8;
  AsyncArguments async;
  DeviceArrival arrivals[kMostGroups];
  int32_t pivot = 0, heads_of_arrival = 1;
};

// ---- Backward ----

// float32, for a block of queries: what its products of planes become gradients by
// (backward_planes.hpp). e is the exponent of a row of grad_out (RowNumbers), and E the largest e
// of the block.
struct alignas(16) QueryNumbers {
  static constexpr int kRows = 64;
  float shift[kRows];   // lse_log2 - (e - E) - 15; +inf for a query that sees no key
  float delta[kRows];   // times 2^-e
  float factor[kRows];  // of products with the query's planes
  float scale;          // 2^(E - 15)
  uint32_t uncommon;    // not 0: rows have numbers of their own
};

// A block has a tile of keys and iterates over blocks of queries, one in each step of the mainloop.
// It has two consumer warpgroups.
struct AttentionBackwardConfig {
  DType dtype = DType::kBF16;
  int key_dim = 128;       // of query and key, a multiple of 16
  int value_dim = 128;     // of value and out, a multiple of 16
  int queries = 64;        // of a step: 64, or 128 where key_dim is at most 64
  bool split_keys = true;  // each consumer has half of the keys; else half of the products
  bool right = false;      // the last visible key depends on the query, as under a causal mask
  bool left = false;       // the first one does, as under a window
  bool lengths = false;    // each sequence has its own lengths
  bool visible = false;
  bool dropout = false;
  DType bias = DType::kNone;
  int bias_stages = 0;  // stages of bias; 0: no shared memory for it
  ScoreModifierKind modifier = ScoreModifierKind::kNone;  // any other: no stages of bias
  bool grad_bias = false;
  bool bias_whole = false;  // the bias is not repeated: each score has its own element
  // The blocks of a cluster, as many as the arguments say, share the query heads of a tile of keys:
  // where there are few tiles, or tiles of unequal work.
  bool clusters = false;
  bool deterministic = false;
  // A tile starts at the step of another tile of its key head (several query heads, all with the
  // same queries). The order of sums then depends on time.
  bool shared_cursor = false;
  bool grad_query = true, grad_key = true, grad_value = true;
  // The gradient is added to what its tensor holds, in float32, and rounded once.
  bool accumulate_query = false, accumulate_key = false, accumulate_value = false,
       accumulate_bias = false;
  bool sharded = false;            // queries are one or two pieces of each sequence
  bool rank_pieces = false;        // sharded and ragged: pieces of any length
  bool f32_key_gradients = false;  // grad_key and grad_value, where they do not accumulate
  bool async = false;  // keys and values arrive in chunks, and their gradients leave in them
  // A block has one leaf of the queries (backward_leaves.hpp); with f32_key_gradients.
  bool leaves = false;

  static constexpr const char* kName = "AttentionBackwardConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("dtype", c.dtype);
    visit("key_dim", c.key_dim);
    visit("value_dim", c.value_dim);
    visit("queries", c.queries);
    visit("split_keys", c.split_keys);
    visit("right", c.right);
    visit("left", c.left);
    visit("lengths", c.lengths);
    visit("visible", c.visible);
    visit("dropout", c.dropout);
    visit("bias", c.bias);
    visit("bias_stages", c.bias_stages);
    visit("modifier", c.modifier);
    visit("grad_bias", c.grad_bias);
    visit("bias_whole", c.bias_whole);
    visit("clusters", c.clusters);
    visit("deterministic", c.deterministic);
    visit("shared_cursor", c.shared_cursor);
    visit("grad_query", c.grad_query);
    visit("grad_key", c.grad_key);
    visit("grad_value", c.grad_value);
    visit("accumulate_query", c.accumulate_query);
    visit("accumulate_key", c.accumulate_key);
    visit("accumulate_value", c.accumulate_value);
    visit("accumulate_bias", c.accumulate_bias);
    visit("sharded", c.sharded);
    visit("rank_pieces", c.rank_pieces);
    visit("f32_key_gradients", c.f32_key_gradients);
    visit("async", c.async);
    visit("leaves", c.leaves);
  }

  static constexpr int kConsumers = 2, kStages = 2;
  // float32 is multiplied as two planes of f16 (backward_planes.hpp), which lie side by side in a
  // row, each of whole chunks.
  constexpr int planes() const { return dtype == DType::kF32 ? 2 : 1; }
  constexpr int plane_length(int dim) const { return (dim + kChunk - 1) / kChunk * kChunk; }
  constexpr bool unit_strides() const { return planes() == 1; }  // between elements, in fixups
  constexpr int keys() const { return split_keys ? 128 : 64; }
  // Some queries of a step see keys of a tile that others do not.
  constexpr bool masked() const { return right || left || lengths || visible; }
  constexpr int threads() const { return 128 * (kConsumers + 1); }
  // The scores of a thread, in the fragment of 64 keys x queries.
  constexpr int thread_scores() const { return queries / 2; }
  constexpr int key_chunks() const { return (key_dim + kChunk - 1) / kChunk; }
  constexpr int value_chunks() const { return (value_dim + kChunk - 1) / kChunk; }
  // dQ is summed in slices of 64 queries and so many columns, at least one for each
  // consumer; beyond 64 columns the last slice has the columns that remain.
  constexpr int slice_columns() const {
    return queries == 128 ? key_dim : key_dim <= kChunk ? 32 : kChunk;
  }
  constexpr int slices_across() const {
    return queries == 128 ? 1 : key_chunks() * kChunk / slice_columns();
  }
  constexpr int slices() const { return queries / 64 * slices_across(); }
  constexpr int last_columns() const {
    return queries == 128 || key_dim <= kChunk ? slice_columns()
                                               : key_dim - (slices_across() - 1) * slice_columns();
  }
  constexpr int columns_of(int slice) const {
    return slice % slices_across() == slices_across() - 1 ? last_columns() : slice_columns();
  }
  constexpr int slice_floats() const { return 64 * slice_columns(); }
  // The floats of a block of queries.
  constexpr int block_floats() const {
    return slices() * slice_floats() - queries * (slice_columns() - last_columns());
  }

  // Whether a warp clears non-finite elements of tiles (backward_clearing.hpp), so that masked ones
  // change no bit of grad_query. Deterministic mode only: in any other, bits differ from run to
  // run, and the check costs up to 7 % under a causal mask. Not where dS becomes the gradient of
  // bias in place, since the elements belong to it; nor where a gradient accumulates, since the old
  // value is overwritten by the time that a row turns out to need the fixup.
  constexpr bool clears_nonfinite() const {
    return deterministic && masked() && !grad_bias_in_place() && !accumulate_query &&
           !accumulate_key && !accumulate_value;
  }

  // attention_backward_finish rounds a head when its tiles are complete, not when all are.
  constexpr bool finishes_early() const { return grad_query && !lengths; }

  // A consumer skips steps whose queries see none of its keys, where consumers split the keys and a
  // step has 64 queries: the first of each tile under a causal mask, and the last under a window.
  // (Skipping halves of steps of 128 gains nothing under a window and costs 2 to 7 % under a causal
  // mask.)
  constexpr bool skips_masked_tiles() const {
    return split_keys && queries == 64 && (right || left) && !visible && !dropout &&
           bias == DType::kNone;
  }

  // The last heads are reversed, in canonical order all (backward_tiles.hpp).
  constexpr bool reverse_order() const { return deterministic && right && !left; }
  // Consumers with a semaphore (dq_semaphore.hpp).
  constexpr int dq_semaphores() const { return deterministic ? kConsumers : 0; }

  // Shared memory, in bytes.
  constexpr int key_bytes() const { return keys() * 128 * key_chunks(); }
  constexpr int value_bytes() const { return keys() * 128 * value_chunks(); }
  constexpr int query_bytes() const { return queries * 128 * key_chunks(); }
  constexpr int out_bytes() const { return queries * 128 * value_chunks(); }
  constexpr int score_bytes() const { return queries / 64 * keys() * 128; }  // dS
  constexpr int weight_bytes() const { return split_keys ? 0 : keys() * queries * 4; }
  constexpr int bias_bytes() const { return queries * keys() * (bias == DType::kF32 ? 4 : 2); }
  constexpr int statistics_bytes() const { return queries * 8; }
  constexpr int shared_bytes() const {
    return key_bytes() + value_bytes() + kStages * (query_bytes() + out_bytes()) +
           2 * score_bytes() + weight_bytes() + bias_stages * bias_bytes() +
           kStages * statistics_bytes() + kOthers;
  }
  static constexpr int kOthers = 192;  // barriers and a flag
  // Planes have no tile of bias: two planes of each operand and of dS, the numbers of the
  // queries of a step, and what warps exchange.
  constexpr int plane_bytes(int rows, int dim) const { return 4 * rows * plane_length(dim); }
  constexpr int planes_shared_bytes() const {
    return plane_bytes(keys(), key_dim) + plane_bytes(keys(), value_dim) +
           kStages * (plane_bytes(queries, key_dim) + plane_bytes(queries, value_dim)) +
           ds_buffers() * plane_bytes(keys(), queries) + weight_bytes() +
           kStages * static_cast<int>(sizeof(QueryNumbers)) +
           keys() * static_cast<int>(sizeof(RowNumbers)) +
           (split_keys ? 2 * queries + keys() : queries + 2 * keys()) * 4 + 144;
  }
  static constexpr int ds_buffers() { return 1; }
  // dS overwrites the tile of bias and is stored from there.
  constexpr bool grad_bias_in_place() const { return grad_bias && bias_whole && bias_stages > 0; }

  // Otherwise a kernel of its own computes the gradient (backward_bias.hpp), with the same blocks
  // of queries: its configuration.
  constexpr AttentionBackwardConfig of_bias() const {
    AttentionBackwardConfig config = *this;
    config.split_keys = true;
    config.bias_stages = 0;
    config.bias_whole = config.deterministic = false;
    config.grad_query = config.grad_key = config.grad_value = false;
    config.accumulate_query = config.accumulate_key = config.accumulate_value = false;
    return config;
  }
  constexpr int unit_stages() const { return unit_shared_bytes(2, 1) <= kMostShared ? 2 : 1; }
  constexpr int unit_bias_stages() const {
    return unit_shared_bytes(unit_stages(), 2) <= kMostShared ? 2 : 1;
  }
  constexpr int unit_shared_bytes(int stages, int tiles) const {
    return stages *
               (key_bytes() + value_bytes() + query_bytes() + out_bytes() + statistics_bytes()) +
           tiles * bias_bytes() + kOthers;
  }
  constexpr int unit_shared_bytes() const {
    return unit_shared_bytes(unit_stages(), unit_bias_stages());
  }

  // Registers of a thread: the consumers take those that the producer's warpgroup gives back.
  constexpr int producer_registers() const {
    return deterministic && (masked() || leaves) ? 40 : 24;
  }
  constexpr int consumer_registers() const { return producer_registers() == 24 ? 240 : 232; }
};

// The deadline of a wait for another block; dQ is NaN after it.
inline constexpr uint64_t kLongestWait = 10'000'000'000;  // nanoseconds

// Threads of a block of attention_backward_prepare and attention_backward_finish.
inline constexpr int kRowThreads = 256;

struct AttentionBackwardProblem : AttentionGradients {
  // lse_log2 and delta as the products read them: the same; if C.clears_nonfinite(), +inf and 0
  // where one of the two is not finite.
  float* finite_lse_log2 = nullptr;
  float* finite_delta = nullptr;
  // Sums of dQ in the layout of the accumulators:
  // [batch * heads][block of queries][slice][warp][columns / 8][lane][4].
  float* sums = nullptr;
  uint64_t* dq_semaphore = nullptr;  // deterministic: [block of queries][consumer]
  uint32_t* tile = nullptr;          // deterministic: the number of the next one
  uint64_t* timed_out = nullptr;     // not 0: a wait timed out
  uint64_t* complete = nullptr;      // of each key head: consumers that have added all of their dQ
  uint64_t dq_contributors = 0;      // consumers that add to the sums of a key head
  // The step that a tile of each key head has reached, if C.shared_cursor.
  uint64_t* cursor = nullptr;
  // If C.clears_nonfinite(), not 0: a query of the block has an lse or delta that is not finite;
  // the key head has such a key or value.
  uint32_t* nonfinite_queries = nullptr;
  uint32_t* nonfinite_keys = nullptr;
};

// The leaves of a rank (backward_leaves.hpp).
struct QueryLeaves {
  int32_t count = 1;
  int32_t blocks = 0;     // of queries, in a piece
  bool mirrored = false;  // a leaf has two pieces, as far from the first block and the last
  // Gradients of keys of leaf 1, without gaps; those of others follow. Leaf 0 has the tensors.
  RowsInMemory grad_key, grad_value;
};

struct AttentionBackwardArguments : AttentionBackwardProblem {
  TensorMap query, key, value, grad_out, grad_key, grad_value;
  TensorMap bias_map, grad_bias_map;  // {keys, queries, heads, batch, 1}
  bool bias_mapped = false, grad_bias_mapped = false;
  int32_t bias_head = 0, bias_batch = 0;  // steps in bias_map: 1, or 0 where it is repeated
  // Raster order: all batch entries of a head, which share its bias or its direction, before the
  // next head; else all heads of a batch entry.
  bool by_head = false;
  int32_t batch_heads = 0;        // key heads of the whole batch in memory
  int32_t k_tiles = 0;            // of each of them; ragged: padded positions of tiles
  int32_t heads_per_section = 0;  // key heads (backward_tiles.hpp)
  int32_t forward_heads = 0;  // of a batch entry, before the reversed ones, if C.reverse_order()
  int32_t cluster_log2 = 0;   // of the blocks of a cluster: 1 or 2, if C.clusters
  // If C.async (backward_chunks.hpp): signals of arrivals and of the departure are [group of heads,
  // chunk].
  AsyncArguments async;
  int32_t heads_of_arrival = 1;    // key heads, of all entries, in a group
  const int32_t* order = nullptr;  // tile * batch_heads + head, of each number in the raster order
  QueryLeaves leaves;              // if C.leaves
};

// float32: the maps are those of planes.
struct AttentionBackwardPlanesArguments : AttentionBackwardArguments {
  PlanesArguments planes;                 // of query with grad_out, and of key with value
  PlanesOfRows out;                       // without planes
  QueryNumbers* query_numbers = nullptr;  // [block of queries]
  int32_t query_blocks = 0;               // of all heads
  bool vectors = false;                   // rows of grad_query are accessed 16 bytes at a time
};

// Arguments of the kernel that sums the gradient of a repeated bias.
struct AttentionBackwardBiasArguments : AttentionBackwardProblem, BiasTiles {
  TensorMap query, key, value, grad_out, bias_map, grad_bias_map;
  bool mapped = false;  // TMA addresses bias and its gradient
};

// Arguments of attention_backward_leaves.
struct LeafSumArguments {
  QueryLeaves leaves;
  RowsInMemory grad_key, grad_value;  // data: null where it is not wanted
  int32_t kv_heads = 0, kv_len = 0, head_dim = 0, value_dim = 0;
  int64_t vectors = 0;  // of all rows of key and value
};

// Arguments of attention_backward_prepare and attention_backward_finish.
struct AttentionBackwardRows : AttentionBackwardProblem {
  int32_t bias_blocks = 0;  // tiles of dBias
};

}  // namespace perseid::internal::cuda
