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
// difference of elements neither overflows nor loses what a large offset hides.
//
// What is masked is worked on as an element whose z is -inf. Rows whose result is not a number are
// written element by element, as there what is masked still is 0 or -inf.
#pragma once

#include <cmath>

#include "cpu/simd/softmax_layout.hpp"

namespace perseid::cpu::PERSEID_ISA {

template <class V>
class SoftmaxForwardKernel {
  using Scalar = typename V::Scalar;

 public:
  using Arguments = SoftmaxForward;

  // What is known of the rows of a block.
  struct Statistics {
    Scalar *shift, *factor;                       // of each chunk of each row: [chunks, rows]
    Scalar *row_shift, *row_factor, *row_offset;  // of each row, for finish_rows
    bool* not_a_number;                           // of each row: to be written element by element
    bool* any_not_a_number;

    Statistics(const SoftmaxCut& cut, Arena& arena)
        : shift(arena.take<Scalar>(cut.chunks * cut.rows)),
          factor(arena.take<Scalar>(cut.chunks * cut.rows)),
          row_shift(arena.take<Scalar>(cut.rows)),
          row_factor(arena.take<Scalar>(cut.rows)),
          row_offset(arena.take<Scalar>(cut.rows)),
          not_a_number(arena.take<bool>(cut.rows)),
          any_not_a_number(arena.take<bool>(1)) {}
  };

  // Of a worker.
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
        scale_(static_cast<Scalar>(problem.scale)),
        power_(static_cast<Scalar>(problem.scale * kLog2E)),
        stream_(problem.rows() * problem.length() * size_of(problem.out_dtype) > kStreamedBytes &&
                arguments.input.data != arguments.output.data) {}

  const SoftmaxLayout& layout() const { return layout_; }
  const SoftmaxCut& cut() const { return cut_; }
  bool stream() const { return stream_; }

  // `next` is what this worker will analyse next.
  void analyse(const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
               const SoftmaxPiece& next) const {
    Scalar* shift = statistics.shift + piece.chunk * cut_.rows;
    Scalar* sum = statistics.factor + piece.chunk * cut_.rows;
    const RowsOf<const Scalar> x = stage(piece, scratch, shift);
    for (int64_t r = 0; r < piece.block.rows; ++r)
      shift[r] = is_finite(shift[r]) ? shift[r] * sign_ : Scalar{0};
    exponentiate(piece, scratch, x, shift, sum, layout_.ahead(kRead, next));
  }

  void join(const SoftmaxBlock& block, const Statistics& statistics) const {
    *statistics.any_not_a_number = false;
    for (int64_t r = 0; r < block.rows; ++r) join_row(block, r, statistics);
  }

  void finish(const SoftmaxPiece& piece, const Scratch& scratch, const Statistics& statistics,
              const SoftmaxPiece&) const {
    Scalar* shift = statistics.shift + piece.chunk * cut_.rows;
    Scalar* factor = statistics.factor + piece.chunk * cut_.rows;
    RowsOf<const Scalar> x = numbers_of(piece, scratch);
    if (reads_in_place()) {
      x = elements<Scalar>(piece);
    } else if (!cut_.kept) {
      x = stage(piece, scratch, scratch.spare_shift);
      if (!problem_.log)
        exponentiate(piece, scratch, x, shift, scratch.spare_sum, layout_.ahead(kRead, piece));
    }
    if (!problem_.log) x = numbers_of(piece, scratch);
    if (*statistics.any_not_a_number) spell_out(piece, scratch, statistics);
    const RowTerms<V> terms{statistics.row_shift, problem_.log ? statistics.row_factor : factor,
                            statistics.row_offset};
    with_element<V>(problem_.out_dtype, [&](auto type) {
      write<decltype(type)>(piece, numbers_of(piece, scratch), x, terms);
    });
  }

