// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// One problem of attention backward, run thrice: as it is, onto the negative of that result, and
// onto other numbers. For any device: tensors are copied there and back.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "api_test_tools.hpp"
#include "math/dtype.hpp"

namespace accumulate_test {

using perseid::internal::bf16;
using perseid::internal::convert;
using perseid::internal::f16;

struct Case {
  uint32_t dtype = PERSEID_F32;
  int64_t batch = 2, heads = 2, kv_heads = 0, q_len = 40, kv_len = 70, head_dim = 16, value_dim = 0;
  uint32_t causal = PERSEID_CAUSAL_NONE;
  uint32_t bias_dtype = 0;
  int broadcast = 0;  // bit d: dimension d of the bias is 1
  bool kv_lens = false, ragged = false;
  uint32_t accumulate = 15;
  const char* implementation = nullptr;
  bool deterministic = false, on_gpu = false, bias = true;
  // NaN in the first query, which under a causal mask only the first key sees.
  bool poison_query = false;
  bool poison_keys = false;  // NaN in keys and values past kv_lens
};

inline perseid::DType public_dtype(uint32_t dtype) { return static_cast<perseid::DType>(dtype); }
inline size_t bytes_of(uint32_t dtype) {
  return dtype < PERSEID_F32 ? 2 : dtype == PERSEID_F32 ? 4 : 8;
}

// A tensor on the host, its numbers as doubles.
class Numbers {
 public:
  Numbers(uint32_t dtype, const perseid::Dims& shape) : dtype_(dtype), shape_(shape) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    bytes_.resize(count * bytes_of(dtype));
    count_ = count;
  }
  void fill(uint32_t seed, double scale) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, scale);
    for (size_t i = 0; i < count_; ++i) set(i, normal(random));
  }
  size_t count() const { return count_; }
  uint32_t dtype() const { return dtype_; }
  void set(size_t i, double value) {
    visit([&]<class T>(T* data) { data[i] = convert<T>(value); });
  }
  double at(size_t i) const {
    double value = 0;
    const_cast<Numbers*>(this)->visit([&]<class T>(T* data) { value = convert<double>(data[i]); });
    return value;
  }
  // Half of the distance to the next number of the type.
  double half_step(double value) const {
    const int bits = dtype_ == PERSEID_F16    ? 11
                     : dtype_ == PERSEID_BF16 ? 8
                     : dtype_ == PERSEID_F32  ? 24
                                              : 53;
    const double least = dtype_ == PERSEID_F16 ? 0x1p-14 : 0x1p-126;
    int exponent = 0;
    std::frexp(std::max(std::fabs(value), least), &exponent);
    return std::ldexp(0.5, exponent - bits);
  }
  std::vector<std::byte>& bytes() { return bytes_; }
  const perseid::Dims& shape() const { return shape_; }

 private:
  template <class Visitor>
  void visit(const Visitor& visitor) {
    switch (dtype_) {
      case PERSEID_F16:
        return visitor(reinterpret_cast<f16*>(bytes_.data()));
      case PERSEID_BF16:
        return visitor(reinterpret_cast<bf16*>(bytes_.data()));
      case PERSEID_F32:
        return visitor(reinterpret_cast<float*>(bytes_.data()));
      default:
        return visitor(reinterpret_cast<double*>(bytes_.data()));
    }
  }
  uint32_t dtype_;
  perseid::Dims shape_;
  std::vector<std::byte> bytes_;
  size_t count_ = 0;
};

