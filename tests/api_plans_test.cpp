// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What facts and explanations list, item by item, and into how many tasks executions are cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "api_test_tools.hpp"
#include "cpu/kernel_table.hpp"
#include "op/tensor_argument.hpp"

namespace {

// For a workspace.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes) : memory_(bytes + 64) {}
  std::byte* data() {
    return memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64);
  }

 private:
  std::vector<std::byte> memory_;
};

TEST(Facts, ListEveryInstructionSetAndCache) {
  Context context;
  const char* json = nullptr;
  ASSERT_EQ(perseid_context_facts(context.get(), &json), PERSEID_OK);
  const std::string facts = json;
  std::string isas = "\"isas\": [";
  for (const perseid::internal::cpu::KernelTable* table :
       perseid::internal::cpu::available_kernel_tables())
    isas += (isas.back() == '[' ? "\"" : ", \"") + std::string(table->isa) + '"';
  EXPECT_NE(facts.find(isas + "]"), std::string::npos) << facts;
}

TEST(Explanation, NamesEveryGradient) {
  Context context;
  for (uint32_t gradients = 1; gradients < 16; ++gradients) {
    auto desc = SmallAttention::describe(4);
    desc.bias = 1;
    std::fill_n(desc.bias_shape, 4, 1);
    desc.gradients = gradients;
    Plan plan;
    ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
        << perseid_last_error();
    std::string names;
    const auto add = [&](uint32_t bit, const char* name) {
      if ((gradients & bit) != 0) names += (names.empty() ? "" : " ") + std::string(name);
    };
    add(PERSEID_GRAD_QUERY, "query");
    add(PERSEID_GRAD_KEY, "key");
    add(PERSEID_GRAD_VALUE, "value");
    add(PERSEID_GRAD_BIAS, "bias");
    const char* json = nullptr;
    ASSERT_EQ(perseid_plan_explain_json(plan.get(), &json), PERSEID_OK);
    EXPECT_NE(std::string(json).find("\"gradients\": \"" + names + "\""), std::string::npos)
        << json;
  }
}

// Dropout's counter has room for 2^32 columns.
TEST(Limits, DropoutOfColumns) {
  Context context;
  auto desc = SmallAttention::describe(4);
  desc.heads = desc.kv_heads = desc.batch = desc.q_len = 1;
  desc.dropout = 0.5;
  desc.kv_len = int64_t{1} << 32;
  Plan most, more;
  EXPECT_EQ(perseid_attention_plan_create(context.get(), &desc, most.out()), PERSEID_OK)
      << perseid_last_error();
  ++desc.kv_len;
  EXPECT_EQ(perseid_attention_plan_create(context.get(), &desc, more.out()),
            PERSEID_INVALID_ARGUMENT);
}

TEST(Workspace, OfTheReferenceIsOfItsDirection) {
  Context context;
  auto desc = SmallAttention::describe(4);
  desc.gradients = PERSEID_GRAD_QUERY;
  desc.implementation = "cpu:reference";
  Plan plan;
  ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
      << perseid_last_error();
  size_t forward = 0, backward = 0;
  ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &forward), PERSEID_OK);
  ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_BACKWARD, &backward), PERSEID_OK);
  EXPECT_LT(forward, backward);
}

// The view that kernels get has every dimension.
TEST(Broadcast, ViewsHaveEveryDimension) {
  namespace op = perseid::internal::op;
  const op::Extent extents[] = {{"batch", 2}, {"heads", 4}, {"q_len", 3}, {"kv_len", 5}};
  uint8_t mask[15] = {};
  const Tensor given(mask, {3, 5}), column(mask, {3, 1});
  op::ArgumentReader reader("a test");
  const auto whole =
      reader.read_broadcast("visible", given.dl(), perseid::internal::DType::kBool, extents);
  const auto of_column =
      reader.read_broadcast("visible", column.dl(), perseid::internal::DType::kBool, extents);
  ASSERT_TRUE(reader.ok());
  const int64_t strides[] = {0, 0, 5, 1}, of_columns[] = {0, 0, 1, 0};
  for (const auto& view : {whole, of_column}) ASSERT_EQ(view.rank, 4);
  for (size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(whole.shape[d], extents[d].size);
    EXPECT_EQ(whole.stride[d], strides[d]);
    EXPECT_EQ(of_column.shape[d], extents[d].size);
    EXPECT_EQ(of_column.stride[d], of_columns[d]);
  }
}

