// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward of every instruction set against the float64 reference, and what is promised
// bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

enum class Layout { kBhsd, kBshd, kReversed, kSpread };

// Memory for a tensor given in the order of dimensions of math/attention_problem.hpp.
struct Array {
  std::vector<std::byte> storage;
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
    storage.assign(static_cast<size_t>(stride * size_of(dtype)) + 64, std::byte{0x7f});
    tensor.data = storage.data() + offset * size_of(dtype);
  }
  Array(const Array& other) { *this = other; }
  Array& operator=(const Array& other) {
    storage = other.storage;
    tensor = other.tensor;
    if (tensor.data != nullptr)
      tensor.data = storage.data() + (other.tensor.as<std::byte>() - other.storage.data());
    return *this;
  }
};

double get(const Tensor& tensor, int64_t offset) {
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
void put(const Tensor& tensor, int64_t offset, double value) {
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
int64_t at(const Tensor& tensor, std::initializer_list<int64_t> index) {
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
void fill(const Tensor& tensor, Random& random, double magnitude = 1) {
  for_each(tensor,
           [&](int64_t offset, int64_t) { put(tensor, offset, magnitude * random.uniform()); });
}
void copy(const Tensor& from, const Tensor& to) {
  std::vector<double> values(static_cast<size_t>(from.elements()));
  for_each(from,
           [&](int64_t offset, int64_t i) { values[static_cast<size_t>(i)] = get(from, offset); });
  for_each(to, [&](int64_t offset, int64_t i) { put(to, offset, values[static_cast<size_t>(i)]); });
}
// A tensor repeated along the dimensions where it has size 1.
Tensor broadcast(Tensor tensor, const AttentionProblem& problem) {
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

Case make_case(DType dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
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
void add_bias(Case& test, DType dtype, std::vector<int64_t> shape, bool grad) {
  test.problem.bias = true;
  test.problem.bias_dtype = dtype;
  std::copy(shape.begin(), shape.end(), test.problem.bias_shape);
  test.problem.grad_bias = grad;
}
void set_visible(Case& test, std::vector<int64_t> shape) {
  test.problem.visible = true;
  std::copy(shape.begin(), shape.end(), test.visible_shape);
}
void set_ragged(Case& test, std::vector<int64_t> q_lens, std::vector<int64_t> kv_lens) {
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

  void expect() {
    std::vector<std::byte> workspace(reference::attention_workspace(problem, 2, true) +
                                     reference::attention_workspace(problem, 2, false) + 64);
    void* begin = workspace.data();
    size_t space = workspace.size();
    const Execution execution{*pool, static_cast<std::byte*>(std::align(64, 1, begin, space))};
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
    reference::attention_forward(problem, forward, execution);
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

  void run(const KernelTable& table, Executor& executor) {
    const size_t bytes = table.attention_backward_workspace(problem, executor.workers());
    // Whatever the workspace held before must not matter; what lies behind it must not change.
    std::vector<std::byte> workspace(bytes + 128, std::byte{0xff});
    void* begin = workspace.data();
    size_t space = workspace.size();
    std::byte* aligned = static_cast<std::byte*>(std::align(64, 1, begin, space));
    std::byte* const end = aligned + bytes;
    const std::vector<std::byte> before(end, workspace.data() + workspace.size());
    table.attention_backward(problem, arguments, {executor, aligned});
    EXPECT_TRUE(std::equal(before.begin(), before.end(), end)) << "wrote past the workspace";
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
  void check(const KernelTable& table) {
    SCOPED_TRACE(table.isa);
    run(table, *pool);
    if (problem.grad_query) compare("grad_query", grad_query.tensor, want_query.tensor, 0.1);
    if (problem.grad_key) compare("grad_key", grad_key.tensor, want_key.tensor, 0.1);
    if (problem.grad_value) compare("grad_value", grad_value.tensor, want_value.tensor, 0.1);
    if (problem.grad_bias) compare("grad_bias", grad_bias.tensor, want_bias.tensor, 1);
  }
};

std::vector<const KernelTable*> tables() {
  std::string error;
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced != nullptr && *forced != '\0') return {select_kernel_table(error)};
  return available_kernel_tables();
}
void check(const Case& test, const std::string& name) {
  SCOPED_TRACE(name);
  Fixture fixture(test);
  for (const KernelTable* table : tables()) fixture.check(*table);
}
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

TEST(AttentionBackward, EveryTypeAndLayout) {
  for (const DType dtype : kTypes) {
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kReversed, Layout::kSpread}) {
      Case test = make_case(dtype, 2, 4, 2, 70, 133, 40, 24);
      test.layout = layout;
      test.grad_lse = true;
      check(test,
            std::string(name_of(dtype)) + " layout " + std::to_string(static_cast<int>(layout)));
    }
  }
}

TEST(AttentionBackward, Sizes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t dim : {1, 3, 16, 64, 80, 129, 257})
      check(make_case(dtype, 1, 2, 1, 37, 65, dim, dim),
            std::string(name_of(dtype)) + " dim " + std::to_string(dim));
    for (const int64_t q_len : {0, 1, 2, 95, 96, 97, 193})
      for (const int64_t kv_len : {0, 1, 63, 64, 65, 192, 193})
        check(make_case(dtype, 1, 1, 1, q_len, kv_len, 8, 16), std::string(name_of(dtype)) + " " +
                                                                   std::to_string(q_len) + " x " +
                                                                   std::to_string(kv_len));
  }
  check(make_case(DType::kF32, 0, 2, 1, 5, 5, 8, 8), "no batch");
  check(make_case(DType::kF64, 1, 3, 3, 200, 300, 33, 65), "float64");
}

TEST(AttentionBackward, MasksOfRange) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      for (const int64_t q_len : {100, 250, 420}) {
        for (const auto& [left, right] :
             {std::pair<int64_t, int64_t>{-1, -1}, {70, -1}, {0, 0}, {-1, 30}, {130, 5}}) {
          Case test = make_case(dtype, 1, 2, 1, q_len, 250, 16, 16);
          test.problem.causal = causal;
          test.problem.window_left = left;
          test.problem.window_right = right;
          test.grad_lse = true;
          check(test, std::string(name_of(dtype)) + " causal " +
                          std::to_string(static_cast<int>(causal)) + " q_len " +
                          std::to_string(q_len) + " window " + std::to_string(left) + "," +
                          std::to_string(right));
        }
      }
    }
  }
}

