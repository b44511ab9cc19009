// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/attention.hpp"

#include <cstring>
#include <limits>

#include "op/attention_problem.hpp"
#include "op/chunks.hpp"
#include "op/lengths.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

constexpr const char *kForward = "attention forward", *kBackward = "attention backward";

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
    return read_rows(access, name, tensor, problem_.dtype, queries(), {"heads", problem_.heads},
                     {"head_dim", problem_.head_dim});
  }
  Tensor read_key(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, dtype_of_keys(access), keys(),
                     {"kv_heads", problem_.kv_heads}, {"head_dim", problem_.head_dim});
  }
  Tensor read_value(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, dtype_of_keys(access), keys(),
                     {"kv_heads", problem_.kv_heads}, {"value_dim", problem_.value_dim});
  }
  Tensor read_out(Access access, const char* name, const DLTensor* tensor) {
    return read_rows(access, name, tensor, problem_.dtype, queries(), {"heads", problem_.heads},
                     {"value_dim", problem_.value_dim});
  }
  Tensor read_lse(Access access, const char* name, const DLTensor* tensor) {
    const DType dtype = problem_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const Extent extents[] = {
        {"batch", problem_.batch}, {"heads", problem_.heads}, queries().length};
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
  // Forward has them alone.
  template <class Args, class Arguments>
  void read_cache(const Args& args, Arguments* arguments);

 private:
  // The rows of a head, in its batch entries.
  struct Rows {
    Extent batch, length;
  };
  Rows queries() const {
    return {
        {"batch", problem_.batch},
        problem_.ragged ? Extent{"total_q", problem_.total_q} : Extent{"q_len", problem_.q_len}};
  }
  Rows keys() const {
    return {{problem_.kv_index ? "kv_batch" : "batch", problem_.kv_batch},
            problem_.ragged ? Extent{"total_kv", problem_.total_kv}
                            : Extent{"kv_len", problem_.kv_len}};
  }
  // The type of key and value, or of their gradients, which alone are written.
  DType dtype_of_keys(Access access) const {
    const bool wide = access == Access::kWrite && problem_.f32_key_gradients;
    return wide && size_of(problem_.dtype) == 2 ? DType::kF32 : problem_.dtype;
  }
  Tensor read_rows(Access access, const char* name, const DLTensor* tensor, DType dtype,
                   const Rows& rows, const Extent& heads, const Extent& dim);
  Tensor read_cumulative(const char* name, const DLTensor* tensor, const Bound& longest,
                         const Bound& total);
  // One number for each batch entry, from 0 to `most`.
  Tensor read_numbers(const char* name, const DLTensor* tensor, const Bound& most);
  void check_starts(const Tensor& starts, const Tensor& lengths);
  Dropout read_dropout(uint64_t seed, uint64_t offset, const uint64_t* rng);

  const AttentionProblem& problem_;
  perseid_layout layout_;
  bool on_host_;  // so that numbers in tensors can be read
};

