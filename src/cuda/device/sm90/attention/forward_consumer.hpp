// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of attention forward: 64 rows of every Q tile of its block. forward.hpp explains the
// whole kernel and its barriers.
//
// KV tiles n of a Q tile, from the last to the first:
//
//   prologue    S(last) = Q K(last)^T, softmax
//   mainloop    n = last - 1 .. first: issue S(n) = Q K(n)^T, then O += P(n+1) V(n+1); softmax of
//               S(n) while O is computed
//   epilogue    O += P(first) V(first), divide by the row sums, store
//
// The epilogue of a Q tile overlaps with the prologue of the next one (prologue_of_next).
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/attention/forward_epilogue.hpp"
#include "cuda/device/sm90/attention/forward_queries.hpp"
#include "cuda/device/sm90/attention/kv_tiles.hpp"

namespace perseid::internal::cuda {

// kCommon: of float32, the keys of the launch have the common numbers.
template <AttentionForwardConfig C, bool kCommon = false>
class ForwardConsumer {
  static_assert(C.allows(C.mask_loop) && (C.cluster == 1 || C.may_have_cluster()));
  // epilogue() follows from the other fields; a split mask loop never defers it.
  static_assert(C.epilogue() != Epilogue::kDeferred || C.mask_loop != MaskLoop::kSplitAtDiagonal);
  static_assert((C.epilogue() >= Epilogue::kBeforeNextScores) == (C.q_stages == 1));

 public:
  // Whether there is a fast path for tiles of such keys, and a consumer for such launches.
  static constexpr bool kMayBeCommon = C.planes() == 2 && !ForwardScores<C>::kScales;
  static constexpr bool kHasCommon =
      kMayBeCommon && !C.left && !C.lengths && !C.visible && !C.dropout;

  __device__ __forceinline__ ForwardConsumer(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared, int number)
      : arguments_(arguments),
        shared_(shared),
        number_(number),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rules_(arguments, 64 * number + 16 * warp_ + lane_ / 4, lane_),
        ping_pong_(number),
        kv_(arguments, shared, number, lane_) {
    if constexpr (kOfPlanes) clear(out_);
  }

  // One pass over the block's Q tiles, and a second one over those that need it.
  __device__ __forceinline__ void run() {
    bool second_pass = false;
    for (int at = 0;; ++at) {
      at = run_pass(at);
      if constexpr (!C.lists_tiles()) return;
      if (second_pass) break;
      if (!begin_second_pass(at)) return;
      if constexpr (!C.second_pass()) break;
      second_pass = true;
      kv_.begin_second_pass();
    }
    if constexpr (C.lists_tiles() && !C.split) fix_up_rows();
  }

 private:
  using Shared = ForwardShared<C>;
  static constexpr bool kOfPlanes = C.planes() == 2;
  // A Q tile ends before the next one begins.
  static constexpr bool kEndsBeforeNext = C.epilogue() == Epilogue::kBeforeNextQueries;

  // The Q tiles of a pass from the block's tile number `at` on. Returns the number of the empty
  // tile that ends it. The usual path, where the consumer has rows in all tiles:
  //
  //   prologue(0)
  //   mainloop(0), prologue_of_next(0, 1), mainloop(1), prologue_of_next(1, 2), ...
  //   epilogue(last)
  //
  // prologue_of_next contains the epilogue of the tile before. The other branches skip tiles in
  // which the consumer has no rows (C.skips_empty_rows()).
  __device__ __forceinline__ int run_pass(int at) {
    ping_pong_.open();
    wait_query(at);
    if (C.lengths && shared_.tile(at).number < 0) {
      ping_pong_.close();
      return at;
    }
    bool active = has_rows(at);
    if constexpr (!kEndsBeforeNext) {
      if (active) {
        prologue(at);
      } else {
        skip_prologue(at);
      }
    }
    while (true) {
      if constexpr (kEndsBeforeNext) prologue(at);
      if (active) {
        mainloop(at);
      } else {
        skip_mainloop(at);
      }
      if constexpr (C.q_stages == 1) issue_last_pv();
      kv_.skip_first_keys(shared_.tile(at));
      if constexpr (kEndsBeforeNext) epilogue(at);
      wait_query(at + 1);
      if (shared_.tile(at + 1).number < 0) break;
      const bool next_active = has_rows(at + 1);
      if constexpr (kEndsBeforeNext) {
        // The loop begins with the prologue.
      } else if (active && next_active) {
        prologue_of_next(at, at + 1);
      } else if (active) {
        issue_last_pv();
        skip_prologue(at + 1);
        epilogue(at);
      } else if (next_active) {
        prologue<true>(at + 1);
      } else {
        skip_iteration();
        release_query(at + 1);
      }
      active = next_active;
      ++at;
    }
    if (!active) {
      skip_last_pv();
    } else if constexpr (!kEndsBeforeNext) {
      if constexpr (C.q_stages > 1) issue_last_pv();
      epilogue(at);
    }
    ping_pong_.close();
    if (lane_ == 0) ptx::tma_store_wait_read();
    return at + 1;
  }

