// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Scores of attention backward on sm_90a in the registers of a consumer, whatever is made of them:
// weights from scores, and gradients of scores from weights and gradients of weights.
//
// Scores are transposed, S^T = K Q^T, 64 keys x C.queries, so that a thread has parts of two keys
// (ptx/wgmma.hpp) and as left operands of the next products they stay in registers.
#pragma once

#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
class BackwardScores {
 protected:
  static constexpr int kScores = C.queries / 2;  // a thread's part of 64 keys x C.queries
  static constexpr bool kBiased = C.bias != DType::kNone;

  __device__ __forceinline__ BackwardScores(const AttentionBackwardProblem& arguments, int number)
      : problem_(arguments),
        number_(number),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // The consumer's first key in the tile.
  __device__ __forceinline__ int first_key() const { return C.split_keys ? 64 * number_ : 0; }

  // The warp needs no more of what the barrier guards.
  __device__ __forceinline__ void leave(uint32_t barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(barrier);
  }

  // d = A B^T, plus d where `accumulate`, for 64 keys of the tile and the queries of a step, both
  // of kDim columns.
  template <int kDim>
  __device__ __forceinline__ void begin_scores(float (&d)[kScores], uint32_t keys, uint32_t queries,
                                               bool accumulate = false) const {
    const uint64_t left = ptx::make_descriptor(keys + first_key() * 128);
    const uint64_t right = ptx::make_descriptor(queries);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      ptx::Wgmma<C.queries, C.dtype>::mma_ss(
          d, ptx::advance_descriptor(left, k / 4 * C.keys() * 128 + k % 4 * 32),
          ptx::advance_descriptor(right, k / 4 * C.queries * 128 + k % 4 * 32),
          accumulate || k > 0);
    ptx::wgmma_commit();
  }

  // The warp's first key in the tile, and the thread's in the sequence.
  __device__ __forceinline__ int warp_key() const { return first_key() + 16 * warp_; }
  __device__ __forceinline__ int own_key(const BackwardTile& tile) const {
    return tile.key + warp_key() + lane_ / 4;
  }

