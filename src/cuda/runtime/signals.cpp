// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/signals.hpp"

#include "cuda/runtime/memory.hpp"

namespace perseid::internal::cuda {
namespace {

Status load_wait(Gpu& gpu, const std::vector<Kernel>** kernels) {
  return gpu.load_kept(
      Gpu::Kept::kSignalWait, kSignalWaitHeader,
      [] { return std::vector<std::string>{kSignalWaitKernel}; }, kernels);
}

}  // namespace

Status set_signal(const Gpu& gpu, uint32_t* signal, uint32_t epoch, void* stream) {
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  constexpr uint32_t kAfterAllWrites = 0;
  return check(
      gpu.driver(),
      gpu.driver().write_word(static_cast<StreamHandle>(stream),
                              reinterpret_cast<DeviceAddress>(signal), epoch, kAfterAllWrites),
      "writing a signal", "see that it is in memory of the device, or page-locked");
}

Status find_arrival(const Gpu& gpu, const Arrival& arrival, DeviceArrival* found,
                    WaitReport** record) {
  void *abort = nullptr, *reported = nullptr;
  Status status;
  if (arrival.abort != nullptr) status = device_address(gpu, "abort", arrival.abort, &abort);
  if (status.ok() && arrival.record != nullptr)
    status = device_address(gpu, "record", arrival.record, &reported);
  found->signals = arrival.signals;
  found->epoch_ptr = arrival.epoch_ptr;
  found->abort = static_cast<const uint32_t*>(abort);
  found->deadline_ns = arrival.deadline_ns;
  found->epoch = arrival.epoch;
  found->waits = arrival.waits;
  *record = static_cast<WaitReport*>(reported);
  return status;
}

Status prepare_waits(Gpu& gpu) {
  const std::vector<Kernel>* kernels = nullptr;
  Status status = load_wait(gpu, &kernels);
  const Gpu::Current current(gpu);
  if (status.ok()) status = current.status();
  return status.ok() ? gpu.wait_reports().reserve() : status;
}

Status wait_for_signal(Gpu& gpu, const Arrival& arrival, void* stream, int32_t count) {
  const std::vector<Kernel>* kernels = nullptr;
  if (Status status = load_wait(gpu, &kernels); !status.ok()) return status;
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  AsyncArguments arguments;
  Status status = find_arrival(gpu, arrival, &arguments.arrivals[0], &arguments.reports[0]);
  arguments.arrivals[0].chunks.count = count;
  const WaitingExecution execution{.operation = "perseid_stream_signal_wait",
                                   .operands = {"the signal", ""},
                                   .deadline_ns = {arrival.deadline_ns, 0}};
  if (status.ok()) status = gpu.wait_reports().draw(execution, stream, &arguments.reports[1]);
  if (!status.ok()) return status;
  return gpu.launch(kernels->front(), {.blocks = 1, .threads = 32}, &arguments, stream);
}

}  // namespace perseid::internal::cuda
