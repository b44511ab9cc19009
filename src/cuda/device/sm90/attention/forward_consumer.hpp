// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of attention forward: the way of its 64 rows through a tile, and from one tile to the
// next (forward.hpp has the whole, and the barriers).
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/attention/forward_epilogue.hpp"

namespace perseid::internal::cuda {

template <AttentionForwardConfig C>
class ForwardConsumer {
  static_assert(!C.split_mask_loop || C.can_part());

 public:
  __device__ __forceinline__ ForwardConsumer(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared, int number)
      : arguments_(arguments),
        shared_(shared),
        number_(number),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rules_(arguments, 64 * number + 16 * warp_ + lane_ / 4, lane_) {}

  // What keys hold that a row does not see must not reach its results. Their scores are replaced,
  // but a weight of 0 times a value that is NaN or infinite is NaN. The products do not tell; their
  // results do, at the cost of one multiply-add for each: tiles with a non-finite result are listed
  // and, when the block has no tiles left, take a second pass of the same instructions, for which
  // the producer clears the non-finite elements of values. A result that is not finite because its
  // row sees such an element gets it back row by row (forward_rows.hpp).
  __device__ __forceinline__ void run() {
    bool second_pass = false;
    for (int at = 0;; ++at) {
      at = take_tiles(at);
      if constexpr (!C.masked()) return;
      if (second_pass) break;
      free_queries(at);  // the producer may read the list when all warps have come here
      ptx::named_barrier_sync(kPassEnds, 128 * C.consumers);
      if (shared_.nonfinite_list() == arguments_.tiles) return;
      if (lane_ == 0) ptx::tma_store_wait();  // before others to the same rows
      second_pass = true;
    }
    if constexpr (C.masked() && !C.split) {
      if (lane_ == 0) ptx::tma_store_wait();
      __syncwarp();
      writer().fix_up();
    }
  }

 private:
  static constexpr int kPassEnds = 4;  // a named barrier

  // The tiles of a pass from the block's tile number `at` on. Returns the number of the empty one
  // that ends it.
  __device__ __forceinline__ int take_tiles(int at) {
    if (number_ == C.consumers - 1) scheduler_arrive(0);
    await_tile(at);
    if (C.lengths && shared_.tile(at).number < 0) {
      if (number_ == 0) scheduler_wait();
      return at;
    }
    bool busy = has_rows(at);
    if (busy) {
      begin(at);
    } else {
      skip_first_key(at);
    }
    while (true) {
      if (busy) {
        take_steps(at);
      } else {
        skip_steps(at);
      }
      if constexpr (C.q_stages == 1) begin_last_product();
      pass_over_first_keys(at);
      await_tile(at + 1);
      if (shared_.tile(at + 1).number < 0) break;
      const bool busy_next = has_rows(at + 1);
      if (busy && busy_next) {
        cross(at, at + 1);
      } else if (busy) {
        begin_last_product();
        skip_first_key(at + 1);
        end(at);
      } else if (busy_next) {
        begin<true>(at + 1);
      } else {
        skip_step();
        free_queries(at + 1);
      }
      busy = busy_next;
      ++at;
    }
    if (busy) {
      if constexpr (C.q_stages > 1) begin_last_product();
      end(at);
    } else {
      skip_last_value();
    }
    if (number_ == 0) scheduler_wait();  // so that no barrier is left half full
    if (lane_ == 0) ptx::tma_store_wait_read();
    return at + 1;
  }
  // Which step of its tile a piece of code takes: the one over the end of the tile before, the
  // second one, in which results begin anew, a later one, or any but the first.
  enum class Place { kCross, kSecond, kLater, kAny };

  // ---- Turns, and what is shared with the producer ----

