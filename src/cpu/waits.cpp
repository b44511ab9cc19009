// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/waits.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <thread>

#include "cpu/chunk_times.hpp"
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace perseid::internal::cpu {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// Shorter than anyone would notice; then the core is given to others.
constexpr microseconds kSpin{50};
// Sleeps grow from the one to the other: how late a signal without a wake-up, an abort or the end
// of the execution may be seen.
constexpr microseconds kShortestSleep{50}, kLongestSleep{500};
// About 146 years: what a deadline may be at most.
constexpr uint64_t kLongestDeadline = uint64_t{1} << 62;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif __has_builtin(__builtin_arm_yield)
  __builtin_arm_yield();
#endif
}

// Returns when the word is no longer `seen`, on a wake-up, or after `time`.
void sleep_on(const uint32_t* word, uint32_t seen, nanoseconds time) {
#if defined(__linux__)
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(time.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<decltype(limit.tv_nsec)>(time.count() % 1'000'000'000);
  // Not FUTEX_PRIVATE: the word may be in memory that processes share.
  if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0) == 0) return;
  if (errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR) return;
    // Memory that the kernel cannot watch, such as a device's.
#else
  (void)word, (void)seen;
#endif
  std::this_thread::sleep_for(time);
}

void wake_all(uint32_t* word) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

// One wait: pause() between two looks at the word.
class Patience {
 public:
  // False at the deadline.
  bool pause(const uint32_t* word, uint32_t seen, Clock::time_point deadline) {
    for (int i = 0; i < 32; ++i) {
      if (__atomic_load_n(word, __ATOMIC_RELAXED) != seen) return true;
      relax();
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    if (now - start_ < kSpin) return true;
    sleep_on(word, seen, std::min<nanoseconds>(sleep_, deadline - now));
    sleep_ = std::min(2 * sleep_, kLongestSleep);
    return true;
  }

 private:
  Clock::time_point start_ = Clock::now();
  microseconds sleep_ = kShortestSleep;
};

bool is_set(const uint32_t* abort) { return abort != nullptr && load_acquire(abort) != 0; }

}  // namespace

void set_signal(uint32_t* signal, uint32_t epoch) {
  __atomic_store_n(signal, epoch, __ATOMIC_RELEASE);
  wake_all(signal);
}

Clock::time_point deadline_after(uint64_t nanoseconds_from_now) {
  const auto count = static_cast<int64_t>(std::min(nanoseconds_from_now, kLongestDeadline));
  return Clock::now() + nanoseconds(count);
}

WaitEnd wait_for_signal(const uint32_t* signal, uint32_t epoch, Clock::time_point deadline,
                        const uint32_t* abort) {
  for (Patience patience;;) {
    const uint32_t seen = load_acquire(signal);
    if (epoch_reached(seen, epoch)) return WaitEnd::kArrived;
    if (is_set(abort)) return WaitEnd::kAborted;
    if (!patience.pause(signal, seen, deadline)) return WaitEnd::kTimeout;
  }
}

Waits::Operand Waits::operand_of(const ChunkCut& cut, const Arrival& arrival) {
  if (!cut.present()) return {};
  return {cut,
          arrival.signals,
          arrival.epoch_ptr != nullptr ? load_acquire(arrival.epoch_ptr) : arrival.epoch,
          arrival.first,
          arrival.abort,
          deadline_after(arrival.deadline_ns),
          {0, cut.count - 1},
          arrival.times};
}

Waits::Waits(const ChunkCut& a, const Arrival& arrival_a, const ChunkCut& b,
             const Arrival& arrival_b, const ChunkCut& c, const Departure& departure_c)
    : operands_{operand_of(a, arrival_a), operand_of(b, arrival_b)} {
  for (const Operand& operand : operands_)
    if (operand.times != nullptr) times_ = operand.times;
  if (!c.present()) return;
  output_ = {
      c, departure_c.signals,
      departure_c.epoch_ptr != nullptr ? load_acquire(departure_c.epoch_ptr) : departure_c.epoch,
      departure_c.first, departure_c.times};
  if (output_.times != nullptr) times_ = output_.times;
}

