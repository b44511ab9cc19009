// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU against the float64 reference, with the cases of the CPU's tests and those
// that the kernels' own tiles ask for (gpu_attention_tools.hpp says of which kernels); skipped
// where there is no such GPU.

#include "attention_heads_apart.hpp"
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

class GpuAttentionDims : public GpuAttention, public testing::WithParamInterface<Dims> {};

TEST_P(GpuAttentionDims, MatchTheReference) {
  const auto [dim, value_dim] = GetParam();
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd}) {
      Case test = forward_case(dtype, 2, 4, 2, 170, 333, dim, value_dim);
      test.layout = layout;
      check(test);
      if (dtype == DType::kF16 || layout == Layout::kBhsd) continue;
      test.problem.causal = Causal::kBottomRight;
      check(test);
    }
}
INSTANTIATE_TEST_SUITE_P(Dims, GpuAttentionDims,
                         testing::Values(Dims{8, 8}, Dims{40, 24}, Dims{40, 40}, Dims{64, 64},
                                         Dims{72, 72}, Dims{72, 80}, Dims{80, 72}, Dims{96, 96},
                                         Dims{128, 128}, Dims{16, 256}, Dims{256, 16},
                                         Dims{192, 128}, Dims{160, 160}, Dims{192, 192},
                                         Dims{256, 256}));

// Tests that each dim with tiles of its own has to pass.
class GpuAttentionTiles : public GpuAttention, public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuAttentionTiles, testing::Values(64, 72, 96, 128, 192, 256));

TEST_F(GpuAttention, Lengths) {
  for (const int64_t q_len : {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 384})
    for (const int64_t kv_len : {0, 1, 15, 64, 127, 128, 129, 255, 257, 600})
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
        Case test = forward_case(DType::kBF16, 1, 2, 2, q_len, kv_len, 64, 64);
        test.problem.causal = causal;
        check(test);
      }
  check(forward_case(DType::kBF16, 0, 2, 2, 5, 5, 64, 64));
  check(forward_case(DType::kBF16, 1, 2, 2, 0, 5, 64, 64));
}

TEST_F(GpuAttention, SharedKeyHeads) {
  for (const auto& [heads, kv_heads] :
       {std::pair<int64_t, int64_t>{8, 1}, {6, 2}, {32, 1}, {64, 2}, {40, 8}})
    for (const int64_t q_len : {1, 2, 5, 33, 150})
      for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
        Case test = forward_case(DType::kBF16, 2, heads, kv_heads, q_len, 300, 128, 128);
        test.layout = q_len == 5 ? Layout::kBhsd : Layout::kBshd;
        test.problem.causal = causal;
        check(test);
      }
}

// Heads / group once came out of a compiler wrong, for the first tile of keys at one dim.
TEST_P(GpuAttentionDims, HeadsOfUnequalExponents) {
  const auto [dim, value_dim] = GetParam();
  if (tested_kernels() != TestedKernels::kFloat32) GTEST_SKIP() << "float32 alone";
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight})
    for (const int64_t q_len : {150, 420}) {
      Case test = forward_case(DType::kF32, 2, 6, 3, q_len, 333, dim, value_dim);
      test.layout = q_len == 150 ? Layout::kBhsd : Layout::kBshd;
      test.problem.causal = causal;
      test.prepare = scale_heads_apart;
      check(test);
    }
}

// Up to dim 64 consumers split the rows of queries where keys are few; where they are many, a
// kernel before does.
TEST_F(GpuAttention, QueriesBesideManyKeys) {
  if (tested_kernels() != TestedKernels::kFloat32) GTEST_SKIP() << "float32 alone";
  for (const int64_t dim : {24, 64})
    for (const int64_t kv_len : {4094, 4096}) {
      Case test = forward_case(DType::kF32, 1, 3, 3, 200, kv_len, dim, dim);
      test.prepare = scale_heads_apart;
      check(test);
    }
}

TEST_P(GpuAttentionTiles, OddShapes) {
  const int64_t dim = GetParam();
  for (const auto& [q_len, kv_len] :
       {std::pair<int64_t, int64_t>{1000, 1000}, {257, 1000}, {1000, 257}, {777, 1301}})
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      Case test = forward_case(DType::kBF16, 1, 1, 1, q_len, kv_len, dim, dim);
      test.problem.causal = causal;
      check(test);
    }
}

TEST_F(GpuAttention, LongOddShape) {
  Case test = forward_case(DType::kF16, 1, 2, 1, 2047, 2047, 128, 128);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check(test);
}

// More tiles than multiprocessors, so that blocks go from one to the next; with one step or two.
TEST_P(GpuAttentionTiles, ManyTiles) {
  const int64_t dim = GetParam();
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight})
    for (const int64_t kv_len : {50, 170}) {
      Case test = forward_case(DType::kBF16, 2, 48, 16, 420, kv_len, dim, dim);
      test.layout = Layout::kBshd;
      test.problem.causal = causal;
      check(test);
    }
}

