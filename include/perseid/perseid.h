// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * Perseid: fused transformer kernels. The C ABI; perseid.hpp wraps it for C++20.
 *
 * Every operation goes: describe -> plan -> query workspace -> execute on a stream.
 *
 *   - A plan is made from a descriptor: the problem is validated, and of the ordered list of
 *     implementations the first that takes it is kept. A plan is immutable; any number of threads
 *     may execute it at once, each with its own workspace.
 *   - Tensors cross as `const DLTensor*`. Shapes and dtypes must be those of the descriptor;
 *     strides and byte offsets are free (NULL strides: row-major), but where an operation says what
 *     its GPU kernels need. Data must be aligned to its element. Nothing is owned, nothing is
 *     copied behind the caller's back. A tensor without elements may have NULL data. What is
 *     written shares memory with nothing else, but where this header says so.
 *   - Executing allocates nothing, prints nothing (unless the variable PERSEID_VERBOSE asks for
 * it), and waits for nothing but its own work. On the CPU the work is done when the call returns,
 * and `stream` is ignored; on a GPU `stream` is a CUstream (NULL: the default stream) on which the
 * work is queued.
 *   - Every function returns a status. perseid_last_error() holds the sentence of the calling
 *     thread's last failure: what was expected, what was got, what to do. A call that fails has
 *     written nothing, unless the status is DEVICE_ERROR, TIMEOUT or PEER_LOST. INVALID_ARGUMENT
 *     may come from every function; what else may come is said at each.
 *   - Structs begin with `struct_size`; set it to sizeof the struct and zero the rest before
 *     filling. Zero always means the documented default; lengths and the sizes of a shape have
 *     none, and are 0 then. Sizes count elements, never bytes, where a name does not say `bytes`.
 *   - A struct grows at its end alone. A smaller one, of a program compiled with an older header,
 *     is taken: the fields that it lacks are zero. A larger one is taken where all that this
 *     library does not know of it is zero. `reserved` must be zero.
 *   - dlclose() unloads the library; destroy all that it made first. The NVIDIA driver and NVRTC
 *     stay loaded once a GPU context has opened them.
 */
#ifndef PERSEID_PERSEID_H_
#define PERSEID_PERSEID_H_

#include "perseid/async.h"
#include "perseid/collective.h"
#include "perseid/context.h"
#include "perseid/dlpack.h"
#include "perseid/file.h"
#include "perseid/ragged.h"
#include "perseid/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plans ---- */

/** Frees a plan. No thread may be executing it. NULL is ignored.
 * \snippet operations.c destroy */
PERSEID_API void perseid_plan_destroy(perseid_plan_t plan);
/** The exact bytes of workspace that executing `direction` needs; pass a buffer of at least that
 * size (any alignment; NULL if 0). Its content need not be initialised. 0 for a direction that the
 * plan does not have.
 * \snippet operations.c workspace */
PERSEID_API perseid_status perseid_plan_workspace_size(perseid_plan_t plan,
                                                       perseid_direction direction, size_t* bytes);

/** What a plan will do. */
typedef struct perseid_plan_info {
  uint32_t struct_size;       /**< sizeof(perseid_plan_info) */
  uint32_t reserved;          /**< 0 */
  const char* implementation; /**< such as "cpu:tiled"; lives as long as the plan */
  double forward_flops;       /**< useful FLOPs: masked-out work is not counted */
  double forward_bytes;       /**< each operand once */
  double backward_flops;      /**< 0 where the plan has no backward */
  double backward_bytes;      /**< 0 where the plan has no backward */
} perseid_plan_info;
/** Fills `info`, whose struct_size the caller has set.
 * \snippet operations.c query */
PERSEID_API perseid_status perseid_plan_query(perseid_plan_t plan, perseid_plan_info* info);
/** Every implementation in order, chosen or refused and why, with FLOPs, bytes, workspace and
 * bound, as text for people. It lives as long as the plan.
 * \snippet operations.c explain */
PERSEID_API perseid_status perseid_plan_explain(perseid_plan_t plan, const char** text);
/** The same as JSON.
 * \snippet operations.c explain */
PERSEID_API perseid_status perseid_plan_explain_json(perseid_plan_t plan, const char** json);

