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
  // `replaced`: a rank that is lost is started again.
  explicit Ranks(perseid::Group group, Parallel parallel = Parallel::kTensor, bool replaced = false)
      : group_(std::move(group)), parallel_(parallel), replaced_(replaced) {}

  const perseid::Group& group() const { return group_; }
  int32_t rank() const { return group_.rank(); }
  int32_t size() const { return group_.size(); }
  Parallel parallel() const { return parallel_; }
  bool divide_context() const { return parallel_ == Parallel::kContext; }
  Share share(const Config& config) const {
    return divide_context() ? share_of(config) : share_of(config, rank(), size());
  }
  // The positions of every sequence that this rank computes, and how they are placed. Under a
  // causal mask ranks have equal work if each has two pieces of the sequence.
  std::vector<int64_t> positions(const Config& config) const;
  perseid::Sharding placement(const Config& config) const {
    return config.context % (2 * size()) == 0 ? perseid::Sharding::kZigzag
                                              : perseid::Sharding::kContiguous;
  }

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
  // After such an error, on all ranks that are left: a group of these, or with those that replace
  // the lost. What was made with the group before is gone.
  void go_on() { group_ = replaced_ ? perseid::Group() : group_.shrink(); }

 private:
  perseid::Group group_;
  Parallel parallel_;
  bool replaced_;
};

// Starts `count` child processes, which meet by perseid::Group, and `restarts` times another one in
// the place of one that a signal has ended. In a child it returns nothing. In the parent it
// returns, when all have ended, the exit code of the first rank that no signal has ended. Ranks
// after the first, and those that replace others, print nothing on stdout, until speak().
std::optional<int> launch(int32_t count, int32_t restarts);
void speak();

}  // namespace gpt
