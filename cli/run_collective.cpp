// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid run` of what ranks compute together: each rank is a process with files of its own.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "agreement.hpp"
#include "commands.hpp"
#include "harness/placement.hpp"
#include "harness/problem.hpp"
#include "help.hpp"
#include "perseid/collective.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

struct CollectiveFlags {
  std::string a, gathered, scale_a, output_dtype;
  std::vector<std::string> b, out, bias, scale_b;  // of each product
  std::string accumulation = "promoted";
  bool transpose_b = false;
  std::optional<int64_t> gather_dim, scatter_dim;
  std::string reduce = "sum", fusion = "auto", report;
  bool canonical = false;
  int64_t chunks = 0;
  std::optional<double> deadline;  // milliseconds
};

// The rows of all entries of a batch.
int64_t rows_of(const harness::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<>());
}

// Refuses another number of files than of products.
void check_count(const char* flag, const std::vector<std::string>& names, size_t products,
                 bool required) {
  if (names.size() == products || (names.empty() && !required)) return;
  bad_input(fmt::format("{} is given {} times and --b {} times; give one for each product", flag,
                        names.size(), products));
}

// This rank, its files, and the operands that every operation has.
struct Ranked {
  const Common& common;
  const CollectiveFlags& flags;
  const std::chrono::nanoseconds deadline;
  Group group;
  std::optional<Context> context;
  std::optional<harness::Placement> placement;
  TensorFiles files;
  Tensor a, scale_a;
  std::vector<Tensor> b, bias, scale_b;
  Agreed agreed;  // sizes: the shape of each rank's a, then how many scales it has

  // `same_results`: all ranks have the same --out.
  Ranked(const Common& of_all, const CollectiveFlags& given, bool same_results)
      : common(of_all),
        flags(given),
        deadline(deadline_of(given.deadline)),
        group(GroupOptions{.deadline = deadline}) {
    agreed = agree(group, deadline, [&](RankTerms* terms) {
      read();
      terms->same_kind("--a", a);
      terms->same("the number of --b is", std::to_string(b.size()));
      for (const Tensor& matrix : b) terms->same_kind("--b", matrix);
      terms->same("the number of --bias is", std::to_string(bias.size()));
      for (const Tensor& vector : bias) terms->same_kind("--bias", vector);
      terms->sizes = shape_of(a);
      terms->sizes.push_back(scale_a.present() ? scale_a.elements() : 0);
      for (const std::string& name : flags.out) terms->output("--out", named(name), same_results);
      terms->output("--gathered", named(flags.gathered), true);
      terms->report(named(flags.report));
    });
  }
  std::string named(const std::string& name) const { return of_rank(name, group.rank()); }
  // On all ranks, or none: refuses what fits on some alone.
  void together(const std::function<void()>& prepare) const {
    agree(group, deadline, [&](RankTerms*) { prepare(); });
  }
  // Executes on this rank's device.
  template <class Plan, class Arguments>
  void execute(Run& run, const Plan& plan, const Arguments& arguments,
               const std::vector<Tensor>& results) {
    const Memory workspace(*context, plan.workspace_size());
    context->synchronize();
    run.timed([&] {
      plan.execute(nullptr, arguments, {workspace});
      context->synchronize();
    });
    for (const Tensor& result : results)
      if (result.present()) placement->fetch(result);
    if (!flags.report.empty()) write_report(named(flags.report), plan.overlap_report());
    run.finish(files, plan.info().implementation);
  }
  std::vector<Tensor> placed(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> on_device;
    for (const Tensor& tensor : tensors) on_device.push_back(placement->place(tensor));
    return on_device;
  }
  Tensor result(const char* flag, const std::string& name, DType dtype,
                const harness::Shape& shape) {
    const std::string own = agreed.own(flag, named(name));
    return own.empty() ? files.scratch(dtype, shape) : files.result(flag, own, dtype, shape);
  }
  DType out_dtype() const {
    if (flags.output_dtype.empty()) return harness::is_float8(a.dtype()) ? f32 : a.dtype();
    const DType dtype = harness::parse_dtype(flags.output_dtype);
    if (!harness::is_floating(dtype))
      bad_input(fmt::format("--output-dtype must be f16, bf16, f32 or f64, got '{}'",
                            flags.output_dtype));
    return dtype;
  }
  Accumulation accumulation() const {
    const auto& names = harness::AccumulationNames::kNames;
    for (uint32_t i = 0; i < std::size(names); ++i)
      if (flags.accumulation == names[i]) return static_cast<Accumulation>(i);
    bad_input(fmt::format("--accumulation must be one of {}, got '{}'", fmt::join(names, ", "),
                          flags.accumulation));
  }
  Fusion fusion() const { return static_cast<Fusion>(fusion_of(flags.fusion)); }
  // Refuses a bias that has not one number for each column of its b.
  void check_bias() const {
    for (size_t i = 0; i < bias.size(); ++i)
      if (bias[i].ndim() != 1 || bias[i].size(0) != b[i].size(-1))
        bad_input(fmt::format("--bias has shape {}, expected [{}], the columns of --b",
                              harness::to_text(shape_of(bias[i])), b[i].size(-1)));
  }

