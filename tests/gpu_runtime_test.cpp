// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the GPU backend does before it reaches a GPU: the module cache with its mishaps, the
// sentences where something is missing, and the compilation of every kernel within its budget.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "cuda/runtime/cache.hpp"
#include "cuda/runtime/sources.hpp"
#include "cuda/softmax.hpp"
#include "gpu_tools.hpp"
#include "perseid/perseid.h"

namespace perseid::cuda {
namespace {

namespace fs = std::filesystem;

class ModuleCache : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("perseid-cache-" + std::to_string(getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    if (fs::exists(folder_))
      for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path());
    return found;
  }
  bool finds(const std::string& key) const {
    Image image;
    return load_cached(folder_.string(), key, &image) && image.names == image_.names &&
           image.code == image_.code;
  }

  fs::path folder_;
  const Image image_{{"kernel", "another"},
                     std::string("\x7f"
                                 "ELF\0code\0",
                                 10) +
                         "more"};
};

TEST_F(ModuleCache, KeepsWhatIsStored) {
  EXPECT_FALSE(finds("key"));
  store_cached(folder_.string(), "key", image_);
  EXPECT_TRUE(finds("key"));
  EXPECT_FALSE(finds("another key"));
  EXPECT_EQ(files().size(), 1u) << "a temporary file was left";
}

TEST_F(ModuleCache, PassesOverDamage) {
  store_cached(folder_.string(), "key", image_);
  const fs::path path = files().at(0);
  std::string whole(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(whole.data(), static_cast<std::streamsize>(whole.size()));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(finds("key")) << "byte " << i;
    std::ofstream(path, std::ios::binary) << whole.substr(0, i);
    EXPECT_FALSE(finds("key")) << "cut off after " << i;
  }
  std::ofstream(path, std::ios::binary) << whole << "x";
  EXPECT_FALSE(finds("key")) << "something behind it";
  store_cached(folder_.string(), "key", image_);
  EXPECT_TRUE(finds("key"));
}

TEST_F(ModuleCache, LivesWithoutAFolder) {
  store_cached("", "key", image_);
  store_cached("/proc/nowhere/perseid", "key", image_);
  std::ofstream(folder_) << "a file where the folder should be";
  store_cached(folder_.string(), "key", image_);
  EXPECT_FALSE(finds("key"));
}

// A file size limit fails writes as a full disk does.
TEST_F(ModuleCache, LeavesNothingOnAFullDisk) {
  fs::create_directories(folder_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  store_cached(folder_.string(), "key", image_);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(finds("key"));
  EXPECT_TRUE(files().empty());
}

TEST_F(ModuleCache, ServesManyWriters) {
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        store_cached(folder_.string(), "key", image_);
        if (!finds("key")) ++torn;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ModuleCache, ReadsAPackOfSeveral) {
  fs::create_directories(folder_);
  const std::string path = (folder_ / "pack").string();
  std::ofstream(path, std::ios::binary) << write_entry("one", image_) << write_entry("two", {})
                                        << write_entry("three", image_) << "damage";
  const Pack pack = read_pack(path);
  ASSERT_EQ(pack.size(), 3u);
  EXPECT_EQ(pack.at("three").code, image_.code);
  EXPECT_TRUE(read_pack("").empty());
  EXPECT_TRUE(read_pack(path + ".missing").empty());
}

TEST(Keys, TellEverythingApart) {
  std::set<std::string> keys;
  const Version old{12, 8}, young{13, 0};
  for (const char* header : {"a.hpp", "b.hpp"})
    for (const char* architecture : {"sm_80", "sm_90a"})
      for (const std::vector<std::string>& kernels :
           {std::vector<std::string>{"k"}, std::vector<std::string>{"k", "l"}})
        for (const Version* version : {static_cast<const Version*>(nullptr), &old, &young})
          EXPECT_TRUE(keys.insert(key_of({header, kernels, architecture}, version)).second);
}

TEST(Sources, AreEmbeddedWhole) {
  bool found = false;
  for (const Source& source : sources()) {
    const std::string text = source.text;
    EXPECT_NE(text.find("#pragma once"), std::string::npos) << source.path;
    EXPECT_EQ(text.back(), '\n') << source.path;
    found = found || std::string(source.path) == "cuda/device/softmax/rows.hpp";
  }
  EXPECT_TRUE(found);
}

TEST(Contexts, OfDisabledGpusSayWhy) {
  setenv("PERSEID_DISABLE_CUDA", "1", 1);
  perseid_context_options options{};
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = nullptr;
  EXPECT_EQ(perseid_context_create(&options, &context), PERSEID_UNSUPPORTED);
  EXPECT_NE(std::string(perseid_last_error()).find("PERSEID_DISABLE_CUDA"), std::string::npos);
  unsetenv("PERSEID_DISABLE_CUDA");
}

// ---- Budgets ----

// Each kernel that softmax chooses for the common widths compiles, without spilling registers.
class Budgets : public testing::TestWithParam<const char*> {};

TEST_P(Budgets, AreHeld) {
  Version version;
  if (const Status status = compiler_version(&version); !status.ok())
    GTEST_SKIP() << status.sentence();
  const std::string architecture = GetParam();
  std::set<std::string> seen;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t length : {33, 1024, 16384, 65536, 262144, 600000, 4000000})
      for (const bool backward : {false, true}) {
        SoftmaxProblem problem{
            .dtype = dtype, .out_dtype = dtype, .rank = 2, .dim = 1, .shape = {64, length}};
        problem.visible = length == 16384;
        const SoftmaxKind kind = length == 33 ? SoftmaxKind::kColumns : SoftmaxKind::kRows;
        const SoftmaxChoice choice =
            choose_softmax(kind, problem, backward, architecture != "sm_80");
        const Program program{softmax_header(choice.kind), softmax_kernels(choice, backward),
                              architecture};
        if (!seen.insert(key_of(program, nullptr)).second) continue;
        Image image;
        std::string log;
        const Status status = compile(program, &image, &log);
        ASSERT_TRUE(status.ok()) << status.sentence();
        EXPECT_FALSE(image.code.empty());
        EXPECT_EQ(log.find("warning"), std::string::npos) << log;
        const std::string kNone = " 0 bytes spill stores";
        size_t spills = 0;
        for (size_t at = log.find(" bytes spill stores"); at != std::string::npos;
             at = log.find(" bytes spill stores", at + 1))
          spills += log.compare(at - 2, kNone.size(), kNone) == 0 ? 0 : 1;
        EXPECT_EQ(spills, 0u) << log;
      }
}
INSTANTIATE_TEST_SUITE_P(Architectures, Budgets, testing::Values("sm_80", "sm_90a"));

}  // namespace
}  // namespace perseid::cuda
