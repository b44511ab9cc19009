// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Small kernels over the shared parts of sm_90 (cuda/device/sm90/), each part alone, as text for
// NVRTC; and their arguments, as the host has them.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/device/sm90/scheduler.hpp"
#include "cuda/device/tensor_map.hpp"
#include "cuda/runtime/compiler.hpp"

namespace perseid::internal::testing_sm90 {

inline constexpr int kDepth = 128;  // of the products
inline constexpr int kColumns = 128;

struct PipelineArguments {
  uint32_t* wrong;  // words that a consumer did not expect
  uint64_t* sums;   // of each consumer
  int32_t iterations;
};
struct ReadArguments {
  cuda::TensorMap map;
  void* out;
};
struct MultiplyArguments {
  cuda::TensorMap left, right;
  float* out;
};
struct DrawArguments {
  cuda::TileCounter* counter;
  uint64_t launch;
  uint32_t* visits;
  int32_t tiles, tiles_per_head, heads, heads_per_section;
};

struct SplitsArguments {
  cuda::Sm90MatmulArguments matmul;
  float* out;         // of each tile, consumer, thread and accumulator
  uint32_t* written;  // how often each consumer has completed a tile
  int32_t seed;
};
// The configuration of the kernel that adds splits of tiles.
inline constexpr cuda::Sm90MatmulConfig kSplitsConfig{
    .out = DType::kF32, .columns = 64, .split_k = true};

// Follows the arguments above word for word.
inline constexpr char kSource[] = R"__text__(
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/matmul/scheduler.hpp"
#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/sm90/scheduler.hpp"
#include "cuda/device/sm90/shared_tile.hpp"

namespace perseid::internal::cuda {

constexpr int kDepth = 128, kColumns = 128;

struct PipelineArguments {
  uint32_t* wrong;
  uint64_t* sums;
  int32_t iterations;
};
struct ReadArguments {
  TensorMap map;
  void* out;
};
struct MultiplyArguments {
  TensorMap left, right;
  float* out;
};
struct DrawArguments {
  TileCounter* counter;
  uint64_t launch;
  uint32_t* visits;
  int32_t tiles, tiles_per_head, heads, heads_per_section;
};

// Warp 0 writes 32 numbers a stage; every other warp reads all of them. Some iterations of each are
// late.
template <int Stages, class State>
__global__ void pass_stages(const __grid_constant__ PipelineArguments a) {
  __shared__ __align__(8) unsigned char barriers[Pipeline<Stages>::kBytes];
  __shared__ uint32_t words[Stages][32];
  const Pipeline<Stages> pipeline{ptx::shared_address(barriers)};
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    pipeline.init(1, blockDim.x / 32 - 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  State state;
  uint32_t wrong = 0;
  uint64_t sum = 0;
  for (int32_t i = 0; i < a.iterations; ++i, state.advance()) {
    if ((i * 2654435761u >> 20) % 16 == warp) __nanosleep(1000);
    const uint32_t expected = static_cast<uint32_t>(i) * 32 + lane;
    if (warp == 0) {
      pipeline.producer_acquire(state);
      words[state.stage()][lane] = expected;
      __syncwarp();
      if (lane == 0) pipeline.producer_commit(state);
    } else {
      pipeline.consumer_wait(state);
      if (!pipeline.consumer_test(state)) ++wrong;
      const uint32_t word = words[state.stage()][lane];
      if (word != expected) ++wrong;
      sum += word;
      __syncwarp();
      if (lane == 0) pipeline.consumer_release(state);
    }
  }
  if (wrong != 0) atomicAdd(a.wrong, wrong);
  if (warp > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(a.sums + warp - 1),
              static_cast<unsigned long long>(sum));
}

// A tile as TMA writes it, read through the swizzle.
template <int Rows, int Columns, class Word>
__global__ void read_tile(const __grid_constant__ ReadArguments a) {
  using Tile = SharedTile<Rows, Columns, sizeof(Word)>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Tile tile{ptx::shared_address(memory)};
  const Pipeline<1> pipeline{tile.base + Tile::kBytes};
  const PipelineState<1> state;
  if (threadIdx.x == 0) {
    pipeline.init(1, 1);
    ptx::mbarrier_init_fence();
    pipeline.producer_acquire(state);
    pipeline.producer_expect_bytes(state, Tile::kBytes);
    tile.load(a.map, pipeline.full(0), {0, 0, 0, 0, 0});
  }
  __syncthreads();
  pipeline.consumer_wait(state);
  auto* out = static_cast<Word*>(a.out);
  for (int i = static_cast<int>(threadIdx.x); i < Rows * Columns; i += blockDim.x)
    out[i] = *reinterpret_cast<const Word*>(memory +
                                            Tile::element_offset(i / Columns, i % Columns));
}

// out[64][N] = A B of one warpgroup, from column kFrom of B on. A is 64 x kDepth, or its transpose
// where kAcrossA; B is kColumns x kDepth, or its transpose where kAcrossB.
template <bool kAcrossA, bool kAcrossB, int N, int kFrom>
__global__ void multiply(const __grid_constant__ MultiplyArguments a) {
  using A = SharedTile<kAcrossA ? kDepth : 64, kAcrossA ? 64 : kDepth>;
  using B = SharedTile<kAcrossB ? kDepth : kColumns, kAcrossB ? kColumns : kDepth>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const A left{ptx::shared_address(memory)};
  const B right{left.base + A::kBytes};
  const Pipeline<1> pipeline{right.base + B::kBytes};
  const PipelineState<1> state;
  if (threadIdx.x == 0) {
    pipeline.init(1, 1);
    ptx::mbarrier_init_fence();
    pipeline.producer_acquire(state);
    pipeline.producer_expect_bytes(state, A::kBytes + B::kBytes);
    left.load(a.left, pipeline.full(0), {0, 0, 0, 0, 0});
    right.load(a.right, pipeline.full(0), {0, 0, 0, 0, 0});
  }
  __syncthreads();
  pipeline.consumer_wait(state);
  const auto operand_a = [&] {
    if constexpr (kAcrossA) return left.mn_major(); else return left.k_major();
  }();
  const auto operand_b = [&] {
    if constexpr (kAcrossB) return right.mn_major(kFrom); else return right.k_major(kFrom);
  }();
  float d[N / 2] = {};
  ptx::fence_operand(d);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k)
    ptx::Wgmma<N, DType::kBF16>::template mma_ss<kAcrossA, kAcrossB>(
        d, operand_a.step(k), operand_b.step(k), k > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_operand(d);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    a.out[(16 * warp + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * (lane % 4) + i % 2] = d[i];
}

// Every block draws tiles until there are none.
__global__ void draw_tiles(const __grid_constant__ DrawArguments a) {
  if (threadIdx.x != 0) return;
  DynamicTileScheduler<DrawArguments> scheduler(a);
  for (int32_t number = scheduler.first(); number < a.tiles;
       number = scheduler.number_of(scheduler.draw())) {
    const TileCoordinate at =
        tile_in_sections(number, a.tiles_per_head, a.heads, a.heads_per_section);
    atomicAdd(a.visits + at.head * a.tiles_per_head + at.tile, 1u);
    if ((number * 2654435761u >> 20) % 8 == 0) __nanosleep(2000);
  }
  scheduler.close();
}

struct SplitsArguments {
  Sm90MatmulArguments matmul;
  float* out;
  uint32_t* written;
  int32_t seed;
};
__device__ uint32_t scramble(uint32_t x) {
  x *= 2654435761u;
  x = (x ^ x >> 15) * 2246822519u;
  return x ^ x >> 13;
}

// Blocks add splits of tiles whose sums follow from their numbers. The warps of a consumer are late
// by up to 30 us, each by another time; the schedulers of every other ten blocks, by 60 us.
__global__ void add_splits(const __grid_constant__ SplitsArguments a) {
  constexpr Sm90MatmulConfig C{.out = DType::kF32, .columns = 64, .split_k = true};
  constexpr int kSums = C.columns / 2;
  extern __shared__ __align__(1024) unsigned char memory[];
  const MatmulShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  if (threadIdx.x == 0) shared.prepare();
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const MatmulWork<C> work(a.matmul);
  if (consumer < 0) {
    if (thread != 0) return;
    __nanosleep(first / 10 % 2 * 60000);
    for (int number = first; number < work.count(); number += blocks)
      work.prepare_counters(a.matmul.splits, number);
    ptx::mbarrier_arrive(shared.counters_ready());
    return;
  }
  const MatmulConsumerSplits<C> splits(a.matmul, shared, consumer);
  for (int number = first; number < work.count(); number += blocks) {
    int unit = 0;
    work.tile(number, 0, &unit);
    float sums[kSums];
    for (int i = 0; i < kSums; ++i) {
      const uint32_t x = scramble(
          (((a.seed * 1024 + unit) * C.consumers + consumer) * 128 + thread) * kSums + i);
      sums[i] = static_cast<float>(static_cast<int>(x % 4001) - 2000) * (1 << (x >> 28) % 3 * 8);
    }
    __nanosleep(scramble(a.seed * 8192 + unit * 8 + consumer * 4 + thread / 32) % 16 * 2000);
    if (!splits.complete({0, 0, 0, unit}, sums)) continue;
    const int part = (unit - 1) / a.matmul.splits.split.splits * C.consumers + consumer;
    if (thread == 0) atomicAdd(a.written + part, 1u);
    for (int i = 0; i < kSums; ++i) a.out[(part * 128 + thread) * kSums + i] = sums[i];
  }
}

}  // namespace perseid::internal::cuda
)__text__";

inline cuda::Program program(const std::string& architecture) {
  const std::string space = "perseid::internal::cuda::";
  cuda::Program program;
  program.header = "cuda/device/sm90/pipeline.hpp";
  program.architecture = architecture;
  program.text = kSource;
  for (const char* name :
       {"pass_stages<1, NS::PipelineState<1>>", "pass_stages<3, NS::PipelineState<3>>",
        "pass_stages<4, NS::PipelineState<4>>", "pass_stages<3, NS::PipelineCursor<3>>",
        "pass_stages<4, NS::PipelineCursor<4>>", "read_tile<64, 128, unsigned short>",
        "read_tile<128, 72, unsigned short>", "read_tile<32, 64, float>",
        "multiply<false, false, 128, 0>", "multiply<false, true, 128, 0>",
        "multiply<true, false, 128, 0>", "multiply<true, true, 128, 0>",
        "multiply<false, false, 64, 64>", "multiply<false, true, 64, 64>",
        "multiply<false, true, 32, 32>", "draw_tiles", "add_splits"}) {
    std::string whole = space + name;
    for (size_t at; (at = whole.find("NS::")) != std::string::npos;) whole.replace(at, 4, space);
    program.kernels.push_back(whole);
  }
  return program;
}

}  // namespace perseid::internal::testing_sm90
