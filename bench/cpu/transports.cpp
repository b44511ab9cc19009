// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// mpirun -n 2 transports NAME [ROUNDS]
//
// What carries the data of ranks on CPUs: memory of the host, sockets and MPI, in turns, a group
// for each. All-reduce of some sizes, and all-gather + matmul of f32 2048^3 in all. Rank 0 prints
// the shortest time of each as CSV, whose first column is NAME.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <perseid/collective.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Times = std::map<std::pair<std::string, int64_t>, std::map<std::string, double>>;

constexpr int64_t kSize = 2048;
constexpr double kSeconds = 0.5;  // of each measurement
const char* const kTransports[] = {"memory", "sockets", "mpi"};

// The shortest time of all ranks' body, in microseconds.
template <class Body>
double shortest(const perseid::Group& group, const Body& body) {
  double best = 1e30;
  const auto end = Clock::now() + std::chrono::duration<double>(kSeconds);
  for (int32_t go_on = 1; go_on != 0;) {
    group.barrier();
    const auto start = Clock::now();
    body();
    double mine = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    double sum = 0;
    group.all_reduce(perseid::Tensor(&mine, perseid::f64, {1}),
                     perseid::Tensor(&sum, perseid::f64, {1}));
    best = std::min(best, sum / group.size());
    // Rank 0 says when it is enough.
    float wanted = group.rank() == 0 && Clock::now() < end ? 1 : 0, all = 0;
    group.all_reduce(perseid::Tensor(&wanted, perseid::f32, {1}),
                     perseid::Tensor(&all, perseid::f32, {1}));
    go_on = all > 0 ? 1 : 0;
  }
  return best;
}

std::vector<float> random_values(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> made(static_cast<size_t>(count));
  for (float& value : made) value = values(engine);
  return made;
}

void measure(const std::string& transport, const perseid::Context& context, Times* times) {
  const bool memory = transport == "memory";
  setenv("PERSEID_SHARED_MEMORY", memory ? "1" : "0", 1);
  setenv("PERSEID_TRANSPORT", memory ? "" : transport.c_str(), 1);
  const perseid::Group group;
  const auto keep = [&](const std::string& operation, int64_t bytes, double microseconds) {
    double& kept = (*times)[{operation, bytes}].try_emplace(transport, microseconds).first->second;
    kept = std::min(kept, microseconds);
  };
  for (const int64_t bytes :
       {int64_t{8}, int64_t{4} << 10, int64_t{64} << 10, int64_t{1} << 20, int64_t{16} << 20}) {
    const int64_t count = bytes / 4;
    const std::vector<float> in = random_values(count, 1);
    std::vector<float> out(in.size());
    keep("all-reduce", bytes, shortest(group, [&] {
           group.all_reduce(perseid::Tensor(in.data(), perseid::f32, {count}),
                            perseid::Tensor(out.data(), perseid::f32, {count}));
         }));
  }
  const int64_t m = kSize / group.size(), n = kSize / group.size(), k = kSize;
  const perseid::AllGatherMatmul plan(context, group, {.m = m, .k = k, .products = {{.n = n}}});
  const perseid::Matmul product(context, {.m = kSize, .n = n, .k = k});
  const std::vector<float> a = random_values(m * k, 2), b = random_values(k * n, 3),
                           all = random_values(kSize * k, 4);
  std::vector<float> c(static_cast<size_t>(kSize * n));
  const auto tensor = [](const std::vector<float>& data, int64_t rows, int64_t columns) {
    return perseid::Tensor(data.data(), perseid::f32, {rows, columns});
  };
  perseid::Workspace workspace;
  plan.reserve(workspace);
  product.reserve(workspace);
  keep("all-gather-matmul", m * k * 4, shortest(group, [&] {
         plan.execute({.a = tensor(a, m, k), .b = {tensor(b, k, n)}, .c = {tensor(c, kSize, n)}},
                      workspace);
       }));
  keep("product alone", m * k * 4, shortest(group, [&] {
         product.execute(
             nullptr, {.a = tensor(all, kSize, k), .b = tensor(b, k, n), .c = tensor(c, kSize, n)},
             workspace);
       }));
}

}  // namespace

int main(int count, char** arguments) try {
  const std::string name = count > 1 ? arguments[1] : "mpi";
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 3;
  const perseid::Context context = perseid::Context::cpu(1);
  Times times;
  int32_t rank = 0;
  {
    const perseid::Group group;
    rank = group.rank();
  }
  for (int round = 0; round < rounds; ++round)
    for (const char* transport : kTransports) measure(transport, context, &times);
  if (rank != 0) return 0;
  for (const auto& [what, of] : times)
    for (const char* transport : kTransports)
      std::printf("%s,%s,%lld,%s,%.1f\n", name.c_str(), what.first.c_str(),
                  static_cast<long long>(what.second), transport, of.at(transport));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
