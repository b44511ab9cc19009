// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/problem_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "harness/problem_lists.hpp"

namespace perseid::harness {
namespace {

constexpr uint32_t kSoftmax = 1, kAttention = 2, kMatmul = 4, kMask = 8, kAll = 15;

[[noreturn]] void reject(const std::string& sentence) {
  throw Error(PERSEID_INVALID_ARGUMENT, sentence);
}

template <class Number>
Number parse_number(std::string_view text, const char* expected) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    reject(fmt::format("expected {}, got '{}'", expected, text));
  return value;
}

void parse(std::string_view text, int64_t& value) {
  value = parse_number<int64_t>(text, "a whole number");
}
void parse(std::string_view text, uint64_t& value) {
  value = parse_number<uint64_t>(text, "a whole number from 0 to 2^64 - 1");
}
void parse(std::string_view text, double& value) { value = parse_number<double>(text, "a number"); }
void parse(std::string_view text, std::string& value) { value = text; }
void parse(std::string_view text, bool& value) {
  if (text != "true" && text != "false")
    reject(fmt::format("expected true or false, got '{}'", text));
  value = text == "true";
}
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}
void parse(std::string_view text, Shape& value) {
  value.clear();
  for (std::string_view part : split(text)) {
    if (part.empty())
      reject(fmt::format("expected whole numbers with one comma between two, got '{}'", text));
    value.push_back(parse_number<int64_t>(part, "whole numbers with commas between"));
  }
}
template <class Names>
void parse(std::string_view text, Choice<Names>& value) {
  std::string names;
  for (uint32_t i = 0; i < std::size(Names::kNames); ++i) {
    if (text == Names::kNames[i]) {
      value.value = i;
      return;
    }
    names += (i == 0 ? "" : ", ") + std::string(Names::kNames[i]);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value.value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    reject(fmt::format("expected one of {}, got '{}'", names, text));
}

struct GradientName {
  const char* name;
  uint32_t bit;
};
constexpr GradientName kGradients[] = {{"query", PERSEID_GRAD_QUERY},
                                       {"key", PERSEID_GRAD_KEY},
                                       {"value", PERSEID_GRAD_VALUE},
                                       {"bias", PERSEID_GRAD_BIAS}};

void parse(std::string_view text, Gradients& value) {
  value.bits = 0;
  if (text == "none") return;
  for (std::string_view part : split(text)) {
    const auto* known = std::find_if(std::begin(kGradients), std::end(kGradients),
                                     [&](const GradientName& name) { return part == name.name; });
    value.bits |= known != std::end(kGradients)
                      ? known->bit
                      : parse_number<uint32_t>(part, "gradients out of query, key, value, bias");
  }
}

std::string print(int64_t value) { return fmt::format("{}", value); }
std::string print(uint64_t value) { return fmt::format("{}", value); }
std::string print(double value) { return fmt::format("{}", value); }
std::string print(bool value) { return value ? "true" : "false"; }
std::string print(const std::string& value) { return value; }
std::string print(const Shape& value) { return fmt::format("{}", fmt::join(value, ",")); }
template <class Names>
std::string print(const Choice<Names>& choice) {
  return choice.value < std::size(Names::kNames) ? Names::kNames[choice.value]
                                                 : fmt::format("{}", choice.value);
}
std::string print(const Gradients& gradients) {
  uint32_t left = gradients.bits;
  std::vector<std::string> names;
  for (const GradientName& name : kGradients) {
    if ((left & name.bit) != 0) names.emplace_back(name.name);
    left &= ~name.bit;
  }
  if (left != 0) names.push_back(fmt::format("{}", left));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ","));
}

constexpr FieldKind kind_of(const bool*) { return FieldKind::kFlag; }
constexpr FieldKind kind_of(const int64_t*) { return FieldKind::kNumber; }
constexpr FieldKind kind_of(const uint64_t*) { return FieldKind::kNumber; }
constexpr FieldKind kind_of(const double*) { return FieldKind::kNumber; }
constexpr FieldKind kind_of(const Shape*) { return FieldKind::kList; }
constexpr FieldKind kind_of(const void*) { return FieldKind::kText; }

