# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Milliseconds to make a plan on a GPU: the first one of its kernels in this process, which loads
them from the kernel pack, and the median of nine more.

    PERSEID_PACK=FILE python3 plan_times.py LIBRARY
"""
import ctypes
import sys

from binding import AsyncOperand, Library


def main():
    library = Library(sys.argv[1])
    begin = (ctypes.c_int64 * 9)(*range(0, 8193, 1024))
    rows = AsyncOperand(ctypes.sizeof(AsyncOperand), 0, 8, begin)
    square = dict(m=8192, n=8192, k=8192)
    heads = dict(batch=1, heads=16, kv_heads=16, q_len=4096, kv_len=4096, head_dim=128, causal=2)
    plans = {
        "matmul bf16 8192^3": lambda: library.matmul("bf16", **square),
        "matmul bf16 8192^3; 8 chunks": lambda: library.matmul(
            "bf16", async_a=ctypes.addressof(rows), **square),
        "matmul f32 8192^3": lambda: library.matmul("f32", **square),
        "attention bf16 causal 4096 dim 128": lambda: library.attention("bf16", **heads),
        "attention bf16 causal 4096 dim 128; gradients": lambda: library.attention(
            "bf16", gradients=7, **heads),
        "softmax bf16 4096 x 4096": lambda: library.softmax((4096, 4096), "bf16"),
    }
    print("plan,first ms,next ms")
    for name, make in plans.items():
        first, *more = [1e3 * make().seconds for _ in range(10)]
        print(f"{name},{first:.2f},{sorted(more)[4]:.3f}")


if __name__ == "__main__":
    main()
