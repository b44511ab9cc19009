// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward of every instruction set against the float64 reference, and what is promised
// bit for bit.
#include "attention_cases.hpp"

namespace perseid::internal::cpu {
namespace {

using namespace attention_cases;

void check(const Case& test, const std::string& name) {
  SCOPED_TRACE(name);
  Fixture fixture(test);
  for (const KernelTable* table : tables()) fixture.check(*table);
}

TEST(AttentionBackward, EveryTypeAndLayout) {
  for (const DType dtype : kTypes) {
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kReversed, Layout::kSpread}) {
      Case test = make_case(dtype, 2, 4, 2, 70, 133, 40, 24);
      test.layout = layout;
      test.grad_lse = true;
      check(test,
            std::string(name_of(dtype)) + " layout " + std::to_string(static_cast<int>(layout)));
    }
  }
}

TEST(AttentionBackward, Sizes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t dim : {1, 3, 16, 64, 80, 129, 257})
      check(make_case(dtype, 1, 2, 1, 37, 65, dim, dim),
            std::string(name_of(dtype)) + " dim " + std::to_string(dim));
    for (const int64_t q_len : {0, 1, 2, 95, 96, 97, 193})
      for (const int64_t kv_len : {0, 1, 63, 64, 65, 192, 193})
        check(make_case(dtype, 1, 1, 1, q_len, kv_len, 8, 16), std::string(name_of(dtype)) + " " +
                                                                   std::to_string(q_len) + " x " +
                                                                   std::to_string(kv_len));
  }
  check(make_case(DType::kF32, 0, 2, 1, 5, 5, 8, 8), "no batch");
  check(make_case(DType::kF64, 1, 3, 3, 200, 300, 33, 65), "float64");
}

TEST(AttentionBackward, MasksOfRange) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      for (const int64_t q_len : {100, 250, 420}) {
        for (const auto& [left, right] :
             {std::pair<int64_t, int64_t>{-1, -1}, {70, -1}, {0, 0}, {-1, 30}, {130, 5}}) {
          Case test = make_case(dtype, 1, 2, 1, q_len, 250, 16, 16);
          test.problem.causal = causal;
          test.problem.window_left = left;
          test.problem.window_right = right;
          test.grad_lse = true;
          check(test, std::string(name_of(dtype)) + " causal " +
                          std::to_string(static_cast<int>(causal)) + " q_len " +
                          std::to_string(q_len) + " window " + std::to_string(left) + "," +
                          std::to_string(right));
        }
      }
    }
  }
}

TEST(AttentionBackward, InputScales) {
  for (const DType dtype : kTypes)
    for (const double scale : {0.1, 3.0, 10.0}) {
      Case test = make_case(dtype, 2, 2, 1, 110, 333, 32, 24);
      test.input_scale = scale;
      test.problem.causal = Causal::kBottomRight;
      check(test, std::string(name_of(dtype)) + " times " + std::to_string(scale));
    }
}

TEST(AttentionBackward, Ragged) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case test = make_case(dtype, 0, 4, 2, 0, 0, 24, 32);
    set_ragged(test, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
    test.layout = Layout::kBshd;
    check(test, "plain");
    test.problem.causal = Causal::kBottomRight;
    test.problem.dropout = 0.3;
    test.problem.kv_lens = true;
    test.kv_lens = {7, 1, 90, 0, 63};
    test.grad_lse = true;
    check(test, "causal, dropout, kv_lens");
    add_bias(test, DType::kF32, {5, 1, 130, 200}, true);
    set_visible(test, {1, 4, 130, 1});
    check(test, "bias, visible");
  }
}

TEST(AttentionBackward, KeyLengths) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case test = make_case(dtype, 4, 2, 2, 30, 700, 16, 8);
    test.problem.kv_lens = true;
    test.kv_lens = {0, 1, 513, 700};
    // What lies behind the lengths must not matter.
    test.prepare = [](AttentionBackward& a) {
      const int64_t lens[] = {0, 1, 513, 700};
      for (int64_t b = 0; b < 4; ++b)
        for (int64_t j = lens[b]; j < 700; ++j) {
          put(a.key, at(a.key, {b, 1, j, 3}), kNaN);
          put(a.value, at(a.value, {b, 0, j, 2}), kInfinity);
        }
    };
    check(test, name_of(dtype));
    test.problem.causal = Causal::kBottomRight;
    check(test, std::string(name_of(dtype)) + " causal");
  }
}

