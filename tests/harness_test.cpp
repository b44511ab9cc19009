// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The harness that everything else is checked with: problems survive their texts, data show every
// wrong write, and the tolerance rule tells a right result from a wrong one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/check.hpp"
#include "harness/fuzz.hpp"

namespace perseid::harness {
namespace {

Problem problem_of(const char* text) { return from_json(nlohmann::json::parse(text)); }

// ---- Problems ---------------------------------------------------------------------------------

TEST(Problem, SurvivesJsonAndFlags) {
  for (uint64_t i = 0; i < 3000; ++i) {
    const Problem problem = random_problem({.seed = 5, .group = 1 + i % 9, .gpu = i % 2 == 0}, i);
    const std::string flags = to_flags(problem);
    const Problem again = from_json(nlohmann::json::parse(to_json(problem).dump()));
    EXPECT_EQ(flags, to_flags(again)) << i;
    const nlohmann::json complete = to_complete_json(problem);
    EXPECT_EQ(flags, to_flags(from_json(nlohmann::json::parse(complete.dump())))) << i;
    const auto read = std::count_if(fields().begin(), fields().end(),
                                    [&](const Field& field) { return field.reads(problem.op); });
    EXPECT_EQ(complete.size(), static_cast<size_t>(read) + 1) << i;

    Problem from_flags;
    from_flags.op = problem.op;
    for (const Field& field : fields()) {
      const std::string begin = std::string(" --") + field.name;
      const size_t at = flags.find(begin + (field.kind == FieldKind::kFlag ? "" : "="));
      if (at == std::string::npos || !field.reads(problem.op)) continue;
      const size_t value = at + begin.size() + 1;
      const std::string text = field.kind == FieldKind::kFlag
                                   ? "true"
                                   : flags.substr(value, flags.find(' ', value) - value);
      set_field(from_flags, field.name, text);
    }
    EXPECT_EQ(flags, to_flags(from_flags)) << i;
  }
}

TEST(Problem, RandomOnesRepeatAndDiffer) {
  std::set<std::string> seen;
  for (uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(to_flags(random_problem({.group = 16}, i)),
              to_flags(random_problem({.group = 16}, i)));
    seen.insert(to_flags(random_problem({.group = 16}, i)));
  }
  EXPECT_GT(seen.size(), 490u);
}

TEST(Problem, RandomOnesOfAGroupShareWhatKernelsAreCompiledFor) {
  const Draw draw{.seed = 9, .group = 16, .gpu = true};
  for (uint64_t i = 0; i < 800; ++i) {
    const Problem first = random_problem(draw, i / 16 * 16), problem = random_problem(draw, i);
    EXPECT_EQ(problem.op, first.op);
    if (problem.expect.value != 0 || first.expect.value != 0) continue;
    EXPECT_EQ(problem.dtype.value, first.dtype.value) << i;
    EXPECT_EQ(problem.head_dim, first.head_dim) << i;
    EXPECT_EQ(problem.value_dim, first.value_dim) << i;
    EXPECT_EQ(problem.causal.value, first.causal.value) << i;
    EXPECT_EQ(problem.visible.empty(), first.visible.empty()) << i;
    EXPECT_EQ(problem.deterministic, first.deterministic) << i;
    EXPECT_EQ(problem.log, first.log) << i;
  }
}

TEST(Problem, RandomOnesForGpusHaveAllTypesStridesAndDims) {
  std::map<uint32_t, int> types;
  int all = 0, any_strides = 0, odd_dims = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const Problem problem = random_problem({.seed = 3, .gpu = true}, i);
    if (problem.op != Op::kAttention || problem.expect.value != 0) continue;
    ++all;
    ++types[problem.dtype.value];
    any_strides += problem.strides.value == static_cast<uint32_t>(Strides::kMixed);
    odd_dims += problem.head_dim % 8 != 0;
  }
  EXPECT_GT(all, 1000);
  EXPECT_EQ(types.size(), 4u);
  for (const auto& [type, count] : types) EXPECT_GT(count, all / 5) << type;
  EXPECT_GT(any_strides, all / 5);
  EXPECT_GT(odd_dims, all / 5);
}

std::string complaint_about(const char* text) {
  try {
    problem_of(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), PERSEID_INVALID_ARGUMENT);
    return error.what();
  }
  return "";
}

