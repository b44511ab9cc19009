// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/gpu_windows.hpp"

#include <algorithm>
#include <cstdlib>

#include "cuda/runtime/memory.hpp"

namespace perseid::internal::collective {
namespace {

using cuda::PeerSharing;

constexpr const char* kVariable = "PERSEID_PEER_MEMORY";

Status fill(const cuda::Gpu& gpu, uint32_t* data, size_t words, uint32_t initial) {
  constexpr size_t kAtOnce = 4 << 20;
  const std::vector<uint32_t> values(std::min(words, kAtOnce), initial);
  Status status;
  for (size_t at = 0; at < words && status.ok(); at += kAtOnce)
    status = cuda::copy(gpu, data + at, values.data(),
                        std::min(words - at, kAtOnce) * sizeof(uint32_t), nullptr);
  return status;
}

// What any rank asks for by the variable; "": none does. Collective.
Status find_wish(Group& group, const Operation& operation, std::string* wish) {
  const char* const value = std::getenv(kVariable);
  const std::string own = value == nullptr ? "" : value;
  Status status;
  if (!own.empty() && own != "vmm" && own != "ipc")
    status = Status::error(PERSEID_INVALID_ARGUMENT, kVariable, " is \"", own,
                           "\", expected vmm or ipc");
  std::vector<std::string> wishes;
  status = group.exchange(operation, status, own, &wishes);
  for (size_t rank = 0; status.ok() && rank < wishes.size(); ++rank) {
    if (!wish->empty() && !wishes[rank].empty() && wishes[rank] != *wish)
      return Status::error(PERSEID_INVALID_ARGUMENT, operation.name, ": ", kVariable, " is \"",
                           wishes[rank], "\" on rank ", rank, " and \"", *wish,
                           "\" on one before it; set it to the same on all ranks");
    if (wish->empty()) *wish = wishes[rank];
  }
  return status;
}

}  // namespace

Status GpuWindows::make(Group& group, const Operation& operation,
                        std::shared_ptr<const cuda::Gpu> gpu, const std::vector<size_t>& bytes,
                        size_t words, uint32_t initial, std::unique_ptr<GpuWindows>* windows) {
  std::string wish;
  if (Status status = find_wish(group, operation, &wish); !status.ok()) return status;
  Status status;
  if (wish != "ipc") {
    status = make(PeerSharing::kVmm, group, operation, gpu, bytes, words, initial, windows);
    // All ranks have the same status.
    const bool refused =
        status.code() == PERSEID_DEVICE_ERROR || status.code() == PERSEID_UNSUPPORTED;
    if (!refused || wish == "vmm") return status;
  }
  const Status by_ipc =
      make(PeerSharing::kIpc, group, operation, std::move(gpu), bytes, words, initial, windows);
  return by_ipc.ok() || wish == "ipc" ? by_ipc : status;
}

Status GpuWindows::make(PeerSharing sharing, Group& group, const Operation& operation,
                        const std::shared_ptr<const cuda::Gpu>& gpu,
                        const std::vector<size_t>& bytes, size_t words, uint32_t initial,
                        std::unique_ptr<GpuWindows>* windows) {
  const auto own = static_cast<size_t>(group.rank()), size = static_cast<size_t>(group.size());
  const bool threads = group.of_threads();
  auto made = std::make_unique<GpuWindows>();
  made->memory_.resize(size);
  std::unique_ptr<cuda::PeerMemory>& mine = made->memory_[own];
  cuda::PeerOffer offer;  // until all have mapped the memory
  Status status = cuda::PeerMemory::make(sharing, threads, gpu, bytes[own], &mine, &offer);
  // Before any rank can write there.
  if (status.ok()) status = fill(*gpu, reinterpret_cast<uint32_t*>(mine->data()), words, initial);

  std::vector<std::string> messages;
  std::vector<Descriptor> descriptors;
  status =
      group.exchange(operation, status, offer.message, &messages, &offer.descriptor, &descriptors);
  for (size_t rank = 0; status.ok() && rank < size; ++rank)
    if (rank != own)
      status = cuda::PeerMemory::map(sharing, threads, gpu, bytes[rank],
                                     {std::move(messages[rank]), std::move(descriptors[rank])},
                                     &made->memory_[rank]);
  // A failure is one of all ranks.
  status = group.exchange(operation, status, "", nullptr);
  if (status.ok()) *windows = std::move(made);
  return status;
}

}  // namespace perseid::internal::collective
