// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the launches of matmul's kernels on sm_90 share, whatever a and b are made of.
#pragma once

#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// What TMA loads and stores.
struct Sm90MatmulTensors {
  BoxedTensor a, b, c = {}, c0 = {};

  bool are_mappable() const {
    return is_mappable(a) && is_mappable(b) && is_mappable(c) && is_mappable(c0);
  }
};

// Rows of `inner` elements, `outer` of them for each batch entry. With a batch stride of 0 one
// serves all.
BoxedTensor boxed_rows(const void* data, DType dtype, int64_t inner, int64_t outer, int64_t batch,
                       int64_t stride, int64_t batch_stride, int box_outer);
// c and c0; c0 is c where it is not read.
void box_result(const MatmulProblem& problem, const MatmulLaunch& given,
                Sm90MatmulTensors* tensors);
// TMA stores whole words: a row of c is a multiple of 16 bytes long, or padded.
bool has_whole_rows(const MatmulProblem& problem, const MatmulLaunch& given);

// The arguments of a launch but for operands and chunks.
Sm90MatmulArguments sm90_matmul_arguments(const MatmulProblem& problem,
                                          const Sm90MatmulConfig& config,
                                          const MatmulLaunch& given);
// The context must be current.
Status encode_maps(const Gpu& gpu, const MatmulLaunch& given, const Sm90MatmulTensors& tensors,
                   Sm90MatmulArguments* arguments);
// `spared`: multiprocessors that get no block.
Status launch_sm90_matmul(const Gpu& gpu, const Kernel& kernel, const Sm90MatmulConfig& config,
                          const Sm90MatmulArguments& arguments, int32_t spared, void* stream);

}  // namespace perseid::internal::cuda
