// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of matmul, best first.
#include "cpu/reference/reference.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::dispatch {
namespace {

using Made = std::unique_ptr<Executable<Matmul>>;

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

constexpr Implementation<Matmul> kList[] = {kPacked, kReference};

}  // namespace

std::span<const Implementation<Matmul>> matmul_implementations() { return kList; }

}  // namespace perseid::dispatch
