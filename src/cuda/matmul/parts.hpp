// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A product computed part by part, while an operand arrives: a part has the lines of c (rows of a,
// or columns of b) whose chunks are here, as far as they fill units of tiles. The kernels of a part
// follow one another in stream order, behind a wait for its chunks.
//
//   chunks   |0        |1        |2        |3        |    visited from 1 on
//   units    |   |   |   |   |   |   |   |   |   |   |
//   parts    |     3     |  0    |    1      |   2   |    part 3 needs the first lines of chunk 1
#pragma once

#include <vector>

#include "math/chunks.hpp"

namespace perseid::internal::cuda {

struct ProductPart {
  int64_t first, last;         // lines from first to last - 1
  ChunkRange<int32_t> arrive;  // chunks that it needs and that the parts before did not wait for
};

// Units of `tiles` tiles each that fill their waves best, at least `least` of them.
int64_t preferred_units(int64_t tiles, int64_t least, int32_t multiprocessors);

// Parts of lines [0, size), in the order of the chunks' visits. All but the last ones are multiples
// of `lines`.
std::vector<ProductPart> product_parts(const ChunkTable<int64_t>& chunks, int64_t size,
                                       int64_t lines);

// The chunks of c, cut along the same dimension, that each part completes.
std::vector<ChunkRange<int32_t>> completed_chunks(const std::vector<ProductPart>& parts,
                                                  const ChunkTable<int64_t>& chunks);

}  // namespace perseid::internal::cuda
