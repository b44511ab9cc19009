// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul, in numbers: the problem a plan is made for and the arguments of one execution.
#pragma once

#include "math/chunks.hpp"
#include "math/tensor.hpp"

namespace perseid::internal {

struct MatmulProblem {
  DType dtype = DType::kF32;      // of a and b
  DType out_dtype = DType::kF32;  // of c and c0
  int64_t batch = 1, m = 0, n = 0, k = 0;
  double alpha = 1, beta = 0;
  bool bias = false;
  ChunkCut chunks_a = {}, chunks_b = {};  // a or b arrives in chunks
  ChunkCut chunks_c = {};                 // c leaves in chunks

  PERSEID_INLINE bool async() const {
    return chunks_a.present() || chunks_b.present() || chunks_c.present();
  }
  // With alpha 0 there is nothing to multiply: a and b are not read, even where they hold NaN.
  PERSEID_INLINE int64_t depth() const { return alpha == 0 ? 0 : k; }
};

// c = alpha * a b + beta * c0 + bias. Always 3 dimensions (batch first; stride 0 where an operand
// serves the whole batch); bias has one. c0 may be c.
struct MatmulArguments {
  Tensor a, b, c0, bias, c;
  Arrival arrival_a = {}, arrival_b = {};
  Departure departure_c = {};
  Missing* missing = nullptr;  // filled where a call ends with TIMEOUT or PEER_LOST
};

}  // namespace perseid::internal