template <class Names>
std::string type_of(const Choice<Names>*) {
  return fmt::format("{}", fmt::join(Names::kNames, "|"));
}
std::string type_of(const bool*) { return ""; }
std::string type_of(const int64_t*) { return "N"; }
std::string type_of(const uint64_t*) { return "N"; }
std::string type_of(const double*) { return "X"; }
std::string type_of(const Shape*) { return "N,..."; }
std::string type_of(const Gradients*) { return "NAME,..."; }
std::string type_of(const void*) { return "NAME"; }

template <auto Member>
Field field(const char* name, uint32_t ops, const char* help) {
  using Type = std::remove_reference_t<decltype(Problem{}.*Member)>;
  return {name,
          ops,
          kind_of(static_cast<const Type*>(nullptr)),
          help,
          [](const Problem& problem) { return print(problem.*Member); },
          [](Problem& problem, std::string_view text) { parse(text, problem.*Member); },
          type_of(static_cast<const Type*>(nullptr))};
}

template <auto Member>
Field test_field(const char* name, uint32_t ops, const char* help) {
  Field made = field<Member>(name, ops, help);
  made.for_tests = true;
  return made;
}

nlohmann::json json_of(const Problem& problem, bool complete) {
  const Problem defaults;
  nlohmann::json object = {{"op", name_of(problem.op)}};
  for (const Field& each : fields()) {
    const std::string text = each.get(problem);
    if (!each.reads(problem.op) || (!complete && text == each.get(defaults))) continue;
    std::string key = each.name;
    std::replace(key.begin(), key.end(), '-', '_');
    switch (each.kind) {
      case FieldKind::kFlag:
        object[key] = text == "true";
        break;
      case FieldKind::kNumber: {
        // Infinity and NaN are no JSON numbers; as text they survive.
        const auto number = nlohmann::json::parse(text, nullptr, false);
        object[key] = number.is_discarded() ? nlohmann::json(text) : number;
        break;
      }
      case FieldKind::kList:
        object[key] = nlohmann::json::parse("[" + text + "]");
        break;
      case FieldKind::kText:
        object[key] = text;
        break;
    }
  }
  return object;
}

std::vector<Problem> parse_problems(std::istream& text, const std::string& name) {
  std::vector<Problem> problems;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    try {
      problems.push_back(from_json(nlohmann::json::parse(line, nullptr, false)));
    } catch (const Error& error) {
      reject(fmt::format("{}, line {}: {}", name, number, error.what()));
    }
  }
  return problems;
}

}  // namespace

Op parse_op(std::string_view name) {
  for (Op op : {Op::kSoftmax, Op::kAttention, Op::kMatmul, Op::kDropoutMask}) {
    if (name == name_of(op)) return op;
  }
  reject(fmt::format("there is no operation '{}': use softmax, attention, matmul or dropout-mask",
                     name));
}

