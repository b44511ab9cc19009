// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * Groups of ranks, and operations that all ranks of a group compute together. Included by
 * perseid.h.
 *
 *   - A rank is a process, on this host or another, or a thread of one. Contexts are of the CPU,
 *     or of GPUs; a rank uses one GPU for all operations of a group.
 *   - All ranks call the same functions of a group in the same order, each rank one at a time.
 *     Making a plan is such a call too. Executing one, once per rank, is one operation.
 *   - Shapes that do not fit are refused on all ranks with the same sentence, when the plan is
 *     made, or by an operation without a plan. An argument of an execution is refused on its rank
 *     alone, before the execution begins: the others wait for a corrected call.
 *     Only addresses and strides that a GPU's kernel does not take (UNSUPPORTED) are found when it
 *     has begun: the others then end with TIMEOUT.
 *   - Every call has a deadline (0: 30 s) and none waits beyond it. Where a rank dies, leaves, or
 *     does not take part in time, the calls of all ranks end with PEER_LOST or TIMEOUT and a
 *     sentence that names it; what they were to write is undefined. The group has then failed:
 *     perseid_group_shrink makes one of the ranks that are left, and plans are made again.
 *   - Sums over ranks are in the order of ranks, in float32 (float64 for F64), rounded once. They
 *     have the same bits in every run.
 *   - A plan in canonical order (`canonical` = 1) gives the same bits for 1, 2, 4 and 8 ranks, on
 *     CPUs with the same instruction set or on GPUs of the same compute capability. A depth whose
 *     sum is spread over ranks, a multiple of 8 and equally large on all of them, is eight equal
 *     leaves, each summed on its own; these sums are added in pairs of neighbours. Where every
 *     rank sums the whole depth, it does so from the first element to the last. A row of attention
 *     visits blocks of keys in one order.
 *   - On a GPU plans are executed in the order of the stream: execute enqueues and returns, also
 *     where another rank is missing. The deadline counts from when the stream has come to the work;
 *     the next perseid_stream_synchronize or perseid_memory_copy of the stream returns TIMEOUT or
 *     PEER_LOST. Executions cannot be captured in a CUDA graph (UNSUPPORTED). Where the GPUs are on
 *     several hosts, execute returns when the data of the others has arrived, or why it has not. */
#ifndef PERSEID_COLLECTIVE_H_
#define PERSEID_COLLECTIVE_H_

#include "perseid/async.h"
#include "perseid/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Groups ---- */

/** The most ranks of a group. */
#define PERSEID_MAX_RANKS 64

/** One rank's membership in a group. */
typedef struct perseid_group* perseid_group_t;

/** Gives every rank what each brings: `all` takes `bytes` bytes from every rank, in their order.
 * Returns 0 where that succeeded. For MPI it is MPI_Allgather. */
typedef int (*perseid_all_gather_fn)(void* user, const void* mine, size_t bytes, void* all);

/** Which rank this process is to be, and how it finds the others. */
typedef struct perseid_group_options {
  uint32_t struct_size; /**< sizeof(perseid_group_options) */
  int32_t rank;         /**< 0..size - 1 */
  int32_t size;         /**< 1..PERSEID_MAX_RANKS; 0: as the environment says, see below */
  uint32_t reserved;    /**< 0 */
  /** "unix:PATH", whose socket only this user can reach, or "tcp:HOST:PORT", an address of rank 0's
   * host, to which alone it is bound, or "mpi:openmpi" or "mpi:mpich" for ranks that mpirun
   * started. NULL with a callback. */
  const char* rendezvous;
  /** A secret that all ranks know, at most 256 bytes; who lacks it is refused. NULL: "", for Unix
   * sockets alone. It is sent as it is: keep TCP within a network that you trust. */
  const char* token;
  /** NULL, or how the ranks find one another without a rendezvous. */
  perseid_all_gather_fn all_gather;
  void* user;           /**< passed to all_gather */
  uint64_t deadline_ns; /**< by when all ranks must have come; 0: 30 s */
} perseid_group_options;

/** Opens a group; all its ranks call this. `options` NULL, or size 0: rank, size, rendezvous and
 * token are those of PERSEID_RANK, PERSEID_WORLD_SIZE, PERSEID_RENDEZVOUS and PERSEID_TOKEN, as
 * `perseid launch` sets them; else those of OpenMPI, torchrun or MPICH. Errors: TIMEOUT (the
 * sentence names the ranks that did not come), PEER_LOST, IO_ERROR, OUT_OF_MEMORY, UNSUPPORTED (no
 * plug-in for MPI). \snippet ranks.c open */
