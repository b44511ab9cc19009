// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Fixup of attention backward: rows of gradients that are not finite, or depend on
// elements that were cleared, are recomputed by a warp from what is visible alone.
//
// A weight of 0 times NaN or infinity is NaN, so products on tensor cores let hidden keys and
// queries into gradients that do not depend on them. Kernels clear such elements before the
// products, so that independent gradients keep their bits. A row that does depend on one, or whose
// result is not finite, is computed here, pair by pair, in the order of its keys or queries. The
// loop ends when all elements are NaN: no further pair changes them. C: a configuration of
// attention backward.
#pragma once

#include "cuda/device/attention/backward_work.hpp"
#include "cuda/device/attention/nonfinite.hpp"
#include "cuda/device/attention/score_rules.hpp"
#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/attention/warp_row.hpp"
#include "cuda/device/ptx/math.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

// ---- Rows that are recomputed ----

// For a query and a key: the weight after dropout, dS, and their scaled product's gradient.
template <class Real>
struct PairGradients {
  Real weight, score, product;
};

// A query and a key with what their dS is made of, in the registers of a warp.
template <auto C>
struct FixupPair {
  using Element = typename ElementOf<C.dtype>::Type;
  using Real = typename SumOf<C.dtype>::Type;
  WarpRow<C.dtype, C.key_dim> query, key;
  WarpRow<C.dtype, C.value_dim> grad_out, value;

  __device__ __forceinline__ void load_query(const AttentionGradientsOf<Real>& a,
                                             const AttentionSequence& sequence, int32_t head,
                                             int32_t row) {
    const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
    row += sequence.q_begin;
    query.load(row_at<Element>(a.query_rows, entry, head, row), a.head_dim,
               element_stride<C>(a.query_rows));
    grad_out.load(row_at<Element>(a.grad_out_rows, entry, head, row), a.value_dim,
                  element_stride<C>(a.grad_out_rows));
  }
  __device__ __forceinline__ void load_key(const AttentionGradientsOf<Real>& a,
                                           const AttentionSequence& sequence, int32_t kv_head,
                                           int32_t row) {
    const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
    row += sequence.kv_begin;
    key.load(row_at<Element>(a.key_rows, entry, kv_head, row), a.head_dim,
             element_stride<C>(a.key_rows));
    value.load(row_at<Element>(a.value_rows, entry, kv_head, row), a.value_dim,
               element_stride<C>(a.value_rows));
  }
  // Queries and keys count in their sequence.
  __device__ __forceinline__ PairGradients<Real> compute(const AttentionGradientsOf<Real>& a,
                                                         const AttentionSequence& sequence,
                                                         int32_t head, int32_t query_number,
                                                         int32_t key_number) const {
    using V = typename ArithmeticOf<Real>::Type;
    const int32_t batch = sequence.batch;
    const int64_t at = statistics_at<C>(a, sequence, head, query_number);
    const Real bias =
        bias_log2<C.bias>(a, batch, head, score_row_of<C>(a, sequence, query_number), key_number);
    const bool kept =
        is_kept<C.dropout>(a, batch, head, whole_row<C>(a, sequence, query_number), key_number);
    const Modifier<C.modifier, Real> modifier{a.modifier};
    const Real scores = query.product(key), scale = scale_log2_of<Real>(a);
    // Times what LseInLog2 keeps apart, which delta has as well.
    Real rest = 1;
    if constexpr (C.dtype == DType::kF32)
      rest = LseInLog2(*row_at<const float>(a.lse, entry_of<C.lengths>(a, batch), head,
                                            sequence.q_begin + query_number))
                 .factor;
    const Real weight =
        weight_of<C.dropout>(score_log2<V>(scores, scale, bias - a.lse_log2[at], modifier));
    const Real factor = kept ? dropout_factor<C.dropout, Real>(a) * rest : 0;
    const Real product = grad_out.product(value);
    const Real ds = grad_score<V>(weight, kept ? product * factor : 0, a.delta[at]);
    const Real modified = score_log2<V>(scores, scale, modifier);
    return {weight * factor, ds, grad_product<V>(ds, modified, modifier)};
  }
};

