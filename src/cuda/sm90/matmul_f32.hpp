// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f32 on sm_90a by products of f16, the host side: a kernel splits a and b into planes
// (device/split/split.hpp), the kernel of matmul multiplies them (device/sm90/matmul/matmul.hpp),
// and a fixup computes the rows and columns that f16 cannot carry (device/matmul/fma.hpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/matmul/fma.hpp"
#include "cuda/matmul/parts.hpp"
#include "cuda/matmul/split.hpp"
#include "cuda/matmul/whole_chunks.hpp"
#include "cuda/sm90/split_k.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// Why the kernel does not sum f32 in canonical order, as a sentence's end; "" where it does: into
// results that TMA stores, as no others have its order.
std::string refuse_sm90_f32_leaves(const MatmulProblem& problem);
Sm90MatmulConfig choose_sm90_f32_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// Name expression of the kernel that multiplies planes; its header is kSm90MatmulHeader.
std::vector<std::string> sm90_f32_matmul_kernels(const Sm90MatmulConfig& config);

// An operand that arrives in chunks of rows of a, or of columns of b, is split and multiplied part
// by part (cuda/matmul/parts.hpp). All chunks are waited for where k is cut, tiles are split, or
// the batch takes several turns.
//
// Leaves of canonical order are split together, and summed in one launch: of each entry of the
// batch (device/sm90/matmul/promoted_leaf_consumer.hpp).
//
// Results that TMA does not store (not contiguous along a row or a column, or with an address or
// strides that are no multiples of 16 bytes) are left to the fixup as a whole. a and b may have any
// strides.
class Sm90F32Matmul {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu, std::unique_ptr<Sm90F32Matmul>* made) {
    return make(problem, choose_sm90_f32_matmul(problem, gpu.facts().multiprocessors), gpu, made);
  }
  static Status make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                     std::unique_ptr<Sm90F32Matmul>* made);

  // The planes of as many batch entries, or leaves, as are multiplied at a time, the sums of split
  // tiles, or of leaves, and the progress of chunks.
  size_t workspace() const;
  Status run(const MatmulArguments& arguments, void* workspace, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  Sm90F32Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config, const Gpu& gpu);
  size_t planes_bytes() const;
  size_t chunks_at() const;  // in the workspace
  Status run_batch(const MatmulArguments& arguments, void* workspace, void* stream) const;
  Status run_leaves(const MatmulArguments& arguments, void* workspace, void* stream) const;
  Status run_parts(const MatmulArguments& arguments, void* workspace, void* stream) const;
  // The parts of a launch; one where all chunks are waited for.
  std::vector<ProductPart> parts_of(const MatmulLaunch& given,
                                    const MatmulArguments& arguments) const;
  bool has_parts() const;
  // Lines of planes that are in the workspace already are not split again.
  struct Kept {
    bool a = false, b = false;
  };
  Status multiply(const MatmulProblem& problem, MatmulLaunch given, Kept kept, void* workspace,
                  void* stream) const;

  MatmulProblem problem_;
  Sm90MatmulConfig config_;
  const Gpu& gpu_;
  SplitKLaunches splits_;
  std::vector<Kernel> kernels_;
  Split split_;
  std::unique_ptr<FmaMatmul> fixup_;     // null with several leaves
  std::unique_ptr<WholeChunks> chunks_;  // null without chunks
};

}  // namespace perseid::internal::cuda
