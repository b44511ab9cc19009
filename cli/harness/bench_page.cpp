// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/bench_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "harness/problem_text.hpp"
#include "harness/roofline.hpp"

namespace perseid::harness {
namespace {

using nlohmann::json;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2230; --soft: #5d6678; --line: #d9dde5; --paper: #fff;
  --softmax: #0f8b6d; --attention: #2f62c9; --matmul: #b3541e; --bad: #c0262d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #9aa3b5; --line: #353c4a; --paper: #14181f;
    --softmax: #3cc29f; --attention: #7aa5ff; --matmul: #f0985e; --bad: #ff6b70; } }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1.5rem; color: var(--ink);
  background: var(--paper); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; color: var(--soft); } p.bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem .2rem 0; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right; }
td.free { white-space: normal; overflow-wrap: anywhere; min-width: 20rem; }
code { font-size: .85em; } code span { white-space: nowrap; }
td.share { width: 30%; min-width: 9rem; }
.bar { position: relative; height: .9rem; background: var(--line); border-radius: 2px; }
.bar i { display: block; height: 100%; border-radius: 2px; }
.bar b { position: absolute; top: -2px; bottom: -2px; width: 1px; background: var(--ink); }
i.softmax { background: var(--softmax); } i.attention { background: var(--attention); }
i.matmul { background: var(--matmul); } i.disturbed { opacity: .4; }
.bad { color: var(--bad); font-weight: 600; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--line); } svg .roof { stroke: var(--ink); stroke-width: 2; }
svg .dashed { stroke-dasharray: 6 4; }
svg text { fill: var(--soft); } svg .name, svg .number { fill: var(--ink); }
svg .number { font-size: 11px; } svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
circle { fill-opacity: .85; } circle.softmax { fill: var(--softmax); }
circle.attention { fill: var(--attention); } circle.matmul { fill: var(--matmul); }
)";

// Members that a report may lack.
std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
double number_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}
bool flag_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}
const json& member(const json& object, const char* name) {
  static const json nothing = json::object();
  const auto found = object.find(name);
  return found == object.end() ? nothing : *found;
}

struct Row {
  const json* from = nullptr;
  int number = 0;
  Problem problem;
  bool measured = false;  // else it failed
  std::string group;      // device and threads
};

// "2 threads of the CPU", "cuda:0"
std::string group_of(const json& row) {
  const auto threads = static_cast<int64_t>(number_of(row, "threads"));
  if (threads == 0) return text_of(row, "device");
  return threads == 1 ? "one thread of the CPU" : fmt::format("{} threads of the CPU", threads);
}

std::string label_of(const Row& row) {
  std::string text = name_of(row.problem.op);
  if (row.problem.op != Op::kMatmul) text += " " + text_of(*row.from, "direction");
  return text;
}

void cell(std::string& html, std::string_view style, std::string_view text) {
  fmt::format_to(std::back_inserter(html), "<td{}{}{}>{}</td>", style.empty() ? "" : " class=\"",
                 style, style.empty() ? "" : "\"", escaped(text));
}