const std::vector<Field>& fields() {
  using P = Problem;
  static const std::vector<Field> all = {
      field<&P::dtype>("dtype", kAll & ~kMask, "element type"),
      field<&P::impl>("impl", kAll & ~kMask,
                      "the first of these implementations, divided by commas, such as cpu:tiled"),
      field<&P::threads>("threads", kAll, "threads of the CPU pool (0: the default)"),
      field<&P::scale>("scale", kSoftmax | kAttention,
                       "factor of the scores (0: 1 for softmax, 1 / sqrt(head_dim) for attention)"),
      field<&P::visible>("visible", kSoftmax | kAttention,
                         "shape of a boolean mask, such as 1,1,64,64; true: counted"),
      field<&P::backward>("backward", kSoftmax | kAttention, "the gradients too"),
      field<&P::lse>("lse", kSoftmax | kAttention, "write the logsumexp of every row"),
      field<&P::shape>("shape", kSoftmax, "shape of the input, such as 512,4096"),
      field<&P::dim>("dim", kSoftmax, "the softmax dimension; negative ones count from the last"),
      field<&P::log>("log", kSoftmax, "log-softmax"),
      field<&P::in_place>("in-place", kSoftmax, "write the result over the input"),
      field<&P::empty_rows>("empty-rows", kSoftmax, "rows with nothing visible"),
      field<&P::output_dtype>("output-dtype", kSoftmax | kMatmul, "type of the result"),
      field<&P::batch>("batch", kAttention | kMatmul | kMask, "sequences, or products"),
      field<&P::heads>("heads", kAttention | kMask, "query heads"),
      field<&P::kv_heads>("kv-heads", kAttention, "key and value heads (0: heads)"),
      field<&P::q_len>("q-len", kAttention | kMask, "queries of a sequence"),
      field<&P::kv_len>("kv-len", kAttention | kMask, "keys of a sequence"),
      field<&P::head_dim>("head-dim", kAttention, "size of a query and of a key"),
      field<&P::value_dim>("value-dim", kAttention, "size of a value (0: head-dim)"),
      field<&P::layout>("layout", kAttention, "the order of batch, sequence, heads and dim"),
      field<&P::causal>("causal", kAttention, "which keys lie in a query's future"),
      field<&P::window>("window", kAttention, "LEFT,RIGHT keys that a query sees; -1: all"),
      field<&P::window_bottom_right>("window-bottom-right", kAttention,
                                     "the window's alignment, without --causal"),
      field<&P::bias>("bias", kAttention | kMatmul, "shape of an additive bias"),
      field<&P::bias_dtype>("bias-dtype", kAttention | kMatmul, "its type (none: that of --dtype)"),
      field<&P::dropout>("dropout", kAttention | kMask, "probability of dropping, in [0, 1)"),
      field<&P::seed>("seed", kAttention | kMask, "seed of the dropout"),
      field<&P::offset>("offset", kAttention | kMask, "offset of the dropout, below 2^32"),
      field<&P::cu_seqlens_q>("cu-seqlens-q", kAttention, "cumulative query lengths: ragged"),
      field<&P::cu_seqlens_kv>("cu-seqlens-kv", kAttention, "cumulative key lengths: ragged"),
      field<&P::total_q>("total-q", kAttention, "rows of the packed query (0: as many as needed)"),
      field<&P::total_kv>("total-kv", kAttention, "rows of the packed key (0: as many as needed)"),
      field<&P::q_lens>("q-lens", kAttention, "query lengths, one for each sequence"),
      field<&P::kv_lens>("kv-lens", kAttention, "key lengths, one for each sequence"),
      field<&P::kv_starts>("kv-starts", kAttention,
                           "first packed key of each sequence, instead of --cu-seqlens-kv"),
      field<&P::kv_batch>("kv-batch", kAttention, "batch entries of key and value (0: batch)"),
      field<&P::kv_index>("kv-index", kAttention, "the entry of key and value of each sequence"),
      field<&P::max_q_len>("max-q-len", kAttention, "longest queries of the plan (0: q-len)"),
      field<&P::max_kv_len>("max-kv-len", kAttention, "longest keys of the plan (0: kv-len)"),
      field<&P::num_splits>("num-splits", kAttention, "the most splits of keys (0: any number)"),
      field<&P::gradients>("gradients", kAttention, "some of query,key,value,bias"),
      field<&P::grad_lse>("grad-lse", kAttention, "the logsumexp has a gradient too"),
      field<&P::deterministic>("deterministic", kAttention, "bitwise repeatable backward"),
      field<&P::m>("m", kMatmul, "rows of a"),
      field<&P::n>("n", kMatmul, "columns of b"),
      field<&P::k>("k", kMatmul, "columns of a"),
      field<&P::alpha>("alpha", kMatmul, "factor of the product"),
      field<&P::beta>("beta", kMatmul, "factor of what is added to"),
      field<&P::transpose_a>("transpose-a", kMatmul, "a lies as [k, m]"),
      field<&P::transpose_b>("transpose-b", kMatmul, "b lies as [n, k]"),
      field<&P::shared_a>("shared-a", kMatmul, "one a for the whole batch"),
      field<&P::shared_b>("shared-b", kMatmul, "one b for the whole batch"),
      field<&P::b_dtype>("b-dtype", kMatmul, "type of b (none: that of --dtype)"),
      field<&P::scaling>("scaling", kMatmul,
                         "scales of 8-bit a and b: one each, one for each row of "
                         "a and column of b, or for blocks of 128"),
      field<&P::accumulation>("accumulation", kMatmul, "of 8-bit products on tensor cores"),
      field<&P::precision>("precision", kMatmul, "of products of f32, at least"),
      field<&P::scale_result>("scale-result", kMatmul, "an 8-bit result has a scale"),
      field<&P::activation>("activation", kMatmul, "applied to the result"),
      field<&P::amax>("amax", kMatmul, "write the largest magnitude of the result"),
      test_field<&P::data_seed>("data-seed", kAll, "seed of the random inputs"),
      test_field<&P::values>("values", kAll, "how the random inputs are drawn"),
      test_field<&P::input_scale>("input-scale", kAll & ~kMask,
                                  "factor of the random inputs: 3 or 10 make peaked rows"),
      test_field<&P::strides>("strides", kAll, "how tensors lie in memory"),
      test_field<&P::misalign>("misalign", kAll, "bytes added to every address"),
      test_field<&P::mask_dtype>("mask-dtype", kAll, "type of masks"),
      test_field<&P::index_dtype>("index-dtype", kAttention, "type of lengths"),
      test_field<&P::launches>("launches", kAll & ~kMask, "of one plan, before any is waited for"),
      test_field<&P::fault>("fault", kAll, "a wrong argument to put into the call"),
      test_field<&P::expect>("expect", kAll, "what the problem should end in"),
  };
  return all;
}

