// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU against the float64 reference, with the cases of the CPU's tests and
// those that the kernels' own tiles ask for (gpu_attention_backward_tools.hpp says of which
// kernels); skipped where there is no such GPU.
#include "attention_heads_apart.hpp"
#include "gpu_attention_backward_tools.hpp"

namespace perseid::internal {
namespace {

using namespace cpu::attention_cases;
using testing_gpu::expect_ok;
using testing_gpu::GpuAttentionBackward;

using Dims = std::pair<int64_t, int64_t>;
class GpuAttentionBackwardDims : public GpuAttentionBackward,
                                 public testing::WithParamInterface<Dims> {};

TEST_P(GpuAttentionBackwardDims, Layouts) {
  const auto [dim, value_dim] = GetParam();
  Case test = make_case(DType::kBF16, 2, 4, 2, 170, 333, dim, value_dim);
  check(test);
  test.layout = Layout::kBshd;
  test.grad_lse = true;
  test.problem.causal = Causal::kBottomRight;
  check(test);
  if (dim % 64 != 0) return;
  if (test.problem.dtype == DType::kBF16) test.problem.dtype = DType::kF16;
  check(test);
}

INSTANTIATE_TEST_SUITE_P(Backward, GpuAttentionBackwardDims,
                         testing::Values(Dims{8, 8}, Dims{40, 24}, Dims{64, 64}, Dims{72, 80},
                                         Dims{96, 96}, Dims{128, 128}, Dims{16, 112}, Dims{16, 256},
                                         Dims{192, 128}, Dims{160, 160}, Dims{256, 256}),
                         [](const auto& test) {
                           return concatenate(test.param.first, "_", test.param.second);
                         });

class GpuAttentionBackwardDim : public GpuAttentionBackward,
                                public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Backward, GpuAttentionBackwardDim, testing::Values(64, 128, 256));

TEST_P(GpuAttentionBackwardDim, Lengths) {
  for (const int64_t q_len : {0, 1, 63, 64, 65, 128, 129, 193})
    for (const int64_t kv_len : {0, 1, 64, 65, 128, 129, 257})
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
        Case test = make_case(DType::kBF16, 1, 1, 1, q_len, kv_len, GetParam(), GetParam());
        test.problem.causal = causal;
        test.grad_lse = causal == Causal::kTopLeft;
        check(test);
      }
  check(make_case(DType::kBF16, 0, 2, 2, 5, 5, GetParam(), GetParam()));
}

TEST_P(GpuAttentionBackwardDim, MasksOfRange) {
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
    for (const int64_t q_len : {4, 250, 420})
      for (const auto& [left, right] :
           {std::pair<int64_t, int64_t>{-1, -1}, {70, -1}, {0, 0}, {-1, 30}, {200, 5}}) {
        Case test = make_case(DType::kBF16, 1, 1, 1, q_len, 350, GetParam(), GetParam());
        test.layout = Layout::kBshd;
        test.problem.causal = causal;
        test.problem.window_left = left;
        test.problem.window_right = right;
        test.grad_lse = true;
        check(test);
      }
}

TEST_F(GpuAttentionBackward, SharedKeyHeads) {
  for (const auto& [heads, kv_heads] :
       {std::pair<int64_t, int64_t>{8, 1}, {6, 2}, {32, 1}, {40, 8}})
    for (const int64_t q_len : {1, 5, 150})
      for (const int64_t dim : {64, 128, 192}) {
        Case test = make_case(DType::kBF16, 2, heads, kv_heads, q_len, 300, dim, 128);
        test.layout = q_len == 5 ? Layout::kBhsd : Layout::kBshd;
        test.problem.causal = q_len == 1 ? Causal::kNone : Causal::kBottomRight;
        check(test);
      }
}

TEST_P(GpuAttentionBackwardDims, HeadsOfUnequalExponents) {
  const auto [dim, value_dim] = GetParam();
  if (tested_kernels() != TestedKernels::kFloat32) GTEST_SKIP() << "float32 alone";
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Case test = make_case(DType::kF32, 2, 6, 3, 150, 333, dim, value_dim);
    test.problem.causal = causal;
    test.prepare = cpu::attention_cases::scale_heads_apart;
    check(test);
  }
}

