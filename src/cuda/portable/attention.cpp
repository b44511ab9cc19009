// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/portable/attention.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/runtime/launch_number.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kMostDim = 2048;  // fixups have a row of each tensor in registers

// In canonical order a row has the kernel of many, however few a rank has.
bool has_few_rows(const AttentionProblem& problem) {
  return problem.q_len <= kFewRows && !problem.rows.canonical;
}

// Packs several queries of few rows by 2^n heads, at most as many as fill 16 rows. (All heads of a
// group of a single query are rows of a tensor, see with_heads_as_rows.)
int pack_of(const AttentionProblem& problem) {
  if (keeps_heads_apart(problem) || problem.ragged || problem.max_lengths || !problem.rows.all())
    return 0;
  int pack = 0;
  while (pack < kMaxPackGqa && problem.group() % (int64_t{2} << pack) == 0 &&
         problem.q_len << (pack + 1) <= kFewRows)
    ++pack;
  return pack;
}

// Split-KV: more than kSplitKeys keys of few queries are cut into splits of so many, of twice as
// many where there are more than kManyKeys, else of half as many where heads are few, or longer
// ones if there were more than kMaxSplits. The split does not depend on the batch.
constexpr int64_t kSplitKeys = 512, kManyKeys = 4096, kFewHeads = 16;

int64_t split_tiles_of(const AttentionProblem& problem, const PortableForwardConfig& config) {
  return portable_split_tiles(problem, config.keys, pack_of(problem));
}

// Blocks of a launch, which may be more than it can have.
int64_t blocks_of(const AttentionProblem& problem, const PortableForwardConfig& config) {
  const int64_t splits =
      config.split ? ceil_div(problem.kv_len, split_tiles_of(problem, config) * config.keys) : 1;
  return tiles_of(problem, false, config.block_rows()) * heads_in_memory(problem, false) *
         config.parts() * splits;
}

// Returns the most blocks that any launch of forward has.
int64_t most_blocks(const AttentionProblem& problem) {
  const AttentionProblem packed = with_heads_as_rows(problem);
  if (problem.dtype == DType::kF64) return float64_attention_blocks(packed);
  const PortableForwardConfig config = choose_portable_attention(packed);
  return max(blocks_of(packed, config), portable_attention_planes(packed, config).blocks());
}

// Rows of 32 columns that the splits of the keys are combined in, each by a warp; 0 without splits.
int64_t rows_of_splits(const AttentionProblem& problem) {
  const AttentionProblem packed = with_heads_as_rows(problem);
  const bool split = problem.dtype == DType::kF64 ? choose_float64_attention(packed).split
                                                  : choose_portable_attention(packed).split;
  if (!split) return 0;
  return problem.heads * (problem.ragged ? problem.total_q : problem.batch * problem.q_len) *
         ceil_div(problem.value_dim, int64_t{32});
}

// Heads of a group as rows.
Tensor pack_rows(Tensor tensor, int64_t group) {
  if (!tensor.present()) return tensor;
  tensor.shape[1] /= group;
  tensor.shape[2] = group;
  tensor.stride[2] = tensor.stride[1];
  tensor.stride[1] *= group;
  return tensor;
}

}  // namespace

int64_t portable_split_tiles(const AttentionProblem& problem, int keys, int pack) {
  const int64_t tiles = ceil_div(problem.kv_len, int64_t{keys});
  const int64_t of_split = problem.kv_len > kManyKeys          ? 2 * kSplitKeys
                           : problem.heads >> pack > kFewHeads ? kSplitKeys
                                                               : kSplitKeys / 2;
  const int64_t most = problem.num_splits == 0 ? kMaxSplits : min(problem.num_splits, kMaxSplits);
  return max(of_split / keys, ceil_div(tiles, most));
}
bool splits_keys(const AttentionProblem& problem, int64_t split_keys) {
  return has_few_rows(problem) && problem.kv_len > max(split_keys, kSplitKeys);
}