void heads(std::string& html, std::initializer_list<std::pair<const char*, const char*>> titles) {
  html += "<tr>";
  for (const auto& [title, style] : titles)
    fmt::format_to(std::back_inserter(html), "<th class=\"{}\">{}</th>", style, title);
  html += "</tr>\n";
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

// What a bar of a fraction is as long as, and a mark at 1.
std::string bar(const Row& row, double fraction, double longest) {
  return fmt::format(
      "<td class=\"share\"><div class=\"bar\"><i class=\"{}{}\" style=\"width:{:.1f}%\"></i>"
      "<b style=\"left:{:.1f}%\"></b></div></td>",
      name_of(row.problem.op), flag_of(*row.from, "disturbed") ? " disturbed" : "",
      100 * std::clamp(fraction / longest, 0.0, 1.0), 100 / longest);
}

void add_figures(std::string& html, const std::vector<Row>& rows, bool compared) {
  double longest = 1;
  bool several = false;  // else the title names the only group
  for (const Row& row : rows) {
    longest = std::max(longest, number_of(*row.from, "fraction"));
    several = several || row.group != rows.front().group;
  }
  fmt::format_to(std::back_inserter(html),
                 "<h2>Fractions of the ceilings{}</h2>\n<div class=\"wide\"><table>\n<tr>",
                 several || rows.empty() ? "" : ", " + escaped(rows.front().group));
  const auto head = [&](const char* title, const char* style = "") {
    fmt::format_to(std::back_inserter(html), "<th class=\"{}\">{}</th>", style, title);
  };
  head("", "n");
  for (const char* title : {"operation", "type", "problem"}) head(title);
  if (several) head("on");
  for (const char* title : {"time", "rate", "fraction"}) head(title, "n");
  head("of the ceiling");
  head("error", "n");
  if (compared) head("against", "n");
  html += "</tr>\n";
  for (const Row& row : rows) {
    const json& from = *row.from;
    html += "<tr>";
    cell(html, "n", fmt::format("{}", row.number));
    cell(html, "", label_of(row));
    cell(html, "", name_of(row.problem.type()));
    cell(html, "", summary(row.problem));
    if (several) cell(html, "", row.group);
    if (!row.measured) {
      cell(html, "bad", text_of(from, "status"));
      html += "</tr>\n";
      continue;
    }
    const double fraction = number_of(from, "fraction");
    const bool disturbed = flag_of(from, "disturbed");
    cell(html, "n", time_text(number_of(member(from, "seconds"), "time")));
    cell(html, "n", rate_text(number_of(from, "rate"), text_of(from, "unit")));
    cell(html, disturbed ? "n bad" : "n",
         fraction == 0 ? "" : fmt::format("{:.2f}{}", fraction, disturbed ? "?" : ""));
    html += fraction == 0 ? "<td></td>" : bar(row, fraction, longest);
    const double error = number_of(member(from, "error"), "relative");
    cell(html, error > 1 ? "n bad" : "n",
         from.contains("error") ? fmt::format("{:.2f}", error) : "");
    const json& against = member(from, "against");
    if (compared && against.contains("ratio"))
      cell(html, flag_of(against, "ok") ? "n" : "n bad",
           fmt::format("{:.2f} (at least {:.2f})", number_of(against, "ratio"),
                       number_of(against, "threshold")));
    html += "</tr>\n";
  }
  html +=
      "</table></div>\n<p>Error: the largest against float64, as a fraction of what is allowed. "
      "The line in a bar is the ceiling; a fraction with a question mark was above it in every "
      "attempt, because something disturbed the measurement.</p>\n";
  std::vector<Problem> problems;
  for (const Row& row : rows) problems.push_back(row.problem);
  fmt::format_to(std::back_inserter(html), "<p>{}</p>\n", escaped(legend(problems)));
}

// A picture for each device and number of threads.
void add_rooflines(std::string& html, const json& report, const std::vector<Row>& rows) {
  std::vector<std::string> groups;
  for (const Row& row : rows)
    if (std::find(groups.begin(), groups.end(), row.group) == groups.end())
      groups.push_back(row.group);
  for (const std::string& group : groups) {
    // Memory has ceilings of several sizes of array; the largest counts.
    std::map<std::string, std::pair<double, Roof>> largest;
    for (const json& each : member(report, "ceilings")) {
      if (!each.is_object() || group_of(each) != group) continue;
      const double bytes = number_of(each, "bytes");
      const std::string name = text_of(each, "name");
      auto& [most, roof] = largest[name];
      if (bytes < most) continue;
      most = bytes;
      roof = {bytes > 0 ? name + " of " + rate_text(bytes, "B") : name, bytes > 0,
              number_of(each, "rate")};
    }
    std::vector<Roof> roofs;
    for (const auto& [name, roof] : largest) roofs.push_back(roof.second);
    std::vector<RoofPoint> points;
    for (const Row& row : rows) {
      if (row.group != group || !row.measured) continue;
      const double flops = number_of(*row.from, "flops"), bytes = number_of(*row.from, "bytes");
      const double time = number_of(member(*row.from, "seconds"), "time");
      if (flops <= 0 || bytes <= 0 || time <= 0) continue;
      points.push_back(
          {row.number, name_of(row.problem.op),
           fmt::format("{} {} {}: {}, fraction {:.2f}", label_of(row), name_of(row.problem.type()),
                       summary(row.problem), rate_text(flops / time, "FLOP/s"),
                       number_of(*row.from, "fraction")),
           flops / bytes, flops / time});
    }
    const std::string svg = roofline_svg(points, roofs);
    if (svg.empty()) continue;
    fmt::format_to(std::back_inserter(html),
                   "<h2>Roofline, {}</h2>\n{}<p>Numbers are those of the table below. A point "
                   "above the slope works in caches, which are faster than the memory that the "
                   "slope stands for.</p>\n",
                   escaped(group), svg);
  }
}

// Lines break between flags, not at their dashes.
std::string words_of(const std::string& command) {
  std::istringstream words(command);
  std::string html;
  for (std::string word; words >> word;)
    html += (html.empty() ? "<span>" : " <span>") + escaped(word) + "</span>";
  return html;
}

void add_commands(std::string& html, const std::vector<Row>& rows) {
  html += "<h2>Measured again by</h2>\n<div class=\"wide\"><table>\n";
  heads(html, {{"", "n"}, {"implementation", ""}, {"ceiling", ""}, {"command", ""}});
  for (const Row& row : rows) {
    const json& ceiling = member(*row.from, "ceiling");
    html += "<tr>";
    cell(html, "n", fmt::format("{}", row.number));
    cell(html, "", text_of(*row.from, "implementation"));
    cell(html, "",
         ceiling.contains("rate")
             ? text_of(ceiling, "name") + " " +
                   rate_text(number_of(ceiling, "rate"), text_of(*row.from, "unit"))
             : "");
    fmt::format_to(std::back_inserter(html), "<td class=\"free\"><code>{}</code></td></tr>\n",
                   words_of(text_of(*row.from, "command")));
  }
  html += "</table></div>\n";
}

void add_facts(std::string& html, const std::string& name, const json& value) {
  if (value.is_object()) {
    for (const auto& [key, below] : value.items())
      add_facts(html, name.empty() ? key : name + " " + key, below);
    return;
  }
  std::string text = value.is_string() ? value.get<std::string>()
                     : value.is_null() ? "not set"
                                       : "";
  if (text.empty() && value.is_array()) {
    for (const json& each : value) {
      if (!text.empty()) text += ", ";
      text += each.is_string() ? each.get<std::string>()
                               : each.dump(-1, ' ', false, json::error_handler_t::replace);
    }
  } else if (text.empty()) {
    text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  html += "<tr>";
  cell(html, "", name);
  cell(html, "free", text);
  html += "</tr>\n";
}

}  // namespace

std::string bench_page(const json& report) {
  const json& machine = member(report, "machine");
  std::vector<Row> rows;
  bool compared = false;
  int slower = 0;
  for (const json& each : member(report, "rows")) {
    Row& row = rows.emplace_back();
    row.from = &each;
    row.number = static_cast<int>(rows.size());
    row.problem = from_json(member(each, "problem"));
    row.measured = number_of(each, "rate") > 0;
    row.group = group_of(each);
    compared = compared || each.contains("against");
    slower += each.contains("against") && !flag_of(each["against"], "ok");
  }
  const json& device = member(machine, "device");
  const std::string model = text_of(device, "model");
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>Perseid on {0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>Perseid on {0}</h1>\n<p>Version {2}, measured {3}, each row for about {4:g} s.</p>\n",
      escaped(model.empty() ? "this machine" : model), kStyle, escaped(text_of(machine, "version")),
      escaped(text_of(report, "date")), number_of(report, "seconds"));
  if (compared)
    fmt::format_to(std::back_inserter(html), "<p{}>{} of {} rows fell below their threshold.</p>\n",
                   slower > 0 ? " class=\"bad\"" : "", slower, rows.size());
  add_rooflines(html, report, rows);
  add_figures(html, rows, compared);
  add_commands(html, rows);
  html += "<h2>Machine</h2>\n<div class=\"wide\"><table>\n";
  add_facts(html, "", machine);
  html += "</table></div>\n</body>\n</html>\n";
  return html;
}

}  // namespace perseid::harness
