// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the consumers of attention backward on sm_90a have in common, whichever way they share their
// work: weights from scores, gradients of scores to shared memory, the sums of grad_query, and the
// gradients of keys and values on their way out.
//
// Scores are transposed, S^T = K Q^T, 64 keys x C.queries, so that a thread has parts of two keys
// (ptx/products.hpp) and as left operands of the next products they stay in registers.
#pragma once

#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/products.hpp"
#include "cuda/device/sm90/attention_backward_mend.hpp"
#include "cuda/device/sm90/attention_backward_tiles.hpp"

namespace perseid::cuda {

template <AttentionBackwardConfig C>
class BackwardParts {
 protected:
  static constexpr int kScores = C.queries / 2;  // a thread's part of 64 keys x C.queries

  __device__ __forceinline__ BackwardParts(const AttentionBackwardArguments& arguments,
                                           const BackwardShared<C>& shared,
                                           const BackwardTile& tile, int number)
      : a_(arguments),
        shared_(shared),
        tile_(tile),
        number_(number),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // The consumer's first key in the tile.
  __device__ __forceinline__ int first_key() const { return C.halves ? 64 * number_ : 0; }

  // The warp needs no more of what the barrier guards.
  __device__ __forceinline__ void leave(uint32_t barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::phase_arrive(barrier);
  }

  // d = A B^T for 64 keys of the tile and the queries of a step, both of kDim columns.
  template <int kDim>
  __device__ __forceinline__ void begin_scores(float (&d)[kScores], uint32_t keys,
                                               uint32_t queries) const {
    const uint64_t left = ptx::matrix_at(keys + first_key() * 128);
    const uint64_t right = ptx::matrix_at(queries);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      ptx::Product<C.queries, C.dtype>::shared(
          d, ptx::matrix_after(left, k / 4 * C.keys() * 128 + k % 4 * 32),
          ptx::matrix_after(right, k / 4 * C.queries * 128 + k % 4 * 32), k > 0);
    ptx::products_commit();
  }

  // d += A B for weights or gradients of scores A in registers and the rows of a step, in `rows`.
  template <int kDim>
  __device__ __forceinline__ void begin_gradient(float (&d)[kDim / 2],
                                                 const uint32_t (&left)[kScores / 2],
                                                 uint32_t rows) const {
    const uint64_t right = ptx::matrix_at(rows, C.queries * 128);
#pragma unroll
    for (int k = 0; k < C.queries / 16; ++k)
      ptx::Product<kDim, C.dtype>::registers(d, left + 4 * k,
                                             ptx::matrix_after(right, k * 16 * 128), true);
    ptx::products_commit();
  }

  // One piece of grad_query of this step: the gradients of its scores times the tile's keys.
  __device__ __forceinline__ void begin_piece(float (&d)[32], int parity, int piece) const {
    const uint64_t left =
        ptx::matrix_at(shared_.scores(parity) + piece / C.key_chunks() * C.keys() * 128);
    const uint64_t right = ptx::matrix_at(shared_.key() + piece % C.key_chunks() * C.keys() * 128);
#pragma unroll
    for (int k = 0; k < C.keys() / 16; ++k)
      ptx::Product<64, C.dtype>::template shared<true, true>(
          d, ptx::matrix_after(left, k * 16 * 128), ptx::matrix_after(right, k * 16 * 128), k > 0);
    ptx::products_commit();
  }

  // The thread's first key.
  __device__ __forceinline__ int own_key() const {
    return tile_.key + first_key() + 16 * warp_ + lane_ / 4;
  }

  // Scores to weights: 2^(scale_log2 * score + bias - lse_log2), and 0 where the query does not see
  // the key.
  __device__ __forceinline__ void weigh_scores(float (&scores)[kScores], const BackwardStep& step,
                                               int stage) const {
    const int query = step.block * C.queries, first = query + 2 * (lane_ % 4);
    if (tile_.key + C.keys() > tile_.kv_len ||
        (C.right && query + tile_.right < tile_.key + C.keys()) ||
        (C.left && query + C.queries - 1 + tile_.left > tile_.key)) {
      int begin[2], end[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = own_key() + 8 * r;
        begin[r] = key - tile_.right + 1 - first;
        end[r] = key >= tile_.kv_len ? 0 : C.left ? key - tile_.left + 1 - first : C.queries;
      }
      mask_scores<C.right>(scores, begin, end);
    }
    const float* lse = shared_.lse_log2(stage) + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 shift = *reinterpret_cast<const float2*>(lse + 2 * i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float other = k % 2 == 0 ? -shift.x : -shift.y;
        if constexpr (C.visible || C.bias != DType::kNone) {
          const int q = first + 2 * i + k % 2, key = own_key() + k / 2 * 8;
          if (q < tile_.q_len && key < tile_.kv_len) {
            if (!is_visible<C.visible>(a_, tile_.batch, step.head, q, key))
              scores[i + k] = minus_infinity();
            other += bias_log2<C.bias>(a_, tile_.batch, step.head, q, key);
          }
        }
        scores[i + k] = ptx::approximate_exp2(fmaf(scores[i + k], a_.scale_log2, other));
      }
    }
    if constexpr (C.dropout) drop(scores, step);
  }
  // Weights that dropout drops become negative: they are still wanted.
  __device__ __forceinline__ void drop(float (&weights)[kScores], const BackwardStep& step) const {
    const Dropout dropout = dropout_of(a_);
    const int64_t batch_head = int64_t{tile_.batch} * a_.heads + step.head;
    const int64_t column = own_key() / kDropoutTileColumns;
    const int64_t row = step.block * (C.queries / kDropoutTileRows);
    const uint32_t threshold = a_.dropout_threshold;
#pragma unroll
    for (int t = 0; t < C.queries / kDropoutTileRows; ++t)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const auto lane = static_cast<uint32_t>((2 * (lane_ % 4) + c) * 4 + lane_ / 8);
        const PhiloxBlock block = philox4x32(
            dropout_counter(dropout, batch_head, row + t, column, lane),
            static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t bytes =
              (warp_ % 2 == 0 ? block.word[2 * h] : block.word[2 * h + 1]) >> (lane_ / 4 % 2 * 8);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float& weight = weights[4 * (2 * t + h) + 2 * r + c];
            if ((bytes >> (16 * r) & 0xffu) >= threshold) weight = -weight;
          }
        }
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

