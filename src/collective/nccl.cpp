// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "cuda/runtime/library.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {
namespace {

// The time that aborted kernels have to end, the sockets to say which rank is lost, and an abort to
// return.
constexpr std::chrono::milliseconds kDraining{5000}, kVerdict{500}, kEnding{3000};
constexpr std::chrono::microseconds kBusy{100}, kInterval{20};
constexpr const char* kAdvice = "see what nvidia-smi says";

// NCCL's interface of version 2.18, which later versions understand.
constexpr int kLeastVersion = 21800, kSuccess = 0, kInProgress = 7, kInt8 = 0;
struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = kLeastVersion;
  // No clusters: the multiprocessors that are left free may have no neighbours among them.
  int blocking = 0, cluster = 1, least_blocks = 1, most_blocks = NcclLinks::kMultiprocessors;
  const char* network = nullptr;
  int shares = INT_MIN;
};

struct Functions {
  cuda::SharedLibrary library;
  Status status;
  int (*version)(int*) = nullptr;
  int (*unique_id)(UniqueId*) = nullptr;
  int (*init)(ncclComm**, int, UniqueId, int, Config*) = nullptr;
  int (*state)(ncclComm*, int*) = nullptr;
  int (*send)(const void*, size_t, int, int, ncclComm*, void*) = nullptr;
  int (*receive)(void*, size_t, int, int, ncclComm*, void*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*abort)(ncclComm*) = nullptr;
  const char* (*error)(int) = nullptr;

  Functions() {
    status = library.open("NCCL", "install libnccl2", {"libnccl.so.2", "libnccl.so"});
    if (!status.ok()) return;
    library.find("ncclGetVersion", &version);
    library.find("ncclGetUniqueId", &unique_id);
    library.find("ncclCommInitRankConfig", &init);
    library.find("ncclCommGetAsyncError", &state);
    library.find("ncclSend", &send);
    library.find("ncclRecv", &receive);
    library.find("ncclGroupStart", &group_start);
    library.find("ncclGroupEnd", &group_end);
    library.find("ncclCommAbort", &abort);
    library.find("ncclGetErrorString", &error);
    int found = 0;
    if (library.result().ok() && version(&found) == kSuccess && found >= kLeastVersion) return;
    status = Status::error(PERSEID_UNSUPPORTED, "NCCL is of version ", found,
                           ", expected at least ", kLeastVersion, "; install libnccl2 2.18");
  }
  Status check(int result) const {
    if (result == kSuccess || result == kInProgress) return {};
    return Status::error(PERSEID_IO_ERROR, "NCCL: ", error(result),
                         "; NCCL_DEBUG=WARN shows why, PERSEID_TRANSPORT=sockets does without");
  }
};

const Functions& nccl() {
  static const Functions& functions = *new Functions;
  return functions;
}

// Whether this rank can use NCCL, and whether PERSEID_TRANSPORT asks for it.
struct Wish {
  bool can = false, must = false;
};

Wish wish_of_environment(const Group& group) {
  const char* const value = std::getenv("PERSEID_TRANSPORT");
  const std::string_view wanted = value == nullptr ? "" : value;
  if (wanted != "nccl") return {};
  // Ranks that are threads may be on one GPU, which NCCL refuses.
  return {.can = !group.of_threads() && nccl().status.ok(), .must = true};
}

}  // namespace

