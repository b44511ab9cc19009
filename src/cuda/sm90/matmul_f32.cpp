// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/matmul_f32.hpp"

#include <span>
#include <type_traits>

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
// Of several leaves, whose sums are there too.
constexpr Tile kLeafTiles[] = {{2, 128, 0.92}, {2, 64, 0.6}};
constexpr Tile kTF32Tiles[] = {{2, 256, 1}, {2, 128, 0.92}, {2, 64, 0.7}};

std::span<const Tile> tiles_of(const MatmulProblem& problem) {
  if (problem.precision == Precision::kTF32) return kTF32Tiles;
  return problem.leaves > 1 ? std::span<const Tile>(kLeafTiles) : kSplitTiles;
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

// Leaves as entries of a batch.
MatmulProblem batch_of_leaves(MatmulProblem problem) {
  problem.batch = problem.leaves;
  problem.k /= problem.leaves;
  return problem;
}
// The leaves of one entry, whose c is one.
MatmulArguments leaves_of(const MatmulProblem& problem, MatmulArguments arguments, int64_t entry) {
  const auto advance = [](Tensor* tensor, int64_t elements) {
    tensor->data = tensor->as<std::byte>() + elements * size_of(tensor->dtype);
  };
  for (Tensor* tensor : {&arguments.a, &arguments.b, &arguments.c}) {
    advance(tensor, entry * tensor->stride[0]);
    tensor->shape[0] = problem.leaves;
    tensor->stride[0] = 0;
  }
  for (const auto& [tensor, depth] : {std::pair{&arguments.a, 2}, {&arguments.b, 1}}) {
    tensor->shape[depth] = problem.k / problem.leaves;
    tensor->stride[0] = tensor->shape[depth] * tensor->stride[depth];
  }
  arguments.c0 = arguments.c;
  return arguments;
}

// Multiply-adds of f16 that a part takes at least: 0.3 ms, of which its launches cost a twentieth.
constexpr double kLeastWork = 1e11;

// ---- Parts of a product ----

// Some of its rows, or of its columns.
MatmulLaunch lines_of(MatmulLaunch launch, bool rows, const ProductPart& part) {
  // The elements are f32, those of bias too.
  const auto advance = [&]<class Data>(Data* data, int64_t stride) -> Data* {
    using Float = std::conditional_t<std::is_const_v<Data>, const float, float>;
    return data == nullptr ? nullptr : static_cast<Float*>(data) + part.first * stride;
  };
  MatmulOperand& operand = rows ? launch.a : launch.b;
  MatmulResult& c = launch.c;
  operand.data = advance(operand.data, operand.line);
  c.data = advance(c.data, rows ? c.row : c.column);
  c.c0 = advance(c.c0, rows ? c.c0_row : c.c0_column);
  c.bias = advance(c.bias, rows ? c.bias_row : c.bias_column);
  (rows ? launch.rows : launch.columns) = part.last - part.first;
  return launch;
}

}  // namespace

std::string refuse_sm90_f32_leaves(const MatmulProblem& problem) {
  if (constexpr int64_t kVector = 4; problem.shared_depth && problem.n % kVector != 0)
    return concatenate("made for f32 in canonical order with n that is a multiple of ", kVector,
                       " where sums are over ranks, got ", problem.n);
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
  config.leaves = static_cast<int>(max(problem.leaves, int64_t{1}));
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
  if (problem.leaves == 0)
    split_tiles(split_problem(problem, multiprocessors), tiles_of(problem), bytes, &config);
  return config;
}

std::vector<std::string> sm90_f32_matmul_kernels(const Sm90MatmulConfig& config) {
  return {kernel_name("sm90_matmul", config)};
}

Status Sm90F32Matmul::make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                           std::unique_ptr<Sm90F32Matmul>* made) {
  std::unique_ptr<Sm90F32Matmul> matmul(new Sm90F32Matmul(problem, config, gpu));
  Status status = gpu.load(kSm90MatmulHeader, sm90_f32_matmul_kernels(config), &matmul->kernels_);
  if (status.ok()) status = gpu.allow_shared(matmul->kernels_[0], config.shared_bytes());
  if (status.ok()) status = matmul->split_.make({.planes = config.planes}, gpu);
  if (status.ok() && config.leaves == 1)
    status = FmaMatmul::make(problem, choose_fixup_matmul(problem, gpu.facts().multiprocessors),
                             gpu, &matmul->fixup_);
  if (status.ok() && problem.async()) {
    matmul->chunks_ = std::make_unique<WholeChunks>(gpu);
    status = matmul->chunks_->prepare(problem);
  }
  if (status.ok()) *made = std::move(matmul);
  return status;
}

