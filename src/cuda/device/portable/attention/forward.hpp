// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for f16, bf16 and f32 by the tensor cores' warp products, sm_80 and up: out =
// softmax(scale * query key^T, masked) value, and the logarithm of each row's sum.
//
// float32 is multiplied as planes of f16, which portable_attention_planes writes before
// (planes.hpp, forward_planes.hpp). In shared memory a row has both planes side by side.
//
// Warps. A block has a Q tile of one head, each of its four warps 16 or 32 rows of it. A
// warp's scores S, weights P and results O are in registers. S has the layout of a left operand, so
// that P needs no exchange.
//
//   Q rows x key_dim (shared)   times  K keys x key_dim (shared), transposed  =  S rows x keys
//   P rows x keys (registers)   times  V keys x value_dim (shared)           +=  O rows x value_dim
//
// Pipeline. The block visits its KV tiles n from the last to the first, with two stages of each:
//
//   1 wait for the copies of K(n) and V(n)      2 barrier      3 copy K(n-1) and V(n-1)
//   4 S = Q K(n)^T, softmax, O += P V(n)        (3 follows S if C.copies_late())
//
// One barrier a step does two things: it shows every thread the copies that others have waited for,
// and it says that all warps are done with the stage that 3 fills. Warps skip 4 for tiles of keys
// of which their own rows see nothing. Two blocks of a multiprocessor hide each other's latencies.
//
// Few queries and many keys: a block has a split of the keys, and another kernel combines the
// splits (attention/combine.hpp).
//
// Raster order. The longest Q tiles come first, heads in sections that fit into the L2 cache
// (raster_order.hpp). Ragged batches: padded positions of blocks (attention/sequence.hpp).
//
// Hidden values that are not finite. A weight of 0 times NaN is NaN. If results tell of a value
// that is not finite, the block computes its tile once more by the same instructions, and each
// thread clears the non-finite elements of the values that it has copied, before the barrier. Rows
// that see such an element get a fixup (attention/row_fixup.hpp). Of float32, keys and values that
// the planes do not hold make the row sums NaN; those rows get a fixup.
//
// Limits: rows and columns count in 32 bits. Numerics of 16 bits: as on sm_90
// (attention/softmax.hpp); weights are rounded to 16 bits before their product with values, but not
// in their sum; everything else is float32. A row's bits do not depend on its batch.
#pragma once

#include "cuda/device/attention/combine.hpp"
#include "cuda/device/attention/forward_scores.hpp"
#include "cuda/device/attention/row_fixup.hpp"
#include "cuda/device/portable/attention/config.hpp"
#include "cuda/device/portable/attention/forward_bias.hpp"
#include "cuda/device/portable/attention/forward_block.hpp"
#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/portable/attention/rows_copy.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/raster_order.hpp"

namespace perseid::internal::cuda {

template <PortableForwardConfig C>
class PortableForward : PortableForwardBlock<C> {
 public:
  __device__ __forceinline__ PortableForward(const PortableForwardArguments& arguments,
                                             unsigned char* memory)
      : Block(arguments, memory) {}

  __device__ __forceinline__ void run() {
    QueryTile tile{};
    if (!locate(tile)) return;
#pragma unroll 1
    for (bool clears = false;; clears = true) {
      mainloop(tile, clears);
      const bool nonfinite = kClears && sees_nonfinite_values(out_[0]);
      if constexpr (C.split)
        store_split();
      else if constexpr (kPlanes == 2)
        fix_up(store_float32());
      else
        epilogue();
      if (!kClears || clears || __syncthreads_or(nonfinite) == 0) {
        if (clears) fix_up();
        return;
      }
    }
  }

