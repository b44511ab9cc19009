// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/context_attention.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "collective/nccl.hpp"
#include "dispatch/memory.hpp"
#include "op/attention.hpp"
#include "op/descriptor.hpp"

namespace perseid::internal::collective {
namespace {

constexpr int64_t kMostChunks = 1024;

}  // namespace

Status ContextAttentionPlan::make(op::DevicePointer device, GroupPointer group,
                                  const perseid_context_attention_desc& desc,
                                  std::unique_ptr<const op::Plan>* plan) {
  const Operation operation(kOperation, desc.deadline_ns);
  Group& ranks = *group;
  if (Status status = NcclLinks::agree(ranks, operation, device->gpu); !status.ok()) return status;
  std::shared_ptr<Stop> stop = Stop::watch(ranks, &device);
  std::unique_ptr<ContextAttentionPlan> made(new ContextAttentionPlan(device, std::move(group)));
  made->stop_ = std::move(stop);
  Status refused;
  if (Status status = made->read(desc, operation, &refused); !status.ok()) return status;
  if (made->ragged_)
    made->lengths_ =
        std::make_unique<ContextLengths>(device, made->batch_, ranks.size(), made->zigzag_,
                                         made->canonical_ && desc.attention->gradients != 0);
  // Again an exchange, as an implementation may refuse on one rank alone.
  made->streams_ = made->wants_to_stream(*desc.attention, desc.fusion);
  Status attention = refused.ok() ? made->make_attention(device, *desc.attention) : refused;
  std::vector<std::string> streaming;
  if (Status status = ranks.exchange(operation, attention, made->streams_ ? "1" : "", &streaming);
      !status.ok())
    return status;
  // Where one rank's kernel does not stream, none does.
  const bool all = std::all_of(streaming.begin(), streaming.end(),
                               [](const std::string& each) { return !each.empty(); });
  if (made->streams_ && !all) {
    made->streams_ = false;
    attention = made->make_attention(device, *desc.attention);
  }
  std::string kernels;
  if (made->canonical_)
    kernels = implementation_of(made->attention_) + (made->leaves_ ? ", a plan for each leaf" : "");
  if (Status status = agree_on_kernels(ranks, operation, attention, kernels); !status.ok())
    return status;
  made->find_readers(*desc.attention);
  made->choose_fusion(desc.fusion);
  if (NcclLinks::carry(ranks)) {
    // What begins when all has arrived leaves no multiprocessor free.
    if (!made->fused_ && std::exchange(made->spared_, 0) > 0)
      attention = made->make_attention(device, *desc.attention);
    if (Status status = ranks.exchange(operation, attention, "", nullptr); !status.ok())
      return status;
  }
  if (Status status = made->make_transports(operation); !status.ok()) return status;
  if (desc.report != 0 && !is_assumed(*device))
    made->report_ =
        std::make_unique<OverlapReport>(kOperation, *made->group_, *made->chunks_, *device);
  made->describe(*desc.attention);
  *plan = std::move(made);
  return {};
}

Status ContextAttentionPlan::read(const perseid_context_attention_desc& desc,
                                  const Operation& operation, Status* refused) {
  op::DescriptorReader reader(kOperation);
  const perseid_attention_desc none{};
  const perseid_attention_desc& given = desc.attention == nullptr ? none : *desc.attention;
  reader.require(desc.attention != nullptr, "attention is NULL, expected its descriptor");
  reader.require(given.async_kv == nullptr, "attention.async_kv is given, expected NULL: the ",
                 "chunks of key and value are those that ranks send");
  for (const auto& [field, value] : {std::pair{"q_lens", int64_t{given.q_lens}},
                                     {"kv_starts", int64_t{given.kv_starts}},
                                     {"kv_batch", given.kv_batch},
                                     {"max_lengths", int64_t{given.max_lengths}}})
    reader.require(value == 0, "attention.", field, " is ", value, ", expected 0 over ranks");
  zigzag_ = reader.choice("placement", desc.placement, 2,
                          "PERSEID_CONTIGUOUS (0) or PERSEID_ZIGZAG (1)") == PERSEID_ZIGZAG;
  const int64_t chunks = desc.chunks == 0 ? 1 : desc.chunks;
  reader.require(1 <= chunks && chunks <= kMostChunks, "chunks is ", desc.chunks,
                 ", expected 1 to ", kMostChunks, " of each piece, or 0 for 1");
  read_rank_plan(reader, desc);
  canonical_ = desc.canonical != 0;
  dtype_ = reader.dtype("attention.dtype", given.dtype);
  rows_first_ = given.layout == PERSEID_BSHD;
  batch_ = reader.batch_of(given.batch, given.zero_batch);
  kv_heads_ =
      reader.size("attention.kv_heads", given.kv_heads == 0 ? given.heads : given.kv_heads, 1);
  head_dim_ = reader.size("attention.head_dim", given.head_dim, 1);
  value_dim_ = reader.size("attention.value_dim",
                           given.value_dim == 0 ? given.head_dim : given.value_dim, 1);
  ragged_ = reader.flag("attention.ragged", given.ragged);
  kv_lens_ = given.kv_lens != 0;
  longest_q_ = reader.size("attention.q_len", given.q_len);
  longest_kv_ = reader.size("attention.kv_len", given.kv_len);
  total_q_ = ragged_ ? reader.size("attention.total_q", given.total_q) : 0;
  kv_rows_ = ragged_ ? reader.size("attention.total_kv", given.total_kv) : longest_kv_;
  for (const auto& [name, size] :
       {std::pair{"attention.q_len", longest_q_}, {"attention.kv_len", longest_kv_}})
    reader.require(!zigzag_ || size % 2 == 0, name, " is ", size, ", expected an even number, as ",
                   "a rank holds two equal pieces of a sequence; pad it, or use ",
                   "PERSEID_CONTIGUOUS");
  reader.extents("key and value of all ranks",
                 {batch_, kv_heads_, kv_rows_ * group_->size(), max(head_dim_, value_dim_)});
  gradients_wanted_ = given.gradients & (PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE);
  accumulate_key_ = (given.accumulate & PERSEID_GRAD_KEY) != 0;
  accumulate_value_ = (given.accumulate & PERSEID_GRAD_VALUE) != 0;

  Terms terms;
  add_device(device(), &terms);
  add_canonical(device(), desc.canonical, &terms);
  terms.equal("placement", desc.placement, {"contiguous", "zigzag"})
      .equal("chunks", chunks)
      .equal("dtype", dtype_)
      .equal("layout", given.layout, {"bshd", "bhsd"})
      .equal("batch", batch_)
      .equal("heads", given.heads)
      .equal("kv_heads", kv_heads_)
      .equal("head_dim", head_dim_)
      .equal("value_dim", value_dim_)
      .equal("causal", given.causal, {"none", "top-left", "bottom-right"})
      .equal("window", given.window)
      .equal("window_left", given.window_left)
      .equal("window_right", given.window_right)
      .equal("window_bottom_right", given.window_bottom_right)
      .equal("dropout in 1/256", dropout_threshold(given.dropout))
      .equal("ragged", given.ragged)
      .equal("kv_lens", given.kv_lens)
      .equal("gradients", gradients_wanted_ / PERSEID_GRAD_KEY,
             {"none of key and value", "key", "value", "key and value"})
      .equal("backward", given.gradients != 0, {"not wanted", "wanted"})
      .equal("scale", std::bit_cast<int64_t>(given.scale), concatenate(given.scale));
  if (canonical_)
    terms.equal("the gradient of bias", (given.gradients & PERSEID_GRAD_BIAS) != 0,
                {"not wanted", "wanted"});
  const Transport& transport = transport_of(device(), *group_);
  by_heads_ = &transport == &kCopyEngines || &transport == &kNccl;
  if (device().gpu != nullptr) spared_ = NcclLinks::multiprocessors(*group_);
  terms.own("groups of heads", reader.ok() ? groups_of_heads(given) : 1);
  terms.own("groups of gradients", reader.ok() ? groups_of_gradients(given, desc.fusion) : 1);
  if (zigzag_ || ragged_) {
    terms.equal("q_len", longest_q_).equal("kv_len", longest_kv_).equal("total_kv", kv_rows_);
  } else {
    terms.own("q_len", longest_q_).own("kv_len", longest_kv_).own("total_kv", kv_rows_);
  }
  if (Status status = terms.agree(*group_, operation, reader.result()); !status.ok()) return status;
  for (int32_t rank = 0; rank < group_->size(); ++rank) q_rows_.push_back(terms.of(rank, "q_len"));
  if (canonical_ && given.gradients != 0)
    if (const std::string why = ContextLeaves::refuse(given, zigzag_, q_rows_); !why.empty())
      *refused = Status::error(PERSEID_UNSUPPORTED, kOperation, ": ", why);
  shards_ = {.dtype = dtype_,
             .outer = ragged_ ? 1 : batch_,
             .inner = kv_heads_ * (head_dim_ + value_dim_),
             .begin = {0}};
  const bool halves = zigzag_ && !ragged_;
  for (int32_t piece = 0; piece < group_->size() * (halves ? 2 : 1); ++piece)
    shards_.begin.push_back(shards_.begin.back() +
                            (halves ? kv_rows_ / 2 : terms.of(piece, "total_kv")));
  chunks_ = std::make_unique<ShardChunks>(shards_, group_->size(), ragged_ ? 1 : chunks);
  // Powers of 2, where there are several.
  const auto least = [&](const char* name) {
    int64_t groups = terms.of(0, name);
    for (int32_t rank = 1; rank < group_->size(); ++rank)
      groups = min(groups, terms.of(rank, name));
    return groups;
  };
  chunks_->groups = least("groups of heads");
  gradient_groups_ = min(chunks_->groups, least("groups of gradients"));
  if (!may_stream()) gradient_groups_ = 1;
  return {};
}

AttentionShard ContextAttentionPlan::shard_of(const perseid_attention_desc& desc) const {
  const bool half = desc.causal != PERSEID_CAUSAL_NONE;
  return {.kv_heads = batch_ * kv_heads_,
          .heads = batch_ * desc.heads,
          .rows = longest_q_,
          .keys = kv_rows_ * group_->size(),
          .seen = half ? 0.5 : 1,
          .columns = head_dim_ + value_dim_};
}

// Seconds to receive the keys and values of the other ranks, or to send their gradients.
double ContextAttentionPlan::transfer_seconds(double element_size) const {
  const auto elements = static_cast<double>((head_dim_ + value_dim_) * batch_ * kv_heads_) *
                        static_cast<double>(kv_rows_) * static_cast<double>(group_->size() - 1);
  return forecast_fusion(device(), *group_, 0, elements * element_size, 1).transfer;
}

int64_t ContextAttentionPlan::groups_of_heads(const perseid_attention_desc& desc) const {
  if (!by_heads_ || size_of(dtype_) != 2 || (ragged_ && canonical_)) return 1;
  if (!ragged_) return head_groups(shard_of(desc), transfer_seconds(2));
  // Sequences in place of key heads, each of the mean length.
  AttentionShard mean = shard_of(desc);
  const int64_t batch = max(batch_, int64_t{1});
  mean.kv_heads = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(batch)));
  mean.rows = ceil_div(total_q_, batch);
  mean.keys = ceil_div(mean.keys, batch);
  return head_groups(mean, transfer_seconds(2));
}

