// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of softmax share: the configuration that a kernel is compiled for, and
// the arguments of a launch.
#pragma once

#include "cuda/device/divisor.hpp"
#include "math/dtype.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::cuda {

// Shared memory of a multiprocessor of compute capability 9.0 and up, and what of it each block
// takes for itself.
inline constexpr int64_t kSharedBytes = 228 * 1024, kReservedBytes = 1024;

// How the elements of a row are spread over threads. A row belongs to `lanes` threads of a warp, or
// to all threads of `warps` warps in each of `blocks` blocks of a cluster.
struct SoftmaxConfig {
  DType in;   // of input and grad_input
  DType out;  // of output and grad_output
  int lanes = 32;
  int warps = 1;
  int blocks = 1;
  int held = 1;  // vectors (columns: elements) of a row in the registers of a thread
  // Where rows go through shared memory: how many chunks of a vector for each of a block's
  // threads * held are there, of which `lag` wait for the rest of their rows (stream.hpp), or which
  // are a block's part of its row, in as many turns (shared.hpp).
  int stages = 0, lag = 0;
  bool log = false;
  bool masked = false;
  bool negative = false;  // the scale is: the largest scale * x is of the smallest x

  static constexpr const char* kName = "SoftmaxConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("in", c.in);
    visit("out", c.out);
    visit("lanes", c.lanes);
    visit("warps", c.warps);
    visit("blocks", c.blocks);
    visit("held", c.held);
    visit("stages", c.stages);
    visit("lag", c.lag);
    visit("log", c.log);
    visit("masked", c.masked);
    visit("negative", c.negative);
  }

  constexpr bool doubles() const { return in == DType::kF64 || out == DType::kF64; }
  // Elements of a vector: 16 bytes of the larger type.
  constexpr int vector() const { return static_cast<int>(16 / max(size_of(in), size_of(out))); }
  // Groups of threads in a block that have rows of their own. Where a row has a warp or less, a
  // block has four warps.
  constexpr int groups() const { return warps > 1 || blocks > 1 ? 1 : 128 / lanes; }
  constexpr int threads() const { return groups() * lanes * warps; }
  constexpr int row_threads() const { return lanes * warps * blocks; }
  constexpr int64_t capacity() const { return int64_t{row_threads()} * held; }  // in vectors

  // Where rows go through shared memory: the bytes of C.held vectors of every thread.
  constexpr int64_t turn_bytes(bool backward) const {
    const int64_t element = (backward ? 2 * size_of(out) : size_of(in)) + (masked ? 1 : 0);
    return element * vector() * threads() * held;
  }
  // Shared memory of a block of shared.hpp, and how many share a multiprocessor, by it and by what
  // registers they need.
  constexpr int shared_bytes(bool backward) const {
    return static_cast<int>(stages * turn_bytes(backward) + 8 * warps * blocks + 256);
  }
  constexpr int shared_resident(bool backward) const {
    const int registers = 40 + (backward ? 16 : 8) * held;
    return max(1, min(65536 / (registers * threads()),
                      static_cast<int>(kSharedBytes / (shared_bytes(backward) + kReservedBytes))));
  }
  // stream.hpp: the threads of a block, its shared memory, and how many share a multiprocessor.
  constexpr int stream_threads() const { return threads() + 64; }
  constexpr int stream_bytes(bool backward) const {
    const int64_t stage = turn_bytes(backward) + 512;
    return static_cast<int>(stages * (stage + 16) + (lag + 1) * (8 * warps + 32) + 128);
  }
  constexpr int stream_resident(bool backward) const {
    return static_cast<int>(kSharedBytes / (stream_bytes(backward) + kReservedBytes));
  }
};

inline constexpr int kMostOuterDims = kMaxDims - 1;

// A tensor as rows: strides in elements, of the outer dimensions and along the row.
struct RowsOf {
  void* data = nullptr;
  int64_t step = 0;
  int64_t stride[kMostOuterDims] = {};
};

struct SoftmaxArguments {
  RowsOf first;    // forward: input; backward: grad_output
  RowsOf second;   // backward: output
  RowsOf visible;  // where masked
  RowsOf result;   // forward: output; backward: grad_input
  RowsOf lse;      // forward; data is null where it is not wanted
  int64_t rows = 0;
  int64_t length = 0;
  Divisor outer[kMostOuterDims];  // the outermost first
  int32_t outer_dims = 0;
  bool wide = false;   // as many rows as 31 bits cannot count
  bool dense = false;  // rows lie one behind another, in all tensors
  bool empty_rows_nan = false;
  double scale = 1;
  // Where a row is done in chunks. By two kernels: what the first tells the second.
  void* partial = nullptr;
  int64_t chunk = 0;   // elements, a multiple of the vector
  int64_t chunks = 0;  // of a row
  Divisor chunks_of_row;
};

}  // namespace perseid::internal::cuda
