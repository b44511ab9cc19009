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
    if constexpr (C.ping_pong()) ptx::named_barrier_sync(kBarrier + consumer_, 256);
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
    if constexpr (C.ping_pong()) ptx::named_barrier_arrive(kBarrier + consumer, 256);
  }

  const int consumer_;
};

template <AttentionForwardConfig C>
class KvTiles {
 public:
  __device__ __forceinline__ KvTiles(const AttentionForwardArguments& arguments,
                                     const ForwardShared<C>& shared, int consumer, int lane)
      : arguments_(arguments),
        shared_(shared),
        consumer_(consumer),
        lane_(lane),
        releases_in_(lane) {}

  // Blocks of a cluster load for themselves in the second pass, but the barriers still count the
  // arrivals of all: the lanes that arrived in other blocks arrive in this one.
  __device__ __forceinline__ void begin_second_pass() {
    if constexpr (C.cluster > 1) releases_in_ = ptx::block_of_cluster();
  }

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
#pragma unroll
    for (int piece = 0; piece < C.value_pieces(); ++piece) wait_value(piece);
    release_value();
  }

  // Rows behind the end of a sequence may hold NaN, which weights of 0 do not make 0. Every
  // consumer clears those of the next V tile, from `first` on, before its product, in any order:
  // what one clears again while the other's product reads it is 0 already.
  __device__ __forceinline__ void note_stale_values(int first) { stale_from_ = first; }
  __device__ __forceinline__ void clear_stale_values() {
    if (stale_from_ >= C.keys) return;
    using Value = typename ForwardShared<C>::Value;
    constexpr int kRowPieces = Value::kChunks * 8;  // of 16 bytes
#pragma unroll
    for (int piece = 1; piece < C.value_pieces(); ++piece) wait_value(piece);
    const int rows = C.keys - stale_from_;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < rows * kRowPieces; i += 128) {
      const int row = stale_from_ + i / kRowPieces, part = i % kRowPieces;
      unsigned char* values = shared_.pointer(value(row / Value::kRows).base);
      *reinterpret_cast<uint4*>(values + part / 8 * Value::kChunkBytes + row % Value::kRows * 128 +
                                part % 8 * 16) = uint4{0, 0, 0, 0};
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(ForwardShared<C>::kConsumerWarps + consumer_, 128);
    stale_from_ = C.keys;
  }

  // ---- The consumer's side of the pipelines; whole warps call it ----

  __device__ __forceinline__ auto key(int piece = 0) const {
    return shared_.key(key_piece(piece).stage());
  }
  __device__ __forceinline__ auto value(int piece = 0) const {
    return shared_.value(value_piece(piece).stage());
  }
  __device__ __forceinline__ auto bias() const { return shared_.bias(biases_.stage(), consumer_); }
  __device__ __forceinline__ uint32_t numbers(const AttentionTile& tile) const {
    const uint32_t loaded = shared_.numbers(keys_.count);
    if constexpr (C.number_pairs) return loaded;
    constexpr auto kBytes = static_cast<uint32_t>(sizeof(RowNumbers));
    return loaded + static_cast<uint32_t>(first_number<C>(arguments_, tile) & 1) * kBytes;
  }
  __device__ __forceinline__ void wait_key(int piece = 0) const {
    shared_.keys().consumer_wait(key_piece(piece));
  }
  __device__ __forceinline__ void wait_value(int piece = 0) const {
    shared_.values().consumer_wait(value_piece(piece));
  }
  __device__ __forceinline__ void wait_bias() const { shared_.biases().consumer_wait(biases_); }
  // One piece but the last, which release_key() releases.
  __device__ __forceinline__ void release_key_piece(int piece) const {
    release(shared_.keys(), key_piece(piece));
  }
  __device__ __forceinline__ void release_key() {
    release_key_piece(C.key_pieces() - 1);
    keys_.advance();
  }
  // All pieces.
  __device__ __forceinline__ void release_value() {
#pragma unroll
    for (int piece = 0; piece < C.value_pieces(); ++piece)
      release(shared_.values(), value_piece(piece));
    values_.advance();
  }
  __device__ __forceinline__ void release_bias() {
    __syncwarp();
    if (lane_ == 0) shared_.biases().consumer_release(biases_);
    biases_.advance();
  }

 private:
  template <class Stages, class Piece>
  __device__ __forceinline__ void release(const Stages& stages, const Piece& piece) const {
    if constexpr (C.cluster == 1) {
      if (lane_ == 0) stages.consumer_release(piece);
    } else {
      if (lane_ < C.cluster) stages.consumer_release_in_block(piece, releases_in_);
    }
  }
  __device__ __forceinline__ void skip_key() {
#pragma unroll
    for (int piece = 0; piece < C.key_pieces(); ++piece) {
      wait_key(piece);
      if (piece + 1 < C.key_pieces()) release_key_piece(piece);
    }
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

  using KeyPiece = PipelinePiece<C.stages, C.key_pieces()>;
  using ValuePiece = PipelinePiece<C.stages, C.value_pieces()>;
  __device__ __forceinline__ KeyPiece key_piece(int piece) const { return {keys_, piece}; }
  __device__ __forceinline__ ValuePiece value_piece(int piece) const { return {values_, piece}; }

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  const int consumer_, lane_;
  uint32_t releases_in_;  // the block of the cluster in which the lane releases stages
  VisitedTiles<C> visited_{};
  int idle_iterations_ = 0;  // that are left in the Q tile
  int stale_from_ = C.keys;  // first row of the next V tile behind the end of its sequence
  int last_values_ = 0;      // V tiles that enter() has skipped and that are not released
  PipelineState<C.stages> keys_, values_;
  PipelineState<max(C.bias_stages, 1)> biases_;
};

}  // namespace perseid::internal::cuda
