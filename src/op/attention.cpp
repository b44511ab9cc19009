// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/attention.hpp"

#include <cstring>

#include "op/attention_problem.hpp"
#include "op/chunks.hpp"
#include "op/lengths.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

// Reads the tensors of either direction, in the order of dimensions that kernels have them in.
class AttentionReader : public ArgumentReader {
 public:
  AttentionReader(const char* subject, DLDevice device, const AttentionProblem& problem,
                  perseid_layout layout)
      : ArgumentReader(subject, device),
        problem_(problem),
        layout_(layout),
        on_host_(device.device_type == kDLCPU) {}

  Tensor read_query(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, queries(), {"heads", problem_.heads},
                     {"head_dim", problem_.head_dim});
  }
  Tensor read_key(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, keys(), {"kv_heads", problem_.kv_heads},
                     {"head_dim", problem_.head_dim});
  }
  Tensor read_value(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, keys(), {"kv_heads", problem_.kv_heads},
                     {"value_dim", problem_.value_dim});
  }
  Tensor read_out(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, queries(), {"heads", problem_.heads},
                     {"value_dim", problem_.value_dim});
  }
  Tensor read_lse(Access access, const char* name, const DLTensor* tensor) {
    const DType dtype = problem_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const Extent extents[] = {{"batch", problem_.batch}, {"heads", problem_.heads}, queries()};
    return read(access, name, tensor, dtype, std::span(extents).subspan(problem_.ragged ? 1 : 0));
  }
  Tensor read_bias(Access access, const char* name, const DLTensor* tensor) {
    Extent4 extents = score_extents(problem_);
    for (size_t d = 0; d < extents.size(); ++d) extents[d].size = problem_.bias_shape[d];
    return read(access, name, tensor, problem_.bias_dtype, extents);
  }

  // What both directions are given.
  template <class Args, class Arguments>
  void read_inputs(const Args& args, Arguments* arguments);

 private:
  Extent queries() const {
    return problem_.ragged ? Extent{"total_q", problem_.total_q} : Extent{"q_len", problem_.q_len};
  }
  Extent keys() const {
    return problem_.ragged ? Extent{"total_kv", problem_.total_kv}
                           : Extent{"kv_len", problem_.kv_len};
  }
  Tensor read_rows(Access access, const char* name, const DLTensor* tensor, const Extent& rows,
                   const Extent& heads, const Extent& dim);
  Tensor read_cumulative(const char* name, const DLTensor* tensor, const Bound& longest,
                         const Bound& total);
  Tensor read_kv_lens(const DLTensor* tensor);
  Dropout read_dropout(uint64_t seed, uint64_t offset, const uint64_t* rng);

  const AttentionProblem& problem_;
  perseid_layout layout_;
  bool on_host_;  // so that numbers in tensors can be read
};

// Always returned as [batch, heads, rows, dim], or [heads, rows, dim] where ragged.
Tensor AttentionReader::read_rows(Access access, const char* name, const DLTensor* tensor,
                                  const Extent& rows, const Extent& heads, const Extent& dim) {
  const bool rows_first = layout_ == PERSEID_BSHD;
  const Extent extents[] = {
      {"batch", problem_.batch}, rows_first ? rows : heads, rows_first ? heads : rows, dim};
  Tensor view = read(access, name, tensor, problem_.dtype,
                     std::span(extents).subspan(problem_.ragged ? 1 : 0));
  if (rows_first && ok()) {
    std::swap(view.shape[view.rank - 3], view.shape[view.rank - 2]);
    std::swap(view.stride[view.rank - 3], view.stride[view.rank - 2]);
  }
  return view;
}

// Checked at every execution on the CPU. Kernels of a GPU clamp what they read.
Tensor AttentionReader::read_cumulative(const char* name, const DLTensor* tensor,
                                        const Bound& longest, const Bound& total) {
  const Extent extent{"batch + 1", problem_.batch + 1};
  const Tensor view = read(Access::kRead, name, tensor, {DType::kI32, DType::kI64}, {&extent, 1});
  if (ok() && on_host_) check_cumulative(*this, name, view, longest, total);
  return view;
}

Tensor AttentionReader::read_kv_lens(const DLTensor* tensor) {
  const Extent extent{"batch", problem_.batch};
  const Tensor view =
      read(Access::kRead, "kv_lens", tensor, {DType::kI32, DType::kI64}, {&extent, 1});
  const int64_t entries = view.stride[0] == 0 ? min(problem_.batch, int64_t{1}) : problem_.batch;
  for (int64_t i = 0; i < entries && ok() && on_host_; ++i) {
    const int64_t length = read_length(view, i);
    require(0 <= length && length <= problem_.kv_len, "kv_lens[", i, "] is ", length,
            ", expected 0 to ", problem_.kv_len,
            ", the plan's kv_len; cut it, or make a plan for more "
            "keys");
  }
  return view;
}

