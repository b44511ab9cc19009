// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks of GPUs on several hosts without GPUs: processes with the fake driver, whose memory of a
// GPU is that of the process and whose streams do their work at once. Shards of each rank go
// through a transport and are compared where they must arrive.
#pragma once

#include <dlfcn.h>
#include <signal.h>

#include "collective/scale_gather.hpp"
#include "cuda/runtime/memory.hpp"
#include "rank_processes.hpp"

namespace host_ranks {

using namespace perseid::internal;
using namespace perseid::internal::collective;
using namespace std::chrono_literals;

inline constexpr uint64_t kDeadline = 10'000'000'000;

// One rank of a group of processes, on a GPU.
struct Member {
  std::shared_ptr<Group> group;
  std::shared_ptr<const dispatch::Device> device;

  Member(int32_t rank, int32_t size, int32_t gpu = 0, const Group::Options& options = {}) {
    const Operation operation("group", kDeadline);
    const RankIdentity identity{
        rank, size, "unix:" + testing::TempDir() + "hosts" + std::to_string(getppid()), "a secret"};
    std::vector<Descriptor> sockets;
    Status status = meet(identity, operation.deadline, &sockets);
    if (status.ok())
      status = Group::open(std::make_shared<Mesh>(rank, std::move(sockets), nullptr), operation,
                           options, &group);
    if (status.ok()) status = dispatch::open_cuda(gpu, {}, &device);
    if (!status.ok()) throw std::runtime_error(status.sentence());
  }
};

// What rank r has at an element of a tensor.
inline uint32_t value_of(int32_t rank, int64_t element, uint32_t epoch) {
  return static_cast<uint32_t>(rank) << 24 | epoch << 20 | static_cast<uint32_t>(element);
}

inline Shards shards_of(int32_t ranks, int64_t outer) {
  Shards shards{.dtype = DType::kF32, .outer = outer, .inner = 5, .begin = {0}};
  // Uneven, and one of them empty.
  for (int32_t rank = 0; rank < ranks; ++rank)
    shards.begin.push_back(shards.begin.back() + (rank == 1 && ranks > 2 ? 0 : 7 + 4 * rank));
  return shards;
}

// Fills [outer, size, inner] of a rank with its values, or compares.
template <class Visit>
void visit_shard(const Shards& shards, int32_t rank, std::byte* data, const Visit& visit) {
  const Tensor view = shards.view(data, shards.begin_of(rank), shards.begin_of(rank + 1));
  int64_t element = 0;
  for (int64_t i = 0; i < view.shape[0]; ++i)
    for (int64_t j = 0; j < view.shape[1] * view.shape[2]; ++j, ++element)
      visit(view.as<uint32_t>()[i * view.stride[0] + j], element);
}

inline bool has_come(const uint32_t* word, uint32_t epoch) {
  const auto end = Clock::now() + 5s;
  while (!epoch_reached(cpu::load_acquire(word), epoch))
    if (Clock::now() > end) return false;
  return true;
}
// The work of the default stream.
inline bool ended(const Member& member) {
  return cuda::synchronize(*member.device->gpu, nullptr).ok();
}

// All ranks have looked at their memory: the others write there for the next operation as soon as
// one has ended.
inline bool have_looked(Group& group) {
  return group.exchange(Operation("looking", kDeadline), {}, "", nullptr).ok();
}

inline bool gathers(const Member& member, int64_t outer) {
  Group& group = *member.group;
  const Operation operation("all-gather", kDeadline);
  const Shards shards = shards_of(group.size(), outer);
  const ShardChunks chunks(shards, group.size(), 2);
  std::unique_ptr<GatherTransport> transport;
  const TransportSite site{group, operation, *member.device};
  if (!transport_of(*member.device, group).make_gather(site, shards, chunks, &transport).ok())
    return false;
  bool right = true;
  std::vector<uint32_t> own(static_cast<size_t>(outer * shards.size(group.rank()) * shards.inner));
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    const Turn turn(group, operation);
    for (size_t i = 0; i < own.size(); ++i)
      own[i] = value_of(group.rank(), static_cast<int64_t>(i), epoch);
    const int64_t size = shards.size(group.rank());
    const Tensor shard{.data = own.data(),
                       .dtype = shards.dtype,
                       .rank = 3,
                       .shape = {outer, size, shards.inner},
                       .stride = {size * shards.inner, shards.inner, 1}};
    std::vector<SentPart> parts;
    cut_shard(shards, chunks, group.rank(), transport->gathered(), shard, &parts);
    const Sending sending{epoch, nullptr, nullptr};
    right = right && transport->start(operation, epoch).ok() &&
            transport->send(operation, sending, parts).ok() && transport->launched(sending).ok();
    right = transport->finish(sending).ok() && right && ended(member);
    // As a kernel waits.
    for (int64_t chunk = 0; right && chunk < chunks.count(); ++chunk)
      right = has_come(transport->signals() + chunk, epoch);
    for (int32_t rank = 0; right && rank < group.size(); ++rank)
      visit_shard(shards, rank, transport->gathered(), [&](uint32_t value, int64_t element) {
        right = right && value == value_of(rank, element, epoch);
      });
    right = right && have_looked(group);
  }
  return right;
}

