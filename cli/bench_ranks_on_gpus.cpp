// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid bench collective --device cuda:0`: a thread for each rank, rank r on GPU r. The host
// times single executions, each after a pause in which all GPUs are idle, its own calls included,
// and executions back to back; of all ranks the slowest counts. Ranks sleep the pause, then meet
// spinning: threads that a barrier wakes start one after the other, and the first one's clock would
// run until the last one's calls.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "bench_collective.hpp"
#include "harness/element.hpp"
#include "perseid/collective.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPause = 3ms;
constexpr double kSustained = 20e-3;  // seconds of executions back to back
constexpr int kReported = 8;          // executions, of which the last is reported

// Random numbers of an 8-bit type, or of bf16, of which types of more bits take two as one.
const std::vector<std::byte>& block_of(DType dtype) {
  const auto make = [](DType of) {
    constexpr size_t kElements = 8 << 20;
    const auto size = static_cast<size_t>(harness::size_of(of));
    std::vector<std::byte> block(kElements * size);
    std::mt19937 random(7);
    std::normal_distribution<float> values;
    for (size_t at = 0; at < block.size(); at += size)
      harness::store(of, block.data() + at, static_cast<double>(values(random)));
    return block;
  };
  if (dtype == f8e4m3) {
    static const std::vector<std::byte> kBlock = make(f8e4m3);
    return kBlock;
  }
  if (dtype == f8e5m2) {
    static const std::vector<std::byte> kBlock = make(f8e5m2);
    return kBlock;
  }
  static const std::vector<std::byte> kBlock = make(bf16);
  return kBlock;
}

// A matrix on the GPU, of a block of random numbers that repeats.
struct Matrix {
  Memory memory;
  Tensor tensor;

  Matrix(const Context& context, int32_t gpu, DType dtype, int64_t rows, int64_t columns)
      : memory(context, static_cast<size_t>(rows * columns * harness::size_of(dtype))),
        tensor(memory.data(), dtype, {rows, columns}, {}, {kDLCUDA, gpu}) {
    const std::vector<std::byte>& block = block_of(dtype);
    auto* data = static_cast<std::byte*>(memory.data());
    for (size_t at = 0; at < memory.size();) {
      const size_t part = std::min(memory.size() - at, block.size());
      context.copy(data + at, block.data(), part);
      at += part;
    }
  }
};

// What the products of one dtype are: those of 8 bits have scales of rows and columns, a
// column-major b and results in bf16.
struct ProductKind {
  DType dtype, out_dtype;
  Scaling scaling;

  explicit ProductKind(DType of)
      : dtype(of),
        out_dtype(harness::is_float8(of) ? bf16 : of),
        scaling(harness::is_float8(of) ? Scaling::kRow : Scaling::kNone) {}
  bool scaled() const { return scaling != Scaling::kNone; }
};

// A right operand [rows, columns], and the scales of its columns and of a's rows.
struct RightMatrix {
  Matrix lies, row_scales, column_scales;
  Tensor tensor, scale_a, scale_b;

  RightMatrix(const Context& context, int32_t gpu, const ProductKind& kind, int64_t m, int64_t rows,
              int64_t columns)
      : lies(context, gpu, kind.dtype, kind.scaled() ? columns : rows,
             kind.scaled() ? rows : columns),
        row_scales(context, gpu, f32, 1, kind.scaled() ? m : 1),
        column_scales(context, gpu, f32, 1, kind.scaled() ? columns : 1),
        tensor(kind.scaled() ? lies.tensor.transposed() : lies.tensor),
        scale_a(kind.scaled() ? row_scales.tensor.select(0, 0) : Tensor()),
        scale_b(kind.scaled() ? column_scales.tensor.select(0, 0) : Tensor()) {}
};

using Part = std::function<void()>;

// Where ranks meet, spinning.
class Meeting {
 public:
  explicit Meeting(int64_t ranks) : ranks_(ranks), missing_(ranks) {}

