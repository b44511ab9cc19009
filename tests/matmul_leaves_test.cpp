// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Leaves of canonical order as products of their own, without a GPU: of two leaves by kernels of
// the CPU, and what the kernels of a GPU get of eight.
#include "dispatch/matmul_leaves.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace perseid::internal::dispatch {
namespace {

using Numbers = std::vector<float>;

Numbers random_numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> random(-1, 1);
  Numbers numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = random(engine);
  return numbers;
}

// [batch, rows, columns]; the columns of `across` lie side by side.
Tensor view(const Numbers& numbers, int64_t batch, int64_t rows, int64_t columns,
            bool across = false) {
  return {.data = const_cast<float*>(numbers.data()),
          .dtype = DType::kF32,
          .rank = 3,
          .shape = {batch, rows, columns},
          .stride = {rows * columns, across ? 1 : columns, across ? rows : 1}};
}

MatmulArguments arguments_of(const Tensor& a, const Tensor& b, const Tensor& c) {
  return {.a = a, .b = b, .c0 = c, .bias = {}, .c = c};
}

Status make_packed(const MatmulProblem& problem, const Device& device, MadeMatmul* made) {
  for (const Implementation<Matmul>& each : matmul_implementations())
    if (std::strcmp(each.name, "cpu:packed") == 0) return each.make(problem, device, made);
  return Status::error(PERSEID_INTERNAL, "cpu:packed is not in the list");
}

Status run(const Executable<Matmul>& product, const MatmulArguments& arguments) {
  const size_t bytes = product.workspace(Direction::kForward) + cpu::kWorkspaceAlignment;
  std::vector<std::byte> memory(bytes);
  void* aligned = memory.data();
  size_t left = bytes;
  std::align(cpu::kWorkspaceAlignment, 1, aligned, left);
  return product.forward(arguments, static_cast<std::byte*>(aligned), nullptr);
}

TEST(LeafProducts, AreAddedInPairs) {
  std::shared_ptr<const Device> device;
  ASSERT_TRUE(open_cpu(nullptr, 1, {}, &device).ok());
  constexpr int64_t kBatch = 2, kM = 11, kN = 13, kLeaf = 9, kK = 2 * kLeaf;
  const MatmulProblem problem{.batch = kBatch, .m = kM, .n = kN, .k = kK, .leaves = 2};
  EXPECT_EQ(refuse_leaf_products(problem), "");
  const Numbers a = random_numbers(kBatch * kM * kK, 1), b = random_numbers(kBatch * kK * kN, 2);
  const Numbers nan(static_cast<size_t>(kBatch * kM * kN), NAN);
  for (const bool across : {false, true}) {
    const Tensor of_a = view(a, kBatch, kM, kK, across), of_b = view(b, kBatch, kK, kN, across);
    // Each leaf by itself.
    Numbers sums[2] = {nan, nan};
    for (int64_t leaf = 0; leaf < 2; ++leaf) {
      MadeMatmul product;
      ASSERT_TRUE(make_packed(leaf_of(problem), *device, &product).ok());
      MatmulArguments arguments = arguments_of(of_a, of_b, view(sums[leaf], kBatch, kM, kN));
      arguments.a.shape[2] = arguments.b.shape[1] = kLeaf;
      arguments.a.data = of_a.as<float>() + leaf * kLeaf * of_a.stride[2];
      arguments.b.data = of_b.as<float>() + leaf * kLeaf * of_b.stride[1];
      ASSERT_TRUE(run(*product, arguments).ok());
    }
    MadeMatmul products;
    ASSERT_TRUE(make_leaf_products(problem, 1, *device, make_packed, &products).ok());
    const Numbers c = nan;
    ASSERT_TRUE(run(*products, arguments_of(of_a, of_b, view(c, kBatch, kM, kN))).ok());
    for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], sums[0][i] + sums[1][i]) << i;
  }
}

// What each product got.
struct Call {
  double beta;
  bool padded_rows;
  MatmulArguments arguments;
};
std::vector<Call>& calls() {
  static std::vector<Call> all;
  return all;
}

class Recorder final : public Executable<Matmul> {
 public:
  explicit Recorder(const MatmulProblem& problem) : problem_(problem) {}
  static Status make(const MatmulProblem& problem, const Device&, MadeMatmul* made) {
    *made = std::make_unique<Recorder>(problem);
    return {};
  }
  size_t workspace(Direction) const override { return 100; }
  Status forward(const MatmulArguments& arguments, std::byte*, void*) const override {
    calls().push_back({problem_.beta, problem_.padded_rows, arguments});
    return {};
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }

 private:
  MatmulProblem problem_;
};

