// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Measurements: what a row holds, ceilings that are the highest seen, comparison with an older
// report, and the page.
#include "harness/bench.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "harness/bench_json.hpp"
#include "harness/bench_page.hpp"
#include "harness/problem_text.hpp"
#include "harness/roofline.hpp"
#include "table.hpp"
#include "xml.hpp"

namespace perseid::harness {
namespace {

Problem problem_of(const char* text) { return from_json(nlohmann::json::parse(text)); }

const char* const kSoftmax = R"({"op":"softmax","shape":[64,128],"backward":true,"threads":1})";

TEST(Bench, ReducedProblemsKeepTheirKind) {
  const Problem attention = reduced(problem_of(
      R"({"op":"attention","batch":2,"heads":8,"kv_heads":4,"q_len":4096,"kv_len":4096,
          "head_dim":128,"bias":[2,8,1,4096],"backward":true})"));
  EXPECT_EQ(attention.heads, 2);
  EXPECT_EQ(attention.key_heads(), 1);
  EXPECT_LT(attention.q_len, 1100);
  EXPECT_EQ(attention.bias, (Shape{1, 2, 1, attention.kv_len}));
  const Problem softmax = reduced(problem_of(R"({"op":"softmax","shape":[524288,64]})"));
  EXPECT_EQ(softmax.shape[1], 64);
  const Problem matmul = reduced(problem_of(R"({"op":"matmul","m":2048,"n":2048,"k":2048})"));
  EXPECT_EQ(matmul.k, 2048);
}

TEST(Bench, MeasuresBothDirections) {
  const Context context = Context::cpu(1);
  Ceilings ceilings;
  const std::vector<BenchRow> rows =
      bench(context, context, problem_of(kSoftmax), {.seconds = 0.01}, ceilings);
  ASSERT_EQ(rows.size(), 2u);
  for (const BenchRow& row : rows) {
    ASSERT_TRUE(row.outcome.ok()) << row.outcome.sentence;
    EXPECT_GT(row.timing.least, 0);
    EXPECT_GE(row.timing.median, row.timing.least);
    EXPECT_DOUBLE_EQ(row.rate, row.bytes / row.timing.least);
    EXPECT_GT(row.fraction(), 0);
    EXPECT_EQ(row.ceiling, ceilings.highest(*row.ceiling_of));
    ASSERT_TRUE(row.error.has_value());
    EXPECT_LT(row.error->largest, 1e-4);
    EXPECT_GT(row.error->relative, 0);
    EXPECT_LE(row.error->relative, 1);
    EXPECT_EQ(row.error->complaint, "");
    const nlohmann::json json = to_json(row, 0.01);
    EXPECT_EQ(json["unit"], "B/s");
    EXPECT_GT(json["bytes"].get<double>(), 64 * 128 * 8 - 1);
    // The row holds all that measuring it again needs.
    EXPECT_EQ(to_flags(from_json(json["problem"])), to_flags(problem_of(kSoftmax)));
    EXPECT_EQ(json["command"],
              "perseid bench --device cpu --seconds 0.01 softmax --threads=1 --backward "
              "--shape=64,128");
  }
}

// ---- Ceilings ---------------------------------------------------------------------------------

TEST(Ceilings, KeepTheHighestOfEachKind) {
  const Context context = Context::cpu(1);
  double next = 3;
  Ceilings ceilings([&](const Context&, perseid_ceiling, uint64_t) { return next; });
  const CeilingKey copy{.threads = 1, .ceiling = PERSEID_CEILING_COPY, .bytes = 10};
  CeilingKey larger = copy, threads = copy;
  larger.bytes = 20;
  threads.threads = 2;
  EXPECT_EQ(ceilings.highest(copy), 0);
  EXPECT_EQ(ceilings.measure(context, copy), 3);
  next = 1;
  EXPECT_EQ(ceilings.measure(context, copy), 3);
  EXPECT_EQ(ceilings.measure(context, larger), 1);
  EXPECT_EQ(ceilings.measure(context, threads), 1);
  next = 5;
  EXPECT_EQ(ceilings.measure(context, copy), 5);
  EXPECT_EQ(ceilings.highest(copy), 5);
  EXPECT_EQ(ceilings.highest(larger), 1);
}

// A measured time above its ceiling is measured three times more, then marked.
TEST(Ceilings, RowsAboveAreMeasuredAgainThenMarked) {
  const Context context = Context::cpu(1);
  const Problem problem = problem_of(R"({"op":"softmax","shape":[64,128],"threads":1})");
  const BenchOptions options{.seconds = 0.001, .error = false};
  int measured = 0;
  Ceilings low([&](const Context&, perseid_ceiling, uint64_t) { return ++measured, 1.0; });
  BenchRow row = bench(context, context, problem, options, low).front();
  EXPECT_EQ(row.attempts, 4);
  EXPECT_TRUE(row.disturbed());
  EXPECT_TRUE(to_json(row, 1)["disturbed"].get<bool>());
  EXPECT_GE(measured, 8);

  // A ceiling that is found in time.
  measured = 0;
  Ceilings late(
      [&](const Context&, perseid_ceiling, uint64_t) { return ++measured > 10 ? 1e15 : 1.0; });
  row = bench(context, context, problem, options, late).front();
  EXPECT_GT(row.attempts, 1);
  EXPECT_FALSE(row.disturbed());

  // One that another row finds later.
  Ceilings higher([](const Context&, perseid_ceiling, uint64_t) { return 1e15; });
  row = bench(context, context, problem, options, low).front();
  higher.measure(context, *row.ceiling_of);
  hold_to_highest(row, higher);
  EXPECT_FALSE(row.disturbed());
  EXPECT_EQ(row.ceiling, 1e15);

  Ceilings high([](const Context&, perseid_ceiling, uint64_t) { return 1e15; });
  EXPECT_EQ(bench(context, context, problem, options, high).front().attempts, 1);
}

// ---- Comparison -------------------------------------------------------------------------------

BenchRow row_of(const char* problem, double rate, double ceiling) {
  BenchRow row;
  row.problem = problem_of(problem);
  row.threads = row.problem.threads;
  row.rate = rate;
  row.flops = row.bytes = rate;
  row.timing = {1, 1, 1};
  row.most = 1.02;
  row.ceiling = ceiling;
  if (ceiling > 0) row.ceiling_of = CeilingKey{.threads = 1, .ceiling = PERSEID_CEILING_COPY};
  return row;
}

std::string report_of(const BenchRow& row, double threshold = 0) {
  nlohmann::json json = to_json(row, 1);
  if (threshold > 0) json["threshold"] = threshold;
  return nlohmann::json{{"rows", {json}}}.dump();
}

TEST(Baseline, ComparesFractionsOrRates) {
  const Baseline old(report_of(row_of(kSoftmax, 50, 100)), "old.json", 0.95);
  ASSERT_EQ(old.problems().size(), 1u);
  EXPECT_EQ(to_flags(old.problems()[0]), to_flags(problem_of(kSoftmax)));
  // Twice the rate under twice the ceiling is the same fraction.
  auto comparison = old.compare(row_of(kSoftmax, 100, 200));
  ASSERT_TRUE(comparison.has_value());
  EXPECT_DOUBLE_EQ(comparison->ratio, 1);
  EXPECT_TRUE(comparison->of_fractions);
  EXPECT_TRUE(comparison->ok());
  EXPECT_FALSE(old.compare(row_of(kSoftmax, 94, 200))->ok());
  EXPECT_TRUE(old.compare(row_of(kSoftmax, 96, 200))->ok());
  // Without a ceiling, or held to another one, the rates are compared.
  EXPECT_DOUBLE_EQ(old.compare(row_of(kSoftmax, 25, 0))->ratio, 0.5);
  BenchRow read = row_of(kSoftmax, 25, 100);
  read.ceiling_of->ceiling = PERSEID_CEILING_READ;
  EXPECT_DOUBLE_EQ(old.compare(read)->ratio, 0.5);
  EXPECT_FALSE(old.compare(read)->of_fractions);
  // Another problem, direction, number of threads or device is another row.
  BenchRow other = row_of(kSoftmax, 50, 100);
  other.direction = Direction::kBackward;
  EXPECT_FALSE(old.compare(other).has_value());
  EXPECT_FALSE(old.compare(row_of(R"({"op":"softmax","shape":[64,129],"backward":true,
                                      "threads":1})",
                                  50, 100))
                   .has_value());
  other = row_of(kSoftmax, 50, 100);
  other.problem.threads = 2;
  EXPECT_FALSE(old.compare(other).has_value());
  other = row_of(kSoftmax, 50, 100);
  other.device = "cuda:0";
  EXPECT_FALSE(old.compare(other).has_value());
}

