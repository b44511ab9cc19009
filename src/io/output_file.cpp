// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/descriptor.hpp"
#include "io/system_error.hpp"

namespace perseid::internal::io {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
// Linux takes at most 2^31 - 4096 bytes in one call, other systems less than 2^31.
constexpr size_t kMostPerWrite = 1 << 30;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

// One dimension of a source: neighbours that step evenly are one.
struct Axis {
  int64_t size, stride;  // in elements
};

std::vector<Axis> merged_axes(const SourceTensor& tensor) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const Axis axis{tensor.shape[i], tensor.stride[i]};
    if (axis.size == 1) continue;
    if (!axes.empty() && axes.back().stride == axis.size * axis.stride)
      axes.back() = {axes.back().size * axis.size, axis.stride};
    else
      axes.push_back(axis);
  }
  return axes;
}

template <size_t kBytes>
void gather(const std::byte* from, int64_t stride, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i, to += kBytes, from += stride * int64_t{kBytes})
    std::memcpy(to, from, kBytes);
}

void gather(size_t bytes, const std::byte* from, int64_t stride, size_t count, std::byte* to) {
  if (stride == 1) {
    std::memcpy(to, from, count * bytes);
  } else if (bytes == 1) {
    gather<1>(from, stride, count, to);
  } else if (bytes == 2) {
    gather<2>(from, stride, count, to);
  } else if (bytes == 4) {
    gather<4>(from, stride, count, to);
  } else {
    gather<8>(from, stride, count, to);
  }
}

}  // namespace

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::open(const std::string& path) {
  static std::atomic<uint32_t> counter{0};
  constexpr int kAttempts = 100;  // Another process on a shared file system may have our number.
  path_ = path;
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode))
    return Status::error(PERSEID_IO_ERROR, "expected a regular file or none to replace, got ",
                         S_ISDIR(facts.st_mode) ? "a folder" : "a device, pipe or socket");
  int error = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string name = folder_of(path) + ".perseid-" + std::to_string(::getpid()) + "-" +
                       std::to_string(counter.fetch_add(1)) + ".tmp";
    // Readable and writable by all whom the process's umask allows, as any new file.
    descriptor_ = open_file(name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (descriptor_ >= 0) {
      temporary_ = std::move(name);
      return {};
    }
    error = errno;
    if (error != EEXIST) break;
  }
  return system_error(error, "create a file in the folder '", folder_of(path), "'");
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMostPerWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return system_error(written < 0 ? errno : ENOSPC, "write ", bytes.size(), " bytes more");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status OutputFile::write_row_major(const SourceTensor& tensor) {
  const size_t bytes = tensor.type.bytes;
  std::vector<Axis> axes = merged_axes(tensor);
  if (axes.empty()) return write({tensor.data, bytes});
  for (const Axis& axis : axes)
    if (axis.size == 0) return {};
  const Axis row = axes.back();
  axes.pop_back();
  if (axes.empty() && row.stride == 1)
    return write({tensor.data, static_cast<size_t>(row.size) * bytes});

  std::vector<std::byte> buffer(kBufferBytes);
  size_t filled = 0;
  std::vector<int64_t> position(axes.size(), 0);
  const std::byte* from = tensor.data;
  for (bool more = true; more;) {
    for (int64_t done = 0; done < row.size;) {
      const size_t count =
          std::min(static_cast<size_t>(row.size - done), (kBufferBytes - filled) / bytes);
      gather(bytes, from + done * row.stride * static_cast<int64_t>(bytes), row.stride, count,
             buffer.data() + filled);
      done += static_cast<int64_t>(count);
      filled += count * bytes;
      if (filled < kBufferBytes) continue;
      if (Status status = write(buffer); !status.ok()) return status;
      filled = 0;
    }
    // The next row: the last axis that is not at its end steps on, those behind it begin again.
    more = false;
    for (size_t i = axes.size(); i-- > 0 && !more;) {
      const int64_t step = axes[i].stride * static_cast<int64_t>(bytes);
      more = ++position[i] < axes[i].size;
      from += more ? step : -step * (axes[i].size - 1);
      if (!more) position[i] = 0;
    }
  }
  return write(std::span<const std::byte>(buffer).first(filled));
}

Status OutputFile::commit() {
  if (::fsync(descriptor_) != 0) return system_error(errno, "write it to the disk");
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) return system_error(errno, "write it to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return system_error(errno, "rename it to its name");
  temporary_.clear();
  // The new name survives a power failure only when the folder is written too. The file is whole
  // either way, and some file systems cannot do it, so a failure here is none of the call.
  const int folder = open_file(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  return {};
}

}  // namespace perseid::internal::io
