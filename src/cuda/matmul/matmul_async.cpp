// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/matmul_async.hpp"

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/launch_number.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {
namespace {

// Rows of a, or columns of b, that are computed together at least: each such segment reads all of
// the other operand. Smaller ones took up to 1.2 times as long.
constexpr int64_t kSegmentLines = 512;

}  // namespace

Status MatmulAsync::prepare(const MatmulProblem& problem) {
  Status status;
  takes_tiles_ = matmul_tiles(problem, 64, 64) < kMostParts / 2;
  if (problem.depth() > 0) {
    status = operands_[0].upload(problem.chunks_a);
    if (status.ok()) status = operands_[1].upload(problem.chunks_b);
  }
  if (status.ok()) status = output_.upload(problem.chunks_c);
  return status;
}

size_t MatmulAsync::workspace() const {
  return sizeof(uint64_t) * (2 + static_cast<size_t>(output_.count()));
}

Status MatmulAsync::fill(const MatmulArguments& arguments, bool transposed, void* workspace,
                         void* stream, AsyncArguments* async) const {
  const Arrival* arrivals[] = {&arguments.arrival_a, &arguments.arrival_b};
  WaitingExecution execution{.operation = "matmul"};
  for (int operand = 0; operand < 2; ++operand) {
    const Arrival& arrival = *arrivals[operand];
    const DeviceChunkTable& table = operands_[operand];
    if (!table.present()) continue;
    DeviceArrival& filled = async->arrivals[transposed ? 1 - operand : operand];
    if (Status status = find_arrival(gpu_, arrival, &filled, &async->reports[operand]);
        !status.ok())
      return status;
    filled.chunks = table.from(arrival.first);
    filled.operand = operand;
    filled.along_k = table.dim() == ChunkDim::kK;
    execution.deadline_ns[operand] = arrival.deadline_ns;
  }
  const Departure& departure = arguments.departure_c;
  if (output_.present())
    async->departure = {.signals = departure.signals,
                        .epoch_ptr = departure.epoch_ptr,
                        .chunks = output_.from(departure.first),
                        .epoch = departure.epoch,
                        .of_columns = (output_.dim() == ChunkDim::kN) != transposed};
  async->failed = static_cast<uint64_t*>(workspace);
  async->launch = launch_number();
  if (!operands_[0].present() && !operands_[1].present()) return {};
  if (takes_tiles_) async->taken = async->failed + 1 + output_.count();
  return gpu_.wait_reports().draw(execution, stream, &async->reports[2]);
}

// That of the chunks that arrive, else of those that depart.
void MatmulAsync::order_tiles(const AsyncArguments& async, TileGrid<int32_t>* grid) {
  const DeviceDeparture& departure = async.departure;
  const bool departs = departure.signals != nullptr;
  const auto order_by = [&](const DeviceArrival& arrival, bool otherwise) {
    if (arrival.signals != nullptr && !arrival.along_k) return arrival.chunks;
    return otherwise ? departure.chunks : ChunkTable<int32_t>{};
  };
  grid->rows = order_by(async.arrivals[0], departs && !departure.of_columns);
  grid->columns = order_by(async.arrivals[1], departs && departure.of_columns);

  // Results that leave may be what the next chunk depends on: it is not waited for.
  const bool by_rows = grid->rows.present();
  const ChunkTable<int32_t>& order = by_rows ? grid->rows : grid->columns;
  const int32_t lines = by_rows ? grid->m : grid->n;
  if (order.present() && !departs)
    grid->merge = static_cast<int32_t>(max<int64_t>(1, kSegmentLines * order.count / lines));
}

}  // namespace perseid::internal::cuda
