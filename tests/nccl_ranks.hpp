// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks of GPUs on several hosts that NCCL links, without GPUs: with the fake NCCL, driver and
// compiler. Streams of the fake driver are threads.
#pragma once

#include "collective/gpu_rank.hpp"
#include "fake_driver.hpp"
#include "host_ranks.hpp"

namespace host_ranks {

// A function of the fake driver.
template <class Function>
Function fake(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

// Work of a stream, as of a kernel.
inline void launch(void* stream, std::function<void()> work) {
  static const auto enqueue = fake<void (*)(void*, void (*)(void*), void*)>("fake_enqueue");
  enqueue(
      stream,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> own(
            static_cast<std::function<void()>*>(argument));
        (*own)();
      },
      new std::function<void()>(std::move(work)));
}

// As a kernel waits: until the word has come, or the operation is aborted.
inline void await(const perseid_arrival& arrival, int64_t word) {
  while (!epoch_reached(cpu::load_acquire(arrival.signals + word), arrival.epoch) &&
         cpu::load_acquire(arrival.abort) == 0)
    usleep(20);
}

// A plan's part in an all-gather, of uneven shards: the shards of `inner` elements a row, in
// chunks.
class Gathering {
 public:
  Gathering(const Member& member, int64_t outer, int64_t inner = 5)
      : group_(*member.group), shards_(shards_of(group_.size(), outer)) {
    shards_.inner = inner;
    chunks_ = std::make_unique<ShardChunks>(shards_, group_.size(), 2);
    const Operation operation("all-gather", kDeadline);
    const Status status =
        transport_of(*member.device, group_)
            .make_gather({group_, operation, *member.device}, shards_, *chunks_, &transport_);
    if (!status.ok()) throw std::runtime_error(status.sentence());
  }
  const ShardChunks& chunks() const { return *chunks_; }
  const GatherTransport& transport() const { return *transport_; }

  // One execution, whose kernel does `work`.
  Status execute(const Operation& operation, uint32_t epoch, std::function<void()> work,
                 void* stream = nullptr) {
    const int64_t size = shards_.size(group_.rank());
    own_.resize(static_cast<size_t>(shards_.outer * size * shards_.inner));
    for (size_t i = 0; i < own_.size(); ++i)
      own_[i] = value_of(group_.rank(), static_cast<int64_t>(i), epoch);
    const Tensor shard{.data = own_.data(),
                       .dtype = shards_.dtype,
                       .rank = 3,
                       .shape = {shards_.outer, size, shards_.inner},
                       .stride = {size * shards_.inner, shards_.inner, 1}};
    cut_shard(shards_, *chunks_, group_.rank(), transport_->gathered(), shard, &parts_);
    const Turn turn(group_, operation);
    if (!turn.status().ok()) return turn.status();
    const Sending sending{epoch, stream, nullptr};
    Status status = transport_->send(operation, sending, parts_);
    arrival_ = transport_->arrival(operation, epoch);
    if (status.ok()) launch(stream, std::move(work));
    if (status.ok()) status = transport_->launched(sending);
    const Status finished = transport_->finish(sending);
    return status.ok() ? finished : status;
  }
  // Whether a chunk is that of the epoch.
  bool is_right(int64_t chunk, uint32_t epoch) const {
    const int32_t rank = chunks_->owner(chunk);
    const auto c = static_cast<size_t>(chunk);
    const int64_t from = chunks_->begin[c], to = chunks_->begin[c + 1],
                  begin = shards_.begin_of(rank), size = shards_.size(rank);
    const Tensor view = shards_.view(transport_->gathered(), from, to);
    for (int64_t i = 0; i < shards_.outer; ++i)
      for (int64_t j = 0; j < (to - from) * shards_.inner; ++j)
        if (view.as<uint32_t>()[i * view.stride[0] + j] !=
            value_of(rank, (i * size + from - begin) * shards_.inner + j, epoch))
          return false;
    return true;
  }
  const perseid_arrival& arrival() const { return arrival_; }  // of the last execution
  int64_t visited(int64_t visit) const {
    return ChunkTable<int64_t>{nullptr, chunks_->count(), chunks_->pivot(group_.rank())}
        .chunk_of_visit(visit);
  }

