// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that other GPUs and processes reach.
//
// By virtual memory management (VMM) all map it themselves: it lives as long as anybody maps it,
// also after the process that made it. By CUDA IPC (ipc_memory.hpp) it lives as long as the process
// that made it.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "base/descriptor.hpp"
#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

enum class PeerSharing { kVmm, kIpc };

// What another rank maps memory by. The maker keeps it until the others have.
struct PeerOffer {
  std::string message;
  Descriptor descriptor;  // that goes with the message to other processes, if there is one
};

class PeerMemory {
 public:
  // Memory of this GPU, not initialised. At least `bytes`. `threads`: for threads of this process,
  // else for other processes.
  static Status make(PeerSharing sharing, bool threads, std::shared_ptr<const Gpu> gpu,
                     size_t bytes, std::unique_ptr<PeerMemory>* memory, PeerOffer* offer);
  // What another rank has made, for this GPU. Without the descriptor where that could not be sent.
  static Status map(PeerSharing sharing, bool threads, std::shared_ptr<const Gpu> gpu, size_t bytes,
                    PeerOffer offer, std::unique_ptr<PeerMemory>* memory);
  // Unmaps it. Nothing may use it any more.
  virtual ~PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 protected:
  explicit PeerMemory(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}

  const std::shared_ptr<const Gpu> gpu_;
  DeviceAddress address_ = 0;
};

// Messages are the bytes of a struct.
template <class Content>
std::string message_of(const Content& content) {
  return std::string(reinterpret_cast<const char*>(&content), sizeof content);
}
template <class Content>
bool read_message(const std::string& message, Content* content) {
  if (message.size() != sizeof *content) return false;
  std::memcpy(content, message.data(), sizeof *content);
  return true;
}

inline constexpr const char* kPeerAdvice =
    "ranks need GPUs with peer access (nvidia-smi topo -p2p r) of one host, and the same GPUs "
    "visible to each";
inline constexpr const char* kMakingPeerMemory = "making memory that GPUs share";
inline constexpr const char* kMappingPeerMemory = "mapping memory of another GPU";

}  // namespace perseid::internal::cuda
