// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention problems with random inputs, their results by the float64 reference, and the comparison
// of a kernel table's results with them. For the tests of attention forward and backward.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "cpu/kernel_table.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::internal::cpu::attention_cases {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

enum class Layout { kBhsd, kBshd, kReversed, kSpread };

// Memory for a tensor given in the order of dimensions of math/attention_problem.hpp.
struct Array {
  std::vector<std::byte> memory;
  Tensor tensor;

  Array() = default;
  Array(DType dtype, std::vector<int64_t> shape, Layout layout = Layout::kBhsd) {
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    std::vector<int> order(shape.size());  // from the slowest dimension to the fastest
    for (size_t i = 0; i < shape.size(); ++i) order[i] = static_cast<int>(i);
    if (layout == Layout::kBshd && shape.size() >= 3)
      std::swap(order[shape.size() - 3], order[shape.size() - 2]);
    int64_t stride = layout == Layout::kSpread ? 3 : 1;
    int64_t offset = 0;
    for (size_t k = shape.size(); k-- > 0;) {
      const int d = order[k];
      const int64_t size = shape[static_cast<size_t>(d)];
      tensor.shape[d] = size;
      tensor.stride[d] = layout == Layout::kReversed ? -stride : stride;
      if (layout == Layout::kReversed) offset += std::max<int64_t>(size - 1, 0) * stride;
      stride *= std::max<int64_t>(size, 1);
      if (layout == Layout::kSpread) stride += 5;
    }
    memory.assign(static_cast<size_t>(stride * size_of(dtype)) + 64, std::byte{0x7f});
    tensor.data = memory.data() + offset * size_of(dtype);
  }
  Array(const Array& other) { *this = other; }
  Array& operator=(const Array& other) {
    memory = other.memory;
    tensor = other.tensor;
    if (tensor.data != nullptr)
      tensor.data = memory.data() + (other.tensor.as<std::byte>() - other.memory.data());
    return *this;
  }
};

inline double get(const Tensor& tensor, int64_t offset) {
  switch (tensor.dtype) {
    case DType::kF16:
      return convert<double>(tensor.as<f16>()[offset]);
    case DType::kBF16:
      return convert<double>(tensor.as<bf16>()[offset]);
    case DType::kF32:
      return convert<double>(tensor.as<float>()[offset]);
    case DType::kF64:
      return tensor.as<double>()[offset];
    case DType::kBool:
      return tensor.as<uint8_t>()[offset];
    default:
      return static_cast<double>(tensor.as<int32_t>()[offset]);
  }
}
inline void put(const Tensor& tensor, int64_t offset, double value) {
  switch (tensor.dtype) {
    case DType::kF16:
      tensor.as<f16>()[offset] = convert<f16>(value);
      return;
    case DType::kBF16:
      tensor.as<bf16>()[offset] = convert<bf16>(value);
      return;
    case DType::kF32:
      tensor.as<float>()[offset] = convert<float>(value);
      return;
    case DType::kF64:
      tensor.as<double>()[offset] = value;
      return;
    case DType::kBool:
      tensor.as<uint8_t>()[offset] = value != 0;
      return;
    default:
      tensor.as<int32_t>()[offset] = static_cast<int32_t>(value);
      return;
  }
}
// body(offset, index) for every element.
template <class Body>
void for_each(const Tensor& tensor, Body&& body) {
  const int64_t count = tensor.elements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, offset = 0;
    for (int32_t d = tensor.rank; d-- > 0; rest /= tensor.shape[d])
      offset += rest % tensor.shape[d] * tensor.stride[d];
    body(offset, i);
  }
}
inline int64_t at(const Tensor& tensor, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  int d = 0;
  for (const int64_t i : index) offset += i * tensor.stride[d++];
  return offset;
}

