// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The index arithmetic of the shared parts of sm_90 kernels, on the host: stages and parities,
// addresses of a swizzled tile and of its operands, the raster in sections. Expectations come from
// definitions, never from the functions under test.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/sm90/scheduler.hpp"
#include "cuda/device/sm90/shared_tile.hpp"
#include "sm90_parts_kernels.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Pipeline ----

// Barriers as the hardware has them: a phase ends with the last arrival, and a wait for a parity
// returns where the phase of this parity has ended and the next one has not.
struct Barrier {
  int arrivals, ended = 0, arrived = 0;
  void arrive() {
    if (++arrived == arrivals) arrived = 0, ++ended;
  }
  bool passes(uint32_t parity) const { return (static_cast<uint32_t>(ended) & 1) != parity; }
};

template <int Stages, class State>
void expect_parities() {
  constexpr int kConsumers = 2, kIterations = 5000;
  std::vector<Barrier> full(Stages, {1}), empty(Stages, {kConsumers});
  std::vector<int> held(Stages, -1);
  State producer, consumer[kConsumers];
  int produced = 0, consumed[kConsumers] = {};
  std::mt19937 random(Stages);
  while (*std::min_element(consumed, consumed + kConsumers) < kIterations) {
    const auto who = static_cast<int>(random() % (kConsumers + 1));
    if (who == kConsumers) {
      const auto stage = static_cast<size_t>(producer.stage());
      ASSERT_EQ(producer.stage(), produced % Stages);
      const int oldest = *std::min_element(consumed, consumed + kConsumers);
      ASSERT_EQ(empty[stage].passes(producer.parity() ^ 1), produced - oldest < Stages);
      if (produced - oldest >= Stages) continue;
      held[stage] = produced++;
      full[stage].arrive();
      producer.advance();
    } else {
      State& state = consumer[who];
      const auto stage = static_cast<size_t>(state.stage());
      ASSERT_EQ(full[stage].passes(state.parity()), consumed[who] < produced);
      if (consumed[who] == produced) continue;
      ASSERT_EQ(held[stage], consumed[who]++);
      empty[stage].arrive();
      state.advance();
    }
  }
}

TEST(Pipeline, StagesAreFilledAndReleasedInTurn) {
  expect_parities<1, PipelineState<1>>();
  expect_parities<2, PipelineState<2>>();
  expect_parities<3, PipelineState<3>>();
  expect_parities<4, PipelineState<4>>();
  expect_parities<7, PipelineState<7>>();
  expect_parities<1, PipelineCursor<1>>();
  expect_parities<2, PipelineCursor<2>>();
  expect_parities<3, PipelineCursor<3>>();
  expect_parities<7, PipelineCursor<7>>();
}

TEST(Pipeline, CursorAndStateAgree) {
  PipelineCursor<5> cursor;
  for (int i = 0; i < 100; ++i, cursor.advance()) {
    const PipelineState<5> state{i};
    EXPECT_EQ(cursor.stage(), state.stage());
    EXPECT_EQ(cursor.parity(), state.parity());
    EXPECT_EQ(state.parity(), static_cast<uint32_t>(i / 5 % 2));
  }
}

template <int Stages>
void expect_barriers() {
  constexpr uint32_t kBase = 0x1230;
  const Pipeline<Stages> pipeline{kBase};
  std::set<uint32_t> addresses;
  for (int stage = 0; stage < Stages; ++stage) {
    addresses.insert(pipeline.full(stage));
    addresses.insert(pipeline.empty(stage));
  }
  EXPECT_EQ(addresses.size(), size_t{2 * Stages});
  EXPECT_EQ(*addresses.begin(), kBase);
  EXPECT_EQ(*addresses.rbegin() + 8, kBase + Pipeline<Stages>::kBytes);
  for (const uint32_t address : addresses) EXPECT_EQ(address % 8, 0u);
}

TEST(Pipeline, BarriersLieSideBySide) {
  expect_barriers<1>();
  expect_barriers<2>();
  expect_barriers<5>();
  EXPECT_EQ(Pipeline<0>::kBytes, 0);
}

// ---- SharedTile ----

// The 128-byte swizzle, from the PTX manual: bits 4 to 6 of the address take bits 7 to 9 by xor.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// The 64-byte swizzle: bits 4 and 5 take bits 7 and 8.
uint32_t swizzled_64(uint32_t address) { return address ^ (address >> 7 & 3) << 4; }

