// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Portable attention forward on an emulated GPU (emulated_gpu.hpp), for the tests of its kernels.
#pragma once

#include "attention_cases.hpp"
#include "cuda/attention/arguments.hpp"
#include "cuda/attention/clear_rows.hpp"
#include "cuda/portable/attention.hpp"
// Before kernels.
#include "emulated_gpu.hpp"
// Kernels.
#include "cuda/device/attention/clear_rows.hpp"
#include "cuda/device/portable/attention/forward.hpp"

namespace perseid::internal::emulated_attention {

using namespace cpu::attention_cases;
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

inline Case forward_case(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                         int64_t kv_len, int64_t dim, int64_t value_dim) {
  Case test = make_case(DType::kBF16, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  return test;
}

// Runs the kernel of configuration C, which is what the problem's choice has to be.
template <PortableForwardConfig C>
void run(Fixture& fixture) {
  for (Array* result : {&fixture.out, &fixture.lse}) result->blank();
  const AttentionProblem problem = cuda::pack_gqa(fixture.problem);
  const AttentionForward tensors = cuda::pack_gqa(fixture.problem, fixture.forward_arguments());
  cuda::PortableForwardArguments arguments = cuda::portable_attention_arguments(problem, C);
  const bool vectors = cuda::bind_portable_attention(tensors, &arguments);
  PortableForwardConfig chosen = cuda::choose_portable_attention(problem);
  chosen.vectors = vectors;
  chosen.rows = C.rows;
  chosen.keys = C.keys;
  const cuda::AttentionPlanes planes = cuda::portable_attention_planes(problem, C);
  const size_t of_splits = cuda::portable_attention_workspace(arguments);
  Array workspace({static_cast<int64_t>(of_splits + planes.workspace()) + 16}, DType::kBool);
  auto* const work = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(workspace.tensor.as<std::byte>()) + 15) / 16 * 16);
  cuda::bind_portable_attention_workspace(work, &arguments);
  if constexpr (C.planes() == 2) {
    const cuda::PlanesArguments rows =
        planes.bind(tensors.query, tensors.key, tensors.value, nullptr, work + of_splits);
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
  if constexpr (C.split) {
    const auto rows = static_cast<int>(arguments.rows) * ((arguments.value_dim + 31) / 32);
    for (int b = 0; b < rows; b += cuda::kRowWarps) {
      emulated_gpu::Block block(b / cuda::kRowWarps, 32 * cuda::kRowWarps, 0, rows);
      block.run([&] { cuda::portable_attention_combine<C>(arguments); });
    }
    emulated_gpu::Block block(0, 32 * cuda::kRowWarps, 0);
    if (C.fixes_splits()) block.run([&] { cuda::portable_attention_fixup<C>(arguments); });
  }
  if (fixture.problem.q_lens) {
    const cuda::ClearRowsArguments cleared = cuda::clear_rows_arguments(
        fixture.problem, fixture.forward_arguments(), fixture.out.tensor, fixture.lse.tensor);
    for (int b = 0; b < fixture.problem.batch * fixture.problem.heads; ++b) {
      emulated_gpu::Block block(b, cuda::kClearRowsThreads, 0);
      block.run([&] { cuda::clear_rows(cleared); });
    }
  }
}
template <PortableForwardConfig C>
void check(const Case& test) {
  SCOPED_TRACE(text_of(test));
  Fixture fixture(test);
  run<C>(fixture);
  fixture.compare_forward();
}

}  // namespace perseid::internal::emulated_attention
