// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs that NCCL links, as those of several hosts.
#pragma once

#include <dlfcn.h>

#include "gpu_rank_processes.hpp"

namespace collective_tools {

// Ranks as on several hosts, whose data NCCL carries. It takes two ranks on one GPU where it is
// told that they are on two hosts.
class NcclProcesses : public GpuProcesses {
 protected:
  void SetUp() override {
    GpuProcesses::SetUp();
    if (dlopen("libnccl.so.2", RTLD_LAZY) == nullptr) GTEST_SKIP() << "needs NCCL";
  }
  void enter(int32_t rank) override {
    for (const auto& [name, value] : {std::pair{"PERSEID_SHARED_MEMORY", std::string("0")},
                                      {"PERSEID_TRANSPORT", "nccl"},
                                      {"NCCL_HOSTID", "host" + std::to_string(rank)},
                                      {"NCCL_SOCKET_IFNAME", "lo"},
                                      {"NCCL_IB_DISABLE", "1"}})
      setenv(name, value.c_str(), 1);
  }
};

// The same ranks, whose plans send through memory of their hosts where PERSEID_TRANSPORT is
// sockets.
inline Group staged_group_of(int32_t rank, int32_t size) {
  setenv("PERSEID_TRANSPORT", "sockets", 1);
  return Group(GroupOptions{
      .rank = rank,
      .size = size,
      .rendezvous = "unix:" + testing::TempDir() + "staged" + std::to_string(getppid()),
      .token = "a secret",
      .deadline = 30s});
}

// NCCL between two GPUs of this host, by NVLink or PCIe.
class NcclOnNvlink : public NcclProcesses {
 protected:
  void SetUp() override {
    NcclProcesses::SetUp();
    if (!IsSkipped() && count_gpus() < 2) GTEST_SKIP() << "needs two GPUs";
  }
  void enter(int32_t rank) override {
    NcclProcesses::enter(rank);
    for (const char* const name : {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"})
      unsetenv(name);
  }
};

// Two hosts of two ranks, which map each other's memory. Two GPUs have both hosts.
class NcclHostProcesses : public NcclProcesses {
 protected:
  static constexpr int32_t kAll = 4;
  void SetUp() override {
    NcclProcesses::SetUp();
    if (!IsSkipped() && count_gpus() < 2) GTEST_SKIP() << "needs two GPUs";
  }
  void enter(int32_t rank) override {
    NcclProcesses::enter(count_gpus() < kAll ? rank / 2 : rank);
    setenv("PERSEID_HOSTID", rank < 2 ? "first" : "second", 1);
  }
};

}  // namespace collective_tools
