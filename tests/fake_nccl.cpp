// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// As much of NCCL as the library calls, without GPUs: ranks are processes that connect to one
// another by Unix sockets, memory of a GPU is that of the fake driver, and a group of sends and
// receives is work of its stream, which waits without an end for ranks that do not come.
// FAKE_NCCL=refuse: no ranks are connected; silent: this rank's data stays where it is after the
// first exchange; hung: and nothing comes to it; slow: exchanges take 30 milliseconds; fail N: the
// N-th group is refused; stuck: aborting does not return.
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;

struct UniqueId {
  char path[128];
};

struct Part {
  int rank;
  char* data;
  size_t bytes;
  bool sends;
};

std::string_view mode() {
  const char* const value = std::getenv("FAKE_NCCL");
  return value == nullptr ? "" : value;
}

sockaddr_un address_of(const char* path, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%.90s.%d", path, rank);
  return address;
}

}  // namespace

struct ncclComm {
  std::atomic<int> state{kInProgress};
  std::atomic<bool> aborted{false};
  std::atomic<int> queued{0};
  int rank = 0, size = 0, exchanges = 0, groups = 0;
  UniqueId id{};
  std::vector<int> sockets;
  std::vector<Part> parts;  // of the group that is being made
  void* stream = nullptr;
  std::thread thread;

  void connect();
  void exchange(std::vector<Part> parts);
};

namespace {

thread_local ncclComm* grouped = nullptr;
std::atomic<uint64_t> peers{0};
std::atomic<int> most_queued{0};

struct Exchange {
  ncclComm* communicator;
  std::vector<Part> parts;
};

void run(void* argument) {
  auto* const exchange = static_cast<Exchange*>(argument);
  exchange->communicator->exchange(std::move(exchange->parts));
  --exchange->communicator->queued;
  delete exchange;
}

void enqueue(void* stream, Exchange* exchange) {
  using Enqueue = void (*)(void*, void (*)(void*), void*);
  static const auto function =
      reinterpret_cast<Enqueue>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_enqueue"));
  function(stream, run, exchange);
}

}  // namespace

// To those below, from those above.
void ncclComm::connect() {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un own = address_of(id.path, rank);
  if (bind(listener, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0 ||
      listen(listener, 8) != 0)
    state = kInvalidUsage;
  for (int other = 0; other < rank && state == kInProgress; ++other) {
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(id.path, other);
    while (!aborted &&
           ::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      usleep(1000);
    if (write(made, &rank, sizeof rank) != sizeof rank) state = kRemoteError;
    sockets[static_cast<size_t>(other)] = made;
  }
  for (int count = rank + 1; count < size && state == kInProgress;) {
    pollfd polled{listener, POLLIN, 0};
    if (aborted) break;
    if (poll(&polled, 1, 10) <= 0) continue;
    const int made = accept(listener, nullptr, nullptr);
    int other = 0;
    if (read(made, &other, sizeof other) != sizeof other) state = kRemoteError;
    sockets[static_cast<size_t>(other)] = made;
    ++count;
  }
  close(listener);
  unlink(own.sun_path);
  if (state == kInProgress) state = kSuccess;
}

void ncclComm::exchange(std::vector<Part> exchanged) {
  const bool later = ++exchanges > 1, hung = mode() == "hung" && later,
             silent = hung || (mode() == "silent" && later);
  if (mode() == "slow") usleep(30000);
  std::vector<size_t> done(exchanged.size());
  bool left = true;
  while (left && !aborted) {
    left = false;
    // A later part of the same way to or from a rank waits.
    uint64_t busy[2] = {};
    for (size_t i = 0; i < exchanged.size(); ++i) {
      const Part& part = exchanged[i];
      if (done[i] == part.bytes) continue;
      left = true;
      const uint64_t way = uint64_t{1} << part.rank;
      if ((busy[part.sends] & way) != 0) continue;
      busy[part.sends] |= way;
      if (hung || (part.sends && silent)) continue;
      const int to = sockets[static_cast<size_t>(part.rank)];
      const ssize_t moved =
          part.sends
              ? send(to, part.data + done[i], part.bytes - done[i], MSG_DONTWAIT | MSG_NOSIGNAL)
              : recv(to, part.data + done[i], part.bytes - done[i], MSG_DONTWAIT);
      if (moved > 0) done[i] += static_cast<size_t>(moved);
    }
    if (left) usleep(50);
  }
}

extern "C" {

// A bit for each rank that this one has exchanged with since they were connected.
uint64_t fake_nccl_peers() { return peers; }
// Exchanges that were queued and had not ended, at most so far.
int fake_nccl_most_queued() { return most_queued; }

int ncclGetVersion(int* version) {
  *version = 22803;
  return kSuccess;
}
int ncclGetUniqueId(UniqueId* id) {
  char path[] = "/tmp/fake_nccl.XXXXXX";
  close(mkstemp(path));
  unlink(path);
  std::snprintf(id->path, sizeof id->path, "%s", path);
  return kSuccess;
}
int ncclCommInitRankConfig(ncclComm** made, int size, UniqueId id, int rank, void*) {
  if (mode() == "refuse") return kInvalidUsage;
  auto* const communicator = new ncclComm;
  communicator->rank = rank;
  communicator->size = size;
  communicator->id = id;
  communicator->sockets.assign(static_cast<size_t>(size), -1);
  communicator->thread = std::thread([communicator] { communicator->connect(); });
  *made = communicator;
  return kInProgress;
}
int ncclCommGetAsyncError(ncclComm* communicator, int* state) {
  *state = communicator->state;
  // A group is in progress when it is asked for the first time.
  if (communicator->groups > 0) communicator->state = kSuccess;
  return kSuccess;
}
int ncclGroupStart() { return kSuccess; }
int ncclSend(const void* data, size_t bytes, int, int rank, ncclComm* communicator, void* stream) {
  grouped = communicator;
  communicator->stream = stream;
  communicator->parts.push_back({rank, static_cast<char*>(const_cast<void*>(data)), bytes, true});
  return kSuccess;
}
int ncclRecv(void* data, size_t bytes, int, int rank, ncclComm* communicator, void* stream) {
  grouped = communicator;
  communicator->stream = stream;
  communicator->parts.push_back({rank, static_cast<char*>(data), bytes, false});
  return kSuccess;
}
int ncclGroupEnd() {
  ncclComm* const communicator = grouped;
  grouped = nullptr;
  if (communicator == nullptr) return kSuccess;
  if (communicator->thread.joinable()) communicator->thread.join();
  if (mode() == "fail " + std::to_string(++communicator->groups)) return kInvalidUsage;
  for (const Part& part : communicator->parts)
    if (communicator->groups > 1) peers |= uint64_t{1} << part.rank;
  communicator->state = kInProgress;
  most_queued = std::max<int>(most_queued, ++communicator->queued);
  enqueue(communicator->stream, new Exchange{communicator, std::move(communicator->parts)});
  communicator->parts.clear();
  return kInProgress;
}
int ncclCommAbort(ncclComm* communicator) {
  communicator->aborted = true;
  if (mode() == "stuck") pause();
  if (communicator->thread.joinable()) communicator->thread.join();
  // What is queued ends as it begins.
  while (communicator->queued > 0) usleep(100);
  for (const int each : communicator->sockets)
    if (each >= 0) close(each);
  delete communicator;
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kInvalidUsage ? "invalid usage" : "remote error";
}

}  // extern "C"
