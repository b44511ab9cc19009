// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid run` of what ranks compute together: each rank is a process with files of its own.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "harness/placement.hpp"
#include "harness/problem.hpp"
#include "help.hpp"
#include "perseid/collective.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

struct CollectiveFlags {
  std::string a, b, out, bias, gathered, scale_a, scale_b, output_dtype;
  std::string accumulation = "promoted";
  bool transpose_b = false;
  std::optional<int64_t> gather_dim, scatter_dim;
  std::string reduce = "sum", fusion = "auto", report;
  bool canonical = false;
  std::optional<double> deadline;  // milliseconds
};

// This rank, its files, and the operands that every operation has.
struct Ranked {
  const Common& common;
  const CollectiveFlags& flags;
  Group group;
  Context context;
  harness::Placement placement;
  TensorFiles files;
  std::chrono::nanoseconds deadline;
  Tensor a, b, bias;

  Ranked(const Common& of_all, const CollectiveFlags& given)
      : common(of_all),
        flags(given),
        group(GroupOptions{.deadline = deadline_of(given.deadline)}),
        context(open_context_of_rank(of_all, group.rank())),
        placement(context),
        deadline(deadline_of(given.deadline)) {
    const DType wanted = wanted_dtype(common);
    const auto read = [&](const char* flag, const std::string& name) {
      return name.empty() ? Tensor() : files.read(flag, of_rank(name, group.rank()), wanted);
    };
    a = read("--a", flags.a);
    b = read("--b", flags.b);
    // What is added to an 8-bit product has more bits.
    const bool float8 = harness::is_float8(a.dtype());
    if (!flags.bias.empty())
      bias = files.read("--bias", of_rank(flags.bias, group.rank()), float8 ? f32 : wanted);
    if (!float8) same_dtype({{"--a", a}, {"--b", b}, {"--bias", bias}});
    if (float8 && !harness::is_float8(b.dtype())) same_dtype({{"--a", a}, {"--b", b}});
    for (const auto& [flag, matrix] : {std::pair{"--a", a}, std::pair{"--b", b}})
      if (matrix.ndim() != 2 && matrix.ndim() != 3)
        bad_input(fmt::format("{} must have 2 dimensions, or 3 with a batch first; got shape {}",
                              flag, harness::to_text(shape_of(matrix))));
    if (flags.transpose_b) b = b.transposed();
    if (b.ndim() == 3 && a.ndim() == 2)
      bad_input("--b has a batch and --a has none; give both the same, or --a alone a batch");
  }
  // Executes on this rank's device.
  template <class Plan, class Arguments>
  void execute(Run& run, const Plan& plan, const Arguments& arguments,
               std::initializer_list<Tensor> results) {
    const Memory workspace(context, plan.workspace_size());
    context.synchronize();
    run.timed([&] {
      plan.execute(nullptr, arguments, {workspace});
      context.synchronize();
    });
    for (const Tensor& result : results)
      if (result.present()) placement.fetch(result);
    if (!flags.report.empty())
      write_report(of_rank(flags.report, group.rank()), plan.overlap_report());
    run.finish(files, plan.info().implementation);
  }
  Tensor result(const char* flag, const std::string& name, DType dtype,
                const harness::Shape& shape) {
    return files.result(flag, of_rank(name, group.rank()), dtype, shape);
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
  // The sum of a size over all ranks.
  int64_t total(int64_t size) const {
    const double mine = static_cast<double>(size);
    double sum = 0;
    group.all_reduce(Tensor(&mine, f64, {1}), Tensor(&sum, f64, {1}), Reduction::kSum, deadline);
    return static_cast<int64_t>(sum);
  }
};

// The scales of 8-bit operands. Their sizes say what they belong to.
struct RankScales {
  Scaling of = Scaling::kNone;
  bool sharded = false;  // those of a are those of this rank's rows
  Tensor a, b;
};

// `entries` of `lines` each; one scale serves all lines.
Tensor line_scales(const Tensor& scales, int64_t entries, int64_t lines, bool batched) {
  if (scales.elements() == 1 && entries * lines != 1)
    return batched ? Tensor(scales.data(), f32, {entries, lines}, {0, 0})
                   : Tensor(scales.data(), f32, {lines}, {0});
  return batched ? Tensor(scales.data(), f32, {entries, lines})
                 : Tensor(scales.data(), f32, {lines});
}

// Of a product with an `a` of rows and a batch where it has 3 dimensions. `all_rows`: of the
// gathered a; `shards`: whether ranks may have the scales of their own rows alone.
RankScales read_scales(Ranked& rank, const Tensor& a, int64_t all_rows, bool shards) {
  const CollectiveFlags& flags = rank.flags;
  if (flags.scale_a.empty() != flags.scale_b.empty())
    bad_input("--scale-a and --scale-b go together");
  if (flags.scale_a.empty()) return {};
  if (!harness::is_float8(a.dtype()))
    bad_input(
        fmt::format("--scale-a and --scale-b are of 8-bit matrices, got {}; say --dtype f8e4m3 "
                    "or f8e5m2",
                    harness::name_of(a.dtype())));
  const auto read = [&](const char* flag, const std::string& name) {
    const Tensor scales = rank.files.read(flag, of_rank(name, rank.group.rank()), f32);
    int64_t natural = 1;
    for (int32_t d = scales.ndim() - 1; d >= 0; natural *= scales.size(d--))
      if (scales.size(d) > 1 && scales.stride(d) != natural)
        bad_input(fmt::format("{} must lie row-major", flag));
    return scales;
  };
  const Tensor of_a = read("--scale-a", flags.scale_a), of_b = read("--scale-b", flags.scale_b);
  const bool batched = a.ndim() == 3, batched_b = rank.b.ndim() == 3;
  const int64_t entries = batched ? a.size(0) : 1, own = entries * a.size(-2),
                all = entries * all_rows, columns = rank.b.size(-1),
                all_columns = (batched_b ? entries : 1) * columns;
  // All ranks have as many as rows.
  const bool sharded = shards && rank.total(of_a.elements() == own ? 0 : 1) == 0;
  if (!sharded && of_a.elements() == 1 && of_b.elements() == 1)
    return {Scaling::kTensor, false, Tensor(of_a.data(), f32, {1}), Tensor(of_b.data(), f32, {1})};
  const bool fits_a = sharded || of_a.elements() == all || of_a.elements() == 1;
  const bool fits_b =
      of_b.elements() == all_columns || of_b.elements() == columns || of_b.elements() == 1;
  if (!fits_a || !fits_b)
    bad_input(fmt::format(
        "--scale-a has {} scales and --scale-b {}, expected one each; or {}{} and "
        "{}, for the rows of a and the columns of b",
        of_a.elements(), of_b.elements(),
        shards && own != all ? fmt::format("{} on all ranks, or ", own) : "", all, all_columns));
  return {Scaling::kRow, sharded,
          line_scales(of_a, entries, sharded ? a.size(-2) : all_rows, batched),
          line_scales(of_b, entries, columns, batched_b && of_b.elements() == all_columns)};
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
  Ranked rank(common, flags);
  const Tensor& file = rank.a;
  const int32_t dims = file.ndim();
  const int32_t dim = dimension("--gather-dim", flags.gather_dim.value_or(0), dims);
  if (dim == 0 && dims == 3 && rank.b.ndim() == 3)
    bad_input("--gather-dim 0 is the batch, of which --b has entries too; gather another one");
  const bool along_k = dim == dims - 1;
  harness::Shape gathered = shape_of(file);
  gathered[static_cast<size_t>(dim)] = rank.total(file.size(dim));
  if (rank.b.size(-2) != gathered.back())
    bad_input(fmt::format("--b has {} rows, expected {}, the columns of the gathered --a",
                          rank.b.size(-2), gathered.back()));
  // One product of all rows, unless every entry of the batch has its own b or its own shards.
  const bool entries = dims == 3 && (rank.b.ndim() == 3 || dim == 1);
  if (entries && along_k) bad_input("--gather-dim of the columns goes with a --b of 2 dimensions");
  const Tensor a = entries ? file : as_rows(file);
  harness::Shape shape = gathered;
  shape.back() = rank.b.size(-1);
  const DType out_dtype = rank.out_dtype();
  const Tensor out = rank.result("--out", flags.out, out_dtype, shape);
  const Tensor whole = flags.gathered.empty()
                           ? Tensor()
                           : rank.result("--gathered", flags.gathered, a.dtype(), gathered);
  const int64_t all_rows = along_k ? a.size(-2) : rank.total(a.size(-2));
  const RankScales scales = read_scales(rank, a, all_rows, !along_k);

  const AllGatherMatmul plan(
      rank.context, rank.group,
      {.dtype = a.dtype(),
       .gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
       .batch = entries ? a.size(0) : 1,
       .m = a.size(-2),
       .k = a.size(-1),
       .products = {{.n = rank.b.size(-1), .out_dtype = out_dtype, .bias = rank.bias.present()}},
       .deadline = rank.deadline,
       .implementation = wanted_implementation(common),
       .fusion = static_cast<Fusion>(fusion_of(flags.fusion)),
       .report = !flags.report.empty(),
       .canonical = flags.canonical,
       .b_dtype = rank.b.dtype(),
       .scaling = scales.of,
       .accumulation = rank.accumulation(),
       .sharded_scales = scales.sharded});
  const auto place = [&](const Tensor& tensor) {
    return rank.placement.place(entries || !tensor.present() ? tensor : as_rows(tensor));
  };
  rank.execute(run, plan,
               AllGatherMatmulArguments{.a = rank.placement.place(a),
                                        .b = {rank.placement.place(rank.b)},
                                        .bias = {rank.placement.place(rank.bias)},
                                        .c = {place(out)},
                                        .gathered = place(whole),
                                        .deadline = rank.deadline,
                                        .scale_a = rank.placement.place(scales.a),
                                        .scale_b = {rank.placement.place(scales.b)}},
               {out, whole});
  return kOk;
}

int run_matmul_reduce(const Common& common, const CollectiveFlags& flags, bool all) {
  Run run(common, all ? "matmul-all-reduce" : "matmul-reduce-scatter");
  const Reduction reduction = reduction_of(flags.reduce);
  Ranked rank(common, flags);
  if (rank.a.size(-1) != rank.b.size(-2))
    bad_input(fmt::format("the columns of --a and the rows of --b must be equal; got {} and {}",
                          rank.a.size(-1), rank.b.size(-2)));
  harness::Shape shape = shape_of(rank.a);
  shape.back() = rank.b.size(-1);
  const auto dims = static_cast<int32_t>(shape.size());
  const int32_t dim =
      all ? dims - 2 : dimension("--scatter-dim", flags.scatter_dim.value_or(0), dims);
  // The entries of a batch are rows, where they all have the same b.
  const bool entries = dims == 3 && (rank.b.ndim() == 3 || dim == 1);
  if (dim == 0 && entries)
    bad_input("--scatter-dim 0 is the batch, of which --b has entries too; scatter another one");
  const Tensor a = entries ? rank.a : as_rows(rank.a);
  if (!all) {
    int64_t& extent = shape[static_cast<size_t>(dim)];
    const int64_t size = rank.group.size(), number = rank.group.rank();
    if (dim == 0 && dims == 3 && extent % size != 0)
      bad_input(
          fmt::format("--scatter-dim 0 of a batch of {} goes with a number of ranks that "
                      "divides it; got {}",
                      extent, size));
    extent = (number + 1) * extent / size - number * extent / size;
  }
  const DType out_dtype = rank.out_dtype();
  const Tensor out = rank.result("--out", flags.out, out_dtype, shape);
  const RankScales scales = read_scales(rank, a, a.size(-2), false);

  const MatmulReduce plan(rank.context, rank.group,
                          {.dtype = a.dtype(),
                           .out_dtype = out_dtype,
                           .scatter_dim = dim == dims - 1 ? ChunkDim::kN : ChunkDim::kM,
                           .reduction = reduction,
                           .all_reduce = all,
                           .bias = rank.bias.present(),
                           .batch = entries ? a.size(0) : 1,
                           .m = a.size(-2),
                           .n = rank.b.size(-1),
                           .k = a.size(-1),
                           .deadline = rank.deadline,
                           .implementation = wanted_implementation(common),
                           .fusion = static_cast<Fusion>(fusion_of(flags.fusion)),
                           .report = !flags.report.empty(),
                           .canonical = flags.canonical,
                           .b_dtype = rank.b.dtype(),
                           .scaling = scales.of,
                           .accumulation = rank.accumulation()});
  rank.execute(run, plan,
               MatmulReduceArguments{.a = rank.placement.place(a),
                                     .b = rank.placement.place(rank.b),
                                     .bias = rank.placement.place(rank.bias),
                                     .c = rank.placement.place(entries ? out : as_rows(out)),
                                     .deadline = rank.deadline,
                                     .scale_a = rank.placement.place(scales.a),
                                     .scale_b = rank.placement.place(scales.b)},
               {out});
  return kOk;
}

CLI::App* add(CLI::App& run, const char* name, const char* help, const char* scales_of_a,
              CollectiveFlags& flags) {
  CLI::App* app = run.add_subcommand(name, help);
  const auto file = [&](const char* flag, std::string& reference, const char* text) {
    return app->add_option(flag, reference, text)->type_name(kFile);
  };
  file("--a", flags.a, "of each rank: {rank} in a name is its number")->required();
  file("--b", flags.b, "of each rank")->required();
  file("--out", flags.out, "the result of each rank")->required();
  file("--bias", flags.bias, "[n], added to every row");
  app->add_flag("--transpose-b", flags.transpose_b, "b lies as [n, k]");
  file("--scale-a", flags.scale_a, scales_of_a);
  file("--scale-b", flags.scale_b, "scales of an 8-bit b: one, or [n] for its columns");
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
            "scales of an 8-bit a: one, or of the rows of this rank, or of all rows", *flags);
    app->add_option("--gathered", flags->gathered, "the gathered a, on each rank")
        ->type_name(kFile);
    app->add_option("--gather-dim", flags->gather_dim,
                    "the dimension of a that is gathered, in which ranks may be uneven (0)")
        ->type_name("D");
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
            "scales of an 8-bit a, of each rank its own: one, or [m] for its rows", *flags);
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
