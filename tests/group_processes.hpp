// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Processes that meet as a group, and what they compute together.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

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

// Operations over the ranks of a group, of which all operands are ones; results are checked against
// arithmetic.
class Work {
 public:
  virtual ~Work() = default;
  // Whether the results are right.
  virtual bool once(std::chrono::nanoseconds deadline = 20s) = 0;

 protected:
  static Matrix ones(std::vector<int64_t> shape) {
    Matrix matrix(std::move(shape), perseid::f32);
    const float one = 1;
    for (size_t i = 0; i < matrix.bytes.size() / sizeof one; ++i)
      std::memcpy(matrix.at(i), &one, sizeof one);
    return matrix;
  }
  static bool all_are(const Matrix& matrix, float value, float tolerance = 0) {
    for (size_t i = 0; i < matrix.bytes.size() / sizeof value; ++i)
      if (!(std::abs(matrix.value(i) - value) <= tolerance)) return false;
    return true;
  }
};

// One product of each kind.
class Products final : public Work {
 public:
  Products(const Context& context, const Group& group)
      : size_(group.size()),
        gather_(context, group,
                {.m = 24, .k = 16, .products = {{.n = 20}}, .fusion = perseid::Fusion::kFused}),
        reduce_(context, group,
                {.all_reduce = true, .m = 24, .n = 20, .k = 16, .fusion = perseid::Fusion::kFused}),
        ones_(ones({24, 16})),
        other_(ones({16, 20})),
        gathered_({24 * size_, 20}, perseid::f32),
        reduced_({24, 20}, perseid::f32) {
    gather_.reserve(workspace_);
    reduce_.reserve(workspace_);
  }
  bool once(std::chrono::nanoseconds deadline = 20s) override {
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
  int64_t size_;
  AllGatherMatmul gather_;
  MatmulReduce reduce_;
  Matrix ones_, other_, gathered_, reduced_;
  Workspace workspace_;
};

// Attention and its gradients. Every query weighs all keys alike: averages of ones are ones, and a
// value's gradient is one from all queries together; those of scores cancel out.
class Attending final : public Work {
 public:
  Attending(const Context& context, const Group& group)
      : plan_(context, group,
              {.attention = {.heads = kHeads,
                             .q_len = kRows,
                             .kv_len = kRows,
                             .head_dim = kDim,
                             .backward = true},
               .placement = perseid::Sharding::kZigzag,
               .chunks = 2}),
        ones_(ones({1, kRows, kHeads, kDim})),
        out_(ones_.shape, perseid::f32),
        grad_query_(out_),
        grad_key_(out_),
        grad_value_(out_),
        lse_({1, kHeads, kRows}, perseid::f32) {
    plan_.reserve(workspace_);
  }
  bool once(std::chrono::nanoseconds deadline = 20s) override {
    const Tensor given = ones_.tensor();
    for (Matrix* result : {&out_, &grad_query_, &grad_key_, &grad_value_})
      std::fill(result->bytes.begin(), result->bytes.end(), std::byte{0xff});
    plan_.forward(
        nullptr,
        {.query = given, .key = given, .value = given, .out = out_.tensor(), .lse = lse_.tensor()},
        workspace_, deadline);
    plan_.backward(nullptr,
                   {.query = given,
                    .key = given,
                    .value = given,
                    .out = out_.tensor(),
                    .lse = lse_.tensor(),
                    .grad_out = given,
                    .grad_query = grad_query_.tensor(),
                    .grad_key = grad_key_.tensor(),
                    .grad_value = grad_value_.tensor()},
                   workspace_, deadline);
    return all_are(out_, 1, 1e-5f) && all_are(grad_query_, 0, 1e-5f) &&
           all_are(grad_key_, 0, 1e-5f) && all_are(grad_value_, 1, 1e-5f);
  }

 private:
  static constexpr int64_t kRows = 24, kHeads = 2, kDim = 16;

  perseid::ContextAttention plan_;
  Matrix ones_, out_, grad_query_, grad_key_, grad_value_, lse_;
  Workspace workspace_;
};

inline std::unique_ptr<Work> make_work(bool attention, const Context& context, const Group& group) {
  if (attention) return std::make_unique<Attending>(context, group);
  return std::make_unique<Products>(context, group);
}

}  // namespace collective_tools
