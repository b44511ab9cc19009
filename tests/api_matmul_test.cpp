// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of 8-bit types, its scales and its epilogue through the C ABI: what is refused, with which
// sentence, and small products that can be checked by hand.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "api_test_tools.hpp"
#include "perseid/perseid.hpp"

namespace {

using perseid::DType;

constexpr uint8_t kOne = 0x38, kTwo = 0x40, kThree = 0x44;  // of e4m3; of e5m2 0x38 is 0.5

perseid_matmul_desc float8_desc(int64_t m, int64_t n, int64_t k) {
  auto desc = sized<perseid_matmul_desc>();
  desc.dtype = PERSEID_F8E4M3;
  desc.m = m;
  desc.n = n;
  desc.k = k;
  return desc;
}

TEST(Float8Descriptor, RefusesWhatDoesNotGoTogether) {
  Context context(1);
  const auto refused = [&](const std::function<void(perseid_matmul_desc&)>& change,
                           const std::string& part) {
    auto desc = float8_desc(4, 4, 4);
    change(desc);
    perseid_plan_t plan = nullptr;
    EXPECT_FAILS(perseid_matmul_plan_create(context.get(), &desc, &plan), PERSEID_INVALID_ARGUMENT,
                 part);
    EXPECT_EQ(plan, nullptr);
  };
  refused([](auto& d) { d.dtype = 7; },
          "dtype is 7, expected PERSEID_F16 (1), PERSEID_BF16 (2), "
          "PERSEID_F32 (3), PERSEID_F64 (4), PERSEID_F8E4M3 (5) or "
          "PERSEID_F8E5M2 (6)");
  refused([](auto& d) { d.b_dtype = PERSEID_BF16; },
          "b_dtype is bf16 and dtype f8e4m3, expected the same; only the 8-bit types may be mixed");
  refused([](auto& d) { d.dtype = PERSEID_BF16, d.b_dtype = PERSEID_F8E5M2; },
          "b_dtype is f8e5m2 and dtype bf16");
  refused([](auto& d) { d.out_dtype = PERSEID_F64; }, "out_dtype is f64, expected f16");
  refused([](auto& d) { d.dtype = PERSEID_BF16, d.out_dtype = PERSEID_F8E4M3; },
          "out_dtype is f8e4m3, expected bf16");
  refused([](auto& d) { d.scaling = 4; }, "scaling is 4, expected PERSEID_SCALE_NONE (0)");
  refused([](auto& d) { d.dtype = PERSEID_F32, d.scaling = PERSEID_SCALE_ROW; },
          "scaling is 2, but a and b are f32; only 8-bit operands have scales");
  refused([](auto& d) { d.accumulation = 2; }, "accumulation is 2");
  refused([](auto& d) { d.precision = 2; },
          "precision is 2, expected PERSEID_PRECISION_DEFAULT (0) or PERSEID_PRECISION_TF32 (1)");
  refused([](auto& d) { d.dtype = PERSEID_F16, d.accumulation = PERSEID_ACCUMULATE_FAST; },
          "accumulation is PERSEID_ACCUMULATE_FAST, but a and b are f16");
  refused([](auto& d) { d.scale_result = 2; }, "scale_result is 2");
  refused([](auto& d) { d.scale_result = 1; }, "scale_result is 1, but c is f32");
  refused([](auto& d) { d.out_dtype = PERSEID_F8E5M2, d.beta = 0.5; },
          "beta is 0.5, expected 0 where c is f8e5m2");
  refused([](auto& d) { d.activation = 4; }, "activation is 4, expected PERSEID_ACTIVATION_NONE");
  refused([](auto& d) { d.amax = 2; }, "amax is 2, expected 0 (no) or 1 (yes)");
}

TEST(Float8Descriptor, IsForMatmulAlone) {
  Context context(1);
  perseid_plan_t plan = nullptr;
  auto softmax = SmallSoftmax::describe();
  softmax.dtype = PERSEID_F8E4M3;
  EXPECT_FAILS(perseid_softmax_plan_create(context.get(), &softmax, &plan),
               PERSEID_INVALID_ARGUMENT, "dtype is f8e4m3, which matmul alone takes, expected ");
  softmax = SmallSoftmax::describe();
  softmax.out_dtype = PERSEID_F8E5M2;
  EXPECT_FAILS(perseid_softmax_plan_create(context.get(), &softmax, &plan),
               PERSEID_INVALID_ARGUMENT, "out_dtype is f8e5m2, which matmul alone takes");
  auto attention = SmallAttention::describe(8);
  attention.dtype = PERSEID_F8E5M2;
  EXPECT_FAILS(perseid_attention_plan_create(context.get(), &attention, &plan),
               PERSEID_INVALID_ARGUMENT, "dtype is f8e5m2, which matmul alone takes");
}

// A product of 2 x 2, with tensors that a test may change.
struct Product {
  Context context{1};
  Plan plan;
  std::array<uint8_t, 4> a{kOne, kTwo, kThree, kOne}, b{kOne, kOne, kTwo, kThree};
  std::array<float, 4> c{}, scales_a{1, 1, 1, 1}, scales_b{1, 1, 1, 1};
  std::array<uint8_t, 4> narrow{};
  float scale = 1, most = -1;
  Tensor scale_a, scale_b, scale_result, amax, bias;
  DType type_of_b = perseid::f8e4m3;
  Tensor result{c.data(), {2, 2}};

