// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "check_collective.hpp"
#include "harness/placement.hpp"

namespace perseid::cli {
namespace {

using harness::Shape;

// Bias has a row for each query, in ragged batches on a CPU one for all.
struct ContextProblem {
  DType dtype;
  int32_t ranks;
  AttentionOptions whole;
  Sharding placement = Sharding::kContiguous;
  std::vector<int64_t> shards = {};      // rows of each rank
  std::vector<int32_t> lengths = {};     // of whole sequences, where ragged
  std::vector<int32_t> cumulative = {};  // the same
  std::vector<int32_t> kv_lens = {};
  int64_t chunks = 1;
  bool canonical = false;  // bit for bit
  uint64_t seed;

  int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  bool has_bias_rows() const { return whole.bias && (*whole.bias)[2] != 1; }
  std::string text() const {
    return fmt::format(
        "{} heads of {}, dims {} and {}, batch {}, rows {}{}{}, causal {}, window {},{}, "
        "dropout {}{}{}",
        whole.heads, whole.kv_heads, whole.head_dim, whole.value_dim, whole.batch,
        fmt::join(shards, ","), placement == Sharding::kZigzag ? " zigzag" : "",
        lengths.empty() ? "" : fmt::format(" of sequences {}", fmt::join(lengths, ",")),
        static_cast<int>(whole.mask.causal), whole.mask.left, whole.mask.right, whole.dropout,
        whole.bias ? ", bias" : "",
        kv_lens.empty() ? "" : fmt::format(", kv_lens {}", fmt::join(kv_lens, ",")));
  }
};

// On a GPU other kernels take large pieces than small ones.
constexpr int64_t kTileRows = 128;
// With dropout all ranks of Hopper GPUs begin at a multiple of so many rows, in canonical order.
constexpr int64_t kDropoutRows = 16;

void draw_dims(ContextProblem& problem, bool gpu, RandomNumbers& random) {
  AttentionOptions& whole = problem.whole;
  const bool vectors = gpu && from(random, 0, 1) == 1;
  const auto dim = [&] { return vectors ? 8 * from(random, 1, 16) : from(random, 1, 40); };
  whole.head_dim = dim();
  whole.value_dim = from(random, 0, 1) == 0 ? whole.head_dim : dim();
}

// Sequences of which each rank has equally many rows.
void draw_sequences(ContextProblem& problem, RandomNumbers& random) {
  AttentionOptions& whole = problem.whole;
  const int64_t unit = problem.placement == Sharding::kZigzag ? 2 * problem.ranks : problem.ranks;
  problem.cumulative = {0};
  for (int64_t i = 0; i < whole.batch; ++i) {
    const int64_t length = i > 0 && from(random, 0, 3) == 0 ? 0 : unit * from(random, 1, 30);
    problem.lengths.push_back(static_cast<int32_t>(length));
    problem.cumulative.push_back(problem.cumulative.back() + problem.lengths.back());
  }
  whole.ragged = true;
  whole.total_q = whole.total_kv = problem.cumulative.back();
  whole.q_len = whole.kv_len = problem.longest();
  problem.shards.assign(static_cast<size_t>(problem.ranks), whole.total_q / problem.ranks);
}

void draw_rows(ContextProblem& problem, bool gpu, RandomNumbers& random) {
  AttentionOptions& whole = problem.whole;
  // Gradients in canonical order are of eight leaves, as many on each rank.
  const bool leaves = problem.canonical && whole.gradients != 0;
  int64_t piece = leaves ? 8 / problem.ranks * from(random, 1, 5) : from(random, 1, 40);
  if (gpu && from(random, 0, 1) == 1)
    piece = kTileRows * (leaves ? 8 / problem.ranks : from(random, 1, 2));
  const int64_t unit = gpu && problem.canonical ? kDropoutRows : 1;
  for (int32_t rank = 0; rank < problem.ranks; ++rank)
    problem.shards.push_back(problem.placement == Sharding::kZigzag ? 2 * piece
                             : leaves                               ? piece
                                      : unit * from(random, 0, 80 / unit));
  for (const int64_t rows : problem.shards) whole.q_len = whole.kv_len += rows;
}

ContextProblem draw(DType dtype, int32_t ranks, uint64_t seed, bool canonical, bool gpu) {
  RandomNumbers random(seed);
  ContextProblem problem{.dtype = dtype,
                         .ranks = ranks,
                         .whole = {.dtype = dtype},
                         .canonical = canonical,
                         .seed = seed};
  AttentionOptions& whole = problem.whole;
  whole.batch = from(random, 1, 3);
  whole.kv_heads = from(random, 1, 2);
  whole.heads = whole.kv_heads * from(random, 1, 2);
  if (from(random, 0, 2) > 0) whole.mask = causal_bottom_right();
  if (from(random, 0, 2) == 0) whole.mask = whole.mask & window(from(random, 0, 60), -1);
  if (from(random, 0, 2) == 0) whole.dropout = 0.25;
  if (!canonical || from(random, 0, 1) == 1)
    whole.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  if (canonical && !gpu) whole.implementation = "cpu:tiled";
  problem.chunks = from(random, 1, 3);
  if (from(random, 0, 1) == 1) problem.placement = Sharding::kZigzag;
  draw_dims(problem, gpu, random);
  const bool extras = !canonical;
  if (extras && from(random, 0, 2) == 0)
    draw_sequences(problem, random);
  else
    draw_rows(problem, gpu, random);
  const int64_t rows = whole.ragged && !gpu ? 1 : whole.q_len;
  if (extras && from(random, 0, 2) == 0)
    whole.bias = {whole.ragged && gpu ? whole.batch : 1, whole.heads, rows, whole.kv_len};
  if (extras && !whole.ragged && from(random, 0, 2) == 0) {
    whole.kv_lens = true;
    for (int64_t i = 0; i < whole.batch; ++i)
      problem.kv_lens.push_back(static_cast<int32_t>(from(random, 0, whole.kv_len)));
  }
  return problem;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Of a sequence of `length` that begins with row `begin`, those that a rank has, one after the
// other.
void add_pieces(const ContextProblem& problem, int32_t rank, int64_t begin, int64_t length,
                Ranges* pieces) {
  if (problem.placement == Sharding::kZigzag) {
    const int64_t piece = length / (2 * problem.ranks), last = 2 * problem.ranks - 1 - rank;
    pieces->emplace_back(begin + rank * piece, begin + (rank + 1) * piece);
    pieces->emplace_back(begin + last * piece, begin + (last + 1) * piece);
    return;
  }
  if (problem.whole.ragged) {
    pieces->emplace_back(begin + rank * length / problem.ranks,
                         begin + (rank + 1) * length / problem.ranks);
    return;
  }
  int64_t from = begin;
  for (int32_t r = 0; r < rank; ++r) from += problem.shards[static_cast<size_t>(r)];
  pieces->emplace_back(from, from + problem.shards[static_cast<size_t>(rank)]);
}
Ranges pieces_of(const ContextProblem& problem, int32_t rank) {
  Ranges pieces;
  if (!problem.whole.ragged) add_pieces(problem, rank, 0, problem.whole.q_len, &pieces);
  for (size_t i = 0; i < problem.lengths.size(); ++i)
    add_pieces(problem, rank, problem.cumulative[i], problem.lengths[i], &pieces);
  return pieces;
}

// What is given, what forward writes, and what backward writes.
enum Name {
  kQuery,
  kKey,
  kValue,
  kGradOut,
  kBias,
  kOut,
  kLse,
  kGradQuery,
  kGradKey,
  kGradValue,
  kNames
};
constexpr const char* kNameTexts[] = {"query", "key", "value",      "grad_out", "bias",
                                      "out",   "lse", "grad_query", "grad_key", "grad_value"};

// All rows, or those of a rank: `parts` of every sequence where ragged.
class Tensors {
 public:
  Tensors(const ContextProblem& problem, int64_t rows, int64_t parts) : problem_(problem) {
    const AttentionOptions& whole = problem.whole;
    for (int name = 0; name < kNames; ++name) {
      const bool of_keys = name == kKey || name == kValue || name == kGradKey || name == kGradValue;
      const bool of_values =
          name == kValue || name == kGradValue || name == kOut || name == kGradOut;
      const int64_t heads = of_keys ? whole.kv_heads : whole.heads;
      const int64_t dim = of_values ? whole.value_dim : whole.head_dim;
      const uint64_t seed = problem.seed + static_cast<uint64_t>(name);
      if (name == kBias) {
        std::array<int64_t, 4> sizes = whole.bias.value_or(std::array<int64_t, 4>{});
        if (problem.has_bias_rows()) sizes[2] = whole.ragged ? sizes[2] / parts : rows;
        arrays_.emplace_back(problem.dtype, Shape(sizes.begin(), sizes.end()), seed);
      } else if (name == kLse) {
        arrays_.emplace_back(
            problem.dtype == f64 ? f64 : f32,
            whole.ragged ? Shape{whole.heads, rows} : Shape{whole.batch, whole.heads, rows});
      } else {
        arrays_.emplace_back(
            problem.dtype,
            whole.ragged ? Shape{rows, heads, dim} : Shape{whole.batch, rows, heads, dim}, seed);
      }
    }
  }
  const Tensor& operator[](int name) const { return arrays_[static_cast<size_t>(name)].tensor; }

  // In memory of the context's device, but for cumulative lengths.
  AttentionForward forward(harness::Placement& placement) const {
    const auto at = [&](int name) { return placement.place((*this)[name]); };
    const auto numbers = [](const std::vector<int32_t>& of) {
      return of.empty() ? Tensor() : Tensor(of.data(), i32, {std::ssize(of)});
    };
    const Tensor cumulative = numbers(problem_.cumulative);
    return {.query = at(kQuery),
            .key = at(kKey),
            .value = at(kValue),
            .bias = problem_.whole.bias ? at(kBias) : Tensor(),
            .cu_seqlens_q = cumulative,
            .cu_seqlens_kv = cumulative,
            .kv_lens = placement.place(numbers(problem_.kv_lens)),
            .out = at(kOut),
            .lse = at(kLse),
            .seed = 11};
  }
  AttentionBackward backward(harness::Placement& placement) const {
    const AttentionForward with = forward(placement);
    const auto at = [&](int name) { return placement.place((*this)[name]); };
    return {.query = with.query,
            .key = with.key,
            .value = with.value,
            .bias = with.bias,
            .cu_seqlens_q = with.cu_seqlens_q,
            .cu_seqlens_kv = with.cu_seqlens_kv,
            .kv_lens = with.kv_lens,
            .out = with.out,
            .lse = with.lse,
            .grad_out = at(kGradOut),
            .grad_query = at(kGradQuery),
            .grad_key = at(kGradKey),
            .grad_value = at(kGradValue),
            .seed = with.seed};
  }
  int results() const { return problem_.whole.gradients != 0 ? kNames : kGradQuery; }

 private:
  const ContextProblem& problem_;
  std::vector<Array> arrays_;
};

// body(rows of `own`, the same rows of `whole`)
template <class Body>
void for_each_piece(const ContextProblem& problem, int32_t rank, int name, const Tensor& own,
                    const Tensor& whole, const Body& body) {
  const bool ragged = problem.whole.ragged;
  const auto visit = [&](const Ranges& pieces, int32_t dim, const Tensor& mine, const Tensor& all) {
    int64_t row = 0;
    for (const auto& [begin, end] : pieces) {
      body(mine.slice(dim, row, row + end - begin), all.slice(dim, begin, end));
      row += end - begin;
    }
  };
  if (name != kBias)
    return visit(pieces_of(problem, rank), (name == kLse ? 2 : 1) - (ragged ? 1 : 0), own, whole);
  if (!problem.has_bias_rows()) return body(own, whole);
  if (!ragged) return visit(pieces_of(problem, rank), 2, own, whole);
  for (size_t i = 0; i < problem.lengths.size(); ++i) {
    Ranges pieces;
    add_pieces(problem, rank, 0, problem.lengths[i], &pieces);
    const auto sequence = static_cast<int64_t>(i);
    visit(pieces, 1, own.select(0, sequence), whole.select(0, sequence));
  }
}

// The attention of a rank, or of all rows by a group of one rank.
template <class Plan>
void attend(const Context& context, const Plan& plan, const ContextProblem& problem,
            const Tensors& tensors) {
  harness::Placement placement(context);
  const auto run = [&](Direction direction) {
    const Memory workspace(context, plan.workspace_size(direction));
    if (direction == Direction::kForward)
      plan.forward(nullptr, tensors.forward(placement), {workspace});
    else
      plan.backward(nullptr, tensors.backward(placement), {workspace});
    context.synchronize();  // before its workspace goes
  };
  run(Direction::kForward);
  if (problem.whole.gradients != 0) run(Direction::kBackward);
  for (int name = kOut; name < tensors.results(); ++name) placement.fetch(tensors[name]);
}

std::string run_rank(const ContextProblem& problem, const Group& group, const Context& context,
                     const Tensors& whole) {
  const int32_t rank = group.rank();
  const int64_t rows = problem.shards[static_cast<size_t>(rank)];
  AttentionOptions options = problem.whole;
  if (options.ragged) {
    options.q_len = options.kv_len = problem.longest() / problem.ranks;
    options.total_q = options.total_kv = rows;
  } else {
    options.q_len = options.kv_len = rows;
  }
  if (problem.has_bias_rows()) (*options.bias)[2] = options.q_len;
  const Tensors own(problem, rows, problem.ranks);
  for (int name = kQuery; name <= (problem.whole.bias ? kBias : kGradOut); ++name)
    for_each_piece(problem, rank, name, own[name], whole[name],
                   [](const Tensor& to, const Tensor& from) {
                     harness::assign(to, harness::values_of(from));
                   });
  const ContextAttention plan(context, group,
                              {.attention = options,
                               .placement = problem.placement,
                               .chunks = problem.chunks,
                               .canonical = problem.canonical});
  attend(context, plan, problem, own);
  const double tolerance = problem.canonical      ? 0
                           : problem.dtype == f64 ? 1e-11
                           : problem.dtype == f32 ? 1e-4
                                                  : 0x1p-5;
  std::string complaint;
  for (int name = kOut; name < own.results(); ++name)
    for_each_piece(
        problem, rank, name, own[name], whole[name], [&](const Tensor& got, const Tensor& wanted) {
          const auto values = harness::values_of(got), plain = harness::values_of(wanted);
          for (size_t i = 0; i < values.size() && complaint.empty(); ++i)
            if (values[i] != plain[i] &&
                !(std::abs(values[i] - plain[i]) <= tolerance * std::max(1.0, std::abs(plain[i]))))
              complaint = fmt::format("{}: element {} is {}, expected {}", kNameTexts[name], i,
                                      values[i], plain[i]);
        });
  return complaint;
}

}  // namespace

std::string check_context_attention(std::span<const Context> contexts, DType dtype, int32_t ranks,
                                    uint64_t seed, bool canonical) {
  const bool gpu = contexts[0].device().device_type != kDLCPU;
  const ContextProblem problem = draw(dtype, ranks, seed, canonical, gpu);
  const Tensors whole(problem, problem.whole.ragged ? problem.whole.total_q : problem.whole.q_len,
                      1);
  if (canonical) {
    const std::vector<Group> alone = Group::threads(1);
    const ContextAttention plan(
        contexts[0], alone[0],
        {.attention = problem.whole, .placement = problem.placement, .canonical = true});
    attend(contexts[0], plan, problem, whole);
    if (!gpu) {
      // out and lse are those of the plain attention.
      std::vector<std::vector<double>> of_group;
      for (const int name : {kOut, kLse}) of_group.push_back(harness::values_of(whole[name]));
      ContextProblem forward = problem;
      forward.whole.gradients = 0;
      attend(contexts[0], Attention(contexts[0], forward.whole), forward, whole);
      for (const int name : {kOut, kLse})
        if (harness::values_of(whole[name]) != of_group[name == kOut ? 0 : 1])
          return fmt::format("{} of one rank is not that of attention ({})", kNameTexts[name],
                             problem.text());
    }
  } else {
    std::optional<Context> made;
    if (gpu) made.emplace(Context::cpu());
    const Context& cpu = gpu ? *made : contexts[0];
    attend(cpu, Attention(cpu, problem.whole), problem, whole);
  }
  const std::string complaint = on_ranks(ranks, [&](const Group& group) {
    return run_rank(problem, group, contexts[gpu ? static_cast<size_t>(group.rank()) : 0], whole);
  });
  return complaint.empty() ? "" : fmt::format("{} ({})", complaint, problem.text());
}

}  // namespace perseid::cli
