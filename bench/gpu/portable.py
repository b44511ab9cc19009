# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""cuda:portable attention against FlashAttention 2, which is PyTorch's, on any GPU, in one run:
B*S = 16384, H*D = 2048, random normal bf16.

    python3 portable.py LIBRARY [--directions forward,backward,decode] [--dims 64,128]
                        [--lengths 1024,4096,16384] [--csv FILE]

decode: few queries of dim 128, TB/s of keys and values; its cases are batch x heads : key heads,
and the queries where they are not one.
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
# Batch, heads, key heads, keys, queries.
DECODE = ((1, 32, 32, 4096, 1), (8, 32, 32, 8192, 1), (1, 64, 8, 4096, 1), (1, 64, 8, 32768, 1),
          (8, 64, 8, 32768, 1), (32, 32, 4, 8192, 1), (1, 64, 8, 32768, 4), (8, 64, 8, 32768, 4),
          (32, 32, 4, 8192, 4), (32, 32, 4, 8192, 8))


def flash(case, backward):
    views = [x.transpose(1, 2).detach() for x in (case.q, case.k, case.v)]
    if backward:
        for tensor in views:
            tensor.requires_grad_()

    def forward():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                *views, is_causal=case.causal, enable_gqa=case.heads != case.kv_heads)

    if not backward:
        return forward
    out, grad_out = forward(), case.grad_out.transpose(1, 2)
    return lambda: torch.autograd.grad(out, views, grad_out, retain_graph=True)


def measure(case, backward, unit="TFLOP/s", digits=1):
    length = case.length
    calls = {"own": case.call(backward), "flash": flash(case, backward)}
    for call in calls.values():
        call()
    error = "" if backward and length > 4096 else f"{case.error(backward, calls['own']):.2e}"
    single = measure_in_turns(calls, 7, None, 2_000_000)
    launches = {name: min(40, max(2, math.ceil(12 / ms))) for name, ms in single.items()}
    sustained = measure_in_turns(calls, 3, launches, 2_000_000)
    work = case.work(backward, unit) / 1e9  # ms and 10^12 of the unit
    own, peer, own_sustained, peer_sustained = (
        f"{work / times[name]:.{digits}f}" for times in (single, sustained) for name in calls)
    return (f"{own},{peer},{single['flash'] / single['own']:.3f},{own_sustained},"
            f"{peer_sustained},{sustained['flash'] / sustained['own']:.3f},{error}")


def rows_of(library, options):
    """What is measured, and its results."""
    for direction in options.directions.split(","):
        if direction == "decode":
            for batch, heads, kv_heads, keys, queries in DECODE:
                case = Case(library, batch=batch, heads=heads, kv_heads=kv_heads, length=queries,
                            keys=keys, dim=128)
                several = f" {queries} queries" if queries > 1 else ""
                yield (f"decode,128,{keys},{batch}x{heads}:{kv_heads}{several},"
                       f"{measure(case, False, 'TB/s', 3)}")
            continue
        for dim in map(int, options.dims.split(",")):
            for mask in ("full", "causal"):
                for length in map(int, options.lengths.split(",")):
                    case = Case(library, batch=ROWS // length, heads=WIDTH // dim, length=length,
                                dim=dim, causal=mask == "causal")
                    result = measure(case, direction == "backward")
                    yield f"{direction},{dim},{length},{mask},{result}"


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
    for row in rows_of(library, options):
        lines.append(row)
        print(row, flush=True)
        if options.csv:
            with open(options.csv, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
