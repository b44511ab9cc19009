// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/ipc_memory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/runtime/ipc_driver.hpp"
#include "cuda/runtime/memory.hpp"

namespace perseid::internal::cuda {
namespace {

// Smaller allocations share a block of the driver, of which another process would see all.
constexpr size_t kGranularity = 2 << 20;

// Memory of a GPU, freed at the end of its scope.
class Allocation {
 public:
  static Status make(std::shared_ptr<const Gpu> gpu, size_t bytes,
                     std::unique_ptr<Allocation>* made) {
    void* data = nullptr;
    Status status = allocate(*gpu, (bytes + kGranularity - 1) / kGranularity * kGranularity, &data);
    if (status.ok()) made->reset(new Allocation(std::move(gpu), data));
    return status;
  }
  ~Allocation() { release(*gpu_, data_); }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const Gpu& gpu() const { return *gpu_; }
  DeviceAddress address() const { return reinterpret_cast<DeviceAddress>(data_); }

 private:
  Allocation(std::shared_ptr<const Gpu> gpu, void* data) : gpu_(std::move(gpu)), data_(data) {}

  const std::shared_ptr<const Gpu> gpu_;
  void* const data_;
};

// ---- Processes ----

// How another process finds the writing end where it cannot be sent: by the number of its
// descriptor. The rest says that it is the right one.
struct IpcOffer {
  IpcHandle handle;
  uint64_t process = 0, descriptor = 0, device = 0, inode = 0;

  void point_to(const Descriptor& pipe) {
    struct stat found {};
    if (::fstat(pipe.number(), &found) != 0) return;
    process = static_cast<uint64_t>(::getpid());
    descriptor = static_cast<uint64_t>(pipe.number());
    device = static_cast<uint64_t>(found.st_dev);
    inode = static_cast<uint64_t>(found.st_ino);
  }
  Descriptor open() const {
    const std::string path = concatenate("/proc/", process, "/fd/", descriptor);
    Descriptor opened(open_file(path.c_str(), O_WRONLY | O_NONBLOCK));
    struct stat found {};
    const bool right = opened.opened() && ::fstat(opened.number(), &found) == 0 &&
                       S_ISFIFO(found.st_mode) && static_cast<uint64_t>(found.st_dev) == device &&
                       static_cast<uint64_t>(found.st_ino) == inode;
    return right ? std::move(opened) : Descriptor();
  }
};

// What its maker has, and the reading end of the pipe.
struct Exported {
  std::unique_ptr<Allocation> memory;
  Descriptor readers;