  // gradients[] = weights * (d - delta), rounded.
  __device__ __forceinline__ void grade_scores(const float (&weights)[kScores],
                                               const float (&d)[kScores], int stage,
                                               uint32_t (&gradients)[kScores / 2]) const {
    const float* delta = shared_.delta(stage) + 2 * (lane_ % 4);
    const float factor = dropout_factor<C.dropout>(a_);
    const auto grade = [&](int i, float shift) {
      if constexpr (C.dropout)
        return fabsf(weights[i]) * ((weights[i] > 0 ? d[i] * factor : 0) - shift);
      else
        return weights[i] * (d[i] - shift);
    };
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 shift = *reinterpret_cast<const float2*>(delta + 2 * i);
#pragma unroll
      for (int k = 0; k < 4; k += 2)
        gradients[(i + k) / 2] =
            round_pair<C.dtype>(grade(i + k, shift.x), grade(i + k + 1, shift.y));
    }
  }

  // To shared memory, as the left operand of pieces, whose rows are queries.
  __device__ __forceinline__ void share_gradients(const uint32_t (&gradients)[kScores / 2],
                                                  int parity) const {
    const int row = first_key() + 16 * warp_ + lane_ % 16;
#pragma unroll
    for (int j = 0; j < C.queries / 8; j += 2) {
      const int piece = j % 8 + lane_ / 16;
      ptx::store_matrices(
          shared_.scores(parity) + (j / 8 * C.keys() + row) * 128 + ((piece ^ row % 8) << 4),
          gradients[2 * j], gradients[2 * j + 1], gradients[2 * j + 2], gradients[2 * j + 3]);
    }
    ptx::fence_for_engines();
  }

  // ---- Sums of grad_query ----

  __device__ __forceinline__ void add_piece(const float (&d)[32], const BackwardStep& step,
                                            int piece) const {
    float* to =
        a_.sums +
        (block_number<C>(a_, tile_, step.head, step.block) * C.pieces() + piece) * kPieceFloats +
        warp_ * 1024 + lane_ * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      ptx::add_four(to + 128 * j, d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
  }
  // Around the summands of a step, where their order counts.
  __device__ __forceinline__ void await_turn() const {
    if constexpr (C.deterministic) ptx::named_sync(kTurnComes + number_, kTurnThreads);
  }
  __device__ __forceinline__ void end_turn() const {
    if constexpr (C.deterministic) ptx::named_arrive(kTurnEnds + number_, kTurnThreads);
  }

  // ---- Results ----

  // 64 keys of a gradient, through the shared memory of what it is the gradient of.
  template <int kDim>
  __device__ __forceinline__ void store_gradient(const float (&d)[kDim / 2], float factor,
                                                 uint32_t through, const TensorMap& map) const {
    const uint32_t part = through + (first_key() + warp_ * 16) * 128;
    const auto pair = [&](int i) { return round_pair<C.dtype>(d[i] * factor, d[i + 1] * factor); };
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      const int piece = j % 8 + lane_ / 16;
      ptx::store_matrices(
          part + j / 8 * C.keys() * 128 + lane_ % 16 * 128 + ((piece ^ lane_ % 8) << 4),
          pair(4 * j), pair(4 * j + 2), pair(4 * j + 4), pair(4 * j + 6));
    }
    ptx::fence_for_engines();
    __syncwarp();
    if (lane_ != 0) return;
    const PlaceInMap place = keys_in_map<C.lengths>(a_, tile_);
    const int row = place.row + tile_.key + first_key() + warp_ * 16;
#pragma unroll
    for (int chunk = 0; chunk < (kDim + kChunk - 1) / kChunk; ++chunk)
      ptx::store_box(map, part + chunk * C.keys() * 128,
                     {chunk * kChunk, 0, row, tile_.kv_head, place.entry});
    ptx::commit_stores();
  }

  // Whether the thread's two keys have parts of a gradient that are not finite.
  template <int kCount>
  __device__ __forceinline__ void look_at(const float (&d)[kCount], float (&unusual)[2]) const {
    if constexpr (C.masked()) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) unusual[i / 2 % 2] = fmaf(d[i], 0, unusual[i / 2 % 2]);
    }
  }
  // After the stores, by the whole warp.
  __device__ __forceinline__ void mend(const float (&unusual)[2]) const {
    if constexpr (C.masked()) {
      const uint32_t upper = __ballot_sync(0xffffffffu, !(quad_sum(unusual[0]) == 0));
      const uint32_t lower = __ballot_sync(0xffffffffu, !(quad_sum(unusual[1]) == 0));
      if ((upper | lower) == 0) return;
      __syncwarp();
#pragma unroll 1
      for (int row = 0; row < 16; ++row) {
        const int key = tile_.key + first_key() + 16 * warp_ + row;
        if (((row < 8 ? upper : lower) >> (4 * (row % 8)) & 1) != 0 && key < tile_.kv_rows)
          mend_key<C>(a_, tile_.batch, tile_.kv_head, key);
      }
    }
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
  const int number_, warp_, lane_;
};

}  // namespace perseid::cuda
