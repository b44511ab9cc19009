// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun has started open a group from the environment and compute together. Called
// with the transport and, unless they are two, the ranks that are expected: results have the bits
// of a group whose ranks share memory, where they can. `faults`: a rank calls with a wrong shape,
// then with nothing until a deadline. `silent`: rank 1 opens no group, and rank 0 does not wait for
// it for ever. Ends with 0 where all was right.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "canonical_results.hpp"
#include "perseid/collective.hpp"

namespace {

using namespace std::chrono_literals;
using perseid::Tensor;

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

using Values = std::vector<float>;

Values random_values(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  Values made(static_cast<size_t>(count));
  for (float& value : made) value = values(engine);
  return made;
}

// Forward and backward, with the rows of this rank: its results.
Values attend(const perseid::Group& group, const perseid::Context& context, uint64_t seed) {
  const int64_t rows = 64, heads = 4, kv_heads = 2, dim = 32;
  const perseid::ContextAttention plan(context, group,
                                       {.attention = {.heads = heads,
                                                      .kv_heads = kv_heads,
                                                      .q_len = rows,
                                                      .kv_len = rows,
                                                      .head_dim = dim,
                                                      .mask = perseid::causal_bottom_right(),
                                                      .backward = true},
                                        .placement = perseid::Sharding::kZigzag,
                                        .chunks = 2});
  perseid::Workspace workspace;
  plan.reserve(workspace);
  const int64_t queries = rows * heads * dim, keys = rows * kv_heads * dim;
  const Values q = random_values(queries, seed), k = random_values(keys, seed + 1),
               v = random_values(keys, seed + 2), grad = random_values(queries, seed + 3);
  // out, lse, then the gradients of query, key and value.
  const int64_t counts[] = {queries, rows * heads, queries, keys, keys};
  Values results(static_cast<size_t>(2 * queries + rows * heads + 2 * keys));
  float* at = results.data();
  Tensor views[5];
  for (int i = 0; i < 5; ++i) {
    const int64_t of = i == 0 || i == 2 ? heads : kv_heads;
    views[i] = i == 1 ? Tensor(at, perseid::f32, {1, heads, rows})
                      : Tensor(at, perseid::f32, {1, rows, of, dim});
    at += counts[i];
  }
  const auto view = [&](const Values& data, int64_t of) {
    return Tensor(data.data(), perseid::f32, {1, rows, of, dim});
  };
  plan.forward(nullptr,
               {.query = view(q, heads),
                .key = view(k, kv_heads),
                .value = view(v, kv_heads),
                .out = views[0],
                .lse = views[1]},
               workspace);
  plan.backward(nullptr,
                {.query = view(q, heads),
                 .key = view(k, kv_heads),
                 .value = view(v, kv_heads),
                 .out = views[0],
                 .lse = views[1],
                 .grad_out = view(grad, heads),
                 .grad_query = views[2],
                 .grad_key = views[3],
                 .grad_value = views[4]},
                workspace);
  return results;
}

// The operations of several hosts, with the inputs of this rank: all results, one after the other.
Values compute(const perseid::Group& group, const perseid::Context& context, uint64_t seed) {
  // A shard is longer than what MPI has in its hands at a time.
  const int64_t size = group.size(), rank = group.rank(), k = 2000, n = 90, rows = 256;
  const auto m_of = [](int64_t of_rank) { return 240 + 8 * of_rank; };
  const int64_t m = m_of(rank), gathered = size * (m_of(0) + m_of(size - 1)) / 2;
  const uint64_t own = 1000 * seed + static_cast<uint64_t>(10 * rank);
  Values results;
  const auto matrix = [](const Values& data, int64_t of_rows, int64_t columns) {
    return Tensor(data.data(), perseid::f32, {of_rows, columns});
  };
  const auto keep = [&](const Values& result) {
    results.insert(results.end(), result.begin(), result.end());
  };
  perseid::Workspace workspace;
  const Values a = random_values(m * k, own), b = random_values(k * n, own + 1);
  const perseid::AllGatherMatmul gather(context, group, {.m = m, .k = k, .products = {{.n = n}}});
  Values c(static_cast<size_t>(gathered * n));
  gather.reserve(workspace);
  gather.execute({.a = matrix(a, m, k), .b = {matrix(b, k, n)}, .c = {matrix(c, gathered, n)}},
                 workspace);
  keep(c);
  const Values wide = random_values(rows * k, own + 2);
  for (const bool all : {false, true}) {
    const perseid::MatmulReduce reduce(context, group,
                                       {.all_reduce = all, .m = rows, .n = n, .k = k});
    const int64_t got = all ? rows : (rank + 1) * rows / size - rank * rows / size;
    Values sum(static_cast<size_t>(got * n));
    reduce.reserve(workspace);
    reduce.execute({.a = matrix(wide, rows, k), .b = matrix(b, k, n), .c = matrix(sum, got, n)},
                   workspace);
    keep(sum);
  }
  // Larger than an inbox.
  const int64_t many = 300'001;
  const Values part = random_values(many, own + 3);
  Values sum(part.size()), both(static_cast<size_t>(size * many));
  group.all_reduce(Tensor(part.data(), perseid::f32, {many}),
                   Tensor(sum.data(), perseid::f32, {many}));
  group.all_gather(Tensor(part.data(), perseid::f32, {many}),
                   Tensor(both.data(), perseid::f32, {size * many}));
  keep(sum);
  keep(both);
  keep(attend(group, context, own + 4));
  return results;
}

int expect_transport(const char* transport, int size) {
  const perseid::Group group;
  const perseid::Context context = perseid::Context::cpu(1);
  const perseid::AllGatherMatmul plan(context, group, {.m = 1, .k = 1, .products = {{.n = 1}}});
  int wrong = 0;
  const auto expect = [&](bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "rank %d: wrong: %s\n", group.rank(), what);
    wrong = 1;
  };
  expect(group.size() == size && group.rank() >= 0 && group.rank() < size, "rank or size");
  expect(std::strcmp(plan.info().implementation, transport) == 0, plan.info().implementation);
  // A second group, of ranks that share memory where they are on one host.
  const char* const before = std::getenv("PERSEID_SHARED_MEMORY");
  const std::string shares = before == nullptr ? "" : before;
  setenv("PERSEID_SHARED_MEMORY", "1", 1);
  const perseid::Group other;
  setenv("PERSEID_SHARED_MEMORY", shares.c_str(), 1);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Values results = compute(group, context, 100 * seed);
    const Values same = compute(other, context, 100 * seed);
    expect(results.size() == same.size() &&
               std::memcmp(results.data(), same.data(), results.size() * sizeof(float)) == 0,
           "bits");
  }
  // What is shrunk works on, with all ranks too.
  const perseid::Group again = group.shrink(2s);
  expect(again.size() == size && compute(again, context, 7) == compute(other, context, 7),
         "shrunk");
  // Canonical order: those of one rank alone, in both groups.
  const perseid::Group alone = std::move(perseid::Group::threads(1)[0]);
  for (const perseid::Group* ranks : {&other, &again}) {
    expect(
        canonical_results::gathered(*ranks, context) == canonical_results::gathered(alone, context),
        "canonical bits");
    expect(8 % size != 0 || canonical_results::summed(*ranks, context) ==
                                canonical_results::summed(alone, context),
           "canonical bits of sums");
  }
  return wrong;
}

