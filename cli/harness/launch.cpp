// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/launch.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace perseid::harness {
namespace {

template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}

const char* implementation_of(const Problem& problem) {
  return problem.impl.empty() ? nullptr : problem.impl.c_str();
}

perseid_status plan_softmax(const Context& context, const Problem& p, perseid_plan_t* plan) {
  auto desc = sized<perseid_softmax_desc>();
  desc.kind = p.log ? PERSEID_LOG_SOFTMAX : PERSEID_SOFTMAX;
  desc.dtype = p.dtype.value;
  desc.out_dtype = p.output_dtype.value;
  desc.ndim = static_cast<int32_t>(p.shape.size());
  desc.dim = static_cast<int32_t>(p.dim);
  std::copy_n(p.shape.begin(), std::min<size_t>(p.shape.size(), PERSEID_MAX_DIMS), desc.shape);
  desc.scale = p.scale;
  desc.visible = !p.visible.empty();
  desc.empty_rows = p.empty_rows.value;
  desc.implementation = implementation_of(p);
  return perseid_softmax_plan_create(context.get(), &desc, plan);
}

}  // namespace

perseid_attention_desc attention_desc(const Problem& p) {
  auto desc = sized<perseid_attention_desc>();
  desc.dtype = p.dtype.value;
  desc.layout = p.layout.value;
  desc.causal = p.causal.value;
  desc.batch = p.batch;
  desc.heads = p.heads;
  desc.kv_heads = p.kv_heads;
  // Where ragged, the plan may have more packed rows.
  const int64_t q_len = p.longest_q(), kv_len = p.longest_kv();
  const int64_t most_q = p.max_q_len == 0 ? q_len : std::max(q_len, p.max_q_len);
  const int64_t most_kv = p.max_kv_len == 0 ? kv_len : std::max(kv_len, p.max_kv_len);
  desc.max_lengths = p.max_q_len != 0 || p.max_kv_len != 0;
  desc.q_len = p.ragged() ? q_len : most_q;
  desc.kv_len = p.ragged() ? kv_len : most_kv;
  desc.head_dim = p.head_dim;
  desc.value_dim = p.value_dim;
  desc.scale = p.scale;
  desc.dropout = p.dropout;
  desc.window = !p.window.empty();
  desc.visible = !p.visible.empty();
  desc.window_left = p.window.empty() ? 0 : p.window[0];
  desc.window_right = p.window.size() < 2 ? 0 : p.window[1];
  if (!p.bias.empty()) {
    const Shape shape = in_four_dims(p.bias);
    desc.bias = 1;
    desc.bias_dtype = p.bias_dtype.value;
    std::copy_n(shape.begin(), 4, desc.bias_shape);
    if (shape[2] == q_len && q_len != 1) desc.bias_shape[2] = desc.q_len;
    if (shape[3] == kv_len && kv_len != 1) desc.bias_shape[3] = desc.kv_len;
  }
  desc.ragged = p.ragged();
  desc.q_lens = !p.q_lens.empty();
  desc.kv_lens = !p.kv_lens.empty();
  desc.kv_starts = !p.kv_starts.empty();
  desc.kv_batch = p.kv_batch;
  desc.window_bottom_right = p.window_bottom_right;
  desc.num_splits = static_cast<uint32_t>(p.num_splits);
  desc.total_q = p.rows_q() + (p.ragged() ? most_q - q_len : 0);
  desc.total_kv = p.rows_kv() + (p.ragged() ? most_kv - kv_len : 0);
  desc.gradients = p.wanted_gradients();
  desc.deterministic = p.deterministic;
  desc.implementation = implementation_of(p);
  desc.zero_batch = p.batch == 0;
  return desc;
}