Shape parse_list(std::string_view name, std::string_view text) {
  Shape list;
  try {
    parse(text, list);
  } catch (const Error& error) {
    reject(fmt::format("{}: {}", name, error.what()));
  }
  return list;
}

void set_field(Problem& problem, std::string_view name, std::string_view text) {
  for (const Field& candidate : fields()) {
    if (name != candidate.name) continue;
    if (!candidate.reads(problem.op))
      reject(fmt::format("{} has no '{}'", name_of(problem.op), name));
    try {
      candidate.set(problem, text);
    } catch (const Error& error) {
      reject(fmt::format("{}: {}", name, error.what()));
    }
    return;
  }
  reject(fmt::format("there is no field '{}'; `perseid explain {} --help` lists them", name,
                     name_of(problem.op)));
}

Problem from_json(const nlohmann::json& object) {
  if (!object.is_object() || !object.contains("op") || !object["op"].is_string())
    reject("expected a JSON object with \"op\", such as {\"op\": \"matmul\", \"m\": 64}");
  Problem problem;
  problem.op = parse_op(object["op"].get<std::string>());
  for (const auto& [key, value] : object.items()) {
    if (key == "op") continue;
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    std::string text;
    if (value.is_string()) {
      text = value.get<std::string>();
    } else if (value.is_array()) {
      for (const auto& element : value) text += (text.empty() ? "" : ",") + element.dump();
    } else {
      text = value.dump();
    }
    set_field(problem, name, text);
  }
  return problem;
}

nlohmann::json to_json(const Problem& problem) { return json_of(problem, false); }

nlohmann::json to_complete_json(const Problem& problem) { return json_of(problem, true); }

std::string to_flags(const Problem& problem) {
  const Problem defaults;
  std::string flags = name_of(problem.op);
  for (const Field& each : fields()) {
    const std::string text = each.get(problem);
    if (!each.reads(problem.op) || text == each.get(defaults)) continue;
    flags += each.kind == FieldKind::kFlag ? fmt::format(" --{}", each.name)
                                           : fmt::format(" --{}={}", each.name, text);
  }
  return flags;
}

