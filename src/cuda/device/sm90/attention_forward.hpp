// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for f16 and bf16 on sm_90a: out = softmax(scale * query key^T, masked) value,
// and the logarithm of each row's sum.
//
// Who does what. One block for each multiprocessor, which takes tiles of queries until none is
// left (attention_tiles.hpp). Warpgroup 0 is the producer (attention_producer.hpp): one thread of
// it finds the tiles and asks the copy engine for all loads. Each other warpgroup, a consumer, has
// 64 query rows of the tile; its scores S, weights P and results O live in registers.
//
//   queries 64 x key_dim (shared)  times  keys x key_dim (shared), transposed  =  S 64 x keys
//   P 64 x keys (registers)        times  keys x value_dim (shared)           +=  O 64 x value_dim
//
// The way of a tile, keys from the last to the first. In step n a consumer
//
//   begins     S(n) = Q K(n)^T, then O += P(n+1) V(n+1)
//   waits for  S(n), edits and masks it (attention_scores.hpp), and takes its softmax
//   waits for  O, rounds the weights to P(n), rescales O where a maximum grew
//
// and with two query slots the step over the end of a tile is the same: S is of the next tile's
// first keys while O takes the last product of this one, so that the tensor cores do not run dry.
// The results leave under the products of the other consumers (attention_results.hpp).
//
// Consumers take turns: one may begin its two products only when the one before it has begun its
// own, so that the softmax of one runs under the products of the others.
//
// Barriers in shared memory: who arrives in each phase. Waiters know the parity by counting.
//   query_full[slot]            the producer and the tile's bytes; announces tile(slot) too
//   query_empty[slot]           each consumer warp, when its results have left the slot
//   key_full, value_full[stage]    the producer and the bytes
//   key_empty, value_empty[stage]  each consumer warp, when its product is complete or passed over
// Named barriers: 1 + c is the turn of consumer c (256 threads: those that wait for it and those
// that pass it on); 5 + c joins the warps of consumer c (128 threads).
//
// Memory order. The copy engine's writes are seen by who waits for the barrier that counts them.
// Results are written by ordinary stores, so that each lane fences before its warp meets and one
// lane asks for the store; that lane waits until the store has read them before it frees the slot.
//
// Limits: rows and columns count in 32 bits; scale is positive. Weights are rounded to 16 bits
// before their product with values, as their sum is not; everything else is float32.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention_results.hpp"

namespace perseid::cuda {

template <AttentionForwardConfig C>
class ForwardConsumer {
 public:
  __device__ __forceinline__ ForwardConsumer(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared, int number)
      : arguments_(arguments),
        shared_(shared),
        number_(number),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rules_(arguments, 64 * number + 16 * warp_ + lane_ / 4, lane_) {}

  __device__ __forceinline__ void run() {
    if (number_ == C.consumers - 1) pass_turn(0);
    int slot = await_tile();
    if (C.lengths && shared_.tile(slot).query < 0) {
      if (number_ == 0) await_turn();
      return;
    }
    begin(slot);
    while (true) {
      const int first = shared_.tile(slot).first;
      for (int n = last_ - 1; n >= first; --n) {
        step(slot, n);
        free_slot();
      }
      free_slot();
      if constexpr (C.slots == 2) {
        const int next = await_tile();
        if (shared_.tile(next).query < 0) break;
        cross(slot, next);
        slot = next;
      } else {
        last_product();
        finish(slot, statistics_);
        free_slot();
        slot = await_tile();
        if (shared_.tile(slot).query < 0) break;
        begin(slot);
      }
    }
    if constexpr (C.slots == 2) {
      last_product();
      finish(slot, statistics_);
    }
    if (number_ == 0) await_turn();  // so that no barrier is left half full
    if (lane_ == 0) ptx::wait_for_stores();
  }

 private:
  // ---- Turns, and what is shared with the producer ----

