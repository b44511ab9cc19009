// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chunk tables of descriptors and arrivals of executions, checked and turned into those of math/.
#pragma once

#include <span>
#include <vector>

#include "math/chunks.hpp"
#include "op/descriptor.hpp"

namespace perseid::internal::op {

// Where a deadline is 0.
inline constexpr uint64_t kDefaultDeadline = 30'000'000'000;
inline uint64_t deadline_or_default(uint64_t nanoseconds) {
  return nanoseconds == 0 ? kDefaultDeadline : nanoseconds;
}

// That a word, such as a signal, is given and aligned. `name` and `field` make its name.
bool check_word(Check& check, const char* name, const char* field, const uint32_t* word);

// A dimension of an operand that chunks may cut.
struct Sliceable {
  ChunkDim dim;
  const char* name;
  int64_t size;
};

// The chunks of an operand: of one of these dimensions, the first by default. `field` is that of
// the descriptor; `table` keeps the boundaries and must live as long as the result.
ChunkCut read_chunks(DescriptorReader& reader, const char* field,
                     const perseid_async_operand* given, std::span<const Sliceable> dims,
                     std::vector<int64_t>* table);

const char* name_of(ChunkDim dim);

// What an execution says of chunks that the plan has. `name` is that of the argument.
Arrival read_arrival(Check& check, const char* name, const perseid_arrival* given,
                     const ChunkCut& cut);
Departure read_departure(Check& check, const char* name, const perseid_chunk_sink* given,
                         const ChunkCut& cut);

// Fills the caller's record, if there is one.
void write_record(const perseid_arrival* given, perseid_status status, const Missing& missing);

}  // namespace perseid::internal::op
