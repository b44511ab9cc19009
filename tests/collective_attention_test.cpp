// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention over threads as ranks, against the attention of one rank that has all
// rows: masks, placements, GQA, ragged batches and dropout, forward and backward, and what happens
// where ranks differ or are missing.
#include <nlohmann/json.hpp>

#include "context_attention_tools.hpp"

extern thread_local int64_t allocations_of_this_thread;  // of counting_new.cpp

namespace {

using namespace context_attention_tools;

// Two executions with different operands; nothing of them allocates.
void expect_as_one_rank(Problem problem) {
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, q_len " << problem.q_len
                                  << ", kv_len " << problem.kv_len << ", chunks " << problem.chunks
                                  << ", dtype " << static_cast<int>(problem.dtype));
  if (problem.ragged()) {
    problem.batch = static_cast<int64_t>(problem.lengths.size());
    problem.q_len = problem.kv_len = 0;
    for (const int64_t length : problem.lengths) problem.q_len = problem.kv_len += length;
  }
  const Context context = Context::cpu(2);
  std::vector<Tensors> wholes;
  for (uint64_t repeat = 0; repeat < 2; ++repeat) {
    Tensors whole = make(problem, repeat);
    const Attention attention(Context::cpu(1),
                              options_of(problem, problem.q_len, problem.kv_len, 1));
    Workspace workspace;
    attention.reserve(workspace);
    wholes.push_back(whole);
    attention.forward(nullptr, wholes.back().forward(problem), workspace);
    if (problem.backward) attention.backward(nullptr, wholes.back().backward(problem), workspace);
  }
  on_threads(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    std::unique_ptr<ContextAttention> plan;
    Workspace workspace;
    for (uint64_t repeat = 0; repeat < 2; ++repeat) {
      const Tensors own = take(problem, make(problem, repeat), rank);
      const Tensors wanted = take(problem, wholes[repeat], rank);
      if (plan == nullptr) {
        plan = std::make_unique<ContextAttention>(
            context, group,
            perseid::ContextAttentionOptions{
                .attention = options_of(problem, own.query.shape[problem.rows_dim()],
                                        own.key.shape[problem.rows_dim()], problem.ranks),
                .placement = problem.placement,
                .chunks = problem.chunks});
        plan->reserve(workspace);
      }
      const auto forward = own.forward(problem);
      const auto backward = own.backward(problem);
      // As NaN, what is read before it is written is seen.
      const std::span<std::byte> memory = workspace;
      std::fill(memory.begin(), memory.end(), std::byte{0xff});
      const int64_t before = allocations_of_this_thread;
      plan->forward(nullptr, forward, workspace);
      if (problem.backward) plan->backward(nullptr, backward, workspace);
      const int64_t allocations = allocations_of_this_thread - before;
      if (!are_hosts()) {
        EXPECT_EQ(allocations, 0) << "rank " << rank;  // what leaves for a host is queued
      }
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", execution " << repeat);
      expect_near("out", own.out, wanted.out);
      expect_near("lse", own.lse, wanted.lse);
      if (!problem.backward) continue;
      expect_near("grad_query", own.grad_query, wanted.grad_query);
      expect_near("grad_key", own.grad_key, wanted.grad_key);
      expect_near("grad_value", own.grad_value, wanted.grad_value);
    }
  });
}

TEST(ContextAttention, MasksAndPlacements) {
  for (const Mask& mask :
       {Mask{}, perseid::causal_bottom_right(), perseid::causal_top_left(),
        perseid::causal_bottom_right() & perseid::window(70, -1), perseid::window(30, 41)})
    for (const int32_t ranks : {1, 2, 3})
      for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
        expect_as_one_rank({.ranks = ranks,
                            .placement = placement,
                            .mask = mask,
                            .q_len = 36 * 2 * ranks,
                            .kv_len = 50 * 2 * ranks});
}

