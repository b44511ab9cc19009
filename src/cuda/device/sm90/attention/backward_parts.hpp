// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the consumers of attention backward on sm_90a have in common, whichever way they share their
// work: gradients of scores to shared memory, the sums of grad_query, and the gradients of keys and
// values on their way out. Scores themselves are in backward_scores.hpp.
#pragma once

#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/sm90/attention/backward_clearing.hpp"
#include "cuda/device/sm90/attention/backward_rows.hpp"
#include "cuda/device/sm90/attention/backward_scores.hpp"

namespace perseid::internal::cuda {

// ---- The order of summands of grad_query ----

// The last tile of keys that visits a block of queries.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t last_tile(const BackwardTile& tile, int32_t block) {
  const int32_t end = min((block + 1) * C.queries, tile.q_len) - 1 + tile.right;
  return ((C.right ? min(end, tile.kv_len) : tile.kv_len) - 1) / C.keys();
}

// Deterministic: how many tiles add to a block of queries before this one.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t dq_summands_before(const BackwardTile& tile, int32_t block) {
  const int32_t own = tile.key / C.keys();
  return C.reverse_order() && tile.back ? own : last_tile<C>(tile, block) - own;
}

template <AttentionBackwardConfig C>
__device__ __forceinline__ uint64_t* complete_sums(const AttentionBackwardArguments& a,
                                                   const BackwardTile& tile) {
  return a.complete + tile.batch * a.kv_heads + tile.kv_head;
}

// Where it does not count: a warp beside the producer tells when the tile has no more summands of
// grad_query, so that nobody waits for memory who has something else to do. Consumers arrive at the
// named barrier.
inline constexpr int kEndOfSums = 2;
template <AttentionBackwardConfig C>
__device__ __forceinline__ void tell_of_end(const AttentionBackwardArguments& a,
                                            const BackwardTile& tile) {
  ptx::named_barrier_sync(kEndOfSums, 256 + 32);
  if (threadIdx.x % 32 == 0) ptx::add_release(complete_sums<C>(a, tile), C.kConsumers);
}

// Deterministic: the turns of the consumers' summands of grad_query. Threads beside the producer
// wait for memory, so that consumers do not: one for each consumer looks out for its turns, one
// passes them on. Barriers of each consumer, a phase for each step:
//   dq_granted     who looks out lets the consumer add
//   dq_added      the consumer's four warps have added
//   dq_released    who passes it on has seen that: the next one may come
// Nobody lets a phase end before the last one was waited for, in which it would be missed. Passing
// a turn on, with release, orders what was added before dq_added, too. Who has the first turn
// stores its summands: nobody has cleared the sums.
template <AttentionBackwardConfig C>
class DqSemaphore {
 public:
  __device__ __forceinline__ DqSemaphore(const AttentionBackwardArguments& arguments,
                                         const BackwardShared<C>& shared, const BackwardTile& tile)
      : a_(arguments), shared_(shared), tile_(tile) {}

