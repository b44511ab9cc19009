// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/matmul_reduce.hpp"

#include <algorithm>

#include "collective/float8.hpp"
#include "collective/fusion.hpp"
#include "collective/nccl.hpp"
#include "cuda/runtime/copy_queue.hpp"
#include "cuda/runtime/signals.hpp"
#include "dispatch/memory.hpp"
#include "op/descriptor.hpp"

namespace perseid::internal::collective {
namespace {

// A task reduces about so many elements.
constexpr int64_t kTaskElements = 64 << 10;

}  // namespace

Status MatmulReducePlan::make(op::DevicePointer device, GroupPointer group,
                              const perseid_matmul_reduce_desc& desc,
                              std::unique_ptr<const op::Plan>* plan) {
  Group& ranks = *group;
  std::shared_ptr<Stop> stop = Stop::watch(ranks, &device);
  std::unique_ptr<MatmulReducePlan> made(new MatmulReducePlan(device, std::move(group)));
  made->stop_ = std::move(stop);
  made->all_ = desc.all_reduce == 1;
  const Operation operation(made->name(), desc.deadline_ns);
  op::DescriptorReader reader(operation.name);
  made->read_types(reader, desc);
  made->batch_ = reader.size("batch", desc.batch == 0 ? 1 : desc.batch, 1);
  made->m_ = reader.size("m", desc.m);
  made->n_ = reader.size("n", desc.n);
  made->k_ = reader.size("k", desc.k);
  reader.require(desc.scatter_dim == PERSEID_CHUNK_DEFAULT || desc.scatter_dim == PERSEID_CHUNK_M ||
                     desc.scatter_dim == PERSEID_CHUNK_N,
                 "scatter_dim is ", desc.scatter_dim, ", expected m (1, also 0) or n (2)");
  made->along_n_ = desc.scatter_dim == PERSEID_CHUNK_N;
  made->reduction_ = static_cast<Reduction>(
      reader.choice("reduction", desc.reduction, 2, "PERSEID_SUM (0) or PERSEID_AVERAGE (1)"));
  reader.flag("all_reduce", desc.all_reduce);
  made->canonical_ = desc.canonical != 0;
  made->bias_ = reader.flag("bias", desc.bias);
  reader.extents("c", {made->batch_, made->m_, made->n_});
  read_rank_plan(reader, desc);

  Terms terms;
  add_device(*device, &terms);
  terms.equal("dtype", made->dtype_)
      .equal("out_dtype", made->out_dtype_)
      .equal("scatter_dim", made->along_n_, {"m", "n"})
      .equal("reduction", desc.reduction, {"sum", "average"})
      .equal("bias", desc.bias)
      .equal("batch", made->batch_)
      .equal("m", made->m_)
      .equal("n", made->n_);
  add_canonical(*device, desc.canonical, &terms);
  add_float8_terms(desc, &terms);
  if (made->canonical_) {
    terms.equal("k", made->k_);
  } else {
    terms.own("k", made->k_);
  }
  if (Status status = terms.agree(ranks, operation, reader.result()); !status.ok()) return status;
  if (Status status = NcclLinks::agree(ranks, operation, device->gpu); !status.ok()) return status;
  if (made->canonical_) {
    if (kLeaves % ranks.size() != 0)
      return Status::error(PERSEID_UNSUPPORTED, operation.name, ": canonical is 1 with ",
                           ranks.size(), " ranks, expected 1, 2, 4 or 8 of them");
    if (const int64_t k = made->k_ * ranks.size(); k % kLeaves != 0)
      return Status::error(PERSEID_INVALID_ARGUMENT, operation.name, ": k of all ranks is ", k,
                           ", expected a multiple of ", kLeaves,
                           " in canonical order; pad it with zeros");
  }

  const auto cut = [&](DType dtype) {
    Shards shards{.dtype = dtype,
                  .outer = made->along_n_ ? made->batch_ * made->m_ : made->batch_,
                  .inner = made->along_n_ ? 1 : made->n_,
                  .begin = {}};
    const int64_t extent = made->along_n_ ? made->n_ : made->m_;
    for (int64_t r = 0; r <= ranks.size(); ++r) shards.begin.push_back(r * extent / ranks.size());
    return shards;
  };
  made->shards_ = cut(made->dtype_ == DType::kF64 ? DType::kF64 : DType::kF32);
  made->results_ = cut(made->out_dtype_);
  // A part of a shard leaves while the next one is computed.
  int64_t depth = 0;
  for (int32_t r = 0; r < ranks.size(); ++r) depth = max(depth, terms.of(r, "k"));
  int64_t each = ranks.shares_memory() ? 1 : kChunksSent;
  if (device->gpu != nullptr)
    each = chunks_sent_by_gpu(depth, ranks.size(), is_float8(made->dtype_),
                              static_cast<int64_t>(made->shards_.bytes()) / ranks.size());
  made->chunks_ = std::make_unique<ShardChunks>(made->shards_, ranks.size(),
                                                made->m_ > 0 && made->n_ > 0 ? each : 0);
  made->parts_.resize(static_cast<size_t>(ranks.size()));
  made->sent_.reserve(static_cast<size_t>(each));
  const Status product = made->make_product(device, desc);
  const std::string kernels = made->canonical_ ? implementation_of(made->product_) : "";
  if (Status status = agree_on_kernels(ranks, operation, product, kernels); !status.ok())
    return status;
  if (Status status = made->make_transports(operation); !status.ok()) return status;
  if (desc.report != 0 && !is_assumed(*device))
    made->report_ = std::make_unique<OverlapReport>(operation.name, ranks, *made->chunks_, *device);
  made->describe(desc);
  *plan = std::move(made);
  return {};
}

void MatmulReducePlan::read_types(op::DescriptorReader& reader,
                                  const perseid_matmul_reduce_desc& desc) {
  dtype_ = reader.dtype("dtype", desc.dtype, DType::kNone, true);
  out_dtype_ = reader.dtype("out_dtype", desc.out_dtype, default_out_dtype(dtype_), true);
  refuse_float8_result(reader, "out_dtype", out_dtype_);
  if (is_float8(dtype_)) {
    reader.require(out_dtype_ != DType::kF64,
                   "out_dtype is f64, expected f16, bf16 or f32 where a and b are of 8 bits");
  } else {
    const bool widening = out_dtype_ == DType::kF32 && size_of(dtype_) == 2;
    reader.require(out_dtype_ == dtype_ || widening, "out_dtype is ", internal::name_of(out_dtype_),
                   ", expected ", internal::name_of(dtype_),
                   ", the dtype of a and b, or f32 where that is f16 or bf16");
  }
  const Scaling scaling = read_scaling(reader, desc);
  reader.require(
      desc.canonical != 1 || scaling == Scaling::kNone, "scaling is ", desc.scaling,
      ", expected PERSEID_SCALE_NONE (0) in canonical order: scales are of a rank's columns "
      "of a, and another number of ranks has others");
}

Status MatmulReducePlan::make_product(const op::DevicePointer& device,
                                      const perseid_matmul_reduce_desc& desc) {
  auto leaving = sized<perseid_async_operand>();
  leaving.dim = along_n_ ? PERSEID_CHUNK_N : PERSEID_CHUNK_M;
  leaving.count = chunks_->count();
  leaving.begin = chunks_->begin.data();
  auto inner = sized<perseid_matmul_desc>();
  inner.dtype = desc.dtype;
  inner.out_dtype = static_cast<uint32_t>(shards_.dtype);
  inner.batch = batch_;
  inner.m = m_;
  inner.n = n_;
  inner.k = k_;
  inner.implementation = desc.implementation;
  set_float8(desc, &inner);
  // What leaves: the shards of the other ranks.
  const double seconds = product_seconds(
      *device,
      {.dtype = dtype_, .out_dtype = shards_.dtype, .batch = batch_, .m = m_, .n = n_, .k = k_});
  const auto sent = static_cast<double>(shards_.outer * shards_.inner *
                                        (shards_.extent() - shards_.size(group_->rank())) *
                                        size_of(shards_.dtype));
  FusionForecast forecast = forecast_fusion(*device, *group_, seconds, sent, chunks_->count());
  fused_ = choose_fusion(desc.fusion, forecast, &why_) && chunks_->count() > 0;
  if (fused_) inner.sink_c = &leaving;
  const int64_t leaves = canonical_ ? kLeaves / group_->size() : 0;
  int32_t spared = 0;
  waits_alone_ = forecast.spared > 0;
  const auto make = [&] {
    // Where it takes all multiprocessors, chunks leave when it has ended.
    spared = fused_ ? forecast.spared : 0;
    return make_matmul(device, inner, &product_, {leaves, canonical_, spared});
  };
  Status status = make();
  inner.sink_c = nullptr;
  if (device->gpu != nullptr && canonical_ && fused_ && status.code() == PERSEID_UNSUPPORTED) {
    forecast.staged = "the kernels that sum its leaves leave nothing before they end";
    fused_ = choose_fusion(desc.fusion, forecast, &why_);
    status = make();
  }
  if (&transport_of(*device, *group_) == &kCopyEngines)
    stores_ = choose_stores(forecast, sent, group_->size(), &how_sent_);
  if (status.ok() && fused_)
    status = ShardProducts::make(device,
                                 {.product = inner,
                                  .out_dtype = out_dtype_,
                                  .bias = bias_,
                                  .average = reduction_ == Reduction::kAverage,
                                  .along_n = along_n_,
                                  .shards = shards_,
                                  .chunks = *chunks_,
                                  .rank = group_->rank(),
                                  .leaves = leaves,
                                  .stores = stores_,
                                  .spared = spared},
                                 &shard_products_);
  if (stores_ && shard_products_ != nullptr && !shard_products_->takes_targets())
    how_sent_ = "copy engines send them: no kernel stores sums of such shards elsewhere";
  stores_ = stores_ && shard_products_ != nullptr && shard_products_->takes_targets();
  for (const DType bias : {bias_dtype(dtype_), out_dtype_}) {
    if (!status.ok() || device->gpu == nullptr || sum_with(bias) != nullptr) continue;
    rank_sums_.emplace_back();
    rank_sums_.back().bias = bias_ ? bias : DType::kNone;
    status = cuda::RankSum::make({.in = shards_.dtype,
                                  .out = out_dtype_,
                                  .bias = rank_sums_.back().bias,
                                  .in_pairs = canonical_},
                                 device->gpu, &rank_sums_.back().sum);
  }
  if (status.ok() && device->gpu != nullptr && all_)
    status =
        cuda::RankSum::make({.in = out_dtype_, .out = out_dtype_}, device->gpu, &strided_copy_);
  return status;
}

const cuda::RankSum* MatmulReducePlan::sum_with(DType bias) const {
  for (const BiasedSum& each : rank_sums_)
    if (!bias_ || each.bias == bias) return each.sum.get();
  return nullptr;
}

Status MatmulReducePlan::make_transports(const Operation& operation) {
  if (is_assumed(device())) return {};  // nothing is executed
  const Transport& transport = transport_of(device(), *group_);
  const TransportSite site{*group_, operation, device()};
  Status status = transport.make_reduce(site, shards_, *chunks_, &reduce_);
  if (status.ok() && all_) status = transport.make_gather(site, results_, *chunks_, &gather_);
  if (!status.ok()) return status;
  partial_ = {.data = reduce_->partial(),
              .dtype = shards_.dtype,
              .rank = 3,
              .shape = {batch_, m_, n_},
              .stride = {m_ * n_, n_, 1}};
  partial_dl_ = as_dl(&partial_, device().dl_device());
  epoch_ = group_->first_epoch() - 1;
  return {};
}

void MatmulReducePlan::describe(const perseid_matmul_reduce_desc& desc) {
  const Transport& transport = transport_of(device(), *group_);
  auto info = sized<perseid_plan_info>();
  product_->query(&info);
  dispatch::Explanation explanation{.operation = name()};
  explanation.problem = {{"dtype", internal::name_of(dtype_)},
                         {"out_dtype", internal::name_of(out_dtype_)},
                         {"scatter_dim", along_n_ ? "n" : "m"},
                         {"reduction", reduction_ == Reduction::kSum ? "sum" : "average"},
                         {"rank", int64_t{group_->rank()}},
                         {"ranks", int64_t{group_->size()}},
                         {"batch", batch_},
                         {"m", m_},
                         {"n", n_},
                         {"k", k_}};
  if (bias_) explanation.problem.emplace_back("bias", "yes");
  if (canonical_) explanation.problem.emplace_back("canonical", "yes");
  describe_float8(desc, &explanation);
  explanation.forward = {.flops = info.forward_flops, .bytes = info.forward_bytes};
  (void)product_->workspace_size(dispatch::Direction::kForward, &explanation.forward.workspace);
  if (shard_products_ != nullptr)
    explanation.forward.workspace =
        std::max(explanation.forward.workspace, shard_products_->workspace());
  explanation.considered = {
      {transport.name, dispatch::Verdict::kChosen,
       concatenate("one ", info.implementation, " whose result leaves ",
                   fused_ ? "shard by shard" : "when it is complete", ", sums in ",
                   internal::name_of(shards_.dtype),
                   canonical_ ? " in pairs of ranks" : " in the order of ranks",
                   shard_products_ == nullptr ? "" : ", in the epilogue of the own shard", "; ",
                   why_,
                   shard_products_ == nullptr
                       ? ""
                       : concatenate("; ", shard_products_->description(),
                                     how_sent_.empty() ? "" : "; partial sums: ", how_sent_))}};
  explain(std::move(explanation));
}

Tensor MatmulReducePlan::shard_of(Tensor c, int64_t from, int64_t to) const {
  const int dim = along_n_ ? 2 : 1;
  c.data = c.as<std::byte>() + from * c.stride[dim] * size_of(c.dtype);
  c.shape[dim] = to - from;
  return c;
}

Status MatmulReducePlan::execute(const perseid_matmul_reduce_args& args,
                                 const op::Workspace& workspace, void* stream) const {
  const Operation operation(name(), args.deadline_ns);
  const int32_t rank = group_->rank();
  const int64_t begin = results_.begin_of(rank), end = results_.begin_of(rank + 1);
  op::ArgumentReader reader(operation.name, device().dl_device());
  const op::Extent extents[] = {{"batch", batch_},
                                {"m", all_ || along_n_ ? m_ : end - begin},
                                {"n", all_ || !along_n_ ? n_ : end - begin}};
  const bool flat = args.c != nullptr && args.c->ndim == 2 && batch_ == 1;
  Tensor c = reader.read(op::Access::kWrite, "c", args.c, out_dtype_,
                         flat ? std::span(extents).subspan(1) : std::span(extents));
  if (flat && reader.ok()) {
    std::copy_backward(c.shape, c.shape + 2, c.shape + 3);
    std::copy_backward(c.stride, c.stride + 2, c.stride + 3);
    c.rank = 3;
    c.shape[0] = 1;
  }
  Tensor bias;
  if (bias_) {
    bias = reader.read(op::Access::kRead, "bias", args.bias, {bias_dtype(dtype_), out_dtype_},
                       {{{"n", n_}}});
  } else {
    reader.refuse("bias", args.bias, "bias = 0");
  }
  Call call{.args = args, .workspace = workspace, .bias = bias, .c = c};
  if (shard_products_ != nullptr) read_operands(reader, &call);
  if (Status status = reader.finish(); !status.ok()) return status;
  if (Status status = refuse_capture(device(), operation, stream); !status.ok()) return status;
  // Once it has begun, the operation refuses no argument: the other ranks would miss this one's
  // part, and a corrected call would be another operation.
  std::byte* aligned = nullptr;
  if (Status status = take(reader, dispatch::Direction::kForward, workspace, &aligned);
      !status.ok())
    return status;
  if (Status status = matmul_of(product_).check(arguments_of(args), workspace); !status.ok())
    return status;
  if (call.by_shards) call.workspace = {aligned, shard_products_->workspace()};
  if (args.record != nullptr) *args.record = {PERSEID_OK, -1, 0, -1, 0, 0};

  const Turn turn(*group_, operation);
  if (!turn.status().ok())
    return recorded(*group_, {epoch_ + 1, stream, args.record}, turn.status());
  const ReportedExecution reported(report_.get(), stream);
  Sending sending{epoch_ + 1, stream, args.record, report_.get()};
  sending.stores = stores_ && call.by_shards;
  Status status;
  {
    const Reported wait(report_.get(), OverlapReport::Kind::kWait, OverlapReport::kNoChunk, rank,
                        stream);
    status = recorded(*group_, sending, reduce_->start(operation, sending));
  }
  const WatchedWork work(stop_.get(), operation, sending, [this, &sending](uint64_t but_of) {
    return find_missing(sending.epoch, but_of);
  });
  call.work = &work;
  if (status.ok()) status = multiply(operation, call, sending);
  if (status.ok()) status = reduce_->send(sending);
  if (!status.ok()) {
    if (device().gpu != nullptr) (void)reduce_->finish(sending);
    return status;
  }
  epoch_ = sending.epoch;
  if (all_) return all_reduce(operation, call, sending);
  status = reduce_own(operation, call, sending, c);
  const Status finished = reduce_->finish(sending);
  return status.ok() ? finished : status;
}

// Of the own shard.
MissingPart MatmulReducePlan::find_missing(uint32_t epoch, uint64_t ranks) const {
  for (int32_t rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank() || (ranks >> rank & 1) != 0) continue;
    if (const MissingPart part = reduce_->missing(rank, group_->rank(), epoch); part.rank >= 0)
      return part;
  }
  return {};
}

