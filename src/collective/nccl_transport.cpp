// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transport of GPUs on several hosts where all ranks have NCCL: data goes from GPU to GPU.
//
// All exchanges of a rank are on one queue, the sending one of GpuRank, so that they have the same
// order in all executions of all plans. An execution is P - 1 steps of as many exchanges as a shard
// has chunks. In step s of an all-gather a rank sends its chunk to the rank s before it and
// receives one of the rank s after it, whose chunks its product wants in this order; in step s of a
// sum it sends a chunk of the shard of the rank s after it, in which order its product computes
// them, and receives one of its own shard from the rank s before it. Either way the two ranks of a
// transfer do it in the same exchange. So the first exchange that some rank has not queued has no
// kernel on any GPU that waits for it but those before it, which have ended: no two ranks wait for
// one another.
//
// Behind each exchange its words are written. Kernels wait for them as for those of copy engines,
// and leave as many multiprocessors free as the kernels of NCCL take. Sums have the order and the
// bits of one host.
#include "collective/device_memory.hpp"
#include "collective/gpu_rank.hpp"
#include "collective/transport.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {
namespace {

// Chunks without gaps, which NCCL takes. Where outer is 1 they are so in the shards themselves.
class PackedChunks {
 public:
  PackedChunks(const Shards& shards, const ShardChunks& chunks)
      : shards_(shards), chunks_(chunks) {}

  bool are_in_place() const { return shards_.outer == 1; }
  // Of memory that begins with chunk `first`: where a chunk lies, [outer, size, inner].
  Tensor view(std::byte* data, int64_t first, int64_t chunk) const {
    const int64_t size = end(chunk) - begin(chunk), line = shards_.outer * shards_.inner;
    return {.data = data + (begin(chunk) - begin(first)) * line * size_of(shards_.dtype),
            .dtype = shards_.dtype,
            .rank = 3,
            .shape = {shards_.outer, size, shards_.inner},
            .stride = {size * shards_.inner, shards_.inner, 1}};
  }
  // The same of memory that has all shards as they are.
  Tensor strided(std::byte* data, int64_t chunk) const {
    return shards_.view(data, begin(chunk), end(chunk));
  }
  int64_t begin(int64_t chunk) const { return chunks_.begin[static_cast<size_t>(chunk)]; }
  int64_t end(int64_t chunk) const { return begin(chunk + 1); }
  size_t bytes(int64_t chunk) const {
    return static_cast<size_t>(shards_.outer * (end(chunk) - begin(chunk)) * shards_.inner *
                               size_of(shards_.dtype));
  }

