// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "cuda/matmul/fma.hpp"
#include "cuda/matmul/tensor_core.hpp"
#include "cuda/pack/variants.hpp"
#include "cuda/rank_sum.hpp"
#include "cuda/runtime/signals.hpp"
#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_f32.hpp"
#include "cuda/sm90/matmul_f8.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int32_t kMostRegisters = 255, kBlockRegisters = 65536;

// A warp's sums, its operands of two steps (at most), and addresses. Where these are all
// registers, some addresses of the copies are spilled; of chunks, the state of the waits too.
Budget budget_of(const MatmulTensorConfig& config) {
  const int32_t words = size_of(config.in) == 8 ? 2 : 1;
  const int32_t sums = words * config.warp_rows * config.warp_columns / 32;
  const int32_t operands = words * (config.warp_rows + config.warp_columns) / 4;
  const int32_t products = config.planes == 2 ? sums : 0;  // of a stage
  const int32_t wanted = sums + products + 2 * operands + 80;
  const int32_t spilled = (wanted > kMostRegisters ? 80 : 32) + (config.async ? 64 : 0);
  return {min(kMostRegisters, wanted), spilled, 0};
}
Budget budget_of(const MatmulFmaConfig& config) {
  const int32_t wanted = config.each * config.each + 12 * config.each + 64;
  return {min(kBlockRegisters / MatmulFmaConfig::threads - 1, wanted), 0, 36864};
}

// A tile's numbers, their halves, and addresses.
// Two words are spilled on compute capability 8.0.
Budget budget_of(const SplitConfig&) { return {80, 8, 2048}; }

// setmaxnreg divides the registers among producer and consumers. Nothing is spilled, but by the
// scheduler of chunks and the timed waits, which are no inner loop, around the parts of ranks, and
// five words where 16-bit results wait for their scales, and what a split tile's end and the search
// in two orders need.
Budget budget_of(const Sm90MatmulConfig& config) {
  const bool scaled = config.scaled && config.promote == 0;
  const int32_t of_waits = config.async ? (config.takes_tiles() ? 184 : 144) : 0;
  const int32_t spilled = config.parts > 0 ? 176 : config.async ? of_waits : scaled ? 20 : 0;
  const int32_t of_splits = config.split_k ? 160 : 0;
  return {config.consumers == 2 ? 168 : 255, spilled + of_splits, 0};
}

void add_sm90(const std::string& name, MatmulProblem problem, int32_t multiprocessors,
              std::vector<Variant>* variants) {
  for (const bool chunks : {false, true}) {
    if (chunks) problem.chunks_a.dim = ChunkDim::kM;
    Sm90MatmulConfig config = choose_sm90_matmul(problem, multiprocessors);
    const auto add_variant = [&](const std::string& what) {
      variants->push_back({concatenate(name, ", wgmma", what),
                           {kSm90MatmulHeader, sm90_matmul_kernels(config), "sm_90a"},
                           budget_of(config)});
    };
    add_variant(chunks ? ", in chunks" : "");
    // Large products over ranks of one host.
    if (chunks && config.cluster == 2 && size_of(config.out) == 2)
      for (const int others : {1, 3, 7}) {
        // In canonical order two ranks have four leaves each, four have two, eight have one.
        if (problem.leaves > 0 ? others + 1 != kLeaves / problem.leaves : others == 7) continue;
        config.parts = others;
        const std::string ranks = others == 1   ? ", over two ranks"
                                  : others == 3 ? ", over four ranks"
                                                : ", over eight ranks";
        if (others == 7) {
          add_variant(ranks);
          continue;
        }
        config.deferred_parts = true;
        for (const auto& [columns, cluster, out_stages] :
             {std::array{192, 1, 4}, std::array{256, 2, 4}}) {
          // Few rows. Of two ranks and bf16 not in the pack, for its size.
          if (columns == 256 && others == 1 && problem.dtype == DType::kBF16) continue;
          if (columns == 256 && problem.leaves > 0) continue;
          config.columns = columns;
          config.cluster = cluster;
          config.out_stages = out_stages;
          add_variant(concatenate(ranks, ", ", columns, " columns"));
        }
      }
  }
}

void add_fixup(const std::string& name, const MatmulProblem& problem, int32_t multiprocessors,
               const std::string& architecture, std::vector<Variant>* variants) {
  const MatmulFmaConfig fixup = choose_fixup_matmul(problem, multiprocessors);
  variants->push_back({concatenate(name, ", fixup"),
                       {kFmaMatmulHeader, fma_matmul_kernels(fixup), architecture},
                       budget_of(fixup)});
}

