// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Epochs of ranks on GPUs: words that wrap at 2^32, many of them, and a rank that signals a wrong
// one.
#include "collective/all_gather_matmul.hpp"
#include "collective/matmul_reduce.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"
#include "gpu_rank_processes.hpp"
#include "host_ranks.hpp"

namespace {

namespace internal = perseid::internal;
namespace collective = perseid::internal::collective;
using collective::Operation;
using collective::sized;
using collective_tools::count_gpus;
using collective_tools::Matrix;
using internal::Status;

class GpuEpochs : public collective_tools::GpuProcesses {
 protected:
  static host_ranks::Member member_of(int32_t rank, int32_t size, uint32_t first_epoch) {
    return host_ranks::Member(rank, size, rank % count_gpus(), {.first_epoch = first_epoch});
  }
  // `rounds` executions of an all-gather + matmul and a matmul + all-reduce from an epoch on. Every
  // `checked`-th has other operands, and is compared.
  void count_up(int32_t ranks, uint32_t first_epoch, int64_t rounds, int64_t checked);
};

void expect_ok(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.sentence());
}

// bf16 matrices in memory of a GPU, of one value each.
class Filled {
 public:
  Filled(const internal::cuda::Gpu& gpu, int64_t rows, int64_t columns)
      : gpu_(gpu), rows_(rows), columns_(columns) {
    expect_ok(internal::cuda::allocate(gpu, bytes(), &data_));
  }
  ~Filled() { internal::cuda::release(gpu_, data_); }
  Filled(const Filled&) = delete;
  Filled& operator=(const Filled&) = delete;

  void fill(float value) const {
    const std::vector<uint16_t> elements(bytes() / 2, collective_tools::round_to_bf16(value));
    expect_ok(internal::cuda::copy(gpu_, data_, elements.data(), bytes(), nullptr));
  }
  // The value of each row's first and last element, of rows that are all alike.
  bool has(int64_t row, float value) const {
    std::vector<uint16_t> elements(bytes() / 2);
    expect_ok(internal::cuda::copy(gpu_, elements.data(), data_, bytes(), nullptr));
    const uint16_t wanted = collective_tools::round_to_bf16(value);
    const auto first = static_cast<size_t>(row * columns_);
    return elements[first] == wanted &&
           elements[first + static_cast<size_t>(columns_) - 1] == wanted;
  }
  perseid::Tensor tensor() const {
    return perseid::Tensor(data_, perseid::bf16, {rows_, columns_}, {},
                           {kDLCUDA, gpu_.facts().index});
  }

 private:
  size_t bytes() const { return static_cast<size_t>(2 * rows_ * columns_); }

  const internal::cuda::Gpu& gpu_;
  int64_t rows_, columns_;
  void* data_ = nullptr;
};

