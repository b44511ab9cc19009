// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A block of a GPU on the CPU, for kernels of src/cuda/device in tests without a GPU. With this
// folder before src in the include path, its ptx/ takes the place of the instructions.
//
// Threads are fibers. Each runs until it waits for others: a warp exchanges registers, ldmatrix and
// mma among its lanes, a block meets at barriers. A warp runs until it waits for other warps, the
// first one first, in blocks of odd number the last one, or until it is held up at random, until no
// other one can go on. Shared memory begins as NaN, is NaN where an asynchronous copy is under way,
// and has its data when the copy's group is waited for, at last. That finds wrong layouts, missing
// waits, divergent collectives, and of missing barriers those that one of these orders needs.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "math/portable.hpp"

#define PERSEID_EMULATED_GPU
#define __device__
#define __host__
#define __global__
#define __shared__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

struct uint4 {
  uint32_t x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct float2 {
  float x, y;
};
struct double2 {
  double x, y;
};
struct float4 {
  float x, y, z, w;
};

namespace perseid::internal::emulated_gpu {

inline constexpr int kWarp = 32;

struct Copy {
  unsigned char* to;
  const void* from;
  int bytes;  // of `whole`; the rest becomes 0
  int whole;

  void run() const {
    std::memset(to, 0, static_cast<size_t>(whole));
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
};

// Where a fiber goes on. (swapcontext asks the system for the mask of signals at every switch, and
// the C library's longjmp may refuse other stacks.)
using Position = void* [5];
__attribute__((noinline, noreturn)) inline void jump(Position to) { __builtin_longjmp(to, 1); }

// What a thread, and a warp, has besides the variables of the kernel.
struct Thread {
  ucontext_t beginning{};
  Position position{};
  std::unique_ptr<char[]> stack;
  std::vector<std::vector<Copy>> groups{1};  // the last one is not committed
  bool begun = false, ended = false;
};
struct Meeting {
  int arrived = 0;
  int64_t turn = 0;
};
// In shared memory are only marks of it, which nothing may overwrite.
struct Mbarrier : Meeting {
  int count = 0;
  std::vector<Copy> copies;  // that arrive when the phase completes
};
struct Warp : Meeting {
  bool held_up = false;  // until no other warp can go on
  // What the lanes bring, in turn to one of two rows: the readers of the one before may be late.
  uint64_t word[2][kWarp][8] = {};
};

class Block {
 public:
  Block(int number, int threads, size_t shared_bytes, int of_blocks = 1)
      : index(number),
        blocks(of_blocks),
        shared(shared_bytes, 0xff),
        threads_(static_cast<size_t>(threads)),
        warps_(static_cast<size_t>(threads / kWarp)),
        hold_ups_(static_cast<uint32_t>(number) + 1) {}

  // Runs kernel() in every thread, one after another until all have ended.
  void run(const std::function<void()>& kernel);

  int thread() const { return current_; }
  Thread& own() { return threads_[static_cast<size_t>(current_)]; }
  // Returns when all threads, or all lanes of the thread's warp, have come.
  void meet() { meet(block_, static_cast<int>(threads_.size())); }
  // At a named barrier, of so many threads.
  void meet(int name, int count) { meet(named_[name], count); }
  // Of the mbarrier at an address of shared memory.
  void initialize(uint32_t address, int count) {
    if (address % 8 != 0 || mbarriers_.contains(address))
      throw std::runtime_error("an mbarrier of 8 bytes is initialized once");
    mbarriers_[address].count = count;
    std::memcpy(&shared.at(address + 7) - 7, &kMark, sizeof kMark);
  }
  void arrive(uint32_t address, const std::vector<Copy>& copies) {
    Mbarrier& barrier = mbarrier(address);
    barrier.copies.insert(barrier.copies.end(), copies.begin(), copies.end());
    if (++barrier.arrived < barrier.count) return;
    for (const Copy& copy : barrier.copies) copy.run();
    barrier.copies.clear();
    barrier.arrived = 0;
    ++barrier.turn;
  }
  // Until the phase of this parity has completed.
  void wait(uint32_t address, uint32_t parity) {
    const Mbarrier& barrier = mbarrier(address);
    while (barrier.turn % 2 == parity) yield();
  }
  // What every lane of the warp brings; valid until the warp has met twice more.
  template <class T>
  const T* exchange(const T& mine) {
    static_assert(sizeof(T) <= sizeof(uint64_t[8]));
    Warp& warp = warps_[static_cast<size_t>(current_ / kWarp)];
    const int64_t row = warp.turn % 2;
    std::memcpy(warp.word[row][current_ % kWarp], &mine, sizeof mine);
    meet(warp, kWarp);
    for (int lane = 0; lane < kWarp; ++lane)
      std::memcpy(&gathered_<T>[lane], warp.word[row][lane], sizeof(T));
    return gathered_<T>;
  }

