// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Random problems, valid ones and ones made wrong on purpose.
#pragma once

#include "harness/problem.hpp"

namespace perseid::harness {

// The index-th problem of a seed, always the same one. About one in five has expect=refused: it is
// valid but for one thing. Shapes are small, and edges (0, 1, tile sizes and their neighbours) are
// common.
Problem random_problem(uint64_t seed, uint64_t index);

}  // namespace perseid::harness
