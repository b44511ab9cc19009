// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Signals in memory of the host, and in stream order.
#include "api/guard.hpp"
#include "api/handles.hpp"
#include "api/sized_struct.hpp"
#include "cpu/waits.hpp"
#include "dispatch/memory.hpp"
#include "op/chunks.hpp"

using perseid::internal::Status;
using perseid::internal::WaitEnd;

extern "C" {

perseid_status perseid_signal_set(uint32_t* signal, uint32_t epoch) {
  return perseid::internal::api::guarded([&]() -> Status {
    perseid::internal::op::Check check("perseid_signal_set");
    if (!perseid::internal::op::check_word(check, "signal", "", signal)) return check.result();
    perseid::internal::cpu::set_signal(signal, epoch);
    return {};
  });
}

perseid_status perseid_signal_wait(const uint32_t* signal, uint32_t epoch, uint64_t deadline_ns,
                                   const uint32_t* abort) {
  return perseid::internal::api::guarded([&]() -> Status {
    perseid::internal::op::Check check("perseid_signal_wait");
    if (!perseid::internal::op::check_word(check, "signal", "", signal) ||
        (abort != nullptr && !perseid::internal::op::check_word(check, "abort", "", abort)))
      return check.result();
    const uint64_t limit = perseid::internal::op::deadline_or_default(deadline_ns);
    const WaitEnd end = perseid::internal::cpu::wait_for_signal(
        signal, epoch, perseid::internal::cpu::deadline_after(limit), abort);
    if (end == WaitEnd::kArrived) return {};
    const uint32_t seen = perseid::internal::cpu::load_acquire(signal);
    if (end == WaitEnd::kAborted)
      return Status::error(PERSEID_PEER_LOST, "perseid_signal_wait: the signal is ", seen,
                           ", expected ", epoch, ", when the abort word was set");
    return Status::error(PERSEID_TIMEOUT, "perseid_signal_wait: the signal is ", seen,
                         ", expected ", epoch, ", after ", static_cast<double>(limit) / 1e6,
                         " ms; find out who was to set it, or pass a longer deadline_ns");
  });
}

perseid_status perseid_stream_signal_set(perseid_context_t context, uint32_t* signal,
                                         uint32_t epoch, void* stream) {
  return perseid::internal::api::guarded([&]() -> Status {
    constexpr const char* kName = "perseid_stream_signal_set";
    if (context == nullptr) return perseid::internal::api::null_argument(kName, "context");
    perseid::internal::op::Check check(kName);
    if (!perseid::internal::op::check_word(check, "signal", "", signal)) return check.result();
    return perseid::internal::dispatch::set_signal(*context->device, signal, epoch, stream);
  });
}

perseid_status perseid_stream_signal_wait(perseid_context_t context, const perseid_arrival* arrival,
                                          void* stream) {
  return perseid::internal::api::guarded([&]() -> Status {
    namespace op = perseid::internal::op;
    constexpr const char* kName = "perseid_stream_signal_wait";
    if (context == nullptr) return perseid::internal::api::null_argument(kName, "context");
    if (arrival == nullptr) return perseid::internal::api::null_argument(kName, "arrival");
    op::Check check(kName);
    perseid_arrival given{};
    if (!perseid::internal::api::read_struct(check, arrival, &given)) return check.result();
    const int64_t one_chunk[] = {0, 1};
    const auto read =
        op::read_arrival(check, "arrival", &given, {perseid::internal::ChunkDim::kM, one_chunk, 1});
    if (!check.ok()) return check.result();
    perseid::internal::Missing missing;
    op::write_record(&given, PERSEID_OK, missing);
    Status status =
        perseid::internal::dispatch::wait_for_signal(*context->device, read, stream, &missing);
    if (missing.end != WaitEnd::kArrived) op::write_record(&given, status.code(), missing);
    return status;
  });
}

}  // extern "C"
