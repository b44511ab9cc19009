// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The portable attention kernels without a GPU: the layout of their tiles in shared memory, which
// configuration is chosen, and what is refused.
#include <gtest/gtest.h>

#include <set>

#include "attention_cases.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/sm90/attention_backward.hpp"

namespace perseid::internal {
namespace {

using cpu::attention_cases::make_case;

AttentionProblem forward_problem() {
  AttentionProblem problem = make_case(DType::kBF16, 1, 2, 2, 2000, 5000, 64, 64).problem;
  problem.grad_query = problem.grad_key = problem.grad_value = false;
  return problem;
}

// Every vector of a tile has 16 bytes of its own.
template <int kLength>
void expect_distinct() {
  constexpr int kLines = 32, kVectors = kLength / cuda::kVector;
  std::set<int> offsets;
  for (int line = 0; line < kLines; ++line)
    for (int vector = 0; vector < kVectors; ++vector)
      offsets.insert(cuda::vector_offset<kLength>(line, vector));
  EXPECT_EQ(offsets.size(), size_t{kLines} * kVectors);
  EXPECT_EQ(*offsets.begin(), 0);
  EXPECT_EQ(*offsets.rbegin(), 2 * kLines * kLength - 16);
}
TEST(VectorTile, HasEachVectorOnce) {
  expect_distinct<64>();
  expect_distinct<128>();
  expect_distinct<192>();
  expect_distinct<256>();
}

// ldmatrix reads 16 bytes of eight lines at a time, which have to be in different banks, and the
// lanes name the four matrices of a fragment in the order that ptx/mma.hpp wants.
template <int kLength>
void expect_fragments(bool columns) {
  for (int down = 0; down < 3; ++down)
    for (int along = 0; along < kLength / 16; ++along)
      for (int matrix = 0; matrix < 4; ++matrix) {
        std::set<uint32_t> banks;
        for (int row = 0; row < 8; ++row) {
          const int lane = 8 * matrix + row;
          const cuda::LaneVector own =
              columns ? cuda::lane_vector_of_columns(lane) : cuda::lane_vector_of_rows(lane);
          const cuda::LaneVectors<kLength> vectors(4096, own.line, own.half);
          // Matrices of a left operand: lower lines, then the next elements; of a right one whose
          // lines are columns: the next elements, then lower lines.
          const int lower = columns ? matrix / 2 : matrix % 2;
          const int next = columns ? matrix % 2 : matrix / 2;
          const uint32_t address = vectors.at(down, along);
          EXPECT_EQ(address, 4096 + static_cast<uint32_t>(cuda::vector_offset<kLength>(
                                        16 * down + 8 * lower + row, 2 * along + next)));
          banks.insert(address / 16 % 8);
        }
        EXPECT_EQ(banks.size(), 8u);
      }
}
TEST(VectorTile, FragmentsMeetNoBankTwice) {
  for (const bool columns : {false, true}) {
    expect_fragments<64>(columns);
    expect_fragments<128>(columns);
    expect_fragments<256>(columns);
  }
}

// Q tiles by multiplications are those by divisions, with a last section of fewer heads too.
TEST(RasterOrder, MultipliesAsItDivides) {
  for (const int32_t tiles : {1, 3, 8, 1000})
    for (const int32_t heads : {1, 7, 64, 100})
      for (const int32_t per_section : {1, 4, 7, 64}) {
        const cuda::SectionDivisors division(tiles, heads, per_section);
        const int32_t count = tiles * heads;
        for (int32_t number = 0; number < count; ++number) {
          const auto wanted = cuda::tile_in_sections(number, tiles, heads, per_section);
          const auto found = cuda::tile_in_sections(number, tiles, heads, per_section, division);
          ASSERT_EQ(found.head, wanted.head) << number;
          ASSERT_EQ(found.tile, wanted.tile) << number;
        }
      }
}

// What is not refused has a kernel that every GPU can hold.
TEST(PortableAttention, FitsIntoSharedMemory) {
  AttentionProblem problem = forward_problem();
  int64_t wrong = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (problem.head_dim = 1; problem.head_dim <= 600; problem.head_dim += 13)
      for (problem.value_dim = 1; problem.value_dim <= 600; problem.value_dim += 13)
        for (const int64_t q_len : {1, 100, 2000}) {
          problem.dtype = dtype;
          problem.q_len = q_len;
          problem.dropout = 0.1;
          const cuda::PortableForwardConfig config = cuda::choose_portable_attention(problem);
          const bool fits = config.shared_bytes() <= cuda::kLeastShared && config.keys % 32 == 0 &&
                            config.key_dim >= problem.head_dim &&
                            config.parts() * config.columns() >= problem.value_dim &&
                            config.rows * config.columns() <= 32 * 128;
          if (!fits && ++wrong <= 5)
            ADD_FAILURE() << name_of(dtype) << " dims " << problem.head_dim << " and "
                          << problem.value_dim << ", q_len " << q_len;
        }
  EXPECT_EQ(wrong, 0);
}

TEST(PortableAttentionBackward, FitsIntoSharedMemory) {
  AttentionProblem problem = make_case(DType::kBF16, 1, 2, 2, 2000, 5000, 64, 64).problem;
  problem.bias = problem.grad_bias = true;
  problem.bias_dtype = DType::kF32;
  std::copy_n(std::vector<int64_t>{1, 2, 2000, 5000}.begin(), 4, problem.bias_shape);
  const auto fits = [&](int32_t most) {
    const auto gradients = cuda::gradients_of(problem, most);
    // dQ is summed beside dK and dV, or in a fixed order by its own blocks.
    bool sums = !problem.deterministic && max(problem.head_dim, problem.value_dim) <= 128 &&
                problem.dtype != DType::kF32;
    // In float64 where there is room.
    if (problem.dtype == DType::kF64) sums = sums && gradients.size() == 2;
    bool all = gradients.size() == (sums ? 2u : 3u);
    for (const auto each : gradients) {
      const cuda::PortableBackwardConfig config =
          cuda::choose_portable_attention_backward(problem, each, most);
      all = all && config.shared_bytes() <= most && config.key_dim >= problem.head_dim &&
            config.value_dim >= problem.value_dim &&
            config.adds_queries == (sums && config.of_keys()) &&
            config.rows * config.part(config.most_dim()) <= 32 * 128;
      // Cut dims of float32 are multiplied in the order of forward.
      const bool whole = config.key_dim > 64 && config.key_dim <= 128 && config.streams();
      all = all && (problem.dtype != DType::kF32 ||
                    config.chunk == (whole && most > cuda::kLeastShared ? 128 : 64));
    }
    return all;
  };
  int64_t wrong = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    for (problem.head_dim = 1; problem.head_dim <= 600; problem.head_dim += 13)
      for (problem.value_dim = 1; problem.value_dim <= 600; problem.value_dim += 13)
        for (const int turn : {0, 1, 2}) {
          problem.dtype = dtype;
          problem.deterministic = turn == 0;
          if (!fits(turn == 1 ? cuda::kLeastShared : 232448) && ++wrong <= 5)
            ADD_FAILURE() << name_of(dtype) << " dims " << problem.head_dim << " and "
                          << problem.value_dim << ", turn " << turn;
        }
  for (problem.head_dim = problem.value_dim = 16; problem.head_dim <= 128;
       problem.value_dim = problem.head_dim += 16)
    EXPECT_EQ(cuda::gradients_of(problem, 232448).size(), 2u);  // of float64
  EXPECT_EQ(wrong, 0);
}

TEST(PortableAttention, Float64FitsIntoEveryGpu) {
  AttentionProblem problem = forward_problem();
  problem.dtype = DType::kF64;
  for (problem.head_dim = 1; problem.head_dim < 2048; problem.head_dim += 37)
    for (problem.value_dim = 3; problem.value_dim < 400; problem.value_dim += 29)
      ASSERT_LE(cuda::choose_float64_attention(problem).shared_bytes(), cuda::kLeastShared)
          << problem.head_dim << " and " << problem.value_dim;
}

// Tiles of bias are counted in 32 bits.
TEST(PortableAttentionBackward, RefusesTooManyTilesOfBias) {
  AttentionProblem problem = make_case(DType::kBF16, 1 << 20, 1 << 9, 1, 1, 150, 8, 8).problem;
  problem.bias = problem.grad_bias = true;
  problem.bias_dtype = DType::kBF16;
  problem.deterministic = true;
  std::copy_n(std::vector<int64_t>{1 << 20, 1 << 9, 1, 150}.begin(), 4, problem.bias_shape);
  const std::string part = "its gradient of bias is made for up to 536870912 tiles of ";
  EXPECT_EQ(cuda::refuse_portable_attention_backward(problem).substr(0, part.size()), part);
  EXPECT_EQ(cuda::refuse_attention_backward(problem).substr(0, part.size()), part);
  problem.bias_shape[3] = 1;  // split
  EXPECT_NE(cuda::refuse_portable_attention_backward(problem), "");
  EXPECT_NE(cuda::refuse_attention_backward(problem), "");
  problem.bias_shape[0] = 1;
  EXPECT_EQ(cuda::refuse_portable_attention_backward(problem), "");
  EXPECT_EQ(cuda::refuse_attention_backward(problem), "");
}

TEST(PortableAttention, RefusesWithASentence) {
  cuda::GpuFacts facts;
  facts.major = 8;
  const AttentionProblem good = forward_problem();
  EXPECT_EQ(cuda::refuse_portable_attention(good, facts), "");
  const auto refused = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return !cuda::refuse_portable_attention(problem, facts).empty();
  };
  EXPECT_FALSE(refused([](AttentionProblem& p) { p.dtype = DType::kF64; }));
  EXPECT_FALSE(refused([](AttentionProblem& p) { p.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.head_dim = 2049; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.kv_len = int64_t{1} << 31; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.batch = p.heads = int64_t{1} << 15; }));
  EXPECT_FALSE(refused([](AttentionProblem& p) { p.head_dim = 63; }));
  EXPECT_FALSE(refused([](AttentionProblem& p) { p.scale = -1; }));
  EXPECT_FALSE(refused([](AttentionProblem& p) { p.batch = 100000; }));
  facts.major = 7;
  EXPECT_FALSE(cuda::refuse_portable_attention(good, facts).empty());
}

}  // namespace
}  // namespace perseid::internal