namespace {

perseid_status plan_attention(const Context& context, const Problem& p, perseid_plan_t* plan) {
  const perseid_attention_desc desc = attention_desc(p);
  return perseid_attention_plan_create(context.get(), &desc, plan);
}

perseid_status plan_matmul(const Context& context, const Problem& p, perseid_plan_t* plan) {
  auto desc = sized<perseid_matmul_desc>();
  desc.dtype = p.dtype.value;
  desc.out_dtype = p.output_dtype.value;
  desc.bias = !p.bias.empty();
  desc.batch = p.batch;
  desc.m = p.m;
  desc.n = p.n;
  desc.k = p.k;
  desc.alpha = p.alpha;
  desc.beta = p.beta;
  desc.b_dtype = p.b_dtype.value;
  desc.scaling = p.scaling.value;
  desc.accumulation = p.accumulation.value;
  desc.precision = p.precision.value;
  desc.scale_result = p.scale_result;
  desc.activation = p.activation.value;
  desc.amax = p.amax;
  desc.implementation = implementation_of(p);
  desc.zero_alpha = p.alpha == 0;
  desc.zero_batch = p.batch == 0;
  return perseid_matmul_plan_create(context.get(), &desc, plan);
}

}  // namespace

std::string unsayable(const Problem& p) {
  if (p.op == Op::kSoftmax && p.dim != static_cast<int32_t>(p.dim))
    return "--dim must be from -8 to 7, got " + std::to_string(p.dim);
  if (p.op == Op::kAttention) {
    if (!p.window.empty() && p.window.size() != 2)
      return "--window is LEFT,RIGHT: two numbers, got " + std::to_string(p.window.size());
    if (p.num_splits < 0 || p.num_splits > std::numeric_limits<uint32_t>::max())
      return "--num-splits must be from 0 to 4294967295, got " + std::to_string(p.num_splits);
    if (p.kv_batch == 0 && !p.kv_index.empty())
      return "--kv-index is given without --kv-batch, the entries of key and value that it picks "
             "from; give both";
    if (p.bias.size() > 4 || p.visible.size() > 4)
      return "--bias and --visible broadcast against [batch, heads, q_len, kv_len]: give at most 4 "
             "dimensions, got " +
             to_text(p.bias.size() > 4 ? p.bias : p.visible);
    const auto entries = static_cast<size_t>(p.batch + 1);
    if (p.batch >= 0 && p.ragged() &&
        (p.cu_seqlens_q.size() != entries ||
         (p.cu_seqlens_kv.size() != entries && p.kv_starts.empty())))
      return "--cu-seqlens-q and --cu-seqlens-kv have one number more than --batch says sequences: "
             "expected " +
             std::to_string(entries) + ", got " + std::to_string(p.cu_seqlens_q.size()) + " and " +
             std::to_string(p.cu_seqlens_kv.size());
    for (const auto& [name, numbers] :
         {std::pair{"--q-lens", &p.q_lens}, std::pair{"--kv-lens", &p.kv_lens},
          std::pair{"--kv-starts", &p.kv_starts}, std::pair{"--kv-index", &p.kv_index}})
      if (p.batch >= 0 && !numbers->empty() && numbers->size() + 1 != entries)
        return std::string(name) + " has one number for each of --batch sequences: expected " +
               std::to_string(p.batch) + ", got " + std::to_string(numbers->size());
  }
  return "";
}

namespace {

// Whether a call has such a tensor among its arguments.
bool takes(const Problem& problem, Direction direction, std::string_view name) {
  if (direction == Direction::kForward) return !name.starts_with("grad_");
  return problem.op != Op::kSoftmax || (name != "input" && name != "lse");
}

}  // namespace

bool fault_needs_workspace(const Problem& problem, perseid_plan_t plan) {
  if (!problem.fault.starts_with("workspace-")) return false;
  const size_t colon = problem.fault.find(':');
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    if (direction == Direction::kBackward && !problem.has_backward()) continue;
    if (colon != std::string::npos && !takes(problem, direction, problem.fault.substr(colon + 1)))
      continue;
    size_t bytes = 0;
    detail::check(
        perseid_plan_workspace_size(plan, static_cast<perseid_direction>(direction), &bytes));
    if (bytes > 0) return false;
  }
  return true;
}

Outcome outcome_of(perseid_status status) {
  return {status, status == PERSEID_OK ? "" : perseid_last_error()};
}

