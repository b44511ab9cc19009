// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The sentence about a chunk that did not arrive, the same from every backend.
#pragma once

#include "base/status.hpp"

namespace perseid::internal {

struct MissingChunk {
  const char* operation;
  const char* operand;
  int64_t chunk;
  uint32_t expected, seen;  // the epoch, and what the signal held
  bool aborted;             // else the deadline passed
  uint64_t deadline_ns;
};

// PEER_LOST or TIMEOUT.
Status status_of(const MissingChunk& missing);

}  // namespace perseid::internal
