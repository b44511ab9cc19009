// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention problems with random inputs, their results by the float64 reference, and the comparison
// of a kernel table's results with them. For the tests of attention forward and backward.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "compare.hpp"
#include "cpu/kernel_table.hpp"
#include "cpu/reference/reference.hpp"
#include "tensor.hpp"
#include "tested_kernels.hpp"

namespace perseid::internal::cpu::attention_cases {

using namespace tests;

enum class Layout { kBhsd, kBshd, kReversed, kSpread };

// A tensor given in the order of dimensions of math/attention_problem.hpp.
inline Array make_array(DType dtype, const Shape& shape, Layout layout = Layout::kBhsd) {
  std::vector<size_t> order(shape.size());  // from the slowest dimension to the fastest
  for (size_t i = 0; i < shape.size(); ++i) order[i] = i;
  if (layout == Layout::kBshd && shape.size() >= 3)
    std::swap(order[shape.size() - 3], order[shape.size() - 2]);
  Shape strides(shape.size());
  int64_t stride = layout == Layout::kSpread ? 3 : 1;
  for (size_t k = shape.size(); k-- > 0;) {
    strides[order[k]] = layout == Layout::kReversed ? -stride : stride;
    stride *= std::max<int64_t>(shape[order[k]], 1);
    if (layout == Layout::kSpread) stride += 5;
  }
  return Array(shape, dtype, strides);
}
// A tensor repeated along the dimensions where it has size 1.
inline Tensor broadcast(Tensor tensor, const AttentionProblem& problem) {
  const int64_t full[4] = {problem.batch, problem.heads, problem.q_len, problem.kv_len};
  for (int d = 0; d < 4; ++d) {
    if (tensor.shape[d] == full[d]) continue;
    tensor.shape[d] = full[d];
    tensor.stride[d] = 0;
  }
  return tensor;
}

struct Case {
  AttentionProblem problem;
  Layout layout = Layout::kBhsd;
  bool grad_lse = false;
  std::vector<int64_t> q_lens, kv_lens_ragged, kv_lens;   // q_lens: ragged
  std::vector<int64_t> seen_q_lens, kv_starts, kv_index;  // where the problem says so
  std::vector<int64_t> visible_shape;
  uint64_t seed = 1;
  double input_scale = 1;                           // 3 and more make peaked rows
  std::function<void(AttentionBackward&)> prepare;  // after the inputs are filled
  bool bits_alone = false;  // results are compared with each other, not with the reference
};

inline std::string text_of(const Case& test) {
  const AttentionProblem& p = test.problem;
  return concatenate(name_of(p.dtype), " batch ", p.batch, " heads ", p.heads, "/", p.kv_heads,
                     " lengths ", p.q_len, "x", p.kv_len, " dims ", p.head_dim, "/", p.value_dim,
                     " causal ", static_cast<int>(p.causal), " window ", p.window_left, ",",
                     p.window_right, " layout ", static_cast<int>(test.layout));
}

inline Case make_case(DType dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                      int64_t kv_len, int64_t dim, int64_t value_dim) {
  if (tested_kernels() == TestedKernels::kFloat32) dtype = DType::kF32;
  Case test;
  AttentionProblem& p = test.problem;
  p.dtype = dtype;
  p.batch = batch;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.head_dim = dim;
  p.value_dim = value_dim;
  p.scale = dim > 0 ? 1 / std::sqrt(static_cast<double>(dim)) : 1;
  p.grad_query = p.grad_key = p.grad_value = true;
  return test;
}
inline void add_bias(Case& test, DType dtype, std::vector<int64_t> shape, bool grad) {
  test.problem.bias = true;
  test.problem.bias_dtype = dtype;
  std::copy(shape.begin(), shape.end(), test.problem.bias_shape);
  test.problem.grad_bias = grad;
}
inline void set_visible(Case& test, std::vector<int64_t> shape) {
  test.problem.visible = true;
  test.visible_shape = shape;
}
inline void set_ragged(Case& test, std::vector<int64_t> q_lens, std::vector<int64_t> kv_lens) {
  AttentionProblem& p = test.problem;
  p.ragged = true;
  p.batch = static_cast<int64_t>(q_lens.size());
  for (size_t b = 0; b < q_lens.size(); ++b) {
    p.q_len = std::max(p.q_len, q_lens[b]);
    p.kv_len = std::max(p.kv_len, kv_lens[b]);
    p.total_q += q_lens[b];
    p.total_kv += kv_lens[b];
  }
  test.q_lens = q_lens;
  test.kv_lens_ragged = kv_lens;
}

// Inputs, the results of the reference and room for those to be tested.
struct Fixture {
  AttentionProblem problem;
  Array query, key, value, bias, visible, out, lse, grad_out, grad_lse, cu_q, cu_kv, kv_lens;
  Array q_lens, kv_index;
  Array grad_query, grad_key, grad_value, grad_bias;
  AttentionBackward arguments;
  std::map<std::string, std::vector<double>> want;  // by the names of perseid.h
  std::unique_ptr<Executor> pool = make_thread_pool(2);

