// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The floating-point environment of the caller and of its executor's threads has no effect on any
// result, and the library leaves it as it was: for every operation, on the caller's thread, the own
// pool and threads of the caller.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "perseid/perseid.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__) && !defined(__clang__)
#define PERSEID_TEST_FPCR
#endif

namespace {

// Rounding upward; where it can be set: subnormals flushed, and a trap for invalid operations.
#if defined(__x86_64__)
constexpr uint32_t kHostile = (0x1f80 & ~0x80u) | 0x8000 | 0x4000 | 0x40;
uint32_t environment() { return _mm_getcsr(); }
void set_environment(uint32_t value) { _mm_setcsr(value); }
#elif defined(PERSEID_TEST_FPCR)
constexpr uint32_t kHostile = 1u << 24 | 1u << 22;  // traps are optional on Arm
uint32_t environment() { return __builtin_aarch64_get_fpcr(); }
void set_environment(uint32_t value) { __builtin_aarch64_set_fpcr(value); }
#else
constexpr uint32_t kHostile = FE_UPWARD;
uint32_t environment() { return static_cast<uint32_t>(std::fegetround()); }
void set_environment(uint32_t value) { std::fesetround(static_cast<int>(value)); }
#endif

// Threads that compute in the hostile environment.
class HostileExecutor final : public perseid::Executor {
 public:
  int32_t workers() const noexcept override { return 2; }
  void run(int64_t tasks, Task task) noexcept override {
    std::thread threads[2];
    for (int32_t worker = 0; worker < 2; ++worker)
      threads[worker] = std::thread([=] {
        set_environment(kHostile);
        for (int64_t t = worker; t < tasks; t += 2) task(t, worker);
      });
    for (std::thread& thread : threads) thread.join();
  }
};

// Values of all magnitudes down to subnormal products.
std::vector<float> spread(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  uint64_t state = seed;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float uniform = static_cast<float>(static_cast<int64_t>(state) >> 40) * 0x1p-23f;
    value = std::ldexp(uniform, -static_cast<int>(state >> 20 & 63));
  }
  return values;
}

// The outputs of every operation, one after the other.
struct Everything {
  static constexpr int64_t kBatch = 2, kHeads = 2, kLength = 70, kDim = 24, kValues = 20;
  static constexpr int64_t kRows = 3, kColumns = 4000;
  std::vector<float> query = spread(kBatch * kLength * kHeads * kDim, 1),
                     key = spread(kBatch * kLength * kHeads * kDim, 2),
                     value = spread(kBatch * kLength * kHeads * kValues, 3),
                     grad = spread(kBatch * kLength * kHeads * kValues, 4),
                     scores = spread(kRows * kColumns, 5);
  std::vector<float> out = std::vector<float>(value.size()), lse,
                     dq = std::vector<float>(query.size()), dk = std::vector<float>(key.size()),
                     dv = std::vector<float>(value.size()),
                     c = std::vector<float>(kLength * kLength),
                     y = std::vector<float>(scores.size()), dx = std::vector<float>(scores.size());

  Everything() : lse(kBatch * kHeads * kLength) {
    for (float& score : scores) score *= 200;  // weights down to subnormals
    // A row without a finite maximum subtracts infinities.
    for (int64_t j = 0; j < kColumns; ++j) scores[static_cast<size_t>(j)] = -INFINITY;
    for (float& v : value) v *= 1e-37f;
  }

