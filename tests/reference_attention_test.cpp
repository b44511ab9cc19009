// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The oracle itself: attention. Forward against the formula written with plain loops, backward
// against central differences of forward, and the rules about masks, empty rows, ragged batches and
// threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "cpu/reference/reference.hpp"
#include "tensor.hpp"

namespace perseid::internal::cpu {
namespace {

using tests::Array;
using tests::expect_same_bytes;
using tests::kInfinity;
using tests::kNaN;

constexpr double kUntouched = 12345;

AttentionProblem make_problem(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                              int64_t kv_len, int64_t head_dim, int64_t value_dim) {
  AttentionProblem problem;
  problem.dtype = problem.bias_dtype = DType::kF64;
  problem.batch = batch;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  problem.head_dim = head_dim;
  problem.value_dim = value_dim;
  problem.scale = 0.8;
  problem.grad_query = problem.grad_key = problem.grad_value = true;
  return problem;
}

// A problem with all its tensors. Lengths, where wanted, are set before.
struct Attention {
  AttentionProblem problem;
  std::vector<int64_t> cu_q, cu_kv, lengths;
  std::unique_ptr<Array> query, key, value, bias, visible, out, lse, grad_out, grad_lse, grad_query,
      grad_key, grad_value, grad_bias;
  Dropout dropout;

  explicit Attention(const AttentionProblem& given, std::vector<int64_t> cu_seqlens_q = {},
                     std::vector<int64_t> cu_seqlens_kv = {}, std::vector<int64_t> kv_lens = {})
      : problem(given), cu_q(cu_seqlens_q), cu_kv(cu_seqlens_kv), lengths(kv_lens) {
    problem.ragged = !cu_q.empty();
    problem.kv_lens = !lengths.empty();
    const AttentionProblem& p = problem;
    uint32_t seed = 10;
    const auto rows = [&](int64_t heads, int64_t length, int64_t total, int64_t dim) {
      const DType dtype = p.dtype;
      auto array =
          p.ragged
              ? std::make_unique<Array>(std::vector<int64_t>{heads, total, dim}, dtype)
              : std::make_unique<Array>(std::vector<int64_t>{p.batch, heads, length, dim}, dtype);
      array->randomise(++seed, 1.5);
      return array;
    };
    query = rows(p.heads, p.q_len, p.total_q, p.head_dim);
    key = rows(p.kv_heads, p.kv_len, p.total_kv, p.head_dim);
    value = rows(p.kv_heads, p.kv_len, p.total_kv, p.value_dim);
    out = rows(p.heads, p.q_len, p.total_q, p.value_dim);
    grad_out = rows(p.heads, p.q_len, p.total_q, p.value_dim);
    grad_query = rows(p.heads, p.q_len, p.total_q, p.head_dim);
    grad_key = rows(p.kv_heads, p.kv_len, p.total_kv, p.head_dim);
    grad_value = rows(p.kv_heads, p.kv_len, p.total_kv, p.value_dim);
    const std::vector<int64_t> lse_shape = p.ragged
                                               ? std::vector<int64_t>{p.heads, p.total_q}
                                               : std::vector<int64_t>{p.batch, p.heads, p.q_len};
    const DType lse_dtype = p.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    lse = std::make_unique<Array>(lse_shape, lse_dtype);
    grad_lse = std::make_unique<Array>(lse_shape, lse_dtype);
    grad_lse->randomise(++seed);
    for (const auto& array : {&out, &lse, &grad_query, &grad_key, &grad_value})
      (*array)->fill_all(kUntouched);
    if (p.bias) {
      const std::vector<int64_t> shape(p.bias_shape, p.bias_shape + 4);
      bias = std::make_unique<Array>(shape, p.bias_dtype);
      bias->randomise(++seed);
      grad_bias = std::make_unique<Array>(shape, p.bias_dtype);
      grad_bias->fill_all(kUntouched);
    }
    if (p.visible) {
      visible = std::make_unique<Array>(std::vector<int64_t>{p.batch, p.heads, p.q_len, p.kv_len},
                                        DType::kBool);
      visible->randomise(++seed);
    }
    dropout.threshold = dropout_threshold(p.dropout);
    dropout.seed = 99;
    dropout.offset = 3;
  }

