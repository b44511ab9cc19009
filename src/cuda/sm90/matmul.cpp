// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/matmul.hpp"

#include <utility>

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/runtime/signals.hpp"
#include "cuda/sm90/matmul_launch.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Which kernel ----

using Tile = Sm90MatmulTile;
constexpr Tile kTiles[] = {
    {2, 256, 1},   {2, 192, 0.97}, {2, 128, 0.92}, {2, 64, 0.7},
    {1, 256, 0.8}, {1, 128, 0.7},  {1, 64, 0.5},
};

// Waves of tiles from which on pairs of blocks are faster (2048^3: 0.93 of cuBLAS in pairs, 0.98
// without; 8192^3: 1.02 in pairs, 1.01 without), and what the other choice costs.
constexpr int64_t kWavesOfPairs = 3;
// The same where operands arrive: only blocks without a cluster have the dynamic tile schedule.
constexpr int64_t kWavesOfArrivingPairs = 8;
constexpr double kShortPairs = 1.05, kLongSingles = 1.01;
// The most columns of which registers hold the sums of several leaves.
constexpr int kLeafColumns = 128;

// The time of all waves of tiles, in units of an element of c.
double estimate(const MatmulProblem& problem, const Tile& tile, int32_t multiprocessors) {
  const int64_t tiles = matmul_tiles(problem, 64 * tile.consumers, tile.columns);
  const auto waves = static_cast<double>(ceil_div(tiles, multiprocessors));
  return waves * 64 * tile.consumers * tile.columns / tile.rate;
}

bool may_pair(int consumers, int columns) { return consumers == 2 && columns % 128 == 0; }

double best_estimate(const MatmulProblem& problem, int32_t multiprocessors) {
  double best = 0;
  for (const Tile& tile : kTiles)
    if (const double time = estimate(problem, tile, multiprocessors); best == 0 || time < best)
      best = time;
  return best;
}

// One entry of the batch, for its splits.
SplitKProblem split_problem(const MatmulProblem& problem, int32_t multiprocessors) {
  return {.m = problem.m, .n = problem.n, .k = problem.depth(), .multiprocessors = multiprocessors};
}
// Sets the tile of split tiles where they gain; the time of an entry then, else 0.
double split_tiles(const MatmulProblem& problem, int32_t multiprocessors,
                   Sm90MatmulConfig* config) {
  const auto bytes =
      static_cast<double>((problem.m + problem.n) * problem.depth() * size_of(problem.dtype));
  return split_tiles(split_problem(problem, multiprocessors), kTiles, bytes, config);
}

// ---- Tensor maps ----

// An operand, of which a block loads `lines` lines together. `leaf`: elements along k from one leaf
// to the next.
struct MappedOperand {
  bool across;  // contiguous along its lines' dimension: M-major a, N-major b
  BoxedTensor tensor;
};
MappedOperand map_operand(const MatmulOperand& operand, const MatmulProblem& problem, int64_t lines,
                          int64_t leaf, int box_lines) {
  MappedOperand mapped{.across = lies_across(operand, lines), .tensor = {}};
  const DType dtype = problem.dtype;
  const int64_t leaves = max(problem.leaves, int64_t{1}), depth = problem.depth() / leaves;
  BoxedTensor& tensor = mapped.tensor;
  if (mapped.across) {
    tensor = boxed_rows(operand.data, dtype, lines, depth, problem.batch, operand.depth,
                        operand.batch, static_cast<int>(128 / size_of(dtype)));
  } else {
    tensor = boxed_rows(operand.data, dtype, depth, lines, problem.batch, operand.line,
                        operand.batch, box_lines);
    tensor.stride[0] = operand.depth;
  }
  if (leaves > 1) {
    tensor.size[3] = tensor.size[2];
    tensor.stride[3] = tensor.stride[2];
    tensor.size[2] = leaves;
    tensor.stride[2] = leaf * operand.depth;
  }
  return mapped;
}

// The configuration of a launch. The transposed product has other rows.
Sm90MatmulConfig config_of(Sm90MatmulConfig config, bool transposed) {
  if (transposed) config.few_rows = 0;
  return config;
}