// For products of shards. With a batch, a and b may be one matrix for all its entries.
void MatmulReducePlan::read_operands(op::ArgumentReader& reader, Call* call) const {
  const auto read = [&](const char* name, const DLTensor* tensor, const op::Extent& rows,
                        const op::Extent& columns) {
    const op::Extent extents[] = {{"batch", batch_}, rows, columns};
    const bool flat = tensor != nullptr && tensor->ndim == 2;
    Tensor view = reader.read(op::Access::kRead, name, tensor, dtype_,
                              flat ? std::span(extents).subspan(1) : std::span(extents));
    if (!flat || !reader.ok()) return view;
    return Tensor{.data = view.data,
                  .dtype = view.dtype,
                  .rank = 3,
                  .shape = {batch_, view.shape[0], view.shape[1]},
                  .stride = {0, view.stride[0], view.stride[1]}};
  };
  const op::Extent m{"m", m_}, n{"n", n_}, k{"k", k_};
  const Tensor a = read("a", call->args.a, m, k), b = read("b", call->args.b, k, n);
  const int64_t begin = results_.begin_of(group_->rank()),
                end = results_.begin_of(group_->rank() + 1);
  call->own = {a, b, call->bias, all_ ? shard_of(result(), begin, end) : call->c};
  call->by_shards = reader.ok() && shard_products_->takes(call->own);
}

