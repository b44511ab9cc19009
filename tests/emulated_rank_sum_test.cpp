// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernel that sums the parts of ranks, on an emulated GPU (emulated_gpu.hpp), for results of
// any strides, against sums in float64 whose every order is exact.
#include "emulated_gpu.hpp"
// Kernels of the emulated GPU.
#include "cuda/rank_sum.hpp"
#include "tensor.hpp"

// There is a first rank, which the compiler cannot know.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "cuda/device/ranks/sum.hpp"

namespace perseid::internal {
namespace {

using namespace tests;
using cuda::RankSum;
using cuda::RankSumConfig;

struct Layout {
  Shape strides;  // of the result
  bool vectors = false;
  int64_t shift = 0;
};

template <RankSumConfig C>
void launch(const cuda::RankSumArguments& arguments) {
  constexpr int kBlocks = 3;
  for (int b = 0; b < kBlocks; ++b) {
    emulated_gpu::Block block(b, C.threads(), 0, kBlocks);
    block.run([&] { cuda::sum_ranks<C>(arguments); });
  }
}

// `bias`: of columns, or as the result where it has the result's rank.
template <RankSumConfig C>
void sum(const std::vector<Array>& parts, const Tensor& bias, const Array& out, bool average) {
  std::vector<Tensor> tensors;
  for (const Array& part : parts) tensors.push_back(part.tensor);
  cuda::RankSumArguments arguments;
  const RankSum::Arguments given{
      .operation = "test", .parts = tensors, .bias = bias, .out = out.tensor, .average = average};
  cuda::bind_rank_sums(std::span(&given, 1), C.vector, &arguments);
  launch<C>(arguments);
}

// By the kernel that the host chooses: vectors where the layout takes them.
template <RankSumConfig C>
void check(const Shape& shape, const Layout& layout, int32_t ranks, bool average = false) {
  SCOPED_TRACE(testing::Message() << testing::PrintToString(shape) << ", strides "
                                  << testing::PrintToString(layout.strides));
  static constexpr RankSumConfig kScalar = [] {
    RankSumConfig config = C;
    config.vector = 1;
    return config;
  }();
  std::vector<Array> parts;
  Array out(shape, C.out, layout.strides, layout.shift);
  std::vector<double> wanted(static_cast<size_t>(out.count()), 0);
  Random random{static_cast<uint64_t>(ranks)};
  // Of few bits, so that no sum rounds.
  const auto small = [&] { return std::round(8 * random.uniform()); };
  for (int32_t rank = 0; rank < ranks; ++rank) {
    parts.emplace_back(shape, C.in);
    for (int64_t i = 0; i < parts.back().count(); ++i) {
      const double value = small();
      parts.back().set(i, value);
      wanted[static_cast<size_t>(i)] += average ? value / ranks : value;
    }
  }
  Array bias;
  if (C.bias != DType::kNone) {
    bias = Array({shape[2]}, C.bias, {2});
    for (int64_t i = 0; i < bias.count(); ++i) bias.set(i, small());
    for (size_t i = 0; i < wanted.size(); ++i)
      wanted[i] += bias.get(static_cast<int64_t>(i) % shape[2]);
  }
  cuda::RankSumArguments arguments;
  std::vector<Tensor> tensors;
  for (const Array& part : parts) tensors.push_back(part.tensor);
  const RankSum::Arguments given{
      .operation = "test", .parts = tensors, .bias = bias.tensor, .out = out.tensor};
  ASSERT_EQ(cuda::bind_rank_sums(std::span(&given, 1), C.vector, &arguments).vectors,
            layout.vectors);
  if (layout.vectors) {
    sum<C>(parts, bias.tensor, out, average);
  } else {
    sum<kScalar>(parts, bias.tensor, out, average);
  }
  out.expect(wanted);
  out.expect_guards();
}

constexpr RankSumConfig kF32{.vector = 4};
constexpr RankSumConfig kBF16WithBias{.out = DType::kBF16, .bias = DType::kBF16, .vector = 4};
constexpr RankSumConfig kF64InPairs{
    .in = DType::kF64, .out = DType::kF64, .vector = 2, .in_pairs = true};
constexpr RankSumConfig kBF16{.in = DType::kBF16, .out = DType::kBF16, .vector = 8};

TEST(EmulatedRankSum, WritesRows) {
  check<kF32>({2, 5, 12}, {.strides = {60, 12, 1}, .vectors = true}, 3);
  check<kF32>({2, 5, 12}, {.strides = {100, 20, 1}, .vectors = true}, 3);
  check<kF32>({1, 4, 1032}, {.strides = {0, 1032, 1}, .vectors = true}, 2);
  check<kF32>({2, 300, 12}, {.strides = {3600, 12, 1}, .vectors = true}, 2);  // many at once
  check<kBF16WithBias>({2, 5, 12}, {.strides = {60, 12, 1}, .vectors = true}, 2, true);
  check<kF64InPairs>({1, 5, 6}, {.strides = {30, 6, 1}, .vectors = true}, 4);
  // Neither aligned nor of whole vectors.
  check<kF32>({2, 5, 12}, {.strides = {60, 12, 1}, .shift = 1}, 3);
  check<kF32>({2, 5, 13}, {.strides = {65, 13, 1}}, 3);
  check<kF32>({2, 5, 12}, {.strides = {65, 13, 1}}, 3);
}

TEST(EmulatedRankSum, WritesColumnsAndElementsApart) {
  for (const bool average : {false, true}) {
    check<kF32>({2, 5, 12}, {.strides = {60, 1, 5}}, 2, average);
    check<kF32>({2, 5, 12}, {.strides = {240, 48, 4}}, 2, average);
    check<kBF16WithBias>({1, 300, 8}, {.strides = {0, 1, 300}}, 4, average);
    check<kBF16WithBias>({3, 4, 8}, {.strides = {1, 3, 12}}, 2, average);
    check<kF64InPairs>({1, 5, 6}, {.strides = {0, 1, 5}}, 4, average);
  }
  check<kF32>({1, 3, 520}, {.strides = {0, 1, 3}}, 3);
}

// A sum of one part.
TEST(EmulatedRankSum, Copies) {
  check<kBF16>({2, 7, 16}, {.strides = {112, 16, 1}, .vectors = true}, 1);
  check<kBF16>({2, 7, 16}, {.strides = {112, 1, 7}}, 1);
  check<kBF16>({2, 7, 16}, {.strides = {448, 64, 4}}, 1);
}

// Of as many parts each as there are ranks that have one, and as wide as each.
struct Sums {
  std::vector<Array> outs;
  std::vector<std::vector<Array>> parts;
  std::vector<std::vector<Tensor>> tensors;
  std::vector<std::vector<double>> wanted;
  std::vector<RankSum::Arguments> given;

