// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid launch`: a program as N ranks on this host, which are its direct children. What a rank
// writes to stderr gets its number before each line; stdout is passed through.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "commands.hpp"
#include "help.hpp"
#include "streams.hpp"

namespace perseid::cli {
namespace {

struct Flags {
  int64_t ranks = 0, restarts = 0;
  std::vector<std::string> command;
};

// What the shell would say of a command that cannot be started.
constexpr int kCannotStart = 127;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD};

[[noreturn]] void fail(const char* what) {
  throw Error(PERSEID_DEVICE_ERROR, fmt::format("launch: {}: {}", what, std::strerror(errno)));
}

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) fail("no random numbers");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

// Where the ranks meet, in a folder of this user alone.
class Rendezvous {
 public:
  Rendezvous() {
    const char* folder = std::getenv("TMPDIR");
    path_ = folder != nullptr && *folder == '/' ? folder : "/tmp";
    // The path of a socket has about 100 bytes.
    if (path_.size() > 60) path_ = "/tmp";
    path_ += "/perseid-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) fail("cannot make a folder for the rendezvous");
  }
  ~Rendezvous() {
    // A rank that was killed as it started leaves its socket behind.
    for (int64_t rank = 0; rank < PERSEID_MAX_RANKS; ++rank)
      unlink(fmt::format("{}/ranks.{}", path_, rank).c_str());
    unlink((path_ + "/ranks").c_str());
    rmdir(path_.c_str());
  }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  std::string address() const { return "unix:" + path_ + "/ranks"; }

 private:
  std::string path_;
};

struct Rank {
  pid_t process = -1;
  int errors = -1;  // the reading end of its stderr
  std::string line;
  int code = -1;  // once it has ended
};

// Writes whole lines with the rank before each; at the end also what has no end of line.
void pass_lines(Rank& rank, size_t number, bool last) {
  for (size_t end; (end = rank.line.find('\n')) != std::string::npos; rank.line.erase(0, end + 1))
    write_err(fmt::format("rank {}: {}\n", number, rank.line.substr(0, end)));
  if (last && !rank.line.empty()) write_err(fmt::format("rank {}: {}\n", number, rank.line));
  if (last) rank.line.clear();
}

// What a rank has written; false at the end.
bool read_errors(Rank& rank, size_t number) {
  char bytes[4096];
  const ssize_t got = read(rank.errors, bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got > 0) rank.line.append(bytes, static_cast<size_t>(got));
  pass_lines(rank, number, got <= 0);
  if (got > 0) return true;
  close(rank.errors);
  rank.errors = -1;
  return false;
}

