// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU of compute capability 9.0: ragged batches, and biases with their
// gradients, against the float64 reference; skipped where there is no such GPU.
#include "gpu_attention_backward_tools.hpp"

namespace perseid::internal {
namespace {

using namespace cpu::attention_cases;
using testing_gpu::GpuAttentionBackward;

class GpuAttentionBackwardBatch : public GpuAttentionBackward,
                                  public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Backward, GpuAttentionBackwardBatch, testing::Values(64, 128, 256));

TEST_P(GpuAttentionBackwardBatch, Ragged) {
  const std::vector<int64_t> q_lens = {0, 1, 130, 64, 257, 3}, kv_lens = {5, 0, 200, 64, 129, 260};
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
    Case test = make_case(DType::kBF16, 6, 4, 2, 0, 0, GetParam(), GetParam());
    set_ragged(test, q_lens, kv_lens);
    test.problem.causal = causal;
    test.grad_lse = true;
    test.layout = causal == Causal::kTopLeft ? Layout::kBhsd : Layout::kBshd;
    check(test);
  }
  // Extras that each sequence has: key lengths, a mask, a bias, dropout.
  for (int more = 0; more < 3; ++more) {
    Case test = make_case(DType::kBF16, 6, 4, 2, 0, 0, GetParam(), GetParam());
    test.layout = Layout::kBshd;
    set_ragged(test, q_lens, kv_lens);
    if (more == 0) {
      test.problem.kv_lens = true;
      test.kv_lens = {5, 7, 0, 33, 129, 100};
      test.problem.causal = Causal::kBottomRight;
      test.problem.window_left = 70;
    }
    if (more == 1) set_visible(test, {6, 1, test.problem.q_len, test.problem.kv_len});
    if (more == 2) {
      test.problem.dropout = 0.2;
      add_bias(test, DType::kF32, {1, 4, test.problem.q_len, test.problem.kv_len}, false);
    }
    check(test);
  }
  // Most tiles of keys have no query that sees them.
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{2, 2101}, {2, 1823}, {1, 1006}})
    for (const int64_t dim : {16, 64}) {
      Case test = make_case(DType::kBF16, 1, 2, 1, 0, 0, dim, dim);
      test.layout = queries == 1 ? Layout::kBshd : Layout::kBhsd;
      set_ragged(test, {queries}, {keys});
      test.problem.causal = Causal::kTopLeft;
      test.problem.window_left = 7;
      test.problem.dropout = 0.5;
      test.grad_lse = true;
      check(test);
    }
  // Neither lengths nor rows at all.
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{0, 70}, {70, 0}, {0, 0}}) {
    Case test = make_case(DType::kBF16, 2, 2, 1, 0, 0, GetParam(), GetParam());
    set_ragged(test, {queries, 0}, {0, keys});
    check(test);
  }
}

// What lies in other sequences or behind the last one has no way into a result, and rows there are
// not written.
TEST_P(GpuAttentionBackwardBatch, RaggedNeighbours) {
  constexpr int64_t kBehind = 70;
  Case test = make_case(DType::kBF16, 3, 2, 1, 0, 0, GetParam(), GetParam());
  set_ragged(test, {70, 50, 90}, {90, 30, 150});
  test.problem.total_q += kBehind;
  test.problem.total_kv += kBehind;
  test.prepare = [](AttentionBackward& a) {
    for (const Tensor* tensor : {&a.query, &a.key, &a.value, &a.grad_out})
      for (int64_t row = tensor->shape[1] - kBehind; row < tensor->shape[1]; ++row)
        put(*tensor, at(*tensor, {0, row, 5}), kNaN);
  };
  Fixture fixture(test);
  run(fixture);
  for (const Tensor& got :
       {fixture.arguments.grad_query, fixture.arguments.grad_key, fixture.arguments.grad_value})
    for (int64_t row = got.shape[1] - kBehind; row < got.shape[1]; ++row)
      for (int64_t i = 0; i < got.shape[2]; ++i)
        for (int64_t b = 0; b < size_of(got.dtype); ++b)
          ASSERT_EQ(testing_gpu::element_at(got, at(got, {0, row, i}))[b], std::byte{0xff})
              << "row " << row;
  fixture.compare_gradients();

  // The second sequence is all NaN.
  set_ragged(test = make_case(DType::kBF16, 3, 2, 1, 0, 0, GetParam(), GetParam()), {70, 50, 90},
             {90, 30, 150});
  test.prepare = [](AttentionBackward& a) {
    for (int64_t row = 70; row < 120; ++row) {
      put(a.query, at(a.query, {0, row, 5}), kNaN);
      put(a.grad_out, at(a.grad_out, {1, row, 5}), kInfinity);
    }
    for (int64_t row = 90; row < 120; ++row) put(a.key, at(a.key, {0, row, 5}), kNaN);
  };
  check(test);
}

