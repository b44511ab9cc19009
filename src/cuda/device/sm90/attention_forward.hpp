// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for f16 and bf16 on sm_90a: out = softmax(scale * query key^T, masked) value,
// and the logarithm of each row's sum.
//
// Who does what. One block for each multiprocessor, which takes tiles of queries until none is
// left (attention_tiles.hpp). Warpgroup 0 is the producer: one thread of it finds the tiles and
// asks the copy engine for all loads. Each other warpgroup, a consumer, has 64 query rows of the
// tile; its scores S, weights P and results O live in registers.
//
//   queries 64 x key_dim | x | keys x key_dim |^T  =  S 64 x keys   (from shared memory, both)
//   P 64 x keys (registers) x | keys x value_dim | +=  O 64 x value_dim
//
// The way of a tile, keys from the last to the first. In step n a consumer
//
//   begins  S(n) = Q K(n)^T
//   begins  O += P(n+1) V(n+1)
//   waits for S(n), masks it if n is at an edge, and takes its softmax, under the second product
//   waits for O, rounds the weights to P(n), rescales O where a maximum grew
//
// and with two query slots the step over the end of a tile is the same: S is of the next tile's
// first keys while O takes the last product of this one, so that the tensor cores do not run dry.
// The results leave under the products of the other consumers: each warp puts its 16 rows where its
// queries were, and the copy engine stores them.
//
// Consumers take turns: one may begin its two products only when the one before it has begun its
// own, so that the softmax of one runs under the products of the others.
//
// Barriers in shared memory; the waiter of a phase knows its parity by counting.
//   query_full[slot]   the producer, and the bytes of the tile; announces tiles[slot] too
//   query_empty[slot]  each consumer warp, when its results have left the slot
//   key_full[stage], value_full[stage]     the producer, and the bytes
//   key_empty[stage], value_empty[stage]   each consumer warp, when its product is complete
// Named barriers: 1 + c is the turn of consumer c (256 threads: those that wait for it and those
// that pass it on); 5 + c joins the warps of consumer c (128 threads) before results overwrite
// queries, which any of its warps might still be multiplying.
//
// Memory order. The copy engine's writes are seen by who waits for the barrier that counts them.
// Results are written by ordinary stores, so that each lane fences before its warp meets and one
// lane asks for the store; that lane waits until the store has read them before it frees the slot.
//
// Limits: rows and columns count in 32 bits; scale is positive. Weights are rounded to 16 bits
// before their product with values, as their sum is not; everything else is float32.
#pragma once

#include "cuda/device/ptx/copy.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/products.hpp"
#include "cuda/device/sm90/attention_softmax.hpp"
#include "cuda/device/sm90/attention_tiles.hpp"

namespace perseid::cuda {

// A place in a ring of kSize, and which time round it is.
template <int kSize>
struct Ring {
  int count = 0;
  __device__ __forceinline__ int place() const { return count % kSize; }
  __device__ __forceinline__ uint32_t parity() const {
    return static_cast<uint32_t>(count / kSize) & 1;
  }
};

// Shared memory, by addresses. Tiles are [chunk of 64 columns][row][64].
template <AttentionForwardConfig C>
struct ForwardShared {
  unsigned char* memory;
  uint32_t base;

  static constexpr int kKeys = C.slots * C.consumers * C.part_bytes();
  static constexpr int kValues = kKeys + C.stages * C.key_bytes();
  static constexpr int kBarriers = kValues + C.stages * C.value_bytes();
  static constexpr int kTiles = kBarriers + 8 * (2 * C.slots + 4 * C.stages);
  static_assert(kTiles + C.slots * static_cast<int>(sizeof(AttentionTile)) <= C.shared_bytes());