Status NcclLinks::agree(Group& group, const Operation& operation, std::shared_ptr<cuda::Gpu> gpu) {
  if (gpu == nullptr || gpu->facts().assumed || group.shares_memory() || group.size() == 1)
    return {};
  if (group.nccl() != nullptr) {
    const bool same = group.nccl()->gpu_->facts().index == gpu->facts().index;
    return group.exchange(operation,
                          same ? Status()
                               : Status::error(PERSEID_UNSUPPORTED, operation.name,
                                               ": the group has plans on another GPU; use one GPU "
                                               "for each rank of a group"),
                          "", nullptr);
  }
  const Wish wish = wish_of_environment(group);
  std::shared_ptr<NcclLinks> made(new NcclLinks(group, std::move(gpu)));
  UniqueId id{};
  Status status;
  if (wish.must && !wish.can)
    status = nccl().status.ok()
                 ? Status::error(PERSEID_UNSUPPORTED, "PERSEID_TRANSPORT is nccl, but ranks are ",
                                 "threads of one process; start a process for each GPU")
                 : nccl().status;
  if (status.ok() && wish.can && group.rank() == 0) status = nccl().check(nccl().unique_id(&id));
  std::vector<std::string> all;
  Writer writer;
  writer.number(wish.can ? 1 : 0, 1).number(wish.must ? 1 : 0, 1);
  writer.text({id.bytes, sizeof id.bytes});
  status = group.exchange(operation, status, writer.take(), &all);
  if (!status.ok()) return status;
  bool can = true, must = false;
  std::string first_id;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Reader reader(all[rank]);
    can = reader.number(1) == 1 && can;
    must = reader.number(1) == 1 || must;
    const std::string_view text = reader.text(sizeof id.bytes);
    if (rank == 0) first_id = text;
    can = can && reader.complete() && text.size() == sizeof id.bytes;
  }
  if (must && !can)
    return Status::error(PERSEID_UNSUPPORTED, operation.name, ": PERSEID_TRANSPORT is nccl, but ",
                         "not all ranks can use NCCL; set it, and install libnccl2, on all");
  group.nccl() = made;
  if (!can) return {};
  Status connected = made->make();
  // NCCL waits for a rank that has failed. Half of the time is left to agree on that.
  const Clock::time_point now = Clock::now();
  if (connected.ok()) connected = made->connect(first_id, now + (operation.deadline - now) / 2);
  status = group.exchange(operation, connected, connected.ok() ? "1" : "0", &all);
  const bool good = status.ok() && std::all_of(all.begin(), all.end(),
                                               [](const std::string& each) { return each == "1"; });
  if (!good) made->abort();
  return good ? made->meet_on_host(operation) : status;
}

// If the ranks of a host cannot meet, NCCL carries the data of every pair of ranks.
Status NcclLinks::meet_on_host(const Operation& operation) {
  std::vector<std::string> ids, messages;
  Status status = group_.exchange(operation, {}, host_id_of_environment(), &ids);
  if (!status.ok()) return status;
  const auto own = static_cast<size_t>(group_.rank());
  std::vector<size_t> members;
  for (size_t rank = 0; rank < ids.size(); ++rank) {
    const bool here = rank == own || (!ids[own].empty() && ids[rank] == ids[own]);
    on_host_.push_back(here ? static_cast<int32_t>(members.size()) : -1);
    if (here) members.push_back(rank);
  }
  // All ranks of all hosts exchange at once.
  const AllGather all_gather = [&](const void* mine, size_t bytes, void* all) {
    status = group_.exchange(operation, {}, std::string(static_cast<const char*>(mine), bytes),
                             &messages);
    for (size_t i = 0; status.ok() && i < members.size(); ++i) {
      messages[members[i]].resize(bytes);
      std::memcpy(static_cast<char*>(all) + i * bytes, messages[members[i]].data(), bytes);
    }
    return status.ok();
  };
  std::vector<Descriptor> sockets;
  const auto size = static_cast<int32_t>(members.size());
  Status met;
  if (size > 1) {
    met = collective::meet_on_host(on_host_[own], size, all_gather, operation.deadline, &sockets);
  } else {
    status = group_.exchange(operation, {}, "", &messages);
  }
  if (!status.ok()) return status;
  if (met.ok() && size > 1)
    met = Group::open(std::make_shared<Mesh>(on_host_[own], std::move(sockets), nullptr), operation,
                      {}, &host_);
  status = group_.exchange(operation, {}, met.ok() ? "1" : "0", &messages);
  for (const size_t member : members)
    if (status.ok() && messages[member] != "1") leave_host();
  return status;
}

Status NcclLinks::make() {
  const cuda::Gpu::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  void* memory = nullptr;
  const cuda::Result result =
      gpu_->driver().host_allocate(&memory, sizeof(Words), cuda::kPortableMapped);
  words_ = static_cast<Words*>(memory);
  if (words_ != nullptr) *words_ = {};
  return cuda::check(gpu_->driver(), result, "allocating page-locked memory of the host", kAdvice);
}

// Connects every two ranks, and sends a word each way, so that nothing is set up in an operation.
Status NcclLinks::connect(const std::string& id, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const cuda::Gpu::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  UniqueId unique{};
  std::copy(id.begin(), id.end(), unique.bytes);
  Config config;
  ncclComm* made = nullptr;
  Status status = nccl().check(nccl().init(&made, group_.size(), unique, group_.rank(), &config));
  communicator_ = made;
  if (status.ok()) status = settle(deadline);
  std::unique_ptr<cuda::CopyQueue> queue;
  if (status.ok()) status = cuda::CopyQueue::make(gpu_, &queue);
  void* words = nullptr;
  const auto size = static_cast<size_t>(group_.size());
  if (status.ok()) status = cuda::allocate(*gpu_, (size + 1) * sizeof(uint32_t), &words);
  std::vector<Part> parts;
  for (int32_t rank = 0; rank < group_.size(); ++rank)
    if (rank != group_.rank())
      parts.push_back({rank, static_cast<std::byte*>(words) + size * sizeof(uint32_t),
                       sizeof(uint32_t), static_cast<std::byte*>(words) + 4 * rank,
                       sizeof(uint32_t)});
  if (status.ok()) status = send_and_receive(parts, queue->stream());
  if (status.ok()) status = settle(deadline);
  if (status.ok()) status = drain(deadline, queue->stream());
  if (!status.ok()) {
    abort_locked();
    if (queue != nullptr) (void)drain(Clock::now() + kDraining, queue->stream());
  }
  lock.unlock();  // memory is released when all groups of the GPU have drained
  if (words != nullptr) cuda::release(*gpu_, words);
  return status;
}

