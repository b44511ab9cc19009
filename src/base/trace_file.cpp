// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/trace_file.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/json.hpp"

namespace perseid::internal {
namespace {

constexpr std::string_view kClosing = "\n]\n";

}  // namespace

std::string microseconds(int64_t nanoseconds) {
  const std::string fraction = std::to_string(nanoseconds % 1000);
  return concatenate(nanoseconds / 1000, ".", std::string(3 - fraction.size(), '0'), fraction);
}

Status TraceFile::open(const std::string& path) {
  std::string name = path;
  owner_ = getpid();
  if (const size_t at = name.find("%p"); at != std::string::npos)
    name.replace(at, 2, std::to_string(owner_));
  file_ = Descriptor(open_file(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (!file_.opened())
    return Status::error(PERSEID_IO_ERROR, "PERSEID_TRACE is \"", path,
                         "\", which cannot be opened: ", std::generic_category().message(errno),
                         "; name a file that can be written, or unset it");
  if (!write("[" + std::string(kClosing)))
    return Status::error(PERSEID_IO_ERROR, "PERSEID_TRACE is \"", path,
                         "\", which cannot be written; name another file, or unset it");
  return {};
}

// One system call from the end of the last event on: nothing can come between.
bool TraceFile::write(const std::string& text) {
  ssize_t written = 0;
  do written = ::pwrite(file_.number(), text.data(), text.size(), end_);
  while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(text.size());
}

void TraceFile::add(const char* name, int64_t began, int64_t ended, const char* implementation,
                    const std::string& arguments) {
  if (getpid() != owner_) return;  // before the lock, which fork() may have copied while held
  JsonWriter event;
  event.begin_object().field("name", name).field("cat", "perseid").field("ph", "X");
  event.key("ts").number(microseconds(began)).key("dur").number(microseconds(ended - began));
  event.field("pid", owner_).field("tid", static_cast<int64_t>(syscall(SYS_gettid)));
  event.key("args").begin_object();
  if (*implementation != '\0') event.field("implementation", implementation);
  if (!arguments.empty()) event.field("arguments", arguments);
  event.end_object().end_object();

  const std::lock_guard lock(mutex_);
  if (broken_) return;
  const std::string text = (empty_ ? "[\n" : ",\n") + event.text();
  if (write(text + std::string(kClosing))) {
    end_ += static_cast<int64_t>(text.size());
    empty_ = false;
    return;
  }
  // A full disk: back to the events before.
  broken_ = true;
  const std::string closing = (empty_ ? "[" : "") + std::string(kClosing);
  if (::ftruncate(file_.number(), end_) == 0) write(closing);
}

}  // namespace perseid::internal
