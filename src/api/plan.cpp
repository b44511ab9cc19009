// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Functions of plans of every operation.
#include <algorithm>
#include <cstring>

#include "api/guard.hpp"
#include "api/handles.hpp"
#include "api/sized_struct.hpp"

using perseid::internal::Status;
using perseid::internal::api::guarded;
using perseid::internal::api::null_argument;

extern "C" {

void perseid_plan_destroy(perseid_plan_t plan) { delete plan; }

perseid_status perseid_plan_workspace_size(perseid_plan_t plan, perseid_direction direction,
                                           size_t* bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("perseid_plan_workspace_size", "plan");
    if (bytes == nullptr) return null_argument("perseid_plan_workspace_size", "bytes");
    return plan->plan->workspace_size(static_cast<perseid::internal::dispatch::Direction>(
                                          perseid::internal::api::number_of(direction)),
                                      bytes);
  });
}

perseid_status perseid_plan_query(perseid_plan_t plan, perseid_plan_info* info) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("perseid_plan_query", "plan");
    if (info == nullptr) return null_argument("perseid_plan_query", "info");
    perseid::internal::op::Check check("perseid_plan_query");
    const uint32_t size = info->struct_size;
    perseid_plan_info current;
    if (!perseid::internal::api::read_struct(check, info, &current)) return check.result();
    plan->plan->query(&current);
    current.struct_size = size;
    std::memcpy(info, &current, std::min<size_t>(size, sizeof current));
    return {};
  });
}

perseid_status perseid_plan_explain(perseid_plan_t plan, const char** text) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("perseid_plan_explain", "plan");
    if (text == nullptr) return null_argument("perseid_plan_explain", "text");
    *text = plan->plan->text().c_str();
    return {};
  });
}

perseid_status perseid_plan_explain_json(perseid_plan_t plan, const char** json) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("perseid_plan_explain_json", "plan");
    if (json == nullptr) return null_argument("perseid_plan_explain_json", "json");
    *json = plan->plan->json().c_str();
    return {};
  });
}

}  // extern "C"
