// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/pack/variants.hpp"

#include <unordered_set>

#include "cuda/attention/clear_rows.hpp"
#include "cuda/attention/dropout_mask.hpp"
#include "cuda/attention/reference.hpp"
#include "cuda/copy_rows.hpp"
#include "cuda/ragged.hpp"
#include "cuda/runtime/cache.hpp"
#include "cuda/softmax.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Common problems ----

// Lengths: the powers of two from `shortest` to `longest`, and up to `every` also the eighths
// between them that are a multiple of the vector.
struct Common {
  const char* name;
  SoftmaxKind kind;
  bool log, masked;
  int64_t shortest, longest, every;
};
constexpr Common kCommon[] = {
    {"softmax", SoftmaxKind::kRows, false, false, 8, 1 << 22, 65536},
    {"log-softmax", SoftmaxKind::kRows, true, false, 8192, 1 << 18, 0},
    {"masked softmax", SoftmaxKind::kRows, false, true, 64, 8192, 0},
    {"softmax across", SoftmaxKind::kColumns, false, false, 16, 1024, 0},
};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
constexpr int32_t kMultiprocessors = 132;  // of an H100 or H200: how long a row fits

// The choice changes at a few vectors times a power of two of threads: lengths in eighths of an
// octave reach every kernel.
std::vector<int64_t> lengths_of(const Common& common, int64_t vector) {
  std::vector<int64_t> lengths;
  for (int64_t octave = common.shortest; octave <= common.longest; octave *= 2) {
    lengths.push_back(octave);
    for (int64_t eighth = 1; eighth < 8; ++eighth) {
      const int64_t length = octave + octave * eighth / 8;
      if (length <= common.every && length % vector == 0) lengths.push_back(length);
    }
  }
  return lengths;
}

// ---- Budgets ----

// Registers of a thread that hold elements of a row.
int32_t words_held(const SoftmaxChoice& choice, bool backward) {
  const SoftmaxConfig& config = choice.config;
  const int32_t tensors = backward ? 2 : 1;
  if (choice.kind == SoftmaxKind::kColumns) return tensors * (config.held > 0 ? config.held : 4);
  // Forward unpacks 16 bit types; packed ones are half as many.
  return config.held * (backward ? 2 * 4 : config.vector());
}

Budget budget_of(const SoftmaxChoice& choice, bool backward) {
  const SoftmaxConfig& config = choice.config;
  constexpr int32_t kOthers = 60;  // addresses, indices, temporaries
  constexpr int32_t kMost = 255, kAll = 65536;
  const int32_t wanted = words_held(choice, backward) + kOthers + 4 * config.held;
  // Large blocks, masks and many vectors make the assembler spill a few registers; other kernels
  // spill four at most. The longest rows spill many, since two of their large blocks share a
  // multiprocessor: little against the hundreds of bytes that each thread has in flight.
  const bool tight = config.threads() >= 512 || config.masked || config.held > 8;
  const int32_t spilled = config.held > 8 && config.warps >= 8 ? 512 : tight ? 96 : 16;
  return {min(wanted, min(kMost, kAll / config.threads())), spilled, 16384};
}

// GPUs before Hopper have the plain kinds in the pack; the others take half a second each when a
// plan needs them.
std::vector<Variant> softmax_variants(const std::string& architecture, bool packed) {
  std::vector<Variant> variants;
  GpuFacts gpu;
  gpu.architecture = architecture;
  gpu.multiprocessors = kMultiprocessors;
  for (const Common& common : kCommon) {
    const bool plain = !common.log && !common.masked;
    if ((plain || architecture == "sm_90a") != packed) continue;
    for (const DType dtype : kTypes)
      for (const int64_t length : lengths_of(common, 16 / size_of(dtype)))
        for (const bool backward : {false, true}) {
          SoftmaxProblem problem{.log = common.log, .dtype = dtype, .out_dtype = dtype, .rank = 2};
          problem.dim = common.kind == SoftmaxKind::kColumns ? 0 : 1;
          problem.shape[problem.dim] = length;
          problem.shape[1 - problem.dim] = 64;
          problem.visible = common.masked;
          const SoftmaxChoice choice = choose_softmax(common.kind, problem, backward, gpu);
          variants.push_back(
              {concatenate(common.name, backward ? " backward " : " forward ", name_of(dtype),
                           " of ", length, " for ", architecture),
               {softmax_header(choice.kind), softmax_kernels(choice, backward), architecture},
               budget_of(choice, backward)});
        }
  }
  return variants;
}

// Kernels that stand alone. A program has all kernels of its header that are no templates.
std::vector<Variant> helper_variants(const std::string& architecture) {
  return {
      {"rows past query lengths", {kClearRowsHeader, {kClearRowsKernel}, architecture}, {64, 0, 0}},
      {"dropout mask", {kDropoutMaskHeader, {kDropoutMaskKernel}, architecture}, {64, 0, 0}},
      {"rows of ranks", {kCopyRowsHeader, copy_rows_kernels(), architecture}, {64, 0, 256}},
      {"ragged rows", {kRaggedHeader, ragged_copy_kernels(16), architecture}, {64, 0, 256}},
      {"ragged lengths", {kRaggedHeader, ragged_lengths_kernels(), architecture}, {64, 0, 256}}};
}

void append(std::vector<Variant> more, std::vector<Variant>* variants) {
  for (Variant& variant : more) variants->push_back(std::move(variant));
}

// Problems that share a program: keeps the first.
std::vector<Variant> without_repeats(std::vector<Variant> variants) {
  std::unordered_set<std::string> seen;
  std::erase_if(variants, [&](const Variant& variant) {
    return !seen.insert(key_of(variant.program, nullptr)).second;
  });
  return variants;
}

}  // namespace

std::vector<Variant> reference_attention_variants(const std::string& architecture, DType dtype) {
  std::vector<Variant> variants;
  AttentionProblem problem;
  problem.dtype = dtype;
  for (const bool backward : {false, true})
    variants.push_back(
        {concatenate("reference attention ", backward ? "backward " : "forward ", name_of(dtype),
                     " for ", architecture),
         {kReferenceHeader, reference_attention_kernels(problem, backward), architecture},
         {168, 0, 2048}});
  return variants;
}

std::vector<Variant> common_variants(const std::string& architecture) {
  std::vector<Variant> variants = softmax_variants(architecture, true);
  append(helper_variants(architecture), &variants);
  append(matmul_variants(architecture, true), &variants);
  append(architecture == "sm_90a" ? attention_variants(architecture, true)
                                  : packed_portable_attention_variants(architecture),
         &variants);
  return without_repeats(std::move(variants));
}

std::vector<Variant> rare_variants(const std::string& architecture) {
  std::vector<Variant> variants = common_variants(architecture);
  const auto common = static_cast<std::ptrdiff_t>(variants.size());
  append(softmax_variants(architecture, false), &variants);
  append(matmul_variants(architecture, false), &variants);
  if (architecture != "sm_90a") append(attention_variants(architecture, true), &variants);
  append(attention_variants(architecture, false), &variants);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64})
    append(reference_attention_variants(architecture, dtype), &variants);
  variants = without_repeats(std::move(variants));
  variants.erase(variants.begin(), variants.begin() + common);
  return variants;
}

}  // namespace perseid::internal::cuda
