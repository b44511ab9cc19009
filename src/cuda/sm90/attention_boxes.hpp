// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of attention as TMA loads and stores them.
#pragma once

#include "cuda/attention/arguments.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace perseid::internal::cuda {

// [batch, heads, rows, dim] as {dim, 2^pack heads, rows, heads >> pack, batch}.
BoxedTensor boxed(const Tensor& tensor, int pack, int box_rows);
// [heads, total, dim] as {dim, 1, longest, heads, total + 1}: row r of entry e is row e + r -
// longest of the tensor (device/sm90/attention/map_coordinates.hpp), so the map begins at row
// -longest.
BoxedTensor ragged_boxed(const Tensor& tensor, int64_t longest, int box_rows);

}  // namespace perseid::internal::cuda
