// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/ragged.hpp"

#include <cstring>

namespace perseid::internal::cpu {
namespace {

// Bytes of a task: enough to be worth waking a thread for.
constexpr int64_t kTaskBytes = 1 << 17;

}  // namespace

void copy_ragged_rows(Executor& executor, const RaggedRows& rows, bool into_packed,
                      bool zero_rest) {
  const int64_t count = rows.rows(into_packed);
  const int64_t each = max(kTaskBytes / (rows.run * rows.parts), int64_t{1});
  const int64_t* const to_stride = into_packed ? rows.packed_part : rows.padded_part;
  const int64_t* const from_stride = into_packed ? rows.padded_part : rows.packed_part;
  for_each_task(executor, ceil_div(count, each), [&](int64_t task, int32_t) {
    for (int64_t row = task * each; row < min(count, (task + 1) * each); ++row) {
      const RaggedRows::Copy copy =
          into_packed ? rows.into_packed(row, zero_rest) : rows.into_padded(row, zero_rest);
      if (copy.to == nullptr) continue;
      for (int64_t part = 0; part < rows.parts; ++part) {
        char* const to = copy.to + rows.part_offset(to_stride, part);
        if (copy.from == nullptr)
          std::memset(to, 0, static_cast<size_t>(rows.run));
        else
          std::memcpy(to, copy.from + rows.part_offset(from_stride, part),
                      static_cast<size_t>(rows.run));
      }
    }
  });
}

}  // namespace perseid::internal::cpu
