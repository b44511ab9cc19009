// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How rows are read and written: by vectors of 16 bytes wherever their elements lie side by side,
// whatever the alignment of the row is.
//
// A row need not begin where a vector may. The vectors are then laid from the multiple of 16 bytes
// before its beginning, `shift` elements earlier, and the two at the ends go element by element:
//
//          row:         |----------------------------|
//      vectors:   |-----+-|-------|-------|-------|--+----|
//                 shift                            last one
//
// Elements that are no part of the row read as `padding`. No access goes past the row.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/softmax/config.hpp"

namespace perseid::cuda {

// ---- Elements in packed words ----

template <DType D, int L>
using Vector = ptx::Packed<static_cast<int>(size_of(D)) * L / 4>;

template <DType D, class Real, int L>
__device__ __forceinline__ Real unpack(const Vector<D, L>& vector, int i) {
  if constexpr (D == DType::kF64) {
    return __hiloint2double(static_cast<int>(vector.word[2 * i + 1]),
                            static_cast<int>(vector.word[2 * i]));
  } else if constexpr (D == DType::kF32) {
    return static_cast<Real>(__uint_as_float(vector.word[i]));
  } else if constexpr (D == DType::kBF16) {
    const uint32_t word = vector.word[i / 2];
    return static_cast<Real>(__uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u));
  } else {
    const uint32_t word = vector.word[i / 2];
    return static_cast<Real>(ptx::f16_to_float(i % 2 == 0 ? word & 0xffffu : word >> 16));
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
      vector.word[i / 2] = D == DType::kBF16 ? ptx::to_bf16x2(low, high) : ptx::to_f16x2(low, high);
    }
  }
  return vector;
}

// ---- One element after another. The words are turned by an element at each step, so that no
// register is chosen at run time. ----

template <DType D>
using Word = ptx::Packed<size_of(D) == 8 ? 2 : 1>;

template <DType D>
__device__ __forceinline__ Word<D> load_element(const char* at) {
  if constexpr (size_of(D) == 2) {
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

// The first element moves out, the others down, and `in` takes the last place.
template <DType D, int Words>
__device__ __forceinline__ Word<D> turn(ptx::Packed<Words>& vector, const Word<D>& in) {
  Word<D> out;
  if constexpr (size_of(D) == 2) {
    out.word[0] = vector.word[0] & 0xffffu;
#pragma unroll
    for (int w = 0; w < Words; ++w) {
      const uint32_t next = w + 1 < Words ? vector.word[w + 1] : in.word[0];
      vector.word[w] = vector.word[w] >> 16 | next << 16;
    }
  } else {
    constexpr int kSize = sizeof(Word<D>) / 4;
#pragma unroll
    for (int w = 0; w < kSize; ++w) out.word[w] = vector.word[w];
#pragma unroll
    for (int w = 0; w < Words; ++w)
      vector.word[w] = w + kSize < Words ? vector.word[w + kSize] : in.word[w + kSize - Words];
  }
  return out;
}

// ---- Rows ----

// A row of a tensor. `vectors`: its elements lie side by side, with vectors at the shift.
struct Row {
  char* data;
  int64_t step;
  bool vectors;
};

// Whether the vector at `first` goes by one access, and whether any of it is in the row.
template <int L>
__device__ __forceinline__ bool is_whole(const Row& row, int first, int length) {
  return row.vectors && first >= 0 && first + L <= length;
}
template <int L>
__device__ __forceinline__ bool is_inside(int first, int length) {
  return first < length && first + L > 0;
}

// The vectors at first, first + between, ...: first all the whole ones, then what is left.
template <DType D, int L, int kVectors>
__device__ __forceinline__ void load(const Row& row, int first, int between, int length,
                                     const Word<D>& padding, Vector<D, L> (&vectors)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = first + v * between;
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof vectors[v] / 4); ++w)
      vectors[v].word[w] =
          size_of(D) == 2 ? padding.word[0] * 0x10001u : padding.word[size_of(D) == 8 ? w % 2 : 0];
    ptx::load_if(is_whole<L>(row, at, length), row.data + int64_t{at} * size_of(D), vectors[v]);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = first + v * between;
    if (is_whole<L>(row, at, length) || !is_inside<L>(at, length)) continue;
#pragma unroll 1
    for (int i = at; i < at + L; ++i) {
      const bool inside = 0 <= i && i < length;
      turn<D>(vectors[v], inside ? load_element<D>(row.data + i * row.step * size_of(D)) : padding);
    }
  }
}

