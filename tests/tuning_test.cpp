// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tuning cache: its file, what it does with files of others, and tuning on a GPU that a fake
// driver plays, whose folder must be in LD_LIBRARY_PATH, as ctest sets it.
#include "dispatch/tuning.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuda/runtime/cache.hpp"
#include "cuda/sm90/matmul.hpp"
#include "dispatch/implementation.hpp"
#include "fake_driver.hpp"
#include "perseid/perseid.hpp"

namespace perseid::internal::dispatch {
namespace {

class TuningCache : public testing::Test {
 protected:
  TuningCache() {
    char name[] = "/tmp/perseid-tuning-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~TuningCache() override { std::filesystem::remove_all(folder_); }

  Tuning open() const { return Tuning(folder_, "GPU, 64 multiprocessors", "source"); }
  std::string text() const {
    std::ifstream file(open().path());
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
  void write(const std::string& content) const { std::ofstream(open().path()) << content; }

  std::string folder_;
};

TEST_F(TuningCache, KeepsWhatItIsGiven) {
  EXPECT_EQ(open().find("a"), "");
  ASSERT_TRUE(open().keep("a \"quoted\"", {"one", 5}).ok());
  ASSERT_TRUE(open().keep("b", {"two", 7}).ok());
  ASSERT_TRUE(open().keep("b", {"three", 6}).ok());
  const Tuning again = open();
  EXPECT_EQ(again.find("a \"quoted\""), "one");
  EXPECT_EQ(again.find("b"), "three");
  EXPECT_EQ(again.find("c"), "");
  EXPECT_TRUE(std::filesystem::path(again.path()).filename().string().starts_with("tuning-"));
  EXPECT_EQ(Tuning(folder_, "GPU, 64 multiprocessors", "other source").find("b"), "");
  EXPECT_EQ(Tuning(folder_, "another GPU", "source").find("b"), "");
}

// Two processes: what the other has kept meanwhile stays.
TEST_F(TuningCache, MergesWithOtherProcesses) {
  Tuning one = open(), other = open();
  ASSERT_TRUE(one.keep("a", {"one", 1}).ok());
  ASSERT_TRUE(other.keep("b", {"two", 2}).ok());
  EXPECT_EQ(open().find("a"), "one");
  EXPECT_EQ(open().find("b"), "two");
}

TEST_F(TuningCache, IgnoresMalformedFiles) {
  ASSERT_TRUE(open().keep("a", {"one", 5}).ok());
  const std::string whole = text();
  for (size_t size = 0; size + 2 < whole.size(); ++size) {
    write(whole.substr(0, size));
    EXPECT_EQ(open().find("a"), "") << size;
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string content = whole;
    content.replace(content.find(from), from.size(), to);
    write(content);
    return open().find("a");
  };
  EXPECT_EQ(changed("\"perseid_tuning\": 1", "\"perseid_tuning\": 2"), "");
  EXPECT_EQ(changed("\"perseid_tuning\": 1", "\"perseid_tuning\": 1e0"), "");
  EXPECT_EQ(changed("\"source\": \"source\"", "\"source\": \"sauce\""), "");
  EXPECT_EQ(changed("GPU", "CPU"), "");
  EXPECT_EQ(changed("\"nanoseconds\": 5", "\"nanoseconds\": -5"), "");
  EXPECT_EQ(changed("\"nanoseconds\": 5", "\"nanoseconds\": 99999999999999999999"), "");
  EXPECT_EQ(changed("\"nanoseconds\": 5", "\"nanoseconds\": 5,\"code\":\"x\""), "");
  EXPECT_EQ(changed("]}", "]}x"), "");
  EXPECT_EQ(changed("[", "[[[[[[[[[[[["), "");
  write(std::string(5 << 20, ' ') + whole);
  EXPECT_EQ(open().find("a"), "") << "a file of more than 4 MiB";
  write(whole);
  EXPECT_EQ(open().find("a"), "one");
}

TEST_F(TuningCache, IgnoresWhatOthersMayHaveWritten) {
  ASSERT_TRUE(open().keep("a", {"one", 5}).ok());
  const std::string path = open().path();
  ASSERT_EQ(chmod(path.c_str(), 0664), 0);
  EXPECT_EQ(open().find("a"), "") << "a group may write it";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(open().find("a"), "one");
  std::filesystem::rename(path, path + ".real");
  std::filesystem::create_symlink(path + ".real", path);
  EXPECT_EQ(open().find("a"), "") << "a link";
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(open().find("a"), "") << "a FIFO";
  std::filesystem::remove(path);
  std::filesystem::rename(path + ".real", path);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(open().find("a"), "") << "a folder that others may write";
  const Status status = open().keep("b", {"two", 1});
  EXPECT_EQ(status.code(), PERSEID_IO_ERROR);
  EXPECT_NE(status.sentence().find("others may write it"), std::string::npos) << status.sentence();
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
}

TEST_F(TuningCache, SaysWhereItCannotWrite) {
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "x";
  const Status status = Tuning(file, "GPU", "source").keep("a", {"one", 1});
  EXPECT_EQ(status.code(), PERSEID_IO_ERROR);
  EXPECT_NE(status.sentence().find("PERSEID_CACHE_DIR"), std::string::npos) << status.sentence();
  EXPECT_EQ(Tuning("", "GPU", "source").keep("a", {"one", 1}).code(), PERSEID_IO_ERROR);
}

// ---- On a GPU that the fake driver plays ----

constexpr int64_t kSize = 1024;
constexpr int32_t kMultiprocessors = 64, kSharedBytes = 232448;

MatmulProblem problem() {
  return {.dtype = DType::kBF16, .out_dtype = DType::kBF16, .m = kSize, .n = kSize, .k = kSize};
}

class TunedMatmul : public TuningCache {
 protected:
  void SetUp() override {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr)
      elapsed_ = reinterpret_cast<decltype(&fake_elapsed)>(dlsym(library, "fake_elapsed"));
    if (elapsed_ == nullptr) GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
    write_pack();
    setenv("PERSEID_CACHE_DIR", folder_.c_str(), 1);
    unsetenv("PERSEID_TUNE");
  }
  void TearDown() override {
    unsetenv("PERSEID_CACHE_DIR");
    unsetenv("PERSEID_TUNE");
  }

  // A pack of no real code for all candidates. The library reads it once.
  static void write_pack() {
    static const std::string kPath = testing::TempDir() + "/tuning.pack";
    if (std::getenv("PERSEID_PACK") != nullptr) return;
    std::ofstream file(kPath, std::ios::binary);
    chmod(kPath.c_str(), 0600);
    const auto add = [&](const char* header, const std::vector<std::string>& kernels) {
      file << cuda::write_entry(cuda::key_of({header, kernels, "sm_90a"}, nullptr),
                                {kernels, "code"});
    };
    for (const auto& config : cuda::sm90_matmul_candidates(problem(), kMultiprocessors))
      add(cuda::kSm90MatmulHeader, cuda::sm90_matmul_kernels(config));
    add(cuda::kTensorCoreMatmulHeader,
        cuda::tensor_core_matmul_kernels(
            cuda::choose_tensor_core_matmul(problem(), kMultiprocessors, kSharedBytes)));
    setenv("PERSEID_PACK", kPath.c_str(), 1);
    setenv("PERSEID_NVRTC", "/nowhere/libnvrtc.so", 1);
  }

  // The times of the candidates in every round, after the two runs of each that warm up.
  void play(const std::vector<float>& milliseconds) const {
    std::vector<float> all(2 * milliseconds.size(), 1.0F);
    for (int round = 0; round < 9; ++round)
      all.insert(all.end(), milliseconds.begin(), milliseconds.end());
    elapsed_(all.data(), static_cast<int>(all.size()));
  }
  static std::vector<std::string> candidates() {
    std::vector<std::string> names;
    for (const auto& config : cuda::sm90_matmul_candidates(problem(), kMultiprocessors))
      names.push_back(config_name(config));
    return names;
  }
  static perseid::MatmulOptions options() {
    return {.dtype = perseid::bf16, .m = kSize, .n = kSize, .k = kSize};
  }
  static perseid::Matmul tune(const perseid::Context& context) {
    const perseid::Memory memory(context, 3 * kSize * kSize * 2);
    const auto matrix = [&](int64_t index) {
      return perseid::Tensor(static_cast<std::byte*>(memory.data()) + index * kSize * kSize * 2,
                             perseid::bf16, {kSize, kSize}, {}, context.device());
    };
    return perseid::Matmul::tuned(context, options(),
                                  {.a = matrix(0), .b = matrix(1), .c = matrix(2)});
  }
  static std::string explain(const perseid::Context& context) {
    return std::string(perseid::Matmul(context, options()).explain());
  }

  decltype(&fake_elapsed) elapsed_ = nullptr;
};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST_F(TunedMatmul, TheFastestIsKeptAndUsed) {
  const std::vector<std::string> names = candidates();
  ASSERT_GE(names.size(), 3u);
  const perseid::Context context = perseid::Context::cuda(0);
  EXPECT_TRUE(has(explain(context), "by the built-in table"));
  std::vector<float> times(names.size(), 2.0F);
  times[2] = 1.5F;
  play(times);
  const perseid::Matmul tuned = tune(context);
  EXPECT_TRUE(has(tuned.explain(), "tuned on this device")) << tuned.explain();
  EXPECT_TRUE(has(tuned.explain(), "measured " + names[2] + ": 750 us, kept")) << tuned.explain();
  EXPECT_TRUE(has(tuned.explain(), "measured " + names[0] + ": 1000 us, built-in\n"));
  EXPECT_TRUE(has(tuned.explain_json(), "\"kept\": true"));
  // In this context, in a new one, and not where the variable says so.
  EXPECT_TRUE(has(explain(context), "tuned on this device"));
  EXPECT_TRUE(has(explain(perseid::Context::cuda(0)), "tuned on this device"));
  setenv("PERSEID_TUNE", "0", 1);
  EXPECT_TRUE(has(explain(perseid::Context::cuda(0)), "by the built-in table"));
  setenv("PERSEID_TUNE", "1", 1);
  EXPECT_TRUE(has(explain(perseid::Context::cuda(0)), "tuned on this device"));
  // Nothing is known of another problem.
  EXPECT_FALSE(has(explain(context), "measured"));
}

TEST_F(TunedMatmul, TheBuiltInChoiceStaysWithinTheNoise) {
  std::vector<float> times(candidates().size(), 2.0F);
  times[1] = 1.99F;
  play(times);
  const perseid::Context context = perseid::Context::cuda(0);
  const perseid::Matmul tuned = tune(context);
  EXPECT_TRUE(has(tuned.explain(), candidates()[0] + ": 1000 us, built-in, kept"))
      << tuned.explain();
}

TEST_F(TunedMatmul, AnUnknownConfigurationIsIgnored) {
  {
    std::vector<float> times(candidates().size(), 2.0F);
    times[1] = 1;
    play(times);
    tune(perseid::Context::cuda(0));
  }
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    if (entry.path().extension() == ".json") path = entry.path();
  std::ifstream in(path);
  std::stringstream content;
  content << in.rdbuf();
  std::string text = content.str();
  const size_t at = text.find(candidates()[1]);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, candidates()[1].size(), "4096 x 4096, clusters of 99");
  std::ofstream(path) << text;
  EXPECT_TRUE(has(explain(perseid::Context::cuda(0)), "by the built-in table"));
}

TEST_F(TunedMatmul, RefusesWhatItCannotTune) {
  const auto sentence_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const perseid::Error& error) {
      return error.what();
    }
    return "";
  };
  setenv("PERSEID_TUNE", "0", 1);
  EXPECT_TRUE(has(sentence_of([] { tune(perseid::Context::cuda(0)); }), "PERSEID_TUNE is 0"));
  setenv("PERSEID_TUNE", "yes", 1);
  EXPECT_TRUE(has(sentence_of([] { perseid::Context::cuda(0); }),
                  "PERSEID_TUNE is \"yes\", expected 0 (the built-in choices) or 1"));
  unsetenv("PERSEID_TUNE");
  const perseid::Context context = perseid::Context::cuda(0);
  const perseid::Chunks rows = perseid::Chunks::even(kSize, 2);
  perseid::MatmulOptions chunked = options();
  chunked.async_a = rows;
  EXPECT_TRUE(has(sentence_of([&] { perseid::Matmul::tuned(context, chunked, {}); }),
                  "chunks are not tuned"));
  EXPECT_TRUE(has(sentence_of([&] { perseid::Matmul::tuned(context, options(), {}); }),
                  "a is NULL, expected a tensor"));
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_TRUE(has(sentence_of([&] { tune(context); }), "others may write it"));
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
}

// One configuration: nothing is measured, and the plan is as any other.
TEST(TunedMatmulOnCpu, HasOneConfiguration) {
  const perseid::Context context = perseid::Context::cpu(1);
  const float one = 3;
  float result = 0;
  const perseid::Tensor a(&one, {1, 1}), c(&result, {1, 1});
  const perseid::MatmulArguments arguments{.a = a, .b = a, .c = c};
  const perseid::Matmul matmul =
      perseid::Matmul::tuned(context, {.m = 1, .n = 1, .k = 1}, arguments);
  EXPECT_FALSE(has(matmul.explain(), "measured"));
  EXPECT_EQ(result, 0) << "nothing was executed";
  perseid::Workspace workspace;
  matmul.reserve(workspace);
  matmul.execute(nullptr, arguments, workspace);
  EXPECT_EQ(result, 9);
  for (const perseid_status status :
       {perseid_matmul_tune(nullptr, nullptr, nullptr, nullptr, nullptr)})
    EXPECT_EQ(status, PERSEID_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace perseid::internal::dispatch
