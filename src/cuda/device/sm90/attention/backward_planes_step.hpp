// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What consumers of attention backward for f32 on sm_90a share (backward_planes.hpp): the products
// of planes as WGMMAs, the score chain on fragments in registers, and the stores of dK and dV.
//
// Scores are transposed, 64 keys x C.queries: a thread has elements of two keys (ptx/wgmma.hpp),
// and planes of fragments are left operands of the next products as they are. Each issue_ function
// commits one group; the caller fences before and waits after.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/attention/backward_planes_rows.hpp"
#include "cuda/device/sm90/attention/backward_planes_shared.hpp"
#include "cuda/device/sm90/attention/backward_scores.hpp"
#include "cuda/device/split/truncation.hpp"

namespace perseid::internal::cuda {

template <int kCount>
__device__ __forceinline__ void clear_sums(float (&sums)[kCount]) {
#pragma unroll
  for (float& x : sums) x = 0;
}
// sums += products * factor.
template <int kCount>
__device__ __forceinline__ void add_products(const float (&products)[kCount], float factor,
                                             float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = fmaf(products[i], factor, sums[i]);
}

// kOwn: rows have numbers of their own.
template <AttentionBackwardConfig C, bool kOwn>
class PlanesStep {
 protected:
  static constexpr int kScores = C.thread_scores();
  static constexpr int kBothConsumers = PlanesShared<C>::kBothConsumers,
                       kOwnWarps = PlanesShared<C>::kOwnWarps;
  using Planes = uint32_t[2][kScores / 2];

