// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Problems that the kernels of all types have in common on an emulated GPU (emulated_gpu.hpp), and
// the launches that follow kernels of several types.
#pragma once

#include "attention_cases.hpp"
#include "cuda/attention/arguments.hpp"
#include "cuda/attention/clear_rows.hpp"
// Before kernels.
#include "emulated_gpu.hpp"
// Kernels.
#include "cuda/device/attention/clear_rows.hpp"

namespace perseid::internal::emulated_attention {

using namespace cpu::attention_cases;

// The workspace of an execution, which is aligned as a GPU's memory is.
inline Array make_workspace(size_t bytes) {
  return Array({static_cast<int64_t>(bytes)}, DType::kBool);
}

// The launches after one with splits of the keys.
template <class Arguments, class Combine, class Fixup>
void launch_after_splits(const Arguments& arguments, bool fixes, const Combine& combine,
                         const Fixup& fixup) {
  const auto rows = static_cast<int>(arguments.rows) * ((arguments.value_dim + 31) / 32);
  for (int b = 0; b < rows; b += cuda::kRowWarps) {
    emulated_gpu::Block block(b / cuda::kRowWarps, 32 * cuda::kRowWarps, 0, rows);
    block.run(combine);
  }
  emulated_gpu::Block block(0, 32 * cuda::kRowWarps, 0);
  if (fixes) block.run(fixup);
}

// The launch that clears rows which query lengths leave out.
template <class Tensors>
void clear_left_out_rows(const AttentionProblem& problem, const Tensors& tensors, Tensor rows,
                         Tensor lse) {
  if (!problem.q_lens) return;
  const cuda::ClearRowsArguments cleared =
      cuda::clear_rows_arguments(problem, tensors, std::move(rows), std::move(lse));
  for (int b = 0; b < problem.batch * problem.heads; ++b) {
    emulated_gpu::Block block(b, cuda::kClearRowsThreads, 0);
    block.run([&] { cuda::clear_rows(cleared); });
  }
}

inline Case forward_case(DType dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                         int64_t kv_len, int64_t dim, int64_t value_dim) {
  Case test = make_case(dtype, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  return test;
}

// A ragged batch with every feature. `bias_shape`: whole where empty.
inline Case with_everything(Case test, int64_t q_len, int64_t kv_len, DType bias,
                            std::vector<int64_t> bias_shape = {}) {
  const bool gradients = test.problem.grad_query;
  set_ragged(test, {5, 0, q_len, 1, 33}, {7, 3, kv_len, 0, 64});
  test.layout = Layout::kBshd;
  test.grad_lse = gradients;
  test.problem.causal = Causal::kBottomRight;
  test.problem.dropout = 0.3;
  test.problem.kv_lens = true;
  test.kv_lens = {7, 1, 90, 0, 63};
  if (bias_shape.empty()) bias_shape = {5, 1, q_len, kv_len};
  add_bias(test, bias, std::move(bias_shape), gradients);
  set_visible(test, {1, test.problem.heads, q_len, 1});
  return test;
}
// The second of three pieces of each sequence, which begins anywhere in a tile of dropout.
inline Case with_rows_of_a_rank(Case test) {
  test.problem.rows = {.ranks = 3, .rank = 1};
  // Of 99 and of 3 * q_len queries in all, the later see no keys.
  test.problem.causal = Causal::kTopLeft;
  return test;
}
// Elements that lie apart, a negative scale and a window.
inline Case with_any_strides_and_scale(Case test) {
  test.layout = Layout::kSpread;
  test.problem.scale = -0.3;
  test.problem.causal = Causal::kBottomRight;
  test.problem.window_left = 40;
  return test;
}
// Few queries of many keys, which are split.
inline Case split_case(DType dtype, int64_t batch) {
  Case test = forward_case(dtype, batch, 4, 2, 5, 1300, 64, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kBottomRight;
  return test;
}
// The values of a hidden key, and of one that some queries see, are not finite.
inline Case with_nonfinite_values(Case test) {
  test.prepare = [last = test.problem.batch - 1](AttentionBackward& a) {
    put(a.value, at(a.value, {0, 0, 1297, 5}), kNaN);
    put(a.value, at(a.value, {last, 1, 600, 40}), kInfinity);
  };
  return test;
}
// One query of many keys, whose last split has one.
inline Case query_case(DType dtype) { return forward_case(dtype, 2, 6, 2, 1, 1281, 64, 64); }
// A query that is NaN, and the key that is alone in its split.
inline Case with_nan(Case test) {
  test.prepare = [](AttentionBackward& a) {
    put(a.query, at(a.query, {0, 4, 0, 5}), kNaN);
    put(a.key, at(a.key, {1, 0, 1280, 9}), kNaN);
  };
  return test;
}
// Entries of a cache, and sequences whose keys begin anywhere.
inline std::vector<Case> cases_of_caches(DType dtype) {
  Case entries = forward_case(dtype, 3, 4, 2, 70, 120, 64, 64);
  entries.problem.kv_index = true;
  entries.problem.kv_batch = 4;
  entries.kv_index = {3, 0, 3};
  Case starts = forward_case(dtype, 0, 4, 2, 0, 0, 64, 64);
  set_ragged(starts, {70, 1, 66}, {100, 100, 100});  // of keys, 300 rows in all
  starts.problem.kv_starts = starts.problem.kv_lens = true;
  starts.kv_starts = {200, 0, 190};
  starts.kv_lens = {100, 7, 80};
  return {entries, starts};
}

}  // namespace perseid::internal::emulated_attention