// A launch of a group has to fill the multiprocessors well. It counts its heads from 0, which no
// dropout or bias may notice.
int64_t ContextAttentionPlan::groups_of_gradients(const perseid_attention_desc& desc,
                                                  uint32_t fusion) const {
  constexpr int64_t kTileKeys = 128, kFewestTiles = 512;
  if (fusion != PERSEID_FUSION_AUTO || batch_ != 1 || desc.bias != 0 ||
      dropout_threshold(desc.dropout) < 256)
    return 1;
  const int64_t tiles = kv_heads_ * ceil_div(kv_rows_ * group_->size(), kTileKeys);
  int64_t groups = 1;
  while (kv_heads_ % (2 * groups) == 0 && tiles / (2 * groups) >= kFewestTiles) groups *= 2;
  return groups;
}

// Two ranks exchange little, and launches of groups of heads hide most of it: there waiting in the
// kernel gained nothing.
bool ContextAttentionPlan::wants_to_stream(const perseid_attention_desc& desc,
                                           uint32_t fusion) const {
  if (!may_stream() || fusion != PERSEID_FUSION_AUTO)
    return may_stream() && fusion == PERSEID_FUSED;
  return size_of(dtype_) == 2 && group_->size() > 2 && gradient_groups_ == 1 &&
         backward_streams(shard_of(desc), transfer_seconds(2) + transfer_seconds(sizeof(float)),
                          device().gpu->facts().multiprocessors);
}

