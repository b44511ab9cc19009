// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What Perseid needs of MPI, compiled once for each ABI (mpi.hpp).
//
// MPI knows no deadline. What it has not done by then cannot be taken back, so it is left alone
// from there on: its thread may go on waiting, and it is not finalised.
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLate = -1;
constexpr std::chrono::microseconds kInterval{50};

std::atomic<bool> late{false};

int give_up() {
  late = true;
  return kLate;
}

// One thread calls MPI at a time.
int initialise(Clock::time_point deadline) {
  auto promise = std::make_shared<std::promise<int>>();
  std::future<int> result = promise->get_future();
  std::thread([promise] {
    int provided = 0;
    promise->set_value(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  }).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return give_up();
  if (const int error = result.get(); error != MPI_SUCCESS) return error;
  // An error ends a call with a status, not the process.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  std::atexit([] {
    int ended = 0;
    if (!late) MPI_Finalized(&ended);
    if (!late && ended == 0) MPI_Finalize();
  });
  return MPI_SUCCESS;
}

}  // namespace

extern "C" {

// Both return 0, MPI's error, or -1 where MPI has not answered within `nanoseconds`.

// Rank and size of MPI_COMM_WORLD. MPI is initialised unless the program has done so, and then
// finalised at exit.
__attribute__((visibility("default"))) int perseid_mpi_open(uint64_t nanoseconds, int* rank,
                                                            int* size) {
  const Clock::time_point deadline = Clock::now() + std::chrono::nanoseconds(nanoseconds);
  if (late) return kLate;
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) return MPI_ERR_OTHER;
  if (initialised == 0)
    if (const int error = initialise(deadline); error != MPI_SUCCESS) return error;
  const int error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return error != MPI_SUCCESS ? error : MPI_Comm_size(MPI_COMM_WORLD, size);
}

__attribute__((visibility("default"))) int perseid_mpi_all_gather(uint64_t nanoseconds,
                                                                  const void* mine, size_t bytes,
                                                                  void* all) {
  const Clock::time_point deadline = Clock::now() + std::chrono::nanoseconds(nanoseconds);
  if (late) return kLate;
  int size = 0, done = 0;
  int error = MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (error != MPI_SUCCESS) return error;
  const size_t total = bytes * static_cast<size_t>(size);
  // MPI may still write after the deadline.
  auto buffer = std::make_unique<char[]>(total + bytes);
  std::memcpy(buffer.get() + total, mine, bytes);
  const int count = static_cast<int>(bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  error = MPI_Iallgather(buffer.get() + total, count, MPI_BYTE, buffer.get(), count, MPI_BYTE,
                         MPI_COMM_WORLD, &request);
  while (error == MPI_SUCCESS && done == 0) {
    error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) break;
    if (Clock::now() >= deadline) {
      (void)buffer.release();
      return give_up();
    }
    std::this_thread::sleep_for(kInterval);
  }
  if (error == MPI_SUCCESS) std::memcpy(all, buffer.get(), total);
  return error;
}

}  // extern "C"
