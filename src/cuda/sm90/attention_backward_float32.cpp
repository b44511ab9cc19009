// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_backward_float32.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/attention_boxes.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kLargestDim = 128;
// Gradients of both, scores and dS as planes share the registers of a consumer.
constexpr int kLargestSplitKeysDim = 64;
// Planes of a section's queries and gradients of out, and sums of dQ: this many bytes stay in the
// L2 cache.
constexpr int64_t kSectionBytes = 1 << 25;
constexpr int64_t kRowBytes = 128;  // of a TMA box

}  // namespace

std::string refuse_float32_attention_backward(const AttentionProblem& problem) {
  if (max(problem.head_dim, problem.value_dim) > kLargestDim)
    return concatenate("made for head dims up to ", kLargestDim, " in f32, got head_dim ",
                       problem.head_dim, " and value_dim ", problem.value_dim);
  if (problem.deterministic) return "made for sums of grad_query in any order, in f32";
  if (problem.bias || problem.visible || problem.modifier.kind != ScoreModifierKind::kNone)
    return "made for scores without bias, visible mask and modifier, in f32";
  if (!problem.grad_query || !(problem.grad_key || problem.grad_value))
    return "made for the gradient of query with those of key or value, in f32";
  if (problem.accumulate_query || problem.accumulate_key || problem.accumulate_value)
    return "made for gradients that do not accumulate, in f32";
  if (!problem.rows.all()) return "made for all rows of every sequence of queries, in f32";
  const int64_t rows = heads_in_memory(problem, false) * tiles_of(problem, false, 16) +
                       heads_in_memory(problem, true) * tiles_of(problem, true, 16);
  if (rows > kMostBlocks)
    return concatenate("made for up to ", kMostBlocks, " tiles of 16 rows in all heads, got ",
                       rows);
  return "";
}

AttentionBackwardConfig choose_float32_attention_backward(const AttentionProblem& problem) {
  AttentionBackwardConfig config;
  config.dtype = problem.dtype;
  config.key_dim = static_cast<int>(round_up(max(problem.head_dim, int64_t{1}), 16));
  config.value_dim = static_cast<int>(round_up(max(problem.value_dim, int64_t{1}), 16));
  config.split_keys = max(config.key_dim, config.value_dim) <= kLargestSplitKeysDim;
  config.lengths = has_lengths(problem);
  config.dropout = has_dropout(problem);
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;
  config.grad_key = problem.grad_key;
  config.grad_value = problem.grad_value;
  return config;
}

std::vector<std::string> float32_attention_backward_kernels(const AttentionBackwardConfig& config) {
  return {kernel_name("attention_backward_split", config),
          kernel_name("attention_backward_planes", config),
          kernel_name("attention_backward_finish_f32", config)};
}

Status Sm90Float32AttentionBackward::make(const AttentionProblem& problem, Gpu& gpu,
                                          std::unique_ptr<Sm90Float32AttentionBackward>* made) {
  std::unique_ptr<Sm90Float32AttentionBackward> backward(
      new Sm90Float32AttentionBackward(problem, gpu));
  const AttentionBackwardConfig config = choose_float32_attention_backward(problem);
  backward->config_ = config;
  Status status = gpu.load(kFloat32AttentionBackwardHeader,
                           float32_attention_backward_kernels(config), &backward->kernels_);
  if (status.ok()) status = gpu.allow_shared(backward->kernels_[1], config.planes_shared_bytes());
  if (!status.ok()) return status;

  AttentionBackwardPlanesArguments& fixed = backward->fixed_;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.kv_heads = static_cast<int32_t>(problem.kv_heads);
  fixed.q_blocks = static_cast<int32_t>(tiles_of(problem, false, config.queries));
  fixed.k_tiles = static_cast<int32_t>(tiles_of(problem, true, config.keys()));
  fixed.scale = static_cast<float>(problem.scale);
  fixed.batch_heads = static_cast<int32_t>(heads_in_memory(problem, true));
  fixed.query_blocks =
      static_cast<int32_t>(heads_in_memory(problem, false) * int64_t{fixed.q_blocks});
  // Without a mask all tiles cost the same, and one head after another reads the least.
  int64_t section = 1;
  if (config.right) {
    const int64_t bytes =
        4 * problem.group() * problem.q_len * (2 * problem.head_dim + problem.value_dim);
    while (2 * section * bytes <= kSectionBytes && section < fixed.batch_heads) section *= 2;
  }
  fixed.heads_per_section =
      static_cast<int32_t>(clamp(section, int64_t{1}, max(int64_t{1}, int64_t{fixed.batch_heads})));

  const int32_t key = config.plane_length(config.key_dim);
  const int32_t value = config.plane_length(config.value_dim);
  backward->planes_ =
      AttentionPlanes(problem, {key, key, kCommonKeyExponent, loss_of_sums(config.key_dim)},
                      {value, value, kCommonValueExponent, loss_of_sums(config.value_dim)},
                      fixed.scale_log2_f64, true);
  Layout& layout = backward->layout_;
  const auto blocks = static_cast<size_t>(fixed.query_blocks);
  const size_t row_bytes = blocks * static_cast<size_t>(config.queries) * sizeof(float);
  layout.lse_log2 = blocks * sizeof(QueryNumbers);
  layout.delta = layout.lse_log2 + row_bytes;
  layout.sums = layout.delta + row_bytes;
  layout.planes = layout.sums + static_cast<size_t>(config.key_dim) * row_bytes;
  *made = std::move(backward);
  return {};
}

