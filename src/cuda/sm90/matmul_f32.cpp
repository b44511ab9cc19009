// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/matmul_f32.hpp"

#include <span>

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_launch.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Which kernel ----

// Registers hold the sums and the products of a tile, so that 192 columns are the most.
using Tile = Sm90MatmulTile;
constexpr Tile kSplitTiles[] = {{2, 192, 1}, {2, 128, 0.92}, {2, 64, 0.6}};
constexpr Tile kTF32Tiles[] = {{2, 256, 1}, {2, 128, 0.92}, {2, 64, 0.7}};

std::span<const Tile> tiles_of(const MatmulProblem& problem) {
  return problem.precision == Precision::kTF32 ? std::span<const Tile>(kTF32Tiles) : kSplitTiles;
}

// Pairs of blocks load a tile of b once, from so many waves of tiles on.
constexpr int64_t kWavesOfPairs = 3;

// The time of all waves of tiles, in units of an element of c.
double estimate(const MatmulProblem& problem, const Tile& tile, int32_t multiprocessors) {
  const int64_t tiles = matmul_tiles(problem, 128, tile.columns);
  return static_cast<double>(ceil_div(tiles, multiprocessors) * tile.columns) / tile.rate;
}

// One entry of the batch, for its splits.
SplitKProblem split_problem(const MatmulProblem& problem, int32_t multiprocessors) {
  const bool tf32 = problem.precision == Precision::kTF32;
  return {.m = problem.m,
          .n = problem.n,
          .k = problem.depth(),
          .depth = tf32 ? 64 : 32,
          .group = tf32 ? 1 : 2,
          .work = tf32 ? 1.0 : 3.0,
          .multiprocessors = multiprocessors};
}

// Elements of a and b whose planes are in the workspace at a time.
constexpr int64_t kMostElements = int64_t{1} << 27;

// ---- Parts of a batch ----

Tensor entries_of(Tensor tensor, int64_t first, int64_t count) {
  if (tensor.data == nullptr) return tensor;
  tensor.data =
      static_cast<std::byte*>(tensor.data) + first * tensor.stride[0] * size_of(tensor.dtype);
  tensor.shape[0] = count;
  return tensor;
}

}  // namespace

std::string refuse_sm90_f32_matmul(const MatmulProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (problem.depth() == 0) return "there is nothing to multiply (k or alpha is 0)";
  if (problem.k > kMost / 2)
    return concatenate("k is ", problem.k, ", expected at most ", kMost / 2, " in f32");
  return refuse_large_matmul(problem);
}

// 1 x 8192 x 8192 takes 0.51 ms, by multiply-add 0.33 ms, which a tile of 64 rows takes in any
// case; 256^3 takes 18 us and 16 us, 512^3 24 us and 26 us.
std::string avoid_sm90_f32_matmul(const MatmulProblem& problem) {
  constexpr int64_t kFewLines = 64;
  constexpr int kFewProducts = 1 << 25;
  if (min(problem.m, problem.n) <= kFewLines)
    return concatenate("made for f32 with m and n above ", kFewLines, ", got ", problem.m, " and ",
                       problem.n, ": splitting a and b takes longer than multiply-add");
  const double products = static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                          static_cast<double>(problem.k);
  if (products < kFewProducts)
    return concatenate("made for f32 with m n k of ", kFewProducts, " and more, got ", problem.m,
                       " x ", problem.n, " x ", problem.k, ": multiply-add is faster");
  return "";
}

Sm90MatmulConfig choose_sm90_f32_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  const bool tf32 = problem.precision == Precision::kTF32;
  Sm90MatmulConfig config{.in = DType::kF16,
                          .out = DType::kF32,
                          .activation = problem.activation,
                          .amax = problem.amax};
  config.source = problem.beta != 0;
  config.planes = tf32 ? 1 : 2;
  config.promote = tf32 ? 0 : 2;
  config.scaled = true;
  double best = 0;
  for (const Tile& tile : tiles_of(problem)) {
    const double time = estimate(problem, tile, multiprocessors);
    if (best != 0 && time >= best) continue;
    best = time;
    config.columns = tile.columns;
  }
  const int64_t down = ceil_div(problem.m, config.rows());
  const bool pairs = down % 2 == 0 || down >= 16;
  const bool runs_long =
      matmul_tiles(problem, config.rows(), config.columns) >= kWavesOfPairs * multiprocessors;
  if (pairs && runs_long) config.cluster = 2;
  const auto bytes =
      static_cast<double>((problem.m + problem.n) * problem.depth()) * 2 * config.planes;
  split_tiles(split_problem(problem, multiprocessors), tiles_of(problem), bytes, &config);
  return config;
}

std::vector<std::string> sm90_f32_matmul_kernels(const Sm90MatmulConfig& config) {
  return {kernel_name("sm90_matmul", config)};
}

MatmulFmaConfig choose_fixup_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  MatmulFmaConfig config = choose_fma_matmul(problem, multiprocessors);
  config.fixup = true;
  return config;
}

