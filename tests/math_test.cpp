// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Conversions, Philox and the dropout contract, and which keys a query sees: the functions that
// every backend shares, held to definitions written another way.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "harness/element.hpp"
#include "math/attention_problem.hpp"
#include "math/dtype.hpp"
#include "math/philox.hpp"

namespace perseid::internal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the bits of a 16-bit format mean, from the definition of IEEE formats.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct F16Format {
  using Type = f16;
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  static constexpr uint32_t kInfinityBits = 0x7c00;
};
struct BF16Format {
  using Type = bf16;
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  static constexpr uint32_t kInfinityBits = 0x7f80;
};

template <class Format>
class Conversion : public testing::Test {
 public:
  using Type = typename Format::Type;
  static Type from_bits(uint32_t bits) { return {static_cast<uint16_t>(bits)}; }
  static uint32_t narrow(float value) { return convert<Type>(value).bits; }
};
using Formats = testing::Types<F16Format, BF16Format>;
TYPED_TEST_SUITE(Conversion, Formats);

TYPED_TEST(Conversion, EveryValueWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = this->from_bits(bits);
    const float value = to_float(narrow);
    const double expected = value_of(bits, TypeParam::kExponentBits, TypeParam::kMantissaBits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      const uint32_t back = this->narrow(value);
      EXPECT_GT(back & 0x7fffu, TypeParam::kInfinityBits) << "a NaN must stay a NaN: " << bits;
      EXPECT_EQ(back >> 15, bits >> 15);
      EXPECT_NE(back >> (TypeParam::kMantissaBits - 1) & 1u, 0u) << "and be quiet: " << bits;
    } else {
      EXPECT_EQ(double{value}, expected) << bits;
      EXPECT_EQ(std::signbit(value), bits >> 15 != 0) << bits;
      EXPECT_EQ(this->narrow(value), bits);
    }
  }
}

TYPED_TEST(Conversion, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < TypeParam::kInfinityBits; ++bits) {
    const double low = to_float(this->from_bits(bits));
    // Past the largest value lies what would be the next one: from half way on it is infinity.
    const double step = bits + 1 < TypeParam::kInfinityBits
                            ? to_float(this->from_bits(bits + 1)) - low
                            : low - double{to_float(this->from_bits(bits - 1))};
    const float half = static_cast<float>(low + step / 2);
    ASSERT_EQ(double{half}, low + step / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const uint32_t sign : {0u, 0x8000u}) {
      const auto signed_value = [&](float value) { return sign != 0 ? -value : value; };
      EXPECT_EQ(this->narrow(signed_value(half)), even | sign);
      EXPECT_EQ(this->narrow(signed_value(std::nextafter(half, 0.0f))), bits | sign);
      EXPECT_EQ(this->narrow(signed_value(std::nextafter(half, kInfinity))), (bits + 1) | sign);
    }
  }
}

TYPED_TEST(Conversion, OverflowsToInfinity) {
  EXPECT_EQ(this->narrow(kInfinity), TypeParam::kInfinityBits);
  EXPECT_EQ(this->narrow(-kInfinity), TypeParam::kInfinityBits | 0x8000u);
  EXPECT_EQ(this->narrow(std::numeric_limits<float>::max()), TypeParam::kInfinityBits);
  EXPECT_EQ(convert<typename TypeParam::Type>(1e300).bits, TypeParam::kInfinityBits);
}

TEST(Conversions, EdgesOfF16) {
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(to_f16(std::nextafter(0x1p-25f, 1.0f)).bits, 0x0001);
  EXPECT_EQ(to_f16(std::nextafter(0x1p-14f, 0.0f)).bits, 0x0400);
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
}

