// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax forward: what happens to one chunk of a block, and what joins the chunks of a row. With
// z = scale * x, m the maximum of z in a chunk and M that of the row,
//
//   analyse   m and s = sum exp(z - m) of every chunk; exp(z - m) stays in scratch memory
//   join      S = sum of s exp(m - M)
//   finish    y = exp(z - m) * (exp(m - M) / S), or for log-softmax z - M - log(S)
//
// Where the exponentials of a row do not stay, finish makes them again from the same m, to the same
// bits. Powers of two are computed, of (x - shift) * (scale * log2 e), where scale * shift = m: a
// difference of elements loses nothing that a large offset hides.
//
// What is masked is worked on as an element whose z is -inf. Rows whose result is not a number are
// written element by element, as there what is masked still is 0 or -inf.
#pragma once

#include <cmath>

#include "cpu/simd/softmax_layout.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class V>
class SoftmaxForwardKernel {
  using Scalar = typename V::Scalar;

 public:
  using Arguments = SoftmaxForward;

  // What is known of the rows of a block.
  struct Statistics {
    Scalar *shift, *sum, *factor;  // of each chunk of each row: [chunks, rows]
    Scalar* row_total;
    Scalar *row_factor, *row_shift, *row_offset;  // for finish_rows, of log-softmax
    bool* spelled_out;                            // rows to be written element by element
    bool* any_spelled_out;

    Statistics(const SoftmaxCut& cut, Arena& arena)
        : shift(arena.take<Scalar>(cut.chunks * cut.rows)),
          sum(arena.take<Scalar>(cut.chunks * cut.rows)),
          factor(arena.take<Scalar>(cut.chunks * cut.rows)),
          row_total(arena.take<Scalar>(cut.rows)),
          row_factor(arena.take<Scalar>(cut.rows)),
          row_shift(arena.take<Scalar>(cut.rows)),
          row_offset(arena.take<Scalar>(cut.rows)),
          spelled_out(arena.take<bool>(cut.rows)),
          any_spelled_out(arena.take<bool>(1)) {}
  };

  // Memory of a worker.
  struct Scratch {
    Scalar* numbers;                  // elements of a block, masked or exponentiated
    Scalar *spare_shift, *spare_sum;  // [rows] what is made a second time
    uint8_t* mask;

    Scratch(const SoftmaxProblem& problem, const SoftmaxCut& cut, Arena& arena)
        : numbers(arena.take<Scalar>(cut.capacity)),
          spare_shift(arena.take<Scalar>(cut.rows)),
          spare_sum(arena.take<Scalar>(cut.rows)),
          mask(arena.take<uint8_t>(problem.visible ? cut.rows * cut.chunk : 0)) {}
  };

  SoftmaxForwardKernel(const SoftmaxProblem& problem, const SoftmaxForward& arguments)
      : problem_(problem),
        layout_(problem, {&arguments.input, &arguments.output, &arguments.visible, &arguments.lse}),
        cut_(problem, layout_.contiguous(false), V::kLanes),
        sign_(problem.scale < 0 ? Scalar{-1} : Scalar{1}),
        scale_(problem.scale),
        power_(problem.scale * kLog2E),
        stream_(problem.rows() * problem.length() * size_of(problem.out_dtype) > kStreamedBytes &&
                arguments.input.data != arguments.output.data),
        direct_(!problem.visible && layout_.along[kRead] == 1 &&
                layout_.bytes[kRead] == int64_t{sizeof(Scalar)}) {}

  const SoftmaxLayout& layout() const { return layout_; }
  const SoftmaxCut& cut() const { return cut_; }
  bool stream() const { return stream_; }

  // `next` is what this worker will analyse next.
  void analyse(const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
               const SoftmaxPiece& next) const {
    Scalar* shift = statistics.shift + piece.chunk * cut_.rows;
    Scalar* sum = statistics.sum + piece.chunk * cut_.rows;
    find_maxima(piece, scratch, shift);
    for (int64_t r = 0; r < piece.block.rows; ++r)
      shift[r] = is_finite(shift[r]) ? shift[r] * sign_ : Scalar{0};
    exponentiate(piece, scratch, shift, sum, layout_.ahead(kRead, next));
  }

