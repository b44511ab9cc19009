// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The dropout contract of math/philox.hpp, whole tiles at a time. For attention: dropout_block; for
// the mask that callers see: dropout_mask.
#pragma once

#include "cpu/simd/isa.hpp"
#include "math/philox.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// What Philox gives the 32 lanes of a tile: word[w][lane], in the low half.
struct DropoutWords {
  alignas(64) uint64_t word[4][32];
};

// The bit of the lane in the first word of the counter.
struct LaneBits {
  alignas(64) uint64_t of[32] = {};
  constexpr LaneBits() {
    for (uint64_t lane = 0; lane < 32; ++lane) of[lane] = lane << 27;
  }
};
inline constexpr LaneBits kLaneBits;

// Every lane holds 32 bits in 64, so that a product needs no shuffling: what is left in the high
// half of a word is never read. Two vectors go together, to hide the latency of the products.
PERSEID_INLINE void dropout_words(const Dropout& dropout, int64_t batch_head, int64_t tile_row,
                                  int64_t tile_column, DropoutWords& out) {
  constexpr int kVectors = U64::kLanes == 1 ? 1 : 2;
  const PhiloxBlock counter = dropout_counter(dropout, batch_head, tile_row, tile_column, 0);
  for (int lane = 0; lane < 32; lane += kVectors * U64::kLanes) {
    U64::Reg word[kVectors][4];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      word[v][0] = U64::exclusive_or(U64::load(kLaneBits.of + lane + v * U64::kLanes),
                                     U64::set1(counter.word[0]));
#pragma GCC unroll 4
      for (int w = 1; w < 4; ++w) word[v][w] = U64::set1(counter.word[w]);
    }
    uint32_t key0 = static_cast<uint32_t>(dropout.seed);
    uint32_t key1 = static_cast<uint32_t>(dropout.seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        U64::Reg* x = word[v];
        const U64::Reg product0 = U64::multiply_low(x[0], U64::set1(kPhiloxMultiplier0));
        const U64::Reg product1 = U64::multiply_low(x[2], U64::set1(kPhiloxMultiplier1));
        x[0] = U64::exclusive_or(U64::exclusive_or(U64::high(product1), x[1]), U64::set1(key0));
        x[1] = product1;
        x[2] = U64::exclusive_or(U64::exclusive_or(U64::high(product0), x[3]), U64::set1(key1));
        x[3] = product0;
      }
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int w = 0; w < 4; ++w) U64::store(out.word[w] + lane + v * U64::kLanes, word[v][w]);
    }
  }
}

// keep[r * keep_row + c] = 1 where (16 * tile_row + r, 32 * tile_column + c) is kept, else 0, for
// 16 rows and 32 columns.
//
// A row's 32 bytes are spread over four lanes, 2 bytes for every 8 columns: 16-bit unit g of a lane
// holds columns 8 g + 2 (lane % 4) and the next. So the units are gathered by g, whereupon the four
// lanes of a row lie together and move as 8 bytes.
PERSEID_INLINE void dropout_tile(const Dropout& dropout, int64_t batch_head, int64_t tile_row,
                                 int64_t tile_column, uint8_t* keep, int64_t keep_row) {
  DropoutWords words;
  dropout_words(dropout, batch_head, tile_row, tile_column, words);
  alignas(64) uint16_t unit[8][32];
  for (int g = 0; g < 8; ++g)
    for (int lane = 0; lane < 32; ++lane)
      unit[g][lane] = static_cast<uint16_t>(words.word[g / 2][lane] >> (g % 2 * 16));
  uint8_t* bytes = reinterpret_cast<uint8_t*>(unit);
  const uint8_t last_kept = static_cast<uint8_t>(dropout.threshold - 1);
  for (int i = 0; i < 512; ++i) bytes[i] = bytes[i] <= last_kept;
  for (int r = 0; r < 16; ++r)
    for (int g = 0; g < 4; ++g)
      __builtin_memcpy(keep + r * keep_row + g * 8, &unit[r / 8 * 4 + g][r % 8 * 4], 8);
}

// keep[r * keep_row + c] = 1 where element (row + r, column + c) of the scores is kept, else 0, for
// r < rows and c < columns. row and column begin a tile: they are multiples of 16 and 32. Whole
// tiles are written: keep has room for rows and columns rounded up to them.
inline void dropout_block(const Dropout& dropout, int64_t batch_head, int64_t row, int64_t rows,
                          int64_t column, int64_t columns, uint8_t* keep, int64_t keep_row) {
  for (int64_t i = 0; i < rows; i += kDropoutTileRows)
    for (int64_t j = 0; j < columns; j += kDropoutTileColumns)
      dropout_tile(dropout, batch_head, (row + i) / kDropoutTileRows,
                   (column + j) / kDropoutTileColumns, keep + i * keep_row + j, keep_row);
}

// A block of the mask of one (batch, head), from (row, column), which begin a tile: 1 where kept.
// Strides in bytes.
inline void dropout_mask(const Dropout& dropout, int64_t batch_head, int64_t row, int64_t rows,
                         int64_t column, int64_t columns, uint8_t* mask, int64_t row_stride,
                         int64_t column_stride) {
  for (int64_t i = 0; i < rows; i += kDropoutTileRows) {
    for (int64_t j = 0; j < columns; j += kDropoutTileColumns) {
      uint8_t tile[kDropoutTileRows * kDropoutTileColumns];
      dropout_tile(dropout, batch_head, (row + i) / kDropoutTileRows,
                   (column + j) / kDropoutTileColumns, tile, kDropoutTileColumns);
      const int64_t height = min(kDropoutTileRows, rows - i);
      const int64_t width = min(kDropoutTileColumns, columns - j);
      for (int64_t r = 0; r < height; ++r)
        for (int64_t c = 0; c < width; ++c)
          mask[(i + r) * row_stride + (j + c) * column_stride] = tile[r * kDropoutTileColumns + c];
    }
  }
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
