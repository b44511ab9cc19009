// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "cuda/pack/variants.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "cuda/sm90/attention_backward_float32.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Common problems ----

struct Dims {
  int64_t key, value;
  bool usual = false;  // f16, in addition to bf16, and f32 and f64
};
constexpr Dims kUsual[] = {{64, 64, true}, {128, 128, true}};
constexpr Dims kTuned[] = {{64, 64, true}, {128, 128, true}, {256, 256},
                           {96, 96},       {192, 128},       {192, 192}};
constexpr Dims kBetween[] = {{32, 32}, {40, 40},   {48, 48},  {72, 72},
                             {80, 80}, {112, 112}, {160, 160}};
// Of models whose forward is usual in f16.
constexpr Dims kDiffusion[] = {{40, 40, true}, {80, 80, true}, {160, 160, true}};
constexpr Dims kDecoders[] = {{96, 96, true}, {256, 256, true}};
// Of images of many sizes in a batch.
constexpr Dims kVision[] = {{72, 72}, {80, 80}};
constexpr Dims kGrouped[] = {{64, 64, true}, {128, 128, true}, {256, 256}};
constexpr Dims kLarge[] = {{512, 512}, {264, 328}};
constexpr Dims kOdd[] = {{40, 40}, {80, 72}, {96, 64}, {256, 256}};

