// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The softmax kernels against the float64 reference.
#include <functional>
#include <map>

#include "softmax_test_tools.hpp"

namespace perseid::internal::softmax_tests {
namespace {

constexpr DType kTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

// One problem and how its tensors lie in memory.
struct Case {
  SoftmaxProblem problem;
  Shape read_strides = {}, write_strides = {}, mask_strides = {};  // row-major if empty
  int64_t shift = 0;  // elements that the tensors begin past an aligned address
  bool in_place = false;
  double centre = 0, spread = 2;
  std::function<void(Array& input, Array& visible)> adjust = {};

  Shape shape() const { return Shape(problem.shape, problem.shape + problem.rank); }
  Shape lse_shape() const {
    Shape result = shape();
    result[static_cast<size_t>(problem.dim)] = 1;
    return result;
  }
};

// Small results are held to their own size as well, which the rule is not strict about. spread: how
// far apart the exponents are.
void expect_relative(const SoftmaxProblem& problem, double spread, double expected, double got) {
  if (problem.log || !(expected > 0) || !std::isfinite(got)) return;
  const bool wide = problem.compute_dtype() == DType::kF64;
  const double unit = wide ? 2e-16 : 1e-7;
  const double output = harness::unit_roundoff(public_dtype(problem.out_dtype));
  const double smallest = problem.out_dtype == DType::kF16 ? 0x1p-24 : 1e-40;
  const double allowed = unit * (10 + spread + std::sqrt(problem.length()) / 2) + output;
  ASSERT_LE(std::abs(got - expected), expected * allowed + smallest)
      << text_of(problem) << ": expected " << expected << ", got " << got;
}

using Inputs = std::map<std::string, std::vector<double>>;

// Backward's sums have n terms: an element is off by its rounding to the input's type and
// by that of dy - sum, where the sum is in 8 lanes or more (see harness/naive.hpp).
harness::Limit gradient_limit(const SoftmaxProblem& problem, const Array& grad, const Array& output,
                              const Array& visible, const Array& expected) {
  const DType compute = problem.compute_dtype();
  const double unit = harness::unit_roundoff(public_dtype(compute));
  const double in = 1.01 * harness::unit_roundoff(public_dtype(problem.dtype));
  const double smallest = problem.dtype == DType::kF16 ? 0x1p-24 : 0x1p-125;
  const auto terms = static_cast<double>(problem.length());
  const double sums =
      16 + (compute == DType::kF64 ? terms : std::min(terms / 8, 16 * std::sqrt(terms)));
  const auto size_of_term = [&](double dy, double y) {
    const double size = std::abs(dy) * (problem.log ? 1 : std::abs(y));
    return std::isfinite(size) ? size : 0;
  };
  harness::Limit limit{0, std::vector<double>(static_cast<size_t>(expected.count()))};
  for (int64_t row = 0; row < problem.rows() && problem.length() > 0; ++row) {
    const std::vector<int64_t> indices = row_indices(problem, row);
    double total = 0;
    for (const int64_t i : indices)
      if (!problem.visible || visible.get(i) != 0)
        total += size_of_term(grad.get(i), output.get(i));
    for (const int64_t i : indices) {
      const double y = output.get(i), dx = std::abs(expected.get(i));
      const double weight = std::abs(problem.log ? std::exp(y) * (1 + std::abs(y)) : y);
      const double own = 8 * size_of_term(grad.get(i), y) + sums * weight * total;
      limit.each[static_cast<size_t>(i)] =
          (std::isfinite(dx) ? in * dx : 0) + smallest +
          unit * std::abs(problem.scale) * (std::isfinite(own) ? own : 0);
    }
  }
  return limit;
}

// Forward: output and lse against the reference, guard zones, in place.
void check_forward(const Case& test) {
  const SoftmaxProblem& problem = test.problem;
  SCOPED_TRACE(text_of(problem));
  const DType lse_dtype = problem.compute_dtype();
  Array input(test.shape(), problem.dtype, test.read_strides, test.shift);
  Array visible(test.shape(), DType::kBool, test.mask_strides);
  input.randomise_normal(1, test.centre, test.spread);
  visible.randomise(2);
  if (test.adjust) test.adjust(input, visible);

  Array wide(test.shape(), DType::kF64), expected(test.shape(), DType::kF64);
  Array expected_lse(test.lse_shape(), DType::kF64);
  wide.copy_from(input);
  const Tensor mask = problem.visible ? visible.tensor : Tensor();
  const auto pool = cpu::make_thread_pool(2);
  cpu::reference::softmax_forward(
      exact(problem), {wide.tensor, expected.tensor, mask, expected_lse.tensor}, {*pool, nullptr});
  Array output(test.shape(), problem.out_dtype, test.write_strides, test.shift);
  Array lse(test.lse_shape(), lse_dtype);
  Array both(test.shape(), problem.dtype, test.read_strides, test.shift);
  if (test.in_place) both.copy_from(input);
  const Array& source = test.in_place ? both : input;
  const Array& result = test.in_place ? both : output;
  forward(problem, {source.tensor, result.tensor, mask, lse.tensor});
  Inputs inputs = {{"input", input.values()}};
  if (problem.visible) inputs["visible"] = visible.values();
  const Limits limits(harness_problem(problem), inputs);
  limits.expect("output", result.tensor, expected.values());
  limits.expect("lse", lse.tensor, expected_lse.values());
  for (int64_t i = 0; i < result.count(); ++i)
    expect_relative(problem, 10 * test.spread * std::abs(problem.scale), expected.get(i),
                    result.get(i));
  result.expect_guards();
  lse.expect_guards();
}

// Backward, from an output that the reference has made.
void check_backward(const Case& test) {
  const SoftmaxProblem& problem = test.problem;
  SCOPED_TRACE("backward of " + text_of(problem));
  Array input(test.shape(), problem.dtype),
      output(test.shape(), problem.out_dtype, test.read_strides, test.shift);
  Array visible(test.shape(), DType::kBool, test.mask_strides);
  // In place, so that both tensors have the same strides.
  Array grad_output(test.shape(), problem.out_dtype,
                    test.in_place ? test.write_strides : test.read_strides, test.shift);
  input.randomise_normal(1, test.centre, test.spread);
  visible.randomise(2);
  grad_output.randomise_normal(3, 0.1, 1);
  const Tensor mask = problem.visible ? visible.tensor : Tensor();
  // One thread: where strides are 0, rows share their memory.
  const auto pool = cpu::make_thread_pool(1);
  cpu::reference::softmax_forward(problem, {input.tensor, output.tensor, mask, {}},
                                  {*pool, nullptr});
  if (test.adjust) test.adjust(grad_output, visible);

  Array wide_grad(test.shape(), DType::kF64), wide_output(test.shape(), DType::kF64);
  Array expected(test.shape(), DType::kF64);
  wide_grad.copy_from(grad_output);
  wide_output.copy_from(output);
  cpu::reference::softmax_backward(exact(problem),
                                   {wide_grad.tensor, wide_output.tensor, mask, expected.tensor},
                                   {*pool, nullptr});
  Array grad_input(test.shape(), problem.dtype, test.write_strides, test.shift);
  Array both(test.shape(), problem.dtype, test.write_strides, test.shift);
  if (test.in_place) both.copy_from(grad_output);
  const Array& source = test.in_place ? both : grad_output;
  const Array& result = test.in_place ? both : grad_input;
  backward(problem, {source.tensor, output.tensor, mask, result.tensor});
  expect_close("grad_input", result.tensor, expected.values(),
               gradient_limit(problem, wide_grad, wide_output, visible, expected));
  result.expect_guards();
}

// Both directions, softmax and log-softmax, with and without a mask.
void check(Case test) {
  for (const bool log : {false, true})
    for (const bool masked : {false, true}) {
      test.problem.log = log;
      test.problem.visible = masked;
      check_forward(test);
      check_backward(test);
      if (testing::Test::HasFailure()) return;
    }
}

TEST(Softmax, EveryPairOfTypes) {
  for (const DType in : kTypes)
    for (const DType out : kTypes) {
      check({make_problem({3, 37}, 1, in, out)});
      check({make_problem({2, 5000}, 1, in, out)});
      check({make_problem({21, 19}, 0, in, out)});
    }
}

TEST(Softmax, LengthsAroundVectorsAndChunks) {
  for (const int64_t length : {0,  1,  2,   3,    15,   16,   17,   31,   32,   33,  63,
                               64, 65, 127, 1000, 4095, 4096, 4097, 8191, 8192, 8193}) {
    check({make_problem({length < 100 ? 70 : 3, length}, 1)});
    check({make_problem({3, length}, 1, DType::kBF16)});
    check({make_problem({length, 35}, 0)});
    check({make_problem({length, 3}, 0, DType::kF64)});
  }
  check({make_problem({0, 5}, 1)});
  check({make_problem({5, 0, 3}, 1)});
  check({make_problem({7}, 0)});
}

TEST(Softmax, LongRows) {
  Case test;
  const auto check_all = [&](SoftmaxProblem problem) {
    test.problem = problem;
    test.problem.log = problem.rank == 2 && problem.shape[0] == 2;
    test.problem.visible = !test.problem.log;
    check_forward(test);
    check_backward(test);
  };
  check_all(make_problem({2, 70000}, 1));                // split over tasks
  check_all(make_problem({1, 70000}, 1, DType::kF16));   // the same, masked
  check_all(make_problem({9, 70000}, 1, DType::kF16));   // not split
  check_all(make_problem({70001, 3}, 0));                // split, across memory
  check_all(make_problem({66000, 9}, 0, DType::kBF16));  // not split, across memory
}

TEST(Softmax, EveryDimension) {
  for (int32_t dim = 0; dim < 4; ++dim)
    for (const DType type : kTypes) check({make_problem({5, 4, 18, 7}, dim, type)});
  check({make_problem({2, 2, 2, 2, 2, 2, 2, 3}, 4)});
  check({make_problem({1, 1, 6, 1}, 2)});
  check({make_problem({3, 600, 130}, 1)});
}

TEST(Softmax, Strides) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF64}) {
    const SoftmaxProblem rows = make_problem({4, 3, 45}, 2, type);
    check({rows, {150, 48, 1}, {141, 47, 1}});     // padded
    check({rows, {-150, -48, -1}, {141, 47, 1}});  // backwards
    check({rows, {135, 45, 1}, {-135, -45, -1}});  // written backwards
    check({rows, {0, 0, 1}, {}});                  // one row for all
    check({rows, {3, 1, 0}, {}});                  // one element for a row
    check({rows, {270, 90, 2}, {405, 135, 3}});    // every second, every third
    check({rows, {1, 4, 12}, {45, 180, 1}});       // column-major, transposed
    check({make_problem({3, 45, 33}, 1, type), {45 * 40, 40, 1}, {1, 99, 3}});
    check({make_problem({3, 45, 33}, 1, type), {45 * 40, 40, -1}, {}});
  }
}