// A call as TMA sees it.
struct MappedCall {
  MatmulLaunch given;
  bool a_across, b_across;
  Sm90MatmulTensors tensors;
  bool mappable;
};
MappedCall map_call(const MatmulProblem& problem, const Sm90MatmulConfig& config,
                    const MatmulArguments& arguments) {
  const MatmulLaunch given = matmul_launch(problem, arguments);
  const int rows = config_of(config, given.transposed).loaded_rows();
  const int64_t leaves = max(problem.leaves, int64_t{1});
  int64_t of_a = arguments.a.shape[2] / leaves, of_b = arguments.b.shape[1] / leaves;
  if (given.transposed) std::swap(of_a, of_b);
  const auto a = map_operand(given.a, problem, given.rows, of_a, rows);
  const auto b = map_operand(given.b, problem, given.columns, of_b, config.b_part());
  MappedCall call{given, a.across, b.across, {a.tensor, b.tensor}, false};
  box_result(problem, given, &call.tensors);
  call.tensors.c.box[0] = config.out_columns();
  call.tensors.c.swizzle = config.out_row_bytes();
  call.mappable = has_whole_rows(problem, given) && call.tensors.are_mappable() &&
                  !(config.parts > 0 && given.transposed);
  return call;
}

}  // namespace

std::string refuse_sm90_matmul(const MatmulProblem& problem) {
  if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16)
    return concatenate("made for f16 and bf16, got ", name_of(problem.dtype));
  if (problem.depth() == 0) return "there is nothing to multiply (k or alpha is 0)";
  // A gathered operand is row-major. Leaves that ranks share may be copied.
  if (constexpr int64_t kVector = 8;
      problem.leaves > 0 && !problem.shared_depth && problem.k % kVector != 0)
    return concatenate("made in canonical order for k that is a multiple of ", kVector, ", got ",
                       problem.k);
  // Sums over ranks are float32 and row-major, and TMA stores words of 16 bytes.
  if (constexpr int64_t kColumns = 4; problem.shared_depth && problem.n % kColumns != 0)
    return concatenate("made for sums over ranks in canonical order of a multiple of ", kColumns,
                       " columns, got n ", problem.n);
  return refuse_large_matmul(problem);
}

Sm90MatmulConfig choose_sm90_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  Sm90MatmulConfig config{.in = problem.dtype,
                          .out = problem.out_dtype,
                          .activation = problem.activation,
                          .amax = problem.amax,
                          .leaves = static_cast<int>(max(problem.leaves, int64_t{1}))};
  double best = 0;
  for (const Tile& tile : kTiles) {
    if (tile.columns > kLeafColumns && config.leaves > 1) continue;
    const double time = estimate(problem, tile, multiprocessors);
    if (best != 0 && time >= best) continue;
    best = time;
    config.consumers = tile.consumers;
    config.columns = tile.columns;
  }
  config.source = problem.beta != 0;
  config.async = problem.async();
  constexpr int kFewRows[] = {32, 16, 8};
  for (const int rows : kFewRows)
    if (problem.m <= rows && config.consumers == 1) config.few_rows = rows;
  // Pairs of blocks load a tile of b once, which pays in long runs. An odd number of rows of tiles
  // leaves one block of a pair idle.
  const int64_t down = ceil_div(problem.m, config.rows());
  const bool pairs = down % 2 == 0 || down >= 16;
  const int64_t waves = problem.arrives() ? kWavesOfArrivingPairs : kWavesOfPairs;
  const bool runs_long =
      matmul_tiles(problem, config.rows(), config.columns) >= waves * multiprocessors;
  if (may_pair(config.consumers, config.columns) && pairs && runs_long) config.cluster = 2;
  if (problem.leaves == 0) split_tiles(problem, multiprocessors, &config);
  if (config.split_k) config.few_rows = 0;
  return config;
}

double estimate_sm90_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  Sm90MatmulConfig config;
  if (const double time = split_tiles(problem, multiprocessors, &config); time > 0)
    return time * static_cast<double>(problem.batch);
  return best_estimate(problem, multiprocessors) * static_cast<double>(problem.depth());
}

Sm90MatmulWaves estimate_sm90_waves(const MatmulProblem& problem, const Sm90MatmulConfig& config,
                                    int32_t multiprocessors) {
  const int64_t tiles = problem.batch *
                        round_up(ceil_div(problem.m, config.rows()), config.cluster) *
                        ceil_div(problem.n, config.columns);
  Sm90MatmulWaves waves{static_cast<double>(ceil_div(tiles, multiprocessors)), 1};
  const bool runs_long = tiles >= kWavesOfPairs * multiprocessors;
  if (may_pair(config.consumers, config.columns) && runs_long != (config.cluster > 1))
    waves.waves *= runs_long ? kLongSingles : kShortPairs;
  for (const Tile& tile : kTiles)
    if (tile.consumers == config.consumers && tile.columns == config.columns)
      waves.rate = tile.rate;
  return waves;
}

