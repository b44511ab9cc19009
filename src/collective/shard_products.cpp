// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/shard_products.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace perseid::internal::collective {
namespace {

constexpr const char* kImplementation = "cuda:sm90";

// Stages of results, and the time of a column over that of one of 128 x 256 tiles whose sums go to
// memory from registers: means of 8192 rows and columns, two and four ranks, K 2048 to 14336
// (bench/gpu/rank_shards.cpp). The same where they go to the memory of other GPUs; of 256 columns
// half go there at once. That was measured with stages for all of that half.
struct DeferredTile {
  int columns, out_stages;
  double column, column_to_peers;
};
constexpr DeferredTile kDeferredTiles[] = {
    {192, 4, 0.92, 0.94}, {256, 4, 0.93, 1.01}, {128, 4, 1, 1.02}};
// No mainloop hides the epilogue of a block's last tile: so many columns more, by 2048 rows.
constexpr double kLastTile = 64;

bool is_power_of_2(int32_t value) { return (value & (value - 1)) == 0; }

}  // namespace

ShardProducts::ShardProducts(const Problem& problem)
    : along_n_(problem.along_n),
      first_chunk_(static_cast<int32_t>(problem.chunks.first_of(problem.rank))),
      own_chunks_(static_cast<int32_t>(problem.chunks.first_of(problem.rank + 1)) - first_chunk_),
      next_chunk_(static_cast<int32_t>(problem.chunks.pivot(
          (problem.rank + 1) % (static_cast<int32_t>(problem.shards.begin.size()) - 1)))),
      begin_(problem.chunks.begin),
      from_(problem.shards.begin_of(problem.rank)),
      to_(problem.shards.begin_of(problem.rank + 1)) {}

Status ShardProducts::make(const op::DevicePointer& device, const Problem& problem,
                           std::unique_ptr<const ShardProducts>* products) {
  const perseid_matmul_desc& desc = problem.product;
  const auto ranks = static_cast<int32_t>(problem.shards.begin.size()) - 1;
  const bool small = desc.dtype == PERSEID_F16 || desc.dtype == PERSEID_BF16;
  const bool named = desc.implementation == nullptr || *desc.implementation == 0 ||
                     std::strcmp(desc.implementation, kImplementation) == 0;
  // An average over another number of ranks is a quotient, not a product.
  const bool averages = !problem.average || is_power_of_2(ranks);
  if (device->gpu == nullptr || device->gpu->facts().architecture != "sm_90a" || !small || !named ||
      !device->forced_implementation.empty() || !averages || ranks < 2 ||
      desc.k / max(problem.leaves, int64_t{1}) % 8 != 0 || desc.n % 8 != 0 ||
      size_of(problem.out_dtype) != 2 || problem.shards.size(problem.rank) == 0)
    return {};
  std::unique_ptr<ShardProducts> made(new ShardProducts(problem));
  const MatmulProblem product = made->product_of(problem);
  if (!cuda::refuse_sm90_matmul(product).empty()) return {};
  const auto config = choose(problem, device->gpu->facts().multiprocessors);
  if (config == nullptr) return {};
  made->takes_targets_ = config->deferred_parts;
  Status status = cuda::Sm90Matmul::make(product, *config, *device->gpu, &made->product_);
  if (status.ok()) *products = std::move(made);
  return status;
}

MatmulProblem ShardProducts::product_of(const Problem& problem) const {
  const perseid_matmul_desc& desc = problem.product;
  return {
      .dtype = desc.dtype == PERSEID_F16 ? DType::kF16 : DType::kBF16,
      .out_dtype = problem.out_dtype,
      .batch = desc.batch,
      .m = desc.m,
      .n = desc.n,
      .k = desc.k,
      .alpha = problem.average ? 1.0 / static_cast<double>(problem.shards.begin.size() - 1) : 1.0,
      .bias = problem.bias,
      .chunks_c = {along_n_ ? ChunkDim::kN : ChunkDim::kM, begin_.data(),
                   static_cast<int64_t>(begin_.size()) - 1},
      .leaves = problem.leaves,
      .shared_depth = problem.leaves > 0,
      .spared = problem.spared};
}