// The 8-bit types by their definition (Micikevicius et al., arXiv:2209.05433): e5m2 as IEEE
// formats; e4m3 has numbers at its largest exponent too, and NaN where all other bits are set.
struct E4M3Format {
  using Type = f8e4m3;
  static constexpr uint32_t kLargest = 0x7e;
  static double value(uint32_t magnitude) {
    if (magnitude == 0x7f) return std::numeric_limits<double>::quiet_NaN();
    const int exponent = static_cast<int>(magnitude >> 3),
              mantissa = static_cast<int>(magnitude & 7);
    return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  }
};
struct E5M2Format {
  using Type = f8e5m2;
  static constexpr uint32_t kLargest = 0x7b;
  static double value(uint32_t magnitude) {
    if (magnitude == 0x7c) return HUGE_VAL;
    if (magnitude > 0x7c) return std::numeric_limits<double>::quiet_NaN();
    const int exponent = static_cast<int>(magnitude >> 2),
              mantissa = static_cast<int>(magnitude & 3);
    return exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(4 + mantissa, exponent - 17);
  }
};

template <class Format>
class Float8 : public testing::Test {
 public:
  using Type = typename Format::Type;
  static uint32_t narrow(float value) { return convert<Type>(value).bits; }
};
using Float8Formats = testing::Types<E4M3Format, E5M2Format>;
TYPED_TEST_SUITE(Float8, Float8Formats);

TYPED_TEST(Float8, EveryValueWidensExactlyAndComesBack) {
  using Number = typename TypeParam::Type;
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = to_float(Number{static_cast<uint8_t>(bits)});
    const double magnitude = TypeParam::value(bits & 0x7f);
    if (std::isnan(magnitude)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(this->narrow(value), 0x7fu) << bits;
      continue;
    }
    EXPECT_EQ(double{value}, bits >= 128 ? -magnitude : magnitude) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    EXPECT_EQ(convert<Number>(Number{static_cast<uint8_t>(bits)}).bits, bits);
    if (std::isfinite(magnitude)) {
      EXPECT_EQ(this->narrow(value), bits);
    }
  }
}

TYPED_TEST(Float8, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < TypeParam::kLargest; ++bits) {
    const double low = TypeParam::value(bits), high = TypeParam::value(bits + 1);
    const auto half = static_cast<float>((low + high) / 2);
    ASSERT_EQ(double{half}, (low + high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const uint32_t sign : {0u, 0x80u}) {
      const auto signed_value = [&](float value) { return sign != 0 ? -value : value; };
      EXPECT_EQ(this->narrow(signed_value(half)), even | sign);
      EXPECT_EQ(this->narrow(signed_value(std::nextafter(half, 0.0f))), bits | sign);
      EXPECT_EQ(this->narrow(signed_value(std::nextafter(half, kInfinity))), (bits + 1) | sign);
    }
  }
}