TEST(Baseline, RowsMayHaveThresholdsOfTheirOwn) {
  const Baseline old(report_of(row_of(kSoftmax, 50, 100), 0.5), "old.json", 0.95);
  const auto comparison = old.compare(row_of(kSoftmax, 30, 100));
  EXPECT_DOUBLE_EQ(comparison->threshold, 0.5);
  EXPECT_TRUE(comparison->ok());
}

TEST(Baseline, NamesWhatIsWrongWithAReport) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      const Baseline baseline(text, "old.json", 0.95);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const char* text : {"", "[]", "{}", R"({"rows":3})", "\xff"})
    EXPECT_NE(complaint(text).find("'old.json' is no report of measurements"), std::string::npos)
        << text;
  EXPECT_NE(complaint(R"({"rows":[]})").find("has no measured row"), std::string::npos);
  EXPECT_NE(
      complaint(R"({"rows":[{"problem":{"op":"conv"}}]})").find("old.json, row 0: there is no"),
      std::string::npos);
  EXPECT_NE(complaint(R"({"rows":[{}]})").find("row 0: expected an object with \"problem\""),
            std::string::npos);
  EXPECT_NE(complaint(R"({"rows":[{"problem":{"op":"matmul"},"rate":"x"}]})")
                .find("\"rate\" is \"x\", expected a number"),
            std::string::npos);
}