// Memory of the context's device with a tensor in it.
class OnDevice {
 public:
  OnDevice(const Context& context, Numbers& numbers) : context_(context), numbers_(numbers) {
    DLDevice device{};
    EXPECT_EQ(perseid_context_device(context.get(), &device), PERSEID_OK);
    EXPECT_EQ(
        perseid_memory_allocate(context.get(), std::max<size_t>(numbers.bytes().size(), 1), &data_),
        PERSEID_OK);
    tensor_ = Tensor(data_, public_dtype(numbers.dtype()), numbers.shape(), {}, device);
    copy(data_, numbers.bytes().data());
  }
  ~OnDevice() { perseid_memory_free(context_.get(), data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  void fetch() { copy(numbers_.bytes().data(), data_); }
  const DLTensor* dl() const { return tensor_.dl(); }

 private:
  void copy(void* to, const void* from) {
    EXPECT_EQ(perseid_memory_copy(context_.get(), to, from, numbers_.bytes().size(), nullptr),
              PERSEID_OK)
        << perseid_last_error();
  }
  const Context& context_;
  Numbers& numbers_;
  void* data_ = nullptr;
  Tensor tensor_;
};

class Problem {
 public:
  Problem(const Context& context, const Case& c)
      : context_(context),
        case_(c),
        kv_heads_(c.kv_heads == 0 ? c.heads : c.kv_heads),
        value_dim_(c.value_dim == 0 ? c.head_dim : c.value_dim),
        query_(c.dtype, rows(c.q_len, c.heads, c.head_dim)),
        key_(c.dtype, rows(c.kv_len, kv_heads_, c.head_dim)),
        value_(c.dtype, rows(c.kv_len, kv_heads_, value_dim_)),
        bias_(c.bias_dtype == 0 ? c.dtype : c.bias_dtype, bias_shape()),
        out_(c.dtype, rows(c.q_len, c.heads, value_dim_)),
        grad_out_(out_),
        lse_(c.dtype == PERSEID_F64 ? PERSEID_F64 : PERSEID_F32,
             c.ragged ? perseid::Dims{c.heads, c.batch * c.q_len}
                      : perseid::Dims{c.batch, c.heads, c.q_len}) {
    query_.fill(1, 1);
    key_.fill(2, 1);
    value_.fill(3, 1);
    bias_.fill(4, 1);
    grad_out_.fill(5, 1);
    for (int64_t b = 0; b < c.batch; ++b) {
      lens_.push_back(static_cast<int32_t>(c.kv_len * (b + 1) / (c.batch + 1)));
      cu_q_.push_back(cu_q_.back() + static_cast<int32_t>(c.q_len * (b + 1) / (c.batch + 1)));
      cu_kv_.push_back(cu_kv_.back() + lens_.back());
    }
  }
  void poison() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto fill_row = [nan](Numbers& numbers, int64_t row) {
      const perseid::Dims& shape = numbers.shape();
      const auto size = static_cast<size_t>(shape[2] * shape[3]);
      for (size_t i = 0; i < size; ++i) numbers.set(static_cast<size_t>(row) * size + i, nan);
    };
    for (int64_t b = 0; b < case_.batch; ++b) {
      if (case_.poison_query) fill_row(query_, b * case_.q_len);
      for (int64_t key = lens_[static_cast<size_t>(b)]; case_.poison_keys && key < case_.kv_len;
           ++key) {
        fill_row(key_, b * case_.kv_len + key);
        fill_row(value_, b * case_.kv_len + key);
      }
    }
  }
  std::vector<Numbers> gradients() const {
    std::vector<Numbers> all = {Numbers(query_), Numbers(key_), Numbers(value_)};
    if (case_.bias) all.emplace_back(bias_);
    return all;
  }
  // Backward onto what the gradients hold.
  void run(uint32_t accumulate, std::vector<Numbers>& gradients) {
    auto desc = sized<perseid_attention_desc>();
    desc.dtype = case_.dtype;
    desc.causal = case_.causal;
    desc.batch = case_.batch;
    desc.heads = case_.heads;
    desc.kv_heads = case_.kv_heads;
    desc.q_len = case_.q_len;
    desc.kv_len = case_.kv_len;
    desc.head_dim = case_.head_dim;
    desc.value_dim = case_.value_dim;
    desc.bias = case_.bias;
    desc.bias_dtype = case_.bias_dtype;
    const perseid::Dims shape = bias_shape();
    std::copy(shape.begin(), shape.end(), desc.bias_shape);
    desc.kv_lens = case_.kv_lens;
    desc.ragged = case_.ragged;
    if (case_.ragged) {
      desc.total_q = case_.batch * case_.q_len;
      desc.total_kv = case_.batch * case_.kv_len;
    }
    desc.gradients = case_.bias ? 15 : 7;
    desc.accumulate = accumulate & desc.gradients;
    desc.deterministic = case_.deterministic;
    desc.implementation = case_.implementation;
    Plan plan;
    ASSERT_EQ(perseid_attention_plan_create(context_.get(), &desc, plan.out()), PERSEID_OK)
        << perseid_last_error();
    size_t forward_bytes = 0, backward_bytes = 0;
    ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &forward_bytes), PERSEID_OK);
    ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_BACKWARD, &backward_bytes),
              PERSEID_OK);
    const size_t bytes = std::max(forward_bytes, backward_bytes);
    void* workspace = nullptr;
    ASSERT_EQ(perseid_memory_allocate(context_.get(), bytes, &workspace), PERSEID_OK);
    Numbers lens = integers(lens_), cu_q = integers(cu_q_), cu_kv = integers(cu_kv_);
    {
      OnDevice query(context_, query_), key(context_, key_), value(context_, value_),
          bias(context_, bias_), out(context_, out_), lse(context_, lse_),
          grad_out(context_, grad_out_), device_lens(context_, lens), device_cu_q(context_, cu_q),
          device_cu_kv(context_, cu_kv);
      const auto set_inputs = [&](auto& args) {
        args.query = query.dl();
        args.key = key.dl();
        args.value = value.dl();
        if (case_.bias) args.bias = bias.dl();
        if (case_.kv_lens) args.kv_lens = as_i32(device_lens, lens_.size());
        if (case_.ragged) {
          args.cu_seqlens_q = as_i32(device_cu_q, cu_q_.size());
          args.cu_seqlens_kv = as_i32(device_cu_kv, cu_kv_.size());
        }
        args.out = out.dl();
        args.lse = lse.dl();
      };
      auto forward = sized<perseid_attention_forward_args>();
      set_inputs(forward);
      EXPECT_EQ(perseid_attention_forward(plan.get(), &forward, workspace, bytes, nullptr),
                PERSEID_OK)
          << perseid_last_error();
      OnDevice grad_query(context_, gradients[0]), grad_key(context_, gradients[1]),
          grad_value(context_, gradients[2]), grad_bias(context_, gradients.back());
      auto backward = sized<perseid_attention_backward_args>();
      set_inputs(backward);
      backward.grad_out = grad_out.dl();
      backward.grad_query = grad_query.dl();
      backward.grad_key = grad_key.dl();
      backward.grad_value = grad_value.dl();
      if (case_.bias) backward.grad_bias = grad_bias.dl();
      EXPECT_EQ(perseid_attention_backward(plan.get(), &backward, workspace, bytes, nullptr),
                PERSEID_OK)
          << perseid_last_error();
      EXPECT_EQ(perseid_stream_synchronize(context_.get(), nullptr), PERSEID_OK);
      grad_query.fetch();
      grad_key.fetch();
      grad_value.fetch();
      if (case_.bias) grad_bias.fetch();
    }
    perseid_memory_free(context_.get(), workspace);
  }

 private:
  perseid::Dims rows(int64_t length, int64_t heads, int64_t dim) const {
    if (case_.ragged) return {case_.batch * length, heads, dim};
    return {case_.batch, length, heads, dim};
  }
  perseid::Dims bias_shape() const {
    int64_t full[4] = {case_.batch, case_.heads, case_.q_len, case_.kv_len};
    for (int d = 0; d < 4; ++d)
      if ((case_.broadcast >> d & 1) != 0) full[d] = 1;
    return {full[0], full[1], full[2], full[3]};
  }
  // Integers travel as pairs of bytes do: in a tensor of the same size.
  static Numbers integers(const std::vector<int32_t>& values) {
    Numbers numbers(PERSEID_F32, {static_cast<int64_t>(values.size())});
    std::memcpy(numbers.bytes().data(), values.data(), 4 * values.size());
    return numbers;
  }
  const DLTensor* as_i32(const OnDevice& tensor, size_t) {
    views_.push_back(std::make_unique<DLTensor>(*tensor.dl()));
    views_.back()->dtype = {kDLInt, 32, 1};
    return views_.back().get();
  }

  const Context& context_;
  Case case_;
  int64_t kv_heads_, value_dim_;
  Numbers query_, key_, value_, bias_, out_, grad_out_, lse_;
  std::vector<int32_t> lens_, cu_q_{0}, cu_kv_{0};
  std::vector<std::unique_ptr<DLTensor>> views_;
};

