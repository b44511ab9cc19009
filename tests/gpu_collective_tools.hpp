// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of ranks on GPUs share: ranks that share a GPU where there are too few, matrices
// in memory of a GPU, and the products that the operations of ranks must equal.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "collective_tools.hpp"

namespace collective_tools {

using perseid::Context;
using perseid::Memory;

// How many GPUs there are. A child counts them: a process that has used a GPU cannot fork ranks.
inline int32_t count_gpus() {
  static const int32_t kCount = [] {
    const pid_t child = fork();
    if (child == 0) {
      int32_t count = 0;
      try {
        for (; count < 8; ++count) Context::cuda(count);
      } catch (const perseid::Error&) {
      }
      _exit(count);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return kCount;
}

// As many ranks as share a GPU, or have one each.
inline std::vector<int32_t> rank_counts(std::vector<int32_t> counts) {
  std::erase_if(counts, [](int32_t ranks) { return count_gpus() > 1 && ranks > count_gpus(); });
  return counts;
}

inline Context context_of(int32_t rank) { return Context::cuda(rank % count_gpus()); }

// Runs body(group) for every rank: on threads that have a GPU each, or in processes that share the
// only one. Processes take turns on a GPU; kernels of one process would wait for one another. With
// one GPU this process never uses it, so that it may fork.
inline void on_gpu_ranks(int32_t size, const std::function<void(const Group&)>& body) {
  if (count_gpus() > 1) return on_threads(size, body);
  static int groups = 0;
  const std::string rendezvous = "unix:" + testing::TempDir() + "ranks" + std::to_string(getpid()) +
                                 "." + std::to_string(groups++);
  std::vector<pid_t> ranks;
  for (int32_t rank = 0; rank < size; ++rank) {
    fflush(nullptr);
    ranks.push_back(fork());
    ASSERT_GE(ranks.back(), 0);
    if (ranks.back() != 0) continue;
    try {
      body(Group({.rank = rank,
                  .size = size,
                  .rendezvous = rendezvous,
                  .token = "a secret",
                  .deadline = std::chrono::seconds(30)}));
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  for (int32_t rank = 0; rank < size; ++rank) {
    int status = 0;
    waitpid(ranks[static_cast<size_t>(rank)], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " failed; its words are above";
  }
}

// Then a kernel that waits for copies on all multiprocessors waits for ever: a copy within a GPU
// needs one.
inline bool ranks_share_a_gpu() { return count_gpus() == 1 && !are_hosts(); }
inline constexpr const char* kOwnGpus = "needs a GPU for each rank";

// Skipped where there is no GPU.
class GpuRanksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (count_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  }
};

// With so many ranks. Those that have too few GPUs, but more than one, cannot share them: threads
// of one process would wait for one another.
class RanksOfGpus : public GpuRanksTest, public testing::WithParamInterface<int32_t> {
 protected:
  void SetUp() override {
    GpuRanksTest::SetUp();
    if (count_gpus() > 1 && GetParam() > count_gpus()) GTEST_SKIP() << kOwnGpus;
  }
  // body(group, context of the rank's GPU)
  static void on_gpus(const std::function<void(const Group&, const Context&)>& body) {
    on_gpu_ranks(GetParam(), [&](const Group& group) {
      const Context context = context_of(group.rank());
      body(group, context);
    });
  }
};

// What each rank has, from what the first ones have, which the others have again.
inline std::vector<int64_t> for_ranks(std::vector<int64_t> of_first, int32_t ranks) {
  const size_t given = of_first.size();
  for (size_t rank = given; rank < static_cast<size_t>(ranks); ++rank)
    of_first.push_back(of_first[rank - given]);
  return of_first;
}

// A matrix in memory of the context's GPU.
class OnGpu {
 public:
  OnGpu(const Context& context, const Matrix& matrix)
      : context_(&context),
        shape_(matrix.shape),
        dtype_(matrix.dtype),
        memory_(context, std::max<size_t>(matrix.bytes.size(), 1)) {
    set(matrix);
  }
  void set(const Matrix& matrix) const {
    context_->copy(memory_.data(), matrix.bytes.data(), matrix.bytes.size());
  }
  Matrix get() const {
    Matrix matrix(shape_, dtype_);
    context_->copy(matrix.bytes.data(), memory_.data(), matrix.bytes.size());
    return matrix;
  }
  Tensor tensor() const {
    return Tensor(memory_.data(), dtype_, Dims(std::span(shape_)), {}, context_->device());
  }

 private:
  const Context* context_;
  std::vector<int64_t> shape_;
  DType dtype_;
  Memory memory_;
};

// How the elements of a row of a result lie.
enum class Layout { kSideBySide, kByColumns, kApart };

// A result in memory of the context's GPU, of one of these layouts.
class ResultOnGpu {
 public:
  ResultOnGpu(const Context& context, std::vector<int64_t> shape, DType dtype, Layout layout)
      : context_(&context), shape_(std::move(shape)), dtype_(dtype), strides_(shape_.size(), 1) {
    const size_t row = shape_.size() - 2, column = row + 1;
    const int64_t apart = layout == Layout::kApart ? 3 : 1;
    strides_[column] = layout == Layout::kByColumns ? shape_[row] : apart;
    strides_[row] = layout == Layout::kByColumns ? 1 : apart * shape_[column];
    if (row > 0) strides_[0] = apart * shape_[row] * shape_[column];
    int64_t elements = apart;
    for (const int64_t size : shape_) elements *= size;
    const Matrix blank({elements}, dtype);
    memory_.emplace(context, std::max<size_t>(blank.bytes.size(), 1));
    context.copy(memory_->data(), blank.bytes.data(), blank.bytes.size());
  }
  Tensor tensor() const {
    return Tensor(memory_->data(), dtype_, Dims(std::span(shape_)), Dims(std::span(strides_)),
                  context_->device());
  }
  // Row-major. Between the elements nothing has been written.
  Matrix get() const {
    Matrix all({static_cast<int64_t>(memory_->size()) / bytes_of(dtype_)}, dtype_);
    context_->copy(all.bytes.data(), memory_->data(), all.bytes.size());
    const Tensor view(all.bytes.data(), dtype_, Dims(std::span(shape_)), Dims(std::span(strides_)));
    Matrix result = copy_of(view, dtype_);
    const auto element = static_cast<size_t>(bytes_of(dtype_));
    const auto apart = static_cast<size_t>(strides_.back() == 3 ? 3 : 1);
    for (size_t i = 0; i < all.bytes.size() && apart > 1; ++i)
      if (i / element % apart != 0 && all.bytes[i] != std::byte{0xff}) {
        ADD_FAILURE() << "byte " << i << " between the elements was written";
        break;
      }
    return result;
  }

 private:
  const Context* context_;
  std::vector<int64_t> shape_;
  DType dtype_;
  std::vector<int64_t> strides_;
  std::optional<Memory> memory_;
};

// A workspace in memory of the GPU.
class GpuWorkspace {
 public:
  template <class Plan>
  GpuWorkspace(const Context& context, const Plan& plan,
               perseid::Direction direction = perseid::Direction::kForward)
      : memory_(context, std::max<size_t>(plan.workspace_size(direction), 1)), bytes_(memory_) {}
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Memory memory_;
  std::span<std::byte> bytes_;
};

// c = a b + bias by the plain product of this GPU, or one of its kernels.
inline Matrix gpu_product(const Context& context, const Matrix& a, const Matrix& b, DType out_dtype,
                          const Matrix* bias = nullptr, Layout layout = Layout::kSideBySide,
                          const char* implementation = nullptr) {
  const bool batched = a.shape.size() == 3;
  const int64_t batch = batched ? a.shape[0] : 1;
  const int64_t m = a.shape[a.shape.size() - 2], k = a.shape.back(), n = b.shape.back();
  const perseid::Matmul matmul(context, {.dtype = a.dtype,
                                         .out_dtype = out_dtype,
                                         .batch = batch,
                                         .m = m,
                                         .n = n,
                                         .k = k,
                                         .bias = bias != nullptr,
                                         .implementation = implementation});
  const OnGpu left(context, a), right(context, b);
  const ResultOnGpu out(context,
                        batched ? std::vector<int64_t>{batch, m, n} : std::vector<int64_t>{m, n},
                        out_dtype, layout);
  std::optional<OnGpu> added;
  if (bias != nullptr) added.emplace(context, *bias);
  const GpuWorkspace workspace(context, matmul);
  matmul.execute(nullptr,
                 {.a = left.tensor(),
                  .b = right.tensor(),
                  .bias = added ? added->tensor() : Tensor(),
                  .c = out.tensor()},
                 workspace.bytes());
  context.synchronize();
  return out.get();
}

inline uint16_t round_to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rows [from, to) of a matrix, of each entry of its batch; or columns.
inline Matrix part_of(const Matrix& whole, int32_t dim, int64_t from, int64_t to) {
  return copy_of(whole.tensor().slice(dim, from, to), whole.dtype);
}

}  // namespace collective_tools
