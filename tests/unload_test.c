// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// unload_test LIBRARY: dlclose() unloads the library, after its threads have worked and while a
// thread lives that has met an error; and it can be loaded again.
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perseid/perseid.h"

#define ROWS 512
#define COLUMNS 1000

static void expect(int holds, const char* what) {
  if (holds) return;
  printf("failed: %s\n", what);
  exit(1);
}

// How often the library is mapped into this process.
static int mappings(void) {
  char line[4096];
  int count = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  expect(maps != NULL, "reading /proc/self/maps");
  while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, "libperseid") != NULL;
  fclose(maps);
  return count;
}

// Declares a pointer `name` to the library's function perseid_`name`.
#define FIND(library, name)         \
  __typeof__(&perseid_##name) name; \
  find((library), "perseid_" #name, (void*)&(name))
// ISO C has no cast from a pointer to data to one to a function.
static void find(void* library, const char* name, void* function) {
  void* found = dlsym(library, name);
  expect(found != NULL, name);
  memcpy(function, &found, sizeof found);
}

static DLTensor tensor(float* data, int64_t* shape) {
  DLTensor result;
  memset(&result, 0, sizeof result);
  result.data = data;
  result.device.device_type = kDLCPU;
  result.ndim = 2;
  result.dtype.code = kDLFloat;
  result.dtype.bits = 32;
  result.dtype.lanes = 1;
  result.shape = shape;
  return result;
}

static void softmax_on_two_threads(void* library) {
  FIND(library, context_create);
  FIND(library, context_destroy);
  FIND(library, softmax_plan_create);
  FIND(library, plan_destroy);
  FIND(library, plan_workspace_size);
  FIND(library, softmax_forward);

  perseid_context_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.device_type = kDLCPU;
  options.threads = 2;
  perseid_context_t context = NULL;
  expect(context_create(&options, &context) == PERSEID_OK, "making a context");

  perseid_softmax_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.dtype = PERSEID_F32;
  desc.ndim = 2;
  desc.dim = -1;
  int64_t shape[2] = {ROWS, COLUMNS};
  memcpy(desc.shape, shape, sizeof shape);
  perseid_plan_t plan = NULL;
  expect(softmax_plan_create(context, &desc, &plan) == PERSEID_OK, "making a plan");

  static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
  const DLTensor input = tensor(x, shape), output = tensor(y, shape);
  perseid_softmax_forward_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.input = &input;
  args.output = &output;
  size_t bytes = 0;
  expect(plan_workspace_size(plan, PERSEID_FORWARD, &bytes) == PERSEID_OK, "workspace size");
  void* workspace = malloc(bytes + 1);
  expect(softmax_forward(plan, &args, workspace, bytes, NULL) == PERSEID_OK, "softmax");
  expect(fabsf(y[ROWS * COLUMNS - 1] - 1.0f / COLUMNS) < 1e-6f, "softmax of equal inputs");
  free(workspace);
  plan_destroy(plan);
  context_destroy(context);
}

// Whether or not there is a GPU: what was loaded for it stays, but not the library.
static void gpu_context(void* library) {
  FIND(library, context_create);
  FIND(library, context_destroy);
  perseid_context_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = NULL;
  expect((context_create(&options, &context) == PERSEID_OK) == (context != NULL), "a GPU context");
  context_destroy(context);
}

// A thread that meets an error, and lives until it may end.
struct failure {
  void* library;
  pthread_barrier_t met, may_end;
};
static void* fail(void* argument) {
  struct failure* failure = argument;
  {
    FIND(failure->library, context_create);
    FIND(failure->library, last_error);
    expect(context_create(NULL, NULL) == PERSEID_INVALID_ARGUMENT, "a context without a result");
    expect(strstr(last_error(), "NULL") != NULL, "the sentence of an error");
  }
  pthread_barrier_wait(&failure->met);
  pthread_barrier_wait(&failure->may_end);
  return NULL;
}

static void load_and_unload(const char* path) {
  struct failure failure;
  failure.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (failure.library == NULL) printf("%s\n", dlerror());
  expect(failure.library != NULL, "loading the library");
  expect(mappings() > 0, "finding the library in /proc/self/maps");
  softmax_on_two_threads(failure.library);
  gpu_context(failure.library);

  pthread_barrier_init(&failure.met, NULL, 2);
  pthread_barrier_init(&failure.may_end, NULL, 2);
  pthread_t thread;
  expect(pthread_create(&thread, NULL, fail, &failure) == 0, "making a thread");
  pthread_barrier_wait(&failure.met);
  expect(dlclose(failure.library) == 0, "dlclose");
  expect(mappings() == 0, "unloading the library");
  pthread_barrier_wait(&failure.may_end);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&failure.met);
  pthread_barrier_destroy(&failure.may_end);
}

int main(int argc, char** argv) {
  expect(argc == 2, "usage: unload_test LIBRARY");
  for (int i = 0; i < 3; ++i) load_and_unload(argv[1]);
  return 0;
}
