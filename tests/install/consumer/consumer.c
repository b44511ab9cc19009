// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <perseid/perseid.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(perseid_status status) {
  if (status != PERSEID_OK) fprintf(stderr, "%s\n", perseid_last_error());
  return status != PERSEID_OK;
}

int main(void) {
  float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, 0, 1, 1, 1}, c[4];
  const DLTensor a_view = perseid_tensor(a, kDLFloat, 32, PERSEID_DIMS(2, 3), NULL);
  const DLTensor b_view = perseid_tensor(b, kDLFloat, 32, PERSEID_DIMS(3, 2), NULL);
  const DLTensor c_view = perseid_tensor(c, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  const perseid_matmul_desc desc = {
      .struct_size = sizeof desc, .dtype = PERSEID_F32, .m = 2, .n = 2, .k = 3};
  const perseid_matmul_args args = {
      .struct_size = sizeof args, .a = &a_view, .b = &b_view, .c = &c_view};
  perseid_context_t context = NULL;
  perseid_plan_t plan = NULL;
  size_t bytes = 0;
  if (failed(perseid_context_create(NULL, &context)) ||
      failed(perseid_matmul_plan_create(context, &desc, &plan)) ||
      failed(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes)))
    return 1;
  void* workspace = malloc(bytes);
  if (failed(perseid_matmul_execute(plan, &args, workspace, bytes, NULL))) return 1;
  printf("%g %g\n%g %g\n", c[0], c[1], c[2], c[3]);
  free(workspace);
  perseid_plan_destroy(plan);
  perseid_context_destroy(context);
  return c[0] == 4 && c[3] == 11 ? 0 : 1; /* 4 5 10 11 */
}
