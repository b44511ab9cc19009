// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The inner loops of softmax, over rows that lie along memory. Each goes once over a block of rows
// that is in the L1 cache, or on its way there:
//
//   forward   row_maxima    m = max x; copies rows that are masked or not as wide as computation
//             exponentials  p = exp(x - m), sum p
//             finish_rows   y = p / sum p, or x - m - log(sum p)
//             (differences of elements by way of their halves where the scale is below 1: the
//             difference of the largest and the lowest number times a small scale is a number)
//   backward  row_sums      s = sum dy y, or sum dy; copies rows that are masked
//             gradients     dx = scale y (dy - s), or scale (dy - exp(y) s)
//
// Rows in scratch memory are padded to whole vectors. From and To are the types of what is read and
// written. The order of additions depends on the length of a row alone.
#pragma once

#include <cstddef>
#include <type_traits>

#include "cpu/simd/vector_math.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

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
PERSEID_INLINE void prefetch(const std::byte* next, int64_t offset) {
  if constexpr (V::kLanes > 1) __builtin_prefetch(next + offset);
}

// All lanes of a vector. Where a row ends within a vector, an int instead says how many count.
struct AllLanes {};

template <class V, class From>
PERSEID_INLINE typename V::Reg load(const From* p, AllLanes) {
  return V::load(p);
}
template <class V, class From>
PERSEID_INLINE typename V::Reg load(const From* p, int lanes) {
  return V::load_partial(p, lanes);
}
// a, and `other` in lanes that do not count.
template <class V>
PERSEID_INLINE typename V::Reg counted(typename V::Reg a, typename V::Reg, AllLanes) {
  return a;
}
template <class V>
PERSEID_INLINE typename V::Reg counted(typename V::Reg a, typename V::Reg other, int lanes) {
  return V::select(V::first(lanes), a, other);
}
template <class V>
PERSEID_INLINE typename V::Mask shown(const uint8_t* visible, AllLanes) {
  return V::nonzero_bytes(visible);
}
template <class V>
PERSEID_INLINE typename V::Mask shown(const uint8_t* visible, int lanes) {
  uint8_t bytes[V::kLanes] = {};
  __builtin_memcpy(bytes, visible, static_cast<size_t>(lanes));
  return V::nonzero_bytes(bytes);
}

// Vectors that a loop handles at a time.
inline constexpr int kUnroll = 4;

// Independent sums of a row, or what else is gathered.
template <class V, int kCount>
struct Chains {
  typename V::Reg of[kCount];

  explicit PERSEID_INLINE Chains(typename V::Reg start) {
#pragma GCC unroll 4
    for (typename V::Reg& chain : of) chain = start;
  }
  template <class Join>
  PERSEID_INLINE typename V::Reg joined(const Join& join) const {
    if constexpr (kCount == 2) return join(of[0], of[1]);
    if constexpr (kCount == 4) return join(join(of[0], of[1]), join(of[2], of[3]));
  }
  PERSEID_INLINE typename V::Scalar sum() const { return V::reduce_add(joined(V::add)); }
};

// body(j, i, lanes) for the i-th of every kUnroll vectors of [0, n). Bodies must be inlined:
// vectors may alias anything, so a body that has its captures in memory would read them again after
// every store.
#define PERSEID_BODY __attribute__((always_inline))

template <class V, class Body>
PERSEID_INLINE void for_each_vector(int64_t n, const Body& body) {
  int64_t j = 0;
  for (; j + kUnroll * V::kLanes <= n; j += kUnroll * V::kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < kUnroll; ++i) body(j + i * V::kLanes, i, AllLanes());
  }
  for (; j + V::kLanes <= n; j += V::kLanes) body(j, 0, AllLanes());
  if (j < n) body(j, 0, static_cast<int>(n - j));
}

// Calls body(true or false as a type). Loops over rows are chosen by it from outside: a choice for
// every row costs short rows a sixth of their time.
template <class Body>
PERSEID_INLINE void with_flag(bool flag, const Body& body) {
  if (flag) {
    body(std::true_type());
  } else {
    body(std::false_type());
  }
}

template <class V>
inline constexpr typename V::Scalar kInfinity = static_cast<typename V::Scalar>(__builtin_inf());

