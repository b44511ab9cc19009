// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches in context-parallel attention: cumulative lengths of whole sequences, of which a
// rank has equal pieces of queries, and what its attention is told of them.
#pragma once

#include "collective/plan.hpp"
#include "dispatch/memory.hpp"

namespace perseid::internal::collective {

class ContextLengths {
 public:
  // leaves: a sequence of queries is cut into those of canonical order.
  ContextLengths(op::DevicePointer device, int64_t batch, int64_t ranks, bool zigzag, bool leaves);
  // On a GPU, allocates.
  Status make();

  // The longest sequence and the rows of a rank, of a plan.
  struct Most {
    int64_t longest, total;
  };
  // Lengths are in memory of the host, on GPUs too, since what is sent where depends on them.
  Status read(const char* operation, const DLTensor* of_queries, const Most& queries,
              const DLTensor* of_keys, const Most& keys);
  // To a GPU, in stream order.
  Status send(void* stream);

  // Where sequences begin: the rank's queries, and all keys.
  const std::vector<int64_t>& queries() const { return queries_; }
  const std::vector<int64_t>& keys() const { return keys_; }
  // The same for the attention. On a GPU, for several pieces of a rank: [batch + 1][pieces] begins,
  // then [batch + 1] rows of one piece (dispatch/attention_wrappers.hpp).
  const DLTensor* queries_given() const { return &queries_dl_; }
  // The same of the rank's pieces of leaves, on a GPU.
  const DLTensor* pieces_given() const { return &pieces_dl_; }
  const DLTensor* keys_given() const { return &keys_dl_; }

 private:
  void read(op::ArgumentReader& reader, const char* name, const DLTensor* given, const Most& most,
            int64_t pieces, std::vector<int64_t>* lengths) const;
  void view(void* data, int64_t stride, Tensor* lengths, DLTensor* given) const;
  void push_begins(int64_t pieces);

  const op::DevicePointer device_;
  const int64_t batch_, ranks_;
  const bool zigzag_;
  const int64_t pieces_, q_pieces_;  // that a sequence is cut into
  const int64_t leaf_pieces_;        // of this rank; 0 without leaves
  std::vector<int64_t> queries_, keys_, sent_;
  std::shared_ptr<void> memory_;
  Tensor queries_view_, keys_view_, pieces_view_;
  DLTensor queries_dl_{}, keys_dl_{}, pieces_dl_{};
};

}  // namespace perseid::internal::collective
