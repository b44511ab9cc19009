// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The C ABI from C11: the header compiles as C, and plans made and executed give values that can be
// checked by hand.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perseid/perseid.h"

static int failures = 0;

static void expect_status(perseid_status got, perseid_status expected, const char* what) {
  if (got == expected) return;
  ++failures;
  printf("%s: got \"%s\", expected \"%s\": %s\n", what, perseid_status_string(got),
         perseid_status_string(expected), perseid_last_error());
}

static void expect_near(double got, double expected, const char* what) {
  if (fabs(got - expected) <= 1e-5) return;
  ++failures;
  printf("%s: got %g, expected %g\n", what, got, expected);
}

static void* make_workspace(perseid_plan_t plan, perseid_direction direction, size_t* bytes) {
  expect_status(perseid_plan_workspace_size(plan, direction, bytes), PERSEID_OK, "workspace size");
  return *bytes == 0 ? NULL : malloc(*bytes);
}

// Numbers that are no enumerators, which C++ could not even pass.
static void check_wrong_enums(perseid_context_t context, perseid_plan_t plan) {
  double per_second = 0;
  size_t bytes = 0;
  expect_status(perseid_context_ceiling(context, (perseid_ceiling)99, 1, &per_second),
                PERSEID_INVALID_ARGUMENT, "ceiling 99");
  expect_status(perseid_plan_workspace_size(plan, (perseid_direction)-1, &bytes),
                PERSEID_INVALID_ARGUMENT, "direction -1");
  if (strstr(perseid_last_error(), "the direction is -1") == NULL) {
    ++failures;
    printf("unexpected sentence: %s\n", perseid_last_error());
  }
  if (strcmp(perseid_status_string((perseid_status)77), "unknown status") != 0) ++failures;
}

static void check_softmax(perseid_context_t context) {
  perseid_softmax_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.dtype = PERSEID_F32;
  desc.ndim = 2;
  desc.dim = -1;
  desc.shape[0] = 2;
  desc.shape[1] = 3;
  perseid_plan_t plan = NULL;
  expect_status(perseid_softmax_plan_create(context, &desc, &plan), PERSEID_OK, "softmax plan");

  float input[6] = {0, 0, 0, logf(1), logf(2), logf(5)};
  float output[6] = {0};
  float lse[2] = {0};
  const DLTensor input_tensor = perseid_tensor(input, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor output_tensor = perseid_tensor(output, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor lse_tensor = perseid_tensor(lse, kDLFloat, 32, PERSEID_DIMS(2, 1), NULL);
  perseid_softmax_forward_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.input = &input_tensor;
  args.output = &output_tensor;
  args.lse = &lse_tensor;
  size_t bytes = 0;
  void* workspace = make_workspace(plan, PERSEID_FORWARD, &bytes);
  expect_status(perseid_softmax_forward(plan, &args, workspace, bytes, NULL), PERSEID_OK,
                "softmax forward");
  expect_near(output[1], 1.0 / 3, "softmax of equal inputs");
  expect_near(output[5], 5.0 / 8, "softmax of logarithms");
  expect_near(lse[1], log(8), "logsumexp");
  free(workspace);
  perseid_plan_destroy(plan);
}

// One query 1 against the keys 0 and ln 3, with scale 1: probabilities 1/4 and 3/4.
static void check_attention(perseid_context_t context) {
  perseid_attention_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.dtype = PERSEID_F32;
  desc.heads = desc.q_len = desc.head_dim = 1; /* batch, too: its default */
  desc.kv_len = 2;
  desc.scale = 1;
  desc.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  perseid_plan_t plan = NULL;
  expect_status(perseid_attention_plan_create(context, &desc, &plan), PERSEID_OK, "attention plan");

  float query[1] = {1}, key[2] = {0, logf(3)}, value[2] = {0, 4}, out[1], lse[1], grad_out[1] = {1};
  float grad_query[1], grad_key[2], grad_value[2];
  const DLTensor lse_tensor = perseid_tensor(lse, kDLFloat, 32, PERSEID_DIMS(1, 1, 1), NULL);
  const DLTensor query_tensor = perseid_tensor(query, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 1), NULL);
  const DLTensor key_tensor = perseid_tensor(key, kDLFloat, 32, PERSEID_DIMS(1, 2, 1, 1), NULL);
  const DLTensor value_tensor = perseid_tensor(value, kDLFloat, 32, PERSEID_DIMS(1, 2, 1, 1), NULL);
  const DLTensor out_tensor = perseid_tensor(out, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 1), NULL);
  const DLTensor grad_out_tensor =
      perseid_tensor(grad_out, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 1), NULL);
  const DLTensor grad_query_tensor =
      perseid_tensor(grad_query, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 1), NULL);
  const DLTensor grad_key_tensor =
      perseid_tensor(grad_key, kDLFloat, 32, PERSEID_DIMS(1, 2, 1, 1), NULL);
  const DLTensor grad_value_tensor =
      perseid_tensor(grad_value, kDLFloat, 32, PERSEID_DIMS(1, 2, 1, 1), NULL);

  perseid_attention_forward_args forward;
  memset(&forward, 0, sizeof forward);
  forward.struct_size = sizeof forward;
  forward.query = &query_tensor;
  forward.key = &key_tensor;
  forward.value = &value_tensor;
  forward.out = &out_tensor;
  forward.lse = &lse_tensor;
  size_t bytes = 0;
  void* workspace = make_workspace(plan, PERSEID_FORWARD, &bytes);
  expect_status(perseid_attention_forward(plan, &forward, workspace, bytes, NULL), PERSEID_OK,
                "attention forward");
  free(workspace);
  expect_near(out[0], 3, "out");
  expect_near(lse[0], log(4), "lse");

  perseid_attention_backward_args backward;
  memset(&backward, 0, sizeof backward);
  backward.struct_size = sizeof backward;
  backward.query = &query_tensor;
  backward.key = &key_tensor;
  backward.value = &value_tensor;
  backward.out = &out_tensor;
  backward.lse = &lse_tensor;
  backward.grad_out = &grad_out_tensor;
  backward.grad_query = &grad_query_tensor;
  backward.grad_key = &grad_key_tensor;
  backward.grad_value = &grad_value_tensor;
  workspace = make_workspace(plan, PERSEID_BACKWARD, &bytes);
  expect_status(perseid_attention_backward(plan, &backward, workspace, bytes, NULL), PERSEID_OK,
                "attention backward");
  free(workspace);
  expect_near(grad_query[0], 0.75 * log(3), "grad_query");
  expect_near(grad_key[0], -0.75, "grad_key[0]");
  expect_near(grad_key[1], 0.75, "grad_key[1]");
  expect_near(grad_value[0], 0.25, "grad_value[0]");
  expect_near(grad_value[1], 0.75, "grad_value[1]");
  perseid_plan_destroy(plan);
}