 private:
  Group& group_;
  Shards shards_;
  std::unique_ptr<ShardChunks> chunks_;
  std::unique_ptr<GatherTransport> transport_;
  std::vector<uint32_t> own_;
  std::vector<SentPart> parts_;
  perseid_arrival arrival_{};
};

// A plan's part in a sum of shards.
class Reducing {
 public:
  Reducing(const Member& member, int64_t outer)
      : group_(*member.group),
        shards_(shards_of(group_.size(), outer)),
        chunks_(shards_, group_.size(), 2) {
    const Operation operation("reduce-scatter", kDeadline);
    const Status status =
        transport_of(*member.device, group_)
            .make_reduce({group_, operation, *member.device}, shards_, chunks_, &transport_);
    if (!status.ok()) throw std::runtime_error(status.sentence());
  }
  // One execution: the kernel computes chunk after chunk, each after before(chunk), then sums.
  Status execute(const Operation& operation, uint32_t epoch,
                 const std::function<bool(int64_t)>& before, std::atomic<bool>* right,
                 void* stream = nullptr) {
    const Turn turn(group_, operation);
    if (!turn.status().ok()) return turn.status();
    const Sending sending{epoch, stream, nullptr};
    Status status = transport_->start(operation, sending);
    const perseid_arrival arrival = transport_->arrival(operation, epoch);
    if (!status.ok()) return status;
    launch(stream, [=, this] {
      const ChunkTable<int64_t> table{nullptr, chunks_.count(),
                                      chunks_.pivot((group_.rank() + 1) % group_.size())};
      for (int64_t visit = 0; visit < chunks_.count(); ++visit) {
        const int64_t chunk = table.chunk_of_visit(visit);
        if (!before(chunk)) return;
        visit_chunk(chunk, [&](uint32_t& value, int64_t element) {
          value = value_of(group_.rank(), 1000 * chunk + element, epoch);
        });
        cpu::set_signal(transport_->signals() + chunk, epoch);
      }
      for (int64_t i = 0; i < transport_->arrivals(); ++i) await(arrival, i);
      if (cpu::load_acquire(arrival.abort) == 0 && !are_right(epoch)) *right = false;
    });
    status = transport_->send(sending);
    const Status finished = transport_->finish(sending);
    return status.ok() ? finished : status;
  }
  // Before an execution: what is in memory.
  void fill(uint32_t value) {
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk)
      visit_chunk(chunk, [=](uint32_t& each, int64_t) { each = value; });
  }
  // Whether it has come from a rank.
  bool has(uint32_t value, int32_t rank) const {
    Tensor part;
    (void)transport_->part(Operation("", 1), {1, nullptr, nullptr}, rank, group_.rank(), &part);
    const auto* const elements = part.as<const uint32_t>();
    return std::find(elements, elements + part.elements(), value) != elements + part.elements();
  }

 private:
  template <class Visit>
  void visit_chunk(int64_t chunk, const Visit& visit) const {
    const auto c = static_cast<size_t>(chunk);
    const Tensor view = shards_.view(transport_->partial(), chunks_.begin[c], chunks_.begin[c + 1]);
    int64_t element = 0;
    for (int64_t i = 0; i < view.shape[0]; ++i)
      for (int64_t j = 0; j < view.shape[1] * view.shape[2]; ++j, ++element)
        visit(view.as<uint32_t>()[i * view.stride[0] + j], element);
  }
  bool are_right(uint32_t epoch) const {
    const int32_t own = group_.rank();
    const int64_t first = chunks_.first_of(own);
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      Tensor part;
      if (!transport_->part(Operation("", 1), {epoch, nullptr, nullptr}, rank, own, &part).ok())
        return false;
      for (int64_t chunk = first; chunk < chunks_.first_of(own + 1); ++chunk) {
        const auto c = static_cast<size_t>(chunk);
        const int64_t from = chunks_.begin[c] - shards_.begin_of(own),
                      size = chunks_.begin[c + 1] - chunks_.begin[c];
        for (int64_t i = 0; i < shards_.outer; ++i)
          for (int64_t j = 0; j < size * shards_.inner; ++j)
            if (part.as<uint32_t>()[i * part.stride[0] + from * part.stride[1] + j] !=
                value_of(rank, 1000 * chunk + i * size * shards_.inner + j, epoch))
              return false;
      }
    }
    return true;
  }

  Group& group_;
  const Shards shards_;
  const ShardChunks chunks_;
  std::unique_ptr<ReduceTransport> transport_;
};

