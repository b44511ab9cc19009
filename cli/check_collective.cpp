// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "check_collective.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "check_report.hpp"
#include "harness/placement.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using harness::Shape;

constexpr int kRounds = 3;                // executions of a plan
constexpr int kProblems = 3;              // of each operation, type and number of ranks
constexpr int64_t kLargest = 90;          // m, n, and k
constexpr int64_t kTimesOnGpu = 6;        // as large there, where tiles are
constexpr int64_t kMostRankDelay = 1500;  // microseconds
constexpr auto kSilence = std::chrono::milliseconds(100);

struct RanksProblem {
  const char* op;
  DType dtype;
  int32_t ranks;
  int64_t m = 0, n = 0, k = 0;
  std::vector<int64_t> shards = {};  // rows of a, or depth
  bool along_n = false;
  Reduction reduction = Reduction::kSum;
  bool canonical = false;
  uint64_t seed = 0;
  DType b_dtype = DType::kNone, out_dtype = DType::kNone;
  Scaling scaling = Scaling::kNone;
  Accumulation accumulation = Accumulation::kPromoted;
  bool sharded_scales = false;

  bool gathers() const { return std::string_view(op) == "all-gather-matmul"; }
  // Both ways, whatever the model says of such small products.
  Fusion fusion() const { return seed % 3 == 0 ? Fusion::kUnfused : Fusion::kFused; }
  bool all() const { return std::string_view(op) == "matmul-all-reduce"; }
  std::string text() const {
    constexpr const char* kScales[] = {"", ", a scale", ", scales of rows"};
    return fmt::format("m {} n {} k {}, shards {}{}{}{}{}{}", m, n, k, fmt::join(shards, ","),
                       along_n ? ", of columns" : "",
                       reduction == Reduction::kAverage ? ", average" : "",
                       canonical ? ", canonical" : "", kScales[static_cast<size_t>(scaling)],
                       sharded_scales ? " in shards" : "");
  }
};

RanksProblem draw(const char* op, DType dtype, int32_t ranks, bool gpu, bool canonical,
                  RandomNumbers& random) {
  RanksProblem problem{.op = op, .dtype = dtype, .ranks = ranks, .canonical = canonical};
  const bool float8 = harness::is_float8(dtype);
  // On a GPU half of them in whole vectors, which other kernels take; 8-bit types only so.
  const int64_t unit = !gpu ? 1 : float8 ? 16 : from(random, 0, 1) == 1 ? 8 : 1;
  const auto size = [&] {
    return unit * from(random, 1, (gpu ? kTimesOnGpu : 1) * kLargest / unit);
  };
  problem.m = size();
  problem.n = size();
  problem.k = size();
  // In canonical order a depth that is spread over ranks is eight leaves, as many on each. On a GPU
  // half of them are whole steps of cuda:sm90, which then takes tensors that TMA takes.
  int64_t even = canonical && !problem.gathers() ? 8 / ranks * size() : 0;
  if (canonical && gpu) {
    const int64_t step = from(random, 0, 1) == 1 ? 64 : 1;
    problem.n = 8 * from(random, 1, kTimesOnGpu * kLargest / 8);
    problem.k = step * from(random, 1, kTimesOnGpu * kLargest / step);
    if (even > 0) even = 8 / ranks * step * from(random, 1, 192 / step);
  }
  for (int32_t rank = 0; rank < ranks; ++rank)
    problem.shards.push_back(even > 0                                      ? even
                             : from(random, 0, 3) == 0 && !(gpu && float8) ? 0
                                                                           : size());
  int64_t sum = 0;
  for (const int64_t shard : problem.shards) sum += shard;
  (problem.gathers() ? problem.m : problem.k) = sum;
  problem.along_n = !problem.gathers() && from(random, 0, 1) == 1;
  // The average of one rank is another one.
  if (!problem.gathers() && !canonical && from(random, 0, 1) == 1)
    problem.reduction = Reduction::kAverage;
  problem.seed = random();
  problem.b_dtype = problem.out_dtype = dtype;
  if (!float8) return problem;
  problem.b_dtype = from(random, 0, 1) == 1 ? f8e4m3 : f8e5m2;
  problem.out_dtype = from(random, 0, 1) == 1 ? f32 : bf16;
  problem.accumulation = static_cast<Accumulation>(from(random, 0, 1));
  if (problem.gathers() || !canonical) problem.scaling = static_cast<Scaling>(from(random, 0, 2));
  problem.sharded_scales =
      problem.gathers() && problem.scaling == Scaling::kRow && from(random, 0, 1) == 1;
  return problem;
}

