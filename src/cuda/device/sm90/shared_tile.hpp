// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A tile in shared memory as TMA reads and writes it with the 128-byte swizzle, and as wgmma takes
// it for an operand.
//
//   [chunk of 128 bytes][row][128 bytes]
//
// A row of a chunk has eight pieces of 16 bytes; piece p of row r is stored at position p ^ (r %
// 8). Eight rows of one piece then lie in eight different groups of four banks, for ldmatrix,
// stmatrix and threads that read a column. Eight rows are the swizzle's period: the tile begins at
// a multiple of 1024 bytes, and Rows is a multiple of 8, so that every chunk does.
//
//   position   0 1 2 3 4 5 6 7
//   row 0      0 1 2 3 4 5 6 7
//   row 1      1 0 3 2 5 4 7 6
//   row 2      2 3 0 1 6 7 4 5   ...
#pragma once

#include "cuda/device/ptx/matrix_descriptor.hpp"
#include "math/portable.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/tma.hpp"
#endif

namespace perseid::internal::cuda {

// Bytes from the beginning of a row of 128 bytes to one of its eight pieces.
PERSEID_INLINE constexpr int swizzled_piece(int row, int piece) { return (piece ^ row % 8) << 4; }

// Rows of 128 or 64 bytes alone, with the swizzle of as many bytes: piece p of row r is stored at
// position p ^ (r % 8), of 64 bytes at p ^ (r / 2 % 4).
template <int Rows, int RowBytes>
struct SwizzledRows {
  uint32_t base;  // shared memory address, a multiple of 8 * RowBytes

  static_assert(RowBytes == 128 || RowBytes == 64);
  static constexpr int kBytes = Rows * RowBytes;
  static constexpr int kPieces = RowBytes / 16;

  PERSEID_INLINE constexpr uint32_t piece(int row, int piece) const {
    return base + row * RowBytes + ((piece ^ row * RowBytes / 128 % kPieces) << 4);
  }
  // From the address of piece p of a row to that of piece p + pieces, if they have no bit in
  // common.
  PERSEID_INLINE static constexpr uint32_t advance_piece(uint32_t address, int pieces) {
    return address ^ static_cast<uint32_t>(pieces << 4);
  }
};

// `Columns` elements a row; the last chunk may be in use in part.
template <int Rows, int Columns, int ElementBytes = 2>
struct SharedTile {
  uint32_t base;  // shared memory address

  static_assert(Rows % 8 == 0 && 16 % ElementBytes == 0);
  static constexpr int kRows = Rows;
  static constexpr int kChunkColumns = 128 / ElementBytes;
  static constexpr int kPieceColumns = 16 / ElementBytes;
  static constexpr int kChunks = (Columns + kChunkColumns - 1) / kChunkColumns;
  static constexpr int kChunkBytes = Rows * 128;
  static constexpr int kBytes = kChunks * kChunkBytes;

  // ---- Offsets from the tile's beginning, for addresses and pointers alike ----

  // The piece `piece` of a chunk's row, 0 to 7.
  PERSEID_INLINE static constexpr int offset(int chunk, int row, int piece) {
    return chunk * kChunkBytes + row * 128 + swizzled_piece(row, piece);
  }
  // The piece that is number `piece` of the whole row.
  PERSEID_INLINE static constexpr int piece_offset(int row, int piece) {
    return offset(piece / 8, row, piece % 8);
  }
  PERSEID_INLINE static constexpr int element_offset(int row, int column) {
    return piece_offset(row, column / kPieceColumns) + column % kPieceColumns * ElementBytes;
  }

  // ---- Addresses ----

  PERSEID_INLINE constexpr uint32_t chunk(int index) const { return base + index * kChunkBytes; }
  PERSEID_INLINE constexpr uint32_t piece(int row, int piece) const {
    return base + piece_offset(row, piece);
  }

  // From the address of piece p of a row to that of piece p + pieces, if p and pieces have no bit
  // in common: one XOR instead of the whole swizzle.
  PERSEID_INLINE static constexpr uint32_t advance_piece(uint32_t address, int pieces) {
    return (address ^ pieces % 8 << 4) + pieces / 8 * kChunkBytes;
  }

  // ---- Operands of wgmma ----

  // K along a row. Step k takes 32 bytes of K: 16 elements of 16 bits.
  struct KMajor {
    uint64_t first;
    PERSEID_INLINE constexpr uint64_t step(int k) const {
      return ptx::advance_descriptor(first, k / 4 * kChunkBytes + k % 4 * 32);
    }
  };
  // From `row` on, a multiple of 8.
  PERSEID_INLINE constexpr KMajor k_major(int row = 0) const {
    return {ptx::make_descriptor(base + row * 128)};
  }

  // K across the rows, M or N along them; elements of 16 bits. Step k takes rows 16 k to 16 k + 15.
  struct MNMajor {
    uint64_t first;
    PERSEID_INLINE constexpr uint64_t step(int k) const {
      return ptx::advance_descriptor(first, k * 16 * 128);
    }
  };
  // From `column` on, a multiple of 16; beyond 64 columns, of 64.
  PERSEID_INLINE constexpr MNMajor mn_major(int column = 0) const {
    static_assert(ElementBytes == 2, "wgmma transposes elements of 16 bits alone");
    return {ptx::make_descriptor(
        base + column / kChunkColumns * kChunkBytes + column % kChunkColumns * ElementBytes,
        kChunkBytes)};
  }

#if defined(__CUDACC_RTC__)
  // One thread issues a TMA load of the whole tile, a TMA box of Rows rows and 128 bytes for each
  // chunk. `at`: the coordinates of the first one, in elements of ElementBytes.
  template <bool kOnce = false>
  __device__ __forceinline__ void load(const TensorMap& map, uint32_t barrier,
                                       const int (&at)[5]) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      ptx::tma_load<kOnce>(chunk(i), map, barrier,
                           {at[0] + i * kChunkColumns, at[1], at[2], at[3], at[4]});
  }
#endif
};

}  // namespace perseid::internal::cuda
