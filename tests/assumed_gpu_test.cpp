// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Plans for a GPU that is not there: any compute capability from 8.0 on, operands in chunks, ranks.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>

#include "assumed_tools.hpp"

namespace perseid {
namespace {

void expect_error(perseid_status status, const std::string& part,
                  const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    expect_has(error.what(), part);
  }
}

std::string attention_of(const char* capability, DType dtype = bf16) {
  const Attention attention(
      Context::assumed(capability),
      {.dtype = dtype, .heads = 2, .q_len = 256, .kv_len = 256, .head_dim = 64, .gradients = 7});
  return attention.info().implementation;
}

TEST(AssumedGpu, IsOfAnyCapabilityThatTheLibraryRunsOn) {
  for (const char* portable : {"sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_100", "sm_103",
                               "sm_103a", "sm_110", "sm_120", "sm_121", "sm_121f", "sm_130"})
    EXPECT_EQ(attention_of(portable), "cuda:portable") << portable;
  EXPECT_EQ(attention_of("sm_90"), "cuda:sm90");
  EXPECT_EQ(attention_of("sm_90a"), "cuda:sm90");
  // As a device of that capability.
  const std::string facts(Context::assumed("sm_103").facts());
  expect_has(facts, "\"capability\": \"10.3\"");
  expect_has(facts, "compute capability 10.3 like B200, assumed");
  expect_has(std::string(Context::assumed("sm_87").facts()), "\"architecture\": \"sm_80\"");
  for (const char* unknown : {"sm_75", "sm_70", "", "90", "sm_", "sm_90x", "sm_9o", "sm_1000",
                              "compute_90", "sm_-90", "sm_aa"})
    expect_error(PERSEID_INVALID_ARGUMENT, "a compute capability from 8.0 on",
                 [&] { Context::assumed(unknown); });
}

TEST(AssumedGpu, PlansOperandsInChunks) {
  for (const char* capability : {"sm_80", "sm_90", "sm_100"}) {
    const Context context = Context::assumed(capability);
    for (const DType dtype : {bf16, f32}) {
      const Chunks keys = Chunks::even(1024, 8);
      const Attention attention(context, {.dtype = dtype,
                                          .heads = 2,
                                          .q_len = 128,
                                          .kv_len = 1024,
                                          .head_dim = 64,
                                          .async_kv = keys});
      expect_has(attention.info().implementation, "cuda:");
      for (const ChunkDim dim : {ChunkDim::kM, ChunkDim::kK}) {
        const Chunks of_a = Chunks::even(512, 4, dim);
        const Matmul matmul(context,
                            {.dtype = dtype, .m = 512, .n = 512, .k = 512, .async_a = of_a});
        expect_has(matmul.info().implementation, "cuda:");
      }
      const Chunks of_c = Chunks::even(512, 4);
      const Matmul matmul(context, {.dtype = dtype, .m = 512, .n = 512, .k = 512, .sink_c = of_c});
      expect_has(matmul.info().implementation, "cuda:");
    }
  }
}

TEST(AssumedGpu, PlansOverRanksAreExplainedAndNotExecuted) {
  for (const char* capability : {"sm_80", "sm_90", "sm_103"}) {
    const std::vector<std::string> texts = explained(4, [&](const Group& group) -> std::string {
      const Context context = Context::assumed(capability);
      const AllGatherMatmul gather(
          context, group,
          {.dtype = bf16, .m = 64, .k = 512, .products = {{.n = 128}}, .report = true});
      std::string text = gather.explain();
      for (const bool all : {false, true})
        text +=
            MatmulReduce(
                context, group,
                {.dtype = bf16, .all_reduce = all, .m = 2048, .n = 2048, .k = 1024, .report = true})
                .explain();
      for (const bool canonical : {false, true})
        for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
          text += ContextAttention(context, group,
                                   {.attention = {.dtype = bf16,
                                                  .heads = 32,
                                                  .kv_heads = 8,
                                                  .q_len = 4096,
                                                  .kv_len = 4096,
                                                  .head_dim = 128,
                                                  .mask = causal_bottom_right(),
                                                  .gradients = 7},
                                    .placement = placement,
                                    .report = true,
                                    .canonical = canonical})
                      .explain();
      // Refused on each rank before anything waits for another one.
      std::vector<std::byte> memory(1 << 20);
      const auto tensor = [&](size_t at, int64_t rows, int64_t columns) {
        return Tensor(memory.data() + at, bf16, {rows, columns}, {}, {kDLCUDA, 0});
      };
      try {
        gather.execute({.a = tensor(0, 64, 512),
                        .b = {tensor(128 << 10, 512, 128)},
                        .c = {tensor(512 << 10, 256, 128)}},
                       std::span(memory).subspan(768 << 10));
        text += "executed";
      } catch (const Error& error) {
        text += error.what();
      }
      return text;
    });
    for (const std::string& text : texts) {
      expect_has(text, "cuda:copy_engines");
      expect_has(text, "assumed: NVLink at 385 GB/s after 28 us");
      expect_has(text, "predicted ");
      expect_has(text, "the context assumes a GPU");
      EXPECT_EQ(text.find("executed"), std::string::npos) << text;
    }
    expect_has(texts[0], std::string(capability) == "sm_90" ? "cuda:sm90" : "cuda:");
    EXPECT_EQ(texts[0].find("100 TFLOP/s") == std::string::npos, std::string(capability) == "sm_90")
        << texts[0];
  }
}

// ---- Attention in canonical order

struct CanonicalCase {
  const char* capability;
  const char *forward, *leaves;  // who computes; leaves "": the kernel of forward's implementation
  int64_t length;                // of all ranks
  Sharding placement;
  AttentionOptions options;
};

AttentionOptions of_dims(DType dtype, int64_t dim, AttentionOptions options = {}) {
  options.dtype = dtype;
  options.heads = 4;
  options.head_dim = dim;
  options.gradients = 7;
  options.mask = causal_bottom_right();
  return options;
}

AttentionOptions unmasked(AttentionOptions options) {
  options.mask = {};
  return options;
}

// What decides is the same for any number of ranks.
TEST(AssumedGpu, CanonicalAttentionHasTheKernelsOfOneRank) {
  const Sharding zigzag = Sharding::kZigzag, contiguous = Sharding::kContiguous;
  const char *sm90 = "cuda:sm90", *portable = "cuda:portable", *reference = "cuda:reference";
  AttentionOptions biased = of_dims(bf16, 64, {.bias = std::array<int64_t, 4>{1, 4, 2048, 2048}});
  biased.gradients |= PERSEID_GRAD_BIAS;
  for (const CanonicalCase& test : std::vector<CanonicalCase>{
           {"sm_90", sm90, "", 2048, zigzag, of_dims(bf16, 128)},
           {"sm_90", sm90, "", 1024, contiguous, of_dims(f16, 64)},
           {"sm_90", portable, sm90, 1024, zigzag, of_dims(bf16, 64)},
           {"sm_90", portable, sm90, 16 * 9, zigzag, of_dims(bf16, 64)},
           {"sm_90", sm90, sm90, 16 * 9, zigzag, unmasked(of_dims(bf16, 64))},
           {"sm_90", sm90, sm90, 256, zigzag, unmasked(of_dims(bf16, 64, {.dropout = 0.1}))},
           {"sm_90", sm90, sm90, 2048, contiguous, biased},
           {"sm_90", sm90, "", 2048, zigzag, of_dims(bf16, 128, {.dropout = 0.1})},
           {"sm_90", portable, portable, 16 * 9, zigzag, of_dims(bf16, 64, {.dropout = 0.1})},
           {"sm_90", portable, portable, 2048, zigzag, of_dims(bf16, 13)},
           {"sm_90", portable, portable, 2048, zigzag, of_dims(bf16, 320)},
           {"sm_90", portable, portable, 2048, zigzag, of_dims(f32, 64)},
           {"sm_90", portable, portable, 16, contiguous, of_dims(f32, 64)},
           {"sm_90", portable, portable, 2048, zigzag, of_dims(f64, 64)},
           {"sm_90", portable, portable, 2048, zigzag, of_dims(bf16, 64, {.ragged = true})},
           {"sm_90", reference, reference, 2048, zigzag, of_dims(f32, 2064)},
           {"sm_80", portable, portable, 2048, contiguous, biased},
           {"sm_80", portable, portable, 2048, zigzag, of_dims(bf16, 64)},
           {"sm_80", portable, portable, 2048, zigzag, of_dims(f32, 64, {.ragged = true})},
           {"sm_120", portable, portable, 16, zigzag, of_dims(f16, 64)}})
    for (const int32_t ranks : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message()
                   << test.capability << ", " << ranks << " ranks, length " << test.length
                   << ", dim " << test.options.head_dim << ", zigzag " << (test.placement == zigzag)
                   << ", ragged " << test.options.ragged);
      for (const std::string& text : explained(ranks, [&](const Group& group) {
             ContextAttentionOptions options{
                 .attention = test.options, .placement = test.placement, .canonical = true};
             options.attention.q_len = options.attention.kv_len = test.length / ranks;
             if (options.attention.ragged)
               options.attention.total_q = options.attention.total_kv = 3 * test.length / ranks;
             if (options.attention.bias) (*options.attention.bias)[2] = test.length / ranks;
             return ContextAttention(Context::assumed(test.capability), group, options).explain();
           })) {
        expect_has(text, std::string("gathered for one ") + test.forward + " ");
        const int32_t pieces = (test.placement == zigzag ? 16 : 8) / ranks;
        const bool leaves = *test.leaves != '\0';
        if (leaves)
          expect_has(text, "backward in " + std::to_string(pieces) +
                               " pieces of queries, the first by " + test.leaves);
        EXPECT_EQ(text.find("pieces of queries") != std::string::npos, leaves) << text;
      }
    }
}

