// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU as a program uses it: graphs, streams, threads, batch entries, tensors
// past 2^31 elements, and the bits of dropout compared with the CPU's. Skipped where there is no
// GPU that has it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <thread>

#include "gpu_api_tools.hpp"

namespace perseid {
namespace {

using testing_gpu::Bits;
using testing_gpu::DriverStreams;
using testing_gpu::float_of;
using testing_gpu::on_gpu;
using testing_gpu::random_bf16;

// A bf16 tensor on the GPU. `stride`: elements from one batch entry to the next.
class Array {
 public:
  Array(const Context& context, const Dims& shape, int64_t stride = 0)
      : context_(context), shape_(shape), inner_(1), stride_(stride) {
    for (size_t d = 1; d < shape.size(); ++d) inner_ *= shape[d];
    if (stride_ == 0) stride_ = inner_;
    memory_.emplace(context, static_cast<size_t>(2 * ((shape[0] - 1) * stride_ + inner_)));
    set(Bits(count(), 0x7fc0));  // NaN: what is not written shows
  }
  size_t count() const { return static_cast<size_t>(shape_[0] * inner_); }
  Tensor tensor() const {
    return on_gpu(memory_->data(), bf16, shape_, {stride_, shape_[2] * shape_[3], shape_[3], 1});
  }
  void set(const Bits& bits) const {
    if (stride_ == inner_) return context_.copy(at(0), bits.data(), 2 * bits.size());
    for (int64_t entry = 0; entry < shape_[0]; ++entry)
      context_.copy(at(entry), bits.data() + entry * inner_, static_cast<size_t>(2 * inner_));
  }
  Bits get() const {
    Bits bits(count());
    if (stride_ == inner_) {
      context_.copy(bits.data(), at(0), 2 * bits.size());
    } else {
      for (int64_t entry = 0; entry < shape_[0]; ++entry)
        context_.copy(bits.data() + entry * inner_, at(entry), static_cast<size_t>(2 * inner_));
    }
    return bits;
  }
  // The bits of one batch entry.
  Bits get(int64_t entry) const {
    Bits bits(static_cast<size_t>(inner_));
    context_.copy(bits.data(), at(entry), 2 * bits.size());
    return bits;
  }

