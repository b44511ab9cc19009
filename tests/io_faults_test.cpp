// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensor files where something fails: every system call in turn, every allocation in turn, and the
// process itself at every system call of a write. Whatever fails, a file is whole, a failure has
// its sentence, no descriptor is lost, and no temporary file stays for longer than the next write.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "faulty_calls.hpp"
#include "io/input_file.hpp"
#include "io_test_tools.hpp"

extern thread_local int64_t allocations_until_failure;  // of counting_new.cpp

namespace {

using namespace perseid_test;

constexpr int kErrors[] = {EINTR, EIO, ENOSPC, EMFILE, EACCES};
// Calls that are made again where a signal interrupts them.
const std::set<std::string> kRepeated = {"create", "look", "open", "read", "write", "fsync"};

int open_descriptors() {
  int count = 0;
  for (int descriptor = 0; descriptor < 256; ++descriptor)
    count += ::fcntl(descriptor, F_GETFD) >= 0;
  return count;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder with everything that a write may meet: a file to be replaced, of a mode of its own,
// behind a symbolic link, and what a killed process has left.
class Target {
 public:
  Target() {
    folder_.write("old.npy", "old");
    EXPECT_EQ(::chmod(folder_.path("old.npy").c_str(), 0640), 0);
    EXPECT_EQ(::symlink("old.npy", path().c_str()), 0);
  }

  std::string path() const { return folder_.path("a.npy"); }
  std::string content() const { return text_of(folder_.path("old.npy")); }
  std::vector<std::string> names() const { return folder_.names(); }
  std::string file(const std::string& name) const { return folder_.path(name); }
  bool link_and_mode_stayed() const {
    struct stat link {
    }, file{};
    return ::lstat(path().c_str(), &link) == 0 && S_ISLNK(link.st_mode) &&
           ::stat(path().c_str(), &file) == 0 && (file.st_mode & 07777) == 0640;
  }
  // Writes the source in a process that is killed by `fault`; false where it came to its end.
  bool write_killed(const Source& source, const Fault& fault) const {
    const pid_t child = ::fork();
    if (child == 0) {
      watch(fault);
      ::_exit(write_one(path(), source.tensor()) == PERSEID_OK ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
  }

 private:
  Folder folder_;
};

const std::vector<std::string> kOnlyFiles = {"a.npy", "old.npy"};

// The bytes that a write is to leave.
std::string expected(const Source& source) {
  const Folder folder;
  EXPECT_EQ(write_one(folder.path("a.npy"), source.tensor()), PERSEID_OK);
  return text_of(folder.path("a.npy"));
}

// More than the buffer in which it is gathered.
const Source& source() {
  static const Source kSource(kF32, {300, 301}, Order::kColumnMajor);
  return kSource;
}

Watched calls_of_a_write(const Target& target) {
  watch({});
  EXPECT_EQ(write_one(target.path(), source().tensor()), PERSEID_OK);
  return watched();
}

// What is left by a process that is killed between two writes.
void leave_abandoned(const Target& target) {
  const std::vector<std::string> calls = calls_of_a_write(Target()).calls;
  const auto write = std::find(calls.begin(), calls.end(), "write");
  ASSERT_NE(write, calls.end());
  ASSERT_TRUE(target.write_killed(
      source(), {.call = static_cast<int>(write - calls.begin()), .kills_after = true}));
  ASSERT_EQ(target.names().size(), 3u);
}

TEST(Faults, TheCallsAreWatched) {
  const Target target;
  leave_abandoned(target);
  const Watched write = calls_of_a_write(target);
  const std::set<std::string> calls(write.calls.begin(), write.calls.end());
  for (const char* call :
       {"look",  "fstat",  "readlinkat", "list",     "fdopendir", "readdir", "uname",
        "kill",  "openat", "flock",      "unlinkat", "closedir",  "open",    "read",
        "close", "create", "write",      "fchmod",   "fsync",     "rename"})
    EXPECT_TRUE(calls.contains(call)) << call;
  EXPECT_EQ(target.names(), kOnlyFiles);
}

TEST(Faults, EveryCallOfAWriteFailsInTurn) {
  const std::string wanted = expected(source());
  // Without these no file can be whole.
  const std::set<std::string> needed = {"create", "write", "fchmod",
                                        "rename", "look",  "readlinkat"};
  for (const int error : kErrors) {
    for (int call = 0;; ++call) {
      const Target target;
      leave_abandoned(target);
      const int descriptors = open_descriptors();
      watch({.call = call, .error = error});
      const perseid_status status = write_one(target.path(), source().tensor());
      const std::vector<std::string> calls = watched().calls;
      if (static_cast<size_t>(call) >= calls.size()) break;
      const std::string& name = calls[static_cast<size_t>(call)];
      SCOPED_TRACE(name + " (" + std::to_string(call) + "): " + std::strerror(error));
      EXPECT_EQ(open_descriptors(), descriptors);
      EXPECT_TRUE(target.link_and_mode_stayed());
      if (error == EINTR && kRepeated.contains(name)) {
        EXPECT_EQ(status, PERSEID_OK) << perseid_last_error();
      } else if (needed.contains(name)) {
        EXPECT_EQ(status, PERSEID_IO_ERROR);
      }
      if (status == PERSEID_OK) {
        EXPECT_EQ(target.content(), wanted);
      } else {
        EXPECT_EQ(status, PERSEID_IO_ERROR);
        EXPECT_TRUE(says(std::strerror(error)));
        EXPECT_TRUE(says("a.npy': cannot "));
        EXPECT_EQ(target.content(), "old");
      }
      // What one writer could not remove the next one does.
      EXPECT_LE(target.names().size(), 3u);
      EXPECT_EQ(write_one(target.path(), source().tensor()), PERSEID_OK);
      EXPECT_EQ(target.names(), kOnlyFiles);
    }
  }
}

TEST(Faults, FsyncOfTheFileIsNeededAndThatOfTheFolderIsNot) {
  const std::vector<std::string> calls = calls_of_a_write(Target()).calls;
  bool renamed = false;
  for (size_t call = 0; call < calls.size(); ++call) {
    renamed = renamed || calls[call] == "rename";
    if (calls[call] != "fsync") continue;
    const Target target;
    watch({.call = static_cast<int>(call), .error = EIO});
    const perseid_status status = write_one(target.path(), source().tensor());
    watched();
    EXPECT_EQ(status, renamed ? PERSEID_OK : PERSEID_IO_ERROR);
    EXPECT_EQ(target.content() == "old", !renamed);
    EXPECT_EQ(target.names(), kOnlyFiles);
  }
  EXPECT_TRUE(renamed);
}

TEST(Faults, ShortWritesAndReads) {
  const Source small(kF32, {7, 9}, Order::kEverySecond);
  const std::string wanted = expected(small);
  const Target target;
  watch({.most_bytes = 7});
  const perseid_status written = write_one(target.path(), small.tensor());
  watched();
  EXPECT_EQ(written, PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(target.content(), wanted);

  watch({.most_bytes = 7});
  const File file(target.path());
  watched();
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  const DLTensor* tensor = nullptr;
  ASSERT_EQ(perseid_file_tensor(file.get(), 0, nullptr, &tensor), PERSEID_OK);
  EXPECT_EQ(elements_of(*tensor), elements_of(*small.tensor()));

  watch({.most_bytes = 0});
  const perseid_status full = write_one(target.path(), source().tensor());
  watched();
  EXPECT_EQ(full, PERSEID_IO_ERROR);
  EXPECT_TRUE(says(std::strerror(ENOSPC)));
  EXPECT_EQ(target.content(), wanted);
  EXPECT_EQ(target.names(), kOnlyFiles);
}

// A file that is cut short between the question for its size and the reading.
TEST(Faults, FileThatShrinksWhileItIsRead) {
  const Target target;
  ASSERT_EQ(write_one(target.path(), source().tensor()), PERSEID_OK);
  const int descriptors = open_descriptors();
  for (const size_t bytes : {0, 1, 127, 128, 129, 1000}) {
    watch({.file_bytes = bytes});
    const File file(target.path());
    watched();
    EXPECT_EQ(file.status(), PERSEID_IO_ERROR);
    EXPECT_TRUE(says("bytes when it was opened, and " + std::to_string(bytes) + " when it was"));
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(Faults, EveryCallOfReadingFailsInTurn) {
  constexpr int64_t kMapped = 2 * perseid::internal::io::kMostBytesRead;
  for (const int64_t bytes : {int64_t{1000}, kMapped}) {
    const Folder folder;
    const Source data(kU8, {bytes}, Order::kNone);
    const std::string path = folder.path("a.npy");
    ASSERT_EQ(write_one(path, data.tensor()), PERSEID_OK);
    for (const int error : {EINTR, EIO, ENOMEM, EMFILE, EACCES}) {
      for (int call = 0;; ++call) {
        const int descriptors = open_descriptors();
        watch({.call = call, .error = error});
        perseid_file_t file = nullptr;
        const perseid_status status = perseid_file_open(path.c_str(), &file);
        const std::vector<std::string> calls = watched().calls;
        perseid_file_close(file);
        if (static_cast<size_t>(call) >= calls.size()) break;
        const std::string& name = calls[static_cast<size_t>(call)];
        SCOPED_TRACE(name + ": " + std::strerror(error));
        EXPECT_EQ(open_descriptors(), descriptors);
        if ((error == EINTR && kRepeated.contains(name)) || name == "close") {
          EXPECT_EQ(status, PERSEID_OK);
        } else if (name == "mmap" && error == ENOMEM) {
          EXPECT_EQ(status, PERSEID_OUT_OF_MEMORY);
          EXPECT_TRUE(says("a.npy': no address space to map its"));
        } else {
          EXPECT_EQ(status, PERSEID_IO_ERROR);
          EXPECT_TRUE(says(std::strerror(error)));
          EXPECT_TRUE(says("a.npy': cannot "));
        }
      }
    }
    watch({});
    const File file(path);
    const std::vector<std::string> calls = watched().calls;
    EXPECT_EQ(std::count(calls.begin(), calls.end(), bytes == kMapped ? "mmap" : "read"), 1);
  }
}

TEST(Faults, EveryAllocationOfAWriteFailsInTurn) {
  const std::string wanted = expected(source());
  const Target target;
  const std::string path = target.path();
  const int descriptors = open_descriptors();
  perseid_status status = PERSEID_OUT_OF_MEMORY;
  int64_t failed = 0;
  for (; status == PERSEID_OUT_OF_MEMORY && failed < 1000; ++failed) {
    allocations_until_failure = failed;
    status = write_one(path, source().tensor());
    const bool all_succeeded = allocations_until_failure >= 0;
    allocations_until_failure = -1;
    EXPECT_EQ(status, all_succeeded ? PERSEID_OK : PERSEID_OUT_OF_MEMORY) << failed;
    EXPECT_EQ(open_descriptors(), descriptors) << failed;
    EXPECT_EQ(target.names(), kOnlyFiles) << failed;
    EXPECT_EQ(target.content(), status == PERSEID_OK ? wanted : "old") << failed;
  }
  EXPECT_EQ(status, PERSEID_OK);
  EXPECT_GT(failed, 5);
}

TEST(Faults, EveryAllocationOfReadingFailsInTurn) {
  const Folder folder;
  const std::string npy_path = folder.path("a.npy"), path = folder.path("a.safetensors");
  const perseid_named_tensor named[] = {{"a long name of a tensor, on the heap", source().tensor()},
                                        {"b", source().tensor()}};
  const perseid_key_value entry{"a long key of an entry, on the heap", "and a long value of it"};
  ASSERT_EQ(write_one(npy_path, source().tensor()), PERSEID_OK);
  ASSERT_EQ(perseid_file_write(path.c_str(), named, 2, &entry, 1), PERSEID_OK);
  for (const std::string& each : {npy_path, path, folder.path("absent.npy")}) {
    const int descriptors = open_descriptors();
    perseid_status status = PERSEID_OUT_OF_MEMORY;
    int64_t failed = 0;
    for (; status == PERSEID_OUT_OF_MEMORY && failed < 1000; ++failed) {
      perseid_file_t file = nullptr;
      allocations_until_failure = failed;
      status = perseid_file_open(each.c_str(), &file);
      allocations_until_failure = -1;
      EXPECT_EQ(file != nullptr, status == PERSEID_OK);
      perseid_file_close(file);
      EXPECT_EQ(open_descriptors(), descriptors) << failed;
    }
    EXPECT_EQ(status, each.ends_with("absent.npy") ? PERSEID_IO_ERROR : PERSEID_OK);
    EXPECT_GT(failed, 2) << each;
  }
}

// Killed before and after each of its system calls, a writer leaves the old file or the new one,
// and a temporary file that nobody else can read, which the next writer removes.
TEST(Faults, KilledAtEveryCallOfAWrite) {
  const std::string wanted = expected(source());
  std::set<std::string> seen;
  bool left_behind = false;
  for (const bool before : {true, false}) {
    for (int call = 0;; ++call) {
      const Target target;
      SCOPED_TRACE((before ? "before call " : "after call ") + std::to_string(call));
      if (!target.write_killed(source(),
                               {.call = call, .kills_before = before, .kills_after = !before}))
        break;
      const std::string content = target.content();
      EXPECT_TRUE(content == "old" || content == wanted) << content.size() << " bytes";
      seen.insert(content);
      EXPECT_TRUE(target.link_and_mode_stayed());
      for (const std::string& name : target.names()) {
        struct stat facts {};
        if (!name.starts_with(".")) continue;
        left_behind = true;
        EXPECT_EQ(::stat(target.file(name).c_str(), &facts), 0);
        EXPECT_EQ(facts.st_mode & 0007, 0u);
      }
      const Source other(kI8, {3}, Order::kNone);
      EXPECT_EQ(write_one(target.file("b.npy"), other.tensor()), PERSEID_OK);
      EXPECT_EQ(target.names(), (std::vector<std::string>{"a.npy", "b.npy", "old.npy"}));
    }
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(left_behind);
}

// A process without standard streams writes and reads with descriptors that no message reaches.
TEST(Faults, NoDescriptorIsThatOfAStandardStream) {
  const Target target;
  leave_abandoned(target);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int stream = 0; stream <= 2; ++stream) ::close(stream);
    watch({});
    const bool written = write_one(target.path(), source().tensor()) == PERSEID_OK;
    const bool above = watched().lowest_descriptor > 2;
    watch({});
    const File file(target.path());
    ::_exit(written && file.opened() && above && watched().lowest_descriptor > 2 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(target.names(), kOnlyFiles);
}

// However many entries a folder has, a writer looks at some of them.
TEST(Faults, TheSearchForAbandonedFilesIsBounded) {
  const Folder folder;
  for (int i = 0; i < 1500; ++i) folder.write("entry" + std::to_string(i), "");
  watch({});
  const perseid_status status = write_one(folder.path("a.npy"), source().tensor());
  const std::vector<std::string> calls = watched().calls;
  EXPECT_EQ(status, PERSEID_OK);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "readdir"), 1000);
}

}  // namespace