uint64_t seed_of(const RanksProblem& problem, int round, uint64_t what) {
  return problem.seed + 1000 * static_cast<uint64_t>(round) + what;
}

Array copy_of(const Tensor& part) {
  Array copy(part.dtype(), {part.size(0), part.size(1)});
  harness::assign(copy.tensor, harness::values_of(part));
  return copy;
}

// Those of 8-bit operands with so many rows and columns; none where there are none.
struct Scales {
  Array of_a, of_b;
  Tensor a, b;

  Scales(const RanksProblem& problem, int64_t rows, int64_t columns, uint64_t seed)
      : of_a(f32, {problem.scaling == Scaling::kRow ? rows : 1}, seed),
        of_b(f32, {problem.scaling == Scaling::kRow ? columns : 1}, seed + 1),
        a(problem.scaling == Scaling::kNone ? Tensor() : of_a.tensor),
        b(problem.scaling == Scaling::kNone ? Tensor() : of_b.tensor) {}
};

// A right operand [rows, columns]. One of 8 bits lies column-major, as GPUs take it.
struct RightOperand {
  Array lies;
  Tensor tensor;

  RightOperand(DType dtype, int64_t rows, int64_t columns, uint64_t seed)
      : RightOperand(harness::is_float8(dtype) ? Array(dtype, {columns, rows}, seed)
                                               : Array(dtype, {rows, columns}, seed)) {}
  explicit RightOperand(Array array)
      : lies(std::move(array)),
        tensor(harness::is_float8(lies.tensor.dtype()) ? lies.tensor.transposed() : lies.tensor) {}
  // Rows [from, to).
  RightOperand slice(int64_t from, int64_t to) const {
    const bool transposed = harness::is_float8(lies.tensor.dtype());
    return RightOperand(copy_of(lies.tensor.slice(transposed ? 1 : 0, from, to)));
  }
};

Array multiply(const Context& context, const RanksProblem& problem, const Tensor& a,
               const Tensor& b, const Scales& scales, DType out_dtype) {
  const Matmul matmul(context, {.dtype = a.dtype(),
                                .out_dtype = out_dtype,
                                .m = a.size(0),
                                .n = b.size(1),
                                .k = a.size(1),
                                .b_dtype = b.dtype(),
                                .scaling = problem.scaling,
                                .accumulation = problem.accumulation});
  Array c(out_dtype, {a.size(0), b.size(1)});
  const Memory workspace(context, matmul.workspace_size());
  harness::Placement placement(context);
  matmul.execute(nullptr,
                 {.a = placement.place(a),
                  .b = placement.place(b),
                  .c = placement.place(c.tensor),
                  .scale_a = placement.place(scales.a),
                  .scale_b = placement.place(scales.b)},
                 {workspace});
  context.synchronize();
  placement.fetch(c.tensor);
  return c;
}

std::string compare(const Tensor& got, const Tensor& wanted) {
  const auto values = harness::values_of(got), plain = harness::values_of(wanted);
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != plain[i])
      return fmt::format("element {} is {}, expected {}", i, values[i], plain[i]);
  return "";
}

// The product in canonical order, by a group of one rank: the whole depth at once, or the sum of
// its leaves.
Array canonical_product(const Context& context, const RanksProblem& problem, const Tensor& a,
                        const Tensor& b, const Scales& scales) {
  const std::vector<Group> groups = Group::threads(1);
  Array c(problem.out_dtype, {a.size(0), b.size(1)});
  harness::Placement placement(context);
  const Tensor on_a = placement.place(a), on_b = placement.place(b),
               on_c = placement.place(c.tensor);
  if (problem.gathers()) {
    const AllGatherMatmul plan(context, groups[0],
                               {.dtype = a.dtype(),
                                .m = a.size(0),
                                .k = a.size(1),
                                .products = {{.n = b.size(1), .out_dtype = problem.out_dtype}},
                                .canonical = true,
                                .b_dtype = b.dtype(),
                                .scaling = problem.scaling,
                                .accumulation = problem.accumulation});
    const Memory workspace(context, plan.workspace_size());
    plan.execute(nullptr,
                 {.a = on_a,
                  .b = {on_b},
                  .c = {on_c},
                  .scale_a = placement.place(scales.a),
                  .scale_b = {placement.place(scales.b)}},
                 {workspace});
    context.synchronize();
  } else {
    const MatmulReduce plan(context, groups[0],
                            {.dtype = a.dtype(),
                             .out_dtype = problem.out_dtype,
                             .all_reduce = true,
                             .m = a.size(0),
                             .n = b.size(1),
                             .k = a.size(1),
                             .canonical = true,
                             .b_dtype = b.dtype(),
                             .accumulation = problem.accumulation});
    const Memory workspace(context, plan.workspace_size());
    plan.execute(nullptr, {.a = on_a, .b = on_b, .c = on_c}, {workspace});
    context.synchronize();
  }
  placement.fetch(c.tensor);
  return c;
}

