// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/scale_gather.hpp"

#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {

Status ScaleGather::make(const TransportSite& site, int64_t batch,
                         const std::vector<int64_t>& begin, const ShardChunks& chunks,
                         std::unique_ptr<ScaleGather>* gather) {
  std::unique_ptr<ScaleGather> made(new ScaleGather(
      site, {.dtype = DType::kF32, .outer = batch, .inner = 1, .begin = begin}, chunks));
  const Transport& transport = transport_of(site.device, site.group);
  Status status = transport.make_gather(site, made->shards_, made->chunks_, &made->transport_);
  if (!status.ok()) return status;
  // Operations of copy engines and of NCCL end in the order in which they began, before the next
  // one begins. A rank writes into another's memory when that has ended the operation before the
  // next gather, that of this one's product.
  made->ends_early_ = &transport == &kCopyEngines || &transport == &kNccl;
  const int64_t rows = begin.back();
  made->scales_ = {.data = made->transport_->gathered(),
                   .dtype = DType::kF32,
                   .rank = 2,
                   .shape = {batch, rows},
                   .stride = {rows, 1}};
  made->scales_dl_ = as_dl(&made->scales_, site.device.dl_device());
  const int32_t own = site.group.rank();
  made->parts_.reserve(static_cast<size_t>(chunks.first_of(own + 1) - chunks.first_of(own)));
  *gather = std::move(made);
  return {};
}

Status ScaleGather::send(const Operation& operation, const Sending& sending, const Tensor& own) {
  Status status = recorded(group_, sending, transport_->start(operation, sending.epoch));
  if (!status.ok()) return status;
  const Tensor shard{.data = own.data,
                     .dtype = own.dtype,
                     .rank = 3,
                     .shape = {shards_.outer, own.shape[own.rank - 1], 1},
                     .stride = {own.rank == 2 ? own.stride[0] : 0, own.stride[own.rank - 1], 1}};
  cut_shard(shards_, chunks_, group_.rank(), transport_->gathered(), shard, &parts_);
  // The report is one of the shards' chunks.
  const Sending unreported{sending.epoch, sending.stream, sending.record};
  status = transport_->send(operation, unreported, parts_);
  // The product waits for them in any case.
  if (status.ok()) status = transport_->launched(unreported);
  if (!ends_early_) return status;
  const Status ended = transport_->finish(unreported);
  return status.ok() ? ended : status;
}

Status ScaleGather::await(const Operation& operation, const Sending& sending) {
  const Reported wait(sending.report, OverlapReport::Kind::kWait, OverlapReport::kNoChunk,
                      group_.rank(), sending.stream);
  if (gpu_ == nullptr)
    return await_chunks(group_, operation, chunks_, transport_->signals(),
                        {sending.epoch, sending.stream, sending.record});
  if (chunks_.count() == 0) return {};
  return cuda::wait_for_signal(*gpu_, as_arrival(transport_->arrival(operation, sending.epoch)),
                               sending.stream, static_cast<int32_t>(chunks_.count()));
}

Status ScaleGather::finish(const Sending& sending) {
  return ends_early_ ? Status() : transport_->finish({sending.epoch, sending.stream, nullptr});
}

}  // namespace perseid::internal::collective
