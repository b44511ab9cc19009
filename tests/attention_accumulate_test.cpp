// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward that adds its gradients to what their tensors hold. The gradients themselves
// are held to the reference elsewhere; here the sum is held to old value + gradient, rounded once.
#include "attention_accumulate.hpp"

namespace {

using accumulate_test::check;

class Accumulate : public testing::TestWithParam<const char*> {};

TEST_P(Accumulate, EveryGradientOfEveryType) {
  for (const uint32_t dtype : {PERSEID_F16, PERSEID_BF16, PERSEID_F32, PERSEID_F64}) {
    check({.dtype = dtype, .implementation = GetParam()});
    check({.dtype = dtype, .causal = PERSEID_CAUSAL_BOTTOM_RIGHT, .implementation = GetParam()});
  }
}

TEST_P(Accumulate, OneGradientAndNotTheOthers) {
  for (const uint32_t bit :
       {PERSEID_GRAD_QUERY, PERSEID_GRAD_KEY, PERSEID_GRAD_VALUE, PERSEID_GRAD_BIAS})
    check({.accumulate = bit, .implementation = GetParam()});
}

// Heads that are summed in tasks of their own and together; long keys, in chunks.
TEST_P(Accumulate, HoweverTheWorkIsCut) {
  check({.batch = 1, .heads = 4, .kv_heads = 2, .implementation = GetParam()});
  check({.batch = 9, .heads = 4, .kv_heads = 2, .implementation = GetParam()});
  check({.batch = 1, .heads = 1, .kv_len = 1300, .implementation = GetParam()});
  check({.batch = 4, .heads = 8, .q_len = 5, .kv_len = 700, .implementation = GetParam()});
  check({.head_dim = 17, .value_dim = 9, .implementation = GetParam()});
}

TEST_P(Accumulate, BiasOfAnyShape) {
  for (int broadcast = 0; broadcast < 16; ++broadcast)
    check({.broadcast = broadcast, .implementation = GetParam()});
  check({.dtype = PERSEID_BF16, .bias_dtype = PERSEID_F32, .implementation = GetParam()});
}

// Keys and rows that a length leaves out keep what they hold.
TEST_P(Accumulate, LengthsLeaveTheRestAsItIs) {
  check({.kv_lens = true, .implementation = GetParam()});
  check({.ragged = true, .implementation = GetParam()});
  check({.q_len = 0, .implementation = GetParam()});
  check({.kv_len = 0, .implementation = GetParam()});
}

// Rows with NaN that no query sees.
TEST_P(Accumulate, HiddenNumbersStayHidden) {
  check({.causal = PERSEID_CAUSAL_TOP_LEFT, .implementation = GetParam(), .poison_query = true});
  check({.kv_lens = true, .implementation = GetParam(), .poison_keys = true});
}

INSTANTIATE_TEST_SUITE_P(Implementations, Accumulate, testing::Values("cpu:tiled", "cpu:reference"),
                         [](const auto& each) { return std::string(each.param + 4); });

TEST(AccumulateDescriptor, NeedsTheGradient) {
  Context context(1);
  auto desc = SmallAttention::describe(8);
  desc.accumulate = PERSEID_GRAD_BIAS;
  Plan plan;
  EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT,
               "accumulate is 8, expected bits within gradients, which is 7");
}

}  // namespace
