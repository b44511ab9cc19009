// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of ranks on GPUs share: matrices in memory of a GPU, and the products that the
// operations of ranks must equal.
#pragma once

#include <optional>

#include "collective_tools.hpp"

namespace collective_tools {

using perseid::Context;
using perseid::Memory;

// A matrix in memory of the context's GPU.
class OnGpu {
 public:
  OnGpu(const Context& context, int32_t gpu, const Matrix& matrix)
      : context_(&context),
        gpu_(gpu),
        shape_(matrix.shape),
        dtype_(matrix.dtype),
        memory_(context, std::max<size_t>(matrix.bytes.size(), 1)) {
    set(matrix);
  }
  void set(const Matrix& matrix) const {
    context_->copy(memory_.data(), matrix.bytes.data(), matrix.bytes.size());
  }
  Matrix get() const {
    Matrix matrix(shape_, dtype_);
    context_->copy(matrix.bytes.data(), memory_.data(), matrix.bytes.size());
    return matrix;
  }
  Tensor tensor() const {
    return Tensor(memory_.data(), dtype_, Dims(std::span(shape_)), {}, {kDLCUDA, gpu_});
  }

 private:
  const Context* context_;
  int32_t gpu_;
  std::vector<int64_t> shape_;
  DType dtype_;
  Memory memory_;
};

// A workspace in memory of the GPU.
class GpuWorkspace {
 public:
  template <class Plan>
  GpuWorkspace(const Context& context, const Plan& plan,
               perseid::Direction direction = perseid::Direction::kForward)
      : memory_(context, std::max<size_t>(plan.workspace_size(direction), 1)), bytes_(memory_) {}
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Memory memory_;
  std::span<std::byte> bytes_;
};

// c = a b + bias by the plain product of this GPU.
inline Matrix gpu_product(const Context& context, int32_t gpu, const Matrix& a, const Matrix& b,
                          DType out_dtype, const Matrix* bias = nullptr) {
  const bool batched = a.shape.size() == 3;
  const int64_t batch = batched ? a.shape[0] : 1;
  const int64_t m = a.shape[a.shape.size() - 2], k = a.shape.back(), n = b.shape.back();
  const perseid::Matmul matmul(context, {.dtype = a.dtype,
                                         .out_dtype = out_dtype,
                                         .batch = batch,
                                         .m = m,
                                         .n = n,
                                         .k = k,
                                         .bias = bias != nullptr});
  const OnGpu left(context, gpu, a), right(context, gpu, b);
  const OnGpu out(
      context, gpu,
      Matrix(batched ? std::vector<int64_t>{batch, m, n} : std::vector<int64_t>{m, n}, out_dtype));
  std::optional<OnGpu> added;
  if (bias != nullptr) added.emplace(context, gpu, *bias);
  const GpuWorkspace workspace(context, matmul);
  matmul.execute(nullptr,
                 {.a = left.tensor(),
                  .b = right.tensor(),
                  .bias = added ? added->tensor() : Tensor(),
                  .c = out.tensor()},
                 workspace.bytes());
  context.synchronize();
  return out.get();
}

// Rows [from, to) of a matrix, of each entry of its batch; or columns.
inline Matrix part_of(const Matrix& whole, int32_t dim, int64_t from, int64_t to) {
  return copy_of(whole.tensor().slice(dim, from, to), whole.dtype);
}

}  // namespace collective_tools