TEST(AttentionBackward, Ragged) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case test = make_case(dtype, 0, 4, 2, 0, 0, 24, 32);
    set_ragged(test, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
    test.layout = Layout::kBshd;
    check(test, "plain");
    test.problem.causal = Causal::kBottomRight;
    test.problem.dropout = 0.3;
    test.problem.kv_lens = true;
    test.kv_lens = {7, 1, 90, 0, 63};
    test.grad_lse = true;
    check(test, "causal, dropout, kv_lens");
    add_bias(test, DType::kF32, {5, 1, 130, 200}, true);
    set_visible(test, {1, 4, 130, 1});
    check(test, "bias, visible");
  }
}

TEST(AttentionBackward, KeyLengths) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case test = make_case(dtype, 4, 2, 2, 30, 700, 16, 8);
    test.problem.kv_lens = true;
    test.kv_lens = {0, 1, 513, 700};
    // What lies behind the lengths must not matter.
    test.prepare = [](AttentionBackward& a) {
      const int64_t lens[] = {0, 1, 513, 700};
      for (int64_t b = 0; b < 4; ++b)
        for (int64_t j = lens[b]; j < 700; ++j) {
          put(a.key, at(a.key, {b, 1, j, 3}), kNaN);
          put(a.value, at(a.value, {b, 0, j, 2}), kInfinity);
        }
    };
    check(test, name_of(dtype));
    test.problem.causal = Causal::kBottomRight;
    check(test, std::string(name_of(dtype)) + " causal");
  }
}

TEST(AttentionBackward, BiasOfEveryShape) {
  for (int broadcast_dims = 0; broadcast_dims < 16; ++broadcast_dims) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case test = make_case(dtype, 2, 4, 2, 101, 205, 16, 16);
      const auto size = [&](int d, int64_t full) {
        return (broadcast_dims >> d & 1) != 0 ? int64_t{1} : full;
      };
      add_bias(test, dtype == DType::kBF16 && broadcast_dims % 2 == 0 ? DType::kF32 : dtype,
               {size(0, 2), size(1, 4), size(2, 101), size(3, 205)}, true);
      test.layout = broadcast_dims % 3 == 0 ? Layout::kSpread : Layout::kBhsd;
      test.problem.causal = broadcast_dims % 4 == 1 ? Causal::kTopLeft : Causal::kNone;
      test.problem.dropout = broadcast_dims % 5 == 2 ? 0.2 : 0;
      test.grad_lse = broadcast_dims % 2 == 1;
      check(test, std::string(name_of(dtype)) + " broadcast " + std::to_string(broadcast_dims));
    }
  }
}

