// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#define PERSEID_ISA emulated_bf16
#define PERSEID_ISA_HEADER "isa_emulated_bf16.hpp"
#include "emulated_bf16.hpp"
#include "cpu/simd/attention_backward.hpp"
#include "cpu/simd/attention_chunks.hpp"
#include "cpu/simd/attention_decode.hpp"

namespace perseid::internal::cpu {

const KernelTable& emulated_bf16_table() {
  using namespace emulated_bf16;
  static const KernelTable kTable = [] {
    KernelTable table{};
    table.isa = "emulated_bf16";
    table.bf16_dot = kHasBf16Dot;
    table.attention_forward_workspace = &attention_forward_workspace;
    table.attention_forward = &attention_forward;
    table.attention_backward_workspace = &attention_backward_workspace;
    table.attention_backward = &attention_backward;
    table.attention_decode_workspace = &attention_decode_workspace;
    table.attention_decode = &attention_decode;
    return table;
  }();
  return kTable;
}

}  // namespace perseid::internal::cpu
