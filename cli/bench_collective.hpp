// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid bench collective`: products and attention over ranks against their bound, the larger of
// the computation alone and the transfer alone, all measured in one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common.hpp"
#include "perseid/perseid.hpp"

namespace perseid::cli {

enum class RankOp { kGather, kReduce, kAllReduce, kAttend };
const char* name_of(RankOp op);

struct CollectiveSizes {
  int64_t ranks = 2;
  int64_t m = 2048, n = 2048, k = 2048;  // m: of all ranks; n, k: of each
  // Attention, causal with zigzag placement. length: of all ranks.
  int64_t length = 4096, heads = 8, kv_heads = 8, head_dim = 64;
  int64_t sequences = 0;  // a ragged batch of so many equal ones, on GPUs; 0: one, not ragged
  bool backward = false;
  bool canonical = false;
  std::vector<RankOp> ops = {};
  int64_t chunks = 0;  // of a gathered shard on GPUs, or of a piece of keys; 0: the default
  double seconds = 5;  // of each operation
  std::string fusion = "auto";
  std::string samples = {};  // a file of all that GPUs were timed at; empty: none
  std::string report = {};   // the same, of where the time of the fused operation went
};

double median(std::vector<double> values);

// What is timed, in turns: the fused operation, and the two that bound it.
inline constexpr const char* kRankParts[] = {"fused", "product alone", "transfer alone"};

// Seconds of one execution.
struct RankTimes {
  double single, sustained;
};
// Times of the parts on GPUs. What each rank has timed is added to `samples`, lines of these
// columns: start_seconds is after the first rank's start.
inline constexpr const char* kSampleColumns =
    "op,part,round,executions,rank,start_seconds,enqueue_seconds,seconds\n";
std::vector<RankTimes> bench_on_gpus(const CollectiveSizes& sizes, DType dtype, RankOp op,
                                     std::string* samples);

// The exit code.
int bench_collective(const Common& common, const CollectiveSizes& sizes);

}  // namespace perseid::cli