  __device__ __forceinline__ void look_out(int consumer) const {
    bool in_order = true;
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      in_order = in_order && await_number(turn(step, consumer), rank(step), a_.timed_out);
      if (number > 0) ptx::mbarrier_wait(shared_.dq_released(consumer), parity(number - 1));
      ptx::mbarrier_arrive(shared_.dq_granted(consumer));
    });
  }
  __device__ __forceinline__ void pass_on() const {
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
#pragma unroll
      for (int i = 0; i < C.kConsumers; ++i) {
        const int consumer = C.split_keys ? i : 1 - i;  // the first to add
        ptx::mbarrier_wait(shared_.dq_added(consumer), parity(number));
        ptx::mbarrier_arrive(shared_.dq_released(consumer));
        ptx::store_release(turn(step, consumer), rank(step) + 1);
      }
    });
    if constexpr (C.finishes_early()) ptx::add_release(complete_sums<C>(a_, tile_), C.kConsumers);
  }

  static __device__ __forceinline__ uint32_t parity(int number) {
    return static_cast<uint32_t>(number) & 1;
  }

 private:
  __device__ __forceinline__ uint64_t* turn(const BackwardStep& step, int consumer) const {
    return a_.dq_semaphore + block_number<C>(a_, tile_, step.head, step.block) * C.kConsumers +
           consumer;
  }
  __device__ __forceinline__ uint64_t rank(const BackwardStep& step) const {
    return static_cast<uint64_t>(dq_summands_before<C>(tile_, step.block));
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

// ---- Consumers ----

template <AttentionBackwardConfig C>
class BackwardParts : protected BackwardScores<C> {
 protected:
  using typename BackwardScores<C>::Dropped;
  using Scores = BackwardScores<C>;
  using Scores::first_key, Scores::leave, Scores::kScores;
  using Scores::number_, Scores::warp_, Scores::lane_;

  __device__ __forceinline__ BackwardParts(const AttentionBackwardArguments& arguments,
                                           const BackwardShared<C>& shared,
                                           const BackwardTile& tile, int number)
      : Scores(arguments, number), a_(arguments), shared_(shared), tile_(tile) {}

  // ---- Keys and values that are not finite ----

  // In the first step, by the whole consumer: a key or value with such an element has no finite
  // product, so that one of each tells. The clearing warp (backward_clearing.hpp) takes part.
  __device__ __forceinline__ bool clear_nonfinite(bool found) const {
    constexpr int kThreads = 128 + 32;
    if (!ptx::named_barrier_any(kClearing + number_, kThreads, found)) return false;
    ptx::named_barrier_sync(kClearing + number_, kThreads);
    return true;
  }
  __device__ __forceinline__ static bool has_nonfinite(const float (&d)[kScores]) {
    return is_nonfinite(fmaf(d[0], 0, d[2] * 0));
  }
  // Keys are cleared before their first product with gradients of scores. The first scores may have
  // any: they are hidden, or part of what is computed again.
  __device__ __forceinline__ void check_keys(int number, const float (&scores)[kScores]) const {
    if constexpr (C.clears_nonfinite())
      if (number == 0) clear_nonfinite(has_nonfinite(scores));
  }
  // The first products with values become finite, as they will be with those that are cleared.
  __device__ __forceinline__ void check_values(int number, float (&products)[kScores]) const {
    if constexpr (C.clears_nonfinite())
      if (number == 0 && clear_nonfinite(has_nonfinite(products))) {
#pragma unroll
        for (float& x : products) x = fabsf(x) < -minus_infinity() ? x : 0;
      }
  }
  // Where there are no products to tell.
  __device__ __forceinline__ void check_without_products(int number) const {
    if constexpr (C.clears_nonfinite())
      if (number == 0) {
        clear_nonfinite(has_nonfinite(shared_.key(), C.key_chunks()));
        clear_nonfinite(has_nonfinite(shared_.value(), C.value_chunks()));
      }
  }
  // Among the consumer's keys of a tile of keys or values.
  __device__ __forceinline__ bool has_nonfinite(uint32_t tile, int chunks) const {
    // Nothing of this is to stay in registers from one step to the next.
    uint32_t first[1] = {tile - shared_.base + static_cast<uint32_t>(first_key()) * 128};
    ptx::materialize(first);
    bool found = false;
#pragma unroll 1
    for (int i = 32 * warp_ + lane_; i < chunks * 64 * 8; i += 128)
      if (!is_finite<C.dtype>(*reinterpret_cast<const uint4*>(
              shared_.memory + first[0] + i / (64 * 8) * C.keys() * 128 + i % (64 * 8) * 16)))
        found = true;
    return found;
  }

  // d += A B for weights or gradients of scores A in registers and the rows of a step, in `rows`.
  template <int kDim>
  __device__ __forceinline__ void begin_gradient(float (&d)[kDim / 2],
                                                 const uint32_t (&left)[kScores / 2],
                                                 uint32_t rows) const {
    const uint64_t right = ptx::make_descriptor(rows, C.queries * 128);
#pragma unroll
    for (int k = 0; k < C.queries / 16; ++k)
      ptx::Wgmma<kDim, C.dtype>::mma_rs(d, left + 4 * k,
                                        ptx::advance_descriptor(right, k * 16 * 128), true);
    ptx::wgmma_commit();
  }

  // One piece of grad_query of this step: the gradients of its scores times the tile's keys.
  // A thread has half as many parts as the piece has columns.
  template <int kParts>
  __device__ __forceinline__ void begin_piece(float (&d)[kParts], int parity, int piece) const {
    const uint64_t left =
        ptx::make_descriptor(shared_.scores(parity) + piece / C.pieces_across() * C.keys() * 128);
    const int column = piece % C.pieces_across() * C.piece_columns();
    const uint64_t right = ptx::make_descriptor(shared_.key() + column / kChunk * C.keys() * 128 +
                                                column % kChunk * 2);
#pragma unroll
    for (int k = 0; k < C.keys() / 16; ++k)
      ptx::Wgmma<2 * kParts, C.dtype>::template mma_ss<true, true>(
          d, ptx::advance_descriptor(left, k * 16 * 128),
          ptx::advance_descriptor(right, k * 16 * 128), k > 0);
    ptx::wgmma_commit();
  }

  // ---- Scores of a step ----

  __device__ __forceinline__ bool loads_bias() const { return C.bias_stages > 0 && a_.bias_mapped; }
  // Its tile of bias, which becomes that of its gradient, leaves when the step ends.
  __device__ __forceinline__ bool stores_bias_gradient() const {
    return C.grad_bias_in_place() && a_.grad_bias_mapped;
  }
  __device__ __forceinline__ PipelineState<max(C.bias_stages, 1)> bias_stage(int number) const {
    return {number};
  }

  __device__ __forceinline__ void softmax(float (&scores)[kScores], int number,
                                          const BackwardStep& step, const Dropped& dropped) const {
    const auto stage = bias_stage(number);
    const BiasTile<C> bias = shared_.bias(stage.stage());
    if (loads_bias()) ptx::mbarrier_wait(shared_.bias_full(stage.stage()), stage.parity());
    this->scores_to_weights(scores, tile_, step, shared_.lse_log2(stage_of<C>(number).stage()),
                            bias, loads_bias(), dropped);
    if (loads_bias() && !stores_bias_gradient()) leave(shared_.bias_empty(stage.stage()));
  }
  __device__ __forceinline__ void compute_ds(const float (&weights)[kScores],
                                             const float (&d)[kScores], int number,
                                             uint32_t (&gradients)[kScores / 2]) const {
    const float* delta = shared_.delta(stage_of<C>(number).stage());
    const auto keep = [&](int i, const float(&eight)[8]) {
#pragma unroll
      for (int p = 0; p < 4; ++p)
        gradients[i / 2 + p] = round_pair<C.dtype>(eight[2 * p], eight[2 * p + 1]);
    };
    const BiasTile<C> bias = shared_.bias(bias_stage(number).stage());
    if constexpr (C.bias == C.dtype && !C.masked()) {
      this->weights_to_ds(weights, d, delta, keep);
      if (!stores_bias_gradient()) return;
#pragma unroll
      for (int i = 0; i < kScores / 2; i += 4) {
        const uint32_t pairs[4] = {gradients[i], gradients[i + 1], gradients[i + 2],
                                   gradients[i + 3]};
        bias.store_pairs(this->warp_key(), lane_, 2 * i, pairs);
      }
    } else if (stores_bias_gradient()) {
      this->weights_to_ds(weights, d, delta, [&](int i, float(&eight)[8]) {
        keep(i, eight);
        this->clear_masked(weights, i, eight);
        bias.store(this->warp_key(), lane_, i, eight);
      });
    } else {
      this->weights_to_ds(weights, d, delta, keep);
    }
  }
  // One thread of the consumer asks the engine to store the consumer's keys, when all of it have
  // written them; and the whole consumer leaves the tile when they have been read.
  __device__ __forceinline__ void store_bias_gradient(int stage, const BackwardStep& step) const {
    if (warp_ != 0 || lane_ != 0) return;
#pragma unroll
    for (int key = first_key(); key < first_key() + 64; key += BiasTile<C>::kChunkKeys)
      ptx::tma_store(a_.grad_bias_map, shared_.bias(stage).chunk(key),
                     {tile_.key + key, step.block * C.queries, step.head, tile_.batch, 0});
    ptx::tma_store_commit();
  }
  __device__ __forceinline__ void release_bias(int stage) const {
    if (warp_ == 0 && lane_ == 0) ptx::tma_store_wait_read();
    leave(shared_.bias_empty(stage));
  }
  // Of queries that do not see the tile, when it has no more steps.
  __device__ __forceinline__ void clear_bias_gradient() const {
    const int thread = 128 * number_ + 32 * warp_ + lane_;
    for (int i = thread; i < C.bias_bytes() / 16; i += 256)
      reinterpret_cast<uint4*>(shared_.bias(0).memory)[i] = uint4{0, 0, 0, 0};
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1, 256);
    for (int32_t g = 0; g < a_.group; ++g)
      for (int32_t block = 0; block < a_.q_blocks; ++block)
        if (block < tile_.first || block >= tile_.end)
          store_bias_gradient(0, {tile_.kv_head * a_.group + g, block});
  }

  // To shared memory, as the left operand of pieces, whose rows are queries.
  __device__ __forceinline__ void share_gradients(const uint32_t (&gradients)[kScores / 2],
                                                  int parity) const {
    const int row = first_key() + 16 * warp_ + lane_ % 16;
#pragma unroll
    for (int j = 0; j < C.queries / 8; j += 2) {
      const int piece = j % 8 + lane_ / 16;
      ptx::stmatrix_x4(
          shared_.scores(parity) + (j / 8 * C.keys() + row) * 128 + ((piece ^ row % 8) << 4),
          gradients[2 * j], gradients[2 * j + 1], gradients[2 * j + 2], gradients[2 * j + 3]);
    }
    ptx::fence_proxy_async();
  }

  // ---- Sums of grad_query ----

  template <int kParts>
  __device__ __forceinline__ void add_piece(const float (&d)[kParts], const BackwardStep& step,
                                            int piece) const {
    float* to = a_.sums + block_number<C>(a_, tile_, step.head, step.block) * C.block_floats() +
                piece * C.piece_floats() + warp_ * (32 * kParts) + lane_ * 4;
    if (C.deterministic && dq_summands_before<C>(tile_, step.block) == 0) {
#pragma unroll
      for (int j = 0; j < kParts / 4; ++j)
        *reinterpret_cast<float4*>(to + 128 * j) =
            float4{d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]};
    } else {
#pragma unroll
      for (int j = 0; j < kParts / 4; ++j)
        ptx::red_add_v4(to + 128 * j, d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
    }
  }
  // The consumer has no more summands.
  __device__ __forceinline__ void end_sums() const {
    if constexpr (C.finishes_early() && !C.deterministic)
      ptx::named_barrier_arrive(kEndOfSums, 256 + 32);
  }
  // Around the summands of a step, where their order counts.
  __device__ __forceinline__ void dq_wait(int number) const {
    if constexpr (C.deterministic)
      ptx::mbarrier_wait(shared_.dq_granted(number_), DqSemaphore<C>::parity(number));
  }
  __device__ __forceinline__ void dq_arrive() const {
    if constexpr (C.deterministic) leave(shared_.dq_added(number_));
  }

  // ---- Results ----

  // Where a cluster shares the tile: each warp's keys are those of one block of it, which adds the
  // gradients of the others to its own, in their order, through shared memory that nobody of the
  // consumers needs any more.
  __device__ __forceinline__ bool has_results() const {
    return C.cluster_size == 1 || (4 * number_ + warp_) % C.cluster_size == block_of_cluster();
  }
  __device__ __forceinline__ static int block_of_cluster() {
    return static_cast<int>(ptx::block_of_cluster());
  }
  template <int kCount>
  __device__ __forceinline__ void lend(const float (&d)[kCount], int floats_before) const {
    float4* to = lent(floats_before);
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      to[i / 4 * 256] = float4{d[i], d[i + 1], d[i + 2], d[i + 3]};
  }
  template <int kCount>
  __device__ __forceinline__ void gather(float (&d)[kCount], int floats_before) const {
#pragma unroll 1
    for (int block = 0; block < C.cluster_size; ++block) {
      if (block == block_of_cluster()) continue;
      const uint32_t from =
          ptx::address_in_block(lent(floats_before), static_cast<uint32_t>(block));
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = ptx::load_four_from_block(from + i / 4 * 256 * 16);
        d[i] += four.x;
        d[i + 1] += four.y;
        d[i + 2] += four.z;
        d[i + 3] += four.w;
      }
    }
  }
  __device__ __forceinline__ float4* lent(int floats_before) const {
    return reinterpret_cast<float4*>(shared_.memory) + floats_before / 4 * 256 + 128 * number_ +
           32 * warp_ + lane_;
  }
  // lend() comes before, gather() in between.
  __device__ __forceinline__ void end_lending() const {
    ptx::cluster_arrive_and_release();
    ptx::cluster_wait();
  }

  // 64 keys of a gradient, through the shared memory of what it is the gradient of.
  template <int kDim>
  __device__ __forceinline__ void store_gradient(const float (&d)[kDim / 2], float factor,
                                                 uint32_t through, const TensorMap& map) const {
    const uint32_t part = through + (first_key() + warp_ * 16) * 128;
    const auto pair = [&](int i) { return round_pair<C.dtype>(d[i] * factor, d[i + 1] * factor); };
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      const int piece = j % 8 + lane_ / 16;
      ptx::stmatrix_x4(
          part + j / 8 * C.keys() * 128 + lane_ % 16 * 128 + ((piece ^ lane_ % 8) << 4),
          pair(4 * j), pair(4 * j + 2), pair(4 * j + 4), pair(4 * j + 6));
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_ != 0) return;
    const MapCoordinate place = key_coordinate<C.lengths>(a_, tile_);
    const int row = place.row + tile_.key + first_key() + warp_ * 16;