QueryRows ContextAttentionPlan::placement_of(int32_t rank) const {
  QueryRows rows{.ranks = group_->size(), .rank = rank, .zigzag = zigzag_, .canonical = canonical_};
  if (zigzag_ || ragged_) return rows;
  rows.begin = 0;
  for (int32_t r = 0; r < group_->size(); ++r) {
    const int64_t size = q_rows_[static_cast<size_t>(r)];
    if (r < rank) rows.begin += size;
    rows.total += size;
  }
  return rows;
}

Status ContextAttentionPlan::make_attention(const op::DevicePointer& device,
                                            const perseid_attention_desc& desc) {
  leaves_.reset();
  auto arriving = sized<perseid_async_operand>();
  arriving.dim = PERSEID_CHUNK_KV;
  arriving.count = chunks_->count();
  arriving.begin = chunks_->begin.data();
  perseid_attention_desc inner = desc;
  inner.kv_len = ragged_ ? longest_kv_ * group_->size() : shards_.extent();
  inner.total_kv = ragged_ ? shards_.extent() : 0;
  // The sum over ranks adds to what the gradients hold; a rank's partial gradients overwrite.
  inner.accumulate &= ~uint32_t{PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE};
  if (takes_chunks() && chunks_->count() > 0) inner.async_kv = &arriving;
  const QueryRows rows = placement_of(group_->rank());
  Status status;
  std::vector<int32_t> stages;  // owners in the order in which their keys arrive
  for (int64_t chunk = 0; chunk < chunks_->count(); ++chunk)
    stages.push_back((chunks_->owner(chunk) - group_->rank() + group_->size()) % group_->size());
  const auto arrives = [&](bool backward) {
    return op::AttentionPlan::Arriving{chunks_->groups, backward, stages.data(), traffic(),
                                       spared_};
  };
  if (streams_) {
    status = op::AttentionPlan::make(device, inner, &attention_, rows, arrives(true));
    if (status.code() != PERSEID_UNSUPPORTED) return status;
    streams_ = false;
  }
  const auto make = [&] {
    return op::AttentionPlan::make(device, inner, &attention_, rows, arrives(false));
  };
  // Where the attention's kernels have no leaves, each leaf has a plan.
  bool leaves = canonical_ && desc.gradients != 0;
  if (!leaves || device->gpu != nullptr) {
    status = make();
    leaves = leaves && status.code() == PERSEID_UNSUPPORTED;
  }
  if (leaves) {
    perseid_attention_desc all_keys = inner;
    all_keys.async_kv = nullptr;
    inner.gradients = inner.accumulate = 0;
    status = ContextLeaves::make(device, all_keys, rows, &leaves_);
    if (!status.ok()) return status;
    status = make();
  }
  if (status.code() == PERSEID_UNSUPPORTED && inner.async_kv != nullptr) {
    inner.async_kv = nullptr;
    // If that is refused too, the first sentence says why.
    Status whole = op::AttentionPlan::make(device, inner, &attention_, rows);
    if (whole.ok()) status = std::move(whole);
  }
  waits_before_ = inner.async_kv == nullptr;
  if (!status.ok() || gradient_groups_ == 1) return status;
  // Each launch waits for the keys of its group before.
  inner.async_kv = nullptr;
  inner.heads /= gradient_groups_;
  inner.kv_heads = kv_heads_ / gradient_groups_;
  return op::AttentionPlan::make(device, inner, &group_attention_, rows);
}

