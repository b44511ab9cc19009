// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward on a GPU over keys and values that arrive in chunks, in random orders and with
// random delays: right by the float64 reference, and bit for bit as with all chunks present. Chunks
// that never arrive end the wait, unless no query sees them. Kernels that know nothing of chunks
// run after all of them. Most tests are skipped where there is no GPU of compute capability 9.0.
#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include "cuda/runtime/signals.hpp"
#include "dispatch/implementation.hpp"
#include "gpu_attention_tools.hpp"

namespace perseid::internal::testing_gpu {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSecond = 1'000'000'000;

// Chunks of the rows of key and value, and the words of their signals.
struct Chunks {
  std::vector<int64_t> begin;
  PinnedWords signals;
  int64_t first = 0;

  Chunks(const cuda::Gpu& gpu, std::vector<int64_t> table, uint32_t initial)
      : begin(std::move(table)), signals(gpu, begin.size() - 1, initial) {}
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
  void set_all(uint32_t value) const {
    for (size_t c = 0; c + 1 < begin.size(); ++c) signals.set(c, value);
  }
  // Those that hold a key which some query sees, in the order of visits.
  std::vector<int64_t> needed(const Fixture& fixture) const {
    std::vector<int64_t> chunks;
    for (int64_t visit = 0; visit < count(); ++visit) {
      const int64_t chunk = (first + visit) % count();
      bool seen = false;
      for (int64_t b = 0; b < fixture.problem.batch; ++b) {
        const Sequence s = sequence_of(fixture.problem, fixture.arguments, b);
        for (int64_t i = 0; i < s.q_len && !seen; ++i) {
          const KeyRange keys = visible_keys(fixture.problem, i, s.q_len, s.kv_len);
          seen = keys.begin < keys.end &&
                 s.kv_begin + keys.begin < begin[static_cast<size_t>(chunk) + 1] &&
                 begin[static_cast<size_t>(chunk)] < s.kv_begin + keys.end;
        }
      }
      if (seen) chunks.push_back(chunk);
    }
    return chunks;
  }
};

class GpuAsyncAttention : public GpuTest {
 protected:
  explicit GpuAsyncAttention(int32_t major = 9) : GpuTest(major) {}
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    work_.emplace(*gpu_);
    delivery_.emplace(*gpu_);
  }

  struct Result {
    Status launched, finished;
    std::chrono::steady_clock::duration time{};  // from the launch to the end
  };
  // Keys and values on the GPU, of which nothing has arrived at first.
  struct Placed {
    Array key, value;
    std::optional<Mirror> on_gpu[2];
  };

  // Copies `chunk` of key and value, then sets its signal, in stream order.
  void deliver(const Fixture& fixture, const Placed& placed, const Chunks& chunks, int64_t chunk,
               uint32_t epoch) {
    const auto c = static_cast<size_t>(chunk);
    for (int i : {0, 1}) {
      const Tensor& from = (i == 0 ? fixture.key : fixture.value).tensor;
      const Tensor to = placed.on_gpu[i]->tensor();
      // The tests' layout has whole lines of memory for a row of all heads.
      const int64_t size = size_of(from.dtype), stride = from.stride[from.rank - 2];
      for (int64_t b = 0; b < (from.rank == 4 ? from.shape[0] : 1); ++b) {
        const int64_t at = ((from.rank == 4 ? b * from.stride[0] : 0) + chunks.begin[c] * stride);
        expect_ok(
            cuda::copy(*gpu_, to.as<std::byte>() + at * size, from.as<std::byte>() + at * size,
                       static_cast<size_t>((chunks.begin[c + 1] - chunks.begin[c]) * stride * size),
                       delivery_->handle()));
      }
    }
    chunks.signals.set(c, epoch);
  }