Outcome make_plan(const Context& context, const Problem& problem, PlanHandle& plan) {
  plan.reset();
  if (const std::string sentence = unsayable(problem); !sentence.empty())
    return {PERSEID_INVALID_ARGUMENT, sentence};
  perseid_plan_t handle = nullptr;
  perseid_status status = PERSEID_OK;
  switch (problem.op) {
    case Op::kSoftmax:
      status = plan_softmax(context, problem, &handle);
      break;
    case Op::kAttention:
      status = plan_attention(context, problem, &handle);
      break;
    case Op::kMatmul:
      status = plan_matmul(context, problem, &handle);
      break;
    case Op::kDropoutMask:
      break;
  }
  plan.reset(handle);
  return outcome_of(status);
}

std::vector<std::string> implementations_of(perseid_plan_t plan) {
  const char* text = nullptr;
  detail::check(perseid_plan_explain_json(plan, &text));
  const nlohmann::json explained = nlohmann::json::parse(text);
  std::vector<std::string> names;
  for (const auto& entry : explained.at("implementations")) {
    if (entry.at("verdict") != "refused") names.push_back(entry.at("name").get<std::string>());
  }
  return names;
}

Call::Call(const Context& context, perseid_plan_t plan, const Problem& problem, Direction direction,
           const Operands& operands)
    : context_(context),
      plan_(plan),
      placement_(context),
      op_(problem.op),
      direction_(direction),
      rng_{problem.seed, problem.offset},
      dropout_(problem.dropout) {
  for (const OperandSpec& spec : operands_of(problem)) {
    const Array& array = *operands.find(spec.name);
    Tensor tensor = placement_.place(array.tensor(), array.bytes());
    const std::string_view name = spec.name;
    if ((name == "a" && problem.transpose_a) || (name == "b" && problem.transpose_b))
      tensor = tensor.transposed();
    add_view(spec.name, tensor);
  }
  if (plan != nullptr) add_workspace(problem);
  set_arguments(problem);
  apply_fault(problem);
}

void Call::add_workspace(const Problem& problem) {
  detail::check(perseid_plan_workspace_size(plan_, static_cast<perseid_direction>(direction_),
                                            &workspace_bytes_));
  workspace_.emplace(u8, Shape{static_cast<int64_t>(workspace_bytes_)}, Strides::kPacked,
                     problem.misalign);
  if (workspace_bytes_ > 0)
    workspace_data_ = placement_.place(workspace_->tensor(), workspace_->bytes()).data();
}

void Call::add_view(const char* name, const Tensor& tensor) {
  View& added = views_.emplace_back();
  added.name = name;
  added.tensor = *tensor.dl();
  const auto rank = static_cast<size_t>(tensor.ndim());
  std::copy_n(tensor.dl()->shape, rank, added.shape.begin());
  std::copy_n(tensor.dl()->strides, rank, added.strides.begin());
  added.tensor.shape = added.shape.data();
  added.tensor.strides = added.strides.data();
}

const DLTensor* Call::view(const char* name) {
  for (View& each : views_) {
    if (each.name == name) return &each.tensor;
  }
  return nullptr;
}

template <class Args>
void Call::set_attention_inputs(const Problem& problem, Args& args) {
  args = sized<Args>();
  args.query = view("query");
  args.key = view("key");
  args.value = view("value");
  args.bias = view("bias");
  args.visible = view("visible");
  args.cu_seqlens_q = view("cu_seqlens_q");
  args.cu_seqlens_kv = view("cu_seqlens_kv");
  args.q_lens = view("q_lens");
  args.kv_lens = view("kv_lens");
  args.out = view("out");
  args.lse = view("lse");
  // Both ways of giving the seed.
  if (random_bits(problem.data_seed, 5) % 2 == 0 && problem.offset >> 32 == 0) {
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span<uint64_t>(rng_));
    const Tensor numbers = placement_.place(Tensor(rng_.data(), i64, {2}), bytes);
    args.rng = static_cast<const uint64_t*>(numbers.dl()->data);
  } else {
    args.seed = problem.seed;
    args.offset = problem.offset;
  }
}

