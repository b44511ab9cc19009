// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention: every rank has rows of query, key and value. Queries stay. Keys and
// values of all ranks are gathered in the order of whole sequences, so that one attention over the
// gathered keys has the rank's result: it knows the positions of the rank's rows (QueryRows), and
// the pieces of the other ranks are chunks that arrive while it runs.
//
// In canonical order all ranks begin with the first keys instead: a row then visits the same blocks
// of keys in the same order on any number of ranks. Its gradients are in context_leaves.hpp, or in
// the kernel of cuda:sm90 where that takes the leaves.
//
// On CPUs, and through memory of hosts, all keys lie before all values, each in the caller's layout
// without gaps. GPUs that send to each other gather [entry, kv_head, row, key | value]: a chunk of
// a head is one run of bytes, and groups of heads are sent one after the other (fusion.hpp); of
// ragged batches groups of sequences, as the kernel visits one sequence after the other. A kernel
// brings the own rows into this order.
//
// Ragged: a chunk has a rank's pieces of all sequences of a group, wherever they lie.
// Backward gathers again.
// A rank computes what its queries give to the gradients of all keys, of the same layout in
// float32; a key's rank sums these in the order of ranks. Between GPUs that map each other's
// memory, backward computes heads in groups, one launch for each: the keys of the next group arrive
// and the gradients of the previous group leave during a launch. Or one kernel waits for keys
// itself and signals gradients that are complete.
#pragma once

#include "collective/context_leaves.hpp"
#include "collective/context_lengths.hpp"
#include "collective/fusion.hpp"
#include "collective/partial_gradients.hpp"
#include "collective/plan.hpp"
#include "collective/stop.hpp"
#include "collective/streamed_gradients.hpp"
#include "cuda/copy_rows.hpp"
#include "math/attention_problem.hpp"
#include "op/attention.hpp"

namespace perseid::internal::collective {

class ContextAttentionPlan final : public op::Plan {
 public:
  static constexpr const char* kOperation = "context-attention";

  // Collective.
  static Status make(op::DevicePointer device, GroupPointer group,
                     const perseid_context_attention_desc& desc,
                     std::unique_ptr<const op::Plan>* plan);
  // Collective.
  Status forward(const perseid_context_attention_forward_args& args, const op::Workspace& workspace,
                 void* stream) const;
  Status backward(const perseid_context_attention_backward_args& args,
                  const op::Workspace& workspace, void* stream) const;
  Status overlap_report(const char** json) const override {
    return report_ == nullptr ? Plan::overlap_report(json) : report_->give(json);
  }

 private:
  // Rows [row, row + count) of this rank in an entry of the batch, which are gathered from
  // `position` on. Where ragged, there is one entry, of packed rows, and the group is of sequences.
  struct Run {
    int64_t chunk, entry, row, count, position, group = 0;
  };
  // All keys and values, or their gradients: [entry, row, kv_head, element], and as callers have
  // it.
  struct KeysAndValues {
    Tensor key, value, given_key, given_value;
    DLTensor key_dl{}, value_dl{};
  };

  ContextAttentionPlan(op::DevicePointer device, GroupPointer group)
      : Plan(std::move(device)), group_(std::move(group)) {}
  // `refused`: what this rank alone may refuse, for the next exchange.
  Status read(const perseid_context_attention_desc& desc, const Operation& operation,
              Status* refused);
  Status make_attention(const op::DevicePointer& device, const perseid_attention_desc& desc);
  // A rank has a part of every packed sequence, but kernels of CPUs, and those of canonical order,
  // take chunks of adjoining rows.
  bool takes_chunks() const { return !ragged_ || (device().gpu != nullptr && !canonical_); }
  bool may_stream() const;
  bool wants_to_stream(const perseid_attention_desc& desc, uint32_t fusion) const;
  ChunkTraffic traffic() const;
  int64_t groups_of_gradients(const perseid_attention_desc& desc, uint32_t fusion) const;
  void find_readers(const perseid_attention_desc& desc);
  void choose_fusion(uint32_t wanted);
  QueryRows placement_of(int32_t rank) const;
  Status make_transports(const Operation& operation);
  Status make_streamed(const TransportSite& site);
  void view(std::byte* data, DType dtype, bool by_heads, KeysAndValues* views) const;
  AttentionShard shard_of(const perseid_attention_desc& desc) const;
  double transfer_seconds(double element_size) const;
  int64_t groups_of_heads(const perseid_attention_desc& desc) const;
  void describe(const perseid_attention_desc& desc);

