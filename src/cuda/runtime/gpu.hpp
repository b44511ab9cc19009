// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// One GPU: its facts, its kernels and their launch. Works in the device's primary context, which
// frameworks share; the caller's current context is as it was after every call.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/runtime/compiler.hpp"
#include "cuda/runtime/driver.hpp"
#include "cuda/runtime/wait_reports.hpp"

namespace perseid::internal::cuda {

// A kernel that is loaded, and how it is compiled.
struct Kernel {
  FunctionHandle function = nullptr;
  int32_t registers = 0;
  int32_t local_bytes = 0;  // spilled
};

// Kernels of a header, by their name expressions.
struct KernelNames {
  std::string header;
  std::vector<std::string> names;
};

inline constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;  // of a launch

struct Launch {
  int64_t blocks = 0;
  int32_t threads = 0;
  int32_t cluster = 1;       // blocks of a cluster
  int32_t shared_bytes = 0;  // dynamic shared memory; see allow_shared
  bool cooperative = false;  // all blocks run at the same time and may wait for one another
  bool dependent = true;     // programmatic dependent launch: the kernel must wait by itself
};

struct GpuFacts {
  int32_t index = 0;
  std::string name;
  int32_t major = 0, minor = 0;  // compute capability
  int32_t multiprocessors = 0;
  int32_t l2_bytes = 0;
  int32_t shared_bytes = 0;  // that a block may have
  size_t memory_bytes = 0;
  std::string architecture;  // which kernels are compiled for
  bool assumed = false;      // there is no such GPU: choices can be made for it, nothing runs

  // sm_90a and newer, compute_90 and newer.
  bool has_clusters() const { return !architecture.ends_with("_80"); }
};

class Gpu {
 public:
  // `architecture`: what kernels are compiled for; "": the best that the device runs.
  static Status open(int32_t index, std::shared_ptr<Gpu>* gpu,
                     const std::string& architecture = "");
  // A GPU that need not exist, by its compute capability, such as sm_80: kernels are neither
  // compiled nor loaded, and whatever would run fails.
  static Status assume(const std::string& capability, std::shared_ptr<Gpu>* gpu);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const GpuFacts& facts() const { return facts_; }
  const Driver& driver() const { return driver_; }

  // Kernels of a header by their name expressions: from memory, the kernel pack, the disk cache,
  // or the compiler. They live as long as this object. Loads after what waits for other ranks.
  // What is in no file is compiled side by side, each kernel by itself.
  Status load(const std::string& header, const std::vector<std::string>& names,
              std::vector<Kernel>* kernels);
  // As load(), for kernels that executions look up: found again without their names.
  enum class Kept { kSignalWait, kCopyRows };
  Status load_kept(Kept which, const char* header, std::vector<std::string> (*names)(),
                   const std::vector<Kernel>** kernels);
  // Kernels that load() will then find in memory: all that are in no file are compiled side by
  // side.
  Status load_ahead(std::span<const KernelNames> kernels);
  // Whether the kernel pack has them.
  bool is_packed(const KernelNames& kernels) const;
  // Whether load() needs no compiler.
  bool is_compiled(const KernelNames& kernels) const;

  // Allows launches of the kernel with this much dynamic shared memory.
  Status allow_shared(const Kernel& kernel, int32_t bytes) const;

  // The context must be current (see Current). `arguments`: one struct, passed by value.
  Status launch(const Kernel& kernel, const Launch& launch, const void* arguments,
                void* stream) const;

  // What kernels report of their waits.
  WaitReports& wait_reports() const { return *wait_reports_; }

  // Memory of the library's own that the device reaches by the same address: after a pause to ask
  // the driver takes microseconds.
  void add_reachable(const void* data, size_t bytes);
  void remove_reachable(const void* data);
  bool is_reachable(const void* data) const;

  // Makes the device's context the calling thread's for a scope.
  class Current {
   public:
    explicit Current(const Gpu& gpu);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Status& status() const { return status_; }

   private:
    const Gpu& gpu_;
    bool pushed_ = false;
    Status status_;
  };

 private:
  // The modules of a program: one, or one of each kernel. They are loaded once, by the first thread
  // that needs them; the mutex blocks no other program.
  struct Loaded {
    std::mutex mutex;
    std::vector<ModuleHandle> modules;
    std::vector<Kernel> kernels;  // empty: not loaded
  };

  Gpu(const Driver& driver, int32_t index)
      : driver_(driver), wait_reports_(std::make_unique<WaitReports>(driver, index)) {
    facts_.index = index;
  }
  // The images of each program. Without `compiles`, an error if one is in no file.
  Status find_images(std::span<const Program> programs, bool compiles,
                     std::vector<std::vector<Image>>* images) const;
  Status load_images(const std::vector<Image>& images, Loaded* loaded) const;
  Loaded& loaded(const std::string& key);

  const Driver& driver_;
  GpuFacts facts_;
  DeviceNumber device_ = 0;
  ContextHandle context_ = nullptr;
  std::mutex mutex_;
  std::map<std::string, Loaded> loaded_;  // by key
  std::mutex kept_mutex_;
  std::vector<Kernel> kept_[2];  // empty: not loaded
  mutable std::mutex reachable_mutex_;
  std::vector<std::span<const std::byte>> reachable_;
  std::unique_ptr<WaitReports> wait_reports_;
};

}  // namespace perseid::internal::cuda