  // Full size, stride 0 where the bias has 1.
  Tensor broadcast_bias() const {
    if (bias == nullptr) return {};
    Tensor tensor = bias->tensor;
    const int64_t full[] = {problem.batch, problem.heads, problem.q_len, problem.kv_len};
    for (int i = 0; i < 4; ++i) {
      if (tensor.shape[i] == 1) tensor.stride[i] = 0;
      tensor.shape[i] = full[i];
    }
    return tensor;
  }
  static Tensor lengths_tensor(std::vector<int64_t>& values) {
    if (values.empty()) return {};
    Tensor tensor;
    tensor.data = values.data();
    tensor.dtype = DType::kI64;
    tensor.rank = 1;
    tensor.shape[0] = static_cast<int64_t>(values.size());
    tensor.stride[0] = 1;
    return tensor;
  }
  template <class Arguments>
  Arguments common() {
    Arguments arguments;
    arguments.query = query->tensor;
    arguments.key = key->tensor;
    arguments.value = value->tensor;
    arguments.bias = broadcast_bias();
    if (visible != nullptr) arguments.visible = visible->tensor;
    arguments.out = out->tensor;
    arguments.lse = lse->tensor;
    arguments.cu_seqlens_q = lengths_tensor(cu_q);
    arguments.cu_seqlens_kv = lengths_tensor(cu_kv);
    arguments.kv_lens = lengths_tensor(lengths);
    arguments.dropout = dropout;
    return arguments;
  }

