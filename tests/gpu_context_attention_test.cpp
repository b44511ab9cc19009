// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention over ranks on GPUs: near to the attention of all rows on the CPU,
// forward bit for bit as on one GPU that visits all keys in the same order, and gradients with the
// same bits in every run.
#include "gpu_context_attention_tools.hpp"
#include "overlap_reports.hpp"

namespace {

using namespace gpu_context_attention_tools;

// Of two ranks, where nothing else is said.
class GpuContextAttention : public GpuRanksTest {};

class GpuContextAttentionOfRanks : public RanksOfGpus {
 protected:
  static Problem of_ranks(Problem problem) {
    problem.ranks = GetParam();
    return problem;
  }
  static int64_t pieces() { return int64_t{2} * GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuContextAttentionOfRanks, testing::Values(3, 4),
                         testing::PrintToStringParamName());

Problem of_type(Problem problem, DType dtype) {
  problem.dtype = dtype;
  return problem;
}

TEST_F(GpuContextAttention, Causal) {
  expect_as_on_the_cpu(square(1024, 128, {.heads = 4, .kv_heads = 2, .chunks = 2}));
}

// Tiles of 192 queries, of which a piece has two; and of 128, of which it has three.
TEST_F(GpuContextAttention, NarrowHeads) {
  expect_as_on_the_cpu(square(1536, 64));
  expect_as_on_the_cpu(square(512, 64, {.batch = 2}));
}

TEST_F(GpuContextAttention, WideHeads) {
  expect_as_on_the_cpu({.q_len = 512, .kv_len = 512, .head_dim = 192, .value_dim = 128});
  expect_as_on_the_cpu(square(512, 72, {.layout = perseid::bhsd, .batch = 2}));
}

TEST_F(GpuContextAttention, Windows) {
  expect_as_on_the_cpu(
      square(1024, 128, {.mask = perseid::causal_bottom_right() & perseid::window(300, -1)}));
  expect_as_on_the_cpu(square(1024, 64, {.mask = perseid::window(200, 130)}));
}

TEST_F(GpuContextAttention, OtherLengthsOfKeys) {
  expect_as_on_the_cpu({.q_len = 512, .kv_len = 900, .head_dim = 128, .value_dim = 128});
  expect_as_on_the_cpu(
      {.mask = {}, .q_len = 512, .kv_len = 516, .head_dim = 64, .value_dim = 64, .chunks = 3});
}

TEST_F(GpuContextAttention, Contiguous) {
  expect_as_on_the_cpu(square(700, 128,
                              {.layout = perseid::bhsd,
                               .placement = Sharding::kContiguous,
                               .batch = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .shards = {403, 297},
                               .chunks = 2}));
  expect_as_on_the_cpu(square(40, 64,
                              {.placement = Sharding::kContiguous,
                               .mask = perseid::causal_bottom_right() & perseid::window(9, -1),
                               .shards = {40, 0}}));
}

TEST_F(GpuContextAttention, DropsWhatOneRankDrops) {
  expect_as_on_the_cpu(square(1024, 128, {.batch = 2, .dropout = 0.3}));
  expect_as_on_the_cpu(
      square(208, 64, {.placement = Sharding::kContiguous, .dropout = 0.5, .shards = {80, 128}}));
}

TEST_F(GpuContextAttention, BiasAndLengths) {
  expect_as_on_the_cpu(square(512, 128, {.bias = true}));
  expect_as_on_the_cpu(square(512, 64, {.batch = 3, .kv_lens = true}));
}

// By kernels that wait for all keys, and have a piece at a time.
TEST_F(GpuContextAttention, Float32) {
  const DType f32 = perseid::f32;
  expect_as_on_the_cpu(square(512, 64, {.batch = 2, .heads = 4, .kv_heads = 2, .dropout = 0.3}),
                       f32);
  expect_as_on_the_cpu(square(700, 40,
                              {.layout = perseid::bhsd,
                               .placement = Sharding::kContiguous,
                               .mask = perseid::causal_bottom_right() & perseid::window(90, -1),
                               .shards = {403, 297}}),
                       f32);
  expect_as_on_the_cpu(
      {.batch = 3, .q_len = 100, .kv_len = 300, .kv_lens = true, .accumulate = true}, f32);
}

TEST_F(GpuContextAttention, Float64) {
  expect_as_on_the_cpu(square(256, 64, {.heads = 4, .dropout = 0.4}), perseid::f64);
  expect_as_on_the_cpu(square(90, 24, {.placement = Sharding::kContiguous, .shards = {50, 40}}),
                       perseid::f64);
}

TEST_F(GpuContextAttention, PiecesThatAreNoTiles) {
  expect_as_on_the_cpu(square(400, 64, {.batch = 2, .heads = 4, .kv_heads = 2}));
  expect_as_on_the_cpu(square(104, 128, {.bias = true, .accumulate = true}));
  expect_as_on_the_cpu(square(192, 320, {.dropout = 0.2}));
}

TEST_F(GpuContextAttention, Ragged) {
  expect_as_on_the_cpu(
      ragged({128, 0, 64, 400, 4}, {.heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64}));
  expect_as_on_the_cpu(
      ragged({20, 300}, {.placement = Sharding::kContiguous,
                         .mask = perseid::causal_bottom_right() & perseid::window(70, -1),
                         .head_dim = 128,
                         .value_dim = 128,
                         .accumulate = true}));
  expect_as_on_the_cpu(
      ragged({60, 8, 100}, {.layout = perseid::bhsd, .mask = perseid::window(20, 9)}),
      perseid::f64);
  expect_as_on_the_cpu(
      ragged({50, 200}, {.placement = Sharding::kContiguous, .head_dim = 64, .value_dim = 64}),
      perseid::f32);
}

// A rank's part of a sequence may begin in the middle of a tile of dropout.
TEST_F(GpuContextAttention, RaggedDropsWhatOneRankDrops) {
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    for (const Sharding placement : {Sharding::kZigzag, Sharding::kContiguous})
      expect_as_on_the_cpu(ragged({44, 0, 100, 268, 4, 32}, {.placement = placement,
                                                             .heads = 4,
                                                             .kv_heads = 2,
                                                             .head_dim = 64,
                                                             .value_dim = 64,
                                                             .dropout = 0.3}),
                           dtype);
  expect_as_on_the_cpu(
      ragged({52, 204}, {.layout = perseid::bhsd,
                         .mask = perseid::causal_bottom_right() & perseid::window(70, -1),
                         .head_dim = 128,
                         .value_dim = 128,
                         .dropout = 0.5}));
}
TEST_F(GpuContextAttention, DropsOfRowsThatBeginAnywhere) {
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    expect_as_on_the_cpu(
        square(207, 64, {.placement = Sharding::kContiguous, .dropout = 0.5, .shards = {83, 124}}),
        dtype);
}

TEST_F(GpuContextAttention, RaggedBiasAndVisible) {
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    for (const Sharding placement : {Sharding::kZigzag, Sharding::kContiguous})
      expect_as_on_the_cpu(ragged({44, 0, 100, 268, 4}, {.placement = placement,
                                                         .heads = 4,
                                                         .kv_heads = 2,
                                                         .head_dim = 64,
                                                         .value_dim = 64,
                                                         .dropout = 0.2,
                                                         .bias = true,
                                                         .visible = true,
                                                         .ragged_rows = true}),
                           dtype);
  expect_as_on_the_cpu(ragged(
      {300, 20}, {.mask = {}, .head_dim = 64, .value_dim = 64, .bias = true, .ragged_rows = true}));
}

TEST_F(GpuContextAttention, RaggedZigzagOfFloat32) {
  expect_as_on_the_cpu(
      ragged({128, 0, 64, 400, 4}, {.heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64}),
      perseid::f32);
  expect_as_on_the_cpu(ragged({60, 200}, {.layout = perseid::bhsd,
                                          .mask = perseid::window(20, 9),
                                          .head_dim = 128,
                                          .value_dim = 96,
                                          .accumulate = true}),
                       perseid::f32);
}

// Pieces that are whole tiles and pieces that are none, and ranks without rows.
TEST_P(GpuContextAttentionOfRanks, AreAsOnTheCpu) {
  expect_as_on_the_cpu(
      of_ranks(square(128 * pieces(), 128, {.heads = 4, .kv_heads = 2, .chunks = 2})));
  expect_as_on_the_cpu(of_ranks(square(36 * pieces(), 64, {.batch = 2, .dropout = 0.3})));
  expect_as_on_the_cpu(of_ranks(square(
      96 * pieces(), 64, {.mask = perseid::causal_bottom_right() & perseid::window(150, -1)})));
  std::vector<int64_t> shards = {100, 0, 157, 43};
  shards.resize(static_cast<size_t>(GetParam()));
  const int64_t rows = std::accumulate(shards.begin(), shards.end(), int64_t{0});
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64}) {
    expect_as_on_the_cpu(
        of_ranks(square(rows, 64, {.placement = Sharding::kContiguous, .shards = shards})), dtype);
    expect_as_on_the_cpu(of_ranks(square(10 * pieces(), 40, {.bias = true, .accumulate = true})),
                         dtype);
  }
}

