// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The C++ interface: its own views, masks and workspaces, and each operation through it once.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "perseid/perseid.hpp"

struct HalfOfMine {
  uint16_t bits;
};
namespace perseid {
template <>
inline constexpr DType dtype_of<HalfOfMine> = f16;
}  // namespace perseid

namespace {

using perseid::Tensor;

template <class Call>
perseid::Error error_of(const Call& call) {
  try {
    call();
  } catch (const perseid::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return {PERSEID_OK, ""};
}

std::vector<float> counting(size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = std::sin(static_cast<float>(i) * 0.7f);
  return values;
}

// ---- Tensors

TEST(Tensor, DescribesMemory) {
  const float values[6] = {};
  const Tensor tensor(values, {2, 3});
  EXPECT_TRUE(tensor.present());
  EXPECT_EQ(tensor.ndim(), 2);
  EXPECT_EQ(tensor.size(-1), 3);
  EXPECT_EQ(tensor.stride(0), 3);
  EXPECT_EQ(tensor.elements(), 6);
  EXPECT_EQ(tensor.dtype(), perseid::f32);
  EXPECT_TRUE(tensor.contiguous());
  EXPECT_EQ(tensor.data<float>(), values);

  EXPECT_FALSE(Tensor().present());
  EXPECT_EQ(Tensor().dl(), nullptr);
  HalfOfMine half{};
  EXPECT_EQ(Tensor(&half, {1}).dtype(), perseid::f16);
  bool flag = true;
  EXPECT_EQ(Tensor(&flag, {1}).dtype(), perseid::boolean);
  EXPECT_EQ(Tensor(values, perseid::bf16, {12}).dtype(), perseid::bf16);
  EXPECT_EQ(Tensor(values, {}).elements(), 1);
  EXPECT_EQ(Tensor(values, {0, 3}).elements(), 0);
}

TEST(Tensor, CopiesPointIntoThemselves) {
  float values[6];
  auto first = std::make_unique<Tensor>(values, perseid::Dims{2, 3});
  const Tensor copy = *first;
  first.reset();
  EXPECT_EQ(copy.dl()->shape[1], 3);
  EXPECT_EQ(copy.dl()->strides[0], 3);
  Tensor assigned;
  assigned = copy;
  EXPECT_NE(assigned.dl()->shape, copy.dl()->shape);
  EXPECT_EQ(assigned.size(0), 2);
}

TEST(Tensor, Views) {
  float values[24];
  std::iota(values, values + 24, 0.0f);
  const Tensor tensor(values, {2, 3, 4});
  const auto at = [](const Tensor& t, std::initializer_list<int64_t> index) {
    int64_t offset = 0;
    int32_t dim = 0;
    for (int64_t i : index) offset += i * t.stride(dim++);
    return t.data<float>()[offset];
  };
  EXPECT_EQ(at(tensor, {1, 2, 3}), 23);
  EXPECT_EQ(at(tensor.transposed(), {1, 3, 2}), 23);
  EXPECT_EQ(at(tensor.transposed(0, 2), {3, 2, 1}), 23);
  EXPECT_EQ(at(tensor.permuted({2, 0, 1}), {3, 1, 0}), 15);
  EXPECT_EQ(at(tensor.slice(1, 1, 3), {0, 0, 0}), 4);
  EXPECT_EQ(tensor.slice(1, 1, 3).size(1), 2);
  EXPECT_EQ(at(tensor.select(1, 2), {1, 3}), 23);
  EXPECT_EQ(tensor.select(1, 2).ndim(), 2);
  EXPECT_EQ(at(tensor.reshaped({6, 4}), {5, 3}), 23);
  EXPECT_FALSE(tensor.transposed().contiguous());
  EXPECT_TRUE(tensor.slice(0, 0, 1).contiguous());

  int64_t length = 5;
  const DLTensor dl{values, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &length, nullptr, 8};
  EXPECT_EQ(Tensor(dl).data<float>()[0], 2);
}

TEST(Tensor, RefusesWhatCannotBe) {
  float values[6];
  const Tensor tensor(values, {2, 3});
  for (const auto& wrong : std::initializer_list<std::function<void()>>{
           [&] {
             (void)Tensor(values, {2, 3}, {1});
           },
           [&] {
             (void)Tensor(values, {1, 1, 1, 1, 1, 1, 1, 1, 1});
           },
           [&] { (void)Tensor(values, perseid::DType::kNone, {1}); }, [&] { (void)tensor.size(2); },
           [&] { (void)tensor.slice(0, 1, 3); }, [&] { (void)tensor.permuted({0}); },
           [&] {
             (void)tensor.permuted({0, 0});
           },
           [&] {
             DLTensor shapeless = *tensor.dl();
             shapeless.shape = nullptr;
             (void)Tensor(shapeless);
           },
           [&] { (void)tensor.reshaped({7}); }, [&] { (void)tensor.transposed().reshaped({6}); }}) {
    const auto error = error_of(wrong);
    EXPECT_EQ(error.status(), PERSEID_INVALID_ARGUMENT);
    EXPECT_GT(std::string(error.what()).size(), 20u);
  }
}

// ---- Masks and workspaces

TEST(Mask, Combines) {
  const auto both = perseid::causal_bottom_right() & perseid::window(128, -1);
  EXPECT_EQ(both.causal, PERSEID_CAUSAL_BOTTOM_RIGHT);
  EXPECT_EQ(both.left, 128);
  EXPECT_EQ(both.right, -1);
  const auto nearer = perseid::window(5, -1) & perseid::window(9, 3);
  EXPECT_EQ(nearer.left, 5);
  EXPECT_EQ(nearer.right, 3);
  EXPECT_EQ(error_of([] {
              (void)(perseid::causal_top_left() & perseid::causal_bottom_right());
            }).status(),
            PERSEID_INVALID_ARGUMENT);
}

TEST(Workspace, GrowsAndStaysAligned) {
  perseid::Workspace workspace;
  EXPECT_EQ(workspace.size(), 0u);
  for (size_t bytes : {1u, 100u, 4096u, 10u}) {
    workspace.reserve(bytes);
    const std::span<std::byte> memory = workspace;
    EXPECT_GE(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % perseid::Workspace::kAlignment, 0u);
  }
  EXPECT_EQ(workspace.size(), 4096u);
}

// ---- Operations

TEST(CppApi, MatmulWithTransposedViews) {
  const auto context = perseid::Context::cpu(2);
  const int64_t m = 5, n = 7, k = 9;
  const auto a = counting(m * k), b = counting(n * k), bias = counting(n);
  std::vector<float> c(m * n, NAN);
  const perseid::Matmul matmul(context, {.m = m, .n = n, .k = k, .alpha = 2, .bias = true});
  perseid::Workspace workspace;
  matmul.execute(nullptr,
                 {.a = Tensor(a.data(), {k, m}).transposed(),
                  .b = Tensor(b.data(), {n, k}).transposed(),
                  .bias = {bias.data(), {n}},
                  .c = {c.data(), {m, n}}},
                 workspace);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias[static_cast<size_t>(j)];
      for (int64_t p = 0; p < k; ++p) {
        sum += 2.0 * static_cast<double>(a[static_cast<size_t>(p * m + i)]) *
               static_cast<double>(b[static_cast<size_t>(j * k + p)]);
      }
      EXPECT_NEAR(c[static_cast<size_t>(i * n + j)], sum, 1e-5);
    }
  }
}