  // Without chunks: null. `deliver_all` delivers after the launch. `plan` is used again where it is
  // there.
  template <class Attention = cuda::Sm90Attention, class Deliver>
  Result run(Fixture& fixture, const Chunks* chunks, uint32_t epoch, uint64_t deadline_ns,
             const uint32_t* abort, bool present, const Deliver& deliver_all,
             std::unique_ptr<Attention>* plan = nullptr) {
    AttentionProblem problem = fixture.problem;
    if (chunks != nullptr)
      problem.chunks_kv = {ChunkDim::kKv, chunks->begin.data(), chunks->count()};
    std::unique_ptr<Attention> own;
    std::unique_ptr<Attention>& attention = plan != nullptr ? *plan : own;
    if (attention == nullptr) expect_ok(Attention::make(problem, *gpu_, &attention));
    for (Array* result : {&fixture.out, &fixture.lse}) result->blank();
    Array work({static_cast<int64_t>(attention->forward_workspace())}, DType::kBool);
    Mirror out(*gpu_, fixture.out), lse(*gpu_, fixture.lse), workspace(*gpu_, work);
    Placed placed{fixture.key, fixture.value, {}};
    if (!present) {
      placed.key.fill_all(kNaN);
      placed.value.fill_all(kNaN);
    }
    placed.on_gpu[0].emplace(*gpu_, placed.key);
    placed.on_gpu[1].emplace(*gpu_, placed.value);
    AttentionForward tensors = fixture.forward_arguments();
    tensors.out = out.tensor();
    tensors.lse = lse.tensor();
    tensors.key = placed.on_gpu[0]->tensor();
    tensors.value = placed.on_gpu[1]->tensor();
    std::vector<std::unique_ptr<Mirror>> inputs;
    const auto place = [&](Array& array, Tensor& tensor) {
      if (!tensor.present()) return;
      inputs.push_back(std::make_unique<Mirror>(*gpu_, array));
      tensor.data = inputs.back()->tensor().data;
    };
    place(fixture.query, tensors.query);
    place(fixture.bias, tensors.bias);
    place(fixture.visible, tensors.visible);
    place(fixture.cu_q, tensors.cu_seqlens_q);
    place(fixture.cu_kv, tensors.cu_seqlens_kv);
    place(fixture.kv_lens, tensors.kv_lens);
    if (chunks != nullptr)
      tensors.arrival_kv = {.signals = chunks->signals.data(),
                            .epoch = epoch,
                            .first = chunks->first,
                            .deadline_ns = deadline_ns,
                            .abort = abort};
    Result result;
    const auto begin = std::chrono::steady_clock::now();
    result.launched =
        attention->forward(tensors, workspace.tensor().as<std::byte>(), work_->handle());
    deliver_all(placed);
    result.finished = cuda::synchronize(*gpu_, work_->handle());
    result.time = std::chrono::steady_clock::now() - begin;
    out.fetch();
    lse.fetch();
    return result;
  }

  std::optional<Stream> work_, delivery_;
};

struct Bits {
  Bytes out, lse;
  explicit Bits(const Fixture& fixture) : out(fixture.out.memory), lse(fixture.lse.memory) {}
  bool same(const Fixture& fixture) const {
    return out == fixture.out.memory && lse == fixture.lse.memory;
  }
};

std::vector<int64_t> random_table(int64_t size, int64_t count, std::mt19937& random) {
  std::vector<int64_t> table = {0, size};
  std::uniform_int_distribution<int64_t> inner(1, std::max<int64_t>(size - 1, 1));
  while (static_cast<int64_t>(table.size()) <= count) {
    const int64_t at = inner(random);
    if (std::find(table.begin(), table.end(), at) == table.end()) table.push_back(at);
  }
  std::sort(table.begin(), table.end());
  return table;
}