 private:
  uint16_t* at(int64_t entry) const {
    return static_cast<uint16_t*>(memory_->data()) + entry * stride_;
  }
  const Context& context_;
  Dims shape_;
  int64_t inner_, stride_;
  std::optional<Memory> memory_;
};

// Random inputs of a problem; executions, which have results and workspaces of their own, share
// them.
struct Inputs {
  Inputs(const Context& context, const AttentionOptions& o, int64_t stride = 0)
      : query(context, {o.batch, o.q_len, o.heads, o.head_dim}, stride),
        key(context, {o.batch, o.kv_len, o.kv_heads, o.head_dim}, stride),
        value(context, {o.batch, o.kv_len, o.kv_heads, o.head_dim}, stride),
        grad_out(context, {o.batch, o.q_len, o.heads, o.head_dim}, stride) {
    randomise(1);
  }
  void randomise(uint32_t seed) const {
    for (const Array* each : all()) each->set(random_bf16(each->count(), seed++));
  }
  std::vector<const Array*> all() const { return {&query, &key, &value, &grad_out}; }
  Array query, key, value, grad_out;
};

struct Results {
  Results(const Context& given, const AttentionOptions& o, const Attention& plan,
          int64_t stride = 0)
      : context(given),
        options(o),
        attention(plan),
        out(context, {o.batch, o.q_len, o.heads, o.head_dim}, stride),
        grad_query(context, {o.batch, o.q_len, o.heads, o.head_dim}, stride),
        grad_key(context, {o.batch, o.kv_len, o.kv_heads, o.head_dim}, stride),
        grad_value(context, {o.batch, o.kv_len, o.kv_heads, o.head_dim}, stride),
        lse(context, static_cast<size_t>(4 * o.batch * o.heads * o.q_len)),
        forward(context, plan.workspace_size(Direction::kForward) + 1),
        backward(context, o.backward ? plan.workspace_size(Direction::kBackward) + 1 : 1) {}
  void execute(const Inputs& inputs, Stream stream = nullptr, const uint64_t* rng = nullptr) const {
    const Tensor sums = on_gpu(lse.data(), f32, {options.batch, options.heads, options.q_len});
    attention.forward(stream,
                      {.query = inputs.query.tensor(),
                       .key = inputs.key.tensor(),
                       .value = inputs.value.tensor(),
                       .out = out.tensor(),
                       .lse = sums,
                       .seed = 0x123456789abcdef,
                       .offset = 77,
                       .rng = rng},
                      {forward});
    if (!options.backward) return;
    attention.backward(stream,
                       {.query = inputs.query.tensor(),
                        .key = inputs.key.tensor(),
                        .value = inputs.value.tensor(),
                        .out = out.tensor(),
                        .lse = sums,
                        .grad_out = inputs.grad_out.tensor(),
                        .grad_query = has_grad_query() ? grad_query.tensor() : Tensor(),
                        .grad_key = grad_key.tensor(),
                        .grad_value = grad_value.tensor(),
                        .seed = 0x123456789abcdef,
                        .offset = 77,
                        .rng = rng},
                       {backward});
  }
  bool has_grad_query() const {
    return options.gradients == 0 || (options.gradients & PERSEID_GRAD_QUERY) != 0;
  }
  // Those whose bits are the same every time. By default those of keys are where a mask hides some
  // or each head has its own.
  std::vector<const Array*> all() const {
    if (!options.backward) return {&out};
    if (!options.deterministic || !has_grad_query()) return {&out, &grad_key, &grad_value};
    return {&out, &grad_query, &grad_key, &grad_value};
  }
  // All results, or those of one batch entry; lse is in the gradients.
  Bits bits(int64_t entry = -1) const {
    Bits all_bits;
    for (const Array* each : all()) {
      const Bits more = entry < 0 ? each->get() : each->get(entry);
      all_bits.insert(all_bits.end(), more.begin(), more.end());
    }
    return all_bits;
  }

