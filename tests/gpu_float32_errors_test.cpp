// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Errors of attention in float32 on a GPU (float32_errors.hpp).
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward_float32.hpp"
#include "float32_errors.hpp"
#include "gpu_tools.hpp"

namespace perseid::internal {
namespace {

using namespace float32_errors;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;

class GpuFloat32Errors : public testing_gpu::GpuTest {
 protected:
  template <class Forward, class Backward>
  void run(Fixture& fixture) {
    std::unique_ptr<Forward> forward;
    std::unique_ptr<Backward> backward;
    expect_ok(Forward::make(fixture.problem, *gpu_, &forward));
    expect_ok(Backward::make(fixture.problem, *gpu_, &backward));
    if (forward == nullptr || backward == nullptr) return;
    std::vector<std::unique_ptr<Mirror>> results;
    const auto place = [&](Array& array, Tensor& tensor, bool result) {
      if (result) array.blank();
      results.push_back(std::make_unique<Mirror>(*gpu_, array, 0));
      tensor.data = results.back()->tensor().data;
    };
    AttentionBackward tensors = fixture.arguments;
    place(fixture.query, tensors.query, false);
    place(fixture.key, tensors.key, false);
    place(fixture.value, tensors.value, false);
    place(fixture.grad_out, tensors.grad_out, false);
    for (const auto& [array, tensor] : {std::pair{&fixture.out, &tensors.out},
                                        {&fixture.lse, &tensors.lse},
                                        {&fixture.grad_query, &tensors.grad_query},
                                        {&fixture.grad_key, &tensors.grad_key},
                                        {&fixture.grad_value, &tensors.grad_value}})
      place(*array, *tensor, true);
    AttentionForward of_forward = fixture.forward_arguments();
    of_forward.query = tensors.query;
    of_forward.key = tensors.key;
    of_forward.value = tensors.value;
    of_forward.out = tensors.out;
    of_forward.lse = tensors.lse;
    Array work(
        {static_cast<int64_t>(std::max(forward->forward_workspace(), backward->workspace()))},
        DType::kBool);
    Mirror workspace(*gpu_, work);
    auto* const bytes = workspace.tensor().as<std::byte>();
    expect_ok(forward->forward(of_forward, bytes, nullptr));
    expect_ok(backward->backward(tensors, bytes, nullptr));
    {
      const cuda::Gpu::Current current(*gpu_);
      ASSERT_EQ(gpu_->driver().stream_synchronize(nullptr), cuda::kSuccess);
    }
    for (const auto& each : results) each->fetch();
  }
  template <class Forward, class Backward>
  void check() {
    const auto run_both = [&](Fixture& fixture) { run<Forward, Backward>(fixture); };
    for (const int64_t dim : {64, 128}) {
      expect_no_loss(dim, 3e-8, 8e-8, run_both);
      for (const Inputs& inputs : all_inputs())
        for (const int64_t keys : {130, 1000}) {
          SCOPED_TRACE(concatenate(inputs.name, ", ", keys, " keys, dim ", dim));
          Fixture fixture(make_case(DType::kF32, 1, 1, 1, 128, keys, dim, dim));
          fill_inputs(inputs, fixture);
          run_both(fixture);
          compare_errors(fixture, Formula<double>(fixture).compute());
        }
    }
  }
};

TEST_F(GpuFloat32Errors, Portable) {
  check<cuda::PortableAttention, cuda::PortableAttentionBackward>();
}
TEST_F(GpuFloat32Errors, Sm90) {
  if (gpu_->facts().major != 9) GTEST_SKIP() << "needs compute capability 9.0";
  check<cuda::Sm90Attention, cuda::Sm90Float32AttentionBackward>();
}

}  // namespace
}  // namespace perseid::internal
