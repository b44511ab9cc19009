// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sums over ranks on a GPU, the host side. The kernel is device/ranks/sum.hpp.
#pragma once

#include <memory>
#include <span>

#include "cuda/device/ranks/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/chunks.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::cuda {

// Name expressions of the kernels, with and without vectors, and their header.
std::vector<std::string> rank_sum_kernels(RankSumConfig config);
inline constexpr const char* kRankSumHeader = "cuda/device/ranks/sum.hpp";

class RankSum {
 public:
  static Status make(const RankSumConfig& config, std::shared_ptr<Gpu> gpu,
                     std::unique_ptr<RankSum>* sum);

  struct Arguments {
    const char* operation;          // of the ranks, for the sentence about a missing part
    std::span<const Tensor> parts;  // [batch, rows, columns] of each rank, columns side by side
    Tensor bias = {};               // [columns], or as out, where there is one
    Tensor out;                     // of any strides
    bool average = false;
    Arrival arrival = {};  // of all parts
    int32_t signals = 0;   // how many
  };
  // Sums that wait for the same signals, in as few launches as can be.
  Status run(std::span<const Arguments> arguments, void* stream) const;
  Status run(const Arguments& arguments, void* stream) const {
    return run(std::span(&arguments, 1), stream);
  }

 private:
  RankSum(const RankSumConfig& config, std::shared_ptr<Gpu> gpu)
      : config_(config), gpu_(std::move(gpu)) {}
  Status run(const Arguments& given, bool vectors, RankSumArguments* launch, void* stream) const;

  RankSumConfig config_;
  std::shared_ptr<Gpu> gpu_;
  std::vector<Kernel> kernels_;
};

// The arguments of a launch but for how it waits, of as many sums as it takes.
struct BoundRankSums {
  size_t count = 0;     // of the given ones, the first
  bool vectors = true;  // parts and results can be read and written by vectors of so many elements
};
BoundRankSums bind_rank_sums(std::span<const RankSum::Arguments> given, int vector,
                             RankSumArguments* launch);

}  // namespace perseid::internal::cuda
