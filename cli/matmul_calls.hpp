// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul problems as calls of perseid.hpp.
#pragma once

#include "harness/data.hpp"
#include "harness/placement.hpp"

namespace perseid::cli {

MatmulOptions options_of(const harness::Problem& problem);
// `placement`: where the context takes tensors, copies on a GPU.
MatmulArguments arguments_of(const harness::Problem& problem, const harness::Operands& operands,
                             harness::Placement& placement);

}  // namespace perseid::cli