// `tolerance`: how far sums of the same problem may be apart between runs, of their size; 0 where
// backward is bitwise repeatable.
inline void check(const Case& c, double tolerance = 0) {
  SCOPED_TRACE(testing::Message() << "dtype " << c.dtype << " batch " << c.batch << " heads "
                                  << c.heads << " q_len " << c.q_len << " kv_len " << c.kv_len
                                  << " broadcast " << c.broadcast << " accumulate "
                                  << c.accumulate);
  auto options = sized<perseid_context_options>();
  options.device_type = c.on_gpu ? kDLCUDA : kDLCPU;
  options.threads = c.on_gpu ? 0 : 2;
  const Context context(options);
  Problem problem(context, c);
  problem.poison();
  auto plain = problem.gradients();
  for (Numbers& gradient : plain) gradient.fill(6, 1e-2);
  const auto before = plain;
  problem.run(0, plain);  // every element that belongs to a sequence is written
  auto rest = plain;
  for (Numbers& gradient : rest)
    for (size_t i = 0; i < gradient.count(); ++i) gradient.set(i, -gradient.at(i));
  problem.run(c.accumulate, rest);  // what rounding took from the plain result
  auto sum = problem.gradients();
  for (Numbers& gradient : sum) gradient.fill(7, 2);
  const auto old = sum;
  problem.run(c.accumulate, sum);
  size_t rounded = 0, elements = 0;
  for (size_t g = 0; g < plain.size(); ++g) {
    SCOPED_TRACE(testing::Message() << "gradient " << g);
    const bool adds = (c.accumulate >> g & 1) != 0;
    for (size_t i = 0; i < plain[g].count(); ++i) {
      const double gradient = plain[g].at(i), residual = rest[g].at(i);
      if (gradient == before[g].at(i) && residual == -gradient) {
        ASSERT_EQ(sum[g].at(i), old[g].at(i)) << i;  // a row of no sequence
        continue;
      }
      if (std::isnan(gradient)) {
        ASSERT_TRUE(std::isnan(residual) && std::isnan(sum[g].at(i))) << i;
        continue;
      }
      if (!adds) {
        ASSERT_NEAR(residual, gradient, tolerance * std::fabs(gradient) + tolerance) << i;
        ASSERT_NEAR(sum[g].at(i), gradient, tolerance * std::fabs(gradient) + tolerance) << i;
        continue;
      }
      elements += gradient != 0;  // keys that no query sees have 0, which is exact
      rounded += residual != 0;
      const double noise = tolerance * (1 + std::fabs(gradient));
      ASSERT_LE(std::fabs(residual), plain[g].half_step(gradient) * (1 + 1e-6) + noise) << i;
      // Rounding is of the exact sum, but for what the accumulation type rounds itself.
      const double exact = old[g].at(i) + (gradient + residual);
      const double own = c.dtype == PERSEID_F64 ? 0x1p-52 : 0x1p-23;
      ASSERT_NEAR(
          sum[g].at(i), exact,
          sum[g].half_step(exact) + own * (std::fabs(old[g].at(i)) + std::fabs(gradient)) + noise)
          << i;
    }
  }
  // A gradient that was rounded before it was added would leave no residual.
  const bool narrow = c.dtype == PERSEID_F16 || c.dtype == PERSEID_BF16;
  if (narrow && elements > 0) {
    EXPECT_GT(rounded, elements / 2);
  }
}

}  // namespace accumulate_test
