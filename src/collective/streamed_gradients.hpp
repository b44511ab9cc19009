// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Partial gradients of keys and values that leave while the attention still computes others,
// between GPUs that map one another's memory. A rank computes what its queries give to the
// gradients of all keys, [kv_head of all entries, row, key | value] in float32. The kernel signals
// each chunk of a group of heads when it is complete; copy engines then bring it to the rank that
// has its keys, to the rank after this one first. That rank sums what all ranks have brought, in
// the order of ranks.
//
// Part of the operation in which the keys arrive: a rank that has ended the operation before has
// read its parts.
#pragma once

#include "collective/gpu_rank.hpp"
#include "collective/gradient_sums.hpp"
#include "collective/transport.hpp"

namespace perseid::internal::collective {

class StreamedGradients {
 public:
  // The same on all ranks.
  struct Geometry {
    const ShardChunks* chunks;        // lives longer
    int64_t heads = 1, kv_heads = 1;  // of all entries, and of one
    int64_t rows = 0;                 // of all ranks
    std::vector<int64_t> of_rank;     // rows of each
    int64_t key_dim = 0, value_dim = 0;
    DType dtype = DType::kBF16;  // of sums
  };
  // Rows [position, position + count) of all, from `row` on of the rank that has their keys, which
  // `readers` see.
  struct Run {
    int64_t chunk, row, count, position;
    uint64_t readers;
  };

  // Collective. accumulates: which kinds of sums there are.
  static Status make(const TransportSite& site, const Geometry& geometry,
                     std::initializer_list<bool> accumulates,
                     std::unique_ptr<StreamedGradients>* made);
  ~StreamedGradients();
  StreamedGradients(const StreamedGradients&) = delete;
  StreamedGradients& operator=(const StreamedGradients&) = delete;

  std::byte* partial() const { return local_ + partial_; }
  // After the operation has begun, before the kernel is launched: what it signals.
  Departure start();
  // After it was launched and the keys were sent: the chunks of a rank, in order, of a group of
  // heads.
  Status push(int32_t rank, int64_t group, std::span<const Run> runs);
  // Gradients of own keys, [row, head, element] of some heads, from `head` of all on, or of their
  // values.
  struct Rows {
    Tensor out;
    int64_t head = 0;
    bool of_value = false, accumulates = false;
  };
  // Adds a sum to those that sum() launches.
  void add(const Run& run, const Rows& rows);
  // When everything has arrived of the groups of heads before this one.
  Status sum(const Operation& operation, int64_t groups, void* stream);

 private:
  StreamedGradients(const TransportSite& site, const Geometry& geometry);
  Status allocate(const Operation& operation);
  int64_t each() const { return geometry_.heads / geometry_.chunks->groups; }  // heads of a group
  int64_t row_elements() const { return geometry_.key_dim + geometry_.value_dim; }
  // Signals of some groups of heads of a rank, one from each other rank side by side.
  int64_t words(int64_t groups) const { return (group_.size() - 1) * groups * most_chunks_; }
  int64_t words() const { return words(geometry_.chunks->groups); }
  // At `rank`: of chunk i of its own that `source` brings. The rank after it is the first.
  uint32_t* word(int32_t rank, int32_t source, int64_t group, int64_t i) const {
    return windows_->words(rank) + (group * most_chunks_ + i) * (group_.size() - 1) +
           place(rank, source);
  }
  int32_t place(int32_t rank, int32_t source) const {
    return (source - rank - 1 + group_.size()) % group_.size();
  }
  // At `rank`: from `row` of its rows on, what `source` has brought.
  std::byte* inbox(int32_t rank, int32_t source, int64_t head, int64_t row) const;

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Geometry geometry_;
  GpuRank* rank_ = nullptr;
  std::unique_ptr<GpuWindows> windows_;
  GradientSums sums_;
  int64_t most_chunks_ = 1;     // of a rank
  size_t data_ = 0, part_ = 0;  // in the windows: where parts begin, bytes of one
  std::byte* local_ = nullptr;  // signals, then the partial gradients
  size_t partial_ = 0;
  uint32_t epoch_;
};

}  // namespace perseid::internal::collective
