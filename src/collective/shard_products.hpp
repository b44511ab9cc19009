// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The product of a matmul over ranks on Hopper GPUs, in one launch. The other ranks' shards come
// first, in float32, and leave in chunks. The own shard comes last, while the others' parts arrive:
// they are added in its epilogue, in the order of ranks or, in canonical order, in pairs of them,
// so that no kernel is left to run after it (cuda/device/sm90/matmul/rank_shards.hpp).
#pragma once

#include "collective/plan.hpp"
#include "cuda/sm90/matmul.hpp"

namespace perseid::internal::collective {

class ShardProducts {
 public:
  struct Problem {
    perseid_matmul_desc product;  // of all shards, in float32; without chunks
    DType out_dtype;
    bool bias, average, along_n;
    const Shards& shards;  // of rows, or of columns
    const ShardChunks& chunks;
    int32_t rank;
    int64_t leaves;       // of k, in canonical order; else 0
    bool stores = false;  // a kernel that takes targets, if any does
    int32_t spared = 0;   // multiprocessors
  };
  // Null where this does not take the problem.
  static Status make(const op::DevicePointer& device, const Problem& problem,
                     std::unique_ptr<const ShardProducts>* products);

  // The fastest kernel of a problem that this takes, by a model; null where tiles would have lines
  // of two shards.
  static std::unique_ptr<const cuda::Sm90MatmulConfig> choose(const Problem& problem,
                                                              int32_t multiprocessors);

  // Views of three dimensions; c: that of the own shard.
  struct Operands {
    Tensor a, b, bias, c;
  };
  // Whether the kernel takes targets in the memory of other ranks.
  bool takes_targets() const { return takes_targets_; }
  std::string description() const { return product_->description(); }
  size_t workspace() const { return product_->workspace(); }
  // Whether TMA takes them.
  bool takes(const Operands& operands) const { return product_->maps(arguments_of(operands)); }
  // All shards: the others' go to `partial`, which has all, and the signals of their chunks are
  // set, or to the targets of `parts`; the own one goes to c. `parts`: those that arrive, without
  // their strides; `arrival`: how to wait for them. `workspace`: as executables have it.
  Status multiply(const Operands& operands, const Tensor& partial, uint32_t* signals,
                  const RankParts& parts, const Arrival& arrival, const Sending& sending,
                  void* workspace) const;

 private:
  explicit ShardProducts(const Problem& problem);
  MatmulProblem product_of(const Problem& problem) const;
  MatmulArguments arguments_of(const Operands& operands) const;

  bool along_n_;
  int32_t first_chunk_, own_chunks_, next_chunk_;  // of the own shard, and of the one after it
  std::vector<int64_t> begin_;                     // of all chunks
  int64_t from_, to_;                              // the own shard
  bool takes_targets_ = false;
  std::unique_ptr<cuda::Sm90Matmul> product_;
};

}  // namespace perseid::internal::collective
