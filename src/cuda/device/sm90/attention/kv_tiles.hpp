// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The KV tiles of one consumer of attention forward: which of them it visits, and its side of the
// K, V and bias pipelines.
//
// Consumers share the pipelines, so that each consumer releases every KV tile of a Q tile, also one
// that none of its rows sees. From the last KV tile to the first:
//
//   tile.last ..  |  last() ........ first()  |  .. tile.first
//   skipped under |         visited           |  skipped under
//   a causal mask |                           |  a window
//
// K and bias of a skipped tile are released where its iteration would be. Its V arrives later: the
// consumer releases V of skipped last tiles under its first scores, and V of skipped first tiles
// after its last PV product.
//
// Consumers take part in the ping-pong order equally often in a Q tile, tile.iterations times. A
// consumer that visits fewer KV tiles has idle iterations at the skipped ones: it waits
// and signals the next consumer at once.
#pragma once

#include "cuda/device/sm90/attention/forward_shared.hpp"

namespace perseid::internal::cuda {

// The ping-pong order of the consumers: one issues its products only after the one before it has
// issued its own, so that the softmax of one runs under the products of the others. Named barrier
// kPingPong + c belongs to consumer c; the 128 threads that wait and the 128 that arrive complete
// it.
template <AttentionForwardConfig C>
class PingPong {
 public:
  __device__ __forceinline__ explicit PingPong(int consumer) : consumer_(consumer) {}

  __device__ __forceinline__ void scheduler_wait() const {
    if constexpr (C.consumers > 1) ptx::named_barrier_sync(kBarrier + consumer_, 256);
  }
  __device__ __forceinline__ void scheduler_arrive() const {
    signal(consumer_ + 1 == C.consumers ? 0 : consumer_ + 1);
  }
  // The last consumer signals the first one before its first iteration; the first one takes the
  // surplus signal back at the end, so that no barrier keeps arrivals.
  __device__ __forceinline__ void open() const {
    if (consumer_ == C.consumers - 1) signal(0);
  }
  __device__ __forceinline__ void close() const {
    if (consumer_ == 0) scheduler_wait();
  }

 private:
  static constexpr int kBarrier = ForwardShared<C>::kPingPong;

  static __device__ __forceinline__ void signal(int consumer) {
    if constexpr (C.consumers > 1) ptx::named_barrier_arrive(kBarrier + consumer, 256);
  }

  const int consumer_;
};

template <AttentionForwardConfig C>
class KvTiles {
 public:
  __device__ __forceinline__ KvTiles(const AttentionForwardArguments& arguments,
                                     const ForwardShared<C>& shared, int consumer, int lane)
      : arguments_(arguments), shared_(shared), consumer_(consumer), lane_(lane) {}

  // ---- The visited tiles of a Q tile, from last() to first() ----

  __device__ __forceinline__ int first(const AttentionTile& tile) const {
    return C.left && C.skips_masked_tiles() ? visited_.first : tile.first;
  }
  __device__ __forceinline__ int last(const AttentionTile& tile) const {
    return C.skips_masked_tiles() ? visited_.last : tile.last;
  }

  // Goes to a new Q tile. After it, V of the skipped last tiles may still belong to the Q tile
  // before: see note_last_values().
  __device__ __forceinline__ void enter(const AttentionTile& tile) {
    if constexpr (C.skips_masked_tiles()) {
      visited_ = VisitedTiles<C>::of(tile, consumer_, arguments_.pack_gqa);
      idle_iterations_ = tile.iterations - visited_.count();
      for (int n = tile.last; n > visited_.last; --n) skip_key();
    }
  }
  __device__ __forceinline__ void skip_first_keys(const AttentionTile& tile) {
    if constexpr (C.skips_masked_tiles())
      for (int n = tile.first; n < first(tile); ++n) skip_key();
  }
  __device__ __forceinline__ int first_values(const AttentionTile& tile) const {
    return first(tile) - tile.first;
  }
  __device__ __forceinline__ void skip_values(int count) {
    if constexpr (C.skips_masked_tiles())
      for (; count > 0; --count) skip_value();
  }
  // The values of the tiles that enter() has skipped: skip_last_values() releases them when the
  // first scores were issued.
  __device__ __forceinline__ void note_last_values(const AttentionTile& tile) {
    last_values_ = tile.last - last(tile);
  }
  __device__ __forceinline__ void skip_last_values() {
    skip_values(last_values_);
    last_values_ = 0;
  }
  __device__ __forceinline__ void skip_value() {
    wait_value();
    release_value();
  }

  // ---- The consumer's side of the pipelines; whole warps call it ----

  __device__ __forceinline__ auto key() const { return shared_.key(keys_.stage()); }
  __device__ __forceinline__ auto value() const { return shared_.value(values_.stage()); }
  __device__ __forceinline__ auto bias() const { return shared_.bias(biases_.stage(), consumer_); }
  __device__ __forceinline__ uint32_t numbers(const AttentionTile& tile) const {
    const uint32_t loaded = shared_.numbers(keys_.count);
    if constexpr (C.number_pairs) return loaded;
    constexpr auto kBytes = static_cast<uint32_t>(sizeof(RowNumbers));
    return loaded + static_cast<uint32_t>(first_number<C>(arguments_, tile) & 1) * kBytes;
  }
  __device__ __forceinline__ void wait_key() const { shared_.keys().consumer_wait(keys_); }
  __device__ __forceinline__ void wait_value() const { shared_.values().consumer_wait(values_); }
  __device__ __forceinline__ void wait_bias() const { shared_.biases().consumer_wait(biases_); }
  __device__ __forceinline__ void release_key() {
    if (lane_ == 0) shared_.keys().consumer_release(keys_);
    keys_.advance();
  }
  __device__ __forceinline__ void release_value() {
    if (lane_ == 0) shared_.values().consumer_release(values_);
    values_.advance();
  }
  __device__ __forceinline__ void release_bias() {
    __syncwarp();
    if (lane_ == 0) shared_.biases().consumer_release(biases_);
    biases_.advance();
  }

 private:
  __device__ __forceinline__ void skip_key() {
    wait_key();
    release_key();
    if constexpr (C.bias_stages > 0) {
      wait_bias();
      release_bias();
    }
    if (idle_iterations_ == 0) return;
    --idle_iterations_;
    const PingPong<C> ping_pong(consumer_);
    ping_pong.scheduler_wait();
    ping_pong.scheduler_arrive();
  }

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  const int consumer_, lane_;
  VisitedTiles<C> visited_{};
  int idle_iterations_ = 0;  // that are left in the Q tile
  int last_values_ = 0;      // V tiles that enter() has skipped and that are not released
  PipelineState<C.stages> keys_, values_;
  PipelineState<max(C.bias_stages, 1)> biases_;
};

}  // namespace perseid::internal::cuda
