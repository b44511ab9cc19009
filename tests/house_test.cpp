// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Holds the house: which folder may include which, how long a file may be, the licence line, and
// that no kernel shares an out-of-line function with code for another instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr int kMaxLines = 600;

const fs::path kRoot = PERSEID_SOURCE_DIR;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kSuffixes = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh"};
  return kSuffixes.contains(path.extension().string());
}

// Files that carry a licence line: sources, CMake files and scripts.
bool is_licensed(const fs::path& path) {
  return is_source(path) || path.filename() == "CMakeLists.txt" || path.extension() == ".cmake" ||
         path.extension() == ".py" || path.extension() == ".sh" || path.filename() == "dev";
}

// The project's own files, relative to its root.
std::vector<fs::path> project_files() {
  static const std::vector<fs::path> kFiles = [] {
    std::vector<fs::path> files = {"CMakeLists.txt", "dev"};
    for (const char* folder : {"include", "src", "cli", "examples", "tests", "bench", "cmake"}) {
      for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
        if (entry.is_regular_file() && entry.path().filename() != "dlpack.h")
          files.push_back(fs::relative(entry.path(), kRoot));
    }
    return files;
  }();
  return kFiles;
}

// Where a file lives: "include", "cli", "examples", "tests", "bench", or the folder below src.
std::string room_of(const fs::path& path) {
  auto part = path.begin();
  if (*part == "src") ++part;
  return part->string();
}

// What each room may include, by first folder of the include path. perseid/ is the public headers.
const std::map<std::string, std::set<std::string>>& allowed_includes() {
  static const std::map<std::string, std::set<std::string>> kAllowed = {
      {"include", {"perseid"}},
      {"api", {"perseid", "api", "collective", "op", "dispatch", "cpu", "math", "io", "base"}},
      {"collective", {"perseid", "collective", "op", "dispatch", "cpu", "cuda", "math", "base"}},
      {"op", {"perseid", "op", "dispatch", "cpu", "math", "base"}},
      {"dispatch", {"perseid", "dispatch", "cpu", "cuda", "math", "base"}},
      {"cuda", {"perseid", "cuda", "math", "base"}},
      {"cpu", {"cpu", "math", "base"}},
      {"io", {"perseid", "io", "math", "base"}},
      {"math", {"math"}},
      {"base", {"perseid", "base"}},
  };
  return kAllowed;
}

// The path of `#include "path"`; empty for any other line.
std::string quoted_include(const std::string& line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line[at] != '#') return "";
  at = line.find_first_not_of(" \t", at + 1);
  if (at == std::string::npos || line.compare(at, 7, "include") != 0) return "";
  const size_t begin = line.find('"', at);
  const size_t end = line.find('"', begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return line.substr(begin + 1, end - begin - 1);
}

TEST(House, IncludesPointDown) {
  size_t checked = 0;
  for (const fs::path& file : project_files()) {
    const auto room = allowed_includes().find(room_of(file));
    if (!is_source(file) || room == allowed_includes().end()) continue;
    for (const std::string& line : lines_of(kRoot / file)) {
      const std::string path = quoted_include(line);
      if (path.empty()) continue;
      ++checked;
      // The C header holds the words that the layers share, such as the statuses; the C++ layer
      // over it is for users.
      const bool users_own = room->first != "include" && path.starts_with("perseid/") &&
                             path != "perseid/perseid.h" && path != "perseid/dlpack.h";
      EXPECT_TRUE(!users_own && room->second.contains(fs::path(path).begin()->string()))
          << file.string() << " includes \"" << path << "\", which " << room->first
          << "/ must not know (includes are written from src/ or include/)";
    }
  }
  EXPECT_GT(checked, 20u) << "the test reads too few includes to mean anything";
}

// The reference would not be an oracle if it were made of what it judges.
TEST(House, ReferenceSharesNoCodeWithTheKernels) {
  for (const fs::path& file : project_files()) {
    if (!is_source(file) || file.parent_path() != "src/cpu/reference") continue;
    for (const std::string& line : lines_of(kRoot / file))
      EXPECT_EQ(quoted_include(line).find("cpu/simd"), std::string::npos) << file.string();
  }
}

