// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/*
 * Perseid: fused transformer kernels. The C ABI; perseid.hpp wraps it for C++20.
 *
 * The way of every operation: describe -> plan -> query workspace -> execute on a stream.
 *
 *   - A plan is made from a descriptor: the problem is validated, and of the ordered list of
 *     implementations the first that takes it is kept. A plan is immutable; any number of threads
 *     may execute it at once, each with its own workspace.
 *   - Tensors cross as `const DLTensor*`. Shapes and dtypes must be those of the descriptor;
 *     strides and byte offsets are free (NULL strides: row-major), but where an operation says what
 *     its GPU kernels need. Data must be aligned to its element. Nothing is owned, nothing is
 *     copied behind the caller's back. A tensor without elements may have NULL data. What is
 *     written shares memory with nothing else, but where this header says so.
 *   - Executing allocates nothing, prints nothing, and waits for nothing but its own work. On the
 *     CPU the work is done when the call returns, and `stream` is ignored; on a GPU `stream` is a
 *     CUstream (NULL: the default stream) on which the work is queued.
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

#include <stddef.h>
#include <stdint.h>

#include "perseid/dlpack.h"

#if defined(PERSEID_STATIC)
#define PERSEID_API
#elif defined(_WIN32)
#define PERSEID_API __declspec(dllimport)
#else
#define PERSEID_API __attribute__((visibility("default")))
#endif

#define PERSEID_VERSION_MAJOR 0
#define PERSEID_VERSION_MINOR 1
#define PERSEID_VERSION_PATCH 0
/* Raised whenever a struct or a function of this header changes incompatibly. */
#define PERSEID_ABI_VERSION 1

/* The most dimensions a tensor of any operation may have. */
#define PERSEID_MAX_DIMS 8

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---- */

typedef enum perseid_status {
  PERSEID_OK = 0,
  PERSEID_INVALID_ARGUMENT = 1,    /* a wrong shape, dtype, stride, pointer or value */
  PERSEID_UNSUPPORTED = 2,         /* a valid problem, or memory layout, that nothing here takes */
  PERSEID_OUT_OF_MEMORY = 3,       /* host or device memory is exhausted */
  PERSEID_WORKSPACE_TOO_SMALL = 4, /* less than perseid_plan_workspace_size says */
  PERSEID_DEVICE_ERROR = 5,        /* a driver, compiler or device failed */
  PERSEID_TIMEOUT = 6,             /* a wait reached its deadline */
  PERSEID_PEER_LOST = 7,           /* another rank is gone or aborted */
  PERSEID_IO_ERROR = 8,            /* a file is missing, unreadable, unwritable or malformed */
  PERSEID_INTERNAL = 9             /* a defect of the library; please report the sentence */
} perseid_status;

/* The status's name, such as "invalid argument". Never NULL. */
PERSEID_API const char* perseid_status_string(perseid_status status);
/* The sentence of this thread's last failure ("" if none). Valid until the thread's next failing
 * call. */
PERSEID_API const char* perseid_last_error(void);

/* "MAJOR.MINOR.PATCH" of the library that runs, and its ABI version: compare with
 * PERSEID_ABI_VERSION. */
PERSEID_API const char* perseid_version(void);
PERSEID_API int32_t perseid_abi_version(void);

typedef enum perseid_log_level {
  PERSEID_LOG_DEBUG = 0,  /* every execution, with its arguments, before it starts */
  PERSEID_LOG_INFO = 1,   /* plans made, implementations chosen */
  PERSEID_LOG_WARNING = 2 /* something unusual that the library worked around */
} perseid_log_level;
typedef void (*perseid_log_fn)(void* user, perseid_log_level level, const char* message);
/* Sends messages of at least `level` to `fn` (NULL: silence, the default). The callback may run on
 * any thread that calls the library; it must not call back into perseid. */
PERSEID_API void perseid_set_log_callback(perseid_log_fn fn, void* user, perseid_log_level level);

/* ---- Types ---- */

/* Element types. Accumulation is float32 for F16, BF16 and F32, and float64 for F64. */
typedef enum perseid_dtype {
  PERSEID_F16 = 1,
  PERSEID_BF16 = 2,
  PERSEID_F32 = 3,
  PERSEID_F64 = 4
} perseid_dtype;

