// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/softmax.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Which kernel ----

// How a row is distributed over threads, from short to long: the first line that holds it is taken.
// `held`: the most vectors of 16 bytes of each tensor in a thread's registers; with `stages`, in
// shared memory (shared.hpp), at most stages * held of them. Measured on an H200: many small blocks
// overlap loads, exponentials and stores of different rows; 64 to 130 KiB of rows in the registers
// of a multiprocessor saturate memory, and 190 KiB in its shared memory with large clusters.
// Without clusters, lines of several blocks or of shared memory are skipped.
struct Spread {
  int lanes, warps, blocks, held, stages = 0;
};
// Lanes of a warp.
constexpr Spread kLanes[] = {
    {1, 1, 1, 2}, {2, 1, 1, 2}, {4, 1, 1, 2}, {8, 1, 1, 2}, {16, 1, 1, 2}, {32, 1, 1, 2},
};
// Blocks and clusters, up to the length from which streamed rows (below) are as fast.
constexpr Spread kForward[] = {
    {32, 1, 1, 4},  {32, 3, 1, 3},  {32, 2, 1, 5},  {32, 6, 1, 3},   {32, 3, 2, 6},
    {32, 9, 1, 4},  {32, 4, 3, 6},  {32, 4, 4, 6},  {32, 4, 6, 6},   {32, 3, 8, 11},
    {32, 4, 11, 9}, {32, 4, 16, 9}, {32, 8, 16, 9}, {32, 8, 16, 16},
};
constexpr Spread kForwardMasked[] = {
    {32, 1, 1, 5}, {32, 2, 1, 5}, {32, 4, 1, 5},  {32, 8, 1, 5},  {32, 8, 2, 5},
    {32, 8, 4, 5}, {32, 8, 8, 9}, {32, 8, 8, 16}, {32, 8, 16, 9}, {32, 8, 16, 16},
};
constexpr Spread kBackward[] = {
    {32, 4, 1, 1}, {32, 8, 1, 1}, {32, 16, 1, 1}, {32, 4, 3, 3},     {32, 6, 4, 3},
    {32, 9, 4, 4}, {32, 9, 8, 4}, {32, 8, 8, 8},  {32, 4, 16, 2, 9}, {32, 8, 16, 8},
};
// 16-bit elements: twice as many exponentials per byte.
constexpr Spread kForward16[] = {
    {32, 1, 1, 5},  {32, 2, 1, 5},   {32, 3, 1, 6},   {32, 6, 1, 6},
    {32, 3, 2, 11}, {32, 3, 3, 11},  {32, 3, 4, 11},  {32, 3, 6, 11},
    {32, 3, 8, 11}, {32, 3, 12, 11}, {32, 3, 16, 11}, {32, 4, 16, 4, 6},
};
constexpr Spread kForward16Masked[] = {
    {32, 1, 1, 5}, {32, 2, 1, 5}, {32, 3, 1, 6}, {32, 7, 1, 5},    {32, 8, 2, 5},
    {32, 4, 4, 9}, {32, 5, 5, 8}, {32, 4, 8, 9}, {32, 4, 8, 4, 4}, {32, 4, 16, 4, 4},
};
constexpr Spread kBackward16[] = {
    {32, 4, 1, 1}, {32, 8, 1, 1}, {32, 4, 2, 2}, {32, 5, 1, 4}, {32, 3, 3, 4},
    {32, 4, 6, 3}, {32, 8, 4, 4}, {32, 5, 5, 8}, {32, 8, 8, 8}, {32, 4, 16, 2, 9},
};
constexpr Spread kBackward16Masked[] = {
    {32, 4, 1, 1}, {32, 8, 1, 1}, {32, 5, 1, 4},    {32, 6, 2, 3},     {32, 9, 2, 4},
    {32, 8, 4, 4}, {32, 5, 5, 8}, {32, 4, 8, 2, 5}, {32, 4, 16, 2, 5}, {32, 8, 16, 2, 5},
};
// Without clusters. A larger `held` in backward would not fit into registers.
constexpr Spread kBlockForward[] = {{32, 16, 1, 8}}, kBlockBackward[] = {{32, 16, 1, 7}};
constexpr int kManyHeld = 5;

// Rows in chunks through shared memory (stream.hpp). `blocks`: of a multiprocessor.
struct Stream {
  int warps, held, blocks;
};
constexpr Stream kStreamForward = {24, 3, 1}, kStreamForward16 = {20, 3, 1},
                 kStreamForwardMasked = {8, 3, 2}, kStreamBackward = {16, 2, 1},
                 kStreamBackwardMasked = {8, 2, 2};