  __device__ __forceinline__ uint32_t query(int slot, int consumer) const {
    return base + (slot * C.consumers + consumer) * C.part_bytes();
  }
  __device__ __forceinline__ uint32_t key(int stage) const {
    return base + kKeys + stage * C.key_bytes();
  }
  __device__ __forceinline__ uint32_t value(int stage) const {
    return base + kValues + stage * C.value_bytes();
  }
  __device__ __forceinline__ uint32_t barrier(int index) const {
    return base + kBarriers + 8 * index;
  }
  __device__ __forceinline__ uint32_t query_full(int slot) const { return barrier(slot); }
  __device__ __forceinline__ uint32_t query_empty(int slot) const {
    return barrier(C.slots + slot);
  }
  __device__ __forceinline__ uint32_t key_full(int stage) const {
    return barrier(2 * C.slots + stage);
  }
  __device__ __forceinline__ uint32_t key_empty(int stage) const {
    return barrier(2 * C.slots + C.stages + stage);
  }
  __device__ __forceinline__ uint32_t value_full(int stage) const {
    return barrier(2 * C.slots + 2 * C.stages + stage);
  }
  __device__ __forceinline__ uint32_t value_empty(int stage) const {
    return barrier(2 * C.slots + 3 * C.stages + stage);
  }
  __device__ __forceinline__ AttentionTile& tile(int slot) const {
    return reinterpret_cast<AttentionTile*>(memory + kTiles)[slot];
  }

  __device__ __forceinline__ void prepare() const {
    for (int slot = 0; slot < C.slots; ++slot) {
      ptx::phase_init(query_full(slot), 1);
      ptx::phase_init(query_empty(slot), 4 * C.consumers);
    }
    for (int stage = 0; stage < C.stages; ++stage) {
      ptx::phase_init(key_full(stage), 1);
      ptx::phase_init(key_empty(stage), 4 * C.consumers);
      ptx::phase_init(value_full(stage), 1);
      ptx::phase_init(value_empty(stage), 4 * C.consumers);
    }
    ptx::phase_init_done();
  }
};

// ---- Producer ----

template <AttentionForwardConfig C>
class ForwardProducer {
 public:
  __device__ __forceinline__ ForwardProducer(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared)
      : arguments_(arguments), shared_(shared), numbers_(arguments) {}

  // The value of a tile's first keys is wanted after the first key of the next tile: it is owed.
  __device__ __forceinline__ void run() {
    AttentionTile before{};
    bool owing = false;
    int32_t number = numbers_.first();
    while (true) {
      const AttentionTile tile = find_tile<C>(arguments_, number);
      if (C.slots == 1 && owing) load_value(before, before.first);
      if (C.slots == 1) owing = false;
      announce(tile);
      if (tile.query < 0) break;
      load_key(tile, tile.last);
      if (owing) load_value(before, before.first);
      number = -1;
      for (int n = tile.last - 1; n >= tile.first; --n) {
        load_key(tile, n);
        load_value(tile, n + 1);
        // The number is needed after this tile's loads, which take long enough.
        if (number < 0) number = numbers_.draw();
      }
      if (number < 0) number = numbers_.draw();
      before = tile;
      owing = true;
    }
    if (owing) load_value(before, before.first);
    numbers_.close();
  }

