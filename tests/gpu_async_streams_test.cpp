// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products over arriving operands as a program uses them: in CUDA graphs, through many epochs, on
// many streams, one behind the other. Skipped where there is no GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

#include "gpu_api_tools.hpp"

namespace perseid::testing_gpu {
namespace {

using namespace std::chrono_literals;

// c = a b of bf16, whose rows of a arrive in chunks.
class ArrivingProduct {
 public:
  ArrivingProduct(const Context& context, int64_t m, int64_t n, int64_t k, int64_t count)
      : context_(context),
        m_(m),
        n_(n),
        k_(k),
        chunks_(Chunks::even(m, count)),
        plain_(context, {.dtype = bf16, .m = m, .n = n, .k = k}),
        arriving_(context, {.dtype = bf16, .m = m, .n = n, .k = k, .async_a = chunks_}),
        a_(context, bytes(m * k)),
        whole_a_(context, bytes(m * k)),
        b_(context, bytes(k * n)),
        c_(context, bytes(m * n)),
        plain_c_(context, bytes(m * n)),
        signals_(context, 4 * static_cast<size_t>(count)),
        workspace_(context, arriving_.workspace_size()),
        plain_workspace_(context, plain_.workspace_size() + 1) {
    const Bits b = random_bf16(static_cast<size_t>(k * n), 99);
    context.copy(b_.data(), b.data(), b_.size());
  }

  int64_t count() const { return chunks_.count(); }
  // Other values of a, of which nothing has arrived: it holds NaN, and signals the epoch before.
  void begin(uint32_t seed, uint32_t epoch) {
    host_a_ = random_bf16(static_cast<size_t>(m_ * k_), seed);
    context_.copy(whole_a_.data(), host_a_.data(), whole_a_.size());
    const Bits nothing(host_a_.size(), 0xffff);
    context_.copy(a_.data(), nothing.data(), a_.size());
    const Bits unwritten(static_cast<size_t>(m_ * n_), 0xffff);
    context_.copy(c_.data(), unwritten.data(), c_.size());
    const std::vector<uint32_t> before(static_cast<size_t>(count()), epoch - 1);
    context_.copy(signals_.data(), before.data(), signals_.size());
  }
  void deliver(int64_t chunk, uint32_t epoch, Stream stream) const {
    const auto c = static_cast<size_t>(chunk);
    const int64_t from = chunks_.begin[c] * k_, to = chunks_.begin[c + 1] * k_;
    context_.copy(static_cast<uint16_t*>(a_.data()) + from, host_a_.data() + from, bytes(to - from),
                  stream);
    set_signal(context_, signal(chunk), epoch, stream);
  }
  void execute(Stream stream, const Arrival& how) const {
    Arrival arrival = how;
    arrival.signals = signal(0);
    arriving_.execute(stream,
                      {.a = matrix(a_, m_, k_),
                       .b = matrix(b_, k_, n_),
                       .c = matrix(c_, m_, n_),
                       .arrival_a = arrival},
                      std::span<std::byte>(workspace_));
  }
  Bits result() const { return bits_of(c_); }
  Bits expected() const {
    plain_.execute(
        nullptr,
        {.a = matrix(whole_a_, m_, k_), .b = matrix(b_, k_, n_), .c = matrix(plain_c_, m_, n_)},
        std::span<std::byte>(plain_workspace_));
    context_.synchronize();
    return bits_of(plain_c_);
  }
  uint32_t* signal(int64_t chunk) const { return static_cast<uint32_t*>(signals_.data()) + chunk; }

 private:
  static size_t bytes(int64_t elements) { return 2 * static_cast<size_t>(elements); }
  static Tensor matrix(const Memory& memory, int64_t rows, int64_t columns) {
    return on_gpu(memory.data(), bf16, {rows, columns});
  }
  Bits bits_of(const Memory& memory) const {
    Bits bits(memory.size() / 2);
    context_.copy(bits.data(), memory.data(), memory.size());
    return bits;
  }

