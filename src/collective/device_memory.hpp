// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU for plans of ranks on several hosts: words for signals, then data.
#pragma once

#include <algorithm>
#include <vector>

#include "base/align.hpp"
#include "cuda/runtime/memory.hpp"

namespace perseid::internal::collective {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() {
    if (data_ != nullptr) cuda::release(*gpu_, data_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  static size_t aligned(size_t bytes) { return align_up(bytes, kAlignment); }

  Status make(std::shared_ptr<const cuda::Gpu> gpu, size_t words, size_t bytes) {
    gpu_ = std::move(gpu);
    words_ = words;
    void* data = nullptr;
    Status status = cuda::allocate(*gpu_, begin() + std::max<size_t>(bytes, 1), &data);
    data_ = static_cast<std::byte*>(data);
    return status;
  }
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(data_); }
  std::byte* data() const { return data_ + begin(); }
  // All words, in the order of the stream.
  Status set_words(uint32_t epoch, void* stream) const {
    const std::vector<uint32_t> values(words_, epoch);
    return cuda::copy(*gpu_, data_, values.data(), words_ * sizeof(uint32_t), stream);
  }

 private:
  static constexpr size_t kAlignment = 4096;

  size_t begin() const { return aligned(words_ * sizeof(uint32_t)); }

  std::shared_ptr<const cuda::Gpu> gpu_;
  size_t words_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace perseid::internal::collective
