# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""cuda:portable attention against FlashAttention 2, which is PyTorch's, on any GPU, in one run:
B*S = 16384, H*D = 2048, random normal bf16.

    python3 portable.py LIBRARY [--directions forward,backward] [--dims 64,128]
                        [--lengths 1024,4096,16384] [--csv FILE]

TFLOP/s count the FLOPs of visible scores, 4 forward and 10 backward. single: one launch between two
events, after a rest; sustained: launches back to back. Errors: |x - exact| / |exact| against
float64, backward of the worst gradient; none where float64 would not fit.
"""
import argparse
import math
import os

import torch
from attention_case import Case
from binding import Library, measure_in_turns
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS, WIDTH = 16384, 2048  # B*S and H*D


def flash(case, backward):
    views = [x.transpose(1, 2).detach() for x in (case.q, case.k, case.v)]
    if backward:
        for tensor in views:
            tensor.requires_grad_()

    def forward():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*views, is_causal=case.causal)

    if not backward:
        return forward
    out, grad_out = forward(), case.grad_out.transpose(1, 2)
    return lambda: torch.autograd.grad(out, views, grad_out, retain_graph=True)


def measure(library, backward, dim, length, causal):
    case = Case(library, batch=ROWS // length, heads=WIDTH // dim, length=length, dim=dim,
                causal=causal)
    calls = {"own": case.call(backward), "flash": flash(case, backward)}
    for call in calls.values():
        call()
    error = "" if backward and length > 4096 else f"{case.error(backward, calls['own']):.2e}"
    single = measure_in_turns(calls, 7, None, 2_000_000)
    launches = {name: min(40, max(2, math.ceil(12 / ms))) for name, ms in single.items()}
    sustained = measure_in_turns(calls, 3, launches, 2_000_000)
    work = case.work(backward, "TFLOP/s") / 1e9  # ms and TFLOP/s
    return (f"{work / single['own']:.1f},{work / single['flash']:.1f},"
            f"{single['flash'] / single['own']:.3f},{work / sustained['own']:.1f},"
            f"{work / sustained['flash']:.1f},{sustained['flash'] / sustained['own']:.3f},{error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--directions", default="forward,backward")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--csv")
    options = parser.parse_args()
    os.environ["PERSEID_FORCE_IMPL"] = "cuda:portable"
    library = Library(options.library)
    lines = [f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}",
             "direction,dim,length,mask,single,flash_single,ratio_single,sustained,flash_sustained,"
             "ratio_sustained,error"]
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
