// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the library tells where the environment asks for it: lines on stderr, a trace, ranges of a
// profiler; and nothing where it does not. The environment is read once in a process, so that each
// test runs in a child.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "perseid/perseid.hpp"

namespace perseid {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

class ObserveTest : public testing::Test {
 protected:
  ObserveTest() { std::filesystem::create_directories(folder_); }
  ~ObserveTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text_of(const std::string& name) const {
    std::ifstream file(path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Runs `body` in a child process, and returns how that ended (wait()).
  int run(const Environment& environment, const std::function<void()>& body) const {
    const pid_t child = fork();
    if (child == 0) {
      const int file = open(path("stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDERR_FILENO);
      for (const char* name : {"PERSEID_VERBOSE", "PERSEID_TRACE", "NVTX_INJECTION64_PATH"})
        unsetenv(name);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      int code = 0;
      try {
        body();
      } catch (const std::exception& error) {
        dprintf(STDERR_FILENO, "threw: %s\n", error.what());
        code = 1;
      }
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
  // What a child that ends well writes to stderr.
  std::string errors_of(const Environment& environment, const std::function<void()>& body) const {
    const int status = run(environment, body);
    const std::string text = text_of("stderr");
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
    return text;
  }
  nlohmann::json trace(const std::string& name = "trace.json") const {
    nlohmann::json events = nlohmann::json::parse(text_of(name), nullptr, false);
    EXPECT_TRUE(events.is_array()) << text_of(name);
    return events;
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("perseid_observe_" + std::to_string(getpid()));
};

// A plan and `times` executions.
void compute(int times) {
  const Context context = Context::cpu(1);
  const Softmax softmax(context, {.shape = {2, 3}});
  std::array<float, 6> input = {1, 2, 3, 4, 5, 6}, output = {};
  const Tensor x(input.data(), f32, {2, 3}), y(output.data(), f32, {2, 3});
  const Memory workspace(context, softmax.workspace_size(Direction::kForward));
  for (int i = 0; i < times; ++i) softmax.forward(nullptr, {.input = x, .output = y}, {workspace});
}

size_t count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), {}));
}

// ---- PERSEID_VERBOSE --------------------------------------------------------------------------

TEST_F(ObserveTest, SilentByDefault) {
  EXPECT_EQ(errors_of({}, [] { compute(2); }), "");
  EXPECT_EQ(errors_of({{"PERSEID_VERBOSE", "0"}}, [] { compute(2); }), "");
  EXPECT_EQ(errors_of({{"PERSEID_VERBOSE", ""}, {"PERSEID_TRACE", ""}}, [] { compute(2); }), "");
}

TEST_F(ObserveTest, PlansThenExecutionsWithTimes) {
  const std::string plans = errors_of({{"PERSEID_VERBOSE", "1"}}, [] { compute(2); });
  EXPECT_EQ(count(plans, "perseid: plan made: softmax: kind softmax, dtype f32"), 1u) << plans;
  EXPECT_EQ(count(plans, "softmax forward"), 0u) << plans;
  const std::string executions = errors_of({{"PERSEID_VERBOSE", "2"}}, [] { compute(2); });
  EXPECT_EQ(count(executions, "perseid: plan made: softmax: "), 1u) << executions;
  EXPECT_EQ(count(executions, "perseid: softmax plan, [0-9]+\\.[0-9]{3} ms\n"), 1u) << executions;
  EXPECT_EQ(count(executions,
                  "perseid: softmax forward, cpu:[a-z]+, [0-9]+\\.[0-9]{3} ms: input f32 "
                  "\\[2, 3\\] strides \\[3, 1\\], output f32 \\[2, 3\\] strides \\[3, 1\\]\n"),
            2u)
      << executions;
}

TEST_F(ObserveTest, DropoutMasksAreExecutions) {
  const std::string text = errors_of({{"PERSEID_VERBOSE", "2"}}, [] {
    std::array<uint8_t, 16> mask{};
    fill_dropout_mask(Context::cpu(1), 0.5, 1, 2, Tensor(mask.data(), boolean, {1, 1, 4, 4}));
  });
  EXPECT_EQ(count(text, "perseid: dropout mask, [0-9.]+ ms: mask bool"), 1u) << text;
}

TEST_F(ObserveTest, WrongValuesAreRefusedWithASentence) {
  const auto refused = [&](const Environment& environment, const std::string& sentence) {
    EXPECT_NE(run(environment, [] { compute(1); }), 0);
    EXPECT_NE(text_of("stderr").find(sentence), std::string::npos) << text_of("stderr");
  };
  refused({{"PERSEID_VERBOSE", "3"}}, "PERSEID_VERBOSE is \"3\", expected 1 for plans on stderr");
  refused({{"PERSEID_VERBOSE", "12"}}, "PERSEID_VERBOSE is \"12\"");
  refused({{"PERSEID_TRACE", "/nowhere/trace.json"}},
          "PERSEID_TRACE is \"/nowhere/trace.json\", which cannot be opened: No such file");
  refused({{"PERSEID_TRACE", "/dev/full"}}, "which cannot be written");
  // With the variable corrected, the same process goes on.
  EXPECT_NE(errors_of({{"PERSEID_VERBOSE", "yes"}},
                      [] {
                        EXPECT_THROW(compute(1), Error);
                        setenv("PERSEID_VERBOSE", "1", 1);
                        compute(1);
                      }),
            "");
}

// A callback gets what it did before, and stderr nothing.
TEST_F(ObserveTest, ACallbackTakesThePlaceOfStderr) {
  const std::string text = errors_of({{"PERSEID_VERBOSE", "2"}}, [] {
    static std::vector<std::string> messages;
    perseid_set_log_callback(
        [](void*, perseid_log_level, const char* message) { messages.emplace_back(message); },
        nullptr, PERSEID_LOG_DEBUG);
    compute(2);
    if (messages.size() != 3) throw Error(PERSEID_INTERNAL, "other messages than expected");
    perseid_set_log_callback(nullptr, nullptr, PERSEID_LOG_DEBUG);
    compute(1);
  });
  EXPECT_EQ(count(text, "plan made"), 1u) << text;
  EXPECT_EQ(count(text, "softmax forward"), 1u) << text;
}

// ---- PERSEID_TRACE ----------------------------------------------------------------------------

TEST_F(ObserveTest, TraceHoldsEveryPlanAndExecution) {
  EXPECT_EQ(errors_of({{"PERSEID_TRACE", path("trace.json")}}, [] { compute(3); }), "");
  const nlohmann::json events = trace();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["name"], "softmax plan");
  double end = 0;
  for (const nlohmann::json& event : events) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_EQ(event["pid"], events[0]["pid"]);
    EXPECT_EQ(event["tid"], event["pid"]);               // of the first thread
    EXPECT_GE(event["ts"].get<double>(), end - 0.0015);  // one after the other
    EXPECT_GE(event["dur"].get<double>(), 0);
    end = event["ts"].get<double>() + event["dur"].get<double>();
    if (event == events[0]) continue;
    EXPECT_EQ(event["name"], "softmax forward");
    EXPECT_EQ(event["args"]["implementation"].get<std::string>().substr(0, 4), "cpu:");
    EXPECT_EQ(event["args"]["arguments"],
              "input f32 [2, 3] strides [3, 1], output f32 [2, 3] strides [3, 1]");
  }
}

TEST_F(ObserveTest, TimesAreMicroseconds) {
  EXPECT_EQ(errors_of({{"PERSEID_TRACE", path("trace.json")}},
                      [] {
                        compute(1);
                        std::this_thread::sleep_for(std::chrono::milliseconds(50));
                        compute(1);
                      }),
            "");
  const nlohmann::json events = trace();
  ASSERT_EQ(events.size(), 4u);
  const double pause = events[2]["ts"].get<double>() - events[1]["ts"].get<double>();
  EXPECT_GE(pause, 50e3);
  EXPECT_LT(pause, 50e6);  // on a busy machine
}

TEST_F(ObserveTest, ThreadsWriteOneTrace) {
  constexpr int kThreads = 4, kTimes = 50;
  const std::string text =
      errors_of({{"PERSEID_TRACE", path("trace.json")}, {"PERSEID_VERBOSE", "2"}}, [] {
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) threads.emplace_back([] { compute(kTimes); });
        for (std::thread& thread : threads) thread.join();
      });
  std::map<int64_t, int> of_thread;
  for (const nlohmann::json& event : trace()) ++of_thread[event["tid"].get<int64_t>()];
  EXPECT_EQ(of_thread.size(), size_t{kThreads});
  for (const auto& [thread, events] : of_thread) EXPECT_EQ(events, kTimes + 1) << thread;
  // Whole lines.
  EXPECT_EQ(count(text, "(^|\n)perseid: softmax forward, [^\n]*strides \\[3, 1\\](?=\n)"),
            size_t{kThreads} * kTimes);
}

TEST_F(ObserveTest, TraceIsWholeThoughTheProcessIsKilled) {
  const int status = run({{"PERSEID_TRACE", path("trace.json")}}, [] {
    compute(2);
    raise(SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(trace().size(), 3u);
  EXPECT_EQ(run({{"PERSEID_TRACE", path("empty.json")}}, [] { Context::cpu(1); }), 0);
  EXPECT_EQ(trace("empty.json").size(), 0u);
}

// Files may have 300 bytes: the second event does not fit.
TEST_F(ObserveTest, TraceOfAFullDiskKeepsWhatItHas) {
  EXPECT_EQ(errors_of({{"PERSEID_TRACE", path("trace.json")}},
                      [] {
                        signal(SIGXFSZ, SIG_IGN);
                        const rlimit limit = {300, 300};
                        setrlimit(RLIMIT_FSIZE, &limit);
                        compute(3);
                      }),
            "");
  EXPECT_EQ(trace().size(), 1u) << text_of("trace.json");
}

TEST_F(ObserveTest, EveryProcessHasItsOwnTrace) {
  EXPECT_EQ(errors_of({{"PERSEID_TRACE", path("trace.%p.json")}},
                      [] {
                        compute(1);
                        if (fork() == 0) {  // adds nothing
                          compute(1);
                          _exit(0);
                        }
                        wait(nullptr);
                      }),
            "");
  size_t traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("")))
    if (const std::string name = entry.path().filename().string(); name.starts_with("trace.")) {
      ++traces;
      const nlohmann::json events = trace(name);
      ASSERT_EQ(events.size(), 2u);
      EXPECT_EQ(name, "trace." + events[0]["pid"].dump() + ".json");
    }
  EXPECT_EQ(traces, 1u);
}

// ---- NVTX -------------------------------------------------------------------------------------

TEST_F(ObserveTest, ProfilersGetRanges) {
  const Environment environment = {{"NVTX_INJECTION64_PATH", FAKE_PROFILER},
                                   {"FAKE_PROFILER_FILE", path("ranges")}};
  EXPECT_EQ(errors_of(environment, [] { compute(2); }), "");
  EXPECT_EQ(text_of("ranges"),
            "push softmax plan\npop\npush softmax forward\npop\npush softmax forward\npop\n");
}

TEST_F(ObserveTest, NoProfilerIsNoError) {
  for (const Environment& environment :
       {Environment{{"NVTX_INJECTION64_PATH", "/nowhere/libprofiler.so"}},
        Environment{{"NVTX_INJECTION64_PATH", "libm.so.6"}},
        Environment{{"NVTX_INJECTION64_PATH", FAKE_PROFILER},
                    {"FAKE_PROFILER_REFUSES", "1"},
                    {"FAKE_PROFILER_FILE", path("ranges")}}})
    EXPECT_EQ(errors_of(environment, [] { compute(1); }), "");
  EXPECT_EQ(text_of("ranges"), "");
}

}  // namespace
}  // namespace perseid
