// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "data.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "parameters.hpp"

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestSource = 1 << 20;

bool is_text(const fs::path& file) {
  static constexpr std::array kExtensions = {".h",  ".hpp",   ".c",  ".cpp", ".cuh", ".cu",
                                             ".md", ".cmake", ".py", ".sh",  ".txt"};
  return std::ranges::find(kExtensions, file.extension()) != kExtensions.end();
}

bool is_left_out(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with(".") || name.starts_with("build") ||
         fs::exists(folder / "CMakeCache.txt");
}

std::vector<uint8_t> read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) {
    throw perseid::Error(PERSEID_IO_ERROR,
                         "cannot read '" + path.string() + "'; give a file of text, or a folder");
  }
  return bytes;
}

std::vector<uint8_t> read_tree(const fs::path& root) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(root, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_directory() && is_left_out(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && is_text(entry->path()) &&
               entry->file_size() <= kLargestSource) {
      files.push_back(entry->path());
    }
  }
  if (error) {
    throw perseid::Error(PERSEID_IO_ERROR, "cannot list '" + root.string() + "' (" +
                                               error.message() + "); give a file of text");
  }
  std::ranges::sort(files);
  std::vector<uint8_t> bytes;
  for (const auto& file : files) {
    const auto text = read_file(file);
    bytes.insert(bytes.end(), text.begin(), text.end());
    bytes.push_back('\n');
  }
  return bytes;
}

}  // namespace

std::vector<uint8_t> read_text(const fs::path& path) {
  return fs::is_directory(path) ? read_tree(path) : read_file(path);
}

Data::Data(std::vector<uint8_t> bytes, int64_t context)
    : bytes_(std::move(bytes)), context_(context), training_(size() - size() / 10) {
  if (size() - training_ <= context) {
    throw perseid::Error(PERSEID_INVALID_ARGUMENT,
                         "the text has " + std::to_string(size()) + " bytes; sequences of " +
                             std::to_string(context) + " bytes need a text of at least " +
                             std::to_string(10 * (context + 1)) +
                             ": give a longer one, or a smaller --context");
  }
}

void Data::draw(uint64_t seed, int64_t step, std::span<uint8_t> tokens,
                std::span<uint8_t> targets) const {
  const auto context = static_cast<size_t>(context_);
  const size_t batch = tokens.size() / context;
  const auto choices = static_cast<uint64_t>(training_ - context_);
  for (size_t i = 0; i < batch; ++i) {
    const uint64_t index = static_cast<uint64_t>(step) * batch + i;
    const auto begin = static_cast<int64_t>(random_bits(~seed, index) % choices);
    copy(begin, tokens.subspan(i * context, context), targets.subspan(i * context, context));
  }
}

int64_t Data::validation_sequences() const { return (size() - training_ - 1) / context_; }

void Data::validation(int64_t index, std::span<uint8_t> tokens, std::span<uint8_t> targets) const {
  copy(training_ + index * context_, tokens, targets);
}

void Data::copy(int64_t begin, std::span<uint8_t> tokens, std::span<uint8_t> targets) const {
  const auto from = bytes_.begin() + begin;
  std::copy_n(from, context_, tokens.begin());
  std::copy_n(from + 1, context_, targets.begin());
}

uint64_t Data::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (uint8_t byte : bytes_) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

}  // namespace gpt