  template <class Run>
  void run(bool backward_pass, int32_t threads, const Run& run_it) {
    const auto pool = make_thread_pool(threads);
    const size_t bytes = reference::attention_workspace(problem, pool->workers(), backward_pass);
    const auto release = [](std::byte* memory) {
      ::operator delete (memory, std::align_val_t{kWorkspaceAlignment});
    };
    const std::unique_ptr<std::byte, decltype(release)> workspace(
        static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kWorkspaceAlignment})),
        release);
    std::memset(workspace.get(), 0xff, bytes);  // NaN, wherever it is read before it is written
    run_it(Execution{*pool, workspace.get()});
  }
  void forward(int32_t threads = 1) {
    run(false, threads, [&](const Execution& execution) {
      reference::attention_forward(problem, common<AttentionForward>(), execution);
    });
  }
  void backward(int32_t threads = 1) {
    auto arguments = common<AttentionBackward>();
    arguments.grad_out = grad_out->tensor;
    arguments.grad_lse = grad_lse->tensor;
    if (problem.grad_query) arguments.grad_query = grad_query->tensor;
    if (problem.grad_key) arguments.grad_key = grad_key->tensor;
    if (problem.grad_value) arguments.grad_value = grad_value->tensor;
    if (problem.grad_bias) arguments.grad_bias = grad_bias->tensor;
    run(true, threads, [&](const Execution& execution) {
      reference::attention_backward(problem, arguments, execution);
    });
  }

  bool sees(const Sequence& sequence, int64_t b, int64_t h, int64_t i, int64_t j) const {
    const KeyRange range = visible_keys(problem, i, sequence.q_len, sequence.kv_len);
    const int64_t index = ((b * problem.heads + h) * problem.q_len + i) * problem.kv_len + j;
    return j >= range.begin && j < range.end && (visible == nullptr || visible->get(index) != 0);
  }
  // Element (batch, head, row, column) of a tensor whose rows may be packed.
  double at(const Array& array, int64_t b, int64_t h, int64_t row, int64_t begin, int64_t i) const {
    const Tensor& t = array.tensor;
    const int64_t dims = problem.ragged ? 3 : 4;
    const int64_t dim = t.rank == dims ? t.shape[dims - 1] : 1;
    const int64_t length = t.shape[dims - 2];
    const int64_t heads = t.shape[dims - 3];
    const int64_t outer = problem.ragged ? h : b * heads + h;
    return array.get((outer * length + begin + row) * dim + i);
  }
  // Checks out and lse against the formula, one row after another.
  void check_forward() {
    const AttentionForward arguments = common<AttentionForward>();
    const Tensor broadcast = broadcast_bias();
    for (int64_t b = 0; b < problem.batch; ++b) {
      const Sequence s = sequence_of(problem, arguments, b);
      for (int64_t h = 0; h < problem.heads; ++h)
        for (int64_t i = 0; i < s.q_len; ++i) {
          const int64_t g = h / (problem.heads / problem.kv_heads);
          std::vector<double> weights(static_cast<size_t>(s.kv_len));
          double sum = 0;
          for (int64_t j = 0; j < s.kv_len; ++j) {
            if (!sees(s, b, h, i, j)) continue;
            double score = 0;
            for (int64_t d = 0; d < problem.head_dim; ++d)
              score += at(*query, b, h, i, s.q_begin, d) * at(*key, b, g, j, s.kv_begin, d);
            score *= problem.scale;
            if (problem.bias)
              score +=
                  reference::load(broadcast, b * broadcast.stride[0] + h * broadcast.stride[1] +
                                                 i * broadcast.stride[2] + j * broadcast.stride[3]);
            sum += weights[static_cast<size_t>(j)] = std::exp(score);
          }
          const double row_lse = at(*lse, b, h, i, s.q_begin, 0);
          if (sum > 0)
            ASSERT_NEAR(row_lse, std::log(sum), 1e-12);
          else
            ASSERT_EQ(row_lse, -kInfinity);
          for (int64_t d = 0; d < problem.value_dim; ++d) {
            double expected = 0;
            for (int64_t j = 0; j < s.kv_len; ++j)
              if (weights[static_cast<size_t>(j)] != 0 &&
                  dropout_keeps(dropout, b * problem.heads + h, i, j))
                expected += weights[static_cast<size_t>(j)] / sum * 256.0 / dropout.threshold *
                            at(*value, b, g, j, s.kv_begin, d);
            ASSERT_NEAR(at(*out, b, h, i, s.q_begin, d), expected, 1e-12)
                << "batch " << b << " head " << h << " row " << i;
          }
        }
    }
  }
  // What the gradients are of. Rows that see nothing, and rows of no sequence, do not count.
  double loss() {
    forward();
    double total = 0;
    for (int64_t i = 0; i < out->count(); ++i)
      if (out->get(i) != kUntouched) total += out->get(i) * grad_out->get(i);
    for (int64_t i = 0; i < lse->count(); ++i)
      if (std::isfinite(lse->get(i)) && lse->get(i) != kUntouched)
        total += lse->get(i) * grad_lse->get(i);
    return total;
  }
  // samples: how many elements of each gradient are looked at.
  void check_gradient(Array& input, const Array& gradient, const char* name, int64_t samples) {
    const int64_t step = std::max(int64_t{1}, input.count() / samples);
    for (int64_t i = 0; i < input.count(); i += step) {
      const double expected = input.central_difference(i, [&] { return loss(); });
      if (gradient.get(i) == kUntouched)
        EXPECT_EQ(expected, 0) << name << " is not written at " << i;
      else
        EXPECT_NEAR(gradient.get(i), expected, 2e-8) << name << " at " << i;
    }
  }
  void check(int64_t samples = 1000) {
    problem.grad_bias = problem.bias;
    forward();
    check_forward();
    backward();
    check_gradient(*query, *grad_query, "grad_query", samples);
    check_gradient(*key, *grad_key, "grad_key", samples);
    check_gradient(*value, *grad_value, "grad_value", samples);
    if (problem.bias) check_gradient(*bias, *grad_bias, "grad_bias", samples);
  }
};