// A family of problems: every dims of `dims`, without a causal mask if `full`, with one if
// `causal`.
struct Kind {
  const char* name;
  std::span<const Dims> dims;
  bool full = true, causal = true;
  bool forward = true, backward = true, deterministic = false;
  int64_t q_len = 4096, kv_len = 4096;
  int64_t kv_heads = 16;  // of 16 heads
  bool window = false, ragged = false, kv_lens = false, visible = false, bias = false;
  bool grad_bias = true;  // of a bias, with backward
  double dropout = 0;
  bool accumulate = false;
  bool canonical = false;
  bool over_ranks = false;  // of which each brings its keys: zigzag
  bool f16 = true;          // too, where dims are usual
  bool f32 = false;         // the same
  bool f64 = false;         // the same, of the portable kernels
  // Architectures whose part of the pack has it: Hopper alone; sm_80 too, bf16 of usual dims; or
  // all, usual dims, but for f64.
  enum class Where { kHopper, kAmpere, kEverywhere } where = Where::kHopper;
};
using Where = Kind::Where;
constexpr Kind kCommon[] = {
    {.name = "attention", .dims = kTuned, .f32 = true, .f64 = true, .where = Where::kEverywhere},
    {.name = "attention of short sequences",
     .dims = kUsual,
     .q_len = 1024,
     .kv_len = 1024,
     .f32 = true},
    {.name = "deterministic attention", .dims = kTuned, .forward = false, .deterministic = true},
    // Clusters, and tiles with a shared cursor (choose_attention_backward).
    {.name = "attention of grouped heads", .dims = kTuned, .forward = false, .kv_heads = 2},
    {.name = "ragged attention of grouped heads",
     .dims = kGrouped,
     .full = false,
     .forward = false,
     .kv_heads = 2,
     .ragged = true},
    {.name = "attention of grouped heads in a window",
     .dims = kGrouped,
     .full = false,
     .forward = false,
     .kv_heads = 2,
     .window = true},
    {.name = "ragged attention of grouped heads in a window",
     .dims = kGrouped,
     .full = false,
     .forward = false,
     .kv_heads = 2,
     .window = true,
     .ragged = true},
    {.name = "deterministic attention of grouped heads",
     .dims = kUsual,
     .full = false,
     .forward = false,
     .deterministic = true,
     .kv_heads = 2,
     .f16 = false},
    {.name = "attention of a query",
     .dims = kUsual,
     .causal = false,
     .backward = false,
     .q_len = 1,
     .where = Where::kEverywhere},
    {.name = "attention of a query and key lengths",
     .dims = kTuned,
     .causal = false,
     .backward = false,
     .q_len = 1,
     .kv_lens = true,
     .where = Where::kEverywhere},
    {.name = "attention of a few queries and key lengths",
     .dims = kGrouped,
     .full = false,
     .backward = false,
     .q_len = 8,
     .kv_lens = true},
    {.name = "attention of a few queries and key lengths in a window",
     .dims = kGrouped,
     .full = false,
     .backward = false,
     .q_len = 8,
     .window = true,
     .kv_lens = true},
    {.name = "ragged attention",
     .dims = kTuned,
     .full = false,
     .ragged = true,
     .where = Where::kEverywhere},
    {.name = "ragged attention", .dims = kUsual, .causal = false, .ragged = true},
    {.name = "ragged attention", .dims = kVision, .causal = false, .ragged = true},
    {.name = "deterministic ragged attention",
     .dims = kUsual,
     .full = false,
     .forward = false,
     .deterministic = true,
     .ragged = true,
     .f16 = false},
    {.name = "attention of dims between", .dims = kBetween},
    {.name = "attention", .dims = kDiffusion, .causal = false, .backward = false},
    {.name = "attention", .dims = kDecoders, .backward = false},
    {.name = "attention", .dims = kDecoders, .f16 = false, .where = Where::kAmpere},
    {.name = "attention in a window",
     .dims = kTuned,
     .full = false,
     .window = true,
     .where = Where::kAmpere},
    {.name = "ragged attention in a window",
     .dims = kGrouped,
     .full = false,
     .window = true,
     .ragged = true},
    {.name = "attention with bias",
     .dims = kTuned,
     .causal = false,
     .bias = true,
     .where = Where::kAmpere},
    {.name = "attention with bias", .dims = kUsual, .full = false, .bias = true, .f16 = false},
    {.name = "attention with bias alone",
     .dims = kUsual,
     .forward = false,
     .bias = true,
     .grad_bias = false},
    {.name = "attention with dropout", .dims = kTuned, .dropout = 0.1, .where = Where::kAmpere},
    {.name = "ragged attention with dropout",
     .dims = kUsual,
     .ragged = true,
     .dropout = 0.1,
     .f16 = false},
    {.name = "attention with bias and dropout",
     .dims = kUsual,
     .causal = false,
     .bias = true,
     .dropout = 0.1,
     .f16 = false},
    {.name = "masked attention", .dims = kTuned, .causal = false, .visible = true},
    {.name = "masked attention", .dims = kUsual, .full = false, .visible = true, .f16 = false},
    {.name = "masked attention with dropout",
     .dims = kUsual,
     .causal = false,
     .visible = true,
     .dropout = 0.1,
     .f16 = false},
    {.name = "deterministic ragged masked attention",
     .dims = kUsual,
     .full = false,
     .deterministic = true,
     .ragged = true,
     .visible = true,
     .f16 = false},
    {.name = "attention in a window with bias and dropout",
     .dims = kUsual,
     .full = false,
     .window = true,
     .bias = true,
     .dropout = 0.1,
     .f16 = false},
    {.name = "attention with everything",
     .dims = kUsual,
     .full = false,
     .window = true,
     .ragged = true,
     .visible = true,
     .bias = true,
     .dropout = 0.1,
     .f16 = false},
};
constexpr Kind kRare[] = {
    {.name = "attention", .dims = kOdd, .full = false, .deterministic = true},
    {.name = "attention of few keys",
     .dims = kOdd,
     .causal = false,
     .backward = false,
     .q_len = 1,
     .kv_len = 100},
    {.name = "attention", .dims = kLarge, .backward = false},
    {.name = "attention in a window", .dims = kOdd, .full = false, .window = true},
    {.name = "attention with bias", .dims = kOdd, .causal = false, .bias = true},
    {.name = "attention with dropout", .dims = kOdd, .full = false, .dropout = 0.1},
    {.name = "attention that accumulates", .dims = kUsual, .forward = false, .accumulate = true},
    {.name = "attention in canonical order", .dims = kTuned, .forward = false, .canonical = true},
    {.name = "attention of grouped heads in canonical order",
     .dims = kUsual,
     .full = false,
     .forward = false,
     .kv_heads = 2,
     .canonical = true},
    {.name = "attention with dropout in canonical order",
     .dims = kUsual,
     .full = false,
     .forward = false,
     .dropout = 0.1,
     .canonical = true},
    {.name = "ragged attention over ranks",
     .dims = kUsual,
     .full = false,
     .kv_heads = 2,
     .ragged = true,
     .over_ranks = true,
     .f16 = false},
    {.name = "attention with bias that accumulates",
     .dims = kUsual,
     .full = false,
     .forward = false,
     .ragged = true,
     .bias = true,
     .accumulate = true},
    {.name = "attention with everything",
     .dims = kTuned,
     .full = false,
     .window = true,
     .ragged = true,
     .visible = true,
     .bias = true,
     .dropout = 0.1},
};

