// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

namespace perseid::harness {
namespace {

void complain(CheckResult& result, const std::string& sentence) {
  result.passed = false;
  result.complaint += (result.complaint.empty() ? "" : "; ") + sentence;
}

// Rows of packed tensors that no sequence has are nobody's: they are taken out of a comparison.
std::vector<double> of_sequences(const Problem& problem, const OperandSpec& spec,
                                 std::vector<double> values) {
  const std::string_view name = spec.name;
  if (problem.op != Op::kAttention || !problem.ragged() || name == "grad_bias") return values;
  const bool of_keys = name == "grad_key" || name == "grad_value";
  // Keys with starts of their own have no gradients.
  const int64_t end = of_keys ? problem.cu_seqlens_kv.back() : problem.cu_seqlens_q.back();
  const size_t dim = name == "lse" || problem.layout.value == PERSEID_BHSD ? 1 : 0;
  int64_t inner = 1;
  for (size_t i = dim + 1; i < spec.shape.size(); ++i) inner *= spec.shape[i];
  for (size_t i = 0; i < values.size(); ++i) {
    if (static_cast<int64_t>(i) / inner % spec.shape[dim] >= end) values[i] = 0;
  }
  return values;
}

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i])) &&
        !(std::isnan(a[i]) && std::isnan(b[i])))
      return false;
  }
  return true;
}

std::vector<double> dropout_mask(const Context& context, const Problem& problem) {
  if (problem.dropout <= 0) return {};
  const Array mask(u8, {problem.batch, problem.heads, problem.longest_q(), problem.longest_kv()});
  fill_dropout_mask(context, problem.dropout, problem.seed, problem.offset, mask.tensor());
  return mask.values();
}

// Elements that begin in the middle of another's place: a sentence is as good as a result.
bool misaligned(const Problem& problem) {
  const std::vector<OperandSpec> specs = operands_of(problem);
  return std::any_of(specs.begin(), specs.end(), [&](const OperandSpec& spec) {
    return problem.misalign % size_of(spec.dtype) != 0;
  });
}

using Runs = std::vector<const Operands*>;

// Launches of one plan, each over tensors of its own; none is waited for before all are begun.
Outcome run(const Context& context, perseid_plan_t plan, const Problem& problem, const Runs& sets,
            std::string* damage) {
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    if (direction == Direction::kBackward && !problem.has_backward()) break;
    std::deque<Call> calls;
    for (const Operands* operands : sets)
      calls.emplace_back(context, plan, problem, direction, *operands);
    Outcome outcome;
    for (const Call& call : calls)
      if (outcome.ok()) outcome = outcome_of(call.execute());
    for (const Call& call : calls) {
      if (outcome.ok()) outcome = call.finish();
      if (call.workspace_damaged()) *damage = "the workspace";
    }
    if (!outcome.ok()) return outcome;
  }
  return {};
}

Outcome run(const Context& context, const Problem& problem, const Runs& sets, std::string* damage) {
  PlanHandle plan;
  Outcome outcome = make_plan(context, problem, plan);
  if (outcome.ok()) outcome = run(context, plan.get(), problem, sets, damage);
  return outcome;
}

std::string damage_of(const Runs& sets) {
  std::string damage;
  for (const Operands* operands : sets) damage += operands->damaged();
  return damage;
}

// Gradients of attention may be added up in any order on a GPU, unless that was ruled out.
bool repeats(const Context& context, const Problem& problem, const OperandSpec& spec) {
  return problem.op != Op::kAttention || problem.deterministic ||
         !std::string_view(spec.name).starts_with("grad_") || Placement(context).on_host();
}

}  // namespace

Problem exact_problem(const Problem& problem) {
  Problem exact = problem;
  exact.dtype.value = PERSEID_F64;
  exact.output_dtype.value = exact.bias_dtype.value = exact.b_dtype.value = 0;
  exact.scaling.value = exact.accumulation.value = 0;
  exact.scale_result = false;
  exact.impl = "cpu:reference";
  exact.strides.value = 0;
  exact.misalign = 0;
  exact.in_place = false;
  exact.fault.clear();
  return exact;
}

