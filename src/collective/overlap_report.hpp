// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Where the time of a rank's execution goes: for each chunk what is computed of it, how long it is
// under way, and how long the rank waits for it. The report is JSON, and a Chrome trace as well,
// which takes its own keys alone. On a GPU times are those of events in the streams; a kernel that
// waits for chunks notes for how long, which is no part of its computing.
#pragma once

#include <string>
#include <vector>

#include "collective/group.hpp"
#include "collective/shards.hpp"
#include "cpu/chunk_times.hpp"
#include "cuda/runtime/chunk_wait_times.hpp"
#include "cuda/runtime/stream_times.hpp"
#include "dispatch/device.hpp"

namespace perseid::internal::collective {

class OverlapReport {
 public:
  enum class Kind { kCompute, kCommunication, kWait };
  static constexpr int64_t kNoChunk = -1;  // it belongs to all of them

  // `chunks` outlives it.
  OverlapReport(const char* operation, const Group& group, const ShardChunks& chunks,
                const dispatch::Device& device);

  // What is known of the execution before is dropped. Of streams: those on a GPU.
  void begin(void* stream);
  void end(void* stream);
  // For a kernel of the CPU that takes the chunks, or gives them.
  cpu::ChunkTimes* times() { return gpu_ == nullptr ? &times_ : nullptr; }
  // For a kernel of a GPU that waits for `count` signals, of chunks of ranks as `of` says; null on
  // the CPU. What is added next as computing has these waits in it.
  struct Awaited {
    int64_t chunk;
    int32_t rank;
  };
  template <class Of>
  cuda::ChunkWait* waits(int64_t count, const Of& of) {
    if (gpu_ == nullptr || waits_->data() == nullptr) return nullptr;
    const int64_t first = std::ssize(awaited_);
    if (first + count > waits_->count()) return nullptr;
    for (int64_t i = 0; i < count; ++i) awaited_.push_back(of(i));
    return waits_->data() + first;
  }
  // The same, of all chunks in their order.
  cuda::ChunkWait* waits() {
    return waits(chunks_.count(), [&](int64_t chunk) {
      return Awaited{chunk, chunks_.owner(chunk)};
    });
  }
  // Now, or when the stream has come here.
  int64_t point(void* stream) {
    return gpu_ == nullptr ? cpu::nanoseconds_now() : gpu_->mark(stream);
  }
  // From a point until here. `rank`: whose data it is.
  void add(Kind kind, int64_t chunk, int32_t rank, int64_t begin, void* stream = nullptr);
  // Data of `rank` is here, and was under way since the execution began or later.
  void arrived(int64_t chunk, int32_t rank, void* stream = nullptr) {
    if (rank != rank_) add(Kind::kCommunication, chunk, rank, begin_, stream);
  }
  // Reports the last execution, which has ended. The next call overwrites the text.
  Status give(const char** json);

 private:
  struct Span {
    Kind kind;
    int64_t chunk;
    int32_t rank;
    int64_t begin, end;  // nanoseconds; until it is given points
    double seconds;      // of which the workers spent so many, on average; below 0: all
    size_t first_wait = 0, end_wait = 0;  // of `awaited_`, those in it
  };
  Status add_waits(std::vector<Span>* spans, int64_t begin) const;
  void write(const std::vector<Span>& spans, int64_t begin, int64_t end);

  const char* operation_;
  int32_t rank_, ranks_, workers_;
  const ShardChunks& chunks_;
  cpu::ChunkTimes times_;
  std::unique_ptr<cuda::StreamTimes> gpu_;
  std::unique_ptr<cuda::ChunkWaitTimes> waits_;  // on a GPU
  std::vector<Awaited> awaited_;                 // of each
  size_t computed_ = 0;                          // of these, in the spans that have been added
  bool executed_ = false;
  int64_t began_ = 0;  // nanoseconds, as the host called
  int64_t begin_ = 0, end_ = 0;
  std::vector<Span> spans_;
  std::string json_;
};

// An execution, for the report where there is one.
class ReportedExecution {
 public:
  ReportedExecution(OverlapReport* report, void* stream) : report_(report), stream_(stream) {
    if (report_ != nullptr) report_->begin(stream_);
  }
  ~ReportedExecution() {
    if (report_ != nullptr) report_->end(stream_);
  }
  ReportedExecution(const ReportedExecution&) = delete;
  ReportedExecution& operator=(const ReportedExecution&) = delete;

 private:
  OverlapReport* const report_;
  void* const stream_;
};

// What takes the times of a kernel with chunks, where there is a report. `arrive`: it waits for all
// of them.
inline ChunkTimers timers_of(OverlapReport* report, bool arrive) {
  if (report == nullptr) return {};
  return {report->times(), arrive ? report->waits() : nullptr};
}

// What happens in its lifetime, for the report where there is one.
class Reported {
 public:
  Reported(OverlapReport* report, OverlapReport::Kind kind, int64_t chunk, int32_t rank,
           void* stream = nullptr)
      : report_(report), kind_(kind), chunk_(chunk), rank_(rank), stream_(stream) {
    if (report_ != nullptr) begin_ = report_->point(stream_);
  }
  ~Reported() {
    if (report_ != nullptr) report_->add(kind_, chunk_, rank_, begin_, stream_);
  }
  Reported(const Reported&) = delete;
  Reported& operator=(const Reported&) = delete;

 private:
  OverlapReport* const report_;
  const OverlapReport::Kind kind_;
  const int64_t chunk_;
  const int32_t rank_;
  void* const stream_;
  int64_t begin_ = 0;
};

}  // namespace perseid::internal::collective
