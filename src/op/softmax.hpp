// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax: what a descriptor and the arguments of an execution must be. The kernels that run are
// listed in dispatch/softmax_list.cpp.
#pragma once

#include "op/plan.hpp"

namespace perseid::internal::op {

Status read_problem(const perseid_softmax_desc& desc, SoftmaxProblem* problem);

class SoftmaxPlan final : public PlanOf<dispatch::Softmax> {
 public:
  static constexpr const char* kOperation = "softmax";

  static Status make(DevicePointer device, const perseid_softmax_desc& desc,
                     std::unique_ptr<const Plan>* plan);
  Status forward(const perseid_softmax_forward_args& args, const Workspace& workspace,
                 void* stream) const;
  Status backward(const perseid_softmax_backward_args& args, const Workspace& workspace,
                  void* stream) const;

 private:
  using PlanOf::PlanOf;
};

}  // namespace perseid::internal::op