// maximum[r] = the largest of x, or for kNegative of -x, over what is visible (all, if visible has
// no data), NaN left out; -inf where there is none. copy, of rows that are masked or of another
// type than V's: x, where it is masked -inf, or inf.
template <class V, class From, bool kNegative>
__attribute__((noinline)) void row_maxima(RowsOf<const From> x, RowsOf<const uint8_t> visible,
                                          int64_t rows, int64_t n, RowsOf<typename V::Scalar> copy,
                                          typename V::Scalar* maximum) {
  using Reg = typename V::Reg;
  const Reg masked = V::set1(kNegative ? kInfinity<V> : -kInfinity<V>);
  const auto farther = [](Reg a, Reg b)
                           PERSEID_BODY { return kNegative ? V::min(a, b) : V::max(a, b); };
  with_flag(visible.data != nullptr, [&](auto partly) PERSEID_BODY {
    for (int64_t r = 0; r < rows; ++r) {
      const From* from = x.data + r * x.pitch;
      const uint8_t* bytes = visible.data + r * visible.pitch;
      typename V::Scalar* to = copy.data + r * copy.pitch;
      Chains<V, 4> chains(masked);
      for_each_vector<V>(n, [&](int64_t j, int i, auto lanes) PERSEID_BODY {
        Reg a = load<V>(from + j, lanes);
        if constexpr (partly) a = V::select(shown<V>(bytes + j, lanes), a, masked);
        if constexpr (partly || !std::is_same_v<From, typename V::Scalar>) V::store(to + j, a);
        chains.of[i] = farther(counted<V>(a, masked, lanes), chains.of[i]);
      });
      const Reg farthest = chains.joined(farther);
      maximum[r] = V::reduce_max(kNegative ? V::sub(V::zero(), farthest) : farthest);
    }
  });
}

// (x - shift) * factor, computed as (x * before - shift * before) * (factor / before); before is a
// power of two.
template <class V>
struct DifferenceFactor {
  using Scalar = typename V::Scalar;
  Scalar before, after;
  Scalar near_before, near_after;  // for |shift| < 1

  explicit DifferenceFactor(double factor) {
    const bool half = -1 < factor && factor < 1;
    before = near_before = half ? Scalar{0.5} : Scalar{1};
    after = near_after = static_cast<Scalar>(half ? 2 * factor : factor);
    if (after - after == 0) return;
    // Past the largest number. Of numbers near 1 and above, only equal ones differ by so little
    // that it matters; smaller ones can be multiplied beforehand.
    after = static_cast<Scalar>(after < 0 ? -kLargest : kLargest);
    near_before = 4;
    near_after = static_cast<Scalar>(factor / 4);
  }
  PERSEID_INLINE bool near(Scalar shift) const { return -1 < shift && shift < 1; }

 private:
  static constexpr double kLargest = sizeof(Scalar) == 4 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
};

// out[r] = exp2((x[r] - shift[r]) * factor), if kStore; sum[r] its total.
template <class V, bool kStore>
__attribute__((noinline)) void exponentials(RowsOf<const typename V::Scalar> x,
                                            RowsOf<typename V::Scalar> out, int64_t rows, int64_t n,
                                            const typename V::Scalar* shift,
                                            DifferenceFactor<V> factor, typename V::Scalar* sum,
                                            Ahead ahead) {
  using Reg = typename V::Reg;
  for (int64_t r = 0; r < rows; ++r) {
    const typename V::Scalar* from = x.data + r * x.pitch;
    typename V::Scalar* to = out.data + r * out.pitch;
    const std::byte* next = ahead.data + r * ahead.pitch;
    const bool near = factor.near(shift[r]);
    const Reg before = V::set1(near ? factor.near_before : factor.before);
    const Reg factors = V::set1(near ? factor.near_after : factor.after);
    const Reg shifts = V::mul(V::set1(shift[r]), before);
    Chains<V, 2> chains(V::zero());
    for_each_vector<V>(n, [&](int64_t j, int i, auto lanes) PERSEID_BODY {
      prefetch<V>(next, j * ahead.element);
      const Reg p = exp2<V>(V::mul(V::fms(load<V>(from + j, lanes), before, shifts), factors));
      if constexpr (kStore) V::store(to + j, p);
      chains.of[i % 2] = V::add(counted<V>(p, V::zero(), lanes), chains.of[i % 2]);
    });
    sum[r] = chains.sum();
  }
}

