// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The error rule of attention, for inputs of any scale: over all seeds, a kernel's largest error
// against float64 is at most 1.10 times that of the formula that takes each row's exact maximum,
// rounds weights (backward: probabilities and dS) to the type and sums the unrounded ones. With
// inputs ten times as large nearly every row is peaked: one weight is most of its sum.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "emulated_bf16.hpp"

namespace perseid::internal::cpu {
namespace {

constexpr int kSeeds = 20;
constexpr double kAllowed = 1.10;

// Those that round weights. The others differ from the formula by less than it errs.
std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> all = {&emulated_bf16_table()};
  for (const KernelTable* table : available_kernel_tables())
    if (table->bf16_dot) all.push_back(table);
  return all;
}

struct Random {
  uint64_t state;
  double uniform() {  // in (0, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (static_cast<double>(state >> 12) + 0.5) * 0x1p-52;
  }
  double normal() {
    return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
  }
};

struct Sizes {
  DType dtype;
  int64_t q_len, kv_len, dim;
  bool causal;
  double magnitude;
};

template <class T>
double rounded(double x) {
  return convert<double>(convert<T>(x));
}

// A matrix [rows, columns] in T, and the same numbers in double.
template <class T>
struct Matrix {
  int64_t rows, columns;
  std::vector<T> stored;
  std::vector<double> exact;

  Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count),
        columns(column_count),
        stored(static_cast<size_t>(rows * columns)),
        exact(stored.size()) {}
  Matrix(int64_t row_count, int64_t column_count, Random& random, double magnitude)
      : Matrix(row_count, column_count) {
    for (size_t i = 0; i < stored.size(); ++i) {
      stored[i] = convert<T>(magnitude * random.normal());
      exact[i] = convert<double>(stored[i]);
    }
  }
  const double* row(int64_t i) const { return exact.data() + i * columns; }
  double* row(int64_t i) { return exact.data() + i * columns; }
  // [1, 1, rows, columns], as kernels take it.
  Tensor tensor() {
    Tensor result;
    result.data = stored.data();
    result.dtype = sizeof(T) == 4            ? DType::kF32
                   : std::is_same_v<T, bf16> ? DType::kBF16
                                             : DType::kF16;
    result.rank = 4;
    const int64_t shape[] = {1, 1, rows, columns}, stride[] = {0, 0, columns, 1};
    std::copy_n(shape, 4, result.shape);
    std::copy_n(stride, 4, result.stride);
    return result;
  }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
void add(double weight, const double* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += weight * from[i];
}

// Largest errors of one kernel or formula over all seeds.
struct Errors {
  double out = 0, lse = 0, grad_query = 0, grad_key = 0, grad_value = 0;
};
template <class T>
void raise(double& largest, const Matrix<T>& got, const Matrix<T>& want) {
  for (size_t i = 0; i < want.exact.size(); ++i)
    largest = std::max(largest, std::fabs(convert<double>(got.stored[i]) - want.exact[i]));
}

template <class T>
struct Results {
  Matrix<T> out, grad_query, grad_key, grad_value;
  Matrix<float> lse;
  Results(const Sizes& sizes)
      : out(sizes.q_len, sizes.dim),
        grad_query(sizes.q_len, sizes.dim),
        grad_key(sizes.kv_len, sizes.dim),
        grad_value(sizes.kv_len, sizes.dim),
        lse(1, sizes.q_len) {}
};

template <class T>
struct Problem {
  Sizes sizes;
  Matrix<T> query, key, value, grad_out;
  Results<T> exact, formula;
  double largest_score = 0;

  Problem(const Sizes& problem_sizes, uint64_t seed) : Problem(problem_sizes, Random{seed}) {}

 private:
  Problem(const Sizes& s, Random random)
      : sizes(s),
        query(s.q_len, s.dim, random, s.magnitude),
        key(s.kv_len, s.dim, random, s.magnitude),
        value(s.kv_len, s.dim, random, s.magnitude),
        grad_out(s.q_len, s.dim, random, s.magnitude),
        exact(s),
        formula(s) {
    const double scale = 1 / std::sqrt(static_cast<double>(s.dim));
    std::vector<double> score(static_cast<size_t>(s.kv_len)), grad(score.size());
    for (int64_t i = 0; i < s.q_len; ++i) {
      const int64_t keys = s.causal ? s.kv_len - s.q_len + i + 1 : s.kv_len;
      double max = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        score[j] = scale * dot(query.row(i), key.row(j), s.dim);
        max = std::max(max, score[j]);
        largest_score = std::max(largest_score, std::fabs(score[j]));
      }
      for (int64_t j = 0; j < keys; ++j) sum += std::exp(score[j] - max);
      exact.lse.exact[i] = max + std::log(sum);
      std::vector<double> unrounded(static_cast<size_t>(s.dim));
      for (int64_t j = 0; j < keys; ++j) {
        const double weight = std::exp(score[j] - max);
        add(weight / sum, value.row(j), s.dim, exact.out.row(i));
        add(rounded<T>(weight), value.row(j), s.dim, unrounded.data());
      }
      for (int64_t d = 0; d < s.dim; ++d)
        formula.out.exact[i * s.dim + d] = rounded<T>(unrounded[d] / sum);
      // Backward: the formula reads out as its forward rounded it.
      const double delta = dot(grad_out.row(i), exact.out.row(i), s.dim);
      const double rounded_delta = dot(grad_out.row(i), formula.out.row(i), s.dim);
      for (int64_t j = 0; j < keys; ++j) {
        const double p = std::exp(score[j] - max) / sum;
        const double dp = dot(grad_out.row(i), value.row(j), s.dim);
        const double ds = p * (dp - delta) * scale;
        const double rounded_ds = rounded<T>(p * (dp - rounded_delta)) * scale;
        add(p, grad_out.row(i), s.dim, exact.grad_value.row(j));
        add(ds, query.row(i), s.dim, exact.grad_key.row(j));
        add(ds, key.row(j), s.dim, exact.grad_query.row(i));
        add(rounded<T>(p), grad_out.row(i), s.dim, formula.grad_value.row(j));
        add(rounded_ds, query.row(i), s.dim, formula.grad_key.row(j));
        add(rounded_ds, key.row(j), s.dim, formula.grad_query.row(i));
      }
    }
    for (size_t i = 0; i < exact.lse.exact.size(); ++i)
      formula.lse.stored[i] = static_cast<float>(exact.lse.exact[i]);
    for (Matrix<T>* each :
         {&formula.out, &formula.grad_query, &formula.grad_key, &formula.grad_value})
      for (size_t i = 0; i < each->exact.size(); ++i) each->stored[i] = convert<T>(each->exact[i]);
  }

