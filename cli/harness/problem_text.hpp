// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Problems as text: the flags of the command line, a line of a problems file and a reproducing
// command. One table of fields serves all three.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/problem.hpp"

namespace perseid::harness {

// Throws Error (INVALID_ARGUMENT) on an unknown name, listing those there are.
Op parse_op(std::string_view name);

enum class FieldKind { kFlag, kNumber, kList, kText };

// A field's name is its flag without the dashes; in JSON, '_' stands for '-'.
struct Field {
  const char* name;
  uint32_t ops;  // Op bits that read it
  FieldKind kind;
  const char* help;
  std::string (*get)(const Problem&);
  void (*set)(Problem&, std::string_view text);  // throws Error (INVALID_ARGUMENT)
  std::string type;                              // of its value, such as "N", "bshd|bhsd"
  bool for_tests = false;                        // of no use to others
  bool reads(Op op) const { return (ops & static_cast<uint32_t>(op)) != 0; }
};
const std::vector<Field>& fields();

// "3,-1" as numbers. Throws Error (INVALID_ARGUMENT) with a sentence that begins with `name`.
Shape parse_list(std::string_view name, std::string_view text);

// Throws Error (INVALID_ARGUMENT), with a sentence, on an unknown field or a value of another type.
void set_field(Problem& problem, std::string_view name, std::string_view text);
Problem from_json(const nlohmann::json& object);
// Fields that differ from their defaults.
nlohmann::json to_json(const Problem& problem);
// Every field that the operation reads.
nlohmann::json to_complete_json(const Problem& problem);
// "attention --batch 2 ...": what follows `perseid check`.
std::string to_flags(const Problem& problem);
// Short, for tables: "B4 H2 M2048 N2048 D64 causal".
std::string summary(const Problem& problem);
// What the letters in the summaries of these problems mean; "" where there are none.
std::string legend(const std::vector<Problem>& problems);

// One JSON object a line; empty lines and lines that begin with '#' are skipped.
std::vector<Problem> read_problems(const std::string& path);
// bench/problems/<name>.jsonl as it was when the program was built: "check", "figures" and
// "gpu_figures".
std::vector<Problem> built_in_problems(const std::string& name);

}  // namespace perseid::harness
