// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention.hpp"

#include "cuda/runtime/kernel_name.hpp"
#include "cuda/runtime/launch_number.hpp"
#include "cuda/sm90/attention_boxes.hpp"
#include "cuda/sm90/attention_clusters.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Which kernel ----

// Per-score extras: bias, mask, window. They need registers, and the tiles of a bias need shared
// memory, where 16-bit and float32 ones differ.
enum class ScoreExtras { kNothing, kWindow, kBias16, kBias32, kVisible, kBoth };

// The first line with the problem's extras whose dims are large enough is taken; a window without
// such a line takes one of kNothing. More rows reuse keys and values more often; more keys make
// fewer steps. Registers (accumulators, scores and weights) and shared memory bound both.
struct Tiles {
  ScoreExtras extras;
  int key_dim, value_dim;
  int consumers, keys, stages, q_stages;
};
constexpr Tiles kTiles[] = {
    {ScoreExtras::kNothing, 64, 64, 3, 128, 2, 2},    //
    {ScoreExtras::kNothing, 80, 72, 3, 128, 2, 1},    //
    {ScoreExtras::kNothing, 80, 80, 3, 112, 2, 1},    //
    {ScoreExtras::kNothing, 96, 96, 3, 96, 2, 2},     //
    {ScoreExtras::kNothing, 128, 128, 2, 128, 2, 2},  //
    {ScoreExtras::kNothing, 192, 128, 2, 128, 2, 1},  //
    {ScoreExtras::kNothing, 192, 192, 2, 96, 2, 1},   //
    {ScoreExtras::kNothing, 256, 256, 2, 64, 2, 1},   //
    {ScoreExtras::kNothing, 320, 192, 2, 128, 1, 1},  // values of two parts
    {ScoreExtras::kNothing, 384, 192, 2, 96, 1, 1},   //
    {ScoreExtras::kNothing, 512, 256, 2, 64, 1, 1},   //
    {ScoreExtras::kWindow, 64, 64, 3, 128, 4, 2},     // consumers begin at different tiles
    {ScoreExtras::kWindow, 80, 64, 3, 128, 3, 1},     //
    {ScoreExtras::kBias16, 64, 64, 2, 128, 2, 2},     //
    {ScoreExtras::kBias16, 80, 64, 2, 128, 2, 1},     //
    {ScoreExtras::kBias16, 96, 64, 2, 96, 2, 2},      //
    {ScoreExtras::kBias16, 128, 64, 2, 128, 2, 2},    //
    {ScoreExtras::kBias16, 128, 128, 2, 128, 2, 1},   //
    {ScoreExtras::kBias16, 192, 64, 2, 128, 2, 1},    //
    {ScoreExtras::kBias16, 256, 192, 2, 64, 2, 1},    //
    {ScoreExtras::kBias16, 256, 256, 2, 48, 2, 1},    //
    {ScoreExtras::kBias32, 64, 64, 2, 64, 2, 2},      //
    {ScoreExtras::kBias32, 80, 80, 2, 64, 2, 1},      //
    {ScoreExtras::kBias32, 128, 128, 2, 64, 2, 2},    //
    {ScoreExtras::kBias32, 192, 64, 2, 128, 2, 1},    //
    {ScoreExtras::kBias32, 256, 192, 2, 64, 2, 1},    //
    {ScoreExtras::kBias32, 256, 256, 2, 48, 2, 1},    //
    {ScoreExtras::kVisible, 64, 64, 2, 128, 2, 2},    //
    {ScoreExtras::kVisible, 80, 64, 2, 128, 2, 1},    //
    {ScoreExtras::kVisible, 96, 64, 2, 96, 2, 2},     //
    {ScoreExtras::kVisible, 128, 64, 2, 128, 2, 2},   //
    {ScoreExtras::kVisible, 80, 80, 2, 64, 2, 1},     //
    {ScoreExtras::kVisible, 128, 128, 2, 64, 2, 2},   //
    {ScoreExtras::kVisible, 192, 64, 2, 128, 2, 1},   //
    {ScoreExtras::kVisible, 256, 128, 2, 64, 2, 1},   //
    {ScoreExtras::kVisible, 256, 256, 2, 32, 2, 1},   //
    {ScoreExtras::kBoth, 64, 64, 2, 64, 2, 2},        //
    {ScoreExtras::kBoth, 80, 80, 2, 64, 2, 1},        //
    {ScoreExtras::kBoth, 128, 128, 2, 64, 2, 2},      //
    {ScoreExtras::kBoth, 256, 128, 2, 64, 2, 1},      //
    {ScoreExtras::kBoth, 256, 192, 2, 32, 2, 1},      //
    {ScoreExtras::kBoth, 256, 256, 1, 32, 2, 1},      //
};
constexpr int64_t kLargestDim = 512, kDimUnit = 8;
// Results of more columns are computed in two parts, and keys and values arrive in pieces.
constexpr int64_t kLargestWholeDim = 256, kLargestFloat32Dim = 128;

