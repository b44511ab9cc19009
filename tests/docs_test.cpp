// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The documents: every link leads to a file and a heading that exist, every page is of one of the
// four kinds and in the index, lines wrap.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = PERSEID_SOURCE_DIR;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Every Markdown file of the project, relative to its root.
std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    if (entry.path().extension() == ".md") found.push_back(entry.path().filename());
  }
  for (const char* folder : {"docs", "bench", "cli", "examples", "src", "tests", "include"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (entry.path().extension() == ".md") found.push_back(fs::relative(entry.path(), kRoot));
    }
  }
  return found;
}

// The lines of a page outside of code blocks.
std::vector<std::string> prose_of(const fs::path& page) {
  std::vector<std::string> prose;
  bool code = false;
  for (const std::string& line : lines_of(kRoot / page)) {
    if (line.starts_with("```")) code = !code;
    if (!code) prose.push_back(line);
  }
  return prose;
}

// The targets of a page's links, as written.
std::vector<std::string> links_of(const fs::path& page) {
  std::vector<std::string> links;
  for (const std::string& line : prose_of(page)) {
    for (size_t at = line.find("]("); at != std::string::npos; at = line.find("](", at + 1))
      links.push_back(line.substr(at + 2, line.find(')', at) - at - 2));
  }
  return links;
}

// The anchors of a page's headings: lower case, hyphens for spaces, no punctuation.
std::set<std::string> anchors_of(const fs::path& page) {
  std::set<std::string> anchors;
  for (const std::string& line : prose_of(page)) {
    const size_t text = line.find_first_not_of('#');
    if (text == 0 || text == std::string::npos || line[text] != ' ') continue;
    std::string anchor;
    for (const char c : line.substr(text + 1)) {
      if (c == ' ') anchor += '-';
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    anchors.insert(anchor);
  }
  return anchors;
}

TEST(Docs, LinksLeadSomewhere) {
  size_t checked = 0;
  for (const fs::path& page : pages()) {
    for (const std::string& link : links_of(page)) {
      if (link.find("://") != std::string::npos || link.starts_with("mailto:")) continue;
      ++checked;
      // Doxygen, which not every machine has, resolves no link within a page.
      EXPECT_NE(link.front(), '#')
          << page << " links to its own " << link << ": name the section instead";
      const size_t hash = std::min(link.find('#'), link.size());
      const fs::path target = (page.parent_path() / link.substr(0, hash)).lexically_normal();
      EXPECT_TRUE(fs::exists(kRoot / target)) << page << " links to " << link;
      if (hash == link.size() || target.extension() != ".md") continue;
      EXPECT_TRUE(anchors_of(target).contains(link.substr(hash + 1)))
          << page << " links to " << link << ", but " << target << " has no such heading";
    }
  }
  EXPECT_GT(checked, 50u) << "the test reads too few links to mean anything";
}

TEST(Docs, PagesAreOfFourKindsAndInTheIndex) {
  const std::set<std::string> kinds = {"tutorials", "howto", "reference", "explanation"};
  std::set<fs::path> indexed;
  for (const std::string& link : links_of("docs/README.md"))
    indexed.insert(fs::path("docs") / link.substr(0, link.find('#')));
  size_t checked = 0;
  for (const fs::path& page : pages()) {
    if (*page.begin() != "docs" || page == "docs/README.md") continue;
    ++checked;
    EXPECT_TRUE(kinds.contains(page.parent_path().filename().string()) &&
                page.parent_path().parent_path() == "docs")
        << page << " lies in none of docs/{tutorials,howto,reference,explanation}";
    EXPECT_TRUE(indexed.contains(page)) << "docs/README.md does not list " << page;
  }
  EXPECT_GT(checked, 8u);
}

// But tables and lines with a link may be longer.
TEST(Docs, LinesWrapAt100Columns) {
  for (const fs::path& page : pages()) {
    size_t number = 0;
    for (const std::string& line : lines_of(kRoot / page)) {
      ++number;
      if (line.starts_with("|") || line.find("](") != std::string::npos) continue;
      const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // a UTF-8 character's first byte
      });
      EXPECT_LE(columns, 100) << page << ", line " << number << ": " << line;
    }
  }
}

// Short enough to be read at once.
TEST(Docs, ExamplesAreShort) {
  size_t checked = 0;
  for (const auto& entry : fs::directory_iterator(kRoot / "examples")) {
    const std::string suffix = entry.path().extension().string();
    if (suffix != ".c" && suffix != ".cpp") continue;
    ++checked;
    const size_t lines = lines_of(entry.path()).size();
    EXPECT_LE(lines, 150u) << entry.path() << " has " << lines << " lines";
  }
  EXPECT_GE(checked, 6u);
}

// The API reference shows how every function of the C interface is called.
TEST(Docs, EveryFunctionHasAnExample) {
  size_t checked = 0;
  for (const auto& entry : fs::directory_iterator(kRoot / "include/perseid")) {
    if (entry.path().extension() != ".h") continue;
    bool shown = false;
    for (const std::string& line : lines_of(entry.path())) {
      if (line.starts_with("/**")) shown = false;
      if (line.find("\\snippet ") != std::string::npos) shown = true;
      if (!line.starts_with("PERSEID_API ")) continue;
      ++checked;
      EXPECT_TRUE(shown) << entry.path().filename() << " has no \\snippet of examples/snippets for "
                         << line;
      shown = false;
    }
  }
  EXPECT_GT(checked, 30u);
}

}  // namespace
