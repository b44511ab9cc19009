// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From a problem and its tensors to calls of the C ABI. The raw ABI, not perseid.hpp, because
// checking must be able to say what the C++ layer would never say.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "harness/data.hpp"
#include "harness/placement.hpp"

namespace perseid::harness {

struct Outcome {
  perseid_status status = PERSEID_OK;
  std::string sentence;
  bool ok() const { return status == PERSEID_OK; }
};
// With the library's last sentence where the status is a failure.
Outcome outcome_of(perseid_status status);

struct DestroyPlan {
  void operator()(perseid_plan_t plan) const { perseid_plan_destroy(plan); }
};
using PlanHandle = std::unique_ptr<perseid_plan, DestroyPlan>;

// What no descriptor can say, and is wrong; "": nothing. The rest is the library's to judge.
std::string unsayable(const Problem& problem);
// Of a problem of attention, to whose strings it points.
perseid_attention_desc attention_desc(const Problem& problem);
// Dropout masks have no plan: theirs stays empty, and the outcome is OK.
Outcome make_plan(const Context& context, const Problem& problem, PlanHandle& plan);

// Names of the implementations that take the problem or were not asked, in the library's order.
std::vector<std::string> implementations_of(perseid_plan_t plan);

// Whether the fault is of a workspace, and no call that it is put into has one: then nothing is
// wrong.
bool fault_needs_workspace(const Problem& problem, perseid_plan_t plan);

// One direction of a plan over tensors that stay where they are. Problem::fault names what is made
// wrong in it, as KIND or KIND:TENSOR:
//   null, dtype, dims, shape, device, overlap (stride 0)         of the tensor after the colon
//   workspace-overlap          with the tensor after the colon, where there is a workspace
//   workspace-short, workspace-null, struct-size, args-null      of the call
class Call {
 public:
  Call(const Context& context, perseid_plan_t plan, const Problem& problem, Direction direction,
       const Operands& operands);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Allocates nothing unless it fails. On a GPU it is not done when this returns.
  perseid_status execute() const;
  // Waits, and brings all that a GPU has back into the operands.
  Outcome finish() const;
  bool workspace_damaged() const { return workspace_ && workspace_->damaged(); }

 private:
  struct View {
    std::string name;
    DLTensor tensor;
    std::array<int64_t, PERSEID_MAX_DIMS> shape, strides;
  };
  const DLTensor* view(const char* name);
  void add_view(const char* name, const Tensor& tensor);
  void add_workspace(const Problem& problem);
  void apply_fault(const Problem& problem);
  void set_arguments(const Problem& problem);
  template <class Args>
  void set_attention_inputs(const Problem& problem, Args& args);

  const Context& context_;
  perseid_plan_t plan_;
  Placement placement_;
  Op op_;
  Direction direction_;
  std::deque<View> views_;  // addresses stay
  std::optional<Array> workspace_;
  void* workspace_data_ = nullptr;
  size_t workspace_bytes_ = 0;
  bool null_arguments_ = false;
  std::array<uint64_t, 2> rng_{};
  double dropout_ = 0;
  perseid_softmax_forward_args softmax_forward_{};
  perseid_softmax_backward_args softmax_backward_{};
  perseid_attention_forward_args attention_forward_{};
  perseid_attention_backward_args attention_backward_{};
  perseid_matmul_args matmul_{};
};

}  // namespace perseid::harness
