// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The GPT example as a program: what is refused before the first step, how it stops, and that a
// result which cannot be written is an error.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "gpt_tools.hpp"

namespace gpt {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr const char* kTiny =
    "--layers 1 --width 16 --heads 1 --context 16 --batch 1 --threads 1 --dtype f32 --quiet ";

class Program : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(folder_);
    const auto text = rhyme();
    std::ofstream(folder_ / "text", std::ios::binary)
        .write(reinterpret_cast<const char*>(text.data()),
               static_cast<std::streamsize>(text.size()));
  }

  // Starts a shell in the test's folder that becomes the program; `before` is for the shell.
  void start(const std::string& arguments, const std::string& before = "",
             const std::string& redirections = ">out 2>err") {
    const std::string command = "cd " + folder_.string() + "; " + before + " exec " + PERSEID_GPT +
                                " " + arguments + " </dev/null " + redirections;
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ > 0) return;
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  // The exit code, or minus the signal that ended the program, or -1000 after too long.
  int end() {
    const auto deadline = steady_clock::now() + std::chrono::seconds(100);
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      if (steady_clock::now() > deadline) {
        kill(child_, SIGKILL);
        waitpid(child_, &status, 0);
        return -1000;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int run(const std::string& arguments, const std::string& before = "",
          const std::string& redirections = ">out 2>err") {
    start(arguments, before, redirections);
    return end();
  }
  void expect_refused(const std::string& arguments, const std::string& words,
                      const std::string& before = "") {
    EXPECT_EQ(run(kTiny + ("--steps 2 --losses-out losses.csv text " + arguments), before), 2)
        << arguments;
    EXPECT_NE((text_of("out") + text_of("err")).find(words), std::string::npos)
        << arguments << "\nexpected: " << words << "\ngot: " << text_of("out") << text_of("err");
    EXPECT_LE(lines_of("losses.csv"), 1) << "a step was made";
    fs::remove(folder_ / "losses.csv");
  }

  // The program's children, the oldest first.
  std::vector<pid_t> children() const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "stat");
      std::string text;
      std::getline(file, text);
      // NUMBER (NAME) STATE PARENT
      const size_t name = text.rfind(") ");
      if (name == text.npos || std::stoi(text.substr(name + 4)) != child_) continue;
      found.push_back(std::stoi(text));
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string text_of(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::ptrdiff_t lines_of(const std::string& name) const {
    const std::string text = text_of(name);
    return std::count(text.begin(), text.end(), '\n');
  }
  void await(const std::string& name, const std::string& words) const {
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    while (text_of(name).find(words) == std::string::npos && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_NE(text_of(name).find(words), std::string::npos) << text_of("err");
  }

  fs::path folder_;
  pid_t child_ = 0;
};

TEST_F(Program, TrainsAndSaves) {
  EXPECT_EQ(run(kTiny + std::string("text --steps 3 --sample 20 --checkpoint it.safetensors "
                                    "--losses-out losses.csv")),
            0)
      << text_of("err");
  EXPECT_EQ(read_saved_run(folder_ / "it.safetensors").recipe.steps, 3);
  EXPECT_EQ(lines_of("losses.csv"), 4);
  EXPECT_NE(text_of("out").find("after 3 steps"), std::string::npos);
  EXPECT_EQ(text_of("err"), "");
}

TEST_F(Program, RefusesNumbersThatAreNone) {
  for (const char* rate : {"nan", "inf", "-inf", "-0.001"})
    expect_refused(std::string("--learning-rate ") + rate, "the learning rate must be finite");
  for (const char* seed : {"-1", "18446744073709551616", "1.5"})
    expect_refused(std::string("--seed ") + seed, "expected a whole number from 0 to 1844");
  expect_refused("--temperature nan", "expected a number from 0.01 to 100, got nan");
  expect_refused("--dropout nan", "dropout must be in [0, 1)");
  EXPECT_EQ(run("text --seconds nan"), 2);
  EXPECT_EQ(run(kTiny + std::string("text --steps 1 --sample 0 --seed 18446744073709551615")), 0);
}

TEST_F(Program, TriesTheCheckpointFirst) {
  expect_refused("--checkpoint model.bin", "a name that ends in .safetensors");
  expect_refused("--checkpoint model.npy", "a name that ends in .safetensors");
  expect_refused("--checkpoint nowhere/model.safetensors", "No such file or directory");
  fs::create_directory(folder_ / "folder.safetensors");
  expect_refused("--checkpoint folder.safetensors", "got a folder or a device");
  // A limit on the size of files stands for a disk without room.
  expect_refused("--checkpoint model.safetensors", "it takes 1 MB: File too large",
                 "ulimit -f 100;");
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_EQ(entry.path().filename().string().find("perseid"), std::string::npos)
        << entry.path() << " was left";
}

// The file that was there stays as it was.
TEST_F(Program, StopsAtALossThatIsNoNumber) {
  std::ofstream(folder_ / "it.safetensors") << "precious";
  EXPECT_EQ(run(kTiny + std::string("text --steps 50 --learning-rate 1e38 --losses-out losses.csv "
                                    "--checkpoint it.safetensors")),
            1);
  EXPECT_NE(text_of("err").find("the loss of step "), std::string::npos) << text_of("err");
  EXPECT_NE(text_of("err").find("nothing was saved"), std::string::npos) << text_of("err");
  EXPECT_LT(lines_of("losses.csv"), 30);
  EXPECT_EQ(text_of("it.safetensors"), "precious");
}

TEST_F(Program, SavesOnASignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    start(kTiny + std::string("text --steps 1000000000 --losses-out losses.csv"));
    await("losses.csv", "\n5,");
    kill(child_, signal);
    EXPECT_EQ(end(), 130) << text_of("err");
    EXPECT_NE(text_of("out").find("--resume gpt.safetensors"), std::string::npos);
    EXPECT_EQ(read_saved_run(folder_ / "gpt.safetensors").recipe.steps, 1000000000);
    fs::remove(folder_ / "gpt.safetensors");
    fs::remove(folder_ / "losses.csv");
  }
}

// The line that says how to go on is a command, whatever the names of the files are.
TEST_F(Program, ResumesByTheLineThatItPrints) {
  fs::rename(folder_ / "text", folder_ / "it's a text");
  start(kTiny + std::string("\"it's a text\" --steps 6000 --sample 0 --losses-out losses.csv "
                            "--checkpoint \"a b.safetensors\""));
  await("losses.csv", "\n5,");
  kill(child_, SIGINT);
  ASSERT_EQ(end(), 130) << text_of("err");
  const std::string out = text_of("out"), before = "Go on with: ";
  const size_t at = out.find(before);
  ASSERT_NE(at, std::string::npos) << out;
  std::string command = out.substr(at + before.size());
  command.resize(command.find('\n'));
  const std::string shell =
      "cd '" + folder_.string() + "' && " + command + " --quiet >out 2>err </dev/null";
  EXPECT_EQ(std::system(shell.c_str()), 0) << command << text_of("err");
  EXPECT_NE(text_of("out").find("after 6000 steps"), std::string::npos) << text_of("out");
  EXPECT_EQ(std::system(shell.c_str()), 0);
  EXPECT_NE(text_of("out").find("6000 steps are all done"), std::string::npos) << text_of("out");
  fs::remove(folder_ / "losses.csv");
  // A script around the program has a command of its own.
  start(kTiny + std::string("\"it's a text\" --steps 1000000000 --losses-out losses.csv "
                            "--resume-hint './dev run --resume'"));
  await("losses.csv", "\n5,");
  kill(child_, SIGINT);
  EXPECT_EQ(end(), 130);
  EXPECT_NE(text_of("out").find("Go on with: ./dev run --resume\n"), std::string::npos);
}

// Ranks have the one rank's losses, also after one of them was killed, with the others or with one
// that replaces it. So many steps that it is killed long before the last, on a busy machine too.
TEST_F(Program, GoesOnAfterARankWasKilled) {
  const std::string tiny =
      "text --layers 1 --width 16 --heads 2 --context 16 --batch 1 --threads 1 --dtype f64 "
      "--quiet --sample 0 --steps 1600 --losses-out losses.csv ";
  ASSERT_EQ(run(tiny), 0) << text_of("err");
  const auto result = [&] {
    const std::string out = text_of("out");
    const size_t at = out.find("validation loss");
    return at == out.npos ? out : out.substr(at);
  };
  const std::string wanted = result();
  EXPECT_NE(wanted.find("after 1600 steps"), std::string::npos) << wanted;
  EXPECT_EQ(run(tiny + "--ranks 2"), 0) << text_of("err");
  EXPECT_EQ(result(), wanted);
  EXPECT_EQ(lines_of("losses.csv"), 1601);
  EXPECT_EQ(run(tiny + "--ranks 2 --parallel context"), 0) << text_of("err");
  EXPECT_EQ(result(), wanted);
  struct Case {
    size_t victim;
    bool replaced;
    const char* parallel;
  };
  for (const Case& each :
       {Case{1, false, "tensor"}, Case{0, false, "context"}, Case{0, true, "context"}}) {
    const size_t victim = each.victim;
    fs::remove(folder_ / "losses.csv");
    start(tiny + "--ranks 2 --checkpoint it.safetensors --parallel " + each.parallel +
          (each.replaced ? " --restarts 1" : ""));
    await("losses.csv", "\n");
    const std::vector<pid_t> ranks = children();
    ASSERT_EQ(ranks.size(), 2u);
    await("losses.csv", "\n5,");
    kill(ranks[victim], SIGKILL);
    EXPECT_EQ(end(), 0) << text_of("err");
    EXPECT_EQ(result(), wanted);
    EXPECT_NE(text_of("err").find("rank " + std::to_string(victim) + " is lost"), std::string::npos)
        << text_of("err");
    EXPECT_NE(text_of("err").find(each.replaced ? "going on with 2 of the ranks after "
                                                : "going on with 1 of the ranks after "),
              std::string::npos)
        << text_of("err");
    EXPECT_EQ(read_saved_run(folder_ / "it.safetensors").recipe.steps, 1600);
    fs::remove(folder_ / "it.safetensors");
  }
}

// The same of ranks on GPUs, or of ranks that share the only one. Sums of bf16 products over ranks
// round otherwise, so that the losses are near.
TEST_F(Program, GoesOnAfterARankOnAGpuWasKilled) {
  const std::string tiny =
      "text --layers 2 --width 64 --heads 4 --context 32 --batch 4 --threads 1 --device cuda:0 "
      "--quiet --sample 0 --losses-out losses.csv ";
  if (const int code = run(tiny + "--steps 1"); code != 0) {
    ASSERT_EQ(code, 3) << text_of("err");
    GTEST_SKIP() << text_of("err");
  }
  const std::string steps = "--steps 300 ";
  const auto loss = [&] {
    const std::string out = text_of("out");
    const size_t end = out.find(" after 300 steps"), begin = out.rfind(' ', end - 1);
    EXPECT_NE(end, out.npos) << out;
    return end == out.npos ? 0 : std::stod(out.substr(begin));
  };
  ASSERT_EQ(run(tiny + steps), 0) << text_of("err");
  const double wanted = loss();
  for (const char* parallel : {"tensor", "context"}) {
    EXPECT_EQ(run(tiny + steps + "--ranks 2 --parallel " + parallel), 0) << text_of("err");
    EXPECT_NEAR(loss(), wanted, 0.1) << parallel;
    for (const bool replaced : {false, true}) {
      fs::remove(folder_ / "losses.csv");
      start(tiny + steps + "--ranks 2 --parallel " + parallel + (replaced ? " --restarts 1" : ""));
      await("losses.csv", "\n");
      const std::vector<pid_t> ranks = children();
      ASSERT_EQ(ranks.size(), 2u);
      await("losses.csv", "\n5,");
      kill(ranks[1], SIGKILL);
      EXPECT_EQ(end(), 0) << text_of("err");
      EXPECT_NEAR(loss(), wanted, 0.1) << parallel;
      EXPECT_NE(text_of("err").find("rank 1 is lost"), std::string::npos) << text_of("err");
      EXPECT_NE(text_of("err").find(replaced ? "going on with 2 of the ranks after "
                                             : "going on with 1 of the ranks after "),
                std::string::npos)
          << text_of("err");
    }
  }
}

TEST_F(Program, StopsItsRanksOnASignal) {
  start(
      "text --layers 1 --width 16 --heads 2 --context 16 --batch 1 --threads 1 --dtype f32 --quiet "
      "--ranks 2 --steps 1000000000 --losses-out losses.csv");
  await("losses.csv", "\n5,");
  kill(child_, SIGINT);
  EXPECT_EQ(end(), 130) << text_of("err");
  EXPECT_NE(text_of("out").find("--resume gpt.safetensors --ranks 2"), std::string::npos)
      << text_of("out");
  fs::remove(folder_ / "losses.csv");
  expect_refused("--ranks 2", "ranks must be at most as many as heads, got 2 and 1");
}

TEST_F(Program, HearsASignalWhileItOpens) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    start(kTiny + std::string("pipe --steps 2"));
    // Who opens the other end knows that the program waits for a text.
    const int writer = open((folder_ / "pipe").c_str(), O_WRONLY);
    kill(child_, signal);
    EXPECT_EQ(end(), -signal) << text_of("err");
    close(writer);
  }
}