// Split-KV: where one consumer holds all query rows, the keys are cut into splits of kSplitKeys,
// or longer ones if there were more than kMaxSplits. The split depends on kv_len alone.
constexpr int64_t kSplitKeys = 1024;

// Query heads are packed into the rows of a tile until it is full, at most 2^kMaxPackGqa of them: a
// warp's 16 rows are stored at once.
int pack_gqa_of(const AttentionProblem& problem) {
  int pack = 0;
  if (keeps_heads_apart(problem) || has_ragged_pieces(problem)) return pack;
  while (pack < kMaxPackGqa && problem.group() % (int64_t{2} << pack) == 0 &&
         problem.q_len << pack < kFewRows)
    ++pack;
  return pack;
}

int64_t split_tiles_of(const AttentionProblem& problem, const AttentionForwardConfig& config) {
  const int64_t tiles = ceil_div(problem.kv_len, int64_t{config.keys});
  const int64_t most = problem.num_splits == 0 ? kMaxSplits : min(problem.num_splits, kMaxSplits);
  return max(max(kSplitKeys / config.keys, int64_t{1}), ceil_div(tiles, most));
}

ScoreExtras score_extras(const AttentionForwardConfig& config, bool three) {
  const bool biased = config.bias != DType::kNone;
  if (config.visible) return biased ? ScoreExtras::kBoth : ScoreExtras::kVisible;
  if (biased) return config.bias == DType::kF32 ? ScoreExtras::kBias32 : ScoreExtras::kBias16;
  return three && config.left ? ScoreExtras::kWindow : ScoreExtras::kNothing;
}

// Bias, visible mask, dropout and a score modifier need instructions and registers for each score.
bool has_extras(const AttentionForwardConfig& config) {
  return config.visible || config.dropout || config.bias != DType::kNone ||
         config.modifier != ScoreModifierKind::kNone;
}

// Three consumers waste more of the last tile and of those on the diagonal, and their registers
// hold nothing for each score but the score and its weight.
bool has_three_consumers(const AttentionProblem& problem, const AttentionForwardConfig& config) {
  const int64_t rows = problem.q_len << pack_gqa_of(problem);
  return !has_extras(config) && !config.lengths && rows > 128 && !problem.rows.canonical &&
         (!problem.rows.zigzag || problem.q_len / 2 % 192 == 0) && (!config.right || rows > 384) &&
         (!config.left || rows > 1024);
}

MaskLoop mask_loop_of(const AttentionForwardConfig& config) {
  if (has_extras(config)) return MaskLoop::kUniform;
  if (config.consumers == 2 && config.value_dim > 64 && config.allows(MaskLoop::kSplitAtDiagonal))
    return MaskLoop::kSplitAtDiagonal;
  if ((config.left || config.consumers > 2) && config.allows(MaskLoop::kPeeled))
    return MaskLoop::kPeeled;
  return MaskLoop::kUniform;
}

const Tiles& tiles_for(const AttentionForwardConfig& config, ScoreExtras extras) {
  for (const Tiles& tiles : kTiles)
    if (tiles.extras == extras && config.key_dim <= tiles.key_dim &&
        config.value_dim <= tiles.value_dim)
      return tiles;
  return tiles_for(config, ScoreExtras::kNothing);
}

std::string refuse_rows(const AttentionProblem& problem) {
  if (has_ragged_pieces(problem)) {
    if (problem.rows.canonical)
      return "made in canonical order for sequences of one length, where ranks hold rows of each";
    // Those with q_lens are leaves of canonical order, which are left to the kernels of any GPU.
    if (problem.bias || problem.visible || has_dropout(problem) || problem.q_lens)
      return "made for ragged batches over ranks without bias, visible, dropout and q_lens";
    return refuse_shard(problem, false);
  }
  if (problem.rows.zigzag && problem.q_len / 2 % kPieceUnit != 0)
    return concatenate("made for zigzag pieces whose rows are a multiple of ", kPieceUnit, ", got ",
                       problem.q_len / 2);
  return refuse_shard(problem, false);
}