// Also where ranks are more than cores.
TEST(ContextAttention, OfFiveAndSevenRanks) {
  for (const int32_t ranks : {5, 7}) {
    expect_as_one_rank({.ranks = ranks, .q_len = 10 * 2 * ranks, .kv_len = 14 * 2 * ranks});
    expect_as_one_rank({.ranks = ranks, .dropout = 0.2, .lengths = {2 * ranks, 0, 8 * ranks}});
  }
  expect_as_one_rank({.ranks = 5,
                      .placement = Sharding::kContiguous,
                      .mask = perseid::causal_bottom_right() & perseid::window(30, -1),
                      .q_len = 100,
                      .kv_len = 100,
                      .shards = {9, 41, 0, 30, 20},
                      .chunks = 2});
}

TEST(SweepContextAttention, OfFiveAndSevenRanks) {
  for (const int32_t ranks : {5, 7})
    for (const DType dtype : {perseid::bf16, perseid::f64})
      for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
        for (const Mask& mask : {Mask{}, perseid::causal_bottom_right(),
                                 perseid::causal_bottom_right() & perseid::window(100, -1)})
          expect_as_one_rank({.ranks = ranks,
                              .dtype = dtype,
                              .placement = placement,
                              .mask = mask,
                              .batch = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .q_len = 72 * 2 * ranks,
                              .kv_len = 72 * 2 * ranks,
                              .chunks = 2});
}

// Groups of rows that hold the end of one piece and the beginning of the other, with keys between
// that neither sees.
TEST(ContextAttention, WindowsOfBothPieces) {
  for (const DType dtype : {perseid::f64, perseid::f32, perseid::bf16})
    for (const int32_t ranks : {2, 3})
      expect_as_one_rank({.ranks = ranks,
                          .dtype = dtype,
                          .mask = perseid::causal_bottom_right() & perseid::window(5, -1),
                          .heads = 4,
                          .kv_heads = 2,
                          .q_len = 180,
                          .kv_len = 180});
  // 21 rows each, as far apart as ranks are many.
  expect_as_one_rank({.ranks = 5,
                      .mask = perseid::causal_bottom_right() & perseid::window(11, -1),
                      .heads = 4,
                      .kv_heads = 2,
                      .q_len = 210,
                      .kv_len = 210,
                      .head_dim = 17});
}

TEST(ContextAttention, LongerThanABlock) {
  expect_as_one_rank({.ranks = 2, .q_len = 1100, .kv_len = 1100, .chunks = 3});
  expect_as_one_rank({.ranks = 3,
                      .mask = perseid::causal_bottom_right() & perseid::window(100, -1),
                      .heads = 4,
                      .kv_heads = 2,
                      .q_len = 900,
                      .kv_len = 960,
                      .chunks = 2});
}

TEST(ContextAttention, TypesAndLayouts) {
  for (const DType dtype : {perseid::bf16, perseid::f32})
    for (const Layout layout : {perseid::bshd, perseid::bhsd})
      expect_as_one_rank({.ranks = 2,
                          .dtype = dtype,
                          .layout = layout,
                          .batch = 2,
                          .heads = 4,
                          .kv_heads = 2,
                          .q_len = 240,
                          .kv_len = 240,
                          .head_dim = 32,
                          .value_dim = 32});
}

TEST(ContextAttention, UnevenShards) {
  expect_as_one_rank({.ranks = 3,
                      .placement = Sharding::kContiguous,
                      .batch = 2,
                      .q_len = 150,
                      .kv_len = 150,
                      .shards = {70, 0, 80},
                      .chunks = 4});
  expect_as_one_rank({.ranks = 3,
                      .placement = Sharding::kContiguous,
                      .mask = {},
                      .q_len = 4,
                      .kv_len = 4,
                      .shards = {1, 2, 1},
                      .chunks = 4});
}

// Pieces of 50 rows begin and end within the tiles of 16 rows that dropout is drawn in.
TEST(ContextAttention, DropsWhatOneRankDrops) {
  for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
    expect_as_one_rank({.ranks = 2,
                        .placement = placement,
                        .batch = 2,
                        .q_len = 200,
                        .kv_len = 200,
                        .dropout = 0.3});
  expect_as_one_rank({.ranks = 3, .dropout = 0.5, .lengths = {66, 0, 102}});
}

