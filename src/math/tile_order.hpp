// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The order in which the output tiles of a product are computed:
//
//   linear index -> chunk segment -> batch entry -> raster group -> tile -> pivot -> chunks needed
//
// Tiles form clusters of cluster_m x cluster_n tiles, and a cluster is the unit of the order. Units
// lie on a grid that starts at row 0 and column 0 whatever the chunks are, so that asynchrony never
// changes how the work is split. A chunk boundary may cut a unit, which then needs two chunks or
// more; a unit at the end may overhang the output, and its tiles there are not `inside`.
//
// The units are rotated so that the order begins with the first one that lies at or after the start
// of the pivot chunk:
//
//   chunks      |0    |1      |2          |3        |   first: 1
//   units       |0  |1  |2  |3  |4  |5  |6  |7  |8  |
//   position     7   8   0   1   2   3   4   5   6
//   last visit   3   3   0   1   1   1   2   2   2       visit 0 is of chunk 1, visit 3 of chunk 0
//
// A unit can be computed after the last visit of the chunks it needs. The rotation puts these
// visits in ascending order: a unit that the start of the pivot chunk cuts needs the chunk visited
// last, and comes last. Units with the same last visit form a segment. Within a segment the order
// is that of a plain product: batch entries one after the other, of each the raster, in groups of
// units that sweep the other dimension together and so share their operands in the cache. Chunks
// that are too small for that share a segment: `merge` visits in a row.
//
// Chunks may lie along rows (m, of A), along columns (n, of B) or along both; along both, segments
// are made of rows, and columns are only rotated. Chunks along the depth do not change this order.
//
// A table may reach beyond the grid: then only the chunks that the grid has count.
//
// Everything is closed form but for one binary search in the chunk table, and needs no state.
#pragma once

#include "math/chunks.hpp"

namespace perseid::internal {

enum class Raster : uint32_t {
  kAlongN,  // groups of rows sweep the columns
  kAlongM,  // groups of columns sweep the rows
};

// Index: int32_t or int64_t; it holds the number of tiles, overhanging ones included, and twice m
// and n rounded up to clusters.
template <class Index>
struct TileGrid {
  Index batch = 1, m = 0, n = 0;
  Index tile_m = 1, tile_n = 1;
  Index cluster_m = 1, cluster_n = 1;  // in tiles
  Index group = 1;                     // units that sweep together
  Raster raster = Raster::kAlongN;
  ChunkTable<Index> rows = {}, columns = {};  // of the m rows, and of the n columns
  Index merge = 1;                            // visits of a segment
};

template <class Index>
struct TilePosition {
  Index batch, row, column;         // row and column count tiles
  bool inside;                      // false: the cluster overhangs here
  ChunkRange<Index> rows, columns;  // chunks that the tile needs; empty where there are none
  // The visits of its segment, which its neighbours in the order need; empty where they are one.
  ChunkRange<Index> visits;
};

// One dimension of the grid of units, in the order of its chunks.
template <class Index>
class UnitAxis {
 public:
  UnitAxis() = default;
  PERSEID_INLINE constexpr UnitAxis(Index size, Index unit, const ChunkTable<Index>& chunks,
                                    Index merge)
      : chunks_(chunks),
        merge_(merge),
        unit_(unit),
        size_(size),
        count_(size / unit + (size % unit != 0)),
        first_(0) {
    if (!chunks_.present()) return;
    const Index begin = chunks_.begin[chunks_.first];
    first_ = min(count_, begin / unit + (begin % unit != 0));
  }

  PERSEID_INLINE constexpr Index count() const { return count_; }
  // The unit at `position` of the order.
  PERSEID_INLINE constexpr Index unit_at(Index position) const {
    const Index unit = first_ + position;
    return unit < count_ ? unit : unit - count_;
  }
  // Number of the segment that holds a position. Without chunks there is one segment, number 0.
  PERSEID_INLINE constexpr Index segment_of(Index position) const {
    if (!chunks_.present()) return 0;
    const Index begin = unit_at(position) * unit_;
    return chunks_.last_visit(chunks_.covering(begin, min(size_, begin + unit_))) / merge_;
  }
  // None where a segment is one visit.
  PERSEID_INLINE constexpr ChunkRange<Index> visits_of(Index segment) const {
    if (!chunks_.present() || merge_ == 1) return {};
    return {segment * merge_, min(chunks_.count, (segment + 1) * merge_) - 1};
  }
  // Positions that lie before the end of a segment; 0 before segment 0, which is number -1's end.
  PERSEID_INLINE constexpr Index end_of(Index segment) const {
    if (segment < 0) return 0;
    const Index visits = (segment + 1) * merge_;
    if (!chunks_.present() || visits >= chunks_.count) return count_;
    const Index chunk = chunks_.chunk_of_visit(visits - 1);
    if (chunk + 1 == chunks_.count) return count_ - first_;
    // Units that end before the chunk does.
    const Index end = chunks_.begin[chunk + 1], whole = end < size_ ? end / unit_ : count_;
    return chunk >= chunks_.first ? max(whole - first_, Index{0}) : count_ - first_ + whole;
  }

