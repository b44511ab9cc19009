// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/cache.hpp"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/log.hpp"
#include "cuda/runtime/deflate.hpp"
#include "cuda/runtime/hash.hpp"
#include "cuda/runtime/trusted_file.hpp"

namespace perseid::internal::cuda {
namespace {

// An entry: this, the hashes of its key and of the bytes that follow, how many these are, and how
// many they are inflated. The content: the key and the names, each ended by a 0, another 0, the
// code. The code of a kernel has a quarter of its bytes deflated.
constexpr std::string_view kMagic = "perseid module 3";
struct Head {
  char magic[16];
  uint64_t key, hash, bytes, inflated;
};
static_assert(sizeof(Head) == 48 && kMagic.size() == sizeof Head::magic);
// No module is larger.
constexpr uint64_t kMostBytes = 256 << 20;

std::string hexadecimal(uint64_t number) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; number >>= 4) text[i] = "0123456789abcdef"[number & 15];
  return text;
}

std::string name_of(const std::string& key) {
  return hexadecimal(Hash().add(key).value()) + ".module";
}

// The head at `offset` of a file of `size` bytes, which must hold all of its content.
bool read_head(const Descriptor& file, uint64_t offset, uint64_t size, Head* head) {
  std::string text;
  if (size < offset || size - offset < sizeof *head || !read_at(file, offset, sizeof *head, &text))
    return false;
  std::memcpy(head, text.data(), sizeof *head);
  return std::string_view(head->magic, sizeof head->magic) == kMagic &&
         head->bytes <= size - offset - sizeof *head;
}

void warn(const std::string& what, const Status& why, const char* advice) {
  log(PERSEID_LOG_WARNING, concatenate(what, " is not used: ", why.sentence(), "; ", advice));
}

constexpr const char* kFolderAdvice =
    "kernels are compiled again by every process (set PERSEID_CACHE_DIR to a folder of your own)";

// Up to the next 0.
std::string_view take_text(std::string_view* content) {
  const size_t end = content->find('\0');
  const std::string_view text = content->substr(0, end);
  content->remove_prefix(end == std::string_view::npos ? content->size() : end + 1);
  return text;
}