perseid_matmul_args MatmulReducePlan::arguments_of(const perseid_matmul_reduce_args& args) const {
  auto inner = sized<perseid_matmul_args>();
  inner.a = args.a;
  inner.b = args.b;
  inner.scale_a = args.scale_a;
  inner.scale_b = args.scale_b;
  inner.c = &partial_dl_;
  return inner;
}

Status MatmulReducePlan::multiply(const Operation& operation, const Call& call,
                                  const Sending& sending) const {
  if (cpu::load_acquire(group_->abort()) != 0)
    return missing_chunk(*group_, operation, sending, -1, 0);
  const ChunkTimers timers = fused_ ? timers_of(report_.get(), false) : ChunkTimers();
  const Reported computing(timers.cpu == nullptr ? report_.get() : nullptr,
                           OverlapReport::Kind::kCompute, OverlapReport::kNoChunk, group_->rank(),
                           sending.stream);
  if (call.by_shards) {
    Arrival arrival = as_arrival(reduce_->arrival(operation, sending.epoch));
    arrival.waits = waits_for_parts();
    return shard_products_->multiply(call.own, partial_, reduce_->signals(),
                                     reduce_->parts(operation, sending), arrival, sending,
                                     call.workspace.data);
  }
  perseid_matmul_args inner = arguments_of(call.args);
  auto departure = sized<perseid_chunk_sink>();
  if (fused_) {
    departure.signals = reduce_->signals();
    departure.epoch = sending.epoch;
    departure.first_chunk = chunks_->pivot((group_->rank() + 1) % group_->size());
    inner.departure_c = &departure;
  }
  Status status = call.work->ended(
      matmul_of(product_).execute_timed(inner, call.workspace, sending.stream, timers));
  if (fused_) return status;
  for (int64_t chunk = 0; status.ok() && chunk < chunks_->count(); ++chunk)
    status =
        dispatch::set_signal(device(), reduce_->signals() + chunk, sending.epoch, sending.stream);
  return status;
}

