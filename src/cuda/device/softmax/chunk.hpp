// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A chunk of a row in a block's shared memory, from before it is read until it is written. TMA
// copies the aligned interior; threads load the edges. A thread has the same vectors each time.
// sm_90 and up.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/tma.hpp"
#include "cuda/device/softmax/elements.hpp"

namespace perseid::internal::cuda {

// Elements [begin, end) of a row.
struct StagedChunk {
  RowSet rows;
  int begin, end;
  bool staged[3];  // whether TMA copies the whole vectors of first, second and visible
};

// Chunk `number` of a row.
template <SoftmaxConfig C, bool kBackward>
__device__ __forceinline__ StagedChunk find_chunk(const SoftmaxArguments& arguments, int64_t row,
                                                  int64_t number) {
  StagedChunk chunk{};
  chunk.rows = find_row<C, kBackward>(arguments, row, 0, arguments.length,
                                      arguments.chunks * arguments.chunk / C.vector());
  const int64_t begin = number * arguments.chunk - chunk.rows.shift;
  chunk.begin = static_cast<int>(begin);
  chunk.end = static_cast<int>(min(arguments.length, begin + arguments.chunk));
  return chunk;
}

// Shared memory of one: kTurns times C.held vectors for each thread.
template <SoftmaxConfig C, bool kBackward, int kTurns = 1>
struct ChunkVectors {
  template <DType D, bool kPresent>
  using Vectors = Vector<D, C.vector()>[kPresent ? kTurns * C.held : 1][kPresent ? C.threads() : 1];
  Vectors<kBackward ? C.out : C.in, true> first;
  alignas(16) Vectors<C.out, kBackward> second;
  alignas(16) Vectors<DType::kBool, C.masked> visible;
};

// The parts of a chunk that TMA copies.
template <SoftmaxConfig C, bool kBackward>
class ChunkCopy {
 public:
  template <class Vectors>
  __device__ __forceinline__ ChunkCopy(StagedChunk& chunk, const Vectors& to) {
    constexpr DType kFirst = kBackward ? C.out : C.in;
    part_[0] = part_of<kFirst>(chunk, chunk.rows.first, to.first);
    if constexpr (kBackward) part_[1] = part_of<C.out>(chunk, chunk.rows.second, to.second);
    if constexpr (C.masked) part_[2] = part_of<DType::kBool>(chunk, chunk.rows.visible, to.visible);
#pragma unroll
    for (int i = 0; i < 3; ++i) chunk.staged[i] = part_[i].bytes != 0;
  }

  // The calling thread arrives at the barrier, whose phase completes with the last byte.
  __device__ __forceinline__ void start(uint32_t barrier) const {
    ptx::mbarrier_arrive_expect_tx(barrier, part_[0].bytes + part_[1].bytes + part_[2].bytes);
    for (const Part& part : part_)
      if (part.bytes != 0) ptx::bulk_load(part.to, part.from, part.bytes, barrier);
  }

 private:
  struct Part {
    const char* from;
    uint32_t to, bytes;
  };
  // Its whole vectors; no bytes where they are misaligned for TMA.
  template <DType D, class Vectors>
  static __device__ __forceinline__ Part part_of(const StagedChunk& chunk, const Row& row,
                                                 const Vectors& vectors) {
    constexpr int L = C.vector(), kBytes = static_cast<int>(size_of(D)) * L;
    const int skipped = chunk.begin < 0 ? 1 : 0;
    const int bytes = ((chunk.end - chunk.begin) / L - skipped) * kBytes;
    const char* from = row.data + (int64_t{chunk.begin} + skipped * L) * size_of(D);
    const uint64_t odd = reinterpret_cast<uint64_t>(from) |
                         static_cast<uint64_t>(skipped * kBytes) | static_cast<uint64_t>(bytes);
    if (!row.vectors || bytes <= 0 || odd % 16 != 0) return {};
    return {from, ptx::shared_address(vectors) + static_cast<uint32_t>(skipped * kBytes),
            static_cast<uint32_t>(bytes)};
  }

  Part part_[3] = {};
};

// A thread's part of a chunk, C.held vectors of it a turn.
template <SoftmaxConfig C, bool kBackward, int kTurns = 1>
class ChunkReader {
 public:
  static constexpr int L = C.vector();
  static constexpr int kBetween = C.threads() * L;  // of two vectors of a thread
  using Vectors = ChunkVectors<C, kBackward, kTurns>;
  using Held = Elements<C, kBackward>;

  __device__ __forceinline__ ChunkReader(const StagedChunk& chunk, Vectors& vectors, double scale)
      : chunk_(chunk), vectors_(vectors), scale_(scale) {}

  // Where the first vector of a turn begins.
  __device__ __forceinline__ int begin_of(int turn) const {
    return chunk_.begin + turn * C.held * kBetween + static_cast<int>(threadIdx.x) * L;
  }

  // Loads the vectors that TMA does not copy; before the first take.
  __device__ __forceinline__ void fix_up(int turn) const {
    const RowSet& rows = chunk_.rows;
    fix_up_one<Held::kFirst>(turn, rows.first, chunk_.staged[0], Held::padding(scale_),
                             vectors_.first);
    if constexpr (kBackward)
      fix_up_one<C.out>(turn, rows.second, chunk_.staged[1], {}, vectors_.second);
    if constexpr (C.masked)
      fix_up_one<DType::kBool>(turn, rows.visible, chunk_.staged[2], {}, vectors_.visible);
  }

  __device__ __forceinline__ void take(int turn, Held& held) const {
    take_one<Held::kFirst>(turn, vectors_.first, held.first);
    if constexpr (kBackward) take_one<C.out>(turn, vectors_.second, held.second);
    if constexpr (C.masked) {
      Vector<DType::kBool, L> visible[C.held];
      take_one<DType::kBool>(turn, vectors_.visible, visible);
      held.hide(visible, scale_);
    }
  }

 private:
  template <DType D, class All>
  __device__ __forceinline__ void fix_up_one(int turn, const Row& row, bool staged,
                                             const Word<D>& padding, All& all) const {
    const int begin = begin_of(turn);
    const Whole<D, L> whole(row, begin, kBetween, 0, chunk_.end);
    if (staged && !whole.leaves(C.held)) return;
    Vector<D, L> rest[C.held];
    const Extent extent = chunk_.rows.extent(chunk_.end, L);
    load_vectors<D, L>(row, begin, kBetween, extent, rest, staged);
    load_rest<D, L>(row, begin, kBetween, extent, padding, rest);
#pragma unroll
    for (int v = 0; v < C.held; ++v)
      if (!staged || !whole(v)) all[turn * C.held + v][threadIdx.x] = rest[v];
    ptx::fence_proxy_async();
  }
  template <DType D, class All>
  static __device__ __forceinline__ void take_one(int turn, const All& all,
                                                  Vector<D, L> (&to)[C.held]) {
#pragma unroll
    for (int v = 0; v < C.held; ++v) to[v] = all[turn * C.held + v][threadIdx.x];
  }

  const StagedChunk& chunk_;
  Vectors& vectors_;
  double scale_;
};

}  // namespace perseid::internal::cuda