TEST(Softmax, AnyAlignment) {
  for (int64_t shift = 1; shift < 16; shift += 3) {
    Case test{make_problem({5, 67}, 1)};
    test.shift = shift;
    check(test);
    test.problem = make_problem({37, 21}, 0, DType::kF16, DType::kBF16);
    check(test);
  }
}

TEST(Softmax, MasksThatBroadcast) {
  const SoftmaxProblem rows = make_problem({4, 3, 45}, 2);
  const SoftmaxProblem columns = make_problem({4, 45, 30}, 1);
  for (const Shape& strides : {Shape{0, 0, 1}, Shape{0, 1, 0}, Shape{1, 0, 0}, Shape{45, 0, 1},
                               Shape{0, 45, 1}, Shape{0, 0, 0}, Shape{1, 4, 12}, Shape{0, 0, -1}}) {
    check({.problem = rows, .mask_strides = strides});
    check({.problem = columns, .mask_strides = strides});
  }
}

TEST(Softmax, ScalesAndOffsets) {
  for (const double scale : {-1.0, 0.125, -3.5, 30.0, 1e-3}) {
    Case test{make_problem({6, 77}, 1)};
    test.problem.scale = scale;
    check(test);
    test.problem = make_problem({77, 6}, 0, DType::kF64);
    test.problem.scale = scale;
    check(test);
    test.problem = make_problem({3, 4500}, 1, DType::kBF16);
    test.problem.scale = scale;
    check(test);
  }
  for (const double centre : {1e7, -1e7})
    for (const int64_t length : {64, 5000})
      check({.problem = make_problem({3, length}, 1), .centre = centre});
  // scale * x is out of range, the differences are not.
  Case test{make_problem({2, 40}, 1)};
  test.centre = 3e38;
  test.spread = 1e30;
  check(test);
}