 private:
  void read() {
    check_flags();
    context.emplace(open_context_of_rank(common, group.rank()));
    placement.emplace(*context);
    const DType wanted = wanted_dtype(common);
    a = files.read("--a", named(flags.a), wanted);
    // What is added to an 8-bit product has more bits.
    const bool float8 = harness::is_float8(a.dtype());
    for (const std::string& name : flags.b) b.push_back(files.read("--b", named(name), wanted));
    for (const std::string& name : flags.bias)
      bias.push_back(files.read("--bias", named(name), float8 ? f32 : wanted));
    for (const Tensor& matrix : b)
      if (!float8 || !harness::is_float8(matrix.dtype())) same_dtype({{"--a", a}, {"--b", matrix}});
    for (const Tensor& vector : bias)
      if (!float8) same_dtype({{"--a", a}, {"--bias", vector}});
    check_dims("--a", a);
    for (Tensor& matrix : b) {
      check_dims("--b", matrix);
      if (flags.transpose_b) matrix = matrix.transposed();
      if (matrix.ndim() == 3 && a.ndim() == 2)
        bad_input("--b has a batch and --a has none; give both the same, or --a alone a batch");
      if (matrix.ndim() != b[0].ndim())
        bad_input("one --b has a batch and another has none; give all the same");
    }
    if (flags.scale_a.empty()) return;
    scale_a = read_scale("--scale-a", flags.scale_a);
    for (const std::string& name : flags.scale_b) scale_b.push_back(read_scale("--scale-b", name));
  }
  void check_dims(const char* flag, const Tensor& matrix) const {
    if (matrix.ndim() != 2 && matrix.ndim() != 3)
      bad_input(fmt::format("{} must have 2 dimensions, or 3 with a batch first; got shape {}",
                            flag, harness::to_text(shape_of(matrix))));
  }
  Tensor read_scale(const char* flag, const std::string& name) {
    if (!harness::is_float8(a.dtype()))
      bad_input(
          fmt::format("--scale-a and --scale-b are of 8-bit matrices, got {}; say --dtype f8e4m3 "
                      "or f8e5m2",
                      harness::name_of(a.dtype())));
    const Tensor scales = files.read(flag, named(name), f32);
    int64_t natural = 1;
    for (int32_t d = scales.ndim() - 1; d >= 0; natural *= scales.size(d--))
      if (scales.size(d) > 1 && scales.stride(d) != natural)
        bad_input(fmt::format("{} must lie row-major", flag));
    return scales;
  }
  // What of the flags needs no file.
  void check_flags() const {
    if (flags.scale_a.empty() != flags.scale_b.empty())
      bad_input("--scale-a and --scale-b go together");
    check_count("--out", flags.out, flags.b.size(), true);
    check_count("--bias", flags.bias, flags.b.size(), false);
    check_count("--scale-b", flags.scale_b, flags.b.size(), false);
    fusion();
    accumulation();
  }
};

// The scales of 8-bit operands. Their sizes say what they belong to.
struct RankScales {
  Scaling of = Scaling::kNone;
  bool sharded = false;  // those of a are those of this rank's rows
  Tensor a;
  std::vector<Tensor> b;  // of each product
};

// `entries` of `lines` each; one scale serves all lines.
Tensor line_scales(const Tensor& scales, int64_t entries, int64_t lines, bool batched) {
  if (scales.elements() == 1 && entries * lines != 1)
    return batched ? Tensor(scales.data(), f32, {entries, lines}, {0, 0})
                   : Tensor(scales.data(), f32, {lines}, {0});
  return batched ? Tensor(scales.data(), f32, {entries, lines})
                 : Tensor(scales.data(), f32, {lines});
}

