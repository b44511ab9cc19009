// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transport of GPUs on several hosts where all ranks have NCCL: data goes from GPU to GPU.
//
// Who executes an operation waits until its data has arrived; kernels follow and find everything
// there. NCCL sends by kernels, which need multiprocessors, and a product that waits for its chunks
// may hold all of them. So nothing overlaps, plans are unfused, and a failure is returned by the
// call itself. Sums have the order and the bits of one host.
#include "collective/device_memory.hpp"
#include "collective/nccl.hpp"
#include "collective/transport.hpp"

namespace perseid::internal::collective {
namespace {

// What a plan sends lies without gaps, each shard after the one before: [outer, size, inner].
class PackedShards {
 public:
  explicit PackedShards(const Shards& shards) : shards_(shards) {}

  // Where outer is 1 shards have no gaps as they are.
  bool are_in_place() const { return shards_.outer == 1; }
  size_t bytes(int32_t rank) const { return at(rank + 1) - at(rank); }
  // [outer, size, inner] of a rank in memory that has all of them.
  Tensor view(std::byte* data, int32_t rank) const {
    const int64_t size = shards_.size(rank);
    return {.data = data + at(rank),
            .dtype = shards_.dtype,
            .rank = 3,
            .shape = {shards_.outer, size, shards_.inner},
            .stride = {size * shards_.inner, shards_.inner, 1}};
  }
  std::byte* begin(std::byte* data, int32_t rank) const { return data + at(rank); }

 private:
  size_t at(int32_t rank) const {
    return static_cast<size_t>(shards_.outer * shards_.begin_of(rank) * shards_.inner *
                               size_of(shards_.dtype));
  }
  const Shards& shards_;
};

// Executions may be on several streams: each follows the one before.
Status make_order(const TransportSite& site, std::unique_ptr<cuda::CopyQueue>* order) {
  return cuda::CopyQueue::make(site.device.gpu, order);
}

class NcclGather final : public GatherTransport {
 public:
  NcclGather(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), gpu_(site.device.gpu), shards_(shards), chunks_(chunks) {}
  Status make(const TransportSite& site) {
    const size_t bytes = DeviceMemory::aligned(shards_.bytes());
    packed_ = packing_.are_in_place() ? 0 : bytes;
    Status status = memory_.make(gpu_, static_cast<size_t>(chunks_.count()), packed_ + bytes);
    if (status.ok()) status = make_order(site, &order_);
    return group_.exchange(site.operation, status, "", nullptr);
  }

  std::byte* gathered() const override { return memory_.data(); }
  const uint32_t* signals() const override { return memory_.words(); }
  Status start(const Operation&, uint32_t) override { return {}; }
  // The arrival of chunks that are all there before a kernel is launched.
  perseid_arrival arrival(const Operation& operation, uint32_t epoch) const override {
    auto arrival = sized<perseid_arrival>();
    arrival.signals = signals();
    arrival.epoch = epoch;
    arrival.deadline_ns = operation.deadline_ns;
    return arrival;
  }

  Status send(const Operation& operation, const Sending& sending, std::span<const SentPart> parts,
              std::span<const SentPart>) override {
    const cuda::Gpu::Current current(*gpu_);
    const int32_t own = group_.rank();
    Status status = current.status();
    if (status.ok()) status = order_->precede(sending.stream);
    for (const SentPart& part : parts)
      if (status.ok() && part.from.data != part.to.data)
        status = cuda::copy_tensor(*gpu_, part.from, part.to, sending.stream);
    std::byte* const data = memory_.data() + packed_;
    if (status.ok() && !packing_.are_in_place())
      status = cuda::copy_tensor(*gpu_, shard(own), packing_.view(data, own), sending.stream);
    parts_.clear();
    group_.for_each_other([&](int32_t rank) {
      parts_.push_back({rank, packing_.begin(data, own), packing_.bytes(own),
                        packing_.begin(data, rank), packing_.bytes(rank)});
    });
    if (status.ok()) {
      const Reported sent(sending.report, OverlapReport::Kind::kCommunication,
                          OverlapReport::kNoChunk, own, sending.stream);
      status = group_.nccl()->exchange(operation, parts_, sending.stream);
    }
    status = recorded(group_, sending, std::move(status));
    group_.for_each_other([&](int32_t rank) {
      if (status.ok() && !packing_.are_in_place())
        status = cuda::copy_tensor(*gpu_, packing_.view(data, rank), shard(rank), sending.stream);
    });
    return status.ok() ? memory_.set_words(sending.epoch, sending.stream) : status;
  }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu_);
    return current.status().ok() ? order_->follow(sending.stream) : current.status();
  }

