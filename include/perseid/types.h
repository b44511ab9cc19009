// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * What every part of the C ABI uses: statuses, versions, the log, element types and tensors.
 * Included by perseid.h. */
#ifndef PERSEID_TYPES_H_
#define PERSEID_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include "perseid/dlpack.h"

/** How a function of the library is declared. PERSEID_STATIC: the library is a static one. */
#if defined(PERSEID_STATIC)
#define PERSEID_API
#elif defined(_WIN32)
#define PERSEID_API __declspec(dllimport)
#else
#define PERSEID_API __attribute__((visibility("default")))
#endif

#define PERSEID_VERSION_MAJOR 0 /**< Of this header; see perseid_version for the library's. */
#define PERSEID_VERSION_MINOR 1 /**< Before 1.0 a minor version may change interfaces. */
#define PERSEID_VERSION_PATCH 0 /**< Fixes alone. */
/** Raised whenever a struct or a function of these headers changes incompatibly. */
#define PERSEID_ABI_VERSION 1

/** The most dimensions a tensor of any operation may have. */
#define PERSEID_MAX_DIMS 8

#ifdef __cplusplus
extern "C" {
#endif

/** What every function returns. The sentence that explains a failure is in perseid_last_error(). */
typedef enum perseid_status {
  PERSEID_OK = 0,               /**< success */
  PERSEID_INVALID_ARGUMENT = 1, /**< a wrong shape, dtype, stride, pointer or value */
  PERSEID_UNSUPPORTED = 2,      /**< a valid problem, or memory layout, that nothing here takes */
  PERSEID_OUT_OF_MEMORY = 3,    /**< host or device memory is exhausted */
  PERSEID_WORKSPACE_TOO_SMALL = 4, /**< less than perseid_plan_workspace_size says */
  PERSEID_DEVICE_ERROR = 5,        /**< a driver, compiler or device failed */
  PERSEID_TIMEOUT = 6,             /**< a wait reached its deadline */
  PERSEID_PEER_LOST = 7,           /**< another rank is gone or aborted */
  PERSEID_IO_ERROR = 8,            /**< a file is missing, unreadable, unwritable or malformed */
  PERSEID_INTERNAL = 9             /**< a defect of the library; please report the sentence */
} perseid_status;

/** The status's name, such as "invalid argument". Never NULL.
 * \snippet context.c status */
PERSEID_API const char* perseid_status_string(perseid_status status);
/** The sentence of this thread's last failure ("" if none). Valid until the thread's next failing
 * call.
 * \snippet context.c status */
PERSEID_API const char* perseid_last_error(void);

/** "MAJOR.MINOR.PATCH" of the library that runs.
 * \snippet context.c version */
PERSEID_API const char* perseid_version(void);
/** The ABI version of the library that runs: compare with PERSEID_ABI_VERSION.
 * \snippet context.c version */
PERSEID_API int32_t perseid_abi_version(void);

/** How much a message matters. */
typedef enum perseid_log_level {
  PERSEID_LOG_DEBUG = 0,  /**< every execution, with its arguments, before it starts */
  PERSEID_LOG_INFO = 1,   /**< plans made, implementations chosen */
  PERSEID_LOG_WARNING = 2 /**< something abnormal that the library worked around */
} perseid_log_level;
/** Takes one message; it lives until the function returns. */
typedef void (*perseid_log_fn)(void* user, perseid_log_level level, const char* message);
/** Sends messages of at least `level` to `fn` (NULL, the default: silence, or stderr where the
 * environment's PERSEID_VERBOSE asks for it). The callback may run on any thread that calls the
 * library; it must not call back into perseid.
 * \snippet context.c log
 * \snippet context.c log_set */
PERSEID_API void perseid_set_log_callback(perseid_log_fn fn, void* user, perseid_log_level level);

/** Element types. Accumulation is float32 for F16, BF16, F32 and the two 8-bit types, and float64
 * for F64. The 8-bit types are for matmul alone. To an 8-bit type numbers are rounded to nearest
 * even; one beyond the largest becomes the largest, infinity too, and NaN stays NaN. */
typedef enum perseid_dtype {
  PERSEID_F16 = 1,  /**< IEEE binary16; of a DLTensor kDLFloat, 16 bits */
  PERSEID_BF16 = 2, /**< bfloat16; kDLBfloat, 16 bits */
  PERSEID_F32 = 3,  /**< IEEE binary32; kDLFloat, 32 bits */
  PERSEID_F64 = 4,  /**< IEEE binary64; kDLFloat, 64 bits */
  /** e4m3fn, without infinity, the largest number 448; kDLFloat8_e4m3fn, 8 bits */
  PERSEID_F8E4M3 = 5,
  PERSEID_F8E5M2 = 6 /**< the largest number 57344; kDLFloat8_e5m2, 8 bits */
} perseid_dtype;

/** A validated problem with its implementation. Immutable, but that a plan of a group is executed
 * once at a time on each rank. */
typedef struct perseid_plan* perseid_plan_t;

/** Which execution of a plan is meant. Matmul has PERSEID_FORWARD alone. */
typedef enum perseid_direction {
  PERSEID_FORWARD = 0, /**< results from inputs */
  PERSEID_BACKWARD = 1 /**< gradients of inputs from gradients of results */
} perseid_direction;

/** A view of CPU memory as a tensor, in one line of C. `code` is DLPack's: kDLFloat, kDLBfloat
 * (16 bits), kDLBool (8 bits: masks) or kDLInt (lengths). Strides count elements; NULL: row-major.
 * Shape and strides are kept by address: those of the macros PERSEID_DIMS and PERSEID_STRIDES live
 * until the end of the block that they are written in. For memory of a GPU set `device` of the
 * result to what perseid_context_device says.
 * \snippet context.c tensor */
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
/** Strides, or any list of int64_t, as an array of the enclosing block. */
#define PERSEID_STRIDES(...) ((int64_t[]){__VA_ARGS__})
/** The arguments `ndim` and `shape` of perseid_tensor. */
#define PERSEID_DIMS(...) \
  (int)(sizeof PERSEID_STRIDES(__VA_ARGS__) / sizeof(int64_t)), PERSEID_STRIDES(__VA_ARGS__)
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_TYPES_H_ */