#pragma unroll
    for (int chunk = 0; chunk < (kDim + kChunk - 1) / kChunk; ++chunk)
      ptx::tma_store(map, part + chunk * C.keys() * 128,
                     {chunk * kChunk, 0, row, tile_.kv_head, place.entry});
    ptx::tma_store_commit();
  }

  // 64 keys of a gradient that is added to what its tensor holds: from registers to memory, but for
  // rows that are not finite, whose old values are needed again.
  template <int kDim>
  __device__ __forceinline__ void add_gradient(const float (&d)[kDim / 2], float factor,
                                               const RowsInMemory& rows) const {
    const bool of_key = &rows == &a_.grad_key_rows;
    uint32_t left_out[2] = {0, 0};  // a bit for each thread's upper and lower row
    if constexpr (C.masked()) {
      float nonfinite[2] = {0, 0};
      find_nonfinite(d, nonfinite);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        left_out[half] = __ballot_sync(0xffffffffu, !(quad_sum(nonfinite[half]) == 0));
        (of_key ? keys_left_out_ : values_left_out_)[half] = left_out[half];
      }
    }
    const int32_t dim = of_key ? a_.head_dim : a_.value_dim;
    const int32_t entry = entry_of<C.lengths>(a_, tile_.batch);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = tile_.key + first_key() + warp_ * 16 + 8 * half + lane_ / 4;
      if (key >= tile_.kv_rows || (left_out[half] >> lane_ & 1) != 0) continue;
      uint16_t* const to = row_at<uint16_t>(rows, entry, tile_.kv_head, tile_.kv_begin + key);
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        const int column = 8 * j + 2 * (lane_ % 4);
        if (column >= dim) continue;
        auto* const pair = reinterpret_cast<uint32_t*>(to + column);
        *pair = add_to_pair<C.dtype>(__ldcg(pair), d[4 * j + 2 * half], d[4 * j + 2 * half + 1],
                                     factor);
      }
    }
  }

  // A gradient leaves when its last product is complete, if it is wanted; `factor` is called then.
  template <int kDim, class Factor>
  __device__ __forceinline__ void epilogue_gradient(float (&d)[kDim / 2], const Factor& factor,
                                                    uint32_t through, const TensorMap& map,
                                                    const RowsInMemory& rows,
                                                    float (&nonfinite)[2]) const {
    ptx::fence_operand(d);
    if (&rows == &a_.grad_key_rows ? C.accumulate_key : C.accumulate_value) {
      if (has_results() && rows.data != nullptr) add_gradient<kDim>(d, factor(), rows);
      return;
    }
    find_nonfinite(d, nonfinite);
    if (has_results() && rows.data != nullptr) store_gradient<kDim>(d, factor(), through, map);
  }
  // After the last of them.
  __device__ __forceinline__ void end_gradients(const float (&nonfinite)[2]) const {
    if (lane_ == 0) ptx::tma_store_wait_read();
    if (has_results()) fix_up(nonfinite);
  }

  // Whether the thread's two keys have parts of a gradient that are not finite.
  template <int kCount>
  __device__ __forceinline__ void find_nonfinite(const float (&d)[kCount],
                                                 float (&nonfinite)[2]) const {
    if constexpr (C.masked()) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) nonfinite[i / 2 % 2] = fmaf(d[i], 0, nonfinite[i / 2 % 2]);
    }
  }
  // After the stores, by the whole warp.
  __device__ __forceinline__ void fix_up(const float (&nonfinite)[2]) const {
    if constexpr (C.masked()) {
      uint32_t upper = __ballot_sync(0xffffffffu, !(quad_sum(nonfinite[0]) == 0));
      uint32_t lower = __ballot_sync(0xffffffffu, !(quad_sum(nonfinite[1]) == 0));
      if constexpr (C.accumulate_key || C.accumulate_value) {
        upper |= keys_left_out_[0] | values_left_out_[0];
        lower |= keys_left_out_[1] | values_left_out_[1];
      }
      const bool cleared = C.clears_nonfinite() && shared_.nonfinite() != 0;
      if ((upper | lower) == 0 && !cleared) return;
      if (lane_ == 0) ptx::tma_store_wait();
      __syncwarp();
#pragma unroll 1
      for (int row = 0; row < 16; ++row) {
        const int key = tile_.key + first_key() + 16 * warp_ + row;
        if (key >= tile_.kv_rows) break;
        if (((row < 8 ? upper : lower) >> (4 * (row % 8)) & 1) != 0 ||
            (cleared && key_depends_on_nonfinite<C>(a_, tile_.batch, tile_.kv_head, key)))
          fix_up_key<C>(a_, tile_.batch, tile_.kv_head, key, left_out(row));
      }
    }
  }

  // Which of what is added add_gradient() left out of one of the warp's 16 rows.
  __device__ __forceinline__ uint32_t left_out(int row) const {
    const auto is_in = [row](const uint32_t(&rows)[2]) {
      return ((row < 8 ? rows[0] : rows[1]) >> (4 * (row % 8)) & 1) != 0;
    };
    return (!C.accumulate_key || is_in(keys_left_out_) ? kRowOfKey : 0) |
           (!C.accumulate_value || is_in(values_left_out_) ? kRowOfValue : 0);
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;

 private:
  // Rows that add_gradient() left out, as ballots.
  mutable uint32_t keys_left_out_[2] = {0, 0}, values_left_out_[2] = {0, 0};
};

}  // namespace perseid::internal::cuda
