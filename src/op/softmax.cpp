// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/softmax.hpp"

#include "op/descriptor.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

constexpr const char* kDimensionNames[kMaxDims] = {"dimension 0", "dimension 1", "dimension 2",
                                                   "dimension 3", "dimension 4", "dimension 5",
                                                   "dimension 6", "dimension 7"};

// The shape that tensors must have.
struct Shape {
  Extent extents[kMaxDims];
  int32_t rank;

  explicit Shape(const SoftmaxProblem& problem) : rank(problem.rank) {
    for (int32_t d = 0; d < rank; ++d) extents[d] = {kDimensionNames[d], problem.shape[d]};
  }
  std::span<const Extent> span() const { return {extents, static_cast<size_t>(rank)}; }
};

// Counted for every element: forward scales, finds the maximum, subtracts, exponentiates, adds up
// and divides; backward multiplies and adds up, subtracts, multiplies and scales.
constexpr double kForwardFlops = 6;
constexpr double kBackwardFlops = 5;

dispatch::Explanation describe(const SoftmaxProblem& problem) {
  dispatch::Explanation explanation{.operation = SoftmaxPlan::kOperation};
  std::string shape = "[";
  double elements = 1;
  for (int32_t d = 0; d < problem.rank; ++d) {
    shape += concatenate(d == 0 ? "" : ", ", problem.shape[d]);
    elements *= static_cast<double>(problem.shape[d]);
  }
  explanation.problem = {{"kind", problem.log ? "log-softmax" : "softmax"},
                         {"dtype", name_of(problem.dtype)},
                         {"out_dtype", name_of(problem.out_dtype)},
                         {"shape", shape + "]"},
                         {"dim", int64_t{problem.dim}},
                         {"scale", problem.scale}};
  if (problem.visible) explanation.problem.emplace_back("visible", "yes");

  const auto in = static_cast<double>(size_of(problem.dtype));
  const auto out = static_cast<double>(size_of(problem.out_dtype));
  const double mask = problem.visible ? 1 : 0;
  explanation.forward = {elements * kForwardFlops, elements * (in + out + mask)};
  explanation.backward = {elements * kBackwardFlops, elements * (in + 2 * out + mask)};
  return explanation;
}

}  // namespace

Status read_problem(const perseid_softmax_desc& desc, SoftmaxProblem* problem) {
  DescriptorReader reader(SoftmaxPlan::kOperation);
  problem->log =
      reader.choice("kind", desc.kind, 2, "PERSEID_SOFTMAX (0) or PERSEID_LOG_SOFTMAX (1)") == 1;
  problem->dtype = reader.dtype("dtype", desc.dtype);
  problem->out_dtype = reader.dtype("out_dtype", desc.out_dtype, problem->dtype);
  reader.require(1 <= desc.ndim && desc.ndim <= kMaxDims, "ndim is ", desc.ndim, ", expected 1 to ",
                 kMaxDims,
                 desc.ndim < 1 ? "; describe a single number as 1 dimension of size 1"
                               : "; merge dimensions that lie behind one another");
  if (!reader.ok()) return reader.result();

  problem->rank = desc.ndim;
  reader.require(-desc.ndim <= desc.dim && desc.dim < desc.ndim, "dim is ", desc.dim, ", expected ",
                 -desc.ndim, " to ", desc.ndim - 1, "; negative ones count from the last");
  problem->dim = desc.dim < 0 ? desc.dim + desc.ndim : desc.dim;
  for (int32_t d = 0; d < desc.ndim; ++d)
    problem->shape[d] = reader.size(kDimensionNames[d], desc.shape[d]);
  reader.extents("the input", std::span(problem->shape, static_cast<size_t>(desc.ndim)));
  problem->scale =
      desc.scale == 0 ? 1 : reader.number("scale", desc.scale, problem->compute_dtype());
  problem->visible = reader.flag("visible", desc.visible);
  problem->empty_rows_nan = reader.choice("empty_rows", desc.empty_rows, 2,
                                          "PERSEID_EMPTY_ZERO (0) or PERSEID_EMPTY_NAN (1)") == 1;
  return reader.result();
}

Status SoftmaxPlan::make(DevicePointer device, const perseid_softmax_desc& desc,
                         std::unique_ptr<const Plan>* plan) {
  SoftmaxProblem problem;
  if (Status status = read_problem(desc, &problem); !status.ok()) return status;
  std::unique_ptr<SoftmaxPlan> made(new SoftmaxPlan(std::move(device)));
  if (Status status = made->choose(dispatch::softmax_implementations(), problem,
                                   desc.implementation, describe(problem));
      !status.ok())
    return status;
  *plan = std::move(made);
  return {};
}

Status SoftmaxPlan::forward(const perseid_softmax_forward_args& args, const Workspace& workspace,
                            void* stream) const {
  ArgumentReader reader("softmax forward", device().dl_device());
  Shape shape(problem());
  SoftmaxForward forward;
  forward.input = reader.read(Access::kRead, "input", args.input, problem().dtype, shape.span());
  forward.output =
      reader.read(Access::kWrite, "output", args.output, problem().out_dtype, shape.span());
  if (problem().visible) {
    forward.visible = reader.read_broadcast("visible", args.visible, DType::kBool, shape.span());
  } else {
    reader.refuse("visible", args.visible, "visible = 0");
  }
  if (args.lse != nullptr) {
    shape.extents[problem().dim].size = 1;
    forward.lse =
        reader.read(Access::kWrite, "lse", args.lse, problem().compute_dtype(), shape.span());
  }
  if (Status status = reader.finish({.output = "output", .input = "input"}); !status.ok())
    return status;
  return run_forward(reader, forward, workspace, stream);
}

Status SoftmaxPlan::backward(const perseid_softmax_backward_args& args, const Workspace& workspace,
                             void* stream) const {
  ArgumentReader reader("softmax backward", device().dl_device());
  const Shape shape(problem());
  SoftmaxBackward backward;
  backward.grad_output = reader.read(Access::kRead, "grad_output", args.grad_output,
                                     problem().out_dtype, shape.span());
  backward.output =
      reader.read(Access::kRead, "output", args.output, problem().out_dtype, shape.span());
  if (problem().visible) {
    backward.visible = reader.read_broadcast("visible", args.visible, DType::kBool, shape.span());
  } else {
    reader.refuse("visible", args.visible, "visible = 0");
  }
  backward.grad_input =
      reader.read(Access::kWrite, "grad_input", args.grad_input, problem().dtype, shape.span());
  if (Status status = reader.finish({.output = "grad_input", .input = "grad_output"}); !status.ok())
    return status;
  return run_backward(reader, backward, workspace, stream);
}

}  // namespace perseid::internal::op
