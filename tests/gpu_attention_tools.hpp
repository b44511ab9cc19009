// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward on a GPU against the float64 reference, by the kernels under test.
#pragma once

#include "attention_cases.hpp"
#include "cuda/attention/reference.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/sm90/attention.hpp"
#include "gpu_tools.hpp"
#include "tested_kernels.hpp"

namespace perseid::internal::testing_gpu {

using namespace cpu::attention_cases;

using Dims = std::pair<int64_t, int64_t>;  // of keys and values

inline Case forward_case(DType dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                         int64_t kv_len, int64_t dim, int64_t value_dim) {
  Case test = make_case(dtype, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  return test;
}

// Dims with queries of which there are many, and few.
inline constexpr std::pair<int64_t, int64_t> kDimsAndQueries[] = {
    {64, 150}, {128, 150}, {256, 150}, {128, 4}};
inline std::vector<std::vector<int64_t>> score_shapes(int64_t q_len, int64_t kv_len = 301) {
  return {{2, 4, q_len, kv_len}, {1, 4, q_len, kv_len}, {2, 1, q_len, kv_len},
          {2, 1, 1, kv_len},     {1, 1, q_len, 1},      {1, 1, 1, 1}};
}

class GpuAttention : public GpuTest {
 protected:
  static constexpr bool kBackward = false;  // for GpuPortable

  GpuAttention() : GpuTest(major_of(tested_kernels())) {}

  // One execution of the fixture's problem: out and lse of the GPU come to the fixture's arrays,
  // which held nothing of use before, as the workspace does not.
  void run(Fixture& fixture) {
    if (tested_kernels() == TestedKernels::kReference)
      run_by<cuda::ReferenceAttention>(fixture);
    else if (fixture.problem.dtype == DType::kF64)
      run_by<cuda::Float64Attention>(fixture);
    else if (tested_kernels() == TestedKernels::kSm90 || has_both(fixture.problem))
      run_by<cuda::Sm90Attention>(fixture);
    else
      run_by<cuda::PortableAttention>(fixture);
  }
  void check(const Case& test) {
    SCOPED_TRACE(text_of(test));
    Fixture fixture(test);
    run(fixture);
    fixture.compare_forward();
    if (!has_both(fixture.problem)) return;
    SCOPED_TRACE("by the kernels of any GPU");
    run_by<cuda::PortableAttention>(fixture);
    fixture.compare_forward();
  }

  bool numbers_on_gpu_ = false;
  int64_t misalign_ = 0;  // elements

 private:
  bool has_both(const AttentionProblem& problem) const {
    return tested_kernels() == TestedKernels::kFloat32 &&
           cuda::refuse_attention(problem, gpu_->facts()).empty();
  }
  template <class Attention>
  void run_by(Fixture& fixture) {
    std::unique_ptr<Attention> attention;
    expect_ok(Attention::make(fixture.problem, *gpu_, &attention));
    if (attention == nullptr) return;
    for (Array* result : {&fixture.out, &fixture.lse}) result->blank();
    Array work({static_cast<int64_t>(attention->forward_workspace())}, DType::kBool);
    Mirror out(*gpu_, fixture.out, misalign_), lse(*gpu_, fixture.lse), workspace(*gpu_, work);
    AttentionForward tensors = fixture.forward_arguments();
    tensors.out = out.tensor();
    tensors.lse = lse.tensor();
    // The inputs go where they lie on the GPU, with the fixture's strides.
    std::vector<std::unique_ptr<Mirror>> inputs;
    const auto place = [&](Array& array, Tensor& tensor) {
      if (!tensor.present()) return;
      inputs.push_back(std::make_unique<Mirror>(*gpu_, array, misalign_));
      tensor.data = inputs.back()->tensor().data;
    };
    place(fixture.query, tensors.query);
    place(fixture.key, tensors.key);
    place(fixture.value, tensors.value);
    place(fixture.bias, tensors.bias);
    place(fixture.visible, tensors.visible);
    place(fixture.cu_q, tensors.cu_seqlens_q);
    place(fixture.cu_kv, tensors.cu_seqlens_kv);
    place(fixture.kv_lens, tensors.kv_lens);
    Array numbers({2}, DType::kI64);
    Mirror gpu_numbers(*gpu_, numbers);
    if (numbers_on_gpu_) {
      // What stands in the arguments is of no meaning then.
      const uint64_t drawn[] = {tensors.dropout.seed, tensors.dropout.offset};
      expect_ok(cuda::copy(*gpu_, gpu_numbers.tensor().data, drawn, sizeof drawn, nullptr));
      tensors.dropout.numbers = gpu_numbers.tensor().as<uint64_t>();
      tensors.dropout.seed = tensors.dropout.offset = 5;
    }
    expect_ok(attention->forward(tensors, workspace.tensor().as<std::byte>(), nullptr));
    {
      const cuda::Gpu::Current current(*gpu_);
      ASSERT_EQ(gpu_->driver().stream_synchronize(nullptr), cuda::kSuccess);
    }
    out.fetch();
    lse.fetch();
  }
};

}  // namespace perseid::internal::testing_gpu
