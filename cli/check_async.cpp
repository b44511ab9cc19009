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
#include <span>

#include "arriving.hpp"
#include "check_report.hpp"
#include "harness/check.hpp"
#include "harness/launch.hpp"
#include "harness/problem_text.hpp"
#include "matmul_calls.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using harness::Operands;
using harness::Problem;

// Orders of arrival of each problem, of which the last loses a chunk.
constexpr int kOrders = 16;
constexpr int64_t kMostChunks = 16;
constexpr int64_t kMostChunkDelay = 200;     // microseconds
constexpr double kMostOrderedBytes = 256e6;  // of a problem's tensors
constexpr auto kLostDeadline = std::chrono::milliseconds(20);
constexpr auto kDeadline = std::chrono::seconds(60);

struct Verdict {
  std::string implementation, complaint;
  int orders = 0;
};

AttentionOptions attention_options(const Problem& problem) {
  AttentionOptions options;
  options.dtype = problem.type();
  options.layout = static_cast<Layout>(problem.layout.value);
  options.batch = problem.batch;
  options.heads = problem.heads;
  options.kv_heads = problem.kv_heads;
  options.q_len = problem.longest_q();
  options.kv_len = problem.longest_kv();
  options.head_dim = problem.head_dim;
  options.value_dim = problem.value_dim;
  options.mask.causal = static_cast<perseid_causal>(problem.causal.value);
  if (!problem.window.empty()) {
    options.mask.left = problem.window[0];
    options.mask.right = problem.window[1];
  }
  options.mask.bottom_right = problem.window_bottom_right;
  options.scale = problem.scale;
  options.dropout = problem.dropout;
  options.visible = !problem.visible.empty();
  if (!problem.bias.empty()) {
    const harness::Shape shape = harness::in_four_dims(problem.bias);
    options.bias = {shape[0], shape[1], shape[2], shape[3]};
    options.bias_dtype = static_cast<DType>(problem.bias_dtype.value);
  }
  options.q_lens = !problem.q_lens.empty();
  options.kv_lens = !problem.kv_lens.empty();
  options.kv_starts = !problem.kv_starts.empty();
  options.kv_batch = problem.kv_batch;
  options.num_splits = static_cast<uint32_t>(problem.num_splits);
  options.ragged = problem.ragged();
  options.total_q = problem.rows_q();
  options.total_kv = problem.rows_kv();
  options.implementation = problem.impl.empty() ? nullptr : problem.impl.c_str();
  return options;
}

// Forward of an attention problem on a device.
class AttentionRun {
 public:
  AttentionRun(const Context& context, const Problem& problem, ChunksView chunks)
      : context_(context),
        problem_(problem),
        operands_(problem),
        placement_(context),
        attention_(context, with_chunks(problem, chunks)),
        workspace_(context, attention_.workspace_size()) {}
  const Attention& plan() const { return attention_; }
  const Tensor& host(const char* name) const { return operands_.find(name)->tensor(); }
  int32_t rows() const {  // the dimension of key and value
    return problem_.layout.value == PERSEID_BSHD ? -3 : -2;
  }
  // Throws what the call throws. `arriving`: null where all is present.
  void execute(const ArrivingTensors* arriving, int64_t pivot, std::chrono::nanoseconds deadline) {
    const Stream stream = stream_of_thread(context_);
    const auto view = [&](const char* name) {
      const harness::Array* array = operands_.find(name);
      return array == nullptr ? Tensor() : placement_.place(array->tensor());
    };
    AttentionForward with{.query = view("query"),
                          .key = arriving == nullptr ? view("key") : arriving->tensor(0),
                          .value = arriving == nullptr ? view("value") : arriving->tensor(1),
                          .bias = view("bias"),
                          .visible = view("visible"),
                          .cu_seqlens_q = view("cu_seqlens_q"),
                          .cu_seqlens_kv = view("cu_seqlens_kv"),
                          .q_lens = view("q_lens"),
                          .kv_lens = view("kv_lens"),
                          .out = view("out"),
                          .lse = view("lse"),
                          .seed = problem_.seed,
                          .offset = problem_.offset,
                          .kv_starts = view("kv_starts"),
                          .kv_index = view("kv_index")};
    if (arriving != nullptr) with.arrival_kv = arriving->arrival(pivot, deadline);
    attention_.forward(stream, with, std::span<std::byte>(workspace_));
    context_.synchronize(stream);
    for (const char* name : {"out", "lse"})
      if (operands_.find(name) != nullptr) placement_.fetch(operands_.find(name)->tensor());
  }
  std::vector<double> values(const char* name) const {
    const harness::Array* array = operands_.find(name);
    return array == nullptr ? std::vector<double>() : array->values();
  }
  std::string damaged() const { return operands_.damaged(); }