// Vectors of a chunk of a split row; more if a row had kManyChunks or more, since every block
// merges all chunks of its row.
constexpr int64_t kChunkVectors = 8192;
constexpr int64_t kManyChunks = 2048;
constexpr int64_t kLongestChunk = int64_t{1} << 28;  // vectors; positions in a chunk are 32 bit

SoftmaxConfig base_config(const SoftmaxProblem& problem) {
  SoftmaxConfig config{problem.dtype, problem.out_dtype};
  config.log = problem.log;
  config.masked = problem.visible;
  config.negative = problem.scale < 0;
  return config;
}

int cost_of(const SoftmaxConfig& config, bool backward) {
  return (backward ? 2 : 1) * (config.masked ? 2 : 1) * (config.doubles() ? 2 : 1);
}

// A line's `held`, reduced for kernels that need more registers than others.
int most_held(const SoftmaxConfig& config, bool backward, int held) {
  if (held <= kManyHeld) return held;
  if (config.doubles()) return held / 2;
  const bool masked16 = config.masked && config.vector() == 8;
  return masked16 ? min(held / (backward ? 2 : 1), 8) : held;
}

// Vectors of a row. A row whose length is no multiple of the vector may begin within one.
int64_t vectors_of(const SoftmaxProblem& problem, const SoftmaxConfig& config) {
  const int64_t length = problem.length(), vector = config.vector();
  return max(int64_t{1}, ceil_div(length % vector == 0 ? length : length + vector - 1, vector));
}

bool has_room(const Spread& spread, int64_t vectors, bool backward, SoftmaxConfig* config) {
  config->lanes = spread.lanes;
  config->warps = spread.warps;
  config->blocks = spread.blocks;
  config->held = spread.held;
  const int64_t held = ceil_div(vectors, config->row_threads());
  if (spread.stages > 0) {
    config->stages = static_cast<int>(ceil_div(held, spread.held));
    return config->stages <= spread.stages;
  }
  config->held = static_cast<int>(held);
  return held <= most_held(*config, backward, spread.held);
}

// Rows in registers or shared memory; with only_shared, in shared memory. False: no line fits.
bool choose_rows(const SoftmaxProblem& problem, bool backward, bool clusters, bool only_shared,
                 SoftmaxChoice* choice) {
  SoftmaxConfig& config = choice->config;
  config = base_config(problem);
  const int64_t vectors = vectors_of(problem, config);
  const bool half = config.vector() == 8;
  const auto choose_from = [&](std::span<const Spread> spreads) {
    for (const Spread& spread : spreads) {
      const bool shared = spread.stages > 0;
      if ((spread.blocks > 1 || shared) && !clusters) continue;
      if (shared ? config.doubles() : only_shared) continue;
      config.stages = 0;
      if (!has_room(spread, vectors, backward, &config)) continue;
      choice->kind = shared ? SoftmaxKind::kShared : SoftmaxKind::kRows;
      return true;
    }
    return false;
  };
  using Spreads = std::span<const Spread>;
  const Spreads forward16 = config.masked ? Spreads(kForward16Masked) : kForward16;
  const Spreads forward32 = config.masked ? Spreads(kForwardMasked) : kForward;
  const Spreads backward16 = config.masked ? Spreads(kBackward16Masked) : kBackward16;
  const Spreads blocks = backward ? (half ? backward16 : kBackward) : half ? forward16 : forward32;
  return choose_from(kLanes) || choose_from(blocks) ||
         (!clusters && choose_from(backward ? Spreads(kBlockBackward) : kBlockForward));
}

// Elements of each chunk of a row but the last: a multiple of 32 vectors, for the alignment of bulk
// copies.
int64_t shared_chunk(const SoftmaxProblem& problem, const SoftmaxConfig& config) {
  const int64_t vectors = vectors_of(problem, config);
  return round_up(ceil_div(vectors, int64_t{config.blocks}), int64_t{32}) * config.vector();
}
int64_t stream_chunk(const SoftmaxProblem& problem, const SoftmaxConfig& config) {
  const int64_t vectors = vectors_of(problem, config);
  const int64_t chunks = ceil_div(vectors, config.capacity());
  return round_up(ceil_div(vectors, chunks), int64_t{32}) * config.vector();
}
int64_t stream_chunks(const SoftmaxProblem& problem, const SoftmaxConfig& config) {
  return ceil_div(vectors_of(problem, config) * config.vector(), stream_chunk(problem, config));
}