TYPED_TEST(Float8, SaturatesAtTheLargestNumber) {
  const auto largest = static_cast<float>(TypeParam::value(TypeParam::kLargest));
  EXPECT_EQ(double{largest}, (std::is_same_v<TypeParam, E4M3Format> ? 448.0 : 57344.0));
  for (const float value : {largest, std::nextafter(largest, kInfinity), 1.5f * largest,
                            std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(this->narrow(value), TypeParam::kLargest) << value;
    EXPECT_EQ(this->narrow(-value), TypeParam::kLargest | 0x80u) << value;
  }
  EXPECT_EQ(convert<typename TypeParam::Type>(-1e300).bits, TypeParam::kLargest | 0x80u);
  EXPECT_EQ(this->narrow(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(this->narrow(-0.0f), 0x80u);
}

// The rounding of the harness is arithmetic, not bit tricks.
TYPED_TEST(Float8, AgreesWithTheHarness) {
  const perseid::DType dtype =
      std::is_same_v<TypeParam, E4M3Format> ? perseid::f8e4m3 : perseid::f8e5m2;
  for (uint32_t i = 0; i < 1000000; ++i) {
    const float value = float_from_bits(i * 4295u + i / 7);
    uint8_t bits = 0;
    harness::store(dtype, &bits, value);
    ASSERT_EQ(this->narrow(value), bits) << value;
  }
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    const double value = harness::load(dtype, &byte);
    const float widened = to_float(typename TypeParam::Type{byte});
    EXPECT_TRUE(value == widened || (std::isnan(value) && std::isnan(widened))) << bits;
  }
}

TEST(Conversions, BetweenAllTypes) {
  EXPECT_EQ(convert<double>(bf16{0x3f80}), 1.0);
  EXPECT_EQ(convert<float>(f16{0xc000}), -2.0f);
  EXPECT_EQ(convert<bf16>(f16{0x3c00}).bits, 0x3f80);
  EXPECT_EQ(convert<f16>(bf16{0x3f80}).bits, 0x3c00);
  EXPECT_EQ(convert<f16>(f16{0x7d01}).bits, 0x7d01) << "the same type is not touched";
  EXPECT_EQ(convert<float>(0.1), 0.1f);
  EXPECT_EQ(convert<double>(0.1), 0.1);
}

TEST(DType, SizesAndNames) {
  const std::vector<std::tuple<DType, int64_t, std::string>> expected = {
      {DType::kF16, 2, "f16"},      {DType::kBF16, 2, "bf16"}, {DType::kF32, 4, "f32"},
      {DType::kF64, 8, "f64"},      {DType::kBool, 1, "bool"}, {DType::kI32, 4, "int32"},
      {DType::kI64, 8, "int64"},    {DType::kNone, 0, "none"}, {DType::kF8E4M3, 1, "f8e4m3"},
      {DType::kF8E5M2, 1, "f8e5m2"}};
  for (const auto& [dtype, size, name] : expected) {
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(name_of(dtype), name);
  }
}

TEST(Integers, CeilDivAndRoundUpDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ceil_div(0, 5), 0);
  EXPECT_EQ(ceil_div(5, 5), 1);
  EXPECT_EQ(ceil_div(6, 5), 2);
  EXPECT_EQ(ceil_div(kMost, kMost), 1);
  EXPECT_EQ(ceil_div(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(round_up(17, 16), 32);
}

// The known answers of the Random123 library.
TEST(Philox, KnownAnswers) {
  struct Case {
    PhiloxBlock counter;
    uint32_t key0, key1;
    PhiloxBlock expected;
  };
  const Case cases[] = {
      {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0xa4093822,
       0x299f31d0,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}}};
  for (const Case& each : cases) {
    const PhiloxBlock block = philox4x32(each.counter, each.key0, each.key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], each.expected.word[i]);
  }
}

TEST(Dropout, Threshold) {
  EXPECT_EQ(dropout_threshold(0), 256u);
  EXPECT_EQ(dropout_threshold(0.5), 128u);
  EXPECT_EQ(dropout_threshold(0.1), 230u);
  EXPECT_EQ(dropout_threshold(0.25), 192u);
  EXPECT_EQ(dropout_threshold(1.0 / 512), 256u) << "ties round up, to keeping everything";
  EXPECT_EQ(dropout_threshold(0.999), 1u) << "never 0: kept values are scaled by 256 / t";
  EXPECT_EQ(dropout_threshold(1.0 - 1e-12), 1u);
  EXPECT_FALSE(Dropout{}.enabled());
  EXPECT_EQ((Dropout{64, 0, 0}.rescale()), 4.0f);
}

// The byte that decides an element, by the layout that docs and kernels follow.
struct Byte {
  uint32_t lane;
  int index;
};
Byte byte_of(int64_t row, int64_t column) {
  return {static_cast<uint32_t>(row % 8 * 4 + column % 8 / 2),
          static_cast<int>(row % 16 / 8 * 8 + column % 32 / 8 * 2 + column % 2)};
}

TEST(Dropout, EveryElementOfATileHasAByteOfItsOwn) {
  std::set<std::pair<uint32_t, int>> bytes;
  for (int64_t row = 0; row < kDropoutTileRows; ++row)
    for (int64_t column = 0; column < kDropoutTileColumns; ++column) {
      const Byte byte = byte_of(row, column);
      EXPECT_LT(byte.lane, 32u);
      EXPECT_LT(byte.index, 16);
      bytes.insert({byte.lane, byte.index});
    }
  EXPECT_EQ(bytes.size(), 512u);
}

TEST(Dropout, EveryTileAndLaneHasACounterOfItsOwn) {
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> counters;
  size_t made = 0;
  for (const uint32_t offset : {0u, 1u, ~0u})
    for (const int64_t batch_head : {0, 1, 65536})
      for (const int64_t tile_row : {int64_t{0}, int64_t{1}, int64_t{1} << 27})
        for (const int64_t tile_column : {int64_t{0}, int64_t{1}, (int64_t{1} << 27) - 1})
          for (uint32_t lane = 0; lane < 32; ++lane) {
            const PhiloxBlock block =
                dropout_counter({128, 7, offset}, batch_head, tile_row, tile_column, lane);
            counters.insert({block.word[0], block.word[1], block.word[2], block.word[3]});
            ++made;
          }
  EXPECT_EQ(counters.size(), made);
}

TEST(Dropout, KeepsFollowsTheLayout) {
  const Dropout dropout{100, 0x0123456789abcdefu, 42};
  for (const int64_t batch_head : {0, 3, 70000})
    for (const int64_t first_row : {int64_t{0}, int64_t{100}, int64_t{1} << 33})
      for (int64_t row = first_row; row < first_row + 33; ++row)
        for (int64_t column = 0; column < 97; ++column) {
          const Byte byte = byte_of(row, column);
          const PhiloxBlock block =
              philox4x32({{static_cast<uint32_t>(column / 32) | byte.lane << 27,
                           static_cast<uint32_t>(row / 16), static_cast<uint32_t>(batch_head), 42}},
                         0x89abcdefu, 0x01234567u);
          const uint32_t drawn = block.word[byte.index / 4] >> (8 * (byte.index % 4)) & 0xffu;
          ASSERT_EQ(dropout_keeps(dropout, batch_head, row, column), drawn < 100);
        }
}

TEST(Dropout, KeepRateAndIndependence) {
  constexpr int64_t kRows = 512, kColumns = 512;
  for (const uint32_t threshold : {1u, 26u, 128u, 230u, 255u}) {
    const Dropout dropout{threshold, 1234567, 5}, other{threshold, 1234567, 6};
    int64_t kept = 0, both_columns = 0, both_rows = 0, both_offsets = 0;
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t column = 0; column < kColumns; ++column) {
        if (!dropout_keeps(dropout, 0, row, column)) continue;
        ++kept;
        both_columns += dropout_keeps(dropout, 0, row, column + 1);
        both_rows += dropout_keeps(dropout, 0, row + 1, column);
        both_offsets += dropout_keeps(other, 0, row, column);
      }
    const double rate = threshold / 256.0, count = kRows * kColumns;
    const auto near = [&](int64_t seen, double probability) {
      const double deviation = std::sqrt(count * probability * (1 - probability));
      EXPECT_NEAR(static_cast<double>(seen), count * probability, 5 * deviation)
          << "threshold " << threshold;
    };
    near(kept, rate);
    near(both_columns, rate * rate);
    near(both_rows, rate * rate);
    near(both_offsets, rate * rate);
  }
}

