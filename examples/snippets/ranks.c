// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The examples of the API reference for collective.h. Two threads are the ranks.
#include <perseid/perseid.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call) \
  if ((call) != PERSEID_OK) return fprintf(stderr, "%s\n", perseid_last_error()), 1

enum { kRanks = 2 };

static int open_group(void) {
  //! [open]
  const perseid_group_options options = {.struct_size = sizeof options,
                                         .rank = 0,
                                         .size = 1,
                                         .rendezvous = "unix:/tmp/my_ranks",
                                         .token = "a secret"};
  perseid_group_t group = NULL;
  TRY(perseid_group_create(&options, &group));  // NULL: as the environment says
  perseid_group_destroy(group);
  //! [open]
  return 0;
}

static int operations(perseid_group_t group, int rank) {
  //! [barrier]
  TRY(perseid_group_barrier(group, 0));
  //! [barrier]

  //! [all_gather]
  const float mine[2] = {(float)rank, (float)rank};
  float all[4];
  const DLTensor input = perseid_tensor(mine, kDLFloat, 32, PERSEID_DIMS(2), NULL);
  const DLTensor output = perseid_tensor(all, kDLFloat, 32, PERSEID_DIMS(4), NULL);
  TRY(perseid_group_all_gather(group, &input, &output, 0));  // all = {0, 0, 1, 1}
  //! [all_gather]

  //! [reduce_scatter]
  float part[1];
  const DLTensor shard = perseid_tensor(part, kDLFloat, 32, PERSEID_DIMS(1), NULL);
  TRY(perseid_group_reduce_scatter(group, PERSEID_SUM, &input, &shard, 0));  // part = {0 + 1}
  //! [reduce_scatter]

  //! [all_reduce]
  float sum[2];
  const DLTensor sums = perseid_tensor(sum, kDLFloat, 32, PERSEID_DIMS(2), NULL);
  TRY(perseid_group_all_reduce(group, PERSEID_AVERAGE, &input, &sums, 0));  // sum = {0.5, 0.5}
  //! [all_reduce]

  //! [memory]
  void *own = NULL, *peer = NULL;
  TRY(perseid_group_memory_allocate(group, sizeof(float), 0, &own));
  *(float*)own = (float)rank;
  TRY(perseid_group_barrier(group, 0));
  TRY(perseid_group_memory_peer(group, own, 1 - rank, &peer));
  const float of_peer = *(const float*)peer;  // 1 - rank
  TRY(perseid_group_barrier(group, 0));
  perseid_group_memory_free(group, own);
  //! [memory]

  //! [shrink]
  perseid_group_t survivors = NULL;
  perseid_group_info info = {.struct_size = sizeof info};
  TRY(perseid_group_query(group, &info));  // info.failed_rank says who failed
  TRY(perseid_group_shrink(group, 0, &survivors));
  perseid_group_destroy(survivors);
  //! [shrink]
  const int right = all[0] == 0 && all[3] == 1 && part[0] == 1 && sum[1] == 0.5f &&
                    of_peer == (float)(1 - rank) && info.rank == rank;
  return right ? 0 : 1;
}

