// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/gpu_exchange.hpp"

#include <array>

#include "collective/transport.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {
namespace {

// The bytes of a place. A group of P ranks has P of them on each GPU.
constexpr size_t kPiece = 32 << 20;
// Where words for signals end and places begin.
constexpr size_t kPlaces = 4096;

// The part of a run of `all` elements that begins at `from`.
size_t part_of(size_t all, size_t from, size_t most) {
  return all > from ? std::min(all - from, most) : 0;
}

}  // namespace

Status GpuExchange::check(Group& group, const Operation& operation, int32_t gpu) {
  if (group.gpu_rank() == nullptr) return {};
  const int32_t used = group.gpu_rank()->gpu()->facts().index;
  if (used == gpu) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, operation.name, ": the tensors are on GPU ", gpu,
                       ", but this rank has used GPU ", used, "; use one GPU for each rank");
}

Status GpuExchange::of(Group& group, const Operation& operation, int32_t gpu,
                       GpuExchange** exchange) {
  std::shared_ptr<GpuExchange>& own = group.gpu_exchange();
  if (own == nullptr) {
    auto made = std::make_shared<GpuExchange>(group);
    if (Status status = made->make(operation, gpu); !status.ok()) return status;
    own = std::move(made);
  }
  *exchange = own.get();
  return {};
}

Status GpuExchange::make(const Operation& operation, int32_t gpu) {
  std::shared_ptr<cuda::Gpu> opened;
  const Status status = cuda::Gpu::open(gpu, &opened);
  if (Status all = group_.exchange(operation, status, "", nullptr); !all.ok()) return all;
  if (Status made = GpuRank::of(group_, operation, opened, &rank_); !made.ok()) return made;
  epoch_ = group_.first_epoch() - 1;
  const auto ranks = static_cast<size_t>(group_.size());
  return GpuWindows::make(group_, operation, rank_->gpu(), kPlaces + ranks * kPiece, kMostRanks,
                          epoch_, &windows_);
}

GpuExchange::~GpuExchange() {
  if (rank_ != nullptr) rank_->drain();
}

GpuExchange::Run GpuExchange::run_of(const Tensor& tensor, size_t from, size_t count) {
  const auto element = static_cast<size_t>(size_of(tensor.dtype));
  return {tensor.dtype, tensor.as<std::byte>() + from * element, count};
}

// At `rank`: what `source` sends to it.
GpuExchange::Run GpuExchange::place(int32_t rank, int32_t source, DType dtype, size_t count) const {
  return {dtype, windows_->data(rank) + kPlaces + static_cast<size_t>(source) * kPiece, count};
}

Status GpuExchange::copy(const Run& from, const Run& to) const {
  const auto view = [](const Run& run) {
    return Tensor{.data = run.data,
                  .dtype = run.dtype,
                  .rank = 1,
                  .shape = {static_cast<int64_t>(run.count)},
                  .stride = {1}};
  };
  return cuda::copy_tensor(*rank_->gpu(), view(from), view(to), nullptr);
}

Status GpuExchange::push(const Operation& operation, std::span<const Run> runs) {
  const cuda::Gpu::Current current(*rank_->gpu());
  const int32_t own = group_.rank(), size = group_.size();
  ++epoch_;
  Status status = rank_->begin(operation, {.epoch = epoch_});
  if (status.ok()) status = rank_->announce();
  uint32_t* mine = windows_->words(own) + own;
  if (status.ok()) status = rank_->sending().write_word(mine, epoch_);
  for (int32_t step = 1; status.ok() && step < size; ++step) {
    const int32_t rank = (own + size - step) % size;
    const Run& run = runs[static_cast<size_t>(rank)];
    const auto view = [&](std::byte* data) {
      return Tensor{.data = data,
                    .dtype = run.dtype,
                    .rank = 1,
                    .shape = {static_cast<int64_t>(run.count)},
                    .stride = {1}};
    };
    status = rank_->await(rank);
    if (status.ok())
      status =
          rank_->sending().copy(view(run.data), view(place(rank, own, run.dtype, run.count).data));
    if (status.ok()) status = rank_->sending().write_word(windows_->words(rank) + own, epoch_);
  }
  return status;
}

Status GpuExchange::await(const Operation& operation) {
  const perseid_arrival arrival = rank_->arrival(operation, windows_->words(group_.rank()), epoch_);
  return cuda::wait_for_signal(*rank_->gpu(), as_arrival(arrival), nullptr, group_.size());
}

Status GpuExchange::load_sum(DType dtype) {
  std::unique_ptr<cuda::RankSum>& sum = sums_[dtype];
  return sum == nullptr ? cuda::RankSum::make({.in = dtype, .out = dtype}, rank_->gpu(), &sum)
                        : Status();
}