// ---- The page ---------------------------------------------------------------------------------

TEST(Page, EscapesWhatIsNotItsOwn) {
  EXPECT_EQ(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escaped("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8c\xa0\t\n"),
            "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8c\xa0\t\n");
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(escaped("\x01\x1b"), bad + bad);
  EXPECT_EQ(escaped("\xc3"), bad);                      // cut
  EXPECT_EQ(escaped("\xe2\x82"), bad + bad);            // cut
  EXPECT_EQ(escaped("\xc0\xaf"), bad + bad);            // overlong
  EXPECT_EQ(escaped("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(escaped("\xef\xbf\xbf"), bad + bad + bad);  // no character
  EXPECT_EQ(escaped("\xc2\x85"), bad + bad);            // a control character
  EXPECT_EQ(escaped("\xf5\x80\x80\x80").size(), 4 * bad.size());
}

nlohmann::json report_with(const std::string& hostile) {
  nlohmann::json rows = nlohmann::json::array();
  rows.push_back(to_json(row_of(kSoftmax, 50, 100), 1));
  rows.push_back(to_json(row_of(R"({"op":"matmul","m":8,"n":8,"k":8,"threads":1})", 70, 0), 1));
  rows.back()["ceiling"] = {{"name", hostile}, {"rate", 300}};
  rows.back()["fraction"] = 1.5;
  rows.back()["disturbed"] = true;
  rows.back()["implementation"] = hostile;
  rows.back()["command"] = hostile;
  rows.back()["error"] = {{"relative", 0.25}};
  rows.push_back({{"problem", {{"op", "softmax"}, {"shape", {2, 2}}}}, {"status", hostile}});
  rows[0]["against"] = {{"ratio", 0.5}, {"threshold", 0.9}, {"ok", false}};
  return {{"date", hostile},
          {"seconds", 1},
          {"ceilings",
           {{{"name", hostile}, {"device", "cpu"}, {"threads", 1}, {"rate", 200}},
            {{"name", "copy"}, {"device", "cpu"}, {"threads", 1}, {"rate", 100}, {"bytes", 64}}}},
          {"machine",
           {{"version", hostile},
            {"device", {{"model", hostile}, {hostile, {1, hostile}}, {"caches", {{{"a", 1}}}}}}}},
          {"rows", rows}};
}

TEST(Page, IsWellFormedWhateverItShows) {
  for (const std::string hostile : {"plain", "</title><script>alert(1)</script>",
                                    "\"><img src='x'>", "a & b ]]> <!-- ", "\xff\xfe\x01", ""}) {
    const std::string page = bench_page(report_with(hostile));
    EXPECT_EQ(xml_error(page), "") << page;
    EXPECT_EQ(page.find("<script"), std::string::npos);
    EXPECT_EQ(page.find("<img"), std::string::npos);
    EXPECT_NE(page.find("<svg"), std::string::npos);
    EXPECT_NE(page.find("<circle"), std::string::npos);
    EXPECT_NE(page.find("disturbed"), std::string::npos);
    EXPECT_NE(page.find("0.50 (at least 0.90)"), std::string::npos);
    EXPECT_NE(page.find("1 of 3 rows fell below"), std::string::npos);
  }
  // Nothing is loaded from elsewhere: the only address is the name of a format.
  for (const char* word : {"src=", "href=", "url(", "@import"})
    EXPECT_EQ(bench_page(report_with("plain")).find(word), std::string::npos) << word;
  EXPECT_EQ(xml_error(bench_page(nlohmann::json::object())), "");
}

// A column of equal cells would push others out of the window.
TEST(Page, NamesTheOnlyGroupInTheTitle) {
  nlohmann::json report = report_with("plain");
  EXPECT_NE(bench_page(report).find(">on</th>"), std::string::npos);
  report["rows"].erase(2);  // the one without threads
  for (nlohmann::json& row : report["rows"]) row["threads"] = 1;
  const std::string page = bench_page(report);
  EXPECT_EQ(page.find(">on</th>"), std::string::npos);
  EXPECT_NE(page.find("<h2>Fractions of the ceilings, one thread of the CPU</h2>"),
            std::string::npos);
}

TEST(Page, ReaderOfTheTestsSeesWhatIsWrong) {
  EXPECT_EQ(xml_error("<a b='1'><c/>x &amp; y</a>\n"), "");
  for (const char* text : {"<a>", "<a></b>", "<a b></a>", "<a b=1></a>", "<a>&</a>", "<a>&x;</a>",
                           "<a b='<'></a>", "<a>x</a><c/>", "", "<a b='1' b='2'/>", "x<a/>"})
    EXPECT_NE(xml_error(text), "") << text;
}

TEST(Roofline, PutsPointsUnderTheirRoofs) {
  const std::vector<Roof> roofs = {{"peak", false, 1e11}, {"read", true, 1e10}};
  const std::string svg =
      roofline_svg({{7, "matmul", "it", 100, 5e10}, {8, "softmax", "", 1, 8e9}}, roofs);
  EXPECT_EQ(xml_error(svg), "");
  EXPECT_NE(svg.find("peak, 100 GFLOP/s"), std::string::npos);
  EXPECT_NE(svg.find("slope: read, 10.0 GB/s"), std::string::npos);
  EXPECT_NE(svg.find("<title>it</title>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  // Points that cover each other have one label.
  EXPECT_NE(roofline_svg({{1, "matmul", "", 9, 9}, {2, "matmul", "", 9, 9.01}}, roofs)
                .find(">1, 2</text>"),
            std::string::npos);
  // Without FLOPs there is nothing to draw, without roofs no roof.
  EXPECT_EQ(roofline_svg({{1, "softmax", "", 0, 0}}, roofs), "");
  EXPECT_EQ(xml_error(roofline_svg({{1, "softmax", "", 1, 1}}, {})), "");
}

// ---- Text for people --------------------------------------------------------------------------

TEST(Report, DurationsHaveThreeDigitsAndAUnit) {
  using cli::duration;
  EXPECT_EQ(duration(0), "0.00 ns");
  EXPECT_EQ(duration(8.5e-7), "850 ns");
  EXPECT_EQ(duration(9.996e-7), "1.00 us");
  EXPECT_EQ(duration(1.234e-3), "1.23 ms");
  EXPECT_EQ(duration(0.04567), "45.7 ms");
  EXPECT_EQ(duration(45.62), "45.6 s");
  EXPECT_EQ(duration(59.96), "1 min 0 s");
  EXPECT_EQ(duration(125), "2 min 5 s");
  EXPECT_EQ(duration(3 * 3600 + 65), "3 h 1 min");
  EXPECT_EQ(cli::clock_time(7.4), "7 s");
  EXPECT_EQ(duration(std::nan("")), "unknown");
  EXPECT_EQ(rate_text(3.14159e10, "FLOP/s"), "31.4 GFLOP/s");
  EXPECT_EQ(rate_text(999.6e9, "B/s"), "1.00 TB/s");
}

TEST(Report, TablesFitTheirWidth) {
  cli::Table table({{"operation"},
                    {"problem", cli::Align::kLeft, 6},
                    {"time", cli::Align::kRight, 0, 1},
                    {""},
                    {"rate", cli::Align::kRight, 0, 2}});
  table.add({"softmax", "a long problem", "1.23 ms", "", "5"});
  table.add({"softmax", "\033[32mok\033[0m", "\xc2\xb5", "", "17"});
  EXPECT_EQ(table.text(100),
            "operation  problem            time  rate\n"
            "softmax    a long problem  1.23 ms     5\n"
            "softmax    \033[32mok\033[0m                    \xc2\xb5    17\n");
  EXPECT_EQ(table.text(36),
            "operation  problem        time  rate\n"
            "softmax    a long p..  1.23 ms     5\n"
            "softmax    \033[32mok\033[0m                \xc2\xb5    17\n");
  EXPECT_EQ(table.text(25),
            "operation  problem   rate\n"
            "softmax    a long..     5\n"
            "softmax    \033[32mok\033[0m          17\n");
  for (size_t width = 17; width < 60; ++width) {
    const std::string text = table.text(width);
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      EXPECT_LE(cli::display_width(text.substr(begin, end - begin)), width) << text;
    }
  }
  EXPECT_EQ(table.text(1), table.text(17));  // what cannot be cut stays
}

TEST(Report, SentencesAreWrapped) {
  EXPECT_EQ(cli::wrapped("one two three", 100), "one two three");
  EXPECT_EQ(cli::wrapped("one two three", 8), "one two\nthree");
  EXPECT_EQ(cli::wrapped("one twothreefour five", 8, 2), "one\n  twothreefour\n  five");
  EXPECT_EQ(cli::wrapped("", 8), "");
  EXPECT_EQ(cli::hanging("name  one two three", 13, 6), "name  one two\n      three");
  EXPECT_EQ(cli::hanging("name  one", 13, 6), "name  one");
  EXPECT_EQ(cli::wrapped_command("  program run --one 1 --two 2", 100),
            "  program run --one 1 --two 2");
  EXPECT_EQ(cli::wrapped_command("  program run --one 1 --two 2", 24),
            "  program run --one 1 \\\n      --two 2");
}

}  // namespace
}  // namespace perseid::harness