 private:
  template <class T>
  RowsOf<const T> elements(const SoftmaxPiece& piece) const {
    return {reinterpret_cast<const T*>(layout_.address(kRead, piece)), layout_.row[kRead]};
  }
  RowsOf<Scalar> numbers_of(const SoftmaxPiece& piece, const Scratch& scratch) const {
    return {scratch.numbers + (cut_.kept ? piece.first() : 0), cut_.pitch};
  }
  // log-softmax needs the elements themselves a second time: from the caller's memory, if they are
  // there as they are computed with.
  bool reads_in_place() const {
    return problem_.log && !problem_.visible && layout_.along[kRead] == 1 &&
           layout_.bytes[kRead] == int64_t{sizeof(Scalar)};
  }

  // The elements as they are computed with, and the maxima of sign * x.
  RowsOf<const Scalar> stage(const SoftmaxPiece& piece, const Scratch& scratch,
                             Scalar* maximum) const {
    const int64_t n = cut_.length_of(piece);
    const RowsOf<Scalar> numbers = numbers_of(piece, scratch);
    RowsOf<const Scalar> x{numbers.data, numbers.pitch};
    const auto take_maxima = [&](auto rows) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(rows.data)>>;
      if (problem_.visible) {
        const RowsOf<const uint8_t> mask = gather_mask(layout_, piece, n, scratch.mask);
        row_maxima<V, T, true>(rows, mask, piece.block.rows, n, sign_, numbers, maximum);
      } else {
        row_maxima<V, T, false>(rows, {nullptr, 0}, piece.block.rows, n, sign_, numbers, maximum);
      }
    };
    with_element<V>(problem_.dtype, [&](auto type) {
      using T = decltype(type);
      const RowsOf<const T> rows = elements<T>(piece);
      if constexpr (kHasVectorsOf<V, T>) {
        if (layout_.along[kRead] == 1) {
          if constexpr (!kNeedsCopy<V, T>)
            if (!problem_.visible) x = rows;
          return take_maxima(rows);
        }
      }
      gather_rows<V>(rows, layout_.along[kRead], piece.block.rows, n, numbers);
      take_maxima(x);
    });
    return x;
  }

  void exponentiate(const SoftmaxPiece& piece, const Scratch& scratch, RowsOf<const Scalar> x,
                    const Scalar* shift, Scalar* sum, Ahead ahead) const {
    const int64_t rows = piece.block.rows, n = cut_.length_of(piece);
    if (problem_.log) {
      exponentials<V, false>(x, {nullptr, 0}, rows, n, shift, power_, sum, ahead);
    } else {
      exponentials<V, true>(x, numbers_of(piece, scratch), rows, n, shift, power_, sum, ahead);
    }
  }

  void join_row(const SoftmaxBlock& block, int64_t r, const Statistics& statistics) const {
    // A chunk without anything above -inf has sum 0.
    double row_shift = 0, total = statistics.factor[r];
    if (cut_.chunks == 1) {
      row_shift = statistics.shift[r];
    } else {
      total = join_chunks(r, statistics, &row_shift);
    }
    const double log_total = problem_.log || block.data[kOther] != nullptr ? log_of(total) : 0;
    write_lse(block, r, row_shift * problem_.scale + log_total);
    statistics.not_a_number[r] = false;
    statistics.row_shift[r] = problem_.log ? static_cast<Scalar>(row_shift) : 0;
    statistics.row_factor[r] = scale_;
    statistics.row_offset[r] = problem_.log ? static_cast<Scalar>(-log_total) : 0;
    if (cut_.chunks == 1) statistics.factor[r] = 1 / statistics.factor[r];
    if (!(total > 0 && total < kInfinity<V>)) join_odd_row(block, r, total, statistics);
  }

