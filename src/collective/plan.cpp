// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/plan.hpp"

#include <cstring>

#include "cuda/runtime/copy_queue.hpp"

namespace perseid::internal::collective {
namespace {

uint8_t code_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return kDLBfloat;
    case DType::kF8E4M3:
      return kDLFloat8_e4m3fn;
    case DType::kF8E5M2:
      return kDLFloat8_e5m2;
    default:
      return kDLFloat;
  }
}

}  // namespace

Status make_matmul(op::DevicePointer device, const perseid_matmul_desc& desc, InnerPlan* plan,
                   int64_t leaves, int32_t spared) {
  return op::MatmulPlan::make(std::move(device), desc, plan, leaves, spared);
}

const op::MatmulPlan& matmul_of(const InnerPlan& plan) {
  return static_cast<const op::MatmulPlan&>(*plan);
}

DLTensor as_dl(Tensor* view, DLDevice device) {
  return {.data = view->data,
          .device = device,
          .ndim = view->rank,
          .dtype = {code_of(view->dtype), static_cast<uint8_t>(8 * size_of(view->dtype)), 1},
          .shape = view->shape,
          .strides = view->stride,
          .byte_offset = 0};
}

Status Terms::agree(Group& group, const Operation& operation, const Status& mine) {
  Writer writer;
  writer.text(operation.name);
  for (const Term& term : terms_) writer.text(term.name).number(static_cast<uint64_t>(term.value));
  std::vector<std::string> all;
  if (Status status = group.exchange(operation, mine, writer.take(), &all); !status.ok())
    return status;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Reader reader(all[rank]);
    const std::string name(reader.text(64));
    bool same = name == operation.name;
    std::vector<int64_t> values;
    for (const Term& term : terms_) {
      same = same && reader.text(64) == term.name;
      values.push_back(static_cast<int64_t>(reader.number()));
    }
    if (!same || !reader.complete())
      return Status::error(PERSEID_INVALID_ARGUMENT, "rank ", rank, " makes another plan (", name,
                           ") than rank 0; make the same plans in the same order on all ranks");
    said_.push_back(std::move(values));
  }
  for (size_t rank = 1; rank < said_.size(); ++rank)
    for (size_t t = 0; t < terms_.size(); ++t)
      if (terms_[t].equal && said_[rank][t] != said_[0][t])
        return Status::error(PERSEID_INVALID_ARGUMENT, operation.name, ": ", terms_[t].name, " is ",
                             said_[rank][t], " on rank ", rank, " and ", said_[0][t],
                             " on rank 0; pass the same on all ranks");
  return {};
}

int64_t Terms::of(int32_t rank, const char* name) const {
  for (size_t t = 0; t < terms_.size(); ++t)
    if (std::strcmp(terms_[t].name, name) == 0) return said_[static_cast<size_t>(rank)][t];
  return 0;
}

Status await_chunks(Group& group, const Operation& operation, const ShardChunks& chunks,
                    const uint32_t* signals, const Sending& sending) {
  const ChunkTable<int64_t> table{nullptr, chunks.count(), chunks.pivot(group.rank())};
  for (int64_t visit = 0; visit < chunks.count(); ++visit) {
    const int64_t chunk = table.chunk_of_visit(visit);
    const int32_t owner = chunks.owner(chunk);
    const Reported wait(sending.report, OverlapReport::Kind::kWait, chunk, owner);
    if (Status status = wait_for_chunk(group, operation, sending, owner, chunk, signals + chunk);
        !status.ok())
      return status;
    if (sending.report != nullptr) sending.report->arrived(chunk, owner);
  }
  return {};
}

Status end_of_waits(Group& group, const Operation& operation, const ShardChunks& chunks,
                    const Sending& sending, const perseid_wait_record& missing, Status status) {
  const bool known = missing.status != PERSEID_OK;
  if (status.code() == PERSEID_TIMEOUT && known) {
    (void)group.give_up(operation, chunks.owner(missing.chunk));
  } else if (status.code() != PERSEID_PEER_LOST) {
    return status;
  }
  return missing_chunk(group, operation, sending, known ? missing.chunk : -1, missing.seen);
}

Status refuse_capture(const dispatch::Device& device, const Operation& operation, void* stream) {
  return device.gpu == nullptr ? Status()
                               : cuda::refuse_capture(*device.gpu, operation.name, stream);
}

}  // namespace perseid::internal::collective
