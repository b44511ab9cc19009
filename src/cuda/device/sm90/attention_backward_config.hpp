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
  int key_dim = 128;    // of query and key, a multiple of 16
  int value_dim = 128;  // of value and out, a multiple of 16
  int queries = 64;     // of a step: 64, or 128 where key_dim is at most 64
  bool halves = true;   // each consumer has half of the keys; else half of the products
  bool right = false;   // the last visible key depends on the query, as under a causal mask
  bool left = false;    // the first one does, as under a window
  bool deterministic = false;
  bool grad_query = true, grad_key = true, grad_value = true;

  static constexpr int kConsumers = 2, kStages = 2;
  constexpr int keys() const { return halves ? 128 : 64; }
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

  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
};

inline constexpr int kRowThreads = 256;  // of a block of the kernels before and after

// Sums of grad_query, float32: [batch * heads][block of queries][piece][warp][8][lane][4], as the
// accumulators of products hold them.
inline constexpr int kPieceFloats = 64 * 64;

struct AttentionBackwardArguments {
  TensorMap query, key, value, grad_out, grad_key, grad_value;
  const float* lse_log2 = nullptr;  // [batch * heads][q_blocks * queries], see prepare
  const float* delta = nullptr;
  float* sums = nullptr;
  uint64_t* turns = nullptr;  // deterministic: [batch * heads][q_blocks][consumer]
  uint32_t* tile = nullptr;   // deterministic: the number of the next one
  int32_t q_len = 0, kv_len = 0;
  int32_t kv_heads = 0, group = 0;  // of a batch entry; query heads of a key head
  int32_t batch_heads = 0;          // key heads of the whole batch
  int32_t k_tiles = 0, q_blocks = 0;
  int32_t heads_per_section = 0;  // key heads whose tiles are done together
  // Row q sees keys [q + left, q + right), cut to [0, kv_len).
  int32_t left = 0, right = 0;
  float scale = 0, scale_log2 = 0;  // scale_log2: scale * log2(e)
  // Gradients of C that this launch wants. Those of queries stay in their sums, if not.
  bool wants_key = false, wants_value = false;
};

// Of the kernels that work on rows, before and after. Strides: batch, head, row.
struct AttentionBackwardRows {
  const void *out = nullptr, *grad_out = nullptr;
  const float *lse = nullptr, *grad_lse = nullptr;  // grad_lse may be null
  void* grad_query = nullptr;
  int64_t out_stride[3]{}, grad_out_stride[3]{}, lse_stride[3]{}, grad_lse_stride[3]{};
  int64_t grad_query_stride[3]{};
  float *lse_log2 = nullptr, *delta = nullptr, *sums = nullptr;
  uint64_t* turns = nullptr;
  uint32_t* tile = nullptr;
  int32_t q_len = 0, heads = 0, q_blocks = 0, head_dim = 0, value_dim = 0;
  float scale = 0;
};

}  // namespace perseid::cuda