PERSEID_API perseid_status perseid_group_create(const perseid_group_options* options,
                                                perseid_group_t* group);
/** Opens `size` groups at once, groups[r] for the thread that is to be rank r. Errors:
 * OUT_OF_MEMORY.
 * \snippet ranks.c threads */
PERSEID_API perseid_status perseid_group_create_threads(int32_t size, perseid_group_t* groups);
/** Leaves the group. Operations of the others that this rank has taken part in end well. Plans keep
 * what they need: destroying the group first is allowed. NULL is ignored.
 * \snippet ranks.c open */
PERSEID_API void perseid_group_destroy(perseid_group_t group);

/** Facts about a group. */
typedef struct perseid_group_info {
  uint32_t struct_size; /**< sizeof(perseid_group_info) */
  int32_t rank;         /**< this one */
  int32_t size;         /**< how many there are */
  int32_t first_rank;   /**< what it was in the group that was opened, before any shrink */
  int32_t failed_rank;  /**< who made the group fail; -1: it has not failed */
  uint32_t generation;  /**< how often it was shrunk, or more */
} perseid_group_info;
/** Fills `info`, whose struct_size the caller has set.
 * \snippet ranks.c shrink */
PERSEID_API perseid_status perseid_group_query(perseid_group_t group, perseid_group_info* info);

/** Makes a group of those ranks that call this before the deadline, in their order; they are
 * numbered from 0. The old group is only to be destroyed. Operations that failed on this rank may
 * have succeeded on another: agree on what to do again, for example by perseid_group_all_gather of
 * the number of the last step. Errors: PEER_LOST (the others went on without this rank), TIMEOUT,
 * OUT_OF_MEMORY.
 * \snippet ranks.c shrink */
PERSEID_API perseid_status perseid_group_shrink(perseid_group_t group, uint64_t deadline_ns,
                                                perseid_group_t* survivors);

/* ---- Memory that ranks share ---- */

/** On one host, `bytes` of memory for each rank, zeroed, which all ranks can read and write.
 * `bytes` may differ between ranks. The memory of a rank begins where that of the rank before it
 * ends, at the next multiple of 64 bytes. All ranks call this. Errors: OUT_OF_MEMORY, TIMEOUT,
 * PEER_LOST, UNSUPPORTED (ranks on several hosts). \snippet ranks.c memory */
PERSEID_API perseid_status perseid_group_memory_allocate(perseid_group_t group, size_t bytes,
                                                         uint64_t deadline_ns, void** data);
/** The same in memory of the context's device. On a context of the CPU it is
 * perseid_group_memory_allocate; on one of a GPU each rank has memory of its own GPU, which the
 * GPUs of all ranks read and write: by kernels, copies and signals in it, at the addresses that
 * perseid_group_memory_peer gives. Memory of one rank then does not adjoin that of the next.
 * Errors: those, DEVICE_ERROR (GPUs without peer access), INVALID_ARGUMENT (contexts of both
 * kinds). \snippet ranks.c memory_on */
PERSEID_API perseid_status perseid_group_memory_allocate_on(perseid_context_t context,
                                                            perseid_group_t group, size_t bytes,
                                                            uint64_t deadline_ns, void** data);
/** Where this rank reaches the memory of `rank` that was allocated together with `data`.
 * \snippet ranks.c memory */
PERSEID_API perseid_status perseid_group_memory_peer(perseid_group_t group, const void* data,
                                                     int32_t rank, void** peer);
/** Unmaps the memory on this rank; the others keep theirs, that of this rank too. In any order. It
 * is unmapped with the group at the latest. Memory of a GPU: work of this rank that uses it has
 * ended before; the call waits for the operations of ranks that are in flight on the GPU, at most
 * until their deadlines. NULL is ignored.
 * \snippet ranks.c memory */
PERSEID_API void perseid_group_memory_free(perseid_group_t group, void* data);

/* ---- Operations without a plan ----
 *
 * Tensors are row-major without gaps, F16, BF16, F32 or F64, in memory of the host, or all of them
 * on the ranks' GPUs: then the work is done in the order of the default stream, and the call
 * returns after it; the first call on GPUs makes streams and memory, and compiles what it needs.
 * Errors: INVALID_ARGUMENT (on all ranks, where their calls differ or one is wrong), TIMEOUT,
 * PEER_LOST. */

