// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The attention kernels over isa_emulated_bf16.hpp, for tests. Entries of other operations are
// null.
#pragma once

#include "cpu/kernel_table.hpp"

namespace perseid::internal::cpu {

const KernelTable& emulated_bf16_table();

}  // namespace perseid::internal::cpu
