// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products and gradients of attention backward on sm_80 and up: of f16 and bf16, and of float32 as
// planes (backward_planes.hpp). Each warp has rows of its own, or shares them with another one,
// which has the other half of a step's columns and of the gradients' (backward_halves.hpp).
#pragma once

#include "cuda/device/portable/attention/backward_block.hpp"
#include "cuda/device/portable/attention/backward_plane_queries.hpp"
#include "cuda/device/portable/attention/backward_planes.hpp"
#include "cuda/device/portable/attention/backward_queries.hpp"
#include "cuda/device/split/truncation.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PortableBackwardWarps : protected PortableBackwardBlock<C> {
 protected:
  using Block = PortableBackwardBlock<C>;
  using Block::a_, Block::memory_, Block::address_, Block::kTiles, Block::kFirstDepth,
      Block::kSecondDepth, Block::kFirstPart, Block::kSecondPart, Block::kSecondRows,
      Block::kSecondColumns, Block::kPlanes, Block::equal_columns_;
  using Block::Block;
  using Block::lane, Block::warp, Block::row_warp, Block::sharer, Block::own_column,
      Block::column_numbers;
  using typename Block::Scores;
  using Weights = uint32_t[kTiles][C.own_columns() / 4];
  // The warp sums so many columns of a gradient, from these times sharer() on.
  static constexpr int kFirstOwn = C.own_part(C.key_dim), kSecondOwn = C.own_part(C.value_dim);

  __device__ __forceinline__ void clear_gradients() {
    clear(first_);
    clear(second_);
  }
  __device__ __forceinline__ void load_rows() {
    if constexpr (C.rows_in_registers > 0) first_own_.fill(shared_rows<kFirstDepth>(0));
    if constexpr (C.rows_in_registers > 1) second_own_.fill(shared_rows<kSecondDepth>(kSecondRows));
  }
  // Of planes: whether the block's rows have equal numbers.
  __device__ __forceinline__ void compare_rows() {
    if constexpr (C.adds_queries)
      equal_rows_ =
          are_equal<C.block_rows()>(address_ + static_cast<uint32_t>(C.numbers_offset()), lane());
  }
  // The warp's dS is 0, as planes too.
  __device__ __forceinline__ void share_zeros() { ds_is_split_ = true; }
  // dS of a step, for dQ.
  __device__ __forceinline__ void share_ds(int step, const Weights& ds) const {
    QuerySums<C>(memory_, address_, warp(), lane())
        .share(step, row_warp() * C.rows, own_column(), ds);
  }
  // After a barrier: to the sums of the step's queries.
  __device__ __forceinline__ void add_queries(int step, float* to) const {
    QuerySums<C>(memory_, address_, warp(), lane()).add(step, 0, to);
  }
  // Of two steps: even warps of the first, odd warps of the second.
  __device__ __forceinline__ void add_pair_of_queries(int step, float* first, float* second) const {
    const int odd = warp() % 2;
    QuerySums<C>(memory_, address_, warp(), lane())
        .template add<true>(step + odd, 0, odd == 0 ? first : second);
  }
  // For planes: adds the product of a step's dS, times the factors of its queries, to the sums of
  // those. All warps call it.
  __device__ __forceinline__ void add_plane_queries(int stage, const Scores& ds, float* to) const {
    const PlaneQuerySums<C> queries(memory_, address_, warp(), lane());
    const int shared = Block::stage_offset(stage);
    __syncthreads();  // all warps are done with the step's columns
    if (ds_is_split_)
      queries.share_split(shared, ds_unit_, ds);
    else
      queries.share(shared, ds);
    __syncthreads();
    queries.add(shared, 0, to);
  }

  // ---- S and dP ----

  template <int kDim>
  __device__ __forceinline__ SharedRows<kPlanes * kDim> shared_rows(int offset) const {
    const LaneVector own = lane_vector_of_rows(lane());
    return {{address_ + static_cast<uint32_t>(offset), row_warp() * C.rows + own.line, own.half}};
  }
  template <int kDim>
  __device__ __forceinline__ LaneVectors<line_length(kPlanes* kDim)> column_vectors(
      int offset) const {
    const LaneVector own = lane_vector_of_columns(lane());
    return {address_ + static_cast<uint32_t>(offset), own_column() + own.line, own.half};
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
      add_plane_products<true, kFirstDepth>(shared_rows<kFirstDepth>(0),
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
      add_plane_products<false, kSecondDepth>(
          shared_rows<kSecondDepth>(kSecondRows),
          column_vectors<kSecondDepth>(columns + kSecondColumns), products);
    else if constexpr (C.rows_in_registers > 1)
      multiply_by(second_own_);
    else
      multiply_by(shared_rows<kSecondDepth>(kSecondRows));
  }
  // chain(): scores to weights, and products to dS.
  template <class Chain>
  __device__ __forceinline__ void run_chain(Scores&, const Chain& chain) const {
    chain();
  }
  // Sums over chunks of the depth. kOfScores: which have the bits of forward's.
  template <bool kOfScores, int kDepth, class Rows, class Columns>
  __device__ __forceinline__ void add_plane_products(const Rows& rows, const Columns& columns,
                                                     Scores& sums) const {
    Scores chunk;
    if constexpr (kOfScores)
      multiply_planes<kDepth, !C.of_keys()>(rows, columns, chunk);
    else
      multiply_planes_once<kDepth>(rows, columns, chunk);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int x = 0; x < C.columns / 2; ++x)
        sums[i][x] = C.streams() ? sums[i][x] + chunk[i][x] : chunk[i][x];
  }

  // ---- Gradients ----

  // The columns' tensors are at those offsets.
  __device__ __forceinline__ void add_gradients(int step, int stage, int first, int second,
                                                Scores& scores, Scores& products) {
    if constexpr (kPlanes == 2) {
      const uint32_t numbers = column_numbers(stage);
      if constexpr (C.of_keys())
        add_plane_gradient<true, kSecondPart, kSecondDepth>(
            numbers, depth_vectors<plane_line(C.value_dim)>(second), scores, second_);
      const auto columns = depth_vectors<plane_line(C.key_dim)>(first);
      if constexpr (C.adds_queries) {
        if (equal_columns_ && equal_rows_) {
          const float largest = largest_of_warp(products);
          if (largest < largest_of_common(numbers)) {
            add_plane_gradient_once(numbers, columns, largest, products);
            return;
          }
        }
        ds_is_split_ = false;
      }
      add_plane_gradient<false, kFirstPart, kFirstDepth>(numbers, columns, products, first_);
      return;
    } else {
      round_gradients(step, first, second, scores, products);
    }
  }
  // Numbers of a line of columns that gradients are summed over.
  static constexpr int plane_line(int dim) { return C.streams() ? C.part_length(dim) : dim; }
  template <bool kOfSecond, int kPart, int kChunk, class Columns, int kCount>
  __device__ __forceinline__ void add_plane_gradient(uint32_t numbers, const Columns& columns,
                                                     Scores& values,
                                                     float (&sums)[kTiles][kCount]) const {
    uint32_t weights[2][kTiles][C.columns / 4];
    float factor[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      split_gradient<kOfSecond>(numbers, equal_columns_, lane(), values[i], weights[0][i],
                                weights[1][i], factor[i]);
    multiply_plane_weights<true, kPart / 2, kChunk>(weights, columns, [&](int i, int x, float sum) {
      sums[i][x] = fmaf(sum, factor[i][x / 2 % 2], sums[i][x]);
    });
  }
  // What dS is below where all columns have the numbers at `numbers`, and all rows equal ones,
  // unless delta is larger than dP: of values of other blocks, or of grad_lse. Then one power of
  // two for all would take the bits of rows that have no such delta.
  __device__ __forceinline__ float largest_of_common(uint32_t numbers) const {
    const float of_column = ptx::load_shared_v2(numbers).y;
    const float of_row =
        ptx::load_shared_v2(address_ + static_cast<uint32_t>(C.numbers_offset())).y;
    return C.value_dim * power_of_minus(-fminf(of_column + of_row + 2, 90));
  }
  // dK from dS that is split for dQ as well, with one power of two, where neither queries nor keys
  // have numbers of their own. `ds` is then its planes.
  template <class Columns>
  __device__ __forceinline__ void add_plane_gradient_once(uint32_t numbers, const Columns& columns,
                                                          float largest, Scores& ds) {
    constexpr int kPairs = C.columns / 4;
    uint32_t weights[2][kTiles][kPairs];
    const uint32_t exponent = max(float_bits(largest) >> 23, 27u);
    const float scale = float_from_bits((127 + 14 + 127 - exponent) << 23);
    const float unit = float_from_bits((exponent - 14) << 23);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      split_numbers(ds[i], {scale, scale}, weights[0][i], weights[1][i]);
    const float factor = unit * ptx::load_shared_v2(numbers).x;
    multiply_plane_weights<true, kFirstPart / 2, kFirstDepth>(
        weights, columns,
        [&](int i, int x, float sum) { first_[i][x] = fmaf(sum, factor, first_[i][x]); });
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int x = 0; x < 2 * kPairs; ++x)
        ds[i][x] = float_from_bits(weights[x / kPairs][i][x % kPairs]);
    ds_unit_ = unit;
    ds_is_split_ = true;
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
    if constexpr (C.adds_queries) share_ds(step, weights);
    multiply_weights<C.dtype>(weights, depth_vectors<kFirstPart>(first), first_);
  }
  // Products, chain and gradients of a step that needs no mask, without branches: the assembler
  // mixes exponentials with the products of dP, and dS with those of dV. `statistics`: lse and
  // delta of the thread's first column.
  template <class Chain, class BiasOf>
  __device__ __forceinline__ void overlapped_step(int step, int columns, const Chain& chain,
                                                  const float* statistics, const BiasOf& bias_of,
                                                  Scores& scores, Scores& products) {
    constexpr int kEights = C.columns / 8;
    float2 lse[kEights], delta[kEights];
    const auto load = [&](float2(&to)[kEights], const float* from) {
#pragma unroll
      for (int j = 0; j < kEights; ++j) to[j] = *reinterpret_cast<const float2*>(from + 8 * j);
    };
    multiply_first(columns, scores);
    load(lse, statistics);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) chain.compute_weights(lse, bias_of(i), scores[i]);
    multiply_second(columns, products);
    load(delta, statistics + C.columns);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) chain.differentiate(delta, scores[i], products[i]);
    round_gradients(step, columns, columns + kSecondColumns, scores, products);
  }
  // Of a step of which the warp's rows see nothing.
  __device__ __forceinline__ void skip_gradients(int step) const {
    if constexpr (C.adds_queries) share_ds(step, {});
  }
  // Whether the warp adds dQ of the step before. In turn: of two warps of a scheduler, of eight in
  // the block, one in each step.
  static __device__ __forceinline__ bool has_turn(int step) {
    return !C.adds_in_turn() || (step & 1) == warp() / (C.warps / 2);
  }
  // use(row of the warp, NaN where the thread's part of the row is not finite)
  template <class Use>
  __device__ __forceinline__ void for_each_row(const Use& use) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float nonfinite = 0;
