// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matrix products of a warpgroup (128 threads), 64 rows, and register allocation. sm_90a.
//
// The accumulator of 64 x N has N / 2 floats a thread. Warp w has rows 16 w to 16 w + 15; in it
// lane l has rows l / 4 and l / 4 + 8 and, of every eight columns j, those at 2 (l % 4):
//
//   d[4 j], d[4 j + 1]        row l / 4,      columns 8 j + 2 (l % 4) and the next
//   d[4 j + 2], d[4 j + 3]    row l / 4 + 8,  the same columns
//
// Rounded to 16 bits and packed in pairs, 16 columns of it are an operand A of the next product.
#pragma once

#include "cuda/device/ptx/matrix_descriptor.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
// Orders this thread's accesses to registers and shared memory before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// The products since the last commit become a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All groups but the last kPending are complete.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}
// The compiler takes the accumulators for ready once a product is issued: call it after the wait,
// so that no read of them moves up.
template <int kCount>
__device__ __forceinline__ void fence_operand(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Releases registers of each thread to the block's pool, or takes some from it. All warps of the
// warpgroup call it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// d = A B, plus d where `accumulate`. K is 32 bytes, 16 elements of 16 bits; A has 64 rows, B has N
// columns.
//   mma_ss: A and B in shared memory, K-major, or MN-major where kAcrossA, kAcrossB; of 8 bits,
//           K-major alone
//   mma_rs: A in registers, B in shared memory, MN-major; of 16 bits alone
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma
template <int N, DType A, DType B = A>
struct Wgmma;

// clang-format off
#define PERSEID_LIST_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PERSEID_LIST_2 PERSEID_LIST_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PERSEID_LIST_2H PERSEID_LIST_2 ", %16, %17, %18, %19"
#define PERSEID_LIST_3 PERSEID_LIST_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PERSEID_LIST_4 PERSEID_LIST_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PERSEID_LIST_4H PERSEID_LIST_4 ", %32, %33, %34, %35"
#define PERSEID_LIST_5 PERSEID_LIST_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define PERSEID_LIST_6 PERSEID_LIST_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PERSEID_LIST_7 PERSEID_LIST_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PERSEID_LIST_8 PERSEID_LIST_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define PERSEID_LIST_9 PERSEID_LIST_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define PERSEID_LIST_10 PERSEID_LIST_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define PERSEID_LIST_11 PERSEID_LIST_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define PERSEID_LIST_12 PERSEID_LIST_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PERSEID_LIST_13 PERSEID_LIST_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define PERSEID_LIST_14 PERSEID_LIST_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define PERSEID_LIST_15 PERSEID_LIST_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define PERSEID_LIST_16 PERSEID_LIST_15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define PERSEID_EIGHT(i)                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),         \
  "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define PERSEID_HELD_1 PERSEID_EIGHT(0)
#define PERSEID_HELD_2 PERSEID_HELD_1, PERSEID_EIGHT(8)
#define PERSEID_HELD_2H \
  PERSEID_HELD_2, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define PERSEID_HELD_3 PERSEID_HELD_2, PERSEID_EIGHT(16)
#define PERSEID_HELD_4 PERSEID_HELD_3, PERSEID_EIGHT(24)
#define PERSEID_HELD_4H \
  PERSEID_HELD_4, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define PERSEID_HELD_5 PERSEID_HELD_4, PERSEID_EIGHT(32)
#define PERSEID_HELD_6 PERSEID_HELD_5, PERSEID_EIGHT(40)
#define PERSEID_HELD_7 PERSEID_HELD_6, PERSEID_EIGHT(48)
#define PERSEID_HELD_8 PERSEID_HELD_7, PERSEID_EIGHT(56)
#define PERSEID_HELD_9 PERSEID_HELD_8, PERSEID_EIGHT(64)
#define PERSEID_HELD_10 PERSEID_HELD_9, PERSEID_EIGHT(72)
#define PERSEID_HELD_11 PERSEID_HELD_10, PERSEID_EIGHT(80)
#define PERSEID_HELD_12 PERSEID_HELD_11, PERSEID_EIGHT(88)
#define PERSEID_HELD_13 PERSEID_HELD_12, PERSEID_EIGHT(96)
#define PERSEID_HELD_14 PERSEID_HELD_13, PERSEID_EIGHT(104)
#define PERSEID_HELD_15 PERSEID_HELD_14, PERSEID_EIGHT(112)
#define PERSEID_HELD_16 PERSEID_HELD_15, PERSEID_EIGHT(120)
// N is 16 * COUNT, where H is a half; a to f are the numbers of the operands after the 8 * COUNT of d.
#define PERSEID_PRODUCT(N, COUNT, D, TYPES, a, b, c, e, f, g)                                   \
  template <>                                                                                \
  struct Wgmma<N, D, D> {                                                                     \
    template <bool kAcrossA = false, bool kAcrossB = false>                                  \
    static __device__ __forceinline__ void mma_ss(float (&d)[N / 2], uint64_t left,          \
                                                  uint64_t right, bool accumulate) {         \
      asm volatile("{.reg .pred more; setp.ne.b32 more, %" #c ", 0;"                         \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES                   \
                   " {" PERSEID_LIST_##COUNT "}, %" #a ", %" #b ", more, 1, 1, %" #e ", %" #f ";}" \
                   : PERSEID_HELD_##COUNT                                                    \
                   : "l"(left), "l"(right), "r"(static_cast<int>(accumulate)),               \
                     "n"(static_cast<int>(kAcrossA)), "n"(static_cast<int>(kAcrossB))        \
                   : "memory");                                                              \
    }                                                                                        \
    static __device__ __forceinline__ void mma_rs(float (&d)[N / 2], const uint32_t* left, \
                                                     uint64_t right, bool accumulate) {      \
      asm volatile("{.reg .pred more; setp.ne.b32 more, %" #g ", 0;"                         \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES                   \
                   " {" PERSEID_LIST_##COUNT "}, {%" #a ", %" #b ", %" #c ", %" #e "}, %" #f      \
                   ", more, 1, 1, 1;}"                                                       \
                   : PERSEID_HELD_##COUNT                                                    \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),     \
                     "r"(static_cast<int>(accumulate))                                       \
                   : "memory");                                                              \
    }                                                                                        \
  };
// a, b, c: the numbers of the operands after the 8 * COUNT of d.
#define PERSEID_PRODUCT8(N, COUNT, A, B, TYPES, a, b, c)                                       \
  template <>                                                                                \
  struct Wgmma<N, A, B> {                                                                    \
    template <bool kAcrossA = false, bool kAcrossB = false>                                  \
    static __device__ __forceinline__ void mma_ss(float (&d)[N / 2], uint64_t left,          \
                                                  uint64_t right, bool accumulate) {         \
      static_assert(!kAcrossA && !kAcrossB, "wgmma transposes elements of 16 bits alone");   \
      asm volatile("{.reg .pred more; setp.ne.b32 more, %" #c ", 0;"                         \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES                   \
                   " {" PERSEID_LIST_##COUNT "}, %" #a ", %" #b ", more, 1, 1;}"             \
                   : PERSEID_HELD_##COUNT                                                    \
                   : "l"(left), "l"(right), "r"(static_cast<int>(accumulate))                \
                   : "memory");                                                              \
    }                                                                                        \
  };
#define PERSEID_PRODUCTS8(N, COUNT, a, b, c)                                                 \
  PERSEID_PRODUCT8(N, COUNT, DType::kF8E4M3, DType::kF8E4M3, "e4m3.e4m3", a, b, c)           \
  PERSEID_PRODUCT8(N, COUNT, DType::kF8E4M3, DType::kF8E5M2, "e4m3.e5m2", a, b, c)           \
  PERSEID_PRODUCT8(N, COUNT, DType::kF8E5M2, DType::kF8E4M3, "e5m2.e4m3", a, b, c)           \
  PERSEID_PRODUCT8(N, COUNT, DType::kF8E5M2, DType::kF8E5M2, "e5m2.e5m2", a, b, c)
#define PERSEID_PRODUCTS(N, COUNT, a, b, c, e, f, g)                                         \
  PERSEID_PRODUCT(N, COUNT, DType::kBF16, "bf16.bf16", a, b, c, e, f, g)                     \
  PERSEID_PRODUCT(N, COUNT, DType::kF16, "f16.f16", a, b, c, e, f, g)
PERSEID_PRODUCTS(16, 1, 8, 9, 10, 11, 12, 13)
PERSEID_PRODUCTS(32, 2, 16, 17, 18, 19, 20, 21)
PERSEID_PRODUCTS(40, 2H, 20, 21, 22, 23, 24, 25)
PERSEID_PRODUCTS(48, 3, 24, 25, 26, 27, 28, 29)
PERSEID_PRODUCTS(64, 4, 32, 33, 34, 35, 36, 37)
PERSEID_PRODUCTS(72, 4H, 36, 37, 38, 39, 40, 41)
PERSEID_PRODUCTS(80, 5, 40, 41, 42, 43, 44, 45)
PERSEID_PRODUCTS(96, 6, 48, 49, 50, 51, 52, 53)
PERSEID_PRODUCTS(112, 7, 56, 57, 58, 59, 60, 61)
PERSEID_PRODUCTS(128, 8, 64, 65, 66, 67, 68, 69)
PERSEID_PRODUCTS(144, 9, 72, 73, 74, 75, 76, 77)
PERSEID_PRODUCTS(160, 10, 80, 81, 82, 83, 84, 85)
PERSEID_PRODUCTS(176, 11, 88, 89, 90, 91, 92, 93)
PERSEID_PRODUCTS(192, 12, 96, 97, 98, 99, 100, 101)
PERSEID_PRODUCTS(208, 13, 104, 105, 106, 107, 108, 109)
PERSEID_PRODUCTS(224, 14, 112, 113, 114, 115, 116, 117)
PERSEID_PRODUCTS(240, 15, 120, 121, 122, 123, 124, 125)
PERSEID_PRODUCTS(256, 16, 128, 129, 130, 131, 132, 133)
PERSEID_PRODUCTS8(64, 4, 32, 33, 34)
PERSEID_PRODUCTS8(128, 8, 64, 65, 66)
PERSEID_PRODUCTS8(192, 12, 96, 97, 98)
PERSEID_PRODUCTS8(256, 16, 128, 129, 130)
#undef PERSEID_LIST_1
#undef PERSEID_LIST_2
#undef PERSEID_LIST_2H
#undef PERSEID_LIST_3
#undef PERSEID_LIST_4
#undef PERSEID_LIST_4H
#undef PERSEID_LIST_5
#undef PERSEID_LIST_6
#undef PERSEID_LIST_7
#undef PERSEID_LIST_8
#undef PERSEID_LIST_9
#undef PERSEID_LIST_10
#undef PERSEID_LIST_11
#undef PERSEID_LIST_12
#undef PERSEID_LIST_13
#undef PERSEID_LIST_14
#undef PERSEID_LIST_15
#undef PERSEID_LIST_16
#undef PERSEID_HELD_1
#undef PERSEID_HELD_2
#undef PERSEID_HELD_2H
#undef PERSEID_HELD_3
#undef PERSEID_HELD_4
#undef PERSEID_HELD_4H
#undef PERSEID_HELD_5
#undef PERSEID_HELD_6
#undef PERSEID_HELD_7
#undef PERSEID_HELD_9
#undef PERSEID_HELD_10
#undef PERSEID_HELD_11
#undef PERSEID_HELD_12
#undef PERSEID_HELD_13
#undef PERSEID_HELD_14
#undef PERSEID_HELD_15
#undef PERSEID_HELD_16
#undef PERSEID_HELD_8
#undef PERSEID_EIGHT
#undef PERSEID_PRODUCT
#undef PERSEID_PRODUCTS
#undef PERSEID_PRODUCT8
#undef PERSEID_PRODUCTS8
// clang-format on

}  // namespace perseid::internal::cuda::ptx