// The keys that the masks of rows let a query see.
template <auto C>
struct KeysOfQuery {
  int32_t begin, end;

  __device__ __forceinline__ KeysOfQuery(const AttentionArguments& a,
                                         const AttentionSequence& sequence, int32_t query)
      : begin(C.left ? max(query + gap_before<C>(a, query) + sequence.left, 0) : 0),
        end(C.right ? min(query + gap_before<C>(a, query) + sequence.right, sequence.kv_len)
                    : sequence.kv_len) {}
};

inline constexpr int32_t kLastColumn = 1 << 30;  // behind all

// Columns [first, last) of the row.
template <auto C, class Real>
__device__ __forceinline__ void fix_up_query(const AttentionGradientsOf<Real>& a,
                                             const AttentionSequence& sequence, int32_t head,
                                             int32_t query, int32_t first = 0,
                                             int32_t last = kLastColumn) {
  FixupPair<C> pair;
  decltype(pair.query) gradient;
  gradient.clear();
  pair.load_query(a, sequence, head, query);
  const KeysOfQuery<C> keys(a, sequence, query);
  for (int32_t key = keys.begin; key < keys.end && !gradient.is_lost(a.head_dim); ++key) {
    if (!is_seen<C>(a, sequence, head, query, key)) continue;
    pair.load_key(a, sequence, head / a.group, key);
    gradient.add(pair.compute(a, sequence, head, query, key).product, pair.key);
  }
  gradient.template store_or_add<C.accumulate_query>(
      row_at<typename FixupPair<C>::Element>(a.grad_query_rows,
                                             entry_of<C.lengths>(a, sequence.batch), head,
                                             sequence.q_begin + query),
      min(a.head_dim, last), a.scale, element_stride<C>(a.grad_query_rows), first);
}

// The queries that the masks of rows let see a key.
template <auto C>
struct QueriesOfKey {
  int32_t begin, end;

  __device__ __forceinline__ QueriesOfKey(const AttentionArguments& a,
                                          const AttentionSequence& sequence, int32_t key)
      : begin(C.right ? query_from<C>(a, max(key - sequence.right + 1, 0)) : 0),
        end(key >= sequence.kv_len ? 0
            : C.left               ? min(query_from<C>(a, key - sequence.left + 1), sequence.q_len)
                                   : sequence.q_len) {}
};

// Of which queries a gradient of a key is the sum, and where it goes: of all, to its tensor. Passed
// by value, so that objects that hold one stay in registers.
struct SumOfQueries {
  __device__ __forceinline__ bool has(int32_t) const { return true; }
  template <class Real>
  __device__ __forceinline__ const RowsInMemory& grad_key(
      const AttentionGradientsOf<Real>& a) const {
    return a.grad_key_rows;
  }
  template <class Real>
  __device__ __forceinline__ const RowsInMemory& grad_value(
      const AttentionGradientsOf<Real>& a) const {
    return a.grad_value_rows;
  }
};

