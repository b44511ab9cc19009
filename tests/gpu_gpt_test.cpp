// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The GPT example on a GPU against itself on the CPU: the same seed gives the same masks of dropout
// and, within rounding, the same curve of the loss. Skipped where there is no GPU that takes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data.hpp"
#include "gpt_tools.hpp"
#include "sampler.hpp"

namespace gpt {
namespace {

// The loss of every step, bits per byte.
template <class T>
std::vector<double> curve(Machine& machine, const Recipe& recipe) {
  const Data data(rhyme(), recipe.model.context);
  Trainer<T> trainer(machine, recipe, data);
  std::vector<double> losses;
  while (trainer.steps_done() < recipe.steps) losses.push_back(trainer.step());
  losses.push_back(trainer.validate(8));
  return losses;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

class GpuGpt : public testing::Test {
 protected:
  void SetUp() override {
    try {
      machine_ = std::make_unique<Machine>(2, 0);
      const Recipe recipe = tiny_recipe();
      Model<BFloat16>(*machine_, recipe.model, 1, Model<BFloat16>::Use::kTraining);
    } catch (const perseid::Error& error) {
      if (error.status() != PERSEID_UNSUPPORTED) throw;
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<Machine> machine_;
};

// The effect of rounding on a run is measured as the difference of f32 and bf16 on the CPU.
TEST_F(GpuGpt, LearnsAsOnTheCpu) {
  Recipe recipe = tiny_recipe();
  recipe.steps = 40;
  Machine cpu(2);
  const auto on_gpu = curve<BFloat16>(*machine_, recipe);
  const auto on_cpu = curve<BFloat16>(cpu, recipe);
  const double rounding = largest_difference(on_cpu, curve<float>(cpu, recipe));
  const double apart = largest_difference(on_gpu, on_cpu);
  std::printf("curves of the loss: GPU and CPU differ by %.4f, bf16 and f32 by %.4f\n", apart,
              rounding);
  EXPECT_LE(apart, 2 * rounding + 1e-3);

  // The comparison would see other masks.
  recipe.model.dropout = 0;
  EXPECT_GT(largest_difference(on_gpu, curve<BFloat16>(*machine_, recipe)), 2 * apart);
}

TEST_F(GpuGpt, RepeatsItsBits) {
  EXPECT_EQ(curve<BFloat16>(*machine_, tiny_recipe()), curve<BFloat16>(*machine_, tiny_recipe()));
}

TEST_F(GpuGpt, WritesText) {
  const Data data(rhyme(), 32);
  Recipe recipe = tiny_recipe();
  recipe.steps = 150;
  Trainer<BFloat16> trainer(*machine_, recipe, data);
  while (trainer.steps_done() < recipe.steps) trainer.step();
  Sampler<BFloat16> sampler(*machine_, recipe.model, 0.1);
  EXPECT_EQ(sampler.sample(trainer.weights(), "green bottles hang", 12, 1), "ing on the w");
}

}  // namespace
}  // namespace gpt
