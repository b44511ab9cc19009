// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A GPU as a program uses it, through the public interface alone: threads, graphs, large tensors,
// time, and everything that can go wrong outside of the library. Skipped where there is no GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "gpu_api_tools.hpp"

namespace perseid {
namespace {

using testing_gpu::Cuda;
using testing_gpu::on_gpu;
using testing_gpu::random_floats;

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// Softmax of float rows on the GPU, with its memory.
struct Rows {
  Rows(const Context& given, int64_t count, int64_t width, const char* implementation = nullptr)
      : context(given),
        rows(count),
        length(width),
        softmax(given, {.shape = {count, width}, .implementation = implementation}),
        input(random_floats(size(), static_cast<uint32_t>(width))),
        x(given, 4 * size()),
        y(given, 4 * size()),
        workspace(given, softmax.workspace_size()) {
    context.copy(x.data(), input.data(), x.size());
  }
  size_t size() const { return static_cast<size_t>(rows * length); }
  void execute(Stream stream = nullptr) const {
    softmax.forward(stream,
                    {.input = on_gpu(x.data(), f32, {rows, length}),
                     .output = on_gpu(y.data(), f32, {rows, length})},
                    {workspace});
  }
  // The largest error of the result against double.
  double error() const {
    std::vector<float> result(size());
    context.copy(result.data(), y.data(), y.size());
    double largest = 0;
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const float* from = input.data() + row * static_cast<size_t>(length);
      const float* to = result.data() + row * static_cast<size_t>(length);
      double sum = 0;
      for (int64_t i = 0; i < length; ++i) sum += std::exp(double{from[i]});
      for (int64_t i = 0; i < length; ++i) {
        const double error = std::abs(double{to[i]} - std::exp(double{from[i]}) / sum);
        largest = std::isnan(to[i]) ? 1 : std::max(largest, error);
      }
    }
    return largest;
  }

  const Context& context;
  int64_t rows, length;
  Softmax softmax;
  std::vector<float> input;
  Memory x, y, workspace;
};

class Gpu : public testing_gpu::ContextTest {
 protected:
  // Runs a disabled test of this program in a process of its own.
  static void run_alone(const std::string& name, int processes = 1) {
    std::string command;
    for (int i = 0; i < processes; ++i) {
      command += "/proc/" + std::to_string(getpid()) +
                 "/exe --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=" + name +
                 " & p" + std::to_string(i) + "=$!; ";
    }
    for (int i = 0; i < processes; ++i) command += "wait $p" + std::to_string(i) + " && ";
    EXPECT_EQ(std::system((command + "true").c_str()), 0) << name;
  }
};

// The status of a call that may fail; one that does must say why.
perseid_status status_of(const std::function<void()>& call) {
  try {
    call();
    return PERSEID_OK;
  } catch (const Error& error) {
    EXPECT_GT(std::string(error.what()).size(), 20u) << error.what();
    std::printf("  said: %s\n", error.what());
    return error.status();
  }
}

TEST_F(Gpu, MultipliesMatrices) {
  constexpr int64_t kRows = 70, kColumns = 90, kDepth = 110;
  const std::vector<float> a = random_floats(kRows * kDepth, 1),
                           b = random_floats(kColumns * kDepth, 2);
  std::vector<float> c(kRows * kColumns, 1);
  const auto to_gpu = [&](const std::vector<float>& values) {
    Memory memory(context(), 4 * values.size());
    context().copy(memory.data(), values.data(), memory.size());
    return memory;
  };
  const Memory gpu_a = to_gpu(a), gpu_b = to_gpu(b), gpu_c = to_gpu(c);
  const Matmul matmul(context(), {.m = kRows, .n = kColumns, .k = kDepth, .beta = 3});
  const Memory workspace(context(), matmul.workspace_size());
  const Tensor right = on_gpu(gpu_b.data(), f32, {kColumns, kDepth}).transposed();
  const Tensor result = on_gpu(gpu_c.data(), f32, {kRows, kColumns});
  matmul.execute(nullptr,
                 {.a = on_gpu(gpu_a.data(), f32, {kRows, kDepth}), .b = right, .c = result},
                 {workspace});
  context().copy(c.data(), gpu_c.data(), gpu_c.size());
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t j = 0; j < kColumns; ++j) {
      double sum = 3;
      for (int64_t k = 0; k < kDepth; ++k)
        sum +=
            double{a[static_cast<size_t>(i * kDepth + k)]} * b[static_cast<size_t>(j * kDepth + k)];
      ASSERT_NEAR(c[static_cast<size_t>(i * kColumns + j)], sum, 1e-3);
    }
  // Memory of the host is none of the GPU's.
  EXPECT_THROW(matmul.execute(nullptr, {.a = {a.data(), {kRows, kDepth}}, .b = right, .c = result},
                              {workspace}),
               Error);
}

