// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT: reads the text, runs the steps, and shows what was learnt.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "options.hpp"
#include "problems.hpp"
#include "progress.hpp"
#include "sampler.hpp"
#include "trainer.hpp"

namespace gpt {
namespace {

constexpr int64_t kValidationSequences = 256;
constexpr int kExitInterrupted = 130;

volatile std::sig_atomic_t interrupted = 0;

// Asks the loop to stop after its step. A second signal ends the program at once.
void on_signal(int number) {
  interrupted = 1;
  std::signal(number, SIG_DFL);
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
  std::fflush(stdout);
}

// Whether all steps were done; false: a signal came first.
template <class T>
bool run_steps(Trainer<T>& trainer, const Options& options) {
  Progress progress(options.quiet, options.recipe.model.tokens());
  StepEstimate estimate(options.seconds);
  Losses losses(options.losses_out);
  while (interrupted == 0 &&
         (trainer.recipe().steps == 0 || trainer.steps_done() < trainer.recipe().steps)) {
    const double loss = trainer.step();
    losses.step(trainer.steps_done(), loss);
    if (trainer.recipe().steps == 0) trainer.set_steps(estimate.after_step(trainer.steps_done()));
    progress.step(trainer.steps_done(), trainer.recipe().steps, loss);
  }
  progress.finish();
  return interrupted == 0;
}

template <class T>
int run(Machine& machine, const Options& options) {
  const Config& config = options.recipe.model;
  const Data data(read_text(options.text.empty() ? PERSEID_SOURCE_DIR : options.text),
                  config.context);
  Trainer<T> trainer(machine, options.recipe, data);
  if (!options.resume.empty()) trainer.load(options.resume);
  if (!options.problems_out.empty()) write_problems(options.problems_out, config, options.dtype);
  introduce(options, machine, data);

  const double before = trainer.validate(kValidationSequences);
  const bool all_done = run_steps(trainer, options);
  if (!all_done || !options.checkpoint.empty()) {
    const std::string path = options.checkpoint.empty() ? kInterrupted : options.checkpoint;
    trainer.save(path);
    std::printf("saved  %s after %lld steps\n", path.c_str(),
                static_cast<long long>(trainer.steps_done()));
    if (!all_done) {
      std::printf("Go on with: perseid-gpt%s%s --resume %s\n", options.text.empty() ? "" : " ",
                  options.text.c_str(), path.c_str());
      return kExitInterrupted;
    }
  }

  const double after = trainer.validate(kValidationSequences);
  std::printf("\nvalidation loss   %.3f bits per byte before, %.3f after %lld steps\n", before,
              after, static_cast<long long>(trainer.steps_done()));
  if (options.sample > 0) {
    Sampler<T> sampler(machine, config, options.temperature);
    const std::string text =
        sampler.sample(trainer.weights(), options.prompt, options.sample, options.recipe.seed);
    std::printf("\na sample, at temperature %g:\n----\n%s\n----\n", options.temperature,
                printable(options.prompt + text).c_str());
  }
  return 0;
}

int main(int argc, char** argv) {
  try {
    int exit_code = 0;
    auto options = parse_options(argc, argv, exit_code);
    if (!options) return exit_code;
    Machine machine(options->threads, options->gpu);
    if (options->dtype == "auto") {
      const bool bf16 = machine.on_gpu() || fact(machine.context.facts(), "bf16_dot") == "true";
      options->dtype = bf16 ? "bf16" : "f32";
    }
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    if (options->dtype == "bf16") return run<BFloat16>(machine, *options);
    if (options->dtype == "f64") return run<double>(machine, *options);
    return run<float>(machine, *options);
  } catch (const perseid::Error& error) {
    std::fprintf(stderr, "perseid-gpt: %s\n", error.what());
    return error.status() == PERSEID_UNSUPPORTED ? 3 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perseid-gpt: %s\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) { return gpt::main(argc, argv); }
