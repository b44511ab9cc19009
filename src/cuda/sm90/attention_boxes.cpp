// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_boxes.hpp"

namespace perseid::internal::cuda {

BoxedTensor boxed(const Tensor& tensor, int pack, int box_rows) {
  const int64_t packed = int64_t{1} << pack;
  return {tensor.data,
          tensor.dtype,
          {tensor.shape[3], packed, tensor.shape[2], tensor.shape[1] >> pack, tensor.shape[0]},
          {tensor.stride[3], tensor.stride[1], tensor.stride[2], tensor.stride[1] << pack,
           tensor.stride[0]},
          {kChunk, 1 << pack, box_rows >> pack, 1, 1}};
}

BoxedTensor ragged_boxed(const Tensor& tensor, int64_t longest, int box_rows) {
  constexpr int64_t kAnyStride = 8;  // of a single row: unused, but must be valid
  const int64_t total = tensor.shape[1];
  const int64_t stride = total > 1 ? tensor.stride[1] : kAnyStride;
  const auto first = reinterpret_cast<uintptr_t>(tensor.data) -
                     static_cast<uintptr_t>(longest * stride * size_of(tensor.dtype));
  return {reinterpret_cast<void*>(first),
          tensor.dtype,
          {tensor.shape[2], 1, longest, tensor.shape[0], total + 1},
          {tensor.stride[2], 0, stride, tensor.stride[0], stride},
          {kChunk, 1, box_rows, 1, 1}};
}

}  // namespace perseid::internal::cuda
