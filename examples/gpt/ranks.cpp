// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <random>
#include <string>
#include <system_error>

namespace gpt {
namespace {

int spoken = -1;  // stdout, where it is put off

std::vector<pid_t> processes;  // 0: has ended
volatile std::sig_atomic_t told_to_stop = 0;
void pass_on(int signal) {
  told_to_stop = 1;
  for (const pid_t process : processes)
    if (process > 0) kill(process, signal);
}

[[noreturn]] void fail(const char* what) {
  throw perseid::Error(PERSEID_DEVICE_ERROR,
                       std::string(what) + ": " + std::generic_category().message(errno));
}

// How the ranks of a run meet.
struct Meeting {
  int32_t count;
  std::string token, folder = "/tmp/perseid-gpt-XXXXXX";

  std::string address() const { return folder + "/ranks"; }
  void remove(int32_t rank) const {
    unlink((rank == 0 ? address() : address() + "." + std::to_string(rank)).c_str());
  }
};

// In the child.
void become(const Meeting& meeting, int32_t rank, bool silent) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setpgid(0, 0);  // Ctrl-C goes to the first process, which passes it on once
  for (const auto& [name, value] : {std::pair{"PERSEID_RANK", std::to_string(rank)},
                                    {"PERSEID_WORLD_SIZE", std::to_string(meeting.count)},
                                    {"PERSEID_RENDEZVOUS", "unix:" + meeting.address()},
                                    {"PERSEID_TOKEN", meeting.token}}) {
    setenv(name, value.c_str(), 1);
  }
  if (!silent) return;
  spoken = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO), close(nowhere);
}

// Returns whether this is the child.
bool start(const Meeting& meeting, int32_t rank, bool replaces) {
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process < 0) fail("a rank cannot be started");
  if (process == 0) become(meeting, rank, replaces || rank > 0);
  processes[static_cast<size_t>(rank)] = process;
  return process == 0;
}

}  // namespace

std::vector<int64_t> Ranks::positions(const Config& config) const {
  std::vector<int64_t> own;
  const auto add = [&](int64_t piece, int64_t pieces) {
    const int64_t end = (piece + 1) * config.context / pieces;
    for (int64_t at = piece * config.context / pieces; at < end; ++at) own.push_back(at);
  };
  if (!divide_context()) {
    add(0, 1);
  } else if (placement(config) == perseid::Sharding::kZigzag) {
    add(rank(), 2 * size());
    add(2 * size() - 1 - rank(), 2 * size());
  } else {
    add(rank(), size());
  }
  return own;
}

std::vector<double> Ranks::gather(const std::vector<double>& mine) const {
  const auto count = static_cast<int64_t>(mine.size());
  std::vector<double> all(mine.size() * static_cast<size_t>(size()));
  group_.all_gather(perseid::Tensor(mine.data(), perseid::f64, {count}),
                    perseid::Tensor(all.data(), perseid::f64, {count * size()}));
  return all;
}

std::optional<int> launch(int32_t count, int32_t restarts) {
  std::random_device random;
  Meeting meeting{.count = count, .token = std::to_string(random()) + std::to_string(random())};
  if (mkdtemp(meeting.folder.data()) == nullptr) fail("no folder for the ranks to meet in");
  processes.resize(static_cast<size_t>(count));
  for (int32_t rank = 0; rank < count; ++rank)
    if (start(meeting, rank, false)) return std::nullopt;
  // They save what they have.
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, pass_on);
  std::vector<int> codes(processes.size(), -1);
  for (int32_t running = count; running > 0;) {
    int status = 0;
    const pid_t process = waitpid(-1, &status, 0);
    const auto found = std::find(processes.begin(), processes.end(), process);
    if (found == processes.end()) continue;  // a signal came
    const auto rank = static_cast<int32_t>(found - processes.begin());
    *found = 0;
    if (WIFSIGNALED(status) && restarts > 0 && told_to_stop == 0) {
      --restarts;
      meeting.remove(rank);  // where it died before it had met the others
      if (start(meeting, rank, true)) return std::nullopt;
      continue;
    }
    --running;
    if (WIFEXITED(status)) codes[static_cast<size_t>(rank)] = WEXITSTATUS(status);
  }
  for (int32_t rank = 0; rank < count; ++rank) meeting.remove(rank);
  rmdir(meeting.folder.c_str());
  const auto code = std::find_if(codes.begin(), codes.end(), [](int each) { return each >= 0; });
  return code == codes.end() ? 2 : *code;
}

void speak() {
  if (spoken < 0) return;
  std::fflush(stdout);
  dup2(spoken, STDOUT_FILENO);
  close(spoken);
  spoken = -1;
}

}  // namespace gpt