// ---- Launches ----

// For a bias that TMA cannot load: threads load it into registers.
AttentionForwardConfig without_bias_tiles(AttentionForwardConfig config) {
  config.bias_stages = 0;
  if (config.value_dim > 64) {
    config.keys = min(config.keys, 64);
    config.q_stages = 2;
  }
  return config;
}

constexpr int64_t kManyKeys = 4096;

// Products of planes take three times as long as those of 16 bits. Scores, the two planes of
// weights, and results in two sums bound the keys of a tile.
void choose_float32_tiles(const AttentionProblem& problem, AttentionForwardConfig* config) {
  const bool operands = config->visible || config->bias != DType::kNone;
  const bool small = max(config->key_dim, config->value_dim) <= 64;
  const bool three = small && has_three_consumers(problem, *config);
  config->consumers = three ? 3 : 2;
  config->stages = config->q_stages = 2;
  config->keys = operands ? (small ? 64 : 32) : (small && !three ? 96 : 64);
  if (!config->fits()) config->q_stages = 1;
  if (three) config->mask_loop = mask_loop_of(*config);
  // Queries that consumers split save the planes in memory, and cost each Q tile. Up to dim 64 that
  // pays under a causal mask, and where keys are few.
  config->splits_queries =
      config->key_dim > kChunk ||
      (three && !config->left && (config->right || problem.kv_len < kManyKeys));
}

}  // namespace

AttentionForwardConfig choose_attention_forward(const AttentionProblem& problem) {
  AttentionForwardConfig config;
  config.dtype = problem.dtype;
  config.key_dim = static_cast<int>(round_up(max(problem.head_dim, int64_t{1}), 16));
  config.value_dim = static_cast<int>(round_up(max(problem.value_dim, int64_t{1}), 16));
  // Not rounded up to 48 and 80: 72 columns leave registers for 128 keys.
  for (const int dim : {40, 72})
    if (problem.value_dim == dim && config.planes() == 1) config.value_dim = dim;
  if (problem.value_dim > kLargestWholeDim) {
    config.value_parts = 2;
    config.value_dim = static_cast<int>(round_up(ceil_div(problem.value_dim, 2), kChunk));
  }
  config.lengths = has_lengths(problem);
  config.visible = problem.visible;
  config.dropout = has_dropout(problem);
  config.bias = problem.bias ? problem.bias_dtype : DType::kNone;
  config.modifier = problem.modifier.kind;
  config.async = problem.async();
  config.sharded = !problem.rows.all();
  config.rank_pieces = has_ragged_pieces(problem);
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;
  if (config.planes() == 2) {
    config.number_pairs = !config.lengths && problem.kv_len % 2 == 0;
    choose_float32_tiles(problem, &config);
    return config;
  }

  const int64_t rows = problem.q_len << pack_gqa_of(problem);
  const bool three = has_three_consumers(problem, config);
  const ScoreExtras extras = score_extras(config, three);
  const Tiles& tiles = tiles_for(config, extras);
  config.consumers = min(tiles.consumers, three && extras == tiles.extras ? 3 : 2);
  config.keys = tiles.keys;
  config.stages = tiles.stages;
  config.q_stages = tiles.q_stages;
  if (config.dropout) config.keys = config.keys / 32 * 32;
  // TMA loads the bias where its loads bound the speed.
  if (problem.bias && !config.visible && max(config.key_dim, config.value_dim) <= 128)
    config.bias_stages = 3;
  if (rows <= kFewRows && !problem.rows.canonical && !has_ragged_pieces(problem)) {
    if (extras == ScoreExtras::kBias16 && problem.value_dim > 64)
      config.keys = min(config.keys, 64);
    config.consumers = 1;
    config.q_stages = 2;
    config.stages = 3;
    config.split = problem.kv_len > split_tiles_of(problem, config) * config.keys;
    if (!config.fits()) config.stages = 2;
  }
  while (config.bias_stages > 1 && !config.fits()) --config.bias_stages;
  // Scores that begin with the bias would be modified with it.
  if (config.bias_stages > 0 && config.modifier != ScoreModifierKind::kNone)
    config = without_bias_tiles(config);
  config.cluster = cluster_of(problem, config);
  config.mask_loop = mask_loop_of(config);
  config.overlap_softmax_pv =
      problem.value_dim > 96 && config.mask_loop != MaskLoop::kSplitAtDiagonal;
  return config;
}