TEST(AttentionBackward, BiasOfEveryShape) {
  for (int broadcast_dims = 0; broadcast_dims < 16; ++broadcast_dims) {
    for (const DType dtype : {DType::kF32, kTypes[broadcast_dims % 3 + 1]}) {
      Case test = make_case(dtype, 2, 4, 2, 101, 205, 8, 16);
      const auto size = [&](int d, int64_t full) {
        return (broadcast_dims >> d & 1) != 0 ? int64_t{1} : full;
      };
      add_bias(test, dtype == DType::kBF16 && broadcast_dims % 2 == 0 ? DType::kF32 : dtype,
               {size(0, 2), size(1, 4), size(2, 101), size(3, 205)}, true);
      test.layout = broadcast_dims % 3 == 0 ? Layout::kSpread : Layout::kBhsd;
      test.problem.causal = broadcast_dims % 4 == 1 ? Causal::kTopLeft : Causal::kNone;
      test.problem.dropout = broadcast_dims % 5 == 2 ? 0.2 : 0;
      test.grad_lse = broadcast_dims % 2 == 1;
      check(test, std::string(name_of(dtype)) + " broadcast " + std::to_string(broadcast_dims));
    }
  }
  Case test = make_case(DType::kF32, 2, 2, 1, 101, 0, 8, 16);
  add_bias(test, DType::kF32, {1, 1, 101, 1}, true);
  check(test, "the total of no keys");
}

TEST(AttentionBackward, VisibleOfEveryShape) {
  for (int broadcast_dims = 0; broadcast_dims < 16; ++broadcast_dims) {
    const DType dtype = kTypes[broadcast_dims % 4];
    Case test = make_case(dtype, 2, 4, 2, 101, 205, 8, 16);
    const auto size = [&](int d, int64_t full) {
      return (broadcast_dims >> d & 1) != 0 ? int64_t{1} : full;
    };
    set_visible(test, {size(0, 2), size(1, 4), size(2, 101), size(3, 205)});
    if (broadcast_dims % 3 == 1) test.problem.causal = Causal::kBottomRight;
    check(test, std::string(name_of(dtype)) + " broadcast " + std::to_string(broadcast_dims));
  }
}

TEST(AttentionBackward, Dropout) {
  for (const DType dtype : kTypes) {
    for (const double probability : {0.1, 0.5, 0.9}) {
      Case test = make_case(dtype, 2, 2, 1, 210, 333, 24, 40);
      test.problem.dropout = probability;
      test.grad_lse = true;
      if (probability == 0.5) test.problem.causal = Causal::kBottomRight;
      check(test, std::string(name_of(dtype)) + " " + std::to_string(probability));
    }
  }
}

// Enough keys for several chunks; heads and chunks as tasks of their own, and not.
TEST(AttentionBackward, ManyKeys) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t batch : {1, 9}) {
      Case test = make_case(dtype, batch, 4, 2, 20, 1300, 8, 8);
      check(test, std::string(name_of(dtype)) + " batch " + std::to_string(batch));
      test.problem.causal = Causal::kBottomRight;
      test.problem.window_left = 900;
      check(test, std::string(name_of(dtype)) + " window, batch " + std::to_string(batch));
    }
  }
  check(make_case(DType::kF32, 1, 1, 1, 3, 6000, 4, 4), "as many chunks as there may be");
}

TEST(AttentionBackward, Subsets) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (int wanted = 0; wanted < 16; ++wanted) {
      for (const int64_t batch : {1, 8}) {
        if (batch == 8 && dtype == DType::kBF16) continue;
        Case test = make_case(dtype, batch, 4, 2, 9, 520, 8, 4);
        add_bias(test, dtype, {1, 4, 9, 520}, (wanted & 8) != 0);
        test.problem.grad_query = (wanted & 1) != 0;
        test.problem.grad_key = (wanted & 2) != 0;
        test.problem.grad_value = (wanted & 4) != 0;
        check(test, std::string(name_of(dtype)) + " subset " + std::to_string(wanted));
      }
    }
    // A subset at execution of what was planned.
    Fixture fixture(make_case(dtype, 1, 4, 2, 33, 600, 16, 8));
    fixture.arguments.grad_query = {};
    for (const KernelTable* table : tables()) {
      fixture.run(*table, *fixture.pool);
      fixture.compare_gradients();
    }
  }
}

