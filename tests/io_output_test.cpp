// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a write does to its folder: modes, symbolic links, and files that killed writers have left.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "io/temporary_file.hpp"
#include "io_test_tools.hpp"

namespace {

using namespace perseid_test;
using perseid::internal::io::create_temporary;

const Source& source() {
  static const Source kSource(kF32, {5, 3}, Order::kNone);
  return kSource;
}

bool holds_the_source(const std::string& path) {
  const File file(path);
  const DLTensor* tensor = nullptr;
  return file.opened() && perseid_file_tensor(file.get(), 0, nullptr, &tensor) == PERSEID_OK &&
         elements_of(*tensor) == elements_of(*source().tensor());
}

mode_t mode_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(::lstat(path.c_str(), &facts), 0);
  return facts.st_mode;
}

TEST(Output, AReplacedFileKeepsItsMode) {
  const Folder folder;
  const std::string path = folder.write("a.npy", "old");
  for (const mode_t mode : {0600u, 0644u, 0400u, 0666u, 0755u}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    ASSERT_EQ(write_one(path, source().tensor()), PERSEID_OK) << perseid_last_error();
    EXPECT_EQ(mode_of(path) & 07777, mode);
  }
  const mode_t mask = ::umask(027);
  EXPECT_EQ(write_one(folder.path("new.npy"), source().tensor()), PERSEID_OK);
  ::umask(mask);
  EXPECT_EQ(mode_of(folder.path("new.npy")) & 07777, 0640u);
}

TEST(Output, SymbolicLinksAreWrittenThrough) {
  const Folder folder, other;
  other.write("target.npy", "old");
  ASSERT_EQ(::symlink(other.path("target.npy").c_str(), folder.path("one.npy").c_str()), 0);
  ASSERT_EQ(::symlink("one.npy", folder.path("two.npy").c_str()), 0);
  ASSERT_EQ(::symlink(other.path("").c_str(), folder.path("folder").c_str()), 0);
  ASSERT_EQ(::symlink("folder/new.npy", folder.path("dangling.npy").c_str()), 0);
  EXPECT_EQ(write_one(folder.path("two.npy"), source().tensor()), PERSEID_OK);
  EXPECT_TRUE(holds_the_source(other.path("target.npy")));
  EXPECT_EQ(write_one(folder.path("dangling.npy"), source().tensor()), PERSEID_OK);
  EXPECT_TRUE(holds_the_source(other.path("new.npy")));
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"dangling.npy", "folder", "one.npy", "two.npy"}));
  for (const std::string& name : folder.names()) EXPECT_TRUE(S_ISLNK(mode_of(folder.path(name))));
  EXPECT_EQ(other.names(), (std::vector<std::string>{"new.npy", "target.npy"}));
}

TEST(Output, LinksThatLeadToNoFileAreRefused) {
  const Folder folder;
  const auto refused = [&](const char* target, const char* sentence) {
    const std::string path = folder.path("a.npy");
    EXPECT_EQ(::symlink(target, path.c_str()), 0);
    const bool result = write_one(path, source().tensor()) == PERSEID_IO_ERROR && says(sentence);
    EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
    ::unlink(path.c_str());
    return result;
  };
  EXPECT_TRUE(refused("a.npy", std::strerror(ELOOP)));
  EXPECT_TRUE(refused("absent/b.npy", "cannot create a file in the folder '"));
  EXPECT_TRUE(refused(".", "got a folder"));
  EXPECT_TRUE(refused("/dev/full", "got a device, pipe or socket"));
}

