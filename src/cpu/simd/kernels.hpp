// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// All kernels of one instruction set, and the table that leads to them. What each <isa>.cpp
// includes.
#pragma once

#include "cpu/kernel_table.hpp"
#include "cpu/simd/attention_backward.hpp"
#include "cpu/simd/attention_chunks.hpp"
#include "cpu/simd/attention_decode.hpp"
#include "cpu/simd/ceilings.hpp"
#include "cpu/simd/dropout.hpp"
#include "cpu/simd/matmul_chunks.hpp"
#include "cpu/simd/micro_gemm.hpp"
#include "cpu/simd/pack.hpp"
#include "cpu/simd/softmax.hpp"
#include "cpu/simd/vector_math.hpp"

#define PERSEID_TEXT_OF(name) #name
#define PERSEID_TEXT(name) PERSEID_TEXT_OF(name)

namespace perseid::internal::cpu::PERSEID_ISA {

const KernelTable& table() {
  static constexpr KernelTable kTable = {
      .isa = PERSEID_TEXT(PERSEID_ISA),
      .bf16_dot = kHasBf16Dot,
      .softmax_workspace = &softmax_workspace,
      .softmax_forward = &softmax_forward,
      .softmax_backward = &softmax_backward,
      .attention_forward_workspace = &attention_forward_workspace,
      .attention_forward = &attention_forward,
      .attention_backward_workspace = &attention_backward_workspace,
      .attention_backward = &attention_backward,
      .attention_decode_workspace = &attention_decode_workspace,
      .attention_decode = &attention_decode,
      .matmul_workspace = &matmul_workspace,
      .matmul = &matmul,
      .dropout_mask = &dropout_mask,
      .peak_f32 = &peak<F32Dot>,
      .peak_bf16 = &peak<DotOfBf16>,
      .peak_f64 = &peak<F64Dot>,
      .copy = &copy,
      .read = &read,
  };
  return kTable;
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
