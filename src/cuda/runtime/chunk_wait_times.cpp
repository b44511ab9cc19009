// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/chunk_wait_times.hpp"

#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {

ChunkWaitTimes::ChunkWaitTimes(std::shared_ptr<Gpu> gpu, int64_t count)
    : gpu_(std::move(gpu)), count_(count) {
  status_ = gpu_->load(kSignalWaitHeader, {kChunkWaitsKernel}, &kernels_);
  void* data = nullptr;
  if (status_.ok())
    status_ = allocate(*gpu_, static_cast<size_t>(count_ + 1) * sizeof(ChunkWait), &data);
  waits_ = static_cast<ChunkWait*>(data);
}

ChunkWaitTimes::~ChunkWaitTimes() {
  if (waits_ != nullptr) release(*gpu_, waits_);
}

void ChunkWaitTimes::begin(void* stream) {
  if (!status_.ok()) return;
  const Gpu::Current current(*gpu_);
  status_ = current.status();
  const ChunkWaitsArguments arguments{.waits = waits_, .count = static_cast<int32_t>(count_)};
  if (status_.ok())
    status_ = gpu_->launch(kernels_[0], {.blocks = 1, .threads = 128}, &arguments, stream);
}

Status ChunkWaitTimes::read(std::vector<Wait>* waits) const {
  waits->assign(static_cast<size_t>(count_), {});
  if (!status_.ok()) return status_;
  std::vector<ChunkWait> noted(static_cast<size_t>(count_) + 1);
  Status status = copy(*gpu_, noted.data(), waits_, noted.size() * sizeof(ChunkWait), nullptr);
  const uint64_t began = noted.back().until;
  for (size_t i = 0; i < waits->size() && status.ok(); ++i) {
    const ChunkWait& wait = noted[i];
    if (wait.waiters == 0) continue;
    (*waits)[i] = {.begin = static_cast<int64_t>(~wait.not_before - began),
                   .end = static_cast<int64_t>(wait.until - began),
                   .waited = static_cast<int64_t>(wait.waited / wait.waiters)};
  }
  return status;
}

}  // namespace perseid::internal::cuda
