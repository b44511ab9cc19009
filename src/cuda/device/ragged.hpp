// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches: cumulative lengths, and rows from padded to packed tensors and back. Bound by
// memory: each byte is read and written once. sm_80 and up.
#pragma once

#include "math/ragged_rows.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/dependency.hpp"
#endif

namespace perseid::internal::cuda {

struct RaggedCopyArguments {
  RaggedRows rows;
  int64_t pieces = 1;       // of a part, so that long parts keep more than one group busy
  int64_t piece_bytes = 0;  // the last one may be shorter
  int32_t lanes = 32;       // that copy a piece together: a power of two
  bool zero_rest = false;
};

struct RaggedLengthsArguments {
  Tensor lengths;     // int32 or int64 [batch]; uint8 [batch, longest] where rows are counted
  Tensor cu_seqlens;  // int32 or int64 [batch + 1]
  int64_t batch = 0, longest = 0, total = 0;
};

inline constexpr int kRaggedThreads = 256;
inline constexpr int kSummingThreads = 1024;

#if defined(__CUDACC_RTC__)
template <int kBytes>
struct RaggedVector;
template <>
struct RaggedVector<1> {
  using Type = uint8_t;
};
template <>
struct RaggedVector<2> {
  using Type = uint16_t;
};
template <>
struct RaggedVector<4> {
  using Type = uint32_t;
};
template <>
struct RaggedVector<8> {
  using Type = uint2;
};
template <>
struct RaggedVector<16> {
  using Type = uint4;
};

// Vectors of kBytes; addresses, strides and pieces are multiples of it.
template <int kBytes, bool kIntoPacked>
__global__ void __launch_bounds__(kRaggedThreads)
    copy_ragged_rows(const __grid_constant__ RaggedCopyArguments arguments) {
  using Vector = typename RaggedVector<kBytes>::Type;
  constexpr int kInFlight = 4;
  const RaggedRows& rows = arguments.rows;
  const int lanes = arguments.lanes, groups = kRaggedThreads / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t each = rows.parts * arguments.pieces;
  const int64_t items = (kIntoPacked ? rows.total : rows.batch * rows.longest) * each;
  ptx::wait_for_prerequisites();
  for (int64_t item = int64_t{blockIdx.x} * groups + threadIdx.x / lanes; item < items;
       item += int64_t{gridDim.x} * groups) {
    const int64_t row = each == 1 ? item : item / each;
    const RaggedRows::Copy copy = kIntoPacked ? rows.into_packed(row, arguments.zero_rest)
                                              : rows.into_padded(row, arguments.zero_rest);
    if (copy.to == nullptr) continue;
    int64_t to_byte = 0, from_byte = 0, left = rows.run;
    if (each != 1) {
      const int64_t part = item % each / arguments.pieces;
      const int64_t first = item % arguments.pieces * arguments.piece_bytes;
      const int64_t padded = rows.part_offset(rows.padded_part, part);
      const int64_t packed = rows.part_offset(rows.packed_part, part);
      to_byte = (kIntoPacked ? packed : padded) + first;
      from_byte = (kIntoPacked ? padded : packed) + first;
      left -= first;
    }
    const auto vectors = static_cast<int>(min(arguments.piece_bytes, left) / kBytes);
    Vector* const to = reinterpret_cast<Vector*>(copy.to + to_byte);
    const Vector* const from =
        copy.from == nullptr ? nullptr : reinterpret_cast<const Vector*>(copy.from + from_byte);
    for (int v = lane; v < vectors; v += kInFlight * lanes) {
      Vector held[kInFlight] = {};
      if (from != nullptr) {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i)
          if (v + i * lanes < vectors) held[i] = from[v + i * lanes];
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (v + i * lanes < vectors) to[v + i * lanes] = held[i];
    }
  }
}

__device__ __forceinline__ void write_length(const Tensor& lengths, int64_t index, int64_t value) {
  if (lengths.dtype == DType::kI32)
    lengths.as<int32_t>()[index * lengths.stride[0]] = static_cast<int32_t>(value);
  else
    lengths.as<int64_t>()[index * lengths.stride[0]] = value;
}

// The sum over a warp of all lanes up to this one.
__device__ __forceinline__ int64_t sum_up_to(int64_t value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t before = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// How many rows of each sequence count, up to the first one that does not: into
// cu_seqlens[1 + sequence]. A block a sequence.
__global__ void __launch_bounds__(kRaggedThreads)
    count_ragged_rows(const __grid_constant__ RaggedLengthsArguments arguments) {
  ptx::wait_for_prerequisites();
  const Tensor& mask = arguments.lengths;
  const int64_t sequence = blockIdx.x;
  int64_t end = arguments.longest;
  for (int64_t i = threadIdx.x; i < end; i += kRaggedThreads)
    if (mask.as<uint8_t>()[sequence * mask.stride[0] + i * mask.stride[1]] == 0) end = i;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    end = min(end, __shfl_xor_sync(0xffffffffu, end, distance));
  __shared__ int64_t of_warp[kRaggedThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = end;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (const int64_t each : of_warp) end = min(end, each);
  write_length(arguments.cu_seqlens, 1 + sequence, end);
}

// Sums, by one block. Lengths may be cu_seqlens from its second number on: each is read before it
// is overwritten.
__global__ void __launch_bounds__(kSummingThreads)
    sum_ragged_lengths(const __grid_constant__ RaggedLengthsArguments arguments) {
  ptx::wait_for_prerequisites();
  __shared__ int64_t of_warp[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int64_t before = 0;  // the sum of all sequences of earlier rounds
  if (threadIdx.x == 0) write_length(arguments.cu_seqlens, 0, 0);
  for (int64_t first = 0; first < arguments.batch; first += kSummingThreads) {
    const int64_t sequence = first + threadIdx.x;
    int64_t length = 0;
    if (sequence < arguments.batch)
      length = clamp(read_length(arguments.lengths, sequence), int64_t{0}, arguments.longest);
    const int64_t in_warp = sum_up_to(length, lane);
    if (lane == 31) of_warp[warp] = in_warp;
    __syncthreads();
    const int64_t warps = sum_up_to(of_warp[lane], lane);
    const int64_t warps_before = __shfl_sync(0xffffffffu, warps, warp - 1);
    const int64_t sum = before + (warp == 0 ? 0 : warps_before) + in_warp;
    if (sequence < arguments.batch)
      write_length(arguments.cu_seqlens, 1 + sequence, min(sum, arguments.total));
    before += __shfl_sync(0xffffffffu, warps, 31);
    __syncthreads();  // of_warp is written again
  }
}
#endif

}  // namespace perseid::internal::cuda
