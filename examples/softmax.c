// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Masked softmax of a batch of rows in C11: a sampler that may not choose every token.
#include <math.h>
#include <perseid/perseid.h>
#include <stdio.h>
#include <stdlib.h>

enum { kRows = 2, kTokens = 5 };

static void check(perseid_status status) {
  if (status == PERSEID_OK) return;
  fprintf(stderr, "%s\n", perseid_last_error());
  exit(1);
}

int main(void) {
  const float logits[kRows * kTokens] = {1, 2, 3, 4, 5, 0, 0, 0, 0, 0};
  const uint8_t allowed[kTokens] = {1, 1, 1, 0, 0};  // of every row
  float probabilities[kRows * kTokens], lse[kRows];

  //! [plan]
  perseid_context_t context = NULL;
  check(perseid_context_create(NULL, &context));
  const perseid_softmax_desc desc = {.struct_size = sizeof desc,
                                     .dtype = PERSEID_F32,
                                     .ndim = 2,
                                     .dim = -1,
                                     .shape = {kRows, kTokens},
                                     .scale = 1 / 0.8,  // a temperature of 0.8
                                     .visible = 1};
  perseid_plan_t plan = NULL;
  check(perseid_softmax_plan_create(context, &desc, &plan));
  size_t bytes = 0;
  check(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  void* workspace = malloc(bytes);
  //! [plan]

  //! [execute]
  const DLTensor input = perseid_tensor(logits, kDLFloat, 32, PERSEID_DIMS(kRows, kTokens), NULL);
  const DLTensor output =
      perseid_tensor(probabilities, kDLFloat, 32, PERSEID_DIMS(kRows, kTokens), NULL);
  const DLTensor visible = perseid_tensor(allowed, kDLBool, 8, PERSEID_DIMS(1, kTokens), NULL);
  const DLTensor logs = perseid_tensor(lse, kDLFloat, 32, PERSEID_DIMS(kRows, 1), NULL);
  const perseid_softmax_forward_args args = {.struct_size = sizeof args,
                                             .input = &input,
                                             .output = &output,
                                             .visible = &visible,
                                             .lse = &logs};
  check(perseid_softmax_forward(plan, &args, workspace, bytes, NULL));
  //! [execute]

  int right = fabs(lse[1] - log(3)) < 1e-6;  // three tokens of logit 0
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int token = 0; token < kTokens; ++token) {
      const float p = probabilities[row * kTokens + token];
      printf("%s%.4f", token ? " " : "", p);
      right = right && (allowed[token] || p == 0);
      sum += p;
    }
    printf("   sum %.6f, lse %.4f\n", sum, lse[row]);
    right = right && fabs(sum - 1) < 1e-6;
  }
  free(workspace);
  perseid_plan_destroy(plan);
  perseid_context_destroy(context);
  return right ? 0 : 1;
}