// Of products with an `a` of rows and a batch where it has 3 dimensions. `all_rows`: of the
// gathered a; `shards`: whether ranks may have the scales of their own rows alone.
RankScales scales_of(const Ranked& rank, const Tensor& a, int64_t all_rows, bool shards) {
  const Tensor& of_a = rank.scale_a;
  if (!of_a.present()) return {};
  const bool batched = a.ndim() == 3;
  const int64_t entries = batched ? a.size(0) : 1, own = entries * a.size(-2),
                all = entries * all_rows;
  // All ranks have as many as rows.
  const bool sharded =
      shards && std::all_of(rank.agreed.sizes.begin(), rank.agreed.sizes.end(),
                            [](const harness::Shape& each) {
                              return each.back() == rows_of({each.begin(), each.end() - 1});
                            });
  bool tensors = !sharded && of_a.elements() == 1;
  for (const Tensor& of_b : rank.scale_b) tensors = tensors && of_b.elements() == 1;
  RankScales scales{tensors ? Scaling::kTensor : Scaling::kRow, sharded, {}, {}};
  scales.a = tensors ? Tensor(of_a.data(), f32, {1})
                     : line_scales(of_a, entries, sharded ? a.size(-2) : all_rows, batched);
  for (size_t i = 0; i < rank.b.size(); ++i) {
    const Tensor &b = rank.b[i], &of_b = rank.scale_b[i];
    const int64_t columns = b.size(-1), all_columns = (b.ndim() == 3 ? entries : 1) * columns;
    const bool fits_a = sharded || of_a.elements() == all || of_a.elements() == 1;
    const bool fits_b =
        of_b.elements() == all_columns || of_b.elements() == columns || of_b.elements() == 1;
    if (!fits_a || !fits_b)
      bad_input(fmt::format(
          "--scale-a has {} scales and --scale-b {}, expected one each; or {}{} and "
          "{}, for the rows of a and the columns of b",
          of_a.elements(), of_b.elements(),
          shards && own != all ? fmt::format("{} on all ranks, or ", own) : "", all, all_columns));
    scales.b.push_back(tensors ? Tensor(of_b.data(), f32, {1})
                               : line_scales(of_b, entries, columns,
                                             b.ndim() == 3 && of_b.elements() == all_columns));
  }
  return scales;
}

// [batch, rows, columns] as [batch * rows, columns].
Tensor as_rows(const Tensor& tensor) {
  if (tensor.ndim() == 2) return tensor;
  if (tensor.size(0) > 1 && tensor.stride(0) != tensor.size(1) * tensor.stride(1))
    bad_input("--a must lie row-major where its first dimension is one of rows");
  return Tensor(tensor.data(), tensor.dtype(), {tensor.size(0) * tensor.size(1), tensor.size(2)},
                {tensor.stride(1), tensor.stride(2)});
}

int run_all_gather_matmul(const Common& common, const CollectiveFlags& flags) {
  Run run(common, "all-gather-matmul");
  Ranked rank(common, flags, false);
  const Tensor& file = rank.a;
  const int32_t dims = file.ndim();
  const int32_t dim = dimension("--gather-dim", flags.gather_dim.value_or(0), dims);
  const bool along_k = dim == dims - 1, batched_b = rank.b[0].ndim() == 3;
  // One product of all rows, unless every entry of the batch has its own b or its own shards.
  const bool entries = dims == 3 && (batched_b || dim == 1);
  Tensor a, whole;
  std::vector<Tensor> out;
  RankScales scales;
  AllGatherMatmulOptions options = {.gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
                                    .chunks = flags.chunks,
                                    .deadline = rank.deadline,
                                    .implementation = wanted_implementation(common),
                                    .fusion = rank.fusion(),
                                    .report = !flags.report.empty(),
                                    .canonical = flags.canonical,
                                    .accumulation = rank.accumulation()};
  rank.together([&] {
    if (dim == 0 && dims == 3 && batched_b)
      bad_input("--gather-dim 0 is the batch, of which --b has entries too; gather another one");
    if (entries && along_k)
      bad_input("--gather-dim of the columns goes with a --b of 2 dimensions");
    harness::Shape gathered = shape_of(file);
    gathered[static_cast<size_t>(dim)] = rank.agreed.total(static_cast<size_t>(dim));
    const DType out_dtype = rank.out_dtype();
    for (size_t i = 0; i < rank.b.size(); ++i) {
      const Tensor& b = rank.b[i];
      if (b.size(-2) != gathered.back())
        bad_input(fmt::format("--b has {} rows, expected {}, the columns of the gathered --a",
                              b.size(-2), gathered.back()));
      harness::Shape shape = gathered;
      shape.back() = b.size(-1);
      out.push_back(rank.result("--out", flags.out[i], out_dtype, shape));
      options.products.push_back(
          {.n = b.size(-1), .out_dtype = out_dtype, .bias = !rank.bias.empty()});
    }
    rank.check_bias();
    a = entries ? file : as_rows(file);
    if (!flags.gathered.empty())
      whole = rank.result("--gathered", flags.gathered, a.dtype(), gathered);
    harness::Shape rows = gathered;
    if (entries) rows.erase(rows.begin());
    scales = scales_of(rank, a, along_k ? a.size(-2) : rows_of(rows), !along_k);
  });
  options.dtype = a.dtype();
  options.batch = entries ? a.size(0) : 1;
  options.m = a.size(-2);
  options.k = a.size(-1);
  options.b_dtype = rank.b[0].dtype();
  options.scaling = scales.of;
  options.sharded_scales = scales.sharded;
  const AllGatherMatmul plan(*rank.context, rank.group, options);
  const auto place = [&](const Tensor& tensor) {
    return rank.placement->place(entries || !tensor.present() ? tensor : as_rows(tensor));
  };
  std::vector<Tensor> c;
  for (const Tensor& each : out) c.push_back(place(each));
  std::vector<Tensor> results = out;
  results.push_back(whole);
  rank.execute(run, plan,
               AllGatherMatmulArguments{.a = rank.placement->place(a),
                                        .b = rank.placed(rank.b),
                                        .bias = rank.placed(rank.bias),
                                        .c = c,
                                        .gathered = place(whole),
                                        .deadline = rank.deadline,
                                        .scale_a = rank.placement->place(scales.a),
                                        .scale_b = rank.placed(scales.b)},
               results);
  return kOk;
}