void with_bias(AttentionProblem& problem, bool batch, bool heads, bool q, bool kv) {
  problem.bias = true;
  problem.bias_shape[0] = batch ? problem.batch : 1;
  problem.bias_shape[1] = heads ? problem.heads : 1;
  problem.bias_shape[2] = q ? problem.q_len : 1;
  problem.bias_shape[3] = kv ? problem.kv_len : 1;
}

TEST(AttentionReference, ByHand) {
  AttentionProblem problem = make_problem(1, 1, 1, 1, 2, 1, 1);
  problem.scale = 1;
  with_bias(problem, true, true, true, true);
  problem.grad_bias = true;
  Attention attention(problem);
  attention.query->fill({1});
  attention.key->fill({std::log(1.0), std::log(2.0)});
  attention.bias->fill({std::log(2.0), std::log(3.0)});  // weights 2 and 6 of 8
  attention.value->fill({4, 8});
  attention.forward();
  attention.out->expect({7});
  attention.lse->expect({std::log(8.0)});
  attention.grad_out->fill({1});
  attention.grad_lse->fill({2});
  attention.backward();
  // grad_score = p (v - 7 + 2): 1/4 * -1 and 3/4 * 3
  attention.grad_bias->expect({-0.25, 2.25});
  attention.grad_value->expect({0.25, 0.75});
  attention.grad_query->expect({2.25 * std::log(2.0)});
  attention.grad_key->expect({-0.25, 2.25});
}

TEST(AttentionReference, Dense) { Attention(make_problem(2, 4, 2, 5, 7, 3, 2)).check(); }

TEST(AttentionReference, SeveralBlocksOfRows) {
  AttentionProblem problem = make_problem(1, 2, 1, 37, 23, 4, 5);
  problem.causal = Causal::kBottomRight;
  with_bias(problem, false, true, false, true);
  problem.dropout = 0.2;
  Attention(problem).check(40);
}

TEST(AttentionReference, CausalAndWindows) {
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
    for (const int64_t left : {-1, 0, 2})
      for (const int64_t right : {-1, 0, 1})
        for (const int64_t kv_len : {3, 7}) {
          AttentionProblem problem = make_problem(1, 2, 1, 5, kv_len, 3, 2);
          problem.causal = causal;
          problem.window_left = left;
          problem.window_right = right;
          Attention(problem).check(12);
        }
}

TEST(AttentionReference, BiasOfEveryBroadcastShape) {
  for (int bits = 0; bits < 16; ++bits) {
    AttentionProblem problem = make_problem(2, 4, 2, 5, 7, 3, 2);
    with_bias(problem, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0);
    problem.dropout = bits % 2 == 0 ? 0 : 0.3;
    Attention(problem).check(30);
  }
}

TEST(AttentionReference, DropoutVisibleMaskAndLengths) {
  AttentionProblem problem = make_problem(3, 4, 2, 5, 7, 3, 2);
  problem.dropout = 0.4;
  problem.visible = true;
  problem.causal = Causal::kBottomRight;
  with_bias(problem, true, false, true, true);
  Attention attention(problem, {}, {}, {7, 0, 4});
  attention.check(80);
  for (int64_t i = 0; i < attention.grad_key->count(); ++i)
    EXPECT_NE(attention.grad_key->get(i), kUntouched) << "keys beyond a length get 0";
}