Status Sm90Float32AttentionBackward::map_rows(const AttentionBackward& tensors,
                                              AttentionBackwardPlanesArguments* arguments) const {
  PairsOfRows& queries = arguments->planes.pairs[0];
  PairsOfRows& keys = arguments->planes.pairs[1];
  // Ragged tensors are [heads, rows, elements].
  const auto box_of = [&](const Tensor& tensor, int64_t longest, int box_rows) {
    BoxedTensor box =
        problem_.ragged ? ragged_boxed(tensor, longest, box_rows) : boxed(tensor, 0, box_rows);
    box.box[0] = static_cast<int32_t>(kRowBytes / size_of(tensor.dtype));
    return box;
  };
  // In the workspace.
  const auto rows_in = [&](const PairsOfRows& pairs, void* data, DType dtype, int64_t length) {
    Tensor tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = problem_.ragged ? 3 : 4;
    const int64_t rows = pairs.rows, heads = pairs.heads;
    const int64_t shape[] = {problem_.batch, heads, rows, length};
    const int64_t stride[] = {heads * rows * length, rows * length, length, 1};
    for (int d = 0; d < tensor.rank; ++d) {
      tensor.shape[d] = shape[4 - tensor.rank + d];
      tensor.stride[d] = stride[4 - tensor.rank + d];
    }
    return tensor;
  };
  // A tensor map cannot be empty; without rows nothing is loaded.
  const auto is_empty = [&](const PairsOfRows& pairs, int64_t longest) {
    return pairs.rows == 0 || longest == 0 || problem_.batch == 0 || problem_.heads == 0;
  };
  Status status;
  const auto map = [&](const char* name, const BoxedTensor& box, TensorMap* to) {
    if (status.ok()) status = make_tensor_map(gpu_, name, box, to);
  };
  if (!is_empty(queries, problem_.q_len)) {
    const auto planes = [&](const PlanesOfRows& rows) {
      return box_of(rows_in(queries, rows.planes, DType::kF16, 2 * int64_t{rows.length}),
                    problem_.q_len, config_.queries);
    };
    map("attention backward: planes of query", planes(queries.first), &arguments->query);
    map("attention backward: planes of grad_out", planes(queries.second), &arguments->grad_out);
  }
  if (is_empty(keys, problem_.kv_len)) return status;
  const auto box_of_keys = [&](const Tensor& tensor) {
    return box_of(tensor, problem_.kv_len, config_.keys());
  };
  BoxedTensor key = box_of_keys(tensors.key), value = box_of_keys(tensors.value);
  keys.copies = !is_mappable(key) || !is_mappable(value);
  if (keys.copies) {
    const auto copied = [&](const PlanesOfRows& rows) {
      return box_of_keys(rows_in(keys, rows.planes, DType::kF32, rows.length));
    };
    key = copied(keys.first);
    value = copied(keys.second);
  }
  map("attention backward: key", key, &arguments->key);
  map("attention backward: value", value, &arguments->value);
  return status;
}

Status Sm90Float32AttentionBackward::backward(const AttentionBackward& tensors,
                                              std::byte* workspace, void* stream) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  AttentionBackwardPlanesArguments arguments = fixed_;
  bind(tensors, &arguments);
  arguments.grad_out_rows = rows_in_memory(with_batch(tensors.grad_out));
  arguments.grad_query_rows = rows_in_memory(with_batch(tensors.grad_query));
  arguments.grad_key_rows = rows_in_memory(with_batch(tensors.grad_key));
  arguments.grad_value_rows = rows_in_memory(with_batch(tensors.grad_value));
  arguments.lse = rows_in_memory(with_element(tensors.lse));
  arguments.grad_lse = rows_in_memory(with_element(tensors.grad_lse));
  arguments.query_numbers = reinterpret_cast<QueryNumbers*>(workspace);
  arguments.lse_log2 = reinterpret_cast<float*>(workspace + layout_.lse_log2);
  arguments.delta = reinterpret_cast<float*>(workspace + layout_.delta);
  arguments.sums = reinterpret_cast<float*>(workspace + layout_.sums);
  arguments.planes = planes_.bind(tensors.query, tensors.key, tensors.value, &tensors.grad_out,
                                  workspace + layout_.planes);
  // Powers of two of their own: their largest numbers are not known before.
  arguments.planes.pairs[0].second.common = 0;
  bind_rows(tensors.out, &arguments.out);
  arguments.out.dim = arguments.value_dim;
  PlanesOfRows grad_query;
  if (tensors.grad_query.present()) bind_rows(tensors.grad_query, &grad_query);
  arguments.vectors = grad_query.vectors;
  if (Status status = map_rows(tensors, &arguments); !status.ok()) return status;

  const int64_t query_blocks = fixed_.query_blocks;
  const int64_t key_blocks =
      arguments.planes.pairs[1].copies ? planes_.blocks() - planes_.query_blocks() : 0;
  Status status = gpu_.launch(
      kernels_[0], {.blocks = query_blocks + key_blocks, .threads = PlanesConfig::threads},
      &arguments, stream);
  if (status.ok())
    status = gpu_.launch(kernels_[1],
                         {.blocks = int64_t{fixed_.batch_heads} * fixed_.k_tiles,
                          .threads = config_.threads(),
                          .shared_bytes = config_.planes_shared_bytes()},
                         &arguments, stream);
  if (status.ok() && tensors.grad_query.present())
    status = gpu_.launch(kernels_[2], {.blocks = query_blocks, .threads = PlanesConfig::threads},
                         &arguments, stream);
  return status;
}

std::string Sm90Float32AttentionBackward::description() const {
  return concatenate("backward: tiles of ", config_.keys(), " keys and ", config_.queries,
                     " queries, which 2 warpgroups share by ",
                     config_.split_keys ? "keys" : "products", ", products of two f16 halves");
}

}  // namespace perseid::internal::cuda