  __device__ __forceinline__ void scheduler_wait() {
    if constexpr (C.consumers > 1) ptx::named_barrier_sync(1 + number_, 256);
  }
  __device__ __forceinline__ void scheduler_arrive(int to) {
    if constexpr (C.consumers > 1) ptx::named_barrier_arrive(1 + to, 256);
  }
  __device__ __forceinline__ void scheduler_arrive() {
    scheduler_arrive(number_ + 1 == C.consumers ? 0 : number_ + 1);
  }
  // Until the tile's queries are there.
  __device__ __forceinline__ void await_tile(int at) {
    ptx::mbarrier_wait(shared_.query_full(at % C.q_stages),
                       static_cast<uint32_t>(at / C.q_stages) & 1);
  }
  __device__ __forceinline__ void free_queries(int at) {
    if (lane_ == 0) ptx::mbarrier_arrive(shared_.query_empty(at % C.q_stages));
  }
  __device__ __forceinline__ void await_key() {
    ptx::mbarrier_wait(shared_.key_full(keys_.stage()), keys_.parity());
  }
  __device__ __forceinline__ void await_value() {
    ptx::mbarrier_wait(shared_.value_full(values_.stage()), values_.parity());
  }
  __device__ __forceinline__ void await_bias() {
    ptx::mbarrier_wait(shared_.bias_full(biases_.stage()), biases_.parity());
  }
  __device__ __forceinline__ void free_bias() {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(shared_.bias_empty(biases_.stage()));
    ++biases_.count;
  }
  __device__ __forceinline__ void free_key() {
    if (lane_ == 0) ptx::mbarrier_arrive(shared_.key_empty(keys_.stage()));
    ++keys_.count;
  }
  __device__ __forceinline__ void free_value() {
    if (lane_ == 0) ptx::mbarrier_arrive(shared_.value_empty(values_.stage()));
    ++values_.count;
  }
  // The tiles of keys that this consumer visits, from the last one on.
  __device__ __forceinline__ int first_key(int at) const {
    return C.left && C.skips_masked_tiles() ? visited_.first : shared_.tile(at).first;
  }
  __device__ __forceinline__ int last_key(int at) const {
    return C.skips_masked_tiles() ? visited_.last : shared_.tile(at).last;
  }
  // Under a causal mask the first consumers see nothing of some tile's last keys, under a window
  // the last ones nothing of its first. They pass over them, and over the turns that they have left
  // for it.
  __device__ __forceinline__ void pass_over_last_keys(int at) {
    if constexpr (C.skips_masked_tiles()) {
      const AttentionTile& tile = shared_.tile(at);
      visited_ = VisitedKeys<C>::of(tile, number_, arguments_.pack_gqa);
      idle_turns_ = tile.turns - visited_.count();
      for (int n = tile.last; n > visited_.last; --n) pass_over_key();
    }
  }
  __device__ __forceinline__ void pass_over_first_keys(int at) {
    if constexpr (C.skips_masked_tiles())
      for (int n = shared_.tile(at).first; n < first_key(at); ++n) pass_over_key();
  }
  __device__ __forceinline__ void pass_over_key() {
    await_key();
    free_key();
    if constexpr (C.bias_stages > 0) {
      await_bias();
      free_bias();
    }
    if (idle_turns_ == 0) return;
    --idle_turns_;
    scheduler_wait();
    scheduler_arrive();
  }
  __device__ __forceinline__ void pass_over_values(int count) {
    if constexpr (C.skips_masked_tiles())
      for (; count > 0; --count) {
        await_value();
        free_value();
      }
  }
  // Those of a tile's last keys, when its first scores have begun.
  __device__ __forceinline__ void pass_over_last_values() {
    pass_over_values(last_values_);
    last_values_ = 0;
  }
  // ---- Products ----