TEST(ContextAttention, RaggedBatches) {
  for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag}) {
    expect_as_one_rank({.ranks = 2, .placement = placement, .lengths = {40, 0, 300, 4}});
    expect_as_one_rank({.ranks = 3,
                        .layout = perseid::bhsd,
                        .placement = placement,
                        .mask = perseid::causal_bottom_right() & perseid::window(50, -1),
                        .lengths = {120, 6, 60}});
  }
}

TEST(ContextAttention, BiasAndLengths) {
  expect_as_one_rank({.ranks = 2, .q_len = 120, .kv_len = 160, .bias = true});
  expect_as_one_rank({.ranks = 2, .batch = 3, .q_len = 120, .kv_len = 160, .kv_lens = true});
}

TEST(ContextAttention, AddsToGradients) {
  for (const DType dtype : {perseid::bf16, perseid::f64})
    expect_as_one_rank({.ranks = 2, .dtype = dtype, .q_len = 80, .kv_len = 80, .accumulate = true});
}

TEST(ContextAttention, ForwardAlone) {
  expect_as_one_rank({.ranks = 2, .q_len = 80, .kv_len = 80, .backward = false});
}

TEST(ContextAttention, NothingToDo) {
  expect_as_one_rank({.ranks = 2, .q_len = 0, .kv_len = 80});
  expect_as_one_rank({.ranks = 2, .q_len = 80, .kv_len = 0});
  expect_as_one_rank({.ranks = 2, .lengths = {0, 0}});
}

// The same bits in every run, though the ranks are never in step.
TEST(ContextAttention, RepeatsItsBits) {
  const Problem problem{.ranks = 3,
                        .dtype = perseid::bf16,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 360,
                        .kv_len = 360,
                        .dropout = 0.1};
  std::vector<std::vector<std::byte>> first(3);
  for (int run = 0; run < 4; ++run)
    on_threads(3, [&](const Group& group) {
      const Tensors own = take(problem, make(problem, 1), group.rank());
      const ContextAttention plan(
          Context::cpu(run % 2 + 1), group,
          {.attention = options_of(problem, 120, 120, 3), .placement = Sharding::kZigzag});
      Workspace workspace;
      plan.reserve(workspace);
      std::this_thread::sleep_for(std::chrono::milliseconds(group.rank() * run));
      plan.forward(nullptr, own.forward(problem), workspace);
      plan.backward(nullptr, own.backward(problem), workspace);
      std::vector<std::byte> bits = own.out.bytes;
      for (const Matrix* result : {&own.lse, &own.grad_query, &own.grad_key, &own.grad_value})
        bits.insert(bits.end(), result->bytes.begin(), result->bytes.end());
      auto& wanted = first[static_cast<size_t>(group.rank())];
      if (run == 0) wanted = bits;
      EXPECT_EQ(bits, wanted) << "rank " << group.rank() << ", run " << run;
    });
}

// With memory that the ranks share, and without.
TEST(ContextAttention, HasTheSameBitsOnSeveralHosts) {
  Problem problem{.ranks = 3, .dtype = perseid::bf16, .batch = 2, .heads = 4, .kv_heads = 2};
  problem.q_len = problem.kv_len = 360;
  const char* const before = std::getenv("PERSEID_SHARED_MEMORY");
  const std::string kept = before == nullptr ? "1" : before;
  for (const Layout layout : {perseid::bshd, perseid::bhsd})
    for (const Mask& mask : {perseid::causal_bottom_right(),
                             perseid::causal_bottom_right() & perseid::window(60, -1)}) {
      problem.layout = layout;
      problem.mask = mask;
      std::vector<std::vector<std::byte>> first(3);
      for (const bool apart : {false, true}) {
        setenv("PERSEID_SHARED_MEMORY", apart ? "0" : "1", 1);
        on_threads(3, [&](const Group& group) {
          const Tensors own = take(problem, make(problem, 1), group.rank());
          const ContextAttention plan(Context::cpu(1), group,
                                      {.attention = options_of(problem, 120, 120, 3),
                                       .placement = Sharding::kZigzag,
                                       .chunks = 2});
          EXPECT_STREQ(plan.info().implementation, apart ? "cpu:sockets" : "cpu:windows");
          Workspace workspace;
          plan.reserve(workspace);
          plan.forward(nullptr, own.forward(problem), workspace);
          plan.backward(nullptr, own.backward(problem), workspace);
          std::vector<std::byte> bits = own.out.bytes;
          for (const Matrix* result : {&own.lse, &own.grad_query, &own.grad_key, &own.grad_value})
            bits.insert(bits.end(), result->bytes.begin(), result->bytes.end());
          auto& wanted = first[static_cast<size_t>(group.rank())];
          if (!apart) wanted = bits;
          EXPECT_TRUE(bits == wanted) << "rank " << group.rank();
        });
      }
    }
  setenv("PERSEID_SHARED_MEMORY", kept.c_str(), 1);
}