// Two adjacent vectors. Some instruction sets have a faster way to narrow them.
template <class V, class To>
PERSEID_INLINE void store_pair(To* p, typename V::Reg a, typename V::Reg b) {
  if constexpr (requires { V::store_pair(p, a, b); }) {
    V::store_pair(p, a, b);
  } else {
    V::store(p, a);
    V::store(p + V::kLanes, b);
  }
}
template <class V, class To>
PERSEID_INLINE void stream_pair(To* p, typename V::Reg a, typename V::Reg b) {
  if constexpr (requires { V::stream_pair(p, a, b); }) {
    V::stream_pair(p, a, b);
  } else {
    V::stream(p, a);
    V::stream(p + V::kLanes, b);
  }
}

// out[j] = value(j, lanes), two vectors at a time.
template <class V, class To, class Value>
PERSEID_INLINE void write_row(To* out, int64_t first, int64_t n, const Value& value) {
  int64_t j = first;
#pragma GCC unroll 2
  for (; j + 2 * V::kLanes <= n; j += 2 * V::kLanes)
    store_pair<V>(out + j, value(j, AllLanes()), value(j + V::kLanes, AllLanes()));
  if (j + V::kLanes <= n) {
    V::store(out + j, value(j, AllLanes()));
    j += V::kLanes;
  }
  if (j < n) {
    const int lanes = static_cast<int>(n - j);
    V::store_partial(out + j, value(j, lanes), lanes);
  }
}

// The same past the caches, from the first address on that begins a cache line.
template <class V, class To, class Value>
PERSEID_INLINE void stream_row(To* out, int64_t n, const Value& value) {
  constexpr int64_t kPair = 2 * V::kLanes;
  constexpr uintptr_t kBytes = min(kPair * sizeof(To), size_t{64});
  const uintptr_t past = reinterpret_cast<uintptr_t>(out) % kBytes;
  int64_t j = past == 0 ? 0 : min(n, static_cast<int64_t>((kBytes - past) / sizeof(To)));
  if (j > 0) write_row<V>(out, 0, j, value);
#pragma GCC unroll 2
  for (; j + kPair <= n; j += kPair)
    stream_pair<V>(out + j, value(j, AllLanes()), value(j + V::kLanes, AllLanes()));
  if (j < n) write_row<V>(out, j, n, value);
}

template <class V, class To, class Value>
PERSEID_INLINE void write_row_by(To* out, int64_t n, std::true_type, const Value& value) {
  stream_row<V>(out, n, value);
}
template <class V, class To, class Value>
PERSEID_INLINE void write_row_by(To* out, int64_t n, std::false_type, const Value& value) {
  write_row<V>(out, 0, n, value);
}

// y = x * factor, or if there are shifts (x * before - shift * before) * factor + offset, of each
// row.
template <class V>
struct RowTerms {
  const typename V::Scalar *factor, *shift = nullptr, *offset = nullptr;
  typename V::Scalar before = 1;
};

template <class V, class To>
__attribute__((noinline)) void finish_rows(RowsOf<const typename V::Scalar> x, RowsOf<To> out,
                                           int64_t rows, int64_t n, RowTerms<V> terms,
                                           bool stream) {
  using Reg = typename V::Reg;
  with_flag(stream, [&](auto streamed) PERSEID_BODY {
    with_flag(terms.shift != nullptr, [&](auto shifted) PERSEID_BODY {
      for (int64_t r = 0; r < rows; ++r) {
        const typename V::Scalar* from = x.data + r * x.pitch;
        const Reg factor = V::set1(terms.factor[r]);
        const Reg before = V::set1(terms.before);
        const Reg shift = V::set1(shifted ? terms.shift[r] * terms.before : 0);
        const Reg offset = V::set1(shifted ? terms.offset[r] : 0);
        write_row_by<V>(out.data + r * out.pitch, n, streamed,
                        [&](int64_t j, auto lanes) PERSEID_BODY {
                          const Reg a = load<V>(from + j, lanes);
                          if constexpr (!shifted) return V::mul(a, factor);
                          if constexpr (shifted)
                            return V::fma(V::fms(a, before, shift), factor, offset);
                        });
      }
    });
  });
}

