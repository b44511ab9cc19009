// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A tile of bias in shared memory, or of its gradient, C.queries x C.keys() in the layout of the
// copy engine: [chunk of keys in 128 bytes][query][128 bytes]. Scores are transposed in registers,
// so that 16-bit elements are transposed on their way; of 32-bit ones each goes by itself, without
// two of a warp in one bank.
#pragma once

#include "cuda/device/ptx/matrices.hpp"
#include "cuda/device/sm90/attention_backward_config.hpp"
#include "cuda/device/sm90/attention_rules.hpp"
#include "cuda/device/sm90/attention_softmax.hpp"

namespace perseid::cuda {

template <AttentionBackwardConfig C>
struct BiasTile {
  static constexpr bool kWide = C.bias == DType::kF32;
  static constexpr int kChunkKeys = kWide ? 32 : 64;

  unsigned char* memory;
  uint32_t base;

  // The shared memory of a chunk, by its first key.
  __device__ __forceinline__ uint32_t chunk(int key) const {
    return base + key / kChunkKeys * C.queries * 128;
  }
  // Eight of a thread's scores, from number i on, a multiple of 8: two groups of eight queries. The
  // warp has 16 keys from `key` on.
  __device__ __forceinline__ void load(int key, int lane, int i, float (&to)[8]) const {
    if constexpr (kWide) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        to[e] = *reinterpret_cast<const float*>(memory + wide_at(key, lane, i, e));
    } else {
      uint32_t pairs[4];
      ptx::load_matrices_across(base + matrix_at(key, lane, i), pairs);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 pair = widen_pair<C.bias>(pairs[p]);
        to[2 * p] = pair.x;
        to[2 * p + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void store(int key, int lane, int i, const float (&from)[8]) const {
    if constexpr (kWide) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        *reinterpret_cast<float*>(memory + wide_at(key, lane, i, e)) = from[e];
    } else {
      const auto pair = [&](int p) { return round_pair<C.bias>(from[2 * p], from[2 * p + 1]); };
      const uint32_t pairs[4] = {pair(0), pair(1), pair(2), pair(3)};
      store_pairs(key, lane, i, pairs);
    }
  }
  __device__ __forceinline__ void store_pairs(int key, int lane, int i,
                                              const uint32_t (&pairs)[4]) const {
    ptx::store_matrices_across(base + matrix_at(key, lane, i), pairs[0], pairs[1], pairs[2],
                               pairs[3]);
  }

 private:
  static __device__ __forceinline__ int matrix_at(int key, int lane, int i) {
    const int query = 8 * (i / 4 + lane / 16) + lane % 8;
    const int piece = key % kChunkKeys / 8 + lane / 8 % 2;
    return (key / kChunkKeys * C.queries + query) * 128 + ((piece ^ lane % 8) << 4);
  }
  static __device__ __forceinline__ int wide_at(int key, int lane, int i, int e) {
    const int row = 2 * (lane % 4) + e % 2;
    const int own = key + e / 2 % 2 * 8 + lane / 4;
    return (own / kChunkKeys * C.queries + 8 * (i / 4 + e / 4) + row) * 128 +
           ((own % kChunkKeys / 4 ^ row) << 4) + own % 4 * 4;
  }
};

}  // namespace perseid::cuda
