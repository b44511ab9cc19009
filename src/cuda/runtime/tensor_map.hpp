// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensor maps, the descriptors of tensors for TMA: encoded on the host for each launch and passed
// to the kernel by value.
#pragma once

#include "cuda/device/tensor_map.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::cuda {

inline constexpr int kMapDims = 5;

// A tensor of 8 bits, f16, bf16 or f32 and the box that one TMA load or store moves. The fastest
// dimension comes first and has stride 1; strides are in elements. The rows of a box are as long as
// the period of its swizzle.
struct BoxedTensor {
  void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t size[kMapDims] = {};
  int64_t stride[kMapDims] = {};
  int32_t box[kMapDims] = {};
  // L2 promotion of 128 bytes instead of 256: 5 % faster for a kernel that is bound by reading
  // every box once, 1 % slower where boxes are read again.
  bool read_once = false;
  // Bytes: 128, 64, or 0: a box lies in shared memory as in the tensor, with rows of any length.
  int32_t swizzle = 128;
};

// Whether TMA can load and store it.
bool is_mappable(const BoxedTensor& tensor);
// The context must be current. Fails, with `name` in the sentence, if TMA cannot load the tensor:
// addresses and strides have to be multiples of 16 bytes.
Status make_tensor_map(const Gpu& gpu, const char* name, const BoxedTensor& tensor, TensorMap* map);

}  // namespace perseid::internal::cuda