  perseid_status make(const perseid_matmul_desc& desc) {
    return perseid_matmul_plan_create(context.get(), &desc, plan.out());
  }
  perseid_status run() {
    const Tensor left(a.data(), perseid::f8e4m3, {2, 2}), right(b.data(), type_of_b, {2, 2});
    size_t bytes = 0;
    EXPECT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
    std::vector<std::byte> workspace(bytes);
    auto args = sized<perseid_matmul_args>();
    args.a = left.dl();
    args.b = right.dl();
    args.bias = bias.dl();
    args.c = result.dl();
    args.scale_a = scale_a.dl();
    args.scale_b = scale_b.dl();
    args.scale_result = scale_result.dl();
    args.amax = amax.dl();
    return counted([&] {
      return perseid_matmul_execute(plan.get(), &args, workspace.data(), bytes, nullptr);
    });
  }
};

TEST(Float8Matmul, WritesFloat32WhereNothingElseIsAsked) {
  Product product;
  ASSERT_EQ(product.make(float8_desc(2, 2, 2)), PERSEID_OK) << perseid_last_error();
  ASSERT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(product.c, (std::array<float, 4>{5, 7, 5, 6}));
}

// 0x38 is 1 in e4m3 and 0.5 in e5m2; 0x40 is 2 in both; 0x44 is 3 and 4.
TEST(Float8Matmul, ReadsEachOperandInItsOwnType) {
  Product product;
  auto desc = float8_desc(2, 2, 2);
  desc.b_dtype = PERSEID_F8E5M2;
  product.type_of_b = perseid::f8e5m2;
  ASSERT_EQ(product.make(desc), PERSEID_OK) << perseid_last_error();
  ASSERT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(product.c, (std::array<float, 4>{4.5, 8.5, 3.5, 5.5}));
  product.type_of_b = perseid::f8e4m3;
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "b has dtype f8e4m3, expected f8e5m2");
}

TEST(Float8Matmul, TakesTheScaleOfEachRowAndColumn) {
  Product product;
  auto desc = float8_desc(2, 2, 2);
  desc.scaling = PERSEID_SCALE_ROW;
  ASSERT_EQ(product.make(desc), PERSEID_OK) << perseid_last_error();
  product.scales_a = {2, 4};
  product.scales_b = {1, 10};
  product.scale_a = Tensor(product.scales_a.data(), perseid::f32, {2});
  product.scale_b = Tensor(product.scales_b.data(), perseid::f32, {1, 2});
  ASSERT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(product.c, (std::array<float, 4>{10, 140, 20, 240}));

  product.scale_a = {};
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_a is NULL, expected a tensor [m 2]");
  product.scale_a = Tensor(product.scales_a.data(), perseid::f32, {3});
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_a has m 3, expected 2");
  product.scale_a = Tensor(product.scales_a.data(), perseid::i32, {2});
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_a has dtype int32, expected f32");
}