Sm90F32Matmul::Sm90F32Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config,
                             const Gpu& gpu)
    : problem_(problem),
      config_(config),
      gpu_(gpu),
      splits_(split_problem(problem, gpu.facts().multiprocessors), tiles_of(problem), config) {}

size_t Sm90F32Matmul::planes_bytes() const {
  return config_.leaves > 1 ? split_.bytes(batch_of_leaves(problem_), problem_.leaves)
                            : split_.bytes(problem_);
}

size_t Sm90F32Matmul::chunks_at() const {
  const int64_t of_leaves = int64_t{config_.aside_bytes()} * gpu_.facts().multiprocessors;
  return static_cast<size_t>(round_up(
      static_cast<int64_t>(planes_bytes() + splits_.workspace(Split::entries_at_a_time(problem_))) +
          of_leaves,
      16));
}

size_t Sm90F32Matmul::workspace() const {
  return chunks_at() + (chunks_ == nullptr ? 0 : chunks_->workspace());
}

Status Sm90F32Matmul::run(const MatmulArguments& arguments, void* workspace, void* stream) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  if (arguments.c.elements() == 0) return {};
  if (config_.leaves > 1) return run_leaves(arguments, workspace, stream);
  return chunks_ == nullptr ? run_batch(arguments, workspace, stream)
                            : run_parts(arguments, workspace, stream);
}

Status Sm90F32Matmul::run_batch(const MatmulArguments& arguments, void* workspace,
                                void* stream) const {
  return for_each_split(
      problem_, arguments, [&](const MatmulProblem& problem, const MatmulArguments& part) {
        return multiply(problem, matmul_launch(problem, part), {}, workspace, stream);
      });
}

Status Sm90F32Matmul::run_leaves(const MatmulArguments& arguments, void* workspace,
                                 void* stream) const {
  const MatmulProblem leaves = batch_of_leaves(problem_);
  Status status;
  for (int64_t entry = 0; entry < problem_.batch && status.ok(); ++entry)
    status = multiply(leaves, matmul_launch(leaves, leaves_of(problem_, arguments, entry)), {},
                      workspace, stream);
  return status;
}

// ---- Operands that arrive ----

bool Sm90F32Matmul::has_parts() const {
  const bool is_cut =
      problem_.chunks_a.dim == ChunkDim::kM || problem_.chunks_b.dim == ChunkDim::kN;
  return is_cut && !config_.split_k && Split::entries_at_a_time(problem_) >= problem_.batch;
}

std::vector<ProductPart> Sm90F32Matmul::parts_of(const MatmulLaunch& given,
                                                 const MatmulArguments& arguments) const {
  const bool of_a = problem_.chunks_a.dim == ChunkDim::kM;
  const int64_t size = of_a ? problem_.m : problem_.n, others = of_a ? problem_.n : problem_.m;
  if (!has_parts()) return {{0, size, WholeChunks::kAll}};
  const ChunkCut& cut = of_a ? problem_.chunks_a : problem_.chunks_b;
  const int64_t pivot = (of_a ? arguments.arrival_a : arguments.arrival_b).first;
  const bool rows = of_a != given.transposed;
  const int64_t tile_m = config_.rows(), tile_n = config_.columns;
  // Units of tiles; several of them where nobody waits for c.
  int64_t lines = rows ? tile_m * config_.cluster : tile_n;
  if (!problem_.chunks_c.present()) {
    const int64_t tiles =
        problem_.batch * ceil_div(others, rows ? tile_n : tile_m) * (rows ? config_.cluster : 1);
    const double work = static_cast<double>(problem_.batch * others * problem_.k) *
                        static_cast<double>(lines * (config_.planes == 2 ? 3 : 1));
    lines *= preferred_units(tiles, static_cast<int64_t>(kLeastWork / work) + 1,
                             gpu_.facts().multiprocessors);
  }
  return product_parts({cut.begin, cut.count, pivot}, size, lines);
}

