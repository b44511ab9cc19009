// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// For tests that use a GPU as a program does, through the public interface alone.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid::testing_gpu {

// The few functions of the driver that a caller would use here.
struct Cuda {
  int (*stream_create)(void** stream, unsigned flags);
  int (*capture_begin)(void* stream, int mode);
  int (*capture_end)(void* stream, void** graph);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*graph_launch)(void* executable, void* stream);
  int (*context_create)(void** context, unsigned flags, int device);
  int (*context_destroy)(void* context);
  int (*context_current)(void** context);
  int (*primary_retain)(void** context, int device);
  int (*primary_reset)(int device);
  int (*context_set)(void* context);
  int (*memory_info)(size_t* free, size_t* total);

  Cuda() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      EXPECT_NE(function, nullptr) << name;
    };
    find("cuStreamCreate", stream_create);
    find("cuStreamBeginCapture_v2", capture_begin);
    find("cuStreamEndCapture", capture_end);
    find("cuGraphInstantiateWithFlags", instantiate);
    find("cuGraphLaunch", graph_launch);
    find("cuCtxCreate_v2", context_create);
    find("cuCtxDestroy_v2", context_destroy);
    find("cuCtxGetCurrent", context_current);
    find("cuDevicePrimaryCtxRetain", primary_retain);
    find("cuDevicePrimaryCtxReset_v2", primary_reset);
    find("cuCtxSetCurrent", context_set);
    find("cuMemGetInfo_v2", memory_info);
  }
};

// Streams that do not wait for the default one. The device's context is the thread's meanwhile.
class DriverStreams {
 public:
  explicit DriverStreams(size_t count, int device = 0) : streams_(count) {
    EXPECT_EQ(cuda.primary_retain(&primary_, device), 0);
    make_current();
    for (void*& stream : streams_) EXPECT_EQ(cuda.stream_create(&stream, 1), 0);
  }
  ~DriverStreams() { cuda.context_set(nullptr); }
  void make_current() const { EXPECT_EQ(cuda.context_set(primary_), 0); }
  void* operator[](size_t i) const { return streams_[i]; }
  const Cuda cuda;

 private:
  void* primary_ = nullptr;
  std::vector<void*> streams_;
};

inline Tensor on_gpu(const void* data, DType dtype, const Dims& shape, const Dims& strides = {}) {
  return Tensor(data, dtype, shape, strides, {kDLCUDA, 0});
}

inline std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) * 0x1p-22f - 2;
  }
  return values;
}

// The same as bf16, by their bits.
using Bits = std::vector<uint16_t>;
inline Bits random_bf16(size_t count, uint32_t seed) {
  const std::vector<float> floats = random_floats(count, seed);
  Bits bits(count);
  for (size_t i = 0; i < count; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, &floats[i], 4);
    bits[i] = static_cast<uint16_t>(word >> 16);
  }
  return bits;
}
inline float float_of(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, 4);
  return value;
}

// A context of the first GPU; tests are skipped, with the reason, where there is none.
class ContextTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      context_.emplace(Context::cuda(0));
    } catch (const Error& error) {
      // A GPU that is there and does not open is a failure.
      if (error.status() != PERSEID_UNSUPPORTED) throw;
      GTEST_SKIP() << error.what();
    }
  }
  const Context& context() const { return *context_; }

 private:
  std::optional<Context> context_;
};

}  // namespace perseid::testing_gpu
