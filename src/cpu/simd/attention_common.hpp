// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention's forward and backward share: views of one head, scores made ready for the
// exponential, and the keys and values that hold NaN or infinity.
//
// Scores live in units of log2: s * scale * log2(e) + bias * log2(e), so that every exponential is
// an exp2 and every logarithm is converted once, at the end.
#pragma once

#include "cpu/simd/dropout.hpp"
#include "cpu/simd/pack.hpp"
#include "cpu/simd/vector_math.hpp"
#include "math/attention_problem.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// Rows of one head of one sequence: tensor is [batch, heads, rows, dim], or [heads, total, dim]
// where ragged.
template <class T>
PERSEID_INLINE StridedOutput<T> output_view(const Tensor& tensor, bool ragged, int64_t batch,
                                            int64_t head, int64_t row) {
  const int64_t* stride = tensor.stride + (ragged ? 0 : 1);
  const int64_t offset =
      (ragged ? 0 : batch * tensor.stride[0]) + head * stride[0] + row * stride[1];
  return {tensor.as<T>() + offset, stride[1], stride[2]};
}
template <class T>
PERSEID_INLINE Strided<T> head_view(const Tensor& tensor, bool ragged, int64_t batch, int64_t head,
                                    int64_t row) {
  const StridedOutput<T> view = output_view<T>(tensor, ragged, batch, head, row);
  return {view.data, view.row, view.column};
}

// A row of lse, [batch, heads, rows] or [heads, total].
template <class Scalar>
PERSEID_INLINE Scalar* lse_row(const Tensor& tensor, bool ragged, int64_t batch, int64_t head,
                               int64_t row) {
  const int64_t* stride = tensor.stride + (ragged ? 0 : 1);
  return tensor.as<Scalar>() + (ragged ? 0 : batch * tensor.stride[0]) + head * stride[0] +
         row * stride[1];
}

// Maxima up to this count as -inf (math/attention_problem.hpp), in units of log2.
template <class Scalar>
inline constexpr Scalar kNoScore = sizeof(Scalar) == 4 ? static_cast<Scalar>(kLeastScore* kLog2E)
                                                       : -static_cast<Scalar>(__builtin_huge_val());

// max + log2(sum), in units of log2, to the natural logarithm; -inf for a row with nothing visible.
template <class Scalar>
PERSEID_INLINE Scalar natural_lse(Scalar max, Scalar sum) {
  if (sum == 0) return -static_cast<Scalar>(__builtin_inf());
  return static_cast<Scalar>(static_cast<double>(max) * kLn2 +
                             __builtin_log(static_cast<double>(sum)));
}

// The score chain (math/score_chain.hpp) of one (batch, head), for the rows and keys of one
// sequence: scale, modifier, bias and mask.
template <class V>
struct ScoreChain {
  using Scalar = typename V::Scalar;
  using Arithmetic = ScoreArithmetic<V>;
  const AttentionProblem& problem;
  Sequence sequence;
  Tensor bias, visible;  // absent where the problem has none
  int64_t batch, head;
  Scalar scale;  // problem.scale * log2(e)

  // Whether rows [row, row + rows) see all keys [key, key_end) with nothing but the scale to apply,
  // and that keeps their order: the largest raw product is the largest score.
  bool plain(int64_t row, int64_t rows, int64_t key, int64_t key_end) const {
    if (problem.modifier.kind != ScoreModifierKind::kNone || bias.present() || visible.present() ||
        scale < 0)
      return false;
    return visible_keys(problem, row, sequence.q_len, sequence.kv_len).end >= key_end &&
           visible_keys(problem, row + rows - 1, sequence.q_len, sequence.kv_len).begin <= key;
  }

