// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace perseid::internal::collective {
namespace {

Status exhausted(size_t bytes, const char* reason) {
  return Status::error(PERSEID_OUT_OF_MEMORY, "cannot share ", bytes,
                       " bytes between ranks: ", reason,
                       "; make the problem smaller or free some memory");
}

// More than the machine has cannot be had, and trying would take all of it.
bool is_too_large(size_t bytes) {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return bytes > size_t{std::numeric_limits<int64_t>::max()} ||
         (pages > 0 && page > 0 && bytes / static_cast<size_t>(page) > static_cast<size_t>(pages));
}

}  // namespace

SegmentPlace SegmentPlace::of(const Descriptor& descriptor) {
  struct stat found {};
  if (::fstat(descriptor.number(), &found) != 0) return {};
  return {static_cast<uint64_t>(::getpid()), static_cast<uint64_t>(descriptor.number()),
          static_cast<uint64_t>(found.st_dev), static_cast<uint64_t>(found.st_ino)};
}

Descriptor SegmentPlace::open() const {
  const std::string path = concatenate("/proc/", process, "/fd/", descriptor);
  Descriptor opened(open_file(path.c_str(), O_RDWR | O_NONBLOCK));
  const SegmentPlace found = of(opened);
  // Only memory has seals.
  const bool right = opened.opened() && found.device == device && found.inode == inode &&
                     ::fcntl(opened.number(), F_GET_SEALS) >= 0;
  return right ? std::move(opened) : Descriptor();
}

Status Segment::make(size_t bytes, std::shared_ptr<Segment>* segment, Descriptor* descriptor) {
  if (is_too_large(bytes)) return exhausted(bytes, "the machine has less memory");
  Descriptor made(above_standard_streams(::memfd_create("perseid", MFD_CLOEXEC)));
  if (!made.opened()) return exhausted(bytes, std::strerror(errno));
  // Taken now: a page that is missing later would end the process.
  const int error = ::posix_fallocate(made.number(), 0, static_cast<off_t>(bytes));
  if (error != 0) return exhausted(bytes, std::strerror(error));
  Status status = map(made, bytes, segment);
  if (status.ok()) *descriptor = std::move(made);
  return status;
}

Status Segment::map(const Descriptor& descriptor, size_t bytes, std::shared_ptr<Segment>* segment) {
  struct stat found {};
  if (::fstat(descriptor.number(), &found) != 0 || found.st_size < 0 ||
      static_cast<size_t>(found.st_size) < bytes)
    return Status::error(PERSEID_PEER_LOST, "the shared memory that a rank sent is smaller than ",
                         bytes, " bytes");
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.number(), 0);
  if (data == MAP_FAILED) return exhausted(bytes, std::strerror(errno));
  segment->reset(new Segment(static_cast<std::byte*>(data), bytes));
  return {};
}

Segment::~Segment() { ::munmap(data_, bytes_); }

}  // namespace perseid::internal::collective
