// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The rows of a block of attention backward, and the score chain on 16 of them: weights from scores
// (scale, bias, masks, lse, dropout), and dS from weights and dP.
//
// Rows are keys and columns queries, or the other way round. A thread has the elements of two rows
// in the layout of ptx/mma.hpp, for both.
#pragma once

#include "cuda/device/attention/backward_work.hpp"
#include "cuda/device/attention/score_rules.hpp"
#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/portable/attention/backward_config.hpp"
#include "cuda/device/raster_order.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
using SumsOf = typename SumOf<C.dtype>::Type;
template <PortableBackwardConfig C>
using BackwardArguments = PortableBackwardArgumentsOf<SumsOf<C>>;

template <class Real>
struct PairOf {
  using Type = float2;
};
template <>
struct PairOf<double> {
  using Type = double2;
};
// lse in units of log2, and delta, of two queries.
template <class Real>
struct QueryStatistics {
  Real lse[2], delta[2];
};

// What the products of two rows are multiplied by: scores, to units of log2, and dP.
template <class Real>
struct RowScales {
  Real score[2], product[2];
};

// The rows of a block from `row` on, and its steps: blocks [first, end) of C.columns columns.
struct BackwardRows : AttentionSequence {
  int32_t row;
  int32_t head, kv_head;  // head: of queries
  int32_t first, end;     // of kKeys: of each query head
};

// Those of a number in the raster order, by all threads. Returns whether there are any. C: a
// configuration of attention backward.
template <auto C, class Arguments>
__device__ __forceinline__ bool find_rows(const Arguments& a, int32_t number, BackwardRows& own) {
  const int32_t heads = C.of_keys() ? a.kv_heads : a.heads;
  int32_t head, batch;
  if (C.lengths && a.ragged) {
    const int32_t position = a.tiles - 1 - number / heads;
    head = number % heads;
    batch =
        sequence_of_block(C.of_keys() ? a.cumulative_kv : a.cumulative_q,
                          C.of_keys() ? a.total_kv : a.total_q, a.batch, C.block_rows(), position);
    if (batch < 0) return false;
    static_cast<AttentionSequence&>(own) = find_sequence<C.lengths>(a, batch);
    own.row = position -
              first_padded_block(C.of_keys() ? own.kv_begin : own.q_begin, batch, C.block_rows());
  } else {
    const TileCoordinate at = tile_in_sections(number, a.tiles, a.batch_heads, a.heads_per_section);
    head = at.head % heads;
    static_cast<AttentionSequence&>(own) = find_sequence<C.lengths>(a, at.head / heads);
    own.row = C.of_keys() ? at.tile : a.tiles - 1 - at.tile;
  }
  own.row *= C.block_rows();
  own.head = C.of_keys() ? head * a.group : head;
  own.kv_head = C.of_keys() ? head : head / a.group;
  const int32_t last_row = own.row + C.block_rows() - 1;
  int32_t begin = 0, end;  // columns that some row sees
  if constexpr (C.of_keys()) {
    end = own.row >= own.kv_len ? 0 : own.q_len;
    if (C.right) begin = max(own.row - own.right + 1, 0);
    if (C.left) end = min(end, last_row - own.left + 1);
  } else {
    end = own.kv_len;
    if (C.left) begin = max(own.row + own.left, 0);
    if (C.right) end = min(end, min(last_row, own.q_len - 1) + own.right);
  }
  own.first = begin / C.columns;
  own.end = begin < end ? (end - 1) / C.columns + 1 : own.first;
  return own.row < (C.of_keys() ? own.kv_rows : own.q_len);
}

// Where steps of a warp's rows begin: those whose columns some row sees, and those all of whose
// columns every row sees but for `visible`; both ends included.
struct alignas(16) SeenColumns {
  int32_t first_any, last_any, first_all, last_all;

