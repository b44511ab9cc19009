// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Reports of check and bench: what is shown without and with --verbose, lines that fit, rows that
// can be measured again, comparison with an older report, the page.
#include <algorithm>

#include "cli_test_tools.hpp"
#include "xml.hpp"

namespace perseid {
namespace {

using CliReportsTest = CliTest;

size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++count;
  return count;
}

size_t longest_line(const std::string& text) {
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

constexpr const char* kProblems =
    R"({"op":"softmax","shape":[3,4],"backward":true})"
    "\n"
    R"({"op":"softmax","dtype":"bf16","shape":[3,4]})"
    "\n"
    R"({"op":"matmul","m":3,"n":4,"k":5,"transpose_b":true})"
    "\n"
    R"({"op":"attention","batch":2,"heads":4,"kv_heads":2,"q_len":9,"kv_len":1100,"head_dim":16,)"
    R"("causal":"bottom-right","window":[1000,1000],"dropout":0.1,"bias":[1,4,1,1100],)"
    R"("visible":[1,1,1,1100]})"
    "\n";

TEST_F(CliReportsTest, CheckShowsALineForEachOperationUnlessAskedForMore) {
  std::ofstream(path("p.jsonl")) << kProblems;
  const Ended brief = run("check --problems @p.jsonl --device cpu");
  EXPECT_EQ(brief.code, 0) << brief.err;
  EXPECT_EQ(count_of(brief.out, "\nsoftmax "), 1u) << brief.out;
  EXPECT_EQ(count_of(brief.out, "f32 bf16 "), 1u) << brief.out;
  EXPECT_EQ(count_of(brief.out, "  ok\n"), 3u) << brief.out;
  EXPECT_NE(brief.out.find("as a fraction of what is allowed"), std::string::npos);
  const Ended rows = run("check --problems @p.jsonl --device cpu --verbose");
  EXPECT_EQ(count_of(rows.out, "\nsoftmax "), 4u) << rows.out;
  EXPECT_NE(
      rows.out.find("B batch; H heads; KV key and value heads; M queries; N keys; D head dim"),
      std::string::npos)
      << rows.out;
  // A single problem is few rows.
  EXPECT_EQ(count_of(run("check softmax --shape 3,4 --device cpu").out, "\nsoftmax "), 2u);
}

TEST_F(CliReportsTest, CheckNamesWhatFailed) {
  std::ofstream(path("p.jsonl")) << kProblems << R"({"op":"matmul","m":3,"n":4,"k":-5})"
                                 << "\n";
  const Ended ended = run("check --problems @p.jsonl --device cpu");
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.out.find("FAILED 1\n"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("again: perseid check matmul --m=3 --n=4 --k=-5"), std::string::npos);
}

TEST_F(CliReportsTest, LinesFitTheTerminal) {
  std::ofstream(path("p.jsonl")) << kProblems;
  const auto expect_within = [&](const char* columns, const std::string& command, size_t width) {
    setenv("COLUMNS", columns, 1);
    const Ended ended = run(command);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_LE(longest_line(ended.out), width) << ended.out;
    EXPECT_GT(longest_line(ended.out), width / 2) << ended.out;
    // A legend of what is there.
    const std::string titles = ended.out.substr(0, ended.out.find('\n'));
    for (const char* title : {"error", "ratio"})
      EXPECT_EQ(titles.find(std::string(" ") + title) != titles.npos,
                ended.out.find("\n" + std::string(title) + ": ") != titles.npos)
          << ended.out;
  };
  for (const auto& [columns, width] :
       {std::pair<const char*, size_t>{"80", 80}, {"100", 100}, {"200", 100}, {"none", 100}}) {
    expect_within(columns, "check --problems @p.jsonl", width);
    expect_within(columns, "check --problems @p.jsonl --verbose", width);
  }
  for (const auto& [columns, width] : {std::pair<const char*, size_t>{"80", 80}, {"120", 100}})
    expect_within(columns, "bench attention --problems @p.jsonl --seconds 0.001", width);
  unsetenv("COLUMNS");
}

TEST_F(CliReportsTest, RowsOfBenchAreWholeProblems) {
  const nlohmann::json report = json(
      "bench attention --q-len 16 --kv-len 8 --head-dim 8 --causal top-left --threads 1 "
      "--seconds 0.001 --no-error");
  const nlohmann::json& row = report["rows"][0];
  // Defaults too: a later version may have others.
  EXPECT_EQ(row["problem"]["batch"], 1);
  EXPECT_EQ(row["problem"]["dtype"], "f32");
  EXPECT_EQ(row["problem"]["causal"], "top-left");
  EXPECT_EQ(row["device"], "cpu");
  EXPECT_EQ(report["seconds"], 0.001);
  EXPECT_GT(report["ceilings"][0]["rate"].get<double>(), 0);
  std::ofstream(path("again.jsonl")) << row["problem"].dump() << "\n";
  const nlohmann::json again =
      json("bench --problems @again.jsonl --seconds 0.001 --no-error")["rows"][0];
  EXPECT_EQ(again["problem"], row["problem"]);
  std::string command = row["command"];
  ASSERT_TRUE(command.starts_with("perseid bench ")) << command;
  EXPECT_EQ(json(command.substr(8))["rows"][0]["problem"], row["problem"]);
}

TEST_F(CliReportsTest, BenchAgainstAnOlderReport) {
  const std::string measure = "bench softmax --shape 8,64 --threads 1 --seconds 0.01 ";
  nlohmann::json old = json(measure);
  const auto save = [&](double fraction, double rate) {
    old["rows"][0]["fraction"] = fraction;
    old["rows"][0]["rate"] = rate;
    std::ofstream(path("old.json")) << old.dump();
  };
  save(1e-6, 1);
  const Ended faster = run(measure + "--against @old.json");
  EXPECT_EQ(faster.code, 0) << faster.err;
  EXPECT_NE(faster.out.find("0.95  ok\n"), std::string::npos) << faster.out;
  save(1e6, 1e30);
  const Ended slower = run(measure + "--against @old.json --threshold 0.5");
  EXPECT_EQ(slower.code, 1) << slower.err;
  EXPECT_NE(slower.out.find("0.50  SLOWER\n"), std::string::npos) << slower.out;
  EXPECT_NE(slower.err.find("1 of 1 rows are slower than in"), std::string::npos) << slower.err;
  // Without a problem its own are measured, as JSON too.
  const Ended own = run("bench --against @old.json --seconds 0.001 --json --html @page.html");
  EXPECT_EQ(own.code, 1) << own.err;
  const nlohmann::json report = nlohmann::json::parse(own.out, nullptr, false);
  ASSERT_EQ(report["rows"].size(), 1u);
  EXPECT_EQ(report["rows"][0]["problem"], old["rows"][0]["problem"]);
  EXPECT_FALSE(report["rows"][0]["against"]["ok"].get<bool>());
  EXPECT_EQ(report["rows"][0]["against"]["of"], "fraction");
  EXPECT_NE(text_of("page.html").find("1 of 1 rows fell below"), std::string::npos);

  const std::string with = " --against @old.json";
  expect_refused("bench softmax --shape 8,65 --seconds 0.001" + with, 2, "has none of these rows");
  expect_refused("bench matmul" + with, 2, "no row of");
  expect_refused("bench --threshold 0" + with, 2, "--threshold must be above 0 and at most 1");
  expect_refused("bench --impl cpu:simd" + with, 2, "--impl with --against needs a problem");
  expect_refused("bench --against @none.json", 2, "cannot read");
  std::ofstream(path("old.json")) << "{}";
  expect_refused("bench" + with, 2, "is no report of measurements");
}

TEST_F(CliReportsTest, BenchWritesAPage) {
  std::ofstream(path("p.jsonl")) << kProblems;
  const std::string measure = "bench --problems @p.jsonl --seconds 0.001 ";
  expect_ok(measure + "--html @page.html");
  const std::string page = text_of("page.html");
  EXPECT_EQ(xml_error(page), "");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("<h2>Machine</h2>"), std::string::npos);
  // A command breaks between its flags.
  EXPECT_NE(page.find("<code><span>perseid</span> <span>bench</span> <span>--device</span> "),
            std::string::npos);
  EXPECT_EQ(count_of(page, "<div class=\"bar\">"), count_of(page, "<b style"));
  EXPECT_GE(count_of(page, "<div class=\"bar\">"), 4u);
  // The file is tried first, and nothing else is left.
  std::filesystem::create_directory(path("folder"));
  for (const char* where : {"@nowhere/page.html", "@folder"}) {
    const Ended ended = run(measure + "--html " + where);
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.err.find("cannot write '"), std::string::npos) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
  expect_refused(measure + "--html /dev/full", 2, "No space left on device");
  for (const auto& entry : std::filesystem::directory_iterator(path("")))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace perseid
