// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The shared parts of sm_90 kernels on a GPU, each alone (sm90_parts_kernels.hpp). Skipped where
// there is no GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cuda/runtime/tensor_map.hpp"
#include "gpu_tools.hpp"
#include "math/dtype.hpp"
#include "sm90_parts_kernels.hpp"

namespace perseid::internal::cuda {
namespace {

using testing_gpu::expect_ok;

// Elements in a GPU's memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const Gpu& gpu, std::vector<T> initial) : values(std::move(initial)), gpu_(gpu) {
    expect_ok(allocate(gpu_, bytes(), &data_));
    upload();
  }
  ~DeviceArray() { release(gpu_, data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  void upload() { expect_ok(copy(gpu_, data_, values.data(), bytes(), nullptr)); }
  void fetch() { expect_ok(copy(gpu_, values.data(), data_, bytes(), nullptr)); }

  std::vector<T> values;

 private:
  size_t bytes() const { return values.size() * sizeof(T); }

  const Gpu& gpu_;
  void* data_ = nullptr;
};

class GpuSm90Parts : public testing_gpu::GpuTest {
 protected:
  GpuSm90Parts() : GpuTest(9) {}

  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    const Program program = testing_sm90::program(gpu_->facts().architecture);
    Image image;
    expect_ok(compile(program, &image));
    ASSERT_EQ(image.names.size(), program.kernels.size());
    const Gpu::Current current(*gpu_);
    const Driver& driver = gpu_->driver();
    ASSERT_EQ(driver.module_load(&module_, image.code.c_str()), kSuccess);
    for (size_t i = 0; i < image.names.size(); ++i) {
      Kernel kernel;
      ASSERT_EQ(driver.module_function(&kernel.function, module_, image.names[i].c_str()),
                kSuccess);
      kernels_[program.kernels[i]] = kernel;
    }
  }
  void TearDown() override {
    if (module_ == nullptr) return;
    const Gpu::Current current(*gpu_);
    gpu_->driver().module_unload(module_);
  }

  template <class Arguments>
  void launch(const std::string& name, int64_t blocks, int32_t threads, int32_t shared_bytes,
              const Arguments& arguments) {
    SCOPED_TRACE(name);
    const auto found = kernels_.find("perseid::internal::cuda::" + name);
    ASSERT_NE(found, kernels_.end());
    if (shared_bytes > 0) expect_ok(gpu_->allow_shared(found->second, shared_bytes));
    const Gpu::Current current(*gpu_);
    const Launch shape{
        .blocks = blocks, .threads = threads, .shared_bytes = shared_bytes, .dependent = false};
    expect_ok(gpu_->launch(found->second, shape, &arguments, nullptr));
    expect_ok(synchronize(*gpu_, nullptr));
  }

  // A matrix [rows][columns] whose TMA boxes have all rows and 128 bytes.
  TensorMap map_of(void* data, DType dtype, int64_t rows, int64_t columns) {
    BoxedTensor tensor{.data = data, .dtype = dtype};
    const auto box = static_cast<int32_t>(128 / size_of(dtype));
    const int64_t size[kMapDims] = {columns, rows, 1, 1, 1};
    for (int d = 0; d < kMapDims; ++d) {
      tensor.size[d] = size[d];
      tensor.stride[d] = d == 0 ? 1 : columns;
      tensor.box[d] = d == 0 ? box : d == 1 ? static_cast<int32_t>(rows) : 1;
    }
    TensorMap map{};
    const Gpu::Current current(*gpu_);
    expect_ok(make_tensor_map(*gpu_, "a tile", tensor, &map));
    return map;
  }

  void pass_stages(const std::string& name) {
    constexpr int32_t kIterations = 20000;
    constexpr int kConsumers = 3;
    DeviceArray<uint32_t> wrong(*gpu_, {0});
    DeviceArray<uint64_t> sums(*gpu_, std::vector<uint64_t>(kConsumers));
    const testing_sm90::PipelineArguments arguments{wrong.data(), sums.data(), kIterations};
    launch(name, 4, 32 * (1 + kConsumers), 0, arguments);
    wrong.fetch();
    sums.fetch();
    EXPECT_EQ(wrong.values[0], 0u) << name;
    constexpr uint64_t kWords = uint64_t{kIterations} * 32;
    for (const uint64_t sum : sums.values) EXPECT_EQ(sum, 4 * (kWords * (kWords - 1) / 2)) << name;
  }

  // TMA fills what lies beyond the matrix with zeros, which are not read back.
  template <class Word>
  void read_tile(const std::string& name, DType dtype, int rows, int columns) {
    std::vector<Word> values(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Word>(i + 1);
    DeviceArray<Word> in(*gpu_, values), out(*gpu_, std::vector<Word>(values.size()));
    const testing_sm90::ReadArguments arguments{map_of(in.data(), dtype, rows, columns),
                                                out.data()};
    const auto chunks = static_cast<int32_t>((columns * size_of(dtype) + 127) / 128);
    launch(name, 1, 128, rows * 128 * chunks + 16, arguments);
    out.fetch();
    EXPECT_EQ(out.values, values) << name;
  }

  void multiply(bool across_a, bool across_b, int columns, int from) {
    using testing_sm90::kColumns, testing_sm90::kDepth;
    // Small whole numbers: exact in bf16, and so are their sums in float32.
    const auto a = [](int row, int k) { return static_cast<float>((row * 7 + k * 3) % 17 - 8); };
    const auto b = [](int column, int k) {
      return static_cast<float>((column * 5 + k * 11 + 2) % 19 - 9);
    };
    const auto bits = [](float value) { return to_bf16(value).bits; };
    std::vector<uint16_t> left(64 * kDepth), right(kColumns * kDepth);
    for (int k = 0; k < kDepth; ++k) {
      for (int row = 0; row < 64; ++row)
        left[static_cast<size_t>(across_a ? k * 64 + row : row * kDepth + k)] = bits(a(row, k));
      for (int column = 0; column < kColumns; ++column)
        right[static_cast<size_t>(across_b ? k * kColumns + column : column * kDepth + k)] =
            bits(b(column, k));
    }
    DeviceArray<uint16_t> device_left(*gpu_, left), device_right(*gpu_, right);
    DeviceArray<float> out(*gpu_, std::vector<float>(static_cast<size_t>(64 * columns), -1));
    const testing_sm90::MultiplyArguments arguments{
        map_of(device_left.data(), DType::kBF16, across_a ? kDepth : 64, across_a ? 64 : kDepth),
        map_of(device_right.data(), DType::kBF16, across_b ? kDepth : kColumns,
               across_b ? kColumns : kDepth),
        out.data()};
    const auto word = [](bool value) { return std::string(value ? "true" : "false"); };
    const std::string name = "multiply<" + word(across_a) + ", " + word(across_b) + ", " +
                             std::to_string(columns) + ", " + std::to_string(from) + ">";
    launch(name, 1, 128, (64 + kColumns) * kDepth * 2 + 16, arguments);
    out.fetch();
    for (int row = 0; row < 64; ++row)
      for (int column = 0; column < columns; ++column) {
        float sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += a(row, k) * b(from + column, k);
        ASSERT_EQ(out.values[static_cast<size_t>(row * columns + column)], sum)
            << name << ", row " << row << ", column " << column;
      }
  }

  std::map<std::string, Kernel> kernels_;
  ModuleHandle module_ = nullptr;
};

TEST_F(GpuSm90Parts, PipelinePassesEveryStage) {
  for (const char* stages : {"1", "3", "4"})
    pass_stages("pass_stages<" + std::string(stages) + ", perseid::internal::cuda::PipelineState<" +
                stages + ">>");
  for (const char* stages : {"3", "4"})
    pass_stages("pass_stages<" + std::string(stages) +
                ", perseid::internal::cuda::PipelineCursor<" + stages + ">>");
}

TEST_F(GpuSm90Parts, TmaWritesTheTileThatIsRead) {
  read_tile<uint16_t>("read_tile<64, 128, unsigned short>", DType::kBF16, 64, 128);
  read_tile<uint16_t>("read_tile<128, 72, unsigned short>", DType::kF16, 128, 72);
  read_tile<float>("read_tile<32, 64, float>", DType::kF32, 32, 64);
}

TEST_F(GpuSm90Parts, WgmmaReadsTheTilesOperands) {
  for (const bool across_a : {false, true})
    for (const bool across_b : {false, true}) multiply(across_a, across_b, 128, 0);
  multiply(false, false, 64, 64);
  multiply(false, true, 64, 64);
  multiply(false, true, 32, 32);
}

TEST_F(GpuSm90Parts, BlocksDrawEveryTileOnce) {
  constexpr int32_t kTilesPerHead = 37, kHeads = 61, kPerSection = 8;
  constexpr int32_t kTiles = kTilesPerHead * kHeads;
  DeviceArray<uint32_t> visits(*gpu_, std::vector<uint32_t>(kTiles));
  // Nobody has cleared the counter.
  DeviceArray<TileCounter> counter(*gpu_, {TileCounter{~uint64_t{0} - 1, 77, 99}});
  uint32_t launches = 0;
  // A captured launch has one number in every replay; others have numbers of their own.
  const std::vector<uint64_t> numbers = {0x1234567890abcdee, 0x1234567890abcdee, 0x2,
                                         0xfffffffffffffff0, 0x1234567890abcdee};
  for (const uint64_t number : numbers) {
    for (const int64_t blocks :
         {int64_t{1}, int64_t{132}, int64_t{1000}, int64_t{kTiles}, int64_t{kTiles + 5}}) {
      const bool draws = blocks < kTiles;
      const testing_sm90::DrawArguments arguments{draws ? counter.data() : nullptr,
                                                  number,
                                                  visits.data(),
                                                  kTiles,
                                                  kTilesPerHead,
                                                  kHeads,
                                                  kPerSection};
      launch("draw_tiles", blocks, 32, 0, arguments);
      ++launches;
      visits.fetch();
      for (int32_t i = 0; i < kTiles; ++i)
        ASSERT_EQ(visits.values[static_cast<size_t>(i)], launches)
            << "tile " << i << ", " << blocks << " blocks, launch " << number;
    }
  }
}

uint32_t scramble(uint32_t x) {
  x *= 2654435761u;
  x = (x ^ x >> 15) * 2246822519u;
  return x ^ x >> 13;
}

// The sums of each split tile in ascending order of its splits, whichever warp comes last, in
// memory that holds other sums or anything; a captured launch has one number in every replay.
TEST_F(GpuSm90Parts, SplitsOfATileAreAddedInOrder) {
  constexpr Sm90MatmulConfig kConfig = testing_sm90::kSplitsConfig;
  constexpr int32_t kTiles = 40, kSplits = 5, kBlocks = 120, kThreads = 128;
  constexpr int32_t kSums = kConfig.columns / 2, kParts = kTiles * kConfig.consumers;
  testing_sm90::SplitsArguments arguments{};
  Sm90MatmulArguments& matmul = arguments.matmul;
  matmul.grid = {.m = kTiles * kConfig.rows(),
                 .n = kConfig.columns,
                 .tile_m = kConfig.rows(),
                 .tile_n = kConfig.columns};
  matmul.splits.split = {kSplits, 0, kConfig.columns};
  constexpr auto kEach = static_cast<size_t>(kParts * kThreads * kSums);
  DeviceArray<uint64_t> counters(*gpu_, std::vector<uint64_t>(kParts, ~uint64_t{0}));
  DeviceArray<float> sums(*gpu_, std::vector<float>(kEach * kSplits, NAN));
  DeviceArray<float> out(*gpu_, std::vector<float>(kEach));
  DeviceArray<uint32_t> written(*gpu_, std::vector<uint32_t>(kParts));
  matmul.splits.counters = counters.data();
  matmul.splits.sums = sums.data();
  arguments.out = out.data();
  arguments.written = written.data();
  const std::vector<uint64_t> numbers = {0x1234567890abcdee, 0x1234567890abcdee, 0x2,
                                         0xfffffffffffffff0, 0x1234567890abcdee};
  for (size_t turn = 0; turn < numbers.size(); ++turn) {
    matmul.splits.launch = numbers[turn];
    arguments.seed = static_cast<int32_t>(turn);
    std::fill(out.values.begin(), out.values.end(), NAN);
    out.upload();
    launch("add_splits", kBlocks, kConfig.threads(), kConfig.shared_bytes(), arguments);
    out.fetch();
    written.fetch();
    EXPECT_EQ(written.values, std::vector<uint32_t>(kParts, static_cast<uint32_t>(turn + 1)));
    for (uint32_t at = 0; at < kEach; ++at) {
      const uint32_t i = at % kSums, thread = at / kSums % kThreads;
      const uint32_t part = at / kSums / kThreads;
      const uint32_t consumer = part % kConfig.consumers, tile = part / kConfig.consumers;
      float sum = 0;
      for (uint32_t split = 0; split < kSplits; ++split) {
        const auto seed = static_cast<uint32_t>(turn), unit = 1 + tile * kSplits + split;
        const uint32_t x = scramble(
            (((seed * 1024 + unit) * kConfig.consumers + consumer) * kThreads + thread) * kSums +
            i);
        sum += static_cast<float>(static_cast<int>(x % 4001) - 2000) *
               static_cast<float>(1 << (x >> 28) % 3 * 8);
      }
      ASSERT_EQ(out.values[at], sum) << "launch " << turn << ", tile " << tile << ", consumer "
                                     << consumer << ", thread " << thread << ", sum " << i;
    }
  }
}

}  // namespace
}  // namespace perseid::internal::cuda
