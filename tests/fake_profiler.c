/* SPDX-FileCopyrightText: 2026 The Perseid Authors
 * SPDX-License-Identifier: Apache-2.0
 * A profiler that takes the ranges of NVTX, as its headers describe an injected library: it appends
 * "push NAME" and "pop" to the file that FAKE_PROFILER_FILE names. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*function)(void);

struct callbacks {
  size_t struct_size;
  int (*find_slots)(int module, function*** table, unsigned* size);
};

static void note(const char* what, const char* name) {
  FILE* file = fopen(getenv("FAKE_PROFILER_FILE"), "a");
  if (file == NULL) return;
  fprintf(file, "%s%s\n", what, name);
  fclose(file);
}

static int push(const char* name) {
  note("push ", name);
  return 0;
}
static int pop(void) {
  note("pop", "");
  return 0;
}

/* As profilers do: wants every module's table, of at least the functions that it knows. */
int InitializeInjectionNvtx2(const void* (*table_of)(uint32_t));
int InitializeInjectionNvtx2(const void* (*table_of)(uint32_t)) {
  const unsigned least[7] = {0, 16, 9, 15, 7, 16, 7};
  const struct callbacks* callbacks = table_of(1);
  const char* refuses = getenv("FAKE_PROFILER_REFUSES");
  function** slots = NULL;
  unsigned size = 0;
  int module;
  if (callbacks == NULL || callbacks->struct_size < sizeof *callbacks) return 0;
  if (table_of(3) == NULL || table_of(2) != NULL || refuses != NULL) return 0;
  if (callbacks->find_slots(7, &slots, &size) || callbacks->find_slots(0, &slots, &size)) return 0;
  for (module = 6; module >= 1; --module) {
    if (!callbacks->find_slots(module, &slots, &size) || size < least[module]) return 0;
    if (slots[0] != NULL || slots[1] == NULL || slots[size - 1] == NULL || slots[size] != NULL)
      return 0;
  }
  *slots[9] = (function)push;
  *slots[11] = (function)pop;
  return 1;
}
