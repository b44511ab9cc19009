// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// MPI as mpi_plugin.hpp describes it.
//
// Threads: one thread of this library calls MPI at a time, under one mutex, and never waits within
// MPI: every call returns at once, and is repeated until a deadline. So MPI_THREAD_SERIALIZED is
// enough where the program makes no calls itself, and MPI_THREAD_MULTIPLE where it does.
//
// Links: bytes are copied through buffers of this file, a ring of kSlots in each direction for each
// rank. Receives are persistent requests, started in the order of the ring, which is the order in
// which MPI matches messages of one sender and tag. Sends are as long as what there is to send. MPI
// holds no memory of a plan, so that a rank which takes nothing any more keeps nobody from freeing
// it. A message of no bytes ends a link.
//
// MPI knows no deadline. What it has not done by then cannot be taken back, so it is left alone
// from there on: its thread or buffers stay, and MPI is not finalised.
#include "collective/mpi_plugin.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

constexpr std::chrono::microseconds kInterval{50};
constexpr std::chrono::seconds kFinalising{5};
constexpr int kSlots = 4;
constexpr size_t kSlotBytes = 128 << 10;

std::mutex mutex;  // of all calls of MPI, and of what follows
std::atomic<bool> late{false};
std::atomic<bool> finalised{false};
bool initialised_here = false;
MPI_Comm communicator = MPI_COMM_NULL;  // of this library alone
MPI_Comm duplicate = MPI_COMM_NULL;     // what MPI makes of it, maybe after a deadline

Deadline deadline_in(uint64_t nanoseconds) {
  return Clock::now() + std::chrono::nanoseconds(nanoseconds);
}

int give_up() {
  late = true;
  return kPerseidMpiLate;
}

// Until the request is complete. What it writes to must live on where this is late.
int wait_for(MPI_Request* request, Deadline deadline) {
  for (;;) {
    int done = 0, error = MPI_ERR_OTHER;
    {
      const std::lock_guard lock(mutex);
      if (!finalised) error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    }
    if (error != MPI_SUCCESS || done != 0) return error;
    if (Clock::now() >= deadline) return give_up();
    std::this_thread::sleep_for(kInterval);
  }
}

// MPI_Finalize deletes the attributes of MPI_COMM_SELF first of all.
int before_finalise(MPI_Comm, int, void*, void*) {
  const std::lock_guard lock(mutex);
  finalised = true;
  return MPI_SUCCESS;
}

// At exit, where this library has initialised MPI. It waits for the other ranks, as MPI_Finalize
// does, since mpirun may end a job of which a rank has left before: the others may compute for
// hours, so that no deadline would do. For one that is late, and leaves without, mpirun ends the
// job. Once all are here MPI_Finalize has a deadline: that of MPICH over UCX may wait for a rank
// which makes no progress any more.
void finalise(int code, void*) {
  if (late || finalised || communicator == MPI_COMM_NULL) return;
  MPI_Request request = MPI_REQUEST_NULL;
  int error = MPI_SUCCESS;
  {
    const std::lock_guard lock(mutex);
    error = MPI_Ibarrier(communicator, &request);
  }
  if (error != MPI_SUCCESS || wait_for(&request, Deadline::max()) != MPI_SUCCESS) return;
  auto promise = std::make_shared<std::promise<void>>();
  const std::future<void> done = promise->get_future();
  std::thread([promise] {
    MPI_Finalize();
    promise->set_value();
  }).detach();
  if (done.wait_for(kFinalising) == std::future_status::ready) return;
  // What runs after this would take away what MPI still uses.
  std::fflush(nullptr);
  ::_exit(code);
}