static int products(perseid_context_t context, perseid_group_t group, int rank) {
  //! [memory_on]
  void *inbox = NULL, *of_peer = NULL;
  TRY(perseid_group_memory_allocate_on(context, group, 1 << 20, 0, &inbox));
  TRY(perseid_group_memory_peer(group, inbox, 1 - rank, &of_peer));  // for kernels and copies
  TRY(perseid_group_barrier(group, 0));
  perseid_group_memory_free(group, inbox);
  //! [memory_on]

  const float ones[4] = {1, 1, 1, 1};
  float rows[4], square[4];
  const DLTensor full = perseid_tensor(ones, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  const DLTensor c_square = perseid_tensor(square, kDLFloat, 32, PERSEID_DIMS(2, 2), NULL);
  const DLTensor c_row = perseid_tensor(rows, kDLFloat, 32, PERSEID_DIMS(1, 2), NULL);
  size_t bytes = 0;

  //! [all_gather_matmul]
  const perseid_gather_product product = {.struct_size = sizeof product, .n = 2};
  const perseid_all_gather_matmul_desc desc = {.struct_size = sizeof desc,
                                               .dtype = PERSEID_F32,
                                               .m = 1,  // of this rank
                                               .k = 2,
                                               .product_count = 1,
                                               .products = &product,
                                               .report = 1};
  perseid_plan_t plan = NULL;
  TRY(perseid_all_gather_matmul_plan_create(context, group, &desc, &plan));
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  void* workspace = malloc(bytes);
  const DLTensor* shard = NULL;  // what is written there is not copied
  TRY(perseid_all_gather_matmul_shard(plan, &shard));
  ((float*)shard->data)[0] = ((float*)shard->data)[1] = (float)(rank + 1);
  const DLTensor *b[1] = {&full}, *c[1] = {&c_square};
  const perseid_all_gather_matmul_args args = {
      .struct_size = sizeof args, .a = shard, .b = b, .c = c};
  TRY(perseid_all_gather_matmul_execute(plan, &args, workspace, bytes, NULL));
  //! [all_gather_matmul]
  //! [overlap_report]
  const char* report = NULL;  // of a plan with .report = 1: JSON that chrome://tracing shows
  TRY(perseid_plan_overlap_report(plan, &report));
  //! [overlap_report]
  if (report[0] != '{') return 1;
  free(workspace);
  perseid_plan_destroy(plan);

  //! [matmul_reduce]
  const perseid_matmul_reduce_desc sum = {
      .struct_size = sizeof sum, .dtype = PERSEID_F32, .m = 2, .n = 2, .k = 2};
  TRY(perseid_matmul_reduce_plan_create(context, group, &sum, &plan));
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  workspace = malloc(bytes);
  const perseid_matmul_reduce_args tensors = {
      .struct_size = sizeof tensors, .a = &full, .b = &full, .c = &c_row};
  TRY(perseid_matmul_reduce_execute(plan, &tensors, workspace, bytes, NULL));
  //! [matmul_reduce]
  free(workspace);
  perseid_plan_destroy(plan);

  // Two positions, one on each rank; one head of two elements.
  float row[2] = {(float)rank, 1}, out[2];
  const DLTensor row_of_rank = perseid_tensor(row, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 2), NULL),
                 out_of_rank = perseid_tensor(out, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 2), NULL);
  //! [context_attention]
  const perseid_attention_desc attention = {.struct_size = sizeof attention,
                                            .dtype = PERSEID_F32,
                                            .heads = 1,
                                            .q_len = 1,  // of this rank
                                            .kv_len = 1,
                                            .head_dim = 2,
                                            .gradients = PERSEID_GRAD_KEY};
  const perseid_context_attention_desc over_ranks = {.struct_size = sizeof over_ranks,
                                                     .attention = &attention};
  TRY(perseid_context_attention_plan_create(context, group, &over_ranks, &plan));
  TRY(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes));
  workspace = malloc(bytes);
  float lse = 0;
  const DLTensor lse_of_rank = perseid_tensor(&lse, kDLFloat, 32, PERSEID_DIMS(1, 1, 1), NULL);
  const perseid_attention_forward_args forward = {.struct_size = sizeof forward,
                                                  .query = &row_of_rank,
                                                  .key = &row_of_rank,
                                                  .value = &row_of_rank,
                                                  .out = &out_of_rank,
                                                  .lse = &lse_of_rank};
  const perseid_context_attention_forward_args ranks_forward = {.struct_size = sizeof ranks_forward,
                                                                .attention = &forward};
  TRY(perseid_context_attention_forward(plan, &ranks_forward, workspace, bytes, NULL));
  free(workspace);
  TRY(perseid_plan_workspace_size(plan, PERSEID_BACKWARD, &bytes));
  workspace = malloc(bytes);
  float grad[2];
  const DLTensor grad_of_rank = perseid_tensor(grad, kDLFloat, 32, PERSEID_DIMS(1, 1, 1, 2), NULL);
  const perseid_attention_backward_args backward = {.struct_size = sizeof backward,
                                                    .query = &row_of_rank,
                                                    .key = &row_of_rank,
                                                    .value = &row_of_rank,
                                                    .out = &out_of_rank,
                                                    .lse = &lse_of_rank,
                                                    .grad_out = &row_of_rank,
                                                    .grad_key = &grad_of_rank};
  const perseid_context_attention_backward_args ranks_backward = {
      .struct_size = sizeof ranks_backward, .attention = &backward};
  TRY(perseid_context_attention_backward(plan, &ranks_backward, workspace, bytes, NULL));
  //! [context_attention]
  free(workspace);
  perseid_plan_destroy(plan);
  // Rank 0 has a query of 0, 1, which sees both keys alike.
  if (rank == 0 && (out[0] != 0.5F || out[1] != 1)) return 1;
  return square[0] == 2 && square[3] == 4 && rows[0] == 4 && rows[1] == 4 ? 0 : 1;
}

struct rank {
  perseid_context_t context;
  perseid_group_t group;
  int number, result;
};

static void* run(void* state) {
  struct rank* rank = state;
  rank->result =
      products(rank->context, rank->group, rank->number) || operations(rank->group, rank->number);
  return NULL;
}

int main(void) {
  if (open_group() != 0) return 1;
  perseid_context_t context = NULL;
  TRY(perseid_context_create(NULL, &context));
  //! [threads]
  perseid_group_t groups[kRanks];
  TRY(perseid_group_create_threads(kRanks, groups));  // groups[r] is for the r-th thread
  //! [threads]
  struct rank ranks[kRanks];
  pthread_t threads[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    ranks[r] = (struct rank){context, groups[r], r, 1};
    if (pthread_create(&threads[r], NULL, run, &ranks[r]) != 0) return 1;
  }
  int failed = 0;
  for (int r = 0; r < kRanks; ++r) {
    pthread_join(threads[r], NULL);
    failed |= ranks[r].result;
    perseid_group_destroy(groups[r]);
  }
  perseid_context_destroy(context);
  if (!failed) puts("ok");
  return failed;
}