/** How ranks' elements become one. */
typedef enum perseid_reduction {
  PERSEID_SUM = 0,    /**< their sum */
  PERSEID_AVERAGE = 1 /**< their sum over the number of ranks */
} perseid_reduction;

/** Returns when all ranks have called it.
 * \snippet ranks.c barrier */
PERSEID_API perseid_status perseid_group_barrier(perseid_group_t group, uint64_t deadline_ns);
/** output: the inputs of all ranks one after the other along dimension 0, in which they may be
 * uneven.
 * \snippet ranks.c all_gather */
PERSEID_API perseid_status perseid_group_all_gather(perseid_group_t group, const DLTensor* input,
                                                    const DLTensor* output, uint64_t deadline_ns);
/** Of an input [m, ...], equal in shape on all P ranks, rank r gets rows [r m / P, (r + 1) m / P)
 * (floored) of the reduced elements.
 * \snippet ranks.c reduce_scatter */
PERSEID_API perseid_status perseid_group_reduce_scatter(perseid_group_t group,
                                                        perseid_reduction reduction,
                                                        const DLTensor* input,
                                                        const DLTensor* output,
                                                        uint64_t deadline_ns);
/** output: the reduced inputs, all of them on every rank. It may be the input.
 * \snippet ranks.c all_reduce */
PERSEID_API perseid_status perseid_group_all_reduce(perseid_group_t group,
                                                    perseid_reduction reduction,
                                                    const DLTensor* input, const DLTensor* output,
                                                    uint64_t deadline_ns);

/* ---- Plans over ranks ---- */

/** Whether communicating overlaps computing. Results have the same bits. */
typedef enum perseid_fusion {
  PERSEID_FUSION_AUTO = 0, /**< by a model, whose numbers perseid_plan_explain has */
  PERSEID_FUSED = 1,       /**< computing begins with what is here, or sends what is ready */
  PERSEID_UNFUSED = 2      /**< one after the other */
} perseid_fusion;

/** Where the time of the plan's last execution on this rank went, as JSON, where the plan was made
 * with report = 1. Per chunk and in all: seconds of computing (on average over the workers), of
 * communicating (while any of it was under way) and of waiting. `traceEvents` makes the same text a
 * Chrome trace (chrome://tracing, Perfetto); its times are of one clock for all ranks of a host. It
 * lives until the plan is executed again. Errors: INVALID_ARGUMENT (no report, or no execution).
 * \snippet ranks.c overlap_report */
PERSEID_API perseid_status perseid_plan_overlap_report(perseid_plan_t plan, const char** json);

/* ---- All-gather + matmul ---- */

/** One product of the gathered operand. */
typedef struct perseid_gather_product {
  uint32_t struct_size; /**< sizeof(perseid_gather_product), the same of all in an array */
  /** Of c; 0: dtype, or F32 where that is of 8 bits. dtype; or F32 where that is F16 or BF16; or
   * F16, BF16 or F32 where it is of 8 bits. */
  uint32_t out_dtype;
  int64_t n;         /**< columns of b and c; may differ between ranks */
  double alpha;      /**< of a b; 0: 1 */
  uint32_t bias;     /**< 1: a bias is given at execution */
  uint32_t reserved; /**< 0 */
} perseid_gather_product;

/** c[i] = alpha[i] * gather(a) b[i] + bias[i]: every rank has a shard of a, and gets the products
 * of all of a with its own b. The product of the own shard runs first, those of the others as they
 * arrive. Bit for bit the result of perseid_matmul_execute with the gathered operand, unless in
 * canonical order. The 8-bit types have scales as in perseid_matmul_desc, but none of blocks. */
typedef struct perseid_all_gather_matmul_desc {
  uint32_t struct_size; /**< sizeof(perseid_all_gather_matmul_desc) */
  uint32_t dtype;       /**< of a and b */
  /** perseid_chunk_dim: M (also 0), shards are rows of a; K, they are columns. */
  uint32_t gather_dim;
  uint32_t product_count;                 /**< 1..64 */
  int64_t batch;                          /**< 0: 1 */
  int64_t m;                              /**< rows of this rank's shard */
  int64_t k;                              /**< columns of this rank's shard */
  const perseid_gather_product* products; /**< product_count of them */
  int64_t chunks;                         /**< that each shard is signalled in; 0: by a model */
  uint64_t deadline_ns;                   /**< of making the plan; 0: 30 s */
  const char* implementation;             /**< of the product; NULL: the first that takes it */
  uint32_t fusion;                        /**< perseid_fusion */
  uint32_t report;                        /**< 1: for perseid_plan_overlap_report */
  uint32_t canonical;                     /**< 1: canonical order; any number of ranks */
  uint32_t b_dtype;      /**< of b; 0: dtype. The 8-bit types may be mixed, no others */
  uint32_t scaling;      /**< perseid_scaling of 8-bit a and b: NONE, TENSOR or ROW */
  uint32_t accumulation; /**< perseid_accumulation; FAST with 8-bit a and b alone */
  /** Of SCALE_ROW where rows are gathered. 0: each rank gives the scales of all rows of a; 1: each
   * gives those of its own rows, and they are gathered first. */
  uint32_t sharded_scales;
  uint32_t reserved; /**< 0 */
} perseid_all_gather_matmul_desc;

