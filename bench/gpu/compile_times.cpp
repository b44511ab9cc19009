// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// compile-times kernels|plans [TEXT...]
//
// What it takes to compile uncommon variants of attention, those whose names contain one of the
// texts. `kernels`: each kernel by itself: milliseconds of NVRTC's front end, its optimiser and its
// assembler, milliseconds of the CPU, and bytes of the module. `plans`: seconds to make a plan with
// nothing cached and without a kernel pack, unless PERSEID_PACK names one, and of all CPUs, forward
// alone and with backward, on the first GPU, or, for compute capability 9.0 alone, with the fake
// driver of the tests in LD_LIBRARY_PATH.
#include <perseid/perseid.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "cuda/sm90/attention_backward_float32.hpp"

namespace perseid::internal::cuda {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  DType dtype;
  int64_t dim;
  bool window = false, bias = false, dropout = false, ragged = false, visible = false;
  bool deterministic = false;
  bool portable = false;
  bool full = false;  // without a causal mask
  int64_t kv_heads = 16;
};
constexpr DType kB = DType::kBF16, kH = DType::kF16, kF = DType::kF32, kD = DType::kF64;
constexpr Case kCases[] = {
    {.name = "bf16 64, window, bias, dropout",
     .dtype = kB,
     .dim = 64,
     .window = true,
     .bias = true,
     .dropout = true},
    {.name = "bf16 128, window, bias, dropout",
     .dtype = kB,
     .dim = 128,
     .window = true,
     .bias = true,
     .dropout = true},
    {.name = "bf16 128, ragged, visible, deterministic",
     .dtype = kB,
     .dim = 128,
     .ragged = true,
     .visible = true,
     .deterministic = true},
    {.name = "bf16 128, everything",
     .dtype = kB,
     .dim = 128,
     .window = true,
     .bias = true,
     .dropout = true,
     .ragged = true,
     .visible = true},
    {.name = "bf16 40", .dtype = kB, .dim = 40},
    {.name = "bf16 72", .dtype = kB, .dim = 72},
    {.name = "bf16 96, window", .dtype = kB, .dim = 96, .window = true},
    {.name = "bf16 160", .dtype = kB, .dim = 160},
    {.name = "bf16 192, dropout", .dtype = kB, .dim = 192, .dropout = true},
    {.name = "bf16 256, dropout", .dtype = kB, .dim = 256, .dropout = true},
    {.name = "bf16 512", .dtype = kB, .dim = 512},
    {.name = "bf16 128, ragged, 4 heads in a group",
     .dtype = kB,
     .dim = 128,
     .ragged = true,
     .kv_heads = 4},
    {.name = "bf16 128, ragged, window, 4 heads in a group",
     .dtype = kB,
     .dim = 128,
     .window = true,
     .ragged = true,
     .kv_heads = 4},
    {.name = "bf16 256, ragged, window, 2 heads in a group",
     .dtype = kB,
     .dim = 256,
     .window = true,
     .ragged = true,
     .kv_heads = 8},
    {.name = "bf16 64, bias, dropout, full",
     .dtype = kB,
     .dim = 64,
     .bias = true,
     .dropout = true,
     .full = true},
    {.name = "bf16 64, visible, dropout, full",
     .dtype = kB,
     .dim = 64,
     .dropout = true,
     .visible = true,
     .full = true},
    {.name = "bf16 72, ragged, full", .dtype = kB, .dim = 72, .ragged = true, .full = true},
    {.name = "bf16 112", .dtype = kB, .dim = 112},
    {.name = "f16 128, deterministic", .dtype = kH, .dim = 128, .deterministic = true},
    {.name = "f32 64, window, dropout", .dtype = kF, .dim = 64, .window = true, .dropout = true},
    {.name = "f32 128, window, dropout", .dtype = kF, .dim = 128, .window = true, .dropout = true},
    {.name = "portable bf16 64, window, bias, dropout",
     .dtype = kB,
     .dim = 64,
     .window = true,
     .bias = true,
     .dropout = true,
     .portable = true},
    {.name = "portable bf16 128, window, bias, dropout",
     .dtype = kB,
     .dim = 128,
     .window = true,
     .bias = true,
     .dropout = true,
     .portable = true},
    {.name = "portable bf16 72", .dtype = kB, .dim = 72, .portable = true},
    {.name = "portable bf16 256", .dtype = kB, .dim = 256, .portable = true},
    {.name = "portable f32 64, window, bias, dropout",
     .dtype = kF,
     .dim = 64,
     .window = true,
     .bias = true,
     .dropout = true,
     .portable = true},
    {.name = "portable f32 128, window, bias, dropout",
     .dtype = kF,
     .dim = 128,
     .window = true,
     .bias = true,
     .dropout = true,
     .portable = true},
    {.name = "f64 64, bias, dropout",
     .dtype = kD,
     .dim = 64,
     .bias = true,
     .dropout = true,
     .portable = true},
};
constexpr int64_t kLength = 4096, kHeads = 16, kBatch = 4;

