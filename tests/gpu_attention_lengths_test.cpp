// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Lengths in a GPU's memory are read by kernels alone, and nobody can look at them before. Wrong
// ones give wrong results: but nothing outside of the tensors is read or written, nothing is waited
// for that never comes, and lengths that are too large are cut to what there is. Skipped where
// there is no GPU with attention.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>

#include "gpu_api_tools.hpp"

namespace perseid {
namespace {

using testing_gpu::Bits;
using testing_gpu::on_gpu;
using testing_gpu::random_bf16;

using Lengths = std::vector<int64_t>;

// Bytes on the GPU between guards. Without room for guards it is for a memory checker to say what
// is touched beside them.
class Guarded {
 public:
  Guarded(const Context& context, size_t bytes, size_t room)
      : context_(context),
        bytes_(bytes),
        room_(room),
        memory_(context, std::max<size_t>(bytes + 2 * room, 1)) {
    const std::vector<std::byte> all(bytes + 2 * room, kGuard);
    context.copy(memory_.data(), all.data(), all.size());
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()) + room_; }
  size_t size() const { return bytes_; }
  void set(const void* from) const { context_.copy(data(), from, bytes_); }
  std::vector<std::byte> get() const {
    std::vector<std::byte> inside(bytes_);
    context_.copy(inside.data(), data(), bytes_);
    return inside;
  }
  bool is_whole() const {
    std::vector<std::byte> all(bytes_ + 2 * room_);
    context_.copy(all.data(), memory_.data(), all.size());
    const auto is_guard = [](std::byte each) { return each == kGuard; };
    return std::all_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(room_), is_guard) &&
           std::all_of(all.end() - static_cast<std::ptrdiff_t>(room_), all.end(), is_guard);
  }

 private:
  static constexpr std::byte kGuard{0xff};  // NaN in every type
  const Context& context_;
  size_t bytes_, room_;
  Memory memory_;
};

// One execution of both directions, in memory of its own.
class Execution {
 public:
  Execution(const Context& context, const AttentionOptions& options, const Lengths& q,
            const Lengths& kv, size_t room, int64_t row_stride = 0)
      : context_(context), o_(options), room_(room), row_stride_(row_stride) {
    const int64_t rows_q = o_.ragged ? o_.total_q : o_.batch * o_.q_len;
    const int64_t rows_kv = o_.ragged ? o_.total_kv : o_.batch * o_.kv_len;
    const Attention attention(context, o_);
    const auto floats = [&](int64_t rows, int64_t heads, uint32_t seed) {
      const Guarded& added = add(2 * rows * stride_of(heads));
      added.set(random_bf16(added.size() / 2, seed).data());
      return tensor(added, rows, heads);
    };
    const auto lengths = [&](const Lengths& values) {
      const Guarded& added = add(static_cast<int64_t>(8 * values.size()));
      added.set(values.data());
      return on_gpu(added.data(), i64, {static_cast<int64_t>(values.size())});
    };
    const auto result = [&](int64_t rows, int64_t heads) {
      return tensor(add(2 * rows * stride_of(heads)), rows, heads);
    };
    AttentionBackward a;
    a.query = floats(rows_q, o_.heads, 1);
    a.key = floats(rows_kv, o_.kv_heads, 2);
    a.value = floats(rows_kv, o_.kv_heads, 3);
    a.grad_out = floats(rows_q, o_.heads, 4);
    if (o_.ragged) {
      a.cu_seqlens_q = lengths(q);
      a.cu_seqlens_kv = lengths(kv);
    } else {
      a.kv_lens = lengths(kv);
    }
    inputs_ = all_.size();
    for (const Guarded& each : all_) before_.push_back(each.get());
    out_ = all_.size();
    a.out = result(rows_q, o_.heads);
    const Guarded& lse = add(4 * rows_q * o_.heads);
    a.lse = o_.ragged ? on_gpu(lse.data(), f32, {o_.heads, rows_q})
                      : on_gpu(lse.data(), f32, {o_.batch, o_.heads, o_.q_len});
    a.grad_query = result(rows_q, o_.heads);
    a.grad_key = result(rows_kv, o_.kv_heads);
    a.grad_value = result(rows_kv, o_.kv_heads);
    const auto scratch = [&](Direction direction) {
      const Guarded& added = add(static_cast<int64_t>(attention.workspace_size(direction)));
      return std::span(added.data(), added.size());
    };
    const std::span<std::byte> forward = scratch(Direction::kForward),
                               backward = scratch(Direction::kBackward);
    attention.forward(nullptr,
                      {.query = a.query,
                       .key = a.key,
                       .value = a.value,
                       .cu_seqlens_q = a.cu_seqlens_q,
                       .cu_seqlens_kv = a.cu_seqlens_kv,
                       .kv_lens = a.kv_lens,
                       .out = a.out,
                       .lse = a.lse,
                       .seed = 5},
                      forward);
    context.synchronize();
    a.seed = 5;
    attention.backward(nullptr, a, backward);
    context.synchronize();
  }
  void expect_nothing_outside() const {
    for (size_t i = 0; i < all_.size(); ++i) EXPECT_TRUE(all_[i].is_whole()) << "around " << i;
    for (size_t i = 0; i < inputs_; ++i) EXPECT_EQ(all_[i].get(), before_[i]) << "input " << i;
  }
  // The bits of out and lse.
  std::vector<std::byte> results() const {
    std::vector<std::byte> bits = all_[out_].get();
    const std::vector<std::byte> lse = all_[out_ + 1].get();
    bits.insert(bits.end(), lse.begin(), lse.end());
    return bits;
  }

