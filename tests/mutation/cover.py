# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Which test programs cover a source file: the first pattern that fits, quick programs first."""
import re

COVER = (
    (r"math/dtype", "math_test simd_test io_test reference_test softmax_test"),
    (r"math/philox", "math_test simd_test attention_forward_test attention_backward_test"),
    (r"math/tensor", "math_test io_test reference_test api_test"),
    (r"math/softmax_problem", "reference_test api_test softmax_test"),
    (r"math/matmul_problem", "reference_test api_test matmul_test"),
    (r"math/chunks", "tile_order_test matmul_chunks_test"),
    (r"math/tile_order", "tile_order_test"),
    (r"math/", "math_test reference_test api_test attention_forward_test attention_backward_test"),
    (r"io/npy", "io_test fuzz/seeds_npy"),
    (r"io/safetensors", "io_test fuzz/seeds_safetensors"),
    (r"io/", "io_test fuzz/seeds_npy fuzz/seeds_safetensors"),
    (r"(op/chunks|api/signal)", "async_api_test api_test"),
    (r"op/", "fuzz/seeds_descriptor api_test cpp_api_test harness_test"),
    (r"dispatch/", "kernel_table_test api_test cpp_api_test harness_test"),
    (r"cpu/executor", "executor_test api_test"),
    (r"cpu/waits", "matmul_chunks_test async_api_test"),
    (r"cpu/kernel_table", "kernel_table_test api_test"),
    (r"cpu/reference/softmax", "reference_test softmax_test"),
    (r"cpu/reference/matmul", "reference_test matmul_test"),
    (r"cpu/reference/", "reference_test attention_forward_test attention_backward_test"),
    (r"cpu/simd/softmax", "api_test softmax_test harness_test"),
    (r"cpu/simd/matmul_chunks", "matmul_chunks_test"),
    (r"cpu/simd/matmul", "matmul_test harness_test"),
    (r"cpu/simd/attention_backward", "attention_backward_test harness_test"),
    (r"cpu/simd/attention_(forward|decode)", "attention_forward_test harness_test"),
    (r"cpu/simd/attention", "attention_forward_test attention_backward_test harness_test"),
    (r"cpu/simd/dropout", "attention_forward_test attention_backward_test api_test"),
    (r"cpu/simd/(micro_gemm|pack)",
     "matmul_test attention_forward_test attention_backward_test harness_test"),
    (r"cpu/simd/ceilings", "kernel_table_test api_test harness_test"),
    (r"cpu/simd/(isa|vector_math)",
     "simd_test softmax_test matmul_test attention_forward_test attention_backward_test"),
    (r"", "api_test harness_test"),
)  # fmt: skip


def programs_of(path):
    """[(program below tests/ of the build, arguments...)]"""
    for pattern, programs in COVER:
        if re.search(pattern, path):
            return [(program,) for program in programs.split()]
    raise LookupError(path)
