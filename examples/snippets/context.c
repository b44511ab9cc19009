// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The examples of the API reference for types.h and context.h.
#include <perseid/perseid.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition) \
  if (!(condition)) return fprintf(stderr, "line %d: %s\n", __LINE__, perseid_last_error()), 1

//! [log]
static void print_message(void* user, perseid_log_level level, const char* message) {
  fprintf((FILE*)user, "perseid [%d]: %s\n", (int)level, message);
}
//! [log]

static int memory(perseid_context_t context) {
  //! [memory]
  float host[4] = {1, 2, 3, 4};
  void* data = NULL;
  perseid_status status = perseid_memory_allocate(context, sizeof host, &data);
  if (status == PERSEID_OK) status = perseid_memory_copy(context, data, host, sizeof host, NULL);
  DLTensor tensor = perseid_tensor(data, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  if (status == PERSEID_OK) status = perseid_context_device(context, &tensor.device);
  /* ... use the tensor in plans of this context ... */
  perseid_memory_free(context, data);
  //! [memory]
  CHECK(status == PERSEID_OK && tensor.device.device_type == kDLCPU);

  //! [timer]
  void* stream = NULL;
  double seconds = 0;
  perseid_timer_t timer = NULL;
  if (perseid_timer_create(context, &timer) == PERSEID_OK &&
      perseid_timer_start(timer, stream) == PERSEID_OK &&
      /* ... execute plans on the stream ... */
      perseid_timer_stop(timer, stream) == PERSEID_OK &&
      perseid_stream_synchronize(context, stream) == PERSEID_OK &&
      perseid_timer_seconds(timer, &seconds) == PERSEID_OK)
    printf("%g us\n", seconds * 1e6);
  perseid_timer_destroy(timer);
  //! [timer]
  CHECK(seconds >= 0);
  return 0;
}

int main(void) {
  //! [version]
  if (perseid_abi_version() != PERSEID_ABI_VERSION) {
    fprintf(stderr, "compiled for ABI %d, but libperseid %s has ABI %d\n", PERSEID_ABI_VERSION,
            perseid_version(), (int)perseid_abi_version());
    return 1;
  }
  //! [version]

  //! [status]
  perseid_context_t none = NULL;
  const perseid_context_options wrong = {.struct_size = sizeof wrong, .device_type = 99};
  const perseid_status status = perseid_context_create(&wrong, &none);
  if (status != PERSEID_OK) printf("%s: %s\n", perseid_status_string(status), perseid_last_error());
  //! [status]
  CHECK(status != PERSEID_OK && none == NULL && strlen(perseid_last_error()) > 0);

  //! [log_set]
  perseid_set_log_callback(print_message, stdout, PERSEID_LOG_INFO);
  //! [log_set]

  //! [context]
  const perseid_context_options options = {
      .struct_size = sizeof options, .device_type = kDLCPU, .threads = 2};
  perseid_context_t context = NULL;
  if (perseid_context_create(&options, &context) != PERSEID_OK) {
    fprintf(stderr, "%s\n", perseid_last_error());
    return 1;
  }
  //! [context]

  //! [facts]
  const char* json = NULL;
  if (perseid_context_facts(context, &json) == PERSEID_OK) puts(json);
  //! [facts]
  CHECK(json != NULL && json[0] == '{');

  //! [ceiling]
  double flops = 0, bytes_per_second = 0;
  if (perseid_context_ceiling(context, PERSEID_CEILING_F32, 0, &flops) == PERSEID_OK &&
      perseid_context_ceiling(context, PERSEID_CEILING_COPY, 1 << 24, &bytes_per_second) ==
          PERSEID_OK)
    printf("%.0f GFLOP/s, %.0f GB/s\n", flops * 1e-9, bytes_per_second * 1e-9);
  //! [ceiling]
  CHECK(flops > 0 && bytes_per_second > 0);

  //! [tensor]
  const float data[6] = {1, 2, 3, 4, 5, 6};
  const DLTensor rows = perseid_tensor(data, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor columns =
      perseid_tensor(data, kDLFloat, 32, PERSEID_DIMS(3, 2), PERSEID_STRIDES(1, 3));
  //! [tensor]
  CHECK(rows.shape[1] == 3 && columns.strides[1] == 3 && memory(context) == 0);
  //! [destroy]
  perseid_context_destroy(context); /* before or after its plans */
  //! [destroy]
  return 0;
}
