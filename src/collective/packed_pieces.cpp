// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/packed_pieces.hpp"

#include <cstring>

namespace perseid::internal::collective {
namespace {

void copy_row(const Tensor& from, int64_t from_row, const Tensor& to, int64_t to_row,
              int64_t head) {
  const int64_t size = size_of(from.dtype);
  const auto* source =
      from.as<const std::byte>() + (from_row * from.stride[0] + head * from.stride[1]) * size;
  auto* target = to.as<std::byte>() + (to_row * to.stride[0] + head * to.stride[1]) * size;
  if (from.stride[2] == 1 && to.stride[2] == 1) {
    std::memcpy(target, source, static_cast<size_t>(from.shape[2] * size));
    return;
  }
  for (int64_t i = 0; i < from.shape[2]; ++i)
    std::memcpy(target + i * to.stride[2] * size, source + i * from.stride[2] * size,
                static_cast<size_t>(size));
}

}  // namespace

PackedPieces::PackedPieces(const dispatch::Device& device, const perseid_attention_desc& desc,
                           int64_t pieces)
    : device_(device),
      rows_first_(desc.layout == PERSEID_BSHD),
      accumulates_((desc.accumulate & PERSEID_GRAD_QUERY) != 0),
      pieces_(pieces),
      heads_(desc.heads),
      total_q_(desc.total_q),
      total_((desc.total_q + pieces - 1) / pieces),
      longest_(desc.q_len / pieces),
      head_dim_(desc.head_dim),
      value_dim_(desc.value_dim == 0 ? desc.head_dim : desc.value_dim),
      dtype_(static_cast<DType>(desc.dtype)),
      lse_dtype_(dtype_ == DType::kF64 ? DType::kF64 : DType::kF32),
      cumulative_(
          static_cast<size_t>((desc.batch == 0 && desc.zero_batch == 0 ? 1 : desc.batch) + 1)) {
  const int64_t rows = total_ * heads_;
  const auto bytes_of = [&](int64_t dim, DType dtype) {
    return static_cast<size_t>(rows * dim * size_of(dtype));
  };
  const size_t key = bytes_of(head_dim_, dtype_), value = bytes_of(value_dim_, dtype_),
               lse = bytes_of(1, lse_dtype_);
  // The widest elements first, so that all are aligned.
  memory_.resize(2 * (lse + key + value));
  std::byte* at = memory_.data();
  for (const auto& [name, dim, dtype, bytes] : {std::tuple{kLse, int64_t{1}, lse_dtype_, lse},
                                                {kGradLse, 1, lse_dtype_, lse},
                                                {kQuery, head_dim_, dtype_, key},
                                                {kGradQuery, head_dim_, dtype_, key},
                                                {kOut, value_dim_, dtype_, value},
                                                {kGradOut, value_dim_, dtype_, value}}) {
    Rows& made = rows_[name];
    const bool of_lse = name == kLse || name == kGradLse, rows_first = rows_first_ && !of_lse;
    made.copy = {.data = at,
                 .dtype = dtype,
                 .rank = 3,
                 .shape = {total_, heads_, dim},
                 .stride = {rows_first ? heads_ * dim : dim, rows_first ? dim : total_ * dim, 1}};
    made.copy_given = made.copy;
    if (!rows_first) {
      std::swap(made.copy_given.shape[0], made.copy_given.shape[1]);
      std::swap(made.copy_given.stride[0], made.copy_given.stride[1]);
    }
    if (of_lse) made.copy_given.rank = 2;
    made.dl = as_dl(&made.copy_given, device.dl_device());
    at += bytes;
  }
  cumulative_view_ = {.data = cumulative_.data(),
                      .dtype = DType::kI64,
                      .rank = 1,
                      .shape = {std::ssize(cumulative_)},
                      .stride = {1}};
  cumulative_dl_ = as_dl(&cumulative_view_, device.dl_device());
  cumulative_dl_.dtype = {kDLInt, 64, 1};
}

void PackedPieces::read(op::ArgumentReader& reader, const perseid_attention_backward_args& args) {
  const auto read = [&](Name name, const char* text, op::Access access, const DLTensor* given,
                        const op::Extent& dim) {
    Tensor& view = rows_[name].given;
    view = {};
    if (!reader.ok()) return;
    const op::Extent rows{"total_q", total_q_}, heads{"heads", heads_};
    const bool of_lse = name == kLse || name == kGradLse, rows_first = rows_first_ && !of_lse;
    const op::Extent extents[] = {rows_first ? rows : heads, rows_first ? heads : rows, dim};
    view = reader.read(access, text, given, of_lse ? lse_dtype_ : dtype_,
                       std::span(extents).first(of_lse ? 2 : 3));
    if (!reader.ok()) return;
    if (!rows_first) {
      std::swap(view.shape[0], view.shape[1]);
      std::swap(view.stride[0], view.stride[1]);
    }
    if (!of_lse) return;
    view.rank = 3;
    view.shape[2] = view.stride[2] = 1;
  };
  const op::Extent head_dim{"head_dim", head_dim_}, value_dim{"value_dim", value_dim_};
  read(kQuery, "query", op::Access::kRead, args.query, head_dim);
  read(kOut, "out", op::Access::kRead, args.out, value_dim);
  read(kLse, "lse", op::Access::kRead, args.lse, {});
  read(kGradOut, "grad_out", op::Access::kRead, args.grad_out, value_dim);
  rows_[kGradLse].given = rows_[kGradQuery].given = {};
  if (args.grad_lse != nullptr) read(kGradLse, "grad_lse", op::Access::kRead, args.grad_lse, {});
  if (args.grad_query != nullptr)
    read(kGradQuery, "grad_query", op::Access::kWrite, args.grad_query, head_dim);
}

// Calls copy(row of the rank, row of the piece, head).
template <class Copy>
void PackedPieces::for_each_row(int64_t piece, std::span<const int64_t> begins,
                                const Copy& copy) const {
  const int64_t sequences = std::ssize(begins) - 1;
  cpu::for_each_task(*device_.executor, sequences * heads_, [&](int64_t task, int32_t) {
    const auto sequence = static_cast<size_t>(task / heads_);
    const int64_t begin = begins[sequence], rows = (begins[sequence + 1] - begin) / pieces_;
    for (int64_t row = 0; row < rows; ++row)
      copy(begin + piece * rows + row, begin / pieces_ + row, task % heads_);
  });
}

void PackedPieces::take(int64_t piece, std::span<const int64_t> begins,
                        perseid_attention_backward_args* args) {
  describe(begins, args);
  for (int name = 0; name < kNames; ++name) {
    const Rows& rows = rows_[static_cast<size_t>(name)];
    if (!rows.given.present() || (name == kGradQuery && !accumulates_)) continue;
    for_each_row(piece, begins, [&](int64_t from, int64_t to, int64_t head) {
      copy_row(rows.given, from, rows.copy, to, head);
    });
  }
}

void PackedPieces::describe(std::span<const int64_t> begins,
                            perseid_attention_backward_args* args) {
  for (size_t i = 0; i < begins.size(); ++i) cumulative_[i] = begins[i] / pieces_;
  const auto dl = [&](Name name) {
    return rows_[name].given.present() ? &rows_[name].dl : nullptr;
  };
  args->query = dl(kQuery);
  args->out = dl(kOut);
  args->lse = dl(kLse);
  args->grad_out = dl(kGradOut);
  args->grad_lse = dl(kGradLse);
  args->grad_query = dl(kGradQuery);
  args->cu_seqlens_q = &cumulative_dl_;
}

void PackedPieces::give(int64_t piece, std::span<const int64_t> begins) {
  const Rows& rows = rows_[kGradQuery];
  if (!rows.given.present()) return;
  for_each_row(piece, begins, [&](int64_t to, int64_t from, int64_t head) {
    copy_row(rows.copy, from, rows.given, to, head);
  });
}

}  // namespace perseid::internal::collective
