// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "sentences.hpp"

#include <algorithm>
#include <cctype>

#include "help.hpp"

namespace perseid::cli {
namespace {

struct Words {
  std::string_view library, program;
};

// Fields whose flags have other names.
constexpr Words kFields[] = {{"out_dtype", "output-dtype"},
                             {"bias_shape", "bias"},
                             {"window_left", "window"},
                             {"window_right", "window"},
                             {"deadline_ns", "deadline"}};

// Advice for callers of the C interface, and its enumerators.
constexpr Words kPhrases[] = {
    {"gradients has PERSEID_GRAD_BIAS, but bias is 0; set bias and bias_shape",
     "--gradients has bias, but --bias is not given; give it the shape of the bias"},
    {"a sum of PERSEID_GRAD_QUERY (1), PERSEID_GRAD_KEY (2), PERSEID_GRAD_VALUE (4) and "
     "PERSEID_GRAD_BIAS (8)",
     "some of query,key,value,bias"},
    {"PERSEID_F16 (1), PERSEID_BF16 (2), PERSEID_F32 (3) or PERSEID_F64 (4)",
     "f16, bf16, f32 or f64"},
    {"PERSEID_F16 (1), PERSEID_BF16 (2), PERSEID_F32 (3), PERSEID_F64 (4), PERSEID_F8E4M3 (5) or "
     "PERSEID_F8E5M2 (6)",
     "f16, bf16, f32, f64, f8e4m3 or f8e5m2"},
    {"PERSEID_ACCUMULATE_FAST", "fast"},
    {"the descriptor's implementation is ", "--impl is "},
    {", or NULL for the first that takes the problem",
     "; leave it out for the first that takes the problem"},
    {"the descriptor asks for ", "--impl asks for "},
    {"PERSEID_CAUSAL_NONE (0), PERSEID_CAUSAL_TOP_LEFT (1) or PERSEID_CAUSAL_BOTTOM_RIGHT (2)",
     "none, top-left or bottom-right"},
    {"PERSEID_BSHD (0) or PERSEID_BHSD (1)", "bshd or bhsd"},
    {"PERSEID_EMPTY_ZERO (0) or PERSEID_EMPTY_NAN (1)", "zero or nan"},
    {"softmax: dimension ", "softmax: --shape: dimension "},
    {"softmax: ndim is ", "softmax: the number of dimensions is "},
    {"pass a tensor of that shape, or make a plan for this one", "give one of that shape"},
    {", the plan's [", ", expected ["},
    {"use kDLCPU", "use --device cpu"},
    {"; pass NULL, or make a plan that uses it", "; leave it out"}};

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void replace_all(std::string* text, const Words& words) {
  for (size_t at = 0; (at = text->find(words.library, at)) != std::string::npos;) {
    text->replace(at, words.library.size(), words.program);
    at += words.program.size();
  }
}

// The flag of a field, "" where the command has none.
std::string flag_of(const CLI::App& command, std::string_view field) {
  std::string name(field);
  for (const Words& each : kFields)
    if (field == each.library) name = each.program;
  std::replace(name.begin(), name.end(), '_', '-');
  name.insert(0, "--");
  return find_flag(command, name) == nullptr ? "" : name;
}

// A word without '_' may be an English one, such as "key". It is a field where a sentence begins
// with it and goes on with what is wrong with the field.
bool is_subject(std::string_view before, std::string_view after) {
  constexpr std::string_view kVerbs[] = {" is ", " has ",     " gives ", " ends ",
                                         "[",    " reaches ", " begins "};
  return (before.empty() || before.ends_with(": ")) &&
         std::any_of(std::begin(kVerbs), std::end(kVerbs),
                     [&](std::string_view verb) { return after.starts_with(verb); });
}

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> steps(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& least = steps[i][j];
      if (i == 0 || j == 0) {
        least = i + j;
        continue;
      }
      least = std::min({steps[i - 1][j] + 1, steps[i][j - 1] + 1,
                        steps[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        least = std::min(least, steps[i - 2][j - 2] + 1);
    }
  }
  return steps[a.size()][b.size()];
}

}  // namespace

std::string in_program_words(std::string_view sentence) {
  std::string text(sentence);
  for (const Words& phrase : kPhrases) replace_all(&text, phrase);
  return text;
}

std::string in_flags(const CLI::App& command, std::string_view sentence) {
  const std::string text = in_program_words(sentence);
  std::string result;
  int brackets = 0;  // shapes such as [batch 2, heads 4] keep their words
  for (size_t begin = 0; begin < text.size();) {
    if (!is_letter(text[begin])) {
      brackets += text[begin] == '[' ? 1 : text[begin] == ']' ? -1 : 0;
      result += text[begin++];
      continue;
    }
    size_t end = begin;
    while (end < text.size() && is_letter(text[end])) ++end;
    const std::string_view all = text, word = all.substr(begin, end - begin);
    // Not a part of a name with dashes, a path or an extension.
    const bool whole =
        (begin == 0 || std::string_view("-./'").find(text[begin - 1]) == std::string_view::npos) &&
        (end == text.size() || text[end] != '-');
    const bool field = whole && brackets == 0 &&
                       (word.find('_') != std::string_view::npos ||
                        is_subject(all.substr(0, begin), all.substr(end)));
    const std::string flag = field ? flag_of(command, word) : "";
    result.append(flag.empty() ? word : std::string_view(flag));
    begin = end;
  }
  return result;
}

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string found;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    if (const size_t steps = distance(word, name); steps < least) {
      least = steps;
      found = name;
    }
  }
  return found;
}

}  // namespace perseid::cli
