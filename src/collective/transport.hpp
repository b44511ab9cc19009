// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How the data of one plan goes from rank to rank while the plan's kernel runs. A transport moves
// bytes and sets signals; kernels know nothing but signals, and plans nothing of transports but
// what is here. Each is one file, and a line in kTransports of transport.cpp.
//
// An execution has an epoch, which is the same on all ranks. All ranks call the same functions in
// the same order.
#pragma once

#include <memory>

#include "collective/group.hpp"
#include "collective/shards.hpp"
#include "cpu/executor.hpp"

namespace perseid::internal::collective {

// Brings the shards of all ranks together on every rank.
class GatherTransport {
 public:
  virtual ~GatherTransport() = default;
  // All shards, as Shards says. What a rank has produced in its own part need not be copied.
  virtual std::byte* gathered() const = 0;
  // One for each chunk: it reaches the epoch when the chunk may be read.
  virtual const uint32_t* signals() const = 0;
  // Returns when all ranks have read the epoch before: the own part may be written.
  virtual Status start(const Operation& operation, uint32_t epoch) = 0;
  // The own shard, [outer, size(rank), inner], copied to its part unless it lies there.
  virtual void send(uint32_t epoch, const Tensor& shard, cpu::Executor& executor) = 0;
  // This rank has read the chunks.
  virtual void finish(uint32_t epoch) = 0;
};

// Brings what every rank has computed of a rank's shard to that rank.
class ReduceTransport {
 public:
  virtual ~ReduceTransport() = default;
  // Where this rank writes all shards, as Shards says.
  virtual std::byte* partial() const = 0;
  // One for each chunk: whoever writes the partial sets it to the epoch, and the chunk leaves.
  virtual uint32_t* signals() const = 0;
  // Returns when all ranks have read the epoch before.
  virtual Status start(const Operation& operation, uint32_t epoch) = 0;
  // Waits for what `rank` has computed of this rank's shard: [outer, size(this rank), inner].
  virtual Status part(const Operation& operation, uint32_t epoch, int32_t rank, Tensor* part) = 0;
  // This rank has read all parts.
  virtual void finish(uint32_t epoch) = 0;
};

// Collective. The first transport that takes the group.
struct Transport {
  const char* name;
  // Why it does not take the group; "": it does.
  std::string (*refuse)(const Group& group);
  Status (*make_gather)(Group& group, const Operation& operation, const Shards& shards,
                        const ShardChunks& chunks, std::unique_ptr<GatherTransport>* transport);
  Status (*make_reduce)(Group& group, const Operation& operation, const Shards& shards,
                        const ShardChunks& chunks, std::unique_ptr<ReduceTransport>* transport);
};
const Transport& transport_of(const Group& group);

extern const Transport kWindows;  // memory that the ranks of one host share, read in place

// Copies a tensor of 3 dimensions into one of the same shape and type, by all workers.
void copy(cpu::Executor& executor, const Tensor& from, const Tensor& to);

}  // namespace perseid::internal::collective
