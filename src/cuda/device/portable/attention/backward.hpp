// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward by the tensor cores' warp products, sm_80 and up. With
// P = softmax(scale * Q K^T, masked), from lse:
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)
//   dQ = scale dS K                   dK = scale dS^T Q
//
// Launches, of portable_attention_: backward_prepare (delta and lse), planes of float32, backward
// for each of GradientsOf, and if C.adds_queries backward_finish. A block sums dK and dV, or dBias,
// alone. By default blocks of kKeys up to dim 128 also add dQ to sums in memory, in any order,
// which backward_finish rounds. Otherwise blocks of kQueries sum dQ, with two products more.
//
// Warps. A block has a tile of rows: keys, for dK and dV, or queries, for dQ; a warp, or two, 16 or
// 32 of them. It iterates over tiles of columns, the other side. A warp's scores S and products
// E = dP, and its gradients, are in registers; W and dS are left operands as they are.
//
//   kKeys                            kQueries, kBias
//   S = K Q^T       E = V dO^T       S = Q K^T    E = dO V^T       `first` tensor, `second` tensor
//   dK += dS Q      dV += W dO       dQ += dS K                    (transposes are left out)
//
// Pipeline, a step: 1 wait for the copies of its columns, 2 barrier, 3 copy the next columns to the
// other stage, 4 compute. The barrier shows every thread what others have copied, and says that all
// warps are done with the stage that 3 fills. Warps skip 4 where their rows see no column. Where
// dims are cut, or both sides change (kBias), each step loads chunks of both and waits for each. If
// C.unaligned(), mbarriers take the place of the barrier (unaligned_steps).
//
// Raster order. The longest tiles come first, heads in sections that fit into the L2 cache
// (raster_order.hpp). Ragged batches: padded positions of blocks (attention/sequence.hpp).
//
// float32 is multiplied as planes of f16 (planes.hpp, backward_planes.hpp). Rows that depend on
// what planes do not hold get a fixup, of dBias elements. float64 has backward_pairs.hpp.
//
// Hidden values that are not finite: 0 times NaN is NaN. If gradients of the block tell of such a
// value, it computes its tile once more, and each thread clears the non-finite elements of the
// columns that it has copied, before the barrier. Rows that depend on one get a fixup
// (attention/backward_fixup.hpp).
//
// Limits: rows and columns count in 32 bits. Numerics: of f16 and bf16, W and dS are rounded before
// their products; everything else is float32, or of float64 float64. A row's bits do not depend on
// its batch.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/attention/bias_split.hpp"
#include "cuda/device/portable/attention/backward_bias.hpp"
#include "cuda/device/portable/attention/backward_halves.hpp"
#include "cuda/device/portable/attention/backward_pairs.hpp"
#include "cuda/device/portable/attention/backward_prepare.hpp"
#include "cuda/device/portable/attention/backward_warps.hpp"
#include "cuda/device/portable/attention/bias_tile.hpp"
#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/ordering.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C, bool kPairs = C.pairs(), bool kHalves = C.shares_rows>
struct ProductsOf {
  using Type = PortableBackwardWarps<C>;
};
template <PortableBackwardConfig C>
struct ProductsOf<C, true, false> {
  using Type = PortableBackwardPairs<C>;
};
template <PortableBackwardConfig C>
struct ProductsOf<C, false, true> {
  using Type = PortableBackwardHalves<C>;
};

template <PortableBackwardConfig C>
class PortableBackward : ProductsOf<C>::Type {
 public:
  __device__ __forceinline__ PortableBackward(const BackwardArguments<C>& arguments,
                                              unsigned char* memory)
      : Products(arguments, memory) {}

  __device__ __forceinline__ void run() {
    if constexpr (C.of_bias()) {
      sum_units();
    } else {
      if (!locate()) return;
      if constexpr (kPlanes == 2) {  // which have no non-finite elements
        mainloop(false);
        epilogue(nonfinite_rows());
      } else {
        compute_and_clear();
      }
    }
  }

