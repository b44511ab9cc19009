// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "harness/placement.hpp"
#include "help.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

struct SoftmaxFlags {
  std::string input, output, visible, output_dtype, grad_output, grad_input;
  std::string empty_rows = "zero";
  bool log = false;
  int32_t dim = -1;
  double scale = 1;
};

int run_softmax(const Common& common, const SoftmaxFlags& flags) {
  if (flags.output.empty() && flags.grad_input.empty())
    bad_input("nothing to compute: give --output, or --grad-output with --grad-input");
  if (flags.grad_output.empty() != flags.grad_input.empty())
    bad_input("--grad-output and --grad-input go together");
  if (flags.scale == 0)
    bad_input("--scale must not be 0, which makes all elements alike; leave it out for 1");
  TensorFiles files;
  Run run(common, "softmax");
  const DType wanted = wanted_dtype(common);
  const Tensor input = files.read("--input", flags.input, wanted);
  DType out_dtype = input.dtype();
  if (!flags.output_dtype.empty()) out_dtype = harness::parse_dtype(flags.output_dtype);
  if (!harness::is_floating(out_dtype))
    bad_input(
        fmt::format("--output-dtype must be f16, bf16, f32 or f64, got '{}'", flags.output_dtype));
  if (flags.empty_rows != "zero" && flags.empty_rows != "nan")
    bad_input(fmt::format("--empty-rows must be zero or nan, got '{}'", flags.empty_rows));
  Tensor visible;
  if (!flags.visible.empty())
    visible = with_leading_ones(files.read_mask("--visible", flags.visible), input.ndim());

  const Context context = open_context(common, common.threads);
  const Softmax softmax(context, {.dtype = input.dtype(),
                                  .out_dtype = out_dtype,
                                  .shape = input.shape(),
                                  .dim = flags.dim,
                                  .log = flags.log,
                                  .scale = flags.scale,
                                  .visible = visible.present(),
                                  .empty_rows_nan = flags.empty_rows == "nan",
                                  .implementation = wanted_implementation(common)});
  const auto size = [&](Direction direction) { return softmax.workspace_size(direction); };
  const bool backward = !flags.grad_output.empty();
  const Memory workspace(context, std::max(size(Direction::kForward),
                                           backward ? size(Direction::kBackward) : size_t{0}));
  const harness::Shape shape = shape_of(input);
  const Tensor output = flags.output.empty()
                            ? files.scratch(out_dtype, shape)
                            : files.result("--output", flags.output, out_dtype, shape);
  harness::Placement placement(context);
  const Tensor x = placement.place(input), y = placement.place(output);
  const Tensor mask = placement.place(visible);
  run.timed([&] {
    softmax.forward(nullptr, {.input = x, .output = y, .visible = mask}, {workspace});
    context.synchronize();
  });
  placement.fetch(output);
  if (backward) {
    const Tensor grad_output = files.read("--grad-output", flags.grad_output, out_dtype);
    const Tensor grad_input = files.result("--grad-input", flags.grad_input, input.dtype(), shape);
    const Tensor dy = placement.place(grad_output), dx = placement.place(grad_input);
    run.timed([&] {
      softmax.backward(nullptr, {.grad_output = dy, .output = y, .visible = mask, .grad_input = dx},
                       {workspace});
      context.synchronize();
    });
    placement.fetch(grad_input);
  }
  run.finish(files, softmax.info().implementation);
  return kOk;
}

}  // namespace

void add_run_softmax(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<SoftmaxFlags>();
  CLI::App* app = run.add_subcommand("softmax", "softmax or log-softmax, and their gradient");
  const auto file = [&](const char* flag, std::string& reference, const char* help) {
    return app->add_option(flag, reference, help)->type_name(kFile);
  };
  file("--input", flags->input, "what to take the softmax of")->required();
  file("--output", flags->output, "the result");
  app->add_flag("--log", flags->log, "log-softmax");
  app->add_option("--dim", flags->dim, "the dimension; negative ones count from the last")
      ->capture_default_str();
  app->add_option("--scale", flags->scale, "factor of the input")->capture_default_str();
  file("--visible", flags->visible, "bool or uint8 mask that broadcasts; true: counted");
  app->add_option("--empty-rows", flags->empty_rows, "rows with nothing visible")
      ->type_name("zero|nan")
      ->capture_default_str();
  app->add_option("--output-dtype", flags->output_dtype, "type of the result, if not the input's")
      ->type_name("f16|bf16|f32|f64");
  file("--grad-output", flags->grad_output, "gradient of the output");
  file("--grad-input", flags->grad_input, "the gradient of the input");
  app->footer("Example:\n  perseid run softmax --input x.npy --output y.npy --log --dim 1");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_softmax(common, *flags); };
  });
}

}  // namespace perseid::cli
