// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul problems with random operands, their results by the float64 reference, and the lists of
// problems that every backend is held to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "compare.hpp"
#include "cpu/reference/reference.hpp"
#include "tensor.hpp"

namespace perseid::internal::matmul_cases {

namespace reference = cpu::reference;
using namespace tests;

// How a [batch, rows, columns] tensor lies in memory.
enum class Layout { kRows, kColumns, kPaddedRows, kPaddedColumns, kSpread, kReversed, kOneForAll };

inline Array make_matrix(DType dtype, Layout layout, int64_t batch, int64_t rows, int64_t columns) {
  int64_t row = columns, column = 1;
  switch (layout) {
    case Layout::kColumns:
      row = 1, column = rows;
      break;
    case Layout::kPaddedRows:
      row = columns + 5;
      break;
    case Layout::kPaddedColumns:
      row = 1, column = rows + 3;
      break;
    case Layout::kSpread:
      row = 3 * columns + 1, column = 3;
      break;
    case Layout::kReversed:
      row = -columns;
      break;
    case Layout::kRows:
    case Layout::kOneForAll:
      break;
  }
  // A matrix and a gap: a multiple of 16 elements, which TMA takes where it takes the rows.
  const int64_t last = std::max<int64_t>(rows - 1, 0) * std::abs(row) +
                       std::max<int64_t>(columns - 1, 0) * std::abs(column);
  const int64_t each = (last / 16 + 2) * 16;
  return Array({batch, rows, columns}, dtype,
               {layout == Layout::kOneForAll ? 0 : each, row, column}, 16);
}
// The same values as row-major float64, each passed through `change`.
template <class Change>
Array widened(const Array& array, Change change) {
  const int64_t* shape = array.tensor.shape;
  Array wide({shape[0], shape[1], shape[2]});
  std::vector<double> values = array.values();
  for (double& value : values) value = change(value);
  wide.fill(values);
  return wide;
}

// Runs tasks from the last to the first, and gives every one the next worker.
class BackwardExecutor final : public cpu::Executor {
 public:
  explicit BackwardExecutor(int32_t workers) : workers_(workers) {}
  int32_t workers() const override { return workers_; }
  void run(int64_t tasks, cpu::TaskFunction function, void* state) override {
    for (int64_t task = tasks; task-- > 0;)
      function(state, task, static_cast<int32_t>(task % workers_));
  }

 private:
  int32_t workers_;
};

struct Case {
  DType dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  double alpha = 1, beta = 0;
  bool bias = false;
  Layout a = Layout::kRows, b = Layout::kRows, c = Layout::kRows;
  bool own_c0 = false;              // c0 is a tensor of its own, laid out by rows
  DType bias_dtype = DType::kNone;  // none: dtype, f32 where that is of 8 bits
  DType b_dtype = DType::kNone;     // none: dtype
  Scaling scaling = Scaling::kNone;
  bool scale_per_batch = true;  // where it is not one scale
  bool scale_result = false;
  Activation activation = Activation::kNone;
  bool amax = false;
  Accumulation accumulation = Accumulation::kPromoted;

  DType type_of_bias() const {
    if (bias_dtype != DType::kNone) return bias_dtype;
    return is_float8(dtype) ? DType::kF32 : dtype;
  }
};

// Positive scales [batch, lines, parts], of which neighbours differ by about their size.
inline Array make_scales(const Case& given, int64_t lines, int64_t parts) {
  const bool rows = given.scaling != Scaling::kTensor, blocks = given.scaling == Scaling::kBlock;
  Array scales(
      {given.batch, lines, parts}, DType::kF32,
      {rows && given.scale_per_batch ? lines * parts + 3 : 0, rows ? parts : 0, blocks ? 1 : 0});
  int64_t index = 0;
  for_each(scales.tensor, [&](int64_t offset, int64_t) {
    put(scales.tensor, offset, 0.25 + 0.37 * static_cast<double>(index++ % 11));
  });
  return scales;
}

struct Problem {
  Case given;
  MatmulProblem problem;
  Array a, b, c, c0, bias, scale_a, scale_b, scale_result, amax;

