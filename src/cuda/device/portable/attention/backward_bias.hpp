// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias that is not repeated: dS of a block of keys as it meets in shared memory
// for dQ (backward_queries.hpp), if C.stores_bias.
#pragma once

#include "cuda/device/portable/attention/backward_queries.hpp"
#include "cuda/device/portable/attention/backward_scores.hpp"

namespace perseid::internal::cuda {

// A thread stores vectors of eight keys of a query. Matrix m of a load has keys 2 m and 2 m + 1 of
// each eight, so that a thread gets the pairs of one eight; C.ds_gap() puts them into different
// banks.
template <PortableBackwardConfig C>
class BiasGradient : QuerySums<C> {
  using Base = QuerySums<C>;
  using Base::address_, Base::warp_, Base::lane_;
  static constexpr int kGroups = C.block_rows() / 32;  // of keys
  static constexpr int kStep = C.warps / kGroups * 8;  // queries between two vectors of a thread
  static_assert(C.warps % kGroups == 0 && C.columns % kStep == 0);

 public:
  __device__ __forceinline__ BiasGradient(const PortableBackwardArguments& arguments,
                                          const BackwardRows& own, uint32_t address, int warp,
                                          int lane)
      : Base(nullptr, address, warp, lane), a_(arguments), own_(own) {}

  // Behind a barrier: that of a step, of queries from `column` on.
  __device__ __forceinline__ void store(int step, int32_t head, int column) const {
    const int first = warp_ / kGroups * 8, keys = warp_ % kGroups * 32, row = lane_ % 8;
    const int line = keys + row / 2 * 8 + 2 * (lane_ / 8) + row % 2;
    const int key = keys + lane_ % 4 * 8;
    int query = column + first + lane_ / 4;
#pragma unroll
    for (int q = 0; q < C.columns; q += kStep) {
      uint32_t words[4];
      ptx::ldmatrix_x4_trans(
          address_ + static_cast<uint32_t>(Base::offset(step) + Base::line(line) +
                                           Base::vector(line, (first + q) / 8)),
          words);
      store_vector(at(head, query, key), query, key, words);
      query += kStep;
    }
  }
  // Stores zeros for queries that no step visits.
  __device__ __forceinline__ void clear_skipped() const {
    constexpr int kEights = C.block_rows() / 8;
    const int before = min(own_.first * C.columns, own_.q_len), end = own_.end * C.columns;
    const int64_t count = before + max(own_.q_len - end, 0);
#pragma unroll 1
    for (int head = own_.head; head < own_.head + a_.group; ++head)
#pragma unroll 1
      for (int64_t i = 32 * warp_ + lane_; i < count * kEights; i += C.threads()) {
        const int row = static_cast<int>(i / kEights), key = static_cast<int>(i % kEights) * 8;
        const int query = row < before ? row : row - before + end;
        store_vector(at(head, query, key), query, key, {});
      }
  }

 private:
  // Keys count from the block's first one.
  __device__ __forceinline__ uint16_t* at(int32_t head, int query, int key) const {
    return row_at<uint16_t>(a_.grad_bias, own_.batch, head, query) +
           (own_.row + key) * a_.grad_bias.stride[3];
  }
  __device__ __forceinline__ void store_vector(uint16_t* to, int query, int key,
                                               const uint32_t (&words)[4]) const {
    const int count = own_.kv_len - own_.row - key;
    if (query >= own_.q_len || count <= 0) return;
    if (a_.bias_vectors) {
      *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < count)
        to[e * a_.grad_bias.stride[3]] = static_cast<uint16_t>(words[e / 2] >> (16 * (e % 2)));
  }

  const PortableBackwardArguments& a_;
  const BackwardRows& own_;
};

}  // namespace perseid::internal::cuda
