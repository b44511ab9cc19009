// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/fusion.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "collective/nccl.hpp"
#include "cuda/sm90/matmul.hpp"

namespace perseid::internal::collective {
namespace {

// Hopper: a multiprocessor in multiply-adds, a launch. 8-bit products in rates of 16-bit ones.
constexpr double kMultiprocessorRate = 2.8e12, kLaunch = 4e-6, kFloat8Speed = 1.7;
// Of one in attention, in FLOPs.
constexpr double kAttentionRate = 4.5e12;

// FLOPs a second of a whole GPU where kernels have no model of their own, and of a CPU's worker.
double rate_of(const dispatch::Device& device, DType dtype) {
  const double single = device.gpu != nullptr ? 100e12 : 50e9 * device.workers();
  return dtype == DType::kF64 ? single / 2 : single;
}

// How data moves, and what a chunk costs: signals, waits, and on GPUs a copy of its own. NVLink as
// measured back to back on two H100 (bench/results/2026-11-23-h100-fusion.csv). NCCL: a network of
// 400 Gbit/s, and an exchange for each chunk.
struct Path {
  double latency, bytes_per_second, chunk;
};
constexpr Path kNvlink{28e-6, 385e9, 3.7e-6}, kSharedMemory{5e-6, 10e9, 2e-6},
    kSocket{100e-6, 1e9, 20e-6}, kNcclPath{60e-6, 45e9, 30e-6};

// TMA stores to one GPU after the other over NVLink, as measured.
constexpr double kStoreRate = 340e9;

bool is_sm90_16_bit(const dispatch::Device& device, DType dtype) {
  return device.gpu != nullptr && device.gpu->facts().architecture == "sm_90a" &&
         size_of(dtype) == 2;
}

std::string microseconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g us", 1e6 * seconds);
  return text;
}

}  // namespace

double sm90_product_seconds(const MatmulProblem& problem, int32_t multiprocessors) {
  if (problem.m == 0 || problem.n == 0) return 0;
  return kLaunch + cuda::estimate_sm90_matmul(problem, multiprocessors) / kMultiprocessorRate;
}

double product_seconds(const dispatch::Device& device, const MatmulProblem& problem) {
  if (is_float8(problem.dtype) && is_sm90_16_bit(device, DType::kBF16)) {
    MatmulProblem wider = problem;
    wider.dtype = DType::kBF16;
    return sm90_product_seconds(wider, device.gpu->facts().multiprocessors) / kFloat8Speed;
  }
  if (is_sm90_16_bit(device, problem.dtype))
    return sm90_product_seconds(problem, device.gpu->facts().multiprocessors);
  const double flops = 2.0 * static_cast<double>(problem.batch) * static_cast<double>(problem.m) *
                       static_cast<double>(problem.n) * static_cast<double>(problem.k);
  return flops / rate_of(device, problem.dtype);
}

double attention_seconds(const dispatch::Device& device, DType dtype, double flops) {
  if (flops == 0) return 0;
  if (is_sm90_16_bit(device, dtype))
    return kLaunch + flops / (kAttentionRate * device.gpu->facts().multiprocessors);
  return flops / rate_of(device, dtype);
}

FusionForecast forecast_fusion(const dispatch::Device& device, const Group& group,
                               double product_seconds, double bytes, int64_t chunks) {
  const bool on_gpu = device.gpu != nullptr, shared = group.shares_memory();
  const int32_t spared = on_gpu ? NcclLinks::multiprocessors(group) : 0;
  const Path& path = spared > 0 ? kNcclPath : !shared ? kSocket : on_gpu ? kNvlink : kSharedMemory;
  const double transfer =
      group.size() == 1 || bytes == 0 ? 0 : path.latency + bytes / path.bytes_per_second;
  std::string assumed;
  if (is_assumed(device))
    assumed = concatenate(
        "; assumed: ", shared ? "NVLink" : "a network", " at ", path.bytes_per_second / 1e9,
        " GB/s after ", microseconds_text(path.latency),
        device.gpu->facts().architecture == "sm_90a" ? "" : ", and 100 TFLOP/s of a GPU");
  const char* staged = nullptr;
  if (on_gpu && !shared && spared == 0) staged = "data goes through memory of the hosts";
  return {.product = product_seconds,
          .transfer = transfer,
          .chunk = path.chunk,
          .chunks = chunks,
          .staged = staged,
          .spared = spared,
          .multiprocessors = on_gpu ? device.gpu->facts().multiprocessors : 0,
          .assumed = std::move(assumed)};
}

