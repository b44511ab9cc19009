// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward, one tile: some queries of a head meet some keys.
//
//   S  = Q K^T                    dP = dO V^T                  depth: head_dim, value_dim
//   P  = exp2(scale S - lse)      dS = P (dP - delta)          delta = dO . O - dlse
//                                 (times M' of a score modifier, but not for the gradient of bias)
//   dV += P^T dO                  dK += dS^T Q                 depth: the queries
//   dQ += dS K                                                 depth: the keys
//
//            keys ->  | band 0 | band 1 | band 2 |
//   queries  group 0  |########|##      |        |
//      |     group 1  |########|########|##      |
//      v     ...      |########|########|########|
//
// S and dP are made by bands of 64 keys and groups of 24 queries, and turned into P and dS while
// they are in the L1 cache. A band is visited for the queries that see any of it, rounded out to
// whole strips of micro_gemm; what lies outside is never read.
//
// P and dS are kept as operands with their depth along the queries (for kDepth 2: pairs of
// queries); dS also with its depth along the keys, which for kDepth 1 is the same memory read by
// other strides.
//
// Where a query does not see a key P and dS are exactly 0, and so are the elements of Q, dO and K
// that are not finite as the last three products read them: they are added one by one for the pairs
// that do see each other (attention_common.hpp).
#pragma once

#include "cpu/simd/attention_backward_operands.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// Where the three sums of a tile go; null disables one.
template <class Scalar>
struct BackwardSums {
  Scalar* query;  // [rows of the head, head_columns], without the scale
  Scalar* key;    // [kKeys, head_columns], without the scale
  Scalar* value;  // [kKeys, value_columns], without dropout's rescaling
};

template <class Dot, class T>
class BackwardTile {
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Element = typename Dot::Element;
  using Shape = BackwardShape<Dot>;
  static constexpr int64_t kBand = Shape::kBand, kBands = Shape::kBands, kKeys = Shape::kKeys;
  static constexpr int64_t kQueries = Shape::kQueries, kGroup = Shape::kGroup, kDepth = Dot::kDepth;
  // Row strides of P and dS, and of dS with its depth along the keys.
  static constexpr int64_t kRow = Shape::odd_vectors(kKeys);
  static constexpr int64_t kDeepRow = Shape::odd_vectors(kKeys / kDepth);

 public:
  // Rows of the tile that meet a band.
  struct Rows {
    int64_t begin, end;
  };

  // `modifies`: dS becomes the gradient of the scaled products, by the derivative of the problem's
  // score modifier.
  BackwardTile(bool modifies, Arena& arena) {
    weight_ = arena.take<Element>(kQueries / kDepth * kRow);
    grad_ = arena.take<Element>(kQueries / kDepth * kRow);
    if constexpr (kDepth == 1) {
      grad_deep_ = grad_;
      score_ = weight_;
      grad_weight_ = grad_;
    } else {
      grad_deep_ = arena.take<Element>(kQueries * kDeepRow);
      score_ = arena.take<Scalar>(kGroup * kBand);
      grad_weight_ = arena.take<Scalar>(kGroup * kBand);
    }
    keep_ = arena.take<uint8_t>(kQueries * kKeys);
    if (modifies) modified_ = arena.take<Scalar>(kGroup * kBand);
  }

  // P and dS of the queries from `row` on, at most kQueries, against `keys`. False: no query sees
  // any key.
  bool score(const Shape& shape, const ScoreChain<V>& chain, const Dropout& dropout,
             const BackwardQueries<Dot, T>& queries, const BackwardKeys<Dot, T>& keys, int64_t row,
             bool grad_scores) {
    row_ = row;
    rows_ = min(kQueries, queries.rows - row);
    position_ = queries.begin + row;
    if (!sees(chain, position_, rows_, keys.begin, keys.begin + keys.count)) return false;
    for (int64_t band = 0; band < kBands; ++band) {
      band_[band] = rows_that_see(chain, keys, band);
      if (band_[band].begin == band_[band].end) continue;
      if (dropout.enabled()) {
        const int64_t begin = band_[band].begin / kDropoutTileRows * kDropoutTileRows;
        dropout_rows(chain.problem, chain.sequence.q_len, dropout,
                     chain.batch * chain.problem.heads + chain.head, position_ + begin,
                     band_[band].end - begin, keys.begin + band * kBand, kBand,
                     keep_ + begin * kKeys + band * kBand, kKeys);
      }
      for (int64_t i = band_[band].begin; i < band_[band].end; i += kGroup)
        score_group(shape, chain, dropout, queries, keys, band, i, min(kGroup, band_[band].end - i),
                    grad_scores);
    }
    return true;
  }

