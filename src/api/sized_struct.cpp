// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "api/sized_struct.hpp"

#include <algorithm>

namespace perseid::internal::api {

namespace {

// More than any header's struct will have: what lies beyond is no struct_size, but forgotten.
constexpr size_t kMostBytes = 4096;

}  // namespace

bool read_struct(op::Check& check, const StructFacts& facts, const void* given, void* current) {
  uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  // Versions of a struct differ by whole alignment units: other sizes would cut a field.
  if (!check.require(facts.least <= size && size <= kMostBytes && size % facts.alignment == 0,
                     facts.name, ".struct_size is ", size, ", expected a multiple of ",
                     facts.alignment, " from ", facts.least, " to ", kMostBytes,
                     "; set it to sizeof(", facts.name, "), which is ", facts.size,
                     " in the header of this library"))
    return false;
  std::memset(current, 0, facts.size);
  std::memcpy(current, given, std::min<size_t>(size, facts.size));
  const auto* const bytes = static_cast<const unsigned char*>(given);
  for (size_t i = facts.size; i < size; ++i)
    if (!check.require(bytes[i] == 0, facts.name, ".struct_size is ", size, ", but byte ", i,
                       " is not zero and the struct has ", facts.size,
                       " bytes in this library: a newer header's field is set; leave it zero or "
                       "use a newer library"))
      return false;
  return true;
}

}  // namespace perseid::internal::api
