// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/choose.hpp"

#include <algorithm>

namespace perseid::internal::dispatch {
namespace {

template <class Names>
std::string list_of(const Names& names) {
  std::string text;
  for (const auto& name : names) text += concatenate(text.empty() ? "" : ", ", name);
  return text;
}

}  // namespace

Status read_wish(const char* wanted, const Device& device, const std::vector<const char*>& names,
                 Wish* wish) {
  const auto listed = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (wanted != nullptr && *wanted != '\0') {
    if (!listed(wanted)) {
      return Status::error(PERSEID_INVALID_ARGUMENT, "the descriptor's implementation is \"",
                           wanted, "\", expected one of ", list_of(names),
                           ", or NULL for the first that takes the problem");
    }
    *wish = {wanted, "the descriptor"};
  } else if (listed(device.forced_implementation)) {
    *wish = {device.forced_implementation, "PERSEID_FORCE_IMPL"};
  }
  return {};
}

Status check_forced_name(std::string_view name) {
  std::vector<std::string_view> names;
  const auto add = [&names](const auto& list) {
    for (const auto& entry : list)
      if (std::find(names.begin(), names.end(), entry.name) == names.end())
        names.push_back(entry.name);
  };
  add(softmax_implementations());
  add(attention_implementations());
  add(matmul_implementations());
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "PERSEID_FORCE_IMPL is \"", name,
                       "\", expected one of ", list_of(names), "; or unset it");
}

std::string wrong_device(std::string_view name, const Device& device) {
  const bool of_gpu = name.starts_with("cuda:");
  if (of_gpu == (device.gpu != nullptr)) return "";
  return of_gpu ? "runs on a GPU, and the context is of the CPU"
                : concatenate("runs on the CPU, and the context is of cuda:",
                              device.gpu->facts().index);
}

Status nothing_takes_it(const std::vector<Considered>& considered) {
  std::string reasons;
  for (const Considered& entry : considered)
    reasons += concatenate(reasons.empty() ? "" : "; ", entry.name, ": ", entry.reason);
  return Status::error(PERSEID_UNSUPPORTED, "no implementation takes this problem (", reasons,
                       "); change the problem, or leave the choice to the library");
}

}  // namespace perseid::internal::dispatch
