// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which scores of attention count as -inf, on every backend.
#pragma once

namespace perseid::internal {

// With float32 scores (scale * query . key + bias), a row without a score above this sees no key: a
// bias that serves as a mask holds the lowest number of its type.
inline constexpr float kLeastScore = -0x1p100f;

}  // namespace perseid::internal
