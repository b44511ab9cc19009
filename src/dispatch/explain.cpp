// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/explain.hpp"

#include <cstdio>
#include <cstring>

#include "base/json.hpp"

namespace perseid::internal::dispatch {
namespace {

// FLOPs per byte of memory traffic at which a core is compute-bound: tens of FLOPs a cycle against
// a few bytes. A rough prediction for explain; no choice depends on it.
constexpr double kBalance = 16;

const char* bound_of(const Work& work) {
  return work.intensity() >= kBalance ? "compute" : "memory";
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kChosen:
      return "chosen";
    case Verdict::kRefused:
      return "refused";
    case Verdict::kNotTried:
      break;
  }
  return "not tried";
}

// Such as "4.29 GFLOP".
std::string with_unit(double number, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  for (; number >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) number /= 1000;
  char text[64];
  std::snprintf(text, sizeof text, "%.3g %s%s", number, kPrefixes[prefix], unit);
  return text;
}

std::string text_of(const char* direction, const Work& work) {
  char intensity[32];
  std::snprintf(intensity, sizeof intensity, "%.3g", work.intensity());
  return concatenate(direction, with_unit(work.flops, "FLOP"), ", ", with_unit(work.bytes, "B"),
                     ", ", intensity, " FLOP per byte: bound by ", bound_of(work), "; workspace ",
                     work.workspace, " bytes\n");
}

void write(JsonWriter& json, const char* direction, const Work& work) {
  json.key(direction)
      .begin_object()
      .field("flops", work.flops)
      .field("bytes", work.bytes)
      .field("intensity", work.intensity())
      .field("bound", bound_of(work))
      .field("workspace", work.workspace)
      .end_object();
}

}  // namespace

const char* Explanation::chosen() const {
  for (const Considered& entry : considered)
    if (entry.verdict == Verdict::kChosen) return entry.name;
  return "";
}

std::string explain_text(const Explanation& explanation, const Device& device) {
  std::string text = explanation.operation;
  for (const Fact& fact : explanation.problem)
    text += concatenate(&fact == &explanation.problem.front() ? ": " : ", ", fact.name, " ",
                        fact.value);
  if (device.gpu != nullptr) {
    const cuda::GpuFacts& facts = device.gpu->facts();
    text += concatenate("\non cuda:", facts.index, ", ", facts.name, ", with kernels for ",
                        facts.architecture, "\n");
  } else {
    text += concatenate("\non the CPU, with the ", device.kernels->isa, " kernels and ",
                        device.workers(), device.workers() == 1 ? " worker\n" : " workers\n");
  }
  int width = 14;
  for (const Considered& entry : explanation.considered)
    width = max(width, static_cast<int>(std::strlen(entry.name)));
  for (const Considered& entry : explanation.considered) {
    char line[64];
    std::snprintf(line, sizeof line, "  %-*s %-9s ", width, entry.name, name_of(entry.verdict));
    text += line + entry.reason + "\n";
  }
  for (const Measured& each : explanation.measured) {
    const bool built_in = &each == &explanation.measured.front();
    char time[32];
    std::snprintf(time, sizeof time, "%.4g us", each.seconds * 1e6);
    text += concatenate("  measured ", each.configuration, ": ", time, built_in ? ", built-in" : "",
                        each.kept ? ", kept\n" : "\n");
  }
  text += text_of("forward:  ", explanation.forward);
  text += explanation.backward ? text_of("backward: ", *explanation.backward)
                               : std::string("backward: none in this plan\n");
  return text;
}

std::string explain_json(const Explanation& explanation, const Device& device) {
  JsonWriter json;
  json.begin_object().field("operation", explanation.operation);
  json.key("problem").begin_object();
  for (const Fact& fact : explanation.problem) {
    json.key(fact.name);
    fact.number ? json.number(fact.value) : json.value(fact.value);
  }
  json.end_object();
  json.key("device").begin_object();
  if (device.gpu != nullptr) {
    json.field("type", "cuda")
        .field("index", device.gpu->facts().index)
        .field("model", device.gpu->facts().name);
  } else {
    json.field("type", "cpu").field("isa", device.kernels->isa).field("workers", device.workers());
  }
  json.end_object();
  json.field("implementation", explanation.chosen());
  json.key("implementations").begin_array();
  for (const Considered& entry : explanation.considered)
    json.begin_object()
        .field("name", entry.name)
        .field("verdict", name_of(entry.verdict))
        .field("reason", entry.reason)
        .end_object();
  json.end_array();
  if (!explanation.measured.empty()) {
    json.key("measured").begin_array();
    for (const Measured& each : explanation.measured)
      json.begin_object()
          .field("configuration", each.configuration)
          .field("seconds", each.seconds)
          .field("kept", each.kept)
          .end_object();
    json.end_array();
  }
  write(json, "forward", explanation.forward);
  if (explanation.backward) {
    write(json, "backward", *explanation.backward);
  } else {
    json.key("backward").null();
  }
  json.end_object();
  return json.text();
}

}  // namespace perseid::internal::dispatch
