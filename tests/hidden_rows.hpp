// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of keys or queries that hold NaN, infinity or large numbers, which rows of results depend on
// them, and whether others keep their bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention_cases.hpp"

namespace perseid::internal::hidden_rows {

using namespace cpu::attention_cases;

// The keys of every sequence whose rows of key and value are replaced. In both, all columns or one.
struct Poison {
  double value = kNaN;
  bool key = true, values = true, one_column = false;
};
inline bool sees(const Fixture& fixture, int64_t batch, int64_t head, int64_t row, int64_t key) {
  const AttentionProblem& p = fixture.problem;
  const Sequence sequence = sequence_of(p, fixture.arguments, batch);
  const KeyRange range = visible_keys(p, row, sequence.q_len, sequence.kv_len);
  if (key < range.begin || key >= range.end) return false;
  const Tensor& visible = fixture.arguments.visible;
  return !p.visible || get(visible, at(visible, {batch, head, row, key})) != 0;
}
// Offsets of element 0 of a row of query, key or value, and of one number a row.
inline int64_t row_of(const AttentionProblem& p, const Tensor& tensor, int64_t begin, int64_t batch,
                      int64_t head, int64_t row) {
  return p.ragged ? at(tensor, {head, begin + row}) : at(tensor, {batch, head, row});
}
inline void replace(const AttentionProblem& p, const AttentionBackward& arguments,
                    const std::vector<int64_t>& keys, const Poison& poison) {
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const Sequence sequence = sequence_of(p, arguments, batch);
    const int64_t rows = p.ragged ? sequence.kv_len : p.kv_len;  // that there are
    for (const int64_t key : keys) {
      if (key >= rows) continue;
      for (int64_t head = 0; head < p.kv_heads; ++head)
        for (const bool values : {false, true}) {
          if (!(values ? poison.values : poison.key)) continue;
          const Tensor& tensor = values ? arguments.value : arguments.key;
          const int64_t first = row_of(p, tensor, sequence.kv_begin, batch, head, key);
          const int64_t dim = tensor.shape[tensor.rank - 1];
          for (int64_t column = 0; column < dim; ++column)
            if (!poison.one_column || column == dim / 2 + 1)
              put(tensor, first + column * tensor.stride[tensor.rank - 1], poison.value);
        }
    }
  }
}
inline bool sees_any(const Fixture& fixture, int64_t batch, int64_t head, int64_t row,
                     const std::vector<int64_t>& keys) {
  for (const int64_t key : keys)
    if (sees(fixture, batch, head, row, key)) return true;
  return false;
}
// Whether a row of both tensors, whose first elements are at `first`, has the same bits.
inline bool same_row(const Tensor& a, const Tensor& b, int64_t first, int64_t dim) {
  const int64_t stride = a.stride[a.rank - 1];
  for (int64_t column = 0; column < dim; ++column) {
    const int64_t at = (first + column * stride) * size_of(a.dtype);
    if (std::memcmp(a.as<std::byte>() + at, b.as<std::byte>() + at,
                    static_cast<size_t>(size_of(a.dtype))) != 0)
      return false;
  }
  return true;
}
// Rows of every sequence that are replaced: of keys, or of queries.
struct HiddenRows {
  Case test;
  std::vector<int64_t> keys, queries;
};

