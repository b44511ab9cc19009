// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The order of output tiles: every tile once, in the order of the chunks from the pivot, with the
// chunks that it needs, and never a signal that there is not. Expectations come from definitions,
// element by element, never from the functions under test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "math/split_k.hpp"

namespace perseid::internal {
namespace {

// A dimension cut into chunks; none where `begin` is empty.
template <class Index>
struct Cut {
  std::vector<Index> begin;
  Index first = 0;

  ChunkTable<Index> table() const {
    if (begin.empty()) return {};
    return {begin.data(), static_cast<Index>(begin.size() - 1), first};
  }
  bool present() const { return !begin.empty(); }
  Index count() const { return static_cast<Index>(begin.size()) - 1; }
  // Chunks that hold one of the elements [from, to).
  std::vector<Index> holding(Index from, Index to) const {
    std::vector<Index> chunks;
    if (!present() || from >= to) return chunks;
    for (Index c = 0; c < count(); ++c)
      if (begin[static_cast<size_t>(c)] < to && from < begin[static_cast<size_t>(c) + 1])
        chunks.push_back(c);
    return chunks;
  }
  // How many chunks are visited before the last of `chunks`, counting round from the first.
  Index last_visit(const std::vector<Index>& chunks) const {
    Index last = 0;
    for (Index chunk : chunks) {
      Index visit = 0;
      for (Index at = first; at != chunk; at = at + 1 == count() ? 0 : at + 1) ++visit;
      last = std::max(last, visit);
    }
    return last;
  }
  std::string text() const {
    std::ostringstream text;
    for (Index x : begin) text << x << ' ';
    text << "from " << first;
    return text.str();
  }
};

template <class Index>
struct Grid {
  TileGrid<Index> grid;
  Cut<Index> rows, columns;

