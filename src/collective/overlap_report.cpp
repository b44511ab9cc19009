// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/overlap_report.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "base/trace_file.hpp"

namespace perseid::internal::collective {
namespace {

constexpr const char* kNames[] = {"compute", "communication", "wait"};

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// That at least one of the spans covers.
template <class Spans, class Wanted>
int64_t covered(const Spans& spans, const Wanted& wanted) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& span : spans)
    if (wanted(span)) ranges.emplace_back(span.begin, span.end);
  std::sort(ranges.begin(), ranges.end());
  int64_t sum = 0, reached = INT64_MIN;
  for (const auto& [begin, end] : ranges) {
    sum += std::max<int64_t>(end - std::max(begin, reached), 0);
    reached = std::max(reached, end);
  }
  return sum;
}

}  // namespace

OverlapReport::OverlapReport(const char* operation, const Group& group, const ShardChunks& chunks,
                             const dispatch::Device& device)
    : operation_(operation),
      rank_(group.rank()),
      ranks_(group.size()),
      workers_(device.gpu == nullptr ? device.workers() : 1),
      chunks_(chunks),
      times_(chunks.count()) {
  if (device.gpu == nullptr) return;
  gpu_ = std::make_unique<cuda::StreamTimes>(device.gpu);
  // A sum over ranks waits for as many chunks of each other rank as a shard has.
  int64_t most = 1;
  for (size_t piece = 0; piece + 1 < chunks.first.size(); ++piece)
    most = std::max(most, chunks.first[piece + 1] - chunks.first[piece]);
  waits_ = std::make_unique<cuda::ChunkWaitTimes>(device.gpu, chunks.count() + most * ranks_);
}

void OverlapReport::begin(void* stream) {
  spans_.clear();
  times_.clear();
  awaited_.clear();
  computed_ = 0;
  if (gpu_ != nullptr) {
    gpu_->clear();
    waits_->begin(stream);
  }
  began_ = cpu::nanoseconds_now();
  begin_ = point(stream);
}

void OverlapReport::add(Kind kind, int64_t chunk, int32_t rank, int64_t begin, void* stream) {
  spans_.push_back({kind, chunk, rank, begin, point(stream), -1});
  if (kind != Kind::kCompute) return;
  spans_.back().first_wait = computed_;
  spans_.back().end_wait = computed_ = awaited_.size();
}

void OverlapReport::end(void* stream) {
  end_ = point(stream);
  executed_ = true;
  for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
    const cpu::ChunkTimes::Chunk& times = times_.chunks()[static_cast<size_t>(chunk)];
    const int32_t owner = chunks_.owner(chunk);
    for (const auto& [kind, use] :
         {std::pair{Kind::kCompute, &times.computed}, {Kind::kWait, &times.waited}})
      if (use->sum > 0)
        spans_.push_back({kind, chunk, owner, use->begin, use->end, seconds(use->sum) / workers_});
    if (times.arrived != 0 && owner != rank_)
      spans_.push_back({Kind::kCommunication, chunk, owner, begin_, times.arrived, -1});
  }
}

Status OverlapReport::give(const char** json) {
  *json = nullptr;
  if (!executed_)
    return Status::error(PERSEID_INVALID_ARGUMENT, operation_,
                         ": the plan has not been executed; execute it before asking for its "
                         "report");
  std::vector<double> points;
  if (gpu_ != nullptr)
    if (Status status = gpu_->seconds(&points); !status.ok()) return status;
  const auto at = [&](int64_t point) {
    return gpu_ == nullptr
               ? point
               : began_ + static_cast<int64_t>(1e9 * points[static_cast<size_t>(point)]);
  };
  std::vector<Span> spans = spans_;
  for (Span& span : spans) {
    span.begin = at(span.begin);
    span.end = at(span.end);
    if (span.seconds < 0) span.seconds = seconds(span.end - span.begin);
  }
  if (gpu_ != nullptr)
    if (Status status = add_waits(&spans, at(begin_)); !status.ok()) return status;
  write(spans, at(begin_), at(end_));
  *json = json_.c_str();
  return {};
}

