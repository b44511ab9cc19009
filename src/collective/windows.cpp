// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transports of ranks on CPUs. On one host, threads or processes, all map one window of memory.
// Nothing is sent: a rank writes its shard, or its partial, into the plan's window and sets signals
// there; the others read it in place. There is one gathered operand a host, not one a rank.
//
// On several hosts each rank has a window of its own, and puts what it has written for others into
// theirs, each chunk before its signal, while the kernel runs.
//
// Order: a rank writes data, then the signal with release; a reader sees the signal with acquire,
// then the data. Before a rank writes the same memory in the next epoch, it waits for the `done`
// word of every reader, which each sets with release after its last read.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/align.hpp"
#include "collective/transport.hpp"

namespace perseid::internal::collective {
namespace {

struct alignas(64) Word {
  uint32_t value;
};

constexpr size_t kAlignment = 4096;

size_t aligned(size_t bytes) { return align_up(bytes, kAlignment); }

// A segment: the `done` word of each rank, signals, then data.
class Window {
 public:
  // `signals` and `bytes` are those of one region; `regions` of them.
  static Status make(Group& group, const Operation& operation, size_t regions, size_t signals,
                     size_t bytes, Window* window) {
    const size_t ranks = static_cast<size_t>(group.size());
    const size_t words = ranks * sizeof(Word);
    window->signal_bytes_ = (signals * sizeof(uint32_t) + 63) / 64 * 64;
    window->data_ = aligned(words + regions * window->signal_bytes_);
    window->region_ = aligned(bytes);
    window->signals_ = words;
    const uint32_t before = group.first_epoch() - 1;
    return group.share(
        operation, window->data_ + regions * window->region_,
        [&](std::byte* memory) {
          for (size_t word = 0; word < window->data_ / sizeof(uint32_t); ++word)
            reinterpret_cast<uint32_t*>(memory)[word] = before;
        },
        &window->segment_);
  }

  uint32_t* done(int32_t rank) const {
    return &reinterpret_cast<Word*>(segment_->data())[rank].value;
  }
  uint32_t* signals(int32_t region) const {
    return reinterpret_cast<uint32_t*>(segment_->data() + signals_ +
                                       static_cast<size_t>(region) * signal_bytes_);
  }
  std::byte* data(int32_t region) const {
    return segment_->data() + data_ + static_cast<size_t>(region) * region_;
  }
  const std::shared_ptr<Segment>& segment() const { return segment_; }
  // Until every rank has read what there was in the epoch.
  Status wait_done(Group& group, const Operation& operation, uint32_t epoch) const {
    for (int32_t rank = 0; rank < group.size(); ++rank)
      if (Status status = group.wait(operation, rank, done(rank), epoch); !status.ok())
        return status;
    return {};
  }

 private:
  std::shared_ptr<Segment> segment_;
  size_t signals_ = 0, signal_bytes_ = 0, data_ = 0, region_ = 0;
};

// Of chunks [from, to), with a signal each.
MissingPart missing_chunk_of(int32_t rank, int64_t from, int64_t to, const uint32_t* signals,
                             uint32_t epoch) {
  for (int64_t chunk = from; chunk < to; ++chunk)
    if (const uint32_t* signal = signals + (chunk - from);
        !epoch_reached(cpu::load_acquire(signal), epoch))
      return {rank, chunk, signal};
  return {};
}

class WindowGather final : public GatherTransport {
 public:
  WindowGather(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group),
        executor_(site.device.executor.get()),
        shards_(shards),
        chunks_(chunks) {}
  Status make(const TransportSite& site) {
    return Window::make(group_, site.operation, 1, static_cast<size_t>(chunks_.count()),
                        shards_.bytes(), &window_);
  }

  std::byte* gathered() const override { return window_.data(0); }
  const uint32_t* signals() const override { return window_.signals(0); }

