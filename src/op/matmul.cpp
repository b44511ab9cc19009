// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/matmul.hpp"

#include <cmath>

#include "dispatch/tune.hpp"
#include "op/chunks.hpp"
#include "op/descriptor.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

const char* scaling_name(Scaling scaling) {
  switch (scaling) {
    case Scaling::kTensor:
      return "tensor";
    case Scaling::kRow:
      return "row";
    case Scaling::kBlock:
      return "block";
    case Scaling::kNone:
      break;
  }
  return "none";
}

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
  if (problem.type_of_b() != problem.dtype)
    explanation.problem.emplace_back("b_dtype", name_of(problem.type_of_b()));
  if (problem.scaling != Scaling::kNone)
    explanation.problem.emplace_back("scaling", scaling_name(problem.scaling));
  if (problem.accumulation == Accumulation::kFast)
    explanation.problem.emplace_back("accumulation", "fast");
  if (problem.precision == Precision::kTF32) explanation.problem.emplace_back("precision", "tf32");
  if (problem.scale_result) explanation.problem.emplace_back("scale_result", "yes");
  if (problem.activation != Activation::kNone)
    explanation.problem.emplace_back("activation", name_of(problem.activation));
  if (problem.amax) explanation.problem.emplace_back("amax", "yes");
  if (problem.leaves > 0) explanation.problem.emplace_back("leaves", problem.leaves);
  if (problem.spared > 0) explanation.problem.emplace_back("spared", int64_t{problem.spared});
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
  const auto in = static_cast<double>(size_of(problem.dtype));  // b's too
  const auto out = static_cast<double>(size_of(problem.out_dtype));
  explanation.forward.flops = 2 * batch * m * n * k;
  explanation.forward.bytes =
      batch * (in * (m * k + k * n) + out * m * n * (problem.beta != 0 ? 2 : 1)) +
      (problem.bias ? out * n : 0);
  return explanation;
}

// A tensor of a few sizes, or that with a batch before it: always a view of 3 dimensions, those
// that are missing with a stride of 0.
Tensor read_scales(ArgumentReader& reader, const char* name, const DLTensor* tensor,
                   const Extent& batch, std::span<const Extent> extents) {
  const auto rank = static_cast<int32_t>(extents.size());
  const bool batched = tensor != nullptr && tensor->ndim == rank + 1;
  Extent all[3] = {batch};
  std::copy(extents.begin(), extents.end(), all + 1);
  const Tensor given =
      reader.read(Access::kRead, name, tensor, DType::kF32,
                  batched ? std::span<const Extent>(all, extents.size() + 1) : extents);
  Tensor view = given;
  view.rank = 3;
  view.stride[0] = batched ? given.stride[0] : 0;
  for (int32_t d = 0; d < 2; ++d)
    view.stride[d + 1] = d < rank ? given.stride[d + (batched ? 1 : 0)] : 0;
  return view;
}

// The scales of a or b (of_b), see MatmulArguments.
Tensor read_scales(ArgumentReader& reader, const char* name, const DLTensor* tensor,
                   const MatmulProblem& problem, bool of_b) {
  const Extent batch{"batch", problem.batch};
  const Extent parts{"ceil(k / 128)", ceil_div(problem.k, kScaledBlock)};
  switch (problem.scaling) {
    case Scaling::kTensor: {
      Tensor one = reader.read(Access::kRead, name, tensor, DType::kF32, {{{"scales", 1}}});
      one.rank = 3;
      one.stride[0] = 0;
      return one;
    }
    case Scaling::kRow:
      return read_scales(reader, name, tensor, batch,
                         {{of_b ? Extent{"n", problem.n} : Extent{"m", problem.m}}});
    case Scaling::kBlock: {
      if (!of_b) return read_scales(reader, name, tensor, batch, {{{"m", problem.m}, parts}});
      const Extent blocks{"ceil(n / 128)", ceil_div(problem.n, kScaledBlock)};
      Tensor view = read_scales(reader, name, tensor, batch, {{parts, blocks}});
      std::swap(view.stride[1], view.stride[2]);
      return view;
    }
    case Scaling::kNone:
      break;
  }
  reader.refuse(name, tensor, "scaling = 0 (none)");
  return {};
}