  const Context& context_;
  int64_t m_, n_, k_;
  Chunks chunks_;
  Matmul plain_, arriving_;
  Memory a_, whole_a_, b_, c_, plain_c_, signals_, workspace_, plain_workspace_;
  Bits host_a_;
};

class GpuAsyncStreams : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (IsSkipped()) return;
    try {
      ArrivingProduct(context(), 64, 64, 64, 2);
    } catch (const Error& error) {
      if (error.status() != PERSEID_UNSUPPORTED) throw;
      GTEST_SKIP() << error.what();
    }
  }
};

// A captured product reads the epoch from memory: each replay waits for the next one. Of the second
// product all tiles are split along k: a replay finds the sums and counters of the one before.
class GpuAsyncStreamsOfAGraph : public GpuAsyncStreams,
                                public testing::WithParamInterface<std::array<int64_t, 3>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GpuAsyncStreamsOfAGraph,
                         testing::Values(std::array<int64_t, 3>{1000, 520, 264},
                                         std::array<int64_t, 3>{200, 264, 4096}));
TEST_P(GpuAsyncStreamsOfAGraph, ReplaysWithTheNextEpoch) {
  const DriverStreams streams(2);
  const auto& [m, n, k] = GetParam();
  ArrivingProduct product(context(), m, n, k, 7);
  const Memory epoch_word(context(), 4);
  void *graph = nullptr, *executable = nullptr;
  ASSERT_EQ(streams.cuda.capture_begin(streams[0], 2), 0);
  product.execute(streams[0], {.epoch_ptr = static_cast<const uint32_t*>(epoch_word.data()),
                               .first_chunk = 3,
                               .deadline = 20s});
  ASSERT_EQ(streams.cuda.capture_end(streams[0], &graph), 0);
  ASSERT_EQ(streams.cuda.instantiate(&executable, graph, 0), 0);
  std::mt19937 random(5);
  std::vector<int64_t> order(static_cast<size_t>(product.count()));
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t turn = 0; turn < 12; ++turn) {
    const uint32_t epoch = 0xfffffffa + turn;  // wraps
    product.begin(turn, epoch);
    context().copy(epoch_word.data(), &epoch, sizeof epoch);
    std::shuffle(order.begin(), order.end(), random);
    ASSERT_EQ(streams.cuda.graph_launch(executable, streams[0]), 0);
    for (const int64_t chunk : order) product.deliver(chunk, epoch, streams[1]);
    context().synchronize(streams[0]);
    EXPECT_EQ(product.result(), product.expected()) << "epoch " << epoch;
  }
}

// PERSEID_TEST_EPOCHS executions, through the wrap at 2^32; none overtakes its signals.
TEST_F(GpuAsyncStreams, ManyEpochs) {
  const char* const asked = std::getenv("PERSEID_TEST_EPOCHS");
  const auto epochs = static_cast<uint32_t>(asked != nullptr ? std::atol(asked) : 2000);
  constexpr uint32_t kEpochsOfAValue = 250;
  const DriverStreams streams(2);
  ArrivingProduct product(context(), 256, 256, 64, 2);
  uint32_t epoch = 0u - epochs / 2;
  for (uint32_t done = 0; done < epochs; done += kEpochsOfAValue) {
    product.begin(done, epoch);
    product.deliver(1, epoch, streams[1]);
    for (uint32_t i = 0; i < kEpochsOfAValue; ++i, ++epoch) {
      product.execute(streams[0], {.epoch = epoch, .deadline = 20s});
      if (i == 0) {
        product.deliver(0, epoch, streams[1]);
      } else {
        for (const int64_t chunk : {1, 0})
          set_signal(context(), product.signal(chunk), epoch, streams[1]);
      }
    }
    context().synchronize(streams[0]);
    ASSERT_EQ(product.result(), product.expected()) << "epoch " << epoch;
  }
}