// False if a row had more than two chunks per block: then reading it twice is faster.
bool choose_stream(const SoftmaxProblem& problem, bool backward, const GpuFacts& gpu,
                   SoftmaxConfig* config) {
  *config = base_config(problem);
  if (!gpu.has_clusters() || config->doubles()) return false;
  const Stream& stream = config->masked ? (backward ? kStreamBackwardMasked : kStreamForwardMasked)
                         : backward     ? kStreamBackward
                         : config->vector() == 8 ? kStreamForward16
                                                 : kStreamForward;
  config->warps = stream.warps;
  config->held = stream.held;
  // As many stages as shared memory holds; two thirds of them wait for the rest of their rows.
  const auto fits = [&](int stages) {
    config->stages = stages;
    config->lag = 2 * stages / 3;
    return config->stream_resident(backward) >= stream.blocks;
  };
  int stages = 3;
  while (fits(stages + 1)) ++stages;
  const int64_t blocks = fits(stages) ? int64_t{stream.blocks} * gpu.multiprocessors : 0;
  return stream_chunks(problem, *config) <= 2 * blocks;
}

SoftmaxConfig choose_split(const SoftmaxProblem& problem, bool backward) {
  SoftmaxConfig config = base_config(problem);
  config.warps = 16;
  config.held = (backward ? 2 : 4) / (config.doubles() ? 2 : 1);
  return config;
}

SoftmaxConfig choose_columns(const SoftmaxProblem& problem, bool backward) {
  SoftmaxConfig config = base_config(problem);
  const int64_t length = max(problem.length(), int64_t{1});
  const int64_t held = max(1, 16 / cost_of(config, backward));
  const int most_warps = config.doubles() ? 16 : 32;
  for (config.warps = 4; config.warps <= most_warps; config.warps *= 2) {
    if (length > held * config.warps) continue;
    config.held = static_cast<int>(ceil_div(length, config.warps));
    return config;
  }
  config.warps = 16;
  config.held = 0;
  return config;
}

std::string describe(const SoftmaxChoice& choice) {
  const SoftmaxConfig& config = choice.config;
  switch (choice.kind) {
    case SoftmaxKind::kStream:
      return concatenate("in chunks of ", config.capacity(), " vectors by the whole GPU, ",
                         config.stages, " of them in a block's shared memory, read once");
    case SoftmaxKind::kSplit:
      return "in chunks, two kernels, rows read twice";
    case SoftmaxKind::kColumns:
      return concatenate("32 rows for a block of ", config.warps, " warps, ",
                         config.held > 0 ? "read once" : "read twice");
    case SoftmaxKind::kRows:
    case SoftmaxKind::kShared:
      break;
  }
  std::string text = "a row for ";
  if (config.blocks > 1)
    text += concatenate("a cluster of ", config.blocks, " blocks of ", config.warps, " warps");
  else if (config.warps > 1)
    text += concatenate("a block of ", config.warps, " warps");
  else
    text += concatenate(config.lanes, config.lanes == 1 ? " lane" : " lanes");
  const int held = config.held * max(config.stages, 1);
  text += concatenate(", ", held, held == 1 ? " vector" : " vectors", " a thread");
  if (choice.kind == SoftmaxKind::kShared) text += " in shared memory";
  return text;
}

// ---- Arguments of a launch ----

struct Part {
  const Tensor* tensor;
  RowsOf* rows;
};

// The tensors as rows: drops outer dimensions of size 1 and merges those that are contiguous in
// every tensor.
void lay_out(const SoftmaxProblem& problem, SoftmaxKind kind, std::span<const Part> parts,
             SoftmaxArguments* arguments) {
  int32_t order[kMaxDims];
  int32_t dims = 0;
  for (int32_t d = 0; d < problem.rank; ++d)
    if (d != problem.dim && problem.shape[d] != 1) order[dims++] = d;
  const Tensor& first = *parts.front().tensor;
  // Adjacent lanes take rows that are adjacent in memory: the dimension of smallest stride is last.
  if (kind == SoftmaxKind::kColumns)
    std::stable_sort(order, order + dims, [&](int32_t a, int32_t b) {
      return std::abs(first.stride[a]) > std::abs(first.stride[b]);
    });

  int64_t sizes[kMaxDims];
  int32_t merged = 0;
  for (int32_t i = 0; i < dims; ++i) {
    const int32_t d = order[i];
    bool contiguous = merged > 0;
    for (const Part& part : parts)
      contiguous =
          contiguous && part.rows->stride[merged - 1] == problem.shape[d] * part.tensor->stride[d];
    if (contiguous) {
      sizes[merged - 1] *= problem.shape[d];
    } else {
      sizes[merged++] = problem.shape[d];
    }
    for (const Part& part : parts) part.rows->stride[merged - 1] = part.tensor->stride[d];
  }
  for (const Part& part : parts) {
    part.rows->data = part.tensor->data;
    part.rows->step = part.tensor->stride[problem.dim];
  }
  for (int32_t i = 0; i < merged; ++i) arguments->outer[i] = divisor_of(sizes[i]);
  arguments->outer_dims = merged;
  arguments->rows = problem.rows();
  arguments->length = problem.length();
  arguments->dense = merged <= 1;
  for (const Part& part : parts)
    if (part.rows != &arguments->lse)
      arguments->dense = arguments->dense && part.rows->step == 1 &&
                         (merged == 0 || part.rows->stride[0] == problem.length());
  arguments->wide = arguments->rows > INT32_MAX;
  arguments->empty_rows_nan = problem.empty_rows_nan;
  arguments->scale = problem.scale;
}

}  // namespace

