// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Holds an implementation to the float64 reference. The rule is in tolerance.hpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/launch.hpp"
#include "harness/problem_text.hpp"
#include "harness/tolerance.hpp"

namespace perseid::harness {

struct OutputCheck {
  std::string name;
  double error = 0;
  double limit = 0;  // both of the element that comes nearest to its limit
  bool ok() const { return error <= limit; }
  // The error in units of its limit: at most 1 where it is ok.
  double relative() const { return relative_error(error, limit); }
};

struct CheckResult {
  bool passed = false;
  std::string implementation;  // "" where there is no plan
  Outcome outcome;             // of the plan, or else of the execution
  std::string complaint;       // why it did not pass
  std::string note;            // of what was not looked at
  std::vector<OutputCheck> outputs;
};

// Float64 results of a problem by cpu:reference. `exact`: the float64 form of its tensors, whose
// outputs are filled.
Outcome run_reference(const Context& context, const Problem& problem, Operands& exact);
// The float64 form of a problem.
Problem exact_problem(const Problem& problem);

class Checker {
 public:
  // Results of the two contexts must be equal bit for bit, whatever their numbers of threads; on a
  // GPU they may be one. `reference`: a CPU. Problems of more than `limit_bytes` are only planned.
  Checker(const Context& context, const Context& other, const Context& reference,
          double limit_bytes = 1e9)
      : context_(context), other_(other), reference_(reference), limit_bytes_(limit_bytes) {}
  // For a CPU that is its own reference.
  Checker(const Context& context, const Context& other, double limit_bytes = 1e9)
      : Checker(context, other, context, limit_bytes) {}

  // Checks Problem::impl, or the implementation that the library chooses.
  CheckResult check(const Problem& problem) const;
  // Checks every implementation that takes the problem, the reference too.
  std::vector<CheckResult> check_all(const Problem& problem) const;

 private:
  // What float64 says, and how far from it a result may be.
  struct Expected {
    struct Output {
      std::vector<double> reference;
      Limit limit;
    };
    Expected(const Problem& problem, const Operands& operands)
        : exact(exact_problem(problem), operands) {
      exact.take_scales(problem, operands);
    }
    Operands exact;
    Outcome outcome;
    std::map<std::string, Output, std::less<>> outputs;
    std::optional<std::vector<double>> out;  // that the limits of gradients are for
  };
  Expected expect(const Problem& problem) const;
  // `out`: what backward read, see naive().
  void set_limits(const Problem& problem, const std::vector<double>& out, Expected& expected) const;
  // `expected` is filled when it is first needed.
  CheckResult check(const Problem& problem, std::optional<Expected>& expected) const;
  void execute(const Problem& problem, perseid_plan_t plan, std::optional<Expected>& expected,
               CheckResult& result) const;
  void check_mask(const Problem& problem, const Operands& operands, CheckResult& result) const;
  void compare(const Problem& problem, const std::vector<const Operands*>& runs,
               const Expected& expected, CheckResult& result) const;

  const Context& context_;
  const Context& other_;
  const Context& reference_;
  double limit_bytes_;
};

}  // namespace perseid::harness
