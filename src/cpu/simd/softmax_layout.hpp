// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Where the rows of a softmax lie, and in what pieces they are worked.
//
// The dimensions other than `dim` are put in the order of the output's memory and merged where
// every tensor allows it. Rows that are neighbours along the last of them form a block; a row is
// cut into chunks:
//
//            chunk 0    chunk 1    chunk 2
//   block 0  [  rows x kChunk  ]   ...  [ the rest ]      rows of up to kChunk elements: one chunk,
//   block 1  [                                     ]      and as many rows as fit the L1 cache
//
// Chunks depend on the length of the row alone, so a row's result depends on nothing but the row.
#pragma once

#include "cpu/executor.hpp"
#include "cpu/simd/softmax_kernels.hpp"
#include "math/softmax_problem.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// The tensors of a direction, in the order of SoftmaxLayout's arrays.
enum SoftmaxOperand { kRead = 0, kWritten = 1, kMask = 2, kOther = 3, kSoftmaxOperands = 4 };

// Neighbouring rows of a run: the address of the first one's first element in every tensor.
struct SoftmaxBlock {
  int64_t rows = 0;
  std::byte* data[kSoftmaxOperands] = {};
};

// A chunk of its rows.
inline constexpr int64_t kSoftmaxChunk = 4096;
struct SoftmaxPiece {
  SoftmaxBlock block;
  int64_t chunk = 0;
  int64_t first() const { return chunk * kSoftmaxChunk; }
};

struct SoftmaxLayout {
  int64_t length = 0;
  int64_t rows = 0;   // of a run: neighbours along the last outer dimension
  int64_t runs = 1;   // all other outer dimensions
  int32_t outer = 0;  // how many those are
  int64_t shape[kMaxDims] = {};
  // In elements: between runs, between rows of a run, along a row.
  int64_t stride[kSoftmaxOperands][kMaxDims] = {};
  int64_t row[kSoftmaxOperands] = {};
  int64_t along[kSoftmaxOperands] = {};
  std::byte* data[kSoftmaxOperands] = {};
  int64_t bytes[kSoftmaxOperands] = {};  // of an element

  SoftmaxLayout(const SoftmaxProblem& problem, const Tensor* const (&tensors)[kSoftmaxOperands])
      : length(problem.length()) {
    for (int t = 0; t < kSoftmaxOperands; ++t) {
      if (!tensors[t]->present()) continue;
      data[t] = tensors[t]->as<std::byte>();
      bytes[t] = size_of(tensors[t]->dtype);
      along[t] = tensors[t]->stride[problem.dim];
    }
    int32_t order[kMaxDims], count = 0;
    const int64_t* written = tensors[kWritten]->stride;
    for (int32_t d = 0; d < problem.rank; ++d) {
      if (d == problem.dim || problem.shape[d] == 1) continue;
      int32_t at = count++;
      for (; at > 0 && magnitude(written[order[at - 1]]) < magnitude(written[d]); --at)
        order[at] = order[at - 1];
      order[at] = d;
    }
    int32_t merged = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t d = order[i];
      const auto step = [&](int t) { return data[t] == nullptr ? 0 : tensors[t]->stride[d]; };
      bool merges = merged > 0;
      for (int t = 0; t < kSoftmaxOperands; ++t)
        merges = merges && stride[t][merged - 1] == step(t) * problem.shape[d];
      const int32_t at = merges ? merged - 1 : merged++;
      shape[at] = problem.shape[d] * (merges ? shape[at] : 1);
      for (int t = 0; t < kSoftmaxOperands; ++t) stride[t][at] = step(t);
    }
    outer = max(merged - 1, 0);
    rows = merged == 0 ? 1 : shape[outer];
    for (int t = 0; t < kSoftmaxOperands; ++t) row[t] = merged == 0 ? 0 : stride[t][outer];
    for (int32_t d = 0; d < outer; ++d) runs *= shape[d];
  }

  // Whether a row of every tensor of numbers is one piece of memory.
  bool contiguous(bool backward) const {
    return along[kRead] == 1 && along[kWritten] == 1 && (!backward || along[kOther] == 1);
  }
  std::byte* address(SoftmaxOperand operand, const SoftmaxPiece& piece) const {
    return piece.block.data[operand] + piece.first() * along[operand] * bytes[operand];
  }
  Ahead ahead(SoftmaxOperand operand, const SoftmaxPiece& next) const {
    return {address(operand, next), row[operand] * bytes[operand], along[operand] * bytes[operand]};
  }

 private:
  static int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }
};

