// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT: reads the text, runs the steps, and shows what was learnt.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "options.hpp"
#include "problems.hpp"
#include "progress.hpp"
#include "ranks.hpp"
#include "sampler.hpp"
#include "terminal.hpp"
#include "trainer.hpp"

namespace gpt {
namespace {

constexpr int64_t kValidationSequences = 256;
constexpr int kExitDiverged = 1;
constexpr int kExitInterrupted = 130;

// Training that has no way back.
struct Diverged : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void expect_finite(double loss, const std::string& of) {
  if (std::isfinite(loss)) return;
  throw Diverged("the loss " + of + " is " + std::to_string(loss) +
                 "; stopped, and nothing was saved: try a smaller --learning-rate");
}

// The value of a key in the context's facts.
std::string_view fact(std::string_view facts, std::string_view key) {
  const size_t name = facts.find("\"" + std::string(key) + "\"");
  if (name == facts.npos) return "";
  const size_t begin = facts.find_first_not_of(": \"", name + key.size() + 2);
  return facts.substr(begin, facts.find_first_of(",}\"\n", begin) - begin);
}

void introduce(const Options& options, const Machine& machine, const Data& data) {
  const Config& model = options.recipe.model;
  std::printf("text   %lld bytes, the last tenth for validation\n",
              static_cast<long long>(data.size()));
  std::printf("model  %.2f million parameters: %lld layers, width %lld, %lld heads, context %lld\n",
              static_cast<double>(Cut(model).size) * 1e-6, static_cast<long long>(model.layers),
              static_cast<long long>(model.width), static_cast<long long>(model.heads),
              static_cast<long long>(model.context));
  const std::string_view facts = machine.context.facts();
  const std::string device(fact(facts, machine.on_gpu() ? "model" : "isa"));
  std::printf("run    %s on %d threads (%s), %lld sequences a step, seed %llu\n",
              options.dtype.c_str(), machine.threads.workers(), device.c_str(),
              static_cast<long long>(model.batch),
              static_cast<unsigned long long>(options.recipe.seed));
  flush_stdout();
}

// Finds out now what would end a long run without its result.
template <class T>
void try_checkpoint(const Trainer<T>& trainer, const Options& options) {
  if (!options.checkpoint.empty()) {
    trainer.try_save(options.checkpoint);
    return;
  }
  try {
    trainer.try_save(kInterrupted);
  } catch (const perseid::Error& error) {
    std::fprintf(stderr, "perseid-gpt: Ctrl-C will save nothing: %s\n", error.what());
  }
}

// Until all steps are done or, which it returns, a signal comes. Before each step the ranks agree
// on it: the turns after the first validation are agreements and steps by turns.
template <class T>
bool run_steps(Trainer<T>& trainer, const Options& options, const StopSignals& signals,
               Losses& losses) {
  if (trainer.recipe().steps != 0 && trainer.steps_done() >= trainer.recipe().steps) {
    std::printf("The checkpoint's %lld steps are all done; --steps asks for more.\n",
                static_cast<long long>(trainer.recipe().steps));
  }
  Progress progress(options.quiet, options.recipe.model.tokens());
  StepEstimate estimate(options.seconds);
  // A rank that replaces another may come to a step that was agreed upon.
  const bool agreed = trainer.turns() > 0 && trainer.turns() % 2 == 0;
  bool stopped = !agreed && trainer.agree(signals.heard(), trainer.recipe().steps).stop;
  while (!stopped &&
         (trainer.recipe().steps == 0 || trainer.steps_done() < trainer.recipe().steps)) {
    const double loss = trainer.step();
    losses.step(trainer.steps_done(), loss);
    if (!std::isfinite(loss)) progress.finish();
    expect_finite(loss, "of step " + std::to_string(trainer.steps_done()));
    int64_t steps = trainer.recipe().steps;
    if (steps == 0) steps = estimate.after_step(trainer.steps_done());
    const auto next = trainer.agree(signals.heard(), steps);
    trainer.set_steps(next.steps);
    stopped = next.stop;
    progress.step(trainer.steps_done(), trainer.recipe().steps, loss);
  }
  progress.finish();
  return stopped;
}

void save(const Options& options, const std::string& path, const auto& trainer) {
  trainer.save(path);
  std::printf("saved  %s after %lld steps\n", path.c_str(),
              static_cast<long long>(trainer.steps_done()));
  if (trainer.steps_done() < trainer.recipe().steps || trainer.recipe().steps == 0) {
    std::printf("Go on with: %s\n", resume_command(options, path).c_str());
  }
}

template <class T>
int run(Machine& machine, const Options& options, Ranks* ranks) {
  const Config& config = options.recipe.model;
  const Data data(read_text(options.text.empty() ? PERSEID_SOURCE_DIR : options.text),
                  config.context);
  Trainer<T> trainer(machine, options.recipe, data, ranks);
  // A rank that replaces another goes on where the others are.
  const bool begins = trainer.turns() == 0;
  if (begins && !options.resume.empty()) trainer.load(options.resume);
  if (!options.problems_out.empty() && trainer.leads())
    write_problems(options.problems_out, config, options.dtype);
  Losses losses(trainer.leads() ? options.losses_out : "");
  introduce(options, machine, data);
  if (trainer.leads()) try_checkpoint(trainer, options);

  double before = 0;
  if (begins) before = trainer.validate(kValidationSequences);
  expect_finite(before, "of the validation before the first step");
  double after = 0;
  {
    const StopSignals signals;
    const bool stopped = run_steps(trainer, options, signals, losses);
    if (!stopped) {
      after = trainer.validate(kValidationSequences);
      expect_finite(after, "of the validation after the last step");
    }
    if (trainer.leads() && !options.checkpoint.empty()) {
      save(options, options.checkpoint, trainer);
    } else if (trainer.leads() && stopped) {
      save(options, kInterrupted, trainer);
    }
    losses.finish();
    flush_stdout();
    if (stopped) return kExitInterrupted;
  }

  std::printf("\nvalidation loss   ");
  if (begins) std::printf("%.3f bits per byte before, ", before);
  std::printf("%.3f after %lld steps\n", after, static_cast<long long>(trainer.steps_done()));
  flush_stdout();
  if (options.sample > 0 && trainer.leads()) {
    Sampler<T> sampler(machine, config, options.temperature);
    const std::string text =
        sampler.sample(trainer.weights(), options.prompt, options.sample, options.recipe.seed);
    std::printf("\na sample, at temperature %g:\n----\n%s\n----\n", options.temperature,
                printable(options.prompt + text).c_str());
    flush_stdout();
  }
  return 0;
}

// The GPU of a rank: that many after the first one. Where there are fewer, ranks share them.
int32_t gpu_of(int32_t first, int32_t rank) {
  for (int32_t gpus = rank + 1; gpus > 1; --gpus) {
    try {
      (void)perseid::Context::cuda(first + gpus - 1);
      return first + rank % gpus;
    } catch (const perseid::Error&) {  // what is wrong with the first one is said where it is used
    }
  }
  return first;
}

// One of the ranks of a run, or the only one.
int run_rank(Options& options) {
  std::optional<Ranks> ranks;
  if (options.ranks > 1) {
    ranks.emplace(perseid::Group(), options.parallel, options.restarts > 0);
    if (options.gpu) options.gpu = gpu_of(*options.gpu, ranks->rank());
    const auto cpus = static_cast<int32_t>(std::thread::hardware_concurrency());
    if (options.threads == 0) options.threads = std::max(1, cpus / options.ranks);
  }
  Ranks* const among = ranks ? &*ranks : nullptr;
  Machine machine(options.threads, options.gpu);
  if (options.dtype == "auto") {
    const bool bf16 = machine.on_gpu() || fact(machine.context.facts(), "bf16_dot") == "true";
    options.dtype = bf16 ? "bf16" : "f32";
  }
  if (options.dtype == "bf16") return run<BFloat16>(machine, options, among);
  if (options.dtype == "f64") return run<double>(machine, options, among);
  return run<float>(machine, options, among);
}

int main(int argc, char** argv) {
  prepare_streams();
  try {
    int exit_code = 0;
    auto options = parse_options(argc, argv, exit_code);
    if (!options) return exit_code;
    if (options->ranks > 1)
      if (const std::optional<int> code = launch(options->ranks, options->restarts)) return *code;
    return run_rank(*options);
  } catch (const perseid::Error& error) {
    std::fprintf(stderr, "perseid-gpt: %s\n", error.what());
    return error.status() == PERSEID_UNSUPPORTED ? 3 : 2;
  } catch (const Diverged& error) {
    std::fprintf(stderr, "perseid-gpt: %s\n", error.what());
    return kExitDiverged;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perseid-gpt: %s\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) { return gpt::main(argc, argv); }
