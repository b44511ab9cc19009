// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The operations of a training step, for `perseid bench --problems`.
#pragma once

#include <string>

#include "parameters.hpp"

namespace gpt {

// Writes one JSON object a line: every distinct operation that a step executes.
void write_problems(const std::string& path, const Config& config, const std::string& dtype);

}  // namespace gpt
