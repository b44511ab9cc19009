// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul: what a descriptor and the arguments of an execution must be. The kernels that run are
// listed in dispatch/matmul_list.cpp.
#pragma once

#include "op/plan.hpp"

namespace perseid::internal::op {

Status read_problem(const perseid_matmul_desc& desc, MatmulProblem* problem);

class MatmulPlan final : public PlanOf<dispatch::Matmul> {
 public:
  static constexpr const char* kOperation = "matmul";

  static Status make(DevicePointer device, const perseid_matmul_desc& desc,
                     std::unique_ptr<const Plan>* plan);
  Status execute(const perseid_matmul_args& args, const Workspace& workspace, void* stream) const;

 private:
  using PlanOf::PlanOf;
};

}  // namespace perseid::internal::op
