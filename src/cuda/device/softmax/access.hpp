// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How rows are read and written: by vectors of 16 bytes wherever their elements lie side by side,
// whatever the alignment of the row is.
//
// A row need not begin where a vector may. The vectors are then laid from the multiple of 16 bytes
// before its beginning, `shift` elements earlier:
//
//          row:         |----------------------------|
//      vectors:   |-----+-|-------|-------|-------|--+----|
//                 shift                            last one
//
// The two at the ends are loaded whole where other rows of the tensors lie there, and else element
// by element, and are stored in halves, quarters, ...: nothing is read outside of the 16 bytes that
// elements of a tensor lie in, nothing is written outside of a row. Elements that are no part of
// the row read as `padding`.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/ptx/math.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/softmax/config.hpp"

namespace perseid::internal::cuda {

// ---- Elements in packed words ----

template <DType D, int L>
using Vector = ptx::Packed<(static_cast<int>(size_of(D)) * L + 3) / 4>;

template <DType D, class Real, int L>
__device__ __forceinline__ Real unpack(const Vector<D, L>& vector, int i) {
  if constexpr (D == DType::kF64) {
    return __hiloint2double(static_cast<int>(vector.word[2 * i + 1]),
                            static_cast<int>(vector.word[2 * i]));
  } else if constexpr (D == DType::kF32) {
    return static_cast<Real>(__uint_as_float(vector.word[i]));
  } else {
    const uint32_t word = vector.word[i / 2];
    return static_cast<Real>(i % 2 == 0 ? widen_low<D>(word) : widen_high<D>(word));
  }
}

template <DType D, int L, class Real>
__device__ __forceinline__ Vector<D, L> pack(const Real (&values)[L]) {
  Vector<D, L> vector;
#pragma unroll
  for (int i = 0; i < L; ++i) {
    if constexpr (D == DType::kF64) {
      vector.word[2 * i] = static_cast<uint32_t>(__double2loint(values[i]));
      vector.word[2 * i + 1] = static_cast<uint32_t>(__double2hiint(values[i]));
    } else if constexpr (D == DType::kF32) {
      vector.word[i] = __float_as_uint(static_cast<float>(values[i]));
    } else if (i % 2 == 0) {
      const auto low = static_cast<float>(values[i]), high = static_cast<float>(values[i + 1]);
      vector.word[i / 2] = round_pair<D>(low, high);
    }
  }
  return vector;
}

// ---- Single elements ----

template <DType D>
using Word = ptx::Packed<size_of(D) == 8 ? 2 : 1>;

template <DType D>
__device__ __forceinline__ Word<D> load_element(const char* at) {
  if constexpr (size_of(D) == 1) {
    return {{*reinterpret_cast<const uint8_t*>(at)}};
  } else if constexpr (size_of(D) == 2) {
    return {{*reinterpret_cast<const uint16_t*>(at)}};
  } else if constexpr (size_of(D) == 4) {
    return {{*reinterpret_cast<const uint32_t*>(at)}};
  } else {
    const uint2 value = *reinterpret_cast<const uint2*>(at);
    return {{value.x, value.y}};
  }
}

template <DType D>
__device__ __forceinline__ void store_element(char* at, const Word<D>& word) {
  if constexpr (size_of(D) == 2) {
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(word.word[0]);
  } else if constexpr (size_of(D) == 4) {
    *reinterpret_cast<uint32_t*>(at) = word.word[0];
  } else {
    *reinterpret_cast<uint2*>(at) = {word.word[0], word.word[1]};
  }
}

// A number as an element.
template <DType D, class Real>
__device__ __forceinline__ Word<D> to_element(Real value) {
  constexpr int kElements = size_of(D) == 2 ? 2 : 1;
  Real values[kElements] = {value};
  const Vector<D, kElements> vector = pack<D>(values);
  Word<D> word;
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(word) / 4); ++w) word.word[w] = vector.word[w];
  return word;
}