  void arrive_and_wait() {
    const uint32_t seen = meetings_;
    arrive();
    while (meetings_ == seen) {
    }
  }
  // The others meet without this rank from now on.
  void arrive_and_drop() {
    --ranks_;
    arrive();
  }

 private:
  void arrive() {
    if (--missing_ > 0) return;
    missing_ = ranks_.load();
    ++meetings_;
  }

  std::atomic<int64_t> ranks_, missing_;
  std::atomic<uint32_t> meetings_{0};
};

// What one rank has timed; times of several executions are divided by their number.
struct Sample {
  size_t part = 0;
  int round = 0;
  int executions = 0;  // back to back
  Clock::time_point start = {};
  double enqueued = 0, seconds = 0;  // until the host has made its calls, and until its GPU ended
};

// The ranks of one operation, which execute each part at the same time.
class Ranks {
 public:
  Ranks(const Context& context, const Group& group, Meeting& meet, std::vector<double>& slowest,
        std::vector<Sample>& samples, const CollectiveSizes& sizes)
      : context_(context),
        group_(group),
        meet_(meet),
        slowest_(slowest),
        samples_(samples),
        sizes_(sizes) {}

  // Seconds of each part, single and back to back; all ranks return the same numbers. `fused` is
  // the plan of the first part.
  template <class Plan>
  std::vector<RankTimes> time(const Plan& fused, const std::vector<Part>& parts) {
    const std::vector<RankTimes> times = time(parts);
    if (sizes_.report.empty()) return times;
    Sample none;
    once(parts.front(), kReported, kPause, &none);
    write_report(of_rank(sizes_.report, group_.rank()), fused.overlap_report());
    return times;
  }

 private:
  std::vector<RankTimes> time(const std::vector<Part>& parts) {
    Sample none;
    for (const Part& part : parts) once(part, 3, 0ms, &none);
    std::vector<std::vector<double>> single(parts.size()), sustained(parts.size());
    const auto end = Clock::now() + std::chrono::duration<double>(sizes_.seconds);
    for (int round = 0; agree(round < 5 || Clock::now() < end); ++round)
      for (size_t i = 0; i < parts.size(); ++i) {
        Sample sample{.part = i, .round = round};
        single[i].push_back(once(parts[i], 1, kPause, &sample));
        samples_.push_back(sample);
        const int times = std::clamp(static_cast<int>(kSustained / single[i].front()), 2, 64);
        if (round % 3 != 0) continue;
        sustained[i].push_back(once(parts[i], times, kPause, &sample));
        samples_.push_back(sample);
      }
    std::vector<RankTimes> times;
    for (size_t i = 0; i < parts.size(); ++i)
      times.push_back({median(single[i]), median(sustained[i])});
    return times;
  }
  // The time of the slowest rank, and what this one adds to the sample.
  double once(const Part& part, int times, std::chrono::milliseconds pause, Sample* sample) {
    context_.synchronize();
    std::this_thread::sleep_for(pause);
    meet_.arrive_and_wait();
    const auto start = Clock::now();
    const auto since_start = [&] {
      return std::chrono::duration<double>(Clock::now() - start).count() / times;
    };
    for (int i = 0; i < times; ++i) part();
    sample->executions = times;
    sample->start = start;
    sample->enqueued = since_start();
    context_.synchronize();
    sample->seconds = since_start();
    slowest_[static_cast<size_t>(group_.rank())] = sample->seconds;
    meet_.arrive_and_wait();
    const double slowest = *std::max_element(slowest_.begin(), slowest_.end());
    meet_.arrive_and_wait();
    return slowest;
  }
  bool agree(bool go_on) {
    slowest_[static_cast<size_t>(group_.rank())] = go_on ? 1 : 0;
    meet_.arrive_and_wait();
    const bool first = slowest_[0] == 1;
    meet_.arrive_and_wait();
    return first;
  }

