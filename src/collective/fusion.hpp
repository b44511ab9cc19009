// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Whether an operation of ranks overlaps computing and communicating, by a model: chunks hide the
// shorter of the two behind the longer one, but for one chunk at an end, and each costs something.
#pragma once

#include "collective/transport.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::collective {

// A GPU that is not there: plans are explained, but nothing is executed.
inline bool is_assumed(const dispatch::Device& device) {
  return device.gpu != nullptr && device.gpu->facts().assumed;
}

// A product in 16-bit types on Hopper, by waves of tiles, with its launch.
double sm90_product_seconds(const MatmulProblem& problem, int32_t multiprocessors);
// Any product on the device.
double product_seconds(const dispatch::Device& device, const MatmulProblem& problem);
// Attention forward of so many FLOPs.
double attention_seconds(const dispatch::Device& device, DType dtype, double flops);

// Seconds. The product, or another computation, and the transfer: each alone.
struct FusionForecast {
  double product, transfer, chunk;
  int64_t chunks;
  const char* computation = "product";
  // Why all data has arrived, or is complete, before the other begins; null: it need not.
  const char* staged = nullptr;
  // Multiprocessors that a fused product leaves free for the kernels of the transfer.
  int32_t spared = 0, multiprocessors = 0;
  std::string assumed = {};  // of a GPU that is: the rates

  double fused() const {
    const auto count = static_cast<double>(chunks < 1 ? 1 : chunks);
    const double computing =
        spared == 0 ? product : product * multiprocessors / (multiprocessors - spared);
    const double longer = max(computing, transfer), shorter = min(computing, transfer);
    return max(longer, shorter + longer / count) + count * chunk;
  }
  double unfused() const { return product + transfer; }
};
// `bytes`: that a rank receives, or sends.
FusionForecast forecast_fusion(const dispatch::Device& device, const Group& group,
                               double product_seconds, double bytes, int64_t chunks);

// Whether the kernel of a product over ranks stores the partial sums of other ranks' shards
// directly in their memory. Otherwise copy engines send them from the own memory, the default:
// direct stores were at best as fast in the measurements. PERSEID_PEER_STORES overrides it.
// `bytes`: that this rank sends.
bool choose_stores(const FusionForecast& forecast, double bytes, int32_t ranks, std::string* why);

// Chunks of a shard of sums that is sent. Each costs some microseconds.
inline constexpr int64_t kChunksSent = 4;
// `depth`: of the product on a rank.
int64_t chunks_sent_by_gpu(int64_t depth, int32_t ranks, bool float8, int64_t shard_bytes);

struct AttentionShard {
  int64_t kv_heads, heads;  // of all entries
  int64_t rows, keys;       // queries of this rank, keys of all
  double seen;              // of the keys, by a query
  int64_t columns;          // of key and value
};
// How many groups of key heads are sent one after the other; transfer: the seconds of all. The
// first tiles of queries belong to the first heads and want all their keys: if all heads came at
// once, they would wait for bytes of the others. A group arrives while its first tiles are half
// done, and has two tiles for each multiprocessor.
int64_t head_groups(const AttentionShard& shard, double transfer);
// Whether keys arrive and gradients leave while backward runs. transfer: the seconds of both, which
// else come before and behind it.
bool backward_streams(const AttentionShard& shard, double transfer, int32_t multiprocessors);

// `wanted` of the descriptor, or what the model says; unfused where data is staged. `why`: a
// sentence's end, for explain.
bool choose_fusion(uint32_t wanted, const FusionForecast& forecast, std::string* why);

}  // namespace perseid::internal::collective
