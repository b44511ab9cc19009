// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "sentences.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

}  // namespace

ExitCode exit_code(perseid_status status) {
  switch (status) {
    case PERSEID_OK:
      return kOk;
    case PERSEID_INVALID_ARGUMENT:
    case PERSEID_IO_ERROR:
      return kBadInput;
    case PERSEID_UNSUPPORTED:
      return kUnsupported;
    case PERSEID_TIMEOUT:
    case PERSEID_PEER_LOST:
      return kPeerLost;
    default:
      return kDeviceError;
  }
}

void bad_input(const std::string& sentence) { throw Error(PERSEID_INVALID_ARGUMENT, sentence); }

Context open_cpu(int64_t threads) {
  if (threads < 0 || threads > std::numeric_limits<int32_t>::max())
    bad_input(fmt::format("--threads must be 0 or a number of threads, got {}", threads));
  return Context::cpu(static_cast<int32_t>(threads));
}

bool on_gpu(const Common& common) { return common.device != "auto" && common.device != "cpu"; }

Context open_context(const Common& common, int64_t threads) {
  if (!on_gpu(common)) return open_cpu(threads);
  int32_t index = -1;
  const std::string prefix = "cuda:";
  if (common.device.starts_with(prefix)) {
    const char* end = common.device.data() + common.device.size();
    const auto parsed = std::from_chars(common.device.data() + prefix.size(), end, index);
    if (parsed.ec != std::errc{} || parsed.ptr != end) index = -1;
  }
  if (index < 0)
    bad_input(fmt::format("--device must be auto, cpu or cuda:N, got '{}'", common.device));
  return Context::cuda(index);
}

std::optional<Context> open_gpu(const Common& common, std::string* absent) {
  if (on_gpu(common)) return open_context(common, 0);
  *absent = "--device is cpu";
  if (common.device == "cpu") return {};
  try {
    return Context::cuda(0);
  } catch (const Error& error) {
    *absent = in_program_words(error.what());
    return {};
  }
}

bool colours() {
  const char* forbidden = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) != 0 && (forbidden == nullptr || *forbidden == '\0');
}

Progress::Progress(const Common& common, std::string activity)
    : activity_(std::move(activity)), terminal_(isatty(STDERR_FILENO) != 0) {
  if (!common.quiet) thread_ = std::thread([this] { watch(); });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  clear();
}

void Progress::update(int64_t done, int64_t total, const std::string& detail) {
  const std::lock_guard lock(mutex_);
  state_ = fmt::format(": {} of {}{}{}", done, total, detail.empty() ? "" : ", ", detail);
}

void Progress::watch() {
  const auto start = std::chrono::steady_clock::now();
  auto pause = std::chrono::milliseconds(2000);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return ended_; })) {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start;
    const std::string line = fmt::format("{}{} ({})", activity_, state_, clock_time(since.count()));
    if (terminal_) {
      // Cut to a line that the terminal does not wrap.
      write_err("\r\033[K" + line.substr(0, terminal_width() - 1));
      drawn_ = true;
    } else {
      write_err(line + "\n");
    }
    pause = std::chrono::milliseconds(terminal_ ? 200 : 10000);
  }
}

void Progress::say(std::string_view text) {
  const std::lock_guard lock(mutex_);
  clear();
  write_err(text);
}

void Progress::clear() {
  if (drawn_) write_err("\r\033[K");
  drawn_ = false;
}

}  // namespace perseid::cli