// Rows that begin within a tile of queries, or of dropout, where one rank alone has a kernel that
// cannot.
TEST(AssumedGpu, CanonicalAttentionIsRefusedWhereRanksWouldChooseOtherwise) {
  const auto texts = [](const char* capability, DType dtype, int64_t of_first,
                        bool causal = false) {
    return explained(2, [&](const Group& group) {
      AttentionOptions attention = of_dims(dtype, 64, {.dropout = causal ? 0 : 0.1});
      if (!causal) attention.mask = {};
      attention.gradients = 0;
      attention.q_len = attention.kv_len = group.rank() == 0 ? of_first : 1024 - of_first;
      return ContextAttention(Context::assumed(capability), group,
                              {.attention = attention, .canonical = true})
          .explain();
    });
  };
  for (const std::string& text : texts("sm_90", bf16, 500))
    expect_has(text,
               "cuda:portable: in canonical order takes no rows of what one rank has by cuda:sm90, "
               "which is made for a rank whose rows begin at a multiple of 16, got 500");
  for (const std::string& text : texts("sm_90", bf16, 496, true))
    expect_has(text, "which is made for a rank whose rows begin at a multiple of 128, got 496");
  for (const std::string& text : texts("sm_90", bf16, 640, true))
    expect_has(text, "one cuda:sm90 ");
  for (const std::string& text : texts("sm_90", bf16, 496)) expect_has(text, "one cuda:sm90 ");
  for (const std::string& text : texts("sm_90", f32, 500)) expect_has(text, "one cuda:portable ");
  for (const std::string& text : texts("sm_80", bf16, 500)) expect_has(text, "one cuda:portable ");
  for (const std::string& text : explained(2, [](const Group& group) {
         ContextAttentionOptions options{.attention = of_dims(f32, 64), .canonical = true};
         options.attention.q_len = options.attention.kv_len = 64;
         return ContextAttention(Context::assumed(group.rank() == 0 ? "sm_80" : "sm_86"), group,
                                 options)
             .explain();
       }))
    expect_has(text, "compute capability is 8.6 on rank 1 and 8.0 on rank 0");
  for (const std::string& text : explained(2, [](const Group& group) {
         ContextAttentionOptions options{.attention = of_dims(bf16, 64), .canonical = true};
         options.attention.q_len = options.attention.kv_len = 1024;
         if (group.rank() == 1) options.attention.implementation = "cuda:portable";
         return ContextAttention(Context::assumed("sm_90"), group, options).explain();
       }))
    expect_has(
        text,
        "rank 1 computes by cuda:portable, a plan for each leaf and rank 0 by cuda:sm90; ask "
        "for the same implementation on all ranks");
}