// Replaces rows by `value`; of queries where there are any, else of keys. `both`: the first
// tensor too (query or key), not only the second one.
inline Case replaced(const HiddenRows& hidden, double value, bool both) {
  Case test = hidden.test;
  test.prepare = [hidden, value, both](AttentionBackward& a) {
    const AttentionProblem& p = hidden.test.problem;
    replace(p, a, hidden.keys, {.value = value, .key = both});
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const Sequence sequence = sequence_of(p, a, batch);
      const int64_t rows = p.ragged ? sequence.q_len : p.q_len;  // that there are
      for (const int64_t query : hidden.queries)
        for (int64_t head = 0; head < p.heads && query < rows; ++head)
          for (const Tensor* tensor : {both ? &a.query : &a.grad_out, &a.grad_out}) {
            const int64_t first = row_of(p, *tensor, sequence.q_begin, batch, head, query);
            for (int64_t d = 0; d < tensor->shape[tensor->rank - 1]; ++d)
              put(*tensor, first + d * tensor->stride[tensor->rank - 1], value);
          }
    }
  };
  return test;
}
inline bool contains(const std::vector<int64_t>& rows, int64_t row) {
  return std::find(rows.begin(), rows.end(), row) != rows.end();
}
// Whether gradients of the query, or the key, depend on a row that is replaced: itself, one that
// it sees, or for a key one that a query of its own sees.
inline bool query_depends(const Fixture& f, const HiddenRows& hidden, int64_t batch, int64_t head,
                          int64_t query) {
  return contains(hidden.queries, query) || sees_any(f, batch, head, query, hidden.keys);
}
inline bool key_depends(const Fixture& f, const HiddenRows& hidden, int64_t batch, int64_t kv_head,
                        int64_t key) {
  const int64_t group = f.problem.group();
  bool depends = contains(hidden.keys, key);
  const int64_t q_len = sequence_of(f.problem, f.arguments, batch).q_len;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t query = 0; query < q_len && !depends; ++query)
      depends = query_depends(f, hidden, batch, head, query) && sees(f, batch, head, query, key);
  return depends;
}
// Rows of two results, of a query or key; `name` and the row's coordinates where they differ.
struct Comparison {
  const char* name;
  int64_t rows = 0, different = 0;

  void add(const Tensor& a, const Tensor& b, int64_t first, double tolerance, int64_t batch,
           int64_t head, int64_t row) {
    const int64_t dim = a.shape[a.rank - 1], stride = a.stride[a.rank - 1];
    ++rows;
    bool same = same_row(a, b, first, dim);
    if (!same && tolerance > 0) {
      same = true;
      for (int64_t d = 0; d < dim; ++d) {
        const double x = get(a, first + d * stride), y = get(b, first + d * stride);
        same = same && std::abs(x - y) <= tolerance * std::max(1.0, std::abs(x));
      }
    }
    if (same) return;
    if (different++ == 0)
      ADD_FAILURE() << name << ", first changed: batch " << batch << " head " << head << " row "
                    << row;
  }
  void expect_same() const { EXPECT_EQ(different, 0) << name << ": of " << rows; }
};
// Relative to numbers of at least 1; 0: their bits.
struct HiddenTolerance {
  double queries = 0, keys = 0;
};
inline void compare_gradients(const Fixture& before, const Fixture& after, const HiddenRows& hidden,
                              HiddenTolerance tolerance = {}) {
  const AttentionProblem& p = before.problem;
  ASSERT_TRUE(p.grad_query && p.grad_key && p.grad_value);  // or there is nothing to compare
  Comparison queries{"grad_query"}, keys{"grad_key"}, values{"grad_value"}, bias{"grad_bias"};
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const Sequence s = sequence_of(p, before.arguments, batch);
    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t row = 0; row < s.q_len; ++row) {
        if (query_depends(before, hidden, batch, head, row)) continue;
        const Tensor& a = before.grad_query.tensor;
        queries.add(a, after.grad_query.tensor, row_of(p, a, s.q_begin, batch, head, row),
                    tolerance.queries, batch, head, row);
        const Tensor& b = before.grad_bias.tensor;
        if (p.grad_bias)
          bias.add(b, after.grad_bias.tensor, at(b, {batch, head, row, 0}), 0, batch, head, row);
      }
    for (int64_t head = 0; head < p.kv_heads; ++head)
      for (int64_t row = 0; row < s.kv_len; ++row) {
        if (key_depends(before, hidden, batch, head, row)) continue;
        const Tensor &a = before.grad_key.tensor, &b = before.grad_value.tensor;
        keys.add(a, after.grad_key.tensor, row_of(p, a, s.kv_begin, batch, head, row),
                 tolerance.keys, batch, head, row);
        values.add(b, after.grad_value.tensor, row_of(p, b, s.kv_begin, batch, head, row),
                   tolerance.keys, batch, head, row);
      }
  }
  EXPECT_GT(queries.rows + keys.rows, 0);
  queries.expect_same();
  keys.expect_same();
  values.expect_same();
  if (p.grad_bias) bias.expect_same();
}

}  // namespace perseid::internal::hidden_rows
