// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What carries the messages of ranks on several hosts (PutEngine): bytes between this rank and each
// other one, in their order. Nothing waits but wait(), which one thread calls, and receives.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/descriptor.hpp"

namespace perseid::internal::collective {

class Links {
 public:
  // A bit for each rank.
  struct Ready {
    uint64_t readable = 0, writable = 0;
    uint64_t lost = 0;  // the transport reports that it has failed
  };

  virtual ~Links() = default;
  virtual const char* name() const = 0;
  // The other ranks that there is a link to.
  virtual uint64_t ranks() const = 0;
  // Whether any thread may send, one at a time to each rank; else only the one that waits.
  virtual bool sends_from_any_thread() const = 0;
  // How many of the bytes it has taken: 0: none now; -1: the link has ended.
  virtual ssize_t send(int32_t rank, std::span<const iovec> parts) = 0;
  // How many bytes came: 0: there are none; -1: the link has ended.
  virtual ssize_t receive(int32_t rank, std::span<const iovec> parts) = 0;
  // The other rank finds the end of the link after what was sent.
  virtual void finish(int32_t rank) = 0;
  // Ends a link at once. By any thread, also while others use it.
  virtual void close(int32_t rank) = 0;
  // Until one of `ranks` is readable or one of `blocked` writable, wake() was called, or the time
  // has passed.
  virtual Ready wait(uint64_t ranks, uint64_t blocked,
                     std::optional<std::chrono::nanoseconds> limit) = 0;
  virtual void wake() = 0;  // by any thread
};

// sockets[r] is connected to rank r and serves nothing else; closed: no such rank.
std::unique_ptr<Links> links_of_sockets(std::vector<Descriptor> sockets);

}  // namespace perseid::internal::collective
