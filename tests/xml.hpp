// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Whether a text is well-formed XML, as far as the pages of the project use it: elements,
// attributes, entities, a DOCTYPE; no comments, no sections.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace perseid {

// Reads one element after another; `error` says what the first mistake is.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  std::string error() {
    if (text_.starts_with("<!DOCTYPE html>\n")) text_.remove_prefix(16);
    while (!text_.empty() && error_.empty()) text_.front() == '<' ? tag() : characters();
    if (error_.empty() && !open_.empty()) fail("<" + open_.back() + "> is not closed");
    if (error_.empty() && roots_ != 1) fail("there is not one root");
    return error_;
  }

 private:
  void fail(const std::string& why) {
    error_ = why + " before: " + std::string(text_.substr(0, 60));
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == ':';
  }
  std::string name() {
    const size_t end =
        static_cast<size_t>(std::find_if_not(text_.begin(), text_.end(), is_name) - text_.begin());
    std::string result(text_.substr(0, end));
    text_.remove_prefix(end);
    if (result.empty()) fail("a name is missing");
    return result;
  }
  bool take(std::string_view words) {
    if (!text_.starts_with(words)) return false;
    text_.remove_prefix(words.size());
    return true;
  }

  void check(std::string_view content) {
    for (size_t at = 0; at < content.size(); ++at) {
      const char c = content[at];
      if (c == '<') return fail("a bare <");
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
        return fail("a control character");
      if (c != '&') continue;
      const std::string_view rest = content.substr(at);
      const bool known =
          std::any_of(std::begin(kEntities), std::end(kEntities),
                      [&](std::string_view entity) { return rest.starts_with(entity); });
      if (!known) return fail("a bare &");
    }
  }

  void characters() {
    const std::string_view content = text_.substr(0, std::min(text_.find('<'), text_.size()));
    text_.remove_prefix(content.size());
    if (open_.empty() && content.find_first_not_of(" \n") != content.npos)
      return fail("characters outside of the root");
    check(content);
  }

  void tag() {
    if (take("</")) {
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed) return fail("</" + closed + "> closes another");
      open_.pop_back();
      if (!take(">")) fail("an end tag does not end");
      return;
    }
    take("<");
    if (open_.empty()) ++roots_;
    const std::string element = name();
    std::vector<std::string> attributes;
    while (error_.empty() && take(" ")) {
      attributes.push_back(name());
      if (std::count(attributes.begin(), attributes.end(), attributes.back()) > 1)
        return fail("an attribute is repeated");
      const char quote = text_.size() > 1 && take("=") ? text_.front() : ' ';
      if (quote != '"' && quote != '\'') return fail("an attribute has no quoted value");
      const size_t end = text_.find(quote, 1);
      if (end == text_.npos) return fail("a value does not end");
      check(text_.substr(1, end - 1));
      text_.remove_prefix(end + 1);
    }
    if (!error_.empty() || take("/>")) return;
    if (!take(">")) return fail("a tag does not end");
    open_.push_back(element);
  }

  static constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string_view text_;
  std::string error_;
  std::vector<std::string> open_;
  int roots_ = 0;
};

inline std::string xml_error(std::string_view text) { return XmlReader(text).error(); }

}  // namespace perseid
