// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The examples of the API reference for file.h. Takes the folder to write to.
#include <perseid/perseid.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  char path[4096];
  snprintf(path, sizeof path, "%s/snippet.safetensors", argc > 1 ? argv[1] : ".");

  //! [write]
  const float weights[6] = {1, 2, 3, 4, 5, 6};
  const DLTensor tensor = perseid_tensor(weights, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const perseid_named_tensor tensors[] = {{"weights", &tensor}};
  const perseid_key_value metadata[] = {{"step", "100"}};
  if (perseid_file_write(path, tensors, 1, metadata, 1) != PERSEID_OK) {
    fprintf(stderr, "%s\n", perseid_last_error());
    return 1;
  }
  //! [write]

  //! [read]
  perseid_file_t file = NULL;
  const DLTensor* found = NULL;
  const char* step = NULL;
  if (perseid_file_open(path, &file) != PERSEID_OK ||
      perseid_file_find(file, "weights", &found) != PERSEID_OK ||
      perseid_file_metadata(file, "step", &step) != PERSEID_OK) {
    fprintf(stderr, "%s\n", perseid_last_error());
    perseid_file_close(file);
    return 1;
  }
  printf("step %s: %d dimensions\n", step, (int)found->ndim);
  //! [read]
  const int right = strcmp(step, "100") == 0 && found->shape[1] == 3 &&
                    memcmp((const char*)found->data + found->byte_offset, weights, 24) == 0;

  //! [list]
  size_t count = 0;
  perseid_file_count(file, &count);
  for (size_t i = 0; i < count; ++i) {
    const char* name = NULL;
    const DLTensor* one = NULL;
    if (perseid_file_tensor(file, i, &name, &one) == PERSEID_OK)
      printf("%s: %d dimensions\n", name, (int)one->ndim);
  }
  //! [list]
  perseid_file_close(file);
  remove(path);
  return right && count == 1 ? 0 : 1;
}
