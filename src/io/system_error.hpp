// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The sentence of a system call that failed.
#pragma once

#include <system_error>

#include "base/status.hpp"

namespace perseid::internal::io {

// "cannot WHAT: the system's words for the error". `error` is errno right after the call, before
// anything else can change it.
template <class... Pieces>
Status system_error(int error, const Pieces&... what) {
  return Status::error(PERSEID_IO_ERROR, "cannot ", what..., ": ",
                       std::generic_category().message(error));
}

}  // namespace perseid::internal::io
