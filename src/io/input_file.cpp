// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/input_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>

#include "base/descriptor.hpp"
#include "io/system_error.hpp"

namespace perseid::internal::io {
namespace {

// Both formats align their data to this, counted from the beginning of the file.
constexpr std::align_val_t kAlignment{64};

}  // namespace

InputFile::~InputFile() {
  if (mapped_)
    ::munmap(data_, size_);
  else
    ::operator delete(data_, kAlignment);
}

Status InputFile::read(int descriptor, size_t bytes) {
  data_ = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  while (size_ < bytes) {
    const ssize_t got = ::read(descriptor, data_ + size_, bytes - size_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read it");
    if (got == 0)
      return Status::error(PERSEID_IO_ERROR, "it had ", bytes, " bytes when it was opened, and ",
                           size_, " when it was read: another process cut it short");
    size_ += static_cast<size_t>(got);
  }
  return {};
}

Status InputFile::map(int descriptor, size_t bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    if (error == ENOMEM)
      return Status::error(PERSEID_OUT_OF_MEMORY, "no address space to map its ", bytes, " bytes");
    return system_error(error, "map it into memory");
  }
  mapped_ = true;
  data_ = static_cast<std::byte*>(mapped);
  size_ = bytes;
  return {};
}

Status InputFile::open(const char* path) {
  // Non-blocking: opening a named pipe that nobody writes would wait for ever.
  const Descriptor file(open_file(path, O_RDONLY | O_NONBLOCK));
  if (!file.opened()) return system_error(errno, "open it for reading");
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0) return system_error(errno, "ask for its size");
  if (!S_ISREG(facts.st_mode))
    return Status::error(PERSEID_IO_ERROR, "expected a regular file, got ",
                         S_ISDIR(facts.st_mode) ? "a folder" : "a device, pipe or socket",
                         "; copy its content into a file first");
  const auto bytes = static_cast<uint64_t>(facts.st_size);
  if (bytes > static_cast<uint64_t>(PTRDIFF_MAX))
    return Status::error(PERSEID_IO_ERROR, "its ", bytes,
                         " bytes are more than this process can address");
  if (bytes == 0) return {};  // The parsers say what is missing.
  return bytes <= kMostBytesRead ? read(file.number(), static_cast<size_t>(bytes))
                                 : map(file.number(), static_cast<size_t>(bytes));
}

}  // namespace perseid::internal::io
