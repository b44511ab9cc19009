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
  return {kernel_name("split_operands", config)};
}

Status Split::make(const SplitConfig& config, Gpu& gpu) {
  config_ = config;
  return gpu.load(kSplitHeader, split_kernels(config), &kernels_);
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
  SplitArguments arguments{{operands[0], operands[1]}, depth};
  int64_t clusters = 0;
  for (const SplitOperand& operand : operands)
    clusters += operand.entries * ceil_div(operand.lines, SplitConfig::kLines);
  // A tile for each warp, as far as the largest cluster goes.
  while (arguments.cluster < SplitConfig::kMostCluster &&
         int64_t{arguments.cluster} * SplitConfig::kWarps * SplitConfig::kDepth < depth)
    arguments.cluster *= 2;
  const Launch grid{.blocks = clusters * arguments.cluster,
                    .threads = SplitConfig::threads(),
                    .cluster = arguments.cluster};
  return gpu.launch(kernels_[0], grid, &arguments, stream);
}

}  // namespace perseid::internal::cuda
