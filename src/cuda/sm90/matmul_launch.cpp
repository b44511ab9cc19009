// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/matmul_launch.hpp"

namespace perseid::internal::cuda {
namespace {

// Units of the raster order that sweep together: their rows of a stay in the L2 cache.
constexpr int32_t kGroup = 8;

}  // namespace

BoxedTensor boxed_rows(const void* data, DType dtype, int64_t inner, int64_t outer, int64_t batch,
                       int64_t stride, int64_t batch_stride, int box_outer) {
  const int64_t entries = batch_stride == 0 ? 1 : batch;
  return {.data = const_cast<void*>(data),
          .dtype = dtype,
          .size = {inner, outer, entries, 1, 1},
          .stride = {1, stride, batch_stride, 0, 0},
          .box = {static_cast<int32_t>(128 / size_of(dtype)), box_outer, 1, 1, 1}};
}

void box_result(const MatmulProblem& problem, const MatmulLaunch& given,
                Sm90MatmulTensors* tensors) {
  const MatmulResult& c = given.c;
  // Rows of one element may have any stride between elements.
  const auto row_major = [&](const void* data, int64_t batch, int64_t row, int64_t column) {
    BoxedTensor tensor = boxed_rows(data, problem.out_dtype, given.columns, given.rows,
                                    problem.batch, row, batch, 64);
    tensor.stride[0] = column;
    return tensor;
  };
  tensors->c = row_major(c.data, c.batch, c.row, c.column);
  tensors->c0 = c.c0 != nullptr ? row_major(c.c0, c.c0_batch, c.c0_row, c.c0_column) : tensors->c;
}

bool has_whole_rows(const MatmulProblem& problem, const MatmulLaunch& given) {
  return problem.padded_rows || given.columns * size_of(problem.out_dtype) % 16 == 0;
}

Sm90MatmulArguments sm90_matmul_arguments(const MatmulProblem& problem,
                                          const Sm90MatmulConfig& config,
                                          const MatmulLaunch& given) {
  const auto size = [](int64_t value) { return static_cast<int32_t>(value); };
  const MatmulResult& c = given.c;
  Sm90MatmulArguments launch;
  launch.grid = {.batch = size(problem.batch),
                 .m = size(given.rows),
                 .n = size(given.columns),
                 .tile_m = config.rows(),
                 .tile_n = config.columns,
                 .cluster_m = config.cluster,
                 .group = kGroup};
  launch.k_steps =
      config.leaves * size(ceil_div(given.depth / config.leaves, int64_t{config.depth()}));
  launch.a_batch = given.a.batch != 0;
  launch.b_batch = given.b.batch != 0;
  launch.c0_batch = c.c0_batch != 0;
  launch.alpha = static_cast<float>(c.alpha);
  launch.beta = static_cast<float>(c.beta);
  launch.bias = {c.bias, c.bias_row, c.bias_column, c.bias_as_out};
  launch.amax = static_cast<float*>(c.amax);
  return launch;
}

Status encode_maps(const Gpu& gpu, const MatmulLaunch& given, const Sm90MatmulTensors& tensors,
                   Sm90MatmulArguments* arguments) {
  Status status;
  const auto make_map = [&](const char* name, const BoxedTensor& tensor, TensorMap* map) {
    if (status.ok()) status = make_tensor_map(gpu, name, tensor, map);
  };
  make_map(given.transposed ? "b" : "a", tensors.a, &arguments->a);
  make_map(given.transposed ? "a" : "b", tensors.b, &arguments->b);
  make_map("c", tensors.c, &arguments->c);
  make_map("c0", tensors.c0, &arguments->c0);
  return status;
}

Status launch_sm90_matmul(const Gpu& gpu, const Kernel& kernel, const Sm90MatmulConfig& config,
                          const Sm90MatmulArguments& arguments, int32_t spared, void* stream) {
  TileGrid<int32_t> tiles = arguments.grid;
  tiles.rows = tiles.columns = {};  // in memory of the device
  const int64_t clusters = config.split_k ? SplitTileOrder(tiles, arguments.splits.split).count()
                                          : TileOrder<int32_t>(tiles).clusters();
  // A block needs more than half of the shared memory of a multiprocessor, or fewer hold all.
  const int64_t resident = max(1, (gpu.facts().multiprocessors - spared) / config.cluster);
  const Launch grid{.blocks = min(clusters, resident) * config.cluster,
                    .threads = config.threads(),
                    .cluster = config.cluster,
                    .shared_bytes = config.shared_bytes()};
  return gpu.launch(kernel, grid, &arguments, stream);
}

}  // namespace perseid::internal::cuda
