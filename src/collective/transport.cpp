// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/transport.hpp"

#include <algorithm>
#include <cstring>

#include "collective/nccl.hpp"

namespace perseid::internal::collective {
namespace {

// A task copies about so much.
constexpr int64_t kTaskBytes = 256 << 10;

template <class Element>
void copy_run(const Tensor& from, const Tensor& to, int64_t i, int64_t j) {
  const Element* source = from.as<const Element>() + i * from.stride[0] + j * from.stride[1];
  Element* target = to.as<Element>() + i * to.stride[0] + j * to.stride[1];
  for (int64_t k = 0; k < from.shape[2]; ++k) target[k * to.stride[2]] = source[k * from.stride[2]];
}

void copy_row(const Tensor& from, const Tensor& to, int64_t i, int64_t j) {
  const int64_t size = size_of(from.dtype);
  if (from.stride[2] == 1 && to.stride[2] == 1) {
    std::memcpy(to.as<std::byte>() + (i * to.stride[0] + j * to.stride[1]) * size,
                from.as<std::byte>() + (i * from.stride[0] + j * from.stride[1]) * size,
                static_cast<size_t>(from.shape[2] * size));
  } else if (size == 8) {
    copy_run<uint64_t>(from, to, i, j);
  } else if (size == 4) {
    copy_run<uint32_t>(from, to, i, j);
  } else if (size == 2) {
    copy_run<uint16_t>(from, to, i, j);
  } else {
    copy_run<uint8_t>(from, to, i, j);
  }
}

}  // namespace

const Transport& transport_of(const dispatch::Device& device, const Group& group) {
  if (device.gpu != nullptr && !group.shares_memory())
    return NcclLinks::carry(group) ? kNccl : kHostStaging;
  if (device.gpu != nullptr) return kCopyEngines;
  if (group.shares_memory()) return kWindows;
  return std::strcmp(group.links(), "mpi") == 0 ? kMpi : kSockets;
}

Status recorded(const Group& group, const Sending& sending, Status status) {
  const bool waited = status.code() == PERSEID_TIMEOUT || status.code() == PERSEID_PEER_LOST;
  if (waited && sending.record != nullptr && sending.record->status == PERSEID_OK)
    *sending.record = {status.code(), group.failed(), sending.operand, -1, sending.epoch, 0};
  return status;
}

Status missing_chunk(const Group& group, const Operation& operation, const Sending& sending,
                     int64_t chunk, uint32_t seen) {
  Status status = group.failure(
      operation, chunk < 0 ? std::string() : concatenate("; chunk ", chunk, " has not arrived"));
  if (sending.record != nullptr)
    *sending.record = {status.code(),   group.failed(),
                       sending.operand, static_cast<int32_t>(chunk),
                       sending.epoch,   seen};
  return status;
}

Status wait_for_chunk(Group& group, const Operation& operation, const Sending& sending,
                      int32_t rank, int64_t chunk, const uint32_t* signal) {
  if (group.wait(operation, rank, signal, sending.epoch).ok()) return {};
  return missing_chunk(group, operation, sending, chunk, cpu::load_acquire(signal));
}

MissingPart find_missing(const ShardChunks& chunks, int32_t own, const uint32_t* signals,
                         uint32_t epoch, uint64_t ranks, std::span<const uint64_t> readers) {
  const ChunkTable<int64_t> table{nullptr, chunks.count(), chunks.pivot(own)};
  for (int64_t visit = 0; visit < chunks.count(); ++visit) {
    const int64_t chunk = table.chunk_of_visit(visit);
    if (!readers.empty() && (readers[static_cast<size_t>(chunk)] >> own & 1) == 0) continue;
    const int32_t owner = chunks.owner(chunk);
    if ((ranks >> owner & 1) == 0 && !epoch_reached(cpu::load_acquire(signals + chunk), epoch))
      return {owner, chunk, signals + chunk};
  }
  return {};
}

void cut_shard(const Shards& shards, const ShardChunks& chunks, int32_t rank, std::byte* gathered,
               const Tensor& shard, std::vector<SentPart>* parts) {
  parts->clear();
  for (int64_t chunk = chunks.first_of(rank); chunk < chunks.first_of(rank + 1); ++chunk) {
    const auto c = static_cast<size_t>(chunk);
    const int64_t from = chunks.begin[c], to = chunks.begin[c + 1];
    Tensor part = shard;
    part.shape[1] = to - from;
    part.data = shard.as<std::byte>() +
                (from - shards.begin_of(rank)) * shard.stride[1] * size_of(shard.dtype);
    parts->push_back({chunk, part, shards.view(gathered, from, to)});
  }
}

ByteRows rows_of(const Tensor& part) {
  int32_t order[] = {0, 1, 2};
  std::sort(order, order + 3,
            [&](int32_t a, int32_t b) { return part.stride[a] < part.stride[b]; });
  const auto element = static_cast<uint64_t>(size_of(part.dtype));
  ByteRows rows{.bytes = element, .count = 1, .stride = 0};
  for (const int32_t dim : order) {
    const auto size = static_cast<uint64_t>(part.shape[dim]);
    const uint64_t stride = static_cast<uint64_t>(part.stride[dim]) * element;
    if (size == 1) continue;
    if (rows.count == 1 && stride == rows.bytes) {
      rows.bytes *= size;
    } else {
      rows.count = size;
      rows.stride = stride;
    }
  }
  return part.elements() == 0 ? ByteRows() : rows;
}

Tensor without_gaps(Tensor rows, std::byte* data) {
  const bool rows_first = rows.stride[0] >= rows.stride[1];
  rows.data = data;
  rows.stride[0] = rows.shape[2] * (rows_first ? rows.shape[1] : 1);
  rows.stride[1] = rows.shape[2] * (rows_first ? 1 : rows.shape[0]);
  return rows;
}

Arrival as_arrival(const perseid_arrival& arrival) {
  return {.signals = arrival.signals,
          .epoch = arrival.epoch,
          .deadline_ns = arrival.deadline_ns,
          .abort = arrival.abort,
          .record = arrival.record};
}

void copy(cpu::Executor& executor, const Tensor& from, const Tensor& to) {
  if (from.elements() == 0) return;
  // A dimension of size 1 inside would make rows of one element.
  Tensor source = from, target = to;
  if (source.shape[2] == 1) {
    for (Tensor* tensor : {&source, &target}) {
      std::swap(tensor->shape[1], tensor->shape[2]);
      std::swap(tensor->stride[1], tensor->stride[2]);
    }
  }
  const int64_t rows = source.shape[0] * source.shape[1];
  const int64_t row_bytes = source.shape[2] * size_of(source.dtype);
  const int64_t each = max(int64_t{1}, kTaskBytes / max(int64_t{1}, row_bytes));
  cpu::for_each_task(executor, (rows + each - 1) / each, [&](int64_t task, int32_t) {
    const int64_t end = min(rows, (task + 1) * each);
    for (int64_t row = task * each; row < end; ++row)
      copy_row(source, target, row / source.shape[1], row % source.shape[1]);
  });
}

}  // namespace perseid::internal::collective
