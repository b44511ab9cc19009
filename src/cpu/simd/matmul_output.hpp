// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From sums of products to C: activation(alpha sums + beta C0 + bias) * scale_result, rounded once.
#pragma once

#include "cpu/simd/pack.hpp"
#include "cpu/simd/vector_math.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// A part of C: `rows` by `columns` from (i, j) on, of one batch entry.
struct MatmulPart {
  int64_t batch, i, j, rows, columns;
};

// The arithmetic of activations (math/activation.hpp).
template <class V>
struct ActivationArithmetic : ScoreArithmetic<V> {
  static PERSEID_INLINE typename V::Reg erf(typename V::Reg x) {
    typename V::Scalar lane[V::kLanes];
    V::store(lane, x);
    for (auto& value : lane) value = erf_of(value);
    return V::load(lane);
  }

 private:
  static PERSEID_INLINE float erf_of(float x) { return __builtin_erff(x); }
  static PERSEID_INLINE double erf_of(double x) { return __builtin_erf(x); }
};

// C and C0 as the kernel sees them, which may be transposed; then the bias belongs to the rows.
template <class V>
class MatmulOutput {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

 public:
  MatmulOutput(const MatmulProblem& problem, const MatmulArguments& arguments, const Tensor& c,
               const Tensor& c0, bool transposed)
      : problem_(problem),
        c_(c),
        c0_(c0),
        bias_(arguments.bias),
        scale_(problem.scale_result ? static_cast<Scalar>(*arguments.scale_result.as<float>()) : 1),
        amax_(problem.amax ? arguments.amax.as<Scalar>() : nullptr),
        transposed_(transposed) {}

  // Before anything is written.
  static void clear_amax(const MatmulProblem& problem, const MatmulArguments& arguments) {
    if (problem.amax) *arguments.amax.as<Scalar>() = 0;
  }

  // The bias of the block's columns, or of its rows; zeros where there is none.
  void read_bias(const MatmulPart& block, Scalar* bias) const {
    const int64_t first = transposed_ ? block.i : block.j;
    const int64_t count = transposed_ ? block.rows : block.columns;
    if (!problem_.bias) {
      for (int64_t j = 0; j < count; ++j) bias[j] = 0;
      return;
    }
    const int64_t stride = bias_.stride[0];
    const auto read = [&]<class T>() {
      read_row<V>(bias_.as<T>() + first * stride, stride, count, bias);
    };
    if constexpr (sizeof(Scalar) == 8) {
      read.template operator()<double>();
    } else if (bias_.dtype == DType::kF16) {
      read.template operator()<f16>();
    } else if (bias_.dtype == DType::kBF16) {
      read.template operator()<bf16>();
    } else {
      read.template operator()<float>();
    }
  }

  // Writes a part of the block. bias: what read_bias() made for the block.
  void write(const MatmulPart& block, const MatmulPart& part, const Scalar* sums, int64_t sums_row,
             const Scalar* bias) const {
    const auto write = [&]<class Out>() { write_as<Out>(block, part, sums, sums_row, bias); };
    if constexpr (sizeof(Scalar) == 8) {
      write.template operator()<double>();
    } else {
      switch (problem_.out_dtype) {
        case DType::kF16:
          return write.template operator()<f16>();
        case DType::kBF16:
          return write.template operator()<bf16>();
        case DType::kF8E4M3:
          return write.template operator()<f8e4m3>();
        case DType::kF8E5M2:
          return write.template operator()<f8e5m2>();
        default:
          return write.template operator()<float>();
      }
    }
  }

 private:
  template <class Out>
  struct Row {
    const Scalar* sums;
    const Scalar* bias;  // of the columns, or null
    Scalar shift;        // bias of the row
    const Out* c0;       // null where beta is 0
    Out* c;
  };

  // The largest magnitude of a part.
  struct Peak {
    Reg most = V::zero();
    typename V::Mask nan = V::is_nan(V::zero());

    PERSEID_INLINE void take(Reg value, int count) {
      value = V::max(value, V::sub(V::zero(), value));
      if (count < V::kLanes) value = V::select(V::first(count), value, V::zero());
      nan = V::either(nan, V::is_nan(value));
      most = V::max(value, most);
    }
    Scalar result() const {
      return V::any(nan) ? static_cast<Scalar>(__builtin_nan("")) : V::reduce_max(most);
    }
  };