std::vector<Sm90MatmulConfig> sm90_matmul_candidates(const MatmulProblem& problem,
                                                     int32_t multiprocessors) {
  // The estimate is off by less than this.
  constexpr double kMargin = 1.5;
  const Sm90MatmulConfig chosen = choose_sm90_matmul(problem, multiprocessors);
  std::vector<Sm90MatmulConfig> candidates = {chosen};
  if (chosen.split_k) return candidates;  // another tile would have other bits
  const double best = best_estimate(problem, multiprocessors);
  for (const Tile& tile : kTiles) {
    if (estimate(problem, tile, multiprocessors) > kMargin * best) continue;
    for (const int cluster : {1, 2}) {
      Sm90MatmulConfig config = chosen;
      config.consumers = tile.consumers;
      config.columns = tile.columns;
      config.cluster = cluster;
      if (config.consumers > 1) config.few_rows = 0;
      const bool pairs = may_pair(tile.consumers, tile.columns);
      if ((cluster == 1 || pairs) && config.fits() && config_name(config) != config_name(chosen))
        candidates.push_back(config);
    }
  }
  return candidates;
}

std::string config_name(const Sm90MatmulConfig& config) {
  return concatenate(config.rows(), " x ", config.columns, ", clusters of ", config.cluster);
}

std::vector<std::string> sm90_matmul_kernels(const Sm90MatmulConfig& config) {
  std::vector<std::string> names;
  Sm90MatmulConfig layout = config;
  for (const bool a_m_major : {false, true})
    for (const bool b_n_major : {false, true}) {
      layout.a_m_major = a_m_major;
      layout.b_n_major = b_n_major;
      names.push_back(kernel_name("sm90_matmul", layout));
    }
  return names;
}

Status Sm90Matmul::make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                        std::unique_ptr<Sm90Matmul>* made) {
  std::unique_ptr<Sm90Matmul> matmul(new Sm90Matmul(problem, config, gpu));
  Status status;
  for (const bool transposed : {false, true}) {
    if (transposed && config.few_rows == 0) break;
    Sm90MatmulConfig layout = config_of(config, transposed);
    std::vector<Kernel>& kernels = matmul->kernels_[transposed];
    if (status.ok()) status = gpu.load(kSm90MatmulHeader, sm90_matmul_kernels(layout), &kernels);
    for (size_t i = 0; i < kernels.size() && status.ok(); ++i) {
      layout.a_m_major = i >= 2;
      status = gpu.allow_shared(kernels[i], layout.shared_bytes());
    }
  }
  MatmulProblem fallback = problem;
  if (problem.spared > 0 && problem.arrives()) {
    // The fallback would wait with all multiprocessors.
    fallback.chunks_a = fallback.chunks_b = fallback.chunks_c = {};
    matmul->whole_chunks_ = std::make_unique<WholeChunks>(gpu);
    if (status.ok()) status = matmul->whole_chunks_->prepare(problem);
  }
  if (status.ok()) status = TensorCoreMatmul::make(fallback, gpu, &matmul->fallback_);
  if (status.ok() && problem.async()) {
    matmul->async_ = std::make_unique<MatmulAsync>(gpu);
    status = matmul->async_->prepare(problem);
  }
  if (status.ok()) *made = std::move(matmul);
  return status;
}

size_t Sm90Matmul::aside() const {
  return static_cast<size_t>(config_.aside_bytes()) *
         static_cast<size_t>(gpu_.facts().multiprocessors);
}

bool Sm90Matmul::maps(const MatmulArguments& arguments) const {
  return map_call(problem_, config_, arguments).mappable;
}

