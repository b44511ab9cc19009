// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/tensor_map.hpp"

namespace perseid::cuda {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kUnit = 16 / kElementBytes;
constexpr int64_t kLongestStride = (int64_t{1} << 40) / kElementBytes;

}  // namespace

Status make_tensor_map(const Gpu& gpu, const char* name, const BoxedTensor& tensor,
                       TensorMap* map) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address % 16 != 0)
    return Status::error(PERSEID_UNSUPPORTED, name, " begins ", address % 16,
                         " bytes after a multiple of 16, expected a multiple of 16; copy it there, "
                         "or choose another implementation");
  if (tensor.size[0] > 1 && tensor.stride[0] != 1)
    return Status::error(PERSEID_UNSUPPORTED, name, " has stride ", tensor.stride[0],
                         " along its rows, expected 1; make its rows contiguous, or choose another "
                         "implementation");
  uint64_t size[kMapDims], stride_bytes[kMapDims];
  uint32_t box[kMapDims], step[kMapDims];
  for (int d = 0; d < kMapDims; ++d) {
    // The stride of a dimension of size 1 is never used, but has to be a valid one.
    const int64_t stride = d == 0 ? 1 : tensor.size[d] > 1 ? tensor.stride[d] : kUnit;
    if (d > 0 && (stride <= 0 || stride % kUnit != 0 || stride >= kLongestStride))
      return Status::error(PERSEID_UNSUPPORTED, name, " has a stride of ", stride,
                           " elements, expected multiples of ", kUnit, " from ", kUnit, " to ",
                           kLongestStride - kUnit,
                           "; copy it into such a layout, or choose another implementation");
    size[d] = static_cast<uint64_t>(tensor.size[d]);
    stride_bytes[d] = static_cast<uint64_t>(stride * kElementBytes);
    box[d] = static_cast<uint32_t>(tensor.box[d]);
    step[d] = 1;
  }
  const MapType type = tensor.dtype == DType::kBF16 ? MapType::kBF16 : MapType::kF16;
  return check(gpu.driver(),
               gpu.driver().encode_map(map, type, kMapDims, tensor.data, size, stride_bytes + 1,
                                       box, step, MapInterleave::kNone, MapSwizzle::kBytes128,
                                       MapPromotion::kBytes256, MapFill::kZeros),
               "describing a tensor to the GPU's copy engine",
               "see that no dimension is longer than 2^32");
}

}  // namespace perseid::cuda