TEST_P(GpuContextAttentionOfRanks, AreAsOnTheCpuRagged) {
  const auto of_pieces = [](int64_t rows) { return static_cast<int32_t>(rows * pieces()); };
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    for (const bool scores : {false, true})
      expect_as_on_the_cpu(
          of_ranks(ragged({of_pieces(9), 0, of_pieces(33), of_pieces(1)}, {.heads = 4,
                                                                           .kv_heads = 2,
                                                                           .head_dim = 64,
                                                                           .value_dim = 64,
                                                                           .dropout = 0.2,
                                                                           .bias = scores,
                                                                           .visible = scores,
                                                                           .ragged_rows = true})),
          dtype);
  expect_as_on_the_cpu(
      of_ranks(ragged({of_pieces(10), of_pieces(50), of_pieces(1)},
                      {.placement = Sharding::kContiguous, .head_dim = 64, .value_dim = 64})));
}

TEST_F(GpuContextAttention, AddsToGradients) {
  expect_as_on_the_cpu(square(512, 128, {.accumulate = true}));
}

// Gradients of keys do in any case, those of queries where that was asked for.
void expect_the_same_bits_again(int32_t ranks) {
  for (const bool deterministic : {false, true}) {
    const Problem problem = of_type(
        square(256 * ranks, 128, {.ranks = ranks, .heads = 4, .deterministic = deterministic}),
        perseid::bf16);
    on_gpu_ranks(ranks, [&](const Group& group) {
      const Tensors own = take(problem, make(problem, 1), group.rank());
      const OnRank on_rank(group, problem, own);
      const Tensors first = on_rank.run(problem, own);
      for (int run = 0; run < 5; ++run) {
        const Tensors again = on_rank.run(problem, own);
        EXPECT_TRUE(again.out.bytes == first.out.bytes) << "rank " << group.rank();
        EXPECT_TRUE(again.grad_key.bytes == first.grad_key.bytes) << "rank " << group.rank();
        EXPECT_TRUE(again.grad_value.bytes == first.grad_value.bytes) << "rank " << group.rank();
        EXPECT_TRUE(!deterministic || again.grad_query.bytes == first.grad_query.bytes)
            << "rank " << group.rank();
      }
    });
  }
}

