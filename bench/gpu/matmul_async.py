# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous operand costs: the product whose rows of a come in chunks compared with
the plain one, on one GPU and in one run.

    python3 matmul_async.py LIBRARY [--dtype bf16] [--shapes 4096x4096x4096,...] [--chunks 8,64]
        [--csv FILE]

Of 8-bit types b is transposed, the result bf16 and the accumulation fast.

all present: every signal is set before the launch, launches back to back; ratio of the plain time
    to this one, above 1 the plain product is slower.
present: the same in single launches; ratio of its time to the plain one, below 1 it is faster.
arriving: the first chunk is present at launch, the c-th of N is signalled c * 0.9 / N of the plain
    time after it (--until 0.9), by a stream write behind copies over the bus that take as long (a
    kernel that waits would keep the product from a multiprocessor); ratio of this time to the plain
    one, single launches; the last column is when the last signal was written, as a fraction of the
    plain time.
    The GPU is kept busy while the host enqueues, so that host time does not count.
"""
import argparse
import ctypes
import math
import time

import torch
from binding import (DTYPES, Arrival, AsyncOperand, Library, between_events, measure_in_turns,
                     medians)

SHAPES = "4096x4096x4096,8192x8192x8192,16384x16384x16384,8192x14336x8192,16384x7168x4096"


def plan_of(library, dtype, **asked):
    if dtype.startswith("f8"):
        asked |= {"out_dtype": DTYPES["bf16"][1], "accumulation": 1}
    return library.matmul(dtype, **asked)


def matrix(rows, columns, dtype):
    made = torch.randn(rows, columns, device="cuda")
    return ((40 * made).clamp(-448, 448) if dtype.startswith("f8") else made).to(DTYPES[dtype][0])


class Chunked:
    """The product over `count` chunks of the rows of a."""

    def __init__(self, library, dtype, a, b, c, count):
        m, k = a.shape
        self.begin = (ctypes.c_int64 * (count + 1))(*(i * m // count for i in range(count + 1)))
        self.operand = AsyncOperand(ctypes.sizeof(AsyncOperand), 0, count, self.begin)
        self.plan = plan_of(library, dtype, m=m, n=b.shape[1], k=k,
                            async_a=ctypes.addressof(self.operand))
        self.signals = torch.zeros(count, dtype=torch.int32, device="cuda")
        self.arrival = Arrival(struct_size=ctypes.sizeof(Arrival), signals=self.signals.data_ptr(),
                               epoch=1, deadline_ns=2_000_000_000)
        self.call = self.plan.matmul_call(arrival_a=self.arrival, a=a, b=b, c=c)


class Deliveries:
    """Signals one after the other, each behind a copy of `bytes` to the GPU."""

    def __init__(self):
        self.driver, self.stream = ctypes.CDLL("libcuda.so.1"), torch.cuda.Stream()
        self.source = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
        self.target = torch.empty_like(self.source, device="cuda")
        self.bytes = 1 << 16

    def enqueue(self, signals, epoch, first=0):
        """Of the chunks behind the first, round, after what the current stream has done so far. An
        event behind the last one."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for visit in range(1, len(signals)):
                chunk = (first + visit) % len(signals)
                self.target[:self.bytes].copy_(self.source[:self.bytes], non_blocking=True)
                self.driver.cuStreamWriteValue32_v2(
                    ctypes.c_void_p(self.stream.cuda_stream),
                    ctypes.c_uint64(signals.data_ptr() + 4 * chunk), ctypes.c_uint32(epoch), 0)
            last = torch.cuda.Event(enable_timing=True)
            last.record()
        return last

    def fit(self, signals, milliseconds):
        """Chooses the bytes so that the last signal is written after so many milliseconds."""
        unused = torch.zeros_like(signals)

        def measure(size):
            self.bytes, found = size, []
            for _ in range(5):
                torch.cuda.synchronize()
                torch.cuda._sleep(3_000_000)
                begin = torch.cuda.Event(enable_timing=True)
                begin.record()
                last = self.enqueue(unused, 0)
                torch.cuda.synchronize()
                found.append(begin.elapsed_time(last))
            return sorted(found)[2]

        low, high = 1 << 12, 1 << 22
        slope = (high - low) / (measure(high) - measure(low))
        for _ in range(3):  # from the last size to a better one
            size = self.bytes + (milliseconds - measure(self.bytes)) * slope
            self.bytes = min(max(int(size), 4), len(self.source))