int initialise(Deadline deadline) {
  auto promise = std::make_shared<std::promise<int>>();
  std::future<int> result = promise->get_future();
  std::thread([promise] {
    int provided = 0;
    promise->set_value(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  }).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return give_up();
  if (const int error = result.get(); error != MPI_SUCCESS) return error;
  initialised_here = true;
  ::on_exit(finalise, nullptr);
  return MPI_SUCCESS;
}

// A communicator whose messages are no others', and whose errors end a call with a status.
int make_communicator(Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  int error = MPI_SUCCESS;
  {
    const std::lock_guard lock(mutex);
    int key = MPI_KEYVAL_INVALID;
    error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, before_finalise, &key, nullptr);
    if (error == MPI_SUCCESS) error = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
    if (error == MPI_SUCCESS) error = MPI_Comm_idup(MPI_COMM_WORLD, &duplicate, &request);
  }
  if (error == MPI_SUCCESS) error = wait_for(&request, deadline);
  if (error != MPI_SUCCESS) return error;
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  communicator = duplicate;
  return MPI_SUCCESS;
}

int open(uint64_t nanoseconds, int* rank, int* size) {
  const Deadline deadline = deadline_in(nanoseconds);
  if (late) return kPerseidMpiLate;
  int initialised = 0, ended = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&ended);
  if (ended != 0) return MPI_ERR_OTHER;
  int error = initialised != 0 ? MPI_SUCCESS : initialise(deadline);
  if (error == MPI_SUCCESS && communicator == MPI_COMM_NULL) error = make_communicator(deadline);
  if (error != MPI_SUCCESS) return error;
  const std::lock_guard lock(mutex);
  error = MPI_Comm_rank(communicator, rank);
  return error != MPI_SUCCESS ? error : MPI_Comm_size(communicator, size);
}

int all_gather(uint64_t nanoseconds, const void* mine, size_t bytes, void* all) {
  const Deadline deadline = deadline_in(nanoseconds);
  if (late) return kPerseidMpiLate;
  int size = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  // MPI may still write after the deadline.
  std::unique_ptr<char[]> buffer;
  size_t total = 0;
  {
    const std::lock_guard lock(mutex);
    int error = finalised ? MPI_ERR_OTHER : MPI_Comm_size(communicator, &size);
    if (error != MPI_SUCCESS) return error;
    total = bytes * static_cast<size_t>(size);
    buffer = std::make_unique<char[]>(total + bytes);
    std::memcpy(buffer.get() + total, mine, bytes);
    const int count = static_cast<int>(bytes);
    error = MPI_Iallgather(buffer.get() + total, count, MPI_BYTE, buffer.get(), count, MPI_BYTE,
                           communicator, &request);
    if (error != MPI_SUCCESS) return error;
  }
  const int error = wait_for(&request, deadline);
  if (error == MPI_SUCCESS) std::memcpy(all, buffer.get(), total);
  if (error == kPerseidMpiLate) (void)buffer.release();
  return error;
}

int allows_threads(const char** level) {
  const std::lock_guard lock(mutex);
  int provided = MPI_THREAD_SINGLE;
  if (!finalised) MPI_Query_thread(&provided);
  *level = provided == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : provided == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : provided == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                               : "MPI_THREAD_MULTIPLE";
  return provided == MPI_THREAD_MULTIPLE || (initialised_here && provided == MPI_THREAD_SERIALIZED)
             ? 1
             : 0;
}

}  // namespace

// ---- Links. Each is used by one thread.

struct perseid_mpi_links {
  struct Slot {
    std::unique_ptr<char[]> data = std::make_unique<char[]>(kSlotBytes);
    size_t bytes = 0, read = 0;
    bool arrived = false;
  };
  struct Peer {
    Slot in[kSlots], out[kSlots];
    int next_in = 0, next_out = 0;
    bool ends = false, end_sent = false;
    bool ended = false;  // the other rank's end has come
    bool lost = false;
  };

  int rank = 0, size = 0, tag = 0;
  std::vector<std::unique_ptr<Peer>> peers;
  // For each rank those of `in`, then those of `out`.
  std::vector<MPI_Request> requests;
  std::vector<int> completed;
  std::vector<MPI_Status> statuses;

  MPI_Request& request(int of, int slot) {
    return requests[static_cast<size_t>(of) * 2 * kSlots + static_cast<size_t>(slot)];
  }
  bool leaves(int to, int slot) { return request(to, kSlots + slot) != MPI_REQUEST_NULL; }
  bool start();
  void push(int to);
  void complete();
  void work();
  bool is_complete();
};

