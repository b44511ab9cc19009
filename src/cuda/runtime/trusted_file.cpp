// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/trusted_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

namespace perseid::internal::cuda {
namespace {

constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

std::string octal(mode_t mode) {
  std::string text(3, '0');
  for (size_t i = 3; i-- > 0; mode >>= 3) text[i] = static_cast<char>('0' + (mode & 7));
  return text;
}

Status check_trust(const struct stat& facts, mode_t kind, uid_t owner) {
  if ((facts.st_mode & S_IFMT) != kind)
    return Status::error(PERSEID_IO_ERROR, "it is no ",
                         kind == S_IFDIR ? "folder" : "regular file");
  const uid_t user = geteuid();
  if (facts.st_uid != user && facts.st_uid != 0 && facts.st_uid != owner)
    return Status::error(PERSEID_IO_ERROR, "it belongs to user ", facts.st_uid, ", expected user ",
                         user, " or root");
  if ((facts.st_mode & kWritableByOthers) != 0)
    return Status::error(PERSEID_IO_ERROR, "others may write it (mode ", octal(facts.st_mode),
                         "); take that from them (chmod go-w)");
  return {};
}

// Moves `opened` to *result if its owner and mode are trusted.
Status accept(Descriptor opened, mode_t kind, uid_t owner, Descriptor* result) {
  if (!opened.opened()) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return {};
    return Status::error(PERSEID_IO_ERROR,
                         "it cannot be opened: ", std::generic_category().message(error));
  }
  struct stat facts {};
  if (fstat(opened.number(), &facts) != 0)
    return Status::error(PERSEID_IO_ERROR, "its owner cannot be told");
  Status status = check_trust(facts, kind, owner);
  if (status.ok()) *result = std::move(opened);
  return status;
}

// Neither blocks on a FIFO nor makes a terminal the controlling one.
constexpr int kRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

bool write_all(const Descriptor& file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(file.number(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// A new file under a unique name: O_EXCL, never a file that exists.
Descriptor create_temporary(const Descriptor& folder, const std::string& name,
                            std::string* temporary) {
  static std::atomic<uint64_t> count{0};
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    *temporary = concatenate(name, ".", getpid(), ".", ++count);
    Descriptor file(above_standard_streams(
        openat(folder.number(), temporary->c_str(),
               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR)));
    if (file.opened() || errno != EEXIST) return file;
  }
  return Descriptor();
}

}  // namespace

Status open_trusted_file(const std::string& path, uid_t owner, Descriptor* file) {
  return accept(Descriptor(open_file(path.c_str(), kRead)), S_IFREG, owner, file);
}

Status open_trusted_folder(const std::string& path, Descriptor* folder) {
  return accept(Descriptor(open_file(path.c_str(), kRead)), S_IFDIR, 0, folder);
}

Status open_trusted_file(const Descriptor& folder, const std::string& name, Descriptor* file) {
  Descriptor opened(
      above_standard_streams(openat(folder.number(), name.c_str(), kRead | O_NOFOLLOW)));
  return accept(std::move(opened), S_IFREG, 0, file);
}

void make_private_folder(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), S_IRWXU);
    if (end == std::string::npos) return;
  }
}

bool replace_file(const Descriptor& folder, const std::string& name, std::string_view content) {
  std::string temporary;
  Descriptor file = create_temporary(folder, name, &temporary);
  if (!file.opened()) return false;
  const bool written = write_all(file, content);
  if (close(file.release()) == 0 && written &&
      renameat(folder.number(), temporary.c_str(), folder.number(), name.c_str()) == 0)
    return true;
  unlinkat(folder.number(), temporary.c_str(), 0);
  return false;
}

uint64_t size_of(const Descriptor& file) {
  struct stat facts {};
  return fstat(file.number(), &facts) == 0 ? static_cast<uint64_t>(facts.st_size) : 0;
}

bool read_at(const Descriptor& file, uint64_t offset, uint64_t bytes, std::string* text) {
  text->assign(static_cast<size_t>(bytes), '\0');
  for (size_t done = 0; done < text->size();) {
    const ssize_t got = pread(file.number(), text->data() + done, text->size() - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace perseid::internal::cuda
