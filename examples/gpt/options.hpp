// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The command line of the example.
#pragma once

#include <optional>
#include <string>

#include "trainer.hpp"

namespace gpt {

struct Options {
  std::string text;  // empty: the repository's own
  Recipe recipe;
  std::optional<int32_t> gpu;  // that the library's plans run on; none: the CPU
  std::string dtype = "auto";  // bf16 where the device multiplies it directly, else f32
  double seconds = 60;         // where neither the command line nor a checkpoint fixes the steps
  int32_t threads = 0;
  int32_t ranks = 1, restarts = 0;
  Parallel parallel = Parallel::kTensor;
  std::string checkpoint;  // written at the end; on Ctrl-C always, to kInterrupted if empty
  std::string resume;
  int64_t sample = 400;
  double temperature = 0.7;
  std::string prompt = "\n";
  std::string problems_out;
  std::string losses_out;
  bool quiet = false;
  std::string program;      // as it was called
  std::string resume_hint;  // what is said to go on with, where that is not this program's command
};
inline constexpr const char* kInterrupted = "gpt.safetensors";

// Reads the arguments, and where there is something to resume, its recipe. Nothing: the program is
// done (help was asked for, or an argument is wrong; the words are printed), with `exit_code`.
std::optional<Options> parse_options(int argc, char** argv, int& exit_code);

// The command that goes on from a checkpoint, for a shell in the same folder.
std::string resume_command(const Options& options, const std::string& checkpoint);

}  // namespace gpt
