// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/attention_backward.hpp"

#include <algorithm>
#include <iterator>

#include "cuda/attention/arguments.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// As kernels have it, a multiple of 16.
int dim_of(int64_t dim) { return static_cast<int>(round_up(max(dim, int64_t{1}), 16)); }

bool is_wanted(const AttentionBackward& tensors, const PortableBackwardConfig& config) {
  switch (config.gradients) {
    case GradientsOf::kKeys:
      return tensors.grad_key.present() || tensors.grad_value.present() ||
             (config.adds_queries && tensors.grad_query.present()) ||
             (config.stores_bias && tensors.grad_bias.present());
    case GradientsOf::kQueries:
      return tensors.grad_query.present();
    case GradientsOf::kBias:
      return tensors.grad_bias.present();
  }
  return false;
}

// Chooses for float64. Dims are cut where a block may not have the shared memory for whole ones.
void choose_pairs(int32_t shared_bytes, PortableBackwardConfig* config) {
  config->warps = 8;
  config->chunk = 32;
  config->columns = config->of_bias() || config->most_dim() <= 64 ? 32 : 16;
  if (config->of_bias()) return;
  if (config->streams() || config->shared_bytes() > shared_bytes) config->columns = 16;
  if (config->shared_bytes() > shared_bytes) config->largest = 0;
}
// Returns the configuration of float32 for dims that blocks of four warps cut.
PortableBackwardConfig large_planes(PortableBackwardConfig config) {
  config.warps = 8;
  config.largest = 128;
  return config;
}
// Whether dQ is summed beside dK and dV.
bool adds_queries(const AttentionProblem& problem, int32_t shared_bytes) {
  if (!problem.grad_query || !(problem.grad_key || problem.grad_value) || problem.deterministic ||
      (problem.dtype == DType::kF32 && problem.grad_bias) ||
      max(problem.head_dim, problem.value_dim) > PortableBackwardConfig::kLargest)
    return false;
  if (problem.dtype == DType::kF32)
    return max(problem.head_dim, problem.value_dim) <= 64 ||
           large_planes({.dtype = DType::kF32,
                         .key_dim = dim_of(problem.head_dim),
                         .value_dim = dim_of(problem.value_dim),
                         .adds_queries = true})
                   .shared_bytes() <= shared_bytes;
  if (problem.dtype != DType::kF64) return true;
  PortableBackwardConfig config{.dtype = DType::kF64,
                                .key_dim = dim_of(problem.head_dim),
                                .value_dim = dim_of(problem.value_dim),
                                .adds_queries = true};
  choose_pairs(shared_bytes, &config);
  return !config.streams();
}

// Whether dS, in the type of the bias, is its gradient where blocks add dQ.
bool stores_bias(const AttentionProblem& problem, int32_t shared_bytes) {
  const int64_t whole[] = {problem.batch, problem.heads, problem.q_len, problem.kv_len};
  return problem.grad_bias && adds_queries(problem, shared_bytes) && size_of(problem.dtype) == 2 &&
         problem.bias_dtype == problem.dtype && !problem.accumulate_bias &&
         problem.modifier.kind == ScoreModifierKind::kNone && !has_lengths(problem) &&
         !problem.max_lengths && problem.rows.all() &&
         std::equal(std::begin(whole), std::end(whole), problem.bias_shape);
}

// The workspace, in bytes: lse and delta of blocks of queries, sums of dQ, counters of splits,
// split sums, planes.
struct Layout {
  size_t delta, sums, arrived, split_sums, planes;
};
Layout lay_out(const AttentionProblem& problem) {
  const auto rows = static_cast<size_t>(portable_attention_backward_q_blocks(problem) *
                                        PortableBackwardConfig::queries);
  Layout layout{};
  const int64_t sum_bytes = problem.dtype == DType::kF64 ? 8 : 4;
  layout.delta = rows * static_cast<size_t>(sum_bytes);
  layout.sums = layout.arrived = 2 * layout.delta;
  if (adds_queries(problem, 1 << 30))  // whatever the GPU has
    layout.arrived += rows * static_cast<size_t>(dim_of(problem.head_dim) * sum_bytes);
  layout.split_sums = layout.planes = layout.arrived;
  if (!problem.grad_bias || stores_bias(problem, kLeastShared)) return layout;
  const PortableBackwardConfig config =
      choose_portable_attention_backward(problem, GradientsOf::kBias, kLeastShared);
  const BiasTiles tiles = divide_bias(problem, config.queries, config.keys());
  layout.split_sums += static_cast<size_t>(round_up(int64_t{tiles.bias_blocks} * 4, sum_bytes));
  layout.planes = static_cast<size_t>(round_up(
      static_cast<int64_t>(layout.split_sums +
                           bytes_of_splits(tiles, config.queries, config.keys(), sum_bytes)),
      16));
  return layout;
}

}  // namespace

