# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Context-parallel attention over GPUs of one host, forward and backward, against its bound in the
same run: the larger of the attention of all rows on one GPU, divided by the number of ranks, and
the transfer alone. And against PyTorch, in one run of one machine.

    python3 context_attention.py PERSEID [--ranks 2] [--seconds S] [--csv FILE] [--commit HASH]
        [--no-peers] [--ragged]

Causal, zigzag, head_dim 128, bf16; one sequence, or a ragged batch of several equal ones that have
`length` positions together. single: one execution after 3 ms of rest, the host's calls
included. sustained: about 20 ms of executions back to back. Of all ranks the slowest counts;
medians. PyTorch runs with a process for each GPU: context_parallel, which shares rows out as
zigzag does, rotates keys by all-gather or alltoall, and attends by cuDNN or flash; and keys that
NCCL gathers before one attention of each piece, whose gradients it scatters. `best of PyTorch` is
the fastest of them. Nothing uses NVLink multicast. Rows are added to FILE.
"""
import argparse
import csv
import datetime
import importlib
import json
import os
import statistics
import subprocess
import sys
import time

# Positions of all ranks, query heads, key heads.
SHAPES = ((8192, 32, 4), (16384, 32, 4), (32768, 8, 1), (32768, 32, 4), (32768, 16, 16),
          (65536, 32, 4))
# The same of ragged batches of equal sequences, and how many; no peer has them.
RAGGED = ((32768, 32, 4, 8), (32768, 32, 4, 32))
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
FIELDS = ("date", "gpu", "driver", "commit", "ranks", "direction", "length", "sequences", "heads",
          "kv_heads", "mode", "what", "milliseconds", "ratio")


def measure(perseid, ranks, seconds, shapes):
    """Rows of the shapes: fused, attention alone, transfer alone."""
    for length, heads, kv_heads, sequences in shapes:
        for direction in ("forward", "backward"):
            command = [perseid, "bench", "context-attention", "--device", "cuda:0", "--quiet",
                       "--json", "--seconds", str(seconds), "-n", str(ranks), "--length",
                       str(length), "--heads", str(heads), "--kv-heads", str(kv_heads),
                       "--head-dim", "128", "--sequences", str(sequences)]
            command += ["--backward"] if direction == "backward" else []
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode != 0:
                print(f"{direction} {length} {sequences} {heads} {kv_heads}: {done.stderr}",
                      flush=True)
                continue
            for row in json.loads(done.stdout)["results"]:
                bound = max(row["product_seconds"], row["transfer_seconds"])
                for part, what in (("fused", "fused"), ("product", "attention"),
                                   ("transfer", "transfer")):
                    taken = row[f"{part}_seconds"]
                    yield dict(direction=direction, length=length, sequences=sequences or 1,
                               heads=heads, kv_heads=kv_heads, mode=row["mode"], what=what,
                               milliseconds=f"{1e3 * taken:.4f}", ratio=f"{taken / bound:.3f}")


def context_parallel(rank, size, mesh):
    """Peers by PyTorch's context_parallel: name, a context that shares out q, k, v, and calls."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for name in ("torch.distributed.tensor.experimental._attention",
                 "torch.distributed.tensor.experimental._context_parallel._attention"):
        try:
            module = importlib.import_module(name)
            share, rotate = module.context_parallel, module.set_rotate_method
            break
        except (ImportError, AttributeError) as error:
            print(f"# {name}: {error}", flush=True)
    else:
        return
    for rotation in ("allgather", "alltoall"):
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            for repeats in (False, True):  # key heads, where grouped ones are refused
                def measure(whole, grad, timed, rotation=rotation, backend=backend,
                            repeats=repeats):
                    q, k, v = (tensor.clone() for tensor in whole)
                    groups = q.shape[1] // k.shape[1]
                    if repeats:
                        if groups == 1:
                            return
                        k, v = (tensor.repeat_interleave(groups, 1) for tensor in (k, v))
                    rotate(rotation)
                    with share(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2],
                               no_restore_buffers={q, k, v}), sdpa_kernel(backend):
                        def attend():
                            grouped = {"enable_gqa": True} if k.shape[1] < q.shape[1] else {}
                            return F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                  **grouped)
                        failure = None  # raised here it would leave attention as it is shared out
                        try:
                            with torch.no_grad():
                                timed("forward", attend)
                            for tensor in (q, k, v):
                                tensor.requires_grad_(True)
                            out = attend()
                            timed("backward", lambda: torch.autograd.grad(
                                out, (q, k, v), grad, retain_graph=True))
                        except Exception as error:
                            failure = error
                        for tensor in (q, k, v):
                            tensor.requires_grad_(False)
                    if failure is not None:
                        raise failure
                label = backend.name.split("_")[0].lower()
                yield (f"PyTorch context_parallel {rotation} {label}"
                       f"{' repeated' if repeats else ''}", measure)


