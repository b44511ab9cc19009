// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Planes of f16 for attention in float32, the host side: where they lie in the workspace, and the
// launch that writes them. The kernel is device/portable/attention/planes.hpp.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/split/truncation.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Rows of planes: of so many numbers, in chunks, their common exponent, and the share that sums of
// products over a chunk lose (split/truncation.hpp).
struct PlaneLength {
  int32_t length, chunk;
  int32_t common = 0;
  float loss = 0;
};

class AttentionPlanes {
 public:
  AttentionPlanes() = default;
  // Planes of query (times `query_scale`), key and value, and of grad_out if `backward`. Those of
  // query and grad_out also have what the products lose.
  AttentionPlanes(const AttentionProblem& problem, PlaneLength key, PlaneLength value,
                  double query_scale, bool backward = false);

  size_t workspace() const { return bytes_; }  // multiples of 16
  int64_t blocks() const { return blocks_; }
  int64_t query_blocks() const { return fixed_.first_blocks; }  // the first ones
  std::string kernel() const;                                   // its name expression
  PlanesConfig config() const { return {max(key_.length, value_.length)}; }
  // Returns the arguments of an execution. grad_out is null in forward. The workspace is aligned to
  // 16 bytes.
  PlanesArguments bind(const Tensor& query, const Tensor& key, const Tensor& value,
                       const Tensor* grad_out, std::byte* workspace) const;

 private:
  PlaneLength key_{}, value_{};
  PlanesArguments fixed_;
  int64_t entries_[2] = {};  // of the pairs: queries, keys
  int64_t blocks_ = 0;
  size_t bytes_ = 0;
};

// The rows of a tensor, and whether they are read 16 bytes at a time.
void bind_rows(const Tensor& tensor, PlanesOfRows* rows);
// The planes as rows of 16-bit elements.
RowsInMemory rows_of_planes(const PairsOfRows& pairs, const PlanesOfRows& planes);

}  // namespace perseid::internal::cuda
