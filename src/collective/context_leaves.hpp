// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Backward of context-parallel attention in canonical order, on CPUs and GPUs; on Hopper one kernel
// has the same leaves where it takes them (cuda/device/sm90/attention/backward_leaves.hpp). The
// queries of all ranks are cut into eight leaves, in zigzag placement each of two equal pieces,
// numbers i and 15 - i of 16.
// A rank holds 8, 4, 2 or 1 neighbouring leaves whole. It computes what each piece gives to the
// gradients of all keys by a plan of its own, the same on any number of ranks, and adds these in
// pairs of neighbours (math/leaf_tree.hpp); a key's rank then adds those of ranks in pairs too.
// Rows of grad_query have one sum each, over keys in their order, and so have rows of grad_bias,
// over batch entries and heads. Of a ragged batch a piece has its rows of every sequence; CPUs copy
// them side by side, kernels of GPUs are told where they begin.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective/packed_pieces.hpp"
#include "collective/plan.hpp"
#include "cuda/rank_sum.hpp"
#include "math/attention_problem.hpp"
#include "op/attention.hpp"

namespace perseid::internal::collective {

class ContextLeaves {
 public:
  // Where gradients of all keys and values are summed: `elements` from `data` on. The tensors are
  // null where a gradient is not wanted.
  struct Buffer {
    std::byte* data;
    const DLTensor *key, *value;
  };

  // Why gradients have no canonical order here, the same on all ranks; "" where they have. q_rows:
  // of each rank.
  static std::string refuse(const perseid_attention_desc& desc, bool zigzag,
                            std::span<const int64_t> q_rows);
  // desc: the attention of this rank's queries and all keys. rows: their placement.
  static Status make(const op::DevicePointer& device, const perseid_attention_desc& desc,
                     const QueryRows& rows, std::unique_ptr<ContextLeaves>* made);

  // The number of equal pieces that a sequence is cut into.
  static int64_t pieces(bool zigzag) { return kLeaves * (zigzag ? 2 : 1); }
  // How many sums are held at once.
  int64_t buffers() const { return buffers_of_leaves(pieces_.back().leaf + 1); }
  // Allocates all of them but the first, and loads what adds them.
  Status make_buffers(size_t bytes_each);
  std::byte* buffer(size_t number) const {
    return static_cast<std::byte*>(memory_.get()) + (number - 1) * bytes_each_;
  }
  // For explain.
  std::string text() const;
  // What all pieces cost. The workspace is that of the one that needs most.
  dispatch::Work work() const;
  // The tensors have this rank's rows, of which pieces take some.
  void require_rows(op::ArgumentReader& reader, const perseid_attention_backward_args& args) const;
  // What backward() refuses before anything runs.
  Status check(const perseid_attention_backward_args& args, std::span<const int64_t> begins,
               std::span<const Buffer> buffers, const op::Workspace& workspace) const;
  // The gradients of key and value are then in the first buffer. Where ragged: on CPUs `begins` of
  // sequences in this rank's rows, on GPUs args.cu_seqlens_q of its pieces (ContextLengths).
  Status backward(const perseid_attention_backward_args& args, std::span<const int64_t> begins,
                  std::span<const Buffer> buffers, int64_t elements, const op::Workspace& workspace,
                  void* stream) const;

 private:
  struct Piece {
    int64_t number;  // of those of this rank, in the order of rows
    int64_t leaf;    // of this rank; of two pieces with the same the second adds to the first
    InnerPlan plan;
  };

  ContextLeaves(const op::DevicePointer& device, const perseid_attention_desc& desc);
  static const op::AttentionPlan& plan_of(const Piece& piece) {
    return static_cast<const op::AttentionPlan&>(*piece.plan);
  }
  // With the gradients of keys where the piece's are summed.
  perseid_attention_backward_args with_sums(const perseid_attention_backward_args& args,
                                            const Piece& of, std::span<const Buffer> buffers) const;
  // Calls run(args) with those of the piece's rows.
  template <class Run>
  Status with_rows(const Piece& of, const perseid_attention_backward_args& args,
                   const Run& run) const;
  Status add(const Buffer& from, const Buffer& to, int64_t elements, void* stream) const;

  const op::DevicePointer device_;
  const DType sum_dtype_;
  const bool rows_first_, ragged_;
  const int64_t rows_;                    // of this rank
  const int64_t columns_;                 // of a key and its value
  int64_t piece_rows_ = 0;                // of a piece
  std::vector<Piece> pieces_;             // in the order of the tree
  std::unique_ptr<PackedPieces> packed_;  // where ragged, on CPUs
  std::unique_ptr<cuda::RankSum> sum_;    // on GPUs
  size_t bytes_each_ = 0;                 // of a buffer
  std::shared_ptr<void> memory_;          // of all buffers but the first
};

}  // namespace perseid::internal::collective
