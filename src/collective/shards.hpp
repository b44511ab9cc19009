// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A matrix in shards, one for each rank, and the chunks of those that are signalled one by one.
#pragma once

#include <algorithm>
#include <vector>

#include "math/chunks.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::collective {

// A row-major [outer, extent, inner] tensor: rank r has [begin[r], begin[r + 1]) of the extent.
// Shards may be uneven, and empty.
struct Shards {
  DType dtype = DType::kF32;
  int64_t outer = 1, inner = 1;
  std::vector<int64_t> begin;  // one for each rank, and the extent

  int64_t extent() const { return begin.back(); }
  int64_t size(int32_t rank) const { return begin_of(rank + 1) - begin_of(rank); }
  int64_t begin_of(int32_t rank) const { return begin[static_cast<size_t>(rank)]; }
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

// Each shard in as many chunks as it has room for, at most `each`; 0: none.
struct ShardChunks {
  std::vector<int64_t> begin{0};  // the chunk table: rising boundaries of the extent
  std::vector<int64_t> first;     // the first chunk of each rank, and the count

  ShardChunks(const Shards& shards, int64_t each) {
    for (size_t rank = 0; rank + 1 < shards.begin.size(); ++rank) {
      first.push_back(count());
      const int64_t from = shards.begin[rank], size = shards.begin[rank + 1] - from;
      const int64_t chunks = std::min(each, size);
      for (int64_t c = 1; c <= chunks; ++c) begin.push_back(from + c * size / chunks);
    }
    first.push_back(count());
  }
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
  int64_t first_of(int32_t rank) const { return first[static_cast<size_t>(rank)]; }
  int32_t owner(int64_t chunk) const {
    int32_t rank = 0;
    while (first_of(rank + 1) <= chunk) ++rank;
    return rank;
  }
  // The first chunk of `rank`, or of the ranks after it round; 0 where there is none.
  int64_t pivot(int32_t rank) const { return count() == 0 ? 0 : first_of(rank) % count(); }
};

}  // namespace perseid::internal::collective