typedef enum perseid_direction { PERSEID_FORWARD = 0, PERSEID_BACKWARD = 1 } perseid_direction;

/* A view of memory of the CPU as a tensor, in one line of C:
 *
 *   DLTensor a = perseid_tensor(data, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
 *   DLTensor t = perseid_tensor(data, kDLFloat, 32, PERSEID_DIMS(3, 2), PERSEID_STRIDES(1, 3));
 *
 * `code` is DLPack's: kDLFloat, kDLBfloat (16 bits), kDLBool (8 bits: masks) or kDLInt (lengths).
 * Strides count elements; NULL: row-major. Shape and strides are kept by address: those of the
 * macros live until the end of the block that they are written in. For memory of a GPU set `device`
 * of the result to what perseid_context_device says. */
static inline DLTensor perseid_tensor(const void* data, DLDataTypeCode code, int bits, int ndim,
                                      const int64_t* shape, const int64_t* strides) {
  DLTensor tensor;
  tensor.data = (void*)data;
  tensor.device.device_type = kDLCPU;
  tensor.device.device_id = 0;
  tensor.ndim = ndim;
  tensor.dtype.code = (uint8_t)code;
  tensor.dtype.bits = (uint8_t)bits;
  tensor.dtype.lanes = 1;
  tensor.shape = (int64_t*)shape;
  tensor.strides = (int64_t*)strides;
  tensor.byte_offset = 0;
  return tensor;
}
#ifndef __cplusplus /* C++ has perseid::Tensor */
#define PERSEID_STRIDES(...) ((int64_t[]){__VA_ARGS__})
#define PERSEID_DIMS(...) \
  (int)(sizeof PERSEID_STRIDES(__VA_ARGS__) / sizeof(int64_t)), PERSEID_STRIDES(__VA_ARGS__)
#endif

typedef struct perseid_context* perseid_context_t;
typedef struct perseid_plan* perseid_plan_t;
typedef struct perseid_file* perseid_file_t;

/* ---- Context: a device and, on the CPU, the threads that work ---- */

/* One piece of work. `worker` is in [0, workers) and belongs to no other task running at the same
 * time. */
typedef void (*perseid_task_fn)(void* state, int64_t task, int32_t worker);

/* A caller's own threads. run() calls fn(state, t, worker) once for every t in [0, tasks), in any
 * order, on any threads, and returns when all have returned. It may be entered by several threads
 * at once. Results never depend on how it schedules. */
typedef struct perseid_executor {
  /* NULL: the library's own pool */
  void (*run)(void* user, int64_t tasks, perseid_task_fn fn, void* state);
  void* user;
  int32_t workers; /* the most tasks that run at the same time, at least 1 */
} perseid_executor;

typedef struct perseid_context_options {
  uint32_t struct_size;
  uint32_t device_type; /* kDLCPU (also 0) or kDLCUDA */
  int32_t device_index; /* 0 for the CPU */
  int32_t threads; /* of the own pool; 0: PERSEID_NUM_THREADS, else the CPUs this process may use */
  perseid_executor executor;
} perseid_context_options;

/* Opens a device. `options` may be NULL: the CPU with its default pool. Errors: INVALID_ARGUMENT,
 * UNSUPPORTED (no such backend in this build or on this machine), OUT_OF_MEMORY. */
PERSEID_API perseid_status perseid_context_create(const perseid_context_options* options,
                                                  perseid_context_t* context);
/* Plans made from the context keep what they need: destroying it first is allowed. NULL is ignored.
 */
PERSEID_API void perseid_context_destroy(perseid_context_t context);
/* Facts about the library, the device and the environment variables in force, as one JSON object
 * in UTF-8. The text lives as long as the context. */
PERSEID_API perseid_status perseid_context_facts(perseid_context_t context, const char** json);