TEST(LeafProducts, TakeEachLeafOnceAndTheSumsOfTheFirstOfItsPair) {
  std::shared_ptr<const Device> device;
  ASSERT_TRUE(assume_cuda("sm_80", {}, &device).ok());
  constexpr int64_t kM = 3, kN = 5, kLeaf = 7;
  for (const auto& [leaves, at_once] :
       {std::pair<int64_t, int64_t>{2, 1}, {4, 1}, {8, 1}, {4, 2}, {8, 2}}) {
    const int64_t made = leaves / at_once, depth = at_once * kLeaf;  // products, and of each
    const MatmulProblem problem{.m = kM, .n = kN, .k = leaves * kLeaf, .leaves = leaves};
    MadeMatmul products;
    ASSERT_TRUE(make_leaf_products(problem, at_once, *device, Recorder::make, &products).ok());
    const size_t sums = 256;  // a result, in whole units of workspace
    EXPECT_EQ(products->workspace(Direction::kForward),
              256 + (static_cast<size_t>(made) / 2 - 1) * sums);
    const Numbers a(static_cast<size_t>(kM * problem.k)), b(static_cast<size_t>(problem.k * kN)),
        c(static_cast<size_t>(kM * kN));
    calls().clear();
    const Status status =
        run(*products,
            arguments_of(view(a, 1, kM, problem.k), view(b, 1, problem.k, kN), view(c, 1, kM, kN)));
    // Several pairs are added by a kernel, which this GPU cannot have.
    EXPECT_EQ(status.ok(), made == 2);
    ASSERT_EQ(calls().size(), static_cast<size_t>(made));
    const std::byte* first_sums = nullptr;
    for (int64_t leaf = 0; leaf < made; ++leaf) {
      SCOPED_TRACE(testing::Message()
                   << "product " << leaf << " of " << made << ", leaves " << leaves);
      const auto& [beta, padded_rows, of_leaf] = calls()[static_cast<size_t>(leaf)];
      EXPECT_EQ(beta, leaf % 2);
      EXPECT_FALSE(padded_rows);
      EXPECT_EQ(of_leaf.a.data, a.data() + leaf * depth);
      EXPECT_EQ(of_leaf.b.data, b.data() + leaf * depth * kN);
      EXPECT_EQ(of_leaf.a.shape[2], depth);
      EXPECT_EQ(of_leaf.b.shape[1], depth);
      EXPECT_EQ(of_leaf.c0.data, of_leaf.c.data);
      EXPECT_EQ(of_leaf.c.stride[1], kN);
      if (leaf < 2) {
        EXPECT_EQ(of_leaf.c.data, c.data());
      } else {
        if (leaf == 2) first_sums = of_leaf.c.as<std::byte>();
        EXPECT_EQ(of_leaf.c.as<std::byte>(), first_sums + (leaf / 2 - 1) * 256);
      }
    }
  }
}

// TMA stores whole words of 16 bytes: other results have room for them in the workspace.
TEST(ResultsStoredByTma, AreMadeInTheWorkspaceWhereItCannot) {
  std::shared_ptr<const Device> device;
  ASSERT_TRUE(assume_cuda("sm_90", {}, &device).ok());
  constexpr int64_t kM = 3, kK = 2;
  alignas(16) static float memory[256];
  struct Result {
    int64_t n, row, column, offset;
    bool storable;
  };
  for (const Result& result : {Result{8, 8, 1, 0, true},
                               {8, 12, 1, 4, true},
                               {6, 6, 1, 0, false},
                               {6, 8, 1, 0, false},
                               {8, 10, 1, 0, false},
                               {8, 8, 1, 2, false},
                               {8, 1, 3, 0, false},
                               {8, 16, 2, 0, false},
                               {8, -8, 1, 16, false}}) {
    SCOPED_TRACE(testing::Message() << "n " << result.n << ", row " << result.row << ", column "
                                    << result.column << ", offset " << result.offset);
    const MatmulProblem problem{.m = kM, .n = result.n, .k = kK, .leaves = 1};
    MadeMatmul product;
    ASSERT_TRUE(make_stored_by_tma(problem, *device, Recorder::make, &product).ok());
    EXPECT_EQ(product->workspace(Direction::kForward), size_t{256 + kM * 8 * sizeof(float)});
    const Numbers a(kM * kK), b(static_cast<size_t>(kK * result.n));
    Tensor c{.data = memory + result.offset,
             .dtype = DType::kF32,
             .rank = 3,
             .shape = {1, kM, result.n},
             .stride = {kM * 16, result.row, result.column}};
    calls().clear();
    const Status status =
        run(*product, arguments_of(view(a, 1, kM, kK), view(b, 1, kK, result.n), c));
    EXPECT_EQ(status.ok(), result.storable);  // this GPU cannot copy
    ASSERT_EQ(calls().size(), 1U);
    EXPECT_TRUE(calls()[0].padded_rows);
    const Tensor& made = calls()[0].arguments.c;
    EXPECT_EQ(made.data == c.data, result.storable);
    EXPECT_EQ(made.stride[1], result.storable ? result.row : 8);
    EXPECT_EQ(made.shape[2], result.n);
  }
}