 public:
  void measure(Results<T>& got, Errors& errors) const {
    raise(errors.out, got.out, exact.out);
    raise(errors.lse, got.lse, exact.lse);
    raise(errors.grad_query, got.grad_query, exact.grad_query);
    raise(errors.grad_key, got.grad_key, exact.grad_key);
    raise(errors.grad_value, got.grad_value, exact.grad_value);
  }

  void run(const KernelTable& table, Executor& executor, Errors& errors) {
    AttentionProblem problem;
    problem.dtype = query.tensor().dtype;
    problem.batch = problem.heads = problem.kv_heads = 1;
    problem.q_len = sizes.q_len;
    problem.kv_len = sizes.kv_len;
    problem.head_dim = problem.value_dim = sizes.dim;
    problem.scale = 1 / std::sqrt(static_cast<double>(sizes.dim));
    problem.causal = sizes.causal ? Causal::kBottomRight : Causal::kNone;
    problem.grad_query = problem.grad_key = problem.grad_value = true;
    Results<T> got(sizes);
    AttentionForward forward;
    forward.query = query.tensor();
    forward.key = key.tensor();
    forward.value = value.tensor();
    forward.out = got.out.tensor();
    forward.lse = got.lse.tensor();
    forward.lse.rank = 3;
    AttentionBackward backward;
    backward.query = forward.query;
    backward.key = forward.key;
    backward.value = forward.value;
    // What the formula's forward gives: the luck of rounding out is the same for both.
    backward.out = formula.out.tensor();
    // [1, 1, q_len] for what was made as a row.
    forward.lse.shape[2] = sizes.q_len;
    forward.lse.stride[2] = 1;
    backward.lse = forward.lse;
    backward.lse.data = formula.lse.stored.data();
    backward.grad_out = grad_out.tensor();
    backward.grad_query = got.grad_query.tensor();
    backward.grad_key = got.grad_key.tensor();
    backward.grad_value = got.grad_value.tensor();
    const auto in_workspace = [&](size_t bytes, const auto& kernel) {
      std::vector<std::byte> memory(bytes + 64);
      void* begin = memory.data();
      size_t space = memory.size();
      kernel(Execution{executor, static_cast<std::byte*>(std::align(64, 1, begin, space))});
    };
    in_workspace(table.attention_forward_workspace(problem, executor.workers()),
                 [&](const Execution& e) { table.attention_forward(problem, forward, e); });
    in_workspace(table.attention_backward_workspace(problem, executor.workers()),
                 [&](const Execution& e) { table.attention_backward(problem, backward, e); });
    measure(got, errors);
  }
};

void expect_within(const char* name, double got, double formula) {
  EXPECT_LE(got, kAllowed * formula)
      << name << ": " << got / formula << " of the formula's " << formula;
}

template <class T>
void check(const Sizes& sizes) {
  const std::unique_ptr<Executor> executor = make_thread_pool(2);
  const std::vector<const KernelTable*> all = tables();
  std::vector<Errors> errors(all.size());
  Errors formula;
  double largest_score = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Problem<T> problem(sizes, static_cast<uint64_t>(seed));
    problem.measure(problem.formula, formula);
    largest_score = std::max(largest_score, problem.largest_score);
    for (size_t i = 0; i < all.size(); ++i) problem.run(*all[i], *executor, errors[i]);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i]->isa);
    expect_within("out", errors[i].out, formula.out);
    expect_within("grad_query", errors[i].grad_query, formula.grad_query);
    expect_within("grad_key", errors[i].grad_key, formula.grad_key);
    expect_within("grad_value", errors[i].grad_value, formula.grad_value);
    // Roundoff of the scores, and the error of exp2_approx.
    EXPECT_LE(errors[i].lse, 4e-6 + 1e-6 * largest_score);
  }
}

void check_scales(int64_t dim, bool causal) {
  for (const double magnitude : {0.1, 1.0, 3.0, 10.0}) {
    SCOPED_TRACE("magnitude " + std::to_string(magnitude));
    // Several blocks of keys: the maximum rises between them.
    check<bf16>({DType::kBF16, causal ? 96 : 32, causal ? 320 : 700, dim, causal, magnitude});
  }
}

TEST(AttentionExactness, Bf16Dim64Full) { check_scales(64, false); }
TEST(AttentionExactness, Bf16Dim64Causal) { check_scales(64, true); }
TEST(AttentionExactnessSweep, Bf16Dim128Full) { check_scales(128, false); }
TEST(AttentionExactnessSweep, Bf16Dim128Causal) { check_scales(128, true); }

}  // namespace
}  // namespace perseid::internal::cpu
