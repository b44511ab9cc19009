// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a block of attention backward on sm_80 and up has in shared memory, and its copies from
// tensors, or of float32 from their planes (planes.hpp).
#pragma once

#include "cuda/device/portable/attention/backward_planes.hpp"
#include "cuda/device/portable/attention/backward_scores.hpp"
#include "cuda/device/portable/attention/backward_store.hpp"
#include "cuda/device/portable/attention/rows_copy.hpp"
#include "cuda/device/portable/attention/step_barriers.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/ordering.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PortableBackwardBlock {
 protected:
  static constexpr int kPlanes = C.planes();
  using Real = SumsOf<C>;
  static constexpr int kTiles = C.rows / 16;  // of 16 rows, of a warp
  using Scores = Real[kTiles][C.own_columns() / 2];
  static constexpr int kFirstDepth = C.depth(C.key_dim), kSecondDepth = C.depth(C.value_dim);
  static constexpr int kFirstPart = C.part(C.key_dim), kSecondPart = C.part(C.value_dim);
  static constexpr int kSecondRows = C.row_bytes(C.key_dim);  // offsets in shared memory
  static constexpr int kSecondColumns = C.column_bytes(C.key_dim);
  static constexpr int kStatistics = C.tile_bytes();
  // Of rows of the first tensors, or the second ones.
  template <int kRows, int kDim, bool kOfSecond>
  using Copy = TileCopy<C.operand(), kRows, kPlanes * kDim, C.threads(),
                        kPlanes == 2 ? 2 * C.plane_length(kOfSecond ? C.value_dim : C.key_dim) : 0>;

  __device__ __forceinline__ PortableBackwardBlock(const BackwardArguments<C>& arguments,
                                                   unsigned char* memory)
      : a_(arguments),
        memory_(memory),
        address_(ptx::shared_address(memory)),
        own_(*reinterpret_cast<BackwardRows*>(memory + C.others_offset())) {}

  // Read again each time: what follows from it takes no registers in between.
  static __device__ __forceinline__ int lane() { return ptx::thread_number() & 31; }
  static __device__ __forceinline__ int warp() {
    return static_cast<int>(static_cast<uint32_t>(ptx::thread_number()) / 32);
  }
  // The warp, of those with rows of their own, that has the same rows.
  static __device__ __forceinline__ int row_warp() {
    return C.pairs() ? warp() % C.row_warps() : warp() / kSharers;
  }
  // kSharers warps have the same rows.
  static constexpr int kSharers = C.warps / C.row_warps();
  static_assert(kSharers <= 2);
  static __device__ __forceinline__ int sharer() {
    return C.pairs() ? warp() / C.row_warps() : warp() % kSharers;
  }
  // Those of the warps that share rows, as bits. By all threads.
  __device__ __forceinline__ uint32_t rows_of_all(uint32_t rows) const {
    if constexpr (kSharers > 1) {
      auto* const words = reinterpret_cast<uint32_t*>(memory_ + C.exchange_offset());
      __syncthreads();
      if (lane() == 0) words[2 * row_warp() + sharer()] = rows;
      __syncthreads();
      rows = words[2 * row_warp()] | words[2 * row_warp() + 1];
    }
    return rows;
  }
  // The first of the step's columns whose scores the warp computes.
  static __device__ __forceinline__ int own_column() {
    return C.shares_rows ? C.own_columns() * sharer() : 0;
  }
  __device__ __forceinline__ int warp_row() const { return own_.row + row_warp() * C.rows; }
  __device__ __forceinline__ int32_t entry() const { return entry_of<C.lengths>(a_, own_.batch); }

  // Tensors, or their planes, and the elements of a row.
  __device__ __forceinline__ const RowsInMemory& queries() const {
    return kPlanes == 2 ? a_.query_planes : a_.query_rows;
  }
  __device__ __forceinline__ const RowsInMemory& keys() const {
    return kPlanes == 2 ? a_.key_planes : a_.key_rows;
  }
  __device__ __forceinline__ const RowsInMemory& values() const {
    return kPlanes == 2 ? a_.value_planes : a_.value_rows;
  }
  __device__ __forceinline__ const RowsInMemory& grad_outs() const {
    return kPlanes == 2 ? a_.grad_out_planes : a_.grad_out_rows;
  }
  __device__ __forceinline__ int first_dim() const {
    return kPlanes == 2 ? 2 * C.plane_length(C.key_dim) : a_.head_dim;
  }
  __device__ __forceinline__ int second_dim() const {
    return kPlanes == 2 ? 2 * C.plane_length(C.value_dim) : a_.value_dim;
  }
  __device__ __forceinline__ bool vectors() const { return kPlanes == 2 || a_.vectors; }
  __device__ __forceinline__ const RowsInMemory& first_rows() const {
    return C.of_keys() ? keys() : queries();
  }
  __device__ __forceinline__ const RowsInMemory& second_rows() const {
    return C.of_keys() ? values() : grad_outs();
  }
  __device__ __forceinline__ const RowsInMemory& first_columns() const {
    return C.of_keys() ? queries() : keys();
  }
  __device__ __forceinline__ const RowsInMemory& second_columns() const {
    return C.of_keys() ? grad_outs() : values();
  }
  // Rows, or columns, of both tensors from the element `depth` on.
  __device__ __forceinline__ void copy_rows(int depth) const {
    const int32_t head = C.of_keys() ? own_.kv_head : own_.head;
    const int32_t begin = C.of_keys() ? own_.kv_begin : own_.q_begin;
    const int32_t length = C.of_keys() ? own_.kv_len : own_.q_len;
    Copy<C.block_rows(), kFirstDepth, false>(first_rows(), entry(), head, begin, first_dim(),
                                             vectors())
        .copy(memory_, address_, 0, own_.row, length, kPlanes * depth);
    Copy<C.block_rows(), kSecondDepth, true>(second_rows(), entry(), head, begin, second_dim(),
                                             vectors())
        .copy(memory_, address_, kSecondRows, own_.row, length, kPlanes * depth);
    if constexpr (kPlanes == 2)
      copy_numbers<C.block_rows()>(C.of_keys(), head, own_.row, C.numbers_offset());
  }
  __device__ __forceinline__ int32_t column_head(int32_t head) const {
    return C.of_keys() ? head : own_.kv_head;
  }
  __device__ __forceinline__ int32_t columns_begin() const {
    return C.of_keys() ? own_.q_begin : own_.kv_begin;
  }
  // Columns of both tensors, of kFirstDim and kSecondDim elements.
  template <int kFirstDim, int kSecondDim>
  struct ColumnCopies {
    Copy<C.columns, kFirstDim, false> first;
    Copy<C.columns, kSecondDim, true> second;

    __device__ __forceinline__ ColumnCopies(const PortableBackwardBlock& block, int32_t head)
        : first(block.first_columns(), block.entry(), block.column_head(head),
                block.columns_begin(), block.first_dim(), block.vectors()),
          second(block.second_columns(), block.entry(), block.column_head(head),
                 block.columns_begin(), block.second_dim(), block.vectors()) {}
    __device__ __forceinline__ void move_to(const PortableBackwardBlock& block, int32_t head) {
      first.move_to(block.entry(), block.column_head(head), block.columns_begin());
      second.move_to(block.entry(), block.column_head(head), block.columns_begin());
    }
    // To those offsets, elements from `depth` on.
    __device__ __forceinline__ void copy(const PortableBackwardBlock& block, int column,
                                         int to_first, int to_second, int depth) const {
      const int32_t length = C.of_keys() ? block.own_.q_len : block.own_.kv_len;
      depth *= kPlanes;
      const typename Copy<C.columns, kFirstDim, false>::Own of_first;
      const auto of_second = [&] {
        if constexpr (kFirstDim == kSecondDim && (kPlanes == 1 || C.key_dim == C.value_dim))
          return of_first;
        else
          return typename Copy<C.columns, kSecondDim, true>::Own();
      }();
      if (block.vectors()) {
        first.copy_vectors(of_first, block.address_, to_first, column, length, depth);
        second.copy_vectors(of_second, block.address_, to_second, column, length, depth);
      } else {
        first.copy_elements(of_first, block.memory_, to_first, column, length, depth);
        second.copy_elements(of_second, block.memory_, to_second, column, length, depth);
      }
    }
  };
  // Bias of the block's rows and a step's columns in a query head.
  __device__ __forceinline__ void copy_bias(int32_t head, int column, int stage) const {
    if constexpr (C.copies_bias()) {
      const int query = C.of_keys() ? column : own_.row, key = C.of_keys() ? own_.row : column;
      TileCopy<C.bias, C.step_queries(), C.step_keys(), C.threads()>(
          a_.bias, own_.batch, head, score_row_of<C>(a_, own_, 0), a_.kv_len, a_.bias.vectors)
          .copy(memory_, address_, bias_offset(stage), query, own_.q_len, key);
    }
  }
  static __device__ __forceinline__ int bias_offset(int stage) {
    return stage_offset(stage) + C.both_bytes();
  }
  // lse and delta of the columns, which are queries, from `at` on.
  __device__ __forceinline__ void copy_statistics(int64_t at, int stage) const {
    constexpr int kEach = 16 / C.sum_bytes(), kCopies = C.columns / kEach;
    const int thread = ptx::thread_number();
    if (!C.of_keys() || thread >= 2 * kCopies) return;
    const SumsOf<C>* from = thread < kCopies ? a_.lse_log2 : a_.delta;
    ptx::cp_async_or_zero(
        address_ + static_cast<uint32_t>(kStatistics + stage * 2 * C.columns * C.sum_bytes() +
                                         thread * 16),
        from + at + thread % kCopies * kEach, true);
  }
  // Copies the planes' numbers of kCount queries or keys of a head from `first` on.
  template <int kCount>
  __device__ __forceinline__ void copy_numbers(bool of_keys, int32_t head, int32_t first,
                                               int offset) const {
    static_assert(kCount <= C.threads());
    const int thread = ptx::thread_number(), row = first + thread;
    if (thread >= kCount) return;
    const bool ragged = C.lengths && a_.ragged;
    const int64_t of_head =
        of_keys ? (int64_t{entry()} * a_.kv_heads + head) * (ragged ? a_.total_kv : a_.kv_len) +
                      own_.kv_begin
                : (int64_t{entry()} * a_.heads + head) * (ragged ? a_.total_q : a_.q_len) +
                      own_.q_begin;
    ptx::cp_async_8_or_zero(address_ + static_cast<uint32_t>(offset + 8 * thread),
                            (of_keys ? a_.key_numbers : a_.query_numbers) + of_head + row,
                            row < (of_keys ? own_.kv_len : own_.q_len));
  }
  // Copies those of the columns of a step, of a query head.
  __device__ __forceinline__ void copy_column_numbers(int32_t head, int column, int stage) const {
    if constexpr (kPlanes == 2)
      copy_numbers<C.columns>(!C.of_keys(), column_head(head), column,
                              C.column_numbers_offset() + stage * C.columns * 8);
  }
  __device__ __forceinline__ uint32_t column_numbers(int stage) const {
    return address_ + static_cast<uint32_t>(C.column_numbers_offset() + stage * C.columns * 8);
  }
  // Whether the columns of a step have equal numbers, as nearly all have.
  __device__ __forceinline__ bool has_equal_columns(int stage) const {
    if constexpr (kPlanes == 2) return are_equal<C.columns>(column_numbers(stage), lane());
    return false;
  }
  __device__ __forceinline__ StepBarriers barriers() const {
    return StepBarriers(address_ + static_cast<uint32_t>(C.barriers_offset()));
  }
  static __device__ __forceinline__ int stage_offset(int stage) {
    return C.columns_offset() + stage * C.stage_bytes();
  }
  // Non-finite elements of columns that the thread has copied.
  template <int kFirstDim, int kSecondDim>
  __device__ __forceinline__ void clear_columns(int first, int second) const {
    Copy<C.columns, kFirstDim, false>::clear_nonfinite(memory_ + first);
    if constexpr (C.of_keys()) Copy<C.columns, kSecondDim, true>::clear_nonfinite(memory_ + second);
  }

  // Gradients of rows but for `left_out`, columns from `first` of the part on. A null pointer
  // disables a gradient. `loss`: the share that the sums lack.
  template <bool kAdds, int kPart>
  __device__ __forceinline__ void store(const Real (&sums)[kTiles][kPart / 2], Real factor,
                                        const RowsInMemory& rows, int32_t dim, int32_t first,
                                        uint32_t left_out, Real loss = 0) const {
    if (rows.data == nullptr) return;
    constexpr DType kOut = C.f32_key_gradients && C.of_keys() ? DType::kF32 : C.dtype;
    using Element = typename ElementOf<kOut>::Type;
    Element* const to = row_at<Element>(rows, entry(), C.of_keys() ? own_.kv_head : own_.head,
                                        (C.of_keys() ? own_.kv_begin : own_.q_begin) + warp_row()) +
                        (first_column_ + first) * rows.stride[3];
    const int count = min((C.of_keys() ? own_.kv_rows : own_.q_len) - warp_row(), C.rows);
    GradientStore<C, kOut, kPart>(memory_ + warp() * C.rows * line_length(C.part(C.most_dim())) * 2,
                                  to, rows.stride[2], rows.stride[3],
                                  count > 0 ? ((2u << (count - 1)) - 1) & ~left_out : 0,
                                  min(dim - first_column_ - first, kPart), lane())
        .template store<kAdds>(sums, factor, factor * loss, a_.vectors);
  }

  const BackwardArguments<C>& a_;
  unsigned char* const memory_;
  const uint32_t address_;
  BackwardRows& own_;  // in shared memory
  int32_t first_column_ = 0;
  bool equal_columns_ = false;  // of the step
};

}  // namespace perseid::internal::cuda