 private:
  const Guarded& add(int64_t bytes) {
    return all_.emplace_back(context_, static_cast<size_t>(bytes), room_);
  }
  // From one row of a sequence to the next.
  int64_t stride_of(int64_t heads) const { return std::max(row_stride_, heads * o_.head_dim); }
  Tensor tensor(const Guarded& memory, int64_t rows, int64_t heads) const {
    if (o_.ragged)
      return on_gpu(memory.data(), bf16, {rows, heads, o_.head_dim},
                    {stride_of(heads), o_.head_dim, 1});
    return on_gpu(memory.data(), bf16, {o_.batch, rows / o_.batch, heads, o_.head_dim});
  }

  const Context& context_;
  const AttentionOptions o_;
  const size_t room_;
  const int64_t row_stride_;
  std::deque<Guarded> all_;
  std::vector<std::vector<std::byte>> before_;
  size_t inputs_ = 0, out_ = 0;
};

struct Wrong {
  const char* what;
  Lengths q, kv;
  bool cut;  // to the right ones
};

class GpuLengths : public testing_gpu::ContextTest {
 protected:
  // Every wrong list under different masks, in every kind of kernel.
  void check(const AttentionOptions& options, const Lengths& q, const Lengths& kv,
             const std::vector<Wrong>& wrong) {
    for (const int64_t dim : {16, 128, 256})
      for (const Mask& mask : {Mask{}, causal_bottom_right(), window(40, -1)})
        for (const bool deterministic : {false, true}) {
          AttentionOptions o = options;
          o.dtype = bf16;
          o.head_dim = dim;
          o.mask = mask;
          o.deterministic = deterministic;
          o.backward = true;
          o.dropout = dim == 16 ? 0.3 : 0;
          for (const size_t room : {4096, 0}) check(o, room, q, kv, wrong);
        }
  }

 private:
  void check(const AttentionOptions& o, size_t room, const Lengths& q, const Lengths& kv,
             const std::vector<Wrong>& wrong) {
    const Execution right(context(), o, q, kv, room);
    right.expect_nothing_outside();
    for (const Wrong& each : wrong) {
      SCOPED_TRACE(testing::Message()
                   << each.what << ", dim " << o.head_dim << ", causal " << o.mask.causal
                   << ", window " << o.mask.left << ", deterministic " << o.deterministic);
      const Execution run(context(), o, each.q, each.kv, room);
      run.expect_nothing_outside();
      if (each.cut) {
        EXPECT_EQ(run.results(), right.results());
      }
    }
  }
};

constexpr int64_t kHuge = int64_t{1} << 40, kMost = 0x7fffffff;