  explicit Problem(const Case& c_)
      : given(c_),
        problem{.dtype = c_.dtype,
                .out_dtype = c_.out_dtype,
                .batch = c_.batch,
                .m = c_.m,
                .n = c_.n,
                .k = c_.k,
                .alpha = c_.alpha,
                .beta = c_.beta,
                .bias = c_.bias,
                .b_dtype = c_.b_dtype,
                .scaling = c_.scaling,
                .accumulation = c_.accumulation,
                .scale_result = c_.scale_result,
                .activation = c_.activation,
                .amax = c_.amax},
        a(make_matrix(c_.dtype, c_.a, c_.batch, c_.m, c_.k)),
        b(make_matrix(problem.type_of_b(), c_.b, c_.batch, c_.k, c_.n)),
        c(make_matrix(c_.out_dtype, c_.c, c_.batch, c_.m, c_.n)),
        c0(make_matrix(c_.out_dtype, Layout::kRows, c_.batch, c_.m, c_.n)),
        bias(make_matrix(c_.type_of_bias(), Layout::kSpread, 1, 1, c_.n)),
        scale_result({1}, DType::kF32),
        amax({1}, c_.dtype == DType::kF64 ? DType::kF64 : DType::kF32) {
    auto seed = static_cast<uint32_t>(c_.m * 31 + c_.n * 7 + c_.k);
    for (Array* array : {&a, &b, &c, &c0, &bias}) array->randomise(seed++);
    // What a factor of 0 takes out of the formula is not read.
    if (c_.beta == 0) c.fill_all(kNaN);
    if (c_.alpha == 0) {
      a.fill_all(kNaN);
      b.fill_all(kNaN);
    }
    scale_result.fill_all(1.75);
    amax.fill_all(1e30);  // what it held before has no part in it
    if (c_.scaling == Scaling::kNone) return;
    const int64_t parts = ceil_div(c_.k, kScaledBlock);
    scale_a = make_scales(c_, c_.m, parts);
    scale_b =
        make_scales(c_, c_.scaling == Scaling::kBlock ? ceil_div(c_.n, kScaledBlock) : c_.n, parts);
  }

  static Tensor vector_of(const Array& array) {
    Tensor vector = array.tensor;
    vector.rank = 1;
    vector.shape[0] = array.tensor.shape[2];
    vector.stride[0] = array.tensor.stride[2];
    return vector;
  }

  // Arguments of an execution that writes `into`.
  MatmulArguments arguments(const Tensor& into) const { return arguments(into, amax.tensor); }
  MatmulArguments arguments(const Tensor& into, const Tensor& most) const {
    return {.a = a.tensor,
            .b = b.tensor,
            .c0 = given.own_c0 ? c0.tensor : into,
            .bias = vector_of(bias),
            .c = into,
            .scale_a = scale_a.tensor,
            .scale_b = scale_b.tensor,
            .scale_result = scale_result.tensor,
            .amax = most};
  }

