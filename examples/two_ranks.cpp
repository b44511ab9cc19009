// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Two ranks in ten lines: each has half of the depth of a product, and both get the whole result.
// Under `perseid launch -n 2 -- example_two_ranks` the ranks are processes; alone, two threads.
#include <cstdio>
#include <cstdlib>
#include <perseid/collective.hpp>
#include <thread>
#include <vector>

namespace {

//! [rank]
float multiply(const perseid::Group& group) {
  const perseid::Context context = perseid::Context::cpu(1);
  const std::vector<float> ones(64 * 64, 1.0f);
  std::vector<float> c(64 * 64);
  const perseid::Tensor a(ones.data(), perseid::f32, {64, 64}), b = a;
  const perseid::MatmulReduce matmul(context, group,
                                     {.all_reduce = true, .m = 64, .n = 64, .k = 64});
  perseid::Workspace workspace;
  matmul.reserve(workspace);
  matmul.execute({.a = a, .b = b, .c = {c.data(), perseid::f32, {64, 64}}}, workspace);
  return c[0];
}
//! [rank]

}  // namespace

int main() try {
  if (std::getenv("PERSEID_RANK") != nullptr) {
    //! [process]
    const perseid::Group group;  // rank, size and meeting place are in the environment
    const float sum = multiply(group);
    //! [process]
    std::printf("rank %d of %d: %g\n", group.rank(), group.size(), static_cast<double>(sum));
    return sum == 64.0f * static_cast<float>(group.size()) ? 0 : 1;
  }
  //! [threads]
  const std::vector<perseid::Group> groups = perseid::Group::threads(2);
  float sums[2] = {};
  std::thread first([&] { sums[0] = multiply(groups[0]); });
  std::thread second([&] { sums[1] = multiply(groups[1]); });
  first.join();
  second.join();
  //! [threads]
  std::printf("%g %g\n", static_cast<double>(sums[0]), static_cast<double>(sums[1]));
  return sums[0] == 128 && sums[1] == 128 ? 0 : 1;
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