  __device__ __forceinline__ bool any(int column) const {
    return column >= first_any && column <= last_any;
  }
  __device__ __forceinline__ bool all(int column) const {
    return column >= first_all && column <= last_all;
  }
};
template <PortableBackwardConfig C>
__device__ __forceinline__ SeenColumns seen_columns(const BackwardRows& rows, int row) {
  const int last = row + C.rows - 1;
  // A row sees columns [begin, end) relative to its own number, of `count` columns.
  const int count = C.of_keys() ? rows.q_len : rows.kv_len;
  const int own = C.of_keys() ? rows.kv_len : rows.q_len;
  const int begin = C.of_keys() ? 1 - rows.right : rows.left;
  const int end = C.of_keys() ? 1 - rows.left : rows.right;
  const bool from = C.of_keys() ? C.right : C.left, to = C.of_keys() ? C.left : C.right;
  SeenColumns seen{0, count - 1, 0, count - C.columns};
  if (from) {
    seen.first_any = row + begin - C.columns + 1;
    seen.first_all = last + begin;
  }
  if (to) {
    seen.last_any = min(seen.last_any, min(last, own - 1) + end - 1);
    seen.last_all = min(seen.last_all, row + end - C.columns);
  }
  if (row >= own) seen.last_any = -1;
  if (last >= own) seen.last_all = -1;
  return seen;
}

// A thread's bias of 16 rows, if C.copies_bias().
template <PortableBackwardConfig C>
struct ScoreBias {
  float2 pair[C.copies_bias() ? C.own_columns() / 4 : 1];
};

// The chain for the rows of a warp from `row` on and columns from `column` on, in a query head.
template <PortableBackwardConfig C>
class PortableBackwardScores {
  static constexpr int kCount = C.own_columns() / 2;  // elements of a thread
  static_assert(kCount <= 32);
  using Real = SumsOf<C>;
  using V = typename ArithmeticOf<Real>::Type;
  using M = Modifier<C.modifier, Real>;

 public:
  __device__ __forceinline__ PortableBackwardScores(const BackwardArguments<C>& arguments,
                                                    const BackwardRows& rows, int row, int column,
                                                    int head, int lane)
      : a_(arguments), rows_(rows), row_(row), column_(column), head_(head), lane_(lane) {}