  // Everything that finish needs to know. Loops are short and many, so that they become vectors.
  void join(const SoftmaxBlock& block, const Statistics& statistics) const {
    const int64_t rows = block.rows;
    Scalar *shift = statistics.row_shift, *total = statistics.row_total;
    Scalar *factor = statistics.row_factor, *offset = statistics.row_offset;
    if (cut_.chunks == 1) {
      for (int64_t r = 0; r < rows; ++r) shift[r] = statistics.shift[r];
      for (int64_t r = 0; r < rows; ++r) total[r] = statistics.sum[r];
      for (int64_t r = 0; r < rows; ++r) statistics.factor[r] = 1 / statistics.sum[r];
    } else {
      for (int64_t r = 0; r < rows; ++r) join_chunks(r, statistics);
    }
    bool odd = false;
    for (int64_t r = 0; r < rows; ++r) odd |= is_odd(total[r]);
    if (problem_.log || block.data[kOther] != nullptr)
      for (int64_t r = 0; r < rows; ++r) offset[r] = -std::log(total[r]);
    for (int64_t r = 0; r < rows && block.data[kOther] != nullptr; ++r)
      write_lse(block, r, double{shift[r]} * problem_.scale - double{offset[r]});
    for (int64_t r = 0; r < rows && problem_.log; ++r) factor[r] = scale_.after;
    *statistics.any_spelled_out = false;
    for (int64_t r = 0; r < rows && odd; ++r) {
      statistics.spelled_out[r] = false;
      if (is_odd(total[r])) join_odd_row(block, r, statistics);
    }
  }

  void finish(const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
              const SoftmaxPiece&) const {
    const Scalar* shift = statistics.shift + piece.chunk * cut_.rows;
    const Scalar* factor = statistics.factor + piece.chunk * cut_.rows;
    if (!cut_.kept) {
      if (!direct_) find_maxima(piece, scratch, scratch.spare_shift);
      if (!problem_.log)
        exponentiate(piece, scratch, shift, scratch.spare_sum, layout_.ahead(kRead, piece));
    }
    if (*statistics.any_spelled_out) spell_out(piece, scratch, statistics);
    const RowTerms<V> terms = problem_.log
                                  ? RowTerms<V>{statistics.row_factor, statistics.row_shift,
                                                statistics.row_offset, scale_.before}
                                  : RowTerms<V>{factor};
    const RowsOf<const Scalar> x =
        problem_.log ? elements(piece, scratch) : numbers_of(piece, scratch);
    with_element<V>(problem_.out_dtype, [&](auto type) {
      const int64_t rows = piece.block.rows, n = cut_.length_of(piece);
      write_block<V, decltype(type)>(layout_, piece, n, stream_, numbers_of(piece, scratch),
                                     [&](auto out, bool stream) {
                                       using To = std::remove_pointer_t<decltype(out.data)>;
                                       finish_rows<V, To>(x, out, rows, n, terms, stream);
                                     });
    });
  }

 private:
  template <class T>
  RowsOf<const T> read(const SoftmaxPiece& piece) const {
    return {reinterpret_cast<const T*>(layout_.address(kRead, piece)), layout_.row[kRead]};
  }
  RowsOf<Scalar> numbers_of(const SoftmaxPiece& piece, const Scratch& scratch) const {
    return {scratch.numbers + (cut_.kept ? piece.first() : 0), cut_.pitch};
  }

  // The elements to compute with: the caller's, or what find_maxima made of them.
  RowsOf<const Scalar> elements(const SoftmaxPiece& piece, const Scratch& scratch) const {
    if (direct_) return read<Scalar>(piece);
    return numbers_of(piece, scratch);
  }

  // The maxima of sign * x. What cannot be computed with directly becomes numbers.
  void find_maxima(const SoftmaxPiece& piece, const Scratch& scratch, Scalar* maximum) const {
    const int64_t rows = piece.block.rows, n = cut_.length_of(piece);
    const RowsOf<Scalar> numbers = numbers_of(piece, scratch);
    const RowsOf<const uint8_t> mask = gather_mask(layout_, piece, n, scratch.mask);
    with_element<V>(problem_.dtype, [&](auto type) {
      using From = decltype(type);
      const RowsOf<const From> x = read<From>(piece);
      if constexpr (kHasVectorsOf<V, From>) {
        if (layout_.along[kRead] == 1)
          return sign_ < 0 ? row_maxima<V, From, true>(x, mask, rows, n, numbers, maximum)
                           : row_maxima<V, From, false>(x, mask, rows, n, numbers, maximum);
      }
      gather_rows<V>(x, layout_.along[kRead], rows, n, numbers);
      sign_ < 0 ? row_maxima<V, Scalar, true>(numbers, mask, rows, n, numbers, maximum)
                : row_maxima<V, Scalar, false>(numbers, mask, rows, n, numbers, maximum);
    });
  }

  void exponentiate(const SoftmaxPiece& piece, const Scratch& scratch, const Scalar* shift,
                    Scalar* sum, Ahead ahead) const {
    const RowsOf<const Scalar> x = elements(piece, scratch);
    const RowsOf<Scalar> out = numbers_of(piece, scratch);
    const int64_t rows = piece.block.rows, n = cut_.length_of(piece);
    problem_.log ? exponentials<V, false>(x, out, rows, n, shift, power_, sum, ahead)
                 : exponentials<V, true>(x, out, rows, n, shift, power_, sum, ahead);
  }

