// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Random problems, valid ones and ones made wrong on purpose.
#pragma once

#include "harness/problem.hpp"

namespace perseid::harness {

// What is drawn from. A problem is a function of this and its index.
struct Draw {
  uint64_t seed = 1;
  // So many neighbours share what kernels of a GPU are compiled for: operation, types, features,
  // dims, and about the lengths.
  uint64_t group = 1;
  // Attention in all types evenly, half of it with strides that TMA takes, and in two of three
  // groups with dims that are multiples of 8.
  bool gpu = false;
};

// About one problem in five has expect=refused: it is valid but for one thing. Shapes are small,
// and edges (0, 1, tile sizes and their neighbours) are common.
Problem random_problem(const Draw& draw, uint64_t index);

}  // namespace perseid::harness