  void add(const Shape& shape, int32_t ranks) {
    outs.emplace_back(shape, DType::kBF16);
    std::vector<Array>& own = parts.emplace_back();
    std::vector<double>& sums = wanted.emplace_back(static_cast<size_t>(outs.back().count()), 0);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      own.emplace_back(shape, DType::kF32);
      for (size_t i = 0; i < sums.size(); ++i) {
        const auto value =
            static_cast<double>((i + 3 * parts.size() + static_cast<size_t>(rank)) % 8);
        own.back().set(static_cast<int64_t>(i), value);
        sums[i] += value;
      }
    }
  }
  void bind() {
    for (size_t i = 0; i < outs.size(); ++i) {
      std::vector<Tensor>& of = tensors.emplace_back();
      for (const Array& part : parts[i]) of.push_back(part.tensor);
    }
    for (size_t i = 0; i < outs.size(); ++i)
      given.push_back(
          {.operation = "test", .parts = tensors[i], .bias = {}, .out = outs[i].tensor});
  }
};

constexpr RankSumConfig kToBF16{.out = DType::kBF16, .vector = 4};

TEST(EmulatedRankSum, LaunchesSeveralSums) {
  Sums sums;
  sums.add({2, 5, 12}, 3);
  sums.add({0, 5, 12}, 3);
  sums.add({2, 7, 128}, 1);
  sums.add({1, 70, 64}, 4);
  sums.bind();
  cuda::RankSumArguments arguments;
  const cuda::BoundRankSums bound = cuda::bind_rank_sums(sums.given, 4, &arguments);
  EXPECT_EQ(bound.count, 4u);
  EXPECT_TRUE(bound.vectors);
  EXPECT_EQ(arguments.count, 3);
  launch<kToBF16>(arguments);
  for (size_t i = 0; i < sums.outs.size(); ++i) {
    sums.outs[i].expect(sums.wanted[i]);
    sums.outs[i].expect_guards();
  }
}

// One that takes no vectors makes all of them take none.
TEST(EmulatedRankSum, LaunchesAsManySumsAsItTakes) {
  Sums sums;
  for (int i = 0; i < 10; ++i) sums.add({1, 2, i == 2 ? 13 : 12}, i < 5 ? 20 : 2);
  sums.bind();
  std::span<const RankSum::Arguments> left = sums.given;
  for (const auto& [count, vectors] : {std::pair{3u, false}, {7u, true}}) {
    cuda::RankSumArguments arguments;
    const cuda::BoundRankSums bound = cuda::bind_rank_sums(left, 4, &arguments);
    EXPECT_EQ(bound.count, count);
    EXPECT_EQ(bound.vectors, vectors);
    left = left.subspan(bound.count);
    if (vectors) {
      launch<kToBF16>(arguments);
    } else {
      launch<RankSumConfig{.out = DType::kBF16, .vector = 1}>(arguments);
    }
  }
  EXPECT_TRUE(left.empty());
  for (size_t i = 0; i < sums.outs.size(); ++i) sums.outs[i].expect(sums.wanted[i]);
}

}  // namespace
}  // namespace perseid::internal
