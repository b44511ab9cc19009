// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The device of a context: executor, kernels, and the facts that choices depend on. Immutable;
// plans share it, so they may outlive the context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "cpu/executor.hpp"
#include "cpu/kernel_table.hpp"
#include "cuda/runtime/gpu.hpp"
#include "dispatch/tuning.hpp"

namespace perseid::internal::dispatch {

// The most workers that one context may have. With kLargestTensor it keeps every workspace
// computation within 64 bits.
inline constexpr int32_t kMostWorkers = 4096;

struct Variable {
  const char* name;
  std::string value;
  bool set;
};

// What a context's options say of all its plans, in addition to the environment.
enum class Determinism : uint32_t { kDefault = 0, kByPlan = 1, kWarn = 2, kOn = 3 };
struct Settings {
  std::string disabled_implementations;  // names divided by commas
  Determinism determinism = Determinism::kDefault;
};

// A CPU with its workers and kernels, or a GPU.
struct Device {
  std::unique_ptr<cpu::Executor> executor;
  const cpu::KernelTable* kernels = nullptr;
  std::shared_ptr<cuda::Gpu> gpu;
  std::vector<Variable> environment;  // the library's own variables, as they were at creation
  std::string forced_implementation;  // PERSEID_FORCE_IMPL, names divided by commas; "": none
  // Disabled by the context's options, and by PERSEID_DISABLE_IMPL.
  std::vector<std::string> disabled_by_options, disabled_by_environment;
  Determinism determinism = Determinism::kByPlan;  // never kDefault
  std::unique_ptr<Tuning> tuning;                  // of a GPU; null with PERSEID_TUNE=0

  int32_t workers() const { return executor->workers(); }
  // The device that tensors must be on.
  DLDevice dl_device() const {
    return gpu != nullptr ? DLDevice{kDLCUDA, gpu->facts().index} : DLDevice{kDLCPU, 0};
  }
};

// The CPU. `executor`: the caller's threads, or null for an own pool of `threads` (0:
// PERSEID_NUM_THREADS, else all CPUs of the process).
Status open_cpu(std::unique_ptr<cpu::Executor> executor, int32_t threads, const Settings& settings,
                std::shared_ptr<const Device>* device);

// A CPU like this one, with other workers.
std::shared_ptr<const Device> with_executor(const Device& device,
                                            std::unique_ptr<cpu::Executor> executor);

// GPU `index`, as the driver counts them.
Status open_cuda(int32_t index, const Settings& settings, std::shared_ptr<const Device>* device);

// A GPU of this compute capability that need not exist: plans can be made, but not executed.
Status assume_cuda(const char* capability, const Settings& settings,
                   std::shared_ptr<const Device>* device);

// The library, the device and the environment as one JSON object.
std::string facts_json(const Device& device);

}  // namespace perseid::internal::dispatch
