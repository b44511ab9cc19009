// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a context is to the layers below the C ABI: who runs the work, with which kernels, and the
// facts that choices are made by. Immutable; plans share it, and so outlive the context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/executor.hpp"
#include "cpu/kernel_table.hpp"
#include "dispatch/status.hpp"

namespace perseid::dispatch {

// The most workers that one context may have. With kLargestTensor it keeps every workspace
// computation within 64 bits.
inline constexpr int32_t kMostWorkers = 4096;

struct Variable {
  const char* name;
  std::string value;
  bool set;
};

struct Device {
  std::unique_ptr<cpu::Executor> executor;
  const cpu::KernelTable* kernels = nullptr;
  std::vector<Variable> environment;  // the library's own variables, as they were at creation
  std::string forced_implementation;  // PERSEID_FORCE_IMPL; "": none

  int32_t workers() const { return executor->workers(); }
};

// The CPU. `executor`: the caller's threads, or null for an own pool of `threads` (0:
// PERSEID_NUM_THREADS, else all CPUs of the process).
Status open_cpu(std::unique_ptr<cpu::Executor> executor, int32_t threads,
                std::shared_ptr<const Device>* device);

// The library, the device and the environment as one JSON object.
std::string facts_json(const Device& device);

}  // namespace perseid::dispatch
