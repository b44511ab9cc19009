// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "api/guard.hpp"
#include "api/handles.hpp"
#include "api/sized_struct.hpp"
#include "dispatch/ceiling.hpp"

namespace perseid::internal::api {
namespace {

// The caller's threads.
class CallersExecutor final : public cpu::Executor {
 public:
  explicit CallersExecutor(const perseid_executor& executor) : executor_(executor) {}
  int32_t workers() const override { return executor_.workers; }
  void run(int64_t tasks, cpu::TaskFunction function, void* state) override {
    executor_.run(executor_.user, tasks, function, state);
  }

 private:
  perseid_executor executor_;
};

Status check_options(const perseid_context_options& options) {
  op::Check check("context");
  check.require(
      options.device_type == 0 || options.device_type == kDLCPU || options.device_type == kDLCUDA,
      "device_type is ", options.device_type, ", expected kDLCPU (1) or kDLCUDA (2)");
  check.require(options.determinism <= PERSEID_DETERMINISM_ON, "determinism is ",
                options.determinism, ", expected a perseid_determinism, 0 to ",
                static_cast<uint32_t>(PERSEID_DETERMINISM_ON));
  if (!check.ok()) return check.result();
  check.require(options.assume == nullptr || options.device_type == kDLCUDA, "assume is \"",
                options.assume == nullptr ? "" : options.assume,
                "\", expected NULL with a CPU; set device_type to kDLCUDA");
  if (!check.ok()) return check.result();
  if (options.device_type == kDLCUDA) {
    check.require(options.assume == nullptr || options.device_index == 0, "device_index is ",
                  options.device_index, ", expected 0 where assume names a kind of GPU");
    check.require(options.threads == 0 && options.executor.run == nullptr,
                  "threads and executor are for the CPU; leave them 0 with kDLCUDA");
    return check.result();
  }
  check.require(options.device_index == 0, "device_index is ", options.device_index,
                ", expected 0, the only CPU device");
  check.require(0 <= options.threads && options.threads <= dispatch::kMostWorkers, "threads is ",
                options.threads, ", expected 1 to ", dispatch::kMostWorkers,
                ", or 0 for PERSEID_NUM_THREADS or else all CPUs of the process");
  if (options.executor.run != nullptr) {
    const int32_t workers = options.executor.workers;
    check.require(1 <= workers && workers <= dispatch::kMostWorkers, "executor.workers is ",
                  workers, ", expected 1 to ", dispatch::kMostWorkers);
    check.require(options.threads == 0, "threads is ", options.threads,
                  " beside an executor of the caller; set it to 0");
  }
  return check.result();
}

Status create(const perseid_context_options& options, perseid_context_t* context) {
  if (Status status = check_options(options); !status.ok()) return status;
  std::unique_ptr<cpu::Executor> executor;
  if (options.executor.run != nullptr)
    executor = std::make_unique<CallersExecutor>(options.executor);
  const dispatch::Settings settings{options.disable == nullptr ? "" : options.disable,
                                    static_cast<dispatch::Determinism>(options.determinism)};
  auto made = std::make_unique<perseid_context>();
  Status status =
      options.assume != nullptr ? dispatch::assume_cuda(options.assume, settings, &made->device)
      : options.device_type == kDLCUDA
          ? dispatch::open_cuda(options.device_index, settings, &made->device)
          : dispatch::open_cpu(std::move(executor), options.threads, settings, &made->device);
  if (!status.ok()) return status;
  made->facts = dispatch::facts_json(*made->device);
  *context = made.release();
  return {};
}

}  // namespace
}  // namespace perseid::internal::api

using perseid::internal::Status;
using perseid::internal::api::guarded;
using perseid::internal::api::null_argument;

extern "C" {

perseid_status perseid_context_create(const perseid_context_options* options,
                                      perseid_context_t* context) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_context_create", "context");
    *context = nullptr;
    perseid_context_options current{};
    perseid::internal::op::Check check("perseid_context_create");
    if (options != nullptr && !perseid::internal::api::read_struct(check, options, &current))
      return check.result();
    return perseid::internal::api::create(current, context);
  });
}

void perseid_context_destroy(perseid_context_t context) { delete context; }

perseid_status perseid_context_facts(perseid_context_t context, const char** json) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_context_facts", "context");
    if (json == nullptr) return null_argument("perseid_context_facts", "json");
    *json = context->facts.c_str();
    return {};
  });
}

perseid_status perseid_context_ceiling(perseid_context_t context, perseid_ceiling ceiling,
                                       uint64_t bytes, double* per_second) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_context_ceiling", "context");
    if (per_second == nullptr) return null_argument("perseid_context_ceiling", "per_second");
    return perseid::internal::dispatch::measure_ceiling(
        *context->device, perseid::internal::api::number_of(ceiling), bytes, per_second);
  });
}

}  // extern "C"
