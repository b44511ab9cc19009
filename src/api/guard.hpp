// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The boundary of C++ and the C ABI: every extern "C" function runs its body in guarded(), which
// turns exceptions into statuses and keeps the sentence for perseid_last_error().
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

#include "base/floating_point.hpp"
#include "base/status.hpp"

namespace perseid::internal::api {

// Keeps the sentence of a failure as this thread's last error, and returns its code.
perseid_status report(const Status& status) noexcept;
perseid_status report_out_of_memory() noexcept;
perseid_status report_internal(const char* what) noexcept;

template <class Body>  // () -> Status
perseid_status guarded(const Body& body) noexcept {
  // For arithmetic on the caller's thread, such as 1/sqrt(head_dim).
  const FloatingPointScope environment;
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report_out_of_memory();
  } catch (const std::length_error&) {  // a container of more elements than memory addresses
    return report_out_of_memory();
  } catch (const std::exception& exception) {
    return report_internal(exception.what());
  } catch (...) {
    return report_internal("an exception of an unknown type");
  }
}

// An enumerator as C passes it: any number, which C++ may not read as an enum.
template <class Enum>
int32_t number_of(const Enum& enumerator) {
  int32_t number;
  static_assert(sizeof number == sizeof enumerator);
  std::memcpy(&number, &enumerator, sizeof number);
  return number;
}

inline Status null_argument(const char* function, const char* name) {
  return Status::error(PERSEID_INVALID_ARGUMENT, function, ": ", name,
                       " is NULL; pass a valid pointer");
}

}  // namespace perseid::internal::api