// A tensor of one element, where the descriptor asks for it; else it `says` so.
Tensor read_one(ArgumentReader& reader, Access access, const char* name, const DLTensor* tensor,
                DType dtype, bool wanted, const char* says) {
  if (wanted) return reader.read(access, name, tensor, dtype, {{{"elements", 1}}});
  reader.refuse(name, tensor, says);
  return {};
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

// Types of a, b and c that go together, and what the 8-bit types bring with them.
void read_types(DescriptorReader& reader, const perseid_matmul_desc& desc, MatmulProblem* problem) {
  problem->dtype = reader.dtype("dtype", desc.dtype, DType::kNone, true);
  const bool float8 = is_float8(problem->dtype);
  problem->out_dtype =
      reader.dtype("out_dtype", desc.out_dtype, float8 ? DType::kF32 : problem->dtype, true);
  problem->b_dtype = reader.dtype("b_dtype", desc.b_dtype, problem->dtype, true);
  reader.require(problem->b_dtype == problem->dtype || (float8 && is_float8(problem->b_dtype)),
                 "b_dtype is ", name_of(problem->b_dtype), " and dtype ", name_of(problem->dtype),
                 ", expected the same; only the 8-bit types may be mixed");
  const bool widening = problem->out_dtype == DType::kF32 && size_of(problem->dtype) == 2;
  if (float8) {
    reader.require(problem->out_dtype != DType::kF64,
                   "out_dtype is f64, expected f16, bf16, f32, f8e4m3 or f8e5m2 where a and b are "
                   "of 8 bits");
  } else {
    reader.require(problem->out_dtype == problem->dtype || widening, "out_dtype is ",
                   name_of(problem->out_dtype), ", expected ", name_of(problem->dtype),
                   ", the dtype of a and b, or f32 where that is f16 or bf16");
  }
  problem->scaling = static_cast<Scaling>(
      reader.choice("scaling", desc.scaling, 4,
                    "PERSEID_SCALE_NONE (0), PERSEID_SCALE_TENSOR (1), PERSEID_SCALE_ROW (2) or "
                    "PERSEID_SCALE_BLOCK (3)"));
  reader.require(float8 || problem->scaling == Scaling::kNone, "scaling is ", desc.scaling,
                 ", but a and b are ", name_of(problem->dtype),
                 "; only 8-bit operands have scales: use alpha");
  problem->accumulation = static_cast<Accumulation>(
      reader.choice("accumulation", desc.accumulation, 2,
                    "PERSEID_ACCUMULATE_PROMOTED (0) or PERSEID_ACCUMULATE_FAST (1)"));
  reader.require(float8 || problem->accumulation == Accumulation::kPromoted,
                 "accumulation is PERSEID_ACCUMULATE_FAST, but a and b are ",
                 name_of(problem->dtype), "; it is for 8-bit operands");
  problem->precision = static_cast<Precision>(
      reader.choice("precision", desc.precision, 2,
                    "PERSEID_PRECISION_DEFAULT (0) or PERSEID_PRECISION_TF32 (1)"));
  problem->scale_result = reader.flag("scale_result", desc.scale_result);
  reader.require(!problem->scale_result || is_float8(problem->out_dtype),
                 "scale_result is 1, but c is ", name_of(problem->out_dtype),
                 "; only an 8-bit result has a scale: use alpha");
}

}  // namespace