  // What score() made, into the sums.
  void accumulate(const Shape& shape, const BackwardQueries<Dot, T>& queries,
                  const BackwardKeys<Dot, T>& keys, const BackwardSums<Scalar>& sums) const {
    // Neighbouring bands that meet the same rows go together.
    for (int64_t band = 0, next; band < kBands; band = next) {
      const Rows rows = band_[band];
      for (next = band + 1;
           next < kBands && band_[next].begin == rows.begin && band_[next].end == rows.end;)
        ++next;
      const int64_t column = band * kBand;
      const int64_t count = min(next * kBand, keys.count) - column;
      if (rows.begin == rows.end || count <= 0) continue;
      const int64_t offset = rows.begin / kDepth * kRow + column;
      const int64_t step = (row_ + rows.begin) / kDepth;
      const int64_t steps = steps_of<Dot>(rows.end - rows.begin);
      if (sums.value != nullptr)
        add_product({weight_ + offset, 1, kRow},
                    {queries.grad_out_depth + step * shape.value_columns, shape.value_columns},
                    {sums.value + column * shape.value_columns, shape.value_columns}, count,
                    shape.value_dim, steps);
      if (sums.key != nullptr)
        add_product({grad_ + offset, 1, kRow},
                    {queries.query_depth + step * shape.head_columns, shape.head_columns},
                    {sums.key + column * shape.head_columns, shape.head_columns}, count,
                    shape.head_dim, steps);
    }
    if (sums.query != nullptr) accumulate_query(shape, keys, sums.query);
    if (queries.nonfinite || keys.nonfinite) add_nonfinite(shape, queries, keys, sums);
  }

  const Rows& rows_of(int64_t band) const { return band_[band]; }
  int64_t rows() const { return rows_; }
  // Row i of dS from key `column` on, where kDepth is 1.
  const Element* grad_score(int64_t i, int64_t column) const { return grad_ + i * kRow + column; }

 private:
  static bool sees(const ScoreChain<V>& chain, int64_t row, int64_t rows, int64_t key,
                   int64_t key_end) {
    const Sequence& sequence = chain.sequence;
    return visible_keys(chain.problem, row, sequence.q_len, sequence.kv_len).begin < key_end &&
           visible_keys(chain.problem, row + rows - 1, sequence.q_len, sequence.kv_len).end > key;
  }

  // Both ends of the visible range rise with the row, so the rows that see a band are neighbours:
  // halving finds the first whose range ends behind the band's begin, and the first whose range
  // begins behind the band's end.
  Rows rows_that_see(const ScoreChain<V>& chain, const BackwardKeys<Dot, T>& keys,
                     int64_t band) const {
    const int64_t key = keys.begin + band * kBand;
    const int64_t key_end = min(key + kBand, keys.begin + keys.count);
    if (key >= key_end) return {0, 0};
    const auto range = [&](int64_t i) {
      return visible_keys(chain.problem, position_ + i, chain.sequence.q_len,
                          chain.sequence.kv_len);
    };
    const auto first = [&](auto&& holds) {
      int64_t low = 0, high = rows_;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (holds(range(middle))) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      return low;
    };
    const int64_t begin = first([&](KeyRange r) { return r.end > key; });
    const int64_t end = first([&](KeyRange r) { return r.begin >= key_end; });
    if (begin >= end) return {0, 0};
    return {begin / Dot::kRows * Dot::kRows, min(round_up(end, Dot::kRows), rows_)};
  }

