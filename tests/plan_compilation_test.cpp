// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How kernels that are in no file are compiled: each by itself, all of a plan side by side. With
// the fake driver and the fake NVRTC.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <perseid/perseid.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/runtime/gpu.hpp"
#include "fake_driver.hpp"
#include "fake_nvrtc.hpp"

namespace perseid::internal::cuda {
namespace {

namespace fs = std::filesystem;

template <class Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(library == nullptr ? nullptr : dlsym(library, name));
}

struct FakeCompiler {
  decltype(&fake_nvrtc_meet) meet = nullptr;
  decltype(&fake_nvrtc_delay) delay = nullptr;
  decltype(&fake_nvrtc_fail) fail = nullptr;
  decltype(&fake_nvrtc_clear) clear = nullptr;
  decltype(&fake_nvrtc_compiled) compiled = nullptr;
  decltype(&fake_nvrtc_most_at_once) most_at_once = nullptr;
  decltype(&fake_nvrtc_most_kernels) most_kernels = nullptr;
  decltype(&fake_nvrtc_kernel) kernel = nullptr;
  decltype(&fake_alive) alive = nullptr;  // of the driver

  FakeCompiler() {
    void* library = dlopen(PERSEID_FAKE_NVRTC, RTLD_NOW | RTLD_LOCAL);
    find(library, "fake_nvrtc_meet", &meet);
    find(library, "fake_nvrtc_delay", &delay);
    find(library, "fake_nvrtc_fail", &fail);
    find(library, "fake_nvrtc_clear", &clear);
    find(library, "fake_nvrtc_compiled", &compiled);
    find(library, "fake_nvrtc_most_at_once", &most_at_once);
    find(library, "fake_nvrtc_most_kernels", &most_kernels);
    find(library, "fake_nvrtc_kernel", &kernel);
    find(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "fake_alive", &alive);
  }
};

class PlanCompilation : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PERSEID_NVRTC", PERSEID_FAKE_NVRTC, 1);
    setenv("PERSEID_PACK", "", 1);
    folder_ =
        fs::temp_directory_path() / ("perseid-compilation-" + std::to_string(getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    setenv("PERSEID_CACHE_DIR", folder_.c_str(), 1);
    if (fake_.alive == nullptr) GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
    ASSERT_NE(fake_.kernel, nullptr) << PERSEID_FAKE_NVRTC;
    before_ = fake_.alive();
    fake_.clear();
    fake_.fail(nullptr);
    fake_.meet(1);
    open(&gpu_);
  }
  void TearDown() override {
    gpu_.reset();
    fs::remove_all(folder_);
    if (fake_.alive == nullptr) return;
    fake_.meet(1);
    fake_.delay(0);
    EXPECT_EQ(fake_.alive(), before_) << "a module was not unloaded";
  }

  static void open(std::shared_ptr<Gpu>* gpu) {
    const Status status = Gpu::open(0, gpu);
    ASSERT_TRUE(status.ok()) << status.sentence();
  }
  static int32_t cpus() {
    cpu_set_t usable;
    EXPECT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
    return CPU_COUNT(&usable);
  }

  // Loads the kernels one after another, and returns the first error.
  static Status load(Gpu& gpu, const std::vector<KernelNames>& all) {
    for (const KernelNames& each : all) {
      std::vector<Kernel> kernels;
      if (Status status = gpu.load(each.header, each.names, &kernels); !status.ok()) return status;
      EXPECT_EQ(kernels.size(), each.names.size());
    }
    return {};
  }

  FakeCompiler fake_;
  int64_t before_ = 0;
  fs::path folder_;
  std::shared_ptr<Gpu> gpu_;
};

TEST_F(PlanCompilation, KernelsOfAProgramAreCompiledSideBySide) {
  const KernelNames names{"header", {"a<1>", "b<1>", "c<1>"}};
  const int32_t most = std::min(cpus(), 3);
  fake_.meet(most);
  EXPECT_TRUE(load(*gpu_, {names}).ok());
  EXPECT_EQ(fake_.compiled(), 3);
  EXPECT_EQ(fake_.most_kernels(), 1);
  EXPECT_EQ(fake_.most_at_once(), most);
  EXPECT_TRUE(gpu_->is_compiled(names));

  // From memory, and from the cache.
  std::shared_ptr<Gpu> another;
  open(&another);
  EXPECT_TRUE(load(*gpu_, {names}).ok());
  EXPECT_TRUE(load(*another, {names}).ok());
  EXPECT_EQ(fake_.compiled(), 3);
}

TEST_F(PlanCompilation, KernelsOfSeveralProgramsAreCompiledOnceAndSideBySide) {
  const std::vector<KernelNames> all = {{"header", {"a<1>", "both<1>"}},
                                        {"header", {"both<1>", "b<1>"}},
                                        {"other", {"both<1>"}},
                                        {"header", {"a<1>", "both<1>"}}};
  const int32_t most = std::min(cpus(), 4);
  fake_.meet(most);
  EXPECT_TRUE(gpu_->load_ahead(all).ok());
  EXPECT_EQ(fake_.compiled(), 4);
  EXPECT_EQ(fake_.most_at_once(), most);
  EXPECT_TRUE(load(*gpu_, all).ok());
  EXPECT_EQ(fake_.compiled(), 4);
}

TEST_F(PlanCompilation, KernelsThatCompileFastBeginLast) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (size_t cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Status status = load(
      *gpu_, {{"header",
               {"a_prepare<1>", "a<1>", "a_finish_f32<1>", "a_combine<1>", "a_fixup<1>", "b<1>"}}});
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_TRUE(status.ok()) << status.sentence();
  EXPECT_EQ(fake_.most_at_once(), 1);
  std::vector<std::string> kernels;
  for (int32_t i = 0; i < fake_.compiled(); ++i) kernels.emplace_back(fake_.kernel(i));
  const std::vector<std::string> expected = {
      "a<1>", "b<1>", "a_prepare<1>", "a_finish_f32<1>", "a_combine<1>", "a_fixup<1>"};
  EXPECT_EQ(kernels, expected);
}

TEST_F(PlanCompilation, WhatCompiledBesidesAFailureIsKept) {
  const KernelNames names{"header", {"a<1>", "b<1>", "c<1>"}};
  fake_.fail("b<");
  const Status status = load(*gpu_, {names});
  EXPECT_EQ(status.code(), PERSEID_DEVICE_ERROR);
  EXPECT_NE(status.sentence().find("error in b<1>"), std::string::npos) << status.sentence();
  EXPECT_FALSE(gpu_->is_compiled(names));
  EXPECT_EQ(gpu_->load_ahead({&names, 1}).code(), PERSEID_DEVICE_ERROR);
  EXPECT_EQ(fake_.compiled(), 4);
  fake_.fail(nullptr);
  EXPECT_TRUE(load(*gpu_, {names}).ok());
  EXPECT_EQ(fake_.compiled(), 5);
}

// All callers together have no more helpers than there are CPUs; each program is loaded once.
TEST_F(PlanCompilation, ManyCallersShareTheCpus) {
  constexpr int32_t kCallers = 6, kPrograms = 4, kKernels = 5;
  fake_.delay(5);
  std::vector<std::thread> callers;
  std::atomic<int> failed{0};
  for (int32_t t = 0; t < kCallers; ++t)
    callers.emplace_back([&, t] {
      // Each in an order of its own.
      std::vector<KernelNames> all;
      for (int32_t i = 0; i < kPrograms; ++i) {
        KernelNames names{"header " + std::to_string((i + t) % kPrograms), {}};
        for (int32_t k = 0; k < kKernels; ++k) names.names.push_back("k" + std::to_string(k));
        all.push_back(names);
      }
      if (!gpu_->load_ahead(all).ok() || !load(*gpu_, all).ok()) ++failed;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(fake_.compiled(), kPrograms * kKernels);
  EXPECT_LE(fake_.most_at_once(), kCallers + cpus() - 1);
}

// Forward and backward of an attention plan at once: two kernels and four.
TEST_F(PlanCompilation, BothDirectionsOfAPlanAreCompiledSideBySide) {
  perseid_context_options options{};
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = nullptr;
  ASSERT_EQ(perseid_context_create(&options, &context), PERSEID_OK) << perseid_last_error();
  perseid_attention_desc desc{};
  desc.struct_size = sizeof desc;
  desc.dtype = PERSEID_BF16;
  desc.batch = desc.heads = desc.kv_heads = 1;
  desc.q_len = desc.kv_len = 1024;
  desc.head_dim = desc.value_dim = 64;
  desc.scale = 0.125;
  desc.dropout = 0.1;
  desc.bias = 1;
  desc.bias_dtype = PERSEID_BF16;
  std::copy_n(std::initializer_list<int64_t>{1, 1, 1024, 1024}.begin(), 4, desc.bias_shape);
  desc.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE | PERSEID_GRAD_BIAS;
  const int32_t most = std::min(cpus(), 6);
  fake_.meet(most);
  for (int i = 0; i < 2; ++i) {
    perseid_plan_t plan = nullptr;
    ASSERT_EQ(perseid_attention_plan_create(context, &desc, &plan), PERSEID_OK)
        << perseid_last_error();
    EXPECT_EQ(fake_.compiled(), 6);
    EXPECT_EQ(fake_.most_at_once(), most);
    // Not one direction after the other.
    std::string first;
    for (int32_t k = 0; k < most; ++k) first += fake_.kernel(k);
    EXPECT_NE(first.find("attention_backward"), std::string::npos) << first;
    perseid_plan_destroy(plan);
  }
  perseid_context_destroy(context);
}

}  // namespace
}  // namespace perseid::internal::cuda
