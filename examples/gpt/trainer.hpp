// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A training run: everything that a step changes, and everything that decides what it does. Two
// runs of the same recipe on the same text end with the same bits, whatever the number of threads,
// and however often they were interrupted and resumed.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "data.hpp"
#include "model.hpp"
#include "optimizer.hpp"

namespace gpt {

// What decides a run. Random numbers come from (seed, step), so they need no state.
struct Recipe {
  Config model;
  double learning_rate = 1e-3;
  int64_t warm_up = 40;
  int64_t steps = 0;  // of the whole run; 0: not known yet
  uint64_t seed = 1;
};

// Throws perseid::Error, with a sentence, where a number is out of range.
void check(const Recipe& recipe);

template <class T>
class Trainer {
 public:
  // With ranks, every one has a trainer, and all call the same functions. Where one is lost, the
  // others do again what was not done on all of them, and go on. One that replaces it gets what the
  // others have, and is to call what they call then (turns()).
  Trainer(Machine& machine, const Recipe& recipe, const Data& data, Ranks* ranks = nullptr);

  // One step. Returns the loss on its batch, in bits per byte.
  double step();
  // The mean loss on the validation part, bits per byte: of at most `most` sequences, spread
  // evenly.
  double validate(int64_t most);
  // What the first rank says, and whether any says stop.
  struct Agreed {
    bool stop;
    int64_t steps;
  };
  Agreed agree(bool stop, int64_t steps);

  // With ranks: how many calls of step(), validate() and agree() are done.
  int64_t turns() const { return turns_; }
  // Whether this is the first of the ranks that have been there longest, or the only one.
  bool leads() const { return ranks_ == nullptr || ranks_->rank() == leader_; }
  int64_t steps_done() const { return steps_done_; }
  const Recipe& recipe() const { return recipe_; }
  void set_steps(int64_t steps) { recipe_.steps = steps; }
  const Weights<T>& weights() const { return weights_; }

  // Writes everything to a safetensors file; load() reads it back into a trainer of the same
  // recipe.
  void save(const std::string& path) const;
  // Throws where save() would fail by now: the name, the folder, or the room that it takes.
  void try_save(const std::string& path) const;
  void load(const std::string& path);

 private:
  using R = Real<T>;

  // What a rank computes with, made anew when others are left.
  struct Part {
    Part(Machine& machine, const Recipe& recipe, const Ranks* ranks);

    Model<T> model, validation_model;
    Weights<T> weights;  // of the rank's Cut; empty without ranks
    Shared<R> gradient;
  };
  void make_part();
  const Weights<T>& part_weights() const { return ranks_ == nullptr ? weights_ : part_->weights; }
  Shared<R>& part_gradient() { return ranks_ == nullptr ? gradient_ : part_->gradient; }
  void take_weights();
  void sum_gradient();

  double compute_step();
  double compute_validation(int64_t most);
  // body(), once on all ranks.
  template <class Body>
  double together(const Body& body);
  void go_on(const perseid::Error& error);
  void catch_up();

  Machine& machine_;
  Recipe recipe_;
  const Data& data_;
  Ranks* ranks_;
  Cut cut_;
  Weights<T> weights_;
  Shared<R> gradient_;
  AdamW<R> optimizer_;
  std::unique_ptr<Part> part_;
  std::vector<uint8_t> tokens_, targets_;
  int64_t steps_done_ = 0;
  // With ranks: how often together() has ended, and with what.
  int64_t turns_ = 0;
  double result_ = 0;
  double joined_ = std::numeric_limits<double>::infinity();  // after so many
  int32_t leader_ = 0;
};

// What load() needs to be given a trainer for: the recipe and the dtype that a file was saved with.
struct SavedRun {
  Recipe recipe;
  std::string dtype;
};
SavedRun read_saved_run(const std::string& path);

}  // namespace gpt