// Always returned as [batch, heads, rows, dim], or [heads, rows, dim] where ragged.
Tensor AttentionReader::read_rows(Access access, const char* name, const DLTensor* tensor,
                                  DType dtype, const Rows& rows, const Extent& heads,
                                  const Extent& dim) {
  const bool rows_first = layout_ == PERSEID_BSHD;
  const Extent extents[] = {rows.batch, rows_first ? rows.length : heads,
                            rows_first ? heads : rows.length, dim};
  Tensor view =
      read(access, name, tensor, dtype, std::span(extents).subspan(problem_.ragged ? 1 : 0));
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

Tensor AttentionReader::read_numbers(const char* name, const DLTensor* tensor, const Bound& most) {
  const Extent extent{"batch", problem_.batch};
  const Tensor view = read(Access::kRead, name, tensor, {DType::kI32, DType::kI64}, {&extent, 1});
  const int64_t entries = view.stride[0] == 0 ? min(problem_.batch, int64_t{1}) : problem_.batch;
  for (int64_t i = 0; i < entries && ok() && on_host_; ++i) {
    const int64_t number = read_length(view, i);
    require(0 <= number && number <= most.most, name, "[", i, "] is ", number, ", expected 0 to ",
            most.most, most.of);
  }
  return view;
}

// That the keys of each sequence are within the packed tensors.
void AttentionReader::check_starts(const Tensor& starts, const Tensor& lengths) {
  for (int64_t i = 0; i < problem_.batch && ok() && on_host_; ++i) {
    const int64_t end = read_length(starts, i) + read_length(lengths, i);
    require(end <= problem_.total_kv, "kv_starts[", i, "] and kv_lens[", i, "] end at ", end,
            ", expected at most ", problem_.total_kv, ", total_kv");
  }
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
    if (!problem_.kv_starts)
      arguments->cu_seqlens_kv = read_cumulative(
          "cu_seqlens_kv", args.cu_seqlens_kv,
          {problem_.kv_len, ", the plan's kv_len; make a plan for the longest sequence"},
          {problem_.total_kv, ", the plan's total_kv; make a plan for as many rows"});
    else
      refuse("cu_seqlens_kv", args.cu_seqlens_kv, "kv_starts = 1");
  } else {
    refuse("cu_seqlens_q", args.cu_seqlens_q, "ragged = 0");
    refuse("cu_seqlens_kv", args.cu_seqlens_kv, "ragged = 0");
  }
  if (problem_.q_lens) {
    arguments->q_lens = read_numbers(
        "q_lens", args.q_lens,
        {problem_.q_len, ", the plan's q_len; cut it, or make a plan for more queries"});
  } else {
    refuse("q_lens", args.q_lens, "q_lens = 0");
  }
  if (problem_.kv_lens) {
    arguments->kv_lens = read_numbers(
        "kv_lens", args.kv_lens,
        {problem_.kv_len, ", the plan's kv_len; cut it, or make a plan for more keys"});
  } else {
    refuse("kv_lens", args.kv_lens, "kv_lens = 0");
  }
  if constexpr (requires { args.kv_starts; }) read_cache(args, arguments);
  arguments->dropout = read_dropout(args.seed, args.offset, args.rng);
}

