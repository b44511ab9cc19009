// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rank_sum.hpp"

#include "cuda/runtime/kernel_name.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kBlocksOfMultiprocessor = 8;

int vector_of(const RankSumConfig& config) { return static_cast<int>(16 / size_of(config.in)); }

bool takes_vectors(const Tensor& tensor, int vector) {
  const auto bytes = static_cast<uintptr_t>(vector * size_of(tensor.dtype));
  return reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0 && tensor.shape[2] % vector == 0 &&
         tensor.stride[2] == 1 && tensor.stride[1] % vector == 0 && tensor.stride[0] % vector == 0;
}

RankSumTensor rows_of(const Tensor& tensor) {
  return {tensor.data, tensor.stride[0], tensor.stride[1]};
}

// Whether by vectors.
bool add_section(const RankSum::Arguments& given, int vector, RankSumArguments* launch) {
  RankSumSection& section = launch->sections[launch->count++];
  section.first = launch->ranks;
  section.ranks = static_cast<int32_t>(given.parts.size());
  bool vectors = takes_vectors(given.out, vector);
  for (const Tensor& part : given.parts) {
    launch->parts[launch->ranks++] = rows_of(part);
    vectors = vectors && takes_vectors(part, vector);
  }
  section.out = rows_of(given.out);
  section.out_stride = given.out.stride[2];
  const bool of_columns = given.bias.rank == 1;
  section.bias = of_columns ? RankSumTensor{given.bias.data} : rows_of(given.bias);
  section.bias_stride = given.bias.stride[of_columns ? 0 : 2];
  section.batch = given.out.shape[0];
  section.rows = given.out.shape[1];
  section.columns = given.out.shape[2];
  launch->rows += section.batch * section.rows;
  launch->average = given.average;
  const int64_t pieces = ceil_div(section.columns, int64_t{vectors ? vector : 1});
  while (int64_t{1} << launch->lane_bits < min(pieces, int64_t{RankSumConfig::threads()}))
    ++launch->lane_bits;
  return vectors;
}

}  // namespace

std::vector<std::string> rank_sum_kernels(RankSumConfig config) {
  std::vector<std::string> names;
  for (const int vector : {1, vector_of(config)}) {
    config.vector = vector;
    names.push_back(kernel_name("sum_ranks", config));
  }
  return names;
}

BoundRankSums bind_rank_sums(std::span<const RankSum::Arguments> given, int vector,
                             RankSumArguments* launch) {
  BoundRankSums bound;
  for (; bound.count < given.size() && launch->count < RankSumArguments::kMostSections;
       ++bound.count) {
    const RankSum::Arguments& next = given[bound.count];
    if (next.out.elements() == 0) continue;
    if (launch->ranks + static_cast<int32_t>(next.parts.size()) > RankSumArguments::kMostRanks)
      break;
    bound.vectors = add_section(next, vector, launch) && bound.vectors;
  }
  return bound;
}

Status RankSum::make(const RankSumConfig& config, std::shared_ptr<Gpu> gpu,
                     std::unique_ptr<RankSum>* sum) {
  std::unique_ptr<RankSum> made(new RankSum(config, std::move(gpu)));
  Status status = made->gpu_->load(kRankSumHeader, rank_sum_kernels(config), &made->kernels_);
  if (status.ok()) *sum = std::move(made);
  return status;
}

Status RankSum::run(std::span<const Arguments> given, void* stream) const {
  Status status;
  while (status.ok() && !given.empty()) {
    RankSumArguments launch;
    const BoundRankSums bound = bind_rank_sums(given, vector_of(config_), &launch);
    if (launch.count > 0) status = run(given[0], bound.vectors, &launch, stream);
    given = given.subspan(bound.count);
  }
  return status;
}

Status RankSum::run(const Arguments& given, bool vectors, RankSumArguments* launch,
                    void* stream) const {
  const Gpu::Current current(*gpu_);
  Status status = current.status();
  AsyncArguments& async = launch->async;
  if (status.ok())
    status = find_arrival(*gpu_, given.arrival, &async.arrivals[0], &async.reports[0]);
  async.arrivals[0].chunks.count = given.signals;
  const WaitingExecution execution{.operation = given.operation,
                                   .operands = {"the parts", ""},
                                   .deadline_ns = {given.arrival.deadline_ns, 0}};
  if (status.ok() && given.signals > 0)  // else nothing waits
    status = gpu_->wait_reports().draw(execution, stream, &async.reports[1]);
  if (!status.ok()) return status;
  const int64_t most = kBlocksOfMultiprocessor * gpu_->facts().multiprocessors;
  const int64_t rows_of_block = RankSumConfig::threads() >> launch->lane_bits;
  const Launch grid{.blocks = min(ceil_div(launch->rows, rows_of_block), most),
                    .threads = RankSumConfig::threads(),
                    .dependent = false};
  return gpu_->launch(kernels_[vectors ? 1 : 0], grid, launch, stream);
}

}  // namespace perseid::internal::cuda