SoftmaxChoice choose_softmax(SoftmaxKind kind, const SoftmaxProblem& problem, bool backward,
                             const GpuFacts& gpu) {
  if (kind == SoftmaxKind::kColumns) return {kind, choose_columns(problem, backward)};
  SoftmaxChoice choice{};
  if ((kind == SoftmaxKind::kRows || kind == SoftmaxKind::kShared) &&
      choose_rows(problem, backward, gpu.has_clusters(), kind == SoftmaxKind::kShared, &choice))
    return choice;
  if (kind != SoftmaxKind::kSplit && choose_stream(problem, backward, gpu, &choice.config))
    return {SoftmaxKind::kStream, choice.config};
  return {SoftmaxKind::kSplit, choose_split(problem, backward)};
}

const char* softmax_header(SoftmaxKind kind) {
  switch (kind) {
    case SoftmaxKind::kRows:
      return "cuda/device/softmax/rows.hpp";
    case SoftmaxKind::kShared:
      return "cuda/device/softmax/shared.hpp";
    case SoftmaxKind::kStream:
      return "cuda/device/softmax/stream.hpp";
    case SoftmaxKind::kSplit:
      return "cuda/device/softmax/split.hpp";
    case SoftmaxKind::kColumns:
      break;
  }
  return "cuda/device/softmax/columns.hpp";
}

std::vector<std::string> softmax_kernels(const SoftmaxChoice& choice, bool backward) {
  const char* direction = backward ? "backward" : "forward";
  std::vector<std::string> names;
  switch (choice.kind) {
    case SoftmaxKind::kRows:
      names = {concatenate("softmax_rows_", direction)};
      break;
    case SoftmaxKind::kShared:
      names = {concatenate("softmax_shared_", direction)};
      break;
    case SoftmaxKind::kStream:
      names = {"softmax_stream_clear", concatenate("softmax_stream_", direction)};
      break;
    case SoftmaxKind::kSplit:
      names = {concatenate("softmax_split_", backward ? "gradient_sums" : "statistics"),
               concatenate("softmax_split_", direction)};
      break;
    case SoftmaxKind::kColumns:
      names = {concatenate("softmax_columns_", direction)};
      break;
  }
  for (std::string& name : names) name = kernel_name(name, choice.config);
  return names;
}

bool softmax_fits_rows(const SoftmaxProblem& problem, const GpuFacts& gpu) {
  return choose_softmax(SoftmaxKind::kRows, problem, false, gpu).kind != SoftmaxKind::kSplit;
}

bool softmax_is_innermost(const SoftmaxProblem& problem) {
  for (int32_t d = problem.dim + 1; d < problem.rank; ++d)
    if (problem.shape[d] != 1) return false;
  return true;
}

Status CudaSoftmax::make(SoftmaxKind kind, const SoftmaxProblem& problem, Gpu& gpu,
                         std::unique_ptr<CudaSoftmax>* made) {
  std::unique_ptr<CudaSoftmax> softmax(new CudaSoftmax(problem, gpu));
  for (const bool backward : {false, true}) {
    Direction& direction = backward ? softmax->backward_ : softmax->forward_;
    direction.choice = choose_softmax(kind, problem, backward, gpu.facts());
    const SoftmaxChoice& choice = direction.choice;
    if (Status status = gpu.load(softmax_header(choice.kind), softmax_kernels(choice, backward),
                                 &direction.kernels);
        !status.ok())
      return status;
    if (choice.kind == SoftmaxKind::kShared) {
      direction.chunks = choice.config.blocks;
      direction.chunk = shared_chunk(problem, choice.config);
      if (Status status =
              gpu.allow_shared(direction.kernels[0], choice.config.shared_bytes(backward));
          !status.ok())
        return status;
    }
    if (choice.kind == SoftmaxKind::kStream) {
      direction.chunk = stream_chunk(problem, choice.config);
      direction.chunks = stream_chunks(problem, choice.config);
      const int bytes = choice.config.stream_bytes(backward);
      if (Status status = gpu.allow_shared(direction.kernels[1], bytes); !status.ok())
        return status;
    }
    if (choice.kind != SoftmaxKind::kSplit) continue;
    const int64_t vector = choice.config.vector();
    int64_t chunk = kChunkVectors;
    while (chunk < kLongestChunk && problem.length() / vector / chunk >= kManyChunks) chunk *= 2;
    direction.chunk = chunk * vector;
    direction.chunks = max(int64_t{1}, ceil_div(problem.length(), direction.chunk));
  }
  *made = std::move(softmax);
  return {};
}

