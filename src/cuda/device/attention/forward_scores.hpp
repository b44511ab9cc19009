// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Per-score operations of forward: bias and masks before the softmax, dropout of the weights after
// it, each only if the configuration has it. A thread has the rows and columns of the accumulator
// layout (ptx/mma.hpp, ptx/wgmma.hpp). The dropout contract gives its bytes the same layout: one
// Philox call of each lane serves 16 rows and 32 columns without an exchange between threads
// (math/philox.hpp).
#pragma once

#include "cuda/device/attention/query_tile.hpp"
#include "cuda/device/attention/score_rules.hpp"
#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

// Two neighbors of a row of bias or mask, in the layout of memory.
template <class Element>
struct alignas(2 * sizeof(Element)) Pair {
  Element first, second;
};

template <class Element>
__device__ __forceinline__ float2 widen(Pair<Element> pair) {
  return {widen(pair.first), widen(pair.second)};
}
// Whole words: two instructions.
__device__ __forceinline__ float2 widen(Pair<bf16> pair) {
  const auto word = __builtin_bit_cast(uint32_t, pair);
  return {float_from_bits(word << 16), float_from_bits(word & 0xffff0000u)};
}

// Elements of bias or mask for a thread's scores of a tile: pairs of its two rows.
template <class Element, int kPairs>
struct ScorePairs {
  Pair<Element> at[2][kPairs];
};
struct NoScorePairs {};

// Whether a KV tile needs a mask, since some row sees only some of its keys: known from the loop
// that visits it, or tested for each tile.
enum class NeedsMask { kNo, kYes, kPerTile };