Status MatmulReducePlan::reduce_own(const Operation& operation, const Call& call,
                                    const Sending& sending, const Tensor& out) const {
  // The product has summed the others' parts.
  return call.by_shards ? Status() : reduce_shard(operation, call, sending, out);
}

Status MatmulReducePlan::reduce_shard(const Operation& operation, const Call& call,
                                      const Sending& sending, const Tensor& out) const {
  const Tensor& bias = call.bias;
  // On a GPU the kernel that sums them waits.
  OverlapReport* waiting = device().gpu == nullptr ? report_.get() : nullptr;
  for (int32_t rank = 0; rank < group_->size(); ++rank) {
    const Reported wait(waiting, OverlapReport::Kind::kWait, own_chunk(), rank);
    if (Status status = reduce_->part(operation, sending, rank, group_->rank(),
                                      &parts_[static_cast<size_t>(rank)]);
        !status.ok())
      return status;
    if (waiting != nullptr) waiting->arrived(own_chunk(), rank);
  }
  const Reported summing(report_.get(), OverlapReport::Kind::kCompute, own_chunk(), group_->rank(),
                         sending.stream);
  if (device().gpu != nullptr) return reduce_on_gpu(operation, sending, bias, out);
  const int64_t rows = out.shape[0] * out.shape[1], columns = out.shape[2];
  if (rows * columns == 0) return {};
  const int64_t first = along_n_ ? results_.begin_of(group_->rank()) : 0;
  const int64_t each = max(int64_t{1}, kTaskElements / columns);
  cpu::for_each_task(*device().executor, (rows + each - 1) / each, [&](int64_t task, int32_t) {
    const void* parts[kMostRanks];
    const int64_t end = min(rows, (task + 1) * each);
    for (int64_t row = task * each; row < end; ++row) {
      const int64_t entry = row / out.shape[1], i = row % out.shape[1];
      for (size_t rank = 0; rank < parts_.size(); ++rank) {
        const Tensor& part = parts_[rank];
        const int64_t at =
            along_n_ ? row * part.stride[0] : entry * part.stride[0] + i * part.stride[1];
        parts[rank] = part.as<const std::byte>() + at * size_of(part.dtype);
      }
      reduce({.parts = parts,
              .ranks = group_->size(),
              .dtype = shards_.dtype,
              .reduction = reduction_,
              .in_pairs = canonical_,
              .bias = bias.present() ? bias.as<const std::byte>() +
                                           first * bias.stride[0] * size_of(bias.dtype)
                                     : nullptr,
              .bias_dtype = bias.dtype,
              .bias_stride = bias.stride[0],
              .out = out.as<std::byte>() +
                     (entry * out.stride[0] + i * out.stride[1]) * size_of(out.dtype),
              .out_dtype = out.dtype,
              .out_stride = out.stride[2],
              .count = columns});
    }
  });
  return call.work->ended({});
}