typedef enum perseid_ceiling {
  PERSEID_CEILING_F32 = 0, /* float32 multiply-adds in registers, FLOP/s */
  /* bf16 dot products in registers (float32 ones where there are none), FLOP/s */
  PERSEID_CEILING_BF16 = 1,
  PERSEID_CEILING_F64 = 2,  /* float64 multiply-adds in registers, FLOP/s */
  PERSEID_CEILING_COPY = 3, /* copying `bytes` bytes: bytes read plus bytes written, per second */
  PERSEID_CEILING_READ = 4  /* reading `bytes` bytes, bytes per second */
} perseid_ceiling;
/* Measures (about 50 ms or more) what the context's device and workers reach at best. `bytes` sizes
 * the array of COPY and READ; it is ignored by the others. Errors: OUT_OF_MEMORY, UNSUPPORTED
 * (of a GPU, all but COPY). */
PERSEID_API perseid_status perseid_context_ceiling(perseid_context_t context,
                                                   perseid_ceiling ceiling, uint64_t bytes,
                                                   double* per_second);

/* ---- Memory and time of a device ----
 *
 * For programs that have no other allocator at hand: any memory of the device will do, and any
 * stream. The CPU has them too, so that a program may be written once. */

/* Where tensors of the context's plans must be. */
PERSEID_API perseid_status perseid_context_device(perseid_context_t context, DLDevice* device);
/* `bytes` of the device's memory, aligned to 64 bytes or more, with any content; NULL for 0. */
PERSEID_API perseid_status perseid_memory_allocate(perseid_context_t context, size_t bytes,
                                                   void** data);
/* Waits for work that may use the memory. NULL is ignored. */
PERSEID_API void perseid_memory_free(perseid_context_t context, void* data);
/* Copies between the host's memory and the device's, or within either, behind the work of the
 * stream; done when it returns. */
PERSEID_API perseid_status perseid_memory_copy(perseid_context_t context, void* to,
                                               const void* from, size_t bytes, void* stream);
/* Waits for the work of the stream, and says whether it failed. */
PERSEID_API perseid_status perseid_stream_synchronize(perseid_context_t context, void* stream);

/* The time between two points of a stream, by the device's clock. */
typedef struct perseid_timer* perseid_timer_t;
PERSEID_API perseid_status perseid_timer_create(perseid_context_t context, perseid_timer_t* timer);
/* NULL is ignored. The context may be gone. */
PERSEID_API void perseid_timer_destroy(perseid_timer_t timer);
PERSEID_API perseid_status perseid_timer_start(perseid_timer_t timer, void* stream);
PERSEID_API perseid_status perseid_timer_stop(perseid_timer_t timer, void* stream);
/* Waits for the second point. INVALID_ARGUMENT where one of the two was not set. */
PERSEID_API perseid_status perseid_timer_seconds(perseid_timer_t timer, double* seconds);

/* ---- Plans ---- */

/* Frees a plan. No thread may be executing it. NULL is ignored. */
PERSEID_API void perseid_plan_destroy(perseid_plan_t plan);
/* The exact bytes of workspace that executing `direction` needs; pass a buffer of at least that
 * size (any alignment; NULL if 0). Its content need not be initialised. 0 for a direction that the
 * plan does not have. */
PERSEID_API perseid_status perseid_plan_workspace_size(perseid_plan_t plan,
                                                       perseid_direction direction, size_t* bytes);

/* What a plan will do. */
typedef struct perseid_plan_info {
  uint32_t struct_size;
  uint32_t reserved;
  const char* implementation; /* such as "cpu:tiled"; lives as long as the plan */
  double forward_flops;       /* useful FLOPs: masked-out work is not counted */
  double forward_bytes;       /* each operand once */
  double backward_flops;      /* 0 where the plan has no backward */
  double backward_bytes;
} perseid_plan_info;
/* Fills `info`, whose struct_size the caller has set. */
PERSEID_API perseid_status perseid_plan_query(perseid_plan_t plan, perseid_plan_info* info);
/* Every implementation in order, chosen or refused and why, with FLOPs, bytes, workspace and bound:
 * as text for people or as JSON. Lives as long as the plan. */
PERSEID_API perseid_status perseid_plan_explain(perseid_plan_t plan, const char** text);
PERSEID_API perseid_status perseid_plan_explain_json(perseid_plan_t plan, const char** json);

/* ---- Softmax ---- */