NcclLinks::~NcclLinks() {
  // It destroys a communicator without waiting for other ranks.
  abort();
  // An abort that does not return in time goes on in a detached thread.
  const Clock::time_point end = Clock::now() + kEnding;
  while (aborting_.joinable() && !aborted_->load() && Clock::now() < end)
    std::this_thread::sleep_for(kInterval);
  if (aborting_.joinable()) {
    if (aborted_->load()) {
      aborting_.join();
    } else {
      aborting_.detach();
    }
  }
  const cuda::Gpu::Current current(*gpu_);
  if (words_ != nullptr && current.status().ok()) gpu_->driver().host_free(words_);
}

void NcclLinks::abort() {
  const std::lock_guard lock(mutex_);
  abort_locked();
}

// Its kernels end within milliseconds, the call takes half a second.
void NcclLinks::abort_locked() {
  ncclComm* const communicator = communicator_.exchange(nullptr);
  if (communicator == nullptr) return;
  aborting_ = std::thread([gpu = gpu_, communicator, aborted = aborted_] {
    {
      const cuda::Gpu::Current current(*gpu);
      nccl().abort(communicator);
    }
    aborted->store(true);
  });
}

Status NcclLinks::send_and_receive(std::span<const Part> parts, void* stream) const {
  Status status = nccl().check(nccl().group_start());
  if (!status.ok()) return status;
  for (const Part& part : parts) {
    if (status.ok() && part.sent > 0)
      status =
          nccl().check(nccl().send(part.send, part.sent, kInt8, part.rank, communicator_, stream));
    if (status.ok() && part.received > 0)
      status = nccl().check(
          nccl().receive(part.receive, part.received, kInt8, part.rank, communicator_, stream));
  }
  const Status ended = nccl().check(nccl().group_end());
  return status.ok() ? ended : status;
}

Status NcclLinks::settle(Clock::time_point deadline) const {
  for (const Clock::time_point start = Clock::now();;) {
    int state = kSuccess;
    Status status = nccl().check(nccl().state(communicator_, &state));
    if (status.ok()) status = nccl().check(state);
    if (!status.ok() || state != kInProgress) return status;
    const Clock::time_point now = Clock::now();
    if (now >= deadline || has_failed())
      return Status::error(PERSEID_TIMEOUT, "NCCL has not connected the ranks in time");
    if (now - start < kBusy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kInterval);
    }
  }
}

Status NcclLinks::drain(Clock::time_point deadline, void* stream) const {
  const Status status = cuda::set_signal(*gpu_, &words_->connected, 1, stream);
  while (status.ok() && cpu::load_acquire(&words_->connected) == 0) {
    if (Clock::now() >= deadline || (communicator_.load() != nullptr && has_failed()))
      return Status::error(PERSEID_TIMEOUT, "NCCL has not connected the ranks in time");
    std::this_thread::sleep_for(kInterval);
  }
  return status;
}

Status NcclLinks::enqueue(const Operation& operation, std::span<const Part> parts, void* stream) {
  const bool empty = std::all_of(parts.begin(), parts.end(), [](const Part& part) {
    return part.sent == 0 && part.received == 0;
  });
  if (empty) return {};
  Status status;
  {
    const std::lock_guard lock(mutex_);
    if (communicator_.load() == nullptr) return group_.failure(operation);
    status = send_and_receive(parts, stream);
    // Returns when the exchange is on the stream. If NCCL has no room, queued exchanges end first,
    // or are aborted.
    if (status.ok()) status = settle(Clock::time_point::max());
  }
  if (status.ok()) return cuda::set_signal(*gpu_, &words_->ended, ++queued_, stream);
  // NCCL may know sooner than the sockets that a rank is lost.
  const Clock::time_point verdict = Clock::now() + kVerdict;
  while (!has_failed() && Clock::now() < verdict) std::this_thread::sleep_for(kInterval);
  if (has_failed()) return group_.failure(operation);
  group_.blame(group_.rank());
  return status;
}

}  // namespace perseid::internal::collective