TEST_F(Gpu, ServesManyThreads) {
  constexpr int64_t kLengths[] = {7, 64, 333, 1000, 4096, 20000, 70000};
  const Rows shared(context(), 33, 512);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 16; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < std::size(kLengths); ++i) {
        const Rows own(context(), 5, kLengths[(t + i) % std::size(kLengths)]);
        own.execute();
        shared.execute();
        EXPECT_LT(own.error(), 1e-6) << own.length;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(shared.error(), 1e-6);
}

TEST_F(Gpu, ReplaysGraphs) {
  const Cuda cuda;
  void *primary = nullptr, *stream = nullptr, *graph = nullptr, *executable = nullptr;
  ASSERT_EQ(cuda.primary_retain(&primary, 0), 0);
  ASSERT_EQ(cuda.context_set(primary), 0);
  ASSERT_EQ(cuda.stream_create(&stream, 1), 0);
  Rows lanes(context(), 100, 40), block(context(), 30, 4096), cluster(context(), 8, 65536),
      chunks(context(), 2, 1200000), split(context(), 3, 100000, "cuda:split"),
      columns(context(), 64, 300, "cuda:columns");
  const std::vector<Rows*> all = {&lanes, &block, &cluster, &chunks, &split, &columns};
  ASSERT_EQ(cuda.capture_begin(stream, 2), 0);
  for (const Rows* each : all) each->execute(stream);
  ASSERT_EQ(cuda.capture_end(stream, &graph), 0);
  ASSERT_EQ(cuda.instantiate(&executable, graph, 0), 0);
  for (uint32_t turn = 0; turn < 3; ++turn) {
    for (Rows* each : all) {
      each->input = random_floats(each->size(), 77 + turn);
      context().copy(each->x.data(), each->input.data(), each->x.size());
    }
    ASSERT_EQ(cuda.graph_launch(executable, stream), 0);
    context().synchronize(stream);
    for (const Rows* each : all) EXPECT_LT(each->error(), 1e-6) << each->length << ", " << turn;
  }
  cuda.context_set(nullptr);
}

// The caller's current context is as it was after every call, and may be destroyed.
TEST_F(Gpu, KeepsTheCallersContext) {
  const Cuda cuda;
  void *own = nullptr, *current = nullptr;
  ASSERT_EQ(cuda.context_create(&own, 0, 0), 0);
  Rows rows(context(), 20, 300);
  rows.execute();
  EXPECT_LT(rows.error(), 1e-6);
  ASSERT_EQ(cuda.context_current(&current), 0);
  EXPECT_EQ(current, own);
  ASSERT_EQ(cuda.context_destroy(own), 0);
  const Rows after(context(), 20, 301);
  after.execute();
  EXPECT_LT(after.error(), 1e-6);
}

// ---- What goes wrong outside of the library, in processes of their own ----

TEST_F(Gpu, SurvivesALostDevice) { run_alone("GpuAlone.DISABLED_LostDevice"); }
TEST_F(Gpu, SurvivesAResetContext) { run_alone("GpuAlone.DISABLED_ResetContext"); }
TEST_F(Gpu, SharesTheCacheBetweenProcesses) {
  const std::string folder = testing::TempDir() + "/gpu-cache";
  setenv("PERSEID_CACHE_DIR", folder.c_str(), 1);
  setenv("PERSEID_PACK", "", 1);
  run_alone("GpuAlone.DISABLED_FillCache", 3);
  unsetenv("PERSEID_CACHE_DIR");
  unsetenv("PERSEID_PACK");
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_EQ(entry.path().extension(), ".module") << "a temporary file was left";
}