  // s[0, count): raw products of `row` with keys key..key + count; becomes scores, -inf at keys
  // that are masked or past the sequence. count is a multiple of kLanes. `modified`, where given,
  // gets the scores without bias and mask. Not inlined, to keep its code out of the loops of blocks
  // that are plain.
  [[gnu::noinline]] void apply(int64_t row, int64_t key, int64_t count, Scalar* s,
                               Scalar* modified = nullptr) const {
    const KeyRange range = visible_keys(problem, row, sequence.q_len, sequence.kv_len);
    const int64_t begin = clamp(range.begin - key, int64_t{0}, count);
    const int64_t end = clamp(range.end - key, begin, count);
    const typename V::Reg factor = V::set1(scale);
    with_modifier<Scalar>(problem.modifier, [&](auto modifier) {
      for (int64_t j = 0; j < count; j += V::kLanes)
        V::store(s + j, score_log2<Arithmetic>(V::load(s + j), factor, modifier));
    });
    for (int64_t j = 0; modified != nullptr && j < count; j += V::kLanes)
      V::store(modified + j, V::load(s + j));
    if (bias.present()) add_bias(row, key, begin, end, s);
    for (int64_t j = 0; j < begin; ++j) s[j] = -kInfinity;
    if (visible.present()) {
      const uint8_t* mask = visible.as<uint8_t>() + batch * visible.stride[0] +
                            head * visible.stride[1] + row * visible.stride[2] +
                            key * visible.stride[3];
      for (int64_t j = begin; j < end; ++j)
        s[j] = mask[j * visible.stride[3]] != 0 ? s[j] : -kInfinity;
    }
    for (int64_t j = end; j < count; ++j) s[j] = -kInfinity;
  }

 private:
  static constexpr Scalar kInfinity = static_cast<Scalar>(__builtin_inf());

  void add_bias(int64_t row, int64_t key, int64_t begin, int64_t end, Scalar* s) const {
    const int64_t offset = batch * bias.stride[0] + head * bias.stride[1] + row * bias.stride[2] +
                           key * bias.stride[3];
    switch (bias.dtype) {
      case DType::kF16:
        return add_bias(bias.as<f16>() + offset, begin, end, s);
      case DType::kBF16:
        return add_bias(bias.as<bf16>() + offset, begin, end, s);
      case DType::kF32:
        return add_bias(bias.as<float>() + offset, begin, end, s);
      default:
        return add_bias(bias.as<double>() + offset, begin, end, s);
    }
  }
  template <class T>
  void add_bias(const T* values, int64_t begin, int64_t end, Scalar* s) const {
    constexpr Scalar kLog2EScalar = static_cast<Scalar>(kLog2E);
    const int64_t stride = bias.stride[3];
    int64_t j = begin;
    if constexpr (sizeof(T) <= sizeof(Scalar) && (sizeof(Scalar) == 4 || sizeof(T) == 8)) {
      if (stride == 1) {
        const typename V::Reg factor = V::set1(kLog2EScalar);
        for (; j + V::kLanes <= end; j += V::kLanes)
          V::store(s + j, V::fma(V::load(values + j), factor, V::load(s + j)));
      }
    }
    for (; j < end; ++j) s[j] += convert<Scalar>(values[j * stride]) * kLog2EScalar;
  }
};

// What dropout keeps of rows [row, row + rows) of a sequence with q_len rows, as dropout_block()
// gives it. column begins a dropout tile; where the problem has all rows, row does too.
inline void dropout_rows(const AttentionProblem& problem, int64_t q_len, const Dropout& dropout,
                         int64_t batch_head, int64_t row, int64_t rows, int64_t column,
                         int64_t columns, uint8_t* keep, int64_t keep_row) {
  if (problem.rows.all())
    return dropout_block(dropout, batch_head, row, rows, column, columns, keep, keep_row);
  for (int64_t j = 0; j < columns; j += kDropoutTileColumns) {
    uint8_t tile[kDropoutTileRows * kDropoutTileColumns];
    int64_t drawn = -1;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t position = problem.rows.position(row + i, q_len);
      if (position / kDropoutTileRows != drawn) {
        drawn = position / kDropoutTileRows;
        dropout_tile(dropout, batch_head, drawn, (column + j) / kDropoutTileColumns, tile,
                     kDropoutTileColumns);
      }
      __builtin_memcpy(keep + i * keep_row + j,
                       tile + position % kDropoutTileRows * kDropoutTileColumns,
                       kDropoutTileColumns);
    }
  }
}

