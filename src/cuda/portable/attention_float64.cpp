// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/attention_float64.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {

Float64ForwardConfig choose_float64_attention(const AttentionProblem& problem) {
  Float64ForwardConfig config;
  config.key_dim = static_cast<int>(round_up(max(problem.head_dim, int64_t{1}), 16));
  config.value_dim = static_cast<int>(round_up(max(problem.value_dim, int64_t{1}), 16));
  config.lengths = has_lengths(problem);
  config.visible = problem.visible;
  config.dropout = dropout_threshold(problem.dropout) < 256;
  config.sharded = config.dropout && !problem.rows.all();
  config.bias = problem.bias ? problem.bias_dtype : DType::kNone;
  config.modifier = problem.modifier.kind;
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;
  if (max(config.key_dim, config.value_dim) <= 64) config.keys = 32;
  return config;
}

std::vector<std::string> float64_attention_kernels(const Float64ForwardConfig& config) {
  Float64ForwardConfig elements = config;
  elements.vectors = false;
  return {kernel_name("float64_attention_forward", config),
          kernel_name("float64_attention_forward", elements)};
}

int64_t float64_attention_blocks(const AttentionProblem& problem) {
  return tiles_of(problem, false, Float64ForwardConfig::block_rows()) *
         heads_in_memory(problem, false) * choose_float64_attention(problem).parts();
}

Float64Arguments float64_attention_arguments(const AttentionProblem& problem,
                                             const Float64ForwardConfig& config) {
  Float64Arguments fixed;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.modifier = problem.modifier.value;
  fixed.batch_heads = static_cast<int32_t>(problem.batch * problem.heads);
  fixed.heads_per_section =
      heads_per_section(problem, config.right, fixed.batch_heads, fixed.group);
  fixed.q_tiles = static_cast<int32_t>(tiles_of(problem, false, config.block_rows()));
  return fixed;
}

bool bind_float64_attention(const AttentionForward& tensors, Float64Arguments* arguments) {
  bind(tensors, arguments);
  bind_lse(tensors.lse, arguments);
  bool vectors = true;
  for (const Tensor* tensor : {&tensors.query, &tensors.key, &tensors.value, &tensors.out})
    vectors = vectors && has_vectors(*tensor);
  return vectors;
}

Status Float64Attention::make(const AttentionProblem& problem, Gpu& gpu,
                              std::unique_ptr<Float64Attention>* made) {
  std::unique_ptr<Float64Attention> attention(new Float64Attention(problem, gpu));
  Status status = gpu.load(kFloat64AttentionHeader, float64_attention_kernels(attention->config_),
                           &attention->kernels_);
  for (size_t each = 0; each < 2 && status.ok(); ++each)
    status = gpu.allow_shared(attention->kernels_[each], attention->config_.shared_bytes());
  if (status.ok()) *made = std::move(attention);
  return status;
}

Status Float64Attention::forward(const AttentionForward& tensors, std::byte*, void* stream) const {
  if (tensors.out.elements() == 0) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  const AttentionProblem problem = with_lengths(problem_, tensors.lengths);
  Float64Arguments arguments = float64_attention_arguments(problem, config_);
  const bool vectors = bind_float64_attention(tensors, &arguments);
  return gpu_.launch(kernels_[vectors ? 0 : 1],
                     {.blocks = float64_attention_blocks(problem),
                      .threads = Float64ForwardConfig::threads,
                      .shared_bytes = config_.shared_bytes()},
                     &arguments, stream);
}

std::string Float64Attention::description() const {
  return concatenate("forward: tiles of ", Float64ForwardConfig::block_rows(), " queries and ",
                     config_.keys, " keys, ", Float64ForwardConfig::warps, " warps");
}

}  // namespace perseid::internal::cuda