  // ---- Second pass ----

  // Hidden keys must not change a result, but a weight of 0 times a value that is NaN or infinite
  // is NaN. The products do not tell; their results do, at the cost of one multiply-add for each:
  // the epilogue lists tiles with a non-finite result. When the block has no tiles left, the listed
  // ones take a second pass of the same instructions, for which the producer clears the non-finite
  // elements of values. Rows that see such an element then get a fixup (forward_fixup.hpp).

  // After the first pass, which the empty tile `at` has ended. Returns whether tiles are listed.
  __device__ __forceinline__ bool begin_second_pass(int at) {
    release_query(at);  // the list is complete when all warps have released the empty tile
    ptx::named_barrier_sync(Shared::kPassEnds, 128 * C.consumers);
    if (shared_.nonfinite_list() == arguments_.tiles) return false;
    // Stores of the first pass precede those of the second to the same rows.
    if (lane_ == 0) ptx::tma_store_wait();
    return true;
  }
  // After the second pass.
  __device__ __forceinline__ void fix_up_rows() const {
    if (lane_ == 0) ptx::tma_store_wait();
    __syncwarp();
    writer().fixup();
  }

  // ---- Prologue, mainloop, epilogue ----

  // Which iteration of a Q tile a piece of code is for: the first one, the second one, whose PV
  // product overwrites O, a later one, or any but the first.
  enum class Iteration { kFirst, kSecond, kLater, kAny };

  // The first scores of the first Q tile, or after a skipped one: no product to overlap with.
  template <bool kAfterSkipped = false>
  __device__ __forceinline__ void prologue(int at) {
    split_queries(at);
    kv_.enter(shared_.tile(at));
    init_scores();
    kv_.wait_key();
    if constexpr (kAfterSkipped) ping_pong_.scheduler_wait();
    ptx::wgmma_fence();
    issue_qk(at);
    if constexpr (kAfterSkipped) {
      ping_pong_.scheduler_arrive();
      kv_.skip_value();  // the last one of the skipped tile
    }
    kv_.note_last_values(shared_.tile(at));
    const auto operands = softmax<true, 0>(at, kv_.last(shared_.tile(at)));
    round(at, kv_.last(shared_.tile(at)), operands);
  }

  __device__ __forceinline__ void mainloop(int at) {
    const int first = kv_.first(shared_.tile(at));
    int n = kv_.last(shared_.tile(at)) - 1;
    if constexpr (C.mask_loop == MaskLoop::kPeeled) {
      if (n >= first) iterate<NeedsMask::kPerTile, Iteration::kSecond>(at, n--);
      const auto unmasked = unmasked_tiles(shared_.tile(at));
      while (n >= first) {
        if (n < unmasked.end)
          for (const int end = max(first + 1, unmasked.first); n >= end; --n)
            iterate<NeedsMask::kNo, Iteration::kLater>(at, n);
        if (n >= first) iterate<NeedsMask::kPerTile, Iteration::kLater>(at, n--);
      }
    } else if constexpr (C.mask_loop == MaskLoop::kSplitAtDiagonal) {
      if constexpr (C.right)
        for (const int unmasked = max(first, shared_.tile(at).unmasked_end); n >= unmasked; --n)
          iterate<NeedsMask::kYes>(at, n);
      for (; n >= first; --n) iterate<NeedsMask::kNo>(at, n);
    } else {
      for (; n >= first; --n) iterate<NeedsMask::kPerTile>(at, n);
    }
    deferred_epilogue(at);  // of a tile with a single iteration
  }
  // S(n) and its softmax, while O += P(n+1) V(n+1).
  template <NeedsMask kMask, Iteration kIteration = Iteration::kAny>
  __device__ __forceinline__ void iterate(int at, int n) {
    issue_qk_and_pv<kIteration>(at);
    const auto operands = softmax<false, 1, kMask>(at, n);
    // Under a causal mask some rows see little of the first KV tile: limits that follow from its
    // sums are low, and are set again after the second iteration, or by the next rescaling: with a
    // branch here the assembler would not interleave the exponentials with their rounding.
    if constexpr (!kOfPlanes && C.right && kIteration == Iteration::kSecond)
      set_limits(statistics_, rules_.scale_log2());
    else if constexpr (!kOfPlanes && C.right && kIteration != Iteration::kLater)
      limits_pending_ = second_;
    second_ = false;
    if constexpr (C.overlap_softmax_pv) ptx::order_after(statistics_.sum[0] + statistics_.sum[1]);
    wait_pv();
    round(at, n, operands);
  }

