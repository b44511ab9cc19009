// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The base of all operations' plans. A plan is a validated problem with the implementation that was
// chosen for it; immutable, so that threads may share it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/observe.hpp"
#include "dispatch/choose.hpp"
#include "dispatch/device.hpp"
#include "dispatch/explain.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {

using DevicePointer = std::shared_ptr<const dispatch::Device>;

// Scratch memory of one execution, as the caller gives it.
struct Workspace {
  void* data;
  size_t bytes;
};

class Plan {
 public:
  virtual ~Plan() = default;

  // What workspace a caller must bring, with room to align it; none for a direction that the plan
  // does not have.
  Status workspace_size(dispatch::Direction direction, size_t* bytes) const;
  void query(perseid_plan_info* info) const;
  const char* operation() const { return explanation_.operation; }
  const std::string& text() const { return text_; }
  const std::string& json() const { return json_; }
  // How the last execution overlapped computing and communicating, as JSON; of plans over ranks.
  virtual Status overlap_report(const char** json) const;

 protected:
  explicit Plan(DevicePointer device) : device_(std::move(device)) {}

  const dispatch::Device& device() const { return *device_; }
  void explain(dispatch::Explanation explanation);
  const char* implementation() const { return implementation_; }
  // The part of the caller's workspace that the implementation works in. `reader` has read the
  // tensors of the call.
  Status take(ArgumentReader& reader, dispatch::Direction direction, const Workspace& workspace,
              std::byte** aligned) const;
  // Observes an execution.
  Span observe(const ArgumentReader& reader) const {
    return Span(reader.subject(), "", implementation_, device_->gpu != nullptr, reader.text());
  }

 private:
  DevicePointer device_;
  dispatch::Explanation explanation_{};
  const char* implementation_ = "";
  std::string text_, json_;
};

// The base of an operation's plan, with its types.
template <class Operation>
class PlanOf : public Plan {
 protected:
  using Plan::Plan;
  using Problem = typename Operation::Problem;

  // The directions that never reach the implementation, for they have nothing to compute.
  struct Idle {
    bool forward = false, backward = false;
  };

  // `explanation` says everything but what was considered and what workspace is needed.
  Status choose(std::span<const dispatch::Implementation<Operation>> list, const Problem& problem,
                const char* wanted, dispatch::Explanation explanation, const Idle& idle = {}) {
    problem_ = problem;
    dispatch::Choice<Operation> choice;
    if (Status status = dispatch::choose(list, problem, device(), wanted, &choice); !status.ok())
      return status;
    executable_ = std::move(choice.executable);
    explanation.considered = std::move(choice.considered);
    if (!idle.forward)
      explanation.forward.workspace = executable_->workspace(dispatch::Direction::kForward);
    if (explanation.backward && !idle.backward)
      explanation.backward->workspace = executable_->workspace(dispatch::Direction::kBackward);
    explain(std::move(explanation));
    return {};
  }

  const Problem& problem() const { return problem_; }
  // The entry of `list` that was chosen.
  const dispatch::Implementation<Operation>& chosen_of(
      std::span<const dispatch::Implementation<Operation>> list) const {
    return *std::find_if(list.begin(), list.end(), [&](const auto& entry) {
      return std::string_view(entry.name) == implementation();
    });
  }
  Status run_forward(ArgumentReader& reader, const typename Operation::Forward& arguments,
                     const Workspace& workspace, void* stream) const {
    std::byte* aligned = nullptr;
    Status status = take(reader, dispatch::Direction::kForward, workspace, &aligned);
    if (!status.ok() || !reader.writes()) return status;
    const Span span = observe(reader);
    return executable_->forward(arguments, aligned, stream);
  }
  Status run_backward(ArgumentReader& reader, const typename Operation::Backward& arguments,
                      const Workspace& workspace, void* stream) const {
    std::byte* aligned = nullptr;
    Status status = take(reader, dispatch::Direction::kBackward, workspace, &aligned);
    if (!status.ok() || !reader.writes()) return status;
    const Span span = observe(reader);
    return executable_->backward(arguments, aligned, stream);
  }

 private:
  Problem problem_{};
  std::unique_ptr<const dispatch::Executable<Operation>> executable_;
};

}  // namespace perseid::internal::op
