// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A hidden key leaves no trace: NaN and infinity in keys, values, queries, gradients of out, bias
// and the memory between rows change no bit of a result that does not depend on them. Each problem
// runs twice with every kernel table, with numbers and with what is not finite at those positions.
#include "attention_cases.hpp"
#include "emulated_bf16.hpp"

namespace perseid::internal::cpu {
namespace {

using namespace attention_cases;

std::vector<const KernelTable*> all_tables() {
  std::vector<const KernelTable*> all = available_kernel_tables();
  all.push_back(&emulated_bf16_table());
  return all;
}

// Rows and keys of a problem by their numbers: (batch, head, row within the sequence).
struct Positions {
  const AttentionProblem& problem;
  const AttentionBackward& arguments;

  Sequence sequence(int64_t batch) const { return sequence_of(problem, arguments, batch); }
  // All keys that the tensors hold for a sequence, those past its length included.
  int64_t keys_held(int64_t batch) const {
    return problem.ragged ? read_length(arguments.cu_seqlens_kv, batch + 1) -
                                read_length(arguments.cu_seqlens_kv, batch)
                          : problem.kv_len;
  }
  bool sees(int64_t batch, int64_t head, int64_t i, int64_t j) const {
    const Sequence s = sequence(batch);
    const KeyRange range = visible_keys(problem, i, s.q_len, s.kv_len);
    if (j < range.begin || j >= range.end) return false;
    return !problem.visible ||
           get(arguments.visible, at(arguments.visible, {batch, head, i, j})) != 0;
  }
  // Element 0 of a row of a tensor of queries or keys.
  int64_t row_of(const Tensor& tensor, bool keys, int64_t batch, int64_t head, int64_t i) const {
    const Sequence s = sequence(batch);
    if (problem.ragged) return at(tensor, {head, (keys ? s.kv_begin : s.q_begin) + i});
    return at(tensor, {batch, head, i});
  }
};

// What is replaced: keys of every (batch, kv head), and query rows of every (batch, head).
struct Poison {
  double value;
  std::function<bool(const Positions&, int64_t batch, int64_t kv_head, int64_t j)> key;
  std::function<bool(int64_t i)> query;
};

bool seen_by_any(const Positions& at_, int64_t batch, int64_t kv_head, int64_t j) {
  const int64_t group = at_.problem.group();
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
    for (int64_t i = 0; i < at_.sequence(batch).q_len; ++i)
      if (at_.sees(batch, h, i, j)) return true;
  return false;
}

// Memory between the elements, which is NaN to begin with.
void clear_gaps(Array& array) {
  const std::vector<double> values = array.values();
  std::fill(array.memory.begin(), array.memory.end(), std::byte{0});
  array.fill(values);
}

class Checker {
 public:
  explicit Checker(const Case& test) : test_(test), clean_(test) {
    for (Array* array : {&clean_.query, &clean_.key, &clean_.value, &clean_.grad_out})
      clear_gaps(*array);
  }

  void check(const Poison& poison) {
    Fixture &clean = clean_, dirty(test_);
    const Positions positions{clean.problem, clean.arguments};
    mark(positions, poison);
    spoil(dirty, positions, poison);
    for (const KernelTable* table : all_tables()) {
      SCOPED_TRACE(table->isa);
      clean.run_forward(*table, *clean.pool);
      dirty.run_forward(*table, *dirty.pool);
      compare_rows("out", clean.out, dirty.out, positions);
      compare_lse(clean, dirty, positions);
      const bool few = clean.problem.group() * clean.problem.q_len <= 16;
      if (clean.problem.backward()) {
        clean.run(*table, *clean.pool);
        dirty.run(*table, *dirty.pool);
        compare_rows("grad_query", clean.grad_query, dirty.grad_query, positions);
        compare_keys("grad_key", clean.grad_key, dirty.grad_key, positions);
        compare_keys("grad_value", clean.grad_value, dirty.grad_value, positions);
        if (clean.problem.grad_bias) compare_bias(clean, dirty, positions);
      }
      if (!few) continue;
      SCOPED_TRACE("decode");
      clean.run_decode(*table, *clean.pool);
      dirty.run_decode(*table, *dirty.pool);
      compare_rows("out", clean.out, dirty.out, positions);
      compare_lse(clean, dirty, positions);
    }
  }

  int64_t compared() const { return compared_; }