Outcome run_reference(const Context& context, const Problem& problem, Operands& exact) {
  std::string damage;
  return run(context, exact_problem(problem), {&exact}, &damage);
}

void Checker::check_mask(const Problem& problem, const Operands& operands,
                         CheckResult& result) const {
  const std::vector<double> mask = operands.find("mask")->values();
  const auto count = static_cast<double>(mask.size());
  double kept = 0;
  for (double value : mask) {
    if (value != 0 && value != 1) return complain(result, "the mask holds values but 0 and 1");
    kept += value;
  }
  const double share = std::clamp(std::floor(256 * (1 - problem.dropout) + 0.5), 1.0, 256.0) / 256;
  const double deviation = std::sqrt(count * share * (1 - share));
  // Six standard deviations: once in 10^9 masks by chance.
  result.outputs.push_back({"mask", std::fabs(kept - count * share), 6 * deviation + 1});
  if (!result.outputs.back().ok())
    complain(result, fmt::format("{} of {} kept, expected about {}", kept, count, count * share));
}

Checker::Expected Checker::expect(const Problem& problem) const {
  Expected expected(problem, Operands(problem, false));
  expected.outcome = run_reference(reference_, problem, expected.exact);
  if (!expected.outcome.ok()) return expected;
  for (const OperandSpec& spec : operands_of(problem)) {
    if (!spec.output) continue;
    std::vector<double>& reference = expected.outputs[spec.name].reference;
    reference = of_sequences(problem, spec, expected.exact.find(spec.name)->values());
    if (!is_float8(spec.dtype)) continue;
    const double scale =
        problem.scale_result ? expected.exact.find("scale_result")->values()[0] : 1;
    const double largest = largest_float8(spec.dtype);
    for (double& value : reference)
      value = std::isnan(value) ? value : std::clamp(value * scale, -largest, largest);
  }
  return expected;
}

void Checker::set_limits(const Problem& problem, const std::vector<double>& out,
                         Expected& expected) const {
  if (expected.out && same(*expected.out, out)) return;
  expected.out = out;
  const bool drops = problem.op == Op::kAttention;
  Estimates estimates =
      naive(problem, expected.exact,
            drops ? dropout_mask(reference_, problem) : std::vector<double>(), out);
  for (const OperandSpec& spec : operands_of(problem)) {
    if (!spec.output) continue;
    Estimate& estimate = estimates.find(spec.name)->second;
    estimate.value = of_sequences(problem, spec, std::move(estimate.value));
    Expected::Output& output = expected.outputs.find(spec.name)->second;
    output.limit = limit_of(estimate, output.reference, spec.dtype, working_type(problem));
  }
}

void Checker::compare(const Problem& problem, const std::vector<const Operands*>& runs,
                      const Expected& expected, CheckResult& result) const {
  if (!expected.outcome.ok())
    return complain(result, "the reference refused: " + expected.outcome.sentence);
  for (const OperandSpec& spec : operands_of(problem)) {
    if (!spec.output) continue;
    const auto& [reference, limit] = expected.outputs.find(spec.name)->second;
    OutputCheck& output = result.outputs.emplace_back();
    output.name = spec.name;
    std::vector<double> first;
    for (const Operands* operands : runs) {
      auto values = of_sequences(problem, spec, operands->find(spec.name)->values());
      const Deviation worst = deviation(values, reference, limit, spec.dtype);
      if (first.empty() || (output.ok() && !worst.ok()) ||
          worst.error * output.limit > output.error * worst.limit) {
        output.error = worst.error;
        output.limit = worst.limit;
      }
      if (first.empty())
        first = std::move(values);
      else if (!same(first, values) && repeats(context_, problem, spec))
        complain(result, fmt::format("{} differs between launches, from run to run, or with the "
                                     "number of threads",
                                     spec.name));
    }
    if (!output.ok())
      complain(result, fmt::format("{} is off by {:.3g}, more than {:.3g}", spec.name, output.error,
                                   output.limit));
  }
}