TEST(Float8Matmul, TakesOneScaleOfEachTensor) {
  Product product;
  auto desc = float8_desc(2, 2, 2);
  desc.scaling = PERSEID_SCALE_TENSOR;
  ASSERT_EQ(product.make(desc), PERSEID_OK) << perseid_last_error();
  product.scales_a[0] = 0.5;
  product.scales_b[0] = 3;
  product.scale_a = Tensor(product.scales_a.data(), perseid::f32, {1});
  product.scale_b = Tensor(product.scales_b.data(), perseid::f32, {1});
  ASSERT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(product.c, (std::array<float, 4>{7.5, 10.5, 7.5, 9}));
  product.scale_b = Tensor(product.scales_b.data(), perseid::f32, {2});
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_b has scales 2, expected 1");
}

TEST(Float8Matmul, TakesBlocksOfScales) {
  Product product;
  auto desc = float8_desc(2, 2, 2);
  desc.scaling = PERSEID_SCALE_BLOCK;
  ASSERT_EQ(product.make(desc), PERSEID_OK) << perseid_last_error();
  product.scales_a = {2, 4};
  product.scales_b = {10};
  product.scale_a = Tensor(product.scales_a.data(), perseid::f32, {2, 1});
  product.scale_b = Tensor(product.scales_b.data(), perseid::f32, {1, 1});
  ASSERT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(product.c, (std::array<float, 4>{100, 140, 200, 240}));
  product.scale_b = Tensor(product.scales_b.data(), perseid::f32, {1, 2});
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_b has ceil(n / 128) 2, expected 1");
}

TEST(Float8Matmul, ScalesItsResultAfterAmaxAndSaturates) {
  Product product;
  auto desc = float8_desc(2, 2, 2);
  desc.out_dtype = PERSEID_F8E4M3;
  desc.scale_result = desc.amax = 1;
  ASSERT_EQ(product.make(desc), PERSEID_OK) << perseid_last_error();
  product.result = Tensor(product.narrow.data(), perseid::f8e4m3, {2, 2});
  product.scale = 80;
  product.scale_result = Tensor(&product.scale, perseid::f32, {1});
  product.amax = Tensor(&product.most, perseid::f32, {1});
  ASSERT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  // 400 lies between 384 and 416, 560 beyond 448, 480 too.
  EXPECT_EQ(product.narrow, (std::array<uint8_t, 4>{0x7c, 0x7e, 0x7c, 0x7e}));
  EXPECT_EQ(product.most, 7);
  product.scale_result = {};
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_result is NULL");
  product.scale_result = Tensor(&product.scale, perseid::f32, {1});
  product.amax = {};
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "amax is NULL");
}

TEST(Float8Matmul, RefusesWhatThePlanDoesNotAskFor) {
  Product product;
  ASSERT_EQ(product.make(float8_desc(2, 2, 2)), PERSEID_OK) << perseid_last_error();
  const Tensor one(&product.scale, perseid::f32, {1});
  product.scale_a = one;
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT,
               "scale_a is given, but the plan's descriptor says scaling = 0 (none)");
  product.scale_a = {};
  product.scale_b = one;
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "scale_b is given");
  product.scale_b = {};
  product.scale_result = one;
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT,
               "scale_result is given, but the plan's descriptor says scale_result = 0");
  product.scale_result = {};
  product.amax = one;
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT,
               "amax is given, but the plan's descriptor says amax = 0");
}

