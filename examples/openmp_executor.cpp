// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The library works on the threads of the program: here OpenMP's, in a program whose own loops run
// on them too. The bits of a result do not depend on whose threads work, nor on how many.
#include <omp.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <perseid/perseid.hpp>
#include <vector>

//! [executor]
class OpenMpExecutor : public perseid::Executor {
 public:
  explicit OpenMpExecutor(int32_t workers) : workers_(workers) {}
  int32_t workers() const noexcept override { return workers_; }
  // dynamic: tasks need not take equally long. omp_get_thread_num() is below num_threads and
  // belongs to one thread of the team, as `worker` has to be.
  void run(int64_t tasks, Task task) noexcept override {
#pragma omp parallel for schedule(dynamic) num_threads(workers_)
    for (int64_t t = 0; t < tasks; ++t) task(t, omp_get_thread_num());
  }

 private:
  int32_t workers_;
};
//! [executor]

namespace {

constexpr int64_t kBatch = 2, kLength = 300, kHeads = 4, kDim = 64;

std::vector<float> attend(const perseid::Context& context, const std::vector<float>& x) {
  const perseid::Attention attention(context, {.batch = kBatch,
                                               .heads = kHeads,
                                               .q_len = kLength,
                                               .kv_len = kLength,
                                               .head_dim = kDim,
                                               .mask = perseid::causal_bottom_right()});
  std::vector<float> out(x.size());
  const perseid::Dims shape = {kBatch, kLength, kHeads, kDim};
  const perseid::Tensor input(x.data(), shape);
  perseid::Workspace workspace;
  attention.forward(nullptr,
                    {.query = input, .key = input, .value = input, .out = {out.data(), shape}},
                    workspace);
  return out;
}

}  // namespace

int main() try {
  std::vector<float> x(kBatch * kLength * kHeads * kDim);
#pragma omp parallel for
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));

  //! [use]
  OpenMpExecutor executor(omp_get_max_threads());  // outlives the context and its plans
  const auto context = perseid::Context::cpu(executor);
  const std::vector<float> ours = attend(context, x);
  //! [use]

  const std::vector<float> own_pool = attend(perseid::Context::cpu(1), x);
  const bool same = std::memcmp(ours.data(), own_pool.data(), ours.size() * sizeof(float)) == 0;
  std::printf("%d OpenMP threads and one thread of the library's pool: %s bits\n",
              executor.workers(), same ? "the same" : "different");
  return same ? 0 : 1;
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