void Checker::execute(const Problem& problem, perseid_plan_t plan,
                      std::optional<Expected>& expected, CheckResult& result) const {
  std::deque<Operands> sets;
  Runs runs;
  for (int64_t i = 0; i < std::max<int64_t>(problem.launches, 1); ++i)
    runs.push_back(&sets.emplace_back(problem));
  std::string damage;
  result.outcome = run(context_, plan, problem, runs, &damage);
  damage += damage_of(runs);
  if (!damage.empty()) complain(result, "wrote outside of the outputs: " + damage);
  if (!result.outcome.ok() || problem.expect.value != 0) return;
  if (problem.op == Op::kDropoutMask) return check_mask(problem, sets.front(), result);
  if (problem.op == Op::kAttention && !lengths_fit(problem))
    return complain(result, "wrong sequence lengths were accepted");

  const Operands again(problem);
  result.outcome = run(other_, problem, {&again}, &damage);
  if (!result.outcome.ok())
    return complain(result, "failed in another run, or with another number of threads");
  damage += again.damaged();
  if (!damage.empty()) complain(result, "wrote outside of the outputs: " + damage);
  if (!expected) expected.emplace(expect(problem));
  if (expected->outcome.ok()) {
    const Array* out = runs.front()->find(problem.op == Op::kAttention ? "out" : "output");
    const bool reads_out = out != nullptr && problem.has_backward();
    set_limits(problem, reads_out ? out->values() : std::vector<double>(), *expected);
  }
  runs.push_back(&again);
  compare(problem, runs, *expected, result);
}

CheckResult Checker::check(const Problem& problem) const {
  std::optional<Expected> expected;
  return check(problem, expected);
}

CheckResult Checker::check(const Problem& problem, std::optional<Expected>& expected) const {
  CheckResult result;
  result.passed = true;
  result.implementation = problem.impl;
  const bool refusal = problem.expect.value != 0;
  PlanHandle plan;
  result.outcome = make_plan(context_, problem, plan);
  if (result.outcome.ok()) {
    if (plan != nullptr) {
      auto info = detail::sized<perseid_plan_info>();
      detail::check(perseid_plan_query(plan.get(), &info));
      result.implementation = info.implementation;
    }
    const double bytes = bytes_of(problem);
    if (plan != nullptr && fault_needs_workspace(problem, plan.get())) {
      result.note = "needs no workspace";
    } else if (problem.op == Op::kAttention && !lengths_fit(problem) &&
               !Placement(context_).on_host()) {
      // They would be followed to wherever they lead.
      result.note = "lengths in a GPU's memory are not looked at";
    } else if (bytes <= limit_bytes_) {
      execute(problem, plan.get(), expected, result);
    } else if (std::isinf(bytes)) {
      complain(result, "a plan was made for sizes that no tensor has");
    } else {
      result.note = fmt::format("planned only: {:.3g} GB of tensors", bytes / 1e9);
    }
  }
  if (!result.outcome.ok()) {
    if (result.outcome.sentence.empty())
      complain(result, fmt::format("the status '{}' came without a sentence",
                                   perseid_status_string(result.outcome.status)));
    if (!refusal && !misaligned(problem)) complain(result, "refused: " + result.outcome.sentence);
    if (refusal && result.outcome.status == PERSEID_INTERNAL)
      complain(result, "a wrong problem met a defect: " + result.outcome.sentence);
  } else if (refusal && result.note.empty()) {
    complain(result, "a wrong problem was accepted");
  }
  return result;
}

std::vector<CheckResult> Checker::check_all(const Problem& problem) const {
  PlanHandle plan;
  if (problem.impl.empty() && problem.expect.value == 0 &&
      make_plan(context_, problem, plan).ok() && plan != nullptr) {
    std::vector<CheckResult> results;
    std::optional<Expected> expected;  // the same of all
    for (const std::string& name : implementations_of(plan.get())) {
      Problem one = problem;
      one.impl = name;
      CheckResult result = check(one, expected);
      if (result.outcome.status != PERSEID_UNSUPPORTED) results.push_back(std::move(result));
    }
    return results;
  }
  return {check(problem)};
}

}  // namespace perseid::harness
