// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward of every instruction set, by tiles and (where there are few queries) split over
// keys, against the float64 reference; and what is promised bit for bit.
#include "attention_cases.hpp"

namespace perseid::internal::cpu {
namespace {

using namespace attention_cases;

void check(const Case& test, const std::string& name) {
  SCOPED_TRACE(name);
  Fixture fixture(test);
  for (const KernelTable* table : tables()) fixture.check_forward(*table);
}

// Forward alone: the reference's backward is not needed.
Case forward_case(DType dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                  int64_t kv_len, int64_t dim, int64_t value_dim) {
  Case test = make_case(dtype, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  return test;
}

std::string text(std::initializer_list<int64_t> numbers) {
  std::string result;
  for (const int64_t n : numbers) result += " " + std::to_string(n);
  return result;
}

TEST(AttentionForward, EveryTypeAndLayout) {
  for (const DType dtype : kTypes) {
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kReversed, Layout::kSpread}) {
      for (const int64_t q_len : {3, 70}) {
        Case test = forward_case(dtype, 2, 4, 2, q_len, 133, 40, 24);
        test.layout = layout;
        check(test, name_of(dtype) + text({static_cast<int64_t>(layout), q_len}));
      }
    }
  }
}

TEST(AttentionForward, Sizes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t dim : {1, 3, 16, 31, 64, 80, 128, 129, 257})
      for (const int64_t q_len : {1, 37})
        check(forward_case(dtype, 1, 2, 1, q_len, 65, dim, dim), name_of(dtype) + text({dim}));
    for (const int64_t q_len : {0, 1, 2, 5, 6, 7, 23, 24, 25, 95, 96, 97, 193})
      for (const int64_t kv_len : {0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 513, 600})
        check(forward_case(dtype, 1, 1, 1, q_len, kv_len, 8, 16),
              name_of(dtype) + text({q_len, kv_len}));
  }
  check(forward_case(DType::kF32, 0, 2, 1, 5, 5, 8, 8), "no batch");
  check(forward_case(DType::kF64, 1, 3, 3, 200, 300, 33, 65), "float64");
}

// Around every number of keys at which a tile, a chunk of decode or a split begins, and so many
// that to lose some leaves a result of about the right size.
TEST(AttentionForward, BoundariesOfKeys) {
  for (const DType dtype : kTypes)
    for (const int64_t kv_len : {511, 512, 513, 1023, 1024, 1025, 5000})
      for (const int64_t q_len : {1, 3, 30}) {
        if (kv_len == 5000 && q_len == 3) continue;
        check(forward_case(dtype, 1, 2, 1, q_len, kv_len, 16, 8),
              name_of(dtype) + text({q_len, kv_len}));
      }
}

TEST(AttentionForward, MasksOfRange) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      for (const int64_t q_len : {4, 100, 250, 620}) {
        for (const auto& [left, right] :
             {std::pair<int64_t, int64_t>{-1, -1}, {70, -1}, {0, 0}, {-1, 30}, {300, 5}}) {
          Case test = forward_case(dtype, 1, 2, 1, q_len, 550, 16, 16);
          test.problem.causal = causal;
          test.problem.window_left = left;
          test.problem.window_right = right;
          check(test, name_of(dtype) + text({static_cast<int64_t>(causal), q_len, left, right}));
        }
      }
    }
  }
}

TEST(AttentionForward, RaggedAndKeyLengths) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case test = forward_case(dtype, 0, 4, 2, 0, 0, 24, 32);
    set_ragged(test, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
    test.layout = Layout::kBshd;
    check(test, "ragged");
    test.problem.causal = Causal::kBottomRight;
    test.problem.dropout = 0.3;
    test.problem.kv_lens = true;
    test.kv_lens = {7, 1, 90, 0, 63};
    check(test, "causal, dropout, kv_lens");
    add_bias(test, DType::kF32, {5, 1, 130, 200}, false);
    set_visible(test, {1, 4, 130, 1});
    check(test, "bias, visible");
    Case few = forward_case(dtype, 0, 4, 2, 0, 0, 24, 32);
    set_ragged(few, {1, 0, 3, 2}, {700, 3, 200, 0});
    few.problem.causal = Causal::kBottomRight;
    few.problem.dropout = 0.3;
    check(few, "ragged, few queries");
  }
}