 private:
  ChunkTable<Index> chunks_;
  Index merge_ = 1;
  Index unit_ = 1, size_ = 0, count_ = 0;
  Index first_ = 0;  // of the order; count_ stands for 0
};

template <class Index>
class TileOrder {
 public:
  TileOrder() = default;
  PERSEID_INLINE constexpr explicit TileOrder(const TileGrid<Index>& grid)
      : grid_(grid),
        by_columns_(!grid.rows.present() && grid.columns.present()),
        segmented_(by_columns_ ? axis_n(grid) : axis_m(grid)),
        other_(by_columns_ ? axis_m(grid) : axis_n(grid)) {}

  PERSEID_INLINE constexpr Index clusters() const {
    return grid_.batch * segmented_.count() * other_.count();
  }
  PERSEID_INLINE constexpr Index tiles_of_cluster() const {
    return grid_.cluster_m * grid_.cluster_n;
  }
  PERSEID_INLINE constexpr Index tiles() const { return clusters() * tiles_of_cluster(); }

  // The tile of a linear index, 0 <= index < tiles(): the tiles of a cluster are neighbours.
  PERSEID_INLINE constexpr TilePosition<Index> tile(Index index) const {
    return tile(index / tiles_of_cluster(), index % tiles_of_cluster());
  }

  // Whether segments are made of columns: else of rows.
  PERSEID_INLINE constexpr bool by_columns() const { return by_columns_; }

  // Tile `rank` of a cluster, 0 <= cluster < clusters(). Ranks go down the rows first.
  PERSEID_INLINE constexpr TilePosition<Index> tile(Index cluster, Index rank) const {
    const Index across = grid_.batch * other_.count();
    const Index segment = segmented_.segment_of(cluster / across);
    const Index begin = segmented_.end_of(segment - 1);
    const Index length = segmented_.end_of(segment) - begin;
    const Index within = cluster - begin * across;
    const Index batch = within / (length * other_.count());
    const Index unit = within % (length * other_.count());

    // In the segment's rectangle, `length` by other_.count(): groups along one side sweep the
    // other.
    const bool groups_segmented = (grid_.raster == Raster::kAlongN) != by_columns_;
    const Index grouped = groups_segmented ? length : other_.count();
    const Index swept = groups_segmented ? other_.count() : length;
    const Index group = unit / (grid_.group * swept);
    const Index rest = unit % (grid_.group * swept);
    const Index height = min(grid_.group, grouped - group * grid_.group);
    const Index in_grouped = group * grid_.group + rest % height, in_swept = rest / height;
    const Index of_segmented =
        segmented_.unit_at(begin + (groups_segmented ? in_grouped : in_swept));
    const Index of_other = other_.unit_at(groups_segmented ? in_swept : in_grouped);

    TilePosition<Index> tile;
    tile.batch = batch;
    tile.row = (by_columns_ ? of_other : of_segmented) * grid_.cluster_m + rank % grid_.cluster_m;
    tile.column =
        (by_columns_ ? of_segmented : of_other) * grid_.cluster_n + rank / grid_.cluster_m;
    tile.visits = segmented_.visits_of(segment);
    // As differences: a tile that overhangs may begin where Index ends.
    const bool has_rows = tile.row <= (grid_.m - 1) / grid_.tile_m;
    const bool has_columns = tile.column <= (grid_.n - 1) / grid_.tile_n;
    tile.inside = has_rows && has_columns;
    // Also of a tile that overhangs: its block may load for those that do not.
    if (has_rows) tile.rows = chunks_needed(grid_.rows, tile.row, grid_.tile_m, grid_.m);
    if (has_columns)
      tile.columns = chunks_needed(grid_.columns, tile.column, grid_.tile_n, grid_.n);
    return tile;
  }

 private:
  PERSEID_INLINE static constexpr UnitAxis<Index> axis_m(const TileGrid<Index>& grid) {
    return {grid.m, grid.tile_m * grid.cluster_m, grid.rows, grid.merge};
  }
  PERSEID_INLINE static constexpr UnitAxis<Index> axis_n(const TileGrid<Index>& grid) {
    return {grid.n, grid.tile_n * grid.cluster_n, grid.columns, grid.merge};
  }
  PERSEID_INLINE static constexpr ChunkRange<Index> chunks_needed(const ChunkTable<Index>& chunks,
                                                                  Index tile, Index size,
                                                                  Index whole) {
    const Index begin = tile * size;
    return chunks.covering(begin, begin + min(size, whole - begin));
  }

  TileGrid<Index> grid_;
  bool by_columns_ = false;  // segments are made of columns
  UnitAxis<Index> segmented_, other_;
};

}  // namespace perseid::internal