 private:
  const Shards& shards_;
  const ShardChunks& chunks_;
};

// What both have in common.
struct Exchanges {
  Exchanges(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : group(site.group),
        gpu(site.device.gpu),
        shards(of_shards),
        chunks(of_chunks),
        operation(site.operation) {}
  ~Exchanges() {
    if (rank != nullptr) rank->drain();
  }

  // Collective.
  Status make(size_t words, size_t bytes) {
    Status status = GpuRank::of(group, operation, gpu, &rank);
    if (status.ok()) status = memory.make(gpu, words, bytes);
    if (status.ok()) status = memory.set_words(group.first_epoch() - 1, nullptr);
    return group.exchange(operation, status, "", nullptr);
  }
  int64_t count_of(int32_t of) const { return chunks.first_of(of + 1) - chunks.first_of(of); }
  int32_t after(int32_t steps) const {
    return (group.rank() + group.size() + steps) % group.size();
  }
  cuda::CopyQueue& queue() const { return rank->sending(); }
  Status exchange(const NcclLinks::Part& sent, const NcclLinks::Part& received) {
    const NcclLinks::Part parts[] = {sent, received};
    // What is deferred comes before it.
    const Status status = queue().flush();
    return status.ok() ? rank->links()->enqueue(operation, parts, queue().stream()) : status;
  }

  Group& group;
  const std::shared_ptr<cuda::Gpu> gpu;
  const Shards shards;
  const ShardChunks chunks;
  const PackedChunks packing{shards, chunks};
  Operation operation;  // of the execution
  GpuRank* rank = nullptr;
  DeviceMemory memory;
};

class NcclGather final : public GatherTransport, private Exchanges {
 public:
  NcclGather(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : Exchanges(site, of_shards, of_chunks) {}
  Status make(const TransportSite&) {
    const size_t bytes = DeviceMemory::aligned(shards.bytes());
    packed_ = packing.are_in_place() ? 0 : bytes;
    return Exchanges::make(static_cast<size_t>(chunks.words()), packed_ + bytes);
  }

  std::byte* gathered() const override { return memory.data(); }
  const uint32_t* signals() const override { return memory.words(); }
  Status start(const Operation&, uint32_t) override { return {}; }
  perseid_arrival arrival(const Operation& of, uint32_t epoch) const override {
    return rank->arrival(of, signals(), epoch);
  }
  Status follow_last(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    return rank->follow_last(sending.stream);
  }
  // The own chunks, before the kernel: a copy within a GPU may need a multiprocessor.
  Status send(const Operation& of, const Sending& sending, std::span<const SentPart> parts,
              std::span<const SentPart>) override {
    const cuda::Gpu::Current current(*gpu);
    operation = of;
    Status status = rank->follow_last(sending.stream);
    if (status.ok())
      status = rank->begin(of, {.stream = sending.stream,
                                .chunks = &chunks,
                                .signals = signals(),
                                .epoch = sending.epoch,
                                .record = sending.record});
    for (const SentPart& part : parts) {
      if (status.ok() && part.from.data != part.to.data)
        status = cuda::copy_tensor(*gpu, part.from, part.to, sending.stream);
      if (status.ok() && !packing.are_in_place())
        status = cuda::copy_tensor(*gpu, part.from, packed(part.chunk), sending.stream);
      if (status.ok())
        status = cuda::set_signal(*gpu, memory.words() + part.chunk, sending.epoch, sending.stream);
    }
    return status.ok() ? queue().mark(sending.stream) : status;
  }
  Status launched(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    const int32_t own = group.rank();
    Status status = rank->announce();
    for (int32_t step = 1; step < group.size(); ++step) {
      const int32_t to = after(-step), from = after(step);
      const int64_t count = max(count_of(own), count_of(from));
      for (int64_t i = 0; status.ok() && i < count; ++i) status = bring(to, from, i, sending);
    }
    return status;
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    return rank->end(sending.stream);
  }

 private:
  Tensor packed(int64_t chunk) const { return packing.view(gathered() + packed_, 0, chunk); }
  // Chunk i of the own shard, and that of `from`, where they have so many.
  Status bring(int32_t to, int32_t from, int64_t i, const Sending& sending) {
    const int32_t own = group.rank();
    const int64_t mine = chunks.first_of(own) + i, its = chunks.first_of(from) + i;
    const bool sends = i < count_of(own), receives = i < count_of(from);
    NcclLinks::Part sent{.rank = to}, received{.rank = from};
    if (sends) sent.send = packed(mine).as<std::byte>(), sent.sent = packing.bytes(mine);
    if (receives)
      received.receive = packed(its).as<std::byte>(), received.received = packing.bytes(its);
    OverlapReport* const report = sends ? sending.report : nullptr;
    const Reported sending_chunk(report, OverlapReport::Kind::kCommunication, mine, own,
                                 queue().stream());
    Status status = exchange(sent, received);
    if (!receives || !status.ok()) return status;
    if (!packing.are_in_place())
      status =
          cuda::copy_tensor(*gpu, packed(its), packing.strided(gathered(), its), queue().stream());
    if (status.ok()) status = queue().write_word(memory.words() + its, sending.epoch);
    if (sending.report != nullptr) sending.report->arrived(its, from, queue().stream());
    return status;
  }

  size_t packed_ = 0;  // where packed chunks begin
};

// In memory of the GPU: words for the chunks of this rank's product, then one of each other rank
// for each chunk of the own shard; what this rank computes of all shards, the same packed, the
// parts of the own shard that the others have computed, the same packed.
class NcclReduce final : public ReduceTransport, private Exchanges {
 public:
  NcclReduce(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : Exchanges(site, of_shards, of_chunks),
        first_(chunks.first_of(group.rank())),
        own_(count_of(group.rank())) {}
  Status make(const TransportSite&) {
    const Tensor own =
        shards.view(nullptr, shards.begin_of(group.rank()), shards.begin_of(group.rank() + 1));
    part_ = DeviceMemory::aligned(static_cast<size_t>(own.elements() * size_of(own.dtype)));
    const size_t all = DeviceMemory::aligned(shards.bytes()),
                 parts = static_cast<size_t>(group.size()) * part_;
    packed_ = packing.are_in_place() ? 0 : all;
    inbox_ = packed_ + all;
    packed_inbox_ = packing.are_in_place() ? inbox_ : inbox_ + parts;
    return Exchanges::make(static_cast<size_t>(chunks.count() + arrivals()), packed_inbox_ + parts);
  }

  std::byte* partial() const override { return memory.data(); }
  uint32_t* signals() const override { return memory.words(); }
  Status start(const Operation& of, const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    operation = of;
    Status status = rank->follow_last(sending.stream);
    if (!status.ok()) return status;
    return rank->begin(of, {.stream = sending.stream,
                            .epoch = sending.epoch,
                            .parts = {.words = arrived(),
                                      .count = arrivals(),
                                      .ranks = group.size() - 1,
                                      .rank = group.rank() + 1,
                                      .first_chunk = first_,
                                      .chunks = own_},
                            .local = signals(),
                            .local_count = chunks.count(),
                            .record = sending.record});
  }
  Status send(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    Status status = rank->announce();
    for (int32_t step = 1; step < group.size(); ++step) {
      const int32_t to = after(step), from = after(-step);
      const int64_t count = max(count_of(to), own_);
      for (int64_t i = 0; status.ok() && i < count; ++i) status = bring(to, from, i, sending);
    }
    return status;
  }
  Status part(const Operation&, const Sending&, int32_t of, int32_t piece, Tensor* part) override {
    *part = of == group.rank()
                ? shards.view(partial(), shards.begin_of(piece), shards.begin_of(piece + 1))
                : inbox(of);
    return {};
  }
  perseid_arrival arrival(const Operation& of, uint32_t epoch) const override {
    return rank->arrival(of, arrived(), epoch);
  }
  int64_t arrivals() const override { return (group.size() - 1) * own_; }
  RankParts parts() const override {
    const Tensor first = inbox(0);
    return {.data = first.as<const float>(),
            .of_rank = static_cast<int64_t>(part_ / sizeof(float)),
            .batch = first.stride[0],
            .row = first.stride[1],
            .ranks = group.size(),
            .own = group.rank()};
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    return rank->end(sending.stream);
  }

 private:
  uint32_t* arrived() const { return memory.words() + chunks.count(); }
  // What `source` has computed of the own shard: [outer, size, inner].
  Tensor inbox(int32_t source) const {
    const int64_t size = shards.size(group.rank());
    return {.data = memory.data() + inbox_ + static_cast<size_t>(source) * part_,
            .dtype = shards.dtype,
            .rank = 3,
            .shape = {shards.outer, size, shards.inner},
            .stride = {size * shards.inner, shards.inner, 1}};
  }
  // Chunk i of the shard of `to`, as soon as it is computed, and what `from` has computed of that
  // of the own one, where they have so many.
  Status bring(int32_t to, int32_t from, int64_t i, const Sending& sending) {
    const int64_t mine = chunks.first_of(to) + i, its = first_ + i;
    const bool sends = i < count_of(to), receives = i < own_;
    NcclLinks::Part sent{.rank = to}, received{.rank = from};
    Status status;
    if (sends) {
      const Tensor packed = packing.view(memory.data() + packed_, 0, mine);
      status = queue().wait_word(signals() + mine, sending.epoch);
      if (status.ok() && !packing.are_in_place())
        status =
            cuda::copy_tensor(*gpu, packing.strided(partial(), mine), packed, queue().stream());
      sent.send = packed.as<std::byte>();
      sent.sent = packing.bytes(mine);
    }
    std::byte* const its_inbox = memory.data() + packed_inbox_ + static_cast<size_t>(from) * part_;
    const Tensor packed = packing.view(its_inbox, first_, receives ? its : first_);
    if (receives) received.receive = packed.as<std::byte>(), received.received = packing.bytes(its);
    // The chunk is computed.
    OverlapReport* const report = sends ? sending.report : nullptr;
    const Reported sending_chunk(report, OverlapReport::Kind::kCommunication, mine, to,
                                 queue().stream());
    if (status.ok()) status = exchange(sent, received);
    if (!receives || !status.ok()) return status;
    if (!packing.are_in_place()) {
      Tensor to_inbox = inbox(from);
      to_inbox.data = to_inbox.as<std::byte>() + (packing.begin(its) - packing.begin(first_)) *
                                                     to_inbox.stride[1] * size_of(shards.dtype);
      to_inbox.shape[1] = packed.shape[1];
      status = cuda::copy_tensor(*gpu, packed, to_inbox, queue().stream());
    }
    // Next to those of the other ranks, from the one after this one.
    const int32_t place = (from - group.rank() - 1 + group.size()) % group.size();
    if (status.ok())
      status = queue().write_word(arrived() + i * (group.size() - 1) + place, sending.epoch);
    if (sending.report != nullptr && i + 1 == own_)
      sending.report->arrived(first_, from, queue().stream());
    return status;
  }

  const int64_t first_, own_;                                    // chunks of the own shard
  size_t packed_ = 0, inbox_ = 0, packed_inbox_ = 0, part_ = 0;  // where they begin; of one part
};

}  // namespace

const Transport kNccl = {.name = "cuda:nccl",
                         .how = "shards are sent by NCCL",
                         .make_gather = make_transport<NcclGather>,
                         .make_reduce = make_transport<NcclReduce>,
                         .make_reduce_in_place = nullptr};

}  // namespace perseid::internal::collective
