// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Attention over a list of sequences, each with tensors of its own: packs them, runs one ragged
/// attention over all, unpacks the results; and the gradients likewise. Included by perseid.hpp.
#ifndef PERSEID_SEQUENCES_HPP_
#define PERSEID_SEQUENCES_HPP_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "perseid/attention.hpp"
#include "perseid/ragged.hpp"

namespace perseid {
inline namespace v0 {

/// The tensors of SequenceAttention::forward, one of each for every sequence.
struct SequencesForward {
  std::span<const Tensor> query = {};  ///< [queries, heads, head_dim]
  std::span<const Tensor> key = {};    ///< [keys, kv_heads, head_dim]
  std::span<const Tensor> value = {};  ///< [keys, kv_heads, value_dim]
  std::span<const Tensor> out = {};    ///< [queries, heads, value_dim]
  std::span<const Tensor> lse = {};    ///< empty, or f32 (f64 for f64) [heads, queries]
  Tensor bias = {};                    ///< as in AttentionForward
  Tensor visible = {};                 ///< as in AttentionForward
  uint64_t seed = 0;                   ///< of dropout
  uint64_t offset = 0;                 ///< of dropout, below 2^32
  const uint64_t* rng = nullptr;       ///< as in AttentionForward
};
/// The tensors of SequenceAttention::backward, one of each for every sequence.
struct SequencesBackward {
  std::span<const Tensor> grad_out = {};    ///< as out
  std::span<const Tensor> grad_query = {};  ///< as query; empty: not wanted
  std::span<const Tensor> grad_key = {};    ///< as key; empty: not wanted
  std::span<const Tensor> grad_value = {};  ///< as value; empty: not wanted
  Tensor grad_bias = {};                    ///< as in AttentionBackward
  std::span<const Tensor> grad_lse = {};    ///< empty, or as lse
};

/// Attention over sequences whose tensors are not packed; any strides. It owns the packed tensors,
/// so one execution at a time, and needs its context as long as it lives.
/// \snippet snippets.cpp sequences
class SequenceAttention {
 public:
  /// A plan for sequences of these lengths. `options` say the rest: batch, layout and all lengths
  /// in it are set here. Allocates; throws where no implementation takes the problem.
  /// \snippet snippets.cpp sequences
  SequenceAttention(const Context& context, AttentionOptions options,
                    std::span<const int64_t> q_lens, std::span<const int64_t> kv_lens)
      : context_(&context),
        q_begin_(sums(q_lens)),
        kv_begin_(sums(kv_lens)),
        options_(complete(options, q_begin_, kv_begin_)),
        plan_(context, options_),
        lengths_(upload(context, q_begin_, kv_begin_)),
        workspace_(context, std::max(plan_.workspace_size(Direction::kForward),
                                     plan_.workspace_size(Direction::kBackward))),
        query_(context, options_, queries(options_.heads, options_.head_dim)),
        key_(context, options_, keys(options_.head_dim)),
        value_(context, options_, keys(value_dim())),
        out_(context, options_, queries(options_.heads, value_dim())),
        lse_(context, statistics_type(), {options_.heads, options_.total_q}) {
    if (plan_.workspace_size(Direction::kBackward) == 0 && !has_gradients()) return;
    grad_out_ = Packed(context, options_, queries(options_.heads, value_dim()));
    grad_query_ = Packed(context, options_, queries(options_.heads, options_.head_dim));
    grad_key_ = Packed(context, options_, keys(options_.head_dim));
    grad_value_ = Packed(context, options_, keys(value_dim()));
    grad_lse_ = Packed(context, statistics_type(), {options_.heads, options_.total_q});
  }

  /// Writes out, and lse where given, of every sequence.
  /// \snippet snippets.cpp sequences
  void forward(Stream stream, const SequencesForward& with) {
    pack(with.query, q_begin_, query_.tensor, stream);
    pack(with.key, kv_begin_, key_.tensor, stream);
    pack(with.value, kv_begin_, value_.tensor, stream);
    last_ = {with.bias, with.visible, with.seed, with.offset, with.rng};
    plan_.forward(stream,
                  {.query = query_.tensor,
                   .key = key_.tensor,
                   .value = value_.tensor,
                   .bias = with.bias,
                   .visible = with.visible,
                   .cu_seqlens_q = cu_seqlens(0),
                   .cu_seqlens_kv = cu_seqlens(1),
                   .out = out_.tensor,
                   .lse = lse_.tensor,
                   .seed = with.seed,
                   .offset = with.offset,
                   .rng = with.rng},
                  {workspace_});
    unpack(out_.tensor, q_begin_, with.out, stream);
    if (with.lse.empty()) return;
    unpack(lse_.tensor.transposed(), q_begin_, rows_of(with.lse), stream);
  }
  /// Writes the gradients that are given, of the last forward. Its bias, visible and rng are read
  /// again.
  /// \snippet snippets.cpp sequences
  void backward(Stream stream, const SequencesBackward& with) {
    pack(with.grad_out, q_begin_, grad_out_.tensor, stream);
    if (!with.grad_lse.empty())
      pack(rows_of(with.grad_lse), q_begin_, grad_lse_.tensor.transposed(), stream);
    const auto wanted = [](std::span<const Tensor> list, const Packed& packed) {
      return list.empty() ? Tensor() : packed.tensor;
    };
    plan_.backward(stream,
                   {.query = query_.tensor,
                    .key = key_.tensor,
                    .value = value_.tensor,
                    .bias = last_.bias,
                    .visible = last_.visible,
                    .cu_seqlens_q = cu_seqlens(0),
                    .cu_seqlens_kv = cu_seqlens(1),
                    .out = out_.tensor,
                    .lse = lse_.tensor,
                    .grad_out = grad_out_.tensor,
                    .grad_lse = wanted(with.grad_lse, grad_lse_),
                    .grad_query = wanted(with.grad_query, grad_query_),
                    .grad_key = wanted(with.grad_key, grad_key_),
                    .grad_value = wanted(with.grad_value, grad_value_),
                    .grad_bias = with.grad_bias,
                    .seed = last_.seed,
                    .offset = last_.offset,
                    .rng = last_.rng},
                   {workspace_});
    unpack(grad_query_.tensor, q_begin_, with.grad_query, stream);
    unpack(grad_key_.tensor, kv_begin_, with.grad_key, stream);
    unpack(grad_value_.tensor, kv_begin_, with.grad_value, stream);
  }
  /// The ragged plan.
  /// \snippet snippets.cpp sequences
  const Attention& plan() const { return plan_; }

 private:
  // A packed tensor and its memory.
  struct Packed {
    Packed() = default;
    Packed(const Context& context, const AttentionOptions& options, const Dims& shape)
        : Packed(context, options.dtype, shape) {}
    Packed(const Context& context, DType dtype, const Dims& shape) {
      int64_t bytes = dtype == f64 ? 8 : dtype == f32 ? 4 : 2;
      for (const int64_t size : shape) bytes *= size;
      memory.emplace_back(context, static_cast<size_t>(bytes));
      tensor = Tensor(memory.back().data(), dtype, shape, {}, context.device());
    }
    std::vector<Memory> memory;  // one, or none
    Tensor tensor;
  };

  static std::vector<int64_t> sums(std::span<const int64_t> lengths) {
    std::vector<int64_t> begin = {0};
    for (const int64_t length : lengths) begin.push_back(begin.back() + length);
    return begin;
  }
  static int64_t longest(const std::vector<int64_t>& begin) {
    int64_t most = 0;
    for (size_t i = 1; i < begin.size(); ++i) most = std::max(most, begin[i] - begin[i - 1]);
    return most;
  }
  static AttentionOptions complete(AttentionOptions options, const std::vector<int64_t>& q_begin,
                                   const std::vector<int64_t>& kv_begin) {
    detail::require(q_begin.size() == kv_begin.size(),
                    "as many lengths of keys as of queries: got ", kv_begin.size() - 1, " and ",
                    q_begin.size() - 1);
    detail::require((options.accumulate & ~uint32_t{PERSEID_GRAD_BIAS}) == 0,
                    "gradients of sequences do not accumulate, but that of bias; clear accumulate");
    options.ragged = true;
    options.layout = bshd;
    options.batch = static_cast<int64_t>(q_begin.size()) - 1;
    options.q_len = longest(q_begin);
    options.kv_len = longest(kv_begin);
    options.total_q = q_begin.back();
    options.total_kv = kv_begin.back();
    return options;
  }
  // Both cumulative lengths, then {0, length} of each sequence, of queries and of keys.
  static Memory upload(const Context& context, const std::vector<int64_t>& q_begin,
                       const std::vector<int64_t>& kv_begin) {
    std::vector<int64_t> numbers(q_begin);
    numbers.insert(numbers.end(), kv_begin.begin(), kv_begin.end());
    for (const auto* begin : {&q_begin, &kv_begin})
      for (size_t i = 1; i < begin->size(); ++i) {
        numbers.push_back(0);
        numbers.push_back((*begin)[i] - (*begin)[i - 1]);
      }
    Memory memory(context, 8 * numbers.size());
    context.copy(memory.data(), numbers.data(), memory.size());
    return memory;
  }
  Tensor numbers(size_t first, int64_t count) const {
    return Tensor(static_cast<const int64_t*>(lengths_.data()) + first, i64, {count}, {},
                  context_->device());
  }
  Tensor cu_seqlens(size_t of_keys) const {
    return numbers(of_keys * q_begin_.size(), static_cast<int64_t>(q_begin_.size()));
  }
  // {0, length} of one sequence.
  Tensor own_lengths(const std::vector<int64_t>& begin, size_t sequence) const {
    const size_t count = q_begin_.size() - 1, of_keys = &begin == &kv_begin_ ? 1 : 0;
    return numbers(2 * q_begin_.size() + 2 * (of_keys * count + sequence), 2);
  }

  bool has_gradients() const { return options_.backward || options_.gradients != 0; }
  DType statistics_type() const { return options_.dtype == f64 ? f64 : f32; }
  int64_t value_dim() const {
    return options_.value_dim == 0 ? options_.head_dim : options_.value_dim;
  }
  Dims queries(int64_t heads, int64_t dim) const { return {options_.total_q, heads, dim}; }
  Dims keys(int64_t dim) const {
    return {options_.total_kv, options_.kv_heads == 0 ? options_.heads : options_.kv_heads, dim};
  }

  // use(rows of the packed tensor, the sequence's own as a batch of one, {0, its length})
  template <class Use>
  void for_each(std::span<const Tensor> list, const std::vector<int64_t>& begin,
                const Tensor& packed, const Use& use) const {
    detail::require(list.size() == begin.size() - 1, "a list needs a tensor for each of ",
                    begin.size() - 1, " sequences, got ", list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t length = begin[i + 1] - begin[i];
      detail::require(list[i].ndim() > 0 && list[i].size(0) == length, "sequence ", i, " has ",
                      length, " rows in the plan; its tensor has another number");
      if (length == 0) continue;
      use(packed.slice(0, begin[i], begin[i + 1]), as_batch(list[i]), own_lengths(begin, i));
    }
  }
  // [heads, queries] as [queries, heads].
  static std::vector<Tensor> rows_of(std::span<const Tensor> list) {
    std::vector<Tensor> rows;
    for (const Tensor& each : list) rows.push_back(each.transposed());
    return rows;
  }
  static Tensor as_batch(const Tensor& tensor) {
    std::vector<int64_t> shape = {1}, strides = {0};
    for (int32_t d = 0; d < tensor.ndim(); ++d) {
      shape.push_back(tensor.size(d));
      strides.push_back(tensor.stride(d));
    }
    return Tensor(tensor.data(), tensor.dtype(), Dims(shape), Dims(strides), tensor.dl()->device);
  }
  void pack(std::span<const Tensor> list, const std::vector<int64_t>& begin, const Tensor& packed,
            Stream stream) const {
    for_each(list, begin, packed,
             [&](const Tensor& rows, const Tensor& own, const Tensor& lengths) {
               v0::pack(*context_, own, lengths, rows, Rest::kKeep, stream);
             });
  }
  void unpack(const Tensor& packed, const std::vector<int64_t>& begin, std::span<const Tensor> list,
              Stream stream) const {
    if (list.empty()) return;
    for_each(list, begin, packed,
             [&](const Tensor& rows, const Tensor& own, const Tensor& lengths) {
               v0::unpack(*context_, rows, lengths, own, Rest::kKeep, stream);
             });
  }

  const Context* context_;
  std::vector<int64_t> q_begin_, kv_begin_;
  AttentionOptions options_;
  Attention plan_;
  Memory lengths_, workspace_;
  Packed query_, key_, value_, out_, lse_, grad_out_, grad_query_, grad_key_, grad_value_,
      grad_lse_;
  struct {
    Tensor bias, visible;
    uint64_t seed = 0, offset = 0;
    const uint64_t* rng = nullptr;
  } last_;  // of the last forward, for backward
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_SEQUENCES_HPP_