 private:
  // Which rows and keys depend on nothing that is replaced.
  void mark(const Positions& p, const Poison& poison) {
    const AttentionProblem& problem = p.problem;
    clean_row_.clear();
    clean_key_.clear();
    for (int64_t b = 0; b < problem.batch; ++b) {
      const Sequence s = p.sequence(b);
      for (int64_t h = 0; h < problem.heads; ++h)
        for (int64_t i = 0; i < s.q_len; ++i) {
          bool clean = !poison.query(i);
          for (int64_t j = 0; j < s.kv_len && clean; ++j)
            clean = !(p.sees(b, h, i, j) && poison.key(p, b, h / problem.group(), j));
          clean_row_.push_back(clean);
        }
    }
    int64_t row = 0;
    for (int64_t b = 0; b < problem.batch; ++b) {
      const Sequence s = p.sequence(b);
      for (int64_t kv = 0; kv < problem.kv_heads; ++kv)
        for (int64_t j = 0; j < p.keys_held(b); ++j) {
          bool clean = true;
          for (int64_t g = 0; g < problem.group(); ++g) {
            const int64_t h = kv * problem.group() + g;
            for (int64_t i = 0; i < s.q_len && clean; ++i)
              clean = clean_row_[static_cast<size_t>(row + h * s.q_len + i)] || !p.sees(b, h, i, j);
          }
          clean_key_.push_back(clean);
        }
      row += problem.heads * s.q_len;
    }
  }

  static void spoil(Fixture& fixture, const Positions& p, const Poison& poison) {
    const AttentionProblem& problem = p.problem;
    const auto spoil_row = [&](const Tensor& tensor, bool keys, int64_t b, int64_t h, int64_t i) {
      const int64_t first = p.row_of(tensor, keys, b, h, i);
      const int64_t dim = tensor.shape[tensor.rank - 1], step = tensor.stride[tensor.rank - 1];
      for (int64_t d = 0; d < dim; d += 3) put(tensor, first + d * step, poison.value);
    };
    for (int64_t b = 0; b < problem.batch; ++b) {
      for (int64_t kv = 0; kv < problem.kv_heads; ++kv)
        for (int64_t j = 0; j < p.keys_held(b); ++j)
          if (poison.key(p, b, kv, j)) {
            spoil_row(fixture.key.tensor, true, b, kv, j);
            spoil_row(fixture.value.tensor, true, b, kv, j);
          }
      for (int64_t h = 0; h < problem.heads; ++h)
        for (int64_t i = 0; i < p.sequence(b).q_len; ++i) {
          if (poison.query(i)) {
            spoil_row(fixture.query.tensor, false, b, h, i);
            spoil_row(fixture.grad_out.tensor, false, b, h, i);
          }
          // A bias at a hidden key is not read either. (One that several rows share is.)
          for (int64_t j = 0; problem.bias && problem.bias_shape[0] == problem.batch &&
                              problem.bias_shape[1] == problem.heads &&
                              problem.bias_shape[2] == problem.q_len && j < problem.kv_len;
               ++j)
            if (!p.sees(b, h, i, j))
              put(fixture.arguments.bias, at(fixture.arguments.bias, {b, h, i, j}), poison.value);
        }
    }
  }

  static bool same(const Tensor& a, const Tensor& b, int64_t offset) {
    const int64_t size = size_of(a.dtype);
    return std::memcmp(a.as<std::byte>() + offset * size, b.as<std::byte>() + offset * size,
                       static_cast<size_t>(size)) == 0;
  }
  static bool same_row(const Tensor& a, const Tensor& b, int64_t first) {
    for (int64_t d = 0; d < a.shape[a.rank - 1]; ++d)
      if (!same(a, b, first + d * a.stride[a.rank - 1])) return false;
    return true;
  }

  void compare_rows(const char* name, const Array& clean, const Array& dirty, const Positions& p) {
    int64_t compared = 0, wrong = 0, row = 0;
    for (int64_t b = 0; b < p.problem.batch; ++b)
      for (int64_t h = 0; h < p.problem.heads; ++h)
        for (int64_t i = 0; i < p.sequence(b).q_len; ++i) {
          if (!clean_row_[static_cast<size_t>(row++)]) continue;
          ++compared;
          wrong += !same_row(clean.tensor, dirty.tensor, p.row_of(clean.tensor, false, b, h, i));
        }
    EXPECT_EQ(wrong, 0) << name << ": rows of " << compared;
    compared_ += compared;
  }
  void compare_lse(const Fixture& clean, const Fixture& dirty, const Positions& p) const {
    int64_t wrong = 0, row = 0;
    for (int64_t b = 0; b < p.problem.batch; ++b)
      for (int64_t h = 0; h < p.problem.heads; ++h)
        for (int64_t i = 0; i < p.sequence(b).q_len; ++i)
          if (clean_row_[static_cast<size_t>(row++)])
            wrong += !same(clean.lse.tensor, dirty.lse.tensor,
                           p.row_of(clean.lse.tensor, false, b, h, i));
    EXPECT_EQ(wrong, 0) << "lse";
  }
  void compare_keys(const char* name, const Array& clean, const Array& dirty, const Positions& p) {
    int64_t compared = 0, wrong = 0, key = 0;
    for (int64_t b = 0; b < p.problem.batch; ++b)
      for (int64_t kv = 0; kv < p.problem.kv_heads; ++kv)
        for (int64_t j = 0; j < p.keys_held(b); ++j) {
          if (!clean_key_[static_cast<size_t>(key++)]) continue;
          ++compared;
          wrong += !same_row(clean.tensor, dirty.tensor, p.row_of(clean.tensor, true, b, kv, j));
        }
    EXPECT_EQ(wrong, 0) << name << ": keys of " << compared;
    compared_ += compared;
  }
  // Compares the gradient of a bias that is not broadcast.
  void compare_bias(const Fixture& clean, const Fixture& dirty, const Positions& p) const {
    int64_t wrong = 0, row = 0;
    for (int64_t b = 0; b < p.problem.batch; ++b)
      for (int64_t h = 0; h < p.problem.heads; ++h)
        for (int64_t i = 0; i < p.sequence(b).q_len; ++i)
          if (clean_row_[static_cast<size_t>(row++)])
            wrong += !same_row(clean.grad_bias.tensor, dirty.grad_bias.tensor,
                               at(clean.grad_bias.tensor, {b, h, i}));
    EXPECT_EQ(wrong, 0) << "grad_bias";
  }

