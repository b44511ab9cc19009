// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensor maps: what the copy engine of sm_90 has to know of a tensor, made on the host for each
// launch and passed to the kernel by value.
#pragma once

#include "cuda/device/tensor_map.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::cuda {

inline constexpr int kMapDims = 5;

// A tensor of f16, bf16 or f32, the fastest dimension first, which has stride 1. Strides are in
// elements. Boxes are what one load or store moves; their rows are 128 bytes long.
struct BoxedTensor {
  void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t size[kMapDims] = {};
  int64_t stride[kMapDims] = {};
  int32_t box[kMapDims] = {};
  // Nothing beside a box is brought to the L2 cache with it: a twentieth faster where all that
  // takes the time is to read every box once, a hundredth slower where boxes are read again.
  bool read_once = false;
};

// Whether the copy engine can reach it.
bool is_mappable(const BoxedTensor& tensor);
// The context must be current. Fails, with `name` in the sentence, where the copy engine cannot
// reach the tensor: addresses and strides have to be multiples of 16 bytes.
Status make_tensor_map(const Gpu& gpu, const char* name, const BoxedTensor& tensor, TensorMap* map);

}  // namespace perseid::internal::cuda