// TMA loads vectors of 16 bytes, of whole leaves: other operands are copied to the workspace.
TEST(OperandsLoadedByTma, AreCopiedWhereItCannot) {
  std::shared_ptr<const Device> device;
  ASSERT_TRUE(assume_cuda("sm_90", {}, &device).ok());
  constexpr int64_t kM = 16, kN = 24;
  alignas(16) static uint16_t memory[1 << 14];
  struct Layout {
    int64_t leaf, leaves, a_row, a_column, b_row, b_column, offset;
    bool loadable;
  };
  for (const Layout& layout : {Layout{72, 2, 144, 1, 24, 1, 0, true},
                               {72, 2, 152, 1, 1, 144, 8, true},
                               {65, 2, 1, 16, 24, 1, 0, true},
                               {65, 2, 1, 16, 1, 136, 0, false},
                               {65, 2, 136, 1, 24, 1, 0, false},
                               {65, 1, 72, 1, 24, 1, 0, true},
                               {65, 1, 65, 1, 24, 1, 0, false},
                               {72, 2, 144, 1, 28, 1, 0, false},
                               {72, 2, 144, 1, 24, 1, 4, false},
                               {72, 2, 2, 32, 24, 1, 0, false},
                               {72, 2, -144, 1, 24, 1, 4096, false}}) {
    SCOPED_TRACE(testing::Message()
                 << "leaf " << layout.leaf << " of " << layout.leaves << ", a by " << layout.a_row
                 << " and " << layout.a_column << ", b by " << layout.b_row << " and "
                 << layout.b_column << ", offset " << layout.offset);
    const MatmulProblem problem{.dtype = DType::kBF16,
                                .m = kM,
                                .n = kN,
                                .k = layout.leaves * layout.leaf,
                                .leaves = layout.leaves,
                                .shared_depth = true};
    EXPECT_TRUE(may_need_copies(problem));
    MadeMatmul recorder, product;
    ASSERT_TRUE(Recorder::make(problem, *device, &recorder).ok());
    ASSERT_TRUE(make_loaded_by_tma(problem, *device, std::move(recorder), &product).ok());
    const auto operand = [&](int64_t rows, int64_t columns, int64_t row, int64_t column) {
      return Tensor{.data = memory + layout.offset,
                    .dtype = DType::kBF16,
                    .rank = 3,
                    .shape = {1, rows, columns},
                    .stride = {0, row, column}};
    };
    const Numbers c(kM * kN);
    calls().clear();
    const Status status =
        run(*product, arguments_of(operand(kM, problem.k, layout.a_row, layout.a_column),
                                   operand(problem.k, kN, layout.b_row, layout.b_column),
                                   view(c, 1, kM, kN)));
    EXPECT_EQ(status.ok(), layout.loadable);  // this GPU cannot copy
    EXPECT_EQ(calls().size(), layout.loadable ? 1U : 0U);
    for (const Call& call : calls()) EXPECT_EQ(call.arguments.a.data, memory + layout.offset);
  }
}

TEST(OperandsLoadedByTma, AreAnyOfWholeSteps) {
  MatmulProblem problem{.dtype = DType::kBF16, .k = 8 * 64, .leaves = 8, .shared_depth = true};
  EXPECT_FALSE(may_need_copies(problem));
  problem.leaves = 1;  // of 8 ranks
  problem.k = 72;
  EXPECT_TRUE(may_need_copies(problem));
  problem.shared_depth = false;
  EXPECT_FALSE(may_need_copies(problem));
}

// Where an operand lies across k in neither dimension, an element is a run of its own.
TEST(OperandsLoadedByTma, AreNotTooManyRunsToCopy) {
  MatmulProblem problem{.dtype = DType::kBF16,
                        .m = 64,
                        .n = 1 << 17,
                        .k = 8 * ((1 << 13) - 1),
                        .leaves = 8,
                        .shared_depth = true};
  EXPECT_EQ(refuse_copies(problem), "");
  problem.n = (1 << 17) + 32;
  EXPECT_NE(refuse_copies(problem).find("got 131104 times 8191"), std::string::npos);
  problem.k = 8 << 13;  // copied never
  EXPECT_EQ(refuse_copies(problem), "");
}

TEST(LeafProducts, AreRefusedWhatTheyDoNotAdd) {
  const MatmulProblem plain{.m = 8, .n = 8, .k = 64, .leaves = 8};
  EXPECT_EQ(refuse_leaf_products(plain), "");
  const auto expect_refused = [&](const MatmulProblem& problem, const char* part) {
    EXPECT_NE(refuse_leaf_products(problem).find(part), std::string::npos);
  };
  MatmulProblem problem = plain;
  problem.bias = true;
  expect_refused(problem, "without bias");
  problem = plain;
  problem.dtype = problem.out_dtype = DType::kBF16;
  expect_refused(problem, "in float32");
  problem = plain;
  problem.chunks_c.dim = ChunkDim::kM;
  expect_refused(problem, "signals no chunks");
  problem.leaves = 1;  // is the product itself
  EXPECT_EQ(refuse_leaf_products(problem), "");
}

}  // namespace
}  // namespace perseid::internal::dispatch
