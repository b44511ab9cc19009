// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of every kernel table against the float64 reference: edge shapes, strides, batches, the
// whole of alpha, beta, c0 and bias, and equality for any number of workers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "cpu/reference/access.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::cpu {
namespace {

std::vector<const KernelTable*> tables() {
  std::string error;
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced != nullptr && *forced != '\0') return {select_kernel_table(error)};
  return available_kernel_tables();
}

// How a [batch, rows, columns] tensor lies in memory.
enum class Layout { kRows, kColumns, kPaddedRows, kPaddedColumns, kSpread, kReversed, kOneForAll };

// A tensor in a buffer of its own, with a canary in every byte that is not the tensor's.
struct Buffer {
  static constexpr std::byte kCanary{0x5a};
  std::vector<std::byte> bytes;
  Tensor tensor;

  Buffer(DType dtype, Layout layout, int64_t batch, int64_t rows, int64_t columns) {
    tensor.dtype = dtype;
    tensor.rank = 3;
    const int64_t shape[3] = {batch, rows, columns};
    std::copy_n(shape, 3, tensor.shape);
    int64_t row = columns, column = 1, first = 0;
    switch (layout) {
      case Layout::kColumns:
        row = 1, column = rows;
        break;
      case Layout::kPaddedRows:
        row = columns + 5;
        break;
      case Layout::kPaddedColumns:
        row = 1, column = rows + 3;
        break;
      case Layout::kSpread:
        row = 3 * columns + 1, column = 3;
        break;
      case Layout::kReversed:
        row = -columns, column = 1, first = (rows - 1) * columns;
        break;
      case Layout::kRows:
      case Layout::kOneForAll:
        break;
    }
    int64_t each = (rows == 0 ? 0 : (rows - 1) * std::abs(row)) +
                   (columns == 0 ? 0 : (columns - 1) * std::abs(column)) + 1 + 7;
    if (layout == Layout::kOneForAll) each = 0;
    const int64_t stride[3] = {each, row, column};
    std::copy_n(stride, 3, tensor.stride);
    const int64_t count = std::max(each, rows * columns + 7) * std::max(batch, int64_t{1}) + 16;
    bytes.assign(static_cast<size_t>(count * size_of(dtype)), kCanary);
    tensor.data = bytes.data() + (8 + std::max(first, int64_t{0})) * size_of(dtype);
  }

  int64_t offset(int64_t b, int64_t i, int64_t j) const {
    return b * tensor.stride[0] + i * tensor.stride[1] + j * tensor.stride[2];
  }
  double get(int64_t b, int64_t i, int64_t j) const {
    return reference::load(tensor, offset(b, i, j));
  }
  template <class Value>
  void fill(Value value) {
    for (int64_t b = 0; b < tensor.shape[0]; ++b)
      for (int64_t i = 0; i < tensor.shape[1]; ++i)
        for (int64_t j = 0; j < tensor.shape[2]; ++j)
          reference::store(tensor, offset(b, i, j), value(b, i, j));
  }
  void randomise(std::mt19937& random) {
    std::uniform_real_distribution<double> number(-1, 1);
    fill([&](int64_t, int64_t, int64_t) { return number(random); });
  }
  // The same values as row-major float64, each passed through `change`.
  template <class Change>
  Buffer widened(Change change) const {
    Buffer wide(DType::kF64, Layout::kRows, tensor.shape[0], tensor.shape[1], tensor.shape[2]);
    wide.fill([&](int64_t b, int64_t i, int64_t j) { return change(get(b, i, j)); });
    return wide;
  }
  // Whether every byte outside the tensor still is a canary.
  bool untouched_outside() const {
    std::vector<bool> inside(bytes.size());
    const auto size = static_cast<size_t>(size_of(tensor.dtype));
    const auto origin = static_cast<int64_t>(static_cast<std::byte*>(tensor.data) - bytes.data());
    for (int64_t b = 0; b < tensor.shape[0]; ++b)
      for (int64_t i = 0; i < tensor.shape[1]; ++i)
        for (int64_t j = 0; j < tensor.shape[2]; ++j) {
          const auto at = static_cast<size_t>(origin) + static_cast<size_t>(offset(b, i, j)) * size;
          std::fill_n(inside.begin() + static_cast<int64_t>(at), size, true);
        }
    for (size_t i = 0; i < bytes.size(); ++i)
      if (!inside[i] && bytes[i] != kCanary) return false;
    return true;
  }
};

