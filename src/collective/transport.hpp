// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How the data of one plan goes from rank to rank while the plan's kernel runs. A transport moves
// bytes and sets signals; kernels know nothing but signals, and plans nothing of transports but
// what is here. Each is one file.
//
// An execution has an epoch, which is the same on all ranks. All ranks call the same functions in
// the same order. Transports of GPUs enqueue, on the execution's stream or beside it.
#pragma once

#include <memory>
#include <span>

#include "collective/group.hpp"
#include "collective/overlap_report.hpp"
#include "collective/shards.hpp"
#include "cpu/executor.hpp"
#include "dispatch/device.hpp"
#include "math/rank_parts.hpp"

namespace perseid::internal::collective {

// A struct of the C interface, zeroed, with its size.
template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}

// Where a transport is made.
struct TransportSite {
  Group& group;
  const Operation& operation;
  const dispatch::Device& device;
};

// One execution.
struct Sending {
  uint32_t epoch;
  void* stream;
  perseid_wait_record* record;      // the caller's, or null
  OverlapReport* report = nullptr;  // where somebody asks
  int32_t operand = 0;              // of the record
  // Of partial sums on a GPU: the product's kernel stores them in the memory of the other ranks.
  bool stores = false;
};

// Waits until a chunk of `rank` has arrived.
Status wait_for_chunk(Group& group, const Operation& operation, const Sending& sending,
                      int32_t rank, int64_t chunk, const uint32_t* signal);
// Why the group has failed, while this rank waited for a chunk; -1: for no chunk. The sentence and
// the caller's record name it.
Status missing_chunk(const Group& group, const Operation& operation, const Sending& sending,
                     int64_t chunk, uint32_t seen);
// `status` of a wait for no chunk: a failure goes into the caller's record, where nothing is yet.
Status recorded(const Group& group, const Sending& sending, Status status);

// What another rank has not brought yet, and the signal that says so. rank -1: all is there.
struct MissingPart {
  int32_t rank = -1;
  int64_t chunk = -1;
  const uint32_t* signal = nullptr;
};
// The first chunk that has not arrived, in the order of visits by rank `own`, of a rank that has no
// bit in `ranks`. `readers`: where given, of each chunk a bit for each rank that needs it.
MissingPart find_missing(const ShardChunks& chunks, int32_t own, const uint32_t* signals,
                         uint32_t epoch, uint64_t ranks, std::span<const uint64_t> readers = {});

// What a rank sends of one of its chunks: `from`, of 3 dimensions, goes to `to`, which lies in the
// gathered memory of this rank and likewise in that of the others. Nothing is copied where they are
// the same.
struct SentPart {
  int64_t chunk;
  Tensor from, to;
  uint64_t readers = ~uint64_t{0};  // a bit for each rank that reads it
  int64_t group = 0;                // of heads

  bool has_signal_of(const SentPart& other) const {
    return chunk == other.chunk && group == other.group;
  }
};

// The chunks of the own shard, [outer, size, inner] of a tensor of one piece for each rank.
void cut_shard(const Shards& shards, const ShardChunks& chunks, int32_t rank, std::byte* gathered,
               const Tensor& shard, std::vector<SentPart>* parts);

// Brings the shards of all ranks together on every rank.
class GatherTransport {
 public:
  virtual ~GatherTransport() = default;
  // All shards, as Shards says. What a rank has produced in its own part need not be copied.
  virtual std::byte* gathered() const = 0;
  // One for each chunk: it reaches the epoch when the chunk may be read.
  virtual const uint32_t* signals() const = 0;
  // The own part may be written: on the CPU when this returns, on a GPU in the order of the stream.
  virtual Status start(const Operation& operation, uint32_t epoch) = 0;
  // On a GPU before the own part is written in place: the stream follows the operation before.
  virtual Status follow_last(const Sending&) { return {}; }
  // All chunks of this rank, by groups of heads, then in any order; the parts of a signal are
  // neighbours. `for_next`: on a GPU what the rank after this one gets instead, where not empty.
  virtual Status send(const Operation& operation, const Sending& sending,
                      std::span<const SentPart> parts, std::span<const SentPart> for_next = {}) = 0;
  // After the kernel was launched that waits for the chunks of the others, or nothing was: what
  // send() has not enqueued. The parts of send() are still there.
  virtual Status launched(const Sending&) { return {}; }
  // Before send(), where chunks are not [outer, size, inner] as Shards says: the parts of those of
  // the other ranks that this one reads, by chunks; `from` is empty.
  virtual void expect(std::span<const SentPart>) {}
  // How a product waits for the chunks.
  virtual perseid_arrival arrival(const Operation& operation, uint32_t epoch) const = 0;
  // This rank has read the chunks.
  virtual Status finish(const Sending& sending) = 0;
};