bool takes_heads_as_rows(const AttentionProblem& problem) {
  // The last query of a sequence is limited by no bound on the right of it.
  const bool bounded =
      problem.window_left >= 0 ||
      (!problem.bottom_right() && (problem.causal != Causal::kNone || problem.window_right >= 0));
  return problem.q_len == 1 && problem.group() > 1 && problem.group() <= kFewRows && !bounded &&
         !problem.ragged && !problem.q_lens && problem.rows.all() && !problem.rows.canonical &&
         !has_dropout(problem);
}
AttentionProblem with_heads_as_rows(const AttentionProblem& problem) {
  if (!takes_heads_as_rows(problem)) return problem;
  AttentionProblem packed = problem;
  packed.q_len = problem.group();
  packed.heads = problem.kv_heads;
  packed.causal = Causal::kNone;
  packed.window_right = -1;
  packed.window_bottom_right = false;
  return packed;
}
AttentionForward with_heads_as_rows(const AttentionProblem& problem,
                                    const AttentionForward& tensors) {
  if (!takes_heads_as_rows(problem)) return tensors;
  AttentionForward packed = tensors;
  for (Tensor* tensor : {&packed.query, &packed.out, &packed.lse, &packed.bias, &packed.visible})
    *tensor = pack_rows(*tensor, problem.group());
  packed.lengths.q_len = problem.group();
  return packed;
}

bool has_vectors(const Tensor& tensor) {
  const int64_t elements = 16 / size_of(tensor.dtype);
  return has_aligned_rows(tensor, elements) && tensor.shape[tensor.rank - 1] % elements == 0;
}

std::string refuse_portable_attention(const AttentionProblem& problem, const GpuFacts& facts) {
  if (facts.major < 8)
    return concatenate("made for compute capability 8.0 and up, the GPU has ", facts.major, ".",
                       facts.minor);
  if (std::string why = refuse_shard(problem, true); !why.empty()) return why;
  if (max(problem.head_dim, problem.value_dim) > kMostDim)
    return concatenate("made for head dims up to ", kMostDim, ", got head_dim ", problem.head_dim,
                       " and value_dim ", problem.value_dim);
  if (max(problem.q_len, problem.total_q) > kLongest ||
      max(problem.kv_len, problem.total_kv) > kLongest)
    return concatenate("made for lengths up to ", kLongest, ", got q_len ", problem.q_len,
                       ", kv_len ", problem.kv_len, ", total_q ", problem.total_q, " and total_kv ",
                       problem.total_kv);
  if (problem.kv_index && problem.kv_batch > kLongest)
    return concatenate("made for up to ", kLongest, " batch entries of keys, got ",
                       problem.kv_batch);
  if (max(problem.batch * problem.heads, most_blocks(problem)) > kMostBlocks)
    return concatenate("made for up to ", kMostBlocks, " tiles of queries in all heads, got batch ",
                       problem.batch, ", heads ", problem.heads, " and q_len ", problem.q_len);
  if (const int64_t rows = rows_of_splits(problem); rows > kMostBlocks)
    return concatenate("made for splits of the keys with up to ", kMostBlocks,
                       " rows of 32 columns in all heads, got ", rows, "; set num_splits to 1");
  return "";
}

PortableForwardConfig choose_portable_attention(const AttentionProblem& problem) {
  PortableForwardConfig config;
  config.dtype = problem.dtype;
  config.key_dim = static_cast<int>(round_up(max(problem.head_dim, int64_t{1}), 16));
  config.value_dim = static_cast<int>(round_up(max(problem.value_dim, int64_t{1}), 16));
  config.scale_first = !(problem.scale > 0);
  config.lengths = has_lengths(problem);
  config.visible = problem.visible;
  config.dropout = has_dropout(problem);
  config.sharded = counts_whole_rows(problem);
  config.bias = problem.bias ? problem.bias_dtype : DType::kNone;
  config.modifier = problem.modifier.kind;
  const BoundsByRow bounds = bounds_by_row(problem);
  config.left = bounds.left;
  config.right = bounds.right;

  // Warps of 32 rows read keys and values half as often; registers bound their results and the
  // operands of masks, shared memory the tiles, those of bias included.
  const bool planes = config.planes() == 2;
  const bool extras = problem.visible || (problem.bias && (planes || !config.copies_bias()));
  config.rows = has_few_rows(problem) || config.columns() > 128 || extras ? 16 : 32;
  if (planes || config.shared_bytes() > kLeastShared) config.keys = 32;
  if (config.shared_bytes() > kLeastShared) config.rows = 16;
  if (problem.bias && !config.copies_bias()) config.keys = 32;
  if (planes && config.rows == 32 && !config.dropout) {
    config.keys = 48;
    if (config.shared_bytes() > kLeastShared) config.keys = 32;
  }
  // At dim 64, many keys are faster than queries in registers; dropout takes registers.
  if (!planes && config.rows == 32 && config.key_dim == 64 && config.value_dim == 64 &&
      !problem.bias)
    config.keys = config.dropout ? 96 : 128;
  else
    config.query_in_registers = !planes && config.key_dim <= 64 && config.value_dim <= 64;
  config.packs = pack_of(problem) > 0;
  config.split = splits_keys(problem, split_tiles_of(problem, config) * config.keys);
  return config;
}

