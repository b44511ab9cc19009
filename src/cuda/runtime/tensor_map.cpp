// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/tensor_map.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kUnitBytes = 16, kLongestStrideBytes = int64_t{1} << 40;

bool is_stride(int64_t stride, int64_t element_bytes) {
  return stride >= 0 && stride < kLongestStrideBytes &&
         stride * element_bytes < kLongestStrideBytes && stride * element_bytes % kUnitBytes == 0;
}

MapType type_of(DType dtype) {
  return size_of(dtype) == 1     ? MapType::kU8
         : dtype == DType::kF32  ? MapType::kF32
         : dtype == DType::kBF16 ? MapType::kBF16
                                 : MapType::kF16;
}

MapSwizzle swizzle_of(int32_t bytes) {
  return bytes == 128  ? MapSwizzle::kBytes128
         : bytes == 64 ? MapSwizzle::kBytes64
                       : MapSwizzle::kNone;
}

}  // namespace

bool is_mappable(const BoxedTensor& tensor) {
  bool fits = reinterpret_cast<uintptr_t>(tensor.data) % kUnitBytes == 0;
  for (int d = 0; d < kMapDims; ++d)
    fits = fits && tensor.size[d] > 0 &&
           (tensor.size[d] == 1 ||
            (d == 0 ? tensor.stride[0] == 1 : is_stride(tensor.stride[d], size_of(tensor.dtype))));
  return fits;
}

Status make_tensor_map(const Gpu& gpu, const char* name, const BoxedTensor& tensor,
                       TensorMap* map) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address % 16 != 0)
    return Status::error(PERSEID_UNSUPPORTED, name, " begins ", address % 16,
                         " bytes after a multiple of 16, expected a multiple of 16; copy it there");
  if (tensor.size[0] > 1 && tensor.stride[0] != 1)
    return Status::error(PERSEID_UNSUPPORTED, name, " has stride ", tensor.stride[0],
                         " along its rows, expected 1; make its rows contiguous");
  const int64_t bytes = max(size_of(tensor.dtype), int64_t{1}), unit = kUnitBytes / bytes;
  uint64_t size[kMapDims], stride_bytes[kMapDims];
  uint32_t box[kMapDims], step[kMapDims];
  for (int d = 0; d < kMapDims; ++d) {
    // The stride of a dimension of size 1 is never used, but has to be a valid one.
    const int64_t stride = d == 0 ? 1 : tensor.size[d] > 1 ? tensor.stride[d] : unit;
    if (d > 0 && !is_stride(stride, bytes))
      return Status::error(PERSEID_UNSUPPORTED, name, " has a stride of ", stride,
                           " elements, expected multiples of ", unit, " from 0 to ",
                           kLongestStrideBytes / bytes - unit, "; copy it into such a layout");
    size[d] = static_cast<uint64_t>(tensor.size[d]);
    stride_bytes[d] = static_cast<uint64_t>(stride * bytes);
    box[d] = static_cast<uint32_t>(tensor.box[d]);
    step[d] = 1;
  }
  return check(
      gpu.driver(),
      gpu.driver().encode_map(
          map, type_of(tensor.dtype), kMapDims, tensor.data, size, stride_bytes + 1, box, step,
          MapInterleave::kNone, swizzle_of(tensor.swizzle),
          tensor.read_once ? MapPromotion::kBytes128 : MapPromotion::kBytes256, MapFill::kZeros),
      "encoding a tensor map for TMA", "see that no dimension is longer than 2^32");
}

}  // namespace perseid::internal::cuda