TEST_F(GpuContextAttention, RepeatsItsBits) { expect_the_same_bits_again(2); }
TEST_P(GpuContextAttentionOfRanks, RepeatsItsBits) { expect_the_same_bits_again(GetParam()); }

// All rows on one GPU, as one ragged sequence whose keys are chunks that are all there, visited in
// the order of a rank.
Tensors on_one_gpu(const Problem& problem, int32_t rank, const Tensors& whole) {
  const Context context = context_of(rank);
  const auto pieces =
      static_cast<int64_t>(problem.placement == Sharding::kZigzag ? 2 : 1) * problem.ranks;
  const perseid::Chunks chunks = perseid::Chunks::even(problem.kv_len, problem.chunks * pieces);
  AttentionOptions options = options_of(problem, problem.q_len, problem.kv_len, 1);
  options.ragged = true;
  options.total_q = options.total_kv = problem.q_len;
  options.async_kv = chunks;
  const Attention attention(context, options);
  Tensors packed = whole;
  const auto for_each_matrix = [&](const auto& body) {
    for (Matrix* rows :
         {&packed.query, &packed.key, &packed.value, &packed.out, &packed.lse, &packed.grad_out,
          &packed.grad_query, &packed.grad_key, &packed.grad_value})
      body(rows->shape);
  };
  for_each_matrix([](std::vector<int64_t>& shape) { shape.erase(shape.begin()); });
  packed.lengths = whole_numbers({0, static_cast<int32_t>(problem.q_len)});
  const TensorsOf<OnGpu> tensors = copy_to_gpu(context, packed);
  const Memory signals(context, static_cast<size_t>(chunks.count()) * sizeof(uint32_t));
  const std::vector<uint32_t> present(static_cast<size_t>(chunks.count()), 1);
  context.copy(signals.data(), present.data(), signals.size());
  const GpuWorkspace workspace(context, attention);
  perseid::AttentionForward arguments = tensors.forward(problem);
  arguments.cu_seqlens_q = arguments.cu_seqlens_kv = tensors.lengths.tensor();
  arguments.arrival_kv = {.signals = static_cast<const uint32_t*>(signals.data()),
                          .epoch = 1,
                          .first_chunk = rank * problem.chunks};
  attention.forward(nullptr, arguments, workspace.bytes());
  if (problem.backward) {
    const GpuWorkspace other(context, attention, perseid::Direction::kBackward);
    perseid::AttentionBackward gradients = tensors.backward(problem);
    gradients.cu_seqlens_q = gradients.cu_seqlens_kv = tensors.lengths.tensor();
    attention.backward(nullptr, gradients, other.bytes());
    context.synchronize();  // before its workspace goes
  }
  context.synchronize();
  packed = copy_from_gpu(tensors, packed);
  for_each_matrix([](std::vector<int64_t>& shape) { shape.insert(shape.begin(), 1); });
  return packed;
}

