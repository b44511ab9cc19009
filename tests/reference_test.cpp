// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The oracle itself: softmax and matmul. Values worked out by hand, gradients against central
// differences, and the rules about masks, empty rows and strides.
#include "cpu/reference/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tensor.hpp"

namespace perseid::internal::cpu {
namespace {

using tests::Array;
using tests::expect_same_bytes;
using tests::kInfinity;
using tests::kNaN;

SoftmaxProblem softmax_problem(std::vector<int64_t> shape, int32_t dim, DType dtype = DType::kF64) {
  SoftmaxProblem problem;
  problem.dtype = problem.out_dtype = dtype;
  problem.rank = static_cast<int32_t>(shape.size());
  problem.dim = dim;
  std::copy(shape.begin(), shape.end(), problem.shape);
  return problem;
}

void forward(const SoftmaxProblem& problem, const SoftmaxForward& arguments, int32_t threads = 2) {
  const auto pool = make_thread_pool(threads);
  reference::softmax_forward(problem, arguments, {*pool, nullptr});
}

void backward(const SoftmaxProblem& problem, const SoftmaxBackward& arguments) {
  const auto pool = make_thread_pool(2);
  reference::softmax_backward(problem, arguments, {*pool, nullptr});
}

// The arrays of every test of kernels.
TEST(Array, GuardsShowEveryWrite) {
  using tests::Shape;
  for (const Shape& strides :
       {Shape{15, 5, 1}, Shape{32, 8, 1}, Shape{1, 2, 6}, Shape{-15, -5, -1}, Shape{47, 13, 3}}) {
    for (const DType dtype : {DType::kF16, DType::kF64}) {
      Array array({2, 3, 5}, dtype, strides, 1);
      std::vector<bool> element(array.memory.size());
      const int64_t first = array.tensor.as<std::byte>() - array.memory.data();
      tests::for_each(array.tensor, [&](int64_t offset, int64_t) {
        for (int64_t i = 0; i < size_of(dtype); ++i)
          element[static_cast<size_t>(first + offset * size_of(dtype) + i)] = true;
      });
      EXPECT_FALSE(array.damage());
      array.fill_all(0);
      EXPECT_FALSE(array.damage());
      for (size_t i = 0; i < element.size(); ++i) {
        const std::byte before = std::exchange(array.memory[i], std::byte{7});
        const std::optional<int64_t> written = array.damage();
        EXPECT_EQ(written.has_value(), !element[i]) << i;
        EXPECT_EQ(written.value_or(static_cast<int64_t>(i) - first),
                  static_cast<int64_t>(i) - first);
        array.memory[i] = before;
      }
    }
  }
  EXPECT_FALSE(Array({3, 0}).damage());
  EXPECT_FALSE(Array().damage());
}

TEST(SoftmaxReference, ByHand) {
  SoftmaxProblem problem = softmax_problem({1, 3}, 1);
  problem.scale = 2;
  Array input({1, 3}), output({1, 3}), lse({1, 1});
  input.fill({0.5 * std::log(1.0), 0.5 * std::log(2.0), 0.5 * std::log(5.0)});
  forward(problem, {input.tensor, output.tensor, {}, lse.tensor});
  EXPECT_NEAR(output.get(0), 1.0 / 8, 1e-15);
  EXPECT_NEAR(output.get(1), 2.0 / 8, 1e-15);
  EXPECT_NEAR(output.get(2), 5.0 / 8, 1e-15);
  EXPECT_NEAR(lse.get(0), std::log(8.0), 1e-15);

  Array grad_output({1, 3}), grad_input({1, 3});
  grad_output.fill({8, 0, 0});  // sum(y dy) = 1
  backward(problem, {grad_output.tensor, output.tensor, {}, grad_input.tensor});
  EXPECT_NEAR(grad_input.get(0), 2 * 1.0 / 8 * 7, 1e-14);
  EXPECT_NEAR(grad_input.get(1), 2 * 2.0 / 8 * -1, 1e-14);
  EXPECT_NEAR(grad_input.get(2), 2 * 5.0 / 8 * -1, 1e-14);

  problem.log = true;
  forward(problem, {input.tensor, output.tensor, {}, {}});
  EXPECT_NEAR(output.get(2), std::log(5.0 / 8), 1e-15);
  backward(problem, {grad_output.tensor, output.tensor, {}, grad_input.tensor});
  EXPECT_NEAR(grad_input.get(0), 2 * (8 - 1.0 / 8 * 8), 1e-14);
  EXPECT_NEAR(grad_input.get(1), 2 * (0 - 2.0 / 8 * 8), 1e-14);
}

TEST(SoftmaxReference, GradientsAgainstCentralDifferences) {
  for (const bool log : {false, true})
    for (const bool masked : {false, true})
      for (const int32_t dim : {0, 1, 2}) {
        SoftmaxProblem problem = softmax_problem({3, 4, 5}, dim);
        problem.log = log;
        problem.visible = masked;
        problem.scale = 0.7;
        Array input({3, 4, 5}), output({3, 4, 5}), grad_output({3, 4, 5}), grad_input({3, 4, 5});
        Array visible({3, 4, 5}, DType::kBool);
        input.randomise(1, 2.0);
        grad_output.randomise(2);
        visible.randomise(3);
        for (int64_t i = 0; i < 5; ++i) visible.set(i * 12 % 60, 0);
        const Tensor mask = masked ? visible.tensor : Tensor{};
        const auto loss = [&] {
          Array result({3, 4, 5});
          forward(problem, {input.tensor, result.tensor, mask, {}}, 1);
          double total = 0;
          for (int64_t i = 0; i < 60; ++i)
            if (std::isfinite(result.get(i))) total += result.get(i) * grad_output.get(i);
          return total;
        };
        forward(problem, {input.tensor, output.tensor, mask, {}});
        backward(problem, {grad_output.tensor, output.tensor, mask, grad_input.tensor});
        for (int64_t i = 0; i < 60; ++i)
          EXPECT_NEAR(grad_input.get(i), input.central_difference(i, loss), 1e-8)
              << "log " << log << " masked " << masked << " dim " << dim << " element " << i;
      }
}

TEST(SoftmaxReference, MaskedElementsDoNotCountWhateverTheyHold) {
  SoftmaxProblem problem = softmax_problem({2, 4}, 1);
  problem.visible = true;
  Array input({2, 4}), output({2, 4}), lse({2, 1}), visible({2, 4}, DType::kBool);
  input.fill({kNaN, 1, kInfinity, 1, kNaN, kNaN, kInfinity, -kInfinity});
  visible.fill({0, 1, 0, 1, 0, 0, 0, 0});
  forward(problem, {input.tensor, output.tensor, visible.tensor, lse.tensor});
  output.expect({0, 0.5, 0, 0.5, 0, 0, 0, 0});
  lse.expect({1 + std::log(2.0), -kInfinity});

  problem.empty_rows_nan = true;
  forward(problem, {input.tensor, output.tensor, visible.tensor, lse.tensor});
  output.expect({0, 0.5, 0, 0.5, kNaN, kNaN, kNaN, kNaN});
  Array grad_output({2, 4}), grad_input({2, 4});
  grad_output.fill({kNaN, 1, kNaN, 0, kNaN, 1, 1, 1});
  backward(problem, {grad_output.tensor, output.tensor, visible.tensor, grad_input.tensor});
  grad_input.expect({0, 0.25, 0, -0.25, 0, 0, 0, 0});

  problem.log = true;
  problem.empty_rows_nan = false;
  forward(problem, {input.tensor, output.tensor, visible.tensor, lse.tensor});
  output.expect({-kInfinity, -std::log(2.0), -kInfinity, -std::log(2.0), -kInfinity, -kInfinity,
                 -kInfinity, -kInfinity});
  backward(problem, {grad_output.tensor, output.tensor, visible.tensor, grad_input.tensor});
  grad_input.expect({0, 0.5, 0, -0.5, 0, 0, 0, 0});
}

TEST(SoftmaxReference, InfinitiesAndNaN) {
  const SoftmaxProblem problem = softmax_problem({4, 2}, 1);
  Array input({4, 2}), output({4, 2}), lse({4, 1});
  input.fill({-kInfinity, -kInfinity, -kInfinity, 3, kInfinity, 0, kNaN, 0});
  forward(problem, {input.tensor, output.tensor, {}, lse.tensor});
  output.expect({kNaN, kNaN, 0, 1, kNaN, kNaN, kNaN, kNaN});
  lse.expect({-kInfinity, 3, kInfinity, kNaN});
}

TEST(SoftmaxReference, EmptyAndSingleRows) {
  Array nothing({3, 0}), lse({3, 1});
  forward(softmax_problem({3, 0}, 1), {nothing.tensor, nothing.tensor, {}, lse.tensor});
  lse.expect({-kInfinity, -kInfinity, -kInfinity});
  forward(softmax_problem({0, 3}, 1), {nothing.tensor, nothing.tensor, {}, {}});
  Array input({2, 1}), output({2, 1});
  input.fill({1e300, -7});
  forward(softmax_problem({2, 1}, 1), {input.tensor, output.tensor, {}, {}});
  output.expect({1, 1});
}

TEST(SoftmaxReference, InPlaceStridesAndMixedTypes) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    // Padded rows, read backwards.
    Array input({5, 33}, dtype, {-40, 1});
    Array wide({5, 33}), expected({5, 33});
    input.randomise(4, 3.0);
    for (int64_t i = 0; i < 5 * 33; ++i) wide.set(i, input.get(i));
    forward(softmax_problem({5, 33}, 1), {wide.tensor, expected.tensor, {}, {}});
    SoftmaxProblem problem = softmax_problem({5, 33}, 1, dtype);
    problem.out_dtype = DType::kF32;
    Array output({5, 33}, DType::kF32, {1, 5});
    forward(problem, {input.tensor, output.tensor, {}, {}});
    for (int64_t i = 0; i < 5 * 33; ++i)
      EXPECT_EQ(output.get(i), double{static_cast<float>(expected.get(i))});
    problem.out_dtype = dtype;
    forward(problem, {input.tensor, input.tensor, {}, {}});
    Array rounded({1}, dtype);
    for (int64_t i = 0; i < 5 * 33; ++i) {
      rounded.set(0, expected.get(i));
      EXPECT_EQ(input.get(i), rounded.get(0));
    }
  }
}

