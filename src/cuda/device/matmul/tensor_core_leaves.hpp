// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tree of canonical order (math/leaf_tree.hpp) in matmul_tensor_core: when a leaf has ended, a
// warp's sums wait for those of the next one, or are added to those that wait.
//
//   leaf         0    1      2    3         4    5      6    7
//   shared       put  add    put  add       put  add    put  add
//   workspace         put         add            put         add      pairs
//   workspace                     put                        add      the first four
//
// What is put somewhere is read by the same thread.
#pragma once

#include "cuda/device/matmul/tensor_core_warp.hpp"

namespace perseid::internal::cuda {

template <MatmulTensorConfig C>
class LeafSums {
  using Sums = WarpSums<C>;
  using Pair = typename Sums::Pair;

 public:
  // `shared`: after the stages.
  __device__ __forceinline__ LeafSums(const MatmulLaunch& launch, unsigned char* shared)
      : shared_(reinterpret_cast<Pair*>(shared) + threadIdx.x),
        aside_(reinterpret_cast<Pair*>(launch.aside + int64_t{blockIdx.x} * C.aside_bytes()) +
               threadIdx.x) {}

  // `sums` of the next leaf are 0 then; after the last one they are those of all.
  __device__ __forceinline__ void end_leaf(Sums& sums) {
    const int leaf = leaf_++;
    if (leaf % 2 == 0) return put(sums, shared_);
    add(shared_, sums);
#pragma unroll 1
    for (int level = 1; 1 << level < C.leaves; ++level) {
      Pair* const waiting = aside_ + (level - 1) * (C.tile_bytes() / int{sizeof(Pair)});
      if ((leaf >> level) % 2 == 0) return put(sums, waiting);
      add(waiting, sums);
    }
  }

 private:
  // The pairs of all threads lie side by side.
  template <class Visit>
  static __device__ __forceinline__ void for_each_pair(Sums& sums, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < Sums::kDown; ++i)
#pragma unroll
      for (int j = 0; j < Sums::kAcross; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          visit(((i * Sums::kAcross + j) * 2 + e / 2) * C.threads(), sums.sums[i][j][e],
                sums.sums[i][j][e + 1]);
  }
  static __device__ __forceinline__ void put(Sums& sums, Pair* to) {
    for_each_pair(sums, [&](int at, auto& first, auto& second) { to[at] = {first, second}; });
    sums = {};
  }
  static __device__ __forceinline__ void add(const Pair* from, Sums& sums) {
    for_each_pair(sums, [&](int at, auto& first, auto& second) {
      const Pair pair = from[at];
      first += pair.first;
      second += pair.second;
    });
  }

  Pair *const shared_, *const aside_;
  int leaf_ = 0;
};

}  // namespace perseid::internal::cuda
