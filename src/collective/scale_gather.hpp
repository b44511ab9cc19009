// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The scales of a gathered operand's rows, where each rank has those of its own: a small gather
// before that of the rows. A product finds all scales in memory when it begins, as
// perseid_matmul_execute does: its kernels read them like a bias, ordered by no chunk's signal. So
// the product begins when every rank has taken part; the rows of the others are under way by then.
#pragma once

#include "collective/plan.hpp"

namespace perseid::internal::collective {

class ScaleGather {
 public:
  // Collective. Rank r has the scales of rows [begin[r], begin[r + 1]) of every entry of the batch.
  // `chunks`: of the rows, so that a missing chunk has one number.
  static Status make(const TransportSite& site, int64_t batch, const std::vector<int64_t>& begin,
                     const ShardChunks& chunks, std::unique_ptr<ScaleGather>* gather);

  // `own`: [batch, rows] of this rank.
  Status send(const Operation& operation, const Sending& sending, const Tensor& own);
  // Until those of all ranks are here; on a GPU the stream waits.
  Status await(const Operation& operation, const Sending& sending);
  // The product has read them.
  Status finish(const Sending& sending);
  // [batch, rows of all ranks].
  const DLTensor* scales() const { return &scales_dl_; }

 private:
  ScaleGather(const TransportSite& site, Shards shards, const ShardChunks& chunks)
      : group_(site.group), gpu_(site.device.gpu), shards_(std::move(shards)), chunks_(chunks) {}

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;  // [batch, rows, 1]
  const ShardChunks chunks_;
  std::unique_ptr<GatherTransport> transport_;
  bool ends_early_ = false;
  Tensor scales_;
  DLTensor scales_dl_{};
  std::vector<SentPart> parts_;
};

}  // namespace perseid::internal::collective