TEST_F(GpuLengths, OfRaggedBatches) {
  const Lengths q = {0, 100, 100, 230}, kv = {0, 150, 420, 500};
  AttentionOptions options{.batch = 3, .heads = 4, .kv_heads = 2, .q_len = 130, .kv_len = 270};
  options.ragged = true;
  options.total_q = 230;
  options.total_kv = 500;
  check(options, q, kv,
        {{"behind the end", {0, 100, 100, kHuge}, {0, 150, 420, kMost}, true},
         {"before the begin", {-kHuge, 100, 100, 230}, {-1, 150, 420, 500}, true},
         {"longer than the longest", {0, 0, 0, 230}, {0, 0, 500, 500}, false},
         {"nothing but the end", {230, 230, 230, 230}, {500, 500, 500, 500}, false},
         {"negative", {-5, -4, -3, -2}, {-kHuge, -kHuge, -kMost, -1}, false},
         {"falling", {0, 100, 20, 150}, {0, 270, 100, 300}, false},
         {"all falling", {230, 100, 50, 0}, {500, 300, 200, 0}, false},
         {"anything", {kHuge, -kHuge, kMost, 77}, {-kMost, 313, -kHuge, kHuge}, false}});
}

// Few queries of many keys, whose parts are put together by a kernel of their own.
TEST_F(GpuLengths, OfFewQueries) {
  const Lengths q = {0, 2, 5}, kv = {0, 2000, 2400};
  AttentionOptions options{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 3, .kv_len = 2000};
  options.ragged = true;
  options.total_q = 5;
  options.total_kv = 2400;
  check(options, q, kv,
        {{"behind the end", {0, 2, kMost}, {0, 2000, kHuge}, true},
         {"falling", {0, 5, 2}, {0, 2400, 1000}, false},
         {"overlapping", {0, 3, 1}, {1500, 2400, 700}, false},
         {"anything", {-kHuge, kMost, 3}, {kHuge, -kMost, 2399}, false}});
}

// TMA loads ragged rows through maps that begin as many rows before the first as the
// longest sequence may have: here, where no memory is.
class GpuLongest : public GpuLengths, public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuLongest, testing::Values(16, 40, 64, 128, 192, 256));

TEST_P(GpuLongest, IsFarAboveAll) {
  constexpr int64_t kLongest = 60000, kRowStride = 8192;
  const int64_t dim = GetParam();
  for (const Mask& mask : {Mask{}, causal_bottom_right(), window(7, -1)})
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "causal " << mask.causal << ", deterministic " << deterministic);
      AttentionOptions o{.dtype = bf16, .batch = 3, .heads = 2, .kv_heads = 1};
      o.q_len = o.kv_len = kLongest;
      o.head_dim = dim;
      o.mask = mask;
      o.ragged = o.backward = true;
      o.total_q = 150;
      o.total_kv = 213;
      o.dropout = dim == 16 ? 0.5 : 0;
      o.deterministic = deterministic;
      const Execution run(context(), o, {0, 2, 82, 150}, {0, 131, 132, 213}, 256, kRowStride);
      run.expect_nothing_outside();
    }
}

// Ragged attention on any device, whose lengths may change from one execution to the next.
class RaggedForward {
 public:
  RaggedForward(const Context& context, const AttentionOptions& options)
      : context_(context), o_(options), attention_(context, options) {
    tensors_.query = rows(o_.total_q, 1);
    tensors_.key = rows(o_.total_kv, 2);
    tensors_.value = rows(o_.total_kv, 3);
    tensors_.out = rows(o_.total_q, 4);
    tensors_.cu_seqlens_q = lengths();
    tensors_.cu_seqlens_kv = lengths();
    workspace_ = &add(attention_.workspace_size(Direction::kForward));
  }
  // What is not written is NaN after the next execution.
  void set(const Lengths& q, const Lengths& kv) const {
    copy(tensors_.cu_seqlens_q, q.data(), 8 * q.size());
    copy(tensors_.cu_seqlens_kv, kv.data(), 8 * kv.size());
    const Bits poison(out_elements(), 0x7fc0);
    copy(tensors_.out, poison.data(), 2 * poison.size());
  }
  void execute(Stream stream) const {
    attention_.forward(stream, tensors_, std::span(workspace_->data(), workspace_->size()));
  }
  std::vector<float> out() const {
    Bits bits(out_elements());
    context_.copy(bits.data(), tensors_.out.data(), 2 * bits.size());
    std::vector<float> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(), testing_gpu::float_of);
    return values;
  }

 private:
  size_t out_elements() const { return static_cast<size_t>(o_.total_q * o_.heads * o_.head_dim); }
  const Guarded& add(size_t bytes) { return memory_.emplace_back(context_, bytes, 256); }
  void copy(const Tensor& to, const void* from, size_t bytes) const {
    context_.copy(to.data(), from, bytes);
  }
  Tensor rows(int64_t count, uint32_t seed) {
    const Bits bits = random_bf16(static_cast<size_t>(count * o_.heads * o_.head_dim), seed);
    const Guarded& added = add(2 * bits.size());
    added.set(bits.data());
    return Tensor(added.data(), bf16, {count, o_.heads, o_.head_dim}, {}, context_.device());
  }
  Tensor lengths() {
    return Tensor(add(static_cast<size_t>(8 * (o_.batch + 1))).data(), i64, {o_.batch + 1}, {},
                  context_.device());
  }

  const Context& context_;
  const AttentionOptions o_;
  const Attention attention_;
  std::deque<Guarded> memory_;
  AttentionForward tensors_;
  const Guarded* workspace_ = nullptr;
};