// As a plan and its caller: what the execution or the synchronisation returns, and that the stream
// is free then.
inline Status outcome_of(const Member& member, Status status) {
  const Status synchronized = cuda::synchronize(*member.device->gpu, nullptr);
  return status.ok() ? synchronized : status;
}
// The survivors go on.
inline bool goes_on(const Member& member, int32_t left) {
  const auto fails = [&](const char* what, const Status& status = {}) {
    fprintf(stderr, "rank %d going on: %s: %s\n", member.group->rank(), what,
            status.sentence().c_str());
    return false;
  };
  std::shared_ptr<Group> group;
  Status status = member.group->shrink(Operation("shrink", 500'000'000), &group);
  if (!status.ok()) return fails("shrink", status);
  Member smaller = member;
  smaller.group = group;
  setenv("FAKE_NCCL", "", 1);
  if (group->size() != left) return fails("another size");
  status = NcclLinks::agree(*group, Operation("plan", kDeadline), member.device->gpu);
  if (!status.ok()) return fails("NCCL", status);
  if (left > 1 && !gathers(smaller, 1)) return fails("all-gather");
  return left == 1 || reduces(smaller, 1) || fails("reduce-scatter");
}

// Executions in flight of both kinds, on two streams.
inline bool executes(const Member& member, int64_t outer) {
  Gathering gathering(member, outer);
  Reducing reducing(member, outer);
  std::atomic<bool> right{true};
  int second = 0;
  Status status;
  for (uint32_t epoch = 1; status.ok() && epoch <= 4; ++epoch) {
    status = gathering.execute(
        Operation("all-gather", kDeadline), epoch,
        [&, epoch] {
          for (int64_t visit = 0; visit < gathering.chunks().count(); ++visit) {
            const int64_t chunk = gathering.visited(visit);
            while (
                !epoch_reached(cpu::load_acquire(gathering.transport().signals() + chunk), epoch))
              usleep(20);
            if (!gathering.is_right(chunk, epoch)) right = false;
          }
          usleep(2000);
          for (int64_t chunk = 0; chunk < gathering.chunks().count(); ++chunk)
            if (!gathering.is_right(chunk, epoch)) right = false;
        },
        epoch % 2 == 0 ? &second : nullptr);
    const auto before = [](int64_t) {
      usleep(500);
      return true;
    };
    if (status.ok())
      status = reducing.execute(Operation("reduce-scatter", kDeadline), epoch, before, &right);
  }
  if (status.ok()) status = cuda::synchronize(*member.device->gpu, &second);
  return status.ok() && ended(member) && right;
}

class NcclRanks : public HostRanks {
 protected:
  void SetUp() override {
    HostRanks::SetUp();
    setenv("PERSEID_TRANSPORT", "nccl", 1);
  }
  void TearDown() override {
    unsetenv("PERSEID_TRANSPORT");
    HostRanks::TearDown();
  }
  void enter(int32_t rank) override {
    HostRanks::enter(rank);
    setenv("FAKE_STREAMS", "1", 1);
    // Kernels of no code are not to be kept.
    setenv("PERSEID_PACK", "/nowhere/perseid.pack", 1);
    setenv("PERSEID_CACHE_DIR", "/dev/null/cache", 1);
    setenv("PERSEID_NVRTC", PERSEID_FAKE_NVRTC, 1);
  }
  static Status agree(const Member& member, uint64_t deadline_ns = kDeadline) {
    return NcclLinks::agree(*member.group, Operation("plan", deadline_ns), member.device->gpu);
  }
  static bool carries(const Member& member) { return NcclLinks::carry(*member.group); }
};

}  // namespace host_ranks
