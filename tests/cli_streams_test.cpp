// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The program where its surroundings fail it: standard streams that are closed or full, inputs that
// lose their data while they are read, files that claim enormous shapes.
#include <signal.h>
#include <spawn.h>

#include <chrono>
#include <thread>

#include "cli_test_tools.hpp"

extern char** environ;

namespace perseid {
namespace {

using CliStreamsTest = CliTest;
using CliStreamsSweep = CliTest;

// Output of every kind: the parser's text, a table, lines, JSON, a report of files.
const char* const kStreamedCommands[] = {"--version",
                                         "--help",
                                         "check --help",
                                         "run softmax --help",
                                         "--help-all",  // more than the stream buffers
                                         "completion bash",
                                         "man run",
                                         "info --threads 1",
                                         "explain softmax --shape 4,100",
                                         "explain softmax --shape 4,100 --json",
                                         "check softmax --shape 3,5",
                                         "check softmax --shape 3,5 --json",
                                         "check softmax --fuzz 3",
                                         "bench softmax --shape 3,5 --seconds 0.01 --threads 1",
                                         "run softmax --input @x.npy --output @y.npy",
                                         "run softmax --input @x.npy --output @y.npy --json"};

TEST_F(CliStreamsTest, FullOrClosedStdoutIsAnError) {
  write("x.npy", {1, 2}, {0, 0});
  for (const std::string command : kStreamedCommands) {
    const Ended full = run(command, ">/dev/full"), closed = run(command, ">&-");
    EXPECT_EQ(full.code, 2) << command;
    EXPECT_TRUE(
        full.err.ends_with("perseid: cannot write to stdout: No space left on device; the "
                           "results are lost\n"))
        << command << ": " << full.err;
    EXPECT_EQ(closed.code, 2) << command;
    EXPECT_TRUE(
        closed.err.ends_with("perseid: cannot write to stdout: Bad file descriptor; the "
                             "results are lost\n"))
        << command << ": " << closed.err;
  }
  // A command that has nothing to say does not need it.
  EXPECT_EQ(run("run softmax --input @x.npy --output @y.npy --quiet", ">&-").code, 0);
  EXPECT_EQ(run("run softmax --input @x.npy --output @y.npy --quiet", ">/dev/full").code, 0);
}

TEST_F(CliStreamsTest, FullOrClosedStderrChangesNoExitCode) {
  write("x.npy", {1, 2}, {0, 0});
  for (const char* streams : {"2>/dev/full", "2>&-", "2>&- <&-"}) {
    for (const char* command : {"--version", "explain softmax --shape 4,100", "check --fuzz 3",
                                "run softmax --input @x.npy --output @y.npy"})
      EXPECT_EQ(run(command, streams).code, 0) << command;
    EXPECT_EQ(run("frobnicate", streams).code, 2) << streams;
    EXPECT_EQ(run("run softmax --input @none.npy --output @y.npy", streams).code, 2) << streams;
    EXPECT_EQ(run("check matmul --m 4 --n 4 --k 4 --expect refused", streams).code, 1) << streams;
  }
  EXPECT_EQ(run("--version", ">&- 2>&- <&-").code, 2);
  EXPECT_EQ(run("--version", ">/dev/full 2>/dev/full").code, 2);
}

// Long enough for the line of progress.
TEST_F(CliStreamsSweep, FullOrClosedStderrOfALongBench) {
  for (const char* streams : {"2>/dev/full", "2>&-", "2>&- <&-"})
    EXPECT_EQ(run("bench softmax --shape 8,64 --seconds 2.5 --threads 1 --no-error", streams).code,
              0)
        << streams;
}

// No output takes the number of a closed stream, so that no message ends up in it.
TEST_F(CliStreamsTest, OutputsAreWholeWithoutStandardStreams) {
  write("x.npy", {1, 2}, {0, std::log(3.0)});
  for (const char* streams : {"2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    run("run softmax --input @x.npy --output @y.npy", streams);
    expect_file("y.npy", {1, 2}, {0.25, 0.75});
    std::filesystem::remove(path("y.npy"));
  }
}

// ---- Inputs that lose their data --------------------------------------------------------------

bool maps(pid_t process, const std::string& path) {
  std::ifstream list("/proc/" + std::to_string(process) + "/maps");
  for (std::string line; std::getline(list, line);)
    if (line.ends_with(path)) return true;
  return false;
}

// Cuts the input short as soon as the program maps it. Returns the exit code, -1 for a signal.
int run_and_cut(const std::string& command, const std::string& input) {
  const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t process = 0;
  EXPECT_EQ(
      posix_spawn(&process, "/bin/sh", nullptr, nullptr, const_cast<char**>(arguments), environ),
      0);
  int status = 0;
  bool ended = false;
  while (!ended && !maps(process, input)) {
    ended = waitpid(process, &status, WNOHANG) == process;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::filesystem::resize_file(input, 4096);
  if (!ended) waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The input is so large that its conversion takes much longer than to notice its mapping. Where the
// machine is too busy for that the program comes to its end, and is run once more.
TEST_F(CliStreamsTest, InputThatIsCutShortEndsWithTwo) {
  constexpr int64_t kElements = 64 << 20, kAttempts = 10;
  const std::string input = path("x.npy");
  std::string header =
      "{'descr': '<f2', 'fortran_order': False, 'shape': (" + std::to_string(kElements) + ",), }";
  header.resize(117, ' ');
  std::ofstream(input, std::ios::binary)
      << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header << '\n';
  int code = 0;
  for (int64_t attempt = 0; attempt < kAttempts && code == 0; ++attempt) {
    std::filesystem::resize_file(input, 128 + 2 * kElements);
    code = run_and_cut(
        in_folder("exec " PERSEID_CLI
                  " run softmax --input @x.npy --output @y.npy --dtype f32 --quiet 2>@stderr"),
        input);
  }
  EXPECT_EQ(code, 2);
  EXPECT_NE(text_of("stderr").find("perseid: an input file lost data while it was read: another "
                                   "process cut it short"),
            std::string::npos)
      << text_of("stderr");
}

// ---- Shapes without elements ------------------------------------------------------------------

// 128 bytes that claim 2^42 rows of nothing.
void write_empty(const std::string& path, const std::string& shape) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  std::ofstream(path, std::ios::binary)
      << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header << '\n';
}

TEST_F(CliStreamsTest, EnormousShapesWithoutElementsEndAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* shape : {"(4398046511104, 0)", "(0, 4398046511104)"}) {
    write_empty(path("x.npy"), shape);
    for (const char* flags :
         {"", " --log", " --dim 0", " --dtype bf16", " --grad-output @x.npy --grad-input @dx.npy"})
      expect_ok(std::string("run softmax --input @x.npy --output @y.npy") + flags);
    Shape expected = {4398046511104, 0};
    if (shape[1] == '0') std::swap(expected[0], expected[1]);
    expect_file("y.npy", expected, {});
  }
  const std::string attention =
      "run attention --query @x.npy --key @x.npy --value @x.npy --out @o.npy --lse @l.npy";
  // Some of them have no heads, which is refused.
  for (const char* shape :
       {"(4398046511104, 0, 1, 1)", "(4398046511104, 1, 0, 1)", "(4398046511104, 0, 0, 0)"}) {
    write_empty(path("x.npy"), shape);
    for (const char* flags :
         {"", " --layout bhsd", " --causal bottom-right",
          " --grad-out @x.npy --grad-query @dq.npy --grad-key @dk.npy --grad-value @dv.npy"}) {
      const Ended ended = run(attention + flags);
      EXPECT_TRUE(ended.code == 0 || ended.code == 2) << shape << flags << ended.err;
    }
  }
  write_empty(path("x.npy"), "(4398046511104, 0, 1, 1)");
  expect_ok(attention);
  expect_file("o.npy", {4398046511104, 0, 1, 1}, {});
  write_empty(path("x.npy"), "(4398046511104, 0)");
  write_empty(path("b.npy"), "(0, 4398046511104)");
  expect_ok("run matmul --a @x.npy --b @x.npy --transpose-a --out @c.npy");
  expect_ok("run matmul --a @b.npy --b @x.npy --out @c.npy");
  expect_file("c.npy", {0, 0}, {});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 60);  // some 30 processes, on a busy machine
}

}  // namespace
}  // namespace perseid
