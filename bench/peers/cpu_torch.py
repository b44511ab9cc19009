# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch on the CPU and Perseid on the same problems, in turns, and prints the ratios.

    python bench/peers/cpu_torch.py --perseid build/cli/perseid \\
        --problems bench/problems/figures.jsonl --threads 1

Needs a Python with PyTorch of your own. --problems takes a file of problems or the output of
`perseid bench --json`. For each problem, Perseid and PyTorch are measured in alternating rounds, so
that both meet the same machine; the best time of each counts. Problems that PyTorch has no fused
operation for are left out, and named.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as functional

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def read_problems(path):
    with open(path) as file:
        text = file.read()
    try:
        rows = json.loads(text)["rows"]
    except (json.JSONDecodeError, KeyError, TypeError):
        lines = (line.strip() for line in text.splitlines())
        return [json.loads(line) for line in lines if line and not line.startswith("#")]
    problems = []
    for row in rows:
        problem = {key: value for key, value in row["problem"].items() if key != "threads"}
        if problem not in problems:
            problems.append(problem)
    return problems


def softmax_work(problem, dtype):
    """{direction: function} for one problem."""
    dim = problem.get("dim", -1)
    x = torch.randn(problem["shape"]).to(dtype)
    out, grad, grad_input = torch.empty_like(x), torch.randn(x.shape).to(dtype), torch.empty_like(x)
    if problem.get("log"):
        work = {"forward": lambda: torch.log_softmax(x, dim, out=out)}
        backward = lambda: torch._log_softmax_backward_data(grad, out, dim, dtype, out=grad_input)
    else:
        work = {"forward": lambda: torch.softmax(x, dim, out=out)}
        backward = lambda: torch._softmax_backward_data(grad, out, dim, dtype, grad_input=grad_input)
    if problem.get("backward"):
        work["backward"] = backward
    return work


def attention_work(problem, dtype):
    unmatched = {"window", "cu_seqlens_q", "kv_lens", "bias", "visible", "dropout", "grad_lse"}
    if unmatched & problem.keys() or problem.get("causal") == "bottom-right":
        return None
    batch, heads = problem.get("batch", 1), problem.get("heads", 1)
    kv_heads = problem.get("kv_heads", 0) or heads
    head_dim = problem["head_dim"]
    value_dim = problem.get("value_dim", 0) or head_dim

    def tensor(count, length, dim):
        return torch.randn(batch, count, length, dim).to(dtype)

    query = tensor(heads, problem["q_len"], head_dim)
    key = tensor(kv_heads, problem["kv_len"], head_dim)
    value = tensor(kv_heads, problem["kv_len"], value_dim)
    grad = tensor(heads, problem["q_len"], value_dim)
    leaves = [t.requires_grad_() for t in (query, key, value)]
    scale = problem.get("scale", 0) or 1 / math.sqrt(head_dim)
    options = dict(is_causal=problem.get("causal") == "top-left", scale=scale)
    if kv_heads != heads:
        options["enable_gqa"] = True

    def forward():
        with torch.no_grad():
            functional.scaled_dot_product_attention(query, key, value, **options)

    work = {"forward": forward}
    if problem.get("backward"):
        # One graph, gone through again and again: backward alone is timed.
        out = functional.scaled_dot_product_attention(query, key, value, **options)
        work["backward"] = lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)
    return work


def matmul_work(problem, dtype):
    if {"beta", "bias", "shared_a", "shared_b", "output_dtype"} & problem.keys():
        return None
    batch, m, n, k = problem.get("batch", 1), problem["m"], problem["n"], problem["k"]
    a = torch.randn(batch, k, m).to(dtype).mT if problem.get("transpose_a") else torch.randn(
        batch, m, k).to(dtype)
    b = torch.randn(batch, n, k).to(dtype).mT if problem.get("transpose_b") else torch.randn(
        batch, k, n).to(dtype)
    a, b = (a[0], b[0]) if batch == 1 else (a, b)
    return {"forward": lambda: a @ b}


WORK = {"softmax": softmax_work, "attention": attention_work, "matmul": matmul_work}


def best_time(work, seconds):
    work()
    best, end = math.inf, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best


def perseid_rows(arguments, problem):
    """Perseid's rows of one problem, by direction."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
        file.write(json.dumps(problem) + "\n")
    try:
        command = [
            arguments.perseid, "bench", "--problems", file.name, "--threads", str(arguments.threads),
            "--seconds", str(arguments.seconds), "--json", "--quiet", "--no-error"
        ]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    finally:
        os.unlink(file.name)
    return {row["direction"]: row for row in report["rows"]}


def describe(problem):
    rest = {k: v for k, v in problem.items() if k not in ("op", "dtype", "backward")}
    return " ".join(f"{key}={value}" for key, value in rest.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perseid", default="perseid", help="the program")
    parser.add_argument("--problems", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    results = []
    if not arguments.json:
        print(f"PyTorch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), "
              f"{arguments.threads} threads; ratio: time of PyTorch / time of Perseid")
    for problem in read_problems(arguments.problems):
        dtype = problem.get("dtype", "f32")
        maker = WORK.get(problem["op"])
        work = maker(problem, DTYPES[dtype]) if maker else None
        if work is None:
            print(f"left out: {problem['op']} {describe(problem)}", file=sys.stderr)
            continue
        ours, theirs = {}, {}
        for _ in range(arguments.rounds):
            rows = perseid_rows(arguments, problem)
            for direction, function in work.items():
                ours.setdefault(direction, []).append(rows[direction])
                theirs[direction] = min(theirs.get(direction, math.inf),
                                        best_time(function, arguments.seconds))
        for direction in work:
            row = min(ours[direction], key=lambda each: each["seconds"]["least"])
            seconds = row["seconds"]["least"]
            result = dict(problem=problem, direction=direction, perseid=seconds,
                          torch=theirs[direction], ratio=theirs[direction] / seconds,
                          fraction=row["fraction"])
            results.append(result)
            if not arguments.json:
                print(f"{problem['op']:9} {direction:8} {dtype:4} perseid {seconds * 1e3:9.3f} ms  "
                      f"torch {theirs[direction] * 1e3:9.3f} ms  ratio {result['ratio']:5.2f}  "
                      f"({row['fraction']:.2f} of {row['ceiling']['name']})  {describe(problem)}",
                      flush=True)
    if arguments.json:
        print(json.dumps(dict(torch=torch.__version__, threads=arguments.threads, rows=results)))


if __name__ == "__main__":
    main()
