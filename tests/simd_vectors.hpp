// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The vectors of one instruction set put to the test. simd_vectors.cpp is compiled once for each,
// as the kernels are, and includes nothing whose inline functions others share.
#pragma once

namespace perseid::internal::cpu {

// Writes a sentence into `failure`, which is empty where everything is right.
using CheckVectors = void (*)(char* failure, unsigned long size);

namespace avx512bf16 {
void check_vectors(char* failure, unsigned long size);
}
namespace avx512 {
void check_vectors(char* failure, unsigned long size);
}
namespace avx2 {
void check_vectors(char* failure, unsigned long size);
}
namespace neon {
void check_vectors(char* failure, unsigned long size);
}
namespace scalar {
void check_vectors(char* failure, unsigned long size);
}

}  // namespace perseid::internal::cpu
