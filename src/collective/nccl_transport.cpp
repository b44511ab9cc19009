// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transport of GPUs on several hosts where all ranks have NCCL: data goes from GPU to GPU.
// Between GPUs of one host copy engines push it, as in copy_engines.cpp. What crosses goes by NCCL:
//
// An execution is P - 1 steps of as many exchanges as a shard has chunks that the other rank reads,
// for each group of heads. In step s of an all-gather a rank sends its chunk to the rank s before
// it and receives one of the rank s after it, whose chunks its product wants in this order; in step
// s of a sum it sends a chunk of the shard of the rank s after it, in which order its product
// computes them, and receives one of its own shard from the rank s before it.
//
// Behind each exchange its words are written. Kernels wait for them as for those of copy engines,
// and leave as many multiprocessors free as the kernels of NCCL take. Sums have the order and the
// bits of one host.
#include <algorithm>

#include "collective/nccl_exchanges.hpp"
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

 private:
  const Shards& shards_;
  const ShardChunks& chunks_;
};

class NcclGather final : public GatherTransport, private NcclExchanges {
 public:
  NcclGather(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : NcclExchanges(site), shards_(of_shards), chunks_(of_chunks) {
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk)
      owners_.push_back(chunks_.owner(chunk));
    came_.resize(owners_.size());
  }
  ~NcclGather() override { drain(); }
  Status make(const TransportSite&) {
    const size_t all = DeviceMemory::aligned(shards_.bytes());
    packed_ = packing_.are_in_place() ? 0 : all;
    const Bytes each{static_cast<size_t>(chunks_.words()), packed_ + all};
    Status status = NcclExchanges::make(std::vector<Bytes>(static_cast<size_t>(size), each));
    for (int64_t chunk = 0; status.ok() && chunk < chunks_.count(); ++chunk)
      if (owner(chunk) != own)
        of_shards_.push_back({chunk, {}, packing_.strided(gathered(), chunk)});
    expected_ = of_shards_;
    return status;
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
  void expect(std::span<const SentPart> parts) override { expected_ = parts; }
  // The own chunks, before the kernel: a copy within a GPU may need a multiprocessor.
  Status send(const Operation& of, const Sending& sending, std::span<const SentPart> parts,
              std::span<const SentPart>) override {
    const cuda::Gpu::Current current(*gpu);
    operation = of;
    parts_ = parts;
    Status status = rank->follow_last(sending.stream);
    if (status.ok())
      status = rank->begin(of, {.stream = sending.stream,
                                .chunks = &chunks_,
                                .signals = signals(),
                                .epoch = sending.epoch,
                                .record = sending.record});
    for (size_t i = 0; status.ok() && i < parts.size(); ++i) {
      const SentPart& part = parts[i];
      if (part.from.data != part.to.data)
        status = cuda::copy_tensor(*gpu, part.from, part.to, sending.stream);
      if (status.ok() && !packing_.are_in_place())
        status = cuda::copy_tensor(*gpu, part.from, packed(part.chunk), sending.stream);
      if (!status.ok() || (i + 1 < parts.size() && parts[i + 1].has_signal_of(part))) continue;
      status = cuda::set_signal(*gpu, word(own, part), sending.epoch, sending.stream);
    }
    return status.ok() ? rank->sending().mark(sending.stream) : status;
  }
  Status launched(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    Status status = rank->announce();
    for (int64_t heads = 0; heads < chunks_.groups; ++heads)
      for (int32_t step = 1; status.ok() && step < size; ++step) {
        const int32_t to = after(-step), from = after(step);
        if (on_host(to)) status = push(to, heads, sending);
        collect(parts_, own, on_host(to) ? -1 : to, heads, &mine_);
        collect(expected_, from, on_host(from) ? -1 : own, heads, &its_);
        for (size_t i = 0; status.ok() && i < max(mine_.size(), its_.size()); ++i)
          status = bring(to, i < mine_.size() ? mine_[i] : Parts(), from,
                         i < its_.size() ? its_[i] : Parts(), sending);
        if (status.ok() && !on_host(from)) status = skip(from, heads, sending);
      }
    return status;
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    return rank->end(sending.stream);
  }

 private:
  using Parts = std::span<const SentPart>;

  int32_t owner(int64_t chunk) const { return owners_[static_cast<size_t>(chunk)]; }
  uint32_t* word(int32_t at, const SentPart& part) const {
    return words_of(at) + part.group * chunks_.count() + part.chunk;
  }
  Tensor packed(int64_t chunk) const { return packing_.view(gathered() + packed_, 0, chunk); }
  // What is sent and received of a part, where there are no gaps between chunks.
  Tensor message(const SentPart& part) const {
    return packing_.are_in_place() ? part.to : packed(part.chunk);
  }
  // The parts of each signal of a group of heads that a rank has and `reader` reads; -1: nobody.
  void collect(Parts parts, int32_t of, int32_t reader, int64_t heads,
               std::vector<Parts>* signals) const {
    signals->clear();
    for (size_t i = 0, next = 0; reader >= 0 && i < parts.size(); i = next) {
      for (next = i + 1; next < parts.size() && parts[next].has_signal_of(parts[i]);) ++next;
      const SentPart& first = parts[i];
      if (owner(first.chunk) == of && first.group == heads && (first.readers >> reader & 1) != 0)
        signals->push_back(parts.subspan(i, next - i));
    }
  }
  // The own chunks, to a rank of this host. A word is written, too, where it reads none.
  Status push(int32_t to, int64_t heads, const Sending& sending) {
    cuda::CopyQueue& to_host = rank->sending();
    Status status = heads == 0 ? rank->await(to) : Status();
    for (size_t i = 0; status.ok() && i < parts_.size(); ++i) {
      const SentPart& part = parts_[i];
      if (part.group != heads) continue;
      const Reported pushing(sending.report, OverlapReport::Kind::kCommunication, part.chunk, own,
                             to_host.stream());
      Tensor there = part.to;
      there.data = data_of(to) + (part.to.as<std::byte>() - gathered());
      if ((part.readers >> to & 1) != 0) status = to_host.copy(part.to, there);
      if (status.ok() && (i + 1 == parts_.size() || !parts_[i + 1].has_signal_of(part)))
        status = to_host.write_word(word(to, part), sending.epoch);
    }
    return status;
  }
  // What crosses of a chunk of the own shard, and of one of `from`.
  Status bring(int32_t to, Parts mine, int32_t from, Parts its, const Sending& sending) {
    for (const SentPart& part : mine) to_send(to, message(part));
    for (const SentPart& part : its) to_receive(from, message(part));
    const Reported sending_chunk(mine.empty() ? nullptr : sending.report,
                                 OverlapReport::Kind::kCommunication,
                                 mine.empty() ? 0 : mine.front().chunk, own, queue().stream());
    Status status = exchange();
    for (const SentPart& part : its)
      if (status.ok() && !packing_.are_in_place())
        status = cuda::copy_tensor(*gpu, packed(part.chunk), part.to, queue().stream());
    if (!status.ok() || its.empty()) return status;
    const SentPart& first = its.front();
    status = queue().write_word(word(own, first), sending.epoch);
    if (sending.report != nullptr && first.group + 1 == chunks_.groups)
      sending.report->arrived(first.chunk, from, queue().stream());
    return status;
  }
  // The words of chunks that this rank does not read.
  Status skip(int32_t from, int64_t heads, const Sending& sending) {
    std::fill(came_.begin(), came_.end(), false);
    for (const Parts& parts : its_) came_[static_cast<size_t>(parts.front().chunk)] = true;
    Status status;
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk)
      if (status.ok() && owner(chunk) == from && !came_[static_cast<size_t>(chunk)])
        status =
            queue().defer_write(words_of(own) + heads * chunks_.count() + chunk, sending.epoch);
    return status.ok() ? queue().flush() : status;
  }

