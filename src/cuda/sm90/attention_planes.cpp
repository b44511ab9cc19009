// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensor maps of float32 in attention forward.
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_boxes.hpp"

namespace perseid::internal::cuda {

Status Sm90Attention::map_planes(const Tensor& query, PlanesArguments* planes,
                                 AttentionForwardArguments* arguments) const {
  PairsOfRows& queries = planes->pairs[0];
  const bool no_keys = planes->pairs[1].rows == 0 || fixed_.batch == 0;
  // As of tensors.
  const PairsOfRows& keys = no_keys ? queries : planes->pairs[1];
  const int64_t entries = problem_.ragged ? 1 : problem_.batch;
  const auto boxed_planes = [&](const PairsOfRows& pairs, const PlanesOfRows& of, int box_rows) {
    const RowsInMemory rows = rows_of_planes(pairs, of);
    return BoxedTensor{rows.data,
                       DType::kF16,
                       {2 * int64_t{of.length}, 1, pairs.rows, pairs.heads, entries},
                       {1, 0, rows.stride[2], rows.stride[1], rows.stride[0]},
                       {kChunk, 1, box_rows, 1, 1}};
  };
  const BoxedTensor numbers{.data = keys.numbers,
                            .dtype = DType::kF32,
                            .size = {2 * entries * keys.heads * keys.rows, 1, 1, 1, 1},
                            .stride = {1, 0, 0, 0, 0},
                            .box = {2 * config_.loaded_numbers(), 1, 1, 1, 1},
                            .swizzle = 0};
  BoxedTensor rows = boxed_planes(queries, queries.first, 64);
  if (config_.splits_queries) {
    rows = boxed(with_batch(query), 0, 64);
    // Those that TMA cannot load are copied to where it can.
    queries.copies = no_keys || !is_mappable(rows);
    if (queries.copies) {
      const int64_t length = queries.first.length;
      rows = {queries.first.planes,
              DType::kF32,
              {length, 1, queries.rows, queries.heads, entries},
              {1, 0, length, queries.rows * length, queries.heads * queries.rows * length},
              {kChunk, 1, 64, 1, 1}};
    } else {
      planes->first_blocks = 0;
    }
    rows.box[0] = kChunk / 2;
  }
  arguments->query_numbers = queries.numbers;
  arguments->query_split = queries.first;
  Status status = make_tensor_map(gpu_, "attention forward: query", rows, &arguments->query);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: planes of key",
                             boxed_planes(keys, keys.first, config_.keys), &arguments->key);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: planes of value",
                             boxed_planes(keys, no_keys ? keys.first : keys.second, config_.keys),
                             &arguments->value);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: numbers of keys", numbers,
                             &arguments->key_numbers);
  return status;
}

}  // namespace perseid::internal::cuda
