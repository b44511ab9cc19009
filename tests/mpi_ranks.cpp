// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun has started open a group from the environment and compute together. Called with
// the transport that is expected, or with `silent`: then rank 1 opens none, and rank 0 does not
// wait for it for ever. Ends with 0 where all was right.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "perseid/collective.hpp"

namespace {

using namespace std::chrono_literals;

int expect_deadline() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  if (rank == nullptr || *rank == '1') {
    std::this_thread::sleep_for(3s);
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    const perseid::Group group(perseid::GroupOptions{.deadline = 1s});
  } catch (const perseid::Error& error) {
    const bool in_time = std::chrono::steady_clock::now() - start < 2500ms;
    // mpirun may call it a failure that MPI was not finalised.
    std::printf("%s: %s\n", in_time && error.status() == PERSEID_TIMEOUT ? "as expected" : "wrong",
                error.what());
    return 0;
  }
  return 1;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 2) return 2;
  if (std::strcmp(arguments[1], "silent") == 0) return expect_deadline();
  const perseid::Group group;
  const perseid::Context context = perseid::Context::cpu(1);
  const int64_t size = group.size(), m = 24, n = 20, k = 16;
  const perseid::AllGatherMatmul gather(context, group, {.m = m, .k = k, .products = {{.n = n}}});
  const perseid::MatmulReduce reduce(context, group, {.all_reduce = true, .m = m, .n = n, .k = k});
  const std::vector<float> a(static_cast<size_t>(m * k), static_cast<float>(group.rank() + 1));
  const std::vector<float> b(static_cast<size_t>(k * n), 1);
  std::vector<float> c(static_cast<size_t>(size * m * n)), sum(static_cast<size_t>(m * n));
  const auto tensor = [](const std::vector<float>& data, int64_t rows, int64_t columns) {
    return perseid::Tensor(data.data(), perseid::f32, {rows, columns});
  };
  perseid::Workspace workspace;
  gather.reserve(workspace);
  reduce.reserve(workspace);
  int wrong = std::strcmp(gather.info().implementation, arguments[1]) == 0 ? 0 : 1;
  if (size != 2 || group.rank() < 0 || group.rank() > 1) wrong = 1;
  for (int repeat = 0; repeat < 20; ++repeat) {
    gather.execute({.a = tensor(a, m, k), .b = {tensor(b, k, n)}, .c = {tensor(c, size * m, n)}},
                   workspace);
    reduce.execute({.a = tensor(a, m, k), .b = tensor(b, k, n), .c = tensor(sum, m, n)}, workspace);
    for (size_t i = 0; i < c.size(); ++i)
      if (c[i] != static_cast<float>(k) * static_cast<float>(i / sum.size() + 1)) wrong = 1;
    for (const float value : sum)
      if (value != static_cast<float>(k * size * (size + 1) / 2)) wrong = 1;
  }
  group.barrier();
  if (wrong != 0)
    std::fprintf(stderr, "rank %d: wrong, by %s\n", group.rank(), gather.info().implementation);
  return wrong;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
