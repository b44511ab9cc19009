// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <span>
#include <utility>

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
Trainer<T>::Part::Part(Machine& machine, const Recipe& recipe, const Ranks* ranks)
    : model(machine, recipe.model, recipe.model.batch, Model<T>::Use::kTraining, ranks),
      validation_model(machine, recipe.model, recipe.model.batch, Model<T>::Use::kInference, ranks),
      weights(machine, ranks == nullptr ? 0 : Cut(recipe.model, ranks->share(recipe.model)).size),
      gradient(machine, weights.size()) {}

template <class T>
Trainer<T>::Trainer(Machine& machine, const Recipe& recipe, const Data& data, Ranks* ranks)
    : machine_(machine),
      recipe_(recipe),
      data_(data),
      ranks_(ranks),
      cut_(recipe.model),
      weights_(machine, cut_.size),
      gradient_(machine, cut_.size),
      optimizer_(cut_),
      tokens_(static_cast<size_t>(recipe.model.tokens())),
      targets_(tokens_.size()) {
  if (ranks != nullptr) check(recipe.model, ranks->size(), ranks->parallel());
  initialise(machine.threads, cut_, recipe.seed, weights_.real().write());
  weights_.round(machine.threads);
  if (ranks == nullptr) {
    make_part();
    return;
  }
  try {
    catch_up();
  } catch (const perseid::Error& error) {
    if (!Ranks::says_lost(error)) throw;
    go_on(error);
  }
}

template <class T>
void Trainer<T>::make_part() {
  part_.reset();
  part_ = std::make_unique<Part>(machine_, recipe_, ranks_);
  take_weights();
}

// After every change of the weights.
template <class T>
void Trainer<T>::take_weights() {
  weights_.round(machine_.threads);
  if (ranks_ == nullptr) return;
  const R* all = weights_.real().read();
  R* own = part_->weights.real().write();
  for_each_run(
      recipe_.model, ranks_->share(recipe_.model), true,
      [&](int64_t from, int64_t to, int64_t count) { std::copy_n(all + from, count, own + to); });
  part_->weights.round(machine_.threads);
}

// Every rank gets the whole gradient: its own part and those of the others, and of what all have
// computed alike that of the first. Of positions, every part is a sum over some.
template <class T>
void Trainer<T>::sum_gradient() {
  if (ranks_ == nullptr) return;
  const R* own = part_->gradient.read();
  R* all = gradient_.write();
  std::fill_n(all, cut_.size, R(0));
  for_each_run(
      recipe_.model, ranks_->share(recipe_.model), ranks_->rank() == 0 || ranks_->divide_context(),
      [&](int64_t from, int64_t to, int64_t count) { std::copy_n(own + to, count, all + from); });
  ranks_->sum(all, cut_.size);
}

template <class T>
template <class Body>
double Trainer<T>::together(const Body& body) {
  if (ranks_ == nullptr) return body();
  // Others may have ended it before a rank was lost, and then say with what.
  for (const int64_t turn = turns_; turns_ == turn;) {
    try {
      result_ = body();
      ++turns_;
    } catch (const perseid::Error& error) {
      if (!Ranks::says_lost(error)) throw;
      go_on(error);
    }
  }
  return result_;
}

// Goes on with the ranks that are left and with those that replace others.
template <class T>
void Trainer<T>::go_on(const perseid::Error& error) {
  std::fprintf(stderr, "perseid-gpt: %s\n", error.what());
  for (bool done = false; !done;) {
    try {
      ranks_->go_on();
      catch_up();
      done = true;
    } catch (const perseid::Error& another) {
      if (!Ranks::says_lost(another)) throw;
    }
  }
  if (leads()) speak();
  std::fprintf(stderr, "perseid-gpt: going on with %d of the ranks after %lld steps\n",
               ranks_->size(), static_cast<long long>(steps_done_));
}

// In a new group: from where the furthest of its ranks is.
template <class T>
void Trainer<T>::catch_up() {
  const std::vector<double> mine = {static_cast<double>(turns_), static_cast<double>(steps_done_),
                                    static_cast<double>(recipe_.steps), result_, joined_};
  const std::vector<double> all = ranks_->gather(mine);
  const auto of = [&](int32_t rank) {
    return std::span(all).subspan(static_cast<size_t>(rank) * mine.size());
  };
  int32_t furthest = 0;
  bool differ = false;
  leader_ = 0;
  for (int32_t rank = 1; rank < ranks_->size(); ++rank) {
    if (of(rank)[0] > of(furthest)[0]) furthest = rank;
    if (of(rank)[4] < of(leader_)[4]) leader_ = rank;
    differ = differ || of(rank)[0] != of(0)[0];
  }
  if (differ) {
    R* const arrays[] = {weights_.real().change(), optimizer_.first(), optimizer_.second()};
    for (R* values : arrays) {
      if (ranks_->rank() != furthest) std::fill_n(values, cut_.size, R(0));
      ranks_->sum(values, cut_.size);
    }
    turns_ = static_cast<int64_t>(of(furthest)[0]);
    steps_done_ = static_cast<int64_t>(of(furthest)[1]);
    recipe_.steps = static_cast<int64_t>(of(furthest)[2]);
    result_ = of(furthest)[3];
  }
  joined_ = std::min(joined_, static_cast<double>(turns_));
  make_part();
}

template <class T>
typename Trainer<T>::Agreed Trainer<T>::agree(bool stop, int64_t steps) {
  if (ranks_ == nullptr) return {stop, steps};
  // As one number: the steps of the first rank, negative where any says stop.
  const double said = together([&] {
    const std::vector<double> all = ranks_->gather({stop ? 1.0 : 0.0, static_cast<double>(steps)});
    bool any = false;
    for (size_t rank = 0; 2 * rank < all.size(); ++rank) any = any || all[2 * rank] != 0;
    return any ? -1 - all[1] : all[1];
  });
  return {said < 0, static_cast<int64_t>(said < 0 ? -1 - said : said)};
}

template <class T>
double Trainer<T>::step() {
  return together([&] { return compute_step(); });
}

template <class T>
double Trainer<T>::compute_step() {
  const Draw draw{recipe_.seed, static_cast<uint64_t>(steps_done_)};
  data_.draw(recipe_.seed, steps_done_, tokens_, targets_);
  Model<T>& model = part_->model;
  model.forward(part_weights(), tokens_.data(), draw);
  const double loss = model.loss(targets_.data());
  model.backward(part_weights(), tokens_.data(), targets_.data(), part_gradient(), draw);
  sum_gradient();
  const double learning_rate =
      learning_rate_at(steps_done_, recipe_.steps, recipe_.warm_up, recipe_.learning_rate);
  optimizer_.update(machine_.threads, steps_done_, learning_rate, gradient_.read(),
                    weights_.real().change());
  take_weights();
  ++steps_done_;
  return loss / std::numbers::ln2;
}

template <class T>
double Trainer<T>::validate(int64_t most) {
  return together([&] { return compute_validation(most); });
}

template <class T>
double Trainer<T>::compute_validation(int64_t most) {
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
    Model<T>& model = part_->validation_model;
    model.forward(part_weights(), tokens_.data());
    total += model.loss(targets_.data(), here) * static_cast<double>(here);
  }
  return total / static_cast<double>(count) / std::numbers::ln2;
}

template class Trainer<float>;
template class Trainer<BFloat16>;
template class Trainer<double>;

}  // namespace gpt
