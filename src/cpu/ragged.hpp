// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of ragged batches on the CPU.
#pragma once

#include "cpu/executor.hpp"
#include "math/ragged_rows.hpp"

namespace perseid::internal::cpu {

// Row by row, into packed or into padded.
void copy_ragged_rows(Executor& executor, const RaggedRows& rows, bool into_packed, bool zero_rest);

}  // namespace perseid::internal::cpu
