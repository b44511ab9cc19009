// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax and its gradient: the tasks, and what the kernel table calls.
//
// A task works some blocks from first to last: analyse every chunk, join, finish every chunk. Where
// there are few rows and they are long, the chunks of a row are shared out: first all are analysed,
// then rows are joined, then all are finished. What is computed is the same.
#pragma once

#include "cpu/simd/softmax_backward.hpp"
#include "cpu/simd/softmax_forward.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Kernel>
class SoftmaxRun {
  using Scratch = typename Kernel::Scratch;
  using Statistics = typename Kernel::Statistics;

 public:
  SoftmaxRun(const SoftmaxProblem& problem, const typename Kernel::Arguments& arguments,
             const Execution& execution)
      : problem_(problem),
        execution_(execution),
        kernel_(problem, arguments),
        cut_(kernel_.cut()),
        blocks_(kernel_.layout(), cut_.rows),
        worker_bytes_(worker_bytes(problem, cut_)) {}

  static size_t workspace(const SoftmaxProblem& problem, const SoftmaxCut& cut, int32_t workers) {
    const size_t shared =
        cut.segments == 1 ? 0 : static_cast<size_t>(problem.rows()) * statistics_bytes(cut);
    return static_cast<size_t>(workers) * worker_bytes(problem, cut) + shared;
  }

  void run() const {
    if (cut_.segments > 1) return run_split();
    const int64_t count = blocks_.count(), per_task = cut_.blocks_per_task;
    for_each_task(execution_.executor, ceil_div(count, per_task),
                  [&](int64_t task, int32_t worker) {
                    const int64_t first = task * per_task, last = min(count, first + per_task);
                    if (cut_.chunks == 1) {
                      run_short(first, last, worker);
                    } else {
                      run_long(first, last, worker);
                    }
                    end_task();
                  });
  }

 private:
  // Blocks of whole rows, one after the other.
  void run_short(int64_t first, int64_t last, int32_t worker) const {
    Arena arena(scratch_of(worker));
    const Scratch scratch(problem_, cut_, arena);
    const Statistics statistics(cut_, arena);
    SoftmaxPiece piece{blocks_.at(first)};
    for (int64_t b = first; b < last; ++b) {
      const SoftmaxPiece next{b + 1 < last ? blocks_.at(b + 1) : piece.block};
      kernel_.analyse(piece, scratch, statistics, next);
      kernel_.join(piece.block, statistics);
      kernel_.finish(piece, scratch, statistics, next);
      piece = next;
    }
  }

  // While a block is analysed, the block before it is finished, alternating by chunks, so that
  // memory is read and written at the same time.
  void run_long(int64_t first, int64_t last, int32_t worker) const {
    Arena arena(scratch_of(worker));
    const Scratch scratch[2] = {{problem_, cut_, arena}, {problem_, cut_, arena}};
    const Statistics statistics[2] = {{cut_, arena}, {cut_, arena}};
    SoftmaxPiece piece, before;
    for (int64_t b = first; b <= last; ++b) {
      const int64_t now = b % 2;
      if (b < last) piece.block = blocks_.at(b);
      for (int64_t chunk = 0; chunk < cut_.chunks; ++chunk) {
        piece.chunk = before.chunk = chunk;
        SoftmaxPiece next = piece;
        if (chunk + 1 < cut_.chunks) ++next.chunk;
        if (b < last) kernel_.analyse(piece, scratch[now], statistics[now], next);
        if (b > first) kernel_.finish(before, scratch[1 - now], statistics[1 - now], next);
      }
      if (b < last) kernel_.join(piece.block, statistics[now]);
      before.block = piece.block;
    }
  }

