// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What context-parallel attention sends of keys and values, and where it arrives.
#include "collective/context_attention.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {

void ContextAttentionPlan::cut(const Tensor& key, const Tensor& value) const {
  parts_.clear();
  if (by_heads_) return cut_by_heads(key, value);
  for_each_run(group_->rank(), [&](const Run& run) {
    for (const auto& [given, gathered] :
         {std::pair{&key, &gathered_.key}, {&value, &gathered_.value}})
      parts_.push_back({run.chunk, rows_of(*given, run.entry, run.row, run.count),
                        rows_of(*gathered, run.entry, run.position, run.count),
                        readers_[static_cast<size_t>(run.chunk)]});
  });
  arriving_.clear();
  if (group_->shares_memory()) return;
  group_->for_each_other([&](int32_t rank) {
    for_each_run(rank, [&](const Run& run) {
      const uint64_t readers = readers_[static_cast<size_t>(run.chunk)];
      if ((readers >> group_->rank() & 1) == 0) return;
      for (const Tensor* gathered : {&gathered_.key, &gathered_.value})
        arriving_.push_back(
            {run.chunk, {}, rows_of(*gathered, run.entry, run.position, run.count), readers});
    });
  });
}

void ContextAttentionPlan::cut_by_heads(const Tensor& key, const Tensor& value) const {
  own_.clear();
  for_each_run(group_->rank(), [&](const Run& run) {
    for (const auto& [given, gathered] :
         {std::pair{&key, &gathered_.key}, {&value, &gathered_.value}})
      own_.push_back({rows_of(*given, run.entry, run.row, run.count),
                      rows_of(*gathered, run.entry, run.position, run.count)});
  });
  const int64_t both = head_dim_ + value_dim_, rows = shards_.extent();
  const int64_t each = shards_.outer * kv_heads_ / chunks_->groups;  // heads, of all entries
  for (int64_t group = 0; group < chunks_->groups; ++group)
    for_each_run(group_->rank(), [&](const Run& run) {
      if (run.entry != 0) return;
      const Tensor part{
          .data = keys_->gathered() + (group * each * rows + run.position) * both * size_of(dtype_),
          .dtype = dtype_,
          .rank = 3,
          .shape = {each, run.count, both},
          .stride = {rows * both, both, 1}};
      parts_.push_back({run.chunk, part, part, readers_[static_cast<size_t>(run.chunk)], group});
    });
}

Status ContextAttentionPlan::send(const Operation& operation, const Sending& sending,
                                  const Tensor& key, const Tensor& value) const {
  Status status;
  {
    const Reported wait(sending.report, OverlapReport::Kind::kWait, OverlapReport::kNoChunk,
                        group_->rank(), sending.stream);
    status = recorded(*group_, sending, keys_->start(operation, sending.epoch));
  }
  if (!status.ok()) return status;
  cut(key, value);
  keys_->expect(arriving_);
  if (by_heads_) {
    status = keys_->follow_last(sending);
    if (status.ok()) status = cuda::copy_rows(*device().gpu, own_, sending.stream);
  }
  return status.ok() ? keys_->send(operation, sending, parts_) : status;
}

Status ContextAttentionPlan::await_all(const Operation& operation, const Sending& sending) const {
  if (device().gpu == nullptr)
    return await_chunks(*group_, operation, *chunks_, keys_->signals(), sending);
  if (chunks_->count() == 0) return {};
  const Reported wait(sending.report, OverlapReport::Kind::kWait, OverlapReport::kNoChunk,
                      group_->rank(), sending.stream);
  return cuda::wait_for_signal(*device().gpu, as_arrival(keys_->arrival(operation, sending.epoch)),
                               sending.stream, static_cast<int32_t>(chunks_->words()));
}

}  // namespace perseid::internal::collective