  TileOrder<Index> order() const {
    TileGrid<Index> with = grid;
    with.rows = rows.table();
    with.columns = columns.table();
    return TileOrder<Index>(with);
  }
  std::string text() const {
    std::ostringstream text;
    text << "batch " << grid.batch << " m " << grid.m << " n " << grid.n << " tile " << grid.tile_m
         << "x" << grid.tile_n << " cluster " << grid.cluster_m << "x" << grid.cluster_n
         << " group " << grid.group << (grid.raster == Raster::kAlongN ? " along n" : " along m")
         << " merge " << grid.merge << "; rows " << rows.text() << "; columns " << columns.text();
    return text.str();
  }
};

template <class Index>
Index ceil(Index a, Index b) {
  return (a + b - 1) / b;
}

// "" where all holds. One pass over the order; the random problems run it a million times.
template <class Index>
std::string fault_of(const Grid<Index>& given) {
  const TileGrid<Index>& grid = given.grid;
  const TileOrder<Index> order = given.order();
  const Index units_m = ceil<Index>(ceil<Index>(grid.m, grid.tile_m), grid.cluster_m);
  const Index units_n = ceil<Index>(ceil<Index>(grid.n, grid.tile_n), grid.cluster_n);
  const Index tiles_m = units_m * grid.cluster_m, tiles_n = units_n * grid.cluster_n;
  const Index expected = grid.batch * tiles_m * tiles_n;
  if (order.tiles() != expected) return "the number of tiles";
  std::vector<bool> seen(static_cast<size_t>(expected));
  Index outer_visit = 0;
  for (Index cluster = 0; cluster < order.clusters(); ++cluster) {
    Index visit = 0;  // after which the cluster can be computed, as far as segments go
    for (Index rank = 0; rank < order.tiles_of_cluster(); ++rank) {
      const TilePosition<Index> tile = order.tile(cluster * order.tiles_of_cluster() + rank);
      if (tile.batch < 0 || tile.batch >= grid.batch || tile.row < 0 || tile.row >= tiles_m ||
          tile.column < 0 || tile.column >= tiles_n)
        return "a tile outside of the grid";
      const Index number = (tile.batch * tiles_m + tile.row) * tiles_n + tile.column;
      const auto at = static_cast<size_t>(number);
      if (seen[at]) return "a tile twice";
      seen[at] = true;
      const Index row = tile.row * grid.tile_m, column = tile.column * grid.tile_n;
      if (tile.inside != (row < grid.m && column < grid.n)) return "inside";
      if (rank != tile.row % grid.cluster_m + tile.column % grid.cluster_n * grid.cluster_m)
        return "the rank in the cluster";
      const auto check = [&](const ChunkRange<Index>& range, const std::vector<Index>& chunks) {
        if (chunks.empty()) return range.empty();
        return !range.empty() && range.first == chunks.front() && range.last == chunks.back();
      };
      const auto rows = given.rows.holding(row, std::min(grid.m, row + grid.tile_m));
      const auto columns = given.columns.holding(column, std::min(grid.n, column + grid.tile_n));
      if (!check(tile.rows, rows)) return "the chunks of a tile's rows";
      if (!check(tile.columns, columns)) return "the chunks of a tile's columns";
      if (!tile.inside) continue;
      if (given.rows.present()) {
        visit = std::max(visit, given.rows.last_visit(rows));
      } else if (given.columns.present()) {
        visit = std::max(visit, given.columns.last_visit(columns));
      }
    }
    if (visit / grid.merge < outer_visit) return "the order of the chunks";
    outer_visit = visit / grid.merge;
    const Cut<Index>& cut = given.rows.present() ? given.rows : given.columns;
    const ChunkRange<Index> visits = order.tile(cluster, 0).visits;
    if (grid.merge == 1 || !cut.present()) {
      if (!visits.empty()) return "visits of a segment of one chunk";
    } else if (visits.first != outer_visit * grid.merge ||
               visits.last != std::min(cut.count(), visits.first + grid.merge) - 1) {
      return "the visits of a segment";
    }
  }
  return "";
}

template <class Index>
void expect_right(const Grid<Index>& grid) {
  const std::string fault = fault_of(grid);
  ASSERT_EQ(fault, "") << grid.text();
}

// All ways of cutting [0, size), by the bits of `mask` at 1 .. size - 1.
Cut<int32_t> cut_by(uint32_t mask, int32_t size) {
  Cut<int32_t> cut{{0}};
  for (int32_t x = 1; x < size; ++x)
    if (mask >> (x - 1) & 1) cut.begin.push_back(x);
  cut.begin.push_back(size);
  return cut;
}

TEST(TileOrder, AllCutsOfSmallSizes) {
  for (int32_t m = 1; m <= 9; ++m)
    for (int32_t unit : {1, 2, 3, 4, 10})
      for (int32_t cluster : {1, 2})
        for (uint32_t mask = 0; mask < 1u << (m - 1); ++mask) {
          const Cut<int32_t> cut = cut_by(mask, m);
          for (int32_t first = 0; first < cut.count(); ++first)
            for (int32_t variant = 0; variant < 4; ++variant) {
              Grid<int32_t> grid;
              grid.grid = {.batch = 1 + variant % 2,
                           .m = m,
                           .n = 3,
                           .tile_m = unit,
                           .tile_n = 2,
                           .cluster_m = cluster,
                           .group = 1 + variant,
                           .raster = variant < 2 ? Raster::kAlongN : Raster::kAlongM,
                           .merge = 1 + (variant + static_cast<int32_t>(mask)) % 3};
              grid.rows = cut;
              grid.rows.first = first;
              ASSERT_NO_FATAL_FAILURE(expect_right(grid));
              std::swap(grid.grid.m, grid.grid.n);
              std::swap(grid.grid.tile_m, grid.grid.tile_n);
              std::swap(grid.grid.cluster_m, grid.grid.cluster_n);
              std::swap(grid.rows, grid.columns);
              ASSERT_NO_FATAL_FAILURE(expect_right(grid));
            }
        }
}

template <class Index>
Cut<Index> random_cut(std::mt19937_64& random, Index size) {
  const auto draw = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  if (draw(0, 3) == 0) return {};
  const Index count = draw(1, std::min<Index>(size, draw(0, 1) == 0 ? 4 : 40));
  Cut<Index> cut;
  if (draw(0, 1) == 0) {
    for (Index c = 0; c <= count; ++c) cut.begin.push_back(c * size / count);
  } else {
    cut.begin = {0, size};
    while (static_cast<Index>(cut.begin.size()) <= count) {
      const Index x = draw(1, std::max<Index>(size - 1, 1));
      if (std::find(cut.begin.begin(), cut.begin.end(), x) == cut.begin.end()) {
        cut.begin.push_back(x);
      }
    }
    std::sort(cut.begin.begin(), cut.begin.end());
  }
  cut.first = draw(0, cut.count() - 1);
  return cut;
}

template <class Index>
Grid<Index> random_grid(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  Grid<Index> grid;
  const Index size = draw(0, 7) == 0 ? 300 : 40, tile = draw(1, size / 4);
  grid.grid = {.batch = draw(0, 3) == 0 ? draw(1, 3) : 1,
               .m = draw(1, size),
               .n = draw(1, size),
               .tile_m = draw(std::max<Index>(tile / 2, 1), tile),
               .tile_n = draw(std::max<Index>(tile / 2, 1), tile),
               .cluster_m = draw(1, 3),
               .cluster_n = draw(1, 2),
               .group = draw(1, 5),
               .raster = draw(0, 1) == 0 ? Raster::kAlongN : Raster::kAlongM,
               .merge = draw(0, 1) == 0 ? 1 : draw(2, 7)};
  // Chunks may reach beyond the grid.
  const auto beyond = [&] { return draw(0, 3) == 0 ? draw(1, size) : 0; };
  grid.rows = random_cut(random, grid.grid.m + beyond());
  grid.columns = random_cut(random, grid.grid.n + beyond());
  return grid;
}

void random_problems(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const std::string fault =
        seed % 2 == 0 ? fault_of(random_grid<int32_t>(seed)) : fault_of(random_grid<int64_t>(seed));
    ASSERT_EQ(fault, "") << "seed " << seed << ": " << random_grid<int64_t>(seed).text();
  }
}

TEST(TileOrder, RandomProblems) { random_problems(1, 20'000); }
TEST(TileOrderSweep, RandomProblems) { random_problems(1'000'000, 1'000'000); }

std::vector<std::pair<int32_t, int32_t>> rows_and_columns(const Grid<int32_t>& grid) {
  std::vector<std::pair<int32_t, int32_t>> tiles;
  const TileOrder<int32_t> order = grid.order();
  for (int32_t i = 0; i < order.tiles(); ++i)
    tiles.emplace_back(order.tile(i).row, order.tile(i).column);
  return tiles;
}

TEST(TileOrder, RasterInGroups) {
  using Tiles = std::vector<std::pair<int32_t, int32_t>>;
  Grid<int32_t> grid{{.m = 3, .n = 3, .group = 2}, {}, {}};
  EXPECT_EQ(rows_and_columns(grid),
            (Tiles{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}, {2, 0}, {2, 1}, {2, 2}}));
  grid.grid.raster = Raster::kAlongM;
  EXPECT_EQ(rows_and_columns(grid),
            (Tiles{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {0, 2}, {1, 2}, {2, 2}}));
}

// Groups never cross the end of a chunk: all of a chunk's tiles come before the next chunk's. Along
// both dimensions, the columns of each segment begin with their own pivot.
TEST(TileOrder, SegmentsFromThePivot) {
  using Tiles = std::vector<std::pair<int32_t, int32_t>>;
  const Grid<int32_t> grid{{.m = 5, .n = 2, .group = 4}, {{0, 2, 3, 5}, 1}, {{0, 1, 2}, 1}};
  EXPECT_EQ(
      rows_and_columns(grid),
      (Tiles{{2, 1}, {2, 0}, {3, 1}, {4, 1}, {3, 0}, {4, 0}, {0, 1}, {1, 1}, {0, 0}, {1, 0}}));
}

// Two visits a segment: its units sweep the columns together.
TEST(TileOrder, MergedVisitsFromThePivot) {
  using Tiles = std::vector<std::pair<int32_t, int32_t>>;
  const Grid<int32_t> grid{{.m = 5, .n = 2, .group = 4, .merge = 2}, {{0, 1, 2, 3, 4, 5}, 3}, {}};
  EXPECT_EQ(
      rows_and_columns(grid),
      (Tiles{{3, 0}, {4, 0}, {3, 1}, {4, 1}, {0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}}));
  const TilePosition<int32_t> last = grid.order().tile(9);
  EXPECT_EQ(last.visits.first, 4);
  EXPECT_EQ(last.visits.last, 4);
}

// The example at the head of tile_order.hpp.
TEST(TileOrder, AUnitThatThePivotCutsComesLast) {
  const Grid<int32_t> grid{{.m = 36, .n = 1, .tile_m = 4}, {{0, 6, 14, 26, 36}, 1}, {}};
  const auto tiles = rows_and_columns(grid);
  const int32_t expected[] = {2, 3, 4, 5, 6, 7, 8, 0, 1};
  for (size_t i = 0; i < std::size(expected); ++i) EXPECT_EQ(tiles[i].first, expected[i]) << i;
}

TEST(TileOrder, NothingToCompute) {
  for (const auto& [batch, m, n] : {std::tuple{0, 4, 4}, {1, 0, 4}, {1, 4, 0}}) {
    const Grid<int32_t> grid{{.batch = batch, .m = m, .n = n}, {}, {}};
    EXPECT_EQ(grid.order().tiles(), 0);
  }
}

TEST(TileOrder, SizesBeyondThirtyTwoBits) {
  const int64_t m = (int64_t{1} << 40) + 3;
  Grid<int64_t> grid{{.m = m, .n = 2, .tile_m = 128}, {{0, 1000, m / 2, m - 1, m}, 2}, {}};
  const TileOrder<int64_t> order = grid.order();
  const int64_t tiles = ceil<int64_t>(m, 128);
  ASSERT_EQ(order.tiles(), 2 * tiles);
  const TilePosition<int64_t> first = order.tile(0), last = order.tile(2 * tiles - 1);
  EXPECT_EQ(first.row, ceil<int64_t>(m / 2, 128));
  EXPECT_EQ(first.rows.first, 2);
  // The pivot begins within a tile, which needs the chunk visited last.
  EXPECT_EQ(last.row, m / 2 / 128);
  EXPECT_EQ(last.rows.first, 1);
  EXPECT_EQ(last.rows.last, 2);
}

// Every whole tile once, in the order of its chunks; of every split tile all splits, one after the
// other; each with the chunks that it needs.
TEST(SplitTileOrder, EveryTileOnceOrInAllSplits) {
  std::mt19937_64 random(11);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int turn = 0; turn < 3000; ++turn) {
    TileGrid<int32_t> grid{.batch = draw(1, 3),
                           .m = draw(1, 60),
                           .n = draw(1, 60),
                           .tile_m = draw(1, 9),
                           .tile_n = draw(1, 9),
                           .group = draw(1, 4)};
    const Cut<int32_t> rows = random_cut<int32_t>(random, grid.m);
    const Cut<int32_t> columns = random_cut<int32_t>(random, grid.n);
    grid.rows = rows.table();
    grid.columns = columns.table();
    const int32_t down = ceil<int32_t>(grid.m, grid.tile_m),
                  across = ceil<int32_t>(grid.n, grid.tile_n);
    const bool by_rows = draw(0, 1) == 0;
    const int32_t lines = draw(0, (by_rows ? down : across) - 1);  // of whole tiles
    const SplitK split{.splits = draw(2, 5),
                       .m = by_rows ? lines * grid.tile_m : grid.m,
                       .n = by_rows ? grid.n : lines * grid.tile_n,
                       .first = draw(0, 1) == 0};
    const SplitTileOrder order(grid, split);
    const int32_t tiles = grid.batch * down * across;
    const int32_t whole = grid.batch * (by_rows ? lines * across : down * lines);
    ASSERT_EQ(order.units(), (tiles - whole) * split.splits);
    ASSERT_EQ(order.count(), whole + order.units());
    ASSERT_EQ(order.split_begin(), split.first ? 0 : whole);
    std::vector<int32_t> seen(static_cast<size_t>(tiles)), tile_of_units;
    int32_t visit = 0;
    for (int32_t number = 0; number < order.count(); ++number) {
      int32_t unit = -1;
      const TilePosition<int32_t> tile = order.tile(number, &unit);
      ASSERT_TRUE(tile.row >= 0 && tile.row < down && tile.column >= 0 && tile.column < across);
      const int32_t at = (tile.batch * down + tile.row) * across + tile.column;
      ++seen[static_cast<size_t>(at)];
      const bool is_split = (by_rows ? tile.row : tile.column) >= lines;
      ASSERT_EQ(unit, is_split ? static_cast<int32_t>(tile_of_units.size()) + 1 : 0);
      if (is_split) tile_of_units.push_back(at);
      const int32_t row = tile.row * grid.tile_m, column = tile.column * grid.tile_n;
      const auto of_rows = rows.holding(row, std::min(grid.m, row + grid.tile_m));
      const auto of_columns = columns.holding(column, std::min(grid.n, column + grid.tile_n));
      ASSERT_EQ(tile.rows.empty() ? 0 : tile.rows.last - tile.rows.first + 1,
                static_cast<int32_t>(of_rows.size()));
      ASSERT_EQ(tile.columns.empty() ? 0 : tile.columns.last - tile.columns.first + 1,
                static_cast<int32_t>(of_columns.size()));
      if (is_split || !rows.present()) continue;
      ASSERT_EQ(tile.rows.first, of_rows.front());
      ASSERT_GE(rows.last_visit(of_rows), visit);
      visit = rows.last_visit(of_rows);
    }
    for (size_t i = 0; i < tile_of_units.size(); ++i)
      ASSERT_EQ(tile_of_units[i], tile_of_units[i - i % static_cast<size_t>(split.splits)]);
    for (int32_t at = 0; at < tiles; ++at) {
      const bool is_split = (by_rows ? at / across % down : at % across) >= lines;
      ASSERT_EQ(seen[static_cast<size_t>(at)], is_split ? split.splits : 1) << "turn " << turn;
    }
  }
}

// Splits follow one another from step 0 to the last, in groups, of nearly the same length.
TEST(SplitTileOrder, StepsOfSplits) {
  for (const int32_t group : {1, 2})
    for (int32_t steps = group; steps <= 40; steps += group)
      for (int32_t splits = 1; splits <= steps / group; ++splits) {
        int32_t end = 0;
        for (int32_t i = 0; i < splits; ++i) {
          const StepRange range = steps_of_split(steps, group, splits, i);
          EXPECT_EQ(range.first, end);
          EXPECT_EQ(range.count() % group, 0);
          EXPECT_GE(range.count(), steps / group / splits * group);
          EXPECT_LE(range.count(), (steps / group / splits + 1) * group);
          end = range.last;
        }
        EXPECT_EQ(end, steps);
      }
}

TEST(Chunks, RangesAreClippedToTheTable) {
  const Cut<int32_t> cut{{0, 3, 4, 9}};
  const ChunkTable<int32_t> table = cut.table();
  EXPECT_TRUE(table.covering(9, 12).empty());
  EXPECT_TRUE(table.covering(5, 5).empty());
  EXPECT_EQ(table.covering(3, 100).first, 1);
  EXPECT_EQ(table.covering(3, 100).last, 2);
  EXPECT_TRUE(ChunkTable<int32_t>{}.covering(0, 5).empty());
  for (int32_t visit = 0; visit < 3; ++visit)
    EXPECT_EQ(table.visit_of_chunk(table.chunk_of_visit(visit)), visit);
}

// Every tile once, each after its chunks: the last chunk that a tile needs, counted from the pivot
// round, never comes before one that an earlier tile needs.
TEST(Chunks, CyclicTilesFollowTheirChunks) {
  std::mt19937 random(5);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int round = 0; round < 20'000; ++round) {
    const int32_t size = draw(1, 40), tile = draw(1, 9);
    Cut<int32_t> cut;
    for (int32_t x = 1; x < size; ++x)
      if (draw(0, 4) == 0) cut.begin.push_back(x);
    cut.begin.insert(cut.begin.begin(), 0);
    cut.begin.push_back(size);
    cut.first = draw(0, cut.count() - 1);
    const int32_t tiles = (size + tile - 1) / tile;
    const int32_t begin = draw(0, tiles), end = draw(0, tiles);
    const auto cyclic =
        CyclicTiles<int32_t>::from(begin, end, cut.begin[static_cast<size_t>(cut.first)], tile);
    SCOPED_TRACE(cut.text() + " tile " + std::to_string(tile) + " of " + std::to_string(begin) +
                 " to " + std::to_string(end));
    ASSERT_EQ(cyclic.count(), std::max(end - begin, 0));
    std::vector<bool> seen(static_cast<size_t>(tiles));
    int32_t reached = 0;
    for (int32_t visit = 0; visit < cyclic.count(); ++visit) {
      const int32_t at = cyclic.at(visit);
      ASSERT_TRUE(begin <= at && at < end && !seen[static_cast<size_t>(at)]);
      seen[static_cast<size_t>(at)] = true;
      const int32_t needed =
          cut.last_visit(cut.holding(at * tile, std::min((at + 1) * tile, size)));
      ASSERT_GE(needed, reached);
      reached = needed;
    }
  }
  EXPECT_EQ(CyclicTiles<int64_t>::from(0, 4, -100, 8).start, 0);
}

TEST(Chunks, EpochsWrap) {
  EXPECT_TRUE(epoch_reached(5, 5));
  EXPECT_TRUE(epoch_reached(6, 5));
  EXPECT_FALSE(epoch_reached(4, 5));
  EXPECT_TRUE(epoch_reached(2, 0xffffffffu));
  EXPECT_FALSE(epoch_reached(0xffffffffu, 2));
  EXPECT_TRUE(epoch_reached(0x80000004u, 5));
  EXPECT_FALSE(epoch_reached(0x80000005u, 5));
}

}  // namespace
}  // namespace perseid::internal
