// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), and the dropout contract built on it.
//
// Whether attention keeps the score of (batch, head, row, column) depends on nothing but those
// four, the seed and the offset. The score matrix is cut into tiles of 16 rows x 32 columns. A tile
// has 32 lanes; one Philox call gives a lane 16 bytes, one for each of its 16 elements:
//
//   lane    = (row % 8) * 4 + (column % 8) / 2
//   counter = { column / 32 | lane << 27,  row / 16,  batch * heads + head,  offset }     key =
//   seed byte    = (row / 8 % 2) * 8 + (column / 8 % 4) * 2 + column % 2,  little-endian within the
//   four words
//
// This is the accumulator layout of four adjacent 16x8 tensor-core tiles, so a GPU thread uses its
// own bytes alone. An element is kept where its byte is below the threshold t =
// max(1, round(256 * keep probability)); kept values are scaled by 256 / t, which makes the
// expectation exact.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal {

struct PhiloxBlock {
  uint32_t word[4];
};

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

PERSEID_INLINE PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter.word[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

// What the dropout of one call needs. threshold 256 keeps everything.
struct Dropout {
  uint32_t threshold = 256;
  uint64_t seed = 0;
  uint32_t offset = 0;
  // Where not null, {seed, offset} are there instead, in memory that only kernels of a GPU read.
  const uint64_t* numbers = nullptr;

  PERSEID_INLINE bool enabled() const { return threshold < 256; }
  // 256 / t: what a kept value is multiplied by.
  PERSEID_INLINE double rescale() const { return 256.0 / threshold; }
};

// probability: of dropping, in [0, 1).
PERSEID_INLINE uint32_t dropout_threshold(double probability) {
  const int32_t rounded = static_cast<int32_t>(256.0 * (1.0 - probability) + 0.5);
  return static_cast<uint32_t>(clamp(rounded, 1, 256));
}

inline constexpr int64_t kDropoutTileRows = 16;
inline constexpr int64_t kDropoutTileColumns = 32;

PERSEID_INLINE PhiloxBlock dropout_counter(const Dropout& dropout, int64_t batch_head,
                                           int64_t tile_row, int64_t tile_column, uint32_t lane) {
  return {{static_cast<uint32_t>(tile_column) | (lane << 27), static_cast<uint32_t>(tile_row),
           static_cast<uint32_t>(batch_head), dropout.offset}};
}

// The contract, one element at a time. Kernels compute whole tiles; tests hold them to this.
PERSEID_INLINE bool dropout_keeps(const Dropout& dropout, int64_t batch_head, int64_t row,
                                  int64_t column) {
  const uint32_t lane = static_cast<uint32_t>((row % 8) * 4 + (column % 8) / 2);
  const PhiloxBlock block =
      philox4x32(dropout_counter(dropout, batch_head, row / kDropoutTileRows,
                                 column / kDropoutTileColumns, lane),
                 static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32));
  const int byte = static_cast<int>((row / 8 % 2) * 8 + (column / 8 % 4) * 2 + column % 2);
  return ((block.word[byte / 4] >> (8 * (byte % 4))) & 0xffu) < dropout.threshold;
}

}  // namespace perseid::internal
