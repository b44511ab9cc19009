// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that other GPUs and processes map. It lives as long as anybody maps it, also
// after the process that made it.
#pragma once

#include <memory>

#include "base/descriptor.hpp"
#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

class PeerMemory {
 public:
  // Memory of this GPU, not initialised. At least `bytes`.
  static Status make(std::shared_ptr<const Gpu> gpu, size_t bytes,
                     std::unique_ptr<PeerMemory>* memory);
  // What another process has made, by the descriptor that it has sent.
  static Status map(std::shared_ptr<const Gpu> gpu, const Descriptor& descriptor, size_t bytes,
                    std::unique_ptr<PeerMemory>* memory);
  // What another thread of this process has made, by its handle.
  static Status map(std::shared_ptr<const Gpu> gpu, AllocationHandle handle, size_t bytes,
                    std::unique_ptr<PeerMemory>* memory);
  // Unmaps it. Nothing may use it any more.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  AllocationHandle handle() const { return handle_; }
  // A descriptor for another process.
  Status share(Descriptor* descriptor) const;

 private:
  PeerMemory(std::shared_ptr<const Gpu> gpu, const PeerDriver& driver)
      : gpu_(std::move(gpu)), driver_(driver) {}
  static Status open(std::shared_ptr<const Gpu> gpu, size_t bytes,
                     std::unique_ptr<PeerMemory>* memory);
  Status map_handle();

  std::shared_ptr<const Gpu> gpu_;
  const PeerDriver& driver_;
  AllocationHandle handle_ = 0;
  bool owned_ = false;  // the handle
  DeviceAddress address_ = 0;
  size_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace perseid::internal::cuda
