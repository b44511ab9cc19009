// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which kernels compute the rows of a rank in canonical order: those of one rank with all rows. No
// GPU is needed.
#include <gtest/gtest.h>

#include <tuple>

#include "attention_cases.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/attention.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::internal {
namespace {

using cpu::attention_cases::make_case;

// Kernels of other configurations may round otherwise.
TEST(CanonicalAttention, HasTheKernelsOfOneRank) {
  const auto chosen = [](const AttentionProblem& problem) {
    cuda::AttentionForwardConfig config = cuda::choose_attention_forward(problem);
    config.sharded = false;  // counts positions alone
    return cuda::kernel_name("forward", config);
  };
  for (const int64_t dim : {64, 128})
    for (const int64_t window : {-1, 100, 300, 1100})
      for (const Causal causal : {Causal::kNone, Causal::kBottomRight})
        for (const bool zigzag : {false, true}) {
          AttentionProblem whole;
          whole.dtype = DType::kBF16;
          whole.batch = 1;
          whole.heads = 4;
          whole.kv_heads = 2;
          whole.q_len = whole.kv_len = 1280;
          whole.head_dim = whole.value_dim = dim;
          whole.causal = causal;
          whole.window_left = window;
          whole.rows.zigzag = zigzag;
          whole.rows.canonical = true;
          for (const int64_t ranks : {2, 4, 8})
            for (int64_t rank = 0; rank < ranks; ++rank) {
              AttentionProblem part = whole;
              part.q_len /= ranks;
              part.rows.ranks = ranks;
              part.rows.rank = rank;
              EXPECT_EQ(chosen(part), chosen(whole)) << "rank " << rank << " of " << ranks;
            }
        }
}

// The same of any GPU, where ranks and pieces of them have few rows, or one.
TEST(CanonicalAttention, HasTheKernelsOfOneRankOnAnyGpu) {
  const auto chosen = [](const AttentionProblem& problem) {
    const AttentionProblem packed = cuda::with_heads_as_rows(problem);
    if (problem.dtype == DType::kF64)
      return cuda::float64_attention_kernels(cuda::choose_float64_attention(packed));
    const cuda::PortableForwardConfig config = cuda::choose_portable_attention(packed);
    EXPECT_EQ(cuda::portable_attention_arguments(packed, config).pack_gqa, 0);
    return cuda::portable_attention_kernels(config);
  };
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    for (const int64_t dim : {64, 96, 320})
      for (const int64_t length : {16, 128, 1280})
        for (int features = 0; features < 32; ++features) {
          AttentionProblem whole = make_case(dtype, 1, 8, 2, length, 2000, dim, dim).problem;
          whole.grad_query = whole.grad_key = whole.grad_value = false;
          whole.causal = features & 1 ? Causal::kBottomRight : Causal::kNone;
          whole.window_left = features & 2 ? 100 : -1;
          whole.dropout = features & 4 ? 0.1 : 0;
          whole.visible = features & 8;
          whole.ragged = features & 16;
          whole.total_q = whole.ragged ? length : 0;
          whole.rows.canonical = true;
          for (const int64_t pieces : {2, 8, 16})
            for (int64_t piece = 0; piece < pieces; ++piece) {
              AttentionProblem part = whole;
              part.q_len /= pieces;
              part.rows.ranks = pieces;
              part.rows.rank = piece;
              part.rows.pieces_before = piece % 2;
              part.q_lens = whole.ragged;
              EXPECT_EQ(chosen(part), chosen(whole))
                  << "piece " << piece << " of " << pieces << ", length " << length;
            }
        }
}

// Each of two pieces has the kernel of many rows, and no fallback has other bits.
TEST(CanonicalAttention, HasTheKernelsOfOneRankInPieces) {
  std::shared_ptr<const dispatch::Device> device;
  ASSERT_TRUE(dispatch::assume_cuda("sm_90", {}, &device).ok());
  const auto list = dispatch::attention_implementations();
  const auto& [sm90, portable] = std::tie(list[0], list[1]);
  const auto kernels = [&](const auto& implementation, const AttentionProblem& problem) {
    EXPECT_EQ(implementation.refuse(problem, *device), "");
    std::unique_ptr<dispatch::Executable<dispatch::Attention>> attention;
    EXPECT_TRUE(implementation.make(problem, *device, &attention).ok());
    return attention == nullptr ? "" : attention->kernels();
  };
  AttentionProblem problem = make_case(DType::kF32, 1, 2, 2, 32, 2000, 64, 64).problem;
  problem.grad_query = problem.grad_key = problem.grad_value = false;
  problem.rows = {.ranks = 8, .rank = 1, .zigzag = true, .canonical = true};
  EXPECT_EQ(
      kernels(portable, problem),
      "two pieces, each by forward: tiles of 128 queries and 48 keys, 4 warps, products of two "
      "f16 halves");
  const int64_t begin[] = {0, 2000};
  problem.chunks_kv = {ChunkDim::kKv, begin, 1};
  problem.dtype = DType::kBF16;
  EXPECT_TRUE(kernels(sm90, problem).starts_with("two pieces, each by forward: "));
  problem.rows = {.canonical = true};
  const std::string alone = kernels(sm90, problem);
  EXPECT_EQ(alone.find("cuda:portable"), std::string::npos) << alone;
  problem.rows = {};
  EXPECT_NE(kernels(sm90, problem).find("cuda:portable"), std::string::npos);
}

}  // namespace
}  // namespace perseid::internal
