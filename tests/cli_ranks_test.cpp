// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// perseid launch, and what ranks compute together from files into files.
#include <map>

#include "cli_test_tools.hpp"

namespace perseid {
namespace {

class CliRanksTest : public CliTest {
 protected:
  std::vector<double> numbers(const Shape& shape, int seed) const {
    std::vector<double> values;
    for (int64_t i = 0; i < harness::elements_of(shape); ++i)
      values.push_back(static_cast<double>((i * 7 + seed * 13) % 11 - 5) / 4);
    return values;
  }
  // a [m, k] times b [k, n].
  static std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b,
                                     size_t m, size_t k, size_t n) {
    std::vector<double> c(m * n);
    for (size_t i = 0; i < m; ++i)
      for (size_t j = 0; j < n; ++j)
        for (size_t l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * b[l * n + j];
    return c;
  }
};

TEST_F(CliRanksTest, AllGatherMatmul) {
  // Uneven shards of 2, 3 and 4 rows.
  std::vector<double> whole;
  for (int rank = 0; rank < 3; ++rank) {
    const Shape shape = {2 + rank, 5};
    const std::vector<double> a = numbers(shape, rank);
    whole.insert(whole.end(), a.begin(), a.end());
    write("a." + std::to_string(rank) + ".npy", shape, a);
    write("b." + std::to_string(rank) + ".npy", {5, 4}, numbers({5, 4}, 10 + rank));
  }
  write("bias.npy", {4}, {1, 2, 3, 4});
  expect_ok(
      "launch -n 3 -- perseid run all-gather-matmul --a '@a.{rank}.npy' --b '@b.{rank}.npy' "
      "--bias @bias.npy --out '@c.{rank}.npy' --gathered '@g.{rank}.npy'");
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<double> c = product(whole, numbers({5, 4}, 10 + rank), 9, 5, 4);
    for (size_t i = 0; i < c.size(); ++i) c[i] += static_cast<double>(i % 4 + 1);
    expect_file("c." + std::to_string(rank) + ".npy", {9, 4}, c);
    expect_file("g." + std::to_string(rank) + ".npy", {9, 5}, whole);
  }
}

TEST_F(CliRanksTest, AllGatherOfColumnsAndOfABatch) {
  for (const int rank : {0, 1}) {
    write("a." + std::to_string(rank) + ".npy", {3, 2}, numbers({3, 2}, rank));
    write("e." + std::to_string(rank) + ".npy", {1 + rank, 2, 4}, numbers({1 + rank, 2, 4}, rank));
  }
  write("b.npy", {4, 2}, numbers({4, 2}, 5));
  expect_ok(
      "launch -n 2 -- perseid run all-gather-matmul --gather-dim -1 --a '@a.{rank}.npy' "
      "--b @b.npy --out '@c.{rank}.npy'");
  std::vector<double> whole;
  for (size_t row = 0; row < 3; ++row)
    for (int rank = 0; rank < 2; ++rank)
      for (size_t column = 0; column < 2; ++column)
        whole.push_back(numbers({3, 2}, rank)[2 * row + column]);
  expect_file("c.1.npy", {3, 2}, product(whole, numbers({4, 2}, 5), 3, 4, 2));
  expect_ok(
      "launch -n 2 -- perseid run all-gather-matmul --a '@e.{rank}.npy' --b @b.npy "
      "--out '@d.{rank}.npy'");
  std::vector<double> rows = numbers({1, 2, 4}, 0);
  const std::vector<double> more = numbers({2, 2, 4}, 1);
  rows.insert(rows.end(), more.begin(), more.end());
  expect_file("d.0.npy", {3, 2, 2}, product(rows, numbers({4, 2}, 5), 6, 4, 2));
}

TEST_F(CliRanksTest, MatmulReduceScatterAndAllReduce) {
  std::vector<double> sum(5 * 4);
  for (int rank = 0; rank < 3; ++rank) {
    const int64_t k = 2 + rank;
    write("a." + std::to_string(rank) + ".npy", {5, k}, numbers({5, k}, rank));
    write("b." + std::to_string(rank) + ".npy", {k, 4}, numbers({k, 4}, 10 + rank));
    const auto part =
        product(numbers({5, k}, rank), numbers({k, 4}, 10 + rank), 5, static_cast<size_t>(k), 4);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  const std::string files = "--a '@a.{rank}.npy' --b '@b.{rank}.npy' --out '@c.{rank}.npy'";
  expect_ok("launch -n 3 -- perseid run matmul-all-reduce " + files);
  for (const char* name : {"c.0.npy", "c.1.npy", "c.2.npy"}) expect_file(name, {5, 4}, sum);
  // Rows 0, then 1 to 2, then 3 to 4.
  expect_ok("launch -n 3 -- perseid run matmul-reduce-scatter " + files);
  expect_file("c.0.npy", {1, 4}, {sum.begin(), sum.begin() + 4});
  expect_file("c.1.npy", {2, 4}, {sum.begin() + 4, sum.begin() + 12});
  expect_file("c.2.npy", {2, 4}, {sum.begin() + 12, sum.end()});
  expect_ok("launch -n 3 -- perseid run matmul-reduce-scatter --scatter-dim 1 --reduce average " +
            files);
  std::vector<double> last;
  for (size_t i = 0; i < 5; ++i)
    for (size_t j : {2, 3}) last.push_back(sum[4 * i + j] / 3);
  expect_file("c.2.npy", {5, 2}, last);
}

// Scales that belong to tensors, to the rows of all ranks, or to those of one.
TEST_F(CliRanksTest, MultipliesTypesOf8Bits) {
  const auto name = [](const char* of, int rank) {
    return std::string(of) + "." + std::to_string(rank) + ".npy";
  };
  const std::vector<double> scales = {0.5, 2, 4, 1.5, 0.75}, columns = {2, 0.25, 1, 3};
  std::vector<double> whole, sum(3 * 4);
  for (const int rank : {0, 1}) {
    const Shape shape = {2 + rank, 6};
    const std::vector<double> a = numbers(shape, rank), b = numbers({4, 6}, 10 + rank);
    whole.insert(whole.end(), a.begin(), a.end());
    write(name("a", rank), shape, a);
    write(name("b", rank), {4, 6}, b);
    write(name("s", rank), {2 + rank, 1},
          {scales.begin() + 2 * rank, scales.begin() + 2 + 3 * rank});
    // Depths of 6 and 5, and scales of the ranks' own.
    const int64_t k = 6 - rank;
    write(name("d", rank), {3, k}, numbers({3, k}, 20 + rank));
    write(name("e", rank), {k, 4}, numbers({k, 4}, 30 + rank));
    write(name("r", rank), {3}, {scales.begin() + rank, scales.begin() + 3 + rank});
    write(name("t", rank), {1}, {scales[static_cast<size_t>(rank)]});
    const auto part = product(numbers({3, k}, 20 + rank), numbers({k, 4}, 30 + rank), 3,
                              static_cast<size_t>(k), 4);
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += part[i] * scales[i / 4 + static_cast<size_t>(rank)] * columns[i % 4];
  }
  write("all.npy", {5}, scales);
  write("columns.npy", {1, 4}, columns);
  write("one.npy", {1}, {0.5});
  write("four.npy", {4}, {1, 1, 1, 1});
  const std::string gather =
      "launch -n 2 -- perseid run all-gather-matmul --dtype f8e4m3 --a '@a.{rank}.npy' "
      "--b '@b.{rank}.npy' --transpose-b --out '@c.{rank}.npy'";
  const auto expect_gathered = [&](const std::vector<double>& rows, const std::vector<double>& of,
                                   double tolerance = 1e-6) {
    for (const int rank : {0, 1}) {
      const std::vector<double> lies = numbers({4, 6}, 10 + rank);
      std::vector<double> b(lies.size());
      for (size_t i = 0; i < b.size(); ++i) b[i] = lies[i % 4 * 6 + i / 4];
      std::vector<double> c = product(whole, b, 5, 6, 4);
      for (size_t i = 0; i < c.size(); ++i) c[i] *= rows[i / 4] * of[i % 4];
      expect_file(name("c", rank), {5, 4}, c, f32, tolerance);
    }
  };
  expect_ok(gather + " --scale-a @all.npy --scale-b @columns.npy --accumulation fast");
  expect_gathered(scales, columns);
  expect_ok(gather + " --scale-a '@s.{rank}.npy' --scale-b @columns.npy --output-dtype bf16");
  expect_gathered(scales, columns, 0.3);
  expect_ok(gather + " --scale-a @one.npy --scale-b @one.npy");
  expect_gathered(std::vector<double>(5, 0.5), std::vector<double>(4, 0.5));
  expect_ok(gather + " --scale-a '@s.{rank}.npy' --scale-b @one.npy");
  expect_gathered(scales, std::vector<double>(4, 0.5));

  const std::string reduce =
      "launch -n 2 -- perseid run matmul-all-reduce --dtype f8e5m2 --a '@d.{rank}.npy' "
      "--b '@e.{rank}.npy' --out '@c.{rank}.npy'";
  expect_ok(reduce + " --scale-a '@r.{rank}.npy' --scale-b @columns.npy");
  for (const int rank : {0, 1}) expect_file(name("c", rank), {3, 4}, sum);
  expect_ok(reduce + " --scale-a '@t.{rank}.npy' --scale-b @one.npy");

  expect_refused(gather + " --scale-a @all.npy", 2, "--scale-a and --scale-b go together");
  expect_refused(gather + " --scale-a @four.npy --scale-b @columns.npy", 2,
                 "--scale-a has 4 scales and --scale-b 4, expected one each; or 2 on all ranks, or "
                 "5 and 4");
  expect_refused(reduce + " --scale-a @four.npy --scale-b @columns.npy", 2, "or 3 and 4");
  expect_refused(
      "launch -n 1 -- perseid run matmul-all-reduce --a @d.0.npy --b @e.0.npy --out @c.npy "
      "--scale-a @one.npy --scale-b @one.npy",
      2, "are of 8-bit matrices, got f32");
  expect_refused(gather + " --accumulation slow", 2, "--accumulation must be one of");
  expect_refused(gather + " --output-dtype f8e4m3", 2, "expected f16, bf16 or f32");
}

TEST_F(CliRanksTest, ReportsWhereTheTimeWent) {
  write("x.npy", {4, 4}, numbers({4, 4}, 1));
  write("q.npy", {1, 4, 2, 4}, numbers({4, 8}, 1));
  const std::string files = " --a @x.npy --b @x.npy --out '@c.{rank}.npy'";
  for (const std::string& operation :
       {"all-gather-matmul --fusion fused" + files, "all-gather-matmul --fusion unfused" + files,
        "matmul-all-reduce" + files,
        std::string("context-attention --query @q.npy --key @q.npy --value @q.npy --out "
                    "'@c.{rank}.npy'")}) {
    expect_ok("launch -n 2 -- perseid run " + operation + " --report '@r.{rank}.json'");
    for (const int rank : {0, 1}) {
      const nlohmann::json report =
          nlohmann::json::parse(text_of("r." + std::to_string(rank) + ".json"));
      EXPECT_EQ(report["rank"], rank) << operation;
      EXPECT_EQ(report["chunks"].size(), 3u) << operation;  // two shards, and what is of both
      EXPECT_GT(report["compute_seconds"], 0) << operation;
      EXPECT_LE(report["compute_seconds"], report["seconds"]) << operation;
      EXPECT_GT(report["traceEvents"].size(), 9u) << operation;
    }
  }
  expect_ok(
      "launch -n 2 -- perseid run context-attention --canonical --query @q.npy --key @q.npy "
      "--value @q.npy --out '@c.{rank}.npy'");
  expect_refused("launch -n 1 -- perseid run matmul-all-reduce --canonical" + files, 2,
                 "k of all ranks is 4, expected a multiple of 8");
  expect_refused("launch -n 1 -- perseid run all-gather-matmul --fusion maybe" + files, 2,
                 "--fusion must be auto, fused or unfused, got 'maybe'");
  expect_refused("launch -n 1 -- perseid run matmul-all-reduce --report /nowhere/r.json" + files, 2,
                 "--report /nowhere/r.json cannot be written");
}

TEST_F(CliRanksTest, ChecksCollectives) {
  const nlohmann::json report = json("check collective -n 3 --seed 5");
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["results"].size(), 23u);
  EXPECT_EQ(report["checked"], 67);
  for (const char* ranks : {"65", "0", "-1"})
    expect_refused(std::string("check collective -n ") + ranks, 2, "-n must be from 1 to 64");
  expect_refused("check collective --fuzz 5", 2, "--fuzz is of one rank");
  expect_refused("check collective --dtype f16", 2, "check collective checks all types");
  const nlohmann::json canonical = json("check collective -n 4 --seed 5 --canonical");
  EXPECT_EQ(canonical["failed"], 0);
  EXPECT_EQ(canonical["checked"], 67);
  expect_refused("check collective -n 3 --canonical", 2, "-n must be 1, 2, 4 or 8");
}

TEST_F(CliRanksTest, MeasuresCollectives) {
  const nlohmann::json report =
      json("bench collective -n 3 --m 60 --n 50 --k 40 --seconds 0.05 --dtype bf16");
  ASSERT_EQ(report["results"].size(), 2u);
  for (const nlohmann::json& row : report["results"]) {
    EXPECT_EQ(row["ranks"], 3);
    EXPECT_EQ(row["dtype"], "bf16");
    EXPECT_GT(row["product_seconds"].get<double>(), 0);
    EXPECT_GT(row["transfer_seconds"].get<double>(), 0);
    EXPECT_GT(row["ratio_to_bound"].get<double>(), 0);
  }
  expect_refused("bench collective -n 2 --dtype f8e4m3", 2, "f8e4m3 is measured on GPUs");
  expect_refused("bench collective -n 2 --m 0", 2, "--m must be from 1");
  expect_refused("bench collective -n 2 --k 7 --canonical", 2, "--k must be a multiple of 8");
  expect_refused("bench collective -n 3 --canonical", 2, "-n must be 1, 2, 4 or 8");
  expect_refused("bench collective -n 2 --device cpu --samples s.csv", 2, "--samples needs GPUs");
  expect_refused("bench collective -n 2 --device cpu --report r.json", 2, "--report needs GPUs");
  expect_ok(
      "bench context-attention -n 2 --length 64 --heads 2 --kv-heads 1 --head-dim 16 --seconds "
      "0.05 --backward --canonical");
  const nlohmann::json attention = json(
      "bench context-attention -n 2 --length 64 --heads 2 --kv-heads 1 --head-dim 16 --seconds "
      "0.05");
  ASSERT_EQ(attention["results"].size(), 1u);
  EXPECT_EQ(attention["results"][0]["op"], "context-attention");
  EXPECT_GT(attention["results"][0]["ratio_to_bound"].get<double>(), 0.2);
  expect_refused("bench context-attention -n 2 --length 30", 2, "--length must be a multiple of 4");
  const nlohmann::json all =
      json("bench matmul-all-reduce -n 2 --m 64 --n 32 --k 16 --seconds 0.05");
  ASSERT_EQ(all["results"].size(), 1u);
  EXPECT_EQ(all["results"][0]["op"], "matmul-all-reduce");
  EXPECT_GT(all["results"][0]["transfer_seconds"].get<double>(), 0);
  EXPECT_GT(all["results"][0]["ratio_to_bound"].get<double>(), 0);
}

// Rank 0 explains the plan that all make.
TEST_F(CliRanksTest, ExplainsOperationsOverRanks) {
  const auto explained = [&](const std::string& arguments) {
    const nlohmann::json report = json("explain " + arguments);
    EXPECT_EQ(report["implementations"].size(), 1u) << report.dump(1);
    return std::pair(report["problem"], report["implementations"][0]["reason"].get<std::string>());
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  };
  {
    const auto [problem, reason] =
        explained("all-gather-matmul -n 3 --m 100 --n 8 --k 20 --chunks 2 --fusion fused");
    EXPECT_EQ(problem["ranks"], 3);
    EXPECT_EQ(problem["rank"], 0);
    EXPECT_EQ(problem["m"], 100);
    EXPECT_EQ(problem["chunks"], 6);
    has(reason, "begins with the own shard; fused as asked for: predicted ");
  }
  {
    const auto [problem, reason] =
        explained("all-gather-matmul -n 2 --m 100 --n 8 --k 21 --gather-dim -1 --dtype bf16");
    EXPECT_EQ(problem["gather_dim"], "k");
    EXPECT_EQ(problem["k"], 21);
    EXPECT_EQ(problem["dtype"], "bf16");
    has(reason, "when all shards have arrived; unfused: predicted ");
  }
  {
    const auto [problem, reason] = explained(
        "matmul-reduce-scatter -n 2 --m 512 --n 512 --k 512 --scatter-dim 1 --reduce average "
        "--bias");
    EXPECT_EQ(problem["scatter_dim"], "n");
    EXPECT_EQ(problem["bias"], "yes");
    has(reason, "leaves shard by shard, sums in f32 in the order of ranks");
  }
  has(explained("matmul-all-reduce -n 2 --m 8 --n 8 --k 8 --canonical").second,
      "in pairs of ranks");
  {
    const std::string attention = "context-attention -n 2 --q-len 512 --kv-len 512 --head-dim 64 ";
    const auto [problem, reason] =
        explained(attention + "--heads 8 --kv-heads 2 --placement zigzag --causal bottom-right");
    EXPECT_EQ(problem["placement"], "zigzag");
    EXPECT_EQ(problem["q_len"], 256);
    EXPECT_EQ(problem["kv_heads"], 2);
    has(reason, "begins with the own ones; fused: predicted ");
    has(reason, ", attention ");
    has(explained(attention + "--fusion unfused").second,
        "begins when all have arrived; unfused as asked for: predicted ");
  }
  has(explained("context-attention -n 2 --batch 2 --cu-seqlens-q 0,4,10 --cu-seqlens-kv 0,4,10 "
                "--head-dim 8")
          .second,
      "unfused: each rank has a part of every sequence");
  const std::string text = run("explain matmul-reduce-scatter -n 2 --m 8 --n 8 --k 8").out;
  has(text, "chosen    one cpu:packed");
  expect_refused("explain matmul-reduce-scatter -n 65", 2, "-n must be from 1 to 64");
  expect_refused("explain all-gather-matmul --gather-dim 2", 2,
                 "--gather-dim must be from -2 to 1");
  // Of GPUs that are not there.
  for (const char* operation :
       {"all-gather-matmul", "matmul-reduce-scatter", "matmul-all-reduce",
        "context-attention --heads 8 --q-len 4096 --kv-len 4096 --head-dim 64 --backward",
        "context-attention --batch 2 --cu-seqlens-q 0,4,10 --cu-seqlens-kv 0,4,10 --head-dim 64"}) {
    const nlohmann::json report =
        json("explain " + std::string(operation) + " -n 2 --assume sm_90 --dtype bf16");
    EXPECT_EQ(report["implementation"], "cuda:copy_engines") << operation;
    const std::string reason = report["implementations"][0]["reason"];
    has(reason, std::string(operation).find("cu-seqlens") == std::string::npos ? "one cuda:sm90"
                                                                               : "one cuda:");
    has(reason, "assumed: NVLink at 385 GB/s after 28 us");
  }
  expect_refused("explain all-gather-matmul --assume sm_90 --device cpu", 2,
                 "--assume sm_90 is in place of --device, got --device cpu");
  expect_refused("explain context-attention --q-len 6 --kv-len 6 --head-dim 8 --placement zigzag",
                 2, "--q-len must be a multiple of 4");
  expect_refused("explain context-attention --q-len 6 --kv-len 6 --head-dim 8 --q-lens 6", 2,
                 "expected 0 over ranks");
  expect_refused("explain matmul-reduce-scatter -n 3 --canonical", 3, "expected 1, 2, 4 or 8");
}

TEST_F(CliRanksTest, RefusesWhatDoesNotFitOnAllRanks) {
  write("a.0.npy", {3, 4}, numbers({3, 4}, 0));
  write("a.1.npy", {3, 4}, numbers({3, 4}, 0));
  write("b.0.npy", {4, 2}, numbers({4, 2}, 0));
  write("b.1.npy", {4, 3}, numbers({4, 3}, 0));
  const std::string files = "--a '@a.{rank}.npy' --b '@b.{rank}.npy' --out '@c.{rank}.npy'";
  const Ended ended = run("launch -n 2 -- perseid run matmul-all-reduce " + files);
  EXPECT_EQ(ended.code, 2);
  for (const char* rank : {"rank 0: ", "rank 1: "})
    EXPECT_NE(ended.err.find(rank + std::string("perseid: matmul-all-reduce: n is 3 on rank 1 and "
                                                "2 on rank 0")),
              std::string::npos)
        << ended.err;
  EXPECT_FALSE(std::filesystem::exists(path("c.0.npy")));
  expect_refused("run matmul-all-reduce " + files, 2, "no ranks were started");
  expect_refused("launch -n 2 -- perseid run matmul-reduce-scatter --reduce most " + files, 2,
                 "--reduce must be sum or average");
  expect_refused("launch -n 2 -- perseid run all-gather-matmul --gather-dim 2 " + files, 2,
                 "--gather-dim must be from -2 to 1");
  expect_refused("launch -n 1 -- perseid run matmul-all-reduce --deadline 0 " + files, 2,
                 "--deadline must be a time above 0");
}

// A sequence of 12 positions over three ranks, and the same in one file.
TEST_F(CliRanksTest, ContextAttention) {
  constexpr int kRanks = 3;
  constexpr size_t kRow = 8;  // 2 heads of 4
  std::map<std::string, std::vector<double>> whole;
  for (const char* name : {"q", "k", "v", "do"})
    whole[name] = numbers({12, kRow}, static_cast<int>(name[0]));
  for (const auto& [name, values] : whole) write(name + ".npy", {1, 12, 2, 4}, values);
  const auto rows_of = [](bool zigzag, size_t rank) -> std::vector<size_t> {
    if (!zigzag) return {4 * rank, 4 * rank + 1, 4 * rank + 2, 4 * rank + 3};
    return {2 * rank, 2 * rank + 1, 10 - 2 * rank, 11 - 2 * rank};
  };
  const auto part = [&](const std::vector<double>& values, const std::vector<size_t>& rows) {
    std::vector<double> taken;
    for (const size_t row : rows)
      taken.insert(taken.end(), values.begin() + static_cast<std::ptrdiff_t>(row * kRow),
                   values.begin() + static_cast<std::ptrdiff_t>((row + 1) * kRow));
    return taken;
  };
  const std::string flags = " --causal bottom-right --dropout 0.25 --seed 5 --offset 1 ";
  expect_ok(
      "run attention --query @q.npy --key @k.npy --value @v.npy --out @o.npy --lse @l.npy "
      "--grad-out @do.npy --grad-query @dq.npy --grad-key @dk.npy --grad-value @dv.npy" +
      flags);
  for (const bool zigzag : {false, true}) {
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (const auto& [name, values] : whole)
        write(name + "." + std::to_string(rank) + ".npy", {1, 4, 2, 4},
              part(values, rows_of(zigzag, rank)));
    expect_ok(
        "launch -n 3 -- perseid run context-attention --query '@q.{rank}.npy' --key "
        "'@k.{rank}.npy' --value '@v.{rank}.npy' --out '@o.{rank}.npy' --grad-out "
        "'@do.{rank}.npy' --grad-query '@dq.{rank}.npy' --grad-key '@dk.{rank}.npy' "
        "--grad-value '@dv.{rank}.npy'" +
        flags + (zigzag ? "--placement zigzag --chunks 2" : ""));
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (const char* name : {"o", "dq", "dk", "dv"}) {
        const File file(path(std::string(name) + ".npy"));
        expect_file(std::string(name) + "." + std::to_string(rank) + ".npy", {1, 4, 2, 4},
                    part(harness::values_of(file[size_t{0}]), rows_of(zigzag, rank)), f32, 1e-5);
      }
  }
  const std::string files =
      " --query '@q.{rank}.npy' --key '@k.{rank}.npy' --value '@v.{rank}.npy' --out "
      "'@p.{rank}.npy'";
  expect_refused("launch -n 1 -- perseid run context-attention --placement round" + files, 2,
                 "--placement must be contiguous or zigzag, got 'round'");
  write("q.1.npy", {1, 3, 2, 4}, numbers({3, 8}, 1));
  expect_refused("launch -n 2 -- perseid run context-attention --placement zigzag" + files, 2,
                 "q_len is 3");
  EXPECT_FALSE(std::filesystem::exists(path("p.0.npy")));
}

TEST_F(CliRanksTest, LaunchPassesOnWhatRanksSay) {
  const Ended said =
      run("launch -n 3 -- sh -c 'echo out $PERSEID_RANK of $PERSEID_WORLD_SIZE; "
          "echo one >&2; printf two >&2; exit $PERSEID_RANK'");
  EXPECT_EQ(said.code, 2);
  for (const char* line : {"rank 0: one\n", "rank 0: two\n", "rank 2: one\n", "rank 2: two\n"})
    EXPECT_NE(said.err.find(line), std::string::npos) << said.err;
  EXPECT_NE(said.out.find("out 1 of 3\n"), std::string::npos) << said.out;
  const Ended killed =
      run("launch -n 2 -- sh -c 'test $PERSEID_RANK = 0 || kill -9 $$; sleep 0.2'");
  EXPECT_EQ(killed.code, 5);
  EXPECT_NE(killed.err.find("rank 1: ended by signal 9"), std::string::npos) << killed.err;
  expect_refused("launch -n 0 -- true", 2, "-n must be from 1 to 64");
  expect_refused("launch -n 65 -- true", 2, "-n must be from 1 to 64");
  expect_refused("launch -n 2 -- /nowhere/program", 127, "cannot start '/nowhere/program'");
  expect_refused("launch -n 2", 2, "command");
}

TEST_F(CliRanksTest, LaunchPassesSignalsOn) {
  std::ofstream(path("rank.sh"))
      << "trap 'echo stopped >&2; exit 7' TERM; echo ready >&2; while :; do sleep 0.05; done\n";
  const std::string command =
      in_folder(PERSEID_CLI
                " launch -n 2 -- sh @rank.sh 2>@errors & pid=$!; "
                "until [ \"$(grep -c ready @errors 2>@none)\" = 2 ]; do sleep 0.05; "
                "done; kill -TERM $pid; wait $pid; exit $?");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7);
  const std::string errors = text_of("errors");
  EXPECT_NE(errors.find("rank 0: stopped"), std::string::npos) << errors;
  EXPECT_NE(errors.find("rank 1: stopped"), std::string::npos) << errors;
}

