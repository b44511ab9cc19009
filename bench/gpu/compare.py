# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention of two or more builds of the library in one run: sustained rates, launches back to back,
the builds in turns. What a change to the kernels costs, or gains, to about half a percent.

    python3 compare.py LIBRARY LIBRARY... [--sections forward,backward] [--only REGEX] [--turns 15]
                       [--dims 64,128,256] [--lengths 1024,4096,16384] [--masks full,causal]
                       [--dtype bf16] [--csv FILE]

Ratios are to the rate of the first library.
"""
import argparse
import math
import re

import torch
from attention_case import Case
from attention_rows import rows_of
from binding import Library, measure_in_turns


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--sections", default="forward,backward")
    parser.add_argument("--only", default="", help="rows whose section, direction and name match")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--burst", type=float, default=10, help="ms of launches back to back")
    parser.add_argument("--csv")
    options = parser.parse_args()
    libraries = {path: Library(path) for path in options.libraries}
    table = [("row", *libraries, *(f"{path} / first" for path in options.libraries[1:]))]
    ratios = {path: [] for path in options.libraries[1:]}
    for row in (row for row in rows_of(options) if re.search(options.only, row.text())):
        cases = {path: Case(library, **row.problem) for path, library in libraries.items()}
        calls = {path: case.call(row.backward) for path, case in cases.items()}
        alone = measure_in_turns(calls, 3)
        launches = {path: max(3, math.ceil(options.burst / ms)) for path, ms in alone.items()}
        times = measure_in_turns(calls, options.turns, launches)
        first = times[options.libraries[0]]
        for path, found in ratios.items():
            found.append(first / times[path])
        work = cases[options.libraries[0]].work(row.backward, row.unit)
        table.append((row.text(), *(f"{work / ms / 1e9:.0f}" for ms in times.values()),
                      *(f"{found[-1]:.3f}" for found in ratios.values())))
        print(f"{table[-1][0]:>45}", *(f"{cell:>7}" for cell in table[-1][1:]), flush=True)
        torch.cuda.empty_cache()
    for path, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{path}: {mean:.3f} of the first in the geometric mean, at least {min(found):.3f}")
    if options.csv:
        with open(options.csv, "w") as file:
            file.writelines(",".join(f'"{cell}"' for cell in cells) + "\n" for cells in table)


if __name__ == "__main__":
    main()