// Elements and vectors of them; every index is a constant once loops are unrolled, so that no
// register is chosen at run time.
template <DType D, int L>
__device__ __forceinline__ Word<D> element_of(const Vector<D, L>& vector, int i) {
  if constexpr (size_of(D) == 8) {
    return {{vector.word[2 * i], vector.word[2 * i + 1]}};
  } else {
    constexpr int kEach = 4 / static_cast<int>(size_of(D));
    constexpr uint32_t kBits = 0xffffffffu >> (32 - 32 / kEach);
    return {{vector.word[i / kEach] >> (i % kEach * (32 / kEach)) & kBits}};
  }
}
template <DType D, int L>
__device__ __forceinline__ Vector<D, L> join(const Word<D> (&elements)[L]) {
  Vector<D, L> vector{};
#pragma unroll
  for (int i = 0; i < L; ++i) {
    if constexpr (size_of(D) == 8) {
      vector.word[2 * i] = elements[i].word[0];
      vector.word[2 * i + 1] = elements[i].word[1];
    } else {
      constexpr int kEach = 4 / static_cast<int>(size_of(D));
      vector.word[i / kEach] |= elements[i].word[0] << (i % kEach * (32 / kEach));
    }
  }
  return vector;
}
template <DType D, int L>
__device__ __forceinline__ Vector<D, L> repeat(const Word<D>& element) {
  Word<D> elements[L];
#pragma unroll
  for (Word<D>& each : elements) each = element;
  return join<D, L>(elements);
}

// ---- Rows ----

// A row of a tensor. `vectors`: its elements lie side by side, with vectors at the shift.
struct Row {
  char* data;
  int64_t step;
  bool vectors;
};

// Which elements there are: those of the row from 0 to `length`; and of the same and other rows,
// from `lowest` to `highest`, those that a vector with an element of these may have besides.
struct Extent {
  int length, lowest, highest;
};

// Which of a thread's vectors, at first, first + between, ..., go by one access: those before
// `count`, but not the very first one where it begins too early.
template <DType D, int L>
struct Whole {
  int count;
  bool first;

  // Those among the elements from `lowest` to `highest`.
  __device__ __forceinline__ Whole(const Row& row, int begin, int between, int lowest,
                                   int highest) {
    constexpr bool kHasAccess = size_of(D) * L % 4 == 0;
    const int room = highest - L - begin;
    count = kHasAccess && row.vectors && room >= 0 ? room / between + 1 : 0;
    first = begin >= lowest;
  }
  __device__ __forceinline__ bool operator()(int v) const { return v < count && (v > 0 || first); }
  // Whether that is less than `vectors` of them.
  __device__ __forceinline__ bool leaves(int vectors) const { return count < vectors || !first; }
};

// The vector at `first`, element by element: all of them are under way together.
template <DType D, int L>
__device__ __forceinline__ Vector<D, L> load_elements(const Row& row, int first, int length,
                                                      const Word<D>& padding) {
  const char* at = row.data + first * row.step * size_of(D);
  Word<D> elements[L];
#pragma unroll
  for (int i = 0; i < L; ++i, at += row.step * size_of(D)) {
    elements[i] = padding;
    if (first + i >= 0 && first + i < length) elements[i] = load_element<D>(at);
  }
  return join<D, L>(elements);
}