template <class T>
PERSEID_INLINE bool is_finite(T x) {
  const double value = convert<double>(x);
  return value - value == 0;
}

// Whether x[0, dim) holds a NaN or an infinity.
template <class V, class T>
PERSEID_INLINE bool has_nonfinite(const T* x, int64_t stride, int64_t dim) {
  // 0 * x is NaN just where x is not finite, and NaN survives every sum.
  if (stride == 1) {
    typename V::Reg sum = V::zero();
    int64_t j = 0;
    for (; j + V::kLanes <= dim; j += V::kLanes) sum = V::fma(V::load(x + j), V::zero(), sum);
    if (j < dim) sum = V::fma(V::load_partial(x + j, static_cast<int>(dim - j)), V::zero(), sum);
    return V::any(V::is_nan(sum));
  }
  typename V::Scalar sum = 0;
  for (int64_t j = 0; j < dim; ++j) sum += convert<typename V::Scalar>(x[j * stride]) * 0;
  return sum != sum;
}

// A masked key has probability 0, but 0 * NaN is NaN: its value must never enter a product. So
// values that are not finite are cleared in the packed operand and their rows are marked. For rows
// that see such a key, its elements are added one by one, which is rare and may be slow.

// nonfinite[i]: row i holds a value that is not finite. Returns whether any row does.
template <class V, class T>
bool mark_nonfinite(Strided<T> x, int64_t rows, int64_t dim, uint8_t* nonfinite) {
  bool any = false;
  for (int64_t i = 0; i < rows; ++i) {
    nonfinite[i] = has_nonfinite<V>(x.data + i * x.row, x.column, dim);
    any = any || nonfinite[i] != 0;
  }
  return any;
}

// Marks, and clears from `packed`, the operand that pack_depth made of x.
template <class Dot, class T>
bool clear_nonfinite(Strided<T> x, int64_t rows, int64_t dim, typename Dot::Element* packed,
                     int64_t packed_row, uint8_t* nonfinite) {
  if (!mark_nonfinite<typename Dot::Vector>(x, rows, dim, nonfinite)) return false;
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = x.data + i * x.row;
    for (int64_t j = 0; j < dim; ++j) {
      if (is_finite(row[j * x.column])) continue;
      typename Dot::Element& element = packed[i / Dot::kDepth * packed_row + j];
      if constexpr (Dot::kDepth == 1) {
        element = 0;
      } else {
        element &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
      }
    }
  }
  return true;
}

// out += p * value over the elements that clear_nonfinite took away. p 0: the key is masked,
// dropped or of no weight.
template <class Dot, class T>
void add_nonfinite_row(const T* value, int64_t stride, int64_t dim, typename Dot::Vector::Scalar p,
                       typename Dot::Vector::Scalar* out) {
  using Scalar = typename Dot::Vector::Scalar;
  if (p == 0) return;
  for (int64_t j = 0; j < dim; ++j)
    if (!is_finite(value[j * stride])) out[j] += p * convert<Scalar>(value[j * stride]);
}

// Column j of a row of weights, as stored for micro_gemm.
template <class Dot>
PERSEID_INLINE typename Dot::Vector::Scalar weight_at(const typename Dot::Element* row, int64_t j) {
  if constexpr (Dot::kDepth == 1) {
    return row[j];
  } else {
    return to_float(bf16{static_cast<uint16_t>(row[j / 2] >> (j % 2 * 16))});
  }
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
