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
