// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/peer_memory.hpp"

#include <mutex>

#include "cuda/runtime/ipc_memory.hpp"

namespace perseid::internal::cuda {
namespace {

// Held where handles are made, mapped and given up. Ranks that are threads of one process share
// handles, and destroy their plans at the same time: a release may meet the last unmapping of the
// same memory in the driver.
std::mutex& handles_mutex() {
  static std::mutex mutex;
  return mutex;
}

class VmmMemory final : public PeerMemory {
 public:
  static Status make(std::shared_ptr<const Gpu> gpu, size_t bytes, bool threads,
                     std::unique_ptr<PeerMemory>* memory, PeerOffer* offer) {
    std::unique_ptr<VmmMemory> made;
    if (Status status = open(std::move(gpu), bytes, &made); !status.ok()) return status;
    const Gpu::Current current(*made->gpu_);
    if (!current.status().ok()) return current.status();
    const std::lock_guard lock(handles_mutex());
    const AllocationProperties properties = made->properties();
    const Result result = made->driver_.create(&made->handle_, made->bytes_, &properties, 0);
    made->owned_ = result == kSuccess;
    Status status = check(made->gpu_->driver(), result, kMakingPeerMemory, kPeerAdvice);
    if (status.ok()) status = made->map_handle();
    if (status.ok() && !threads) status = made->share(&offer->descriptor);
    if (!status.ok()) return status;
    offer->message = message_of(made->handle_);
    *memory = std::move(made);
    return {};
  }
  // By the handle, of a thread of this process, or by the descriptor.
  static Status map(std::shared_ptr<const Gpu> gpu, size_t bytes, bool threads,
                    const PeerOffer& offer, std::unique_ptr<PeerMemory>* memory) {
    std::unique_ptr<VmmMemory> made;
    if (Status status = open(std::move(gpu), bytes, &made); !status.ok()) return status;
    const Gpu::Current current(*made->gpu_);
    if (!current.status().ok()) return current.status();
    const std::lock_guard lock(handles_mutex());
    Status status;
    if (threads) {
      if (!read_message(offer.message, &made->handle_))
        return Status::error(PERSEID_INTERNAL, "a handle of memory has another size");
    } else if (!offer.descriptor.opened()) {
      return Status::error(PERSEID_UNSUPPORTED,
                           "no descriptor of the memory came, expected ranks of one host that "
                           "share /tmp; unset PERSEID_ADDRESS and PERSEID_SHARED_MEMORY, or set "
                           "PERSEID_RENDEZVOUS to unix:PATH on all ranks");
    } else {
      const auto number = reinterpret_cast<void*>(static_cast<intptr_t>(offer.descriptor.number()));
      const Result result =
          made->driver_.import_handle(&made->handle_, number, HandleType::kDescriptor);
      made->owned_ = result == kSuccess;
      status = check(made->gpu_->driver(), result, kMappingPeerMemory, kPeerAdvice);
    }
    if (status.ok()) status = made->map_handle();
    if (status.ok()) *memory = std::move(made);
    return status;
  }
  ~VmmMemory() override {
    const Gpu::Current current(*gpu_);
    if (!current.status().ok()) return;
    const std::lock_guard lock(handles_mutex());
    if (mapped_) driver_.unmap(address_, bytes_);
    if (address_ != 0) driver_.unreserve(address_, bytes_);
    if (owned_) driver_.release(handle_);
  }

 private:
  VmmMemory(std::shared_ptr<const Gpu> gpu, const PeerDriver& driver)
      : PeerMemory(std::move(gpu)), driver_(driver) {}

  static Status open(std::shared_ptr<const Gpu> gpu, size_t bytes,
                     std::unique_ptr<VmmMemory>* memory) {
    const PeerDriver* driver = nullptr;
    if (Status status = load_peer_driver(&driver); !status.ok()) return status;
    std::unique_ptr<VmmMemory> made(new VmmMemory(std::move(gpu), *driver));
    const AllocationProperties properties = made->properties();
    size_t granularity = 0;
    const Result result = driver->granularity(&granularity, &properties, 0);
    if (Status status = check(made->gpu_->driver(), result, kMakingPeerMemory, kPeerAdvice);
        !status.ok())
      return status;
    made->bytes_ = (bytes + granularity - 1) / granularity * granularity;
    *memory = std::move(made);
    return {};
  }
  AllocationProperties properties() const {
    AllocationProperties properties;
    properties.location.index = gpu_->facts().index;
    return properties;
  }
  // The context must be current.
  Status map_handle() {
    Result result = driver_.reserve(&address_, bytes_, 0, 0, 0);
    if (result != kSuccess) address_ = 0;
    if (result == kSuccess) result = driver_.map(address_, bytes_, 0, handle_, 0);
    mapped_ = result == kSuccess;
    AllocationAccess access;
    access.location.index = gpu_->facts().index;
    if (result == kSuccess) result = driver_.set_access(address_, bytes_, &access, 1);
    return check(gpu_->driver(), result, kMappingPeerMemory, kPeerAdvice);
  }
  // A descriptor for another process.
  Status share(Descriptor* descriptor) const {
    int number = -1;
    const Result result = driver_.export_handle(&number, handle_, HandleType::kDescriptor, 0);
    if (Status status = check(gpu_->driver(), result, "sharing memory of the GPU", kPeerAdvice);
        !status.ok())
      return status;
    *descriptor = Descriptor(above_standard_streams(number));
    return {};
  }

  const PeerDriver& driver_;
  AllocationHandle handle_ = 0;
  bool owned_ = false;  // the handle
  size_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace

Status PeerMemory::make(PeerSharing sharing, bool threads, std::shared_ptr<const Gpu> gpu,
                        size_t bytes, std::unique_ptr<PeerMemory>* memory, PeerOffer* offer) {
  if (bytes > size_t{1} << 46)
    return Status::error(PERSEID_OUT_OF_MEMORY, bytes, " bytes of the GPU were asked for; ",
                         "make the problem smaller");
  if (sharing == PeerSharing::kVmm)
    return VmmMemory::make(std::move(gpu), bytes, threads, memory, offer);
  return threads ? make_plain_memory(std::move(gpu), bytes, memory, offer)
                 : make_ipc_memory(std::move(gpu), bytes, memory, offer);
}

Status PeerMemory::map(PeerSharing sharing, bool threads, std::shared_ptr<const Gpu> gpu,
                       size_t bytes, PeerOffer offer, std::unique_ptr<PeerMemory>* memory) {
  if (sharing == PeerSharing::kVmm)
    return VmmMemory::map(std::move(gpu), bytes, threads, offer, memory);
  return threads ? map_plain_memory(std::move(gpu), offer, memory)
                 : map_ipc_memory(std::move(gpu), std::move(offer), memory);
}

}  // namespace perseid::internal::cuda