  Status start(const Operation& operation, uint32_t epoch) override {
    return window_.wait_done(group_, operation, epoch - 1);
  }
  Status send(const Operation&, const Sending& sending, std::span<const SentPart> parts,
              std::span<const SentPart>) override {
    for (size_t i = 0; i < parts.size(); ++i) {
      const SentPart& part = parts[i];
      const Reported reported(sending.report, OverlapReport::Kind::kCommunication, part.chunk,
                              group_.rank());
      if (part.readers != 0 && part.from.data != part.to.data) copy(*executor_, part.from, part.to);
      put(part);
      if (i + 1 < parts.size() && parts[i + 1].chunk == part.chunk) continue;
      group_.signal(window_.signals(0) + part.chunk, sending.epoch);
    }
    return {};
  }
  perseid_arrival arrival(const Operation& operation, uint32_t epoch) const override {
    auto arrival = sized<perseid_arrival>();
    arrival.signals = signals();
    arrival.epoch = epoch;
    arrival.deadline_ns = operation.time_left();
    arrival.abort = group_.abort();
    return arrival;
  }
  Status finish(const Sending& sending) override {
    group_.signal(window_.done(group_.rank()), sending.epoch);
    return {};
  }

 private:
  // Into the windows of ranks on other hosts.
  void put(const SentPart& part) const {
    if (group_.shares_memory()) return;
    const ByteRows rows = rows_of(part.to);
    const auto* data = part.to.as<const std::byte>();
    group_.for_each_other([&](int32_t rank) {
      if ((part.readers >> rank & 1) != 0)
        group_.put(rank, data, rows, {data, rows.stride, window_.segment()});
    });
  }

  Group& group_;
  cpu::Executor* const executor_;  // null on a GPU, where shards are in place
  const Shards shards_;
  const ShardChunks chunks_;
  Window window_;
};

class WindowReduce final : public ReduceTransport {
 public:
  WindowReduce(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), shards_(shards), chunks_(chunks) {}
  Status make(const TransportSite& site) {
    return Window::make(group_, site.operation, static_cast<size_t>(group_.size()),
                        static_cast<size_t>(chunks_.count()), shards_.bytes(), &window_);
  }

  std::byte* partial() const override { return window_.data(group_.rank()); }
  uint32_t* signals() const override { return window_.signals(group_.rank()); }

  Status start(const Operation& operation, const Sending& sending) override {
    return window_.wait_done(group_, operation, sending.epoch - 1);
  }
  Status send(const Sending&) override { return {}; }
  perseid_arrival arrival(const Operation&, uint32_t) const override { return {}; }
  int64_t arrivals() const override { return 0; }
  MissingPart missing(int32_t rank, int32_t piece, uint32_t epoch) const override {
    return missing_chunk_of(rank, chunks_.first_of(piece), chunks_.first_of(piece + 1),
                            window_.signals(rank) + chunks_.first_of(piece), epoch);
  }
  Status part(const Operation& operation, const Sending& sending, int32_t rank, int32_t piece,
              Tensor* part) override {
    for (int64_t chunk = chunks_.first_of(piece); chunk < chunks_.first_of(piece + 1); ++chunk) {
      Status status =
          wait_for_chunk(group_, operation, sending, rank, chunk, window_.signals(rank) + chunk);
      if (!status.ok()) return status;
    }
    *part = shards_.view(window_.data(rank), shards_.begin_of(piece), shards_.begin_of(piece + 1));
    return {};
  }
  Status finish(const Sending& sending) override {
    group_.signal(window_.done(group_.rank()), sending.epoch);
    return {};
  }