 private:
  Tensor shard(int32_t rank) const {
    return shards_.view(gathered(), shards_.begin_of(rank), shards_.begin_of(rank + 1));
  }

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;
  const ShardChunks chunks_;
  const PackedShards packing_{shards_};
  DeviceMemory memory_;
  size_t packed_ = 0;  // where packed shards begin
  std::unique_ptr<cuda::CopyQueue> order_;
  std::vector<NcclLinks::Part> parts_;
};

// In memory of the GPU: what this rank computes of all shards, the same packed, then the parts of
// its own shard that the others have computed.
class NcclReduce final : public ReduceTransport {
 public:
  NcclReduce(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group),
        operation_(site.operation),
        gpu_(site.device.gpu),
        shards_(shards),
        chunks_(chunks) {}
  Status make(const TransportSite& site) {
    const size_t bytes = DeviceMemory::aligned(shards_.bytes());
    packed_ = packing_.are_in_place() ? 0 : bytes;
    received_ = packed_ + bytes;
    part_ = DeviceMemory::aligned(packing_.bytes(group_.rank()));
    Status status = memory_.make(gpu_, static_cast<size_t>(chunks_.count()),
                                 received_ + static_cast<size_t>(group_.size()) * part_);
    if (status.ok()) status = make_order(site, &order_);
    return group_.exchange(site.operation, status, "", nullptr);
  }

  std::byte* partial() const override { return memory_.data(); }
  uint32_t* signals() const override { return memory_.words(); }
  Status start(const Operation& operation, const Sending& sending) override {
    operation_ = operation;
    const cuda::Gpu::Current current(*gpu_);
    return current.status().ok() ? order_->precede(sending.stream) : current.status();
  }
  Status send(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu_);
    const int32_t own = group_.rank();
    std::byte* const data = memory_.data() + packed_;
    Status status = current.status();
    parts_.clear();
    group_.for_each_other([&](int32_t rank) {
      if (status.ok() && !packing_.are_in_place())
        status = cuda::copy_tensor(
            *gpu_, shards_.view(partial(), shards_.begin_of(rank), shards_.begin_of(rank + 1)),
            packing_.view(data, rank), sending.stream);
      parts_.push_back({rank, packing_.begin(data, rank), packing_.bytes(rank), received(rank),
                        packing_.bytes(own)});
    });
    if (!status.ok()) return status;
    const Reported sent(sending.report, OverlapReport::Kind::kCommunication,
                        OverlapReport::kNoChunk, own, sending.stream);
    return recorded(group_, sending, group_.nccl()->exchange(operation_, parts_, sending.stream));
  }
  Status part(const Operation&, const Sending&, int32_t rank, int32_t piece,
              Tensor* part) override {
    *part = shards_.view(partial(), shards_.begin_of(piece), shards_.begin_of(piece + 1));
    if (rank == group_.rank()) return {};
    *part = packing_.view(nullptr, piece);
    part->data = received(rank);
    return {};
  }
  perseid_arrival arrival(const Operation&, uint32_t) const override { return {}; }
  int64_t arrivals() const override { return 0; }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu_);
    return current.status().ok() ? order_->follow(sending.stream) : current.status();
  }

 private:
  std::byte* received(int32_t rank) const {
    return memory_.data() + received_ + static_cast<size_t>(rank) * part_;
  }

  Group& group_;
  Operation operation_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;
  const ShardChunks chunks_;
  const PackedShards packing_{shards_};
  DeviceMemory memory_;
  size_t packed_ = 0, received_ = 0, part_ = 0;  // where they begin, and the bytes of one part
  std::unique_ptr<cuda::CopyQueue> order_;
  std::vector<NcclLinks::Part> parts_;
};

}  // namespace

const Transport kNccl = {.name = "cuda:nccl",
                         .how = "shards are sent by NCCL",
                         .make_gather = make_transport<NcclGather>,
                         .make_reduce = make_transport<NcclReduce>,
                         .make_reduce_in_place = nullptr};

}  // namespace perseid::internal::collective
