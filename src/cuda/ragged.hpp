// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches on a GPU. The first call of each function loads its kernels.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/ragged.hpp"
#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

inline constexpr const char* kRaggedHeader = "cuda/device/ragged.hpp";
// Name expressions. `vector`: bytes that a thread moves at once.
std::vector<std::string> ragged_copy_kernels(int32_t vector);
std::vector<std::string> ragged_lengths_kernels();

// Row by row, into packed or into padded. `element`: bytes, which every address and stride is a
// multiple of.
Status copy_ragged_rows(Gpu& gpu, const RaggedRows& rows, int64_t element, bool into_packed,
                        bool zero_rest, void* stream);
// Writes cu_seqlens from lengths, or from a mask of rank 2.
Status sum_ragged_lengths(Gpu& gpu, const RaggedLengthsArguments& arguments, void* stream);

}  // namespace perseid::internal::cuda
