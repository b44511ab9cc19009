// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/gpu_windows.hpp"

#include "cuda/runtime/memory.hpp"

namespace perseid::internal::collective {
namespace {

Status fill(const cuda::Gpu& gpu, void* data, size_t words, uint32_t initial) {
  const std::vector<uint32_t> values(words, initial);
  return cuda::copy(gpu, data, values.data(), words * sizeof(uint32_t), nullptr);
}

}  // namespace

Status GpuWindows::make(Group& group, const Operation& operation,
                        std::shared_ptr<const cuda::Gpu> gpu, size_t bytes, size_t words,
                        uint32_t initial, std::unique_ptr<GpuWindows>* windows) {
  const auto own = static_cast<size_t>(group.rank()), size = static_cast<size_t>(group.size());
  auto made = std::make_unique<GpuWindows>();
  made->memory_.resize(size);
  std::unique_ptr<cuda::PeerMemory>& mine = made->memory_[own];
  Status status = cuda::PeerMemory::make(gpu, bytes, &mine);
  // Before any rank can write there.
  if (status.ok()) status = fill(*gpu, mine->data(), words, initial);
  const bool threads = group.of_threads();
  Descriptor descriptor;  // open until all have mapped the memory
  if (status.ok() && !threads) status = mine->share(&descriptor);

  std::vector<std::string> messages;
  std::vector<Descriptor> descriptors;
  const std::string handle = Writer().number(status.ok() ? mine->handle() : 0).take();
  status = group.exchange(operation, status, handle, &messages, &descriptor, &descriptors);
  for (size_t rank = 0; status.ok() && rank < size; ++rank) {
    if (rank == own) continue;
    std::unique_ptr<cuda::PeerMemory>& theirs = made->memory_[rank];
    if (threads) {
      status = cuda::PeerMemory::map(gpu, Reader(messages[rank]).number(), bytes, &theirs);
    } else if (descriptors[rank].opened()) {
      status = cuda::PeerMemory::map(gpu, descriptors[rank], bytes, &theirs);
    } else {
      status = Status::error(PERSEID_UNSUPPORTED, operation.name, ": rank ", rank,
                             " sent no descriptor of its GPU's memory, expected ranks of one host "
                             "that share /tmp; unset PERSEID_ADDRESS and PERSEID_SHARED_MEMORY, "
                             "or set PERSEID_RENDEZVOUS to unix:PATH on all ranks");
    }
  }
  // A failure is one of all ranks.
  status = group.exchange(operation, status, "", nullptr);
  if (status.ok()) *windows = std::move(made);
  return status;
}

}  // namespace perseid::internal::collective
