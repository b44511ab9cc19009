// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Plans of GPUs on several hosts that NCCL links, with the fake driver: which of their kernels
// leave multiprocessors to those of NCCL, what explain says, and how executions end. The fake GPU
// has 64 multiprocessors, and its kernels do nothing.
#include <array>
#include <numeric>

#include "collective/all_gather_matmul.hpp"
#include "collective/context_attention.hpp"
#include "collective/matmul_reduce.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

constexpr int64_t kMultiprocessors = 64;

class NcclPlans : public NcclRanks {};

// On one host.
class CopyEnginePlans : public NcclRanks {
 protected:
  void SetUp() override { HostRanks::SetUp(); }
  void enter(int32_t rank) override {
    NcclRanks::enter(rank);
    unsetenv("PERSEID_SHARED_MEMORY");
  }
};

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
  bool errs = false;  // with each argument before it is right

  static constexpr int64_t kRows = 2048, kColumns = 2048, kDepth = 64;
  // Whether all wrong calls are refused.
  template <class Execute>
  static bool refuses(const perseid_matmul_reduce_args& args, const op::Workspace& workspace,
                      const Execute& execute) {
    const auto is = [](const Status& status, perseid_status code, const char* part) {
      const bool right = status.code() == code && has(status.sentence(), part);
      if (!right) fprintf(stderr, "not \"%s\": %s\n", part, status.sentence().c_str());
      return right;
    };
    perseid_matmul_reduce_args wrong = args;
    wrong.b = args.c;
    bool right = is(execute(wrong, workspace), PERSEID_INVALID_ARGUMENT, "b has k");
    wrong.b = nullptr;
    right = is(execute(wrong, workspace), PERSEID_INVALID_ARGUMENT, "b is NULL") && right;
    if (workspace.bytes == 0) return right;
    for (const op::Workspace& small :
         {op::Workspace{nullptr, 0}, {workspace.data, workspace.bytes - 1}})
      right = is(execute(args, small), PERSEID_WORKSPACE_TOO_SMALL, "expected at least") && right;
    right = is(execute(args, {nullptr, workspace.bytes}), PERSEID_INVALID_ARGUMENT,
               "the workspace is NULL") &&
            right;
    return is(execute(args, {args.a->data, workspace.bytes}), PERSEID_INVALID_ARGUMENT,
              "the workspace shares memory with a") &&
           right;
  }
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
    const auto execute = [&](const perseid_matmul_reduce_args& given,
                             const op::Workspace& workspace) {
      return static_cast<const MatmulReducePlan&>(*plan).execute(given, workspace, nullptr);
    };
    const op::Workspace workspace{memory.data(), bytes};
    if (status.ok() && errs && !refuses(args, workspace, execute))
      return Status::error(PERSEID_INTERNAL, "a wrong call is not refused");
    if (status.ok()) status = execute(args, workspace);
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

// The rank goes on with the operation that the others are in.
TEST_F(NcclPlans, OfSumsRefuseArgumentsBeforeTheyBegin) {
  for (const uint32_t fusion : {PERSEID_FUSED, PERSEID_UNFUSED}) {
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      std::array<int64_t, 2> blocks{};
      std::string explained;
      const Status status =
          Reduce{.fusion = fusion, .errs = rank == 1}.run(member, &blocks, &explained);
      // Nothing is computed: what waits for signals of the product ends at the deadline.
      const bool fused = fusion == PERSEID_FUSED;
      const bool right = fused ? status.code() == PERSEID_TIMEOUT : status.ok();
      if (!right) fprintf(stderr, "%s\n", status.sentence().c_str());
      return right && has(explained, "in the epilogue of the own shard") == fused;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << fusion;
  }
}

// Else their queues would wait for one another.
TEST_F(CopyEnginePlans, OfSumsRefuseArgumentsBeforeTheyBegin) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    std::array<int64_t, 2> blocks{};
    std::string explained;
    const Status status =
        Reduce{.fusion = PERSEID_UNFUSED, .errs = rank == 1}.run(member, &blocks, &explained);
    if (!status.ok()) fprintf(stderr, "%s\n", status.sentence().c_str());
    return status.ok() && has(explained, "cuda:copy_engines");
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Attention of a rank and its gradients. Nothing is computed, and kernels do not wait.
class Attend {
 public:
  static constexpr int64_t kRows = 2048, kHeads = 8, kKeyHeads = 2, kDim = 128;