  const Context& context;
  AttentionOptions options;
  const Attention& attention;
  Array out, grad_query, grad_key, grad_value;
  Memory lse, forward, backward;
};

AttentionOptions options_of(int64_t batch, int64_t heads, int64_t q_len, int64_t kv_len,
                            int64_t dim) {
  return {.dtype = bf16,
          .batch = batch,
          .heads = heads,
          .kv_heads = heads / 2,
          .q_len = q_len,
          .kv_len = kv_len,
          .head_dim = dim,
          .mask = causal_bottom_right(),
          .backward = true,
          .deterministic = true};
}

class GpuAttentionApi : public testing_gpu::ContextTest {
 protected:
  void SetUp() override {
    testing_gpu::ContextTest::SetUp();
    if (IsSkipped()) return;
    try {
      const Attention some(context(), options_of(1, 2, 8, 8, 64));
    } catch (const Error& error) {
      if (error.status() != PERSEID_UNSUPPORTED) throw;
      GTEST_SKIP() << error.what();
    }
  }
  // More tiles than multiprocessors, fewer, keys in parts, products that are divided otherwise,
  // three consumers, windows, and summands in any order.
  static std::vector<AttentionOptions> kinds() {
    std::vector<AttentionOptions> all = {options_of(3, 32, 300, 420, 128),
                                         options_of(2, 4, 250, 250, 64),
                                         options_of(2, 4, 130, 330, 256)};
    all.push_back(options_of(3, 8, 1, 3000, 128));
    all.back().backward = false;
    all.push_back(options_of(2, 8, 190, 260, 128));
    all.back().dropout = 0.2;
    all.back().mask = {};
    all.push_back(options_of(2, 12, 1100, 1100, 64));
    all.push_back(options_of(2, 12, 1100, 1100, 64));
    all.back().mask.left = 255;
    all.push_back(options_of(2, 8, 333, 400, 128));
    all.back().deterministic = false;
    return all;
  }
};

// New inputs, and new numbers of dropout, come into a graph's results; with the bits of a call.
TEST_F(GpuAttentionApi, ReplaysGraphs) {
  const DriverStreams streams(1);
  const Memory numbers(context(), 16);
  const auto* rng = static_cast<const uint64_t*>(numbers.data());
  for (const AttentionOptions& options : kinds()) {
    SCOPED_TRACE(testing::Message() << options.q_len << ", dim " << options.head_dim);
    const Attention attention(context(), options);
    const Inputs inputs(context(), options);
    const Results direct(context(), options, attention), replayed(context(), options, attention);
    void *graph = nullptr, *executable = nullptr;
    ASSERT_EQ(streams.cuda.capture_begin(streams[0], 2), 0);
    replayed.execute(inputs, streams[0], rng);
    replayed.execute(inputs, streams[0], rng);
    ASSERT_EQ(streams.cuda.capture_end(streams[0], &graph), 0);
    ASSERT_EQ(streams.cuda.instantiate(&executable, graph, 0), 0);
    Bits before;
    for (uint32_t turn = 0; turn < 4; ++turn) {
      const uint64_t drawn[] = {1000 + turn, turn};
      context().copy(numbers.data(), drawn, sizeof drawn);
      if (options.dropout == 0) inputs.randomise(10 * turn);
      direct.execute(inputs, nullptr, rng);
      context().synchronize();
      ASSERT_EQ(streams.cuda.graph_launch(executable, streams[0]), 0);
      context().synchronize(streams[0]);
      const Bits bits = replayed.bits();
      EXPECT_EQ(bits, direct.bits()) << turn;
      EXPECT_NE(bits, before) << turn;
      before = bits;
    }
  }
}

// Batch entries that lie an odd number of elements apart, in every tensor: TMA cannot address them,
// and the portable kernels run instead. Those are loaded on the first use, not while a stream is
// captured.
TEST_F(GpuAttentionApi, TakesTensorsThatTmaCannotAddress) {
  AttentionOptions options = options_of(2, 4, 190, 190, 72);
  const int64_t odd = 190 * 4 * 72 + 1;
  const Attention attention(context(), options);
  options.implementation = "cuda:portable";
  const Attention portable(context(), options);
  const Inputs inputs(context(), options, odd);
  const Results results(context(), options, attention, odd),
      same(context(), options, portable, odd);
  results.execute(inputs);
  context().synchronize();
  same.execute(inputs);
  context().synchronize();
  EXPECT_EQ(results.bits(), same.bits());
  // Aligned tensors still run on Hopper's kernels, and both may be captured.
  const DriverStreams streams(1);
  void *graph = nullptr, *executable = nullptr;
  ASSERT_EQ(streams.cuda.capture_begin(streams[0], 2), 0);
  results.execute(inputs, streams[0]);
  ASSERT_EQ(streams.cuda.capture_end(streams[0], &graph), 0);
  ASSERT_EQ(streams.cuda.instantiate(&executable, graph, 0), 0);
  inputs.randomise(7);
  ASSERT_EQ(streams.cuda.graph_launch(executable, streams[0]), 0);
  context().synchronize(streams[0]);
  same.execute(inputs);
  context().synchronize();
  EXPECT_EQ(results.bits(), same.bits());
}

// One plan, executed by many threads on streams of their own, which have the GPU at the same time.
TEST_F(GpuAttentionApi, ServesStreamsAndThreadsAtOnce) {
  constexpr size_t kStreams = 6;
  const DriverStreams streams(kStreams);
  for (const AttentionOptions& options : kinds()) {
    SCOPED_TRACE(testing::Message() << options.q_len << ", dim " << options.head_dim);
    const Attention attention(context(), options);
    const Inputs inputs(context(), options);
    const Results alone(context(), options, attention);
    alone.execute(inputs);
    context().synchronize();
    const Bits expected = alone.bits();
    std::deque<Results> results;
    for (size_t i = 0; i < kStreams; ++i) results.emplace_back(context(), options, attention);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kStreams; ++i)
      threads.emplace_back([&, i] {
        for (int turn = 0; turn < 12; ++turn) results[i].execute(inputs, streams[i]);
        context().synchronize(streams[i]);
      });
    for (std::thread& thread : threads) thread.join();
    for (const Results& each : results) EXPECT_EQ(each.bits(), expected);
  }
}

// Blocks that share no cursor: where query heads share keys and nothing is masked, each tile of
// keys would begin with the queries that another one has reached.
TEST_F(GpuAttentionApi, GradientsOfSharedKeysRepeat) {
  AttentionOptions options = options_of(2, 32, 2048, 8192, 128);
  options.kv_heads = 8;
  options.mask = {};
  options.gradients = PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  const DriverStreams streams(2);
  const Attention attention(context(), options);
  const Inputs inputs(context(), options);
  // Two executions at once delay each other's blocks, by other times in every turn.
  const Results results(context(), options, attention), others(context(), options, attention);
  Bits first;
  for (int turn = 0; turn < 4; ++turn) {
    results.execute(inputs, streams[0]);
    others.execute(inputs, streams[1]);
    for (const size_t i : {0, 1}) {
      context().synchronize(streams[i]);
      const Bits bits = (i == 0 ? results : others).bits();
      if (first.empty()) first = bits;
      EXPECT_TRUE(bits == first) << "turn " << turn << ", stream " << i;
    }
  }
}

// The default order of gradients has the same results but for their rounding.
TEST_F(GpuAttentionApi, DefaultOrderIsNearTheFixedOne) {
  AttentionOptions options = options_of(2, 8, 500, 700, 128);
  const Inputs inputs(context(), options);
  const Attention fixed_order(context(), options);
  options.deterministic = false;
  const Attention any_order(context(), options);
  const Results fixed(context(), options, fixed_order), any(context(), options, any_order);
  fixed.execute(inputs);
  // Each execution finds in the workspace what the one before has left there.
  for (int turn = 0; turn < 4; ++turn) any.execute(inputs);
  context().synchronize();
  EXPECT_EQ(fixed.out.get(), any.out.get());
  const std::pair<const Array*, const Array*> gradients[] = {{&fixed.grad_query, &any.grad_query},
                                                             {&fixed.grad_key, &any.grad_key},
                                                             {&fixed.grad_value, &any.grad_value}};
  for (const auto& [own, other] : gradients) {
    const Bits a = own->get(), b = other->get();
    int64_t far = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const float x = float_of(a[i]), y = float_of(b[i]);
      far += !(std::abs(x - y) <= 0.01f + std::abs(x) / 64);
    }
    EXPECT_EQ(far, 0) << "of " << a.size();
  }
}