template <int RowBytes>
void expect_rows() {
  using Rows = SwizzledRows<64, RowBytes>;
  const Rows rows{1024 * 3};
  for (int row = 0; row < 64; ++row)
    for (int piece = 0; piece < Rows::kPieces; ++piece) {
      const auto plain = static_cast<uint32_t>(row * RowBytes + piece * 16);
      const uint32_t at = rows.base + (RowBytes == 128 ? swizzled(plain) : swizzled_64(plain));
      ASSERT_EQ(rows.piece(row, piece), at) << row << ", " << piece;
      for (int step = 0; piece + step < Rows::kPieces; ++step)
        if ((piece & step) == 0) {
          ASSERT_EQ(Rows::advance_piece(at, step), rows.piece(row, piece + step)) << step;
        }
    }
  // Eight rows of one piece, as stmatrix writes them, lie in eight groups of four banks.
  for (int piece = 0; piece < Rows::kPieces; ++piece) {
    std::set<uint32_t> banks;
    for (int row = 8; row < 16; ++row) banks.insert(rows.piece(row, piece) % 128 / 16);
    EXPECT_EQ(banks.size(), 8u) << piece;
  }
}

TEST(SwizzledRows, LieAsTmaStoresThem) {
  expect_rows<128>();
  expect_rows<64>();
  EXPECT_EQ((SwizzledRows<64, 64>::kBytes), 4096);
}

