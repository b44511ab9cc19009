// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of every kernel table against the float64 reference: edge shapes, strides, batches, the
// whole of alpha, beta, c0 and bias, and equality for any number of workers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "matmul_cases.hpp"

namespace perseid::internal::cpu {
namespace {

using matmul_cases::BackwardExecutor;
using matmul_cases::Case;
using matmul_cases::kTypes;
using matmul_cases::Layout;
using matmul_cases::Problem;
using tests::Array;
using tests::entry_of;

std::vector<const KernelTable*> tables() {
  std::string error;
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced != nullptr && *forced != '\0') return {select_kernel_table(error)};
  return available_kernel_tables();
}

void run(const Problem& problem, const KernelTable& table, Executor& executor, Array& into) {
  Array workspace(
      {static_cast<int64_t>(table.matmul_workspace(problem.problem, executor.workers()))},
      DType::kBool);
  table.matmul(problem.problem, problem.arguments(into.tensor),
               {executor, workspace.tensor.as<std::byte>()});
  workspace.expect_guards();
  if (problem.given.amax) matmul_cases::expect_amax(problem, problem.amax);
}

void check(const Case& given) {
  const Problem problem(given);
  for (const KernelTable* table : tables()) {
    SCOPED_TRACE(matmul_cases::describe(given) << " " << table->isa);
    BackwardExecutor executor(3);
    Array c = problem.c;
    run(problem, *table, executor, c);
    matmul_cases::expect_product(problem, c);
  }
}

TEST(Matmul, EdgeShapes) { matmul_cases::edge_shapes(check); }
TEST(Matmul, EmptyShapes) { matmul_cases::empty_shapes(check); }
TEST(Matmul, Strides) { matmul_cases::strides(check); }
TEST(Matmul, AlphaBetaAndBias) { matmul_cases::alpha_beta_and_bias(check); }
TEST(Matmul, Batches) { matmul_cases::batches(check); }
TEST(Matmul, ManyBlocks) { matmul_cases::many_blocks(check); }
TEST(Matmul, Float8) { matmul_cases::float8(check); }
TEST(Matmul, Float8InManyBlocks) { matmul_cases::float8_blocks(check); }
TEST(Matmul, Activations) { matmul_cases::activations(check); }

TEST(Matmul, EmptyOperandsMayBeNull) {
  for (const KernelTable* table : tables()) {
    for (const int64_t size : {3, 40}) {
      Problem problem(
          {.m = size, .n = size, .k = 0, .beta = 2, .bias = true, .c = Layout::kColumns});
      problem.a.tensor.data = problem.b.tensor.data = nullptr;
      BackwardExecutor executor(2);
      Array c = problem.c;
      run(problem, *table, executor, c);
      EXPECT_FLOAT_EQ(
          static_cast<float>(c.get({0, 1, 2})),
          static_cast<float>(2 * problem.c.get({0, 1, 2}) + problem.bias.get({0, 0, 2})));
    }
  }
}

TEST(Matmul, BitwiseEqualForAnyWorkers) {
  for (const auto& types : kTypes) {
    for (const int64_t m : {3, 200}) {
      const Problem problem({.dtype = types[0],
                             .out_dtype = types[1],
                             .batch = 2,
                             .m = m,
                             .n = 600,
                             .k = 200,
                             .beta = 0.5,
                             .bias = true});
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(table->isa);
        BackwardExecutor one(1);
        Array first = problem.c;
        run(problem, *table, one, first);
        for (const int32_t threads : {2, 3, 5}) {
          const std::unique_ptr<Executor> pool = make_thread_pool(threads);
          Array other = problem.c;
          run(problem, *table, *pool, other);
          EXPECT_EQ(other.memory, first.memory) << threads << " threads";
        }
      }
    }
  }
}

// The same rows as another entry of the batch, and the same entry alone.
TEST(Matmul, BatchPositionDoesNotMatter) {
  for (const auto& types : kTypes) {
    Problem problem(
        {.dtype = types[0], .out_dtype = types[1], .batch = 3, .m = 50, .n = 70, .k = 90});
    for (const Array* array : {&problem.a, &problem.b})
      for (int64_t b = 1; b < 3; ++b)
        tests::copy(entry_of(array->tensor, 0), entry_of(array->tensor, b));
    for (const KernelTable* table : tables()) {
      BackwardExecutor executor(2);
      Array c = problem.c;
      run(problem, *table, executor, c);
      SCOPED_TRACE(table->isa);
      for (int64_t b = 1; b < 3; ++b)
        tests::expect_same_bits(entry_of(c.tensor, b), entry_of(c.tensor, 0));
    }
  }
}

// Room for the operands, once, and a bounded part for each worker.
TEST(Matmul, WorkspaceIsLinear) {
  for (const KernelTable* table : tables()) {
    for (const int64_t batch : {1, 100}) {
      for (const int64_t size : {1 << 10, 1 << 13, 1 << 16}) {
        const MatmulProblem problem{.batch = batch, .m = size, .n = size, .k = size};
        const double operands = 8.0 * static_cast<double>(size * size);
        const double one = static_cast<double>(table->matmul_workspace(problem, 1));
        const double two = static_cast<double>(table->matmul_workspace(problem, 2));
        EXPECT_LE(two - one, 1 << 20) << table->isa;
        EXPECT_LE(one, 1.15 * operands + (1 << 20)) << table->isa;
      }
    }
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
