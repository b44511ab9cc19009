// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The portable attention kernel on an emulated GPU (emulated_gpu.hpp) against the float64
// reference: layouts of fragments and tiles, copies, masks and the per-score operations, without a
// GPU.
#include "emulated_attention.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;

constexpr PortableForwardConfig kFull{.key_dim = 64, .value_dim = 64, .keys = 96};

TEST(EmulatedAttention, Full) {
  check<kFull>(forward_case(2, 2, 1, 130, 201, 64, 64));
  check<kFull>(forward_case(1, 1, 1, 70, 0, 64, 64));
}

constexpr PortableForwardConfig kHalf{
    .dtype = DType::kF16, .key_dim = 64, .value_dim = 64, .rows = 16, .query_in_registers = true};

// Maxima that grow from tile to tile, and rows that are one and the same in memory.
TEST(EmulatedAttention, PeakedRows) {
  for (const double scale : {0.1, 10.0}) {
    Case test = forward_case(1, 2, 1, 60, 300, 64, 64);
    test.problem.dtype = DType::kF16;
    test.input_scale = scale;
    check<kHalf>(test);
    test.prepare = [](AttentionBackward& a) { a.query.stride[2] = a.key.stride[1] = 0; };
    check<kHalf>(test);
  }
}

constexpr PortableForwardConfig kCausal{.key_dim = 80, .value_dim = 48, .right = true};

TEST(EmulatedAttention, CausalWithHiddenNonfiniteValues) {
  Case test = forward_case(1, 2, 2, 150, 180, 80, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check<kCausal>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
    put(a.value, at(a.value, {0, 0, 100, 3}), kInfinity);
    put(a.value, at(a.value, {0, 1, 170, 3}), kNaN);
  };
  check<kCausal>(test);
}

constexpr PortableForwardConfig kGathered{.key_dim = 16,
                                          .value_dim = 32,
                                          .query_in_registers = true,
                                          .vectors = false,
                                          .scale_first = true,
                                          .right = true,
                                          .left = true};

TEST(EmulatedAttention, GathersElements) {
  Case test = forward_case(1, 2, 1, 100, 170, 13, 19);
  test.layout = Layout::kSpread;
  test.problem.scale = -0.3;
  test.problem.causal = Causal::kBottomRight;
  test.problem.window_left = 40;
  check<kGathered>(test);
}

constexpr PortableForwardConfig kEverything{.key_dim = 128,
                                            .value_dim = 64,
                                            .rows = 16,
                                            .right = true,
                                            .lengths = true,
                                            .visible = true,
                                            .dropout = true,
                                            .bias = DType::kF32};

TEST(EmulatedAttention, EverythingAtOnce) {
  Case all = forward_case(0, 4, 2, 0, 0, 128, 64);
  set_ragged(all, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
  all.layout = Layout::kBshd;
  all.problem.causal = Causal::kBottomRight;
  all.problem.dropout = 0.3;
  all.problem.kv_lens = true;
  all.kv_lens = {7, 1, 90, 0, 63};
  add_bias(all, DType::kF32, {5, 1, 130, 200}, false);
  set_visible(all, {1, 4, 130, 1});
  check<kEverything>(all);
}

constexpr PortableForwardConfig kSplit{.key_dim = 64,
                                       .value_dim = 48,
                                       .rows = 16,
                                       .query_in_registers = true,
                                       .right = true,
                                       .split = true};

constexpr PortableForwardConfig with_lengths(PortableForwardConfig config) {
  config.lengths = true;
  return config;
}
constexpr PortableForwardConfig kSplitLengths = with_lengths(kSplit);

// A hidden key, and one that some queries see, are not finite.
TEST(EmulatedAttention, SplitsKeysOfFewQueries) {
  Case test = forward_case(2, 4, 2, 5, 1300, 64, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kBottomRight;
  check<kSplit>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.value, at(a.value, {0, 0, 1297, 5}), kNaN);
    put(a.value, at(a.value, {1, 1, 600, 40}), kInfinity);
  };
  check<kSplit>(test);
  Case ragged = forward_case(0, 4, 2, 0, 0, 64, 48);
  ragged.problem.causal = Causal::kBottomRight;
  set_ragged(ragged, {1, 0, 3, 2}, {1700, 3, 200, 0});
  ragged.layout = Layout::kBshd;
  check<kSplitLengths>(ragged);
}

constexpr PortableForwardConfig kCut{.key_dim = 320, .value_dim = 288, .rows = 16, .right = true};

TEST(EmulatedAttention, CutsLargeDims) {
  Case test = forward_case(1, 1, 1, 64, 90, 320, 288);
  test.problem.causal = Causal::kBottomRight;
  check<kCut>(test);
}

}  // namespace
}  // namespace perseid::internal
