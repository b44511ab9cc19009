// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The inner loops of softmax, over rows that lie along memory. Each goes once over a block of rows
// that is in the L1 cache, or on its way there:
//
//   forward   row_maxima    m = max x          reads memory; copies what is masked or not as wide
//   as
//             exponentials  p = exp(x - m)     computation
//             finish_rows   y = p / sum p, or x - m - log(sum p); converts and writes
//   backward  row_sums      s = sum dy y, or sum dy; reads memory, copies as above
//             gradients     dx = scale y (dy - s), or scale (dy - exp(y) s); converts and writes
//
// A lane's order of additions depends on the length of the row alone.
#pragma once

#include <cstddef>
#include <type_traits>

#include "cpu/simd/vector_math.hpp"

namespace perseid::cpu::PERSEID_ISA {

// Row r begins at data + r * pitch.
template <class T>
struct RowsOf {
  T* data;
  int64_t pitch;
  PERSEID_INLINE operator RowsOf<const T>() const requires(!std::is_const_v<T>) {
    return {data, pitch};
  }
};

// What will be read next, in bytes: prefetched at the pace of the computation, so that memory is
// busy while the core is.
struct Ahead {
  const std::byte* data = nullptr;  // null: nothing
  int64_t pitch = 0, element = 0;
};

template <class V>
PERSEID_INLINE void prefetch(const std::byte* ahead, int64_t offset) {
  if constexpr (V::kLanes > 1) __builtin_prefetch(ahead + offset);
}

// Independent sums or maxima of a row.
inline constexpr int kChains = 4;

// full(j, chain) for whole vectors of [0, n), partial(j, count) for what is left.
template <class V, class Full, class Partial>
PERSEID_INLINE void for_each_vector(int64_t n, const Full& full, const Partial& partial) {
  int64_t j = 0;
  for (; j + kChains * V::kLanes <= n; j += kChains * V::kLanes) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) full(j + chain * V::kLanes, chain);
  }
  for (; j + V::kLanes <= n; j += V::kLanes) full(j, 0);
  if (j < n) partial(j, static_cast<int>(n - j));
}

template <class V>
struct Chains {
  typename V::Reg of[kChains];

  explicit PERSEID_INLINE Chains(typename V::Reg start) {
#pragma GCC unroll 4
    for (typename V::Reg& chain : of) chain = start;
  }
  PERSEID_INLINE typename V::Scalar sum() const {
    return V::reduce_add(V::add(V::add(of[0], of[1]), V::add(of[2], of[3])));
  }
  PERSEID_INLINE typename V::Scalar maximum() const {
    return V::reduce_max(V::max(V::max(of[0], of[1]), V::max(of[2], of[3])));
  }
};

template <class V>
inline constexpr typename V::Scalar kInfinity = static_cast<typename V::Scalar>(__builtin_inf());

// The first n lanes that mask bytes show, read from no further than they go.
template <class V>
PERSEID_INLINE typename V::Mask visible_lanes(const uint8_t* visible, int n) {
  uint8_t bytes[V::kLanes] = {};
  __builtin_memcpy(bytes, visible, static_cast<size_t>(n));
  return V::nonzero_bytes(bytes);
}

// Whether rows of T have to be copied before they can be computed with.
template <class V, class T>
inline constexpr bool kNeedsCopy = !std::is_same_v<typename V::Scalar, T>;

// maximum[r] = the largest of sign * x over what is visible, NaN left out; -inf where there is
// none. copy: x, where it is masked -sign * inf; written if masked or of another type.
template <class V, class T, bool kMasked>
__attribute__((noinline)) void row_maxima(RowsOf<const T> x, RowsOf<const uint8_t> visible,
                                          int64_t rows, int64_t n, typename V::Scalar sign,
                                          RowsOf<typename V::Scalar> copy,
                                          typename V::Scalar* maximum) {
  using Reg = typename V::Reg;
  const Reg signs = V::set1(sign), lowest = V::set1(-kInfinity<V>);
  const Reg masked = V::set1(-sign * kInfinity<V>);
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x.data + r * x.pitch;
    const uint8_t* shown = visible.data + r * visible.pitch;
    typename V::Scalar* to = copy.data + r * copy.pitch;
    Chains<V> chains(lowest);
    for_each_vector<V>(
        n,
        [&](int64_t j, int chain) {
          Reg a = V::load(from + j);
          if constexpr (kMasked) a = V::select(V::nonzero_bytes(shown + j), a, masked);
          if constexpr (kMasked || kNeedsCopy<V, T>) V::store(to + j, a);
          chains.of[chain] = V::max(V::mul(a, signs), chains.of[chain]);
        },
        [&](int64_t j, int count) {
          Reg a = V::load_partial(from + j, count);
          if constexpr (kMasked) a = V::select(visible_lanes<V>(shown + j, count), a, masked);
          if constexpr (kMasked || kNeedsCopy<V, T>) V::store_partial(to + j, a, count);
          a = V::select(V::first(count), V::mul(a, signs), lowest);
          chains.of[0] = V::max(a, chains.of[0]);
        });
    maximum[r] = chains.maximum();
  }
}

