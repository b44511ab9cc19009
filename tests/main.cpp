// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The main function of every test program. Where PERSEID_CPU_ISA forces an instruction set that the
// machine lacks, the program says so and is counted as skipped. The question is put to the machine,
// not to the library: a library that loses a table fails its tests instead of skipping them. So
// does a program whose tests were all skipped, as those of a GPU are where there is none.
//
// testing::TempDir() is a folder of this run alone, since the same program may run several times at
// once.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace {

constexpr int kSkipped = 77;

bool machine_lacks([[maybe_unused]] std::string_view isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == "avx2") return !avx2;
  if (isa == "avx512") return !avx512;
  if (isa == "avx512bf16") return !(avx512 && __builtin_cpu_supports("avx512bf16"));
#endif
  return false;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (mkdtemp(path_.data()) == nullptr) {
      std::perror("cannot make a temporary folder");
      std::exit(1);
    }
    setenv("TEST_TMPDIR", path_.c_str(), 1);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

 private:
  std::string path_ = testing::TempDir() + "perseid_test_XXXXXX";
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* isa = getenv("PERSEID_CPU_ISA");
  if (isa != nullptr && machine_lacks(isa)) {
    std::printf("skipped: this machine lacks %s\n", isa);
    return kSkipped;
  }
  const TemporaryFolder folder;
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  const int run = tests.test_to_run_count();
  if (result != 0 || run == 0 || tests.skipped_test_count() != run) return result;
  std::printf("skipped: none of the %d tests can run here\n", run);
  return kSkipped;
}
