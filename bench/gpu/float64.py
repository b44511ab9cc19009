# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 against PyTorch's formula (the math backend), on any GPU, in one run: B*S =
16384, H*D = 2048, random normal.

    python3 float64.py LIBRARY [--directions forward,backward] [--dims 64,128] [--lengths 2048]
                       [--csv FILE]

TFLOP/s count the FLOPs of visible scores, 4 forward and 10 backward. single: one launch between two
events, after a rest; sustained: launches back to back. distance: |ours - theirs| / |theirs|, of the
worst gradient backward.
"""
import argparse
import math

import torch
from attention_case import Case
from binding import Library, measure_in_turns
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS, WIDTH = 16384, 2048  # B*S and H*D


def measure(library, backward, dim, length, causal):
    case = Case(library, batch=ROWS // length, heads=WIDTH // dim, length=length, dim=dim,
                dtype="f64", causal=causal)
    with sdpa_kernel(SDPBackend.MATH):
        math_call = case.peer(backward)

    def formula():
        with sdpa_kernel(SDPBackend.MATH):
            return math_call()

    calls = {"own": case.call(backward), "math": formula}
    distance = case.error(backward, calls["own"])
    single = measure_in_turns(calls, 3, None, 2_000_000)
    launches = {name: min(20, max(2, math.ceil(12 / ms))) for name, ms in single.items()}
    sustained = measure_in_turns(calls, 2, launches, 2_000_000)
    work = case.work(backward, "TFLOP/s") / 1e9  # ms and TFLOP/s
    rates = [work / times[name] for times in (single, sustained) for name in calls]
    return ",".join([*(f"{x:.2f}" for x in rates), f"{distance:.2e}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--directions", default="forward,backward")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="2048")
    parser.add_argument("--csv")
    options = parser.parse_args()
    library = Library(options.library)
    lines = [f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}",
             "direction,dim,length,mask,single,math_single,sustained,math_sustained,distance"]
    print("\n".join(lines), flush=True)
    for direction in options.directions.split(","):
        for dim in map(int, options.dims.split(",")):
            for mask in ("full", "causal"):
                for length in map(int, options.lengths.split(",")):
                    row = measure(library, direction == "backward", dim, length, mask == "causal")
                    lines.append(f"{direction},{dim},{length},{mask},{row}")
                    print(lines[-1], flush=True)
                    if options.csv:
                        with open(options.csv, "w", encoding="utf-8") as file:
                            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
