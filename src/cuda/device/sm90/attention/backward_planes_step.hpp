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
// What a thread's two rows of products are to be multiplied by.
struct RowFactors {
  float of_row[2];

  __device__ __forceinline__ RowFactors times(float factor) const {
    return {{of_row[0] * factor, of_row[1] * factor}};
  }
};
// sums += products * factors.
template <int kCount>
__device__ __forceinline__ void add_products(const float (&products)[kCount],
                                             const RowFactors& factors, float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = fmaf(products[i], factors.of_row[i / 2 % 2], sums[i]);
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
      : a_(arguments), shared_(shared), tile_(tile), thread_{consumer}, chain_(a_, thread_) {}

  // Planes of both second rows, dO and V, reach 2^15 instead of 2.
  static constexpr float kOfPlanes = 28;
  static constexpr float kQueryFactor = power_of_two(kCommonQueryExponent - 14);
  static constexpr float kKeyFactor = power_of_two(kCommonKeyExponent - 14);

  // The numbers of the thread's two keys, if kOwn. Read again in each phase: registers are scarce.
  struct KeyNumbers {
    float factor[2], value_factor[2];
  };
  __device__ __forceinline__ KeyNumbers key_numbers() const {
    KeyNumbers keys{};
    if constexpr (kOwn) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = thread_.own_key(tile_) + 8 * r;
        RowNumbers own{1, 0};
        if (key < tile_.kv_len) own = shared_.key_numbers(key - tile_.key);
        keys.factor[r] = own.factor;
        keys.value_factor[r] = power_of_minus(kOfPlanes - own.exponent);
      }
    }
    return keys;
  }

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
  __device__ __forceinline__ RowFactors query_factors(const QueryNumbers& numbers, int buffer,
                                                      int consumer) const {
    RowFactors factors;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = 16 * thread_.warp + thread_.lane / 4 + 8 * r;
      if constexpr (kOwn)
        factors.of_row[r] = Power(shared_.largest_of_queries(consumer)[query]).factor;
      else
        factors.of_row[r] = shared_.factor(buffer, consumer);
    }
    return factors.times(numbers.scale);
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
    const KeyNumbers keys = key_numbers();
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 shift = pair_of(numbers.shift, i);
      float2 factor{kQueryFactor * kKeyFactor, kQueryFactor * kKeyFactor};
      if constexpr (kOwn) factor = pair_of(numbers.factor, i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[i + e];
        const bool hidden = kOwn && score == minus_infinity();
        if constexpr (kOwn) score *= keys.factor[e / 2];
        const float weight = ptx::approximate_exp2(
            fmaf(score, e % 2 == 0 ? factor.x : factor.y, -(e % 2 == 0 ? shift.x : shift.y)));
        score = hidden ? 0 : weight;
      }
    }
  }
  // W as planes for dV.
  __device__ __forceinline__ void split_for_values(const float (&weights)[kScores],
                                                   Planes& planes) const {
    if constexpr (!kOwn) {
      split_weights(weights, planes[0], planes[1]);
    } else {
      float scaled[kScores];
#pragma unroll
      for (int i = 0; i < kScores; ++i) scaled[i] = weights[i];
      split_by_key(scaled, planes);
    }
  }
  // What products with them are to be multiplied by, with the step's scale.
  __device__ __forceinline__ RowFactors value_factors(float scale) const {
    return key_factors(scale * kValueFactor);
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
    const KeyNumbers keys = key_numbers();
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 delta = pair_of(numbers.delta, i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float factor =
            kOwn ? keys.value_factor[e / 2] : power_of_minus(kOfPlanes - kCommonValueExponent);
        if constexpr (C.dropout)
          factor = float_bits(weights[i + e]) >> 31 != 0 ? 0 : factor * rescale;
        const float weight = C.dropout ? fabsf(weights[i + e]) : weights[i + e];
        const float u = weight * fmaf(products[i + e], factor, -(e % 2 == 0 ? delta.x : delta.y));
        products[i + e] = kOwn && weight == 0 ? 0 : u;
      }
    }
  }
  // u as planes for dK, and to shared memory for dQ. Returns what products with the former are to
  // be multiplied by, without the step's scale; if kOwn, each key has its own (key_factors).
  // `before_store` runs before the first store.
  template <class BeforeStore>
  __device__ __forceinline__ float split_ds(const QueryNumbers& numbers, int buffer,
                                            float (&u)[kScores], Planes& planes,
                                            const BeforeStore& before_store) const {
    if constexpr (!kOwn) {
      const Power power = power_of(u);
      split_times(power.scale, u, planes);
      before_store();
      store_ds(planes[0], planes[1], buffer, power.factor * kKeyFactor);
      return power.factor * kQueryFactor;
    } else {
      // A NaN of the numbers is in u already where the pair is seen; elsewhere u is 0.
      KeyNumbers keys = key_numbers();
#pragma unroll
      for (float& factor : keys.factor) factor = fmaxf(factor, 0);
#pragma unroll
      for (int i = 0; i < kScores; ++i) u[i] *= keys.factor[i / 2 % 2];
      before_store();
      find_largest_of_queries(u);
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        const uint2 largest = largest_of_pair(i);
        const float scale[2] = {Power(largest.x).scale, Power(largest.y).scale};
#pragma unroll
        for (int e = 0; e < 4; ++e) u[i + e] *= scale[e % 2];
      }
      split_weights(u, planes[0], planes[1]);
      store_ds(planes[0], planes[1], buffer, 1);
      // From u times the key's numbers to u times the query's.
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        const float2 factor = pair_of(numbers.factor, i);
        const uint2 largest = largest_of_pair(i);
        const float of_query[2] = {Power(largest.x).factor * fmaxf(factor.x, 0),
                                   Power(largest.y).factor * fmaxf(factor.y, 0)};
#pragma unroll
        for (int e = 0; e < 4; ++e) u[i + e] *= inverse(keys.factor[e / 2]) * of_query[e % 2];
      }
      split_by_key(u, planes);
      return 1;
    }
  }
  // The inverse of a power of two.
  static __device__ __forceinline__ float inverse(float power) {
    return float_from_bits(0x7f000000u - float_bits(power));
  }
  // The power of two that brings numbers up to one of these bits below 2^15, and its inverse.
  struct Power {
    float scale, factor;

    explicit __device__ __forceinline__ Power(uint32_t largest) {
      const uint32_t exponent = clamp(largest >> 23, 27u, 240u);
      scale = float_from_bits((127 + 14 + 127 - exponent) << 23);
      factor = float_from_bits((exponent - 14) << 23);
    }
  };
  // Of the consumer's numbers.
  __device__ __forceinline__ Power power_of(const float (&numbers)[kScores]) const {
    float most = 0;
#pragma unroll
    for (const float x : numbers) most = fmaxf(most, fabsf(x));
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, float_bits(most));
    uint4& largest = shared_.largest(thread_.consumer);
    if (thread_.lane == 0) reinterpret_cast<uint32_t*>(&largest)[thread_.warp] = of_warp;
    ptx::named_barrier_sync(kOwnWarps + thread_.consumer, 128);
    const uint4 all = largest;
    return Power(max(max(all.x, all.y), max(all.z, all.w)));
  }
  // Of each query over the consumer's keys, to shared memory: a row that sees large numbers must
  // not take the bits of one that does not. All warps of the consumer read them before the barrier
  // of the step; after it, the warp that clears them, and beyond dim 64 the value consumer, for
  // which before_store() waits (kDsRead).
  __device__ __forceinline__ void find_largest_of_queries(const float (&numbers)[kScores]) const {
    uint32_t* const largest = shared_.largest_of_queries(thread_.consumer);
    __syncwarp();
    if (thread_.lane < 16) largest[16 * thread_.warp + thread_.lane] = 0;
    ptx::named_barrier_sync(kOwnWarps + thread_.consumer, 128);
    // Eight lanes have the same queries, of which each reduces an eighth.
    float most[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores; i += 4)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        most[i / 2 + e] = fmaxf(fabsf(numbers[i + e]), fabsf(numbers[i + e + 2]));
    int own = keep_half<kScores / 4>(most, 4);
    own += keep_half<kScores / 8>(most, 8);
    own += keep_half<kScores / 16>(most, 16);
#pragma unroll
    for (int e = 0; e < kScores / 16; ++e)
      atomicMax(largest + query_of(2 * own) + e, float_bits(most[e]));
    ptx::named_barrier_sync(kOwnWarps + thread_.consumer, 128);
  }
  // Of 2 kCount numbers, the thread keeps the first or last kCount, with those of the lane that
  // keeps the others. Returns the number of the first.
  template <int kCount>
  __device__ __forceinline__ int keep_half(float (&most)[kScores / 2], int lane_bit) const {
    const bool last = (thread_.lane & lane_bit) != 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float other = last ? most[i] : most[i + kCount];
      most[i] =
          fmaxf(last ? most[i + kCount] : most[i], __shfl_xor_sync(0xffffffffu, other, lane_bit));
    }
    return last ? kCount : 0;
  }
  __device__ __forceinline__ int query_of(int i) const {
    return 2 * (thread_.lane % 4) + i / 4 * 8 + i % 2;
  }
  // Of the thread's two queries of every eight, where its elements i are.
  __device__ __forceinline__ uint2 largest_of_pair(int i) const {
    return *reinterpret_cast<const uint2*>(shared_.largest_of_queries(thread_.consumer) +
                                           query_of(i));
  }
  // Numbers as planes, those of each of the thread's two keys times a power of two of its own,
  // whose largest number is in shared memory from here on: registers are scarce.
  __device__ __forceinline__ void split_by_key(float (&numbers)[kScores], Planes& planes) const {
    float most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(numbers[i]));
    const uint32_t largest[2] = {float_bits(quad_max(most[0])), float_bits(quad_max(most[1]))};
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (thread_.lane % 4 == 0) largest_of_key(r) = largest[r];
    __syncwarp();
    const float scale[2] = {Power(largest[0]).scale, Power(largest[1]).scale};
#pragma unroll
    for (int i = 0; i < kScores; ++i) numbers[i] *= scale[i / 2 % 2];
    split_weights(numbers, planes[0], planes[1]);
  }
  __device__ __forceinline__ uint32_t& largest_of_key(int r) const {
    return shared_.largest_of_keys(thread_.consumer)[thread_.warp_key() + thread_.lane / 4 + 8 * r];
  }
  // What products with planes of keys are to be multiplied by. `of_all`: the factor that keys
  // share.
  __device__ __forceinline__ RowFactors key_factors(float of_all) const {
    if constexpr (!kOwn) return {{of_all, of_all}};
    const RowFactors own{{Power(largest_of_key(0)).factor, Power(largest_of_key(1)).factor}};
    return own.times(of_all);
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
};

}  // namespace perseid::internal::cuda
