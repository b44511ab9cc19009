// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Attention, its gradients and its dropout mask. Included by perseid.hpp.
#ifndef PERSEID_ATTENTION_HPP_
#define PERSEID_ATTENTION_HPP_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "perseid/chunks.hpp"
#include "perseid/plan.hpp"

namespace perseid {
inline namespace v0 {

/// The order of dimensions in memory; strides may be any.
enum class Layout {
  kBSHD = PERSEID_BSHD,  ///< [batch, sequence, heads, dim]
  kBHSD = PERSEID_BHSD,  ///< [batch, heads, sequence, dim]
};
inline constexpr Layout bshd = Layout::kBSHD;  ///< [batch, sequence, heads, dim]
inline constexpr Layout bhsd = Layout::kBHSD;  ///< [batch, heads, sequence, dim]

/// Which keys a query may attend to, by position. `a & b` is what both allow.
/// \snippet snippets.cpp masks
struct Mask {
  perseid_causal causal = PERSEID_CAUSAL_NONE;  ///< where the diagonal lies, if there is one
  int64_t left = -1;          ///< keys to the left of the query's own position; -1: unlimited
  int64_t right = -1;         ///< the same to its right
  bool bottom_right = false;  ///< the alignment of a window without causal; with it, causal's

  /// What both allow. One alignment holds for all of a mask.
  /// \snippet snippets.cpp masks
  friend Mask operator&(const Mask& a, const Mask& b) {
    detail::require(
        a.causal == b.causal || a.causal == PERSEID_CAUSAL_NONE || b.causal == PERSEID_CAUSAL_NONE,
        "a mask is causal by its top left or its bottom right, not both");
    const bool bottom_right = a.bottom_right || b.bottom_right;
    detail::require(!bottom_right || (a.may_be_bottom_right() && b.may_be_bottom_right()),
                    "a mask is aligned to its top left or its bottom right, not both");
    const auto nearer = [](int64_t x, int64_t y) { return x < 0 ? y : y < 0 ? x : std::min(x, y); };
    Mask both{std::max(a.causal, b.causal), nearer(a.left, b.left), nearer(a.right, b.right)};
    both.bottom_right = bottom_right && both.causal == PERSEID_CAUSAL_NONE;
    return both;
  }

 private:
  bool may_be_bottom_right() const {
    return bottom_right || causal == PERSEID_CAUSAL_BOTTOM_RIGHT ||
           (causal == PERSEID_CAUSAL_NONE && left < 0 && right < 0);
  }
};
/// Query i sees keys j <= i.
/// \snippet snippets.cpp masks
inline Mask causal_top_left() { return {.causal = PERSEID_CAUSAL_TOP_LEFT}; }
/// Query i sees keys j <= i + (kv_len - q_len), by each sequence's own lengths.
/// \snippet snippets.cpp masks
inline Mask causal_bottom_right() { return {.causal = PERSEID_CAUSAL_BOTTOM_RIGHT}; }
/// Query i sees keys p - left .. p + right, where p is i, shifted by kv_len - q_len under
/// bottom-right causal alignment. -1: unlimited.
/// \snippet snippets.cpp masks
inline Mask window(int64_t left, int64_t right) { return {.left = left, .right = right}; }
/// The same with p = i + (kv_len - q_len), by each sequence's own lengths, also without causal.
/// \snippet snippets.cpp masks
inline Mask window_bottom_right(int64_t left, int64_t right) {
  return {.left = left, .right = right, .bottom_right = true};
}

/// The problem of an Attention plan.
struct AttentionOptions {
  DType dtype = f32;      ///< of query, key, value, out and their gradients
  Layout layout = bshd;   ///< of query, key, value, out and their gradients
  int64_t batch = 1;      ///< sequences
  int64_t heads = 1;      ///< query heads
  int64_t kv_heads = 0;   ///< 0: heads; else divides heads
  int64_t q_len = 0;      ///< ragged: the longest
  int64_t kv_len = 0;     ///< the same of keys
  int64_t head_dim = 0;   ///< of query and key
  int64_t value_dim = 0;  ///< 0: head_dim
  Mask mask = {};         ///< which keys a query sees, by position
  double scale = 0;       ///< 0: 1 / sqrt(head_dim)
  double dropout = 0;     ///< probability of dropping, rounded to 1/256
  bool visible = false;   ///< a boolean mask is given at execution
  /// An additive bias is given, of this shape against [batch, heads, q_len, kv_len] (each that size
  /// or 1), in dtype or f32.
  std::optional<std::array<int64_t, 4>> bias = {};
  DType bias_dtype = DType::kNone;  ///< none: dtype
  bool q_lens = false;              ///< per-sequence query lengths are given
  bool kv_lens = false;             ///< per-sequence key lengths are given
  bool ragged = false;              ///< packed sequences with cumulative lengths
  int64_t total_q = 0;              ///< ragged: rows of the packed query
  int64_t total_kv = 0;             ///< ragged: rows of the packed key and value
  bool backward = false;            ///< every gradient, of bias too where there is one ...
  uint32_t gradients = 0;           ///< ... or just these perseid_gradient bits
  uint32_t accumulate = 0;          ///< of these perseid_gradient bits: added to what is there
  bool deterministic = false;       ///< bitwise repeatable backward (the CPU always is)
  ChunksView async_kv = {};  ///< that key and value arrive in, of kv_len, where ragged of total_kv
  const char* implementation = nullptr;  ///< names; see the C struct
  bool kv_starts = false;  ///< ragged, forward: keys of a sequence begin at any row; see kv_starts
  int64_t kv_batch = 0;    ///< forward: batch entries of key and value, which kv_index picks from
  bool max_lengths = false;  ///< lengths and totals are the most; tensors may have fewer
  /// The most splits of keys in forward; 0: as many as their length asks. 1: backward is
  /// deterministic.
  uint32_t num_splits = 0;
};

/// The tensors of Attention::forward. Shapes in the bshd layout; ragged tensors lack the batch
/// dimension.
struct AttentionForward {
  Tensor query = {};          ///< [batch, q_len, heads, head_dim]
  Tensor key = {};            ///< [batch or kv_batch, kv_len, kv_heads, head_dim]
  Tensor value = {};          ///< [batch or kv_batch, kv_len, kv_heads, value_dim]
  Tensor bias = {};           ///< as in the options
  Tensor visible = {};        ///< bool or u8, broadcasting against [batch, heads, q_len, kv_len]
  Tensor cu_seqlens_q = {};   ///< ragged: i32 or i64 [batch + 1]
  Tensor cu_seqlens_kv = {};  ///< ragged: the same for keys
  Tensor q_lens = {};         ///< i32 or i64 [batch]
  Tensor kv_lens = {};        ///< i32 or i64 [batch]
  Tensor out = {};            ///< [batch, q_len, heads, value_dim]
  Tensor lse = {};    ///< optional: f32 (f64 for f64) [batch, heads, q_len]; ragged [heads, total]
  uint64_t seed = 0;  ///< of dropout
  uint64_t offset = 0;            ///< of dropout, below 2^32
  const uint64_t* rng = nullptr;  ///< {seed, offset} in device memory, instead of the two above
  Arrival arrival_kv = {};        ///< where the options have async_kv
  Tensor kv_starts = {};          ///< i32 or i64 [batch]: instead of cu_seqlens_kv
  Tensor kv_index = {};  ///< i32 or i64 [batch]: an entry of key and value for each of query
};

/// The tensors of Attention::backward.
struct AttentionBackward {
  Tensor query = {};              ///< as in forward
  Tensor key = {};                ///< as in forward
  Tensor value = {};              ///< as in forward
  Tensor bias = {};               ///< as in forward
  Tensor visible = {};            ///< as in forward
  Tensor cu_seqlens_q = {};       ///< as in forward
  Tensor cu_seqlens_kv = {};      ///< as in forward
  Tensor q_lens = {};             ///< as in forward
  Tensor kv_lens = {};            ///< as in forward
  Tensor out = {};                ///< what forward wrote
  Tensor lse = {};                ///< what forward wrote
  Tensor grad_out = {};           ///< as out
  Tensor grad_lse = {};           ///< optional: as lse
  Tensor grad_query = {};         ///< as query; absent: not wanted
  Tensor grad_key = {};           ///< as key; absent: not wanted
  Tensor grad_value = {};         ///< as value; absent: not wanted
  Tensor grad_bias = {};          ///< as bias, summed over broadcast dimensions
  uint64_t seed = 0;              ///< as in forward
  uint64_t offset = 0;            ///< as in forward
  const uint64_t* rng = nullptr;  ///< as in forward
};

namespace detail {

/// Without async_kv.
inline perseid_attention_desc attention_desc(const AttentionOptions& options) {
  auto desc = sized<perseid_attention_desc>();
  desc.dtype = static_cast<uint32_t>(options.dtype);
  desc.layout = static_cast<uint32_t>(options.layout);
  desc.causal = options.mask.causal;
  desc.batch = options.batch;
  desc.heads = options.heads;
  desc.kv_heads = options.kv_heads;
  desc.q_len = options.q_len;
  desc.kv_len = options.kv_len;
  desc.head_dim = options.head_dim;
  desc.value_dim = options.value_dim;
  desc.scale = options.scale;
  desc.dropout = options.dropout;
  desc.window = options.mask.left != -1 || options.mask.right != -1;
  desc.window_left = options.mask.left;
  desc.window_right = options.mask.right;
  desc.visible = options.visible;
  if (options.bias) {
    desc.bias = 1;
    desc.bias_dtype = static_cast<uint32_t>(options.bias_dtype);
    std::copy(options.bias->begin(), options.bias->end(), desc.bias_shape);
  }
  desc.window_bottom_right = options.mask.bottom_right && desc.window != 0;
  desc.q_lens = options.q_lens;
  desc.kv_lens = options.kv_lens;
  desc.kv_starts = options.kv_starts;
  desc.kv_batch = options.kv_batch;
  desc.max_lengths = options.max_lengths;
  desc.num_splits = options.num_splits;
  desc.ragged = options.ragged;
  desc.total_q = options.total_q;
  desc.total_kv = options.total_kv;
  desc.gradients = options.gradients;
  if (options.backward && options.gradients == 0) {
    desc.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
    if (options.bias) desc.gradients |= PERSEID_GRAD_BIAS;
  }
  desc.deterministic = options.deterministic;
  desc.implementation = options.implementation;
  desc.zero_batch = options.batch == 0;
  desc.accumulate = options.accumulate;
  return desc;
}
/// The fields that both directions name alike.
template <class Args, class With>
void set_inputs(Args& args, const With& with) {
  args.query = with.query.dl();
  args.key = with.key.dl();
  args.value = with.value.dl();
  args.bias = with.bias.dl();
  args.visible = with.visible.dl();
  args.cu_seqlens_q = with.cu_seqlens_q.dl();
  args.cu_seqlens_kv = with.cu_seqlens_kv.dl();
  args.q_lens = with.q_lens.dl();
  args.kv_lens = with.kv_lens.dl();
  args.out = with.out.dl();
  args.lse = with.lse.dl();
  args.seed = with.seed;
  args.offset = with.offset;
  args.rng = with.rng;
}

/// Those of backward.
inline void set_tensors(perseid_attention_backward_args& args, const AttentionBackward& with) {
  set_inputs(args, with);
  args.grad_out = with.grad_out.dl();
  args.grad_lse = with.grad_lse.dl();
  args.grad_query = with.grad_query.dl();
  args.grad_key = with.grad_key.dl();
  args.grad_value = with.grad_value.dl();
  args.grad_bias = with.grad_bias.dl();
}

}  // namespace detail

/// out = dropout(softmax(scale * query key^T + bias, masked)) value.
/// \snippet snippets.cpp attention
class Attention : public Plan {
 public:
  /// Makes a plan; throws where no implementation takes the problem.
  /// \snippet snippets.cpp attention
  Attention(const Context& context, const AttentionOptions& options)
      : Plan(create(context, options)) {}

  /// Writes out, and lse where given.
  /// \snippet snippets.cpp attention
  void forward(Stream stream, const AttentionForward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_attention_forward_args>();
    detail::set_inputs(args, with);
    args.kv_starts = with.kv_starts.dl();
    args.kv_index = with.kv_index.dl();
    const detail::ArrivalArgument arrival_kv(with.arrival_kv);
    args.arrival_kv = arrival_kv.get();
    execute_as(Direction::kForward, perseid_attention_forward, args, stream, workspace);
  }
  /// Writes the gradients that are given, from what forward wrote.
  /// \snippet snippets.cpp attention_backward
  void backward(Stream stream, const AttentionBackward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_attention_backward_args>();
    detail::set_tensors(args, with);
    execute_as(Direction::kBackward, perseid_attention_backward, args, stream, workspace);
  }

 private:
  static perseid_plan_t create(const Context& context, const AttentionOptions& options) {
    perseid_attention_desc desc = detail::attention_desc(options);
    const detail::AsyncOperand async_kv(options.async_kv);
    desc.async_kv = async_kv.get();
    perseid_plan_t plan = nullptr;
    detail::check(perseid_attention_plan_create(context.get(), &desc, &plan));
    return plan;
  }
};

/// Writes the mask that attention with this dropout, seed and offset uses, 1 where kept.
/// mask: bool or u8 [batch, heads, q_len, kv_len].
/// \snippet snippets.cpp dropout_mask
inline void fill_dropout_mask(const Context& context, double dropout, uint64_t seed,
                              uint64_t offset, const Tensor& mask, Stream stream = nullptr) {
  detail::check(perseid_fill_dropout_mask(context.get(), dropout, seed, offset, mask.dl(), stream));
}

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_ATTENTION_HPP_
