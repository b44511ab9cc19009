// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/partial_gradients.hpp"

#include <algorithm>
#include <utility>

#include "collective/nccl.hpp"
#include "collective/reduce.hpp"
#include "cuda/runtime/signals.hpp"
#include "dispatch/memory.hpp"

namespace perseid::internal::collective {
namespace {

// A task reduces about so many elements.
constexpr int64_t kTaskElements = 64 << 10;

}  // namespace

Status PartialGradients::make(const TransportSite& site, const Shards& shards, int64_t rows,
                              DType dtype, std::initializer_list<bool> accumulates, bool in_pairs,
                              std::unique_ptr<PartialGradients>* made) {
  std::unique_ptr<PartialGradients> gradients(new PartialGradients(site));
  Status status = transport_of(site.device, site.group)
                      .make_reduce_in_place(site, shards, rows, &gradients->transport_);
  gradients->in_pairs_ = in_pairs;
  const auto ranks = static_cast<size_t>(site.group.size());
  gradients->parts_.resize(ranks);
  gradients->summed_.reserve(ranks);
  if (status.ok() && site.device.gpu != nullptr)
    status = gradients->sums_.make({shards.dtype, dtype, in_pairs}, accumulates, site.device.gpu);
  if (status.ok()) *made = std::move(gradients);
  return status;
}

Status PartialGradients::start(const Operation& operation, const Sending& execution) {
  sending_ = {epoch_ + 1, execution.stream, execution.record, execution.report, 1};
  return recorded(group_, sending_, transport_->start(operation, sending_));
}

Status PartialGradients::share(const Operation& operation) {
  epoch_ = sending_.epoch;
  Status status =
      dispatch::set_signal(device_, transport_->signals(), sending_.epoch, sending_.stream);
  if (status.ok()) status = transport_->send(sending_);
  // On a GPU the sums wait.
  OverlapReport* const report = device_.gpu == nullptr ? sending_.report : nullptr;
  for (int32_t rank = 0; status.ok() && rank < group_.size(); ++rank) {
    const Reported wait(report, OverlapReport::Kind::kWait, OverlapReport::kNoChunk, rank);
    status = transport_->part(operation, sending_, rank, 0, &parts_[static_cast<size_t>(rank)]);
    if (status.ok() && report != nullptr) report->arrived(OverlapReport::kNoChunk, rank);
  }
  // One block waits: what brings the parts needs multiprocessors, and sums would hold them all.
  if (status.ok() && device_.gpu != nullptr && NcclLinks::carry(group_))
    status = cuda::wait_for_signal(*device_.gpu,
                                   as_arrival(transport_->arrival(operation, sending_.epoch)),
                                   sending_.stream, static_cast<int32_t>(transport_->arrivals()));
  return status;
}

MissingPart PartialGradients::missing(uint64_t ranks) const {
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank() || (ranks >> rank & 1) != 0) continue;
    if (const MissingPart part = transport_->missing(rank, 0, sending_.epoch); part.rank >= 0)
      return part;
  }
  return {};
}

void PartialGradients::sum(const Rows& rows) {
  if (rows.out.elements() == 0) return;
  const std::ptrdiff_t offset = rows.partial.as<std::byte>() - transport_->partial();
  summed_.clear();
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const bool own = static_cast<int32_t>(rank) == group_.rank();
    // Pairs are those of all ranks.
    if ((rows.readers >> rank & 1) == 0 && !own && !in_pairs_) continue;
    auto* const part = parts_[rank].as<std::byte>();
    if (own || group_.shares_memory()) {
      summed_.push_back(rows.partial);
      summed_.back().data = part + offset;
    } else {
      summed_.push_back(without_gaps(rows.partial, part + rows.at));
    }
  }
  if (device_.gpu != nullptr)
    sum_on_gpu(rows.out, rows.accumulates);
  else
    sum_on_cpu(rows.out, rows.accumulates);
}

void PartialGradients::sum_on_cpu(const Tensor& out, bool accumulates) const {
  const DType dtype = summed_.front().dtype;
  const int64_t rows = out.shape[0], heads = out.shape[1], dim = out.shape[2];
  const int64_t each = max(int64_t{1}, kTaskElements / (heads * dim));
  cpu::for_each_task(*device_.executor, (rows + each - 1) / each, [&](int64_t task, int32_t) {
    const void* parts[kMostRanks];
    for (int64_t i = task * each; i < min(rows, (task + 1) * each); ++i)
      for (int64_t head = 0; head < heads; ++head) {
        for (size_t part = 0; part < summed_.size(); ++part) {
          const Tensor& rows_of_part = summed_[part];
          parts[part] =
              rows_of_part.as<const std::byte>() +
              (i * rows_of_part.stride[0] + head * rows_of_part.stride[1]) * size_of(dtype);
        }
        std::byte* to =
            out.as<std::byte>() + (i * out.stride[0] + head * out.stride[1]) * size_of(out.dtype);
        reduce({.parts = parts,
                .ranks = static_cast<int32_t>(summed_.size()),
                .dtype = dtype,
                .reduction = Reduction::kSum,
                .in_pairs = in_pairs_,
                .bias = accumulates ? to : nullptr,
                .bias_dtype = accumulates ? out.dtype : DType::kNone,
                .bias_stride = out.stride[2],
                .out = to,
                .out_dtype = out.dtype,
                .out_stride = out.stride[2],
                .count = dim});
      }
  });
}

void PartialGradients::sum_on_gpu(const Tensor& out, bool accumulates) {
  // A matrix for each head; where the heads of a row lie side by side, one of longer rows.
  const auto are_adjacent = [](const Tensor& rows) { return rows.stride[1] == rows.shape[2]; };
  const bool merges =
      are_adjacent(out) && std::all_of(summed_.begin(), summed_.end(), are_adjacent);
  const auto matrices_of = [&](Tensor rows) {
    if (merges) rows.shape[2] *= std::exchange(rows.shape[1], 1);
    std::swap(rows.shape[0], rows.shape[1]);
    std::swap(rows.stride[0], rows.stride[1]);
    return rows;
  };
  sums_.add(matrices_of(out), accumulates);
  for (const Tensor& part : summed_) sums_.add_part(matrices_of(part));
}

Status PartialGradients::sum_all(const Operation& operation) {
  if (device_.gpu == nullptr) return {};
  return sums_.run({.operation = operation.name,
                    .parts = {},
                    .out = {},
                    .arrival = as_arrival(transport_->arrival(operation, sending_.epoch)),
                    .signals = static_cast<int32_t>(transport_->arrivals())},
                   sending_.stream);
}

}  // namespace perseid::internal::collective