 private:
  using Block = PortableForwardBlock<C>;
  using Block::a_, Block::memory_, Block::address_, Block::own_, Block::first_column_,
      Block::split_, Block::out_, Block::rows_;
  using Block::kTiles, Block::kPlanes, Block::kColumns;
  using Block::lane, Block::warp, Block::locate, Block::pack, Block::query_of, Block::head_of,
      Block::row_count, Block::entry, Block::rules, Block::store_split, Block::store_float32,
      Block::epilogue, Block::fix_up;
  static constexpr int kKey = C.query_bytes(), kValue = kKey + 2 * C.key_bytes();
  static constexpr int kNumbers = kValue + 2 * C.value_bytes();
  static constexpr int kDepth = line_length(kPlanes * C.depth());
  // Planes have no non-finite elements.
  static constexpr bool kClears = C.masked() && kPlanes == 1;
  using QueryCopy = TileCopy<C.operand(), C.block_rows(), kPlanes * C.depth(), C.threads>;
  using KeyCopy = TileCopy<C.operand(), C.keys, kPlanes * C.depth(), C.threads,
                           kPlanes == 2 ? 2 * C.key_length() : 0>;
  using ValueCopy = TileCopy<C.operand(), C.keys, kPlanes * C.columns(), C.threads,
                             kPlanes == 2 ? 2 * C.value_length() : 0>;
  using Scores = float[kTiles][C.keys / 2];

  // ---- Mainloop ----

