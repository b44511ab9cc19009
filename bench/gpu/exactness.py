# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Largest errors of attention against float64, beside those of cuDNN and FlashAttention 2 (through
PyTorch) on the same inputs: rows are the more peaked, the larger queries and keys are.

    python3 exactness.py LIBRARY [--seeds 5] [--scales 0.1,1,3,10] [--dtypes f16,bf16] [--csv FILE]

Queries, keys and values are normal numbers times a scale; gradients of out are normal numbers. The
error of a tensor is the largest |x - exact| over all of its elements and all seeds. "held": whether
it is at most 1.05 times that of the better peer.
"""
import argparse
import itertools
import math

import torch
from attention_case import Case
from binding import Library
from torch.nn.attention import SDPBackend, sdpa_kernel

# batch, heads, length, dim
SHAPES = ((3, 16, 512, 128), (2, 8, 2048, 64), (1, 4, 1024, 256))
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
TENSORS = ("out", "query", "key", "value")
MOST = 1.05


def attend(inputs, causal, grad_out):
    """out and the gradients, [batch, heads, length, dim], by PyTorch."""
    views = [x.detach().requires_grad_() for x in inputs]
    out = torch.nn.functional.scaled_dot_product_attention(*views, is_causal=causal)
    return [out.detach(), *torch.autograd.grad(out, views, grad_out)]


def exact(inputs, causal, grad_out):
    """The same in float64, a head at a time."""
    results = []
    for batch, head in itertools.product(*map(range, inputs[0].shape[:2])):
        q, k, v, dout = (x[batch, head].double() for x in (*inputs, grad_out))
        scores = q @ k.T / math.sqrt(q.shape[-1])
        if causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        weights = torch.softmax(scores, -1)
        out = weights @ v
        grad = weights * (dout @ v.T - (out * dout).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        results.append((out, grad @ k, grad.T @ q, weights.T @ dout))
    return [torch.stack(x).unflatten(0, inputs[0].shape[:2]) for x in zip(*results)]


def errors(library, dtype, shape, causal, scale):
    """The largest error of each contender and tensor."""
    batch, heads, length, dim = shape
    case = Case(library, batch=batch, heads=heads, length=length, dim=dim, dtype=dtype,
                causal=causal)
    for tensor in (case.q, case.k, case.v):
        tensor.mul_(scale)
    inputs = [x.transpose(1, 2) for x in (case.q, case.k, case.v)]
    grad_out = case.grad_out.transpose(1, 2)
    case.call(True)()
    found = {"own": [x.transpose(1, 2) for x in (case.out, *case.gradients.values())]}
    for name, backend in PEERS.items():
        with sdpa_kernel(backend):
            found[name] = attend(inputs, causal, grad_out)
    wanted = exact(inputs, causal, grad_out)
    return {name: [(x.double() - y).abs().max().item() for x, y in zip(tensors, wanted)]
            for name, tensors in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scales", default="0.1,1,3,10")
    parser.add_argument("--dtypes", default="f16,bf16")
    parser.add_argument("--csv")
    options = parser.parse_args()
    library = Library(options.library)
    rows = [("dtype", "shape", "mask", "scale", "tensor", "own", *PEERS, "ratio", "held")]
    print(("{:>9} " * len(rows[0])).format(*rows[0]))
    missed = 0
    scales = [float(text) for text in options.scales.split(",")]
    for dtype, shape, causal, scale in itertools.product(options.dtypes.split(","), SHAPES,
                                                         (True, False), scales):
        largest = {}
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            for name, found in errors(library, dtype, shape, causal, scale).items():
                largest[name] = [max(pair) for pair in zip(found, largest.get(name, found))]
        for index, tensor in enumerate(TENSORS):
            own, *peers = (values[index] for values in largest.values())
            ratio = own / min(peers)
            missed += not ratio <= MOST
            rows.append((dtype, "x".join(map(str, shape)), "causal" if causal else "full", scale,
                         tensor, *(f"{x:.2e}" for x in (own, *peers)), f"{ratio:.3f}",
                         "yes" if ratio <= MOST else "no"))
            print(("{:>9} " * len(rows[0])).format(*map(str, rows[-1])), flush=True)
    print(f"{len(rows) - 1} rows, {missed} above {MOST} of the better peer")
    if options.csv:
        with open(options.csv, "w") as file:
            file.writelines(",".join(map(str, row)) + "\n" for row in rows)


if __name__ == "__main__":
    main()
