// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The instruction set that this translation unit is compiled for. avx512.cpp and its like define
// PERSEID_ISA (the namespace of everything compiled for it) and PERSEID_ISA_HEADER (its vector
// types) before they include the kernels.
//
// An ISA header gives, in perseid::internal::cpu::PERSEID_ISA:
//   F32, F64        vectors of float and double, with the operations listed in isa_scalar.hpp
//   U64             what the random bits of dropout.hpp need
//   F32Dot, F64Dot  the multiply-add of micro_gemm.hpp, with the tile of C that suits the registers
//   Bf16Dot         the same for pairs of bf16, where kHasBf16Dot
//   DotOfBf16       what products of bf16 go by: Bf16Dot, else F32Dot
#pragma once

#if !defined(PERSEID_ISA)
#define PERSEID_ISA scalar
#define PERSEID_ISA_HEADER "cpu/simd/isa_scalar.hpp"
#endif

#include PERSEID_ISA_HEADER