// Writes columns [first, last) of those of `gradients`, bits of RowGradient. Where a gradient
// accumulates, memory still holds its old value.
enum RowGradient : uint32_t { kRowOfKey = 1, kRowOfValue = 2 };
template <auto C, class Real, class Sum = SumOfQueries>
__device__ __noinline__ void fix_up_key(const AttentionGradientsOf<Real>& a, int32_t batch,
                                        int32_t kv_head, int32_t key,
                                        uint32_t gradients = kRowOfKey | kRowOfValue,
                                        int32_t first = 0, int32_t last = kLastColumn,
                                        Sum sum = {}) {
  AttentionSequence sequence = find_sequence<C.lengths, has_rank_pieces<C>()>(a, batch);
  constexpr DType kGradient = C.f32_key_gradients ? DType::kF32 : C.dtype;
  using Gradient = typename ElementOf<kGradient>::Type;
  FixupPair<C> pair;
  decltype(pair.key) grad_key;
  decltype(pair.value) grad_value;
  grad_key.clear();
  grad_value.clear();
  pair.load_key(a, sequence, kv_head, key);
  bool lost = false;
  const auto add_queries = [&] {
    const QueriesOfKey<C> queries(a, sequence, key);
    for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
      for (int32_t query = queries.begin; query < queries.end && !lost; ++query) {
        if (!sum.has(query) || !is_seen<C>(a, sequence, head, query, key)) continue;
        pair.load_query(a, sequence, head, query);
        const auto of_pair = pair.compute(a, sequence, head, query, key);
        // A dropped weight is 0, whatever the gradient holds.
        if (!C.dropout ||
            is_kept<C.dropout>(a, sequence.batch, head, whole_row<C>(a, sequence, query), key))
          grad_value.add(of_pair.weight, pair.grad_out);
        grad_key.add(of_pair.product, pair.query);
        lost = grad_key.is_lost(a.head_dim) && grad_value.is_lost(a.value_dim);
      }
  };
  if constexpr (has_rank_pieces<C>()) {
    for (int32_t piece = 0; piece < (a.two_pieces ? 2 : 1); ++piece) {
      sequence = find_sequence<C.lengths, true>(a, batch + piece);
      add_queries();
    }
  } else {
    add_queries();
  }
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch), row = sequence.kv_begin + key;
  if (a.grad_key_rows.data != nullptr && (!C.accumulate_key || (gradients & kRowOfKey) != 0))
    grad_key.template store_or_add<C.accumulate_key, kGradient>(
        row_at<Gradient>(sum.grad_key(a), entry, kv_head, row), min(a.head_dim, last), a.scale,
        element_stride<C>(a.grad_key_rows), first);
  if (a.grad_value_rows.data != nullptr && (!C.accumulate_value || (gradients & kRowOfValue) != 0))
    grad_value.template store_or_add<C.accumulate_value, kGradient>(
        row_at<Gradient>(sum.grad_value(a), entry, kv_head, row), min(a.value_dim, last), 1,
        element_stride<C>(a.grad_value_rows), first);
}

// ---- Rows that depend on elements that are not finite ----

template <class Real>
__device__ __forceinline__ bool is_nonfinite(Real x) {
  return !(x * 0 == 0);
}

// P or dS of the query is not finite.
template <auto C, class Real>
__device__ __forceinline__ bool is_nonfinite_query(const AttentionGradientsOf<Real>& a,
                                                   const AttentionSequence& sequence, int32_t head,
                                                   int32_t query) {
  const int64_t at = statistics_at<C>(a, sequence, head, query);
  return a.lse_log2[at] != a.lse_log2[at] || is_nonfinite(a.delta[at]);
}
template <auto C, class Real>
__device__ __forceinline__ bool is_nonfinite_key(const AttentionGradientsOf<Real>& a,
                                                 const AttentionSequence& sequence, int32_t kv_head,
                                                 int32_t key) {
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch), row = sequence.kv_begin + key;
  return !is_finite_row<C.dtype, C.unit_strides()>(a.key_rows, entry, kv_head, row, a.head_dim) ||
         !is_finite_row<C.dtype, C.unit_strides()>(a.value_rows, entry, kv_head, row, a.value_dim);
}

// By a warp; a lane checks every 32nd key or query.
template <auto C, class Real>
__device__ __forceinline__ bool query_depends_on_nonfinite(const AttentionGradientsOf<Real>& a,
                                                           const AttentionSequence& sequence,
                                                           int32_t head, int32_t query) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const KeysOfQuery<C> keys(a, sequence, query);
  bool found = is_nonfinite_query<C>(a, sequence, head, query);
