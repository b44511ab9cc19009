// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "bench_collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "bench_report.hpp"
#include "harness/element.hpp"
#include "perseid/collective.hpp"
#include "run.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Array {
  std::vector<std::byte> bytes;
  Tensor tensor;

  Array(DType dtype, int64_t rows, int64_t columns) : Array(dtype, harness::Shape{rows, columns}) {}
  Array(DType dtype, const harness::Shape& shape)
      : bytes(static_cast<size_t>(harness::elements_of(shape) * harness::size_of(dtype))),
        tensor(bytes.data(), dtype, Dims(shape)) {
    std::mt19937_64 random(static_cast<uint64_t>(shape[0] * 31 + shape[1]));
    std::uniform_real_distribution<double> values(-1, 1);
    harness::for_each_element(tensor,
                              [&](std::byte* at) { harness::store(dtype, at, values(random)); });
  }
};

constexpr size_t kCount = std::size(kRankParts);

struct Row {
  const char* op;
  const char* mode;
  double seconds[kCount];

  double bound() const { return std::max(seconds[1], seconds[2]); }
  double ratio() const { return seconds[0] / bound(); }
};

// The ranks of one operation, which execute each part at the same time.
class Bench {
 public:
  Bench(const CollectiveSizes& sizes, DType dtype, int64_t threads)
      : sizes_(sizes),
        dtype_(dtype),
        threads_(threads),
        groups_(Group::threads(static_cast<int32_t>(sizes.ranks))) {}

  Row run(RankOp op) {
    std::vector<double> times[kCount];
    std::vector<std::thread> threads;
    std::vector<std::string> failures(groups_.size());
    std::vector<double> slowest(groups_.size());
    std::barrier meet(std::ssize(groups_));
    const auto end = Clock::now() + std::chrono::duration<double>(sizes_.seconds);
    bool go_on = true;
    const auto turn = [&](size_t rank, const auto& parts) {
      for (int round = 0; go_on; ++round) {
        for (size_t part = 0; part < kCount; ++part) {
          meet.arrive_and_wait();
          const auto start = Clock::now();
          parts[part]();
          slowest[rank] = std::chrono::duration<double>(Clock::now() - start).count();
          meet.arrive_and_wait();
          // The first round warms up.
          if (rank == 0 && round > 0)
            times[part].push_back(*std::max_element(slowest.begin(), slowest.end()));
        }
        meet.arrive_and_wait();
        if (rank == 0) go_on = round < 3 || Clock::now() < end;
        meet.arrive_and_wait();
      }
    };
    for (size_t rank = 0; rank < groups_.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          const auto take_turns = [&](const auto& parts) { turn(rank, parts); };
          if (op == RankOp::kGather) gather(groups_[rank], take_turns);
          if (op == RankOp::kReduce) reduce(groups_[rank], false, take_turns);
          if (op == RankOp::kAllReduce) reduce(groups_[rank], true, take_turns);
          if (op == RankOp::kAttend) attend(groups_[rank], take_turns);
        } catch (const Error& error) {
          failures[rank] = error.what();
          meet.arrive_and_drop();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures)
      if (!failure.empty()) throw Error(PERSEID_INTERNAL, failure);
    Row row{name_of(op), "single", {}};
    for (size_t part = 0; part < kCount; ++part) row.seconds[part] = median(times[part]);
    if (op == RankOp::kAttend) row.seconds[1] /= static_cast<double>(sizes_.ranks);
    return row;
  }

 private:
  using Parts = std::function<void()>[kCount];

  template <class Turn>
  void gather(const Group& group, const Turn& turn) const {
    const int64_t rank = group.rank();
    const int64_t begin = rank * sizes_.m / sizes_.ranks,
                  end = (rank + 1) * sizes_.m / sizes_.ranks;
    const Context context = Context::cpu(static_cast<int32_t>(threads_));
    const Array whole(dtype_, sizes_.m, sizes_.k), b(dtype_, sizes_.k, sizes_.n);
    const Array c(dtype_, sizes_.m, sizes_.n), gathered(dtype_, sizes_.m, sizes_.k);
    const Tensor shard = whole.tensor.slice(0, begin, end);
    const AllGatherMatmul fused(context, group,
                                {.dtype = dtype_,
                                 .m = end - begin,
                                 .k = sizes_.k,
                                 .products = {{.n = sizes_.n}},
                                 .fusion = static_cast<Fusion>(fusion_of(sizes_.fusion)),
                                 .canonical = sizes_.canonical});
    const Matmul plain(context, {.dtype = dtype_, .m = sizes_.m, .n = sizes_.n, .k = sizes_.k});
    Workspace workspace, other;
    fused.reserve(workspace);
    plain.reserve(other);
    const AllGatherMatmulArguments arguments = {.a = shard, .b = {b.tensor}, .c = {c.tensor}};
    const Parts parts = {
        [&] { fused.execute(arguments, workspace); },
        [&] { plain.execute(nullptr, {.a = whole.tensor, .b = b.tensor, .c = c.tensor}, other); },
        [&] { group.all_gather(shard, gathered.tensor); }};
    turn(parts);
  }

