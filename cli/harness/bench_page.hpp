// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Measurements as one page of HTML, without scripts and without anything from elsewhere. It is
// well-formed XML too.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace perseid::harness {

// `report` is what `perseid bench --json` prints.
std::string bench_page(const nlohmann::json& report);

}  // namespace perseid::harness
