// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What makes a random problem wrong.
#include <limits>
#include <string_view>

#include "harness/fuzz_dice.hpp"

namespace perseid::harness {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;

using Spoil = void (*)(Problem&);

void spoil_descriptor(Dice& dice, Problem& p) {
  static const std::initializer_list<Spoil> softmax_ways = {
      [](Problem& q) { q.dtype.value = 9; },
      [](Problem& q) { q.output_dtype.value = 77; },
      [](Problem& q) { q.dim = static_cast<int64_t>(q.shape.size()); },
      [](Problem& q) { q.dim = -99; },
      [](Problem& q) { q.shape[0] = -1; },
      [](Problem& q) { q.shape.assign(3, kHuge); },
      [](Problem& q) { q.shape.clear(); },
      [](Problem& q) { q.shape.assign(PERSEID_MAX_DIMS + 1, 1); },
      [](Problem& q) { q.scale = std::numeric_limits<double>::quiet_NaN(); },
      [](Problem& q) { q.empty_rows.value = 5; },
      [](Problem& q) { q.impl = "cpu:no-such-thing"; },
  };
  static const std::initializer_list<Spoil> attention_ways = {
      [](Problem& q) { q.dtype.value = 0; },
      [](Problem& q) { q.dtype.value = 200; },
      [](Problem& q) { q.layout.value = 7; },
      [](Problem& q) { q.causal.value = 3; },
      [](Problem& q) { q.batch = -1; },
      [](Problem& q) { q.heads = 0; },
      [](Problem& q) { q.heads = 5, q.kv_heads = 2; },
      [](Problem& q) { q.kv_heads = -2; },
      [](Problem& q) { q.head_dim = -4; },
      [](Problem& q) { q.value_dim = -1; },
      [](Problem& q) { q.q_len = -1; },
      [](Problem& q) { q.q_len = kHuge, q.head_dim = kHuge; },
      [](Problem& q) { q.scale = std::numeric_limits<double>::infinity(); },
      [](Problem& q) { q.dropout = 1; },
      [](Problem& q) { q.dropout = -0.1; },
      [](Problem& q) { q.dropout = std::numeric_limits<double>::quiet_NaN(); },
      [](Problem& q) {
        q.window = {-2, 0};
      },
      [](Problem& q) {
        q.bias = {q.batch + 2, 1, 1, 1};
      },
      [](Problem& q) {
        q.bias = {1, 1, 1, 1}, q.bias_dtype.value = 6;
      },
      [](Problem& q) { q.gradients.bits = 16; },
      [](Problem& q) { q.window_bottom_right = true, q.causal.value = PERSEID_CAUSAL_TOP_LEFT; },
      [](Problem& q) { q.kv_batch = q.batch + 1, q.backward = true; },
      [](Problem& q) { q.gradients.bits = PERSEID_GRAD_BIAS, q.bias.clear(); },
      [](Problem& q) { q.impl = "cuda:no-such-thing"; },
  };
  static const std::initializer_list<Spoil> matmul_ways = {
      [](Problem& q) { q.dtype.value = 7; },
      [](Problem& q) { q.b_dtype.value = is_float8(q.type()) ? PERSEID_BF16 : PERSEID_F8E4M3; },
      [](Problem& q) { q.scaling.value = is_float8(q.type()) ? 4 : 1; },
      [](Problem& q) { q.accumulation.value = is_float8(q.type()) ? 2 : 1; },
      [](Problem& q) { q.activation.value = 4; },
      [](Problem& q) {
        q.scale_result = true, q.output_dtype.value = is_float8(q.type()) ? PERSEID_BF16 : 0;
      },
      [](Problem& q) { q.output_dtype.value = q.type() == f64 ? PERSEID_F32 : PERSEID_F64; },
      [](Problem& q) { q.m = -1; },
      [](Problem& q) { q.n = -7; },
      [](Problem& q) { q.k = -1; },
      [](Problem& q) { q.batch = -1; },
      [](Problem& q) { q.m = q.n = q.k = kHuge; },
      [](Problem& q) { q.alpha = std::numeric_limits<double>::quiet_NaN(); },
      [](Problem& q) { q.impl = "none"; },
  };
  static const std::initializer_list<Spoil> mask_ways = {
      [](Problem& q) { q.dropout = 1; },
      [](Problem& q) { q.dropout = -1; },
      [](Problem& q) { q.dropout = std::numeric_limits<double>::quiet_NaN(); },
      [](Problem& q) { q.offset = uint64_t{1} << 32; },
  };
  const auto& ways = p.op == Op::kSoftmax     ? softmax_ways
                     : p.op == Op::kAttention ? attention_ways
                     : p.op == Op::kMatmul    ? matmul_ways
                                              : mask_ways;
  dice.pick(ways)(p);
}

void spoil_call(Dice& dice, Problem& p) {
  // Faults need elements: an empty tensor may be NULL, and its strides say nothing.
  for (const OperandSpec& spec : operands_of(p)) {
    if (elements_of(spec.shape) == 0) return spoil_descriptor(dice, p);
  }
  if (p.op == Op::kAttention && dice.one_in(4)) {
    const bool ragged = p.ragged();
    if (ragged && p.batch > 0) {
      p.values.value = 0;
      switch (dice.between(0, 2)) {
        case 0:
          p.cu_seqlens_q.front() = 1;
          return;
        case 1:
          if (!p.kv_starts.empty()) {
            p.kv_starts.back() = dice.pick<int64_t>({-1, p.total_kv - p.kv_lens.back() + 1});
            return;
          }
          p.cu_seqlens_kv.back() = p.rows_kv() + 1;
          p.total_kv = p.rows_kv() - 1;
          return;
        default:
          p.cu_seqlens_q[1] = -1;
          return;
      }
    }
    if (!p.q_lens.empty() && dice.one_in(2)) {
      p.values.value = 0;
      p.q_lens.back() = dice.pick<int64_t>({-1, p.longest_q() + 1});
      return;
    }
    if (!p.kv_index.empty()) {
      p.values.value = 0;
      p.kv_index.back() = dice.pick<int64_t>({-1, p.kv_batch});
      return;
    }
    if (!p.kv_lens.empty()) {
      p.values.value = 0;
      p.kv_lens.back() = dice.pick<int64_t>({-1, p.longest_kv() + 1});
      return;
    }
  }
  if (dice.one_in(5)) {
    p.fault = dice.pick({"struct-size", "args-null"});
    if (p.op != Op::kDropoutMask) return;
    p.fault = "args-null";
    return;
  }
  const std::vector<OperandSpec> specs = operands_of(p);
  const OperandSpec& spec = specs[dice.bits() % specs.size()];
  std::string kind =
      dice.pick({"null", "dtype", "dims", "shape", "device", "overlap", "workspace-overlap"});
  if (kind == "workspace-overlap" && p.op == Op::kDropoutMask) kind = "dtype";
  // Repeated elements are wrong in a result alone, and only where there are more than one.
  if (kind == "overlap" && (!spec.output || elements_of(spec.shape) < 2)) kind = "dtype";
  // Without its first dimension a single matrix is still one.
  if (kind == "dims" && p.op == Op::kMatmul) kind = "shape";
  // A mask broadcasts: it may have fewer dimensions, or one that happens to fit.
  if ((kind == "dims" || kind == "shape") && std::string_view(spec.name) == "visible")
    kind = "dtype";
  if (p.op == Op::kDropoutMask && (kind == "shape" || kind == "dims")) kind = "dtype";
  p.fault = kind + ":" + spec.name;
}

}  // namespace

void spoil(Dice& dice, Problem& problem) {
  problem.max_q_len = problem.max_kv_len = 0;  // tensors of another length are none then
  dice.one_in(2) ? spoil_descriptor(dice, problem) : spoil_call(dice, problem);
}

}  // namespace perseid::harness
