// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "common.hpp"

namespace perseid::cli {
namespace {

[[noreturn]] void out_failed(int error) {
  throw Error(PERSEID_IO_ERROR, fmt::format("cannot write to stdout: {}; the results are lost",
                                            std::generic_category().message(error)));
}

// Only what may be called within a signal handler.
void lost_input(int signal, siginfo_t* cause, void*) {
  if (cause->si_code != BUS_ADRERR) {  // no missing page: memory that failed, or a defect
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  static constexpr std::string_view kSentence =
      "perseid: an input file lost data while it was read: another process cut it short, or its "
      "disk failed; write a new file and rename it over the old one instead\n";
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, kSentence.data(), kSentence.size());
  ::_exit(kBadInput);
}

}  // namespace

void open_standard_streams() {
  // The other direction: reading stdin and writing stdout and stderr go on failing. A new
  // descriptor is the lowest that is free.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0)
      ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void end_on_lost_input() {
  struct sigaction action {};
  action.sa_sigaction = lost_input;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) out_failed(errno);
}

void flush_out() {
  if (std::fflush(stdout) != 0) out_failed(errno);
  if (std::ferror(stdout) != 0) out_failed(EIO);
}

void write_err(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace perseid::cli
