// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "harness/check.hpp"

namespace perseid::harness {
namespace {

// Rounds that the measured time is cut into. A ceiling of memory takes longer to measure.
constexpr int kComputeRounds = 9;
constexpr int kMemoryRounds = 5;
constexpr int kQueued = 8;
// What the reference gets to do, in multiply-adds: about a second.
constexpr double kReferenceWork = 2e8;

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

struct Bound {
  perseid_ceiling ceiling = PERSEID_CEILING_F32;
  const char* name = "";
  bool memory = false;
  double work = 0;  // FLOPs or bytes of one execution
  uint64_t bytes = 0;
};

double measure(const Context& context, const Bound& bound) {
  double per_second = 0;
  if (*bound.name == '\0') return per_second;
  detail::check(perseid_context_ceiling(context.get(), bound.ceiling, bound.bytes, &per_second));
  return per_second;
}

// By the type of what is multiplied; a wider result changes nothing.
Bound compute_bound(const Problem& problem, double flops) {
  switch (problem.type()) {
    case bf16:
      return {PERSEID_CEILING_BF16, "bf16 dot peak", false, flops, 0};
    case f64:
      return {PERSEID_CEILING_F64, "f64 FMA peak", false, flops, 0};
    default:
      return {PERSEID_CEILING_F32, "f32 FMA peak", false, flops, 0};
  }
}

// Softmax is held to a copy of the bytes it moves; attention of few queries, and whatever else
// takes longer to read than to compute, to a read of them; the rest to the multipliers.
Bound bound_of(const Context& context, const Problem& problem, double flops, double bytes) {
  const auto whole = static_cast<uint64_t>(std::max(bytes, 1.0));
  if (problem.op == Op::kSoftmax)
    return {PERSEID_CEILING_COPY, "copy", true, bytes, std::max<uint64_t>(whole / 2, 1)};
  // What a GPU's multipliers reach is not measured.
  if (context.device().device_type != kDLCPU) return {PERSEID_CEILING_F32, "", false, flops, 0};
  const Bound compute = compute_bound(problem, flops);
  const Bound read = {PERSEID_CEILING_READ, "read", true, bytes, whole};
  return bytes / measure(context, read) > flops / measure(context, compute) ? read : compute;
}

// Rounds of executions with the ceiling measured between them. Each round is held to the better of
// its two neighbours, and the row is the round of the median fraction: what else the machine does
// slows both alike, and one lucky or unlucky moment of either decides nothing.
void time_row(const Context& context, const Call& call, const Bound& bound,
              const BenchOptions& options, BenchRow& row) {
  struct Round {
    double least, ceiling;
    double fraction(double work) const { return work / least / ceiling; }
  };
  std::vector<Round> rounds;
  std::vector<double> times;
  // On a GPU, executions that are under way at once, so that none waits for the host.
  std::vector<Timer> timers;
  for (int i = 0; i < (context.device().device_type == kDLCPU ? 1 : kQueued); ++i)
    timers.emplace_back(context);
  row.outcome = outcome_of(call.execute());  // warms up
  const double pace = options.seconds / (bound.memory ? kMemoryRounds : kComputeRounds);
  const double end = now() + 3 * options.seconds;  // of the ceilings too
  double spent = 0, before = measure(context, bound);
  while (row.outcome.ok() && (rounds.empty() || (spent < options.seconds && now() < end))) {
    Round round{std::numeric_limits<double>::infinity(), before};
    const double first = now();
    double last = first;
    do {
      for (Timer& timer : timers) {
        timer.start();
        const perseid_status status = call.execute();
        timer.stop();
        if (status != PERSEID_OK) row.outcome = outcome_of(status);
      }
      for (const Timer& timer : timers) {
        times.push_back(timer.seconds());
        round.least = std::min(round.least, times.back());
      }
      last = now();
    } while (row.outcome.ok() && last < first + pace);
    spent += last - first;
    before = measure(context, bound);
    round.ceiling = std::max(round.ceiling, before);
    rounds.push_back(round);
  }
  if (!row.outcome.ok()) return;
  std::sort(times.begin(), times.end());
  std::sort(rounds.begin(), rounds.end(), [&](const Round& a, const Round& b) {
    return a.fraction(bound.work) < b.fraction(bound.work);
  });
  const Round& median = rounds[rounds.size() / 2];
  row.timing = {median.least, times[times.size() / 2], times.front(),
                static_cast<int64_t>(times.size())};
  row.memory_bound = bound.memory;
  row.rate = bound.work / median.least;
  row.ceiling_name = bound.name;
  row.ceiling = median.ceiling;
}

// Multiply-adds of the reference, both directions.
double reference_work(const Problem& p) {
  const auto product = [](std::initializer_list<int64_t> factors) {
    double result = 1;
    for (int64_t factor : factors) result *= static_cast<double>(factor);
    return result;
  };
  switch (p.op) {
    case Op::kAttention: {
      const double pairs = product({p.batch, p.heads, p.longest_q(), p.longest_kv()});
      return pairs * static_cast<double>(p.head_dim + p.value_size()) *
             (p.has_backward() ? 3.5 : 1);
    }
    case Op::kMatmul:
      return product({p.batch, p.m, p.n, p.k});
    default:
      return 16 * static_cast<double>(elements_of(p.shape));
  }
}

// A broadcasting shape follows its extents down.
void follow(Shape& broadcast, const Shape& extents) {
  for (size_t i = 0; i < broadcast.size(); ++i) {
    const int64_t extent = extents[extents.size() - broadcast.size() + i];
    if (broadcast[i] != 1) broadcast[i] = extent;
  }
}

double largest_error_of(const Context& context, const Context& reference, const Problem& problem,
                        Direction direction) {
  PlanHandle plan;
  const Operands operands(problem, false);
  Operands exact(exact_problem(problem), operands);
  Outcome outcome = make_plan(context, problem, plan);
  for (Direction each : {Direction::kForward, Direction::kBackward}) {
    if (!outcome.ok() || (each == Direction::kBackward && direction != each)) break;
    const Call call(context, plan.get(), problem, each, operands);
    outcome = outcome_of(call.execute());
    if (outcome.ok()) outcome = call.finish();
  }
  if (outcome.ok()) outcome = run_reference(reference, problem, exact);
  if (!outcome.ok()) throw Error(outcome.status, outcome.sentence);
  double error = 0;
  for (const OperandSpec& spec : operands_of(problem)) {
    if (!spec.output || spec.backward != (direction == Direction::kBackward)) continue;
    error = std::max(error, largest_error(operands.find(spec.name)->values(),
                                          exact.find(spec.name)->values(), spec.dtype));
  }
  return error;
}

}  // namespace

Problem reduced(const Problem& problem) {
  Problem p = problem;
  if (p.ragged()) return p;
  if (p.op == Op::kMatmul && reference_work(p) > kReferenceWork) {
    p.batch = std::min<int64_t>(p.batch, 1);
    p.m = std::min<int64_t>(p.m, 128);
    p.n = std::min<int64_t>(p.n, 128);
    if (!p.bias.empty()) p.bias = {p.n};
  }
  if (p.op == Op::kSoftmax) {
    const auto rank = static_cast<int64_t>(p.shape.size());
    const auto dim = static_cast<size_t>(p.dim < 0 ? p.dim + rank : p.dim);
    for (size_t i = 0; i < p.shape.size() && dim < p.shape.size(); ++i) {
      while (i != dim && p.shape[i] > 1 && reference_work(p) > kReferenceWork)
        p.shape[i] = (p.shape[i] + 1) / 2;
    }
    follow(p.visible, p.shape);
  }
  if (p.op == Op::kAttention && reference_work(p) > kReferenceWork) {
    p.heads /= p.key_heads();
    p.kv_heads = 1;
    if (!p.kv_lens.empty()) p.kv_lens = {p.kv_lens.front()};
    p.batch = 1;
    while (p.q_len > 1 && p.q_len >= p.kv_len / 2 && reference_work(p) > kReferenceWork) {
      p.q_len = (p.q_len + 1) / 2;
      p.kv_len = (p.kv_len + 1) / 2;
    }
    for (int64_t& length : p.kv_lens) length = std::min(length, p.kv_len);
    const Shape scores = {p.batch, p.heads, p.q_len, p.kv_len};
    follow(p.bias, scores);
    follow(p.visible, scores);
  }
  return p;
}

std::vector<BenchRow> bench(const Context& context, const Context& reference,
                            const Problem& problem, const BenchOptions& options) {
  std::vector<BenchRow> rows;
  BenchRow row;
  row.problem = row.error_problem = problem;
  PlanHandle plan;
  row.outcome = make_plan(context, problem, plan);
  if (row.outcome.ok() && plan == nullptr)
    row.outcome = {PERSEID_UNSUPPORTED, "a dropout mask has no plan to measure"};
  if (!row.outcome.ok()) return {row};
  auto info = detail::sized<perseid_plan_info>();
  detail::check(perseid_plan_query(plan.get(), &info));
  row.implementation = info.implementation;

  const Operands operands(problem, false);
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    const bool forward = direction == Direction::kForward;
    if (!forward && !problem.has_backward()) break;
    row.direction = direction;
    const Call call(context, plan.get(), problem, direction, operands);
    const Bound bound =
        bound_of(context, problem, forward ? info.forward_flops : info.backward_flops,
                 forward ? info.forward_bytes : info.backward_bytes);
    time_row(context, call, bound, options, row);
    if (row.outcome.ok() && options.error) {
      row.error_problem = reduced(problem);
      row.error = largest_error_of(context, reference, row.error_problem, direction);
    }
    rows.push_back(row);
    if (!row.outcome.ok()) break;
  }
  return rows;
}

nlohmann::json to_json(const BenchRow& row) {
  nlohmann::json object = {
      {"problem", to_json(row.problem)},
      {"direction", row.direction == Direction::kForward ? "forward" : "backward"},
      {"threads", row.threads},
      {"implementation", row.implementation},
      {"status", perseid_status_string(row.outcome.status)}};
  if (!row.outcome.ok()) {
    object["sentence"] = row.outcome.sentence;
    return object;
  }
  object["seconds"] = {{"time", row.timing.time},
                       {"least", row.timing.least},
                       {"median", row.timing.median},
                       {"repetitions", row.timing.repetitions}};
  object["rate"] = row.rate;
  object["unit"] = row.memory_bound ? "B/s" : "FLOP/s";
  object["ceiling"] = {{"name", row.ceiling_name}, {"rate", row.ceiling}};
  object["fraction"] = row.fraction();
  if (row.error) object["error"] = {{"largest", *row.error}, {"of", to_json(row.error_problem)}};
  return object;
}

}  // namespace perseid::harness
