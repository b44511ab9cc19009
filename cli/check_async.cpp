// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "check_async.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "arriving.hpp"
#include "harness/data.hpp"
#include "harness/launch.hpp"
#include "harness/problem_text.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using harness::Operands;
using harness::Problem;

// Orders of arrival of each problem, of which the last loses a chunk.
constexpr int kOrders = 16;
constexpr int64_t kMostChunks = 16;
constexpr int64_t kMostDelay = 200;   // microseconds
constexpr double kMostBytes = 256e6;  // of a problem's tensors
constexpr auto kLostDeadline = std::chrono::milliseconds(20);
constexpr auto kDeadline = std::chrono::seconds(60);

struct Verdict {
  std::string implementation, complaint;
  int orders = 0;
};

MatmulOptions options_of(const Problem& problem) {
  return {.dtype = problem.type(),
          .out_dtype = problem.result_type(),
          .batch = problem.batch,
          .m = problem.m,
          .n = problem.n,
          .k = problem.k,
          .alpha = problem.alpha,
          .beta = problem.beta,
          .bias = !problem.bias.empty(),
          .b_dtype = problem.type_of_b(),
          .scaling = static_cast<Scaling>(problem.scaling.value),
          .accumulation = static_cast<Accumulation>(problem.accumulation.value),
          .scale_result = problem.scale_result,
          .activation = static_cast<Activation>(problem.activation.value),
          .amax = problem.amax,
          .implementation = problem.impl.empty() ? nullptr : problem.impl.c_str()};
}

MatmulArguments arguments_of(const Problem& problem, const Operands& operands) {
  const auto view = [&](const char* name, bool transpose = false) {
    const harness::Array* array = operands.find(name);
    if (array == nullptr) return Tensor();
    return transpose ? array->tensor().transposed() : array->tensor();
  };
  return {.a = view("a", problem.transpose_a),
          .b = view("b", problem.transpose_b),
          .c0 = view("c0"),
          .bias = view("bias"),
          .c = view("c"),
          .scale_a = view("scale_a"),
          .scale_b = view("scale_b"),
          .scale_result = view("scale_result"),
          .amax = view("amax")};
}

// How one operand arrives.
struct Draw {
  ChunkDim dim = ChunkDim::kM;
  int64_t count = 1, pivot = 0;
  std::vector<Delivery> order;
  std::optional<int64_t> lost;  // the first one in the order of visits

  std::string text() const {
    constexpr const char* kNames[] = {"", "m", "n", "k"};
    std::vector<int64_t> chunks;
    for (const Delivery& delivery : order) chunks.push_back(delivery.chunk);
    return fmt::format("{} chunks of {}, pivot {}, arriving {}", count,
                       kNames[static_cast<int>(dim)], pivot, fmt::join(chunks, ","));
  }
};

Draw draw_arrival(const Problem& problem, std::mt19937_64& random, bool loses) {
  const auto from = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  constexpr ChunkDim kDims[] = {ChunkDim::kM, ChunkDim::kN, ChunkDim::kK};
  Draw draw;
  const int64_t drawn = from(0, 2);
  draw.dim = kDims[drawn];
  const int64_t sizes[] = {problem.m, problem.n, problem.k};
  draw.count = from(1, std::min(sizes[drawn], kMostChunks));
  if (draw.dim != ChunkDim::kK) draw.pivot = from(0, draw.count - 1);
  std::vector<int64_t> chunks(static_cast<size_t>(draw.count));
  std::iota(chunks.begin(), chunks.end(), 0);
  std::shuffle(chunks.begin(), chunks.end(), random);
  if (loses) {
    draw.lost = chunks.back();
    chunks.pop_back();
  }
  const int64_t delay = from(0, 1) * kMostDelay;
  for (const int64_t chunk : chunks)
    draw.order.push_back({chunk, std::chrono::microseconds(from(0, delay))});
  return draw;
}