// Programs that compile fast.
constexpr Dims kSmallDims[] = {{16, 16}};
constexpr Kind kSmall{.name = "attention", .dims = kSmallDims};

AttentionProblem problem_of(const Kind& kind, const Dims& dims, DType dtype, bool causal) {
  AttentionProblem problem;
  problem.dtype = dtype;
  problem.batch = problem.heads = 16;
  problem.kv_heads = kind.kv_heads;
  problem.q_len = kind.q_len;
  problem.kv_len = kind.kv_len;
  problem.head_dim = dims.key;
  problem.value_dim = dims.value;
  problem.scale = 0.1;
  problem.causal = causal ? Causal::kBottomRight : Causal::kNone;
  if (kind.window) problem.window_left = 1023;
  problem.ragged = kind.ragged;
  if (kind.ragged) problem.total_q = problem.total_kv = kind.q_len;
  problem.kv_lens = kind.kv_lens;
  problem.visible = kind.visible;
  problem.bias = kind.bias;
  if (kind.bias) {
    problem.bias_dtype = dtype;
    problem.bias_shape[0] = problem.bias_shape[1] = 1;
    problem.bias_shape[2] = kind.q_len;
    problem.bias_shape[3] = kind.kv_len;
  }
  problem.dropout = kind.dropout;
  problem.grad_query = problem.grad_key = problem.grad_value = kind.backward;
  problem.grad_bias = kind.bias && kind.grad_bias && kind.backward;
  problem.deterministic = kind.deterministic;
  problem.rows.canonical = kind.canonical;
  problem.f32_key_gradients = kind.canonical || kind.over_ranks;
  if (kind.over_ranks) {
    problem.rows.ranks = 2;
    problem.rows.zigzag = true;
    problem.chunks_kv.dim = ChunkDim::kKv;
  }
  problem.accumulate_query = problem.accumulate_key = problem.accumulate_value = kind.accumulate;
  problem.accumulate_bias = kind.accumulate && kind.bias;
  return problem;
}

// ---- Budgets ----

constexpr int32_t kBlockRegisters = 65536;

// A block is launched with all registers of a multiprocessor, which its warpgroups then divide.
// Kernels may spill two words, four where there are three consumers, five under a window (the
// producer has 32 registers for a second pass), and a few more with per-score extras. Backward's
// last kernel has 1 KiB of shared memory, and none that is dynamic.
template <class Config>
Budget budget_of(const Config& config) {
  const bool busy =
      config.lengths || config.visible || config.dropout || config.bias != DType::kNone;
  return {kBlockRegisters / config.threads() / 8 * 8,
          busy                      ? 72
          : config.left             ? 20
          : config.threads() == 512 ? 16
                                    : 8,
          max(1024, kMostShared - config.shared_bytes())};
}

// Warps of 32 rows need all registers of a thread at dim 128, and spill a few under masks, those of
// float32 some more. Others may spill five words with every per-score extra.
Budget budget_of(const PortableForwardConfig& config) {
  const bool all_extras = config.visible && config.dropout && config.bias != DType::kNone;
  const int32_t of_wide = config.planes() == 2 ? 640 : 200;
  return {255,
          config.rows == 32 ? of_wide
          : all_extras      ? 20
                            : 0,
          kLeastShared - config.shared_bytes()};
}

