// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/fuzz.hpp"

#include "harness/fuzz_dice.hpp"

namespace perseid::harness {
namespace {

// Two dice: what a group of problems shares is drawn by the one, what is a problem's own by the
// other.
struct TwoDice {
  Dice shared, own;
  bool gpu;
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

void common(TwoDice& dice, Problem& p) {
  p.dtype.value = any_dtype(dice.shared);
  p.data_seed = dice.own.bits() >> 16;
  if (dice.own.one_in(2)) p.strides.value = static_cast<uint32_t>(Strides::kMixed);
  if (dice.own.one_in(6)) p.misalign = dice.own.pick<int64_t>({1, 2, 4, 8, 12, 20});
  p.values.value = static_cast<uint32_t>(
      dice.own.pick({Values::kNormal, Values::kNormal, Values::kNormal, Values::kLarge,
                     Values::kSmall, Values::kConstant, Values::kPoison}));
  // Attention has results whose kind depends on what float32 rounds to 0.
  if (p.op != Op::kAttention && dice.own.one_in(8))
    p.values.value = static_cast<uint32_t>(Values::kSpecial);
  if (p.values.value == 0) p.input_scale = dice.own.pick({1.0, 1.0, 0.1, 3.0, 10.0});
  p.mask_dtype.value = static_cast<uint32_t>(dice.own.between(0, 1));
  p.index_dtype.value = static_cast<uint32_t>(dice.own.between(0, 1));
  if (dice.own.one_in(4)) p.launches = dice.own.between(2, 4);
}

// A row's length decides which kernel it gets: those of a group are about the same.
void softmax(TwoDice& dice, Problem& p) {
  const int64_t rank = dice.shared.between(1, dice.shared.one_in(4) ? 5 : 3);
  for (int64_t i = 0; i < rank; ++i) p.shape.push_back(dice.own.extent(rank > 3 ? 5 : 9));
  p.dim = dice.shared.between(0, rank - 1);
  const auto dim = static_cast<size_t>(p.dim);
  int64_t length = dice.shared.extent(dice.shared.one_in(10) ? 1500 : 140);
  // Few long rows: a GPU spreads them over several blocks.
  const bool longer = dice.shared.one_in(dice.gpu ? 12 : 30);
  if (longer) {
    length = dice.shared.between(2000, 90000);
    if (dice.gpu && dice.shared.one_in(3)) length = dice.shared.between(90000, 500000);
    const int64_t most = length > 90000 || rank > 3 ? 1 : 3;
    for (int64_t& extent : p.shape) extent = std::min(extent, most);
  }
  p.shape[dim] = length - dice.own.between(0, length / 12);
  if (dice.own.one_in(2)) p.dim -= rank;
  p.log = dice.shared.one_in(3);
  if (dice.shared.one_in(9)) p.scale = -1;
  if (p.scale == 0 && dice.own.one_in(3)) p.scale = dice.own.pick({0.125, 2.5, 1.0});
  // On a GPU the scale times an element is finite in float32 (docs/reference/numerics.md).
  if (dice.gpu && p.values.value == static_cast<uint32_t>(Values::kSpecial) && p.scale > 1)
    p.scale = 1;
  if (dice.shared.one_in(3)) p.output_dtype.value = any_dtype(dice.shared);
  p.lse = dice.own.one_in(3);
  p.backward = dice.own.one_in(2);
  if (dice.shared.one_in(3)) p.visible = broadcast(dice.own, p.shape);
  if (!p.visible.empty()) p.empty_rows.value = dice.own.one_in(4);
  // Not with a backward: in place, its gradient would overwrite what the next run reads.
  p.in_place = !p.backward && p.launches == 1 && p.result_type() == p.type() && dice.own.one_in(4);
}

// Lengths of a batch of attention. For a GPU those of a group are of one kind, as tiles are chosen
// by them: one query, few, as many as a small tile has, or more.
struct Lengths {
  int64_t q_least = 0, q_most = 40, kv_least = 0, kv_most = 40;
};
Lengths lengths_of(TwoDice& dice) {
  if (!dice.gpu) {
    if (dice.own.one_in(20)) return {0, 24, 200, 700};  // several blocks of keys
    const int64_t most = dice.own.one_in(16) ? 150 : 40;
    return {dice.own.one_in(5) ? 1 : 0, most, 0, most};
  }
  switch (dice.shared.between(0, 7)) {
    case 0:
      return {1, 1, 0, 400};
    case 1:
      return {1, 2, 1025, 2600};  // keys are split
    case 2:
    case 3:
    case 4:
      return {0, 64, 0, 150};
    case 5:
    case 6:
      return {65, 128, 1, 200};
    default:
      return {129, 300, 65, 300};
  }
}

int64_t length_within(Dice& dice, int64_t least, int64_t most) {
  if (least == most) return least;
  if (least > 64) return dice.between(least, most);
  return std::max(least, dice.extent(most));
}

void dims(TwoDice& dice, Problem& p) {
  Dice& shared = dice.shared;
  if (!dice.gpu || shared.one_in(3)) {
    p.head_dim = std::max<int64_t>(shared.extent(shared.one_in(10) ? 130 : 36), 1);
    if (shared.one_in(3)) p.value_dim = std::max<int64_t>(shared.extent(36), 1);
    return;
  }
  const auto any = [&] {
    if (shared.one_in(12)) return 8 * shared.between(33, 64);
    return shared.one_in(2) ? shared.pick<int64_t>({64, 128, 96, 256, 192})
                            : 8 * shared.between(1, shared.one_in(3) ? 32 : 16);
  };
  p.head_dim = any();
  if (shared.one_in(4)) p.value_dim = any();
}

// Keys of a cache, or a plan for more of them.
void read_cache(int64_t kind, Dice& dice, Problem& p) {
  if (kind == 0) {
    p.max_q_len = p.longest_q() + dice.between(0, 3);
    p.max_kv_len = p.longest_kv() + dice.between(1, 400);
  } else if (!p.ragged()) {
    p.kv_batch = p.batch + dice.between(1, 3);
    for (int64_t b = 0; b < p.batch; ++b) p.kv_index.push_back(dice.between(0, p.kv_batch - 1));
  } else if (p.batch > 0) {
    p.kv_len = p.longest_kv();
    p.kv_lens.clear();
    for (int64_t b = 0; b < p.batch; ++b) {
      p.kv_lens.push_back(dice.between(0, p.kv_len));
      p.kv_starts.push_back(dice.between(0, 2 * p.kv_len));
    }
    p.cu_seqlens_kv.clear();
    p.total_kv = 0;
    p.total_kv = p.rows_kv() + dice.between(0, 2);
  }
}

void attention(TwoDice& dice, Problem& p) {
  Dice &shared = dice.shared, &own = dice.own;
  // Evenly: types have kernels of their own there.
  if (dice.gpu)
    p.dtype.value =
        static_cast<uint32_t>(shared.pick({PERSEID_F16, PERSEID_BF16, PERSEID_F32, PERSEID_F64}));
  // Half of them as TMA and vectors need it.
  if (dice.gpu && own.one_in(2)) {
    p.strides.value = static_cast<uint32_t>(own.one_in(2) ? Strides::kAligned : Strides::kPacked);
    p.misalign = own.one_in(4) ? 16 * own.between(1, 3) : 0;
  }
  const Lengths lengths = lengths_of(dice);
  // The formula in float64 takes longer than all else: of many scores or keys there is one head's
  // share.
  const bool heavy = lengths.q_most * lengths.kv_most > 12000 || lengths.kv_most > 1000;
  p.batch = own.one_in(20) ? 0 : own.between(1, heavy ? 1 : 3);
  p.kv_heads = own.between(1, heavy ? 1 : 2);
  p.heads = p.kv_heads * shared.pick<int64_t>({1, 1, 1, 2, 3});
  if (p.heads == p.kv_heads && own.one_in(2)) p.kv_heads = 0;
  dims(dice, p);
  p.layout.value = static_cast<uint32_t>(own.between(0, 1));
  p.causal.value = static_cast<uint32_t>(shared.pick({0, 0, 1, 2}));
  if (shared.one_in(4)) {
    const bool left = shared.one_in(2), right = shared.one_in(2);
    p.window = {left ? own.between(0, 12) : -1, right ? own.between(0, 12) : -1};
    p.window_bottom_right = p.causal.value == PERSEID_CAUSAL_NONE && shared.one_in(2);
  }
  if (shared.one_in(4)) {
    p.cu_seqlens_q = cumulative(own, p.batch, lengths.q_most);
    p.cu_seqlens_kv = cumulative(own, p.batch, lengths.kv_most);
    if (own.one_in(4)) p.total_q = p.cu_seqlens_q.back() + 3;
    if (own.one_in(4)) p.total_kv = p.cu_seqlens_kv.back() + 2;
    if (own.one_in(4)) p.q_len = p.longest_q() + 1;
  } else {
    p.q_len = length_within(own, lengths.q_least, lengths.q_most);
    p.kv_len = length_within(own, lengths.kv_least, lengths.kv_most);
  }
  if (shared.one_in(5)) {
    for (int64_t b = 0; b < p.batch; ++b) p.kv_lens.push_back(own.between(0, p.longest_kv()));
  }
  if (shared.one_in(6)) {
    for (int64_t b = 0; b < p.batch; ++b) p.q_lens.push_back(own.between(0, p.longest_q()));
  }
  const int64_t cache = shared.between(0, 11);  // 1 and 2: one, which forward alone has
  if (cache < 3) read_cache(cache, own, p);
  if (shared.one_in(8)) p.num_splits = own.between(1, 5);
  const Shape scores = {p.batch, p.heads, p.longest_q(), p.longest_kv()};
  if (shared.one_in(4)) p.bias = broadcast(own, scores);
  // An entry 1 of the plan's bias is 1 in an execution of no rows, too.
  if (!p.bias.empty() && p.max_q_len == 1) p.bias[2] = 1;
  if (!p.bias.empty() && p.max_kv_len == 1) p.bias[3] = 1;
  if (!p.bias.empty() && p.type() != f64 && shared.one_in(3)) p.bias_dtype.value = PERSEID_F32;
  if (shared.one_in(4)) p.visible = broadcast(own, scores);
  if (own.one_in(3)) p.scale = own.pick({0.3, 1.0, dice.gpu && !own.one_in(8) ? 0.05 : -0.5});
  if (shared.one_in(4)) {
    p.dropout = own.pick({0.1, 0.5, 0.9, 0.999});
    p.seed = own.bits();
    p.offset = own.bits() >> 32;
  }
  p.lse = own.one_in(2);
  if (shared.one_in(2) && cache != 1 && cache != 2) {
    p.backward = shared.one_in(2);
    if (!p.backward)
      p.gradients.bits = static_cast<uint32_t>(shared.between(1, p.bias.empty() ? 7 : 15));
    p.grad_lse = own.one_in(4);
    p.deterministic = shared.one_in(2);
  }
}

// 8-bit operands, and what follows the product.
void matmul_epilogue(TwoDice& two, Problem& p) {
  Dice& dice = two.own;
  if (two.shared.one_in(3)) {
    const auto float8 = [&] {
      return static_cast<uint32_t>(two.shared.pick({PERSEID_F8E4M3, PERSEID_F8E5M2}));
    };
    p.dtype.value = float8();
    if (two.shared.one_in(2)) p.b_dtype.value = float8();
    p.output_dtype.value = static_cast<uint32_t>(two.shared.pick(
        {0, 0, 0 + PERSEID_F16, 0 + PERSEID_BF16, 0 + PERSEID_F8E4M3, 0 + PERSEID_F8E5M2}));
    p.scaling.value = static_cast<uint32_t>(two.shared.between(0, 3));
    p.accumulation.value = static_cast<uint32_t>(two.shared.between(0, 1));
    p.bias_dtype.value = 0;
    if (is_float8(p.result_type())) {
      p.beta = 0;
      p.scale_result = two.shared.one_in(2);
    } else if (dice.one_in(2)) {
      p.bias_dtype.value = static_cast<uint32_t>(p.result_type());
    }
  }
  if (two.shared.one_in(4)) p.activation.value = static_cast<uint32_t>(two.shared.between(1, 3));
  p.amax = two.shared.one_in(4);
}

void matmul(TwoDice& two, Problem& p) {
  Dice& dice = two.own;
  p.batch = dice.one_in(3) ? dice.between(0, 4) : 1;
  p.m = dice.extent(90);
  p.n = dice.extent(90);
  p.k = dice.extent(dice.one_in(8) ? 600 : 90);
  p.transpose_a = two.shared.one_in(3);
  p.transpose_b = two.shared.one_in(3);
  p.shared_a = dice.one_in(6);
  p.shared_b = dice.one_in(6);
  if (dice.one_in(3)) p.alpha = dice.pick({0.5, -2.0, 0.0});
  if (dice.one_in(3)) p.beta = dice.pick({1.0, -0.5});
  if (two.shared.one_in(4) && (p.type() == f16 || p.type() == bf16))
    p.output_dtype.value = PERSEID_F32;
  if (dice.one_in(3)) {
    p.bias = {p.n};
    if (dice.one_in(2)) p.bias_dtype.value = static_cast<uint32_t>(p.result_type());
  }
  if (!two.gpu) matmul_epilogue(two, p);
}

void dropout_mask(Dice& dice, Problem& p) {
  p.batch = dice.between(0, 3);
  p.heads = dice.between(0, 3);
  p.q_len = dice.extent(80);
  p.kv_len = dice.extent(150);
  p.dropout = dice.pick({0.0, 0.1, 0.5, 0.9, 0.999});
  p.seed = dice.bits();
  p.offset = dice.bits() >> 32;
  p.launches = 1;
}

}  // namespace

Problem random_problem(const Draw& draw, uint64_t index) {
  // Groups are counted by another seed, so that a group of one problem does not draw twice the
  // same.
  TwoDice dice{Dice(~draw.seed, index / draw.group), Dice(draw.seed, index), draw.gpu};
  Problem problem;
  const int64_t which = dice.shared.between(0, 19);
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
      dropout_mask(dice.own, problem);
      break;
  }
  if (dice.own.one_in(5)) {
    problem.expect.value = 1;
    problem.launches = 1;
    spoil(dice.own, problem);
  }
  return problem;
}

}  // namespace perseid::harness
