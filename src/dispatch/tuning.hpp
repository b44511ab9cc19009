// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The configurations that were measured to be fastest on a device, kept in the cache folder as one
// JSON file for each device and version of the kernels' source. A file holds facts alone: the names
// of problems and configurations, and times. A name that the library does not list for a problem is
// ignored, so that a wrong file costs speed and nothing else; one that users other than this one
// and root could have written, or that is malformed, is not read, with a warning in the log.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace perseid::internal::dispatch {

struct Tuned {
  std::string configuration;
  int64_t nanoseconds = 0;  // of one execution
};
using TunedProblems = std::map<std::string, Tuned, std::less<>>;

// What measuring a configuration gave, for explain.
struct Measured {
  std::string configuration;
  double seconds = 0;  // of one execution
  bool kept = false;   // in the tuning cache
};

// The content of a file. False: it is malformed, or of another device or source.
bool read_tuning(std::string_view json, std::string_view device, std::string_view source,
                 TunedProblems* problems);
std::string write_tuning(const TunedProblems& problems, std::string_view device,
                         std::string_view source);

class Tuning {
 public:
  // Reads the file of `device` with kernels of `source`. `folder` "": nothing is kept.
  Tuning(const std::string& folder, std::string device, std::string source);

  // The configuration of a problem; "" if it has not been tuned.
  std::string find(const std::string& problem) const;
  // Keeps one, beside what other processes have kept since. Fails if the file cannot be written.
  Status keep(const std::string& problem, const Tuned& tuned);
  std::string path() const { return folder_ + "/" + name_; }

 private:
  void read();

  std::string folder_, device_, source_, name_;
  mutable std::mutex mutex_;
  TunedProblems problems_;
};

}  // namespace perseid::internal::dispatch
