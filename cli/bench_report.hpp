// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What perseid bench tells: a table on a terminal, one JSON object, a file.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "harness/bench_json.hpp"

namespace perseid::cli {

struct MeasuredRow {
  harness::BenchRow row;
  std::optional<harness::Comparison> against;
};

// A row for each measurement, and what its letters and marks mean. `verbose`: every column, however
// long the lines.
std::string bench_table(const std::vector<MeasuredRow>& rows, bool verbose, size_t width);

nlohmann::json bench_json(const std::vector<MeasuredRow>& rows, const nlohmann::json& machine,
                          const harness::Ceilings& ceilings, double seconds);

// A file that is tried before a long command and written after it: whole or not at all, where it is
// a regular one.
class OutputFile {
 public:
  // Throws Error (IO_ERROR) where nothing can be written there.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const std::string& text);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_, temporary_;  // "" once it has its name, or where it is no regular file
  std::FILE* file_;
};

}  // namespace perseid::cli
