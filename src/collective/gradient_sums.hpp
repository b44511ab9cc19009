// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over ranks on a GPU, those that overwrite and those that accumulate: they are
// collected, then launched together.
#pragma once

#include <initializer_list>

#include "cuda/rank_sum.hpp"

namespace perseid::internal::collective {

class GradientSums {
 public:
  struct Types {
    DType parts, sums;
    bool in_pairs = false;  // as RankSumConfig has it
  };
  // accumulates: which kinds of sums there are.
  Status make(const Types& types, std::initializer_list<bool> accumulates,
              const std::shared_ptr<cuda::Gpu>& gpu);

  // Begins a sum, whose parts are added next: [batch, rows, columns], as out.
  void add(const Tensor& out, bool accumulates);
  void add_part(const Tensor& part) { parts_.push_back(part); }
  // Launches all of them. Of the arguments: the operation, and how it waits.
  Status run(const cuda::RankSum::Arguments& common, void* stream);

 private:
  struct Sum {
    Tensor out;
    bool accumulates;
    size_t first;  // of the parts
  };
  std::unique_ptr<cuda::RankSum> kernels_[2];  // one that overwrites, one that accumulates
  std::vector<Sum> sums_;
  std::vector<Tensor> parts_;
  std::vector<cuda::RankSum::Arguments> launched_;
};

}  // namespace perseid::internal::collective
