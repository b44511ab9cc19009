// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which plans of attention find their kernels in the kernel pack: those of well-known models.
// Plans' own choice names the kernels, and the pack's list of programs must have them; nothing is
// compiled.
#include <gtest/gtest.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "cuda/pack/variants.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/runtime/cache.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr DType kB = DType::kBF16, kH = DType::kF16;

struct Usual {
  const char* name;
  DType dtype;
  int64_t dim;
  int64_t value_dim = 0;  // 0: as dim
  bool causal = false, window = false, ragged = false, kv_lens = false, visible = false;
  bool bias = false, grad_bias = false;
  double dropout = 0;
  bool backward = true, deterministic = false;
  int64_t q_len = 2048, heads = 32, kv_heads = 32;
};
constexpr Usual kOfEveryGpu[] = {
    {.name = "encoder", .dtype = kB, .dim = 64},
    {.name = "decoder in training", .dtype = kB, .dim = 128, .causal = true},
    {.name = "decoder in training, f16", .dtype = kH, .dim = 128, .causal = true},
    {.name = "documents of one batch", .dtype = kB, .dim = 128, .causal = true, .ragged = true},
    {.name = "prompts of several lengths",
     .dtype = kH,
     .dim = 128,
     .causal = true,
     .kv_lens = true,
     .backward = false},
    {.name = "a token, 8 heads in a group",
     .dtype = kB,
     .dim = 128,
     .kv_lens = true,
     .backward = false,
     .q_len = 1,
     .kv_heads = 4},
};
constexpr Usual kOfAmpere[] = {
    {.name = "sliding window", .dtype = kB, .dim = 128, .causal = true, .window = true},
    {.name = "dropout", .dtype = kB, .dim = 64, .dropout = 0.1},
    {.name = "dropout, causal", .dtype = kB, .dim = 64, .causal = true, .dropout = 0.1},
    {.name = "dim 96", .dtype = kB, .dim = 96, .causal = true},
    {.name = "dim 256", .dtype = kB, .dim = 256, .causal = true},
    {.name = "learned bias", .dtype = kB, .dim = 64, .bias = true, .grad_bias = true},
};
constexpr Usual kOfHopper[] = {
    // Dims of images.
    {.name = "shifted windows of images", .dtype = kB, .dim = 32},
    {.name = "diffusion at dim 40", .dtype = kH, .dim = 40, .backward = false},
    {.name = "diffusion at dim 80", .dtype = kH, .dim = 80, .backward = false},
    {.name = "diffusion at dim 160", .dtype = kH, .dim = 160, .backward = false},
    {.name = "images at dim 72", .dtype = kB, .dim = 72},
    {.name = "images of many sizes, dim 72", .dtype = kB, .dim = 72, .ragged = true},
    {.name = "images of many sizes, dim 80", .dtype = kB, .dim = 80, .ragged = true},
    {.name = "dim 112", .dtype = kB, .dim = 112, .causal = true},
    // Decoders.
    {.name = "dim 96 in f16", .dtype = kH, .dim = 96, .causal = true, .backward = false},
    {.name = "dim 256 in a window, documents",
     .dtype = kB,
     .dim = 256,
     .causal = true,
     .window = true,
     .ragged = true},
    {.name = "dim 128 in a window, documents",
     .dtype = kB,
     .dim = 128,
     .causal = true,
     .window = true,
     .ragged = true,
     .kv_heads = 8},
    {.name = "groups of 4 heads, short", .dtype = kB, .dim = 128, .causal = true, .kv_heads = 2},
    {.name = "groups of 4 heads, f16", .dtype = kH, .dim = 128, .causal = true, .kv_heads = 8},
    {.name = "groups of 4 heads, documents",
     .dtype = kB,
     .dim = 128,
     .causal = true,
     .ragged = true,
     .kv_heads = 8},
    {.name = "groups of 2 heads at dim 256",
     .dtype = kB,
     .dim = 256,
     .causal = true,
     .ragged = true,
     .heads = 16,
     .kv_heads = 8},
    {.name = "groups of 4 heads at dim 96", .dtype = kB, .dim = 96, .causal = true, .kv_heads = 8},
    {.name = "groups of 4 heads without a mask", .dtype = kB, .dim = 64, .kv_heads = 8},
    {.name = "longer keys than values",
     .dtype = kB,
     .dim = 192,
     .value_dim = 128,
     .causal = true,
     .ragged = true},
    {.name = "documents, deterministic",
     .dtype = kB,
     .dim = 128,
     .causal = true,
     .ragged = true,
     .deterministic = true},
    {.name = "f16, deterministic", .dtype = kH, .dim = 64, .causal = true, .deterministic = true},
    {.name = "slopes", .dtype = kB, .dim = 128, .causal = true, .bias = true},
    {.name = "a token at dim 256",
     .dtype = kB,
     .dim = 256,
     .kv_lens = true,
     .backward = false,
     .q_len = 1,
     .heads = 16,
     .kv_heads = 8},
    {.name = "a token, causal",
     .dtype = kH,
     .dim = 128,
     .causal = true,
     .kv_lens = true,
     .backward = false,
     .q_len = 1,
     .kv_heads = 8},
    {.name = "a token in a window",
     .dtype = kB,
     .dim = 256,
     .causal = true,
     .window = true,
     .kv_lens = true,
     .backward = false,
     .q_len = 1,
     .heads = 8,
     .kv_heads = 4},
    {.name = "guessed tokens",
     .dtype = kB,
     .dim = 128,
     .causal = true,
     .kv_lens = true,
     .backward = false,
     .q_len = 5},
    // Encoders.
    {.name = "padded, with dropout", .dtype = kB, .dim = 64, .visible = true, .dropout = 0.1},
    {.name = "ragged, with dropout", .dtype = kB, .dim = 64, .ragged = true, .dropout = 0.1},
    {.name = "padded, f16", .dtype = kH, .dim = 64, .visible = true, .backward = false},
    {.name = "padded, dim 256", .dtype = kB, .dim = 256, .visible = true},
    {.name = "learned bias and dropout",
     .dtype = kB,
     .dim = 64,
     .bias = true,
     .grad_bias = true,
     .dropout = 0.1},
    {.name = "float mask", .dtype = kH, .dim = 64, .bias = true},
    // Rare, and long to compile.
    {.name = "window, bias and dropout",
     .dtype = kB,
     .dim = 128,
     .causal = true,
     .window = true,
     .bias = true,
     .grad_bias = true,
     .dropout = 0.1},
    {.name = "ragged, visible, deterministic",
     .dtype = kB,
     .dim = 128,
     .causal = true,
     .ragged = true,
     .visible = true,
     .deterministic = true},
    {.name = "everything",
     .dtype = kB,
     .dim = 64,
     .causal = true,
     .window = true,
     .ragged = true,
     .visible = true,
     .bias = true,
     .grad_bias = true,
     .dropout = 0.1},
};