template <class Args, class Arguments>
void AttentionReader::read_cache(const Args& args, Arguments* arguments) {
  if (problem_.kv_starts) {
    arguments->cu_seqlens_kv = read_numbers("kv_starts", args.kv_starts,
                                            {problem_.total_kv, ", the rows of key and value"});
    check_starts(arguments->cu_seqlens_kv, arguments->kv_lens);
  } else {
    refuse("kv_starts", args.kv_starts, "kv_starts = 0");
  }
  if (problem_.kv_index) {
    arguments->kv_index = read_numbers("kv_index", args.kv_index,
                                       {problem_.kv_batch - 1, ", the last of kv_batch entries"});
  } else {
    refuse("kv_index", args.kv_index, "kv_batch = 0");
  }
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

void fill(const Tensor& view, float value) {
  for (int64_t i = 0; i < view.shape[0]; ++i)
    for (int64_t j = 0; j < view.shape[1]; ++j) {
      const int64_t at = i * view.stride[0] + j * view.stride[1];
      if (view.dtype == DType::kF64)
        view.as<double>()[at] = value;
      else
        view.as<float>()[at] = value;
    }
}

// Rows [begin, end) of a batch entry of out, lse or grad_query, [heads, rows, dim]; packed rows
// count from the first of all.
Tensor rows_of(const AttentionProblem& problem, Tensor view, int64_t batch, int64_t begin,
               int64_t end) {
  if (!view.present()) return view;
  auto* data = view.as<std::byte>();
  if (!problem.ragged) {
    data += batch * view.stride[0] * size_of(view.dtype);
    std::copy(view.shape + 1, view.shape + view.rank, view.shape);
    std::copy(view.stride + 1, view.stride + view.rank, view.stride);
    --view.rank;
  }
  view.data = data + begin * view.stride[1] * size_of(view.dtype);
  view.shape[1] = end - begin;
  return view;
}

// visit(batch entry, first row, end) for the rows of each sequence that q_lens leaves out. They
// are a kernel's own where it runs on a GPU.
template <class Arguments, class Visit>
void for_each_rest(const dispatch::Device& device, const AttentionProblem& problem,
                   const Arguments& arguments, const Visit& visit) {
  if (!problem.q_lens || device.gpu != nullptr) return;
  cpu::for_each_task(*device.executor, problem.batch, [&](int64_t batch, int32_t) {
    const Sequence sequence = sequence_of(problem, arguments, batch);
    const int64_t end =
        problem.ragged ? read_length(arguments.cu_seqlens_q, batch + 1) : problem.q_len;
    if (sequence.q_begin + sequence.q_len < end)
      visit(batch, sequence.q_begin + sequence.q_len, end);
  });
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

// Where lengths of the plan are the most, those of an execution are in its tensors. One of wrong
// dimensions is refused when it is read.
Status read_lengths(const char* subject, const AttentionProblem& problem, perseid_layout layout,
                    const DLTensor* query, const DLTensor* key, AttentionLengths* lengths) {
  *lengths = {problem.q_len, problem.kv_len, problem.total_q, problem.total_kv};
  if (!problem.max_lengths) return {};
  Check check(subject);
  const auto read = [&](const char* tensor, const DLTensor* from, const char* name,
                        int64_t* length) {
    if (from == nullptr || from->shape == nullptr || from->ndim != (problem.ragged ? 3 : 4)) return;
    const int64_t size = from->shape[from->ndim - (layout == PERSEID_BSHD ? 3 : 2)];
    check.require(0 <= size && size <= *length, tensor, " has ", name, " ", size,
                  ", expected at most ", *length, ", the plan's; make a plan for more");
    if (check.ok()) *length = size;
  };
  if (problem.ragged) {
    read("query", query, "total_q", &lengths->total_q);
    read("key", key, "total_kv", &lengths->total_kv);
  } else {
    read("query", query, "q_len", &lengths->q_len);
    read("key", key, "kv_len", &lengths->kv_len);
  }
  return check.result();
}

void read_tensors(AttentionReader& reader, const perseid_attention_forward_args& args,
                  AttentionForward* forward) {
  reader.read_inputs(args, forward);
  forward->out = reader.read_out(Access::kWrite, "out", args.out);
  if (args.lse != nullptr) forward->lse = reader.read_lse(Access::kWrite, "lse", args.lse);
}

void read_tensors(AttentionReader& reader, const AttentionProblem& problem,
                  const perseid_attention_backward_args& args, AttentionBackward* backward) {
  if (!reader.require(problem.backward(),
                      "the plan has no backward, because its descriptor's gradients are 0; make a "
                      "plan that says which gradients it computes"))
    return;
  reader.read_inputs(args, backward);
  backward->out = reader.read_out(Access::kRead, "out", args.out);
  backward->lse = reader.read_lse(Access::kRead, "lse", args.lse);
  backward->grad_out = reader.read_out(Access::kRead, "grad_out", args.grad_out);
  if (args.grad_lse != nullptr)
    backward->grad_lse = reader.read_lse(Access::kRead, "grad_lse", args.grad_lse);

  const auto wanted = [&](const char* name, const DLTensor* tensor, bool planned) {
    if (!planned) reader.refuse(name, tensor, "nothing of it in gradients");
    return tensor != nullptr && planned;
  };
  if (wanted("grad_query", args.grad_query, problem.grad_query))
    backward->grad_query = reader.read_query(Access::kWrite, "grad_query", args.grad_query);
  if (wanted("grad_key", args.grad_key, problem.grad_key))
    backward->grad_key = reader.read_key(Access::kWrite, "grad_key", args.grad_key);
  if (wanted("grad_value", args.grad_value, problem.grad_value))
    backward->grad_value = reader.read_value(Access::kWrite, "grad_value", args.grad_value);
  if (wanted("grad_bias", args.grad_bias, problem.grad_bias))
    backward->grad_bias = reader.read_bias(Access::kWrite, "grad_bias", args.grad_bias);
}

// Group `number` of `count` equal ones.
void cut_heads(int64_t number, int64_t count, AttentionBackward* backward) {
  for (Tensor* const each :
       {&backward->query, &backward->key, &backward->value, &backward->visible, &backward->out,
        &backward->lse, &backward->grad_out, &backward->grad_lse, &backward->grad_query,
        &backward->grad_key, &backward->grad_value}) {
    if (!each->present()) continue;
    each->shape[1] /= count;
    each->data =
        each->as<std::byte>() + number * each->shape[1] * each->stride[1] * size_of(each->dtype);
  }
}

}  // namespace

Status AttentionPlan::make(DevicePointer device, const perseid_attention_desc& desc,
                           std::unique_ptr<const Plan>* plan, const QueryRows& rows,
                           const Arriving& arriving) {
  std::unique_ptr<AttentionPlan> made(
      new AttentionPlan(std::move(device), static_cast<perseid_layout>(desc.layout)));
  AttentionProblem problem;
  if (Status status = read_problem(desc, rows, &made->chunks_, &problem); !status.ok())
    return status;
  problem.arriving_groups = arriving.groups;
  problem.async_backward = arriving.backward;
  problem.chunk_stages = arriving.chunk_stages;
  problem.chunk_traffic = arriving.traffic;
  problem.spared = arriving.spared;
  const bool on_cpu = made->device().gpu == nullptr;
  const dispatch::Determinism determinism = made->device().determinism;
  if (determinism == dispatch::Determinism::kOn) problem.deterministic = true;
  // Those of keys and values may have several orders only where query heads share them.
  const bool any_order =
      problem.grad_query || (problem.group() > 1 && (problem.grad_key || problem.grad_value));
  if (determinism == dispatch::Determinism::kWarn && !on_cpu && any_order && !problem.deterministic)
    log(PERSEID_LOG_WARNING,
        "attention: gradients of this plan may differ in their last bits from run to run; set the "
        "descriptor's deterministic, or PERSEID_DETERMINISM_ON in the context's options");
  if (Status status = made->choose(
          dispatch::attention_implementations(), problem, desc.implementation, describe(problem),
          {.forward = problem.q_len == 0,
           .backward = on_cpu && (problem.q_len == 0 || problem.kv_len == 0)});
      !status.ok())
    return status;
  *plan = std::move(made);
  return {};
}

Status AttentionPlan::check_forward(const perseid_attention_forward_args& args,
                                    const Workspace& workspace) const {
  AttentionForward forward;
  if (Status status = read_lengths(kForward, PlanOf::problem(), layout_, args.query, args.key,
                                   &forward.lengths);
      !status.ok())
    return status;
  const AttentionProblem problem = with_lengths(PlanOf::problem(), forward.lengths);
  AttentionReader reader(kForward, device().dl_device(), problem, layout_);
  read_tensors(reader, args, &forward);
  if (Status status = reader.verify(); !status.ok()) return status;
  std::byte* unused = nullptr;
  return take(reader, dispatch::Direction::kForward, workspace, &unused);
}

Status AttentionPlan::check_backward(const perseid_attention_backward_args& args,
                                     const Workspace& workspace) const {
  AttentionBackward backward;
  if (Status status = read_lengths(kBackward, PlanOf::problem(), layout_, args.query, args.key,
                                   &backward.lengths);
      !status.ok())
    return status;
  const AttentionProblem problem = with_lengths(PlanOf::problem(), backward.lengths);
  AttentionReader reader(kBackward, device().dl_device(), problem, layout_);
  read_tensors(reader, problem, args, &backward);
  if (Status status = reader.verify(); !status.ok()) return status;
  std::byte* unused = nullptr;
  return take(reader, dispatch::Direction::kBackward, workspace, &unused);
}

Status AttentionPlan::forward_timed(const perseid_attention_forward_args& args,
                                    const Workspace& workspace, void* stream,
                                    const ChunkTimers& timers) const {
  AttentionForward forward;
  if (Status status = read_lengths(kForward, PlanOf::problem(), layout_, args.query, args.key,
                                   &forward.lengths);
      !status.ok())
    return status;
  const AttentionProblem problem = with_lengths(PlanOf::problem(), forward.lengths);
  AttentionReader reader(kForward, device().dl_device(), problem, layout_);
  read_tensors(reader, args, &forward);
  forward.arrival_kv = read_arrival(reader, "arrival_kv", args.arrival_kv, problem.chunks_kv);
  forward.arrival_kv.times = timers.cpu;
  forward.arrival_kv.waits = timers.gpu;
  Missing missing;
  forward.missing = &missing;
  if (Status status = reader.finish(); !status.ok()) return status;
  // A GPU writes only that a wait has failed, while it runs.
  write_record(args.arrival_kv, PERSEID_OK, missing);
  if (are_empty(problem, problem.q_len, forward.cu_seqlens_q)) {
    std::byte* unused = nullptr;
    return take(reader, dispatch::Direction::kForward, workspace, &unused);
  }
  Status status = run_forward(reader, forward, workspace, stream);
  if (status.ok())
    for_each_rest(device(), problem, forward, [&](int64_t batch, int64_t begin, int64_t end) {
      fill_zeros(rows_of(problem, forward.out, batch, begin, end));
      if (forward.lse.present())
        fill(rows_of(problem, forward.lse, batch, begin, end),
             -std::numeric_limits<float>::infinity());
    });
  if (missing.end != WaitEnd::kArrived) write_record(args.arrival_kv, status.code(), missing);
  return status;
}

Status AttentionPlan::backward(const perseid_attention_backward_args& args,
                               const Workspace& workspace, void* stream, const Streams& streams,
                               const HeadGroup& heads) const {
  AttentionBackward backward;
  if (Status status = read_lengths(kBackward, PlanOf::problem(), layout_, args.query, args.key,
                                   &backward.lengths);
      !status.ok())
    return status;
  const AttentionProblem problem = with_lengths(PlanOf::problem(), backward.lengths);
  AttentionReader reader(kBackward, device().dl_device(), problem, layout_);
  backward.arrival_kv = streams.arrival;
  backward.departure_kv = streams.departure;
  read_tensors(reader, problem, args, &backward);
  if (Status status = reader.finish(); !status.ok()) return status;
  if (heads.plan != nullptr) {
    cut_heads(heads.number, heads.count, &backward);
    return heads.plan->run_backward(reader, backward, workspace, stream);
  }
  const bool no_queries = are_empty(problem, problem.q_len, backward.cu_seqlens_q);
  const bool no_keys = are_empty(problem, problem.kv_len, backward.cu_seqlens_kv);
  if ((no_queries || no_keys) && device().gpu == nullptr) {
    std::byte* unused = nullptr;
    Status status = take(reader, dispatch::Direction::kBackward, workspace, &unused);
    if (status.ok()) fill_zeros(problem, backward);
    return status;
  }
  Status status = run_backward(reader, backward, workspace, stream);
  if (status.ok() && !problem.accumulate_query)
    for_each_rest(device(), problem, backward, [&](int64_t batch, int64_t begin, int64_t end) {
      fill_zeros(rows_of(problem, backward.grad_query, batch, begin, end));
    });
  return status;
}

}  // namespace perseid::internal::op
