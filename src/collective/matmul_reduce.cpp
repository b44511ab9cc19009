// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/matmul_reduce.hpp"

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
  std::unique_ptr<MatmulReducePlan> made(new MatmulReducePlan(device, std::move(group)));
  made->all_ = desc.all_reduce == 1;
  const Operation operation(made->name(), desc.deadline_ns);
  op::DescriptorReader reader(operation.name);
  made->dtype_ = reader.dtype("dtype", desc.dtype);
  made->out_dtype_ = reader.dtype("out_dtype", desc.out_dtype, made->dtype_);
  const bool widening = made->out_dtype_ == DType::kF32 && size_of(made->dtype_) == 2;
  reader.require(made->out_dtype_ == made->dtype_ || widening, "out_dtype is ",
                 internal::name_of(made->out_dtype_), ", expected ",
                 internal::name_of(made->dtype_), ", the dtype of a and b, or f32 where that is ",
                 "f16 or bf16");
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
  made->bias_ = reader.flag("bias", desc.bias);
  reader.require(device->gpu == nullptr,
                 "the context is of a GPU, expected the CPU: ranks have no transport for GPUs yet");
  reader.extents("c", {made->batch_, made->m_, made->n_});

  Terms terms;
  terms.equal("dtype", desc.dtype)
      .equal("out_dtype", static_cast<int64_t>(made->out_dtype_))
      .equal("scatter_dim", made->along_n_ ? PERSEID_CHUNK_N : PERSEID_CHUNK_M)
      .equal("reduction", desc.reduction)
      .equal("bias", desc.bias)
      .equal("batch", made->batch_)
      .equal("m", made->m_)
      .equal("n", made->n_);
  if (Status status = terms.agree(ranks, operation, reader.result()); !status.ok()) return status;

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
  made->chunks_ =
      std::make_unique<ShardChunks>(made->shards_, made->m_ > 0 && made->n_ > 0 ? 1 : 0);
  made->parts_.resize(static_cast<size_t>(ranks.size()));
  const Status product = made->make_product(device, desc);
  if (Status status = ranks.exchange(operation, product, "", nullptr); !status.ok()) return status;
  if (Status status = made->make_transports(operation); !status.ok()) return status;
  made->describe();
  *plan = std::move(made);
  return {};
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
  if (chunks_->count() > 0) inner.sink_c = &leaving;
  return make_matmul(device, inner, &product_);
}

Status MatmulReducePlan::make_transports(const Operation& operation) {
  const Transport& transport = transport_of(*group_);
  Status status = transport.make_reduce(*group_, operation, shards_, *chunks_, &reduce_);
  if (status.ok() && all_)
    status = transport.make_gather(*group_, operation, results_, *chunks_, &gather_);
  if (!status.ok()) return status;
  partial_ = {.data = reduce_->partial(),
              .dtype = shards_.dtype,
              .rank = 3,
              .shape = {batch_, m_, n_},
              .stride = {m_ * n_, n_, 1}};
  partial_dl_ = as_dl(&partial_);
  epoch_ = group_->first_epoch() - 1;
  return {};
}

void MatmulReducePlan::describe() {
  const Transport& transport = transport_of(*group_);
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
  explanation.forward = {.flops = info.forward_flops, .bytes = info.forward_bytes};
  (void)product_->workspace_size(dispatch::Direction::kForward, &explanation.forward.workspace);
  explanation.considered = {
      {transport.name, dispatch::Verdict::kChosen,
       concatenate("one ", info.implementation, " whose result leaves shard by shard, sums in ",
                   internal::name_of(shards_.dtype), " in the order of ranks")}};
  explain(std::move(explanation));
}

Tensor MatmulReducePlan::shard_of(Tensor c, int64_t from, int64_t to) const {
  const int dim = along_n_ ? 2 : 1;
  c.data = c.as<std::byte>() + from * c.stride[dim] * size_of(c.dtype);
  c.shape[dim] = to - from;
  return c;
}

