// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU against the float64 reference, by the kernels under test.
#pragma once

#include "attention_cases.hpp"
#include "cuda/attention/reference.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "cuda/sm90/attention_backward_float32.hpp"
#include "gpu_tools.hpp"
#include "tested_kernels.hpp"

namespace perseid::internal::testing_gpu {

// Where an element is that has the size of the tensor's.
inline std::byte* element_at(const Tensor& tensor, int64_t offset) {
  return tensor.as<std::byte>() + offset * size_of(tensor.dtype);
}

using cpu::attention_cases::broadcast;
using cpu::attention_cases::Case;
using cpu::attention_cases::Fixture;
using cpu::attention_cases::text_of;
using tests::Array;
using tests::major_of;
using tests::OfAnyGpu;
using tests::tested_kernels;
using tests::TestedKernels;

class GpuAttentionBackward : public GpuTest {
 protected:
  static constexpr bool kBackward = true;  // for GpuPortable

  GpuAttentionBackward() : GpuTest(major_of(tested_kernels())) {}

  // One execution of the fixture's problem: gradients of the GPU come to the fixture's arrays,
  // which held nothing of use before, as the workspace does not.
  void run(Fixture& fixture) {
    if (tested_kernels() == TestedKernels::kFloat32 && gpu_->facts().major == 9 &&
        shared_bytes_ == 0 && fixture.problem.dtype == DType::kF32 &&
        cuda::refuse_attention(fixture.problem, gpu_->facts()).empty() &&
        cuda::refuse_float32_attention_backward(fixture.problem).empty()) {
      SCOPED_TRACE("cuda:sm90");
      run_by<cuda::Sm90Float32AttentionBackward>(fixture);
      fixture.compare_gradients();
    }
    if (tested_kernels() == TestedKernels::kReference)
      run_by<cuda::ReferenceAttentionBackward>(fixture);
    else if (fixture.problem.dtype != DType::kF64 && tested_kernels() == TestedKernels::kSm90)
      run_by<cuda::Sm90AttentionBackward>(fixture);
    else
      run_by<cuda::PortableAttentionBackward>(fixture);
  }
  // In any order, and in the fixed one.
  void check(const Case& test) {
    const AttentionProblem& p = test.problem;
    SCOPED_TRACE(concatenate(text_of(test), " gradients ", p.grad_query, p.grad_key, p.grad_value));
    Fixture fixture(test);
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(deterministic ? "deterministic" : "default");
      fixture.problem.deterministic = deterministic;
      run(fixture);
      fixture.compare_gradients();
    }
  }

  template <class Attention>
  void run_by(Fixture& fixture) {
    std::unique_ptr<Attention> attention;
    expect_ok(make(fixture.problem, &attention));
    if (attention == nullptr) return;
    Array work({static_cast<int64_t>(attention->workspace())}, DType::kBool);
    AttentionBackward tensors = fixture.arguments;
    std::vector<std::unique_ptr<Mirror>> mirrors;
    const auto send = [&](Array& array, Tensor& tensor, bool result) {
      if (!tensor.present()) return;
      if (result) array.blank();
      mirrors.push_back(std::make_unique<Mirror>(*gpu_, array, misalign_));
      tensor.data = mirrors.back()->tensor().data;
    };
    send(fixture.query, tensors.query, false);
    send(fixture.key, tensors.key, false);
    send(fixture.value, tensors.value, false);
    send(fixture.out, tensors.out, false);
    send(fixture.lse, tensors.lse, false);
    send(fixture.grad_out, tensors.grad_out, false);
    send(fixture.grad_lse, tensors.grad_lse, false);
    send(fixture.cu_q, tensors.cu_seqlens_q, false);
    send(fixture.cu_kv, tensors.cu_seqlens_kv, false);
    send(fixture.kv_lens, tensors.kv_lens, false);
    const auto send_plane = [&](Array& array, Tensor& tensor) {
      const Tensor view = tensor;
      send(array, tensor, false);
      if (tensor.present()) tensor = broadcast(tensor, fixture.problem);
      EXPECT_EQ(tensor.rank, view.rank);
    };
    send_plane(fixture.bias, tensors.bias);
    send_plane(fixture.visible, tensors.visible);
    send(fixture.grad_query, tensors.grad_query, true);
    send(fixture.grad_key, tensors.grad_key, true);
    send(fixture.grad_value, tensors.grad_value, true);
    send(fixture.grad_bias, tensors.grad_bias, true);
    Mirror workspace(*gpu_, work);
    if (fixture.problem.dtype == DType::kF32 && tested_kernels() != TestedKernels::kReference) {
      if (cuda::refuse_attention(fixture.problem, gpu_->facts()).empty())
        run_forward<cuda::Sm90Attention>(fixture.problem, tensors);
      else
        run_forward<cuda::PortableAttention>(fixture.problem, tensors);
    }
    expect_ok(attention->backward(tensors, workspace.tensor().as<std::byte>(), nullptr));
    {
      const cuda::Gpu::Current current(*gpu_);
      ASSERT_EQ(gpu_->driver().stream_synchronize(nullptr), cuda::kSuccess);
    }
    for (const auto& mirror : mirrors) mirror->fetch();
    workspace.fetch();
  }
  int64_t misalign_ = 0;      // elements
  int32_t shared_bytes_ = 0;  // that a block may have, of portable kernels; 0: what the GPU has

 private:
  // Backward in float32 is as accurate as the formula where out and lse are those of its forward,
  // whose scores have the same roundings.
  template <class Attention>
  void run_forward(const AttentionProblem& problem, const AttentionBackward& tensors) {
    std::unique_ptr<Attention> attention;
    expect_ok(Attention::make(problem, *gpu_, &attention));
    if (attention == nullptr) return;
    AttentionForward forward;
    forward.query = tensors.query;
    forward.key = tensors.key;
    forward.value = tensors.value;
    forward.bias = tensors.bias;
    forward.visible = tensors.visible;
    forward.cu_seqlens_q = tensors.cu_seqlens_q;
    forward.cu_seqlens_kv = tensors.cu_seqlens_kv;
    forward.kv_lens = tensors.kv_lens;
    forward.dropout = tensors.dropout;
    forward.out = tensors.out;
    forward.lse = tensors.lse;
    Array work({static_cast<int64_t>(attention->forward_workspace())}, DType::kBool);
    Mirror workspace(*gpu_, work);
    expect_ok(attention->forward(forward, workspace.tensor().as<std::byte>(), nullptr));
    const cuda::Gpu::Current current(*gpu_);
    ASSERT_EQ(gpu_->driver().stream_synchronize(nullptr), cuda::kSuccess);
  }
  template <class Attention>
  Status make(const AttentionProblem& problem, std::unique_ptr<Attention>* made) {
    if constexpr (std::is_same_v<Attention, cuda::PortableAttentionBackward>)
      if (shared_bytes_ != 0) return Attention::make(problem, shared_bytes_, *gpu_, made);
    return Attention::make(problem, *gpu_, made);
  }
};

}  // namespace perseid::internal::testing_gpu
