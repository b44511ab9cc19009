// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/matmul_f8.hpp"

#include <span>
#include <utility>

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_launch.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Which kernel ----

using Tile = Sm90MatmulTile;
constexpr Tile kFastTiles[] = {{2, 256, 1}, {2, 128, 0.9}, {2, 64, 0.6}};
// Registers hold the sums and the products of a tile.
constexpr Tile kPromotedTiles[] = {{2, 192, 1}, {2, 128, 0.92}, {2, 64, 0.6}};
constexpr Tile kBlockTiles[] = {{2, 192, 1}, {2, 128, 0.77}, {2, 64, 0.55}};

// Blocks form pairs from so many waves of tiles on.
constexpr int64_t kWavesOfPairs = 3;

// Sums that block scales multiply have left the tensor cores.
bool is_promoted(const MatmulProblem& problem) {
  return problem.accumulation == Accumulation::kPromoted || problem.scaling == Scaling::kBlock;
}

// A tile's columns are whole chunks of results.
bool takes(const Tile& tile, const MatmulProblem& problem) {
  // c0 takes registers, too.
  if (is_promoted(problem) && problem.beta != 0 && tile.columns > 128) return false;
  return tile.columns * size_of(problem.out_dtype) % 128 == 0;
}

std::vector<Tile> tiles_of(const MatmulProblem& problem) {
  std::vector<Tile> tiles;
  for (const Tile& tile : problem.scaling == Scaling::kBlock ? kBlockTiles
                          : is_promoted(problem)             ? kPromotedTiles
                                                             : kFastTiles)
    if (takes(tile, problem)) tiles.push_back(tile);
  return tiles;
}

// One entry of the batch, for its splits.
SplitKProblem split_problem(const MatmulProblem& problem, int32_t multiprocessors) {
  return {.m = problem.m,
          .n = problem.n,
          .k = problem.depth(),
          .depth = 128,
          .work = 0.5,
          .multiprocessors = multiprocessors};
}

double estimate(const MatmulProblem& problem, const Tile& tile, int32_t multiprocessors) {
  const int64_t tiles = matmul_tiles(problem, 128, tile.columns);
  return static_cast<double>(ceil_div(tiles, multiprocessors) * tile.columns) / tile.rate;
}

// ---- Scales ----

// Their views have strides alone. One for each line, or one for all.
Status line_factors(const char* name, const Tensor& scales, MatmulFactors* factors) {
  const int64_t line = scales.stride[1];
  constexpr int64_t kMost = 1 << 20;  // 8 of them are an int32_t
  if (line < -kMost || line > kMost)
    return Status::error(PERSEID_UNSUPPORTED, name, " has a stride of ", line,
                         " elements, expected at most ", kMost, "; make it contiguous");
  *factors = {static_cast<const float*>(scales.data), scales.stride[0], static_cast<int32_t>(line)};
  return {};
}

MatmulBlockScales block_scales(const Tensor& scales) {
  return {static_cast<const float*>(scales.data), scales.stride[0], scales.stride[1],
          scales.stride[2]};
}

}  // namespace

std::string refuse_sm90_f8_matmul(const MatmulProblem& problem) {
  if (problem.depth() == 0) return "there is nothing to multiply (k or alpha is 0)";
  return refuse_large_matmul(problem);
}

Sm90MatmulConfig choose_sm90_f8_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  const bool promoted = is_promoted(problem);
  Sm90MatmulConfig config{.in = problem.dtype,
                          .out = problem.out_dtype,
                          .activation = problem.activation,
                          .amax = problem.amax};
  config.source = problem.beta != 0;
  config.async = problem.async();
  config.promote = promoted ? 1 : 0;
  config.blocks = problem.scaling == Scaling::kBlock;
  config.scaled = problem.scaling == Scaling::kTensor || problem.scaling == Scaling::kRow;
  if (problem.type_of_b() != problem.dtype) config.in_b = problem.type_of_b();
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
  const auto bytes = static_cast<double>((problem.m + problem.n) * problem.depth());
  split_tiles(split_problem(problem, multiprocessors), tiles_of(problem), bytes, &config);
  // The results of a tile fit into the stages, so that no consumer waits for their stores.
  if (promoted && size_of(problem.out_dtype) <= 2) config.out_stages = config.out_chunks();
  return config;
}

std::vector<std::string> sm90_f8_matmul_kernels(const Sm90MatmulConfig& config) {
  std::vector<std::string> names = {kernel_name("sm90_matmul", config)};
  if (config.in_b != DType::kNone) {
    Sm90MatmulConfig transposed = config;
    std::swap(transposed.in, transposed.in_b);
    names.push_back(kernel_name("sm90_matmul", transposed));
  }
  return names;
}

