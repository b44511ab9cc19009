// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/plan.hpp"

namespace perseid::internal::op {
namespace {

constexpr size_t kSlack = cpu::kWorkspaceAlignment - 1;

size_t with_slack(size_t bytes) { return bytes == 0 ? 0 : bytes + kSlack; }

}  // namespace

Status Plan::workspace_size(dispatch::Direction direction, size_t* bytes) const {
  switch (direction) {
    case dispatch::Direction::kForward:
      *bytes = with_slack(explanation_.forward.workspace);
      return {};
    case dispatch::Direction::kBackward:
      *bytes = explanation_.backward ? with_slack(explanation_.backward->workspace) : 0;
      return {};
  }
  return Status::error(PERSEID_INVALID_ARGUMENT, "the direction is ", static_cast<int>(direction),
                       ", expected PERSEID_FORWARD (0) or PERSEID_BACKWARD (1)");
}

void Plan::query(perseid_plan_info* info) const {
  const dispatch::Work backward = explanation_.backward.value_or(dispatch::Work{});
  info->reserved = 0;
  info->implementation = explanation_.chosen();
  info->forward_flops = explanation_.forward.flops;
  info->forward_bytes = explanation_.forward.bytes;
  info->backward_flops = backward.flops;
  info->backward_bytes = backward.bytes;
}

Status Plan::overlap_report(const char** json) const {
  *json = nullptr;
  return Status::error(PERSEID_INVALID_ARGUMENT, operation(),
                       ": the plan was made without a report; set report = 1 in the descriptor of "
                       "an operation of ranks");
}

void Plan::explain(dispatch::Explanation explanation) {
  explanation_ = std::move(explanation);
  implementation_ = explanation_.chosen();
  text_ = explain_text(explanation_, *device_);
  json_ = explain_json(explanation_, *device_);
  if (log_enabled(PERSEID_LOG_INFO)) log(PERSEID_LOG_INFO, "plan made: " + text_);
}

Status Plan::take(ArgumentReader& reader, dispatch::Direction direction, const Workspace& workspace,
                  std::byte** aligned) const {
  size_t needed = 0;
  if (Status status = workspace_size(direction, &needed); !status.ok()) return status;
  if (workspace.bytes < needed)
    return Status::error(PERSEID_WORKSPACE_TOO_SMALL, reader.subject(), ": the workspace has ",
                         workspace.bytes, " bytes, expected at least ", needed,
                         "; allocate what perseid_plan_workspace_size says");
  if (needed == 0) return {};
  if (workspace.data == nullptr)
    return Status::error(PERSEID_INVALID_ARGUMENT, reader.subject(),
                         ": the workspace is NULL, expected ", needed, " bytes");
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  *aligned = static_cast<std::byte*>(workspace.data) + (kSlack - (address + kSlack) % (kSlack + 1));
  return reader.check_workspace(workspace.data, needed);
}

}  // namespace perseid::internal::op
