// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/temporary_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "base/descriptor.hpp"
#include "base/status.hpp"

namespace perseid::internal::io {
namespace {

constexpr std::string_view kPrefix = ".perseid-", kSuffix = ".tmp";
// Entries of a folder that one writer looks at: some 100 microseconds.
constexpr int kMostEntries = 1000;

// FNV-1a.
uint32_t hash_of_host() {
  utsname names{};
  uint32_t hash = 2166136261u;
  if (::uname(&names) != 0) return hash;
  for (const char* c = names.nodename; *c != '\0'; ++c)
    hash = (hash ^ static_cast<unsigned char>(*c)) * 16777619u;
  return hash;
}

// In ticks since the host was booted; 0 where it cannot be had.
uint64_t start_of(pid_t process) {
  char path[32] = "/proc/";
  const auto written = std::to_chars(path + 6, path + 20, process);
  std::string_view("/stat").copy(written.ptr, 5);
  const Descriptor file(open_file(path, O_RDONLY));
  char text[1024];
  const ssize_t bytes = file.opened() ? ::read(file.number(), text, sizeof text) : -1;
  if (bytes <= 0) return 0;
  // "PID (NAME) STATE PARENT ...": the 22nd field. A name may hold anything, ')' included.
  std::string_view rest(text, static_cast<size_t>(bytes));
  const size_t name_end = rest.rfind(") ");
  if (name_end == std::string_view::npos) return 0;
  rest.remove_prefix(name_end + 2);
  for (int field = 3; field < 22; ++field) {
    const size_t space = rest.find(' ');
    if (space == std::string_view::npos) return 0;
    rest.remove_prefix(space + 1);
  }
  uint64_t start = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), start);
  return start;
}

bool runs(pid_t process, uint64_t start) {
  if (::kill(process, 0) != 0 && errno == ESRCH) return false;
  const uint64_t now = start_of(process);
  return start == 0 || now == 0 || now == start;
}

template <class Number>
bool take_number(std::string_view* text, Number* number, int base, char end) {
  const char* last = text->data() + text->size();
  const auto [ptr, error] = std::from_chars(text->data(), last, *number, base);
  if (error != std::errc{} || ptr == last || *ptr != end) return false;
  text->remove_prefix(static_cast<size_t>(ptr - text->data()) + 1);
  return true;
}

// Whether the name is that of a temporary file whose process has ended.
bool is_abandoned(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size() - 1);  // keeps the '.'
  uint32_t host = 0;
  pid_t process = 0;
  uint64_t start = 0, count = 0;
  return take_number(&name, &host, 16, '-') && take_number(&name, &process, 10, '-') &&
         take_number(&name, &start, 10, '-') && take_number(&name, &count, 10, '.') &&
         name.empty() && process > 0 && host == hash_of_host() && !runs(process, start);
}

bool lock(int descriptor) {
  int result = -1;
  do result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

void remove_unlocked(int folder, const char* name) {
  // Some file systems lock only what is open for writing.
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  int descriptor = ::openat(folder, name, O_RDWR | kFlags);
  if (descriptor < 0 && errno == EACCES) descriptor = ::openat(folder, name, O_RDONLY | kFlags);
  const Descriptor file(above_standard_streams(descriptor));
  struct stat facts {};
  if (file.opened() && ::fstat(file.number(), &facts) == 0 && S_ISREG(facts.st_mode) &&
      lock(file.number()))
    ::unlinkat(folder, name, 0);
}

// A new file is locked before anybody can have removed it, or is given up. Where the file system
// has no locks nobody removes it.
bool lock_new(int descriptor) {
  struct stat facts {};
  if (!lock(descriptor) && errno == EWOULDBLOCK) return false;
  return ::fstat(descriptor, &facts) != 0 || facts.st_nlink > 0;
}

}  // namespace

int create_temporary(const std::string& folder, mode_t mode, std::string* path) {
  static std::atomic<uint64_t> counter{0};
  constexpr int kAttempts = 100;
  char host[9] = {};
  std::to_chars(host, host + 8, hash_of_host(), 16);
  const pid_t process = ::getpid();
  const std::string prefix =
      concatenate(folder, kPrefix, host, "-", process, "-", start_of(process), "-");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    *path = concatenate(prefix, counter.fetch_add(1), kSuffix);
    Descriptor file(open_file(path->c_str(), O_WRONLY | O_CREAT | O_EXCL, mode));
    if (!file.opened() && errno != EEXIST) return -1;
    if (!file.opened()) continue;
    if (lock_new(file.number())) return file.release();
    ::unlink(path->c_str());
  }
  errno = EEXIST;
  return -1;
}

void remove_abandoned(const std::string& folder) {
  Descriptor descriptor(open_file(folder.c_str(), O_RDONLY | O_DIRECTORY));
  DIR* entries = descriptor.opened() ? ::fdopendir(descriptor.number()) : nullptr;
  if (entries == nullptr) return;
  const int number = descriptor.release();  // closedir closes it
  for (int i = 0; i < kMostEntries; ++i) {
    const dirent* entry = ::readdir(entries);
    if (entry == nullptr) break;
    if (is_abandoned(entry->d_name)) remove_unlocked(number, entry->d_name);
  }
  ::closedir(entries);
}

}  // namespace perseid::internal::io