/* ---- Softmax ---- */

/** The function of a softmax plan. */
typedef enum perseid_softmax_kind {
  PERSEID_SOFTMAX = 0,    /**< exp(scale x - lse) */
  PERSEID_LOG_SOFTMAX = 1 /**< scale x - lse */
} perseid_softmax_kind;
/** The result of a row with nothing visible. */
typedef enum perseid_empty_rows {
  PERSEID_EMPTY_ZERO = 0, /**< softmax 0, log-softmax -inf */
  PERSEID_EMPTY_NAN = 1   /**< NaN */
} perseid_empty_rows;

/** output = softmax(scale * input) or log_softmax(scale * input) over dimension `dim`.
 * With `visible`, elements where the mask is false take no part: softmax gives 0 there and
 * log-softmax -inf, and their gradient is 0. A row with nothing visible gives softmax 0 and
 * log-softmax -inf everywhere (or NaN on request), lse -inf and gradient 0. Without a mask, a row
 * of all -inf is NaN. Algorithm: online normaliser, Milakov and Gimelshein, arXiv:1805.02867. */
typedef struct perseid_softmax_desc {
  uint32_t struct_size; /**< sizeof(perseid_softmax_desc) */
  uint32_t kind;        /**< perseid_softmax_kind */
  uint32_t dtype;       /**< of input and grad_input */
  /** Of output and grad_output; 0: dtype. F64 on either side computes in float64. */
  uint32_t out_dtype;
  int32_t ndim;                    /**< 1..PERSEID_MAX_DIMS */
  int32_t dim;                     /**< the softmax dimension, -ndim..ndim-1 */
  int64_t shape[PERSEID_MAX_DIMS]; /**< the first ndim sizes */
  double scale;                    /**< 0: 1. Finite in the type that is computed in */
  uint32_t visible;                /**< 1: a mask is given at execution */
  uint32_t empty_rows;             /**< perseid_empty_rows */
  /** NULL: the first that takes the problem; else names, divided by commas: the first of these. */
  const char* implementation;
} perseid_softmax_desc;

/** The tensors of perseid_softmax_forward. */
typedef struct perseid_softmax_forward_args {
  uint32_t struct_size;  /**< sizeof(perseid_softmax_forward_args) */
  uint32_t reserved;     /**< 0 */
  const DLTensor* input; /**< shape, dtype */
  /** shape, out_dtype. May be the input exactly (same data, strides and dtype). */
  const DLTensor* output;
  /** bool or uint8, each dimension the shape's or 1; true: the element counts. */
  const DLTensor* visible;
  /** NULL, or the shape with `dim` of size 1: float32 (float64 if computed so); natural logarithm
   * of the sum of exp(scale * input) over the visible elements. */
  const DLTensor* lse;
} perseid_softmax_forward_args;

/** The tensors of perseid_softmax_backward. */
typedef struct perseid_softmax_backward_args {
  uint32_t struct_size;        /**< sizeof(perseid_softmax_backward_args) */
  uint32_t reserved;           /**< 0 */
  const DLTensor* grad_output; /**< shape, out_dtype */
  const DLTensor* output;      /**< shape, out_dtype: what forward wrote */
  const DLTensor* visible;     /**< as in forward */
  const DLTensor* grad_input;  /**< shape, dtype. May be grad_output exactly */
} perseid_softmax_backward_args;

/** Makes a plan. Errors: UNSUPPORTED (no implementation takes the problem; the sentence has the
 * reason of each), OUT_OF_MEMORY, DEVICE_ERROR. *plan is NULL after a failure.
 * \snippet operations.c softmax_plan */
PERSEID_API perseid_status perseid_softmax_plan_create(perseid_context_t context,
                                                       const perseid_softmax_desc* desc,
                                                       perseid_plan_t* plan);
/** Writes output, and lse where given. Errors: WORKSPACE_TOO_SMALL, DEVICE_ERROR.
 * \snippet operations.c softmax_forward */
PERSEID_API perseid_status perseid_softmax_forward(perseid_plan_t plan,
                                                   const perseid_softmax_forward_args* args,
                                                   void* workspace, size_t workspace_bytes,
                                                   void* stream);
