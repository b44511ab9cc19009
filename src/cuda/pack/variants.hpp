// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernels that programs need most. Plans' own choice, applied to common problems, determines
// them: they form the kernel pack, and a test holds each to its budget.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/runtime/compiler.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

// Upper bounds of a program's kernels: registers of a thread, spilled bytes, and static shared
// memory of a block.
struct Budget {
  int32_t registers = 0;
  int32_t spilled_bytes = 0;
  int32_t shared_bytes = 0;
};

struct Variant {
  std::string name;  // of the first problem that needs it
  Program program;
  Budget budget;
};

inline constexpr const char* kPackedArchitectures[] = {"sm_80", "sm_90a", "sm_100", "sm_120"};

std::vector<Variant> common_variants(const std::string& architecture);
// Kernels that are not in the pack but are held to their budgets too.
std::vector<Variant> rare_variants(const std::string& architecture);
// May hold duplicates. For sm_90a those of sm90/, for other architectures those of portable/.
std::vector<Variant> attention_variants(const std::string& architecture, bool common);
std::vector<Variant> portable_attention_variants(const std::string& architecture, bool common);
// Those of cuda:reference, which no pack has.
std::vector<Variant> reference_attention_variants(const std::string& architecture, DType dtype);
// Those that the pack has, and small ones of both directions.
std::vector<Variant> packed_portable_attention_variants(const std::string& architecture);
std::vector<Variant> small_portable_attention_variants(const std::string& architecture,
                                                       DType dtype);
std::vector<Variant> matmul_variants(const std::string& architecture, bool common);

}  // namespace perseid::internal::cuda
