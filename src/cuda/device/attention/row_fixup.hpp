// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Fixup of a row of attention forward: NaN and infinity of values that the row sees.
//
// A kernel computes a tile whose results are not finite once more, with the non-finite elements of
// values cleared, so that those of hidden keys leave no trace. A row that sees such an element then
// needs what the formula says: a warp computes the row once more, key by key, and stores its
// non-finite results. A lane has every 32nd element. C: a configuration of attention forward.
//
// In float32, rows whose results are all NaN are computed and stored as a whole: planes
// (portable/attention/planes.hpp) do not hold all keys and values.
#pragma once

#include "cuda/device/attention/nonfinite.hpp"
#include "cuda/device/attention/score_rules.hpp"
#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/attention/warp_row.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

// Keys that the masks of rows let a query see: [begin, end).
template <auto C>
struct SeenKeys {
  int begin, end;

  __device__ __forceinline__ SeenKeys(const AttentionSequence& sequence, int query)
      : begin(C.left ? max(query + sequence.left, 0) : 0),
        end(C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len) {}
};

// Whether the row sees a non-finite element of values. A lane tests every 32nd key.
template <auto C>
__device__ __forceinline__ bool sees_nonfinite(const typename decltype(C)::Arguments& a,
                                               const AttentionSequence& sequence, int head,
                                               int query) {
  const int batch = sequence.batch, entry = key_entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack_gqa);
  const SeenKeys<C> keys(sequence, query);
  bool found = false;
#pragma unroll 1
  for (int k = keys.begin + static_cast<int>(threadIdx.x) % 32; k < keys.end && !found; k += 32) {
    if (!is_seen<C>(a, sequence, head, query, k)) continue;
    found = !is_finite_row<C.dtype, C.unit_strides()>(a.value_rows, entry, kv_head,
                                                      sequence.kv_begin + k, a.value_dim);
  }
  return __any_sync(0xffffffffu, found);
}

// Computes row `query` of one head again, C.value_dim columns from `first` on. kLost: the caller
// knows that it has to. Not inlined, to keep its code out of the kernel's loops.
template <auto C, bool kLost = false>
__device__ __noinline__ void fixup_row(const typename decltype(C)::Arguments& a,
                                       const AttentionSequence& sequence, int head, int query,
                                       int first = 0) {
  WarpRow<C.dtype, C.key_dim> own, key;
  WarpRow<C.dtype, C.value_dim> out, value;
  using Element = typename ElementOf<C.dtype>::Type;
  using Real = typename SumOf<C.dtype>::Type;
  using V = typename ArithmeticOf<Real>::Type;
  const int batch = sequence.batch, entry = entry_of<C.lengths>(a, batch);
  const int kv_entry = key_entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack_gqa);
  const int columns = min(a.value_dim - first, C.value_dim);
  Element* to = row_at<Element>(a.out_rows, entry, head, sequence.q_begin + query) +
                first * element_stride<C>(a.out_rows);
  out.load_stored(to, columns, element_stride<C>(a.out_rows));
  constexpr bool kWhole = C.dtype == DType::kF32;
  if constexpr (kWhole) {
    if (!kLost && !out.is_lost(columns)) return;
  } else {
    if (out.is_lost(columns) || !sees_nonfinite<C>(a, sequence, head, query)) return;
  }

  own.load(row_at<Element>(a.query_rows, entry, head, sequence.q_begin + query), a.head_dim,
           element_stride<C>(a.query_rows));
  out.clear();
  Real maximum = minus_infinity(), sum = 0;
  const SeenKeys<C> keys(sequence, query);
#pragma unroll 1
  for (int k = keys.begin; k < keys.end; ++k) {
    if (!is_seen<C>(a, sequence, head, query, k)) continue;
    key.load(row_at<Element>(a.key_rows, kv_entry, kv_head, sequence.kv_begin + k), a.head_dim,
             element_stride<C>(a.key_rows));
    value.load(row_at<Element>(a.value_rows, kv_entry, kv_head, sequence.kv_begin + k) +
                   first * element_stride<C>(a.value_rows),
               columns, element_stride<C>(a.value_rows));
    const Real score =
        score_log2<V>(own.product(key), scale_log2_of<Real>(a),
                      bias_log2<C.bias>(a, batch, head, score_row_of<C>(a, sequence, query), k),
                      Modifier<C.modifier, Real>{a.modifier});
    const Real now = V::max(maximum, score);
    const Real factor = maximum == minus_infinity() ? 0 : weight_of<C.dropout>(maximum - now);
    // A NaN score keeps a NaN weight.
    const Real weight = score == minus_infinity() ? 0 : weight_of<C.dropout>(score - now);
    sum = V::fma(sum, factor, weight);
    maximum = now;
    out.multiply(factor);
    out.add(is_kept<C.dropout>(a, batch, head, whole_row<C>(a, sequence, query), k) ? weight : 0,
            value);
  }
  if constexpr (kWhole) {
    const bool empty = sum == 0 || (sum == sum && maximum <= kLeastPower);
    if (empty) out.clear();
    out.store(to, columns, empty ? 0 : dropout_factor<C.dropout>(a) / sum,
              element_stride<C>(a.out_rows));
    if (a.lse != nullptr && threadIdx.x % 32 == 0)
      *lse_of<C>(a, sequence, head, query) =
          empty ? minus_infinity() : fmaf(maximum, kLn2, logf(sum));
  } else {
    if (sum == 0) return;
    out.store_nonfinite(to, columns, dropout_factor<C.dropout, Real>(a) / sum,
                        element_stride<C>(a.out_rows));
  }
}

// All rows of a launch whose blocks have kWarps warps each, a row to a warp.
template <auto C, int kWarps>
__device__ __forceinline__ void fixup_rows(const typename decltype(C)::Arguments& a) {
  const int heads = a.heads << a.pack_gqa, warps = static_cast<int>(gridDim.x) * kWarps;
  const int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int batch = 0; batch < a.batch; ++batch) {
    const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
    const int64_t rows = int64_t{heads} * sequence.q_len;
#pragma unroll 1
    for (int64_t row = warp; row < rows; row += warps)
      fixup_row<C>(a, sequence, static_cast<int>(row / sequence.q_len),
                   static_cast<int>(row % sequence.q_len));
  }
}

}  // namespace perseid::internal::cuda