typedef enum perseid_softmax_kind {
  PERSEID_SOFTMAX = 0,
  PERSEID_LOG_SOFTMAX = 1
} perseid_softmax_kind;
typedef enum perseid_empty_rows {
  PERSEID_EMPTY_ZERO = 0,
  PERSEID_EMPTY_NAN = 1
} perseid_empty_rows;

/* output = softmax(scale * input) or log_softmax(scale * input) over dimension `dim`.
 * With `visible`, elements where the mask is false take no part: softmax gives 0 there and
 * log-softmax -inf, and their gradient is 0. A row with nothing visible gives softmax 0 and
 * log-softmax -inf everywhere (or NaN on request), lse -inf and gradient 0. Without a mask, a row
 * of all -inf is NaN. Algorithm: online normaliser, Milakov and Gimelshein, arXiv:1805.02867. */
typedef struct perseid_softmax_desc {
  uint32_t struct_size;
  uint32_t kind;  /* perseid_softmax_kind */
  uint32_t dtype; /* of input and grad_input */
  /* Of output and grad_output; 0: dtype. F64 on either side computes in float64. */
  uint32_t out_dtype;
  int32_t ndim; /* 1..PERSEID_MAX_DIMS */
  int32_t dim;  /* the softmax dimension, -ndim..ndim-1 */
  int64_t shape[PERSEID_MAX_DIMS];
  double scale;               /* 0: 1. Finite in the type that is computed in */
  uint32_t visible;           /* 1: a mask is given at execution */
  uint32_t empty_rows;        /* perseid_empty_rows */
  const char* implementation; /* NULL: the first that takes the problem; else only this one */
} perseid_softmax_desc;

typedef struct perseid_softmax_forward_args {
  uint32_t struct_size;
  uint32_t reserved;
  const DLTensor* input; /* shape, dtype */
  /* shape, out_dtype. May be the input exactly (same data, strides and dtype). */
  const DLTensor* output;
  /* bool or uint8, each dimension the shape's or 1; true: the element counts. */
  const DLTensor* visible;
  /* NULL, or the shape with `dim` of size 1: float32 (float64 if computed so); natural logarithm of
   * the sum of exp(scale * input) over the visible elements. */
  const DLTensor* lse;
} perseid_softmax_forward_args;

typedef struct perseid_softmax_backward_args {
  uint32_t struct_size;
  uint32_t reserved;
  const DLTensor* grad_output; /* shape, out_dtype */
  const DLTensor* output;      /* shape, out_dtype: what forward wrote */
  const DLTensor* visible;     /* as in forward */
  const DLTensor* grad_input;  /* shape, dtype. May be grad_output exactly */
} perseid_softmax_backward_args;

/* Makes a plan. Errors: UNSUPPORTED (no implementation takes the problem; the sentence has the
 * reason of each), OUT_OF_MEMORY, DEVICE_ERROR. *plan is NULL after a failure. */
PERSEID_API perseid_status perseid_softmax_plan_create(perseid_context_t context,
                                                       const perseid_softmax_desc* desc,
                                                       perseid_plan_t* plan);
/* Writes output, and lse where given. Errors: WORKSPACE_TOO_SMALL, DEVICE_ERROR. */
PERSEID_API perseid_status perseid_softmax_forward(perseid_plan_t plan,
                                                   const perseid_softmax_forward_args* args,
                                                   void* workspace, size_t workspace_bytes,
                                                   void* stream);
/* Writes grad_input, from what forward wrote: scale * y * (dy - sum(dy y)), for log-softmax
 * scale * (dy - exp(y) sum(dy)). Errors: as forward. */
PERSEID_API perseid_status perseid_softmax_backward(perseid_plan_t plan,
                                                    const perseid_softmax_backward_args* args,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream);

/* ---- Attention ---- */

typedef enum perseid_layout {
  PERSEID_BSHD = 0, /* [batch, sequence, heads, dim]; ragged: [total, heads, dim] */
  PERSEID_BHSD = 1  /* [batch, heads, sequence, dim]; ragged: [heads, total, dim] */
} perseid_layout;
/* Top-left: query i sees keys j <= i. Bottom-right: j <= i + (kv_len - q_len), with each sequence's
 * own lengths. */