  const Context& context_;
  const Group& group_;
  Meeting& meet_;
  std::vector<double>& slowest_;
  std::vector<Sample>& samples_;
  const CollectiveSizes& sizes_;
};

std::vector<RankTimes> gather(const Context& context, const Group& group,
                              const CollectiveSizes& sizes, DType dtype, Ranks& ranks) {
  const int32_t gpu = group.rank();
  const int64_t m = sizes.m / sizes.ranks, k = sizes.k;
  const ProductKind kind(dtype);
  // Each rank has the scales of its own rows.
  const auto plan_of = [&](int64_t n, int64_t chunks, Scaling scaling) {
    return AllGatherMatmul(context, group,
                           {.dtype = dtype,
                            .m = m,
                            .k = k,
                            .products = {{.n = n, .out_dtype = kind.out_dtype}},
                            .chunks = chunks,
                            .fusion = static_cast<Fusion>(fusion_of(sizes.fusion)),
                            .report = !sizes.report.empty(),
                            .canonical = sizes.canonical,
                            .scaling = scaling,
                            .sharded_scales = scaling == Scaling::kRow});
  };
  const AllGatherMatmul fused = plan_of(sizes.n, sizes.chunks, kind.scaling),
                        transfer = plan_of(0, 1, Scaling::kNone);
  const Matmul plain(context, {.dtype = dtype,
                               .out_dtype = kind.out_dtype,
                               .m = m * sizes.ranks,
                               .n = sizes.n,
                               .k = k,
                               .scaling = kind.scaling});
  const Matrix whole(context, gpu, dtype, m * sizes.ranks, k),
      c(context, gpu, kind.out_dtype, m * sizes.ranks, sizes.n);
  const RightMatrix b(context, gpu, kind, m * sizes.ranks, k, sizes.n);
  for (const AllGatherMatmul* plan : {&fused, &transfer})
    context.copy(plan->shard().data(), whole.memory.data(),
                 static_cast<size_t>(m * k * harness::size_of(dtype)));
  const Tensor none(b.lies.memory.data(), dtype, {k, 0}, {}, {kDLCUDA, gpu});
  const Tensor nothing(c.memory.data(), kind.out_dtype, {m * sizes.ranks, 0}, {}, {kDLCUDA, gpu});
  const Tensor own_scales = kind.scaled() ? b.scale_a.slice(0, 0, m) : Tensor();
  const Memory first(context, fused.workspace_size() + 1),
      second(context, plain.workspace_size() + 1);
  return ranks.time(fused, {[&] {
                              fused.execute({.a = fused.shard(),
                                             .b = {b.tensor},
                                             .c = {c.tensor},
                                             .scale_a = own_scales,
                                             .scale_b = {b.scale_b}},
                                            std::span<std::byte>(first));
                            },
                            [&] {
                              plain.execute(nullptr,
                                            {.a = whole.tensor,
                                             .b = b.tensor,
                                             .c = c.tensor,
                                             .scale_a = b.scale_a,
                                             .scale_b = b.scale_b},
                                            std::span<std::byte>(second));
                            },
                            [&] {
                              transfer.execute({.a = transfer.shard(), .b = {none}, .c = {nothing}},
                                               std::span<std::byte>());
                            }});
}