int64_t portable_attention_backward_q_blocks(const AttentionProblem& problem) {
  return heads_in_memory(problem, false) *
         tiles_of(problem, false, PortableBackwardConfig::queries);
}

size_t portable_attention_backward_workspace(const AttentionProblem& problem,
                                             const AttentionPlanes& planes) {
  return lay_out(problem).planes + planes.workspace();
}

AttentionPlanes portable_attention_backward_planes(const AttentionProblem& problem,
                                                   int32_t shared_bytes) {
  const std::vector<GradientsOf> gradients = gradients_of(problem, shared_bytes);
  if (problem.dtype != DType::kF32 || gradients.empty()) return {};
  // All of them have the same chunks.
  return portable_attention_backward_planes(
      problem, choose_portable_attention_backward(problem, gradients.front(), shared_bytes));
}
AttentionPlanes portable_attention_backward_planes(const AttentionProblem& problem,
                                                   const PortableBackwardConfig& config) {
  const auto length = [&](int dim, int32_t common) {
    return PlaneLength{config.plane_length(dim), config.depth(dim), common,
                       loss_of_sums(config.depth(dim))};
  };
  return {problem, length(config.key_dim, kCommonKeyExponent),
          length(config.value_dim, kCommonValueExponent), arguments_of(problem).scale_log2_f64,
          true};
}

std::vector<GradientsOf> gradients_of(const AttentionProblem& problem, int32_t shared_bytes) {
  std::vector<GradientsOf> wanted;
  if (problem.grad_key || problem.grad_value) wanted.push_back(GradientsOf::kKeys);
  if (problem.grad_query && !adds_queries(problem, shared_bytes))
    wanted.push_back(GradientsOf::kQueries);
  if (problem.grad_bias && !stores_bias(problem, shared_bytes))
    wanted.push_back(GradientsOf::kBias);
  return wanted;
}

std::string refuse_portable_attention_backward(const AttentionProblem& problem) {
  for (const GradientsOf each : gradients_of(problem, kLeastShared)) {
    const PortableBackwardConfig config =
        choose_portable_attention_backward(problem, each, kLeastShared);
    if (config.of_bias())
      if (std::string why = refuse_bias_tiles(problem, config.queries, config.keys()); !why.empty())
        return why;
    const bool of_keys = config.of_keys();
    const int64_t blocks = heads_in_memory(problem, of_keys) *
                           tiles_of(problem, of_keys, config.block_rows()) * config.parts();
    if (max(blocks, portable_attention_backward_q_blocks(problem)) > kMostBlocks)
      return concatenate("its backward is made for up to ", kMostBlocks,
                         " tiles of rows in all heads, got batch ", problem.batch, ", heads ",
                         problem.heads, ", q_len ", problem.q_len, " and kv_len ", problem.kv_len);
  }
  return "";
}