  __device__ __forceinline__ void mainloop(const QueryTile& tile, bool clears) {
    constexpr bool kOfPlanes = kPlanes == 2;
    const QueryCopy query(kOfPlanes ? a_.query_planes : a_.query_rows, entry(), tile.head << pack(),
                          tile.q_begin, kOfPlanes ? 2 * C.key_length() : a_.head_dim, C.vectors);
    const int32_t kv_entry = key_entry_of<C.lengths>(a_, own_.batch);
    const KeyCopy key(kOfPlanes ? a_.key_planes : a_.key_rows, kv_entry, tile.kv_head,
                      tile.kv_begin, kOfPlanes ? 2 * C.key_length() : a_.head_dim, C.vectors);
    const ValueCopy value(kOfPlanes ? a_.value_planes : a_.value_rows, kv_entry, tile.kv_head,
                          tile.kv_begin, kOfPlanes ? 2 * C.value_length() : a_.value_dim,
                          C.vectors);
    const auto copy_key = [&](int n, int stage, int column = 0, bool whole = false) {
      key.copy(memory_, address_, kKey + stage * C.key_bytes(), n * C.keys, tile.kv_len,
               kPlanes * column, whole);
    };
    const ForwardBias<C> bias(a_, tile);
    const RowNumbers* const numbers = numbers_of_keys(tile, kv_entry);
    const auto copy_value = [&](int n, bool whole = false) {
      value.copy(memory_, address_, value_offset(n), n * C.keys, tile.kv_len,
                 kPlanes * first_column_, whole);
      bias.copy(memory_, address_, tile, n);
      if constexpr (kOfPlanes) copy_numbers(numbers, tile, n);
    };
    const auto copy_query = [&](int column = 0) {
      if constexpr (C.packs)
        query.copy_packed(memory_, address_, 0, tile.q_len, kPlanes * column, pack());
      else
        query.copy(memory_, address_, 0, tile.query, tile.q_len, kPlanes * column);
    };

    clear();
    if (C.split && tile.first > tile.last) return;
    if constexpr (!C.streams()) {
      copy_query();
      copy_key(tile.last, tile.last % 2);
      ptx::cp_async_commit();
    }
    copy_value(tile.last);
    ptx::cp_async_commit();
    if constexpr (C.query_in_registers) {
      ptx::cp_async_wait<1>();
      __syncthreads();
      query_.fill(query_vectors());
    }
#pragma unroll 1
    for (int n = tile.last; n >= tile.first; --n) {
      const bool visits = n >= own_.first && n <= own_.last;
      ptx::cp_async_wait<0>();
      if (kClears && clears) value.clear_nonfinite(memory_ + value_offset(n));
      __syncthreads();
      const auto copy_next = [&] {
        if (n > tile.first) {
          if constexpr (!C.streams()) copy_key(n - 1, (n - 1) % 2, 0, true);
          copy_value(n - 1, true);
        }
        ptx::cp_async_commit();
      };
      if (!C.copies_late() || !visits) copy_next();
      const bool needs_mask = rules(0).needs_mask(own_, n);
      if constexpr (C.streams()) {
        Scores scores = {};
        if (visits) bias_of_rows(n).begin(a_, scores);
#pragma unroll 1
        for (int column = 0; column < C.key_dim; column += C.depth()) {
          if (column > 0) __syncthreads();  // all warps are done with the chunk before
          copy_query(column);
          copy_key(n, 0, column);
          ptx::cp_async_commit();
          ptx::cp_async_wait<0>();
          __syncthreads();
          if (visits) multiply_keys(0, scores);
        }
        if (visits)
          softmax_and_values(n, needs_mask, __all_sync(0xffffffffu, has_common(n)), scores);
      } else if (visits) {
        Scores scores = {};
        bias_of_rows(n).begin(a_, scores);
        const bool common = has_common(n);  // read before the products, which hide the latency
        multiply_keys(n % 2, scores);
        const bool all_common = kPlanes == 2 && __all_sync(0xffffffffu, common);
        if constexpr (C.copies_late()) copy_next();
        softmax_and_values(n, needs_mask, all_common, scores);
      }
    }
  }
  static __device__ __forceinline__ int value_offset(int n) {
    return kValue + n % 2 * C.value_bytes();
  }
  __device__ __forceinline__ uint32_t numbers_at(int n) const {
    return address_ + static_cast<uint32_t>(kNumbers + n % 2 * C.number_bytes());
  }
  // Whether the lane's keys of a tile have common exponents, and scores are not scaled first.
  __device__ __forceinline__ bool has_common(int n) const {
    if constexpr (kPlanes == 1 || kScalesFirst) return false;
    return cuda::has_common<C.keys>(numbers_at(n), lane());
  }
  // A thread copies the numbers of one key, from those of its first one on.
  __device__ __forceinline__ const RowNumbers* numbers_of_keys(const QueryTile& tile,
                                                               int32_t kv_entry) const {
    if constexpr (kPlanes == 1) return nullptr;
    const int64_t head = int64_t{kv_entry} * (a_.heads / a_.group) + tile.kv_head;
    const int64_t rows = C.lengths && a_.ragged ? a_.total_kv : a_.kv_len;
    return a_.key_numbers + head * rows + tile.kv_begin + ptx::thread_number();
  }
  __device__ __forceinline__ void copy_numbers(const RowNumbers* numbers, const QueryTile& tile,
                                               int n) const {
    static_assert(C.keys <= C.threads);
    const int own = ptx::thread_number(), key = n * C.keys + own;
    if (own >= C.keys) return;
    ptx::cp_async_8_or_zero(numbers_at(n) + static_cast<uint32_t>(8 * own), numbers + n * C.keys,
                            key < tile.kv_len);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (float& each : out_[i]) each = 0;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows_[i].maximum[r] = minus_infinity();
        rows_[i].sum[r] = 0;
        if constexpr (kPlanes == 2)
          rows_[i].factor[r] = query_factor(16 * i + 8 * r + lane() / 4);
        else
          rows_[i].limit[r] = minus_infinity();
      }
    }
  }
  __device__ __forceinline__ float query_factor(int row) const {
    if (row >= row_count()) return 1;
    const int64_t head = int64_t{entry()} * (a_.heads << pack()) + head_of(row);
    const int64_t rows = C.lengths && a_.ragged ? a_.total_q : a_.q_len;
    return a_.query_numbers[head * rows + own_.q_begin + query_of(row)].factor;
  }

  // ---- Products ----

  __device__ __forceinline__ SharedRows<kPlanes * C.depth()> query_vectors() const {
    const LaneVector own = lane_vector_of_rows(lane());
    return {{address_, warp() * C.rows + own.line, own.half}};
  }
  // S += Q K^T.
  __device__ __forceinline__ void multiply_keys(int stage, Scores& scores) const {
    const LaneVector own = lane_vector_of_columns(lane());
    const LaneVectors<kDepth> key(address_ + static_cast<uint32_t>(kKey + stage * C.key_bytes()),
                                  own.line, own.half);
    if constexpr (kPlanes == 2) {
      Scores products;
      multiply_planes<C.depth()>(query_vectors(), key, products);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int x = 0; x < C.keys / 2; ++x)
          scores[i][x] = C.streams() ? scores[i][x] + products[i][x] : products[i][x];
    } else if constexpr (C.query_in_registers) {
      multiply_rows<C.dtype, C.depth()>(query_, key, scores);
    } else {
      multiply_rows<C.dtype, C.depth()>(query_vectors(), key, scores);
    }
  }
  // The lane's vectors of a value tile.
  __device__ __forceinline__ LaneVectors<kColumns> value_vectors(int n) const {
    const LaneVector own = lane_vector_of_rows(lane());
    return {address_ + static_cast<uint32_t>(value_offset(n)), own.line, own.half};
  }

  // ---- Softmax ----

  __device__ __forceinline__ BiasOfRows<C> bias_of_rows(int n) const {
    return {memory_, address_, warp() * C.rows, n, lane()};
  }
  // The tiles of 16 rows go through each part together, so that one hides the latencies of the
  // other.
  __device__ __forceinline__ void softmax_and_values(int n, bool needs_mask, bool common,
                                                     Scores& scores) {
    typename ForwardScores<C>::ScoreOperands operands[kTiles];
    if constexpr (kPlanes == 2)
      if (!common) scale_products(n, scores);
    const auto finish_scores = [&](bool masks) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        operands[i] = rules(i).load(own_, n, masks);
        if constexpr (C.copies_bias() && !C.begins_with_bias())
          bias_of_rows(n).load(i, operands[i].bias);
        rules(i).before_softmax(operands[i], scores[i]);
      }
    };
    if (needs_mask)
      finish_scores(true);
    else
      finish_scores(false);
    if constexpr (kPlanes == 2) {
      if constexpr (C.overlaps_exponentials()) {
        if (common)
          plane_softmax_and_pv(n, scores);
        else
          split_and_add(n, false, operands, scores);
      } else {
        split_and_add(n, common, operands, scores);
      }
    } else if constexpr (C.dropout || C.columns() < 64) {
      round_and_add(n, operands, scores);
    } else {
      online_softmax_and_pv(n, scores);
    }
  }
  template <class Operands>
  __device__ __forceinline__ void round_and_add(int n, Operands (&operands)[kTiles],
                                                Scores& scores) {
    uint32_t weights[kTiles][C.keys / 4];
    float factor[kTiles][2];
    bool follows = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      online_softmax<false, C.dropout>(scores[i], rules(i).scale_log2(), rows_[i], factor[i]);
      rules(i).draw_early(own_, n, operands[i]);
      round_weights<C.dtype>(scores[i], weights[i]);
      rules(i).drop(own_, n, operands[i], weights[i]);
      follows = follows || factor[i][0] != 1 || factor[i][1] != 1;
    }
    if (__any_sync(0xffffffffu, follows))
