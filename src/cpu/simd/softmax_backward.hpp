// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax backward: what happens to one chunk of a block, and what joins the chunks of a row.
//
//   analyse   s = sum dy y of every chunk, or for log-softmax sum dy
//   join      S = the sum of s
//   finish    dx = scale * y * (dy - S), or scale * (dy - exp(y) * S)
//
// dy and y come from the caller's memory both times if they are there as they are computed with,
// else by way of scratch memory; what is masked has dy 0 there, and y 0 or -inf.
#pragma once

#include <cmath>

#include "cpu/simd/softmax_layout.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class V>
class SoftmaxBackwardKernel {
  using Scalar = typename V::Scalar;

 public:
  using Arguments = SoftmaxBackward;
  static constexpr bool kBackward = true;

  // What is known of the rows of a block.
  struct Statistics {
    Scalar* sum;      // of each chunk of each row: [chunks, rows]
    Scalar* row_sum;  // of each row
    bool* any_infinite;

    Statistics(const SoftmaxCut& cut, Arena& arena)
        : sum(arena.take<Scalar>(cut.chunks * cut.rows)),
          row_sum(arena.take<Scalar>(cut.rows)),
          any_infinite(arena.take<bool>(1)) {}
  };

  // Memory of a worker.
  struct Scratch {
    Scalar *grad, *y;   // elements of a piece
    Scalar* spare_sum;  // [rows] what is made a second time
    uint8_t* mask;

    Scratch(const SoftmaxProblem& problem, const SoftmaxCut& cut, Arena& arena)
        : grad(arena.take<Scalar>(cut.rows * cut.pitch)),
          y(arena.take<Scalar>(cut.rows * cut.pitch)),
          spare_sum(arena.take<Scalar>(cut.rows)),
          mask(arena.take<uint8_t>(problem.visible ? cut.rows * cut.chunk : 0)) {}
  };

  SoftmaxBackwardKernel(const SoftmaxProblem& problem, const SoftmaxBackward& arguments)
      : problem_(problem),
        layout_(problem, {&arguments.grad_output, &arguments.grad_input, &arguments.visible,
                          &arguments.output}),
        cut_(problem, layout_.contiguous(kBackward), V::kLanes),
        scale_(static_cast<Scalar>(problem.scale)),
        stream_(problem.rows() * problem.length() * size_of(problem.dtype) > kStreamedBytes &&
                arguments.grad_output.data != arguments.grad_input.data),
        direct_(!problem.visible && layout_.along[kRead] == 1 && layout_.along[kOther] == 1 &&
                (sizeof(Scalar) == 4 || problem.out_dtype == DType::kF64)) {}

  const SoftmaxLayout& layout() const { return layout_; }
  const SoftmaxCut& cut() const { return cut_; }
  bool stream() const { return stream_; }

  // `next` is what this worker will analyse next.
  void analyse(const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
               const SoftmaxPiece& next) const {
    add_up(piece, scratch, statistics.sum + piece.chunk * cut_.rows, layout_.ahead(kRead, next));
  }

  void join(const SoftmaxBlock& block, const Statistics& statistics) const {
    *statistics.any_infinite = false;
    for (int64_t r = 0; r < block.rows; ++r) {
      double total = 0;
      for (int64_t c = 0; c < cut_.chunks; ++c) total += double{statistics.sum[c * cut_.rows + r]};
      statistics.row_sum[r] = static_cast<Scalar>(total);
      *statistics.any_infinite |= !(total - total == 0);
    }
  }

  void finish(const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
              const SoftmaxPiece& next) const {
    const int64_t rows = piece.block.rows, n = cut_.length_of(piece);
    if (!direct_ && cut_.chunks > 1)
      add_up(piece, scratch, scratch.spare_sum, layout_.ahead(kRead, piece));
    const bool spelled_out = problem_.visible && *statistics.any_infinite;
    if (spelled_out) spell_out(piece, scratch, statistics);
    with_element<V>(problem_.dtype, [&](auto type) {
      write_block<V, decltype(type)>(
          layout_, piece, n, stream_, {scratch.grad, cut_.pitch}, [&](auto out, bool stream) {
            if (spelled_out) return copy_rows(scratch, out, rows, n);
            with_elements(piece, scratch, [&](auto grad, auto y) {
              gradients<V>(grad, y, out, rows, n, statistics.row_sum, scale_, problem_.log, stream,
                           layout_.ahead(kOther, next));
            });
          });
    });
  }