TEST(AttentionBackward, VisibleOfEveryShape) {
  for (int broadcast_dims = 0; broadcast_dims < 16; ++broadcast_dims) {
    const DType dtype = kTypes[broadcast_dims % 4];
    Case test = make_case(dtype, 2, 4, 2, 101, 205, 16, 16);
    const auto size = [&](int d, int64_t full) {
      return (broadcast_dims >> d & 1) != 0 ? int64_t{1} : full;
    };
    set_visible(test, {size(0, 2), size(1, 4), size(2, 101), size(3, 205)});
    if (broadcast_dims % 3 == 1) test.problem.causal = Causal::kBottomRight;
    check(test, std::string(name_of(dtype)) + " broadcast " + std::to_string(broadcast_dims));
  }
}

TEST(AttentionBackward, Dropout) {
  for (const DType dtype : kTypes) {
    for (const double probability : {0.1, 0.5, 0.9}) {
      Case test = make_case(dtype, 2, 2, 1, 210, 333, 24, 40);
      test.problem.dropout = probability;
      test.grad_lse = true;
      if (probability == 0.5) test.problem.causal = Causal::kBottomRight;
      check(test, std::string(name_of(dtype)) + " " + std::to_string(probability));
    }
  }
}

// Enough keys for several chunks; heads and chunks as tasks of their own, and not.
TEST(AttentionBackward, ManyKeys) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t batch : {1, 9}) {
      Case test = make_case(dtype, batch, 4, 2, 20, 1300, 8, 8);
      check(test, std::string(name_of(dtype)) + " batch " + std::to_string(batch));
      test.problem.causal = Causal::kBottomRight;
      test.problem.window_left = 900;
      check(test, std::string(name_of(dtype)) + " window, batch " + std::to_string(batch));
    }
  }
  check(make_case(DType::kF32, 1, 1, 1, 3, 6000, 4, 4), "as many chunks as there may be");
}

TEST(AttentionBackward, Subsets) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (int wanted = 0; wanted < 16; ++wanted) {
      for (const int64_t batch : {1, 8}) {
        Case test = make_case(dtype, batch, 4, 2, 33, 600, 16, 8);
        add_bias(test, dtype, {1, 4, 33, 600}, (wanted & 8) != 0);
        test.problem.grad_query = (wanted & 1) != 0;
        test.problem.grad_key = (wanted & 2) != 0;
        test.problem.grad_value = (wanted & 4) != 0;
        check(test, std::string(name_of(dtype)) + " subset " + std::to_string(wanted));
      }
    }
    // A subset at execution of what was planned.
    Fixture fixture(make_case(dtype, 1, 4, 2, 33, 600, 16, 8));
    fixture.arguments.grad_query = {};
    for (const KernelTable* table : tables()) {
      fixture.run(*table, *fixture.pool);
      fixture.compare("grad_key", fixture.grad_key.tensor, fixture.want_key.tensor, 0.1);
      fixture.compare("grad_value", fixture.grad_value.tensor, fixture.want_value.tensor, 0.1);
    }
  }
}

// Nothing that is masked has a way into a result, whether it is a key, a value or a query with its
// gradient.
TEST(AttentionBackward, NonfiniteValuesWhereMasked) {
  for (const DType dtype : kTypes) {
    for (const bool by_bias : {false, true}) {
      Case test = make_case(dtype, 1, 2, 1, 210, 300, 24, 40);
      // Keys 10 and 250 are seen by queries 20..29 alone, query 150 sees nothing.
      const auto sees = [](int64_t i, int64_t j) {
        return i != 150 && ((j != 10 && j != 250) || (i >= 20 && i < 30));
      };
      if (by_bias) {
        add_bias(test, dtype, {1, 1, 210, 300}, false);
      } else {
        set_visible(test, {1, 1, 210, 300});
      }
      test.prepare = [=](AttentionBackward& a) {
        for (int64_t i = 0; i < 210; ++i)
          for (int64_t j = 0; j < 300; ++j) {
            if (by_bias && !sees(i, j)) put(a.bias, at(a.bias, {0, 0, i, j}), -kInfinity);
            if (!by_bias) put(a.visible, at(a.visible, {0, 0, i, j}), sees(i, j));
          }
        if (by_bias) return;
        for (const int64_t j : {10, 250}) {
          put(a.key, at(a.key, {0, 0, j, 3}), kNaN);
          put(a.value, at(a.value, {0, 0, j, 5}), j == 10 ? kInfinity : kNaN);
        }
        put(a.query, at(a.query, {0, 0, 150, 1}), kNaN);
        put(a.query, at(a.query, {0, 1, 150, 1}), -kInfinity);
        put(a.grad_out, at(a.grad_out, {0, 0, 150, 7}), kNaN);
        put(a.grad_out, at(a.grad_out, {0, 1, 150, 0}), kInfinity);
      };
      check(test, std::string(name_of(dtype)) + (by_bias ? " by bias" : " by visible"));
    }
    Case test = make_case(dtype, 1, 2, 1, 150, 220, 16, 16);
    test.problem.causal = Causal::kTopLeft;
    test.prepare = [](AttentionBackward& a) {
      for (int64_t j = 149; j < 220; ++j) put(a.key, at(a.key, {0, 0, j, 3}), kNaN);
      for (int64_t j = 140; j < 220; ++j) put(a.value, at(a.value, {0, 0, j, 3}), -kInfinity);
    };
    check(test, std::string(name_of(dtype)) + " causal");
  }
}

