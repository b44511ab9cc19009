// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "harness/placement.hpp"
#include "help.hpp"
#include "run.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

struct DropoutMaskFlags {
  int64_t batch = 1, heads = 1, q_len = 0, kv_len = 0;
  double dropout = 0;
  uint64_t seed = 0, offset = 0;
  std::string output;
};

int run_dropout_mask(const Common& common, const DropoutMaskFlags& flags) {
  const harness::Shape shape = {flags.batch, flags.heads, flags.q_len, flags.kv_len};
  for (int64_t extent : shape) {
    if (extent < 0)
      bad_input(fmt::format("--batch, --heads, --q-len and --kv-len must not be negative; got {}",
                            harness::to_text(shape)));
  }
  TensorFiles files;
  Run run(common, "dropout-mask");
  const Context context = open_context(common, common.threads);
  const Tensor mask = files.result("--output", flags.output, boolean, shape);
  harness::Placement placement(context);
  const Tensor placed = placement.place(mask);
  run.timed([&] {
    fill_dropout_mask(context, flags.dropout, flags.seed, flags.offset, placed);
    context.synchronize();
  });
  placement.fetch(mask);
  run.finish(files, "dropout mask");
  return kOk;
}

}  // namespace

void add_run_dropout_mask(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<DropoutMaskFlags>();
  CLI::App* app = run.add_subcommand(
      "dropout-mask", "the mask that attention draws: bool, true where an element is kept");
  app->add_option("--batch", flags->batch, "sequences")->capture_default_str();
  app->add_option("--heads", flags->heads, "query heads")->capture_default_str();
  app->add_option("--q-len", flags->q_len, "queries of a sequence")->required();
  app->add_option("--kv-len", flags->kv_len, "keys of a sequence")->required();
  app->add_option("--dropout", flags->dropout, "probability of dropping, in [0, 1)")->required();
  app->add_option("--seed", flags->seed, "seed")->check(not_negative())->capture_default_str();
  app->add_option("--offset", flags->offset, "offset, below 2^32")
      ->check(not_negative())
      ->capture_default_str();
  app->add_option("--output", flags->output, "the mask")->type_name(kFile)->required();
  app->footer(
      "Example:\n  perseid run dropout-mask --batch 2 --heads 4 --q-len 64 --kv-len 64 --dropout "
      "0.1 --seed 7 --output mask.npy");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_dropout_mask(common, *flags); };
  });
}

}  // namespace perseid::cli
