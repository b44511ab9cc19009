// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <new>
#include <sstream>
#include <string_view>

#include "commands.hpp"
#include "help.hpp"
#include "sentences.hpp"
#include "streams.hpp"
#include "usage.hpp"

namespace {

using namespace std::string_view_literals;

int run(int argc, char** argv) {
  using namespace perseid::cli;
  CLI::App app("Fused transformer kernels: softmax, attention, matmul.", "perseid");
  set_help(app);
  Common common;
  Action action;
  app.set_version_flag("--version", std::string(perseid::version()), "the version");
  app.add_option("--dtype", common.dtype, "the type to compute in")
      ->type_name("f16|bf16|f32|f64|f8e4m3|f8e5m2")
      ->group("Common");
  app.add_option("--device", common.device, "where to compute")
      ->type_name("auto|cpu|cuda:N")
      ->capture_default_str()
      ->group("Common");
  app.add_option("--impl", common.impl,
                 "the first of these implementations, divided by commas, such as cpu:tiled")
      ->type_name("NAME")
      ->group("Common");
  app.add_option("--threads", common.threads, "threads of the CPU pool (0: as many as CPUs)")
      ->group("Common");
  app.add_flag("--json", common.json, "results as JSON")->group("Common");
  app.add_flag("--quiet", common.quiet, "no progress, and no report where all went well")
      ->group("Common");
  app.footer(
      "The common flags may stand before or after the command.\n"
      "Exit codes: 0 ok, 1 check failed, 2 usage or bad input, 3 unsupported, 4 device error, "
      "5 timeout or peer lost.\n"
      "Example:\n  perseid check");
  app.fallthrough()->require_subcommand(1);
  add_info(app, common, action);
  add_explain(app, common, action);
  add_check(app, common, action);
  add_bench(app, common, action);
  add_tune(app, common, action);
  add_run(app, common, action);
  add_launch(app, common, action);
  add_help(app, action);
  add_completion(app, action);
  add_man(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    app.exit(help, text, text);
    write_out(text.str());
    return kOk;
  } catch (const CLI::ParseError& error) {
    bad_input(usage_sentence(app, error));
  }
  refuse_overflow(app);
  try {
    return action();
  } catch (const perseid::Error& error) {
    throw perseid::Error(error.status(), in_flags(innermost(app), error.what()));
  }
}

// Without allocations, as memory may be what is lacking.
void complain(std::string_view sentence) {
  for (const std::string_view part : {std::string_view("perseid: "), sentence, "\n"sv})
    perseid::cli::write_err(part);
}

}  // namespace

int main(int argc, char** argv) {
  perseid::cli::open_standard_streams();
  perseid::cli::end_on_lost_input();
  try {
    const int code = run(argc, argv);
    perseid::cli::flush_out();
    return code;
  } catch (const perseid::Error& error) {
    complain(error.what());
    return perseid::cli::exit_code(error.status());
  } catch (const std::bad_alloc&) {
    complain("out of memory; use a smaller problem");
    return perseid::cli::kDeviceError;
  } catch (const std::exception& error) {
    complain(error.what());
    return perseid::cli::kDeviceError;
  }
}