bool work_from(const host_ranks::Member& member, int64_t rounds, int64_t checked) {
  constexpr int64_t kRows = 32, kDepth = 64;
  const collective::GroupPointer& group = member.group;
  const internal::cuda::Gpu& gpu = *member.device->gpu;
  const int32_t rank = group->rank(), size = group->size();
  auto product = sized<perseid_gather_product>();
  product.n = kRows;
  auto gather = sized<perseid_all_gather_matmul_desc>();
  gather.dtype = PERSEID_BF16;
  gather.product_count = 1;
  gather.m = kRows;
  gather.k = kDepth;
  gather.products = &product;
  auto reduce = sized<perseid_matmul_reduce_desc>();
  reduce.dtype = PERSEID_BF16;
  reduce.all_reduce = 1;
  reduce.m = reduce.n = kRows;
  reduce.k = kDepth;
  collective::InnerPlan gathering, reducing;
  expect_ok(collective::AllGatherMatmulPlan::make(member.device, group, gather, &gathering));
  expect_ok(collective::MatmulReducePlan::make(member.device, group, reduce, &reducing));
  size_t bytes[2] = {};
  const auto forward = internal::dispatch::Direction::kForward;
  expect_ok(gathering->workspace_size(forward, &bytes[0]));
  expect_ok(reducing->workspace_size(forward, &bytes[1]));
  const Filled workspace(gpu, static_cast<int64_t>(std::max(bytes[0], bytes[1])) / 2 + 1, 1);
  const internal::op::Workspace scratch{workspace.tensor().data(), std::max(bytes[0], bytes[1])};
  const Filled a(gpu, kRows, kDepth), b(gpu, kDepth, kRows), c(gpu, kRows * size, kRows),
      sum(gpu, kRows, kRows);
  b.fill(1);
  const perseid::Tensor of_a = a.tensor(), of_b = b.tensor(), of_c = c.tensor(),
                        of_sum = sum.tensor();
  const DLTensor *bs[] = {of_b.dl()}, *cs[] = {of_c.dl()};
  auto gather_args = sized<perseid_all_gather_matmul_args>();
  gather_args.a = of_a.dl();
  gather_args.b = bs;
  gather_args.c = cs;
  auto reduce_args = sized<perseid_matmul_reduce_args>();
  reduce_args.a = of_a.dl();
  reduce_args.b = of_b.dl();
  reduce_args.c = of_sum.dl();
  bool right = true;
  for (int64_t round = 0; round < rounds && right; ++round) {
    const bool compared = round % checked == 0;
    const auto value_of = [&](int32_t r) { return static_cast<float>(round / checked % 4 + r); };
    if (compared) a.fill(value_of(rank));
    expect_ok(static_cast<const collective::AllGatherMatmulPlan&>(*gathering)
                  .execute(gather_args, scratch, nullptr));
    expect_ok(static_cast<const collective::MatmulReducePlan&>(*reducing).execute(
        reduce_args, scratch, nullptr));
    if (!compared) continue;
    expect_ok(internal::cuda::synchronize(gpu, nullptr));
    float total = 0;
    for (int32_t r = 0; r < size; ++r) {
      total += value_of(r);
      right = right && c.has(r * kRows, kDepth * value_of(r));
    }
    right = right && sum.has(0, kDepth * total);
    if (!right) fprintf(stderr, "rank %d: round %ld is wrong\n", rank, static_cast<long>(round));
  }
  expect_ok(internal::cuda::synchronize(gpu, nullptr));
  expect_ok(group->exchange(Operation("end", 30'000'000'000), {}, "", nullptr));
  return right;
}

void GpuEpochs::count_up(int32_t ranks, uint32_t first_epoch, int64_t rounds, int64_t checked) {
  start(ranks, [&](int32_t rank) {
    return work_from(member_of(rank, ranks, first_epoch), rounds, checked);
  });
  expect_all_well();
}

TEST_F(GpuEpochs, Wrap) {
  for (const int32_t ranks : {2, 3})
    for (const uint32_t first : {1u, 0xfffffff4u, 0x7ffffff4u}) count_up(ranks, first, 24, 1);
}
// Three of an operation of the group in each round.
TEST_F(GpuEpochs, SweepAreAHundredThousand) { count_up(2, 0xffff0000u, 34000, 1000); }

// A rank whose signal is that of the epoch before, or lies half of all epochs ahead, has not
// signalled: the others name it and the chunk.
TEST_F(GpuEpochs, ARankThatSignalsAWrongOneIsNamed) {
  constexpr uint64_t kDeadline = 500'000'000;
  constexpr uint32_t kEpoch = 2;
  for (const uint32_t wrong : {kEpoch - 1, kEpoch + 0x80000000u}) {
    start(2, [&](int32_t rank) {
      alarm(60);  // instead of waiting for ever
      const host_ranks::Member member = member_of(rank, 2, 1);
      collective::Group& group = *member.group;
      internal::cuda::Gpu& gpu = *member.device->gpu;
      const collective::Shards shards{.inner = 64, .begin = {0, 8, 16}};
      const collective::ShardChunks chunks(shards, 2, 2);
      const Operation making("plan", 30'000'000'000), operation("all-gather", kDeadline);
      std::unique_ptr<collective::GatherTransport> transport;
      expect_ok(collective::kCopyEngines.make_gather({group, making, *member.device}, shards,
                                                     chunks, &transport));
      std::vector<collective::SentPart> parts;
      collective::cut_shard(
          shards, chunks, rank, transport->gathered(),
          shards.view(transport->gathered(), shards.begin_of(rank), shards.begin_of(rank + 1)),
          &parts);
      Status status;
      for (uint32_t epoch = 1; status.ok() && epoch <= kEpoch; ++epoch) {
        const Operation& now = epoch == kEpoch ? operation : making;
        const collective::Turn turn(group, now);
        const uint32_t signalled = rank == 1 && epoch == kEpoch ? wrong : epoch;
        expect_ok(transport->start(now, signalled));
        const collective::Sending sending{signalled, nullptr, nullptr};
        expect_ok(transport->send(now, sending, parts));
        // Rank 1 reads nothing, so that it does not wait for its own signals.
        if (rank == 0)
          expect_ok(internal::cuda::wait_for_signal(
              gpu, collective::as_arrival(transport->arrival(now, epoch)), nullptr,
              static_cast<int32_t>(chunks.count())));
        expect_ok(transport->launched(sending));
        expect_ok(transport->finish(sending));
        status = internal::cuda::synchronize(gpu, nullptr);
        if (epoch < kEpoch) expect_ok(status);
      }
      // Rank 1 stays until rank 0 knows.
      ++board_->ready;
      while (board_->ready < 2) usleep(1000);
      if (rank == 1) return true;
      fprintf(stderr, "%s\n", status.sentence().c_str());
      return status.code() == PERSEID_TIMEOUT && group.failed() == 1 &&
             status.sentence().find("chunk 2 has not arrived") != std::string::npos;
    });
    expect_all_well();
  }
}

}  // namespace