TEST(Softmax, InPlace) {
  for (const DType type : kTypes)
    for (const int64_t length : {40, 5000}) {
      Case test{make_problem({3, length}, 1, type)};
      test.in_place = true;
      check(test);
    }
  Case test{make_problem({150, 37}, 0)};
  test.in_place = true;
  check(test);
  test.problem = make_problem({3, 70000}, 1);
  check(test);
  test.problem = make_problem({4, 45}, 1);
  test.read_strides = test.write_strides = {-48, -1};
  check(test);
}

// What a row may hold that is not a number, and rows of which nothing is visible.
TEST(Softmax, NotFinite) {
  const auto rows = [](Array& x, Array& visible, int64_t length) {
    const auto set = [&](int64_t row, int64_t j, double value, bool seen) {
      x.set(row * length + j, value);
      visible.set(row * length + j, seen ? 1 : 0);
    };
    for (int64_t j = 0; j < length; ++j) {
      set(0, j, j % 3 == 0 ? kNaN : x.get(j), j % 3 != 0);  // NaN masked
      set(1, j, j % 3 == 0 ? kInfinity : x.get(length + j), j % 3 != 0);
      set(2, j, x.get(2 * length + j), false);  // nothing visible
      set(3, j, kNaN, false);
      set(4, j, -kInfinity, true);
      set(5, j, -kInfinity, j % 2 == 0);
    }
    set(6, length / 2, kNaN, true);
    set(7, length / 2, kInfinity, true);
    set(8, length / 2, kInfinity, true);
    set(8, length - 1, kNaN, true);
    set(9, length / 3, -kInfinity, true);
    for (int64_t j = 0; j < length; ++j) set(10, j, j == 0 ? kInfinity : -kInfinity, true);
    set(11, 0, kInfinity, true);
    set(11, 1, kInfinity, true);
  };
  for (const int64_t length : {21, 64, 5000})
    for (const DType type : kTypes)
      for (const bool nan : {false, true})
        for (const double scale : {1.0, -2.0}) {
          Case test{make_problem({12, length}, 1, type)};
          test.problem.empty_rows_nan = nan;
          test.problem.scale = scale;
          test.adjust = [&](Array& x, Array& visible) { rows(x, visible, length); };
          check(test);
          if (length > 1000) continue;
          // The same rows across memory.
          test.read_strides = {1, 12};
          test.write_strides = {1, 12};
          test.mask_strides = {1, 12};
          check(test);
        }
}