TEST_F(GpuAttention, ManyBatchesAndHeads) {
  check(forward_case(DType::kBF16, 35000, 2, 1, 1, 3, 8, 8));
  check(forward_case(DType::kBF16, 2, 35000, 35000, 2, 3, 8, 8));
}

TEST_P(GpuAttentionTiles, RaggedAndKeyLengths) {
  const int64_t dim = GetParam();
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd})
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      Case ragged = forward_case(DType::kBF16, 0, 4, 2, 0, 0, dim, dim);
      set_ragged(ragged, {5, 0, 130, 1, 64, 0, 300, 0}, {7, 3, 200, 0, 64, 9, 129, 0});
      ragged.layout = layout;
      ragged.problem.causal = causal;
      check(ragged);
      ragged.problem.window_left = 40;
      ragged.problem.kv_lens = true;
      ragged.kv_lens = {7, 1, 90, 0, 63, 9, 128, 0};
      check(ragged);
      Case padded = forward_case(DType::kF16, 4, 4, 1, 150, 300, dim, dim);
      padded.layout = layout;
      padded.problem.causal = causal;
      padded.problem.kv_lens = true;
      padded.kv_lens = {300, 0, 129, 7};
      // What is behind the lengths is not even a number.
      padded.prepare = [](AttentionBackward& a) {
        for (const Tensor& tensor : {a.key, a.value})
          for_each(tensor, [&](int64_t offset, int64_t i) {
            const int64_t row = i / tensor.shape[3] % tensor.shape[2];
            const int64_t entry = i / tensor.shape[3] / tensor.shape[2] / tensor.shape[1];
            if (row >= read_length(a.kv_lens, entry)) put(tensor, offset, kNaN);
          });
      };
      check(padded);
    }
}

TEST_F(GpuAttention, ManyShortSequences) {
  Case many = forward_case(DType::kBF16, 0, 6, 3, 0, 0, 64, 64);
  std::vector<int64_t> q_lens, kv_lens;
  for (int64_t b = 0; b < 200; ++b) {
    q_lens.push_back(b * 37 % 150);
    kv_lens.push_back(b * 53 % 140);
  }
  set_ragged(many, q_lens, kv_lens);
  many.layout = Layout::kBshd;
  check(many);
}

// TMA can load rows of 304 keys, not those of 301.
TEST_F(GpuAttention, Bias) {
  for (const auto& [dim, q_len] : kDimsAndQueries)
    for (const int64_t kv_len : {301, 304})
      for (const auto& shape : score_shapes(q_len, kv_len)) {
        Case test = forward_case(DType::kBF16, 2, 4, 2, q_len, kv_len, dim, dim);
        add_bias(test, shape[0] == 1 ? DType::kF32 : DType::kBF16, shape, false);
        if (kv_len == 304) test.problem.causal = Causal::kBottomRight;
        check(test);
      }
  Case many = forward_case(DType::kF16, 2, 40, 40, 260, 200, 64, 64);
  add_bias(many, DType::kF16, {1, 40, 260, 200}, false);
  check(many);
  Case spread = forward_case(DType::kF16, 1, 2, 2, 50, 70, 64, 64);
  add_bias(spread, DType::kF16, {1, 2, 50, 70}, false);
  spread.layout = Layout::kBshd;
  check(spread);
}

// The lowest number of a type is as good a mask as -inf for rows that see something.
TEST_F(GpuAttention, LowestBias) {
  for (const int64_t dim : {64, 128, 256})
    for (const double scale : {0.1, 1.5}) {
      Case test = forward_case(DType::kBF16, 2, 2, 2, 200, 304, dim, dim);
      test.problem.scale = scale;
      add_bias(test, scale > 1 ? DType::kBF16 : DType::kF32, {1, 2, 200, 304}, false);
      test.prepare = [](AttentionBackward& a) {
        for (int64_t i = 0; i < 200; ++i)
          for (int64_t j = i + 1; j < 304; ++j) put(a.bias, at(a.bias, {0, 1, i, j}), -3.3895e38);
      };
      check(test);
    }
}

TEST_F(GpuAttention, DropoutHasTheContractsBits) {
  for (const auto& [dim, q_len] : kDimsAndQueries)
    for (const double dropout : {0.1, 0.5}) {
      Case test = forward_case(DType::kBF16, 2, 4, 2, q_len, 301, dim, dim);
      test.problem.dropout = dropout;
      test.problem.causal = dim == 256 ? Causal::kTopLeft : Causal::kNone;
      numbers_on_gpu_ = dropout == 0.5;
      check(test);
    }
}