  __device__ __forceinline__ PlanesStep(const AttentionBackwardPlanesArguments& arguments,
                                        const PlanesShared<C>& shared, const BackwardTile& tile,
                                        int consumer)
      : a_(arguments), shared_(shared), tile_(tile), thread_{consumer}, chain_(a_, thread_) {
    if constexpr (kOwn) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = thread_.own_key(tile) + 8 * r;
        RowNumbers own{1, 0};
        if (key < tile.kv_len) own = shared.key_numbers(key - tile.key);
        key_factor_[r] = own.factor;
        value_factor_[r] = power_of_minus(kOfPlanes - own.exponent);
      }
    }
  }

  // Planes of both second rows, dO and V, reach 2^15 instead of 2.
  static constexpr float kOfPlanes = 28;
  static constexpr float kQueryFactor = power_of_two(kCommonQueryExponent - 14);
  static constexpr float kKeyFactor = power_of_two(kCommonKeyExponent - 14);

  // ---- Products ----

  // sums = A B^T: the consumer's keys of a tile, and the rows of a step. Products with low halves
  // of the step's rows come first, as in forward: lse holds for scores of the same bits.
  template <int kDim, class Keys, class Rows>
  __device__ __forceinline__ void issue_scores(float (&sums)[kScores], const Keys& keys,
                                               const Rows& rows) const {
    constexpr int kLow = C.plane_length(kDim) / 16;
    const auto left = keys.k_major(thread_.first_key());
    const auto right = rows.k_major();
    const auto multiply = [&](int from, int to, bool accumulate) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
        ptx::Wgmma<C.queries, DType::kF16>::mma_ss(sums, left.step(from + k), right.step(to + k),
                                                   accumulate || k > 0);
    };
    multiply(0, kLow, false);
    multiply(kLow, 0, true);
    multiply(0, 0, true);
    ptx::wgmma_commit();
  }
  // sums = A B: planes in registers, and the rows of a step.
  template <int kDim, class Rows>
  __device__ __forceinline__ void issue_gradient(float (&sums)[kDim / 2], const Planes& planes,
                                                 const Rows& rows) const {
    const auto multiply = [&](const uint32_t(&left)[kScores / 2], int column, bool accumulate) {
      const auto right = rows.mn_major(column);
#pragma unroll
      for (int k = 0; k < C.queries / 16; ++k)
        ptx::Wgmma<kDim, DType::kF16>::mma_rs(sums, left + 4 * k, right.step(k),
                                              accumulate || k > 0);
    };
    multiply(planes[0], C.plane_length(kDim), false);
    multiply(planes[1], 0, true);
    multiply(planes[0], 0, true);
    ptx::wgmma_commit();
  }
  // sums = dS^T K of a consumer's 64 keys: their columns of the planes of K from `column` on.
  template <int kCount>
  __device__ __forceinline__ void issue_queries(float (&sums)[kCount], int buffer, int consumer,
                                                int column) const {
    const auto multiply = [&](int queries, int plane, bool accumulate) {
      const auto left = shared_.ds(buffer).mn_major(queries);
      const auto right = shared_.key().mn_major(plane + column);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::Wgmma<2 * kCount, DType::kF16>::template mma_ss<true, true>(
            sums, left.step(4 * consumer + k), right.step(4 * consumer + k), accumulate || k > 0);
    };
    multiply(0, C.plane_length(C.key_dim), false);
    multiply(C.queries, 0, true);
    multiply(0, 0, true);
  }
  // What they are to be multiplied by, of the thread's two queries.
  struct QueryFactors {
    float of_row[2];
  };
  __device__ __forceinline__ QueryFactors query_factors(const QueryNumbers& numbers, int buffer,
                                                        int consumer) const {
    QueryFactors factors;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors.of_row[r] = shared_.factor(buffer, consumer) * numbers.scale;
      if constexpr (kOwn)
        factors.of_row[r] /= numbers.share[16 * thread_.warp + thread_.lane / 4 + 8 * r];
    }
    return factors;
  }
  // To memory, from column `column` of dQ on.
  template <int kCount>
  __device__ __forceinline__ void add_to_queries(const float (&sums)[kCount],
                                                 const BackwardStep& step, int column) const {
    constexpr int kOfWarp = 16 * C.key_dim;
    float* const to = a_.sums + block_number<C>(a_, tile_, step.head, step.block) * 4 * kOfWarp +
                      thread_.warp * kOfWarp + column * 16 + thread_.lane * 4;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
      ptx::red_add_v4(to + 128 * j, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
  }

  // ---- Scores ----

  // The numbers of the thread's two queries of every eight, where its elements i are.
  __device__ __forceinline__ float2 pair_of(const float (&numbers)[QueryNumbers::kRows],
                                            int i) const {
    return *reinterpret_cast<const float2*>(numbers + 2 * (thread_.lane % 4) + 2 * i);
  }
  __device__ __forceinline__ void scores_to_weights(const QueryNumbers& numbers,
                                                    float (&scores)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 shift = pair_of(numbers.shift, i);
      float2 factor{kQueryFactor * kKeyFactor, kQueryFactor * kKeyFactor};
      if constexpr (kOwn) factor = pair_of(numbers.factor, i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[i + e];
        const bool hidden = kOwn && score == minus_infinity();
        if constexpr (kOwn) score *= key_factor_[e / 2];
        const float weight = ptx::approximate_exp2(
            fmaf(score, e % 2 == 0 ? factor.x : factor.y, -(e % 2 == 0 ? shift.x : shift.y)));
        score = hidden ? 0 : weight;
      }
    }
  }
  // Dropped weights add nothing to dV, and become negative.
  __device__ __forceinline__ void drop(const DroppedBits<C>& dropped, float (&weights)[kScores],
                                       Planes& planes) const {
    chain_.drop(weights, dropped);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const uint32_t kept = (float_bits(weights[2 * i]) >> 31 != 0 ? 0 : 0xffffu) |
                            (float_bits(weights[2 * i + 1]) >> 31 != 0 ? 0 : 0xffff0000u);
      planes[0][i] &= kept;
      planes[1][i] &= kept;
    }
  }
  // dP^T to u.
  __device__ __forceinline__ void weights_to_ds(const QueryNumbers& numbers,
                                                const float (&weights)[kScores],
                                                float (&products)[kScores]) const {
    const float rescale = dropout_factor<C.dropout>(a_);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 delta = pair_of(numbers.delta, i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float factor =
            kOwn ? value_factor_[e / 2] : power_of_minus(kOfPlanes - kCommonValueExponent);
        if constexpr (C.dropout)
          factor = float_bits(weights[i + e]) >> 31 != 0 ? 0 : factor * rescale;
        const float weight = C.dropout ? fabsf(weights[i + e]) : weights[i + e];
        const float u = weight * fmaf(products[i + e], factor, -(e % 2 == 0 ? delta.x : delta.y));
        products[i + e] = kOwn && weight == 0 ? 0 : u;
      }
    }
  }
  // u as planes for dK, and to shared memory for dQ. Returns what products with the former are to
  // be multiplied by, without the step's scale.
  // `before_store` runs before the first store.
  template <class BeforeStore>
  __device__ __forceinline__ float split_ds(const QueryNumbers& numbers, int buffer,
                                            float (&u)[kScores], Planes& planes,
                                            const BeforeStore& before_store) const {
    if constexpr (!kOwn) {
      const Power power = power_of(0, u);
      split_times(power.scale, u, planes);
      before_store();
      store_ds(planes[0], planes[1], buffer, power.factor * kKeyFactor);
      return power.factor * kQueryFactor;
    } else {
      // A NaN of the numbers is in the weights already where the pair is seen.
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        const float2 share = pair_of(numbers.share, i);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = u[i + e];
          x = x == 0 ? 0 : x * (key_factor_[e / 2] * (e % 2 == 0 ? share.x : share.y));
        }
      }
      const Power of_keys = power_of(1, u);
      split_times(of_keys.scale, u, planes);
      before_store();
      store_ds(planes[0], planes[1], buffer, of_keys.factor);
      // From u times the key's numbers to u times the query's.
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        const float2 share = pair_of(numbers.share, i), factor = pair_of(numbers.factor, i);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = u[i + e];
          const float keys = inverse(key_factor_[e / 2]) * of_keys.factor;
          const float query =
              e % 2 == 0 ? factor.x * inverse(share.x) : factor.y * inverse(share.y);
          x = x == 0 ? 0 : x * keys * query;
        }
      }
      const Power power = power_of(0, u);
      split_times(power.scale, u, planes);
      return power.factor;
    }
  }
  // The inverse of a power of two.
  static __device__ __forceinline__ float inverse(float power) {
    return float_from_bits(0x7f000000u - float_bits(power));
  }
  // The power of two that brings the largest of the consumer's numbers below 2^15, and its inverse.
  struct Power {
    float scale, factor;
  };
  __device__ __forceinline__ Power power_of(int operand, const float (&numbers)[kScores]) const {
    float most = 0;
#pragma unroll
    for (const float x : numbers) {
      const float magnitude = fabsf(x);
      // An infinity is of a row that gets a fixup.
      most = fmaxf(most, !kOwn || magnitude < -minus_infinity() ? magnitude : 0);
    }
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, float_bits(most));
    uint4& largest = shared_.largest(thread_.consumer, operand);
    if (thread_.lane == 0) reinterpret_cast<uint32_t*>(&largest)[thread_.warp] = of_warp;
    ptx::named_barrier_sync(kOwnWarps + thread_.consumer, 128);
    const uint4 all = largest;
    const uint32_t exponent = clamp(max(max(all.x, all.y), max(all.z, all.w)) >> 23, 27u, 240u);
    return {float_from_bits((127 + 14 + 127 - exponent) << 23),
            float_from_bits((exponent - 14) << 23)};
  }
  __device__ __forceinline__ static void split_times(float scale, float (&numbers)[kScores],
                                                     Planes& planes) {
#pragma unroll
    for (float& x : numbers) x *= scale;
    split_weights(numbers, planes[0], planes[1]);
  }
  // The consumer's keys of dS^T to shared memory, then visible to WGMMA after a barrier.
  __device__ __forceinline__ void store_ds(const uint32_t (&high)[kScores / 2],
                                           const uint32_t (&low)[kScores / 2], int buffer,
                                           float factor) const {
    const auto to = shared_.ds(buffer);
    const int row = thread_.warp_key() + thread_.lane % 16;
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      const auto& from = plane == 0 ? high : low;
#pragma unroll
      for (int j = 0; j < C.queries / 8; j += 2)
        ptx::stmatrix_x4(to.base + to.offset(plane, row, j + thread_.lane / 16), from[2 * j],
                         from[2 * j + 1], from[2 * j + 2], from[2 * j + 3]);
    }
    if (thread_.warp == 0 && thread_.lane == 0) shared_.factor(buffer, thread_.consumer) = factor;
    ptx::fence_proxy_async();
  }

  const AttentionBackwardPlanesArguments& a_;
  const PlanesShared<C>& shared_;
  const BackwardTile& tile_;
  const ConsumerThread<C> thread_;
  const BackwardScores<C> chain_;
  float key_factor_[2], value_factor_[2];  // if kOwn: of the thread's two keys
};

}  // namespace perseid::internal::cuda
