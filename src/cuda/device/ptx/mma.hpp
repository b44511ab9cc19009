// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matrix products of one warp. sm_80 and up.
//
// d, 16 x 8 in float32: lane l has, in d[0] and d[1], row l / 4 and columns 2 (l % 4) and the next;
// in d[2] and d[3] the same columns of row l / 4 + 8.
#pragma once

#include "math/dtype.hpp"

namespace perseid::internal::cuda::ptx {

// d += A B for A of 16 x 16 and B of 16 x 8. `a`: 8 x 8 matrices, both upper and lower rows of the
// first eight columns, then of the others. `b`: the transposed upper and lower eight rows.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
template <DType D>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (D == DType::kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// d += A B in float64, for A of 16 x 8 and B of 8 x 8. Lane l has of A rows l / 4 (even elements)
// and l / 4 + 8 (odd ones), columns l % 4 and l % 4 + 4, two elements each; of B rows l % 4 and
// l % 4 + 4, and column l / 4; of d what float32 has. Before sm_90 in four smaller products.
__device__ __forceinline__ void mma_f64(double (&d)[4], const double (&a)[4],
                                        const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3},"
      " {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
          : "d"(a[2 * k + half]), "d"(b[k]));
#endif
}

// The same for A of 16 x 16 and B of 16 x 8: also columns of A, and rows of B, l % 4 + 8 and l % 4
// + 12.
__device__ __forceinline__ void mma_f64(double (&d)[4], const double (&a)[8],
                                        const double (&b)[4]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3},"
      " {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
        "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
  for (int k = 0; k < 4; k += 2)
    mma_f64(d, reinterpret_cast<const double(&)[4]>(a[2 * k]),
            reinterpret_cast<const double(&)[2]>(b[k]));
#endif
}

}  // namespace perseid::internal::cuda::ptx
