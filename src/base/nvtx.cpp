// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The side of the program in version 3 of NVTX's injection protocol, which is a stable binary
// interface. The profiler's library exports InitializeInjectionNvtx2. It is given a function that
// hands out tables; one of them finds the slots of each module's functions, numbered from 1, into
// which the profiler writes its own. A slot that stays null is a function that it does not have.
#include "base/nvtx.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace perseid::internal {
namespace {

using Function = void (*)();

// Modules are numbered from 1: core, CUDA, OpenCL, CUDA runtime, core 2 (domains), synchronisation.
constexpr uint32_t kSlots[] = {0, 16, 9, 15, 7, 16, 7};
constexpr uint32_t kModules = sizeof kSlots / sizeof *kSlots, kMostSlots = 16;
constexpr uint32_t kCore = 1, kRangePush = 9, kRangePop = 11;
constexpr uint32_t kCallbacksTable = 1, kVersionTable = 3, kVersion = 3;

Function functions[kModules][kMostSlots];
Function* slots[kModules][kMostSlots + 1];  // [0] and the last are null

int find_slots(uint32_t module, Function*** table, unsigned* size) {
  if (module == 0 || module >= kModules) return 0;
  if (size != nullptr) *size = kSlots[module];
  if (table != nullptr) *table = slots[module];
  return 1;
}
void set_profiler_version(uint32_t) {}

struct CallbacksTable {
  size_t struct_size;
  int (*find_slots)(uint32_t module, Function*** table, unsigned* size);
};
struct VersionTable {
  size_t struct_size;
  uint32_t version, reserved;
  void (*set_profiler_version)(uint32_t version);
};
constexpr CallbacksTable kCallbacks = {sizeof(CallbacksTable), find_slots};
constexpr VersionTable kVersions = {sizeof(VersionTable), kVersion, 0, set_profiler_version};

const void* table_of(uint32_t number) {
  return number == kCallbacksTable ? static_cast<const void*>(&kCallbacks)
         : number == kVersionTable ? &kVersions
                                   : nullptr;
}

}  // namespace

bool open_nvtx() {
  // Ignored in a privileged (setuid) program: it would load any code.
  const char* path = secure_getenv("NVTX_INJECTION64_PATH");
  if (path == nullptr || *path == '\0') return false;
  void* library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) return false;
  for (uint32_t module = 1; module < kModules; ++module)
    for (uint32_t i = 1; i < kSlots[module]; ++i) slots[module][i] = &functions[module][i];
  using Initialize = int(const void* (*)(uint32_t));
  auto* initialize = reinterpret_cast<Initialize*>(dlsym(library, "InitializeInjectionNvtx2"));
  if (initialize == nullptr || initialize(table_of) == 0) {
    dlclose(library);
    return false;
  }
  return functions[kCore][kRangePush] != nullptr && functions[kCore][kRangePop] != nullptr;
}

void nvtx_push(const char* name) {
  reinterpret_cast<int (*)(const char*)>(functions[kCore][kRangePush])(name);
}

void nvtx_pop() { reinterpret_cast<int (*)()>(functions[kCore][kRangePop])(); }

}  // namespace perseid::internal
