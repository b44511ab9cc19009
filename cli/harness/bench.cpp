// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>

namespace perseid::harness {
namespace {

// Rounds that the measured time is cut into. A ceiling of memory takes longer to measure.
constexpr int kComputeRounds = 9;
constexpr int kMemoryRounds = 5;
constexpr int kQueued = 8;
// What the reference gets to do, in multiply-adds: with the naive formula and a check of two runs,
// about a second.
constexpr double kReferenceWork = 3e7;

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// Fractions above these are measured again. A copy writes a byte for each that it reads; a softmax
// backward reads two, which some memories do up to 1.04 times as fast.
constexpr double kMostFraction = 1.02, kMostReading = 1.05;
constexpr int kMostAttempts = 4;

struct Bound {
  std::optional<CeilingKey> ceiling;
  bool memory = false;
  double work = 0;  // FLOPs or bytes of one execution
  double most = kMostFraction;
};

// By the type of what is multiplied; a wider result changes nothing.
perseid_ceiling compute_ceiling(const Problem& problem) {
  switch (problem.type()) {
    case bf16:
      return PERSEID_CEILING_BF16;
    case f64:
      return PERSEID_CEILING_F64;
    default:
      return PERSEID_CEILING_F32;
  }
}

// Softmax is held to a copy of the bytes it moves; attention of few queries, and whatever else
// takes longer to read than to compute, to a read of them; the rest to the multipliers.
Bound bound_of(const Context& context, const BenchRow& row, Ceilings& ceilings) {
  const auto whole = static_cast<uint64_t>(std::max(row.bytes, 1.0));
  const DLDevice device = context.device();
  const auto key = [&](perseid_ceiling ceiling, uint64_t bytes) {
    return CeilingKey{static_cast<int32_t>(device.device_type), device.device_id, row.threads,
                      ceiling, bytes};
  };
  if (row.problem.op == Op::kSoftmax) {
    const bool forward = row.direction == Direction::kForward;
    return {key(PERSEID_CEILING_COPY, std::max<uint64_t>(whole / 2, 1)), true, row.bytes,
            forward ? kMostFraction : kMostReading};
  }
  // What a GPU's multipliers reach is not measured.
  if (device.device_type != kDLCPU) return {{}, false, row.flops};
  const CeilingKey compute = key(compute_ceiling(row.problem), 0);
  const CeilingKey read = key(PERSEID_CEILING_READ, whole);
  if (row.bytes / ceilings.measure(context, read) > row.flops / ceilings.measure(context, compute))
    return {read, true, row.bytes};
  return {compute, false, row.flops};
}

// Rounds of executions with the ceiling measured between them. The row is its fastest execution, as
// the ceiling is the highest: whatever else the machine does only slows either.
void time_row(const Context& context, const Call& call, const Bound& bound,
              const BenchOptions& options, Ceilings& ceilings, BenchRow& row) {
  const auto measure_ceiling = [&] {
    if (bound.ceiling) ceilings.measure(context, *bound.ceiling);
  };
  std::vector<double> times;
  // On a GPU, executions that are under way at once, so that none waits for the host.
  std::vector<Timer> timers;
  for (int i = 0; i < (context.device().device_type == kDLCPU ? 1 : kQueued); ++i)
    timers.emplace_back(context);
  row.outcome = outcome_of(call.execute());  // warms up
  const double pace = options.seconds / (bound.memory ? kMemoryRounds : kComputeRounds);
  const double end = now() + 3 * options.seconds;  // of the ceilings too
  double spent = 0;
  measure_ceiling();
  while (row.outcome.ok() && (times.empty() || (spent < options.seconds && now() < end))) {
    const double first = now();
    double last = first;
    do {
      for (Timer& timer : timers) {
        timer.start();
        const perseid_status status = call.execute();
        timer.stop();
        if (status != PERSEID_OK) row.outcome = outcome_of(status);
      }
      for (const Timer& timer : timers) times.push_back(timer.seconds());
      last = now();
    } while (row.outcome.ok() && last < first + pace);
    spent += last - first;
    measure_ceiling();
  }
  if (!row.outcome.ok()) return;
  std::sort(times.begin(), times.end());
  row.timing = {times.front(), times[times.size() / 2], static_cast<int64_t>(times.size())};
  row.memory_bound = bound.memory;
  row.rate = bound.work / row.timing.least;
  row.ceiling_of = bound.ceiling;
  row.ceiling = bound.ceiling ? ceilings.highest(*bound.ceiling) : 0;
  row.most = bound.most;
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

// One check of the problem for both directions; the outputs of each go to its row.
void add_errors(const Context& context, const Context& reference, std::vector<BenchRow>& rows) {
  const Problem problem = reduced(rows.front().problem);
  const CheckResult result =
      Checker(context, context, reference, std::numeric_limits<double>::max()).check(problem);
  if (!result.outcome.ok()) throw Error(result.outcome.status, result.outcome.sentence);
  const std::vector<OperandSpec> specs = operands_of(problem);
  for (BenchRow& row : rows) {
    BenchError& error = row.error.emplace();
    row.error_problem = problem;
    error.complaint = result.complaint;
    for (const OutputCheck& output : result.outputs) {
      const bool backward = std::any_of(specs.begin(), specs.end(), [&](const OperandSpec& spec) {
        return spec.output && spec.backward && spec.name == output.name;
      });
      if (backward != (row.direction == Direction::kBackward)) continue;
      error.largest = std::max(error.largest, output.error);
      error.relative = std::max(error.relative, output.relative());
    }
  }
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
    for (Shape* lengths : {&p.q_lens, &p.kv_lens, &p.kv_index})
      if (!lengths->empty()) *lengths = {lengths->front()};
    p.batch = 1;
    while (p.q_len > 1 && p.q_len >= p.kv_len / 2 && reference_work(p) > kReferenceWork) {
      p.q_len = (p.q_len + 1) / 2;
      p.kv_len = (p.kv_len + 1) / 2;
    }
    for (int64_t& length : p.q_lens) length = std::min(length, p.q_len);
    for (int64_t& length : p.kv_lens) length = std::min(length, p.kv_len);
    const Shape scores = {p.batch, p.heads, p.q_len, p.kv_len};
    follow(p.bias, scores);
    follow(p.visible, scores);
  }
  return p;
}

std::vector<BenchRow> bench(const Context& context, const Context& reference,
                            const Problem& problem, const BenchOptions& options,
                            Ceilings& ceilings) {
  std::vector<BenchRow> rows;
  BenchRow row;
  row.problem = row.error_problem = problem;
  const DLDevice device = context.device();
  if (device.device_type == kDLCPU) {
    row.threads = problem.threads;
  } else {
    row.device = "cuda:" + std::to_string(device.device_id);
  }
  PlanHandle plan;
  row.outcome = make_plan(context, problem, plan);
  if (row.outcome.ok() && plan == nullptr)
    row.outcome = {PERSEID_UNSUPPORTED, "a dropout mask has no plan to measure"};
  if (!row.outcome.ok()) return {row};
  auto info = detail::sized<perseid_plan_info>();
  detail::check(perseid_plan_query(plan.get(), &info));
  row.implementation = info.implementation;

  {
    const Operands operands(problem, false);
    for (Direction direction : {Direction::kForward, Direction::kBackward}) {
      const bool forward = direction == Direction::kForward;
      if (!forward && !problem.has_backward()) break;
      row.direction = direction;
      row.flops = forward ? info.forward_flops : info.backward_flops;
      row.bytes = forward ? info.forward_bytes : info.backward_bytes;
      const Call call(context, plan.get(), problem, direction, operands);
      const Bound bound = bound_of(context, row, ceilings);
      row.attempts = 0;
      do {
        time_row(context, call, bound, options, ceilings, row);
      } while (row.outcome.ok() && ++row.attempts < kMostAttempts && row.disturbed());
      rows.push_back(row);
      if (!row.outcome.ok()) return rows;
    }
  }
  if (options.error) add_errors(context, reference, rows);
  return rows;
}

void hold_to_highest(BenchRow& row, const Ceilings& ceilings) {
  if (row.ceiling_of) row.ceiling = ceilings.highest(*row.ceiling_of);
}

}  // namespace perseid::harness
