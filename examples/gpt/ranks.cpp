// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <random>
#include <string>
#include <system_error>

namespace gpt {
namespace {

int spoken = -1;  // stdout, where it is put off

std::vector<pid_t> processes;
void pass_on(int signal) {
  for (const pid_t process : processes) kill(process, signal);
}

[[noreturn]] void fail(const char* what) {
  throw perseid::Error(PERSEID_DEVICE_ERROR,
                       std::string(what) + ": " + std::generic_category().message(errno));
}

// In the child.
void become(int32_t rank, int32_t count, const std::string& folder, const std::string& token) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setpgid(0, 0);  // Ctrl-C goes to the first process, which passes it on once
  for (const auto& [name, value] : {std::pair{"PERSEID_RANK", std::to_string(rank)},
                                    {"PERSEID_WORLD_SIZE", std::to_string(count)},
                                    {"PERSEID_RENDEZVOUS", "unix:" + folder + "/ranks"},
                                    {"PERSEID_TOKEN", token}}) {
    setenv(name, value.c_str(), 1);
  }
  if (rank == 0) return;
  spoken = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  const int silent = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (silent >= 0) dup2(silent, STDOUT_FILENO), close(silent);
}

}  // namespace

std::vector<double> Ranks::gather(const std::vector<double>& mine) const {
  const auto count = static_cast<int64_t>(mine.size());
  std::vector<double> all(mine.size() * static_cast<size_t>(size()));
  group_.all_gather(perseid::Tensor(mine.data(), perseid::f64, {count}),
                    perseid::Tensor(all.data(), perseid::f64, {count * size()}));
  return all;
}

std::optional<int> launch(int32_t count) {
  std::string folder = "/tmp/perseid-gpt-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) fail("no folder for the ranks to meet in");
  std::random_device random;
  const std::string token = std::to_string(random()) + std::to_string(random());
  std::fflush(nullptr);
  for (int32_t rank = 0; rank < count; ++rank) {
    const pid_t process = fork();
    if (process < 0) fail("a rank cannot be started");
    if (process == 0) {
      become(rank, count, folder, token);
      return std::nullopt;
    }
    processes.push_back(process);
  }
  // They save what they have.
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, pass_on);
  int code = -1;
  for (const pid_t process : processes) {
    int status = 0;
    while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    if (code < 0 && WIFEXITED(status)) code = WEXITSTATUS(status);
  }
  for (int32_t rank = 0; rank < count; ++rank)
    unlink((folder + "/ranks." + std::to_string(rank)).c_str());
  unlink((folder + "/ranks").c_str());
  rmdir(folder.c_str());
  return code < 0 ? 2 : code;
}

void speak() {
  if (spoken < 0) return;
  std::fflush(stdout);
  dup2(spoken, STDOUT_FILENO);
  close(spoken);
  spoken = -1;
}

}  // namespace gpt
