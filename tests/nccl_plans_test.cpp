// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Plans of GPUs on several hosts that NCCL links, with the fake driver: which of their kernels
// leave multiprocessors to those of NCCL, what explain says, and how executions end. The fake GPU
// has 64 multiprocessors, and its kernels do nothing.
#include <array>

#include "collective/all_gather_matmul.hpp"
#include "collective/matmul_reduce.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

constexpr int64_t kMultiprocessors = 64;

class NcclPlans : public NcclRanks {};

// Row-major in memory of the GPU.
class Matrix {
 public:
  Matrix(const Member& member, DType dtype, int64_t rows, int64_t columns)
      : device_(member.device),
        view_{.dtype = dtype, .rank = 2, .shape = {rows, columns}, .stride = {columns, 1}} {
    const auto bytes = static_cast<size_t>(rows * columns * size_of(dtype));
    if (Status status = cuda::allocate(*device_->gpu, bytes, &view_.data); !status.ok())
      throw std::runtime_error(status.sentence());
    dl_ = as_dl(&view_, device_->dl_device());
  }
  ~Matrix() { cuda::release(*device_->gpu, view_.data); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  const DLTensor* dl() const { return &dl_; }

 private:
  const std::shared_ptr<const dispatch::Device> device_;
  Tensor view_;
  DLTensor dl_;
};

struct Gather {
  uint32_t dtype = PERSEID_BF16, fusion = PERSEID_FUSED;
  const char* implementation = nullptr;
  bool gaps = false;  // in c, so that TMA does not take it