// A kernel that reads where no memory is ends the device's context for this process: from then on
// every call fails, with a sentence.
TEST(GpuAlone, DISABLED_LostDevice) {
  const Context context = Context::cuda(0);
  const Rows rows(context, 64, 128);
  Timer timer(context);
  rows.softmax.forward(nullptr,
                       {.input = on_gpu(reinterpret_cast<void*>(0x1000), f32, {64, 128}),
                        .output = on_gpu(rows.y.data(), f32, {64, 128})},
                       {rows.workspace});
  EXPECT_EQ(status_of([&] { context.synchronize(); }), PERSEID_DEVICE_ERROR);
  EXPECT_EQ(status_of([&] { rows.execute(); }), PERSEID_DEVICE_ERROR);
  EXPECT_EQ(status_of([&] { const Rows more(context, 64, 3000); }), PERSEID_DEVICE_ERROR);
  EXPECT_NE(status_of([&] { const Memory memory(context, 1000); }), PERSEID_OK);
  EXPECT_NE(status_of([&] { context.ceiling(Ceiling::kCopy, 1 << 20); }), PERSEID_OK);
  EXPECT_EQ(status_of([&] { timer.start(); }), PERSEID_DEVICE_ERROR);
  status_of([] { Context::cuda(0); });
}

// What a caller's cudaDeviceReset does to everything that holds the primary context.
TEST(GpuAlone, DISABLED_ResetContext) {
  const Cuda cuda;
  std::optional<Context> context = Context::cuda(0);
  {
    const Rows rows(*context, 64, 128);
    rows.execute();
    ASSERT_EQ(cuda.primary_reset(0), 0);
    EXPECT_EQ(status_of([&] { rows.execute(); }), PERSEID_DEVICE_ERROR);
    EXPECT_EQ(status_of([&] { context->synchronize(); }), PERSEID_DEVICE_ERROR);
    EXPECT_EQ(status_of([&] { const Rows more(*context, 64, 3000); }), PERSEID_DEVICE_ERROR);
    EXPECT_EQ(status_of([&] { const Memory memory(*context, 1000); }), PERSEID_DEVICE_ERROR);
  }
  context.reset();
  const Context again = Context::cuda(0);
  const Rows rows(again, 64, 128);
  rows.execute();
  EXPECT_LT(rows.error(), 1e-6);
}

TEST(GpuAlone, DISABLED_FillCache) {
  const Context context = Context::cuda(0);
  for (int64_t length = 16; length <= 65536; length *= 4) {
    const Rows rows(context, 4, length);
    rows.execute();
    EXPECT_LT(rows.error(), 1e-6) << length;
  }
}

// ---- Memory ----

