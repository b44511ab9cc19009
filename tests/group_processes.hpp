// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Processes that meet as a group, and what they compute together.
#pragma once

#include "collective_tools.hpp"
#include "rank_processes.hpp"

namespace collective_tools {

using perseid::AllGatherMatmul;
using perseid::Context;
using perseid::GroupOptions;
using perseid::MatmulReduce;
using perseid::Workspace;

class Processes : public RankProcesses {
 protected:
  void renew() {
    new (board_) Board;
    ++meetings_;
  }
  std::string path() const { return testing::TempDir() + "meet" + std::to_string(meetings_); }
  virtual GroupOptions place(int32_t rank, int32_t size) const {
    return {.rank = rank,
            .size = size,
            .rendezvous = "unix:" + path(),
            .token = "a secret",
            .deadline = 20s};
  }

  int meetings_ = 1;
};

// One product of each kind over the ranks of a group, with operands by rank; checked against the
// first execution's result, which is checked against arithmetic: all operands are ones.
class Work {
 public:
  Work(const Context& context, const Group& group)
      : size_(group.size()),
        gather_(context, group,
                {.m = 24, .k = 16, .products = {{.n = 20}}, .fusion = perseid::Fusion::kFused}),
        reduce_(context, group,
                {.all_reduce = true, .m = 24, .n = 20, .k = 16, .fusion = perseid::Fusion::kFused}),
        ones_({24, 16}, perseid::f32),
        other_({16, 20}, perseid::f32),
        gathered_({24 * size_, 20}, perseid::f32),
        reduced_({24, 20}, perseid::f32) {
    fill(ones_, 1);
    fill(other_, 1);
    gather_.reserve(workspace_);
    reduce_.reserve(workspace_);
  }
  bool once(std::chrono::nanoseconds deadline = 20s) {
    gather_.execute({.a = ones_.tensor(),
                     .b = {other_.tensor()},
                     .c = {gathered_.tensor()},
                     .deadline = deadline},
                    workspace_);
    reduce_.execute(
        {.a = ones_.tensor(), .b = other_.tensor(), .c = reduced_.tensor(), .deadline = deadline},
        workspace_);
    return all_are(gathered_, 16) && all_are(reduced_, 16 * static_cast<float>(size_));
  }

 private:
  static void fill(Matrix& matrix, float value) {
    for (size_t i = 0; i < matrix.bytes.size() / sizeof value; ++i)
      std::memcpy(matrix.at(i), &value, sizeof value);
  }
  static bool all_are(const Matrix& matrix, float value) {
    for (size_t i = 0; i < matrix.bytes.size() / sizeof value; ++i)
      if (matrix.value(i) != value) return false;
    return true;
  }

  int64_t size_;
  AllGatherMatmul gather_;
  MatmulReduce reduce_;
  Matrix ones_, other_, gathered_, reduced_;
  Workspace workspace_;
};

}  // namespace collective_tools