  const Shards shards_;
  const ShardChunks chunks_;
  const PackedChunks packing_{shards_, chunks_};
  std::vector<int32_t> owners_;      // of chunks
  std::vector<SentPart> of_shards_;  // chunks of the others, of Shards
  size_t packed_ = 0;                // where packed chunks begin
  // Of the execution.
  Parts parts_, expected_;
  std::vector<Parts> mine_, its_;  // of a step, by signals
  std::vector<bool> came_;         // chunks
};

// In memory of the GPU: words for the chunks of this rank's product, then one of each other rank
// for each chunk of the own shard; what this rank computes of all shards, the same packed, the
// parts of the own shard that the others have computed, the same packed.
class NcclReduce final : public ReduceTransport, private NcclExchanges {
 public:
  NcclReduce(const TransportSite& site, const Shards& of_shards, const ShardChunks& of_chunks)
      : NcclExchanges(site),
        shards_(of_shards),
        chunks_(of_chunks),
        first_(chunks_.first_of(own)),
        count_(count_of(own)) {}
  ~NcclReduce() override { drain(); }
  Status make(const TransportSite&) {
    std::vector<Bytes> all;
    for (int32_t of = 0; of < size; ++of)
      all.push_back(
          {static_cast<size_t>(chunks_.count() + (size - 1) * count_of(of)), layout_of(of).end});
    return NcclExchanges::make(std::move(all));
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
                            .local_count = chunks_.count(),
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
    *part = of == own
                ? shards_.view(partial(), shards_.begin_of(piece), shards_.begin_of(piece + 1))
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
  int64_t count_of(int32_t of) const { return chunks_.first_of(of + 1) - chunks_.first_of(of); }
  // Of the data of a rank, where parts begin.
  struct Layout {
    size_t packed, inbox, packed_inbox, end;
    size_t part;  // the bytes of one
  };
  Layout layout_of(int32_t of) const {
    const size_t part = DeviceMemory::aligned(static_cast<size_t>(
                     shards_.outer * shards_.size(of) * shards_.inner * size_of(shards_.dtype))),
                 parts = static_cast<size_t>(size) * part,
                 all = DeviceMemory::aligned(shards_.bytes());
    if (packing_.are_in_place()) return {0, all, all, all + parts, part};
    return {all, 2 * all, 2 * all + parts, 2 * all + 2 * parts, part};
  }
  uint32_t* arrived() const { return words_of(own) + chunks_.count(); }
  // At `at`, this rank or one of this host: the word for chunk i of its shard from `from`, next to
  // those of the other ranks, which begin with the one after it.
  uint32_t* word(int32_t at, int64_t i, int32_t from) const {
    const int32_t place = (from - at - 1 + size) % size;
    return words_of(at) + chunks_.count() + i * (size - 1) + place;
  }
  // What `source` has computed of the shard there: [outer, size, inner].
  Tensor inbox(int32_t at, int32_t source) const {
    const Layout layout = layout_of(at);
    const int64_t rows = shards_.size(at);
    return {.data = data_of(at) + layout.inbox + static_cast<size_t>(source) * layout.part,
            .dtype = shards_.dtype,
            .rank = 3,
            .shape = {shards_.outer, rows, shards_.inner},
            .stride = {rows * shards_.inner, shards_.inner, 1}};
  }
  Tensor inbox(int32_t at, int32_t source, int64_t chunk) const {
    Tensor of_chunk = inbox(at, source);
    of_chunk.data = of_chunk.as<std::byte>() + (packing_.begin(chunk) - shards_.begin_of(at)) *
                                                   of_chunk.stride[1] * size_of(shards_.dtype);
    of_chunk.shape[1] = packing_.end(chunk) - packing_.begin(chunk);
    return of_chunk;
  }
  // The chunks of the shard of a rank of this host, as soon as they are computed.
  Status push(int32_t to, const Sending& sending) {
    cuda::CopyQueue& to_host = rank->sending();
    Status status = rank->await(to);
    for (int64_t i = 0; status.ok() && i < count_of(to); ++i) {
      const int64_t chunk = chunks_.first_of(to) + i;
      status = to_host.wait_word(signals() + chunk, sending.epoch);
      const Reported pushing(sending.report, OverlapReport::Kind::kCommunication, chunk, to,
                             to_host.stream());
      if (status.ok())
        status = to_host.copy(packing_.strided(partial(), chunk), inbox(to, own, chunk));
      if (status.ok()) status = to_host.write_word(word(to, i, own), sending.epoch);
    }
    return status;
  }
  // Chunk i of the shard of `to`, as soon as it is computed, and what `from` has computed of that
  // of the own one, where they cross and have so many.
  Status bring(int32_t to, int32_t from, int64_t i, const Sending& sending) {
    const int64_t mine = chunks_.first_of(to) + i, its = first_ + i;
    const bool sends = !on_host(to) && i < count_of(to), receives = !on_host(from) && i < count_;
    const Layout layout = layout_of(own);
    Status status;
    if (sends) {
      const Tensor packed = packing_.view(data_of(own) + layout.packed, 0, mine);
      status = queue().wait_word(signals() + mine, sending.epoch);
      if (status.ok() && !packing_.are_in_place())
        status =
            cuda::copy_tensor(*gpu, packing_.strided(partial(), mine), packed, queue().stream());
      to_send(to, packed);
    }
    Tensor packed;
    if (receives) {
      packed = packing_.view(
          data_of(own) + layout.packed_inbox + static_cast<size_t>(from) * layout.part, first_,
          its);
      to_receive(from, packed);
    }
    // The chunk is computed.
    OverlapReport* const report = sends ? sending.report : nullptr;
    const Reported sending_chunk(report, OverlapReport::Kind::kCommunication, mine, to,
                                 queue().stream());
    if (status.ok()) status = exchange();
    if (!receives || !status.ok()) return status;
    if (!packing_.are_in_place())
      status = cuda::copy_tensor(*gpu, packed, inbox(own, from, its), queue().stream());
    if (status.ok()) status = queue().write_word(word(own, i, from), sending.epoch);
    if (sending.report != nullptr && i + 1 == count_)
      sending.report->arrived(first_, from, queue().stream());
    return status;
  }

  const Shards shards_;
  const ShardChunks chunks_;
  const PackedChunks packing_{shards_, chunks_};
  const int64_t first_, count_;  // chunks of the own shard
};

}  // namespace

const Transport kNccl = {.name = "cuda:nccl",
                         .how = "shards are sent by NCCL, and pushed within a host",
                         .make_gather = make_transport<NcclGather>,
                         .make_reduce = make_transport<NcclReduce>,
                         .make_reduce_in_place = make_nccl_pieces};

}  // namespace perseid::internal::collective
