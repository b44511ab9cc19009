// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention of ragged batches in 16-bit types, which kernels of Hopper take and
// other GPUs compute a piece at a time: near to the attention of whole sequences on the CPU, and
// with the same bits in every run.
#include "gpu_context_attention_tools.hpp"

namespace {

using namespace gpu_context_attention_tools;

class GpuRaggedRanks : public GpuRanksTest {};
class GpuRaggedOfRanks : public RanksOfGpus {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuRaggedOfRanks, testing::Values(3, 4),
                         testing::PrintToStringParamName());

Problem with_dim(int64_t dim, Problem problem) {
  problem.head_dim = problem.value_dim = dim;
  return problem;
}

const perseid::Mask kWindow = perseid::causal_bottom_right() & perseid::window(150, -1);

// Pieces that are whole tiles, parts of one, and nothing.
class GpuRaggedPlacements : public GpuRanksTest,
                            public testing::WithParamInterface<std::tuple<int64_t, Sharding>> {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuRaggedPlacements,
                         testing::Combine(testing::Values(64, 128),
                                          testing::Values(Sharding::kZigzag,
                                                          Sharding::kContiguous)));

TEST_P(GpuRaggedPlacements, AreAsOnTheCpu) {
  const auto [dim, placement] = GetParam();
  for (const perseid::Mask& mask : {perseid::causal_bottom_right(), perseid::Mask(), kWindow})
    expect_as_on_the_cpu(ragged({512, 0, 4, 1200, 76, 1024},
                                with_dim(dim, {.placement = placement,
                                               .mask = mask,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .accumulate = placement == Sharding::kZigzag})));
}

TEST_F(GpuRaggedRanks, OfOtherDimsAndTypes) {
  const std::vector<int32_t> lengths = {300, 0, 20, 712};
  expect_as_on_the_cpu(ragged(lengths, {.head_dim = 192, .value_dim = 128}));
  expect_as_on_the_cpu(ragged(lengths, with_dim(256, {.layout = perseid::bhsd})));
  expect_as_on_the_cpu(ragged(lengths, with_dim(72, {.mask = perseid::window(90, 40)})));
  expect_as_on_the_cpu(ragged(lengths, with_dim(128, {.heads = 8, .kv_heads = 1})), perseid::f16);
}

// Short sequences in a batch of long ones: tiles of keys that several ranks have parts of.
TEST_F(GpuRaggedRanks, OfManyLengths) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 40; ++i) lengths.push_back(i * i * 7919 % 173 * 4);
  expect_as_on_the_cpu(ragged(lengths, with_dim(64, {.heads = 4, .kv_heads = 2})));
  expect_as_on_the_cpu(ragged(lengths, with_dim(128, {.layout = perseid::bhsd, .mask = kWindow})));
}

// Groups of sequences, which arrive one after the other.
TEST_F(GpuRaggedRanks, OfGroupsOfSequences) {
  std::vector<int32_t> lengths(16, 1024);
  lengths[3] = 4;
  lengths[4] = 2036;
  const Problem problem =
      ragged(lengths, with_dim(64, {.dtype = perseid::bf16, .heads = 16, .kv_heads = 4}));
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const OnRank on_rank(group, problem, take(problem, make(problem, 0), group.rank()));
    const std::string explanation = on_rank.plan.explain();
    if (explanation.find("cuda:sm90") == std::string::npos) return;
    EXPECT_NE(explanation.find("sequences in 4 groups"), std::string::npos) << explanation;
  });
  expect_as_on_the_cpu(problem);
}

TEST_P(GpuRaggedOfRanks, AreAsOnTheCpu) {
  const int32_t unit = 2 * GetParam();
  const std::vector<int32_t> lengths = {64 * unit, 0, unit, 150 * unit, 9 * unit};
  for (const Sharding placement : {Sharding::kZigzag, Sharding::kContiguous})
    for (const int64_t dim : {64, 128})
      expect_as_on_the_cpu(ragged(
          lengths,
          with_dim(dim, {.ranks = GetParam(), .placement = placement, .heads = 4, .kv_heads = 2})));
}

