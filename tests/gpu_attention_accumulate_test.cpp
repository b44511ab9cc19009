// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU that adds its gradients to what their tensors hold, with the cases of
// the CPU's test; skipped where there is no GPU of compute capability 9.0.
#include "attention_accumulate.hpp"
#include "gpu_tools.hpp"

namespace perseid::internal {
namespace {

using accumulate_test::Case;

class GpuAccumulate : public testing_gpu::GpuTest {
 protected:
  GpuAccumulate() : GpuTest(9) {}

  static void check(Case c, double tolerance = 0) {
    c.on_gpu = c.deterministic = true;
    accumulate_test::check(c, tolerance);
  }
};

TEST_F(GpuAccumulate, EveryTileAndType) {
  for (const uint32_t dtype : {PERSEID_F16, PERSEID_BF16})
    for (const int64_t dim : {64, 128, 192, 256})
      for (const uint32_t causal : {PERSEID_CAUSAL_NONE, PERSEID_CAUSAL_BOTTOM_RIGHT}) {
        Case c{.dtype = dtype, .q_len = 200, .kv_len = 333, .head_dim = dim, .causal = causal};
        c.bias = false;
        check(c);
        c.heads = 4;
        c.kv_heads = 1;
        check(c);
      }
  Case odd{.dtype = PERSEID_BF16, .q_len = 130, .kv_len = 70, .head_dim = 40, .value_dim = 24};
  odd.bias = false;
  check(odd);
}

TEST_F(GpuAccumulate, OneGradientAndNotTheOthers) {
  for (const uint32_t bit : {PERSEID_GRAD_QUERY, PERSEID_GRAD_KEY, PERSEID_GRAD_VALUE})
    for (const int64_t dim : {64, 256}) {
      Case c{.dtype = PERSEID_BF16, .q_len = 100, .kv_len = 200, .head_dim = dim};
      c.accumulate = bit;
      c.bias = false;
      check(c);
      c.causal = PERSEID_CAUSAL_TOP_LEFT;
      check(c);
    }
  // The other gradients are then those of another configuration of the kernel.
  check({.dtype = PERSEID_BF16, .head_dim = 64, .accumulate = PERSEID_GRAD_BIAS}, 1e-2);
}

// Summed in no order, so that sums differ in their last bits from run to run.
TEST_F(GpuAccumulate, InAnyOrder) {
  for (const uint32_t causal : {PERSEID_CAUSAL_NONE, PERSEID_CAUSAL_BOTTOM_RIGHT}) {
    Case c{.dtype = PERSEID_F16, .q_len = 300, .kv_len = 500, .head_dim = 128, .causal = causal};
    c.bias = false;
    c.on_gpu = true;
    accumulate_test::check(c, 1e-3);
  }
}

// A kernel of its own adds the gradient of bias, also where another one writes it.
TEST_F(GpuAccumulate, BiasOfAnyShape) {
  constexpr double kTolerance = 1e-5;
  for (int broadcast = 0; broadcast < 16; ++broadcast) {
    Case c{.dtype = PERSEID_BF16, .q_len = 96, .kv_len = 136, .head_dim = 64};
    c.broadcast = broadcast;
    check(c, kTolerance);
    c.bias_dtype = PERSEID_F32;
    check(c, kTolerance);
  }
}

TEST_F(GpuAccumulate, LengthsLeaveTheRestAsItIs) {
  Case c{.dtype = PERSEID_BF16, .batch = 3, .q_len = 150, .kv_len = 300, .head_dim = 64};
  c.bias = false;
  c.kv_lens = true;
  check(c);
  c.kv_lens = false;
  c.ragged = true;
  check(c);
  c.head_dim = 128;
  c.causal = PERSEID_CAUSAL_BOTTOM_RIGHT;
  check(c);
}

// Rows of a gradient that the products make NaN are computed again, from an old value that is still
// there, and added once.
TEST_F(GpuAccumulate, RowsThatAreComputedAgain) {
  // Without accumulation a row may come from the products, with 16-bit weights, and from the row's
  // formula with it: their difference is far below an element that is lost, or added twice.
  constexpr double kTolerance = 4e-3;
  for (const int64_t dim : {64, 128, 256})
    for (const uint32_t bits : {7, 1, 2, 4, 3, 5, 6}) {
      Case c{.dtype = PERSEID_BF16, .q_len = 200, .kv_len = 200, .head_dim = dim};
      c.bias = false;
      c.accumulate = bits;
      c.causal = PERSEID_CAUSAL_TOP_LEFT;
      c.poison_query = true;
      check(c, kTolerance);
      c.causal = PERSEID_CAUSAL_NONE;
      c.poison_query = false;
      c.kv_lens = c.poison_keys = true;
      check(c, kTolerance);
    }
}

}  // namespace
}  // namespace perseid::internal