/** The tensors of perseid_all_gather_matmul_execute. M and K are the sizes of the gathered a. */
typedef struct perseid_all_gather_matmul_args {
  uint32_t struct_size; /**< sizeof(perseid_all_gather_matmul_args) */
  uint32_t reserved;    /**< 0 */
  /** [batch, m, k] ([m, k] if batch is 1), this rank's shard; any strides. Written into
   * perseid_all_gather_matmul_shard, it is not copied. */
  const DLTensor* a;
  const DLTensor* const* b; /**< of each product: [batch, K, n], or [K, n] for every entry */
  /** NULL, or of each product: NULL, or [n], dtype or out_dtype, with 8-bit a F32 or out_dtype. */
  const DLTensor* const* bias;
  const DLTensor* const* c; /**< of each product: [batch, M, n] ([M, n] if batch is 1) */
  const DLTensor* gathered; /**< NULL, or takes the gathered a: [batch, M, K] */
  uint64_t deadline_ns;     /**< 0: 30 s */
  /** NULL, or how the waits ended. On a GPU it is written by the synchronisation that returns the
   * failure, and must live as long. */
  perseid_wait_record* record;
  /** Given exactly where the descriptor has scaling, float32: SCALE_TENSOR [1], the same on all
   * ranks; SCALE_ROW [batch, M], or [M] for every entry; with sharded_scales [batch, m] ([m] if
   * batch is 1), on a GPU without gaps between the scales of an entry. */
  const DLTensor* scale_a;
  /** The same, of each product: SCALE_TENSOR [1]; SCALE_ROW [batch, n], or [n] for every entry. */
  const DLTensor* const* scale_b;
} perseid_all_gather_matmul_args;

/** Makes a plan; all ranks call this. Errors: UNSUPPORTED, OUT_OF_MEMORY, TIMEOUT, PEER_LOST. *plan
 * is NULL after a failure.
 * \snippet ranks.c all_gather_matmul */
PERSEID_API perseid_status perseid_all_gather_matmul_plan_create(
    perseid_context_t context, perseid_group_t group, const perseid_all_gather_matmul_desc* desc,
    perseid_plan_t* plan);
/** Where this rank's shard is read: [batch, m, k], in memory of the context's device. What is
 * produced there is not copied. On the CPU each execution from then on returns when all ranks have
 * read the shard, and the first call after executions waits for that, at most 30 s; on a GPU what
 * follows on the stream may overwrite it. The tensor lives as long as the plan.
 * \snippet ranks.c all_gather_matmul */
PERSEID_API perseid_status perseid_all_gather_matmul_shard(perseid_plan_t plan,
                                                           const DLTensor** shard);
/** Writes c, and gathered where given; all ranks call this. Errors: WORKSPACE_TOO_SMALL, TIMEOUT,
 * PEER_LOST.
 * \snippet ranks.c all_gather_matmul */
PERSEID_API perseid_status
perseid_all_gather_matmul_execute(perseid_plan_t plan, const perseid_all_gather_matmul_args* args,
                                  void* workspace, size_t workspace_bytes, void* stream);

/* ---- Matmul + reduce-scatter, matmul + all-reduce ---- */

/** c = reduce(a b over all ranks) + bias: every rank has a slice of the depth, columns of a and
 * rows of b. Each rank gets its shard of c, or all of it. Partial sums are float32 (float64 for
 * F64). With 8-bit types each rank's product has scales of its own, which multiply it before the
 * sum. */
