// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// All-gather + matmul: the shards of a are the chunks of an operand that arrives while the product
// runs, and the own shard is the chunk that it begins with.
#pragma once

#include "collective/fusion.hpp"
#include "collective/scale_gather.hpp"
#include "collective/sliced_product.hpp"
#include "collective/stop.hpp"

namespace perseid::internal::collective {

// One gathered operand has at most this many products.
inline constexpr uint32_t kMostProducts = 64;

class AllGatherMatmulPlan final : public op::Plan {
 public:
  static constexpr const char* kOperation = "all-gather-matmul";

  // Collective.
  static Status make(op::DevicePointer device, GroupPointer group,
                     const perseid_all_gather_matmul_desc& desc,
                     std::unique_ptr<const op::Plan>* plan);
  // Collective.
  Status execute(const perseid_all_gather_matmul_args& args, const op::Workspace& workspace,
                 void* stream) const;
  // Where this rank's shard is read. From then on executions wait until all ranks have read it.
  Status shard(const DLTensor** shard) const;
  Status overlap_report(const char** json) const override {
    return report_ == nullptr ? Plan::overlap_report(json) : report_->give(json);
  }

 private:
  struct Product {
    InnerPlan plan;  // null where it is sliced
    int64_t n = 0;
    DType out_dtype = DType::kNone;
  };

  AllGatherMatmulPlan(op::DevicePointer device, GroupPointer group)
      : Plan(std::move(device)), group_(std::move(group)) {}
  // By the model, of `chunks` in all.
  FusionForecast predict(const perseid_all_gather_matmul_desc& desc, int64_t chunks) const;
  int64_t chunks_on_gpu(const perseid_all_gather_matmul_desc& desc) const;
  Status make_transports(const TransportSite& site, const perseid_all_gather_matmul_desc& desc);
  // How many rows of the last shard are to come in slices.
  int64_t rows_to_slice(const perseid_all_gather_matmul_desc& desc, int64_t chunks) const;
  perseid_matmul_desc product_of(const perseid_all_gather_matmul_desc& desc,
                                 const perseid_gather_product& product) const;
  Status make_products(const op::DevicePointer& device, const perseid_all_gather_matmul_desc& desc,
                       int64_t sliced_rows);
  perseid_matmul_args arguments_of(const perseid_all_gather_matmul_args& args,
                                   size_t product) const;
  // `c`: of the first product, where it is sliced.
  Status check_products(const perseid_all_gather_matmul_args& args, const Tensor& c,
                        const op::Workspace& workspace) const;
  Status multiply(const Operation& operation, const perseid_all_gather_matmul_args& args,
                  const Tensor& c, const Sending& sending, const op::Workspace& workspace,
                  const WatchedWork& work) const;
  // On a GPU in the order of the stream.
  Status await_all(const Operation& operation, const Sending& sending,
                   const perseid_arrival& arrival) const;
  // Types of results and scales, and who has the scales of a.
  void read_scales(op::DescriptorReader& reader, const perseid_all_gather_matmul_desc& desc);
  Tensor read_own_scales(op::ArgumentReader& reader, const DLTensor* scales) const;
  Status give_gathered(const Tensor& gathered, void* stream) const;
  void describe(const perseid_all_gather_matmul_desc& desc);

  GroupPointer group_;
  std::shared_ptr<Stop> stop_;
  int64_t batch_ = 1, m_ = 0, k_ = 0;  // of this rank's shard
  bool along_k_ = false;
  bool fused_ = false;  // the first product takes chunks
  std::string why_;     // for explain
  Shards shards_;
  std::unique_ptr<ShardChunks> chunks_;
  std::unique_ptr<GatherTransport> transport_;
  Scaling scaling_ = Scaling::kNone;
  std::unique_ptr<ScaleGather> scales_;  // null where each rank has those of all rows
  std::unique_ptr<OverlapReport> report_;
  std::vector<Product> products_;
  std::unique_ptr<const SlicedProduct> sliced_;  // the first product, or null
  int64_t sliced_for_next_ = 0;                  // rows of the own shard
  Tensor gathered_, shard_;                      // [batch, M, K], [batch, m, k]
  DLTensor gathered_dl_{}, shard_dl_{};
  // A plan is executed once at a time on a rank.
  mutable uint32_t epoch_ = 0;
  mutable bool shard_given_ = false;
  mutable std::vector<SentPart> parts_, for_next_;
};

}  // namespace perseid::internal::collective