Status Sm90F32Matmul::make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                           std::unique_ptr<Sm90F32Matmul>* made) {
  std::unique_ptr<Sm90F32Matmul> matmul(new Sm90F32Matmul(problem, config, gpu));
  Status status = gpu.load(kSm90MatmulHeader, sm90_f32_matmul_kernels(config), &matmul->kernels_);
  if (status.ok()) status = gpu.allow_shared(matmul->kernels_[0], config.shared_bytes());
  if (status.ok()) status = matmul->split_.make({.planes = config.planes}, gpu);
  if (status.ok())
    status = FmaMatmul::make(problem, choose_fixup_matmul(problem, gpu.facts().multiprocessors),
                             gpu, &matmul->fixup_);
  if (status.ok()) *made = std::move(matmul);
  return status;
}

int64_t Sm90F32Matmul::entries_at_a_time() const {
  const int64_t each = (problem_.m + problem_.n) * problem_.k;
  return clamp<int64_t>(kMostElements / max<int64_t>(each, 1), 1, max<int64_t>(problem_.batch, 1));
}

Sm90F32Matmul::Sm90F32Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config,
                             const Gpu& gpu)
    : problem_(problem),
      config_(config),
      gpu_(gpu),
      splits_(split_problem(problem, gpu.facts().multiprocessors), tiles_of(problem), config) {}

size_t Sm90F32Matmul::plane_bytes() const {
  const int64_t entries = entries_at_a_time();
  return split_.bytes(entries * problem_.m, problem_.k) +
         split_.bytes(entries * problem_.n, problem_.k);
}

size_t Sm90F32Matmul::workspace() const {
  return plane_bytes() + splits_.workspace(entries_at_a_time());
}

Status Sm90F32Matmul::run(const MatmulArguments& arguments, void* workspace, void* stream) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  if (arguments.c.elements() == 0) return {};
  const int64_t most = entries_at_a_time();
  for (int64_t first = 0; first < problem_.batch; first += most) {
    MatmulProblem problem = problem_;
    problem.batch = min(most, problem_.batch - first);
    MatmulArguments part = arguments;
    for (Tensor* tensor : {&part.a, &part.b, &part.c, &part.c0})
      *tensor = entries_of(*tensor, first, problem.batch);
    if (Status status = run_entries(problem, part, workspace, stream); !status.ok()) return status;
  }
  return {};
}

Status Sm90F32Matmul::run_entries(const MatmulProblem& problem, const MatmulArguments& arguments,
                                  void* workspace, void* stream) const {
  MatmulLaunch given = matmul_launch(problem, arguments);
  const int64_t row = split_.config().row(given.depth);
  SplitOperand a{given.a, given.rows, given.a.batch != 0 ? problem.batch : 1};
  SplitOperand b{given.b, given.columns, given.b.batch != 0 ? problem.batch : 1};
  split_.place(workspace, given.depth, &a);
  split_.place(static_cast<std::byte*>(workspace) + split_.bytes(a.entries * a.lines, given.depth),
               given.depth, &b);
  const auto planes = [&](const SplitOperand& operand, int lines) {
    return boxed_rows(operand.planes, DType::kF16, row, operand.lines, operand.entries, row,
                      operand.lines * row, lines);
  };
  Sm90MatmulTensors tensors{planes(a, config_.rows()), planes(b, config_.b_part())};
  box_result(problem, given, &tensors);
  if (!has_whole_rows(problem, given) || !tensors.are_mappable())
    return fixup_->run(problem, given, stream);

  Sm90MatmulArguments launch = sm90_matmul_arguments(problem, config_, given);
  launch.k_steps =
      static_cast<int32_t>(round_up(ceil_div(row, config_.depth()), max(config_.promote, 1)));
  const auto factors = [](const SplitOperand& operand) {
    return MatmulFactors{operand.factors, operand.entries == 1 ? 0 : operand.lines};
  };
  given.row_factors = launch.row_factors = factors(a);
  given.column_factors = launch.column_factors = factors(b);
  splits_.fill(given, false, static_cast<std::byte*>(workspace) + plane_bytes(), &launch);
  const Gpu::Current current(gpu_);
  Status status = current.status();
  if (status.ok()) status = encode_maps(gpu_, given, tensors, &launch);
  if (status.ok()) status = split_.run(gpu_, {a, b}, given.depth, stream);
  if (status.ok()) status = launch_sm90_matmul(gpu_, kernels_[0], config_, launch, stream);
  if (status.ok()) status = fixup_->run(problem, given, stream);
  return status;
}

std::string Sm90F32Matmul::description() const {
  return concatenate(
      config_.planes == 2 ? "three products of f16, tiles of " : "one product of f16, tiles of ",
      config_.rows(), " x ", config_.columns, ", ", config_.stages(), " stages, clusters of ",
      config_.cluster, splits_.description());
}

}  // namespace perseid::internal::cuda
