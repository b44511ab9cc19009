// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which tensors a problem has, of which shapes, and which keys a query sees. Lengths and gradients
// that a problem leaves open.
#include <algorithm>

#include "harness/data.hpp"

namespace perseid::harness {
namespace {

DType index_type(const Problem& problem) { return problem.index_dtype.value == 0 ? i32 : i64; }
DType mask_type(const Problem& problem) { return problem.mask_dtype.value == 0 ? boolean : u8; }
DType lse_type(bool in_f64) { return in_f64 ? f64 : f32; }

void softmax_operands(const Problem& p, std::vector<OperandSpec>& specs) {
  Shape reduced = p.shape;
  const auto rank = static_cast<int64_t>(p.shape.size());
  const int64_t dim = p.dim < 0 ? p.dim + rank : p.dim;
  if (dim >= 0 && dim < rank) reduced[static_cast<size_t>(dim)] = 1;
  specs.push_back({"input", p.type(), p.shape});
  specs.push_back({"output", p.result_type(), p.shape, true});
  if (!p.visible.empty()) specs.push_back({"visible", mask_type(p), p.visible});
  if (p.lse)
    specs.push_back({"lse", lse_type(p.type() == f64 || p.result_type() == f64), reduced, true});
  if (!p.backward) return;
  specs.push_back({"grad_output", p.result_type(), p.shape, false, true});
  specs.push_back({"grad_input", p.type(), p.shape, true, true});
}

void attention_operands(const Problem& p, std::vector<OperandSpec>& specs) {
  const auto laid_out = [&](int64_t batch, int64_t length, int64_t rows, int64_t heads,
                            int64_t dim) {
    const bool sequence_first = p.layout.value == PERSEID_BSHD;
    const int64_t sequence = p.ragged() ? rows : length;
    Shape shape = sequence_first ? Shape{sequence, heads, dim} : Shape{heads, sequence, dim};
    if (!p.ragged()) shape.insert(shape.begin(), batch);
    return shape;
  };
  const Shape query = laid_out(p.batch, p.longest_q(), p.rows_q(), p.heads, p.head_dim);
  const auto of_keys = [&](int64_t dim) {
    return laid_out(p.key_entries(), p.longest_kv(), p.rows_kv(), p.key_heads(), dim);
  };
  const Shape key = of_keys(p.head_dim), value = of_keys(p.value_size());
  const Shape out = laid_out(p.batch, p.longest_q(), p.rows_q(), p.heads, p.value_size());
  const Shape lse =
      p.ragged() ? Shape{p.heads, p.rows_q()} : Shape{p.batch, p.heads, p.longest_q()};
  const DType bias_type =
      p.bias_dtype.value == 0 ? p.type() : static_cast<DType>(p.bias_dtype.value);
  const uint32_t gradients = p.wanted_gradients();

  specs.push_back({"query", p.type(), query});
  specs.push_back({"key", p.type(), key});
  specs.push_back({"value", p.type(), value});
  if (!p.bias.empty()) specs.push_back({"bias", bias_type, in_four_dims(p.bias)});
  if (!p.visible.empty()) specs.push_back({"visible", mask_type(p), in_four_dims(p.visible)});
  const auto lengths = [&](const char* name, const Shape& values) {
    if (!values.empty())
      specs.push_back({name, index_type(p), {static_cast<int64_t>(values.size())}});
  };
  lengths("cu_seqlens_q", p.cu_seqlens_q);
  lengths("cu_seqlens_kv", p.cu_seqlens_kv);
  lengths("q_lens", p.q_lens);
  lengths("kv_lens", p.kv_lens);
  lengths("kv_starts", p.kv_starts);
  if (p.kv_batch != 0)
    specs.push_back({"kv_index", index_type(p), {static_cast<int64_t>(p.kv_index.size())}});
  specs.push_back({"out", p.type(), out, true});
  if (p.lse || gradients != 0) specs.push_back({"lse", lse_type(p.type() == f64), lse, true});
  if (gradients == 0) return;
  specs.push_back({"grad_out", p.type(), out, false, true});
  if (p.grad_lse) specs.push_back({"grad_lse", lse_type(p.type() == f64), lse, false, true});
  if ((gradients & PERSEID_GRAD_QUERY) != 0)
    specs.push_back({"grad_query", p.type(), query, true, true});
  if ((gradients & PERSEID_GRAD_KEY) != 0) specs.push_back({"grad_key", p.type(), key, true, true});
  if ((gradients & PERSEID_GRAD_VALUE) != 0)
    specs.push_back({"grad_value", p.type(), value, true, true});
  if ((gradients & PERSEID_GRAD_BIAS) != 0 && !p.bias.empty())
    specs.push_back({"grad_bias", bias_type, in_four_dims(p.bias), true, true});
}

// Operands that lie transposed have the shape they are stored in.
void matmul_operands(const Problem& p, std::vector<OperandSpec>& specs) {
  const auto batched = [&](bool shared, int64_t rows, int64_t columns) {
    return shared ? Shape{rows, columns} : Shape{p.batch, rows, columns};
  };
  specs.push_back({"a", p.type(),
                   p.transpose_a ? batched(p.shared_a, p.k, p.m) : batched(p.shared_a, p.m, p.k)});
  specs.push_back({"b", p.type_of_b(),
                   p.transpose_b ? batched(p.shared_b, p.n, p.k) : batched(p.shared_b, p.k, p.n)});
  if (p.beta != 0) specs.push_back({"c0", p.result_type(), {p.batch, p.m, p.n}});
  if (!p.bias.empty()) {
    specs.push_back({"bias", p.type_of_bias(), p.bias});
  }
  const int64_t parts = (p.k + 127) / 128, blocks = (p.n + 127) / 128;
  switch (p.scaling.value) {
    case PERSEID_SCALE_TENSOR:
      specs.push_back({"scale_a", f32, {1}});
      specs.push_back({"scale_b", f32, {1}});
      break;
    case PERSEID_SCALE_ROW:
      specs.push_back({"scale_a", f32, p.shared_a ? Shape{p.m} : Shape{p.batch, p.m}});
      specs.push_back({"scale_b", f32, p.shared_b ? Shape{p.n} : Shape{p.batch, p.n}});
      break;
    case PERSEID_SCALE_BLOCK:
      specs.push_back({"scale_a", f32, batched(p.shared_a, p.m, parts)});
      specs.push_back({"scale_b", f32, batched(p.shared_b, parts, blocks)});
      break;
    default:
      break;
  }
  if (p.scale_result) specs.push_back({"scale_result", f32, {1}});
  specs.push_back({"c", p.result_type(), {p.batch, p.m, p.n}, true});
  if (p.amax) specs.push_back({"amax", p.type() == f64 ? f64 : f32, {1}, true});
}

int64_t longest(const Shape& cumulative) {
  int64_t most = 0;
  for (size_t i = 1; i < cumulative.size(); ++i) {
    int64_t length = 0;
    if (!__builtin_sub_overflow(cumulative[i], cumulative[i - 1], &length))
      most = std::max(most, length);
  }
  return most;
}

// A plan wants a row where a sequence may have one, even if none does.
int64_t needed_rows(int64_t total, const Shape& cumulative, int64_t longest) {
  if (total != 0 || cumulative.empty()) return total;
  return cumulative.back() == 0 && longest > 0 ? 1 : cumulative.back();
}

}  // namespace

const char* name_of(Op op) {
  switch (op) {
    case Op::kSoftmax:
      return "softmax";
    case Op::kAttention:
      return "attention";
    case Op::kMatmul:
      return "matmul";
    case Op::kDropoutMask:
      break;
  }
  return "dropout-mask";
}

int64_t Problem::longest_q() const { return q_len != 0 ? q_len : longest(cu_seqlens_q); }
int64_t Problem::longest_kv() const {
  if (kv_len != 0 || kv_starts.empty() || kv_lens.empty())
    return kv_len != 0 ? kv_len : longest(cu_seqlens_kv);
  return std::max<int64_t>(*std::max_element(kv_lens.begin(), kv_lens.end()), 0);
}
int64_t Problem::rows_q() const { return needed_rows(total_q, cu_seqlens_q, longest_q()); }
int64_t Problem::rows_kv() const {
  if (kv_starts.empty()) return needed_rows(total_kv, cu_seqlens_kv, longest_kv());
  int64_t rows = std::max<int64_t>(total_kv, 1);
  for (size_t b = 0; total_kv == 0 && b < std::min(kv_starts.size(), kv_lens.size()); ++b)
    rows = std::max(rows, kv_starts[b] + kv_lens[b]);
  return rows;
}
uint32_t Problem::wanted_gradients() const {
  if (op != Op::kAttention || gradients.bits != 0 || !backward) return gradients.bits;
  const uint32_t all = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  return bias.empty() ? all : all | PERSEID_GRAD_BIAS;
}
bool Problem::has_backward() const {
  return op == Op::kAttention ? wanted_gradients() != 0 : op == Op::kSoftmax && backward;
}

std::vector<OperandSpec> operands_of(const Problem& p) {
  std::vector<OperandSpec> specs;
  switch (p.op) {
    case Op::kSoftmax:
      softmax_operands(p, specs);
      break;
    case Op::kAttention:
      attention_operands(p, specs);
      break;
    case Op::kMatmul:
      matmul_operands(p, specs);
      break;
    case Op::kDropoutMask:
      specs.push_back({"mask", mask_type(p), {p.batch, p.heads, p.q_len, p.kv_len}, true});
      break;
  }
  for (const OperandSpec& spec : specs) {
    if (size_of(spec.dtype) == 0 || spec.shape.size() > PERSEID_MAX_DIMS ||
        std::any_of(spec.shape.begin(), spec.shape.end(), [](int64_t e) { return e < 0; }))
      return {};
  }
  return specs;
}

Span span_of(const Problem& problem, int64_t batch) {
  Span span{0, problem.longest_q(), 0, problem.longest_kv(), 0, batch};
  const auto b = static_cast<size_t>(batch);
  if (problem.ragged()) {
    span.q_begin = problem.cu_seqlens_q[b];
    span.q_len = problem.cu_seqlens_q[b + 1] - span.q_begin;
    if (problem.kv_starts.empty()) {
      span.kv_begin = problem.cu_seqlens_kv[b];
      span.kv_len = problem.cu_seqlens_kv[b + 1] - span.kv_begin;
    } else {
      span.kv_begin = problem.kv_starts[b];
    }
  }
  span.q_rows = span.q_len;
  if (!problem.q_lens.empty()) span.q_len = std::min(span.q_len, problem.q_lens[b]);
  if (!problem.kv_index.empty()) span.kv_entry = problem.kv_index[b];
  if (!problem.kv_lens.empty()) span.kv_len = std::min(span.kv_len, problem.kv_lens[b]);
  return span;
}

bool lengths_fit(const Problem& problem) {
  const auto entries = static_cast<size_t>(problem.batch);
  const auto cumulative = [&](const Shape& lengths, int64_t most, int64_t total) {
    if (lengths.size() != entries + 1 || lengths.front() != 0 || lengths.back() > total)
      return false;
    for (size_t i = 0; i < entries; ++i) {
      if (lengths[i + 1] < lengths[i] || lengths[i + 1] - lengths[i] > most) return false;
    }
    return true;
  };
  if (problem.ragged() &&
      !(cumulative(problem.cu_seqlens_q, problem.longest_q(), problem.rows_q()) &&
        (!problem.kv_starts.empty() || problem.batch == 0 ||
         cumulative(problem.cu_seqlens_kv, problem.longest_kv(), problem.rows_kv()))))
    return false;
  const auto within = [&](const Shape& numbers, int64_t most) {
    return numbers.empty() || (numbers.size() == entries &&
                               std::all_of(numbers.begin(), numbers.end(), [&](int64_t number) {
                                 return number >= 0 && number <= most;
                               }));
  };
  if (!within(problem.q_lens, problem.longest_q()) ||
      !within(problem.kv_lens, problem.longest_kv()) ||
      !within(problem.kv_index, problem.kv_batch - 1) ||
      !within(problem.kv_starts, problem.rows_kv()))
    return false;
  for (size_t b = 0; b < problem.kv_starts.size(); ++b)
    if (problem.kv_starts[b] + problem.kv_lens[b] > problem.rows_kv()) return false;
  return true;
}

bool sees(const Problem& problem, const Span& span, int64_t row, int64_t column) {
  const bool bottom_right =
      problem.causal.value == PERSEID_CAUSAL_BOTTOM_RIGHT || problem.window_bottom_right;
  const int64_t position = row + (bottom_right ? span.kv_len - span.q_len : 0);
  if (problem.causal.value != PERSEID_CAUSAL_NONE && column > position) return false;
  if (problem.window.size() == 2) {
    if (problem.window[0] >= 0 && position - column > problem.window[0]) return false;
    if (problem.window[1] >= 0 && column - position > problem.window[1]) return false;
  }
  return column < span.kv_len;
}

Shape in_four_dims(Shape shape) {
  if (shape.size() < 4) shape.insert(shape.begin(), 4 - shape.size(), 1);
  return shape;
}

int64_t broadcast_index(const Shape& shape, int64_t batch, int64_t head, int64_t row,
                        int64_t column) {
  const int64_t position[4] = {batch, head, row, column};
  int64_t index = 0;
  for (size_t i = 0; i < shape.size(); ++i)
    index = index * shape[i] + (shape[i] == 1 ? 0 : position[i]);
  return index;
}

}  // namespace perseid::harness