// Brings what every rank has computed of a rank's shard to that rank.
class ReduceTransport {
 public:
  virtual ~ReduceTransport() = default;
  // Where this rank writes all shards, as Shards says.
  virtual std::byte* partial() const = 0;
  // One for each chunk: whoever writes the partial sets it to the epoch, and the chunk leaves.
  virtual uint32_t* signals() const = 0;
  // Before the partial is written. On the CPU it returns when all ranks have read the epoch before.
  virtual Status start(const Operation& operation, const Sending& sending) = 0;
  // After the product that writes the partial was called: chunks leave as their signals are set.
  virtual Status send(const Sending& sending) = 0;
  // What `rank` has computed of a piece, on a GPU one of this rank: [outer, size(piece), inner].
  // The CPU waits for it; on a GPU arrival() says how to wait for the parts of all ranks.
  virtual Status part(const Operation& operation, const Sending& sending, int32_t rank,
                      int32_t piece, Tensor* part) = 0;
  // On the CPU: of what part() waits for.
  virtual MissingPart missing(int32_t, int32_t, uint32_t) const { return {}; }
  virtual perseid_arrival arrival(const Operation& operation, uint32_t epoch) const = 0;
  virtual int64_t arrivals() const = 0;  // how many signals that has
  // Of sums in place, between start() and send(), where ranks share no memory: what `rank` reads of
  // the own partial, [i, j, k], goes to byte `at` of what part() gives there, without gaps. On a
  // GPU in the order of the stream.
  virtual Status give(int32_t, const Tensor&, size_t) { return {}; }
  // Likewise what `rank` gives: rows that lie in its partial as these do in the own one. In the
  // order in which it gives them.
  virtual void take(int32_t, const Tensor&, size_t) {}
  // On a GPU, of sums in float32: the parts for a product that adds them. The arrival's signals are
  // those of the first chunk, one for each other rank, then those of the next chunk. Where the
  // kernel stores, with targets that are there until the next call, without their strides.
  virtual RankParts parts(const Operation&, const Sending&) { return {}; }
  // This rank has read all parts.
  virtual Status finish(const Sending& sending) = 0;
};

// Collective.
struct Transport {
  const char* name;
  const char* how;  // it brings shards together
  Status (*make_gather)(const TransportSite& site, const Shards& shards, const ShardChunks& chunks,
                        std::unique_ptr<GatherTransport>* transport);
  Status (*make_reduce)(const TransportSite& site, const Shards& shards, const ShardChunks& chunks,
                        std::unique_ptr<ReduceTransport>* transport);
  // Of one piece: partial sums stay where they were written, so that each rank reads of them what
  // it needs, at most `rows` of the extent.
  Status (*make_reduce_in_place)(const TransportSite& site, const Shards& shards, int64_t rows,
                                 std::unique_ptr<ReduceTransport>* transport);
};

// Makes a transport of the class `Made`, for the functions of Transport. Collective. `Cut`:
// ShardChunks, or the most rows.
template <class Made, class Base, class Cut>
Status make_transport(const TransportSite& site, const Shards& shards, Cut cut,
                      std::unique_ptr<Base>* transport) {
  auto made = std::make_unique<Made>(site, shards, cut);
  Status status = made->make(site);
  if (status.ok()) *transport = std::move(made);
  return status;
}

const Transport& transport_of(const dispatch::Device& device, const Group& group);

extern const Transport kWindows;      // memory that the ranks of one host share, read in place
extern const Transport kSockets;      // memory of ranks on several hosts
extern const Transport kMpi;          // the same, where MPI carries the data
extern const Transport kCopyEngines;  // copies between GPUs that map one another's memory
extern const Transport kHostStaging;  // GPUs on several hosts
extern const Transport kNccl;         // the same, where all ranks have NCCL

// A tensor of 3 dimensions, of which one at most has gaps, as rows of bytes in the order of memory.
ByteRows rows_of(const Tensor& part);

// A tensor like `rows`, of 3 dimensions, that keep their order in memory, without gaps.
Tensor without_gaps(Tensor rows, std::byte* data);

// As kernels of GPUs take it.
Arrival as_arrival(const perseid_arrival& arrival);

// Copies a tensor of 3 dimensions into one of the same shape and type, by all workers.
void copy(cpu::Executor& executor, const Tensor& from, const Tensor& to);

}  // namespace perseid::internal::collective
