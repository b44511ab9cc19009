// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The model's shape and its weights: one array, cut into named matrices. Gradients and the
// optimizer's moments are arrays of the same cut.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "elementwise.hpp"
#include "machine.hpp"
#include "threads.hpp"
#include "types.hpp"

namespace gpt {

inline constexpr int64_t kVocabulary = 256;  // a token is a byte

struct Config {
  int64_t layers = 4;
  int64_t width = 256;
  int64_t heads = 8;
  int64_t context = 128;
  int64_t batch = 4;   // sequences in a training step
  double dropout = 0;  // of attention, while training

  int64_t head_dim() const { return width / heads; }
  int64_t tokens() const { return batch * context; }
};

// What the ranks of a run divide: heads and hidden units, or the positions of every sequence.
enum class Parallel { kTensor, kContext };

// Throws perseid::Error, with a sentence, where a number is out of range.
void check(const Config& config, int32_t ranks = 1, Parallel parallel = Parallel::kTensor);

// The heads and hidden units of every layer that one rank of a run computes.
struct Share {
  int64_t first_head = 0, heads = 0, first_hidden = 0, hidden = 0;
};
// A run of one rank has all.
Share share_of(const Config& config, int32_t rank = 0, int32_t ranks = 1);

struct Matrix {
  std::string name;
  int64_t rows = 0;     // inputs
  int64_t columns = 0;  // outputs
  int64_t offset = 0;   // of the first element in the array
  double spread = 0;    // standard deviation to begin with
  double rate = 1;      // how much faster than the others it learns

  int64_t size() const { return rows * columns; }
};

struct LayerMatrices {
  Matrix qkv, projection, up, down;
};

struct Cut {
  explicit Cut(const Config& config) : Cut(config, share_of(config)) {}
  // What a rank computes with: its columns of qkv and up, its rows of projection and down.
  Cut(const Config& config, const Share& share);
  std::vector<Matrix> all() const;  // in the order of the array

  Matrix embedding;
  std::vector<LayerMatrices> layers;
  Matrix head;
  int64_t size = 0;
};

// body(offset in Cut(config), offset in Cut(config, share), count) for what the two have in common,
// run by run. `shared`: also what every rank has, embedding and head.
template <class Body>
void for_each_run(const Config& config, const Share& share, bool shared, const Body& body) {
  const Cut all(config), own(config, share);
  const auto columns = [&](const Matrix& from, const Matrix& to, int64_t parts, int64_t first) {
    const int64_t width = from.columns / parts, count = to.columns / parts;
    for (int64_t row = 0; row < from.rows; ++row)
      for (int64_t part = 0; part < parts; ++part)
        body(from.offset + row * from.columns + part * width + first,
             to.offset + row * to.columns + part * count, count);
  };
  const auto rows = [&](const Matrix& from, const Matrix& to, int64_t first) {
    body(from.offset + first * from.columns, to.offset, to.size());
  };
  const int64_t first = share.first_head * config.head_dim();
  for (size_t i = 0; i < all.layers.size(); ++i) {
    const LayerMatrices &from = all.layers[i], &to = own.layers[i];
    columns(from.qkv, to.qkv, 3, first);
    rows(from.projection, to.projection, first);
    columns(from.up, to.up, 1, share.first_hidden);
    rows(from.down, to.down, share.first_hidden);
  }
  if (!shared) return;
  rows(all.embedding, own.embedding, 0);
  rows(all.head, own.head, 0);
}

// Fills `weights` with normal numbers drawn from (seed, index).
template <class R>
void initialise(Threads& threads, const Cut& cut, uint64_t seed, R* weights);

// The weights in Real<T>, which the optimizer moves, and rounded to T, which the matmuls read.
template <class T>
class Weights {
 public:
  Weights(Machine& machine, int64_t size) : real_(machine, size) {
    if constexpr (!kSame) rounded_ = Shared<T>(machine, size);
  }
  Shared<Real<T>>& real() { return real_; }
  const Shared<Real<T>>& real() const { return real_; }
  const Shared<T>& rounded() const {
    if constexpr (kSame) {
      return real_;
    } else {
      return rounded_;
    }
  }
  int64_t size() const { return real_.size(); }
  // To be called after every change of real().
  void round(Threads& threads) {
    if constexpr (!kSame) convert(threads, real_.read(), size(), rounded_.write());
  }

 private:
  static constexpr bool kSame = std::is_same_v<T, Real<T>>;
  Shared<Real<T>> real_;
  Shared<T> rounded_;
};

// A well-mixed 64-bit number for every (seed, index): random numbers without a state to keep.
uint64_t random_bits(uint64_t seed, uint64_t index);
// In [0, 1).
double random_uniform(uint64_t seed, uint64_t index);

}  // namespace gpt