size_t CudaSoftmax::workspace(bool backward) const {
  const Direction& direction = backward ? backward_ : forward_;
  const auto chunks = static_cast<size_t>(problem_.rows() * direction.chunks);
  if (direction.choice.kind == SoftmaxKind::kStream) return 8 * (1 + chunks);
  if (direction.choice.kind != SoftmaxKind::kSplit) return 0;
  const size_t real = problem_.compute_dtype() == DType::kF64 ? 8 : 4;
  return chunks * real * (backward ? 1 : 2);
}

Status CudaSoftmax::run(const Direction& direction, SoftmaxArguments& arguments,
                        std::byte* workspace, void* stream) const {
  if (arguments.rows == 0) return {};
  const SoftmaxConfig& config = direction.choice.config;
  const bool backward = &direction == &backward_;
  const int64_t chunks = arguments.rows * direction.chunks;
  arguments.partial = workspace;
  arguments.chunk = direction.chunk;
  arguments.chunks = direction.chunks;
  Launch launch{.threads = config.threads()}, before;
  switch (direction.choice.kind) {
    case SoftmaxKind::kRows:
      launch.cluster = config.blocks;
      launch.blocks = ceil_div(arguments.rows, int64_t{config.groups()}) * config.blocks;
      break;
    case SoftmaxKind::kShared:
      launch.cluster = config.blocks;
      launch.blocks = chunks;
      launch.shared_bytes = config.shared_bytes(backward);
      break;
    case SoftmaxKind::kStream: {
      const int64_t all = gpu_.facts().multiprocessors;
      arguments.chunks_of_row = divisor_of(direction.chunks);
      before = {.blocks = min(all, ceil_div(chunks, int64_t{1024})), .threads = 1024};
      launch.threads = config.stream_threads();
      launch.blocks = min(chunks, all * config.stream_resident(backward));
      launch.shared_bytes = config.stream_bytes(backward);
      launch.cooperative = true;
      break;
    }
    case SoftmaxKind::kSplit:
      launch.blocks = chunks;
      before = launch;
      break;
    case SoftmaxKind::kColumns:
      launch.threads = 32 * config.warps;
      launch.blocks = ceil_div(arguments.rows, 32);
      break;
  }
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  if (direction.kernels.size() > 1)
    if (Status status = gpu_.launch(direction.kernels.front(), before, &arguments, stream);
        !status.ok())
      return status;
  return gpu_.launch(direction.kernels.back(), launch, &arguments, stream);
}

Status CudaSoftmax::forward(const SoftmaxForward& tensors, std::byte* workspace,
                            void* stream) const {
  SoftmaxArguments arguments;
  Part parts[4] = {{&tensors.input, &arguments.first}, {&tensors.output, &arguments.result}};
  size_t count = 2;
  if (tensors.visible.present()) parts[count++] = {&tensors.visible, &arguments.visible};
  if (tensors.lse.present()) parts[count++] = {&tensors.lse, &arguments.lse};
  lay_out(problem_, forward_.choice.kind, {parts, count}, &arguments);
  return run(forward_, arguments, workspace, stream);
}

Status CudaSoftmax::backward(const SoftmaxBackward& tensors, std::byte* workspace,
                             void* stream) const {
  SoftmaxArguments arguments;
  Part parts[4] = {{&tensors.grad_output, &arguments.first},
                   {&tensors.output, &arguments.second},
                   {&tensors.grad_input, &arguments.result}};
  size_t count = 3;
  if (tensors.visible.present()) parts[count++] = {&tensors.visible, &arguments.visible};
  lay_out(problem_, backward_.choice.kind, {parts, count}, &arguments);
  return run(backward_, arguments, workspace, stream);
}

std::string CudaSoftmax::description() const {
  return concatenate("forward: ", describe(forward_.choice),
                     "; backward: ", describe(backward_.choice));
}

}  // namespace perseid::internal::cuda
