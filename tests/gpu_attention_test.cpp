// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU of compute capability 9.0 against the float64 reference, with the cases of the
// CPU's tests and those that its own tiles ask for; skipped where there is no such GPU. What the
// kernels need of a compiler, and what they refuse, is held everywhere.

#include "attention_cases.hpp"
#include "cuda/attention.hpp"
#include "gpu_tools.hpp"

namespace perseid {
namespace {

using namespace cpu::attention_cases;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;

Case forward_case(DType dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                  int64_t kv_len, int64_t dim, int64_t value_dim) {
  Case test = make_case(dtype, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  return test;
}

class GpuAttention : public testing_gpu::GpuTest {
 protected:
  GpuAttention() : GpuTest(9) {}

  // One execution of the fixture's problem: out and lse of the GPU come to the fixture's arrays,
  // which held nothing of use before, as the workspace does not.
  void run(Fixture& fixture) {
    std::unique_ptr<cuda::AttentionOnGpu> attention;
    expect_ok(cuda::AttentionOnGpu::make(fixture.problem, *gpu_, &attention));
    if (attention == nullptr) return;
    for (Array* result : {&fixture.out, &fixture.lse})
      std::fill(result->memory.begin(), result->memory.end(), std::byte{0x7f});
    Array work(DType::kBool, {static_cast<int64_t>(attention->forward_workspace())});
    Mirror out(*gpu_, fixture.out), lse(*gpu_, fixture.lse), workspace(*gpu_, work);
    AttentionForward tensors = fixture.forward_arguments();
    tensors.out = out.tensor();
    tensors.lse = lse.tensor();
    // The inputs go where they lie on the GPU, with the fixture's strides.
    std::vector<std::unique_ptr<Mirror<Array>>> inputs;
    const auto place = [&](Array& array, Tensor& tensor) {
      if (!tensor.present()) return;
      inputs.push_back(std::make_unique<Mirror<Array>>(*gpu_, array));
      tensor.data = inputs.back()->tensor().data;
    };
    place(fixture.query, tensors.query);
    place(fixture.key, tensors.key);
    place(fixture.value, tensors.value);
    place(fixture.bias, tensors.bias);
    place(fixture.visible, tensors.visible);
    place(fixture.cu_q, tensors.cu_seqlens_q);
    place(fixture.cu_kv, tensors.cu_seqlens_kv);
    place(fixture.kv_lens, tensors.kv_lens);
    Array numbers(DType::kI64, {2});
    Mirror gpu_numbers(*gpu_, numbers);
    if (numbers_on_gpu_) {
      // What stands in the arguments is of no meaning then.
      const uint64_t drawn[] = {tensors.dropout.seed, tensors.dropout.offset};
      expect_ok(cuda::copy(*gpu_, gpu_numbers.tensor().data, drawn, sizeof drawn, nullptr));
      tensors.dropout.numbers = gpu_numbers.tensor().as<uint64_t>();
      tensors.dropout.seed = tensors.dropout.offset = 5;
    }
    expect_ok(attention->forward(tensors, workspace.tensor().as<std::byte>(), nullptr));
    {
      const cuda::Gpu::Current current(*gpu_);
      ASSERT_EQ(gpu_->driver().stream_synchronize(nullptr), cuda::kSuccess);
    }
    out.fetch();
    lse.fetch();
  }
  void check(const Case& test) {
    SCOPED_TRACE(text_of(test));
    Fixture fixture(test);
    run(fixture);
    fixture.compare("out", fixture.out.tensor, fixture.want_out.tensor, 0.1);
    fixture.compare("lse", fixture.lse.tensor, fixture.want_lse.tensor, 1);
  }

  bool numbers_on_gpu_ = false;
};

using Dims = std::pair<int64_t, int64_t>;  // of keys and values
class GpuAttentionDims : public GpuAttention, public testing::WithParamInterface<Dims> {};

TEST_P(GpuAttentionDims, MatchTheReference) {
  const auto [dim, value_dim] = GetParam();
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd}) {
      Case test = forward_case(dtype, 2, 4, 2, 170, 333, dim, value_dim);
      test.layout = layout;
      check(test);
      if (dtype == DType::kF16 || layout == Layout::kBhsd) continue;
      test.problem.causal = Causal::kBottomRight;
      check(test);
    }
}
INSTANTIATE_TEST_SUITE_P(Dims, GpuAttentionDims,
                         testing::Values(Dims{8, 8}, Dims{40, 24}, Dims{64, 64}, Dims{72, 80},
                                         Dims{80, 72}, Dims{96, 96}, Dims{128, 128}, Dims{16, 256},
                                         Dims{256, 16}, Dims{192, 128}, Dims{160, 160},
                                         Dims{192, 192}, Dims{256, 256}));

// Tests that each dim with tiles of its own has to pass.
class GpuAttentionTiles : public GpuAttention, public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuAttentionTiles, testing::Values(64, 96, 128, 192, 256));

