// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Gradients that every rank computes a part of, for all rows, and that the rank of a row sums, in
// the order of ranks or in pairs of them. The parts stay where they were written; ranks read them
// there. Ranks that share no memory give one another the rows that each sums.
#pragma once

#include "collective/gradient_sums.hpp"
#include "collective/overlap_report.hpp"
#include "collective/transport.hpp"

namespace perseid::internal::collective {

class PartialGradients {
 public:
  // Collective. `shards`: of one piece, in the type of the parts. `rows`: the most that a rank
  // sums. dtype: of sums. accumulates: which kinds of sums there are, those that overwrite and
  // those that add. in_pairs: as ReducedRun has it.
  static Status make(const TransportSite& site, const Shards& shards, int64_t rows, DType dtype,
                     std::initializer_list<bool> accumulates, bool in_pairs,
                     std::unique_ptr<PartialGradients>* made);

  // Where this rank writes its part: after start(), until share().
  std::byte* partial() const { return transport_->partial(); }
  // With the stream and the report of `execution`.
  Status start(const Operation& operation, const Sending& execution);
  // Before share(): rows of this rank's part, [row, head, element], that `rank` sums. at: the bytes
  // of the rows that it sums before these.
  Status give(int32_t rank, const Tensor& partial, size_t at) {
    return transport_->give(rank, partial, at);
  }
  // The same of what `rank` gives, in its order: rows that this rank sums, in its own part.
  void take(int32_t rank, const Tensor& partial, size_t at) { transport_->take(rank, partial, at); }
  Status share(const Operation& operation);
  // On the CPU, after start(): a part of a rank that has no bit in `ranks`.
  MissingPart missing(uint64_t ranks) const;
  // What a rank sums.
  struct Rows {
    Tensor out, partial;   // [row, head, element]: the own rows, and these in this rank's part
    size_t at = 0;         // as given
    uint64_t readers = 0;  // a bit for each rank that sees the rows; the parts of others are zeros
    bool accumulates = false;
  };
  // On a GPU sum_all() launches the sums.
  void sum(const Rows& rows);
  Status sum_all(const Operation& operation);
  // This rank has read all parts.
  Status finish() { return transport_->finish(sending_); }

 private:
  explicit PartialGradients(const TransportSite& site)
      : group_(site.group), device_(site.device), epoch_(site.group.first_epoch() - 1) {}
  void sum_on_cpu(const Tensor& out, bool accumulates) const;
  void sum_on_gpu(const Tensor& out, bool accumulates);

  Group& group_;
  const dispatch::Device& device_;
  bool in_pairs_ = false;
  std::unique_ptr<ReduceTransport> transport_;
  GradientSums sums_;           // on a GPU
  std::vector<Tensor> parts_;   // of each rank, all rows
  std::vector<Tensor> summed_;  // of those that a sum has
  uint32_t epoch_;              // the last that was shared
  Sending sending_{};
};

}  // namespace perseid::internal::collective
