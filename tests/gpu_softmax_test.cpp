// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax on a GPU against the float64 reference: every length that changes the kernel, all types,
// masks, strides and misaligned memory. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "compare.hpp"
#include "cpu/reference/reference.hpp"
#include "cuda/softmax.hpp"
#include "gpu_tools.hpp"
#include "tensor.hpp"

namespace perseid::internal {
namespace {

using cuda::SoftmaxKind;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;
using tests::Array;

constexpr SoftmaxKind kKinds[] = {SoftmaxKind::kRows, SoftmaxKind::kShared, SoftmaxKind::kStream,
                                  SoftmaxKind::kSplit, SoftmaxKind::kColumns};

struct Case {
  SoftmaxKind kind = SoftmaxKind::kRows;
  SoftmaxProblem problem;
  std::vector<int64_t> mask_shape;  // of the problem's rank
  bool in_place = false;
  bool permuted = false;  // strides: dimensions in another order, with gaps
  int64_t misalign = 0;
  uint32_t seed = 0;
};

double roundoff(DType dtype) { return harness::unit_roundoff(tests::public_dtype(dtype)); }

class GpuSoftmax : public testing_gpu::GpuTest {
 protected:
  static std::vector<int64_t> shape_of(const SoftmaxProblem& problem) {
    return {problem.shape, problem.shape + problem.rank};
  }
  static std::vector<int64_t> strides_of(const Case& given, const std::vector<int64_t>& shape) {
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(given.seed);
    if (given.permuted) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(shape.size());
    int64_t stride = given.permuted ? 1 + random() % 2 : 1;
    for (size_t i = order.size(); i-- > 0;) {
      const auto d = static_cast<size_t>(order[i]);
      strides[d] = stride;
      stride = stride * shape[d] + (given.permuted ? random() % 3 : 0);
    }
    return strides;
  }

  // Holds values to the reference; `allowed(i)` is the error of element i.
  template <class Allowed>
  static void compare(const char* what, const Array& values, const Array& exact,
                      const Allowed& allowed) {
    harness::Limit limit;
    for (int64_t i = 0; i < exact.count(); ++i) limit.each.push_back(allowed(i));
    tests::expect_close(what, values.tensor, exact.values(), limit);
  }

  void check(const Case& given) {
    const SoftmaxProblem& problem = given.problem;
    std::unique_ptr<cuda::CudaSoftmax> softmax;
    expect_ok(cuda::CudaSoftmax::make(given.kind, problem, *gpu_, &softmax));
    if (softmax == nullptr) return;
    SCOPED_TRACE(softmax->description());
    SCOPED_TRACE(testing::Message()
                 << "shape " << testing::PrintToString(shape_of(problem)) << " dim " << problem.dim
                 << " " << name_of(problem.dtype) << " to " << name_of(problem.out_dtype)
                 << (problem.log ? " log" : "") << (problem.visible ? " masked" : "")
                 << (given.in_place ? " in place" : "") << (given.permuted ? " permuted" : "")
                 << " misalign " << given.misalign << " seed " << given.seed);
    forward(given, *softmax);
    backward(given, *softmax);
  }

