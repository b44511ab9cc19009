// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Backward of context-parallel attention.
#include <algorithm>

#include "collective/context_attention.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {

Status ContextAttentionPlan::backward(const perseid_context_attention_backward_args& args,
                                      const op::Workspace& workspace, void* stream) const {
  const Operation operation("context-attention backward", args.deadline_ns);
  op::ArgumentReader reader(operation.name, device().dl_device());
  Tensor key, value, grad_key, grad_value;
  if (Status status = read_inputs(reader, args.attention, &key, &value); !status.ok())
    return status;
  const auto wanted = [&](const char* name, const DLTensor* given, uint32_t bit,
                          const char* dim_name, int64_t dim) {
    if ((gradients_wanted_ & bit) == 0) reader.refuse(name, given, "nothing of it in gradients");
    return given == nullptr || !reader.ok()
               ? Tensor()
               : read_keys(reader, op::Access::kWrite, name, given, dim_name, dim);
  };
  if (reader.ok()) {
    grad_key =
        wanted("grad_key", args.attention->grad_key, PERSEID_GRAD_KEY, "head_dim", head_dim_);
    grad_value = wanted("grad_value", args.attention->grad_value, PERSEID_GRAD_VALUE, "value_dim",
                        value_dim_);
  }
  require_rows(
      reader,
      {{"key", &key}, {"value", &value}, {"grad_key", &grad_key}, {"grad_value", &grad_value}});
  if (leaves_ != nullptr && reader.ok()) leaves_->require_rows(reader, *args.attention);
  if (Status status = reader.finish(); !status.ok()) return status;
  if (Status status = refuse_capture(device(), operation, stream); !status.ok()) return status;
  // Once it has begun, no argument is refused: the other ranks would miss this one's gradients.
  const perseid_attention_backward_args inner = backward_arguments_of(*args.attention);
  std::byte* unused = nullptr;
  if (Status status = take(reader, dispatch::Direction::kBackward, workspace, &unused);
      !status.ok())
    return status;
  if (Status status = check_backward(inner, workspace); !status.ok()) return status;
  if (args.record != nullptr) *args.record = {PERSEID_OK, -1, 0, -1, 0, 0};

  const Turn turn(*group_, operation);
  if (!turn.status().ok())
    return recorded(*group_, {epoch_ + 1, stream, args.record}, turn.status());
  const ReportedExecution reported(report_.get(), stream);
  const Sending sending{++epoch_, stream, args.record, report_.get()};
  Status status = send(operation, sending, key, value);
  if (status.ok() && streamed_ != nullptr)
    return stream_gradients(operation, sending, inner, workspace, grad_key, grad_value);
  if (status.ok()) status = keys_->launched(sending);
  if (status.ok()) status = await_all(operation, sending);
  if (status.ok() && gradients_ != nullptr) status = gradients_->start(operation, sending);
  Sending gradients = sending;
  gradients.operand = 1;
  const WatchedWork work(stop_.get(), operation, gradients, [this](uint64_t but_of) {
    return gradients_ == nullptr ? MissingPart() : gradients_->missing(but_of);
  });
  if (status.ok()) status = work.ended(differentiate(inner, workspace, stream));
  const Status finished = keys_->finish(sending);
  if (status.ok()) status = finished;
  if (!status.ok() || gradients_ == nullptr) return status;
  status = give_gradients();
  if (status.ok()) status = gradients_->share(operation);
  if (status.ok()) status = work.ended(sum_gradients(operation, sending, grad_key, grad_value));
  const Status read = gradients_->finish();
  return status.ok() ? read : status;
}

perseid_attention_backward_args ContextAttentionPlan::backward_arguments_of(
    const perseid_attention_backward_args& args) const {
  perseid_attention_backward_args inner = arguments_of(args);
  if (ragged_ && leaves_ != nullptr) inner.cu_seqlens_q = lengths_->pieces_given();
  // The other ranks need this one's part where it wants none itself.
  inner.grad_key = buffers_.empty() ? nullptr : buffers_[0].key;
  inner.grad_value = buffers_.empty() ? nullptr : buffers_[0].value;
  return inner;
}

// Of sequences in this rank's rows.
std::span<const int64_t> ContextAttentionPlan::begins() const {
  return ragged_ ? std::span(lengths_->queries()) : std::span<const int64_t>();
}

Status ContextAttentionPlan::check_backward(const perseid_attention_backward_args& inner,
                                            const op::Workspace& workspace) const {
  return leaves_ != nullptr ? leaves_->check(inner, begins(), buffers_, workspace)
                            : attention_of(attention_).check_backward(inner, workspace);
}