  // What scores begin with, before the turn.
  __device__ __forceinline__ void prepare_scores() {
    if constexpr (C.bias_stages > 0) {
      await_bias();
      rules_.begin_with_bias(
          shared_.memory + (shared_.bias(biases_.stage(), number_) - shared_.base), scores_);
      ptx::fence_operand(scores_);
      free_bias();
    }
  }
  // S = Q K^T, K from the ring.
  __device__ __forceinline__ void begin_scores(int at) {
    const uint64_t query = ptx::make_descriptor(shared_.query(at % C.q_stages, number_));
    const uint64_t key = ptx::make_descriptor(shared_.key(keys_.stage()));
#pragma unroll
    for (int k = 0; k < C.key_dim / 16; ++k)
      Scores::mma_ss(scores_, ptx::advance_descriptor(query, k / 4 * 64 * 128 + k % 4 * 32),
                     ptx::advance_descriptor(key, k / 4 * C.keys * 128 + k % 4 * 32),
                     k > 0 || C.bias_stages > 0);
    ptx::wgmma_commit();
  }
  // Behind the end of a sequence there may be anything, which weights of 0 do not make 0. All warps
  // that multiply these values clear those rows themselves, in whatever order.
  __device__ __forceinline__ void clear_values() {
    if constexpr (!C.lengths) return;
    if (stale_from_ >= C.keys) return;
    constexpr int kPieces = C.value_chunks() * 8;  // of a row
    unsigned char* values = shared_.memory + (shared_.value(values_.stage()) - shared_.base);
    const int rows = C.keys - stale_from_;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < rows * kPieces; i += 128) {
      const int row = stale_from_ + i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(values + piece / 8 * C.keys * 128 + row * 128 + piece % 8 * 16) =
          uint4{0, 0, 0, 0};
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(5 + number_, 128);
    stale_from_ = C.keys;
  }
  // O += P V, V from the ring; O = P V at the start of a tile.
  template <Place kPlace = Place::kAny>
  __device__ __forceinline__ void begin_results() {
    const uint64_t value = ptx::make_descriptor(shared_.value(values_.stage()), C.keys * 128);
    const bool gathering = kPlace == Place::kLater || (kPlace != Place::kSecond && gathering_);
#pragma unroll
    for (int k = 0; k < C.keys / 16; ++k)
      Results::mma_rs(out_, weights_ + 4 * k, ptx::advance_descriptor(value, k * 16 * 128),
                      k > 0 || gathering);
    ptx::wgmma_commit();
    gathering_ = true;
  }
  __device__ __forceinline__ FreeKeys<C> free_keys(const AttentionTile& tile) const {
    return FreeKeys<C>::of(tile, number_, arguments_.pack_gqa);
  }
  template <Edge kEdge>
  __device__ __forceinline__ bool is_edge(const AttentionTile& tile, int n) const {
    if constexpr (kEdge != Edge::kPerhaps) return kEdge == Edge::kYes;
    return C.peeled_loop() ? !free_keys(tile).holds(n) : rules_.is_edge(tile, n);
  }
  // kPending: products that go on.
  template <bool kFirst, int kPending, Edge kEdge = Edge::kPerhaps>
  __device__ __forceinline__ auto take_scores(int at, int n) {
    const AttentionTile& tile = shared_.tile(at);
    auto operands = rules_.load(tile, n, is_edge<kEdge>(tile, n));
    ptx::wgmma_wait<kPending>();
    ptx::fence_operand(scores_);
    free_key();
    // Steps that are known to need no mask are not a tile's last where others have their own.
    if (!(C.peeled_loop() && kEdge == Edge::kNo) && n == first_key(at)) free_queries(at);
    if constexpr (C.lengths && kFirst) stale_from_ = clamp(tile.kv_len - n * C.keys, 0, C.keys);
    rules_.before_softmax(operands, scores_);
    online_softmax<kFirst>(scores_, rules_.scale_log2(), statistics_, factor_);
    if constexpr (kFirst) set_limits(statistics_, rules_.scale_log2());
    if constexpr (kFirst) second_ = true;
    rules_.draw_early(tile, n, operands);
    return operands;
  }
  template <class ScoreOperands>
  __device__ __forceinline__ void round(int at, int n, const ScoreOperands& operands) {
    round_weights<C.dtype>(scores_, weights_);
    rules_.drop(shared_.tile(at), n, operands, weights_);
  }
  __device__ __forceinline__ void results_done() {
    ptx::wgmma_wait<0>();
    ptx::fence_operand(out_);
    free_value();
  }