  // Nothing but -inf, or something that is not finite. What is finite contributes at least 1.
  static bool is_odd(Scalar total) { return !(total > 0 && total < kInfinity<V>); }

  // The sum of a row, and what the exponentials of each chunk are to be multiplied by.
  void join_chunks(int64_t r, const Statistics& statistics) const {
    const Scalar *shift = statistics.shift + r, *sum = statistics.sum + r;
    Scalar* factor = statistics.factor + r;
    const int64_t count = cut_.chunks, rows = cut_.rows;
    double highest = -kInfinity<F64>;
    for (int64_t c = 0; c < count; ++c)
      if (sum[c * rows] != 0) highest = max(highest, double{shift[c * rows] * sign_});
    const double row_shift = highest == -kInfinity<F64> ? 0 : highest * double{sign_};
    double total = 0;
    for (int64_t c = 0; c < count; ++c) {
      const double power =
          std::exp2((double{shift[c * rows]} - row_shift) * problem_.scale * kLog2E);
      factor[c * rows] = sum[c * rows] != 0 ? static_cast<Scalar>(power) : Scalar{0};
      total += sum[c * rows] != 0 ? double{sum[c * rows]} * power : 0;
    }
    for (int64_t c = 0; c < count; ++c)
      factor[c * rows] = static_cast<Scalar>(double{factor[c * rows]} / total);
    statistics.row_shift[r] = static_cast<Scalar>(row_shift);
    statistics.row_total[r] = static_cast<Scalar>(total);
  }

  void join_odd_row(const SoftmaxBlock& block, int64_t r, const Statistics& statistics) const {
    const bool nothing = statistics.row_total[r] == 0;
    const bool empty = problem_.visible && nothing && !sees_any(block, r);
    const bool spelled_out = problem_.visible && !empty;
    const Scalar nan = static_cast<Scalar>(__builtin_nan(""));
    if (block.data[kOther] != nullptr)
      write_lse(block, r,
                nothing              ? -kInfinity<F64>
                : sees_nan(block, r) ? __builtin_nan("")
                                     : kInfinity<F64>);
    const Scalar factor = spelled_out ? 1 : empty && !problem_.empty_rows_nan ? 0 : nan;
    for (int64_t c = 0; c < cut_.chunks; ++c) statistics.factor[c * cut_.rows + r] = factor;
    statistics.row_shift[r] = 0;
    statistics.row_factor[r] = spelled_out ? 1 : scale_.after;
    statistics.row_offset[r] = spelled_out || factor == 0 ? 0 : nan;
    statistics.spelled_out[r] = spelled_out;
    *statistics.any_spelled_out |= spelled_out;
  }

  void write_lse(const SoftmaxBlock& block, int64_t r, double lse) const {
    reinterpret_cast<Scalar*>(block.data[kOther])[r * layout_.row[kOther]] =
        static_cast<Scalar>(lse);
  }

  bool sees(const SoftmaxBlock& block, int64_t r, int64_t j) const {
    return !problem_.visible ||
           block.data[kMask][r * layout_.row[kMask] + j * layout_.along[kMask]] != std::byte{0};
  }
  bool sees_any(const SoftmaxBlock& block, int64_t r) const {
    for (int64_t j = 0; j < cut_.length; ++j)
      if (sees(block, r, j)) return true;
    return false;
  }
  bool sees_nan(const SoftmaxBlock& block, int64_t r) const {
    bool found = false;
    with_element<V>(problem_.dtype, [&](auto type) {
      const auto* x = reinterpret_cast<const decltype(type)*>(block.data[kRead]);
      for (int64_t j = 0; j < cut_.length && !found; ++j) {
        const Scalar value = convert<Scalar>(x[r * layout_.row[kRead] + j * layout_.along[kRead]]);
        found = sees(block, r, j) && value != value;
      }
    });
    return found;
  }

  // Replaces the numbers of rows whose result is NaN by their results.
  void spell_out(const SoftmaxPiece& piece, const Scratch& scratch,
                 const Statistics& statistics) const {
    const RowsOf<Scalar> numbers = numbers_of(piece, scratch);
    const Scalar masked = problem_.log ? -kInfinity<V> : 0;
    for (int64_t r = 0; r < piece.block.rows; ++r) {
      if (!statistics.spelled_out[r]) continue;
      for (int64_t j = 0; j < cut_.length_of(piece); ++j)
        numbers.data[r * numbers.pitch + j] = sees(piece.block, r, piece.first() + j)
                                                  ? static_cast<Scalar>(__builtin_nan(""))
                                                  : masked;
    }
  }

  static bool is_finite(Scalar x) { return x - x == 0; }

  const SoftmaxProblem& problem_;
  const SoftmaxLayout layout_;
  const SoftmaxCut cut_;
  const Scalar sign_;
  const DifferenceFactor<V> scale_, power_;
  const bool stream_;
  const bool direct_;  // elements are computed with where the caller has them
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
