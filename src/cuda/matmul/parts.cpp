// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/parts.hpp"

namespace perseid::internal::cuda {

int64_t preferred_units(int64_t tiles, int64_t least, int32_t multiprocessors) {
  int64_t best = least;
  double best_full = 0;  // of the waves, as a fraction
  for (int64_t units = least; units <= 2 * least + 8; ++units) {
    const int64_t waves = ceil_div(units * tiles, multiprocessors);
    const double full =
        static_cast<double>(units * tiles) / static_cast<double>(waves * multiprocessors);
    if (full <= best_full) continue;
    best = units;
    best_full = full;
  }
  return best;
}

std::vector<ProductPart> product_parts(const ChunkTable<int64_t>& chunks, int64_t size,
                                       int64_t lines) {
  std::vector<ProductPart> parts;
  // Lines [begin, end), which need chunks from `first` to `last`.
  const auto cut = [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    for (int64_t chunk = first, awaited = first; chunk <= last; ++chunk) {
      const int64_t here = chunk < last ? min(end, chunks.begin[chunk + 1]) : end;
      const int64_t to = here == end ? end : begin + max<int64_t>(here - begin, 0) / lines * lines;
      if (to == begin) continue;
      parts.push_back({begin, to, {static_cast<int32_t>(awaited), static_cast<int32_t>(chunk)}});
      begin = to;
      awaited = chunk + 1;
    }
  };
  // Lines of the pivot chunk before a multiple of `lines` come last, with those of the chunks
  // before.
  const int64_t begin = round_up(chunks.begin[chunks.first], lines);
  if (begin >= size) {
    cut(0, size, 0, chunks.count - 1);
    return parts;
  }
  cut(begin, size, chunks.first, chunks.count - 1);
  cut(0, begin, 0, chunks.first - 1);
  return parts;
}

std::vector<ChunkRange<int32_t>> completed_chunks(const std::vector<ProductPart>& parts,
                                                  const ChunkTable<int64_t>& chunks) {
  const int64_t begin = parts.front().first;
  int64_t pivot = 0;  // the first chunk behind it
  while (pivot < chunks.count && chunks.begin[pivot] < begin) ++pivot;
  int64_t next = pivot, last = chunks.count;
  std::vector<ChunkRange<int32_t>> completed;
  for (const ProductPart& part : parts) {
    if (part.first == 0 && begin != 0) next = 0, last = pivot;
    const int64_t first = next;
    const bool ends = &part == &parts.back();
    while (next < last && (ends || chunks.begin[next + 1] <= part.last)) ++next;
    completed.push_back({static_cast<int32_t>(first), static_cast<int32_t>(next - 1)});
  }
  return completed;
}

}  // namespace perseid::internal::cuda
