// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of attention backward on sm_90 share: the configuration that the
// kernels are compiled for, and the arguments of their launches.
#pragma once

#include "cuda/device/tensor_map.hpp"
#include "math/dtype.hpp"

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
  bool deterministic = false;
  bool grad_query = true, grad_key = true, grad_value = true;

  static constexpr int kConsumers = 2, kStages = 2;
  constexpr int keys() const { return halves ? 128 : 64; }
  // Some queries of a step see keys of a tile that others do not.
  constexpr bool masked() const { return right || left || lengths || visible; }
  constexpr int threads() const { return 128 * (kConsumers + 1); }
  constexpr int key_chunks() const { return (key_dim + kChunk - 1) / kChunk; }
  constexpr int value_chunks() const { return (value_dim + kChunk - 1) / kChunk; }
  // grad_query is summed in pieces of 64 queries and 64 columns.
  constexpr int pieces() const { return queries / 64 * key_chunks(); }

  // Shared memory, in bytes.
  constexpr int key_bytes() const { return keys() * 128 * key_chunks(); }
  constexpr int value_bytes() const { return keys() * 128 * value_chunks(); }
  constexpr int query_bytes() const { return queries * 128 * key_chunks(); }
  constexpr int out_bytes() const { return queries * 128 * value_chunks(); }
  constexpr int score_bytes() const { return queries / 64 * keys() * 128; }  // rounded gradients
  constexpr int weight_bytes() const { return halves ? 0 : keys() * queries * 4; }
  constexpr int statistics_bytes() const { return queries * 8; }
  constexpr int shared_bytes() const {
    return key_bytes() + value_bytes() + kStages * (query_bytes() + out_bytes()) +
           2 * score_bytes() + weight_bytes() + kStages * statistics_bytes() + kOthers;
  }
  static constexpr int kOthers = 128;  // barriers

  // Registers of a thread: the producer's warpgroup gives back what the consumers take.
  constexpr int producer_registers() const { return deterministic ? 40 : 24; }
  constexpr int consumer_registers() const { return deterministic ? 232 : 240; }
};

inline constexpr int kRowThreads = 256;  // of a block of the kernels before and after

// Sums of grad_query, float32: [batch * heads][block of queries][piece][warp][8][lane][4], as the
// accumulators of products hold them.
inline constexpr int kPieceFloats = 64 * 64;

// A tensor for ordinary loads and stores; strides in elements: batch, head, row.
struct BackwardRows {
  void* data = nullptr;
  int64_t stride[3]{};
};
// Bias or visible: batch, head, query and key, with stride 0 where it is repeated.
struct BackwardPlane {
  const void* data = nullptr;
  int64_t stride[4]{};
};
// What is needed to compute one row again (attention_backward_mend.hpp). Gradients without data are
// not wanted by this launch, whatever C says.
struct BackwardProblem {
  BackwardRows query, key, value, grad_out, grad_query, grad_key, grad_value;
  const float* lse_log2 = nullptr;  // [batch * heads][q_blocks * queries], see prepare
  const float* delta = nullptr;
  int32_t q_len = 0, kv_len = 0;
  int32_t kv_heads = 0, group = 0;  // of a batch entry; query heads of a key head
  int32_t q_blocks = 0;
  int32_t head_dim = 0, value_dim = 0;
  // Row q sees keys [q + left, q + right), cut to [0, kv_len).
  int32_t left = 0, right = 0;
  bool bottom_right = false;  // as masks are, whose offsets then follow the sequence's own length
  const void* kv_lens = nullptr;
  int64_t kv_lens_stride = 0;
  bool kv_lens_wide = false;  // 64 bits
  BackwardPlane bias, visible;
  uint32_t dropout_threshold = 256, dropout_offset = 0;
  uint64_t dropout_seed = 0;
  const uint64_t* dropout_numbers = nullptr;  // {seed, offset}, where it is not null
  float scale = 0, scale_log2 = 0;            // scale_log2: scale * log2(e)
};

struct AttentionBackwardArguments : BackwardProblem {
  TensorMap query_map, key_map, value_map, grad_out_map, grad_key_map, grad_value_map;
  float* sums = nullptr;
  uint64_t* turns = nullptr;  // deterministic: [batch * heads][q_blocks][consumer]
  uint32_t* tile = nullptr;   // deterministic: the number of the next one
  int32_t batch_heads = 0;    // key heads of the whole batch
  int32_t k_tiles = 0;
  int32_t heads_per_section = 0;  // key heads whose tiles are done together
};

// Of the kernels that work on rows, before and after.
struct AttentionBackwardRows : BackwardProblem {
  BackwardRows out, lse, grad_lse;  // grad_lse may be null
  float *lse_log2_to = nullptr, *delta_to = nullptr, *sums = nullptr;
  uint64_t* turns = nullptr;
  uint32_t* tile = nullptr;
};

}  // namespace perseid::cuda
