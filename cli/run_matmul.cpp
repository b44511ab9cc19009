// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "harness/placement.hpp"
#include "help.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

struct Flags {
  std::string a, b, out, c, bias;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1;
  std::optional<double> beta;
};

Tensor read_matrix(TensorFiles& files, const char* flag, const std::string& reference, DType wanted,
                   bool transpose) {
  const Tensor matrix = files.read(flag, reference, wanted);
  if (matrix.ndim() != 2 && matrix.ndim() != 3)
    bad_input(
        fmt::format("{} must have 2 dimensions, or 3 with a batch first; {} has shape {}: "
                    "reshape it",
                    flag, reference, harness::to_text(shape_of(matrix))));
  return transpose ? matrix.transposed() : matrix;
}

int run_matmul(const Common& common, const Flags& flags) {
  TensorFiles files;
  Run run(common, "matmul");
  const DType wanted = wanted_dtype(common);
  const Tensor a = read_matrix(files, "--a", flags.a, wanted, flags.transpose_a);
  const Tensor b = read_matrix(files, "--b", flags.b, wanted, flags.transpose_b);
  if (a.size(-1) != b.size(-2))
    bad_input(
        fmt::format("the columns of --a and the rows of --b must be equal; got {} and {}: "
                    "--transpose-a and --transpose-b swap rows and columns",
                    a.size(-1), b.size(-2)));
  if (a.ndim() == 3 && b.ndim() == 3 && a.size(0) != b.size(0))
    bad_input(
        fmt::format("--a and --b must have the same batch; got {} and {}: give one of them 2 "
                    "dimensions to use it for the whole batch",
                    a.size(0), b.size(0)));
  if (flags.c.empty() && flags.beta && *flags.beta != 0)
    bad_input("--beta is the factor of --c, which is not given");
  const bool batched = a.ndim() == 3 || b.ndim() == 3;
  const int64_t batch = a.ndim() == 3 ? a.size(0) : batched ? b.size(0) : 1;
  const Tensor c0 = flags.c.empty() ? Tensor() : files.read("--c", flags.c, wanted);
  const Tensor bias = flags.bias.empty() ? Tensor() : files.read("--bias", flags.bias, wanted);
  same_dtype({{"--a", a}, {"--b", b}, {"--c", c0}, {"--bias", bias}});

  const Context context = open_context(common, common.threads);
  const Matmul matmul(context, {.dtype = a.dtype(),
                                .batch = batch,
                                .m = a.size(-2),
                                .n = b.size(-1),
                                .k = a.size(-1),
                                .alpha = flags.alpha,
                                .beta = flags.beta.value_or(flags.c.empty() ? 0 : 1),
                                .bias = bias.present(),
                                .implementation = wanted_implementation(common)});
  const Memory workspace(context, matmul.workspace_size());
  harness::Shape shape = {a.size(-2), b.size(-1)};
  if (batched) shape.insert(shape.begin(), batch);
  const Tensor c = files.result("--out", flags.out, a.dtype(), shape);
  harness::Placement placement(context);
  const MatmulArguments arguments = {.a = placement.place(a),
                                     .b = placement.place(b),
                                     .c0 = placement.place(c0),
                                     .bias = placement.place(bias),
                                     .c = placement.place(c)};
  run.timed([&] {
    matmul.execute(nullptr, arguments, {workspace});
    context.synchronize();
  });
  placement.fetch(c);
  run.finish(files, matmul.info().implementation);
  return kOk;
}

}  // namespace

void add_run_matmul(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* app = run.add_subcommand("matmul", "out = alpha a b + beta c + bias");
  const auto file = [&](const char* flag, std::string& reference, const char* help) {
    return app->add_option(flag, reference, help)->type_name(kFile);
  };
  file("--a", flags->a, "[m, k], or [batch, m, k]")->required();
  file("--b", flags->b, "[k, n], or [batch, k, n]")->required();
  file("--out", flags->out, "the result")->required();
  app->add_flag("--transpose-a", flags->transpose_a, "a lies as [k, m]");
  app->add_flag("--transpose-b", flags->transpose_b, "b lies as [n, k]");
  app->add_option("--alpha", flags->alpha, "factor of the product")->capture_default_str();
  app->add_option("--beta", flags->beta, "factor of --c (1 where that is given)");
  file("--c", flags->c, "what is added to, in the shape of the result");
  file("--bias", flags->bias, "[n], added to every row");
  app->footer("Example:\n  perseid run matmul --a a.npy --b b.npy --transpose-b --out c.npy");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_matmul(common, *flags); };
  });
}

}  // namespace perseid::cli
