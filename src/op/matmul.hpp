// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul: what a descriptor and the arguments of an execution must be. The kernels that run are
// listed in dispatch/matmul_list.cpp.
#pragma once

#include <vector>

#include "op/plan.hpp"

namespace perseid::internal::op {

// The boundaries of the chunks of a, b and c. A problem points to them.
struct MatmulChunks {
  std::vector<int64_t> a, b, c;
};

Status read_problem(const perseid_matmul_desc& desc, MatmulChunks* chunks, MatmulProblem* problem);

// What a product over ranks adds to the descriptor.
struct MatmulOfRanks {
  int64_t leaves = 0;
  bool shared_depth = false;
  int32_t spared = 0;
};

class MatmulPlan final : public PlanOf<dispatch::Matmul> {
 public:
  static constexpr const char* kOperation = "matmul";

  static Status make(DevicePointer device, const perseid_matmul_desc& desc,
                     std::unique_ptr<const Plan>* plan, const MatmulOfRanks& of_ranks = {});
  // As make, of the configuration that is fastest on these tensors, which is kept in the tuning
  // cache.
  static Status tune(DevicePointer device, const perseid_matmul_desc& desc,
                     const perseid_matmul_args& args, void* stream,
                     std::unique_ptr<const Plan>* plan);
  Status execute(const perseid_matmul_args& args, const Workspace& workspace, void* stream) const {
    return execute_timed(args, workspace, stream, {});
  }
  // What execute() refuses before anything runs: tensors and workspace, but not how chunks arrive
  // or depart.
  Status check(const perseid_matmul_args& args, const Workspace& workspace) const;
  // `timers`: of the chunks of a, or of c on the CPU.
  Status execute_timed(const perseid_matmul_args& args, const Workspace& workspace, void* stream,
                       const ChunkTimers& timers) const;

 private:
  using PlanOf::PlanOf;
  Status make(const perseid_matmul_desc& desc, const MatmulOfRanks& of_ranks,
              std::vector<dispatch::Measured> measured);
  Status read(ArgumentReader& reader, const perseid_matmul_args& args,
              MatmulArguments* arguments) const;
  void read_tensors(ArgumentReader& reader, const perseid_matmul_args& args,
                    MatmulArguments* arguments) const;

  MatmulChunks chunks_;
};

}  // namespace perseid::internal::op