// Whether query `row` sees `key`, straight from the words of the contract.
bool sees(const AttentionProblem& problem, int64_t row, int64_t key, int64_t q_len,
          int64_t kv_len) {
  const bool bottom_right = problem.causal == Causal::kBottomRight;
  const int64_t ahead = key - (bottom_right ? row + kv_len - q_len : row);
  if (problem.causal != Causal::kNone && ahead > 0) return false;
  if (problem.window_left >= 0 && -ahead > problem.window_left) return false;
  if (problem.window_right >= 0 && ahead > problem.window_right) return false;
  return true;
}

TEST(VisibleKeys, AgreeWithTheDefinition) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  AttentionProblem problem;
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
    for (const int64_t left :
         {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{50}, kMost - 1, kMost})
      for (const int64_t right :
           {int64_t{-1}, int64_t{0}, int64_t{2}, int64_t{50}, kMost - 1, kMost})
        for (const int64_t q_len : {1, 2, 7, 20})
          for (const int64_t kv_len : {0, 1, 2, 7, 20}) {
            problem.causal = causal;
            problem.window_left = left;
            problem.window_right = right;
            for (int64_t row = 0; row < q_len; ++row) {
              const KeyRange range = visible_keys(problem, row, q_len, kv_len);
              ASSERT_LE(0, range.begin);
              ASSERT_LE(range.begin, range.end);
              ASSERT_LE(range.end, kv_len);
              for (int64_t key = 0; key < kv_len; ++key)
                ASSERT_EQ(key >= range.begin && key < range.end,
                          sees(problem, row, key, q_len, kv_len))
                    << "causal " << static_cast<int>(causal) << " window " << left << ',' << right
                    << " row " << row << " of " << q_len << " key " << key << " of " << kv_len;
            }
          }
}