 private:
  // Twice where values are not finite.
  __device__ __forceinline__ void compute_and_clear() {
#pragma unroll 1
    for (bool clears = false;; clears = true) {
      mainloop(clears);
      const bool nonfinite = C.masked() && has_nonfinite();
      if (!C.masked() || clears || __syncthreads_or(nonfinite) == 0) {
        epilogue(clears ? rows_to_fix_up() : 0);
        return;
      }
    }
  }
  using Products = typename ProductsOf<C>::Type;
  using Block = PortableBackwardBlock<C>;
  using Block::a_, Block::memory_, Block::address_, Block::own_, Block::first_column_,
      Block::equal_columns_;
  using Block::kTiles, Block::kFirstDepth, Block::kSecondDepth, Block::kFirstPart,
      Block::kSecondPart, Block::kSecondColumns, Block::kStatistics, Block::kPlanes,
      Block::kSharers;
  using Block::lane, Block::warp, Block::row_warp, Block::warp_row, Block::sharer,
      Block::own_column, Block::copy_rows, Block::copy_bias, Block::copy_statistics,
      Block::copy_column_numbers, Block::column_numbers, Block::stage_offset;
  using Products::multiply_first, Products::multiply_second, Products::for_each_row;
  using typename Block::Real, typename Block::Scores;
  template <int kFirstDim, int kSecondDim>
  using ColumnCopies = typename Block::template ColumnCopies<kFirstDim, kSecondDim>;
  using WholeColumns = ColumnCopies<C.key_dim, C.value_dim>;

  // ---- The block's rows ----

  // Returns whether there are any. By all threads.
  __device__ __forceinline__ bool locate() {
    const auto block = static_cast<int32_t>(blockIdx.x);
    first_column_ = block % C.parts() * C.kLargest;
    BackwardRows own{};
    if (!find_rows<C>(a_, block / C.parts(), own)) return false;
    share(own);
    return true;
  }
  // By all threads.
  __device__ __forceinline__ void share(const BackwardRows& own) const {
    if (threadIdx.x == 0) own_ = own;
    if (lane() == 0) seen() = seen_columns<C>(own, own.row + row_warp() * C.rows);
    __syncthreads();
  }

  // ---- Mainloop ----

  // A step: columns from `column` on, of a query head. `at`: of kKeys, where the queries' lse and
  // delta are.
  struct Step {
    int32_t head, column;
    int64_t at;
  };
  __device__ __forceinline__ Step first_step(int32_t head) const {
    const int32_t column = own_.first * C.columns;
    return {head, column, C.of_keys() ? statistics_at<C>(a_, own_, head, column) : 0};
  }
  // The next one; of kKeys behind the last one of a head the first of the next head.
  __device__ __forceinline__ Step after(const Step& step) const {
    if (C.of_keys() && a_.group > 1 && step.column + C.columns >= own_.end * C.columns)
      return first_step(step.head + 1);
    return {step.head, step.column + C.columns, step.at + C.columns};
  }