  // C in float64, of the operands or of their magnitudes.
  Array reference(bool magnitudes) const {
    const auto change = [&](double x) { return magnitudes ? std::abs(x) : x; };
    const Array wide_a = widened(a, change), wide_b = widened(b, change),
                wide_c0 = widened(given.own_c0 ? c0 : c, change), wide_bias = widened(bias, change);
    MatmulProblem wide = problem;
    wide.dtype = wide.out_dtype = DType::kF64;
    wide.alpha = change(wide.alpha);
    wide.beta = change(wide.beta);
    wide.amax = false;
    if (magnitudes) wide.activation = Activation::kNone;
    Array result({given.batch, given.m, given.n});
    BackwardExecutor executor(1);
    reference::matmul(wide,
                      {.a = wide_a.tensor,
                       .b = wide_b.tensor,
                       .c0 = wide_c0.tensor,
                       .bias = vector_of(wide_bias),
                       .c = result.tensor,
                       .scale_a = scale_a.tensor,
                       .scale_b = scale_b.tensor,
                       .scale_result = scale_result.tensor},
                      {executor, nullptr});
    return result;
  }
};

// Each element to the error of a sum of products that is rounded at every step, in any order, and
// once to the output's type: sharper than the rule, which takes the largest error of all elements.
// An activation adds its own error, and is nowhere steeper than 1.13.
inline void expect_product(const Problem& problem, const Array& c) {
  const Case& given = problem.given;
  std::vector<double> expected = problem.reference(false).values();
  if (is_float8(given.out_dtype)) {
    const double most = harness::largest_float8(public_dtype(given.out_dtype));
    for (double& value : expected) value = std::clamp(value, -most, most);
  }
  const double work = given.dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  const double sums = work * 2 * static_cast<double>(given.k + 4);
  const double output = 1.01 * harness::unit_roundoff(public_dtype(given.out_dtype));
  const double smallest = given.out_dtype == DType::kF16 || is_float8(given.out_dtype)
                              ? harness::smallest_step(public_dtype(given.out_dtype))
                              : 0;
  const bool activated = given.activation != Activation::kNone;
  const double steepness = activated ? 1.13 : 1, own = activated ? 16 * work : 0;
  harness::Limit limit{0, problem.reference(true).values()};
  for (size_t i = 0; i < expected.size(); ++i)
    limit.each[i] =
        steepness * sums * limit.each[i] + smallest + (output + own) * std::abs(expected[i]);
  expect_close("c", c.tensor, expected, limit);
  c.expect_guards();
}

// The largest magnitude before scale_result, to the error that its element may have.
inline void expect_amax(const Problem& problem, const Array& amax) {
  Problem plain = problem;
  plain.problem.scale_result = false;
  double most = 0, reach = 0;
  bool nan = false;
  for (const double value : plain.reference(false).values()) {
    most = std::max(most, std::abs(value));
    nan = nan || std::isnan(value);
  }
  amax.expect_guards();
  EXPECT_EQ(std::isnan(amax.get(0)), nan);
  if (nan) return;
  for (const double value : plain.reference(true).values()) reach = std::max(reach, value);
  const double work = problem.given.dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  EXPECT_NEAR(amax.get(0), most,
              work * (16 * most + 2.26 * static_cast<double>(problem.given.k + 4) * reach));
}

inline testing::Message describe(const Case& given) {
  return testing::Message() << name_of(given.dtype) << " to " << name_of(given.out_dtype)
                            << " batch " << given.batch << " m " << given.m << " n " << given.n
                            << " k " << given.k << " layouts " << static_cast<int>(given.a) << " "
                            << static_cast<int>(given.b) << " " << static_cast<int>(given.c)
                            << " b " << name_of(given.b_dtype) << " scaling "
                            << static_cast<int>(given.scaling) << " activation "
                            << name_of(given.activation);
}

// ---- Lists of problems: check(case) is called for each ----

inline constexpr DType kTypes[][2] = {{DType::kF32, DType::kF32},  {DType::kBF16, DType::kBF16},
                                      {DType::kF16, DType::kF16},  {DType::kF64, DType::kF64},
                                      {DType::kBF16, DType::kF32}, {DType::kF16, DType::kF32}};

// Many cases cost much time, most of all in an emulator: every type takes its share of them,
// another one for each.
inline bool takes(size_t type, int64_t index, int64_t of) {
  return index % of == static_cast<int64_t>(type) % of;
}

template <class Check>
void edge_shapes(const Check& check) {
  constexpr int64_t kSizes[] = {1, 5, 6, 7, 9, 13, 63, 65, 129};
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    int64_t index = 0;
    for (const int64_t m : kSizes)
      for (const int64_t n : kSizes)
        for (const int64_t k : {1, 2, 17, 64})
          if (takes(type, ++index, 3))
            check(Case{
                .dtype = kTypes[type][0], .out_dtype = kTypes[type][1], .m = m, .n = n, .k = k});
  }
}