namespace {

using Links = perseid_mpi_links;

}  // namespace

// False: MPI refuses.
bool Links::start() {
  for (int of = 0; of < size; ++of) {
    if (of == rank) continue;
    for (int slot = 0; slot < kSlots; ++slot)
      if (MPI_Recv_init(peers[static_cast<size_t>(of)]->in[slot].data.get(),
                        static_cast<int>(kSlotBytes), MPI_BYTE, of, tag, communicator,
                        &request(of, slot)) != MPI_SUCCESS ||
          MPI_Start(&request(of, slot)) != MPI_SUCCESS)
        return false;
  }
  return true;
}

// With the mutex: what the next slot holds leaves.
void Links::push(int to) {
  Peer& peer = *peers[static_cast<size_t>(to)];
  Slot& slot = peer.out[peer.next_out];
  if (finalised || MPI_Isend(slot.data.get(), static_cast<int>(slot.bytes), MPI_BYTE, to, tag,
                             communicator, &request(to, kSlots + peer.next_out)) != MPI_SUCCESS) {
    peer.lost = true;
    return;
  }
  slot.bytes = 0;
  peer.next_out = (peer.next_out + 1) % kSlots;
}

// With the mutex.
void Links::complete() {
  int count = 0;
  const int error = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                 completed.data(), statuses.data());
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) count = 0;
  for (int i = 0; i < count && count != MPI_UNDEFINED; ++i) {
    const int of = completed[static_cast<size_t>(i)] / (2 * kSlots);
    const int slot = completed[static_cast<size_t>(i)] % (2 * kSlots);
    Peer& peer = *peers[static_cast<size_t>(of)];
    const MPI_Status& status = statuses[static_cast<size_t>(i)];
    if (error == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) peer.lost = true;
    if (slot >= kSlots) continue;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    peer.in[slot].bytes = static_cast<size_t>(std::max(bytes, 0));
    peer.in[slot].read = 0;
    peer.in[slot].arrived = true;
  }
}

// With the mutex: takes what has come and sends what is there, and an end where there is to be one.
void Links::work() {
  if (!finalised) complete();
  for (int to = 0; to < size; ++to) {
    if (to == rank) continue;
    Peer& peer = *peers[static_cast<size_t>(to)];
    peer.lost = peer.lost || finalised;
    if (!peer.lost && peer.out[peer.next_out].bytes > 0) push(to);
    // A rank whose end has come waits for this one's.
    if (peer.lost || peer.end_sent || !(peer.ends || peer.ended) || leaves(to, peer.next_out))
      continue;
    push(to);  // no bytes
    peer.end_sent = true;
  }
}

// Whether MPI has no memory of these links any more.
bool Links::is_complete() {
  return std::all_of(requests.begin(), requests.end(),
                     [](MPI_Request each) { return each == MPI_REQUEST_NULL; });
}

