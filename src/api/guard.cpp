// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "api/guard.hpp"

#include <string>

namespace perseid::internal::api {
namespace {

constexpr const char* kOutOfMemory =
    "memory is exhausted; make the problem smaller or free some memory";

// `sentence` points into `text` or to a literal, which stands in where `text` could not be kept.
struct LastError {
  std::string text;
  const char* sentence = "";
};
thread_local LastError last_error;

perseid_status keep(perseid_status code, std::string_view before, std::string_view after) noexcept {
  try {
    last_error.text.assign(before).append(after);
    last_error.sentence = last_error.text.c_str();
  } catch (const std::exception&) {
    last_error.sentence = kOutOfMemory;
  }
  return code;
}

}  // namespace

perseid_status report(const Status& status) noexcept {
  return status.ok() ? PERSEID_OK : keep(status.code(), status.sentence(), "");
}

perseid_status report_out_of_memory() noexcept {
  last_error.sentence = kOutOfMemory;
  return PERSEID_OUT_OF_MEMORY;
}

perseid_status report_internal(const char* what) noexcept {
  return keep(PERSEID_INTERNAL, "a defect of the library, please report it: ", what);
}

}  // namespace perseid::internal::api

extern "C" const char* perseid_last_error(void) {
  return perseid::internal::api::last_error.sentence;
}
