// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward for f16, bf16 and f32 by the tensor cores' warp products, sm_80 and up. With
// P = softmax(scale * Q K^T, masked), from lse:
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)
//   dQ = scale dS K                   dK = scale dS^T Q
//
// Launches: portable_attention_backward_prepare (delta and lse, backward_prepare.hpp), and one of
// portable_attention_backward for each of GradientsOf: a block sums its gradients alone, so that
// every one is deterministic and nothing is summed in memory. dQ costs two products more than if it
// were summed beside dK and dV.
//
// Warps. A block has a tile of rows: keys, for dK and dV, or queries, for dQ. Each of its four
// warps has 16 or 32 of them. It iterates over tiles of columns, the other side. A warp's scores S
// and products E = dP, and its gradients, are in registers; W and dS are left operands as they are.
//
//   kKeys                            kQueries, kBias
//   S = K Q^T       E = V dO^T       S = Q K^T    E = dO V^T       `first` tensor, `second` tensor
//   dK += dS Q      dV += W dO       dQ += dS K                    (transposes are left out)
//
// Pipeline, a step: 1 wait for the copies of its columns, 2 barrier, 3 copy the next columns to the
// other stage, 4 compute. The barrier shows every thread what others have copied, and says that all
// warps are done with the stage that 3 fills. Warps skip 4 where their rows see no column. Where
// dims are cut, or both sides change (kBias), each step loads chunks of both and waits for each.
//
// Raster order. The longest tiles come first, heads in sections that fit into the L2 cache
// (raster_order.hpp). Ragged batches: padded positions of blocks (attention/sequence.hpp).
//
// float32 is multiplied as planes of f16 (planes.hpp, backward_planes.hpp), which a launch before
// writes. Rows that depend on what planes do not hold get a fixup, of dBias elements.
//
// Hidden values that are not finite: 0 times NaN is NaN. If gradients of the block tell of such a
// value, it computes its tile once more, and each thread clears the non-finite elements of the
// columns that it has copied, before the barrier. Rows that depend on one get a fixup
// (attention/backward_fixup.hpp).
//
// Limits: rows and columns count in 32 bits. Numerics: W and dS are rounded to 16 bits before their
// products; everything else is float32. A row's bits do not depend on its batch.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/attention/bias_split.hpp"
#include "cuda/device/portable/attention/backward_block.hpp"
#include "cuda/device/portable/attention/backward_planes.hpp"
#include "cuda/device/portable/attention/backward_prepare.hpp"
#include "cuda/device/portable/attention/backward_queries.hpp"
#include "cuda/device/portable/attention/backward_store.hpp"
#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/ordering.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PortableBackward : PortableBackwardBlock<C> {
 public:
  __device__ __forceinline__ PortableBackward(const PortableBackwardArguments& arguments,
                                              unsigned char* memory)
      : Block(arguments, memory) {}

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
  using Block = PortableBackwardBlock<C>;
  using Block::a_, Block::memory_, Block::address_, Block::own_, Block::first_column_;
  using Block::kTiles, Block::kFirstDepth, Block::kSecondDepth, Block::kFirstPart,
      Block::kSecondPart, Block::kSecondRows, Block::kSecondColumns, Block::kStatistics,
      Block::kPlanes;
  using Block::lane, Block::warp, Block::warp_row, Block::entry, Block::copy_rows,
      Block::copy_statistics, Block::copy_column_numbers, Block::stage_offset;
  template <int kFirstDim, int kSecondDim>
  using ColumnCopies = typename Block::template ColumnCopies<kFirstDim, kSecondDim>;
  using Scores = float[kTiles][C.columns / 2];
  using Weights = uint32_t[kTiles][C.columns / 4];

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
    if (lane() == 0) seen() = seen_columns<C>(own, own.row + warp() * C.rows);
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
    if (C.of_keys() && step.column + C.columns >= own_.end * C.columns)
      return first_step(step.head + 1);
    return {step.head, step.column + C.columns, step.at + C.columns};
  }

  __device__ __forceinline__ void mainloop(bool clears) {
    clear(first_);
    clear(second_);
    const int steps = (own_.end - own_.first) * (C.of_keys() ? a_.group : 1);
    if (steps == 0) return;
    if constexpr (C.streams()) {
      Step now = first_step(own_.head);
#pragma unroll 1
      for (int i = 0; i < steps; ++i, now = after(now)) streamed_step(now, clears);
    } else {
      whole_steps(steps, clears);
    }
  }
  __device__ __forceinline__ void whole_steps(int steps, bool clears) {
    // Once, though the tile may be computed twice.
    const bool adds = C.adds_queries && !clears && a_.grad_query_rows.data != nullptr;
    ColumnCopies<C.key_dim, C.value_dim> columns(*this, own_.head);
    Step before{}, step = first_step(own_.head);
    const auto copy = [&](const Step& to_copy, int stage) {
      const int at = stage_offset(stage);
      columns.copy(*this, to_copy.column, at, at + kSecondColumns, 0);
      copy_statistics(to_copy.at, stage);
      copy_column_numbers(to_copy.head, to_copy.column, stage);
      ptx::cp_async_commit();
    };
    __syncthreads();  // all warps are done with what was computed before
    copy_rows(0);
    copy(step, 0);
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int stage = i % 2, at = stage_offset(stage);
      const Step next = after(step);
      ptx::cp_async_wait<0>();
      if (C.masked() && clears)
        this->template clear_columns<C.key_dim, C.value_dim>(at, at + kSecondColumns);
      __syncthreads();
      if (C.rows_in_registers > 0 && i == 0) load_rows();
      if (i + 1 < steps) {
        if (C.of_keys() && next.head != step.head) columns.move_to(*this, next.head);
        copy(next, 1 - stage);
      }
      if (adds && i > 0) query_sums().add(i - 1, 0, a_.sums + before.at * C.key_dim);
      Scores scores = {}, products = {};
      if (sees_any(step.column)) {
        multiply(at, scores, products);
        finish_step(step, stage, scores, products);
        add_gradients(i, stage, at, at + kSecondColumns, scores, products);
      } else if (C.adds_queries) {
        query_sums().share(i, {});
      }
      before = step;
      step = next;
    }
    if (adds) {
      __syncthreads();
      query_sums().add(steps - 1, 0, a_.sums + before.at * C.key_dim);
    }
  }
  __device__ __forceinline__ void load_rows() {
    if constexpr (C.rows_in_registers > 0) first_own_.fill(shared_rows<kFirstDepth>(0));
    if constexpr (C.rows_in_registers > 1) second_own_.fill(shared_rows<kSecondDepth>(kSecondRows));
  }
  __device__ __forceinline__ QuerySums<C> query_sums() const {
    return {memory_, address_, warp(), lane()};
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
    finish_step(step, 0, scores, products);
    add_gradients(0, 0, kFirst, kSecond, scores, products);
  }
  // copy_others: what else is copied, with the first chunk.
  template <class CopyOthers>
  __device__ __forceinline__ void multiply_chunks(const Step& step, Scores& scores,
                                                  Scores& products, const CopyOthers& copy_others) {
    const int at = stage_offset(0);
#pragma unroll 1
    for (int depth = 0; depth < C.most_dim(); depth += 64) {
      __syncthreads();  // all warps are done with the chunk before
      copy_rows(depth);
      ColumnCopies<kFirstDepth, kSecondDepth>(*this, step.head)
          .copy(*this, step.column, at, at + kSecondColumns, depth);
      if (depth == 0) {
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
  template <int kTileCount, int kCount>
  static __device__ __forceinline__ void clear(float (&sums)[kTileCount][kCount]) {
#pragma unroll
    for (int i = 0; i < kTileCount; ++i)
#pragma unroll
      for (float& each : sums[i]) each = 0;
  }

  // ---- Products ----

  template <int kDim>
  __device__ __forceinline__ SharedRows<kPlanes * kDim> shared_rows(int offset) const {
    const LaneVector own = lane_vector_of_rows(lane());
    return {{address_ + static_cast<uint32_t>(offset), warp() * C.rows + own.line, own.half}};
  }
  template <int kDim>
  __device__ __forceinline__ LaneVectors<line_length(kPlanes* kDim)> column_vectors(
      int offset) const {
    const LaneVector own = lane_vector_of_columns(lane());
    return {address_ + static_cast<uint32_t>(offset), own.line, own.half};
  }
  template <int kDim>
  __device__ __forceinline__ LaneVectors<line_length(kPlanes* kDim)> depth_vectors(
      int offset) const {
    const LaneVector own = lane_vector_of_rows(lane());
    return {address_ + static_cast<uint32_t>(offset), own.line, own.half};
  }
  __device__ __forceinline__ void multiply_first(int columns, Scores& scores) const {
    const auto multiply_by = [&](const auto& rows) {
      multiply_rows<C.dtype, kFirstDepth>(rows, column_vectors<kFirstDepth>(columns), scores);
    };
    if constexpr (kPlanes == 2)
      add_plane_products<kFirstDepth>(shared_rows<kFirstDepth>(0),
                                      column_vectors<kFirstDepth>(columns), scores);
    else if constexpr (C.rows_in_registers > 0)
      multiply_by(first_own_);
    else
      multiply_by(shared_rows<kFirstDepth>(0));
  }
  __device__ __forceinline__ void multiply_second(int columns, Scores& products) const {
    const auto multiply_by = [&](const auto& rows) {
      multiply_rows<C.dtype, kSecondDepth>(
          rows, column_vectors<kSecondDepth>(columns + kSecondColumns), products);
    };
    if constexpr (kPlanes == 2)
      add_plane_products<kSecondDepth>(shared_rows<kSecondDepth>(kSecondRows),
                                       column_vectors<kSecondDepth>(columns + kSecondColumns),
                                       products);
    else if constexpr (C.rows_in_registers > 1)
      multiply_by(second_own_);
    else
      multiply_by(shared_rows<kSecondDepth>(kSecondRows));
  }
  __device__ __forceinline__ void multiply(int columns, Scores& scores, Scores& products) const {
    multiply_first(columns, scores);
    multiply_second(columns, products);
  }
  // Sums over chunks of the depth.
  template <int kDepth, class Rows, class Columns>
  __device__ __forceinline__ void add_plane_products(const Rows& rows, const Columns& columns,
                                                     Scores& sums) const {
    Scores chunk;
    multiply_planes<kDepth, !C.of_keys()>(rows, columns, chunk);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int x = 0; x < C.columns / 2; ++x)
        sums[i][x] = C.streams() ? sums[i][x] + chunk[i][x] : chunk[i][x];
  }
  // The columns' tensors are at those offsets.
  __device__ __forceinline__ void add_gradients(int step, int stage, int first, int second,
                                                Scores& scores, Scores& products) {
    if constexpr (kPlanes == 2) {
      const uint32_t numbers = column_numbers(stage);
      if constexpr (C.of_keys())
        add_plane_gradient<true, kSecondPart, kSecondDepth>(
            numbers, depth_vectors<plane_line(C.value_dim)>(second), scores, second_);
      add_plane_gradient<false, kFirstPart, kFirstDepth>(
          numbers, depth_vectors<plane_line(C.key_dim)>(first), products, first_);
      return;
    } else {
      round_gradients(step, first, second, scores, products);
    }
  }
  // Numbers of a line of columns that gradients are summed over.
  static constexpr int plane_line(int dim) { return C.streams() ? C.part_length(dim) : dim; }
  __device__ __forceinline__ uint32_t column_numbers(int stage) const {
    return address_ + static_cast<uint32_t>(C.column_numbers_offset() + stage * C.columns * 8);
  }
  template <bool kOfSecond, int kPart, int kChunk, class Columns, int kCount>
  __device__ __forceinline__ void add_plane_gradient(uint32_t numbers, const Columns& columns,
                                                     Scores& values,
                                                     float (&sums)[kTiles][kCount]) const {
    uint32_t weights[2][kTiles][C.columns / 4];
    float factor[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      split_gradient<kOfSecond>(numbers, lane(), values[i], weights[0][i], weights[1][i],
                                factor[i]);
    multiply_plane_weights<kPart / 2, kChunk>(weights, columns, [&](int i, int x, float sum) {
      sums[i][x] = fmaf(sum, factor[i][x / 2 % 2], sums[i][x]);
    });
  }
  __device__ __forceinline__ void round_gradients(int step, int first, int second,
                                                  const Scores& scores, const Scores& products) {
    Weights weights;
    if constexpr (C.of_keys()) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) round_weights<C.dtype>(scores[i], weights[i]);
      multiply_weights<C.dtype>(weights, depth_vectors<kSecondPart>(second), second_);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) round_weights<C.dtype>(products[i], weights[i]);
    if constexpr (C.adds_queries) query_sums().share(step, weights);
    multiply_weights<C.dtype>(weights, depth_vectors<kFirstPart>(first), first_);
  }

  // ---- Scores ----

  __device__ __forceinline__ SeenColumns& seen() const {
    return reinterpret_cast<SeenColumns*>(memory_ + C.seen_offset())[warp()];
  }
  __device__ __forceinline__ bool sees_any(int column) const {
    const SeenColumns own = seen();
    return column >= own.first_any && column <= own.last_any;
  }
  __device__ __forceinline__ void finish_step(const Step& step, int stage, Scores& scores,
                                              Scores& products) const {
    if constexpr (kPlanes == 2)
      unscale_products(address_ + static_cast<uint32_t>(C.numbers_offset() + warp() * C.rows * 8),
                       column_numbers(stage), lane(), scores, products);
    const SeenColumns own = seen();
    if (step.column >= own.first_all && step.column <= own.last_all)
      finish_scores<false>(step, stage, scores, products);
    else
      finish_scores<true>(step, stage, scores, products);
  }
  template <bool kMasks>
  __device__ __forceinline__ void finish_scores(const Step& step, int stage, Scores& scores,
                                                Scores& products) const {
    const PortableBackwardScores<C> chain(a_, own_, warp_row(), step.column, step.head, lane());
    const auto* shared = reinterpret_cast<const float*>(memory_ + kStatistics) +
                         stage * 2 * C.columns + 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if constexpr (C.of_keys()) {
        const auto of_columns = [&](int j, int) {
          const float2 lse = *reinterpret_cast<const float2*>(shared + 8 * j);
          const float2 delta = *reinterpret_cast<const float2*>(shared + C.columns + 8 * j);
          return float4{lse.x, lse.y, delta.x, delta.y};
        };
        chain.template compute<kMasks>(i, of_columns, scores[i], products[i]);
      } else {
        float2 own[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          own[r] = statistics_of(warp_row() + 16 * i + 8 * r + lane() / 4);
        const auto of_rows = [&](int, int r) {
          return float4{own[r].x, own[r].x, own[r].y, own[r].y};
        };
        chain.template compute<kMasks>(i, of_rows, scores[i], products[i]);
      }
    }
  }
  // lse and delta of a row, which is a query.
  __device__ __forceinline__ float2 statistics_of(int query) const {
    if (query >= own_.q_len) return {-minus_infinity(), 0};
    const int64_t at = statistics_at<C>(a_, own_, own_.head, query);
    return {a_.lse_log2[at], a_.delta[at]};
  }

  // ---- Gradients that are not finite ----

  // use(row of the warp, NaN where the thread's part of the row is not finite)
  template <class Use>
  __device__ __forceinline__ void for_each_row(const Use& use) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float nonfinite = 0;
#pragma unroll
        for (int j = 0; j < kFirstPart / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) nonfinite = fmaf(first_[i][4 * j + 2 * r + e], 0, nonfinite);
        if constexpr (C.of_keys()) {
#pragma unroll
          for (int j = 0; j < kSecondPart / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              nonfinite = fmaf(second_[i][4 * j + 2 * r + e], 0, nonfinite);
        }
        use(16 * i + 8 * r, nonfinite);
      }
  }
  __device__ __forceinline__ bool has_nonfinite() const {
    bool found = false;
    for_each_row([&](int, float nonfinite) { found = found || nonfinite != 0; });
    return found;
  }
  // Of the warp's rows, those that are not finite, as bits.
  __device__ __forceinline__ uint32_t nonfinite_rows() const {
    uint32_t rows = 0;
    for_each_row([&](int row, float nonfinite) {
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
    for (int row = 0; row < C.rows; ++row) {
      if (first + row >= (C.of_keys() ? own_.kv_len : own_.q_len)) break;
      const bool depends =
          C.of_keys() ? key_depends_on_nonfinite_query<C>(a_, own_, own_.kv_head, first + row)
                      : query_depends_on_nonfinite<C>(a_, own_, own_.head, first + row);
      if (depends) rows |= 1u << row;
    }
    return rows;
  }

  // ---- Epilogue ----

  // Stores the gradients of the warp's rows but for `left_out`, which are computed once more.
  __device__ __forceinline__ void epilogue(uint32_t left_out) {
    __syncthreads();  // all warps are done with the stages
    if constexpr (C.of_keys()) {
      store<C.accumulate_value, kSecondPart>(second_, dropout_factor<C.dropout>(a_),
                                             a_.grad_value_rows, a_.value_dim, left_out);
      // Planes of queries have the scale, to units of log2.
      store<C.accumulate_key, kFirstPart>(first_, kPlanes == 2 ? kLn2 : a_.scale, a_.grad_key_rows,
                                          a_.head_dim, left_out);
    } else {
      store<C.accumulate_query, kFirstPart>(first_, a_.scale, a_.grad_query_rows, a_.head_dim,
                                            left_out);
    }
    const int first = warp_row();
    const int end = C.of_keys() ? own_.kv_rows : own_.q_len;
#pragma unroll 1
    for (int row = 0; row < C.rows && first + row < end; ++row)
      if ((left_out >> row & 1) != 0) fix_up(first + row);
  }
  __device__ __noinline__ void fix_up(int row) const {
    if constexpr (C.of_keys())
      fix_up_key<C>(a_, own_.batch, own_.kv_head, row, kRowOfKey | kRowOfValue, first_column_,
                    first_column_ + C.kLargest);
    else
      fix_up_query<C>(a_, own_, own_.head, row, first_column_, first_column_ + C.kLargest);
  }
  // A null pointer disables a gradient.
  template <bool kAdds, int kPart>
  __device__ __forceinline__ void store(const float (&sums)[kTiles][kPart / 2], float factor,
                                        const RowsInMemory& rows, int32_t dim,
                                        uint32_t left_out) const {
    if (rows.data == nullptr) return;
    constexpr DType kOut = C.f32_key_gradients && C.of_keys() ? DType::kF32 : C.dtype;
    using Element = typename ElementOf<kOut>::Type;
    Element* const to = row_at<Element>(rows, entry(), C.of_keys() ? own_.kv_head : own_.head,
                                        (C.of_keys() ? own_.kv_begin : own_.q_begin) + warp_row()) +
                        first_column_ * rows.stride[3];
    const int count = min((C.of_keys() ? own_.kv_rows : own_.q_len) - warp_row(), C.rows);
    GradientStore<C, kOut, kPart>(memory_ + warp() * C.rows * line_length(C.part(C.most_dim())) * 2,
                                  to, rows.stride[2], rows.stride[3],
                                  count > 0 ? ((2u << (count - 1)) - 1) & ~left_out : 0,
                                  min(dim - first_column_, kPart), lane())
        .template store<kAdds>(sums, factor, a_.vectors);
  }
  // ---- The gradient of bias ----

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
    auto* shared = reinterpret_cast<float*>(memory_);
    using Reduction = BiasReduction<C, WholeBlock, PortableBackwardArguments>;
    __syncthreads();  // all warps are done with the tiles
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int x = 0; x < C.columns / 2; ++x)
        shared[(warp() * C.rows + 16 * i + x / 2 % 2 * 8 + lane() / 4) * Reduction::kPitch +
               2 * (lane() % 4) + x / 4 * 8 + x % 2] = sums[i][x];
    __syncthreads();
    Reduction(a_, shared, reinterpret_cast<volatile uint32_t*>(memory_ + C.flag_offset()))
        .store(split);
  }

  // Of the columns of the part.
  float first_[kTiles][kFirstPart / 2];                      // dK or dQ
  float second_[kTiles][C.of_keys() ? kSecondPart / 2 : 1];  // dV
  RegisterRows<(C.rows_in_registers > 0 ? kFirstDepth : 16), kTiles> first_own_;
  RegisterRows<(C.rows_in_registers > 1 ? kSecondDepth : 16), kTiles> second_own_;
};

template <PortableBackwardConfig C>
__global__ void __launch_bounds__(C.threads(), C.resident())
    portable_attention_backward(const __grid_constant__ PortableBackwardArguments arguments) {
  extern __shared__ __align__(128) unsigned char memory[];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  PortableBackward<C>(arguments, memory).run();
}

}  // namespace perseid::internal::cuda