/** Writes grad_input, from what forward wrote: scale * y * (dy - sum(dy y)), for log-softmax
 * scale * (dy - exp(y) sum(dy)). Errors: as forward.
 * \snippet operations.c softmax_backward */
PERSEID_API perseid_status perseid_softmax_backward(perseid_plan_t plan,
                                                    const perseid_softmax_backward_args* args,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream);

/* ---- Attention ---- */

/** The order of dimensions in memory; strides may be any. */
typedef enum perseid_layout {
  PERSEID_BSHD = 0, /**< [batch, sequence, heads, dim]; ragged: [total, heads, dim] */
  PERSEID_BHSD = 1  /**< [batch, heads, sequence, dim]; ragged: [heads, total, dim] */
} perseid_layout;
/** Top-left: query i sees keys j <= i. Bottom-right: j <= i + (kv_len - q_len), with each
 * sequence's own lengths. A window has the alignment of causal; without causal top-left, but see
 * window_bottom_right. */
typedef enum perseid_causal {
  PERSEID_CAUSAL_NONE = 0,        /**< every key */
  PERSEID_CAUSAL_TOP_LEFT = 1,    /**< j <= i */
  PERSEID_CAUSAL_BOTTOM_RIGHT = 2 /**< j <= i + (kv_len - q_len) */
} perseid_causal;
/** Gradients that backward may be asked for, as bits. */
typedef enum perseid_gradient {
  PERSEID_GRAD_QUERY = 1, /**< grad_query */
  PERSEID_GRAD_KEY = 2,   /**< grad_key */
  PERSEID_GRAD_VALUE = 4, /**< grad_value */
  PERSEID_GRAD_BIAS = 8   /**< grad_bias */
} perseid_gradient;

/** out = dropout(softmax(scale * query key^T + bias, masked)) value; the score matrix is never
 * stored. A row with no visible key gives out 0, lse -inf and gradients 0; NaN or inf at masked
 * keys never reaches a result. Query head h reads key head h / (heads / kv_heads). Algorithms: Rabe
 * and Staats, arXiv:2112.05682; Dao et al., arXiv:2205.14135 and 2307.08691. */
typedef struct perseid_attention_desc {
  uint32_t struct_size; /**< sizeof(perseid_attention_desc) */
  uint32_t dtype;       /**< of query, key, value, out and their gradients */
  uint32_t layout;      /**< perseid_layout */
  uint32_t causal;      /**< perseid_causal */
  int64_t batch;        /**< 0: 1, but see zero_batch */
  int64_t heads;        /**< query heads */
  int64_t kv_heads;     /**< 0: heads; else divides heads */
  int64_t q_len;        /**< ragged: the longest query sequence */
  int64_t kv_len;       /**< ragged: the longest key sequence */
  int64_t head_dim;     /**< of query and key */
  int64_t value_dim;    /**< 0: head_dim */
  double scale;         /**< 0: 1 / sqrt(head_dim) */
  double dropout;       /**< probability of dropping, [0, 1). Rounded to 1/256; see
                           perseid_fill_dropout_mask */
  /** 1: query i sees keys p - left .. p + right, where p is i, shifted by kv_len - q_len under
   * bottom-right alignment. */
  uint32_t window;
  uint32_t visible;     /**< 1: a boolean mask is given at execution */
  int64_t window_left;  /**< -1: unlimited */
  int64_t window_right; /**< -1: unlimited */
  uint32_t bias;        /**< 1: an additive bias is given at execution */
  uint32_t bias_dtype;  /**< dtype or F32 (F64 with F64); 0: dtype */
  /** Of bias against [batch, heads, q_len, kv_len]; each entry that size or 1. */
  int64_t bias_shape[4];
  uint32_t ragged;    /**< 1: cumulative lengths; batch entries are packed along one axis */
  uint32_t kv_lens;   /**< 1: per-sequence key lengths are given; keys beyond them are masked */
  int64_t total_q;    /**< ragged: rows of the packed query, not 0 unless q_len or batch is */
  int64_t total_kv;   /**< ragged: rows of the packed key and value */
  uint32_t gradients; /**< perseid_gradient bits that backward will be asked for; 0: forward only */
  uint32_t deterministic; /**< 1: bitwise repeatable backward (the CPU always is) */
  /** NULL: the first that takes the problem; else names, divided by commas: the first of these. */
  const char* implementation;
  uint32_t zero_batch; /**< 1: batch is 0, and so is that of the tensors */
  /** perseid_gradient bits within `gradients`: backward adds these to what their tensors hold, in
   * the accumulation type, and rounds once. */
  uint32_t accumulate;
  /** NULL: all of key and value is present; else their chunks, of kv_len, where ragged of total_kv.
   * A chunk is these rows of both, of every batch entry and head. Forward alone waits for them:
   * backward comes after it and finds all keys present. */
  const perseid_async_operand* async_kv;
  /** 1, without causal: the window is aligned bottom-right, p is i + (kv_len - q_len). */
  uint32_t window_bottom_right;
  /** 1: per-sequence query lengths are given. Rows beyond them get out 0, lse -inf and grad_query 0
   * (where it does not accumulate), and take no part in the other gradients. */
  uint32_t q_lens;
  /** 1, with ragged and kv_lens, without gradients: instead of cu_seqlens_kv, kv_starts says where
   * the keys of each sequence begin, in any order; sequences may share keys. */
  uint32_t kv_starts;
  /** 1, without async_kv: q_len, kv_len, total_q and total_kv are the most that an execution may
   * have, of either direction; its query, key and value say how many it has. So one plan serves
   * every step of a decode loop. Where bias_shape has q_len or kv_len, and that is not 1, bias and
   * grad_bias have the execution's. */
  uint32_t max_lengths;
  /** Not 0, without ragged and gradients: batch entries of key and value (a cache), of which
   * kv_index picks one for each batch entry of query. */
  int64_t kv_batch;
  /** Forward cuts the keys of few queries into splits, which are computed side by side and
   * combined. 0: as many as their length asks for; else at most so many, 1: none. Backward computes
   * tiles of keys side by side, which add to grad_query in any order: 1 has them in one order, as
   * deterministic has, and larger numbers bound nothing. */
  uint32_t num_splits;
  uint32_t reserved; /**< 0 */
} perseid_attention_desc;

