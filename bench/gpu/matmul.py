# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Matmul compared with cuBLAS (as PyTorch calls it) in one run, on random data: single launches
after a rest, and launches back to back.

    python3 matmul.py LIBRARY [--shapes large,small] [--only REGEX] [--dtype bf16] [--csv FILE]

Each shape in four layouts of a and b: N as stored row by row, T transposed. Ratios are to cuBLAS;
above 1 the library is faster. Every result is compared with cuBLAS's. --dtype f32 is compared with
SGEMM, and with --precision tf32 with TF32. --dtype f8e4m3 is compared with torch._scaled_mm, into
bf16: a row by row, b transposed, --scaling tensor, row or block (of 1 x 128 of a, 128 x 128 of b),
--accumulation fast or promoted. --bias, --gelu and --amax add an epilogue; PyTorch's has no amax.
"""
import argparse
import math
import re
import time

import torch
from binding import DTYPES, Library, between_events, measure_in_turns, medians

SHAPES = {
    "large": [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (8192, 14336, 8192),
              (16384, 7168, 4096)],
    "small": [(2048, 2048, 2048), (1024, 7168, 8192), (512, 8192, 8192)],
    "narrow": [(m, 8192, 8192) for m in (1, 8, 16, 32, 64)],
    # Tiles that fill no waves of 132 multiprocessors.
    "uneven": [(640, 8192, 8192), (1152, 8192, 8192), (1664, 4096, 4096), (2304, 2304, 8192)],
    # Few tiles and a deep k.
    "deep": [(512, 512, 32768), (256, 256, 65536), (1024, 1024, 16384), (16, 1024, 16384)],
}


SCALINGS = ("none", "tensor", "row", "block")


def matrix(rows, columns, transposed, dtype):
    made = torch.randn((columns, rows) if transposed else (rows, columns), device="cuda")
    if dtype == "f8e4m3":
        made = (40 * made).clamp(-448, 448)
    made = made.to(DTYPES[dtype][0])
    return made.t() if transposed else made


def scaled_calls(plan, options, a, b, ours, theirs):
    """Of 8-bit types. Scales are as PyTorch takes them."""
    (m, k), n = a.shape, b.shape[1]
    shapes = {"tensor": ((), ()), "row": ((m, 1), (1, n)),
              "block": ((k // 128, m), (n // 128, k // 128))}[options.scaling]
    scales = [0.02 * torch.rand(shape, device="cuda") for shape in shapes]
    if options.scaling == "block":
        scales = [scale.t() for scale in scales]
    views = {name: scale if options.scaling == "block" else scale.reshape(-1)
             for name, scale in zip(("scale_a", "scale_b"), scales)}

    def scaled_mm():
        return torch._scaled_mm(a, b, *scales, out_dtype=theirs.dtype,
                                use_fast_accum=options.accumulation == "fast")

    def fill():
        theirs.copy_(scaled_mm())

    return {"perseid": plan.matmul_call(a=a, b=b, c=ours, **views), "cuBLAS": scaled_mm}, fill


def epilogue_calls(plan, options, a, b, ours, theirs):
    """A bias, and GELU by tanh."""
    bias = torch.randn(b.shape[1], device="cuda").to(a.dtype)
    views = {"bias": bias}
    if options.amax:
        views["amax"] = torch.zeros(1, device="cuda")

    def peer():
        if options.gelu:
            return torch._addmm_activation(bias, a, b, use_gelu=True)
        return torch.addmm(bias, a, b)

    def fill():
        theirs.copy_(peer())

    return {"perseid": plan.matmul_call(a=a, b=b, c=ours, **views), "cuBLAS": peer}, fill


def measure_single(calls, turns, rest):
    """The median milliseconds of one launch after so many seconds of rest, the contenders in turns.
    The GPU waits before it, so that the host's time to launch is not in it."""
    times = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(rest)
            torch.cuda._sleep(2_000_000)
            times[name].append(between_events(call, 1))
    return medians(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--shapes", default="large,small,narrow")
    parser.add_argument("--layouts", default="NT,NN,TN,TT")
    parser.add_argument("--only", default="", help="rows whose name matches")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--precision", default="default", choices=("default", "tf32"))
    parser.add_argument("--scaling", default="tensor", choices=SCALINGS[1:])
    parser.add_argument("--accumulation", default="fast", choices=("fast", "promoted"))
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--gelu", action="store_true", help="with --bias")
    parser.add_argument("--amax", action="store_true", help="with --bias")
    parser.add_argument("--implementation", help="the library's, if not the one that it chooses")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--burst", type=float, default=25, help="ms of launches back to back")
    parser.add_argument("--rest", type=float, default=0.015, help="s before single launches")
    parser.add_argument("--csv")
    options = parser.parse_args()
    library = Library(options.library)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    narrow = options.dtype == "f8e4m3"
    asked = {"precision": options.precision == "tf32"}
    if options.bias:
        asked |= {"bias": 1, "activation": int(options.gelu), "amax": int(options.amax)}
    if options.implementation:
        asked["implementation"] = options.implementation.encode()
    if narrow:
        options.layouts = "NT"
        asked |= {"out_dtype": DTYPES["bf16"][1], "scaling": SCALINGS.index(options.scaling),
                  "accumulation": options.accumulation == "fast"}
    table = [("m", "n", "k", "layouts", "single", "cuBLAS", "ratio", "sustained", "cuBLAS",
              "ratio", "error")]
    print(*(f"{cell:>9}" for cell in table[0]))
    ratios = {"single": [], "sustained": []}
    shapes = [shape for name in options.shapes.split(",") for shape in SHAPES[name]]
    for m, n, k in shapes:
        wanted = [layouts for layouts in options.layouts.split(",")
                  if re.search(options.only, f"{m} {n} {k} {layouts}")]
        if wanted:
            plan = library.matmul(options.dtype, m=m, n=n, k=k, **asked)
        for layouts in wanted:
            a = matrix(m, k, layouts[0] == "T", options.dtype)
            b = matrix(k, n, layouts[1] == "T", options.dtype)
            ours, theirs = (torch.full((m, n), float("nan"), device="cuda",
                                       dtype=torch.bfloat16 if narrow else a.dtype)
                            for _ in range(2))
            if narrow or options.bias:
                with_more = scaled_calls if narrow else epilogue_calls
                calls, fill = with_more(plan, options, a, b, ours, theirs)
                fill()
            else:
                calls = {"perseid": plan.matmul_call(a=a, b=b, c=ours),
                         "cuBLAS": lambda: torch.mm(a, b, out=theirs)}
            for call in calls.values():
                call()
            error = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
            single = measure_single(calls, options.turns, options.rest)
            launches = {name: max(3, math.ceil(options.burst / ms)) for name, ms in single.items()}
            sustained = measure_in_turns(calls, 9, launches)
            row = [m, n, k, layouts]
            for name, times in (("single", single), ("sustained", sustained)):
                ratios[name].append(times["cuBLAS"] / times["perseid"])
                row += [f"{2 * m * n * k / times[each] / 1e9:.0f}" for each in calls]
                row.append(f"{ratios[name][-1]:.3f}")
            row.append(f"{error:.1e}")
            table.append(row)
            print(*(f"{cell:>9}" for cell in row), flush=True)
    for name, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{name}: {mean:.3f} of cuBLAS in the geometric mean, at least {min(found):.3f}")
    if options.csv:
        with open(options.csv, "w") as file:
            file.writelines(",".join(map(str, cells)) + "\n" for cells in table)


if __name__ == "__main__":
    main()