// Nothing that is masked has a way into a result, whether it is a key, a value or a query with its
// gradient.
TEST(AttentionBackward, NonfiniteValuesWhereMasked) {
  for (const DType dtype : kTypes) {
    for (const bool by_bias : {false, true}) {
      Case test = make_case(dtype, 1, 2, 1, 210, 300, 24, 40);
      // Keys 10 and 250 are seen by queries 20..29 alone, query 150 sees nothing.
      const auto sees = [](int64_t i, int64_t j) {
        return i != 150 && ((j != 10 && j != 250) || (i >= 20 && i < 30));
      };
      if (by_bias) {
        add_bias(test, dtype, {1, 1, 210, 300}, false);
      } else {
        set_visible(test, {1, 1, 210, 300});
      }
      test.prepare = [=](AttentionBackward& a) {
        for (int64_t i = 0; i < 210; ++i)
          for (int64_t j = 0; j < 300; ++j) {
            if (by_bias && !sees(i, j)) put(a.bias, at(a.bias, {0, 0, i, j}), -kInfinity);
            if (!by_bias) put(a.visible, at(a.visible, {0, 0, i, j}), sees(i, j));
          }
        if (by_bias) return;
        for (const int64_t j : {10, 250}) {
          put(a.key, at(a.key, {0, 0, j, 3}), kNaN);
          put(a.value, at(a.value, {0, 0, j, 5}), j == 10 ? kInfinity : kNaN);
        }
        put(a.query, at(a.query, {0, 0, 150, 1}), kNaN);
        put(a.query, at(a.query, {0, 1, 150, 1}), -kInfinity);
        put(a.grad_out, at(a.grad_out, {0, 0, 150, 7}), kNaN);
        put(a.grad_out, at(a.grad_out, {0, 1, 150, 0}), kInfinity);
      };
      check(test, std::string(name_of(dtype)) + (by_bias ? " by bias" : " by visible"));
    }
    Case test = make_case(dtype, 1, 2, 1, 150, 220, 16, 16);
    test.problem.causal = Causal::kTopLeft;
    test.prepare = [](AttentionBackward& a) {
      for (int64_t j = 149; j < 220; ++j) put(a.key, at(a.key, {0, 0, j, 3}), kNaN);
      for (int64_t j = 140; j < 220; ++j) put(a.value, at(a.value, {0, 0, j, 3}), -kInfinity);
    };
    check(test, std::string(name_of(dtype)) + " causal");
  }
}

// The gradients' bytes with a number of threads.
Bytes gradients(Fixture& fixture, const KernelTable& table, int32_t threads) {
  const std::unique_ptr<Executor> pool = make_thread_pool(threads);
  fixture.run(table, *pool);
  Bytes bytes;
  for (const Array* array :
       {&fixture.grad_query, &fixture.grad_key, &fixture.grad_value, &fixture.grad_bias})
    bytes.insert(bytes.end(), array->memory.begin(), array->memory.end());
  return bytes;
}

TEST(AttentionBackward, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t batch : {1, 8}) {
      Case test = make_case(dtype, batch, 4, 2, 100, 1030, 8, 16);
      test.bits_alone = true;
      test.problem.causal = Causal::kBottomRight;
      add_bias(test, dtype, {1, 1, batch == 1 ? 100 : 1, 1030}, true);
      Fixture fixture(test);
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(table->isa);
        const Bytes one = gradients(fixture, *table, 1);
        for (const int32_t threads : {2, 3, 5}) EXPECT_EQ(gradients(fixture, *table, threads), one);
      }
    }
  }
}