template <class Check>
void empty_shapes(const Check& check) {
  for (const auto& types : kTypes) {
    for (const int64_t m : {0, 1, 7, 33})
      for (const int64_t n : {0, 1, 7, 33})
        for (const int64_t k : {0, 3}) {
          check(Case{.dtype = types[0], .out_dtype = types[1], .m = m, .n = n, .k = k});
          check(Case{.dtype = types[0],
                     .out_dtype = types[1],
                     .m = m,
                     .n = n,
                     .k = k,
                     .beta = 0.5,
                     .bias = true});
        }
    check(Case{.dtype = types[0], .out_dtype = types[1], .batch = 0, .m = 3, .n = 3, .k = 3});
  }
}

template <class Check>
void strides(const Check& check) {
  constexpr Layout kLayouts[] = {Layout::kRows,          Layout::kColumns, Layout::kPaddedRows,
                                 Layout::kPaddedColumns, Layout::kSpread,  Layout::kReversed};
  constexpr int64_t kShapes[][3] = {{50, 77, 35}, {3, 90, 41}, {90, 5, 41}, {1, 33, 50}};
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    int64_t index = 0;
    for (const auto& shape : kShapes)
      for (const Layout a : kLayouts)
        for (const Layout b : kLayouts)
          for (const Layout c : kLayouts)
            if (takes(type, ++index, 5))
              check(Case{.dtype = kTypes[type][0],
                         .out_dtype = kTypes[type][1],
                         .m = shape[0],
                         .n = shape[1],
                         .k = shape[2],
                         .alpha = 0.75,
                         .beta = -1.5,
                         .bias = true,
                         .a = a,
                         .b = b,
                         .c = c});
  }
}

template <class Check>
void alpha_beta_and_bias(const Check& check) {
  constexpr Layout kOut[] = {Layout::kRows, Layout::kPaddedColumns, Layout::kSpread};
  for (const auto& types : kTypes)
    for (const double alpha : {0.0, 1.0, -2.5})
      for (const double beta : {0.0, 1.0, 0.25})
        for (const bool bias : {false, true})
          for (const bool own_c0 : {false, true})
            for (const Layout c : kOut)
              for (const int64_t m : {4, 40})
                check(Case{.dtype = types[0],
                           .out_dtype = types[1],
                           .m = m,
                           .n = 70,
                           .k = 20,
                           .alpha = alpha,
                           .beta = beta,
                           .bias = bias,
                           .c = c,
                           .own_c0 = own_c0,
                           .bias_dtype = own_c0 ? types[1] : types[0]});
}

template <class Check>
void batches(const Check& check) {
  for (const auto& types : kTypes)
    for (const Layout a : {Layout::kRows, Layout::kOneForAll})
      for (const Layout b : {Layout::kColumns, Layout::kOneForAll})
        for (const int64_t m : {2, 20})
          check(Case{.dtype = types[0],
                     .out_dtype = types[1],
                     .batch = 5,
                     .m = m,
                     .n = 30,
                     .k = 19,
                     .beta = 1,
                     .bias = true,
                     .a = a,
                     .b = b});
}

// ---- 8-bit operands and epilogues ----

inline constexpr DType kFloat8s[] = {DType::kF8E4M3, DType::kF8E5M2};
inline constexpr Scaling kScalings[] = {Scaling::kNone, Scaling::kTensor, Scaling::kRow,
                                        Scaling::kBlock};
inline constexpr DType kFloat8Outs[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3,
                                        DType::kF8E5M2};