TEST_F(GpuAttention, Lengths) {
  for (const int64_t q_len : {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 384})
    for (const int64_t kv_len : {0, 1, 15, 64, 127, 128, 129, 255, 257, 600})
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
        Case test = forward_case(DType::kBF16, 1, 2, 2, q_len, kv_len, 64, 64);
        test.problem.causal = causal;
        check(test);
      }
  check(forward_case(DType::kBF16, 0, 2, 2, 5, 5, 64, 64));
  check(forward_case(DType::kBF16, 1, 2, 2, 0, 5, 64, 64));
}

TEST_P(GpuAttentionTiles, MasksOfRange) {
  const int64_t dim = GetParam();
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
    for (const int64_t q_len : {4, 100, 250, 620})
      for (const auto& [left, right] :
           {std::pair<int64_t, int64_t>{-1, -1}, {70, -1}, {0, 0}, {-1, 30}, {300, 5}}) {
        Case test = forward_case(DType::kBF16, 1, 2, 1, q_len, 550, dim, dim);
        test.layout = Layout::kBshd;
        test.problem.causal = causal;
        test.problem.window_left = left;
        test.problem.window_right = right;
        check(test);
      }
}

TEST_F(GpuAttention, SharedKeyHeads) {
  for (const auto& [heads, kv_heads] :
       {std::pair<int64_t, int64_t>{8, 1}, {6, 2}, {32, 1}, {64, 2}, {40, 8}})
    for (const int64_t q_len : {1, 2, 5, 33, 150})
      for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
        Case test = forward_case(DType::kBF16, 2, heads, kv_heads, q_len, 300, 128, 128);
        test.layout = q_len == 5 ? Layout::kBhsd : Layout::kBshd;
        test.problem.causal = causal;
        check(test);
      }
}

TEST_P(GpuAttentionTiles, OddShapes) {
  const int64_t dim = GetParam();
  for (const auto& [q_len, kv_len] :
       {std::pair<int64_t, int64_t>{1000, 1000}, {257, 1000}, {1000, 257}, {777, 1301}})
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      Case test = forward_case(DType::kBF16, 1, 1, 1, q_len, kv_len, dim, dim);
      test.problem.causal = causal;
      check(test);
    }
}

TEST_F(GpuAttention, LongOddShape) {
  Case test = forward_case(DType::kF16, 1, 2, 1, 2047, 2047, 128, 128);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check(test);
}

// Consumers that pass over keys at both ends of a tile, and blocks that go from tile to tile; and
// dims of keys and values for which shared memory has room for fewer consumers.
TEST_F(GpuAttention, LongWindows) {
  for (const auto& [dim, value_dim] : {Dims{64, 64}, Dims{96, 64}, Dims{88, 24}})
    for (const int64_t kv_len : {1100, 1500})
      for (const auto& [left, right] :
           {std::pair<int64_t, int64_t>{1023, -1}, {200, -1}, {127, 0}, {64, -1}}) {
        const int64_t heads = dim == 64 ? 24 : 4;
        Case test = forward_case(DType::kBF16, 1, heads, heads, 1300, kv_len, dim, value_dim);
        test.layout = Layout::kBshd;
        test.problem.causal = Causal::kBottomRight;
        test.problem.window_left = left;
        test.problem.window_right = right;
        check(test);
        test.problem.causal = Causal::kNone;
        test.problem.window_right = 130;
        check(test);
      }
}

// More tiles than multiprocessors, so that blocks go from one to the next; with one step or two.
TEST_P(GpuAttentionTiles, ManyTiles) {
  const int64_t dim = GetParam();
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight})
    for (const int64_t kv_len : {50, 170}) {
      Case test = forward_case(DType::kBF16, 2, 48, 16, 420, kv_len, dim, dim);
      test.layout = Layout::kBshd;
      test.problem.causal = causal;
      check(test);
    }
}

TEST_F(GpuAttention, ManyBatchesAndHeads) {
  check(forward_case(DType::kBF16, 35000, 2, 1, 1, 3, 8, 8));
  check(forward_case(DType::kBF16, 2, 35000, 35000, 2, 3, 8, 8));
}