 private:
  Group& group_;
  const Shards shards_;
  const ShardChunks chunks_;
  Window window_;
};

// Each rank has a window for the parts of its own shard, one from each rank. Its product writes the
// other shards into memory of its own, from which they leave chunk by chunk.
class PutReduce final : public ReduceTransport {
 public:
  PutReduce(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), shards_(shards), chunks_(chunks) {}
  Status make(const TransportSite& site) {
    int64_t most_chunks = 0, most = 0;
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      most = std::max(most, shards_.size(rank));
      most_chunks = std::max(most_chunks, chunks_.first_of(rank + 1) - chunks_.first_of(rank));
    }
    signals_ = aligned(static_cast<size_t>(chunks_.count()) * sizeof(uint32_t));
    Descriptor unused;
    Status status = Segment::make(signals_ + std::max<size_t>(shards_.bytes(), 1), &own_, &unused);
    for (int64_t chunk = 0; status.ok() && chunk < chunks_.count(); ++chunk)
      signals()[chunk] = group_.first_epoch() - 1;
    status = group_.exchange(site.operation, status, "", nullptr);
    if (!status.ok()) return status;
    return Window::make(group_, site.operation, static_cast<size_t>(group_.size()),
                        static_cast<size_t>(most_chunks), packed(most), &window_);
  }

  std::byte* partial() const override { return own_->data() + signals_; }
  uint32_t* signals() const override { return reinterpret_cast<uint32_t*>(own_->data()); }

  Status start(const Operation& operation, const Sending& sending) override {
    Status status = window_.wait_done(group_, operation, sending.epoch - 1);
    // An execution that was refused is repeated with its epoch.
    if (status.ok() && std::exchange(queued_, sending.epoch) != sending.epoch)
      group_.for_each_other([&](int32_t rank) { queue(rank, sending.epoch); });
    return status;
  }
  Status send(const Sending&) override {
    group_.put_ready();
    return {};
  }
  perseid_arrival arrival(const Operation&, uint32_t) const override { return {}; }
  int64_t arrivals() const override { return 0; }
  MissingPart missing(int32_t rank, int32_t piece, uint32_t epoch) const override {
    if (rank == group_.rank()) return {};
    return missing_chunk_of(rank, chunks_.first_of(piece), chunks_.first_of(piece + 1),
                            window_.signals(rank), epoch);
  }
  Status part(const Operation& operation, const Sending& sending, int32_t rank, int32_t piece,
              Tensor* part) override {
    if (rank == group_.rank()) {
      *part = shards_.view(partial(), shards_.begin_of(piece), shards_.begin_of(piece + 1));
      return {};
    }
    const int64_t first = chunks_.first_of(piece);
    for (int64_t chunk = first; chunk < chunks_.first_of(piece + 1); ++chunk)
      if (Status status = wait_for_chunk(group_, operation, sending, rank, chunk,
                                         window_.signals(rank) + (chunk - first));
          !status.ok())
        return status;
    *part = shard_at(window_.data(rank), piece);
    return {};
  }
  Status finish(const Sending& sending) override {
    group_.signal(window_.done(group_.rank()), sending.epoch);
    return {};
  }

 private:
  size_t packed(int64_t size) const {
    return static_cast<size_t>(shards_.outer * size * shards_.inner * size_of(shards_.dtype));
  }
  // The shard of a rank without the others.
  Tensor shard_at(std::byte* data, int32_t rank) const {
    return {.data = data,
            .dtype = shards_.dtype,
            .rank = 3,
            .shape = {shards_.outer, shards_.size(rank), shards_.inner},
            .stride = {shards_.size(rank) * shards_.inner, shards_.inner, 1}};
  }
  // What leaves for a rank when the product has signalled it.
  void queue(int32_t rank, uint32_t epoch) {
    const int64_t first = chunks_.first_of(rank);
    for (int64_t chunk = first; chunk < chunks_.first_of(rank + 1); ++chunk) {
      const auto c = static_cast<size_t>(chunk);
      const int64_t from = chunks_.begin[c], to = chunks_.begin[c + 1];
      const Tensor part = shards_.view(partial(), from, to);
      const ByteRows source = rows_of(part);
      ByteRows target = source;
      target.stride = packed(shards_.size(rank)) / static_cast<size_t>(shards_.outer);
      const std::byte* at = window_.data(group_.rank()) +
                            (from - shards_.begin_of(rank)) * shards_.inner * size_of(part.dtype);
      group_.put_when(signals() + chunk, epoch, rank, at, target,
                      {part.as<const std::byte>(), source.stride, own_},
                      window_.signals(group_.rank()) + (chunk - first));
    }
  }

