// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "terminal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "perseid/perseid.hpp"

namespace gpt {
namespace {

volatile std::sig_atomic_t stop = 0;

void on_signal(int number) {
  stop = 1;
  std::signal(number, SIG_DFL);
}

}  // namespace

void prepare_streams() {
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest number that is free: this one, as those below it are open.
    const int fails = stream == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", fails) < 0) return;
  }
}

void flush_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw perseid::Error(PERSEID_IO_ERROR,
                         "stdout could not be written; is it closed, or the disk full?");
  }
}

StopSignals::StopSignals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignals::heard() const { return stop != 0; }

}  // namespace gpt
