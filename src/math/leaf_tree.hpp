// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Canonical order: a sum over the depth is cut into eight equal leaves, whose partial sums are
// added in pairs of neighbours, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A rank that has 1, 2 or
// 4 neighbouring leaves computes a whole subtree, so the bits do not depend on the number of ranks.
//
// Leaves that are summed one after the other need few buffers, which are a stack: leaf i is summed
// in buffer buffer_of_leaf(i); then pairs_after_leaf(i) times the last buffer is added to the one
// before it.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal {

inline constexpr int32_t kLeaves = 8;

// The bits of `leaf` that are set: each is a subtree that waits for its neighbour.
PERSEID_INLINE constexpr int64_t buffer_of_leaf(int64_t leaf) {
  int64_t buffer = 0;
  for (; leaf > 0; leaf >>= 1) buffer += leaf & 1;
  return buffer;
}
PERSEID_INLINE constexpr int64_t buffers_of_leaves(int64_t leaves) {
  return buffer_of_leaf(leaves - 1) + 1;
}
PERSEID_INLINE constexpr int64_t pairs_after_leaf(int64_t leaf) {
  int64_t pairs = 0;
  for (; (leaf & 1) != 0; leaf >>= 1) ++pairs;
  return pairs;
}

}  // namespace perseid::internal