  void score_group(const Shape& shape, const ScoreChain<V>& chain, const Dropout& dropout,
                   const BackwardQueries<Dot, T>& queries, const BackwardKeys<Dot, T>& keys,
                   int64_t band, int64_t i, int64_t rows, bool grad_scores) {
    const int64_t column = band * kBand;
    const int64_t columns = min(kBand, round_up(keys.count - column, Shape::kPanel));
    const int64_t score_row = kDepth == 1 ? kRow : kBand;
    const int64_t offset = kDepth == 1 ? i * kRow + column : 0;
    Scalar* score = score_ + offset;
    Scalar* grad_weight = grad_weight_ + offset;
    for (int64_t panel = 0; panel < columns; panel += Shape::kPanel)
      panel_gemm<Dot>({queries.query + (row_ + i) * shape.head_row, shape.head_row, 1},
                      {keys.key + (column + panel) * shape.head_steps, Shape::kPanel},
                      {score + panel, score_row}, rows, Shape::kPanel, shape.head_steps, false);
    for (int64_t panel = 0; grad_scores && panel < columns; panel += Shape::kPanel)
      panel_gemm<Dot>({queries.grad_out + (row_ + i) * shape.value_row, shape.value_row, 1},
                      {keys.value + (column + panel) * shape.value_steps, Shape::kPanel},
                      {grad_weight + panel, score_row}, rows, Shape::kPanel, shape.value_steps,
                      false);
    // The partner of an odd last row.
    for (int64_t r = rows; r < round_up(rows, kDepth); ++r)
      for (int64_t j = 0; j < columns; ++j) {
        score[r * score_row + j] = grad_weight[r * score_row + j] = 0;
        if (modified_ != nullptr) modified_[r * kBand + j] = 0;
      }

    Scalar factor[kGroup + 1];
    for (int64_t r = 0; r <= rows; ++r) factor[r] = chain.scale;
    const int64_t key = keys.begin + column;
    const bool plain = chain.plain(position_ + i, rows, key, key + columns);
    for (int64_t r = 0; !plain && r < rows; ++r) {
      if (chain.plain(position_ + i + r, 1, key, key + columns)) continue;
      chain.apply(position_ + i + r, key, columns, score + r * score_row,
                  modified_ != nullptr ? modified_ + r * kBand : nullptr);
      factor[r] = 1;
    }
    const Group group{score,
                      grad_weight,
                      score_row,
                      modified_,
                      factor,
                      queries.lse + row_ + i,
                      queries.delta + row_ + i,
                      keep_ + i * kKeys + column,
                      static_cast<Scalar>(dropout.rescale()),
                      weight_ + i / kDepth * kRow + column,
                      grad_ + i / kDepth * kRow + column,
                      grad_deep_ + i * kDeepRow + column / kDepth,
                      rows,
                      columns};
    constexpr Modifier<ScoreModifierKind::kNone, Scalar> kIdentity{};
    if (modified_ != nullptr) {
      with_modifier<Scalar>(chain.problem.modifier, [&](auto modifier) {
        if constexpr (!decltype(modifier)::kIdentity) {
          if (dropout.enabled()) {
            grad_scores_of<true, true>(group, modifier);
          } else {
            grad_scores_of<true, false>(group, modifier);
          }
        }
      });
    } else if (dropout.enabled()) {
      grad_scores_of<true, true>(group, kIdentity);
    } else if (plain) {
      grad_scores_of<false, false>(group, kIdentity);
    } else {
      grad_scores_of<true, false>(group, kIdentity);
    }
  }

  struct Group {
    const Scalar* score;
    const Scalar* grad_weight;
    int64_t score_row;
    const Scalar* modified;  // rows of kBand; null without a modifier
    const Scalar *factor, *lse, *delta;
    const uint8_t* keep;
    Scalar rescale;
    Element *weight, *grad, *grad_deep;
    int64_t rows, columns;
  };
  struct RowConstants {
    typename V::Reg factor, lse, delta, rescale;
  };