TEST(AttentionForward, BiasVisibleDropout) {
  for (const DType dtype : kTypes) {
    for (const int64_t q_len : {4, 50}) {
      const std::vector<std::vector<int64_t>> shapes = {
          {2, 4, q_len, 300}, {1, 4, q_len, 300}, {2, 1, 1, 300}, {1, 1, q_len, 1}, {1, 1, 1, 1}};
      for (const auto& shape : shapes) {
        Case test = forward_case(dtype, 2, 4, 2, q_len, 300, 16, 16);
        add_bias(test, dtype == DType::kF64 ? DType::kF64 : DType::kF32, shape, false);
        check(test, "bias" + text({shape[0], shape[1], shape[2], shape[3]}));
        Case hidden = forward_case(dtype, 2, 4, 2, q_len, 300, 16, 16);
        set_visible(hidden, shape);
        hidden.problem.dropout = 0.25;
        check(hidden, "visible, dropout" + text({shape[0], shape[1], shape[2], shape[3]}));
      }
      Case narrow = forward_case(dtype, 1, 2, 2, q_len, 70, 16, 16);
      add_bias(narrow, dtype, {1, 2, q_len, 70}, false);
      narrow.layout = Layout::kSpread;
      check(narrow, "bias of the query's type, spread");
    }
  }
}

// NaN and infinity in values that no query may see, and in those that some may.
TEST(AttentionForward, NothingLeaksFromMaskedKeys) {
  for (const DType dtype : kTypes) {
    for (const int64_t q_len : {4, 60}) {
      for (const double poison : {kNaN, kInfinity, -kInfinity}) {
        Case test = forward_case(dtype, 1, 2, 1, q_len, 400, 16, 16);
        test.problem.causal = Causal::kTopLeft;
        test.prepare = [=](AttentionBackward& a) {
          for (const int64_t j : {q_len / 2, q_len, int64_t{300}}) {
            put(a.value, at(a.value, {0, 0, j, 3}), poison);
            put(a.key, at(a.key, {0, 0, j, 5}), kNaN);
          }
        };
        check(test, name_of(dtype) + text({q_len}) + " " + std::to_string(poison));
      }
    }
  }
}

// What every query sees reaches every row, the first of a group too.
TEST(AttentionForward, NonfiniteValuesReachWhoSeesThem) {
  for (const DType dtype : kTypes) {
    for (const int64_t q_len : {4, 60}) {
      for (const double poison : {kNaN, kInfinity, -kInfinity}) {
        Case test = forward_case(dtype, 1, 2, 1, q_len, 400, 16, 16);
        test.prepare = [=](AttentionBackward& a) {
          for (const int64_t j : {int64_t{0}, int64_t{300}})
            put(a.value, at(a.value, {0, 0, j, 3}), poison);
        };
        check(test, name_of(dtype) + text({q_len}) + " " + std::to_string(poison));
      }
    }
  }
}

TEST(AttentionForward, InputScales) {
  for (const DType dtype : kTypes)
    for (const double scale : {0.1, 3.0, 10.0})
      for (const int64_t q_len : {4, 60}) {
        Case test = forward_case(dtype, 2, 2, 1, q_len, 333, 64, 64);
        test.input_scale = scale;
        check(test, name_of(dtype) + text({q_len}) + " times " + std::to_string(scale));
        test.problem.causal = Causal::kBottomRight;
        check(test, name_of(dtype) + text({q_len}) + " causal, times " + std::to_string(scale));
      }
}

TEST(AttentionForward, LargeScoresStayFinite) {
  for (const int64_t q_len : {4, 60}) {
    Case test = forward_case(DType::kF32, 1, 1, 1, q_len, 600, 16, 16);
    test.prepare = [](AttentionBackward& a) {
      Random random{5};
      fill(a.query, random, 300);
      fill(a.key, random, 30);
    };
    check(test, "large scores");
  }
}

