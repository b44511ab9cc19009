// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/all_gather_matmul.hpp"

#include <utility>

#include "collective/float8.hpp"
#include "collective/fusion.hpp"
#include "collective/nccl.hpp"
#include "cuda/runtime/copy_queue.hpp"
#include "cuda/runtime/signals.hpp"
#include "op/chunks.hpp"
#include "op/descriptor.hpp"

namespace perseid::internal::collective {
namespace {

constexpr int64_t kMostChunks = 1024;
// The last shard comes in so many slices of k where the transfer takes longer than this
// share of the product.
constexpr int64_t kLeastSlices = 3, kMostSlices = 8;
constexpr double kSlicedFrom = 0.7;

// [1, rows, columns] as the transport moves it where columns are gathered: [rows, columns, 1].
Tensor columns_as_extent(Tensor matrix) {
  return {.data = matrix.data,
          .dtype = matrix.dtype,
          .rank = 3,
          .shape = {matrix.shape[1], matrix.shape[2], 1},
          .stride = {matrix.stride[1], matrix.stride[2], 1}};
}

}  // namespace

Status AllGatherMatmulPlan::make(op::DevicePointer device, GroupPointer group,
                                 const perseid_all_gather_matmul_desc& desc,
                                 std::unique_ptr<const op::Plan>* plan) {
  const Operation operation(kOperation, desc.deadline_ns);
  Group& ranks = *group;
  std::shared_ptr<Stop> stop = Stop::watch(ranks, &device);
  std::unique_ptr<AllGatherMatmulPlan> made(new AllGatherMatmulPlan(device, std::move(group)));
  made->stop_ = std::move(stop);
  op::DescriptorReader reader(kOperation);
  made->shards_.dtype = reader.dtype("dtype", desc.dtype, DType::kNone, true);
  made->batch_ = reader.size("batch", desc.batch == 0 ? 1 : desc.batch, 1);
  made->m_ = reader.size("m", desc.m);
  made->k_ = reader.size("k", desc.k);
  reader.require(desc.gather_dim == PERSEID_CHUNK_DEFAULT || desc.gather_dim == PERSEID_CHUNK_M ||
                     desc.gather_dim == PERSEID_CHUNK_K,
                 "gather_dim is ", desc.gather_dim, ", expected m (1, also 0) or k (3)");
  made->along_k_ = desc.gather_dim == PERSEID_CHUNK_K;
  reader.require(!made->along_k_ || made->batch_ == 1, "batch is ", made->batch_,
                 ", expected 1 where k is gathered; make rows of the entries, or gather m");
  reader.require(1 <= desc.product_count && desc.product_count <= kMostProducts,
                 "product_count is ", desc.product_count, ", expected 1 to ", kMostProducts);
  reader.require(desc.products != nullptr, "products is NULL, expected ", desc.product_count);
  reader.require(0 <= desc.chunks && desc.chunks <= kMostChunks, "chunks is ", desc.chunks,
                 ", expected 1 to ", kMostChunks, " of each shard, or 0");
  reader.extents("a", {made->batch_, made->m_, made->k_});
  read_rank_plan(reader, desc);
  made->read_scales(reader, desc);

  Terms terms;
  add_device(*device, &terms);
  terms.equal("dtype", made->shards_.dtype)
      .equal("gather_dim", made->along_k_, {"m", "k"})
      .equal("batch", made->batch_)
      .equal("chunks", desc.chunks)
      .equal("product_count", desc.product_count)
      .equal("sharded_scales", desc.sharded_scales);
  add_canonical(*device, desc.canonical, &terms);
  add_float8_terms(desc, &terms);
  if (made->along_k_) {
    terms.equal("m", made->m_).own("k", made->k_);
  } else {
    terms.own("m", made->m_).equal("k", made->k_);
  }
  if (Status status = terms.agree(ranks, operation, reader.result()); !status.ok()) return status;

  if (Status status = NcclLinks::agree(ranks, operation, device->gpu); !status.ok()) return status;

  Shards& shards = made->shards_;
  shards.outer = made->along_k_ ? made->m_ : made->batch_;
  shards.inner = made->along_k_ ? 1 : made->k_;
  shards.begin = {0};
  for (int32_t rank = 0; rank < ranks.size(); ++rank)
    shards.begin.push_back(shards.begin.back() + terms.of(rank, made->along_k_ ? "k" : "m"));
  // The rank before sends slices where all ranks want them.
  int64_t sliced_rows = 0, each = max(desc.chunks, int64_t{1});
  if (device->gpu != nullptr) {
    if (desc.chunks == 0) each = made->chunks_on_gpu(desc);
    Terms wishes;
    wishes.own("chunks", each).own("sliced rows", made->rows_to_slice(desc, ranks.size() * each));
    if (Status status = wishes.agree(ranks, operation, {}); !status.ok()) return status;
    for (int32_t rank = 0; rank < ranks.size(); ++rank) each = max(each, wishes.of(rank, "chunks"));
    bool all = true, some_before = false;
    for (int32_t rank = 0; rank < ranks.size(); ++rank) {
      const int64_t wish = wishes.of(rank, "sliced rows");
      all = all && wish > 0;
      some_before = some_before || wish < shards.size((rank + ranks.size() - 1) % ranks.size());
    }
    if (all) {
      sliced_rows = wishes.of(ranks.rank(), "sliced rows");
      made->sliced_for_next_ = wishes.of((ranks.rank() + 1) % ranks.size(), "sliced rows");
      each = std::clamp(each, kLeastSlices + (some_before ? 1 : 0), kMostSlices);
    }
  }
  made->chunks_ = std::make_unique<ShardChunks>(shards, ranks.size(), each);
  // Again an exchange, as an implementation may refuse on one rank alone.
  const Status products = made->make_products(device, desc, sliced_rows);
  std::string kernels;
  for (const Product& product : made->products_)
    if (desc.canonical != 0)
      kernels += (kernels.empty() ? "" : ", ") + implementation_of(product.plan);
  if (Status status = agree_on_kernels(ranks, operation, products, kernels); !status.ok())
    return status;
  if (Status status = made->make_transports({ranks, operation, *device}, desc); !status.ok())
    return status;

  std::byte* data = made->transport_ == nullptr ? nullptr : made->transport_->gathered();
  const int64_t extent = shards.extent(), begin = shards.begin_of(ranks.rank());
  const int64_t row = made->along_k_ ? extent : made->k_;
  made->gathered_ = {.data = data,
                     .dtype = shards.dtype,
                     .rank = 3,
                     .shape = {made->batch_, made->along_k_ ? made->m_ : extent, row},
                     .stride = {(made->along_k_ ? made->m_ : extent) * row, row, 1}};
  made->shard_ = made->gathered_;
  made->shard_.shape[1] = made->m_;
  made->shard_.shape[2] = made->k_;
  if (data != nullptr)
    made->shard_.data = data + begin * (made->along_k_ ? 1 : row) * size_of(shards.dtype);
  made->gathered_dl_ = as_dl(&made->gathered_, device->dl_device());
  made->shard_dl_ = as_dl(&made->shard_, device->dl_device());
  made->parts_.reserve(static_cast<size_t>(each));
  made->for_next_.reserve(static_cast<size_t>(each));
  made->epoch_ = ranks.first_epoch() - 1;
  if (desc.report != 0 && !is_assumed(*device))
    made->report_ = std::make_unique<OverlapReport>(kOperation, ranks, *made->chunks_, *device);
  made->describe(desc);
  *plan = std::move(made);
  return {};
}

Status AllGatherMatmulPlan::make_transports(const TransportSite& site,
                                            const perseid_all_gather_matmul_desc& desc) {
  if (is_assumed(site.device)) return {};  // nothing is executed
  Status status =
      transport_of(site.device, site.group).make_gather(site, shards_, *chunks_, &transport_);
  if (status.ok() && desc.sharded_scales == 1)
    status = ScaleGather::make(site, batch_, shards_.begin, *chunks_, &scales_);
  return status;
}

void AllGatherMatmulPlan::read_scales(op::DescriptorReader& reader,
                                      const perseid_all_gather_matmul_desc& desc) {
  scaling_ = read_scaling(reader, desc);
  reader.flag("sharded_scales", desc.sharded_scales);
  reader.require(
      desc.sharded_scales != 1 || scaling_ == Scaling::kRow, "sharded_scales is 1, but scaling is ",
      desc.scaling,
      ", expected PERSEID_SCALE_ROW (2): one scale of a tensor is the same on all ranks");
  reader.require(
      desc.sharded_scales != 1 || !along_k_,
      "sharded_scales is 1, but k is gathered: every rank has columns of all rows; leave "
      "it 0 and pass the scales of all rows on each rank");
  for (uint32_t i = 0; reader.ok() && i < desc.product_count; ++i)
    refuse_float8_result(reader, concatenate("out_dtype of product ", i),
                         static_cast<DType>(desc.products[i].out_dtype));
}

perseid_matmul_desc AllGatherMatmulPlan::product_of(const perseid_all_gather_matmul_desc& desc,
                                                    const perseid_gather_product& product) const {
  auto inner = sized<perseid_matmul_desc>();
  inner.dtype = desc.dtype;
  inner.out_dtype = product.out_dtype;
  inner.bias = product.bias;
  inner.batch = batch_;
  inner.m = along_k_ ? m_ : shards_.extent();
  inner.n = product.n;
  inner.k = along_k_ ? shards_.extent() : k_;
  inner.alpha = product.alpha;
  inner.implementation = desc.implementation;
  set_float8(desc, &inner);
  return inner;
}

FusionForecast AllGatherMatmulPlan::predict(const perseid_all_gather_matmul_desc& desc,
                                            int64_t chunks) const {
  double seconds = 0;
  for (const perseid_gather_product& product : std::span(desc.products, desc.product_count)) {
    const perseid_matmul_desc inner = product_of(desc, product);
    if (inner.n > 0)
      seconds += product_seconds(
          device(),
          {.dtype = shards_.dtype, .batch = batch_, .m = inner.m, .n = inner.n, .k = inner.k});
  }
  const auto received = static_cast<double>(shards_.outer * shards_.inner *
                                            (shards_.extent() - shards_.size(group_->rank())) *
                                            size_of(shards_.dtype));
  return forecast_fusion(device(), *group_, seconds, received, chunks);
}

// Of a shard. A chunk costs some microseconds, but the first tiles of a shard wait for a whole
// chunk.
int64_t AllGatherMatmulPlan::chunks_on_gpu(const perseid_all_gather_matmul_desc& desc) const {
  constexpr double kLongProduct = 4;  // in transfers
  const FusionForecast forecast = predict(desc, group_->size());
  return forecast.product > kLongProduct * forecast.transfer ? 1 : 2;
}

int64_t AllGatherMatmulPlan::rows_to_slice(const perseid_all_gather_matmul_desc& desc,
                                           int64_t chunks) const {
  if (along_k_ || group_->size() == 1 || !group_->shares_memory() ||
      desc.fusion == PERSEID_UNFUSED || desc.canonical != 0 ||
      !SlicedProduct::may_take(device(), product_of(desc, desc.products[0]), shards_))
    return 0;
  const FusionForecast forecast = predict(desc, max(chunks, kLeastSlices * group_->size()));
  if (forecast.transfer <= kSlicedFrom * forecast.product) return 0;
  if (desc.fusion == PERSEID_FUSION_AUTO && forecast.fused() >= forecast.unfused()) return 0;
  const int32_t last = (group_->rank() + group_->size() - 1) % group_->size();
  return SlicedProduct::sliced_rows(device(), desc.products[0].n, shards_.size(last));
}

Status AllGatherMatmulPlan::make_products(const op::DevicePointer& device,
                                          const perseid_all_gather_matmul_desc& desc,
                                          int64_t sliced_rows) {
  const bool sliced = sliced_rows > 0;
  FusionForecast forecast = predict(desc, chunks_->count());
  const bool wanted = choose_fusion(desc.fusion, forecast, &why_);
  fused_ = sliced || wanted;
  // A product without elements waits for nothing.
  if (shards_.bytes() == 0 || desc.products[0].n == 0) {
    fused_ = false;
    why_ = "the first product is empty";
  }

  // The first product waits for the chunks; then they are all there.
  auto arriving = sized<perseid_async_operand>();
  arriving.dim = along_k_ ? PERSEID_CHUNK_K : PERSEID_CHUNK_M;
  arriving.count = chunks_->count();
  arriving.begin = chunks_->begin.data();
  for (uint32_t i = 0; i < desc.product_count; ++i) {
    perseid_matmul_desc inner = product_of(desc, desc.products[i]);
    const DType out = inner.out_dtype == 0 ? default_out_dtype(shards_.dtype)
                                           : static_cast<DType>(inner.out_dtype);
    products_.push_back({.plan = nullptr, .n = inner.n, .out_dtype = out});
    Status status;
    if (i == 0 && sliced) {
      status = SlicedProduct::make(device, inner, shards_, *chunks_, group_->rank(), sliced_rows,
                                   &sliced_);
    } else {
      InnerPlan& plan = products_.back().plan;
      if (i == 0 && fused_) inner.async_a = &arriving;
      // No rank sums a part of the depth: canonical order is that of one leaf.
      op::MatmulOfRanks of_ranks{.leaves = desc.canonical};
      if (inner.async_a != nullptr) of_ranks.spared = forecast.spared;
      status = make_matmul(device, inner, &plan, of_ranks);
      if (inner.async_a != nullptr && forecast.spared > 0 && status.code() == PERSEID_UNSUPPORTED) {
        forecast.staged = "a product that waits would leave no multiprocessor to NCCL";
        fused_ = choose_fusion(desc.fusion, forecast, &why_);
        inner.async_a = nullptr;
        of_ranks.spared = 0;
        status = make_matmul(device, inner, &plan, of_ranks);
      }
    }
    if (!status.ok()) return status;
  }
  return {};
}

void AllGatherMatmulPlan::describe(const perseid_all_gather_matmul_desc& desc) {
  const Transport& transport = transport_of(device(), *group_);
  dispatch::Explanation explanation{.operation = kOperation};
  explanation.problem = {{"dtype", internal::name_of(shards_.dtype)},
                         {"gather_dim", along_k_ ? "k" : "m"},
                         {"rank", int64_t{group_->rank()}},
                         {"ranks", int64_t{group_->size()}},
                         {"batch", batch_},
                         {"m", gathered_.shape[1]},
                         {"k", gathered_.shape[2]},
                         {"chunks", chunks_->count()},
                         {"products", int64_t{desc.product_count}}};
  if (desc.canonical != 0) explanation.problem.emplace_back("canonical", "yes");
  describe_float8(desc, &explanation);
  if (desc.sharded_scales == 1) explanation.problem.emplace_back("sharded_scales", "yes");
  std::string inner;
  const auto count = [&](const op::Plan& product) {
    auto info = sized<perseid_plan_info>();
    product.query(&info);
    explanation.forward.flops += info.forward_flops;
    explanation.forward.bytes += info.forward_bytes;
    size_t bytes = 0;
    if (product.workspace_size(dispatch::Direction::kForward, &bytes).ok())
      explanation.forward.workspace = std::max(explanation.forward.workspace, bytes);
    inner = info.implementation;
  };
  for (const Product& product : products_)
    if (product.plan != nullptr) count(*product.plan);
  if (sliced_ != nullptr) sliced_->for_each_plan(count);
  explanation.considered = {
      {transport.name, dispatch::Verdict::kChosen,
       concatenate(transport.how, ", each product is one ", inner,
                   fused_ ? " that begins with the own shard; "
                          : " that begins when all shards have arrived; ",
                   why_, sliced_ == nullptr ? "" : "; the last shard comes in slices of k")}};
  explain(std::move(explanation));
}

Status AllGatherMatmulPlan::execute(const perseid_all_gather_matmul_args& args,
                                    const op::Workspace& workspace, void* stream) const {
  const Operation operation(kOperation, args.deadline_ns);
  op::ArgumentReader reader(kOperation, device().dl_device());
  const op::Extent batch{"batch", batch_}, m{"m", m_}, k{"k", k_}, all_m{"m", gathered_.shape[1]},
      all_k{"k", gathered_.shape[2]};
  const DType dtype = shards_.dtype;
  const auto read = [&](op::Access access, const char* name, const DLTensor* tensor, DType type,
                        const op::Extent& rows, const op::Extent& columns) {
    const op::Extent extents[] = {batch, rows, columns};
    const bool flat = tensor != nullptr && tensor->ndim == 2 && batch_ == 1;
    Tensor view = reader.read(access, name, tensor, type,
                              flat ? std::span(extents).subspan(1) : std::span(extents));
    if (!flat || !reader.ok()) return view;
    view.rank = 3;
    std::copy_backward(view.shape, view.shape + 2, view.shape + 3);
    std::copy_backward(view.stride, view.stride + 2, view.stride + 3);
    view.shape[0] = 1;
    view.stride[0] = view.shape[1] * view.stride[1];
    return view;
  };
  const Tensor a = read(op::Access::kRead, "a", args.a, dtype, m, k);
  Tensor gathered;
  if (args.gathered != nullptr)
    gathered = read(op::Access::kWrite, "gathered", args.gathered, dtype, all_m, all_k);
  if (device().gpu != nullptr)
    for (const auto& [name, tensor] : {std::pair{"a", &a}, {"gathered", &gathered}})
      reader.require(!tensor->present() || cuda::is_copyable(*tensor), name,
                     " has gaps between the elements of a row; copy it into a tensor without");
  Tensor own_scales;
  if (scales_ != nullptr) own_scales = read_own_scales(reader, args.scale_a);
  reader.require(scaling_ == Scaling::kNone || args.scale_b != nullptr,
                 "scale_b is NULL, expected a tensor of each product");
  reader.require(args.b != nullptr, "b is NULL, expected a tensor of each product");
  reader.require(args.c != nullptr, "c is NULL, expected a tensor of each product");
  Tensor c;
  if (sliced_ != nullptr && args.c != nullptr)
    c = read(op::Access::kWrite, "c", args.c[0], products_[0].out_dtype, all_m,
             {"n", products_[0].n});
  if (Status status = reader.finish(); !status.ok()) return status;
  if (Status status = refuse_capture(device(), operation, stream); !status.ok()) return status;
  // Once the shard is sent, no argument is refused: a corrected call would be another operation.
  std::byte* unused = nullptr;
  if (Status status = take(reader, dispatch::Direction::kForward, workspace, &unused); !status.ok())
    return status;
  if (Status status = check_products(args, c, workspace); !status.ok()) return status;
  if (args.record != nullptr) *args.record = {PERSEID_OK, -1, 0, -1, 0, 0};

  const Turn turn(*group_, operation);
  if (!turn.status().ok())
    return recorded(*group_, {epoch_ + 1, stream, args.record}, turn.status());
  const ReportedExecution reported(report_.get(), stream);
  const Sending sending{++epoch_, stream, args.record, report_.get()};
  const bool in_place = a.data == shard_.data && a.stride[1] == shard_.stride[1] &&
                        a.stride[2] == shard_.stride[2] &&
                        (batch_ == 1 || a.stride[0] == shard_.stride[0]);
  const auto start = [&](uint32_t epoch) {
    const Reported wait(report_.get(), OverlapReport::Kind::kWait, OverlapReport::kNoChunk,
                        group_->rank(), stream);
    return recorded(*group_, sending, transport_->start(operation, epoch));
  };
  Status status = in_place ? Status() : start(sending.epoch);
  if (status.ok() && scales_ != nullptr) status = scales_->send(operation, sending, own_scales);
  if (!status.ok()) return status;
  cut_shard(shards_, *chunks_, group_->rank(), transport_->gathered(),
            along_k_ ? columns_as_extent(a) : a, &parts_);
  if (sliced_ != nullptr)
    SlicedProduct::cut(shards_, *chunks_, group_->rank(), sliced_for_next_, transport_->gathered(),
                       a, &for_next_);
  status = transport_->send(operation, sending, parts_, for_next_);
  // The transfer bounds a product in slices, which therefore begins after it, and one that is not
  // fused waits for it.
  const bool sends_first = sliced_ != nullptr || !fused_;
  if (status.ok() && sends_first) status = transport_->launched(sending);
  const WatchedWork work(stop_.get(), operation, sending, [this, &sending](uint64_t but_of) {
    return find_missing(*chunks_, group_->rank(), transport_->signals(), sending.epoch, but_of);
  });
  if (status.ok()) {
    if (scales_ != nullptr) status = scales_->await(operation, sending);
    if (status.ok()) status = multiply(operation, args, c, sending, workspace, work);
    // The others go on, whatever failed here.
    const Status launched = sends_first ? Status() : transport_->launched(sending);
    if (status.ok()) status = launched;
  }
  if (status.ok() && args.gathered != nullptr) status = work.ended(give_gathered(gathered, stream));
  Status finished = transport_->finish(sending);
  if (finished.ok() && scales_ != nullptr) finished = scales_->finish(sending);
  if (status.ok()) status = finished;
  // What the caller produces there may be written as soon as this returns.
  const Status others = shard_given_ ? start(sending.epoch + 1) : Status();
  return status.ok() ? others : status;
}

Status AllGatherMatmulPlan::shard(const DLTensor** shard) const {
  if (!shard_given_ && transport_ != nullptr) {
    // The executions before did not wait for those that read it.
    const Operation operation(kOperation, 0);
    const Turn turn(*group_, operation, Group::Of::kThisRank);
    Status status = turn.status().ok() ? transport_->start(operation, epoch_ + 1) : turn.status();
    if (!status.ok()) return status;
  }
  shard_given_ = true;
  *shard = &shard_dl_;
  return {};
}

Tensor AllGatherMatmulPlan::read_own_scales(op::ArgumentReader& reader,
                                            const DLTensor* scales) const {
  const op::Extent extents[] = {{"batch", batch_}, {"m", m_}};
  const bool flat = scales != nullptr && scales->ndim == 1 && batch_ == 1;
  const Tensor own = reader.read(op::Access::kRead, "scale_a", scales, DType::kF32,
                                 flat ? std::span(extents).subspan(1) : std::span(extents));
  if (device().gpu != nullptr)
    reader.require(!reader.ok() || cuda::is_copyable(own),
                   "scale_a has gaps between the scales of rows; copy it into a tensor without");
  return own;
}

Status AllGatherMatmulPlan::give_gathered(const Tensor& gathered, void* stream) const {
  const Reported copying(report_.get(), OverlapReport::Kind::kCommunication,
                         OverlapReport::kNoChunk, group_->rank(), stream);
  if (device().gpu != nullptr) return cuda::copy_tensor(*device().gpu, gathered_, gathered, stream);
  copy(*device().executor, gathered_, gathered);
  return {};
}

// The arguments of one product, whose operand has arrived.
perseid_matmul_args AllGatherMatmulPlan::arguments_of(const perseid_all_gather_matmul_args& args,
                                                      size_t product) const {
  auto inner = sized<perseid_matmul_args>();
  inner.a = &gathered_dl_;
  inner.b = args.b[product];
  inner.c = args.c[product];
  if (args.bias != nullptr) inner.bias = args.bias[product];
  inner.scale_a = scales_ != nullptr ? scales_->scales() : args.scale_a;
  if (args.scale_b != nullptr) inner.scale_b = args.scale_b[product];
  return inner;
}

Status AllGatherMatmulPlan::check_products(const perseid_all_gather_matmul_args& args,
                                           const Tensor& c, const op::Workspace& workspace) const {
  Status status;
  for (size_t i = 0; i < products_.size() && status.ok(); ++i) {
    const perseid_matmul_args inner = arguments_of(args, i);
    status = i == 0 && sliced_ != nullptr ? sliced_->check(gathered_, c, inner, workspace)
                                          : matmul_of(products_[i].plan).check(inner, workspace);
  }
  return status;
}

Status AllGatherMatmulPlan::multiply(const Operation& operation,
                                     const perseid_all_gather_matmul_args& args, const Tensor& c,
                                     const Sending& sending, const op::Workspace& workspace,
                                     const WatchedWork& work) const {
  perseid_arrival arrival = transport_->arrival(operation, sending.epoch);
  if (!fused_)
    if (Status status = await_all(operation, sending, arrival); !status.ok()) return status;
  for (size_t i = 0; i < products_.size(); ++i) {
    perseid_matmul_args inner = arguments_of(args, i);
    perseid_wait_record record{};
    const bool arrives = i == 0 && fused_;
    if (arrives) {
      arrival.first_chunk = along_k_ ? 0 : chunks_->pivot(group_->rank());
      // On a GPU the failure is returned by the next synchronisation of the stream.
      if (device().gpu == nullptr) arrival.record = &record;
      inner.arrival_a = &arrival;
    }
    const ChunkTimers timers = arrives ? timers_of(report_.get(), true) : ChunkTimers();
    const Reported computing(timers.cpu == nullptr ? report_.get() : nullptr,
                             OverlapReport::Kind::kCompute, OverlapReport::kNoChunk, group_->rank(),
                             sending.stream);
    Status status =
        i == 0 && sliced_ != nullptr
            ? sliced_->multiply(gathered_, c, inner, arrival, workspace, sending.stream, timers)
            : matmul_of(products_[i].plan).execute_timed(inner, workspace, sending.stream, timers);
    status = end_of_waits(*group_, operation, *chunks_, sending, record, std::move(status));
    status = work.ended(std::move(status));
    if (!status.ok()) return status;
  }
  return {};
}

Status AllGatherMatmulPlan::await_all(const Operation& operation, const Sending& sending,
                                      const perseid_arrival& arrival) const {
  if (device().gpu == nullptr)
    return await_chunks(*group_, operation, *chunks_, arrival.signals, sending);
  if (chunks_->count() == 0) return {};
  const Reported wait(report_.get(), OverlapReport::Kind::kWait, OverlapReport::kNoChunk,
                      group_->rank(), sending.stream);
  return cuda::wait_for_signal(*device().gpu,
                               {.signals = arrival.signals,
                                .epoch = arrival.epoch,
                                .deadline_ns = arrival.deadline_ns,
                                .abort = arrival.abort,
                                .record = arrival.record},
                               sending.stream, static_cast<int32_t>(chunks_->count()));
}

}  // namespace perseid::internal::collective