TEST_P(GpuAttentionBackwardDim, OddShapes) {
  for (const auto& [q_len, kv_len] :
       {std::pair<int64_t, int64_t>{1000, 1000}, {257, 1000}, {1000, 257}, {777, 1301}}) {
    Case test = make_case(DType::kBF16, 1, 1, 1, q_len, kv_len, GetParam(), GetParam());
    check(test);
    test.problem.causal = q_len == 777 ? Causal::kTopLeft : Causal::kBottomRight;
    check(test);
  }
}

// Any of the gradients without the others.
TEST_P(GpuAttentionBackwardDim, Subsets) {
  for (int wanted = 1; wanted < 8; ++wanted) {
    Case test = make_case(DType::kBF16, 1, 2, 1, 200, 330, GetParam(), GetParam());
    test.problem.causal = Causal::kBottomRight;
    test.problem.grad_query = (wanted & 1) != 0;
    test.problem.grad_key = (wanted & 2) != 0;
    test.problem.grad_value = (wanted & 4) != 0;
    check(test);
  }
  // A subset at execution of what was planned.
  for (int left_out = 0; left_out < 3; ++left_out) {
    Fixture fixture(make_case(DType::kBF16, 1, 2, 1, 100, 130, GetParam(), GetParam()));
    (left_out == 0   ? fixture.arguments.grad_query
     : left_out == 1 ? fixture.arguments.grad_key
                     : fixture.arguments.grad_value) = {};
    run(fixture);
    fixture.compare_gradients();
  }
}

// More tiles than multiprocessors.
TEST_P(GpuAttentionBackwardDim, ManyTiles) {
  Case test = make_case(DType::kBF16, 3, 60, 30, 40, 150, GetParam(), GetParam());
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kBottomRight;
  check(test);
  check(make_case(DType::kBF16, 4, 40, 20, 140, 150, GetParam(), GetParam()));
  if (GetParam() == 64) check(make_case(DType::kBF16, 35000, 2, 1, 1, 3, 64, 64));
}

TEST_P(GpuAttentionBackwardDim, InputScales) {
  for (const double scale : {0.1, 3.0, 10.0}) {
    Case test = make_case(DType::kBF16, 1, 2, 1, 200, 330, GetParam(), GetParam());
    test.input_scale = scale;
    check(test);
    test.problem.causal = Causal::kBottomRight;
    check(test);
  }
}

TEST_P(GpuAttentionBackwardDim, LargeAndEqualScores) {
  for (const double size : {0.0, 30.0}) {
    Case test = make_case(DType::kBF16, 1, 1, 1, 130, 260, GetParam(), GetParam());
    test.prepare = [size](AttentionBackward& a) {
      Random random{5};
      fill(a.query, random, size);
      fill(a.key, random, 10);
    };
    check(test);
  }
}

// Nothing that is masked has a way into a result, whether it is a key, a value or a query with its
// gradient.
TEST_P(GpuAttentionBackwardDim, NonfiniteValuesWhereMasked) {
  Case test = make_case(DType::kBF16, 1, 2, 1, 150, 220, GetParam(), GetParam());
  test.problem.causal = Causal::kTopLeft;
  test.prepare = [](AttentionBackward& a) {
    for (int64_t j = 149; j < 220; ++j) put(a.key, at(a.key, {0, 0, j, 3}), kNaN);
    for (int64_t j = 140; j < 220; ++j) put(a.value, at(a.value, {0, 0, j, 3}), -kInfinity);
    put(a.query, at(a.query, {0, 0, 20, 1}), kNaN);
    put(a.grad_out, at(a.grad_out, {0, 1, 30, 7}), kInfinity);
  };
  check(test);
}