  static constexpr int64_t kRows = 2048, kColumns = 1024, kDepth = 64;
  // The blocks of the last two kernels, the last one first, and what explain says.
  Status run(const Member& member, std::array<int64_t, 2>* blocks, std::string* explained) const {
    const int32_t ranks = member.group->size();
    perseid_gather_product product = sized<perseid_gather_product>();
    product.n = kColumns;
    auto desc = sized<perseid_all_gather_matmul_desc>();
    desc.dtype = dtype;
    desc.m = kRows;
    desc.k = kDepth;
    desc.products = &product;
    desc.product_count = 1;
    desc.chunks = 2;
    desc.fusion = fusion;
    desc.implementation = implementation;
    std::unique_ptr<const op::Plan> plan;
    Status status = AllGatherMatmulPlan::make(member.device, member.group, desc, &plan);
    if (!status.ok()) return status;
    *explained = plan->text();
    const auto type = static_cast<DType>(dtype);
    const Matrix a(member, type, kRows, kDepth), b(member, type, kDepth, kColumns);
    const Matrix c(member, type, ranks * kRows, kColumns + (gaps ? 1 : 0));
    const DLTensor* b_dl = b.dl();
    DLTensor c_given = *c.dl();
    int64_t shape[] = {ranks * kRows, kColumns};
    c_given.shape = shape;
    const DLTensor* c_dl = &c_given;
    auto args = sized<perseid_all_gather_matmul_args>();
    args.a = a.dl();
    args.b = &b_dl;
    args.c = &c_dl;
    size_t bytes = 0;
    status = plan->workspace_size(dispatch::Direction::kForward, &bytes);
    std::vector<std::byte> memory(bytes + 1);
    for (int repeat = 0; status.ok() && repeat < 3; ++repeat) {
      status = static_cast<const AllGatherMatmulPlan&>(*plan).execute(args, {memory.data(), bytes},
                                                                      nullptr);
      for (size_t i = 0; i < 2; ++i)
        (*blocks)[i] = fake<decltype(&fake_blocks)>("fake_blocks")(static_cast<int64_t>(i));
    }
    return status.ok() ? cuda::synchronize(*member.device->gpu, nullptr) : status;
  }
};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_F(NcclPlans, LeaveMultiprocessorsToNccl) {
  constexpr int64_t kLeft = kMultiprocessors - NcclLinks::kMultiprocessors;
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    std::array<int64_t, 2> blocks{};
    std::string explained;
    Status status = Gather().run(member, &blocks, &explained);
    bool right = status.ok() && blocks[0] == kLeft && has(explained, "cuda:nccl") &&
                 has(explained, "begins with the own shard; fused as asked for") &&
                 has(explained, "8 of 64 multiprocessors are left to NCCL");
    if (!right)
      fprintf(stderr, "%s %ld %s\n", status.sentence().c_str(), blocks[0], explained.c_str());
    // One that has everything takes all.
    status = Gather{.fusion = PERSEID_UNFUSED}.run(member, &blocks, &explained);
    right = right && status.ok() && blocks[0] == kMultiprocessors &&
            has(explained, "begins when all shards have arrived; unfused as asked for") &&
            has(explained, "would leave 8 of 64 multiprocessors to NCCL");
    if (!right)
      fprintf(stderr, "%s %ld %s\n", status.sentence().c_str(), blocks[0], explained.c_str());
    return right;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// The fallback is not persistent. One block waits before it.
TEST_F(NcclPlans, WaitWithOneBlockWhereTmaTakesNotTheTensors) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    std::array<int64_t, 2> blocks{};
    std::string explained;
    const Status status = Gather{.gaps = true}.run(member, &blocks, &explained);
    if (!status.ok() || blocks[1] != 1)
      fprintf(stderr, "%s %ld\n", status.sentence().c_str(), blocks[1]);
    return status.ok() && blocks[0] > kMultiprocessors && blocks[1] == 1;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Kernels that are not persistent, and would wait on all multiprocessors.
TEST_F(NcclPlans, AreUnfusedWhereAKernelLeavesNone) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    std::array<int64_t, 2> blocks{};
    std::string explained;
    const Status status =
        Gather{.implementation = "cuda:tensor_core"}.run(member, &blocks, &explained);
    const bool right = status.ok() && has(explained, "begins when all shards have arrived") &&
                       has(explained, "would leave no multiprocessor to NCCL");
    if (!right) fprintf(stderr, "%s %s\n", status.sentence().c_str(), explained.c_str());
    return right;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

struct Reduce {
  uint32_t fusion = PERSEID_FUSED, out_dtype = PERSEID_BF16;

  static constexpr int64_t kRows = 2048, kColumns = 2048, kDepth = 64;
  // Nothing is computed: the execution ends at the deadline.
  Status run(const Member& member, std::array<int64_t, 2>* blocks, std::string* explained) const {
    auto desc = sized<perseid_matmul_reduce_desc>();
    desc.dtype = PERSEID_BF16;
    desc.out_dtype = out_dtype;
    desc.m = kRows;
    desc.n = kColumns;
    desc.k = kDepth;
    desc.fusion = fusion;
    std::unique_ptr<const op::Plan> plan;
    Status status = MatmulReducePlan::make(member.device, member.group, desc, &plan);
    if (!status.ok()) return status;
    *explained = plan->text();
    const Matrix a(member, DType::kBF16, kRows, kDepth), b(member, DType::kBF16, kDepth, kColumns),
        c(member, static_cast<DType>(out_dtype), kRows / member.group->size(), kColumns);
    auto args = sized<perseid_matmul_reduce_args>();
    args.a = a.dl();
    args.b = b.dl();
    args.c = c.dl();
    args.deadline_ns = 300'000'000;
    size_t bytes = 0;
    status = plan->workspace_size(dispatch::Direction::kForward, &bytes);
    std::vector<std::byte> memory(bytes + 1);
    if (status.ok())
      status = static_cast<const MatmulReducePlan&>(*plan).execute(args, {memory.data(), bytes},
                                                                   nullptr);
    for (size_t i = 0; i < 2; ++i)
      (*blocks)[i] = fake<decltype(&fake_blocks)>("fake_blocks")(static_cast<int64_t>(i));
    const Status synchronized = cuda::synchronize(*member.device->gpu, nullptr);
    return status.ok() ? synchronized : status;
  }
};

// The product whose epilogue waits leaves multiprocessors; a kernel that sums does so after one
// block has waited.
TEST_F(NcclPlans, OfSumsLeaveMultiprocessorsToNccl) {
  constexpr int64_t kLeft = kMultiprocessors - NcclLinks::kMultiprocessors;
  for (const Reduce reduce :
       {Reduce(), Reduce{.out_dtype = PERSEID_F32}, Reduce{.fusion = PERSEID_UNFUSED}}) {
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      std::array<int64_t, 2> blocks{};
      std::string explained;
      const Status status = reduce.run(member, &blocks, &explained);
      const bool fused = reduce.fusion == PERSEID_FUSED,
                 in_epilogue = fused && reduce.out_dtype == PERSEID_BF16;
      const bool launched = in_epilogue ? blocks[0] == kLeft : blocks[1] == 1;
      // Signals of an unfused product are set in stream order.
      const bool ended = fused ? status.code() == PERSEID_TIMEOUT : status.ok();
      const bool told = has(explained, fused ? "shard by shard" : "when it is complete") &&
                        has(explained, "in the epilogue of the own shard") == in_epilogue &&
                        has(explained, fused ? "8 of 64 multiprocessors are left to NCCL"
                                             : "would leave 8 of 64 multiprocessors to NCCL");
      if (!launched || !ended || !told)
        fprintf(stderr, "%s %ld %ld %s\n", status.sentence().c_str(), blocks[0], blocks[1],
                explained.c_str());
      return launched && ended && told;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << reduce.fusion << " " << reduce.out_dtype;
  }
}

}  // namespace
