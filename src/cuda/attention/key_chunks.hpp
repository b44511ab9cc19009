// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Keys and values of attention that arrive in chunks (device/chunk_waits.hpp), the host
// side: what one launch is told of their signals; and a wait in stream order for all of them,
// before kernels that know nothing of chunks.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "cuda/runtime/chunk_table.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

class KeyChunks {
 public:
  explicit KeyChunks(const Gpu& gpu) : gpu_(gpu), table_(gpu) {}

  // Copies the boundaries to the device, where there are chunks.
  Status upload(const AttentionProblem& problem);
  // Fills all but `failed`. Chunks that no query sees are not missing. The context must be current.
  Status fill(const char* operation, const Arrival& arrival, void* stream,
              AsyncArguments* async) const;

 private:
  const Gpu& gpu_;
  DeviceChunkTable table_;
  ChunkRange<int32_t> read_ = {0, 0x7fffffff};
};

class WholeKeyChunks {
 public:
  static constexpr size_t kWorkspace = 2 * sizeof(uint64_t);

  explicit WholeKeyChunks(Gpu& gpu) : gpu_(gpu), chunks_(gpu) {}

  Status prepare(const AttentionProblem& problem);
  // Kernels queued later find the keys and values of every chunk that some query sees.
  Status await(const Arrival& arrival, std::byte* workspace, void* stream) const;

 private:
  Gpu& gpu_;
  KeyChunks chunks_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
