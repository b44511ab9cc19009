// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Functions that need neither a context nor a plan.
#include "api/guard.hpp"
#include "base/log.hpp"

#define PERSEID_TEXT_OF(number) #number
#define PERSEID_VERSION_TEXT(major, minor, patch) \
  PERSEID_TEXT_OF(major) "." PERSEID_TEXT_OF(minor) "." PERSEID_TEXT_OF(patch)

extern "C" {

const char* perseid_status_string(perseid_status status) {
  switch (perseid::internal::api::number_of(status)) {
    case PERSEID_OK:
      return "ok";
    case PERSEID_INVALID_ARGUMENT:
      return "invalid argument";
    case PERSEID_UNSUPPORTED:
      return "unsupported";
    case PERSEID_OUT_OF_MEMORY:
      return "out of memory";
    case PERSEID_WORKSPACE_TOO_SMALL:
      return "workspace too small";
    case PERSEID_DEVICE_ERROR:
      return "device error";
    case PERSEID_TIMEOUT:
      return "timeout";
    case PERSEID_PEER_LOST:
      return "peer lost";
    case PERSEID_IO_ERROR:
      return "i/o error";
    case PERSEID_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* perseid_version(void) {
  return PERSEID_VERSION_TEXT(PERSEID_VERSION_MAJOR, PERSEID_VERSION_MINOR, PERSEID_VERSION_PATCH);
}

int32_t perseid_abi_version(void) { return PERSEID_ABI_VERSION; }

void perseid_set_log_callback(perseid_log_fn fn, void* user, perseid_log_level level) {
  (void)perseid::internal::api::guarded([&]() -> perseid::internal::Status {
    perseid::internal::set_log_callback(fn, user, perseid::internal::api::number_of(level));
    return {};
  });
}

}  // extern "C"