 private:
  template <class T>
  RowsOf<const T> read(SoftmaxOperand operand, const SoftmaxPiece& piece) const {
    return {reinterpret_cast<const T*>(layout_.address(operand, piece)), layout_.row[operand]};
  }

  // Calls body(dy, y), to compute with: the caller's, or what add_up made of them.
  template <class Body>
  void with_elements(const SoftmaxPiece& piece, const Scratch& scratch, const Body& body) const {
    if (!direct_)
      return body(RowsOf<const Scalar>{scratch.grad, cut_.pitch},
                  RowsOf<const Scalar>{scratch.y, cut_.pitch});
    with_element<V>(problem_.out_dtype, [&](auto type) {
      using From = decltype(type);
      if constexpr (kHasVectorsOf<V, From>)
        body(read<From>(kRead, piece), read<From>(kOther, piece));
    });
  }

  // The sums of a piece. What cannot be computed with directly goes to scratch memory.
  void add_up(const SoftmaxPiece& piece, const Scratch& scratch, Scalar* sum, Ahead ahead) const {
    const int64_t rows = piece.block.rows, n = cut_.length_of(piece);
    const RowsOf<Scalar> grad_copy{scratch.grad, cut_.pitch}, y_copy{scratch.y, cut_.pitch};
    const RowsOf<const uint8_t> mask = gather_mask(layout_, piece, n, scratch.mask);
    with_element<V>(problem_.out_dtype, [&](auto type) {
      using From = decltype(type);
      const RowsOf<const From> grad = read<From>(kRead, piece), y = read<From>(kOther, piece);
      if constexpr (kHasVectorsOf<V, From>) {
        if (layout_.along[kRead] == 1 && layout_.along[kOther] == 1)
          return row_sums<V, From>(grad, y, mask, rows, n, problem_.log, grad_copy, y_copy, sum,
                                   ahead);
      }
      gather_rows<V>(grad, layout_.along[kRead], rows, n, grad_copy);
      gather_rows<V>(y, layout_.along[kOther], rows, n, y_copy);
      row_sums<V, Scalar>(grad_copy, y_copy, mask, rows, n, problem_.log, grad_copy, y_copy, sum,
                          ahead);
    });
  }

  // Replaces dy by the gradients in rows whose sum is not finite: there 0 times the sum is not 0.
  void spell_out(const SoftmaxPiece& piece, const Scratch& scratch,
                 const Statistics& statistics) const {
    const std::byte* mask = layout_.address(kMask, piece);
    for (int64_t r = 0; r < piece.block.rows; ++r) {
      const Scalar sum = statistics.row_sum[r];
      Scalar *grad = scratch.grad + r * cut_.pitch, *y = scratch.y + r * cut_.pitch;
      for (int64_t j = 0; j < cut_.length_of(piece); ++j) {
        const bool seen = mask[r * layout_.row[kMask] + j * layout_.along[kMask]] != std::byte{0};
        const Scalar p = problem_.log ? std::exp(y[j]) : y[j];
        const Scalar dx = problem_.log ? grad[j] - p * sum : p * (grad[j] - sum);
        grad[j] = seen ? scale_ * dx : 0;
      }
    }
  }

  template <class To>
  void copy_rows(const Scratch& scratch, RowsOf<To> out, int64_t rows, int64_t n) const {
    constexpr Scalar kOne = 1;
    for (int64_t r = 0; r < rows; ++r)
      finish_rows<V, To>({scratch.grad + r * cut_.pitch, 0}, {out.data + r * out.pitch, 0}, 1, n,
                         {&kOne}, false);
  }

  const SoftmaxProblem& problem_;
  const SoftmaxLayout layout_;
  const SoftmaxCut cut_;
  const Scalar scale_;
  const bool stream_;
  const bool direct_;  // dy and y are computed with where the caller has them
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