  Attend(const Member& member, uint32_t fusion)
      : member_(member),
        query_(rows(member, kHeads)),
        out_(rows(member, kHeads)),
        grad_query_(rows(member, kHeads)),
        key_(rows(member, kKeyHeads)),
        grad_key_(rows(member, kKeyHeads)),
        grad_value_(rows(member, kKeyHeads)),
        lse_(member, DType::kF32, {1, kHeads, kRows}) {
    auto attention = sized<perseid_attention_desc>();
    attention.dtype = PERSEID_BF16;
    attention.batch = 1;
    attention.heads = kHeads;
    attention.kv_heads = kKeyHeads;
    attention.q_len = attention.kv_len = kRows;
    attention.head_dim = kDim;
    attention.causal = PERSEID_CAUSAL_BOTTOM_RIGHT;
    attention.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
    auto desc = sized<perseid_context_attention_desc>();
    desc.attention = &attention;
    desc.placement = PERSEID_ZIGZAG;
    desc.fusion = fusion;
    const Status status = ContextAttentionPlan::make(member.device, member.group, desc, &plan_);
    if (!status.ok()) throw std::runtime_error(status.sentence());
    workspace_.resize(64 << 20);
  }
  std::string explained() const { return plan_->text(); }
  Status forward(uint64_t deadline_ns = 0, void* stream = nullptr) {
    auto args = sized<perseid_attention_forward_args>();
    args.query = query_.dl();
    args.key = args.value = key_.dl();
    args.out = out_.dl();
    args.lse = lse_.dl();
    auto given = sized<perseid_context_attention_forward_args>();
    given.attention = &args;
    given.deadline_ns = deadline_ns;
    return plan().forward(given, {workspace_.data(), workspace_.size()}, stream);
  }
  Status backward(uint64_t deadline_ns = 0, void* stream = nullptr) {
    auto args = sized<perseid_attention_backward_args>();
    args.query = args.out = args.grad_out = query_.dl();
    args.key = args.value = key_.dl();
    args.grad_query = grad_query_.dl();
    args.grad_key = grad_key_.dl();
    args.grad_value = grad_value_.dl();
    args.lse = lse_.dl();
    auto given = sized<perseid_context_attention_backward_args>();
    given.attention = &args;
    given.deadline_ns = deadline_ns;
    return plan().backward(given, {workspace_.data(), workspace_.size()}, stream);
  }

 private:
  // Without gaps in memory of the GPU.
  class Rows {
   public:
    Rows(const Member& member, DType dtype, std::vector<int64_t> shape)
        : shape_(std::move(shape)),
          stride_(shape_.size(), 1),
          matrix_(member, dtype, 1,
                  std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>())),
          dl_(*matrix_.dl()) {
      for (size_t dim = shape_.size() - 1; dim > 0; --dim)
        stride_[dim - 1] = stride_[dim] * shape_[dim];
      dl_.ndim = static_cast<int32_t>(shape_.size());
      dl_.shape = shape_.data();
      dl_.strides = stride_.data();
    }
    const DLTensor* dl() const { return &dl_; }

   private:
    std::vector<int64_t> shape_, stride_;
    Matrix matrix_;
    DLTensor dl_;
  };
  static Rows rows(const Member& member, int64_t heads) {
    return {member, DType::kBF16, {1, kRows, heads, kDim}};
  }
  const ContextAttentionPlan& plan() const {
    return static_cast<const ContextAttentionPlan&>(*plan_);
  }

  const Member& member_;
  Rows query_, out_, grad_query_, key_, grad_key_, grad_value_, lse_;
  std::unique_ptr<const op::Plan> plan_;
  std::vector<std::byte> workspace_;
};

TEST_F(NcclPlans, OfAttentionLeaveMultiprocessorsToNccl) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    const auto blocks = [&](int64_t back) {
      return fake<decltype(&fake_blocks)>("fake_blocks")(back);
    };
    bool right = true;
    for (const bool fused : {true, false}) {
      Attend attend(member, fused ? PERSEID_FUSED : PERSEID_UNFUSED);
      const std::string explained = attend.explained();
      Status status;
      for (int repeat = 0; status.ok() && repeat < 3; ++repeat) status = attend.forward();
      // Before an attention that has all multiprocessors one block waits.
      const bool launched = fused ? blocks(0) == kMultiprocessors - NcclLinks::kMultiprocessors
                                  : blocks(0) == kMultiprocessors && blocks(1) == 1;
      const bool told = has(explained, "cuda:nccl") &&
                        has(explained, fused ? "8 of 64 multiprocessors are left to NCCL"
                                             : "would leave 8 of 64 multiprocessors to NCCL");
      for (int repeat = 0; status.ok() && repeat < 3; ++repeat) status = attend.backward();
      if (status.ok()) status = cuda::synchronize(*member.device->gpu, nullptr);
      if (!status.ok() || !launched || !told)
        fprintf(stderr, "%s %ld %ld %s\n", status.sentence().c_str(), blocks(0), blocks(1),
                explained.c_str());
      right = right && status.ok() && launched && told;
    }
    return right;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Kernels read whole tiles, so that memory of keys that are hidden, and not sent, must not hold
