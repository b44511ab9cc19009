// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches on the device of a context, against loops over elements.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid::ragged_cases {

using Bytes = std::vector<uint8_t>;

// Memory of the device that holds what the host's vector does.
template <class T>
class OnDevice {
 public:
  OnDevice(const Context& context, const std::vector<T>& values)
      : context_(context), bytes_(values.size() * sizeof(T)), memory_(context, bytes_ + 1) {
    context.copy(memory_.data(), values.data(), bytes_);
  }
  Tensor tensor(DType dtype, const Dims& shape, const Dims& strides = {}, int64_t first = 0) const {
    return Tensor(static_cast<T*>(memory_.data()) + first, dtype, shape, strides,
                  context_.device());
  }
  std::vector<T> get() const {
    std::vector<T> values(bytes_ / sizeof(T));
    context_.synchronize();
    context_.copy(values.data(), memory_.data(), bytes_);
    return values;
  }

 private:
  const Context& context_;
  size_t bytes_;
  Memory memory_;
};

inline std::vector<int64_t> random_lengths(int64_t batch, int64_t longest, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> lengths(static_cast<size_t>(batch));
  for (int64_t& length : lengths)
    length = random() % 4 == 0 ? 0 : static_cast<int64_t>(random()) % (longest + 1);
  return lengths;
}

inline std::vector<int64_t> sums_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> sums(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
  return sums;
}

// Lengths of both types and masks, into both types, contiguous and not.
inline void check_lengths(const Context& context) {
  for (const int64_t batch : {0, 1, 2, 31, 64, 1023, 1024, 1025, 5000})
    for (const int64_t longest : {1, 7, 300}) {
      const std::vector<int64_t> lengths =
          random_lengths(batch, longest, static_cast<uint32_t>(batch + longest));
      const std::vector<int64_t> expected = sums_of(lengths);
      const int64_t total = expected.back();
      SCOPED_TRACE(testing::Message() << batch << " of at most " << longest);
      const OnDevice<int64_t> sums(context, std::vector<int64_t>(expected.size(), -7));
      const auto expect = [&](const Tensor& given) {
        ragged_lengths(context, given, longest, total, sums.tensor(i64, {batch + 1}));
        EXPECT_EQ(sums.get(), expected);
        const OnDevice<int32_t> narrow(context, std::vector<int32_t>(2 * expected.size(), -7));
        ragged_lengths(context, given, longest, total, narrow.tensor(i32, {batch + 1}, {2}));
        const std::vector<int32_t> found = narrow.get();
        int64_t wrong = 0;
        for (size_t i = 0; i < expected.size(); ++i)
          wrong += found[2 * i] != expected[i] || found[2 * i + 1] != -7;
        EXPECT_EQ(wrong, 0);
      };
      const OnDevice<int64_t> wide(context, lengths);
      expect(wide.tensor(i64, {batch}));
      const OnDevice<int32_t> half(context, std::vector<int32_t>(lengths.begin(), lengths.end()));
      expect(half.tensor(i32, {batch}));
      Bytes rows(static_cast<size_t>(2 * batch * longest));
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t i = 0; i < lengths[static_cast<size_t>(b)]; ++i)
          rows[static_cast<size_t>(2 * (i * batch + b))] = static_cast<uint8_t>(1 + i % 255);
      const OnDevice<uint8_t> mask(context, rows);
      expect(mask.tensor(u8, {batch, longest}, {2, 2 * batch}));
    }
}

struct Case {
  int64_t batch, longest, total_more;  // rows of packed past the last sequence
  DType dtype;
  Dims inner;           // dimensions of a row
  int64_t gap = 0;      // elements between rows of padded
  bool turned = false;  // packed has its inner dimensions before its rows
};