// "" where the product is right, or ends as it should.
std::string run_one(const Context& context, const Problem& problem, const Operands& expected,
                    const Draw& draw) {
  const Operands operands(problem);
  MatmulArguments arguments = arguments_of(problem, operands);
  const bool of_a = draw.dim == ChunkDim::kM || (draw.dim == ChunkDim::kK && draw.count % 2 == 0);
  ArrivingOperand arriving =
      ArrivingOperand::cut(arguments.a, arguments.b, of_a, draw.dim, draw.count);
  arriving.pivot = draw.pivot;
  arriving.deadline = draw.lost ? std::chrono::nanoseconds(kLostDeadline) : kDeadline;
  MatmulOptions options = options_of(problem);
  options.async_a = arriving.chunks_of(true);
  options.async_b = arriving.chunks_of(false);
  const Matmul matmul(context, options);
  Workspace workspace;
  matmul.reserve(workspace);
  arriving.matrix->start(context, draw.order);
  if (draw.lost) arriving.matrix->finish();  // one chunk alone is missing
  (of_a ? arguments.a : arguments.b) = arriving.matrix->tensor();
  arguments.arrival_a = arriving.arrival_of(true);
  arguments.arrival_b = arriving.arrival_of(false);
  const bool reads = problem.alpha != 0 && problem.batch > 0;
  try {
    matmul.execute(nullptr, arguments, workspace);
    if (draw.lost && reads) return fmt::format("ended without chunk {}", *draw.lost);
  } catch (const Error& error) {
    const std::string wanted = draw.lost ? fmt::format("chunk {} of {}: not arrived within 20 ms",
                                                       *draw.lost, of_a ? "a" : "b")
                                         : "";
    if (draw.lost && error.status() == PERSEID_TIMEOUT &&
        std::string(error.what()).find(wanted) != std::string::npos)
      return "";
    return error.what();
  }
  for (const char* name : {"c", "amax"}) {
    if (operands.find(name) == nullptr) continue;
    const auto got = operands.find(name)->values(), plain = expected.find(name)->values();
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i] != plain[i] && !(std::isnan(got[i]) && std::isnan(plain[i])))
        return fmt::format("element {} of {} is {}, expected {}, that of the plain product", i,
                           name, got[i], plain[i]);
  }
  return operands.damaged().empty() ? "" : "wrote outside of the outputs";
}

Verdict check_problem(const Context& context, const Problem& problem, uint64_t seed) {
  Verdict verdict;
  const Operands expected(problem);
  const Matmul plain(context, options_of(problem));
  verdict.implementation = plain.info().implementation;
  Workspace workspace;
  plain.reserve(workspace);
  plain.execute(nullptr, arguments_of(problem, expected), workspace);
  std::mt19937_64 random(seed);
  for (int order = 0; order < kOrders && verdict.complaint.empty(); ++order) {
    const Draw draw = draw_arrival(problem, random, order + 1 == kOrders);
    verdict.complaint = run_one(context, problem, expected, draw);
    if (!verdict.complaint.empty()) verdict.complaint += " (" + draw.text() + ")";
    ++verdict.orders;
  }
  return verdict;
}

}  // namespace

int check_async(const Common& common, const std::vector<Problem>& problems, uint64_t seed) {
  Progress progress(common, "check");
  nlohmann::json results = nlohmann::json::array();
  Table table({{"type"},
               {"problem", Align::kLeft, 20},
               {"implementation"},
               {"orders of arrival", Align::kRight},
               {""}});
  int64_t checked = 0, failed = 0;
  std::string failures;
  for (const Problem& problem : problems) {
    if (problem.op != harness::Op::kMatmul || problem.expect.value != 0 || !problem.fault.empty() ||
        problem.m < 1 || problem.n < 1 || problem.k < 1 || problem.misalign != 0 ||
        harness::bytes_of(problem) > kMostBytes)
      continue;
    progress.update(checked, static_cast<int64_t>(problems.size()), harness::summary(problem));
    const Context context = open_context(common, problem.threads);
    const Verdict verdict = check_problem(context, problem, seed);
    const bool passed = verdict.complaint.empty();
    ++checked;
    failed += !passed;
    table.add({harness::name_of(problem.type()), harness::summary(problem), verdict.implementation,
               std::to_string(verdict.orders), passed ? "ok" : "FAILED"});
    if (!passed)
      failures +=
          fmt::format("\n{}: {}\n  again: perseid check {} --async --seed {}\n",
                      verdict.implementation, verdict.complaint, harness::to_flags(problem), seed);
    nlohmann::json entry = {{"problem", harness::to_json(problem)},
                            {"implementation", verdict.implementation},
                            {"passed", passed},
                            {"orders", verdict.orders}};
    if (!passed) entry["complaint"] = verdict.complaint;
    results.push_back(entry);
  }
  if (checked == 0) bad_input("--async checks matmul problems with m, n and k of 1 or more");
  if (common.json) {
    print("{}\n",
          nlohmann::json{
              {"checked", checked}, {"failed", failed}, {"seed", seed}, {"results", results}}
              .dump());
  } else {
    if (!common.quiet) print("{}", table.text(output_width()));
    print("{}", failures);
    if (!common.quiet || failed > 0) print("{} checked, {} failed\n", checked, failed);
  }
  return failed == 0 ? kOk : kCheckFailed;
}

}  // namespace perseid::cli
