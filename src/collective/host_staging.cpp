// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The transport of GPUs on several hosts: data goes through memory of the hosts, between which the
// links of the CPU's transport carry it: sockets, or MPI where the ranks met by it.
//
//   device -> own window of the host -> link -> window of the other host -> device
//
// Who executes an operation waits until its data has arrived, chunk by chunk with the operation's
// deadline; kernels follow and find everything there. So nothing overlaps, plans are unfused, and
// a failure is returned by the call itself. Sums have the order and the bits of one host.
#include "collective/device_memory.hpp"
#include "collective/transport.hpp"
#include "cuda/runtime/copy_queue.hpp"

namespace perseid::internal::collective {
namespace {

// Between memory of the host and of the GPU, in the order of the stream, of tensors that lie in
// both as `from` does. Pageable memory: a copy to the GPU has read it when this returns.
Status copy_rows(const cuda::Gpu& gpu, const Tensor& from, std::byte* to, void* stream) {
  if (from.elements() == 0) return {};
  const cuda::Gpu::Current current(gpu);
  Status status = current.status();
  const ByteRows rows = rows_of(from);
  for (uint64_t row = 0; status.ok() && row < rows.count; ++row) {
    const auto address = [&](std::byte* data) {
      return reinterpret_cast<cuda::DeviceAddress>(data + row * rows.stride);
    };
    status = cuda::check(gpu.driver(),
                         gpu.driver().copy(address(to), address(from.as<std::byte>()), rows.bytes,
                                           static_cast<cuda::StreamHandle>(stream)),
                         "copying between a GPU and its host", "see what nvidia-smi says");
  }
  return status;
}

class StagedGather final : public GatherTransport {
 public:
  StagedGather(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), gpu_(site.device.gpu), shards_(shards), chunks_(chunks) {}
  Status make(const TransportSite& site) {
    Status status = memory_.make(gpu_, static_cast<size_t>(chunks_.count()), shards_.bytes());
    status = group_.exchange(site.operation, status, "", nullptr);
    return status.ok() ? kSockets.make_gather(site, shards_, chunks_, &host_) : status;
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
    Status status = host_->start(operation, sending.epoch);
    sent_.clear();
    for (size_t i = 0; status.ok() && i < parts.size(); ++i) {
      const SentPart& part = parts[i];
      const Reported copying(sending.report, OverlapReport::Kind::kCommunication, part.chunk,
                             group_.rank(), sending.stream);
      if (part.from.data != part.to.data)
        status = cuda::copy_tensor(*gpu_, part.from, part.to, sending.stream);
      const Tensor on_host = moved(part.to, gathered(), host_->gathered());
      if (status.ok() && part.readers != 0)
        status = copy_rows(*gpu_, part.to, on_host.as<std::byte>(), sending.stream);
      sent_.push_back({part.chunk, on_host, on_host, part.readers});
    }
    if (status.ok()) status = cuda::synchronize(*gpu_, sending.stream);
    if (status.ok()) status = host_->send(operation, {sending.epoch, nullptr, nullptr}, sent_);
    if (status.ok()) status = receive(operation, sending);
    return status;
  }
  void expect(std::span<const SentPart> parts) override { expected_ = parts; }
  Status finish(const Sending& sending) override { return host_->finish(sending); }