  explicit Fixture(const Case& test) : problem(test.problem), given(test) {
    const AttentionProblem& p = problem;
    Random random{test.seed};
    query = make_array(p.dtype, rows(p.heads, false, p.head_dim), test.layout);
    key = make_array(p.dtype, rows(p.kv_heads, true, p.head_dim), test.layout);
    value = make_array(p.dtype, rows(p.kv_heads, true, p.value_dim), test.layout);
    out = make_array(p.dtype, rows(p.heads, false, p.value_dim), test.layout);
    lse = make_array(wide(), rows(p.heads, false, -1));
    grad_out = make_array(p.dtype, rows(p.heads, false, p.value_dim), test.layout);
    grad_query = make_array(p.dtype, rows(p.heads, false, p.head_dim), test.layout);
    grad_key = make_array(p.dtype, rows(p.kv_heads, true, p.head_dim), test.layout);
    grad_value = make_array(p.dtype, rows(p.kv_heads, true, p.value_dim), test.layout);
    fill(query.tensor, random, 2 * test.input_scale);
    fill(key.tensor, random, 2 * test.input_scale);
    fill(value.tensor, random, test.input_scale);
    fill(grad_out.tensor, random, test.input_scale);
    arguments.query = query.tensor;
    arguments.key = key.tensor;
    arguments.value = value.tensor;
    arguments.grad_out = grad_out.tensor;
    if (test.grad_lse) {
      grad_lse = make_array(wide(), rows(p.heads, false, -1));
      fill(grad_lse.tensor, random);
      arguments.grad_lse = grad_lse.tensor;
    }
    if (p.bias) {
      const Shape shape(p.bias_shape, p.bias_shape + 4);
      bias = make_array(p.bias_dtype, shape, test.layout);
      grad_bias = make_array(p.bias_dtype, shape, test.layout);
      fill(bias.tensor, random, 2);
      arguments.bias = broadcast(bias.tensor, p);
    }
    if (p.visible) {
      visible = make_array(DType::kBool, test.visible_shape, test.layout);
      for_each(visible.tensor, [&](int64_t offset, int64_t) {
        put(visible.tensor, offset, random.uniform() > -0.4);
      });
      arguments.visible = broadcast(visible.tensor, p);
    }
    if (p.ragged) {
      cu_q = lengths(test.q_lens, true);
      cu_kv = p.kv_starts ? lengths(test.kv_starts, false) : lengths(test.kv_lens_ragged, true);
      arguments.cu_seqlens_q = cu_q.tensor;
      arguments.cu_seqlens_kv = cu_kv.tensor;
    }
    if (p.kv_lens) {
      kv_lens = lengths(test.kv_lens, false);
      arguments.kv_lens = kv_lens.tensor;
    }
    if (p.q_lens) {
      q_lens = lengths(test.seen_q_lens, false);
      arguments.q_lens = q_lens.tensor;
    }
    if (p.kv_index) {
      kv_index = lengths(test.kv_index, false);
      arguments.kv_index = kv_index.tensor;
    }
    if (p.dropout > 0) arguments.dropout = {dropout_threshold(p.dropout), 0x123456789abcdefu, 7};
    make_boundaries_count();
    if (test.prepare) test.prepare(arguments);
    compute_reference();
    arguments.out = out.tensor;
    arguments.lse = lse.tensor;
    if (p.grad_query) arguments.grad_query = grad_query.tensor;
    if (p.grad_key) arguments.grad_key = grad_key.tensor;
    if (p.grad_value) arguments.grad_value = grad_value.tensor;
    if (p.grad_bias) arguments.grad_bias = grad_bias.tensor;
  }

