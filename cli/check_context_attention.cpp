// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "check_collective.hpp"

namespace perseid::cli {
namespace {

using harness::Shape;

struct ContextProblem {
  DType dtype;
  int32_t ranks;
  AttentionOptions whole;
  Sharding placement = Sharding::kContiguous;
  std::vector<int64_t> shards = {};  // rows of each rank
  int64_t chunks = 1;
  bool canonical = false;  // bit for bit
  uint64_t seed;

  std::string text() const {
    return fmt::format("{} heads of {}, dim {}, rows {}{}, causal {}, window {},{}, dropout {}",
                       whole.heads, whole.kv_heads, whole.head_dim, fmt::join(shards, ","),
                       placement == Sharding::kZigzag ? " zigzag" : "",
                       static_cast<int>(whole.mask.causal), whole.mask.left, whole.mask.right,
                       whole.dropout);
  }
};

ContextProblem draw(DType dtype, int32_t ranks, uint64_t seed, bool canonical) {
  RandomNumbers random(seed);
  ContextProblem problem{.dtype = dtype,
                         .ranks = ranks,
                         .whole = {.dtype = dtype},
                         .canonical = canonical,
                         .seed = seed};
  AttentionOptions& whole = problem.whole;
  whole.batch = from(random, 1, 2);
  whole.kv_heads = from(random, 1, 2);
  whole.heads = whole.kv_heads * from(random, 1, 2);
  whole.head_dim = from(random, 1, 40);
  if (from(random, 0, 2) > 0) whole.mask = causal_bottom_right();
  if (from(random, 0, 2) == 0) whole.mask = whole.mask & window(from(random, 0, 60), -1);
  if (from(random, 0, 2) == 0) whole.dropout = 0.25;
  whole.backward = !canonical || from(random, 0, 1) == 1;
  if (canonical) whole.implementation = "cpu:tiled";
  problem.chunks = from(random, 1, 3);
  if (from(random, 0, 1) == 1) problem.placement = Sharding::kZigzag;
  // Gradients in canonical order are of eight leaves, as many on each rank.
  const bool leaves = canonical && whole.backward;
  const int64_t piece = leaves ? 8 / ranks * from(random, 1, 5) : from(random, 1, 40);
  for (int32_t rank = 0; rank < ranks; ++rank)
    problem.shards.push_back(problem.placement == Sharding::kZigzag ? 2 * piece
                             : leaves                               ? piece
                                                                    : from(random, 0, 80));
  for (const int64_t rows : problem.shards) whole.q_len = whole.kv_len += rows;
  return problem;
}

// Rows [from, to) of a whole sequence that a rank has, one after the other.
std::vector<std::pair<int64_t, int64_t>> pieces_of(const ContextProblem& problem, int32_t rank) {
  const auto r = static_cast<size_t>(rank);
  if (problem.placement == Sharding::kZigzag) {
    const int64_t piece = problem.shards[r] / 2, last = 2 * problem.ranks - 1 - rank;
    return {{rank * piece, (rank + 1) * piece}, {last * piece, (last + 1) * piece}};
  }
  int64_t begin = 0;
  for (size_t before = 0; before < r; ++before) begin += problem.shards[before];
  return {{begin, begin + problem.shards[r]}};
}

// Query, key, value, grad_out, out, lse, and the gradients of the first three.
enum Name { kQuery, kKey, kValue, kGradOut, kOut, kLse, kGradQuery, kGradKey, kGradValue, kNames };
constexpr const char* kNameTexts[] = {"query", "key",        "value",    "grad_out",  "out",
                                      "lse",   "grad_query", "grad_key", "grad_value"};

struct Tensors {
  std::vector<Array> arrays;

