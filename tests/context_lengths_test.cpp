// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What ragged context-parallel attention tells a rank's attention of lengths, against numbers by
// hand: on a CPU, and by the fake driver the bytes that a GPU gets. Its folder must be in
// LD_LIBRARY_PATH, as ctest sets it.
#include "collective/context_lengths.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace perseid::internal::collective {
namespace {

using Numbers = std::vector<int64_t>;

struct Placement {
  int64_t ranks;
  bool zigzag, leaves;
};

// Cumulative lengths of whole sequences, int32 or int64.
template <class Int>
struct Given {
  std::vector<Int> numbers;
  int64_t shape[1];
  DLTensor tensor;

  explicit Given(const Numbers& values)
      : numbers(values.begin(), values.end()),
        shape{static_cast<int64_t>(values.size())},
        tensor{numbers.data(), {kDLCPU, 0}, 1, {kDLInt, 8 * sizeof(Int), 1}, shape, nullptr, 0} {}
};

Numbers numbers_of(const DLTensor& tensor) {
  Numbers numbers;
  for (int64_t i = 0; i < tensor.shape[0]; ++i)
    numbers.push_back(static_cast<const int64_t*>(tensor.data)[i * tensor.strides[0]]);
  return numbers;
}

class ContextLengthsTest : public testing::Test {
 protected:
  // Of plans whose rank has up to 1000 rows of a sequence, and in all.
  template <class Int = int32_t>
  void read(ContextLengths* lengths, const Numbers& queries, const Numbers& keys) {
    const Given<Int> of_queries(queries), of_keys(keys);
    const ContextLengths::Most most{1000, 1000};
    const Status status =
        lengths->read("attention", &of_queries.tensor, most, &of_keys.tensor, most);
    ASSERT_TRUE(status.ok()) << status.sentence();
  }
};

TEST_F(ContextLengthsTest, OnACpuARankHasItsShareOfQueriesAndAllKeys) {
  op::DevicePointer cpu;
  ASSERT_TRUE(dispatch::open_cpu(nullptr, 1, {}, &cpu).ok());
  for (const bool zigzag : {false, true}) {
    ContextLengths lengths(cpu, 3, 2, zigzag, false);
    ASSERT_TRUE(lengths.make().ok());
    read(&lengths, {0, 8, 8, 20}, {0, 12, 16, 40});
    ASSERT_TRUE(lengths.send(nullptr).ok());
    EXPECT_EQ(lengths.queries(), Numbers({0, 4, 4, 10}));
    EXPECT_EQ(lengths.keys(), Numbers({0, 12, 16, 40}));
    EXPECT_EQ(numbers_of(*lengths.queries_given()), Numbers({0, 4, 4, 10}));
    EXPECT_EQ(numbers_of(*lengths.keys_given()), Numbers({0, 12, 16, 40}));
  }
}

TEST_F(ContextLengthsTest, EndsThatPiecesDoNotDivideAreRefused) {
  op::DevicePointer cpu;
  ASSERT_TRUE(dispatch::open_cpu(nullptr, 1, {}, &cpu).ok());
  const auto refusal = [&](const Placement& placement, const Numbers& queries,
                           const Numbers& keys) {
    ContextLengths lengths(cpu, 1, placement.ranks, placement.zigzag, placement.leaves);
    const Given<int64_t> of_queries(queries), of_keys(keys);
    const ContextLengths::Most most{1000, 1000};
    return lengths.read("attention", &of_queries.tensor, most, &of_keys.tensor, most).sentence();
  };
  EXPECT_EQ(refusal({2, true, false}, {0, 6}, {0, 4}),
            "attention: cu_seqlens_q[1] is 6, expected a multiple of 4, the pieces of a sequence; "
            "pad the sequences");
  EXPECT_EQ(refusal({2, true, false}, {0, 4}, {0, 6}),
            "attention: cu_seqlens_kv[1] is 6, expected a multiple of 4, the pieces of a sequence; "
            "pad the sequences");
  EXPECT_EQ(refusal({2, false, false}, {0, 6}, {0, 6}), "");
  // Leaves cut queries alone.
  EXPECT_EQ(refusal({2, true, true}, {0, 24}, {0, 4}),
            "attention: cu_seqlens_q[1] is 24, expected a multiple of 16, the pieces of a "
            "sequence; pad the sequences");
  EXPECT_EQ(refusal({2, false, true}, {0, 24}, {0, 2}), "");
}

class ContextLengthsOnAGpu : public ContextLengthsTest {
 protected:
  void SetUp() override {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr || dlsym(driver, "fake_alive") == nullptr)
      GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
    const Status status = dispatch::open_cuda(0, {}, &gpu_);
    ASSERT_TRUE(status.ok()) << status.sentence();
  }