  // The prologue of tile `next` overlaps with the last PV product of tile `at`; with one query
  // stage that product was issued before, since the next queries arrive later.
  __device__ __forceinline__ void prologue_of_next(int at, int next) {
    constexpr bool kPvIssued = C.epilogue() == Epilogue::kBeforeNextScores;
    split_queries(next);
    if constexpr (kPvIssued) wait_pv();
    const int first_values = kv_.first_values(shared_.tile(at));
    kv_.enter(shared_.tile(next));
    if constexpr (kPvIssued) {
      init_scores();
      kv_.wait_key();
      ping_pong_.scheduler_wait();
      ptx::wgmma_fence();
      issue_qk(next);
      ping_pong_.scheduler_arrive();
      finalize_softmax(at);
      store(at);
    } else {
      issue_qk_and_pv<Iteration::kFirst>(next);
      finalize_softmax(at);
    }
    kv_.note_last_values(shared_.tile(next));
    const auto operands = softmax < true, kPvIssued ? 0 : 1 > (next, kv_.last(shared_.tile(next)));
    if constexpr (!kPvIssued) {
      if constexpr (C.overlap_softmax_pv) ptx::order_after(statistics_.sum[0] + statistics_.sum[1]);
      wait_pv();
      if constexpr (C.epilogue() == Epilogue::kDeferred) {
        epilogue_deferred_ = true;
      } else {
        store(at);
      }
    }
    kv_.skip_values(first_values);
    round(next, kv_.last(shared_.tile(next)), operands);
  }

  // The last PV product was issued.
  __device__ __forceinline__ void epilogue(int at) {
    finalize_softmax(at);
    wait_pv();
    store(at);
    // A second pass goes on with the next values.
    if constexpr (C.masked()) kv_.skip_values(kv_.first_values(shared_.tile(at)));
  }
  __device__ __forceinline__ void deferred_epilogue(int at) {
    if constexpr (C.epilogue() == Epilogue::kDeferred)
      if (epilogue_deferred_) store(at - 1);
  }
  // The row sums of the tile are complete: lse, and the factors of the results.
  __device__ __forceinline__ void finalize_softmax(int at) {
    writer().finalize(shared_.tile(at), statistics_, result_factor_);
  }
  __device__ __forceinline__ void store(int at) {
    if constexpr (kOfPlanes) {
      writer().store_float32(shared_.tile(at), out_, result_factor_);
      clear(out_);
    } else {
      writer().store(shared_.tile(at), out_, result_factor_);
    }
    accumulates_ = false;
    epilogue_deferred_ = false;
  }

  // ---- Q tiles in which the consumer has no rows: it keeps the order and releases the stages ----

  __device__ __forceinline__ bool has_rows(int at) const {
    if constexpr (!C.skips_empty_rows()) return true;
    const AttentionTile& tile = shared_.tile(at);
    return tile.query + (64 * number_ >> arguments_.pack_gqa) < tile.q_len;
  }
  __device__ __forceinline__ void skip_prologue(int at) {
    kv_.wait_key();
    kv_.release_key();
    release_query(at);
  }
  __device__ __forceinline__ void skip_mainloop(int at) {
    for (int n = shared_.tile(at).last; n > shared_.tile(at).first; --n) skip_iteration();
  }
  __device__ __forceinline__ void skip_iteration() {
    kv_.wait_key();
    skip_last_pv();
    kv_.release_key();
  }
  __device__ __forceinline__ void skip_last_pv() {
    ping_pong_.scheduler_wait();
    ping_pong_.scheduler_arrive();
    kv_.skip_value();
  }

  // ---- Products ----