TEST(Softmax, EmptyRowsByHand) {
  for (const bool log : {false, true})
    for (const bool nan : {false, true}) {
      SoftmaxProblem problem = make_problem({1, 20}, 1);
      problem.log = log;
      problem.visible = true;
      problem.empty_rows_nan = nan;
      Array input({1, 20}, DType::kF32), output({1, 20}, DType::kF32), lse({1, 1}, DType::kF32);
      Array visible({1, 20}, DType::kBool), grad({1, 20}, DType::kF32);
      input.randomise_normal(1, 0, 2);
      for (int64_t i = 0; i < 20; ++i) visible.set(i, 0);
      forward(problem, {input.tensor, output.tensor, visible.tensor, lse.tensor});
      EXPECT_EQ(lse.get(0), -kInfinity);
      for (int64_t i = 0; i < 20; ++i) {
        const double y = output.get(i);
        EXPECT_TRUE(nan ? std::isnan(y) : y == (log ? -kInfinity : 0.0)) << y;
      }
      backward(problem, {input.tensor, output.tensor, visible.tensor, grad.tensor});
      for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(grad.get(i), 0.0);
    }
}

// log(softmax) of a row with a large offset: exact differences, so no accuracy is lost.
TEST(Softmax, LogSoftmaxFarFromZero) {
  for (const double offset : {1e7, -1e7}) {
    SoftmaxProblem problem = make_problem({1, 3}, 1);
    problem.log = true;
    Array input({1, 3}, DType::kF32), output({1, 3}, DType::kF32);
    for (int64_t i = 0; i < 3; ++i) input.set(i, offset + static_cast<double>(i));
    forward(problem, {input.tensor, output.tensor, {}, {}});
    const double lse = 2 + std::log(1 + std::exp(-1.0) + std::exp(-2.0));
    for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(output.get(i), static_cast<double>(i) - lse, 4e-7);
  }
}