// Nothing is left where the ranks met.
TEST_F(CliRanksTest, LaunchStartsRanksAgain) {
  const std::string once = " -- sh -c 'test -e @mark || { touch @mark; kill -9 $$; }'";
  expect_refused("launch -n 1 --restarts 0" + once, 5, "rank 0: ended by signal 9");
  std::filesystem::remove(path("mark"));
  const Ended ended = run("launch -n 2 --restarts 2" + once);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find(": started again"), std::string::npos) << ended.err;
  expect_refused("launch -n 1 --restarts 2 -- sh -c 'echo here >&2; kill -9 $$'", 5,
                 "rank 0: here\nrank 0: ended by signal 9 (Killed)\nrank 0: started again\n"
                 "rank 0: here\nrank 0: ended by signal 9 (Killed)\nrank 0: started again\n"
                 "rank 0: here\nrank 0: ended by signal 9 (Killed)\n");
  expect_refused("launch -n 1 --restarts -1" + once, 2, "--restarts must be at least 0, got -1");
}

TEST_F(CliRanksTest, LaunchLeavesNothingBehind) {
  std::filesystem::create_directory(path("tmp"));
  const std::string command =
      in_folder("TMPDIR=@tmp " PERSEID_CLI " launch -n 2 -- sh -c 'kill -9 $$' 2>/dev/null");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 5);
  EXPECT_TRUE(std::filesystem::is_empty(path("tmp")));
}

}  // namespace
}  // namespace perseid