TEST_P(GpuAttentionBackwardDim, KeyLengths) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Case test = make_case(DType::kBF16, 4, 2, 2, 130, 400, GetParam(), GetParam());
    test.problem.kv_lens = true;
    test.kv_lens = {0, 1, 213, 400};
    test.problem.causal = causal;
    // What lies behind the lengths must not matter.
    test.prepare = [](AttentionBackward& a) {
      const int64_t lens[] = {0, 1, 213, 400};
      for (int64_t b = 0; b < 4; ++b)
        for (int64_t j = lens[b]; j < 400; ++j) {
          put(a.key, at(a.key, {b, 1, j, 3}), kNaN);
          put(a.value, at(a.value, {b, 0, j, 2}), kInfinity);
        }
    };
    check(test);
  }
}

TEST_P(GpuAttentionBackwardDim, Visible) {
  Case test = make_case(DType::kBF16, 2, 4, 2, 101, 205, GetParam(), GetParam());
  set_visible(test, {2, 1, 101, 205});
  check(test);
  set_visible(test, {1, 4, 1, 205});
  test.problem.causal = Causal::kBottomRight;
  check(test);
  // Keys 10 and 250 are seen by queries 20..29 alone, query 150 sees nothing.
  Case hidden = make_case(DType::kBF16, 1, 2, 1, 210, 300, GetParam(), GetParam());
  set_visible(hidden, {1, 1, 210, 300});
  hidden.prepare = [](AttentionBackward& a) {
    for (int64_t i = 0; i < 210; ++i)
      for (int64_t j = 0; j < 300; ++j)
        put(a.visible, at(a.visible, {0, 0, i, j}),
            i != 150 && ((j != 10 && j != 250) || (i >= 20 && i < 30)));
    put(a.key, at(a.key, {0, 0, 10, 3}), kNaN);
    put(a.value, at(a.value, {0, 0, 250, 5}), kInfinity);
    put(a.query, at(a.query, {0, 0, 150, 1}), kNaN);
    put(a.grad_out, at(a.grad_out, {0, 1, 150, 0}), kInfinity);
  };
  check(hidden);
}

TEST_P(GpuAttentionBackwardDim, Dropout) {
  for (const double probability : {0.1, 0.9}) {
    Case test = make_case(DType::kBF16, 2, 4, 2, 210, 333, GetParam(), GetParam());
    test.problem.dropout = probability;
    test.grad_lse = true;
    if (probability == 0.9) test.problem.causal = Causal::kBottomRight;
    check(test);
  }
}

TEST_P(GpuAttentionBackwardDim, SameBitsEveryTimeWhereThatWasAskedFor) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Case test = make_case(DType::kBF16, 2, 6, 3, 400, 600, GetParam(), GetParam());
    add_bias(test, DType::kBF16, {causal == Causal::kNone ? 2 : 1, 6, 400, 600}, true);
    test.problem.causal = causal;
    test.problem.deterministic = true;
    Fixture fixture(test);
    const auto bytes = [&] {
      run(fixture);
      Bytes all = fixture.grad_query.memory;
      for (const Array* more : {&fixture.grad_key, &fixture.grad_value, &fixture.grad_bias})
        all.insert(all.end(), more->memory.begin(), more->memory.end());
      return all;
    };
    const Bytes once = bytes();
    for (int turn = 0; turn < 8; ++turn) EXPECT_EQ(bytes(), once);
  }
}

TEST_F(GpuAttentionBackward, RefusesWhatTheCopyEngineCannotReach) {
  if (tested_kernels() != TestedKernels::kSm90) GTEST_SKIP() << "no kernels of the copy engine";
  Fixture fixture(make_case(DType::kBF16, 1, 2, 2, 40, 50, 64, 64));
  std::unique_ptr<cuda::Sm90AttentionBackward> attention;
  expect_ok(cuda::Sm90AttentionBackward::make(fixture.problem, *gpu_, &attention));
  ASSERT_NE(attention, nullptr);
  const auto sentence = [&](const auto& change) {
    AttentionBackward tensors = fixture.arguments;
    change(tensors);
    const Status status = attention->backward(tensors, nullptr, nullptr);
    EXPECT_EQ(status.code(), PERSEID_UNSUPPORTED);
    return status.sentence();
  };
  EXPECT_NE(sentence([](AttentionBackward& t) {
              t.grad_query.data = t.grad_query.as<std::byte>() + 2;
            }).find("grad_query begins 2 bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace perseid::internal