void expect_bits_of_one_gpu(const Problem& given) {
  const Problem problem = of_type(given, perseid::bf16);
  SCOPED_TRACE(testing::Message() << "length " << problem.q_len << ", dim " << problem.head_dim);
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const OnRank on_rank(group, problem, take(problem, make(problem, 0), rank));
    for (uint64_t repeat = 0; repeat < 2; ++repeat) {
      const Tensors whole = make(problem, repeat);
      const Tensors wanted = take(problem, on_one_gpu(problem, rank, whole), rank);
      const Tensors result = on_rank.run(problem, take(problem, whole, rank));
      EXPECT_TRUE(result.out.bytes == wanted.out.bytes) << "rank " << rank << ", run " << repeat;
      EXPECT_TRUE(result.lse.bytes == wanted.lse.bytes) << "rank " << rank << ", run " << repeat;
      if (!problem.backward) continue;
      expect_near("grad_query", result.grad_query, wanted.grad_query);
      expect_near("grad_key", result.grad_key, wanted.grad_key);
      expect_near("grad_value", result.grad_value, wanted.grad_value);
    }
  });
}

TEST_F(GpuContextAttention, BitsOfOneGpu) {
  expect_bits_of_one_gpu(square(2048, 128, {.heads = 8, .kv_heads = 2, .chunks = 2}));
  expect_bits_of_one_gpu(square(1024, 64, {.backward = false}));
  expect_bits_of_one_gpu(
      square(1024, 128, {.placement = Sharding::kContiguous, .mask = {}, .chunks = 3}));
}

// More tiles than multiprocessors: the kernel holds them all while it waits.
TEST_F(GpuContextAttention, BitsOfManyTiles) {
  expect_bits_of_one_gpu(square(8192, 128, {.heads = 16, .kv_heads = 16}));
}

// Groups of heads that are sent one after the other: each of one batch entry, and several in one.
TEST_F(GpuContextAttention, GroupsOfHeads) {
  for (const perseid::Layout layout : {perseid::bshd, perseid::bhsd})
    expect_as_on_the_cpu(square(4096, 128,
                                {.layout = layout,
                                 .batch = 2,
                                 .heads = 16,
                                 .kv_heads = 16,
                                 .chunks = 2,
                                 .backward = false}));
  expect_as_on_the_cpu(square(4096, 64, {.heads = 32, .kv_heads = 8}));
}

// Backward by groups of heads, whose gradients leave while those of the next are computed.
TEST_F(GpuContextAttention, GradientsOfGroupsOfHeads) {
  const Problem problem = square(
      1024, 64,
      {.layout = perseid::bhsd, .heads = 128, .kv_heads = 128, .chunks = 2, .accumulate = true});
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const Problem of_bf16 = of_type(problem, perseid::bf16);
    const OnRank on_rank(group, of_bf16, take(of_bf16, make(of_bf16, 0), group.rank()));
    EXPECT_NE(on_rank.plan.explain().find("backward of 2 groups of heads"), std::string::npos)
        << on_rank.plan.explain();
  });
  expect_as_on_the_cpu(problem);
  expect_as_on_the_cpu(square(
      1024, 64, {.placement = Sharding::kContiguous, .mask = {}, .heads = 128, .kv_heads = 128}));
  expect_bits_of_one_gpu(square(4096, 128, {.heads = 64, .kv_heads = 32}));
}

