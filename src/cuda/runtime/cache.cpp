// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/cache.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.hpp"
#include "cuda/runtime/hash.hpp"

namespace perseid::internal::cuda {
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

// The head of an entry, all of whose content is there.
bool read_head(std::string_view text, Head* head) {
  if (text.size() < sizeof *head) return false;
  std::memcpy(head, text.data(), sizeof *head);
  return std::string_view(head->magic, sizeof head->magic) == kMagic &&
         head->bytes <= text.size() - sizeof *head;
}

// Up to the next 0.
std::string_view take_text(std::string_view* content) {
  const size_t end = content->find('\0');
  const std::string_view text = content->substr(0, end);
  content->remove_prefix(end == std::string_view::npos ? content->size() : end + 1);
  return text;
}

std::string beside_the_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&kernel_pack), &info) == 0 || info.dli_fname == nullptr)
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
  std::string key = concatenate("source ", hexadecimal(source_hash(program.header)), "\nheader ",
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

bool read_entry(std::string_view text, const std::string& key, Image* image) {
  Head head{};
  if (!read_head(text, &head) || text.size() != sizeof head + head.bytes) return false;
  std::string_view content = text.substr(sizeof head);
  if (Hash().add(content).value() != head.hash || take_text(&content) != key) return false;
  *image = {};
  for (std::string_view name = take_text(&content); !name.empty(); name = take_text(&content))
    image->names.emplace_back(name);
  image->code = content;
  return true;
}

bool load_cached(const std::string& folder, const std::string& key, Image* image) {
  std::string text;
  return !folder.empty() && read_file(path_of(folder, key), &text) && read_entry(text, key, image);
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

Pack::Pack(const std::string& path) {
  const int file = path.empty() ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat facts {};
  if (file < 0) return;
  if (fstat(file, &facts) == 0 && facts.st_size > 0) {
    const auto bytes = static_cast<size_t>(facts.st_size);
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (data != MAP_FAILED) file_ = {static_cast<const char*>(data), bytes};
  }
  close(file);
  std::string_view rest = file_;
  for (Head head{}; read_head(rest, &head);) {
    const std::string_view entry = rest.substr(0, sizeof head + head.bytes);
    std::string_view content = entry.substr(sizeof head);
    entries_.emplace(take_text(&content), entry);
    rest.remove_prefix(entry.size());
  }
}

Pack::~Pack() {
  if (!file_.empty()) munmap(const_cast<char*>(file_.data()), file_.size());
}

bool Pack::find(const std::string& key, Image* image) const {
  const auto found = entries_.find(key);
  return found != entries_.end() && read_entry(found->second, key, image);
}

const Pack& kernel_pack() {
  // Never unmapped: threads may still make plans while the process ends.
  static const Pack* const kPack = [] {
    const char* chosen = std::getenv("PERSEID_PACK");
    return new Pack(chosen != nullptr ? chosen : beside_the_library());
  }();
  return *kPack;
}

}  // namespace perseid::internal::cuda