  // ---- Steps ----

  // The first scores of the first tile, or behind one that was left out, where nothing is there to
  // run beside them.
  template <bool kSkipped = false>
  __device__ __forceinline__ void begin(int at) {
    pass_over_last_keys(at);
    prepare_scores();
    await_key();
    if constexpr (kSkipped) scheduler_wait();
    ptx::wgmma_fence();
    begin_scores(at);
    if constexpr (kSkipped) {
      scheduler_arrive();
      await_value();
      free_value();
    }
    last_values_ = shared_.tile(at).last - last_key(at);
    const auto operands = take_scores<true, 0>(at, last_key(at));
    round(at, last_key(at), operands);
  }
  __device__ __forceinline__ void take_steps(int at) {
    const int first = first_key(at);
    int n = last_key(at) - 1;
    if constexpr (C.peeled_loop()) {
      if (n >= first) step<Edge::kPerhaps, Place::kSecond>(at, n--);
      const auto free = free_keys(shared_.tile(at));
      while (n >= first) {
        if (n < free.end)
          for (const int end = max(first + 1, free.first); n >= end; --n)
            step<Edge::kNo, Place::kLater>(at, n);
        if (n >= first) step<Edge::kPerhaps, Place::kLater>(at, n--);
      }
    } else {
      if constexpr (C.split_mask_loop && C.right)
        for (const int free = max(first, shared_.tile(at).free_end); n >= free; --n)
          step<Edge::kYes>(at, n);
      for (; n >= first; --n) step<C.split_mask_loop ? Edge::kNo : Edge::kPerhaps>(at, n);
    }
    finish_deferred(at);
  }
  // Keys n, while P(n + 1) is multiplied.
  template <Edge kEdge, Place kPlace = Place::kAny>
  __device__ __forceinline__ void step(int at, int n) {
    begin_both<kPlace>(at);
    const auto operands = take_scores<false, 1, kEdge>(at, n);
    // Under a causal mask some rows see little of the first tile of keys: the limits that its sums
    // set are low.
    if constexpr (C.right && kPlace != Place::kLater)
      if (kPlace == Place::kSecond || second_) set_limits(statistics_, rules_.scale_log2());
    second_ = false;
    if constexpr (C.overlap_softmax_pv) ptx::order_after(statistics_.sum[0] + statistics_.sum[1]);
    results_done();
    round(at, n, operands);
  }
  // The next tile's last keys, while this tile's last product is taken. With one stage the product
  // has begun, since the next queries come late.
  __device__ __forceinline__ void cross(int at, int next) {
    if constexpr (C.q_stages == 1) results_done();
    const int first_values = first_key(at) - shared_.tile(at).first;
    pass_over_last_keys(next);
    if constexpr (C.q_stages > 1) {
      begin_both<Place::kCross>(next);
      close(at);
    } else {
      prepare_scores();
      await_key();
      scheduler_wait();
      ptx::wgmma_fence();
      begin_scores(next);
      scheduler_arrive();
      close(at);
      finish(at);
    }
    last_values_ = shared_.tile(next).last - last_key(next);
    const auto operands = take_scores<true, C.q_stages - 1>(next, last_key(next));
    if constexpr (C.q_stages > 1) {
      if constexpr (C.overlap_softmax_pv) ptx::order_after(statistics_.sum[0] + statistics_.sum[1]);
      results_done();
      if constexpr (C.deferred_epilogue()) {
        epilogue_deferred_ = true;
      } else {
        finish(at);
      }
    }
    pass_over_values(first_values);
    round(next, last_key(next), operands);
  }
  // Results are rescaled when the scores have begun, which do not need them; those of a tile leave
  // under the second scores of the next.
  template <Place kPlace>
  __device__ __forceinline__ void begin_both(int at) {
    prepare_scores();
    await_key();
    scheduler_wait();
    ptx::wgmma_fence();
    begin_scores(at);
    constexpr bool kMayBeDeferred = kPlace == Place::kSecond || kPlace == Place::kAny;
    const bool deferred = kMayBeDeferred && C.deferred_epilogue() && epilogue_deferred_;
    if (deferred) {
      scheduler_arrive();
      finish(at - 1);
    } else {
      rescale(out_, factor_, rules_.scale_log2(), statistics_);
    }
    if constexpr (kPlace != Place::kLater) pass_over_last_values();
    await_value();
    clear_values();
    ptx::wgmma_fence();
    begin_results<kPlace>();
    if (!deferred) scheduler_arrive();
  }
  __device__ __forceinline__ void begin_last_product() {
    rescale(out_, factor_, rules_.scale_log2(), statistics_);
    pass_over_last_values();
    await_value();
    clear_values();
    scheduler_wait();
    ptx::wgmma_fence();
    begin_results();
    scheduler_arrive();
  }
  // A tile of a single step has not given the results before it their way out.
  __device__ __forceinline__ void finish_deferred(int at) {
    if constexpr (C.deferred_epilogue())
      if (epilogue_deferred_) finish(at - 1);
  }
  __device__ __forceinline__ void end(int at) {
    close(at);
    results_done();
    finish(at);
    // A second pass goes on with the next values.
    if constexpr (C.masked()) pass_over_values(first_key(at) - shared_.tile(at).first);
  }

