# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention in float32 against PyTorch's efficient attention, on any GPU, in one run: B*S = 16384,
H*D = 2048, random normal.

    python3 float32.py LIBRARY [--directions forward] [--dims 64,128] [--lengths 2048,8192]
                       [--csv FILE]

TFLOP/s count the FLOPs of visible scores, 4 forward and 10 backward; those of ours include the
splitting. single: one launch between two events, after a rest; sustained: launches back to back.
Errors: |x - exact| / |exact| against float64, backward of the worst gradient; of `formula`, which is
softmax(q k^T) v by PyTorch in float32 without TF32, forward alone.
"""
import argparse
import math

import torch
from attention_case import Case
from binding import Library, measure_in_turns
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS, WIDTH = 16384, 2048  # B*S and H*D


def efficient(case, backward):
    views = [x.transpose(1, 2).detach() for x in (case.q, case.k, case.v)]
    if backward:
        for tensor in views:
            tensor.requires_grad_()

    def forward():
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*views, is_causal=case.causal)

    if not backward:
        return forward
    out, grad_out = forward(), case.grad_out.transpose(1, 2)
    return lambda: torch.autograd.grad(out, views, grad_out, retain_graph=True)


def errors_of_forward(case):
    """Of ours, and of the plain formula: out, and the largest of lse."""
    rows, exact = case.exact(False)
    query, key, value = (case.sequence(x, 0)[0] for x in (case.q, case.k, case.v))
    positions = torch.arange(len(key), device="cuda")

    def scores_of(some, kind):
        scores = query[some].to(kind) @ key.to(kind).T / math.sqrt(case.dim)
        if case.causal:
            scores.masked_fill_(positions > some[:, None] + len(key) - len(query), -math.inf)
        return scores

    lse = torch.logsumexp(scores_of(rows, torch.float64), -1)
    scores = scores_of(torch.arange(len(query), device="cuda"), torch.float32)  # one whole product
    formula = (torch.softmax(scores, -1) @ value)[rows]
    distance = [((x.double() - exact).norm() / exact.norm()).item()
                for x in (case.sequence(case.out, 0)[0][rows], formula)]
    of_lse = [(x.double() - lse).abs().max().item()
              for x in (case.lse[-1, 0, rows], torch.logsumexp(scores, -1)[rows])]
    return *distance, *of_lse


def measure(library, backward, dim, length, causal):
    case = Case(library, batch=ROWS // length, heads=WIDTH // dim, length=length, dim=dim,
                dtype="f32", causal=causal)
    calls = {"own": case.call(backward), "efficient": efficient(case, backward)}
    for call in calls.values():
        call()
    errors = (case.error(True, calls["own"]),) if backward else errors_of_forward(case)
    single = measure_in_turns(calls, 7, None, 2_000_000)
    launches = {name: min(40, max(2, math.ceil(12 / ms))) for name, ms in single.items()}
    sustained = measure_in_turns(calls, 3, launches, 2_000_000)
    work = case.work(backward, "TFLOP/s") / 1e9  # ms and TFLOP/s
    rates = [work / times[name] for times in (single, sustained) for name in calls]
    return ",".join([*(f"{x:.1f}" for x in rates), *(f"{x:.2e}" for x in errors)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--directions", default="forward")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="2048,8192")
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    library = Library(options.library)
    lines = [f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}",
             "direction,dim,length,mask,single,efficient_single,sustained,efficient_sustained,"
             "error,formula_error,lse_error,formula_lse_error"]
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