  template <class Turn>
  void reduce(const Group& group, bool all, const Turn& turn) const {
    const int64_t rank = group.rank();
    const int64_t shard = (rank + 1) * sizes_.m / sizes_.ranks - rank * sizes_.m / sizes_.ranks,
                  rows = all ? sizes_.m : shard;
    const Context context = Context::cpu(static_cast<int32_t>(threads_));
    const Array a(dtype_, sizes_.m, sizes_.k), b(dtype_, sizes_.k, sizes_.n);
    const Array c(dtype_, sizes_.m, sizes_.n), part(dtype_, rows, sizes_.n);
    const MatmulReduce fused(context, group,
                             {.dtype = dtype_,
                              .all_reduce = all,
                              .m = sizes_.m,
                              .n = sizes_.n,
                              .k = sizes_.k,
                              .fusion = static_cast<Fusion>(fusion_of(sizes_.fusion)),
                              .canonical = sizes_.canonical});
    const Matmul plain(context, {.dtype = dtype_, .m = sizes_.m, .n = sizes_.n, .k = sizes_.k});
    Workspace workspace, other;
    fused.reserve(workspace);
    plain.reserve(other);
    const Parts parts = {
        [&] { fused.execute({.a = a.tensor, .b = b.tensor, .c = part.tensor}, workspace); },
        [&] { plain.execute(nullptr, {.a = a.tensor, .b = b.tensor, .c = c.tensor}, other); },
        [&] {
          if (all)
            group.all_reduce(c.tensor, part.tensor);
          else
            group.reduce_scatter(c.tensor, part.tensor);
        }};
    turn(parts);
  }

  // Alone: all rows on every rank; its time is divided by the number of ranks.
  template <class Turn>
  void attend(const Group& group, const Turn& turn) const {
    const int64_t rows = sizes_.length / sizes_.ranks;
    const Context context = Context::cpu(static_cast<int32_t>(threads_));
    const auto options = [&](int64_t q_len, int64_t kv_len) {
      return AttentionOptions{.dtype = dtype_,
                              .heads = sizes_.heads,
                              .kv_heads = sizes_.kv_heads,
                              .q_len = q_len,
                              .kv_len = kv_len,
                              .head_dim = sizes_.head_dim,
                              .mask = causal_bottom_right(),
                              .backward = sizes_.backward};
    };
    const ContextAttention fused(context, group,
                                 {.attention = options(rows, rows),
                                  .placement = Sharding::kZigzag,
                                  .chunks = sizes_.chunks,
                                  .canonical = sizes_.canonical,
                                  .fusion = static_cast<Fusion>(fusion_of(sizes_.fusion))});
    const Attention plain(context, options(sizes_.length, sizes_.length));
    const auto array = [&](int64_t count, int64_t heads) {
      return Array(dtype_, harness::Shape{1, count, heads, sizes_.head_dim});
    };
    const Array query = array(sizes_.length, sizes_.heads),
                key = array(sizes_.length, sizes_.kv_heads),
                value = array(sizes_.length, sizes_.kv_heads),
                out = array(sizes_.length, sizes_.heads), own_out = array(rows, sizes_.heads),
                lse(dtype_ == f64 ? f64 : f32, harness::Shape{1, sizes_.heads, sizes_.length}),
                own_lse(dtype_ == f64 ? f64 : f32, harness::Shape{1, sizes_.heads, rows}),
                grad_out = array(sizes_.length, sizes_.heads),
                grad_query = array(sizes_.length, sizes_.heads),
                grad_key = array(sizes_.length, sizes_.kv_heads),
                grad_value = array(sizes_.length, sizes_.kv_heads);
    const auto forward = [&](int64_t count) {
      return AttentionForward{.query = query.tensor.slice(1, 0, count),
                              .key = key.tensor.slice(1, 0, count),
                              .value = value.tensor.slice(1, 0, count),
                              .out = count == rows ? own_out.tensor : out.tensor,
                              .lse = count == rows ? own_lse.tensor : lse.tensor};
    };
    const auto backward = [&](int64_t count) {
      const AttentionForward of = forward(count);
      return AttentionBackward{.query = of.query,
                               .key = of.key,
                               .value = of.value,
                               .out = of.out,
                               .lse = of.lse,
                               .grad_out = grad_out.tensor.slice(1, 0, count),
                               .grad_query = grad_query.tensor.slice(1, 0, count),
                               .grad_key = grad_key.tensor.slice(1, 0, count),
                               .grad_value = grad_value.tensor.slice(1, 0, count)};
    };
    Workspace workspace, other;
    fused.reserve(workspace);
    plain.reserve(other);
    const int64_t columns = 2 * sizes_.kv_heads * sizes_.head_dim;
    const Array own(dtype_, rows, columns), gathered(dtype_, rows * sizes_.ranks, columns);
    const DType summed = dtype_ == f64 ? f64 : f32;
    const Array partial(summed, rows * sizes_.ranks, columns), sum(summed, rows, columns);
    if (sizes_.backward) {
      fused.forward(nullptr, forward(rows), workspace);
      plain.forward(nullptr, forward(sizes_.length), other);
      const Parts parts = {[&] { fused.backward(nullptr, backward(rows), workspace); },
                           [&] { plain.backward(nullptr, backward(sizes_.length), other); },
                           [&] {
                             group.all_gather(own.tensor, gathered.tensor);
                             group.reduce_scatter(partial.tensor, sum.tensor);
                           }};
      return turn(parts);
    }
    const Parts parts = {[&] { fused.forward(nullptr, forward(rows), workspace); },
                         [&] { plain.forward(nullptr, forward(sizes_.length), other); },
                         [&] { group.all_gather(own.tensor, gathered.tensor); }};
    turn(parts);
  }

