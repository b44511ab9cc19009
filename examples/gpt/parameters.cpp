// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "parameters.hpp"

#include <cmath>
#include <numbers>

namespace gpt {

void check(const Config& config, int32_t ranks, Parallel parallel) {
  const auto require = [](bool holds, const std::string& sentence) {
    if (!holds) throw perseid::Error(PERSEID_INVALID_ARGUMENT, sentence);
  };
  const auto within = [&](const char* name, int64_t value, int64_t largest) {
    require(1 <= value && value <= largest, std::string(name) + " must be from 1 to " +
                                                std::to_string(largest) + ", got " +
                                                std::to_string(value));
  };
  within("layers", config.layers, 1000);
  within("width", config.width, 1 << 16);
  within("heads", config.heads, config.width);
  within("context", config.context, 1 << 20);
  within("batch", config.batch, 1 << 16);
  require(config.width % (2 * config.heads) == 0,
          "width must be a multiple of twice the heads, since rotary positions turn pairs; got "
          "width " +
              std::to_string(config.width) + " and heads " + std::to_string(config.heads));
  const bool tensor = parallel == Parallel::kTensor;
  const int64_t most = tensor ? config.heads : config.context;
  require(ranks <= most, std::string("ranks must be at most as many as ") +
                             (tensor ? "heads" : "positions of the context") + ", got " +
                             std::to_string(ranks) + " and " + std::to_string(most));
  // Masks go by the number of a head among those of its attention.
  require(ranks == 1 || !tensor || config.dropout == 0,
          "dropout must be 0 with ranks that divide heads, got " + std::to_string(config.dropout));
  require(config.dropout >= 0 && config.dropout < 1,
          "dropout must be in [0, 1), got " + std::to_string(config.dropout));
}

Share share_of(const Config& config, int32_t rank, int32_t ranks) {
  const auto from = [&](int64_t size, int64_t r) { return r * size / ranks; };
  const int64_t hidden = 4 * config.width;
  return {.first_head = from(config.heads, rank),
          .heads = from(config.heads, rank + 1) - from(config.heads, rank),
          .first_hidden = from(hidden, rank),
          .hidden = from(hidden, rank + 1) - from(hidden, rank)};
}

Cut::Cut(const Config& config, const Share& share) {
  const auto take = [this](std::string name, int64_t rows, int64_t columns, double spread,
                           double rate = 1) {
    const Matrix matrix{std::move(name), rows, columns, size, spread, rate};
    size += matrix.size();
    return matrix;
  };
  // The two matrices that face bytes learn ten times as fast: most of their rows see few bytes of a
  // step, and until they say something, what lies between learns nothing.
  constexpr double kByteRate = 10;
  const int64_t width = config.width, attended = share.heads * config.head_dim();
  const double spread = 1 / std::sqrt(static_cast<double>(width));
  embedding = take("embedding", kVocabulary, width, 0.3, kByteRate);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string prefix = "layer" + std::to_string(i) + ".";
    LayerMatrices layer;
    layer.qkv = take(prefix + "qkv", width, 3 * attended, spread);
    // What adds to the residual stream begins at zero: every layer begins as the identity.
    layer.projection = take(prefix + "projection", attended, width, 0);
    layer.up = take(prefix + "up", width, share.hidden, spread);
    layer.down = take(prefix + "down", share.hidden, width, 0);
    layers.push_back(layer);
  }
  // All bytes equally likely at first: 8 bits per byte.
  head = take("head", width, kVocabulary, 0, kByteRate);
}

std::vector<Matrix> Cut::all() const {
  std::vector<Matrix> matrices{embedding};
  for (const auto& layer : layers) {
    matrices.insert(matrices.end(), {layer.qkv, layer.projection, layer.up, layer.down});
  }
  matrices.push_back(head);
  return matrices;
}

template <class R>
void initialise(Threads& threads, const Cut& cut, uint64_t seed, R* weights) {
  for (const auto& matrix : cut.all()) {
    const auto offset = static_cast<uint64_t>(matrix.offset);
    threads.for_ranges(matrix.size(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t index = 2 * (offset + static_cast<uint64_t>(i));
        const double radius = std::sqrt(-2 * std::log(1 - random_uniform(seed, index)));
        const double angle = 2 * std::numbers::pi * random_uniform(seed, index + 1);
        weights[matrix.offset + i] = static_cast<R>(matrix.spread * radius * std::cos(angle));
      }
    });
  }
}

template void initialise(Threads&, const Cut&, uint64_t, float*);
template void initialise(Threads&, const Cut&, uint64_t, double*);

uint64_t random_bits(uint64_t seed, uint64_t index) {
  // Two rounds of a multiply-and-shift mixer, one for each word.
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
  };
  return mix(mix(seed + 0x9e3779b97f4a7c15u) + (index + 1) * 0xbf58476d1ce4e5b9u);
}

double random_uniform(uint64_t seed, uint64_t index) {
  return static_cast<double>(random_bits(seed, index) >> 11) * 0x1p-53;
}

}  // namespace gpt