// A captured launch finds other lengths whenever it is replayed: where sequences are few, most
// blocks have nothing to do, and where they are many, each has tiles to draw. What some leave in
// the workspace must not keep the others from their tiles. The few are the last of the batch and
// have many keys: who has nothing to do knows it as soon as the others have found their tiles, and
// has ended before they draw.
TEST_F(GpuLengths, ChangeBetweenReplays) {
  constexpr int64_t kBatch = 1000, kTotalQ = 8000, kTotalKv = 8000;
  const auto in_the_last = [](int64_t sequences, int64_t total) {
    Lengths ends = {0};
    for (int64_t left = kBatch; left-- > 0;)
      ends.push_back(total * std::max(sequences - left, int64_t{0}) / sequences);
    return ends;
  };
  const Lengths few_q = in_the_last(2, 120), many_q = in_the_last(kBatch, kTotalQ);
  const Lengths few_kv = in_the_last(2, kTotalKv), many_kv = in_the_last(kBatch, kTotalKv);
  const testing_gpu::Cuda cuda;
  void *primary = nullptr, *stream = nullptr;
  ASSERT_EQ(cuda.primary_retain(&primary, 0), 0);
  ASSERT_EQ(cuda.context_set(primary), 0);
  ASSERT_EQ(cuda.stream_create(&stream, 1), 0);
  const Context cpu = Context::cpu();
  for (const int64_t dim : {64, 128}) {
    AttentionOptions options{.dtype = bf16, .batch = kBatch, .heads = 4, .kv_heads = 4};
    options.q_len = 100;
    options.kv_len = kTotalKv;
    options.head_dim = dim;
    options.mask = causal_bottom_right();
    options.ragged = true;
    options.total_q = kTotalQ;
    options.total_kv = kTotalKv;
    const RaggedForward replayed(context(), options), exact(cpu, options);
    void *graph = nullptr, *executable = nullptr;
    ASSERT_EQ(cuda.capture_begin(stream, 2), 0);
    replayed.execute(stream);
    ASSERT_EQ(cuda.capture_end(stream, &graph), 0);
    ASSERT_EQ(cuda.instantiate(&executable, graph, 0), 0);
    for (const bool many : {false, true, true, false, false, true}) {
      const Lengths &q = many ? many_q : few_q, &kv = many ? many_kv : few_kv;
      replayed.set(q, kv);
      ASSERT_EQ(cuda.graph_launch(executable, stream), 0);
      context().synchronize(stream);
      exact.set(q, kv);
      exact.execute(nullptr);
      const std::vector<float> got = replayed.out(), want = exact.out();
      int64_t wrong = 0;
      for (size_t i = 0; i < want.size(); ++i)
        wrong += std::isnan(want[i]) ? !std::isnan(got[i]) : !(std::abs(got[i] - want[i]) <= 0.02f);
      EXPECT_EQ(wrong, 0) << "dim " << dim << ", many " << many;
    }
  }
  cuda.context_set(nullptr);
}

// ---- Plans for more ---------------------------------------------------------------------------

// Executions of both directions by one plan, each with lengths of its own, in one workspace.
class PlanForMore {
 public:
  PlanForMore(const Context& context, const AttentionOptions& options)
      : context_(context),
        o_(options),
        attention_(context, options),
        forward_(context, attention_.workspace_size(Direction::kForward), kRoom),
        backward_(context, attention_.workspace_size(Direction::kBackward), kRoom) {}

