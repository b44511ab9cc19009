// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/split.hpp"

#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kAlignment = 256;

int64_t plane_bytes(const SplitConfig& config, int64_t lines, int64_t depth) {
  return round_up(lines * config.row(depth) * size_of(DType::kF16), kAlignment);
}

}  // namespace

std::vector<std::string> split_kernels(const SplitConfig& config) {
  return {kernel_name("split_along", config), kernel_name("split_across", config)};
}

Status Split::make(const SplitConfig& config, Gpu& gpu) {
  config_ = config;
  Status status = gpu.load(kSplitHeader, split_kernels(config), &kernels_);
  if (status.ok()) status = gpu.allow_shared(kernels_[1], SplitConfig::kTilesBytes);
  return status;
}

size_t Split::bytes(int64_t lines, int64_t depth) const {
  return static_cast<size_t>(plane_bytes(config_, lines, depth) +
                             round_up(lines * size_of(DType::kF32), kAlignment));
}

void Split::place(void* memory, int64_t depth, SplitOperand* operand) const {
  const int64_t lines = operand->entries * operand->lines;
  operand->planes = memory;
  operand->factors = reinterpret_cast<float*>(static_cast<std::byte*>(memory) +
                                              plane_bytes(config_, lines, depth));
}

Status Split::run(const Gpu& gpu, const SplitOperand (&operands)[2], int64_t depth,
                  void* stream) const {
  SplitArguments along{.depth = depth}, across{.depth = depth};
  for (int i = 0; i < 2; ++i)
    (operands[i].from.depth == 1 ? along : across).operands[i] = operands[i];
  int64_t blocks = 0, groups = 0;  // of split_along; of lines of split_across
  for (int i = 0; i < 2; ++i) {
    const SplitOperand &of_along = along.operands[i], &of_across = across.operands[i];
    blocks += ceil_div(of_along.entries * of_along.lines, SplitConfig::lines_of_block(depth));
    groups += of_across.entries * ceil_div(of_across.lines, SplitConfig::kLines);
  }
  // So that warps hold all their tiles, as far as the largest cluster goes.
  while (across.cluster < SplitConfig::kMostCluster &&
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