  void forward(const Case& given, const cuda::CudaSoftmax& softmax) {
    const SoftmaxProblem& problem = given.problem;
    const std::vector<int64_t> shape = shape_of(problem);
    std::vector<int64_t> rows = shape;
    rows[static_cast<size_t>(problem.dim)] = 1;
    const std::vector<int64_t> strides = strides_of(given, shape);
    Array x(shape, problem.dtype, strides), y(shape, problem.out_dtype, strides);
    Array lse(rows, problem.compute_dtype()), visible(given.mask_shape, DType::kBool);
    x.randomise(given.seed + 1, 4);
    visible.randomise(given.seed + 2);
    y.fill_all(7);

    SoftmaxProblem exact = problem;
    exact.dtype = exact.out_dtype = DType::kF64;
    Array x64(shape), y64(shape), lse64(rows);
    for (int64_t i = 0; i < x.count(); ++i) x64.set(i, x.get(i));
    const Tensor mask = problem.visible ? broadcast(visible.tensor, problem) : Tensor{};
    cpu::reference::softmax_forward(exact, {x64.tensor, y64.tensor, mask, lse64.tensor},
                                    {*executor_, nullptr});

    Mirror gpu_x(*gpu_, x, given.misalign), gpu_y(*gpu_, y, given.misalign), gpu_lse(*gpu_, lse);
    Mirror gpu_mask(*gpu_, visible, given.misalign);
    SoftmaxForward arguments{
        gpu_x.tensor(), given.in_place ? gpu_x.tensor() : gpu_y.tensor(), {}, gpu_lse.tensor()};
    if (problem.visible) arguments.visible = broadcast(gpu_mask.tensor(), problem);
    run([&](std::byte* workspace) { return softmax.forward(arguments, workspace, nullptr); },
        softmax.workspace(false));
    (given.in_place ? gpu_x : gpu_y).fetch();
    gpu_lse.fetch();

    const double real = roundoff(problem.compute_dtype()), out = roundoff(problem.out_dtype);
    // The reference adds up one element after another, in float64 too.
    const auto length = static_cast<double>(problem.length());
    const double size =
        4 * std::abs(problem.scale) + 2 + std::log(length + 1) + length / 16 * 0x1p-53 / real;
    compare("output", given.in_place ? x : y, y64, [&](int64_t i) {
      const double reference = std::abs(y64.get(i));
      const double smallest = problem.out_dtype == DType::kF16 ? 0x1p-25 : 0x1p-125;
      return problem.log ? out * reference + 16 * real * size
                         : reference * (out + 16 * real * size) + smallest;
    });
    compare("lse", lse, lse64, [&](int64_t) { return 16 * real * size; });
  }

  void backward(const Case& given, const cuda::CudaSoftmax& softmax) {
    const SoftmaxProblem& problem = given.problem;
    const std::vector<int64_t> shape = shape_of(problem);
    const std::vector<int64_t> strides = strides_of(given, shape);
    Array dy(shape, problem.out_dtype, strides), y(shape, problem.out_dtype, strides);
    Array dx(shape, problem.dtype, strides), visible(given.mask_shape, DType::kBool);
    dy.randomise(given.seed + 3);
    y.randomise(given.seed + 4, 1);
    visible.randomise(given.seed + 2);
    dx.fill_all(7);
    // Outputs of about the size that they have: 1 / length, or its logarithm.
    const auto length = static_cast<double>(max(problem.length(), int64_t{1}));
    for (int64_t i = 0; i < y.count(); ++i)
      y.set(i, problem.log ? y.get(i) - std::log(length) : (1 + y.get(i)) / length);

    SoftmaxProblem exact = problem;
    exact.dtype = exact.out_dtype = DType::kF64;
    Array dy64(shape), y64(shape), dx64(shape);
    double sum = 0;
    for (int64_t i = 0; i < y.count(); ++i) {
      dy64.set(i, dy.get(i));
      y64.set(i, y.get(i));
    }
    const int64_t row_count = max(problem.rows(), int64_t{1});
    for (int64_t i = 0; i < y.count(); ++i)
      sum += std::abs(dy.get(i)) * (problem.log ? 1 : std::abs(y.get(i)));
    sum /= static_cast<double>(row_count);
    const Tensor mask = problem.visible ? broadcast(visible.tensor, problem) : Tensor{};
    cpu::reference::softmax_backward(exact, {dy64.tensor, y64.tensor, mask, dx64.tensor},
                                     {*executor_, nullptr});

    Mirror gpu_dy(*gpu_, dy, given.misalign), gpu_y(*gpu_, y, given.misalign);
    Mirror gpu_dx(*gpu_, dx, given.misalign), gpu_mask(*gpu_, visible, given.misalign);
    SoftmaxBackward arguments{
        gpu_dy.tensor(), gpu_y.tensor(), {}, given.in_place ? gpu_dy.tensor() : gpu_dx.tensor()};
    if (problem.visible) arguments.visible = broadcast(gpu_mask.tensor(), problem);
    run([&](std::byte* workspace) { return softmax.backward(arguments, workspace, nullptr); },
        softmax.workspace(true));
    (given.in_place ? gpu_dy : gpu_dx).fetch();

    const double real = roundoff(problem.compute_dtype()), in = roundoff(problem.dtype);
    compare("grad_input", given.in_place ? dy : dx, dx64, [&](int64_t i) {
      const double weight = problem.log ? std::exp(y64.get(i)) : y64.get(i);
      const double scale = std::abs(problem.scale);
      const double smallest = problem.dtype == DType::kF16 ? 0x1p-24 : 0x1p-125;
      return in * std::abs(dx64.get(i)) + smallest +
             32 * real * scale *
                 (std::abs(dy64.get(i)) * (problem.log ? 1 : weight) + weight * 4 * sum);
    });
  }

