// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/cache.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuda/runtime/hash.hpp"
#include "dispatch/log.hpp"

namespace perseid::cuda {
namespace {

namespace fs = std::filesystem;

// An entry: this, the hash and the size of its content, the content. The content: the key and the
// names, each ended by a 0, another 0, the code.
constexpr std::string_view kMagic = "perseid module 1";
struct Head {
  char magic[16];
  uint64_t hash, bytes;
};
static_assert(sizeof(Head) == 32 && kMagic.size() == sizeof Head::magic);

std::string hexadecimal(uint64_t number) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; number >>= 4) text[i] = "0123456789abcdef"[number & 15];
  return text;
}

bool read_file(const std::string& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::ostringstream all;
  all << file.rdbuf();
  *text = std::move(all).str();
  return !file.bad();
}

std::string path_of(const std::string& folder, const std::string& key) {
  return folder + "/" + hexadecimal(Hash().add(key).value()) + ".module";
}

// Up to the next 0.
std::string take_text(std::string_view* content) {
  const size_t end = content->find('\0');
  const std::string text(content->substr(0, end));
  content->remove_prefix(end == std::string_view::npos ? content->size() : end + 1);
  return text;
}

std::string beside_the_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&read_pack), &info) == 0 || info.dli_fname == nullptr)
    return "";
  return (fs::path(info.dli_fname).parent_path() / "perseid.pack").string();
}

}  // namespace

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string own = variable("PERSEID_CACHE_DIR"); !own.empty()) return own;
  if (std::string caches = variable("XDG_CACHE_HOME"); !caches.empty()) return caches + "/perseid";
  if (std::string home = variable("HOME"); !home.empty()) return home + "/.cache/perseid";
  return "";
}

std::string key_of(const Program& program, const Version* compiler) {
  std::string key = concatenate("sources ", hexadecimal(sources_hash()), "\nheader ",
                                program.header, "\narchitecture ", program.architecture, "\n");
  if (compiler != nullptr)
    key += concatenate("nvrtc ", compiler->major, ".", compiler->minor, "\n");
  for (const std::string& kernel : program.kernels) key += concatenate("kernel ", kernel, "\n");
  return key;
}

std::string write_entry(const std::string& key, const Image& image) {
  std::string content = key + '\0';
  for (const std::string& name : image.names) content += name + '\0';
  content += '\0' + image.code;
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.hash = Hash().add(content).value();
  head.bytes = content.size();
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + content;
}

bool read_entry(std::string_view* text, std::string* key, Image* image) {
  Head head{};
  if (text->size() < sizeof head) return false;
  std::memcpy(&head, text->data(), sizeof head);
  if (std::string_view(head.magic, sizeof head.magic) != kMagic ||
      head.bytes > text->size() - sizeof head)
    return false;
  std::string_view content = text->substr(sizeof head, head.bytes);
  if (Hash().add(content).value() != head.hash) return false;
  text->remove_prefix(sizeof head + head.bytes);
  *key = take_text(&content);
  *image = {};
  for (std::string name = take_text(&content); !name.empty(); name = take_text(&content))
    image->names.push_back(std::move(name));
  image->code = content;
  return true;
}

bool load_cached(const std::string& folder, const std::string& key, Image* image) {
  std::string text, found;
  if (folder.empty() || !read_file(path_of(folder, key), &text)) return false;
  std::string_view rest = text;
  return read_entry(&rest, &found, image) && found == key && rest.empty();
}

void store_cached(const std::string& folder, const std::string& key, const Image& image) {
  if (folder.empty()) return;
  static std::atomic<uint64_t> count{0};
  const std::string path = path_of(folder, key);
  const std::string temporary = concatenate(path, ".", getpid(), ".", ++count);
  std::error_code failure;
  fs::create_directories(folder, failure);
  bool written = false;
  {
    std::ofstream file(temporary, std::ios::binary);
    file << write_entry(key, image);
    file.close();
    written = !file.fail();
  }
  if (written) {
    fs::rename(temporary, path, failure);
    written = !failure;
  }
  if (written) return;
  fs::remove(temporary, failure);
  log(PERSEID_LOG_WARNING,
      concatenate("a compiled kernel could not be kept in ", folder,
                  "; it will be compiled again by the next process (set PERSEID_CACHE_DIR to a "
                  "folder that can be written and has room)"));
}

Pack read_pack(const std::string& path) {
  Pack pack;
  std::string text;
  if (path.empty() || !read_file(path, &text)) return pack;
  std::string key;
  Image image;
  for (std::string_view rest = text; read_entry(&rest, &key, &image);)
    pack.insert_or_assign(key, std::move(image));
  return pack;
}

const Pack& kernel_pack() {
  static const Pack kPack = [] {
    const char* chosen = std::getenv("PERSEID_PACK");
    return read_pack(chosen != nullptr ? chosen : beside_the_library());
  }();
  return kPack;
}

}  // namespace perseid::cuda