def gathered(rank, size, _):
    """A peer that gathers all keys by NCCL, then attends piece by piece."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.attention.bias import causal_lower_right

    def measure(whole, grad, timed):
        piece = whole[0].shape[2] // (2 * size)
        own = (rank, 2 * size - 1 - rank)
        q = [whole[0][:, :, p * piece:(p + 1) * piece].contiguous() for p in own]
        # Of a rank: key and value, both pieces, rows first.
        mine = torch.stack([torch.stack([tensor[0, :, p * piece:(p + 1) * piece] for p in own])
                            for tensor in whole[1:]])
        received = torch.empty((size,) + mine.shape, dtype=mine.dtype, device=mine.device)
        order = [(p, 0) if p < size else (2 * size - 1 - p, 1) for p in range(2 * size)]
        grads = torch.empty(mine.shape, dtype=torch.float32, device=mine.device)

        def gather():
            dist.all_gather_into_tensor(received, mine)
            return [torch.cat([received[r, kind, half] for r, half in order], 1).unsqueeze(0)
                    for kind in (0, 1)]

        def attend(q, k, v):
            outs = []
            for rows, p in zip(q, own):
                keys = (p + 1) * piece
                grouped = {"enable_gqa": True} if k.shape[1] < rows.shape[1] else {}
                outs.append(F.scaled_dot_product_attention(
                    rows, k[:, :, :keys], v[:, :, :keys],
                    attn_mask=causal_lower_right(piece, keys), **grouped))
            return outs

        with torch.no_grad():
            timed("forward", lambda: attend(q, *gather()))
        q = [rows.requires_grad_(True) for rows in q]
        k, v = (tensor.requires_grad_(True) for tensor in gather())
        outs = attend(q, k, v)
        halves = [grad[:, :, :piece], grad[:, :, piece:]]

        def backward():
            gather()
            all_grads = torch.autograd.grad(outs, q + [k, v], halves, retain_graph=True)
            sent = torch.empty((size,) + mine.shape, dtype=torch.float32, device=mine.device)
            for kind in (0, 1):
                for p, (r, half) in enumerate(order):
                    sent[r, kind, half] = all_grads[2 + kind][0, :, p * piece:(p + 1) * piece]
            dist.reduce_scatter_tensor(grads, sent)

        timed("backward", backward)

    yield "PyTorch all-gather then attention", measure


def peers(deadline):
    """Rows of PyTorch, printed by rank 0 of torchrun."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch_ranks import Ranks

    ranks = Ranks()
    rank, size, device, once = ranks.rank, ranks.size, ranks.device, ranks.seconds
    mesh = init_device_mesh("cuda", (size,))

    start = time.perf_counter()
    for length, heads, kv_heads in SHAPES:
        torch.manual_seed(1)  # the same on all ranks
        whole = [torch.randn(1, h, length, 128, dtype=torch.bfloat16, device=device)
                 for h in (heads, kv_heads, kv_heads)]
        grad = torch.randn(1, heads, length // size, 128, dtype=torch.bfloat16, device=device)
        for make in (gathered, context_parallel):
            for what, measure in make(rank, size, mesh):
                go_on = torch.tensor([time.perf_counter() - start < deadline], device=device)
                dist.broadcast(go_on, 0)
                if not go_on.item():
                    break

                def timed(direction, body, what=what):
                    for _ in range(2):
                        body()
                    single = statistics.median(once(body, 1) for _ in range(7))
                    times = max(2, min(64, int(20e-3 / single)))
                    sustained = statistics.median(once(body, times) for _ in range(3))
                    for mode, seconds in (("single", single), ("sustained", sustained)):
                        if rank == 0:
                            print(json.dumps(dict(direction=direction, length=length, sequences=1,
                                                  heads=heads, kv_heads=kv_heads, mode=mode,
                                                  what=what, seconds=seconds)), flush=True)
                try:
                    measure(whole, grad, timed)
                except Exception as error:  # whatever a peer does not take, the others are measured
                    if rank == 0:
                        print(f"# {length} {heads} {kv_heads} {what}: "
                              f"{type(error).__name__}: {str(error)[:200]}", flush=True)
                torch.cuda.empty_cache()
    dist.destroy_process_group()


def rows_of_peers(ranks, deadline):
    """The rows that peers() prints, and for each shape, direction and mode the fastest."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
               "--master-port", "29512", __file__, "--peers", str(deadline)]
    # A peer may hang; what it has printed counts.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **NO_MULTICAST}) as process:
        try:
            out, err = process.communicate(timeout=deadline + 30)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
            print("# PyTorch did not end in time", flush=True)
    rows = []
    for line in out.splitlines():
        if line.startswith("{"):
            rows.append(json.loads(line))
        elif line.startswith("#"):
            print(line, flush=True)
    if process.returncode != 0:
        print(err[-1500:], flush=True)
    best = {}
    for row in rows:
        key = tuple(row[field] for field in FIELDS[5:11])
        if key not in best or row["seconds"] < best[key]["seconds"]:
            best[key] = row
    return rows + [dict(row, what="best of PyTorch") for row in best.values()]


def main():
    """Measures and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("perseid", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--csv", default="context_attention.csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--ragged", action="store_true", help="ragged batches alone, no peers")
    parser.add_argument("--peers-seconds", type=float, default=60)
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
    is_new, bounds = not os.path.exists(args.csv), {}
    with open(args.csv, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        def write(row):
            writer.writerow({**machine, **row})
            print(*(f"{row[field]:>10}" for field in FIELDS[5:]), flush=True)

        def key(row):
            return tuple(row[field] for field in FIELDS[5:11])
        shapes = ([] if args.ragged else [(*shape, 0) for shape in SHAPES]) + list(RAGGED)
        for row in measure(args.perseid, args.ranks, args.seconds, shapes):
            write(row)
            if row["what"] != "fused":
                bounds[key(row)] = max(bounds.get(key(row), 0), float(row["milliseconds"]))
        no_peers = args.no_peers or args.ragged
        for row in [] if no_peers else rows_of_peers(args.ranks, args.peers_seconds):
            milliseconds = 1e3 * row.pop("seconds")
            bound = bounds.get(key(row))
            write(dict(row, milliseconds=f"{milliseconds:.4f}",
                       ratio=f"{milliseconds / bound:.3f}" if bound else ""))


if __name__ == "__main__":
    main()
