// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention.hpp"

#include <atomic>
#include <chrono>

#include "cuda/runtime/tensor_map.hpp"

namespace perseid::cuda {
namespace {

// ---- Which kernel ----

// The first line with room for both dims is taken. More rows reuse keys and values more often; more
// keys make fewer steps; the registers of results, scores and weights bound both, and so does
// shared memory.
struct Tiles {
  int key_dim, value_dim;
  int consumers, keys, slots;
};
constexpr Tiles kTiles[] = {
    {64, 64, 3, 128, 2},    //
    {96, 96, 3, 96, 2},     //
    {128, 128, 2, 128, 2},  //
    {192, 128, 2, 128, 1},  //
    {192, 192, 2, 96, 1},   //
    {256, 256, 2, 64, 1},   //
};
constexpr int64_t kLargestDim = 256, kDimUnit = 8;
constexpr int64_t kLongest = int64_t{1} << 30;  // positions and offsets between them in 32 bits

// Query heads are packed into rows until a tile is full or so many share it.
constexpr int kMostPacked = 4;  // 2^4: a warp's 16 rows are stored at once

// Keys and values of this many bytes stay in the L2 cache while the tiles of their heads are done.
constexpr int64_t kSectionBytes = 32'000'000;

int pack_of(const AttentionProblem& problem) {
  int pack = 0;
  while (pack < kMostPacked && problem.group() % (int64_t{2} << pack) == 0 &&
         problem.q_len << pack < 64)
    ++pack;
  return pack;
}

// Row q sees keys [q + left, q + right), cut to the sequence; without bounds far outside of it.
struct Offsets {
  int64_t left, right;
};
Offsets offsets_of(const AttentionProblem& problem) {
  const int64_t shift = problem.causal == Causal::kBottomRight ? problem.kv_len - problem.q_len : 0;
  Offsets offsets{-kLongest, kLongest};
  if (problem.window_left >= 0 && problem.window_left < kLongest)
    offsets.left = max(-kLongest, shift - problem.window_left);
  if (problem.window_right >= 0 && problem.window_right < kLongest)
    offsets.right = min(kLongest, shift + 1 + problem.window_right);
  if (problem.causal != Causal::kNone) offsets.right = min(offsets.right, shift + 1);
  return offsets;
}

// ---- Launches ----

// A number for each launch, even and not 0, that memory does not hold by chance (splitmix64).
uint64_t launch_number() {
  static std::atomic<uint64_t> state{
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  uint64_t x = state.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x = (x ^ (x >> 31)) & ~uint64_t{1};
  return x == 0 ? 2 : x;
}

// [batch, heads, rows, dim] as {dim, 2^pack heads, rows, heads >> pack, batch}.
BoxedTensor boxed(const Tensor& tensor, int pack, int box_rows) {
  const int64_t packed = int64_t{1} << pack;
  return {tensor.data,
          tensor.dtype,
          {tensor.shape[3], packed, tensor.shape[2], tensor.shape[1] >> pack, tensor.shape[0]},
          {tensor.stride[3], tensor.stride[1], tensor.stride[2], tensor.stride[1] << pack,
           tensor.stride[0]},
          {kChunk, 1 << pack, box_rows >> pack, 1, 1}};
}

}  // namespace

AttentionForwardConfig choose_attention_forward(const AttentionProblem& problem) {
  AttentionForwardConfig config;
  config.dtype = problem.dtype;
  config.key_dim = static_cast<int>(round_up(problem.head_dim, 16));
  config.value_dim = static_cast<int>(round_up(problem.value_dim, 16));
  for (const Tiles& tiles : kTiles) {
    if (problem.head_dim > tiles.key_dim || problem.value_dim > tiles.value_dim) continue;
    config.consumers = tiles.consumers;
    config.keys = tiles.keys;
    config.slots = tiles.slots;
    break;
  }
  const Offsets offsets = offsets_of(problem);
  config.left = offsets.left + problem.q_len - 1 > 0;
  config.right = offsets.right < problem.kv_len;
  // Three consumers waste more of the last tile, and of the diagonal ones.
  const int64_t rows = problem.q_len << pack_of(problem);
  if (config.consumers == 3 && (rows <= 128 || (config.right && rows <= 1024)))
    config.consumers = 2;
  return config;
}

std::string attention_forward_kernel(const AttentionForwardConfig& config) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return concatenate(
      "perseid::cuda::attention_forward<perseid::cuda::AttentionForwardConfig{.dtype = "
      "perseid::DType(",
      static_cast<int>(config.dtype), "), .key_dim = ", config.key_dim,
      ", .value_dim = ", config.value_dim, ", .consumers = ", config.consumers,
      ", .keys = ", config.keys, ", .stages = ", config.stages, ", .slots = ", config.slots,
      ", .right = ", flag(config.right), ", .left = ", flag(config.left), "}>");
}

std::string refuse_attention(const AttentionProblem& problem, const GpuFacts& facts) {
  if (facts.major != 9)
    return concatenate("made for compute capability 9.0, the GPU has ", facts.major, ".",
                       facts.minor);
  if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16)
    return concatenate("made for f16 and bf16, got ", name_of(problem.dtype));
  for (const int64_t dim : {problem.head_dim, problem.value_dim})
    if (dim % kDimUnit != 0 || dim > kLargestDim)
      return concatenate("made for head dims that are multiples of ", kDimUnit, " up to ",
                         kLargestDim, ", got head_dim ", problem.head_dim, " and value_dim ",
                         problem.value_dim);
  if (problem.backward()) return "has no backward yet, and gradients were asked for";
  if (problem.bias) return "takes no bias yet";
  if (problem.visible) return "takes no visible mask yet";
  if (problem.dropout > 0) return "has no dropout yet";
  if (problem.ragged) return "takes no ragged batch yet";
  if (problem.kv_lens) return "takes no kv_lens yet";
  if (!(problem.scale > 0)) return concatenate("made for positive scales, got ", problem.scale);
  if (problem.q_len > kLongest || problem.kv_len > kLongest)
    return concatenate("made for lengths up to ", kLongest, ", got q_len ", problem.q_len,
                       " and kv_len ", problem.kv_len);
  if (problem.batch * problem.heads > kLongest ||
      problem.batch * problem.heads * ceil_div(problem.q_len, 64) > kLongest)
    return concatenate("made for up to ", kLongest,
                       " tiles of 64 query rows in all heads, got batch ", problem.batch,
                       ", heads ", problem.heads, " and q_len ", problem.q_len);
  return "";
}

