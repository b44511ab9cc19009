// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/descriptor.hpp"
#include "io/system_error.hpp"

namespace perseid::internal::io {
namespace {

Status map(int descriptor, const std::byte** data, size_t* size) {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0) return system_error(errno, "ask for its size");
  if (!S_ISREG(facts.st_mode))
    return Status::error(PERSEID_IO_ERROR, "expected a regular file, got ",
                         S_ISDIR(facts.st_mode) ? "a folder" : "a device, pipe or socket",
                         "; tensor files are mapped into memory, which needs a regular file");
  const auto bytes = static_cast<uint64_t>(facts.st_size);
  if (bytes > static_cast<uint64_t>(PTRDIFF_MAX))
    return Status::error(PERSEID_IO_ERROR, "its ", bytes,
                         " bytes are more than this process can address");
  if (bytes == 0) return {};  // Nothing to map; the parsers say what is missing.
  void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    if (error == ENOMEM)
      return Status::error(PERSEID_OUT_OF_MEMORY, "no address space to map its ", bytes, " bytes");
    return system_error(error, "map it into memory");
  }
  *data = static_cast<const std::byte*>(mapped);
  *size = static_cast<size_t>(bytes);
  return {};
}

}  // namespace

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Status MappedFile::open(const char* path) {
  // Non-blocking: opening a named pipe that nobody writes would wait for ever.
  const int descriptor = open_file(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) return system_error(errno, "open it for reading");
  Status status = map(descriptor, &data_, &size_);
  ::close(descriptor);  // The mapping does not need it; nothing was written that could be lost.
  return status;
}

}  // namespace perseid::internal::io
