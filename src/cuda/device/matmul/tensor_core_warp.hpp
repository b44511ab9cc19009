// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A warp's share of matmul_tensor_core: how tiles lie in shared memory, what a warp loads of them
// for a step of 16 along k (f64: 8), and the sums it keeps.
//
// An operand's tile is a number of lines of elements that lie side by side, along k or across it as
// in global memory. Vectors of 16 bytes are permuted in each line so that neither the copies nor
// the loads meet a bank twice:
//
//   f16, bf16   vector v of line l lies at v ^ (l mod 8): ldmatrix reads the same vector of eight
//               lines, transposed where lines lie across k
//   f64         at v ^ 2 (l mod 4): a half-warp reads two vectors of each of four lines
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/matmul/config.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/mma.hpp"

namespace perseid::internal::cuda {

template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<8> {
  using Type = uint64_t;
};

template <MatmulTensorConfig C>
struct TileLayout {
  using Bits = typename BitsOf<C.element_bytes()>::Type;
  static constexpr bool kDouble = C.in == DType::kF64;
  static constexpr int kVector = 16 / C.element_bytes();  // elements
  static constexpr int kPeriod = kDouble ? 4 : 8;         // of the permutation, in lines
  static constexpr int kStep = kDouble ? 8 : 16;          // along k: what a warp multiplies at once

  // Offset of a vector in a tile, in bytes. kLength: elements of a line, a multiple of 128 bytes.
  template <int kLength>
  static __device__ __forceinline__ int offset(int line, int vector) {
    const int turned = vector ^ (kDouble ? line % 4 * 2 : line % 8);
    return line * kLength * C.element_bytes() + (turned << 4);
  }
  // The address of the vector so many lines and vectors on. `lines` is a multiple of the period,
  // and `vectors` has no bit of the vector's number: then the permutation is one XOR of a constant.
  template <int kLength>
  static __device__ __forceinline__ uint32_t moved(uint32_t address, int lines, int vectors) {
    return (address ^ (vectors % 8 << 4)) + lines * kLength * C.element_bytes() +
           (vectors / 8 << 7);
  }
};

// What a warp multiplies in a step of 16 along k, as ptx::mma says.
template <MatmulTensorConfig C>
struct WarpOperands {
  using Layout = TileLayout<C>;
  static constexpr int kDown = C.warp_rows / 16, kAcross = C.warp_columns / 8;
  uint32_t left[kDown][4], right[kAcross / 2][4];

  // From a stage's tiles. `row`, `column`: of the warp's part in the tile.
  __device__ __forceinline__ void load(uint32_t stage, int row, int column, int k) {
    const uint32_t a = stage, b = stage + C.a_bytes();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Which line of an 8 x 8 matrix the lane names, and of which two of the four.
    const int line = lane % 8, second = lane / 8 % 2, fourth = lane / 16;
    const uint32_t a_own =
        C.a_across
            ? a + Layout::template offset<C.rows>(line + 8 * fourth, row / Layout::kVector + second)
            : a + Layout::template offset<C.depth()>(row + line + 8 * second, fourth);
    const uint32_t b_own =
        C.b_across ? b + Layout::template offset<C.columns>(line + 8 * second,
                                                            column / Layout::kVector + fourth)
                   : b + Layout::template offset<C.depth()>(column + line + 8 * fourth, second);
#pragma unroll
    for (int i = 0; i < kDown; ++i)
      if constexpr (C.a_across)
        ptx::ldmatrix_x4_trans(Layout::template moved<C.rows>(a_own, k, 2 * i), left[i]);
      else
        ptx::ldmatrix_x4(Layout::template moved<C.depth()>(a_own, 16 * i, k / 8), left[i]);
#pragma unroll
    for (int j = 0; j < kAcross / 2; ++j)
      if constexpr (C.b_across)
        ptx::ldmatrix_x4_trans(Layout::template moved<C.columns>(b_own, k, 2 * j), right[j]);
      else
        ptx::ldmatrix_x4(Layout::template moved<C.depth()>(b_own, 16 * j, k / 8), right[j]);
  }
};

// The same in f64, of a step of 8.
template <MatmulTensorConfig C>
requires(C.in == DType::kF64) struct WarpOperands<C> {
  using Layout = TileLayout<C>;
  static constexpr int kDown = C.warp_rows / 16, kAcross = C.warp_columns / 8;
  double left[kDown][4], right[kAcross][2];

  __device__ __forceinline__ void load(uint32_t stage, int row, int column, int k) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        right[j][e] = element<C.b_across, C.columns>(stage + C.a_bytes(), column, 8 * j, k + 4 * e);
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        left[i][e] = element<C.a_across, C.rows>(stage, row, 16 * i + e % 2 * 8, k + e / 2 * 4);
  }

