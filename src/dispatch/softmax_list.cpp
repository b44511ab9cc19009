// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of softmax, best first.
#include "cpu/reference/reference.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::dispatch {
namespace {

using Made = std::unique_ptr<Executable<Softmax>>;

// Any dim, strides, types and mask: one pass over rows that lie along the dim or across it.
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

// The formula in float64, one element after another: slow, and right.
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

constexpr Implementation<Softmax> kList[] = {kSimd, kReference};

}  // namespace

std::span<const Implementation<Softmax>> softmax_implementations() { return kList; }

}  // namespace perseid::dispatch