  // All that lies in its memory, of which the tensors are views.
  static Numbers memory_of(const ContextLengths& lengths, size_t count) {
    const auto* const first = static_cast<const int64_t*>(lengths.queries_given()->data);
    return {first, first + count};
  }
  static void expect_view(const DLTensor& view, const Numbers& expected) {
    EXPECT_EQ(view.device.device_type, kDLCUDA);
    EXPECT_EQ(view.dtype.code, kDLInt);
    EXPECT_EQ(view.dtype.bits, 64);
    EXPECT_EQ(numbers_of(view), expected);
  }

  op::DevicePointer gpu_;
};

TEST_F(ContextLengthsOnAGpu, ContiguousRowsAreOnePieceOfEachSequence) {
  ContextLengths lengths(gpu_, 2, 3, false, false);
  ASSERT_TRUE(lengths.make().ok());
  read(&lengths, {0, 3, 12}, {0, 6, 9});
  ASSERT_TRUE(lengths.send(nullptr).ok());
  expect_view(*lengths.queries_given(), {0, 1, 4});
  expect_view(*lengths.keys_given(), {0, 6, 9});
  EXPECT_EQ(memory_of(lengths, 6), Numbers({0, 1, 4,     // queries of the rank
                                            0, 6, 9}));  // all keys
}

TEST_F(ContextLengthsOnAGpu, ZigzagRowsAreTwoPiecesOfEachSequence) {
  ContextLengths lengths(gpu_, 3, 2, true, false);
  ASSERT_TRUE(lengths.make().ok());
  // Of each rank 4, 0 and 6 queries, in pieces of 2, 0 and 3.
  read<int64_t>(&lengths, {0, 8, 8, 20}, {0, 12, 16, 40});
  ASSERT_TRUE(lengths.send(nullptr).ok());
  expect_view(*lengths.queries_given(), {0, 4, 4, 10});
  expect_view(*lengths.keys_given(), {0, 12, 16, 40});
  EXPECT_EQ(memory_of(lengths, 16), Numbers({0, 2, 4, 4, 4, 7, 10, 10,  // begins of two pieces
                                             2, 0, 3, 0,                // rows of one
                                             0, 12, 16, 40}));
  // The next execution has other lengths.
  read(&lengths, {0, 0, 4, 16}, {0, 4, 4, 8});
  ASSERT_TRUE(lengths.send(nullptr).ok());
  EXPECT_EQ(memory_of(lengths, 16), Numbers({0, 0, 0, 1, 2, 5, 8, 8,  //
                                             0, 1, 3, 0,              //
                                             0, 4, 4, 8}));
}

// Backward in canonical order: eight leaves, in zigzag placement of two pieces each.
TEST_F(ContextLengthsOnAGpu, LeavesOfContiguousRows) {
  ContextLengths lengths(gpu_, 2, 2, false, true);
  ASSERT_TRUE(lengths.make().ok());
  // Of each rank 4 and 8 queries, in four leaves of 1 and 2.
  read(&lengths, {0, 8, 24}, {0, 2, 6});
  ASSERT_TRUE(lengths.send(nullptr).ok());
  expect_view(*lengths.queries_given(), {0, 4, 12});
  expect_view(*lengths.pieces_given(), {0, 4, 12});
  EXPECT_EQ(lengths.pieces_given()->strides[0], 4);
  expect_view(*lengths.keys_given(), {0, 2, 6});
  EXPECT_EQ(memory_of(lengths, 21), Numbers({0, 4, 12,                                  //
                                             0, 1, 2,  3, 4, 6, 8, 10, 12, 12, 12, 12,  // leaves
                                             1, 2, 0,  // rows of one
                                             0, 2, 6}));
}

TEST_F(ContextLengthsOnAGpu, LeavesOfZigzagRows) {
  ContextLengths lengths(gpu_, 2, 4, true, true);
  ASSERT_TRUE(lengths.make().ok());
  // Of each rank 8 and 4 queries: two pieces of 4 and 2, four of 2 and 1.
  read(&lengths, {0, 32, 48}, {0, 8, 40});
  ASSERT_TRUE(lengths.send(nullptr).ok());
  expect_view(*lengths.queries_given(), {0, 8, 12});
  EXPECT_EQ(lengths.queries_given()->strides[0], 2);
  expect_view(*lengths.pieces_given(), {0, 8, 12});
  expect_view(*lengths.keys_given(), {0, 8, 40});
  EXPECT_EQ(memory_of(lengths, 27),
            Numbers({0, 4, 8, 10, 12, 12,                          // begins of two pieces
                     4, 2, 0,                                      // rows of one
                     0, 2, 4, 6,  8,  9,  10, 11, 12, 12, 12, 12,  // begins of four
                     2, 1, 0,                                      // rows of one
                     0, 8, 40}));
}

}  // namespace
}  // namespace perseid::internal::collective
