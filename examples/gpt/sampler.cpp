// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include <algorithm>
#include <vector>

namespace gpt {
namespace {

struct Character {
  size_t bytes = 1;
  bool shown = false;
  bool cut = false;  // the text ends before it does
};

// The text is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {1, (first >= 0x20 && first != 0x7f) || first == '\n' || first == '\t'};
  if (first < 0xc2 || first > 0xf4) return {};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {1, false, true};
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10ffff || code / 0x800 == 0x1b) return {};
  const auto within = [&](uint32_t least, uint32_t most) { return code >= least && code <= most; };
  const bool controls = within(0x80, 0x9f) || within(0x200e, 0x200f) || within(0x2028, 0x202e) ||
                        within(0x2066, 0x2069) || (code & 0xfffe) == 0xfffe;
  return {length, !controls};
}

}  // namespace

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

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character first = first_character(text);
    if (first.cut) break;
    if (first.shown) {
      result += text.substr(0, first.bytes);
    } else if (!text.starts_with("\r\n")) {
      result += "\xef\xbf\xbd";
    }
    text.remove_prefix(first.bytes);
  }
  return result;
}

template class Sampler<float>;
template class Sampler<BFloat16>;
template class Sampler<double>;

}  // namespace gpt
