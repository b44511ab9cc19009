// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU of more scores than 2^32.
#include "attention_sizes.hpp"

namespace perseid::attention_sizes {
namespace {

TEST(AttentionSizes, MoreScoresThan32BitsCount) {
  const Context context = Context::cpu(2);
  for (const double dropout : {0.0, 0.25}) {
    const AttentionOptions options = many_scores(f32, dropout);
    expect_alike(results_of(context, options, "cpu:tiled"),
                 results_of(context, options, "cpu:reference"), 1e-4);
  }
}

}  // namespace
}  // namespace perseid::attention_sizes