perseid::ContextAttentionOptions causal_of(int64_t rows) {
  return {.attention = {.heads = 2,
                        .q_len = rows,
                        .kv_len = rows,
                        .head_dim = 16,
                        .mask = perseid::causal_bottom_right(),
                        .backward = true},
          .placement = Sharding::kZigzag};
}

TEST(ContextAttention, RefusesWhatDiffersOnAllRanks) {
  const Context context = Context::cpu(1);
  const auto refused = [&](const auto& options_of_rank) {
    std::vector<Ended> ends(3);
    on_threads(3, [&](const Group& group) {
      const int32_t rank = group.rank();
      ends[static_cast<size_t>(rank)] =
          ended([&] { ContextAttention(context, group, options_of_rank(rank)); });
    });
    for (const Ended& end : ends) {
      EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
      EXPECT_EQ(end.sentence, ends[0].sentence);
    }
    return ends[0].sentence;
  };
  EXPECT_EQ(refused([](int32_t rank) { return causal_of(rank == 1 ? 6 : 8); }),
            "context-attention: q_len is 6 on rank 1 and 8 on rank 0; pass the same on all ranks");
  EXPECT_EQ(
      refused([](int32_t rank) {
        auto options = causal_of(8);
        if (rank == 1) options.attention.scale = 0.5;
        return options;
      }),
      "context-attention: scale is 0.5 on rank 1 and 0 on rank 0; pass the same on all ranks");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              options.canonical = true;
              options.attention.backward = false;
              options.attention.gradients = rank == 0 ? PERSEID_GRAD_QUERY : 0;
              return options;
            }),
            "context-attention: backward is not wanted on rank 1 and wanted on rank 0; pass the "
            "same on all ranks");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              if (rank == 2) options.attention.mask = {};
              return options;
            }),
            "context-attention: causal is none on rank 2 and bottom-right on rank 0; pass the same "
            "on all ranks");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              if (rank != 1) options.placement = Sharding::kContiguous;
              return options;
            }),
            "context-attention: placement is zigzag on rank 1 and contiguous on rank 0; pass the "
            "same on all ranks");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              if (rank != 2) options.attention.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_VALUE;
              return options;
            }),
            "context-attention: gradients is key and value on rank 2 and value on rank 0; pass the "
            "same on all ranks");
  EXPECT_EQ(refused([](int32_t rank) { return causal_of(rank == 1 ? 7 : 8); }),
            "rank 1: context-attention: attention.q_len is 7, expected an even number, as a rank "
            "holds two equal pieces of a sequence; pad it, or use PERSEID_CONTIGUOUS");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              if (rank == 0) options.attention.heads = 3, options.attention.kv_heads = 2;
              if (rank != 0) options.attention.kv_heads = 2;
              return options;
            }),
            "context-attention: heads is 2 on rank 1 and 3 on rank 0; pass the same on all ranks");
}