TEST_F(GpuAttention, EverythingAtOnce) {
  Case all = forward_case(DType::kF16, 0, 4, 2, 0, 0, 128, 64);
  set_ragged(all, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
  all.layout = Layout::kBshd;
  all.problem.causal = Causal::kBottomRight;
  all.problem.dropout = 0.3;
  all.problem.kv_lens = true;
  all.kv_lens = {7, 1, 90, 0, 63};
  add_bias(all, DType::kF32, {5, 1, 130, 200}, false);
  set_visible(all, {1, 4, 130, 1});
  check(all);
}

// Few queries: keys are cut into splits.
TEST_P(GpuAttentionTiles, FewQueries) {
  const int64_t dim = GetParam();
  for (const int64_t kv_len : {1024, 1025, 5000})
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{3, 3}, {8, 1}, {12, 2}})
      for (const int64_t q_len : {1, 5}) {
        Case test = forward_case(DType::kBF16, 2, heads, kv_heads, q_len, kv_len, dim, dim);
        test.layout = kv_len == 1025 ? Layout::kBhsd : Layout::kBshd;
        if (heads != 3) test.problem.causal = Causal::kBottomRight;
        check(test);
      }
}

TEST_P(GpuAttentionTiles, InputScales) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const double scale : {0.1, 3.0, 10.0})
      for (const int64_t q_len : {4, 300}) {
        Case test = forward_case(dtype, 2, 2, 1, q_len, 700, GetParam(), GetParam());
        test.input_scale = scale;
        check(test);
        test.problem.causal = Causal::kBottomRight;
        check(test);
      }
}

TEST_F(GpuAttention, LargeAndEqualScores) {
  for (const double size : {0.0, 300.0}) {
    Case test = forward_case(DType::kBF16, 1, 1, 1, 200, 600, 64, 64);
    test.prepare = [size](AttentionBackward& a) {
      Random random{5};
      fill(a.query, random, size);
      fill(a.key, random, 30);
    };
    check(test);
  }
}

// Rows whose largest number meets zeros: scores consist of the small ones.
TEST_F(GpuAttention, ScoresOfSmallNumbersBesideLargeOnes) {
  if (tested_kernels() != TestedKernels::kFloat32) GTEST_SKIP() << "float32 alone";
  for (const bool large_keys : {false, true}) {
    Case test = forward_case(DType::kF32, 1, 2, 2, 200, 300, 64, 64);
    test.prepare = [large_keys](AttentionBackward& a) {
      const Tensor &large = large_keys ? a.key : a.query, &other = large_keys ? a.query : a.key;
      for (int64_t row = 0; row < other.shape[2]; ++row) put(other, at(other, {0, 0, row, 5}), 0);
      for (int64_t row = 0; row < large.shape[2]; row += 3)
        put(large, at(large, {0, 0, row, 5}), 0x1p30);
    };
    check(test);
  }
}

Bytes bytes_of(const Fixture& fixture) {
  Bytes bytes = fixture.out.memory;
  bytes.insert(bytes.end(), fixture.lse.memory.begin(), fixture.lse.memory.end());
  return bytes;
}

TEST_F(GpuAttention, SameBitsEveryTime) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Case test = forward_case(DType::kBF16, 2, 64, 16, 500, 700, 128, 128);
    test.problem.causal = causal;
    Fixture fixture(test);
    run(fixture);
    const Bytes once = bytes_of(fixture);
    for (int turn = 0; turn < 5; ++turn) {
      run(fixture);
      EXPECT_EQ(bytes_of(fixture), once);
    }
  }
}

// A sequence gives the same bits alone as in a batch.
TEST_F(GpuAttention, SameBitsAtAnyPositionInTheBatch) {
  Fixture many(forward_case(DType::kBF16, 70, 4, 2, 300, 400, 64, 64));
  run(many);
  for (const int64_t b : {0, 33, 69}) {
    Fixture alone(forward_case(DType::kBF16, 1, 4, 2, 300, 400, 64, 64));
    copy(entry_of(many.query.tensor, b), alone.query.tensor);
    copy(entry_of(many.key.tensor, b), alone.key.tensor);
    copy(entry_of(many.value.tensor, b), alone.value.tensor);
    run(alone);
    SCOPED_TRACE(b);
    expect_same_bits(alone.out.tensor, entry_of(many.out.tensor, b));
    expect_same_bits(alone.lse.tensor, entry_of(many.lse.tensor, b));
  }
}

// A key or value of another exponent in one entry changes no bit of the others, though the launch
// computes them by other instructions.
TEST_F(GpuAttention, SameBitsBesideKeysOfOtherExponents) {
  for (const int64_t dim : {64, 128})
    for (const int64_t q_len : {200, 500})
      for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
        Case test = forward_case(DType::kF32, 2, 4, 2, q_len, 600, dim, dim);
        test.problem.causal = causal;
        Fixture common(test);
        run(common);
        for (const bool of_value : {false, true}) {
          test.prepare = [=](AttentionBackward& a) {
            const Tensor& rows = of_value ? a.value : a.key;
            for (int64_t d = 0; d < dim; ++d) put(rows, at(rows, {1, 1, 70, d}), 0x1p-20);
          };
          Fixture other(test);
          run(other);
          SCOPED_TRACE(text_of(test));
          expect_same_bits(entry_of(common.out.tensor, 0), entry_of(other.out.tensor, 0));
          expect_same_bits(entry_of(common.lse.tensor, 0), entry_of(other.lse.tensor, 0));
          other.compare_forward();
        }
        run(common);  // in memory that says what the launch before had
        common.compare_forward();
      }
}

}  // namespace
}  // namespace perseid::internal