template <DType D, int L, int kVectors>
__device__ __forceinline__ void store(const Row& row, int first, int between, int length,
                                      Vector<D, L> (&vectors)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = first + v * between;
    ptx::store_if(is_whole<L>(row, at, length), row.data + int64_t{at} * size_of(D), vectors[v]);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = first + v * between;
    if (is_whole<L>(row, at, length) || !is_inside<L>(at, length)) continue;
#pragma unroll 1
    for (int i = at; i < min(at + L, length); ++i) {
      const Word<D> element = turn<D>(vectors[v], Word<D>{});
      if (i >= 0) store_element<D>(row.data + i * row.step * size_of(D), element);
    }
  }
}

// The bytes of a vector's part of a mask: bit i says that element i is visible. The high bit of
// each byte that is not 0; the product brings the four of a word side by side.
template <int kWords>
__device__ __forceinline__ uint32_t bits_of(const ptx::Packed<kWords>& bytes) {
  uint32_t bits = 0;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const uint32_t word = bytes.word[w];
    const uint32_t high = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    bits |= (((high >> 7) * 0x01020408u) >> 24 & 0xfu) << (4 * w);
  }
  return bits;
}

// set(v, bits) for each vector; elements outside of the row are invisible.
template <int L, int kVectors, class Set>
__device__ __forceinline__ void load_visible(const Row& row, int first, int between, int length,
                                             const Set& set) {
  constexpr bool kByWords = L >= 4;
  ptx::Packed<kByWords ? L / 4 : 1> bytes[kVectors];
  if constexpr (kByWords) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = first + v * between;
#pragma unroll
      for (uint32_t& word : bytes[v].word) word = 0;
      ptx::load_if(is_whole<L>(row, at, length), row.data + at, bytes[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = first + v * between;
    uint32_t bits = 0;
    if (kByWords && is_whole<L>(row, at, length)) {
      bits = bits_of(bytes[v]);
    } else if (is_inside<L>(at, length)) {
#pragma unroll 1
      for (int i = max(at, 0); i < min(at + L, length); ++i)
        bits |= (row.data[i * row.step] != 0 ? 1u : 0u) << (i - at);
    }
    set(v, bits);
  }
}

__device__ __forceinline__ int64_t quotient(const Divisor& divisor, int64_t number, bool wide) {
  if (wide) return number / divisor.size;
  const auto small = static_cast<uint32_t>(number);
  return (__umulhi(small, divisor.multiplier) + small) >> divisor.shift;
}

// The tensors' parts of one row, and where its vectors begin.
struct RowSet {
  Row first, second, visible, result;
  int64_t lse;  // offset in elements
  int shift = 0;
};

__device__ __forceinline__ int address_mod(const void* data, int64_t size, int modulus) {
  return static_cast<int>(reinterpret_cast<uint64_t>(data) / static_cast<uint64_t>(size) %
                          static_cast<uint64_t>(modulus));
}

// Row `row` from element `begin` on. `capacity`: how many vectors there is room for; a row that
// would need one more for its shift goes element by element.
template <DType First, DType Second, DType Result, bool kBackward, SoftmaxConfig C>
__device__ __forceinline__ RowSet find_row(const SoftmaxArguments& arguments, int64_t row,
                                           int64_t begin, int64_t length, int64_t capacity) {
  int64_t first = begin * arguments.first.step, second = begin * arguments.second.step;
  int64_t visible = begin * arguments.visible.step, result = begin * arguments.result.step;
  int64_t lse = 0;
#pragma unroll 1
  for (int d = arguments.outer_dims - 1; d >= 0; --d) {
    int64_t index = row;
    if (d > 0) {
      row = quotient(arguments.outer[d], row, arguments.wide);
      index -= row * arguments.outer[d].size;
    }
    first += index * arguments.first.stride[d];
    if constexpr (kBackward) second += index * arguments.second.stride[d];
    if constexpr (!kBackward) lse += index * arguments.lse.stride[d];
    if constexpr (C.masked) visible += index * arguments.visible.stride[d];
    result += index * arguments.result.stride[d];
  }
  constexpr int L = C.vector();
  const auto part = [](const RowsOf& rows, int64_t offset, int64_t size) {
    return Row{static_cast<char*>(rows.data) + offset * size, rows.step, false};
  };
  RowSet set{part(arguments.first, first, size_of(First)),
             part(arguments.second, second, size_of(Second)), part(arguments.visible, visible, 1),
             part(arguments.result, result, size_of(Result)), lse};
  const int shift = address_mod(set.first.data, size_of(First), L);
  if (set.first.step != 1 || (length + shift + L - 1) / L > capacity) return set;
  set.shift = shift;
  set.first.vectors = true;
  const auto fits = [shift](const Row& other, int64_t size) {
    return other.step == 1 && address_mod(other.data, size, L) == shift;
  };
  if constexpr (kBackward) set.second.vectors = fits(set.second, size_of(Second));
  if constexpr (C.masked) set.visible.vectors = fits(set.visible, 1);
  set.result.vectors = fits(set.result, size_of(Result));
  return set;
}

}  // namespace perseid::cuda
