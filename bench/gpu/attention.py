# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU: the rates of the library and of a baseline, which is cuDNN (through PyTorch)
or the library on a plainer problem, in one run, in two ways: single, one launch between two events
when the one before it has ended, after a rest, as the public peers' figures are; sustained,
launches back to back.

    python3 attention.py LIBRARY [--sections forward,backward,...] [--only REGEX] [--seconds N]
                         [--dims 64,128,256] [--lengths 1024,4096,16384] [--masks full,causal]
                         [--dtype bf16] [--csv FILE] [--list]

Sections are those of attention_rows.py, all of them without --sections; --only takes the rows whose
text matches, --seconds ends the run after so long and says what is left. Rates count the FLOPs of
visible scores, 4 forward and 10 backward for each and each element of the dims, of everything that
is launched. Errors are |x - exact| / |exact| against float64: of out (backward: of the worst
gradient) over one sequence of the first key head. "held": no if a figure that the row was to reach
was missed, and which.
"""
import argparse
import math
import re
import subprocess
import time

import torch
from attention_case import Case
from attention_rows import PEERS, rows_of
from binding import Library, Refused, measure_in_turns, measure_single

COLUMNS = ("section", "direction", "row", "unit", "single", "baseline_1", "ratio_1", "peers", "of_peers",
           "sustained", "baseline", "ratio", "error", "of_baseline", "plan_ms", "held")


def use_cudnn_alone():
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(True)


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def without_sentence(make):
    """What `make` gives, or None and why not."""
    try:
        return make(), ""
    except (Refused, RuntimeError) as failure:
        return None, str(failure).splitlines()[0]


class Result:
    """What was measured of a row."""

    def __init__(self, row, library, options):
        self.row, self.failures = row, []
        self.rates = {"single": {}, "sustained": {}}  # by way and contender
        self.errors = {}
        case = Case(library, **row.problem)
        contenders = {"own": case.call(row.backward)}
        self.plan_ms = contenders["own"].plan.seconds * 1e3
        work = {"own": case.work(row.backward, row.unit)}
        sibling = case
        if row.baseline == "cudnn":
            call, why = without_sentence(lambda: case.peer(row.backward))
        elif row.baseline:
            sibling = Case(library, **row.baseline)
            call, why = without_sentence(lambda: sibling.call(row.backward))
        else:
            call, why = None, ""
        if call is not None:
            contenders["baseline"] = call
            work["baseline"] = sibling.work(row.backward, row.unit)
        elif why:
            self.failures.append("baseline: " + why)
        self.find_errors(case, contenders, row)
        alone = measure_in_turns(contenders, 3)
        launches = {name: min(100, max(3, math.ceil(options.burst / ms)))
                    for name, ms in alone.items()}
        times = {"single": measure_single(contenders, options.turns, options.rest),
                 "sustained": measure_in_turns(contenders, options.turns, launches)}
        for way, found in times.items():
            self.rates[way] = {name: work[name] / ms / 1e9 for name, ms in found.items()}
        self.hold()

    def find_errors(self, case, contenders, row):
        for name, call in contenders.items():
            if name == "baseline" and row.baseline != "cudnn":
                continue
            error = case.error(row.backward, call)
            if error is None:
                return
            self.errors[name] = error
            if name == "own" and not error < 0.02:
                self.failures.append(f"WRONG: error {error:.2e}")

    def ratio(self, way):
        rates = self.rates[way]
        return rates["own"] / rates["baseline"] if "baseline" in rates else None

    def of_peers(self):
        return self.rates["single"]["own"] / self.row.peers if self.row.peers else None

    def hold(self):
        found = {"single": self.ratio("single"), "sustained": self.ratio("sustained"),
                 "of_peers": self.of_peers(), "rate": self.rates["sustained"]["own"]}
        for name, least in self.row.wanted.items():
            if found[name] is not None and found[name] < least:
                self.failures.append(f"{name} {found[name]:.3g} < {least:g}")

    def cells(self):
        def number(value, form):
            return "-" if value is None else format(value, form)

        row, digits = self.row, ".2f" if self.row.unit == "TB/s" else ".0f"
        ways = {way: [number(rates.get("own"), digits), number(rates.get("baseline"), digits),
                      number(self.ratio(way), ".3f")] for way, rates in self.rates.items()}
        return ([row.section, row.direction, row.name, row.unit] + ways["single"] +
                [number(row.peers, digits), number(self.of_peers(), ".3f")] + ways["sustained"] +
                [number(self.errors.get(name), ".2e") for name in ("own", "baseline")] +
                [f"{self.plan_ms:.0f}", "; ".join(self.failures) or "yes"])


def print_cells(cells):
    widths = (13, 8, 31, 7) + 11 * (9,)
    print(" ".join(f"{str(cell):>{width}}" for cell, width in zip(cells, widths)), cells[-1],
          flush=True)


def mean(values):
    found = [value for value in values if value is not None]
    if not found:
        return None
    return math.exp(sum(map(math.log, found)) / len(found)), min(found)


def print_means(results):
    """The geometric mean and the least of each section's ratios."""
    groups = {}
    for result in results:
        groups.setdefault((result.row.section, result.row.direction), []).append(result)
    for (section, direction), members in groups.items():
        texts = [f"{section} {direction}: {len(members)} rows"]
        for name, find in (("single", lambda r: r.ratio("single")),
                           ("single of the best public peers", Result.of_peers),
                           ("sustained", lambda r: r.ratio("sustained"))):
            found = mean(map(find, members))
            if found:
                texts.append(f"{name} {found[0]:.3f}, at least {found[1]:.3f}")
        failed = sum(bool(member.failures) for member in members)
        print("; ".join(texts + [f"{failed} rows short"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--sections", default="", help="all without it")
    parser.add_argument("--only", default="", help="rows whose section, direction and name match")
    parser.add_argument("--seconds", type=float, default=math.inf, help="ends after so long")
    parser.add_argument("--dims", default="64,128,256", help="of forward, backward and others")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--dtype", default="bf16", help="of forward and backward")
    parser.add_argument("--turns", type=int, default=7, help="each contender is timed in")
    parser.add_argument("--rest", type=float, default=0.1, help="seconds before single launches")
    parser.add_argument("--burst", type=float, default=20, help="ms of launches back to back")
    parser.add_argument("--csv")
    parser.add_argument("--list", action="store_true", help="the rows, without measuring them")
    options = parser.parse_args()
    begin = time.monotonic()
    rows = [row for row in rows_of(options) if re.search(options.only, row.text())]
    if options.list:
        print("\n".join(row.text() for row in rows))
        return
    library = Library(options.library)
    use_cudnn_alone()
    print(f"{torch.cuda.get_device_name()}, driver {driver_version()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}; peers: {PEERS}")
    print_cells(COLUMNS)
    results = []
    for index, row in enumerate(rows):
        if time.monotonic() - begin > options.seconds:
            print(f"time is up: {len(rows) - index} rows left, from {row.text()}")
            break
        try:
            results.append(Result(row, library, options))
            print_cells(results[-1].cells())
        except (Refused, RuntimeError) as failure:
            print(f"{row.text()}: FAILED: {str(failure)[:300]}", flush=True)
        torch.cuda.empty_cache()
        if options.csv:
            with open(options.csv, "w") as file:
                for cells in [COLUMNS] + [result.cells() for result in results]:
                    file.write(",".join(f'"{cell}"' for cell in cells) + "\n")
    print_means(results)


if __name__ == "__main__":
    main()
