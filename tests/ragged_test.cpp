// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches on the CPU, and what is wrong with their arguments.
#include "ragged_cases.hpp"

#include "api_test_tools.hpp"

namespace perseid {
namespace {

TEST(Ragged, Lengths) { ragged_cases::check_lengths(Context::cpu(3)); }
TEST(Ragged, Copies) { ragged_cases::check_all_copies(Context::cpu(3)); }

// sum(pack(x) y) = sum(x unpack(y)) for whole numbers, exactly.
TEST(Ragged, PackAndUnpackAreAdjoint) {
  const Context context = Context::cpu(2);
  const std::vector<int32_t> ends = {0, 3, 3, 10};
  const Tensor cumulative(ends.data(), {4});
  std::vector<float> x(3 * 7 * 4), y(12 * 4), packed(y.size()), padded(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6;
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i % 11) - 5;
  pack(context, Tensor(x.data(), {3, 7, 4}), cumulative, Tensor(packed.data(), {12, 4}));
  unpack(context, Tensor(y.data(), {12, 4}), cumulative, Tensor(padded.data(), {3, 7, 4}));
  const float left = std::inner_product(packed.begin(), packed.end(), y.begin(), 0.0f);
  const float right = std::inner_product(x.begin(), x.end(), padded.begin(), 0.0f);
  EXPECT_EQ(left, right);
  EXPECT_NE(left, 0);
}

// A padded batch becomes ragged attention, whose results become padded again.
TEST(Ragged, AttentionOverPaddedSequences) {
  constexpr int64_t kBatch = 3, kLongest = 20, kHeads = 2, kDim = 16;
  const Context context = Context::cpu(2);
  const std::vector<uint8_t> lengths = {20, 0, 7};
  std::vector<uint8_t> mask(kBatch * kLongest);
  for (size_t b = 0; b < kBatch; ++b)
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(b * kLongest), lengths[b], uint8_t{1});
  std::vector<float> padded(kBatch * kLongest * kHeads * kDim);
  for (size_t i = 0; i < padded.size(); ++i) padded[i] = std::sin(static_cast<float>(i) * 0.7f);
  const Dims shape = {kBatch, kLongest, kHeads, kDim};
  const Tensor x(padded.data(), shape);

  std::vector<int32_t> ends(kBatch + 1);
  const Tensor cumulative(ends.data(), {kBatch + 1});
  ragged_lengths(context, Tensor(mask.data(), {kBatch, kLongest}), kLongest, 27, cumulative);
  EXPECT_EQ(ends, (std::vector<int32_t>{0, 20, 20, 27}));
  std::vector<float> rows(27 * kHeads * kDim), out(rows.size()), result(padded.size(), 9);
  const Tensor packed(rows.data(), {27, kHeads, kDim}), packed_out(out.data(), {27, kHeads, kDim});
  pack(context, x, cumulative, packed);
  const Attention ragged(context, {.batch = kBatch,
                                   .heads = kHeads,
                                   .q_len = kLongest,
                                   .kv_len = kLongest,
                                   .head_dim = kDim,
                                   .ragged = true,
                                   .total_q = 27,
                                   .total_kv = 27});
  Workspace workspace;
  ragged.forward(nullptr,
                 {.query = packed,
                  .key = packed,
                  .value = packed,
                  .cu_seqlens_q = cumulative,
                  .cu_seqlens_kv = cumulative,
                  .out = packed_out},
                 workspace);
  unpack(context, packed_out, cumulative, Tensor(result.data(), shape));

  // Without packing: lengths of keys.
  std::vector<float> expected(padded.size());
  const std::vector<int32_t> kv_lens = {20, 0, 7};
  const Attention masked(context, {.batch = kBatch,
                                   .heads = kHeads,
                                   .q_len = kLongest,
                                   .kv_len = kLongest,
                                   .head_dim = kDim,
                                   .kv_lens = true});
  masked.forward(nullptr,
                 {.query = x,
                  .key = x,
                  .value = x,
                  .kv_lens = Tensor(kv_lens.data(), {kBatch}),
                  .out = Tensor(expected.data(), shape)},
                 workspace);
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t i = 0; i < kLongest; ++i)
      for (int64_t e = 0; e < kHeads * kDim; ++e) {
        const auto at = static_cast<size_t>((b * kLongest + i) * kHeads * kDim + e);
        const bool counts = i < lengths[static_cast<size_t>(b)];
        EXPECT_NEAR(result[at], counts ? expected[at] : 0, 1e-6);
      }
}

}  // namespace
}  // namespace perseid

