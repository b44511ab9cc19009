// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/ceilings.hpp"

#include <algorithm>

namespace perseid::harness {

Ceilings::Ceilings()
    : Ceilings([](const Context& context, perseid_ceiling ceiling, uint64_t bytes) {
        double per_second = 0;
        detail::check(perseid_context_ceiling(context.get(), ceiling, bytes, &per_second));
        return per_second;
      }) {}

double Ceilings::measure(const Context& context, const CeilingKey& key) {
  double& highest = highest_[key];
  return highest = std::max(highest, measure_(context, key.ceiling, key.bytes));
}

double Ceilings::highest(const CeilingKey& key) const {
  const auto found = highest_.find(key);
  return found == highest_.end() ? 0 : found->second;
}

const char* name_of(perseid_ceiling ceiling) {
  switch (ceiling) {
    case PERSEID_CEILING_F32:
      return "f32 FMA peak";
    case PERSEID_CEILING_BF16:
      return "bf16 dot peak";
    case PERSEID_CEILING_F64:
      return "f64 FMA peak";
    case PERSEID_CEILING_COPY:
      return "copy";
    case PERSEID_CEILING_READ:
      return "read";
  }
  return "";
}

bool is_memory(perseid_ceiling ceiling) {
  return ceiling == PERSEID_CEILING_COPY || ceiling == PERSEID_CEILING_READ;
}

}  // namespace perseid::harness
