// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The score chain of attention backward on sm_90a, on fragments in the registers of a consumer:
// P from S (scale, bias, mask, lse, dropout) and dS from P and dP.
//
// Scores are transposed, S^T = K Q^T, 64 keys x C.queries: a thread has elements of two keys
// (ptx/wgmma.hpp), and rounded fragments are left operands of the next products as they are.
#pragma once

#include "cuda/device/attention/score_rules.hpp"
#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

// The elements of a thread's fragment that dropout drops: of eight queries n, the thread's key r of
// two and query c of two are bit 8 - n % 8 + 16 r of bits[n / 8][c].
template <AttentionBackwardConfig C>
struct DroppedBits {
  uint32_t bits[(C.queries + 63) / 64][2];
};

template <AttentionBackwardConfig C>
class BackwardScores {
  static constexpr int kScores = C.thread_scores();
  static constexpr bool kBiased = C.bias != DType::kNone;
  using M = Modifier<C.modifier, float>;

 public:
  __device__ __forceinline__ BackwardScores(const AttentionBackwardProblem& problem,
                                            const ConsumerThread<C>& thread)
      : problem_(problem), thread_(thread), lane_(thread.lane) {}

  // Needs no scores and waits for nothing, so it fits under the first products of a step. Lanes
  // four apart have adjacent keys, whose bytes come from the same calls of Philox: each computes
  // half.
  __device__ __forceinline__ void find_dropped(const BackwardTile& tile, const BackwardStep& step,
                                               DroppedBits<C>& dropped) const {
    if constexpr (!C.dropout) return;
    const Dropout dropout = dropout_of(problem_);
    const int64_t batch_head = int64_t{tile.batch} * problem_.heads + step.head;
    const int64_t column = thread_.own_key(tile) / kDropoutTileColumns;
    const int64_t row = whole_row<C>(problem_, tile, step.block * C.queries) / kDropoutTileRows;
    // Carries into the bit above a byte that is not below the threshold.
    const uint32_t rest = (256 - problem_.dropout_threshold) * 0x10001u;
    const bool odd = lane_ / 4 % 2 != 0;
    const auto lane = static_cast<uint32_t>((2 * (lane_ % 4) + (odd ? 1 : 0)) * 4 + lane_ / 8);
#pragma unroll
    for (int w = 0; w < C.queries / 64; ++w) {
      uint32_t own = 0, others = 0;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const PhiloxBlock block = philox4x32(
            dropout_counter(dropout, batch_head, row + 4 * w + t, column, lane),
            static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          constexpr uint32_t kBytes = 0xff00ff, kCarries = 0x1000100;
          const uint32_t bytes = thread_.warp % 2 == 0 ? block.word[2 * h] : block.word[2 * h + 1];
          const uint32_t even_key = ((bytes & kBytes) + rest & kCarries) >> (2 * t + h);
          const uint32_t odd_key = ((bytes >> 8 & kBytes) + rest & kCarries) >> (2 * t + h);
          own |= odd ? odd_key : even_key;
          others |= odd ? even_key : odd_key;
        }
      }
      others = __shfl_xor_sync(0xffffffffu, others, 4);
      dropped.bits[w][0] = odd ? others : own;
      dropped.bits[w][1] = odd ? own : others;
    }
  }

  // Scores of keys that the query does not see, or behind the last one, become -inf, or weights
  // `hidden`.
  __device__ __forceinline__ void hide_unseen(float (&scores)[kScores], const BackwardTile& tile,
                                              const BackwardStep& step,
                                              float hidden = minus_infinity()) const {
    if (!hides_any(tile, step)) return;
    uint32_t seen[2];
    find_seen(tile, step, seen);
    hide_scores(scores, seen, hidden);
  }
  // The same of P^T or dS^T, rounded, which become 0 whatever lse, delta and the products are:
  // those of large numbers in hidden rows overflow.
  __device__ __forceinline__ void hide_unseen_pairs(uint32_t (&pairs)[kScores / 2],
                                                    const BackwardTile& tile,
                                                    const BackwardStep& step) const {
    if constexpr (!C.masked() || C.visible) return;
    if (!hides_any(tile, step)) return;
    uint32_t seen[2];
    find_seen(tile, step, seen);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int element = i / 2 * 2;
      if ((seen[i % 2] & 1u << element) == 0) pairs[i] &= 0xffff0000u;
      if ((seen[i % 2] & 2u << element) == 0) pairs[i] &= 0xffffu;
    }
  }
  // S^T to P^T: 2^(scale_log2 * score + bias - lse_log2); negative where dropout drops it, since dS
  // needs the weight; kHidden where the query does not see the key, whatever score and lse are. The
  // bias is in shared memory where `tiled`, else in global memory; kFromBias: the accumulators of
  // S^T began with it (begin_with_bias).
  template <bool kFromBias = false>
  __device__ __forceinline__ void scores_to_weights(float (&scores)[kScores],
                                                    const BackwardTile& tile,
                                                    const BackwardStep& step, const float* lse_log2,
                                                    const BiasTile<C>& bias, bool tiled,
                                                    const DroppedBits<C>& dropped) const {
    static_assert(M::kIdentity || !kFromBias);
    if constexpr (kBiased && !kFromBias) add_bias(scores, tile, step, lse_log2, bias, tiled);
    if constexpr (!C.visible) hide_unseen(scores, tile, step);
    const float* lse = lse_log2 + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 shift = *reinterpret_cast<const float2*>(lse + 2 * i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // With a bias, add_bias has made it a power of two already.
        const float power =
            kFromBias ? scores[i + k] * problem_.scale_log2
            : kBiased ? scores[i + k]
                      : score_log2<FloatArithmetic>(scores[i + k], problem_.scale_log2,
                                                    k % 2 == 0 ? -shift.x : -shift.y, modifier());
        scores[i + k] = weight_of<C.dropout>(power);
      }
    }
    if constexpr (C.dropout) drop(scores, dropped);
    if constexpr (C.visible) {
      hide_unseen(scores, tile, step, kHidden);
      hide_invisible(scores, tile, step);
    }
  }
  // Initial accumulators of S^T, so that nothing is added afterwards: (bias - lse) over scale.
  __device__ __forceinline__ void begin_with_bias(float (&scores)[kScores], const float* lse_log2,
                                                  const BiasTile<C>& bias) const {
    const float* lse = lse_log2 + 2 * (lane_ % 4);
    const float unscale = 1 / problem_.scale_log2;
    float eight[8];
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      bias.load_fragment(thread_.warp_key(), lane_, i, eight);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float2 shift = *reinterpret_cast<const float2*>(lse + 2 * (i + e / 4 * 4));
        scores[i + e] =
            fmaf(eight[e], unscale * kLog2E, -unscale * (e % 2 == 0 ? shift.x : shift.y));
      }
    }
  }
  // Dropped weights become negative.
  __device__ __forceinline__ void drop(float (&weights)[kScores],
                                       const DroppedBits<C>& dropped) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int group = i / 4, bit = 8 - group % 8 + i / 2 % 2 * 16;
      const uint32_t sign = dropped.bits[group / 8][i % 2] << (31 - bit) & 0x80000000u;
      weights[i] = float_from_bits(__float_as_uint(weights[i]) ^ sign);
    }
  }
  // P^T of kept weights, rounded, as the left operand of dV.
  __device__ __forceinline__ void round_kept(const float (&scores)[kScores],
                                             uint32_t (&weights)[kScores / 2]) const {
    if constexpr (C.dropout) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i)
        weights[i] = round_pair<C.dtype>(fmaxf(scores[2 * i], 0), fmaxf(scores[2 * i + 1], 0));
    } else {
      round_weights<C.dtype>(scores, weights);
    }
  }

  // dS of element i of the fragment to the gradient of the scaled product, for dQ and dK. The score
  // modifier's derivative needs the modified score, which follows from weight, lse and bias.
  __device__ __forceinline__ float grad_product_at(int i, float ds, float weight,
                                                   const BackwardTile& tile,
                                                   const BackwardStep& step,
                                                   const float* lse_log2) const {
    if constexpr (M::kIdentity) return ds;
    float modified = ptx::approximate_log2(fabsf(weight)) + lse_log2[query_at(i)];
    if constexpr (kBiased)
      modified -=
          kLog2E * global_bias(step.block * C.queries + query_at(i), key_at(tile, i), tile, step);
    return weight == 0 ? ds : grad_product<FloatArithmetic>(ds, modified, modifier());
  }
  // dS^T: use(i, eight) gets weights * (d - delta) of elements i to i + 7, d being dP^T.
  template <class Use>
  __device__ __forceinline__ void weights_to_ds(const float (&weights)[kScores],
                                                const float (&d)[kScores], const float* delta,
                                                Use&& use) const {
    const float factor = dropout_factor<C.dropout>(problem_);
    const auto compute_ds = [&](int i, float shift) {
      const float kept = !C.dropout ? d[i] : weights[i] > 0 ? d[i] * factor : 0;
      return grad_score<FloatArithmetic>(C.dropout ? fabsf(weights[i]) : weights[i], kept, shift);
    };
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      float eight[8];
#pragma unroll
      for (int e = 0; e < 8; e += 4) {
        const float2 shift =
            *reinterpret_cast<const float2*>(delta + 2 * (lane_ % 4) + 2 * (i + e));
#pragma unroll
        for (int k = 0; k < 4; ++k)
          eight[e + k] = compute_ds(i + e + k, k % 2 == 0 ? shift.x : shift.y);
      }
      if constexpr (C.visible) {
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (is_hidden(weights[i + e])) eight[e] = 0;
      }
      use(i, eight);
    }
  }
  // A masked pair adds nothing to the gradient of bias, whatever its value holds.
  __device__ __forceinline__ static void clear_masked(const float (&weights)[kScores], int i,
                                                      float (&eight)[8]) {
    if constexpr (C.masked()) {
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = weights[i + e] == 0 ? 0 : eight[e];
    }
  }

 private:
  __device__ __forceinline__ M modifier() const { return {problem_.modifier}; }

  // ---- Masks ----

  // The weight of a hidden pair: 0, but where `visible` hides pairs, which only weights remember,
  // -0. A dropped weight that underflows has these bits too; its dS is 0 either way, unless delta
  // is not finite.
  static constexpr float kHidden = C.visible ? -0.0f : 0.0f;
  __device__ __forceinline__ static bool is_hidden(float weight) {
    return float_bits(weight) == float_bits(kHidden);
  }

  // Whether queries of the step lie behind the last one, where bias lets them have weights.
  __device__ __forceinline__ static bool passes_queries(const BackwardTile& tile,
                                                        const BackwardStep& step) {
    return kBiased && first_query<C>(tile, step.block) + C.queries > tile.q_len;
  }
  // Whether find_seen() may find a hidden pair in the step.
  __device__ __forceinline__ bool hides_any(const BackwardTile& tile,
                                            const BackwardStep& step) const {
    const int query = first_query<C>(tile, step.block);
    const int gap = gap_of_block<C>(problem_, tile, step.block);
    return passes_queries(tile, step) || tile.key + C.keys() > tile.kv_len ||
           (C.right && query + tile.right + gap < tile.key + C.keys()) ||
           (C.left && query + C.queries - 1 + tile.left + gap > tile.key);
  }
  // Of the thread's two keys, the elements whose query sees the key, as bits: masks of rows and the
  // last key.
  __device__ __forceinline__ void find_seen(const BackwardTile& tile, const BackwardStep& step,
                                            uint32_t (&seen)[2]) const {
    const int query = first_query<C>(tile, step.block), first = query + 2 * (lane_ % 4);
    const int gap = gap_of_block<C>(problem_, tile, step.block);
    const int left = tile.left + gap, right = tile.right + gap;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = thread_.own_key(tile) + 8 * r;
      const int begin = key - right + 1 - first;
      int end = key >= tile.kv_len ? 0 : C.left ? key - left + 1 - first : C.queries;
      if (passes_queries(tile, step)) end = min(end, tile.q_len - first);
      seen[r] = elements_between<C.right, kScores / 2>(begin, end);
    }
  }
  // Weights of pairs inside of the sequence that the visible mask hides.
  __device__ __forceinline__ void hide_invisible(float (&weights)[kScores],
                                                 const BackwardTile& tile,
                                                 const BackwardStep& step) const {
    const int first = step.block * C.queries;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int query = first + query_at(i), key = key_at(tile, i);
      if (query < tile.q_len && key < tile.kv_len &&
          !is_visible<true>(problem_, tile.batch, step.head, query, key))
        weights[i] = kHidden;
    }
  }

  // ---- Element i of the thread's fragment ----

  // The query counts in the step.
  __device__ __forceinline__ int query_at(int i) const {
    return 2 * (lane_ % 4) + i / 4 * 8 + i % 2;
  }
  __device__ __forceinline__ int key_at(const BackwardTile& tile, int i) const {
    return thread_.own_key(tile) + i / 2 % 2 * 8;
  }

  // ---- Bias ----

  // 0 outside of the sequence.
  __device__ __forceinline__ float global_bias(int query, int key, const BackwardTile& tile,
                                               const BackwardStep& step) const {
    if (query >= tile.q_len || key >= tile.kv_len) return 0;
    return bias_of<C.bias>(problem_, tile.batch, step.head, query, key);
  }
  // scale_log2 * score + bias - lse_log2. Elements outside of the sequence are masked afterwards.
  __device__ __forceinline__ void add_bias(float (&scores)[kScores], const BackwardTile& tile,
                                           const BackwardStep& step, const float* lse_log2,
                                           const BiasTile<C>& bias, bool tiled) const {
    const int first = step.block * C.queries + 2 * (lane_ % 4);
    const float* lse = lse_log2 + 2 * (lane_ % 4);
    const auto add = [&](int i, const float(&eight)[8]) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float2 shift = *reinterpret_cast<const float2*>(lse + 2 * (i + e / 4 * 4));
        const float other = fmaf(eight[e], kLog2E, e % 2 == 0 ? -shift.x : -shift.y);
        scores[i + e] =
            score_log2<FloatArithmetic>(scores[i + e], problem_.scale_log2, other, modifier());
      }
    };
    float eight[8];
    // One branch for all: a branch for each eight elements would keep their loads from overlapping.
    if (tiled) {
#pragma unroll
      for (int i = 0; i < kScores; i += 8) {
        bias.load_fragment(thread_.warp_key(), lane_, i, eight);
        add(i, eight);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kScores; i += 8) {
#pragma unroll
        for (int e = 0; e < 8; ++e)
          eight[e] = global_bias(first + 2 * i + e / 4 * 8 + e % 2, key_at(tile, e), tile, step);
        add(i, eight);
      }
    }
  }
  const AttentionBackwardProblem& problem_;
  const ConsumerThread<C> thread_;
  const int lane_;
};

}  // namespace perseid::internal::cuda
