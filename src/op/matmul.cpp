// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/matmul.hpp"

#include "op/chunks.hpp"
#include "op/descriptor.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

dispatch::Explanation describe(const MatmulProblem& problem) {
  dispatch::Explanation explanation{.operation = MatmulPlan::kOperation};
  explanation.problem = {{"dtype", name_of(problem.dtype)},
                         {"out_dtype", name_of(problem.out_dtype)},
                         {"batch", problem.batch},
                         {"m", problem.m},
                         {"n", problem.n},
                         {"k", problem.k},
                         {"alpha", problem.alpha},
                         {"beta", problem.beta}};
  if (problem.bias) explanation.problem.emplace_back("bias", "yes");
  const auto describe_chunks = [&](const char* field, const ChunkCut& cut) {
    if (cut.present())
      explanation.problem.emplace_back(field,
                                       concatenate(cut.count, " chunks of ", name_of(cut.dim)));
  };
  describe_chunks("async_a", problem.chunks_a);
  describe_chunks("async_b", problem.chunks_b);
  describe_chunks("sink_c", problem.chunks_c);

  const auto batch = static_cast<double>(problem.batch), m = static_cast<double>(problem.m),
             n = static_cast<double>(problem.n), k = static_cast<double>(problem.k);
  const auto in = static_cast<double>(size_of(problem.dtype));
  const auto out = static_cast<double>(size_of(problem.out_dtype));
  explanation.forward.flops = 2 * batch * m * n * k;
  explanation.forward.bytes =
      batch * (in * (m * k + k * n) + out * m * n * (problem.beta != 0 ? 2 : 1)) +
      (problem.bias ? out * n : 0);
  return explanation;
}

// [batch, rows, columns], or [rows, columns] for every batch entry: always a view of 3 dimensions.
Tensor read_matrices(ArgumentReader& reader, Access access, const char* name,
                     const DLTensor* tensor, DType dtype, const Extent (&extents)[3]) {
  const bool batched =
      tensor == nullptr || tensor->ndim != 2 || (access == Access::kWrite && extents[0].size != 1);
  Tensor view = reader.read(access, name, tensor, dtype,
                            batched ? std::span(extents) : std::span(extents).subspan(1));
  if (batched || !reader.ok()) return view;
  return {.data = view.data,
          .dtype = view.dtype,
          .rank = 3,
          .shape = {extents[0].size, view.shape[0], view.shape[1]},
          .stride = {0, view.stride[0], view.stride[1]}};
}

}  // namespace

Status read_problem(const perseid_matmul_desc& desc, MatmulChunks* chunks, MatmulProblem* problem) {
  DescriptorReader reader(MatmulPlan::kOperation);
  problem->dtype = reader.dtype("dtype", desc.dtype);
  problem->out_dtype = reader.dtype("out_dtype", desc.out_dtype, problem->dtype);
  const bool widening = problem->out_dtype == DType::kF32 && size_of(problem->dtype) == 2;
  reader.require(problem->out_dtype == problem->dtype || widening, "out_dtype is ",
                 name_of(problem->out_dtype), ", expected ", name_of(problem->dtype),
                 ", the dtype of a and b, or f32 where that is f16 or bf16");
  problem->bias = reader.flag("bias", desc.bias);
  problem->batch = reader.batch_of(desc.batch, desc.zero_batch);
  problem->m = reader.size("m", desc.m);
  problem->n = reader.size("n", desc.n);
  problem->k = reader.size("k", desc.k);
  reader.extents("a", {problem->batch, problem->m, problem->k});
  reader.extents("b", {problem->batch, problem->k, problem->n});
  reader.extents("c", {problem->batch, problem->m, problem->n});
  problem->alpha = desc.alpha == 0 ? 1 : reader.number("alpha", desc.alpha, problem->dtype);
  if (reader.flag("zero_alpha", desc.zero_alpha)) {
    reader.require(desc.alpha == 0, "zero_alpha is 1, but alpha is ", desc.alpha,
                   "; leave one of them 0");
    problem->alpha = 0;
  }
  problem->beta = reader.number("beta", desc.beta, problem->dtype);
  const Sliceable m{ChunkDim::kM, "m", problem->m}, n{ChunkDim::kN, "n", problem->n},
      k{ChunkDim::kK, "k", problem->k};
  problem->chunks_a = read_chunks(reader, "async_a", desc.async_a, {m, k}, &chunks->a);
  problem->chunks_b = read_chunks(reader, "async_b", desc.async_b, {n, k}, &chunks->b);
  problem->chunks_c = read_chunks(reader, "sink_c", desc.sink_c, {m, n}, &chunks->c);
  reader.require(
      !problem->chunks_c.present() || (problem->batch > 0 && problem->m > 0 && problem->n > 0),
      "sink_c is given, but c has no elements; pass NULL");
  return reader.result();
}

Status MatmulPlan::make(DevicePointer device, const perseid_matmul_desc& desc,
                        std::unique_ptr<const Plan>* plan) {
  std::unique_ptr<MatmulPlan> made(new MatmulPlan(std::move(device)));
  MatmulProblem problem;
  if (Status status = read_problem(desc, &made->chunks_, &problem); !status.ok()) return status;
  if (Status status = made->choose(dispatch::matmul_implementations(), problem, desc.implementation,
                                   describe(problem));
      !status.ok())
    return status;
  *plan = std::move(made);
  return {};
}

Status MatmulPlan::execute(const perseid_matmul_args& args, const Workspace& workspace,
                           void* stream) const {
  ArgumentReader reader(kOperation, device().dl_device());
  const Extent batch{"batch", problem().batch}, m{"m", problem().m}, n{"n", problem().n},
      k{"k", problem().k};
  const DType dtype = problem().dtype, out_dtype = problem().out_dtype;
  MatmulArguments arguments;
  arguments.a = read_matrices(reader, Access::kRead, "a", args.a, dtype, {batch, m, k});
  arguments.b = read_matrices(reader, Access::kRead, "b", args.b, dtype, {batch, k, n});
  arguments.c = read_matrices(reader, Access::kWrite, "c", args.c, out_dtype, {batch, m, n});
  arguments.c0 = arguments.c;
  if (problem().beta != 0 && args.c0 != nullptr)
    arguments.c0 = read_matrices(reader, Access::kRead, "c0", args.c0, out_dtype, {batch, m, n});
  if (problem().bias) {
    arguments.bias = reader.read(Access::kRead, "bias", args.bias, {dtype, out_dtype}, {{n}});
  } else {
    reader.refuse("bias", args.bias, "bias = 0");
  }
  arguments.arrival_a = read_arrival(reader, "arrival_a", args.arrival_a, problem().chunks_a);
  arguments.arrival_b = read_arrival(reader, "arrival_b", args.arrival_b, problem().chunks_b);
  arguments.departure_c =
      read_departure(reader, "departure_c", args.departure_c, problem().chunks_c);
  Missing missing;
  arguments.missing = &missing;
  if (Status status = reader.finish({.output = "c", .input = "c0"}); !status.ok()) return status;
  // A GPU writes only that a wait has failed, while it runs.
  const auto write_records = [&](perseid_status code) {
    for (const perseid_arrival* arrival : {args.arrival_a, args.arrival_b})
      write_record(arrival, code, missing);
  };
  write_records(PERSEID_OK);
  Status status = run_forward(reader, arguments, workspace, stream);
  if (missing.end != WaitEnd::kArrived) write_records(status.code());
  return status;
}

}  // namespace perseid::internal::op
