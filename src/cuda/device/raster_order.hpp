// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The raster order of tiles.
#pragma once

#include "cuda/device/divisor.hpp"

namespace perseid::internal::cuda {

struct TileCoordinate {
  int32_t head, tile;  // the row and the column
};

// Divisions of tile_in_sections(), by instructions.
struct PlainDivision {
  PERSEID_INLINE static constexpr uint32_t by_section(uint32_t number, uint32_t size) {
    return number / size;
  }
  PERSEID_INLINE static constexpr uint32_t by_heads(uint32_t number, uint32_t size, bool) {
    return number / size;
  }
};
// By multiplications: a chain of divisions keeps a block from its first loads for 0.2 us. The last
// section may have fewer heads.
struct SectionDivisors {
  Divisor tiles, heads, last_heads;

  SectionDivisors() = default;
  constexpr SectionDivisors(int32_t tiles_of_head, int32_t all_heads, int32_t heads_per_section)
      : tiles(divisor_of(int64_t{heads_per_section} * tiles_of_head)),
        heads(divisor_of(heads_per_section)),
        last_heads(divisor_of((all_heads - 1) % heads_per_section + 1)) {}

  PERSEID_INLINE constexpr uint32_t by_section(uint32_t number, uint32_t) const {
    return quotient(tiles, number);
  }
  PERSEID_INLINE constexpr uint32_t by_heads(uint32_t number, uint32_t, bool last) const {
    return quotient(last ? last_heads : heads, number);
  }
};

// Raster order of a matrix of tiles, by sections of rows. In a section the first column of tiles
// comes first, then the second, so that the tiles that run at a time share the L2 cache:
//
//   section 0   row 0    0  3  6  9      rows per section: 3
//               row 1    1  4  7 10
//               row 2    2  5  8 11
//   section 1   row 3   12 14 16 18      the last section may have fewer rows
//               row 4   13 15 17 19
//
// In attention a row is a head, and its columns are the tiles of the head.
template <class Division = PlainDivision>
PERSEID_INLINE constexpr TileCoordinate tile_in_sections(int32_t number, int32_t tiles,
                                                         int32_t heads, int32_t heads_per_section,
                                                         const Division& division = {}) {
  // Unsigned, which takes fewer instructions to divide.
  const auto section_tiles = static_cast<uint32_t>(heads_per_section * tiles);
  const uint32_t section = division.by_section(static_cast<uint32_t>(number), section_tiles);
  const int32_t first_head = static_cast<int32_t>(section) * heads_per_section;
  const auto section_heads = static_cast<uint32_t>(min(heads_per_section, heads - first_head));
  const uint32_t position = static_cast<uint32_t>(number) - section * section_tiles;
  const uint32_t tile =
      division.by_heads(position, section_heads, first_head + heads_per_section > heads);
  return {first_head + static_cast<int32_t>(position - tile * section_heads),
          static_cast<int32_t>(tile)};
}

}  // namespace perseid::internal::cuda