// In a folder where everybody may make links, one that another user made leads where that user
// wants.
TEST(Output, PlantedLinksAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes links of another user";
  const Folder folder, victim;
  const std::string path = folder.path("a.npy");
  ASSERT_EQ(::chmod(folder.path("").c_str(), 01777), 0);
  ASSERT_EQ(::symlink(victim.path("b.npy").c_str(), path.c_str()), 0);
  ASSERT_EQ(::lchown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(write_one(path, source().tensor()), PERSEID_IO_ERROR);
  EXPECT_TRUE(says("belongs to another user, in a folder that everyone may write"));
  EXPECT_TRUE(victim.names().empty());
  ASSERT_EQ(::chmod(folder.path("").c_str(), 0755), 0);
  EXPECT_EQ(write_one(path, source().tensor()), PERSEID_OK);
  EXPECT_TRUE(holds_the_source(victim.path("b.npy")));
}

// A process with an unfinished file, which it keeps until it is killed.
class Writer {
 public:
  explicit Writer(const Folder& folder) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      std::string path;
      const int file = create_temporary(folder.path(""), 0600, &path);
      char byte = file >= 0 ? 'y' : 'n';
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Writer() { kill(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
};

TEST(Output, FilesOfDeadWritersAreRemovedAndOfLiveOnesKept) {
  const Folder folder;
  Writer dead(folder), live(folder);
  const std::vector<std::string> both = folder.names();
  ASSERT_EQ(both.size(), 2u);
  ASSERT_EQ(write_one(folder.path("a.npy"), source().tensor()), PERSEID_OK);
  EXPECT_EQ(folder.names().size(), 3u) << "both processes live";
  dead.kill();
  ASSERT_EQ(write_one(folder.path("a.npy"), source().tensor()), PERSEID_OK);
  EXPECT_EQ(folder.names().size(), 2u);
  live.kill();
  ASSERT_EQ(write_one(folder.path("a.npy"), source().tensor()), PERSEID_OK);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
}

// .perseid-HOST-PID-START-N.tmp, cut into its parts.
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts = {""};
  for (const char c : name.substr(1)) c == '-' ? parts.emplace_back() : parts.back() += c;
  return parts;
}

TEST(Output, OnlyNamesOfDeadProcessesOfThisHostAreRemoved) {
  const Folder folder;
  std::string path;
  const int file = create_temporary(folder.path(""), 0600, &path);
  ASSERT_GE(file, 0);
  const std::vector<std::string> own = parts_of(folder.names().at(0));
  ::close(file);
  ::unlink(path.c_str());
  ASSERT_EQ(own.size(), 5u);
  EXPECT_EQ(own[2], std::to_string(::getpid()));
  EXPECT_GT(std::stoull(own[3]), 0u);
  const auto name = [](const std::string& host, const std::string& process,
                       const std::string& start, const std::string& rest) {
    return ".perseid-" + host + "-" + process + "-" + start + "-" + rest;
  };
  const std::string later = std::to_string(std::stoull(own[3]) + 1);
  const std::string other = own[1] == "12345678" ? "12345679" : "12345678";
  // Numbers of processes end far below 2^31.
  const std::vector<std::string> kept = {name(own[1], own[2], own[3], "77.tmp"),  // this process
                                         name(own[1], own[2], "0", "77.tmp"),  // this one, perhaps
                                         name(other, "2147483647", "5", "0.tmp"),
                                         name(own[1], "2147483647", "5", "0.tmp.npy"),
                                         name(own[1], "2147483647", "5", "x.tmp"),
                                         name(own[1], "2147483647", "5", "0"),
                                         name(own[1], "2147483647", "5", ".tmp"),
                                         name(own[1], "2147483648", "5", "0.tmp"),
                                         name(own[1], "-5", "5", "0.tmp"),
                                         name(own[1], "0", "5", "0.tmp"),
                                         name(own[1], "2147483647", "", "0.tmp"),
                                         ".perseid-2147483647-0.tmp",
                                         ".perseid-.tmp",
                                         "notes.tmp"};
  for (const std::string& each : kept) folder.write(each, "");
  folder.write(name(own[1], "2147483647", "5", "0.tmp"), "");
  folder.write(name(own[1], own[2], later, "77.tmp"), "");  // an earlier process of this number
  const std::string folder_name = name(own[1], "2147483647", "6", "0.tmp");
  ASSERT_EQ(::mkdir(folder.path(folder_name).c_str(), 0700), 0);
  const std::string locked = name(own[1], "2147483647", "7", "0.tmp");
  const int lock = ::open(folder.write(locked, "").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);  // as a process of another container
  ASSERT_EQ(write_one(folder.path("a.npy"), source().tensor()), PERSEID_OK);
  std::vector<std::string> wanted = kept;
  wanted.insert(wanted.end(), {"a.npy", folder_name, locked});
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(folder.names(), wanted);
  ::close(lock);
  ASSERT_EQ(write_one(folder.path("a.npy"), source().tensor()), PERSEID_OK);
  std::erase(wanted, locked);
  EXPECT_EQ(folder.names(), wanted);
}

// An empty tensor may say of its strides what it likes, and so may its NULL pointer of an offset.
TEST(Output, EmptyTensorsWithAnyStride) {
  const Folder folder;
  int64_t shape[] = {3, 0, int64_t{1} << 50}, strides[] = {INT64_MAX, INT64_MIN, INT64_MAX};
  DLTensor tensor{.data = nullptr,
                  .device = {kDLCPU, 0},
                  .ndim = 3,
                  .dtype = kF32,
                  .shape = shape,
                  .strides = strides,
                  .byte_offset = UINT64_MAX};
  for (const char* name : {"a.npy", "a.safetensors"}) {
    ASSERT_EQ(write_one(folder.path(name), &tensor), PERSEID_OK) << perseid_last_error();
    const File file(folder.path(name));
    const DLTensor* read = nullptr;
    ASSERT_EQ(perseid_file_tensor(file.get(), 0, nullptr, &read), PERSEID_OK);
    EXPECT_EQ(std::vector<int64_t>(read->shape, read->shape + read->ndim),
              std::vector<int64_t>(shape, shape + 3));
  }
}

TEST(Output, AddressesThatWrapAreRefused) {
  const Folder folder;
  int64_t shape[] = {2, 3}, strides[] = {3, 1};
  DLTensor tensor = *source().tensor();
  tensor.ndim = 2;
  tensor.shape = shape;
  tensor.strides = strides;
  const auto refused = [&](const char* sentence) {
    return write_one(folder.path("a.npy"), &tensor) == PERSEID_INVALID_ARGUMENT && says(sentence);
  };
  tensor.byte_offset = UINT64_MAX;
  EXPECT_TRUE(refused("the byte_offset 18446744073709551615 leads beyond the last address"));
  tensor.byte_offset = UINT64_MAX - reinterpret_cast<uintptr_t>(tensor.data);
  EXPECT_TRUE(refused("lead beyond the last address"));
  tensor.byte_offset = 0;
  strides[0] = -(int64_t{1} << 59);
  EXPECT_TRUE(refused("lead beyond the last address"));
  strides[0] = int64_t{1} << 60;
  strides[1] = int64_t{1} << 59;
  EXPECT_TRUE(refused("lead further than 2^63 - 1 bytes"));
  strides[0] = INT64_MIN;
  EXPECT_TRUE(refused("lead further than 2^63 - 1 bytes"));
  EXPECT_TRUE(folder.names().empty());
}

// Counts that no memory holds; the pointers are not followed.
TEST(Output, EnormousCountsAreOutOfMemory) {
  const Folder folder;
  const perseid_named_tensor named{"w", source().tensor()};
  const perseid_key_value entry{"k", "v"};
  const std::string path = folder.path("a.safetensors");
  EXPECT_EQ(perseid_file_write(path.c_str(), &named, SIZE_MAX, nullptr, 0), PERSEID_OUT_OF_MEMORY);
  EXPECT_EQ(perseid_file_write(path.c_str(), &named, 1, &entry, SIZE_MAX), PERSEID_OUT_OF_MEMORY);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