typedef enum perseid_causal {
  PERSEID_CAUSAL_NONE = 0,
  PERSEID_CAUSAL_TOP_LEFT = 1,
  PERSEID_CAUSAL_BOTTOM_RIGHT = 2
} perseid_causal;
typedef enum perseid_gradient {
  PERSEID_GRAD_QUERY = 1,
  PERSEID_GRAD_KEY = 2,
  PERSEID_GRAD_VALUE = 4,
  PERSEID_GRAD_BIAS = 8
} perseid_gradient;

/* out = dropout(softmax(scale * query key^T + bias, masked)) value; the score matrix is never
 * stored. A row with no visible key gives out 0, lse -inf and gradients 0; NaN or inf at masked
 * keys never reaches a result. Query head h reads key head h / (heads / kv_heads). Algorithms: Rabe
 * and Staats, arXiv:2112.05682; Dao et al., arXiv:2205.14135 and 2307.08691. */
typedef struct perseid_attention_desc {
  uint32_t struct_size;
  uint32_t dtype;  /* of query, key, value, out and their gradients */
  uint32_t layout; /* perseid_layout */
  uint32_t causal; /* perseid_causal */
  int64_t batch;   /* 0: 1, but see zero_batch */
  int64_t heads;
  int64_t kv_heads; /* 0: heads; else divides heads */
  int64_t q_len;    /* ragged: the longest query sequence */
  int64_t kv_len;   /* ragged: the longest key sequence */
  int64_t head_dim;
  int64_t value_dim; /* 0: head_dim */
  double scale;      /* 0: 1 / sqrt(head_dim) */
  double dropout;    /* probability of dropping, [0, 1). Rounded to 1/256; see
                        perseid_fill_dropout_mask */
  /* 1: query i sees keys p - left .. p + right, where p is i, shifted by kv_len - q_len under
   * bottom-right causal alignment. */
  uint32_t window;
  uint32_t visible;     /* 1: a boolean mask is given at execution */
  int64_t window_left;  /* -1: unlimited */
  int64_t window_right; /* -1: unlimited */
  uint32_t bias;        /* 1: an additive bias is given at execution */
  uint32_t bias_dtype;  /* dtype or F32 (F64 with F64); 0: dtype */
  /* Of bias against [batch, heads, q_len, kv_len]; each entry that size or 1. */
  int64_t bias_shape[4];
  uint32_t ragged;    /* 1: cumulative lengths; batch entries are packed along one axis */
  uint32_t kv_lens;   /* 1: per-sequence key lengths are given; keys beyond them are masked */
  int64_t total_q;    /* ragged: rows of the packed query */
  int64_t total_kv;   /* ragged: rows of the packed key and value */
  uint32_t gradients; /* perseid_gradient bits that backward will be asked for; 0: forward only */
  uint32_t deterministic;     /* 1: bitwise repeatable backward (the CPU always is) */
  const char* implementation; /* NULL: the first that takes the problem; else only this one */
  uint32_t zero_batch; /* 1: there are no batch entries, and the tensors' batch is 0 (batch is 0) */
  /* perseid_gradient bits within `gradients`: backward adds these to what their tensors hold, in
   * the accumulation type, and rounds once. */
  uint32_t accumulate;
} perseid_attention_desc;

/* Dropout draws from Philox4x32-10 by (seed, offset, batch, head, query row, key column): see
 * docs/reference/attention.md. Backward must be given the seed and offset of its forward. `rng`, where not
 * NULL, points to {seed, offset} in memory of the context's device, read when the work runs. offset
 * < 2^32. */
typedef struct perseid_attention_forward_args {
  uint32_t struct_size;
  uint32_t reserved;
  const DLTensor* query;   /* [batch, q_len, heads, head_dim] in the descriptor's layout */
  const DLTensor* key;     /* [batch, kv_len, kv_heads, head_dim] */
  const DLTensor* value;   /* [batch, kv_len, kv_heads, value_dim] */
  const DLTensor* bias;    /* bias_shape (stride 0 also broadcasts) */
  const DLTensor* visible; /* bool or uint8, broadcasting against [batch, heads, q_len, kv_len] */
  /* ragged: int32 or int64 [batch + 1], rising from 0, ending <= total_q, no step above q_len */
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_kv; /* ragged: the same for keys */
  const DLTensor* kv_lens;       /* int32 or int64 [batch], each 0..kv_len */
  const DLTensor* out;           /* [batch, q_len, heads, value_dim] */
  const DLTensor* lse;           /* NULL, or float32 (float64 for F64) [batch, heads, q_len]; ragged
                                    [heads, total_q]. Natural logarithm */
  uint64_t seed;
  uint64_t offset;
  const uint64_t* rng;
} perseid_attention_forward_args;