// A sequence alone, and as the last of a batch that is large enough to be cut into tasks in another
// way.
TEST(AttentionBackward, SameBitsAnywhereInABatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t kv_heads : {1, 2}) {
      constexpr int64_t kBatch = 17;
      Case batch = make_case(dtype, kBatch, 2, kv_heads, 200, 1030, 8, 4);
      batch.bits_alone = true;
      add_bias(batch, dtype, {kBatch, 1, 1, 1030}, true);
      Fixture many(batch);
      Case alone = make_case(dtype, 1, 2, kv_heads, 200, 1030, 8, 4);
      alone.bits_alone = true;
      add_bias(alone, dtype, {1, 1, 1, 1030}, true);
      alone.prepare = [&](AttentionBackward& a) {
        const auto last = [&](const Tensor& tensor) { return entry_of(tensor, kBatch - 1); };
        copy(last(many.arguments.query), a.query);
        copy(last(many.arguments.key), a.key);
        copy(last(many.arguments.value), a.value);
        copy(last(many.arguments.grad_out), a.grad_out);
        copy(last(many.arguments.bias), a.bias);
      };
      Fixture one(alone);
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(table->isa);
        many.run(*table, *many.pool);
        one.run(*table, *one.pool);
        for (const auto gradient :
             {&Fixture::grad_query, &Fixture::grad_key, &Fixture::grad_value, &Fixture::grad_bias})
          expect_same_bits(entry_of((many.*gradient).tensor, kBatch - 1), (one.*gradient).tensor);
      }
    }
  }
}

// Works alone, and knows the most tasks that it was given at once.
class CountingExecutor final : public Executor {
 public:
  int32_t workers() const override { return 4; }
  void run(int64_t tasks, TaskFunction function, void* state) override {
    most = max(most, tasks);
    for (int64_t task = 0; task < tasks; ++task) function(state, task, 0);
  }
  int64_t most = 0;
};

TEST(AttentionBackward, BiasOfOneRowIsManyTasks) {
  Case test = make_case(DType::kF32, 1, 2, 2, 500, 40, 8, 8);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  add_bias(test, DType::kF32, {1, 1, 1, 40}, true);
  Fixture fixture(test);
  for (const KernelTable* table : tables()) {
    CountingExecutor executor;
    fixture.run(*table, executor);
    EXPECT_GE(executor.most, 10) << table->isa;
  }
}

// A plan of the most lengths has room for all shorter ones, which may be split more often.
TEST(AttentionBackward, MemoryOfTheMostLengthsSuffices) {
  std::mt19937 random(3);
  const auto one_of = [&](const std::vector<int64_t>& sizes) {
    return sizes[random() % sizes.size()];
  };
  for (const KernelTable* table : tables())
    for (int turn = 0; turn < 4000; ++turn) {
      const int64_t q_len = one_of({1, 50, 300, 1000, 1500}), kv_len = one_of({1, 500, 513, 6000});
      Case test = make_case(one_of({0, 1}) == 0 ? DType::kF32 : DType::kBF16, one_of({1, 2, 17}),
                            one_of({2, 4}), 2, q_len, kv_len, 16, 16);
      AttentionProblem& p = test.problem;
      if (one_of({0, 1}) == 0)
        add_bias(
            test, DType::kF32,
            {one_of({1, p.batch}), one_of({1, p.heads}), one_of({1, q_len}), one_of({1, kv_len})},
            true);
      p.grad_query = random() % 2 == 0;
      p.grad_key = p.grad_value = random() % 2 == 0;
      p.max_lengths = true;
      const auto workers = static_cast<int32_t>(one_of({1, 2, 64}));
      AttentionProblem shorter =
          with_lengths(p, {min(q_len, one_of({1, 40, 64, 130, 520, 1000})),
                           min(kv_len, one_of({1, 100, 512, 513, 1100, 2048, 5000})), 0, 0});
      shorter.max_lengths = false;
      ASSERT_LE(table->attention_backward_workspace(shorter, workers),
                table->attention_backward_workspace(p, workers))
          << text_of(test) << " " << shorter.q_len << "x" << shorter.kv_len << " workers "
          << workers;
    }
}

TEST(AttentionBackward, MemoryIsLinear) {
  for (const KernelTable* table : tables()) {
    const auto bytes = [&](int64_t length) {
      Case test = make_case(DType::kBF16, 1, 8, 8, length, length, 64, 64);
      add_bias(test, DType::kBF16, {1, 8, length, length}, true);
      return static_cast<double>(table->attention_backward_workspace(test.problem, 2));
    };
    EXPECT_LT(bytes(1 << 20), 2.1 * bytes(1 << 19)) << table->isa;
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
