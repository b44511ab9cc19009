# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax on a GPU: the rate of the library, of PyTorch and of a Triton kernel, interleaved in one
run, each as a fraction of a device-to-device copy of the same bytes.

    python3 softmax.py LIBRARY [--widths 32,64,...] [--dtypes f32,bf16] [--csv FILE] [--no-peers]
                       [--seconds N]
"""
import argparse
import itertools
import math
import time

import torch
from binding import DTYPES, Library, measure_in_turns

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def triton_forward(x, y, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        value = tl.load(x + row * width + at, mask=at < width, other=float("-inf")).to(tl.float32)
        e = tl.exp(value - tl.max(value, 0))
        tl.store(y + row * width + at, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=at < width)

    @triton.jit
    def triton_backward(dy, y, dx, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        g = tl.load(dy + row * width + at, mask=at < width, other=0).to(tl.float32)
        p = tl.load(y + row * width + at, mask=at < width, other=0).to(tl.float32)
        tl.store(dx + row * width + at, (p * (g - tl.sum(g * p, 0))).to(dx.dtype.element_ty),
                 mask=at < width)


def warps_of(width):
    return 4 if width < 2048 else 8 if width < 8192 else 16


def bench(library, width, dtype, mode, options):
    log, masked = mode == "log", mode == "masked"
    kind = DTYPES[dtype][0]
    rows = max(1, options.bytes // (width * kind.itemsize))
    if options.rows:
        rows = options.rows
    x = torch.randn(rows, width, device="cuda", dtype=torch.float32).to(kind) \
        if rows * width <= 1 << 28 else torch.randn(rows, width, device="cuda", dtype=kind)
    y, g, out = torch.empty_like(x), torch.randn_like(x), torch.empty_like(x)
    mask = (torch.rand(rows, width, device="cuda") < 0.75) if masked else None
    plan = library.softmax((rows, width), dtype, log, masked)
    own = {"own": plan.softmax_call(0, x, y, mask, None)}
    own["own"]()
    if masked:
        expected = torch.softmax(x[:64].float().masked_fill(~mask[:64], float("-inf")), -1)
        expected = expected.nan_to_num(0)
    else:
        expected = (torch.log_softmax if log else torch.softmax)(x[:64].double(), -1)
    error = (y[:64].double() - expected).abs().max().item()
    size = x.numel() * kind.itemsize
    result = []
    for direction in ("forward", "backward"):
        if direction == "backward":
            contenders = {"own": plan.softmax_call(1, g, y, mask, out)}
            moved = 3 * size + (mask.numel() if masked else 0)
            if options.peers and not masked:
                op = torch._log_softmax_backward_data if log else torch._softmax_backward_data
                contenders["torch"] = lambda: op(g, y, -1, kind)
                if triton is not None and not log and width <= 65536:
                    contenders["triton"] = lambda: triton_backward[(rows,)](
                        g, y, out, width, BLOCK=triton.next_power_of_2(width),
                        num_warps=warps_of(width))
        else:
            contenders = dict(own)
            moved = 2 * size + (mask.numel() if masked else 0)
            if options.peers and not masked:
                op = torch.log_softmax if log else torch.softmax
                contenders["torch"] = lambda: op(x, -1)
                if triton is not None and not log and width <= 65536:
                    contenders["triton"] = lambda: triton_forward[(rows,)](
                        x, out, width, BLOCK=triton.next_power_of_2(width),
                        num_warps=warps_of(width))
        contenders["copy"] = lambda: out.copy_(x)
        times = measure_in_turns(contenders, options.turns, ahead=100_000)
        copy = 2 * size / times["copy"] / 1e9
        line = [direction, mode, dtype, rows, width, f"{copy:.2f}"]
        for name in ("own", "torch", "triton"):
            line.append(f"{moved / times[name] / 1e9 / copy:.3f}" if name in times else "-")
        line += [f"{error:.1e}", f"{plan.seconds * 1e3:.0f}"]
        result.append(line)
    return result


def launch_overhead(library):
    """Host seconds of a small softmax, and of the same one in a replayed graph."""
    x = torch.randn(64, 128, device="cuda")
    y = torch.empty_like(x)
    call = library.softmax((64, 128), "f32").softmax_call(0, x, y, None, None)
    for _ in range(100):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(500):
        call()
    own = (time.perf_counter() - begin) / 500
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(500):
        torch._C._cuda_getCurrentRawStream(0)
    script = (time.perf_counter() - begin) / 500
    graph = torch.cuda.CUDAGraph()
    y.zero_()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    torch.cuda.synchronize()
    wrong = (y - torch.softmax(x, -1)).abs().max().item()
    print(f"launch: {own * 1e6:.2f} us of host time, {script * 1e6:.2f} of them this script's; "
          f"graph replay off by {wrong:.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--widths", default="32,64,128,256,512,1024,2048,4096,8192,16384,32768,"
                        "65536,131072,262144,524288,1048576,4194304")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--modes", default="softmax")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=math.inf, help="ends after so long")
    parser.add_argument("--csv")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    options = parser.parse_args()
    begin = time.monotonic()
    library = Library(options.library)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton "
          f"{triton.__version__ if triton else 'absent'}; copy in TB/s, others as fractions of it")
    launch_overhead(library)
    header = "direction mode dtype rows width copy own torch triton error plan_ms".split()
    lines = []
    print(" ".join(f"{name:>9}" for name in header))
    cases = itertools.product(options.modes.split(","), options.dtypes.split(","),
                              options.widths.split(","))
    for mode, dtype, width in cases:
        if time.monotonic() - begin > options.seconds:
            print(f"time is up: what is left begins with {mode} {dtype} {width}")
            break
        try:
            rows = bench(library, int(width), dtype, mode, options)
        except torch.cuda.OutOfMemoryError as failure:
            print(width, dtype, "out of memory", str(failure)[:80])
            continue
        for line in rows:
            lines.append(line)
            print(" ".join(f"{str(item):>9}" for item in line), flush=True)
    if options.csv:
        with open(options.csv, "w") as file:
            for line in [header] + lines:
                file.write(",".join(str(item) for item in line) + "\n")


if __name__ == "__main__":
    main()