class Launch {
 public:
  explicit Launch(const Flags& flags) : flags_(flags), ranks_(static_cast<size_t>(flags.ranks)) {
    sigemptyset(&signals_);
    for (const int signal : kSignals) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
    events_ = signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
    if (events_ < 0) fail("cannot wait for signals");
  }
  ~Launch() {
    close(events_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) start(rank);
    // Until every rank has ended and said all it had to say.
    while (
        std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.code < 0; }))
      step(-1);
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      while (ranks_[rank].errors >= 0 && drain(rank)) {
      }
    return std::max_element(ranks_.begin(), ranks_.end(),
                            [](const Rank& a, const Rank& b) { return a.code < b.code; })
        ->code;
  }

 private:
  void start(size_t number) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail("cannot make a pipe");
    flush_out();
    const pid_t process = fork();
    if (process < 0) fail("cannot start a rank");
    if (process == 0) {
      become(number, ends[1]);
      _exit(kCannotStart);
    }
    close(ends[1]);
    ranks_[number].process = process;
    ranks_[number].errors = ends[0];
  }

  // In the child. Returns where the command cannot be started.
  void become(size_t number, int errors) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    // The rank writes as it is used to.
    fcntl(errors, F_SETFL, 0);
    dup2(errors, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    const auto set = [](const char* name, const std::string& value) {
      setenv(name, value.c_str(), 1);
    };
    set("PERSEID_RANK", std::to_string(number));
    set("PERSEID_WORLD_SIZE", std::to_string(flags_.ranks));
    set("PERSEID_RENDEZVOUS", rendezvous_.address());
    set("PERSEID_TOKEN", token_);
    // The ranks share the CPUs.
    cpu_set_t cpus;
    const int64_t count =
        sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : flags_.ranks;
    setenv("PERSEID_NUM_THREADS",
           std::to_string(std::max<int64_t>(1, count / flags_.ranks)).c_str(), 0);
    std::vector<char*> arguments;
    for (const std::string& word : flags_.command)
      arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    // `perseid` is this very program.
    if (flags_.command[0] == "perseid") execv("/proc/self/exe", arguments.data());
    execvp(arguments[0], arguments.data());
    const std::string sentence =
        fmt::format("cannot start '{}': {}\n", flags_.command[0], std::strerror(errno));
    [[maybe_unused]] const ssize_t wrote = write(STDERR_FILENO, sentence.data(), sentence.size());
  }

  // Waits for something to happen, at most `limit` milliseconds (-1: no limit).
  void step(int limit) {
    std::vector<pollfd> polled{{events_, POLLIN, 0}};
    std::vector<size_t> numbers{0};
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].errors < 0) continue;
      polled.push_back({ranks_[rank].errors, POLLIN, 0});
      numbers.push_back(rank);
    }
    poll(polled.data(), polled.size(), limit);
    for (size_t i = 1; i < polled.size(); ++i)
      if (polled[i].revents != 0) read_errors(ranks_[numbers[i]], numbers[i]);
    if (polled[0].revents != 0) take_signals();
  }

  // Reads what a rank that has ended left in its pipe. A process that it left behind may keep
  // the pipe open, and is not waited for.
  bool drain(size_t number) {
    pollfd polled{ranks_[number].errors, POLLIN, 0};
    if (poll(&polled, 1, 0) > 0) return read_errors(ranks_[number], number);
    pass_lines(ranks_[number], number, true);
    return false;
  }

  void take_signals() {
    signalfd_siginfo taken;
    while (read(events_, &taken, sizeof taken) == sizeof taken) {
      const auto signal = static_cast<int>(taken.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT)
        stopping_ = true;
      // What the terminal sends goes to all processes of the job anyway.
      if (taken.ssi_code == SI_KERNEL) continue;
      for (const Rank& rank : ranks_)
        if (rank.process > 0 && rank.code < 0) kill(rank.process, signal);
    }
    for (Rank& rank : ranks_) {
      int status = 0;
      if (rank.code >= 0 || waitpid(rank.process, &status, WNOHANG) != rank.process) continue;
      rank.code = WIFEXITED(status) ? WEXITSTATUS(status) : kPeerLost;
      if (!WIFSIGNALED(status)) continue;
      const size_t number = static_cast<size_t>(&rank - ranks_.data());
      write_err(fmt::format("rank {}: ended by signal {} ({})\n", number, WTERMSIG(status),
                            strsignal(WTERMSIG(status))));
      if (stopping_ || restarts_ == flags_.restarts) continue;
      ++restarts_;
      while (rank.errors >= 0 && drain(number)) {
      }
      if (rank.errors >= 0) close(rank.errors);
      rank = {};
      write_err(fmt::format("rank {}: started again\n", number));
      start(number);
    }
  }

  const Flags& flags_;
  const Rendezvous rendezvous_;
  const std::string token_ = random_token();
  int64_t restarts_ = 0;
  std::vector<Rank> ranks_;
  sigset_t signals_, before_;
  int events_ = -1;
  bool stopping_ = false;  // a signal has asked for it
};

int launch(const Flags& flags) {
  if (flags.ranks < 1 || flags.ranks > PERSEID_MAX_RANKS)
    bad_input(fmt::format("-n must be from 1 to {} ranks, got {}", PERSEID_MAX_RANKS, flags.ranks));
  if (flags.restarts < 0)
    bad_input(fmt::format("--restarts must be at least 0, got {}", flags.restarts));
  return Launch(flags).run();
}

}  // namespace

void add_launch(CLI::App& app, const Common&, Action& action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("launch", "start a program as ranks of a group on this host");
  command->add_option("-n,--ranks", flags->ranks, "how many ranks")->required()->type_name("N");
  command
      ->add_option("--restarts", flags->restarts,
                   "how many ranks that a signal has ended are started again, with the same "
                   "number (0)")
      ->type_name("N");
  command->add_option("command", flags->command, "the program, behind --, and its arguments")
      ->required()
      ->type_name("PROGRAM");
  command->footer(
      "Ranks have PERSEID_RANK, PERSEID_WORLD_SIZE, PERSEID_RENDEZVOUS and PERSEID_TOKEN, and "
      "share the CPUs by PERSEID_NUM_THREADS unless that is set. The exit code is the largest of "
      "the ranks', 5 where a signal ended one.\n"
      "Example:\n  perseid launch -n 2 -- perseid run matmul-all-reduce --a 'a.{rank}.npy' "
      "--b 'b.{rank}.npy' --out 'c.{rank}.npy'");
  command->fallthrough()->callback(
      [&action, flags] { action = [flags] { return launch(*flags); }; });
}

}  // namespace perseid::cli
