// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The GPT example: its gradients against central differences, its training, and that a run which
// was interrupted and resumed ends with the same bits.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data.hpp"
#include "gpt_tools.hpp"
#include "problems.hpp"
#include "progress.hpp"
#include "sampler.hpp"
#include "trainer.hpp"

namespace gpt {
namespace {

constexpr Config kTiny = {.layers = 2, .width = 24, .heads = 3, .context = 20, .batch = 2};

std::string temporary(const std::string& name) { return testing::TempDir() + name; }

template <class T>
std::vector<Real<T>> copy_of(const Weights<T>& weights) {
  const Real<T>* values = weights.real().read();
  return {values, values + weights.size()};
}

template <class T>
bool same_bits(const Weights<T>& weights, const std::vector<Real<T>>& other) {
  return other.size() == static_cast<size_t>(weights.size()) &&
         std::memcmp(weights.real().read(), other.data(), other.size() * sizeof(Real<T>)) == 0;
}

// Weights that are nowhere zero, so that every gradient has something to say.
void randomise(Weights<double>& weights, Threads& threads) {
  double* values = weights.real().write();
  for (int64_t i = 0; i < weights.size(); ++i) {
    values[i] = 0.6 * (random_uniform(5, static_cast<uint64_t>(i)) - 0.5);
  }
  weights.round(threads);
}

class Gradient : public testing::TestWithParam<double> {};

TEST_P(Gradient, AgreesWithCentralDifferences) {
  Config config = kTiny;
  config.dropout = GetParam();
  Machine machine(2);
  const Cut cut(config);
  Weights<double> weights(machine, cut.size);
  randomise(weights, machine.threads);
  Model<double> model(machine, config, config.batch, Model<double>::Use::kTraining);

  const auto text = rhyme();
  const auto rows = static_cast<size_t>(config.tokens());
  const std::vector<uint8_t> tokens(text.begin(), text.begin() + static_cast<int64_t>(rows));
  const std::vector<uint8_t> targets(text.begin() + 1,
                                     text.begin() + 1 + static_cast<int64_t>(rows));
  const Draw draw{.seed = 3, .number = 4};
  const auto loss = [&] {
    model.forward(weights, tokens.data(), draw);
    return model.loss(targets.data());
  };

  Shared<double> gradient(machine, cut.size);
  loss();
  model.backward(weights, tokens.data(), targets.data(), gradient, draw);
  const double step = 1e-5;
  for (const auto& matrix : cut.all()) {
    double largest = 0;
    for (uint64_t i = 0; i < 12; ++i) {
      const auto size = static_cast<uint64_t>(matrix.rows * matrix.columns);
      auto index = matrix.offset + static_cast<int64_t>(random_bits(11, i) % size);
      // Only the rows of bytes that occur have a gradient.
      if (matrix.name == "embedding") {
        index = tokens[static_cast<size_t>(i)] * config.width + static_cast<int64_t>(i);
      }
      double& weight = weights.real().change()[index];
      const double before = weight;
      weight = before + step;
      const double above = loss();
      weight = before - step;
      const double below = loss();
      weight = before;
      const double numeric = (above - below) / (2 * step);
      EXPECT_NEAR(gradient.read()[index], numeric, 1e-8 + 1e-6 * std::abs(numeric))
          << matrix.name << " at " << index - matrix.offset;
      largest = std::max(largest, std::abs(numeric));
    }
    EXPECT_GT(largest, 1e-6) << matrix.name << ": the differences show nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt, Gradient, testing::Values(0.0, 0.25));

template <class T>
class Training : public testing::Test {};
using Types = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Training, Types);

TYPED_TEST(Training, LowersTheLoss) {
  const Data data(rhyme(), 32);
  Machine machine(2);
  Trainer<TypeParam> trainer(machine, tiny_recipe(), data);
  const double before = trainer.validate(8);
  EXPECT_NEAR(before, 8, 1e-3);  // all bytes are equally likely at first
  while (trainer.steps_done() < trainer.recipe().steps) trainer.step();
  const double after = trainer.validate(8);
  EXPECT_LT(after, 4);
}

TYPED_TEST(Training, ResumesBitForBit) {
  const Data data(rhyme(), 32);
  const std::string path = temporary("gpt_resume_test.safetensors");
  Machine machine(2);
  Trainer<TypeParam> whole(machine, tiny_recipe(), data);
  for (int i = 0; i < 6; ++i) whole.step();

  Machine one_thread(1);
  Trainer<TypeParam> first(one_thread, tiny_recipe(), data);
  for (int i = 0; i < 3; ++i) first.step();
  first.save(path);

  const SavedRun saved = read_saved_run(path);
  EXPECT_EQ(saved.recipe.seed, 9u);
  EXPECT_EQ(saved.recipe.learning_rate, 3e-3);
  Trainer<TypeParam> second(machine, saved.recipe, data);
  second.load(path);
  EXPECT_EQ(second.steps_done(), 3);
  for (int i = 0; i < 3; ++i) second.step();
  EXPECT_TRUE(same_bits(second.weights(), copy_of(whole.weights())));
  EXPECT_EQ(second.validate(8), whole.validate(8));
  std::remove(path.c_str());
}

// Three ranks, one of which may leave midway; the others go on from there.
void expect_losses_of_one_rank(Parallel parallel) {
  const Data data(rhyme(), 32);
  Recipe recipe = tiny_recipe();
  recipe.model.dropout = parallel == Parallel::kTensor ? 0 : 0.2;
  constexpr int kSteps = 6;
  Machine machine(1);
  Trainer<double> alone(machine, recipe, data);
  std::vector<double> wanted;
  for (int i = 0; i < kSteps; ++i) wanted.push_back(alone.step());
  const double validated = alone.validate(8);
  for (const int32_t leaves : {-1, 1, 0}) {
    std::vector<std::vector<double>> losses(3);
    std::vector<int32_t> sizes(3);
    std::vector<std::thread> threads;
    for (perseid::Group& group : perseid::Group::threads(3)) {
      threads.emplace_back(
          [&, of_rank = std::make_shared<Ranks>(std::move(group), parallel)]() mutable {
            Ranks ranks(std::move(*of_rank));
            const int32_t rank = ranks.rank();
            Machine own(1);
            Trainer<double> trainer(own, recipe, data, &ranks);
            std::vector<double>& mine = losses[static_cast<size_t>(rank)];
            for (int i = 0; i < kSteps; ++i) {
              if (rank == leaves && i == 3) return;
              mine.push_back(trainer.step());
            }
            mine.push_back(trainer.validate(8));
            sizes[static_cast<size_t>(rank)] = ranks.size();
          });
    }
    for (std::thread& thread : threads) thread.join();
    for (int32_t rank = 0; rank < 3; ++rank) {
      const std::vector<double>& mine = losses[static_cast<size_t>(rank)];
      ASSERT_EQ(mine.size(), rank == leaves ? 3u : kSteps + 1u) << "rank " << rank;
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_NEAR(mine[i], i < kSteps ? wanted[i] : validated, 1e-9) << "rank " << rank;
      }
      if (rank != leaves) {
        EXPECT_EQ(sizes[static_cast<size_t>(rank)], leaves < 0 ? 3 : 2);
      }
    }
  }
}
TEST(Ranks, GiveTheLossesOfOne) { expect_losses_of_one_rank(Parallel::kTensor); }
// Rows of three ranks follow one another, those of two are zigzag.
TEST(Ranks, GiveTheLossesOfOneByPositions) { expect_losses_of_one_rank(Parallel::kContext); }

TEST(Checkpoint, RefusesAnotherTextAndOtherFiles) {
  const Data data(rhyme(), 32);
  auto longer = rhyme();
  longer.push_back('!');
  const Data other(longer, 32);
  const std::string path = temporary("gpt_refuse_test.safetensors");
  Machine machine(1);
  Trainer<float> trainer(machine, tiny_recipe(), data);
  trainer.save(path);
  Trainer<float> elsewhere(machine, tiny_recipe(), other);
  EXPECT_THROW(elsewhere.load(path), perseid::Error);

  const float number = 1;
  perseid::write_file(path, {{"x", perseid::Tensor(&number, {1})}});
  EXPECT_THROW(read_saved_run(path), perseid::Error);
  std::remove(path.c_str());
}

TEST(Sampler, ContinuesWhatItLearnt) {
  const Data data(rhyme(), 32);
  Machine machine(2);
  Recipe recipe = tiny_recipe();
  recipe.steps = 150;
  Trainer<float> trainer(machine, recipe, data);
  while (trainer.steps_done() < recipe.steps) trainer.step();
  Sampler<float> sampler(machine, recipe.model, 0.1);
  const std::string text = sampler.sample(trainer.weights(), "green bottles hang", 12, 1);
  EXPECT_EQ(text, "ing on the w");
  EXPECT_EQ(sampler.sample(trainer.weights(), "green bottles hang", 12, 1), text);
}

TEST(Data, SplitsAndDraws) {
  const auto text = rhyme();
  const Data data(text, 16);
  EXPECT_EQ(data.training_size(), data.size() - data.size() / 10);
  std::vector<uint8_t> tokens(64), targets(64), again(64);
  data.draw(1, 2, tokens, targets);
  data.draw(1, 2, again, targets);
  EXPECT_EQ(tokens, again);
  for (size_t i = 0; i + 1 < 16; ++i) EXPECT_EQ(tokens[i + 1], targets[i]);
  data.draw(1, 3, again, targets);
  EXPECT_NE(tokens, again);

  data.validation(0, std::span(tokens).first(16), std::span(targets).first(16));
  EXPECT_EQ(tokens[0], text[static_cast<size_t>(data.training_size())]);
  const int64_t last = data.validation_sequences() - 1;
  data.validation(last, std::span(tokens).first(16), std::span(targets).first(16));
  EXPECT_THROW(Data({text.begin(), text.begin() + 100}, 64), perseid::Error);
}

TEST(Config, RefusesWhatCannotBe) {
  EXPECT_NO_THROW(check(kTiny));
  for (auto change : {+[](Config& c) { c.layers = 0; }, +[](Config& c) { c.heads = 5; },
                      +[](Config& c) { c.dropout = 1; }, +[](Config& c) { c.width = 1 << 20; }}) {
    Config config = kTiny;
    change(config);
    EXPECT_THROW(check(config), perseid::Error);
  }
}

TEST(Threads, RunEveryTaskOnce) {
  for (int32_t workers : {1, 2, 5}) {
    Threads threads(workers);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> counts(static_cast<size_t>(round), 0);
      threads.for_ranges(round, 3, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
      });
      EXPECT_EQ(counts, std::vector<int>(static_cast<size_t>(round), 1));
    }
  }
}