// One kernel waits for keys and signals gradients: of groups of heads and of several entries.
TEST_F(GpuContextAttention, StreamsGradients) {
  const auto expect = [](const Problem& problem) {
    expect_as_on_the_cpu(problem, perseid::bf16, perseid::Fusion::kFused);
  };
  expect(square(1024, 128, {.heads = 8, .kv_heads = 4, .chunks = 2, .accumulate = true}));
  expect(square(1024, 64, {.layout = perseid::bhsd, .batch = 2, .dropout = 0.3}));
  expect(
      square(700, 128,
             {.placement = Sharding::kContiguous, .mask = {}, .batch = 2, .shards = {403, 297}}));
  expect(square(2048, 64, {.batch = 2, .heads = 32, .kv_heads = 8}));
}

// Forward by kernels that take rows from anywhere, against the rows of one GPU that has them all.
void expect_bits_of_portable(const Problem& problem) {
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const Tensors whole = make(problem, 3), own = take(problem, whole, rank);
    AttentionOptions options = options_of(problem, problem.q_len, problem.kv_len, 1);
    options.implementation = "cuda:portable";
    const OnRank on_rank(group, problem, own);
    const Attention attention(on_rank.context, options);
    const TensorsOf<OnGpu> tensors = copy_to_gpu(on_rank.context, whole);
    const GpuWorkspace workspace(on_rank.context, attention);
    attention.forward(nullptr, tensors.forward(problem), workspace.bytes());
    on_rank.context.synchronize();
    const Tensors wanted = take(problem, copy_from_gpu(tensors, whole), rank);
    const Tensors result = on_rank.run(problem, own);
    EXPECT_TRUE(result.out.bytes == wanted.out.bytes) << static_cast<int>(problem.dtype);
    EXPECT_TRUE(result.lse.bytes == wanted.lse.bytes) << static_cast<int>(problem.dtype);
  });
}

TEST_P(GpuContextAttentionOfRanks, BitsOfOneGpu) {
  expect_bits_of_one_gpu(
      of_ranks(square(256 * pieces(), 128, {.heads = 8, .kv_heads = 2, .chunks = 2})));
  expect_bits_of_one_gpu(of_ranks(
      square(64 * pieces(), 128, {.placement = Sharding::kContiguous, .mask = {}, .chunks = 3})));
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    expect_bits_of_portable(
        of_type(of_ranks(square(55 * pieces(), 72, {.heads = 4, .backward = false})), dtype));
}

// Kernels that have a piece at a time visit keys in the order of one GPU.
TEST_F(GpuContextAttention, BitsOfOneGpuPieceByPiece) {
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64}) {
    const Problem problem = of_type(square(440, 72, {.heads = 4, .backward = false}), dtype);
    expect_bits_of_portable(problem);
  }
}

// The same of ragged batches: rows of a sequence by one rank alone.
TEST_F(GpuContextAttention, BitsOfOneGpuRagged) {
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    for (const bool scores : {false, true}) {
      const Problem problem = of_type(ragged({176, 0, 264}, {.heads = 4,
                                                             .kv_heads = 2,
                                                             .head_dim = 72,
                                                             .value_dim = 72,
                                                             .dropout = 0.25,
                                                             .bias = scores,
                                                             .visible = scores,
                                                             .ragged_rows = true,
                                                             .backward = false}),
                                      dtype);
      expect_bits_of_portable(problem);
    }
}