typedef struct perseid_attention_backward_args {
  uint32_t struct_size;
  uint32_t reserved;
  const DLTensor* query;
  const DLTensor* key;
  const DLTensor* value;
  const DLTensor* bias;
  const DLTensor* visible;
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_kv;
  const DLTensor* kv_lens;
  const DLTensor* out;        /* what forward wrote */
  const DLTensor* lse;        /* what forward wrote */
  const DLTensor* grad_out;   /* as out */
  const DLTensor* grad_lse;   /* NULL, or as lse */
  const DLTensor* grad_query; /* NULL: not wanted. Must be within the descriptor's gradients */
  const DLTensor* grad_key;
  const DLTensor* grad_value;
  const DLTensor* grad_bias; /* bias_shape, bias_dtype: summed over the broadcast dimensions */
  uint64_t seed;
  uint64_t offset;
  const uint64_t* rng;
} perseid_attention_backward_args;

/* Makes a plan. Errors: UNSUPPORTED (no implementation takes the problem; the sentence has the
 * reason of each), OUT_OF_MEMORY, DEVICE_ERROR. *plan is NULL after a failure. */
PERSEID_API perseid_status perseid_attention_plan_create(perseid_context_t context,
                                                         const perseid_attention_desc* desc,
                                                         perseid_plan_t* plan);
/* Writes out, and lse where given. Rows of packed tensors past the last cumulative length are
 * neither read nor written. On a GPU, query, key, value, out and their gradients have contiguous
 * rows of head_dim or value_dim; their addresses and other strides are multiples of 16 bytes, the
 * strides positive. Lengths in a GPU's memory are cut to what the tensors have room for. Errors:
 * WORKSPACE_TOO_SMALL, UNSUPPORTED (tensors that lie otherwise), DEVICE_ERROR. */
PERSEID_API perseid_status perseid_attention_forward(perseid_plan_t plan,
                                                     const perseid_attention_forward_args* args,
                                                     void* workspace, size_t workspace_bytes,
                                                     void* stream);
/* Writes the gradients that are given, or adds them where the descriptor says accumulate, from what
 * forward wrote. Errors: as forward. */
PERSEID_API perseid_status perseid_attention_backward(perseid_plan_t plan,
                                                      const perseid_attention_backward_args* args,
                                                      void* workspace, size_t workspace_bytes,
                                                      void* stream);

/* Writes the mask that attention with this dropout, seed and offset uses: 1 where kept, 0 where
 * dropped. mask: bool or uint8 [batch, heads, q_len, kv_len], any strides. Kept values are scaled
 * by 256 / t, where t = max(1, round(256 * (1 - dropout))). Random numbers: Philox4x32-10, Salmon
 * et al., SC 2011. Errors: UNSUPPORTED (the context is of a GPU). */
PERSEID_API perseid_status perseid_fill_dropout_mask(perseid_context_t context, double dropout,
                                                     uint64_t seed, uint64_t offset,
                                                     const DLTensor* mask, void* stream);

/* ---- Matmul ---- */

/* An operand whose chunks arrive while the product runs. Reserved: no implementation takes one yet.
 */
struct perseid_async_operand;

/* c = alpha * a b + beta * c0 + bias. Row- or column-major, or any other strides, are the tensors'
 * own. Sums are accumulated as perseid_dtype says and rounded to out_dtype once. Algorithm: Goto
 * and van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 2008. */
