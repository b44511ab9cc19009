// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>

#include "perseid/collective.h"
#include "terminal.hpp"

namespace gpt {
namespace {

// cpu, or cuda:N with N in `gpu`.
bool read_device(const std::string& text, std::optional<int32_t>& gpu) {
  constexpr std::string_view kCuda = "cuda:";
  gpu.reset();
  if (text == "cpu") return true;
  if (!text.starts_with(kCuda)) return false;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + kCuda.size(), end, gpu.emplace());
  return error == std::errc() && stop == end && *gpu >= 0;
}

// CLI11 may read -1 as 2^64 - 1.
std::string check_seed(const std::string& text) {
  uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  if (error == std::errc() && stop == end) return "";
  return "expected a whole number from 0 to 18446744073709551615, got " + text;
}

// Not CLI::Range, which takes NaN.
auto within(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return "";
    return "expected a number from " + CLI::detail::to_string(least) + " to " +
           CLI::detail::to_string(most) + ", got " + text;
  };
}

// A word as a shell reads it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,+@%-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string result = "'";
  for (const char c : word) c == '\'' ? result += "'\\''" : result += c;
  return result + "'";
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& exit_code) {
  Options options;
  options.program = argv[0];
  Recipe& recipe = options.recipe;
  std::string device = "cpu";
  CLI::App app(
      "Trains a small GPT on the bytes of a text, by Perseid's kernels.\n"
      "Ctrl-C saves a checkpoint that --resume continues bit for bit.\n\n"
      "example: perseid-gpt book.txt --seconds 300 --checkpoint book.safetensors\n",
      "perseid-gpt");
  app.add_option("file", options.text,
                 "text to learn, a file or a folder (default: the repository's own)");
  auto* steps = app.add_option("--steps", recipe.steps, "training steps")
                    ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--seconds", options.seconds,
                 "train for about so long: the first steps' speed sets how many")
      ->capture_default_str()
      ->check(within(1, 1e9))
      ->excludes(steps);
  app.add_option("--threads", options.threads, "threads (0: one for each CPU)")
      ->envname("PERSEID_NUM_THREADS")
      ->check(CLI::Range(0, 4096));
  app.add_option("--ranks", options.ranks,
                 "processes that train one model; with cuda:N on GPUs N, N + 1, ... One may die, "
                 "the others go on")
      ->capture_default_str()
      ->check(CLI::Range(1, PERSEID_MAX_RANKS));
  app.add_option("--parallel", options.parallel,
                 "what ranks divide: tensor (each layer's heads and hidden units) or context (the "
                 "positions of every sequence, where it is long)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Parallel>{
          {"tensor", Parallel::kTensor}, {"context", Parallel::kContext}}))
      ->option_text("tensor|context [tensor]");
  app.add_option("--restarts", options.restarts,
                 "how often a rank that a signal has ended is started again, instead of going on "
                 "without it")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--device", device,
                 "cpu, or cuda:N: matmuls, attention and softmax on that GPU, the rest on the CPU")
      ->capture_default_str()
      ->check([&options](const std::string& text) {
        return read_device(text, options.gpu) ? "" : "expected cpu or cuda:N, got " + text;
      });
  app.add_option("--checkpoint", options.checkpoint,
                 "where to write the trained model, a .safetensors file (on Ctrl-C: " +
                     std::string(kInterrupted) + " if not given)");
  auto* resume = app.add_option("--resume", options.resume, "go on from this checkpoint");
  app.add_option("--sample", options.sample, "bytes to write at the end")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  app.add_option("--prompt", options.prompt, "what the sample continues");
  app.add_option("--temperature", options.temperature, "of the sample")
      ->capture_default_str()
      ->check(within(0.01, 100));
  app.add_option("--problems-out", options.problems_out,
                 "write the operations used, for perseid bench --problems");
  app.add_option("--losses-out", options.losses_out,
                 "write each step's loss and time, for a comparison of runs: a .csv file");
  app.add_flag("--quiet", options.quiet, "no progress");
  app.add_option("--resume-hint", options.resume_hint,
                 "what to say that goes on with a run that was stopped, for a script around it")
      ->group("");

  const auto fixed = [&](CLI::Option* option) { option->capture_default_str()->excludes(resume); };
  fixed(app.add_option("--seed", recipe.seed, "of all random numbers")->check(check_seed));
  fixed(app.add_option("--dtype", options.dtype,
                       "f32, bf16, f64; auto: bf16 where the device multiplies it, else f32")
            ->check(CLI::IsMember({"auto", "f32", "bf16", "f64"})));
  fixed(app.add_option("--layers", recipe.model.layers, "layers"));
  fixed(app.add_option("--width", recipe.model.width, "width of the residual stream"));
  fixed(app.add_option("--heads", recipe.model.heads, "attention heads"));
  fixed(app.add_option("--context", recipe.model.context, "bytes of a sequence"));
  fixed(app.add_option("--batch", recipe.model.batch, "sequences of a step"));
  fixed(app.add_option("--dropout", recipe.model.dropout, "of attention, while training"));
  fixed(app.add_option("--learning-rate", recipe.learning_rate, "the highest"));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    flush_stdout();
    return std::nullopt;
  }

  if (!options.resume.empty()) {
    const int64_t asked = recipe.steps;
    SavedRun run = read_saved_run(options.resume);
    recipe = run.recipe;
    if (asked != 0) recipe.steps = asked;
    options.dtype = run.dtype;
  }
  check(recipe);
  check(recipe.model, options.ranks, options.parallel);
  if (options.prompt.empty()) options.prompt = "\n";
  return options;
}

std::string resume_command(const Options& options, const std::string& checkpoint) {
  if (!options.resume_hint.empty()) return options.resume_hint;
  std::string command = quoted(options.program);
  const auto add = [&](const std::string& word) { command += " " + quoted(word); };
  if (!options.text.empty()) add(options.text);
  add("--resume");
  add(checkpoint);
  if (!options.checkpoint.empty()) {
    add("--checkpoint");
    add(options.checkpoint);
  }
  if (options.gpu) add("--device"), add("cuda:" + std::to_string(*options.gpu));
  if (options.ranks != 1) add("--ranks"), add(std::to_string(options.ranks));
  if (options.parallel == Parallel::kContext) add("--parallel"), add("context");
  if (options.restarts != 0) add("--restarts"), add(std::to_string(options.restarts));
  if (options.threads != 0) add("--threads"), add(std::to_string(options.threads));
  // Where the number of steps is not known yet.
  if (options.seconds != Options().seconds) {
    add("--seconds");
    add(CLI::detail::to_string(options.seconds));
  }
  return command;
}

}  // namespace gpt
