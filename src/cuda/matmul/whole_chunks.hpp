// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chunks around the kernels of a product that know nothing of them: in stream order a kernel waits
// for all chunks of the operands before the product, and another one signals all chunks of the
// result after it (device/chunk_waits.hpp).
#pragma once

#include "cuda/matmul/matmul_async.hpp"
#include "cuda/runtime/library.hpp"

namespace perseid::internal::cuda {

class WholeChunks {
 public:
  explicit WholeChunks(Gpu& gpu) : gpu_(gpu), chunks_(gpu) {}

  // Loads the kernels.
  Status prepare(const MatmulProblem& problem);
  size_t workspace() const { return chunks_.workspace(); }
  // product() launches the kernels, which use nothing of this workspace.
  template <class Product>
  Status run(const MatmulArguments& arguments, void* workspace, void* stream,
             const Product& product) const {
    AsyncArguments async;
    Status status = await(arguments, workspace, stream, &async);
    if (status.ok()) status = product();
    if (status.ok()) status = depart(async, stream);
    return status;
  }

 private:
  Status await(const MatmulArguments& arguments, void* workspace, void* stream,
               AsyncArguments* async) const;
  Status depart(const AsyncArguments& async, void* stream) const;

  Gpu& gpu_;
  MatmulAsync chunks_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