// A sequence has the same bits alone and as any entry of a batch.
TEST_F(GpuAttentionApi, SameBitsAtAnyPositionInTheBatch) {
  for (const AttentionOptions& kind : kinds()) {
    // Dropout draws other numbers for another entry.
    if (kind.dropout > 0) continue;
    SCOPED_TRACE(testing::Message() << kind.q_len << ", dim " << kind.head_dim);
    AttentionOptions one = kind, many = kind;
    one.batch = 1;
    many.batch = 5;
    const Attention alone(context(), one), together(context(), many);
    const Inputs batch(context(), many), entry(context(), one);
    const Results results(context(), many, together), result(context(), one, alone);
    results.execute(batch);
    context().synchronize();
    for (const int64_t place : {0, 2, 4}) {
      for (size_t i = 0; i < 4; ++i) entry.all()[i]->set(batch.all()[i]->get(place));
      result.execute(entry);
      context().synchronize();
      EXPECT_EQ(result.bits(), results.bits(place)) << place;
    }
  }
}

TEST_F(GpuAttentionApi, SameBitsInAHugeBatch) {
  AttentionOptions one = options_of(1, 2, 3, 5, 64), many = one;
  one.batch = 1;
  many.batch = 35000;
  const Attention alone(context(), one), together(context(), many);
  try {
    const Inputs batch(context(), many), entry(context(), one);
    const Results results(context(), many, together), result(context(), one, alone);
    results.execute(batch);
    context().synchronize();
    std::vector<Bits> inputs;
    for (const Array* each : batch.all()) inputs.push_back(each->get());
    for (const int64_t place : {0, 20000, 32768, 34999}) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const size_t count = entry.all()[i]->count();
        const auto begin = inputs[i].begin() + place * static_cast<int64_t>(count);
        entry.all()[i]->set(Bits(begin, begin + static_cast<int64_t>(count)));
      }
      result.execute(entry);
      context().synchronize();
      EXPECT_EQ(result.bits(), results.bits(place)) << place;
    }
  } catch (const Error& error) {
    if (error.status() != PERSEID_OUT_OF_MEMORY) throw;
    GTEST_SKIP() << error.what();
  }
}

