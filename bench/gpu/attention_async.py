# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""What chunks of keys cost attention forward: the same problem with and without them, on one GPU
and in one run. bf16, head dim 128 unless a problem says otherwise.

    python3 attention_async.py LIBRARY [--problems 'NAME|...'] [--chunks 8] [--csv FILE]

all present: every signal is set before the launch, launches back to back; ratio of the time without
    chunks to this one, above 1 the one without is slower.
arriving: the first chunk visited is present at launch, the c-th of N is signalled c * 0.9 / N of
    the time without chunks after it, by copies over the bus (matmul_async.py); ratio of this time
    to the one without chunks, single launches; the last signal: when it was written, as a fraction
    of the time without chunks.
"""
import argparse
import ctypes
import math

import torch
from binding import Arrival, AsyncOperand, Library, measure_in_turns, medians
from matmul_async import Deliveries, single

# Queries, keys, heads, key heads, head dim, causal (bottom right), first chunk (-1: the last).
# `rank`: a rank's queries of a sequence whose other keys come from elsewhere; as many tiles of
# queries as multiprocessors. `square`: a whole sequence.
PROBLEMS = {
    "full 4k, one wave": (4096, 4096, 4, 4, 128, 0, 0),
    "full 16k, one wave": (16384, 16384, 1, 1, 128, 0, 0),
    "rank of 8, causal 4k": (512, 4096, 32, 4, 128, 1, -1),
    "rank of 8, causal 16k": (2048, 16384, 8, 1, 128, 1, -1),
    "square causal 4k": (4096, 4096, 16, 16, 128, 1, 0),
    "square causal 16k": (16384, 16384, 16, 16, 128, 1, 0),
    "full 4k, 16 heads": (4096, 4096, 16, 16, 128, 0, 0),
    "full 16k, 8 heads": (16384, 16384, 8, 8, 128, 0, 0),
    "full 4k, dim 64": (4096, 4096, 16, 16, 64, 0, 0),
    "causal 4k, dim 64": (4096, 4096, 16, 16, 64, 1, 0),
    "decode 64k": (1, 65536, 32, 4, 128, 0, 0),
}


class Chunked:
    """Forward over `count` chunks of the keys."""

    def __init__(self, library, problem, tensors, count, first):
        rows = tensors["key"].shape[1]
        self.begin = (ctypes.c_int64 * (count + 1))(*(i * rows // count for i in range(count + 1)))
        self.operand = AsyncOperand(ctypes.sizeof(AsyncOperand), 0, count, self.begin)
        self.plan = library.attention("bf16", async_kv=ctypes.addressof(self.operand), **problem)
        self.first = first % count
        self.signals = torch.zeros(count, dtype=torch.int32, device="cuda")
        self.arrival = Arrival(struct_size=ctypes.sizeof(Arrival), signals=self.signals.data_ptr(),
                               epoch=1, first_chunk=self.first, deadline_ns=2_000_000_000)
        self.call = self.plan.attention_call(0, arrival_kv=self.arrival, **tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--problems", default="|".join(PROBLEMS), help="names, with | between")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--csv")
    options = parser.parse_args()
    library, deliveries = Library(options.library), Deliveries()
    torch.manual_seed(0)
    table = [("problem", "chunks", "ms", "TFLOP/s", "all present", "single ms", "arriving",
              "last signal", "error")]
    print("{:24}".format(table[0][0]), *(f"{cell:>11}" for cell in table[0][1:]))
    for name in options.problems.split("|"):
        q_len, kv_len, heads, kv_heads, dim, causal, first = PROBLEMS[name]
        problem = dict(batch=1, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len,
                       head_dim=dim, causal=2 * causal)

        def random(rows, count):
            return torch.randn(1, rows, count, dim, device="cuda").bfloat16()

        tensors = {"query": random(q_len, heads), "key": random(kv_len, kv_heads),
                   "value": random(kv_len, kv_heads)}
        out, plain_out = (torch.full_like(tensors["query"], float("nan")) for _ in range(2))
        plain = library.attention("bf16", **problem).attention_call(0, out=plain_out, **tensors)
        chunked = Chunked(library, problem, {"out": out, **tensors}, options.chunks, first)
        chunked.signals.fill_(1)
        calls = {"plain": plain, "all present": chunked.call}
        alone = measure_in_turns(calls, 3)
        launches = {which: max(3, math.ceil(20 / ms)) for which, ms in alone.items()}
        times = measure_in_turns(calls, options.turns, launches)
        wanted = out.clone()
        error = (out.float() - plain_out.float()).abs().max().item()
        same = True
        plain_single = medians({"plain": [single(plain) for _ in range(3)]})["plain"]
        deliveries.fit(chunked.signals,
                       0.9 * (options.chunks - 1) / options.chunks * plain_single)
        pairs, lasts = {"plain": [], "arriving": []}, []
        for turn in range(options.turns):
            pairs["plain"].append(single(plain))
            out.fill_(float("nan"))
            epoch = chunked.arrival.epoch = 2 + turn
            chunked.signals[chunked.first] = epoch
            pairs["arriving"].append(single(
                chunked.call,
                lambda: lasts.append(
                    deliveries.enqueue(chunked.signals, epoch, chunked.first))))
            torch.cuda.synchronize()
            lasts[-1] = pairs["arriving"][-1][0].elapsed_time(lasts[-1]) / plain_single
            same = same and torch.equal(wanted, out)
        found = medians(pairs)
        pairs_seen = q_len * kv_len - (q_len * (q_len - 1) // 2 if causal else 0)
        rate = 4 * pairs_seen * heads * dim / times["plain"] / 1e9
        row = (name, options.chunks, f"{times['plain']:.4f}", f"{rate:.0f}",
               f"{times['plain'] / times['all present']:.3f}", f"{found['plain']:.4f}",
               f"{found['arriving'] / found['plain']:.3f}",
               f"{sorted(lasts)[len(lasts) // 2]:.3f}",
               f"{error:.1e}" + ("" if same else " DIFFERS"))
        table.append(row)
        print(f"{row[0]:24}", *(f"{cell:>11}" for cell in row[1:]), flush=True)
    if options.csv:
        with open(options.csv, "w") as file:
            file.writelines(",".join(str(cell).replace(", ", "; ") for cell in cells) + "\n"
                            for cells in table)


if __name__ == "__main__":
    main()