template <int Rows, int Columns, int ElementBytes>
void expect_tile() {
  using Tile = SharedTile<Rows, Columns, ElementBytes>;
  const Tile tile{1024 * 3};
  ASSERT_EQ(Tile::kBytes % 1024, 0);
  std::set<uint32_t> pieces;
  for (int row = 0; row < Rows; ++row)
    for (int piece = 0; piece < 8 * Tile::kChunks; ++piece) {
      const int chunk = piece / 8;
      const auto plain = static_cast<uint32_t>(chunk * Rows * 128 + row * 128 + piece % 8 * 16);
      const uint32_t at = tile.base + swizzled(plain);
      ASSERT_EQ(tile.piece(row, piece), at) << row << ", " << piece;
      ASSERT_EQ(tile.chunk(chunk) - tile.base + Tile::offset(0, row, piece % 8), swizzled(plain));
      ASSERT_EQ(static_cast<uint32_t>(Tile::offset(chunk, row, piece % 8)), swizzled(plain));
      for (int step = 0; piece + step < 8 * Tile::kChunks; ++step)
        if ((piece % 8 & step % 8) == 0) {
          ASSERT_EQ(Tile::advance_piece(at, step), tile.piece(row, piece + step)) << step;
        }
      pieces.insert(at);
    }
  EXPECT_EQ(pieces.size(), size_t{Tile::kBytes / 16});  // no two pieces at one address
  EXPECT_EQ(*pieces.begin(), tile.base);
  EXPECT_EQ(*pieces.rbegin() + 16, tile.base + Tile::kBytes);

  std::set<int> elements;
  for (int row = 0; row < Rows; ++row)
    for (int column = 0; column < Columns; ++column) {
      const int byte = column * ElementBytes;
      const auto plain = static_cast<uint32_t>(byte / 128 * Rows * 128 + row * 128 + byte % 128);
      ASSERT_EQ(static_cast<uint32_t>(Tile::element_offset(row, column)), swizzled(plain));
      elements.insert(Tile::element_offset(row, column));
    }
  EXPECT_EQ(elements.size(), size_t{Rows * Columns});

  // Eight rows of one piece, as ldmatrix reads them, lie in eight groups of four banks.
  for (int piece = 0; piece < 8; ++piece) {
    std::set<int> banks;
    for (int row = 0; row < 8; ++row) banks.insert(Tile::piece_offset(row, piece) % 128 / 16);
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(SharedTile, SwizzleIsABijection) {
  expect_tile<64, 128, 2>();
  expect_tile<8, 64, 2>();
  expect_tile<128, 72, 2>();
  expect_tile<80, 256, 2>();
  expect_tile<64, 96, 4>();
  expect_tile<64, 256, 1>();
}

// Fields of a descriptor of wgmma, from the PTX manual.
struct Fields {
  uint32_t start, leading, stride;
  uint64_t mode;
  explicit Fields(uint64_t descriptor)
      : start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        mode(descriptor >> 62) {}
};

TEST(SharedTile, OperandsBeginWhereTheirElementsAre) {
  constexpr int kRows = 96;
  using Tile = SharedTile<kRows, 192>;
  const Tile tile{0x1fc00};
  for (const int row : {0, 8, 64})
    for (int k = 0; k < 192 / 16; ++k) {
      const Fields fields(tile.k_major(row).step(k));
      // Rows that are multiples of 8 are not moved by the swizzle.
      EXPECT_EQ(fields.start, tile.base + static_cast<uint32_t>(Tile::element_offset(row, 16 * k)));
      EXPECT_EQ(fields.stride, 1024u);
      EXPECT_EQ(fields.mode, 1u);
    }
  for (const int column : {0, 16, 32, 64, 128})
    for (int k = 0; k < kRows / 16; ++k) {
      const Fields fields(tile.mn_major(column).step(k));
      EXPECT_EQ(fields.start,
                tile.base + static_cast<uint32_t>(Tile::element_offset(16 * k, column)));
      EXPECT_EQ(fields.leading, kRows * 128u);
      EXPECT_EQ(fields.stride, 1024u);
      EXPECT_EQ(fields.mode, 1u);
    }
}

TEST(SharedTile, DescriptorsOfOtherElements) {
  // 32 bytes a step whatever the elements are: 32 of 8 bits, 8 of 32 bits.
  const SharedTile<64, 256, 1> bytes{0x2000};
  const SharedTile<64, 64, 4> words{0x2000};
  for (int k = 0; k < 8; ++k) {
    EXPECT_EQ(Fields(bytes.k_major().step(k)).start,
              bytes.base + static_cast<uint32_t>(bytes.element_offset(0, 32 * k)));
    EXPECT_EQ(Fields(words.k_major().step(k)).start,
              words.base + static_cast<uint32_t>(words.element_offset(0, 8 * k)));
  }
}

// ---- Raster and tickets ----

void expect_raster(int32_t tiles, int32_t heads, int32_t per_section) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles, " << heads << " heads, " << per_section);
  std::vector<int> visits(static_cast<size_t>(tiles * heads));
  int32_t section = 0, tile = 0;
  for (int32_t number = 0; number < tiles * heads; ++number) {
    const TileCoordinate at = tile_in_sections(number, tiles, heads, per_section);
    ASSERT_TRUE(at.head >= 0 && at.head < heads && at.tile >= 0 && at.tile < tiles);
    ++visits[static_cast<size_t>(at.head * tiles + at.tile)];
    // Sections follow each other; in one, tiles follow each other.
    ASSERT_GE(at.head / per_section, section);
    if (at.head / per_section > section) tile = 0;
    section = at.head / per_section;
    ASSERT_GE(at.tile, tile);
    tile = at.tile;
  }
  for (const int each : visits) ASSERT_EQ(each, 1);
}

TEST(Scheduler, RasterVisitsEveryTileOnce) {
  for (int32_t tiles = 1; tiles <= 5; ++tiles)
    for (int32_t heads = 1; heads <= 6; ++heads)
      for (int32_t per_section = 1; per_section <= heads + 1; ++per_section)
        expect_raster(tiles, heads, per_section);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i)
    expect_raster(static_cast<int32_t>(1 + random() % 70), static_cast<int32_t>(1 + random() % 90),
                  static_cast<int32_t>(1 + random() % 40));
}

TEST(Scheduler, TicketsFollowTheFirstTilesOfBlocks) {
  for (const uint32_t blocks : {1u, 7u, 132u})
    for (uint32_t ticket = 0; ticket < 20; ++ticket)
      EXPECT_EQ(tile_of_ticket(ticket, blocks), static_cast<int32_t>(blocks + ticket));
}

TEST(Scheduler, CountersBeginAtZero) {
  TileCounter counter{5, 6, 7};
  counter.reset();
  EXPECT_EQ(counter.next, 0u);
  EXPECT_EQ(counter.finished, 0u);
  EXPECT_EQ(counter.ready, 5u);
}

// ---- The kernels of gpu_sm90_parts_test, without a GPU ----

TEST(Kernels, Compile) {
  Version version;
  if (const Status status = compiler_version(&version); !status.ok())
    GTEST_SKIP() << status.sentence();
  Image image;
  std::string log;
  const Program program = testing_sm90::program("sm_90a");
  const Status status = compile(program, &image, &log);
  ASSERT_TRUE(status.ok()) << status.sentence();
  EXPECT_EQ(image.names.size(), program.kernels.size());
  EXPECT_EQ(log.find("C75"), std::string::npos) << log;  // wgmma was serialized
}

}  // namespace
}  // namespace perseid::internal::cuda