// sum[r] = the total of dy * y, or for log-softmax of dy, over what is visible (all, if visible has
// no data). The copies, of masked rows, are such that what is masked has gradient 0: dy = 0, and
// y = 0 or -inf.
template <class V, class From>
__attribute__((noinline)) void row_sums(RowsOf<const From> grad, RowsOf<const From> y,
                                        RowsOf<const uint8_t> visible, int64_t rows, int64_t n,
                                        bool log, RowsOf<typename V::Scalar> grad_copy,
                                        RowsOf<typename V::Scalar> y_copy, typename V::Scalar* sum,
                                        Ahead ahead) {
  using Reg = typename V::Reg;
  const Reg masked = V::set1(log ? -kInfinity<V> : 0);
  with_flag(visible.data != nullptr, [&](auto partly) PERSEID_BODY {
    with_flag(log, [&](auto logarithmic) PERSEID_BODY {
      for (int64_t r = 0; r < rows; ++r) {
        const From *grads = grad.data + r * grad.pitch, *ys = y.data + r * y.pitch;
        const uint8_t* bytes = visible.data + r * visible.pitch;
        const std::byte* next = ahead.data + r * ahead.pitch;
        typename V::Scalar* grads_to = grad_copy.data + r * grad_copy.pitch;
        typename V::Scalar* ys_to = y_copy.data + r * y_copy.pitch;
        Chains<V, 4> chains(V::zero());
        for_each_vector<V>(n, [&](int64_t j, int i, auto lanes) PERSEID_BODY {
          prefetch<V>(next, j * ahead.element);
          Reg g = load<V>(grads + j, lanes), a = V::zero();
          if constexpr (partly || !logarithmic) a = load<V>(ys + j, lanes);
          if constexpr (partly) {
            const typename V::Mask mask = shown<V>(bytes + j, lanes);
            g = V::select(mask, g, V::zero());
            a = V::select(mask, a, masked);
            V::store(grads_to + j, g);
            V::store(ys_to + j, a);
          }
          chains.of[i] = logarithmic ? V::add(g, chains.of[i]) : V::fma(g, a, chains.of[i]);
        });
        sum[r] = chains.sum();
      }
    });
  });
}

// dx = scale * y * (dy - sum), or scale * (dy - exp(y) * sum).
template <class V, class From, class To>
__attribute__((noinline)) void gradients(RowsOf<const From> grad, RowsOf<const From> y,
                                         RowsOf<To> out, int64_t rows, int64_t n,
                                         const typename V::Scalar* sum, typename V::Scalar scale,
                                         bool log, bool stream, Ahead ahead) {
  using Reg = typename V::Reg;
  const Reg scales = V::set1(scale);
  const Reg to_power = V::set1(static_cast<typename V::Scalar>(kLog2E));
  with_flag(stream, [&](auto streamed) PERSEID_BODY {
    with_flag(log, [&](auto logarithmic) PERSEID_BODY {
      for (int64_t r = 0; r < rows; ++r) {
        const From *grads = grad.data + r * grad.pitch, *ys = y.data + r * y.pitch;
        const std::byte* next = ahead.data + r * ahead.pitch;
        const Reg sums = V::set1(sum[r]);
        write_row_by<V>(out.data + r * out.pitch, n, streamed,
                        [&](int64_t j, auto lanes) PERSEID_BODY {
                          prefetch<V>(next, j * ahead.element);
                          const Reg g = load<V>(grads + j, lanes), a = load<V>(ys + j, lanes);
                          if constexpr (!logarithmic)
                            return V::mul(V::mul(a, scales), V::sub(g, sums));
                          if constexpr (logarithmic) {
                            const Reg p = exp2<V>(V::mul(a, to_power));
                            return V::mul(V::sub(g, V::mul(p, sums)), scales);
                          }
                        });
      }
    });
  });
}

#undef PERSEID_BODY

}  // namespace perseid::internal::cpu::PERSEID_ISA
