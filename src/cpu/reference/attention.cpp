// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// With p the probabilities of a row (attention_rows.hpp), d what dropout multiplies them by (0 or
// 256 / threshold), and v the values:
//
//   out_i         = sum_j p_ij d_ij v_j
//   grad_p_ij     = d_ij * (grad_out_i . v_j)
//   grad_score_ij = p_ij * (grad_p_ij - sum_k p_ik grad_p_ik + grad_lse_i)
//   grad_query_i  = scale * sum_j grad_score_ij M'_ij key_j
//   grad_key_j    = scale * sum_i grad_score_ij M'_ij query_i
//   grad_value_j  = sum_i p_ij d_ij grad_out_i
//   grad_bias     = sum of grad_score over what reads the same bias
//
// M' is 1 without a score modifier.
//
// Backward computes the probabilities again rather than take them from out and lse.
#include <algorithm>

#include "cpu/reference/attention_rows.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::internal::cpu::reference {
namespace {

void forward_rows(const AttentionProblem& problem, const AttentionForward& arguments, int64_t batch,
                  int64_t head, int64_t first, RowBlock& block) {
  const Sequence sequence = sequence_of(problem, arguments, batch);
  if (first >= sequence.q_len) return;
  compute_probabilities(problem, arguments, sequence, batch, head, first, block);
  for (int64_t i = 0; i < problem.value_dim; ++i) block.out[i] = {};
  for (int64_t j = block.begin; j < block.end; ++j) {
    if (block.seen[j] == 0) continue;
    load_vector(problem, arguments.value, sequence.kv_entry, head / problem.group(),
                sequence.kv_begin + j, problem.value_dim, block.narrow);
    accumulate(block.out, block.narrow, problem.value_dim, block.dropped(arguments.dropout, j),
               block.lanes(j));
  }
  const int64_t row = sequence.q_begin + first;
  store_lanes(problem, arguments.out, batch, head, row, block.rows, problem.value_dim, block.out,
              1);
  if (!arguments.lse.present()) return;
  for (int64_t r = 0; r < block.rows; ++r)
    store(arguments.lse, offset_of(problem, arguments.lse, batch, head, row + r), block.lse.at[r]);
}

// Fills what compute_probabilities() does, grad_out (in `out`) and grad_score.
void compute_grad_scores(const AttentionProblem& problem, const AttentionBackward& arguments,
                         const Sequence& sequence, int64_t batch, int64_t head, int64_t first,
                         RowBlock& block) {
  compute_probabilities(problem, arguments, sequence, batch, head, first, block);
  const int64_t row = sequence.q_begin + first;
  load_lanes(problem, arguments.grad_out, batch, head, row, block.rows, problem.value_dim,
             block.out);
  Lanes shift{};  // grad_lse - sum_k p_k grad_p_k
  if (arguments.grad_lse.present())
    for (int64_t r = 0; r < block.rows; ++r)
      shift.at[r] =
          load(arguments.grad_lse, offset_of(problem, arguments.grad_lse, batch, head, row + r));
  for (int64_t j = block.begin; j < block.end; ++j) {
    if (block.seen[j] == 0) continue;
    load_vector(problem, arguments.value, sequence.kv_entry, head / problem.group(),
                sequence.kv_begin + j, problem.value_dim, block.narrow);
    const Lanes grad_dropped = dot(block.out, block.narrow, problem.value_dim);
    for (int64_t r = 0; r < kLanes; ++r) {
      double& grad_p = block.grad_score[j].at[r];
      grad_p = 0;
      if (!block.sees(j, r)) continue;
      grad_p = grad_dropped.at[r] * block.dropout_factor(arguments.dropout, j, r);
      shift.at[r] -= block.probability[j].at[r] * grad_p;
    }
  }
  for (int64_t j = block.begin; j < block.end; ++j)
    for (int64_t r = 0; r < block.rows; ++r)
      if (block.sees(j, r))
        block.grad_score[j].at[r] =
            block.probability[j].at[r] * (block.grad_score[j].at[r] + shift.at[r]);
}

// Adds what a block of rows gives to grad_key and grad_value, and writes its grad_query.
void backward_rows(const AttentionProblem& problem, const AttentionBackward& arguments,
                   const Sequence& sequence, int64_t batch, int64_t head, int64_t first,
                   RowBlock& block) {
  compute_grad_scores(problem, arguments, sequence, batch, head, first, block);
  const int64_t head_dim = problem.head_dim, value_dim = problem.value_dim;
  const bool grad_query = arguments.grad_query.present();
  for (int64_t i = 0; grad_query && i < head_dim; ++i) block.grad_query[i] = {};
  for (int64_t j = block.begin; j < block.end; ++j) {
    if (block.seen[j] == 0) continue;
    const uint32_t lanes = block.lanes(j);
    const Lanes grad_product = block.grad_product(j);
    if (grad_query) {
      load_vector(problem, arguments.key, sequence.kv_entry, head / problem.group(),
                  sequence.kv_begin + j, head_dim, block.narrow);
      accumulate(block.grad_query, block.narrow, head_dim, grad_product, lanes);
    }
    if (arguments.grad_key.present())
      accumulate_over_lanes(block.grad_key + j * head_dim, block.query, head_dim, grad_product,
                            lanes);
    if (arguments.grad_value.present())
      accumulate_over_lanes(block.grad_value + j * value_dim, block.out, value_dim,
                            block.dropped(arguments.dropout, j), lanes);
  }
  if (grad_query)
    store_lanes(problem, arguments.grad_query, batch, head, sequence.q_begin + first, block.rows,
                head_dim, block.grad_query, problem.scale, problem.accumulate_query);
}

// All query heads that share one key head, one after another.
void backward_kv_head(const AttentionProblem& problem, const AttentionBackward& arguments,
                      int64_t batch, int64_t kv_head, RowBlock& block) {
  const Sequence sequence = sequence_of(problem, arguments, batch);
  // kv_lens masks keys that the sequence nevertheless owns: their gradients are 0.
  const int64_t keys = problem.ragged
                           ? read_length(arguments.cu_seqlens_kv, batch + 1) - sequence.kv_begin
                           : problem.kv_len;
  const auto clear = [&](const Tensor& gradient, double* sums, int64_t dim) {
    if (gradient.present()) std::fill_n(sums, keys * dim, 0.0);
  };
  const auto write = [&](const Tensor& gradient, const double* sums, int64_t dim, double factor,
                         bool add) {
    for (int64_t j = 0; gradient.present() && j < keys; ++j) {
      const int64_t offset = offset_of(problem, gradient, batch, kv_head, sequence.kv_begin + j);
      for (int64_t i = 0; i < dim; ++i)
        store_or_add(add, gradient, offset + i * gradient.stride[gradient.rank - 1],
                     factor * sums[j * dim + i]);
    }
  };
  clear(arguments.grad_key, block.grad_key, problem.head_dim);
  clear(arguments.grad_value, block.grad_value, problem.value_dim);
  for (int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head)
    for (int64_t first = 0; first < sequence.q_len; first += kLanes)
      backward_rows(problem, arguments, sequence, batch, head, first, block);
  write(arguments.grad_key, block.grad_key, problem.head_dim, problem.scale,
        problem.accumulate_key);
  write(arguments.grad_value, block.grad_value, problem.value_dim, 1, problem.accumulate_value);
}

// A block of rows of grad_bias, or its only row, summed over every query row that reads it.
void grad_bias_rows(const AttentionProblem& problem, const AttentionBackward& arguments,
                    int64_t bias_batch, int64_t bias_head, int64_t bias_first, RowBlock& block) {
  const int64_t* shape = problem.bias_shape;
  struct Range {
    int64_t begin, end;
  };
  const Range batches = shape[0] == 1 ? Range{0, problem.batch} : Range{bias_batch, bias_batch + 1};
  const Range heads = shape[1] == 1 ? Range{0, problem.heads} : Range{bias_head, bias_head + 1};
  const Range rows = shape[2] == 1 ? Range{0, problem.q_len} : Range{bias_first, bias_first + 1};

  std::fill_n(block.grad_bias, problem.kv_len, Lanes{});
  const bool any = problem.q_len > 0 && problem.kv_len > 0;
  for (int64_t batch = batches.begin; any && batch < batches.end; ++batch) {
    const Sequence sequence = sequence_of(problem, arguments, batch);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      for (int64_t first = rows.begin; first < min(rows.end, sequence.q_len); first += kLanes) {
        compute_grad_scores(problem, arguments, sequence, batch, head, first, block);
        for (int64_t j = block.begin; j < block.end; ++j)
          for (int64_t r = 0; r < block.rows; ++r)
            if (block.sees(j, r)) block.grad_bias[j].at[r] += block.grad_score[j].at[r];
      }
    }
  }

