// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Global allocation functions that count, in a file of their own: inlined, they would look to the
// compiler like mismatched pairs.
#include <cstdint>
#include <cstdlib>
#include <new>

thread_local int64_t allocations_of_this_thread = 0;

void* operator new(size_t bytes) {
  ++allocations_of_this_thread;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocations_of_this_thread;
  const auto step = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(step, (bytes + step - 1) / step * step);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
