// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/split.hpp"

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kAlignment = 256;

// Elements of a and b whose planes are in the workspace at a time.
constexpr int64_t kMostElements = int64_t{1} << 27;

int64_t plane_bytes(const SplitConfig& config, int64_t lines, int64_t depth) {
  return round_up(lines * config.row(depth) * size_of(DType::kF16), kAlignment);
}

}  // namespace

std::string refuse_split_matmul(const MatmulProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (problem.depth() == 0) return "there is nothing to multiply (k or alpha is 0)";
  if (problem.k > kMost / 2)
    return concatenate("k is ", problem.k, ", expected at most ", kMost / 2, " in f32");
  return refuse_large_matmul(problem);
}

// 1 x 8192 x 8192 takes 0.51 ms, by multiply-add 0.33 ms, which a tile of 64 rows takes in any
// case; 256^3 takes 18 us and 16 us, 512^3 24 us and 26 us.
std::string avoid_split_matmul(const MatmulProblem& problem) {
  constexpr int64_t kFewLines = 64;
  constexpr int kFewProducts = 1 << 25;
  if (min(problem.m, problem.n) <= kFewLines)
    return concatenate("made for f32 with m and n above ", kFewLines, ", got ", problem.m, " and ",
                       problem.n, ": splitting a and b takes longer than multiply-add");
  const double products = static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                          static_cast<double>(problem.k);
  if (products < kFewProducts)
    return concatenate("made for f32 with m n k of ", kFewProducts, " and more, got ", problem.m,
                       " x ", problem.n, " x ", problem.k, ": multiply-add is faster");
  return "";
}

std::vector<std::string> split_kernels(const SplitConfig& config) {
  return {kernel_name("split_along", config), kernel_name("split_across", config)};
}

Status Split::make(const SplitConfig& config, Gpu& gpu) {
  config_ = config;
  Status status = gpu.load(kSplitHeader, split_kernels(config), &kernels_);
  if (status.ok()) status = gpu.allow_shared(kernels_[1], SplitConfig::kTilesBytes);
  return status;
}

size_t Split::bytes_of(int64_t lines, int64_t depth) const {
  return static_cast<size_t>(plane_bytes(config_, lines, depth) +
                             round_up(lines * size_of(DType::kF32), kAlignment));
}

int64_t Split::entries_at_a_time(const MatmulProblem& problem) {
  const int64_t each = (problem.m + problem.n) * problem.k;
  return clamp<int64_t>(kMostElements / max<int64_t>(each, 1), 1, max<int64_t>(problem.batch, 1));
}

size_t Split::bytes(const MatmulProblem& problem, int64_t entries) const {
  return bytes_of(entries * problem.m, problem.k) + bytes_of(entries * problem.n, problem.k);
}

Split::Operands Split::place(const MatmulProblem& problem, const MatmulLaunch& launch,
                             int64_t entries, void* workspace) const {
  Operands operands{{launch.a, launch.rows, launch.a.batch != 0 ? entries : 1},
                    {launch.b, launch.columns, launch.b.batch != 0 ? entries : 1}};
  auto* memory = static_cast<std::byte*>(workspace);
  const int64_t most[] = {launch.transposed ? problem.n : problem.m,
                          launch.transposed ? problem.m : problem.n};
  for (const auto& [operand, most_lines] :
       {std::pair{&operands.a, most[0]}, {&operands.b, most[1]}}) {
    operand->planes = memory;
    operand->factors = reinterpret_cast<float*>(
        memory + plane_bytes(config_, operand->entries * operand->lines, launch.depth));
    memory += bytes_of(operand->entries * most_lines, launch.depth);
  }
  return operands;
}

Status Split::run(const Gpu& gpu, const Operands& given, int64_t depth, void* stream) const {
  SplitArguments along{.depth = depth}, across{.depth = depth};
  const SplitOperand operands[] = {given.a, given.b};
  for (int i = 0; i < 2; ++i)
    (operands[i].from.depth == 1 ? along : across).operands[i] = operands[i];
  int64_t blocks = 0, groups = 0;  // of split_along; of lines of split_across
  for (int i = 0; i < 2; ++i) {
    const SplitOperand &of_along = along.operands[i], &of_across = across.operands[i];
    blocks += ceil_div(of_along.entries * of_along.lines, SplitConfig::lines_of_block(depth));
    groups += of_across.entries * ceil_div(of_across.lines, SplitConfig::kLines);
  }
  // So that warps hold all their tiles, as far as the largest cluster goes.
  while (config_.clusters && across.cluster < SplitConfig::kMostCluster &&
         across.cluster * SplitConfig::kDepthOfABlock < depth)
    across.cluster *= 2;
  Status status;
  if (blocks > 0)
    status = gpu.launch(kernels_[0], {.blocks = blocks, .threads = SplitConfig::threads}, &along,
                        stream);
  if (status.ok() && groups > 0)
    status = gpu.launch(kernels_[1],
                        {.blocks = groups * across.cluster,
                         .threads = SplitConfig::threads,
                         .cluster = across.cluster,
                         .shared_bytes = SplitConfig::kTilesBytes},
                        &across, stream);
  return status;
}

}  // namespace perseid::internal::cuda
