// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention's options beyond one rectangle of scores, by every implementation of the CPU; what they
// refuse; and what a context says of all its plans.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention_option_problems.hpp"
#include "harness/check.hpp"

namespace perseid::harness {
namespace {

class AttentionOptionsTest : public testing::Test {
 protected:
  // Every problem in every dtype by every implementation that takes it.
  void check(const std::vector<const char*>& texts,
             const std::vector<const char*>& dtypes = {"f32", "bf16"}) {
    for (const Problem& problem : option_problems(texts, dtypes)) {
      const std::vector<CheckResult> results = checker_.check_all(problem);
      EXPECT_GE(results.size(), 2u) << to_flags(problem);
      for (const CheckResult& result : results)
        EXPECT_TRUE(result.passed) << to_flags(problem) << "\n"
                                   << result.implementation << ": " << result.complaint;
    }
  }

  const Context one_ = Context::cpu(1), three_ = Context::cpu(3);
  const Checker checker_{one_, three_};
};

TEST_F(AttentionOptionsTest, WindowAtTheBottomRightWithoutCausal) { check(bottom_right_windows()); }
TEST_F(AttentionOptionsTest, QueryLengths) { check(query_lengths()); }
TEST_F(AttentionOptionsTest, KeysFromAnywhereInACache) { check(caches()); }
TEST_F(AttentionOptionsTest, OnePlanForShorterTensors) { check(plans_for_more()); }
TEST_F(AttentionOptionsTest, MoreEntriesAndHeadsThan16BitsCount) {
  check({many_entries_and_heads()[0]}, {"f32"});
}
TEST_F(AttentionOptionsTest, BoundsOfSplits) { check(bounds_of_splits()); }

// ---- What is refused --------------------------------------------------------------------------

std::string sentence_of(AttentionOptions options) {
  try {
    Attention attention(Context::cpu(1), options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
void expect_part(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << sentence << "\nexpected " << part;
}

TEST(AttentionOptions, AreRefusedWhereTheyContradictOthers) {
  const AttentionOptions plain{.q_len = 4, .kv_len = 4, .head_dim = 8};
  AttentionOptions options = plain;
  options.mask.bottom_right = true;
  EXPECT_EQ(sentence_of(options), "");  // a window without limits is none
  options.mask = {.causal = PERSEID_CAUSAL_TOP_LEFT, .left = 1, .bottom_right = true};
  expect_part(sentence_of(options),
              "window_bottom_right is 1 with causal, whose alignment a window then has");
  options = plain;
  options.kv_starts = true;
  expect_part(sentence_of(options), "kv_starts is 1, but ragged is 0 and kv_lens is 0; set both");
  options = plain;
  options.kv_batch = 3;
  options.backward = true;
  expect_part(sentence_of(options), "gradients is 7, but kv_batch is not 0");
  options = plain;
  options.kv_batch = 3;
  options.ragged = true;
  options.total_q = options.total_kv = 4;
  expect_part(sentence_of(options), "kv_batch is 3, but ragged is 1");
  options = plain;
  options.max_lengths = true;
  const Chunks chunks{{0, 4}};
  options.async_kv = chunks;
  expect_part(sentence_of(options), "max_lengths is 1, but async_kv is given");
}

TEST(AttentionOptions, MasksHaveOneAlignment) {
  const Mask both = window_bottom_right(3, -1) & causal_bottom_right();
  EXPECT_FALSE(both.bottom_right);
  EXPECT_EQ(both.left, 3);
  EXPECT_TRUE((window_bottom_right(3, -1) & window_bottom_right(-1, 2)).bottom_right);
  EXPECT_THROW(window_bottom_right(3, -1) & causal_top_left(), Error);
  EXPECT_THROW(window_bottom_right(3, -1) & window(1, 1), Error);
}

// A small call whose arguments a test spoils.
struct SmallCall {
  std::vector<float> query = std::vector<float>(2 * 4 * 8, 0.5f);
  std::vector<float> cache = std::vector<float>(3 * 4 * 8, 0.25f);
  std::vector<float> out = std::vector<float>(2 * 4 * 8);
  std::vector<int32_t> index{2, 0}, lens{1, 4}, starts{8, 0}, cumulative{0, 4, 8};
  AttentionOptions options{.batch = 2, .q_len = 4, .kv_len = 4, .head_dim = 8};
  AttentionForward with{.query = {query.data(), {2, 4, 1, 8}},
                        .key = {cache.data(), {2, 4, 1, 8}},
                        .value = {cache.data(), {2, 4, 1, 8}},
                        .out = {out.data(), {2, 4, 1, 8}}};

  std::string sentence() const {
    const Context context = Context::cpu(1);
    const Attention attention(context, options);
    Workspace workspace;
    try {
      attention.forward(nullptr, with, workspace);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

// What out, lse and grad_query held before is gone there, in packed tensors too.
TEST(AttentionOptions, RowsPastAQueryLengthAreCleared) {
  const Context context = Context::cpu(2);
  const std::vector<int32_t> lens = {1, 4}, cumulative = {0, 4, 8};
  const std::vector<float> x(2 * 4 * 8, 0.5f);
  for (const bool ragged : {false, true})
    for (const char* implementation : {"cpu:decode", "cpu:tiled", "cpu:reference"}) {
      const Attention attention(context, {.batch = 2,
                                          .q_len = 4,
                                          .kv_len = 4,
                                          .head_dim = 8,
                                          .q_lens = true,
                                          .ragged = ragged,
                                          .total_q = 8,
                                          .total_kv = 8,
                                          .backward = true,
                                          .implementation = implementation});
      const Dims rows = ragged ? Dims{8, 1, 8} : Dims{2, 4, 1, 8};
      std::vector<float> out(x.size(), 9), grad_query(x.size(), 9), lse(8, 9);
      const Tensor given(x.data(), rows), sums(lse.data(), ragged ? Dims{1, 8} : Dims{2, 1, 4});
      const Tensor cu_seqlens = ragged ? Tensor(cumulative.data(), {3}) : Tensor();
      Workspace workspace;
      attention.forward(nullptr,
                        {.query = given,
                         .key = given,
                         .value = given,
                         .cu_seqlens_q = cu_seqlens,
                         .cu_seqlens_kv = cu_seqlens,
                         .q_lens = {lens.data(), {2}},
                         .out = {out.data(), rows},
                         .lse = sums},
                        workspace);
      attention.backward(nullptr,
                         {.query = given,
                          .key = given,
                          .value = given,
                          .cu_seqlens_q = cu_seqlens,
                          .cu_seqlens_kv = cu_seqlens,
                          .q_lens = {lens.data(), {2}},
                          .out = {out.data(), rows},
                          .lse = sums,
                          .grad_out = given,
                          .grad_query = {grad_query.data(), rows}},
                         workspace);
      for (size_t i = 0; i < 8; ++i) {
        const bool counts = i == 0 || i >= 4;
        EXPECT_FLOAT_EQ(out[8 * i + 7], counts ? 0.5f : 0) << implementation << " " << i;
        EXPECT_NEAR(grad_query[8 * i + 7], 0, 1e-6) << implementation << " " << i;
        if (counts)
          EXPECT_TRUE(std::isfinite(lse[i])) << implementation << " " << i;
        else
          EXPECT_EQ(lse[i], -std::numeric_limits<float>::infinity()) << implementation << " " << i;
      }
    }
}

TEST(AttentionOptions, WrongNumbersAreNamed) {
  SmallCall call;
  call.with.q_lens = {call.lens.data(), {2}};
  expect_part(call.sentence(), "q_lens is given, but the plan's descriptor says q_lens = 0");
  call.options.q_lens = true;
  EXPECT_EQ(call.sentence(), "");
  call.lens[1] = 5;
  expect_part(call.sentence(), "q_lens[1] is 5, expected 0 to 4, the plan's q_len");

  SmallCall cached;
  cached.options.kv_batch = 3;
  cached.with.key = cached.with.value = {cached.cache.data(), {3, 4, 1, 8}};
  cached.with.kv_index = {cached.index.data(), {2}};
  EXPECT_EQ(cached.sentence(), "");
  cached.index[0] = 3;
  expect_part(cached.sentence(), "kv_index[0] is 3, expected 0 to 2");

  SmallCall packed;
  packed.options.ragged = packed.options.kv_lens = packed.options.kv_starts = true;
  packed.options.total_q = 8;
  packed.options.total_kv = 12;
  packed.with.query = {packed.query.data(), {8, 1, 8}};
  packed.with.out = {packed.out.data(), {8, 1, 8}};
  packed.with.key = packed.with.value = {packed.cache.data(), {12, 1, 8}};
  packed.with.cu_seqlens_q = {packed.cumulative.data(), {3}};
  packed.with.kv_lens = {packed.lens.data(), {2}};
  packed.with.kv_starts = {packed.starts.data(), {2}};
  EXPECT_EQ(packed.sentence(), "");
  packed.starts[1] = 9;
  expect_part(packed.sentence(), "kv_starts[1] and kv_lens[1] end at 13, expected at most 12");
  packed.starts[1] = -1;
  expect_part(packed.sentence(), "kv_starts[1] is -1");

  SmallCall shorter;
  shorter.options.max_lengths = true;
  shorter.options.q_len = 3;
  expect_part(shorter.sentence(), "query has q_len 4, expected at most 3, the plan's");
}

// One split of the keys has one order, as deterministic has.
TEST(AttentionOptions, OneSplitOfKeysInBackward) {
  const Context context = Context::assumed("sm_80");
  for (const uint32_t splits : {0, 1, 2}) {
    const Attention attention(context, {.dtype = bf16,
                                        .q_len = 100,
                                        .kv_len = 200,
                                        .head_dim = 64,
                                        .backward = true,
                                        .num_splits = splits});
    EXPECT_EQ(attention.explain().find("with sums of grad_query") == std::string::npos, splits == 1)
        << attention.explain();
  }
}

// ---- What holds for all plans of a context -----------------------------------------------------

TEST(ContextSettings, SwitchOffImplementations) {
  const Context context = Context::cpu(1, {.disable = "cpu:decode,cpu:tiled"});
  const AttentionOptions options{.q_len = 1, .kv_len = 4, .head_dim = 8};
  const Attention attention(context, options);
  EXPECT_STREQ(attention.info().implementation, "cpu:reference");
  expect_part(std::string(attention.explain()), "switched off by the context's options");
  setenv("PERSEID_DISABLE_IMPL", "cpu:tiled", 1);
  const Attention other(Context::cpu(1), {.q_len = 100, .kv_len = 4, .head_dim = 8});
  EXPECT_STREQ(other.info().implementation, "cpu:reference");
  expect_part(std::string(other.explain()), "switched off by PERSEID_DISABLE_IMPL");
  setenv("PERSEID_DISABLE_IMPL", "cpu:tield", 1);
  EXPECT_THROW(Context::cpu(1), Error);
  unsetenv("PERSEID_DISABLE_IMPL");
  EXPECT_THROW(Context::cpu(1, {.disable = "cpu:tield"}), Error);
}

// Plans for a GPU that is not there.
TEST(ContextSettings, MakeBackwardDeterministicOrWarn) {
  std::string warnings;
  perseid_set_log_callback([](void* user, perseid_log_level,
                              const char* message) { *static_cast<std::string*>(user) += message; },
                           &warnings, PERSEID_LOG_WARNING);
  AttentionOptions options{
      .dtype = bf16, .heads = 2, .q_len = 256, .kv_len = 256, .head_dim = 64, .backward = true};
  const auto text = [&](const ContextSettings& settings) {
    return std::string(Attention(Context::assumed("sm_90", settings), options).explain());
  };
  EXPECT_EQ(text({}).find("summed in order"), std::string::npos);
  EXPECT_EQ(warnings, "");
  EXPECT_EQ(text({.determinism = PERSEID_DETERMINISM_WARN}).find("summed in order"),
            std::string::npos);
  expect_part(warnings, "gradients of this plan may differ in their last bits");
  warnings.clear();
  // Without grad_query: where query heads share keys.
  options.gradients = PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  text({.determinism = PERSEID_DETERMINISM_WARN});
  EXPECT_EQ(warnings, "");
  options.kv_heads = 1;
  text({.determinism = PERSEID_DETERMINISM_WARN});
  expect_part(warnings, "gradients of this plan may differ in their last bits");
  options.kv_heads = 2;
  options.gradients = 0;
  warnings.clear();
  expect_part(text({.determinism = PERSEID_DETERMINISM_ON}), "summed in order");
  setenv("PERSEID_DETERMINISTIC", "1", 1);
  expect_part(text({}), "summed in order");
  EXPECT_EQ(text({.determinism = PERSEID_DETERMINISM_BY_PLAN}).find("summed in order"),
            std::string::npos);
  setenv("PERSEID_DETERMINISTIC", "yes", 1);
  EXPECT_THROW(Context::assumed("sm_90"), Error);
  unsetenv("PERSEID_DETERMINISTIC");
  EXPECT_EQ(warnings, "");
  perseid_set_log_callback(nullptr, nullptr, PERSEID_LOG_WARNING);
}

}  // namespace
}  // namespace perseid::harness