TEST(VisibleKeys, OfVeryLongSequences) {
  AttentionProblem problem;
  problem.causal = Causal::kBottomRight;
  problem.window_left = 10;
  const int64_t length = int64_t{1} << 40;
  const KeyRange last = visible_keys(problem, length - 1, length, 2 * length);
  EXPECT_EQ(last.begin, 2 * length - 11);
  EXPECT_EQ(last.end, 2 * length);
  const KeyRange none = visible_keys(problem, 0, length, 5);
  EXPECT_EQ(none.begin, none.end);
}

TEST(Sequences, FollowCumulativeLengthsAndKeyLengths) {
  int32_t cu_q[] = {0, 3, 3, 8};
  int64_t cu_kv[] = {0, -1, 4, -1, 4, -1, 10};  // every other one is read
  int64_t lengths[] = {2, 9, 6};
  const auto tensor = [](void* data, DType dtype, int64_t count, int64_t stride) {
    Tensor result;
    result.data = data;
    result.dtype = dtype;
    result.rank = 1;
    result.shape[0] = count;
    result.stride[0] = stride;
    return result;
  };
  AttentionProblem problem;
  problem.batch = 3;
  problem.q_len = 5;
  problem.kv_len = 6;
  AttentionForward arguments;
  arguments.cu_seqlens_q = tensor(cu_q, DType::kI32, 4, 1);
  arguments.cu_seqlens_kv = tensor(cu_kv, DType::kI64, 4, 2);
  arguments.kv_lens = tensor(lengths, DType::kI64, 3, 1);
  const auto check = [&](int64_t batch, int64_t q_begin, int64_t q_len, int64_t kv_begin,
                         int64_t kv_len) {
    const Sequence sequence = sequence_of(problem, arguments, batch);
    EXPECT_EQ(sequence.q_begin, q_begin);
    EXPECT_EQ(sequence.q_len, q_len);
    EXPECT_EQ(sequence.kv_begin, kv_begin);
    EXPECT_EQ(sequence.kv_len, kv_len);
  };
  check(1, 0, 5, 0, 6);
  problem.kv_lens = true;
  check(0, 0, 5, 0, 2);
  check(1, 0, 5, 0, 6);
  problem.kv_lens = false;
  problem.ragged = true;
  check(0, 0, 3, 0, 4);
  check(1, 3, 0, 4, 0);
  check(2, 3, 5, 4, 6);
  problem.kv_lens = true;
  check(0, 0, 3, 0, 2);
  check(2, 3, 5, 4, 6);
}

}  // namespace
}  // namespace perseid::internal