  void execute(int64_t q_len, int64_t kv_len) {
    all_.clear();
    const auto tensor = [&](const Guarded& memory, int64_t rows, int64_t heads) {
      return on_gpu(memory.data(), bf16, {o_.batch, rows, heads, o_.head_dim});
    };
    const auto floats = [&](int64_t rows, int64_t heads, uint32_t seed) {
      const Guarded& added = add(2 * o_.batch * rows * heads * o_.head_dim);
      added.set(random_bf16(added.size() / 2, seed).data());
      return tensor(added, rows, heads);
    };
    const auto result = [&](int64_t rows, int64_t heads) {
      return tensor(add(2 * o_.batch * rows * heads * o_.head_dim), rows, heads);
    };
    AttentionBackward a;
    a.query = floats(q_len, o_.heads, 1);
    a.key = floats(kv_len, o_.kv_heads, 2);
    a.value = floats(kv_len, o_.kv_heads, 3);
    a.grad_out = floats(q_len, o_.heads, 4);
    if (o_.bias) {
      const Dims shape = bias_shape(q_len, kv_len);
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      const Guarded& bias = add(2 * count);
      bias.set(random_bf16(bias.size() / 2, 5).data());
      a.bias = on_gpu(bias.data(), bf16, shape);
      grad_bias_ = all_.size();
      a.grad_bias = on_gpu(add(2 * count).data(), bf16, shape);
    }
    a.out = result(q_len, o_.heads);
    a.lse = on_gpu(add(4 * o_.batch * o_.heads * q_len).data(), f32, {o_.batch, o_.heads, q_len});
    a.grad_query = result(q_len, o_.heads);
    grad_key_ = all_.size();
    a.grad_key = result(kv_len, o_.kv_heads);
    a.grad_value = result(kv_len, o_.kv_heads);
    attention_.forward(nullptr,
                       {.query = a.query,
                        .key = a.key,
                        .value = a.value,
                        .bias = a.bias,
                        .out = a.out,
                        .lse = a.lse},
                       std::span(forward_.data(), forward_.size()));
    attention_.backward(nullptr, a, std::span(backward_.data(), backward_.size()));
    context_.synchronize();
    EXPECT_TRUE(forward_.is_whole() && backward_.is_whole()) << "around the workspace";
    for (size_t i = 0; i < all_.size(); ++i) EXPECT_TRUE(all_[i].is_whole()) << "around " << i;
  }
  std::vector<float> grad_key() const { return numbers(grad_key_); }
  std::vector<float> grad_value() const { return numbers(grad_key_ + 1); }
  std::vector<float> grad_bias() const { return numbers(grad_bias_); }

 private:
  static constexpr size_t kRoom = 4096;
  // Where the plan's has more than one row or column, that of an execution has its own.
  Dims bias_shape(int64_t q_len, int64_t kv_len) const {
    const std::array<int64_t, 4>& plan = *o_.bias;
    return {plan[0], plan[1], plan[2] == 1 ? 1 : q_len, plan[3] == 1 ? 1 : kv_len};
  }
  const Guarded& add(int64_t bytes) {
    return all_.emplace_back(context_, static_cast<size_t>(bytes), kRoom);
  }
  std::vector<float> numbers(size_t i) const {
    const std::vector<std::byte> bytes = all_[i].get();
    std::vector<float> values(bytes.size() / 2);
    for (size_t at = 0; at < values.size(); ++at) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * at, 2);
      values[at] = testing_gpu::float_of(bits);
    }
    return values;
  }

  const Context& context_;
  const AttentionOptions o_;
  const Attention attention_;
  const Guarded forward_, backward_;
  std::deque<Guarded> all_;
  size_t grad_key_ = 0, grad_bias_ = 0;
};

// The splits of the gradient of a bias that one row, or one column, is repeated along: the plan has
// a workspace for sums of one row.
TEST_F(GpuLengths, OneQueryOrKeyOfARepeatedBias) {
  for (const bool portable : {false, true})
    for (const bool of_queries : {true, false}) {
      SCOPED_TRACE(testing::Message() << "portable " << portable << ", of queries " << of_queries);
      AttentionOptions o{.dtype = bf16, .batch = 8, .heads = 16, .kv_heads = 16, .head_dim = 64};
      o.q_len = of_queries ? 8 : 512;
      o.kv_len = of_queries ? 512 : 8;
      o.bias = {1, 16, of_queries ? 1 : 512, of_queries ? 512 : 1};
      o.bias_dtype = bf16;
      o.max_lengths = o.backward = true;
      if (portable) o.implementation = "cuda:portable";
      PlanForMore plan(context(), o);
      (of_queries ? o.q_len : o.kv_len) = 1;
      o.max_lengths = false;
      PlanForMore exact(context(), o);
      plan.execute(o.q_len, o.kv_len);
      exact.execute(o.q_len, o.kv_len);
      const std::vector<float> got = plan.grad_bias(), want = exact.grad_bias();
      int64_t wrong = 0;
      for (size_t i = 0; i < want.size(); ++i)
        wrong += !(std::abs(got[i] - want[i]) <= 0.01f + std::abs(want[i]) / 64);
      EXPECT_EQ(wrong, 0) << "of " << want.size();
    }
}

