// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/sliced_product.hpp"

#include <cstring>

namespace perseid::internal::collective {
namespace {

// Slices are multiples of this many elements: whole blocks of the kernel's depth.
constexpr int64_t kUnit = 64;

// The last of `count` slices is half as long as those in between, for its products alone are left
// when everything has arrived; the first is longer by as much.
std::vector<int64_t> slices_of(int64_t k, int64_t count) {
  std::vector<int64_t> begin = {0};
  for (int64_t i = 1; i < count; ++i)
    begin.push_back(k * (2 * i + 1) / (2 * count) / kUnit * kUnit);
  begin.push_back(k);
  return begin;
}

int64_t chunks_of(const ShardChunks& chunks, int32_t rank) {
  return chunks.first_of(rank + 1) - chunks.first_of(rank);
}

}  // namespace

bool SlicedProduct::may_take(const dispatch::Device& device, const perseid_matmul_desc& product,
                             const Shards& shards) {
  constexpr int64_t kLeastDepth = 1024;  // no slice is empty
  const bool named = product.implementation == nullptr || *product.implementation == 0 ||
                     std::strcmp(product.implementation, "cuda:sm90") == 0;
  bool rows = true;
  for (size_t rank = 0; rank + 1 < shards.begin.size(); ++rank)
    rows = rows && shards.size(static_cast<int32_t>(rank)) > 0;
  return device.gpu != nullptr && device.gpu->facts().architecture == "sm_90a" && named &&
         device.forced_implementation.empty() && size_of(shards.dtype) == 2 && rows &&
         product.batch == 1 && product.n > 0 && product.n % 8 == 0 && product.k % 8 == 0 &&
         product.k >= kLeastDepth;
}

int64_t SlicedProduct::sliced_rows(const dispatch::Device& device, int64_t n, int64_t rows) {
  constexpr int64_t kTileRows = 128, kTileColumns = 256;
  const int64_t across = (n + kTileColumns - 1) / kTileColumns;
  const int64_t wave = device.gpu->facts().multiprocessors / across * kTileRows;
  // Smaller tiles make up for somewhat more.
  return rows <= wave + wave / 4 ? rows : wave;
}

Status SlicedProduct::make(const op::DevicePointer& device, const perseid_matmul_desc& product,
                           const Shards& shards, const ShardChunks& chunks, int32_t rank,
                           int64_t rows, std::unique_ptr<const SlicedProduct>* sliced) {
  std::unique_ptr<SlicedProduct> made(new SlicedProduct(device));
  const auto ranks = static_cast<int32_t>(shards.begin.size()) - 1;
  const int32_t last = (rank + ranks - 1) % ranks;
  // In the order of arrival: from the own shard to the end, those before the last one, the last.
  const auto add_rows = [&](int32_t first, int32_t end) -> Status {
    if (first >= end) return {};
    const int64_t from = shards.begin_of(first), chunk = chunks.first_of(first);
    std::vector<int64_t> begin;
    for (int64_t c = chunk; c <= chunks.first_of(end); ++c)
      begin.push_back(chunks.begin[static_cast<size_t>(c)] - from);
    return made->add(product, from, shards.begin_of(end), chunk, std::move(begin), PERSEID_CHUNK_M);
  };
  Status status = add_rows(rank, last < rank ? ranks : last);
  if (status.ok() && last < rank) status = add_rows(0, last);
  const int64_t before = shards.size(last) - rows, from = shards.begin_of(last) + before;
  const int64_t whole = before > 0 ? 1 : 0;  // chunks of rows
  if (status.ok() && before > 0)
    status = made->add(product, shards.begin_of(last), from, chunks.first_of(last), {0, before},
                       PERSEID_CHUNK_M);
  if (status.ok())
    status = made->add(product, from, shards.begin_of(last + 1), chunks.first_of(last) + whole,
                       slices_of(product.k, chunks_of(chunks, last) - whole), PERSEID_CHUNK_K);
  if (status.ok()) *sliced = std::move(made);
  return status;
}

Status SlicedProduct::add(const perseid_matmul_desc& product, int64_t from, int64_t to,
                          int64_t first_chunk, std::vector<int64_t> begin, uint32_t dim) {
  rows_.push_back({from, to, first_chunk, std::move(begin), nullptr});
  auto arriving = sized<perseid_async_operand>();
  arriving.dim = dim;
  arriving.count = static_cast<int64_t>(rows_.back().begin.size()) - 1;
  arriving.begin = rows_.back().begin.data();
  perseid_matmul_desc inner = product;
  inner.m = to - from;
  inner.async_a = &arriving;
  return make_matmul(device_, inner, &rows_.back().plan);
}

void SlicedProduct::cut(const Shards& shards, const ShardChunks& chunks, int32_t rank, int64_t rows,
                        std::byte* gathered, const Tensor& shard, std::vector<SentPart>* parts) {
  parts->clear();
  const Tensor whole = shards.view(gathered, shards.begin_of(rank), shards.begin_of(rank + 1));
  const int64_t before = shards.size(rank) - rows;
  int64_t chunk = chunks.first_of(rank);
  const auto add = [&](int64_t row, int64_t end_row, int64_t column, int64_t end_column) {
    const auto part = [&](Tensor of) {
      of.data =
          of.as<std::byte>() + (row * of.stride[1] + column * of.stride[2]) * size_of(of.dtype);
      of.shape[1] = end_row - row;
      of.shape[2] = end_column - column;
      return of;
    };
    parts->push_back({chunk++, part(shard), part(whole)});
  };
  if (before > 0) add(0, before, 0, shards.inner);
  const std::vector<int64_t> begin =
      slices_of(shards.inner, chunks_of(chunks, rank) - (before > 0 ? 1 : 0));
  for (size_t i = 0; i + 1 < begin.size(); ++i)
    add(before, shards.size(rank), begin[i], begin[i + 1]);
}

template <class Run>
Status SlicedProduct::for_each_rows(const Tensor& a, const Tensor& c,
                                    const perseid_matmul_args& args, const Run& run) const {
  Status status;
  const DLDevice device = device_->dl_device();
  for (const Rows& rows : rows_) {
    const auto part = [&](Tensor of) {
      of.data = of.as<std::byte>() + rows.from * of.stride[1] * size_of(of.dtype);
      of.shape[1] = rows.to - rows.from;
      return of;
    };
    Tensor own_a = part(a), own_c = part(c);
    const DLTensor a_dl = as_dl(&own_a, device), c_dl = as_dl(&own_c, device);
    perseid_matmul_args inner = args;
    inner.a = &a_dl;
    inner.c = &c_dl;
    if (status.ok()) status = run(rows, inner);
  }
  return status;
}

Status SlicedProduct::check(const Tensor& a, const Tensor& c, const perseid_matmul_args& args,
                            const op::Workspace& workspace) const {
  return for_each_rows(a, c, args, [&](const Rows& rows, const perseid_matmul_args& inner) {
    return matmul_of(rows.plan).check(inner, workspace);
  });
}

Status SlicedProduct::multiply(const Tensor& a, const Tensor& c, const perseid_matmul_args& args,
                               const perseid_arrival& arrival, const op::Workspace& workspace,
                               void* stream, const ChunkTimers& timers) const {
  return for_each_rows(a, c, args, [&](const Rows& rows, perseid_matmul_args& inner) {
    perseid_arrival arriving = arrival;
    arriving.signals += rows.first_chunk;
    arriving.first_chunk = 0;
    inner.arrival_a = &arriving;
    ChunkTimers own_timers = timers;
    if (own_timers.gpu != nullptr) own_timers.gpu += rows.first_chunk;
    return matmul_of(rows.plan).execute_timed(inner, workspace, stream, own_timers);
  });
}

}  // namespace perseid::internal::collective