  AttentionForward forward_arguments() const {
    AttentionForward forward;
    forward.query = arguments.query;
    forward.key = arguments.key;
    forward.value = arguments.value;
    forward.bias = arguments.bias;
    forward.visible = arguments.visible;
    forward.cu_seqlens_q = arguments.cu_seqlens_q;
    forward.cu_seqlens_kv = arguments.cu_seqlens_kv;
    forward.q_lens = arguments.q_lens;
    forward.kv_lens = arguments.kv_lens;
    forward.kv_index = arguments.kv_index;
    forward.dropout = arguments.dropout;
    forward.out = out.tensor;
    forward.lse = lse.tensor;
    return forward;
  }

  // Runs kernel(execution) on a workspace of `bytes`. Whatever the workspace held before must not
  // matter; what lies behind it must not change.
  template <class Kernel>
  static void run_in(size_t bytes, Executor& executor, const Kernel& kernel) {
    Array workspace({static_cast<int64_t>(bytes)}, DType::kBool);
    kernel(Execution{executor, workspace.tensor.as<std::byte>()});
    workspace.expect_guards();
  }
  void run(const KernelTable& table, Executor& executor) {
    run_in(table.attention_backward_workspace(problem, executor.workers()), executor,
           [&](const Execution& execution) {
             table.attention_backward(problem, arguments, execution);
           });
  }
  void run_forward(const KernelTable& table, Executor& executor) {
    run_in(table.attention_forward_workspace(problem, executor.workers()), executor,
           [&](const Execution& execution) {
             table.attention_forward(problem, forward_arguments(), execution);
           });
  }
  void run_decode(const KernelTable& table, Executor& executor) {
    run_in(table.attention_decode_workspace(problem, executor.workers()), executor,
           [&](const Execution& execution) {
             table.attention_decode(problem, forward_arguments(), execution);
           });
  }

  void compare(const char* name, const Tensor& got) const {
    // The naive formula, which limits follow from, has the rows of all ranks.
    if (!problem.rows.all()) {
      const std::vector<double>& exact = want.at(name);
      harness::Limit limit;
      for (const double each : exact) limit.each.push_back(0x1p-6 * std::max(1.0, std::abs(each)));
      return expect_close(name, got, exact, limit);
    }
    if (!limits) limits.emplace(make_limits());
    limits->expect(name, got, want.at(name));
  }
  // Compares with the limits of other inputs, where the naive formula makes NaN of these.
  void use_limits_of(const Fixture& other) const { limits.emplace(other.make_limits()); }
  void compare_forward() const {
    compare("out", out.tensor);
    compare("lse", lse.tensor);
    out.expect_guards();
    lse.expect_guards();
  }
  void compare_gradients() const {
    const AttentionBackward& a = arguments;
    if (a.grad_query.present()) compare("grad_query", grad_query.tensor);
    if (a.grad_key.present()) compare("grad_key", grad_key.tensor);
    if (a.grad_value.present()) compare("grad_value", grad_value.tensor);
    if (a.grad_bias.present()) compare("grad_bias", grad_bias.tensor);
    for (const Array* each : {&grad_query, &grad_key, &grad_value, &grad_bias})
      if (each->tensor.present()) each->expect_guards();
  }
  void check_forward(const KernelTable& table) {
    SCOPED_TRACE(table.isa);
    run_forward(table, *pool);
    compare_forward();
    if (problem.group() * problem.q_len > 16) return;
    SCOPED_TRACE("decode");
    out.blank();
    lse.blank();
    run_decode(table, *pool);
    compare_forward();
  }
  void check(const KernelTable& table) {
    SCOPED_TRACE(table.isa);
    run(table, *pool);
    compare_gradients();
  }