// In C++ the defaults of alpha and batch are visible, so a 0 is a 0.
TEST(CppApi, MatmulTakesAlphaAndBatchOfZero) {
  const auto context = perseid::Context::cpu(1);
  const std::vector<float> ones(4, 1.0f);
  std::vector<float> c = {1, 2, 3, 4};
  perseid::Workspace workspace;
  const perseid::Matmul scaled(context, {.m = 2, .n = 2, .k = 2, .alpha = 0, .beta = 2});
  const Tensor square(ones.data(), {2, 2});
  scaled.execute(nullptr, {.a = square, .b = square, .c = {c.data(), {2, 2}}}, workspace);
  EXPECT_EQ(c, (std::vector<float>{2, 4, 6, 8}));
  const perseid::Matmul none(context, {.batch = 0, .m = 2, .n = 2, .k = 2});
  const Tensor empty(ones.data(), {0, 2, 2});
  none.execute(nullptr, {.a = empty, .b = empty, .c = {c.data(), {0, 2, 2}}}, workspace);
  EXPECT_EQ(c, (std::vector<float>{2, 4, 6, 8}));
  EXPECT_EQ(none.workspace_size(perseid::Direction::kBackward), 0u);

  const perseid::Attention attention(context, {.batch = 0, .q_len = 2, .kv_len = 2, .head_dim = 1});
  const Tensor rows(ones.data(), {0, 2, 1, 1});
  attention.forward(nullptr, {.query = rows, .key = rows, .value = rows, .out = rows}, workspace);
}