// Of a rank's product; of one that gathers with the columns of the rank.
Scales scales_of(const RanksProblem& problem, int round, int32_t rank) {
  return Scales(problem, problem.m, problem.n,
                seed_of(problem, round, 200 + 2 * static_cast<uint64_t>(rank)));
}

// The sum of the ranks' products in their order, in float32 (float64 of f64), rounded once.
Array reduced(const Context& context, const RanksProblem& problem, int round, const Tensor& a,
              const RightOperand& b) {
  if (problem.canonical)
    return canonical_product(context, problem, a, b.tensor, scales_of(problem, round, 0));
  const DType sums = problem.dtype == f64 ? f64 : f32;
  Array total(sums, {problem.m, problem.n}), out(problem.out_dtype, {problem.m, problem.n});
  int64_t begin = 0;
  for (int32_t rank = 0; rank < problem.ranks; ++rank) {
    const int64_t end = begin + problem.shards[static_cast<size_t>(rank)];
    const Array part = multiply(context, problem, copy_of(a.slice(1, begin, end)).tensor,
                                b.slice(begin, end).tensor, scales_of(problem, round, rank), sums);
    begin = end;
    const std::byte* next = part.bytes.data();
    harness::for_each_element(total.tensor, [&](std::byte* at) {
      // The sum of two floats as doubles, rounded once more, is their sum as floats.
      const double sum = harness::load(sums, at) + harness::load(sums, next);
      harness::store(sums, at, rank == 0 ? harness::load(sums, next) : sum);
      next += harness::size_of(sums);
    });
  }
  const std::byte* next = total.bytes.data();
  harness::for_each_element(out.tensor, [&](std::byte* at) {
    double value = harness::load(sums, next);
    if (problem.reduction == Reduction::kAverage)
      value = harness::round_to(sums, value / problem.ranks);
    harness::store(problem.out_dtype, at, value);
    next += harness::size_of(sums);
  });
  return out;
}