 private:
  // The tensor at the same offset of other memory.
  static Tensor moved(Tensor tensor, const std::byte* from, std::byte* to) {
    tensor.data = to + (tensor.as<const std::byte>() - from);
    return tensor;
  }
  Tensor view(std::byte* data, int64_t chunk) const {
    const auto c = static_cast<size_t>(chunk);
    return shards_.view(data, chunks_.begin[c], chunks_.begin[c + 1]);
  }
  // To the GPU.
  Status fetch(int64_t chunk, void* stream) const {
    if (expected_.empty()) {
      const Tensor on_host = view(host_->gathered(), chunk);
      return copy_rows(*gpu_, on_host, view(gathered(), chunk).as<std::byte>(), stream);
    }
    Status status;
    for (const SentPart& part : expected_) {
      if (!status.ok() || part.chunk != chunk) continue;
      const Tensor on_host = moved(part.to, gathered(), host_->gathered());
      status = copy_rows(*gpu_, on_host, part.to.as<std::byte>(), stream);
    }
    return status;
  }
  // The chunks of the others, beginning with those of the rank after this one.
  Status receive(const Operation& operation, const Sending& sending) const {
    const ChunkTable<int64_t> table{nullptr, chunks_.count(), chunks_.pivot(group_.rank())};
    Status status;
    for (int64_t visit = 0; status.ok() && visit < chunks_.count(); ++visit) {
      const int64_t chunk = table.chunk_of_visit(visit);
      const int32_t owner = chunks_.owner(chunk);
      if (owner == group_.rank()) continue;
      const Reported receiving(sending.report, OverlapReport::Kind::kCommunication, chunk, owner,
                               sending.stream);
      status = wait_for_chunk(group_, operation, sending, owner, chunk, host_->signals() + chunk);
      if (status.ok()) status = fetch(chunk, sending.stream);
    }
    // The window may be written again once this has returned.
    return status.ok() ? memory_.set_words(sending.epoch, sending.stream) : status;
  }

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;
  const ShardChunks chunks_;
  DeviceMemory memory_;
  std::unique_ptr<GatherTransport> host_;
  std::vector<SentPart> sent_;
  std::span<const SentPart> expected_;
};

// In memory of the GPU: what this rank computes of all shards, then the parts of its own shard that
// the others have computed.
class StagedReduce final : public ReduceTransport {
 public:
  StagedReduce(const TransportSite& site, const Shards& shards, const ShardChunks& chunks)
      : group_(site.group), gpu_(site.device.gpu), shards_(shards), chunks_(chunks) {}
  Status make(const TransportSite& site) {
    partial_ = DeviceMemory::aligned(shards_.bytes());
    const Tensor own =
        shards_.view(nullptr, shards_.begin_of(group_.rank()), shards_.begin_of(group_.rank() + 1));
    part_ = DeviceMemory::aligned(static_cast<size_t>(own.elements() * size_of(own.dtype)));
    Status status = memory_.make(gpu_, static_cast<size_t>(chunks_.count()),
                                 partial_ + static_cast<size_t>(group_.size()) * part_);
    status = group_.exchange(site.operation, status, "", nullptr);
    return status.ok() ? kSockets.make_reduce(site, shards_, chunks_, &host_) : status;
  }

  std::byte* partial() const override { return memory_.data(); }
  uint32_t* signals() const override { return memory_.words(); }
  Status start(const Operation& operation, const Sending& sending) override {
    return host_->start(operation, {sending.epoch, nullptr, nullptr});
  }
  Status send(const Sending& sending) override {
    stream_ = sending.stream;
    Status status;
    for (int64_t chunk = 0; status.ok() && chunk < chunks_.count(); ++chunk) {
      if (chunks_.owner(chunk) == group_.rank()) continue;
      const Reported sent(sending.report, OverlapReport::Kind::kCommunication, chunk,
                          chunks_.owner(chunk), stream_);
      const auto c = static_cast<size_t>(chunk);
      const auto view = [&](std::byte* data) {
        return shards_.view(data, chunks_.begin[c], chunks_.begin[c + 1]);
      };
      status = copy_rows(*gpu_, view(partial()), view(host_->partial()).as<std::byte>(), stream_);
    }
    if (status.ok()) status = cuda::synchronize(*gpu_, stream_);
    if (!status.ok()) return status;
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk)
      cpu::set_signal(host_->signals() + chunk, sending.epoch);
    return host_->send({sending.epoch, nullptr, nullptr});
  }
  Status part(const Operation& operation, const Sending& sending, int32_t rank, int32_t piece,
              Tensor* part) override {
    if (rank == group_.rank()) {
      *part = shards_.view(partial(), shards_.begin_of(piece), shards_.begin_of(piece + 1));
      return {};
    }
    Tensor on_host;
    if (Status status = host_->part(operation, sending, rank, piece, &on_host); !status.ok())
      return status;
    *part = on_host;
    part->data = memory_.data() + partial_ + static_cast<size_t>(rank) * part_;
    return copy_rows(*gpu_, on_host, part->as<std::byte>(), stream_);
  }
  perseid_arrival arrival(const Operation&, uint32_t) const override { return {}; }
  int64_t arrivals() const override { return 0; }
  Status finish(const Sending& sending) override {
    // The copies have read the window.
    const Status status = cuda::synchronize(*gpu_, sending.stream);
    const Status finished = host_->finish(sending);
    return status.ok() ? finished : status;
  }

