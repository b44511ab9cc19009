// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include <algorithm>
#include <vector>

namespace gpt {

template <class T>
Sampler<T>::Sampler(Machine& machine, const Config& config, double temperature)
    : machine_(machine),
      context_(config.context),
      model_(machine, config, 1, Model<T>::Use::kInference),
      probabilities_(machine, kVocabulary),
      at_temperature_(
          machine.context,
          {.dtype = perseid::dtype_of<Real<T>>, .shape = {kVocabulary}, .scale = 1 / temperature}) {
  machine.reserve(at_temperature_, {perseid::Direction::kForward});
}

template <class T>
std::string Sampler<T>::sample(const Weights<T>& weights, const std::string& prompt, int64_t count,
                               uint64_t seed) {
  std::string text = prompt;
  std::vector<uint8_t> window(static_cast<size_t>(context_));
  for (int64_t i = 0; i < count; ++i) {
    // The latest bytes, and zeros after them, which no earlier position sees.
    const size_t known = std::min(text.size(), window.size());
    std::copy(text.end() - static_cast<std::ptrdiff_t>(known), text.end(), window.begin());
    model_.forward(weights, window.data());
    const int64_t row = (static_cast<int64_t>(known) - 1) * kVocabulary;
    at_temperature_.forward(nullptr,
                            {.input = model_.log_probabilities().reading({kVocabulary}, row),
                             .output = probabilities_.writing({kVocabulary})},
                            machine_.workspace());
    const Real<T>* probabilities = probabilities_.read();
    double left = random_uniform(seed, static_cast<uint64_t>(i));
    int64_t byte = 0;
    while (byte + 1 < kVocabulary && (left -= static_cast<double>(probabilities[byte])) >= 0) {
      ++byte;
    }
    text.push_back(static_cast<char>(byte));
  }
  return text.substr(prompt.size());
}

std::string printable(const std::string& text) {
  std::string result = text;
  std::ranges::replace_if(
      result, [](char c) { return (c < ' ' || c > '~') && c != '\n'; }, '.');
  return result;
}

template class Sampler<float>;
template class Sampler<BFloat16>;
template class Sampler<double>;

}  // namespace gpt
