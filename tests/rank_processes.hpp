// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, for tests in which some are killed or stopped.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <new>
#include <stdexcept>
#include <vector>

namespace collective_tools {

using Clock = std::chrono::steady_clock;

inline constexpr int32_t kMostProcesses = 8;

// What processes tell the parent.
struct Board {
  std::atomic<int32_t> ready{0};
  std::atomic<int64_t> killed_at{0};
  std::atomic<bool> go{false};
  struct Rank {
    int32_t status = -1;
    double seconds = -1;     // from the kill to the status
    double seconds_on = -1;  // from there to the end of a right operation
    int32_t named = -1;
    char sentence[256] = {};
    char steps[512] = {};  // after the kill, with the milliseconds since
  } ranks[kMostProcesses];
};

inline int64_t now() { return Clock::now().time_since_epoch().count(); }
inline double since(int64_t from) { return static_cast<double>(now() - from) * 1e-9; }

// A port of this host's own address, free now.
inline int32_t free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof any;
  EXPECT_EQ(bind(probe, reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
  EXPECT_EQ(getsockname(probe, reinterpret_cast<sockaddr*>(&any), &length), 0);
  close(probe);
  return ntohs(any.sin_port);
}

class RankProcesses : public testing::Test {
 protected:
  RankProcesses()
      : board_(static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    new (board_) Board;
  }
  ~RankProcesses() override { munmap(board_, sizeof(Board)); }

  // In the process of a rank, before its body.
  virtual void enter(int32_t) {}
  // Starts body(rank) in a process each. It returns whether all went well.
  void start(int32_t size, const std::function<bool(int32_t)>& body) {
    for (int32_t rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        int code = 1;
        try {
          enter(rank);
          code = body(rank) ? 0 : 1;
        } catch (const std::exception& error) {
          fprintf(stderr, "rank %d: %s\n", rank, error.what());
        }
        fflush(nullptr);
        _exit(code);
      }
      children_.push_back(child);
    }
  }
  // For every rank its exit code, or -signal.
  std::vector<int> join() {
    std::vector<int> codes;
    for (const pid_t child : children_) {
      int status = 0;
      waitpid(child, &status, 0);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    children_.clear();
    return codes;
  }

  Board* board_;
  std::vector<pid_t> children_;
};

}  // namespace collective_tools