std::string summary(const Problem& p) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  switch (p.op) {
    case Op::kSoftmax:
      add(fmt::format("{}", fmt::join(p.shape, "x")));
      if (p.dim != -1) add(fmt::format("dim {}", p.dim));
      if (p.log) add("log");
      if (p.in_place) add("in place");
      break;
    case Op::kAttention:
      if (p.batch != 1) add(fmt::format("B{}", p.batch));
      add(fmt::format("H{}", p.heads));
      if (p.key_heads() != p.heads) add(fmt::format("KV{}", p.key_heads()));
      add(fmt::format("M{} N{} D{}", p.longest_q(), p.longest_kv(), p.head_dim));
      if (p.value_size() != p.head_dim) add(fmt::format("DV{}", p.value_size()));
      if (p.causal.value != 0) add(p.causal.value == 1 ? "causal" : "causal-br");
      if (!p.window.empty()) add(fmt::format("window {}", fmt::join(p.window, ",")));
      if (!p.bias.empty()) add("bias");
      if (p.dropout > 0) add("dropout");
      if (p.ragged()) add("ragged");
      break;
    case Op::kMatmul:
      if (p.batch != 1) add(fmt::format("B{}", p.batch));
      add(fmt::format("{}x{}x{}", p.m, p.n, p.k));
      if (p.transpose_a) add("a'");
      if (p.transpose_b) add("b'");
      if (p.beta != 0) add("+c");
      if (!p.bias.empty()) add("bias");
      if (p.scaling.value != 0) add(fmt::format("{} scales", print(p.scaling)));
      if (p.accumulation.value != 0) add(print(p.accumulation));
      if (p.precision.value != 0) add(print(p.precision));
      if (p.activation.value != 0) add(print(p.activation));
      break;
    case Op::kDropoutMask:
      add(fmt::format("B{} H{} M{} N{}", p.batch, p.heads, p.q_len, p.kv_len));
      break;
  }
  if (!p.visible.empty()) add("visible");
  return text;
}

std::string legend(const std::vector<Problem>& problems) {
  const auto any = [&](auto condition) {
    return std::any_of(problems.begin(), problems.end(), condition);
  };
  std::vector<std::string> parts;
  const auto is = [](Op op) { return [op](const Problem& p) { return p.op == op; }; };
  if (any([](const Problem& p) {
        return p.op == Op::kDropoutMask || (p.op != Op::kSoftmax && p.batch != 1);
      }))
    parts.emplace_back("B batch");
  if (any(is(Op::kAttention)) || any(is(Op::kDropoutMask))) {
    parts.emplace_back("H heads");
    if (any([](const Problem& p) { return p.key_heads() != p.heads; }))
      parts.emplace_back("KV key and value heads");
    parts.insert(parts.end(), {"M queries", "N keys"});
    if (any(is(Op::kAttention))) parts.emplace_back("D head dim");
    if (any([](const Problem& p) { return p.value_size() != p.head_dim; }))
      parts.emplace_back("DV value dim");
    if (any([](const Problem& p) { return p.causal.value == PERSEID_CAUSAL_BOTTOM_RIGHT; }))
      parts.emplace_back("causal-br causal, bottom-right");
  }
  if (any(is(Op::kMatmul))) {
    parts.emplace_back("matmul is m x n x k");
    if (any([](const Problem& p) { return p.transpose_a || p.transpose_b; }))
      parts.emplace_back("a' b' transposed");
    if (any([](const Problem& p) { return p.op == Op::kMatmul && p.beta != 0; }))
      parts.emplace_back("+c adds to c");
  }
  return fmt::format("{}{}", fmt::join(parts, "; "), parts.empty() ? "" : ".");
}

std::vector<Problem> read_problems(const std::string& path) {
  std::ifstream file(path);
  // A folder opens, and fails when it is read.
  if (!file || (file.peek(), file.bad()))
    throw Error(PERSEID_IO_ERROR,
                fmt::format("cannot read '{}': give a file of one JSON object a line", path));
  return parse_problems(file, path);
}

std::vector<Problem> built_in_problems(const std::string& name) {
  std::istringstream text(problem_list(name));
  return parse_problems(text, name);
}

}  // namespace perseid::harness
