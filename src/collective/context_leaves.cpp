// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/context_leaves.hpp"

#include <algorithm>
#include <cstring>

#include "dispatch/memory.hpp"

namespace perseid::internal::collective {
namespace {

// A task adds about so many elements.
constexpr int64_t kTaskElements = 64 << 10;

// Rows [row, row + count) of a dimension of a tensor of up to 4; its shape is kept here.
class RowsOf {
 public:
  RowsOf(const DLTensor* given, int32_t dim, int64_t row, int64_t count) {
    if (given == nullptr) return;
    present_ = true;
    rows_ = *given;
    if (given->strides == nullptr) {  // there are no gaps
      int64_t stride = 1;
      for (int32_t d = given->ndim - 1; d >= 0; stride *= given->shape[d--]) strides_[d] = stride;
      rows_.strides = strides_;
    }
    std::copy_n(given->shape, given->ndim, shape_);
    shape_[dim] = count;
    rows_.shape = shape_;
    // Strides may be negative.
    rows_.byte_offset += static_cast<uint64_t>(row * rows_.strides[dim] * (given->dtype.bits / 8));
  }
  RowsOf(const RowsOf&) = delete;
  RowsOf& operator=(const RowsOf&) = delete;

  const DLTensor* get() const { return present_ ? &rows_ : nullptr; }