// f32 by products of f16: the kernels of a problem, without the splitting.
void add_sm90_f32(const std::string& name, const MatmulProblem& problem, int32_t multiprocessors,
                  std::vector<Variant>* variants) {
  const Sm90MatmulConfig config = choose_sm90_f32_matmul(problem, multiprocessors);
  variants->push_back({concatenate(name, ", planes"),
                       {kSm90MatmulHeader, sm90_f32_matmul_kernels(config), "sm_90a"},
                       budget_of(config)});
  if (problem.leaves <= 1) add_fixup(name, problem, multiprocessors, "sm_90a", variants);
}
void add_tensor_core_f32(const std::string& name, const MatmulProblem& problem,
                         int32_t multiprocessors, int32_t shared_bytes,
                         const std::string& architecture, std::vector<Variant>* variants) {
  const MatmulTensorConfig config =
      choose_tensor_core_matmul(problem, multiprocessors, shared_bytes);
  variants->push_back({concatenate(name, ", planes"),
                       {kTensorCoreMatmulHeader, tensor_core_matmul_kernels(config), architecture},
                       budget_of(config)});
  add_fixup(name, problem, multiprocessors, architecture, variants);
}

void add_splitting(const SplitConfig& config, const std::string& architecture,
                   std::vector<Variant>* variants) {
  variants->push_back({"splitting of f32 operands",
                       {kSplitHeader, split_kernels(config), architecture},
                       budget_of(config)});
}

// e4m3 to bf16, with scales of rows and columns or of tensors, and of blocks.
void add_sm90_f8(const std::string& architecture, std::vector<Variant>* variants) {
  constexpr int32_t kMultiprocessors = 132;
  for (const int64_t size : {2048, 8192})
    for (const auto& [scaling, accumulation] : {std::pair{Scaling::kRow, Accumulation::kFast},
                                                {Scaling::kRow, Accumulation::kPromoted},
                                                {Scaling::kBlock, Accumulation::kPromoted}}) {
      const MatmulProblem problem{.dtype = DType::kF8E4M3,
                                  .out_dtype = DType::kBF16,
                                  .m = size,
                                  .n = size,
                                  .k = size,
                                  .scaling = scaling,
                                  .accumulation = accumulation};
      const Sm90MatmulConfig config = choose_sm90_f8_matmul(problem, kMultiprocessors);
      variants->push_back({concatenate("matmul of f8e4m3 to bf16, ", size, " x ", size,
                                       scaling == Scaling::kBlock ? ", scales of blocks" : "",
                                       config.promote > 0 ? ", promoted" : ", fast"),
                           {kSm90MatmulHeader, sm90_f8_matmul_kernels(config), architecture},
                           budget_of(config)});
    }
}

// Tiles that are split along k.
void add_split(std::vector<Variant>* variants) {
  constexpr int32_t kMultiprocessors = 132;
  const std::string name = "matmul with split tiles";
  MatmulProblem problem{
      .dtype = DType::kBF16, .out_dtype = DType::kBF16, .m = 640, .n = 8192, .k = 8192};
  add_sm90(concatenate(name, ", bf16"), problem, kMultiprocessors, variants);
  problem.dtype = problem.out_dtype = DType::kF32;
  add_sm90_f32(concatenate(name, ", f32"), problem, kMultiprocessors, variants);
  problem.dtype = DType::kF8E4M3;
  problem.accumulation = Accumulation::kFast;
  const Sm90MatmulConfig config = choose_sm90_f8_matmul(problem, kMultiprocessors);
  variants->push_back({concatenate(name, ", f8e4m3"),
                       {kSm90MatmulHeader, sm90_f8_matmul_kernels(config), "sm_90a"},
                       budget_of(config)});
}