/** Dropout draws from Philox4x32-10 by (seed, offset, batch, head, query row, key column): see
 * docs/reference/attention.md. A call of forward uses up one offset: count on by 1 from call to
 * call. Backward must be given the seed and offset of its forward. `rng`, where not NULL, points to
 * {seed, offset} in memory of the context's device, read when the work runs, and `seed` and
 * `offset` are ignored; the library never writes it. A captured graph keeps the numbers of `seed`
 * and `offset`, so each replay draws the same mask; with `rng` it reads them at each replay: where
 * n calls of forward in the graph share `rng`, give each its own copy and add n to every offset
 * between replays. offset < 2^32. */
typedef struct perseid_attention_forward_args {
  uint32_t struct_size;    /**< sizeof(perseid_attention_forward_args) */
  uint32_t reserved;       /**< 0 */
  const DLTensor* query;   /**< [batch, q_len, heads, head_dim] in the descriptor's layout */
  const DLTensor* key;     /**< [batch or kv_batch, kv_len, kv_heads, head_dim] */
  const DLTensor* value;   /**< [batch or kv_batch, kv_len, kv_heads, value_dim] */
  const DLTensor* bias;    /**< bias_shape (stride 0 also broadcasts) */
  const DLTensor* visible; /**< bool or uint8, broadcasting against [batch, heads, q_len, kv_len] */
  /** ragged: int32 or int64 [batch + 1], rising from 0, ending <= total_q, no step above q_len */
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_kv; /**< ragged: the same for keys, but with kv_starts */
  const DLTensor* kv_lens;       /**< int32 or int64 [batch], each 0..kv_len */
  const DLTensor* out;           /**< [batch, q_len, heads, value_dim] */
  const DLTensor* lse; /**< NULL, or float32 (float64 for F64) [batch, heads, q_len]; ragged
                          [heads, total_q]. Natural logarithm */
  uint64_t seed;       /**< of dropout */
  uint64_t offset;     /**< of dropout, below 2^32 */
  const uint64_t* rng; /**< NULL, or {seed, offset} in memory of the device */
  /** Given exactly where the descriptor has async_kv. */
  const perseid_arrival* arrival_kv;
  const DLTensor* q_lens;    /**< int32 or int64 [batch], each 0..q_len */
  const DLTensor* kv_starts; /**< int32 or int64 [batch]: the first row of each sequence's keys in
                                the packed key and value; with its kv_lens at most total_kv */
  const DLTensor* kv_index;  /**< int32 or int64 [batch], each 0..kv_batch - 1 */
} perseid_attention_forward_args;

