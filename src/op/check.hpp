// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Validation as a list of requirements: keeps the message of the first one that fails and ignores
// those after it.
#pragma once

#include <utility>

#include "base/status.hpp"

namespace perseid::internal::op {

class Check {
 public:
  // What is checked, such as "attention forward": every sentence begins with it.
  explicit Check(const char* subject) : subject_(subject) {}

  bool ok() const { return status_.ok(); }
  const char* subject() const { return subject_; }

  // `pieces` make the sentence. They are put together only where it is needed, so that a check
  // that holds allocates nothing.
  template <class... Pieces>
  bool require(bool holds, const Pieces&... pieces) {
    if (!holds && ok())
      status_ = Status::error(PERSEID_INVALID_ARGUMENT, subject_, ": ", pieces...);
    return holds;
  }

  // Ends the checking.
  Status result() { return std::exchange(status_, {}); }

 private:
  const char* subject_;
  Status status_;
};

}  // namespace perseid::internal::op
