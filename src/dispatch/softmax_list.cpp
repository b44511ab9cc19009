// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of softmax, best first.
#include "cpu/reference/reference.hpp"
#include "cuda/softmax.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {
namespace {

using Made = std::unique_ptr<Executable<Softmax>>;

class SoftmaxExecutable final : public Executable<Softmax> {
 public:
  explicit SoftmaxExecutable(std::unique_ptr<cuda::CudaSoftmax> softmax)
      : softmax_(std::move(softmax)) {}

  size_t workspace(Direction direction) const override {
    return softmax_->workspace(direction == Direction::kBackward);
  }
  Status forward(const SoftmaxForward& arguments, std::byte* workspace,
                 void* stream) const override {
    return softmax_->forward(arguments, workspace, stream);
  }
  Status backward(const SoftmaxBackward& arguments, std::byte* workspace,
                  void* stream) const override {
    return softmax_->backward(arguments, workspace, stream);
  }
  std::string kernels() const override { return softmax_->description(); }

 private:
  std::unique_ptr<cuda::CudaSoftmax> softmax_;
};

template <cuda::SoftmaxKind kKind>
Status make_on_gpu(const SoftmaxProblem& problem, const Device& device, Made* made) {
  std::unique_ptr<cuda::CudaSoftmax> softmax;
  Status status = cuda::CudaSoftmax::make(kKind, problem, *device.gpu, &softmax);
  if (status.ok()) *made = std::make_unique<SoftmaxExecutable>(std::move(softmax));
  return status;
}

std::string refuse_inner_dims(const SoftmaxProblem& problem) {
  return cuda::softmax_is_innermost(problem)
             ? std::string()
             : concatenate("made for the innermost dimension, got dim ", problem.dim, " of ",
                           problem.rank);
}

// Rows in the registers of a warp, a block or a cluster, or in the shared memory of a cluster or of
// the whole GPU: read once, written once.
constexpr Implementation<Softmax> kGpuRows = {
    .name = "cuda:rows",
    .refuse =
        [](const SoftmaxProblem& problem, const Device& device) {
          if (!cuda::softmax_fits_rows(problem, device.gpu->facts()))
            return concatenate("a row of ", problem.length(), " elements does not fit into ",
                               device.gpu->facts().has_clusters() ? "the GPU" : "a block");
          return refuse_inner_dims(problem);
        },
    .make = make_on_gpu<cuda::SoftmaxKind::kRows>};

// Rows of any length, in chunks: read twice, written once.
constexpr Implementation<Softmax> kGpuSplit = {
    .name = "cuda:split",
    .refuse = [](const SoftmaxProblem& problem,
                 const Device&) { return refuse_inner_dims(problem); },
    .make = make_on_gpu<cuda::SoftmaxKind::kSplit>};

// Any dimension: a lane takes one row, adjacent lanes adjacent rows.
constexpr Implementation<Softmax> kGpuColumns = {
    .name = "cuda:columns",
    .refuse = [](const SoftmaxProblem&, const Device&) { return std::string(); },
    .make = make_on_gpu<cuda::SoftmaxKind::kColumns>};

// Any dim, strides, types and mask: one pass over rows, contiguous or strided.
constexpr Implementation<Softmax> kSimd = {
    .name = "cpu:simd",
    .refuse = [](const SoftmaxProblem&, const Device&) { return std::string(); },
    .make =
        [](const SoftmaxProblem& problem, const Device& device, Made* made) {
          const cpu::KernelTable& kernels = *device.kernels;
          return run_on_cpu<Softmax>(
              problem, device,
              {.forward = kernels.softmax_forward,
               .forward_workspace = kernels.softmax_workspace(problem, device.workers(), false),
               .backward = kernels.softmax_backward,
               .backward_workspace = kernels.softmax_workspace(problem, device.workers(), true)},
              made);
        }};

// The formula in float64, element by element: the oracle, slow.
constexpr Implementation<Softmax> kReference = {
    .name = "cpu:reference",
    .refuse = [](const SoftmaxProblem&, const Device&) { return std::string(); },
    .make =
        [](const SoftmaxProblem& problem, const Device& device, Made* made) {
          return run_on_cpu<Softmax>(problem, device,
                                     {.forward = cpu::reference::softmax_forward,
                                      .backward = cpu::reference::softmax_backward},
                                     made);
        }};

constexpr Implementation<Softmax> kList[] = {kGpuRows, kGpuSplit, kGpuColumns, kSimd, kReference};

}  // namespace

std::span<const Implementation<Softmax>> softmax_implementations() { return kList; }

}  // namespace perseid::internal::dispatch