// How the work is cut, by the problem and whether its rows are contiguous.
struct SoftmaxCut {
  static constexpr int64_t kChunk = kSoftmaxChunk;
  static constexpr int64_t kBlock = 2048;   // elements of contiguous rows: read, computed and next
                                            // block share the L1 cache
  static constexpr int64_t kStrip = 65536;  // elements of gathered rows
  static constexpr int64_t kKept = 262144;  // rows whose exponentials stay in the L2 cache
  static constexpr int64_t kMostRows = 1024;
  static constexpr int64_t kMostStatistics = 65536;
  static constexpr int64_t kTask = 65536;       // elements of a task, at least
  static constexpr int64_t kTasks = 256;        // of a large problem, about
  static constexpr int64_t kSegmentChunks = 8;  // of a row that is split over tasks

  int64_t length, chunk, chunks;
  int64_t rows;      // of a block, at most
  int64_t pitch;     // of the rows of a block in scratch memory
  int64_t capacity;  // elements of scratch memory for a block
  int64_t segments;  // of a row, each a task; 1: the row belongs to one task
  int64_t blocks_per_task;
  bool kept;  // the exponentials of a block stay in scratch memory until they are written

  SoftmaxCut(const SoftmaxProblem& problem, bool contiguous, int64_t lanes) {
    const int64_t all_rows = problem.rows();
    length = problem.length();
    chunk = clamp(length, int64_t{1}, kChunk);
    chunks = max(ceil_div(length, kChunk), int64_t{1});
    segments = all_rows <= 64 && length >= 65536 && length / 8192 >= all_rows
                   ? ceil_div(chunks, kSegmentChunks)
                   : 1;
    kept = chunks == 1 || (contiguous && segments == 1 && length <= kKept);
    if (contiguous) {
      rows = clamp(kBlock / round_up(chunk, lanes), int64_t{1}, all_rows);
      pitch = round_up(chunk, lanes);
    } else {
      rows = chunks == 1 ? clamp(kStrip / chunk, lanes, kMostRows)
                         : clamp(kMostStatistics / chunks, int64_t{1}, lanes);
      rows = max(min(rows, all_rows), int64_t{1});
      pitch = round_up(chunk, lanes) + lanes;  // not a power of two: columns would share cache sets
    }
    capacity = (kept ? chunks : 1) * pitch * rows;
    // Long rows are worked in pairs, so a task has some of them, if there are enough.
    const int64_t block = rows * chunk * chunks;
    blocks_per_task =
        max(max(all_rows * length / kTasks, kTask) / block,
            chunks == 1 ? int64_t{1} : clamp(all_rows / rows / 64, int64_t{1}, int64_t{4}));
  }

  int64_t length_of(const SoftmaxPiece& piece) const { return min(kChunk, length - piece.first()); }
};

// The blocks of a layout, counted through.
class SoftmaxBlocks {
 public:
  SoftmaxBlocks(const SoftmaxLayout& layout, int64_t rows)
      : layout_(layout), rows_(rows), per_run_(ceil_div(layout.rows, rows)) {}

  int64_t count() const { return layout_.runs * per_run_; }
  SoftmaxBlock at(int64_t index) const {
    const int64_t run = layout_.outer == 0 ? 0 : index / per_run_;
    const int64_t first = (index - run * per_run_) * rows_;
    SoftmaxBlock block;
    block.rows = min(rows_, layout_.rows - first);
    for (int t = 0; t < kSoftmaxOperands; ++t)
      if (layout_.data[t] != nullptr)
        block.data[t] =
            layout_.data[t] + (first * layout_.row[t] + run_offset(t, run)) * layout_.bytes[t];
    return block;
  }

 private:
  int64_t run_offset(int operand, int64_t run) const {
    int64_t offset = 0;
    for (int32_t d = layout_.outer - 1; d >= 0; --d) {
      offset += run % layout_.shape[d] * layout_.stride[operand][d];
      run /= layout_.shape[d];
    }
    return offset;
  }

  const SoftmaxLayout& layout_;
  const int64_t rows_, per_run_;
};

// Whether V reads and writes vectors of T.
template <class V, class T>
inline constexpr bool kHasVectorsOf = sizeof(typename V::Scalar) == 4 || sizeof(T) == 8;

