// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun has started open a group from the environment and compute together. Called with
// the transport that is expected. Ends with 0 where all was right.
#include <cstdio>
#include <cstring>
#include <vector>

#include "perseid/collective.hpp"

int main(int count, char** arguments) try {
  if (count != 2) return 2;
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
