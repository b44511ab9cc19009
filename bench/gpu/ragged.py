# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Packing and unpacking of ragged batches beside copies of as many bytes, in one run.

    python3 ragged.py LIBRARY [--csv FILE]

Rows of bf16 [heads, 128]; lengths are random from a quarter of the longest up. pack: what it reads
and writes is what the copy reads and writes. unpack: it reads the packed rows and writes all padded
ones; the copy moves half of the sum each way. lengths: microseconds. The GPU waits before each
launch, so that host time does not count.
"""
import argparse
import ctypes
import random

import torch
from binding import Library, measure_in_turns, view

CASES = ((8, 4096, 16), (64, 512, 16), (256, 2048, 2), (16, 4096, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--csv")
    options = parser.parse_args()
    library = Library(options.library)
    call = lambda name, *rest: library.call("perseid_ragged_" + name, library.context, *rest)
    rows = ["batch,longest,heads,operation,us,copy_us,ratio,gb_per_s"]
    for batch, longest, heads in CASES:
        lengths = [random.Random(b).randint(longest // 4, longest) for b in range(batch)]
        total = sum(lengths)
        padded = torch.randn(batch, longest, heads, 128, device="cuda").bfloat16()
        packed = torch.empty(total, heads, 128, device="cuda", dtype=torch.bfloat16)
        given = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        ends = torch.empty(batch + 1, dtype=torch.int32, device="cuda")
        of = {name: view(tensor) for name, tensor in
              dict(padded=padded, packed=packed, given=given, ends=ends).items()}
        at = {name: ctypes.byref(each) for name, each in of.items()}
        sums = lambda: call("lengths", at["given"], ctypes.c_int64(longest), ctypes.c_int64(total),
                            at["ends"], None)
        pack = lambda: call("pack", at["padded"], at["ends"], at["packed"], 1, None)
        unpack = lambda: call("unpack", at["packed"], at["ends"], at["padded"], 1, None)
        sums(), pack()
        mask = torch.arange(longest, device="cuda")[None] < given[:, None]
        assert torch.equal(packed, padded[mask])
        padded.fill_(float("nan"))
        unpack()
        assert torch.equal(padded[mask], packed) and not padded[~mask].any()
        bytes_of = {"pack": 2 * packed.nbytes, "unpack": packed.nbytes + padded.nbytes}
        for name, operation in (("pack", pack), ("unpack", unpack)):
            source = torch.randn(bytes_of[name] // 8, device="cuda")
            target = torch.empty_like(source)
            times = measure_in_turns({"ours": operation, "copy": lambda: target.copy_(source)}, 21,
                                     ahead=400_000)
            rows.append(f"{batch},{longest},{heads},{name},{1e3 * times['ours']:.1f},"
                        f"{1e3 * times['copy']:.1f},{times['copy'] / times['ours']:.3f},"
                        f"{bytes_of[name] / times['ours'] / 1e6:.0f}")
        times = measure_in_turns({"ours": sums}, 21, ahead=400_000)
        rows.append(f"{batch},{longest},{heads},lengths,{1e3 * times['ours']:.1f},,,")
    print("\n".join(rows))
    if options.csv:
        with open(options.csv, "w", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")


main()