// The second batch entry of every tensor begins more than 2^31 elements behind the first.
TEST_F(GpuAttentionApi, ReachesPastTwoBillionElements) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  for (const int64_t q_len : {1, 200}) {
    AttentionOptions options = options_of(2, 4, q_len, 1500, 128);
    options.backward = q_len > 1;
    const Attention attention(context(), options);
    try {
      const Inputs near(context(), options), far(context(), options, kStride);
      const Results close(context(), options, attention);
      const Results distant(context(), options, attention, kStride);
      close.execute(near);
      distant.execute(far);
      context().synchronize();
      EXPECT_EQ(distant.bits(), close.bits());
    } catch (const Error& error) {
      if (error.status() != PERSEID_OUT_OF_MEMORY) throw;
      GTEST_SKIP() << error.what();
    }
  }
}

TEST_F(GpuAttentionApi, MakesPlansFromThePackQuickly) {
  const char* pack = std::getenv("PERSEID_PACK");
  if (pack == nullptr || !std::filesystem::exists(pack))
    GTEST_SKIP() << "PERSEID_PACK names no kernel pack";
  double longest = 0;
  const auto seconds = [&](const AttentionOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    const Attention attention(context(), options);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto options_of_heads = [](int64_t dim, int64_t kv_heads, bool deterministic) {
    AttentionOptions options = options_of(2, 8, 2048, 2048, dim);
    options.kv_heads = kv_heads;
    options.deterministic = deterministic;
    return options;
  };
  const double first = seconds(options_of_heads(96, 8, true));  // opens the pack
  for (const int64_t dim : {64, 128, 256})
    for (const bool deterministic : {false, true})
      longest = std::max(longest, seconds(options_of_heads(dim, 8, deterministic)));
  for (const int64_t dim : {64, 128})
    longest = std::max(longest, seconds(options_of_heads(dim, 2, false)));
  std::printf("  plans of packed kernels, both directions: %.2f ms at most, the first %.2f ms\n",
              longest * 1e3, first * 1e3);
  EXPECT_LT(longest, 0.1);  // 0.01 on a machine that does nothing else
}

// The mask, element by element. With all scores 0, and unit vectors as values or as gradients of
// out, each element of the results is one weight: 1 / keys where it is kept, times a factor, else
// 0.
TEST_F(GpuAttentionApi, DropsWhatTheCpuDrops) {
  constexpr int64_t kDim = 128, kBatch = 2, kHeads = 3;
  for (const int64_t keys : {128, 101})
    for (const int64_t rows : {128, 77})
      for (const double dropout : {0.1, 0.5, 0.97}) {
        AttentionOptions options = options_of(kBatch, kHeads, rows, keys, kDim);
        options.kv_heads = kHeads;
        options.mask = {};
        options.dropout = dropout;
        const Attention attention(context(), options);
        const Inputs inputs(context(), options);
        const Results results(context(), options, attention);
        const auto units = [&](int64_t length) {
          Bits bits(static_cast<size_t>(kBatch * length * kHeads * kDim));
          for (int64_t b = 0; b < kBatch; ++b)
            for (int64_t i = 0; i < length; ++i)
              for (int64_t h = 0; h < kHeads; ++h)
                bits[static_cast<size_t>(((b * length + i) * kHeads + h) * kDim + i)] = 0x3f80;
          return bits;
        };
        inputs.query.set(Bits(inputs.query.count(), 0));
        inputs.value.set(units(keys));
        inputs.grad_out.set(units(rows));
        results.execute(inputs);
        context().synchronize();
        const Bits out = results.out.get(), grad_value = results.grad_value.get();
        std::vector<uint8_t> mask(static_cast<size_t>(kBatch * kHeads * rows * keys));
        fill_dropout_mask(Context::cpu(), dropout, 0x123456789abcdef, 77,
                          Tensor(mask.data(), {kBatch, kHeads, rows, keys}));
        int64_t wrong = 0, kept = 0;
        for (int64_t b = 0; b < kBatch; ++b)
          for (int64_t h = 0; h < kHeads; ++h)
            for (int64_t i = 0; i < rows; ++i)
              for (int64_t j = 0; j < keys; ++j) {
                const auto at = [&](int64_t length, int64_t row, int64_t column) {
                  return static_cast<size_t>(((b * length + row) * kHeads + h) * kDim + column);
                };
                const bool keep =
                    mask[static_cast<size_t>(((b * kHeads + h) * rows + i) * keys + j)];
                kept += keep;
                wrong += (out[at(rows, i, j)] != 0) != keep;
                wrong += (grad_value[at(keys, j, i)] != 0) != keep;
              }
        EXPECT_EQ(wrong, 0) << rows << " x " << keys << ", dropout " << dropout;
        EXPECT_GT(kept, 0);
      }
}

// The mask as the GPU writes it, into any strides: nothing else is touched.
TEST_F(GpuAttentionApi, WritesTheMaskOfTheCpu) {
  struct Case {
    Dims shape, strides;
    int64_t first, bytes;
  };
  for (const Case& each : {Case{{2, 3, 77, 1000}, {231000, 77000, 1000, 1}, 0, 462000},
                           Case{{1, 2, 16, 32}, {1024, 512, 1, 16}, 0, 1024},
                           Case{{3, 1, 50, 33}, {5000, 1, -100, 3}, 4900, 15000},
                           Case{{1, 40, 300, 2100}, {0, 630000, 2100, 1}, 0, 25200000}}) {
    const auto bytes = static_cast<size_t>(each.bytes);
    const Memory memory(context(), bytes);
    std::vector<uint8_t> expected(bytes, 7), written(bytes, 7);
    context().copy(memory.data(), expected.data(), bytes);
    fill_dropout_mask(Context::cpu(), 0.3, 0xfedcba9876543210, 5,
                      Tensor(expected.data() + each.first, each.shape, each.strides));
    fill_dropout_mask(
        context(), 0.3, 0xfedcba9876543210, 5,
        on_gpu(static_cast<uint8_t*>(memory.data()) + each.first, u8, each.shape, each.strides));
    context().synchronize();
    context().copy(written.data(), memory.data(), bytes);
    EXPECT_TRUE(written == expected) << each.shape[2] << " x " << each.shape[3];
    EXPECT_GT(std::count(written.begin(), written.end(), 1), 0);
  }
  std::vector<uint8_t> host(64);
  EXPECT_THROW(fill_dropout_mask(context(), 0.3, 1, 0, Tensor(host.data(), {1, 1, 8, 8})), Error);
}

}  // namespace
}  // namespace perseid