TEST_F(Program, HearsASignalWhileItSamples) {
  for (const int signal : {SIGINT, SIGTERM}) {
    start(kTiny + std::string("text --steps 1 --sample 1048576"));
    await("out", "validation loss");
    kill(child_, signal);
    const auto begin = steady_clock::now();
    EXPECT_EQ(end(), -signal) << text_of("err");
    EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
    fs::remove(folder_ / "out");
  }
}

TEST_F(Program, SaysWhenStdoutIsFull) {
  const std::string words = "stdout could not be written";
  for (const std::string& arguments :
       {std::string("--help"), kTiny + std::string("text --steps 2 --sample 0")}) {
    EXPECT_EQ(run(arguments, "", ">/dev/full 2>err"), 2) << arguments;
    EXPECT_NE(text_of("err").find(words), std::string::npos) << text_of("err");
  }
}

// What is printed does not end up in the files that are written.
TEST_F(Program, LivesWithoutStandardStreams) {
  EXPECT_EQ(run(kTiny + std::string("text --steps 2 --sample 9 --checkpoint it.safetensors "
                                    "--losses-out losses.csv"),
                "", "<&- >out 2>&-"),
            0);
  EXPECT_EQ(read_saved_run(folder_ / "it.safetensors").recipe.steps, 2);
  EXPECT_EQ(lines_of("losses.csv"), 3);
  fs::remove(folder_ / "losses.csv");
  EXPECT_EQ(run(kTiny + std::string("text --steps 2 --losses-out losses.csv"), "", ">&- 2>err"), 2);
  EXPECT_EQ(text_of("losses.csv"), "step,bits_per_byte,seconds\n");
  EXPECT_NE(text_of("err").find("stdout could not be written"), std::string::npos);
}

}  // namespace
}  // namespace gpt
