// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The mask of attention's dropout, written to a tensor: a warp takes a tile of the contract in
// math/philox.hpp, a lane its 16 elements. sm_80 and up.
#pragma once

#include "math/philox.hpp"
#include "math/tensor.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/dependency.hpp"
#endif

namespace perseid::internal::cuda {

struct DropoutMaskArguments {
  Tensor mask;  // uint8 [batch, heads, q_len, kv_len]
  Dropout dropout;
};

inline constexpr int kDropoutMaskWarps = 8;

#if defined(__CUDACC_RTC__)
__global__ void fill_dropout_mask(const __grid_constant__ DropoutMaskArguments arguments) {
  ptx::wait_for_prerequisites();
  const Tensor& mask = arguments.mask;
  const Dropout& dropout = arguments.dropout;
  const int64_t tile_columns = ceil_div(mask.shape[3], kDropoutTileColumns);
  const int64_t tile_rows = ceil_div(mask.shape[2], kDropoutTileRows);
  const int64_t tiles = mask.shape[0] * mask.shape[1] * tile_rows * tile_columns;
  const auto lane = static_cast<uint32_t>(threadIdx.x % 32);
  const int64_t warps = int64_t{gridDim.x} * kDropoutMaskWarps;
  for (int64_t tile = int64_t{blockIdx.x} * kDropoutMaskWarps + threadIdx.x / 32; tile < tiles;
       tile += warps) {
    const int64_t tile_column = tile % tile_columns;
    const int64_t tile_row = tile / tile_columns % tile_rows;
    const int64_t batch_head = tile / tile_columns / tile_rows;
    const PhiloxBlock block =
        philox4x32(dropout_counter(dropout, batch_head, tile_row, tile_column, lane),
                   static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32));
    uint8_t* const matrix = mask.as<uint8_t>() + batch_head / mask.shape[1] * mask.stride[0] +
                            batch_head % mask.shape[1] * mask.stride[1];
#pragma unroll
    for (int byte = 0; byte < 16; ++byte) {
      const int64_t row = tile_row * kDropoutTileRows + byte / 8 * 8 + lane / 4;
      const int64_t column =
          tile_column * kDropoutTileColumns + byte % 8 / 2 * 8 + lane % 4 * 2 + byte % 2;
      if (row < mask.shape[2] && column < mask.shape[3])
        matrix[row * mask.stride[2] + column * mask.stride[3]] =
            ((block.word[byte / 4] >> (8 * (byte % 4))) & 0xffu) < dropout.threshold;
    }
  }
}
#endif

}  // namespace perseid::internal::cuda