TEST(Problem, WrongTextsAreNamed) {
  EXPECT_NE(complaint_about(R"({"op":"matmul","m":"x"})").find("m: expected a whole number"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"({"op":"matmul","m":1.5})").find("m: expected a whole number"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"({"op":"matmul","q_len":5})").find("matmul has no 'q-len'"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"({"op":"attention","causal":"left"})").find("top-left"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"({"op":"conv"})").find("there is no operation 'conv'"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"({"op":"softmax","log":1})").find("expected true or false"),
            std::string::npos);
  EXPECT_NE(complaint_about(R"([1])").find("JSON object"), std::string::npos);
}

TEST(Problem, SummariesTellProblemsApart) {
  Problem product;
  product.op = Op::kMatmul;
  product.m = 2, product.n = 3, product.k = 4;
  EXPECT_EQ(summary(product), "2x3x4");
  product.beta = 1;
  EXPECT_EQ(summary(product), "2x3x4 +c");
  EXPECT_EQ(legend({product}), "matmul is m x n x k; +c adds to c.");
  Problem rows;
  rows.op = Op::kSoftmax;
  rows.shape = {2, 3};
  rows.log = rows.in_place = true;
  EXPECT_EQ(summary(rows), "2x3 log in place");
}

TEST(Problem, BuiltInListsAreThere) {
  EXPECT_GT(built_in_problems("check").size(), 30u);
  EXPECT_GT(built_in_problems("figures").size(), 15u);
}

// ---- Elements and arrays ----------------------------------------------------------------------

TEST(Element, EverySixteenBitPatternComesBack) {
  for (DType dtype : {f16, bf16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto pattern = static_cast<uint16_t>(bits);
      const double value = load(dtype, &pattern);
      uint16_t again = 0;
      store(dtype, &again, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(load(dtype, &again)));
      } else {
        EXPECT_EQ(pattern, again);
        EXPECT_EQ(round_to(dtype, value), value);
      }
    }
  }
}

TEST(Element, RoundsToNearestEven) {
  EXPECT_EQ(round_to(bf16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(bf16, 1 + 0x3p-8), 1 + 0x1p-6);
  EXPECT_EQ(round_to(f16, 1 + 0x1p-11), 1);
  EXPECT_EQ(round_to(f16, 65519), 65504);
  EXPECT_TRUE(std::isinf(round_to(f16, 65520)));
  EXPECT_EQ(round_to(f16, 0x1.8p-24), 0x1p-23);
  EXPECT_EQ(round_to(f16, 0x1p-25), 0);
  EXPECT_TRUE(std::isinf(round_to(bf16, 3.4e38)));
}

TEST(Array, EveryStrideHoldsItsValues) {
  for (uint32_t kind = 0; kind < static_cast<uint32_t>(Strides::kRepeated); ++kind) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Array array(bf16, {3, 1, 5, 2}, static_cast<Strides>(kind), 1, seed);
      std::vector<double> values(30);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) - 9;
      assign(array.tensor(), values);
      EXPECT_EQ(array.values(), values) << kind;
      EXPECT_FALSE(array.damaged()) << kind;
    }
  }
}

TEST(Array, BeginsUnwritten) {
  for (double value : Array(f32, {4, 4}, Strides::kSpread).values()) EXPECT_TRUE(std::isnan(value));
}

