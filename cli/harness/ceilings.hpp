// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What devices reach at best. Whatever else a machine does only lowers a measurement, so the
// highest one that the process has seen stands for the ceiling.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid::harness {

// A ceiling of one device: of how many threads, and for COPY and READ of how many bytes.
struct CeilingKey {
  int32_t device_type = 0, device = 0;
  int64_t threads = 0;
  perseid_ceiling ceiling = PERSEID_CEILING_F32;
  uint64_t bytes = 0;
  auto operator<=>(const CeilingKey&) const = default;
};

class Ceilings {
 public:
  // Work a second. The default measures by perseid_context_ceiling.
  using Measure = std::function<double(const Context&, perseid_ceiling, uint64_t bytes)>;
  Ceilings();
  explicit Ceilings(Measure measure) : measure_(std::move(measure)) {}

  // Measures once more; the highest rate so far.
  double measure(const Context& context, const CeilingKey& key);
  // 0 where it was never measured.
  double highest(const CeilingKey& key) const;
  const std::map<CeilingKey, double>& all() const { return highest_; }

 private:
  Measure measure_;
  std::map<CeilingKey, double> highest_;
};

const char* name_of(perseid_ceiling ceiling);
// Rates in bytes, not FLOPs.
bool is_memory(perseid_ceiling ceiling);

}  // namespace perseid::harness