// Keys of a rank and a group of heads, and their gradients in float32.
ChunkTraffic ContextAttentionPlan::traffic() const {
  const auto keys =
      static_cast<double>(shards_.bytes()) / static_cast<double>(group_->size() * chunks_->groups);
  const auto forecast = [&](double bytes) {
    return forecast_fusion(device(), *group_, 0, bytes, 1);
  };
  const FusionForecast once = forecast(keys);
  const double each = forecast(2 * keys).transfer - once.transfer,
               gradients =
                   static_cast<double>(sizeof(float)) / static_cast<double>(size_of(dtype_));
  return {.latency = once.transfer - each,
          .arrival = each + once.chunk,
          .departure = gradients * each + once.chunk};
}

// A row's keys are visited in the same order either way, so that the bits are the same.
void ContextAttentionPlan::choose_fusion(uint32_t wanted) {
  int64_t rows = 0;  // that arrive
  for (int64_t chunk = 0; chunk < chunks_->count(); ++chunk) {
    const auto c = static_cast<size_t>(chunk);
    if (chunks_->owner(chunk) != group_->rank() && (readers_[c] >> group_->rank() & 1) != 0)
      rows += chunks_->begin[c + 1] - chunks_->begin[c];
  }
  auto info = sized<perseid_plan_info>();
  attention_->query(&info);
  FusionForecast forecast =
      forecast_fusion(device(), *group_, attention_seconds(device(), dtype_, info.forward_flops),
                      static_cast<double>(shards_.outer * rows * shards_.inner * size_of(dtype_)),
                      chunks_->count());
  forecast.computation = "attention";
  if (forecast.staged == nullptr && waits_before_)
    forecast.staged = takes_chunks() ? "the implementation takes no chunks"
                                     : "each rank has a part of every sequence";
  fused_ = collective::choose_fusion(wanted, forecast, &why_);
}

