// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The command line from end to end: files in, files out, values by hand, exit codes and sentences.
#include "cli_test_tools.hpp"

namespace perseid {
namespace {

const double kLn2 = std::log(2.0);

// ---- run softmax ------------------------------------------------------------------------------

TEST_F(CliTest, Softmax) {
  write("x.npy", {2, 3}, {0, kLn2, std::log(5.0), 1, 1, 1});
  expect_ok("run softmax --input @x.npy --output @y.npy");
  expect_file("y.npy", {2, 3}, {0.125, 0.25, 0.625, 1. / 3, 1. / 3, 1. / 3});
  expect_ok("run softmax --input @x.npy --output @y.npy --log");
  expect_file("y.npy", {2, 3},
              {std::log(0.125), std::log(0.25), std::log(0.625), -std::log(3.0), -std::log(3.0),
               -std::log(3.0)});
  write("x.npy", {2, 2}, {0, 3, kLn2, 3});
  expect_ok("run softmax --input @x.npy --output @y.npy --dim 0");
  expect_file("y.npy", {2, 2}, {1. / 3, 0.5, 2. / 3, 0.5});
  expect_ok("run softmax --input @x.npy --output @y.npy --dim -2 --scale 2");
  expect_file("y.npy", {2, 2}, {0.2, 0.5, 0.8, 0.5});
}

TEST_F(CliTest, SoftmaxMaskAndEmptyRows) {
  write("x.npy", {2, 3}, {0, std::nan(""), 0, 1, 2, 3});
  write("m.npy", {2, 3}, {1, 0, 1, 0, 0, 0}, boolean);
  expect_ok("run softmax --input @x.npy --output @y.npy --visible @m.npy");
  expect_file("y.npy", {2, 3}, {0.5, 0, 0.5, 0, 0, 0});
  expect_ok("run softmax --input @x.npy --output @y.npy --visible @m.npy --empty-rows nan");
  const double nan = std::nan("");
  expect_file("y.npy", {2, 3}, {0.5, 0, 0.5, nan, nan, nan});
  write("m.npy", {3}, {1, 0, 1}, u8);  // broadcasts
  expect_ok("run softmax --input @x.npy --output @y.npy --visible @m.npy --scale 0.5");
  const double e = std::exp(0.5), s = e + std::exp(1.5);
  expect_file("y.npy", {2, 3}, {0.5, 0, 0.5, e / s, 0, std::exp(1.5) / s});
}

TEST_F(CliTest, SoftmaxGradient) {
  write("x.npy", {1, 2}, {0, std::log(3.0)});  // 0.25, 0.75
  write("dy.npy", {1, 2}, {1, 5});             // sum of y dy: 4
  expect_ok(
      "run softmax --input @x.npy --output @y.npy --grad-output @dy.npy --grad-input @dx.npy");
  expect_file("dx.npy", {1, 2}, {0.25 * (1 - 4), 0.75 * (5 - 4)});
  expect_ok("run softmax --input @x.npy --log --grad-output @dy.npy --grad-input @dx.npy");
  expect_file("dx.npy", {1, 2}, {1 - 0.25 * 6, 5 - 0.75 * 6});
}

TEST_F(CliTest, Types) {
  write("x.npy", {1, 2}, {1 + 0x1p-9, 1});  // equal in bf16
  expect_ok("run softmax --input @x.npy --output @y.npy --dtype bf16");
  expect_file("y.npy", {1, 2}, {0.5, 0.5}, f32, 0);
  expect_ok("run softmax --input @x.npy --output @y.safetensors:y --dtype bf16");
  expect_file("y.safetensors:y", {1, 2}, {0.5, 0.5}, bf16, 0);
  expect_ok("run softmax --input @y.safetensors:y --output @z.npy --output-dtype f32");
  expect_file("z.npy", {1, 2}, {0.5, 0.5}, f32);
  expect_ok("run softmax --input @x.npy --output @y.npy --dtype f64");
  expect_file("y.npy", {1, 2}, {1 / (1 + std::exp(-0x1p-9)), 1 / (1 + std::exp(0x1p-9))}, f64,
              1e-15);
  expect_ok("run softmax --input @x.npy --output @y.npy --dtype f16");
  expect_file("y.npy", {1, 2}, {0.5005, 0.4995}, f16, 5e-4);
}

// ---- run attention ----------------------------------------------------------------------------

TEST_F(CliTest, AttentionByHand) {
  // Scores of 0: the mean of the visible values.
  write("q.npy", {1, 2, 2, 1}, {0, 0, 0, 0});
  write("k.npy", {1, 3, 1, 1}, {5, 6, 7});
  write("v.npy", {1, 3, 1, 2}, {1, 10, 2, 20, 6, 60});
  const std::string base = "run attention --query @q.npy --key @k.npy --value @v.npy --out @o.npy ";
  expect_ok(base + "--lse @l.npy");
  expect_file("o.npy", {1, 2, 2, 2}, {3, 30, 3, 30, 3, 30, 3, 30}, f32, 1e-5);
  expect_file("l.npy", {1, 2, 2}, {std::log(3.0), std::log(3.0), std::log(3.0), std::log(3.0)});
  expect_ok(base + "--causal top-left");
  expect_file("o.npy", {1, 2, 2, 2}, {1, 10, 1, 10, 1.5, 15, 1.5, 15}, f32, 1e-5);
  expect_ok(base + "--causal bottom-right");
  expect_file("o.npy", {1, 2, 2, 2}, {1.5, 15, 1.5, 15, 3, 30, 3, 30}, f32, 1e-5);
  expect_ok(base + "--window -1,0");
  expect_file("o.npy", {1, 2, 2, 2}, {1, 10, 1, 10, 1.5, 15, 1.5, 15}, f32, 1e-5);
  expect_ok(base + "--window -1,0 --window-bottom-right --num-splits 1");
  expect_file("o.npy", {1, 2, 2, 2}, {1.5, 15, 1.5, 15, 3, 30, 3, 30}, f32, 1e-5);
  write("n.npy", {1}, {1}, i32);
  expect_ok(base + "--window -1,0 --q-lens @n.npy");
  expect_file("o.npy", {1, 2, 2, 2}, {1, 10, 1, 10, 0, 0, 0, 0}, f32, 1e-5);
  write("n.npy", {1}, {2}, i32);
  expect_ok(base + "--kv-lens @n.npy");
  expect_file("o.npy", {1, 2, 2, 2}, {1.5, 15, 1.5, 15, 1.5, 15, 1.5, 15}, f32, 1e-5);
  write("n.npy", {1}, {0}, i64);
  expect_ok(base + "--kv-lens @n.npy --lse @l.npy");
  expect_file("o.npy", {1, 2, 2, 2}, {0, 0, 0, 0, 0, 0, 0, 0}, f32, 0);
  expect_file("l.npy", {1, 2, 2}, std::vector<double>(4, -INFINITY));
  write("m.npy", {3}, {0, 0, 1}, boolean);
  expect_ok(base + "--visible @m.npy");
  expect_file("o.npy", {1, 2, 2, 2}, {6, 60, 6, 60, 6, 60, 6, 60}, f32, 1e-5);
  write("b.npy", {2, 1, 3}, {0, 0, kLn2, -100, -100, 0});
  expect_ok(base + "--bias @b.npy");
  expect_file("o.npy", {1, 2, 2, 2}, {3.75, 37.5, 6, 60, 3.75, 37.5, 6, 60}, f32, 1e-4);
}

TEST_F(CliTest, AttentionLayoutAndScale) {
  write("q.npy", {1, 1, 1, 4}, {1, 0, 0, 0});
  write("k.npy", {1, 1, 2, 4}, {2 * kLn2, 0, 0, 0, 0, 0, 0, 0});
  write("v.npy", {1, 1, 2, 4}, {3, 3, 3, 3, 0, 0, 0, 0});
  const std::string base =
      "run attention --query @q.npy --key @k.npy --value @v.npy --layout bhsd --out @o.npy ";
  expect_ok(base);  // scores ln 2 and 0
  expect_file("o.npy", {1, 1, 1, 4}, {2, 2, 2, 2});
  expect_ok(base + "--scale 1");  // ln 4 and 0
  expect_file("o.npy", {1, 1, 1, 4}, {2.4, 2.4, 2.4, 2.4});
}

TEST_F(CliTest, AttentionRagged) {
  write("q.npy", {3, 1, 1}, {0, 0, 0});
  write("k.npy", {5, 1, 1}, {1, 2, 3, 4, 5});
  write("v.npy", {5, 1, 1}, {1, 3, 8, 9, 10});
  write("a.npy", {4}, {0, 1, 1, 3}, i32);
  write("b.npy", {4}, {0, 2, 2, 5}, i32);
  expect_ok(
      "run attention --query @q.npy --key @k.npy --value @v.npy --cu-seqlens-q @a.npy "
      "--cu-seqlens-kv @b.npy --causal bottom-right --out @o.npy --lse @l.npy");
  expect_file("o.npy", {3, 1, 1}, {2, 8.5, 9}, f32, 1e-5);
  expect_file("l.npy", {1, 3}, {kLn2, kLn2, std::log(3.0)});
}

TEST_F(CliTest, AttentionGradients) {
  // One query, two keys, probabilities 0.5: dP = (2, 6), delta = 4, dS = (-1, 1).
  write("q.npy", {1, 1, 1, 1}, {0});
  write("k.npy", {1, 2, 1, 1}, {3, 7});
  write("v.npy", {1, 2, 1, 1}, {1, 3});
  write("do.npy", {1, 1, 1, 1}, {2});
  write("bias.npy", {1, 2}, {0, 0});
  const std::string base =
      "run attention --query @q.npy --key @k.npy --value @v.npy --bias @bias.npy --grad-out "
      "@do.npy ";
  expect_ok(base +
            "--out @o.npy --grad-query @g.safetensors:dq --grad-key @g.safetensors:dk "
            "--grad-value @g.safetensors:dv --grad-bias @g.safetensors:db --deterministic");
  expect_file("o.npy", {1, 1, 1, 1}, {2});
  expect_file("g.safetensors:dq", {1, 1, 1, 1}, {4});
  expect_file("g.safetensors:dk", {1, 2, 1, 1}, {0, 0});
  expect_file("g.safetensors:dv", {1, 2, 1, 1}, {1, 1});
  expect_file("g.safetensors:db", {1, 2}, {-1, 1});
  write("dl.npy", {1, 1, 1}, {10});  // adds 10 P to dS
  expect_ok(base + "--grad-lse @dl.npy --grad-bias @db.npy");
  expect_file("db.npy", {1, 2}, {4, 6});
}

TEST_F(CliTest, DropoutMaskIsTheOneThatAttentionUses) {
  constexpr int64_t kLength = 64;
  write("q.npy", {1, kLength, 1, 8}, std::vector<double>(kLength * 8, 0));
  std::vector<double> identity(kLength * kLength, 0);
  for (size_t i = 0; i < kLength; ++i) identity[i * (kLength + 1)] = kLength;
  write("v.npy", {1, kLength, 1, kLength}, identity);
  expect_ok(
      "run dropout-mask --batch 1 --heads 1 --q-len 64 --kv-len 64 --dropout 0.25 --seed 11 "
      "--offset 2 --output @mask.npy");
  expect_ok(
      "run attention --query @q.npy --key @q.npy --value @v.npy --dropout 0.25 --seed 11 "
      "--offset 2 --out @o.npy");
  const File file(path("mask.npy"));
  EXPECT_EQ(file[size_t{0}].dtype(), boolean);
  std::vector<double> mask = harness::values_of(file[size_t{0}]);
  double kept = 0;
  for (double& each : mask) kept += each, each *= 256.0 / 192;
  EXPECT_NEAR(kept, 3072, 200);
  expect_file("o.npy", {1, kLength, 1, kLength}, mask, f32, 1e-5);
}

// A format that lets tensors begin at any byte.
TEST_F(CliTest, ReadsUnalignedTensors) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
                             R"("m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::ofstream file(path("x.safetensors"), std::ios::binary);
  const uint64_t size = (header.size() + 7) / 8 * 8;
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file << header << std::string(size - header.size(), ' ') << '\1';
  const float values[] = {0, static_cast<float>(kLn2)};
  file.write(reinterpret_cast<const char*>(values), sizeof values);
  file.close();
  expect_ok("run softmax --input @x.safetensors:x --output @y.npy");
  expect_file("y.npy", {2}, {1. / 3, 2. / 3});
}

// ---- run matmul -------------------------------------------------------------------------------

TEST_F(CliTest, Matmul) {
  write("a.npy", {2, 3}, {1, 2, 3, 4, 5, 6});
  write("b.npy", {3, 2}, {1, 0, 0, 1, 2, 2});
  expect_ok("run matmul --a @a.npy --b @b.npy --out @c.npy");
  expect_file("c.npy", {2, 2}, {7, 8, 16, 17});
  expect_ok("run matmul --a @b.npy --b @a.npy --transpose-a --transpose-b --out @c.npy");
  expect_file("c.npy", {2, 2}, {7, 16, 8, 17});
  write("c0.npy", {2, 2}, {1, 1, 1, 1});
  write("bias.npy", {2}, {100, 200});
  expect_ok(
      "run matmul --a @a.npy --b @b.npy --alpha 2 --beta 3 --c @c0.npy --bias @bias.npy --out "
      "@c.npy");
  expect_file("c.npy", {2, 2}, {117, 219, 135, 237});
  write("a.npy", {2, 1, 2}, {1, 2, 3, 4});
  write("b.npy", {2, 1}, {1, 10});
  expect_ok("run matmul --a @a.npy --b @b.npy --out @c.npy --dtype bf16 --impl cpu:reference");
  expect_file("c.npy", {2, 1, 1}, {21, 43});
}

// ---- Exit codes and sentences -----------------------------------------------------------------

TEST_F(CliTest, BadInputEndsWithTwo) {
  write("x.npy", {2, 3}, {1, 2, 3, 4, 5, 6});
  write("y.npy", {2, 2}, {1, 2, 3, 4});
  write("i.npy", {2}, {1, 2}, i32);
  expect_refused("", 2, "perseid needs one of info, explain, check, bench, tune, run");
  expect_refused("frobnicate", 2, "there is no 'frobnicate' in perseid");
  expect_refused("run softmax --output @o.npy", 2, "--input is required");
  // Words and values that the parser has no place for.
  expect_refused("foo", 2, "there is no 'foo' in perseid; there are info, explain, check, bench");
  expect_refused("run foo", 2, "there is no 'foo' in perseid run; there are softmax, attention");
  expect_refused("run", 2,
                 "perseid run needs one of softmax, attention, matmul, "
                 "all-gather-matmul, matmul-reduce-scatter, matmul-all-reduce, context-attention, "
                 "dropout-mask");
  expect_refused("check foo", 2, "there is no 'foo' in perseid check");
  expect_refused("run softmax --input @x.npy --to y", 2, "perseid run softmax has no flag '--to'");
  expect_refused("run softmax --input @x.npy y", 2, "perseid run softmax does not expect 'y'");
  expect_refused("run softmax --input @x.npy --dim 1.5", 2,
                 "--dim: expected a whole number that fits, got '1.5'");
  expect_refused("run softmax --input @x.npy --scale a", 2, "--scale: expected a number, got 'a'");
  // Read as a number without a sign, -1 would be a very large one.
  expect_refused("check --fuzz -1", 2, "expected a number from 0 on, got -1");
  // Beyond 64 bits it would be the largest number there is.
  for (const char* flag : {"--fuzz", "--seed", "--part 0,", "--threads"})
    expect_refused("check " + std::string(flag) + " 99999999999999999999", 2,
                   "expected a whole number that fits, got '99999999999999999999'");
  expect_refused(
      "run dropout-mask --q-len -99999999999999999999 --kv-len 1 --dropout 0.5 --output @o", 2,
      "--q-len: expected a whole number that fits, got '-99999999999999999999'");
  expect_refused("check --fuzz 18446744073709551615", 2,
                 "--fuzz: expected at most 10000000 problems, got 18446744073709551615");
  expect_refused("run dropout-mask --q-len 1 --kv-len 1 --dropout 0.5 --seed -1 --output @m.npy", 2,
                 "--seed: expected a number from 0 on, got -1");
  // 0 stands for 1 in a descriptor; on the command line it would be a silent surprise.
  expect_refused("run softmax --input @x.npy --output @y.npy --scale 0", 2, "must not be 0");
  expect_refused("bench matmul --m 8 --n 8 --k 8 --seconds nan", 2, "--seconds must be from 0");
  // What every implementation refuses ends with the code of the refusal.
  expect_refused("check softmax --shape 4,5 --visible 3,3", 2, "visible has shape [3, 3]");
  EXPECT_EQ(run("check softmax --shape 4,5 --visible 3,3").out.find("valid problem"),
            std::string::npos);
  // A comma stands between two numbers.
  for (const char* shape : {"4,", ",4", "4,,5", ","})
    expect_refused(std::string("check softmax --shape ") + shape, 2,
                   "shape: expected whole numbers with one comma between two, got '" +
                       std::string(shape) + "'");
  expect_refused("run softmax --input @none.npy --output @o.npy", 2, "none.npy");
  expect_refused("run softmax --input @i.npy --output @o.npy", 2, "int32");
  expect_refused("run softmax --input @x.npy --output @o.txt", 2, "FILE.safetensors:NAME");
  expect_refused("run softmax --input @x.npy --output @o.npy --dim 5", 2, "5");
  expect_refused("run softmax --input @x.npy --output @o.npy --dtype f8", 2,
                 "f16, bf16, f32 or f64");
  expect_refused("run softmax --input @x.npy", 2, "nothing to compute");
  expect_refused("run matmul --a @x.npy --b @y.npy --out @o.npy", 2, "columns of --a");
  expect_refused("run matmul --a @i.npy --b @y.npy --out @o.npy", 2, "--a");
  expect_refused("run attention --query @x.npy --key @x.npy --value @x.npy --out @o.npy", 2,
                 "--query must have 4 dimensions, [batch, seq, heads, dim]; got shape [2, 3]");
  expect_refused("run dropout-mask --q-len 4 --kv-len 4 --dropout 2 --output @o.npy", 2, "dropout");
  expect_refused("explain attention --q-len 4 --kv-len 4 --head-dim 8 --heads 3 --kv-heads 2", 2,
                 "heads");
  expect_refused("explain matmul --m x", 2, "m: expected a whole number, got 'x'");
  expect_refused("explain attention --causal up", 2, "bottom-right");
  expect_refused("--device tpu info", 2, "auto, cpu or cuda:N");
  expect_refused("--threads -1 info", 2, "--threads");
  EXPECT_FALSE(std::filesystem::exists(path("o.npy")));
}

// A type that no operation reads ends alike in both formats.
TEST_F(CliTest, UnreadableTypesEndWithTwo) {
  const std::string header = R"({"x":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}})";
  const uint64_t size = header.size();
  std::ofstream(path("x.safetensors"))
      .write(reinterpret_cast<const char*>(&size), sizeof size)
      .write(header.data(), static_cast<std::streamsize>(size))
      .write("ab", 2);
  expect_refused("run softmax --input @x.safetensors:x --output @o.npy", 2, "F8_E8M0");
  std::string npy("\x93NUMPY\x01\x00\x76\x00", 10);
  npy += "{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }";
  npy.resize(127, ' ');
  npy += "\n12345678";
  std::ofstream(path("x.npy")).write(npy.data(), static_cast<std::streamsize>(npy.size()));
  expect_refused("run softmax --input @x.npy --output @o.npy", 2, "'<c8'");
}

TEST_F(CliTest, AttentionShapesThatDoNotFit) {
  write("q.npy", {1, 2, 2, 4}, std::vector<double>(16, 0));
  write("k.npy", {1, 3, 2, 8}, std::vector<double>(48, 0));
  write("v.npy", {1, 4, 2, 4}, std::vector<double>(32, 0));
  const std::string base = "run attention --query @q.npy --out @o.npy ";
  expect_refused(base + "--key @k.npy --value @v.npy", 2, "key");
  expect_refused(base + "--key @v.npy --value @k.npy", 2, "value");
  write("b.npy", {3, 2}, std::vector<double>(6, 0));
  expect_refused(base + "--key @v.npy --value @v.npy --bias @b.npy", 2, "bias");
  expect_refused(base + "--key @v.npy --value @v.npy --grad-query @g.npy", 2, "--grad-out");
  expect_refused(base + "--key @v.npy --value @v.npy --window 3", 2, "--window");
  expect_refused(base + "--key @v.npy --value @v.npy --cu-seqlens-q @q.npy", 2, "go together");
}

TEST_F(CliTest, OtherExitCodes) {
  expect_refused("check matmul --m 4 --n 4 --k 4 --expect refused", 1, "accepted");
  expect_refused("check matmul --m -4 --n 4 --k 4", 2, "-4");
  setenv("PERSEID_DISABLE_CUDA", "1", 1);  // whether there is a GPU or not
  expect_refused("info --device cuda:0", 3, "PERSEID_DISABLE_CUDA");
  unsetenv("PERSEID_DISABLE_CUDA");
}

// ---- The other commands -----------------------------------------------------------------------

TEST_F(CliTest, EveryHelpHasAnExample) {
  for (const char* command : {"", "info", "explain", "explain softmax", "explain all-gather-matmul",
                              "explain context-attention", "check", "check dropout-mask", "bench",
                              "bench matmul-all-reduce", "tune", "tune matmul", "run",
                              "run softmax", "run attention", "run matmul", "run dropout-mask"}) {
    const Ended ended = run(std::string(command) + " --help");
    EXPECT_EQ(ended.code, 0) << command;
    EXPECT_NE(ended.out.find("Example:\n  perseid"), std::string::npos) << command;
  }
  EXPECT_EQ(run("--version").out, std::string(version()) + "\n");
}

TEST_F(CliTest, Info) {
  const nlohmann::json facts = json("info");
  EXPECT_NE(facts.contains("gpus"), facts.contains("no_gpu"));  // or why there is none
  EXPECT_EQ(facts["version"], std::string(version()));
  const std::string text = run("info --threads 1").out;
  EXPECT_EQ(text.find("kDLC"), std::string::npos) << text;  // flags, no enumerators
  EXPECT_EQ(text.find("null"), std::string::npos) << text;
  EXPECT_GT(facts["ceilings"]["f32"].get<double>(), 1e8);
  EXPECT_GT(facts["ceilings"]["copy"].get<double>(), 1e7);
  EXPECT_NE(text.find("ceilings"), std::string::npos);
}

TEST_F(CliTest, Explain) {
  const nlohmann::json plan =
      json("explain attention --q-len 64 --kv-len 64 --head-dim 32 --backward --dtype bf16");
  EXPECT_EQ(plan["implementation"], "cpu:tiled");
  EXPECT_EQ(plan["problem"]["dtype"], "bf16");
  EXPECT_NE(run("explain softmax --shape 4,100").out.find("chosen"), std::string::npos);
  EXPECT_EQ(json("explain matmul --m 4 --n 4 --k 4 --impl cpu:reference")["implementation"],
            "cpu:reference");
  const std::string attention =
      "explain attention --q-len 64 --kv-len 64 --head-dim 64 --dtype bf16 --assume ";
  EXPECT_EQ(json(attention + "sm_90")["implementation"], "cuda:sm90");
  EXPECT_EQ(json(attention + "sm_86")["implementation"], "cuda:portable");
  for (const char* capability : {"sm_87", "sm_103", "sm_110", "sm_121"})
    EXPECT_EQ(json(attention + capability)["implementation"], "cuda:portable") << capability;
  EXPECT_EQ(json(attention + "sm_90a")["implementation"], "cuda:sm90");
  expect_refused(attention + "sm_70", 2, "expected sm_ and a compute capability from 8.0 on");
  expect_refused(attention + "sm_80 --device cpu", 2, "--assume sm_80 is in place of --device");
}

TEST_F(CliTest, CheckAndFuzz) {
  const nlohmann::json report =
      json("check attention --q-len 9 --kv-len 11 --head-dim 8 --backward");
  EXPECT_GE(report["checked"].get<int>(), 2);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["results"][0]["outputs"].size(), 5u);
  EXPECT_EQ(json("check --fuzz 200 --seed 3")["failed"], 0);
  EXPECT_EQ(run("check --fuzz 50 --quiet").out, "");
  EXPECT_NE(run("check softmax --shape 3,5").out.find("0 failed"), std::string::npos);
}