TEST(CppApi, SoftmaxBothWays) {
  const auto context = perseid::Context::cpu(1);
  const int64_t rows = 4, length = 33;
  const auto x = counting(rows * length), weight = counting(rows * length + 3);
  std::vector<float> y(x.size()), lse(rows), dx(x.size());
  const perseid::Dims shape{rows, length};
  const perseid::Softmax softmax(context, {.shape = shape, .scale = 1.5});
  perseid::Workspace workspace;
  softmax.forward(
      nullptr,
      {.input = {x.data(), shape}, .output = {y.data(), shape}, .lse = {lse.data(), {rows, 1}}},
      workspace);
  softmax.backward(nullptr,
                   {.grad_output = {weight.data(), shape},
                    .output = {y.data(), shape},
                    .grad_input = {dx.data(), shape}},
                   workspace);
  for (size_t row = 0; row < rows; ++row) {
    const size_t begin = row * length;
    double total = 0, dot = 0, gradient = 0;
    for (size_t i = begin; i < begin + length; ++i) {
      total += static_cast<double>(y[i]);
      dot += static_cast<double>(y[i]) * static_cast<double>(weight[i]);
      gradient += static_cast<double>(dx[i]);
    }
    EXPECT_NEAR(total, 1, 1e-5);
    EXPECT_NEAR(gradient, 0, 1e-5);
    for (size_t i = begin; i < begin + length; ++i) {
      EXPECT_NEAR(y[i],
                  std::exp(1.5 * static_cast<double>(x[i] - 0) - static_cast<double>(lse[row])),
                  1e-5);
      EXPECT_NEAR(dx[i], 1.5 * static_cast<double>(y[i]) * (static_cast<double>(weight[i]) - dot),
                  1e-5);
    }
  }
}

struct AttentionCase {
  static constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kLength = 19, kDim = 16;
  static constexpr perseid::AttentionOptions kOptions{.batch = kBatch,
                                                      .heads = kHeads,
                                                      .kv_heads = kKvHeads,
                                                      .q_len = kLength,
                                                      .kv_len = kLength,
                                                      .head_dim = kDim,
                                                      .mask = {PERSEID_CAUSAL_BOTTOM_RIGHT},
                                                      .dropout = 0.25,
                                                      .backward = true};
  std::vector<float> q = counting(kBatch * kLength * kHeads * kDim);
  std::vector<float> k = counting(kBatch * kLength * kKvHeads * kDim);
  std::vector<float> v = k, out = std::vector<float>(q.size(), NAN), dout = q;
  std::vector<float> dq = out, dk = std::vector<float>(k.size(), NAN), dv = dk;
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kLength, NAN);
  perseid::Dims wide{kBatch, kLength, kHeads, kDim}, narrow{kBatch, kLength, kKvHeads, kDim};

  void run(const perseid::Attention& attention, perseid::Workspace& workspace) {
    const Tensor rows(lse.data(), {kBatch, kHeads, kLength});
    attention.forward(nullptr,
                      {.query = {q.data(), wide},
                       .key = {k.data(), narrow},
                       .value = {v.data(), narrow},
                       .out = {out.data(), wide},
                       .lse = rows,
                       .seed = 7,
                       .offset = 3},
                      workspace);
    attention.backward(nullptr,
                       {.query = {q.data(), wide},
                        .key = {k.data(), narrow},
                        .value = {v.data(), narrow},
                        .out = {out.data(), wide},
                        .lse = rows,
                        .grad_out = {dout.data(), wide},
                        .grad_query = {dq.data(), wide},
                        .grad_key = {dk.data(), narrow},
                        .grad_value = {dv.data(), narrow},
                        .seed = 7,
                        .offset = 3},
                       workspace);
  }
};