// A row's bits depend on nothing but the row: not on threads, other rows, or the way it lies.
struct RowsAndLength {
  int64_t rows, length;
};
void check_bits(RowsAndLength size) {
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const bool log : {false, true}) {
      if (size.rows == 40 && (log || type == DType::kBF16)) continue;
      const Shape shape{size.rows, size.length}, across{1, size.rows};
      SoftmaxProblem problem = make_problem(shape, 1, type);
      problem.log = log;
      problem.visible = size.rows == 70;
      Array input(shape, type), visible(shape, DType::kBool), grad(shape, type);
      input.randomise_normal(1, 0, 2);
      visible.randomise(2);
      grad.randomise_normal(3, 0, 2);
      const Tensor mask = problem.visible ? visible.tensor : Tensor();
      Array output(shape, type), dx(shape, type), again(shape, type), dx_again(shape, type);
      forward(problem, {input.tensor, output.tensor, mask, {}}, 1);
      backward(problem, {grad.tensor, output.tensor, mask, dx.tensor}, 1);
      forward(problem, {input.tensor, again.tensor, mask, {}}, 3);
      backward(problem, {grad.tensor, output.tensor, mask, dx_again.tensor}, 3);
      expect_same_bits(output, again);
      expect_same_bits(dx, dx_again);

      Array turned(shape, type, across), turned_out(shape, type, across);
      Array turned_dx(shape, type, across);
      turned.copy_from(input);
      forward(problem, {turned.tensor, turned_out.tensor, mask, {}});
      expect_same_bits(output, turned_out);
      backward(problem, {grad.tensor, turned_out.tensor, mask, turned_dx.tensor});
      expect_same_bits(dx, turned_dx);

      // The third row alone.
      const auto third = [&](const Array& array) {
        Tensor one = array.tensor;
        one.data = one.as<std::byte>() + array.offset(2 * size.length) * size_of(one.dtype);
        one.shape[0] = 1;
        return one;
      };
      problem.shape[0] = 1;
      Array alone({1, size.length}, type);
      const Tensor alone_mask = problem.visible ? third(visible) : Tensor();
      forward(problem, {third(input), alone.tensor, alone_mask, {}});
      for (int64_t j = 0; j < size.length; ++j)
        ASSERT_EQ(alone.get(j), output.get(2 * size.length + j));
      backward(problem, {third(grad), alone.tensor, alone_mask, alone.tensor});
    }
}
TEST(Softmax, SameBitsForAnyThreadsRowsAndLayout) {
  for (const RowsAndLength size : {RowsAndLength{300, 65}, {70, 4100}, {5, 70001}})
    check_bits(size);
}
TEST(SoftmaxSweep, SameBitsOfManyLongRows) { check_bits({40, 270000}); }

// Outputs too large for the caches are written past them; the bits are those of a small problem.
TEST(Softmax, StreamedOutput) {
  struct Size {
    int64_t rows, length;
    DType type;
  };
  for (const Size size : {Size{33000, 65, DType::kF32}, Size{4210000, 1, DType::kBF16},
                          Size{531, 8190, DType::kF16}, Size{34000, 64, DType::kF32}})
    for (const bool log : {false, true}) {
      const Shape shape{size.rows, size.length};
      SoftmaxProblem problem = make_problem(shape, 1, size.type);
      problem.log = log;
      Array input(shape, size.type), output(shape, size.type, {}, 3), dx(shape, size.type, {}, 1);
      ASSERT_GT(input.count() * size_of(size.type), int64_t{8} << 20);
      uint32_t state = 1;
      for (int64_t i = 0; i < input.count(); ++i) {
        state = state * 1664525u + 1013904223u;
        cpu::reference::store(input.tensor, i, static_cast<double>(state) * 0x1p-30);
      }
      forward(problem, {input.tensor, output.tensor, {}, {}});
      backward(problem, {input.tensor, output.tensor, {}, dx.tensor});

      const int64_t some = 40, first = size.rows - some;
      problem.shape[0] = some;
      const auto last_rows = [&](const Array& array) {
        Tensor part = array.tensor;
        part.data = part.as<std::byte>() + first * size.length * size_of(size.type);
        part.shape[0] = some;
        return part;
      };
      const auto expect_same = [&](const Array& part, const Array& whole) {
        const auto bytes = static_cast<size_t>(some * size.length * size_of(size.type));
        EXPECT_EQ(std::memcmp(part.tensor.data, last_rows(whole).data, bytes), 0);
      };
      Array part({some, size.length}, size.type), part_dx({some, size.length}, size.type);
      forward(problem, {last_rows(input), part.tensor, {}, {}});
      expect_same(part, output);
      backward(problem, {last_rows(input), part.tensor, {}, part_dx.tensor});
      expect_same(part_dx, dx);
    }
}