// Of one rank's shard, or, `all`, of the whole result.
std::vector<RankTimes> reduce(bool all, const Context& context, const Group& group,
                              const CollectiveSizes& sizes, DType dtype, Ranks& ranks) {
  const int32_t gpu = group.rank();
  const int64_t m = sizes.m / sizes.ranks * sizes.ranks, n = sizes.n, k = sizes.k;
  const ProductKind kind(dtype);
  const MatmulReduce fused(context, group,
                           {.dtype = dtype,
                            .out_dtype = kind.out_dtype,
                            .all_reduce = all,
                            .m = m,
                            .n = n,
                            .k = k,
                            .fusion = static_cast<Fusion>(fusion_of(sizes.fusion)),
                            .report = !sizes.report.empty(),
                            .canonical = sizes.canonical,
                            .scaling = kind.scaling});
  const Matmul plain(context, {.dtype = dtype,
                               .out_dtype = kind.out_dtype,
                               .m = m,
                               .n = n,
                               .k = k,
                               .scaling = kind.scaling});
  // What leaves a rank: partial sums of the others' shards, then the own shard of the result.
  const auto transfer_of = [&](DType type) {
    return AllGatherMatmul(context, group,
                           {.dtype = type, .m = m / sizes.ranks, .k = n, .products = {{.n = 0}}});
  };
  const AllGatherMatmul sums = transfer_of(f32), results = transfer_of(kind.out_dtype);
  const Matrix a(context, gpu, dtype, m, k), c(context, gpu, kind.out_dtype, m, n),
      part(context, gpu, kind.out_dtype, all ? m : m / sizes.ranks, n);
  const RightMatrix b(context, gpu, kind, m, k, n);
  const auto transfer = [&](const AllGatherMatmul& plan, DType type) {
    const Tensor none(b.lies.memory.data(), type, {n, 0}, {}, {kDLCUDA, gpu});
    const Tensor nothing(c.memory.data(), type, {m, 0}, {}, {kDLCUDA, gpu});
    plan.execute({.a = plan.shard(), .b = {none}, .c = {nothing}}, std::span<std::byte>());
  };
  const Memory first(context, fused.workspace_size() + 1),
      second(context, plain.workspace_size() + 1);
  return ranks.time(fused, {[&] {
                              fused.execute({.a = a.tensor,
                                             .b = b.tensor,
                                             .c = part.tensor,
                                             .scale_a = b.scale_a,
                                             .scale_b = b.scale_b},
                                            std::span<std::byte>(first));
                            },
                            [&] {
                              plain.execute(nullptr,
                                            {.a = a.tensor,
                                             .b = b.tensor,
                                             .c = c.tensor,
                                             .scale_a = b.scale_a,
                                             .scale_b = b.scale_b},
                                            std::span<std::byte>(second));
                            },
                            [&] {
                              transfer(sums, f32);
                              if (all) transfer(results, kind.out_dtype);
                            }});
}

// Where equal sequences begin, and the end of the last one.
std::vector<int32_t> cumulative_lengths(const CollectiveSizes& sizes) {
  std::vector<int32_t> begins;
  for (int64_t i = 0; i <= sizes.sequences; ++i)
    begins.push_back(static_cast<int32_t>(i * sizes.length / sizes.sequences));
  return begins;
}

// What attention reads and writes on one GPU: all rows of the sequences, or the first of them.
class AttentionOperands {
 public:
  // over_ranks: lengths are in memory of the host.
  AttentionOperands(const Context& context, int32_t gpu, const CollectiveSizes& sizes, DType dtype,
                    bool over_ranks)
      : gpu_(gpu),
        sizes_(sizes),
        dtype_(dtype),
        query_(query_rows(context)),
        key_(key_rows(context)),
        value_(key_rows(context)),
        out_(query_rows(context)),
        grad_out_(query_rows(context)),
        grad_query_(query_rows(context)),
        grad_key_(key_rows(context)),
        grad_value_(key_rows(context)),
        lse_(context, gpu, f32, sizes.heads, sizes.length),
        lengths_(sizes.sequences == 0 ? std::vector<int32_t>(1) : cumulative_lengths(sizes)),
        gpu_lengths_(context, lengths_.size() * sizeof(int32_t)) {
    context.copy(gpu_lengths_.data(), lengths_.data(), gpu_lengths_.size());
    if (!ragged()) return;
    const Dims count{std::ssize(lengths_)};
    given_lengths_ = over_ranks ? Tensor(lengths_.data(), i32, count)
                                : Tensor(gpu_lengths_.data(), i32, count, {}, {kDLCUDA, gpu});
  }