struct Random {
  uint64_t state;
  double uniform() {  // in [-1, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<int64_t>(state) >> 11) * 0x1p-52;
  }
};
inline void fill(const Tensor& tensor, Random& random, double magnitude = 1) {
  for_each(tensor,
           [&](int64_t offset, int64_t) { put(tensor, offset, magnitude * random.uniform()); });
}
inline void copy(const Tensor& from, const Tensor& to) {
  std::vector<double> values(static_cast<size_t>(from.elements()));
  for_each(from,
           [&](int64_t offset, int64_t i) { values[static_cast<size_t>(i)] = get(from, offset); });
  for_each(to, [&](int64_t offset, int64_t i) { put(to, offset, values[static_cast<size_t>(i)]); });
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
  std::vector<int64_t> q_lens, kv_lens_ragged, kv_lens;
  int64_t visible_shape[4] = {0, 0, 0, 0};
  uint64_t seed = 1;
  std::function<void(AttentionBackward&)> prepare;  // after the inputs are filled
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
  std::copy(shape.begin(), shape.end(), test.visible_shape);
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

// Inputs, expected gradients and room for those to be tested.
struct Fixture {
  AttentionProblem problem;
  Array query, key, value, bias, visible, out, lse, grad_out, grad_lse, cu_q, cu_kv, kv_lens;
  Array grad_query, grad_key, grad_value, grad_bias;
  Array want_out, want_lse;
  Array want_query, want_key, want_value, want_bias;
  AttentionBackward arguments;
  std::unique_ptr<Executor> pool = make_thread_pool(2);

  explicit Fixture(const Case& test) : problem(test.problem) {
    const AttentionProblem& p = problem;
    const DType wide = p.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const auto rows = [&](int64_t heads, bool keys, int64_t dim) {
      std::vector<int64_t> shape = {p.batch, heads, keys ? p.kv_len : p.q_len};
      if (p.ragged) shape = {heads, keys ? p.total_kv : p.total_q};
      if (dim >= 0) shape.push_back(dim);
      return shape;
    };
    Random random{test.seed};
    query = Array(p.dtype, rows(p.heads, false, p.head_dim), test.layout);
    key = Array(p.dtype, rows(p.kv_heads, true, p.head_dim), test.layout);
    value = Array(p.dtype, rows(p.kv_heads, true, p.value_dim), test.layout);
    out = Array(p.dtype, rows(p.heads, false, p.value_dim), test.layout);
    lse = Array(wide, rows(p.heads, false, -1));
    grad_out = Array(p.dtype, rows(p.heads, false, p.value_dim), test.layout);
    grad_query = Array(p.dtype, rows(p.heads, false, p.head_dim), test.layout);
    grad_key = Array(p.dtype, rows(p.kv_heads, true, p.head_dim), test.layout);
    grad_value = Array(p.dtype, rows(p.kv_heads, true, p.value_dim), test.layout);
    want_out = Array(DType::kF64, rows(p.heads, false, p.value_dim));
    want_lse = Array(DType::kF64, rows(p.heads, false, -1));
    want_query = Array(DType::kF64, rows(p.heads, false, p.head_dim));
    want_key = Array(DType::kF64, rows(p.kv_heads, true, p.head_dim));
    want_value = Array(DType::kF64, rows(p.kv_heads, true, p.value_dim));
    fill(query.tensor, random, 2);
    fill(key.tensor, random, 2);
    fill(value.tensor, random);
    fill(grad_out.tensor, random);
    arguments.query = query.tensor;
    arguments.key = key.tensor;
    arguments.value = value.tensor;
    arguments.grad_out = grad_out.tensor;
    if (test.grad_lse) {
      grad_lse = Array(wide, rows(p.heads, false, -1));
      fill(grad_lse.tensor, random);
      arguments.grad_lse = grad_lse.tensor;
    }
    if (p.bias) {
      const std::vector<int64_t> shape(p.bias_shape, p.bias_shape + 4);
      bias = Array(p.bias_dtype, shape, test.layout);
      grad_bias = Array(p.bias_dtype, shape, test.layout);
      want_bias = Array(DType::kF64, shape);
      fill(bias.tensor, random, 2);
      arguments.bias = broadcast(bias.tensor, p);
    }
    if (p.visible) {
      visible =
          Array(DType::kBool, std::vector<int64_t>(test.visible_shape, test.visible_shape + 4),
                test.layout);
      for_each(visible.tensor, [&](int64_t offset, int64_t) {
        put(visible.tensor, offset, random.uniform() > -0.4);
      });
      arguments.visible = broadcast(visible.tensor, p);
    }
    const auto lengths = [&](const std::vector<int64_t>& values, bool cumulative) {
      Array array(DType::kI32, {p.batch + (cumulative ? 1 : 0)});
      int64_t sum = 0;
      for (size_t b = 0; b < values.size(); ++b) {
        if (cumulative) put(array.tensor, static_cast<int64_t>(b), static_cast<double>(sum));
        sum += values[b];
        if (!cumulative) put(array.tensor, static_cast<int64_t>(b), static_cast<double>(values[b]));
      }
      if (cumulative) put(array.tensor, p.batch, static_cast<double>(sum));
      return array;
    };
    if (p.ragged) {
      cu_q = lengths(test.q_lens, true);
      cu_kv = lengths(test.kv_lens_ragged, true);
      arguments.cu_seqlens_q = cu_q.tensor;
      arguments.cu_seqlens_kv = cu_kv.tensor;
    }
    if (p.kv_lens) {
      kv_lens = lengths(test.kv_lens, false);
      arguments.kv_lens = kv_lens.tensor;
    }
    if (p.dropout > 0) arguments.dropout = {dropout_threshold(p.dropout), 0x123456789abcdefu, 7};
    if (test.prepare) test.prepare(arguments);
    expect();
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
    forward.kv_lens = arguments.kv_lens;
    forward.dropout = arguments.dropout;
    forward.out = out.tensor;
    forward.lse = lse.tensor;
    return forward;
  }

  void expect() {
    std::vector<std::byte> workspace(reference::attention_workspace(problem, 2, true) +
                                     reference::attention_workspace(problem, 2, false) + 64);
    void* begin = workspace.data();
    size_t space = workspace.size();
    const Execution execution{*pool, static_cast<std::byte*>(std::align(64, 1, begin, space))};
    AttentionForward forward = forward_arguments();
    reference::attention_forward(problem, forward, execution);
    forward.out = want_out.tensor;
    forward.lse = want_lse.tensor;
    reference::attention_forward(problem, forward, execution);
    if (!problem.backward()) return;
    AttentionBackward backward = arguments;
    backward.out = out.tensor;
    backward.lse = lse.tensor;
    backward.grad_query = want_query.tensor;
    backward.grad_key = want_key.tensor;
    backward.grad_value = want_value.tensor;
    if (problem.grad_bias) backward.grad_bias = want_bias.tensor;
    AttentionProblem all = problem;
    all.grad_query = all.grad_key = all.grad_value = true;
    std::vector<std::byte> room(reference::attention_workspace(all, 2, true) + 64);
    begin = room.data();
    space = room.size();
    reference::attention_backward(
        all, backward, {*pool, static_cast<std::byte*>(std::align(64, 1, begin, space))});
  }

  // Runs kernel(execution) on a workspace of `bytes`. Whatever the workspace held before must not
  // matter; what lies behind it must not change.
  template <class Kernel>
  static void run_in(size_t bytes, Executor& executor, const Kernel& kernel) {
    std::vector<std::byte> workspace(bytes + 128, std::byte{0xff});
    void* begin = workspace.data();
    size_t space = workspace.size();
    std::byte* aligned = static_cast<std::byte*>(std::align(64, 1, begin, space));
    std::byte* const end = aligned + bytes;
    const std::vector<std::byte> before(end, workspace.data() + workspace.size());
    kernel(Execution{executor, aligned});
    EXPECT_TRUE(std::equal(before.begin(), before.end(), end)) << "wrote past the workspace";
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

  static double tolerance(DType dtype) {
    switch (dtype) {
      case DType::kF16:
        return 6e-3;
      case DType::kBF16:
        return 4e-2;
      case DType::kF32:
        return 3e-5;
      default:
        return 1e-12;
    }
  }
  // floor: the size of what sums to nothing.
  void compare(const char* name, const Tensor& got, const Tensor& want, double floor) const {
    double largest = 0;
    std::vector<double> expected(static_cast<size_t>(want.elements()));
    for_each(want, [&](int64_t offset, int64_t i) {
      const double exact = get(want, offset);
      expected[static_cast<size_t>(i)] = exact;
      if (std::isfinite(exact)) largest = std::max(largest, std::fabs(exact));
    });
    const double allowed = tolerance(problem.dtype) * std::max(largest, floor);
    int64_t wrong = 0, first = -1;
    double worst = 0;
    for_each(got, [&](int64_t offset, int64_t i) {
      const double computed = get(got, offset), exact = expected[static_cast<size_t>(i)];
      const double error = std::isfinite(exact) ? std::fabs(computed - exact)
                                                : (std::isfinite(computed) ? kInfinity : 0);
      if (error <= allowed) return;  // false for NaN
      if (wrong++ == 0) first = i;
      worst = std::max(worst, std::isnan(error) ? kInfinity : error);
    });
    EXPECT_EQ(wrong, 0) << name << ": first at " << first << ", worst error " << worst
                        << ", allowed " << allowed;
  }
  void check_forward(const KernelTable& table) {
    SCOPED_TRACE(table.isa);
    run_forward(table, *pool);
    compare("out", out.tensor, want_out.tensor, 0.1);
    compare("lse", lse.tensor, want_lse.tensor, 1);
    if (problem.group() * problem.q_len > 16) return;
    SCOPED_TRACE("decode");
    run_decode(table, *pool);
    compare("out", out.tensor, want_out.tensor, 0.1);
    compare("lse", lse.tensor, want_lse.tensor, 1);
  }
  void check(const KernelTable& table) {
    SCOPED_TRACE(table.isa);
    run(table, *pool);
    if (problem.grad_query) compare("grad_query", grad_query.tensor, want_query.tensor, 0.1);
    if (problem.grad_key) compare("grad_key", grad_key.tensor, want_key.tensor, 0.1);
    if (problem.grad_value) compare("grad_value", grad_value.tensor, want_value.tensor, 0.1);
    if (problem.grad_bias) compare("grad_bias", grad_bias.tensor, want_bias.tensor, 1);
  }
};

inline std::vector<const KernelTable*> tables() {
  std::string error;
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced != nullptr && *forced != '\0') return {select_kernel_table(error)};
  return available_kernel_tables();
}
inline constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

}  // namespace perseid::internal::cpu::attention_cases