/** The tensors of perseid_attention_backward. */
typedef struct perseid_attention_backward_args {
  uint32_t struct_size;          /**< sizeof(perseid_attention_backward_args) */
  uint32_t reserved;             /**< 0 */
  const DLTensor* query;         /**< as in forward */
  const DLTensor* key;           /**< as in forward */
  const DLTensor* value;         /**< as in forward */
  const DLTensor* bias;          /**< as in forward */
  const DLTensor* visible;       /**< as in forward */
  const DLTensor* cu_seqlens_q;  /**< as in forward */
  const DLTensor* cu_seqlens_kv; /**< as in forward */
  const DLTensor* kv_lens;       /**< as in forward */
  const DLTensor* out;           /**< what forward wrote */
  const DLTensor* lse;           /**< what forward wrote */
  const DLTensor* grad_out;      /**< as out */
  const DLTensor* grad_lse;      /**< NULL, or as lse */
  const DLTensor* grad_query;    /**< NULL: not wanted. Must be within the descriptor's gradients */
  const DLTensor* grad_key;      /**< NULL: not wanted */
  const DLTensor* grad_value;    /**< NULL: not wanted */
  const DLTensor* grad_bias; /**< bias_shape, bias_dtype: summed over the broadcast dimensions */
  uint64_t seed;             /**< as in forward */
  uint64_t offset;           /**< as in forward */
  const uint64_t* rng;       /**< as in forward */
  const DLTensor* q_lens;    /**< as in forward */
} perseid_attention_backward_args;

/** Makes a plan. Errors: UNSUPPORTED (no implementation takes the problem; the sentence has the
 * reason of each), OUT_OF_MEMORY, DEVICE_ERROR. *plan is NULL after a failure.
 * \snippet operations.c attention_plan */
PERSEID_API perseid_status perseid_attention_plan_create(perseid_context_t context,
                                                         const perseid_attention_desc* desc,
                                                         perseid_plan_t* plan);
/** Writes out, and lse where given. Rows of packed tensors past the last cumulative length are not
 * written, and no result depends on them. Strides are any (0 repeats an input). On a GPU those of
 * query, key, value, out and their gradients are best with contiguous rows of head_dim or
 * value_dim, and with addresses and other strides that are multiples of 16 bytes and not negative:
 * others are for slower kernels, which the first such call loads or compiles, and is UNSUPPORTED on
 * a stream that is being captured. Lengths in a GPU's memory are cut to the tensors' room. Errors:
 * WORKSPACE_TOO_SMALL, UNSUPPORTED, DEVICE_ERROR.
 * \snippet operations.c attention_forward */
PERSEID_API perseid_status perseid_attention_forward(perseid_plan_t plan,
                                                     const perseid_attention_forward_args* args,
                                                     void* workspace, size_t workspace_bytes,
                                                     void* stream);
/** Writes the gradients that are given, or adds them where the descriptor says accumulate, from
 * what forward wrote. Errors: as forward.
 * \snippet operations.c attention_backward */
PERSEID_API perseid_status perseid_attention_backward(perseid_plan_t plan,
                                                      const perseid_attention_backward_args* args,
                                                      void* workspace, size_t workspace_bytes,
                                                      void* stream);

/** Writes the mask that attention with this dropout, seed and offset uses: 1 where kept, 0 where
 * dropped. mask: bool or uint8 [batch, heads, q_len, kv_len], any strides. Kept values are scaled
 * by 256 / t, where t = max(1, round(256 * (1 - dropout))). Every device writes the same. On a
 * GPU the work is queued on the stream, and the first call loads the kernel. Random numbers:
 * Philox4x32-10, Salmon et al., SC 2011. Errors: DEVICE_ERROR.
 * \snippet operations.c dropout_mask */
