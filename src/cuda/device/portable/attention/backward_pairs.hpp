// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products and gradients of attention backward in float64 by the tensor cores' warp products
// (float64_products.hpp), sm_80 and up. The registers of a warp do not hold both gradients of 16
// rows, so that two warps share them:
//
//              first warp                  second warp
//              S                           E = dP            E to the first
//              W, dS from S and E                            dS to the second
//   kKeys      dV += W dO                  dK += dS Q
//   kQueries   dQ += dS K, lower columns   the upper columns
//
// Where dQ is added to sums in memory, dS of all pairs meets in shared memory, as keys x queries,
// in two buffers: its product follows in the next step, after the barrier of the block.
//
// A lane gives its elements to the same lane of the other warp, by way of shared memory. Barriers
// of the pair order stores before loads; each lane overwrites what it has read itself.
#pragma once

#include "cuda/device/portable/attention/backward_block.hpp"
#include "cuda/device/portable/attention/float64_products.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/memory.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PortableBackwardPairs : protected PortableBackwardBlock<C> {
 protected:
  using Block = PortableBackwardBlock<C>;
  using Block::a_, Block::memory_, Block::kFirstDepth, Block::kSecondDepth, Block::kFirstPart,
      Block::kSecondPart, Block::kSecondRows, Block::kSecondColumns;
  using Block::Block;
  using Block::lane, Block::warp, Block::row_warp;
  using typename Block::Scores;
  static_assert(C.rows == 16);

  __device__ __forceinline__ void clear_gradients() {
#pragma unroll
    for (double& each : gradient_[0]) each = 0;
  }

  // ---- S and dP ----

  __device__ __forceinline__ void multiply_first(int columns, Scores& scores) const {
    if (!is_second()) multiply<kFirstDepth>(0, columns, scores);
  }
  __device__ __forceinline__ void multiply_second(int columns, Scores& products) const {
    if (is_second()) multiply<kSecondDepth>(kSecondRows, columns + kSecondColumns, products);
  }
  // chain(): scores to weights, and products to dS, which both warps have afterwards.
  template <class Chain>
  __device__ __forceinline__ void run_chain(Scores& products, const Chain& chain) const {
    if (is_second()) give(products);
    meet();
    if (!is_second()) {
      take(products);
      chain();
      give(products);
    }
    meet();
    if (is_second()) take(products);
  }

  // ---- Gradients ----

  // The columns' tensors are at those offsets.
  __device__ __forceinline__ void add_gradients(int step, int, int first, int second,
                                                const Scores& scores, const Scores& products) {
    if constexpr (C.adds_queries) share_ds(step, products);
    if constexpr (!C.of_keys())
      multiply_weights<kFirstPart, kHalf>(products[0], memory_ + first, lane(), gradient_[0],
                                          is_second() ? kHalf : 0);
    else if (is_second())
      multiply_weights<kFirstPart, kFirstPart / 8>(products[0], memory_ + first, lane(),
                                                   gradient_[0]);
    else
      multiply_weights<kSecondPart, kSecondPart / 8>(scores[0], memory_ + second, lane(),
                                                     gradient_[0]);
  }
  // dS of a step, for dQ.
  __device__ __forceinline__ void share_ds(int step, const Scores& ds) const {
    if (!is_second()) return;
#pragma unroll
    for (int j = 0; j < C.columns / 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<double2*>(
            ds_at(step, 16 * row_warp() + 8 * r + lane() / 4, 4 * j + lane() % 4)) = {
            ds[0][4 * j + 2 * r], ds[0][4 * j + 2 * r + 1]};
  }
  // After a barrier: to the sums of the step's queries. A warp has 16 of them, and a part of the
  // columns.
  __device__ __forceinline__ void add_queries(int step, double* to) const {
    constexpr int kQueryTiles = C.columns / 16, kParts = C.warps / kQueryTiles,
                  kAll = C.key_dim / 8;
    constexpr int kEights = (kAll + kParts - 1) / kParts;
    const int tile = warp() % kQueryTiles, first = warp() / kQueryTiles * kEights;
    if (first >= kAll) return;
    double sums[4 * kEights] = {};
    multiply_columns<C.key_dim, kEights, C.block_rows() / 16>(
        [&](int k, double(&a)[8]) {
          const int query = 16 * tile + lane() / 4;
#pragma unroll
          for (int t = 0; t < 4; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              a[2 * t + r] = *reinterpret_cast<const double*>(
                  ds_at(step, 16 * k + lane() % 4 * 2 + t % 2 + t / 2 * 8, query / 2 + 4 * r) +
                  query % 2 * 8);
        },
        memory_, lane(), sums, first);
    to += (tile * kAll + first) * 128 + lane();
#pragma unroll
    for (int x = 0; x < 4 * kEights; ++x)
      if (kAll % kEights == 0 || first + x / 4 < kAll) ptx::red_add(to + 32 * x, sums[x]);
  }
  // use(row of the pair, NaN where the thread's part of the row is not finite)
  template <class Use>
  __device__ __forceinline__ void for_each_row(const Use& use) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      double nonfinite = 0;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          nonfinite = DoubleArithmetic::fma(gradient_[0][4 * j + 2 * r + e], 0, nonfinite);
      use(8 * r, nonfinite);
    }
  }
  __device__ __forceinline__ void store_gradients(uint32_t left_out) const {
    if constexpr (!C.of_keys())
      store<C.accumulate_query, 8 * kHalf>(a_.scale, a_.grad_query_rows, a_.head_dim,
                                           is_second() ? 8 * kHalf : 0, left_out);
    else if (is_second())
      store<C.accumulate_key, kFirstPart>(a_.scale, a_.grad_key_rows, a_.head_dim, 0, left_out);
    else
      store<C.accumulate_value, kSecondPart>(dropout_factor<C.dropout, double>(a_),
                                             a_.grad_value_rows, a_.value_dim, 0, left_out);
  }

 private:
  static constexpr int kHalf = kFirstPart / 16;  // of the columns of dQ, in eights
  // The warp's gradient has so many columns.
  static constexpr int kColumns = C.of_keys() ? max(kFirstPart, kSecondPart) : 8 * kHalf;

  // Waits for both warps of the pair.
  static __device__ __forceinline__ void meet() { ptx::named_barrier_sync(1 + row_warp(), 64); }
  static __device__ __forceinline__ bool is_second() { return warp() >= C.row_warps(); }
  template <int kDepth>
  __device__ __forceinline__ void multiply(int rows, int columns, Scores& sums) const {
    constexpr int kLine = line_length(kFloat64Units * kDepth);
    const Float64Lines<kDepth> left(memory_ + rows + vector_offset<kLine>(16 * row_warp(), 0),
                                    lane());
    multiply_lines([&](int k, double(&a)[8]) { left.load_left(k, a); },
                   Float64Lines<kDepth>(memory_ + columns, lane()), sums[0]);
  }
  // A vector of two queries of a key, permuted in each eight.
  __device__ __forceinline__ unsigned char* ds_at(int step, int key, int vector) const {
    return memory_ + C.ds_offset() + step % 2 * C.ds_bytes() + key * 8 * C.columns +
           ((vector ^ (key & 7)) << 4);
  }
  __device__ __forceinline__ double2* exchange() const {
    return reinterpret_cast<double2*>(memory_ + C.exchange_offset()) + row_warp() * 8 * C.columns +
           lane();
  }
  __device__ __forceinline__ void give(const Scores& own) const {
#pragma unroll
    for (int x = 0; x < C.columns / 2; x += 2) exchange()[16 * x] = {own[0][x], own[0][x + 1]};
  }
  __device__ __forceinline__ void take(Scores& others) const {
#pragma unroll
    for (int x = 0; x < C.columns / 2; x += 2) {
      const double2 pair = exchange()[16 * x];
      others[0][x] = pair.x;
      others[0][x + 1] = pair.y;
    }
  }
  template <bool kAdds, int kPart>
  __device__ __forceinline__ void store(double factor, const RowsInMemory& rows, int32_t dim,
                                        int32_t first, uint32_t left_out) const {
    Block::template store<kAdds, kPart>(reinterpret_cast<const double(&)[1][kPart / 2]>(gradient_),
                                        factor, rows, dim, first, left_out);
  }

  double gradient_[1][kColumns / 2];
};

}  // namespace perseid::internal::cuda
