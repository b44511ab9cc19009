// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The products of a matmul over ranks on Hopper GPUs, in two steps. The other ranks' shards come
// first, in float32, and leave in chunks. The own shard comes last, while the others' parts arrive:
// they are added in the epilogue of that product, in the order of ranks, so that no kernel is left
// to run after it.
#pragma once

#include "collective/plan.hpp"
#include "cuda/sm90/matmul.hpp"

namespace perseid::internal::collective {

// Seconds that the model predicts on Hopper: waves of tiles, launches, and the sum's memory
// traffic.
struct ShardForecast {
  double in_two_steps, in_one;  // the latter with a sum after it

  bool two_steps() const { return in_two_steps <= in_one; }
};
// `problem`: of all shards, in the type of the result.
ShardForecast forecast(const MatmulProblem& problem, const Shards& shards, int32_t rank,
                       bool along_n, int32_t multiprocessors);

class ShardProducts {
 public:
  struct Problem {
    perseid_matmul_desc product;  // of all shards, in float32; without chunks
    DType out_dtype;
    bool bias, average, along_n;
    const Shards& shards;  // of rows, or of columns
    const ShardChunks& chunks;
    int32_t rank;
  };
  // Null where this does not take the problem, or one product and a sum after it are faster by the
  // model. `why`: the end of a sentence for explain, empty where it does not take the problem.
  static Status make(const op::DevicePointer& device, const Problem& problem,
                     std::unique_ptr<const ShardProducts>* products, std::string* why);

  // Views of three dimensions; c and bias: those of the own shard.
  struct Operands {
    Tensor a, b, bias, c;
  };
  size_t workspace() const;
  // Whether TMA takes them.
  bool takes(const Operands& operands) const;
  // The others' shards, to `partial`, which has all; the signals of their chunks are set.
  Status multiply_for_others(const Operands& operands, const Tensor& partial, uint32_t* signals,
                             const Sending& sending, const op::Workspace& workspace) const;
  // The own shard. `arrival`: of the parts of the rank after this one, which come last; those of
  // the other ranks have arrived. `parts`: without the strides of a shard.
  Status multiply_own(const Operands& operands, const RankParts& parts,
                      const perseid_arrival& arrival, const Sending& sending,
                      const op::Workspace& workspace) const;

 private:
  struct Others {
    int64_t from, to, first_chunk;
    std::vector<int64_t> begin;  // chunks, from 0
    InnerPlan plan;
  };

  ShardProducts(const op::DevicePointer& device, const Problem& problem);
  Status add_others(const Problem& problem, int32_t first, int32_t last);
  MatmulProblem own_problem(const Problem& problem) const;
  MatmulArguments own_of(const Operands& operands) const;
  // [from, to) of what is cut into shards, of a, b and c.
  Operands slice(const Operands& operands, int64_t from, int64_t to) const;

  op::DevicePointer device_;
  bool along_n_;
  std::vector<Others> others_;  // those after this rank, then those before it
  int64_t from_, to_;           // the own shard
  std::vector<int64_t> begin_;  // its chunks, from 0
  std::unique_ptr<cuda::Sm90Matmul> own_;
};

}  // namespace perseid::internal::collective