TEST_F(GpuContextAttention, ReportsAddUp) {
  on_gpu_ranks(2, [&](const Group& group) {
    const int32_t rank = group.rank();
    const int64_t rows = 512, heads = 8, kv_heads = 2, dim = 128;
    const Context context = context_of(rank);
    const perseid::ContextAttention plan(context, group,
                                         {.attention = {.dtype = perseid::bf16,
                                                        .heads = heads,
                                                        .kv_heads = kv_heads,
                                                        .q_len = rows,
                                                        .kv_len = rows,
                                                        .head_dim = dim,
                                                        .mask = perseid::causal_bottom_right(),
                                                        .backward = true},
                                          .placement = Sharding::kZigzag,
                                          .chunks = 2,
                                          .report = true});
    const auto array = [&](int64_t of_heads, uint64_t seed) {
      return OnGpu(context, Matrix::random({1, rows, of_heads, dim}, perseid::bf16, seed));
    };
    const OnGpu query = array(heads, 1), key = array(kv_heads, 2), value = array(kv_heads, 3),
                out = array(heads, 4), grad_query = array(heads, 5), grad_key = array(kv_heads, 6),
                grad_value = array(kv_heads, 7),
                lse(context, Matrix({1, heads, rows}, perseid::f32));
    const Memory memory(context, std::max(plan.workspace_size(perseid::Direction::kForward),
                                          plan.workspace_size(perseid::Direction::kBackward)));
    const std::span<std::byte> workspace(memory);
    const auto expect_report = [&] {
      context.synchronize();
      expect_consistent(plan, group, 8, false);
      const auto report = nlohmann::json::parse(plan.overlap_report());
      EXPECT_GT(report["communication_seconds"], 0);
    };
    for (int i = 0; i < 2; ++i) {
      plan.forward(nullptr,
                   {.query = query.tensor(),
                    .key = key.tensor(),
                    .value = value.tensor(),
                    .out = out.tensor(),
                    .lse = lse.tensor()},
                   workspace);
      expect_report();
      plan.backward(nullptr,
                    {.query = query.tensor(),
                     .key = key.tensor(),
                     .value = value.tensor(),
                     .out = out.tensor(),
                     .lse = lse.tensor(),
                     .grad_out = query.tensor(),
                     .grad_query = grad_query.tensor(),
                     .grad_key = grad_key.tensor(),
                     .grad_value = grad_value.tensor()},
                    workspace);
      expect_report();
    }
  });
}

void expect_to_go_on_without_a_silent_rank(int32_t ranks, bool forward,
                                           perseid::Fusion fusion = perseid::Fusion::kAuto) {
  const Problem problem = of_type(square(512 * ranks, 128, {.ranks = ranks}), perseid::bf16);
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const Tensors own = take(problem, make(problem, 0), rank);
    const OnRank on_rank(group, problem, own, fusion);
    if (rank == 1) return;
    const TensorsOf<OnGpu> tensors = copy_to_gpu(on_rank.context, own);
    perseid_wait_record record{};
    const Ended end = ended([&] {
      if (forward)
        on_rank.plan.forward(nullptr, tensors.forward(problem), on_rank.forward_workspace.bytes(),
                             300ms, &record);
      else
        on_rank.plan.backward(nullptr, tensors.backward(problem),
                              on_rank.backward_workspace.bytes(), 300ms, &record);
      on_rank.context.synchronize();
    });
    EXPECT_TRUE(end.status == PERSEID_TIMEOUT || end.status == PERSEID_PEER_LOST) << end.sentence;
    EXPECT_NE(end.sentence.find("rank 1"), std::string::npos) << end.sentence;
    EXPECT_EQ(record.status, end.status);
    EXPECT_EQ(record.rank, 1);
    // A piece of rank 1, or of a rank whose copies to rank 1 come before those to this one.
    EXPECT_GE(record.chunk, 0);
    if (ranks == 2) {
      EXPECT_TRUE(record.chunk == 1 || record.chunk == 2) << record.chunk;
    }
    EXPECT_LT(end.seconds, 3);
  });
}

TEST_F(GpuContextAttention, UnfusedHasTheSameBits) {
  expect_same_bits_unfused(square(1024, 64, {.dtype = perseid::bf16, .chunks = 2}));
}

TEST_F(GpuContextAttention, ForwardGoesOnWithoutASilentRank) {
  expect_to_go_on_without_a_silent_rank(2, true);
}
TEST_F(GpuContextAttention, BackwardGoesOnWithoutASilentRank) {
  expect_to_go_on_without_a_silent_rank(2, false);
}
TEST_F(GpuContextAttention, StreamedBackwardGoesOnWithoutASilentRank) {
  expect_to_go_on_without_a_silent_rank(2, false, perseid::Fusion::kFused);
}

TEST_P(GpuContextAttentionOfRanks, GoOnWithoutASilentRank) {
  for (const bool forward : {true, false})
    expect_to_go_on_without_a_silent_rank(GetParam(), forward);
}

}  // namespace
