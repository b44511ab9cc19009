// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the opaque handles of the C ABI point to.
#pragma once

#include <memory>
#include <string>

#include "dispatch/device.hpp"
#include "op/plan.hpp"

struct perseid_context {
  std::shared_ptr<const perseid::internal::dispatch::Device> device;
  std::string facts;
};

struct perseid_plan {
  std::unique_ptr<const perseid::internal::op::Plan> plan;
};
