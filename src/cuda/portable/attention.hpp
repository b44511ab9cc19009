// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward on sm_80 and up, the host side: configuration and launch. The kernel is
// device/portable/attention/forward.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/portable/attention/config.hpp"
#include "cuda/portable/planes.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Whether rows consist of vectors of 16 bytes.
bool has_vectors(const Tensor& tensor);

// One query of heads that share a key head, where all rows see the same keys: the heads become rows
// of queries, so that their keys are read once. The problem is that of the plan; where it does not
// pack, problem and tensors stay as they are.
bool takes_heads_as_rows(const AttentionProblem& problem);
AttentionProblem with_heads_as_rows(const AttentionProblem& problem);
AttentionForward with_heads_as_rows(const AttentionProblem& problem,
                                    const AttentionForward& tensors);

// Why the kernels do not take the problem, as a sentence's end; "" where they do.
std::string refuse_portable_attention(const AttentionProblem& problem, const GpuFacts& facts);
// By the problem's lengths, dims and masks, never by its batch or the GPU, so that a row's result
// depends on neither. This and what follows have packed problems.
PortableForwardConfig choose_portable_attention(const AttentionProblem& problem);
// Many keys of few queries are split into parts: how many tiles of `keys` keys a part has, where
// 2^pack heads are rows of a block, and whether keys are split into parts of `split_keys` keys.
int64_t portable_split_tiles(const AttentionProblem& problem, int keys, int pack);
bool splits_keys(const AttentionProblem& problem, int64_t split_keys);
// Name expressions of the kernels, and their header: for tensors that are accessed by vectors, and
// for others, or of float32, for planes, and the one that writes them; and where keys are split,
// the kernels that follow.
std::vector<std::string> portable_attention_kernels(const PortableForwardConfig& config);
// The arguments of a launch that the problem determines, and its blocks.
PortableForwardArguments portable_attention_arguments(const AttentionProblem& problem,
                                                      const PortableForwardConfig& config);
int64_t portable_attention_blocks(const PortableForwardArguments& fixed,
                                  const PortableForwardConfig& config);
// Those that follow from the lengths of an execution: keys are split where the plan splits them.
void set_portable_attention_lengths(const AttentionProblem& problem,
                                    const PortableForwardConfig& config,
                                    PortableForwardArguments* arguments);
// The launch that combines the splits of all rows, or with `fixups` computes some rows once more.
template <class Arguments>
Launch by_rows_of_splits(const Arguments& arguments, bool fixups, const GpuFacts& facts) {
  const int64_t pieces = ceil_div(int64_t{arguments.value_dim}, int64_t{32});
  return {.blocks =
              fixups ? min(ceil_div(arguments.rows, kRowWarps), int64_t{4} * facts.multiprocessors)
                     : ceil_div(arguments.rows * pieces, kRowWarps),
          .threads = 32 * kRowWarps};
}
// float32 alone has planes.
AttentionPlanes portable_attention_planes(const AttentionProblem& problem,
                                          const PortableForwardConfig& config);
void bind_portable_attention_planes(const PlanesArguments& planes,
                                    PortableForwardArguments* arguments);
// The workspace of split keys: its bytes, a multiple of 16, and its pointers.
size_t portable_attention_workspace(const PortableForwardArguments& fixed);
// All of forward, as PortableAttention has it.
size_t portable_attention_workspace(const AttentionProblem& problem);
void bind_portable_attention_workspace(std::byte* workspace, PortableForwardArguments* arguments);
// Adds the tensors of an execution. Returns whether they can be accessed by vectors.
bool bind_portable_attention(const AttentionForward& tensors, PortableForwardArguments* arguments);

inline constexpr const char* kPortableAttentionHeader =
    "cuda/device/portable/attention/forward.hpp";

class PortableAttention {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kPortableAttentionHeader,
            portable_attention_kernels(choose_portable_attention(with_heads_as_rows(problem)))};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<PortableAttention>* made) {
    return make(problem, choose_portable_attention(with_heads_as_rows(problem)), gpu, made);
  }
  static Status make(const AttentionProblem& problem, const PortableForwardConfig& config, Gpu& gpu,
                     std::unique_ptr<PortableAttention>* made);

  size_t forward_workspace() const {
    return portable_attention_workspace(fixed_) + planes_.workspace();
  }
  Status forward(const AttentionForward& tensors, std::byte* workspace, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  PortableAttention(const AttentionProblem& problem, const PortableForwardConfig& config,
                    const Gpu& gpu)
      : problem_(problem), config_(config), gpu_(gpu) {}

  AttentionProblem problem_;
  PortableForwardConfig config_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;     // in the order of portable_attention_kernels
  PortableForwardArguments fixed_;  // all but the tensors
  AttentionPlanes planes_;          // of float32
};

}  // namespace perseid::internal::cuda