Status GpuExchange::sum(const Operation& operation, Reduction reduction, const Run& own,
                        const Run& out) {
  const cuda::RankSum& sum = *sums_.at(own.dtype);
  const perseid_arrival arrival = rank_->arrival(operation, windows_->words(group_.rank()), epoch_);
  // Rows of whole vectors, then the rest as one row.
  constexpr int64_t kRow = 2048;
  const auto count = static_cast<int64_t>(out.count);
  const int64_t rows = count / kRow;
  struct Block {
    int64_t from, rows, columns;
  };
  Status status;
  for (const Block& block : {Block{0, rows, kRow}, Block{rows * kRow, 1, count - rows * kRow}}) {
    if (!status.ok() || block.rows * block.columns == 0) continue;
    const auto view = [&](const Run& run) {
      return Tensor{.data = run.data + block.from * size_of(run.dtype),
                    .dtype = run.dtype,
                    .rank = 3,
                    .shape = {1, block.rows, block.columns},
                    .stride = {0, block.columns, 1}};
    };
    std::array<Tensor, kMostRanks> parts;
    for (int32_t rank = 0; rank < group_.size(); ++rank)
      parts[static_cast<size_t>(rank)] =
          view(rank == group_.rank() ? own : place(group_.rank(), rank, own.dtype, out.count));
    status = sum.run({.operation = operation.name,
                      .parts = std::span(parts).first(static_cast<size_t>(group_.size())),
                      .bias = {},
                      .out = view(out),
                      .average = reduction == Reduction::kAverage,
                      .arrival = as_arrival(arrival),
                      .signals = group_.size()},
                     nullptr);
  }
  return status;
}

Status GpuExchange::synchronize(Status enqueued) const {
  const Status done = cuda::synchronize(*rank_->gpu(), nullptr);
  return enqueued.ok() ? done : enqueued;
}

Status GpuExchange::all_gather(const Operation& operation, std::span<const size_t> begin,
                               const Tensor& input, const Tensor& output) {
  const int32_t own = group_.rank(), size = group_.size();
  const size_t most = kPiece / static_cast<size_t>(size_of(input.dtype));
  const auto count = [&](int32_t rank, size_t from) {
    const auto r = static_cast<size_t>(rank);
    return part_of(begin[r + 1] - begin[r], from, most);
  };
  size_t longest = 0;
  for (int32_t rank = 0; rank < size; ++rank)
    longest =
        std::max(longest, begin[static_cast<size_t>(rank) + 1] - begin[static_cast<size_t>(rank)]);
  Status status;
  for (size_t from = 0; status.ok() && from < longest; from += most) {
    const std::array<Run, kMostRanks> runs = [&] {
      std::array<Run, kMostRanks> same;
      same.fill(run_of(input, from, count(own, from)));
      return same;
    }();
    status = push(operation, runs);
    if (status.ok()) status = await(operation);
    for (int32_t rank = 0; status.ok() && rank < size; ++rank) {
      const size_t elements = count(rank, from);
      const Run source =
          rank == own ? run_of(input, from, elements) : place(own, rank, input.dtype, elements);
      const Run target = run_of(output, begin[static_cast<size_t>(rank)] + from, elements);
      if (elements > 0 && source.data != target.data) status = copy(source, target);
    }
    const Status ended = rank_->end(nullptr);
    if (status.ok()) status = ended;
  }
  return synchronize(std::move(status));
}

Status GpuExchange::reduce_scatter(const Operation& operation, std::span<const size_t> begin,
                                   Reduction reduction, const Tensor& input, const Tensor& output) {
  const auto own = static_cast<size_t>(group_.rank()), size = static_cast<size_t>(group_.size());
  const size_t most = kPiece / static_cast<size_t>(size_of(input.dtype));
  size_t longest = 0;
  for (size_t rank = 0; rank < size; ++rank)
    longest = std::max(longest, begin[rank + 1] - begin[rank]);
  Status status = load_sum(input.dtype);
  for (size_t from = 0; status.ok() && from < longest; from += most) {
    std::array<Run, kMostRanks> runs;
    for (size_t rank = 0; rank < size; ++rank)
      runs[rank] =
          run_of(input, begin[rank] + from, part_of(begin[rank + 1] - begin[rank], from, most));
    status = push(operation, runs);
    if (status.ok())
      status = sum(operation, reduction, runs[own], run_of(output, from, runs[own].count));
    const Status ended = rank_->end(nullptr);
    if (status.ok()) status = ended;
  }
  return synchronize(std::move(status));
}

// Every rank sums its part of each piece into the output, then gets the others' parts.
Status GpuExchange::all_reduce(const Operation& operation, Reduction reduction, const Tensor& input,
                               const Tensor& output) {
  const auto own = static_cast<size_t>(group_.rank()), size = static_cast<size_t>(group_.size());
  const auto all = static_cast<size_t>(input.elements());
  const size_t most = kPiece / static_cast<size_t>(size_of(input.dtype));
  Status status = load_sum(input.dtype);
  for (size_t from = 0; status.ok() && from < all; from += most) {
    const size_t piece = std::min(most, all - from);
    // Parts begin at whole vectors.
    const auto first = [&](size_t rank) {
      return rank == size ? piece : rank * piece / size / 16 * 16;
    };
    const auto count = [&](size_t rank) { return first(rank + 1) - first(rank); };
    std::array<Run, kMostRanks> runs;
    for (size_t rank = 0; rank < size; ++rank)
      runs[rank] = run_of(input, from + first(rank), count(rank));
    status = push(operation, runs);
    const Run result = run_of(output, from + first(own), count(own));
    if (status.ok()) status = sum(operation, reduction, runs[own], result);
    const Status summed = rank_->end(nullptr);
    if (status.ok()) status = summed;
    if (!status.ok()) break;
    runs.fill(result);
    status = push(operation, runs);
    if (status.ok()) status = await(operation);
    for (size_t rank = 0; status.ok() && rank < size; ++rank)
      if (rank != own && count(rank) > 0)
        status = copy(place(group_.rank(), static_cast<int32_t>(rank), input.dtype, count(rank)),
                      run_of(output, from + first(rank), count(rank)));
    const Status gathered = rank_->end(nullptr);
    if (status.ok()) status = gathered;
  }
  return synchronize(std::move(status));
}

}  // namespace perseid::internal::collective