  // Whether nobody has it open: there is no writing end.
  bool is_free() const {
    pollfd end{.fd = readers.number(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
  }
};

// What its maker is done with, but others have open. Never destroyed: the process ends before.
class Retired {
 public:
  static Retired& all() {
    static Retired& retired = *new Retired;
    return retired;
  }
  void add(Exported exported) {
    const std::lock_guard lock(mutex_);
    exported_.push_back(std::move(exported));
  }
  void sweep() {
    std::vector<Exported> freed;  // after the lock: freeing may wait
    const std::lock_guard lock(mutex_);
    for (size_t i = exported_.size(); i-- > 0;) {
      if (!exported_[i].is_free()) continue;
      freed.push_back(std::move(exported_[i]));
      exported_.erase(exported_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Exported> exported_;
};

class ExportedMemory final : public PeerMemory {
 public:
  ExportedMemory(std::shared_ptr<const Gpu> gpu, Exported exported)
      : PeerMemory(std::move(gpu)), exported_(std::move(exported)) {
    address_ = exported_.memory->address();
  }
  ~ExportedMemory() override {
    Retired::all().add(std::move(exported_));
    Retired::all().sweep();
  }

 private:
  Exported exported_;
};

class OpenedMemory final : public PeerMemory {
 public:
  OpenedMemory(std::shared_ptr<const Gpu> gpu, const IpcDriver& driver, Descriptor pipe)
      : PeerMemory(std::move(gpu)), driver_(driver), pipe_(std::move(pipe)) {}
  ~OpenedMemory() override {
    const Gpu::Current current(*gpu_);
    if (address_ != 0 && current.status().ok()) driver_.close_handle(address_);
  }
  Status open(const IpcHandle& handle) {
    const Gpu::Current current(*gpu_);
    if (!current.status().ok()) return current.status();
    const Result result = driver_.open_handle(&address_, handle, kLazyPeerAccess);
    if (result != kSuccess) address_ = 0;
    return check(gpu_->driver(), result, kMappingPeerMemory, kPeerAdvice);
  }

 private:
  const IpcDriver& driver_;
  const Descriptor pipe_;  // closed after the memory
};

// ---- Threads ----

class PlainMemory final : public PeerMemory {
 public:
  PlainMemory(std::shared_ptr<const Gpu> gpu, std::shared_ptr<const Allocation> memory)
      : PeerMemory(std::move(gpu)), memory_(std::move(memory)) {
    address_ = memory_->address();
  }

 private:
  const std::shared_ptr<const Allocation> memory_;
};

// By numbers that the offers have.
class PlainMemories {
 public:
  static PlainMemories& all() {
    static PlainMemories& memories = *new PlainMemories;
    return memories;
  }
  uint64_t add(const std::shared_ptr<const Allocation>& memory) {
    const std::lock_guard lock(mutex_);
    std::erase_if(memories_, [](const auto& each) { return each.second.expired(); });
    memories_[++last_] = memory;
    return last_;
  }
  std::shared_ptr<const Allocation> find(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = memories_.find(number);
    return found == memories_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<const Allocation>> memories_;
  uint64_t last_ = 0;
};

Status enable_peer_access(const Gpu& from, const Gpu& to) {
  const IpcDriver* driver = nullptr;
  if (Status status = load_ipc_driver(&driver); !status.ok()) return status;
  ContextHandle other = nullptr;
  Result result = kSuccess;
  {
    const Gpu::Current current(to);
    if (!current.status().ok()) return current.status();
    result = to.driver().context_current(&other);
  }
  const Gpu::Current current(from);
  if (!current.status().ok()) return current.status();
  if (result == kSuccess) result = driver->enable_peer(other, 0);
  if (result == kPeerAccessAlreadyEnabled) return {};
  return check(from.driver(), result, kMappingPeerMemory, kPeerAdvice);
}

Status foreign_offer() {
  return Status::error(PERSEID_INTERNAL,
                       "an offer of memory is of another kind, expected ranks of "
                       "the same version");
}

}  // namespace

Status make_ipc_memory(std::shared_ptr<const Gpu> gpu, size_t bytes,
                       std::unique_ptr<PeerMemory>* memory, PeerOffer* offer) {
  Retired::all().sweep();
  const IpcDriver* driver = nullptr;
  if (Status status = load_ipc_driver(&driver); !status.ok()) return status;
  Exported made;
  if (Status status = Allocation::make(gpu, bytes, &made.memory); !status.ok()) return status;
  IpcOffer given;
  {
    const Gpu::Current current(*gpu);
    if (!current.status().ok()) return current.status();
    const Result result = driver->get_handle(&given.handle, made.memory->address());
    if (Status status = check(gpu->driver(), result, "sharing memory of the GPU", kPeerAdvice);
        !status.ok())
      return status;
  }
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
    made.readers = Descriptor(above_standard_streams(ends[0]));
    offer->descriptor = Descriptor(above_standard_streams(ends[1]));
  }
  if (!made.readers.opened() || !offer->descriptor.opened())
    return Status::error(PERSEID_OUT_OF_MEMORY, "cannot make a pipe: ", std::strerror(errno),
                         "; close some files");
  given.point_to(offer->descriptor);
  offer->message = message_of(given);
  *memory = std::make_unique<ExportedMemory>(std::move(gpu), std::move(made));
  return {};
}

Status map_ipc_memory(std::shared_ptr<const Gpu> gpu, PeerOffer offer,
                      std::unique_ptr<PeerMemory>* memory) {
  const IpcDriver* driver = nullptr;
  if (Status status = load_ipc_driver(&driver); !status.ok()) return status;
  IpcOffer given;
  if (!read_message(offer.message, &given)) return foreign_offer();
  Descriptor pipe = std::move(offer.descriptor);
  if (!pipe.opened()) pipe = given.open();
  if (!pipe.opened())
    return Status::error(PERSEID_UNSUPPORTED, "process ", given.process,
                         ", whose memory of a GPU is to be opened, is not to be found, expected "
                         "ranks of one host, user and PID namespace");
  auto made = std::make_unique<OpenedMemory>(std::move(gpu), *driver, std::move(pipe));
  Status status = made->open(given.handle);
  if (status.ok()) *memory = std::move(made);
  return status;
}

Status make_plain_memory(std::shared_ptr<const Gpu> gpu, size_t bytes,
                         std::unique_ptr<PeerMemory>* memory, PeerOffer* offer) {
  std::unique_ptr<Allocation> made;
  if (Status status = Allocation::make(gpu, bytes, &made); !status.ok()) return status;
  const std::shared_ptr<const Allocation> shared = std::move(made);
  offer->message = message_of(PlainMemories::all().add(shared));
  *memory = std::make_unique<PlainMemory>(std::move(gpu), shared);
  return {};
}

Status map_plain_memory(std::shared_ptr<const Gpu> gpu, const PeerOffer& offer,
                        std::unique_ptr<PeerMemory>* memory) {
  uint64_t number = 0;
  if (!read_message(offer.message, &number)) return foreign_offer();
  const std::shared_ptr<const Allocation> found = PlainMemories::all().find(number);
  if (found == nullptr) return foreign_offer();
  if (found->gpu().facts().index != gpu->facts().index)
    if (Status status = enable_peer_access(*gpu, found->gpu()); !status.ok()) return status;
  *memory = std::make_unique<PlainMemory>(std::move(gpu), found);
  return {};
}

}  // namespace perseid::internal::cuda
