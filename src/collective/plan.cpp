// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/plan.hpp"

#include <algorithm>

#include "cuda/runtime/copy_queue.hpp"

namespace perseid::internal::collective {
namespace {

// Names of operations, of terms and of their values.
constexpr size_t kLongestWord = 64;

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
                   const op::MatmulOfRanks& of_ranks) {
  return op::MatmulPlan::make(std::move(device), desc, plan, of_ranks);
}

const op::MatmulPlan& matmul_of(const InnerPlan& plan) {
  return static_cast<const op::MatmulPlan&>(*plan);
}

std::string implementation_of(const InnerPlan& plan) {
  if (plan == nullptr) return "";
  auto info = sized<perseid_plan_info>();
  plan->query(&info);
  return info.implementation;
}

Status agree_on_kernels(Group& group, const Operation& operation, const Status& mine,
                        const std::string& kernels) {
  std::vector<std::string> all;
  if (Status status = group.exchange(operation, mine, kernels, &all); !status.ok()) return status;
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      return Status::error(PERSEID_INVALID_ARGUMENT, operation.name, ": canonical is 1, but rank ",
                           rank, " computes by ", all[rank], " and rank 0 by ", all[0],
                           "; ask for the same implementation on all ranks");
  return {};
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

std::string Terms::encode(const Plan& plan) {
  Writer writer;
  writer.text(plan.operation).number(plan.terms.size());
  for (const Term& term : plan.terms)
    writer.text(term.name)
        .number(static_cast<uint64_t>(term.value))
        .number(term.equal ? 1 : 0, 1)
        .text(term.said);
  return writer.take();
}

// What is no plan, but the message of another call, has no terms.
Terms::Plan Terms::decode(const std::string& message) {
  Reader reader(message);
  Plan plan;
  plan.operation = reader.text(kLongestWord);
  const uint64_t count = reader.number();
  while (reader.ok() && plan.terms.size() < count) {
    Term term;
    term.name = reader.text(kLongestWord);
    term.value = static_cast<int64_t>(reader.number());
    term.equal = reader.number(1) == 1;
    term.said = reader.text(kLongestWord);
    plan.terms.push_back(std::move(term));
  }
  return reader.complete() ? plan : Plan{"something else", {}};
}

Status Terms::compare(size_t rank, const Plan& its, const Plan& first) {
  constexpr const char* kAdvice = "; make the same plans in the same order on all ranks";
  if (its.operation != first.operation)
    return Status::error(PERSEID_INVALID_ARGUMENT, "rank ", rank, " makes a plan of ",
                         its.operation, ", rank 0 of ", first.operation, kAdvice);
  for (size_t t = 0; t < min(its.terms.size(), first.terms.size()); ++t) {
    const Term &term = its.terms[t], &wanted = first.terms[t];
    if (term.name != wanted.name) break;
    if ((term.equal || wanted.equal) && term.value != wanted.value)
      return Status::error(PERSEID_INVALID_ARGUMENT, its.operation, ": ", term.name, " is ",
                           term.said, " on rank ", rank, " and ", wanted.said,
                           " on rank 0; pass the same on all ranks");
  }
  const auto same_name = [](const Term& a, const Term& b) { return a.name == b.name; };
  if (std::equal(its.terms.begin(), its.terms.end(), first.terms.begin(), first.terms.end(),
                 same_name))
    return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "rank ", rank, " makes another plan of ",
                       its.operation, " than rank 0", kAdvice);
}

// Every rank compares all with rank 0, so that all return the same.
Status Terms::agree(Group& group, const Operation& operation, const Status& mine) {
  std::vector<std::string> all;
  if (Status status = group.exchange(operation, mine, encode({operation.name, terms_}), &all);
      !status.ok())
    return status;
  for (const std::string& message : all) plans_.push_back(decode(message));
  for (size_t rank = 1; rank < plans_.size(); ++rank)
    if (Status status = compare(rank, plans_[rank], plans_[0]); !status.ok()) return status;
  return {};
}

int64_t Terms::of(int32_t rank, const char* name) const {
  for (const Term& term : plans_[static_cast<size_t>(rank)].terms)
    if (term.name == name) return term.value;
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
