# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Context-parallel attention over GPUs of one host, forward and backward, against its bound in the
same run: the larger of the attention of all rows on one GPU, divided by the number of ranks, and
the transfer alone.

    python3 context_attention.py PERSEID [--ranks 2] [--seconds S] [--csv FILE] [--commit HASH]

Causal, zigzag, head_dim 128, bf16. single: one execution after 3 ms of rest, the host's calls
included. sustained: about 20 ms of executions back to back. Of all ranks the slowest counts;
medians. Rows are added to FILE.
"""
import argparse
import csv
import datetime
import json
import os
import subprocess

# Positions of all ranks, query heads, key heads.
SHAPES = ((8192, 32, 4), (16384, 32, 4), (32768, 8, 1), (32768, 32, 4), (32768, 16, 16),
          (65536, 32, 4))
FIELDS = ("date", "gpu", "driver", "commit", "ranks", "direction", "length", "heads", "kv_heads",
          "mode", "what", "milliseconds", "ratio")


def measure(perseid, ranks, seconds):
    """Rows of all shapes: fused, attention alone, transfer alone."""
    for length, heads, kv_heads in SHAPES:
        for direction in ("forward", "backward"):
            command = [perseid, "bench", "context-attention", "--device", "cuda:0", "--quiet",
                       "--json", "--seconds", str(seconds), "-n", str(ranks), "--length",
                       str(length), "--heads", str(heads), "--kv-heads", str(kv_heads),
                       "--head-dim", "128"]
            command += ["--backward"] if direction == "backward" else []
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode != 0:
                print(f"{direction} {length} {heads} {kv_heads}: {done.stderr}", flush=True)
                continue
            for row in json.loads(done.stdout)["results"]:
                bound = max(row["product_seconds"], row["transfer_seconds"])
                for part, what in (("fused", "fused"), ("product", "attention"),
                                   ("transfer", "transfer")):
                    taken = row[f"{part}_seconds"]
                    yield dict(direction=direction, length=length, heads=heads, kv_heads=kv_heads,
                               mode=row["mode"], what=what, milliseconds=f"{1e3 * taken:.4f}",
                               ratio=f"{taken / bound:.3f}")


def main():
    """Measures and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("perseid")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--csv", default="context_attention.csv")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    gpu, driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"],
        capture_output=True, text=True, check=True).stdout.strip().split(", ")
    machine = dict(date=datetime.date.today().isoformat(), gpu=gpu, driver=driver,
                   commit=args.commit, ranks=args.ranks)
    is_new = not os.path.exists(args.csv)
    with open(args.csv, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        for row in measure(args.perseid, args.ranks, args.seconds):
            writer.writerow({**machine, **row})
            print(*(f"{row[field]:>10}" for field in FIELDS[5:]), flush=True)


if __name__ == "__main__":
    main()