// Shared memory of a block, in bytes, of the GPUs that run code for the architecture: those of 8.6
// and 8.9, which have least, share it with those of 8.0.
std::vector<int32_t> shared_bytes_of(const std::string& architecture) {
  constexpr int32_t kOfA100 = 166912;
  if (architecture == "sm_80") return {kLeastShared, kOfA100};
  return {architecture == "sm_90a" || architecture == "sm_100" ? kMostShared : kLeastShared};
}
// The budget of all kernels of the direction. Warps that share rows spill more on sm_100, and those
// that hold operands of bias and dropout everywhere.
Budget budget_of_backward(const AttentionProblem& problem, int32_t shared_bytes,
                          const std::string& architecture) {
  int32_t left = shared_bytes;
  bool shares_rows = false;
  for (const GradientsOf each : gradients_of(problem, shared_bytes)) {
    const PortableBackwardConfig config =
        choose_portable_attention_backward(problem, each, shared_bytes);
    left = min(left, shared_bytes - config.shared_bytes());
    shares_rows = shares_rows || config.shares_rows;
  }
  return {255,
          problem.dtype == DType::kF32              ? 512
          : shares_rows && architecture == "sm_100" ? 112
          : problem.bias && problem.dropout > 0     ? (problem.visible ? 248 : 112)
          : problem.visible && problem.dropout > 0  ? 64
                                                    : 56,
          left};
}

std::string name_of(const Kind& kind, const Dims& dims, DType dtype, bool causal,
                    const std::string& architecture) {
  return concatenate(kind.name, causal ? ", causal, " : ", ", name_of(dtype), ", dims ", dims.key,
                     " and ", dims.value, " for ", architecture);
}

void add_sm90(const Kind& kind, const Dims& dims, DType dtype, bool causal,
              const std::string& architecture, std::vector<Variant>* variants) {
  const AttentionProblem problem = problem_of(kind, dims, dtype, causal);
  const std::string name = name_of(kind, dims, dtype, causal, architecture);
  if (kind.forward) {
    const AttentionForwardConfig config = choose_attention_forward(problem);
    variants->push_back({"forward of " + name,
                         {kAttentionForwardHeader, attention_forward_kernels(config), architecture},
                         budget_of(config)});
    // Three consumers spill where a tile begins and ends, also where they split its queries, and
    // two words in a step.
    if (dtype == DType::kF32)
      variants->back().budget.spilled_bytes =
          config.splits_queries && config.consumers == 3 ? 400 : 224;
    // The producer, which finds who brings keys of a tile.
    if (config.rank_pieces) variants->back().budget.spilled_bytes = 160;
    if (config.cluster > 1) {  // shorter lengths have single blocks
      AttentionForwardConfig single = config;
      single.cluster = 1;
      variants->push_back(
          {"forward of " + name + ", single blocks",
           {kAttentionForwardHeader, attention_forward_kernels(single), architecture},
           budget_of(single)});
    }
  }
  if (kind.backward && dtype == DType::kF32) {
    const AttentionBackwardConfig config = choose_float32_attention_backward(problem);
    // The consumers have all registers: they spill in the loop of rows with numbers of their own
    // alone. The first launch has static shared memory, for the rows of a block of queries.
    variants->push_back(
        {"backward of " + name,
         {kFloat32AttentionBackwardHeader, float32_attention_backward_kernels(config),
          architecture},
         {kBlockRegisters / config.threads() / 8 * 8, config.split_keys ? 136 : 56, 2048}});
    return;
  }
  if (kind.backward && refuse_attention_backward(problem).empty()) {
    const AttentionBackwardConfig config = choose_attention_backward(problem);
    variants->push_back(
        {"backward of " + name,
         {kAttentionBackwardHeader, attention_backward_kernels(config), architecture},
         budget_of(config)});
    if (config.leaves) variants->back().budget.spilled_bytes += 28;  // with extras per score
  }
}

