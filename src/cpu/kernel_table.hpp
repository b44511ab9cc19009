// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The fast CPU kernels, one table per instruction set. Every table is compiled from the same
// sources (cpu/simd), each in a translation unit of its own; select_kernel_table() picks one when a
// context is made.
#pragma once

#include <string>
#include <vector>

#include "cpu/executor.hpp"
#include "math/attention_problem.hpp"
#include "math/matmul_problem.hpp"
#include "math/softmax_problem.hpp"

namespace perseid::internal::cpu {

struct KernelTable {
  const char* isa;  // "avx512bf16", "avx512", "avx2", "neon", "scalar"
  bool bf16_dot;    // bf16 products are taken directly; else by way of float32

  // Softmax (simd/softmax.hpp). Any dim, any strides.
  size_t (*softmax_workspace)(const SoftmaxProblem&, int32_t workers, bool backward);
  void (*softmax_forward)(const SoftmaxProblem&, const SoftmaxForward&, const Execution&);
  void (*softmax_backward)(const SoftmaxProblem&, const SoftmaxBackward&, const Execution&);

  // Attention by tiles of queries and keys (simd/attention_forward.hpp,
  // simd/attention_backward.hpp). Forward in chunks where the problem has them
  // (simd/attention_chunks.hpp): then the execution has its waits.
  size_t (*attention_forward_workspace)(const AttentionProblem&, int32_t workers);
  void (*attention_forward)(const AttentionProblem&, const AttentionForward&, const Execution&);
  size_t (*attention_backward_workspace)(const AttentionProblem&, int32_t workers);
  void (*attention_backward)(const AttentionProblem&, const AttentionBackward&, const Execution&);

  // Attention of few queries, split over keys (simd/attention_decode.hpp), with waits where the
  // problem has chunks. Forward alone.
  size_t (*attention_decode_workspace)(const AttentionProblem&, int32_t workers);
  void (*attention_decode)(const AttentionProblem&, const AttentionForward&, const Execution&);

  // Matmul (simd/matmul.hpp), in chunks where the problem has them (simd/matmul_chunks.hpp): then
  // the execution has its waits.
  size_t (*matmul_workspace)(const MatmulProblem&, int32_t workers);
  void (*matmul)(const MatmulProblem&, const MatmulArguments&, const Execution&);

  // A block of the dropout mask of one (batch, head), 1 where kept (simd/dropout.hpp). row and
  // column are multiples of the tile's; strides in bytes.
  void (*dropout_mask)(const Dropout&, int64_t batch_head, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, uint8_t* mask, int64_t row_stride,
                       int64_t column_stride);

  // What one core reaches at best (simd/ceilings.hpp). The first three run `iterations` of a
  // register-only loop and return the FLOPs done; copy and read return the bytes moved.
  double (*peak_f32)(int64_t iterations);
  double (*peak_bf16)(int64_t iterations);
  double (*peak_f64)(int64_t iterations);
  double (*copy)(const void* from, void* to, size_t bytes);
  double (*read)(const void* from, size_t bytes);
};

// The tables compiled into this library that this machine can run, best first; "scalar" is always
// last.
std::vector<const KernelTable*> available_kernel_tables();

// The best of them, or the one that PERSEID_CPU_ISA names. On a name that is unknown or cannot run
// here: null, and a sentence in `error`.
const KernelTable* select_kernel_table(std::string& error);

// Defined by cpu/simd/<isa>.cpp.
namespace avx512bf16 {
const KernelTable& table();
}
namespace avx512 {
const KernelTable& table();
}
namespace avx2 {
const KernelTable& table();
}
namespace neon {
const KernelTable& table();
}
namespace scalar {
const KernelTable& table();
}

}  // namespace perseid::internal::cpu
