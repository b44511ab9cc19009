// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What is done to a tile of scores before its softmax, and to its weights after it: bias, masks and
// dropout, each only where the configuration has it. A thread has the rows and columns of the
// accumulator layout (ptx/products.hpp), which is that of the dropout contract's bytes too: one
// Philox call serves 16 rows and 32 columns without an exchange between threads (math/philox.hpp).
#pragma once

#include "cuda/device/sm90/attention_rules.hpp"
#include "cuda/device/sm90/attention_softmax.hpp"
#include "cuda/device/sm90/attention_tiles.hpp"

namespace perseid::cuda {

// Two neighbours of a row of bias or mask, as they lie in memory.
template <class Element>
struct alignas(2 * sizeof(Element)) Pair {
  Element first, second;
};

// What a thread needs of a plane for its scores of a tile: pairs of its two rows.
template <class Element, int kPairs>
struct ScorePairs {
  Pair<Element> at[2][kPairs];
};
struct NoScorePairs {};

// The rules of one thread. `row` is its first row in the tile; the other is 8 below.
template <AttentionForwardConfig C>
class ScoreRules {
  static constexpr int kPairs = C.keys / 8;
  static __device__ auto bias_pairs() {
    if constexpr (C.bias != DType::kNone) {
      return ScorePairs<typename ElementOf<C.bias>::Type, kPairs>();
    } else {
      return NoScorePairs();
    }
  }
  static __device__ auto visible_pairs() {
    if constexpr (C.visible) {
      return ScorePairs<uint8_t, kPairs>();
    } else {
      return NoScorePairs();
    }
  }

 public:
  __device__ __forceinline__ ScoreRules(const AttentionForwardArguments& arguments, int row,
                                        int lane)
      : a_(arguments), row_(row), lane_(lane) {
    if constexpr (C.dropout) {
      const Dropout dropout = dropout_of(a_);
      seed_ = dropout.seed;
      offset_ = dropout.offset;
    }
  }

  // What scores are multiplied by for their weights. With a bias they have been already.
  __device__ __forceinline__ float scale_log2() const {
    return C.bias != DType::kNone ? 1 : a_.scale_log2;
  }

  // Whether some row sees only some of keys n, or some keys are behind the end: asked before the
  // scores are there, so that the answer is not waited for.
  __device__ __forceinline__ bool is_edge(const AttentionTile& tile, int n) const {
    if constexpr (C.left || C.right || C.lengths || C.split)
      return n < tile.free_first || n >= tile.free_end;
    return n * C.keys + C.keys > a_.kv_len;
  }
  // What bias and mask have for keys n: asked for before the scores are there, too.
  struct Planes {
    decltype(bias_pairs()) bias;
    decltype(visible_pairs()) visible;
  };
  __device__ __forceinline__ Planes load(const AttentionTile& tile, int n, bool edge) const {
    Planes planes{};
    if constexpr (C.bias != DType::kNone) load_pairs(tile, n, edge, a_.bias, planes.bias);
    if constexpr (C.visible) load_pairs(tile, n, edge, a_.visible, planes.visible);
    return planes;
  }
  // Scores of keys n.
  template <int kCount>
  __device__ __forceinline__ void before_softmax(const AttentionTile& tile, int n, bool edge,
                                                 const Planes& planes,
                                                 float (&scores)[kCount]) const {
    if constexpr (C.bias != DType::kNone) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto& pair = planes.bias.at[i / 2 % 2][i / 4];
        scores[i] =
            fmaf(scores[i], a_.scale_log2, widen(i % 2 == 0 ? pair.first : pair.second) * kLog2E);
      }
    }
    if (edge) hide_ends(tile, n, scores);
    if constexpr (C.visible) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto& pair = planes.visible.at[i / 2 % 2][i / 4];
        if ((i % 2 == 0 ? pair.first : pair.second) == 0) scores[i] = minus_infinity();
      }
    }
  }
  // Weights that dropout drops become 0; their sum is that of all.
  template <int kCount>
  __device__ __forceinline__ void after_softmax(const AttentionTile& tile, int n,
                                                float (&weights)[kCount]) const {
    if constexpr (C.dropout) drop(tile, n, weights);
  }

 private:
  __device__ __forceinline__ int query_of(const AttentionTile& tile, int r) const {
    return tile.query + ((row_ + 8 * r) >> a_.pack);
  }
  __device__ __forceinline__ int first_key(int n) const { return n * C.keys + 2 * (lane_ % 4); }

  template <int kCount>
  __device__ __forceinline__ void hide_ends(const AttentionTile& tile, int n,
                                            float (&scores)[kCount]) const {
    const int key = first_key(n);
    int begin[2], end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = query_of(tile, r);
      const int length = C.lengths ? tile.kv_len : a_.kv_len;
      end[r] = (C.right ? min(query + tile.right, length) : length) - key;
      begin[r] = query + tile.left - key;
    }
    mask_scores<C.left>(scores, begin, end);
  }

  // Rows outside of the problem are read as others of it, keys as 0: their scores are hidden, and
  // their results are not stored.
  template <class Element>
  __device__ __forceinline__ void load_pairs(const AttentionTile& tile, int n, bool edge,
                                             const ScoresInMemory& plane,
                                             ScorePairs<Element, kPairs>& pairs) const {
    const int key = first_key(n);
    const bool whole = plane.pairs && !edge;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = min(query_of(tile, r), tile.q_len - 1);
      const Element* row = score_row<Element>(plane, tile.batch, tile.head, query);
      if (whole) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j)
          pairs.at[r][j] = *reinterpret_cast<const Pair<Element>*>(row + key + 8 * j);
      } else {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const int own = key + 8 * j;
          pairs.at[r][j] = {};
          if (own < tile.kv_len) pairs.at[r][j].first = row[own * plane.stride[3]];
          if (own + 1 < tile.kv_len) pairs.at[r][j].second = row[(own + 1) * plane.stride[3]];
        }
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void drop(const AttentionTile& tile, int n,
                                       float (&weights)[kCount]) const {
    static_assert(C.keys % kDropoutTileColumns == 0);
    const Dropout dropout{a_.dropout_threshold, seed_, offset_};
    const int64_t batch_head = int64_t{tile.batch} * a_.heads + tile.head;
    const int64_t tile_row = (tile.query + row_) / kDropoutTileRows;
    const uint32_t threshold = a_.dropout_threshold << 24;
#pragma unroll
    for (int t = 0; t < C.keys / kDropoutTileColumns; ++t) {
      const PhiloxBlock block = philox4x32(
          dropout_counter(dropout, batch_head, tile_row, n * (C.keys / kDropoutTileColumns) + t,
                          static_cast<uint32_t>(lane_)),
          static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32));
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        // Element i of the thread's 16: columns in pairs of eight, then rows, then the next eight.
        const int byte = i / 2 % 2 * 8 + i / 4 * 2 + i % 2;
        const uint32_t drawn = block.word[byte / 4] << (24 - byte % 4 * 8);
        if (drawn >= threshold) weights[16 * t + i] = 0;
      }
    }
  }

  const AttentionForwardArguments& a_;
  const int row_, lane_;
  uint64_t seed_ = 0;
  uint32_t offset_ = 0;
};

}  // namespace perseid::cuda