Status ContextAttentionPlan::make_transports(const Operation& operation) {
  if (is_assumed(device())) return {};  // nothing is executed
  const TransportSite site{*group_, operation, device()};
  Shards gathered = shards_;
  if (by_heads_) gathered.inner *= std::exchange(gathered.outer, 1);  // in another order
  Status status = transport_of(device(), *group_).make_gather(site, gathered, *chunks_, &keys_);
  if (!status.ok()) return status;
  view(keys_->gathered(), dtype_, by_heads_, &gathered_);
  if (status = clear_unread(operation); !status.ok()) return status;
  epoch_ = group_->first_epoch() - 1;
  if (streams_ || group_attention_ != nullptr) {
    status = make_streamed(site);
    if (!status.ok()) return status;
  } else if (gradients_wanted_ != 0 && chunks_->count() > 0) {
    // As the attention writes them; one piece of all rows.
    Shards shards = shards_;
    if (size_of(dtype_) == 2 && (group_->size() > 1 || canonical_)) shards.dtype = DType::kF32;
    shards.begin = {0, shards_.extent()};
    int64_t most = 0;
    for (int32_t rank = 0; rank < group_->size(); ++rank) {
      const bool halves = zigzag_ && !ragged_;
      most = max(most,
                 shards_.size(rank) + (halves ? shards_.size(2 * group_->size() - 1 - rank) : 0));
    }
    status = PartialGradients::make(site, shards, most, dtype_,
                                    {accumulate_key_, accumulate_value_}, canonical_, &gradients_);
    if (status.ok() && leaves_ != nullptr)
      status = group_->exchange(operation, leaves_->make_buffers(shards.bytes()), "", nullptr);
    if (!status.ok()) return status;
    sums_.resize(leaves_ == nullptr ? 1 : static_cast<size_t>(leaves_->buffers()));
    for (size_t i = 0; i < sums_.size(); ++i) {
      std::byte* const data = i == 0 ? gradients_->partial() : leaves_->buffer(i);
      view(data, shards.dtype, false, &sums_[i]);
      const auto of_ranks = [&](uint32_t bit, const DLTensor& sum) {
        return (gradients_wanted_ & bit) != 0 ? &sum : nullptr;
      };
      buffers_.push_back({data, of_ranks(PERSEID_GRAD_KEY, sums_[i].key_dl),
                          of_ranks(PERSEID_GRAD_VALUE, sums_[i].value_dl)});
    }
  }
  const int64_t pieces = zigzag_ ? 2 : 1;
  const int64_t runs = ragged_ ? batch_ * pieces + chunks_->groups : chunks_->count() * batch_;
  parts_.reserve(static_cast<size_t>(max(2 * max(runs, int64_t{1}), chunks_->words())));
  if (by_heads_) {
    own_.reserve(static_cast<size_t>(2 * runs));
    status = group_->exchange(operation, cuda::load_copy_rows(*device().gpu), "", nullptr);
  }
  if (!ragged_ || !status.ok()) return status;
  return group_->exchange(operation, lengths_->make(), "", nullptr);
}

