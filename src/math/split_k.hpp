// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Split-K: the tiles that would leave the last wave of a product partly empty are computed in
// several splits of k, whose sums are added in ascending order of k. The split tiles are the last
// rows of tiles, or the last columns:
//
//          n                  whole tiles: units of work of their own, in the order of
//          tile_order.hpp
//     +---------+----+        split tiles: `splits` units each, which are neighbours in the order
//     |         |    |
//     |  whole  | s  |  m     order   | whole tiles | tile 0, splits 0 1 2 | tile 1, splits ...
//     +---------+----+
//
// Which elements of c are summed how is a function of the sizes alone. Chunks change the order of
// whole tiles, and nothing else.
#pragma once

#include "math/tile_order.hpp"

namespace perseid::internal {

struct SplitK {
  int32_t splits = 1;    // of a split tile; 1: there is none
  int32_t m = 0, n = 0;  // of the whole tiles; one of both is that of c
  bool first = false;    // split tiles come first in the order, not last
};

// Steps [first, last) along k.
struct StepRange {
  int32_t first, last;

  PERSEID_INLINE constexpr int32_t count() const { return last - first; }
};

// Split `index` of `steps` steps, whose size is a multiple of `group`, as `steps` is.
PERSEID_INLINE constexpr StepRange steps_of_split(int32_t steps, int32_t group, int32_t splits,
                                                  int32_t index) {
  const int32_t groups = steps / group, each = groups / splits, more = groups % splits;
  const auto begin = [&](int32_t at) { return (at * each + min(at, more)) * group; };
  return {begin(index), begin(index + 1)};
}

// The units of work of a product.
class SplitTileOrder {
 public:
  SplitTileOrder() = default;
  PERSEID_INLINE constexpr SplitTileOrder(const TileGrid<int32_t>& grid, const SplitK& split)
      : rows_(grid.rows),
        columns_(grid.columns),
        m_(grid.m),
        n_(grid.n),
        tile_m_(grid.tile_m),
        tile_n_(grid.tile_n),
        splits_(split.splits),
        first_row_(split.m < grid.m ? split.m / grid.tile_m : 0),
        first_column_(split.n < grid.n ? split.n / grid.tile_n : 0),
        whole_(of_whole(grid, split)),
        split_(of_split(grid, split)),
        split_begin_(split.first ? 0 : whole_.clusters()),
        whole_begin_(split.first ? units() : 0) {}

  // A split tile has `splits` units.
  PERSEID_INLINE constexpr int32_t units() const { return split_.clusters() * splits_; }
  PERSEID_INLINE constexpr int32_t count() const { return whole_.clusters() + units(); }
  // The first unit of a split tile in the order.
  PERSEID_INLINE constexpr int32_t split_begin() const { return split_begin_; }
  PERSEID_INLINE constexpr bool by_columns() const { return whole_.by_columns(); }

  // The tile of a unit of the order. `unit`: 0, or 1 + its number among the units of split tiles;
  // of tile i they are i * splits to i * splits + splits - 1.
  PERSEID_INLINE constexpr TilePosition<int32_t> tile(int32_t number, int32_t* unit) const {
    const int32_t at = number - split_begin_;
    if (at < 0 || at >= units()) {
      *unit = 0;
      return whole_.tile(number - whole_begin_, 0);
    }
    *unit = 1 + at;
    TilePosition<int32_t> tile = split_.tile(at / splits_, 0);
    tile.row += first_row_;
    tile.column += first_column_;
    const int32_t row = tile.row * tile_m_, column = tile.column * tile_n_;
    tile.rows = rows_.covering(row, row + min(tile_m_, m_ - row));
    tile.columns = columns_.covering(column, column + min(tile_n_, n_ - column));
    return tile;
  }

 private:
  PERSEID_INLINE static constexpr TileGrid<int32_t> of_whole(TileGrid<int32_t> grid,
                                                             const SplitK& split) {
    grid.m = split.m;
    grid.n = split.n;
    return grid;
  }
  PERSEID_INLINE static constexpr TileGrid<int32_t> of_split(TileGrid<int32_t> grid,
                                                             const SplitK& split) {
    if (split.m < grid.m) {
      grid.m -= split.m;
    } else {
      grid.n -= split.n;
    }
    grid.rows = grid.columns = {};
    return grid;
  }

  ChunkTable<int32_t> rows_, columns_;
  int32_t m_ = 0, n_ = 0, tile_m_ = 1, tile_n_ = 1, splits_ = 1;
  int32_t first_row_ = 0, first_column_ = 0;  // of the split tiles
  TileOrder<int32_t> whole_, split_;
  int32_t split_begin_ = 0, whole_begin_ = 0;
};

}  // namespace perseid::internal