Status Sm90F32Matmul::run_parts(const MatmulArguments& arguments, void* workspace,
                                void* stream) const {
  const MatmulLaunch whole = matmul_launch(problem_, arguments);
  const std::vector<ProductPart> parts = parts_of(whole, arguments);
  void* const of_chunks = static_cast<std::byte*>(workspace) + chunks_at();
  if (parts.size() == 1)
    return chunks_->run(arguments, of_chunks, stream,
                        [&] { return run_batch(arguments, workspace, stream); });
  const bool of_a = problem_.chunks_a.dim == ChunkDim::kM, rows = of_a != whole.transposed;
  const ChunkCut& cut = problem_.chunks_c;
  std::vector<ChunkRange<int32_t>> completed(parts.size());
  completed.back() = WholeChunks::kAll;
  if (cut.dim == (of_a ? ChunkDim::kM : ChunkDim::kN))
    completed = completed_chunks(parts, {cut.begin, cut.count});
  AsyncArguments async;
  Status status = chunks_->begin(arguments, of_chunks, stream, &async);
  for (size_t i = 0; i < parts.size() && status.ok(); ++i) {
    const ProductPart& part = parts[i];
    // The first part needs all of the other operand.
    const ChunkRange<int32_t> of_other = i == 0 ? WholeChunks::kAll : ChunkRange<int32_t>{};
    status = chunks_->await(async, of_a ? part.arrive : of_other, of_a ? of_other : part.arrive,
                            i == 0, stream);
    if (status.ok())
      status = multiply(problem_, lines_of(whole, rows, part),
                        {.a = i > 0 && !rows, .b = i > 0 && rows}, workspace, stream);
    if (status.ok()) status = chunks_->depart(async, completed[i], stream);
  }
  return status;
}

// ---- Kernels ----

Status Sm90F32Matmul::multiply(const MatmulProblem& problem, MatmulLaunch given, Kept kept,
                               void* workspace, void* stream) const {
  const int64_t row = split_.config().row(given.depth);
  Split::Operands operands = split_.place(problem_, given, problem.batch, workspace);
  const auto planes = [&](const SplitOperand& operand, int lines) {
    return boxed_rows(operand.planes, DType::kF16, row, operand.lines, operand.entries, row,
                      operand.lines * row, lines);
  };
  Sm90MatmulTensors tensors{planes(operands.a, config_.rows()),
                            planes(operands.b, config_.b_part())};
  box_result(problem, given, &tensors);
  if (!has_whole_rows(problem, given) || !tensors.are_mappable()) {
    if (problem.leaves > 0)
      return Status::error(PERSEID_INTERNAL, "matmul: TMA does not store this result");
    return fixup_->run(problem, given, stream);
  }

  std::byte* const after_planes = static_cast<std::byte*>(workspace) + planes_bytes();
  Sm90LeafArguments launch;
  static_cast<Sm90MatmulArguments&>(launch) = sm90_matmul_arguments(problem, config_, given);
  launch.k_steps = static_cast<int32_t>(
      config_.leaves * round_up(ceil_div(row, config_.depth()), max(config_.promote, 1)));
  if (config_.leaves > 1) {
    launch.grid.batch = 1;
    launch.of_a = given.a;
    launch.of_b = given.b;
    launch.depth = given.depth;
    launch.aside = reinterpret_cast<unsigned char*>(after_planes);
  }
  given.row_factors = launch.row_factors = factors_of(operands.a);
  given.column_factors = launch.column_factors = factors_of(operands.b);
  splits_.fill(problem, given, after_planes, &launch);
  const Gpu::Current current(gpu_);
  Status status = current.status();
  if (status.ok()) status = encode_maps(gpu_, given, tensors, &launch);
  if (kept.a) operands.a.lines = 0;
  if (kept.b) operands.b.lines = 0;
  if (status.ok()) status = split_.run(gpu_, operands, given.depth, stream);
  if (status.ok())
    status = launch_sm90_matmul(gpu_, kernels_[0], config_, launch, problem.spared, stream);
  if (status.ok() && fixup_ != nullptr) status = fixup_->run(problem, given, stream);
  return status;
}

std::string Sm90F32Matmul::description() const {
  return concatenate(
      config_.planes == 2 ? "three products of f16, tiles of " : "one product of f16, tiles of ",
      config_.rows(), " x ", config_.columns, ", ", config_.stages(), " stages, clusters of ",
      config_.cluster, splits_.description(),
      config_.leaves > 1 ? concatenate(", ", config_.leaves, " leaves") : "",
      chunks_ == nullptr ? ""
      : has_parts()      ? ", part by part"
                         : ", after all chunks");
}

}  // namespace perseid::internal::cuda
