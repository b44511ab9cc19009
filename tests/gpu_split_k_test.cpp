// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Split tiles of matmul by wgmma, bit for bit: operands whose sums over a split are exact in any
// order, but not over all splits. Launch after launch in one workspace, of other operands each
// time, and captured. gpu_sm90_parts_test has the protocol between splits, with delays. Skipped
// where there is no GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_f32.hpp"
#include "cuda/sm90/matmul_f8.hpp"
#include "gpu_api_tools.hpp"
#include "gpu_matmul_cases.hpp"

namespace perseid::internal {
namespace {

using matmul_cases::Case;
using matmul_cases::Layout;
using matmul_cases::Problem;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;
using tests::Array;

// The kernels of a plan, of any type.
class SplitMatmul {
 public:
  SplitMatmul(const Problem& problem, int consumers, int columns, cuda::Gpu& gpu) {
    const auto make = [&](auto config, auto* made) {
      config.consumers = consumers;
      config.columns = columns;
      config.cluster = 1;
      config.split_k = true;
      config.out_stages = std::min(config.out_stages, config.out_chunks());
      using Matmul = typename std::remove_reference_t<decltype(*made)>::element_type;
      expect_ok(Matmul::make(problem.problem, config, gpu, made));
      description_ = (*made)->description();
      workspace_ = (*made)->workspace();
      run_ = [matmul = made->get()](const MatmulArguments& arguments, void* workspace,
                                    void* stream) {
        expect_ok(matmul->run(arguments, workspace, stream));
      };
      depth_ = config.depth() / config.planes;
      group_ = config.group();
    };
    const int32_t multiprocessors = gpu.facts().multiprocessors;
    if (is_float8(problem.given.dtype))
      make(cuda::choose_sm90_f8_matmul(problem.problem, multiprocessors), &f8_);
    else if (problem.given.dtype == DType::kF32)
      make(cuda::choose_sm90_f32_matmul(problem.problem, multiprocessors), &f32_);
    else
      make(cuda::choose_sm90_matmul(problem.problem, multiprocessors), &sm90_);
  }
  // Depths [first, last) of each split; empty where some tiles are whole.
  std::vector<StepRange> splits(int64_t k) const {
    const std::string in = " tiles in ";
    const size_t at = description_.find(in), of = description_.rfind(" of ", at);
    if (at == std::string::npos || of == std::string::npos) return {};
    const size_t first = description_.rfind(' ', of - 1) + 1;
    if (description_.substr(first, of - first) != description_.substr(of + 4, at - of - 4))
      return {};
    const int32_t count = std::atoi(description_.c_str() + at + in.size());
    const auto steps = static_cast<int32_t>(round_up(ceil_div(k, depth_), group_));
    std::vector<StepRange> ranges;
    for (int32_t split = 0; split < count; ++split) {
      const StepRange range = steps_of_split(steps, group_, count, split);
      ranges.push_back({range.first * depth_, std::min(range.last * depth_, int32_t(k))});
    }
    return ranges;
  }
  const std::string& description() const { return description_; }
  size_t workspace() const { return workspace_; }
  void run(const MatmulArguments& arguments, void* workspace, void* stream) const {
    run_(arguments, workspace, stream);
  }

