// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * Operands that arrive in chunks while an operation runs, and outputs that leave in chunks.
 * Included by perseid.h.
 *
 *   - A chunk table cuts one dimension of an operand into chunks: of a matrix of matmul, or of
 *     attention's key and value together. It belongs to the plan.
 *   - A signal is a 32-bit word for each chunk. Whoever delivers a chunk writes its data, then
 *     stores the epoch into its signal with release order: perseid_signal_set, a kernel, a copy
 *     engine's stream write, another process or GPU, MPI, NCCL. The operation reads a chunk after
 *     it has seen the signal reach the epoch, with acquire order.
 *   - An epoch is the number of an execution, as the caller counts them. A signal has reached an
 *     epoch when (int32_t)(signal - epoch) >= 0, so epochs count up, wrap at 2^32, and nothing is
 *     ever reset. Before the first execution every signal must hold the epoch before it: a word
 *     that was never written would seem reached after 2^31 epochs.
 *   - A wait ends at its deadline or when the abort word is set. Then all workers drain, the call
 *     returns TIMEOUT or PEER_LOST with the first chunk that is missing, and what it was to write
 *     is undefined. On a GPU the call has returned before: the next perseid_stream_synchronize or
 *     perseid_memory_copy of the stream returns the status, once. Plan and context stay usable,
 *     with a new epoch.
 *   - Results do not depend on the order of arrival, on delays or on the number of threads, bit for
 *     bit. Those of matmul are the bits of the plan without chunks. Attention sums keys in the
 * order of visits, which boundaries and the first chunk fix: with first chunk 0 the CPU has the
 * bits of the plan without chunks, and docs/reference/attention.md says what else does. */
#ifndef PERSEID_ASYNC_H_
#define PERSEID_ASYNC_H_

#include "perseid/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The most chunks of one operand. */
#define PERSEID_MAX_CHUNKS 1048576

/** Which dimension is cut, of c[m, n] = a[m, k] b[k, n] or of attention. */
typedef enum perseid_chunk_dim {
  PERSEID_CHUNK_DEFAULT = 0, /**< m of a and c, n of b; rows of key and value */
  PERSEID_CHUNK_M = 1,       /**< rows of a, or of c */
  PERSEID_CHUNK_N = 2,       /**< columns of b, or of c */
  /** Depth of a, or of b. It is summed in ascending order, so the first chunk is chunk 0. */
  PERSEID_CHUNK_K = 3,
  PERSEID_CHUNK_KV = 4 /**< rows of key and value: of kv_len, where ragged of total_kv */
} perseid_chunk_dim;

/** The chunks of an operand, in the descriptor. Every entry of a batch is cut alike: a chunk is
 * these rows, columns or depths of all of them. Packed rows of ragged key and value are cut as they
 * lie, so that a chunk may hold the end of one sequence and the begin of the next. */
typedef struct perseid_async_operand {
  uint32_t struct_size; /**< sizeof(perseid_async_operand) */
  uint32_t dim;         /**< perseid_chunk_dim */
  int64_t count;        /**< of chunks, 1..PERSEID_MAX_CHUNKS */
  /** count + 1 boundaries: chunk c is [begin[c], begin[c + 1]). They begin with 0, end with the
   * size of the dimension and rise: no chunk is empty. Copied when the plan is made. */
  const int64_t* begin;
} perseid_async_operand;

/** How the waits of an execution ended, for programs. The sentence of perseid_last_error says the
 * same. */
typedef struct perseid_wait_record {
  int32_t status;    /**< perseid_status: OK where all chunks arrived, else TIMEOUT or PEER_LOST */
  int32_t rank;      /**< who was to deliver the chunk; -1: not known */
  int32_t operand;   /**< 0: a, or key and value; 1: b */
  int32_t chunk;     /**< the first missing one, from first_chunk round; -1: none */
  uint32_t expected; /**< the epoch */
  uint32_t seen;     /**< what the signal held */
} perseid_wait_record;