TEST_F(CliTest, ProblemFiles) {
  std::ofstream(path("p.jsonl")) << "# two problems\n\n"
                                    R"({"op":"matmul","m":3,"n":4,"k":5})"
                                    "\n"
                                    R"({"op":"softmax","shape":[3,4],"backward":true})"
                                    "\n";
  EXPECT_EQ(json("check --problems @p.jsonl --dtype bf16")["results"][0]["problem"]["dtype"],
            "bf16");
  const nlohmann::json softmax = json("check softmax --problems @p.jsonl");
  for (const auto& result : softmax["results"]) EXPECT_EQ(result["problem"]["op"], "softmax");
  EXPECT_EQ(json("explain --problems @p.jsonl").size(), 2u);
  std::ofstream(path("p.jsonl")) << R"({"op":"matmul","m":3})"
                                    "\n"
                                    R"({"op":"matmul","q_len":3})";
  expect_refused("check --problems @p.jsonl", 2, "line 2: matmul has no 'q-len'");
  expect_refused("bench --problems @none.jsonl", 2, "none.jsonl");
}

TEST_F(CliTest, Bench) {
  const nlohmann::json report = json(
      "bench attention --q-len 32 --kv-len 32 --head-dim 16 --backward --seconds 0.01 "
      "--threads 1");
  ASSERT_EQ(report["rows"].size(), 2u);
  EXPECT_EQ(report["rows"][1]["direction"], "backward");
  EXPECT_GT(report["rows"][0]["fraction"].get<double>(), 0);
  EXPECT_EQ(report["machine"]["version"], std::string(version()));
  const Ended table = run("bench matmul --m 64 --n 64 --k 64 --seconds 0.01");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("fraction"), std::string::npos);
}

TEST_F(CliTest, ProgressOnStderrAfterTwoSeconds) {
  const Ended slow = run("bench softmax --shape 8,64 --seconds 2.5 --threads 1 --no-error");
  EXPECT_NE(slow.err.find("bench: 0 of 1"), std::string::npos) << slow.err;
  EXPECT_EQ(slow.err.find('\r'), std::string::npos);
  EXPECT_EQ(run("bench softmax --shape 8,64 --seconds 2.5 --threads 1 --no-error --quiet").err, "");
}

TEST_F(CliTest, RunReports) {
  write("x.npy", {1, 2}, {0, 0});
  const nlohmann::json report = json("run softmax --input @x.npy --output @y.npy");
  EXPECT_EQ(report["outputs"][0]["name"], "output");
  EXPECT_EQ(report["outputs"][0]["shape"], (Shape{1, 2}));
  EXPECT_EQ(run("run softmax --input @x.npy --output @y.npy --quiet").out, "");
}

}  // namespace
}  // namespace perseid