PERSEID_API perseid_status perseid_fill_dropout_mask(perseid_context_t context, double dropout,
                                                     uint64_t seed, uint64_t offset,
                                                     const DLTensor* mask, void* stream);

/* ---- Matmul ---- */

/** What the scales of 8-bit operands belong to. Scales are float32, in the memory of the device. */
typedef enum perseid_scaling {
  PERSEID_SCALE_NONE = 0,   /**< no scales */
  PERSEID_SCALE_TENSOR = 1, /**< one for a and one for b */
  PERSEID_SCALE_ROW = 2,    /**< one for each row of a, one for each column of b */
  /** one for 1 x 128 elements of a (along k), one for 128 x 128 elements of b; the last of a
   * dimension may be of fewer */
  PERSEID_SCALE_BLOCK = 3
} perseid_scaling;
/** How sums over k of 8-bit products are accumulated. A CPU takes both as float32. */
typedef enum perseid_accumulation {
  PERSEID_ACCUMULATE_PROMOTED = 0, /**< the tensor cores' sums are added up in float32 */
  PERSEID_ACCUMULATE_FAST = 1      /**< in the accumulator of the tensor cores, of about 14 bits */
} perseid_accumulation;
/** What is applied to each element of a result. */
typedef enum perseid_activation {
  PERSEID_ACTIVATION_NONE = 0, /**< y */
  /** 0.5 y (1 + tanh(sqrt(2 / pi) (y + 0.044715 y^3))) */
  PERSEID_ACTIVATION_GELU_TANH = 1,
  PERSEID_ACTIVATION_GELU_ERF = 2, /**< 0.5 y (1 + erf(y / sqrt(2))) */
  PERSEID_ACTIVATION_SILU = 3      /**< y / (1 + exp(-y)) */
} perseid_activation;

/** How exact products of float32 are at least; other types have no choice. */
typedef enum perseid_precision {
  PERSEID_PRECISION_DEFAULT = 0, /**< as in float32 */
  /** factors may be rounded to 11 bits, and to 2^-40 of the largest of their row of a or column of
   * b. An implementation that is no faster so computes in float32. */
  PERSEID_PRECISION_TF32 = 1
} perseid_precision;

/** c = alpha * a b + beta * c0 + bias. Row- or column-major, or any other strides, are the tensors'
 * own. Sums are accumulated as perseid_dtype says and rounded to out_dtype once. In full, with the
 * scales of 8-bit types and what follows a product in a network:
 *
 * - y[i, j] = alpha * sum over k of (scale_a a[i, k]) (scale_b b[k, j]) + beta * c0[i, j] + bias[j]
 * - z = activation(y)
 * - amax = max |z|, not rounded; NaN if any z is NaN; 0 if there is none
 * - c = z * scale_result, rounded to out_dtype
 *
 * What the descriptor does not ask for is left out. Algorithm: Goto and van de Geijn, "Anatomy of
 * high-performance matrix multiplication", TOMS 2008. */
typedef struct perseid_matmul_desc {
  uint32_t struct_size; /**< sizeof(perseid_matmul_desc) */
  uint32_t dtype;       /**< of a and b */
  /** Of c and c0. 0: dtype, or F32 where that is of 8 bits. F16 and BF16 are multiplied into
   * themselves or F32; F8E4M3 and F8E5M2 into F16, BF16, F32 and either of the two. */
  uint32_t out_dtype;
  uint32_t bias; /**< 1: a bias is given at execution */
  int64_t batch; /**< 0: 1, but see zero_batch */
  int64_t m;     /**< rows of a and c */
  int64_t n;     /**< columns of b and c */
  int64_t k;     /**< columns of a, rows of b */
  double alpha;  /**< 0: 1, but see zero_alpha */
  double beta;   /**< 0: c is not read, even where it holds NaN. 0 where c is of 8 bits */
  /** NULL: all of a is present; else its chunks, of m or k. */
  const perseid_async_operand* async_a;
  /** NULL: the first that takes the problem; else names, divided by commas: the first of these. */
  const char* implementation;
  uint32_t zero_alpha; /**< 1: c = beta * c0 + bias (alpha is 0) */
  uint32_t zero_batch; /**< 1: batch is 0, and so is that of the tensors */
  /** NULL: all of b is present; else its chunks, of n or k. */
  const perseid_async_operand* async_b;
  const perseid_async_operand* sink_c; /**< NULL: no signals; else the chunks of c, of m or n */
  uint32_t b_dtype;      /**< of b; 0: dtype. The 8-bit types may be mixed, no others */
  uint32_t scaling;      /**< perseid_scaling of a and b, which are of 8 bits */
  uint32_t accumulation; /**< perseid_accumulation; FAST with 8-bit a and b alone */
  uint32_t scale_result; /**< 1: a scale of c, which is of 8 bits, is given at execution */
  uint32_t activation;   /**< perseid_activation */
  uint32_t amax;         /**< 1: amax is written at execution */
  uint32_t precision;    /**< perseid_precision */
  uint32_t reserved;     /**< 0 */
} perseid_matmul_desc;