TEST_P(GpuAttentionTiles, RaggedAndKeyLengths) {
  const int64_t dim = GetParam();
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd})
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      Case ragged = forward_case(DType::kBF16, 0, 4, 2, 0, 0, dim, dim);
      set_ragged(ragged, {5, 0, 130, 1, 64, 0, 300, 0}, {7, 3, 200, 0, 64, 9, 129, 0});
      ragged.layout = layout;
      ragged.problem.causal = causal;
      check(ragged);
      ragged.problem.window_left = 40;
      ragged.problem.kv_lens = true;
      ragged.kv_lens = {7, 1, 90, 0, 63, 9, 128, 0};
      check(ragged);
      Case padded = forward_case(DType::kF16, 4, 4, 1, 150, 300, dim, dim);
      padded.layout = layout;
      padded.problem.causal = causal;
      padded.problem.kv_lens = true;
      padded.kv_lens = {300, 0, 129, 7};
      // What is behind the lengths is not even a number.
      padded.prepare = [](AttentionBackward& a) {
        for (const Tensor& tensor : {a.key, a.value})
          for_each(tensor, [&](int64_t offset, int64_t i) {
            const int64_t row = i / tensor.shape[3] % tensor.shape[2];
            const int64_t entry = i / tensor.shape[3] / tensor.shape[2] / tensor.shape[1];
            if (row >= read_length(a.kv_lens, entry)) put(tensor, offset, kNaN);
          });
      };
      check(padded);
    }
}

TEST_F(GpuAttention, ManyShortSequences) {
  Case many = forward_case(DType::kBF16, 0, 6, 3, 0, 0, 64, 64);
  std::vector<int64_t> q_lens, kv_lens;
  for (int64_t b = 0; b < 200; ++b) {
    q_lens.push_back(b * 37 % 150);
    kv_lens.push_back(b * 53 % 140);
  }
  set_ragged(many, q_lens, kv_lens);
  many.layout = Layout::kBshd;
  check(many);
}

// Dims with queries of which there are many, and few.
constexpr std::pair<int64_t, int64_t> kDimsAndQueries[] = {
    {64, 150}, {128, 150}, {256, 150}, {128, 4}};
std::vector<std::vector<int64_t>> score_shapes(int64_t q_len, int64_t kv_len = 301) {
  return {{2, 4, q_len, kv_len}, {1, 4, q_len, kv_len}, {2, 1, q_len, kv_len},
          {2, 1, 1, kv_len},     {1, 1, q_len, 1},      {1, 1, 1, 1}};
}

// The copy engine reaches rows of 304 keys, not those of 301.
TEST_F(GpuAttention, Bias) {
  for (const auto& [dim, q_len] : kDimsAndQueries)
    for (const int64_t kv_len : {301, 304})
      for (const auto& shape : score_shapes(q_len, kv_len)) {
        Case test = forward_case(DType::kBF16, 2, 4, 2, q_len, kv_len, dim, dim);
        add_bias(test, shape[0] == 1 ? DType::kF32 : DType::kBF16, shape, false);
        if (kv_len == 304) test.problem.causal = Causal::kBottomRight;
        check(test);
      }
  Case many = forward_case(DType::kF16, 2, 40, 40, 260, 200, 64, 64);
  add_bias(many, DType::kF16, {1, 40, 260, 200}, false);
  check(many);
  Case spread = forward_case(DType::kF16, 1, 2, 2, 50, 70, 64, 64);
  add_bias(spread, DType::kF16, {1, 2, 50, 70}, false);
  spread.layout = Layout::kBshd;
  check(spread);
}

TEST_F(GpuAttention, Visible) {
  for (const auto& [dim, q_len] : kDimsAndQueries)
    for (const auto& shape : score_shapes(q_len)) {
      Case test = forward_case(DType::kBF16, 2, 4, 2, q_len, 301, dim, dim);
      set_visible(test, shape);
      check(test);
    }
}

TEST_F(GpuAttention, DropoutHasTheContractsBits) {
  for (const auto& [dim, q_len] : kDimsAndQueries)
    for (const double dropout : {0.1, 0.5}) {
      Case test = forward_case(DType::kBF16, 2, 4, 2, q_len, 301, dim, dim);
      test.problem.dropout = dropout;
      test.problem.causal = dim == 256 ? Causal::kTopLeft : Causal::kNone;
      numbers_on_gpu_ = dropout == 0.5;
      check(test);
    }
}

