// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/attention_float64.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// The fields that both directions have.
template <class Config>
Config choose(const AttentionProblem& problem) {
  Config config;
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
  return config;
}

Float64Arguments arguments_of_both(const AttentionProblem& problem, bool of_keys, bool right) {
  Float64Arguments fixed;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.kv_heads = static_cast<int32_t>(problem.kv_heads);
  fixed.modifier = problem.modifier.value;
  fixed.scale = problem.scale;
  fixed.batch_heads =
      static_cast<int32_t>(problem.batch * (of_keys ? problem.kv_heads : problem.heads));
  fixed.heads_per_section =
      heads_per_section(problem, right, fixed.batch_heads, of_keys ? 1 : fixed.group);
  return fixed;
}

bool is_wanted(const AttentionBackward& tensors, GradientsOf gradients) {
  switch (gradients) {
    case GradientsOf::kKeys:
      return tensors.grad_key.present() || tensors.grad_value.present();
    case GradientsOf::kQueries:
      return tensors.grad_query.present();
    case GradientsOf::kBias:
      return tensors.grad_bias.present();
  }
  return false;
}

// The workspace, in bytes: lse and delta of blocks of queries, split sums, counters of splits.
struct Layout {
  size_t delta, split_sums, arrived, bytes;
};
Layout lay_out(const AttentionProblem& problem) {
  Layout layout{};
  layout.delta = static_cast<size_t>(float64_attention_backward_q_blocks(problem) *
                                     Float64BackwardConfig::queries) *
                 sizeof(double);
  layout.split_sums = layout.arrived = layout.bytes = 2 * layout.delta;
  if (!problem.grad_bias) return layout;
  const BiasTiles tiles =
      divide_bias(problem, Float64BackwardConfig::queries, Float64BackwardConfig::keys());
  layout.arrived += bytes_of_splits(tiles, Float64BackwardConfig::queries,
                                    Float64BackwardConfig::keys(), sizeof(double));
  layout.bytes = layout.arrived + static_cast<size_t>(tiles.bias_blocks) * sizeof(uint32_t);
  return layout;
}

}  // namespace

// ---- Forward ----

Float64ForwardConfig choose_float64_attention(const AttentionProblem& problem) {
  auto config = choose<Float64ForwardConfig>(problem);
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
  Float64Arguments fixed = arguments_of_both(problem, false, config.right);
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

// ---- Backward ----

Float64BackwardConfig choose_float64_attention_backward(const AttentionProblem& problem,
                                                        GradientsOf gradients) {
  auto config = choose<Float64BackwardConfig>(problem);
  config.gradients = gradients;
  config.accumulate_query = problem.accumulate_query && gradients == GradientsOf::kQueries;
  config.accumulate_key = problem.accumulate_key && gradients == GradientsOf::kKeys;
  config.accumulate_value = problem.accumulate_value && gradients == GradientsOf::kKeys;
  config.accumulate_bias = problem.accumulate_bias && gradients == GradientsOf::kBias;
  return config;
}

std::vector<std::string> float64_attention_backward_kernels(const AttentionProblem& problem) {
  std::vector<std::string> names;
  for (const GradientsOf each : gradients_of(problem)) {
    const Float64BackwardConfig config = choose_float64_attention_backward(problem, each);
    if (names.empty()) names.push_back(kernel_name("float64_attention_backward_prepare", config));
    names.push_back(kernel_name("float64_attention_backward", config));
  }
  return names;
}

Float64Arguments float64_attention_backward_arguments(const AttentionProblem& problem,
                                                      const Float64BackwardConfig& config) {
  Float64Arguments fixed = arguments_of_both(problem, config.of_keys(), config.right);
  if (config.of_bias())
    static_cast<BiasTiles&>(fixed) =
        divide_bias(problem, Float64BackwardConfig::queries, Float64BackwardConfig::keys());
  fixed.q_blocks = static_cast<int32_t>(tiles_of(problem, false, Float64BackwardConfig::queries));
  fixed.tiles = static_cast<int32_t>(
      tiles_of(problem, config.of_keys(), Float64BackwardConfig::block_rows()));
  return fixed;
}

int64_t float64_attention_backward_q_blocks(const AttentionProblem& problem) {
  return heads_in_memory(problem, false) * tiles_of(problem, false, Float64BackwardConfig::queries);
}

int64_t float64_attention_backward_blocks(const Float64Arguments& arguments,
                                          const Float64BackwardConfig& config) {
  if (config.of_bias()) return arguments.blocks;
  const int64_t heads = config.of_keys() ? arguments.kv_heads : arguments.heads;
  return int64_t{arguments.tiles} * heads * (arguments.ragged ? 1 : arguments.batch);
}

size_t float64_attention_backward_workspace(const AttentionProblem& problem) {
  return lay_out(problem).bytes;
}

void bind_float64_attention_backward(const AttentionProblem& problem,
                                     const AttentionBackward& tensors, std::byte* workspace,
                                     Float64Arguments* arguments) {
  bind(tensors, arguments);
  arguments->grad_out_rows = rows_in_memory(with_batch(tensors.grad_out));
  arguments->grad_query_rows = rows_in_memory(with_batch(tensors.grad_query));
  arguments->grad_key_rows = rows_in_memory(with_batch(tensors.grad_key));
  arguments->grad_value_rows = rows_in_memory(with_batch(tensors.grad_value));
  arguments->grad_bias = rows_in_memory(tensors.grad_bias);
  arguments->lse_rows = rows_in_memory(with_element(tensors.lse));
  arguments->grad_lse = rows_in_memory(with_element(tensors.grad_lse));
  const Layout layout = lay_out(problem);
  arguments->lse_log2 = reinterpret_cast<double*>(workspace);
  arguments->delta = reinterpret_cast<double*>(workspace + layout.delta);
  arguments->split_sums = workspace + layout.split_sums;
  arguments->arrived = reinterpret_cast<uint32_t*>(workspace + layout.arrived);
}

Status Float64AttentionBackward::make(const AttentionProblem& problem, Gpu& gpu,
                                      std::unique_ptr<Float64AttentionBackward>* made) {
  std::unique_ptr<Float64AttentionBackward> backward(new Float64AttentionBackward(problem, gpu));
  Status status = gpu.load(kFloat64AttentionBackwardHeader,
                           float64_attention_backward_kernels(problem), &backward->kernels_);
  if (status.ok()) *made = std::move(backward);
  return status;
}

Status Float64AttentionBackward::backward(const AttentionBackward& tensors, std::byte* workspace,
                                          void* stream) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  Status status;
  for (size_t i = 0; i <= gradients_.size() && status.ok(); ++i) {
    const bool prepares = i == 0;
    // Preparation clears the counters of a bias's splits, whose gradient comes last.
    const GradientsOf each = prepares ? gradients_.back() : gradients_[i - 1];
    if (!prepares && !is_wanted(tensors, each)) continue;
    const Float64BackwardConfig config = choose_float64_attention_backward(problem_, each);
    Float64Arguments arguments = float64_attention_backward_arguments(problem_, config);
    bind_float64_attention_backward(problem_, tensors, workspace, &arguments);
    status = gpu_.launch(kernels_[i],
                         {.blocks = prepares ? float64_attention_backward_q_blocks(problem_)
                                             : float64_attention_backward_blocks(arguments, config),
                          .threads = Float64BackwardConfig::threads,
                          .shared_bytes = prepares ? 0 : config.shared_bytes()},
                         &arguments, stream);
  }
  return status;
}

std::string Float64AttentionBackward::description() const {
  return "backward: rows of gradients, each by a warp, pair by pair";
}

}  // namespace perseid::internal::cuda