  void run(const perseid::Context& context) {
    using perseid::Tensor;
    perseid::Workspace workspace;
    const auto tensor = [](std::vector<float>& data, int64_t dim) {
      return Tensor(data.data(), {kBatch, kLength, kHeads, dim});
    };
    const perseid::Attention attention(context, {.batch = kBatch,
                                                 .heads = kHeads,
                                                 .q_len = kLength,
                                                 .kv_len = kLength,
                                                 .head_dim = kDim,
                                                 .value_dim = kValues,
                                                 .mask = perseid::causal_top_left(),
                                                 .dropout = 0.3,
                                                 .backward = true});
    attention.reserve(workspace);
    const Tensor logsumexp(lse.data(), {kBatch, kHeads, kLength});
    attention.forward(nullptr,
                      {.query = tensor(query, kDim),
                       .key = tensor(key, kDim),
                       .value = tensor(value, kValues),
                       .out = tensor(out, kValues),
                       .lse = logsumexp,
                       .seed = 7},
                      workspace);
    attention.backward(nullptr,
                       {.query = tensor(query, kDim),
                        .key = tensor(key, kDim),
                        .value = tensor(value, kValues),
                        .out = tensor(out, kValues),
                        .lse = logsumexp,
                        .grad_out = tensor(grad, kValues),
                        .grad_query = tensor(dq, kDim),
                        .grad_key = tensor(dk, kDim),
                        .grad_value = tensor(dv, kValues),
                        .seed = 7},
                       workspace);
    const perseid::Matmul matmul(
        context, {.m = kLength, .n = kLength, .k = kDim, .alpha = 1.0 / 3, .beta = 0});
    matmul.reserve(workspace);
    matmul.execute(nullptr,
                   {.a = Tensor(query.data(), {kLength, kDim}),
                    .b = Tensor(key.data(), {kLength, kDim}).transposed(),
                    .c = Tensor(c.data(), {kLength, kLength})},
                   workspace);
    const perseid::Softmax softmax(context, {.shape = {kRows, kColumns}, .dim = -1, .scale = 0.7});
    softmax.reserve(workspace);
    const Tensor shaped(scores.data(), {kRows, kColumns}), result(y.data(), {kRows, kColumns});
    softmax.forward(nullptr, {.input = shaped, .output = result}, workspace);
    softmax.backward(nullptr,
                     {.grad_output = shaped,
                      .output = result,
                      .grad_input = Tensor(dx.data(), {kRows, kColumns})},
                     workspace);
  }
  std::vector<const std::vector<float>*> outputs() const {
    return {&out, &lse, &dq, &dk, &dv, &c, &y, &dx};
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(FloatingPointEnvironment, OfTheCallerChangesNothingAndStays) {
  Everything want;
  want.run(perseid::Context::cpu(1));
  HostileExecutor hostile;
  const std::function<perseid::Context()> contexts[] = {
      [] { return perseid::Context::cpu(1); }, [] { return perseid::Context::cpu(3); },
      [&] { return perseid::Context::cpu(hostile); }};
  for (size_t i = 0; i < std::size(contexts); ++i) {
    SCOPED_TRACE(i);
    for (const bool born_hostile : {false, true}) {
      Everything got;
      const uint32_t before = environment();
      if (born_hostile) set_environment(kHostile);
      const perseid::Context context = contexts[i]();
      set_environment(kHostile);
      got.run(context);
      const uint32_t after = environment();
      set_environment(before);
      EXPECT_EQ(after, kHostile);
      for (size_t o = 0; o < want.outputs().size(); ++o)
        EXPECT_TRUE(same_bits(*got.outputs()[o], *want.outputs()[o])) << "output " << o;
    }
  }
}

// The test would prove nothing if the environment did not reach arithmetic.
TEST(FloatingPointEnvironment, IsReallySet) {
  volatile float one = 1, tiny = 1e-30f, small = 1e-38f, tenth = 0.1f;
  const uint32_t before = environment();
  const float nearest = one + tiny, kept = small * tenth;
  set_environment(kHostile);
  const volatile float upward = one + tiny, flushed = small * tenth;
  set_environment(before);
  EXPECT_EQ(nearest, 1);
  EXPECT_GT(upward, 1);
  EXPECT_GT(kept, 0);
#if defined(__x86_64__) || defined(PERSEID_TEST_FPCR)
  EXPECT_EQ(flushed, 0);
#endif
}

}  // namespace