TEST(CppApi, AttentionWithDropoutAndItsMask) {
  const auto context = perseid::Context::cpu(2);
  AttentionCase given;
  const perseid::Attention attention(context, AttentionCase::kOptions);
  perseid::Workspace workspace;
  attention.reserve(workspace);
  const size_t reserved = workspace.size();
  EXPECT_EQ(reserved, std::max(attention.workspace_size(),
                               attention.workspace_size(perseid::Direction::kBackward)));
  given.run(attention, workspace);
  EXPECT_EQ(workspace.size(), reserved);

  constexpr int64_t length = AttentionCase::kLength, dim = AttentionCase::kDim,
                    heads = AttentionCase::kHeads;
  std::vector<uint8_t> mask(AttentionCase::kBatch * heads * length * length);
  perseid::fill_dropout_mask(context, 0.25, 7, 3,
                             {mask.data(), {AttentionCase::kBatch, heads, length, length}});
  const auto element = [&](const std::vector<float>& x, int64_t all, int64_t b, int64_t i,
                           int64_t h, int64_t d) {
    return static_cast<double>(x[static_cast<size_t>(((b * length + i) * all + h) * dim + d)]);
  };
  for (int64_t b = 0; b < AttentionCase::kBatch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < length; ++i) {
        double total = 0, result = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) {
            score += element(given.q, heads, b, i, h, d) * element(given.k, 2, b, j, h / 2, d);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
          total += weight;
          const auto at = static_cast<size_t>(((b * heads + h) * length + i) * length + j);
          if (mask[at] != 0) result += weight * element(given.v, 2, b, j, h / 2, 0) * 256 / 192;
        }
        EXPECT_NEAR(element(given.out, heads, b, i, h, 0), result / total, 1e-5);
        EXPECT_NEAR(given.lse[static_cast<size_t>((b * heads + h) * length + i)], std::log(total),
                    1e-5);
      }
    }
  }
  for (const auto* gradient : {&given.dq, &given.dk, &given.dv}) {
    for (float value : *gradient) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(CppApi, AttentionAccumulatesTheGradientsThatAreNamed) {
  const auto context = perseid::Context::cpu(2);
  perseid::Workspace workspace;
  AttentionCase once, twice;
  once.run(perseid::Attention(context, AttentionCase::kOptions), workspace);
  perseid::AttentionOptions options = AttentionCase::kOptions;
  options.accumulate = PERSEID_GRAD_QUERY | PERSEID_GRAD_VALUE;
  twice.dq = once.dq;
  twice.dk = once.dk;
  twice.dv = once.dv;
  twice.run(perseid::Attention(context, options), workspace);
  EXPECT_EQ(twice.dk, once.dk);
  for (size_t i = 0; i < once.dq.size(); ++i) EXPECT_EQ(twice.dq[i], 2 * once.dq[i]) << i;
  for (size_t i = 0; i < once.dv.size(); ++i) EXPECT_EQ(twice.dv[i], 2 * once.dv[i]) << i;
}

TEST(CppApi, OnePlanServesSeveralThreads) {
  AttentionCase expected;
  auto context = std::make_unique<perseid::Context>(perseid::Context::cpu(2));
  const perseid::Attention attention(*context, AttentionCase::kOptions);
  context.reset();  // plans keep what they need of it
  perseid::Workspace workspace;
  expected.run(attention, workspace);
  std::vector<std::thread> threads;
  std::array<AttentionCase, 4> cases;
  for (auto& each : cases) {
    threads.emplace_back([&] {
      perseid::Workspace own;
      for (int i = 0; i < 5; ++i) each.run(attention, own);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& each : cases) {
    EXPECT_EQ(each.out, expected.out);
    EXPECT_EQ(each.dq, expected.dq);
    EXPECT_EQ(each.dk, expected.dk);
    EXPECT_EQ(each.dv, expected.dv);
  }
}

class Counting final : public perseid::Executor {
 public:
  int32_t workers() const noexcept override { return 1; }
  void run(int64_t tasks, Task task) noexcept override {
    runs += 1;
    for (int64_t t = tasks; t-- > 0;) task(t, 0);  // backwards: any order will do
  }
  std::atomic<int> runs = 0;
};

TEST(CppApi, ACallersExecutor) {
  Counting executor;
  AttentionCase own, mine;
  perseid::Workspace workspace;
  own.run(perseid::Attention(perseid::Context::cpu(2), AttentionCase::kOptions), workspace);
  mine.run(perseid::Attention(perseid::Context::cpu(executor), AttentionCase::kOptions), workspace);
  EXPECT_GT(executor.runs, 0);
  EXPECT_EQ(mine.out, own.out);
  EXPECT_EQ(mine.dk, own.dk);
}

TEST(CppApi, SaysWhatItChoseAndReaches) {
  const auto context = perseid::Context::cpu(1);
  const perseid::Matmul matmul(context, {.m = 8, .n = 16, .k = 32});
  const auto info = matmul.info();
  EXPECT_EQ(info.forward_flops, 2 * 8 * 16 * 32);
  EXPECT_NE(matmul.explain().find(info.implementation), std::string::npos);
  EXPECT_EQ(matmul.explain_json().front(), '{');
  EXPECT_EQ(context.facts().front(), '{');
  EXPECT_GT(context.ceiling(perseid::Ceiling::kCopy, 1 << 20), 0);
  EXPECT_FALSE(perseid::version().empty());
  perseid::Matmul moved = perseid::Matmul(context, {.m = 1, .n = 1, .k = 1});
  moved = perseid::Matmul(context, {.m = 2, .n = 1, .k = 1});
  EXPECT_EQ(moved.info().forward_flops, 4);
}

TEST(CppApi, ErrorsCarryStatusAndSentence) {
  const auto context = perseid::Context::cpu(1);
  const auto wrong = error_of([&] { perseid::Matmul(context, {.m = -1, .n = 1, .k = 1}); });
  EXPECT_EQ(wrong.status(), PERSEID_INVALID_ARGUMENT);
  EXPECT_NE(std::string(wrong.what()).find("-1"), std::string::npos) << wrong.what();

  const perseid::Matmul matmul(context, {.m = 8, .n = 8, .k = 8});
  std::vector<float> values(64);
  const Tensor square(values.data(), {8, 8});
  perseid::Workspace workspace;
  const auto absent =
      error_of([&] { matmul.execute(nullptr, {.a = square, .b = square}, workspace); });
  EXPECT_EQ(absent.status(), PERSEID_INVALID_ARGUMENT);
  EXPECT_GT(std::string(absent.what()).size(), 10u);

  const perseid::Attention attention(context, AttentionCase::kOptions);
  AttentionCase given;
  ASSERT_GT(attention.workspace_size(), 0u);
  const auto small = error_of([&] {
    attention.forward(nullptr,
                      {.query = {given.q.data(), given.wide},
                       .key = {given.k.data(), given.narrow},
                       .value = {given.v.data(), given.narrow},
                       .out = {given.out.data(), given.wide}},
                      std::span<std::byte>());
  });
  EXPECT_EQ(small.status(), PERSEID_WORKSPACE_TOO_SMALL) << small.what();
  EXPECT_THROW(perseid::Context::cuda(99), perseid::Error);
}

// ---- Files and log

TEST(CppApi, FilesOfNamedTensors) {
  const std::string path = testing::TempDir() + "cpp_api_test.safetensors";
  const auto values = counting(6);
  const int64_t count = 42;
  perseid::write_file(path, {{"values", {values.data(), {2, 3}}}, {"count", {&count, {}}}},
                      {{"by", "a test"}});
  {
    const perseid::File file(path);
    const auto names = file.names();
    EXPECT_EQ(names.size(), 2u);
    const Tensor read = file["values"];
    EXPECT_EQ(read.size(1), 3);
    EXPECT_EQ(std::vector<float>(read.data<float>(), read.data<float>() + 6), values);
    EXPECT_EQ(*file["count"].data<int64_t>(), 42);
    EXPECT_TRUE(file[0].present());
    EXPECT_EQ(file.metadata("by"), "a test");
    EXPECT_EQ(file.metadata("for"), std::nullopt);
    const auto missing = error_of([&] { (void)file["nothing"]; });
    EXPECT_EQ(missing.status(), PERSEID_IO_ERROR);
    EXPECT_NE(std::string(missing.what()).find("values"), std::string::npos) << missing.what();
  }
  std::remove(path.c_str());
  EXPECT_EQ(error_of([&] { perseid::File gone(path); }).status(), PERSEID_IO_ERROR);
}

TEST(CppApi, LogReachesTheFunctionUntilSilenced) {
  const auto context = perseid::Context::cpu(1);
  std::vector<std::string> messages;
  perseid::set_log(
      [&](perseid_log_level, std::string_view message) { messages.emplace_back(message); },
      PERSEID_LOG_DEBUG);
  const perseid::Matmul matmul(context, {.m = 2, .n = 3, .k = 4});
  EXPECT_FALSE(messages.empty());
  perseid::set_log([](perseid_log_level, std::string_view) { throw 1; });  // is dropped
  (void)perseid::Matmul(context, {.m = 2, .n = 3, .k = 4});
  perseid::set_log({});
  const size_t before = messages.size();
  (void)perseid::Matmul(context, {.m = 2, .n = 3, .k = 4});
  EXPECT_EQ(messages.size(), before);
}

}  // namespace