  // Scores begin with the bias, if TMA loads it. Before the consumer waits in the order.
  __device__ __forceinline__ void init_scores() {
    if constexpr (C.bias_stages > 0) {
      kv_.wait_bias();
      rules_.begin_with_bias(kv_.bias(), shared_.pointer(kv_.bias().base), scores_);
      ptx::fence_operand(scores_);
      kv_.release_bias();
    }
  }
  // S = Q K^T. Of planes: small products first.
  __device__ __forceinline__ void issue_qk(int at) {
    if constexpr (C.in_pieces()) {
      issue_qk_in_pieces(at);
      return;
    } else if constexpr (kOfPlanes) {
      multiply_keys(at, kLowKeys, 0, false);
      multiply_keys(at, 0, kLowKeys, true);
      multiply_keys(at, 0, 0, true);
    } else {
      multiply_keys(at, 0, 0, C.bias_stages > 0);
    }
    ptx::wgmma_commit();
  }
  // The first piece of K has arrived, no product runs. The last one is released with the scores.
  __device__ __forceinline__ void issue_qk_in_pieces(int at) {
    // The compiler would keep the descriptors of all steps in registers otherwise.
    uint32_t first[2] = {shared_.query(at % C.q_stages, number_).base, kv_.key().base};
    ptx::materialize(first);
    const auto query = typename Shared::Query{first[0]}.k_major();
#pragma unroll
    for (int piece = 0; piece < C.key_pieces(); ++piece) {
      if (piece > 0) kv_.wait_key(piece);
      const auto key =
          typename Shared::Key{first[1] + static_cast<uint32_t>(piece * Shared::Key::kBytes)}
              .k_major();
#pragma unroll
      for (int k = 0; k < min(4, C.key_dim / 16 - 4 * piece); ++k)
        Scores::mma_ss(scores_, query.step(4 * piece + k), key.step(k), piece > 0 || k > 0);
      ptx::wgmma_commit();
      if (piece > 0) {
        ptx::wgmma_wait<1>();
        kv_.release_key_piece(piece - 1);
      }
    }
  }
  // From the columns on that are number 16 query_step, and 16 key_step.
  __device__ __forceinline__ void multiply_keys(int at, int query_step, int key_step,
                                                bool accumulates) {
    const auto query = shared_.query(at % C.q_stages, number_).k_major();
    const auto key = kv_.key().k_major();
#pragma unroll
    for (int k = 0; k < C.key_dim / 16; ++k)
      Scores::mma_ss(scores_, query.step(query_step + k), key.step(key_step + k),
                     k > 0 || accumulates);
  }
  // O += P V, or O = P V at the start of a Q tile. Of planes: products_ = P V, small products
  // first.
  template <Iteration kIteration = Iteration::kAny>
  __device__ __forceinline__ void issue_pv() {
    if constexpr (kOfPlanes) {
      multiply_values(products_, 0, C.value_length(), false);
      multiply_values(products_, 1, 0, true);
      multiply_values(products_, 0, 0, true);
#pragma unroll
      for (int r = 0; r < 2; ++r) products_factor_[r] = factor_[r];
    } else {
      multiply_values(
          out_, 0, 0,
          kIteration == Iteration::kLater || (kIteration != Iteration::kSecond && accumulates_));
    }
    ptx::wgmma_commit();
    accumulates_ = true;
  }
  // A plane of weights times values from `column` on.
  template <int kCount>
  __device__ __forceinline__ void multiply_values(float (&sums)[kCount], int plane, int column,
                                                  bool accumulates) {
    constexpr int kSteps = C.keys / 16 / C.value_pieces();
#pragma unroll
    for (int piece = 0; piece < C.value_pieces(); ++piece) {
      if (piece > 0) kv_.wait_value(piece);
      const auto value = kv_.value(piece).mn_major(column);
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        Results::mma_rs(sums, weights_[plane] + 4 * (piece * kSteps + k), value.step(k),
                        piece > 0 || k > 0 || accumulates);
    }
  }
  // The scores of an iteration, then the PV product of the one before. O is rescaled when the
  // scores were issued, which do not need it; a deferred epilogue runs there instead.
  template <Iteration kIteration>
  __device__ __forceinline__ void issue_qk_and_pv(int at) {
    init_scores();
    kv_.wait_key();
    ping_pong_.scheduler_wait();
    ptx::wgmma_fence();
    issue_qk(at);
    constexpr bool kMayBeDeferred =
        C.epilogue() == Epilogue::kDeferred &&
        (kIteration == Iteration::kSecond || kIteration == Iteration::kAny);
    const bool deferred = kMayBeDeferred && epilogue_deferred_;
    if (deferred) {
      ping_pong_.scheduler_arrive();
      store(at - 1);
    } else if constexpr (!kOfPlanes) {
      rescale(out_, factor_, rules_.scale_log2(), statistics_,
              kIteration == Iteration::kAny && limits_pending_);
    }
    if constexpr (kIteration != Iteration::kLater) kv_.skip_last_values();
    kv_.wait_value();
    if constexpr (C.lengths && !kOfPlanes) kv_.clear_stale_values();  // planes hold no NaN
    ptx::wgmma_fence();
    issue_pv<kIteration>();
    if (!deferred) ping_pong_.scheduler_arrive();
  }
  __device__ __forceinline__ void issue_last_pv() {
    if constexpr (!kOfPlanes) rescale(out_, factor_, rules_.scale_log2(), statistics_);
    kv_.skip_last_values();
    kv_.wait_value();
    if constexpr (C.lengths && !kOfPlanes) kv_.clear_stale_values();
    ping_pong_.scheduler_wait();
    ptx::wgmma_fence();
    issue_pv();
    ping_pong_.scheduler_arrive();
  }
  // The sums of planes begin from zero in each iteration: tensor cores truncate at each addition.
  __device__ __forceinline__ void wait_pv() {
    ptx::wgmma_wait<0>();
    if constexpr (kOfPlanes) {
      ptx::fence_operand(products_);
#pragma unroll
      for (int i = 0; i < C.value_dim / 2; ++i)
        out_[i] = fmaf(out_[i], products_factor_[i / 2 % 2], products_[i]);
    } else {
      ptx::fence_operand(out_);
    }
    kv_.release_value();
  }

