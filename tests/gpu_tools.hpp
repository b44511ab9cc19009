// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU for tests, and the skipping of tests where there is no GPU.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/runtime/memory.hpp"
#include "tensor.hpp"

namespace perseid::internal::testing_gpu {

// The first GPU, or why it did not open.
struct OpenedGpu {
  std::shared_ptr<cuda::Gpu> gpu;
  Status status = cuda::Gpu::open(0, &gpu);
};

// Tests on a GPU, of compute capability `major` if it is not 0; skipped, with the reason, without.
// One that is there and does not open is a fatal failure: after any other failure GoogleTest would
// not skip the test's body.
class GpuTest : public testing::Test {
 protected:
  explicit GpuTest(int32_t major = 0) : major_(major) {}
  void SetUp() override {
    static const OpenedGpu kOpened;
    gpu_ = kOpened.gpu;
    if (kOpened.status.code() == PERSEID_UNSUPPORTED) GTEST_SKIP() << kOpened.status.sentence();
    ASSERT_TRUE(kOpened.status.ok()) << kOpened.status.sentence();
    if (major_ != 0 && gpu_->facts().major != major_)
      GTEST_SKIP() << "the GPU is not of compute capability " << major_ << ".0";
  }
  std::shared_ptr<cuda::Gpu> gpu_;

 private:
  const int32_t major_;
};

// How often a test repeats itself: what the environment's variable says, or `otherwise`.
inline int asked_count(const char* variable, int otherwise) {
  const char* const asked = std::getenv(variable);
  return asked != nullptr ? std::atoi(asked) : otherwise;
}

// Ends the test if the status is an error: after a failed allocation, a kernel would access null
// pointers and lose the context for the tests that follow.
inline void expect_ok(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.sentence());
}

// An array's memory on the GPU, with guards around it, which are NaN in every floating-point type.
// It begins as many bytes past a multiple of 256 as `misalign` elements have.
class Mirror {
 public:
  Mirror(const cuda::Gpu& gpu, tests::Array& array, int64_t misalign = 0)
      : gpu_(gpu),
        array_(array),
        misalign_(static_cast<size_t>(misalign * size_of(array.tensor.dtype))) {
    std::vector<std::byte> all(bytes(), kGuard);
    std::copy(array.memory.begin(), array.memory.end(), all.begin() + begin());
    expect_ok(cuda::allocate(gpu_, bytes(), &memory_));
    expect_ok(cuda::copy(gpu_, memory_, all.data(), bytes(), nullptr));
  }
  ~Mirror() { cuda::release(gpu_, memory_); }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // The array's view, of the memory on the GPU.
  Tensor tensor() const {
    Tensor view = array_.tensor;
    const std::ptrdiff_t first = static_cast<std::byte*>(array_.tensor.data) - array_.memory.data();
    view.data = static_cast<std::byte*>(memory_) + begin() + first;
    return view;
  }
  // Back into the array; nothing around it may have changed.
  void fetch() {
    std::vector<std::byte> all(bytes());
    expect_ok(cuda::copy(gpu_, all.data(), memory_, bytes(), nullptr));
    std::copy_n(all.begin() + begin(), array_.memory.size(), array_.memory.begin());
    const auto front = static_cast<size_t>(begin());
    for (size_t i = 0; i < all.size(); ++i) {
      const bool inside = front <= i && i < front + array_.memory.size();
      ASSERT_TRUE(inside || all[i] == kGuard) << "byte " << i << " of " << all.size();
    }
    array_.expect_guards();
  }

 private:
  static constexpr size_t kRoom = 256;
  static constexpr std::byte kGuard{0xff};
  size_t bytes() const { return array_.memory.size() + 2 * kRoom + misalign_; }
  std::ptrdiff_t begin() const { return static_cast<std::ptrdiff_t>(kRoom + misalign_); }

  const cuda::Gpu& gpu_;
  tests::Array& array_;
  size_t misalign_;
  void* memory_ = nullptr;
};

// A stream that does not wait for the default one.
class Stream {
 public:
  explicit Stream(const cuda::Gpu& gpu) : gpu_(gpu) {
    const cuda::Gpu::Current current(gpu_);
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    create_ = reinterpret_cast<int (*)(void**, unsigned)>(dlsym(driver, "cuStreamCreate"));
    destroy_ = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuStreamDestroy_v2"));
    constexpr unsigned kNonBlocking = 1;
    if (create_(&handle_, kNonBlocking) != 0) throw std::runtime_error("cuStreamCreate failed");
  }
  ~Stream() {
    const cuda::Gpu::Current current(gpu_);
    destroy_(handle_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void* handle() const { return handle_; }

 private:
  const cuda::Gpu& gpu_;
  int (*create_)(void**, unsigned) = nullptr;
  int (*destroy_)(void*) = nullptr;
  void* handle_ = nullptr;
};

// Words in page-locked memory, which host and device reach.
class PinnedWords {
 public:
  PinnedWords(const cuda::Gpu& gpu, size_t count, uint32_t initial) : gpu_(gpu) {
    const cuda::Gpu::Current current(gpu_);
    void* memory = nullptr;
    if (gpu_.driver().host_allocate(&memory, 4 * count, cuda::kPortableMapped) != cuda::kSuccess)
      throw std::runtime_error("cuMemHostAlloc failed");
    words_ = static_cast<uint32_t*>(memory);
    std::fill_n(words_, count, initial);
  }
  ~PinnedWords() {
    const cuda::Gpu::Current current(gpu_);
    gpu_.driver().host_free(words_);
  }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;

  const uint32_t* data() const { return words_; }
  uint32_t* mutable_data() const { return words_; }
  void set(size_t i, uint32_t value) const {
    __atomic_store_n(words_ + i, value, __ATOMIC_RELEASE);
  }
  uint32_t get(size_t i) const { return __atomic_load_n(words_ + i, __ATOMIC_ACQUIRE); }

 private:
  const cuda::Gpu& gpu_;
  uint32_t* words_ = nullptr;
};

}  // namespace perseid::internal::testing_gpu
