// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are computed again, one at a time by a warp.
//
// A weight of 0 times something that is NaN or infinite is NaN, so that the tensor cores let what
// masked keys and queries hold into gradients that have nothing to do with them. This cannot be
// told from the products, but from their results: where masks are and a row of a gradient is not
// finite, it is computed here from what is visible and nothing else. Where that is not finite
// either, it soon shows: the work ends with the first pair after which no element can change.
#pragma once

#include "cuda/device/sm90/attention_backward_scores.hpp"
#include "cuda/device/sm90/attention_softmax.hpp"

namespace perseid::cuda {

__device__ __forceinline__ bool is_unusual(float a, float b) { return !(a * 0 + b * 0 == 0); }

template <DType D>
struct Rounded {
  using Type = bf16;
};
template <>
struct Rounded<DType::kF16> {
  using Type = f16;
};

// Each lane has every 32nd element of a row.
template <DType D, int kParts>
struct MendedRow {
  using Element = typename Rounded<D>::Type;
  float part[kParts];

  __device__ __forceinline__ static Element* at(const BackwardRows& rows, int32_t batch,
                                                int32_t head, int32_t row) {
    return static_cast<Element*>(rows.data) + batch * rows.stride[0] + head * rows.stride[1] +
           row * rows.stride[2];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& each : part) each = 0;
  }
  __device__ __forceinline__ void load(const Element* row, int32_t dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      part[i] = lane + 32 * i < dim ? convert<float>(row[lane + 32 * i]) : 0;
  }
  __device__ __forceinline__ void store(Element* row, int32_t dim, float factor) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (lane + 32 * i < dim) row[lane + 32 * i] = convert<Element>(part[i] * factor);
  }
  __device__ __forceinline__ void add(float factor, const MendedRow& other) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = fmaf(factor, other.part[i], part[i]);
  }
  __device__ __forceinline__ float product(const MendedRow& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) sum = fmaf(part[i], other.part[i], sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
  __device__ __forceinline__ bool is_lost(int32_t dim) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool lost = true;
#pragma unroll
    for (int i = 0; i < kParts; ++i) lost = lost && (lane + 32 * i >= dim || part[i] != part[i]);
    return __all_sync(0xffffffffu, lost);
  }
};

template <AttentionBackwardConfig C>
struct MendedPair {
  MendedRow<C.dtype, (C.key_dim + 31) / 32> query, key;
  MendedRow<C.dtype, (C.value_dim + 31) / 32> grad_out, value;

  // The weight as values have it, and the gradient of the score.
  __device__ __forceinline__ float2 grade(const BackwardProblem& a, int64_t row, float bias,
                                          bool kept) const {
    const float weight =
        ptx::approximate_exp2(fmaf(query.product(key), a.scale_log2, bias - a.lse_log2[row]));
    const float factor = kept ? dropout_factor<C>(a) : 0;
    const float product = grad_out.product(value);
    return {weight * factor, weight * ((kept ? product * factor : 0) - a.delta[row])};
  }
};

template <AttentionBackwardConfig C>
__device__ __forceinline__ void mend_query(const BackwardProblem& a, int32_t batch, int32_t head,
                                           int32_t query) {
  MendedPair<C> pair;
  decltype(pair.query) gradient;
  gradient.clear();
  pair.query.load(gradient.at(a.query, batch, head, query), a.head_dim);
  pair.grad_out.load(gradient.at(a.grad_out, batch, head, query), a.value_dim);
  const int64_t row =
      (int64_t{batch} * a.kv_heads * a.group + head) * a.q_blocks * C.queries + query;
  const BackwardKeys keys = keys_of<C>(a, batch);
  const int32_t begin = C.left ? max(query + keys.left, 0) : 0;
  const int32_t end = C.right ? min(query + keys.right, keys.kv_len) : keys.kv_len;
  for (int32_t key = begin; key < end && !gradient.is_lost(a.head_dim); ++key) {
    if (!is_visible<C>(a, batch, head, query, key)) continue;
    pair.key.load(gradient.at(a.key, batch, head / a.group, key), a.head_dim);
    pair.value.load(gradient.at(a.value, batch, head / a.group, key), a.value_dim);
    const float bias = bias_log2<C>(a, batch, head, query, key);
    const bool kept = is_kept<C>(a, batch, head, query, key);
    gradient.add(pair.grade(a, row, bias, kept).y, pair.key);
  }
  gradient.store(gradient.at(a.grad_query, batch, head, query), a.head_dim, a.scale);
}

template <AttentionBackwardConfig C>
__device__ __noinline__ void mend_key(const BackwardProblem& a, int32_t batch, int32_t kv_head,
                                      int32_t key) {
  MendedPair<C> pair;
  decltype(pair.key) grad_key;
  decltype(pair.value) grad_value;
  grad_key.clear();
  grad_value.clear();
  pair.key.load(grad_key.at(a.key, batch, kv_head, key), a.head_dim);
  pair.value.load(grad_key.at(a.value, batch, kv_head, key), a.value_dim);
  const BackwardKeys keys = keys_of<C>(a, batch);
  const int32_t begin = C.right ? max(key - keys.right + 1, 0) : 0;
  const int32_t end = key >= keys.kv_len ? 0 : C.left ? min(key - keys.left + 1, a.q_len) : a.q_len;
  bool lost = false;
  for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
    for (int32_t query = begin; query < end && !lost; ++query) {
      if (!is_visible<C>(a, batch, head, query, key)) continue;
      pair.query.load(grad_key.at(a.query, batch, head, query), a.head_dim);
      pair.grad_out.load(grad_key.at(a.grad_out, batch, head, query), a.value_dim);
      const int64_t row =
          (int64_t{batch} * a.kv_heads * a.group + head) * a.q_blocks * C.queries + query;
      const bool kept = is_kept<C>(a, batch, head, query, key);
      const float2 grade = pair.grade(a, row, bias_log2<C>(a, batch, head, query, key), kept);
      if (kept) grad_value.add(grade.x, pair.grad_out);
      grad_key.add(grade.y, pair.query);
      lost = grad_key.is_lost(a.head_dim) && grad_value.is_lost(a.value_dim);
    }
  if (a.grad_key.data != nullptr)
    grad_key.store(grad_key.at(a.grad_key, batch, kv_head, key), a.head_dim, a.scale);
  if (a.grad_value.data != nullptr)
    grad_value.store(grad_key.at(a.grad_value, batch, kv_head, key), a.value_dim, 1);
}

}  // namespace perseid::cuda