TEST(Array, ShowsWritesNextToItsElements) {
  Array dense(f32, {4, 4});
  auto* end = dense.tensor().data<float>() + 16;
  const float before = *end;
  *end = 1;
  EXPECT_TRUE(dense.damaged());
  *end = before;
  EXPECT_FALSE(dense.damaged());
  dense.tensor().data<float>()[-1] = 1;
  EXPECT_TRUE(dense.damaged());

  Array spread(f32, {4, 4}, Strides::kSpread);
  spread.tensor().data<float>()[1] = 1;
  EXPECT_TRUE(spread.damaged());

  Array sealed(f32, {4});
  assign(sealed.tensor(), {1, 2, 3, 4});
  sealed.seal();
  EXPECT_FALSE(sealed.damaged());
  sealed.tensor().data<float>()[2] = 5;
  EXPECT_TRUE(sealed.damaged());
}

TEST(Operands, InputScaleMultiplies) {
  const Operands plain(problem_of(R"({"op":"matmul","dtype":"f64","m":9,"n":9,"k":9})"));
  const Operands scaled(
      problem_of(R"({"op":"matmul","dtype":"f64","m":9,"n":9,"k":9,"input_scale":10})"));
  std::vector<double> expected = plain.find("a")->values();
  for (double& value : expected) value *= 10;
  EXPECT_EQ(scaled.find("a")->values(), expected);
}

TEST(Operands, SpecialValuesAreDrawn) {
  int64_t nan = 0, positive = 0, negative = 0, largest = 0, subnormal = 0, finite_tensors = 0;
  for (int seed = 0; seed < 40; ++seed) {
    Problem problem =
        problem_of(R"({"op":"softmax","dtype":"f32","shape":[30,30],"values":"special"})");
    problem.data_seed = static_cast<uint64_t>(seed);
    const int64_t before = nan + positive + negative;
    for (const double value : Operands(problem).find("input")->values()) {
      nan += std::isnan(value);
      positive += std::isinf(value) && value > 0;
      negative += std::isinf(value) && value < 0;
      largest += std::fabs(value) == std::numeric_limits<float>::max();
      subnormal += value != 0 && std::fabs(value) < 0x1p-126;
    }
    finite_tensors += nan + positive + negative == before;
  }
  for (const int64_t count : {nan, positive, negative, finite_tensors}) EXPECT_GT(count, 2);
  for (const int64_t count : {largest, subnormal}) EXPECT_GT(count, 100);
}

TEST(Visibility, CausalAndWindow) {
  Problem problem = problem_of(
      R"({"op":"attention","q_len":2,"kv_len":4,"causal":"bottom-right","window":[1,-1]})");
  const Span span = span_of(problem, 0);
  std::string seen;
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 4; ++j) seen += sees(problem, span, i, j) ? '1' : '0';
  EXPECT_EQ(seen, "01100011");
}

// ---- Naive formulas against values by hand ----------------------------------------------------

TEST(Naive, SoftmaxByHand) {
  const Problem problem = problem_of(R"({"op":"softmax","dtype":"f64","shape":[1,3],"lse":true})");
  const Operands operands(problem);
  Operands inputs(exact_problem(problem), operands);
  assign(inputs.find("input")->tensor(), {std::log(1.0), std::log(2.0), std::log(5.0)});
  const Estimates results = naive(problem, inputs, {});
  const std::vector<double>& y = results.find("output")->second.value;
  EXPECT_NEAR(y[0], 0.125, 1e-15);
  EXPECT_NEAR(y[1], 0.25, 1e-15);
  EXPECT_NEAR(y[2], 0.625, 1e-15);
  EXPECT_NEAR(results.find("lse")->second.value[0], std::log(8.0), 1e-7);
}