std::vector<std::string> attention_forward_kernels(const AttentionForwardConfig& config) {
  std::vector<std::string> kernels = {kernel_name("attention_forward", config)};
  if (config.split) kernels.push_back(kernel_name("attention_combine", config.dtype));
  if (config.masked() && config.split) kernels.push_back(kernel_name("attention_fixup", config));
  if (config.bias_stages > 0)
    kernels.push_back(kernel_name("attention_forward", without_bias_tiles(config)));
  if (config.planes() == 2)
    kernels.push_back(kernel_name("portable_attention_planes",
                                  PlanesConfig{max(config.key_dim, config.value_length())}));
  return kernels;
}

namespace {

std::string refuse_float32(const AttentionProblem& problem) {
  if (problem.async() || problem.kv_starts || problem.kv_index || problem.max_lengths ||
      problem.q_lens)
    return "of f32 made without chunks, q_lens, kv_starts, kv_batch and max_lengths";
  if (!problem.rows.all()) return "of f32 made for all rows of every sequence of queries";
  if (max(problem.head_dim, problem.value_dim) > kLargestFloat32Dim)
    return concatenate("of f32 made for head dims up to ", kLargestFloat32Dim, ", got head_dim ",
                       problem.head_dim, " and value_dim ", problem.value_dim);
  if (problem.q_len <= kFewRows)
    return concatenate("of f32 made for more than ", kFewRows, " queries, got q_len ",
                       problem.q_len);
  // Coordinates of TMA have 32 bits.
  const int64_t keys =
      problem.kv_heads * (problem.ragged ? problem.total_kv : problem.batch * problem.kv_len);
  if (keys > kLongest)
    return concatenate("of f32 made for up to ", kLongest, " keys in all heads, got ", keys);
  return "";
}

std::string refuse_dims(const AttentionProblem& problem) {
  for (const int64_t dim : {problem.head_dim, problem.value_dim})
    if (dim % kDimUnit != 0 || dim > kLargestDim)
      return concatenate("made for head dims that are multiples of ", kDimUnit, " up to ",
                         kLargestDim, ", got head_dim ", problem.head_dim, " and value_dim ",
                         problem.value_dim);
  if (!has_large_dims(problem)) return "";
  if (problem.q_len <= kFewRows)
    return concatenate("beyond dim ", kLargestWholeDim, " made for more than ", kFewRows,
                       " queries, got q_len ", problem.q_len);
  if (problem.bias || problem.visible || has_dropout(problem) || problem.async() ||
      problem.modifier.kind != ScoreModifierKind::kNone || !problem.rows.all())
    return concatenate("beyond dim ", kLargestWholeDim,
                       " made without bias, visible, dropout, score ",
                       "modifier, chunks and pieces of sequences");
  return "";
}

}  // namespace

bool has_large_dims(const AttentionProblem& problem) {
  return max(problem.head_dim, problem.value_dim) > kLargestWholeDim;
}

std::string refuse_attention(const AttentionProblem& problem, const GpuFacts& facts) {
  if (facts.major != 9)
    return concatenate("made for compute capability 9.0, the GPU has ", facts.major, ".",
                       facts.minor);
  if (problem.dtype == DType::kF32) {
    if (std::string why = refuse_float32(problem); !why.empty()) return why;
  } else if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16) {
    return concatenate("made for f16, bf16 and f32, got ", name_of(problem.dtype));
  } else if (std::string why = refuse_dims(problem); !why.empty()) {
    return why;
  }
  if (!(problem.scale > 0)) return concatenate("made for positive scales, got ", problem.scale);
  if (std::string why = refuse_rows(problem); !why.empty()) return why;
  if (max(problem.q_len, problem.total_q) > kLongest ||
      max(problem.kv_len, problem.total_kv) > kLongest)
    return concatenate("made for lengths up to ", kLongest, ", got q_len ", problem.q_len,
                       ", kv_len ", problem.kv_len, ", total_q ", problem.total_q, " and total_kv ",
                       problem.total_kv);
  if (problem.kv_index && problem.kv_batch > kLongest)
    return concatenate("made for up to ", kLongest, " batch entries of keys, got ",
                       problem.kv_batch);
  if (problem.batch * problem.heads > kLongest ||
      problem.batch * problem.heads * ceil_div(problem.q_len, 64) *
              (problem.q_len <= kFewRows ? kMaxSplits : 1) >
          kLongest)
    return concatenate("made for up to ", kLongest,
                       " tiles of queries and keys in all heads, got batch ", problem.batch,
                       ", heads ", problem.heads, " and q_len ", problem.q_len);
  if (problem.q_len <= kFewRows && problem.heads * problem.total_q > kLongest)
    return concatenate("made for up to ", kLongest, " packed rows of up to ", kFewRows,
                       " queries a sequence in all heads, got heads ", problem.heads,
                       " and total_q ", problem.total_q);
  return "";
}

