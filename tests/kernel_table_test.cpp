// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which table of kernels a context gets, and what PERSEID_CPU_ISA makes of it.
#include "cpu/kernel_table.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace perseid::internal::cpu {
namespace {

// Sets PERSEID_CPU_ISA for a test, and back after it.
class KernelTables : public testing::Test {
 protected:
  void SetUp() override {
    const char* value = std::getenv("PERSEID_CPU_ISA");
    forced_ = value != nullptr;
    if (forced_) before_ = value;
    unsetenv("PERSEID_CPU_ISA");
  }
  void TearDown() override {
    if (forced_) setenv("PERSEID_CPU_ISA", before_.c_str(), 1);
  }

 private:
  bool forced_ = false;
  std::string before_;
};

TEST_F(KernelTables, AreNamedOnceAndEndWithScalar) {
  std::set<std::string> names;
  for (const KernelTable* table : available_kernel_tables()) {
    ASSERT_NE(table, nullptr);
    EXPECT_TRUE(names.insert(table->isa).second) << table->isa;
  }
  EXPECT_STREQ(available_kernel_tables().back()->isa, "scalar");
}

TEST_F(KernelTables, TheBestIsTakenUnlessOneIsNamed) {
  std::string error;
  const auto tables = available_kernel_tables();
  EXPECT_EQ(select_kernel_table(error), tables.front());
  setenv("PERSEID_CPU_ISA", "", 1);
  EXPECT_EQ(select_kernel_table(error), tables.front());
  for (const KernelTable* table : tables) {
    setenv("PERSEID_CPU_ISA", table->isa, 1);
    EXPECT_EQ(select_kernel_table(error), table);
  }
  EXPECT_EQ(error, "");
}

TEST_F(KernelTables, AnUnknownNameIsAnsweredWithThoseThereAre) {
  for (const char* name : {"sse9", "AVX2", "scalar "}) {
    std::string error;
    setenv("PERSEID_CPU_ISA", name, 1);
    EXPECT_EQ(select_kernel_table(error), nullptr);
    EXPECT_NE(error.find('"' + std::string(name) + '"'), std::string::npos) << error;
    for (const KernelTable* table : available_kernel_tables())
      EXPECT_NE(error.find(table->isa), std::string::npos) << error;
  }
}

TEST_F(KernelTables, AreComplete) {
  for (const KernelTable* table : available_kernel_tables()) {
    EXPECT_NE(table->softmax_workspace, nullptr) << table->isa;
    EXPECT_NE(table->softmax_forward, nullptr) << table->isa;
    EXPECT_NE(table->softmax_backward, nullptr) << table->isa;
    EXPECT_NE(table->attention_forward_workspace, nullptr) << table->isa;
    EXPECT_NE(table->attention_forward, nullptr) << table->isa;
    EXPECT_NE(table->attention_backward_workspace, nullptr) << table->isa;
    EXPECT_NE(table->attention_backward, nullptr) << table->isa;
    EXPECT_NE(table->attention_decode_workspace, nullptr) << table->isa;
    EXPECT_NE(table->attention_decode, nullptr) << table->isa;
    EXPECT_NE(table->matmul_workspace, nullptr) << table->isa;
    EXPECT_NE(table->matmul, nullptr) << table->isa;
    EXPECT_NE(table->dropout_mask, nullptr) << table->isa;
    EXPECT_NE(table->peak_f32, nullptr) << table->isa;
    EXPECT_NE(table->peak_bf16, nullptr) << table->isa;
    EXPECT_NE(table->peak_f64, nullptr) << table->isa;
    EXPECT_NE(table->copy, nullptr) << table->isa;
    EXPECT_NE(table->read, nullptr) << table->isa;
  }
}

// What the ceilings are measured with does the work that it is timed for, and no more.
TEST_F(KernelTables, CopyEveryByteAndNoOther) {
  constexpr std::byte kGuard{0xa5};
  for (const KernelTable* table : available_kernel_tables())
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{31}, size_t{255}, size_t{256}, size_t{512}, size_t{513},
          size_t{4000}, (size_t{1} << 20) + 512, (size_t{1} << 20) + 515})
      for (const size_t shift : {size_t{0}, size_t{4}}) {
        SCOPED_TRACE(testing::Message() << table->isa << ", " << bytes << " bytes");
        std::vector<std::byte> from(bytes + 64), to(bytes + 256, kGuard);
        for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
        const size_t begin = 64 - reinterpret_cast<uintptr_t>(to.data()) % 64 + shift;
        EXPECT_EQ(table->copy(from.data(), to.data() + begin, bytes),
                  2 * static_cast<double>(bytes));
        EXPECT_TRUE(bytes == 0 || std::memcmp(to.data() + begin, from.data(), bytes) == 0);
        for (size_t i = 0; i < to.size(); ++i)
          ASSERT_TRUE((begin <= i && i < begin + bytes) || to[i] == kGuard) << i;
        EXPECT_EQ(table->read(from.data(), bytes), static_cast<double>(bytes));
      }
}

}  // namespace
}  // namespace perseid::internal::cpu