/** The tensors of perseid_matmul_execute. */
typedef struct perseid_matmul_args {
  uint32_t struct_size; /**< sizeof(perseid_matmul_args) */
  uint32_t reserved;    /**< 0 */
  const DLTensor* a;    /**< [batch, m, k], or [m, k] for every batch entry */
  const DLTensor* b;    /**< [batch, k, n], or [k, n] for every batch entry */
  const DLTensor* c0;   /**< NULL: c. As c, and may be c exactly; read only if beta is not 0 */
  /** [n], dtype or out_dtype; where a is of 8 bits, F32 or an out_dtype of more. */
  const DLTensor* bias;
  const DLTensor* c; /**< [batch, m, n] ([m, n] if batch is 1), out_dtype */
  /** Given exactly where the descriptor has async_a. Where alpha is 0, nobody waits for it. */
  const perseid_arrival* arrival_a;
  const perseid_arrival* arrival_b; /**< the same for async_b */
  /** Given exactly where the descriptor has sink_c. */
  const perseid_chunk_sink* departure_c;
  /** Given exactly where the descriptor has scaling, float32: SCALE_TENSOR [1]; SCALE_ROW
   * [batch, m]; SCALE_BLOCK [batch, m, ceil(k / 128)]. Without batch: for every batch entry.
   * Present before the call, though a arrives in chunks. */
  const DLTensor* scale_a;
  /** The same for b: [1]; [batch, n]; [batch, ceil(k / 128), ceil(n / 128)]. */
  const DLTensor* scale_b;
  const DLTensor* scale_result; /**< given exactly where the descriptor has it: float32 [1] */
  /** Given exactly where the descriptor has it: [1], float32 (float64 for F64). Written. */
  const DLTensor* amax;
} perseid_matmul_args;

/** Makes a plan. Errors: UNSUPPORTED (no implementation takes the problem; the sentence has the
 * reason of each), OUT_OF_MEMORY, DEVICE_ERROR. *plan is NULL after a failure.
 * \snippet operations.c matmul_plan */
PERSEID_API perseid_status perseid_matmul_plan_create(perseid_context_t context,
                                                      const perseid_matmul_desc* desc,
                                                      perseid_plan_t* plan);
/** Makes a plan as above, after measuring the configurations of its implementation with these
 * tensors: c and amax are written many times, and the call returns when all is done. The fastest is
 * kept in the tuning cache of the device, a file of facts in the cache folder that new contexts
 * read; plans of the same problem use it from now on, unless PERSEID_TUNE is 0. explain has the
 * times. Where an implementation has one configuration, as on the CPU, nothing is measured. Errors:
 * as above, also UNSUPPORTED (chunks, or PERSEID_TUNE is 0) and IO_ERROR (the cache cannot be
 * written). \snippet operations.c matmul_tune */
PERSEID_API perseid_status perseid_matmul_tune(perseid_context_t context,
                                               const perseid_matmul_desc* desc,
                                               const perseid_matmul_args* args, void* stream,
                                               perseid_plan_t* plan);
/** Writes c. Errors: WORKSPACE_TOO_SMALL, DEVICE_ERROR, TIMEOUT or PEER_LOST (a chunk did not
 * arrive).
 * \snippet operations.c matmul */
PERSEID_API perseid_status perseid_matmul_execute(perseid_plan_t plan,
                                                  const perseid_matmul_args* args, void* workspace,
                                                  size_t workspace_bytes, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_PERSEID_H_ */