 private:
  std::unique_ptr<cuda::Sm90Matmul> sm90_;
  std::unique_ptr<cuda::Sm90F8Matmul> f8_;
  std::unique_ptr<cuda::Sm90F32Matmul> f32_;
  std::function<void(const MatmulArguments&, void*, void*)> run_;
  std::string description_;
  size_t workspace_ = 0;
  int32_t depth_ = 1, group_ = 1;
};

// Numbers u 2^e of a, of one e and sign for each row and split, and small integers in b: sums over
// a split are exact. The first and the last split of a row are large and have opposite signs, those
// between them are small, so that their order shows, and a part that leaves alone is larger than
// all results. Without splits all sums are exact.
void fill(const std::vector<StepRange>& splits, uint32_t seed, Problem* problem) {
  tests::Random random{seed};
  const auto draw = [&](int count) { return static_cast<int>((random.uniform() + 1) / 2 * count); };
  const Case& given = problem->given;
  std::vector<double> a, b;
  for (int64_t row = 0; row < given.batch * given.m; ++row) {
    size_t split = 0;
    int sign = 2 * draw(2) - 1;
    for (int64_t at = 0; at < given.k; ++at) {
      const double u = 1 + draw(3);
      if (splits.empty()) {
        a.push_back(sign * u);
        continue;
      }
      while (at >= splits[split].last) ++split;
      const bool first = split == 0, last = split + 1 == splits.size();
      if (at == splits[split].first && !first && !last) sign = 2 * draw(2) - 1;
      a.push_back(first ? 128 * u : last ? -128 * u : sign * u / 512);
    }
  }
  for (int64_t i = 0; i < given.batch * given.k * given.n; ++i)
    b.push_back(splits.empty() ? draw(7) - 3 : 1 + draw(3));
  problem->a.fill(a);
  problem->b.fill(b);
  problem->c.fill_all(given.beta != 0 ? 5 : tests::kNaN);
  std::vector<double> bias;
  for (int64_t i = 0; i < given.n; ++i) bias.push_back(draw(9) - 4);
  problem->bias.fill(bias);
}

// The result, and the largest magnitude in it.
struct Expected {
  std::vector<double> c;
  float amax = 0;
};
Expected expect(const Problem& problem, std::vector<StepRange> splits, bool reversed = false) {
  const Case& given = problem.given;
  if (splits.empty()) splits.push_back({0, static_cast<int32_t>(given.k)});
  if (reversed) std::reverse(splits.begin(), splits.end());
  const std::vector<double> wide_a = problem.a.values(), wide_b = problem.b.values();
  // b by columns.
  std::vector<float> a(wide_a.begin(), wide_a.end()), b(wide_b.size());
  const int64_t n = given.n, k = given.k;
  for (int64_t entry = 0; entry < given.batch; ++entry)
    for (int64_t at = 0; at < k; ++at)
      for (int64_t column = 0; column < n; ++column)
        b[static_cast<size_t>((entry * n + column) * k + at)] =
            static_cast<float>(wide_b[static_cast<size_t>((entry * k + at) * n + column)]);
  const std::vector<double> bias = problem.bias.values();
  Expected expected;
  for (int64_t row = 0; row < given.batch * given.m; ++row)
    for (int64_t column = 0; column < n; ++column) {
      const float* const of_a = a.data() + row * k;
      const float* const of_b = b.data() + (row / given.m * n + column) * k;
      float sum = 0;
      for (const StepRange& split : splits) {
        float part = 0;
        for (int32_t at = split.first; at < split.last; ++at) part += of_a[at] * of_b[at];
        sum += part;
      }
      const auto alpha = static_cast<float>(given.alpha), beta = static_cast<float>(given.beta);
      float y = std::fma(alpha, sum, given.bias ? float(bias[size_t(column)]) : 0.0f);
      if (given.beta != 0) y = std::fma(beta, 5.0f, y);
      expected.amax = std::max(expected.amax, std::abs(y));
      expected.c.push_back(tests::round_to(given.out_dtype, y));
    }
  return expected;
}

// Operands and results of a launch.
struct Call {
  Problem problem;
  Mirror a, b, c, bias, amax;

  Call(const cuda::Gpu& gpu, const Problem& filled)
      : problem(filled),
        a(gpu, problem.a),
        b(gpu, problem.b),
        c(gpu, problem.c),
        bias(gpu, problem.bias),
        amax(gpu, problem.amax) {}
  MatmulArguments arguments() const {
    MatmulArguments arguments = problem.arguments(c.tensor(), amax.tensor());
    arguments.a = a.tensor();
    arguments.b = b.tensor();
    arguments.bias.data = bias.tensor().data;
    return arguments;
  }
  void expect(const Expected& expected) {
    c.fetch();
    EXPECT_TRUE(problem.c.values() == expected.c);
    amax.fetch();
    if (!problem.given.amax) return;
    EXPECT_EQ(problem.amax.get(0), expected.amax);
  }
};

class GpuSplitK : public testing_gpu::GpuTest {
 protected:
  GpuSplitK() : GpuTest(9) {}

