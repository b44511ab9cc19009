// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Global allocation functions that count, and fail where a test asks for it, in a file of their
// own: inlined, they would look to the compiler like mismatched pairs.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

thread_local int64_t allocations_of_this_thread = 0;
// So many allocations of this thread succeed, the next one fails; negative: all succeed.
thread_local int64_t allocations_until_failure = -1;
// What all threads have allocated and not freed.
std::atomic<int64_t> live_allocations{0};

namespace {

void* counted(void* memory) {
  ++allocations_of_this_thread;
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) {
    std::free(memory);
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  ++live_allocations;
  return memory;
}
void release(void* memory) {
  if (memory != nullptr) --live_allocations;
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }

// Those without exceptions as the library's own, which a sanitizer replaces.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto step = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(step, (bytes + step - 1) / step * step));
}

void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