Status AttentionOnGpu::make(const AttentionProblem& problem, const AttentionForwardConfig& config,
                            Gpu& gpu, std::unique_ptr<AttentionOnGpu>* made) {
  std::unique_ptr<AttentionOnGpu> attention(new AttentionOnGpu(problem, gpu));
  attention->config_ = config;
  std::vector<Kernel> kernels;
  if (Status status =
          gpu.load(kAttentionForwardHeader, {attention_forward_kernel(config)}, &kernels);
      !status.ok())
    return status;
  attention->kernel_ = kernels[0];
  if (Status status = gpu.allow_shared(kernels[0], config.shared_bytes()); !status.ok())
    return status;

  AttentionForwardArguments& fixed = attention->fixed_;
  const int pack = pack_of(problem);
  const Offsets offsets = offsets_of(problem);
  fixed.q_len = static_cast<int32_t>(problem.q_len);
  fixed.kv_len = static_cast<int32_t>(problem.kv_len);
  fixed.pack = pack;
  fixed.heads = static_cast<int32_t>(problem.heads >> pack);
  fixed.group = static_cast<int32_t>(problem.group() >> pack);
  fixed.batch_heads = static_cast<int32_t>(problem.batch * (problem.heads >> pack));
  fixed.q_tiles = static_cast<int32_t>(ceil_div(problem.q_len << pack, int64_t{config.rows()}));
  fixed.tiles = fixed.batch_heads * fixed.q_tiles;
  fixed.left = static_cast<int32_t>(offsets.left);
  fixed.right = static_cast<int32_t>(offsets.right);
  fixed.scale_log2 = static_cast<float>(problem.scale * 1.4426950408889634);
  // Without a mask all tiles cost the same, and one head after another reads the least.
  int64_t section = 1;
  if (config.right) {
    const int64_t bytes = problem.kv_len * (problem.head_dim + problem.value_dim) * 2;
    while (2 * section * bytes <= kSectionBytes && section < fixed.batch_heads) section *= 2;
    section *= fixed.group;
  }
  fixed.heads_per_section =
      static_cast<int32_t>(min(section, max(int64_t{1}, int64_t{fixed.batch_heads})));
  *made = std::move(attention);
  return {};
}

size_t AttentionOnGpu::forward_workspace() const {
  return fixed_.tiles > gpu_.facts().multiprocessors ? sizeof(TileCounter) : 0;
}

Status AttentionOnGpu::map_tensors(const AttentionForward& tensors,
                                   AttentionForwardArguments* arguments) const {
  const int pack = fixed_.pack;
  // The copy engine knows no empty tensors. Keys that are not there are masked, whatever is read.
  const bool no_keys = problem_.kv_len == 0;
  const auto key_part = [&](const Tensor& tensor) {
    return boxed(no_keys ? tensors.query : tensor, 0, config_.keys);
  };
  Status status = make_tensor_map(gpu_, "attention forward: query", boxed(tensors.query, pack, 64),
                                  &arguments->query);
  if (status.ok())
    status =
        make_tensor_map(gpu_, "attention forward: key", key_part(tensors.key), &arguments->key);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: value", key_part(tensors.value),
                             &arguments->value);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: out", boxed(tensors.out, pack, 16),
                             &arguments->out);
  return status;
}

Status AttentionOnGpu::forward(const AttentionForward& tensors, std::byte* workspace,
                               void* stream) const {
  if (fixed_.tiles == 0) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  AttentionForwardArguments arguments = fixed_;
  if (Status status = map_tensors(tensors, &arguments); !status.ok()) return status;
  if (tensors.lse.present()) {
    arguments.lse = tensors.lse.as<float>();
    for (int d = 0; d < 3; ++d) arguments.lse_stride[d] = tensors.lse.stride[d];
  }
  arguments.counter = reinterpret_cast<TileCounter*>(workspace);
  arguments.launch = launch_number();
  const Launch launch{.blocks = min(fixed_.tiles, gpu_.facts().multiprocessors),
                      .threads = config_.threads(),
                      .shared_bytes = config_.shared_bytes()};
  return gpu_.launch(kernel_, launch, &arguments, stream);
}

std::string AttentionOnGpu::description() const {
  std::string text = concatenate("forward: tiles of ", config_.rows(), " queries and ",
                                 config_.keys, " keys, ", config_.consumers, " warpgroups");
  if (fixed_.pack > 0) text += concatenate(", ", 1 << fixed_.pack, " heads packed into rows");
  return text;
}

}  // namespace perseid::cuda
