// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * Contexts: a device and, on the CPU, the threads that work; a device's memory and time. Included
 * by perseid.h. */
#ifndef PERSEID_CONTEXT_H_
#define PERSEID_CONTEXT_H_

#include "perseid/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A device, its threads and its kernels. Any number of threads may use one at once. */
typedef struct perseid_context* perseid_context_t;

/* ---- Context ---- */

/** One task. `worker` is in [0, workers) and belongs to no other task running at the same time. */
typedef void (*perseid_task_fn)(void* state, int64_t task, int32_t worker);

/** A caller's own threads. Results never depend on how it schedules. */
typedef struct perseid_executor {
  /** Calls fn(state, t, worker) once for every t in [0, tasks), in any order, on any threads, and
   * returns when all have returned. It may be entered by several threads at once. NULL: the
   * library's own pool. */
  void (*run)(void* user, int64_t tasks, perseid_task_fn fn, void* state);
  void* user;      /**< passed to run */
  int32_t workers; /**< the most tasks that run at the same time, at least 1 */
} perseid_executor;

/** Whether backward must be bitwise repeatable. On a CPU it always is. */
typedef enum perseid_determinism {
  /** What PERSEID_DETERMINISTIC says (0, 1 or warn), else as each descriptor says. */
  PERSEID_DETERMINISM_DEFAULT = 0,
  PERSEID_DETERMINISM_BY_PLAN = 1, /**< as each descriptor says */
  PERSEID_DETERMINISM_WARN = 2,    /**< the same; a plan that is not repeatable logs a warning */
  PERSEID_DETERMINISM_ON = 3       /**< every plan, as if its descriptor said deterministic */
} perseid_determinism;

/** Which device to open, whose threads work, and what holds for all of its plans. */
typedef struct perseid_context_options {
  uint32_t struct_size; /**< sizeof(perseid_context_options) */
  uint32_t device_type; /**< kDLCPU (also 0) or kDLCUDA */
  int32_t device_index; /**< 0 for the CPU */
  /** Of the own pool; 0: PERSEID_NUM_THREADS, else the CPUs this process may use. */
  int32_t threads;
  perseid_executor executor; /**< the caller's threads; zero: the own pool */
  /** NULL, or with kDLCUDA a compute capability from 8.0 on, such as sm_80 or sm_90. Then no GPU is
   * opened: plans are made and explained as for a GPU of this kind (facts name it), also plans over
   * ranks that are threads, and all that would use one is UNSUPPORTED. */
  const char* assume;
  /** NULL, or names of implementations, divided by commas, that no plan of this context may use, in
   * addition to those of PERSEID_DISABLE_IMPL. */
  const char* disable;
  /** perseid_determinism of the context's plans of attention with gradients. */
  uint32_t determinism;
  uint32_t reserved; /**< 0 */
} perseid_context_options;

/** Opens a device. `options` may be NULL: the CPU with its default pool. Errors: INVALID_ARGUMENT,
 * UNSUPPORTED (no such backend in this build or on this machine), OUT_OF_MEMORY.
 * \snippet context.c context */
PERSEID_API perseid_status perseid_context_create(const perseid_context_options* options,
                                                  perseid_context_t* context);
/** Plans made from the context keep what they need: destroying it first is allowed. NULL is
 * ignored. \snippet context.c destroy */
PERSEID_API void perseid_context_destroy(perseid_context_t context);
/** Facts about the library, the device and the environment variables in force, as one JSON object
 * in UTF-8. The text lives as long as the context.
 * \snippet context.c facts */
PERSEID_API perseid_status perseid_context_facts(perseid_context_t context, const char** json);

/** What perseid_context_ceiling measures. */
typedef enum perseid_ceiling {
  PERSEID_CEILING_F32 = 0, /**< float32 multiply-adds in registers, FLOP/s */
  /** bf16 dot products in registers (float32 ones where there are none), FLOP/s */
  PERSEID_CEILING_BF16 = 1,
  PERSEID_CEILING_F64 = 2,  /**< float64 multiply-adds in registers, FLOP/s */
  PERSEID_CEILING_COPY = 3, /**< copying `bytes` bytes: bytes read plus bytes written, per second */
  PERSEID_CEILING_READ = 4  /**< reading `bytes` bytes, bytes per second */
} perseid_ceiling;
/** Measures (about 50 ms or more) what the context's device and workers reach at best. `bytes`
 * sizes the array of COPY and READ; it is ignored by the others. Errors: OUT_OF_MEMORY, UNSUPPORTED
 * (of a GPU, all but COPY).
 * \snippet context.c ceiling */
PERSEID_API perseid_status perseid_context_ceiling(perseid_context_t context,
                                                   perseid_ceiling ceiling, uint64_t bytes,
                                                   double* per_second);

/* ---- Memory and time of a device ----
 *
 * For programs that have no other allocator at hand: any memory of the device will do, and any
 * stream. The CPU has them too, so that a program may be written once. */

/** Where tensors of the context's plans must be.
 * \snippet context.c memory */
PERSEID_API perseid_status perseid_context_device(perseid_context_t context, DLDevice* device);
/** `bytes` of the device's memory, aligned to 64 bytes or more, with any content; NULL for 0.
 * \snippet context.c memory */
PERSEID_API perseid_status perseid_memory_allocate(perseid_context_t context, size_t bytes,
                                                   void** data);
/** Waits for work that may use the memory, and frees it. NULL is ignored.
 * \snippet context.c memory */
PERSEID_API void perseid_memory_free(perseid_context_t context, void* data);
/** Copies between the host's memory and the device's, or within either, after the work queued on
 * the stream; the copy is complete when the call returns.
 * \snippet context.c memory */
PERSEID_API perseid_status perseid_memory_copy(perseid_context_t context, void* to,
                                               const void* from, size_t bytes, void* stream);
/** Waits for the work of the stream, and says whether it failed.
 * \snippet context.c timer */
PERSEID_API perseid_status perseid_stream_synchronize(perseid_context_t context, void* stream);

/** The time between two points of a stream, by the device's clock. */
typedef struct perseid_timer* perseid_timer_t;
/** Makes a timer of the context's device.
 * \snippet context.c timer */
PERSEID_API perseid_status perseid_timer_create(perseid_context_t context, perseid_timer_t* timer);
/** Frees a timer. NULL is ignored. The context may have been destroyed before.
 * \snippet context.c timer */
PERSEID_API void perseid_timer_destroy(perseid_timer_t timer);
/** Sets the first point, after the work queued so far.
 * \snippet context.c timer */
PERSEID_API perseid_status perseid_timer_start(perseid_timer_t timer, void* stream);
/** Sets the second point, after the work queued so far.
 * \snippet context.c timer */
PERSEID_API perseid_status perseid_timer_stop(perseid_timer_t timer, void* stream);
/** Waits for the second point. INVALID_ARGUMENT where one of the two was not set.
 * \snippet context.c timer */
PERSEID_API perseid_status perseid_timer_seconds(perseid_timer_t timer, double* seconds);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_CONTEXT_H_ */