Status MatmulReducePlan::reduce_on_gpu(const Operation& operation, const Sending& sending,
                                       const Tensor& bias, const Tensor& out) const {
  // [rows, columns, 1] where columns are scattered.
  if (along_n_)
    for (Tensor& part : parts_) {
      const int64_t row = part.stride[0], columns = part.shape[1];
      for (int d = 0; d < 3; ++d) part.shape[d] = out.shape[d];
      part.shape[2] = columns;
      part.stride[0] = m_ * row;
      part.stride[1] = row;
      part.stride[2] = 1;
    }
  Tensor own_bias = bias;
  if (bias.present() && along_n_)
    own_bias.data = bias.as<std::byte>() +
                    results_.begin_of(group_->rank()) * bias.stride[0] * size_of(bias.dtype);
  Arrival arrival = as_arrival(reduce_->arrival(operation, sending.epoch));
  arrival.waits = waits_for_parts();
  if (waits_alone_ && reduce_->arrivals() > 0)
    if (Status status = cuda::wait_for_signal(*device().gpu, arrival, sending.stream,
                                              static_cast<int32_t>(reduce_->arrivals()));
        !status.ok())
      return status;
  return sum_with(bias.dtype)
      ->run({.operation = operation.name,
             .parts = parts_,
             .bias = own_bias,
             .out = out,
             .average = reduction_ == Reduction::kAverage,
             .arrival = arrival,
             .signals = static_cast<int32_t>(reduce_->arrivals())},
            sending.stream);
}