Case base(int64_t q_len, int64_t kv_len, int64_t dim, int64_t heads = 4, int64_t kv_heads = 2,
          int64_t batch = 2) {
  Case test = forward_case(DType::kBF16, batch, heads, kv_heads, q_len, kv_len, dim, dim);
  test.layout = Layout::kBshd;
  return test;
}
Case causal(Case test, Causal alignment = Causal::kBottomRight) {
  test.problem.causal = alignment;
  return test;
}
Case window(Case test, int64_t left, int64_t right) {
  test.problem.window_left = left;
  test.problem.window_right = right;
  return test;
}
Case biased(Case test, DType dtype, std::vector<int64_t> shape) {
  add_bias(test, dtype, std::move(shape), false);
  return test;
}
Case dropped(Case test) {
  test.problem.dropout = 0.2;
  return test;
}
Case masked(Case test) {
  set_visible(test, {1, 1, test.problem.q_len, test.problem.kv_len});
  return test;
}
Case with_lengths(Case test, std::vector<int64_t> lengths) {
  test.problem.kv_lens = true;
  test.kv_lens = std::move(lengths);
  return test;
}
Case ragged(int64_t dim, std::vector<int64_t> q_lens, std::vector<int64_t> kv_lens) {
  Case test = base(0, 0, dim);
  set_ragged(test, std::move(q_lens), std::move(kv_lens));
  return test;
}

struct Named {
  const char* name;
  Case given;
};
std::vector<Named> cases() {
  return {{"full", base(300, 1024, 128)},
          {"tail", base(300, 1000, 128)},
          {"causal", causal(base(700, 1100, 128))},
          {"causal_top_left", causal(base(300, 1100, 128), Causal::kTopLeft)},
          {"window", window(causal(base(700, 900, 128)), 300, 0)},
          {"causal_64", causal(base(1000, 1000, 64))},
          {"full_64", base(1000, 1024, 64, 4, 4)},
          {"full_256", causal(base(200, 520, 256))},
          {"bias_by_tma", biased(base(300, 1024, 128), DType::kBF16, {2, 4, 300, 1024})},
          {"bias_by_threads", biased(causal(base(300, 700, 128)), DType::kF32, {1, 4, 1, 700})},
          {"dropout", dropped(causal(base(300, 900, 64)))},
          {"visible", masked(base(300, 900, 64))},
          {"lengths", with_lengths(causal(base(300, 900, 128)), {800, 77})},
          {"ragged", causal(ragged(128, {300, 0, 190, 64}, {500, 0, 700, 64}))},
          {"decode", causal(base(2, 5000, 128, 8, 2))},
          {"decode_full", base(1, 4096, 64, 8, 8, 3)},
          {"decode_lengths", with_lengths(base(1, 4096, 128, 8, 2), {4000, 1500})}};
}

class Arrivals : public GpuAsyncAttention, public testing::WithParamInterface<Named> {};