// The same sequences in another order: the same bits, whatever the other sequences are.
TEST_P(GpuAttentionBackwardBatch, RaggedAtAnyPosition) {
  const int64_t q_lens[] = {70, 200, 129}, kv_lens[] = {150, 100, 260};
  const auto run_in_order = [&](std::vector<int> order) {
    Case test = make_case(DType::kBF16, 3, 2, 1, 0, 0, GetParam(), GetParam());
    std::vector<int64_t> q, kv;
    for (const int s : order) {
      q.push_back(q_lens[s]);
      kv.push_back(kv_lens[s]);
    }
    set_ragged(test, q, kv);
    test.problem.causal = Causal::kBottomRight;
    test.problem.deterministic = true;
    test.prepare = [&](AttentionBackward& a) {
      int64_t q_row = 0, kv_row = 0;
      for (const int s : order) {
        const auto fill_rows = [&](Tensor tensor, int64_t first, int64_t rows, uint64_t seed) {
          tensor.data = testing_gpu::element_at(tensor, first * tensor.stride[1]);
          tensor.shape[1] = rows;
          Random random{seed + static_cast<uint64_t>(s)};
          fill(tensor, random);
        };
        fill_rows(a.query, q_row, q_lens[s], 10);
        fill_rows(a.grad_out, q_row, q_lens[s], 20);
        fill_rows(a.key, kv_row, kv_lens[s], 30);
        fill_rows(a.value, kv_row, kv_lens[s], 40);
        q_row += q_lens[s];
        kv_row += kv_lens[s];
      }
    };
    Fixture fixture(test);
    run(fixture);
    std::vector<std::vector<double>> found(3);  // of each sequence
    int64_t q_row = 0, kv_row = 0;
    for (const int s : order) {
      const auto take = [&](Tensor tensor, int64_t first, int64_t rows) {
        tensor.data = testing_gpu::element_at(tensor, first * tensor.stride[1]);
        tensor.shape[1] = rows;
        for_each(tensor, [&](int64_t offset, int64_t) {
          found[static_cast<size_t>(s)].push_back(get(tensor, offset));
        });
      };
      take(fixture.arguments.grad_query, q_row, q_lens[s]);
      take(fixture.arguments.grad_key, kv_row, kv_lens[s]);
      take(fixture.arguments.grad_value, kv_row, kv_lens[s]);
      q_row += q_lens[s];
      kv_row += kv_lens[s];
    }
    return found;
  };
  const auto once = run_in_order({0, 1, 2});
  EXPECT_EQ(run_in_order({2, 0, 1}), once);
  EXPECT_EQ(run_in_order({1, 2, 0}), once);
}

TEST_P(GpuAttentionBackwardBatch, BiasWithoutGradient) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case test = make_case(DType::kBF16, 2, 4, 2, 101, 205, GetParam(), GetParam());
    add_bias(test, dtype, {dtype == DType::kF32 ? 2 : 1, 4, 101, 205}, false);
    test.grad_lse = true;
    if (dtype == DType::kF32) test.problem.causal = Causal::kTopLeft;
    check(test);
  }
}

// TMA can load operands of 208 keys, not those of 205. In every type, for each
// score.
TEST_P(GpuAttentionBackwardBatch, GradientOfBias) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    for (const int64_t kv_len : {208, 205}) {
      Case test = make_case(DType::kBF16, 2, 4, 2, 150, kv_len, GetParam(), GetParam());
      add_bias(test, dtype, {2, 4, 150, kv_len}, true);
      check(test);
      if (dtype == DType::kF16) continue;
      test.problem.causal = dtype == DType::kF32 ? Causal::kTopLeft : Causal::kBottomRight;
      if (dtype == DType::kBF16) test.problem.window_left = 40;
      test.problem.dropout = 0.2;
      test.grad_lse = true;
      check(test);
    }
}

