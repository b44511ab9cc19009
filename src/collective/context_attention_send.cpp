// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What context-parallel attention sends of keys and values, and where it arrives.
#include <algorithm>

#include "collective/context_attention.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {

// What a window or the diagonal hides from all queries of a rank is not sent to it.
void ContextAttentionPlan::find_readers(const perseid_attention_desc& desc) {
  const auto count = static_cast<size_t>(chunks_->count());
  if (ragged_ || kv_lens_) {
    readers_.assign(count, ~uint64_t{0});
    return;
  }
  readers_.assign(count, 0);
  AttentionProblem problem;
  problem.causal = static_cast<Causal>(desc.causal);
  if (desc.window != 0) {
    problem.window_left = desc.window_left;
    problem.window_right = desc.window_right;
    problem.window_bottom_right = desc.window_bottom_right != 0;
  }
  for (int32_t rank = 0; rank < group_->size(); ++rank) {
    problem.rows = placement_of(rank);
    const int64_t rows = q_rows_[static_cast<size_t>(rank)], piece = zigzag_ ? rows / 2 : rows;
    for (int64_t row = 0; row < rows; row += piece) {
      const int64_t begin = visible_keys(problem, row, rows, shards_.extent()).begin;
      const int64_t end = visible_keys(problem, row + piece - 1, rows, shards_.extent()).end;
      for (size_t chunk = 0; chunk < count; ++chunk)
        if (chunks_->begin[chunk] < end && begin < chunks_->begin[chunk + 1])
          readers_[chunk] |= bit(rank);
    }
  }
}

void ContextAttentionPlan::view(std::byte* data, DType dtype, bool by_heads,
                                KeysAndValues* views) const {
  const int64_t entries = shards_.outer, rows = shards_.extent();
  const auto tensor = [&](int64_t dim) {
    const int64_t both = head_dim_ + value_dim_;
    if (by_heads)
      return Tensor{.data = data,
                    .dtype = dtype,
                    .rank = 4,
                    .shape = {entries, rows, kv_heads_, dim},
                    .stride = {kv_heads_ * rows * both, both, rows * both, 1}};
    const int64_t row = rows_first_ ? kv_heads_ * dim : dim, head = rows_first_ ? dim : rows * dim;
    return Tensor{.data = data,
                  .dtype = dtype,
                  .rank = 4,
                  .shape = {entries, rows, kv_heads_, dim},
                  .stride = {rows * kv_heads_ * dim, row, head, 1}};
  };
  // As callers give it, in its layout and without a batch where ragged.
  const auto given = [&](Tensor view) {
    if (!rows_first_) {
      std::swap(view.shape[1], view.shape[2]);
      std::swap(view.stride[1], view.stride[2]);
    }
    if (ragged_) {
      view.rank = 3;
      std::copy_n(view.shape + 1, 3, view.shape);
      std::copy_n(view.stride + 1, 3, view.stride);
    }
    return view;
  };
  views->key = tensor(head_dim_);
  data += (by_heads ? head_dim_ : views->key.elements()) * size_of(dtype);
  views->value = tensor(value_dim_);
  views->given_key = given(views->key);
  views->given_value = given(views->value);
  views->key_dl = as_dl(&views->given_key, device().dl_device());
  views->value_dl = as_dl(&views->given_value, device().dl_device());
}

void ContextAttentionPlan::cut(const Tensor& key, const Tensor& value) const {
  parts_.clear();
  arriving_.clear();
  if (by_heads_) return cut_by_heads(key, value);
  for_each_run(group_->rank(), [&](const Run& run) {
    for (const auto& [given, gathered] :
         {std::pair{&key, &gathered_.key}, {&value, &gathered_.value}})
      parts_.push_back({run.chunk, rows_of(*given, run.entry, run.row, run.count),
                        rows_of(*gathered, run.entry, run.position, run.count),
                        readers_[static_cast<size_t>(run.chunk)]});
  });
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
  for (int64_t group = 0; group < chunks_->groups; ++group)
    add_by_heads(group_->rank(), group, &parts_);
  if (group_->shares_memory()) return;
  group_->for_each_other([&](int32_t rank) {
    for (int64_t group = 0; group < chunks_->groups; ++group) add_by_heads(rank, group, &arriving_);
  });
  std::erase_if(arriving_,
                [&](const SentPart& part) { return (part.readers >> group_->rank() & 1) == 0; });
}

// What a rank sends of a group of heads or sequences, in the gathered memory of this one.
void ContextAttentionPlan::add_by_heads(int32_t rank, int64_t group,
                                        std::vector<SentPart>* parts) const {
  const int64_t both = head_dim_ + value_dim_, rows = shards_.extent();
  const int64_t groups = ragged_ ? 1 : chunks_->groups;     // of heads
  const int64_t each = shards_.outer * kv_heads_ / groups;  // heads, of all entries
  const int64_t first = ragged_ ? 0 : group * each;
  for_each_run(rank, [&](const Run& run) {
    if (run.entry != 0 || (ragged_ && run.group != group)) return;
    const Tensor part{
        .data = keys_->gathered() + (first * rows + run.position) * both * size_of(dtype_),
        .dtype = dtype_,
        .rank = 3,
        .shape = {each, run.count, both},
        .stride = {rows * both, both, 1}};
    parts->push_back({run.chunk, part, part, readers_[static_cast<size_t>(run.chunk)], group});
  });
}

// Keys and values that are not sent to this rank are hidden, and stay 0. What memory held before
// may be so large that a product with it is infinite, and rows that see none of it would be
// recomputed in another order. Collective on GPUs: nothing arrives before all are cleared.
Status ContextAttentionPlan::clear_unread(const Operation& operation) const {
  if (device().gpu == nullptr) return {};
  constexpr size_t kAtOnce = 4 << 20;
  std::vector<SentPart> parts;
  group_->for_each_other([&](int32_t rank) {
    if (by_heads_) {
      for (int64_t group = 0; group < chunks_->groups; ++group) add_by_heads(rank, group, &parts);
    } else {
      for_each_run(rank, [&](const Run& run) {
        const uint64_t readers = readers_[static_cast<size_t>(run.chunk)];
        for (const Tensor* rows : {&gathered_.key, &gathered_.value})
          parts.push_back(
              {run.chunk, {}, rows_of(*rows, run.entry, run.position, run.count), readers});
      });
    }
  });
  std::vector<std::byte> zeros;
  Status status;
  for (const SentPart& part : parts) {
    if ((part.readers >> group_->rank() & 1) != 0) continue;
    const ByteRows rows = collective::rows_of(part.to);
    zeros.resize(std::max(zeros.size(), std::min<size_t>(rows.bytes, kAtOnce)));
    for (uint64_t row = 0; row < rows.count; ++row)
      for (uint64_t at = 0; status.ok() && at < rows.bytes; at += kAtOnce)
        status = cuda::copy(*device().gpu, part.to.as<std::byte>() + row * rows.stride + at,
                            zeros.data(), std::min<size_t>(rows.bytes - at, kAtOnce), nullptr);
  }
  return group_->exchange(operation, status, "", nullptr);
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