  // Workers raise the same number.
  void raise_amax(Scalar value) const {
    Scalar current;
    __atomic_load(amax_, &current, __ATOMIC_RELAXED);
    while (current == current && !(value <= current))
      if (__atomic_compare_exchange(amax_, &current, &value, true, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        return;
  }

  template <class Out>
  void write_as(const MatmulPart& block, const MatmulPart& part, const Scalar* sums,
                int64_t sums_row, const Scalar* bias) const {
    const auto offset = [&](const Tensor& tensor, int64_t i) {
      return part.batch * tensor.stride[0] + (part.i + i) * tensor.stride[1] +
             part.j * tensor.stride[2];
    };
    const bool contiguous = c_.stride[2] == 1 && (problem_.beta == 0 || c0_.stride[2] == 1);
    Peak peak;
    for (int64_t i = 0; i < part.rows; ++i) {
      const Row<Out> row{sums + i * sums_row, transposed_ ? nullptr : bias + (part.j - block.j),
                         transposed_ ? bias[part.i - block.i + i] : Scalar{0},
                         problem_.beta != 0 ? c0_.as<Out>() + offset(c0_, i) : nullptr,
                         c_.as<Out>() + offset(c_, i)};
      // 8-bit types have no vectors.
      if constexpr (sizeof(Out) > 1) {
        if (contiguous) {
          write_row<true>(row, part.columns, peak);
          continue;
        }
      }
      write_row<false>(row, part.columns, peak);
    }
    if (amax_ != nullptr) raise_amax(peak.result());
  }

  template <bool kVectors, class Out>
  void write_row(const Row<Out>& row, int64_t columns, Peak& peak) const {
    const Reg alpha = V::set1(static_cast<Scalar>(problem_.alpha));
    const Reg beta = V::set1(static_cast<Scalar>(problem_.beta));
    const bool epilogue = problem_.has_epilogue();
    const auto write = [&](int64_t j, int count, const auto& load, const auto& store) {
      const Reg bias = row.bias != nullptr ? load(row.bias + j) : V::set1(row.shift);
      Reg value = V::fma(load(row.sums + j), alpha, bias);
      if constexpr (kVectors) {
        if (row.c0 != nullptr) value = V::fma(load(row.c0 + j), beta, value);
        if (epilogue) value = finish(value, count, peak);
        store(row.c + j, value);
      } else {
        Scalar lane[V::kLanes];
        if constexpr (sizeof(Out) > 1) {  // nothing is added to 8 bits
          if (row.c0 != nullptr) {
            for (int i = 0; i < V::kLanes; ++i)
              lane[i] = i < count ? convert<Scalar>(row.c0[(j + i) * c0_.stride[2]]) : 0;
            value = V::fma(V::load(lane), beta, value);
          }
        }
        if (epilogue) value = finish(value, count, peak);
        V::store(lane, value);
        for (int i = 0; i < count; ++i) row.c[(j + i) * c_.stride[2]] = convert<Out>(lane[i]);
      }
    };
    int64_t j = 0;
    for (; j + V::kLanes <= columns; j += V::kLanes)
      write(
          j, V::kLanes, [](const auto* p) { return V::load(p); },
          [](auto* p, Reg value) { V::store(p, value); });
    const int rest = static_cast<int>(columns - j);
    if (rest > 0)
      write(
          j, rest, [&](const auto* p) { return V::load_partial(p, rest); },
          [&](auto* p, Reg value) { V::store_partial(p, value, rest); });
  }

  PERSEID_INLINE Reg finish(Reg value, int count, Peak& peak) const {
    value = activate<ActivationArithmetic<V>>(problem_.activation, value);
    if (amax_ != nullptr) peak.take(value, count);
    return V::mul(value, V::set1(scale_));
  }

  const MatmulProblem& problem_;
  Tensor c_, c0_, bias_;
  Scalar scale_;
  Scalar* amax_;  // null: not wanted
  bool transposed_;
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
