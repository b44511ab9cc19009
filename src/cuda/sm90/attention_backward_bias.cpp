// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_backward_bias.hpp"

#include "cuda/sm90/attention_boxes.hpp"

namespace perseid::internal::cuda {
namespace {

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
                   const AttentionBackwardArguments& products, const BiasTiles& tiles,
                   void* stream) {
  AttentionBackwardBiasArguments arguments;
  static_cast<AttentionBackwardProblem&>(arguments) = products;
  static_cast<BiasTiles&>(arguments) = tiles;
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
