// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/reduce.hpp"

#include <algorithm>
#include <type_traits>

#include "math/leaf_tree.hpp"

namespace perseid::internal::collective {
namespace {

// Sums of so many elements stay in the cache of a core.
constexpr int64_t kBlock = 1024;
constexpr int64_t kBuffers = buffers_of_leaves(kLeaves);

template <class Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body(f16{});
    case DType::kBF16:
      return body(bf16{});
    case DType::kF64:
      return body(double{});
    default:
      return body(float{});
  }
}

// The sums are in the first buffer.
template <class Sum, class Part>
void add_parts(const ReducedRun& run, int64_t begin, int64_t count,
               Sum (&buffers)[kBuffers][kBlock]) {
  for (int32_t rank = 0; rank < run.ranks; ++rank) {
    const Part* part = static_cast<const Part*>(run.parts[rank]) + begin;
    const bool starts = run.in_pairs ? rank % 2 == 0 : rank == 0;
    Sum* sums = buffers[run.in_pairs ? buffer_of_leaf(rank - rank % 2) : 0];
    if (starts) {
      for (int64_t i = 0; i < count; ++i) sums[i] = convert<Sum>(part[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) sums[i] += convert<Sum>(part[i]);
    }
    // The first pair is added above.
    for (int64_t pairs = run.in_pairs ? pairs_after_leaf(rank) : 0; pairs > 1; --pairs) {
      Sum* earlier = sums - kBlock;
      for (int64_t i = 0; i < count; ++i) earlier[i] += sums[i];
      sums = earlier;
    }
  }
  if (run.reduction == Reduction::kAverage)
    for (int64_t i = 0; i < count; ++i) buffers[0][i] /= static_cast<Sum>(run.ranks);
}

template <class Sum>
void reduce_as(const ReducedRun& run) {
  Sum buffers[kBuffers][kBlock];
  Sum* const sums = buffers[0];
  for (int64_t begin = 0; begin < run.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, run.count - begin);
    with_type(run.dtype,
              [&]<class Part>(Part) { add_parts<Sum, Part>(run, begin, count, buffers); });
    if (run.bias_dtype != DType::kNone)
      with_type(run.bias_dtype, [&]<class Bias>(Bias) {
        const Bias* bias = static_cast<const Bias*>(run.bias) + begin * run.bias_stride;
        for (int64_t i = 0; i < count; ++i) sums[i] += convert<Sum>(bias[i * run.bias_stride]);
      });
    with_type(run.out_dtype, [&]<class Out>(Out) {
      Out* out = static_cast<Out*>(run.out) + begin * run.out_stride;
      if (run.out_stride == 1) {
        for (int64_t i = 0; i < count; ++i) out[i] = convert<Out>(sums[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i * run.out_stride] = convert<Out>(sums[i]);
      }
    });
  }
}

}  // namespace

void reduce(const ReducedRun& run) {
  if (run.dtype == DType::kF64) {
    reduce_as<double>(run);
  } else {
    reduce_as<float>(run);
  }
}

}  // namespace perseid::internal::collective