  // This rank's rows of an argument, as [entry, row, kv_head, element].
  Tensor read_keys(op::ArgumentReader& reader, op::Access access, const char* name,
                   const DLTensor* tensor, const char* dim_name, int64_t dim) const;
  template <class Args>
  Status read_inputs(op::ArgumentReader& reader, const Args* args, Tensor* key,
                     Tensor* value) const;
  void require_rows(op::ArgumentReader& reader,
                    std::initializer_list<std::pair<const char*, const Tensor*>> tensors) const;
  // Calls body with each run of a rank's keys, by chunks.
  template <class Body>
  void for_each_run(int32_t rank, const Body& body) const;
  // Calls body(run, of_value, rows, at) with what a rank sums of the partial gradients: `rows`
  // after `at` bytes of others.
  template <class Body>
  void for_each_gradient(int32_t rank, const Body& body) const;
  void cut(const Tensor& key, const Tensor& value) const;
  void cut_by_heads(const Tensor& key, const Tensor& value) const;
  void add_by_heads(int32_t rank, int64_t group, std::vector<SentPart>* parts) const;
  Status clear_unread(const Operation& operation) const;
  Status send(const Operation& operation, const Sending& sending, const Tensor& key,
              const Tensor& value) const;
  Status await_all(const Operation& operation, const Sending& sending) const;
  // Of the attention over all keys, without how they arrive.
  template <class Args>
  Args arguments_of(const Args& args) const;
  perseid_attention_backward_args backward_arguments_of(
      const perseid_attention_backward_args& args) const;
  Status check_backward(const perseid_attention_backward_args& inner,
                        const op::Workspace& workspace) const;
  std::span<const int64_t> begins() const;
  Status attend(const Operation& operation, perseid_attention_forward_args inner,
                const Sending& sending, const op::Workspace& workspace,
                const WatchedWork& work) const;
  Status differentiate(const perseid_attention_backward_args& inner, const op::Workspace& workspace,
                       void* stream) const;
  Status give_gradients() const;
  Status stream_gradients(const Operation& operation, const Sending& sending,
                          const perseid_attention_backward_args& inner,
                          const op::Workspace& workspace, const Tensor& key,
                          const Tensor& value) const;
  Status differentiate_groups(const Operation& operation, const Sending& sending,
                              const perseid_attention_backward_args& args,
                              const op::Workspace& workspace, const Departure& departure) const;
  Status push_gradients() const;
  Status sum_streamed(const Operation& operation, const Sending& sending, const Tensor& key,
                      const Tensor& value) const;
  std::span<const StreamedGradients::Run> streamed_runs(int32_t rank) const;
  Status sum_gradients(const Operation& operation, const Sending& sending, const Tensor& key,
                       const Tensor& value) const;