  // Where rows or keys are summed, everything ends in lane 0 or key 0.
  if (shape[2] == 1)
    for (int64_t j = 0; j < problem.kv_len; ++j)
      for (int64_t r = 1; r < kLanes; ++r) block.grad_bias[j].at[0] += block.grad_bias[j].at[r];
  const Tensor& gradient = arguments.grad_bias;
  for (int64_t r = 0; r < min(kLanes, shape[2] - bias_first); ++r) {
    const int64_t offset = bias_batch * gradient.stride[0] + bias_head * gradient.stride[1] +
                           (bias_first + r) * gradient.stride[2];
    double total = 0;
    for (int64_t j = 0; j < problem.kv_len; ++j) {
      total += block.grad_bias[j].at[r];
      if (shape[3] != 1)
        store_or_add(problem.accumulate_bias, gradient, offset + j * gradient.stride[3],
                     block.grad_bias[j].at[r]);
    }
    if (shape[3] == 1) store_or_add(problem.accumulate_bias, gradient, offset, total);
  }
}

}  // namespace

size_t attention_workspace(const AttentionProblem& problem, int32_t workers, bool backward) {
  return static_cast<size_t>(workers) * RowBlock::bytes(problem, backward);
}

void attention_forward(const AttentionProblem& problem, const AttentionForward& arguments,
                       const Execution& execution) {
  if (arguments.out.empty() && arguments.lse.empty()) return;
  const int64_t blocks = ceil_div(problem.q_len, kLanes);
  for_each_task(execution.executor, problem.batch * problem.heads * blocks,
                [&](int64_t task, int32_t worker) {
                  RowBlock block = RowBlock::of_worker(problem, false, execution, worker);
                  const int64_t batch_head = task / blocks;
                  forward_rows(problem, arguments, batch_head / problem.heads,
                               batch_head % problem.heads, task % blocks * kLanes, block);
                });
}

