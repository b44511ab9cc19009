// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "perseid/perseid.hpp"

namespace gpt {

std::string clock_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(std::round(seconds), 0.0, 1e15));
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
}

Progress::Progress(bool quiet, int64_t tokens_per_step)
    : quiet_(quiet), live_(isatty(STDERR_FILENO) != 0), tokens_per_step_(tokens_per_step) {}

void Progress::step(int64_t done, int64_t steps, double bits_per_byte) {
  ++seen_;
  const double keep = std::min(0.95, 1 - 1 / static_cast<double>(seen_));
  loss_ = keep * loss_ + (1 - keep) * bits_per_byte;
  const double interval = live_ ? 0.1 : 5.0;
  if (quiet_ || clock_.seconds() - shown_at_ < interval) return;
  print(done, steps);
}

void Progress::print(int64_t done, int64_t steps) {
  shown_at_ = clock_.seconds();
  const double rate = static_cast<double>(seen_) / shown_at_;  // steps per second
  std::fprintf(stderr, "%sstep %lld", live_ ? "\r\033[K" : "", static_cast<long long>(done));
  if (steps > 0) std::fprintf(stderr, " of %lld", static_cast<long long>(steps));
  std::fprintf(stderr, "   loss %.3f bits/byte   %.0f tokens/s", loss_,
               rate * static_cast<double>(tokens_per_step_));
  if (steps > 0) {
    const std::string left = clock_time(static_cast<double>(steps - done) / rate);
    std::fprintf(stderr, "   %s left", left.c_str());
  }
  std::fprintf(stderr, live_ ? "" : "\n");
  std::fflush(stderr);
  drawn_ = live_;
}

void Progress::finish() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

Losses::Losses(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_.open(path);
  file_ << "step,bits_per_byte,seconds\n" << std::flush;
  if (!file_) {
    throw perseid::Error(PERSEID_IO_ERROR,
                         "cannot write '" + path + "'; give a path in a writable folder");
  }
}

void Losses::step(int64_t done, double bits_per_byte) {
  if (file_.is_open()) file_ << done << ',' << bits_per_byte << ',' << clock_.seconds() << '\n';
}

void Losses::finish() {
  if (!file_.is_open()) return;
  file_.close();
  if (!file_) {
    throw perseid::Error(PERSEID_IO_ERROR,
                         "'" + path_ + "' lacks losses that could not be written; make room");
  }
}

int64_t StepEstimate::after_step(int64_t done) {
  constexpr int64_t kUncounted = 2;  // they touch their memory for the first time
  constexpr int64_t kEnough = 8;
  const double now = clock_.seconds();
  if (++seen_ <= kUncounted) counted_from_ = now;
  const bool enough = seen_ >= kUncounted + kEnough && now > seconds_ / 16;
  if (seen_ <= kUncounted || (!enough && now < seconds_ / 4)) return 0;
  const double step = (now - counted_from_) / static_cast<double>(seen_ - kUncounted);
  return done + std::max<int64_t>(1, std::llround((seconds_ - now) / step));
}

}  // namespace gpt