#pragma unroll
        for (int j = 0; j < kFirstOwn / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) nonfinite = fmaf(first_[i][4 * j + 2 * r + e], 0, nonfinite);
        if constexpr (C.of_keys()) {
#pragma unroll
          for (int j = 0; j < kSecondOwn / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              nonfinite = fmaf(second_[i][4 * j + 2 * r + e], 0, nonfinite);
        }
        use(16 * i + 8 * r, nonfinite);
      }
  }
  __device__ __forceinline__ void store_gradients(uint32_t left_out) const {
    // Of planes: those of queries have the scale, to units of log2, and with those of grad_out what
    // scores and dP lose.
    const auto loss = [](int depth) {
      return kPlanes == 2 ? loss_of_sums(C.columns) - loss_of_sums(depth) : 0;
    };
    if constexpr (C.of_keys()) {
      this->template store<C.accumulate_value, kSecondOwn>(
          second_, dropout_factor<C.dropout>(a_), a_.grad_value_rows, a_.value_dim,
          kSecondOwn * sharer(), left_out, loss(kSecondDepth));
      this->template store<C.accumulate_key, kFirstOwn>(
          first_, kPlanes == 2 ? kLn2 : a_.scale, a_.grad_key_rows, a_.head_dim,
          kFirstOwn * sharer(), left_out, loss(kFirstDepth));
    } else {
      this->template store<C.accumulate_query, kFirstPart>(first_, a_.scale, a_.grad_query_rows,
                                                           a_.head_dim, 0, left_out, loss(1));
    }
  }

 protected:
  // Gradients of the part's columns.
  float first_[kTiles][kFirstOwn / 2];                      // dK or dQ
  float second_[kTiles][C.of_keys() ? kSecondOwn / 2 : 1];  // dV

 private:
  template <int kTileCount, int kCount>
  static __device__ __forceinline__ void clear(float (&sums)[kTileCount][kCount]) {
#pragma unroll
    for (int i = 0; i < kTileCount; ++i)
#pragma unroll
      for (float& each : sums[i]) each = 0;
  }

  float ds_unit_ = 1;
  bool equal_rows_ = false, ds_is_split_ = false;
  RegisterRows<(C.rows_in_registers > 0 ? kFirstDepth : 16), kTiles> first_own_;
  RegisterRows<(C.rows_in_registers > 1 ? kSecondDepth : 16), kTiles> second_own_;
};

}  // namespace perseid::internal::cuda