std::unique_ptr<const cuda::Sm90MatmulConfig> ShardProducts::choose(const Problem& problem,
                                                                    int32_t multiprocessors) {
  const auto ranks = static_cast<int>(problem.shards.begin.size()) - 1;
  const auto takes = [&](const cuda::Sm90MatmulConfig& config) {
    const int64_t lines = problem.along_n ? config.columns : config.rows() * config.cluster;
    const auto cuts = [&](int64_t line) { return line % lines == 0; };
    return config.fits() &&
           std::all_of(problem.shards.begin.begin(), problem.shards.begin.end() - 1, cuts);
  };
  const MatmulProblem product = ShardProducts(problem).product_of(problem);
  const auto candidates = cuda::sm90_matmul_candidates(product, multiprocessors);
  std::unique_ptr<const cuda::Sm90MatmulConfig> best;
  double least = 0;
  const auto consider = [&](cuda::Sm90MatmulConfig config, const DeferredTile* deferred) {
    config.parts = problem.leaves > 0 ? ranks - 1 : min(ranks - 1, 4);
    config.split_k = false;  // the parts are added to whole sums
    if (!takes(config)) return;
    const auto [waves, rate] = cuda::estimate_sm90_waves(product, config, multiprocessors);
    const double columns = waves * config.columns;
    const double time =
        config.rows() * (deferred == nullptr ? columns / rate
                                             : columns * (problem.stores ? deferred->column_to_peers
                                                                         : deferred->column) +
                                                   kLastTile);
    if (best != nullptr && time >= least) return;
    best = std::make_unique<const cuda::Sm90MatmulConfig>(config);
    least = time;
  };
  for (const DeferredTile& tile : kDeferredTiles)
    for (const int cluster : {1, 2}) {
      cuda::Sm90MatmulConfig config = candidates.front();
      config.consumers = 2;
      config.columns = tile.columns;
      config.cluster = cluster;
      config.out_stages = tile.out_stages;
      config.few_rows = 0;
      config.deferred_parts = true;
      if (cluster == 1 || tile.columns % 128 == 0) consider(config, &tile);
    }
  if (problem.stores && best != nullptr) return best;
  for (const cuda::Sm90MatmulConfig& config : candidates) consider(config, nullptr);
  return best;
}

// c of all shards, of which the own one is where it is: nothing else is stored.
MatmulArguments ShardProducts::arguments_of(const Operands& operands) const {
  Tensor c = operands.c;
  const int dim = along_n_ ? 2 : 1;
  c.data = c.as<std::byte>() - from_ * c.stride[dim] * size_of(c.dtype);
  c.shape[dim] = begin_.back();
  return {.a = operands.a, .b = operands.b, .c0 = c, .bias = operands.bias, .c = c};
}

Status ShardProducts::multiply(const Operands& operands, const Tensor& partial, uint32_t* signals,
                               const RankParts& parts, const Arrival& arrival,
                               const Sending& sending, void* workspace) const {
  MatmulArguments arguments = arguments_of(operands);
  arguments.departure_c = {.signals = signals, .epoch = sending.epoch, .first = next_chunk_};
  RankParts given = parts;
  given.row = operands.c.shape[2];
  given.batch = operands.c.shape[1] * given.row;
  given.data -= from_ * (along_n_ ? 1 : given.row);
  given.first = static_cast<int32_t>(from_);
  given.last = static_cast<int32_t>(to_);
  given.partial = partial.as<float>();
  given.partial_row = partial.stride[1];
  given.partial_batch = partial.stride[0];
  given.first_chunk = first_chunk_;
  given.chunks = own_chunks_;
  given.arrival = arrival;
  RankTarget targets[cuda::kMostMatmulPeers];
  for (int32_t i = 0; given.targets != nullptr && i < given.ranks - 1; ++i) {
    RankTarget& target = targets[i] = parts.targets[i];
    const int64_t lines = target.last - target.first;
    target.row = along_n_ ? lines : operands.c.shape[2];
    target.batch = (along_n_ ? operands.c.shape[1] : lines) * target.row;
  }
  if (given.targets != nullptr) given.targets = targets;
  return product_->run(arguments, workspace, sending.stream, given);
}

}  // namespace perseid::internal::collective
