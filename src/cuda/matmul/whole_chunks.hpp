// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chunks around the kernels of a product that know nothing of them: in stream order a kernel waits
// for chunks of the operands before the product, or before a part of it, and another one signals
// chunks of the result after it (device/chunk_waits.hpp).
#pragma once

#include "cuda/matmul/matmul_async.hpp"
#include "cuda/runtime/library.hpp"

namespace perseid::internal::cuda {

class WholeChunks {
 public:
  explicit WholeChunks(Gpu& gpu) : gpu_(gpu), chunks_(gpu) {}

  // Loads the kernels.
  Status prepare(const MatmulProblem& problem);
  size_t workspace() const { return chunks_.workspace() + sizeof(uint64_t); }
  // All chunks. product() launches the kernels, which use nothing of this workspace.
  template <class Product>
  Status run(const MatmulArguments& arguments, void* workspace, void* stream,
             const Product& product) const {
    AsyncArguments async;
    Status status = begin(arguments, workspace, stream, &async);
    if (status.ok()) status = await(async, kAll, kAll, true, stream);
    if (status.ok()) status = product();
    if (status.ok()) status = depart(async, kAll, stream);
    return status;
  }

  // For products computed in parts: call begin() for the whole product; then, for each part, call
  // await() for the chunks of a and b that it needs, and depart() for those of c that it completed.
  static constexpr ChunkRange<int32_t> kAll = {0, 0x7fffffff};
  Status begin(const MatmulArguments& arguments, void* workspace, void* stream,
               AsyncArguments* async) const;
  Status await(const AsyncArguments& async, ChunkRange<int32_t> of_a, ChunkRange<int32_t> of_b,
               bool first, void* stream) const;
  Status depart(const AsyncArguments& async, ChunkRange<int32_t> chunks, void* stream) const;

 private:
  Gpu& gpu_;
  MatmulAsync chunks_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