void Call::set_arguments(const Problem& problem) {
  softmax_forward_ = sized<perseid_softmax_forward_args>();
  softmax_forward_.input = view("input");
  softmax_forward_.output = view("output");
  softmax_forward_.visible = view("visible");
  softmax_forward_.lse = view("lse");
  softmax_backward_ = sized<perseid_softmax_backward_args>();
  softmax_backward_.grad_output = view("grad_output");
  softmax_backward_.output = view("output");
  softmax_backward_.visible = view("visible");
  softmax_backward_.grad_input = view("grad_input");
  set_attention_inputs(problem, attention_forward_);
  set_attention_inputs(problem, attention_backward_);
  attention_forward_.kv_starts = view("kv_starts");
  attention_forward_.kv_index = view("kv_index");
  attention_backward_.grad_out = view("grad_out");
  attention_backward_.grad_lse = view("grad_lse");
  attention_backward_.grad_query = view("grad_query");
  attention_backward_.grad_key = view("grad_key");
  attention_backward_.grad_value = view("grad_value");
  attention_backward_.grad_bias = view("grad_bias");
  matmul_ = sized<perseid_matmul_args>();
  matmul_.a = view("a");
  matmul_.b = view("b");
  matmul_.c0 = view("c0");
  matmul_.bias = view("bias");
  matmul_.c = view("c");
  matmul_.scale_a = view("scale_a");
  matmul_.scale_b = view("scale_b");
  matmul_.scale_result = view("scale_result");
  matmul_.amax = view("amax");
}

void Call::apply_fault(const Problem& problem) {
  if (problem.fault.empty()) return;
  const size_t colon = problem.fault.find(':');
  const std::string kind = problem.fault.substr(0, colon);
  if (kind == "workspace-short" && workspace_bytes_ > 0) --workspace_bytes_;
  if (kind == "workspace-null") workspace_data_ = nullptr;
  if (kind == "args-null") null_arguments_ = true;
  if (kind == "struct-size") {
    softmax_forward_.struct_size = softmax_backward_.struct_size = 4;
    attention_forward_.struct_size = attention_backward_.struct_size = 4;
    matmul_.struct_size = 4;
  }
  if (colon == std::string::npos) return;
  const auto named = std::find_if(views_.begin(), views_.end(), [&](const View& each) {
    return each.name == problem.fault.substr(colon + 1);
  });
  if (named == views_.end()) return;
  DLTensor& tensor = named->tensor;
  const auto rank = static_cast<size_t>(tensor.ndim);
  if (kind == "null") {
    tensor.data = nullptr;
    tensor.byte_offset = 0;
  } else if (kind == "dtype") {
    tensor.dtype = {kDLComplex, 64, 1};
  } else if (kind == "dims") {
    --tensor.ndim;
  } else if (kind == "shape") {
    ++named->shape[rank - 1];
  } else if (kind == "device") {
    tensor.device = {placement_.on_host() ? kDLCUDA : kDLCPU, 0};
  } else if (kind == "workspace-overlap") {
    if (workspace_bytes_ > 0 && takes(problem, direction_, named->name))
      workspace_data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  } else if (kind == "overlap") {
    std::fill_n(named->strides.begin(), rank, 0);
  }
}

perseid_status Call::execute() const {
  const bool forward = direction_ == Direction::kForward;
  const auto given = [&](const auto& args) { return null_arguments_ ? nullptr : &args; };
  switch (op_) {
    case Op::kSoftmax:
      return forward ? perseid_softmax_forward(plan_, given(softmax_forward_), workspace_data_,
                                               workspace_bytes_, nullptr)
                     : perseid_softmax_backward(plan_, given(softmax_backward_), workspace_data_,
                                                workspace_bytes_, nullptr);
    case Op::kAttention:
      return forward ? perseid_attention_forward(plan_, given(attention_forward_), workspace_data_,
                                                 workspace_bytes_, nullptr)
                     : perseid_attention_backward(plan_, given(attention_backward_),
                                                  workspace_data_, workspace_bytes_, nullptr);
    case Op::kMatmul:
      return perseid_matmul_execute(plan_, given(matmul_), workspace_data_, workspace_bytes_,
                                    nullptr);
    case Op::kDropoutMask:
      break;
  }
  return perseid_fill_dropout_mask(context_.get(), dropout_, rng_[0], rng_[1],
                                   null_arguments_ ? nullptr : &views_.front().tensor, nullptr);
}

Outcome Call::finish() const {
  const Outcome outcome = outcome_of(perseid_stream_synchronize(context_.get(), nullptr));
  if (outcome.ok()) placement_.fetch();
  return outcome;
}

}  // namespace perseid::harness