// The vectors at first, first + between, ..., in two steps, so that those of all tensors are under
// way before the first is waited for. `ends`: only those that are not whole in the row.
template <DType D, int L, int kVectors>
__device__ __forceinline__ void load_vectors(const Row& row, int first, int between,
                                             const Extent& extent,
                                             Vector<D, L> (&vectors)[kVectors], bool ends = false) {
  const Whole<D, L> there(row, first, between, extent.lowest, extent.highest);
  const Whole<D, L> whole(row, first, between, 0, extent.length);
  const char* at = row.data + int64_t{first} * size_of(D);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    ptx::load_if(there(v) && !(ends && whole(v)), at + v * between * size_of(D), vectors[v]);
}
// The bits of a vector's elements from 0 to `length`, of which the first would be at `begin`.
template <DType D, int L>
__device__ __forceinline__ Vector<D, L> bits_inside(int begin, int length) {
  constexpr int kBits = 8 * static_cast<int>(size_of(D));
  const int low = max(-begin, 0) * kBits, high = min(max(length - begin, 0), L) * kBits;
  Vector<D, L> bits;
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(bits) / 4); ++w) {
    const auto below = static_cast<uint32_t>(max(low - 32 * w, 0));
    const auto behind = static_cast<uint32_t>(max(32 * (w + 1) - high, 0));
    bits.word[w] = __funnelshift_lc(0u, ~0u, below) & __funnelshift_rc(~0u, 0u, behind);
  }
  return bits;
}

template <DType D, int L, int kVectors>
__device__ __forceinline__ void load_rest(const Row& row, int first, int between,
                                          const Extent& extent, const Word<D>& padding,
                                          Vector<D, L> (&vectors)[kVectors]) {
  const int length = extent.length;
  const Whole<D, L> whole(row, first, between, 0, length);
  if (!whole.leaves(kVectors)) return;
  const Whole<D, L> there(row, first, between, extent.lowest, extent.highest);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (whole(v)) continue;
    const int begin = first + v * between;
    const bool outside = begin >= length || begin + L <= 0;
    if (!there(v) && !outside) {
      vectors[v] = load_elements<D, L>(row, begin, length, padding);
      continue;
    }
    const Vector<D, L> inside = bits_inside<D, L>(begin, length), others = repeat<D, L>(padding);
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(inside) / 4); ++w) {
      uint32_t& word = vectors[v].word[w];
      word = (word & inside.word[w]) | (others.word[w] & ~inside.word[w]);
    }
  }
}

// The first `count` elements of a vector, or the last ones, but not all: a half of it, a quarter of
// it, and so on, so that there are few accesses.
template <DType D, int L>
__device__ __forceinline__ void store_end(char* at, const Vector<D, L>& vector, int count,
                                          bool last) {
  constexpr int kHalf = L / 2, kBytes = kHalf * static_cast<int>(size_of(D));
  const bool wanted = (count & kHalf) != 0, rest_is_upper = wanted != last;
  char* const half_at = last ? at + kBytes : at;
  if constexpr (kBytes < 4) {
    const Word<D> half{{last ? vector.word[0] >> 16 : vector.word[0]}};
    if (wanted) store_element<D>(half_at, half);
  } else {
    Vector<D, kHalf> half, rest;
#pragma unroll
    for (int w = 0; w < kBytes / 4; ++w) {
      const uint32_t lower = vector.word[w], upper = vector.word[w + kBytes / 4];
      half.word[w] = last ? upper : lower;
      rest.word[w] = rest_is_upper ? upper : lower;
    }
    ptx::store_if(wanted, half_at, half);
    if constexpr (kHalf > 1)
      store_end<D, kHalf>(rest_is_upper ? at + kBytes : at, rest, count, last);
  }
}

template <DType D, int L, int kVectors>
__device__ __forceinline__ void store(const Row& row, int first, int between, int length,
                                      const Vector<D, L> (&vectors)[kVectors]) {
  const Whole<D, L> whole(row, first, between, 0, length);
  char* at = row.data + int64_t{first} * size_of(D);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    ptx::store_if(whole(v), at + v * between * size_of(D), vectors[v]);
  if (!whole.leaves(kVectors)) return;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int begin = first + v * between;
    if (whole(v) || begin >= length || begin + L <= 0) continue;
    if (row.vectors && (begin >= 0 || begin + L <= length)) {
      store_end<D, L>(at + v * between * size_of(D), vectors[v],
                      begin < 0 ? begin + L : length - begin, begin < 0);
      continue;
    }
    char* element = row.data + begin * row.step * size_of(D);
#pragma unroll
    for (int i = 0; i < L; ++i, element += row.step * size_of(D))
      if (begin + i >= 0 && begin + i < length)
        store_element<D>(element, element_of<D, L>(vectors[v], i));
  }
}

