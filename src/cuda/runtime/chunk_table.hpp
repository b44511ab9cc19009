// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The boundaries of a plan's chunks, in memory of the device.
#pragma once

#include "cuda/runtime/gpu.hpp"
#include "math/chunks.hpp"

namespace perseid::internal::cuda {

class DeviceChunkTable {
 public:
  explicit DeviceChunkTable(const Gpu& gpu) : gpu_(gpu) {}
  ~DeviceChunkTable();
  DeviceChunkTable(const DeviceChunkTable&) = delete;
  DeviceChunkTable& operator=(const DeviceChunkTable&) = delete;

  // Once, where the operand is cut.
  Status upload(const ChunkCut& cut);
  ChunkDim dim() const { return dim_; }
  bool present() const { return dim_ != ChunkDim::kNone; }
  int32_t count() const { return count_; }
  // With the pivot of an execution.
  ChunkTable<int32_t> from(int64_t first) const {
    return {begin_, count_, static_cast<int32_t>(first)};
  }

 private:
  const Gpu& gpu_;
  ChunkDim dim_ = ChunkDim::kNone;
  int32_t* begin_ = nullptr;  // memory of the device
  int32_t count_ = 0;
};

}  // namespace perseid::internal::cuda
