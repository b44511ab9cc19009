# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Products over two or more GPUs of one host against their bound, the larger of the product alone
and the transfer alone, and against PyTorch, in one run of one machine.

    python3 collective.py PERSEID [--ranks 2] [--seconds S] [--csv FILE] [--commit HASH]

A shape is all-gather-matmul M,N,K or matmul-reduce-scatter M,N,K: rows of all ranks, columns and
depth of each; bf16. single: one execution after 3 ms of rest, the host's calls included. sustained:
about 20 ms of executions back to back. Of all ranks the slowest counts; medians. PyTorch runs with
a process for each GPU: NCCL then cuBLAS, and its asynchronous tensor parallelism. Nothing uses
NVLink multicast. Rows are added to FILE.
"""
import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

GATHER, REDUCE = "all-gather-matmul", "matmul-reduce-scatter"
# The same products a GPU for any number of ranks: op, m, n, k.
SHAPES = {
    2: ((GATHER, 8192, 14336, 8192), (GATHER, 8192, 5120, 8192), (GATHER, 8192, 1280, 8192),
        (GATHER, 8192, 1024, 8192), (GATHER, 8192, 512, 8192), (GATHER, 8192, 256, 8192),
        (REDUCE, 8192, 8192, 14336), (REDUCE, 8192, 8192, 4096), (REDUCE, 8192, 8192, 1024)),
    4: ((GATHER, 8192, 7168, 8192), (GATHER, 16384, 7168, 8192), (GATHER, 4096, 7168, 8192),
        (GATHER, 2048, 7168, 8192), (GATHER, 16384, 2560, 8192), (GATHER, 8192, 2560, 8192),
        (GATHER, 1024, 7168, 8192), (GATHER, 4096, 4096, 4096), (GATHER, 8192, 256, 8192),
        (GATHER, 8192, 512, 8192), (GATHER, 8192, 1024, 8192), (GATHER, 8192, 1280, 8192),
        (REDUCE, 4096, 8192, 7168), (REDUCE, 8192, 8192, 7168), (REDUCE, 16384, 8192, 7168),
        (REDUCE, 2048, 8192, 7168), (REDUCE, 1024, 8192, 7168), (REDUCE, 8192, 8192, 2048),
        (REDUCE, 16384, 8192, 2048), (REDUCE, 8192, 8192, 1024))}
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
FIELDS = ("date", "gpu", "driver", "commit", "ranks", "op", "m", "n", "k", "mode", "chunks",
          "what", "milliseconds", "ratio")


def ours(perseid, ranks, seconds):
    """Rows of the library: fused, product alone, transfer alone."""
    for op, m, n, k in SHAPES[ranks]:
        command = [perseid, "bench", op, "--device", "cuda:0", "--quiet", "--json", "--seconds",
                   str(seconds), "-n", str(ranks), "--m", str(m), "--n", str(n), "--k", str(k)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            print(f"{op} {m} {n} {k}: {done.stderr}", flush=True)
            continue
        print(f"# measured {op} {m} {n} {k}", flush=True)
        for row in json.loads(done.stdout)["results"]:
            for what in ("fused", "product", "transfer"):
                yield dict(op=op, m=m, n=n, k=k, mode=row["mode"], chunks="", what=what,
                           seconds=row[f"{what}_seconds"])


def peers(deadline):
    """Rows of PyTorch, printed by rank 0 of torchrun."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
    from torch_ranks import Ranks

    ranks = Ranks()
    rank, size, device, once = ranks.rank, ranks.size, ranks.device, ranks.seconds
    group = dist.group.WORLD.group_name
    symmetric.enable_symm_mem_for_group(group)

    start = time.perf_counter()
    for op, m, n, k in SHAPES[size]:
        go_on = torch.tensor([time.perf_counter() - start < deadline], device=device)
        dist.broadcast(go_on, 0)
        if not go_on.item():
            break
        whole = torch.randn(m, k, dtype=torch.bfloat16, device=device)
        b = torch.randn(k, n, dtype=torch.bfloat16, device=device)
        c = torch.empty(m, n, dtype=torch.bfloat16, device=device)
        shard, part = whole[:m // size].clone(), torch.empty_like(c[:m // size])
        if op == GATHER:
            def transfer():
                dist.all_gather_into_tensor(whole, shard)

            def unfused():
                dist.all_gather_into_tensor(whole, shard)
                torch.mm(whole, b, out=c)

            def async_tp():
                torch.ops.symm_mem.fused_all_gather_matmul(shard, [b], 0, group)
        else:
            def transfer():
                dist.reduce_scatter_tensor(part, c)

            def unfused():
                torch.mm(whole, b, out=c)
                dist.reduce_scatter_tensor(part, c)

            def async_tp():
                torch.ops.symm_mem.fused_matmul_reduce_scatter(whole, b, "sum", 0, group)
        for what, body in (("cuBLAS alone", lambda: torch.mm(whole, b, out=c)),
                           ("NCCL alone", transfer), ("NCCL + cuBLAS", unfused),
                           ("PyTorch async TP", async_tp)):
            try:
                for _ in range(3):
                    body()
                single = statistics.median(once(body, 1) for _ in range(9))
                times = max(2, min(64, int(20e-3 / single)))
                sustained = statistics.median(once(body, times) for _ in range(3))
            except RuntimeError as error:
                print(f"# {op} {what}: {str(error)[:200]}", flush=True)
                continue
            for mode, seconds in (("single", single), ("sustained", sustained)):
                if rank == 0:
                    print(json.dumps(dict(op=op, m=m, n=n, k=k, mode=mode, chunks="", what=what,
                                          seconds=seconds)), flush=True)
    dist.destroy_process_group()


def rows_of_peers(ranks, deadline):
    """The rows that peers() prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
               "--master-port", "29511", __file__, "--peers", str(deadline)]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=deadline + 45, env={**os.environ, **NO_MULTICAST})
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
        elif line.startswith("#"):
            print(line, flush=True)
    if done.returncode != 0:
        print(done.stderr[-1500:], flush=True)


def with_ratios(rows):
    """Each over the bound: the best product and the best transfer alone, by shape and mode."""
    def key(row):
        return tuple(row[field] for field in ("op", "m", "n", "k", "mode"))

    def best(row, names):
        return min((other["seconds"] for other in rows
                    if key(other) == key(row) and other["what"] in names), default=0)
    for row in rows:
        bound = max(best(row, ("product", "cuBLAS alone")), best(row, ("transfer", "NCCL alone")))
        yield dict(row, milliseconds=f"{1e3 * row['seconds']:.4f}",
                   ratio=f"{row['seconds'] / bound:.3f}" if bound else "")


def main():
    """Measures and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("perseid", nargs="?")
    parser.add_argument("--ranks", type=int, default=2, choices=SHAPES)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--csv", default="collective.csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peers", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peers is not None:
        peers(args.peers)
        return
    gpu, driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"],
        capture_output=True, text=True, check=True).stdout.strip().split(", ")
    machine = dict(date=datetime.date.today().isoformat(), gpu=gpu, driver=driver,
                   commit=args.commit, ranks=args.ranks)
    rows = list(ours(args.perseid, args.ranks, args.seconds))
    try:
        rows += [] if args.no_peers else rows_of_peers(args.ranks, 30 * args.seconds)
    except subprocess.TimeoutExpired:
        print("the peers did not end in time", flush=True)
    is_new = not os.path.exists(args.csv)
    with open(args.csv, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
        if is_new:
            writer.writeheader()
        for row in with_ratios(rows):
            writer.writerow({**machine, **row})
            print(f"{row['op']:22} {row['m']:6} {row['n']:6} {row['k']:6} {row['mode']:10}"
                  f"{row['what']:18} {row['milliseconds']:>9} ms {row['ratio']:>6}", flush=True)


if __name__ == "__main__":
    main()