TEST(Naive, AgreesWithTheReference) {
  for (const char* text :
       {R"({"op":"softmax","dtype":"f64","shape":[5,77],"log":true,"backward":true})",
        R"({"op":"matmul","dtype":"f64","m":9,"n":11,"k":33,"transpose_a":true,"bias":[11]})",
        R"({"op":"attention","dtype":"f64","batch":2,"heads":4,"kv_heads":2,"q_len":9,"kv_len":13,
            "head_dim":8,"value_dim":5,"bias":[1,4,9,1],"visible":[2,1,9,13],"backward":true,
            "grad_lse":true,"causal":"bottom-right","window":[5,0]})",
        R"({"op":"attention","dtype":"f64","batch":3,"heads":2,"head_dim":6,"layout":"bhsd",
            "cu_seqlens_q":[0,4,4,9],"cu_seqlens_kv":[0,7,9,9],"backward":true})"}) {
    const Problem problem = problem_of(text);
    const Context context = Context::cpu(1);
    const Operands operands(problem);
    Operands exact(exact_problem(problem), operands);
    const Outcome outcome = run_reference(context, problem, exact);
    ASSERT_TRUE(outcome.ok()) << outcome.sentence;
    for (const auto& [name, estimate] : naive(problem, exact, {})) {
      if (exact.find(name) == nullptr) continue;
      EXPECT_LT(largest_error(estimate.value, exact.find(name)->values(), f64), 1e-13)
          << name << " of " << text;
    }
  }
}

TEST(Naive, BackwardReadsTheOutThatItIsGiven) {
  const Problem problem = problem_of(
      R"({"op":"attention","dtype":"f64","q_len":3,"kv_len":2,"head_dim":4,"scale":1,
          "gradients":"query","layout":"bhsd"})");
  const Operands operands(problem);
  const Operands inputs(exact_problem(problem), operands);
  const Estimates own = naive(problem, inputs, {});
  std::vector<double> out = own.find("out")->second.value;
  EXPECT_EQ(naive(problem, inputs, {}, out).find("grad_query")->second.value,
            own.find("grad_query")->second.value);
  // With values e_0 and 2 e_0, out of row 1 says its probabilities: p0 + p1 = 1, p0 + 2 p1 = out.
  std::vector<double> value(8, 0);
  value[0] = 1;
  value[4] = 2;
  assign(inputs.find("value")->tensor(), value);
  const std::vector<double> weighted = naive(problem, inputs, {}).find("out")->second.value;
  const double second = weighted[4] - 1, first = 1 - second, shift = 0.25;
  out = weighted;
  out[4] += shift;
  const std::vector<double> before =
      naive(problem, inputs, {}, weighted).find("grad_query")->second.value;
  const std::vector<double> after =
      naive(problem, inputs, {}, out).find("grad_query")->second.value;
  const std::vector<double> key = inputs.find("key")->values();
  const double delta = shift * inputs.find("grad_out")->values()[4];
  for (size_t d = 0; d < 12; ++d) {
    const double moved = d / 4 == 1 ? delta * (first * key[d - 4] + second * key[d]) : 0;
    EXPECT_NEAR(after[d], before[d] - moved, 1e-13) << d;
  }
}

// ---- The tolerance rule -----------------------------------------------------------------------

TEST(Tolerance, CatchesAnInjectedError) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    Problem problem = problem_of(
        R"({"op":"attention","batch":1,"heads":2,"q_len":40,"kv_len":70,"head_dim":32,
            "backward":true})");
    set_field(problem, "dtype", dtype);
    const Context context = Context::cpu(1);
    const Operands operands(problem);
    Operands exact(exact_problem(problem), operands);
    ASSERT_TRUE(run_reference(context, problem, exact).ok());
    for (const auto& [name, estimate] : naive(problem, exact, {})) {
      if (exact.find(name) == nullptr) continue;
      const std::vector<double> reference = exact.find(name)->values();
      const double limit = error_limit(estimate, reference, problem.type(), problem.type());
      EXPECT_LE(largest_error(estimate.value, reference, problem.type()), limit);
      // One wrong element, by as much as a lost key, a wrong scale or half a lost digit would be.
      std::vector<double> wrong = estimate.value;
      wrong[wrong.size() / 3] += problem.type() == f64 ? 1e-11 : problem.type() == f32 ? 1e-3 : 0.2;
      EXPECT_GT(largest_error(wrong, reference, problem.type()), limit) << dtype << " " << name;
      wrong = estimate.value;
      wrong[0] = std::nan("");
      EXPECT_TRUE(std::isinf(largest_error(wrong, reference, problem.type())));
    }
  }
}