bool Waits::await_missing(int operand, const ChunkRange<int64_t>& range) {
  const Operand& of = operands_[operand];
  for (int64_t chunk = range.first; chunk <= range.last; ++chunk) {
    const uint32_t* signal = of.signals + chunk;
    for (Patience patience;;) {
      const uint32_t seen = load_acquire(signal);
      if (epoch_reached(seen, of.epoch)) break;
      if (ended()) return false;
      WaitEnd end = WaitEnd::kArrived;
      if (is_set(of.abort)) {
        end = WaitEnd::kAborted;
      } else if (!patience.pause(signal, seen, of.deadline)) {
        end = WaitEnd::kTimeout;
      }
      if (end == WaitEnd::kArrived) continue;
      // If several workers wait in vain, the first one counts.
      uint32_t none = 0;
      const auto ended = static_cast<uint32_t>(end) | static_cast<uint32_t>(operand) << 2;
      if (__atomic_compare_exchange_n(&end_, &none, ended, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE))
        missing_chunk_ = chunk;
      return false;
    }
  }
  return true;
}

bool Waits::await_timed(int operand, const ChunkRange<int64_t>& range) {
  ChunkTimes* times = operands_[operand].times;
  if (times == nullptr || range.empty())
    return are_here(operand, range) || await_missing(operand, range);
  bool arrives = are_here(operand, range);
  if (!arrives) {
    times->rest();
    const int64_t begin = nanoseconds_now();
    arrives = await_missing(operand, range);
    times->note_wait(range.last, begin, nanoseconds_now());
  }
  if (arrives) times->work_on(range);
  return arrives;
}

void Waits::begin_work(const ChunkRange<int64_t>& of_output) const {
  output_.times->work_on(of_output);
}

void Waits::end_work() const { times_->rest(); }

bool Waits::await_all() {
  for (int operand : {0, 1})
    operands_[operand].find_chunk([&](int64_t chunk) { return !await(operand, {chunk, chunk}); });
  return !ended();
}

Claim Waits::claim_open(uint32_t* part) {
  for (Patience patience;;) {
    uint32_t seen = load_acquire(part);
    if (seen == kPartDone) return Claim::kDone;
    if (ended()) return Claim::kDraining;
    if (seen == kPartFree) {
      if (__atomic_compare_exchange_n(part, &seen, kPartClaimed, false, __ATOMIC_ACQUIRE,
                                      __ATOMIC_ACQUIRE))
        return Claim::kMine;
      continue;
    }
    // Who releases a part that is awaited wakes the others.
    if (seen == kPartClaimed && !__atomic_compare_exchange_n(part, &seen, kPartAwaited, false,
                                                             __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
      continue;
    patience.pause(part, kPartAwaited, Clock::time_point::max());
  }
}

void Waits::release(uint32_t* part, bool done) {
  const uint32_t before = __atomic_exchange_n(part, done ? kPartDone : kPartFree, __ATOMIC_ACQ_REL);
  if (before == kPartAwaited) wake_all(part);
}

void Waits::depart(int64_t chunk) const { set_signal(output_.signals + chunk, output_.epoch); }

void Waits::depart_all() const {
  for (int64_t chunk = 0; chunk < output_.cut.count; ++chunk) depart(chunk);
}

Missing Waits::missing() const {
  const uint32_t ended = load_acquire(&end_);
  if (ended == 0) return {};
  const auto end = static_cast<WaitEnd>(ended & 3);
  const auto describe = [&](int operand, int64_t chunk) {
    const Operand& of = operands_[operand];
    return Missing{end, operand, chunk, of.epoch, load_acquire(of.signals + chunk)};
  };
  // Others may have waited for an earlier chunk than the one whose wait ended first.
  const auto waited_for = static_cast<int>(ended >> 2);
  Missing missing = describe(waited_for, missing_chunk_);  // it may have arrived since
  operands_[waited_for].find_chunk([&](int64_t chunk) {
    const Missing found = describe(waited_for, chunk);
    if (epoch_reached(found.seen, found.expected)) return false;
    missing = found;
    return true;
  });
  return missing;
}

}  // namespace perseid::internal::cpu