// Programs see what any user sees.
TEST(House, ProgramsIncludePublicHeadersAlone) {
  for (const fs::path& file : project_files()) {
    const std::string room = room_of(file);
    if (!is_source(file) || (room != "cli" && room != "examples")) continue;
    for (const std::string& line : lines_of(kRoot / file)) {
      const std::string path = quoted_include(line);
      if (path.empty() || path.starts_with("perseid/")) continue;
      const bool own =
          fs::exists(kRoot / room / path) || fs::exists(kRoot / file.parent_path() / path);
      EXPECT_TRUE(own && path.find("..") == std::string::npos)
          << file.string() << " includes \"" << path << "\", which is neither public nor its own";
    }
  }
}

// Inline assembly lives in ptx/ alone.
TEST(House, AssemblyIsInPtxAlone) {
  for (const fs::path& file : project_files()) {
    if (!is_source(file) || file.string().starts_with("src/cuda/device/ptx/")) continue;
    if (file == "tests/house_test.cpp") continue;
    size_t number = 0;
    for (const std::string& line : lines_of(kRoot / file)) {
      ++number;
      for (const char* word : {"asm(", "asm volatile", "__asm__"})
        EXPECT_EQ(line.find(word), std::string::npos)
            << file.string() << ", line " << number << " has inline assembly";
    }
  }
}

TEST(House, FilesAreShort) {
  for (const fs::path& file : project_files()) {
    if (!is_source(file)) continue;
    const size_t lines = lines_of(kRoot / file).size();
    EXPECT_LE(lines, size_t{kMaxLines}) << file.string() << " has " << lines << " lines";
  }
}

TEST(House, FilesNameTheirLicence) {
  for (const fs::path& file : project_files()) {
    if (!is_licensed(file)) continue;
    const std::vector<std::string> lines = lines_of(kRoot / file);
    const auto head = lines.begin() + std::min<std::ptrdiff_t>(3, std::ssize(lines));
    const auto has = [&](const char* text) {
      return std::any_of(lines.begin(), head, [&](const std::string& line) {
        return line.find(text) != std::string::npos;
      });
    };
    EXPECT_TRUE(has("SPDX-FileCopyrightText: 2026 The Perseid Authors") &&
                has("SPDX-License-Identifier: Apache-2.0"))
        << file.string() << " lacks the SPDX lines at its head";
  }
}

#if defined(PERSEID_OBJECT_LIST)
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  std::array<char, 4096> buffer;
  while (pipe != nullptr) {
    const size_t got = fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (got == 0) break;
    output.append(buffer.data(), got);
  }
  return output;
}

// The linker keeps one of several weak definitions of a name. Were a shared template compiled into
// the object of an instruction set, that copy might be the one that runs on machines without it.
TEST(House, KernelObjectsKeepTheirSymbolsToThemselves) {
  size_t objects = 0;
  for (const std::string& path : lines_of(PERSEID_OBJECT_LIST)) {
    if (path.find("/simd/") == std::string::npos) continue;
    ++objects;
    std::string isa = fs::path(path).filename().string();
    isa.resize(isa.find('.'));
    std::string command = PERSEID_NM " --demangle --defined-only '";
    command.append(path).append("'");
    std::istringstream symbols(output_of(command));
    size_t count = 0;
    for (std::string line; std::getline(symbols, line); ++count) {
      // "0000000000000000 W name"
      const size_t type = line.find(' ');
      if (type == std::string::npos || type + 3 >= line.size()) continue;
      if (std::string_view("WVu").find(line[type + 1]) == std::string_view::npos) continue;
      const std::string name = line.substr(type + 3);
      if (name.starts_with("DW.ref.")) continue;  // the address of a personality function
      EXPECT_NE(name.find("perseid::internal::cpu::" + isa + "::"), std::string::npos)
          << path << " defines the shared symbol " << name;
    }
    EXPECT_GT(count, 0u) << PERSEID_NM << " says nothing about " << path;
  }
  EXPECT_GE(objects, 1u);
}
#endif

}  // namespace