Status ContextAttentionPlan::differentiate(const perseid_attention_backward_args& inner,
                                           const op::Workspace& workspace, void* stream) const {
  if (ragged_)
    if (Status status = lengths_->send(stream); !status.ok()) return status;
  const Reported computing(report_.get(), OverlapReport::Kind::kCompute, OverlapReport::kNoChunk,
                           group_->rank(), stream);
  if (leaves_ != nullptr) {
    const int64_t elements =
        sums_.empty() ? 0 : sums_[0].key.elements() + sums_[0].value.elements();
    return leaves_->backward(inner, begins(), buffers_, elements, workspace, stream);
  }
  return attention_of(attention_).backward(inner, workspace, stream);
}

bool ContextAttentionPlan::may_stream() const {
  return by_heads_ && group_->shares_memory() && !ragged_ && !canonical_ &&
         gradients_wanted_ != 0 && chunks_->count() > 0 && group_->size() > 1 &&
         std::all_of(q_rows_.begin(), q_rows_.end(), [](int64_t rows) { return rows > 0; });
}

Status ContextAttentionPlan::make_streamed(const TransportSite& site) {
  const int32_t ranks = group_->size();
  StreamedGradients::Geometry geometry{.chunks = chunks_.get(),
                                       .heads = shards_.outer * kv_heads_,
                                       .kv_heads = kv_heads_,
                                       .rows = shards_.extent(),
                                       .of_rank = {},
                                       .key_dim = head_dim_,
                                       .value_dim = value_dim_,
                                       .dtype = dtype_};
  for (int32_t rank = 0; rank < ranks; ++rank)
    geometry.of_rank.push_back(shards_.size(rank) +
                               (zigzag_ ? shards_.size(2 * ranks - 1 - rank) : 0));
  const Status status =
      StreamedGradients::make(site, geometry, {accumulate_key_, accumulate_value_}, &streamed_);
  if (!status.ok()) return status;
  runs_.reserve(static_cast<size_t>(chunks_->count()));
  sums_.resize(1);
  view(streamed_->partial(), DType::kF32, true, &sums_[0]);
  const auto wanted = [&](uint32_t bit, const DLTensor& sum) {
    return (gradients_wanted_ & bit) != 0 ? &sum : nullptr;
  };
  buffers_.push_back({streamed_->partial(), wanted(PERSEID_GRAD_KEY, sums_[0].key_dl),
                      wanted(PERSEID_GRAD_VALUE, sums_[0].value_dl)});
  return {};
}

// Keys arrive and gradients leave while the attention computes those of other keys.
Status ContextAttentionPlan::stream_gradients(const Operation& operation, const Sending& sending,
                                              const perseid_attention_backward_args& inner,
                                              const op::Workspace& workspace, const Tensor& key,
                                              const Tensor& value) const {
  const Departure departure = streamed_->start();
  // A kernel that waits for keys itself is launched before they are sent.
  const bool groups = group_attention_ != nullptr;
  Status status = groups ? keys_->launched(sending) : Status();
  if (status.ok()) {
    const Reported computing(report_.get(), OverlapReport::Kind::kCompute, OverlapReport::kNoChunk,
                             group_->rank(), sending.stream);
    status = groups
                 ? differentiate_groups(operation, sending, inner, workspace, departure)
                 : attention_of(attention_)
                       .backward(inner, workspace, sending.stream,
                                 {as_arrival(keys_->arrival(operation, sending.epoch)), departure});
  }
  if (!groups)
    if (const Status launched = keys_->launched(sending); status.ok()) status = launched;
  if (status.ok()) status = push_gradients();
  if (status.ok()) {
    const Reported summing(report_.get(), OverlapReport::Kind::kCompute, OverlapReport::kNoChunk,
                           group_->rank(), sending.stream);
    status = sum_streamed(operation, sending, key, value);
  }
  const Status finished = keys_->finish(sending);
  return status.ok() ? finished : status;
}

// Those of a group of heads while the next ones arrive.
Status ContextAttentionPlan::sum_streamed(const Operation& operation, const Sending& sending,
                                          const Tensor& key, const Tensor& value) const {
  const int64_t heads = batch_ * kv_heads_ / chunks_->groups;  // of a group
  Status status;
  for (int64_t group = 0; status.ok() && group < chunks_->groups; ++group) {
    for (const StreamedGradients::Run& run : streamed_runs(group_->rank()))
      for (int64_t entry = 0; entry < batch_; ++entry)
        for (const bool of_value : {false, true}) {
          const Tensor& out = of_value ? value : key;
          const int64_t first = max(group * heads, entry * kv_heads_),
                        end = min((group + 1) * heads, (entry + 1) * kv_heads_);
          if (!out.present() || first >= end) continue;
          Tensor rows = rows_of(out, entry, run.row, run.count);
          rows.data = rows.as<std::byte>() +
                      (first - entry * kv_heads_) * rows.stride[1] * size_of(rows.dtype);
          rows.shape[1] = end - first;
          streamed_->add(run, {.out = rows,
                               .head = first,
                               .of_value = of_value,
                               .accumulates = of_value ? accumulate_value_ : accumulate_key_});
        }
    status = streamed_->sum(operation, group + 1, sending.stream);
  }
  return status;
}