  // Which weights dropout drops: of eight queries n, the thread's key r of two and query c of two
  // bit 8 - n % 8 + 16 r of bits[n / 8][c].
  struct Dropped {
    uint32_t bits[(C.queries + 63) / 64][2];
  };
  // Neither needs scores nor waits for anything: there is time for it while products are under way.
  // Lanes four apart have keys side by side, whose bytes come from the same calls of Philox: each
  // makes half of them.
  __device__ __forceinline__ void find_dropped(const BackwardTile& tile, const BackwardStep& step,
                                               Dropped& dropped) const {
    if constexpr (!C.dropout) return;
    const Dropout dropout = dropout_of(problem_);
    const int64_t batch_head = int64_t{tile.batch} * problem_.heads + step.head;
    const int64_t column = own_key(tile) / kDropoutTileColumns;
    const int64_t row = step.block * (C.queries / kDropoutTileRows);
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
          const uint32_t bytes = warp_ % 2 == 0 ? block.word[2 * h] : block.word[2 * h + 1];
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

  // Scores to weights: 2^(scale_log2 * score + bias - lse_log2), and 0 where the query does not see
  // the key. With a bias that is in shared memory, or else (`tiled`) read from where it is; kBegun:
  // scores began with it.
  template <bool kBegun = false>
  __device__ __forceinline__ void scores_to_weights(float (&scores)[kScores],
                                                    const BackwardTile& tile,
                                                    const BackwardStep& step, const float* lse_log2,
                                                    const BiasTile<C>& bias, bool tiled,
                                                    const Dropped& dropped) const {
    const int query = step.block * C.queries, first = query + 2 * (lane_ % 4);
    if constexpr (kBiased && !kBegun) add_bias(scores, tile, step, lse_log2, bias, tiled);
    const bool past = kBiased && query + C.queries > tile.q_len;
    if (past || tile.key + C.keys() > tile.kv_len ||
        (C.right && query + tile.right < tile.key + C.keys()) ||
        (C.left && query + C.queries - 1 + tile.left > tile.key)) {
      int begin[2], end[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = own_key(tile) + 8 * r;
        begin[r] = key - tile.right + 1 - first;
        end[r] = key >= tile.kv_len ? 0 : C.left ? key - tile.left + 1 - first : C.queries;
        if (past) end[r] = min(end[r], tile.q_len - first);
      }
      mask_scores<C.right>(scores, begin, end);
    }
    const float* lse = lse_log2 + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 shift = *reinterpret_cast<const float2*>(lse + 2 * i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (C.visible) {
          const int q = first + 2 * i + k % 2, key = own_key(tile) + k / 2 * 8;
          if (q < tile.q_len && key < tile.kv_len &&
              !is_visible<true>(problem_, tile.batch, step.head, q, key))
            scores[i + k] = minus_infinity();
        }
        // With a bias that was added it is a power of two already.
        const float power =
            kBegun    ? scores[i + k] * problem_.scale_log2
            : kBiased ? scores[i + k]
                      : fmaf(scores[i + k], problem_.scale_log2, k % 2 == 0 ? -shift.x : -shift.y);
        scores[i + k] = ptx::approximate_exp2(power);
      }
    }
    if constexpr (C.dropout) drop(scores, dropped);
  }
  // What scores begin with, so that nothing is to be added when they are there: the bias less
  // lse_log2, over their scale.
  __device__ __forceinline__ void begin_with_bias(float (&scores)[kScores], const float* lse_log2,
                                                  const BiasTile<C>& bias) const {
    const float* lse = lse_log2 + 2 * (lane_ % 4);
    const float unscale = 1 / problem_.scale_log2;
    float eight[8];
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      bias.load(warp_key(), lane_, i, eight);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float2 shift = *reinterpret_cast<const float2*>(lse + 2 * (i + e / 4 * 4));
        scores[i + e] =
            fmaf(eight[e], unscale * kLog2E, -unscale * (e % 2 == 0 ? shift.x : shift.y));
      }
    }
  }
  // scale_log2 * score + bias - lse_log2, as powers of two. What is not of the sequence is masked
  // afterwards.
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
        scores[i + e] = fmaf(scores[i + e], problem_.scale_log2, other);
      }
    };
    float eight[8];
    // Asked once: a branch for each eight would keep their loads from running ahead.
    if (tiled) {
#pragma unroll
      for (int i = 0; i < kScores; i += 8) {
        bias.load(warp_key(), lane_, i, eight);
        add(i, eight);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kScores; i += 8) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int q = first + 2 * i + e / 4 * 8 + e % 2, key = own_key(tile) + e / 2 % 2 * 8;
          eight[e] = 0;
          if (q < tile.q_len && key < tile.kv_len)
            eight[e] = bias_of<C.bias>(problem_, tile.batch, step.head, q, key);
        }
        add(i, eight);
      }
    }
  }
  // Weights that dropout drops become negative: they are still wanted.
  __device__ __forceinline__ void drop(float (&weights)[kScores], const Dropped& dropped) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int group = i / 4, bit = 8 - group % 8 + i / 2 % 2 * 16;
      const uint32_t sign = dropped.bits[group / 8][i % 2] << (31 - bit) & 0x80000000u;
      weights[i] = float_from_bits(__float_as_uint(weights[i]) ^ sign);
    }
  }
  // As the left operand of the product with gradients of out.
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

  // use(i, eight): weights * (d - delta) of scores i to i + 7.
  template <class Use>
  __device__ __forceinline__ void weights_to_ds(const float (&weights)[kScores],
                                                const float (&d)[kScores], const float* delta,
                                                Use&& use) const {
    const float factor = dropout_factor<C.dropout>(problem_);
    const auto compute_ds = [&](int i, float shift) {
      if constexpr (C.dropout)
        return fabsf(weights[i]) * ((weights[i] > 0 ? d[i] * factor : 0) - shift);
      else
        return weights[i] * (d[i] - shift);
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
      use(i, eight);
    }
  }
  // A pair that is masked has no part in the gradient of bias, whatever its value holds.
  __device__ __forceinline__ static void clear_masked(const float (&weights)[kScores], int i,
                                                      float (&eight)[8]) {
    if constexpr (C.masked()) {
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = weights[i + e] == 0 ? 0 : eight[e];
    }
  }

  const AttentionBackwardProblem& problem_;
  const int number_, warp_, lane_;
};

}  // namespace perseid::internal::cuda
