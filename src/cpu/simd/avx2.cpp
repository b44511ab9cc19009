// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#define PERSEID_ISA avx2
#define PERSEID_ISA_HEADER "cpu/simd/isa_avx2.hpp"
#include "cpu/simd/kernels.hpp"