  // ---- Softmax ----

  __device__ __forceinline__ UnmaskedTiles<C> unmasked_tiles(const AttentionTile& tile) const {
    return UnmaskedTiles<C>::of(tile, number_, arguments_.pack_gqa);
  }
  template <NeedsMask kMask>
  __device__ __forceinline__ bool needs_mask(const AttentionTile& tile, int n) const {
    if constexpr (kMask != NeedsMask::kPerTile) return kMask == NeedsMask::kYes;
    return C.mask_loop == MaskLoop::kPeeled ? !unmasked_tiles(tile).contains(n)
                                            : rules_.needs_mask(tile, n);
  }
  // Waits for S(n), while kPending products go on, and turns it into unrounded weights.
  template <bool kFirst, int kPending, NeedsMask kMask = NeedsMask::kPerTile>
  __device__ __forceinline__ auto softmax(int at, int n) {
    const AttentionTile& tile = shared_.tile(at);
    auto operands = rules_.load(tile, n, needs_mask<kMask>(tile, n));
    const uint32_t numbers = kOfPlanes ? kv_.numbers(tile) : 0;
    if constexpr (kOfPlanes && kFirst) begin_statistics(tile);
    ptx::wgmma_wait<kPending>();
    ptx::fence_operand(scores_);
    kv_.release_key();
    // The unmasked loop of kPeeled ends before the Q tile's last iteration.
    if (!(C.mask_loop == MaskLoop::kPeeled && kMask == NeedsMask::kNo) && n == kv_.first(tile))
      release_query(at);
    if constexpr (C.lengths && kFirst)
      kv_.note_stale_values(clamp(tile.kv_len - n * C.keys, 0, C.keys));
    if constexpr (kOfPlanes) {
      if (kCommon || (kMayBeCommon && are_common<C.keys>(numbers, lane_))) {
        rules_.before_softmax(operands, scores_);
        const float scale[2] = {statistics_.factor[0] * kCommonKeyFactor,
                                statistics_.factor[1] * kCommonKeyFactor};
        plane_softmax<true, true>(numbers, lane_, scale, scores_, statistics_, factor_);
      } else {
        scale_products(numbers);
        rules_.before_softmax(operands, scores_);
        const float scale[2] = {exponent_scale(0), exponent_scale(1)};
        plane_softmax<C.number_pairs>(numbers, lane_, scale, scores_, statistics_, factor_);
      }
    } else {
      rules_.before_softmax(operands, scores_);
      online_softmax<kFirst, C.dropout>(scores_, rules_.scale_log2(), statistics_, factor_);
      if constexpr (kFirst) set_limits(statistics_, rules_.scale_log2());
      if constexpr (kFirst) second_ = true, limits_pending_ = false;
    }
    rules_.draw_early(tile, n, operands);
    return operands;
  }
  // P(n), the rounded weights, which dropout may clear.
  template <class ScoreOperands>
  __device__ __forceinline__ void round(int at, int n, const ScoreOperands& operands) {
    if constexpr (kOfPlanes) {
      split_weights(scores_, weights_[0], weights_[1]);
      rules_.drop(shared_.tile(at), n, operands, weights_[1]);
    } else {
      round_weights<C.dtype>(scores_, weights_[0]);
    }
    rules_.drop(shared_.tile(at), n, operands, weights_[0]);
    if constexpr (kOfPlanes)  // not between the products, which would be serialised
#pragma unroll
      for (auto& plane : weights_) ptx::materialize(plane);
  }