TEST(AttentionReference, Ragged) {
  for (const bool lengths : {false, true}) {
    AttentionProblem problem = make_problem(4, 4, 2, 5, 6, 3, 2);
    problem.total_q = 12;
    problem.total_kv = 17;
    problem.dropout = 0.3;
    problem.causal = Causal::kBottomRight;
    problem.visible = true;
    with_bias(problem, true, true, true, true);
    Attention attention(problem, {0, 3, 3, 8, 10}, {0, 4, 7, 7, 13},
                        lengths ? std::vector<int64_t>{2, 6, 1, 5} : std::vector<int64_t>{});
    attention.check(100);
    // Rows of no sequence are not written; all others are.
    const auto expect_rows = [&](const Array& array, int64_t end, int64_t total, int64_t dim) {
      for (int64_t i = 0; i < array.count(); ++i)
        EXPECT_EQ(array.get(i) == kUntouched, i / dim % total >= end) << i;
    };
    expect_rows(*attention.out, 10, 12, 2);
    expect_rows(*attention.lse, 10, 12, 1);
    expect_rows(*attention.grad_query, 10, 12, 3);
    expect_rows(*attention.grad_key, 13, 17, 3);
    expect_rows(*attention.grad_value, 13, 17, 2);
    for (int64_t i = 0; i < attention.grad_bias->count(); ++i)
      EXPECT_NE(attention.grad_bias->get(i), kUntouched);
  }
}

TEST(AttentionReference, RaggedEqualsTheSequencesAlone) {
  AttentionProblem problem = make_problem(2, 2, 1, 18, 9, 3, 2);
  problem.total_q = 20;
  problem.total_kv = 14;
  problem.causal = Causal::kBottomRight;
  Attention packed(problem, {0, 18, 20}, {0, 5, 14});
  packed.forward();
  Attention alone(make_problem(1, 2, 1, 2, 9, 3, 2));
  alone.problem.causal = Causal::kBottomRight;
  const auto take = [](const Array& from, Array& to, int64_t begin, int64_t total, int64_t length) {
    const int64_t dim = to.tensor.shape[3];
    for (int64_t i = 0; i < to.count(); ++i) {
      const int64_t head = i / (length * dim);
      to.set(i, from.get((head * total + begin) * dim + i % (length * dim)));
    }
  };
  take(*packed.query, *alone.query, 18, 20, 2);
  take(*packed.key, *alone.key, 5, 14, 9);
  take(*packed.value, *alone.value, 5, 14, 9);
  alone.forward();
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(packed.out->get((h * 20 + 18) * 2 + i), alone.out->get(h * 4 + i));
}

TEST(AttentionReference, NothingLeaksFromMaskedPositions) {
  AttentionProblem problem = make_problem(2, 4, 2, 18, 7, 3, 2);
  problem.visible = true;
  with_bias(problem, true, true, true, true);
  problem.grad_bias = true;
  Attention clean(problem, {}, {}, {7, 5}), poisoned(problem, {}, {}, {7, 5});
  // Key 3 is seen by row 2 of head 0 alone, row 1 sees nothing, and so does the last row.
  for (Attention* attention : {&clean, &poisoned})
    for (int64_t i = 0; i < attention->visible->count(); ++i) {
      const int64_t key = i % 7, row = i / 7 % 18, head = i / (7 * 18) % 4;
      if (key == 3) attention->visible->set(i, head == 0 && row == 2);
      if (row == 1 || row == 17) attention->visible->set(i, 0);
    }
  int poison = 0;
  const auto next_poison = [&] {
    return ++poison % 3 == 0 ? kNaN : poison % 3 == 1 ? kInfinity : -kInfinity;
  };
  for (int64_t i = 0; i < poisoned.bias->count(); ++i)
    if (poisoned.visible->get(i) == 0) poisoned.bias->set(i, next_poison());
  const auto poison_rows = [&](Array& array, int64_t length, int64_t dim, auto chosen) {
    for (int64_t i = 0; i < array.count(); ++i)
      if (chosen(i / (length * dim), i / dim % length)) array.set(i, next_poison());
  };
  const auto masked_key = [](int64_t batch_head, int64_t key) {
    return (batch_head >= 2 && key >= 5) || (batch_head % 2 == 1 && key == 3);
  };
  const auto empty_row = [](int64_t, int64_t row) { return row == 1 || row == 17; };
  poison_rows(*poisoned.key, 7, 3, masked_key);
  poison_rows(*poisoned.value, 7, 2, masked_key);
  poison_rows(*poisoned.query, 18, 3, empty_row);
  poison_rows(*poisoned.grad_out, 18, 2, empty_row);
  poison_rows(*poisoned.grad_lse, 18, 1, empty_row);
  for (Attention* attention : {&clean, &poisoned}) {
    attention->forward();
    attention->backward();
  }
  expect_same_bytes(*clean.out, *poisoned.out);
  expect_same_bytes(*clean.lse, *poisoned.lse);
  expect_same_bytes(*clean.grad_query, *poisoned.grad_query);
  expect_same_bytes(*clean.grad_key, *poisoned.grad_key);
  expect_same_bytes(*clean.grad_value, *poisoned.grad_value);
  expect_same_bytes(*clean.grad_bias, *poisoned.grad_bias);
  for (int64_t i = 0; i < clean.out->count(); ++i) {
    EXPECT_TRUE(std::isfinite(clean.out->get(i)));
    EXPECT_EQ(clean.out->get(i) == 0, i / 2 % 18 == 17 || i / 2 % 18 == 1) << i;
  }

  // What one row does see reaches that row and no other.
  for (int64_t d = 0; d < 2; ++d) poisoned.value->set(3 * 2 + d, kNaN);
  poisoned.forward();
  for (int64_t i = 0; i < clean.out->count(); ++i)
    EXPECT_EQ(std::isnan(poisoned.out->get(i)), i / 2 == 2) << i;
}