  // `all`: whether all tiles are split, in at least three splits.
  void check(const Case& given, int consumers, int columns, bool all = true) {
    SCOPED_TRACE(matmul_cases::describe(given));
    Problem problem(given);
    const SplitMatmul matmul(problem, consumers, columns, *gpu_);
    SCOPED_TRACE(matmul.description());
    const std::vector<StepRange> splits = matmul.splits(given.k);
    ASSERT_NE(matmul.description().find(" splits of k"), std::string::npos);
    ASSERT_EQ(splits.size() >= 3, all);
    void* workspace = nullptr;
    expect_ok(cuda::allocate(*gpu_, matmul.workspace(), &workspace));
    const std::vector<uint8_t> rubbish(matmul.workspace(), 0xff);  // NaN
    expect_ok(cuda::copy(*gpu_, workspace, rubbish.data(), rubbish.size(), nullptr));
    // One behind the other, with nothing between them.
    constexpr uint32_t kCalls = 3;
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<Expected> expected;
    for (uint32_t seed = 1; seed <= kCalls; ++seed) {
      fill(splits, seed, &problem);
      expected.push_back(expect(problem, splits));
      EXPECT_TRUE(!all || expect(problem, splits, true).c != expected.back().c);
      calls.push_back(std::make_unique<Call>(*gpu_, problem));
    }
    for (const auto& call : calls) matmul.run(call->arguments(), workspace, nullptr);
    for (size_t i = 0; i < calls.size(); ++i) calls[i]->expect(expected[i]);
    replay(matmul, workspace, given, splits);
    cuda::release(*gpu_, workspace);
  }

 private:
  // A captured launch has the same number in each replay.
  void replay(const SplitMatmul& matmul, void* workspace, const Case& given,
              const std::vector<StepRange>& splits) {
    const perseid::testing_gpu::DriverStreams streams(1);
    void* const stream = streams[0];
    Problem problem(given);
    Call call(*gpu_, problem);
    void *graph = nullptr, *executable = nullptr;
    ASSERT_EQ(streams.cuda.capture_begin(stream, 2), 0);
    matmul.run(call.arguments(), workspace, stream);
    ASSERT_EQ(streams.cuda.capture_end(stream, &graph), 0);
    ASSERT_EQ(streams.cuda.instantiate(&executable, graph, 0), 0);
    for (uint32_t seed = 11; seed < 13; ++seed) {
      fill(splits, seed, &problem);
      const auto send = [&](const Array& from, const Mirror& to) {
        expect_ok(cuda::copy(*gpu_, to.tensor().data, from.tensor.data,
                             from.memory.size() - static_cast<size_t>(offset(from)), stream));
      };
      for (const auto& [from, to] : {std::pair{&problem.a, &call.a},
                                     {&problem.b, &call.b},
                                     {&problem.c, &call.c},
                                     {&problem.bias, &call.bias}})
        send(*from, *to);
      ASSERT_EQ(streams.cuda.graph_launch(executable, stream), 0);
      expect_ok(cuda::synchronize(*gpu_, stream));
      call.expect(expect(problem, splits));
    }
  }
  // Where the first element is, in bytes.
  static int64_t offset(const Array& array) {
    return static_cast<const std::byte*>(array.tensor.data) - array.memory.data();
  }
};

// Entries of a batch have their own operands, and their tiles are in work at the same time. c0 is
// c: a split that stored its part would change what the tile's end reads.
TEST_F(GpuSplitK, Sums) {
  check({.dtype = DType::kBF16,
         .out_dtype = DType::kF32,
         .batch = 3,
         .m = 136,
         .n = 136,
         .k = 3080,
         .alpha = 0.5,
         .beta = 0.25,
         .bias = true,
         .b = Layout::kColumns,
         .amax = true},
        2, 256);
}

// The epilogue of whole tiles of this type is deferred.
TEST_F(GpuSplitK, RoundedSums) {
  check({.dtype = DType::kF16,
         .out_dtype = DType::kF16,
         .batch = 2,
         .m = 136,
         .n = 200,
         .k = 3080,
         .bias = true,
         .b = Layout::kColumns,
         .amax = true},
        1, 128);
}

TEST_F(GpuSplitK, SumsBehindWholeTiles) {
  check({.dtype = DType::kBF16, .out_dtype = DType::kF32, .m = 520, .n = 1160, .k = 3072}, 1, 64,
        false);
}

TEST_F(GpuSplitK, SumsOf8Bits) {
  for (const Accumulation accumulation : {Accumulation::kFast, Accumulation::kPromoted})
    check({.dtype = DType::kF8E4M3,
           .out_dtype = DType::kF32,
           .batch = 2,
           .m = 136,
           .n = 136,
           .k = 5008,
           .bias = true,
           .b = Layout::kColumns,
           .amax = true,
           .accumulation = accumulation},
          2, 128);
}

TEST_F(GpuSplitK, SumsOfFloat32) {
  check({.dtype = DType::kF32,
         .out_dtype = DType::kF32,
         .batch = 2,
         .m = 136,
         .n = 136,
         .k = 2056,
         .alpha = 0.5,
         .bias = true,
         .b = Layout::kColumns,
         .amax = true},
        2, 128);
}

}  // namespace
}  // namespace perseid::internal
