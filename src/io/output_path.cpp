// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/output_path.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "base/descriptor.hpp"
#include "io/system_error.hpp"

namespace perseid::internal::io {
namespace {

constexpr int kMostLinks = 40;  // as Linux

// What the kernel's protected_symlinks holds for links that it follows itself.
bool is_planted(const struct stat& link, const std::string& folder) {
  struct stat facts {};
  if (link.st_uid == ::geteuid()) return false;
  if (::stat(folder.c_str(), &facts) != 0) return true;
  return (facts.st_mode & S_ISVTX) != 0 && (facts.st_mode & S_IWOTH) != 0 &&
         facts.st_uid != link.st_uid;
}

// Where the link at `path` leads.
Status read_link(int link, std::string* path) {
  char target[PATH_MAX];
  const ssize_t length = ::readlinkat(link, "", target, sizeof target);
  if (length < 0) return system_error(errno, "read the symbolic link '", *path, "'");
  const std::string_view text(target, static_cast<size_t>(length));
  *path = text.starts_with('/') ? std::string(text) : concatenate(folder_of(*path), text);
  return {};
}

}  // namespace

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

Status find_output(const std::string& path, Output* output) {
  *output = {path, {}};
  for (int links = 0; links <= kMostLinks; ++links) {
    const Descriptor found(open_file(output->path.c_str(), O_PATH | O_NOFOLLOW));
    if (!found.opened() && errno == ENOENT) return {};
    if (!found.opened()) return system_error(errno, "open it for writing");
    struct stat facts {};
    if (::fstat(found.number(), &facts) != 0) return system_error(errno, "ask for its type");
    if (S_ISREG(facts.st_mode)) {
      output->mode = facts.st_mode & kModeBits;
      return {};
    }
    if (!S_ISLNK(facts.st_mode))
      return Status::error(PERSEID_IO_ERROR, "expected a regular file or none to replace, got ",
                           S_ISDIR(facts.st_mode) ? "a folder" : "a device, pipe or socket");
    if (is_planted(facts, folder_of(output->path)))
      return Status::error(PERSEID_IO_ERROR, "the symbolic link '", output->path,
                           "' belongs to another user, in a folder that everyone may write; "
                           "remove it or name the file that it leads to");
    if (Status status = read_link(found.number(), &output->path); !status.ok()) return status;
  }
  return system_error(ELOOP, "open it for writing");
}

}  // namespace perseid::internal::io