int expect_faults() {
  const perseid::Group group;
  const Values in(4, 1);
  Values out(4);
  const auto reduce = [&](int64_t count, std::chrono::nanoseconds deadline) {
    try {
      group.all_reduce(Tensor(in.data(), perseid::f32, {count}),
                       Tensor(out.data(), perseid::f32, {count}), perseid::Reduction::kSum,
                       deadline);
    } catch (const perseid::Error& error) {
      return std::pair(error.status(), std::string(error.what()));
    }
    return std::pair(PERSEID_OK, std::string());
  };
  int wrong = 0;
  const auto expect = [&](bool right, const std::string& what) {
    if (right) return;
    std::fprintf(stderr, "rank %d: wrong: %s\n", group.rank(), what.c_str());
    wrong = 1;
  };
  // The same sentence on both, and the group goes on.
  const auto refused = reduce(3 + group.rank(), 10s);
  std::printf("refused: %s\n", refused.second.c_str());
  expect(refused.first == PERSEID_INVALID_ARGUMENT, refused.second);
  expect(reduce(4, 10s).first == PERSEID_OK && out[3] == 2, "the group goes on");
  if (group.rank() == 1) {
    std::this_thread::sleep_for(2s);
    const auto late = reduce(4, 10s);
    expect(late.first == PERSEID_TIMEOUT, late.second);
    return wrong;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto silent = reduce(4, 500ms);
  expect(silent.first == PERSEID_TIMEOUT && silent.second.find("rank 1") != std::string::npos,
         silent.second);
  expect(std::chrono::steady_clock::now() - start < 1500ms, "the deadline");
  return wrong;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count < 2 || count > 3) return 2;
  if (std::strcmp(arguments[1], "silent") == 0) return expect_deadline();
  if (std::strcmp(arguments[1], "faults") == 0) return expect_faults();
  return expect_transport(arguments[1], count == 3 ? std::atoi(arguments[2]) : 2);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