PortableBackwardConfig choose_portable_attention_backward(const AttentionProblem& problem,
                                                          GradientsOf gradients,
                                                          int32_t shared_bytes) {
  PortableBackwardConfig config;
  config.gradients = gradients;
  config.dtype = problem.dtype;
  config.key_dim = dim_of(problem.head_dim);
  config.value_dim = dim_of(problem.value_dim);
  config.lengths = has_lengths(problem);
  config.visible = problem.visible;
  config.dropout = has_dropout(problem);
  config.sharded = counts_whole_rows(problem);
  config.f32_key_gradients =
      problem.f32_key_gradients && size_of(problem.dtype) == 2 && config.of_keys();
  config.bias = problem.bias ? problem.bias_dtype : DType::kNone;
  config.modifier = problem.modifier.kind;
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;
  config.adds_queries = config.of_keys() && adds_queries(problem, shared_bytes);
  config.stores_bias = config.of_keys() && stores_bias(problem, shared_bytes);
  config.accumulate_query =
      problem.accumulate_query && (config.adds_queries || gradients == GradientsOf::kQueries);
  config.accumulate_key = problem.accumulate_key && config.of_keys();
  config.accumulate_value = problem.accumulate_value && config.of_keys();
  config.accumulate_bias = problem.accumulate_bias && config.of_bias();

  if (config.pairs()) {
    choose_pairs(shared_bytes, &config);
    return config;
  }
  // Warps of 32 rows read columns half as often; registers bound their gradients and scores, and
  // the operands of bias, mask and dropout.
  const bool extras = config.bias != DType::kNone || config.visible || config.dropout;
  if (!config.of_bias() && config.most_dim() <= 64) {
    config.rows = 32;
    const bool reads = config.visible || (config.bias != DType::kNone && !config.copies_bias());
    if (extras && (reads || !config.of_keys() || config.planes() == 2)) config.rows = 16;
  }
  if (config.of_bias() || (!config.of_keys() && config.most_dim() <= 128 && config.planes() == 1))
    config.columns = 64;
  if (config.planes() == 2) {
    // Tiles of bias are cut, and planes have one order.
    config.largest = problem.grad_bias ? 0 : 64;
    const PortableBackwardConfig large = large_planes(config);
    if (config.largest == 64 && config.most_dim() > 64 && config.most_dim() <= large.largest &&
        large.shared_bytes() <= shared_bytes)
      config = large;
    // Scores add the same products in the order of forward, which cuts key dims beyond 128 alone,
    // so that they have the roundings that lse has.
    if (config.streams() && config.key_dim > 64 && config.key_dim <= 128 &&
        shared_bytes > kLeastShared)
      config.chunk = 128;
    return config;
  }
  // Beyond dim 64 rows and columns are read from shared memory more often than it has time for:
  // more of both, where a block may have so much.
  if (config.adds_queries && config.rows == 16 && config.most_dim() > 64) {
    PortableBackwardConfig large = config;
    large.warps = 8;
    large.columns = 64;
    PortableBackwardConfig halves = large;
    halves.rows = 32;
    halves.shares_rows = true;
    if (!extras && min(config.key_dim, config.value_dim) == 128 &&
        halves.shared_bytes() <= shared_bytes)
      config = halves;
    else if (large.shared_bytes() <= shared_bytes)
      config = large;
    else
      config.rows_in_registers = extras || config.right || config.left || config.lengths ? 0 : 1;
  }
  return config;
}

std::vector<std::string> portable_attention_backward_kernels(const AttentionProblem& problem,
                                                             int32_t shared_bytes) {
  std::vector<std::string> names;
  for (const GradientsOf each : gradients_of(problem, shared_bytes)) {
    const PortableBackwardConfig config =
        choose_portable_attention_backward(problem, each, shared_bytes);
    if (names.empty()) {
      names.push_back(kernel_name("portable_attention_backward_prepare", config));
      if (config.planes() == 2)
        names.push_back(portable_attention_backward_planes(problem, shared_bytes).kernel());
    }
    names.push_back(kernel_name("portable_attention_backward", config));
  }
  if (adds_queries(problem, shared_bytes))
    names.push_back(
        kernel_name("portable_attention_backward_finish",
                    choose_portable_attention_backward(problem, GradientsOf::kKeys, shared_bytes)));
  return names;
}

template <class Real>
PortableBackwardArgumentsOf<Real> portable_attention_backward_arguments(
    const AttentionProblem& plan, const PortableBackwardConfig& config,
    const AttentionLengths& lengths) {
  const AttentionProblem problem = with_lengths(plan, lengths);
  PortableBackwardArgumentsOf<Real> fixed;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  if (config.of_bias()) {
    static_cast<BiasTiles&>(fixed) = divide_bias(problem, config.queries, config.keys());
    keep_splits(divide_bias(plan, config.queries, config.keys()), &fixed);
  }
  fixed.kv_heads = static_cast<int32_t>(problem.kv_heads);
  fixed.q_blocks = static_cast<int32_t>(tiles_of(problem, false, config.queries));
  fixed.modifier = static_cast<Real>(problem.modifier.value);
  fixed.scale = static_cast<Real>(problem.scale);
  fixed.batch_heads = static_cast<int32_t>(heads_in_memory(problem, config.of_keys()));
  fixed.tiles = static_cast<int32_t>(tiles_of(problem, config.of_keys(), config.block_rows()));
  fixed.heads_per_section =
      heads_per_section(problem, config.right, fixed.batch_heads,
                        config.of_keys() ? 1 : static_cast<int32_t>(problem.group()));
  return fixed;
}

