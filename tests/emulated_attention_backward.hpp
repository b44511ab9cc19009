// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Portable attention backward on an emulated GPU (emulated_gpu.hpp), for the tests of its kernels.
#pragma once

#include "cuda/portable/attention_backward.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "emulated_attention_cases.hpp"
// Kernels.
#include "cuda/device/portable/attention/backward.hpp"

namespace perseid::internal::emulated_attention {

using cuda::GradientsOf;
using cuda::PortableBackwardConfig;

inline constexpr int32_t kShared = 232448;  // that a block may have

// The configuration of other gradients of the same problem.
constexpr PortableBackwardConfig of(PortableBackwardConfig config, GradientsOf gradients) {
  const bool extras = config.bias != DType::kNone || config.visible || config.dropout;
  const bool of_keys = gradients == GradientsOf::kKeys;
  const bool small = config.most_dim() <= 64 &&
                     (!extras || (of_keys && !config.visible && size_of(config.dtype) == 2));
  config.gradients = gradients;
  config.adds_queries = config.adds_queries && of_keys;
  config.stores_bias = config.stores_bias && config.adds_queries;
  config.rows = small && gradients != GradientsOf::kBias ? 32 : 16;
  if (config.planes() == 2) {
    config.columns = gradients == GradientsOf::kBias ? 64 : 32;
    config.warps = gradients != GradientsOf::kBias && config.largest == 128 ? 8 : 4;
    return config;
  }
  const bool large = config.adds_queries && config.most_dim() > 64;
  config.shares_rows = large && min(config.key_dim, config.value_dim) == 128 &&
                       config.bias == DType::kNone && !config.visible && !config.dropout;
  if (config.shares_rows) config.rows = 32;
  config.warps = large ? 8 : 4;
  config.columns = large || gradients == GradientsOf::kBias ||
                           (gradients == GradientsOf::kQueries && config.most_dim() <= 128)
                       ? 64
                       : 32;
  return config;
}

// Launches of an execution, the preparation before the first.
template <PortableBackwardConfig C>
void launch(const Fixture& fixture, std::byte* workspace) {
  PortableBackwardConfig chosen =
      cuda::choose_portable_attention_backward(fixture.problem, C.gradients, kShared);
  ASSERT_EQ(cuda::kernel_name("", chosen), cuda::kernel_name("", C));
  cuda::PortableBackwardArguments arguments =
      cuda::portable_attention_backward_arguments<float>(fixture.problem, C);
  const cuda::AttentionPlanes planes =
      cuda::portable_attention_backward_planes(fixture.problem, kShared);
  const cuda::PlanesArguments rows = cuda::bind_portable_attention_backward(
      fixture.problem, planes, fixture.arguments, workspace, &arguments);
  if constexpr (C.planes() == 2) {
    static constexpr cuda::PlanesConfig kRows{
        max(C.plane_length(C.key_dim), C.plane_length(C.value_dim))};
    ASSERT_EQ(planes.config().dim, kRows.dim);
    for (int b = 0; b < static_cast<int>(planes.blocks()); ++b) {
      emulated_gpu::Block block(b, cuda::PlanesConfig::threads, 0);
      block.run([&] { cuda::portable_attention_planes<kRows>(rows); });
    }
  }
  const auto q_blocks =
      static_cast<int>(cuda::portable_attention_backward_q_blocks(fixture.problem));
  for (int b = 0; b < q_blocks; ++b) {
    emulated_gpu::Block block(b, cuda::kPrepareThreads, 0, q_blocks);
    block.run([&] { cuda::PortableBackwardPrepare<C>(arguments).run(b, q_blocks); });
  }
  const auto blocks = static_cast<int>(cuda::portable_attention_backward_blocks(arguments, C));
  for (int b = 0; b < blocks; ++b) {
    emulated_gpu::Block block(b, C.threads(), static_cast<size_t>(C.shared_bytes()), blocks);
    block.run([&] { cuda::PortableBackward<C>(arguments, block.shared.data()).run(); });
  }
  for (int b = 0; C.adds_queries && b < q_blocks; ++b) {
    emulated_gpu::Block block(b, cuda::kPrepareThreads, 4 * C.queries, q_blocks);
    block.run([&] {
      cuda::PortableBackwardFinish<C>(arguments, b,
                                      reinterpret_cast<uint32_t*>(block.shared.data()))
          .run();
    });
  }
}

// Runs the kernels of a configuration, which has to be the problem's choice.
template <PortableBackwardConfig C>
void run_backward(Fixture& fixture) {
  for (Array* result :
       {&fixture.grad_query, &fixture.grad_key, &fixture.grad_value, &fixture.grad_bias})
    if (result->tensor.present()) result->blank();
  const Array workspace = make_workspace(cuda::portable_attention_backward_workspace(
      fixture.problem, cuda::portable_attention_backward_planes(fixture.problem, kShared)));
  std::byte* const bytes = workspace.tensor.as<std::byte>();
  launch<of(C, GradientsOf::kKeys)>(fixture, bytes);
  if constexpr (!C.adds_queries) launch<of(C, GradientsOf::kQueries)>(fixture, bytes);
  if constexpr (C.bias != DType::kNone)
    if (fixture.problem.grad_bias && !C.stores_bias)
      launch<of(C, GradientsOf::kBias)>(fixture, bytes);
  clear_left_out_rows(fixture.problem, fixture.arguments, fixture.grad_query.tensor, {});
}
constexpr PortableBackwardConfig with_sums(PortableBackwardConfig config) {
  config.adds_queries = !config.streams();
  return config;
}
constexpr PortableBackwardConfig storing_bias(PortableBackwardConfig config) {
  config.stores_bias = true;
  return with_sums(config);
}

}  // namespace perseid::internal::emulated_attention