 private:
  // The lane's element of 8 x 4, `outer` and `k` on from the warp's first row or column.
  template <bool kAcrossK, int kOuter>
  static __device__ __forceinline__ double element(uint32_t tile, int first, int outer, int k) {
    constexpr int kLength = kAcrossK ? kOuter : C.depth();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int of_outer = first + lane / 4, of_k = lane % 4;
    const int line = kAcrossK ? of_k : of_outer, at = kAcrossK ? of_outer : of_k;
    const uint32_t own = tile + Layout::template offset<kLength>(line, at / 2) + at % 2 * 8;
    return ptx::load_shared_f64(
        Layout::template moved<kLength>(own, kAcrossK ? k : outer, (kAcrossK ? outer : k) / 2));
  }
};

// A warp's part of the tile: sums[i][j] has 16 rows and 8 columns, as ptx::mma says.
template <MatmulTensorConfig C>
struct WarpSums {
  using Real = decltype(widen(typename ElementOf<C.in>::Type{}));
  // Neighbours of a row, in one access.
  struct alignas(2 * sizeof(Real)) Pair {
    Real first, second;
  };
  static constexpr int kDown = C.warp_rows / 16, kAcross = C.warp_columns / 8;
  Real sums[kDown][kAcross][4] = {};

  __device__ __forceinline__ void add(const WarpOperands<C>& operands) { add(operands, operands); }
  // Adds the product of of_a's part of a and of_b's part of b.
  __device__ __forceinline__ void add(const WarpOperands<C>& of_a, const WarpOperands<C>& of_b) {
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j)
        if constexpr (C.in == DType::kF64)
          ptx::mma_f64(sums[i][j], of_a.left[i], of_b.right[j]);
        else
          ptx::mma<C.in>(sums[i][j], of_a.left[i], of_b.right[j / 2][2 * (j % 2)],
                         of_b.right[j / 2][2 * (j % 2) + 1]);
  }
  // Adds sums times a factor, rounded to nearest.
  __device__ __forceinline__ void add(const WarpSums& others, Real factor) {
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[i][j][e] = fma(others.sums[i][j][e], factor, sums[i][j][e]);
  }

  // put() stores the sums at `to` and clears them; add() adds what is stored there. The pairs of
  // all threads are contiguous.
  __device__ __forceinline__ void put(unsigned char* to) {
    for_each_pair(to, [](Pair& pair, Real& first, Real& second) { pair = {first, second}; });
    *this = {};
  }
  __device__ __forceinline__ void add(unsigned char* from) {
    for_each_pair(from, [](const Pair& pair, Real& first, Real& second) {
      first += pair.first;
      second += pair.second;
    });
  }

  // Into the sums of the tile. `row`, `column`: of the part in it.
  __device__ __forceinline__ void store(Real* tile, int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    tile += (row + lane / 4) * C.sums_pitch() + column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        Real* at = tile + 16 * i * C.sums_pitch() + 8 * j;
        const Real(&sum)[4] = sums[i][j];
        *reinterpret_cast<Pair*>(at) = {sum[0], sum[1]};
        *reinterpret_cast<Pair*>(at + 8 * C.sums_pitch()) = {sum[2], sum[3]};
      }
  }

 private:
  template <class Visit>
  __device__ __forceinline__ void for_each_pair(unsigned char* memory, const Visit& visit) {
    Pair* pair = reinterpret_cast<Pair*>(memory) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2, pair += C.threads())
          visit(*pair, sums[i][j][e], sums[i][j][e + 1]);
  }
};

}  // namespace perseid::internal::cuda