void ContextAttentionPlan::describe(const perseid_attention_desc& desc) {
  auto info = sized<perseid_plan_info>();
  attention_->query(&info);
  dispatch::Explanation explanation{.operation = kOperation};
  explanation.problem = {{"dtype", internal::name_of(dtype_)},
                         {"placement", zigzag_ ? "zigzag" : "contiguous"},
                         {"rank", int64_t{group_->rank()}},
                         {"ranks", int64_t{group_->size()}},
                         {"batch", batch_},
                         {"heads", desc.heads},
                         {"kv_heads", kv_heads_},
                         {"q_len", longest_q_},
                         {"kv_len", longest_kv_},
                         {"head_dim", head_dim_},
                         {"value_dim", value_dim_},
                         {"chunks", chunks_->count()}};
  if (canonical_) explanation.problem.emplace_back("canonical", "yes");
  explanation.forward = {.flops = info.forward_flops, .bytes = info.forward_bytes};
  (void)attention_->workspace_size(dispatch::Direction::kForward, &explanation.forward.workspace);
  if (leaves_ != nullptr) {
    explanation.backward = leaves_->work();
  } else if (desc.gradients != 0) {
    explanation.backward = {.flops = info.backward_flops, .bytes = info.backward_bytes};
    for (const InnerPlan* plan : {&attention_, &group_attention_}) {
      size_t bytes = 0;
      if (*plan != nullptr) (void)(*plan)->workspace_size(dispatch::Direction::kBackward, &bytes);
      explanation.backward->workspace = max(explanation.backward->workspace, bytes);
    }
  }
  explanation.considered = {
      {transport_of(device(), *group_).name, dispatch::Verdict::kChosen,
       concatenate(
           "keys and values are gathered for one ", info.implementation,
           !fused_      ? " that begins when all have arrived"
           : canonical_ ? " that begins with the first ones"
                        : " that begins with the own ones",
           chunks_->groups == 1 ? ""
                                : concatenate(ragged_ ? ", sequences in " : ", heads in ",
                                              chunks_->groups, " groups"),
           "; ", why_,
           streams_ ? "; backward begins with the own keys, and gradients leave while it runs" : "",
           leaves_ == nullptr ? "" : concatenate("; ", leaves_->text()),
           group_attention_ == nullptr
               ? ""
               : concatenate("; backward of ", gradient_groups_, " groups of heads, whose ",
                             "gradients leave while those of the next are computed"))}};
  explain(std::move(explanation));
}

Tensor ContextAttentionPlan::read_keys(op::ArgumentReader& reader, op::Access access,
                                       const char* name, const DLTensor* tensor,
                                       const char* dim_name, int64_t dim) const {
  const op::Extent rows{ragged_ ? "total_kv" : "kv_len", kv_rows_}, heads{"kv_heads", kv_heads_};
  const op::Extent extents[] = {
      {"batch", batch_}, rows_first_ ? rows : heads, rows_first_ ? heads : rows, {dim_name, dim}};
  Tensor view =
      reader.read(access, name, tensor, dtype_, std::span(extents).subspan(ragged_ ? 1 : 0));
  if (!reader.ok()) return view;
  if (ragged_) {
    std::copy_backward(view.shape, view.shape + 3, view.shape + 4);
    std::copy_backward(view.stride, view.stride + 3, view.stride + 4);
    view.rank = 4;
    view.shape[0] = 1;
    view.stride[0] = 0;
  }
  if (!rows_first_) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.stride[1], view.stride[2]);
  }
  return view;
}

template <class Args>
Status ContextAttentionPlan::read_inputs(op::ArgumentReader& reader, const Args* args, Tensor* key,
                                         Tensor* value) const {
  if (!reader.require(args != nullptr, "attention is NULL, expected its arguments")) return {};
  *key = read_keys(reader, op::Access::kRead, "key", args->key, "head_dim", head_dim_);
  *value = read_keys(reader, op::Access::kRead, "value", args->value, "value_dim", value_dim_);
  if (!ragged_) return {};
  return lengths_->read(kOperation, args->cu_seqlens_q, {longest_q_, total_q_}, args->cu_seqlens_kv,
                        {longest_kv_, kv_rows_});
}

template Status ContextAttentionPlan::read_inputs(op::ArgumentReader&,
                                                  const perseid_attention_backward_args*, Tensor*,
                                                  Tensor*) const;

// What copy engines and sums take.
void ContextAttentionPlan::require_rows(
    op::ArgumentReader& reader,
    std::initializer_list<std::pair<const char*, const Tensor*>> tensors) const {
  if (device().gpu == nullptr) return;
  for (const auto& [name, tensor] : tensors)
    reader.require(tensor->empty() || tensor->stride[3] == 1, name,
                   " has gaps between the elements of a row; pass a tensor without");
}