// On a GPU the product also sweeps the columns once for each: two are enough where it takes as long
// as several transfers. Signals of a chunk below kLeastBytes take as long as its bytes.
int64_t chunks_sent_by_gpu(int64_t depth, int32_t ranks, bool float8, int64_t shard_bytes) {
  constexpr int64_t kLeastBytes = 8 << 20;
  constexpr double kRate = 700e12, kFloat8Rate = 1200e12, kTransferRate = 350e9;  // Hopper, NVLink
  // Of an element of c.
  const double product = 2 * static_cast<double>(depth) / (float8 ? kFloat8Rate : kRate);
  const double transfer = 4 * (1 - 1.0 / ranks) / kTransferRate;
  return std::clamp(shard_bytes / kLeastBytes, int64_t{1},
                    product >= 4 * transfer ? int64_t{2} : kChunksSent);
}

int64_t head_groups(const AttentionShard& shard, double transfer) {
  constexpr int64_t kTileRows = 128, kFewestTiles = 256, kMostGroups = 8;
  const double tile = static_cast<double>(kTileRows) * static_cast<double>(shard.keys) *
                      shard.seen * static_cast<double>(shard.columns) / kMultiprocessorRate;
  const int64_t tiles = shard.heads * ceil_div(shard.rows, kTileRows);
  int64_t groups = 1;
  while (groups < kMostGroups && shard.kv_heads % (2 * groups) == 0 &&
         tiles / (2 * groups) >= kFewestTiles && 2 * transfer > tile * static_cast<double>(groups))
    groups *= 2;
  return groups;
}

bool backward_streams(const AttentionShard& shard, double transfer, int32_t multiprocessors) {
  // The share of the launch that blocks spend waiting for keys.
  constexpr double kWaits = 0.05;
  const double flops = 5 * static_cast<double>(shard.heads) * static_cast<double>(shard.rows) *
                       static_cast<double>(shard.keys) * shard.seen *
                       static_cast<double>(shard.columns);
  return transfer > kWaits * flops / (kAttentionRate * multiprocessors);
}

bool choose_fusion(uint32_t wanted, const FusionForecast& forecast, std::string* why) {
  if (forecast.staged != nullptr) {
    *why = concatenate("unfused: ", forecast.staged, ", predicted transfer ",
                       microseconds_text(forecast.transfer), ", ", forecast.computation, " ",
                       microseconds_text(forecast.product), forecast.assumed);
    return false;
  }
  const bool faster = forecast.fused() < forecast.unfused();
  const bool fused = wanted == PERSEID_FUSION_AUTO ? faster : wanted == PERSEID_FUSED;
  *why = concatenate(
      fused ? "fused" : "unfused", wanted == PERSEID_FUSION_AUTO ? "" : " as asked for",
      ": predicted ", microseconds_text(forecast.fused()), " fused and ",
      microseconds_text(forecast.unfused()), " unfused, ", forecast.computation, " ",
      microseconds_text(forecast.product), ", transfer ", microseconds_text(forecast.transfer),
      ", ", forecast.chunks, " chunks of ", microseconds_text(forecast.chunk));
  if (forecast.spared > 0)
    *why += concatenate(fused ? ", " : ", would leave ", forecast.spared, " of ",
                        forecast.multiprocessors, " multiprocessors",
                        fused ? " are left to NCCL" : " to NCCL");
  *why += forecast.assumed;
  return fused;
}

bool choose_stores(const FusionForecast& forecast, double bytes, int32_t ranks, std::string* why) {
  const char* const value = std::getenv("PERSEID_PEER_STORES");
  const bool asked =
      value != nullptr && (std::strcmp(value, "0") == 0 || std::strcmp(value, "1") == 0);
  const bool chosen = asked && *value == '1';
  *why =
      concatenate(chosen ? "TMA stores them in the memory of the others" : "copy engines send them",
                  asked ? " as PERSEID_PEER_STORES asks" : "", ": stores take ",
                  microseconds_text(bytes / kStoreRate), " of the ",
                  microseconds_text(forecast.product * (1 - 1.0 / ranks)),
                  " in which the others' shards are computed");
  return chosen;
}

}  // namespace perseid::internal::collective