// Scales of the rows of every entry of a batch, uneven and with gaps between entries.
inline bool gathers_scales(const Member& member, int64_t batch) {
  Group& group = *member.group;
  const Operation operation("all-gather-matmul", kDeadline);
  const Shards shards = shards_of(group.size(), batch);
  const std::vector<int64_t>& begin = shards.begin;
  const auto own = static_cast<size_t>(group.rank());
  const int64_t rows = begin[own + 1] - begin[own], gap = 3;
  std::unique_ptr<ScaleGather> gather;
  if (!ScaleGather::make({group, operation, *member.device}, batch, begin,
                         ShardChunks(shards, group.size(), 2), &gather)
           .ok())
    return false;
  bool right = true;
  std::vector<float> mine(static_cast<size_t>(batch * (rows + gap)), -1);
  const auto value = [](size_t rank, int64_t entry, int64_t row, uint32_t epoch) {
    return static_cast<float>(rank) * 1000 + static_cast<float>(100 * entry + row) +
           static_cast<float>(epoch) / 8;
  };
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    const Turn turn(group, operation);
    for (int64_t entry = 0; entry < batch; ++entry)
      for (int64_t row = 0; row < rows; ++row)
        mine[static_cast<size_t>(entry * (rows + gap) + row)] = value(own, entry, row, epoch);
    const Sending sending{epoch, nullptr, nullptr};
    right = right && gather
                         ->send(operation, sending,
                                {.data = mine.data(),
                                 .dtype = DType::kF32,
                                 .rank = 2,
                                 .shape = {batch, rows},
                                 .stride = {rows + gap, 1}})
                         .ok();
    right = gather->finish(sending).ok() && right && ended(member);
    const DLTensor& all = *gather->scales();
    right = right && all.ndim == 2 && all.shape[0] == batch && all.shape[1] == begin.back();
    const auto have_come = [&] {
      for (size_t rank = 0; rank + 1 < begin.size(); ++rank)
        for (int64_t entry = 0; entry < batch; ++entry)
          for (int64_t row = begin[rank]; row < begin[rank + 1]; ++row)
            if (static_cast<const volatile float*>(all.data)[entry * begin.back() + row] !=
                value(rank, entry, row - begin[rank], epoch))
              return false;
      return true;
    };
    const auto end = Clock::now() + 5s;
    while (right && !have_come()) right = Clock::now() < end;
    right = right && have_looked(group);
  }
  return right;
}

inline bool reduces(const Member& member, int64_t outer) {
  Group& group = *member.group;
  const Operation operation("reduce-scatter", kDeadline);
  const Shards shards = shards_of(group.size(), outer);
  const ShardChunks chunks(shards, group.size(), 2);
  std::unique_ptr<ReduceTransport> transport;
  const TransportSite site{group, operation, *member.device};
  if (!transport_of(*member.device, group).make_reduce(site, shards, chunks, &transport).ok())
    return false;
  bool right = true;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    const Turn turn(group, operation);
    const Sending sending{epoch, nullptr, nullptr};
    right = right && transport->start(operation, sending).ok();
    for (int32_t rank = 0; rank < group.size(); ++rank)
      visit_shard(shards, rank, transport->partial(), [&](uint32_t& value, int64_t element) {
        value = value_of(group.rank(), 1000 * rank + element, epoch);
      });
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk)
      cpu::set_signal(transport->signals() + chunk, epoch);
    right = right && transport->send(sending).ok();
    // A plan takes the parts of all ranks before it adds them.
    std::vector<Tensor> computed(static_cast<size_t>(group.size()));
    for (int32_t rank = 0; right && rank < group.size(); ++rank)
      right =
          transport
              ->part(operation, sending, rank, group.rank(), &computed[static_cast<size_t>(rank)])
              .ok();
    right = transport->finish(sending).ok() && right && ended(member);
    const perseid_arrival arrival = transport->arrival(operation, epoch);
    for (int64_t i = 0; right && i < transport->arrivals(); ++i)
      right = has_come(arrival.signals + i, epoch);
    for (int32_t rank = 0; right && rank < group.size(); ++rank) {
      const Tensor& part = computed[static_cast<size_t>(rank)];
      int64_t element = 0;
      for (int64_t i = 0; i < part.shape[0]; ++i)
        for (int64_t j = 0; j < part.shape[1] * part.shape[2]; ++j, ++element)
          right = right && part.as<uint32_t>()[i * part.stride[0] + j] ==
                               value_of(rank, 1000 * group.rank() + element, epoch);
    }
    right = right && have_looked(group);
  }
  return right;
}

// Skipped where the driver is not the fake one.
class HostRanks : public collective_tools::RankProcesses {
 protected:
  void SetUp() override {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || dlsym(library, "fake_fail") == nullptr)
      GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
  }
  void enter(int32_t) override {
    alarm(60);  // instead of waiting for ever
    setenv("PERSEID_SHARED_MEMORY", "0", 1);
  }
};

}  // namespace host_ranks