  // ---- Tiles in which the consumer has no rows: turns are taken, what comes is freed ----

  __device__ __forceinline__ bool has_rows(int at) const {
    if constexpr (!C.skips_empty_rows()) return true;
    const AttentionTile& tile = shared_.tile(at);
    return tile.query + (64 * number_ >> arguments_.pack_gqa) < tile.q_len;
  }
  __device__ __forceinline__ void skip_first_key(int at) {
    await_key();
    free_key();
    free_queries(at);
  }
  __device__ __forceinline__ void skip_last_value() {
    scheduler_wait();
    scheduler_arrive();
    await_value();
    free_value();
  }
  __device__ __forceinline__ void skip_step() {
    await_key();
    skip_last_value();
    free_key();
  }
  __device__ __forceinline__ void skip_steps(int at) {
    for (int n = shared_.tile(at).last; n > shared_.tile(at).first; --n) skip_step();
  }

  __device__ __forceinline__ ForwardEpilogue<C> writer() const {
    const int thread = ptx::thread_number();
    return {arguments_, shared_, rules_, number_, thread / 32 % 4, thread % 32};
  }
  // The sums of a tile's rows are complete,
  __device__ __forceinline__ void close(int at) {
    writer().close(shared_.tile(at), statistics_, last_factor_);
  }
  // and its results.
  __device__ __forceinline__ void finish(int at) {
    writer().write(shared_.tile(at), out_, last_factor_);
    gathering_ = false;
    epilogue_deferred_ = false;
  }

  using Scores = ptx::Wgmma<C.keys, C.dtype>;
  using Results = ptx::Wgmma<C.value_dim, C.dtype>;

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  const int number_, warp_, lane_;
  const ScoreRules<C> rules_;
  float scores_[C.keys / 2];
  float factor_[2];
  float out_[C.value_dim / 2];
  uint32_t weights_[C.keys / 4];
  RowStatistics statistics_;
  float last_factor_[2];            // of results, at the end of a tile
  bool epilogue_deferred_ = false;  // the results of the tile before have not left
  bool second_ = false;             // the next step is its tile's second
  bool gathering_ = false;          // out_ has products of this tile
  int stale_from_ = C.keys;         // the first row of the next values that is not of the sequence
  VisitedKeys<C> visited_{};
  int idle_turns_ = 0;   // for keys of the tile that it passes over
  int last_values_ = 0;  // those of the keys that it passed over when the tile began
  PipelineState<C.stages> keys_, values_;
  PipelineState<max(C.bias_stages, 1)> biases_;
};

}  // namespace perseid::internal::cuda
