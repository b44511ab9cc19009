// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/shard_products.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "collective/fusion.hpp"

namespace perseid::internal::collective {
namespace {

constexpr const char* kImplementation = "cuda:sm90";

bool is_power_of_2(int32_t value) { return (value & (value - 1)) == 0; }

// Rows (dim 1) or columns (2) [from, to) of [batch, rows, columns].
Tensor slice_of(Tensor tensor, int dim, int64_t from, int64_t to) {
  tensor.data = tensor.as<std::byte>() + from * tensor.stride[dim] * size_of(tensor.dtype);
  tensor.shape[dim] = to - from;
  return tensor;
}

// The chunks [first, last), from 0.
std::vector<int64_t> cut(const ShardChunks& chunks, int64_t first, int64_t last) {
  std::vector<int64_t> begin;
  for (int64_t c = first; c <= last; ++c)
    begin.push_back(chunks.begin[static_cast<size_t>(c)] -
                    chunks.begin[static_cast<size_t>(first)]);
  return begin;
}

// ---- Whether two steps are faster than one ----

// Measured on Hopper: bytes of memory per second, seconds of a launch.
constexpr double kMemoryRate = 2.5e12, kLaunch = 4e-6;

// The product's time with this many rows, or columns.
double seconds_of(MatmulProblem problem, bool along_n, int64_t size, int32_t multiprocessors) {
  (along_n ? problem.n : problem.m) = size;
  return sm90_product_seconds(problem, multiprocessors);
}

int64_t microseconds(double seconds) { return std::llround(1e6 * seconds); }

}  // namespace

ShardForecast forecast(const MatmulProblem& problem, const Shards& shards, int32_t rank,
                       bool along_n, int32_t multiprocessors) {
  const auto product = [&](int64_t size) {
    return seconds_of(problem, along_n, size, multiprocessors);
  };
  const int64_t from = shards.begin_of(rank), to = shards.begin_of(rank + 1);
  const auto ranks = static_cast<int64_t>(shards.begin.size()) - 1;
  // A part of each rank is read, the result is written.
  const auto summed =
      static_cast<double>(shards.outer * (to - from) * shards.inner *
                          (ranks * size_of(shards.dtype) + size_of(problem.out_dtype)));
  return {.in_two_steps = product(shards.extent() - to) + product(from) + product(to - from),
          .in_one = product(shards.extent()) + kLaunch + summed / kMemoryRate};
}

ShardProducts::ShardProducts(const op::DevicePointer& device, const Problem& problem)
    : device_(device),
      along_n_(problem.along_n),
      from_(problem.shards.begin_of(problem.rank)),
      to_(problem.shards.begin_of(problem.rank + 1)),
      begin_(cut(problem.chunks, problem.chunks.first_of(problem.rank),
                 problem.chunks.first_of(problem.rank + 1))) {}

Status ShardProducts::make(const op::DevicePointer& device, const Problem& problem,
                           std::unique_ptr<const ShardProducts>* products, std::string* why) {
  const perseid_matmul_desc& desc = problem.product;
  const auto ranks = static_cast<int32_t>(problem.shards.begin.size()) - 1;
  const bool small = desc.dtype == PERSEID_F16 || desc.dtype == PERSEID_BF16;
  const bool named = desc.implementation == nullptr || *desc.implementation == 0 ||
                     std::strcmp(desc.implementation, kImplementation) == 0;
  // An average over another number of ranks is a quotient, not a product.
  const bool averages = !problem.average || is_power_of_2(ranks);
  if (device->gpu == nullptr || device->gpu->facts().architecture != "sm_90a" || !small || !named ||
      !device->forced_implementation.empty() || !averages || ranks < 2 || desc.k % 8 != 0 ||
      desc.n % 8 != 0 || problem.shards.size(problem.rank) == 0)
    return {};
  std::unique_ptr<ShardProducts> made(new ShardProducts(device, problem));
  const MatmulProblem own = made->own_problem(problem);
  if (!cuda::refuse_sm90_matmul(own).empty()) return {};

  const int32_t multiprocessors = device->gpu->facts().multiprocessors;
  MatmulProblem whole = own;
  whole.m = desc.m;
  whole.n = desc.n;
  const ShardForecast times =
      forecast(whole, problem.shards, problem.rank, problem.along_n, multiprocessors);
  *why = times.two_steps()
             ? concatenate("in the epilogue of the own shard's product: ",
                           microseconds(times.in_two_steps), " us predicted, ",
                           microseconds(times.in_one), " us with a sum after one product")
             : concatenate("after the product: ", microseconds(times.in_one), " us predicted, ",
                           microseconds(times.in_two_steps),
                           " us with the sum in the epilogue of the own shard's");
  if (!times.two_steps()) return {};

  Status status = made->add_others(problem, problem.rank + 1, ranks);
  if (status.ok()) status = made->add_others(problem, 0, problem.rank);
  cuda::Sm90MatmulConfig config = cuda::choose_sm90_matmul(own, multiprocessors);
  config.parts = ranks == 2 ? 1 : 2;
  config.split_k = false;  // the parts are added to whole sums
  if (status.ok()) status = cuda::Sm90Matmul::make(own, config, *device->gpu, &made->own_);
  if (status.ok()) *products = std::move(made);
  return status;
}

Status ShardProducts::add_others(const Problem& problem, int32_t first, int32_t last) {
  const int64_t from = problem.shards.begin_of(first), to = problem.shards.begin_of(last);
  if (from == to) return {};
  const int64_t chunk = problem.chunks.first_of(first), end = problem.chunks.first_of(last);
  others_.push_back({from, to, chunk, cut(problem.chunks, chunk, end), nullptr});
  auto leaving = sized<perseid_async_operand>();
  leaving.dim = along_n_ ? PERSEID_CHUNK_N : PERSEID_CHUNK_M;
  leaving.count = end - chunk;
  leaving.begin = others_.back().begin.data();
  perseid_matmul_desc desc = problem.product;
  (along_n_ ? desc.n : desc.m) = to - from;
  desc.sink_c = &leaving;
  return make_matmul(device_, desc, &others_.back().plan);
}

// The operand that is cut into shards arrives in chunks: when the others' parts have.
MatmulProblem ShardProducts::own_problem(const Problem& problem) const {
  const perseid_matmul_desc& desc = problem.product;
  MatmulProblem own = {
      .dtype = desc.dtype == PERSEID_F16 ? DType::kF16 : DType::kBF16,
      .out_dtype = problem.out_dtype,
      .batch = desc.batch,
      .m = desc.m,
      .n = desc.n,
      .k = desc.k,
      .alpha = problem.average ? 1.0 / static_cast<double>(problem.shards.begin.size() - 1) : 1.0,
      .bias = problem.bias};
  (along_n_ ? own.n : own.m) = to_ - from_;
  (along_n_ ? own.chunks_b : own.chunks_a) = {along_n_ ? ChunkDim::kN : ChunkDim::kM, begin_.data(),
                                              static_cast<int64_t>(begin_.size()) - 1};
  return own;
}

ShardProducts::Operands ShardProducts::slice(const Operands& operands, int64_t from,
                                             int64_t to) const {
  Operands part = operands;
  Tensor& cut_operand = along_n_ ? part.b : part.a;
  cut_operand = slice_of(cut_operand, along_n_ ? 2 : 1, from, to);
  return part;
}

MatmulArguments ShardProducts::own_of(const Operands& operands) const {
  const Operands own = slice(operands, from_, to_);
  return {.a = own.a, .b = own.b, .c0 = own.c, .bias = own.bias, .c = own.c};
}

size_t ShardProducts::workspace() const {
  size_t most = own_->workspace() + alignof(uint64_t);
  for (const Others& each : others_) {
    size_t bytes = 0;
    if (each.plan->workspace_size(dispatch::Direction::kForward, &bytes).ok())
      most = std::max(most, bytes);
  }
  return most;
}

bool ShardProducts::takes(const Operands& operands) const { return own_->maps(own_of(operands)); }

Status ShardProducts::multiply_for_others(const Operands& operands, const Tensor& partial,
                                          uint32_t* signals, const Sending& sending,
                                          const op::Workspace& workspace) const {
  Status status;
  for (const Others& each : others_) {
    Operands part = slice(operands, each.from, each.to);
    part.c = slice_of(partial, along_n_ ? 2 : 1, each.from, each.to);
    const DLDevice device = device_->dl_device();
    const DLTensor a = as_dl(&part.a, device), b = as_dl(&part.b, device),
                   c = as_dl(&part.c, device);
    auto departure = sized<perseid_chunk_sink>();
    departure.signals = signals + each.first_chunk;
    departure.epoch = sending.epoch;
    auto inner = sized<perseid_matmul_args>();
    inner.a = &a;
    inner.b = &b;
    inner.c = &c;
    inner.departure_c = &departure;
    if (status.ok()) status = matmul_of(each.plan).execute(inner, workspace, sending.stream);
  }
  return status;
}

Status ShardProducts::multiply_own(const Operands& operands, const RankParts& parts,
                                   const perseid_arrival& arrival, const Sending& sending,
                                   const op::Workspace& workspace) const {
  MatmulArguments arguments = own_of(operands);
  (along_n_ ? arguments.arrival_b : arguments.arrival_a) = {.signals = arrival.signals,
                                                            .epoch = arrival.epoch,
                                                            .deadline_ns = arrival.deadline_ns,
                                                            .abort = arrival.abort,
                                                            .record = arrival.record};
  RankParts given = parts;
  given.row = operands.c.shape[2];
  given.batch = operands.c.shape[1] * given.row;
  // The caller's workspace has room to align it.
  void* data = workspace.data;
  size_t bytes = workspace.bytes;
  std::align(alignof(uint64_t), own_->workspace(), data, bytes);
  return own_->run(arguments, data, sending.stream, given);
}

}  // namespace perseid::internal::collective