static void check_matmul(perseid_context_t context) {
  perseid_matmul_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.dtype = PERSEID_F32;
  desc.m = desc.n = desc.k = 2;
  desc.alpha = 2;
  desc.beta = 1;
  perseid_plan_t plan = NULL;
  expect_status(perseid_matmul_plan_create(context, &desc, &plan), PERSEID_OK, "matmul plan");

  float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, c[4] = {100, 200, 300, 400};
  const DLTensor a_tensor = perseid_tensor(a, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL),
                 b_tensor =
                     perseid_tensor(b, kDLFloat, 32, PERSEID_DIMS(2, 2), PERSEID_STRIDES(1, 2)),
                 c_tensor = perseid_tensor(c, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  perseid_matmul_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.a = &a_tensor;
  args.b = &b_tensor;
  args.c = &c_tensor;
  size_t bytes = 0;
  void* workspace = make_workspace(plan, PERSEID_FORWARD, &bytes);
  expect_status(perseid_matmul_execute(plan, &args, workspace, bytes, NULL), PERSEID_OK, "matmul");
  free(workspace);
  expect_near(c[0], 100 + 2 * (1 * 5 + 2 * 6), "c[0, 0]");
  expect_near(c[1], 200 + 2 * (1 * 7 + 2 * 8), "c[0, 1]");
  expect_near(c[2], 300 + 2 * (3 * 5 + 4 * 6), "c[1, 0]");
  expect_near(c[3], 400 + 2 * (3 * 7 + 4 * 8), "c[1, 1]");

  args.a = NULL;
  expect_status(perseid_matmul_execute(plan, &args, NULL, 0, NULL), PERSEID_INVALID_ARGUMENT,
                "matmul without a");
  if (strstr(perseid_last_error(), "a is NULL") == NULL) {
    ++failures;
    printf("unexpected sentence: %s\n", perseid_last_error());
  }
  check_wrong_enums(context, plan);
  perseid_plan_destroy(plan);
}

int main(void) {
  perseid_context_t context = NULL;
  expect_status(perseid_context_create(NULL, &context), PERSEID_OK, "context");
  if (context == NULL) return 1;
  if (perseid_abi_version() != PERSEID_ABI_VERSION) ++failures;
  check_softmax(context);
  check_attention(context);
  check_matmul(context);
  perseid_context_destroy(context);
  if (failures == 0) printf("perseid %s from C: all as expected\n", perseid_version());
  return failures == 0 ? 0 : 1;
}