TEST(ContextAttention, RefusesLengthsThatDoNotDivide) {
  const Problem problem{.ranks = 2, .lengths = {10}};
  on_threads(1, [&](const Group& group) {
    const ContextAttention plan(Context::cpu(1), group,
                                {.attention = {.heads = 1,
                                               .q_len = 5,
                                               .kv_len = 5,
                                               .head_dim = 8,
                                               .ragged = true,
                                               .total_q = 5,
                                               .total_kv = 5}});
    const Matrix rows = Matrix::random({5, 1, 8}, perseid::f32, 1), lengths = whole_numbers({0, 5});
    Workspace workspace;
    plan.reserve(workspace);
    const auto call = [&](const Matrix& cumulative) {
      return ended([&] {
        plan.forward(nullptr,
                     {.query = rows.tensor(),
                      .key = rows.tensor(),
                      .value = rows.tensor(),
                      .cu_seqlens_q = cumulative.tensor(),
                      .cu_seqlens_kv = cumulative.tensor(),
                      .out = Matrix({5, 1, 8}, perseid::f32).tensor()},
                     workspace);
      });
    };
    EXPECT_EQ(call(lengths).status, PERSEID_OK);
    const Ended beyond = call(whole_numbers({0, 6}));
    EXPECT_EQ(beyond.status, PERSEID_INVALID_ARGUMENT);
  });
  on_threads(2, [&](const Group& group) {
    const Matrix rows = Matrix::random({5, 1, 8}, perseid::f32, 1), lengths = whole_numbers({0, 9});
    const ContextAttention plan(Context::cpu(1), group,
                                {.attention = {.heads = 1,
                                               .q_len = 5,
                                               .kv_len = 5,
                                               .head_dim = 8,
                                               .ragged = true,
                                               .total_q = 5,
                                               .total_kv = 5}});
    Workspace workspace;
    plan.reserve(workspace);
    const Matrix out({5, 1, 8}, perseid::f32);
    const Ended end = ended([&] {
      plan.forward(nullptr,
                   {.query = rows.tensor(),
                    .key = rows.tensor(),
                    .value = rows.tensor(),
                    .cu_seqlens_q = lengths.tensor(),
                    .cu_seqlens_kv = lengths.tensor(),
                    .out = out.tensor()},
                   workspace);
    });
    EXPECT_EQ(end.sentence,
              "context-attention: cu_seqlens_q[1] is 9, expected a multiple of 2, the pieces of a "
              "sequence; pad the sequences");
  });
}

// A rank that does not come ends the calls of the others, which go on without it.
TEST(ContextAttention, GoesOnWithoutASilentRank) {
  const Context context = Context::cpu(1);
  const Problem problem{
      .ranks = 3, .dtype = perseid::f32, .kv_heads = 2, .q_len = 24, .kv_len = 24, .value_dim = 16};
  on_threads(3, [&](const Group& group) {
    const Tensors own = take(problem, make(problem, 1), group.rank());
    const ContextAttention plan(context, group, causal_of(8));
    Workspace workspace;
    plan.reserve(workspace);
    if (group.rank() == 2) return;
    perseid_wait_record record{};
    const Ended end = ended([&] {
      plan.forward(nullptr, own.forward(problem), workspace, 300ms, &record);
      // A rank may not need the missing keys; backward waits for all.
      plan.backward(nullptr, own.backward(problem), workspace, 300ms, &record);
    });
    EXPECT_TRUE(end.status == PERSEID_TIMEOUT || end.status == PERSEID_PEER_LOST) << end.status;
    EXPECT_NE(end.sentence.find("rank 2"), std::string::npos) << end.sentence;
    EXPECT_EQ(record.status, end.status);
    EXPECT_EQ(record.rank, 2);
    EXPECT_EQ(record.operand, 0);
    EXPECT_TRUE(record.chunk == 2 || record.chunk == 3) << record.chunk;  // the pieces of rank 2
    EXPECT_LT(end.seconds, 3);
    const Group survivors = group.shrink(500ms);
    const Problem two{.ranks = 2,
                      .dtype = perseid::f32,
                      .kv_heads = 2,
                      .q_len = 16,
                      .kv_len = 16,
                      .value_dim = 16};
    const Tensors again = take(two, make(two, 2), survivors.rank());
    const ContextAttention second(context, survivors, causal_of(8));
    second.forward(nullptr, again.forward(two), workspace);
    second.backward(nullptr, again.backward(two), workspace);
  });
}

