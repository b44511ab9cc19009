// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernel_table.hpp"

#include <cstdlib>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace perseid::internal::cpu {
namespace {

#if defined(__x86_64__)
[[maybe_unused]] bool runs_avx2() {
  // The compilers do not agree on a name for half-precision conversions, so the CPU is asked. They
  // need no state of the operating system beyond that of AVX2.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

[[maybe_unused]] bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

[[maybe_unused]] bool runs_avx512bf16() {
  return runs_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

}  // namespace

// PERSEID_HAVE_<ISA> says which tables the build compiled for this architecture.
std::vector<const KernelTable*> available_kernel_tables() {
  std::vector<const KernelTable*> tables;
#if defined(PERSEID_HAVE_AVX512BF16)
  if (runs_avx512bf16()) tables.push_back(&avx512bf16::table());
#endif
#if defined(PERSEID_HAVE_AVX512)
  if (runs_avx512()) tables.push_back(&avx512::table());
#endif
#if defined(PERSEID_HAVE_AVX2)
  if (runs_avx2()) tables.push_back(&avx2::table());
#endif
#if defined(PERSEID_HAVE_NEON)
  tables.push_back(&neon::table());
#endif
  tables.push_back(&scalar::table());
  return tables;
}

const KernelTable* select_kernel_table(std::string& error) {
  const std::vector<const KernelTable*> tables = available_kernel_tables();
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced == nullptr || *forced == '\0') return tables.front();
  std::string names;
  for (const KernelTable* table : tables) {
    if (std::string(forced) == table->isa) return table;
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  error = "PERSEID_CPU_ISA is \"" + std::string(forced) +
          "\", which this build and this machine cannot run; set it to one of " + names +
          ", or unset it for the best of them";
  return nullptr;
}

}  // namespace perseid::internal::cpu