 private:
  static AttentionOptions with_chunks(const Problem& problem, ChunksView chunks) {
    AttentionOptions options = attention_options(problem);
    options.async_kv = chunks;
    return options;
  }

  const Context& context_;
  const Problem& problem_;
  harness::Operands operands_;
  harness::Placement placement_;
  Attention attention_;
  Memory workspace_;
};

// "" where they are equal; NaN is NaN.
std::string difference(const char* name, const std::vector<double>& got,
                       const std::vector<double>& wanted, const char* whose) {
  for (size_t i = 0; i < got.size(); ++i)
    if (got[i] != wanted[i] && !(std::isnan(got[i]) && std::isnan(wanted[i])))
      return fmt::format("element {} of {} is {}, expected {}, that of {}", i, name, got[i],
                         wanted[i], whose);
  return "";
}

// The largest finite error, relative to the largest element.
double error_of(const std::vector<double>& got, const std::vector<double>& exact) {
  double error = 0, largest = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(exact[i])) largest = std::max(largest, std::fabs(exact[i]));
    if (std::isfinite(got[i]) && std::isfinite(exact[i]))
      error = std::max(error, std::fabs(got[i] - exact[i]));
    else if (std::isfinite(got[i]) != std::isfinite(exact[i]))
      return INFINITY;
  }
  return error / largest;
}

// How one operand arrives.
struct Draw {
  ChunkDim dim = ChunkDim::kM;
  int64_t count = 1, pivot = 0;
  std::vector<Delivery> order;
  std::optional<int64_t> lost;  // the first one in the order of visits

  std::string text() const {
    constexpr const char* kNames[] = {"", "m", "n", "k", "keys"};
    std::vector<int64_t> chunks;
    for (const Delivery& delivery : order) chunks.push_back(delivery.chunk);
    return fmt::format("{} chunks of {}, pivot {}, arriving {}", count,
                       kNames[static_cast<int>(dim)], pivot, fmt::join(chunks, ","));
  }
};

int64_t rows_of_keys(const Problem& problem) {
  return problem.ragged() ? problem.rows_kv() : problem.longest_kv();
}

Draw draw_arrival(const Problem& problem, std::mt19937_64& random, bool loses) {
  const auto from = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  constexpr ChunkDim kDims[] = {ChunkDim::kM, ChunkDim::kN, ChunkDim::kK};
  Draw draw;
  int64_t size = 0;
  if (problem.op == harness::Op::kAttention) {
    draw.dim = ChunkDim::kKv;
    size = rows_of_keys(problem);
  } else {
    const int64_t drawn = from(0, 2);
    draw.dim = kDims[drawn];
    const int64_t sizes[] = {problem.m, problem.n, problem.k};
    size = sizes[drawn];
  }
  draw.count = from(1, std::min(size, kMostChunks));
  if (draw.dim != ChunkDim::kK) draw.pivot = from(0, draw.count - 1);
  std::vector<int64_t> chunks(static_cast<size_t>(draw.count));
  std::iota(chunks.begin(), chunks.end(), 0);
  std::shuffle(chunks.begin(), chunks.end(), random);
  if (loses) {
    draw.lost = chunks.back();
    chunks.pop_back();
  }
  const int64_t delay = from(0, 1) * kMostChunkDelay;
  for (const int64_t chunk : chunks)
    draw.order.push_back({chunk, std::chrono::microseconds(from(0, delay))});
  return draw;
}

