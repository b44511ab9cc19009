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

namespace perseid::cpu::PERSEID_ISA {

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
    const int64_t count = blocks_.count();
    const int64_t per_task = max(SoftmaxCut::kTask / (cut_.rows * cut_.chunk * cut_.chunks), int64_t{1});
    for_each_task(execution_.executor, ceil_div(count, per_task),
                  [&](int64_t task, int32_t worker) {
                    Arena arena(scratch_of(worker));
                    const Scratch scratch(problem_, cut_, arena);
                    const Statistics statistics(cut_, arena);
                    const int64_t end = min(count, (task + 1) * per_task);
                    SoftmaxPiece piece{blocks_.at(task * per_task)};
                    for (int64_t b = task * per_task; b < end; ++b) {
                      const SoftmaxPiece next{b + 1 < end ? blocks_.at(b + 1) : piece.block};
                      for_each_chunk(piece, 0, cut_.chunks, next, [&](const SoftmaxPiece& after) {
                        kernel_.analyse(piece, scratch, statistics, after);
                      });
                      kernel_.join(piece.block, statistics);
                      for_each_chunk(piece, 0, cut_.chunks, next, [&](const SoftmaxPiece& after) {
                        kernel_.finish(piece, scratch, statistics, after);
                      });
                      piece = next;
                    }
                    end_task();
                  });
  }

 private:
  void run_split() const {
    const int64_t count = blocks_.count();
    const auto each_segment = [&](const auto& body) {
      for_each_task(execution_.executor, count * cut_.segments, [&](int64_t task, int32_t worker) {
        Arena arena(scratch_of(worker));
        const Scratch scratch(problem_, cut_, arena);
        const Statistics statistics = statistics_of(task / cut_.segments);
        SoftmaxPiece piece{blocks_.at(task / cut_.segments)};
        const int64_t first = task % cut_.segments * SoftmaxCut::kSegmentChunks;
        const int64_t last = min(cut_.chunks, first + SoftmaxCut::kSegmentChunks);
        for_each_chunk(piece, first, last, piece,
                       [&](const SoftmaxPiece& after) { body(piece, scratch, statistics, after); });
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

  // body(what comes after) for `piece` as every chunk of its block in turn.
  template <class Body>
  void for_each_chunk(SoftmaxPiece& piece, int64_t first, int64_t last, const SoftmaxPiece& next,
                      const Body& body) const {
    for (piece.chunk = first; piece.chunk < last; ++piece.chunk) {
      SoftmaxPiece after = next;
      if (piece.chunk + 1 < last) after = {piece.block, piece.chunk + 1};
      body(after);
    }
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
    Scratch(problem, cut, arena);
    Statistics(cut, arena);
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
  if (problem.rows() == 0) return;
  if (problem.compute_dtype() == DType::kF64) {
    SoftmaxRun<SoftmaxForwardKernel<F64>>(problem, arguments, execution).run();
  } else {
    SoftmaxRun<SoftmaxForwardKernel<F32>>(problem, arguments, execution).run();
  }
}

inline void softmax_backward(const SoftmaxProblem& problem, const SoftmaxBackward& arguments,
                             const Execution& execution) {
  if (problem.rows() == 0) return;
  if (problem.compute_dtype() == DType::kF64) {
    SoftmaxRun<SoftmaxBackwardKernel<F64>>(problem, arguments, execution).run();
  } else {
    SoftmaxRun<SoftmaxBackwardKernel<F32>>(problem, arguments, execution).run();
  }
}

}  // namespace perseid::cpu::PERSEID_ISA
