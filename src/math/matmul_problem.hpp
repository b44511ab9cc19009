// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul, in numbers: the problem a plan is made for and the arguments of one execution.
#pragma once

#include "math/activation.hpp"
#include "math/chunks.hpp"
#include "math/tensor.hpp"

namespace perseid::internal {

// What the scales of 8-bit a and b belong to. The values are those of perseid_scaling.
enum class Scaling : int32_t { kNone = 0, kTensor = 1, kRow = 2, kBlock = 3 };
inline constexpr int64_t kScaledBlock = 128;  // elements along k, and along n of b
// The values are those of perseid_accumulation.
enum class Accumulation : int32_t { kPromoted = 0, kFast = 1 };
// How exact the products of f32 are at least.
enum class Precision : int32_t {
  kDefault = 0,  // as in f32
  kTF32 = 1,     // factors of 11 bits
};

struct MatmulProblem {
  DType dtype = DType::kF32;      // of a, and of b but for b_dtype
  DType out_dtype = DType::kF32;  // of c and c0
  int64_t batch = 1, m = 0, n = 0, k = 0;
  double alpha = 1, beta = 0;
  bool bias = false;
  ChunkCut chunks_a = {}, chunks_b = {};  // a or b arrives in chunks
  ChunkCut chunks_c = {};                 // c leaves in chunks
  DType b_dtype = DType::kNone;           // none: dtype
  Scaling scaling = Scaling::kNone;
  Accumulation accumulation = Accumulation::kPromoted;
  bool scale_result = false;
  Activation activation = Activation::kNone;
  bool amax = false;
  Precision precision = Precision::kDefault;
  // Canonical order: the depth is so many equal leaves (a power of 2), see leaf_tree.hpp. The bits
  // of an element of c then depend on its row of a and column of b alone. 0: any order.
  int64_t leaves = 0;
  // Canonical order: the leaves are some of eight, of a depth that ranks share. Else this rank has
  // the whole depth, as one leaf, and a or b may have rows or columns that other ranks do not have.
  bool shared_depth = false;
  // Rows of c are padded to a multiple of 16 bytes, and the padding may be written.
  bool padded_rows = false;
  // GPU: a kernel that waits for chunks leaves so many multiprocessors to the kernels that bring
  // them.
  int32_t spared = 0;

  PERSEID_INLINE DType type_of_b() const { return b_dtype == DType::kNone ? dtype : b_dtype; }
  // Whether more follows the sum than alpha, beta and bias.
  PERSEID_INLINE bool has_epilogue() const {
    return scale_result || activation != Activation::kNone || amax;
  }
  PERSEID_INLINE bool async() const {
    return chunks_a.present() || chunks_b.present() || chunks_c.present();
  }
  PERSEID_INLINE bool arrives() const { return chunks_a.present() || chunks_b.present(); }
  // With alpha 0 there is nothing to multiply: a and b are not read, even where they hold NaN.
  PERSEID_INLINE int64_t depth() const { return alpha == 0 ? 0 : k; }
};

// c = activation(alpha * a b + beta * c0 + bias) * scale_result. Always 3 dimensions (batch first;
// stride 0 where an operand serves the whole batch); bias, scale_result and amax have one. c0 may
// be c. Scales are float32 [batch, lines, parts of k], with a stride of 0 where one scale serves
// several: scale_a [batch, m, ceil(k / 128)]; scale_b [batch, n, ceil(k / 128)], by blocks
// [batch, ceil(n / 128), ceil(k / 128)]. amax is float32, float64 of f64.
struct MatmulArguments {
  Tensor a, b, c0, bias, c;
  Arrival arrival_a = {}, arrival_b = {};
  Departure departure_c = {};
  Missing* missing = nullptr;  // filled where a call ends with TIMEOUT or PEER_LOST
  Tensor scale_a = {}, scale_b = {}, scale_result = {}, amax = {};
};

}  // namespace perseid::internal