// what makes a product with it infinite. Rank 1 reads all but the last piece, which a causal mask
// hides from its queries.
TEST_F(NcclPlans, OfAttentionHaveZerosWhereNothingIsSent) {
  for (const char* const transport : {"nccl", "sockets"}) {
    setenv("PERSEID_TRANSPORT", transport, 1);
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      Attend attend(member, PERSEID_FUSED);
      constexpr uint64_t kAll = 2 * Attend::kRows, kHidden = kAll - Attend::kRows / 2;
      int64_t found = 0, wrong = 0;
      for (const bool backward : {false, true}) {
        if (!(backward ? attend.backward() : attend.forward()).ok() || !ended(member)) return false;
        for (int64_t back = 0; back < 8; ++back) {
          const FakeTensorMap map = fake<decltype(&fake_tensor_map)>("fake_tensor_map")(back);
          const uint64_t* const rows = std::find(map.size, map.size + map.rank, kAll);
          if (rows == map.size + map.rank) continue;
          ++found;
          // Bytes of the hidden rows that are not 0.
          uint64_t indices[5] = {};
          indices[rows - map.size] = kHidden;
          for (uint32_t dim = 0; rank == 1 && dim < map.rank;) {
            const std::byte* at = map.data + 2 * indices[0];
            for (uint32_t d = 1; d < map.rank; ++d) at += indices[d] * map.stride[d - 1];
            wrong += std::count(at, at + 2, std::byte{0}) == 2 ? 0 : 1;
            for (dim = 0; dim < map.rank && ++indices[dim] == map.size[dim]; ++dim)
              indices[dim] = map.size + dim == rows ? kHidden : 0;
          }
        }
      }
      if (found < 4 || wrong > 0)
        fprintf(stderr, "rank %d: %ld tensors, %ld elements\n", rank, found, wrong);
      return found >= 4 && wrong == 0;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << transport;
  }
}

// Before anything is sent: the others learn nothing of it, and all go on.
TEST_F(NcclPlans, OfAttentionRefuseStreamsThatAreCaptured) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    Attend attend(member, PERSEID_FUSED);
    int stream = 0;
    bool right = true;
    if (rank == 1) {
      fake<decltype(&fake_capture)>("fake_capture")(&stream);
      for (const Status& status : {attend.forward(0, &stream), attend.backward(0, &stream)})
        right = right && status.code() == PERSEID_UNSUPPORTED &&
                has(status.sentence(), "the stream is being captured");
      fake<decltype(&fake_capture)>("fake_capture")(nullptr);
    }
    const Status forward = attend.forward(), backward = attend.backward();
    return right && forward.ok() && backward.ok() && ended(member);
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Whatever it was doing: a call returns the failure, or the synchronisation does, and nothing is in
// flight then. Whoever goes on without the lost rank hears no more of it, also where no
// synchronisation has returned what became of executions before the call.
TEST_F(NcclPlans, OfAttentionEndWhereARankDies) {
  for (const bool backward : {false, true})
    for (const bool synchronizes : {false, true})
      for (const uint32_t fusion : {PERSEID_FUSED, PERSEID_UNFUSED}) {
        start(2, [&](int32_t rank) {
          const Member member(rank, 2);
          const auto compute = [&](Attend& attend) {
            return backward ? attend.backward() : attend.forward();
          };
          auto attend = std::make_unique<Attend>(member, fusion);
          if (rank == 1)
            std::thread([] {
              std::this_thread::sleep_for(100ms);
              kill(getpid(), SIGKILL);
            }).detach();
          const auto start = Clock::now();
          Status status;
          while (status.ok() && Clock::now() - start < 5s) {
            // Several are in flight.
            for (int i = 0; status.ok() && i < 4; ++i) status = compute(*attend);
            if (status.ok() && synchronizes)
              status = cuda::synchronize(*member.device->gpu, nullptr);
          }
          Member smaller = member;
          Status on = member.group->shrink(Operation("shrink", 500'000'000), &smaller.group);
          if (on.ok()) {
            Attend again(smaller, fusion);
            for (int i = 0; on.ok() && i < 2; ++i) on = compute(again);
            if (on.ok()) on = cuda::synchronize(*member.device->gpu, nullptr);
          }
          attend.reset();
          const bool soon = Clock::now() - start < 1500ms;
          const bool right = status.code() == PERSEID_PEER_LOST && on.ok() && soon;
          if (!right)
            fprintf(stderr, "rank %d: %s; %s\n", rank, status.sentence().c_str(),
                    on.sentence().c_str());
          return right;
        });
        EXPECT_EQ(join(), (std::vector<int>{0, -SIGKILL}))
            << backward << " " << synchronizes << " " << fusion;
      }
}

// What NCCL refuses on a rank, of the exchanges that connect ranks and those of two executions. A
// plan that goes has nothing in flight.
TEST_F(NcclPlans, OfAttentionEndWhereNcclRefuses) {
  for (const bool backward : {false, true})
    for (int group = 2; group <= (backward ? 6 : 4); group += 2) {
      start(2, [&](int32_t rank) {
        const Member member(rank, 2);
        auto attend = std::make_unique<Attend>(member, PERSEID_UNFUSED);
        if (rank == 1) setenv("FAKE_NCCL", ("fail " + std::to_string(group)).c_str(), 1);
        const auto start = Clock::now();
        Status status;
        for (int i = 0; status.ok() && i < 2; ++i)
          status = backward ? attend->backward(200'000'000) : attend->forward(200'000'000);
        status = outcome_of(member, std::move(status));
        attend.reset();
        const bool soon = Clock::now() - start < 1500ms;
        if (status.ok() || !soon) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
        return !status.ok() && soon;
      });
      EXPECT_EQ(join(), std::vector<int>(2, 0)) << backward << " " << group;
    }
}

}  // namespace