  // Turns the sums of a row's chunks into what their exponentials are to be multiplied by.
  double join_chunks(int64_t r, const Statistics& statistics, double* row_shift) const {
    Scalar *shift = statistics.shift + r, *factor = statistics.factor + r;
    const int64_t count = cut_.chunks, rows = cut_.rows;
    double highest = -kInfinity<F64>;
    for (int64_t c = 0; c < count; ++c)
      if (factor[c * rows] != 0) highest = max(highest, double{shift[c * rows] * sign_});
    if (highest == -kInfinity<F64>) return 0;
    *row_shift = highest * static_cast<double>(sign_);
    const auto power = [&](int64_t c) {
      return std::exp2((double{shift[c * rows]} - *row_shift) * problem_.scale * kLog2E);
    };
    double total = 0;
    for (int64_t c = 0; c < count; ++c)
      if (factor[c * rows] != 0) total += double{factor[c * rows]} * power(c);
    for (int64_t c = 0; c < count; ++c)
      factor[c * rows] = factor[c * rows] != 0 ? static_cast<Scalar>(power(c) / total) : Scalar{0};
    return total;
  }

  // A row with nothing in it but -inf, or with something that is not finite.
  void join_odd_row(const SoftmaxBlock& block, int64_t r, double total,
                    const Statistics& statistics) const {
    const bool empty = problem_.visible && total == 0 && !sees_any(block, r);
    const bool spelled_out = problem_.visible && !empty;
    const Scalar nan = static_cast<Scalar>(__builtin_nan(""));
    if (block.data[kOther] != nullptr)
      write_lse(block, r,
                total == 0           ? -kInfinity<F64>
                : sees_nan(block, r) ? __builtin_nan("")
                                     : kInfinity<F64>);
    const Scalar factor = spelled_out ? 1 : empty && !problem_.empty_rows_nan ? 0 : nan;
    for (int64_t c = 0; c < cut_.chunks; ++c) statistics.factor[c * cut_.rows + r] = factor;
    statistics.row_shift[r] = 0;
    statistics.row_factor[r] = spelled_out ? 1 : scale_;
    statistics.row_offset[r] = spelled_out || factor == 0 ? 0 : nan;
    statistics.not_a_number[r] = spelled_out;
    *statistics.any_not_a_number |= spelled_out;
  }

  void write_lse(const SoftmaxBlock& block, int64_t r, double lse) const {
    if (block.data[kOther] != nullptr)
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

  // The results of rows that are not a number, in place of their numbers.
  void spell_out(const SoftmaxPiece& piece, const Scratch& scratch,
                 const Statistics& statistics) const {
    const RowsOf<Scalar> numbers = numbers_of(piece, scratch);
    const Scalar masked = problem_.log ? -kInfinity<V> : 0;
    for (int64_t r = 0; r < piece.block.rows; ++r) {
      if (!statistics.not_a_number[r]) continue;
      for (int64_t j = 0; j < cut_.length_of(piece); ++j)
        numbers.data[r * numbers.pitch + j] = sees(piece.block, r, piece.first() + j)
                                                  ? static_cast<Scalar>(__builtin_nan(""))
                                                  : masked;
    }
  }

  template <class T>
  void write(const SoftmaxPiece& piece, RowsOf<Scalar> numbers, RowsOf<const Scalar> x,
             const RowTerms<V>& terms) const {
    write_block<V, T>(
        layout_, piece, cut_.length_of(piece), stream_, numbers, [&](auto out, bool stream) {
          using To = std::remove_pointer_t<decltype(out.data)>;
          finish_rows<V, To>(x, out, piece.block.rows, cut_.length_of(piece), terms, stream);
        });
  }

  static bool is_finite(Scalar x) { return x - x == 0; }
  static double log_of(double x) { return static_cast<double>(std::log(static_cast<Scalar>(x))); }

  const SoftmaxProblem& problem_;
  const SoftmaxLayout layout_;
  const SoftmaxCut cut_;
  const Scalar sign_, scale_, power_;
  const bool stream_;
};

}  // namespace perseid::cpu::PERSEID_ISA
