// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What all that goes through NCCL has in common: memory of the GPU, which the ranks of one host
// map, and the order of exchanges between hosts.
//
// All exchanges of a rank are on one queue of GpuRank, so that they have the same order in all
// executions of all plans. Both ranks of a transfer put it into the same exchange. So the first
// exchange that some rank has not queued has no kernel on any GPU that waits for it but those
// before it, which have ended: no two ranks wait for each other.
#pragma once

#include "collective/device_memory.hpp"
#include "collective/gpu_rank.hpp"
#include "collective/transport.hpp"

namespace perseid::internal::collective {

class NcclExchanges {
 protected:
  explicit NcclExchanges(const TransportSite& site)
      : group(site.group),
        gpu(site.device.gpu),
        own(site.group.rank()),
        size(site.group.size()),
        operation(site.operation) {}
  ~NcclExchanges() { drain(); }
  // Called by destructors of classes whose members the thread that watches reads.
  void drain() const {
    if (rank != nullptr) rank->drain();
  }

  // Words, then data, of each rank. Ranks of one host map each other's.
  struct Bytes {
    size_t words, data;
  };
  // Collective.
  Status make(std::vector<Bytes> of_ranks);
  uint32_t* words_of(int32_t of) const {
    return windows_ != nullptr ? windows_->words(rank->links()->on_host(of)) : memory_.words();
  }
  std::byte* data_of(int32_t of) const {
    return reinterpret_cast<std::byte*>(words_of(of)) + begin_of_data(of);
  }
  bool on_host(int32_t of) const { return rank->links()->on_host(of) >= 0; }
  int32_t after(int32_t steps) const { return (own + size + steps) % size; }
  // Of what crosses.
  cuda::CopyQueue& queue() const { return rank->crossing(); }
  // What the next exchange has: tensors of 3 dimensions, of which one at most has gaps. They have
  // as many runs of bytes, of the same lengths, on the other rank.
  void to_send(int32_t to, const Tensor& part);
  void to_receive(int32_t from, const Tensor& part);
  // Runs as those of the part, side by side.
  void to_receive(int32_t from, const Tensor& part, std::byte* data);
  Status exchange();

  Group& group;
  const std::shared_ptr<cuda::Gpu> gpu;
  const int32_t own, size;
  Operation operation;  // of the execution
  GpuRank* rank = nullptr;

 private:
  size_t begin_of_data(int32_t of) const {
    return DeviceMemory::aligned(bytes_[static_cast<size_t>(of)].words * sizeof(uint32_t));
  }
  Status make_memory();

  std::vector<Bytes> bytes_;
  std::unique_ptr<GpuWindows> windows_;
  DeviceMemory memory_;  // instead, of a rank alone on its host
  std::vector<NcclLinks::Part> sent_, received_, exchanged_;
};

// The sums in place of kNccl.
Status make_nccl_pieces(const TransportSite& site, const Shards& shards, int64_t rows,
                        std::unique_ptr<ReduceTransport>* transport);

}  // namespace perseid::internal::collective
