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
  Status run(const Arguments& arguments, void* stream) const;

 private:
  RankSum(const RankSumConfig& config, std::shared_ptr<Gpu> gpu)
      : config_(config), gpu_(std::move(gpu)) {}

  RankSumConfig config_;
  std::shared_ptr<Gpu> gpu_;
  std::vector<Kernel> kernels_;
};

// The arguments of a launch but for how it waits. Whether all parts and the result can be read and
// written by vectors of so many elements.
bool bind_rank_sum(const RankSum::Arguments& given, int vector, RankSumArguments* launch);

}  // namespace perseid::internal::cuda