namespace {

TEST(Ragged, RefuseWhatIsWrong) {
  Context context(2);
  std::vector<int32_t> lengths = {3, 0, 2}, ends = {0, 3, 3, 5};
  const Tensor given(lengths.data(), {3}), cumulative(ends.data(), {4});
  const auto sum = [&](int64_t longest, int64_t total, const DLTensor* of) {
    return perseid_ragged_lengths(context.get(), of, longest, total, cumulative.dl(), nullptr);
  };
  EXPECT_EQ(sum(3, 5, given.dl()), PERSEID_OK) << perseid_last_error();
  EXPECT_FAILS(sum(2, 5, given.dl()), PERSEID_INVALID_ARGUMENT,
               "lengths[0] is 3, expected 0 to 2, the longest");
  EXPECT_FAILS(sum(3, 4, given.dl()), PERSEID_INVALID_ARGUMENT,
               "lengths[2] brings the sum to 5, expected at most 4, the total");
  EXPECT_FAILS(sum(-1, 4, given.dl()), PERSEID_INVALID_ARGUMENT, "longest is -1");
  EXPECT_FAILS(sum(3, int64_t{1} << 31, given.dl()), PERSEID_INVALID_ARGUMENT,
               "total is 2147483648, which int32 does not hold");
  EXPECT_FAILS(sum(3, 5, nullptr), PERSEID_INVALID_ARGUMENT, "lengths is NULL");
  lengths[1] = -1;
  EXPECT_FAILS(sum(3, 5, given.dl()), PERSEID_INVALID_ARGUMENT, "lengths[1] is -1");
  EXPECT_EQ(ends, (std::vector<int32_t>{0, 3, 3, 5}));
  const std::vector<uint8_t> holes = {1, 1, 0, 1, 0, 1, 0, 0, 0};
  const Tensor mask(holes.data(), {3, 3});
  EXPECT_FAILS(sum(3, 9, mask.dl()), PERSEID_INVALID_ARGUMENT,
               "lengths[1] has a row that counts after one that does not");
  EXPECT_FAILS(sum(4, 9, mask.dl()), PERSEID_INVALID_ARGUMENT, "lengths has longest 3, expected 4");

  std::vector<float> padded(3 * 3 * 2), packed(5 * 2);
  const Tensor wide(padded.data(), {3, 3, 2}), narrow(packed.data(), {5, 2});
  const auto copy = [&](const DLTensor* from, const DLTensor* to, uint32_t zero_rest = 1) {
    return perseid_ragged_pack(context.get(), from, cumulative.dl(), to, zero_rest, nullptr);
  };
  EXPECT_EQ(copy(wide.dl(), narrow.dl()), PERSEID_OK) << perseid_last_error();
  EXPECT_FAILS(copy(wide.dl(), narrow.dl(), 2), PERSEID_INVALID_ARGUMENT, "zero_rest is 2");
  EXPECT_FAILS(copy(nullptr, narrow.dl()), PERSEID_INVALID_ARGUMENT, "padded is NULL");
  EXPECT_FAILS(copy(wide.dl(), nullptr), PERSEID_INVALID_ARGUMENT, "packed is NULL");
  const Tensor flat(packed.data(), {10}), wider(packed.data(), {3, 3});
  EXPECT_FAILS(copy(wide.dl(), flat.dl()), PERSEID_INVALID_ARGUMENT, "expected 2 dimensions");
  EXPECT_FAILS(copy(wide.dl(), wider.dl()), PERSEID_INVALID_ARGUMENT,
               "packed has size 3, expected 2; its shape is [3, 3], expected [total, size 2]");
  const Tensor four(packed.data(), {4, 2});
  EXPECT_FAILS(copy(wide.dl(), four.dl()), PERSEID_INVALID_ARGUMENT,
               "cu_seqlens ends at 5, expected at most 4, the rows of packed");
  const Tensor shorter(padded.data(), {3, 2, 2});
  EXPECT_FAILS(copy(shorter.dl(), narrow.dl()), PERSEID_INVALID_ARGUMENT,
               "sequence 0 a length of 3, expected at most 2, the longest that padded has");
  EXPECT_FAILS(copy(wide.dl(), wide.dl()), PERSEID_INVALID_ARGUMENT, "packed");
  EXPECT_FAILS(perseid_ragged_pack(nullptr, wide.dl(), cumulative.dl(), narrow.dl(), 1, nullptr),
               PERSEID_INVALID_ARGUMENT, "context");
  ends[2] = 2;
  EXPECT_FAILS(copy(wide.dl(), narrow.dl()), PERSEID_INVALID_ARGUMENT,
               "cu_seqlens[2] is 2, expected at least 3");
}

}  // namespace