  Group& group_;
  const Shards shards_;
  const ShardChunks chunks_;
  std::shared_ptr<Segment> own_;  // signals, then the partial
  size_t signals_ = 0;
  Window window_;
  uint32_t queued_ = group_.first_epoch() - 1;
};

// As PutReduce, where a rank has written parts of what others sum anywhere in its partial. It says
// piece by piece what leaves for whom.
class PutPieces final : public ReduceTransport {
 public:
  PutPieces(const TransportSite& site, const Shards& shards, int64_t rows)
      : group_(site.group), shards_(shards), rows_(rows) {}
  Status make(const TransportSite& site) {
    Descriptor unused;
    const Status status = Segment::make(std::max<size_t>(shards_.bytes(), 1), &own_, &unused);
    if (Status all = group_.exchange(site.operation, status, "", nullptr); !all.ok()) return all;
    const int64_t most = shards_.outer * rows_ * shards_.inner;
    return Window::make(group_, site.operation, static_cast<size_t>(group_.size()), 1,
                        static_cast<size_t>(most * size_of(shards_.dtype)), &window_);
  }

  std::byte* partial() const override { return own_->data(); }
  uint32_t* signals() const override { return window_.signals(group_.rank()); }

  Status start(const Operation& operation, const Sending& sending) override {
    return window_.wait_done(group_, operation, sending.epoch - 1);
  }
  Status give(int32_t rank, const Tensor& piece, size_t at) override {
    const ByteRows source = rows_of(piece);
    group_.put(rank, window_.data(group_.rank()) + at,
               {.bytes = source.bytes, .count = source.count, .stride = source.bytes},
               {piece.as<const std::byte>(), source.stride, own_});
    return {};
  }
  Status send(const Sending& sending) override {
    group_.signal(signals(), sending.epoch);
    return {};
  }
  perseid_arrival arrival(const Operation&, uint32_t) const override { return {}; }
  int64_t arrivals() const override { return 0; }
  MissingPart missing(int32_t rank, int32_t, uint32_t epoch) const override {
    return missing_chunk_of(rank, 0, 1, window_.signals(rank), epoch);
  }
  Status part(const Operation& operation, const Sending& sending, int32_t rank, int32_t,
              Tensor* part) override {
    *part = shards_.view(rank == group_.rank() ? partial() : window_.data(rank), 0, 0);
    return wait_for_chunk(group_, operation, sending, rank, 0, window_.signals(rank));
  }
  Status finish(const Sending& sending) override {
    group_.signal(window_.done(group_.rank()), sending.epoch);
    return {};
  }

 private:
  Group& group_;
  const Shards shards_;
  const int64_t rows_;
  std::shared_ptr<Segment> own_;
  Window window_;
};

Status make_in_place(const TransportSite& site, const Shards& shards, int64_t,
                     std::unique_ptr<ReduceTransport>* transport) {
  return make_transport<WindowReduce, ReduceTransport, const ShardChunks&>(
      site, shards, ShardChunks(shards, 1, 1), transport);
}

}  // namespace

const Transport kWindows = {.name = "cpu:windows",
                            .how = "shards are read in place",
                            .make_gather = make_transport<WindowGather>,
                            .make_reduce = make_transport<WindowReduce>,
                            .make_reduce_in_place = make_in_place};
const Transport kSockets = {.name = "cpu:sockets",
                            .how = "shards are sent through sockets",
                            .make_gather = make_transport<WindowGather>,
                            .make_reduce = make_transport<PutReduce>,
                            .make_reduce_in_place = make_transport<PutPieces>};
const Transport kMpi = {.name = "cpu:mpi",
                        .how = "shards are sent through MPI",
                        .make_gather = make_transport<WindowGather>,
                        .make_reduce = make_transport<PutReduce>,
                        .make_reduce_in_place = make_transport<PutPieces>};

}  // namespace perseid::internal::collective
