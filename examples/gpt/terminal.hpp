// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the program has of its caller: standard streams, limits, and the signals to stop.
#pragma once

namespace gpt {

// A standard stream that the caller has closed gets a descriptor on which reads or writes fail: the
// next file opened would take its number, and with it what is printed. Has writes past a limit on
// the size of files fail, where a signal would end the program.
void prepare_streams();

// Throws perseid::Error where something printed to stdout could not be written.
void flush_stdout();

// While one exists, SIGINT and SIGTERM ask a run to stop and to save what it has; a second one ends
// the program at once. Otherwise the first one does.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool heard() const;
};

}  // namespace gpt