Status ContextAttentionPlan::forward(const perseid_context_attention_forward_args& args,
                                     const op::Workspace& workspace, void* stream) const {
  const Operation operation(kOperation, args.deadline_ns);
  op::ArgumentReader reader(kOperation, device().dl_device());
  Tensor key, value;
  if (Status status = read_inputs(reader, args.attention, &key, &value); !status.ok())
    return status;
  if (reader.ok())
    reader.require(args.attention->arrival_kv == nullptr,
                   "arrival_kv is given, expected NULL: the ranks bring keys and values");
  require_rows(reader, {{"key", &key}, {"value", &value}});
  if (Status status = reader.finish(); !status.ok()) return status;
  if (Status status = refuse_capture(device(), operation, stream); !status.ok()) return status;
  // Once the keys are sent, no argument is refused: a corrected call would be another operation.
  const perseid_attention_forward_args inner = arguments_of(*args.attention);
  std::byte* unused = nullptr;
  if (Status status = take(reader, dispatch::Direction::kForward, workspace, &unused); !status.ok())
    return status;
  if (Status status = attention_of(attention_).check_forward(inner, workspace); !status.ok())
    return status;
  if (args.record != nullptr) *args.record = {PERSEID_OK, -1, 0, -1, 0, 0};

  const Turn turn(*group_, operation);
  if (!turn.status().ok())
    return recorded(*group_, {epoch_ + 1, stream, args.record}, turn.status());
  const ReportedExecution reported(report_.get(), stream);
  const Sending sending{++epoch_, stream, args.record, report_.get()};
  Status status = send(operation, sending, key, value);
  const bool sent = status.ok();
  if (sent && !fused_) status = keys_->launched(sending);
  const WatchedWork work(stop_.get(), operation, sending, [this, &sending](uint64_t but_of) {
    return find_missing(*chunks_, group_->rank(), keys_->signals(), sending.epoch, but_of,
                        readers_);
  });
  if (status.ok()) status = attend(operation, inner, sending, workspace, work);
  if (sent && fused_) {
    const Status launched = keys_->launched(sending);
    if (status.ok()) status = launched;
  }
  // The others have this rank's keys and go on, whatever failed here.
  const Status finished = keys_->finish(sending);
  return status.ok() ? finished : status;
}

// The arguments of the attention over all keys and values.
template <class Args>
Args ContextAttentionPlan::arguments_of(const Args& args) const {
  Args inner = args;
  inner.key = &gathered_.key_dl;
  inner.value = &gathered_.value_dl;
  if (!ragged_) return inner;
  inner.cu_seqlens_q = lengths_->queries_given();
  inner.cu_seqlens_kv = lengths_->keys_given();
  return inner;
}

template perseid_attention_backward_args ContextAttentionPlan::arguments_of(
    const perseid_attention_backward_args&) const;

Status ContextAttentionPlan::attend(const Operation& operation,
                                    perseid_attention_forward_args inner, const Sending& sending,
                                    const op::Workspace& workspace, const WatchedWork& work) const {
  perseid_arrival arrival{};
  perseid_wait_record record{};
  Status status;
  if (ragged_) status = lengths_->send(sending.stream);
  if (!status.ok()) return status;
  if (!fused_) status = await_all(operation, sending);
  if (status.ok() && !waits_before_ && chunks_->count() > 0) {
    arrival = keys_->arrival(operation, sending.epoch);
    arrival.first_chunk = canonical_ ? 0 : chunks_->pivot(group_->rank());
    if (device().gpu == nullptr) arrival.record = &record;
    inner.arrival_kv = &arrival;
  }
  if (status.ok()) {
    const ChunkTimers timers =
        inner.arrival_kv != nullptr ? timers_of(report_.get(), true) : ChunkTimers();
    const Reported computing(timers.cpu == nullptr ? report_.get() : nullptr,
                             OverlapReport::Kind::kCompute, OverlapReport::kNoChunk, group_->rank(),
                             sending.stream);
    status = attention_of(attention_).forward_timed(inner, workspace, sending.stream, timers);
  }
  if (inner.arrival_kv != nullptr)
    status = end_of_waits(*group_, operation, *chunks_, sending, record, std::move(status));
  return work.ended(std::move(status));
}

}  // namespace perseid::internal::collective