// A launch for each group of heads, when its keys are here.
Status ContextAttentionPlan::differentiate_groups(const Operation& operation,
                                                  const Sending& sending,
                                                  const perseid_attention_backward_args& args,
                                                  const op::Workspace& workspace,
                                                  const Departure& departure) const {
  const cuda::Gpu& gpu = *device().gpu;
  const int64_t words = chunks_->words() / gradient_groups_;  // of a group
  Arrival arrival = as_arrival(keys_->arrival(operation, sending.epoch));
  Status status;
  for (int64_t group = 0; group < gradient_groups_ && status.ok(); ++group) {
    status =
        cuda::wait_for_signal(*device().gpu, arrival, sending.stream, static_cast<int32_t>(words));
    arrival.signals += words;
    if (status.ok())
      status = attention_of(attention_)
                   .backward(args, workspace, sending.stream, {},
                             {&attention_of(group_attention_), group, gradient_groups_});
    for (int64_t word = group * words; word < (group + 1) * words && status.ok(); ++word)
      status = cuda::set_signal(gpu, departure.signals + word, departure.epoch, sending.stream);
  }
  return status;
}

// In the order in which they are complete.
Status ContextAttentionPlan::push_gradients() const {
  Status status;
  for (int64_t group = 0; group < chunks_->groups; ++group)
    for (int32_t step = 1; status.ok() && step < group_->size(); ++step) {
      const int32_t rank = (group_->rank() + step) % group_->size();
      status = streamed_->push(rank, group, streamed_runs(rank));
    }
  return status;
}

std::span<const StreamedGradients::Run> ContextAttentionPlan::streamed_runs(int32_t rank) const {
  runs_.clear();
  for_each_run(rank, [&](const Run& run) {
    if (run.entry == 0)
      runs_.push_back(
          {run.chunk, run.row, run.count, run.position, readers_[static_cast<size_t>(run.chunk)]});
  });
  return runs_;
}

template <class Body>
void ContextAttentionPlan::for_each_gradient(int32_t rank, const Body& body) const {
  size_t at = 0;
  for_each_run(rank, [&](const Run& run) {
    for (const bool of_value : {false, true}) {
      const Tensor rows =
          rows_of(of_value ? sums_[0].value : sums_[0].key, run.entry, run.position, run.count);
      body(run, of_value, rows, at);
      at += static_cast<size_t>(rows.elements() * size_of(rows.dtype));
    }
  });
}

// Gives ranks on other hosts this rank's part of the gradients of the rows that its queries see,
// and takes theirs of the own rows.
Status ContextAttentionPlan::give_gradients() const {
  Status status;
  if (group_->shares_memory()) return status;
  const auto gives = [&](int32_t rank, const Run& run, bool of_value) {
    const bool sees = (readers_[static_cast<size_t>(run.chunk)] >> rank & 1) != 0;
    return (gradients_wanted_ & (of_value ? PERSEID_GRAD_VALUE : PERSEID_GRAD_KEY)) != 0 &&
           (sees || canonical_);
  };
  const int32_t own = group_->rank();
  group_->for_each_other([&](int32_t rank) {
    for_each_gradient(rank, [&](const Run& run, bool of_value, const Tensor& rows, size_t at) {
      if (gives(own, run, of_value) && status.ok()) status = gradients_->give(rank, rows, at);
    });
    for_each_gradient(own, [&](const Run& run, bool of_value, const Tensor& rows, size_t at) {
      if (gives(rank, run, of_value)) gradients_->take(rank, rows, at);
    });
  });
  return status;
}

Status ContextAttentionPlan::sum_gradients(const Operation& operation, const Sending& sending,
                                           const Tensor& key, const Tensor& value) const {
  const Reported summing(sending.report, OverlapReport::Kind::kCompute, OverlapReport::kNoChunk,
                         group_->rank(), sending.stream);
  for_each_gradient(
      group_->rank(), [&](const Run& run, bool of_value, const Tensor& partial, size_t at) {
        const Tensor& out = of_value ? value : key;
        if (!out.present()) return;
        gradients_->sum({.out = rows_of(out, run.entry, run.row, run.count),
                         .partial = partial,
                         .at = at,
                         .readers = readers_[static_cast<size_t>(run.chunk)],
                         .accumulates = of_value ? accumulate_value_ : accumulate_key_});
      });
  return gradients_->sum_all(operation);
}

}  // namespace perseid::internal::collective