  __device__ __forceinline__ void await_turn() {
    if constexpr (C.consumers > 1) ptx::named_sync(1 + number_, 256);
  }
  __device__ __forceinline__ void pass_turn(int to) {
    if constexpr (C.consumers > 1) ptx::named_arrive(1 + to, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    pass_turn(number_ + 1 == C.consumers ? 0 : number_ + 1);
  }
  // The slot of the next tile, when its queries are there.
  __device__ __forceinline__ int await_tile() {
    const int slot = queries_.place();
    ptx::phase_wait(shared_.query_full(slot), queries_.parity());
    ++queries_.count;
    return slot;
  }
  __device__ __forceinline__ void await_key() {
    ptx::phase_wait(shared_.key_full(keys_.place()), keys_.parity());
  }
  __device__ __forceinline__ void await_value() {
    ptx::phase_wait(shared_.value_full(values_.place()), values_.parity());
  }
  __device__ __forceinline__ void free_key() {
    if (lane_ == 0) ptx::phase_arrive(shared_.key_empty(keys_.place()));
    ++keys_.count;
  }
  __device__ __forceinline__ void free_value() {
    if (lane_ == 0) ptx::phase_arrive(shared_.value_empty(values_.place()));
    ++values_.count;
  }
  // Under a causal mask the first consumers see nothing of some tile's last keys. They pass over
  // them, and over as many turns: but for fewer than are on their way at once, since more of them
  // come only when the others have had their turns.
  __device__ __forceinline__ void pass_over_keys(int slot) {
    const AttentionTile& tile = shared_.tile(slot);
    last_ = tile.last;
    if constexpr (C.passes()) {
      const int query = tile.query + ((64 * number_ + 63) >> arguments_.pack);
      const int seen = max(query + tile.right - 1, 0) / C.keys;
      last_ = max(min(tile.last, seen), max(tile.first, tile.last - (C.stages - 1)));
      for (int n = tile.last; n > last_; --n) {
        await_key();
        free_key();
        await_turn();
        pass_turn();
      }
    }
  }
  __device__ __forceinline__ void pass_over_values() {
    if constexpr (C.passes())
      for (; values_to_pass_ > 0; --values_to_pass_) {
        await_value();
        free_value();
      }
  }
  // The slot whose results are on their way out.
  __device__ __forceinline__ void free_slot() {
    if (leaving_ < 0) return;
    if (lane_ == 0) {
      ptx::wait_for_reads_of_stores();
      ptx::phase_arrive(shared_.query_empty(leaving_));
    }
    leaving_ = -1;
  }

  // ---- Products ----

  // S = Q K^T, K from the ring.
  __device__ __forceinline__ void begin_scores(int slot) {
    const uint64_t query = ptx::matrix_at(shared_.query(slot, number_));
    const uint64_t key = ptx::matrix_at(shared_.key(keys_.place()));
#pragma unroll
    for (int k = 0; k < C.key_dim / 16; ++k)
      Scores::shared(scores_, ptx::matrix_after(query, k / 4 * 64 * 128 + k % 4 * 32),
                     ptx::matrix_after(key, k / 4 * C.keys * 128 + k % 4 * 32), k > 0);
    ptx::products_commit();
  }
  // Behind the end of a sequence there may be anything, which weights of 0 do not make 0. All warps
  // that multiply these values clear those rows themselves, in whatever order.
  __device__ __forceinline__ void clear_values() {
    if constexpr (!C.lengths) return;
    if (stale_from_ >= C.keys) return;
    constexpr int kPieces = C.value_chunks() * 8;
    unsigned char* values = shared_.memory + (shared_.value(values_.place()) - shared_.base);
    const int rows = C.keys - stale_from_;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < rows * kPieces; i += 128) {
      const int row = stale_from_ + i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(values + piece / 8 * C.keys * 128 + row * 128 + piece % 8 * 16) =
          uint4{0, 0, 0, 0};
    }
    ptx::fence_for_engines();
    ptx::named_sync(5 + number_, 128);
    stale_from_ = C.keys;
  }
  // O += P V, V from the ring; O = P V at the start of a tile.
  __device__ __forceinline__ void begin_results() {
    const uint64_t value = ptx::matrix_at(shared_.value(values_.place()), C.keys * 128);
#pragma unroll
    for (int k = 0; k < C.keys / 16; ++k)
      Results::registers(out_, weights_ + 4 * k, ptx::matrix_after(value, k * 16 * 128),
                         k > 0 || gathering_);
    ptx::products_commit();
    gathering_ = true;
  }
  // kBeside: products that go on.
  template <bool kFirst, int kBeside>
  __device__ __forceinline__ void take_scores(int slot, int n, float (&factor)[2]) {
    const AttentionTile& tile = shared_.tile(slot);
    const bool edge = rules_.is_edge(tile, n);
    const auto planes = rules_.load(tile, n, edge);
    ptx::products_wait<kBeside>();
    ptx::results_are_here(scores_);
    free_key();
    if constexpr (C.lengths && kFirst) stale_from_ = clamp(tile.kv_len - n * C.keys, 0, C.keys);
    rules_.before_softmax(tile, n, edge, planes, scores_);
    weigh<kFirst>(scores_, rules_.scale_log2(), statistics_, factor);
    rules_.after_softmax(tile, n, scores_);
  }
  __device__ __forceinline__ void results_done() {
    ptx::products_wait<0>();
    ptx::results_are_here(out_);
    free_value();
  }

