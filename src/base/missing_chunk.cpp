// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/missing_chunk.hpp"

namespace perseid::internal {

Status status_of(const MissingChunk& missing) {
  const std::string chunk =
      concatenate(missing.operation, ": chunk ", missing.chunk, " of ", missing.operand);
  const std::string seen =
      concatenate(" (its signal is ", missing.seen, ", the epoch ", missing.expected, "); ");
  if (missing.aborted)
    return Status::error(PERSEID_PEER_LOST, chunk, ": not arrived when the abort word was set",
                         seen, "clear the word and execute again with a new epoch");
  return Status::error(PERSEID_TIMEOUT, chunk, ": not arrived within ",
                       static_cast<double>(missing.deadline_ns) / 1e6, " ms", seen,
                       "find out who was to send it, or pass a longer deadline_ns");
}

}  // namespace perseid::internal
