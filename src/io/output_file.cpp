// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/descriptor.hpp"
#include "io/system_error.hpp"
#include "io/temporary_file.hpp"

namespace perseid::internal::io {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
// Linux takes at most 2^31 - 4096 bytes in one call, other systems less than 2^31.
constexpr size_t kMostPerWrite = 1 << 30;

// One dimension of a source: neighbours that step evenly are one.
struct Axis {
  int64_t size, stride;  // in elements
};

// The tensor has elements: only then is any product of a size and a stride known to fit.
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
  for (size_t i = 0; i < count; ++i, to += kBytes)
    std::memcpy(to, from + static_cast<int64_t>(i) * stride * int64_t{kBytes}, kBytes);
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
  if (Status status = find_output(path, &output_); !status.ok()) return status;
  folder_ = folder_of(output_.path);
  remove_abandoned(folder_);
  // Nobody may read what replaces a private file; commit() sets the mode. A new file is readable
  // and writable by all whom the process's umask allows.
  descriptor_ = create_temporary(folder_, output_.mode ? 0600 : 0666, &temporary_);
  if (descriptor_ >= 0) return {};
  const int error = errno;
  temporary_.clear();
  return system_error(error, "create a file in the folder '", folder_, "'");
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
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return {};
  const size_t bytes = tensor.type.bytes;
  std::vector<Axis> axes = merged_axes(tensor);
  if (axes.empty()) return write({tensor.data, bytes});
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

Status OutputFile::keep_mode() {
  struct stat facts {};
  if (!output_.mode) return {};
  if (::fstat(descriptor_, &facts) == 0 && (facts.st_mode & kModeBits) == *output_.mode) return {};
  if (::fchmod(descriptor_, *output_.mode) == 0) return {};
  return system_error(errno, "give it the mode of the file that it replaces");
}

Status OutputFile::commit() {
  if (Status status = keep_mode(); !status.ok()) return status;
  int synced = -1;
  do synced = ::fsync(descriptor_);
  while (synced != 0 && errno == EINTR);
  if (synced != 0) return system_error(errno, "write it to the disk");
  // The lock goes with the descriptor, after the rename: an unlocked temporary file has no writer.
  if (::rename(temporary_.c_str(), output_.path.c_str()) != 0)
    return system_error(errno, "rename it to its name");
  temporary_.clear();
  ::close(std::exchange(descriptor_, -1));  // fsync has reported what could be lost
  // The new name survives a power failure only when the folder is written too. The file is whole
  // either way, and some file systems cannot do it, so a failure here is none of the call.
  const Descriptor folder(open_file(folder_.c_str(), O_RDONLY | O_DIRECTORY));
  if (folder.opened()) ::fsync(folder.number());
  return {};
}

}  // namespace perseid::internal::io
