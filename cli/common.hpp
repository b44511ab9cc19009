// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What every command of the program shares: common flags, exit codes, tables, and a sign of life on
// stderr.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "perseid/perseid.hpp"

namespace perseid::cli {

struct Common {
  std::string dtype, device = "auto", impl;
  int64_t threads = 0;
  bool json = false, quiet = false;
};

enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,
  kBadInput = 2,
  kUnsupported = 3,
  kDeviceError = 4,
  kPeerLost = 5
};
ExitCode exit_code(perseid_status status);

// Throws Error (INVALID_ARGUMENT), which ends the program with kBadInput.
[[noreturn]] void bad_input(const std::string& sentence);

// The device of --device with `threads` workers (0: as many as the library likes).
Context open_context(const Common& common, int64_t threads);
Context open_cpu(int64_t threads);
// Whether --device names a GPU.
bool on_gpu(const Common& common);
// The GPU of --device, or the first one where that is auto. None: `absent` says why.
std::optional<Context> open_gpu(const Common& common, std::string* absent);

// Whether text on stdout may be coloured (a terminal, and no NO_COLOR).
bool colours();

// Says on stderr what is being done once it takes longer than two seconds: on a terminal in a line
// that is drawn over, elsewhere in a line every ten seconds. Silent with --quiet.
class Progress {
 public:
  Progress(const Common& common, std::string activity);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // "activity: done of total, detail"
  void update(int64_t done, int64_t total, const std::string& detail);
  // Writes to stderr now, in lines of their own. Also with --quiet.
  void say(std::string_view text);

 private:
  void watch();
  void clear();

  const std::string activity_;
  const bool terminal_;
  bool drawn_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string state_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace perseid::cli
