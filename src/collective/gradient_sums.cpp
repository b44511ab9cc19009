// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/gradient_sums.hpp"

namespace perseid::internal::collective {

Status GradientSums::make(const Types& types, std::initializer_list<bool> accumulates,
                          const std::shared_ptr<cuda::Gpu>& gpu) {
  Status status;
  for (const bool each : accumulates) {
    std::unique_ptr<cuda::RankSum>& kernel = kernels_[each ? 1 : 0];
    if (!status.ok() || kernel != nullptr) continue;
    status = cuda::RankSum::make({.in = types.parts,
                                  .out = types.sums,
                                  .bias = each ? types.sums : DType::kNone,
                                  .in_pairs = types.in_pairs},
                                 gpu, &kernel);
  }
  return status;
}

void GradientSums::add(const Tensor& out, bool accumulates) {
  sums_.push_back({out, accumulates, parts_.size()});
}

Status GradientSums::run(const cuda::RankSum::Arguments& common, void* stream) {
  Status status;
  for (const bool accumulates : {false, true}) {
    launched_.clear();
    for (size_t i = 0; i < sums_.size(); ++i) {
      const Sum& sum = sums_[i];
      if (sum.accumulates != accumulates) continue;
      const size_t end = i + 1 < sums_.size() ? sums_[i + 1].first : parts_.size();
      cuda::RankSum::Arguments& added = launched_.emplace_back(common);
      added.parts = std::span(parts_).subspan(sum.first, end - sum.first);
      added.out = sum.out;
      if (accumulates) added.bias = sum.out;
    }
    if (status.ok() && !launched_.empty())
      status = kernels_[accumulates ? 1 : 0]->run(launched_, stream);
  }
  sums_.clear();
  parts_.clear();
  return status;
}

}  // namespace perseid::internal::collective