// Nothing of the execution before is left in the gradients.
TEST_F(GpuLengths, NoQueriesAfterSome) {
  for (const int64_t dim : {64, 128, 256})
    for (const bool deterministic : {true, false}) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << ", deterministic " << deterministic);
      AttentionOptions o{.dtype = bf16, .batch = 3, .heads = 8, .kv_heads = 2};
      o.q_len = 5;
      o.kv_len = 700;
      o.head_dim = dim;
      o.deterministic = deterministic;
      o.max_lengths = o.backward = true;
      PlanForMore plan(context(), o);
      for (const int64_t q_len : {5, 0, 0, 5, 0}) {
        plan.execute(q_len, o.kv_len);
        if (q_len > 0) continue;
        for (const std::vector<float>& each : {plan.grad_key(), plan.grad_value()})
          EXPECT_EQ(std::count(each.begin(), each.end(), 0.0f), std::ssize(each));
      }
    }
}

// Rows of scores lie so far apart that there is no memory before the first one.
TEST_F(GpuLengths, NoScoresBeforeTheFirst) {
  constexpr int64_t kBatch = 3, kQueries = 2, kKeys = 300;
  for (const int64_t dim : {64, 128, 256})
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << ", biased " << biased);
      AttentionOptions o{.dtype = bf16, .batch = kBatch, .heads = 2, .kv_heads = 2};
      o.q_len = kQueries;
      o.kv_len = kKeys;
      o.head_dim = dim;
      o.q_lens = true;
      o.visible = !biased;
      if (biased) o.bias = {1, 1, kQueries, kKeys};
      o.bias_dtype = bf16;
      const Attention attention(context(), o);
      // An odd stride: threads load the bias.
      const int64_t stride = (int64_t{1} << 29) + 1;
      const Memory scores(context(), static_cast<size_t>(2 * (stride + kKeys)));
      const auto rows = [&](int64_t count) {
        return Memory(context(), static_cast<size_t>(2 * kBatch * count * 2 * dim));
      };
      const Memory query = rows(kQueries), key = rows(kKeys), value = rows(kKeys),
                   out = rows(kQueries), lens(context(), 8 * kBatch),
                   workspace(context(), attention.workspace_size(Direction::kForward) + 1);
      for (const Memory* each : {&query, &key, &value}) {
        const Bits bits = random_bf16(each->size() / 2, 1);
        context().copy(each->data(), bits.data(), each->size());
      }
      const int64_t q_lens[kBatch] = {0, kQueries, 0};
      context().copy(lens.data(), q_lens, sizeof q_lens);
      const auto tensor = [&](const Memory& memory, int64_t count) {
        return on_gpu(memory.data(), bf16, {kBatch, count, 2, dim});
      };
      const Tensor seen =
          on_gpu(scores.data(), biased ? bf16 : u8, {1, 1, kQueries, kKeys}, {0, 0, stride, 1});
      attention.forward(nullptr,
                        {.query = tensor(query, kQueries),
                         .key = tensor(key, kKeys),
                         .value = tensor(value, kKeys),
                         .bias = biased ? seen : Tensor(),
                         .visible = biased ? Tensor() : seen,
                         .q_lens = on_gpu(lens.data(), i64, {kBatch}),
                         .out = tensor(out, kQueries)},
                        {workspace});
      context().synchronize();
    }
}

TEST_F(GpuLengths, OfKeys) {
  AttentionOptions options{.batch = 4, .heads = 4, .kv_heads = 2, .q_len = 130, .kv_len = 300};
  options.kv_lens = true;
  check(options, {}, {300, 0, 17, 300},
        {{"too long", {}, {301, 0, 17, kHuge}, true},
         {"negative", {}, {300, -1, 17, kMost}, true},
         {"anything", {}, {-kHuge, kHuge, -kMost, 129}, false}});
}

}  // namespace
}  // namespace perseid