// A mask of [q_len, kv_len] is one of [1, 1, q_len, kv_len].
TEST(Broadcast, FewerDimensionsMeanTheSame) {
  constexpr int64_t kLength = 4;
  Context context;
  for (const char* implementation : {"cpu:decode", "cpu:tiled", "cpu:reference"}) {
    SmallAttention with(context, kLength);
    auto desc = SmallAttention::describe(kLength);
    desc.implementation = implementation;
    desc.visible = 1;
    Plan plan;
    ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
        << perseid_last_error();
    size_t bytes = 0;
    ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
    AlignedMemory workspace(bytes);
    std::vector<uint8_t> mask(kLength * kLength);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 1;
    std::vector<float> results[2];
    for (const bool few : {false, true}) {
      std::vector<float> out(with.out.size());
      const Tensor q = with.queries(with.query), k = with.keys(with.key), v = with.keys(with.value),
                   o = with.queries(out),
                   visible(mask.data(), few ? perseid::Dims{kLength, kLength}
                                            : perseid::Dims{1, 1, kLength, kLength});
      auto args = sized<perseid_attention_forward_args>();
      args.query = q.dl();
      args.key = k.dl();
      args.value = v.dl();
      args.out = o.dl();
      args.visible = visible.dl();
      ASSERT_EQ(perseid_attention_forward(plan.get(), &args, workspace.data(), bytes, nullptr),
                PERSEID_OK)
          << implementation << ": " << perseid_last_error();
      results[few ? 1 : 0] = out;
    }
    EXPECT_EQ(results[0], results[1]) << implementation;
  }
}

// The most tasks of one run. They are run in turn, as worker 0.
struct CountingExecutor {
  int64_t most = 0;
  static void run(void* user, int64_t tasks, perseid_task_fn fn, void* state) {
    auto* self = static_cast<CountingExecutor*>(user);
    self->most = std::max(self->most, tasks);
    for (int64_t task = 0; task < tasks; ++task) fn(state, task, 0);
  }
};

TEST(Tasks, OfSoftmaxAreEnoughForManyThreads) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1, 1 << 20}, std::vector<int64_t>{4, 1 << 18},
        std::vector<int64_t>{1 << 10, 1 << 10}, std::vector<int64_t>{1 << 18, 4}}) {
    CountingExecutor executor;
    auto options = sized<perseid_context_options>();
    options.executor = {&CountingExecutor::run, &executor, 4};
    Context context(options);
    auto desc = sized<perseid_softmax_desc>();
    desc.dtype = PERSEID_F32;
    desc.ndim = 2;
    desc.dim = 1;
    std::copy(shape.begin(), shape.end(), desc.shape);
    Plan plan;
    ASSERT_EQ(perseid_softmax_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
    size_t bytes = 0;
    ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
    AlignedMemory workspace(bytes);
    std::vector<float> x = waves(1 << 20, 0.7f), y(1 << 20);
    const Tensor in(x.data(), {shape[0], shape[1]}), out(y.data(), {shape[0], shape[1]});
    auto args = sized<perseid_softmax_forward_args>();
    args.input = in.dl();
    args.output = out.dl();
    ASSERT_EQ(perseid_softmax_forward(plan.get(), &args, workspace.data(), bytes, nullptr),
              PERSEID_OK)
        << perseid_last_error();
    EXPECT_GE(executor.most, 8) << shape[0] << " x " << shape[1];
    EXPECT_LE(executor.most, 1024) << shape[0] << " x " << shape[1];
  }
}

}  // namespace