  GroupPointer group_;
  std::shared_ptr<Stop> stop_;
  DType dtype_ = DType::kF32;
  bool rows_first_ = true;  // in memory: bshd
  bool ragged_ = false, kv_lens_ = false;
  uint32_t gradients_wanted_ = 0;  // of key and value
  bool accumulate_key_ = false, accumulate_value_ = false;
  int64_t batch_ = 1, kv_heads_ = 1, head_dim_ = 1, value_dim_ = 1;
  int64_t kv_rows_ = 0;                                   // of this rank: kv_len, or total_kv
  int64_t longest_q_ = 0, longest_kv_ = 0, total_q_ = 0;  // of this rank, where ragged
  bool zigzag_ = false, canonical_ = false;
  std::vector<int64_t> q_rows_;  // q_len of each rank
  Shards shards_;                // of the gathered rows; where ragged by ranks, in no order
  std::unique_ptr<ShardChunks> chunks_;
  std::vector<uint64_t> readers_;          // of each chunk: a bit for each rank
  bool waits_before_ = false;              // the attention takes no chunks
  int32_t spared_ = 0;                     // multiprocessors that it leaves free while it waits
  bool fused_ = false;                     // it begins before all chunks are there
  std::string why_;                        // for explain
  bool by_heads_ = false;                  // how the gathered rows lie
  bool streams_ = false;                   // gradients of keys leave while backward computes others
  int64_t gradient_groups_ = 1;            // of heads, each of which backward computes by itself
  InnerPlan attention_, group_attention_;  // of all heads; of such a group
  std::unique_ptr<ContextLengths> lengths_;  // where ragged; in use until the transports have ended
  std::unique_ptr<GatherTransport> keys_;
  // Of keys and values, where backward has any: one of the two.
  std::unique_ptr<PartialGradients> gradients_;
  std::unique_ptr<StreamedGradients> streamed_;
  std::unique_ptr<ContextLeaves> leaves_;  // of canonical order, where backward has any
  KeysAndValues gathered_;
  std::vector<KeysAndValues> sums_;  // this rank's gradients of all keys; of leaves, more buffers
  std::vector<ContextLeaves::Buffer> buffers_;  // the same
  std::unique_ptr<OverlapReport> report_;
  // A plan is executed once at a time on a rank.
  mutable uint32_t epoch_ = 0;
  mutable std::vector<SentPart> parts_, arriving_;    // the latter of other hosts
  mutable std::vector<cuda::TensorCopy> own_;         // where by_heads_
  mutable std::vector<StreamedGradients::Run> runs_;  // where streams_
};

// Rows [row, row + count) of an entry, [count, kv_heads, dim].
inline Tensor rows_of(const Tensor& tensor, int64_t entry, int64_t row, int64_t count) {
  return {.data = tensor.as<std::byte>() +
                  (entry * tensor.stride[0] + row * tensor.stride[1]) * size_of(tensor.dtype),
          .dtype = tensor.dtype,
          .rank = 3,
          .shape = {count, tensor.shape[2], tensor.shape[3]},
          .stride = {tensor.stride[1], tensor.stride[2], tensor.stride[3]}};
}
inline const op::AttentionPlan& attention_of(const InnerPlan& plan) {
  return static_cast<const op::AttentionPlan&>(*plan);
}

template <class Body>
void ContextAttentionPlan::for_each_run(int32_t rank, const Body& body) const {
  const int32_t ranks = group_->size(), other = zigzag_ ? 2 * ranks - 1 - rank : rank;
  if (ragged_) {
    if (chunks_->count() == 0) return;
    const int64_t pieces = zigzag_ ? 2 : 1;
    const int64_t rows =
        max(ceil_div(shards_.extent(), chunks_->groups), int64_t{1});  // of a group
    for (int64_t i = 0; i < batch_; ++i) {
      const int64_t begin = lengths_->keys()[static_cast<size_t>(i)];
      const int64_t length =
          (lengths_->keys()[static_cast<size_t>(i + 1)] - begin) / ranks / pieces;
      for (int64_t piece = 0; piece < pieces; ++piece)
        body(Run{rank, 0, begin / ranks + piece * length, length,
                 begin + (piece == 0 ? rank : other) * length, begin / rows});
    }
    // A chunk is sent even where it is empty.
    for (int64_t group = 0; group < chunks_->groups; ++group) body(Run{rank, 0, 0, 0, 0, group});
    return;
  }
  int64_t row = 0;
  const int32_t pieces[] = {rank, other};
  for (const int32_t piece : std::span(pieces).first(zigzag_ ? 2 : 1))
    for (int64_t chunk = chunks_->first_of(piece); chunk < chunks_->first_of(piece + 1); ++chunk) {
      const auto c = static_cast<size_t>(chunk);
      const int64_t begin = chunks_->begin[c], count = chunks_->begin[c + 1] - begin;
      for (int64_t entry = 0; entry < batch_; ++entry) body(Run{chunk, entry, row, count, begin});
      row += count;
    }
}

}  // namespace perseid::internal::collective
