// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Creation and execution of plans. Each operation is defined in op/softmax.cpp, op/attention.cpp,
// op/matmul.cpp and op/dropout_mask.cpp.
#include "api/guard.hpp"
#include "api/handles.hpp"
#include "api/sized_struct.hpp"
#include "base/observe.hpp"
#include "op/attention.hpp"
#include "op/dropout_mask.hpp"
#include "op/matmul.hpp"
#include "op/softmax.hpp"

namespace perseid::internal::api {
namespace {

template <class OperationPlan, class Descriptor>
perseid_status create(const char* function, perseid_context_t context, const Descriptor* desc,
                      perseid_plan_t* plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument(function, "plan");
    *plan = nullptr;
    if (context == nullptr) return null_argument(function, "context");
    if (desc == nullptr) return null_argument(function, "desc");
    op::Check check(function);
    Descriptor current;
    Pointees<Descriptor> pointees;
    if (!read_struct(check, desc, &current) || !pointees.read(check, &current))
      return check.result();
    auto made = std::make_unique<perseid_plan>();
    const std::string no_arguments;
    const Span span(OperationPlan::kOperation, "plan", "", false, no_arguments);
    if (Status status = OperationPlan::make(context->device, current, &made->plan); !status.ok())
      return status;
    *plan = made.release();
    return {};
  });
}

// Runs `method` of the plan, which must be one of OperationPlan.
template <class OperationPlan, class Args>
perseid_status execute(const char* function, perseid_plan_t plan, const Args* args,
                       Status (OperationPlan::*method)(const Args&, const op::Workspace&, void*)
                           const,
                       const op::Workspace& workspace, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument(function, "plan");
    if (args == nullptr) return null_argument(function, "args");
    const auto* own = dynamic_cast<const OperationPlan*>(plan->plan.get());
    if (own == nullptr)
      return Status::error(PERSEID_INVALID_ARGUMENT, function, ": the plan is one of ",
                           plan->plan->operation(), ", expected one of ",
                           OperationPlan::kOperation);
    op::Check check(function);
    Args current;
    Pointees<Args> pointees;
    if (!read_struct(check, args, &current) || !pointees.read(check, &current))
      return check.result();
    return (own->*method)(current, workspace, stream);
  });
}

}  // namespace
}  // namespace perseid::internal::api

using perseid::internal::Status;
using perseid::internal::op::AttentionPlan;
using perseid::internal::op::MatmulPlan;
using perseid::internal::op::SoftmaxPlan;

extern "C" {

perseid_status perseid_softmax_plan_create(perseid_context_t context,
                                           const perseid_softmax_desc* desc, perseid_plan_t* plan) {
  return perseid::internal::api::create<SoftmaxPlan>(__func__, context, desc, plan);
}

perseid_status perseid_softmax_forward(perseid_plan_t plan,
                                       const perseid_softmax_forward_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream) {
  return perseid::internal::api::execute(__func__, plan, args, &SoftmaxPlan::forward,
                                         {workspace, workspace_bytes}, stream);
}

perseid_status perseid_softmax_backward(perseid_plan_t plan,
                                        const perseid_softmax_backward_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream) {
  return perseid::internal::api::execute(__func__, plan, args, &SoftmaxPlan::backward,
                                         {workspace, workspace_bytes}, stream);
}

perseid_status perseid_attention_plan_create(perseid_context_t context,
                                             const perseid_attention_desc* desc,
                                             perseid_plan_t* plan) {
  return perseid::internal::api::create<AttentionPlan>(__func__, context, desc, plan);
}

perseid_status perseid_attention_forward(perseid_plan_t plan,
                                         const perseid_attention_forward_args* args,
                                         void* workspace, size_t workspace_bytes, void* stream) {
  return perseid::internal::api::execute(__func__, plan, args, &AttentionPlan::forward,
                                         {workspace, workspace_bytes}, stream);
}

perseid_status perseid_attention_backward(perseid_plan_t plan,
                                          const perseid_attention_backward_args* args,
                                          void* workspace, size_t workspace_bytes, void* stream) {
  return perseid::internal::api::execute(__func__, plan, args, &AttentionPlan::backward,
                                         {workspace, workspace_bytes}, stream);
}

perseid_status perseid_fill_dropout_mask(perseid_context_t context, double dropout, uint64_t seed,
                                         uint64_t offset, const DLTensor* mask, void* stream) {
  return perseid::internal::api::guarded([&]() -> Status {
    if (context == nullptr)
      return perseid::internal::api::null_argument("perseid_fill_dropout_mask", "context");
    return perseid::internal::op::fill_dropout_mask(*context->device, dropout, seed, offset, mask,
                                                    stream);
  });
}

perseid_status perseid_matmul_plan_create(perseid_context_t context,
                                          const perseid_matmul_desc* desc, perseid_plan_t* plan) {
  return perseid::internal::api::create<MatmulPlan>(__func__, context, desc, plan);
}

perseid_status perseid_matmul_tune(perseid_context_t context, const perseid_matmul_desc* desc,
                                   const perseid_matmul_args* args, void* stream,
                                   perseid_plan_t* plan) {
  using namespace perseid::internal::api;
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("perseid_matmul_tune", "plan");
    *plan = nullptr;
    if (context == nullptr) return null_argument("perseid_matmul_tune", "context");
    if (desc == nullptr) return null_argument("perseid_matmul_tune", "desc");
    if (args == nullptr) return null_argument("perseid_matmul_tune", "args");
    perseid::internal::op::Check check("perseid_matmul_tune");
    perseid_matmul_desc problem;
    perseid_matmul_args tensors;
    Pointees<perseid_matmul_desc> of_problem;
    Pointees<perseid_matmul_args> of_tensors;
    if (!read_struct(check, desc, &problem) || !of_problem.read(check, &problem) ||
        !read_struct(check, args, &tensors) || !of_tensors.read(check, &tensors))
      return check.result();
    auto made = std::make_unique<perseid_plan>();
    if (Status status = MatmulPlan::tune(context->device, problem, tensors, stream, &made->plan);
        !status.ok())
      return status;
    *plan = made.release();
    return {};
  });
}

perseid_status perseid_matmul_execute(perseid_plan_t plan, const perseid_matmul_args* args,
                                      void* workspace, size_t workspace_bytes, void* stream) {
  return perseid::internal::api::execute(__func__, plan, args, &MatmulPlan::execute,
                                         {workspace, workspace_bytes}, stream);
}

}  // extern "C"
