// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What every instruction set must do alike: its vectors, the dropout mask, and the loops that
// measure ceilings.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "simd_vectors.hpp"

namespace perseid::internal::cpu {
namespace {

std::vector<const KernelTable*> tables() {
  std::string error;
  const char* forced = std::getenv("PERSEID_CPU_ISA");
  if (forced != nullptr && *forced != '\0') return {select_kernel_table(error)};
  return available_kernel_tables();
}

CheckVectors check_of(std::string_view isa) {
#if defined(PERSEID_HAVE_AVX512BF16)
  if (isa == "avx512bf16") return &avx512bf16::check_vectors;
#endif
#if defined(PERSEID_HAVE_AVX512)
  if (isa == "avx512") return &avx512::check_vectors;
#endif
#if defined(PERSEID_HAVE_AVX2)
  if (isa == "avx2") return &avx2::check_vectors;
#endif
#if defined(PERSEID_HAVE_NEON)
  if (isa == "neon") return &neon::check_vectors;
#endif
  return isa == "scalar" ? &scalar::check_vectors : nullptr;
}

TEST(Simd, Vectors) {
  for (const KernelTable* table : tables()) {
    const CheckVectors check = check_of(table->isa);
    ASSERT_NE(check, nullptr) << table->isa;
    char failure[256];
    check(failure, sizeof failure);
    EXPECT_STREQ(failure, "") << table->isa;
  }
}

// The mask of a table, by blocks, inside a larger array of canaries.
void check_mask(const KernelTable& table, const Dropout& dropout, int64_t batch_head, int64_t rows,
                int64_t columns, bool transposed) {
  SCOPED_TRACE(testing::Message() << table.isa << " " << rows << " x " << columns << " threshold "
                                  << dropout.threshold << " head " << batch_head);
  const int64_t row_stride = transposed ? 1 : 2 * columns + 3;
  const int64_t column_stride = transposed ? rows + 1 : 2;
  const int64_t size = rows * row_stride + columns * column_stride + 1;
  std::vector<uint8_t> mask(static_cast<size_t>(size), 9);
  int64_t written = 0;
  for (int64_t row = 0; row < rows; row += 32)
    for (int64_t column = 0; column < columns; column += 64)
      table.dropout_mask(dropout, batch_head, row, std::min<int64_t>(32, rows - row), column,
                         std::min<int64_t>(64, columns - column),
                         mask.data() + row * row_stride + column * column_stride, row_stride,
                         column_stride);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto at = static_cast<size_t>(i * row_stride + j * column_stride);
      ASSERT_EQ(mask[at], dropout_keeps(dropout, batch_head, i, j) ? 1 : 0) << i << " " << j;
    }
  }
  for (const uint8_t byte : mask) written += byte != 9 ? 1 : 0;
  EXPECT_EQ(written, rows * columns);
}

TEST(Simd, DropoutMask) {
  for (const KernelTable* table : tables()) {
    for (const int64_t rows : {0, 1, 15, 16, 17, 50})
      for (const int64_t columns : {0, 1, 31, 32, 33, 130})
        for (const bool transposed : {false, true})
          check_mask(*table, {.threshold = 179, .seed = 0x0123456789abcdefu, .offset = 5}, 12, rows,
                     columns, transposed);
    for (const uint32_t threshold : {1u, 2u, 128u, 255u, 256u})
      check_mask(*table, {.threshold = threshold, .seed = ~uint64_t{0}, .offset = ~0u}, 0, 40, 70,
                 false);
    check_mask(*table, {.threshold = 100, .seed = 1, .offset = 0}, 0xfffffffe, 20, 40, false);
  }
}

TEST(Simd, CeilingsDoTheirWork) {
  for (const KernelTable* table : tables()) {
    for (const auto peak : {table->peak_f32, table->peak_bf16, table->peak_f64}) {
      EXPECT_EQ(peak(0), 0) << table->isa;
      EXPECT_GT(peak(100), 0) << table->isa;
      EXPECT_EQ(peak(200), 2 * peak(100)) << table->isa;
    }
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{511}, size_t{4096}, size_t{3000001}}) {
      for (const size_t shift : {0, 4}) {  // where vectors are not aligned
        std::vector<uint8_t> from(bytes + 64), to(bytes + 64 + shift, 7);
        for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 31 + 1);
        EXPECT_EQ(table->copy(from.data(), to.data() + shift, bytes),
                  2.0 * static_cast<double>(bytes));
        EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<int64_t>(bytes),
                               to.begin() + static_cast<int64_t>(shift)));
        EXPECT_EQ(to[bytes + shift], 7);
        EXPECT_EQ(table->read(from.data(), bytes), static_cast<double>(bytes));
      }
    }
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