void attention_backward(const AttentionProblem& problem, const AttentionBackward& arguments,
                        const Execution& execution) {
  if (!arguments.grad_query.empty() || !arguments.grad_key.empty() || !arguments.grad_value.empty())
    for_each_task(execution.executor, problem.batch * problem.kv_heads,
                  [&](int64_t task, int32_t worker) {
                    RowBlock block = RowBlock::of_worker(problem, true, execution, worker);
                    backward_kv_head(problem, arguments, task / problem.kv_heads,
                                     task % problem.kv_heads, block);
                  });
  if (arguments.grad_bias.empty()) return;
  // grad_bias is summed over any of its dimensions, which may cross every task above: it is
  // computed by itself, a task for each block of its own rows.
  const int64_t* shape = problem.bias_shape;
  const int64_t blocks = ceil_div(shape[2], kLanes);
  for_each_task(execution.executor, shape[0] * shape[1] * blocks,
                [&](int64_t task, int32_t worker) {
                  RowBlock block = RowBlock::of_worker(problem, true, execution, worker);
                  const int64_t batch_head = task / blocks;
                  grad_bias_rows(problem, arguments, batch_head / shape[1], batch_head % shape[1],
                                 task % blocks * kLanes, block);
                });
}

}  // namespace perseid::internal::cpu::reference
