// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul + reduce-scatter, and matmul + all-reduce: the product of this rank's depth leaves in
// chunks, the shards of c, beginning with that of the next rank and ending with the own. Each rank
// sums the parts of its shard in the order of ranks, or, in canonical order, in pairs of
// neighbours; an all-reduce then gathers the shards.
#pragma once

#include "collective/plan.hpp"
#include "collective/reduce.hpp"
#include "collective/shard_products.hpp"
#include "collective/stop.hpp"
#include "cuda/rank_sum.hpp"

namespace perseid::internal::collective {

class MatmulReducePlan final : public op::Plan {
 public:
  static constexpr const char* kOperation = "matmul-reduce-scatter";

  // Collective.
  static Status make(op::DevicePointer device, GroupPointer group,
                     const perseid_matmul_reduce_desc& desc, std::unique_ptr<const op::Plan>* plan);
  // Collective.
  Status execute(const perseid_matmul_reduce_args& args, const op::Workspace& workspace,
                 void* stream) const;
  Status overlap_report(const char** json) const override {
    return report_ == nullptr ? Plan::overlap_report(json) : report_->give(json);
  }

 private:
  MatmulReducePlan(op::DevicePointer device, GroupPointer group)
      : Plan(std::move(device)), group_(std::move(group)) {}
  void read_types(op::DescriptorReader& reader, const perseid_matmul_reduce_desc& desc);
  Status make_product(const op::DevicePointer& device, const perseid_matmul_reduce_desc& desc);
  Status make_transports(const Operation& operation);
  // One execution. `c`: what this rank gets; `own`: its shard, where shard products write it.
  struct Call {
    const perseid_matmul_reduce_args& args;
    op::Workspace workspace;
    Tensor bias, c;
    ShardProducts::Operands own = {};
    bool by_shards = false;
    const WatchedWork* work = nullptr;  // once it has begun
  };
  MissingPart find_missing(uint32_t epoch, uint64_t ranks) const;
  // The arguments of the product, which signals no chunks.
  perseid_matmul_args arguments_of(const perseid_matmul_reduce_args& args) const;
  void read_operands(op::ArgumentReader& reader, Call* call) const;
  Status multiply(const Operation& operation, const Call& call, const Sending& sending) const;
  Status reduce_own(const Operation& operation, const Call& call, const Sending& sending,
                    const Tensor& out) const;
  Status reduce_shard(const Operation& operation, const Call& call, const Sending& sending,
                      const Tensor& out) const;
  Status reduce_on_gpu(const Operation& operation, const Sending& sending, const Tensor& bias,
                       const Tensor& out) const;
  Status all_reduce(const Operation& operation, const Call& call, const Sending& sending) const;
  Tensor result() const;
  int64_t own_chunk() const;  // the first one, for the report
  cuda::ChunkWait* waits_for_parts() const;
  Status give_on_gpu(const Operation& operation, const Sending& sending, const Tensor& result,
                     const Tensor& c) const;
  const cuda::RankSum* sum_with(DType bias) const;
  void describe(const perseid_matmul_reduce_desc& desc);
  const char* name() const { return all_ ? "matmul-all-reduce" : kOperation; }
  // Rows or columns [from, to) of a [batch, m, n] tensor.
  Tensor shard_of(Tensor c, int64_t from, int64_t to) const;

  GroupPointer group_;
  std::shared_ptr<Stop> stop_;
  DType dtype_ = DType::kF32, out_dtype_ = DType::kF32;
  int64_t batch_ = 1, m_ = 0, n_ = 0, k_ = 0;
  bool along_n_ = false, all_ = false, bias_ = false, canonical_ = false;
  Reduction reduction_ = Reduction::kSum;
  Shards shards_;   // of the partial sums
  Shards results_;  // of c
  std::unique_ptr<ShardChunks> chunks_;
  std::unique_ptr<ReduceTransport> reduce_;
  std::unique_ptr<GatherTransport> gather_;  // of an all-reduce
  InnerPlan product_;
  std::unique_ptr<const ShardProducts> shard_products_;  // where they may take its place
  bool fused_ = false;                                   // the product gives chunks
  bool waits_alone_ = false;    // one block waits for parts: what brings them needs multiprocessors
  bool stores_ = false;         // shard products store in the memory of the other ranks
  std::string why_, how_sent_;  // for explain
  std::unique_ptr<OverlapReport> report_;
  // On a GPU, for each type that the bias may have.
  struct BiasedSum {
    DType bias = DType::kNone;
    std::unique_ptr<cuda::RankSum> sum;
  };
  std::vector<BiasedSum> rank_sums_;
  std::unique_ptr<cuda::RankSum> strided_copy_;  // of an all-reduce's result: a sum of one part
  Tensor partial_;
  DLTensor partial_dl_{};
  mutable uint32_t epoch_ = 0;
  mutable std::vector<Tensor> parts_;
  mutable std::vector<SentPart> sent_;
};

}  // namespace perseid::internal::collective