// Each product takes all multiprocessors. What was launched last arrives first.
TEST_F(GpuAsyncStreams, ProductsOnManyStreams) {
  constexpr size_t kProducts = 6;
  const DriverStreams streams(kProducts + 1);
  std::deque<ArrivingProduct> products;
  for (size_t i = 0; i < kProducts; ++i) products.emplace_back(context(), 2048, 2048, 256, 4);
  for (uint32_t epoch = 1; epoch < 6; ++epoch) {
    for (size_t i = 0; i < kProducts; ++i)
      products[i].begin(10 * epoch + static_cast<uint32_t>(i), epoch);
    for (size_t i = 0; i < kProducts; ++i)
      products[i].execute(streams[i], {.epoch = epoch, .deadline = 20s});
    for (size_t i = kProducts; i-- > 0;)
      for (int64_t chunk = 0; chunk < products[i].count(); ++chunk)
        products[i].deliver(chunk, epoch, streams[kProducts]);
    for (size_t i = 0; i < kProducts; ++i) {
      context().synchronize(streams[i]);
      EXPECT_EQ(products[i].result(), products[i].expected()) << "product " << i;
    }
  }
}

// A chunk that never arrives: the other streams' products are right, and so is the next one.
TEST_F(GpuAsyncStreams, OneOfManyStreamsTimesOut) {
  const DriverStreams streams(3);
  std::deque<ArrivingProduct> products;
  for (size_t i = 0; i < 2; ++i) products.emplace_back(context(), 512, 512, 128, 4);
  for (uint32_t epoch = 1; epoch < 5; ++epoch) {
    for (ArrivingProduct& product : products) product.begin(epoch, epoch);
    for (size_t i = 0; i < 2; ++i)
      products[i].execute(streams[i], {.epoch = epoch, .deadline = i == 0 ? 50ms : 20s});
    for (int64_t chunk = 0; chunk < 3; ++chunk) products[0].deliver(chunk, epoch, streams[2]);
    for (int64_t chunk = 0; chunk < 4; ++chunk) products[1].deliver(chunk, epoch, streams[2]);
    context().synchronize(streams[1]);
    EXPECT_EQ(products[1].result(), products[1].expected());
    try {
      context().synchronize(streams[0]);
      ADD_FAILURE() << "ended without chunk 3";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), PERSEID_TIMEOUT);
      EXPECT_NE(std::string(error.what()).find("chunk 3 of a"), std::string::npos) << error.what();
    }
  }
}

