// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transport of GPUs on several hosts where all ranks have NCCL: data goes from GPU to GPU.
// Between GPUs of one host copy engines push it, as in copy_engines.cpp. What crosses goes by NCCL:
//
// All exchanges of a rank are on one queue of GpuRank, so that they have the same order in all
// executions of all plans. An execution is P - 1 steps of as many exchanges as a shard has chunks.
// In step s of an all-gather a rank sends its chunk to the rank s before it and receives one of the
// rank s after it, whose chunks its product wants in this order; in step s of a sum it sends a
// chunk of the shard of the rank s after it, in which order its product computes them, and receives
// one of its own shard from the rank s before it. Either way the two ranks of a transfer do it in
// the same exchange. So the first exchange that some rank has not queued has no kernel on any GPU
// that waits for it but those before it, which have ended: no two ranks wait for one another.
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
class Exchanges {
 protected:
  Exchanges(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : group(site.group),
        gpu(site.device.gpu),
        own(group.rank()),
        size(group.size()),
        shards(of_shards),
        chunks(of_chunks),
        operation(site.operation) {}
  ~Exchanges() {
    if (rank != nullptr) rank->drain();
  }

  // Words, then data, of each rank. Ranks of one host map that of one another.
  struct Bytes {
    size_t words, data;
  };
  // Collective.
  Status make(std::vector<Bytes> of_ranks) {
    bytes = std::move(of_ranks);
    Status status = GpuRank::of(group, operation, gpu, &rank);
    if (status.ok()) status = make_memory();
    return group.exchange(operation, status, "", nullptr);
  }
  uint32_t* words_of(int32_t of) const {
    return windows != nullptr ? windows->words(rank->links()->on_host(of)) : memory.words();
  }
  std::byte* data_of(int32_t of) const {
    return reinterpret_cast<std::byte*>(words_of(of)) + begin_of_data(of);
  }
  bool on_host(int32_t of) const { return rank->links()->on_host(of) >= 0; }
  int64_t count_of(int32_t of) const { return chunks.first_of(of + 1) - chunks.first_of(of); }
  int32_t after(int32_t steps) const { return (own + size + steps) % size; }
  // Of what crosses.
  cuda::CopyQueue& queue() const { return rank->crossing(); }
  Status exchange(const NcclLinks::Part& sent, const NcclLinks::Part& received) {
    const NcclLinks::Part parts[] = {sent, received};
    return rank->links()->enqueue(operation, parts, queue().stream());
  }

  Group& group;
  const std::shared_ptr<cuda::Gpu> gpu;
  const int32_t own, size;
  const Shards shards;
  const ShardChunks chunks;
  const PackedChunks packing{shards, chunks};
  Operation operation;  // of the execution
  GpuRank* rank = nullptr;

 private:
  size_t begin_of_data(int32_t of) const {
    return DeviceMemory::aligned(bytes[static_cast<size_t>(of)].words * sizeof(uint32_t));
  }
  Status make_memory() {
    const Bytes& mine = bytes[static_cast<size_t>(own)];
    const uint32_t before = group.first_epoch() - 1;
    Group* const host = rank->links()->host();
    if (host == nullptr) {
      const Status status = memory.make(gpu, mine.words, mine.data);
      return status.ok() ? memory.set_words(before, nullptr) : status;
    }
    std::vector<size_t> all;
    for (int32_t of = 0; of < size; ++of)
      if (on_host(of)) all.push_back(begin_of_data(of) + bytes[static_cast<size_t>(of)].data + 1);
    return GpuWindows::make(*host, operation, gpu, all, mine.words, before, &windows);
  }

  std::vector<Bytes> bytes;
  std::unique_ptr<GpuWindows> windows;
  DeviceMemory memory;  // instead, of a rank alone on its host
};

class NcclGather final : public GatherTransport, private Exchanges {
 public:
  NcclGather(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : Exchanges(site, of_shards, of_chunks) {}
  Status make(const TransportSite&) {
    const size_t all = DeviceMemory::aligned(shards.bytes());
    packed_ = packing.are_in_place() ? 0 : all;
    const Bytes each{static_cast<size_t>(chunks.words()), packed_ + all};
    return Exchanges::make(std::vector<Bytes>(static_cast<size_t>(size), each));
  }

  std::byte* gathered() const override { return data_of(own); }
  const uint32_t* signals() const override { return words_of(own); }
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
        status = cuda::set_signal(*gpu, words_of(own) + part.chunk, sending.epoch, sending.stream);
    }
    return status.ok() ? rank->sending().mark(sending.stream) : status;
  }
  Status launched(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    Status status = rank->announce();
    for (int32_t step = 1; step < size; ++step) {
      const int32_t to = after(-step), from = after(step);
      if (status.ok() && on_host(to)) status = push(to, sending);
      const int64_t count =
          max(on_host(to) ? 0 : count_of(own), on_host(from) ? 0 : count_of(from));
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
  // The own chunks, to a rank of this host.
  Status push(int32_t to, const Sending& sending) {
    cuda::CopyQueue& to_host = rank->sending();
    Status status = rank->await(to);
    for (int64_t chunk = chunks.first_of(own); chunk < chunks.first_of(own + 1); ++chunk) {
      const Reported pushing(sending.report, OverlapReport::Kind::kCommunication, chunk, own,
                             to_host.stream());
      if (status.ok())
        status =
            to_host.copy(packing.strided(gathered(), chunk), packing.strided(data_of(to), chunk));
      if (status.ok()) status = to_host.write_word(words_of(to) + chunk, sending.epoch);
    }
    return status;
  }
  // Chunk i of the own shard, and that of `from`, where they cross and have so many.
  Status bring(int32_t to, int32_t from, int64_t i, const Sending& sending) {
    const int64_t mine = chunks.first_of(own) + i, its = chunks.first_of(from) + i;
    const bool sends = !on_host(to) && i < count_of(own),
               receives = !on_host(from) && i < count_of(from);
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
    if (status.ok()) status = queue().write_word(words_of(own) + its, sending.epoch);
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
        first_(chunks.first_of(own)),
        count_(count_of(own)) {}
  Status make(const TransportSite&) {
    std::vector<Bytes> all;
    for (int32_t of = 0; of < size; ++of)
      all.push_back(
          {static_cast<size_t>(chunks.count() + (size - 1) * count_of(of)), layout_of(of).end});
    return Exchanges::make(std::move(all));
  }

  std::byte* partial() const override { return data_of(own); }
  uint32_t* signals() const override { return words_of(own); }
  Status start(const Operation& of, const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    operation = of;
    Status status = rank->follow_last(sending.stream);
    if (!status.ok()) return status;
    return rank->begin(of, {.stream = sending.stream,
                            .epoch = sending.epoch,
                            .parts = {.words = arrived(),
                                      .count = arrivals(),
                                      .ranks = size - 1,
                                      .rank = own + 1,
                                      .first_chunk = first_,
                                      .chunks = count_},
                            .local = signals(),
                            .local_count = chunks.count(),
                            .record = sending.record});
  }
  Status send(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    Status status = rank->announce();
    for (int32_t step = 1; step < size; ++step) {
      const int32_t to = after(step), from = after(-step);
      if (status.ok() && on_host(to)) status = push(to, sending);
      const int64_t count = max(on_host(to) ? 0 : count_of(to), on_host(from) ? 0 : count_);
      for (int64_t i = 0; status.ok() && i < count; ++i) status = bring(to, from, i, sending);
    }
    return status;
  }
  Status part(const Operation&, const Sending&, int32_t of, int32_t piece, Tensor* part) override {
    *part = of == own ? shards.view(partial(), shards.begin_of(piece), shards.begin_of(piece + 1))
                      : inbox(own, of);
    return {};
  }
  perseid_arrival arrival(const Operation& of, uint32_t epoch) const override {
    return rank->arrival(of, arrived(), epoch);
  }
  int64_t arrivals() const override { return (size - 1) * count_; }
  RankParts parts(const Operation&, const Sending&) override {
    const Tensor first = inbox(own, 0);
    return {.data = first.as<const float>(),
            .of_rank = static_cast<int64_t>(layout_of(own).part / sizeof(float)),
            .batch = first.stride[0],
            .row = first.stride[1],
            .ranks = size,
            .own = own};
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    return rank->end(sending.stream);
  }

 private:
  // Of the data of a rank, where parts begin.
  struct Layout {
    size_t packed, inbox, packed_inbox, end;
    size_t part;  // the bytes of one
  };
  Layout layout_of(int32_t of) const {
    const size_t part = DeviceMemory::aligned(static_cast<size_t>(
                     shards.outer * shards.size(of) * shards.inner * size_of(shards.dtype))),
                 parts = static_cast<size_t>(size) * part,
                 all = DeviceMemory::aligned(shards.bytes());
    if (packing.are_in_place()) return {0, all, all, all + parts, part};
    return {all, 2 * all, 2 * all + parts, 2 * all + 2 * parts, part};
  }
  uint32_t* arrived() const { return words_of(own) + chunks.count(); }
  // At `at`, this rank or one of this host: the word for chunk i of its shard from `from`, next to
  // those of the other ranks, which begin with the one after it.
  uint32_t* word(int32_t at, int64_t i, int32_t from) const {
    const int32_t place = (from - at - 1 + size) % size;
    return words_of(at) + chunks.count() + i * (size - 1) + place;
  }
  // What `source` has computed of the shard there: [outer, size, inner].
  Tensor inbox(int32_t at, int32_t source) const {
    const Layout layout = layout_of(at);
    const int64_t rows = shards.size(at);
    return {.data = data_of(at) + layout.inbox + static_cast<size_t>(source) * layout.part,
            .dtype = shards.dtype,
            .rank = 3,
            .shape = {shards.outer, rows, shards.inner},
            .stride = {rows * shards.inner, shards.inner, 1}};
  }
  Tensor inbox(int32_t at, int32_t source, int64_t chunk) const {
    Tensor of_chunk = inbox(at, source);
    of_chunk.data = of_chunk.as<std::byte>() + (packing.begin(chunk) - shards.begin_of(at)) *
                                                   of_chunk.stride[1] * size_of(shards.dtype);
    of_chunk.shape[1] = packing.end(chunk) - packing.begin(chunk);
    return of_chunk;
  }
  // The chunks of the shard of a rank of this host, as soon as they are computed.
  Status push(int32_t to, const Sending& sending) {
    cuda::CopyQueue& to_host = rank->sending();
    Status status = rank->await(to);
    for (int64_t i = 0; status.ok() && i < count_of(to); ++i) {
      const int64_t chunk = chunks.first_of(to) + i;
      status = to_host.wait_word(signals() + chunk, sending.epoch);
      const Reported pushing(sending.report, OverlapReport::Kind::kCommunication, chunk, to,
                             to_host.stream());
      if (status.ok())
        status = to_host.copy(packing.strided(partial(), chunk), inbox(to, own, chunk));
      if (status.ok()) status = to_host.write_word(word(to, i, own), sending.epoch);
    }
    return status;
  }
  // Chunk i of the shard of `to`, as soon as it is computed, and what `from` has computed of that
  // of the own one, where they cross and have so many.
  Status bring(int32_t to, int32_t from, int64_t i, const Sending& sending) {
    const int64_t mine = chunks.first_of(to) + i, its = first_ + i;
    const bool sends = !on_host(to) && i < count_of(to), receives = !on_host(from) && i < count_;
    const Layout layout = layout_of(own);
    NcclLinks::Part sent{.rank = to}, received{.rank = from};
    Status status;
    if (sends) {
      const Tensor packed = packing.view(data_of(own) + layout.packed, 0, mine);
      status = queue().wait_word(signals() + mine, sending.epoch);
      if (status.ok() && !packing.are_in_place())
        status =
            cuda::copy_tensor(*gpu, packing.strided(partial(), mine), packed, queue().stream());
      sent.send = packed.as<std::byte>();
      sent.sent = packing.bytes(mine);
    }
    Tensor packed;
    if (receives) {
      packed =
          packing.view(data_of(own) + layout.packed_inbox + static_cast<size_t>(from) * layout.part,
                       first_, its);
      received.receive = packed.as<std::byte>();
      received.received = packing.bytes(its);
    }
    // The chunk is computed.
    OverlapReport* const report = sends ? sending.report : nullptr;
    const Reported sending_chunk(report, OverlapReport::Kind::kCommunication, mine, to,
                                 queue().stream());
    if (status.ok()) status = exchange(sent, received);
    if (!receives || !status.ok()) return status;
    if (!packing.are_in_place())
      status = cuda::copy_tensor(*gpu, packed, inbox(own, from, its), queue().stream());
    if (status.ok()) status = queue().write_word(word(own, i, from), sending.epoch);
    if (sending.report != nullptr && i + 1 == count_)
      sending.report->arrived(first_, from, queue().stream());
    return status;
  }

  const int64_t first_, count_;  // chunks of the own shard
};

}  // namespace

const Transport kNccl = {.name = "cuda:nccl",
                         .how = "shards are sent by NCCL, and pushed within a host",
                         .make_gather = make_transport<NcclGather>,
                         .make_reduce = make_transport<NcclReduce>,
                         .make_reduce_in_place = nullptr};

}  // namespace perseid::internal::collective
