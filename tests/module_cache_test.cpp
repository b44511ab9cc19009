// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk: the module cache and the kernel pack, with their mishaps, and with what
// somebody else may have put there.
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <perseid/perseid.hpp>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "cuda/runtime/cache.hpp"
#include "cuda/runtime/deflate.hpp"
#include "cuda/sm90/attention.hpp"

namespace perseid::internal::cuda {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

mode_t mode_of(const fs::path& path) {
  struct stat facts {};
  EXPECT_EQ(lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 07777;
}
void set_mode(const fs::path& path, mode_t mode) {
  ASSERT_EQ(chmod(path.c_str(), mode), 0) << path;
}

void write_file(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  set_mode(path, 0600);
}
std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ModuleCache : public testing::Test {
 protected:
  void SetUp() override {
    umask(022);
    set_log_callback([](void* user, perseid_log_level,
                        const char* message) { *static_cast<std::string*>(user) = message; },
                     &warning_, PERSEID_LOG_WARNING);
    folder_ =
        fs::temp_directory_path() / ("perseid-cache-" + std::to_string(getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override {
    set_log_callback(nullptr, nullptr, 0);
    fs::remove_all(folder_);
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    if (fs::exists(folder_))
      for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path());
    return found;
  }
  bool finds(const std::string& key) const {
    Image image;
    return load_cached(folder_.string(), key, &image) && image.names == image_.names &&
           image.code == image_.code;
  }

  // Stores an entry, and says where.
  fs::path stored() const {
    store_cached(folder_.string(), "key", image_);
    EXPECT_TRUE(finds("key"));
    return files().at(0);
  }
  void expect_refused(const std::string& reason) {
    EXPECT_FALSE(finds("key"));
    EXPECT_NE(warning_.find(reason), std::string::npos) << warning_;
    warning_.clear();
  }

  fs::path folder_;
  std::string warning_;  // the latest
  const Image image_{{"kernel", "another"},
                     std::string("\x7f"
                                 "ELF\0code\0",
                                 10) +
                         "more"};
};

TEST_F(ModuleCache, KeepsWhatIsStored) {
  EXPECT_FALSE(finds("key"));
  store_cached(folder_.string(), "key", image_);
  EXPECT_TRUE(finds("key"));
  EXPECT_FALSE(finds("another key"));
  EXPECT_EQ(files().size(), 1u) << "a temporary file was left";
}

TEST_F(ModuleCache, PassesOverDamage) {
  store_cached(folder_.string(), "key", image_);
  const fs::path path = files().at(0);
  std::string whole(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(whole.data(), static_cast<std::streamsize>(whole.size()));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(finds("key")) << "byte " << i;
    std::ofstream(path, std::ios::binary) << whole.substr(0, i);
    EXPECT_FALSE(finds("key")) << "cut off after " << i;
  }
  std::ofstream(path, std::ios::binary) << whole << "x";
  EXPECT_FALSE(finds("key")) << "something behind it";
  store_cached(folder_.string(), "key", image_);
  EXPECT_TRUE(finds("key"));
}

TEST_F(ModuleCache, LivesWithoutAFolder) {
  store_cached("", "key", image_);
  store_cached("/proc/nowhere/perseid", "key", image_);
  std::ofstream(folder_) << "a file where the folder should be";
  store_cached(folder_.string(), "key", image_);
  EXPECT_FALSE(finds("key"));
}

// A file size limit fails writes as a full disk does.
TEST_F(ModuleCache, LeavesNothingOnAFullDisk) {
  fs::create_directories(folder_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  store_cached(folder_.string(), "key", image_);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(finds("key"));
  EXPECT_TRUE(files().empty());
}

TEST_F(ModuleCache, ServesManyWriters) {
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        store_cached(folder_.string(), "key", image_);
        if (!finds("key")) ++torn;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ModuleCache, ServesSeveralProcesses) {
  constexpr int kProcesses = 3, kKeys = 40;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    bool whole = true;
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = "key " + std::to_string(i);
      store_cached(folder_.string(), key, image_);
      whole = whole && finds(key);
    }
    _exit(whole ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(files().size(), size_t{kKeys});
  for (int i = 0; i < kKeys; ++i) EXPECT_TRUE(finds("key " + std::to_string(i)));
}

TEST(Keys, TellEverythingApart) {
  std::set<std::string> keys;
  const Version old{12, 8}, young{13, 0};
  for (const char* header : {"a.hpp", "b.hpp"})
    for (const char* architecture : {"sm_80", "sm_90a"})
      for (const std::vector<std::string>& kernels :
           {std::vector<std::string>{"k"}, std::vector<std::string>{"k", "l"}})
        for (const Version* version : {static_cast<const Version*>(nullptr), &old, &young})
          EXPECT_TRUE(keys.insert(key_of({header, kernels, architecture}, version)).second);
}

// ---- What others may have put there ----

TEST_F(ModuleCache, IsOfThisUserAlone) {
  umask(0);
  const fs::path inner = folder_ / "cache" / "perseid";
  store_cached(inner.string(), "key", image_);
  EXPECT_EQ(mode_of(folder_), 0700u);
  EXPECT_EQ(mode_of(inner), 0700u);
  for (const auto& entry : fs::directory_iterator(inner)) EXPECT_EQ(mode_of(entry), 0600u);
}

TEST_F(ModuleCache, PassesOverWhatOthersMayWrite) {
  const fs::path entry = stored();
  for (const mode_t others : {0020u, 0002u}) {
    set_mode(folder_, 0700 | others);
    expect_refused("others may write it");
    set_mode(folder_, 0755);
    EXPECT_TRUE(finds("key"));
    set_mode(entry, 0600 | others);
    expect_refused("others may write it");
    set_mode(entry, 0644);
    EXPECT_TRUE(finds("key"));
  }
  // Nor is anything written there.
  set_mode(folder_, 0777);
  store_cached(folder_.string(), "another", image_);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ModuleCache, PassesOverWhatIsAnothersOwn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const fs::path entry = stored();
  ASSERT_EQ(chown(entry.c_str(), kNobody, kNobody), 0);
  expect_refused("it belongs to user 65534");
  ASSERT_EQ(chown(entry.c_str(), 0, 0), 0);
  EXPECT_TRUE(finds("key"));
  ASSERT_EQ(chown(folder_.c_str(), kNobody, kNobody), 0);
  expect_refused("it belongs to user 65534");
  store_cached(folder_.string(), "another", image_);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ModuleCache, ReadsRegularFilesAlone) {
  const fs::path entry = stored(), elsewhere = folder_ / "elsewhere";
  fs::rename(entry, elsewhere);
  fs::create_symlink(elsewhere, entry);
  expect_refused("it cannot be opened");
  fs::remove(entry);
  ASSERT_EQ(mkfifo(entry.c_str(), 0600), 0);  // a reader that blocks waits here for ever
  expect_refused("it is no regular file");
  fs::remove(entry);
  fs::create_directory(entry);
  expect_refused("it is no regular file");
}

// Whoever knows the process and the key knows the temporary names.
TEST_F(ModuleCache, WritesThroughNoLink) {
  const fs::path entry = stored(), victim = folder_ / "victim";
  write_file(victim, "precious");
  fs::remove(entry);
  fs::create_symlink(victim, entry);
  for (int count = 1; count <= 3000; ++count)
    fs::create_symlink(victim, concatenate(entry.string(), ".", getpid(), ".", count));
  store_cached(folder_.string(), "key", image_);
  EXPECT_EQ(content_of(victim), "precious");

  for (int count = 1; count <= 3000; ++count)
    fs::remove(concatenate(entry.string(), ".", getpid(), ".", count));
  store_cached(folder_.string(), "key", image_);
  EXPECT_EQ(content_of(victim), "precious");
  EXPECT_FALSE(fs::is_symlink(entry));
  EXPECT_TRUE(finds("key"));
}

TEST_F(ModuleCache, RefusesAnEntryWithoutNames) {
  const fs::path entry = stored();
  write_file(entry, write_entry("key", {{}, "code"}));
  EXPECT_FALSE(finds("key"));
  Image image;
  EXPECT_FALSE(load_cached(folder_.string(), "key", &image));
}

// Bytes that deflate well, as code does.
std::string large_code() {
  std::string code;
  for (int i = 0; i < 20000; ++i) code += concatenate("add r", i % 50, ", r", i % 7, ";");
  return code;
}

TEST_F(ModuleCache, KeepsLargeCode) {
  const Image large{image_.names, large_code()};
  const std::string entry = write_entry("key", large);
  Image image;
  ASSERT_TRUE(read_entry(entry, "key", &image));
  EXPECT_EQ(image.code, large.code);
  EXPECT_EQ(image.names, large.names);
  for (size_t at = 16; at < entry.size(); at += at < 48 ? 1 : 997) {
    std::string damaged = entry;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_FALSE(read_entry(damaged, "key", &image)) << "byte " << at;
  }
}

TEST(Deflate, KeepsContent) {
  for (const std::string& content : {std::string(), std::string("a"), large_code()}) {
    const std::string deflated = deflate(content);
    EXPECT_LE(deflated.size(), content.size());
    std::string whole;
    ASSERT_TRUE(inflate(deflated, content.size(), &whole));
    EXPECT_EQ(whole, content);
    EXPECT_FALSE(inflate(deflated, content.size() + 1, &whole));
    if (deflated.size() == content.size()) continue;
    EXPECT_LT(deflated.size(), content.size() / 2);
    EXPECT_FALSE(inflate(deflated, content.size() - 1, &whole));
    EXPECT_FALSE(inflate(deflated.substr(0, deflated.size() - 5), content.size(), &whole));
    std::string damaged = deflated;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
    EXPECT_FALSE(inflate(damaged, content.size(), &whole));
  }
}

class KernelPack : public ModuleCache {
 protected:
  void SetUp() override {
    ModuleCache::SetUp();
    fs::create_directories(folder_);
    path_ = folder_ / "pack";
    write_file(path_, write_entry("one", image_) + write_entry("two", image_));
  }
  bool has(const Pack& pack, const std::string& key) const {
    Image image;
    return pack.find(key, &image) && image.names == image_.names && image.code == image_.code;
  }
  fs::path path_;
};

TEST_F(KernelPack, ReadsSeveral) {
  write_file(path_, write_entry("one", image_) + write_entry("two", {}) +
                        write_entry(std::string(100000, 'k'), image_) + "damage");
  const Pack pack(path_.string());
  EXPECT_EQ(pack.size(), 3u);
  EXPECT_TRUE(has(pack, "one"));
  EXPECT_FALSE(has(pack, "two")) << "an entry without names";
  EXPECT_TRUE(has(pack, std::string(100000, 'k')));
  EXPECT_FALSE(has(pack, "four"));
  EXPECT_EQ(Pack("").size(), 0u);
  EXPECT_EQ(Pack(path_.string() + ".missing").size(), 0u);
  EXPECT_EQ(warning_, "");
}

TEST_F(KernelPack, OutlivesAFileThatIsCutShort) {
  const std::string whole = content_of(path_);
  const Pack pack(path_.string());
  ASSERT_TRUE(has(pack, "two"));
  for (size_t bytes = whole.size(); bytes-- > 0;) {
    ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(bytes)), 0);
    EXPECT_FALSE(has(pack, "two")) << bytes;
    EXPECT_EQ(has(pack, "one"), bytes >= whole.size() / 2) << bytes;
    EXPECT_EQ(Pack(path_.string()).size(), 2 * bytes / whole.size()) << bytes;
  }
  fs::remove(path_);
  EXPECT_FALSE(has(pack, "one"));
  write_file(path_, write_entry("two", image_) + write_entry("one", image_));
  EXPECT_FALSE(has(pack, "one")) << "another file has taken its name";
}

TEST_F(KernelPack, PassesOverDamage) {
  const std::string whole = content_of(path_);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x81);
    write_file(path_, damaged);
    const Pack pack(path_.string());
    EXPECT_EQ(has(pack, "one"), i >= whole.size() / 2) << i;
    EXPECT_FALSE(has(pack, "one") && has(pack, "two")) << i;
  }
}

TEST_F(KernelPack, BelongsToThoseWhoChoseTheLibrary) {
  set_mode(path_, 0664);
  EXPECT_EQ(Pack(path_.string()).size(), 0u);
  EXPECT_NE(warning_.find("others may write it (mode 664)"), std::string::npos) << warning_;
  set_mode(path_, 0644);
  const Pack pack(path_.string());
  EXPECT_EQ(pack.size(), 2u);
  set_mode(path_, 0646);
  EXPECT_FALSE(has(pack, "one"));
  set_mode(path_, 0644);
  if (geteuid() != 0) return;  // only root can give files away
  ASSERT_EQ(chown(path_.c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(Pack(path_.string()).size(), 0u);
  EXPECT_FALSE(has(pack, "one"));
  EXPECT_EQ(Pack(path_.string(), kNobody).size(), 2u);
}

TEST_F(KernelPack, IsARegularFile) {
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Pack(path_.string()).size(), 0u);
  EXPECT_EQ(Pack(folder_.string()).size(), 0u);
  EXPECT_NE(warning_.find("it is no regular file"), std::string::npos) << warning_;
}

// Plans for a GPU that is not there. The only test of this program that makes a plan: the library
// reads its pack once.
TEST_F(KernelPack, LacksWhatExplainNames) {
  AttentionProblem problem;
  problem.dtype = DType::kBF16;
  problem.batch = 1;
  problem.heads = problem.kv_heads = 2;
  problem.q_len = problem.kv_len = 512;
  problem.head_dim = problem.value_dim = 64;
  problem.scale = 0.125;
  const KernelNames forward = Sm90Attention::kernels_of(problem, {});
  write_file(path_,
             write_entry(key_of({forward.header, forward.names, "sm_90a"}, nullptr), image_));
  setenv("PERSEID_PACK", path_.c_str(), 1);
  const Context context = Context::assumed("sm_90");
  AttentionOptions options{
      .dtype = perseid::bf16, .heads = 2, .q_len = 512, .kv_len = 512, .head_dim = 64};
  const auto text = [&] { return std::string(Attention(context, options).explain()); };
  EXPECT_EQ(text().find("pack lacks"), std::string::npos) << text();
  options.backward = true;
  EXPECT_NE(text().find("; the kernel pack lacks its backward, which the first plan compiles"),
            std::string::npos)
      << text();
  options.dropout = 0.1;
  EXPECT_NE(text().find("the kernel pack lacks its backward and forward, which"), std::string::npos)
      << text();
  unsetenv("PERSEID_PACK");
}

// ---- Programs with more rights than their caller ----

TEST(Privileged, DISABLED_IgnoresTheEnvironment) {
  ASSERT_NE(getauxval(AT_SECURE), 0u);
  EXPECT_NE(std::getenv("PERSEID_CACHE_DIR"), nullptr);
  EXPECT_EQ(cache_folder(), "");
  EXPECT_EQ(kernel_pack().size(), 0u);
}

// A copy of this program that belongs to another user, and runs as that user.
TEST_F(KernelPack, IsNotChosenByTheCallerOfAPrivilegedProgram) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a program of another user";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer does not run in a privileged program";
#endif
  const fs::path program = folder_ / "program";
  fs::copy_file("/proc/self/exe", program);
  ASSERT_EQ(chown(program.c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(chown(path_.c_str(), kNobody, kNobody), 0);
  set_mode(program, 04755);
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("TEST_TMPDIR");  // of this user alone
    setenv("PERSEID_CACHE_DIR", "/tmp/chosen", 1);
    setenv("PERSEID_PACK", path_.c_str(), 1);
    execl(program.c_str(), program.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_filter=Privileged.*", nullptr);
    _exit(1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace perseid::internal::cuda