// Runs tasks from the last to the first, and gives every one the next worker.
class BackwardExecutor final : public Executor {
 public:
  explicit BackwardExecutor(int32_t workers) : workers_(workers) {}
  int32_t workers() const override { return workers_; }
  void run(int64_t tasks, TaskFunction function, void* state) override {
    for (int64_t task = tasks; task-- > 0;)
      function(state, task, static_cast<int32_t>(task % workers_));
  }

 private:
  int32_t workers_;
};

struct Case {
  DType dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  double alpha = 1, beta = 0;
  bool bias = false;
  Layout a = Layout::kRows, b = Layout::kRows, c = Layout::kRows;
  bool own_c0 = false;              // c0 is a tensor of its own, laid out by rows
  DType bias_dtype = DType::kNone;  // none: dtype
};

struct Problem {
  Case given;
  MatmulProblem problem;
  Buffer a, b, c, c0, bias;

  explicit Problem(const Case& c_)
      : given(c_),
        problem{c_.dtype, c_.out_dtype, c_.batch, c_.m, c_.n, c_.k, c_.alpha, c_.beta, c_.bias},
        a(c_.dtype, c_.a, c_.batch, c_.m, c_.k),
        b(c_.dtype, c_.b, c_.batch, c_.k, c_.n),
        c(c_.out_dtype, c_.c, c_.batch, c_.m, c_.n),
        c0(c_.out_dtype, Layout::kRows, c_.batch, c_.m, c_.n),
        bias(c_.bias_dtype == DType::kNone ? c_.dtype : c_.bias_dtype, Layout::kSpread, 1, 1,
             c_.n) {
    std::mt19937 random(static_cast<uint32_t>(c_.m * 31 + c_.n * 7 + c_.k));
    for (Buffer* buffer : {&a, &b, &c, &c0, &bias}) buffer->randomise(random);
    if (c_.beta == 0)
      c.fill([](int64_t, int64_t, int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  }

  static Tensor vector_of(const Buffer& buffer) {
    Tensor vector = buffer.tensor;
    vector.rank = 1;
    vector.shape[0] = buffer.tensor.shape[2];
    vector.stride[0] = buffer.tensor.stride[2];
    return vector;
  }

  // C in float64, of the operands or of their magnitudes.
  Buffer reference(bool magnitudes) const {
    const auto change = [&](double x) { return magnitudes ? std::abs(x) : x; };
    const Buffer wide_a = a.widened(change), wide_b = b.widened(change),
                 wide_c0 = (given.own_c0 ? c0 : c).widened(change),
                 wide_bias = bias.widened(change);
    MatmulProblem wide = problem;
    wide.dtype = wide.out_dtype = DType::kF64;
    wide.alpha = change(wide.alpha);
    wide.beta = change(wide.beta);
    Buffer result(DType::kF64, Layout::kRows, given.batch, given.m, given.n);
    BackwardExecutor executor(1);
    reference::matmul(
        wide, {wide_a.tensor, wide_b.tensor, wide_c0.tensor, vector_of(wide_bias), result.tensor},
        {executor, nullptr});
    return result;
  }

  void run(const KernelTable& table, Executor& executor, Buffer& into) const {
    const size_t size = table.matmul_workspace(problem, executor.workers());
    std::vector<std::byte> workspace(size + 2 * kWorkspaceAlignment, Buffer::kCanary);
    void* aligned = workspace.data();
    size_t space = workspace.size();
    std::align(kWorkspaceAlignment, size, aligned, space);
    auto* begin = static_cast<std::byte*>(aligned);
    table.matmul(
        problem,
        {a.tensor, b.tensor, given.own_c0 ? c0.tensor : into.tensor, vector_of(bias), into.tensor},
        {executor, begin});
    for (std::byte* end = begin + size; end != workspace.data() + workspace.size(); ++end)
      ASSERT_EQ(*end, Buffer::kCanary) << "past the workspace";
  }
};

// A copy whose tensor points into the copy's own bytes.
Buffer copy_of(const Buffer& buffer) {
  Buffer copy = buffer;
  copy.tensor.data =
      copy.bytes.data() + (static_cast<std::byte*>(buffer.tensor.data) - buffer.bytes.data());
  return copy;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

// Every sum of products rounded at every step has an error below this bound.
void check(const Case& given) {
  const Problem problem(given);
  const Buffer expected = problem.reference(false), magnitude = problem.reference(true);
  const double work = given.dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  const double sums = work * 2 * static_cast<double>(given.k + 4);
  const double smallest = given.out_dtype == DType::kF16 ? 0x1p-24 : 0;
  for (const KernelTable* table : tables()) {
    SCOPED_TRACE(testing::Message()
                 << table->isa << " " << name_of(given.dtype) << " to " << name_of(given.out_dtype)
                 << " batch " << given.batch << " m " << given.m << " n " << given.n << " k "
                 << given.k << " layouts " << static_cast<int>(given.a) << " "
                 << static_cast<int>(given.b) << " " << static_cast<int>(given.c));
    BackwardExecutor executor(3);
    Buffer c = copy_of(problem.c);
    problem.run(*table, executor, c);
    ASSERT_TRUE(c.untouched_outside());
    for (int64_t b = 0; b < given.batch; ++b) {
      for (int64_t i = 0; i < given.m; ++i) {
        for (int64_t j = 0; j < given.n; ++j) {
          const double bound =
              sums * magnitude.get(b, i, j) + smallest +
              unit_roundoff(given.out_dtype) * 1.01 * std::abs(expected.get(b, i, j));
          ASSERT_NEAR(c.get(b, i, j), expected.get(b, i, j), bound)
              << "at " << b << " " << i << " " << j;
        }
      }
    }
  }
}

constexpr DType kTypes[][2] = {{DType::kF32, DType::kF32},  {DType::kBF16, DType::kBF16},
                               {DType::kF16, DType::kF16},  {DType::kF64, DType::kF64},
                               {DType::kBF16, DType::kF32}, {DType::kF16, DType::kF32}};

// Many cases cost much time, most of all in an emulator: every type takes its share of them,
// another one for each.
bool takes(size_t type, int64_t index, int64_t of) {
  return index % of == static_cast<int64_t>(type) % of;
}

TEST(Matmul, EdgeShapes) {
  constexpr int64_t kSizes[] = {1, 5, 6, 7, 9, 13, 63, 65, 129};
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    int64_t index = 0;
    for (const int64_t m : kSizes)
      for (const int64_t n : kSizes)
        for (const int64_t k : {1, 2, 17, 64})
          if (takes(type, ++index, 3))
            check({.dtype = kTypes[type][0], .out_dtype = kTypes[type][1], .m = m, .n = n, .k = k});
  }
}

TEST(Matmul, EmptyShapes) {
  for (const auto& types : kTypes) {
    for (const int64_t m : {0, 1, 7, 33})
      for (const int64_t n : {0, 1, 7, 33})
        for (const int64_t k : {0, 3}) {
          check({.dtype = types[0], .out_dtype = types[1], .m = m, .n = n, .k = k});
          check({.dtype = types[0],
                 .out_dtype = types[1],
                 .m = m,
                 .n = n,
                 .k = k,
                 .beta = 0.5,
                 .bias = true});
        }
    check({.dtype = types[0], .out_dtype = types[1], .batch = 0, .m = 3, .n = 3, .k = 3});
  }
}

TEST(Matmul, EmptyOperandsMayBeNull) {
  for (const KernelTable* table : tables()) {
    for (const int64_t size : {3, 40}) {
      Problem problem(
          {.m = size, .n = size, .k = 0, .beta = 2, .bias = true, .c = Layout::kColumns});
      problem.a.tensor.data = problem.b.tensor.data = nullptr;
      BackwardExecutor executor(2);
      Buffer c = copy_of(problem.c);
      problem.run(*table, executor, c);
      EXPECT_FLOAT_EQ(static_cast<float>(c.get(0, 1, 2)),
                      static_cast<float>(2 * problem.c.get(0, 1, 2) + problem.bias.get(0, 0, 2)));
    }
  }
}

TEST(Matmul, Strides) {
  constexpr Layout kLayouts[] = {Layout::kRows,          Layout::kColumns, Layout::kPaddedRows,
                                 Layout::kPaddedColumns, Layout::kSpread,  Layout::kReversed};
  constexpr int64_t kShapes[][3] = {{50, 77, 35}, {3, 90, 41}, {90, 5, 41}, {1, 33, 50}};
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    int64_t index = 0;
    for (const auto& shape : kShapes)
      for (const Layout a : kLayouts)
        for (const Layout b : kLayouts)
          for (const Layout c : kLayouts)
            if (takes(type, ++index, 5))
              check({.dtype = kTypes[type][0],
                     .out_dtype = kTypes[type][1],
                     .m = shape[0],
                     .n = shape[1],
                     .k = shape[2],
                     .alpha = 0.75,
                     .beta = -1.5,
                     .bias = true,
                     .a = a,
                     .b = b,
                     .c = c});
  }
}

TEST(Matmul, AlphaBetaAndBias) {
  constexpr Layout kOut[] = {Layout::kRows, Layout::kPaddedColumns, Layout::kSpread};
  for (const auto& types : kTypes)
    for (const double alpha : {0.0, 1.0, -2.5})
      for (const double beta : {0.0, 1.0, 0.25})
        for (const bool bias : {false, true})
          for (const bool own_c0 : {false, true})
            for (const Layout c : kOut)
              for (const int64_t m : {4, 40})
                check({.dtype = types[0],
                       .out_dtype = types[1],
                       .m = m,
                       .n = 70,
                       .k = 20,
                       .alpha = alpha,
                       .beta = beta,
                       .bias = bias,
                       .c = c,
                       .own_c0 = own_c0,
                       .bias_dtype = own_c0 ? types[1] : types[0]});
}

TEST(Matmul, Batches) {
  for (const auto& types : kTypes)
    for (const Layout a : {Layout::kRows, Layout::kOneForAll})
      for (const Layout b : {Layout::kColumns, Layout::kOneForAll})
        for (const int64_t m : {2, 20})
          check({.dtype = types[0],
                 .out_dtype = types[1],
                 .batch = 5,
                 .m = m,
                 .n = 30,
                 .k = 19,
                 .beta = 1,
                 .bias = true,
                 .a = a,
                 .b = b});
}

// Several blocks in every direction.
TEST(Matmul, ManyBlocks) {
  for (const auto& types : kTypes) {
    check({.dtype = types[0], .out_dtype = types[1], .m = 70, .n = 300, .k = 700});
    check({.dtype = types[0],
           .out_dtype = types[1],
           .m = 401,
           .n = 290,
           .k = 143,
           .bias = true,
           .c = Layout::kColumns});
    check({.dtype = types[0],
           .out_dtype = types[1],
           .m = 260,
           .n = 530,
           .k = 300,
           .a = Layout::kColumns,
           .b = Layout::kColumns});
    check({.dtype = types[0],
           .out_dtype = types[1],
           .m = 7,
           .n = 1100,
           .k = 600,
           .b = Layout::kColumns});
    check({.dtype = types[0], .out_dtype = types[1], .m = 1100, .n = 7, .k = 600, .beta = 1});
  }
}

TEST(Matmul, BitwiseEqualForAnyWorkers) {
  for (const auto& types : kTypes) {
    for (const int64_t m : {3, 200}) {
      const Problem problem({.dtype = types[0],
                             .out_dtype = types[1],
                             .batch = 2,
                             .m = m,
                             .n = 600,
                             .k = 200,
                             .beta = 0.5,
                             .bias = true});
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(table->isa);
        BackwardExecutor one(1);
        Buffer first = copy_of(problem.c);
        problem.run(*table, one, first);
        for (const int32_t threads : {2, 3, 5}) {
          const std::unique_ptr<Executor> pool = make_thread_pool(threads);
          Buffer other = copy_of(problem.c);
          problem.run(*table, *pool, other);
          EXPECT_EQ(other.bytes, first.bytes) << threads << " threads";
        }
      }
    }
  }
}

