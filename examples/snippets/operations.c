// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The examples of the API reference for perseid.h: plans, softmax, attention, matmul.
#include <math.h>
#include <perseid/perseid.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call) \
  if ((call) != PERSEID_OK) return fprintf(stderr, "%s\n", perseid_last_error()), 1

static int softmax(perseid_context_t context) {
  //! [softmax_plan]
  const perseid_softmax_desc desc = {
      .struct_size = sizeof desc, .dtype = PERSEID_F32, .ndim = 2, .dim = -1, .shape = {2, 3}};
  perseid_plan_t plan = NULL;
  TRY(perseid_softmax_plan_create(context, &desc, &plan));
  //! [softmax_plan]

  //! [workspace]
  size_t bytes = 0, backward_bytes = 0;
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  TRY(perseid_plan_workspace_size(plan, PERSEID_BACKWARD, &backward_bytes));
  if (bytes < backward_bytes) bytes = backward_bytes; /* one buffer serves both */
  void* workspace = malloc(bytes);
  //! [workspace]

  //! [softmax_forward]
  const float x[6] = {0, 0, 0, 1, 2, 3};
  float y[6], lse[2];
  const DLTensor input = perseid_tensor(x, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor output = perseid_tensor(y, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor logs = perseid_tensor(lse, kDLFloat, 32, PERSEID_DIMS(2, 1), NULL);
  const perseid_softmax_forward_args forward = {
      .struct_size = sizeof forward, .input = &input, .output = &output, .lse = &logs};
  TRY(perseid_softmax_forward(plan, &forward, workspace, bytes, NULL));
  //! [softmax_forward]

  //! [softmax_backward]
  const float dy[6] = {1, 0, 0, 1, 0, 0};
  float dx[6];
  const DLTensor grad_output = perseid_tensor(dy, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor grad_input = perseid_tensor(dx, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const perseid_softmax_backward_args backward = {.struct_size = sizeof backward,
                                                  .grad_output = &grad_output,
                                                  .output = &output,
                                                  .grad_input = &grad_input};
  TRY(perseid_softmax_backward(plan, &backward, workspace, bytes, NULL));
  //! [softmax_backward]

  //! [query]
  perseid_plan_info info = {.struct_size = sizeof info};
  TRY(perseid_plan_query(plan, &info));
  printf("%s: %g FLOPs, %g bytes\n", info.implementation, info.forward_flops, info.forward_bytes);
  //! [query]

  //! [explain]
  const char *text = NULL, *json = NULL;
  TRY(perseid_plan_explain(plan, &text));
  TRY(perseid_plan_explain_json(plan, &json));
  puts(text);
  //! [explain]

  const int right =
      fabsf(y[0] - 1 / 3.0f) < 1e-6f && fabsf(dx[0] - 2 / 9.0f) < 1e-6f && json[0] == '{';

  //! [destroy]
  free(workspace);
  perseid_plan_destroy(plan);
  //! [destroy]
  return right ? 0 : 1;
}

static int attention(perseid_context_t context) {
  enum { kQueries = 2, kKeys = 3, kDim = 4 };
  //! [attention_plan]
  const perseid_attention_desc desc = {
      .struct_size = sizeof desc,
      .dtype = PERSEID_F32,
      .causal = PERSEID_CAUSAL_BOTTOM_RIGHT,
      .heads = 1,
      .q_len = kQueries,
      .kv_len = kKeys,
      .head_dim = kDim,
      .gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE};
  perseid_plan_t plan = NULL;
  TRY(perseid_attention_plan_create(context, &desc, &plan));
  //! [attention_plan]
  float q[kQueries * kDim], k[kKeys * kDim], v[kKeys * kDim], o[kQueries * kDim], lse[kQueries];
  float dq[kQueries * kDim], dk[kKeys * kDim], dv[kKeys * kDim], d_out[kQueries * kDim];
  for (int i = 0; i < kQueries * kDim; ++i) q[i] = d_out[i] = 1;
  for (int i = 0; i < kKeys * kDim; ++i) k[i] = v[i] = 1;
  size_t bytes = 0, more = 0;
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  TRY(perseid_plan_workspace_size(plan, PERSEID_BACKWARD, &more));
  if (bytes < more) bytes = more;
  void* workspace = malloc(bytes);

  //! [attention_forward]
  const DLTensor query = perseid_tensor(q, kDLFloat, 32, PERSEID_DIMS(1, kQueries, 1, kDim), NULL);
  const DLTensor key = perseid_tensor(k, kDLFloat, 32, PERSEID_DIMS(1, kKeys, 1, kDim), NULL);
  const DLTensor value = perseid_tensor(v, kDLFloat, 32, PERSEID_DIMS(1, kKeys, 1, kDim), NULL);
  const DLTensor out = perseid_tensor(o, kDLFloat, 32, PERSEID_DIMS(1, kQueries, 1, kDim), NULL);
  const DLTensor logs = perseid_tensor(lse, kDLFloat, 32, PERSEID_DIMS(1, 1, kQueries), NULL);
  const perseid_attention_forward_args forward = {.struct_size = sizeof forward,
                                                  .query = &query,
                                                  .key = &key,
                                                  .value = &value,
                                                  .out = &out,
                                                  .lse = &logs};
  TRY(perseid_attention_forward(plan, &forward, workspace, bytes, NULL));
  //! [attention_forward]

  DLTensor grad_out = out, grad_query = query, grad_key = key, grad_value = value;
  grad_out.data = d_out, grad_query.data = dq, grad_key.data = dk, grad_value.data = dv;
  //! [attention_backward]
  const perseid_attention_backward_args backward = {.struct_size = sizeof backward,
                                                    .query = &query,
                                                    .key = &key,
                                                    .value = &value,
                                                    .out = &out,
                                                    .lse = &logs,
                                                    .grad_out = &grad_out,
                                                    .grad_query = &grad_query,
                                                    .grad_key = &grad_key,
                                                    .grad_value = &grad_value};
  TRY(perseid_attention_backward(plan, &backward, workspace, bytes, NULL));
  //! [attention_backward]
  free(workspace);
  perseid_plan_destroy(plan);

  //! [dropout_mask]
  uint8_t kept[kQueries * kKeys];
  const DLTensor mask = perseid_tensor(kept, kDLBool, 8, PERSEID_DIMS(1, 1, kQueries, kKeys), NULL);
  TRY(perseid_fill_dropout_mask(context, 0.1, /*seed*/ 7, /*offset*/ 0, &mask, NULL));
  //! [dropout_mask]

  //! [ragged]
  /* Sequences of 2 and 1 rows, padded to 2 rows of 2 numbers. */
  float padded[8] = {1, 2, 3, 4, 5, 6, 0, 0}, packed[6];
  int32_t ends[3];
  const uint8_t counts[4] = {1, 1, 1, 0};
  const DLTensor lengths = perseid_tensor(counts, kDLUInt, 8, PERSEID_DIMS(2, 2), NULL);
  const DLTensor cu_seqlens = perseid_tensor(ends, kDLInt, 32, PERSEID_DIMS(3), NULL);
  const DLTensor wide = perseid_tensor(padded, kDLFloat, 32, PERSEID_DIMS(2, 2, 2), NULL);
  const DLTensor narrow = perseid_tensor(packed, kDLFloat, 32, PERSEID_DIMS(3, 2), NULL);
  TRY(perseid_ragged_lengths(context, &lengths, /*longest*/ 2, /*total*/ 3, &cu_seqlens, NULL));
  TRY(perseid_ragged_pack(context, &wide, &cu_seqlens, &narrow, /*zero_rest*/ 1, NULL));
  TRY(perseid_ragged_unpack(context, &narrow, &cu_seqlens, &wide, /*zero_rest*/ 1, NULL));
  //! [ragged]
  if (ends[2] != 3 || packed[4] != 5 || padded[6] != 0) return 1;
  /* The first query sees two keys, the second one three: the last key's value counts 1/3. */
  return fabsf(o[0] - 1) < 1e-6f && fabsf(dv[2 * kDim] - 1 / 3.0f) < 1e-6f && kept[0] <= 1 ? 0 : 1;
}

static int matmul(perseid_context_t context) {
  //! [matmul_plan]
  const perseid_matmul_desc desc = {
      .struct_size = sizeof desc, .dtype = PERSEID_F32, .m = 2, .n = 2, .k = 3};
  perseid_plan_t plan = NULL;
  TRY(perseid_matmul_plan_create(context, &desc, &plan));
  //! [matmul_plan]
  size_t bytes = 0;
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  void* workspace = malloc(bytes);

  //! [matmul]
  const float a_data[6] = {1, 2, 3, 4, 5, 6}, b_data[6] = {1, 0, 1, 0, 1, 1};
  float c_data[4];
  const DLTensor a = perseid_tensor(a_data, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  /* b is stored as [n, k]: its strides say so */
  const DLTensor b =
      perseid_tensor(b_data, kDLFloat, 32, PERSEID_DIMS(3, 2), PERSEID_STRIDES(1, 3));
  const DLTensor c = perseid_tensor(c_data, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  const perseid_matmul_args args = {.struct_size = sizeof args, .a = &a, .b = &b, .c = &c};
  TRY(perseid_matmul_execute(plan, &args, workspace, bytes, NULL));
  //! [matmul]
  free(workspace);
  perseid_plan_destroy(plan);

  //! [matmul_tune]
  TRY(perseid_matmul_tune(context, &desc, &args, NULL, &plan));
  //! [matmul_tune]
  perseid_plan_destroy(plan);
  return c_data[0] == 4 && c_data[1] == 5 && c_data[3] == 11 ? 0 : 1;
}

static int chunks(perseid_context_t context) {
  //! [chunks_plan]
  const int64_t rows[3] = {0, 1, 2}; /* a arrives, and c leaves, row by row */
  const perseid_async_operand of_m = {.struct_size = sizeof of_m, .count = 2, .begin = rows};
  const perseid_matmul_desc desc = {.struct_size = sizeof desc,
                                    .dtype = PERSEID_F32,
                                    .m = 2,
                                    .n = 2,
                                    .k = 1,
                                    .async_a = &of_m,
                                    .sink_c = &of_m};
  perseid_plan_t plan = NULL;
  TRY(perseid_matmul_plan_create(context, &desc, &plan));
  //! [chunks_plan]
  size_t bytes = 0;
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  void* workspace = malloc(bytes);

  const float b_data[2] = {3, 4};
  float a_data[2] = {0, 0}, c_data[4];
  const DLTensor a = perseid_tensor(a_data, kDLFloat, 32, PERSEID_DIMS(2, 1), NULL);
  const DLTensor b = perseid_tensor(b_data, kDLFloat, 32, PERSEID_DIMS(1, 2), NULL);
  const DLTensor c = perseid_tensor(c_data, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  //! [signals]
  uint32_t here[2] = {0, 0}, written[2] = {0, 0}; /* one for each chunk */
  const uint32_t epoch = 1;
  for (int row = 1; row >= 0; --row) { /* a producer, here or in another thread */
    a_data[row] = (float)(row + 1);
    TRY(perseid_signal_set(&here[row], epoch));
  }
  const perseid_arrival arrival = {
      .struct_size = sizeof arrival, .signals = here, .epoch = epoch, .deadline_ns = 1000000000};
  const perseid_chunk_sink departure = {
      .struct_size = sizeof departure, .signals = written, .epoch = epoch};
  const perseid_matmul_args args = {.struct_size = sizeof args,
                                    .a = &a,
                                    .b = &b,
                                    .c = &c,
                                    .arrival_a = &arrival,
                                    .departure_c = &departure};
  TRY(perseid_matmul_execute(plan, &args, workspace, bytes, NULL));
  TRY(perseid_signal_wait(&written[1], epoch, 0, NULL)); /* a consumer of the second row */
  //! [signals]
  //! [stream_signals]
  void* stream = NULL; /* of the context's device */
  uint32_t sent = 0;
  TRY(perseid_stream_signal_set(context, &sent, epoch, stream)); /* after the work before it */
  const perseid_arrival answer = {
      .struct_size = sizeof answer, .signals = &sent, .epoch = epoch, .deadline_ns = 1000000000};
  TRY(perseid_stream_signal_wait(context, &answer, stream)); /* before the work behind it */
  TRY(perseid_stream_synchronize(context, stream));          /* TIMEOUT if it did not come */
  //! [stream_signals]
  free(workspace);
  perseid_plan_destroy(plan);
  return c_data[0] == 3 && c_data[3] == 8 ? 0 : 1;
}

int main(void) {
  perseid_context_t context = NULL;
  TRY(perseid_context_create(NULL, &context));
  const int wrong =
      softmax(context) + 2 * attention(context) + 4 * matmul(context) + 8 * chunks(context);
  perseid_context_destroy(context);
  return wrong;
}