typedef struct perseid_matmul_desc {
  uint32_t struct_size;
  uint32_t dtype;     /* of a and b */
  uint32_t out_dtype; /* of c and c0; 0: dtype. dtype, or F32 where dtype is F16 or BF16 */
  uint32_t bias;      /* 1: a bias is given at execution */
  int64_t batch;      /* 0: 1, but see zero_batch */
  int64_t m;
  int64_t n;
  int64_t k;
  double alpha;                                /* 0: 1, but see zero_alpha */
  double beta;                                 /* 0: c is not read, even where it holds NaN */
  const struct perseid_async_operand* async_a; /* must be NULL */
  const char* implementation; /* NULL: the first that takes the problem; else only this one */
  uint32_t zero_alpha;        /* 1: c = beta * c0 + bias (alpha is 0) */
  uint32_t zero_batch; /* 1: there are no batch entries, and the tensors' batch is 0 (batch is 0) */
} perseid_matmul_desc;

typedef struct perseid_matmul_args {
  uint32_t struct_size;
  uint32_t reserved;
  const DLTensor* a;    /* [batch, m, k], or [m, k] for every batch entry */
  const DLTensor* b;    /* [batch, k, n], or [k, n] for every batch entry */
  const DLTensor* c0;   /* NULL: c. As c, and may be c exactly; read only if beta is not 0 */
  const DLTensor* bias; /* [n], dtype or out_dtype */
  const DLTensor* c;    /* [batch, m, n] ([m, n] if batch is 1), out_dtype */
} perseid_matmul_args;

/* Makes a plan. Errors: UNSUPPORTED (no implementation takes the problem; the sentence has the
 * reason of each), OUT_OF_MEMORY, DEVICE_ERROR. *plan is NULL after a failure. */
PERSEID_API perseid_status perseid_matmul_plan_create(perseid_context_t context,
                                                      const perseid_matmul_desc* desc,
                                                      perseid_plan_t* plan);
/* Writes c. Errors: WORKSPACE_TOO_SMALL, DEVICE_ERROR. */
PERSEID_API perseid_status perseid_matmul_execute(perseid_plan_t plan,
                                                  const perseid_matmul_args* args, void* workspace,
                                                  size_t workspace_bytes, void* stream);

/* ---- Tensor files: .npy (versions 1 to 3) and .safetensors ---- */

/* Opens a file for reading. Errors: IO_ERROR (with the offending number), OUT_OF_MEMORY. A file of
 * up to 4 MiB is read into memory at once. A larger one is mapped: nobody may cut it short while it
 * is open, because reading a lost part raises SIGBUS. Replace such a file by renaming a new one
 * over it, as perseid_file_write does. */
PERSEID_API perseid_status perseid_file_open(const char* path, perseid_file_t* file);
/* Releases the file; tensors got from it are no longer valid. NULL is ignored. */
PERSEID_API void perseid_file_close(perseid_file_t file);
/* How many tensors the file holds (1 for .npy). */
PERSEID_API perseid_status perseid_file_count(perseid_file_t file, size_t* count);
/* The index-th tensor, in the order of the file, and its name ("" for .npy). Both live as long as
 * the file; the data is read-only, and in a .safetensors file not always aligned to its elements.
 * `name` or `tensor` may be NULL. Errors: IO_ERROR (the tensor is of a type that DLTensor or this
 * library does not have; its name can be read). */
PERSEID_API perseid_status perseid_file_tensor(perseid_file_t file, size_t index, const char** name,
                                               const DLTensor** tensor);
/* The tensor of this name; IO_ERROR lists the names there are. */
PERSEID_API perseid_status perseid_file_find(perseid_file_t file, const char* name,
                                             const DLTensor** tensor);
/* A string of safetensors' __metadata__, or NULL where there is none of that key. */
PERSEID_API perseid_status perseid_file_metadata(perseid_file_t file, const char* key,
                                                 const char** value);

typedef struct perseid_named_tensor {
  const char* name; /* ignored for .npy */
  const DLTensor* tensor;
} perseid_named_tensor;
typedef struct perseid_key_value {
  const char* key;
  const char* value;
} perseid_key_value;
/* Writes a file of the format that the path's extension names, under a temporary name that is then
 * renamed, so that a reader or a crash never sees half of it. .npy takes exactly one tensor and no
 * metadata. Errors: IO_ERROR, OUT_OF_MEMORY. */
PERSEID_API perseid_status perseid_file_write(const char* path, const perseid_named_tensor* tensors,
                                              size_t count, const perseid_key_value* metadata,
                                              size_t metadata_count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_PERSEID_H_ */
