// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A matrix in shards, one for each rank, and the chunks of those that are signalled one by one.
#pragma once

#include <algorithm>
#include <vector>

#include "math/chunks.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::collective {

// A row-major [outer, extent, inner] tensor: piece i of the extent is [begin[i], begin[i + 1]).
// Pieces may be uneven, and empty. Rank r has piece r, and where there are twice as many pieces as
// ranks (zigzag) also piece 2 * ranks - 1 - r. With one piece each, a piece's number is a rank.
struct Shards {
  DType dtype = DType::kF32;
  int64_t outer = 1, inner = 1;
  std::vector<int64_t> begin;  // one for each piece, and the extent

  int64_t extent() const { return begin.back(); }
  int64_t size(int32_t piece) const { return begin_of(piece + 1) - begin_of(piece); }
  int64_t begin_of(int32_t piece) const { return begin[static_cast<size_t>(piece)]; }
  size_t bytes() const { return static_cast<size_t>(outer * extent() * inner * size_of(dtype)); }
  // [from, to) of the extent, in memory that has all of it.
  Tensor view(std::byte* data, int64_t from, int64_t to) const {
    return {.data = data + from * inner * size_of(dtype),
            .dtype = dtype,
            .rank = 3,
            .shape = {outer, to - from, inner},
            .stride = {extent() * inner, inner, 1}};
  }
};

// Each piece in as many chunks as it has room for, at most `each`; 0: none.
struct ShardChunks {
  std::vector<int64_t> begin{0};  // the chunk table: rising boundaries of the extent
  std::vector<int64_t> first;     // the first chunk of each piece, and the count
  int32_t ranks;
  // Of heads that come one after the other, each with all chunks: signals are [group, chunk].
  int64_t groups = 1;

  ShardChunks(const Shards& shards, int32_t of_ranks, int64_t each) : ranks(of_ranks) {
    for (size_t piece = 0; piece + 1 < shards.begin.size(); ++piece) {
      first.push_back(count());
      const int64_t from = shards.begin[piece], size = shards.begin[piece + 1] - from;
      const int64_t chunks = std::min(each, size);
      for (int64_t c = 1; c <= chunks; ++c) begin.push_back(from + c * size / chunks);
    }
    first.push_back(count());
  }
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
  int64_t words() const { return groups * count(); }  // signals
  int64_t first_of(int32_t piece) const { return first[static_cast<size_t>(piece)]; }
  int32_t owner(int64_t chunk) const {
    int32_t piece = 0;
    while (first_of(piece + 1) <= chunk) ++piece;
    return piece < ranks ? piece : 2 * ranks - 1 - piece;
  }
  // The first chunk of a piece, or of those after it round; 0 where there is none.
  int64_t pivot(int32_t piece) const { return count() == 0 ? 0 : first_of(piece) % count(); }
};

}  // namespace perseid::internal::collective
