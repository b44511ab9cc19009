// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/attention_float64.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/runtime/launch_number.hpp"

namespace perseid::internal::cuda {

Float64ForwardConfig choose_float64_attention(const AttentionProblem& problem) {
  Float64ForwardConfig config;
  config.key_dim = static_cast<int>(round_up(max(problem.head_dim, int64_t{1}), 16));
  config.value_dim = static_cast<int>(round_up(max(problem.value_dim, int64_t{1}), 16));
  config.lengths = has_lengths(problem);
  config.visible = problem.visible;
  config.dropout = has_dropout(problem);
  config.sharded = counts_whole_rows(problem);
  config.bias = problem.bias ? problem.bias_dtype : DType::kNone;
  config.modifier = problem.modifier.kind;
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;
  if (max(config.key_dim, config.value_dim) <= 64) config.keys = 32;
  config.split = splits_keys(problem, portable_split_tiles(problem, config.keys, 0) * config.keys);
  return config;
}

std::vector<std::string> float64_attention_kernels(const Float64ForwardConfig& config) {
  Float64ForwardConfig elements = config;
  elements.vectors = false;
  std::vector<std::string> names = {kernel_name("float64_attention_forward", config),
                                    kernel_name("float64_attention_forward", elements)};
  if (config.split) names.push_back(kernel_name("float64_attention_combine", config));
  if (config.fixes_splits()) names.push_back(kernel_name("float64_attention_fixup", config));
  return names;
}

int64_t float64_attention_blocks(const AttentionProblem& problem) {
  const Float64ForwardConfig config = choose_float64_attention(problem);
  return float64_attention_blocks(float64_attention_arguments(problem, config), config);
}
int64_t float64_attention_blocks(const Float64Arguments& fixed,
                                 const Float64ForwardConfig& config) {
  const int64_t heads = fixed.ragged ? fixed.heads : fixed.batch_heads;
  return int64_t{fixed.q_tiles} * heads * config.parts() * fixed.num_splits;
}

Float64Arguments float64_attention_arguments(const AttentionProblem& problem,
                                             const Float64ForwardConfig& config) {
  Float64Arguments fixed;
  if (config.split)
    fixed.split_tiles = static_cast<int32_t>(portable_split_tiles(problem, config.keys, 0));
  set_float64_attention_lengths(problem, config, &fixed);
  return fixed;
}

void set_float64_attention_lengths(const AttentionProblem& problem,
                                   const Float64ForwardConfig& config,
                                   Float64Arguments* arguments) {
  Float64Arguments& fixed = *arguments;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.modifier = problem.modifier.value;
  fixed.batch_heads = static_cast<int32_t>(problem.batch * problem.heads);
  fixed.heads_per_section =
      heads_per_section(problem, config.right, fixed.batch_heads, fixed.group);
  fixed.q_tiles = static_cast<int32_t>(tiles_of(problem, false, config.block_rows()));
  fixed.set_divisors(fixed.heads, fixed.group);
  fixed.rows = problem.heads * (problem.ragged ? problem.total_q : problem.batch * problem.q_len);
  if (config.split)
    fixed.num_splits = static_cast<int32_t>(
        max(ceil_div(problem.kv_len, int64_t{fixed.split_tiles} * config.keys), int64_t{1}));
}

size_t float64_attention_workspace(const Float64Arguments& fixed) {
  if (fixed.split_tiles == 0) return 0;
  const auto sums = static_cast<size_t>(fixed.num_splits * fixed.rows);
  return sizeof(uint64_t) + sums * static_cast<size_t>(fixed.value_dim + 2) * sizeof(double);
}
void bind_float64_attention_workspace(std::byte* workspace, Float64Arguments* arguments) {
  if (arguments->split_tiles == 0) return;
  arguments->nonfinite = reinterpret_cast<uint64_t*>(workspace);
  arguments->split_sums = reinterpret_cast<double*>(workspace + sizeof(uint64_t));
  arguments->split_weights = arguments->split_sums + arguments->num_splits * arguments->rows;
  arguments->split_results = arguments->split_weights + arguments->num_splits * arguments->rows;
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
  if (!status.ok()) return status;
  attention->fixed_ = float64_attention_arguments(with_heads_as_rows(problem), attention->config_);
  *made = std::move(attention);
  return {};
}

Status Float64Attention::forward(const AttentionForward& given, std::byte* workspace,
                                 void* stream) const {
  if (given.out.elements() == 0) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  Float64Arguments arguments = fixed_;
  const AttentionForward tensors = with_heads_as_rows(problem_, given);
  if (problem_.max_lengths)
    set_float64_attention_lengths(with_lengths(with_heads_as_rows(problem_), tensors.lengths),
                                  config_, &arguments);
  const bool vectors = bind_float64_attention(tensors, &arguments);
  bind_float64_attention_workspace(workspace, &arguments);
  arguments.launch = launch_number();
  Status status = gpu_.launch(kernels_[vectors ? 0 : 1],
                              {.blocks = float64_attention_blocks(arguments, config_),
                               .threads = Float64ForwardConfig::threads,
                               .shared_bytes = config_.shared_bytes()},
                              &arguments, stream);
  for (size_t each = 2; each < kernels_.size() && status.ok(); ++each)
    status = gpu_.launch(kernels_[each], by_rows_of_splits(arguments, each == 3, gpu_.facts()),
                         &arguments, stream);
  return status;
}

std::string Float64Attention::description() const {
  return concatenate("forward: tiles of ", Float64ForwardConfig::block_rows(), " queries and ",
                     config_.keys, " keys, ", Float64ForwardConfig::warps, " warps",
                     config_.split ? concatenate(", keys in ", fixed_.num_splits,
                                                 " splits, merged by a second kernel")
                                   : "",
                     takes_heads_as_rows(problem_) ? ", heads of a key head as its rows" : "");
}

}  // namespace perseid::internal::cuda
