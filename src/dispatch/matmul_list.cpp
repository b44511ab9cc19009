// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of matmul, best first.
#include "cpu/reference/reference.hpp"
#include "cuda/matmul/fma.hpp"
#include "cuda/matmul/tensor_core.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {
namespace {

using Made = std::unique_ptr<Executable<Matmul>>;

// The kernels of a class of cuda/ for plans.
template <class Kernels>
class MatmulExecutable final : public Executable<Matmul> {
 public:
  static Status make(const MatmulProblem& problem, const Device& device, Made* made) {
    auto matmul = std::make_unique<MatmulExecutable>();
    Status status = Kernels::make(problem, *device.gpu, &matmul->kernels_);
    if (status.ok()) *made = std::move(matmul);
    return status;
  }
  size_t workspace(Direction) const override { return 0; }
  Status forward(const MatmulArguments& arguments, std::byte*, void* stream) const override {
    return kernels_->run(arguments, stream);
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return kernels_->description(); }

 private:
  std::unique_ptr<Kernels> kernels_;
};

// mma.sync on tensor cores, any strides: compute capability 8.0 and up.
constexpr Implementation<Matmul> kTensorCore = {
    .name = "cuda:tensor_core",
    .refuse = [](const MatmulProblem& problem,
                 const Device&) { return cuda::refuse_tensor_core_matmul(problem); },
    .make = MatmulExecutable<cuda::TensorCoreMatmul>::make};

// Multiply-add in the type itself, any strides.
constexpr Implementation<Matmul> kFma = {
    .name = "cuda:fma",
    .refuse = [](const MatmulProblem& problem,
                 const Device&) { return cuda::refuse_fma_matmul(problem); },
    .make = MatmulExecutable<cuda::FmaMatmul>::make};

// Both operands packed into panels, any strides and types.
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

// The sums in float64, element by element: the oracle, slow.
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