/** The arrival of an operand in one execution. */
typedef struct perseid_arrival {
  uint32_t struct_size; /**< sizeof(perseid_arrival) */
  /** One for each chunk, in memory of the context's device (on the CPU also memory shared with
   * other processes). */
  const uint32_t* signals;
  uint32_t epoch; /**< that signals must have reached */
  /** NULL, or where the epoch is, in memory of the device, read when the work runs: a CUDA graph
   * that is launched again takes the next one. */
  const uint32_t* epoch_ptr;
  /** Visited first; then those after it, round. 0 for chunks of k. A chunk of keys that causal,
   * window and lengths hide from every query is not waited for. On a GPU attention visits a query's
   * tiles that need a mask (the diagonal) before all others: under a causal mask let this be the
   * chunk of the diagonal. */
  int64_t first_chunk;
  uint64_t deadline_ns; /**< of every wait, counted from the start of the work; 0: 30 s */
  /** NULL, or a word in memory of the host: not 0 ends every wait. For a GPU in page-locked,
   * registered or managed memory. */
  const uint32_t* abort;
  /** NULL, or memory of the host that is filled before the call returns. For a GPU in page-locked,
   * registered or managed memory; the call sets its status to OK, and the GPU writes it if a wait
   * fails. */
  perseid_wait_record* record;
} perseid_arrival;

/** The departure of an output in one execution, where the plan was made with chunks of c. A chunk's
 * signal is set, with release order, once all of its elements are written. A call that fails sets
 * none of those that are not finished. */
typedef struct perseid_chunk_sink {
  uint32_t struct_size;      /**< sizeof(perseid_chunk_sink) */
  uint32_t* signals;         /**< one for each chunk, as in perseid_arrival */
  uint32_t epoch;            /**< that signals are set to */
  const uint32_t* epoch_ptr; /**< as in perseid_arrival */
  /** Computed first, where no operand arrives in chunks that say otherwise. */
  int64_t first_chunk;
} perseid_chunk_sink;

/** Stores `epoch` into a signal in memory of the host, with release order, and wakes whoever waits
 * for it on the CPU. A plain atomic store serves as well; a waiting CPU then sees it within half a
 * millisecond.
 * \snippet operations.c signals */
PERSEID_API perseid_status perseid_signal_set(uint32_t* signal, uint32_t epoch);
/** Waits until a signal in memory of the host has reached `epoch`, with acquire order. It spins for
 * 50 us, then sleeps. `deadline_ns` from now (0: 30 s); `abort` as in perseid_arrival. Errors:
 * TIMEOUT, PEER_LOST (aborted).
 * \snippet operations.c signals */
PERSEID_API perseid_status perseid_signal_wait(const uint32_t* signal, uint32_t epoch,
                                               uint64_t deadline_ns, const uint32_t* abort);

/** Stores `epoch` into a signal after the work queued on the stream, whose results are visible to
 * whoever sees it; on the CPU at once. On a GPU it needs no multiprocessor, so it also serves a
 * kernel that waits on another stream; the signal is in memory of the device, or page-locked.
 * Errors: INVALID_ARGUMENT, DEVICE_ERROR.
 * \snippet operations.c stream_signals */
PERSEID_API perseid_status perseid_stream_signal_set(perseid_context_t context, uint32_t* signal,
                                                     uint32_t epoch, void* stream);
/** The work queued later on the stream waits for the one signal of `arrival`, as an operand's chunk
 * would. On the CPU the call waits itself. On a GPU the call returns; the wait takes one warp of a
 * multiprocessor, can be captured in a CUDA graph (with the epoch at epoch_ptr), and where it fails
 * the work behind it runs all the same: the next synchronisation returns the status. Errors:
 * INVALID_ARGUMENT, TIMEOUT, PEER_LOST, DEVICE_ERROR.
 * \snippet operations.c stream_signals */
PERSEID_API perseid_status perseid_stream_signal_wait(perseid_context_t context,
                                                      const perseid_arrival* arrival, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_ASYNC_H_ */