TEST_F(Gpu, SaysWhenItsMemoryIsFull) {
  std::vector<Memory> all;
  for (size_t bytes = size_t{1} << 40; bytes >= 1 << 20; bytes /= 2) {
    try {
      while (true) all.emplace_back(context(), bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), PERSEID_OUT_OF_MEMORY);
      EXPECT_NE(std::string(error.what()).find("are free"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(status_of([&] { context().ceiling(Ceiling::kCopy, 1 << 30); }), PERSEID_OUT_OF_MEMORY);
  // A kernel may still find memory; if not, it says so.
  const perseid_status status = status_of([&] {
    const Softmax softmax(context(), {.shape = {64, 3333}});
  });
  EXPECT_TRUE(status == PERSEID_OK || status == PERSEID_OUT_OF_MEMORY) << status;
  all.clear();
  const Rows rows(context(), 64, 3333);
  rows.execute();
  EXPECT_LT(rows.error(), 1e-6);
}

// Rows that begin more than 2^31 elements behind the first, in every kind of kernel.
TEST_F(Gpu, ReachesPastTwoBillionElements) {
  constexpr int64_t kElements = (int64_t{1} << 31) + (int64_t{1} << 21);
  std::optional<Memory> x, y;
  try {
    x.emplace(context(), 2 * kElements);
    y.emplace(context(), 2 * kElements);
  } catch (const Error& error) {
    if (error.status() != PERSEID_OUT_OF_MEMORY) throw;
    GTEST_SKIP() << error.what();
  }
  const std::vector<uint16_t> zeros(1 << 20);
  for (Memory* memory : {&*x, &*y}) {
    context().copy(memory->data(), zeros.data(), 2 * zeros.size());
    size_t done = 2 * zeros.size();
    for (; done < memory->size(); done *= 2)
      context().copy(static_cast<char*>(memory->data()) + done, memory->data(),
                     std::min(done, memory->size() - done));
  }
  struct Case {
    int64_t length;
    int32_t dim;
    const char* implementation;
  };
  for (const Case& each : {Case{64, 1, "cuda:rows"}, Case{4096, 1, "cuda:rows"},
                           Case{262144, 1, "cuda:rows"}, Case{1 << 20, 1, "cuda:split"},
                           Case{kElements, 1, "cuda:split"}, Case{64, 0, "cuda:columns"}}) {
    const int64_t rows = kElements / each.length;
    const Dims shape = each.dim == 1 ? Dims{rows, each.length} : Dims{each.length, rows};
    const Softmax softmax(
        context(),
        {.dtype = bf16, .shape = shape, .dim = each.dim, .implementation = each.implementation});
    const Memory workspace(context(), std::max(softmax.workspace_size(Direction::kForward),
                                               softmax.workspace_size(Direction::kBackward)));
    const Tensor input = on_gpu(x->data(), bf16, shape), output = on_gpu(y->data(), bf16, shape);
    softmax.forward(nullptr, {.input = input, .output = output}, {workspace});
    // All inputs are 0, and so every output is 1 / length, in bf16 exactly where that is a power
    // of two.
    const auto expected = 1 / static_cast<float>(each.length);
    for (const int64_t at : {int64_t{0}, kElements / 2, (int64_t{1} << 31) - 1, int64_t{1} << 31,
                             rows * each.length - 1}) {
      uint16_t bits = 0;
      context().copy(&bits, static_cast<char*>(y->data()) + 2 * at, 2);
      const uint32_t wide = uint32_t{bits} << 16;
      float value = 0;
      std::memcpy(&value, &wide, 4);
      EXPECT_NEAR(value, expected, expected / 256) << each.implementation << " " << at;
    }
    // The gradient of equal gradients is 0: it overwrites the output in place of a third tensor.
    softmax.backward(nullptr, {.grad_output = input, .output = output, .grad_input = input},
                     {workspace});
    uint16_t last = 1;
    context().copy(&last, static_cast<char*>(x->data()) + 2 * (rows * each.length - 1), 2);
    EXPECT_EQ(last & 0x7fff, 0) << each.implementation;
  }
}

// ---- Time ----

TEST_F(Gpu, LaunchesQuickly) {
  const Rows rows(context(), 64, 128);
  const Tensor input = on_gpu(rows.x.data(), f32, {64, 128});
  const Tensor output = on_gpu(rows.y.data(), f32, {64, 128});
  const auto least = [&] {
    constexpr int kTurns = 200;
    double best = 1;
    for (int round = 0; round < 20; ++round) {
      const double start = now();
      for (int turn = 0; turn < kTurns; ++turn)
        rows.softmax.forward(nullptr, {.input = input, .output = output}, {rows.workspace});
      best = std::min(best, (now() - start) / kTurns);
      context().synchronize();
    }
    return best * 1e6;
  };
  const double other = least();
  const Cuda cuda;
  void* primary = nullptr;
  ASSERT_EQ(cuda.primary_retain(&primary, 0), 0);
  ASSERT_EQ(cuda.context_set(primary), 0);
  const double same = least();
  cuda.context_set(nullptr);
  std::printf("  host time of an execution: %.2f us, with the context current: %.2f us\n", other,
              same);
  RecordProperty("launch_us", std::to_string(other));
  EXPECT_LT(same, 20);  // 4 on a machine that does nothing else
}

TEST_F(Gpu, MakesPlansQuickly) {
  const auto seconds = [&](int64_t length, DType dtype = f32) {
    const double start = now();
    const Softmax softmax(context(), {.dtype = dtype, .shape = {64, length}});
    return now() - start;
  };
  seconds(64);  // opens the pack
  const double packed = seconds(2048), another = seconds(1024), known = seconds(1024);
  setenv("PERSEID_CACHE_DIR", (testing::TempDir() + "/new").c_str(), 1);
  const double fresh = seconds(2049, f16);
  unsetenv("PERSEID_CACHE_DIR");
  std::printf(
      "  plans: %.2f and %.2f ms (packed, if there is a pack), %.3f ms (loaded before), "
      "%.0f ms (new)\n",
      packed * 1e3, another * 1e3, known * 1e3, fresh * 1e3);
  EXPECT_LT(known, 1e-3);
  EXPECT_LT(fresh, 20);  // 2 on a machine that does nothing else
}

}  // namespace
}  // namespace perseid