// The shape of this rank's part of the sum.
harness::Shape part_of(const Group& group, harness::Shape shape, int32_t dim) {
  int64_t& extent = shape[static_cast<size_t>(dim)];
  const int64_t size = group.size(), number = group.rank();
  if (dim == 0 && shape.size() == 3 && extent % size != 0)
    bad_input(
        fmt::format("--scatter-dim 0 of a batch of {} goes with a number of ranks that "
                    "divides it; got {}",
                    extent, size));
  extent = (number + 1) * extent / size - number * extent / size;
  return shape;
}

int run_matmul_reduce(const Common& common, const CollectiveFlags& flags, bool all) {
  Run run(common, all ? "matmul-all-reduce" : "matmul-reduce-scatter");
  const Reduction reduction = reduction_of(flags.reduce);
  Ranked rank(common, flags, all);
  const Tensor& b = rank.b[0];
  const auto dims = rank.a.ndim();
  const int32_t dim =
      all ? dims - 2 : dimension("--scatter-dim", flags.scatter_dim.value_or(0), dims);
  // The entries of a batch are rows, where they all have the same b.
  const bool entries = dims == 3 && (b.ndim() == 3 || dim == 1);
  const DType out_dtype = rank.out_dtype();
  Tensor a, out;
  RankScales scales;
  rank.together([&] {
    if (rank.a.size(-1) != b.size(-2))
      bad_input(fmt::format("the columns of --a and the rows of --b must be equal; got {} and {}",
                            rank.a.size(-1), b.size(-2)));
    if (dim == 0 && entries)
      bad_input("--scatter-dim 0 is the batch, of which --b has entries too; scatter another one");
    rank.check_bias();
    a = entries ? rank.a : as_rows(rank.a);
    harness::Shape shape = shape_of(rank.a);
    shape.back() = b.size(-1);
    out = rank.result("--out", flags.out[0], out_dtype,
                      all ? shape : part_of(rank.group, shape, dim));
    scales = scales_of(rank, a, a.size(-2), false);
  });
  const MatmulReduce plan(*rank.context, rank.group,
                          {.dtype = a.dtype(),
                           .out_dtype = out_dtype,
                           .scatter_dim = dim == dims - 1 ? ChunkDim::kN : ChunkDim::kM,
                           .reduction = reduction,
                           .all_reduce = all,
                           .bias = !rank.bias.empty(),
                           .batch = entries ? a.size(0) : 1,
                           .m = a.size(-2),
                           .n = b.size(-1),
                           .k = a.size(-1),
                           .deadline = rank.deadline,
                           .implementation = wanted_implementation(common),
                           .fusion = rank.fusion(),
                           .report = !flags.report.empty(),
                           .canonical = flags.canonical,
                           .b_dtype = b.dtype(),
                           .scaling = scales.of,
                           .accumulation = rank.accumulation()});
  const auto placed = [&](const Tensor& tensor) { return rank.placement->place(tensor); };
  rank.execute(run, plan,
               MatmulReduceArguments{.a = placed(a),
                                     .b = placed(b),
                                     .bias = rank.bias.empty() ? Tensor() : placed(rank.bias[0]),
                                     .c = placed(entries ? out : as_rows(out)),
                                     .deadline = rank.deadline,
                                     .scale_a = placed(scales.a),
                                     .scale_b = scales.b.empty() ? Tensor() : placed(scales.b[0])},
               {out});
  return kOk;
}