 private:
  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;
  const ShardChunks chunks_;
  DeviceMemory memory_;
  size_t partial_ = 0, part_ = 0;  // bytes of the own sums and of a part, with their padding
  std::unique_ptr<ReduceTransport> host_;
  void* stream_ = nullptr;
};

// As StagedReduce, of sums in place: rows of the partial that others sum leave through the memory
// of the host, and those that they give arrive there. In memory of the GPU: the partial, then what
// each rank gives.
class StagedPieces final : public ReduceTransport {
 public:
  StagedPieces(const TransportSite& site, const Shards& shards, int64_t rows)
      : group_(site.group), gpu_(site.device.gpu), shards_(shards), rows_(rows) {}
  Status make(const TransportSite& site) {
    partial_ = DeviceMemory::aligned(shards_.bytes());
    part_ = static_cast<size_t>(shards_.outer * rows_ * shards_.inner * size_of(shards_.dtype));
    Status status = memory_.make(
        gpu_, 1, partial_ + static_cast<size_t>(group_.size()) * DeviceMemory::aligned(part_));
    status = group_.exchange(site.operation, status, "", nullptr);
    return status.ok() ? kSockets.make_reduce_in_place(site, shards_, rows_, &host_) : status;
  }

  std::byte* partial() const override { return memory_.data(); }
  uint32_t* signals() const override { return memory_.words(); }
  Status start(const Operation& operation, const Sending& sending) override {
    stream_ = sending.stream;
    given_.clear();
    return host_->start(operation, {sending.epoch, nullptr, nullptr});
  }
  Status give(int32_t rank, const Tensor& piece, size_t at) override {
    Tensor on_host = piece;
    on_host.data = host_->partial() + (piece.as<std::byte>() - partial());
    given_.push_back({rank, on_host, at});
    return copy_rows(*gpu_, piece, on_host.as<std::byte>(), stream_);
  }
  Status send(const Sending& sending) override {
    Status status = cuda::synchronize(*gpu_, stream_);
    for (const Given& given : given_)
      if (status.ok()) status = host_->give(given.rank, given.piece, given.at);
    return status.ok() ? host_->send({sending.epoch, nullptr, nullptr}) : status;
  }
  Status part(const Operation& operation, const Sending& sending, int32_t rank, int32_t piece,
              Tensor* part) override {
    *part = shards_.view(partial(), 0, 0);
    if (rank == group_.rank()) return {};
    Tensor on_host;
    if (Status status = host_->part(operation, sending, rank, piece, &on_host); !status.ok())
      return status;
    part->data =
        memory_.data() + partial_ + static_cast<size_t>(rank) * DeviceMemory::aligned(part_);
    return cuda::copy(*gpu_, part->data, on_host.data, part_, stream_);
  }
  perseid_arrival arrival(const Operation&, uint32_t) const override { return {}; }
  int64_t arrivals() const override { return 0; }
  Status finish(const Sending& sending) override {
    const Status status = cuda::synchronize(*gpu_, sending.stream);
    const Status finished = host_->finish(sending);
    return status.ok() ? finished : status;
  }

 private:
  struct Given {
    int32_t rank;
    Tensor piece;  // in memory of the host
    size_t at;
  };

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const Shards shards_;
  const int64_t rows_;
  DeviceMemory memory_;
  size_t partial_ = 0, part_ = 0;  // bytes of the partial with its padding, and of a part
  std::unique_ptr<ReduceTransport> host_;
  std::vector<Given> given_;
  void* stream_ = nullptr;
};

}  // namespace

const Transport kHostStaging = {.name = "cuda:host_staging",
                                .how = "shards are sent through memory of the hosts",
                                .make_gather = make_transport<StagedGather>,
                                .make_reduce = make_transport<StagedReduce>,
                                .make_reduce_in_place = make_transport<StagedPieces>};

}  // namespace perseid::internal::collective