std::vector<std::string> portable_attention_kernels(const PortableForwardConfig& config) {
  std::vector<std::string> names;
  PortableForwardConfig access = config;
  for (const bool vectors : {true, false}) {
    if (config.planes() == 2 && !vectors) continue;
    access.vectors = vectors;
    names.push_back(kernel_name("portable_attention_forward", access));
  }
  if (config.planes() == 2) {
    const PlanesConfig planes{max(config.key_length(), config.value_length())};
    names.push_back(kernel_name("portable_attention_planes", planes));
  }
  if (config.split) names.push_back(kernel_name("portable_attention_combine", config));
  if (config.fixes_splits()) names.push_back(kernel_name("portable_attention_fixup", config));
  return names;
}

AttentionPlanes portable_attention_planes(const AttentionProblem& problem,
                                          const PortableForwardConfig& config) {
  if (config.planes() != 2) return {};
  const bool scales = config.scale_first || config.bias != DType::kNone ||
                      config.modifier != ScoreModifierKind::kNone;
  return {problem,
          {config.key_length(), config.depth(), kCommonKeyExponent, loss_of_sums(config.depth())},
          {config.value_length(), config.columns(), kCommonValueExponent},
          scales ? 1 : arguments_of(problem).scale_log2_f64};
}
void bind_portable_attention_planes(const PlanesArguments& planes,
                                    PortableForwardArguments* arguments) {
  const PairsOfRows& queries = planes.pairs[0];
  const PairsOfRows& keys = planes.pairs[1];
  arguments->query_planes = rows_of_planes(queries, queries.first);
  arguments->key_planes = rows_of_planes(keys, keys.first);
  arguments->value_planes = rows_of_planes(keys, keys.second);
  arguments->query_numbers = queries.numbers;
  arguments->key_numbers = keys.numbers;
}

PortableForwardArguments portable_attention_arguments(const AttentionProblem& problem,
                                                      const PortableForwardConfig& config) {
  PortableForwardArguments fixed;
  if (config.split) fixed.split_tiles = static_cast<int32_t>(split_tiles_of(problem, config));
  set_portable_attention_lengths(problem, config, &fixed);
  return fixed;
}

void set_portable_attention_lengths(const AttentionProblem& problem,
                                    const PortableForwardConfig& config,
                                    PortableForwardArguments* arguments) {
  PortableForwardArguments& fixed = *arguments;
  static_cast<AttentionArguments&>(fixed) = arguments_of(problem);
  fixed.modifier = static_cast<float>(problem.modifier.value);
  fixed.pack_gqa = pack_of(problem);
  fixed.heads >>= fixed.pack_gqa;
  fixed.group >>= fixed.pack_gqa;
  fixed.batch_heads = static_cast<int32_t>(problem.batch) * fixed.heads;
  fixed.q_tiles = static_cast<int32_t>(tiles_of(problem, false, config.block_rows()));
  fixed.heads_per_section =
      heads_per_section(problem, config.right, fixed.batch_heads, fixed.group);
  fixed.set_divisors(fixed.heads, fixed.group);
  fixed.rows = problem.heads * (problem.ragged ? problem.total_q : problem.batch * problem.q_len);
  if (config.split)
    fixed.num_splits = static_cast<int32_t>(
        max(ceil_div(problem.kv_len, int64_t{fixed.split_tiles} * config.keys), int64_t{1}));
}

int64_t portable_attention_blocks(const PortableForwardArguments& fixed,
                                  const PortableForwardConfig& config) {
  const int64_t heads = fixed.ragged ? fixed.heads : fixed.batch_heads;
  return int64_t{fixed.q_tiles} * heads * config.parts() * fixed.num_splits;
}