// Every pair of types, scales, result types and layouts.
template <class Check>
void float8(const Check& check) {
  constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns, Layout::kPaddedRows,
                                 Layout::kSpread, Layout::kReversed};
  constexpr int64_t kShapes[][3] = {{50, 77, 35}, {3, 140, 300}, {140, 5, 129}, {1, 1, 1}};
  int64_t index = 0;
  for (const DType a : kFloat8s)
    for (const DType b : kFloat8s)
      for (const Scaling scaling : kScalings)
        for (const DType out : kFloat8Outs)
          for (const auto& shape : kShapes) {
            ++index;
            const bool narrow = is_float8(out);
            check(Case{.dtype = a,
                       .out_dtype = out,
                       .batch = index % 3 == 0 ? 3 : 1,
                       .m = shape[0],
                       .n = shape[1],
                       .k = shape[2],
                       .alpha = 0.75,
                       .beta = narrow ? 0 : -1.5,
                       .bias = index % 2 == 0,
                       .a = index % 7 == 0 ? Layout::kOneForAll : kLayouts[index % 5],
                       .b = index % 11 == 0 ? Layout::kOneForAll : kLayouts[index / 5 % 5],
                       .c = kLayouts[index / 7 % 5],
                       .bias_dtype = index % 4 == 0 && !narrow ? out : DType::kNone,
                       .b_dtype = b,
                       .scaling = scaling,
                       .scale_per_batch = index % 5 != 0,
                       .scale_result = narrow && index % 2 == 0,
                       .activation = static_cast<Activation>(index % 4),
                       .amax = index % 3 == 1});
          }
}

// Blocks of scales that end within blocks of the product, and the other way round.
template <class Check>
void float8_blocks(const Check& check) {
  for (const Scaling scaling : kScalings)
    for (const Layout layout : {Layout::kRows, Layout::kColumns})
      for (const Layout c : {Layout::kRows, Layout::kColumns})
        check(Case{.dtype = DType::kF8E4M3,
                   .batch = 2,
                   .m = 401,
                   .n = 290,
                   .k = 343,
                   .a = layout,
                   .b = layout == c ? Layout::kOneForAll : layout,
                   .c = c,
                   .b_dtype = DType::kF8E5M2,
                   .scaling = scaling,
                   .amax = true});
}

template <class Check>
void activations(const Check& check) {
  for (const auto& types : kTypes)
    for (const Activation activation :
         {Activation::kNone, Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu})
      for (const Layout c : {Layout::kRows, Layout::kColumns, Layout::kSpread})
        for (const int64_t m : {1, 5, 40})
          for (const double alpha : {0.3, 40.0})
            check(Case{.dtype = types[0],
                       .out_dtype = types[1],
                       .m = m,
                       .n = 37,
                       .k = 20,
                       .alpha = alpha,
                       .beta = 1,
                       .bias = true,
                       .c = c,
                       .activation = activation,
                       .amax = true});
}

// amax does not count what lies outside of c, where a tile has the bias alone: -12, and inside 4.
inline Problem bias_outside_of_c(DType dtype, DType out_dtype, Layout c) {
  Problem problem({.dtype = dtype,
                   .out_dtype = out_dtype,
                   .m = 264,
                   .n = 520,
                   .k = 16,
                   .bias = true,
                   .b = Layout::kColumns,
                   .c = c,
                   .amax = true});
  problem.a.fill_all(1);
  problem.b.fill_all(1);
  problem.bias.fill_all(-12);
  return problem;
}

// Several blocks in every direction.
template <class Check>
void many_blocks(const Check& check) {
  for (const auto& types : kTypes) {
    check(Case{.dtype = types[0], .out_dtype = types[1], .m = 70, .n = 300, .k = 700});
    check(Case{.dtype = types[0],
               .out_dtype = types[1],
               .m = 401,
               .n = 290,
               .k = 143,
               .bias = true,
               .c = Layout::kColumns});
    check(Case{.dtype = types[0],
               .out_dtype = types[1],
               .m = 260,
               .n = 530,
               .k = 300,
               .a = Layout::kColumns,
               .b = Layout::kColumns});
    check(Case{.dtype = types[0],
               .out_dtype = types[1],
               .m = 7,
               .n = 1100,
               .k = 600,
               .b = Layout::kColumns});
    check(Case{.dtype = types[0], .out_dtype = types[1], .m = 1100, .n = 7, .k = 600, .beta = 1});
  }
}

}  // namespace perseid::internal::matmul_cases