// Empty in a privileged (setuid) program: its caller must not choose its code.
std::string variable(const char* name) {
  const char* value = secure_getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string cache_folder() {
  if (std::string own = variable("PERSEID_CACHE_DIR"); !own.empty()) return own;
  if (std::string caches = variable("XDG_CACHE_HOME"); !caches.empty()) return caches + "/perseid";
  if (std::string home = variable("HOME"); !home.empty()) return home + "/.cache/perseid";
  return "";
}

std::string key_of(const Program& program, const Version* compiler) {
  std::string key = concatenate("source ", hexadecimal(source_hash(program.header)), "\nheader ",
                                program.header, "\narchitecture ", program.architecture, "\n");
  if (compiler != nullptr)
    key += concatenate("nvrtc ", compiler->major, ".", compiler->minor, "\n");
  for (const std::string& kernel : program.kernels) key += concatenate("kernel ", kernel, "\n");
  if (!program.text.empty()) key += concatenate("text\n", program.text);
  return key;
}

std::string write_entry(const std::string& key, const Image& image) {
  std::string content = key + '\0';
  for (const std::string& name : image.names) content += name + '\0';
  content += '\0' + image.code;
  Head head{};
  head.inflated = content.size();
  content = deflate(std::move(content));
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.key = Hash().add(key).value();
  head.hash = Hash().add(content).value();
  head.bytes = content.size();
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + content;
}

bool read_entry(std::string_view text, const std::string& key, Image* image) {
  Head head{};
  if (text.size() < sizeof head) return false;
  std::memcpy(&head, text.data(), sizeof head);
  const std::string_view bytes = text.substr(sizeof head);
  std::string whole;
  if (std::string_view(head.magic, sizeof head.magic) != kMagic ||
      head.key != Hash().add(key).value() || head.bytes != bytes.size() ||
      Hash().add(bytes).value() != head.hash || head.inflated > kMostBytes ||
      !inflate(bytes, head.inflated, &whole))
    return false;
  std::string_view content = whole;
  if (take_text(&content) != key) return false;
  *image = {};
  for (std::string_view name = take_text(&content); !name.empty(); name = take_text(&content))
    image->names.emplace_back(name);
  image->code = content;
  return !image->names.empty();
}

bool load_cached(const std::string& folder, const std::string& key, Image* image) {
  if (folder.empty()) return false;
  Descriptor opened, file;
  if (Status status = open_trusted_folder(folder, &opened); !status.ok()) {
    warn(folder, status, kFolderAdvice);
    return false;
  }
  if (!opened.opened()) return false;
  const std::string name = name_of(key);
  if (Status status = open_trusted_file(opened, name, &file); !status.ok()) {
    warn(concatenate(folder, "/", name), status, "remove it");
    return false;
  }
  std::string text;
  const uint64_t bytes = file.opened() ? size_of(file) : 0;
  return bytes > 0 && bytes <= kMostBytes && read_at(file, 0, bytes, &text) &&
         read_entry(text, key, image);
}

void store_cached(const std::string& folder, const std::string& key, const Image& image) {
  if (folder.empty()) return;
  make_private_folder(folder);
  Descriptor opened;
  if (Status status = open_trusted_folder(folder, &opened); !status.ok())
    return warn(folder, status, kFolderAdvice);
  if (!opened.opened() || !replace_file(opened, name_of(key), write_entry(key, image)))
    log(PERSEID_LOG_WARNING,
        concatenate("a compiled kernel could not be kept in ", folder,
                    "; it will be compiled again by the next process (set PERSEID_CACHE_DIR to a "
                    "folder that can be written and has room)"));
}

Pack::Pack(const std::string& path, uint32_t owner)
    : path_(path.empty() ? "" : std::filesystem::absolute(path).string()), owner_(owner) {
  Descriptor file;
  if (path_.empty()) return;
  if (Status status = open_trusted_file(path_, owner_, &file); !status.ok())
    warn(path_, status, "its kernels are compiled when plans need them");
  if (!file.opened()) return;
  const uint64_t size = size_of(file);
  uint64_t offset = 0;
  for (Head head{}; read_head(file, offset, size, &head);) {
    entries_.emplace(head.key, Entry{offset, sizeof head + head.bytes});
    offset += sizeof head + head.bytes;
  }
}

bool Pack::find(const std::string& key, Image* image) const {
  const auto found = entries_.find(Hash().add(key).value());
  if (found == entries_.end() || found->second.bytes > kMostBytes) return false;
  // Opened for each entry, since a library should not keep a file open while it is loaded. The hash
  // detects that the file was replaced.
  Descriptor file;
  std::string text;
  return open_trusted_file(path_, owner_, &file).ok() && file.opened() &&
         read_at(file, found->second.offset, found->second.bytes, &text) &&
         read_entry(text, key, image);
}

bool Pack::has(const std::string& key) const { return entries_.contains(Hash().add(key).value()); }

const Pack& kernel_pack() {
  // Never destroyed: threads may still make plans while the process ends.
  static const Pack* const kPack = [] {
    if (const char* chosen = secure_getenv("PERSEID_PACK"); chosen != nullptr)
      return new Pack(chosen);
    // The owner of the library chose its code, and may choose its kernels.
    Dl_info info{};
    struct stat facts {};
    if (dladdr(reinterpret_cast<const void*>(&kernel_pack), &info) == 0 ||
        info.dli_fname == nullptr || stat(info.dli_fname, &facts) != 0)
      return new Pack();
    return new Pack((std::filesystem::path(info.dli_fname).parent_path() / "perseid.pack").string(),
                    facts.st_uid);
  }();
  return *kPack;
}

}  // namespace perseid::internal::cuda