TEST(AttentionReference, BiasOfMinusInfinity) {
  AttentionProblem problem = make_problem(1, 1, 1, 3, 4, 3, 2);
  with_bias(problem, true, true, true, true);
  problem.grad_bias = true;
  Attention attention(problem);
  for (int64_t j = 0; j < 4; ++j) attention.bias->set(4 + j, -kInfinity);  // row 1 sees nothing
  attention.bias->set(0, -kInfinity);
  attention.forward();
  attention.check_forward();
  attention.backward();
  EXPECT_EQ(attention.lse->get(1), -kInfinity);
  for (int64_t d = 0; d < 2; ++d) EXPECT_EQ(attention.out->get(2 + d), 0);
  for (int64_t d = 0; d < 3; ++d) EXPECT_EQ(attention.grad_query->get(3 + d), 0);
  for (const int64_t i : {0, 4, 5, 6, 7}) EXPECT_EQ(attention.grad_bias->get(i), 0);
  for (int64_t i = 0; i < attention.grad_key->count(); ++i)
    EXPECT_TRUE(std::isfinite(attention.grad_key->get(i)));
}

TEST(AttentionReference, NoKeysAndNoQueries) {
  AttentionProblem problem = make_problem(2, 2, 1, 3, 0, 3, 2);
  Attention no_keys(problem);
  no_keys.forward(2);
  no_keys.backward(2);
  no_keys.out->expect(std::vector<double>(24, 0));
  no_keys.lse->expect(std::vector<double>(12, -kInfinity));
  no_keys.grad_query->expect(std::vector<double>(36, 0));

  problem = make_problem(2, 2, 1, 0, 3, 3, 2);
  with_bias(problem, false, false, false, true);
  problem.grad_bias = true;
  Attention no_queries(problem);
  no_queries.forward(2);
  no_queries.backward(2);
  no_queries.grad_key->expect(std::vector<double>(18, 0));
  no_queries.grad_value->expect(std::vector<double>(12, 0));
  no_queries.grad_bias->expect({0, 0, 0});
  Attention(make_problem(0, 2, 1, 3, 3, 3, 2)).forward();
}

