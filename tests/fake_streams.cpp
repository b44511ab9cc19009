// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "fake_streams.hpp"

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace fake {
namespace {

bool are_threads() {
  static const bool set = std::getenv("FAKE_STREAMS") != nullptr;
  return set;
}

// Never destroyed: a stream may wait for ever.
struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t enqueued = 0, done = 0;

  Stream() {
    std::thread([this] { run(); }).detach();
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !work.empty(); });
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
  uint64_t add(std::function<void()> next) {
    const std::lock_guard lock(mutex);
    if (next) {
      work.push_back(std::move(next));
      ++enqueued;
      changed.notify_all();
    }
    return enqueued;
  }
  void await(uint64_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= count; });
  }
};

struct Point {
  Stream* stream = nullptr;
  uint64_t count = 0;
};

std::mutex mutex;
// By handle. A handle of a stream that is gone may be that of a new one, which goes on with it.
std::map<void*, Stream*>& streams = *new std::map<void*, Stream*>;
std::map<void*, Point>& events = *new std::map<void*, Point>;
std::map<uintptr_t, size_t>& memory = *new std::map<uintptr_t, size_t>;

Stream& of(void* handle) {
  const std::lock_guard lock(mutex);
  Stream*& stream = streams[handle];
  if (stream == nullptr) stream = new Stream;
  return *stream;
}

}  // namespace

void enqueue(void* stream, std::function<void()> work) {
  if (!are_threads()) return work();
  of(stream).add(std::move(work));
}

void finish(void* stream) {
  if (are_threads()) of(stream).await(of(stream).add(nullptr));
}

void record(void* event, void* stream) {
  if (!are_threads()) return;
  Stream& recorded = of(stream);
  const Point point{&recorded, recorded.add(nullptr)};
  const std::lock_guard lock(mutex);
  events[event] = point;
}

void wait_event(void* stream, void* event) {
  if (!are_threads()) return;
  Point point;
  {
    const std::lock_guard lock(mutex);
    point = events[event];
  }
  if (point.stream != nullptr) of(stream).add([point] { point.stream->await(point.count); });
}

bool wait_word(void* stream, const uint32_t* word, uint32_t epoch) {
  if (!are_threads()) return false;
  of(stream).add([word, epoch] {
    while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - epoch) < 0) usleep(20);
  });
  return true;
}

void add_memory(const void* data, size_t bytes) {
  const std::lock_guard lock(mutex);
  memory[reinterpret_cast<uintptr_t>(data)] = bytes;
}

void remove_memory(const void* data) {
  const std::lock_guard lock(mutex);
  memory.erase(reinterpret_cast<uintptr_t>(data));
}

bool is_memory(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(mutex);
  auto found = memory.upper_bound(address);
  if (found == memory.begin()) return false;
  --found;
  return address < found->first + found->second;
}

}  // namespace fake

void fake_enqueue(void* stream, void (*work)(void*), void* argument) {
  fake::enqueue(stream, [work, argument] { work(argument); });
}