// For a kernel that waits for signals of parts: of each chunk those of the ranks after this one.
cuda::ChunkWait* MatmulReducePlan::waits_for_parts() const {
  if (report_ == nullptr) return nullptr;
  const int32_t own = group_->rank(), size = group_->size();
  return report_->waits(reduce_->arrivals(), [&](int64_t i) {
    return OverlapReport::Awaited{own_chunk(),
                                  (own + 1 + static_cast<int32_t>(i % (size - 1))) % size};
  });
}

// The result of an all-reduce, where the other ranks read it.
Tensor MatmulReducePlan::result() const {
  return {.data = gather_->gathered(),
          .dtype = out_dtype_,
          .rank = 3,
          .shape = {batch_, m_, n_},
          .stride = {m_ * n_, n_, 1}};
}

// The own shard of the result is made where the others read it.
Status MatmulReducePlan::all_reduce(const Operation& operation, const Call& call,
                                    const Sending& sending) const {
  const int32_t size = group_->size(), own = group_->rank();
  const Tensor &c = call.c, result = this->result();
  const auto shard = [&](const Tensor& of, int32_t rank) {
    return shard_of(of, results_.begin_of(rank), results_.begin_of(rank + 1));
  };
  Status status = recorded(*group_, sending, gather_->start(operation, sending.epoch));
  if (status.ok()) status = reduce_own(operation, call, sending, shard(result, own));
  const Status finished = reduce_->finish(sending);
  if (status.ok()) status = finished;
  if (!status.ok()) return status;
  cut_shard(results_, *chunks_, own, gather_->gathered(),
            results_.view(gather_->gathered(), results_.begin_of(own), results_.begin_of(own + 1)),
            &sent_);
  status = gather_->send(operation, sending, sent_);
  if (status.ok()) status = gather_->launched(sending);
  if (device().gpu != nullptr) {
    if (status.ok()) status = give_on_gpu(operation, sending, result, c);
  } else {
    for (int32_t step = 0; status.ok() && step < size; ++step) {
      const int32_t rank = (own + step) % size;
      for (int64_t chunk = chunks_->first_of(rank); chunk < chunks_->first_of(rank + 1); ++chunk) {
        const Reported wait(report_.get(), OverlapReport::Kind::kWait, chunk, rank);
        if (status = wait_for_chunk(*group_, operation, sending, rank, chunk,
                                    gather_->signals() + chunk);
            !status.ok())
          return status;
      }
      const Reported copying(report_.get(), OverlapReport::Kind::kCommunication,
                             OverlapReport::kNoChunk, rank);
      copy(*device().executor, shard(result, rank), shard(c, rank));
    }
  }
  status = call.work->ended(std::move(status));
  const Status given = gather_->finish(sending);
  return status.ok() ? given : status;
}