void add(DType dtype, DType out_dtype, int64_t size, const std::string& architecture,
         std::vector<Variant>* variants) {
  constexpr int32_t kMultiprocessors = 132, kSharedBytes = 160 << 10;
  const MatmulProblem problem{dtype, out_dtype, 1, size, size, size};
  const std::string name = concatenate("matmul of ", name_of(dtype), " to ", name_of(out_dtype),
                                       ", ", size, " x ", size, " for ", architecture);
  if (architecture == "sm_90a" && refuse_sm90_matmul(problem).empty())
    add_sm90(name, problem, kMultiprocessors, variants);
  if (architecture == "sm_90a" && dtype == DType::kF32)
    add_sm90_f32(name, problem, kMultiprocessors, variants);
  if (refuse_tensor_core_matmul(problem).empty()) {
    for (const bool chunks : {false, true}) {
      if (chunks && out_dtype != DType::kBF16) continue;
      MatmulProblem cut = problem;
      if (chunks) cut.chunks_a.dim = ChunkDim::kM;
      const MatmulTensorConfig config =
          choose_tensor_core_matmul(cut, kMultiprocessors, kSharedBytes);
      variants->push_back(
          {concatenate(name, chunks ? ", in chunks" : ""),
           {kTensorCoreMatmulHeader, tensor_core_matmul_kernels(config), architecture},
           budget_of(config)});
    }
  } else {
    const MatmulFmaConfig config = choose_fma_matmul(problem, kMultiprocessors);
    variants->push_back(
        {name, {kFmaMatmulHeader, fma_matmul_kernels(config), architecture}, budget_of(config)});
    if (architecture != "sm_90a")
      add_tensor_core_f32(name, problem, kMultiprocessors, kSharedBytes, architecture, variants);
  }
}

// Small tiles, those of one wave, and large ones.
std::vector<Variant> variants_of(std::initializer_list<DType> dtypes,
                                 const std::string& architecture) {
  std::vector<Variant> variants;
  for (const DType dtype : dtypes)
    for (const int64_t size : {256, 2048, 8192}) {
      add(dtype, dtype, size, architecture, &variants);
      if (size_of(dtype) == 2) add(dtype, DType::kF32, size, architecture, &variants);
    }
  return variants;
}

}  // namespace

std::vector<Variant> matmul_variants(const std::string& architecture, bool common) {
  if (common) {
    std::vector<Variant> variants = variants_of({DType::kF32, DType::kBF16}, architecture);
    add_splitting({.clusters = architecture == "sm_90a"}, architecture, &variants);
    if (architecture == "sm_90a") {
      variants.push_back({"wait for a signal",
                          {kSignalWaitHeader, {kChunkWaitKernel, kChunkSignalKernel}, architecture},
                          {64, 0, 0}});
      variants.push_back({"clear waits for chunks",
                          {kSignalWaitHeader, {kChunkWaitsKernel}, architecture},
                          {64, 0, 0}});
      // Of partial sums, and of tensors; one tensor is a copy with strides.
      for (const DType in : {DType::kF32, DType::kBF16, DType::kF16})
        for (const DType out : {DType::kBF16, DType::kF16, DType::kF32})
          if (in == DType::kF32 || in == out)
            variants.push_back(
                {concatenate("sum over ranks of ", name_of(in), " as ", name_of(out)),
                 {kRankSumHeader, rank_sum_kernels(RankSumConfig{.in = in, .out = out}),
                  architecture},
                 {48, 0, 0}});
      add_sm90_f8(architecture, &variants);
    }
    return variants;
  }
  std::vector<Variant> variants = variants_of({DType::kF16, DType::kF64}, architecture);
  for (const int64_t size : {256, 8192}) {
    const MatmulTensorConfig config = choose_tensor_core_matmul({.dtype = DType::kF64,
                                                                 .out_dtype = DType::kF64,
                                                                 .m = size,
                                                                 .n = size,
                                                                 .k = size,
                                                                 .leaves = 2},
                                                                132, 227 << 10);
    variants.push_back(
        {concatenate("matmul of f64, in two leaves, ", size, " x ", size, " for ", architecture),
         {kTensorCoreMatmulHeader, tensor_core_matmul_kernels(config), architecture},
         budget_of(config)});
  }
  if (architecture == "sm_90a") {
    add_split(&variants);
    constexpr int64_t kSize = 8192;
    add_sm90("matmul of bf16 to f32, in eight leaves",
             {.dtype = DType::kBF16,
              .out_dtype = DType::kF32,
              .m = kSize,
              .n = kSize,
              .k = kSize,
              .leaves = kLeaves},
             132, &variants);
    for (const int64_t leaves : {2, 4, 8})
      add_sm90_f32(concatenate("matmul of f32, in ", leaves, " of eight leaves"),
                   {.m = kSize, .n = kSize, .k = kSize, .leaves = leaves}, 132, &variants);
    for (const int64_t leaves : {1, 2, 4})
      add_sm90(concatenate("matmul of bf16, in ", leaves, " of eight leaves"),
               {.dtype = DType::kBF16,
                .out_dtype = DType::kBF16,
                .m = kSize,
                .n = kSize,
                .k = kSize,
                .leaves = leaves},
               132, &variants);
  }
  return variants;
}

}  // namespace perseid::internal::cuda