// Takes them off the computing that they are in. Two clocks differ by microseconds: a wait ends
// within the computing, and takes no longer.
Status OverlapReport::add_waits(std::vector<Span>* spans, int64_t begin) const {
  std::vector<cuda::ChunkWaitTimes::Wait> waits;
  if (Status status = waits_->read(&waits); !status.ok()) return status;
  for (size_t i = 0, count = spans->size(); i < count; ++i)
    for (size_t wait = (*spans)[i].first_wait; wait < (*spans)[i].end_wait; ++wait) {
      Span& computing = (*spans)[i];
      Span waiting{Kind::kWait,
                   awaited_[wait].chunk,
                   awaited_[wait].rank,
                   std::clamp(begin + waits[wait].begin, computing.begin, computing.end),
                   std::clamp(begin + waits[wait].end, computing.begin, computing.end),
                   0};
      waiting.seconds = std::min(
          {seconds(waits[wait].waited), seconds(waiting.end - waiting.begin), computing.seconds});
      if (waiting.seconds <= 0) continue;
      computing.seconds -= waiting.seconds;
      spans->push_back(waiting);
    }
  return {};
}

void OverlapReport::write(const std::vector<Span>& spans, int64_t begin, int64_t end) {
  // Workers' shares are added up; data may be under way several at a time.
  const auto sum = [&](Kind kind, const auto& wanted) {
    if (kind == Kind::kCommunication)
      return seconds(covered(
          spans, [&](const Span& span) { return span.kind == kind && wanted(span.chunk); }));
    double total = 0;
    for (const Span& span : spans)
      if (span.kind == kind && wanted(span.chunk)) total += span.seconds;
    return total;
  };
  JsonWriter json;
  const auto write_sums = [&](const auto& wanted) {
    json.field("compute_seconds", sum(Kind::kCompute, wanted))
        .field("communication_seconds", sum(Kind::kCommunication, wanted))
        .field("waited_seconds", sum(Kind::kWait, wanted));
  };
  json.begin_object()
      .field("operation", operation_)
      .field("rank", rank_)
      .field("ranks", ranks_)
      .field("workers", workers_)
      .field("seconds", seconds(end - begin));
  write_sums([](int64_t) { return true; });
  json.key("chunks").begin_array();
  for (int64_t chunk = kNoChunk; chunk < chunks_.count(); ++chunk) {
    json.begin_object();
    if (chunk == kNoChunk) {
      json.key("chunk").null().key("rank").null();
    } else {
      json.field("chunk", chunk).field("rank", chunks_.owner(chunk));
    }
    write_sums([&](int64_t of) { return of == chunk; });
    json.end_object();
  }
  json.end_array();

  json.key("traceEvents").begin_array();
  const auto label = [&](const char* what, int64_t thread, const std::string& name) {
    json.begin_object().field("name", what).field("ph", "M").field("pid", rank_);
    json.field("tid", thread).key("args").begin_object().field("name", name).end_object();
    json.end_object();
  };
  label("process_name", 0, concatenate(operation_, ", rank ", rank_));
  // A line for each kind and chunk, since chunks are computed side by side.
  const auto line = [](Kind kind, int64_t chunk) {
    return (chunk + 1) * 3 + static_cast<int64_t>(kind) + 1;
  };
  for (int64_t chunk = kNoChunk; chunk < chunks_.count(); ++chunk)
    for (const Kind kind : {Kind::kCompute, Kind::kCommunication, Kind::kWait})
      label("thread_name", line(kind, chunk),
            chunk == kNoChunk ? std::string(kNames[static_cast<size_t>(kind)])
                              : concatenate("chunk ", chunk, " of rank ", chunks_.owner(chunk),
                                            ": ", kNames[static_cast<size_t>(kind)]));
  for (const Span& span : spans) {
    json.begin_object()
        .field("name", kNames[static_cast<size_t>(span.kind)])
        .field("cat", "perseid")
        .field("ph", "X");
    json.key("ts").number(microseconds(span.begin));
    json.key("dur").number(microseconds(span.end - span.begin));
    json.field("pid", rank_).field("tid", line(span.kind, span.chunk));
    json.key("args").begin_object();
    if (span.chunk != kNoChunk) json.field("chunk", span.chunk);
    json.field("rank", span.rank).field("seconds", span.seconds).end_object().end_object();
  }
  json.end_array().end_object();
  json_ = json.text();
}

}  // namespace perseid::internal::collective
