// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the operations of `perseid run` share.
#pragma once

#include <chrono>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "common.hpp"
#include "files.hpp"
#include "perseid/collective.hpp"

namespace perseid::cli {

// --dtype as a floating type; kNone where it is not given.
DType wanted_dtype(const Common& common);
// The library's NULL where --impl is not given.
const char* wanted_implementation(const Common& common);
// Ends with a sentence unless all present tensors have the dtype of the first.
void same_dtype(std::initializer_list<std::pair<const char*, Tensor>> tensors);

// For ranks: the name of a file or device with the rank in it, this rank's device, --deadline in
// milliseconds.
std::string of_rank(std::string name, int32_t rank);
Context open_context_of_rank(Common common, int32_t rank);
std::chrono::nanoseconds deadline_of(std::optional<double> milliseconds);

// `--fusion`, `--reduce` and `--placement`.
perseid_fusion fusion_of(const std::string& text);
Reduction reduction_of(const std::string& text);
Sharding placement_of(const std::string& text);
// A dimension of `count`: from the first, or from the last where it is negative.
int32_t dimension(const char* flag, int64_t given, int32_t count);
// `--report`: a plan's overlap report.
void write_report(const std::string& path, const std::string& text);

// Runs `body`, which executes, and reports time, implementation and written files.
class Run {
 public:
  Run(const Common& common, const char* op)
      : common_(common), op_(op), progress_(common, std::string("run ") + op) {}
  template <class Body>
  void timed(Body&& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // Writes the files, and says what was done.
  void finish(TensorFiles& files, const std::string& implementation);

 private:
  const Common& common_;
  const char* op_;
  double seconds_ = 0;
  Progress progress_;
};

}  // namespace perseid::cli