// out[r] = exp2((x[r] - shift[r]) * factor), unless its data is null; sum[r] its total.
template <class V, bool kStore>
__attribute__((noinline)) void exponentials(RowsOf<const typename V::Scalar> x,
                                            RowsOf<typename V::Scalar> out, int64_t rows, int64_t n,
                                            const typename V::Scalar* shift,
                                            typename V::Scalar factor, typename V::Scalar* sum,
                                            Ahead ahead) {
  using Reg = typename V::Reg;
  const Reg factors = V::set1(factor);
  for (int64_t r = 0; r < rows; ++r) {
    const typename V::Scalar* from = x.data + r * x.pitch;
    typename V::Scalar* to = out.data + r * out.pitch;
    const std::byte* next = ahead.data + r * ahead.pitch;
    const Reg shifts = V::set1(shift[r]);
    Chains<V> chains(V::zero());
    for_each_vector<V>(
        n,
        [&](int64_t j, int chain) {
          prefetch<V>(next, j * ahead.element);
          const Reg p = exp2<V>(V::mul(V::sub(V::load(from + j), shifts), factors));
          if constexpr (kStore) V::store(to + j, p);
          chains.of[chain] = V::add(p, chains.of[chain]);
        },
        [&](int64_t j, int count) {
          prefetch<V>(next, j * ahead.element);
          const Reg p = exp2<V>(V::mul(V::sub(V::load_partial(from + j, count), shifts), factors));
          if constexpr (kStore) V::store_partial(to + j, p, count);
          chains.of[0] = V::add(V::select(V::first(count), p, V::zero()), chains.of[0]);
        });
    sum[r] = chains.sum();
  }
}

// Elements before the first that V::stream may be given.
template <class V, class T>
PERSEID_INLINE int64_t elements_to_alignment(const T* p, int64_t n) {
  constexpr uintptr_t kBytes = V::kLanes * sizeof(T);
  const uintptr_t past = reinterpret_cast<uintptr_t>(p) % kBytes;
  return past == 0 ? 0 : min(n, static_cast<int64_t>((kBytes - past) / sizeof(T)));
}

// out[j] = value(j), a vector at a time; value_of(j, count) gives one of which the first `count`
// lanes count.
template <class V, class T, class Value, class Partial>
PERSEID_INLINE void write_row_by(T* out, int64_t n, bool stream, const Value& value,
                                 const Partial& value_of) {
  if (!stream) {
    for_each_vector<V>(
        n, [&](int64_t j, int) { V::store(out + j, value(j)); },
        [&](int64_t j, int count) { V::store_partial(out + j, value_of(j, count), count); });
    return;
  }
  const int64_t head = elements_to_alignment<V>(out, n);
  if (head > 0) V::store_partial(out, value_of(0, static_cast<int>(head)), static_cast<int>(head));
  for_each_vector<V>(
      n - head, [&](int64_t j, int) { V::stream(out + head + j, value(head + j)); },
      [&](int64_t j, int count) {
        V::store_partial(out + head + j, value_of(head + j, count), count);
      });
}

// y = (x - shift) * factor + offset, of each row.
template <class V>
struct RowTerms {
  const typename V::Scalar *shift, *factor, *offset;
};

template <class V, class T>
__attribute__((noinline)) void finish_rows(RowsOf<const typename V::Scalar> x, RowsOf<T> out,
                                           int64_t rows, int64_t n, RowTerms<V> terms,
                                           bool stream) {
  using Reg = typename V::Reg;
  for (int64_t r = 0; r < rows; ++r) {
    const typename V::Scalar* from = x.data + r * x.pitch;
    const Reg shift = V::set1(terms.shift[r]), factor = V::set1(terms.factor[r]);
    const Reg offset = V::set1(terms.offset[r]);
    const auto finished = [&](Reg a) { return V::fma(V::sub(a, shift), factor, offset); };
    write_row_by<V>(
        out.data + r * out.pitch, n, stream, [&](int64_t j) { return finished(V::load(from + j)); },
        [&](int64_t j, int count) { return finished(V::load_partial(from + j, count)); });
  }
}