#pragma unroll
      for (int i = 0; i < kTiles; ++i) rescale(out_[i], factor[i], rules(i).scale_log2(), rows_[i]);
    multiply_weights<C.dtype>(weights, value_vectors(n), out_);
  }
  // The same where products take as long as exponentials. Results are rescaled first, so that
  // exponentials of 16 keys and products of the 16 before are one piece of code, and overlap.
  __device__ __forceinline__ void online_softmax_and_pv(int n, Scores& scores) {
    const float scale = rules(0).scale_log2();
    float largest[kTiles][2], shift[kTiles][2];
    bool above[kTiles] = {}, any_above = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      largest_scores(scores[i], largest[i]);
#pragma unroll
      for (int r = 0; r < 2; ++r) above[i] = above[i] || largest[i][r] > rows_[i].limit[r];
      any_above = any_above || above[i];
    }
    const bool any = __any_sync(0xffffffffu, any_above);
    if (any) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        if (kTiles == 1 || __any_sync(0xffffffffu, above[i])) follow(i, largest[i], scale);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) shift[i][r] = power_shift<false>(rows_[i].maximum[r], scale);
    float sums[kTiles][4];
    const LaneVectors<kColumns> value = value_vectors(n);
#pragma unroll
    for (int k = 0; k < C.keys / 16; ++k) {
      uint32_t weights[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int x = 0; x < 8; ++x) {
          const float w =
              weight_of_part<false>(fmaf(scores[i][8 * k + x], scale, shift[i][x / 2 % 2]));
          scores[i][8 * k + x] = w;
          sums[i][x % 4] = k == 0 && x < 4 ? w : sums[i][x % 4] + w;
        }
#pragma unroll
        for (int x = 0; x < 4; ++x)
          weights[i][x] =
              round_pair<C.dtype>(scores[i][8 * k + 2 * x], scores[i][8 * k + 2 * x + 1]);
      }
      multiply_16_weights<C.dtype>(
          k, [&](int i) -> const uint32_t(&)[4] { return weights[i]; }, value, out_);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) rows_[i].sum[r] += sums[i][2 * r] + sums[i][2 * r + 1];
    if (any)
