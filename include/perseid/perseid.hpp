// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Perseid for C++20: a header-only layer over the C ABI of perseid.h.
///
///   perseid::Context context = perseid::Context::cpu();
///   perseid::Attention attention(context, {.dtype = perseid::f32, .batch = 4, .heads = 8,
///       .q_len = 512, .kv_len = 512, .head_dim = 64, .mask = perseid::causal_bottom_right(),
///       .dropout = 0.1, .backward = true});
///   perseid::Workspace workspace;
///   attention.reserve(workspace);
///   attention.forward(nullptr, {.query = q, .key = k, .value = v, .out = o, .lse = lse,
///                               .seed = 7}, workspace);
///
/// Every failure is thrown as perseid::Error, with the status and the library's sentence. Plans are
/// immutable: any number of threads may execute one at once, each with its own workspace. Executing
/// allocates nothing once the workspace is reserved.
#ifndef PERSEID_PERSEID_HPP_
#define PERSEID_PERSEID_HPP_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perseid/chunks.hpp"
#include "perseid/context.hpp"
#include "perseid/file.hpp"
#include "perseid/perseid.h"
#include "perseid/ragged.hpp"
#include "perseid/tensor.hpp"

namespace perseid {
inline namespace v0 {

// ---- Plans ------------------------------------------------------------------------------------

/// Which execution of a plan is meant.
enum class Direction {
  kForward = PERSEID_FORWARD,    ///< results from inputs
  kBackward = PERSEID_BACKWARD,  ///< gradients of inputs
};

/// What all plans share.
class Plan {
 public:
  /// The exact bytes that executing `direction` needs; 0 where the plan does not have it.
  /// \snippet snippets.cpp workspace
  size_t workspace_size(Direction direction = Direction::kForward) const {
    size_t bytes = 0;
    detail::check(
        perseid_plan_workspace_size(get(), static_cast<perseid_direction>(direction), &bytes));
    return bytes;
  }
  /// Grows the workspace to what either direction needs, so that no execution allocates.
  /// \snippet snippets.cpp workspace
  void reserve(Workspace& workspace) const {
    workspace.reserve(std::max(forward_bytes_, backward_bytes_));
  }
  /// Every implementation in order, chosen or refused and why, for people.
  /// \snippet snippets.cpp explain
  std::string explain() const {
    const char* text = nullptr;
    detail::check(perseid_plan_explain(get(), &text));
    return text;
  }
  /// The same as JSON.
  /// \snippet snippets.cpp explain
  std::string explain_json() const {
    const char* json = nullptr;
    detail::check(perseid_plan_explain_json(get(), &json));
    return json;
  }
  /// The implementation's name, and useful FLOPs and bytes of both directions.
  /// \snippet snippets.cpp explain
  perseid_plan_info info() const {
    auto info = detail::sized<perseid_plan_info>();
    detail::check(perseid_plan_query(get(), &info));
    return info;
  }
  /// The C interface's handle, which this object owns.
  perseid_plan_t get() const { return handle_.get(); }

 protected:
  /// \cond
  explicit Plan(perseid_plan_t handle) : handle_(handle) {
    forward_bytes_ = workspace_size(Direction::kForward);
    backward_bytes_ = workspace_size(Direction::kBackward);
  }
  template <class Function, class Args>
  void execute_as(Direction direction, Function function, const Args& args, Stream stream,
                  const Scratch& scratch) const {
    const auto memory =
        scratch.of(direction == Direction::kForward ? forward_bytes_ : backward_bytes_);
    detail::check(function(get(), &args, memory.data(), memory.size(), stream));
  }
  /// \endcond

 private:
  struct Destroy {
    void operator()(perseid_plan_t handle) const { perseid_plan_destroy(handle); }
  };
  std::unique_ptr<perseid_plan, Destroy> handle_;
  size_t forward_bytes_ = 0;
  size_t backward_bytes_ = 0;
};

// ---- Softmax ----------------------------------------------------------------------------------

/// The problem of a Softmax plan.
struct SoftmaxOptions {
  DType dtype = f32;               ///< of input and its gradient
  DType out_dtype = DType::kNone;  ///< of output and its gradient; none: dtype
  Dims shape = {};                 ///< of input and output
  int32_t dim = -1;                ///< the softmax dimension; negative: from the last
  bool log = false;                ///< log-softmax
  double scale = 1;                ///< 0 stands for 1, as in the C interface
  bool visible = false;            ///< a boolean mask is given at execution
  bool empty_rows_nan = false;     ///< rows with nothing visible: NaN instead of 0 (log: -inf)
  const char* implementation = nullptr;  ///< names; see the C struct
};

/// The tensors of Softmax::forward.
struct SoftmaxForward {
  Tensor input = {};    ///< shape, dtype
  Tensor output = {};   ///< shape, out_dtype; may be the input exactly
  Tensor visible = {};  ///< bool or u8, each dimension the shape's or 1; true: the element counts
  Tensor lse = {};      ///< optional: the shape with `dim` of size 1, f32 (f64 if computed so)
};

/// The tensors of Softmax::backward.
struct SoftmaxBackward {
  Tensor grad_output = {};  ///< shape, out_dtype
  Tensor output = {};       ///< what forward wrote
  Tensor visible = {};      ///< as in forward
  Tensor grad_input = {};   ///< shape, dtype; may be grad_output exactly
};

/// output = softmax(scale * input) or log_softmax(scale * input) over one dimension.
/// \snippet snippets.cpp softmax
class Softmax : public Plan {
 public:
  /// Makes a plan; throws where no implementation takes the problem.
  /// \snippet snippets.cpp softmax
  Softmax(const Context& context, const SoftmaxOptions& options) : Plan(create(context, options)) {}

  /// Writes output, and lse where given.
  /// \snippet snippets.cpp softmax
  void forward(Stream stream, const SoftmaxForward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_softmax_forward_args>();
    args.input = with.input.dl();
    args.output = with.output.dl();
    args.visible = with.visible.dl();
    args.lse = with.lse.dl();
    execute_as(Direction::kForward, perseid_softmax_forward, args, stream, workspace);
  }
  /// Writes grad_input from what forward wrote.
  /// \snippet snippets.cpp softmax
  void backward(Stream stream, const SoftmaxBackward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_softmax_backward_args>();
    args.grad_output = with.grad_output.dl();
    args.output = with.output.dl();
    args.visible = with.visible.dl();
    args.grad_input = with.grad_input.dl();
    execute_as(Direction::kBackward, perseid_softmax_backward, args, stream, workspace);
  }

 private:
  static perseid_plan_t create(const Context& context, const SoftmaxOptions& options) {
    auto desc = detail::sized<perseid_softmax_desc>();
    desc.kind = options.log ? PERSEID_LOG_SOFTMAX : PERSEID_SOFTMAX;
    desc.dtype = static_cast<uint32_t>(options.dtype);
    desc.out_dtype = static_cast<uint32_t>(options.out_dtype);
    desc.ndim = static_cast<int32_t>(options.shape.size());
    desc.dim = options.dim;
    std::copy(options.shape.begin(), options.shape.end(), desc.shape);
    desc.scale = options.scale;
    desc.visible = options.visible;
    desc.empty_rows = options.empty_rows_nan ? PERSEID_EMPTY_NAN : PERSEID_EMPTY_ZERO;
    desc.implementation = options.implementation;
    perseid_plan_t plan = nullptr;
    detail::check(perseid_softmax_plan_create(context.get(), &desc, &plan));
    return plan;
  }
};

// ---- Attention --------------------------------------------------------------------------------

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
  int64_t left = -1;   ///< keys to the left of the query's own position; -1: unlimited
  int64_t right = -1;  ///< the same to its right

  /// What both allow.
  /// \snippet snippets.cpp masks
  friend Mask operator&(const Mask& a, const Mask& b) {
    detail::require(
        a.causal == b.causal || a.causal == PERSEID_CAUSAL_NONE || b.causal == PERSEID_CAUSAL_NONE,
        "a mask is causal by its top left or its bottom right, not both");
    const auto nearer = [](int64_t x, int64_t y) { return x < 0 ? y : y < 0 ? x : std::min(x, y); };
    return {std::max(a.causal, b.causal), nearer(a.left, b.left), nearer(a.right, b.right)};
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
};

/// The tensors of Attention::forward. Shapes in the bshd layout; ragged tensors lack the batch
/// dimension.
struct AttentionForward {
  Tensor query = {};          ///< [batch, q_len, heads, head_dim]
  Tensor key = {};            ///< [batch, kv_len, kv_heads, head_dim]
  Tensor value = {};          ///< [batch, kv_len, kv_heads, value_dim]
  Tensor bias = {};           ///< as in the options
  Tensor visible = {};        ///< bool or u8, broadcasting against [batch, heads, q_len, kv_len]
  Tensor cu_seqlens_q = {};   ///< ragged: i32 or i64 [batch + 1]
  Tensor cu_seqlens_kv = {};  ///< ragged: the same for keys
  Tensor kv_lens = {};        ///< i32 or i64 [batch]
  Tensor out = {};            ///< [batch, q_len, heads, value_dim]
  Tensor lse = {};    ///< optional: f32 (f64 for f64) [batch, heads, q_len]; ragged [heads, total]
  uint64_t seed = 0;  ///< of dropout
  uint64_t offset = 0;            ///< of dropout, below 2^32
  const uint64_t* rng = nullptr;  ///< {seed, offset} in device memory, instead of the two above
  Arrival arrival_kv = {};        ///< where the options have async_kv
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
    set_inputs(args, with);
    const detail::ArrivalArgument arrival_kv(with.arrival_kv);
    args.arrival_kv = arrival_kv.get();
    execute_as(Direction::kForward, perseid_attention_forward, args, stream, workspace);
  }
  /// Writes the gradients that are given, from what forward wrote.
  /// \snippet snippets.cpp attention_backward
  void backward(Stream stream, const AttentionBackward& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_attention_backward_args>();
    set_inputs(args, with);
    args.grad_out = with.grad_out.dl();
    args.grad_lse = with.grad_lse.dl();
    args.grad_query = with.grad_query.dl();
    args.grad_key = with.grad_key.dl();
    args.grad_value = with.grad_value.dl();
    args.grad_bias = with.grad_bias.dl();
    execute_as(Direction::kBackward, perseid_attention_backward, args, stream, workspace);
  }

 private:
  /// The fields that both directions name alike.
  template <class Args, class With>
  static void set_inputs(Args& args, const With& with) {
    args.query = with.query.dl();
    args.key = with.key.dl();
    args.value = with.value.dl();
    args.bias = with.bias.dl();
    args.visible = with.visible.dl();
    args.cu_seqlens_q = with.cu_seqlens_q.dl();
    args.cu_seqlens_kv = with.cu_seqlens_kv.dl();
    args.kv_lens = with.kv_lens.dl();
    args.out = with.out.dl();
    args.lse = with.lse.dl();
    args.seed = with.seed;
    args.offset = with.offset;
    args.rng = with.rng;
  }
  static perseid_plan_t create(const Context& context, const AttentionOptions& options) {
    auto desc = detail::sized<perseid_attention_desc>();
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
    desc.kv_lens = options.kv_lens;
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

// ---- Matmul -----------------------------------------------------------------------------------

/// What the scales of 8-bit operands belong to.
enum class Scaling : uint32_t {
  kNone = PERSEID_SCALE_NONE,      ///< no scales
  kTensor = PERSEID_SCALE_TENSOR,  ///< one for a and one for b
  kRow = PERSEID_SCALE_ROW,        ///< one for each row of a and each column of b
  kBlock = PERSEID_SCALE_BLOCK,    ///< one for 1 x 128 elements of a and 128 x 128 of b
};

/// How sums over k of 8-bit products are accumulated.
enum class Accumulation : uint32_t {
  kPromoted = PERSEID_ACCUMULATE_PROMOTED,  ///< in float32
  kFast = PERSEID_ACCUMULATE_FAST,          ///< in the accumulator of the tensor cores
};

/// What is applied to each element of a result.
enum class Activation : uint32_t {
  kNone = PERSEID_ACTIVATION_NONE,           ///< nothing
  kGeluTanh = PERSEID_ACTIVATION_GELU_TANH,  ///< 0.5 y (1 + tanh(sqrt(2 / pi) (y + 0.044715 y^3)))
  kGeluErf = PERSEID_ACTIVATION_GELU_ERF,    ///< 0.5 y (1 + erf(y / sqrt(2)))
  kSilu = PERSEID_ACTIVATION_SILU,           ///< y / (1 + exp(-y))
};

/// The problem of a Matmul plan.
struct MatmulOptions {
  DType dtype = f32;  ///< of a and b
  /// Of c and c0. None: dtype, or f32 where that is of 8 bits. 16-bit types are multiplied into
  /// themselves or f32, 8-bit types into f16, bf16, f32 and either of the two.
  DType out_dtype = DType::kNone;
  int64_t batch = 1;                 ///< products
  int64_t m = 0;                     ///< rows of a and c
  int64_t n = 0;                     ///< columns of b and c
  int64_t k = 0;                     ///< columns of a, rows of b
  double alpha = 1;                  ///< of a b
  double beta = 0;                   ///< 0: c is not read, even where it holds NaN; 0 with 8-bit c
  bool bias = false;                 ///< a bias is given at execution
  DType b_dtype = DType::kNone;      ///< of b: dtype (also none), or the other 8-bit type
  Scaling scaling = Scaling::kNone;  ///< of 8-bit a and b
  Accumulation accumulation = Accumulation::kPromoted;  ///< of 8-bit a and b
  bool scale_result = false;                            ///< of 8-bit c, given at execution
  Activation activation = Activation::kNone;            ///< applied to alpha a b + beta c0 + bias
  bool amax = false;                                    ///< amax is written at execution
  ChunksView async_a = {};                              ///< that a arrives in, of m or k
  ChunksView async_b = {};                              ///< that b arrives in, of n or k
  ChunksView sink_c = {};                               ///< that c leaves in, of m or n
  perseid_precision precision = PERSEID_PRECISION_DEFAULT;  ///< of products of f32
  const char* implementation = nullptr;                     ///< names; see the C struct
};

/// The tensors of Matmul::execute.
struct MatmulArguments {
  Tensor a = {};        ///< [batch, m, k], or [m, k] for every batch entry
  Tensor b = {};        ///< [batch, k, n], or [k, n] for every batch entry
  Tensor c0 = {};       ///< optional: c where absent. As c
  Tensor bias = {};     ///< [n], dtype or out_dtype; f32 or 16-bit out_dtype with 8-bit a
  Tensor c = {};        ///< [batch, m, n] ([m, n] if batch is 1), out_dtype
  Tensor scale_a = {};  ///< f32: [1]; [batch, m]; [batch, m, ceil(k / 128)], or without the batch
  Tensor scale_b = {};  ///< f32: [1]; [batch, n]; [batch, ceil(k / 128), ceil(n / 128)]
  Tensor scale_result = {};    ///< f32 [1]: c is rounded after it is multiplied
  Tensor amax = {};            ///< [1], f32 (f64 of f64): max |c| before scale_result and rounding
  Arrival arrival_a = {};      ///< where the options have async_a
  Arrival arrival_b = {};      ///< where the options have async_b
  Departure departure_c = {};  ///< where the options have sink_c
};

/// c = activation(alpha * a b + beta * c0 + bias) * scale_result, see perseid_matmul_desc.
/// Transposes are the tensors' strides: Tensor::transposed().
/// \snippet snippets.cpp matmul
class Matmul : public Plan {
 public:
  /// Makes a plan; throws where no implementation takes the problem.
  /// \snippet snippets.cpp matmul
  Matmul(const Context& context, const MatmulOptions& options)
      : Plan(create(options, [&](const perseid_matmul_desc& desc, perseid_plan_t* plan) {
          return perseid_matmul_plan_create(context.get(), &desc, plan);
        })) {}

  /// Makes a plan after measuring the configurations of its implementation with these tensors, and
  /// keeps the fastest for later plans of the same problem: see perseid_matmul_tune.
  /// \snippet snippets.cpp matmul_tuned
  static Matmul tuned(const Context& context, const MatmulOptions& options,
                      const MatmulArguments& with, Stream stream = nullptr) {
    return Matmul(create(options, [&](const perseid_matmul_desc& desc, perseid_plan_t* plan) {
      const Arguments args(with);
      return perseid_matmul_tune(context.get(), &desc, &args.c, stream, plan);
    }));
  }

  /// Writes c.
  /// \snippet snippets.cpp matmul
  void execute(Stream stream, const MatmulArguments& with, const Scratch& workspace) const {
    const Arguments args(with);
    execute_as(Direction::kForward, perseid_matmul_execute, args.c, stream, workspace);
  }

 private:
  struct Arguments {
    explicit Arguments(const MatmulArguments& with)
        : arrival_a(with.arrival_a), arrival_b(with.arrival_b), departure_c(with.departure_c) {
      c.a = with.a.dl();
      c.b = with.b.dl();
      c.c0 = with.c0.dl();
      c.bias = with.bias.dl();
      c.c = with.c.dl();
      c.scale_a = with.scale_a.dl();
      c.scale_b = with.scale_b.dl();
      c.scale_result = with.scale_result.dl();
      c.amax = with.amax.dl();
      c.arrival_a = arrival_a.get();
      c.arrival_b = arrival_b.get();
      c.departure_c = departure_c.get();
    }
    detail::ArrivalArgument arrival_a, arrival_b;
    detail::DepartureArgument departure_c;
    perseid_matmul_args c = detail::sized<perseid_matmul_args>();
  };

  explicit Matmul(perseid_plan_t plan) : Plan(plan) {}

  template <class Make>
  static perseid_plan_t create(const MatmulOptions& options, const Make& make) {
    auto desc = detail::sized<perseid_matmul_desc>();
    desc.dtype = static_cast<uint32_t>(options.dtype);
    desc.out_dtype = static_cast<uint32_t>(options.out_dtype);
    desc.bias = options.bias;
    desc.batch = options.batch;
    desc.m = options.m;
    desc.n = options.n;
    desc.k = options.k;
    desc.alpha = options.alpha;
    desc.beta = options.beta;
    desc.b_dtype = static_cast<uint32_t>(options.b_dtype);
    desc.scaling = static_cast<uint32_t>(options.scaling);
    desc.accumulation = static_cast<uint32_t>(options.accumulation);
    desc.scale_result = options.scale_result;
    desc.activation = static_cast<uint32_t>(options.activation);
    desc.amax = options.amax;
    desc.precision = static_cast<uint32_t>(options.precision);
    desc.implementation = options.implementation;
    desc.zero_alpha = options.alpha == 0;
    desc.zero_batch = options.batch == 0;
    const detail::AsyncOperand async_a(options.async_a), async_b(options.async_b),
        sink_c(options.sink_c);
    desc.async_a = async_a.get();
    desc.async_b = async_b.get();
    desc.sink_c = sink_c.get();
    perseid_plan_t plan = nullptr;
    detail::check(make(desc, &plan));
    return plan;
  }
};

// ---- Log --------------------------------------------------------------------------------------

/// Takes one message of the library.
using LogFunction = std::function<void(perseid_log_level, std::string_view)>;

/// Sends the library's messages of at least `level` to `function`, one at a time, from any thread
/// (an empty function: silence). It must not call the library; what it throws is dropped.
/// \snippet snippets.cpp log
inline void set_log(LogFunction function, perseid_log_level level = PERSEID_LOG_INFO) {
  struct State {
    std::mutex mutex;
    LogFunction function;
  };
  static State* state = new State;  // never freed: threads may still log while the program ends
  const bool wanted = static_cast<bool>(function);
  perseid_set_log_callback(nullptr, nullptr, level);
  {
    const std::lock_guard lock(state->mutex);
    state->function = std::move(function);
  }
  if (!wanted) return;
  perseid_set_log_callback(
      [](void* user, perseid_log_level message_level, const char* message) {
        auto* to = static_cast<State*>(user);
        try {
          const std::lock_guard lock(to->mutex);
          if (to->function) to->function(message_level, message);
        } catch (...) {
        }
      },
      state, level);
}

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_PERSEID_HPP_
