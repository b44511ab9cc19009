// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_backward_bias.hpp"

#include "cuda/sm90/attention_boxes.hpp"

namespace perseid::internal::cuda {
namespace {

// The gradient of a repeated bias is split (split-K) until there are so many blocks, about one for
// each multiprocessor. Where each batch entry has its own sum, the number of splits depends on one
// entry alone, and sums of whole tiles are not split: their partial sums are too large.
constexpr int64_t kEnoughBlocks = 132, kMostSplits = 64, kMostSplitsOfEntry = 16;

// Bias or its gradient as a TMA box. A repeated dimension has size 1.
BoxedTensor boxed_plane(const Tensor& tensor, int queries) {
  const auto size = [&](int d) { return tensor.stride[d] == 0 ? int64_t{1} : tensor.shape[d]; };
  const auto row = static_cast<int32_t>(kChunk * 2 / size_of(tensor.dtype));
  return {tensor.data,
          tensor.dtype,
          {tensor.shape[3], tensor.shape[2], size(1), size(0), 1},
          {tensor.stride[3], tensor.stride[2], tensor.stride[1], tensor.stride[0], 0},
          {row, queries, 1, 1, 1}};
}

}  // namespace

AttentionBackwardBiasArguments divide_bias(const AttentionProblem& p,
                                           const AttentionBackwardConfig& config) {
  AttentionBackwardBiasArguments bias;
  if (!p.grad_bias) return bias;
  const int64_t* shape = p.bias_shape;
  const int64_t keys = config.of_bias().keys();
  bias.sums_batch = shape[0] != p.batch;
  bias.sums_heads = shape[1] != p.heads;
  bias.sums_queries = shape[2] != p.q_len;
  bias.sums_keys = shape[3] != p.kv_len;
  bias.bias_heads = static_cast<int32_t>(shape[1]);
  bias.bias_q_tiles = static_cast<int32_t>(ceil_div(shape[2], int64_t{config.queries}));
  bias.bias_k_tiles = static_cast<int32_t>(ceil_div(shape[3], keys));
  const int64_t blocks_of_entry = shape[1] * bias.bias_q_tiles * bias.bias_k_tiles;
  const int64_t units = (bias.sums_batch ? p.batch : 1) * (bias.sums_heads ? p.heads : 1) *
                        (bias.sums_queries ? ceil_div(p.q_len, int64_t{config.queries}) : 1) *
                        (bias.sums_keys ? ceil_div(p.kv_len, keys) : 1);
  int64_t most = min(units, kMostSplits);
  if (!bias.sums_batch)
    most = bias.sums_queries || bias.sums_keys ? min(units, kMostSplitsOfEntry) : 1;
  const int64_t wanted = ceil_div(kEnoughBlocks, max(blocks_of_entry, int64_t{1}));
  bias.num_splits = static_cast<int32_t>(max(min(wanted, most), int64_t{1}));
  bias.bias_blocks = static_cast<int32_t>(shape[0] * blocks_of_entry);
  bias.blocks = bias.bias_blocks * bias.num_splits;
  return bias;
}

size_t bytes_of_splits(const AttentionBackwardBiasArguments& bias,
                       const AttentionBackwardConfig& config) {
  if (bias.num_splits == 1) return 0;
  const int rows = bias.sums_queries ? 1 : config.queries;
  const int columns = bias.sums_keys ? 1 : config.of_bias().keys();
  return static_cast<size_t>(int64_t{bias.bias_blocks} * bias.num_splits * rows * columns) *
         sizeof(float);
}

Status map_bias(const Gpu& gpu, const AttentionBackwardConfig& config,
                const AttentionBackward& tensors, AttentionBackwardArguments* arguments) {
  if (config.bias == DType::kNone) return {};
  const BoxedTensor bias = boxed_plane(tensors.bias, config.queries);
  if (!is_mappable(bias)) return {};
  Status status = make_tensor_map(gpu, "attention backward: bias", bias, &arguments->bias_map);
  arguments->bias_mapped = true;
  arguments->bias_batch = tensors.bias.stride[0] != 0;
  arguments->bias_head = tensors.bias.stride[1] != 0;
  if (!status.ok() || !tensors.grad_bias.present()) return status;
  const BoxedTensor gradient = boxed_plane(tensors.grad_bias, config.queries);
  // TMA stores units of 16 bytes: behind the end of a row it may overwrite what follows.
  if (!is_mappable(gradient) || gradient.size[0] * size_of(gradient.dtype) % 16 != 0) return {};
  arguments->grad_bias_mapped = true;
  return make_tensor_map(gpu, "attention backward: grad_bias", gradient, &arguments->grad_bias_map);
}

Status launch_bias(const Gpu& gpu, const Kernel& kernel, const AttentionBackwardConfig& config,
                   const AttentionBackwardArguments& products,
                   const AttentionBackwardBiasArguments& divided, void* stream) {
  AttentionBackwardBiasArguments arguments = divided;
  static_cast<AttentionBackwardProblem&>(arguments) = products;
  arguments.query = products.query;
  arguments.key = products.key;
  arguments.value = products.value;
  arguments.grad_out = products.grad_out;
  arguments.bias_map = products.bias_map;
  arguments.grad_bias_map = products.grad_bias_map;
  arguments.mapped = products.bias_mapped && products.grad_bias_mapped &&
                     arguments.num_splits == 1 && !arguments.sums_queries && !arguments.sums_keys &&
                     !config.accumulate_bias;
  const Launch launch{.blocks = arguments.mapped
                                    ? min(arguments.blocks, gpu.facts().multiprocessors)
                                    : arguments.blocks,
                      .threads = config.of_bias().threads(),
                      .shared_bytes = config.of_bias().unit_shared_bytes()};
  return gpu.launch(kernel, launch, &arguments, stream);
}

}  // namespace perseid::internal::cuda