#pragma unroll
      for (int i = 0; i < kTiles; ++i) set_new_limits(i, scale);
  }
  // m follows in the rows of 16 whose largest scores exceed their limits. The limits become NaN
  // until the step has summed its weights.
  __device__ __forceinline__ void follow(int i, const float (&largest)[2], float scale) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = quad_max(largest[r]), before = rows_[i].maximum[r];
      if (now > rows_[i].limit[r]) {
        rows_[i].maximum[r] = now;
        rows_[i].limit[r] = float_from_bits(0x7fffffffu);
      }
      factor[r] = follow_factor<false>(before, rows_[i].maximum[r], scale);
      rows_[i].sum[r] *= factor[r];
    }
#pragma unroll
    for (int x = 0; x < C.columns() / 2; ++x) out_[i][x] *= factor[x / 2 % 2];
  }
  __device__ __forceinline__ void set_new_limits(int i, float scale) {
    const auto is_new = [&](int r) { return rows_[i].limit[r] != rows_[i].limit[r]; };
    if (!__any_sync(0xffffffffu, is_new(0) || is_new(1))) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float limit = limit_of(rows_[i], r, scale);
      if (is_new(r)) rows_[i].limit[r] = limit;
    }
  }
  // Of planes.
  template <class Operands>
  __device__ __forceinline__ void split_and_add(int n, bool common, Operands (&operands)[kTiles],
                                                Scores& scores) {
    float factor[kTiles][2];
    uint32_t weights[2][kTiles][C.keys / 4];
    if (common) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float scale[2] = {common_scale(i, 0), common_scale(i, 1)};
        plane_softmax<true, true>(numbers_at(n), lane(), scale, scores[i], rows_[i], factor[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float scale[2] = {exponent_scale(i, 0), exponent_scale(i, 1)};
        plane_softmax(numbers_at(n), lane(), scale, scores[i], rows_[i], factor[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      rules(i).draw_early(own_, n, operands[i]);
      split_weights(scores[i], weights[0][i], weights[1][i]);
      rules(i).drop(own_, n, operands[i], weights[0][i]);
      rules(i).drop(own_, n, operands[i], weights[1][i]);
    }
    multiply_plane_weights<C.overlaps_exponentials(), C.columns() / 2, C.columns()>(
        weights, value_vectors(n),
        [&](int i, int x, float sum) { out_[i][x] = fmaf(out_[i][x], factor[i][x / 2 % 2], sum); });
  }
  // The same, by the parts of plane_softmax and with its bits, of keys with common exponents:
  // results are rescaled first, and only where m follows, so that exponentials and the halves of 16
  // keys overlap with small products of the 16 before.
  __device__ __forceinline__ void plane_softmax_and_pv(int n, Scores& scores) {
    const uint32_t numbers = numbers_at(n);
    float scale[kTiles][2], largest[kTiles][2], shift[kTiles][2], sums[kTiles][2][2] = {};
    bool above[kTiles] = {}, any_above = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        scale[i][r] = common_scale(i, r);
        shift[i][r] = -top_of(rows_[i].maximum[r]);
      }
      largest_powers<true, true>(numbers, lane(), scale[i], scores[i], largest[i]);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        above[i] = above[i] || power_of<true>(largest[i][r], scale[i][r]) > rows_[i].maximum[r];
      any_above = any_above || above[i];
    }
    if (__any_sync(0xffffffffu, any_above))
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        if (kTiles == 1 || __any_sync(0xffffffffu, above[i]))
          follow_powers(i, largest[i], scale[i], shift[i]);
    uint32_t weights[2][kTiles][C.keys / 4];
    const auto make = [&](int k) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 2 * k; j < 2 * k + 2; ++j)
          weigh_eight_keys<true, true>(numbers, lane(), j, scale[i], shift[i], scores[i], sums[i]);
        split_weights(reinterpret_cast<const float(&)[8]>(scores[i][8 * k]),
                      reinterpret_cast<uint32_t(&)[4]>(weights[0][i][4 * k]),
                      reinterpret_cast<uint32_t(&)[4]>(weights[1][i][4 * k]));
      }
    };
    multiply_plane_columns<true, C.columns() / 16, C.columns()>(
        0, weights, value_vectors(n), make, [&](int i, int x, float sum) { out_[i][x] += sum; });
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) rows_[i].sum[r] += sum_of_tile<true>(sums[i][r]);
  }
  __device__ __forceinline__ void follow_powers(int i, const float (&largest)[2],
                                                const float (&scale)[2], float (&shift)[2]) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = power_of<true>(quad_max(largest[r]), scale[r]);
      factor[r] = follow_power(most, rows_[i].maximum[r], shift[r]);
      rows_[i].sum[r] *= factor[r];
    }
