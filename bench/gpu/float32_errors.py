# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of float32 attention against float64, over those of the plain formula in PyTorch float32
(without TF32), of the same inputs.

    python3 float32_errors.py LIBRARY... [--dims 64,128] [--lengths 1000,4096] [--heads 3]

|x - exact| / |exact| of a head's out, dQ, dK and dV, and the largest |x - exact| of lse: the
ratio to the formula's, of the worst head. Inputs: normal numbers; the same times 5 (scores to 60
and more); rows of one tensor that differ by up to 2^20; single numbers that differ by up to 2^16.
"""
import argparse
import math

import torch
from attention_case import Case
from binding import Library

NAMES = ("out", "lse", "dQ", "dK", "dV")


def draw(case, inputs):
    """Fills the inputs of the case."""
    tensors = dict(q=case.q, k=case.k, v=case.v, dO=case.grad_out)
    for tensor in tensors.values():
        tensor.normal_()
    name, _, of = inputs.partition(":")
    if name == "times5":
        for tensor in tensors.values():
            tensor.mul_(5)
    elif name != "normal":
        most, shape = (20, tensors[of].shape[:-1] + (1,)) if name == "rows" else (
            16, tensors[of].shape)
        powers = torch.randint(-most, 1, shape, device="cuda").float()
        tensors[of].mul_(torch.exp2(powers))


def formula(query, key, value, grad_out, causal):
    """Results of one head in the type of its inputs."""
    scale = 1 / math.sqrt(query.shape[1])
    scores = query @ key.T * scale
    if causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu_(1)
        scores.masked_fill_(hidden, -math.inf)
    weights = torch.softmax(scores, -1)
    out = weights @ value
    delta = (out * grad_out).sum(-1, keepdim=True)
    grad_scores = weights * (grad_out @ value.T - delta) * scale
    return dict(out=out, lse=torch.logsumexp(scores, -1), dQ=grad_scores @ key,
                dK=grad_scores.T @ query, dV=weights.T @ grad_out)


def distance(name, found, exact):
    difference = found.double() - exact
    return difference.abs().max().item() if name == "lse" else (
        difference.norm() / exact.norm()).item()


def ratios(case):
    """Runs the case; the worst head's by name."""
    backward = case.call(True)  # after its forward
    backward()
    found = dict(out=case.out, dQ=case.gradients["query"], dK=case.gradients["key"],
                 dV=case.gradients["value"])
    worst = dict.fromkeys(NAMES, 0.0)
    for head in range(case.heads):
        inputs = [x[0, :, head] for x in (case.q, case.k, case.v, case.grad_out)]
        exact = formula(*(x.double() for x in inputs), case.causal)
        plain = formula(*inputs, case.causal)
        of_head = {name: x[0, :, head] for name, x in found.items()} | dict(lse=case.lse[0, head])
        for name in NAMES:
            ratio = distance(name, of_head[name], exact[name]) / max(
                distance(name, plain[name], exact[name]), 1e-300)
            worst[name] = max(worst[name], ratio if ratio == ratio else math.inf)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="1000,4096")
    parser.add_argument("--heads", type=int, default=3)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    libraries = {path: Library(path) for path in options.libraries}
    kinds = ["normal", "times5"] + [f"{kind}:{of}" for kind in ("rows", "numbers")
                                    for of in ("q", "k", "v", "dO")]
    print("library,dim,length,mask,inputs," + ",".join(NAMES))
    for dim in map(int, options.dims.split(",")):
        for length in map(int, options.lengths.split(",")):
            for causal in (False, True):
                for inputs in kinds:
                    for path, library in libraries.items():
                        torch.manual_seed(1)
                        case = Case(library, batch=1, heads=options.heads, length=length, dim=dim,
                                    dtype="f32", causal=causal)
                        draw(case, inputs)
                        worst = ratios(case)
                        print(f"{path},{dim},{length},{'causal' if causal else 'full'},{inputs},"
                              + ",".join(f"{worst[name]:.2f}" for name in NAMES), flush=True)


if __name__ == "__main__":
    main()