Status Sm90Attention::make(const AttentionProblem& problem, const AttentionForwardConfig& config,
                           Gpu& gpu, std::unique_ptr<Sm90Attention>* made) {
  std::unique_ptr<Sm90Attention> attention(new Sm90Attention(problem, gpu));
  attention->config_ = config;
  if (Status status = gpu.load(kAttentionForwardHeader, attention_forward_kernels(config),
                               &attention->kernels_);
      !status.ok())
    return status;
  Status status = gpu.allow_shared(attention->kernels_[0], config.shared_bytes());
  if (status.ok() && config.bias_stages > 0)
    status =
        gpu.allow_shared(attention->kernels_.back(), without_bias_tiles(config).shared_bytes());
  if (status.ok()) status = attention->chunks_.upload(problem);
  if (!status.ok()) return status;

  AttentionForwardArguments& fixed = attention->fixed_;
  fixed.pack_gqa = pack_gqa_of(problem);
  if (config.split) fixed.split_tiles = static_cast<int32_t>(split_tiles_of(problem, config));
  set_attention_lengths(problem, config, &fixed);
  if (config.planes() == 2) {
    const bool scales = config.bias != DType::kNone || config.modifier != ScoreModifierKind::kNone;
    const int32_t key = config.key_dim, value = config.value_length();
    attention->planes_ =
        AttentionPlanes(problem, {key, key, kCommonKeyExponent, loss_of_sums(key)},
                        {value, value, kCommonValueExponent}, scales ? 1 : fixed.scale_log2_f64);
  }
  *made = std::move(attention);
  return {};
}

void set_attention_lengths(const AttentionProblem& problem, const AttentionForwardConfig& config,
                           AttentionForwardArguments* arguments) {
  AttentionForwardArguments& fixed = *arguments;
  const int pack = fixed.pack_gqa;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.modifier = static_cast<float>(problem.modifier.value);
  fixed.heads >>= pack;
  fixed.group >>= pack;
  fixed.kv_heads = static_cast<int32_t>(problem.kv_heads);
  // Each of two pieces is a sequence of queries (rank_pieces.hpp).
  const int64_t pieces = fixed.two_pieces ? 2 : 1, rows = problem.q_len / pieces;
  fixed.batch_heads = static_cast<int32_t>(problem.batch * pieces * (problem.heads >> pack));
  fixed.q_tiles = static_cast<int32_t>(ceil_div(rows << pack, int64_t{config.rows()}));
  fixed.rows_of_arrival =
      static_cast<int32_t>(max(ceil_div(problem.total_kv, problem.arriving_groups), int64_t{1}));
  // If later rows see more keys, the partial tile is the first one. Whole consumers have
  // no rows in it.
  if (config.partial_tile_first())
    fixed.rows_before =
        static_cast<int32_t>((fixed.q_tiles * config.rows() - problem.q_len) / 64 * 64);
  fixed.rows = problem.heads * (problem.ragged ? problem.total_q : problem.batch * problem.q_len);
  if (config.split)
    fixed.num_splits = static_cast<int32_t>(
        max(ceil_div(problem.kv_len, int64_t{fixed.split_tiles} * config.keys), int64_t{1}));
  fixed.tiles = fixed.batch_heads * fixed.q_tiles * fixed.num_splits * config.value_parts;
  // Planes have twice as many bytes, and half of the room was measured best.
  fixed.heads_per_section =
      heads_per_section(problem, config.right, fixed.batch_heads, fixed.group,
                        config.planes() == 2 ? kForwardSectionBytes / 4 : kForwardSectionBytes);
  fixed.heads_of_arrival = static_cast<int32_t>(problem.heads_of_arrival());
  if (config.async && config.sharded)
    fixed.heads_per_section = section_of_rank(fixed.heads_per_section, fixed.q_tiles,
                                              fixed.heads_of_arrival * fixed.group);
}