TEST_P(Arrivals, ChangeNoBit) {
  std::mt19937 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Fixture fixture(GetParam().given);
  const AttentionProblem& p = fixture.problem;
  const int64_t rows = p.ragged ? p.total_kv : p.kv_len;
  for (int seed = 0; seed < 12; ++seed) {
    const auto epoch = static_cast<uint32_t>(random());
    Chunks chunks(*gpu_, random_table(rows, draw(1, 12), random), epoch);
    chunks.first = seed % 3 == 0 ? 0 : draw(0, chunks.count() - 1);
    const auto none = [](const Placed&) {};
    Result result = run(fixture, &chunks, epoch, 20 * kSecond, nullptr, true, none);
    expect_ok(result.launched);
    expect_ok(result.finished);
    fixture.compare_forward();
    const Bits present(fixture);
    if (p.q_len <= 4) {  // split over keys: merged in the order of the plan without chunks
      expect_ok(run(fixture, nullptr, 0, 0, nullptr, true, none).finished);
      EXPECT_TRUE(present.same(fixture)) << "seed " << seed << ": other bits than without chunks";
    }
    chunks.set_all(epoch - 1);
    std::vector<int64_t> order = chunks.needed(fixture);
    std::shuffle(order.begin(), order.end(), random);
    result = run(fixture, &chunks, epoch, 20 * kSecond, nullptr, false, [&](const Placed& placed) {
      for (const int64_t chunk : order) {
        if (draw(0, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw(0, 300)));
        deliver(fixture, placed, chunks, chunk, epoch);
      }
    });
    expect_ok(result.launched);
    expect_ok(result.finished);
    EXPECT_TRUE(present.same(fixture)) << "seed " << seed << " pivot " << chunks.first;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, Arrivals, testing::ValuesIn(cases()),
                         [](const auto& each) { return std::string(each.param.name); });

// PERSEID_TEST_TURNS times for a deadline, and for an abort: a chunk never arrives. The wait ends
// and says which; the next execution is right.
TEST_F(GpuAsyncAttention, DeadlinesAndAborts) {
  Fixture fixture(causal(base(300, 600, 128)));
  std::vector<int64_t> table;
  for (int64_t c = 0; c <= 8; ++c) table.push_back(c * 600 / 8);
  const auto none = [](const Placed&) {};
  uint32_t epoch = 1;
  std::vector<Bits> expected;  // by the first chunk
  Chunks chunks(*gpu_, table, epoch);
  std::unique_ptr<cuda::Sm90Attention> plan;
  for (int turn = 0; turn < asked_count("PERSEID_TEST_TURNS", 8); ++turn) {
    chunks.first = turn % chunks.count();
    if (turn < chunks.count()) {
      chunks.set_all(epoch);
      expect_ok(run(fixture, &chunks, epoch, kSecond, nullptr, true, none, &plan).finished);
      expected.emplace_back(fixture);
    }
    for (const bool aborts : {false, true}) {
      chunks.set_all(epoch++);
      PinnedWords abort(*gpu_, 1, 0);
      const int64_t missing = (turn + 3) % chunks.count();
      const auto set_signals = [&](const Placed&) {
        for (int64_t chunk = 0; chunk < chunks.count(); ++chunk)
          if (chunk != missing) chunks.signals.set(static_cast<size_t>(chunk), epoch);
        if (aborts) abort.set(0, 1);
      };
      const Result result = run(fixture, &chunks, epoch, aborts ? 20 * kSecond : kSecond / 40,
                                aborts ? abort.data() : nullptr, true, set_signals, &plan);
      EXPECT_LT(result.time, 2s);
      expect_ok(result.launched);
      EXPECT_EQ(result.finished.code(), aborts ? PERSEID_PEER_LOST : PERSEID_TIMEOUT);
      const std::string named =
          concatenate("attention forward: chunk ", missing, " of key: not arrived");
      EXPECT_EQ(result.finished.sentence().substr(0, named.size()), named);
    }
    chunks.set_all(epoch++);
    const auto deliver_all = [&](const Placed& placed) {
      for (int64_t chunk = chunks.count(); chunk-- > 0;)
        deliver(fixture, placed, chunks, chunk, epoch);
    };
    const Result right =
        run(fixture, &chunks, epoch, 20 * kSecond, nullptr, false, deliver_all, &plan);
    expect_ok(right.finished);
    EXPECT_TRUE(expected[static_cast<size_t>(chunks.first)].same(fixture));
  }
}

// 300 queries see the first 300 of 1100 keys: later chunks are NaN and never arrive, and are not
// what is missing.
TEST_F(GpuAsyncAttention, HiddenChunks) {
  Fixture fixture(causal(base(300, 1100, 128), Causal::kTopLeft));
  Chunks chunks(*gpu_, {0, 200, 400, 700, 1100}, 0);
  for (const int64_t first : {0, 3}) {
    chunks.first = first;
    chunks.set_all(0);
    const Result result =
        run(fixture, &chunks, 1, 5 * kSecond, nullptr, false, [&](const Placed& placed) {
          for (const int64_t chunk : {1, 0}) deliver(fixture, placed, chunks, chunk, 1);
        });
    expect_ok(result.finished);
    fixture.compare_forward();
    chunks.set_all(0);
    const Result late = run(fixture, &chunks, 1, kSecond / 100, nullptr, true,
                            [&](const Placed&) { chunks.signals.set(0, 1); });
    const std::string named = "attention forward: chunk 1 of key: not arrived";
    EXPECT_EQ(late.finished.sentence().substr(0, named.size()), named);
  }
}

// ---- Kernels that know nothing of chunks ----

// An implementation of the list.
template <size_t kImplementation>
struct Listed {
  // `gpu`, which has the reports of waits, outlives what is made.
  static Status make(const AttentionProblem& problem, cuda::Gpu& gpu,
                     std::unique_ptr<Listed>* made) {
    dispatch::Device device;
    device.gpu = std::shared_ptr<cuda::Gpu>(std::shared_ptr<void>(), &gpu);
    const auto& implementation = dispatch::attention_implementations()[kImplementation];
    EXPECT_EQ(implementation.refuse(problem, device), "") << implementation.name;
    *made = std::make_unique<Listed>();
    return implementation.make(problem, device, &(*made)->attention);
  }
  size_t forward_workspace() const { return attention->workspace(dispatch::Direction::kForward); }
  Status forward(const AttentionForward& tensors, std::byte* workspace, void* stream) const {
    return attention->forward(tensors, workspace, stream);
  }
  std::unique_ptr<dispatch::Executable<dispatch::Attention>> attention;
};

class GpuWholeChunks : public GpuAsyncAttention {
 protected:
  GpuWholeChunks() : GpuAsyncAttention(0) {}

  template <class Attention>
  void check(const Case& test) {
    SCOPED_TRACE(text_of(test));
    Fixture fixture(test);
    Chunks chunks(*gpu_, {0, 40, 90, 200}, 0);
    std::unique_ptr<Attention> plan;
    uint32_t epoch = 0;
    for (chunks.first = 0; chunks.first < 3; ++chunks.first) {
      ++epoch;
      const Result result = run(
          fixture, &chunks, epoch, 20 * kSecond, nullptr, false,
          [&](const Placed& placed) {
            for (const int64_t chunk : chunks.needed(fixture))
              deliver(fixture, placed, chunks, chunk, epoch);
          },
          &plan);
      expect_ok(result.launched);
      expect_ok(result.finished);
      fixture.compare_forward();
    }
    chunks.first = 1;
    const Result late = run(
        fixture, &chunks, ++epoch, kSecond / 100, nullptr, true,
        [&](const Placed&) { chunks.signals.set(1, epoch); }, &plan);
    EXPECT_EQ(late.finished.code(), PERSEID_TIMEOUT);
    // The first one of those that are seen, in the order of visits, is missing.
    const std::vector<int64_t> needed = chunks.needed(fixture);
    const int64_t missing = needed[needed[0] == 1 ? 1 : 0];
    const std::string named =
        concatenate("attention forward: chunk ", missing, " of key: not arrived");
    EXPECT_EQ(late.finished.sentence().substr(0, named.size()), named);
  }
  static Case whole(DType dtype, int64_t dim) {
    Case test = forward_case(dtype, 2, 4, 2, 70, 200, dim, dim);
    test.layout = Layout::kBshd;
    return test;
  }
};

TEST_F(GpuWholeChunks, Portable) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    for (const int64_t dim : {13, 64}) check<Listed<1>>(causal(whole(dtype, dim)));
  // 70 queries see the first 70 keys: the last chunk never arrives.
  check<Listed<1>>(causal(whole(DType::kBF16, 64), Causal::kTopLeft));
}
TEST_F(GpuWholeChunks, Reference) {
  for (const DType dtype : {DType::kBF16, DType::kF64}) check<Listed<2>>(causal(whole(dtype, 13)));
}
TEST_F(GpuWholeChunks, Sm90) {
  if (gpu_->facts().major != 9) GTEST_SKIP() << "needs compute capability 9.0";
  check<Listed<0>>(whole(DType::kF32, 64));
  check<Listed<0>>(causal(whole(DType::kBF16, 512)));
}

}  // namespace
}  // namespace perseid::internal::testing_gpu