  void run_split() const {
    const int64_t count = blocks_.count();
    const auto each_segment = [&](const auto& body) {
      for_each_task(execution_.executor, count * cut_.segments, [&](int64_t task, int32_t worker) {
        Arena arena(scratch_of(worker));
        const Scratch scratch(problem_, cut_, arena);
        const Statistics statistics = statistics_of(task / cut_.segments);
        SoftmaxPiece piece{blocks_.at(task / cut_.segments)};
        piece.chunk = task % cut_.segments * SoftmaxCut::kSegmentChunks;
        const int64_t end = min(cut_.chunks, piece.chunk + SoftmaxCut::kSegmentChunks);
        for (; piece.chunk < end; ++piece.chunk) {
          SoftmaxPiece next = piece;
          if (piece.chunk + 1 < end) ++next.chunk;
          body(piece, scratch, statistics, next);
        }
        end_task();
      });
    };
    each_segment(
        [&](const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
            const SoftmaxPiece& after) { kernel_.analyse(piece, scratch, statistics, after); });
    for_each_task(execution_.executor, count, [&](int64_t block, int32_t) {
      const Statistics statistics = statistics_of(block);
      kernel_.join(blocks_.at(block), statistics);
    });
    each_segment(
        [&](const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
            const SoftmaxPiece& after) { kernel_.finish(piece, scratch, statistics, after); });
  }

  // Streamed stores are not ordered by the release that ends a task.
  void end_task() const {
    if (kernel_.stream()) F32::fence();
  }

  std::byte* scratch_of(int32_t worker) const {
    return execution_.workspace + static_cast<size_t>(worker) * worker_bytes_;
  }
  Statistics statistics_of(int64_t block) const {
    const size_t workers = static_cast<size_t>(execution_.executor.workers());
    Arena arena(execution_.workspace + workers * worker_bytes_ +
                static_cast<size_t>(block) * statistics_bytes(cut_));
    return Statistics(cut_, arena);
  }
  static size_t statistics_bytes(const SoftmaxCut& cut) {
    Arena arena(nullptr);
    Statistics(cut, arena);
    return arena.bytes();
  }
  static size_t worker_bytes(const SoftmaxProblem& problem, const SoftmaxCut& cut) {
    Arena arena(nullptr);
    for (int64_t i = 0; i < min(cut.chunks, int64_t{2}); ++i) {
      Scratch(problem, cut, arena);
      Statistics(cut, arena);
    }
    return arena.bytes();
  }

  const SoftmaxProblem& problem_;
  const Execution& execution_;
  const Kernel kernel_;
  const SoftmaxCut& cut_;
  const SoftmaxBlocks blocks_;
  const size_t worker_bytes_;
};

template <class Kernel>
size_t softmax_run_workspace(const SoftmaxProblem& problem, int32_t workers, int64_t lanes) {
  return max(SoftmaxRun<Kernel>::workspace(problem, SoftmaxCut(problem, true, lanes), workers),
             SoftmaxRun<Kernel>::workspace(problem, SoftmaxCut(problem, false, lanes), workers));
}

inline size_t softmax_workspace(const SoftmaxProblem& problem, int32_t workers, bool backward) {
  if (problem.rows() == 0) return 0;
  if (problem.compute_dtype() == DType::kF64)
    return backward
               ? softmax_run_workspace<SoftmaxBackwardKernel<F64>>(problem, workers, F64::kLanes)
               : softmax_run_workspace<SoftmaxForwardKernel<F64>>(problem, workers, F64::kLanes);
  return backward ? softmax_run_workspace<SoftmaxBackwardKernel<F32>>(problem, workers, F32::kLanes)
                  : softmax_run_workspace<SoftmaxForwardKernel<F32>>(problem, workers, F32::kLanes);
}

inline void softmax_forward(const SoftmaxProblem& problem, const SoftmaxForward& arguments,
                            const Execution& execution) {
  if (arguments.output.empty() && arguments.lse.empty()) return;
  if (problem.compute_dtype() == DType::kF64) {
    SoftmaxRun<SoftmaxForwardKernel<F64>>(problem, arguments, execution).run();
  } else {
    SoftmaxRun<SoftmaxForwardKernel<F32>>(problem, arguments, execution).run();
  }
}

inline void softmax_backward(const SoftmaxProblem& problem, const SoftmaxBackward& arguments,
                             const Execution& execution) {
  if (arguments.grad_input.empty()) return;
  if (problem.compute_dtype() == DType::kF64) {
    SoftmaxRun<SoftmaxBackwardKernel<F64>>(problem, arguments, execution).run();
  } else {
    SoftmaxRun<SoftmaxBackwardKernel<F32>>(problem, arguments, execution).run();
  }
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