__device__ __forceinline__ int64_t quotient(const Divisor& divisor, int64_t number, bool wide) {
  if (wide) return number / divisor.size;
  return quotient(divisor, static_cast<uint32_t>(number));
}

// The tensors' parts of one row, and where its vectors begin.
struct RowSet {
  Row first, second, visible, result;
  int64_t lse;          // offset in elements
  bool before, behind;  // whether the tensors have elements before and behind the row
  int shift = 0;

  // The extent of the row's elements before `length`: all, or up to the end of a vector.
  __device__ __forceinline__ Extent extent(int length, int vector) const {
    return {length, before ? 1 - vector : 0, behind ? length + vector - 1 : length};
  }
};

__device__ __forceinline__ int address_mod(const void* data, int64_t size, int modulus) {
  return static_cast<int>(reinterpret_cast<uint64_t>(data) / static_cast<uint64_t>(size) %
                          static_cast<uint64_t>(modulus));
}

// Row `row` from element `begin` on. `capacity`: how many vectors there is room for; a row that
// would need one more for its shift goes element by element.
template <SoftmaxConfig C, bool kBackward>
__device__ __forceinline__ RowSet find_row(const SoftmaxArguments& arguments, int64_t row,
                                           int64_t begin, int64_t length, int64_t capacity) {
  const bool before = arguments.dense && (row > 0 || begin > 0);
  const bool behind =
      arguments.dense && (row < arguments.rows - 1 || begin + length < arguments.length);
  constexpr DType kFirst = kBackward ? C.out : C.in, kResult = kBackward ? C.in : C.out;
  int64_t first = begin * arguments.first.step, second = begin * arguments.second.step;
  int64_t visible = begin * arguments.visible.step, result = begin * arguments.result.step;
  int64_t lse = 0;
  const auto move = [&](int d, int64_t index) {
    first += index * arguments.first.stride[d];
    if constexpr (kBackward) second += index * arguments.second.stride[d];
    if constexpr (!kBackward) lse += index * arguments.lse.stride[d];
    if constexpr (C.masked) visible += index * arguments.visible.stride[d];
    result += index * arguments.result.stride[d];
  };
  // Apart from the others, since a block can load nothing before it is through here.
  if (arguments.outer_dims <= 1) {
    move(0, row);
  } else {
#pragma unroll 1
    for (int d = arguments.outer_dims - 1; d >= 0; --d) {
      int64_t index = row;
      if (d > 0) {
        row = quotient(arguments.outer[d], row, arguments.wide);
        index -= row * arguments.outer[d].size;
      }
      move(d, index);
    }
  }
  constexpr int L = C.vector();
  const auto part = [](const RowsOf& rows, int64_t offset, int64_t size) {
    return Row{static_cast<char*>(rows.data) + offset * size, rows.step, false};
  };
  RowSet set{part(arguments.first, first, size_of(kFirst)),
             part(arguments.second, second, size_of(C.out)),
             part(arguments.visible, visible, 1),
             part(arguments.result, result, size_of(kResult)),
             lse,
             before,
             behind};
  const int shift = address_mod(set.first.data, size_of(kFirst), L);
  if (set.first.step != 1 || (length + shift + L - 1) / L > capacity) return set;
  set.shift = shift;
  set.first.vectors = true;
  const auto fits = [shift](const Row& other, int64_t size) {
    return other.step == 1 && address_mod(other.data, size, L) == shift;
  };
  if constexpr (kBackward) set.second.vectors = fits(set.second, size_of(C.out));
  if constexpr (C.masked) set.visible.vectors = fits(set.visible, 1);
  set.result.vectors = fits(set.result, size_of(kResult));
  return set;
}

}  // namespace perseid::internal::cuda