  const CollectiveSizes& sizes_;
  DType dtype_;
  int64_t threads_;
  std::vector<Group> groups_;
};

}  // namespace

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

const char* name_of(RankOp op) {
  constexpr const char* kNames[] = {"all-gather-matmul", "matmul-reduce-scatter",
                                    "matmul-all-reduce", "context-attention"};
  return kNames[static_cast<size_t>(op)];
}

int bench_collective(const Common& common, const CollectiveSizes& sizes) {
  if (sizes.ranks < 1 || sizes.ranks > PERSEID_MAX_RANKS)
    bad_input(fmt::format("-n must be from 1 to {} ranks, got {}", PERSEID_MAX_RANKS, sizes.ranks));
  for (const auto& [flag, size] :
       {std::pair{"--m", sizes.m}, std::pair{"--n", sizes.n}, std::pair{"--k", sizes.k},
        std::pair{"--length", sizes.length}, std::pair{"--heads", sizes.heads},
        std::pair{"--kv-heads", sizes.kv_heads}, std::pair{"--head-dim", sizes.head_dim}})
    if (size < 1 || size > 1 << 20)
      bad_input(fmt::format("{} must be from 1 to {}, got {}", flag, 1 << 20, size));
  fusion_of(sizes.fusion);  // ends where it is wrong
  const DType wanted = wanted_dtype(common);
  const DType dtype = wanted != DType::kNone ? wanted : on_gpu(common) ? bf16 : f32;
  const bool float8 = harness::is_float8(dtype);
  if (on_gpu(common) && dtype != bf16 && dtype != f16 && !float8)
    bad_input(fmt::format("--dtype must be bf16, f16, f8e4m3 or f8e5m2 on GPUs, got {}",
                          harness::name_of(dtype)));
  if (!on_gpu(common) && float8)
    bad_input(fmt::format("--dtype {} is measured on GPUs; add --device cuda:0",
                          harness::name_of(dtype)));
  if (float8)
    for (const auto& [flag, size] : {std::pair{"--n", sizes.n}, std::pair{"--k", sizes.k}})
      if (size % 16 != 0)
        bad_input(fmt::format("{} must be a multiple of 16 with --dtype {}, got {}", flag,
                              harness::name_of(dtype), size));
  for (const RankOp op : sizes.ops) {
    if (op == RankOp::kAttend && float8)
      bad_input(fmt::format("--dtype {} is one of products, not of {}", harness::name_of(dtype),
                            name_of(op)));
    if (op == RankOp::kAttend && sizes.length % (2 * sizes.ranks) != 0)
      bad_input(fmt::format("--length must be a multiple of {}, two pieces for each rank, got {}",
                            2 * sizes.ranks, sizes.length));
  }
  if (sizes.sequences != 0) {
    if (!on_gpu(common)) bad_input("--sequences needs GPUs; add --device cuda:0");
    if (sizes.sequences < 0 || sizes.length % (2 * sizes.ranks * sizes.sequences) != 0)
      bad_input(
          fmt::format("--length must be a multiple of two pieces of {} sequences for each "
                      "rank, got {}",
                      sizes.sequences, sizes.length));
  }
  if (sizes.canonical) {
    if (sizes.k % 8 != 0)
      bad_input(fmt::format("--k must be a multiple of 8 with --canonical, got {}", sizes.k));
    if (8 % sizes.ranks != 0)
      bad_input(fmt::format("-n must be 1, 2, 4 or 8 with --canonical, got {}", sizes.ranks));
  }
  if (sizes.chunks < 0 || sizes.chunks > sizes.m)
    bad_input(fmt::format("--chunks must be from 1 to {}, or 0, got {}", sizes.m, sizes.chunks));
  for (const auto& [flag, given] :
       {std::pair{"--samples", &sizes.samples}, {"--report", &sizes.report}})
    if (!given->empty() && !on_gpu(common))
      bad_input(fmt::format("{} needs GPUs; add --device cuda:0", flag));
  std::optional<OutputFile> file;
  if (!sizes.samples.empty()) file.emplace(sizes.samples);
  std::string samples = kSampleColumns;
  // The ranks share the CPUs.
  const auto cpus = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t threads =
      common.threads > 0 ? common.threads : std::max<int64_t>(1, cpus / sizes.ranks);
  Progress progress(common, "bench collective");
  std::vector<Row> measured;
  for (const RankOp op : sizes.ops) {
    if (!on_gpu(common)) {
      measured.push_back(Bench(sizes, dtype, threads).run(op));
      continue;
    }
    const std::vector<RankTimes> times = bench_on_gpus(sizes, dtype, op, &samples);
    Row single{name_of(op), "single", {}}, sustained{name_of(op), "sustained", {}};
    for (size_t part = 0; part < kCount; ++part) {
      single.seconds[part] = times[part].single;
      sustained.seconds[part] = times[part].sustained;
    }
    measured.push_back(single);
    measured.push_back(sustained);
  }
  if (file) file->write(samples);
  nlohmann::json rows = nlohmann::json::array();
  Table table({{"operation"},
               {"mode"},
               {"type"},
               {"ranks", Align::kRight},
               {"fused", Align::kRight},
               {"product alone", Align::kRight},
               {"transfer alone", Align::kRight},
               {"fused / bound", Align::kRight}});
  for (const Row& row : measured) {
    table.add({row.op, row.mode, harness::name_of(dtype), std::to_string(sizes.ranks),
               duration(row.seconds[0]), duration(row.seconds[1]), duration(row.seconds[2]),
               fmt::format("{:.3f}", row.ratio())});
    rows.push_back({{"op", row.op},
                    {"mode", row.mode},
                    {"device", on_gpu(common) ? "cuda" : "cpu"},
                    {"dtype", harness::name_of(dtype)},
                    {"ranks", sizes.ranks},
                    {"threads_of_a_rank", threads},
                    {"m", sizes.m},
                    {"n", sizes.n},
                    {"k", sizes.k},
                    {"length", sizes.length},
                    {"heads", sizes.heads},
                    {"kv_heads", sizes.kv_heads},
                    {"head_dim", sizes.head_dim},
                    {"sequences", sizes.sequences},
                    {"chunks", sizes.chunks},
                    {"fusion", sizes.fusion},
                    {"canonical", sizes.canonical},
                    {"backward", sizes.backward},
                    {"fused_seconds", row.seconds[0]},
                    {"product_seconds", row.seconds[1]},
                    {"transfer_seconds", row.seconds[2]},
                    {"ratio_to_bound", row.ratio()}});
  }
  if (common.json) {
    print("{}\n", nlohmann::json{{"results", rows}}.dump());
  } else {
    print("{}", table.text(output_width()));
  }
  return kOk;
}

}  // namespace perseid::cli
