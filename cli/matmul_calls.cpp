// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "matmul_calls.hpp"

namespace perseid::cli {

using harness::Operands;
using harness::Problem;

MatmulOptions options_of(const Problem& problem) {
  return {.dtype = problem.type(),
          .out_dtype = problem.result_type(),
          .batch = problem.batch,
          .m = problem.m,
          .n = problem.n,
          .k = problem.k,
          .alpha = problem.alpha,
          .beta = problem.beta,
          .bias = !problem.bias.empty(),
          .b_dtype = problem.type_of_b(),
          .scaling = static_cast<Scaling>(problem.scaling.value),
          .accumulation = static_cast<Accumulation>(problem.accumulation.value),
          .scale_result = problem.scale_result,
          .activation = static_cast<Activation>(problem.activation.value),
          .amax = problem.amax,
          .implementation = problem.impl.empty() ? nullptr : problem.impl.c_str()};
}

MatmulArguments arguments_of(const Problem& problem, const Operands& operands,
                             harness::Placement& placement) {
  const auto view = [&](const char* name, bool transpose = false) {
    const harness::Array* array = operands.find(name);
    if (array == nullptr) return Tensor();
    const Tensor tensor = placement.place(array->tensor(), array->bytes());
    return transpose ? tensor.transposed() : tensor;
  };
  return {.a = view("a", problem.transpose_a),
          .b = view("b", problem.transpose_b),
          .c0 = view("c0"),
          .bias = view("bias"),
          .c = view("c"),
          .scale_a = view("scale_a"),
          .scale_b = view("scale_b"),
          .scale_result = view("scale_result"),
          .amax = view("amax")};
}

}  // namespace perseid::cli