 private:
  __device__ __forceinline__ void announce(const AttentionTile& tile) {
    const int slot = queries_.place();
    ptx::phase_wait(shared_.query_empty(slot), queries_.parity() ^ 1);
    ++queries_.count;
    shared_.tile(slot) = tile;
    if (tile.query < 0) {
      ptx::phase_arrive(shared_.query_full(slot));
      return;
    }
    ptx::phase_expect(shared_.query_full(slot), C.consumers * C.query_bytes());
    for (int c = 0; c < C.consumers; ++c)
#pragma unroll
      for (int chunk = 0; chunk < C.key_chunks(); ++chunk)
        ptx::load_box(
            shared_.query(slot, c) + chunk * 64 * 128, arguments_.query, shared_.query_full(slot),
            {chunk * kChunk, 0, tile.query + (64 * c >> arguments_.pack), tile.head, tile.batch});
  }
  __device__ __forceinline__ void load_key(const AttentionTile& tile, int n) {
    const int stage = keys_.place();
    ptx::phase_wait(shared_.key_empty(stage), keys_.parity() ^ 1);
    ++keys_.count;
    ptx::phase_expect(shared_.key_full(stage), C.key_bytes());
    load<C.key_chunks()>(arguments_.key, shared_.key(stage), shared_.key_full(stage), tile, n);
  }
  __device__ __forceinline__ void load_value(const AttentionTile& tile, int n) {
    const int stage = values_.place();
    ptx::phase_wait(shared_.value_empty(stage), values_.parity() ^ 1);
    ++values_.count;
    ptx::phase_expect(shared_.value_full(stage), C.value_bytes());
    load<C.value_chunks()>(arguments_.value, shared_.value(stage), shared_.value_full(stage), tile,
                           n);
  }
  template <int kChunks>
  __device__ __forceinline__ void load(const TensorMap& map, uint32_t to, uint32_t barrier,
                                       const AttentionTile& tile, int n) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      ptx::load_box(to + chunk * C.keys * 128, map, barrier,
                    {chunk * kChunk, 0, n * C.keys, tile.kv_head, tile.batch});
  }

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  TileNumbers numbers_;
  Ring<C.slots> queries_;
  Ring<C.stages> keys_, values_;
};

// ---- Consumer ----

