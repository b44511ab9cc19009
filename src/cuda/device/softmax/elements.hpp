// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of the elements that one thread has: from vectors to statistics, and from the row's
// statistics to results. With z = scale * x, m the row's maximum and s its sum of exp(z - m):
//
//   softmax = exp(z - m) / s      log-softmax = (z - m) - log(s)
//   backward: dx = scale * y * (dy - sum(y * dy)), of log-softmax scale * (dy - exp(y) * sum(dy))
//
// z - m is one fused multiply-add, exact where scale is 1; the exponential takes it as it is, so
// that rows far from 0 lose nothing.
#pragma once

#include "cuda/device/softmax/reduce.hpp"

namespace perseid::internal::cuda {

template <SoftmaxConfig C>
struct TypesOf {
  template <bool kDoubles, class = void>
  struct Choose {
    using Real = float;
  };
  template <class Unused>
  struct Choose<true, Unused> {
    using Real = double;
  };
  using Real = typename Choose<C.doubles()>::Real;
  static constexpr int kVector = C.vector();
  using In = Vector<C.in, kVector>;
  using Out = Vector<C.out, kVector>;
};

// The padding of a row in forward: -inf once it is scaled.
template <DType D>
__device__ __forceinline__ Word<D> padding_of(double scale) {
  const uint32_t sign = scale < 0 ? 0u : 1u;
  if constexpr (D == DType::kF64) {
    return {{0u, sign << 31 | 0x7ff00000u}};
  } else if constexpr (D == DType::kF32) {
    return {{sign << 31 | 0x7f800000u}};
  } else if constexpr (D == DType::kBF16) {
    return {{sign << 15 | 0x7f80u}};
  } else {
    return {{sign << 15 | 0x7c00u}};
  }
}

// Which elements of several vectors are visible: for every four of them a word, with a byte for
// each whose high bit says so.
template <SoftmaxConfig C, int kVectors>
class VisibleBits {
 public:
  static constexpr int L = C.vector();

  // Bytes that are 0 hide.
  __device__ __forceinline__ void set(int v, const Vector<DType::kBool, L>& bytes) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t word = bytes.word[w];
      word_[v][w] = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    }
  }

  // Vector v with `other` in place of the elements that are hidden: chosen by the bits
  // of packed words, without predicates.
  template <DType D>
  __device__ __forceinline__ Vector<D, L> choose(int v, const Vector<D, L>& visible,
                                                 const Word<D>& other) const {
    if constexpr (!C.masked) return visible;
    const Vector<D, L> hidden = repeat<D, L>(other);
    Vector<D, L> chosen;
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(chosen) / 4); ++w) {
      const int low = size_of(D) == 2 ? 2 * w : size_of(D) == 4 ? w : w / 2;
      const int high = size_of(D) == 2 ? low + 1 : low;
      const uint32_t all = ptx::spread_signs(word_[v][low / 4], low % 4, high % 4);
      chosen.word[w] = (visible.word[w] & all) | (hidden.word[w] & ~all);
    }
    return chosen;
  }

  __device__ __forceinline__ bool any() const {
    uint32_t all = 0;
#pragma unroll
    for (const auto& words : word_)
#pragma unroll
      for (const uint32_t each : words) all |= each;
    return all != 0;
  }

 private:
  static constexpr int kWords = (L + 3) / 4;
  uint32_t word_[C.masked ? kVectors : 1][kWords] = {};
};

// What a thread has of a row in registers.
template <SoftmaxConfig C, bool kBackward>
struct Elements {
  static constexpr DType kFirst = kBackward ? C.out : C.in;
  static constexpr int L = C.vector();
  Vector<kFirst, L> first[C.held];                  // x or dy
  Vector<C.out, L> second[kBackward ? C.held : 1];  // y
  VisibleBits<C, C.held> bits;
  // Whether any thread of the warp has an element in its last vector: where rows are a little
  // longer than threads hold with one vector less, most warps have none. Not asked where the
  // vectors are a small power of two, which rows fill as a rule: the branches cost a few percent.
  static constexpr bool kAsks =
      (C.held > 8 || (C.held & (C.held - 1)) != 0) && C.row_threads() >= 32;
  bool last = true;
  // Whether vectors at the ends of a row are loaded whole: not where rows are so long that they
  // hardly matter, and there are no registers for it.
  static constexpr int kMostReaching = L == 8 ? 8 : L == 4 && !kBackward && !C.masked ? 11 : 5;
  static constexpr bool kReaches = C.held <= kMostReaching;