// A bias that programs take for a mask. From -2^100 down it counts as -inf; a row of nothing else
// sees no key. Above, a row of nothing else sees all keys alike.
TEST(AttentionForward, LowestNumbersCountAsMinusInfinity) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t q_len : {4, 60}) {
      for (const double lowest : {-3.3e38, -2.4e38, -0x1p127, -0x1.1p100, -1e30}) {
        Case test = forward_case(dtype, 1, 2, 1, q_len, 600, 16, 16);
        add_bias(test, DType::kF32, {1, 1, q_len, 600}, false);
        test.prepare = [=](AttentionBackward& a) {
          for (int64_t i = 0; i < q_len; ++i)
            for (int64_t j = 0; j < 600; ++j)  // row 0: every key; others: all but a few
              if (i == 0 || (j + i) % 200 != 0) put(a.bias, at(a.bias, {0, 0, i, j}), lowest);
        };
        SCOPED_TRACE(name_of(dtype) + text({q_len}) + " " + std::to_string(lowest));
        Fixture fixture(test);
        for (const KernelTable* table : tables()) {
          fixture.check_forward(*table);
          EXPECT_EQ(get(fixture.lse.tensor, 0) == -kInfinity, lowest < kLeastScore);
          EXPECT_EQ(get(fixture.out.tensor, 0) == 0, lowest < kLeastScore);
        }
      }
    }
  }
}

// Batches without rows: there may be more of them than loops could count.
TEST(AttentionForward, NothingToWriteTakesNoTime) {
  constexpr int64_t kMany = int64_t{1} << 42;
  for (const KernelTable* table : tables()) {
    for (const bool heads : {false, true}) {
      Case test =
          forward_case(DType::kF32, kMany, heads ? 1 : 0, 1, heads ? 0 : 3, heads ? 0 : 3, 1, 1);
      AttentionForward arguments;
      arguments.query.dtype = DType::kF32;
      arguments.query.rank = 4;
      arguments.query.shape[0] = kMany;
      arguments.out = arguments.key = arguments.value = arguments.query;
      const auto pool = make_thread_pool(2);
      const Array workspace({1 << 20}, DType::kBool);
      const Execution execution{*pool, workspace.tensor.as<std::byte>()};
      table->attention_forward(test.problem, arguments, execution);
      table->attention_decode(test.problem, arguments, execution);
      reference::attention_forward(test.problem, arguments, execution);
      AttentionBackward backward;
      backward.query = backward.key = backward.value = backward.out = backward.grad_out =
          backward.grad_query = backward.grad_key = backward.grad_value = arguments.query;
      table->attention_backward(test.problem, backward, execution);
      reference::attention_backward(test.problem, backward, execution);
    }
  }
}

Bytes outputs(Fixture& fixture, const KernelTable& table, int32_t threads, bool decode) {
  const auto pool = make_thread_pool(threads);
  decode ? fixture.run_decode(table, *pool) : fixture.run_forward(table, *pool);
  Bytes bytes = fixture.out.memory;
  bytes.insert(bytes.end(), fixture.lse.memory.begin(), fixture.lse.memory.end());
  return bytes;
}

TEST(AttentionForward, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool decode : {false, true}) {
      Case test = forward_case(dtype, 2, 4, 2, decode ? 3 : 300, 1100, 32, 32);
      test.problem.dropout = 0.1;
      test.bits_alone = true;
      Fixture fixture(test);
      for (const KernelTable* table : tables()) {
        const Bytes one = outputs(fixture, *table, 1, decode);
        for (const int32_t threads : {2, 3, 5})
          EXPECT_EQ(outputs(fixture, *table, threads, decode), one)
              << table->isa << " with " << threads << " threads";
      }
    }
  }
}

// A sequence gives the same bits alone as in a batch.
TEST(AttentionForward, SameBitsAtAnyPositionInTheBatch) {
  constexpr int64_t kBatch = 3;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool decode : {false, true}) {
      const int64_t q_len = decode ? 2 : 130;
      Fixture many(forward_case(dtype, kBatch, 2, 1, q_len, 700, 16, 8));
      for (const KernelTable* table : tables()) {
        decode ? many.run_decode(*table, *many.pool) : many.run_forward(*table, *many.pool);
        for (int64_t b = 0; b < kBatch; ++b) {
          Fixture alone(forward_case(dtype, 1, 2, 1, q_len, 700, 16, 8));
          copy(entry_of(many.query.tensor, b), alone.query.tensor);
          copy(entry_of(many.key.tensor, b), alone.key.tensor);
          copy(entry_of(many.value.tensor, b), alone.value.tensor);
          decode ? alone.run_decode(*table, *many.pool) : alone.run_forward(*table, *many.pool);
          SCOPED_TRACE(std::string(table->isa) + " entry " + std::to_string(b));
          expect_same_bits(alone.out.tensor, entry_of(many.out.tensor, b));
          expect_same_bits(alone.lse.tensor, entry_of(many.lse.tensor, b));
        }
      }
    }
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