 private:
  bool present_ = false;
  DLTensor rows_{};
  int64_t shape_[4] = {}, strides_[4] = {};
};

// Whether a tensor of scores is not broadcast along the queries.
bool has_rows(const DLTensor* scores, int64_t rows) {
  return scores != nullptr && scores->ndim >= 2 && scores->ndim <= 4 &&
         scores->shape[scores->ndim - 2] == rows;
}

template <class Sum>
void add_run(const Sum* from, Sum* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

std::string ContextLeaves::refuse(const perseid_attention_desc& desc, bool zigzag,
                                  std::span<const int64_t> q_rows) {
  const auto ranks = static_cast<int64_t>(q_rows.size());
  const int64_t pieces = ContextLeaves::pieces(zigzag);
  if ((desc.gradients & PERSEID_GRAD_BIAS) != 0 && desc.bias_shape[2] != desc.q_len)
    return concatenate("gradients has PERSEID_GRAD_BIAS and bias_shape[2] is ", desc.bias_shape[2],
                       ", expected q_len, ", desc.q_len, ", in canonical order, as a row of bias ",
                       "that several ranks share has no sum over ranks; clear one of the two");
  if (desc.ragged != 0 && desc.bias != 0 && desc.bias_shape[2] != 1)
    return concatenate("ragged is 1 and bias_shape[2] is ", desc.bias_shape[2],
                       ", expected 1 with gradients in canonical order; give one row of bias for "
                       "all queries, or pad the sequences");
  if (kLeaves % ranks != 0)
    return concatenate("canonical is 1 with gradients and ", ranks,
                       " ranks, expected 1, 2, 4 or 8 ranks");
  const int64_t multiple = pieces / ranks;
  for (size_t rank = 0; rank < q_rows.size(); ++rank)
    if (q_rows[rank] != q_rows[0])
      return concatenate("q_len is ", q_rows[rank], " on rank ", rank, " and ", q_rows[0],
                         " on rank 0, expected the same on all ranks with gradients in canonical "
                         "order; give each as many queries");
  if (q_rows[0] % multiple != 0)
    return concatenate("q_len is ", q_rows[0], " on each of ", ranks,
                       " ranks, expected a multiple of ", multiple, " with gradients in canonical ",
                       "order, which cuts a sequence into ", pieces,
                       " equal pieces; pad the queries");
  return "";
}

ContextLeaves::ContextLeaves(const op::DevicePointer& device, const perseid_attention_desc& desc)
    : device_(device),
      sum_dtype_(static_cast<DType>(desc.dtype) == DType::kF64 ? DType::kF64 : DType::kF32),
      rows_first_(desc.layout == PERSEID_BSHD),
      ragged_(desc.ragged != 0),
      rows_(desc.q_len),
      columns_(desc.head_dim + (desc.value_dim == 0 ? desc.head_dim : desc.value_dim)) {}

Status ContextLeaves::make(const op::DevicePointer& device, const perseid_attention_desc& desc,
                           const QueryRows& rows, std::unique_ptr<ContextLeaves>* made) {
  std::unique_ptr<ContextLeaves> leaves(new ContextLeaves(device, desc));
  const int64_t count = pieces(rows.zigzag), leaves_each = kLeaves / rows.ranks;
  perseid_attention_desc piece = desc;
  piece.q_len = leaves->piece_rows_ = desc.q_len * rows.ranks / count;
  if (device->gpu != nullptr) {
    // Rows of grad_query are then sums over keys in their order.
    piece.deterministic = 1;
    piece.q_lens = desc.ragged;
  } else if (desc.ragged != 0) {
    leaves->packed_ = std::make_unique<PackedPieces>(*device, desc, count / rows.ranks);
    piece.total_q = leaves->packed_->total();
  }
  if (desc.bias != 0 && desc.bias_shape[2] == desc.q_len) piece.bias_shape[2] = piece.q_len;
  const auto add = [&](int64_t of_all, int64_t of_rank, int64_t leaf) {
    QueryRows placed{.ranks = count, .rank = of_all};
    if (desc.ragged == 0) {
      placed.begin = of_all * piece.q_len;
      placed.total = count * piece.q_len;
    }
    leaves->pieces_.push_back({of_rank, leaf, nullptr});
    return op::AttentionPlan::make(device, piece, &leaves->pieces_.back().plan, placed);
  };
  // On GPUs a piece overwrites, since not every kernel adds to gradients in float32: each is a leaf
  // of its own, of one more level of the tree.
  const bool adds = device->gpu == nullptr;
  const int64_t width = rows.zigzag && !adds ? 2 : 1;
  Status status;
  for (int64_t i = 0; status.ok() && i < leaves_each; ++i) {
    piece.accumulate = desc.accumulate;
    if (rows.zigzag) {
      // The second half of a rank's rows has the mirrored pieces, in their order. With a causal
      // mask they see more keys; so the pieces of the first half are added to them.
      status = add(count - 1 - rows.rank * leaves_each - i, 2 * leaves_each - 1 - i, width * i);
      if (adds) piece.accumulate |= desc.gradients & (PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE);
    }
    if (status.ok()) status = add(rows.rank * leaves_each + i, i, width * i + width - 1);
  }
  if (status.ok()) *made = std::move(leaves);
  return status;
}

Status ContextLeaves::make_buffers(size_t bytes_each) {
  bytes_each_ = bytes_each;
  const size_t bytes = static_cast<size_t>(buffers() - 1) * bytes_each;
  void* memory = nullptr;
  Status status = dispatch::allocate(*device_, bytes, &memory);
  if (memory != nullptr)
    memory_ = {memory, [device = device_](void* data) { dispatch::release(*device, data); }};
  if (device_->gpu != nullptr) {
    if (status.ok())
      status = cuda::RankSum::make({.in = sum_dtype_, .out = sum_dtype_}, device_->gpu, &sum_);
  } else if (bytes > 0) {
    std::memset(memory, 0, bytes);
  }
  return status;
}

std::string ContextLeaves::text() const {
  auto info = sized<perseid_plan_info>();
  pieces_.front().plan->query(&info);
  return concatenate("backward in ", pieces_.size(), " pieces of queries, the first by ",
                     info.implementation);
}

dispatch::Work ContextLeaves::work() const {
  dispatch::Work work{};
  for (const Piece& piece : pieces_) {
    auto info = sized<perseid_plan_info>();
    piece.plan->query(&info);
    work.flops += info.backward_flops;
    work.bytes += info.backward_bytes;
    size_t workspace = 0;
    (void)piece.plan->workspace_size(dispatch::Direction::kBackward, &workspace);
    work.workspace = std::max(work.workspace, workspace);
  }
  return work;
}

void ContextLeaves::require_rows(op::ArgumentReader& reader,
                                 const perseid_attention_backward_args& args) const {
  if (ragged_) {
    reader.require(rows_ <= 1 || !has_rows(args.visible, rows_),
                   "visible has a row for each query, expected one for all of them with gradients "
                   "of ragged batches in canonical order; pad the sequences");
    if (packed_ != nullptr) packed_->read(reader, args);
    return;
  }
  const auto require = [&](const char* name, const DLTensor* tensor, int32_t ndim, int32_t dim) {
    if (tensor == nullptr) return;
    reader.require(tensor->ndim == ndim && tensor->shape != nullptr && tensor->shape[dim] == rows_,
                   name, " has other rows than those of this rank, expected ", ndim,
                   " dimensions, of which number ", dim, " is ", rows_, "; pass its tensor");
  };
  const int32_t dim = rows_first_ ? 1 : 2;
  for (const auto& [name, tensor] : {std::pair{"query", args.query},
                                     {"out", args.out},
                                     {"grad_out", args.grad_out},
                                     {"grad_query", args.grad_query}})
    require(name, tensor, 4, dim);
  require("lse", args.lse, 3, 2);
  require("grad_lse", args.grad_lse, 3, 2);
}

Status ContextLeaves::check(const perseid_attention_backward_args& args,
                            std::span<const int64_t> begins, std::span<const Buffer> buffers,
                            const op::Workspace& workspace) const {
  Status status;
  for (size_t i = 0; i < pieces_.size() && status.ok(); ++i) {
    perseid_attention_backward_args piece = with_sums(args, pieces_[i], buffers);
    if (packed_ != nullptr) packed_->describe(begins, &piece);
    status = with_rows(pieces_[i], piece, [&](const perseid_attention_backward_args& own) {
      return plan_of(pieces_[i]).check_backward(own, workspace);
    });
  }
  return status;
}

perseid_attention_backward_args ContextLeaves::with_sums(
    const perseid_attention_backward_args& args, const Piece& of,
    std::span<const Buffer> buffers) const {
  perseid_attention_backward_args piece = args;
  if (buffers.empty()) return piece;
  const auto buffer = static_cast<size_t>(buffer_of_leaf(of.leaf));
  piece.grad_key = buffers[buffer].key;
  piece.grad_value = buffers[buffer].value;
  return piece;
}

Status ContextLeaves::backward(const perseid_attention_backward_args& args,
                               std::span<const int64_t> begins, std::span<const Buffer> buffers,
                               int64_t elements, const op::Workspace& workspace,
                               void* stream) const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const int64_t leaf = pieces_[i].leaf;
    perseid_attention_backward_args piece = with_sums(args, pieces_[i], buffers);
    if (packed_ != nullptr) packed_->take(pieces_[i].number, begins, &piece);
    if (Status status = with_rows(pieces_[i], piece,
                                  [&](const perseid_attention_backward_args& own) {
                                    return plan_of(pieces_[i]).backward(own, workspace, stream);
                                  });
        !status.ok())
      return status;
    if (packed_ != nullptr) packed_->give(pieces_[i].number, begins);
    const bool complete = i + 1 == pieces_.size() || pieces_[i + 1].leaf != leaf;
    if (buffers.empty() || !complete) continue;
    auto buffer = static_cast<size_t>(buffer_of_leaf(leaf));
    for (int64_t pairs = pairs_after_leaf(leaf); pairs > 0; --pairs, --buffer)
      if (Status status = add(buffers[buffer], buffers[buffer - 1], elements, stream); !status.ok())
        return status;
  }
  return {};
}

// args: of the piece where ragged on CPUs, else of all rows of this rank, of which the piece has
// some. On a GPU rows of a ragged piece begin somewhere in those of each sequence, and are as many
// as the numbers behind all begins say.
template <class Run>
Status ContextLeaves::with_rows(const Piece& of, const perseid_attention_backward_args& args,
                                const Run& run) const {
  if (packed_ != nullptr) return run(args);
  perseid_attention_backward_args piece = args;
  if (ragged_) {
    DLTensor begins = *args.cu_seqlens_q, lengths = begins;
    int64_t sequences = begins.shape[0] - 1, stride = 1;
    begins.byte_offset += static_cast<uint64_t>(of.number) * sizeof(int64_t);
    lengths.byte_offset +=
        pieces_.size() * static_cast<uint64_t>(begins.shape[0]) * sizeof(int64_t);
    lengths.shape = &sequences;
    lengths.strides = &stride;
    piece.cu_seqlens_q = &begins;
    piece.q_lens = &lengths;
    return run(piece);
  }
  const auto rows = [&](const DLTensor* tensor, int32_t at) {
    return RowsOf(tensor, at, of.number * piece_rows_, piece_rows_);
  };
  const auto scores = [&](const DLTensor* tensor) {
    return has_rows(tensor, rows_) ? rows(tensor, tensor->ndim - 2) : RowsOf(nullptr, 0, 0, 0);
  };
  const int32_t dim = rows_first_ ? 1 : 2;
  const RowsOf query = rows(args.query, dim), out = rows(args.out, dim),
               grad_out = rows(args.grad_out, dim), grad_query = rows(args.grad_query, dim),
               lse = rows(args.lse, 2), grad_lse = rows(args.grad_lse, 2), bias = scores(args.bias),
               visible = scores(args.visible), grad_bias = scores(args.grad_bias);
  piece.query = query.get();
  piece.out = out.get();
  piece.grad_out = grad_out.get();
  piece.grad_query = grad_query.get();
  piece.lse = lse.get();
  piece.grad_lse = grad_lse.get();
  if (bias.get() != nullptr) piece.bias = bias.get();
  if (visible.get() != nullptr) piece.visible = visible.get();
  if (grad_bias.get() != nullptr) piece.grad_bias = grad_bias.get();
  return run(piece);
}

Status ContextLeaves::add(const Buffer& from, const Buffer& to, int64_t elements,
                          void* stream) const {
  if (device_->gpu != nullptr) {
    const auto rows_of = [&](const Buffer& buffer) {
      return Tensor{.data = buffer.data,
                    .dtype = sum_dtype_,
                    .rank = 3,
                    .shape = {1, elements / columns_, columns_},
                    .stride = {0, columns_, 1}};
    };
    const Tensor parts[] = {rows_of(to), rows_of(from)};
    return sum_->run({.operation = "context-attention backward", .parts = parts, .out = parts[0]},
                     stream);
  }
  const int64_t tasks = (elements + kTaskElements - 1) / kTaskElements;
  cpu::for_each_task(*device_->executor, tasks, [&](int64_t task, int32_t) {
    const int64_t begin = task * kTaskElements, count = min(kTaskElements, elements - begin);
    if (sum_dtype_ == DType::kF64) {
      add_run(reinterpret_cast<const double*>(from.data) + begin,
              reinterpret_cast<double*>(to.data) + begin, count);
    } else {
      add_run(reinterpret_cast<const float*>(from.data) + begin,
              reinterpret_cast<float*>(to.data) + begin, count);
    }
  });
  return {};
}

}  // namespace perseid::internal::collective