template <class Real>
int64_t portable_attention_backward_blocks(const PortableBackwardArgumentsOf<Real>& arguments,
                                           const PortableBackwardConfig& config) {
  if (config.of_bias()) return arguments.blocks;
  return int64_t{arguments.tiles} * arguments.batch_heads * config.parts();
}

template <class Real>
PlanesArguments bind_portable_attention_backward(const AttentionProblem& plan,
                                                 const AttentionPlanes& planes,
                                                 const AttentionBackward& tensors,
                                                 std::byte* workspace,
                                                 PortableBackwardArgumentsOf<Real>* arguments) {
  bind(tensors, arguments);
  arguments->grad_out_rows = rows_in_memory(with_batch(tensors.grad_out));
  arguments->grad_query_rows = rows_in_memory(with_batch(tensors.grad_query));
  arguments->grad_key_rows = rows_in_memory(with_batch(tensors.grad_key));
  arguments->grad_value_rows = rows_in_memory(with_batch(tensors.grad_value));
  arguments->grad_bias = rows_in_memory(tensors.grad_bias);
  arguments->bias_vectors = tensors.grad_bias.present() && has_vectors(tensors.grad_bias);
  arguments->lse = rows_in_memory(with_element(tensors.lse));
  arguments->grad_lse = rows_in_memory(with_element(tensors.grad_lse));
  arguments->vectors = true;
  for (const Tensor* tensor :
       {&tensors.query, &tensors.key, &tensors.value, &tensors.out, &tensors.grad_out,
        &tensors.grad_query, &tensors.grad_key, &tensors.grad_value})
    arguments->vectors = arguments->vectors && (!tensor->present() || has_vectors(*tensor));
  const Layout layout = lay_out(plan);
  arguments->lse_log2 = reinterpret_cast<Real*>(workspace);
  arguments->delta = reinterpret_cast<Real*>(workspace + layout.delta);
  arguments->sums = reinterpret_cast<Real*>(workspace + layout.sums);
  arguments->arrived = reinterpret_cast<uint32_t*>(workspace + layout.arrived);
  arguments->split_sums = workspace + layout.split_sums;
  if (planes.blocks() == 0) return {};
  PlanesArguments rows = planes.bind(tensors.query, tensors.key, tensors.value, &tensors.grad_out,
                                     workspace + layout.planes);
  rows.pairs[0].lse = arguments->lse;
  const PairsOfRows& queries = rows.pairs[0];
  const PairsOfRows& keys = rows.pairs[1];
  arguments->query_planes = rows_of_planes(queries, queries.first);
  arguments->grad_out_planes = rows_of_planes(queries, queries.second);
  arguments->key_planes = rows_of_planes(keys, keys.first);
  arguments->value_planes = rows_of_planes(keys, keys.second);
  arguments->query_numbers = queries.numbers;
  arguments->key_numbers = keys.numbers;
  return rows;
}

Status PortableAttentionBackward::make(const AttentionProblem& problem, int32_t shared_bytes,
                                       Gpu& gpu, std::unique_ptr<PortableAttentionBackward>* made) {
  std::unique_ptr<PortableAttentionBackward> backward(new PortableAttentionBackward(problem, gpu));
  Status status =
      gpu.load(kPortableAttentionBackwardHeader,
               portable_attention_backward_kernels(problem, shared_bytes), &backward->kernels_);
  backward->planes_ = portable_attention_backward_planes(problem, shared_bytes);
  const size_t first = problem.dtype == DType::kF32 ? 1 : 0;
  for (const GradientsOf each : gradients_of(problem, shared_bytes)) {
    backward->configs_.push_back(choose_portable_attention_backward(problem, each, shared_bytes));
    if (status.ok())
      status = gpu.allow_shared(backward->kernels_[first + backward->configs_.size()],
                                backward->configs_.back().shared_bytes());
  }
  if (status.ok()) *made = std::move(backward);
  return status;
}

