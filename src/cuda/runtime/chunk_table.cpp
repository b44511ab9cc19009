// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/chunk_table.hpp"

#include <vector>

#include "cuda/runtime/memory.hpp"

namespace perseid::internal::cuda {

DeviceChunkTable::~DeviceChunkTable() { release(gpu_, begin_); }

Status DeviceChunkTable::upload(const ChunkCut& cut) {
  if (!cut.present()) return {};
  count_ = static_cast<int32_t>(cut.count);
  dim_ = cut.dim;
  if (gpu_.facts().assumed) return {};  // no execution reads it
  const std::vector<int32_t> begin(cut.begin, cut.begin + cut.count + 1);
  const size_t bytes = begin.size() * sizeof(int32_t);
  void* memory = nullptr;
  if (Status status = allocate(gpu_, bytes, &memory); !status.ok()) return status;
  begin_ = static_cast<int32_t*>(memory);
  return copy(gpu_, memory, begin.data(), bytes, nullptr);
}

}  // namespace perseid::internal::cuda
