// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Every GPU kernel compiles within its budget of registers, spilled bytes and shared memory. Needs
// NVRTC and no GPU. SampledBudgets compiles one program of each family for the architecture that is
// tuned, SweepBudgets every program for every architecture of the pack.
// PERSEID_SHOW_BUDGETS=1 prints what each kernel takes, the compiler's time included.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/pack/variants.hpp"
#include "cuda/runtime/cache.hpp"

namespace perseid::internal::cuda {
namespace {

// What the assembler says of a kernel, in the words of `--ptxas-options=-v`.
struct Usage {
  int32_t registers = 0, shared_bytes = 0, spilled_bytes = 0;
};
// The usage of the kernel that takes most.
Usage usage_in(const std::string& log) {
  Usage usage;
  const auto most = [&](const std::string& before, const std::string& after, int32_t* number) {
    for (size_t end = log.find(after); end != std::string::npos; end = log.find(after, end + 1)) {
      size_t begin = end;
      while (begin > 0 && std::isdigit(static_cast<unsigned char>(log[begin - 1]))) --begin;
      if (begin < end &&
          (before.empty() || log.compare(begin - before.size(), before.size(), before) == 0))
        *number = std::max(*number, std::atoi(log.c_str() + begin));
    }
  };
  most("Used ", " registers", &usage.registers);
  most("", " bytes smem", &usage.shared_bytes);
  most("", " bytes spill stores", &usage.spilled_bytes);
  return usage;
}

TEST(Usage, IsReadFromTheReport) {
  const Usage usage = usage_in(
      "    0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n"
      "    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 40 registers, 2048 bytes smem, 400 bytes cmem[0]\n");
  EXPECT_EQ(usage.registers, 168);
  EXPECT_EQ(usage.shared_bytes, 2048);
  EXPECT_EQ(usage.spilled_bytes, 12);
}

// Seconds of the calling thread on a CPU.
double seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What the assembler says of a kernel: what it said to the build, if there is a pack. `bytes`: of
// an image that is compiled here.
Status report_of(const Program& program, std::string* log, size_t* bytes) {
  Image image;
#if defined(PERSEID_PACK_FILE)
  static const Pack kReports(PERSEID_PACK_FILE ".reports");
  if (kReports.find(key_of(program, nullptr), &image)) {
    *log = image.code;
    return {};
  }
#endif
  const Status status = compile(program, &image, log);
  *bytes = image.code.size();
  return status;
}

// Compiles the variants on every CPU and holds each to its budget.
void expect_within_budgets(const std::vector<Variant>& variants) {
  const bool show = std::getenv("PERSEID_SHOW_BUDGETS") != nullptr;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i = next++; i < variants.size(); i = next++) {
      const Variant& variant = variants[i];
      std::string log;
      size_t bytes = 0;
      const double begin = seconds();
      const Status status = report_of(variant.program, &log, &bytes);
      const double time = seconds() - begin;
      const Usage usage = usage_in(log);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(status.ok()) << variant.name << ": " << status.sentence();
      EXPECT_EQ(log.find("warning"), std::string::npos) << variant.name << "\n" << log;
      EXPECT_GT(usage.registers, 0) << "an unknown report: " << log;
      // Products that the assembler serialises: they cannot overlap with other work.
      for (const char* remark : {"C7508", "C7510", "C7511", "C7512", "C7514", "C7518", "C7520"})
        EXPECT_EQ(log.find(remark), std::string::npos) << variant.name << "\n" << log;
      EXPECT_LE(usage.registers, variant.budget.registers) << variant.name;
      EXPECT_LE(usage.shared_bytes, variant.budget.shared_bytes) << variant.name;
      EXPECT_LE(usage.spilled_bytes, variant.budget.spilled_bytes) << variant.name;
      if (show)
        std::printf(
            "%4d of %3d registers, %3d of %3d bytes spilled, %6d of %6d shared, %5.2f s, %6zu "
            "bytes: %s\n",
            usage.registers, variant.budget.registers, usage.spilled_bytes,
            variant.budget.spilled_bytes, usage.shared_bytes, variant.budget.shared_bytes, time,
            bytes, variant.name.c_str());
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

std::vector<Variant> all_variants(const std::string& architecture) {
  std::vector<Variant> variants = common_variants(architecture);
  for (Variant& variant : rare_variants(architecture)) variants.push_back(std::move(variant));
  return variants;
}

// The names of the program's kernel templates.
std::string family_of(const Program& program) {
  std::string family;
  for (const std::string& kernel : program.kernels)
    family += kernel.substr(0, kernel.find('<')) + " ";
  return family;
}

// The last program of each family: the problem with most extras, which comes nearest to its budget.
std::vector<Variant> sampled_variants(const std::string& architecture) {
  std::map<std::string, std::vector<Variant>> families;
  for (Variant& variant : all_variants(architecture))
    families[family_of(variant.program)].push_back(std::move(variant));
  std::vector<Variant> sample;
  for (const auto& [family, variants] : families) {
    sample.push_back(variants.back());
  }
  return sample;
}

class BudgetsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Version version;
    if (const Status status = compiler_version(&version); !status.ok())
      GTEST_SKIP() << status.sentence();
  }
};
using SampledBudgets = BudgetsTest;
using SweepBudgets = BudgetsTest;

TEST_P(SampledBudgets, AreHeld) {
  const std::vector<Variant> variants = sampled_variants(GetParam());
  EXPECT_GE(variants.size(), 8u);
  expect_within_budgets(variants);
}
TEST_P(SweepBudgets, AreHeld) {
  const std::vector<Variant> variants = all_variants(GetParam());
  EXPECT_GT(variants.size(), 150u);
  expect_within_budgets(variants);
}
INSTANTIATE_TEST_SUITE_P(Architectures, SampledBudgets, testing::Values("sm_90a"));
INSTANTIATE_TEST_SUITE_P(Architectures, SweepBudgets, testing::Values("sm_80", "sm_90a"));

// Every architecture compiles small portable kernels in both directions, and one of them those of
// each type; SweepPortableBudgets all.
TEST(SampledPortableBudgets, AreHeld) {
  Version version;
  if (const Status status = compiler_version(&version); !status.ok())
    GTEST_SKIP() << status.sentence();
  const std::pair<const char*, DType> samples[] = {
      {"sm_80", DType::kBF16}, {"sm_80", DType::kF64},  {"sm_86", DType::kF16},
      {"sm_89", DType::kBF16}, {"sm_90a", DType::kF64}, {"sm_100", DType::kBF16},
      {"sm_120", DType::kF32}};
  std::vector<Variant> variants;
  for (const auto& [architecture, dtype] : samples)
    for (Variant& variant : small_portable_attention_variants(architecture, dtype))
      variants.push_back(std::move(variant));
  EXPECT_EQ(variants.size(), 2 * std::size(samples));
  for (const auto& [architecture, dtype] :
       {std::pair{"sm_80", DType::kBF16}, {"sm_100", DType::kF32}, {"sm_120", DType::kF16}})
    for (Variant& variant : reference_attention_variants(architecture, dtype))
      variants.push_back(std::move(variant));
  expect_within_budgets(variants);
}

// Architectures without a part in the pack have portable kernels, which every plan compiles.
using SweepPortableBudgets = BudgetsTest;
TEST_P(SweepPortableBudgets, AreHeld) {
  const std::vector<Variant> variants = portable_attention_variants(GetParam(), true);
  EXPECT_GT(variants.size(), 20u);
  expect_within_budgets(variants);
}
INSTANTIATE_TEST_SUITE_P(Architectures, SweepPortableBudgets,
                         testing::Values("sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"));

#if defined(PERSEID_PACK_FILE)
TEST(SweepKernelPack, HasEveryCommonKernel) {
  const Pack pack(PERSEID_PACK_FILE);
  if (pack.size() == 0) GTEST_SKIP() << "the build made no pack: " << PERSEID_PACK_FILE;
  for (const char* architecture : kPackedArchitectures)
    for (const Variant& variant : common_variants(architecture)) {
      Image image;
      ASSERT_TRUE(pack.find(key_of(variant.program, nullptr), &image)) << variant.name;
      EXPECT_EQ(image.names.size(), variant.program.kernels.size());
      EXPECT_TRUE(
          image.code.starts_with("\x7f"
                                 "ELF"))
          << variant.name;
    }
}
// Compiles nothing: the pack's build has kept the reports.
TEST(SweepKernelPack, IsWithinBudgets) {
  if (Pack(PERSEID_PACK_FILE).size() == 0) GTEST_SKIP() << "no pack: " << PERSEID_PACK_FILE;
  for (const char* architecture : {"sm_80", "sm_90a"})
    expect_within_budgets(common_variants(architecture));
}
#endif

}  // namespace
}  // namespace perseid::internal::cuda
