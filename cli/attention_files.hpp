// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The flags of `perseid run attention` and `run context-attention`, the files that they name, and
// the calls of a plan with these.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "harness/placement.hpp"
#include "run.hpp"

namespace perseid::cli {

struct AttentionFlags {
  std::string query, key, value, out, lse, bias, visible;
  std::string layout = "bshd", causal = "none";
  std::string cu_seqlens_q, cu_seqlens_kv, q_lens, kv_lens;
  std::string grad_out, grad_lse, grad_query, grad_key, grad_value, grad_bias, window;
  double scale = 0, dropout = 0;
  uint64_t seed = 0, offset = 0;
  uint32_t num_splits = 0;
  bool deterministic = false, window_bottom_right = false;

  bool any_gradient() const {
    return !grad_query.empty() || !grad_key.empty() || !grad_value.empty() || !grad_bias.empty();
  }
  // With the rank in the names of files.
  AttentionFlags of_rank(int32_t rank) const;
};
void add_attention_flags(CLI::App& app, AttentionFlags& flags);
// Refuses contradicting flags before any file is opened.
void validate(const AttentionFlags& flags);

// Every tensor that is read, and what their shapes say.
struct AttentionInputs {
  Tensor query, key, value, bias, visible, cu_seqlens_q, cu_seqlens_kv, q_lens, kv_lens;
  Tensor grad_out, grad_lse;
  AttentionOptions options;

  static AttentionInputs read(const Common& common, const AttentionFlags& flags,
                              TensorFiles& files);
  // Where rows of a sequence are, from the last dimension.
  int32_t rows_dim() const { return options.layout == bshd ? -3 : -2; }
  harness::Shape out_shape() const;
  harness::Shape lse_shape() const;
};

// Every tensor that is written into a file or needed on the way, in memory of the host.
struct AttentionResults {
  Tensor out, lse, grad_query, grad_key, grad_value, grad_bias;

  static AttentionResults make(const AttentionFlags& flags, const AttentionInputs& inputs,
                               TensorFiles& files);
};

// Each executes and waits.
struct AttentionCalls {
  std::function<void(const AttentionForward&)> forward;
  std::function<void(const AttentionBackward&)> backward;
  std::function<void(AttentionInputs*)> bring_keys = {};  // to the device, in a way of its own
};
// Calls forward, and backward where gradients are wanted, with the tensors on the device.
void compute_attention(Run& run, const Context& context, const AttentionFlags& flags,
                       AttentionInputs with, const AttentionResults& results,
                       const AttentionCalls& calls);

}  // namespace perseid::cli
