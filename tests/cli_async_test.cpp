// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The chunks of `perseid run matmul` and `run attention`, and `perseid check --async`.
#include <filesystem>
#include <random>
#include <tuple>

#include "cli_test_tools.hpp"

namespace perseid {
namespace {

class CliAsyncTest : public CliTest {
 protected:
  // a [37, 50] and b [50, 29], and the plain product in plain.npy.
  void SetUp() override {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> a(37 * 50), b(50 * 29);
    for (double& value : a) value = normal(random);
    for (double& value : b) value = normal(random);
    write("a.npy", {37, 50}, a);
    write("b.npy", {50, 29}, b);
    expect_ok(std::string(kMatmul) + " --out @plain.npy");
  }
  void expect_plain(const std::string& flags) const {
    std::filesystem::remove(path("c.npy"));
    expect_ok(std::string(kMatmul) + " --out @c.npy " + flags);
    EXPECT_TRUE(text_of("c.npy") == text_of("plain.npy")) << flags;
  }
  static constexpr const char* kMatmul = "run matmul --a @a.npy --b @b.npy";
};

TEST_F(CliAsyncTest, AnyArrivalGivesThePlainBits) {
  expect_plain("--chunks 4");
  expect_plain("--chunks 37 --pivot 36");
  expect_plain("--chunks 4 --pivot 2 --arrival-order 1,3,0,2 --arrival-delay 500");
  expect_plain("--chunks 5 --chunk-dim n --pivot 4 --arrival-order 0,1,2,3,4 --arrival-delay 300");
  expect_plain("--chunks 7 --chunk-dim k --arrival-order 6,5,4,3,2,1,0 --arrival-delay 300");
  // The plain result, which every implementation gives.
  expect_ok(std::string(kMatmul) + " --out @plain.npy --impl cpu:reference");
  expect_plain("--chunks 3 --impl cpu:reference --arrival-order 2,0,1 --deadline 20000");
  // Transposed operands arrive as they lie.
  expect_ok("run matmul --a @b.npy --b @a.npy --transpose-a --transpose-b --out @t.npy");
  expect_ok(
      "run matmul --a @b.npy --b @a.npy --transpose-a --transpose-b --out @u.npy --chunks 6 "
      "--chunk-dim n --arrival-order 3,1,5,0,2,4 --arrival-delay 200");
  EXPECT_TRUE(text_of("t.npy") == text_of("u.npy"));
}

TEST_F(CliAsyncTest, AChunkThatNeverArrivesEndsAtTheDeadline) {
  const auto lost = [&](const std::string& flags, const std::string& words) {
    const Ended ended = run(std::string(kMatmul) + " --out @lost.npy " + flags);
    EXPECT_EQ(ended.code, 5) << flags;
    EXPECT_NE(ended.err.find(words), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("pass a longer --deadline\n"), std::string::npos) << ended.err;
    EXPECT_FALSE(std::filesystem::exists(path("lost.npy"))) << flags;
  };
  lost("--chunks 4 --arrival-order 0,1,3 --deadline 300",
       "chunk 2 of a: not arrived within 300 ms");
  lost("--chunks 4 --chunk-dim n --pivot 3 --arrival-order 3,2 --deadline 200",
       "chunk 0 of b: not arrived within 200 ms");
  lost("--chunks 3 --chunk-dim k --arrival-order 0,2 --deadline 250.5",
       "chunk 1 of a: not arrived within 250.5 ms");
  lost("--chunks 2 --arrival-order 1 --deadline 50", "chunk 0 of a: not arrived within 50 ms");
  // It arrives, but too late.
  lost("--chunks 2 --arrival-order 0,1 --arrival-delay 30000000 --deadline 100",
       "chunk 1 of a: not arrived within 100 ms");
}

TEST_F(CliAsyncTest, WrongFlagsAreRefused) {
  const auto refused = [&](const std::string& flags, const std::string& words) {
    expect_refused(std::string(kMatmul) + " --out @c.npy " + flags, 2, words);
    EXPECT_FALSE(std::filesystem::exists(path("c.npy"))) << flags;
  };
  refused("--chunks 38", "--chunks must be from 1 to 37, as m is 37; got 38");
  refused("--chunks 30 --chunk-dim n", "--chunks must be from 1 to 29, as n is 29; got 30");
  refused("--chunks 0", "--chunks must be from 1 to 37");
  refused("--chunks -2", "--chunks must be from 1 to 37");
  refused("--chunks 2147483648", "--chunks must be from 1 to 37");
  refused("--chunks 4 --chunk-dim x", "--chunk-dim must be m, n or k, got 'x'");
  refused("--chunks 4 --pivot 4", "--pivot must be from 0 to 3");
  refused("--chunks 4 --pivot -1", "--pivot must be from 0 to 3");
  refused("--chunks 4 --chunk-dim k --pivot 1", "--pivot must be 0 with --chunk-dim k");
  refused("--chunks 4 --arrival-order 0,1,1,2", "--arrival-order names chunk 1 twice");
  refused("--chunks 4 --arrival-order 0,4", "--arrival-order lists chunks from 0 to 3, got '4'");
  refused("--chunks 4 --arrival-order 0,x", "got 'x'");
  refused("--chunks 4 --arrival-order 0,,1", "got ''");
  refused("--chunks 4 --deadline 0", "--deadline must be a time above 0");
  refused("--chunks 4 --deadline -5", "--deadline must be a time above 0");
  refused("--chunks 4 --deadline nan", "--deadline");
  refused("--chunks 4 --arrival-delay -1", "expected a number from 0 on");
  refused("--pivot 1", "say with --chunks how many there are");
  refused("--deadline 5", "say with --chunks how many there are");
}

TEST_F(CliAsyncTest, CheckPutsChunksInRandomOrders) {
  const nlohmann::json report =
      json("check matmul --async --m 70 --n 90 --k 300 --bias 90 --beta 0.5 --seed 3");
  EXPECT_EQ(report.at("checked"), 1);
  EXPECT_EQ(report.at("failed"), 0);
  EXPECT_EQ(report.at("results").at(0).at("orders"), 16);
  const Ended fuzzed = run("check matmul --async --fuzz 40 --seed 5");
  EXPECT_EQ(fuzzed.code, 0) << fuzzed.out << fuzzed.err;
  EXPECT_NE(fuzzed.out.find(" checked, 0 failed"), std::string::npos) << fuzzed.out;
  expect_refused("check softmax --shape 4,5 --async", 2,
                 "--async goes with matmul and attention, got softmax");
  expect_refused("check matmul --async --m 0 --n 3 --k 3", 2, "--async checks matmul problems");
}

class CliAsyncAttentionTest : public CliTest {
 protected:
  // query [2, 60, 4, 16], key and value [2, 700, 2, 16], and the result without chunks.
  void SetUp() override {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    for (const auto& [name, rows, heads] :
         {std::tuple{"q.npy", 60, 4}, {"k.npy", 700, 2}, {"v.npy", 700, 2}}) {
      std::vector<double> values(static_cast<size_t>(2 * rows * heads * 16));
      for (double& value : values) value = normal(random);
      write(name, {2, rows, heads, 16}, values);
    }
  }
  void expect_same(const std::string& flags, const std::string& chunks) const {
    expect_ok(kAttention + " --out @plain.npy --lse @plain_lse.npy " + flags);
    expect_ok(kAttention + " --out @o.npy --lse @l.npy " + flags + chunks);
    EXPECT_TRUE(text_of("o.npy") == text_of("plain.npy")) << flags << chunks;
    EXPECT_TRUE(text_of("l.npy") == text_of("plain_lse.npy")) << flags << chunks;
  }
  const std::string kAttention = "run attention --query @q.npy --key @k.npy --value @v.npy";
};

TEST_F(CliAsyncAttentionTest, ResultsDoNotDependOnArrival) {
  expect_same("", " --chunks 4");
  expect_same("", " --chunks 7 --arrival-order 6,5,4,3,2,1,0 --arrival-delay 300");
  expect_same("--causal bottom-right --window 300,0",
              " --chunks 5 --arrival-order 3,1,4,0,2 --arrival-delay 200");
  expect_same("--impl cpu:reference", " --chunks 3 --arrival-order 2,0,1");
  // Another pivot is another order of visits: compared with all chunks there at the start.
  expect_ok(kAttention + " --out @p.npy --chunks 6 --pivot 4");
  expect_ok(kAttention +
            " --out @r.npy --chunks 6 --pivot 4 --arrival-order 0,5,1,4,2,3 --arrival-delay 200");
  EXPECT_TRUE(text_of("p.npy") == text_of("r.npy"));
  // Heads first: rows are another dimension.
  expect_ok("run attention --layout bhsd --query @q.npy --key @q.npy --value @q.npy --out @h.npy");
  expect_ok(
      "run attention --layout bhsd --query @q.npy --key @q.npy --value @q.npy --out @g.npy "
      "--chunks 4 --arrival-order 3,2,1,0 --arrival-delay 200");
  EXPECT_TRUE(text_of("h.npy") == text_of("g.npy"));
}

TEST_F(CliAsyncAttentionTest, AChunkThatNeverArrivesEndsAtTheDeadline) {
  const auto lost = [&](const std::string& flags, const std::string& words) {
    const Ended ended = run(kAttention + " --out @lost.npy " + flags);
    EXPECT_EQ(ended.code, 5) << flags;
    EXPECT_NE(ended.err.find(words), std::string::npos) << ended.err;
    EXPECT_FALSE(std::filesystem::exists(path("lost.npy"))) << flags;
  };
  lost("--chunks 4 --arrival-order 0,1,3 --deadline 300",
       "chunk 2 of key: not arrived within 300 ms");
  lost("--chunks 4 --pivot 3 --arrival-order 3,2 --deadline 200",
       "chunk 0 of key: not arrived within 200 ms");
  // 60 queries see the first 60 of 700 keys: the others are not waited for.
  expect_ok(kAttention + " --out @seen.npy --causal top-left --chunks 7 --arrival-order 0");
}

TEST_F(CliAsyncAttentionTest, WrongFlagsAreRefused) {
  const auto refused = [&](const std::string& flags, const std::string& words) {
    expect_refused(kAttention + " --out @c.npy " + flags, 2, words);
    EXPECT_FALSE(std::filesystem::exists(path("c.npy"))) << flags;
  };
  refused("--chunks 701", "--chunks must be from 1 to 700, as kv_len is 700; got 701");
  refused("--chunks 0", "--chunks must be from 1 to 700");
  refused("--chunks 4 --pivot 4", "--pivot must be from 0 to 3");
  refused("--chunks 4 --arrival-order 0,1,1,2", "--arrival-order names chunk 1 twice");
  refused("--chunks 4 --deadline 0", "--deadline must be a time above 0");
  refused("--pivot 1", "say with --chunks how many there are");
}

TEST_F(CliAsyncAttentionTest, CheckPutsChunksInRandomOrders) {
  const nlohmann::json report =
      json("check attention --async --heads 2 --q-len 70 --kv-len 300 --head-dim 24 --seed 3");
  EXPECT_EQ(report.at("checked"), 1);
  EXPECT_EQ(report.at("failed"), 0);
  EXPECT_EQ(report.at("results").at(0).at("orders"), 16);
  const Ended fuzzed = run("check attention --async --fuzz 30 --seed 5");
  EXPECT_EQ(fuzzed.code, 0) << fuzzed.out << fuzzed.err;
  EXPECT_NE(fuzzed.out.find(" checked, 0 failed"), std::string::npos) << fuzzed.out;
}

}  // namespace
}  // namespace perseid
