// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Masks of attention forward on a GPU: what rows see, and that nothing else reaches their results.
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

using GpuAttentionMasked = GpuAttention;
class GpuAttentionMasks : public GpuAttention, public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuAttentionMasks, testing::Values(64, 72, 96, 128, 192, 256));

TEST_P(GpuAttentionMasks, MasksOfRange) {
  const int64_t dim = GetParam();
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
    for (const int64_t q_len : {4, 100, 250, 620})
      for (const auto& [left, right] :
           {std::pair<int64_t, int64_t>{-1, -1}, {70, -1}, {0, 0}, {-1, 30}, {300, 5}}) {
        Case test = forward_case(DType::kBF16, 1, 2, 1, q_len, 550, dim, dim);
        test.layout = Layout::kBshd;
        test.problem.causal = causal;
        test.problem.window_left = left;
        test.problem.window_right = right;
        check(test);
      }
}

// Consumers that pass over keys at both ends of a tile, and blocks that go from tile to tile; and
// dims of keys and values for which shared memory has room for fewer consumers.
TEST_F(GpuAttentionMasked, LongWindows) {
  for (const auto& [dim, value_dim] : {Dims{64, 64}, Dims{96, 64}, Dims{88, 24}})
    for (const int64_t kv_len : {1100, 1500})
      for (const auto& [left, right] :
           {std::pair<int64_t, int64_t>{1023, -1}, {200, -1}, {127, 0}, {64, -1}}) {
        // Blocks of sm_90 go on to other tiles where there are more tiles than blocks.
        const int64_t heads = dim == 64 && tested_kernels() == TestedKernels::kSm90 ? 24 : 4;
        Case test = forward_case(DType::kBF16, 1, heads, heads, 1300, kv_len, dim, value_dim);
        test.layout = Layout::kBshd;
        test.problem.causal = Causal::kBottomRight;
        test.problem.window_left = left;
        test.problem.window_right = right;
        check(test);
        test.problem.causal = Causal::kNone;
        test.problem.window_right = 130;
        check(test);
      }
}

// A head's first tile may begin before its first query.
TEST_F(GpuAttentionMasked, TilesFromTheLastQuery) {
  for (const int64_t dim : {40, 64, 72, 80, 96})
    for (const int64_t q_len : {1030, 1100, 1340})
      for (const int64_t kv_len : {q_len - 250, q_len, int64_t{1500}})
        for (const int64_t window : {-1, 300}) {
          if (dim != 64 && (q_len == 1340 || kv_len < q_len || window >= 0)) continue;
          Case test = forward_case(DType::kBF16, 1, 2, 1, q_len, kv_len, dim, dim);
          test.layout = Layout::kBshd;
          test.problem.causal = Causal::kBottomRight;
          test.problem.window_left = window;
          check(test);
          if (dim != 64 || kv_len != 1500) continue;
          test.prepare = [](AttentionBackward& a) {
            put(a.query, at(a.query, {0, 0, 2, 3}), kNaN);
            put(a.key, at(a.key, {0, 0, 900, 3}), kNaN);
            put(a.value, at(a.value, {0, 0, 1100, 5}), kInfinity);
          };
          check(test);
        }
}

TEST_F(GpuAttentionMasked, Visible) {
  for (const auto& [dim, q_len] : kDimsAndQueries)
    for (const auto& shape : score_shapes(q_len)) {
      Case test = forward_case(DType::kBF16, 2, 4, 2, q_len, 301, dim, dim);
      set_visible(test, shape);
      check(test);
    }
}

TEST_F(GpuAttentionMasked, FewQueriesWithMasksAndLengths) {
  Case window = forward_case(DType::kF16, 2, 4, 2, 9, 4100, 128, 72);
  window.problem.causal = Causal::kBottomRight;
  window.problem.window_left = 700;
  check(window);
  Case lengths = forward_case(DType::kBF16, 5, 8, 2, 2, 3000, 128, 128);
  lengths.problem.causal = Causal::kBottomRight;
  lengths.problem.kv_lens = true;
  lengths.kv_lens = {3000, 0, 1, 1024, 2049};
  check(lengths);
  Case ragged = forward_case(DType::kBF16, 0, 4, 2, 0, 0, 64, 128);
  set_ragged(ragged, {1, 0, 3, 2, 1}, {2700, 3, 200, 0, 1100});
  ragged.layout = Layout::kBshd;
  ragged.problem.causal = Causal::kBottomRight;
  check(ragged);
  Case all = forward_case(DType::kBF16, 2, 4, 2, 3, 2100, 128, 128);
  add_bias(all, DType::kF32, {2, 1, 3, 2100}, false);
  set_visible(all, {1, 4, 3, 2100});
  all.problem.dropout = 0.2;
  all.prepare = [](AttentionBackward& a) {
    for (const int64_t j : {5, 1500}) put(a.value, at(a.value, {0, 0, j, 3}), kInfinity);
  };
  check(all);
}

// NaN and infinity in keys and values that no query may see, and in those that some may.
TEST_P(GpuAttentionMasks, NothingLeaksFromMaskedKeys) {
  const int64_t dim = GetParam();
  for (const double poison : {kNaN, kInfinity, -kInfinity})
    for (const bool visible : {false, true}) {
      Case test = forward_case(DType::kBF16, 1, 4, 1, 60, 400, dim, dim);
      test.problem.causal = Causal::kTopLeft;
      if (visible) set_visible(test, {1, 4, 60, 400});
      test.prepare = [=](AttentionBackward& a) {
        for (const int64_t j : {int64_t{30}, int64_t{60}, int64_t{300}}) {
          put(a.value, at(a.value, {0, 0, j, 3}), poison);
          put(a.key, at(a.key, {0, 0, j, 5}), kNaN);
        }
        put(a.value, at(a.value, {0, 0, 41, 7}), poison);
        put(a.query, at(a.query, {0, 1, 20, 3}), kNaN);
      };
      check(test);
    }
}

// Rows that end within the 32 bytes in which those of another warp begin, both computed again.
TEST_F(GpuAttentionMasked, NothingLeaksFromNeighbours) {
  for (const int64_t dim : {8, 24, 72}) {
    Case test = forward_case(DType::kBF16, 0, 1, 1, 0, 0, dim, dim);
    set_ragged(test, std::vector<int64_t>(40, 513), std::vector<int64_t>(40, 513));
    test.problem.causal = Causal::kTopLeft;
    test.problem.window_left = 20;
    test.prepare = [=](AttentionBackward& a) {
      for (int64_t key = 50; key < a.value.shape[1]; key += 100)
        for (const int64_t column : {int64_t{0}, dim - 1})
          put(a.value, at(a.value, {0, key, column}), kNaN);
      // The first key that a row sees, and a query: NaN is their result.
      put(a.key, at(a.key, {0, 300, 1}), kNaN);
      put(a.query, at(a.query, {0, 1000, 1}), kNaN);
    };
    SCOPED_TRACE(text_of(test));
    Fixture fixture(test);
    for (int turn = 0; turn < 10; ++turn) {
      run(fixture);
      fixture.compare("out", fixture.out.tensor);
    }
  }
}

}  // namespace
}  // namespace perseid::internal
