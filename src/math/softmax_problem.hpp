// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax, in numbers: the problem a plan is made for and the arguments of one execution.
#pragma once

#include "math/tensor.hpp"

namespace perseid::internal {

struct SoftmaxProblem {
  bool log = false;
  DType dtype = DType::kF32;      // of input and grad_input
  DType out_dtype = DType::kF32;  // of output and grad_output
  int32_t rank = 1;
  int32_t dim = 0;  // 0..rank-1
  int64_t shape[kMaxDims] = {};
  double scale = 1;
  bool visible = false;
  bool empty_rows_nan = false;

  PERSEID_INLINE int64_t length() const { return shape[dim]; }
  PERSEID_INLINE int64_t rows() const {
    int64_t count = 1;
    for (int32_t i = 0; i < rank; ++i) count *= i == dim ? 1 : shape[i];
    return count;
  }
  // float64 if either side is; else float32.
  PERSEID_INLINE DType compute_dtype() const {
    return dtype == DType::kF64 || out_dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  }
};

// All of the problem's rank. visible: shape, stride 0 where broadcast. lse: size 1 along dim.
struct SoftmaxForward {
  Tensor input, output, visible, lse;
};

struct SoftmaxBackward {
  Tensor grad_output, output, visible, grad_input;
};

}  // namespace perseid::internal
