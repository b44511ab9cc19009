// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/context_lengths.hpp"

#include "collective/context_leaves.hpp"
#include "cuda/runtime/copy_queue.hpp"
#include "op/lengths.hpp"

namespace perseid::internal::collective {

ContextLengths::ContextLengths(op::DevicePointer device, int64_t batch, int64_t ranks, bool zigzag,
                               bool leaves)
    : device_(std::move(device)),
      batch_(batch),
      ranks_(ranks),
      zigzag_(zigzag),
      pieces_(ranks * (zigzag ? 2 : 1)),
      q_pieces_(leaves ? ContextLeaves::pieces(zigzag) : pieces_),
      leaf_pieces_(leaves ? q_pieces_ / ranks : 0),
      queries_(static_cast<size_t>(batch + 1)),
      keys_(queries_.size()) {
  view(queries_.data(), 1, &queries_view_, &queries_dl_);
  view(keys_.data(), 1, &keys_view_, &keys_dl_);
}

void ContextLengths::view(void* data, int64_t stride, Tensor* lengths, DLTensor* given) const {
  *lengths = {
      .data = data, .dtype = DType::kI64, .rank = 1, .shape = {batch_ + 1}, .stride = {stride}};
  *given = as_dl(lengths, device_->dl_device());
  given->dtype = {kDLInt, 64, 1};
}

Status ContextLengths::make() {
  if (device_->gpu == nullptr) return {};
  // Where pieces begin, and the rows of one.
  const int64_t numbers = zigzag_ ? 3 : 1, of_leaves = leaf_pieces_ > 0 ? leaf_pieces_ + 1 : 0;
  sent_.resize(static_cast<size_t>((batch_ + 1) * (numbers + of_leaves + 1)));
  void* memory = nullptr;
  if (Status status = dispatch::allocate(*device_, sent_.size() * sizeof(int64_t), &memory);
      !status.ok())
    return status;
  memory_ = {memory, [device = device_](void* data) { dispatch::release(*device, data); }};
  auto* const sent = static_cast<int64_t*>(memory);
  view(sent, zigzag_ ? 2 : 1, &queries_view_, &queries_dl_);
  view(sent + (batch_ + 1) * numbers, leaf_pieces_, &pieces_view_, &pieces_dl_);
  view(sent + (batch_ + 1) * (numbers + of_leaves), 1, &keys_view_, &keys_dl_);
  return {};
}

void ContextLengths::read(op::ArgumentReader& reader, const char* name, const DLTensor* given,
                          const Most& most, int64_t pieces, std::vector<int64_t>* lengths) const {
  const op::Extent extent{"batch + 1", batch_ + 1};
  const Tensor view =
      reader.read(op::Access::kRead, name, given, {DType::kI32, DType::kI64}, {&extent, 1});
  if (!reader.ok()) return;
  op::check_cumulative(
      reader, name, view,
      {most.longest * ranks_, ", what the ranks' plans have; make a plan for the longest sequence"},
      {most.total * ranks_, ", the rows of all ranks; make a plan for as many rows"});
  for (int64_t i = 0; i <= batch_ && reader.ok(); ++i) {
    const int64_t end = read_length(view, i);
    reader.require(end % pieces == 0, name, "[", i, "] is ", end, ", expected a multiple of ",
                   pieces, ", the pieces of a sequence; pad the sequences");
    (*lengths)[static_cast<size_t>(i)] = end;
  }
}

Status ContextLengths::read(const char* operation, const DLTensor* of_queries, const Most& queries,
                            const DLTensor* of_keys, const Most& keys) {
  op::ArgumentReader reader(operation);
  read(reader, "cu_seqlens_q", of_queries, queries, q_pieces_, &queries_);
  read(reader, "cu_seqlens_kv", of_keys, keys, pieces_, &keys_);
  for (int64_t& end : queries_) end /= ranks_;
  return reader.result();
}

// Where the pieces of each sequence begin, side by side, and then of each the rows of one.
void ContextLengths::push_begins(int64_t pieces) {
  const auto rows_of = [&](size_t i) {
    return i + 1 < queries_.size() ? (queries_[i + 1] - queries_[i]) / pieces : 0;
  };
  for (size_t i = 0; i < queries_.size(); ++i)
    for (int64_t piece = 0; piece < pieces; ++piece)
      sent_.push_back(queries_[i] + piece * rows_of(i));
  for (size_t i = 0; i < queries_.size(); ++i) sent_.push_back(rows_of(i));
}

Status ContextLengths::send(void* stream) {
  if (device_->gpu == nullptr) return {};
  sent_.clear();
  if (zigzag_)
    push_begins(2);
  else
    sent_.insert(sent_.end(), queries_.begin(), queries_.end());
  if (leaf_pieces_ > 0) push_begins(leaf_pieces_);
  sent_.insert(sent_.end(), keys_.begin(), keys_.end());
  Tensor from{.data = sent_.data(),
              .dtype = DType::kI64,
              .rank = 1,
              .shape = {std::ssize(sent_)},
              .stride = {1}};
  Tensor to = from;
  to.data = memory_.get();
  return cuda::copy_tensor(*device_->gpu, from, to, stream);
}

}  // namespace perseid::internal::collective