Status Sm90Matmul::run(const MatmulArguments& arguments, void* workspace, void* stream,
                       const RankParts& parts) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  if (arguments.c.elements() == 0) return {};
  const auto [given, a_across, b_across, tensors, mappable] =
      map_call(problem_, config_, arguments);
  if (!mappable && problem_.leaves > 0)
    return Status::error(PERSEID_UNSUPPORTED,
                         "matmul: made in canonical order for tensors that TMA ",
                         "takes: contiguous rows or columns, addresses and strides that are ",
                         "multiples of 16 bytes; ask for cuda:tensor_core for others");
  if (!mappable && whole_chunks_ != nullptr)
    return whole_chunks_->run(arguments, static_cast<std::byte*>(workspace) + splits_at(), stream,
                              [&] { return fallback_->run(arguments, workspace, stream); });
  if (!mappable) return fallback_->run(arguments, workspace, stream);
  Sm90ShardArguments launch;
  static_cast<Sm90MatmulArguments&>(launch) = sm90_matmul_arguments(problem_, config_, given);
  const Gpu::Current current(gpu_);
  Status status = current.status();
  if (status.ok()) status = encode_maps(gpu_, given, tensors, &launch);
  if (status.ok() && async_ != nullptr)
    status = async_->fill(arguments, given.transposed, workspace, stream, &launch.async);
  if (!status.ok()) return status;
  MatmulAsync::order_tiles(launch.async, &launch.grid);
  if (config_.parts > 0) {
    launch.parts = parts;
    DeviceArrival& arrival = launch.async.arrivals[0];
    status = find_arrival(gpu_, parts.arrival, &arrival, &launch.async.reports[0]);
    if (!status.ok()) return status;
    arrival.chunks.count = parts.chunks * (parts.ranks - 1);
    if (config_.deferred_parts) status = fill_shards(parts, &launch);
    launch.aside = static_cast<unsigned char*>(workspace) + splits_at();
    if (!status.ok()) return status;
  }
  splits_.fill(problem_, given, static_cast<std::byte*>(workspace) + splits_at(), &launch);
  Sm90MatmulConfig layout = config_of(config_, given.transposed);
  layout.a_m_major = a_across;
  const std::vector<Kernel>& kernels = kernels_[given.transposed && config_.few_rows != 0];
  return launch_sm90_matmul(gpu_, kernels[(a_across ? 2 : 0) + (b_across ? 1 : 0)], layout, launch,
                            problem_.spared, stream);
}

// Where the sums of other ranks' shards go, and where their parts of the own one are. The context
// must be current.
Status Sm90Matmul::fill_shards(const RankParts& parts, Sm90ShardArguments* launch) const {
  const bool of_columns = launch->async.departure.of_columns;
  const auto map = [&](const float* data, int64_t batch, int64_t row, int64_t lines,
                       int64_t of_rank, TensorMap* made) {
    BoxedTensor tensor =
        boxed_rows(data, DType::kF32, of_columns ? lines : problem_.n,
                   of_columns ? problem_.m : lines, problem_.batch, row, batch, 64);
    tensor.box[0] = config_.sum_columns();
    tensor.swizzle = config_.out_row_bytes();
    if (of_rank > 0) {
      tensor.size[2] = problem_.batch;
      tensor.stride[2] = batch;
      tensor.size[3] = parts.ranks;
      tensor.stride[3] = of_rank;
    }
    return make_tensor_map(gpu_, "the sums of a shard", tensor, made);
  };
  const int64_t line = of_columns ? 1 : parts.row;
  launch->arrived_row = of_columns ? 0 : parts.first;
  launch->arrived_column = of_columns ? parts.first : 0;
  Status status = map(parts.data + parts.first * line, parts.batch, parts.row,
                      parts.last - parts.first, parts.of_rank, &launch->arrived);
  if (parts.targets == nullptr) {
    const DeviceDeparture& departure = launch->async.departure;
    const int64_t lines = of_columns ? problem_.n : problem_.m;
    launch->peers[0] = {.last = static_cast<int32_t>(lines), .signals = departure.signals};
    return status.ok() ? map(parts.partial, parts.partial_batch, parts.partial_row, lines, 0,
                             &launch->sums[0])
                       : status;
  }
  DeviceArrival& begun = launch->async.arrivals[1];
  if (status.ok() && parts.begun.signals != nullptr) {
    status = find_arrival(gpu_, parts.begun, &begun, &launch->async.reports[1]);
    begun.chunks.count = parts.ranks;
  }
  for (int32_t i = 0; i < parts.ranks - 1 && status.ok(); ++i) {
    const RankTarget& target = parts.targets[i];
    launch->peers[i] = {.first = target.first,
                        .last = target.last,
                        .origin_row = of_columns ? 0 : target.first,
                        .origin_column = of_columns ? target.first : 0,
                        .rank = target.rank,
                        .first_chunk = target.first_chunk,
                        .signal_stride = target.signal_stride,
                        .signals = target.signals};
    // A shard may be empty.
    if (target.first < target.last)
      status = map(target.data, target.batch, target.row, target.last - target.first, 0,
                   &launch->sums[i]);
  }
  return status;
}

Sm90Matmul::Sm90Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config, const Gpu& gpu)
    : problem_(problem),
      config_(config),
      gpu_(gpu),
      splits_(split_problem(problem, gpu.facts().multiprocessors), kTiles, config) {}

std::string Sm90Matmul::description() const {
  return concatenate("tiles of ", config_.rows(), " x ", config_.columns, ", ", config_.consumers,
                     config_.consumers == 1 ? " consumer" : " consumers", ", ", config_.stages(),
                     " stages, clusters of ", config_.cluster, splits_.description());
}

}  // namespace perseid::internal::cuda