void add_portable(const Kind& kind, const Dims& dims, DType dtype, bool causal,
                  const std::string& architecture, std::vector<Variant>* variants) {
  if (kind.over_ranks) return;  // they have a piece at a time
  const AttentionProblem problem = problem_of(kind, dims, dtype, causal);
  const std::string name = name_of(kind, dims, dtype, causal, architecture);
  if (kind.forward && dtype == DType::kF64) {
    const Float64ForwardConfig config = choose_float64_attention(with_heads_as_rows(problem));
    // Products of Hopper are wider: beyond dim 64 their operands do not all fit.
    const int32_t spilled = architecture == "sm_90a" && config.key_dim > 64 ? 192 : 40;
    variants->push_back({"forward of " + name,
                         {kFloat64AttentionHeader, float64_attention_kernels(config), architecture},
                         {255, spilled, kLeastShared - config.shared_bytes()}});
  } else if (kind.forward) {
    const PortableForwardConfig config = choose_portable_attention(with_heads_as_rows(problem));
    variants->push_back(
        {"forward of " + name,
         {kPortableAttentionHeader, portable_attention_kernels(config), architecture},
         budget_of(config)});
  }
  if (!kind.backward || kind.canonical) return;
  std::vector<std::string> before;
  for (const int32_t shared_bytes : shared_bytes_of(architecture)) {
    // Larger tiles of what is not in the pack are compiled when a plan needs them.
    if (kind.where == Where::kHopper && !before.empty()) break;
    const auto kernels = portable_attention_backward_kernels(problem, shared_bytes);
    if (kernels == before) continue;
    variants->push_back({concatenate("backward of ", name, ", ", shared_bytes, " bytes shared"),
                         {kPortableAttentionBackwardHeader, kernels, architecture},
                         budget_of_backward(problem, shared_bytes, architecture)});
    before = kernels;
  }
}

bool has_type(const Kind& kind, const Dims& dims, DType dtype) {
  if (dtype == DType::kBF16) return true;
  return dims.usual && (dtype == DType::kF16   ? kind.f16
                        : dtype == DType::kF32 ? kind.f32
                                               : kind.f64);
}

// Of bf16, and of the common kinds also of other types, up to the last of kTypes.
constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

template <class Add>
std::vector<Variant> variants_of(const std::string& architecture, bool common,
                                 std::span<const DType> types, const Add& add) {
  std::vector<Variant> variants;
  for (const Kind& kind : common ? std::span<const Kind>(kCommon) : std::span<const Kind>(kRare))
    for (const Dims& dims : kind.dims)
      for (const DType dtype : types.first(common ? types.size() : 1))
        for (const bool causal : {false, true})
          if ((causal ? kind.causal : kind.full) && has_type(kind, dims, dtype))
            add(kind, dims, dtype, causal, architecture, &variants);
  return variants;
}
constexpr std::span<const DType> kPackedTypes = std::span(kTypes).first(3);

}  // namespace

std::vector<Variant> attention_variants(const std::string& architecture, bool common) {
  if (architecture != "sm_90a") return portable_attention_variants(architecture, common);
  return variants_of(architecture, common, kPackedTypes, add_sm90);
}

std::vector<Variant> portable_attention_variants(const std::string& architecture, bool common) {
  return variants_of(architecture, common, kTypes, add_portable);
}

std::vector<Variant> packed_portable_attention_variants(const std::string& architecture) {
  return variants_of(architecture, true, kPackedTypes,
                     [](const Kind& kind, const Dims& dims, DType dtype, bool causal,
                        const std::string& of, std::vector<Variant>* variants) {
                       const bool ampere =
                           kind.where == Where::kAmpere && of == "sm_80" && dtype == DType::kBF16;
                       if (dims.usual && (kind.where == Where::kEverywhere || ampere))
                         add_portable(kind, dims, dtype, causal, of, variants);
                     });
}

std::vector<Variant> small_portable_attention_variants(const std::string& architecture,
                                                       DType dtype) {
  std::vector<Variant> variants;
  add_portable(kSmall, kSmallDims[0], dtype, false, architecture, &variants);
  return variants;
}

}  // namespace perseid::internal::cuda
