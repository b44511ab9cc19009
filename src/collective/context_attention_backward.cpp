// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Backward of context-parallel attention.
#include "collective/context_attention.hpp"

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
  if (args.record != nullptr) *args.record = {PERSEID_OK, -1, 0, -1, 0, 0};

  const Turn turn(*group_, operation);
  if (!turn.status().ok())
    return recorded(*group_, {epoch_ + 1, stream, args.record}, turn.status());
  const ReportedExecution reported(report_.get(), stream);
  const Sending sending{++epoch_, stream, args.record, report_.get()};
  Status status = send(operation, sending, key, value);
  if (status.ok()) status = keys_->launched(sending);
  if (status.ok()) status = await_all(operation, sending);
  if (!status.ok()) return status;
  if (gradients_ != nullptr) status = gradients_->start(operation, sending);
  // Where this rank's own arguments are refused, the others miss its part.
  if (status.ok()) status = differentiate(*args.attention, workspace, stream);
  const Status finished = keys_->finish(sending);
  if (status.ok()) status = finished;
  if (!status.ok() || gradients_ == nullptr) return status;
  status = give_gradients();
  if (status.ok()) status = gradients_->share(operation);
  if (status.ok()) status = sum_gradients(operation, sending, grad_key, grad_value);
  const Status read = gradients_->finish();
  return status.ok() ? read : status;
}

Status ContextAttentionPlan::differentiate(const perseid_attention_backward_args& args,
                                           const op::Workspace& workspace, void* stream) const {
  perseid_attention_backward_args inner = args;
  inner.key = &gathered_.key_dl;
  inner.value = &gathered_.value_dl;
  if (ragged_) {
    inner.cu_seqlens_q = lengths_->queries_given();
    inner.cu_seqlens_kv = lengths_->keys_given();
  }
  // The other ranks need this one's part where it wants none itself.
  inner.grad_key = buffers_.empty() ? nullptr : buffers_[0].key;
  inner.grad_value = buffers_.empty() ? nullptr : buffers_[0].value;
  const Reported computing(report_.get(), OverlapReport::Kind::kCompute, OverlapReport::kNoChunk,
                           group_->rank(), stream);
  if (leaves_ != nullptr) {
    const int64_t elements =
        sums_.empty() ? 0 : sums_[0].key.elements() + sums_[0].value.elements();
    const std::span<const int64_t> begins =
        ragged_ ? std::span(lengths_->queries()) : std::span<const int64_t>();
    return leaves_->backward(inner, begins, buffers_, elements, workspace, stream);
  }
  Status status;
  if (ragged_) status = lengths_->send(stream);
  return status.ok() ? attention_of(attention_).backward(inner, workspace, stream) : status;
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

// Gives ranks on other hosts this rank's part of the gradients of the rows that its queries see.
Status ContextAttentionPlan::give_gradients() const {
  Status status;
  if (group_->shares_memory()) return status;
  group_->for_each_other([&](int32_t rank) {
    for_each_gradient(rank, [&](const Run& run, bool of_value, const Tensor& rows, size_t at) {
      const bool wanted =
          (gradients_wanted_ & (of_value ? PERSEID_GRAD_VALUE : PERSEID_GRAD_KEY)) != 0;
      const bool sees = (readers_[static_cast<size_t>(run.chunk)] >> group_->rank() & 1) != 0;
      if (wanted && (sees || canonical_) && status.ok()) status = gradients_->give(rank, rows, at);
    });
  });
  return status;
}

Status ContextAttentionPlan::sum_gradients(const Operation& operation, const Sending& sending,
                                           const Tensor& key, const Tensor& value) const {
  const Reported summing(sending.report, OverlapReport::Kind::kCompute, OverlapReport::kNoChunk,
                         group_->rank(), sending.stream);
  Status status;
  for_each_gradient(
      group_->rank(), [&](const Run& run, bool of_value, const Tensor& partial, size_t at) {
        const Tensor& out = of_value ? value : key;
        if (!status.ok() || !out.present()) return;
        status = gradients_->sum(operation,
                                 {.out = rows_of(out, run.entry, run.row, run.count),
                                  .partial = partial,
                                  .at = at,
                                  .readers = readers_[static_cast<size_t>(run.chunk)],
                                  .accumulates = of_value ? accumulate_value_ : accumulate_key_});
      });
  return status;
}

}  // namespace perseid::internal::collective
