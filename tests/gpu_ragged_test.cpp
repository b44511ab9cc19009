// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches on a GPU. Skipped where there is none.
#include "gpu_api_tools.hpp"
#include "ragged_cases.hpp"

namespace perseid {
namespace {

using GpuRagged = testing_gpu::ContextTest;

TEST_F(GpuRagged, Lengths) { ragged_cases::check_lengths(context()); }
TEST_F(GpuRagged, Copies) { ragged_cases::check_all_copies(context()); }

// Numbers that nobody has checked neither read nor write outside of the tensors.
TEST_F(GpuRagged, WrongLengthsAreCut) {
  const ragged_cases::OnDevice<int32_t> lengths(context(), {5, -3, 100, 4});
  const ragged_cases::OnDevice<int32_t> ends(context(), std::vector<int32_t>(5));
  ragged_lengths(context(), lengths.tensor(i32, {4}), 8, 15, ends.tensor(i32, {5}));
  EXPECT_EQ(ends.get(), (std::vector<int32_t>{0, 5, 5, 13, 15}));
  // Rows that count after one that does not, in the strides of several threads and warps.
  constexpr int64_t kLongest = 700;
  ragged_cases::Bytes rows(5 * kLongest, 1);
  const int64_t zeros[][2] = {{1, 3}, {1, 4}, {2, 0}, {3, 699}, {4, 300}, {4, 301}, {4, 650}};
  for (const auto& [sequence, row] : zeros)
    rows[static_cast<size_t>(sequence * kLongest + row)] = 0;
  const ragged_cases::OnDevice<uint8_t> mask(context(), rows);
  const ragged_cases::OnDevice<int32_t> sums(context(), std::vector<int32_t>(6));
  ragged_lengths(context(), mask.tensor(u8, {5, kLongest}), kLongest, 5 * kLongest,
                 sums.tensor(i32, {6}));
  EXPECT_EQ(sums.get(), (std::vector<int32_t>{0, 700, 703, 703, 1402, 1702}));
  const ragged_cases::OnDevice<int32_t> wild(context(), {3, -100, 90, 2, 1 << 30});
  const ragged_cases::OnDevice<uint8_t> padded(context(), ragged_cases::Bytes(4 * 8 * 16, 1));
  const ragged_cases::OnDevice<uint8_t> packed(context(), ragged_cases::Bytes(15 * 16, 2));
  pack(context(), padded.tensor(u8, {4, 8, 16}), wild.tensor(i32, {5}),
       packed.tensor(u8, {15, 16}));
  unpack(context(), packed.tensor(u8, {15, 16}), wild.tensor(i32, {5}),
         padded.tensor(u8, {4, 8, 16}));
  context().synchronize();
}

}  // namespace
}  // namespace perseid
