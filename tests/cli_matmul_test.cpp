// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid run matmul` of 8-bit types: bytes in .npy, types in .safetensors, scales by their
// shapes, and what follows the product.
#include "cli_test_tools.hpp"

namespace perseid {
namespace {

class CliMatmulTest : public CliTest {
 protected:
  static constexpr const char* kProduct = "run matmul --a @a.npy --b @b.npy --out @c.npy";

  CliMatmulTest() {
    // 1, 2; 3, 1 and 1, 1; 2, 3 in e4m3.
    write("a.npy", {2, 2}, {0x38, 0x40, 0x44, 0x38}, u8);
    write("b.npy", {2, 2}, {0x38, 0x38, 0x40, 0x44}, u8);
  }
  static std::string product(const std::string& flags) { return kProduct + (" " + flags); }
};

TEST_F(CliMatmulTest, BytesAreNumbersOfTheTypeThatIsNamed) {
  expect_ok(product("--dtype f8e4m3"));
  expect_file("c.npy", {2, 2}, {5, 7, 5, 6});
  // 0.5, 2; 4, 0.5 and 0.5, 0.5; 2, 4 in e5m2.
  expect_ok(product("--dtype f8e5m2"));
  expect_file("c.npy", {2, 2}, {4.25, 8.25, 3, 4});
  expect_refused(product(""), 2, "say with --dtype f8e4m3 or f8e5m2");
  expect_ok(product("--dtype f8e4m3 --output-dtype bf16 --accumulation fast"));
  expect_file("c.npy", {2, 2}, {5, 7, 5, 6});
  // Files of other types are rounded.
  write("a.npy", {2, 2}, {1, 2.05, 2.9, 1000});
  expect_ok(product("--dtype f8e4m3"));
  expect_file("c.npy", {2, 2}, {5, 7, 899, 1347});
}

TEST_F(CliMatmulTest, SafetensorsKnowsBothTypes) {
  const uint8_t a[] = {0x38, 0x40, 0x44, 0x38}, b[] = {0x38, 0x38, 0x40, 0x44};
  write_file(path("m.safetensors"),
             {{"a", Tensor(a, f8e4m3, {2, 2})}, {"b", Tensor(b, f8e5m2, {2, 2})}});
  EXPECT_NE(text_of("m.safetensors").find("F8_E4M3"), std::string::npos);
  EXPECT_NE(text_of("m.safetensors").find("F8_E5M2"), std::string::npos);
  expect_ok("run matmul --a @m.safetensors:a --b @m.safetensors:b --out @c.npy");
  expect_file("c.npy", {2, 2}, {4.5, 8.5, 3.5, 5.5});
  expect_ok(
      "run matmul --a @m.safetensors:a --b @m.safetensors:b --output-dtype f8e5m2 "
      "--out @o.safetensors:c");
  expect_file("o.safetensors:c", {2, 2}, {4, 8, 3.5, 6}, f8e5m2);
  write("f.npy", {2, 2}, {1, 2, 3, 4});
  expect_refused("run matmul --a @m.safetensors:a --b @f.npy --out @c.npy", 2,
                 "--a is f8e4m3 and --b is f32");
  EXPECT_THROW(write_file(path("x.npy"), {{"", Tensor(a, f8e4m3, {2, 2})}}), Error);
}

TEST_F(CliMatmulTest, ShapesSayWhatScalesBelongTo) {
  const std::string with =
      product("--dtype f8e4m3 --scale-a @sa.npy --scale-b @sb.npy --accumulation promoted");
  write("sa.npy", {1}, {0.5});
  write("sb.npy", {1}, {3});
  expect_ok(with);
  expect_file("c.npy", {2, 2}, {7.5, 10.5, 7.5, 9});
  write("sa.npy", {2, 1}, {2, 4});
  expect_ok(with);
  expect_file("c.npy", {2, 2}, {30, 42, 60, 72});
  for (const Shape& shape : {Shape{2}, Shape{1, 2}}) {
    write("sb.npy", shape, {1, 10});
    expect_ok(with);
    expect_file("c.npy", {2, 2}, {10, 140, 20, 240});
    expect_ok(with + " --transpose-b");
    expect_file("c.npy", {2, 2}, {6, 160, 16, 360});
  }
  write("sb.npy", {3}, {1, 2, 3});
  expect_refused(with, 2, "--scale-a has shape [2, 1] and --scale-b [3], expected one scale each");
  expect_refused(product("--dtype f8e4m3 --scale-a @sa.npy"), 2, "go together");
  expect_refused(product("--dtype f8e4m3 --accumulation slow"), 2,
                 "--accumulation must be one of promoted, fast, got 'slow'");
  write("a.npy", {2, 2}, {1, 2, 3, 4});
  write("b.npy", {2, 2}, {1, 2, 3, 4});
  expect_refused(product("--scale-a @sa.npy --scale-b @sb.npy"), 2,
                 "are of 8-bit matrices, got f32");
  expect_refused(product("--accumulation fast"), 2, "accumulation is fast, but a and b are f32");
}

// float32's own accuracy is allowed.
TEST_F(CliMatmulTest, PrecisionOfTF32) {
  write("a.npy", {1, 2}, {1, 0x1p-20});
  write("b.npy", {2, 1}, {1, 1});
  expect_ok(product("--precision tf32 --device cpu"));
  expect_file("c.npy", {1, 1}, {1 + 0x1p-20});
  expect_refused(product("--precision half"), 2,
                 "--precision must be one of default, tf32, got 'half'");
}

// Depths 0 to 127 and 128 to 255 have scales of their own, and so have columns 0 to 127 and 128.
TEST_F(CliMatmulTest, BlocksOf128HaveTheirScales) {
  std::vector<double> ones(256, 1);
  write("a.npy", {1, 256}, ones);
  write("b.npy", {256, 129}, std::vector<double>(256 * 129, 1));
  write("sa.npy", {1, 2}, {1, 10});
  write("sb.npy", {2, 2}, {1, 2, 3, 5});
  std::vector<double> expected(129, 128 * (1 + 10 * 3));
  expected.back() = 128 * (2 + 10 * 5);
  expect_ok(product("--dtype f8e4m3 --scale-a @sa.npy --scale-b @sb.npy"));
  expect_file("c.npy", {1, 129}, expected);
  // They lie as their matrix does.
  write("bt.npy", {129, 256}, std::vector<double>(256 * 129, 1));
  write("sbt.npy", {2, 2}, {1, 3, 2, 5});
  expect_ok(
      "run matmul --a @a.npy --b @bt.npy --transpose-b --dtype f8e5m2 --scale-a @sa.npy "
      "--scale-b @sbt.npy --out @c.npy");
  expect_file("c.npy", {1, 129}, expected);
}

TEST_F(CliMatmulTest, ResultsOf8BitsAreScaledAndSaturate) {
  write("s.npy", {1}, {80});
  expect_ok(product("--dtype f8e4m3 --output-dtype f8e4m3 --scale-result @s.npy --amax @m.npy"));
  expect_file("c.npy", {2, 2}, {0x7c, 0x7e, 0x7c, 0x7e}, u8);
  expect_file("m.npy", {1}, {7});
  expect_refused(product("--dtype f8e4m3 --scale-result @s.npy"), 2, "c is f32");
  write("s.npy", {2}, {80, 80});
  expect_refused(product("--dtype f8e4m3 --output-dtype f8e4m3 --scale-result @s.npy"), 2,
                 "--scale-result must be one number");
  expect_refused(product("--dtype f8e4m3 --output-dtype f8"), 2, "--output-dtype must be f16");
}

TEST_F(CliMatmulTest, ActivationsOfEveryType) {
  write("a.npy", {1, 1}, {1});
  write("b.npy", {1, 1}, {1});
  write("bias.npy", {1}, {-2});
  for (const auto& [name, value] : {std::pair{"silu", -0.2689414213699951},
                                    {"gelu-tanh", -0.15880800939172324},
                                    {"gelu-erf", -0.15865525393145707}}) {
    for (const char* dtype : {"f32", "f64", "f8e5m2"}) {
      expect_ok(product("--bias @bias.npy --activation " + std::string(name) +
                        " --amax @m.npy --dtype " + dtype));
      const DType out = dtype == std::string("f64") ? f64 : f32;
      expect_file("c.npy", {1, 1}, {value}, out);
      expect_file("m.npy", {1}, {-value}, out);
    }
  }
  expect_refused(product("--activation relu"), 2,
                 "--activation must be one of none, gelu-tanh, gelu-erf, silu, got 'relu'");
}

TEST_F(CliMatmulTest, TheCpuHasNothingToTune) {
  const Ended ended = run("tune matmul --m 6 --n 5 --k 4 --dtype bf16 --device cpu");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "matmul bf16 6x5x4: cpu:packed has one configuration: nothing to tune\n");
  EXPECT_FALSE(json("tune matmul --m 6 --n 5 --k 4 --device cpu").contains("measured"));
  expect_refused("tune softmax --shape 4,5", 2, "there is no 'softmax' in perseid tune");
}

TEST_F(CliMatmulTest, OtherOperationsRefuse8Bits) {
  expect_refused("run softmax --input @a.npy --output @o.npy --dtype f8e4m3", 2,
                 "f8e4m3, which matmul alone takes");
  write("q.npy", {1, 2, 1, 8}, std::vector<double>(16, 1));
  expect_refused(
      "run attention --query @q.npy --key @q.npy --value @q.npy --out @o.npy --dtype f8e5m2", 2,
      "f8e5m2, which matmul alone takes");
}

}  // namespace
}  // namespace perseid