  static Tensor broadcast(Tensor mask, const SoftmaxProblem& problem) {
    for (int32_t d = 0; d < problem.rank; ++d) {
      if (mask.shape[d] == 1) mask.stride[d] = 0;
      mask.shape[d] = problem.shape[d];
    }
    return mask;
  }

  template <class Call>
  void run(const Call& call, size_t workspace) {
    Array scratch({static_cast<int64_t>(workspace) + 1}, DType::kBool);
    Mirror gpu_scratch(*gpu_, scratch);
    expect_ok(call(static_cast<std::byte*>(gpu_scratch.tensor().data)));
    const cuda::Gpu::Current current(*gpu_);
    ASSERT_EQ(gpu_->driver().stream_synchronize(nullptr), cuda::kSuccess);
  }

  std::unique_ptr<cpu::Executor> executor_ = cpu::make_thread_pool(2);
};

Case row_case(int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                              DType::kF32, DType::kBF16, DType::kF64};
  Case given;
  given.seed = seed;
  SoftmaxProblem& problem = given.problem;
  problem.rank = 2;
  problem.dim = 1;
  problem.shape[0] = length > 100000 ? 2 : length > 5000 ? 5 : 67;
  problem.shape[1] = length;
  problem.dtype = kTypes[random() % 6];
  problem.out_dtype = random() % 4 == 0 ? kTypes[random() % 6] : problem.dtype;
  problem.log = random() % 3 == 0;
  problem.visible = random() % 4 == 0;
  constexpr double kScales[] = {1, 0.125, -0.5, 1.7};
  problem.scale = kScales[random() % 4];
  problem.empty_rows_nan = random() % 2 == 0;
  given.mask_shape = {random() % 2 == 0 ? 1 : problem.shape[0], random() % 5 == 0 ? 1 : length};
  given.in_place = problem.dtype == problem.out_dtype && random() % 3 == 0;
  given.misalign = random() % 3 == 0 ? 1 : 0;
  return given;
}

constexpr int64_t kLengths[] = {
    0,      1,      2,      3,      4,      5,       7,      8,      9,      15,     16,     17,
    31,     32,     33,     48,     63,     64,      65,     100,    127,    128,    129,    250,
    256,    257,    500,    512,    513,    768,     1000,   1023,   1024,   1025,   1536,   2000,
    2048,   2049,   3000,   4095,   4096,   4097,    6000,   8192,   8193,   9999,   16384,  16385,
    20000,  32768,  32771,  50257,  65536,  65537,   100000, 131072, 131073, 200000, 262144, 262145,
    400003, 524288, 600000, 800000, 900000, 1048576, 1500001};

class GpuSoftmaxRows : public GpuSoftmax, public testing::WithParamInterface<int64_t> {};

TEST_P(GpuSoftmaxRows, MatchTheReference) {
  for (uint32_t turn = 0; turn < (GetParam() > 5000 ? 3u : 6u); ++turn)
    check(row_case(GetParam(), static_cast<uint32_t>(GetParam()) * 31 + turn));
}
INSTANTIATE_TEST_SUITE_P(Lengths, GpuSoftmaxRows, testing::ValuesIn(kLengths));

// Rows in chunks, whatever their length: a part of a chunk, a whole one, one and a part, many, and
// more chunks than blocks.
constexpr int64_t kChunkLengths[] = {1,    100,   4096,   8191,   8192,
                                     8193, 50257, 131072, 400001, 1000000};
TEST_F(GpuSoftmax, RowsInChunks) {
  for (const SoftmaxKind kind : {SoftmaxKind::kStream, SoftmaxKind::kShared})
    for (const int64_t length : kChunkLengths)
      for (uint32_t turn = 0; turn < 4; ++turn) {
        Case given = row_case(length, static_cast<uint32_t>(length) * 17 + turn);
        given.kind = kind;
        // Few elements of 32 bits lie in shared memory.
        if (kind == SoftmaxKind::kShared && turn < 3)
          given.problem.dtype = given.problem.out_dtype = turn == 0 ? DType::kF16 : DType::kBF16;
        check(given);
      }
}

class GpuSoftmaxAny : public GpuSoftmax, public testing::WithParamInterface<int> {};

// Any shape, dim, strides and broadcast mask, by every kind of kernel.
TEST_P(GpuSoftmaxAny, MatchesTheReference) {
  for (uint32_t turn = 0; turn < 12; ++turn) {
    const uint32_t seed = static_cast<uint32_t>(GetParam()) * 1000 + turn;
    std::mt19937 random(seed);
    constexpr int64_t kSizes[] = {1, 2, 3, 5, 8, 13, 33};
    constexpr int64_t kRowSizes[] = {5, 16, 40, 129, 600};
    Case given = row_case(16, seed);
    given.kind = kKinds[random() % std::size(kKinds)];
    SoftmaxProblem& problem = given.problem;
    // Few configurations, so that few kernels are compiled.
    problem.dtype = problem.out_dtype = random() % 2 == 0 ? DType::kF32 : DType::kBF16;
    if (given.kind == SoftmaxKind::kShared) problem.dtype = problem.out_dtype = DType::kBF16;
    problem.log = random() % 4 == 0;
    problem.rank = static_cast<int32_t>(1 + random() % 4);
    problem.dim = static_cast<int32_t>(random() % static_cast<uint32_t>(problem.rank));
    given.mask_shape.clear();
    for (int32_t d = 0; d < problem.rank; ++d) {
      problem.shape[d] = d == problem.dim ? kRowSizes[random() % 5] : kSizes[random() % 7];
      given.mask_shape.push_back(random() % 2 == 0 ? 1 : problem.shape[d]);
    }
    given.permuted = random() % 2 == 0;
    given.in_place = random() % 3 == 0;
    check(given);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, GpuSoftmaxAny, testing::Range(0, 24));

class GpuSoftmaxKinds : public GpuSoftmax, public testing::WithParamInterface<SoftmaxKind> {
 protected:
  // Both directions over rows of which each has something special in it, or in its gradient.
  void check_special_rows(const SoftmaxProblem& problem) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const double nan = std::nan("");
    const int64_t length = problem.length(), count = problem.shape[0] * length;
    const auto array = [&](DType dtype) { return Array({problem.shape[0], length}, dtype); };
    Array x = array(problem.dtype), y = array(problem.dtype), x64 = array(DType::kF64);
    Array y64 = array(DType::kF64), visible = array(DType::kBool);
    Array lse({problem.shape[0], 1}, DType::kF32), lse64({problem.shape[0], 1});
    x.randomise(5, 3);
    visible.randomise(6);
    for (int64_t j = 0; j < length; ++j) {
      x.set(1 * length + j, -kInf);
      visible.set(2 * length + j, 0);
      x.set(3 * length + j, x.get(3 * length + j) + (problem.dtype == DType::kF16 ? 3e4 : 1e7));
      x.set(4 * length + j, j % 2 == 0 ? -kInf : 0.5);
      if (visible.get(7 * length + j) == 0) x.set(7 * length + j, nan);
    }
    x.set(5 * length + 17, nan);
    x.set(6 * length + 18, kInf);
    for (int64_t i = 0; i < count; ++i) x64.set(i, x.get(i));
    const Tensor none;
    SoftmaxProblem exact = problem;
    exact.dtype = exact.out_dtype = DType::kF64;
    const Tensor& seen = problem.visible ? visible.tensor : none;
    cpu::reference::softmax_forward(exact, {x64.tensor, y64.tensor, seen, lse64.tensor},
                                    {*executor_, nullptr});
    std::unique_ptr<cuda::CudaSoftmax> softmax;
    expect_ok(cuda::CudaSoftmax::make(GetParam(), problem, *gpu_, &softmax));
    ASSERT_NE(softmax, nullptr);
    SCOPED_TRACE(softmax->description());
    Mirror gpu_x(*gpu_, x), gpu_y(*gpu_, y), gpu_lse(*gpu_, lse), gpu_mask(*gpu_, visible);
    const Tensor gpu_seen = problem.visible ? gpu_mask.tensor() : none;
    run(
        [&](std::byte* work) {
          return softmax->forward({gpu_x.tensor(), gpu_y.tensor(), gpu_seen, gpu_lse.tensor()},
                                  work, nullptr);
        },
        softmax->workspace(false));
    gpu_y.fetch();
    gpu_lse.fetch();
    const double out = problem.dtype == DType::kF32 ? 0 : roundoff(problem.dtype);
    compare("output", y, y64, [&](int64_t i) {
      return 1e-6 * (1 + std::abs(y64.get(i))) + out * std::abs(y64.get(i));
    });
    compare("lse", lse, lse64, [&](int64_t i) { return 2e-7 * (8 + std::abs(lse64.get(i))); });

    // From the results as they were stored.
    Array dy = array(problem.dtype), dx = array(problem.dtype), dy64 = array(DType::kF64);
    Array dx64 = array(DType::kF64);
    dy.randomise(7);
    for (int64_t j = 0; j < length; ++j)
      if (visible.get(7 * length + j) == 0) dy.set(7 * length + j, nan);
    dy.set(3 * length + 19, nan);
    dy.set(4 * length + 21, kInf);
    for (int64_t i = 0; i < count; ++i) {
      dy64.set(i, dy.get(i));
      y64.set(i, y.get(i));
    }
    cpu::reference::softmax_backward(exact, {dy64.tensor, y64.tensor, seen, dx64.tensor},
                                     {*executor_, nullptr});
    Mirror gpu_dy(*gpu_, dy), gpu_dx(*gpu_, dx);
    run(
        [&](std::byte* work) {
          return softmax->backward({gpu_dy.tensor(), gpu_y.tensor(), gpu_seen, gpu_dx.tensor()},
                                   work, nullptr);
        },
        softmax->workspace(true));
    gpu_dx.fetch();
    compare("grad_input", dx, dx64, [&](int64_t i) { return 2e-5 + out * std::abs(dx64.get(i)); });
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, GpuSoftmaxKinds, testing::ValuesIn(kKinds));

// What is no number, infinite, or masked, as the contracts have it. In shared memory, rows over
// some blocks of a cluster; those of 32 bits are there in backward alone.
TEST_P(GpuSoftmaxKinds, SpecialRows) {
  const bool shared = GetParam() == SoftmaxKind::kShared;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool masked : {false, true})
      for (const bool log : {false, true})
        for (const bool empty_nan : {false, true}) {
          SoftmaxProblem problem{.dtype = dtype, .out_dtype = dtype, .rank = 2, .dim = 1};
          problem.log = log;
          problem.shape[0] = 8;
          problem.shape[1] = shared ? 2500 : 300;
          problem.visible = masked;
          problem.empty_rows_nan = empty_nan;
          SCOPED_TRACE(testing::Message()
                       << name_of(dtype) << (masked ? " masked" : "") << (log ? " log" : "")
                       << (empty_nan ? " empty nan" : ""));
          if (dtype == DType::kF16 && !shared) continue;
          const auto kind = cuda::choose_softmax(GetParam(), problem, false, gpu_->facts()).kind;
          if (shared && dtype != DType::kF32 && gpu_->facts().has_clusters()) {
            EXPECT_EQ(kind, SoftmaxKind::kShared);
          }
          check_special_rows(problem);
        }
}

// A row's result does not depend on the other rows.
TEST_F(GpuSoftmax, RowsDoNotDependOnTheBatch) {
  for (const auto& [dtype, length] :
       std::initializer_list<std::pair<DType, int64_t>>{{DType::kF32, 33},
                                                        {DType::kF32, 512},
                                                        {DType::kF32, 5000},
                                                        {DType::kF32, 70000},
                                                        {DType::kBF16, 131075},
                                                        {DType::kBF16, 262144},
                                                        {DType::kF32, 300000},
                                                        {DType::kF32, 1200000},
                                                        {DType::kF32, 4000000}}) {
    std::vector<std::vector<std::byte>> results;
    for (const int64_t rows : {7, 1}) {
      SoftmaxProblem problem{.dtype = dtype, .out_dtype = dtype, .rank = 2, .dim = 1};
      problem.shape[0] = rows;
      problem.shape[1] = length;
      Array x({7, length}, dtype), y({rows, length}, dtype);
      x.randomise(9, 5);
      std::unique_ptr<cuda::CudaSoftmax> softmax;
      expect_ok(cuda::CudaSoftmax::make(SoftmaxKind::kRows, problem, *gpu_, &softmax));
      ASSERT_NE(softmax, nullptr);
      Mirror gpu_x(*gpu_, x), gpu_y(*gpu_, y);
      Tensor input = gpu_x.tensor();
      input.shape[0] = rows;
      run(
          [&](std::byte* work) {
            return softmax->forward({input, gpu_y.tensor(), {}, {}}, work, nullptr);
          },
          softmax->workspace(false));
      gpu_y.fetch();
      const auto* first = y.tensor.as<std::byte>();
      results.emplace_back(first, first + size_of(dtype) * length);
    }
    EXPECT_EQ(results[0], results[1]) << length;
  }
}

}  // namespace
}  // namespace perseid::internal