def single(call, before=lambda: None):
    """Events around one launch on a GPU that has rested, and then is busy while the host works."""
    torch.cuda.synchronize()
    time.sleep(0.015)
    torch.cuda._sleep(3_000_000)
    before()
    return between_events(call, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--dtype", default="bf16", choices=("f16", "bf16", "f32", "f8e4m3"))
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--chunks", default="8,64")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--until", type=float, default=0.9)
    parser.add_argument("--csv")
    options = parser.parse_args()
    library, deliveries = Library(options.library), Deliveries()
    torch.manual_seed(0)
    table = [("m", "n", "k", "chunks", "plain ms", "all present", "single ms", "present",
              "arriving", "last signal")]
    print(*(f"{cell:>11}" for cell in table[0]))
    for shape in options.shapes.split(","):
        m, n, k = map(int, shape.split("x"))
        dtype = options.dtype
        a = matrix(m, k, dtype)
        b = matrix(n, k, dtype).t() if dtype.startswith("f8") else matrix(k, n, dtype)
        of_c = torch.bfloat16 if dtype.startswith("f8") else a.dtype
        plain_c, c = (torch.full((m, n), float("nan"), device="cuda", dtype=of_c)
                      for _ in range(2))
        plan = plan_of(library, dtype, m=m, n=n, k=k)
        plain = plan.matmul_call(a=a, b=b, c=plain_c)
        for count in map(int, options.chunks.split(",")):
            chunked = Chunked(library, dtype, a, b, c, count)
            chunked.signals.fill_(1)
            calls = {"plain": plain, "all present": chunked.call}
            alone = measure_in_turns(calls, 3)
            launches = {name: max(3, math.ceil(20 / ms)) for name, ms in alone.items()}
            times = measure_in_turns(calls, options.turns, launches)
            same = torch.equal(plain_c, c)
            plain_single = medians({"plain": [single(plain) for _ in range(3)]})["plain"]
            deliveries.fit(chunked.signals, options.until * (count - 1) / count * plain_single)
            pairs, lasts = {"plain": [], "present": [], "arriving": []}, []
            for turn in range(options.turns):
                pairs["plain"].append(single(plain))
                pairs["present"].append(single(chunked.call))  # by the signals of the last turn
                c.fill_(float("nan"))
                epoch = chunked.arrival.epoch = 2 + turn
                chunked.signals[0] = epoch
                pairs["arriving"].append(single(
                    chunked.call,
                    lambda: lasts.append(deliveries.enqueue(chunked.signals, epoch))))
                torch.cuda.synchronize()
                lasts[-1] = pairs["arriving"][-1][0].elapsed_time(lasts[-1]) / plain_single
                same = same and torch.equal(plain_c, c)
            found = medians(pairs)
            row = (m, n, k, count, f"{times['plain']:.3f}",
                   f"{times['plain'] / times['all present']:.3f}", f"{found['plain']:.3f}",
                   f"{found['present'] / found['plain']:.3f}",
                   f"{found['arriving'] / found['plain']:.3f}",
                   f"{sorted(lasts)[len(lasts) // 2]:.3f}", "" if same else "DIFFERS")
            table.append(row)
            print(*(f"{cell:>11}" for cell in row), flush=True)
    if options.csv:
        with open(options.csv, "w") as file:
            file.writelines(",".join(map(str, cells)) + "\n" for cells in table)


if __name__ == "__main__":
    main()
