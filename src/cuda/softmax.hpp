// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax on a GPU, the host side: the kernels' configuration and their launches. The kernels are
// in device/softmax.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "cuda/device/softmax/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/softmax_problem.hpp"

namespace perseid::internal::cuda {

enum class SoftmaxKind {
  kRows,    // rows stay in registers, longer ones as kShared, then kStream, the longest as kSplit
  kShared,  // rows in the shared memory of a block or a cluster: read once, written once
  kStream,  // rows in chunks through the shared memory of the whole GPU: read once, written once
  kSplit,   // rows in chunks: read twice, written once
  kColumns  // over a dimension that is not the fastest one
};

// A kernel's configuration. It depends on the length of the rows, the types and the GPU alone, so
// that a row's result does not depend on the batch.
struct SoftmaxChoice {
  SoftmaxKind kind;
  SoftmaxConfig config;
};
SoftmaxChoice choose_softmax(SoftmaxKind kind, const SoftmaxProblem& problem, bool backward,
                             const GpuFacts& gpu);
// Name expressions of the kernels of a choice, in the order of their launch, and their header.
std::vector<std::string> softmax_kernels(const SoftmaxChoice& choice, bool backward);
const char* softmax_header(SoftmaxKind kind);

// Whether forward reads each row once; whether the reduced dimension is the innermost one.
bool softmax_fits_rows(const SoftmaxProblem& problem, const GpuFacts& gpu);
bool softmax_is_innermost(const SoftmaxProblem& problem);

class CudaSoftmax {
 public:
  static Status make(SoftmaxKind kind, const SoftmaxProblem& problem, Gpu& gpu,
                     std::unique_ptr<CudaSoftmax>* made);

  size_t workspace(bool backward) const;
  Status forward(const SoftmaxForward& tensors, std::byte* workspace, void* stream) const;
  Status backward(const SoftmaxBackward& tensors, std::byte* workspace, void* stream) const;
  // Which kernels were chosen, for explain.
  std::string description() const;

 private:
  struct Direction {
    SoftmaxChoice choice;
    std::vector<Kernel> kernels;
    int64_t chunk = 0, chunks = 0;
  };

  CudaSoftmax(const SoftmaxProblem& problem, const Gpu& gpu) : problem_(problem), gpu_(gpu) {}
  Status run(const Direction& direction, SoftmaxArguments& arguments, std::byte* workspace,
             void* stream) const;

  SoftmaxProblem problem_;
  const Gpu& gpu_;
  Direction forward_, backward_;
};

}  // namespace perseid::internal::cuda