TEST_F(GpuAttention, EverythingAtOnce) {
  Case all = forward_case(DType::kF16, 0, 4, 2, 0, 0, 128, 64);
  set_ragged(all, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
  all.layout = Layout::kBshd;
  all.problem.causal = Causal::kBottomRight;
  all.problem.dropout = 0.3;
  all.problem.kv_lens = true;
  all.kv_lens = {7, 1, 90, 0, 63};
  add_bias(all, DType::kF32, {5, 1, 130, 200}, false);
  set_visible(all, {1, 4, 130, 1});
  check(all);
}

// Few queries: keys are split into parts.
TEST_P(GpuAttentionTiles, FewQueries) {
  const int64_t dim = GetParam();
  for (const int64_t kv_len : {1024, 1025, 5000})
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{3, 3}, {8, 1}, {12, 2}})
      for (const int64_t q_len : {1, 5}) {
        Case test = forward_case(DType::kBF16, 2, heads, kv_heads, q_len, kv_len, dim, dim);
        test.layout = kv_len == 1025 ? Layout::kBhsd : Layout::kBshd;
        if (heads != 3) test.problem.causal = Causal::kBottomRight;
        check(test);
      }
}

TEST_F(GpuAttention, FewQueriesWithMasksAndLengths) {
  Case window = forward_case(DType::kF16, 2, 4, 2, 9, 4100, 128, 72);
  window.problem.causal = Causal::kBottomRight;
  window.problem.window_left = 700;
  check(window);
  Case lengths = forward_case(DType::kBF16, 5, 8, 2, 2, 3000, 128, 128);
  lengths.problem.causal = Causal::kBottomRight;
  lengths.problem.kv_lens = true;
  lengths.kv_lens = {3000, 0, 1, 1024, 2049};
  check(lengths);
  Case ragged = forward_case(DType::kBF16, 0, 4, 2, 0, 0, 64, 128);
  set_ragged(ragged, {1, 0, 3, 2, 1}, {2700, 3, 200, 0, 1100});
  ragged.layout = Layout::kBshd;
  ragged.problem.causal = Causal::kBottomRight;
  check(ragged);
  Case all = forward_case(DType::kBF16, 2, 4, 2, 3, 2100, 128, 128);
  add_bias(all, DType::kF32, {2, 1, 3, 2100}, false);
  set_visible(all, {1, 4, 3, 2100});
  all.problem.dropout = 0.2;
  all.prepare = [](AttentionBackward& a) {
    for (const int64_t j : {5, 1500}) put(a.value, at(a.value, {0, 0, j, 3}), kInfinity);
  };
  check(all);
}

// NaN and infinity in keys and values that no query may see, and in those that some may.
TEST_P(GpuAttentionTiles, NothingLeaksFromMaskedKeys) {
  const int64_t dim = GetParam();
  for (const double poison : {kNaN, kInfinity, -kInfinity})
    for (const bool visible : {false, true}) {
      Case test = forward_case(DType::kBF16, 1, 4, 1, 60, 400, dim, dim);
      test.problem.causal = Causal::kTopLeft;
      if (visible) set_visible(test, {1, 4, 60, 400});
      test.prepare = [=](AttentionBackward& a) {
        for (const int64_t j : {int64_t{30}, int64_t{60}, int64_t{300}}) {
          put(a.value, at(a.value, {0, 0, j, 3}), poison);
          put(a.key, at(a.key, {0, 0, j, 5}), kNaN);
        }
        put(a.value, at(a.value, {0, 0, 41, 7}), poison);
      };
      check(test);
    }
}

TEST_F(GpuAttention, LargeAndEqualScores) {
  for (const double size : {0.0, 300.0}) {
    Case test = forward_case(DType::kBF16, 1, 1, 1, 200, 600, 64, 64);
    test.prepare = [size](AttentionBackward& a) {
      Random random{5};
      fill(a.query, random, size);
      fill(a.key, random, 30);
    };
    check(test);
  }
}

std::vector<std::byte> bytes_of(const Fixture& fixture) {
  std::vector<std::byte> bytes = fixture.out.memory;
  bytes.insert(bytes.end(), fixture.lse.memory.begin(), fixture.lse.memory.end());
  return bytes;
}

TEST_F(GpuAttention, SameBitsEveryTime) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Case test = forward_case(DType::kBF16, 2, 64, 16, 500, 700, 128, 128);
    test.problem.causal = causal;
    Fixture fixture(test);
    run(fixture);
    const std::vector<std::byte> once = bytes_of(fixture);
    for (int turn = 0; turn < 5; ++turn) {
      run(fixture);
      EXPECT_EQ(bytes_of(fixture), once);
    }
  }
}