// Which kernels take a rank's pieces of every sequence of a ragged batch, and whether they wait for
// all keys.
TEST(AssumedGpu, RaggedBatchesOverRanksAreExplained) {
  const auto explain = [](const char* capability, int64_t batch, AttentionOptions options,
                          Sharding placement = Sharding::kZigzag, bool canonical = false) {
    return explained(2, [&](const Group& group) -> std::string {
      options.batch = batch;
      options.heads = 32;
      options.kv_heads = 4;
      options.q_len = options.kv_len = 16384 / batch;
      options.head_dim = 128;
      options.mask = causal_bottom_right();
      options.ragged = true;
      options.total_q = options.total_kv = 16384;
      return ContextAttention(
                 Context::assumed(capability), group,
                 {.attention = options, .placement = placement, .canonical = canonical})
          .explain();
    })[1];
  };
  for (const Sharding placement : {Sharding::kZigzag, Sharding::kContiguous})
    for (const DType dtype : {f16, bf16}) {
      const std::string text = explain("sm_90", 8, {.dtype = dtype, .gradients = 7u}, placement);
      expect_has(text, "cuda:sm90 that begins with the own ones, sequences in 8 groups; fused: ");
    }
  expect_has(explain("sm_90", 4, {.dtype = bf16}), "sequences in 4 groups");
  EXPECT_EQ(explain("sm_90", 1, {.dtype = bf16}).find("groups"), std::string::npos);
  for (const std::string& text :
       {explain("sm_90", 8, {.dtype = bf16, .dropout = 0.1}),
        explain("sm_90", 8, {.dtype = bf16, .visible = true}),
        explain("sm_90", 8, {.dtype = bf16, .bias = std::array<int64_t, 4>{1, 1, 1, 4096}}),
        explain("sm_90", 8, {.dtype = f32}), explain("sm_80", 8, {.dtype = bf16})})
    expect_has(text, "cuda:portable");
  expect_has(explain("sm_90", 8, {.dtype = bf16}, Sharding::kZigzag, true),
             "one cuda:portable that begins when all have arrived");
}

}  // namespace
}  // namespace perseid
