// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f16 and bf16 on sm_90a, the host side: configuration, tensor maps and launch. The
// kernel is device/sm90/matmul/matmul.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/matmul/tensor_core.hpp"
#include "cuda/matmul/whole_chunks.hpp"
#include "cuda/runtime/gpu.hpp"
#include "cuda/sm90/split_k.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// Why the kernel does not take the problem, as a sentence's end; "" where it does.
std::string refuse_sm90_matmul(const MatmulProblem& problem);
// Without the layout of the operands.
Sm90MatmulConfig choose_sm90_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// How long it takes: multiply-adds that a multiprocessor would do in that time at its best rate.
double estimate_sm90_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// Waves of whole tiles, more by what pairs of blocks, or single ones, cost where the other is
// faster; the rate of the tensor cores, relative to the best.
struct Sm90MatmulWaves {
  double waves, rate;
};
Sm90MatmulWaves estimate_sm90_waves(const MatmulProblem& problem, const Sm90MatmulConfig& config,
                                    int32_t multiprocessors);
// The configurations that may be fastest, the one above first, and their names.
std::vector<Sm90MatmulConfig> sm90_matmul_candidates(const MatmulProblem& problem,
                                                     int32_t multiprocessors);
std::string config_name(const Sm90MatmulConfig& config);
// Name expressions of the kernels, and their header: one for each layout of the operands, a K-major
// and M-major, for each of which b K-major and N-major.
std::vector<std::string> sm90_matmul_kernels(const Sm90MatmulConfig& config);
inline constexpr const char* kSm90MatmulHeader = "cuda/device/sm90/matmul/matmul.hpp";

// Tensors that TMA does not take (not contiguous along a row or a column, or with addresses or
// strides that are no multiples of 16 bytes) are left to TensorCoreMatmul; parts of other ranks
// need tensors that TMA takes, and so do leaves. Several leaves may lie farther from each other
// along k than their depth: a and b have a longer k then.
class Sm90Matmul {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu, std::unique_ptr<Sm90Matmul>* made) {
    return make(problem, choose_sm90_matmul(problem, gpu.facts().multiprocessors), gpu, made);
  }
  static Status make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                     std::unique_ptr<Sm90Matmul>* made);

  // Also of the fallback. Its address is a multiple of 16.
  size_t workspace() const {
    const size_t chunks = whole_chunks_ == nullptr ? 0 : whole_chunks_->workspace();
    return splits_at() + max(max(splits_.workspace(problem_.batch), chunks), aside());
  }
  bool maps(const MatmulArguments& arguments) const;  // whether TMA takes the tensors
  // `parts`: of a product over ranks, where the configuration says so. c has all rows and columns
  // then; those of the own shard alone are stored there.
  Status run(const MatmulArguments& arguments, void* workspace, void* stream,
             const RankParts& parts = {}) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  Sm90Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config, const Gpu& gpu);

  Status fill_shards(const RankParts& parts, Sm90ShardArguments* launch) const;
  // In the workspace.
  size_t splits_at() const {
    const size_t own = async_ == nullptr ? 0 : async_->workspace();
    return static_cast<size_t>(
        round_up(static_cast<int64_t>(max(fallback_->workspace(), own)), 16));
  }

  size_t aside() const;

  MatmulProblem problem_;
  Sm90MatmulConfig config_;
  const Gpu& gpu_;
  SplitKLaunches splits_;
  // In the order of sm90_matmul_kernels; the second ones are those of transposed launches, with
  // few rows alone.
  std::vector<Kernel> kernels_[2];
  std::unique_ptr<TensorCoreMatmul> fallback_;
  std::unique_ptr<MatmulAsync> async_;         // null without chunks
  std::unique_ptr<WholeChunks> whole_chunks_;  // around the fallback, where it may not wait
};

}  // namespace perseid::internal::cuda