// One row of this problem has two keys that matter, and its out, rounded as well as may be, puts
// sum(out grad_out) off by four times as much as the out that the naive forward rounds.
TEST(Tolerance, OfGradientsIsForTheOutThatBackwardRead) {
  const Problem problem = problem_of(
      R"({"op":"attention","dtype":"bf16","scale":1,"backward":true,"batch":3,"heads":3,
          "kv_heads":1,"q_len":39,"head_dim":31,"layout":"bhsd","cu_seqlens_q":[0,38,42,54],
          "cu_seqlens_kv":[0,3,5,17],"grad_lse":true,"data_seed":78132413353610,
          "input_scale":10})");
  const Operands operands(problem);
  Operands exact(exact_problem(problem), operands);
  ASSERT_TRUE(run_reference(Context::cpu(1), problem, exact).ok());
  std::vector<double> out = exact.find("out")->values();
  for (double& each : out) each = round_to(bf16, each);
  const std::vector<double> reference = exact.find("grad_query")->values();
  // Without any error but that of out and of the result.
  std::vector<double> got =
      naive(exact_problem(problem), exact, {}, out).find("grad_query")->second.value;
  for (double& each : got) each = round_to(bf16, each);
  const double error = largest_error(got, reference, bf16);
  const auto limit = [&](const Estimates& estimates) {
    return error_limit(estimates.find("grad_query")->second, reference, bf16, bf16);
  };
  EXPECT_GT(error, limit(naive(problem, exact, {})));
  EXPECT_LE(error, limit(naive(problem, exact, {}, out)));
  // And by a kernel.
  const Context one = Context::cpu(1), three = Context::cpu(3);
  for (const CheckResult& result : Checker(one, three).check_all(problem))
    EXPECT_TRUE(result.passed) << result.implementation << ": " << result.complaint;
}

// Kernels without rounding errors that lose the last key, or weigh the first keys by a maximum that
// later ones exceed by 1.
TEST(Tolerance, CatchesALostKeyAndAStaleMaximum) {
  for (const char* scale : {"0.1", "1", "3", "10"}) {
    Problem problem = problem_of(
        R"({"op":"attention","dtype":"bf16","heads":8,"q_len":80,"kv_len":70,"head_dim":32,
            "backward":true,"layout":"bhsd"})");
    set_field(problem, "input-scale", scale);
    const Operands operands(problem);
    Operands exact(exact_problem(problem), operands);
    ASSERT_TRUE(run_reference(Context::cpu(1), problem, exact).ok());
    std::vector<double> out = exact.find("out")->values();
    for (double& each : out) each = round_to(bf16, each);
    const Estimates estimates = naive(problem, exact, {}, out);

    Problem faulty = exact_problem(problem);
    faulty.visible = {1, 1, 1, 70};
    faulty.bias = {1, 1, 1, 70};
    std::vector<double> visible(70, 1), bias(70, 0);
    const auto results = [&] {
      std::map<std::string, std::vector<double>> inputs = {{"visible", visible}, {"bias", bias}};
      for (const char* name : {"query", "key", "value", "grad_out"})
        inputs[name] = exact.find(name)->values();
      return naive(faulty, Operands(faulty, inputs), {}, out);
    };
    const auto is_caught = [&](const Estimates& got, const char* name) {
      const std::vector<double> reference = exact.find(name)->values();
      return largest_error(got.find(name)->second.value, reference, bf16) >
             error_limit(estimates.find(name)->second, reference, bf16, bf16);
    };
    const Estimates right = results();
    visible.back() = 0;
    const Estimates lost = results();
    visible.back() = 1;
    std::fill_n(bias.begin(), 32, 1);
    const Estimates stale = results();
    for (const char* name : {"out", "grad_query", "grad_key", "grad_value"}) {
      EXPECT_FALSE(is_caught(right, name)) << name << " times " << scale;
      EXPECT_TRUE(is_caught(lost, name)) << name << " times " << scale;
      EXPECT_TRUE(is_caught(stale, name)) << name << " times " << scale;
    }
  }
}