typedef struct perseid_matmul_reduce_desc {
  uint32_t struct_size; /**< sizeof(perseid_matmul_reduce_desc) */
  uint32_t dtype;       /**< of a and b */
  /** Of c; 0: dtype, or F32 where that is of 8 bits. dtype; or F32 where that is F16 or BF16; or
   * F16, BF16 or F32 where it is of 8 bits. */
  uint32_t out_dtype;
  /** perseid_chunk_dim: M (also 0), shards are rows of c; N, they are columns. */
  uint32_t scatter_dim;
  uint32_t reduction;  /**< perseid_reduction */
  uint32_t all_reduce; /**< 0: a rank gets its shard; 1: all of c */
  uint32_t bias;       /**< 1: a bias is given at execution; added once, to the reduced product */
  /** 1: canonical order, of 1, 2, 4 or 8 ranks; k is equal on all, and there are no scales. */
  uint32_t canonical;
  int64_t batch;              /**< 0: 1 */
  int64_t m;                  /**< rows of a and of the whole c */
  int64_t n;                  /**< columns of b and of the whole c */
  int64_t k;                  /**< of this rank; may differ between ranks */
  uint64_t deadline_ns;       /**< of making the plan; 0: 30 s */
  const char* implementation; /**< of the product; NULL: the first that takes it */
  uint32_t fusion;            /**< perseid_fusion */
  uint32_t report;            /**< 1: for perseid_plan_overlap_report */
  uint32_t b_dtype;           /**< of b; 0: dtype. The 8-bit types may be mixed, no others */
  uint32_t scaling;           /**< perseid_scaling of 8-bit a and b: NONE, TENSOR or ROW */
  uint32_t accumulation;      /**< perseid_accumulation; FAST with 8-bit a and b alone */
  uint32_t reserved;          /**< 0 */
} perseid_matmul_reduce_desc;

/** The tensors of perseid_matmul_reduce_execute. */
typedef struct perseid_matmul_reduce_args {
  uint32_t struct_size; /**< sizeof(perseid_matmul_reduce_args) */
  uint32_t reserved;    /**< 0 */
  const DLTensor* a;    /**< [batch, m, k], or [m, k] for every batch entry */
  const DLTensor* b;    /**< [batch, k, n], or [k, n] for every batch entry */
  /** [n], dtype or out_dtype, with 8-bit a F32 or out_dtype; the same on all ranks. */
  const DLTensor* bias;
  /** [batch, m, n] ([m, n] if batch is 1); without all_reduce rank r of P has rows, or columns,
   * [r m / P, (r + 1) m / P), floored. */
  const DLTensor* c;
  uint64_t deadline_ns; /**< 0: 30 s */
  /** NULL, or how the waits ended, as in perseid_all_gather_matmul_args. Its chunk is one of c that
   * `rank` has not added its part to; with all_reduce also one that it has not delivered. */
  perseid_wait_record* record;
  /** Given exactly where the descriptor has scaling, float32, of this rank's slice of the depth:
   * SCALE_TENSOR [1]; SCALE_ROW [batch, m], or [m] for every batch entry. */
  const DLTensor* scale_a;
  const DLTensor* scale_b; /**< the same; SCALE_ROW [batch, n], or [n] for every batch entry */
} perseid_matmul_reduce_args;

/** Makes a plan; all ranks call this. Errors: UNSUPPORTED, OUT_OF_MEMORY, TIMEOUT, PEER_LOST. *plan
 * is NULL after a failure.
 * \snippet ranks.c matmul_reduce */
PERSEID_API perseid_status perseid_matmul_reduce_plan_create(perseid_context_t context,
                                                             perseid_group_t group,
                                                             const perseid_matmul_reduce_desc* desc,
                                                             perseid_plan_t* plan);
/** Writes c; all ranks call this. Errors: WORKSPACE_TOO_SMALL, TIMEOUT, PEER_LOST.
 * \snippet ranks.c matmul_reduce */
PERSEID_API perseid_status perseid_matmul_reduce_execute(perseid_plan_t plan,
                                                         const perseid_matmul_reduce_args* args,
                                                         void* workspace, size_t workspace_bytes,
                                                         void* stream);

/* ---- Context-parallel attention ---- */

struct perseid_attention_desc;
struct perseid_attention_forward_args;
struct perseid_attention_backward_args;

/** Which rows of a sequence of S a rank holds, of queries and of keys. */
typedef enum perseid_placement {
  /** Rows one after the other, in the order of ranks; ranks may be uneven. */
  PERSEID_CONTIGUOUS = 0,
  /** Of 2 P equal pieces of S, rank r of P holds pieces r and 2 P - 1 - r: under a causal mask all
   * ranks have equally much to do. */
  PERSEID_ZIGZAG = 1
} perseid_placement;