  // Vectors at a distance of `between` elements.
  __device__ __forceinline__ void load_from(const RowSet& set, int begin, int between, int length,
                                            double scale) {
    if constexpr (kAsks)
      last = __any_sync(0xffffffffu, begin + (C.held - 1) * between < length) != 0;
    const Extent extent = kReaches ? set.extent(length, L) : Extent{length, 0, length};
    Vector<DType::kBool, L> visible[C.masked ? C.held : 1];
    load_vectors<kFirst, L>(set.first, begin, between, extent, first);
    if constexpr (kBackward) load_vectors<C.out, L>(set.second, begin, between, extent, second);
    if constexpr (C.masked)
      load_vectors<DType::kBool, L>(set.visible, begin, between, extent, visible);
    load_rest<kFirst, L>(set.first, begin, between, extent, padding(scale), first);
    if constexpr (kBackward) load_rest<C.out, L>(set.second, begin, between, extent, {}, second);
    if constexpr (C.masked) {
      load_rest<DType::kBool, L>(set.visible, begin, between, extent, {}, visible);
      hide(visible, scale);
    }
  }

  // Elements that are hidden become as if they were no part of the row.
  __device__ __forceinline__ void hide(const Vector<DType::kBool, L> (&visible)[C.held],
                                       double scale) {
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      bits.set(v, visible[v]);
      first[v] = bits.template choose<kFirst>(v, first[v], padding(scale));
      if constexpr (kBackward) second[v] = bits.template choose<C.out>(v, second[v], {});
    }
  }

  // Whether vector v has nothing to compute.
  __device__ __forceinline__ bool skips(int v) const {
    if constexpr (kAsks) {
      return v == C.held - 1 && !last;
    } else {
      return false;
    }
  }

  static __device__ __forceinline__ Word<kFirst> padding(double scale) {
    if constexpr (kBackward) {
      return {};
    } else {
      return padding_of<kFirst>(scale);
    }
  }
};

// The x of the largest scale * x among a thread's elements of a row, times the scale.
template <SoftmaxConfig C, class Real = typename TypesOf<C>::Real>
__device__ __forceinline__ Real maximum_of_part(const Elements<C, false>& x, Real scale) {
  const auto outer = [](Real a, Real b) {
    return C.negative ? -maximum_of(-a, -b) : maximum_of(a, b);
  };
  if constexpr (size_of(C.in) == 2 && !C.negative) {
    uint32_t pair = x.first[0].word[0];
#pragma unroll
    for (const auto& vector : x.first)
#pragma unroll
      for (const uint32_t word : vector.word)
        pair = C.in == DType::kBF16 ? ptx::max_or_nan_bf16x2(pair, word)
                                    : ptx::max_or_nan_f16x2(pair, word);
    const Vector<C.in, 2> both{{pair}};
    return maximum_of(unpack<C.in, Real, 2>(both, 0), unpack<C.in, Real, 2>(both, 1)) * scale;
  }
  Real extreme = C.negative ? -minus_infinity<Real>() : minus_infinity<Real>();
#pragma unroll
  for (const auto& vector : x.first)
#pragma unroll
    for (int i = 0; i < C.vector(); ++i)
      extreme = outer(extreme, unpack<C.in, Real, C.vector()>(vector, i));
  return extreme * scale;
}

// Statistics of the vectors that a thread has of a row; each(v, i, e) is called with the
// exponential of every element, relative to the maximum of the part.
template <SoftmaxConfig C, class Each, class Real = typename TypesOf<C>::Real>
__device__ __forceinline__ Statistics<Real> statistics_of(const Elements<C, false>& x, Real scale,
                                                          const Each& each) {
  auto own = Statistics<Real>::nothing();
  own.maximum = maximum_of_part<C>(x, scale);
  // Where all is -inf, 0 in its stead keeps the exponentials 0 and no NaN comes up.
  const bool nothing = own.maximum == minus_infinity<Real>();
  const Real base = nothing ? Real(0) : own.maximum;
#pragma unroll
  for (int v = 0; v < C.held; ++v) {
    if (x.skips(v)) continue;
#pragma unroll
    for (int i = 0; i < C.vector(); ++i) {
      const Real e = exponential(fma(unpack<C.in, Real, C.vector()>(x.first[v], i), scale, -base));
      own.sum += e;
      each(v, i, e);
    }
  }
  if constexpr (C.masked) {
    if (nothing) own.sum = x.bits.any() ? Real(1) : Real(0);
  }
  return own;
}

// What the elements of a row are made with, once its statistics are known.
template <SoftmaxConfig C, class Real>
struct ForwardRow {
  Real scale, maximum, factor;  // factor: 1 / s or log(s)
  Word<C.out> nothing;          // in place of what is hidden

  __device__ __forceinline__ ForwardRow(const SoftmaxArguments& arguments,
                                        const Statistics<Real>& whole)
      : scale(static_cast<Real>(arguments.scale)), maximum(whole.maximum) {
    factor = C.log ? log(whole.sum) : Real(1) / whole.sum;
    Real hidden = C.log ? minus_infinity<Real>() : Real(0);
    if constexpr (C.masked) {
      if (whole.sum == 0 && arguments.empty_rows_nan) hidden = __int_as_float(0x7fc00000);
    }
    nothing = to_element<C.out>(hidden);
  }

