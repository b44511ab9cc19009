// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_backward.hpp"

#include "cuda/runtime/kernel_name.hpp"
#include "cuda/runtime/launch_number.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward_bias.hpp"
#include "cuda/sm90/attention_boxes.hpp"
#include "cuda/sm90/backward_order.hpp"
#include "math/leaf_tree.hpp"

namespace perseid::internal::cuda {
namespace {

// The first line that holds both dims is taken. dK, dV, scores and dS share the registers of a
// consumer: where both dK and dV fit, each consumer has its own keys.
struct Tiles {
  int dim;  // of both
  int queries;
  bool split_keys;
};
constexpr Tiles kTiles[] = {
    {64, 128, true},
    {128, 64, true},
    {256, 64, false},
};

// A section's queries, gradients of out and sums of dQ: this many bytes stay in the L2 cache.
constexpr int64_t kSectionBytes = 1 << 25;
// In deterministic mode under a causal mask one head of so many is reversed, in canonical order
// all.
constexpr int32_t kHeadsForOneReversed = 8;
// Clusters: where tiles are of unequal work and a batch entry has few of them, two blocks share the
// query heads of a tile, or four where two would not fill the device, up to these numbers of
// blocks. Sections are larger then, so that long tiles of many heads start before short ones of
// any, even if less stays in the L2 cache.
constexpr int64_t kBlocksInPairs = 4096, kBlocksInFours = 256;
constexpr int64_t kSectionBytesOfClusters = 1 << 26;

// ---- Canonical order ----

int64_t leaves_of(const QueryRows& rows) { return kLeaves / rows.ranks; }
// Those of a rank.
int64_t pieces_of(const QueryRows& rows) { return leaves_of(rows) * (rows.zigzag ? 2 : 1); }

QueryLeaves leaves_of(const AttentionProblem& problem, const AttentionBackwardConfig& config) {
  const auto buffers_of = [&](int64_t dim) {
    const int64_t head = problem.kv_len * dim;
    return RowsInMemory{nullptr, {problem.kv_heads * head, head, dim, 1}};
  };
  return {.count = static_cast<int32_t>(leaves_of(problem.rows)),
          .blocks = static_cast<int32_t>(problem.q_len / pieces_of(problem.rows) / config.queries),
          .mirrored = problem.rows.zigzag,
          .grad_key = buffers_of(problem.head_dim),
          .grad_value = buffers_of(problem.value_dim)};
}

}  // namespace

AttentionBackwardConfig choose_attention_backward(const AttentionProblem& problem) {
  AttentionBackwardConfig config;
  config.dtype = problem.dtype;
  config.key_dim = static_cast<int>(round_up(problem.head_dim, 16));
  config.value_dim = static_cast<int>(round_up(problem.value_dim, 16));
  config.lengths = has_lengths(problem);
  config.visible = problem.visible;
  config.bias = problem.bias ? problem.bias_dtype : DType::kNone;
  config.modifier = problem.modifier.kind;
  // Operands that are read from memory for each score need registers, too.
  config.dropout = has_dropout(problem);
  const bool busy = config.visible || (config.dropout && problem.bias) ||
                    config.modifier != ScoreModifierKind::kNone;
  const bool biased = config.bias != DType::kNone;
  // In canonical order nothing depends on how many leaves a rank has.
  config.leaves = problem.rows.canonical;
  // The other gradients are complete in one block, whose steps have one order unless blocks share a
  // cursor.
  config.deterministic =
      (problem.deterministic || config.leaves) && problem.grad_query && problem.q_len > 0;
  config.grad_bias = problem.grad_bias;
  // A gradient that accumulates is not stored with its tile.
  config.accumulate_bias = problem.grad_bias && problem.accumulate_bias;
  config.bias_whole =
      biased && !config.accumulate_bias && !problem.ragged && !problem.q_lens &&
      problem.bias_shape[0] == problem.batch && problem.bias_shape[1] == problem.heads &&
      problem.bias_shape[2] == problem.q_len && problem.bias_shape[3] == problem.kv_len;
  constexpr int kTileNumber = 1024;  // static shared memory, where blocks fetch their tiles
  const int most = kMostShared - (config.deterministic ? kTileNumber : 0);
  for (const Tiles& tiles : kTiles) {
    AttentionBackwardConfig fit = config;
    fit.queries = tiles.queries;
    fit.split_keys = tiles.split_keys;
    if (max(fit.key_dim, fit.value_dim) > tiles.dim) continue;
    if (busy && tiles.queries > 64) continue;
    // A score modifier must not see the bias, which the accumulators would begin with, and its
    // gradient is not that of the bias.
    if (biased && tiles.split_keys && config.modifier == ScoreModifierKind::kNone)
      fit.bias_stages = 2;
    if (fit.shared_bytes() > most) {
      if (tiles.queries > 64) continue;
      fit.bias_stages = 0;
    }
    config = fit;
    break;
  }
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;
  config.clusters = backward_cluster_log2(problem, config) > 0;
  // Tiles of bias leave no shared memory for the cursor.
  config.shared_cursor = !config.masked() && !problem.deterministic && config.split_keys &&
                         !biased && problem.group() > 1 && !config.leaves;
  config.grad_query = problem.grad_query;
  config.grad_key = problem.grad_key;
  config.grad_value = problem.grad_value;
  config.accumulate_query = problem.accumulate_query;
  config.accumulate_key = problem.accumulate_key;
  config.accumulate_value = problem.accumulate_value;
  config.sharded = !problem.rows.all() || config.leaves;
  config.rank_pieces = has_ragged_pieces(problem);
  config.f32_key_gradients = problem.f32_key_gradients;
  config.async = problem.async_backward;
  return config;
}

std::vector<std::string> attention_backward_kernels(const AttentionBackwardConfig& config) {
  std::vector<std::string> kernels = {kernel_name("attention_backward_prepare", config),
                                      kernel_name("attention_backward", config)};
  if (config.grad_query) kernels.push_back(kernel_name("attention_backward_finish", config));
  if (config.grad_bias) kernels.push_back(kernel_name("attention_backward_bias", config.of_bias()));
  if (config.leaves) kernels.push_back(kernel_name("attention_backward_leaves", config));
  return kernels;
}

std::string refuse_attention_backward(const AttentionProblem& problem) {
  int64_t tiles = problem.ragged ? problem.total_kv / 64 + problem.batch
                                 : problem.batch * ceil_div(problem.kv_len, 64);
  if (problem.rows.canonical) {
    if (problem.ragged || problem.grad_bias || problem.accumulate_key || problem.accumulate_value ||
        kLeaves % problem.rows.ranks != 0)
      return "its gradients in canonical order are made for 1, 2, 4 or 8 ranks, without ragged "
             "batches, that of bias and sums that accumulate";
    const int64_t pieces = pieces_of(problem.rows);
    if (problem.q_len % (pieces * kPieceUnit) != 0)
      return concatenate(
          "its gradients in canonical order are made for queries of a rank that are ",
          "a multiple of ", pieces * kPieceUnit, ", got q_len ", problem.q_len);
    tiles *= leaves_of(problem.rows);
  }
  if (tiles * problem.kv_heads > kLongest)
    return concatenate("its backward is made for up to ", kLongest,
                       " tiles of 64 keys in all heads, got batch ", problem.batch, ", kv_heads ",
                       problem.kv_heads, ", kv_len ", problem.kv_len, " and total_kv ",
                       problem.total_kv);
  if (problem.grad_bias) {
    const AttentionBackwardConfig config = choose_attention_backward(problem);
    if (std::string why = refuse_bias_tiles(problem, config.queries, config.of_bias().keys());
        !why.empty())
      return why;
  }
  if (problem.async_backward &&
      (!problem.f32_key_gradients || problem.grad_bias || has_lengths(problem) ||
       (problem.deterministic && problem.grad_query)))
    return "its backward over arriving chunks is made without grad_bias, lengths and deterministic";
  return "";
}

Sm90AttentionBackward::~Sm90AttentionBackward() { release(gpu_, order_); }

int32_t backward_cluster_log2(const AttentionProblem& problem,
                              const AttentionBackwardConfig& config) {
  const int64_t tiles = problem.kv_heads * ceil_div(problem.kv_len, int64_t{config.keys()});
  int32_t log2 = 0;
  if (config.right && !problem.grad_bias && tiles > 0)
    for (const int64_t blocks : {kBlocksInPairs, kBlocksInFours})
      if (const int64_t size = int64_t{2} << log2;
          size * tiles <= blocks && problem.group() % size == 0)
        ++log2;
  return log2;
}

AttentionBackwardArguments attention_backward_arguments(const AttentionProblem& problem,
                                                        const AttentionBackwardConfig& config,
                                                        int32_t cluster_log2) {
  AttentionBackwardArguments fixed;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.kv_heads = static_cast<int32_t>(problem.kv_heads);
  // Ragged: padded positions, some of them empty (device/attention/sequence.hpp).
  const auto blocks = [&](int64_t length, int64_t total, int64_t size, int64_t pieces) {
    const int64_t padded = problem.batch > 0 ? total / size + problem.batch * pieces : 0;
    return static_cast<int32_t>(problem.ragged ? padded : ceil_div(length, size));
  };
  fixed.q_blocks = blocks(problem.q_len, problem.total_q, config.queries, fixed.two_pieces ? 2 : 1);
  fixed.k_tiles = blocks(problem.kv_len, problem.total_kv, config.keys(), 1);
  fixed.cluster_log2 = cluster_log2;
  fixed.scale = static_cast<float>(problem.scale);
  fixed.modifier = static_cast<float>(problem.modifier.value);
  fixed.batch_heads = static_cast<int32_t>((problem.ragged ? 1 : problem.batch) * problem.kv_heads);
  fixed.by_head = !problem.ragged && (config.reverse_order() ||
                                      (problem.bias && problem.bias_shape[0] != problem.batch));
  fixed.forward_heads = config.leaves ? 0 : fixed.kv_heads - fixed.kv_heads / kHeadsForOneReversed;
  // Without a mask all tiles cost the same, and one head after another reads the least.
  int64_t section = 1;
  if (config.right || config.deterministic) {
    const int64_t bytes =
        problem.group() * problem.q_len * (problem.head_dim * 6 + problem.value_dim * 2);
    const int64_t most = config.clusters ? kSectionBytesOfClusters : kSectionBytes;
    while (2 * section * bytes <= most && section < fixed.batch_heads) section *= 2;
  }
  fixed.heads_per_section =
      static_cast<int32_t>(clamp(section, int64_t{1}, max(int64_t{1}, int64_t{fixed.batch_heads})));
  if (config.leaves) fixed.leaves = leaves_of(problem, config);
  fixed.dq_contributors = static_cast<uint64_t>(
      (int64_t{fixed.k_tiles} * fixed.leaves.count << cluster_log2) * config.kConsumers);
  return fixed;
}

Status Sm90AttentionBackward::make(const AttentionProblem& problem,
                                   const AttentionBackwardConfig& config, Gpu& gpu,
                                   std::unique_ptr<Sm90AttentionBackward>* made) {
  std::unique_ptr<Sm90AttentionBackward> backward(new Sm90AttentionBackward(problem, gpu));
  backward->config_ = config;
  if (Status status = gpu.load(kAttentionBackwardHeader, attention_backward_kernels(config),
                               &backward->kernels_);
      !status.ok())
    return status;
  if (Status status = gpu.allow_shared(backward->kernels_[1], config.shared_bytes()); !status.ok())
    return status;
  if (config.grad_bias) {
    if (Status status =
            gpu.allow_shared(backward->kernels_.back(), config.of_bias().unit_shared_bytes());
        !status.ok())
      return status;
  }

  backward->fixed_ =
      attention_backward_arguments(problem, config, backward_cluster_log2(problem, config));
  backward->bias_ = divide_bias(problem, config.queries, config.of_bias().keys());
  backward->lay_out();
  if (config.async)
    if (Status status = backward->make_order(); !status.ok()) return status;
  *made = std::move(backward);
  return {};
}

Status Sm90AttentionBackward::make_order() {
  fixed_.heads_of_arrival = static_cast<int32_t>(problem_.heads_of_arrival());
  const std::vector<int32_t> order =
      backward_order(problem_, {.keys = config_.keys(),
                                .queries = config_.queries,
                                .heads = fixed_.batch_heads,
                                .heads_per_section = fixed_.heads_per_section,
                                .cluster_size = int64_t{1} << fixed_.cluster_log2,
                                .multiprocessors = gpu_.facts().multiprocessors});
  Status status = chunks_.upload(problem_);
  if (!status.ok() || order.empty() || gpu_.facts().assumed) return status;
  void* memory = nullptr;
  const size_t bytes = order.size() * sizeof(int32_t);
  status = allocate(gpu_, bytes, &memory);
  if (!status.ok()) return status;
  fixed_.order = order_ = static_cast<int32_t*>(memory);
  return copy(gpu_, memory, order.data(), bytes, nullptr);
}

Status Sm90AttentionBackward::set_chunks(const AttentionBackward& tensors, std::byte* workspace,
                                         void* stream,
                                         AttentionBackwardArguments* arguments) const {
  AsyncArguments& async = arguments->async;
  Status status = chunks_.fill("attention backward", tensors.arrival_kv, stream, &async);
  if (!status.ok()) return status;
  async.arrivals[0].waits = nullptr;  // its table has one entry for all groups of heads
  async.departure = {.signals = tensors.departure_kv.signals,
                     .epoch_ptr = tensors.departure_kv.epoch_ptr,
                     .chunks = async.arrivals[0].chunks,
                     .epoch = tensors.departure_kv.epoch};
  async.failed = reinterpret_cast<uint64_t*>(workspace + layout_.failed);
  return status;
}

int64_t Sm90AttentionBackward::blocks_of_queries(const AttentionBackwardArguments& fixed) const {
  return (problem_.ragged ? 1 : problem_.batch) * problem_.heads * fixed.q_blocks;
}

void Sm90AttentionBackward::lay_out() {
  const auto blocks = static_cast<size_t>(blocks_of_queries(fixed_));
  const size_t row_bytes = blocks * static_cast<size_t>(config_.queries) * sizeof(float);
  layout_.delta = row_bytes;
  layout_.sums = layout_.dq_semaphore = (config_.clears_nonfinite() ? 4 : 2) * row_bytes;
  if (config_.grad_query)
    layout_.dq_semaphore += blocks * static_cast<size_t>(config_.block_floats()) * sizeof(float);
  layout_.complete = layout_.dq_semaphore;
  if (config_.deterministic)
    layout_.complete += blocks * static_cast<size_t>(config_.kConsumers) * sizeof(uint64_t);
  const auto heads =
      static_cast<size_t>(problem_.batch * (fixed_.two_pieces ? 2 : 1) * problem_.kv_heads);
  layout_.cursor = layout_.complete + (config_.finishes_early() ? heads * sizeof(uint64_t) : 0);
  layout_.timed_out = layout_.cursor + (config_.shared_cursor ? heads * sizeof(uint64_t) : 0);
  layout_.tile = layout_.timed_out + sizeof(uint64_t);
  layout_.arrived = layout_.tile + (config_.deterministic ? sizeof(uint32_t) : 0);
  layout_.nonfinite_queries =
      layout_.arrived + static_cast<size_t>(bias_.bias_blocks) * sizeof(uint32_t);
  layout_.nonfinite_keys = layout_.split_sums = layout_.nonfinite_queries;
  if (config_.clears_nonfinite()) {
    layout_.nonfinite_keys += blocks * sizeof(uint32_t);
    layout_.split_sums = layout_.nonfinite_keys + heads * sizeof(uint32_t);
  }
  layout_.failed =
      layout_.split_sums + bytes_of_splits(bias_, config_.queries, config_.of_bias().keys());
  layout_.bytes = layout_.failed;
  if (config_.async) {
    layout_.failed = (layout_.failed + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
    const int64_t signals = problem_.arriving_groups * problem_.chunks_kv.count;
    layout_.bytes = layout_.failed + (1 + static_cast<size_t>(signals)) * sizeof(uint64_t);
  }
  if (!config_.leaves) return;
  // Four elements are one access.
  layout_.leaf_keys = layout_.leaf_values = (layout_.bytes + 15) / 16 * 16;
  const auto bytes_of = [&](const RowsInMemory& rows) {
    return static_cast<size_t>((fixed_.leaves.count - 1) * problem_.batch * rows.stride[0]) *
           sizeof(float);
  };
  if (config_.grad_key) layout_.leaf_values += bytes_of(fixed_.leaves.grad_key);
  layout_.bytes = layout_.leaf_values;
  if (config_.grad_value) layout_.bytes += bytes_of(fixed_.leaves.grad_value);
}

Status Sm90AttentionBackward::map_tensors(const AttentionBackwardConfig& config,
                                          const AttentionBackward& tensors,
                                          AttentionBackwardArguments* arguments) const {
  // A tensor map cannot be empty; without rows nothing is loaded.
  const AttentionProblem problem = with_lengths(problem_, tensors.lengths);
  const bool nothing = problem.batch == 0 || problem.heads == 0;
  const bool no_queries = nothing || problem.q_len == 0 || (problem.ragged && problem.total_q == 0);
  const bool no_keys = nothing || problem.kv_len == 0 || (problem.ragged && problem.total_kv == 0);
  TensorMap checked;  // threads load and store these rows, with the alignment of TMA
  struct Map {
    const char* name;
    const Tensor& tensor;
    int32_t rows;
    bool queries;
    TensorMap* map;
  };
  const Map maps[] = {
      {"attention backward: key", tensors.key, config.keys(), false, &arguments->key},
      {"attention backward: value", tensors.value, config.keys(), false, &arguments->value},
      {"attention backward: grad_key", tensors.grad_key, 16, false, &arguments->grad_key},
      {"attention backward: grad_value", tensors.grad_value, 16, false, &arguments->grad_value},
      {"attention backward: query", tensors.query, config.queries, true, &arguments->query},
      {"attention backward: grad_out", tensors.grad_out, config.queries, true,
       &arguments->grad_out},
      {"attention backward: out", tensors.out, 16, true, &checked},
      {"attention backward: grad_query", tensors.grad_query, 16, true, &checked},
  };
  for (const Map& each : maps) {
    if (!each.tensor.present() || each.tensor.dtype != problem_.dtype) continue;
    if (each.queries ? no_queries : no_keys) continue;
    const int64_t longest = each.queries ? problem.q_len : problem.kv_len;
    const BoxedTensor box = problem.ragged ? ragged_boxed(each.tensor, longest, each.rows)
                                           : boxed(each.tensor, 0, each.rows);
    if (Status status = make_tensor_map(gpu_, each.name, box, each.map); !status.ok())
      return status;
  }
  return {};
}

Status Sm90AttentionBackward::backward(const AttentionBackward& tensors, std::byte* workspace,
                                       void* stream) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  AttentionBackwardArguments arguments = fixed_;
  BiasTiles bias_tiles = bias_;
  if (problem_.max_lengths) {  // never over chunks; the workspace is divided as the plan's
    const AttentionProblem problem = with_lengths(problem_, tensors.lengths);
    arguments = attention_backward_arguments(problem, config_, fixed_.cluster_log2);
    bias_tiles = divide_bias(problem, config_.queries, config_.of_bias().keys());
    keep_splits(bias_, &bias_tiles);
  }
  if (Status status = map_tensors(config_, tensors, &arguments); !status.ok()) return status;
  bind(tensors, &arguments);
  arguments.grad_out_rows = rows_in_memory(with_batch(tensors.grad_out));
  arguments.grad_query_rows = rows_in_memory(with_batch(tensors.grad_query));
  arguments.grad_key_rows = rows_in_memory(with_batch(tensors.grad_key));
  arguments.grad_value_rows = rows_in_memory(with_batch(tensors.grad_value));
  arguments.grad_bias = rows_in_memory(tensors.grad_bias);
  arguments.lse_log2 = reinterpret_cast<float*>(workspace);
  arguments.delta = reinterpret_cast<float*>(workspace + layout_.delta);
  const size_t finite = config_.clears_nonfinite() ? 2 * layout_.delta : 0;
  arguments.finite_lse_log2 = reinterpret_cast<float*>(workspace + finite);
  arguments.finite_delta = reinterpret_cast<float*>(workspace + finite + layout_.delta);
  arguments.sums = reinterpret_cast<float*>(workspace + layout_.sums);
  arguments.dq_semaphore = reinterpret_cast<uint64_t*>(workspace + layout_.dq_semaphore);
  arguments.complete = reinterpret_cast<uint64_t*>(workspace + layout_.complete);
  arguments.cursor = reinterpret_cast<uint64_t*>(workspace + layout_.cursor);
  arguments.timed_out = reinterpret_cast<uint64_t*>(workspace + layout_.timed_out);
  arguments.tile = reinterpret_cast<uint32_t*>(workspace + layout_.tile);
  arguments.nonfinite_queries = reinterpret_cast<uint32_t*>(workspace + layout_.nonfinite_queries);
  arguments.nonfinite_keys = reinterpret_cast<uint32_t*>(workspace + layout_.nonfinite_keys);
  if (config_.grad_key) arguments.leaves.grad_key.data = workspace + layout_.leaf_keys;
  if (config_.grad_value) arguments.leaves.grad_value.data = workspace + layout_.leaf_values;
  AttentionBackwardRows rows;
  static_cast<AttentionBackwardProblem&>(rows) = arguments;
  if (rows.two_pieces) rows.batch *= 2;  // sequences of queries
  rows.lse = rows_in_memory(with_element(tensors.lse));
  rows.grad_lse = rows_in_memory(with_element(tensors.grad_lse));
  rows.bias_blocks = bias_tiles.bias_blocks;
  arguments.arrived = rows.arrived = reinterpret_cast<uint32_t*>(workspace + layout_.arrived);
  if (Status status = map_bias(gpu_, config_, tensors, &arguments); !status.ok()) return status;
  if (config_.async)
    if (Status status = set_chunks(tensors, workspace, stream, &arguments); !status.ok())
      return status;
  const bool bias_with_tiles = config_.grad_bias_in_place() && arguments.grad_bias_mapped;
  const bool bias_kernel = tensors.grad_bias.present() && !bias_with_tiles;
  const bool products_wanted = tensors.grad_query.present() || tensors.grad_key.present() ||
                               tensors.grad_value.present() || bias_with_tiles;
  const Launch by_rows{.blocks = blocks_of_queries(arguments), .threads = kRowThreads};
  // Counters are cleared even if this execution of a plan for more has no queries.
  Launch prepare = by_rows;
  if (by_rows.blocks == 0 && blocks_of_queries(fixed_) > 0) prepare.blocks = rows.q_blocks = 1;
  const Launch products{
      .blocks = int64_t{arguments.batch_heads} * arguments.k_tiles * arguments.leaves.count
                << arguments.cluster_log2,
      .threads = config_.threads(),
      .cluster = 1 << arguments.cluster_log2,
      .shared_bytes = config_.shared_bytes()};
  Status status = gpu_.launch(kernels_[0], prepare, &rows, stream);
  if (status.ok() && bias_kernel) {
    bias_tiles.split_sums = reinterpret_cast<float*>(workspace + layout_.split_sums);
    // Its tiles may have more keys than those of the products.
    AttentionBackwardArguments units = arguments;
    if (config_.of_bias().keys() != config_.keys())
      status = map_tensors(config_.of_bias(), tensors, &units);
    if (status.ok())
      status = launch_bias(gpu_, kernels_.back(), config_, units, bias_tiles, stream);
  }
  if (status.ok() && products_wanted)
    status = gpu_.launch(kernels_[1], products, &arguments, stream);
  if (status.ok() && tensors.grad_query.present())
    status = gpu_.launch(kernels_[2], by_rows, &rows, stream);
  if (status.ok() && fixed_.leaves.count > 1) status = add_leaves(arguments, stream);
  return status;
}

Status Sm90AttentionBackward::add_leaves(const AttentionBackwardArguments& arguments,
                                         void* stream) const {
  LeafSumArguments sums{.leaves = arguments.leaves,
                        .grad_key = arguments.grad_key_rows,
                        .grad_value = arguments.grad_value_rows,
                        .kv_heads = arguments.kv_heads,
                        .kv_len = arguments.kv_len,
                        .head_dim = arguments.head_dim,
                        .value_dim = arguments.value_dim};
  sums.vectors = problem_.batch * problem_.kv_heads * problem_.kv_len *
                 (problem_.head_dim + problem_.value_dim) / 4;
  if (sums.vectors == 0 || (sums.grad_key.data == nullptr && sums.grad_value.data == nullptr))
    return {};
  const Launch launch{.blocks = ceil_div(sums.vectors, int64_t{kRowThreads}),
                      .threads = kRowThreads};
  return gpu_.launch(kernels_.back(), launch, &sums, stream);
}

std::string Sm90AttentionBackward::description() const {
  return concatenate("backward: tiles of ", config_.keys(), " keys and ", config_.queries,
                     " queries, which 2 warpgroups share by ",
                     config_.split_keys ? "keys" : "products",
                     config_.deterministic ? ", summed in order" : "",
                     config_.leaves ? ", keys in leaves of queries" : "");
}

}  // namespace perseid::internal::cuda