Status PortableAttentionBackward::backward(const AttentionBackward& tensors, std::byte* workspace,
                                           void* stream) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return problem_.dtype == DType::kF64 ? launch<double>(tensors, workspace, stream)
                                       : launch<float>(tensors, workspace, stream);
}

template <class Real>
Status PortableAttentionBackward::launch(const AttentionBackward& tensors, std::byte* workspace,
                                         void* stream) const {
  Status status;
  const AttentionProblem problem = with_lengths(problem_, tensors.lengths);
  const AttentionPlanes planes =
      problem_.max_lengths && problem_.dtype == DType::kF32 && !configs_.empty()
          ? portable_attention_backward_planes(problem, configs_.front())
          : planes_;
  const Launch by_rows{.blocks = portable_attention_backward_q_blocks(problem),
                       .threads = kPrepareThreads};
  PortableBackwardArgumentsOf<Real> rows;
  for (size_t i = 0; i < configs_.size() && status.ok(); ++i) {
    const PortableBackwardConfig& config = configs_[i];
    auto arguments = portable_attention_backward_arguments<Real>(problem_, config, tensors.lengths);
    PlanesArguments of_planes =
        bind_portable_attention_backward(problem_, planes, tensors, workspace, &arguments);
    if (i == 0) {
      rows = arguments;
      if (configs_.back().of_bias())  // whose counters it clears
        static_cast<BiasTiles&>(rows) =
            portable_attention_backward_arguments<Real>(problem_, configs_.back(), tensors.lengths);
      status = gpu_.launch(kernels_[0], by_rows, &rows, stream);
      if (status.ok() && config.planes() == 2)
        status =
            gpu_.launch(kernels_[1], {.blocks = planes.blocks(), .threads = PlanesConfig::threads},
                        &of_planes, stream);
    }
    if (!status.ok() || !is_wanted(tensors, config)) continue;
    status = gpu_.launch(kernels_[i + config.planes()],
                         {.blocks = portable_attention_backward_blocks(arguments, config),
                          .threads = config.threads(),
                          .shared_bytes = config.shared_bytes()},
                         &arguments, stream);
  }
  if (status.ok() && configs_.front().adds_queries && tensors.grad_query.present())
    status = gpu_.launch(kernels_.back(), by_rows, &rows, stream);
  return status;
}

std::string PortableAttentionBackward::description() const {
  std::string text;
  for (const PortableBackwardConfig& config : configs_)
    text += concatenate(text.empty() ? "backward: " : ", ",
                        config.of_keys()   ? "tiles of keys "
                        : config.of_bias() ? "tiles of bias "
                                           : "tiles of queries ",
                        config.block_rows(), " x ", config.columns,
                        config.adds_queries ? " with sums of grad_query" : "");
  return text;
}

// Sums are float64 for float64, and float32 for all other types.
template PortableBackwardArgumentsOf<float> portable_attention_backward_arguments(
    const AttentionProblem&, const PortableBackwardConfig&, const AttentionLengths&);
template int64_t portable_attention_backward_blocks(const PortableBackwardArgumentsOf<float>&,
                                                    const PortableBackwardConfig&);
template PlanesArguments bind_portable_attention_backward(const AttentionProblem&,
                                                          const AttentionPlanes&,
                                                          const AttentionBackward&, std::byte*,
                                                          PortableBackwardArgumentsOf<float>*);
template PortableBackwardArgumentsOf<double> portable_attention_backward_arguments(
    const AttentionProblem&, const PortableBackwardConfig&, const AttentionLengths&);
template int64_t portable_attention_backward_blocks(const PortableBackwardArgumentsOf<double>&,
                                                    const PortableBackwardConfig&);
template PlanesArguments bind_portable_attention_backward(const AttentionProblem&,
                                                          const AttentionPlanes&,
                                                          const AttentionBackward&, std::byte*,
                                                          PortableBackwardArgumentsOf<double>*);

}  // namespace perseid::internal::cuda