AttentionProblem problem_of(const Case& each) {
  AttentionProblem problem;
  problem.dtype = each.dtype;
  problem.batch = kBatch;
  problem.heads = kHeads;
  problem.kv_heads = each.kv_heads;
  problem.q_len = problem.kv_len = kLength;
  problem.head_dim = problem.value_dim = each.dim;
  problem.scale = 0.1;
  problem.causal = each.full ? Causal::kNone : Causal::kBottomRight;
  if (each.window) problem.window_left = 1023;
  problem.dropout = each.dropout ? 0.1 : 0;
  problem.ragged = each.ragged;
  if (each.ragged) problem.total_q = problem.total_kv = kBatch * kLength;
  problem.visible = each.visible;
  problem.bias = problem.grad_bias = each.bias;
  problem.bias_dtype = each.dtype;
  if (each.bias)
    std::copy_n(std::begin({int64_t{1}, int64_t{1}, kLength, kLength}), 4, problem.bias_shape);
  problem.grad_query = problem.grad_key = problem.grad_value = true;
  problem.deterministic = each.deterministic;
  return problem;
}

std::vector<KernelNames> kernels_of(const Case& each, const GpuFacts& facts) {
  const AttentionProblem problem = problem_of(each);
  if (each.dtype == kD)
    return {Float64Attention::kernels_of(problem, facts),
            PortableAttentionBackward::kernels_of(problem, facts)};
  if (each.portable)
    return {PortableAttention::kernels_of(problem, facts),
            PortableAttentionBackward::kernels_of(problem, facts)};
  if (each.dtype == kF && refuse_float32_attention_backward(problem).empty())
    return {Sm90Attention::kernels_of(problem, facts),
            Sm90Float32AttentionBackward::kernels_of(problem, facts)};
  if (size_of(each.dtype) == 2 && !has_large_dims(problem))
    return {Sm90Attention::kernels_of(problem, facts),
            Sm90AttentionBackward::kernels_of(problem, facts)};
  return {Sm90Attention::kernels_of(problem, facts),
          PortableAttentionBackward::kernels_of(problem, facts)};
}

void die(const std::string& why) {
  std::fprintf(stderr, "compile-times: %s\n", why.c_str());
  std::exit(1);
}

// Of all threads.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// ---- Kernels ----

// The milliseconds of a phase in NVRTC's table of times, whose rows end with them and their unit.
double milliseconds(const std::string& path, const char* phase) {
  std::ifstream file(path);
  double sum = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(phase);
    if (at != std::string::npos) sum += std::atof(line.c_str() + at + std::strlen(phase) + 1);
  }
  return sum;
}

void time_kernels(const Case& each, const GpuFacts& facts, const fs::path& folder) {
  const std::string table = (folder / "times.csv").string(), option = "--time=" + table;
  for (const KernelNames& kernels : kernels_of(each, facts))
    for (const std::string& name : kernels.names) {
      fs::remove(table);
      Image image;
      const double begin = cpu_seconds();
      const Status status =
          compile({kernels.header, {name}, facts.architecture}, &image, nullptr, option.c_str());
      if (!status.ok()) die(status.sentence());
      const double taken = cpu_seconds() - begin;
      const size_t at = name.rfind("::", name.find('<')) + 2;
      std::printf("\"%s\",%s,%.0f,%.0f,%.0f,%.0f,%zu\n", each.name,
                  name.substr(at, name.find('<') - at).c_str(), milliseconds(table, "Frontend"),
                  milliseconds(table, "Optimizer"), milliseconds(table, "Translation"), 1e3 * taken,
                  image.code.size());
      std::fflush(stdout);
    }
}

