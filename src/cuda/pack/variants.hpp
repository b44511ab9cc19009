// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernels that programs need most. They are no list of their own: common problems are put
// through the choice that plans make, and what it chooses is in the kernel pack, and is held to its
// budget by a test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/runtime/compiler.hpp"

namespace perseid::internal::cuda {

// The most that the kernels of a program may take: registers of a thread, bytes of them that are
// spilled into memory, and bytes of shared memory of a block besides what its launch asks for.
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

inline constexpr const char* kPackedArchitectures[] = {"sm_80", "sm_90a"};

std::vector<Variant> common_variants(const std::string& architecture);
// Others, which are not in the pack, but are held to their budgets too.
std::vector<Variant> rare_variants(const std::string& architecture);
// Of attention, for sm_90a; some more than once.
std::vector<Variant> attention_variants(bool common);
std::vector<Variant> matmul_variants(const std::string& architecture, bool common);

}  // namespace perseid::internal::cuda
