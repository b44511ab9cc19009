// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/planes.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

int64_t rows_of(const PairsOfRows& pairs, int64_t entries) {
  return entries * pairs.heads * pairs.rows;
}

void set_scale(double scale, double loss, PlanesOfRows* rows) {
  rows->scale = static_cast<float>(scale);
  rows->scale_rest = static_cast<float>(scale * (1 + loss) - double{rows->scale});
}

}  // namespace

AttentionPlanes::AttentionPlanes(const AttentionProblem& problem, PlaneLength key,
                                 PlaneLength value, double query_scale, bool backward)
    : key_(key),
      value_(value),
      entries_{problem.ragged ? 1 : problem.batch, problem.ragged     ? 1
                                                   : problem.kv_index ? problem.kv_batch
                                                                      : problem.batch} {
  const auto planes = [](int64_t dim, PlaneLength length) {
    PlanesOfRows rows;
    rows.dim = static_cast<int32_t>(dim);
    rows.length = length.length;
    rows.chunk = length.chunk;
    rows.common = length.common;
    return rows;
  };
  PairsOfRows& queries = fixed_.pairs[0];
  PairsOfRows& keys = fixed_.pairs[1];
  queries.first = planes(problem.head_dim, key);
  set_scale(query_scale, double{key.loss}, &queries.first);
  queries.first.common = backward && key.common != 0 ? kCommonQueryExponent : 0;
  if (backward) {
    queries.second = planes(problem.value_dim, value);
    queries.second.in_steps = true;
    set_scale(1, double{value.loss}, &queries.second);
  }
  keys.first = planes(problem.head_dim, key);
  keys.second = planes(problem.value_dim, value);
  queries.rows = static_cast<int32_t>(problem.ragged ? problem.total_q : problem.q_len);
  queries.heads = static_cast<int32_t>(problem.heads);
  keys.rows = static_cast<int32_t>(problem.ragged ? problem.total_kv : problem.kv_len);
  keys.heads = static_cast<int32_t>(problem.kv_heads);
  for (size_t i = 0; i < 2; ++i) {
    PairsOfRows& pairs = fixed_.pairs[i];
    pairs.blocks_of_head =
        static_cast<int32_t>(ceil_div(pairs.rows, config().rows(pairs.second.length == 0)));
    blocks_ += entries_[i] * pairs.heads * pairs.blocks_of_head;
    const int64_t of_row = static_cast<int64_t>(sizeof(RowNumbers)) +
                           4 * (int64_t{pairs.first.length} + pairs.second.length);
    bytes_ += static_cast<size_t>(round_up(rows_of(pairs, entries_[i]) * of_row, 16));
  }
  fixed_.first_blocks = static_cast<int32_t>(entries_[0] * queries.heads * queries.blocks_of_head);
}

std::string AttentionPlanes::kernel() const {
  return kernel_name("portable_attention_planes", config());
}

PlanesArguments AttentionPlanes::bind(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const Tensor* grad_out, std::byte* workspace) const {
  PlanesArguments arguments = fixed_;
  bind_rows(query, &arguments.pairs[0].first);
  if (grad_out != nullptr) bind_rows(*grad_out, &arguments.pairs[0].second);
  bind_rows(key, &arguments.pairs[1].first);
  bind_rows(value, &arguments.pairs[1].second);
  for (size_t i = 0; i < 2; ++i) {
    PairsOfRows& pairs = arguments.pairs[i];
    const auto rows = static_cast<size_t>(rows_of(pairs, entries_[i]));
    size_t offset = 0;
    for (PlanesOfRows* planes : {&pairs.first, &pairs.second}) {
      if (planes->length == 0) continue;
      planes->planes = reinterpret_cast<uint16_t*>(workspace + offset);
      offset += rows * 4 * static_cast<size_t>(planes->length);
    }
    pairs.numbers = reinterpret_cast<RowNumbers*>(workspace + offset);
    workspace += round_up(static_cast<int64_t>(offset + rows * sizeof(RowNumbers)), 16);
  }
  return arguments;
}

void bind_rows(const Tensor& tensor, PlanesOfRows* to) {
  to->from = rows_in_memory(with_batch(tensor));
  to->vectors = has_aligned_rows(tensor, 4);
}

RowsInMemory rows_of_planes(const PairsOfRows& pairs, const PlanesOfRows& planes) {
  const int64_t row = 2 * int64_t{planes.length};
  return {planes.planes, {pairs.heads * pairs.rows * row, pairs.rows * row, row, 1}};
}

}  // namespace perseid::internal::cuda