/** Attention of sequences that are spread over ranks: a rank has rows of query, key and value, and
 * gets the same rows of out. Queries stay; keys and values go to the ranks that see some of them,
 * and arrive while the attention runs. Positions, and with them masks and dropout, are those in
 * whole sequences. Backward gives every rank the gradients of its rows: those of key and value are
 * summed over ranks in their order, in float32 (float64 for F64), and rounded once. */
typedef struct perseid_context_attention_desc {
  uint32_t struct_size; /**< sizeof(perseid_context_attention_desc) */
  uint32_t placement;   /**< perseid_placement */
  /** The attention, without async_kv. q_len, kv_len, total_q and total_kv are rows of this rank. Of
   * bias_shape, q_len is that of this rank and kv_len that of all ranks. */
  const struct perseid_attention_desc* attention;
  int64_t chunks;       /**< that each piece is signalled in; 0: 1 */
  uint64_t deadline_ns; /**< of making the plan; 0: 30 s */
  uint32_t report;      /**< 1: for perseid_plan_overlap_report */
  /** 1: canonical order. Forward: any number of ranks. Gradients: of 1, 2, 4 or 8 ranks with
   * equally many queries, each sequence of them a multiple of 8 (ZIGZAG: 16). grad_bias has a row
   * for each query; in ragged batches there is none, and bias and visible have one row for all
   * queries. */
  uint32_t canonical;
  uint32_t fusion;   /**< perseid_fusion, of forward; UNFUSED: it begins when all keys are there */
  uint32_t reserved; /**< 0 */
} perseid_context_attention_desc;

/** The tensors of perseid_context_attention_forward. */
typedef struct perseid_context_attention_forward_args {
  uint32_t struct_size; /**< sizeof(perseid_context_attention_forward_args) */
  uint32_t reserved;    /**< 0 */
  /** query, key, value, out and lse have the rows of this rank; bias and visible its queries and
   * all keys. cu_seqlens_q, cu_seqlens_kv and kv_lens are those of whole sequences, the same on all
   * ranks; ragged lengths are multiples of the number of ranks, with ZIGZAG of twice that, and on
   * GPUs too cu_seqlens_q and cu_seqlens_kv are in memory of the host. No arrival_kv. */
  const struct perseid_attention_forward_args* attention;
  uint64_t deadline_ns; /**< 0: 30 s */
  /** NULL, or how the waits ended. On a GPU it is written by the synchronisation that returns the
   * failure, and must live as long. */
  perseid_wait_record* record;
} perseid_context_attention_forward_args;

/** The tensors of perseid_context_attention_backward. */
typedef struct perseid_context_attention_backward_args {
  uint32_t struct_size; /**< sizeof(perseid_context_attention_backward_args) */
  uint32_t reserved;    /**< 0 */
  /** As in forward. grad_key and grad_value are given on all ranks or on none. */
  const struct perseid_attention_backward_args* attention;
  uint64_t deadline_ns; /**< 0: 30 s */
  /** NULL, or how the waits ended, as in forward. Operand 1 is the part of grad_key and grad_value
   * that `rank` computes, which is one chunk, 0. */
  perseid_wait_record* record;
} perseid_context_attention_backward_args;

/** Makes a plan; all ranks call this. Errors: UNSUPPORTED (no kernel takes the attention, or
 * canonical order cannot hold), OUT_OF_MEMORY, TIMEOUT, PEER_LOST. *plan is NULL after a failure.
 * \snippet ranks.c context_attention */
PERSEID_API perseid_status perseid_context_attention_plan_create(
    perseid_context_t context, perseid_group_t group, const perseid_context_attention_desc* desc,
    perseid_plan_t* plan);
/** Writes out, and lse where given; all ranks call this. Errors: WORKSPACE_TOO_SMALL, TIMEOUT,
 * PEER_LOST.
 * \snippet ranks.c context_attention */
PERSEID_API perseid_status perseid_context_attention_forward(
    perseid_plan_t plan, const perseid_context_attention_forward_args* args, void* workspace,
    size_t workspace_bytes, void* stream);
/** Writes the gradients that are given, from what forward wrote; all ranks call this. Keys and
 * values are sent again. Errors: as forward.
 * \snippet ranks.c context_attention */
PERSEID_API perseid_status perseid_context_attention_backward(
    perseid_plan_t plan, const perseid_context_attention_backward_args* args, void* workspace,
    size_t workspace_bytes, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_COLLECTIVE_H_ */