  Case test_;
  Fixture clean_;
  int64_t compared_ = 0;
  std::vector<bool> clean_row_, clean_key_;  // in the order of the loops
};

void check(Case test) {
  SCOPED_TRACE(text_of(test));
  test.bits_alone = true;
  Checker checker(test);
  for (const double value : {kNaN, -kInfinity}) {
    SCOPED_TRACE(value);
    const auto none = [](int64_t) { return false; };
    {
      SCOPED_TRACE("keys that no query sees");
      checker.check({value,
                     [](const Positions& p, int64_t b, int64_t kv, int64_t j) {
                       return !seen_by_any(p, b, kv, j);
                     },
                     none});
    }
    {
      SCOPED_TRACE("keys that some queries see");
      checker.check({value,
                     [](const Positions& p, int64_t b, int64_t kv, int64_t j) {
                       return !seen_by_any(p, b, kv, j) || j + 2 == p.sequence(b).kv_len;
                     },
                     none});
    }
    SCOPED_TRACE("queries");
    checker.check({value, [](const Positions&, int64_t, int64_t, int64_t) { return false; },
                   [](int64_t i) { return i == 1; }});
  }
  EXPECT_GT(checker.compared(), 0);
}

constexpr Layout kLayouts[] = {Layout::kBhsd, Layout::kBshd, Layout::kReversed, Layout::kSpread};

// Every type with every layout would take long: neighbours in the lists meet.
template <class Prepare>
void check_types(int64_t q_len, int64_t kv_len, const Prepare& prepare) {
  int64_t turn = 0;
  for (const DType dtype : kTypes)
    for (const int64_t dim : {24, 33}) {
      Case test = make_case(dtype, 2, 2, 1, q_len, kv_len, dim, dim == 24 ? 16 : 20);
      test.layout = kLayouts[turn++ % 4];
      prepare(test);
      check(test);
    }
}

constexpr int64_t kQueries[] = {3, 50};  // decode and tiles

TEST(AttentionHiddenKeys, Causal) {
  for (const int64_t q_len : kQueries)
    for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight})
      check_types(q_len, 70, [&](Case& test) { test.problem.causal = causal; });
}

TEST(AttentionHiddenKeys, Window) {
  for (const int64_t q_len : kQueries)
    check_types(q_len, 70, [&](Case& test) {
      test.problem.window_left = 20;
      test.problem.window_right = 4;
      test.problem.causal = q_len == 3 ? Causal::kBottomRight : Causal::kNone;
    });
}

TEST(AttentionHiddenKeys, Visible) {
  for (const int64_t q_len : kQueries)
    check_types(q_len, 70, [&](Case& test) { set_visible(test, {2, 2, q_len, 70}); });
}

TEST(AttentionHiddenKeys, BiasAndDropout) {
  for (const int64_t q_len : kQueries)
    check_types(q_len, 70, [&](Case& test) {
      test.problem.causal = Causal::kTopLeft;
      test.problem.dropout = 0.25;
      add_bias(test, test.problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
               {2, 2, q_len, 70}, true);
    });
}

TEST(AttentionHiddenKeys, KeyLengths) {
  for (const int64_t q_len : kQueries)
    check_types(q_len, 70, [&](Case& test) {
      test.problem.kv_lens = true;
      test.kv_lens = {41, 64};
    });
}

TEST(AttentionHiddenKeys, Ragged) {
  for (const bool few : {true, false})
    for (const DType dtype : kTypes) {
      Case test = make_case(dtype, 0, 2, 1, 0, 0, 24, 16);
      set_ragged(test, few ? std::vector<int64_t>{3, 0, 2} : std::vector<int64_t>{40, 0, 19},
                 {70, 3, 21});
      test.layout = Layout::kBshd;
      test.problem.causal = Causal::kBottomRight;
      test.problem.kv_lens = true;
      test.kv_lens = {50, 1, 21};
      check(test);
    }
}

// Several blocks of keys and of queries.
TEST(AttentionHiddenKeys, ManyBlocks) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Case test = make_case(dtype, 1, 1, 1, 210, 600, 16, 16);
    test.problem.causal = Causal::kTopLeft;
    test.problem.window_left = 90;
    check(test);
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