// to[r, j] = x[r, j * along]: strided rows into scratch memory of whole vectors.
template <class V, class T>
void gather_rows(RowsOf<const T> x, int64_t along, int64_t rows, int64_t n,
                 RowsOf<typename V::Scalar> to) {
  using Scalar = typename V::Scalar;
  if constexpr (kHasVectorsOf<V, T>) {
    if (x.pitch == 1) {
      for (int64_t j = 0; j < n; j += V::kLanes)
        for (int64_t r = 0; r < rows; r += V::kLanes) {
          const int64_t down = min(rows - r, int64_t{V::kLanes}), across = n - j;
          typename V::Reg tile[V::kLanes];
          for (int k = 0; k < V::kLanes; ++k) {
            const T* from = x.data + r + (j + k) * along;
            tile[k] = k >= across         ? V::zero()
                      : down == V::kLanes ? V::load(from)
                                          : V::load_partial(from, static_cast<int>(down));
          }
          V::transpose(tile);
          for (int64_t k = 0; k < down; ++k) V::store(to.data + (r + k) * to.pitch + j, tile[k]);
        }
      return;
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j)
      to.data[r * to.pitch + j] = convert<Scalar>(x.data[r * x.pitch + j * along]);
}

// The inverse.
template <class V, class T>
void scatter_rows(RowsOf<const typename V::Scalar> from, int64_t rows, int64_t n, T* out,
                  int64_t row, int64_t along) {
  if constexpr (kHasVectorsOf<V, T>) {
    if (row == 1) {
      for (int64_t j = 0; j < n; j += V::kLanes)
        for (int64_t r = 0; r < rows; r += V::kLanes) {
          const int64_t down = min(rows - r, int64_t{V::kLanes});
          const int64_t across = min(n - j, int64_t{V::kLanes});
          typename V::Reg tile[V::kLanes];
          for (int k = 0; k < V::kLanes; ++k)
            tile[k] = k < down ? V::load(from.data + (r + k) * from.pitch + j) : V::zero();
          V::transpose(tile);
          for (int64_t k = 0; k < across; ++k) {
            T* to = out + r + (j + k) * along;
            if (down == V::kLanes) {
              V::store(to, tile[k]);
            } else {
              V::store_partial(to, tile[k], static_cast<int>(down));
            }
          }
        }
      return;
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j)
      out[r * row + j * along] = convert<T>(from.data[r * from.pitch + j]);
}

// Mask bytes side by side, as the kernels read them; no data where there is no mask.
inline RowsOf<const uint8_t> gather_mask(const SoftmaxLayout& layout, const SoftmaxPiece& piece,
                                         int64_t n, uint8_t* to) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(layout.address(kMask, piece));
  const int64_t row = layout.row[kMask], along = layout.along[kMask];
  if (layout.data[kMask] == nullptr) return {nullptr, 0};
  if (along == 1) return {from, row};
  for (int64_t r = 0; r < piece.block.rows; ++r)
    for (int64_t j = 0; j < n; ++j) to[r * n + j] = from[r * row + j * along];
  return {to, n};
}

// Calls fill(rows of T, stream), which writes the result of a piece, either on the output or, where
// that cannot be written a vector at a time, on scratch memory that is then moved there.
template <class V, class T, class Fill>
PERSEID_INLINE void write_block(const SoftmaxLayout& layout, const SoftmaxPiece& piece, int64_t n,
                                bool stream, RowsOf<typename V::Scalar> scratch, const Fill& fill) {
  using Scalar = typename V::Scalar;
  T* out = reinterpret_cast<T*>(layout.address(kWritten, piece));
  const int64_t row = layout.row[kWritten], along = layout.along[kWritten];
  const int64_t rows = piece.block.rows;
  if constexpr (kHasVectorsOf<V, T>) {
    if (along == 1) {
      // Rows that follow one another without a gap, but not at whole vectors, are streamed as one.
      const bool joined = stream && rows > 1 && row == n && n % V::kLanes != 0;
      if (!joined) return fill(RowsOf<T>{out, row}, stream);
      fill(RowsOf<Scalar>{scratch.data, n}, false);
      constexpr Scalar kOne = 1;
      finish_rows<V, T>({scratch.data, 0}, {out, 0}, 1, rows * n, {&kOne}, true);
      return;
    }
  }
  fill(scratch, false);
  scatter_rows<V, T>({scratch.data, scratch.pitch}, rows, n, out, row, along);
}

inline constexpr int64_t kStreamedBytes = int64_t{8} << 20;

// Calls body(T()) with the element type of a tensor, which is float64 only if V is.
template <class V, class Body>
PERSEID_INLINE void with_element(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body(f16());
    case DType::kBF16:
      return body(bf16());
    case DType::kF32:
      return body(float());
    default:
      if constexpr (sizeof(typename V::Scalar) == 8) body(double());
  }
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