// The per-score operations of one thread. `row` is its first row in the Q tile; the other is row +
// 8. A tile is a QueryTile, or has the same members.
template <auto C>
class ForwardScores {
  using Arguments = typename decltype(C)::Arguments;
  static constexpr int kPairs = C.keys / 8;
  // Whether bias is added to complete scores. If TMA loads it, or warps begin with it, it
  // initializes the accumulators.
  static constexpr bool kAdds = C.bias != DType::kNone && C.bias_stages == 0 && !requires {
    requires C.begins_with_bias();
  };
  using M = Modifier<C.modifier, float>;
  static_assert(M::kIdentity || C.bias_stages == 0);
  // Another one has copied it to shared memory, and reads it from there.
  static constexpr bool kCopies = kAdds && requires { requires C.copies_bias(); };
  static __device__ auto bias_pairs() {
    if constexpr (kCopies) {
      return ScorePairs<float, kPairs>();
    } else if constexpr (kAdds) {
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
  // Whether complete scores are scaled before the softmax; the exponential scales others.
  static constexpr bool kScales = kAdds || !M::kIdentity || C.scale_first;

  __device__ __forceinline__ ForwardScores(const Arguments& arguments, int row, int lane)
      : a_(arguments), row_(row), lane_(lane) {
    if constexpr (C.dropout && kDrawsEarly) dropout_ = dropout_of(a_);
    if constexpr (C.bias_stages > 0) unscale_ = kLog2E / a_.scale_log2;
  }

  // Factor of scores in the exponent.
  __device__ __forceinline__ float scale_log2() const { return kScales ? kLog2E : a_.scale_log2; }

  // Whether some row sees only some of keys n, or some of them are behind the end. Tested before
  // the wait for the scores, to hide the latency.
  __device__ __forceinline__ bool needs_mask(const auto& tile, int n) const {
    if constexpr (C.left || C.right || C.lengths || C.split)
      return n < tile.unmasked_first || n >= tile.unmasked_end;
    return n * C.keys + C.keys > a_.kv_len;
  }
  // Random bytes of dropout for keys n, 16 for every 32 columns. They are drawn while a product
  // runs if there are registers to keep them.
  static constexpr bool kDrawsEarly = C.value_dim <= 128 && !C.visible && C.bias == DType::kNone;
  struct DrawnNumbers {
    uint32_t word[C.dropout ? C.keys / 8 : 1];
  };
  // Operands for keys n, loaded before the wait for the scores.
  struct ScoreOperands {
    bool needs_mask;
    uint32_t seen[2];  // if needs_mask: a bit for each of the thread's scores, by row
    decltype(bias_pairs()) bias;
    decltype(visible_pairs()) visible;
    DrawnNumbers drawn;
  };
  __device__ __forceinline__ ScoreOperands load(const auto& tile, int n, bool needs_mask) const {
    if constexpr (C.consumers_know_tiles()) n = kv_tile_of<C>(a_, tile, n);
    ScoreOperands operands{};
    operands.needs_mask = needs_mask;
    if (needs_mask) {
      see(tile, n, operands.seen);
      ptx::materialize(operands.seen);
    }
    if constexpr (kAdds && !kCopies) load_pairs(tile, n, needs_mask, a_.bias, operands.bias);
    if constexpr (C.visible) load_pairs(tile, n, needs_mask, a_.visible, operands.visible);
    return operands;
  }
  // Initializes the accumulators with a bias tile that TMA has loaded, [128 bytes of keys][row][128
  // bytes], divided by the scale. `pointer` points to the tile.
  template <class Tile, int kCount>
  __device__ __forceinline__ void begin_with_bias(Tile tile, const unsigned char* pointer,
                                                  float (&scores)[kCount]) const {
    if constexpr (C.bias_stages > 0) {
      using Taken = Pair<typename ElementOf<C.bias>::Type>;
      const auto put = [&](int i, Taken pair) {
        const float2 bias = widen(pair);
        scores[i] = bias.x * unscale_;
        scores[i + 1] = bias.y * unscale_;
      };
      if constexpr (C.bias_size() == 2) {
        const uint32_t own = tile.piece(row_ % 64 / 16 * 16 + lane_ % 16, lane_ / 16);
#pragma unroll
        for (int j = 0; j < kPairs; j += 2) {
          uint32_t pairs[4];
          ptx::ldmatrix_x4(Tile::advance_piece(own, j), pairs);
#pragma unroll
          for (int i = 0; i < 4; ++i) put(4 * j + 2 * i, __builtin_bit_cast(Taken, pairs[i]));
        }
      } else {
#pragma unroll
        for (int j = 0; j < kPairs; ++j)
#pragma unroll
          for (int r = 0; r < 2; ++r)
            put(4 * j + 2 * r,
                *reinterpret_cast<const Taken*>(
                    pointer + Tile::piece_offset(row_ % 64 + 8 * r, 2 * j + lane_ % 4 / 2) +
                    lane_ % 2 * 8));
      }
    }
  }
  // Scales and modifies scores and adds the bias, where the exponential does not, and applies the
  // masks.
  template <int kCount>
  __device__ __forceinline__ void before_softmax(const ScoreOperands& operands,
                                                 float (&scores)[kCount]) const {
    if constexpr (kScales) {
      const float scale = a_.scale_log2 * kLn2;
      const M modifier{a_.modifier};
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        float2 bias{0, 0};
        if constexpr (kAdds) bias = widen(operands.bias.at[i / 2 % 2][i / 4]);
        scores[i] = score<FloatArithmetic>(scores[i], scale, bias.x, modifier);
        scores[i + 1] = score<FloatArithmetic>(scores[i + 1], scale, bias.y, modifier);
      }
    }
    if (operands.needs_mask) hide_scores(scores, operands.seen);
    if constexpr (C.visible) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto& pair = operands.visible.at[i / 2 % 2][i / 4];
        if ((i % 2 == 0 ? pair.first : pair.second) == 0) scores[i] = minus_infinity();
      }
    }
  }
  // Draws the random bytes under the PV product.
  __device__ __forceinline__ void draw_early(const auto& tile, int n,
                                             ScoreOperands& operands) const {
    if constexpr (C.dropout && kDrawsEarly) {
      operands.drawn = draw(tile, n);
      ptx::materialize(operands.drawn.word);
    }
  }
  // Clears the dropped weights, which are rounded in pairs; the row sums include them. A byte b
  // below the threshold t keeps its weight: then 0x8000 + t - 1 - b has its highest bit set, which
  // is copied over the 16 bits of the weight. Two bytes are tested at a time.
  template <int kCount>
  __device__ __forceinline__ void drop(const auto& tile, int n, const ScoreOperands& operands,
                                       uint32_t (&weights)[kCount]) const {
    if constexpr (!C.dropout) return;
    const DrawnNumbers drawn = kDrawsEarly ? operands.drawn : draw(tile, n);
    constexpr uint32_t kBytes = 0x00ff00ff, kBoth = 0x00010001;
    const uint32_t most = (0x8000 + a_.dropout_threshold - 1) * kBoth;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const uint32_t word = drawn.word[i];
      const uint32_t even = most - (word & kBytes), odd = most - (word >> 8 & kBytes);
      // Words have rows, then columns, of the thread's 16: its weights columns, then rows.
      const int first = i / 4 * 8 + i % 2 * 4 + i / 2 % 2;
      weights[first] &= ptx::spread_signs(even, 1, 5, odd);
      weights[first + 2] &= ptx::spread_signs(even, 3, 7, odd);
    }
  }

 private:
  __device__ __forceinline__ int query_of(const auto& tile, int r) const {
    return tile.query + ((row_ + 8 * r) >> a_.pack_gqa);
  }
  __device__ __forceinline__ int first_key(int n) const { return n * C.keys + 2 * (lane_ % 4); }

  __device__ __forceinline__ void see(const auto& tile, int n, uint32_t (&seen)[2]) const {
    const int key = first_key(n), length = C.lengths ? tile.kv_len : a_.kv_len;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = query_of(tile, r);
      const int end = C.right ? min(query + tile.right, length) : length;
      seen[r] = elements_between<C.left, C.keys / 4>(query + tile.left - key, end - key);
    }
  }

  // A row behind the end reads the last row, since its results are not stored; a key behind the end
  // reads 0, since its score is masked.
  template <class Element>
  __device__ __forceinline__ void load_pairs(const auto& tile, int n, bool needs_mask,
                                             const ScoresInMemory& plane,
                                             ScorePairs<Element, kPairs>& pairs) const {
    const int key = first_key(n);
    const bool whole = plane.pairs && !needs_mask;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = score_row_of<C>(a_, tile, min(query_of(tile, r), tile.q_len - 1));
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

  __device__ __forceinline__ DrawnNumbers draw(const auto& tile, int n) const {
    if constexpr (C.consumers_know_tiles()) n = kv_tile_of<C>(a_, tile, n);
    constexpr int kTiles = C.keys / static_cast<int>(kDropoutTileColumns);
    static_assert(!C.dropout || kTiles * kDropoutTileColumns == C.keys);
    const Dropout dropout = kDrawsEarly ? dropout_ : dropout_of(a_);
    const int64_t batch_head = int64_t{tile.batch} * a_.heads + tile.head;
    const int32_t row = whole_row<C>(a_, tile, tile.query + row_);
    uint32_t first[1] = {static_cast<uint32_t>(C.any_first_row() ? row : row / kDropoutTileRows)};
    ptx::materialize(first);  // what depends on it is computed after this
    DrawnNumbers drawn;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      PhiloxBlock block;
      if constexpr (C.any_first_row())
        block = draw_rows(dropout, batch_head, first[0], n * kTiles + t,
                          static_cast<uint32_t>(lane_) % 4);
      else
        block = philox4x32(dropout_counter(dropout, batch_head, first[0], n * kTiles + t,
                                           static_cast<uint32_t>(lane_)),
                           static_cast<uint32_t>(dropout.seed),
                           static_cast<uint32_t>(dropout.seed >> 32));
#pragma unroll
      for (int i = 0; i < 4; ++i) drawn.word[4 * t + i] = block.word[i];
    }
    return drawn;
  }

  const Arguments& a_;
  const int row_, lane_;
  Dropout dropout_;
  float unscale_ = 1;  // 1 / scale
};

}  // namespace perseid::internal::cuda