  // ---- Of planes ----

  // The softmax of the tile before is complete; products of other consumers run meanwhile.
  __device__ __forceinline__ void split_queries(int at) {
    if constexpr (C.splits_queries) {
      const auto queries = shared_.query(at % C.q_stages, number_);
      QueryRows<C>::split(arguments_.query_split, shared_.pointer(queries.base), warp_, lane_,
                          statistics_.factor);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (!writer().has_row_of_lane(shared_.tile(at), r)) statistics_.factor[r] = 1;
      ptx::fence_proxy_async();
      ptx::named_barrier_sync(Shared::kConsumerWarps + number_, 128);
    }
  }
  __device__ __forceinline__ void begin_statistics(const AttentionTile& tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      statistics_.maximum[r] = minus_infinity();
      statistics_.sum[r] = 0;
      if constexpr (!C.splits_queries) statistics_.factor[r] = writer().query_factor(tile, r);
    }
  }
  // The exponential scales the scores by the factors of the queries, whose planes have the scale,
  // unless it comes before masks and bias.
  static constexpr bool kScalesFirst = ForwardScores<C>::kScales;
  __device__ __forceinline__ float exponent_scale(int r) const {
    return kScalesFirst ? kLog2E : statistics_.factor[r];
  }
  __device__ __forceinline__ void scale_products(uint32_t numbers) {
    unscale<C.number_pairs>(numbers, lane_, reinterpret_cast<float(&)[1][C.keys / 2]>(scores_));
    if constexpr (kScalesFirst)
#pragma unroll
      for (int i = 0; i < C.keys / 2; ++i) scores_[i] *= statistics_.factor[i / 2 % 2];
  }
  template <int kCount>
  static __device__ __forceinline__ void clear(float (&numbers)[kCount]) {
#pragma unroll
    for (float& each : numbers) each = 0;
  }

  // ---- The pipeline of queries ----

  __device__ __forceinline__ void wait_query(int at) const {
    shared_.queries().consumer_wait(PipelineState<C.q_stages>{at});
  }
  __device__ __forceinline__ void release_query(int at) const {
    if (lane_ == 0) shared_.queries().consumer_release(PipelineState<C.q_stages>{at});
  }

  __device__ __forceinline__ ForwardEpilogue<C> writer() const {
    const int thread = ptx::thread_number();
    return {arguments_, shared_, rules_, number_, thread / 32 % 4, thread % 32};
  }

  using Scores = ptx::Wgmma<C.keys, C.operand()>;
  using Results = ptx::Wgmma<C.value_dim, C.operand()>;
  static constexpr int kLowKeys = C.key_dim / 16;  // the step where low halves begin

  const AttentionForwardArguments& arguments_;
  const ForwardShared<C>& shared_;
  const int number_, warp_, lane_;
  const ForwardScores<C> rules_;
  const PingPong<C> ping_pong_;
  KvTiles<C> kv_;
  float scores_[C.keys / 2];
  float factor_[2];  // of O and the row sums, when a maximum has grown
  float out_[C.value_dim / 2];
  uint32_t weights_[C.planes()][C.keys / 4];
  float products_[kOfPlanes ? C.value_dim / 2 : 1];  // P V of one iteration, of planes
  float products_factor_[2];                         // of O, before they are added
  typename StatisticsOf<kOfPlanes>::Type statistics_;
  float result_factor_[2];          // of the results in the epilogue; of planes: the row sums
  bool epilogue_deferred_ = false;  // the results of the tile before are still in out_
  bool second_ = false;             // the next iteration is its tile's second
  bool limits_pending_ = false;     // the next rescaling sets the limits of all rows
  bool accumulates_ = false;        // out_ has products of this tile
};

}  // namespace perseid::internal::cuda
