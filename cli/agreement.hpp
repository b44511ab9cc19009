// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What ranks agree on before they compute together. Each prepares by itself, which may fail on one
// alone: a file is missing or has other dimensions, a folder is not writable. Then all end with the
// same sentence.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harness/element.hpp"
#include "perseid/collective.hpp"

namespace perseid::cli {

// What one rank says of its preparation.
struct RankTerms {
  // A file that results are written to. `same_on_all`: all ranks have the same results.
  struct Output {
    std::string flag, place;  // "host:path"
    bool same_on_all;
  };
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Output> outputs;
  harness::Shape sizes;  // these may differ

  // What must be the same on all ranks: "--a has", "3 dimensions".
  void same(std::string subject, std::string value);
  // The number of dimensions and the type; nothing of an absent tensor.
  void same_kind(const char* flag, const Tensor& tensor);
  // Refuses a file that cannot be written. "": none is.
  void output(const char* flag, const std::string& reference, bool same_on_all = false);
  void report(const std::string& path);  // of --report
};

struct Agreed {
  std::vector<harness::Shape> sizes;  // of each rank
  // Flags of outputs that another rank writes, as it has the same results and the same file.
  std::vector<std::string> left_to_others;

  int64_t total(size_t index) const;
  // `reference`, or "" where another rank writes the file of the flag.
  std::string own(const char* flag, const std::string& reference) const;
};

// Calls prepare() on this rank; all ranks call this. If it throws on any of them, or their terms
// differ, all throw the same Error.
Agreed agree(const Group& group, std::chrono::nanoseconds deadline,
             const std::function<void(RankTerms*)>& prepare);

}  // namespace perseid::cli