#pragma unroll
    for (int x = 0; x < C.columns() / 2; ++x) out_[i][x] *= factor[x / 2 % 2];
  }
  // The exponential scales the scores of float32 by the factors of the queries, whose planes have
  // the scale, unless it comes before masks and bias.
  static constexpr bool kScalesFirst = ForwardScores<C>::kScales;
  __device__ __forceinline__ float exponent_scale(int i, int r) const {
    return kScalesFirst ? kLog2E : rows_[i].factor[r];
  }
  // The same where products lack the factor of keys with common exponents.
  __device__ __forceinline__ float common_scale(int i, int r) const {
    return exponent_scale(i, r) * power_of_two(kCommonKeyExponent - 14);
  }
  __device__ __forceinline__ void scale_products(int n, Scores& scores) const {
    unscale(numbers_at(n), lane(), scores);
    if constexpr (kScalesFirst)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int x = 0; x < C.keys / 2; ++x) scores[i][x] *= rows_[i].factor[x / 2 % 2];
  }

  RegisterRows<(C.query_in_registers ? C.depth() : 16), kTiles> query_;
};

template <PortableForwardConfig C>
__global__ void __launch_bounds__(C.threads, C.resident)
    portable_attention_forward(const __grid_constant__ PortableForwardArguments arguments) {
  extern __shared__ __align__(1024) unsigned char forward_memory[];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  PortableForward<C>(arguments, forward_memory).run();
}

// After a launch with splits.
template <PortableForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    portable_attention_combine(const __grid_constant__ PortableForwardArguments arguments) {
  combine_splits<C.dtype>(arguments, arguments.out_rows.stride[3]);
}
template <PortableForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    portable_attention_fixup(const __grid_constant__ PortableForwardArguments arguments) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if (*arguments.nonfinite == arguments.launch) fixup_rows<C, kRowWarps>(arguments);
}

}  // namespace perseid::internal::cuda