 private:
  DType wide() const { return problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
  Shape rows(int64_t heads, bool keys, int64_t dim) const {
    const AttentionProblem& p = problem;
    Shape shape = {keys && p.kv_index ? p.kv_batch : p.batch, heads, keys ? p.kv_len : p.q_len};
    if (p.ragged) shape = {heads, keys ? p.total_kv : p.total_q};
    if (dim >= 0) shape.push_back(dim);
    return shape;
  }
  Array lengths(const Shape& values, bool cumulative) const {
    Array array({problem.batch + (cumulative ? 1 : 0)}, DType::kI32);
    const Shape all = cumulative ? sums_of(values) : values;
    array.fill(std::vector<double>(all.begin(), all.end()));
    return array;
  }
  static Shape sums_of(const Shape& values) {
    Shape sums = {0};
    for (const int64_t each : values) sums.push_back(sums.back() + each);
    return sums;
  }
  // The first element of a row of [batch, heads, length, dim], or of the packed [heads, total,
  // dim].
  int64_t row_of(const Tensor& tensor, int64_t b, int64_t head, int64_t begin, int64_t i) const {
    return problem.ragged ? at(tensor, {head, begin + i}) : at(tensor, {b, head, i});
  }

  // Keys at which tiles, chunks and splits begin and end, the last one too, matter more to one row
  // than all others together: to lose one is to be far beyond any tolerance.
  void make_boundaries_count() {
    constexpr int64_t kKeys[] = {0,   15,  16,  63,  64,  95,  96,   127, 128,
                                 191, 192, 255, 256, 511, 512, 1023, 1024};
    const AttentionProblem& p = problem;
    if (p.batch > 64 || !(p.scale > 0)) return;
    for (int64_t b = 0; b < p.batch; ++b) {
      const Sequence s = sequence_of(p, arguments, b);
      if (s.q_len == 0 || s.kv_len == 0) continue;
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        int64_t turn = 0;
        for (const int64_t each : kKeys)
          if (each < s.kv_len - 1) make_count(b, h, s, each, turn++);
        make_count(b, h, s, s.kv_len - 1, turn);
      }
    }
  }
  void make_count(int64_t b, int64_t kv_head, const Sequence& s, int64_t j, int64_t turn) {
    const AttentionProblem& p = problem;
    const int64_t shift = p.bottom_right() ? s.kv_len - s.q_len : 0;
    const int64_t i = std::clamp<int64_t>(j - shift, 0, s.q_len - 1);
    const int64_t q = row_of(query.tensor, b, kv_head * p.group() + turn % p.group(), s.q_begin, i);
    const int64_t k = row_of(key.tensor, s.kv_entry, kv_head, s.kv_begin, j);
    const int64_t q_step = query.tensor.stride[query.tensor.rank - 1];
    const int64_t k_step = key.tensor.stride[key.tensor.rank - 1];
    double norm = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) norm += std::pow(get(query.tensor, q + d * q_step), 2);
    const double wanted = std::log(static_cast<double>(s.kv_len)) + 3;
    const double factor = std::min(wanted / std::max(norm * p.scale, 0.1), 20.0);
    for (int64_t d = 0; d < p.head_dim; ++d)
      put(key.tensor, k + d * k_step, factor * get(query.tensor, q + d * q_step));
  }

  // What rows of queries get that q_lens leaves out: reference::attention_forward and
  // attention_backward do not write them.
  void set_rest(const Tensor& tensor, double number) const {
    const AttentionProblem& p = problem;
    for (int64_t b = 0; p.q_lens && b < p.batch; ++b) {
      const Sequence s = sequence_of(p, arguments, b);
      const int64_t end = p.ragged ? given.q_lens[static_cast<size_t>(b)] : p.q_len;
      Tensor row = tensor;  // of lse one number
      row.rank = 1;
      row.shape[0] = tensor.rank == (p.ragged ? 3 : 4) ? tensor.shape[tensor.rank - 1] : 1;
      row.stride[0] = tensor.stride[tensor.rank - 1];
      for (int64_t h = 0; h < p.heads; ++h)
        for (int64_t i = s.q_len; i < end; ++i)
          for (int64_t d = 0; d < row.shape[0]; ++d)
            put(tensor, row_of(tensor, b, h, s.q_begin, i) + d * row.stride[0], number);
    }
  }