// Summed over whatever it is repeated along.
TEST_P(GpuAttentionBackwardBatch, GradientOfRepeatedBias) {
  for (int repeated = 1; repeated < 16; ++repeated) {
    Case test = make_case(DType::kBF16, 3, 4, 2, 300, 208, GetParam(), GetParam());
    const DType dtype = repeated % 2 == 0 ? DType::kBF16 : DType::kF32;
    add_bias(test, dtype,
             {(repeated & 8) != 0 ? 1 : 3, (repeated & 4) != 0 ? 1 : 4,
              (repeated & 2) != 0 ? 1 : 300, (repeated & 1) != 0 ? 1 : 208},
             true);
    if (repeated % 3 == 0) test.problem.causal = Causal::kBottomRight;
    if (repeated % 5 == 0) test.layout = Layout::kBshd;
    check(test);
  }
}

// By few batch entries and by many.
TEST_P(GpuAttentionBackwardBatch, GradientOfBiasOfTheWholeBatch) {
  for (const int64_t batch : {4, 9}) {
    Case test = make_case(DType::kBF16, batch, 2, 1, 300, 208, GetParam(), GetParam());
    add_bias(test, batch == 9 ? DType::kF32 : DType::kBF16, {1, 2, 300, 208}, true);
    check(test);
    test.problem.causal = Causal::kBottomRight;
    if (batch == 4) test.problem.window_left = 40;
    if (batch == 9) test.problem.dropout = 0.2;
    test.grad_lse = true;
    check(test);
  }
}

TEST_P(GpuAttentionBackwardBatch, GradientOfBiasUnderMasks) {
  // Lengths of keys.
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{3, 2, 130, 400}, {1, 2, 130, 400}, {3, 1, 1, 400}}) {
    Case test = make_case(DType::kBF16, 3, 2, 2, 130, 400, GetParam(), GetParam());
    test.problem.kv_lens = true;
    test.kv_lens = {0, 213, 400};
    add_bias(test, DType::kBF16, shape, true);
    test.prepare = [](AttentionBackward& a) {
      for (int64_t j = 213; j < 400; ++j) {
        put(a.key, at(a.key, {1, 1, j, 3}), kNaN);
        put(a.value, at(a.value, {1, 0, j, 2}), kInfinity);
      }
    };
    check(test);
    test.problem.causal = Causal::kBottomRight;
    set_visible(test, {1, 1, 130, 400});
    check(test);
  }
  // Sequences of their own lengths.
  const std::vector<int64_t> q_lens = {0, 1, 130, 64, 257, 3}, kv_lens = {5, 0, 200, 64, 129, 260};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6, 4, 257, 260},
                                            {1, 4, 257, 260},
                                            {6, 4, 1, 260},
                                            {6, 1, 257, 1},
                                            {1, 1, 1, 260}}) {
    Case test = make_case(DType::kBF16, 6, 4, 2, 0, 0, GetParam(), GetParam());
    test.layout = Layout::kBshd;
    set_ragged(test, q_lens, kv_lens);
    add_bias(test, DType::kF32, shape, true);
    test.problem.causal = Causal::kBottomRight;
    check(test);
  }
  // Nothing to sum.
  for (const auto& [batch, q_len, kv_len] :
       {std::tuple<int64_t, int64_t, int64_t>{0, 5, 8}, {2, 0, 8}, {2, 5, 0}}) {
    Case test = make_case(DType::kBF16, batch, 2, 2, q_len, kv_len, GetParam(), GetParam());
    add_bias(test, DType::kBF16, {1, 2, 1, 1}, true);
    check(test);
  }
}

// Without any other gradient, or without this one.
TEST_P(GpuAttentionBackwardBatch, GradientOfBiasAlone) {
  for (const int64_t batch : {2, 1})
    for (const bool alone : {true, false}) {
      Case test = make_case(DType::kBF16, 2, 2, 2, 130, 208, GetParam(), GetParam());
      add_bias(test, DType::kBF16, {batch, 2, 130, 208}, true);
      test.problem.causal = Causal::kTopLeft;
      if (alone) test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
      Fixture fixture(test);
      if (!alone) fixture.arguments.grad_bias = {};
      run(fixture);
      fixture.compare_gradients();
    }
}

}  // namespace
}  // namespace perseid::internal
