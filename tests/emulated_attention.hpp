// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Portable attention forward on an emulated GPU (emulated_gpu.hpp), for the tests of its kernels.
#pragma once

#include "cuda/portable/attention.hpp"
#include "emulated_attention_cases.hpp"
// Kernels.
#include "cuda/device/portable/attention/forward.hpp"

namespace perseid::internal::emulated_attention {

using cuda::PortableForwardConfig;

// float32: what the kernel before the attention kernel writes.
template <int kDim>
void write_planes(const cuda::AttentionPlanes& planes, const cuda::PlanesArguments& arguments) {
  static constexpr cuda::PlanesConfig kPlanes{kDim};
  ASSERT_EQ(planes.config().dim, kDim);
  for (int b = 0; b < static_cast<int>(planes.blocks()); ++b) {
    emulated_gpu::Block block(b, cuda::PlanesConfig::threads, 0);
    block.run([&] { cuda::portable_attention_planes<kPlanes>(arguments); });
  }
}

// Runs the kernel of configuration C, which is what the problem's choice has to be.
template <PortableForwardConfig C>
void run(Fixture& fixture) {
  for (Array* result : {&fixture.out, &fixture.lse}) result->blank();
  const AttentionProblem problem = cuda::with_heads_as_rows(fixture.problem);
  const AttentionForward tensors =
      cuda::with_heads_as_rows(fixture.problem, fixture.forward_arguments());
  cuda::PortableForwardArguments arguments = cuda::portable_attention_arguments(problem, C);
  const bool vectors = cuda::bind_portable_attention(tensors, &arguments);
  PortableForwardConfig chosen = cuda::choose_portable_attention(problem);
  chosen.vectors = vectors;
  chosen.rows = C.rows;
  chosen.keys = C.keys;
  const cuda::AttentionPlanes planes = cuda::portable_attention_planes(problem, C);
  const size_t of_splits = cuda::portable_attention_workspace(arguments);
  const Array workspace = make_workspace(of_splits + planes.workspace());
  cuda::bind_portable_attention_workspace(workspace.tensor.as<std::byte>(), &arguments);
  if constexpr (C.planes() == 2) {
    const cuda::PlanesArguments rows =
        planes.bind(tensors.query, tensors.key, tensors.value, nullptr,
                    workspace.tensor.as<std::byte>() + of_splits);
    write_planes<max(C.key_length(), C.value_length())>(planes, rows);
    cuda::bind_portable_attention_planes(rows, &arguments);
  }
  arguments.launch = 6;
  ASSERT_EQ(cuda::portable_attention_kernels(chosen), cuda::portable_attention_kernels(C));
  ASSERT_EQ(vectors, C.vectors);
  const auto blocks = static_cast<int>(cuda::portable_attention_blocks(arguments, C));
  for (int b = 0; b < blocks; ++b) {
    emulated_gpu::Block block(b, C.threads, static_cast<size_t>(C.shared_bytes()));
    block.run([&] { cuda::PortableForward<C>(arguments, block.shared.data()).run(); });
  }
  if constexpr (C.split)
    launch_after_splits(
        arguments, C.fixes_splits(), [&] { cuda::portable_attention_combine<C>(arguments); },
        [&] { cuda::portable_attention_fixup<C>(arguments); });
  clear_left_out_rows(fixture.problem, fixture.forward_arguments(), fixture.out.tensor,
                      fixture.lse.tensor);
}
template <PortableForwardConfig C>
void check(const Case& test) {
  SCOPED_TRACE(text_of(test));
  Fixture fixture(test);
  run<C>(fixture);
  fixture.compare_forward();
}

}  // namespace perseid::internal::emulated_attention
