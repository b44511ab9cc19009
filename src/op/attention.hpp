// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention: its plan, and what the arguments of an execution must be. The descriptor is read by
// op/attention_problem.cpp; the kernels that run are listed in dispatch/attention_list.cpp.
#pragma once

#include <vector>

#include "op/plan.hpp"

namespace perseid::internal::op {

class AttentionPlan final : public PlanOf<dispatch::Attention> {
 public:
  static constexpr const char* kOperation = "attention";

  // How key and value of ranks arrive, as AttentionProblem has it.
  struct Arriving {
    int64_t groups = 1;
    bool backward = false;
    const int32_t* chunk_stages = nullptr;
    ChunkTraffic traffic = {};
    int32_t spared = 0;
  };
  // `rows`: the queries of this plan. Where they are not all, gradients of key and value are f32.
  static Status make(DevicePointer device, const perseid_attention_desc& desc,
                     std::unique_ptr<const Plan>* plan, const QueryRows& rows,
                     const Arriving& arriving);
  static Status make(DevicePointer device, const perseid_attention_desc& desc,
                     std::unique_ptr<const Plan>* plan, const QueryRows& rows = {}) {
    return make(std::move(device), desc, plan, rows, {});
  }
  Status forward(const perseid_attention_forward_args& args, const Workspace& workspace,
                 void* stream) const {
    return forward_timed(args, workspace, stream, {});
  }
  // What forward() and backward() refuse before anything runs: tensors and workspace, but not how
  // chunks arrive.
  Status check_forward(const perseid_attention_forward_args& args,
                       const Workspace& workspace) const;
  Status check_backward(const perseid_attention_backward_args& args,
                        const Workspace& workspace) const;
  // `timers`: of the chunks of key and value.
  Status forward_timed(const perseid_attention_forward_args& args, const Workspace& workspace,
                       void* stream, const ChunkTimers& timers) const;
  // Chunks of key and value, and of their gradients, where backward streams.
  struct Streams {
    Arrival arrival;
    Departure departure;
  };
  // A group of equally many heads, whose gradients alone are computed, by a plan of so many heads
  // that is the same otherwise; without bias and dropout.
  struct HeadGroup {
    const AttentionPlan* plan = nullptr;
    int64_t number = 0, count = 1;
  };
  Status backward(const perseid_attention_backward_args& args, const Workspace& workspace,
                  void* stream, const Streams& streams, const HeadGroup& heads) const;
  Status backward(const perseid_attention_backward_args& args, const Workspace& workspace,
                  void* stream, const Streams& streams) const {
    return backward(args, workspace, stream, streams, {});
  }
  Status backward(const perseid_attention_backward_args& args, const Workspace& workspace,
                  void* stream) const {
    return backward(args, workspace, stream, {});
  }

 private:
  AttentionPlan(DevicePointer device, perseid_layout layout)
      : PlanOf(std::move(device)), layout_(layout) {}

  perseid_layout layout_;
  std::vector<int64_t> chunks_;  // boundaries of those of key and value
};

}  // namespace perseid::internal::op
