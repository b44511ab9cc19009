// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which problems of attention forward clusters of blocks compute, whose tiles of keys and values
// are loaded once for all blocks. The L2 cache then sends less, which is power that long launches
// need. In short ones blocks that wait for each other cost as much as that gains.
#pragma once

#include "cuda/attention/arguments.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

inline constexpr int64_t kFewestClusterKeys = 4096;

inline int cluster_of(const AttentionProblem& problem, const AttentionForwardConfig& config) {
  const int64_t q_tiles = ceil_div(problem.q_len, int64_t{config.rows()});
  // Two tiles of queries see two tiles of keys (next_tile() in forward_producer.hpp) if there are
  // as many keys as queries; the lengths of an execution may be other ones.
  const bool allowed = q_tiles % 2 == 0 && problem.kv_len >= problem.q_len &&
                       !problem.max_lengths && problem.rows.all() && !problem.rows.canonical;
  const bool pays = config.right && problem.kv_len >= kFewestClusterKeys;  // not without a mask
  return allowed && pays && config.may_have_cluster() ? 2 : 1;
}

}  // namespace perseid::internal::cuda