// `several`: products of one gathered a, whose flags are repeated.
CLI::App* add(CLI::App& run, const char* name, const char* help, const char* scales_of_a,
              bool several, CollectiveFlags& flags) {
  CLI::App* app = run.add_subcommand(name, help);
  const auto file = [&](const char* flag, std::string& reference, const char* text) {
    return app->add_option(flag, reference, text)->type_name(kFile);
  };
  const auto files = [&](const char* flag, std::vector<std::string>& references,
                         const std::string& text) {
    CLI::Option* option =
        app->add_option(flag, references, text + (several ? "; once for each product" : ""));
    option->type_name(kFile)->allow_extra_args(false);
    return several ? option : option->expected(1);
  };
  file("--a", flags.a, "of each rank: {rank} in a name is its number")->required();
  files("--b", flags.b, "of each rank")->required();
  files("--out", flags.out, "the result of each rank")->required();
  files("--bias", flags.bias, "[n], added to every row");
  app->add_flag("--transpose-b", flags.transpose_b, "b lies as [n, k]");
  file("--scale-a", flags.scale_a, scales_of_a);
  files("--scale-b", flags.scale_b, "scales of an 8-bit b: one, or [n] for its columns");
  app->add_option("--accumulation", flags.accumulation, "of 8-bit products on tensor cores")
      ->type_name("fast|promoted")
      ->capture_default_str();
  app->add_option("--output-dtype", flags.output_dtype,
                  "type of the result, if not that of a (f32 where a has 8 bits)")
      ->type_name("f16|bf16|f32|f64");
  app->add_option("--deadline", flags.deadline,
                  "milliseconds that any rank is waited for; then the exit code is 5 (30000)");
  app->add_option("--fusion", flags.fusion, "whether communicating overlaps computing (auto)")
      ->type_name("auto|fused|unfused");
  app->add_flag("--canonical", flags.canonical,
                "an order of sums that gives the same bits for 1, 2, 4 and 8 ranks");
  file("--report", flags.report,
       "where the time of each rank went, as JSON and a Chrome trace in one");
  app->footer(
      fmt::format("Start the ranks with perseid launch, mpirun or torchrun. Each has a GPU of its "
                  "own with --device 'cuda:{{rank}}'.\n"
                  "Example:\n  perseid launch -n 2 -- perseid run {} --a 'a.{{rank}}.npy' "
                  "--b 'b.{{rank}}.npy' --out 'c.{{rank}}.npy'",
                  name));
  return app;
}

}  // namespace

void add_run_collective(CLI::App& run, const Common& common, Action& action) {
  {
    auto flags = std::make_shared<CollectiveFlags>();
    CLI::App* app =
        add(run, "all-gather-matmul", "out = a b + bias, where a is gathered from all ranks",
            "scales of an 8-bit a: one, or of the rows of this rank, or of all rows", true, *flags);
    app->add_option("--gathered", flags->gathered, "the gathered a, on each rank")
        ->type_name(kFile);
    app->add_option("--gather-dim", flags->gather_dim,
                    "the dimension of a that is gathered, in which ranks may be uneven (0)")
        ->type_name("D");
    app->add_option("--chunks", flags->chunks, "that each shard is signalled in (0: by a model)")
        ->type_name("N");
    app->fallthrough()->callback([&action, &common, flags] {
      action = [&common, flags] { return run_all_gather_matmul(common, *flags); };
    });
  }
  for (const bool all : {false, true}) {
    auto flags = std::make_shared<CollectiveFlags>();
    CLI::App* app =
        add(run, all ? "matmul-all-reduce" : "matmul-reduce-scatter",
            all ? "out = the sum of a b over all ranks + bias"
                : "out = a rank's part of the sum of a b over all ranks + bias",
            "scales of an 8-bit a, of each rank its own: one, or [m] for its rows", false, *flags);
    if (!all)
      app->add_option("--scatter-dim", flags->scatter_dim,
                      "the dimension of the result of which rank r of P gets [r*M/P, (r+1)*M/P) "
                      "(0)")
          ->type_name("D");
    app->add_option("--reduce", flags->reduce, "over ranks")
        ->type_name("sum|average")
        ->capture_default_str();
    app->fallthrough()->callback([&action, &common, flags, all] {
      action = [&common, flags, all] { return run_matmul_reduce(common, *flags, all); };
    });
  }
}

}  // namespace perseid::cli
