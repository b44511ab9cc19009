// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention forward does row by row: NaN and infinity of values that a row sees, and rows
// whose keys were split, put together.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/device/sm90/attention/rules.hpp"
#include "cuda/device/sm90/attention/sequence.hpp"

namespace perseid::internal::cuda {

// ---- Values that are not finite ----

// The second pass over a tile (forward_consumer.hpp) takes non-finite elements of values for 0, so
// that those of hidden keys leave no trace. A row that sees such an element gets what the formula
// says of it: the row is computed once more, key by key, and its non-finite results are stored.
// Where keys were split, a kernel behind the merge does so, and ends at once if nothing was listed.
//
// A warp has a row, its lanes every 32nd element.

template <AttentionForwardConfig C>
struct SeenKeys {
  int begin, end;

  __device__ __forceinline__ SeenKeys(const AttentionSequence& sequence, int query)
      : begin(C.left ? max(query + sequence.left, 0) : 0),
        end(C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len) {}
};

// Whether a value that the row sees has a non-finite element; a lane has every 32nd key.
template <AttentionForwardConfig C>
__device__ __forceinline__ bool sees_nonfinite(const AttentionForwardArguments& a,
                                               const AttentionSequence& sequence, int head,
                                               int query) {
  const int batch = sequence.batch, entry = entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack_gqa);
  const SeenKeys<C> keys(sequence, query);
  bool found = false;
#pragma unroll 1
  for (int k = keys.begin + static_cast<int>(threadIdx.x) % 32; k < keys.end && !found; k += 32) {
    if (!is_visible<C.visible>(a, batch, head, query, k)) continue;
    found =
        !is_finite_row<C.dtype>(a.value_rows, entry, kv_head, sequence.kv_begin + k, a.value_dim);
  }
  return __any_sync(0xffffffffu, found);
}

// Row `query` of a sequence, in one head. Not inlined: it would lie between the loops of the
// kernel.
template <AttentionForwardConfig C>
__device__ __noinline__ void fix_up_row(const AttentionForwardArguments& a,
                                        const AttentionSequence& sequence, int head, int query) {
  WarpRow<C.dtype, C.key_dim> own, key;
  WarpRow<C.dtype, C.value_dim> out, value;
  using Element = typename ElementOf<C.dtype>::Type;
  const int batch = sequence.batch, entry = entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack_gqa);
  Element* to = row_at<Element>(a.out_rows, entry, head, sequence.q_begin + query);
  out.load_stored(to, a.value_dim);
  if (out.is_lost(a.value_dim) || !sees_nonfinite<C>(a, sequence, head, query)) return;

  own.load(row_at<Element>(a.query_rows, entry, head, sequence.q_begin + query), a.head_dim);
  out.clear();
  float maximum = minus_infinity(), sum = 0;
  const SeenKeys<C> keys(sequence, query);
#pragma unroll 1
  for (int k = keys.begin; k < keys.end; ++k) {
    if (!is_visible<C.visible>(a, batch, head, query, k)) continue;
    key.load(row_at<Element>(a.key_rows, entry, kv_head, sequence.kv_begin + k), a.head_dim);
    value.load(row_at<Element>(a.value_rows, entry, kv_head, sequence.kv_begin + k), a.value_dim);
    const float score =
        fmaf(own.product(key), a.scale_log2, bias_log2<C.bias>(a, batch, head, query, k));
    const float now = fmaxf(maximum, score);
    const float before = maximum == minus_infinity() ? 0 : ptx::approximate_exp2(maximum - now);
    // NaN stays NaN.
    const float weight = score == minus_infinity() ? 0 : ptx::approximate_exp2(score - now);
    sum = fmaf(sum, before, weight);
    maximum = now;
    out.multiply(before);
    out.add(is_kept<C.dropout>(a, batch, head, query, k) ? weight : 0, value);
  }
  if (sum == 0) return;
  out.store_nonfinite(to, a.value_dim, dropout_factor<C.dropout>(a) / sum);
}

template <AttentionForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    attention_fix_up(const __grid_constant__ AttentionForwardArguments a) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if (ptx::load_acquire(&a.counter->nonfinite) != a.launch) return;
  const int heads = a.heads << a.pack_gqa, warps = static_cast<int>(gridDim.x) * kRowWarps;
  const int warp = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int batch = 0; batch < a.batch; ++batch) {
    const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
    const int64_t rows = int64_t{heads} * sequence.q_len;
#pragma unroll 1
    for (int64_t row = warp; row < rows; row += warps)
      fix_up_row<C>(a, sequence, static_cast<int>(row / sequence.q_len),
                    static_cast<int>(row % sequence.q_len));
  }
}

// ---- Parts of split keys ----

// Few queries and many keys: attention_forward takes the keys in parts, and this kernel puts the
// parts of each row together. With L the logarithms of the parts' sums and O their results:
//
//   out = sum(2^(L - max L) * O) / sum(2^(L - max L))
//
// A warp has 32 columns of a row, and reads 32 parts at once: what takes the time is waiting for
// them. Parts are added in their order, however many blocks computed them, and there are as many as
// the length of the keys says: a row's result does not depend on which others are in the batch.
// Blocks are small enough to lie beside those of the kernels before and after.

template <DType D>
__global__ void __launch_bounds__(32 * kRowWarps, 8)
    attention_merge(const __grid_constant__ AttentionForwardArguments a) {
  constexpr int kTogether = 32;
  ptx::launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warp = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  const int pieces = (a.value_dim + 31) / 32;
  const auto row = static_cast<int>(warp / pieces);
  const int column = static_cast<int>(warp % pieces) * 32 + lane;
  const int heads = a.heads << a.pack_gqa, length = a.ragged ? a.total_q : a.q_len;
  const int query = row % length, head = row / length % heads, batch = row / length / heads;
  const bool own = column < a.value_dim;
  ptx::wait_for_prerequisites();
  if (row >= a.rows) return;
  // Rows behind the last sequence belong to nobody.
  if (a.ragged && query >= read_length(a.cumulative_q, a.batch, a.total_q)) return;

  float out = 0, largest = minus_infinity(), sum = 0;  // sum: of the lane's parts
#pragma unroll 1
  for (int first = 0; first < a.num_splits; first += kTogether) {
    const int64_t at = int64_t{first} * a.rows + row;
    const float own_sum =
        first + lane < a.num_splits ? a.split_sums[at + lane * a.rows] : minus_infinity();
    float results[kTogether];
#pragma unroll
    for (int p = 0; p < kTogether; ++p)
      results[p] = own && first + p < a.num_splits
                       ? a.split_results[(at + p * a.rows) * a.value_dim + column]
                       : 0;
    float now = fmaxf(largest, own_sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, step));
    const float shift = now == minus_infinity() ? 0 : now;
    const float factor = ptx::approximate_exp2(largest - shift);
    const float weight = ptx::approximate_exp2(own_sum - shift);
    largest = now;
    sum = fmaf(sum, factor, weight);
    out *= factor;
#pragma unroll
    for (int p = 0; p < kTogether; ++p)
      out = fmaf(__shfl_sync(0xffffffffu, weight, p), results[p], out);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);

  if (own)
    row_at<uint16_t>(a.out_rows, batch, head, query)[column] =
        static_cast<uint16_t>(round_pair<D>(sum == 0 ? 0 : out / sum, 0));
  if (column == 0 && a.lse != nullptr)
    a.lse[batch * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] =
        sum == 0 ? minus_infinity() : (largest + ptx::approximate_log2(sum)) * kLn2;
}

}  // namespace perseid::internal::cuda