  __device__ __forceinline__ void mainloop(bool clears) {
    this->clear_gradients();
    if constexpr (C.stores_bias)
      if (stores_bias(clears)) BiasGradient<C>(a_, own_, address_, warp(), lane()).clear_skipped();
    const int steps = (own_.end - own_.first) * (C.of_keys() ? a_.group : 1);
    if (steps == 0) return;
    if constexpr (C.streams()) {
      Step now = first_step(own_.head);
#pragma unroll 1
      for (int i = 0; i < steps; ++i, now = after(now)) streamed_step(now, clears);
    } else if constexpr (C.unaligned()) {
      unaligned_steps(steps, clears);
    } else {
      whole_steps(steps, clears);
    }
  }
  // Whether dQ is added: once, though the tile may be computed twice.
  __device__ __forceinline__ bool adds_queries(bool clears) const {
    return C.adds_queries && !clears && a_.grad_query_rows.data != nullptr;
  }
  // Columns of a step, and what there is of each, to a stage.
  __device__ __forceinline__ void copy_step(const WholeColumns& columns, const Step& step,
                                            int stage) const {
    const int at = stage_offset(stage);
    columns.copy(*this, step.column, at, at + kSecondColumns, 0);
    copy_bias(step.head, step.column, stage);
    copy_statistics(step.at, stage);
    copy_column_numbers(step.head, step.column, stage);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void whole_steps(int steps, bool clears) {
    const bool adds = adds_queries(clears), stores = stores_bias(clears);
    WholeColumns columns(*this, own_.head);
    Step before{}, step = first_step(own_.head);
    int64_t before_at = 0;  // of the step before that one
    __syncthreads();        // all warps are done with what was computed before
    copy_rows(0);
    copy_step(columns, step, 0);
    constexpr bool kKeeps = kPlanes == 1 && C.most_dim() <= 64;  // where registers are left
    const int end = own_.end * C.columns;
    const SeenColumns own = seen();
    const auto is_end = [&](int column) {
      return kKeeps ? column >= end : a_.group > 1 && column >= own_.end * C.columns;
    };
    const auto sees = [&]() -> SeenColumns { return kKeeps ? own : seen(); };
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int stage = i % 2, at = stage_offset(stage);
      Step next{step.head, step.column + C.columns, step.at + C.columns};
      if (C.of_keys() && is_end(next.column)) {
        next = first_step(step.head + 1);
        if constexpr (!C.dropout) columns.move_to(*this, next.head);
      }
      const bool all = C.overlaps_chain() && sees().all(step.column);
      const bool any = sees().any(step.column);
      ptx::cp_async_wait<0>();
      if (C.masked() && clears)
        this->template clear_columns<C.key_dim, C.value_dim>(at, at + kSecondColumns);
      __syncthreads();
      if constexpr (C.rows_in_registers > 0)
        if (i == 0) this->load_rows();
      if constexpr (kPlanes == 2)
        if (i == 0) this->compare_rows();
      if (i + 1 < steps) {
        if constexpr (C.dropout)
          copy_step(WholeColumns(*this, next.head), next, 1 - stage);
        else
          copy_step(columns, next, 1 - stage);
      }
      if constexpr (C.adds_pairs()) {
        if (adds && i > 0 && i % 2 == 0) add_pair_of(i - 2, before_at, before);
        before_at = before.at;
      } else if (kPlanes == 1 && adds && i > 0) {
        add_queries_of(i - 1, before);
      }
      if (stores && i > 0) store_bias_of(i - 1, before);
      Scores scores = {}, products = {};
      if (all) {
        if constexpr (C.overlaps_chain())
          this->overlapped_step(
              i, at, chain_of(step), statistics(stage),
              [&](int tile) { return bias_of(tile, stage); }, scores, products);
      } else if (any) {
        draw(step);
        multiply(at, scores, products);
        use_scores(i, step, stage, at, at + kSecondColumns, scores, products);
      } else if constexpr (C.adds_queries && kPlanes == 1) {
        this->share_ds(i, {});
      } else if constexpr (C.adds_queries) {
        this->share_zeros();
      }
      if constexpr (C.adds_queries && kPlanes == 2)
        if (adds) this->add_plane_queries(stage, products, a_.sums + step.at * C.key_dim);
      before = step;
      step = next;
    }
    if (kPlanes == 1 && (adds || stores)) {
      __syncthreads();
      if (C.adds_pairs() && adds && steps % 2 == 0)
        add_pair_of(steps - 2, before_at, before);
      else if (adds)
        add_queries_of(steps - 1, before);
      if (stores) store_bias_of(steps - 1, before);
    }
  }
  // The same where warps share rows, without barriers of the block (step_barriers.hpp). A
  // warp may be ahead of others by S and dP. Behind its wait for the end of step i - 1 are the
  // copies of the next columns, to the stage of that step; dS, to the buffer that dQ of step i - 2
  // was computed from in step i - 1; and dQ of step i - 1, from dS of all warps.
  __device__ __forceinline__ void unaligned_steps(int steps, bool clears) {
    const bool adds = adds_queries(clears);
    const int phase = clears ? steps : 0;  // of the first step
    const StepBarriers barriers = this->barriers();
    Step before{}, step = first_step(own_.head);
    WholeColumns columns(*this, own_.head);
    const auto copy = [&](const Step& to_copy, int stage) {
      if constexpr (C.most_dim() > 64)  // which leaves no registers for their addresses
        copy_step(WholeColumns(*this, to_copy.head), to_copy, stage);
      else
        copy_step(columns, to_copy, stage);
      if (!clears && this->vectors()) {
        barriers.arrive_filled_by_copies();
        return;
      }
      ptx::cp_async_wait<0>();
      if (C.masked() && clears)
        this->template clear_columns<C.key_dim, C.value_dim>(stage_offset(stage),
                                                             stage_offset(stage) + kSecondColumns);
      barriers.arrive_filled();
    };
    if (!clears && threadIdx.x == 0) barriers.initialize(C.threads());
    __syncthreads();  // all warps see the barriers, and are done with what was computed before
    copy_rows(0);
    copy(step, 0);
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int stage = i % 2, at = stage_offset(stage);
      const Step next = after(step);
      const bool any = sees_any(step.column);
      barriers.wait_filled(phase + i);
      if constexpr (C.rows_in_registers > 0)
        if (i == 0) this->load_rows();
      Scores scores = {}, products = {};
      if (any) {
        draw(step);
        multiply(at, scores, products);
      }
      if (i > 0) barriers.wait_ended(phase + i - 1);
      if (i + 1 < steps) {
        if (C.most_dim() <= 64 && next.head != step.head) columns.move_to(*this, next.head);
        copy(next, 1 - stage);
      }
      if (any)
        use_scores(i, step, stage, at, at + kSecondColumns, scores, products);
      else
        this->skip_gradients(i);
      if (adds && i > 0 && this->has_turn(i)) add_queries_of(i - 1, before);
      barriers.arrive_ended();
      before = step;
      step = next;
    }
    if (adds && this->has_turn(steps)) {
      barriers.wait_ended(phase + steps - 1);
      add_queries_of(steps - 1, before);
    }
  }
  __device__ __forceinline__ void add_pair_of(int number, int64_t first_at,
                                              const Step& second) const {
    if constexpr (C.adds_pairs())
      this->add_pair_of_queries(number, a_.sums + first_at * C.key_dim,
                                a_.sums + second.at * C.key_dim);
  }
  __device__ __forceinline__ void add_queries_of(int number, const Step& step) const {
    if constexpr (C.adds_queries && kPlanes == 1)
      this->add_queries(number, a_.sums + step.at * C.key_dim);
  }

  // Scores chunk by chunk; then the columns of the part.
  __device__ __forceinline__ void streamed_step(const Step& step, bool clears) {
    constexpr int kFirst = C.parts_offset(), kSecond = kFirst + C.part_bytes(C.key_dim);
    Scores scores = {}, products = {};
    multiply_chunks(step, scores, products, [&] {
      copy_statistics(step.at, 0);
      ColumnCopies<C.part_length(C.key_dim), C.part_length(C.value_dim)>(*this, step.head)
          .copy(*this, step.column, kFirst, kSecond, first_column_);
    });
    if (C.masked() && clears) {
      this->template clear_columns<kFirstPart, kSecondPart>(kFirst, kSecond);
      __syncthreads();
    }
    if (!sees_any(step.column)) return;
    use_scores(0, step, 0, kFirst, kSecond, scores, products);
  }
  // copy_others: what else is copied, with the first chunk.
  template <class CopyOthers>
  __device__ __forceinline__ void multiply_chunks(const Step& step, Scores& scores,
                                                  Scores& products, const CopyOthers& copy_others) {
    const int at = stage_offset(0);
    draw(step);
#pragma unroll 1
    for (int depth = 0; depth < C.most_dim(); depth += C.chunk) {
      __syncthreads();  // all warps are done with the chunk before
      copy_rows(depth);
      ColumnCopies<kFirstDepth, kSecondDepth>(*this, step.head)
          .copy(*this, step.column, at, at + kSecondColumns, depth);
      if (depth == 0) {
        copy_bias(step.head, step.column, 0);
        copy_column_numbers(step.head, step.column, 0);
        copy_others();
      }
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (depth < C.key_dim) multiply_first(at, scores);
      if (depth < C.value_dim) multiply_second(at, products);
    }
  }

  __device__ __forceinline__ void multiply(int columns, Scores& scores, Scores& products) const {
    multiply_first(columns, scores);
    multiply_second(columns, products);
  }

  // ---- Scores ----

  __device__ __forceinline__ SeenColumns& seen() const {
    return reinterpret_cast<SeenColumns*>(memory_ + C.seen_offset())[warp()];
  }
  __device__ __forceinline__ bool sees_any(int column) const {
    const SeenColumns own = seen();
    return own.any(column);
  }
  // A step's scores and products to gradients, from the columns' tensors at those offsets. Planes
  // of columns with equal numbers, which nearly all have, have shorter code of their own.
  __device__ __forceinline__ void use_scores(int number, const Step& step, int stage, int first,
                                             int second, Scores& scores, Scores& products) {
    if (this->has_equal_columns(stage)) {
      equal_columns_ = true;
      finish_step(step, stage, scores, products);
      this->add_gradients(number, stage, first, second, scores, products);
    } else {
      equal_columns_ = false;
      finish_step(step, stage, scores, products);
      this->add_gradients(number, stage, first, second, scores, products);
    }
  }
  __device__ __forceinline__ void finish_step(const Step& step, int stage, Scores& scores,
                                              Scores& products) const {
    if constexpr (kPlanes == 2)
      if (!equal_columns_) unscale_columns(column_numbers(stage), lane(), scores, products);
    this->run_chain(products, [&] {
      const SeenColumns own = seen();
      if (own.all(step.column))
        finish_scores<false>(step, stage, scores, products);
      else
        finish_scores<true>(step, stage, scores, products);
    });
  }
  __device__ __forceinline__ PortableBackwardScores<C> chain_of(const Step& step) const {
    return {a_, own_, warp_row(), step.column + own_column(), step.head, lane()};
  }
  // Draws what dropout keeps of a step, before its scores take registers.
  __device__ __forceinline__ void draw(const Step& step) {
    if constexpr (C.dropout) chain_of(step).draw(kept_);
  }
  // lse and delta of the thread's first column.
  __device__ __forceinline__ const Real* statistics(int stage) const {
    return reinterpret_cast<const Real*>(memory_ + kStatistics) + stage * 2 * C.columns +
           own_column() + 2 * (lane() % 4);
  }
  template <bool kMasks>
  __device__ __forceinline__ void finish_scores(const Step& step, int stage, Scores& scores,
                                                Scores& products) const {
    const PortableBackwardScores<C> chain = chain_of(step);
    const Real* const shared = statistics(stage);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if constexpr (C.of_keys()) {
        const auto of_columns = [&](int j, int) {
          using Pair = typename PairOf<Real>::Type;
          const Pair lse = *reinterpret_cast<const Pair*>(shared + 8 * j);
          const Pair delta = *reinterpret_cast<const Pair*>(shared + C.columns + 8 * j);
          return QueryStatistics<Real>{{lse.x, lse.y}, {delta.x, delta.y}};
        };
        chain.template compute<kMasks>(i, of_columns, bias_of(i, stage), kept_[i],
                                       scales_of(i, stage), scores[i], products[i]);
      } else {
        QueryStatistics<Real> own[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          own[r] = statistics_of(warp_row() + 16 * i + 8 * r + lane() / 4);
        const auto of_rows = [&](int, int r) { return own[r]; };
        chain.template compute<kMasks>(i, of_rows, bias_of(i, stage), kept_[i], scales_of(i, stage),
                                       scores[i], products[i]);
      }
    }
  }
  // The thread's bias of 16 rows.
  __device__ __forceinline__ ScoreBias<C> bias_of(int i, int stage) const {
    ScoreBias<C> bias{};
    if constexpr (C.copies_bias())
      BiasTile<C.bias, C.step_keys()>(memory_, address_, Block::bias_offset(stage), lane())
          .template for_each_pair<C.of_keys(), C.own_columns() / 2>(
              row_warp() * C.rows + 16 * i, own_column(),
              [&](int x, float2 both) { bias.pair[x / 2] = both; });
    return bias;
  }
  __device__ __forceinline__ RowScales<Real> scales_of(int i, int stage) const {
    if constexpr (kPlanes == 2) {  // which have the scale
      const int row = warp() * C.rows + 16 * i;
      return row_scales(address_ + static_cast<uint32_t>(C.numbers_offset() + 8 * row),
                        column_numbers(stage), equal_columns_, lane());
    } else {
      const Real scale = scale_log2_of<Real>(a_);
      return {{scale, scale}, {1, 1}};
    }
  }
  // lse and delta of a row, which is a query.
  __device__ __forceinline__ QueryStatistics<Real> statistics_of(int query) const {
    Real lse = -minus_infinity(), delta = 0;
    if (query < own_.q_len) {
      const int64_t at = statistics_at<C>(a_, own_, own_.head, query);
      lse = a_.lse_log2[at];
      delta = a_.delta[at];
    }
    return {{lse, lse}, {delta, delta}};
  }

  // ---- Gradients that are not finite ----

  __device__ __forceinline__ bool has_nonfinite() const {
    bool found = false;
    for_each_row([&](int, Real nonfinite) { found = found || nonfinite != 0; });
    return found;
  }
  // Returns the warp's rows that are not finite, as bits.
  __device__ __forceinline__ uint32_t nonfinite_rows() const {
    uint32_t rows = 0;
    for_each_row([&](int row, Real nonfinite) {
      const uint32_t lanes = __ballot_sync(0xffffffffu, quad_sum(nonfinite) != 0);
#pragma unroll
      for (int l = 0; l < 8; ++l) rows |= (lanes >> (4 * l) & 1) << (row + l);
    });
    return rows;
  }
  // Those, and the ones that depend on an element that was cleared.
  __device__ __forceinline__ uint32_t rows_to_fix_up() const {
    uint32_t rows = nonfinite_rows();
    const int first = warp_row();
#pragma unroll 1
    for (int row = sharer(); row < C.rows; row += kSharers) {
      if (first + row >= (C.of_keys() ? own_.kv_len : own_.q_len)) break;
      const bool depends =
          C.of_keys() ? key_depends_on_nonfinite_query<C>(a_, own_, own_.kv_head, first + row)
                      : query_depends_on_nonfinite<C>(a_, own_, own_.head, first + row);
      if (depends) rows |= 1u << row;
    }
    return this->rows_of_all(rows);
  }

  // ---- Epilogue ----

  // Stores the gradients of the warp's rows but for `left_out`, which are computed once more.
  __device__ __forceinline__ void epilogue(uint32_t left_out) {
    __syncthreads();  // all warps are done with the stages
    this->store_gradients(left_out);
    const int first = warp_row();
    const int end = C.of_keys() ? own_.kv_rows : own_.q_len;
#pragma unroll 1
    for (int row = sharer(); row < C.rows && first + row < end; row += kSharers)
      if ((left_out >> row & 1) != 0) fix_up(first + row);
  }
  __device__ __noinline__ void fix_up(int row) const {
    if constexpr (C.of_keys())
      fix_up_key<C>(a_, own_.batch, own_.kv_head, row, kRowOfKey | kRowOfValue, first_column_,
                    first_column_ + C.kLargest);
    else
      fix_up_query<C>(a_, own_, own_.head, row, first_column_, first_column_ + C.kLargest);
  }

  // ---- The gradient of bias ----

  // Whether the block stores its part of the gradient: once, as it adds dQ.
  __device__ __forceinline__ bool stores_bias(bool clears) const {
    static_assert(!C.stores_bias || (C.adds_queries && kPlanes == 1 && !C.unaligned()));
    return C.stores_bias && !clears && a_.grad_bias.data != nullptr;
  }
  __device__ __forceinline__ void store_bias_of(int number, const Step& step) const {
    if constexpr (C.stores_bias)
      BiasGradient<C>(a_, own_, address_, warp(), lane()).store(number, step.head, step.column);
  }
  __device__ __forceinline__ void sum_units() {
    const BiasSplit<C> split(a_, static_cast<int32_t>(blockIdx.x));
    Scores sums = {};
    split.for_each_unit(a_, [&](const BackwardTile& tile, const BackwardStep& step) {
      __syncthreads();  // all warps are done with the unit before
      BackwardRows own{};
      static_cast<AttentionSequence&>(own) = tile;
      own.row = step.block * C.queries;
      own.head = step.head;
      own.kv_head = tile.kv_head;
      share(own);
      Scores scores = {}, products = {};
      const Step unit{step.head, tile.key, 0};
      multiply_chunks(unit, scores, products, [] {});
      finish_step(unit, 0, scores, products);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        if constexpr (kPlanes == 2)
          fix_up_scores<C>(a_, own_, own_.head, warp_row() + 16 * i, tile.key, products[i]);
#pragma unroll
        for (int x = 0; x < C.columns / 2; ++x) sums[i][x] += products[i][x];
      }
    });
    auto* shared = reinterpret_cast<Real*>(memory_);
    using Reduction = BiasReduction<C, WholeBlock<C.threads()>, BackwardArguments<C>>;
    __syncthreads();  // all warps are done with the tiles
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int x = 0; x < C.columns / 2; ++x)
        if (sharer() == 0)
          shared[(row_warp() * C.rows + 16 * i + x / 2 % 2 * 8 + lane() / 4) * Reduction::kPitch +
                 2 * (lane() % 4) + x / 4 * 8 + x % 2] = sums[i][x];
    __syncthreads();
    Reduction(a_, shared, reinterpret_cast<volatile uint32_t*>(memory_ + C.flag_offset()))
        .store(split);
  }

  uint32_t kept_[kTiles] = {};  // elements of a step that dropout keeps
};

template <PortableBackwardConfig C>
__global__ void __launch_bounds__(C.threads(), C.resident())
    portable_attention_backward(const __grid_constant__ BackwardArguments<C> arguments) {
  extern __shared__ __align__(128) unsigned char backward_memory[];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  PortableBackward<C>(arguments, backward_memory).run();
}

}  // namespace perseid::internal::cuda
