// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Copies within a GPU by one kernel, the host side. The kernel is device/ranks/copy_rows.hpp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cuda/device/ranks/copy_rows.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::cuda {

inline constexpr const char* kCopyRowsHeader = "cuda/device/ranks/copy_rows.hpp";
// Name expressions of the kernels, with and without vectors.
std::vector<std::string> copy_rows_kernels();

// Tensors of 3 dimensions of the same shape and type, whose last dimension is contiguous.
struct TensorCopy {
  Tensor from, to;
  bool padded = false;  // zeros may follow the last dimension of `to`, up to 16 bytes
};
// Before copy_rows(), where that must not load kernels.
Status load_copy_rows(Gpu& gpu);
// Any number of them, in few launches.
Status copy_rows(Gpu& gpu, std::span<const TensorCopy> copies, void* stream);

}  // namespace perseid::internal::cuda
