// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * Tensor files: .npy (versions 1 to 3) and .safetensors. Included by perseid.h. */
#ifndef PERSEID_FILE_H_
#define PERSEID_FILE_H_

#include "perseid/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A file that is open for reading. */
typedef struct perseid_file* perseid_file_t;

/** Opens a file for reading. Errors: IO_ERROR (with the offending number), OUT_OF_MEMORY. A file of
 * up to 4 MiB is read into memory at once. A larger one is mapped: nobody may cut it short while it
 * is open, because reading a lost part raises SIGBUS. Replace such a file by renaming a new one
 * over it, as perseid_file_write does.
 * \snippet files.c read */
PERSEID_API perseid_status perseid_file_open(const char* path, perseid_file_t* file);
/** Releases the file; tensors got from it are no longer valid. NULL is ignored.
 * \snippet files.c read */
PERSEID_API void perseid_file_close(perseid_file_t file);
/** How many tensors the file holds (1 for .npy).
 * \snippet files.c list */
PERSEID_API perseid_status perseid_file_count(perseid_file_t file, size_t* count);
/** The index-th tensor, in the order of the file, and its name ("" for .npy). Both live as long as
 * the file; the data is read-only, and in a .safetensors file not always aligned to its elements.
 * `name` or `tensor` may be NULL. Errors: IO_ERROR (the tensor is of a type that DLTensor or this
 * library does not have; its name can be read).
 * \snippet files.c list */
PERSEID_API perseid_status perseid_file_tensor(perseid_file_t file, size_t index, const char** name,
                                               const DLTensor** tensor);
/** The tensor of this name; IO_ERROR lists the names there are.
 * \snippet files.c read */
PERSEID_API perseid_status perseid_file_find(perseid_file_t file, const char* name,
                                             const DLTensor** tensor);
/** A string of safetensors' __metadata__, or NULL where there is none of that key.
 * \snippet files.c read */
PERSEID_API perseid_status perseid_file_metadata(perseid_file_t file, const char* key,
                                                 const char** value);

/** A tensor to write, and its name in the file. */
typedef struct perseid_named_tensor {
  const char* name;       /**< ignored for .npy */
  const DLTensor* tensor; /**< in the CPU's memory, with any strides */
} perseid_named_tensor;
/** One entry of safetensors' __metadata__. */
typedef struct perseid_key_value {
  const char* key;   /**< UTF-8 */
  const char* value; /**< UTF-8 */
} perseid_key_value;
/** Writes a file of the format that the path's extension names, under a temporary name that is then
 * renamed, so that a reader or a crash never sees half of it. .npy takes exactly one tensor and no
 * metadata. Errors: IO_ERROR, OUT_OF_MEMORY.
 * \snippet files.c write */
PERSEID_API perseid_status perseid_file_write(const char* path, const perseid_named_tensor* tensors,
                                              size_t count, const perseid_key_value* metadata,
                                              size_t metadata_count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_FILE_H_ */