  void compute_reference() {
    const AttentionProblem& p = problem;
    Array workspace({static_cast<int64_t>(reference::attention_workspace(p, 2, true) +
                                          reference::attention_workspace(p, 2, false))},
                    DType::kBool);
    const Execution execution{*pool, workspace.tensor.as<std::byte>()};
    const auto exact = [](const Array& array) {
      return Array(Shape(array.tensor.shape, array.tensor.shape + array.tensor.rank));
    };
    // Backward reads out and lse as they are stored.
    AttentionForward forward = forward_arguments();
    reference::attention_forward(p, forward, execution);
    if (given.bits_alone) return;
    const Array exact_out = exact(out), exact_lse = exact(lse);
    forward.out = exact_out.tensor;
    forward.lse = exact_lse.tensor;
    reference::attention_forward(p, forward, execution);
    set_rest(exact_out.tensor, 0);
    set_rest(exact_lse.tensor, -std::numeric_limits<double>::infinity());
    want["out"] = exact_out.values();
    want["lse"] = exact_lse.values();
    if (!p.backward()) return;
    const Array dq = exact(query), dk = exact(key), dv = exact(value);
    const Array db = p.grad_bias ? exact(bias) : Array();
    AttentionBackward backward = arguments;
    backward.out = out.tensor;
    backward.lse = lse.tensor;
    backward.grad_query = dq.tensor;
    backward.grad_key = dk.tensor;
    backward.grad_value = dv.tensor;
    backward.grad_bias = db.tensor;
    AttentionProblem all = p;
    all.grad_query = all.grad_key = all.grad_value = true;
    Array room({static_cast<int64_t>(reference::attention_workspace(all, 2, true))}, DType::kBool);
    reference::attention_backward(all, backward, {*pool, room.tensor.as<std::byte>()});
    set_rest(dq.tensor, 0);
    want["grad_query"] = dq.values();
    want["grad_key"] = dk.values();
    want["grad_value"] = dv.values();
    if (p.grad_bias) want["grad_bias"] = db.values();
  }

  // The limits of gradients are for the out that backward reads.
  Limits make_limits() const {
    const AttentionProblem& p = problem;
    std::map<std::string, std::vector<double>> inputs;
    const auto add = [&](const char* name, const Array& array) {
      if (array.tensor.present()) inputs[name] = array.values();
    };
    add("query", query);
    add("key", key);
    add("value", value);
    add("bias", bias);
    add("visible", visible);
    add("grad_out", grad_out);
    add("grad_lse", grad_lse);
    std::vector<double> keep;
    if (p.dropout > 0)
      for (int64_t head = 0; head < p.batch * p.heads; ++head)
        for (int64_t i = 0; i < p.q_len; ++i)
          for (int64_t j = 0; j < p.kv_len; ++j)
            keep.push_back(dropout_keeps(arguments.dropout, head, i, j));
    const auto sums = [&](const Shape& lens) { return p.ragged ? sums_of(lens) : Shape(); };
    harness::Problem limited = harness_problem(p, sums(given.q_lens), sums(given.kv_lens_ragged),
                                               given.kv_lens, given.visible_shape, given.grad_lse);
    if (p.kv_starts) limited.cu_seqlens_kv.clear();
    limited.q_lens = given.seen_q_lens;
    limited.kv_starts = given.kv_starts;
    limited.kv_index = given.kv_index;
    limited.kv_batch = p.kv_index ? p.kv_batch : 0;
    return Limits(limited, inputs, keep, p.backward() ? out.values() : std::vector<double>());
  }

  Case given;
  mutable std::optional<Limits> limits;  // made when it is first needed
};

inline std::vector<const KernelTable*> tables() {
  std::string error;
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced != nullptr && *forced != '\0') return {select_kernel_table(error)};
  return available_kernel_tables();
}
inline constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

}  // namespace perseid::internal::cpu::attention_cases
