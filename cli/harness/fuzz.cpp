// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/fuzz.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "harness/data.hpp"

namespace perseid::harness {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;

class Dice {
 public:
  Dice(uint64_t seed, uint64_t index) : seed_(random_bits(seed, index)) {}

  uint64_t bits() { return random_bits(seed_, next_++); }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t count) { return between(1, count) == 1; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[bits() % choices.size()];
  }
  // Mostly small, now and then around the sizes of tiles.
  int64_t extent(int64_t most) {
    if (one_in(30)) return 0;
    if (one_in(8)) return 1;
    if (one_in(6)) return std::min(most, pick<int64_t>({15, 16, 17, 31, 32, 33, 63, 64, 65, 129}));
    return one_in(3) ? between(1, most) : between(1, std::min<int64_t>(most, 12));
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

uint32_t any_dtype(Dice& dice) {
  return static_cast<uint32_t>(
      dice.pick({PERSEID_F32, PERSEID_F32, PERSEID_BF16, PERSEID_BF16, PERSEID_F16, PERSEID_F64}));
}

Shape cumulative(Dice& dice, int64_t batch, int64_t most) {
  Shape lengths{0};
  for (int64_t b = 0; b < batch; ++b) lengths.push_back(lengths.back() + dice.extent(most));
  return lengths;
}

Shape broadcast(Dice& dice, Shape shape) {
  for (int64_t& extent : shape) {
    if (dice.one_in(2)) extent = 1;
  }
  return shape;
}

void common(Dice& dice, Problem& p) {
  p.dtype.value = any_dtype(dice);
  p.data_seed = dice.bits() >> 16;
  if (dice.one_in(2)) p.strides.value = static_cast<uint32_t>(Strides::kMixed);
  if (dice.one_in(6)) p.misalign = dice.pick<int64_t>({1, 2, 4, 8, 12, 20});
  p.values.value = static_cast<uint32_t>(
      dice.pick({Values::kNormal, Values::kNormal, Values::kNormal, Values::kLarge, Values::kSmall,
                 Values::kConstant, Values::kPoison}));
  p.mask_dtype.value = static_cast<uint32_t>(dice.between(0, 1));
  p.index_dtype.value = static_cast<uint32_t>(dice.between(0, 1));
}

void softmax(Dice& dice, Problem& p) {
  const int64_t rank = dice.between(1, dice.one_in(4) ? 5 : 3);
  for (int64_t i = 0; i < rank; ++i) p.shape.push_back(dice.extent(rank > 3 ? 5 : 9));
  p.dim = dice.between(-rank, rank - 1);
  const auto dim = static_cast<size_t>(p.dim < 0 ? p.dim + rank : p.dim);
  p.shape[dim] = dice.extent(dice.one_in(10) ? 1500 : 140);
  if (dice.one_in(30)) {
    // Few long rows: a GPU spreads them over several blocks.
    for (int64_t& extent : p.shape) extent = std::min<int64_t>(extent, 3);
    p.shape[dim] = dice.between(2000, 90000);
  }
  p.log = dice.one_in(3);
  if (dice.one_in(3)) p.scale = dice.pick({0.125, 2.5, -1.0});
  if (dice.one_in(3)) p.output_dtype.value = any_dtype(dice);
  p.lse = dice.one_in(3);
  p.backward = dice.one_in(2);
  if (dice.one_in(3)) p.visible = broadcast(dice, p.shape);
  if (!p.visible.empty()) p.empty_rows.value = dice.one_in(4);
  // Not with a backward: in place, its gradient would overwrite what the next run reads.
  p.in_place = !p.backward && p.result_type() == p.type() && dice.one_in(4);
}

void attention(Dice& dice, Problem& p) {
  p.batch = dice.one_in(20) ? 0 : dice.between(1, 3);
  p.kv_heads = dice.between(1, 2);
  p.heads = p.kv_heads * dice.pick<int64_t>({1, 1, 1, 2, 3});
  if (p.heads == p.kv_heads && dice.one_in(2)) p.kv_heads = 0;
  const int64_t most = dice.one_in(16) ? 150 : 40;
  p.head_dim = std::max<int64_t>(dice.extent(dice.one_in(10) ? 130 : 36), 1);
  if (dice.one_in(3)) p.value_dim = std::max<int64_t>(dice.extent(36), 1);
  p.layout.value = static_cast<uint32_t>(dice.between(0, 1));
  p.causal.value = static_cast<uint32_t>(dice.pick({0, 0, 1, 2}));
  if (dice.one_in(4)) p.window = {dice.between(-1, 12), dice.between(-1, 12)};
  if (dice.one_in(4)) {
    p.cu_seqlens_q = cumulative(dice, p.batch, most);
    p.cu_seqlens_kv = cumulative(dice, p.batch, most);
    if (dice.one_in(4)) p.total_q = p.cu_seqlens_q.back() + 3;
    if (dice.one_in(4)) p.total_kv = p.cu_seqlens_kv.back() + 2;
    if (dice.one_in(4)) p.q_len = p.longest_q() + 1;
  } else {
    p.q_len = dice.one_in(5) ? 1 : dice.extent(most);
    p.kv_len = dice.extent(most);
  }
  if (dice.one_in(5)) {
    for (int64_t b = 0; b < p.batch; ++b) p.kv_lens.push_back(dice.between(0, p.longest_kv()));
  }
  const Shape scores = {p.batch, p.heads, p.longest_q(), p.longest_kv()};
  if (dice.one_in(4)) p.bias = broadcast(dice, scores);
  if (!p.bias.empty() && p.type() != f64 && dice.one_in(3)) p.bias_dtype.value = PERSEID_F32;
  if (dice.one_in(4)) p.visible = broadcast(dice, scores);
  if (dice.one_in(3)) p.scale = dice.pick({0.3, 1.0, -0.5});
  if (dice.one_in(4)) {
    p.dropout = dice.pick({0.1, 0.5, 0.9, 0.999});
    p.seed = dice.bits();
    p.offset = dice.bits() >> 32;
  }
  p.lse = dice.one_in(2);
  if (dice.one_in(2)) {
    p.backward = dice.one_in(2);
    if (!p.backward)
      p.gradients.bits = static_cast<uint32_t>(dice.between(1, p.bias.empty() ? 7 : 15));
    p.grad_lse = dice.one_in(4);
    p.deterministic = dice.one_in(2);
  }
}

void matmul(Dice& dice, Problem& p) {
  p.batch = dice.one_in(3) ? dice.between(0, 4) : 1;
  p.m = dice.extent(90);
  p.n = dice.extent(90);
  p.k = dice.extent(dice.one_in(8) ? 600 : 90);
  p.transpose_a = dice.one_in(3);
  p.transpose_b = dice.one_in(3);
  p.shared_a = dice.one_in(6);
  p.shared_b = dice.one_in(6);
  if (dice.one_in(3)) p.alpha = dice.pick({0.5, -2.0, 0.0});
  if (dice.one_in(3)) p.beta = dice.pick({1.0, -0.5});
  if (dice.one_in(4) && (p.type() == f16 || p.type() == bf16)) p.output_dtype.value = PERSEID_F32;
  if (dice.one_in(3)) {
    p.bias = {p.n};
    if (dice.one_in(2)) p.bias_dtype.value = static_cast<uint32_t>(p.result_type());
  }
}

void dropout_mask(Dice& dice, Problem& p) {
  p.batch = dice.between(0, 3);
  p.heads = dice.between(0, 3);
  p.q_len = dice.extent(80);
  p.kv_len = dice.extent(150);
  p.dropout = dice.pick({0.0, 0.1, 0.5, 0.9, 0.999});
  p.seed = dice.bits();
  p.offset = dice.bits() >> 32;
}

// ---- What makes a problem wrong ---------------------------------------------------------------

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
      [](Problem& q) { q.gradients.bits = PERSEID_GRAD_BIAS, q.bias.clear(); },
      [](Problem& q) { q.impl = "cuda:sm90"; },
  };
  static const std::initializer_list<Spoil> matmul_ways = {
      [](Problem& q) { q.dtype.value = 5; },
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
          p.cu_seqlens_kv.back() = p.rows_kv() + 1;
          p.total_kv = p.rows_kv() - 1;
          return;
        default:
          p.cu_seqlens_q[1] = -1;
          return;
      }
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
  std::string kind = dice.pick({"null", "dtype", "dims", "shape", "device", "overlap"});
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

Problem random_problem(uint64_t seed, uint64_t index) {
  Dice dice(seed, index);
  Problem problem;
  const int64_t which = dice.between(0, 19);
  problem.op = which < 6    ? Op::kSoftmax
               : which < 14 ? Op::kAttention
               : which < 19 ? Op::kMatmul
                            : Op::kDropoutMask;
  common(dice, problem);
  switch (problem.op) {
    case Op::kSoftmax:
      softmax(dice, problem);
      break;
    case Op::kAttention:
      attention(dice, problem);
      break;
    case Op::kMatmul:
      matmul(dice, problem);
      break;
    case Op::kDropoutMask:
      dropout_mask(dice, problem);
      break;
  }
  if (dice.one_in(5)) {
    problem.expect.value = 1;
    dice.one_in(2) ? spoil_descriptor(dice, problem) : spoil_call(dice, problem);
  }
  return problem;
}

}  // namespace perseid::harness