TEST(Float8Matmul, TakesABiasOfFloat32OrTheResult) {
  Product product;
  auto desc = float8_desc(2, 2, 2);
  desc.bias = 1;
  desc.out_dtype = PERSEID_F8E4M3;
  ASSERT_EQ(product.make(desc), PERSEID_OK) << perseid_last_error();
  product.result = Tensor(product.narrow.data(), perseid::f8e4m3, {2, 2});
  product.bias = Tensor(product.scales_a.data(), perseid::f32, {2});
  EXPECT_EQ(product.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(product.narrow[0], 0x4c);  // 6
  product.bias = Tensor(product.a.data(), perseid::f8e4m3, {2});
  EXPECT_FAILS(product.run(), PERSEID_INVALID_ARGUMENT, "bias has dtype f8e4m3, expected f32");
}

// ---- Epilogues of every type ----

TEST(MatmulEpilogue, AmaxOfNaNIsNaNAndOfNothingIsZero) {
  const perseid::Context context = perseid::Context::cpu(2);
  float most = -1;
  const Tensor amax(&most, {1});
  for (const int64_t size : {1, 9, 40}) {
    const auto count = static_cast<size_t>(size * size);
    std::vector<float> a(count, -2), b(count, 1), c(count);
    const auto matrix = [&](std::vector<float>& data) { return Tensor(data.data(), {size, size}); };
    for (const char* implementation : {"cpu:packed", "cpu:reference"}) {
      const perseid::Matmul matmul(
          context,
          {.m = size, .n = size, .k = size, .amax = true, .implementation = implementation});
      perseid::Workspace workspace;
      matmul.reserve(workspace);
      const perseid::MatmulArguments arguments{
          .a = matrix(a), .b = matrix(b), .c = matrix(c), .amax = amax};
      matmul.execute(nullptr, arguments, workspace);
      EXPECT_EQ(most, 2 * static_cast<float>(size));
      b.back() = std::numeric_limits<float>::quiet_NaN();
      matmul.execute(nullptr, arguments, workspace);
      EXPECT_TRUE(std::isnan(most)) << implementation << " " << size;
      b.back() = std::numeric_limits<float>::infinity();
      matmul.execute(nullptr, arguments, workspace);
      EXPECT_EQ(most, std::numeric_limits<float>::infinity());
      b.back() = 1;
      const perseid::Matmul empty(
          context, {.m = 0, .n = size, .k = size, .amax = true, .implementation = implementation});
      perseid::Workspace other;
      empty.reserve(other);
      empty.execute(nullptr,
                    {.a = Tensor(a.data(), {0, size}),
                     .b = matrix(b),
                     .c = Tensor(c.data(), {0, size}),
                     .amax = amax},
                    other);
      EXPECT_EQ(most, 0);
    }
  }
}

// Known values, and both ends of the line: far left -0, far right y, -inf NaN.
TEST(MatmulEpilogue, ActivationsOfKnownNumbers) {
  const perseid::Context context = perseid::Context::cpu(1);
  struct Known {
    perseid::Activation activation;
    double one, minus_one;
  };
  constexpr Known kKnown[] = {
      {perseid::Activation::kGeluTanh, 0.8411919906082768, -0.15880800939172324},
      {perseid::Activation::kGeluErf, 0.8413447460685429, -0.15865525393145707},
      {perseid::Activation::kSilu, 0.7310585786300049, -0.2689414213699951}};
  for (const char* implementation : {"cpu:packed", "cpu:reference"}) {
    for (const Known& known : kKnown) {
      const perseid::Matmul matmul(context, {.m = 6,
                                             .n = 1,
                                             .k = 1,
                                             .activation = known.activation,
                                             .implementation = implementation});
      perseid::Workspace workspace;
      matmul.reserve(workspace);
      const float infinity = std::numeric_limits<float>::infinity();
      const std::array<float, 6> a{1, -1, 1e30F, -1e30F, infinity, -infinity};
      std::array<float, 6> c{};
      const float one = 1;
      matmul.execute(
          nullptr,
          {.a = Tensor(a.data(), {6, 1}), .b = Tensor(&one, {1, 1}), .c = Tensor(c.data(), {6, 1})},
          workspace);
      EXPECT_NEAR(c[0], known.one, 3e-7);
      EXPECT_NEAR(c[1], known.minus_one, 1e-7);
      EXPECT_EQ(c[2], 1e30F);
      EXPECT_EQ(c[3], 0) << implementation << " " << static_cast<int>(known.activation);
      EXPECT_EQ(c[4], infinity);
      EXPECT_TRUE(std::isnan(c[5]));
    }
  }
}

}  // namespace