  template <bool kMasked, bool kDropout, class M>
  static void grad_scores_of(const Group& group, M modifier) {
    using Reg = typename V::Reg;
    constexpr int64_t kLanes = V::kLanes;
    for (int64_t i = 0; i < group.rows; i += kDepth) {
      RowConstants row[kDepth];
      for (int64_t d = 0; d < kDepth; ++d)
        row[d] = {V::set1(group.factor[i + d]), V::set1(group.lse[i + d]),
                  V::set1(group.delta[i + d]), V::set1(group.rescale)};
      const Scalar* score = group.score + i * group.score_row;
      const Scalar* grad_weight = group.grad_weight + i * group.score_row;
      // Without dropout there is no mask to point into.
      const auto keep = [&group, i](int64_t at) {
        return kDropout ? group.keep + i * kKeys + at : nullptr;
      };
      const auto modified = [&group, i](int64_t at) {
        return M::kIdentity ? nullptr : group.modified + i * kBand + at;
      };
      Element* weight = group.weight + i / kDepth * kRow;
      Element* grad = group.grad + i / kDepth * kRow;
      if constexpr (kDepth == 1) {
        for (int64_t j = 0; j < group.columns; j += kLanes) {
          Reg p, ds;
          grad_score_of<kMasked, kDropout>(score + j, grad_weight + j, keep(j), modified(j), row[0],
                                           modifier, p, ds);
          V::store(weight + j, p);
          V::store(grad + j, ds);
        }
      } else {
        Element* deep = group.grad_deep + i * kDeepRow;
        const Scalar* score1 = score + group.score_row;
        const Scalar* grad_weight1 = grad_weight + group.score_row;
        for (int64_t j = 0; j < group.columns; j += 2 * kLanes) {
          Reg p[2][2], ds[2][2];
#pragma GCC unroll 2
          for (int64_t half = 0; half < 2; ++half) {
            const int64_t at = j + half * kLanes;
            grad_score_of<kMasked, kDropout>(score + at, grad_weight + at, keep(at), modified(at),
                                             row[0], modifier, p[0][half], ds[0][half]);
            grad_score_of<kMasked, kDropout>(score1 + at, grad_weight1 + at, keep(kKeys + at),
                                             modified(kBand + at), row[1], modifier, p[1][half],
                                             ds[1][half]);
            Dot::store_interleaved(weight + at, p[0][half], p[1][half]);
            Dot::store_interleaved(grad + at, ds[0][half], ds[1][half]);
          }
          Dot::store_row(deep + j / 2, ds[0][0], ds[0][1]);
          Dot::store_row(deep + kDeepRow + j / 2, ds[1][0], ds[1][1]);
        }
      }
    }
  }

  template <bool kMasked, bool kDropout, class M>
  static PERSEID_INLINE void grad_score_of(const Scalar* score, const Scalar* grad_weight,
                                           const uint8_t* keep, const Scalar* modified,
                                           const RowConstants& row, const M& modifier,
                                           typename V::Reg& p, typename V::Reg& ds) {
    const typename V::Reg s = V::load(score);
    const typename V::Reg x = V::fms(s, row.factor, row.lse);
    if constexpr (kDepth == 1) {
      p = exp2<V>(x);
    } else {
      p = exp2_approx(x);
    }
    typename V::Reg dp = V::load(grad_weight);
    if constexpr (kDropout)
      dp = V::select(V::nonzero_bytes(keep), V::mul(dp, row.rescale), V::zero());
    ds = perseid::internal::grad_score<V>(p, dp, row.delta);
    if constexpr (!M::kIdentity)
      ds = grad_product<ScoreArithmetic<V>>(ds, V::load(modified), modifier);
    if constexpr (kMasked) {
      // Whatever lse, dP and delta are. A score of NaN is not masked.
      const typename V::Reg masked = V::set1(static_cast<Scalar>(-__builtin_inf()));
      const typename V::Mask seen = V::either(V::less(masked, s), V::is_nan(s));
      p = V::select(seen, p, V::zero());
      ds = V::select(seen, ds, V::zero());
    }
    if constexpr (kDropout) p = V::select(V::nonzero_bytes(keep), p, V::zero());
  }

  // c[rows, columns] += a b, by panels of b.
  static void add_product(TileA<Dot> a, TileB<Dot> b, TileC<Dot> c, int64_t rows, int64_t columns,
                          int64_t steps) {
    for (int64_t j = 0; j < columns; j += Shape::kPanel)
      panel_gemm<Dot>(a, {b.data + j, b.depth}, {c.data + j, c.row}, rows,
                      min(Shape::kPanel, columns - j), steps, true);
  }