  Tensors(const ContextProblem& problem, int64_t rows) {
    const AttentionOptions& whole = problem.whole;
    for (int name = 0; name < kNames; ++name) {
      const bool of_keys = name == kKey || name == kValue || name == kGradKey || name == kGradValue;
      const Shape shape = {whole.batch, rows, of_keys ? whole.kv_heads : whole.heads,
                           whole.head_dim};
      if (name == kLse) {
        arrays.emplace_back(problem.dtype == f64 ? f64 : f32,
                            Shape{whole.batch, whole.heads, rows});
      } else {
        arrays.emplace_back(problem.dtype, shape, problem.seed + static_cast<uint64_t>(name));
      }
    }
  }
  const Tensor& operator[](int name) const { return arrays[static_cast<size_t>(name)].tensor; }
  AttentionForward forward() const {
    return {.query = (*this)[kQuery],
            .key = (*this)[kKey],
            .value = (*this)[kValue],
            .out = (*this)[kOut],
            .lse = (*this)[kLse],
            .seed = 11};
  }
  AttentionBackward backward() const {
    return {.query = (*this)[kQuery],
            .key = (*this)[kKey],
            .value = (*this)[kValue],
            .out = (*this)[kOut],
            .lse = (*this)[kLse],
            .grad_out = (*this)[kGradOut],
            .grad_query = (*this)[kGradQuery],
            .grad_key = (*this)[kGradKey],
            .grad_value = (*this)[kGradValue],
            .seed = 11};
  }
};

// body(rows of `own`, the same rows of `whole`)
template <class Body>
void for_each_piece(const ContextProblem& problem, int32_t rank, int name, const Tensor& own,
                    const Tensor& whole, const Body& body) {
  const int32_t dim = name == kLse ? 2 : 1;
  int64_t row = 0;
  for (const auto& [begin, end] : pieces_of(problem, rank)) {
    body(own.slice(dim, row, row + end - begin), whole.slice(dim, begin, end));
    row += end - begin;
  }
}

std::string run_rank(const ContextProblem& problem, const Group& group, const Context& context,
                     const Tensors& whole) {
  const int32_t rank = group.rank();
  AttentionOptions options = problem.whole;
  options.q_len = options.kv_len = problem.shards[static_cast<size_t>(rank)];
  const ContextAttention plan(context, group,
                              {.attention = options,
                               .placement = problem.placement,
                               .chunks = problem.chunks,
                               .canonical = problem.canonical});
  Workspace workspace;
  plan.reserve(workspace);
  const Tensors own(problem, options.q_len);
  for (const int name : {kQuery, kKey, kValue, kGradOut})
    for_each_piece(problem, rank, name, own[name], whole[name],
                   [](const Tensor& to, const Tensor& from) {
                     harness::assign(to, harness::values_of(from));
                   });
  plan.forward(nullptr, own.forward(), workspace);
  if (problem.whole.backward) plan.backward(nullptr, own.backward(), workspace);
  const double tolerance = problem.canonical      ? 0
                           : problem.dtype == f64 ? 1e-11
                           : problem.dtype == f32 ? 1e-4
                                                  : 0x1p-5;
  std::string complaint;
  for (int name = kOut; name < (problem.whole.backward ? kNames : kGradQuery); ++name)
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

std::string check_context_attention(const Context& context, DType dtype, int32_t ranks,
                                    uint64_t seed, bool canonical) {
  const ContextProblem problem = draw(dtype, ranks, seed, canonical);
  const Tensors whole(problem, problem.whole.q_len);
  const Attention attention(context, problem.whole);
  Workspace workspace;
  attention.reserve(workspace);
  attention.forward(nullptr, whole.forward(), workspace);
  if (canonical && problem.whole.backward) {
    const std::vector<Group> alone = Group::threads(1);
    const ContextAttention plan(
        context, alone[0],
        {.attention = problem.whole, .placement = problem.placement, .canonical = true});
    plan.reserve(workspace);
    plan.backward(nullptr, whole.backward(), workspace);
  } else if (problem.whole.backward) {
    attention.backward(nullptr, whole.backward(), workspace);
  }
  const std::string complaint =
      on_ranks(ranks, [&](const Group& group) { return run_rank(problem, group, context, whole); });
  return complaint.empty() ? "" : fmt::format("{} ({})", complaint, problem.text());
}

}  // namespace perseid::cli
