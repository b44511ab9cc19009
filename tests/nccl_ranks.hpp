// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks of GPUs on several hosts that NCCL links, without GPUs: with the fake NCCL, driver and
// compiler. Streams of the fake driver are threads.
#pragma once

#include "fake_driver.hpp"
#include "host_ranks.hpp"

namespace host_ranks {

// A function of the fake driver.
template <class Function>
Function fake(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

class NcclRanks : public HostRanks {
 protected:
  void SetUp() override {
    HostRanks::SetUp();
    setenv("PERSEID_TRANSPORT", "nccl", 1);
  }
  void TearDown() override {
    unsetenv("PERSEID_TRANSPORT");
    HostRanks::TearDown();
  }
  void enter(int32_t rank) override {
    HostRanks::enter(rank);
    setenv("FAKE_STREAMS", "1", 1);
    // Kernels of no code are not to be kept.
    setenv("PERSEID_PACK", "/nowhere/perseid.pack", 1);
    setenv("PERSEID_CACHE_DIR", "/nowhere", 1);
    setenv("PERSEID_NVRTC", FAKE_NVRTC, 1);
  }
};

}  // namespace host_ranks
