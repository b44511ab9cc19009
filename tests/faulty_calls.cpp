// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "faulty_calls.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>

namespace perseid_test {
namespace {

constexpr int kMostCalls = 10000;

// Without allocations: allocations fail on purpose, too.
bool watching = false;
Fault fault;
const char* calls[kMostCalls];
int count = 0;
int lowest = std::numeric_limits<int>::max();
size_t bytes_read = 0;

enum class Fate { kSucceeds, kFails, kDiesAfter };

[[noreturn]] void die() {
  ::raise(SIGKILL);
  ::_exit(1);
}

Fate fate_of(const char* name) {
  if (!watching) return Fate::kSucceeds;
  const int call = count++;
  if (call < kMostCalls) calls[call] = name;
  if (call != fault.call) return Fate::kSucceeds;
  if (fault.kills_before) die();
  return fault.kills_after ? Fate::kDiesAfter : Fate::kFails;
}

// `failure`: what the call returns where it fails.
template <class Result, class Call>
Result around(const char* name, Result failure, const Call& call) {
  const Fate fate = fate_of(name);
  if (fate == Fate::kFails) {
    errno = fault.error;
    return failure;
  }
  const Result result = call();
  if (fate == Fate::kDiesAfter) die();
  return result;
}

// The call is made even where it is to fail.
template <class Call>
int around_close(const char* name, const Call& call) {
  bool called = false;
  const int result = around(name, -1, [&] {
    called = true;
    return call();
  });
  if (called) return result;
  call();
  errno = fault.error;
  return result;
}

void note(int descriptor) {
  if (watching) lowest = std::min(lowest, descriptor);
}

const char* kind_of_open(int flags) {
  if ((flags & O_CREAT) != 0) return "create";
  if ((flags & O_PATH) != 0) return "look";
  return (flags & O_DIRECTORY) != 0 ? "list" : "open";
}

}  // namespace

void watch(const Fault& wanted) {
  fault = wanted;
  count = 0;
  lowest = std::numeric_limits<int>::max();
  bytes_read = 0;
  watching = true;
}

Watched watched() {
  watching = false;
  return {{calls, calls + std::min(count, kMostCalls)}, lowest};
}

}  // namespace perseid_test

using namespace perseid_test;

extern "C" {

int __real_open(const char* path, int flags, ...);
int __real_openat(int folder, const char* path, int flags, ...);
int __real_fcntl(int descriptor, int command, ...);
int __real_close(int descriptor);
ssize_t __real_read(int descriptor, void* to, size_t bytes);
ssize_t __real_write(int descriptor, const void* from, size_t bytes);
int __real_fstat(int descriptor, struct stat* facts);
int __real_stat(const char* path, struct stat* facts);
ssize_t __real_readlinkat(int folder, const char* path, char* to, size_t bytes);
void* __real_mmap(void* at, size_t bytes, int rights, int flags, int descriptor, off_t offset);
int __real_munmap(void* at, size_t bytes);
int __real_fchmod(int descriptor, mode_t mode);
int __real_flock(int descriptor, int operation);
int __real_rename(const char* from, const char* to);
int __real_unlink(const char* path);
int __real_unlinkat(int folder, const char* path, int flags);
DIR* __real_fdopendir(int descriptor);
dirent* __real_readdir(DIR* folder);
int __real_closedir(DIR* folder);
int __real_kill(pid_t process, int signal);
int __real_uname(utsname* names);

int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return around(kind_of_open(flags), -1, [&] { return __real_open(path, flags, mode); });
}
int __wrap_openat(int folder, const char* path, int flags, ...) {
  return around("openat", -1, [&] { return __real_openat(folder, path, flags); });
}
int __wrap_fcntl(int descriptor, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const int number = va_arg(rest, int);
  va_end(rest);
  return around("fcntl", -1, [&] { return __real_fcntl(descriptor, command, number); });
}
int __wrap_close(int descriptor) {
  // Linux closes it in any case.
  return around_close("close", [&] { return __real_close(descriptor); });
}
ssize_t __wrap_read(int descriptor, void* to, size_t bytes) {
  note(descriptor);
  return around("read", ssize_t{-1}, [&] {
    const size_t most = std::min({bytes, fault.most_bytes, fault.file_bytes - bytes_read});
    const ssize_t got = __real_read(descriptor, to, watching ? most : bytes);
    if (watching) bytes_read += static_cast<size_t>(std::max<ssize_t>(got, 0));
    return got;
  });
}
ssize_t __wrap_write(int descriptor, const void* from, size_t bytes) {
  note(descriptor);
  return around("write", ssize_t{-1}, [&] {
    return __real_write(descriptor, from, watching ? std::min(bytes, fault.most_bytes) : bytes);
  });
}
int __wrap_fstat(int descriptor, struct stat* facts) {
  return around("fstat", -1, [&] { return __real_fstat(descriptor, facts); });
}
int __wrap_stat(const char* path, struct stat* facts) {
  return around("stat", -1, [&] { return __real_stat(path, facts); });
}
ssize_t __wrap_readlinkat(int folder, const char* path, char* to, size_t bytes) {
  return around("readlinkat", ssize_t{-1},
                [&] { return __real_readlinkat(folder, path, to, bytes); });
}
void* __wrap_mmap(void* at, size_t bytes, int rights, int flags, int descriptor, off_t offset) {
  if (descriptor >= 0) note(descriptor);
  return around("mmap", MAP_FAILED,
                [&] { return __real_mmap(at, bytes, rights, flags, descriptor, offset); });
}
int __wrap_munmap(void* at, size_t bytes) {
  return around("munmap", -1, [&] { return __real_munmap(at, bytes); });
}
int __wrap_fsync(int descriptor) {
  note(descriptor);
  // Nobody switches the machine off: the disk need not be waited for.
  return around("fsync", -1, [&] { return __real_fcntl(descriptor, F_GETFD) >= 0 ? 0 : -1; });
}
int __wrap_fchmod(int descriptor, mode_t mode) {
  return around("fchmod", -1, [&] { return __real_fchmod(descriptor, mode); });
}
int __wrap_flock(int descriptor, int operation) {
  note(descriptor);
  return around("flock", -1, [&] { return __real_flock(descriptor, operation); });
}
int __wrap_rename(const char* from, const char* to) {
  return around("rename", -1, [&] { return __real_rename(from, to); });
}
int __wrap_unlink(const char* path) {
  return around("unlink", -1, [&] { return __real_unlink(path); });
}
int __wrap_unlinkat(int folder, const char* path, int flags) {
  return around("unlinkat", -1, [&] { return __real_unlinkat(folder, path, flags); });
}
DIR* __wrap_fdopendir(int descriptor) {
  return around("fdopendir", static_cast<DIR*>(nullptr),
                [&] { return __real_fdopendir(descriptor); });
}
dirent* __wrap_readdir(DIR* folder) {
  return around("readdir", static_cast<dirent*>(nullptr), [&] { return __real_readdir(folder); });
}
int __wrap_closedir(DIR* folder) {
  return around_close("closedir", [&] { return __real_closedir(folder); });
}
int __wrap_kill(pid_t process, int signal) {
  return around("kill", -1, [&] { return __real_kill(process, signal); });
}
int __wrap_uname(utsname* names) {
  return around("uname", -1, [&] { return __real_uname(names); });
}
}
