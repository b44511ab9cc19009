// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gpt {

void check(const Recipe& recipe) {
  check(recipe.model);
  const double rate = recipe.learning_rate;
  if (!std::isfinite(rate) || rate < 0) {
    throw perseid::Error(
        PERSEID_INVALID_ARGUMENT,
        "the learning rate must be finite and at least 0, got " + std::to_string(rate));
  }
  if (recipe.steps < 0 || recipe.warm_up < 0) {
    throw perseid::Error(PERSEID_INVALID_ARGUMENT, "steps and warm-up must be at least 0, got " +
                                                       std::to_string(recipe.steps) + " and " +
                                                       std::to_string(recipe.warm_up));
  }
}

template <class T>
Trainer<T>::Trainer(Machine& machine, const Recipe& recipe, const Data& data)
    : machine_(machine),
      recipe_(recipe),
      data_(data),
      cut_(recipe.model),
      weights_(machine, cut_.size),
      gradient_(machine, cut_.size),
      optimizer_(cut_),
      model_(machine, recipe.model, recipe.model.batch, Model<T>::Use::kTraining),
      validation_model_(machine, recipe.model, recipe.model.batch, Model<T>::Use::kInference),
      tokens_(static_cast<size_t>(recipe.model.tokens())),
      targets_(tokens_.size()) {
  initialise(machine.threads, cut_, recipe.seed, weights_.real().write());
  weights_.round(machine.threads);
}

template <class T>
double Trainer<T>::step() {
  const Draw draw{recipe_.seed, static_cast<uint64_t>(steps_done_)};
  data_.draw(recipe_.seed, steps_done_, tokens_, targets_);
  model_.forward(weights_, tokens_.data(), draw);
  const double loss = model_.loss(targets_.data());
  model_.backward(weights_, tokens_.data(), targets_.data(), gradient_, draw);
  const double learning_rate =
      learning_rate_at(steps_done_, recipe_.steps, recipe_.warm_up, recipe_.learning_rate);
  optimizer_.update(machine_.threads, steps_done_, learning_rate, gradient_.read(),
                    weights_.real().change());
  weights_.round(machine_.threads);
  ++steps_done_;
  return loss / std::numbers::ln2;
}

template <class T>
double Trainer<T>::validate(int64_t most) {
  const int64_t available = data_.validation_sequences();
  const int64_t count = std::min(most, available);
  const auto context = static_cast<size_t>(recipe_.model.context);
  double total = 0;
  for (int64_t first = 0; first < count; first += recipe_.model.batch) {
    const int64_t here = std::min(recipe_.model.batch, count - first);
    for (int64_t i = 0; i < recipe_.model.batch; ++i) {
      // Sequences that fill up the last batch are not counted.
      const int64_t index = std::min(first + i, count - 1) * available / count;
      const size_t at = static_cast<size_t>(i) * context;
      data_.validation(index, std::span(tokens_).subspan(at, context),
                       std::span(targets_).subspan(at, context));
    }
    validation_model_.forward(weights_, tokens_.data());
    total += validation_model_.loss(targets_.data(), here * recipe_.model.context) *
             static_cast<double>(here);
  }
  return total / static_cast<double>(count) / std::numbers::ln2;
}

template class Trainer<float>;
template class Trainer<BFloat16>;
template class Trainer<double>;

}  // namespace gpt