TEST(AttentionReference, ThreadsAndTheChoiceOfGradientsChangeNothing) {
  AttentionProblem problem = make_problem(2, 4, 2, 35, 20, 6, 5);
  problem.dropout = 0.2;
  with_bias(problem, false, true, false, true);
  problem.grad_bias = true;
  Attention one(problem), many(problem);
  one.forward(1);
  one.backward(1);
  many.forward(3);
  many.backward(3);
  expect_same_bytes(*one.out, *many.out);
  expect_same_bytes(*one.lse, *many.lse);
  const auto same = [&](const Attention& other) {
    if (other.problem.grad_query) expect_same_bytes(*one.grad_query, *other.grad_query);
    if (other.problem.grad_key) expect_same_bytes(*one.grad_key, *other.grad_key);
    if (other.problem.grad_value) expect_same_bytes(*one.grad_value, *other.grad_value);
    if (other.problem.grad_bias) expect_same_bytes(*one.grad_bias, *other.grad_bias);
  };
  same(many);
  for (int bits = 0; bits < 16; ++bits) {
    problem.grad_query = (bits & 1) != 0;
    problem.grad_key = (bits & 2) != 0;
    problem.grad_value = (bits & 4) != 0;
    problem.grad_bias = (bits & 8) != 0;
    Attention some(problem);
    some.backward(2);
    same(some);
  }
}

TEST(AttentionReference, AnyTypeAndStrides) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    AttentionProblem problem = make_problem(2, 4, 2, 5, 7, 3, 2);
    with_bias(problem, true, true, true, true);
    problem.grad_bias = true;
    problem.dtype = dtype;
    problem.bias_dtype = DType::kF32;
    Attention narrow(problem);
    // [batch, sequence, heads, dim] in memory.
    narrow.key = std::make_unique<Array>(std::vector<int64_t>{2, 2, 7, 3}, dtype,
                                         std::vector<int64_t>{42, 3, 6, 1});
    narrow.grad_key = std::make_unique<Array>(std::vector<int64_t>{2, 2, 7, 3}, dtype,
                                              std::vector<int64_t>{42, 3, 6, 1});
    narrow.key->randomise(77);
    problem.dtype = problem.bias_dtype = DType::kF64;
    Attention wide(problem);
    const auto copy = [](const Array& from, Array& to) {
      for (int64_t i = 0; i < from.count(); ++i) to.set(i, from.get(i));
    };
    copy(*narrow.query, *wide.query);
    copy(*narrow.key, *wide.key);
    copy(*narrow.value, *wide.value);
    copy(*narrow.bias, *wide.bias);
    copy(*narrow.grad_out, *wide.grad_out);
    copy(*narrow.grad_lse, *wide.grad_lse);
    for (Attention* attention : {&narrow, &wide}) {
      attention->forward();
      attention->backward();
    }
    const auto same_rounded = [](const Array& from, const Array& to) {
      Array rounded({1}, to.tensor.dtype);
      for (int64_t i = 0; i < from.count(); ++i) {
        rounded.set(0, from.get(i));
        EXPECT_EQ(to.get(i), rounded.get(0));
      }
    };
    same_rounded(*wide.out, *narrow.out);
    same_rounded(*wide.lse, *narrow.lse);
    same_rounded(*wide.grad_query, *narrow.grad_query);
    same_rounded(*wide.grad_key, *narrow.grad_key);
    same_rounded(*wide.grad_value, *narrow.grad_value);
    same_rounded(*wide.grad_bias, *narrow.grad_bias);
  }
}

TEST(AttentionReference, WorkspaceGrowsWithKeysAlone) {
  AttentionProblem problem = make_problem(1, 8, 8, 1 << 20, 1 << 12, 64, 64);
  for (const bool backward : {false, true}) {
    const size_t bytes = reference::attention_workspace(problem, 1, backward);
    problem.q_len *= 2;
    EXPECT_EQ(reference::attention_workspace(problem, 1, backward), bytes);
    problem.kv_len *= 2;
    EXPECT_LE(reference::attention_workspace(problem, 1, backward), 2 * bytes);
    EXPECT_EQ(reference::attention_workspace(problem, 2, backward),
              2 * reference::attention_workspace(problem, 1, backward));
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