// Kernels that know nothing of chunks (f32, 8-bit types) run when all have arrived, and c leaves
// when they have ended. f64, and rows that TMA does not take, are computed tile by tile. If a chunk
// of a is missing, its rows of c do not leave; those of the first kind leave together.
TEST_F(GpuAsyncStreams, OtherKernels) {
  struct Case {
    DType dtype;
    size_t size;
    int64_t m, n, k;
    bool together = false;
  };
  const DriverStreams streams(2);
  for (const Case& of : {Case{f32, 4, 1000, 520, 264, true}, Case{f32, 4, 100, 50, 30, true},
                         Case{f8e4m3, 1, 200, 304, 144, true}, Case{f64, 8, 200, 300, 100},
                         Case{bf16, 2, 300, 261, 100}}) {
    const auto bytes = [&](int64_t elements) { return of.size * static_cast<size_t>(elements); };
    const Chunks rows = Chunks::even(of.m, 5), columns = Chunks::even(of.n, 3);
    MatmulOptions options{.dtype = of.dtype, .m = of.m, .n = of.n, .k = of.k};
    const Matmul plain(context(), options);
    options.async_a = options.sink_c = rows;
    options.async_b = columns;
    const Matmul cut(context(), options);
    // The result of 8-bit types is f32.
    const bool narrow = of.size == 1;
    const Memory a(context(), bytes(of.m * of.k)), b(context(), bytes(of.k * of.n)),
        c(context(), (narrow ? 4 : 1) * bytes(of.m * of.n)),
        signals(context(), 13 * sizeof(uint32_t)),
        workspace(context(), std::max(cut.workspace_size(), plain.workspace_size()) + 1);
    auto* const words = static_cast<uint32_t*>(signals.data());  // of a, of b, of c
    const auto view = [&](const Memory& memory, int64_t first, int64_t second) {
      return on_gpu(memory.data(), of.dtype, {first, second});
    };
    // 8-bit operands are multiplied along k alone.
    const Tensor columns_of_b = on_gpu(b.data(), of.dtype, {of.k, of.n}, {1, of.k});
    MatmulArguments arguments{
        .a = view(a, of.m, of.k),
        .b = narrow ? columns_of_b : view(b, of.k, of.n),
        .c = narrow ? on_gpu(c.data(), f32, {of.m, of.n}) : view(c, of.m, of.n)};
    const auto fill = [&](const Memory& memory, const std::vector<std::byte>& from) {
      context().copy(memory.data(), from.data(), memory.size());
    };
    const auto fetch = [&](const Memory& memory) {
      std::vector<std::byte> found(memory.size());
      context().copy(found.data(), memory.data(), memory.size());
      return found;
    };
    const auto random = [&](const Memory& memory, uint32_t seed) {
      const std::vector<float> floats = random_floats(memory.size() / of.size, seed);
      const std::vector<double> doubles(floats.begin(), floats.end());
      const Bits halves = random_bf16(floats.size(), seed);
      const void* const values[] = {halves.data(), floats.data(), doubles.data()};
      std::vector<std::byte> all(memory.size());
      std::memcpy(all.data(), values[of.size / 3], all.size());
      if (narrow)  // no NaN
        for (std::byte& byte : all) byte &= std::byte{0xb7};
      return all;
    };
    const std::vector<std::byte> whole_a = random(a, 1), whole_b = random(b, 2);
    fill(a, whole_a);
    fill(b, whole_b);
    plain.execute(nullptr, arguments, std::span<std::byte>(workspace));
    const std::vector<std::byte> expected = fetch(c);
    for (const int64_t missing : {-1, 3, -1}) {
      static uint32_t epoch = 0xfffffffe;
      const std::vector<uint32_t> before(13, epoch++);
      context().copy(signals.data(), before.data(), signals.size());
      for (const Memory* memory : {&a, &b, &c})
        fill(*memory, std::vector<std::byte>(memory->size(), std::byte{0xff}));
      const std::chrono::nanoseconds deadline = missing < 0 ? 20s : 50ms;
      arguments.arrival_a = {
          .signals = words, .epoch = epoch, .first_chunk = 2, .deadline = deadline};
      arguments.arrival_b = {.signals = words + 5, .epoch = epoch, .deadline = deadline};
      arguments.departure_c = {.signals = words + 8, .epoch = epoch};
      cut.execute(streams[0], arguments, std::span<std::byte>(workspace));
      context().copy(a.data(), whole_a.data(), a.size(), streams[1]);
      context().copy(b.data(), whole_b.data(), b.size(), streams[1]);
      for (const int64_t signal : {6, 0, 4, 2, 7, 1, 5, 3})
        if (signal != missing) set_signal(context(), words + signal, epoch, streams[1]);
      std::string failure;
      try {
        context().synchronize(streams[0]);
      } catch (const Error& error) {
        failure = error.what();
      }
      std::vector<uint32_t> after(13);
      context().copy(after.data(), signals.data(), signals.size());
      for (int64_t chunk = 0; chunk < 5; ++chunk) {
        if (missing >= 0 && chunk != missing && !of.together) continue;
        EXPECT_EQ(after[static_cast<size_t>(8 + chunk)], missing < 0 ? epoch : epoch - 1)
            << "chunk " << chunk << ", missing " << missing;
      }
      if (missing < 0) {
        EXPECT_EQ(failure, "");
        EXPECT_TRUE(fetch(c) == expected) << plain.info().implementation;
      } else {
        EXPECT_EQ(failure.substr(0, 33), "matmul: chunk 3 of a: not arrived") << failure;
      }
    }
  }
}

}  // namespace
}  // namespace perseid::testing_gpu
