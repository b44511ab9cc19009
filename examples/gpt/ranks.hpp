// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of a run: processes of this host that train one model together. Each keeps all weights
// and moments, so that those that are left go on when one dies; what they share is the computing.
#pragma once

#include <optional>
#include <vector>

#include "parameters.hpp"
#include "perseid/collective.hpp"

namespace gpt {

class Ranks {
 public:
  explicit Ranks(perseid::Group group) : group_(std::move(group)) {}

  const perseid::Group& group() const { return group_; }
  int32_t rank() const { return group_.rank(); }
  int32_t size() const { return group_.size(); }
  Share share(const Config& config) const { return share_of(config, rank(), size()); }

  // In place: the sum over ranks, the same bits on all.
  template <class R>
  void sum(R* values, int64_t count) const {
    const perseid::Tensor tensor(values, perseid::dtype_of<R>, {count});
    group_.all_reduce(tensor, tensor);
  }
  // What every rank says, one after the other.
  std::vector<double> gather(const std::vector<double>& mine) const;

  // Whether the error says that a rank is missing.
  static bool says_lost(const perseid::Error& error) {
    return error.status() == PERSEID_PEER_LOST || error.status() == PERSEID_TIMEOUT;
  }
  // After such an error, on all ranks that are left. What was made with the group before is gone.
  void go_on_without_lost() { group_ = group_.shrink(); }

 private:
  perseid::Group group_;
};

// Starts `count` child processes, which meet by perseid::Group. In a child it returns nothing. In
// the parent it returns, when all have ended, the exit code of the first rank that no signal has
// ended. Ranks after the first print nothing on stdout, until speak().
std::optional<int> launch(int32_t count);
void speak();

}  // namespace gpt