Status read_problem(const perseid_matmul_desc& desc, MatmulChunks* chunks, MatmulProblem* problem) {
  DescriptorReader reader(MatmulPlan::kOperation);
  read_types(reader, desc, problem);
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
  reader.require(problem->beta == 0 || !is_float8(problem->out_dtype), "beta is ", desc.beta,
                 ", expected 0 where c is ", name_of(problem->out_dtype),
                 "; add to a c of 16 or 32 bits");
  problem->activation = static_cast<Activation>(
      reader.choice("activation", desc.activation, kActivations,
                    "PERSEID_ACTIVATION_NONE (0), PERSEID_ACTIVATION_GELU_TANH (1), "
                    "PERSEID_ACTIVATION_GELU_ERF (2) or PERSEID_ACTIVATION_SILU (3)"));
  problem->amax = reader.flag("amax", desc.amax);
  const Sliceable m{ChunkDim::kM, "m", problem->m}, n{ChunkDim::kN, "n", problem->n},
      k{ChunkDim::kK, "k", problem->k};
  const Sliceable of_a[] = {m, k}, of_b[] = {n, k}, of_c[] = {m, n};
  problem->chunks_a = read_chunks(reader, "async_a", desc.async_a, of_a, &chunks->a);
  problem->chunks_b = read_chunks(reader, "async_b", desc.async_b, of_b, &chunks->b);
  problem->chunks_c = read_chunks(reader, "sink_c", desc.sink_c, of_c, &chunks->c);
  reader.require(
      !problem->chunks_c.present() || (problem->batch > 0 && problem->m > 0 && problem->n > 0),
      "sink_c is given, but c has no elements; pass NULL");
  return reader.result();
}

Status MatmulPlan::make(const perseid_matmul_desc& desc, const MatmulOfRanks& of_ranks,
                        std::vector<dispatch::Measured> measured) {
  MatmulProblem problem{
      .leaves = of_ranks.leaves, .shared_depth = of_ranks.shared_depth, .spared = of_ranks.spared};
  if (Status status = read_problem(desc, &chunks_, &problem); !status.ok()) return status;
  dispatch::Explanation explanation = describe(problem);
  explanation.measured = std::move(measured);
  return choose(dispatch::matmul_implementations(), problem, desc.implementation,
                std::move(explanation));
}

Status MatmulPlan::make(DevicePointer device, const perseid_matmul_desc& desc,
                        std::unique_ptr<const Plan>* plan, const MatmulOfRanks& of_ranks) {
  std::unique_ptr<MatmulPlan> made(new MatmulPlan(std::move(device)));
  if (Status status = made->make(desc, of_ranks, {}); !status.ok()) return status;
  *plan = std::move(made);
  return {};
}

Status MatmulPlan::tune(DevicePointer device, const perseid_matmul_desc& desc,
                        const perseid_matmul_args& args, void* stream,
                        std::unique_ptr<const Plan>* plan) {
  if (desc.async_a != nullptr || desc.async_b != nullptr || desc.sink_c != nullptr)
    return Status::error(PERSEID_UNSUPPORTED, kOperation,
                         ": chunks are not tuned; leave async_a, async_b and sink_c NULL, plans "
                         "with chunks use the same configuration");
  std::unique_ptr<MatmulPlan> made(new MatmulPlan(device));
  if (Status status = made->make(desc, {}, {}); !status.ok()) return status;
  ArgumentReader reader(kOperation, device->dl_device());
  MatmulArguments arguments;
  if (Status status = made->read(reader, args, &arguments); !status.ok()) return status;
  const dispatch::Implementation<dispatch::Matmul>& chosen =
      made->chosen_of(dispatch::matmul_implementations());
  const MatmulProblem& problem = made->problem();
  std::vector<std::string> names;
  if (chosen.configurations != nullptr) names = chosen.configurations(problem, *device);
  if (names.size() > 1 && reader.writes()) {
    if (device->tuning == nullptr)
      return Status::error(PERSEID_UNSUPPORTED, kOperation,
                           ": PERSEID_TUNE is 0, so that nothing tuned would be used; unset it");
    std::vector<dispatch::Measured> measured;
    Status status =
        dispatch::measure_all(chosen, names, problem, *device, arguments, stream, &measured);
    if (!status.ok()) return status;
    dispatch::Measured& best = dispatch::fastest_of(measured);
    status = device->tuning->keep(dispatch::problem_key(chosen.name, problem),
                                  {best.configuration, std::llround(best.seconds * 1e9)});
    if (!status.ok()) return status;
    best.kept = true;
    made.reset(new MatmulPlan(device));
    if (status = made->make(desc, {}, std::move(measured)); !status.ok()) return status;
  }
  *plan = std::move(made);
  return {};
}

