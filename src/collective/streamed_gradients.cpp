// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/streamed_gradients.hpp"

#include <algorithm>
#include <utility>

#include "base/align.hpp"
#include "cuda/runtime/memory.hpp"

namespace perseid::internal::collective {
namespace {

constexpr size_t kAlignment = 4096;
constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

size_t aligned(size_t bytes) { return align_up(bytes, kAlignment); }

}  // namespace

StreamedGradients::StreamedGradients(const TransportSite& site, const Geometry& geometry)
    : group_(site.group),
      gpu_(site.device.gpu),
      geometry_(geometry),
      epoch_(site.group.first_epoch() - 1) {}

StreamedGradients::~StreamedGradients() {
  if (rank_ != nullptr) rank_->drain();
  cuda::release(*gpu_, local_);
}

Status StreamedGradients::make(const TransportSite& site, const Geometry& geometry,
                               std::initializer_list<bool> accumulates,
                               std::unique_ptr<StreamedGradients>* made) {
  std::unique_ptr<StreamedGradients> gradients(new StreamedGradients(site, geometry));
  Status status = GpuRank::of(site.group, site.operation, site.device.gpu, &gradients->rank_);
  if (status.ok()) status = gradients->allocate(site.operation);
  if (status.ok())
    status = gradients->sums_.make({DType::kF32, geometry.dtype}, accumulates, site.device.gpu);
  status = site.group.exchange(site.operation, status, "", nullptr);
  if (status.ok()) *made = std::move(gradients);
  return status;
}

Status StreamedGradients::allocate(const Operation& operation) {
  const ShardChunks& chunks = *geometry_.chunks;
  std::vector<int64_t> of_rank(static_cast<size_t>(group_.size()));
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk)
    ++of_rank[static_cast<size_t>(chunks.owner(chunk))];
  most_chunks_ = *std::max_element(of_rank.begin(), of_rank.end());
  const int64_t most_rows = *std::max_element(geometry_.of_rank.begin(), geometry_.of_rank.end());
  const int64_t others = group_.size() - 1;
  const auto signals_here = static_cast<size_t>(words());
  data_ = aligned(signals_here * sizeof(uint32_t));
  part_ = aligned(static_cast<size_t>(geometry_.heads * most_rows * row_elements() * kFloat));
  const uint32_t before = epoch_;
  Status status =
      GpuWindows::make(group_, operation, gpu_, data_ + static_cast<size_t>(others) * part_ + 1,
                       signals_here, before, &windows_);
  const auto signals = static_cast<size_t>(chunks.words());
  partial_ = aligned(signals * sizeof(uint32_t));
  void* memory = nullptr;
  if (status.ok())
    status = cuda::allocate(
        *gpu_,
        partial_ + static_cast<size_t>(geometry_.heads * geometry_.rows * row_elements() * kFloat) +
            1,
        &memory);
  local_ = static_cast<std::byte*>(memory);
  const std::vector<uint32_t> initial(signals, before);
  if (status.ok())
    status = cuda::copy(*gpu_, local_, initial.data(), signals * sizeof(uint32_t), nullptr);
  return status;
}

std::byte* StreamedGradients::inbox(int32_t rank, int32_t source, int64_t head, int64_t row) const {
  const int64_t rows = geometry_.of_rank[static_cast<size_t>(rank)];
  return windows_->data(rank) + data_ + static_cast<size_t>(place(rank, source)) * part_ +
         (head * rows + row) * row_elements() * kFloat;
}

Departure StreamedGradients::start() {
  ++epoch_;
  auto* const signals = reinterpret_cast<uint32_t*>(local_);
  const int32_t own = group_.rank();
  rank_->join(signals, geometry_.chunks->words(),
              {.words = windows_->words(own),
               .count = words(),
               .ranks = group_.size() - 1,
               .rank = own + 1},
              epoch_);
  return {.signals = signals, .epoch = epoch_};
}

Status StreamedGradients::push(int32_t rank, int64_t group, std::span<const Run> runs) {
  const cuda::Gpu::Current current(*gpu_);
  cuda::CopyQueue& queue = rank_->sending();
  const int32_t own = group_.rank();
  const ShardChunks& chunks = *geometry_.chunks;
  const int64_t both = row_elements();
  int64_t chunk = 0;  // of the rank
  Status status;
  for (const Run& run : runs) {
    const auto* signal =
        reinterpret_cast<const uint32_t*>(local_) + group * chunks.count() + run.chunk;
    if (status.ok()) status = queue.defer_wait(signal, epoch_);
    const auto view = [&](std::byte* data, int64_t rows) {
      return Tensor{.data = data,
                    .dtype = DType::kF32,
                    .rank = 3,
                    .shape = {each(), run.count, both},
                    .stride = {rows * both, both, 1}};
    };
    const int64_t head = group * each();
    std::byte* const from = partial() + (head * geometry_.rows + run.position) * both * kFloat;
    const bool sees = (run.readers >> own & 1) != 0;
    if (status.ok() && sees)
      status = queue.copy(
          view(from, geometry_.rows),
          view(inbox(rank, own, head, run.row), geometry_.of_rank[static_cast<size_t>(rank)]));
    if (status.ok()) status = queue.defer_write(word(rank, own, group, chunk++), epoch_);
  }
  // Another rank may have more chunks.
  while (status.ok() && chunk < most_chunks_)
    status = queue.defer_write(word(rank, own, group, chunk++), epoch_);
  return status.ok() ? queue.flush() : status;
}

void StreamedGradients::add(const Run& run, const Rows& rows) {
  if (rows.out.elements() == 0) return;
  const int32_t own = group_.rank(), ranks = group_.size();
  const int64_t both = row_elements();
  const int64_t column = rows.of_value ? geometry_.key_dim : 0;
  const auto matrices = [&](std::byte* data, int64_t all_rows) {
    return Tensor{.data = data + column * kFloat,
                  .dtype = DType::kF32,
                  .rank = 3,
                  .shape = {rows.out.shape[1], run.count, rows.out.shape[2]},
                  .stride = {all_rows * both, both, 1}};
  };
  Tensor out = rows.out;
  std::swap(out.shape[0], out.shape[1]);
  std::swap(out.stride[0], out.stride[1]);
  sums_.add(out, rows.accumulates);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (rank == own)
      sums_.add_part(matrices(
          partial() + (rows.head * geometry_.rows + run.position) * both * kFloat, geometry_.rows));
    else if ((run.readers >> rank & 1) != 0)
      sums_.add_part(matrices(inbox(own, rank, rows.head, run.row),
                              geometry_.of_rank[static_cast<size_t>(own)]));
  }
}

Status StreamedGradients::sum(const Operation& operation, int64_t groups, void* stream) {
  return sums_.run(
      {.operation = operation.name,
       .parts = {},
       .out = {},
       .arrival = as_arrival(rank_->arrival(operation, windows_->words(group_.rank()), epoch_)),
       .signals = static_cast<int32_t>(words(groups))},
      stream);
}

}  // namespace perseid::internal::collective