size_t portable_attention_workspace(const PortableForwardArguments& fixed) {
  if (fixed.split_tiles == 0) return 0;
  const auto sums = static_cast<size_t>(fixed.num_splits * fixed.rows);
  const size_t bytes =
      sizeof(uint64_t) + sums * static_cast<size_t>(fixed.value_dim + 2) * sizeof(float);
  return (bytes + 15) / 16 * 16;
}
size_t portable_attention_workspace(const AttentionProblem& problem) {
  const AttentionProblem packed = with_heads_as_rows(problem);
  const PortableForwardConfig config = choose_portable_attention(packed);
  return portable_attention_workspace(portable_attention_arguments(packed, config)) +
         portable_attention_planes(packed, config).workspace();
}
void bind_portable_attention_workspace(std::byte* workspace, PortableForwardArguments* arguments) {
  if (arguments->split_tiles == 0) return;
  arguments->nonfinite = reinterpret_cast<uint64_t*>(workspace);
  arguments->split_sums = reinterpret_cast<float*>(workspace + sizeof(uint64_t));
  arguments->split_weights = arguments->split_sums + arguments->num_splits * arguments->rows;
  arguments->split_results = arguments->split_weights + arguments->num_splits * arguments->rows;
}

bool bind_portable_attention(const AttentionForward& tensors, PortableForwardArguments* arguments) {
  bind_lse(tensors.lse, arguments);
  bind(tensors, arguments);
  bool vectors = true;
  if (tensors.out.dtype == DType::kF32) {
    arguments->out_pairs = has_aligned_rows(tensors.out, 2);
    return true;
  }
  for (const Tensor* tensor : {&tensors.query, &tensors.key, &tensors.value, &tensors.out})
    vectors = vectors && has_vectors(*tensor);
  return vectors;
}

Status PortableAttention::make(const AttentionProblem& problem, const PortableForwardConfig& config,
                               Gpu& gpu, std::unique_ptr<PortableAttention>* made) {
  std::unique_ptr<PortableAttention> attention(new PortableAttention(problem, config, gpu));
  Status status =
      gpu.load(kPortableAttentionHeader, portable_attention_kernels(config), &attention->kernels_);
  for (size_t each = 0; each < (config.planes() == 2 ? 1 : 2); ++each)  // without and with vectors
    if (status.ok()) status = gpu.allow_shared(attention->kernels_[each], config.shared_bytes());
  if (!status.ok()) return status;

  const AttentionProblem packed = with_heads_as_rows(problem);
  attention->fixed_ = portable_attention_arguments(packed, config);
  attention->planes_ = portable_attention_planes(packed, config);
  *made = std::move(attention);
  return {};
}

Status PortableAttention::forward(const AttentionForward& given, std::byte* workspace,
                                  void* stream) const {
  if (given.out.elements() == 0) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  PortableForwardArguments arguments = fixed_;
  const AttentionForward tensors = with_heads_as_rows(problem_, given);
  AttentionPlanes planes = planes_;
  if (problem_.max_lengths) {
    const AttentionProblem problem = with_lengths(with_heads_as_rows(problem_), tensors.lengths);
    set_portable_attention_lengths(problem, config_, &arguments);
    planes = portable_attention_planes(problem, config_);
  }
  const bool vectors = bind_portable_attention(tensors, &arguments);
  const Launch launch{.blocks = portable_attention_blocks(arguments, config_),
                      .threads = PortableForwardConfig::threads,
                      .shared_bytes = config_.shared_bytes()};
  bind_portable_attention_workspace(workspace, &arguments);
  arguments.launch = launch_number();
  Status status;
  if (config_.planes() == 2) {
    PlanesArguments rows = planes.bind(tensors.query, tensors.key, tensors.value, nullptr,
                                       workspace + portable_attention_workspace(arguments));
    bind_portable_attention_planes(rows, &arguments);
    status = gpu_.launch(kernels_[1], {.blocks = planes.blocks(), .threads = PlanesConfig::threads},
                         &rows, stream);
  }
  if (status.ok()) status = gpu_.launch(kernels_[vectors ? 0 : 1], launch, &arguments, stream);
  for (size_t each = 2; each < kernels_.size() && status.ok(); ++each)
    status = gpu_.launch(kernels_[each], by_rows_of_splits(arguments, each == 3, gpu_.facts()),
                         &arguments, stream);
  return status;
}

std::string PortableAttention::description() const {
  return concatenate(
      "forward: tiles of ", config_.block_rows(), " queries and ", config_.keys, " keys, ",
      PortableForwardConfig::warps, " warps",
      config_.planes() == 2 ? ", products of two f16 halves" : "",
      config_.split
          ? concatenate(", keys in ", fixed_.num_splits, " splits, merged by a second kernel")
          : "",
      takes_heads_as_rows(problem_) || config_.packs ? ", heads of a key head as its rows" : "");
}

}  // namespace perseid::internal::cuda