// Unfused, forward waits for all keys, and visits them in the same order.
TEST(ContextAttention, UnfusedHasTheSameBits) {
  const Context context = Context::cpu(2);
  const Problem problem{.ranks = 3,
                        .dtype = perseid::bf16,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 240,
                        .kv_len = 240,
                        .head_dim = 32,
                        .value_dim = 32,
                        .chunks = 2};
  on_threads(problem.ranks, [&](const Group& group) {
    const auto results_of = [&](perseid::Fusion fusion, const std::string& says) {
      const ContextAttention plan(context, group,
                                  {.attention = options_of(problem, 80, 80, 1),
                                   .placement = problem.placement,
                                   .chunks = problem.chunks,
                                   .report = true,
                                   .fusion = fusion});
      EXPECT_NE(plan.explain().find(says), std::string::npos) << plan.explain();
      const Tensors own = take(problem, make(problem, 3), group.rank());
      Workspace workspace;
      plan.reserve(workspace);
      group.barrier();
      if (group.rank() == 2) std::this_thread::sleep_for(20ms);
      plan.forward(nullptr, own.forward(problem), workspace);
      const nlohmann::json report = nlohmann::json::parse(plan.overlap_report());
      double computes_from = 1e300, waits_until = 0;
      for (const auto& event : report["traceEvents"]) {
        if (event["ph"] != "X") continue;
        const double begin = event["ts"], end = begin + event["dur"].get<double>();
        if (event["name"] == "compute") computes_from = std::min(computes_from, begin);
        if (event["name"] == "wait") waits_until = std::max(waits_until, end);
      }
      if (fusion == perseid::Fusion::kUnfused) {
        EXPECT_GE(computes_from + 1, waits_until) << report.dump(1);
      }
      plan.backward(nullptr, own.backward(problem), workspace);
      std::vector<std::byte> results;
      for (const Matrix* result : {&own.out, &own.lse, &own.grad_query, &own.grad_key})
        results.insert(results.end(), result->bytes.begin(), result->bytes.end());
      return results;
    };
    EXPECT_EQ(results_of(perseid::Fusion::kFused, "begins with the own ones; fused as asked for"),
              results_of(perseid::Fusion::kUnfused,
                         "begins when all have arrived; unfused as asked for: predicted "));
  });
}

// Does all tasks on the thread that calls; attention, which alone has several here, may be late.
class LateExecutor : public perseid::Executor {
 public:
  bool attends_late = false;

  int32_t workers() const noexcept override { return 1; }
  void run(int64_t tasks, Task task) noexcept override {
    if (attends_late && tasks > 1) std::this_thread::sleep_for(400ms);
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
  }
};

// A rank that gives its keys, but no part of the gradients in time.
TEST(ContextAttention, NamesTheRankWhoseGradientsAreMissing) {
  const Problem problem{
      .ranks = 2, .dtype = perseid::f32, .kv_heads = 2, .q_len = 16, .kv_len = 16, .value_dim = 16};
  on_threads(2, [&](const Group& group) {
    LateExecutor executor;
    const Context context = Context::cpu(executor);
    const Tensors own = take(problem, make(problem, 1), group.rank());
    const ContextAttention plan(context, group, causal_of(8));
    Workspace workspace;
    plan.reserve(workspace);
    plan.forward(nullptr, own.forward(problem), workspace);
    executor.attends_late = group.rank() == 1;
    perseid_wait_record record{};
    const Ended end =
        ended([&] { plan.backward(nullptr, own.backward(problem), workspace, 200ms, &record); });
    if (group.rank() == 1) return;
    EXPECT_EQ(end.status, PERSEID_TIMEOUT) << end.sentence;
    EXPECT_NE(end.sentence.find("context-attention backward: rank 1 has not taken part within 200 "
                                "ms; chunk 0 has not arrived"),
              std::string::npos)
        << end.sentence;
    EXPECT_EQ(record.status, PERSEID_TIMEOUT);
    EXPECT_EQ(record.rank, 1);
    EXPECT_EQ(record.operand, 1);
    EXPECT_EQ(record.chunk, 0);
  });
}

}  // namespace
