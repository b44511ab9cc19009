// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul problems on a GPU.
#pragma once

#include <optional>

#include "gpu_tools.hpp"
#include "matmul_cases.hpp"

namespace perseid::internal::testing_gpu {

// c of the problem by run(arguments), whose tensors begin `misalign` elements late. `most`:
// gets amax, where the problem has it.
template <class Run>
tests::Array product(const cuda::Gpu& gpu, const matmul_cases::Problem& problem, int64_t misalign,
                     const Run& run, tests::Array* most = nullptr) {
  tests::Array c = problem.c, a = problem.a, b = problem.b, c0 = problem.c0, bias = problem.bias;
  Mirror gpu_a(gpu, a, misalign), gpu_b(gpu, b, misalign), gpu_c(gpu, c, misalign);
  MatmulArguments arguments = problem.arguments(gpu_c.tensor());
  arguments.a = gpu_a.tensor();
  arguments.b = gpu_b.tensor();
  std::optional<Mirror> gpu_c0, gpu_bias, gpu_scale_a, gpu_scale_b, gpu_scale_result;
  if (problem.given.own_c0) arguments.c0 = gpu_c0.emplace(gpu, c0, misalign).tensor();
  if (problem.given.bias) arguments.bias.data = gpu_bias.emplace(gpu, bias).tensor().data;
  tests::Array scale_a = problem.scale_a, scale_b = problem.scale_b,
               scale_result = problem.scale_result;
  if (problem.given.scaling != Scaling::kNone) {
    arguments.scale_a = gpu_scale_a.emplace(gpu, scale_a).tensor();
    arguments.scale_b = gpu_scale_b.emplace(gpu, scale_b).tensor();
  }
  if (problem.given.scale_result)
    arguments.scale_result = gpu_scale_result.emplace(gpu, scale_result).tensor();
  tests::Array amax = problem.amax;
  Mirror gpu_amax(gpu, amax);
  if (problem.given.amax) arguments.amax.data = gpu_amax.tensor().data;
  run(arguments);
  gpu_c.fetch();
  gpu_amax.fetch();
  if (most != nullptr) *most = amax;
  return c;
}

}  // namespace perseid::internal::testing_gpu
