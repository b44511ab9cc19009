// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The main function of every test program. Where PERSEID_CPU_ISA forces an instruction set that the
// machine lacks, the program says so and is counted as skipped. The question is put to the machine,
// not to the library: a library that loses a table fails its tests instead of skipping them.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
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

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* isa = std::getenv("PERSEID_CPU_ISA");
  if (isa != nullptr && machine_lacks(isa)) {
    std::printf("skipped: this machine lacks %s\n", isa);
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
