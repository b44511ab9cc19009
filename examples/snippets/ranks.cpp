// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The examples of the API reference for collective.hpp, and those of docs/howto/run_ranks.md. Two
// threads are the ranks.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <perseid/collective.hpp>
#include <thread>

namespace {

int failures = 0;

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++failures;
}

void operations(const perseid::Group& group) {
  //! [group]
  const auto rank = static_cast<float>(group.rank());
  const float mine[2] = {rank, rank};
  float all[4], sum[2];
  group.all_gather({mine, perseid::f32, {2}}, {all, perseid::f32, {4}});
  group.all_reduce({mine, perseid::f32, {2}}, {sum, perseid::f32, {2}});
  group.barrier();
  //! [group]
  expect(all[1] == 0 && all[2] == 1 && sum[0] == 1, "group");

  //! [memory]
  const perseid::GroupMemory memory(group, sizeof(float));
  *static_cast<float*>(memory.data()) = rank;
  group.barrier();
  const float of_peer = *static_cast<const float*>(memory.peer(1 - group.rank()));
  group.barrier();
  //! [memory]
  expect(of_peer == 1 - rank, "memory");
}

void products(const perseid::Context& context, const perseid::Group& group) {
  const float ones[4] = {1, 1, 1, 1};
  float rows[2], square[4];
  const perseid::Tensor full(ones, perseid::f32, {2, 2});
  const perseid::Tensor c(square, perseid::f32, {2, 2}), c_row(rows, perseid::f32, {1, 2});
  perseid::Workspace workspace;

  //! [all_gather_matmul]
  const perseid::AllGatherMatmul gather(context, group, {.m = 1, .k = 2, .products = {{.n = 2}}});
  gather.reserve(workspace);
  gather.execute({.a = full.slice(0, 0, 1), .b = {full}, .c = {c}}, workspace);
  //! [all_gather_matmul]
  expect(square[0] == 2 && square[3] == 2, "all-gather + matmul");

  //! [matmul_reduce]
  const perseid::MatmulReduce reduce(context, group, {.m = 2, .n = 2, .k = 2, .report = true});
  reduce.reserve(workspace);
  reduce.execute({.a = full, .b = full, .c = c_row}, workspace);
  //! [matmul_reduce]
  expect(rows[0] == 4 && rows[1] == 4, "matmul + reduce-scatter");
  //! [overlap_report]
  const std::string report = reduce.overlap_report();  // JSON that chrome://tracing shows
  //! [overlap_report]
  expect(report.front() == '{', "overlap report");

  const float values[2] = {static_cast<float>(group.rank()), 1};
  float result[2], gradient[2], lse = 0;
  const perseid::Tensor row(values, perseid::f32, {1, 1, 1, 2}),
      out(result, perseid::f32, {1, 1, 1, 2}), grad_key(gradient, perseid::f32, {1, 1, 1, 2}),
      lse_of_rank(&lse, perseid::f32, {1, 1, 1});
  //! [context_attention]
  const perseid::ContextAttention attention(
      context, group, {.attention = {.q_len = 1, .kv_len = 1, .head_dim = 2, .backward = true}});
  attention.reserve(workspace);
  attention.forward(
      nullptr, {.query = row, .key = row, .value = row, .out = out, .lse = lse_of_rank}, workspace);
  attention.backward(nullptr,
                     {.query = row,
                      .key = row,
                      .value = row,
                      .out = out,
                      .lse = lse_of_rank,
                      .grad_out = row,
                      .grad_key = grad_key},
                     workspace);
  //! [context_attention]
  expect(group.rank() == 1 || (result[0] == 0.5F && result[1] == 1), "context attention");
}

void long_sequences(const perseid::Context& context, const perseid::Group& group, int64_t rows) {
  //! [long_sequences]
  const perseid::ContextAttention attention(context, group,
                                            {.attention = {.heads = 16,
                                                           .kv_heads = 4,
                                                           .q_len = rows,
                                                           .kv_len = rows,
                                                           .head_dim = 128,
                                                           .mask = perseid::causal_bottom_right(),
                                                           .backward = true},
                                             .placement = perseid::Sharding::kZigzag});
  //! [long_sequences]
  expect(attention.workspace_size() > 0, "long sequences");
}

void go_on(const perseid::Group& group) {
  //! [shrink]
  try {
    group.barrier();
  } catch (const perseid::Error& error) {
    std::puts(error.what());  // it names the rank
    const perseid::Group survivors = group.shrink();
    survivors.barrier();
  }
  //! [shrink]
}

// The first time, a rank is lost.
bool work(const perseid::Group& group) {
  static int times = 0;
  if (++times == 1) throw perseid::Error(PERSEID_PEER_LOST, "rank 1 is lost");
  group.barrier();
  return true;
}
void replace() {
  //! [replace]
  std::optional<perseid::Group> group;
  for (bool done = false; !done;) {
    try {
      group.reset();
      group.emplace();      // all meet again, the new process too
      done = work(*group);  // agree on the step to go on from, then make plans and compute
    } catch (const perseid::Error& error) {
      if (error.status() != PERSEID_PEER_LOST && error.status() != PERSEID_TIMEOUT) throw;
    }
  }
  //! [replace]
  expect(group->size() == 1, "replace");
}

void on_gpus() try {
  //! [on_gpus]
  const perseid::Group group;
  const perseid::Context context = perseid::Context::cuda(group.rank());
  //! [on_gpus]
} catch (const perseid::Error& error) {
  expect(error.status() == PERSEID_UNSUPPORTED, error.what());  // there is no GPU
}

}  // namespace

int main() try {
  const perseid::Context context = perseid::Context::cpu();
  //! [threads]
  const std::vector<perseid::Group> groups = perseid::Group::threads(2);
  std::vector<std::thread> threads;
  for (const perseid::Group& group : groups)
    threads.emplace_back([&] {
      operations(group);
      products(context, group);
      long_sequences(context, group, 8);
      go_on(group);
    });
  for (std::thread& thread : threads) thread.join();
  //! [threads]
  setenv("PERSEID_RANK", "0", 1);
  setenv("PERSEID_WORLD_SIZE", "1", 1);
  replace();
  on_gpus();
  if (failures == 0) std::puts("ok");
  return failures == 0 ? 0 : 1;
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
