// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU of more scores, batch entries, heads and keys than 32 or 16 bits count, by
// every implementation. Skipped where there is none.
#include "attention_option_problems.hpp"
#include "attention_sizes.hpp"
#include "gpu_api_tools.hpp"
#include "harness/check.hpp"

namespace perseid::attention_sizes {
namespace {

using GpuAttentionSizes = testing_gpu::ContextTest;

// The names of the implementations that take a problem.
std::vector<const char*> takers(const Context& context, AttentionOptions options) {
  std::vector<const char*> names;
  for (const char* name : {"cuda:sm90", "cuda:portable", "cuda:reference"}) try {
      options.implementation = name;
      const Attention attention(context, options);
      names.push_back(name);
    } catch (const Error& error) {
      if (error.status() != PERSEID_UNSUPPORTED) throw;
    }
  return names;
}

TEST_F(GpuAttentionSizes, MoreScoresThan32BitsCount) {
  const Context cpu = Context::cpu();
  for (const DType dtype : {bf16, f32})
    for (const double dropout : {0.0, 0.25}) {
      const AttentionOptions options = many_scores(dtype, dropout);
      const std::vector<Result> want = results_of(cpu, options, "cpu:reference");
      const std::vector<const char*> names = takers(context(), options);
      EXPECT_GE(names.size(), 2u);
      for (const char* name : names) {
        SCOPED_TRACE(name);
        expect_alike(results_of(context(), options, name), want, dtype == bf16 ? 0.03 : 1e-4);
      }
    }
}

TEST_F(GpuAttentionSizes, MoreEntriesAndHeadsThan16BitsCount) {
  const Context cpu = Context::cpu();
  const harness::Checker checker(context(), context(), cpu);
  for (const harness::Problem& problem :
       harness::option_problems(harness::many_entries_and_heads(), {"bf16", "f32"})) {
    const std::vector<harness::CheckResult> results = checker.check_all(problem);
    EXPECT_GE(results.size(), 2u);
    for (const harness::CheckResult& result : results)
      EXPECT_TRUE(result.passed) << harness::to_flags(problem) << "\n"
                                 << result.implementation << ": " << result.complaint;
  }
}

// All keys are one row of memory: their values are the result.
TEST_F(GpuAttentionSizes, MoreKeysThan32BitsCount) {
  constexpr int64_t kQueries = 8, kSeen = 6;
  const Dims rows{1, kQueries, 1, 16};
  const Placed query(context(), bf16, rows, 1), key(context(), bf16, {1, 16}, 2);
  const Placed value(context(), bf16, {1, 16}, 3);
  const std::vector<float> q = query.values(), k = key.values(), v = value.values();
  for (const int64_t kv_len : {int64_t{1} << 29, (int64_t{1} << 32) + 77}) {
    const AttentionOptions options{.dtype = bf16,
                                   .q_len = kQueries,
                                   .kv_len = kv_len,
                                   .head_dim = 16,
                                   .mask = causal_bottom_right() & window(kSeen - 1, -1)};
    const auto repeated = [&](const Placed& row) {
      return Tensor(row.tensor.dl()->data, bf16, {1, kv_len, 1, 16}, {0, 0, 0, 1},
                    context().device());
    };
    const std::vector<const char*> names = takers(context(), options);
    EXPECT_GE(names.size(), kv_len >> 30 == 0 ? 2u : 1u);
    for (AttentionOptions by = options; const char* name : names) {
      by.implementation = name;
      const Attention attention(context(), by);
      const Placed out(context(), bf16, rows, 0), lse(context(), f32, {1, 1, kQueries}, 0);
      const PlacedWorkspace workspace(context(), attention, false);
      attention.forward(nullptr,
                        {.query = query.tensor,
                         .key = repeated(key),
                         .value = repeated(value),
                         .out = out.tensor,
                         .lse = lse.tensor},
                        workspace.bytes());
      context().synchronize();
      const std::vector<float> result = out.values(), sums = lse.values();
      for (size_t i = 0; i < kQueries; ++i) {
        double product = 0;
        for (size_t d = 0; d < 16; ++d) {
          EXPECT_NEAR(result[16 * i + d], v[d], 0.01) << name << " " << i;
          product += double{q[16 * i + d]} * k[d];
        }
        EXPECT_NEAR(sums[i], product / 4 + std::log(kSeen), 1e-3) << name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace perseid::attention_sizes