  AttentionForward forward(int64_t rows) const {
    return {.query = first(query_, sizes_.heads, rows),
            .key = first(key_, sizes_.kv_heads, rows),
            .value = first(value_, sizes_.kv_heads, rows),
            .cu_seqlens_q = given_lengths_,
            .cu_seqlens_kv = given_lengths_,
            .out = first(out_, sizes_.heads, rows),
            .lse = Tensor(lse_.memory.data(), f32,
                          ragged() ? Dims{sizes_.heads, rows} : Dims{1, sizes_.heads, rows}, {},
                          {kDLCUDA, gpu_})};
  }
  AttentionBackward backward(int64_t rows) const {
    const AttentionForward of = forward(rows);
    return {.query = of.query,
            .key = of.key,
            .value = of.value,
            .cu_seqlens_q = of.cu_seqlens_q,
            .cu_seqlens_kv = of.cu_seqlens_kv,
            .out = of.out,
            .lse = of.lse,
            .grad_out = first(grad_out_, sizes_.heads, rows),
            .grad_query = first(grad_query_, sizes_.heads, rows),
            .grad_key = first(grad_key_, sizes_.kv_heads, rows),
            .grad_value = first(grad_value_, sizes_.kv_heads, rows)};
  }

 private:
  Matrix query_rows(const Context& context) const {
    return {context, gpu_, dtype_, sizes_.length, sizes_.heads * sizes_.head_dim};
  }
  Matrix key_rows(const Context& context) const {
    return {context, gpu_, dtype_, sizes_.length, sizes_.kv_heads * sizes_.head_dim};
  }
  bool ragged() const { return sizes_.sequences != 0; }
  Tensor first(const Matrix& whole, int64_t heads, int64_t rows) const {
    const int64_t dim = sizes_.head_dim;
    return {whole.memory.data(),
            dtype_,
            ragged() ? Dims{rows, heads, dim} : Dims{1, rows, heads, dim},
            {},
            {kDLCUDA, gpu_}};
  }

  int32_t gpu_;
  const CollectiveSizes& sizes_;
  DType dtype_;
  Matrix query_, key_, value_, out_, grad_out_, grad_query_, grad_key_, grad_value_, lse_;
  std::vector<int32_t> lengths_;  // of whole sequences
  Memory gpu_lengths_;
  Tensor given_lengths_;
};