// Packs and unpacks random bytes; what is of no sequence is zeroed, or left as it was.
inline void check_copies(const Context& context, const Case& c) {
  int64_t size = 0;
  for (const auto& each : detail::kDTypes)
    if (each.dtype == c.dtype) size = each.dl.bits / 8;
  SCOPED_TRACE(testing::Message() << "batch " << c.batch << " longest " << c.longest << " inner "
                                  << c.inner.size() << " gap " << c.gap << " bytes " << size);
  const std::vector<int64_t> sums = sums_of(
      random_lengths(c.batch, c.longest, static_cast<uint32_t>(c.batch * c.longest + size)));
  const int64_t total = sums.back() + c.total_more;
  int64_t inner = 1;
  for (const int64_t each : c.inner) inner *= each;

  // Shapes and strides in elements.
  using Sizes = std::vector<int64_t>;
  Sizes wide_shape = {c.batch, c.longest}, narrow_shape = {total};
  Sizes inner_strides(c.inner.size()), turned_strides(c.inner.size());
  int64_t stride = 1;
  for (size_t d = c.inner.size(); d-- > 0;) {
    inner_strides[d] = stride;
    turned_strides[d] = stride * total;
    stride *= c.inner[d];
  }
  Sizes wide_strides = {c.longest * (inner + c.gap), inner + c.gap};
  Sizes narrow_strides = {c.turned ? 1 : inner};
  for (size_t d = 0; d < c.inner.size(); ++d) {
    wide_shape.push_back(c.inner[d]);
    narrow_shape.push_back(c.inner[d]);
    wide_strides.push_back(inner_strides[d]);
    narrow_strides.push_back(c.turned ? turned_strides[d] : inner_strides[d]);
  }
  const auto dims = [](const Sizes& sizes) { return Dims(std::span<const int64_t>(sizes)); };
  std::mt19937 random(7);
  Bytes wide(static_cast<size_t>(c.batch * wide_strides[0] * size)),
      narrow(static_cast<size_t>(total * inner * size));
  for (uint8_t& byte : wide) byte = static_cast<uint8_t>(random() | 1);
  for (uint8_t& byte : narrow) byte = static_cast<uint8_t>(random() | 1);
  const OnDevice<int64_t> cumulative(context, sums);
  const Tensor ends = cumulative.tensor(i64, {c.batch + 1});

  for (const Rest rest : {Rest::kKeep, Rest::kZero})
    for (const bool packing : {true, false}) {
      const OnDevice<uint8_t> padded(context, wide), packed(context, narrow);
      const Tensor from = padded.tensor(c.dtype, dims(wide_shape), dims(wide_strides));
      const Tensor to = packed.tensor(c.dtype, dims(narrow_shape), dims(narrow_strides));
      packing ? pack(context, from, ends, to, rest) : unpack(context, to, ends, from, rest);

      Bytes expected_wide = wide, expected_narrow = narrow;
      if (packing && rest == Rest::kZero)
        std::fill(expected_narrow.begin(), expected_narrow.end(), 0);
      for (int64_t b = 0; b < c.batch; ++b) {
        const int64_t begin = sums[static_cast<size_t>(b)];
        const int64_t length = sums[static_cast<size_t>(b) + 1] - begin;
        for (int64_t i = 0; i < c.longest; ++i)
          for (int64_t e = 0; e < inner * size; ++e) {
            const auto at_wide =
                static_cast<size_t>((b * wide_strides[0] + i * wide_strides[1]) * size + e);
            const int64_t row = begin + i;
            const auto at_narrow = static_cast<size_t>(
                c.turned ? (e / size * total + row) * size + e % size : row * inner * size + e);
            if (i < length && packing) expected_narrow[at_narrow] = wide[at_wide];
            if (i < length && !packing) expected_wide[at_wide] = narrow[at_narrow];
            if (i >= length && !packing && rest == Rest::kZero) expected_wide[at_wide] = 0;
          }
      }
      EXPECT_TRUE(padded.get() == expected_wide) << (packing ? "pack" : "unpack");
      EXPECT_TRUE(packed.get() == expected_narrow) << (packing ? "pack" : "unpack");
    }
}

// Types, shapes of rows, gaps and orders of dimensions that reach every width of a copy.
inline void check_all_copies(const Context& context) {
  check_copies(context, {5, 17, 3, bf16, {8, 64}});
  check_copies(context, {3, 40, 0, f32, {128}, 4});
  check_copies(context, {4, 9, 2, f32, {5}, 1});
  check_copies(context, {4, 9, 2, bf16, {3, 7}});
  check_copies(context, {2, 33, 5, u8, {13}, 2});
  check_copies(context, {6, 11, 1, f64, {}});
  check_copies(context, {3, 12, 4, bf16, {4, 24}, 8, true});
  check_copies(context, {2, 3, 1, f32, {9000}, 3});
  check_copies(context, {1, 70, 7, f16, {2, 3, 4, 16}});
  check_copies(context, {0, 5, 6, f32, {8}});
  check_copies(context, {4, 0, 6, f32, {8}});
  check_copies(context, {300, 5, 6, i64, {1, 2}});
}

}  // namespace perseid::ragged_cases
