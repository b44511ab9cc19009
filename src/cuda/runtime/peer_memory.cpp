// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/peer_memory.hpp"

#include <mutex>

namespace perseid::internal::cuda {
namespace {

constexpr const char* kMaking = "making memory that GPUs share";
constexpr const char* kMapping = "mapping memory of another GPU";
constexpr const char* kAdvice =
    "ranks need GPUs with peer access (nvidia-smi topo -p2p r) of one host, and the same GPUs "
    "visible to each";

// Held where handles are made, mapped and given up. Ranks that are threads of one process share
// handles, and destroy their plans at the same time: a release may meet the last unmapping of the
// same memory in the driver.
std::mutex& handles_mutex() {
  static std::mutex mutex;
  return mutex;
}

AllocationProperties properties_of(const Gpu& gpu) {
  AllocationProperties properties;
  properties.location.index = gpu.facts().index;
  return properties;
}

}  // namespace

Status PeerMemory::open(std::shared_ptr<const Gpu> gpu, size_t bytes,
                        std::unique_ptr<PeerMemory>* memory) {
  const PeerDriver* driver = nullptr;
  if (Status status = load_peer_driver(&driver); !status.ok()) return status;
  std::unique_ptr<PeerMemory> made(new PeerMemory(std::move(gpu), *driver));
  const AllocationProperties properties = properties_of(*made->gpu_);
  size_t granularity = 0;
  const Result result = driver->granularity(&granularity, &properties, 0);
  if (Status status = check(made->gpu_->driver(), result, kMaking, kAdvice); !status.ok())
    return status;
  if (bytes > size_t{1} << 46)
    return Status::error(PERSEID_OUT_OF_MEMORY, bytes, " bytes of the GPU were asked for; ",
                         "make the problem smaller");
  made->bytes_ = (bytes + granularity - 1) / granularity * granularity;
  *memory = std::move(made);
  return {};
}

Status PeerMemory::make(std::shared_ptr<const Gpu> gpu, size_t bytes,
                        std::unique_ptr<PeerMemory>* memory) {
  std::unique_ptr<PeerMemory> made;
  if (Status status = open(std::move(gpu), bytes, &made); !status.ok()) return status;
  const Gpu::Current current(*made->gpu_);
  if (!current.status().ok()) return current.status();
  std::unique_lock lock(handles_mutex());
  const AllocationProperties properties = properties_of(*made->gpu_);
  const Result result = made->driver_.create(&made->handle_, made->bytes_, &properties, 0);
  made->owned_ = result == kSuccess;
  Status status = check(made->gpu_->driver(), result, kMaking, kAdvice);
  if (status.ok()) status = made->map_handle();
  lock.unlock();
  if (status.ok()) *memory = std::move(made);
  return status;
}

Status PeerMemory::map(std::shared_ptr<const Gpu> gpu, const Descriptor& descriptor, size_t bytes,
                       std::unique_ptr<PeerMemory>* memory) {
  std::unique_ptr<PeerMemory> made;
  if (Status status = open(std::move(gpu), bytes, &made); !status.ok()) return status;
  const Gpu::Current current(*made->gpu_);
  if (!current.status().ok()) return current.status();
  std::unique_lock lock(handles_mutex());
  const auto number = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.number()));
  const Result result =
      made->driver_.import_handle(&made->handle_, number, HandleType::kDescriptor);
  made->owned_ = result == kSuccess;
  Status status = check(made->gpu_->driver(), result, kMapping, kAdvice);
  if (status.ok()) status = made->map_handle();
  lock.unlock();
  if (status.ok()) *memory = std::move(made);
  return status;
}

Status PeerMemory::map(std::shared_ptr<const Gpu> gpu, AllocationHandle handle, size_t bytes,
                       std::unique_ptr<PeerMemory>* memory) {
  std::unique_ptr<PeerMemory> made;
  if (Status status = open(std::move(gpu), bytes, &made); !status.ok()) return status;
  const Gpu::Current current(*made->gpu_);
  if (!current.status().ok()) return current.status();
  std::unique_lock lock(handles_mutex());
  made->handle_ = handle;
  Status status = made->map_handle();
  lock.unlock();
  if (status.ok()) *memory = std::move(made);
  return status;
}

// The context must be current.
Status PeerMemory::map_handle() {
  Result result = driver_.reserve(&address_, bytes_, 0, 0, 0);
  if (result != kSuccess) address_ = 0;
  if (result == kSuccess) result = driver_.map(address_, bytes_, 0, handle_, 0);
  mapped_ = result == kSuccess;
  AllocationAccess access;
  access.location.index = gpu_->facts().index;
  if (result == kSuccess) result = driver_.set_access(address_, bytes_, &access, 1);
  return check(gpu_->driver(), result, kMapping, kAdvice);
}

Status PeerMemory::share(Descriptor* descriptor) const {
  int number = -1;
  const Result result = driver_.export_handle(&number, handle_, HandleType::kDescriptor, 0);
  if (Status status = check(gpu_->driver(), result, "sharing memory of the GPU", kAdvice);
      !status.ok())
    return status;
  *descriptor = Descriptor(above_standard_streams(number));
  return {};
}

PeerMemory::~PeerMemory() {
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return;
  const std::lock_guard lock(handles_mutex());
  if (mapped_) driver_.unmap(address_, bytes_);
  if (address_ != 0) driver_.unreserve(address_, bytes_);
  if (owned_) driver_.release(handle_);
}

}  // namespace perseid::internal::cuda