  void accumulate_query(const Shape& shape, const BackwardKeys<Dot, T>& keys, Scalar* sum) const {
    // The bands that a strip of rows meets, as bits: a strip with rows of two pieces of a sequence
    // (QueryRows) may meet some on both sides of others.
    const auto bands_of = [&](int64_t i) {
      uint32_t bands = 0;
      for (int64_t band = 0; band < kBands; ++band)
        if (band_[band].begin <= i && i < band_[band].end) bands |= uint32_t{1} << band;
      return bands;
    };
    for (int64_t i = 0, next; i < rows_; i = next) {
      const uint32_t bands = bands_of(i);
      for (next = i + Dot::kRows; next < rows_ && bands_of(next) == bands;) next += Dot::kRows;
      next = min(next, rows_);
      for (int64_t band = 0, end; band < kBands; band = end) {
        for (end = band; end < kBands && (bands >> end & 1) != 0;) ++end;
        if (end == band) {
          ++end;
          continue;
        }
        const int64_t step = band * kBand / kDepth;
        const int64_t steps = steps_of<Dot>(min(end * kBand, keys.count)) - step;
        add_product({grad_deep_ + i * kDeepRow + step, kDeepRow, 1},
                    {keys.key_depth + step * shape.head_columns, shape.head_columns},
                    {sum + (row_ + i) * shape.head_columns, shape.head_columns}, next - i,
                    shape.head_dim, steps);
      }
    }
  }

  // Element (i, j) of P or dS.
  static Scalar at(const Element* x, int64_t i, int64_t j) {
    if constexpr (kDepth == 1) {
      return x[i * kRow + j];
    } else {
      return to_float(bf16{static_cast<uint16_t>(x[i / 2 * kRow + j] >> (i % 2 * 16))});
    }
  }

  void add_nonfinite(const Shape& shape, const BackwardQueries<Dot, T>& queries,
                     const BackwardKeys<Dot, T>& keys, const BackwardSums<Scalar>& sums) const {
    const Strided<T>& query = queries.raw_query;
    const Strided<T>& grad_out = queries.raw_grad_out;
    for (int64_t band = 0; band < kBands; ++band) {
      for (int64_t i = band_[band].begin; i < band_[band].end; ++i) {
        const int64_t row = row_ + i;
        for (int64_t j = band * kBand; j < min((band + 1) * kBand, keys.count); ++j) {
          if (sums.value != nullptr && queries.nonfinite_grad_out[row] != 0)
            add_nonfinite_row<Dot>(grad_out.data + row * grad_out.row, grad_out.column,
                                   shape.value_dim, at(weight_, i, j),
                                   sums.value + j * shape.value_columns);
          if (sums.key != nullptr && queries.nonfinite_query[row] != 0)
            add_nonfinite_row<Dot>(query.data + row * query.row, query.column, shape.head_dim,
                                   at(grad_, i, j), sums.key + j * shape.head_columns);
          if (sums.query != nullptr && keys.nonfinite_key[j] != 0)
            add_nonfinite_row<Dot>(keys.raw_key.data + j * keys.raw_key.row, keys.raw_key.column,
                                   shape.head_dim, at(grad_, i, j),
                                   sums.query + row * shape.head_columns);
        }
      }
    }
  }

  Element* weight_;             // P, depth along the queries: [kQueries / kDepth, kRow]
  Element* grad_;               // dS, the same
  Element* grad_deep_;          // dS, depth along the keys: [kQueries, kDeepRow]
  Scalar* score_;               // S of a band, for a group of rows
  Scalar* grad_weight_;         // dP, the same
  uint8_t* keep_;               // [kQueries, kKeys] what dropout keeps
  Scalar* modified_ = nullptr;  // [kGroup, kBand] modified scores of a band, or null
  int64_t row_ = 0, rows_ = 0;  // of the packed queries
  int64_t position_ = 0;        // of the first of them in the sequence
  Rows band_[kBands] = {};
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
