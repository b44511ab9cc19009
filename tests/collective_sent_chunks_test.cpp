// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chunks of keys that no query of a rank sees are not sent to it, counted in bytes.
#include <atomic>

#include "context_attention_tools.hpp"

extern std::atomic<int64_t> bytes_sent;  // of counting_sends.cpp

namespace {

using namespace context_attention_tools;

constexpr int64_t kRows = 256, kChunks = 4, kHeads = 2, kDim = 64;
constexpr int64_t kChunkBytes = kRows / kChunks * kHeads * 2 * kDim * 4;  // keys and values

// What all ranks of a group on several hosts send in its lifetime, besides what it takes to make
// it and the plan.
int64_t bytes_of_executions(int32_t ranks, const Mask& mask, bool backward) {
  const auto lifetime = [&](int executions) {
    const int64_t before = bytes_sent;
    on_threads(ranks, [&](const Group& group) {
      const ContextAttention plan(Context::cpu(1), group,
                                  {.attention = {.heads = kHeads,
                                                 .q_len = kRows,
                                                 .kv_len = kRows,
                                                 .head_dim = kDim,
                                                 .mask = mask,
                                                 .backward = backward},
                                   .placement = Sharding::kContiguous,
                                   .chunks = kChunks,
                                   .fusion = perseid::Fusion::kFused});
      const Matrix rows = Matrix::random({1, kRows, kHeads, kDim}, perseid::f32, 1);
      const Matrix lse = Matrix::random({1, kHeads, kRows}, perseid::f32, 2);
      const Matrix out = rows, grad_query = rows, grad_key = rows, grad_value = rows;
      Workspace workspace;
      plan.reserve(workspace);
      const Tensor given = rows.tensor();
      for (int i = 0; i < executions; ++i) {
        if (backward) {
          plan.backward(nullptr,
                        {.query = given,
                         .key = given,
                         .value = given,
                         .out = out.tensor(),
                         .lse = lse.tensor(),
                         .grad_out = given,
                         .grad_query = grad_query.tensor(),
                         .grad_key = grad_key.tensor(),
                         .grad_value = grad_value.tensor()},
                        workspace);
        } else {
          plan.forward(nullptr,
                       {.query = given,
                        .key = given,
                        .value = given,
                        .out = out.tensor(),
                        .lse = lse.tensor()},
                       workspace);
        }
      }
      group.barrier();
    });  // destroying the groups sends what is queued
    return bytes_sent - before;
  };
  const int64_t none = lifetime(0);
  return lifetime(1) - none;
}

void expect_chunks(int64_t bytes, int64_t chunks) {
  constexpr int64_t kWords = 16 << 10;  // signals and headers, at most
  EXPECT_GE(bytes, chunks * kChunkBytes);
  EXPECT_LT(bytes, chunks * kChunkBytes + kWords);
}

TEST(SentChunks, AreThoseThatAQuerySees) {
  const char* const before = std::getenv("PERSEID_SHARED_MEMORY");
  const std::string kept = before == nullptr ? "1" : before;
  setenv("PERSEID_SHARED_MEMORY", "0", 1);
  const Mask causal = perseid::causal_bottom_right();
  // Of each rank to each other one; under the diagonal, to those after it; by the window, the last
  // of the rank before, and two where it begins within the one before that.
  expect_chunks(bytes_of_executions(3, {}, false), 6 * kChunks);
  expect_chunks(bytes_of_executions(3, causal, false), 3 * kChunks);
  expect_chunks(bytes_of_executions(3, causal & perseid::window(40, -1), false), 2);
  expect_chunks(bytes_of_executions(3, causal & perseid::window(65, -1), false), 2 * 2);
  // Gradients, of the same size, go back for every chunk that came.
  expect_chunks(bytes_of_executions(2, causal & perseid::window(40, -1), true), 2);
  setenv("PERSEID_SHARED_MEMORY", kept.c_str(), 1);
}

}  // namespace