// "" where the product is right, or ends as it should.
std::string run_one(const Context& context, const Problem& problem, const Operands& expected,
                    const Draw& draw) {
  const Operands operands(problem);
  harness::Placement placement(context);
  MatmulArguments arguments = arguments_of(problem, operands, placement);
  const bool of_a = draw.dim == ChunkDim::kM || (draw.dim == ChunkDim::kK && draw.count % 2 == 0);
  const auto on_host = [&](const char* name, bool transpose) {
    const Tensor& tensor = operands.find(name)->tensor();
    return transpose ? tensor.transposed() : tensor;
  };
  ArrivingOperand arriving =
      ArrivingOperand::cut(on_host("a", problem.transpose_a), on_host("b", problem.transpose_b),
                           of_a, draw.dim, draw.count);
  arriving.pivot = draw.pivot;
  arriving.deadline = draw.lost ? std::chrono::nanoseconds(kLostDeadline) : kDeadline;
  MatmulOptions options = options_of(problem);
  options.async_a = arriving.chunks_of(true);
  options.async_b = arriving.chunks_of(false);
  const Matmul matmul(context, options);
  const Memory workspace(context, matmul.workspace_size());
  arriving.matrix->start(context, draw.order);
  if (draw.lost) arriving.matrix->finish();  // one chunk alone is missing
  (of_a ? arguments.a : arguments.b) = arriving.matrix->tensor();
  arguments.arrival_a = arriving.arrival_of(true);
  arguments.arrival_b = arriving.arrival_of(false);
  const bool reads = problem.alpha != 0 && problem.batch > 0;
  const Stream stream = stream_of_thread(context);
  try {
    matmul.execute(stream, arguments, std::span<std::byte>(workspace));
    context.synchronize(stream);
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
  placement.fetch();
  for (const char* name : {"c", "amax"}) {
    if (operands.find(name) == nullptr) continue;
    const std::string different = difference(name, operands.find(name)->values(),
                                             expected.find(name)->values(), "the plain product");
    if (!different.empty()) return different;
  }
  return operands.damaged().empty() ? "" : "wrote outside of the outputs";
}

// The same for attention. A lost chunk may be one that no query sees: then the call succeeds.
std::string run_attention(const Context& context, const Problem& problem, const Draw& draw,
                          const harness::Operands& exact, const AttentionRun& plain) {
  const auto chunks = Chunks::even(rows_of_keys(problem), draw.count);
  AttentionRun present(context, problem, chunks), late(context, problem, chunks);
  ArrivingTensors keys(
      {{present.host("key"), present.rows()}, {present.host("value"), present.rows()}}, chunks);
  std::vector<Delivery> all;
  for (int64_t chunk = 0; chunk < draw.count; ++chunk)
    all.push_back({chunk, std::chrono::microseconds(0)});
  keys.start(context, all);
  keys.finish();
  present.execute(&keys, draw.pivot, kDeadline);
  constexpr double kSlack = 4;  // units of the last place of the type
  for (const char* name : {"out", "lse"}) {
    if (plain.values(name).empty()) continue;
    const std::vector<double> reference = exact.find(name)->values();
    const double error = error_of(present.values(name), reference);
    const double limit = 2 * error_of(plain.values(name), reference) +
                         kSlack * harness::unit_roundoff(problem.type());
    if (!(error <= limit))
      return fmt::format("{} is off by {:.3g}, more than {:.3g}", name, error, limit);
  }
  keys.start(context, draw.order);
  if (draw.lost) keys.finish();  // one chunk alone is missing
  try {
    late.execute(&keys, draw.pivot,
                 draw.lost ? std::chrono::nanoseconds(kLostDeadline) : kDeadline);
  } catch (const Error& error) {
    const std::string wanted =
        draw.lost ? fmt::format("chunk {} of key: not arrived within 20 ms", *draw.lost) : "";
    if (draw.lost && error.status() == PERSEID_TIMEOUT &&
        std::string(error.what()).find(wanted) != std::string::npos)
      return "";
    return error.what();
  }
  for (const char* name : {"out", "lse"}) {
    const std::string different = difference(name, late.values(name), present.values(name),
                                             "the same plan with all chunks present");
    if (!different.empty()) return different;
  }
  return late.damaged().empty() ? "" : "wrote outside of the outputs";
}

Verdict check_attention(const Context& context, const Problem& problem, uint64_t seed) {
  Verdict verdict;
  AttentionRun plain(context, problem, {});
  verdict.implementation = plain.plan().info().implementation;
  plain.execute(nullptr, 0, kDeadline);
  harness::Operands exact(harness::exact_problem(problem), Operands(problem, false));
  const Context reference = Context::cpu();
  if (const auto outcome = harness::run_reference(reference, problem, exact); !outcome.ok()) {
    verdict.complaint = "the reference refused: " + outcome.sentence;
    return verdict;
  }
  std::mt19937_64 random(seed);
  for (int order = 0; order < kOrders && verdict.complaint.empty(); ++order) {
    const Draw draw = draw_arrival(problem, random, order + 1 == kOrders);
    verdict.complaint = run_attention(context, problem, draw, exact, plain);
    if (!verdict.complaint.empty()) verdict.complaint += " (" + draw.text() + ")";
    ++verdict.orders;
  }
  return verdict;
}

// Whether --async is for the problem.
bool is_checked(const Problem& problem) {
  if (problem.expect.value != 0 || !problem.fault.empty() || problem.misalign != 0 ||
      harness::bytes_of(problem) > kMostOrderedBytes)
    return false;
  if (problem.op == harness::Op::kMatmul) return problem.m > 0 && problem.n > 0 && problem.k > 0;
  return problem.op == harness::Op::kAttention && harness::lengths_fit(problem) &&
         problem.batch > 0 && problem.longest_q() > 0 && rows_of_keys(problem) > 0 &&
         problem.window.size() != 1 && problem.max_q_len == 0 && problem.max_kv_len == 0;
}

Verdict check_problem(const Context& context, const Problem& problem, uint64_t seed) {
  if (problem.op == harness::Op::kAttention) return check_attention(context, problem, seed);
  Verdict verdict;
  const Operands expected(problem);
  const Matmul plain(context, options_of(problem));
  verdict.implementation = plain.info().implementation;
  const Memory workspace(context, plain.workspace_size());
  harness::Placement placement(context);
  const Stream stream = stream_of_thread(context);
  plain.execute(stream, arguments_of(problem, expected, placement),
                std::span<std::byte>(workspace));
  context.synchronize(stream);
  placement.fetch();
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
  std::optional<Context> context;
  for (const Problem& problem : problems) {
    if (!is_checked(problem)) continue;
    progress.update(checked, static_cast<int64_t>(problems.size()), harness::summary(problem));
    // A GPU's context loads every kernel once, so that all problems share it.
    if (!context || !on_gpu(common)) context.emplace(open_context(common, problem.threads));
    const Verdict verdict = check_problem(*context, problem, seed);
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
  if (checked == 0)
    bad_input(
        "--async checks matmul problems with m, n and k of 1 or more, and attention problems with "
        "queries and keys");
  return report_checks(common, {.table = table.text(output_width()),
                                .failures = failures,
                                .results = std::move(results),
                                .seed = seed,
                                .checked = checked,
                                .failed = failed});
}

}  // namespace perseid::cli