template <AttentionForwardConfig C>
class ForwardConsumer {
 public:
  __device__ __forceinline__ ForwardConsumer(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared, int number)
      : arguments_(arguments),
        shared_(shared),
        number_(number),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run() {
    if (number_ == C.consumers - 1) pass_turn(0);
    int slot = await_tile();
    begin(slot);
    while (true) {
      const int first = shared_.tile(slot).first;
      for (int n = shared_.tile(slot).last - 1; n >= first; --n) {
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
  __device__ __forceinline__ void scores_done(int slot, int n) {
    ptx::results_are_here(scores_);
    free_key();
    if constexpr (C.left || C.right) {
      const AttentionTile& tile = shared_.tile(slot);
      if (n < tile.free_first || n >= tile.free_end) mask(tile, n);
    } else if (n * C.keys + C.keys > arguments_.kv_len) {
      mask(shared_.tile(slot), n);
    }
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
    await_key();
    ptx::products_begin();
    begin_scores(slot);
    ptx::products_wait<0>();
    scores_done(slot, shared_.tile(slot).last);
    weigh<true>(scores_, arguments_.scale_log2, statistics_, factor);
    round_weights<C.dtype>(scores_, weights_);
  }
  // Keys n, while P(n + 1) is multiplied.
  __device__ __forceinline__ void step(int slot, int n) {
    float factor[2];
    begin_both(slot);
    ptx::products_wait<1>();
    scores_done(slot, n);
    weigh<false>(scores_, arguments_.scale_log2, statistics_, factor);
    results_done();
    round_weights<C.dtype>(scores_, weights_);
    rescale(out_, factor);
  }
  // The next tile's last keys, while this tile's last product is taken.
  __device__ __forceinline__ void cross(int slot, int next) {
    const RowStatistics complete = statistics_;
    float factor[2];
    begin_both(next);
    ptx::products_wait<1>();
    scores_done(next, shared_.tile(next).last);
    weigh<true>(scores_, arguments_.scale_log2, statistics_, factor);
    results_done();
    finish(slot, complete);
    round_weights<C.dtype>(scores_, weights_);
  }
  __device__ __forceinline__ void begin_both(int slot) {
    await_key();
    await_turn();
    ptx::products_begin();
    begin_scores(slot);
    await_value();
    begin_results();
    pass_turn();
  }
  __device__ __forceinline__ void last_product() {
    await_value();
    await_turn();
    ptx::products_begin();
    begin_results();
    pass_turn();
    results_done();
  }

  // ---- Rows ----

  // The thread's first row in the tile; the other is 8 below.
  __device__ __forceinline__ int row() const { return 64 * number_ + 16 * warp_ + lane_ / 4; }

  __device__ __forceinline__ void mask(const AttentionTile& tile, int n) {
    const int column = n * C.keys + 2 * (lane_ % 4);
    int begin[2], end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = tile.query + ((row() + 8 * r) >> arguments_.pack);
      const int limit =
          C.right ? min(query + arguments_.right, arguments_.kv_len) : arguments_.kv_len;
      end[r] = limit - column;
      begin[r] = query + arguments_.left - column;
    }
    mask_scores<C.left>(scores_, begin, end);
  }

  // Results divided by the sums, to the slot of their queries and on to memory; and lse.
  __device__ __forceinline__ void finish(int slot, const RowStatistics& rows) {
    const AttentionTile& tile = shared_.tile(slot);
    float factor[2];
    bool empty[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(rows.sum[r]);
      empty[r] = sum == 0;
      factor[r] = ptx::approximate_reciprocal(sum);
      write_lse(tile, row() + 8 * r,
                empty[r] ? minus_infinity()
                         : (rows.maximum[r] * arguments_.scale_log2 + ptx::approximate_log2(sum)) *
                               0.69314718f);
    }
    ptx::named_sync(5 + number_, 128);
    const uint32_t part = shared_.query(slot, number_) + warp_ * 16 * 128;
    const auto pair = [&](int i) {
      const int r = i / 2 % 2;
      return round_pair<C.dtype>(empty[r] ? 0 : out_[i] * factor[r],
                                 empty[r] ? 0 : out_[i + 1] * factor[r]);
    };
#pragma unroll
    for (int j = 0; j < C.value_dim / 8; j += 2) {
      const int piece = j % 8 + lane_ / 16;
      const uint32_t at = part + j / 8 * 64 * 128 + lane_ % 16 * 128 + ((piece ^ lane_ % 8) << 4);
      ptx::store_matrices(at, pair(4 * j), pair(4 * j + 2), pair(4 * j + 4), pair(4 * j + 6));
    }
    ptx::fence_for_engines();
    __syncwarp();
    if (lane_ == 0) {
      const int query = tile.query + ((64 * number_ + 16 * warp_) >> arguments_.pack);
#pragma unroll
      for (int chunk = 0; chunk < C.value_chunks(); ++chunk)
        ptx::store_box(arguments_.out, part + chunk * 64 * 128,
                       {chunk * kChunk, 0, query, tile.head, tile.batch});
      ptx::commit_stores();
    }
    gathering_ = false;
    leaving_ = slot;
  }
  __device__ __forceinline__ void write_lse(const AttentionTile& tile, int row, float lse) {
    const int query = tile.query + (row >> arguments_.pack);
    if (arguments_.lse == nullptr || lane_ % 4 != 0 || query >= arguments_.q_len) return;
    const int packed = row & ((1 << arguments_.pack) - 1);
    const int64_t head = (int64_t{tile.head} << arguments_.pack) + packed;
    arguments_.lse[tile.batch * arguments_.lse_stride[0] + head * arguments_.lse_stride[1] +
                   query * arguments_.lse_stride[2]] = lse;
  }

  using Scores = ptx::Product<C.keys, C.dtype>;
  using Results = ptx::Product<C.value_dim, C.dtype>;

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  const int number_, warp_, lane_;
  float scores_[C.keys / 2];
  float out_[C.value_dim / 2];
  uint32_t weights_[C.keys / 4];
  RowStatistics statistics_;
  bool gathering_ = false;  // out_ has products of this tile
  int leaving_ = -1;
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
    ptx::give_registers_back<C.producer_registers()>();
    if (threadIdx.x == 0) ForwardProducer<C>(arguments, shared).run();
  } else {
    ptx::take_registers<C.consumer_registers()>();
    ForwardConsumer<C>(arguments, shared, group - 1).run();
  }
}

}  // namespace perseid::cuda