  __device__ __forceinline__ Real result(Real x) const {
    const Real z = fma(x, scale, -maximum);
    return C.log ? z - factor : exponential(z) * factor;
  }

  // From the exponential relative to the maximum of a part; `part` is what part_factor gives.
  __device__ __forceinline__ Real part_factor(Real part_maximum) const {
    // Elements that are visible, and all -inf, have no softmax.
    if (maximum == minus_infinity<Real>()) return __int_as_float(0x7fc00000);
    return weight(part_maximum, maximum) * factor;
  }
  static __device__ __forceinline__ Real lse(const Statistics<Real>& whole) {
    // An infinite maximum is its own logsumexp.
    const bool infinite =
        whole.maximum == minus_infinity<Real>() || whole.maximum == -minus_infinity<Real>();
    return infinite ? whole.maximum : whole.maximum + log(whole.sum);
  }
};

// Stores value(v, i) for each element, `nothing` where it is hidden.
template <SoftmaxConfig C, bool kBackward, class Value>
__device__ __forceinline__ void store_results(const Elements<C, kBackward>& elements, const Row& to,
                                              int begin, int between, int length,
                                              const Word<kBackward ? C.in : C.out>& nothing,
                                              const Value& value) {
  constexpr DType D = kBackward ? C.in : C.out;
  constexpr int L = C.vector();
  Vector<D, L> results[C.held];
#pragma unroll
  for (int v = 0; v < C.held; ++v) {
    if (elements.skips(v)) continue;
    typename TypesOf<C>::Real values[L];
#pragma unroll
    for (int i = 0; i < L; ++i) values[i] = value(v, i);
    results[v] = elements.bits.template choose<D>(v, pack<D>(values), nothing);
  }
  store<D, L>(to, begin, between, length, results);
}

// Results from the elements themselves.
template <SoftmaxConfig C, class Real>
__device__ __forceinline__ void store_forward(const Elements<C, false>& x, const Row& to, int begin,
                                              int between, int length,
                                              const ForwardRow<C, Real>& row) {
  store_results(x, to, begin, between, length, row.nothing, [&](int v, int i) {
    return row.result(unpack<C.in, Real, C.vector()>(x.first[v], i));
  });
}

// Forward where the elements stay in registers between the statistics and the results: softmax
// keeps the exponentials in their place.
template <SoftmaxConfig C>
struct ForwardPart {
  using Real = typename TypesOf<C>::Real;
  Elements<C, false> x;
  static constexpr bool kKeeps = !C.log && (size_of(C.in) >= 4 || C.held * C.vector() <= 32);
  Real kept[kKeeps ? C.held * C.vector() : 1];
  Real maximum;

  __device__ __forceinline__ Statistics<Real> measure(Real scale) {
    const auto own = statistics_of<C>(x, scale, [&](int v, int i, Real e) {
      if constexpr (kKeeps) kept[v * C.vector() + i] = e;
    });
    maximum = own.maximum;
    return own;
  }
  __device__ __forceinline__ void store(const Row& to, int begin, int between, int length,
                                        const ForwardRow<C, Real>& row) {
    if constexpr (!kKeeps) {
#pragma unroll
      for (auto& vector : x.first) ptx::forget_results_of(vector);
      store_forward(x, to, begin, between, length, row);
    } else {
      const Real part = row.part_factor(maximum);
      store_results(x, to, begin, between, length, row.nothing,
                    [&](int v, int i) { return kept[v * C.vector() + i] * part; });
    }
  }
};

// A thread's share of the sum that backward needs.
template <SoftmaxConfig C, class Real = typename TypesOf<C>::Real>
__device__ __forceinline__ Real gradient_sum_of(const Elements<C, true>& elements) {
  Real sum = 0;
#pragma unroll
  for (int v = 0; v < C.held; ++v) {
    if (elements.skips(v)) continue;
#pragma unroll
    for (int i = 0; i < C.vector(); ++i) {
      const Real dy = unpack<C.out, Real, C.vector()>(elements.first[v], i);
      sum += C.log ? dy : dy * unpack<C.out, Real, C.vector()>(elements.second[v], i);
    }
  }
  return sum;
}

template <SoftmaxConfig C, class Real>
__device__ __forceinline__ Real gradient(Real dy, Real y, Real sum, Real scale) {
  return (C.log ? fma(-exponential(y), sum, dy) : y * (dy - sum)) * scale;
}

template <SoftmaxConfig C, class Real>
__device__ __forceinline__ void store_backward(const Elements<C, true>& elements, const Row& to,
                                               int begin, int between, int length, Real sum,
                                               Real scale) {
  store_results(elements, to, begin, between, length, {}, [&](int v, int i) {
    return gradient<C>(unpack<C.out, Real, C.vector()>(elements.first[v], i),
                       unpack<C.out, Real, C.vector()>(elements.second[v], i), sum, scale);
  });
}

}  // namespace perseid::internal::cuda
