// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a training run tells while it goes on: one live line on a terminal, else a line now and
// then.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

namespace gpt {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// "7 s", "2 min 5 s", "1 h 3 min"
std::string clock_time(double seconds);

class Progress {
 public:
  Progress(bool quiet, int64_t tokens_per_step);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After each step; `steps` 0: not known yet.
  void step(int64_t done, int64_t steps, double bits_per_byte);
  // Before anything else is printed.
  void finish();

 private:
  void print(int64_t done, int64_t steps);

  bool quiet_, live_;
  bool drawn_ = false;
  int64_t tokens_per_step_;
  Stopwatch clock_;
  double shown_at_ = -1e9;
  double loss_ = 0;  // smoothed
  int64_t seen_ = 0;
};

// A line for every step in a .csv file: its number, its loss in bits per byte, and the seconds
// since the first step began. Nothing is written without a path.
class Losses {
 public:
  explicit Losses(const std::string& path);
  void step(int64_t done, double bits_per_byte);
  // After the last one. Throws perseid::Error where a line could not be written.
  void finish();

 private:
  std::string path_;
  std::ofstream file_;
  Stopwatch clock_;
};

// How many steps fit into a time, judged by the first few. Once known, the number stays: what a run
// computes depends on steps, never on the clock.
class StepEstimate {
 public:
  explicit StepEstimate(double seconds) : seconds_(seconds) {}
  // After each step. The number of steps of the whole run, or 0 while it is too early to say.
  int64_t after_step(int64_t done);

 private:
  double seconds_;
  Stopwatch clock_;
  int64_t seen_ = 0;
  double counted_from_ = 0;
};

}  // namespace gpt
