// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// All-gather, reduce-scatter and all-reduce of tensors on GPUs, through an inbox on each GPU with a
// place for a piece of every rank. Copy engines push a piece into the inboxes of the others; what
// has come is copied to the output, or summed in the order of ranks.
//
// The work is queued on the default stream. A call returns when it is done.
#pragma once

#include <map>

#include "collective/gpu_rank.hpp"
#include "collective/reduce.hpp"
#include "cuda/rank_sum.hpp"

namespace perseid::internal::collective {

class GpuExchange {
 public:
  // Whether this rank has used no other GPU.
  static Status check(Group& group, const Operation& operation, int32_t gpu);
  // After that. Collective where it is the group's first call on GPUs.
  static Status of(Group& group, const Operation& operation, int32_t gpu, GpuExchange** exchange);
  explicit GpuExchange(Group& group) : group_(group) {}
  ~GpuExchange();
  GpuExchange(const GpuExchange&) = delete;
  GpuExchange& operator=(const GpuExchange&) = delete;

  // Elements of input and output lie side by side. begin: of each rank's elements in what is
  // gathered or scattered, and their count.
  Status all_gather(const Operation& operation, std::span<const size_t> begin, const Tensor& input,
                    const Tensor& output);
  Status reduce_scatter(const Operation& operation, std::span<const size_t> begin,
                        Reduction reduction, const Tensor& input, const Tensor& output);
  Status all_reduce(const Operation& operation, Reduction reduction, const Tensor& input,
                    const Tensor& output);

 private:
  // Elements [from, from + count) of a tensor.
  struct Run {
    DType dtype;
    std::byte* data;
    size_t count;
  };
  static Run run_of(const Tensor& tensor, size_t from, size_t count);

  Status make(const Operation& operation, int32_t gpu);
  // `enqueued`: how that ended.
  Status synchronize(Status enqueued) const;
  // Sends runs, one to each rank, into the places of this rank.
  Status push(const Operation& operation, std::span<const Run> runs);
  Status await(const Operation& operation);
  Run place(int32_t rank, int32_t source, DType dtype, size_t count) const;
  Status copy(const Run& from, const Run& to) const;
  // Before the first push of a call.
  Status load_sum(DType dtype);
  // out = the sum of `own` and of what the others have sent.
  Status sum(const Operation& operation, Reduction reduction, const Run& own, const Run& out);

  Group& group_;
  GpuRank* rank_ = nullptr;
  std::unique_ptr<GpuWindows> windows_;
  std::map<DType, std::unique_ptr<cuda::RankSum>> sums_;
  uint32_t epoch_ = 0;
};

}  // namespace perseid::internal::collective