TEST(Tolerance, InfinitiesMustAgree) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(largest_error({-infinity, std::nan("")}, {-infinity, std::nan("")}, f32), 0);
  EXPECT_EQ(largest_error({infinity}, {70000}, f16), 0);
  EXPECT_TRUE(std::isinf(largest_error({infinity}, {60000}, f16)));
  EXPECT_TRUE(std::isinf(largest_error({infinity}, {-infinity}, f32)));
  EXPECT_TRUE(std::isinf(largest_error({0}, {std::nan("")}, f32)));
}

// ---- The checker ------------------------------------------------------------------------------

class CheckerTest : public testing::Test {
 protected:
  const Context one_ = Context::cpu(1);
  const Context three_ = Context::cpu(3);
  const Checker checker_{one_, three_};
};

TEST_F(CheckerTest, BuiltInListPasses) {
  for (const Problem& problem : built_in_problems("check")) {
    for (const CheckResult& result : checker_.check_all(problem))
      EXPECT_TRUE(result.passed) << to_flags(problem) << "\n"
                                 << result.implementation << ": " << result.complaint;
  }
}

TEST_F(CheckerTest, RandomProblemsEndRightOrWithASentence) {
  for (uint64_t i = 0; i < 1500; ++i) {
    const Problem problem = random_problem({.seed = 2026}, i);
    const CheckResult result = checker_.check(problem);
    EXPECT_TRUE(result.passed) << i << ": " << to_flags(problem) << "\n" << result.complaint;
  }
}

TEST_F(CheckerTest, LaunchesOfOnePlanAreComparedWithEachOther) {
  const Problem problem = problem_of(
      R"({"op":"attention","heads":2,"q_len":9,"kv_len":20,"head_dim":8,"backward":true,
          "launches":3})");
  const CheckResult result = checker_.check(problem);
  EXPECT_TRUE(result.passed) << result.complaint;
  EXPECT_EQ(result.outputs.size(), 5u);
}

TEST_F(CheckerTest, WorkspacesThatShareMemoryAreRefused) {
  Problem problem = problem_of(
      R"({"op":"attention","heads":2,"q_len":9,"kv_len":20,"head_dim":8,"impl":"cpu:tiled",
          "backward":true,"expect":"refused"})");
  for (const char* tensor : {"query", "out", "grad_key"}) {
    problem.fault = std::string("workspace-overlap:") + tensor;
    const CheckResult result = checker_.check(problem);
    EXPECT_TRUE(result.passed) << result.complaint;
    EXPECT_EQ(result.outcome.status, PERSEID_INVALID_ARGUMENT);
  }
  // A plan without a workspace has nothing wrong.
  const CheckResult none = checker_.check(problem_of(
      R"({"op":"softmax","shape":[3,5],"fault":"workspace-overlap:input","expect":"refused"})"));
  EXPECT_TRUE(none.passed) << none.complaint;
}

TEST_F(CheckerTest, AnExpectationThatFailsIsReported) {
  Problem problem = problem_of(R"({"op":"matmul","m":3,"n":3,"k":3,"expect":"refused"})");
  EXPECT_FALSE(checker_.check(problem).passed);
  problem.expect.value = 0;
  problem.m = -1;
  const CheckResult result = checker_.check(problem);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.outcome.status, PERSEID_INVALID_ARGUMENT);
}

TEST_F(CheckerTest, HugeProblemsArePlannedOnly) {
  const CheckResult result =
      checker_.check(problem_of(R"({"op":"matmul","m":1000000,"n":1000000,"k":1000000})"));
  EXPECT_TRUE(result.passed) << result.complaint;
  EXPECT_NE(result.note, "");
}

}  // namespace
}  // namespace perseid::harness
