// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The raster order of attention backward over chunks of keys that arrive, and whose gradients leave
// (device/sm90/attention/backward_chunks.hpp).
//
// Heads that arrive together come one after the other, so that their gradients leave together and
// what they read stays in the L2 cache. The keys of stage 0 are here at first and their gradients
// stay here; those of other stages arrive one stage after the other. A group of heads begins with
// the longest tiles of stage 0, while keys arrive; then come all other stages, the longest tiles
// first, so that the multiprocessors end at about the same time. The shortest tiles of stage 0 come
// last, of all groups, while gradients leave.
//
// List scheduling decides how many tiles of stage 0 come first: it simulates the launch, in which a
// block waits for its keys and then takes time in proportion to its steps.
#pragma once

#include <cstdint>
#include <vector>

#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

struct BackwardLaunch {
  int64_t keys = 128, queries = 64;          // of a tile and of a step
  int64_t heads = 1, heads_per_section = 1;  // key heads of all entries
  int64_t cluster_size = 1, multiprocessors = 132;
};

// tile * heads + head of each number.
std::vector<int32_t> backward_order(const AttentionProblem& problem, const BackwardLaunch& launch);
// How long the launch takes in an order, in seconds, and until the last gradients have left.
double backward_seconds(const AttentionProblem& problem, const BackwardLaunch& launch,
                        const std::vector<int32_t>& order);

}  // namespace perseid::internal::cuda