// The same rows in another place of the batch, and the same entry alone.
TEST(Matmul, BatchPositionDoesNotMatter) {
  for (const auto& types : kTypes) {
    Problem problem(
        {.dtype = types[0], .out_dtype = types[1], .batch = 3, .m = 50, .n = 70, .k = 90});
    for (Buffer* buffer : {&problem.a, &problem.b}) {
      const Buffer original = copy_of(*buffer);
      buffer->fill([&](int64_t, int64_t i, int64_t j) { return original.get(0, i, j); });
    }
    for (const KernelTable* table : tables()) {
      BackwardExecutor executor(2);
      Buffer c = copy_of(problem.c);
      problem.run(*table, executor, c);
      for (int64_t b = 1; b < 3; ++b)
        for (int64_t i = 0; i < 50; ++i)
          for (int64_t j = 0; j < 70; ++j) ASSERT_EQ(c.get(b, i, j), c.get(0, i, j)) << table->isa;
    }
  }
}

// Room for the operands, once, and a bounded part for each worker.
TEST(Matmul, WorkspaceIsLinear) {
  for (const KernelTable* table : tables()) {
    for (const int64_t batch : {1, 100}) {
      for (const int64_t size : {1 << 10, 1 << 13, 1 << 16}) {
        const MatmulProblem problem{.batch = batch, .m = size, .n = size, .k = size};
        const double operands = 8.0 * static_cast<double>(size * size);
        const double one = static_cast<double>(table->matmul_workspace(problem, 1));
        const double two = static_cast<double>(table->matmul_workspace(problem, 2));
        EXPECT_LE(two - one, 1 << 20) << table->isa;
        EXPECT_LE(one, 1.15 * operands + (1 << 20)) << table->isa;
      }
    }
  }
}

}  // namespace
}  // namespace perseid::cpu