Dropout AttentionReader::read_dropout(uint64_t seed, uint64_t offset, const uint64_t* rng) {
  Dropout dropout;
  dropout.threshold = dropout_threshold(problem_.dropout);
  if (!dropout.enabled()) return dropout;
  if (rng != nullptr && !on_host_) {
    dropout.numbers = rng;
    return dropout;
  }
  uint64_t numbers[2] = {seed, offset};
  if (rng != nullptr) std::memcpy(numbers, rng, sizeof numbers);
  require(numbers[1] <= UINT32_MAX, "offset is ", numbers[1], ", expected less than 2^32");
  note("seed", numbers[0]);
  note("offset", numbers[1]);
  dropout.seed = numbers[0];
  dropout.offset = static_cast<uint32_t>(numbers[1]);
  return dropout;
}

template <class Args, class Arguments>
void AttentionReader::read_inputs(const Args& args, Arguments* arguments) {
  arguments->query = read_query(Access::kRead, "query", args.query);
  arguments->key = read_key(Access::kRead, "key", args.key);
  arguments->value = read_value(Access::kRead, "value", args.value);
  const Extent4 scores = score_extents(problem_);
  if (problem_.bias) {
    arguments->bias = read_bias(Access::kRead, "bias", args.bias);
    for (size_t d = 0; d < scores.size() && ok(); ++d) {
      if (problem_.bias_shape[d] != scores[d].size) arguments->bias.stride[d] = 0;
      arguments->bias.shape[d] = scores[d].size;
    }
  } else {
    refuse("bias", args.bias, "bias = 0");
  }
  if (problem_.visible) {
    arguments->visible = read_broadcast("visible", args.visible, DType::kBool, scores);
  } else {
    refuse("visible", args.visible, "visible = 0");
  }
  if (problem_.ragged) {
    arguments->cu_seqlens_q = read_cumulative(
        "cu_seqlens_q", args.cu_seqlens_q,
        {problem_.q_len, ", the plan's q_len; make a plan for the longest sequence"},
        {problem_.total_q, ", the plan's total_q; make a plan for as many rows"});
    arguments->cu_seqlens_kv = read_cumulative(
        "cu_seqlens_kv", args.cu_seqlens_kv,
        {problem_.kv_len, ", the plan's kv_len; make a plan for the longest sequence"},
        {problem_.total_kv, ", the plan's total_kv; make a plan for as many rows"});
  } else {
    refuse("cu_seqlens_q", args.cu_seqlens_q, "ragged = 0");
    refuse("cu_seqlens_kv", args.cu_seqlens_kv, "ragged = 0");
  }
  if (problem_.kv_lens) {
    arguments->kv_lens = read_kv_lens(args.kv_lens);
  } else {
    refuse("kv_lens", args.kv_lens, "kv_lens = 0");
  }
  arguments->dropout = read_dropout(args.seed, args.offset, args.rng);
}

// Whether all sequences are empty, as sizes and strides alone tell: cumulative lengths of stride 0
// are all 0. Then a batch may be larger than all memory, and must not be walked.
bool are_empty(const AttentionProblem& problem, int64_t longest, const Tensor& cumulative) {
  return longest == 0 || (problem.ragged && cumulative.stride[0] == 0);
}

void fill_zeros(Tensor view) {
  if (!view.present() || is_empty(view)) return;
  const auto bytes = size_of(view.dtype);
  int64_t row = 1;  // of elements that lie side by side
  if (view.stride[view.rank - 1] == 1) row = view.shape[--view.rank];
  int64_t index[kMaxDims] = {};
  auto* to = view.as<std::byte>();
  for (int32_t d = view.rank - 1; d >= 0;) {
    if (d == view.rank - 1) std::memset(to, 0, static_cast<size_t>(row * bytes));
    to += view.stride[d] * bytes;
    if (++index[d] < view.shape[d]) {
      d = view.rank - 1;
      continue;
    }
    to -= view.stride[d] * view.shape[d] * bytes;
    index[d--] = 0;
  }
}

// The gradients where no query has a key. Packed rows past the last sequence stay as they are, and
// so does what zeros would be added to.
void fill_zeros(const AttentionProblem& problem, AttentionBackward& backward) {
  if (problem.ragged) {
    const int64_t rows_q = read_length(backward.cu_seqlens_q, problem.batch);
    const int64_t rows_kv = read_length(backward.cu_seqlens_kv, problem.batch);
    backward.grad_query.shape[1] = rows_q;
    backward.grad_key.shape[1] = backward.grad_value.shape[1] = rows_kv;
  }
  if (!problem.accumulate_query) fill_zeros(backward.grad_query);
  if (!problem.accumulate_key) fill_zeros(backward.grad_key);
  if (!problem.accumulate_value) fill_zeros(backward.grad_value);
  if (!problem.accumulate_bias) fill_zeros(backward.grad_bias);
}

}  // namespace