// Offsets of words, of lists of tiles and of numbers; the tile counter comes first.
struct Sm90Attention::Workspace {
  size_t failed = 0, nonfinite = 0, results = 0, sums = 0, uncommon = 0, planes = 0, bytes = 0;
};

Sm90Attention::Workspace Sm90Attention::divide_workspace(
    const AttentionForwardArguments& fixed) const {
  Workspace layout;
  const bool counting = (config_.masked() && config_.split) || fixed.tiles > most_blocks();
  size_t used = layout.failed = counting ? sizeof(ForwardTileCounter) : 0;
  if (config_.async) used += sizeof(uint64_t);
  layout.nonfinite = used;
  if (config_.lists_tiles()) used += static_cast<size_t>(fixed.tiles) * sizeof(int32_t);
  if (config_.split) {
    const auto rows = static_cast<size_t>(fixed.num_splits * fixed.rows);
    layout.results = (used + 15) / 16 * 16;
    layout.sums = layout.results + rows * static_cast<size_t>(fixed.value_dim) * sizeof(float);
    used = layout.sums + rows * sizeof(float);
  }
  if (config_.planes() == 2) {
    layout.uncommon = (used + 7) / 8 * 8;
    layout.planes = (layout.uncommon + sizeof(uint64_t) + 15) / 16 * 16;
    used = layout.planes + planes_.workspace();
  }
  layout.bytes = used;
  return layout;
}

size_t Sm90Attention::forward_workspace() const { return divide_workspace(fixed_).bytes; }

bool Sm90Attention::map_bias(const Tensor& bias, AttentionForwardArguments* arguments) const {
  if (config_.bias_stages == 0 || bias.stride[2] == 0) return false;
  const int64_t words = config_.bias_size() / 2;  // of 16 bits
  BoxedTensor boxed{
      bias.data,
      DType::kBF16,
      {bias.shape[3] * words, 1, bias.shape[2], bias.shape[1], bias.shape[0]},
      {bias.stride[3], 1, bias.stride[2] * words, bias.stride[1] * words, bias.stride[0] * words},
      {kChunk, 1, 64, 1, 1}};
  arguments->bias_heads = bias.stride[1] != 0;
  arguments->bias_batches = bias.stride[0] != 0;
  if (arguments->bias_heads == 0) boxed.size[3] = 1;
  if (arguments->bias_batches == 0) boxed.size[4] = 1;
  return is_mappable(boxed) &&
         make_tensor_map(gpu_, "attention forward: bias", boxed, &arguments->bias_map).ok();
}

Status Sm90Attention::map_tensors(const AttentionForwardConfig& config,
                                  const AttentionForward& tensors,
                                  AttentionForwardArguments* arguments) const {
  const int pack = fixed_.pack_gqa;
  const Tensor query = with_batch(tensors.query), out = with_batch(tensors.out);
  Tensor key = with_batch(tensors.key), value = with_batch(tensors.value);
  // A tensor map cannot be empty. Without keys, every key is masked, so any tensor will do.
  if (key.elements() == 0) key = value = query;
  const auto of_keys = [&](const Tensor& tensor, int pieces) {
    BoxedTensor keys = boxed(tensor, 0, config.keys / pieces);
    keys.read_once = config.split;
    return keys;
  };
  Status status =
      make_tensor_map(gpu_, "attention forward: query", boxed(query, pack, 64), &arguments->query);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: key", of_keys(key, 1), &arguments->key);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: value",
                             of_keys(value, config.value_pieces()), &arguments->value);
  if (status.ok())
    status = make_tensor_map(gpu_, "attention forward: out", boxed(out, pack, 16), &arguments->out);
  return status;
}