// A sequence gives the same bits alone as in a batch.
TEST_F(GpuAttention, SameBitsAtAnyPlaceOfTheBatch) {
  Fixture many(forward_case(DType::kBF16, 70, 4, 2, 300, 400, 64, 64));
  run(many);
  for (const int64_t b : {0, 33, 69}) {
    Fixture alone(forward_case(DType::kBF16, 1, 4, 2, 300, 400, 64, 64));
    const auto entry = [b](Tensor tensor) {
      tensor.data = tensor.as<std::byte>() + b * tensor.stride[0] * size_of(tensor.dtype);
      tensor.shape[0] = 1;
      return tensor;
    };
    copy(entry(many.query.tensor), alone.query.tensor);
    copy(entry(many.key.tensor), alone.key.tensor);
    copy(entry(many.value.tensor), alone.value.tensor);
    run(alone);
    const Tensor got = alone.out.tensor, want = entry(many.out.tensor);
    EXPECT_EQ(0, std::memcmp(got.data, want.data,
                             static_cast<size_t>(got.elements() * size_of(got.dtype))))
        << "entry " << b;
  }
}

// What a plan cannot know is refused when it is executed.
TEST_F(GpuAttention, RefusesWhatTheCopyEngineCannotReach) {
  Fixture fixture(forward_case(DType::kBF16, 1, 2, 2, 40, 50, 64, 64));
  std::unique_ptr<cuda::AttentionOnGpu> attention;
  expect_ok(cuda::AttentionOnGpu::make(fixture.problem, *gpu_, &attention));
  ASSERT_NE(attention, nullptr);
  const auto sentence = [&](const auto& change) {
    AttentionForward tensors = fixture.forward_arguments();
    change(tensors);
    const Status status = attention->forward(tensors, nullptr, nullptr);
    EXPECT_EQ(status.code(), PERSEID_UNSUPPORTED);
    return status.sentence();
  };
  EXPECT_NE(sentence([](AttentionForward& t) { t.key.stride[2] = 65; }).find("key has a stride"),
            std::string::npos);
  EXPECT_NE(sentence([](AttentionForward& t) { t.value.stride[3] = 2; }).find("along its rows"),
            std::string::npos);
  EXPECT_NE(sentence([](AttentionForward& t) {
              t.out.data = t.out.as<std::byte>() + 2;
            }).find("out begins 2 bytes"),
            std::string::npos);
}

// ---- Without a GPU ----

TEST(AttentionKernels, RefuseWithASentence) {
  cuda::GpuFacts facts;
  facts.major = 9;
  const AttentionProblem good = forward_case(DType::kBF16, 1, 2, 2, 8, 8, 64, 64).problem;
  EXPECT_EQ(cuda::refuse_attention(good, facts), "");
  const auto refused = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return !cuda::refuse_attention(problem, facts).empty();
  };
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.head_dim = 63; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.value_dim = 264; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.scale = -1; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.kv_len = int64_t{1} << 31; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.total_q = int64_t{1} << 29; }));
  facts.major = 8;
  EXPECT_FALSE(cuda::refuse_attention(good, facts).empty());
}

// What is not refused has a kernel that the GPU can hold.
TEST(AttentionKernels, FitIntoSharedMemory) {
  AttentionProblem problem = forward_case(DType::kBF16, 1, 2, 2, 8, 5000, 64, 64).problem;
  int64_t wrong = 0;
  for (problem.head_dim = 8; problem.head_dim <= 256; problem.head_dim += 8)
    for (problem.value_dim = 8; problem.value_dim <= 256; problem.value_dim += 8)
      for (const int64_t q_len : {1, 100, 2000})
        for (int features = 0; features < 64; ++features)
          for (const DType bias : {DType::kNone, DType::kBF16, DType::kF32}) {
            problem.q_len = q_len;
            problem.causal = features & 1 ? Causal::kBottomRight : Causal::kNone;
            problem.window_left = features & 2 ? 1023 : -1;
            problem.window_right = features & 4 ? 100 : -1;
            problem.visible = features & 8;
            problem.dropout = features & 16 ? 0.1 : 0;
            problem.kv_lens = features & 32;
            problem.bias = bias != DType::kNone;
            problem.bias_dtype = bias;
            if (cuda::choose_attention_forward(problem).fits()) continue;
            if (++wrong <= 5)
              ADD_FAILURE() << "dims " << problem.head_dim << " and " << problem.value_dim
                            << ", q_len " << q_len << ", features " << features << ", bias "
                            << name_of(bias);
          }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace perseid
