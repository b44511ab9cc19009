// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The raster order of tiles.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

struct TileCoordinate {
  int32_t head, tile;  // the row and the column
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
PERSEID_INLINE constexpr TileCoordinate tile_in_sections(int32_t number, int32_t tiles,
                                                         int32_t heads, int32_t heads_per_section) {
  // Unsigned, which takes fewer instructions to divide.
  const auto section_tiles = static_cast<uint32_t>(heads_per_section * tiles);
  const uint32_t section = static_cast<uint32_t>(number) / section_tiles;
  const int32_t first_head = static_cast<int32_t>(section) * heads_per_section;
  const auto section_heads = static_cast<uint32_t>(min(heads_per_section, heads - first_head));
  const uint32_t position = static_cast<uint32_t>(number) - section * section_tiles;
  const uint32_t tile = position / section_heads;
  return {first_head + static_cast<int32_t>(position - tile * section_heads),
          static_cast<int32_t>(tile)};
}

}  // namespace perseid::internal::cuda