Status Sm90F8Matmul::make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                          std::unique_ptr<Sm90F8Matmul>* made) {
  std::unique_ptr<Sm90F8Matmul> matmul(new Sm90F8Matmul(problem, config, gpu));
  Status status = gpu.load(kSm90MatmulHeader, sm90_f8_matmul_kernels(config), &matmul->kernels_);
  for (const Kernel& kernel : matmul->kernels_)
    if (status.ok()) status = gpu.allow_shared(kernel, config.shared_bytes());
  if (status.ok() && problem.async()) {
    matmul->async_ = std::make_unique<MatmulAsync>(gpu);
    status = matmul->async_->prepare(problem);
  }
  if (status.ok()) *made = std::move(matmul);
  return status;
}

Sm90F8Matmul::Sm90F8Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config,
                           const Gpu& gpu)
    : problem_(problem),
      config_(config),
      gpu_(gpu),
      splits_(split_problem(problem, gpu.facts().multiprocessors), tiles_of(problem), config) {}

Status Sm90F8Matmul::run(const MatmulArguments& arguments, void* workspace, void* stream) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  if (arguments.c.elements() == 0) return {};
  const MatmulLaunch given = matmul_launch(problem_, arguments);
  const bool transposed = given.transposed;
  if (config_.blocks && transposed)
    return Status::error(PERSEID_UNSUPPORTED,
                         "c is column-major, expected row-major with block scales; use "
                         "SCALE_ROW, or a row-major c");
  const auto operand = [&](const MatmulOperand& from, DType dtype, int64_t lines, int box_lines) {
    BoxedTensor tensor = boxed_rows(from.data, dtype, given.depth, lines, problem_.batch, from.line,
                                    from.batch, box_lines);
    tensor.stride[0] = from.depth;
    return tensor;
  };
  const DType of_a = transposed ? problem_.type_of_b() : problem_.dtype;
  const DType of_b = transposed ? problem_.dtype : problem_.type_of_b();
  Sm90MatmulTensors tensors{operand(given.a, of_a, given.rows, config_.rows()),
                            operand(given.b, of_b, given.columns, config_.b_part())};
  box_result(problem_, given, &tensors);
  for (const auto& [name, side, lines] : {std::tuple{transposed ? "b" : "a", &given.a, given.rows},
                                          {transposed ? "a" : "b", &given.b, given.columns}})
    if (given.depth > 1 && lines > 1 && side->depth != 1)
      return Status::error(PERSEID_UNSUPPORTED, name, " has a stride of ", side->depth,
                           " along k, expected 1: 8-bit types are multiplied along k alone; pass a "
                           "row-major and b column-major");
  if (!has_whole_rows(problem_, given))
    return Status::error(PERSEID_UNSUPPORTED, "a row of c has ", given.columns, " elements of ",
                         name_of(problem_.out_dtype), ", expected a multiple of 16 bytes; pad c");

  Sm90MatmulArguments launch = sm90_matmul_arguments(problem_, config_, given);
  const Tensor& a_scales = transposed ? arguments.scale_b : arguments.scale_a;
  const Tensor& b_scales = transposed ? arguments.scale_a : arguments.scale_b;
  Status status;
  if (config_.scaled) {
    status = line_factors(transposed ? "scale_b" : "scale_a", a_scales, &launch.row_factors);
    if (status.ok())
      status = line_factors(transposed ? "scale_a" : "scale_b", b_scales, &launch.column_factors);
  }
  if (!status.ok()) return status;
  if (config_.blocks) {
    launch.a_scales = block_scales(a_scales);
    launch.b_scales = block_scales(b_scales);
  }
  if (problem_.scale_result)
    launch.result_scale = static_cast<const float*>(arguments.scale_result.data);
  const Gpu::Current current(gpu_);
  status = current.status();
  if (status.ok()) status = encode_maps(gpu_, given, tensors, &launch);
  if (status.ok() && async_ != nullptr)
    status = async_->fill(arguments, transposed, workspace, stream, &launch.async);
  if (!status.ok()) return status;
  MatmulAsync::order_tiles(launch.async, &launch.grid);
  splits_.fill(problem_, given, static_cast<std::byte*>(workspace) + splits_at(), &launch);
  const size_t kernel = transposed && kernels_.size() > 1 ? 1 : 0;
  return launch_sm90_matmul(gpu_, kernels_[kernel], config_, launch, problem_.spared, stream);
}

std::string Sm90F8Matmul::description() const {
  return concatenate("tiles of ", config_.rows(), " x ", config_.columns, ", ",
                     config_.promote > 0 ? "promoted" : "fast", " accumulation, ", config_.stages(),
                     " stages, clusters of ", config_.cluster, splits_.description());
}

}  // namespace perseid::internal::cuda