  const int index, blocks;
  std::vector<unsigned char> shared;
  int vote = 0;  // of __syncthreads_or

 private:
  template <class T>
  static inline T gathered_[kWarp];

  static constexpr uint64_t kMark = 0x7fff7fff7fff7fff;
  Mbarrier& mbarrier(uint32_t address) {
    if (!mbarriers_.contains(address) ||
        std::memcmp(&shared.at(address), &kMark, sizeof kMark) != 0)
      throw std::runtime_error("an mbarrier was not initialized, or overwritten");
    return mbarriers_[address];
  }
  void meet(Meeting& meeting, int count) {
    const int64_t turn = meeting.turn;
    if (++meeting.arrived == count) {
      meeting.arrived = 0;
      ++meeting.turn;
      return;
    }
    while (meeting.turn == turn) yield();
  }
  // To the scheduler, until it resumes this thread.
  __attribute__((noinline)) void yield() {
    if (__builtin_setjmp(own().position) == 0) jump(scheduler_);
  }
  // To the thread, until it yields or ends.
  __attribute__((noinline)) void resume() {
    if (__builtin_setjmp(scheduler_) != 0) return;
    if (own().begun) jump(own().position);
    own().begun = true;
    setcontext(&own().beginning);
  }
  static void enter();
  bool run_warp(size_t number, int64_t& idle);

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Meeting block_, named_[16];
  std::map<uint32_t, Mbarrier> mbarriers_;
  Position scheduler_{};
  const std::function<void()>* kernel_ = nullptr;
  int current_ = 0;
  std::minstd_rand hold_ups_;
};

inline Block* block = nullptr;  // the one that runs

// The global timer, which a warp's sleeps advance, and how often it was read.
struct Timer {
  uint64_t nanoseconds = 1'000'000;
  int64_t reads = 0;
  std::function<void()> slept;  // what happens meanwhile
};
inline Timer timer;

inline void Block::enter() {
  (*block->kernel_)();
  block->own().ended = true;
  jump(block->scheduler_);
}

// Until it waits for other warps, or is held up. Returns whether any of its threads have not ended.
inline bool Block::run_warp(size_t number, int64_t& idle) {
  bool alive = false;
  for (int64_t turn = -1; turn != warps_[number].turn;) {
    turn = warps_[number].turn;
    alive = false;
    for (int lane = 0; lane < kWarp; ++lane) {
      current_ = static_cast<int>(number) * kWarp + lane;
      if (own().ended) continue;
      resume();
      if (own().ended) idle = 0;
      alive = alive || !own().ended;
    }
    if (hold_ups_() % 32 == 0) {
      warps_[number].held_up = true;
      break;
    }
  }
  return alive;
}

inline void Block::run(const std::function<void()>& kernel) {
  constexpr size_t kStack = 256 * 1024;
  block = this;
  kernel_ = &kernel;
  for (Thread& thread : threads_) {
    thread.stack = std::make_unique_for_overwrite<char[]>(kStack);
    getcontext(&thread.beginning);
    thread.beginning.uc_stack.ss_sp = thread.stack.get();
    thread.beginning.uc_stack.ss_size = kStack;
    makecontext(&thread.beginning, &Block::enter, 0);
  }
  // Two rounds in which no thread ends and nobody meets: some wait for threads that never come.
  int64_t idle = 0, met_before = -1;
  for (bool alive = true; alive; ++idle) {
    alive = false;
    int64_t met = block_.turn;
    for (size_t i = 0; i < warps_.size(); ++i) {
      const size_t number = index % 2 == 0 ? i : warps_.size() - 1 - i;
      alive = warps_[number].held_up || run_warp(number, idle) || alive;
    }
    for (const Warp& warp : warps_) met += warp.turn;
    for (const Meeting& each : named_) met += each.turn;
    for (const auto& [address, each] : mbarriers_) met += each.turn;
    if (met != met_before)
      idle = 0;
    else
      for (Warp& warp : warps_) warp.held_up = false;
    met_before = met;
    if (idle > 2) throw std::runtime_error("threads of the block wait for one another");
  }
  block = nullptr;
}

struct Index {
  int (*value)();
  operator int() const { return value(); }
};
struct Indices {
  Index x;
};

}  // namespace perseid::internal::emulated_gpu

// ---- The language's own ----

inline constexpr perseid::internal::emulated_gpu::Indices threadIdx{
    {[] { return perseid::internal::emulated_gpu::block->thread(); }}};
inline constexpr perseid::internal::emulated_gpu::Indices blockIdx{
    {[] { return perseid::internal::emulated_gpu::block->index; }}};
inline constexpr perseid::internal::emulated_gpu::Indices gridDim{
    {[] { return perseid::internal::emulated_gpu::block->blocks; }}};

inline void __syncthreads() { perseid::internal::emulated_gpu::block->meet(); }
inline int __syncthreads_or(int mine) {
  auto& block = *perseid::internal::emulated_gpu::block;
  block.vote |= mine;
  block.meet();
  const int result = block.vote;
  block.meet();
  block.vote = 0;
  block.meet();
  return result;
}
inline void __syncwarp() { perseid::internal::emulated_gpu::block->exchange(0); }
template <class T>
T __shfl_sync(uint32_t, T mine, int lane) {
  return perseid::internal::emulated_gpu::block->exchange(mine)[lane];
}
template <class T>
T __shfl_xor_sync(uint32_t, T mine, int mask) {
  auto& block = *perseid::internal::emulated_gpu::block;
  return block.exchange(mine)[block.thread() % 32 ^ mask];
}
inline uint32_t __ballot_sync(uint32_t, bool mine) {
  const int* all = perseid::internal::emulated_gpu::block->exchange(int{mine});
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<uint32_t>(all[lane]) << lane;
  return bits;
}
// The low word of high:low, shifted to the right by so many bits, fewer than 32.
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (bits % 32));
}
inline bool __any_sync(uint32_t mask, bool mine) { return __ballot_sync(mask, mine) != 0; }
inline bool __all_sync(uint32_t mask, bool mine) { return __ballot_sync(mask, mine) == ~0u; }
inline void __threadfence() {}
inline uint32_t atomicAdd(uint32_t* to, uint32_t summand) {
  const uint32_t before = *to;
  *to += summand;
  return before;
}
inline uint64_t atomicAdd(uint64_t* to, uint64_t summand) {
  const uint64_t before = *to;
  *to += summand;
  return before;
}
inline uint64_t atomicMax(uint64_t* to, uint64_t value) {
  const uint64_t before = *to;
  *to = perseid::internal::max(before, value);
  return before;
}
inline uint64_t atomicExch(uint64_t* to, uint64_t value) {
  const uint64_t before = *to;
  *to = value;
  return before;
}
inline void __nanosleep(unsigned nanoseconds) {
  auto& timer = perseid::internal::emulated_gpu::timer;
  if (threadIdx.x % 32 != 0) return;
  timer.nanoseconds += nanoseconds;
  if (timer.slept) timer.slept();
}
inline int __clz(uint32_t bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline uint32_t __brev(uint32_t bits) {
  uint32_t reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (bits >> bit & 1) << (31 - bit);
  return reversed;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