TEST(SoftmaxReference, ThreadsChangeNothing) {
  const SoftmaxProblem problem = softmax_problem({40, 33, 40}, 1);
  Array input({40, 33, 40}), one({40, 33, 40}), many({40, 33, 40});
  input.randomise(5, 4.0);
  forward(problem, {input.tensor, one.tensor, {}, {}}, 1);
  forward(problem, {input.tensor, many.tensor, {}, {}}, 4);
  expect_same_bytes(one, many);
  double total = 0;
  for (int64_t i = 0; i < one.count(); ++i) total += one.get(i);
  EXPECT_NEAR(total, 1600, 1e-10) << "every row sums to one";
}

void multiply(const MatmulProblem& problem, const MatmulArguments& arguments) {
  const auto pool = make_thread_pool(3);
  reference::matmul(problem, arguments, {*pool, nullptr});
}

MatmulProblem matmul_problem(int64_t batch, int64_t m, int64_t n, int64_t k,
                             DType dtype = DType::kF64) {
  MatmulProblem problem;
  problem.dtype = problem.out_dtype = dtype;
  problem.batch = batch;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  return problem;
}

TEST(MatmulReference, ByHand) {
  MatmulProblem problem = matmul_problem(1, 2, 2, 3);
  problem.alpha = 2;
  problem.beta = -1;
  problem.bias = true;
  Array a({1, 2, 3}), b({1, 3, 2}), c0({1, 2, 2}), bias({2}), c({1, 2, 2});
  a.fill({1, 2, 3, 4, 5, 6});
  b.fill({1, 0, 0, 1, 1, 1});
  c0.fill({1, 2, 3, 4});
  bias.fill({100, 200});
  multiply(problem, {a.tensor, b.tensor, c0.tensor, bias.tensor, c.tensor});
  c.expect({2 * 4 - 1 + 100, 2 * 5 - 2 + 200, 2 * 10 - 3 + 100, 2 * 11 - 4 + 200});
  multiply(problem, {a.tensor, b.tensor, c.tensor, bias.tensor,
                     c.tensor});  // c0 is c: alpha a b + bias minus itself
  c.expect({1, 2, 3, 4});
}

