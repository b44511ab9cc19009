# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Cycles and clock of single launches of matmul and of cuBLAS (as PyTorch calls it): long products
are as fast as the clock that the power limit leaves them.

    python3 clocks.py LIBRARY CLOCKS [--shapes 8192x14336x8192,16384x16384x16384] [--rest 0.05]

CLOCKS is clocks.cu, compiled. Tensors are bf16 of random numbers, a row by row, b transposed.
"""
import argparse
import ctypes
import time

import torch
from binding import Library


class Clocks:
    """The mean clock of the multiprocessors from one note to the next."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.count = torch.cuda.get_device_properties(0).multi_processor_count
        self.notes = torch.zeros(2, 2, self.count, dtype=torch.int64, device="cuda")

    def note(self, i):
        of = [ctypes.c_void_p(part.data_ptr()) for part in self.notes[i]]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.library.note_clocks(*of, self.count, stream):
            raise RuntimeError("the kernel that reads the clocks was not launched")

    def milliseconds_and_mhz(self):
        cycles, nanoseconds = (self.notes[1] - self.notes[0]).double().mean(1).tolist()
        return nanoseconds / 1e6, 1e3 * cycles / nanoseconds


def median_of(pairs):
    return sorted(pairs)[len(pairs) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("clocks")
    parser.add_argument("--shapes", default="8192x8192x8192,8192x14336x8192,16384x16384x16384")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rest", type=float, default=0.05, help="s before each launch")
    options = parser.parse_args()
    library, clocks = Library(options.library), Clocks(options.clocks)
    torch.manual_seed(0)
    print(f"{'m x n x k':>20}", *(f"{cell:>9}" for cell in (
        "ms", "MHz", "Mcycles", "cuBLAS ms", "MHz", "Mcycles", "time", "cycles", "clock")))
    for shape in options.shapes.split(","):
        m, n, k = (int(size) for size in shape.split("x"))
        a = torch.randn(m, k, device="cuda").bfloat16()
        b = torch.randn(n, k, device="cuda").bfloat16().t()
        ours, theirs = (torch.empty(m, n, device="cuda", dtype=a.dtype) for _ in range(2))
        calls = [library.matmul("bf16", m=m, n=n, k=k).matmul_call(a=a, b=b, c=ours),
                 lambda: torch.mm(a, b, out=theirs)]
        seen = [[], []]
        for turn in range(options.turns + 1):  # the first is not counted
            for i in (0, 1) if turn % 2 else (1, 0):
                torch.cuda.synchronize()
                time.sleep(options.rest)
                torch.cuda._sleep(2_000_000)
                clocks.note(0)
                calls[i]()
                clocks.note(1)
                torch.cuda.synchronize()
                if turn > 0:
                    seen[i].append(clocks.milliseconds_and_mhz())
        (ms, mhz), (peer_ms, peer_mhz) = median_of(seen[0]), median_of(seen[1])
        cycles, peer_cycles = ms * mhz / 1e3, peer_ms * peer_mhz / 1e3
        cells = [ms, mhz, cycles, peer_ms, peer_mhz, peer_cycles, peer_ms / ms,
                 peer_cycles / cycles, mhz / peer_mhz]
        print(f"{shape:>20}", *(f"{cell:9.3f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