// Scales and elements near the largest and the smallest number of float32.
TEST(Softmax, EndsOfTheRange) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const struct {
    double scale;
    std::vector<double> elements;
  } cases[] = {{3e38, {0.5, -1, 2, 2, 1e-3}},
               {3e38, {1e-38, 2e-38, 0, -1e-38, 1.1e-38, -0.25}},
               {-3e38, {1e-38, 2e-38, 0, -1e-38, -1.1e-38, 7}},
               {3e38, {3e38, 3e38, 1, -3e38}},
               {2.4e38, {1 + 0x1p-23, 1, 0.5}},
               {1e-45, {kMost, -kMost, 0, 1}},
               {1e-45, {-kMost, -kMost, 0, 1}},
               {1e-38, {kMost, -kMost, kMost / 3, 1e37}},
               {-2e-38, {kMost, -kMost, kMost / 3, 1e37}},
               {0.3, {kMost, -kMost, 1}},
               {1, {kMost, -kMost, 1}}};
  for (const auto& each : cases)
    for (const bool log : {false, true})
      for (const int64_t length : {7, 40, 30000}) {
        SCOPED_TRACE("scale " + std::to_string(each.scale) + " first " +
                     std::to_string(each.elements[0]));
        Case test{make_problem({2, length}, 1)};
        test.problem.log = log;
        test.problem.scale = each.scale;
        test.adjust = [&](Array& input, Array&) {
          for (int64_t i = 0; i < input.count(); ++i)
            input.set(i, each.elements[static_cast<size_t>(i) % each.elements.size()]);
        };
        check_forward(test);
      }
}

// Rows without elements and outputs without rows: there may be more of them than loops could count.
TEST(Softmax, NothingToWriteTakesNoTime) {
  constexpr int64_t kMany = int64_t{1} << 42;
  SoftmaxProblem problem = make_problem({kMany, 0}, 1);
  Tensor empty;
  empty.dtype = DType::kF32;
  empty.rank = 2;
  empty.shape[0] = kMany;
  const auto pool = cpu::make_thread_pool(2);
  forward(problem, {empty, empty, {}, {}});
  backward(problem, {empty, empty, {}, empty});
  cpu::reference::softmax_forward(problem, {empty, empty, {}, {}}, {*pool, nullptr});
  cpu::reference::softmax_backward(problem, {empty, empty, {}, empty}, {*pool, nullptr});
}

TEST(Softmax, Properties) {
  const SoftmaxProblem problem = make_problem({50, 300}, 1);
  Array input({50, 300}, DType::kF32), output({50, 300}, DType::kF32);
  Array shifted({50, 300}, DType::kF32), dx({50, 300}, DType::kF32);
  for (int64_t i = 0; i < input.count(); ++i)
    input.set(i, static_cast<double>(i * 7919 % 640) / 64);
  forward(problem, {input.tensor, output.tensor, {}, {}});
  // A shift without rounding changes nothing.
  for (int64_t i = 0; i < input.count(); ++i) shifted.set(i, input.get(i) + 1024);
  Array again({50, 300}, DType::kF32);
  forward(problem, {shifted.tensor, again.tensor, {}, {}});
  expect_same_bits(output, again);
  backward(problem, {input.tensor, output.tensor, {}, dx.tensor});
  for (int64_t row = 0; row < 50; ++row) {
    double sum = 0, gradients = 0;
    for (int64_t j = 0; j < 300; ++j) {
      sum += output.get(row * 300 + j);
      gradients += dx.get(row * 300 + j);
    }
    EXPECT_NEAR(sum, 1, 2e-6);
    EXPECT_NEAR(gradients, 0, 1e-5);
  }
}

}  // namespace
}  // namespace perseid::internal::softmax_tests
