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

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<std::string> names_of(std::string_view text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name(text.substr(begin, end - begin));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    begin = end + 1;
  }
  return names;
}

Status read_wish(const char* wanted, const Device& device, const std::vector<const char*>& names,
                 Wish* wish) {
  if (wanted != nullptr && *wanted != '\0') {
    for (const std::string& name : names_of(wanted))
      if (!has(names, name))
        return Status::error(PERSEID_INVALID_ARGUMENT, "the descriptor's implementation is \"",
                             wanted, "\", expected one or several, divided by commas, of ",
                             list_of(names), ", or NULL for the first that takes the problem");
    *wish = {names_of(wanted), concatenate("the descriptor asks for ", wanted)};
  } else if (!device.forced_implementation.empty()) {
    for (const std::string& name : names_of(device.forced_implementation))
      if (has(names, name)) wish->names.push_back(name);
    if (!wish->names.empty())
      wish->asks = concatenate("PERSEID_FORCE_IMPL asks for ", list_of(wish->names));
  }
  return {};
}

Order order_of(const Wish& wish, const std::vector<const char*>& names) {
  Order order;
  for (const std::string& name : wish.names)
    order.entries.push_back(
        static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin()));
  order.tried = wish.names.empty() ? names.size() : order.entries.size();
  for (size_t i = 0; i < names.size(); ++i)
    if (!has(wish.names, names[i])) order.entries.push_back(i);
  return order;
}

Status check_names(const char* what, std::string_view names) {
  std::vector<std::string_view> known;
  const auto add = [&known](const auto& list) {
    for (const auto& entry : list)
      if (!has(known, entry.name)) known.push_back(entry.name);
  };
  add(softmax_implementations());
  add(attention_implementations());
  add(matmul_implementations());
  for (const std::string& name : names_of(names))
    if (!has(known, name))
      return Status::error(PERSEID_INVALID_ARGUMENT, what, " is \"", names,
                           "\", expected one or several, divided by commas, of ", list_of(known),
                           "; or leave it unset");
  return {};
}

std::string why_unusable(std::string_view name, const Device& device) {
  const bool of_gpu = name.starts_with("cuda:");
  if (of_gpu == (device.gpu != nullptr)) {
    if (has(device.disabled_by_options, name)) return "switched off by the context's options";
    if (has(device.disabled_by_environment, name)) return "switched off by PERSEID_DISABLE_IMPL";
    return "";
  }
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
