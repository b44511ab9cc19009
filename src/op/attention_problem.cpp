// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/attention_problem.hpp"

#include <algorithm>
#include <cmath>

#include "op/chunks.hpp"
#include "op/descriptor.hpp"

namespace perseid::internal::op {
namespace {

constexpr uint32_t kAllGradients =
    PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE | PERSEID_GRAD_BIAS;

// A packed tensor without rows has no sequence of a length above 0: its field was forgotten.
void require_rows(DescriptorReader& reader, const Extent& total, const Extent& longest,
                  const char* tensor) {
  reader.require(total.size > 0 || longest.size == 0, total.name, " is 0, but ragged is 1 and ",
                 longest.name, " is ", longest.size, "; set it to the rows of the packed ", tensor,
                 ", or set ", longest.name, " to 0 where every sequence is empty");
}

// Which keys of a cache a sequence reads. Sequences may share them, so they have no gradients.
void read_cache(DescriptorReader& reader, const perseid_attention_desc& desc,
                AttentionProblem* problem) {
  problem->kv_starts = reader.flag("kv_starts", desc.kv_starts);
  reader.require(!problem->kv_starts || (problem->ragged && problem->kv_lens),
                 "kv_starts is 1, but ragged is ", desc.ragged, " and kv_lens is ", desc.kv_lens,
                 "; set both: a start does not say where its sequence ends");
  problem->kv_index = desc.kv_batch != 0;
  problem->kv_batch = problem->kv_index ? reader.size("kv_batch", desc.kv_batch) : problem->batch;
  reader.require(!problem->kv_index || !problem->ragged, "kv_batch is ", desc.kv_batch,
                 ", but ragged is 1, where all sequences are in one tensor; set kv_starts");
  const bool shares = problem->kv_starts || problem->kv_index;
  reader.require(!shares || desc.gradients == 0, "gradients is ", desc.gradients, ", but ",
                 problem->kv_starts ? "kv_starts is 1" : "kv_batch is not 0",
                 ", and keys that sequences may share have no gradients; set gradients to 0");
}

void read_sizes(DescriptorReader& reader, const perseid_attention_desc& desc,
                AttentionProblem* problem) {
  problem->batch = reader.batch_of(desc.batch, desc.zero_batch);
  problem->heads = reader.size("heads", desc.heads, 1);
  problem->kv_heads =
      desc.kv_heads == 0 ? problem->heads : reader.size("kv_heads", desc.kv_heads, 1);
  reader.require(problem->heads % problem->kv_heads == 0, "heads is ", desc.heads,
                 ", expected a multiple of kv_heads, which is ", desc.kv_heads,
                 "; as many query heads share each key head");
  problem->q_len = reader.size("q_len", desc.q_len);
  problem->kv_len = reader.size("kv_len", desc.kv_len);
  problem->head_dim = reader.size("head_dim", desc.head_dim, 1);
  problem->value_dim =
      desc.value_dim == 0 ? problem->head_dim : reader.size("value_dim", desc.value_dim, 1);
  problem->ragged = reader.flag("ragged", desc.ragged);
  if (problem->ragged) {
    problem->total_q = reader.size("total_q", desc.total_q);
    problem->total_kv = reader.size("total_kv", desc.total_kv);
    if (problem->batch > 0) {
      require_rows(reader, {"total_q", problem->total_q}, {"q_len", problem->q_len}, "query");
      require_rows(reader, {"total_kv", problem->total_kv}, {"kv_len", problem->kv_len}, "key");
    }
  }
  problem->q_lens = reader.flag("q_lens", desc.q_lens);
  problem->kv_lens = reader.flag("kv_lens", desc.kv_lens);
  read_cache(reader, desc, problem);
  problem->max_lengths = reader.flag("max_lengths", desc.max_lengths);
  reader.require(!problem->max_lengths || desc.async_kv == nullptr,
                 "max_lengths is 1, but async_kv is given, whose chunks are of the lengths "
                 "themselves; leave it out, or make a plan for each length");
  problem->num_splits = desc.num_splits;

  // The longest lengths bound workspaces even where the packed tensors are smaller.
  const int64_t dim = max(problem->head_dim, problem->value_dim);
  reader.extents("query or out", {problem->batch, problem->heads, problem->q_len, dim});
  reader.extents("key or value", {problem->kv_batch, problem->kv_heads, problem->kv_len, dim});
  reader.extents("query or out", {problem->total_q, problem->heads, dim});
  reader.extents("key or value", {problem->total_kv, problem->kv_heads, dim});
}

void read_mask(DescriptorReader& reader, const perseid_attention_desc& desc,
               AttentionProblem* problem) {
  problem->causal = static_cast<Causal>(reader.choice(
      "causal", desc.causal, 3,
      "PERSEID_CAUSAL_NONE (0), PERSEID_CAUSAL_TOP_LEFT (1) or PERSEID_CAUSAL_BOTTOM_RIGHT (2)"));
  if (reader.flag("window", desc.window)) {
    reader.require(desc.window_left >= -1, "window_left is ", desc.window_left,
                   ", expected a number of keys, or -1 for unlimited");
    reader.require(desc.window_right >= -1, "window_right is ", desc.window_right,
                   ", expected a number of keys, or -1 for unlimited");
    problem->window_left = desc.window_left;
    problem->window_right = desc.window_right;
  }
  problem->window_bottom_right = reader.flag("window_bottom_right", desc.window_bottom_right);
  reader.require(!problem->window_bottom_right || desc.window != 0,
                 "window_bottom_right is 1 without a window, which it aligns; set window too");
  reader.require(!problem->window_bottom_right || problem->causal == Causal::kNone,
                 "window_bottom_right is 1 with causal, whose alignment a window then has; set one "
                 "of them");
  problem->visible = reader.flag("visible", desc.visible);
}

void read_bias(DescriptorReader& reader, const perseid_attention_desc& desc,
               AttentionProblem* problem) {
  problem->bias = reader.flag("bias", desc.bias);
  if (!problem->bias) return;
  problem->bias_dtype = reader.dtype("bias_dtype", desc.bias_dtype, problem->dtype);
  const bool widening = problem->bias_dtype == DType::kF32 && problem->dtype != DType::kF64;
  reader.require(problem->bias_dtype == problem->dtype || widening, "bias_dtype is ",
                 name_of(problem->bias_dtype), ", expected ", name_of(problem->dtype),
                 ", the dtype of query", problem->dtype == DType::kF64 ? "" : ", or f32");
  const Extent4 full = score_extents(*problem);
  for (size_t d = 0; d < 4; ++d) {
    const int64_t size = desc.bias_shape[d];
    reader.require(size == 1 || size == full[d].size, "bias_shape[", d, "] is ", size,
                   ", expected 1 or ", full[d].size, ", the problem's ", full[d].name);
    problem->bias_shape[d] = size;
  }
  reader.extents("bias", std::span(problem->bias_shape));
}

void read_gradients(DescriptorReader& reader, const perseid_attention_desc& desc,
                    AttentionProblem* problem) {
  reader.require((desc.gradients & ~kAllGradients) == 0, "gradients is ", desc.gradients,
                 ", expected a sum of PERSEID_GRAD_QUERY (1), PERSEID_GRAD_KEY (2), "
                 "PERSEID_GRAD_VALUE (4) and PERSEID_GRAD_BIAS (8)");
  problem->grad_query = (desc.gradients & PERSEID_GRAD_QUERY) != 0;
  problem->grad_key = (desc.gradients & PERSEID_GRAD_KEY) != 0;
  problem->grad_value = (desc.gradients & PERSEID_GRAD_VALUE) != 0;
  problem->grad_bias = (desc.gradients & PERSEID_GRAD_BIAS) != 0;
  reader.require(!problem->grad_bias || problem->bias,
                 "gradients has PERSEID_GRAD_BIAS, but bias is 0; set bias and bias_shape");
  // One split of the keys has one order.
  problem->deterministic = reader.flag("deterministic", desc.deterministic) ||
                           (desc.gradients != 0 && desc.num_splits == 1);
  reader.require((desc.accumulate & ~desc.gradients) == 0, "accumulate is ", desc.accumulate,
                 ", expected bits within gradients, which is ", desc.gradients);
  problem->accumulate_query = (desc.accumulate & PERSEID_GRAD_QUERY) != 0;
  problem->accumulate_key = (desc.accumulate & PERSEID_GRAD_KEY) != 0;
  problem->accumulate_value = (desc.accumulate & PERSEID_GRAD_VALUE) != 0;
  problem->accumulate_bias = (desc.accumulate & PERSEID_GRAD_BIAS) != 0;
}

// The sum over i in [0, count) of clamp(i + shift, 0, limit).
double sum_of_clamped(double count, double shift, double limit) {
  const auto up_to = [limit](double x) {  // of clamp(t, 0, limit) over t <= x
    const double ramp = std::clamp(x, 0.0, limit);
    return ramp * (ramp + 1) / 2 + std::max(x - limit, 0.0) * limit;
  };
  return up_to(count - 1 + shift) - up_to(shift - 1);
}

std::string text_of_gradients(bool query, bool key, bool value, bool bias) {
  std::string text;
  const auto add = [&text](bool wanted, const char* name) {
    if (wanted) text += concatenate(text.empty() ? "" : " ", name);
  };
  add(query, "query");
  add(key, "key");
  add(value, "value");
  add(bias, "bias");
  return text;
}

std::vector<dispatch::Fact> facts_of(const AttentionProblem& problem) {
  constexpr const char* kCausal[] = {"none", "top-left", "bottom-right"};
  std::vector<dispatch::Fact> facts = {
      {"dtype", name_of(problem.dtype)}, {"batch", problem.batch},
      {"heads", problem.heads},          {"kv_heads", problem.kv_heads},
      {"q_len", problem.q_len},          {"kv_len", problem.kv_len},
      {"head_dim", problem.head_dim},    {"value_dim", problem.value_dim},
      {"scale", problem.scale},          {"causal", kCausal[static_cast<int32_t>(problem.causal)]}};
  if (problem.window_left >= 0 || problem.window_right >= 0) {
    facts.emplace_back("window_left", problem.window_left);
    facts.emplace_back("window_right", problem.window_right);
    if (problem.window_bottom_right) facts.emplace_back("window_alignment", "bottom-right");
  }
  if (problem.dropout > 0) facts.emplace_back("dropout", problem.dropout);
  if (problem.bias) {
    facts.emplace_back("bias",
                       concatenate("[", problem.bias_shape[0], ", ", problem.bias_shape[1], ", ",
                                   problem.bias_shape[2], ", ", problem.bias_shape[3], "]"));
    facts.emplace_back("bias_dtype", name_of(problem.bias_dtype));
  }
  if (problem.visible) facts.emplace_back("visible", "yes");
  if (problem.ragged) {
    facts.emplace_back("total_q", problem.total_q);
    facts.emplace_back("total_kv", problem.total_kv);
  }
  if (problem.q_lens) facts.emplace_back("q_lens", "yes");
  if (problem.kv_lens) facts.emplace_back("kv_lens", "yes");
  if (problem.kv_starts) facts.emplace_back("kv_starts", "yes");
  if (problem.kv_index) facts.emplace_back("kv_batch", problem.kv_batch);
  if (problem.max_lengths) facts.emplace_back("max_lengths", "yes");
  if (problem.num_splits > 0) facts.emplace_back("num_splits", problem.num_splits);
  if (!problem.rows.all())
    facts.emplace_back("rows",
                       concatenate("those of rank ", problem.rows.rank, " of ", problem.rows.ranks,
                                   problem.rows.zigzag ? ", zigzag" : ""));
  if (problem.async())
    facts.emplace_back("async_kv", concatenate(problem.chunks_kv.count, " chunks of ",
                                               problem.ragged ? "total_kv" : "kv_len"));
  if (problem.backward())
    facts.emplace_back("gradients", text_of_gradients(problem.grad_query, problem.grad_key,
                                                      problem.grad_value, problem.grad_bias));
  if (problem.backward() && problem.deterministic) facts.emplace_back("deterministic", "yes");
  if (problem.accumulates())
    facts.emplace_back("accumulate",
                       text_of_gradients(problem.accumulate_query, problem.accumulate_key,
                                         problem.accumulate_value, problem.accumulate_bias));
  return facts;
}

}  // namespace

Extent4 score_extents(const AttentionProblem& problem) {
  return {{{"batch", problem.batch},
           {"heads", problem.heads},
           {"q_len", problem.q_len},
           {"kv_len", problem.kv_len}}};
}

Status read_problem(const perseid_attention_desc& desc, const QueryRows& rows,
                    std::vector<int64_t>* chunks, AttentionProblem* problem) {
  DescriptorReader reader("attention");
  problem->dtype = reader.dtype("dtype", desc.dtype);
  reader.choice("layout", desc.layout, 2, "PERSEID_BSHD (0) or PERSEID_BHSD (1)");
  read_sizes(reader, desc, problem);
  if (!reader.ok()) return reader.result();  // products of sizes are safe from here on
  read_mask(reader, desc, problem);
  problem->scale = desc.scale == 0 ? 1 / std::sqrt(static_cast<double>(problem->head_dim))
                                   : reader.number("scale", desc.scale, problem->dtype);
  problem->rows = rows;
  problem->f32_key_gradients = !rows.all() || rows.canonical;
  problem->dropout = desc.dropout;
  const std::string flaw = dropout_flaw(desc.dropout, problem->batch * problem->heads,
                                        rows.length(problem->q_len), problem->kv_len);
  reader.require(flaw.empty(), flaw);
  read_bias(reader, desc, problem);
  read_gradients(reader, desc, problem);
  const Sliceable keys = problem->ragged ? Sliceable{ChunkDim::kKv, "total_kv", problem->total_kv}
                                         : Sliceable{ChunkDim::kKv, "kv_len", problem->kv_len};
  problem->chunks_kv = read_chunks(reader, "async_kv", desc.async_kv, {&keys, 1}, chunks);
  return reader.result();
}

double visible_pairs(const AttentionProblem& problem) {
  auto q_len = static_cast<double>(problem.q_len);
  auto kv_len = static_cast<double>(problem.kv_len);
  const auto batch = static_cast<double>(problem.batch);
  if (problem.ragged && batch > 0) {
    q_len = std::min(q_len, static_cast<double>(problem.total_q) / batch);
    kv_len = std::min(kv_len, static_cast<double>(problem.total_kv) / batch);
  }
  // Query i sees keys clamp(first + i) .. clamp(last + i), as visible_keys() says.
  const auto pairs_of = [&](double position, double rows, double shift) {
    shift += position;
    double pairs = rows * kv_len;
    if (problem.causal != Causal::kNone || problem.window_right >= 0) {
      const double right =
          problem.causal != Causal::kNone ? 0 : static_cast<double>(problem.window_right);
      pairs = sum_of_clamped(rows, shift + 1 + right, kv_len);
    }
    if (problem.window_left >= 0)
      pairs -= sum_of_clamped(rows, shift - static_cast<double>(problem.window_left), kv_len);
    return std::max(pairs, 0.0);
  };
  const QueryRows& rows = problem.rows;
  const auto ranks = static_cast<double>(rows.ranks), rank = static_cast<double>(rows.rank);
  double length = q_len;  // of whole sequences
  if (!rows.all()) length = rows.begin < 0 ? ranks * q_len : static_cast<double>(rows.total);
  const double shift = problem.bottom_right() ? kv_len - length : 0;
  double pairs = 0;
  if (rows.zigzag) {
    const double piece = q_len / 2;
    pairs = pairs_of(rank * piece, piece, shift) +
            pairs_of((2 * ranks - 1 - rank) * piece, piece, shift);
  } else {
    const double begin = rows.begin < 0 ? rank * q_len : static_cast<double>(rows.begin);
    pairs = pairs_of(begin, q_len, shift);
  }
  return pairs * batch * static_cast<double>(problem.heads);
}

dispatch::Explanation describe(const AttentionProblem& problem) {
  dispatch::Explanation explanation{.operation = "attention", .problem = facts_of(problem)};
  const auto key_dim = static_cast<double>(problem.head_dim);
  const auto value_dim = static_cast<double>(problem.value_dim);
  const auto size = static_cast<double>(size_of(problem.dtype));
  const auto batch = static_cast<double>(problem.batch);
  const double q_rows = static_cast<double>(problem.heads) *
                        (problem.ragged ? static_cast<double>(problem.total_q)
                                        : batch * static_cast<double>(problem.q_len));
  const double kv_rows = static_cast<double>(problem.kv_heads) *
                         (problem.ragged ? static_cast<double>(problem.total_kv)
                                         : batch * static_cast<double>(problem.kv_len));
  const double query = q_rows * key_dim * size, out = q_rows * value_dim * size;
  const double key = kv_rows * key_dim * size, value = kv_rows * value_dim * size;
  const double lse = q_rows * (problem.dtype == DType::kF64 ? 8 : 4);
  double bias = static_cast<double>(size_of(problem.bias_dtype));
  for (const int64_t extent : problem.bias_shape) bias *= static_cast<double>(extent);
  // The mask's own shape is known at execution alone; one for all batch entries and heads is usual.
  const double visible =
      problem.visible ? static_cast<double>(problem.q_len) * static_cast<double>(problem.kv_len)
                      : 0;

  const double pairs = visible_pairs(problem);
  explanation.forward.flops = pairs * (2 * key_dim + 2 * value_dim);
  explanation.forward.bytes = query + key + value + out + bias + visible;
  if (!problem.backward()) return explanation;

  // Scores again; then the gradient of probabilities, which all but grad_value need.
  const bool scores = problem.grad_query || problem.grad_key || problem.grad_bias;
  explanation.backward.emplace();
  explanation.backward->flops = pairs * 2 *
                                (key_dim * (1 + problem.grad_query + problem.grad_key) +
                                 value_dim * (scores + problem.grad_value));
  const auto passes = [](bool written, bool read) { return 1.0 + written + read; };
  explanation.backward->bytes = query * passes(problem.grad_query, problem.accumulate_query) +
                                key * passes(problem.grad_key, problem.accumulate_key) +
                                value * passes(problem.grad_value, problem.accumulate_value) +
                                out * 2 + lse +
                                bias * passes(problem.grad_bias, problem.accumulate_bias) + visible;
  return explanation;
}

std::string dropout_flaw(double probability, int64_t batch_heads, int64_t q_len, int64_t kv_len) {
  // The counter has 27 bits for tiles of columns, and 32 for tiles of rows and for batch and head.
  constexpr int64_t kMostColumns = kDropoutTileColumns << 27;
  constexpr int64_t kMostRows = kDropoutTileRows << 32;
  constexpr int64_t kMostHeads = int64_t{1} << 32;
  if (!(probability >= 0 && probability < 1))
    return concatenate("dropout is ", probability, ", expected a probability from 0 to below 1");
  if (probability == 0) return "";
  if (kv_len > kMostColumns || q_len > kMostRows || batch_heads > kMostHeads)
    return concatenate("dropout is for at most ", kMostHeads, " batch * heads, ", kMostRows,
                       " q_len and ", kMostColumns, " kv_len, got ", batch_heads, ", ", q_len,
                       " and ", kv_len, "; split the problem");
  return "";
}

}  // namespace perseid::internal::op
