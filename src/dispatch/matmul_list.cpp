// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of matmul, best first.
#include "cpu/reference/reference.hpp"
#include "cuda/matmul.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {
namespace {

using Made = std::unique_ptr<Executable<Matmul>>;

class GpuMatmul final : public Executable<Matmul> {
 public:
  explicit GpuMatmul(std::unique_ptr<cuda::MatmulOnGpu> matmul) : matmul_(std::move(matmul)) {}

  size_t workspace(Direction) const override { return 0; }
  Status forward(const MatmulArguments& arguments, std::byte*, void* stream) const override {
    return matmul_->run(arguments, stream);
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return matmul_->description(); }

 private:
  std::unique_ptr<cuda::MatmulOnGpu> matmul_;
};

Status make_on_gpu(const MatmulProblem& problem, const Device& device, Made* made) {
  std::unique_ptr<cuda::MatmulOnGpu> matmul;
  Status status = cuda::MatmulOnGpu::make(problem, *device.gpu, &matmul);
  if (status.ok()) *made = std::make_unique<GpuMatmul>(std::move(matmul));
  return status;
}

// Warp products of tensor cores, any strides: compute capability 8.0 and up.
constexpr Implementation<Matmul> kTensorCore = {
    .name = "cuda:tensor_core",
    .refuse =
        [](const MatmulProblem& problem, const Device&) {
          return cuda::matmul_on_tensor_cores(problem)
                     ? std::string()
                     : concatenate("made for f16 and bf16, got ", name_of(problem.dtype));
        },
    .make = make_on_gpu};

// Multiply-add in the type itself, any strides.
constexpr Implementation<Matmul> kFma = {
    .name = "cuda:fma",
    .refuse =
        [](const MatmulProblem& problem, const Device&) {
          return cuda::matmul_on_tensor_cores(problem)
                     ? concatenate("made for f32 and f64, got ", name_of(problem.dtype))
                     : std::string();
        },
    .make = make_on_gpu};

// Both operands repacked into panels as they are used: any strides and types.
constexpr Implementation<Matmul> kPacked = {
    .name = "cpu:packed",
    .refuse = [](const MatmulProblem&, const Device&) { return std::string(); },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          const cpu::KernelTable& kernels = *device.kernels;
          return run_on_cpu<Matmul>(
              problem, device,
              {.forward = kernels.matmul,
               .forward_workspace = kernels.matmul_workspace(problem, device.workers())},
              made);
        }};

// The sums in float64, one element after another: slow, and right.
constexpr Implementation<Matmul> kReference = {
    .name = "cpu:reference",
    .refuse = [](const MatmulProblem&, const Device&) { return std::string(); },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          return run_on_cpu<Matmul>(problem, device, {.forward = cpu::reference::matmul}, made);
        }};

constexpr Implementation<Matmul> kList[] = {kTensorCore, kFma, kPacked, kReference};

}  // namespace

std::span<const Implementation<Matmul>> matmul_implementations() { return kList; }

}  // namespace perseid::internal::dispatch