Status MatmulReducePlan::execute(const perseid_matmul_reduce_args& args,
                                 const op::Workspace& workspace, void*) const {
  const Operation operation(name(), args.deadline_ns);
  const int32_t rank = group_->rank();
  const int64_t begin = results_.begin_of(rank), end = results_.begin_of(rank + 1);
  op::ArgumentReader reader(operation.name);
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
    bias = reader.read(op::Access::kRead, "bias", args.bias, {dtype_, out_dtype_}, {{{"n", n_}}});
  } else {
    reader.refuse("bias", args.bias, "bias = 0");
  }
  if (Status status = reader.finish(); !status.ok()) return status;

  const Turn turn(*group_, operation);
  if (!turn.status().ok()) return turn.status();
  const uint32_t epoch = epoch_ + 1;
  Status status = reduce_->start(operation, epoch);
  // Where this rank's own arguments are refused, it has not taken part.
  if (status.ok()) status = multiply(operation, args, epoch, workspace);
  if (!status.ok()) return status;
  epoch_ = epoch;
  if (!all_) {
    status = reduce_shard(operation, epoch, bias, c);
    reduce_->finish(epoch);
    return status;
  }
  return all_reduce(operation, epoch, bias, c);
}

Status MatmulReducePlan::multiply(const Operation& operation,
                                  const perseid_matmul_reduce_args& args, uint32_t epoch,
                                  const op::Workspace& workspace) const {
  auto inner = sized<perseid_matmul_args>();
  inner.a = args.a;
  inner.b = args.b;
  inner.c = &partial_dl_;
  auto departure = sized<perseid_chunk_sink>();
  if (chunks_->count() > 0) {
    departure.signals = reduce_->signals();
    departure.epoch = epoch;
    departure.first_chunk = chunks_->pivot((group_->rank() + 1) % group_->size());
    inner.departure_c = &departure;
  }
  if (cpu::load_acquire(group_->abort()) != 0) return group_->failure(operation);
  return matmul_of(product_).execute(inner, workspace, nullptr);
}

Status MatmulReducePlan::reduce_shard(const Operation& operation, uint32_t epoch,
                                      const Tensor& bias, const Tensor& out) const {
  for (int32_t rank = 0; rank < group_->size(); ++rank)
    if (Status status = reduce_->part(operation, epoch, rank, &parts_[static_cast<size_t>(rank)]);
        !status.ok())
      return status;
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
  return {};
}

// The own shard of the result is made where the others read it.
Status MatmulReducePlan::all_reduce(const Operation& operation, uint32_t epoch, const Tensor& bias,
                                    const Tensor& c) const {
  const int32_t size = group_->size(), own = group_->rank();
  const Tensor result = {.data = gather_->gathered(),
                         .dtype = out_dtype_,
                         .rank = 3,
                         .shape = {batch_, m_, n_},
                         .stride = {m_ * n_, n_, 1}};
  const auto shard = [&](const Tensor& of, int32_t rank) {
    return shard_of(of, results_.begin_of(rank), results_.begin_of(rank + 1));
  };
  Status status = gather_->start(operation, epoch);
  if (status.ok()) status = reduce_shard(operation, epoch, bias, shard(result, own));
  reduce_->finish(epoch);
  if (!status.ok()) return status;
  cpu::Executor& executor = *device().executor;
  gather_->send(
      epoch, results_.view(gather_->gathered(), results_.begin_of(own), results_.begin_of(own + 1)),
      executor);
  for (int32_t step = 0; step < size; ++step) {
    const int32_t rank = (own + step) % size;
    for (int64_t chunk = chunks_->first_of(rank); chunk < chunks_->first_of(rank + 1); ++chunk)
      if (status = group_->wait(operation, rank, gather_->signals() + chunk, epoch); !status.ok())
        return status;
    copy(executor, shard(result, rank), shard(c, rank));
  }
  gather_->finish(epoch);
  return {};
}

}  // namespace perseid::internal::collective
