// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Copies of rows of query, key, value and bias to tiles in shared memory by all threads of a block.
//
// A thread copies the same vector of every kPass-th row. What is outside of the tensor becomes 0.
// Where rows do not consist of aligned vectors, threads gather elements; that is slow.
#pragma once

#include "cuda/device/attention/nonfinite.hpp"
#include "cuda/device/portable/vector_tile.hpp"
#include "cuda/device/ptx/cp_async.hpp"
#include "cuda/device/ptx/ordering.hpp"

namespace perseid::internal::cuda {

// Tiles of kRows rows with kDim elements each. kStride: between rows of the tensor, if it is known;
// then elements lie side by side, and all vectors of a thread have one address.
template <DType D, int kRows, int kDim, int kThreads, int kStride = 0>
class TileCopy {
  using Bits = typename BitsOf<D>::Type;
  static constexpr int kUnits = sizeof(Bits) / 2;  // of 16 bits, of an element
  static constexpr int kEach = kVector / kUnits;   // elements of a vector
  static constexpr int kLength = line_length(kUnits * kDim), kVectors = kDim / kEach;
  static constexpr int lanes() {  // a power of two, so that each thread keeps its vector
    int count = 1;
    while (count < kVectors) count *= 2;
    return count;
  }
  static constexpr int kLanes = lanes(), kPass = kThreads / kLanes;

 public:
  // The thread's first row, and its vector of each. The number of the thread is read again for each
  // tile, so that they take no registers in between.
  struct Own {
    int row, vector;

    __device__ __forceinline__ Own() {
      const auto thread = static_cast<uint32_t>(ptx::thread_number());
      row = static_cast<int>(thread / kLanes);
      vector = static_cast<int>(thread % kLanes);
    }
    // use(row of the tile, offset of the vector in it)
    template <int kUnroll, class Use>
    __device__ __forceinline__ void for_each(const Use& use) const {
      if (kVectors < kLanes && vector >= kVectors) return;
      const int first = vector_offset<kLength>(row, vector);
#pragma unroll(kUnroll)
      for (int pass = 0; pass < kRows; pass += kPass)
        if (kRows % kPass == 0 || pass + row < kRows)
          use(pass + row, kPass < 8 ? (first ^ (pass & 7) << 4) + pass * kLength * 2
                                    : vector_offset<kLength>(pass + row, vector));
    }
  };
  // Rows count from `begin` of the head; of elements there are `dim`. Rows are whole vectors if
  // `vectors`.
  __device__ __forceinline__ TileCopy(const RowsInMemory& rows, int64_t entry, int64_t head,
                                      int64_t begin, int dim, bool vectors)
      : rows_(rows), dim_(dim), vectors_(vectors) {
    move_to(entry, head, begin);
  }
  // To the rows of another head.
  __device__ __forceinline__ void move_to(int64_t entry, int64_t head, int64_t begin) {
    const Own own;
    data_ = row_at<Bits>(rows_, entry, head, begin + own.row) +
            int64_t{own.vector * kEach} * rows_.stride[3];
  }

  // Begins to copy rows from `first` on, of those before `end`, and elements from `column` on. The
  // tile is at `offset` of the shared memory. `whole`, a constant: all of its rows are before
  // `end`.
  __device__ __forceinline__ void copy(unsigned char* memory, uint32_t address, int offset,
                                       int first, int end, int column = 0,
                                       bool whole = false) const {
    const Own own;
    if (vectors_)
      copy_vectors(own, address, offset, first, end, column, whole);
    else
      copy_elements(own, memory, offset, first, end, column);
  }
  // The same of tensors whose rows are vectors, or are not.
  __device__ __forceinline__ void copy_vectors(const Own& own, uint32_t address, int offset,
                                               int first, int end, int column,
                                               bool whole = false) const {
    const int rows = elements_of(own, column) == 0 ? 0 : end - first;
    const bool any = elements_of(own, column) != 0;
    const Bits* from = first_of(first, column);
    own.template for_each<kRows>([&](int row, int at) {
      ptx::cp_async_or_zero(address + static_cast<uint32_t>(offset + at), from,
                            whole ? any : row < rows);
      from += kPass * row_stride();
    });
  }
  __device__ __forceinline__ void copy_elements(const Own& own, unsigned char* memory, int offset,
                                                int first, int end, int column) const {
    const int elements = elements_of(own, column);
    const Bits* from = first_of(first, column);
    own.template for_each<1>([&](int row, int at) {
      gather(from, row < end - first ? elements : 0, memory + offset + at);
      from += kPass * row_stride();
    });
  }
  // The same from the first row on, of 2^pack heads, of which `end` rows each: row r is row r >>
  // pack of head r % 2^pack, from the tensor's head on.
  __device__ __forceinline__ void copy_packed(unsigned char* memory, uint32_t address, int offset,
                                              int end, int column, int pack) const {
    const Own own;
    const int elements = elements_of(own, column);
    const int rows = elements == 0 ? 0 : end << pack, mask = (1 << pack) - 1;
    const Bits* const first = data_ - own.row * rows_.stride[2] + column * rows_.stride[3];
    own.template for_each<1>([&](int row, int at) {
      const Bits* const from =
          first + (row >> pack) * rows_.stride[2] + (row & mask) * rows_.stride[1];
      if (vectors_)
        ptx::cp_async_or_zero(address + static_cast<uint32_t>(offset + at), from, row < rows);
      else
        gather(from, row < rows ? elements : 0, memory + offset + at);
    });
  }
  // Clears non-finite elements of what the thread itself has copied, after it has arrived.
  static __device__ __forceinline__ void clear_nonfinite(unsigned char* tile) {
    Own().for_each<kRows>([&](int, int at) {
      auto* vector = reinterpret_cast<uint4*>(tile + at);
      *vector = finite_or_zero<D>(*vector);
    });
  }

 private:
  __device__ __forceinline__ int64_t row_stride() const {
    return kStride > 0 ? kStride : rows_.stride[2];
  }
  __device__ __forceinline__ int64_t element_stride() const {
    return kStride > 0 ? 1 : rows_.stride[3];
  }
  __device__ __forceinline__ int elements_of(const Own& own, int column) const {
    return clamp(dim_ - column - own.vector * kEach, 0, kEach);
  }
  __device__ __forceinline__ const Bits* first_of(int row, int column) const {
    return data_ + row * row_stride() + (column == 0 ? 0 : column * element_stride());
  }
  __device__ __forceinline__ void gather(const auto* from, int count, unsigned char* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      reinterpret_cast<Bits*>(to)[i] = i < count ? from[i * rows_.stride[3]] : 0;
  }
  __device__ __forceinline__ void gather(const uint16_t* from, int count, unsigned char* to) const {
    uint32_t bits[8] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) bits[i] = i < count ? from[i * rows_.stride[3]] : 0;
    *reinterpret_cast<uint4*>(to) = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
                                     bits[4] | bits[5] << 16, bits[6] | bits[7] << 16};
  }

  const RowsInMemory& rows_;
  const Bits* data_;  // the thread's first vector
  const int dim_;
  const bool vectors_;
};

}  // namespace perseid::internal::cuda
