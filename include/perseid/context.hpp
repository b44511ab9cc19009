// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Devices, their memory and the time that work takes on them. Included by perseid.hpp.
#ifndef PERSEID_CONTEXT_HPP_
#define PERSEID_CONTEXT_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "perseid/perseid.h"
#include "perseid/tensor.hpp"

namespace perseid {
inline namespace v0 {

// ---- Context ----------------------------------------------------------------------------------

using Stream = void*;  ///< of the context's device; nullptr on the CPU

/// What Context::ceiling measures.
enum class Ceiling {
  kF32 = PERSEID_CEILING_F32,    ///< float32 multiply-adds
  kBF16 = PERSEID_CEILING_BF16,  ///< bf16 dot products
  kF64 = PERSEID_CEILING_F64,    ///< float64 multiply-adds
  kCopy = PERSEID_CEILING_COPY,  ///< bytes read plus bytes written
  kRead = PERSEID_CEILING_READ,  ///< bytes read
};

/// A caller's own threads. run() calls task(t, worker) once for every t in [0, tasks) and returns
/// when all have returned; `worker` is in [0, workers()) and belongs to one running task at a time.
/// It may be entered by several threads at once, must not throw, and must outlive every context and
/// plan that uses it.
/// \snippet snippets.cpp executor
class Executor {
 public:
  /// The work that run() distributes.
  struct Task {
    perseid_task_fn function;  ///< the C interface's form
    void* state;               ///< its first argument
    /// Does one task.
    void operator()(int64_t task, int32_t worker) const { function(state, task, worker); }
  };
  virtual ~Executor() = default;
  /// The most tasks that run at the same time, at least 1.
  virtual int32_t workers() const noexcept = 0;
  /// Does all tasks, and returns when they are done.
  virtual void run(int64_t tasks, Task task) noexcept = 0;
};

/// What holds for all plans of a context.
struct ContextSettings {
  const char* disable = nullptr;  ///< names of implementations, divided by commas, not to be used
  perseid_determinism determinism = PERSEID_DETERMINISM_DEFAULT;  ///< of attention's gradients
};

/// A device and, on the CPU, the threads that work. Plans keep what they need of it.
class Context {
 public:
  /// The CPU with a pool of `threads` (0: PERSEID_NUM_THREADS, else the CPUs this process may use).
  /// \snippet snippets.cpp context
  static Context cpu(int32_t threads = 0, const ContextSettings& settings = {}) {
    auto options = options_of(kDLCPU, settings);
    options.threads = threads;
    return Context(options);
  }
  /// The CPU with the caller's threads.
  /// \snippet snippets.cpp executor_use
  static Context cpu(Executor& executor, const ContextSettings& settings = {}) {
    auto options = options_of(kDLCPU, settings);
    options.executor.user = &executor;
    options.executor.workers = executor.workers();
    options.executor.run = [](void* user, int64_t tasks, perseid_task_fn function, void* state) {
      static_cast<Executor*>(user)->run(tasks, {function, state});
    };
    return Context(options);
  }
  /// An NVIDIA GPU by its index.
  /// \snippet snippets.cpp cuda
  static Context cuda(int32_t index, const ContextSettings& settings = {}) {
    auto options = options_of(kDLCUDA, settings);
    options.device_index = index;
    return Context(options);
  }
  /// No GPU: plans are made and explained as for one of this compute capability, such as "sm_80".
  /// \snippet snippets.cpp assume
  static Context assumed(const char* capability, const ContextSettings& settings = {}) {
    auto options = options_of(kDLCUDA, settings);
    options.assume = capability;
    return Context(options);
  }
  /// By the C interface's options.
  explicit Context(const perseid_context_options& options) {
    perseid_context_t handle = nullptr;
    detail::check(perseid_context_create(&options, &handle));
    handle_.reset(handle);
  }

  /// The library, the device and the environment variables in force, as one JSON object.
  /// \snippet snippets.cpp facts
  std::string_view facts() const {
    const char* json = nullptr;
    detail::check(perseid_context_facts(get(), &json));
    return json;
  }
  /// Measures what the device reaches at best, FLOP/s or bytes/s; see perseid_ceiling.
  /// \snippet snippets.cpp facts
  double ceiling(Ceiling which, uint64_t bytes = 0) const {
    double per_second = 0;
    detail::check(
        perseid_context_ceiling(get(), static_cast<perseid_ceiling>(which), bytes, &per_second));
    return per_second;
  }
  /// Where tensors must be.
  /// \snippet snippets.cpp memory
  DLDevice device() const {
    DLDevice device{};
    detail::check(perseid_context_device(get(), &device));
    return device;
  }
  /// Copies between host and device or within either, after the work queued on the stream, and
  /// waits.
  /// \snippet snippets.cpp memory
  void copy(void* to, const void* from, size_t bytes, Stream stream = nullptr) const {
    detail::check(perseid_memory_copy(get(), to, from, bytes, stream));
  }
  /// Waits for the work of the stream.
  /// \snippet snippets.cpp timer
  void synchronize(Stream stream = nullptr) const {
    detail::check(perseid_stream_synchronize(get(), stream));
  }
  /// The C interface's handle, which this object owns.
  perseid_context_t get() const { return handle_.get(); }

 private:
  static perseid_context_options options_of(DLDeviceType type, const ContextSettings& settings) {
    auto options = detail::sized<perseid_context_options>();
    options.device_type = type;
    options.disable = settings.disable;
    options.determinism = settings.determinism;
    return options;
  }
  struct Destroy {
    void operator()(perseid_context_t handle) const { perseid_context_destroy(handle); }
  };
  std::unique_ptr<perseid_context, Destroy> handle_;
};

// ---- Memory and time of a device --------------------------------------------------------------

/// Memory of a context's device, aligned to 64 bytes or more, with any content. The context must
/// live as long.
/// \snippet snippets.cpp memory
class Memory {
 public:
  /// Allocates `bytes`.
  Memory(const Context& context, size_t bytes)
      : data_(allocate(context, bytes), Free{context.get()}), size_(bytes) {}
  void* data() const { return data_.get(); }  ///< its first byte
  size_t size() const { return size_; }       ///< in bytes
  /// As the workspace of a plan.
  operator std::span<std::byte>() const { return {static_cast<std::byte*>(data()), size_}; }

 private:
  struct Free {
    perseid_context_t context;
    void operator()(void* data) const { perseid_memory_free(context, data); }
  };
  static void* allocate(const Context& context, size_t bytes) {
    void* data = nullptr;
    detail::check(perseid_memory_allocate(context.get(), bytes, &data));
    return data;
  }
  std::unique_ptr<void, Free> data_;
  size_t size_;
};

/// The time between two points of a stream, by the device's clock.
/// \snippet snippets.cpp timer
class Timer {
 public:
  /// Measures on the context's device.
  explicit Timer(const Context& context) {
    perseid_timer_t handle = nullptr;
    detail::check(perseid_timer_create(context.get(), &handle));
    handle_.reset(handle);
  }
  /// Sets the first point, after the work queued so far.
  void start(Stream stream = nullptr) { detail::check(perseid_timer_start(handle_.get(), stream)); }
  /// Sets the second point, after the work queued so far.
  void stop(Stream stream = nullptr) { detail::check(perseid_timer_stop(handle_.get(), stream)); }
  /// Waits for the second point.
  double seconds() const {
    double seconds = 0;
    detail::check(perseid_timer_seconds(handle_.get(), &seconds));
    return seconds;
  }

 private:
  struct Destroy {
    void operator()(perseid_timer_t handle) const { perseid_timer_destroy(handle); }
  };
  std::unique_ptr<perseid_timer, Destroy> handle_;
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_CONTEXT_HPP_
