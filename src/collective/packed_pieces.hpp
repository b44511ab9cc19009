// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Pieces of a ragged batch, on CPUs. A rank has some equal pieces of every sequence. An attention
// of one of them wants its rows of all sequences side by side, so they are copied there and back.
#pragma once

#include <array>
#include <vector>

#include "collective/plan.hpp"

namespace perseid::internal::collective {

class PackedPieces {
 public:
  // desc: of the rank, which has so many pieces of each sequence.
  PackedPieces(const dispatch::Device& device, const perseid_attention_desc& desc, int64_t pieces);

  // The most rows of a piece, of all sequences and of one.
  int64_t total() const { return total_; }
  int64_t longest() const { return longest_; }
  // The caller's tensors. They are used until the next call.
  void read(op::ArgumentReader& reader, const perseid_attention_backward_args& args);
  // Sets the arguments of a piece, without its rows.
  void describe(std::span<const int64_t> begins, perseid_attention_backward_args* args);
  // Copies a piece, and sets its arguments. begins: of sequences in the rank's rows, and their end,
  // all multiples of the number of pieces.
  void take(int64_t piece, std::span<const int64_t> begins, perseid_attention_backward_args* args);
  // Copies what its attention has written to the caller's tensors.
  void give(int64_t piece, std::span<const int64_t> begins);

 private:
  enum Name { kQuery, kOut, kGradOut, kGradQuery, kLse, kGradLse, kNames };
  struct Rows {
    Tensor given, copy;  // [row, head, element]; absent: not given
    Tensor copy_given;   // as callers have it
    DLTensor dl;
  };
  Rows make_rows(int64_t dim, DType dtype, std::byte* memory) const;
  template <class Copy>
  void for_each_row(int64_t piece, std::span<const int64_t> begins, const Copy& copy) const;

  const dispatch::Device& device_;
  const bool rows_first_, accumulates_;
  const int64_t pieces_, heads_, total_q_, total_, longest_;
  const int64_t head_dim_, value_dim_;
  const DType dtype_, lse_dtype_;
  std::vector<std::byte> memory_;
  std::array<Rows, kNames> rows_;
  std::vector<int64_t> cumulative_;  // of the piece
  Tensor cumulative_view_;
  DLTensor cumulative_dl_{};
};

}  // namespace perseid::internal::collective