Status Sm90Attention::forward(const AttentionForward& tensors, std::byte* workspace,
                              void* stream) const {
  if (tensors.out.elements() == 0) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  AttentionForwardArguments arguments = fixed_;
  if (problem_.max_lengths)
    set_attention_lengths(with_lengths(problem_, tensors.lengths), config_, &arguments);
  const bool bias_by_threads = config_.bias_stages > 0 && !map_bias(tensors.bias, &arguments);
  const AttentionForwardConfig config = bias_by_threads ? without_bias_tiles(config_) : config_;
  const Workspace layout = divide_workspace(arguments);
  PlanesArguments planes;
  Status status;
  if (config.planes() == 2) {
    planes =
        planes_.bind(tensors.query, tensors.key, tensors.value, nullptr, workspace + layout.planes);
    arguments.out_pairs = has_aligned_rows(tensors.out, 2);
    status = map_planes(tensors.query, &planes, &arguments);
  } else {
    status = map_tensors(config, tensors, &arguments);
  }
  if (!status.ok()) return status;
  bind_lse(tensors.lse, &arguments);
  bind(tensors, &arguments);
  arguments.counter = reinterpret_cast<ForwardTileCounter*>(workspace);
  arguments.nonfinite_next = reinterpret_cast<int32_t*>(workspace + layout.nonfinite);
  if (config_.split) {
    arguments.split_results = reinterpret_cast<float*>(workspace + layout.results);
    arguments.split_sums = reinterpret_cast<float*>(workspace + layout.sums);
  }
  arguments.launch = launch_number();
  if (config_.async) {
    status = chunks_.fill("attention forward", tensors.arrival_kv, stream, &arguments.async);
    if (!status.ok()) return status;
    const ChunkCut& cut = problem_.chunks_kv;
    for (int64_t group = 0; group < problem_.arriving_groups; ++group)
      (arguments.arrivals[group] = arguments.async.arrivals[0]).signals += group * cut.count;
    arguments.pivot = static_cast<int32_t>(cut.begin[tensors.arrival_kv.first]);
    arguments.async.failed = reinterpret_cast<uint64_t*>(workspace + layout.failed);
    arguments.launch = arguments.async.launch;
  }
  const Launch launch{.blocks = min(arguments.tiles, most_blocks()),
                      .threads = config.threads(),
                      .cluster = config.cluster,
                      .shared_bytes = config.shared_bytes()};
  if (config.planes() == 2) {
    planes.pairs[1].uncommon = reinterpret_cast<uint64_t*>(workspace + layout.uncommon);
    planes.pairs[1].launch = arguments.launch;
    arguments.uncommon = planes.pairs[1].uncommon;
    const int64_t blocks =
        planes_.blocks() - (planes.first_blocks == 0 ? planes_.query_blocks() : 0);
    status = gpu_.launch(kernels_.back(), {.blocks = blocks, .threads = PlanesConfig::threads},
                         &planes, stream);
  }
  const auto& kernel = bias_by_threads ? kernels_.back() : kernels_[0];
  if (status.ok()) status = gpu_.launch(kernel, launch, &arguments, stream);
  const int64_t pieces = ceil_div(int64_t{arguments.value_dim}, int64_t{32});
  Launch by_rows{.blocks = ceil_div(arguments.rows * pieces, kRowWarps), .threads = 32 * kRowWarps};
  size_t next = 1;
  if (status.ok() && config_.split)
    status = gpu_.launch(kernels_[next++], by_rows, &arguments, stream);
  by_rows.blocks = min(ceil_div(arguments.rows, kRowWarps), int64_t{4} * most_blocks());
  if (status.ok() && config_.masked() && config_.split)
    status = gpu_.launch(kernels_[next], by_rows, &arguments, stream);
  return status;
}

std::string Sm90Attention::description() const {
  std::string text =
      concatenate("forward: tiles of ", config_.rows(), " queries and ", config_.keys, " keys, ",
                  config_.consumers, " warpgroup", config_.consumers == 1 ? "" : "s",
                  config_.planes() == 2 ? ", products of two f16 halves" : "",
                  config_.cluster > 1 ? ", clusters of two blocks" : "");
  if (config_.value_parts > 1)
    text +=
        concatenate(", out in ", config_.value_parts, " parts of ", config_.value_dim, " columns");
  if (config_.split)
    text += concatenate(", keys in ", fixed_.num_splits, " splits, which are then merged");
  if (fixed_.pack_gqa > 0)
    text += concatenate(", ", 1 << fixed_.pack_gqa, " heads packed into rows");
  return text;
}

}  // namespace perseid::internal::cuda
