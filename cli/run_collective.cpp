// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid run` of what ranks compute together: each rank is a process with files of its own.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "harness/placement.hpp"
#include "help.hpp"
#include "perseid/collective.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

struct CollectiveFlags {
  std::string a, b, out, bias, gathered;
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
    bias = read("--bias", flags.bias);
    same_dtype({{"--a", a}, {"--b", b}, {"--bias", bias}});
    for (const auto& [flag, matrix] : {std::pair{"--a", a}, std::pair{"--b", b}})
      if (matrix.ndim() != 2 && matrix.ndim() != 3)
        bad_input(fmt::format("{} must have 2 dimensions, or 3 with a batch first; got shape {}",
                              flag, harness::to_text(shape_of(matrix))));
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
  Tensor result(const char* flag, const std::string& name, const harness::Shape& shape) {
    return files.result(flag, of_rank(name, group.rank()), a.dtype(), shape);
  }
  // The sum of a size over all ranks.
  int64_t total(int64_t size) const {
    const double mine = static_cast<double>(size);
    double sum = 0;
    group.all_reduce(Tensor(&mine, f64, {1}), Tensor(&sum, f64, {1}), Reduction::kSum, deadline);
    return static_cast<int64_t>(sum);
  }
};

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
  const Tensor out = rank.result("--out", flags.out, shape);
  const Tensor whole =
      flags.gathered.empty() ? Tensor() : rank.result("--gathered", flags.gathered, gathered);

  const AllGatherMatmul plan(rank.context, rank.group,
                             {.dtype = a.dtype(),
                              .gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
                              .batch = entries ? a.size(0) : 1,
                              .m = a.size(-2),
                              .k = a.size(-1),
                              .products = {{.n = rank.b.size(-1), .bias = rank.bias.present()}},
                              .deadline = rank.deadline,
                              .implementation = wanted_implementation(common),
                              .fusion = static_cast<Fusion>(fusion_of(flags.fusion)),
                              .report = !flags.report.empty(),
                              .canonical = flags.canonical});
  const auto place = [&](const Tensor& tensor) {
    return rank.placement.place(entries || !tensor.present() ? tensor : as_rows(tensor));
  };
  rank.execute(run, plan,
               AllGatherMatmulArguments{.a = rank.placement.place(a),
                                        .b = {rank.placement.place(rank.b)},
                                        .bias = {rank.placement.place(rank.bias)},
                                        .c = {place(out)},
                                        .gathered = place(whole),
                                        .deadline = rank.deadline},
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
  const Tensor out = rank.result("--out", flags.out, shape);

  const MatmulReduce plan(rank.context, rank.group,
                          {.dtype = a.dtype(),
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
                           .canonical = flags.canonical});
  rank.execute(run, plan,
               MatmulReduceArguments{.a = rank.placement.place(a),
                                     .b = rank.placement.place(rank.b),
                                     .bias = rank.placement.place(rank.bias),
                                     .c = rank.placement.place(entries ? out : as_rows(out)),
                                     .deadline = rank.deadline},
               {out});
  return kOk;
}

CLI::App* add(CLI::App& run, const char* name, const char* help, CollectiveFlags& flags) {
  CLI::App* app = run.add_subcommand(name, help);
  const auto file = [&](const char* flag, std::string& reference, const char* text) {
    return app->add_option(flag, reference, text)->type_name(kFile);
  };
  file("--a", flags.a, "of each rank: {rank} in a name is its number")->required();
  file("--b", flags.b, "of each rank")->required();
  file("--out", flags.out, "the result of each rank")->required();
  file("--bias", flags.bias, "[n], added to every row");
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
    CLI::App* app = add(run, "all-gather-matmul",
                        "out = a b + bias, where a is gathered from all ranks", *flags);
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
        all ? add(run, "matmul-all-reduce", "out = the sum of a b over all ranks + bias", *flags)
            : add(run, "matmul-reduce-scatter",
                  "out = a rank's part of the sum of a b over all ranks + bias", *flags);
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
