// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernel that gathers vectors from rows of 16-bit elements at any address, on an emulated GPU
// (emulated_gpu.hpp).
#include "emulated_gpu.hpp"

#include <gtest/gtest.h>

#include <vector>

// The kernels of a header that the host includes, too.
#define __CUDACC_RTC__ 1
#include "cuda/device/ranks/copy_rows.hpp"
#undef __CUDACC_RTC__

namespace perseid::internal::cuda {
namespace {

constexpr uint16_t kUntouched = 0xffff;

// Rows of `run` elements from element `shift` on, `pitch` apart, in memory that ends with the last.
void check(int32_t rows, int32_t run, int64_t pitch, int64_t shift, int32_t lanes) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << run << ", " << pitch << " apart, from "
                                  << shift << " on, by " << lanes << " lanes");
  std::vector<uint16_t> from(static_cast<size_t>(shift + (rows - 1) * pitch + run));
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i + 1);
  const int64_t to_pitch = round_up(run, int64_t{8}) + 8;
  alignas(16) static uint16_t to[1 << 12];
  std::fill(std::begin(to), std::end(to), kUntouched);
  CopyRowsArguments arguments;
  arguments.copies[0] = {.from = reinterpret_cast<const char*>(from.data() + shift),
                         .to = reinterpret_cast<char*>(to),
                         .from_outer = 2 * pitch,
                         .to_outer = 2 * to_pitch,
                         .outer = rows,
                         .inner = 1,
                         .run = 2 * run};
  arguments.count = 1;
  arguments.lanes = lanes;
  constexpr int kBlocks = 2;
  for (int b = 0; b < kBlocks; ++b) {
    emulated_gpu::Block block(b, kCopyRowsThreads, 0, kBlocks);
    block.run([&] { copy_rows<16, true>(arguments); });
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < to_pitch; ++i) {
      const uint16_t wanted = i < run ? static_cast<uint16_t>(shift + row * pitch + i + 1)
                              : i < round_up(run, int64_t{8}) ? uint16_t{0}
                                                              : kUntouched;
      ASSERT_EQ(to[row * to_pitch + i], wanted) << "row " << row << ", element " << i;
    }
}

TEST(EmulatedCopies, GatherVectorsFromAnyElement) {
  for (const int32_t run : {1, 7, 8, 9, 15, 16, 17, 65, 130})
    for (const int64_t more : {0, 1, 6})
      for (const int64_t shift : {0, 1, 2, 7}) check(9, run, run + more, shift, run > 64 ? 32 : 4);
}

}  // namespace
}  // namespace perseid::internal::cuda
