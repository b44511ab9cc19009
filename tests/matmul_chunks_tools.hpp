// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul problems whose operands arrive in chunks, from threads of the test. What has not arrived
// is NaN, so that a kernel which reads too early writes other bits than the plain product.
#pragma once

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/waits.hpp"
#include "matmul_cases.hpp"

namespace perseid::internal::matmul_chunks {

using matmul_cases::Case;
using matmul_cases::Layout;
using matmul_cases::Problem;
using tests::Array;

inline const char* name_of(ChunkDim dim) {
  constexpr const char* kNames[] = {"none", "m", "n", "k", "keys"};
  return kNames[static_cast<int>(dim)];
}

// The chunks of one matrix with their signals.
struct Cut {
  ChunkDim dim = ChunkDim::kNone;
  std::vector<int64_t> begin = {};
  int64_t first = 0;
  std::vector<uint32_t> signals = {};

  int64_t count() const {
    return dim == ChunkDim::kNone ? 0 : static_cast<int64_t>(begin.size()) - 1;
  }
  ChunkCut chunks() const {
    return dim == ChunkDim::kNone ? ChunkCut{} : ChunkCut{dim, begin.data(), count()};
  }
  std::string text() const {
    std::string text = name_of(dim);
    for (int64_t x : begin) text += " " + std::to_string(x);
    return text + " from " + std::to_string(first);
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t operator()(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool once_in(int64_t n) { return (*this)(1, n) == 1; }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};

// [0, size) in up to `most` chunks.
inline Cut random_cut(Draw& draw, ChunkDim dim, int64_t size, int64_t most, uint32_t epoch) {
  Cut cut{.dim = dim, .begin = {0}};
  const int64_t count = draw(1, std::min(size, most));
  if (draw.once_in(2)) {
    for (int64_t c = 1; c <= count; ++c) cut.begin.push_back(c * size / count);
  } else {
    for (int64_t c = 1; c < count; ++c) cut.begin.push_back(draw(1, size - 1));
    cut.begin.push_back(size);
    std::sort(cut.begin.begin(), cut.begin.end());
    cut.begin.erase(std::unique(cut.begin.begin(), cut.begin.end()), cut.begin.end());
  }
  cut.first = dim == ChunkDim::kK ? 0 : draw(0, cut.count() - 1);
  cut.signals.assign(static_cast<size_t>(cut.count()), epoch - 1);
  return cut;
}

// A part of a [batch, rows, columns] tensor.
inline Tensor part_of(Tensor tensor, int dimension, int64_t begin, int64_t end) {
  tensor.data = tensor.as<std::byte>() + begin * tensor.stride[dimension] * size_of(tensor.dtype);
  tensor.shape[dimension] = end - begin;
  return tensor;
}
inline int dimension_of(int operand, ChunkDim dim) {  // 0: a, 1: b, 2: c
  if (operand == 1) return dim == ChunkDim::kK ? 1 : 2;
  return dim == ChunkDim::kM ? 1 : 2;
}

struct Chunked {
  const Problem& plain;
  Array a, b;   // what has arrived
  Cut cuts[3];  // of a, b, c
  uint32_t epoch = 1;

  Chunked(const Problem& plain_, uint32_t epoch_)
      : plain(plain_), a(plain.a), b(plain.b), epoch(epoch_) {}

  // Nothing of what is cut is here.
  void withhold() {
    if (cuts[0].count() > 0) a.fill_all(tests::kNaN);
    if (cuts[1].count() > 0) b.fill_all(tests::kNaN);
    for (Cut& cut : cuts)
      for (uint32_t& signal : cut.signals) signal = epoch - 1;
  }
  MatmulProblem problem() const {
    MatmulProblem problem = plain.problem;
    problem.chunks_a = cuts[0].chunks();
    problem.chunks_b = cuts[1].chunks();
    problem.chunks_c = cuts[2].chunks();
    return problem;
  }
  Arrival arrival(int operand, uint64_t deadline_ns, const uint32_t* abort = nullptr) const {
    const Cut& cut = cuts[operand];
    return {.signals = cut.signals.data(),
            .epoch = epoch,
            .first = cut.first,
            .deadline_ns = deadline_ns,
            .abort = abort};
  }
  MatmulArguments arguments(const Tensor& into, uint64_t deadline_ns = 60'000'000'000,
                            const uint32_t* abort = nullptr) {
    MatmulArguments arguments = plain.arguments(into);
    arguments.a = a.tensor;
    arguments.b = b.tensor;
    arguments.arrival_a = arrival(0, deadline_ns, abort);
    arguments.arrival_b = arrival(1, deadline_ns, abort);
    arguments.departure_c = {cuts[2].signals.data(), epoch, nullptr, cuts[2].first};
    return arguments;
  }
  // Copies a chunk to where the kernel reads it. `wakes`: with a wake-up, or by a plain store.
  void deliver(int operand, int64_t chunk, bool wakes) {
    Cut& cut = cuts[operand];
    const auto c = static_cast<size_t>(chunk);
    const auto part = [&](const Tensor& tensor) {
      return part_of(tensor, dimension_of(operand, cut.dim), cut.begin[c], cut.begin[c + 1]);
    };
    tests::copy(part((operand == 0 ? plain.a : plain.b).tensor),
                part((operand == 0 ? a : b).tensor));
    if (wakes) {
      cpu::set_signal(&cut.signals[c], epoch);
    } else {
      __atomic_store_n(&cut.signals[c], epoch, __ATOMIC_RELEASE);
    }
  }
  std::string text() const {
    std::string text = (matmul_cases::describe(plain.given) << "").GetString();
    const char* names[] = {"; a ", "; b ", "; c "};
    for (int i = 0; i < 3; ++i)
      if (cuts[i].count() > 0) text += names[i] + cuts[i].text();
    return text;
  }
};

// Returns when a thread has hardly run for a while.
inline void wait_until_idle(std::thread& thread) {
  clockid_t clock{};
  ASSERT_EQ(pthread_getcpuclockid(thread.native_handle(), &clock), 0);
  const auto used = [&] {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double before = used();
  for (int idle = 0; idle < 4;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const double now = used();
    idle = now - before < 0.005 ? idle + 1 : 0;
    before = now;
  }
}

enum class Arrivals { kAscending, kDescending, kShuffled, kPivotLast };

// Every chunk, in the order that they are delivered in.
inline std::vector<std::pair<int, int64_t>> arrival_order(const Chunked& chunked, Arrivals kind,
                                                          Draw& draw) {
  std::vector<std::pair<int, int64_t>> order;
  for (int operand : {0, 1}) {
    const Cut& cut = chunked.cuts[operand];
    for (int64_t visit = 0; visit < cut.count(); ++visit)
      order.emplace_back(operand, (cut.first + visit) % cut.count());
  }
  if (kind == Arrivals::kDescending) std::reverse(order.begin(), order.end());
  if (kind == Arrivals::kShuffled) std::shuffle(order.begin(), order.end(), draw.engine());
  if (kind == Arrivals::kPivotLast && !order.empty())
    std::rotate(order.begin(), order.begin() + 1, order.end());
  return order;
}

}  // namespace perseid::internal::matmul_chunks