// What one rank does: the same plan several times, with other operands, late by random times.
std::string run_rank(const RanksProblem& problem, const Group& group, const Context& context) {
  const auto rank = static_cast<size_t>(group.rank());
  RandomNumbers random(problem.seed + rank);
  const auto delay = [&] {
    std::this_thread::sleep_for(std::chrono::microseconds(from(random, 0, kMostRankDelay)));
  };
  const int64_t shard = problem.shards[rank];
  int64_t begin = 0;
  for (size_t r = 0; r < rank; ++r) begin += problem.shards[r];
  std::string complaint;
  if (problem.gathers()) {
    const AllGatherMatmul plan(context, group,
                               {.dtype = problem.dtype,
                                .m = shard,
                                .k = problem.k,
                                .products = {{.n = problem.n, .out_dtype = problem.out_dtype}},
                                .chunks = 1 + static_cast<int64_t>(problem.seed % 4),
                                .fusion = problem.fusion(),
                                .canonical = problem.canonical,
                                .b_dtype = problem.b_dtype,
                                .scaling = problem.scaling,
                                .accumulation = problem.accumulation,
                                .sharded_scales = problem.sharded_scales});
    const Memory workspace(context, plan.workspace_size());
    for (int round = 0; round < kRounds && complaint.empty(); ++round) {
      const Array a(problem.dtype, {problem.m, problem.k}, seed_of(problem, round, 0));
      const RightOperand b(problem.b_dtype, problem.k, problem.n,
                           seed_of(problem, round, 1 + rank));
      const Array c(problem.out_dtype, {problem.m, problem.n});
      // The scales of a are the same on all ranks.
      const Scales scales = scales_of(problem, round, 0);
      harness::Placement placement(context);
      const Tensor own = a.tensor.slice(0, begin, begin + shard);
      const Tensor scale_a =
          problem.sharded_scales ? scales.a.slice(0, begin, begin + shard) : scales.a;
      const AllGatherMatmulArguments arguments = {.a = placement.place(own),
                                                  .b = {placement.place(b.tensor)},
                                                  .c = {placement.place(c.tensor)},
                                                  .scale_a = placement.place(scale_a),
                                                  .scale_b = {placement.place(scales.b)}};
      delay();
      plan.execute(nullptr, arguments, {workspace});
      context.synchronize();
      placement.fetch(c.tensor);
      const Array wanted =
          problem.canonical
              ? canonical_product(context, problem, a.tensor, b.tensor, scales)
              : multiply(context, problem, a.tensor, b.tensor, scales, problem.out_dtype);
      complaint = compare(c.tensor, wanted.tensor);
    }
    return complaint;
  }
  const MatmulReduce plan(context, group,
                          {.dtype = problem.dtype,
                           .out_dtype = problem.out_dtype,
                           .scatter_dim = problem.along_n ? ChunkDim::kN : ChunkDim::kM,
                           .reduction = problem.reduction,
                           .all_reduce = problem.all(),
                           .m = problem.m,
                           .n = problem.n,
                           .k = shard,
                           .fusion = problem.fusion(),
                           .canonical = problem.canonical,
                           .b_dtype = problem.b_dtype,
                           .scaling = problem.scaling,
                           .accumulation = problem.accumulation});
  const Memory workspace(context, plan.workspace_size());
  const int32_t dim = problem.along_n ? 1 : 0;
  const int64_t extent = problem.along_n ? problem.n : problem.m;
  const auto cut = [&](size_t r) { return static_cast<int64_t>(r) * extent / problem.ranks; };
  for (int round = 0; round < kRounds && complaint.empty(); ++round) {
    const Array a(problem.dtype, {problem.m, problem.k}, seed_of(problem, round, 0));
    const RightOperand b(problem.b_dtype, problem.k, problem.n, seed_of(problem, round, 100));
    const Array whole = reduced(context, problem, round, a.tensor, b);
    const Array own_a = copy_of(a.tensor.slice(1, begin, begin + shard));
    const RightOperand own_b = b.slice(begin, begin + shard);
    const Scales scales = scales_of(problem, round, group.rank());
    const Tensor wanted =
        problem.all() ? whole.tensor : whole.tensor.slice(dim, cut(rank), cut(rank + 1));
    const Array c(problem.out_dtype, {wanted.size(0), wanted.size(1)});
    harness::Placement placement(context);
    const MatmulReduceArguments arguments = {.a = placement.place(own_a.tensor),
                                             .b = placement.place(own_b.tensor),
                                             .c = placement.place(c.tensor),
                                             .scale_a = placement.place(scales.a),
                                             .scale_b = placement.place(scales.b)};
    delay();
    plan.execute(nullptr, arguments, {workspace});
    context.synchronize();
    placement.fetch(c.tensor);
    complaint = compare(c.tensor, wanted);
  }
  return complaint;
}

}  // namespace