#pragma unroll 1
  for (int32_t key = keys.begin + lane; key < keys.end && !found; key += 32)
    found = is_seen<C>(a, sequence, head, query, key) &&
            is_nonfinite_key<C>(a, sequence, head / a.group, key);
  return __any_sync(0xffffffffu, found);
}
template <auto C, class Real, class Sum>
__device__ __noinline__ bool key_depends_on_nonfinite(const AttentionGradientsOf<Real>& a,
                                                      int32_t batch, int32_t kv_head, int32_t key,
                                                      Sum sum) {
  AttentionSequence sequence = find_sequence<C.lengths, has_rank_pieces<C>()>(a, batch);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool found = is_nonfinite_key<C>(a, sequence, kv_head, key);
  const auto find = [&] {
    const QueriesOfKey<C> queries(a, sequence, key);
#pragma unroll 1
    for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
#pragma unroll 1
      for (int32_t query = queries.begin + lane; query < queries.end && !found; query += 32)
        found = sum.has(query) && is_nonfinite_query<C>(a, sequence, head, query) &&
                is_seen<C>(a, sequence, head, query, key);
  };
  find();
  if constexpr (has_rank_pieces<C>())
    if (a.two_pieces) {
      sequence = find_sequence<C.lengths, true>(a, batch + 1);
      find();
    }
  return __any_sync(0xffffffffu, found);
}

// Whether some query that sees the key has a row of query or grad_out that is not finite, or
// such a lse or delta.
template <auto C, class Real>
__device__ __noinline__ bool key_depends_on_nonfinite_query(const AttentionGradientsOf<Real>& a,
                                                            const AttentionSequence& sequence,
                                                            int32_t kv_head, int32_t key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
  const QueriesOfKey<C> queries(a, sequence, key);
  bool found = false;
#pragma unroll 1
  for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
#pragma unroll 1
    for (int32_t query = queries.begin + lane; query < queries.end && !found; query += 32)
      found = is_seen<C>(a, sequence, head, query, key) &&
              (is_nonfinite_query<C>(a, sequence, head, query) ||
               !is_finite_row<C.dtype, C.unit_strides()>(a.query_rows, entry, head,
                                                         sequence.q_begin + query, a.head_dim) ||
               !is_finite_row<C.dtype, C.unit_strides()>(a.grad_out_rows, entry, head,
                                                         sequence.q_begin + query, a.value_dim));
  return __any_sync(0xffffffffu, found);
}

template <auto C, class Real>
__device__ __noinline__ Real compute_ds(const AttentionGradientsOf<Real>& a,
                                        const AttentionSequence& sequence, int32_t head,
                                        int32_t query, int32_t key) {
  FixupPair<C> pair;
  pair.load_query(a, sequence, head, query);
  pair.load_key(a, sequence, head / a.group, key);
  return pair.compute(a, sequence, head, query, key).score;
}
// Computes the elements of dS that are not finite once more, of 16 queries from `query` on and keys
// from `key` on, by the warp that has them in the layout of ptx/mma.hpp.
template <auto C, class Real, int kCount>
__device__ __forceinline__ void fix_up_scores(const AttentionGradientsOf<Real>& a,
                                              const AttentionSequence& sequence, int32_t head,
                                              int32_t query, int32_t key, Real (&ds)[kCount]) {
  static_assert(kCount <= 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t nonfinite = 0;  // of the thread's elements, as bits
#pragma unroll
  for (int x = 0; x < kCount; ++x) nonfinite |= (is_nonfinite(ds[x]) ? 1u : 0u) << x;
#pragma unroll 1
  while (const uint32_t lanes = __ballot_sync(0xffffffffu, nonfinite != 0)) {
    const int owner = __ffs(static_cast<int>(lanes)) - 1;
    const int element = __ffs(static_cast<int>(__shfl_sync(0xffffffffu, nonfinite, owner))) - 1;
    const Real computed = compute_ds<C>(a, sequence, head, query + element / 2 % 2 * 8 + owner / 4,
                                        key + element / 4 * 8 + 2 * (owner % 4) + element % 2);
    if (lane != owner) continue;
    nonfinite &= nonfinite - 1;
#pragma unroll
    for (int x = 0; x < kCount; ++x)
      if (x == element) ds[x] = computed;
  }
}

// Two packed elements plus two numbers times a factor.
template <DType D>
__device__ __forceinline__ uint32_t add_to_pair(uint32_t old, float a, float b, float factor) {
  const float2 pair = widen_pair<D>(old);
  return round_pair<D>(fmaf(a, factor, pair.x), fmaf(b, factor, pair.y));
}

}  // namespace perseid::internal::cuda