// Gradients of keys in any case, those of queries where that was asked for.
TEST_F(GpuRaggedRanks, RepeatTheirBits) {
  for (const bool deterministic : {false, true}) {
    const Problem problem = ragged(
        {512, 0, 100, 1200},
        with_dim(
            128,
            {.dtype = perseid::bf16, .heads = 4, .kv_heads = 2, .deterministic = deterministic}));
    on_gpu_ranks(problem.ranks, [&](const Group& group) {
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

// Infinity in columns [first, first + count) of some rows of a head, of bf16.
void put_infinity(Matrix* matrix, const std::vector<int64_t>& rows, int64_t head, int64_t first,
                  int64_t count) {
  constexpr uint16_t kInfinity = 0x7f80;
  for (const int64_t row : rows)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (row * matrix->shape[1] + head) * matrix->shape[2] + first + i;
      std::memcpy(matrix->bytes.data() + 2 * at, &kInfinity, sizeof kInfinity);
    }
}
int64_t count_finite(const Matrix& matrix) {
  int64_t count = 0;
  for (size_t i = 0; i < matrix.bytes.size() / static_cast<size_t>(bytes_of(matrix.dtype)); ++i)
    count += std::isfinite(value_of(matrix, i));
  return count;
}
// What is finite in the reference is near to it, and only that is finite. `loose`: what is not may
// be finite, too.
void expect_as_reference(const char* name, const Matrix& result, const Matrix& wanted, bool loose) {
  ASSERT_EQ(result.shape, wanted.shape) << name;
  const double tolerance = wanted.dtype == perseid::f32 ? 1e-4 : 0x1p-6;
  for (size_t i = 0; i < wanted.bytes.size() / static_cast<size_t>(bytes_of(wanted.dtype)); ++i) {
    const double got = value_of(result, i), expected = value_of(wanted, i);
    if (std::isfinite(expected))
      ASSERT_NEAR(got, expected, tolerance * std::max(1.0, std::abs(expected)))
          << name << ", element " << i << " of " << testing::PrintToString(wanted.shape);
    else
      ASSERT_TRUE(loose || !std::isfinite(got))
          << name << ", element " << i << " of " << testing::PrintToString(wanted.shape) << " is "
          << got << ", expected " << expected;
  }
}

// Rows of the second piece of both ranks. The fixups of gradients of keys visit both pieces of a
// rank, and those of gradients of queries are of one.
class GpuRaggedInfinities : public GpuRanksTest,
                            public testing::WithParamInterface<std::tuple<int64_t, bool>> {
 protected:
  // `poison` of the whole tensors.
  void check(const std::function<void(Tensors*)>& poison, bool loose = false) {
    const auto [dim, deterministic] = GetParam();
    // Sequences begin at rows 0, 512, 512 and 612, with pieces of 128, 0, 25 and 150 rows.
    const Problem problem = ragged(
        {512, 0, 100, 600},
        with_dim(
            dim,
            {.dtype = perseid::bf16, .heads = 4, .kv_heads = 2, .deterministic = deterministic}));
    Tensors whole = make(problem, 0);
    poison(&whole);
    const Tensors given = whole;
    {
      AttentionOptions options = options_of(problem, problem.q_len, problem.kv_len, 1);
      options.implementation = "cpu:reference";
      const Attention reference(Context::cpu(2), options);
      Workspace workspace;
      reference.forward(nullptr, whole.forward(problem), workspace);
      reference.backward(nullptr, whole.backward(problem), workspace);
    }
    for (const Matrix* matrix : {&whole.grad_query, &whole.grad_key, &whole.grad_value}) {
      const int64_t finite = count_finite(*matrix), all = std::ssize(matrix->bytes) / 2;
      EXPECT_TRUE(finite > all / 4 && finite < all)
          << finite << " of " << all;  // or it says little
    }
    on_gpu_ranks(problem.ranks, [&](const Group& group) {
      const int32_t rank = group.rank();
      SCOPED_TRACE(testing::Message() << "rank " << rank);
      const Tensors own = take(problem, given, rank), wanted = take(problem, whole, rank);
      const Tensors result = OnRank(group, problem, own).run(problem, own);
      expect_as_reference("out", result.out, wanted.out, loose);
      expect_as_reference("lse", result.lse, wanted.lse, loose);
      expect_as_reference("grad_query", result.grad_query, wanted.grad_query, loose);
      expect_as_reference("grad_key", result.grad_key, wanted.grad_key, loose);
      expect_as_reference("grad_value", result.grad_value, wanted.grad_value, loose);
    });
  }

  // In the last piece of the first sequence, the last row of the third, and piece 2 of the fourth.
  const std::vector<int64_t> rows_ = {389, 611, 612 + 317};
};
INSTANTIATE_TEST_SUITE_P(Dims, GpuRaggedInfinities,
                         testing::Combine(testing::Values(64, 128), testing::Bool()));

TEST_P(GpuRaggedInfinities, OfAGradient) {
  check([&](Tensors* whole) { put_infinity(&whole->grad_out, rows_, 1, 20, 1); });
}
TEST_P(GpuRaggedInfinities, OfARowOfGradients) {
  const auto [dim, deterministic] = GetParam();
  check(
      [&, columns = dim](Tensors* whole) { put_infinity(&whole->grad_out, rows_, 2, 0, columns); });
}
// Scores are infinities of both signs: those of -infinity may have weight 0, or NaN as the others.
TEST_P(GpuRaggedInfinities, OfAnElementOfAQuery) {
  check([&](Tensors* whole) { put_infinity(&whole->query, rows_, 3, 7, 1); }, /*loose*/ true);
}
TEST_P(GpuRaggedInfinities, OfAQuery) {
  const auto [dim, deterministic] = GetParam();
  check([&, columns = dim](Tensors* whole) { put_infinity(&whole->query, rows_, 0, 0, columns); });
}

TEST_F(GpuRaggedRanks, HaveTheSameBitsUnfused) {
  expect_same_bits_unfused(
      ragged({1024, 20, 760}, with_dim(64, {.dtype = perseid::bf16, .backward = false})));
}

TEST_F(GpuRaggedRanks, ForwardGoesOnWithoutASilentRank) {
  const Problem problem =
      ragged({1024, 20, 760}, with_dim(128, {.dtype = perseid::bf16, .backward = false}));
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const Tensors own = take(problem, make(problem, 0), rank);
    const OnRank on_rank(group, problem, own);
    if (rank == 1) return;
    const TensorsOf<OnGpu> tensors = copy_to_gpu(on_rank.context, own);
    perseid::AttentionForward arguments = tensors.forward(problem);
    arguments.cu_seqlens_q = arguments.cu_seqlens_kv = own.lengths.tensor();
    perseid_wait_record record{};
    const Ended end = ended([&] {
      on_rank.plan.forward(nullptr, arguments, on_rank.forward_workspace.bytes(), 300ms, &record);
      on_rank.context.synchronize();
    });
    EXPECT_TRUE(end.status == PERSEID_TIMEOUT || end.status == PERSEID_PEER_LOST) << end.sentence;
    EXPECT_NE(end.sentence.find("rank 1"), std::string::npos) << end.sentence;
    EXPECT_EQ(record.status, end.status);
    EXPECT_EQ(record.rank, 1);
    EXPECT_EQ(record.chunk, 1);
    EXPECT_LT(end.seconds, 3);
  });
}

}  // namespace
