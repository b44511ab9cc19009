// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Signals in memory of the host.
#include "api/guard.hpp"
#include "cpu/waits.hpp"
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

}  // extern "C"