void MatmulPlan::read_tensors(ArgumentReader& reader, const perseid_matmul_args& args,
                              MatmulArguments* read) const {
  const Extent batch{"batch", problem().batch}, m{"m", problem().m}, n{"n", problem().n},
      k{"k", problem().k};
  const DType dtype = problem().dtype, out_dtype = problem().out_dtype;
  MatmulArguments& arguments = *read;
  arguments.a = read_matrices(reader, Access::kRead, "a", args.a, dtype, {batch, m, k});
  arguments.b =
      read_matrices(reader, Access::kRead, "b", args.b, problem().type_of_b(), {batch, k, n});
  arguments.c = read_matrices(reader, Access::kWrite, "c", args.c, out_dtype, {batch, m, n});
  arguments.c0 = arguments.c;
  if (problem().beta != 0 && args.c0 != nullptr)
    arguments.c0 = read_matrices(reader, Access::kRead, "c0", args.c0, out_dtype, {batch, m, n});
  if (problem().bias) {
    const DType narrow = is_float8(dtype) ? DType::kF32 : dtype;
    const DType wide = is_float8(out_dtype) ? narrow : out_dtype;
    arguments.bias = reader.read(Access::kRead, "bias", args.bias, {narrow, wide}, {{n}});
  } else {
    reader.refuse("bias", args.bias, "bias = 0");
  }
  arguments.scale_a = read_scales(reader, "scale_a", args.scale_a, problem(), false);
  arguments.scale_b = read_scales(reader, "scale_b", args.scale_b, problem(), true);
  arguments.scale_result = read_one(reader, Access::kRead, "scale_result", args.scale_result,
                                    DType::kF32, problem().scale_result, "scale_result = 0");
  arguments.amax =
      read_one(reader, Access::kWrite, "amax", args.amax,
               dtype == DType::kF64 ? DType::kF64 : DType::kF32, problem().amax, "amax = 0");
}

// The arguments of a call, checked.
Status MatmulPlan::read(ArgumentReader& reader, const perseid_matmul_args& args,
                        MatmulArguments* read) const {
  MatmulArguments& arguments = *read;
  read_tensors(reader, args, read);
  arguments.arrival_a = read_arrival(reader, "arrival_a", args.arrival_a, problem().chunks_a);
  arguments.arrival_b = read_arrival(reader, "arrival_b", args.arrival_b, problem().chunks_b);
  arguments.departure_c =
      read_departure(reader, "departure_c", args.departure_c, problem().chunks_c);
  return reader.finish({.output = "c", .input = "c0"});
}

Status MatmulPlan::check(const perseid_matmul_args& args, const Workspace& workspace) const {
  ArgumentReader reader(kOperation, device().dl_device());
  MatmulArguments arguments;
  read_tensors(reader, args, &arguments);
  if (Status status = reader.verify({.output = "c", .input = "c0"}); !status.ok()) return status;
  std::byte* unused = nullptr;
  return take(reader, dispatch::Direction::kForward, workspace, &unused);
}

Status MatmulPlan::execute_timed(const perseid_matmul_args& args, const Workspace& workspace,
                                 void* stream, const ChunkTimers& timers) const {
  ArgumentReader reader(kOperation, device().dl_device());
  MatmulArguments arguments;
  if (Status status = read(reader, args, &arguments); !status.ok()) return status;
  arguments.arrival_a.times = arguments.departure_c.times = timers.cpu;
  arguments.arrival_a.waits = timers.gpu;
  Missing missing;
  arguments.missing = &missing;
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