  // ---- Steps ----

  // The first scores of a tile, where nothing is there to run beside them.
  __device__ __forceinline__ void begin(int slot) {
    float factor[2];
    pass_over_keys(slot);
    await_key();
    ptx::products_begin();
    begin_scores(slot);
    values_to_pass_ = shared_.tile(slot).last - last_;
    take_scores<true, 0>(slot, last_, factor);
    round_weights<C.dtype>(scores_, weights_);
  }
  // Keys n, while P(n + 1) is multiplied.
  __device__ __forceinline__ void step(int slot, int n) {
    float factor[2];
    begin_both(slot);
    take_scores<false, 1>(slot, n, factor);
    if constexpr (C.beside) ptx::after(statistics_.sum[0] + statistics_.sum[1]);
    results_done();
    round_weights<C.dtype>(scores_, weights_);
    rescale(out_, factor);
  }
  // The next tile's last keys, while this tile's last product is taken.
  __device__ __forceinline__ void cross(int slot, int next) {
    const RowStatistics complete = statistics_;
    float factor[2];
    pass_over_keys(next);
    begin_both(next);
    values_to_pass_ = shared_.tile(next).last - last_;
    take_scores<true, 1>(next, last_, factor);
    if constexpr (C.beside) ptx::after(statistics_.sum[0] + statistics_.sum[1]);
    results_done();
    finish(slot, complete);
    round_weights<C.dtype>(scores_, weights_);
  }
  __device__ __forceinline__ void begin_both(int slot) {
    await_key();
    await_turn();
    ptx::products_begin();
    begin_scores(slot);
    pass_over_values();
    await_value();
    clear_values();
    ptx::products_begin();
    begin_results();
    pass_turn();
  }
  __device__ __forceinline__ void last_product() {
    pass_over_values();
    await_value();
    clear_values();
    await_turn();
    ptx::products_begin();
    begin_results();
    pass_turn();
    results_done();
  }

  __device__ __forceinline__ void finish(int slot, const RowStatistics& rows) {
    const int thread = ptx::thread_number();
    ResultWriter<C>(arguments_, shared_, rules_, number_, thread / 32 % 4, thread % 32)
        .write(slot, out_, rows);
    gathering_ = false;
    leaving_ = slot;
  }

  using Scores = ptx::Product<C.keys, C.dtype>;
  using Results = ptx::Product<C.value_dim, C.dtype>;

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  const int number_, warp_, lane_;
  const ScoreRules<C> rules_;
  float scores_[C.keys / 2];
  float out_[C.value_dim / 2];
  uint32_t weights_[C.keys / 4];
  RowStatistics statistics_;
  bool gathering_ = false;   // out_ has products of this tile
  int stale_from_ = C.keys;  // the first row of the next values that is not of the sequence
  int leaving_ = -1;
  int last_ = 0;            // keys of the tile that this consumer begins with
  int values_to_pass_ = 0;  // those of the keys that it passed over
  Ring<C.slots> queries_;
  Ring<C.stages> keys_, values_;
};

template <AttentionForwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    attention_forward(const __grid_constant__ AttentionForwardArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ForwardShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  if (threadIdx.x == 0) shared.prepare();
  __syncthreads();
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();
  // The same for all threads of a warp, as the compiler has to know.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    if constexpr (C.consumers > 1) ptx::give_registers_back<C.producer_registers()>();
    if (threadIdx.x == 0) ForwardProducer<C>(arguments, shared).run();
  } else {
    if constexpr (C.consumers > 1) ptx::take_registers<C.consumer_registers()>();
    ForwardConsumer<C>(arguments, shared, group - 1).run();
  }
}

}  // namespace perseid::cuda