// Alone: one GPU has all rows, and its time is divided by the number of ranks.
std::vector<RankTimes> attend(const Context& context, const Group& group,
                              const CollectiveSizes& sizes, DType dtype, Ranks& ranks) {
  const int64_t rows = sizes.length / sizes.ranks;
  const auto options = [&](int64_t length) {
    const bool ragged = sizes.sequences != 0;
    const int64_t batch = ragged ? sizes.sequences : 1, total = ragged ? length : 0;
    return AttentionOptions{.dtype = dtype,
                            .batch = batch,
                            .heads = sizes.heads,
                            .kv_heads = sizes.kv_heads,
                            .q_len = length / batch,
                            .kv_len = length / batch,
                            .head_dim = sizes.head_dim,
                            .mask = causal_bottom_right(),
                            .ragged = ragged,
                            .total_q = total,
                            .total_kv = total,
                            .backward = sizes.backward};
  };
  const ContextAttention fused(context, group,
                               {.attention = options(rows),
                                .placement = Sharding::kZigzag,
                                .chunks = sizes.chunks,
                                .report = !sizes.report.empty(),
                                .canonical = sizes.canonical,
                                .fusion = static_cast<Fusion>(fusion_of(sizes.fusion))});
  const Attention plain(context, options(sizes.length));
  // What arrives of keys and values, and what leaves of their gradients.
  const int64_t moved = 2 * sizes.kv_heads * sizes.head_dim;
  const auto transfer_of = [&](DType type) {
    return AllGatherMatmul(context, group,
                           {.dtype = type, .m = rows, .k = moved, .products = {{.n = 0}}});
  };
  const AllGatherMatmul keys = transfer_of(dtype), gradients = transfer_of(f32);
  // The results of a rank are its own: backward reads those that its forward has written.
  const AttentionOperands whole(context, group.rank(), sizes, dtype, false),
      shard(context, group.rank(), sizes, dtype, true);
  const auto transfer = [&](const AllGatherMatmul& plan, DType type) {
    void* const data = plan.shard().data();
    const Tensor none(data, type, {moved, 0}, {}, {kDLCUDA, group.rank()});
    const Tensor nothing(data, type, {sizes.length, 0}, {}, {kDLCUDA, group.rank()});
    plan.execute({.a = plan.shard(), .b = {none}, .c = {nothing}}, std::span<std::byte>());
  };
  const auto workspace_of = [&](const auto& plan) {
    return Memory(context,
                  std::max(plan.workspace_size(), plan.workspace_size(Direction::kBackward)) + 1);
  };
  const Memory first = workspace_of(fused), second = workspace_of(plain);
  const std::span<std::byte> own(first), other(second);
  const Part attend_shard = [&] { fused.forward(nullptr, shard.forward(rows), own); },
             attend_all = [&] { plain.forward(nullptr, whole.forward(sizes.length), other); };
  attend_shard();
  attend_all();
  std::vector<RankTimes> times;
  if (sizes.backward)
    times =
        ranks.time(fused, {[&] { fused.backward(nullptr, shard.backward(rows), own); },
                           [&] { plain.backward(nullptr, whole.backward(sizes.length), other); },
                           [&] {
                             transfer(keys, dtype);
                             transfer(gradients, f32);
                           }});
  else
    times = ranks.time(fused, {attend_shard, attend_all, [&] { transfer(keys, dtype); }});
  times[1].single /= static_cast<double>(sizes.ranks);
  times[1].sustained /= static_cast<double>(sizes.ranks);
  return times;
}

// A line for each sample: all ranks have as many, of the same executions.
std::string text_of(const std::vector<std::vector<Sample>>& samples, RankOp op) {
  std::string text;
  for (size_t i = 0; i < samples.front().size(); ++i) {
    auto first = Clock::time_point::max();
    for (const auto& of_rank : samples) first = std::min(first, of_rank[i].start);
    for (size_t rank = 0; rank < samples.size(); ++rank) {
      const Sample& sample = samples[rank][i];
      text += fmt::format("{},{},{},{},{},{:.9f},{:.9f},{:.9f}\n", name_of(op),
                          kRankParts[sample.part], sample.round, sample.executions, rank,
                          std::chrono::duration<double>(sample.start - first).count(),
                          sample.enqueued, sample.seconds);
    }
  }
  return text;
}

}  // namespace

std::vector<RankTimes> bench_on_gpus(const CollectiveSizes& sizes, DType dtype, RankOp op,
                                     std::string* samples) {
  const std::vector<Group> groups = Group::threads(static_cast<int32_t>(sizes.ranks));
  std::vector<double> slowest(groups.size());
  std::vector<std::string> failures(groups.size());
  std::vector<RankTimes> times;
  std::vector<std::vector<Sample>> samples_of(groups.size());
  Meeting meet(std::ssize(groups));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        const Context context = Context::cuda(static_cast<int32_t>(rank));
        Ranks ranks(context, groups[rank], meet, slowest, samples_of[rank], sizes);
        const auto measure = [&](const auto& of) {
          return of(context, groups[rank], sizes, dtype, ranks);
        };
        const auto of_rank = op == RankOp::kGather   ? measure(gather)
                             : op == RankOp::kAttend ? measure(attend)
                                                     : reduce(op == RankOp::kAllReduce, context,
                                                              groups[rank], sizes, dtype, ranks);
        if (rank == 0) times = of_rank;
      } catch (const Error& error) {
        failures[rank] = error.what();
        meet.arrive_and_drop();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw Error(PERSEID_INTERNAL, failure);
  *samples += text_of(samples_of, op);
  return times;
}

}  // namespace perseid::cli