AttentionProblem problem_of(const Usual& usual) {
  AttentionProblem problem;
  problem.dtype = problem.bias_dtype = usual.dtype;
  problem.batch = 4;
  problem.heads = usual.heads;
  problem.kv_heads = usual.kv_heads;
  problem.q_len = usual.q_len;
  problem.kv_len = 2048;
  problem.head_dim = usual.dim;
  problem.value_dim = usual.value_dim == 0 ? usual.dim : usual.value_dim;
  problem.scale = 0.125;
  problem.causal = usual.causal ? Causal::kBottomRight : Causal::kNone;
  if (usual.window) problem.window_left = 511;
  problem.ragged = usual.ragged;
  if (usual.ragged) problem.total_q = problem.total_kv = 4 * usual.q_len;
  problem.kv_lens = usual.kv_lens;
  problem.visible = usual.visible;
  problem.bias = usual.bias;
  if (usual.bias) {
    const int64_t shape[] = {1, usual.heads, usual.q_len, 2048};
    std::copy(std::begin(shape), std::end(shape), problem.bias_shape);
  }
  problem.dropout = usual.dropout;
  problem.grad_query = problem.grad_key = problem.grad_value = usual.backward;
  problem.grad_bias = usual.grad_bias;
  problem.deterministic = usual.deterministic;
  return problem;
}

// A compute capability: what its pack has, and the kernels of its plans.
class PackedFor {
 public:
  explicit PackedFor(const char* capability) {
    const Status status = Gpu::assume(capability, &gpu_);
    EXPECT_TRUE(status.ok()) << status.sentence();
    for (const Variant& variant : common_variants(gpu_->facts().architecture))
      packed_.insert(key_of(variant.program, nullptr));
  }

  void expect(const Usual& usual) const {
    const AttentionProblem problem = problem_of(usual);
    const GpuFacts& facts = gpu_->facts();
    const bool hopper = facts.architecture == "sm_90a";
    std::vector<KernelNames> all = {hopper ? Sm90Attention::kernels_of(problem, facts)
                                           : PortableAttention::kernels_of(problem, facts)};
    if (usual.backward)
      all.push_back(hopper ? Sm90AttentionBackward::kernels_of(problem, facts)
                           : PortableAttentionBackward::kernels_of(problem, facts));
    for (const KernelNames& kernels : all)
      EXPECT_TRUE(
          packed_.contains(key_of({kernels.header, kernels.names, facts.architecture}, nullptr)))
          << usual.name << " on " << facts.name << ": " << kernels.names[0];
  }

 private:
  std::shared_ptr<Gpu> gpu_;
  std::unordered_set<std::string> packed_;
};

TEST(KernelPack, HasWhatUsualPlansNeed) {
  for (const char* capability : {"sm_80", "sm_86", "sm_90", "sm_100", "sm_120"}) {
    const PackedFor gpu(capability);
    for (const Usual& usual : kOfEveryGpu) gpu.expect(usual);
  }
  for (const char* capability : {"sm_80", "sm_86", "sm_89", "sm_90"}) {
    const PackedFor gpu(capability);
    for (const Usual& usual : kOfAmpere) gpu.expect(usual);
  }
  const PackedFor hopper("sm_90");
  for (const Usual& usual : kOfHopper) hopper.expect(usual);
}

}  // namespace
}  // namespace perseid::internal::cuda