  // The elements that dropout keeps, as bits (kept_bit).
  __device__ __forceinline__ void draw(uint32_t (&kept)[C.rows / 16]) const {
    if constexpr (!C.dropout) return;
    const Dropout dropout = dropout_of(a_);
    const uint32_t most = (0x8000 + dropout.threshold - 1) * 0x00010001;
#pragma unroll
    for (uint32_t& each : kept) each = 0;
    if constexpr (C.of_keys()) {
      // Of a call's 16 bytes, those of two queries and of pairs of keys, the thread needs its key's
      // of each pair. Another thread needs the others, and draws those of the next query.
      const int key = lane_ / 4, odd = key % 2;
      const uint32_t own = odd == 0 ? 0x6420 : 0x7531, other = odd == 0 ? 0x7531 : 0x6420;
#pragma unroll
      for (int m = 0; m < C.columns / 16; ++m) {
        const PhiloxBlock drawn =
            draw(dropout, column_ + 16 * m, 2 * (lane_ % 4) + odd, row_, key / 2);
#pragma unroll
        for (int i = 0; i < C.rows / 16; ++i) {
          const bool last = C.rows == 16 && row_ / 16 % 2 != 0;
          const uint32_t low = i == 0 && !last ? drawn.word[0] : drawn.word[1];
          const uint32_t high = i == 0 && !last ? drawn.word[2] : drawn.word[3];
          const uint32_t mine = ptx::choose_bytes(low, high, own);
          const uint32_t theirs =
              __shfl_xor_sync(0xffffffffu, ptx::choose_bytes(low, high, other), 4);
          keep(odd == 0 ? mine : theirs, most, kept[i]);
          keep(odd == 0 ? theirs : mine, most, kept[i]);
        }
      }
    } else {
      // A call's 16 bytes are those of 32 keys, of which a step may have the first or last 16.
#pragma unroll
      for (int i = 0; i < C.rows / 16; ++i)
#pragma unroll
        for (int t = 0; t < (C.columns + 16) / 32; ++t) {
          const PhiloxBlock drawn =
              draw(dropout, row_ + 16 * i, lane_ / 4, column_ + 32 * t, lane_ % 4);
          const bool last = C.columns == 16 && column_ / 16 % 2 != 0;
#pragma unroll
          for (int w = 0; w < 4; ++w)
            if (C.columns > 16 || w % 2 == 0)
              keep(last ? drawn.word[w | 1] : drawn.word[w], most, kept[i]);
        }
    }
  }
  // The same as compute() without masks and extras, in two parts: scores to weights, with lse of
  // every eight columns; and dP to dS, with delta.
  __device__ __forceinline__ void compute_weights(const float2 (&lse)[kCount / 4],
                                                  const ScoreBias<C>& bias,
                                                  Real (&scores)[kCount]) const {
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      Real addend = -(x % 2 == 0 ? lse[x / 4].x : lse[x / 4].y);
      if constexpr (C.copies_bias())
        addend += (x % 2 == 0 ? bias.pair[x / 2].x : bias.pair[x / 2].y) * kLog2E;
      scores[x] = weight_from(scores[x], scale_log2_of<Real>(a_), addend, M{});
    }
  }
  __device__ __forceinline__ void differentiate(const float2 (&delta)[kCount / 4],
                                                const Real (&weights)[kCount],
                                                Real (&products)[kCount]) const {
#pragma unroll
    for (int x = 0; x < kCount; ++x)
      products[x] = V::mul(weights[x], V::fma(products[x], Real{1},
                                              -(x % 2 == 0 ? delta[x / 4].x : delta[x / 4].y)));
  }
  // For 16 of the rows, from 16 * i on: scores to weights, those that dropout drops 0, and products
  // dP to dS, or of bias to its gradient; 0 where the query does not see the key, whatever the
  // products hold. statistics(j, r): of eight columns j, the thread's two in row r.
  template <bool kMasks, class Statistics>
  __device__ __forceinline__ void compute(int i, const Statistics& statistics,
                                          const ScoreBias<C>& bias, uint32_t kept,
                                          const RowScales<Real>& scales, Real (&scores)[kCount],
                                          Real (&products)[kCount]) const {
    uint32_t seen[2] = {~0u, ~0u};
    if constexpr (kMasks) {
#pragma unroll
      for (int r = 0; r < 2; ++r) seen[r] = seen_by(row_of(i, r));
    }
    const Real factor = dropout_factor<C.dropout, Real>(a_);
    const M modifier{a_.modifier};
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      const int r = x / 2 % 2;
      bool hidden = kMasks && (seen[r] >> (x / 4 * 2 + x % 2) & 1) == 0;
      const int row = row_of(i, r), column = column_ + 2 * (lane_ % 4) + x / 4 * 8 + x % 2;
      const int query = C.of_keys() ? column : row, key = C.of_keys() ? row : column;
      if constexpr (C.visible) hidden = hidden || !is_seen<C>(a_, rows_, head_, query, key);
      const QueryStatistics<Real> both = statistics(x / 4, r);
      const Real delta = both.delta[x % 2];
      Real addend = -both.lse[x % 2];
      if constexpr (C.copies_bias())
        addend += (x % 2 == 0 ? bias.pair[x / 2].x : bias.pair[x / 2].y) * kLog2E;
      else if constexpr (C.bias != DType::kNone)
        addend += hidden ? 0
                         : bias_log2<C.bias>(a_, rows_.batch, head_,
                                             score_row_of<C>(a_, rows_, query), key);
      const Real weight = hidden ? 0 : weight_from(scores[x], scales.score[r], addend, modifier);
      const bool keeps = !C.dropout || (kept >> kept_bit(x) & 1) != 0;
      // grad_score, where dP of a dropped weight is 0, without a selection between its
      // instructions.
      Real ds =
          V::mul(weight, keeps ? V::fma(products[x], scales.product[r] * factor, -delta) : -delta);
      if constexpr (!C.of_bias() && !M::kIdentity)
        ds = grad_product<V>(ds, score_log2<V>(scores[x], scales.score[r], modifier), modifier);
      scores[x] = keeps ? weight : 0;
      products[x] = hidden ? 0 : ds;
    }
  }

 private:
  // The weight of a product with a query's lse.
  static __device__ __forceinline__ Real weight_from(Real product, Real scale, Real addend,
                                                     const M& modifier) {
    if constexpr (!C.dropout || C.units() != 1) {
      return weight_of<C.dropout>(score_log2<V>(product, scale, addend, modifier));
    } else if constexpr (M::kIdentity) {
      constexpr float kPart = kPowerPart<true>;
      return weight_of_part<true>(score_log2<V>(product, scale * kPart, addend * kPart, modifier));
    } else {
      return weight_of_part<true>(score_log2<V>(product, scale, addend, modifier) *
                                  kPowerPart<true>);
    }
  }
  // Of query `own` of 16 from `query` on, and the one 8 further; pairs of keys of this number.
  __device__ __forceinline__ PhiloxBlock draw(const Dropout& dropout, int query, int own, int key,
                                              int pair) const {
    const int64_t batch_head = int64_t{rows_.batch} * a_.heads + head_;
    if constexpr (C.sharded)
      return draw_rows(dropout, batch_head,
                       static_cast<uint32_t>(whole_row<C>(a_, rows_, query + own)),
                       key / kDropoutTileColumns, static_cast<uint32_t>(pair));
    else
      return philox4x32(
          dropout_counter(dropout, batch_head, query / kDropoutTileRows, key / kDropoutTileColumns,
                          static_cast<uint32_t>(own * 4 + pair)),
          static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32));
  }
  __device__ __forceinline__ int row_of(int i, int r) const {
    return row_ + 16 * i + 8 * r + lane_ / 4;
  }
  // The thread's elements of a row whose query sees the key, as bits.
  __device__ __forceinline__ uint32_t seen_by(int row) const {
    int begin = 0, end = 0;
    if constexpr (C.of_keys()) {
      if (C.right) begin = row - rows_.right + 1;
      if (row < rows_.kv_len) end = C.left ? min(row - rows_.left + 1, rows_.q_len) : rows_.q_len;
    } else {
      if (C.left) begin = row + rows_.left;
      if (row < rows_.q_len) end = C.right ? min(row + rows_.right, rows_.kv_len) : rows_.kv_len;
    }
    const int first = column_ + 2 * (lane_ % 4);
    return elements_between<true, kCount / 2>(begin - first, end - first);
  }

  // Adds four elements to `kept` by their bytes: one below the threshold t is kept. Then 0x8000 +
  // t - 1 - byte has its highest bit set, and two bytes are tested at a time.
  static __device__ __forceinline__ void keep(uint32_t bytes, uint32_t most, uint32_t& kept) {
    constexpr uint32_t kBytes = 0x00ff00ff, kSigns = 0x80008000;
    kept = kept >> 1 | ((most - (bytes & kBytes)) & kSigns);
    kept = kept >> 1 | ((most - (bytes >> 8 & kBytes)) & kSigns);
  }
  // The bit of element x, after all words, of which each has moved those before by two.
  static constexpr int kept_bit(int x) {
    constexpr int kWords = kCount / 4;
    const int r = x / 2 % 2, e = x % 2, j = x / 4 % 2, m = x / 8;
    const int word = C.of_keys() ? 2 * m + e : C.columns == 16 ? r : x / 16 * 4 + 2 * r + x / 8 % 2;
    const int odd = C.of_keys() ? r : e;
    return 16 * j + 16 - 2 * (kWords - word) + odd;
  }

  const BackwardArguments<C>& a_;
  const BackwardRows& rows_;
  const int row_, column_, head_, lane_;
};

}  // namespace perseid::internal::cuda