TEST(Printable, ShowsTextAndNothingElse) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(printable("a b~\tc\nd"), "a b~\tc\nd");
  const std::string text = "\xc3\xa4\xe2\x82\xac\xf0\x9f\x8c\xa0";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("a\x1b[2Jb\x07"), "a" + bad + "[2Jb" + bad);
  EXPECT_EQ(printable("a\r\nb\rc\x7f"), "a\nb" + bad + "c" + bad);
  EXPECT_EQ(printable(std::string("\0", 1)), bad);
  EXPECT_EQ(printable("\x80"
                      "a\xff"),
            bad + "a" + bad);
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80"), bad + bad + bad + bad + bad);
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  // C1 control characters, and what turns the direction of writing.
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            bad + "2J");
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "abc\xe2\x81\xa6"),
            bad + "abc" + bad);
  // A character that was begun is no character.
  EXPECT_EQ(printable("a\xe2\x82"), "a");
  EXPECT_EQ(printable("a\xf0\x9f\x8c"), "a");
  EXPECT_EQ(printable("a\xe2"
                      "b"),
            "a" + bad + "b");
}

// Several products of a model as wide as the vocabulary have one shape.
TEST(Problems, AreWrittenOnce) {
  const std::string path = temporary("gpt_problems.jsonl");
  write_problems(path, {.layers = 1, .width = kVocabulary, .heads = 8, .context = 16, .batch = 1},
                 "f32");
  std::ifstream file(path);
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) EXPECT_TRUE(lines.insert(line).second) << line;
  EXPECT_EQ(lines.size(), 16u);
  std::remove(path.c_str());
}

TEST(ClockTime, SuitsItsLength) {
  EXPECT_EQ(clock_time(0.2), "0 s");
  EXPECT_EQ(clock_time(59.4), "59 s");
  EXPECT_EQ(clock_time(125), "2 min 5 s");
  EXPECT_EQ(clock_time(3 * 3600 + 65), "3 h 1 min");
}

}  // namespace
}  // namespace gpt