// sum[r] = the total of dy * y, or for log-softmax of dy, over what is visible. The copies, written
// if masked or of another type, are such that what is masked has gradient 0: dy = 0, and y = 0 or
// -inf.
template <class V, class T, bool kMasked>
__attribute__((noinline)) void row_sums(RowsOf<const T> grad, RowsOf<const T> y,
                                        RowsOf<const uint8_t> visible, int64_t rows, int64_t n,
                                        bool log, RowsOf<typename V::Scalar> grad_copy,
                                        RowsOf<typename V::Scalar> y_copy, typename V::Scalar* sum,
                                        Ahead ahead) {
  using Reg = typename V::Reg;
  constexpr bool kCopy = kMasked || kNeedsCopy<V, T>;
  const Reg masked = V::set1(log ? -kInfinity<V> : 0);
  for (int64_t r = 0; r < rows; ++r) {
    const T *grads = grad.data + r * grad.pitch, *ys = y.data + r * y.pitch;
    const uint8_t* shown = visible.data + r * visible.pitch;
    typename V::Scalar* grads_to = grad_copy.data + r * grad_copy.pitch;
    typename V::Scalar* ys_to = y_copy.data + r * y_copy.pitch;
    const std::byte* next = ahead.data + r * ahead.pitch;
    Chains<V> chains(V::zero());
    const auto whole = [&](int64_t j, int chain, auto with_y) {
      prefetch<V>(next, j * ahead.element);
      Reg g = V::load(grads + j), a = V::zero();
      if constexpr (kCopy || with_y) a = V::load(ys + j);
      if constexpr (kMasked) {
        const typename V::Mask mask = V::nonzero_bytes(shown + j);
        g = V::select(mask, g, V::zero());
        a = V::select(mask, a, masked);
      }
      if constexpr (kCopy) {
        V::store(grads_to + j, g);
        V::store(ys_to + j, a);
      }
      Reg& chain_sum = chains.of[chain];
      chain_sum = with_y ? V::fma(g, a, chain_sum) : V::add(g, chain_sum);
    };
    const auto rest = [&](int64_t j, int count) {
      Reg g = V::load_partial(grads + j, count), a = V::load_partial(ys + j, count);
      if constexpr (kMasked) {
        const typename V::Mask mask = visible_lanes<V>(shown + j, count);
        g = V::select(mask, g, V::zero());
        a = V::select(mask, a, masked);
      }
      if constexpr (kCopy) {
        V::store_partial(grads_to + j, g, count);
        V::store_partial(ys_to + j, a, count);
      }
      chains.of[0] = log ? V::add(g, chains.of[0]) : V::fma(g, a, chains.of[0]);
    };
    if (log) {
      for_each_vector<V>(
          n, [&](int64_t j, int chain) { whole(j, chain, std::false_type()); }, rest);
    } else {
      for_each_vector<V>(
          n, [&](int64_t j, int chain) { whole(j, chain, std::true_type()); }, rest);
    }
    sum[r] = chains.sum();
  }
}

// dx = scale * y * (dy - sum), or scale * (dy - exp(y) * sum).
template <class V>
PERSEID_INLINE typename V::Reg gradient(typename V::Reg grad, typename V::Reg y,
                                        typename V::Reg sum, typename V::Reg scale, bool log) {
  using Scalar = typename V::Scalar;
  if (!log) return V::mul(V::mul(y, scale), V::sub(grad, sum));
  const typename V::Reg p = exp2<V>(V::mul(y, V::set1(static_cast<Scalar>(kLog2E))));
  return V::mul(V::sub(grad, V::mul(p, sum)), scale);
}

template <class V, class T>
__attribute__((noinline)) void gradients(RowsOf<const typename V::Scalar> grad,
                                         RowsOf<const typename V::Scalar> y, RowsOf<T> out,
                                         int64_t rows, int64_t n, const typename V::Scalar* sum,
                                         typename V::Scalar scale, bool log, bool stream,
                                         Ahead ahead) {
  using Reg = typename V::Reg;
  const Reg scales = V::set1(scale);
  for (int64_t r = 0; r < rows; ++r) {
    const typename V::Scalar *grads = grad.data + r * grad.pitch, *ys = y.data + r * y.pitch;
    const std::byte* next = ahead.data + r * ahead.pitch;
    const Reg sums = V::set1(sum[r]);
    const auto write = [&](auto logarithmic) {
      write_row_by<V>(
          out.data + r * out.pitch, n, stream,
          [&](int64_t j) {
            prefetch<V>(next, j * ahead.element);
            return gradient<V>(V::load(grads + j), V::load(ys + j), sums, scales, logarithmic);
          },
          [&](int64_t j, int count) {
            return gradient<V>(V::load_partial(grads + j, count), V::load_partial(ys + j, count),
                               sums, scales, logarithmic);
          });
    };
    if (log) {
      write(std::true_type());
    } else {
      write(std::false_type());
    }
  }
}

}  // namespace perseid::cpu::PERSEID_ISA