// The gradients' bytes with a number of threads.
std::vector<std::byte> gradients(Fixture& fixture, const KernelTable& table, int32_t threads) {
  const std::unique_ptr<Executor> pool = make_thread_pool(threads);
  fixture.run(table, *pool);
  std::vector<std::byte> bytes;
  for (const Array* array :
       {&fixture.grad_query, &fixture.grad_key, &fixture.grad_value, &fixture.grad_bias})
    bytes.insert(bytes.end(), array->storage.begin(), array->storage.end());
  return bytes;
}

TEST(AttentionBackward, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t batch : {1, 8}) {
      Case test = make_case(dtype, batch, 4, 2, 150, 1100, 24, 16);
      test.problem.causal = Causal::kBottomRight;
      if (batch == 1) add_bias(test, dtype, {1, 1, 150, 1100}, true);
      Fixture fixture(test);
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(table->isa);
        const std::vector<std::byte> one = gradients(fixture, *table, 1);
        for (const int32_t threads : {2, 3, 5}) EXPECT_EQ(gradients(fixture, *table, threads), one);
      }
    }
  }
}

// A sequence alone, and as the last of a batch that is large enough to be cut into tasks in another
// way.
TEST(AttentionBackward, SameBitsAnywhereInABatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t kv_heads : {1, 2}) {
      constexpr int64_t kBatch = 17;
      Fixture many(make_case(dtype, kBatch, 2, kv_heads, 40, 1100, 16, 8));
      Case alone = make_case(dtype, 1, 2, kv_heads, 40, 1100, 16, 8);
      alone.prepare = [&](AttentionBackward& a) {
        const auto last = [&](Tensor tensor) {
          const int64_t offset = (kBatch - 1) * tensor.stride[0];
          tensor.data = tensor.as<std::byte>() + offset * size_of(tensor.dtype);
          tensor.shape[0] = 1;
          return tensor;
        };
        copy(last(many.arguments.query), a.query);
        copy(last(many.arguments.key), a.key);
        copy(last(many.arguments.value), a.value);
        copy(last(many.arguments.grad_out), a.grad_out);
      };
      Fixture one(alone);
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(table->isa);
        many.run(*table, *many.pool);
        one.run(*table, *one.pool);
        const auto tail = [](const Array& array, const Tensor& of) {
          const std::byte* end =
              array.tensor.as<std::byte>() + array.tensor.elements() * size_of(array.tensor.dtype);
          return std::vector<std::byte>(end - of.elements() * size_of(of.dtype), end);
        };
        EXPECT_EQ(tail(many.grad_query, one.grad_query.tensor),
                  tail(one.grad_query, one.grad_query.tensor));
        EXPECT_EQ(tail(many.grad_key, one.grad_key.tensor),
                  tail(one.grad_key, one.grad_key.tensor));
        EXPECT_EQ(tail(many.grad_value, one.grad_value.tensor),
                  tail(one.grad_value, one.grad_value.tensor));
      }
    }
  }
}

TEST(AttentionBackward, MemoryIsLinear) {
  for (const KernelTable* table : tables()) {
    const auto bytes = [&](int64_t length) {
      Case test = make_case(DType::kBF16, 1, 8, 8, length, length, 64, 64);
      add_bias(test, DType::kBF16, {1, 8, length, length}, true);
      return static_cast<double>(table->attention_backward_workspace(test.problem, 2));
    };
    EXPECT_LT(bytes(1 << 20), 2.1 * bytes(1 << 19)) << table->isa;
  }
}

}  // namespace
}  // namespace perseid::cpu