int64_t MatmulReducePlan::own_chunk() const {
  const int64_t first = chunks_->first_of(group_->rank());
  return first < chunks_->first_of(group_->rank() + 1) ? first : OverlapReport::kNoChunk;
}

Status MatmulReducePlan::give_on_gpu(const Operation& operation, const Sending& sending,
                                     const Tensor& result, const Tensor& c) const {
  Status status;
  if (chunks_->count() > 0) {
    const Reported wait(report_.get(), OverlapReport::Kind::kWait, OverlapReport::kNoChunk,
                        group_->rank(), sending.stream);
    status =
        cuda::wait_for_signal(*device().gpu, as_arrival(gather_->arrival(operation, sending.epoch)),
                              sending.stream, static_cast<int32_t>(chunks_->count()));
  }
  const Reported copying(report_.get(), OverlapReport::Kind::kCommunication,
                         OverlapReport::kNoChunk, group_->rank(), sending.stream);
  if (!status.ok()) return status;
  if (c.shape[2] == 1 || cuda::is_copyable(c))
    return cuda::copy_tensor(*device().gpu, result, c, sending.stream);
  // Copy engines would take a call for every row.
  return strided_copy_->run({.operation = operation.name,
                             .parts = std::span(&result, 1),
                             .out = c,
                             .arrival = as_arrival(gather_->arrival(operation, sending.epoch)),
                             .signals = static_cast<int32_t>(chunks_->count())},
                            sending.stream);
}

}  // namespace perseid::internal::collective
