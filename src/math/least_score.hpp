// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which scores of attention count as -inf, on every backend.
#pragma once

namespace perseid::internal {

// Where scores (scale * query . key + bias) are float32, a row that has none above this sees no
// key. The lowest number of a type makes such scores of a bias that is meant as a mask.
inline constexpr float kLeastScore = -0x1p100f;

}  // namespace perseid::internal