Status AttentionPlan::make(DevicePointer device, const perseid_attention_desc& desc,
                           std::unique_ptr<const Plan>* plan) {
  std::unique_ptr<AttentionPlan> made(
      new AttentionPlan(std::move(device), static_cast<perseid_layout>(desc.layout)));
  AttentionProblem problem;
  if (Status status = read_problem(desc, &made->chunks_, &problem); !status.ok()) return status;
  const bool on_cpu = made->device().gpu == nullptr;
  if (Status status = made->choose(
          dispatch::attention_implementations(), problem, desc.implementation, describe(problem),
          {.forward = problem.q_len == 0,
           .backward = on_cpu && (problem.q_len == 0 || problem.kv_len == 0)});
      !status.ok())
    return status;
  *plan = std::move(made);
  return {};
}

Status AttentionPlan::forward(const perseid_attention_forward_args& args,
                              const Workspace& workspace, void* stream) const {
  AttentionReader reader("attention forward", device().dl_device(), problem(), layout_);
  AttentionForward forward;
  reader.read_inputs(args, &forward);
  forward.out = reader.read_out(Access::kWrite, "out", args.out);
  if (args.lse != nullptr) forward.lse = reader.read_lse(Access::kWrite, "lse", args.lse);
  forward.arrival_kv = read_arrival(reader, "arrival_kv", args.arrival_kv, problem().chunks_kv);
  Missing missing;
  forward.missing = &missing;
  if (Status status = reader.finish(); !status.ok()) return status;
  // A GPU writes only that a wait has failed, while it runs.
  write_record(args.arrival_kv, PERSEID_OK, missing);
  if (are_empty(problem(), problem().q_len, forward.cu_seqlens_q)) {
    std::byte* unused = nullptr;
    return take(reader, dispatch::Direction::kForward, workspace, &unused);
  }
  Status status = run_forward(reader, forward, workspace, stream);
  if (missing.end != WaitEnd::kArrived) write_record(args.arrival_kv, status.code(), missing);
  return status;
}

Status AttentionPlan::backward(const perseid_attention_backward_args& args,
                               const Workspace& workspace, void* stream) const {
  AttentionReader reader("attention backward", device().dl_device(), problem(), layout_);
  if (!reader.require(problem().backward(),
                      "the plan has no backward, because its descriptor's gradients are 0; make a "
                      "plan that says which gradients it computes"))
    return reader.result();
  AttentionBackward backward;
  reader.read_inputs(args, &backward);
  backward.out = reader.read_out(Access::kRead, "out", args.out);
  backward.lse = reader.read_lse(Access::kRead, "lse", args.lse);
  backward.grad_out = reader.read_out(Access::kRead, "grad_out", args.grad_out);
  if (args.grad_lse != nullptr)
    backward.grad_lse = reader.read_lse(Access::kRead, "grad_lse", args.grad_lse);

  const auto wanted = [&](const char* name, const DLTensor* tensor, bool planned) {
    if (!planned) reader.refuse(name, tensor, "nothing of it in gradients");
    return tensor != nullptr && planned;
  };
  if (wanted("grad_query", args.grad_query, problem().grad_query))
    backward.grad_query = reader.read_query(Access::kWrite, "grad_query", args.grad_query);
  if (wanted("grad_key", args.grad_key, problem().grad_key))
    backward.grad_key = reader.read_key(Access::kWrite, "grad_key", args.grad_key);
  if (wanted("grad_value", args.grad_value, problem().grad_value))
    backward.grad_value = reader.read_value(Access::kWrite, "grad_value", args.grad_value);
  if (wanted("grad_bias", args.grad_bias, problem().grad_bias))
    backward.grad_bias = reader.read_bias(Access::kWrite, "grad_bias", args.grad_bias);
  if (Status status = reader.finish(); !status.ok()) return status;
  const bool no_queries = are_empty(problem(), problem().q_len, backward.cu_seqlens_q);
  const bool no_keys = are_empty(problem(), problem().kv_len, backward.cu_seqlens_kv);
  if ((no_queries || no_keys) && device().gpu == nullptr) {
    std::byte* unused = nullptr;
    Status status = take(reader, dispatch::Direction::kBackward, workspace, &unused);
    if (status.ok()) fill_zeros(problem(), backward);
    return status;
  }
  return run_backward(reader, backward, workspace, stream);
}

}  // namespace perseid::internal::op
