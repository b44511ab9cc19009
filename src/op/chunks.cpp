// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/chunks.hpp"

#include <algorithm>

namespace perseid::internal::op {
namespace {

// Words that every chunk has one of, and the chunk that comes first.
void check_words(Check& check, const char* name, const ChunkCut& cut, const uint32_t* signals,
                 const uint32_t* epoch_ptr, int64_t first) {
  check.require(signals != nullptr, name, ".signals is NULL, expected ", cut.count,
                " words, one for each chunk");
  check_word(check, name, ".signals", signals);
  if (epoch_ptr != nullptr) check_word(check, name, ".epoch_ptr", epoch_ptr);
  check.require(0 <= first && first < cut.count, name, ".first_chunk is ", first,
                ", expected 0 to ", cut.count - 1, ", one of the plan's chunks");
  check.require(cut.dim != ChunkDim::kK || first == 0, name, ".first_chunk is ", first,
                ", expected 0: k is summed in ascending order");
}

}  // namespace

const char* name_of(ChunkDim dim) {
  switch (dim) {
    case ChunkDim::kM:
      return "m";
    case ChunkDim::kN:
      return "n";
    case ChunkDim::kK:
      return "k";
    case ChunkDim::kKv:
      return "keys";
    case ChunkDim::kNone:
      break;
  }
  return "none";
}

bool check_word(Check& check, const char* name, const char* field, const uint32_t* word) {
  if (!check.require(word != nullptr, name, field, " is NULL; pass the address of a word"))
    return false;
  const auto address = reinterpret_cast<uintptr_t>(word);
  return check.require(address % alignof(uint32_t) == 0, name, field, " is at an address that is ",
                       address % alignof(uint32_t), " bytes past a multiple of ", alignof(uint32_t),
                       "; align it to its 32 bits");
}

ChunkCut read_chunks(DescriptorReader& reader, const char* field,
                     const perseid_async_operand* given, std::span<const Sliceable> dims,
                     std::vector<int64_t>* table) {
  if (given == nullptr || !reader.ok()) return {};
  const auto wanted =
      given->dim == PERSEID_CHUNK_DEFAULT ? dims[0].dim : static_cast<ChunkDim>(given->dim);
  const auto dim = std::find_if(dims.begin(), dims.end(),
                                [&](const Sliceable& each) { return each.dim == wanted; });
  std::string expected;
  for (const Sliceable& each : dims)
    expected += concatenate(expected.empty() ? "" : " or ", each.name, " (",
                            static_cast<uint32_t>(each.dim), expected.empty() ? ", also 0)" : ")");
  if (!reader.require(dim != dims.end(), field, ".dim is ", given->dim, ", expected ", expected))
    return {};
  const int64_t most = std::min<int64_t>(dim->size, PERSEID_MAX_CHUNKS);
  if (!reader.require(dim->size > 0, field, " cuts ", dim->name, ", which is 0; pass NULL") ||
      !reader.require(1 <= given->count && given->count <= most, field, ".count is ", given->count,
                      ", expected 1 to ", most, " chunks of ", dim->name, " = ", dim->size) ||
      !reader.require(given->begin != nullptr, field, ".begin is NULL, expected ", given->count + 1,
                      " boundaries"))
    return {};
  table->assign(given->begin, given->begin + given->count + 1);
  const auto count = static_cast<size_t>(given->count);
  const std::vector<int64_t>& begin = *table;
  if (!reader.require(begin[0] == 0, field, ".begin[0] is ", begin[0], ", expected 0: the first ",
                      "chunk begins with the first of ", dim->name))
    return {};
  for (size_t c = 0; c < count; ++c)
    if (!reader.require(begin[c] < begin[c + 1], field, ".begin[", c + 1, "] is ", begin[c + 1],
                        ", expected more than begin[", c, "], which is ", begin[c],
                        ": boundaries rise, and no chunk is empty"))
      return {};
  if (!reader.require(begin[count] == dim->size, field, ".begin[", count, "] is ", begin[count],
                      ", expected ", dim->size, ": the last chunk ends with ", dim->name))
    return {};
  return {dim->dim, begin.data(), given->count};
}

Arrival read_arrival(Check& check, const char* name, const perseid_arrival* given,
                     const ChunkCut& cut) {
  if (!cut.present()) {
    check.require(given == nullptr, name,
                  " is given, but the plan was made without chunks of this operand; pass NULL");
    return {};
  }
  if (!check.require(given != nullptr, name, " is NULL, expected the arrival of the plan's ",
                     cut.count, " chunks"))
    return {};
  check_words(check, name, cut, given->signals, given->epoch_ptr, given->first_chunk);
  if (given->abort != nullptr) check_word(check, name, ".abort", given->abort);
  return {given->signals,
          given->epoch,
          given->epoch_ptr,
          given->first_chunk,
          deadline_or_default(given->deadline_ns),
          given->abort,
          given->record};
}

Departure read_departure(Check& check, const char* name, const perseid_chunk_sink* given,
                         const ChunkCut& cut) {
  if (!cut.present()) {
    check.require(given == nullptr, name,
                  " is given, but the plan was made without chunks of c; pass NULL");
    return {};
  }
  if (!check.require(given != nullptr, name, " is NULL, expected the signals of the plan's ",
                     cut.count, " chunks"))
    return {};
  check_words(check, name, cut, given->signals, given->epoch_ptr, given->first_chunk);
  return {given->signals, given->epoch, given->epoch_ptr, given->first_chunk};
}

void write_record(const perseid_arrival* given, perseid_status status, const Missing& missing) {
  if (given == nullptr || given->record == nullptr) return;
  *given->record = {.status = status,
                    .rank = -1,
                    .operand = missing.operand,
                    .chunk = static_cast<int32_t>(missing.chunk),
                    .expected = missing.expected,
                    .seen = missing.seen};
}

}  // namespace perseid::internal::op