std::string on_ranks(int32_t ranks, const std::function<std::string(const Group&)>& body) {
  std::vector<Group> groups = Group::threads(ranks);
  std::vector<std::string> complaints(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      // Who has a complaint leaves, so that the others do not wait for it.
      const Group group = std::move(groups[rank]);
      try {
        complaints[rank] = body(group);
      } catch (const Error& error) {
        complaints[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < complaints.size(); ++rank)
    if (!complaints[rank].empty()) return fmt::format("rank {}: {}", rank, complaints[rank]);
  return "";
}

namespace {

// The last rank stays away: the others name it, and go on without it.
std::string check_silence(int32_t ranks) {
  return on_ranks(ranks, [&](const Group& group) -> std::string {
    group.barrier();
    const int32_t last = ranks - 1;
    if (group.rank() == last) return "";
    try {
      for (;;) group.barrier(kSilence);
    } catch (const Error& error) {
      const bool right = error.status() == PERSEID_TIMEOUT || error.status() == PERSEID_PEER_LOST;
      if (!right || group.info().failed_rank != last) return error.what();
    }
    const Group survivors = group.shrink(std::chrono::seconds(5));
    const float one = 1;
    float sum = 0;
    survivors.all_reduce(Tensor(&one, f32, {1}), Tensor(&sum, f32, {1}));
    return sum == static_cast<float>(last) ? "" : "the survivors' sum is wrong";
  });
}

}  // namespace

namespace {

// As many ranks as there are GPUs.
std::vector<int32_t> gpu_ranks(bool canonical) {
  std::vector<int32_t> sizes = {2};
  for (const int32_t more : {3, 4}) {
    if (canonical && more == 3) continue;
    try {
      (void)Context::cuda(more - 1);
    } catch (const Error&) {
      break;
    }
    sizes.push_back(more);
  }
  return sizes;
}

}  // namespace

int check_collective(const Common& common, std::optional<int64_t> ranks, uint64_t seed,
                     bool canonical) {
  if (ranks && (*ranks < 1 || *ranks > PERSEID_MAX_RANKS))
    bad_input(fmt::format("-n must be from 1 to {} ranks, got {}", PERSEID_MAX_RANKS, *ranks));
  if (canonical && ranks && 8 % *ranks != 0)
    bad_input(fmt::format("-n must be 1, 2, 4 or 8 with --canonical, got {}", *ranks));
  const bool gpu = on_gpu(common);
  Progress progress(common, "check collective");
  std::vector<int32_t> sizes = {2, 3, 5};
  if (canonical) sizes = {2, 4, 8};
  if (gpu) sizes = gpu_ranks(canonical);
  if (ranks) sizes = {static_cast<int32_t>(*ranks)};
  // Rank r uses GPU r; on the CPU all share one context.
  std::vector<Context> contexts;
  for (int32_t rank = 0; rank < (gpu ? sizes.back() : 1); ++rank)
    contexts.push_back(gpu ? Context::cuda(rank) : open_cpu(common.threads));
  const std::vector<DType> types = {f32, bf16, f16, f64};
  nlohmann::json results = nlohmann::json::array();
  Table table(
      {{"operation"}, {"type"}, {"ranks", Align::kRight}, {"problems", Align::kRight}, {""}});
  int64_t checked = 0, failed = 0;
  std::string failures;
  const auto count = [&](const char* op, DType dtype, int32_t of, int problems,
                         const std::string& complaint) {
    const bool passed = complaint.empty();
    checked += problems;
    failed += !passed;
    const std::string type = dtype == DType::kNone ? "" : harness::name_of(dtype);
    table.add({op, type, std::to_string(of), std::to_string(problems), passed ? "ok" : "FAILED"});
    if (!passed) failures += fmt::format("\n{} {}, {} ranks: {}\n", op, type, of, complaint);
    results.push_back({{"op", op}, {"dtype", type}, {"ranks", of}, {"passed", passed}});
    if (!passed) results.back()["complaint"] = complaint;
  };
  std::vector<DType> product_types = types;
  if (!canonical || !gpu) product_types.insert(product_types.end(), {f8e4m3, f8e5m2});
  const int64_t total =
      std::ssize(sizes) * (3 * std::ssize(product_types) + std::ssize(types)) * kProblems;
  RandomNumbers random(seed);
  for (const int32_t size : sizes) {
    for (const char* op : {"all-gather-matmul", "matmul-reduce-scatter", "matmul-all-reduce"})
      for (const DType dtype : product_types) {
        progress.update(checked, total, fmt::format("{} ranks, {}", size, op));
        std::string complaint;
        int problems = 0;
        while (problems < kProblems && complaint.empty()) {
          const RanksProblem problem = draw(op, dtype, size, gpu, canonical, random);
          complaint = on_ranks(size, [&](const Group& group) {
            return run_rank(problem, group, contexts[gpu ? static_cast<size_t>(group.rank()) : 0]);
          });
          if (!complaint.empty()) complaint += fmt::format(" ({})", problem.text());
          ++problems;
        }
        count(op, dtype, size, problems, complaint);
      }
    for (const DType dtype : types) {
      progress.update(checked, total, fmt::format("{} ranks, context-attention", size));
      std::string complaint;
      int problems = 0;
      for (; problems < kProblems && complaint.empty(); ++problems)
        complaint = check_context_attention(contexts, dtype, size, random(), canonical);
      count("context-attention", dtype, size, problems, complaint);
    }
    if (size > 1) count("silent rank", DType::kNone, size, 1, check_silence(size));
  }
  return report_checks(common, {.table = table.text(output_width()),
                                .failures = failures,
                                .results = std::move(results),
                                .seed = seed,
                                .checked = checked,
                                .failed = failed});
}

}  // namespace perseid::cli