// ---- Plans ----

struct Taken {
  double seconds, cpu_seconds;
};
Taken time_plan(const Case& each, bool backward, const fs::path& folder) {
  fs::remove_all(folder / "cache");
  perseid_context_options options{};
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = nullptr;
  if (perseid_context_create(&options, &context) != PERSEID_OK) die(perseid_last_error());
  const AttentionProblem problem = problem_of(each);
  perseid_attention_desc desc{};
  desc.struct_size = sizeof desc;
  desc.dtype = static_cast<uint32_t>(problem.dtype);
  desc.causal = each.full ? PERSEID_CAUSAL_NONE : PERSEID_CAUSAL_BOTTOM_RIGHT;
  desc.batch = problem.batch;
  desc.heads = problem.heads;
  desc.kv_heads = problem.kv_heads;
  desc.q_len = desc.kv_len = problem.q_len;
  desc.head_dim = desc.value_dim = problem.head_dim;
  desc.scale = problem.scale;
  desc.dropout = problem.dropout;
  desc.window = each.window ? 1 : 0;
  desc.window_left = 1023;
  desc.visible = each.visible ? 1 : 0;
  desc.bias = each.bias ? 1 : 0;
  desc.bias_dtype = desc.dtype;
  std::copy_n(problem.bias_shape, 4, desc.bias_shape);
  desc.ragged = each.ragged ? 1 : 0;
  desc.total_q = problem.total_q;
  desc.total_kv = problem.total_kv;
  desc.deterministic = each.deterministic ? 1 : 0;
  desc.implementation = each.portable ? "cuda:portable" : nullptr;
  if (backward) desc.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  if (backward && each.bias) desc.gradients |= PERSEID_GRAD_BIAS;
  perseid_plan_t plan = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = cpu_seconds();
  if (perseid_attention_plan_create(context, &desc, &plan) != PERSEID_OK)
    die(concatenate(each.name, ": ", perseid_last_error()));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const double cpu_taken = cpu_seconds() - cpu_begin;
  perseid_plan_destroy(plan);
  perseid_context_destroy(context);
  return {taken.count(), cpu_taken};
}

int run(bool plans, std::span<char*> texts) {
  const fs::path folder =
      fs::temp_directory_path() / ("perseid-compile-times-" + std::to_string(getpid()));
  fs::create_directories(folder);
  setenv("PERSEID_PACK", "", 0);
  setenv("PERSEID_CACHE_DIR", (folder / "cache").c_str(), 1);
  std::shared_ptr<Gpu> gpu;
  if (const Status status = Gpu::assume("sm_90", &gpu); !status.ok()) die(status.sentence());
  std::printf(plans ? "variant,forward s,CPU s,with backward s,CPU s\n"
                    : "variant,kernel,front end ms,optimiser ms,assembler ms,CPU ms,bytes\n");
  for (const Case& each : kCases) {
    const auto is_in_name = [&](const char* text) {
      return std::strstr(each.name, text) != nullptr;
    };
    if (!texts.empty() && std::none_of(texts.begin(), texts.end(), is_in_name)) continue;
    if (!plans) {
      time_kernels(each, gpu->facts(), folder);
      continue;
    }
    const Taken forward = time_plan(each, false, folder), both = time_plan(each, true, folder);
    std::printf("\"%s\",%.2f,%.2f,%.2f,%.2f\n", each.name, forward.seconds, forward.cpu_seconds,
                both.seconds, both.cpu_seconds);
    std::fflush(stdout);
  }
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace perseid::internal::cuda

int main(int argc, char** argv) {
  const std::string what = argc >= 2 ? argv[1] : "";
  if (what == "kernels" || what == "plans")
    return perseid::internal::cuda::run(what == "plans", std::span(argv + 2, argv + argc));
  std::fprintf(stderr, "usage: compile-times kernels|plans [TEXT...]\n");
  return 2;
}