namespace {

Links* connect(uint32_t number) {
  const std::lock_guard lock(mutex);
  if (finalised || late) return nullptr;
  auto links = std::make_unique<Links>();
  MPI_Comm_rank(communicator, &links->rank);
  MPI_Comm_size(communicator, &links->size);
  constexpr uint32_t kTags = 32768;  // as many as every MPI has
  links->tag = static_cast<int>(number % kTags);
  const size_t count = static_cast<size_t>(links->size) * 2 * kSlots;
  links->requests.assign(count, MPI_REQUEST_NULL);
  links->completed.resize(count);
  links->statuses.resize(count);
  for (int rank = 0; rank < links->size; ++rank)
    links->peers.push_back(rank == links->rank ? nullptr : std::make_unique<Links::Peer>());
  // Requests that were started before one was refused stay.
  Links* const made = links.release();
  return made->start() ? made : nullptr;
}

void disconnect(Links* links, uint64_t nanoseconds) {
  const Deadline deadline = deadline_in(nanoseconds);
  for (bool cancelled = false;; cancelled = true) {
    {
      const std::lock_guard lock(mutex);
      if (finalised) return;  // MPI may still use the buffers
      for (int of = 0; of < links->size && !cancelled; ++of)
        for (int slot = 0; slot < kSlots && of != links->rank; ++slot)
          if (!links->peers[static_cast<size_t>(of)]->in[slot].arrived)
            MPI_Cancel(&links->request(of, slot));
      links->work();
      for (int of = 0; of < links->size; ++of)
        for (int slot = 0; slot < kSlots && of != links->rank; ++slot)
          if (MPI_Request& request = links->request(of, slot);
              links->peers[static_cast<size_t>(of)]->in[slot].arrived &&
              request != MPI_REQUEST_NULL)
            MPI_Request_free(&request);
      if (links->is_complete()) {
        delete links;
        return;
      }
    }
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(kInterval);
  }
  late = true;
}

ssize_t send(Links* links, int rank, const iovec* parts, size_t count) {
  Links::Peer& peer = *links->peers[static_cast<size_t>(rank)];
  ssize_t taken = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t done = 0; done < parts[i].iov_len;) {
      if (peer.lost || links->leaves(rank, peer.next_out))
        return taken > 0 || !peer.lost ? taken : -1;
      Links::Slot& slot = peer.out[peer.next_out];
      const size_t bytes = std::min(kSlotBytes - slot.bytes, parts[i].iov_len - done);
      std::memcpy(slot.data.get() + slot.bytes, static_cast<const char*>(parts[i].iov_base) + done,
                  bytes);
      slot.bytes += bytes;
      done += bytes;
      taken += static_cast<ssize_t>(bytes);
      if (slot.bytes < kSlotBytes) continue;
      const std::lock_guard lock(mutex);
      links->push(rank);
    }
  }
  return taken;
}

ssize_t receive(Links* links, int rank, const iovec* parts, size_t count) {
  Links::Peer& peer = *links->peers[static_cast<size_t>(rank)];
  ssize_t given = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t done = 0; done < parts[i].iov_len;) {
      Links::Slot& slot = peer.in[peer.next_in];
      if (peer.lost || peer.ended || !slot.arrived)
        return given > 0 || (!peer.lost && !peer.ended) ? given : -1;
      const size_t bytes = std::min(slot.bytes - slot.read, parts[i].iov_len - done);
      std::memcpy(static_cast<char*>(parts[i].iov_base) + done, slot.data.get() + slot.read, bytes);
      slot.read += bytes;
      done += bytes;
      given += static_cast<ssize_t>(bytes);
      if (slot.bytes == 0) peer.ended = true;
      if (slot.read < slot.bytes || peer.ended) continue;
      const std::lock_guard lock(mutex);
      slot.arrived = false;
      peer.lost =
          peer.lost || finalised || MPI_Start(&links->request(rank, peer.next_in)) != MPI_SUCCESS;
      peer.next_in = (peer.next_in + 1) % kSlots;
    }
  }
  return given;
}

void finish(Links* links, int rank) { links->peers[static_cast<size_t>(rank)]->ends = true; }

void progress(Links* links, uint64_t* readable, uint64_t* writable, uint64_t* lost) {
  *readable = *writable = *lost = 0;
  const std::lock_guard lock(mutex);
  links->work();
  for (int rank = 0; rank < links->size; ++rank) {
    if (rank == links->rank) continue;
    const Links::Peer& peer = *links->peers[static_cast<size_t>(rank)];
    const uint64_t bit = uint64_t{1} << rank;
    if (peer.ended || peer.lost || peer.in[peer.next_in].arrived) *readable |= bit;
    if (peer.lost || !links->leaves(rank, peer.next_out)) *writable |= bit;
    if (peer.lost) *lost |= bit;
  }
}

constexpr perseid_mpi_functions kFunctions{
    kPerseidMpiVersion, open, all_gather, allows_threads, connect,
    disconnect,         send, receive,    finish,         progress};

}  // namespace

extern "C" __attribute__((visibility("default"))) const perseid_mpi_functions* perseid_mpi() {
  return &kFunctions;
}