TEST(MatmulReference, BetaZeroReadsNothing) {
  MatmulProblem problem = matmul_problem(1, 1, 2, 0);
  Array a({1, 1, 0}), b({1, 0, 2}), c({1, 1, 2});
  c.fill({kNaN, kInfinity});
  multiply(problem, {a.tensor, b.tensor, c.tensor, {}, c.tensor});
  c.expect({0, 0});
  multiply(problem, {a.tensor, b.tensor, {}, {}, c.tensor});
  c.expect({0, 0});
}

TEST(MatmulReference, ShapesStridesAndTypes) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64})
    for (const int64_t m : {1, 16, 17, 35})
      for (const int64_t n : {1, 64, 65}) {
        const int64_t batch = 2, k = 19;
        MatmulProblem problem = matmul_problem(batch, m, n, k, dtype);
        problem.out_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
        problem.alpha = 0.5;
        Array a({batch, m, k}, dtype, {m * k, 1, m});  // column-major
        Array b({batch, k, n}, dtype, {0, n + 3, 1});  // one b for both
        Array c({batch, m, n}, problem.out_dtype, {2 * m * n, 2 * n, 2});
        a.randomise(6);
        b.randomise(7);
        multiply(problem, {a.tensor, b.tensor, {}, {}, c.tensor});
        for (int64_t i = 0; i < batch * m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += a.get(i * k + l) * b.get(l * n + j);
            sum *= 0.5;
            const double expected = dtype == DType::kF64 ? sum : double{static_cast<float>(sum)};
            ASSERT_EQ(c.get(i * n + j), expected) << m << ' ' << n << ' ' << i << ' ' << j;
          }
      }
}

}  // namespace
}  // namespace perseid::internal::cpu
