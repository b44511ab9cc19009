// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Splitting float32 operands into planes of f16, the host side. The kernel is
// device/split/split.hpp.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/split/config.hpp"
#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

inline constexpr const char* kSplitHeader = "cuda/device/split/split.hpp";
std::vector<std::string> split_kernels(const SplitConfig& config);

class Split {
 public:
  Status make(const SplitConfig& config, Gpu& gpu);

  const SplitConfig& config() const { return config_; }
  // Bytes of the planes and factors of so many lines; a multiple of 256.
  size_t bytes(int64_t lines, int64_t depth) const;
  // Sets planes and factors to memory of so many bytes, which begins at a multiple of 256.
  void place(void* memory, int64_t depth, SplitOperand* operand) const;
  // Both operands, placed. The context must be current.
  Status run(const Gpu& gpu, const SplitOperand (&operands)[2], int64_t depth, void* stream) const;

 private:
  SplitConfig config_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
