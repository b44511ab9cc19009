// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The text of bench/problems/<name>.jsonl, built into the program.
#pragma once

#include <string>

namespace perseid::harness {

// Empty where there is no list of this name.
std::string problem_list(const std::string& name);

}  // namespace perseid::harness
